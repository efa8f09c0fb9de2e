//! What shards tell each other.

/// A message from one shard to another. Drivers carry it and never look inside.
#[derive(Debug)]
#[must_use = "lost mail leaves shards with different views"]
pub struct Mail(pub(crate) Letter);

#[derive(Debug)]
pub(crate) enum Letter {}
