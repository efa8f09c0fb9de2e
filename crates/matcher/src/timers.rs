//! Timers. Deadlines are wall times, so they outlive the process.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::Id;
use crate::info::Text;
use crate::key::{PlayerKey, QueueKey, ServerKey};

/// A timer's action. An object that is gone or has another deadline now makes its timer void.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Nothing: its object was gone when a snapshot was taken. It still counts among the timers
    /// that one input fires.
    Nothing,
    /// A deleting room goes.
    RoomEnd(Id),
    /// Seats of a room expire.
    Seats(Id),
    /// A lost server's roles are given up.
    Grace(ServerKey),
    /// A queue looks for matches.
    Tick(QueueKey),
    /// A proposal was not answered.
    Proposal(Id),
    /// A match has no server, or a full room no world.
    Assign(Id),
    /// A backfill gave no sign of life.
    Backfill(Id),
    /// Tickets of a queue are told how they stand.
    Updates(QueueKey),
    /// A rating period ends.
    Period(Text),
    /// A role may ask for a match again.
    Cooldown(PlayerKey),
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

impl Timers {
    /// All of them in order of time, and how many were ever set.
    pub(crate) fn save(&self) -> (Vec<(u64, u64, &Timer)>, u64) {
        let mut list: Vec<(u64, u64, &Timer)> =
            self.heap.iter().map(|Reverse((at, number, timer))| (*at, *number, timer)).collect();
        list.sort_unstable();
        (list, self.set)
    }

    pub(crate) fn load(list: impl Iterator<Item = (u64, u64, Timer)>, set: u64) -> Timers {
        Timers { heap: list.map(Reverse).collect(), set }
    }
}
