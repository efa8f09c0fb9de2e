//! From the result of a search to a match: proposals, answers, and their ends.

mod owner;
mod service;

use smallvec::SmallVec;

pub(crate) use owner::{Match, Matches, Stage};

/// Players of some tickets.
pub(crate) type Players = SmallVec<[crate::key::PlayerKey; 16]>;

/// Reason of a ticket one of whose players gave up its seat before the match had a server.
pub(crate) const GAVE_UP: &str = "left";

/// Result of placing a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Its players are to be [told](Matcher::make_ready); until when their seats are held.
    Ready(u64),
    /// It waits for a server.
    Waits,
    /// The backfill's room does not take them: the tickets search on.
    Refused,
}
