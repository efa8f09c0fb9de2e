//! Wall time.

/// Wall time in ms since the epoch. Deadlines are made of it, so they outlive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallMs(pub u64);
