//! Timers. Deadlines are wall times, so they outlive the process.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::Id;
use crate::info::Text;

/// A timer's action. An object that is gone or has another deadline now makes its timer void.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Timer {
    /// A deleting room goes.
    RoomEnd(Id),
    /// Seats of a room expire.
    Seats(Id),
    /// A lost server's roles are given up.
    Grace(u32),
    /// A queue looks for matches.
    Tick(u32),
    /// A proposal was not answered.
    Proposal(Id),
    /// A match has no server.
    Assign(Id),
    /// A backfill gave no sign of life.
    Backfill(Id),
    /// Tickets of a queue are told how they stand.
    Updates(u32),
    /// A rating period ends.
    Period(Text),
    /// A role may ask for a match again.
    Cooldown(u32),
    /// A policy did not answer.
    Policy(u64),
}

/// Timers in order of time, then of being set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64, Timer)>>,
    set: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, at: u64, timer: Timer) {
        self.heap.push(Reverse((at, self.set, timer)));
        self.set += 1;
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u64, Timer)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, timer))| (at, timer))
    }
}

impl Serialize for Timers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list: Vec<(u64, u64, Timer)> = self.heap.iter().map(|Reverse(timer)| timer.clone()).collect();
        list.sort_unstable();
        (list, self.set).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Timers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timers, D::Error> {
        let (list, set): (Vec<(u64, u64, Timer)>, u64) = Deserialize::deserialize(deserializer)?;
        Ok(Timers { heap: list.into_iter().map(Reverse).collect(), set })
    }
}
