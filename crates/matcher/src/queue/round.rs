//! A round of telling the tickets of a queue how they stand.

use std::collections::BTreeSet;

use super::anchors::Anchor;
use crate::schema::v1;

/// A round of telling all tickets of a queue. First they are put in order, then each is told how
/// many were passed before it that still search: a position is as old as a round lasts, some 2 s
/// with 100,000 tickets, and costs the search nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    /// Number of the next ticket to put in order.
    pub(crate) next: u32,
    /// Tickets to notify, by number of their partition.
    pub(crate) left: BTreeSet<(u64, Anchor)>,
    /// A partition, and how many of it still searched when they were passed.
    pub(crate) passed: (u64, u64),
}

impl Round {
    pub(crate) fn save(&self) -> v1::Round {
        let left = self.left.iter().map(|(partition, anchor)| (*partition, (*anchor).into()));
        v1::Round { next: self.next, left: left.collect(), passed: self.passed }
    }

    pub(crate) fn load(saved: &v1::Round) -> Round {
        let left = saved.left.iter().map(|(partition, anchor)| (*partition, (*anchor).into()));
        Round { next: saved.next, left: left.collect(), passed: saved.passed }
    }
}
