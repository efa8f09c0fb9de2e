//! Schedule, form and receivers of data updates. Spec §7.5 with the semantics it requires;
//! weaknesses A-3 to A-7, A-10, A-13, A-16.
//!
//! ```text
//! ring      | u7 | u8 | u9 | u10 |            updates by handling index, oldest first
//! cohort A         ^ start = 8                everybody in it has had everything before u8
//! cohort B              ^ start = 9
//! joiner of B                ^ cursor = 10    joined in the middle of B's window
//! ```
//!
//! Subscribers with the same interval, phase and mask form a cohort. When a window of the cohort
//! ends, the pending updates are merged and encoded once, and the bytes are shared by all members;
//! a single pending update passes through as it is. Own bytes are made only for a member that sent
//! one of the pending updates itself and does not want it back, and for joiners, who are members
//! from then on. Where many members wrote, each one's bytes are pieces of the same pages
//! ([`Mosaic`](crate::data::Mosaic)). Selecting by handling index makes delivery exactly-once
//! whatever the arrival times (A-7).
//!
//! Windows end at `anchor + k * interval` and are flushed at the first tick of the channel at or
//! after that. Since ticks and windows are whole multiples of their greatest common divisor apart,
//! phases are rounded up to it: that changes no tick and makes more subscribers share a cohort.
//! Windows that the gateway chose are flushed when they end, between the channel's ticks if need be
//! ([`Channel::grain`]).
//!
//! Cost per update: one merge and one push. Per window: one encoding per distinct range of updates,
//! then one letter per shard that has members; the lists of recipients last until somebody comes or
//! leaves. A channel where nothing is pending has no timer.

mod flush;
mod members;
mod membership;
mod ring;
mod schedule;
mod ticks;
mod why;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use members::Members;
use schedule::ceil_to;
use slab::Slab;
use throng_stdx::TimerKey;

use crate::data::{FieldMask, Plan, Update};
use crate::ids::{ConnId, ShardIndex};
use crate::mail::Payload;
use crate::switchboard::Address;

/// The fan-out state of one channel.
#[derive(Debug, Default)]
pub(crate) struct FanOut {
    /// Updates that somebody has not had.
    ring: VecDeque<Change>,
    /// Handling index of `ring[0]`.
    first: u64,
    /// Bytes of the updates in the ring.
    bytes: usize,
    cohorts: Slab<Cohort>,
    /// The cohort of which the latest sender was a member.
    latest_sender_in: u32,
    /// Subscriptions that get a full state, by the tick (channel time) at which it is due.
    waiting: BTreeSet<(i64, u32)>,
    /// Subscriptions whose interval became so short that what they have not had is due at this
    /// tick.
    overdue: BTreeSet<(i64, u32)>,
    /// The tick for which the channel's timer is armed.
    wake: Option<(i64, TimerKey)>,
    removals: Removals,
}

/// The latest removals of map entries, as updates: what a full state cannot say.
#[derive(Debug, Default)]
struct Removals {
    updates: VecDeque<Vec<u8>>,
    bytes: usize,
}

#[derive(Debug)]
struct Change {
    sender: ConnId,
    update: Update,
    /// The updates from this index on, up to this one, come to the same as this one alone.
    covers_from: u64,
}

#[derive(Debug)]
struct Cohort {
    /// Nanoseconds; never zero.
    interval: i64,
    /// Windows end at times congruent to this.
    phase: i64,
    /// Windows are flushed at the first multiple of this at or after their ends: the channel's
    /// tick, or a part of it.
    grain: i64,
    mask: Option<Arc<FieldMask>>,
    /// Everything before this index was delivered to the members, `folded` excepted.
    start: u64,
    /// Updates before `start` that were taken out of the ring undelivered, in merged form.
    folded: Vec<Update>,
    members: Members,
    joiners: Vec<Joiner>,
    /// The tick of the next flush; `None` when nothing is pending.
    due: Option<i64>,
    /// No window that ends at or before this time is flushed any more.
    done: i64,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    /// One more than the index of the subscriber's latest own update, 0 for none.
    own_end: u64,
    // The address, laid out so that a million members take 24 MB instead of 32.
    conn: ConnId,
    slot: u32,
    sub: u32,
    shard: ShardIndex,
    skip_self: bool,
}

const _: () = assert!(size_of::<Member>() == 24);

#[derive(Debug)]
struct Joiner {
    member: Member,
    /// It has had everything before this index, `folded` excepted.
    cursor: u64,
    folded: Vec<Update>,
    /// First tick at which it may get something.
    not_before: i64,
}

/// Where a subscription stands in the fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FanoutPosition {
    /// It gets nothing: no access, or no data yet and no wish for a first state.
    Nowhere,
    /// It gets a full state at this tick, or when there is data.
    Waiting { due: i64 },
    /// Position in a cohort's members.
    Member { cohort: u32, at: u32 },
    /// Position in a cohort's joiners.
    Joiner { cohort: u32, at: u32 },
}

/// What a subscription takes along when it leaves its cohort.
#[derive(Debug)]
pub(crate) struct Position {
    cursor: u64,
    folded: Vec<Update>,
    own_end: u64,
}

/// Subscribers that share fan-out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CohortView {
    /// Fan-out interval in nanoseconds.
    pub interval_ns: i64,
    /// Windows end at channel times congruent to this, in nanoseconds.
    pub phase_ns: i64,
    /// Not all fields go to it.
    pub masked: bool,
    /// Subscribers in step.
    pub members: usize,
    /// Subscribers that are catching up.
    pub joiners: usize,
    /// Updates that it has not had.
    pub pending: u64,
}

/// Payloads made in one tick, by what they contain.
#[derive(Default)]
struct Made {
    ranges: Vec<(u64, Option<Arc<FieldMask>>, Payload)>,
    /// The flag: with the removals in front, for subscribers that had an older state.
    states: Vec<(Option<Arc<FieldMask>>, bool, Payload)>,
}

impl FanOut {
    /// The handling index of the next update.
    fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    /// Notes that the update before index `end` is the subscriber's.
    fn note_own(&mut self, place: FanoutPosition, end: u64) {
        match place {
            FanoutPosition::Member { cohort, at } => {
                self.latest_sender_in = cohort;
                self.cohorts[cohort as usize].members.note_own(at, end);
            }
            FanoutPosition::Joiner { cohort, at } => {
                self.cohorts[cohort as usize].joiners[at as usize].member.own_end = end;
            }
            FanoutPosition::Nowhere | FanoutPosition::Waiting { .. } => {}
        }
    }

    fn set_skip_self(&mut self, place: FanoutPosition, skip_self: bool) {
        match place {
            FanoutPosition::Member { cohort, at } => {
                self.cohorts[cohort as usize].members.set_skip_self(at, skip_self);
            }
            FanoutPosition::Joiner { cohort, at } => {
                self.cohorts[cohort as usize].joiners[at as usize].member.skip_self = skip_self;
            }
            FanoutPosition::Nowhere | FanoutPosition::Waiting { .. } => {}
        }
    }

    /// Notes that the update before index `end` is this connection's, if it sent the latest one as
    /// well: most updates come from the owner of the channel, whose subscription need not be looked
    /// for.
    fn note_next_own(&mut self, conn: ConnId, end: u64) -> bool {
        let cohort = self.cohorts.get_mut(self.latest_sender_in as usize);
        cohort.is_some_and(|cohort| cohort.members.note_next_own(conn, end))
    }

    /// Updates that somebody has not had, for monitoring.
    pub(crate) fn backlog(&self) -> (usize, usize) {
        (self.ring.len(), self.bytes)
    }

    /// Every cohort, for monitoring.
    pub(crate) fn cohort_views(&self) -> impl Iterator<Item = CohortView> + '_ {
        self.cohorts.iter().map(|(_, cohort)| CohortView {
            interval_ns: cohort.interval,
            phase_ns: cohort.phase,
            masked: cohort.mask.is_some(),
            members: cohort.members.len(),
            joiners: cohort.joiners.len(),
            pending: self.end().saturating_sub(cohort.start),
        })
    }

    /// Cohorts, for monitoring.
    pub(crate) fn cohort_count(&self) -> usize {
        self.cohorts.len()
    }
}

impl Cohort {
    /// Nobody else is in it, and the connection wants none of its own updates.
    fn is_only(&self, conn: ConnId) -> bool {
        self.joiners.is_empty() && self.members.is_only(conn)
    }

    /// When an update that is handled at `now` leaves: with the first window that has not been
    /// flushed.
    fn due_after(&self, now: i64) -> i64 {
        let lower = self.done.max(ceil_to(now, self.grain) - self.grain);
        let windows = (lower + 1 - self.phase + self.interval - 1).div_euclid(self.interval);
        ceil_to(self.phase + windows * self.interval, self.grain)
    }
}

impl Member {
    fn new(sub: u32, address: Address, skip_self: bool, own_end: u64) -> Self {
        let Address { conn, shard, slot } = address;
        Self { own_end, conn, slot, sub, shard, skip_self }
    }

    fn address(&self) -> Address {
        Address { conn: self.conn, shard: self.shard, slot: self.slot }
    }
}

impl Position {
    fn at(cursor: u64) -> Self {
        Self { cursor, folded: Vec::new(), own_end: 0 }
    }

    /// Some updates before `end` have not been delivered.
    fn is_behind(&self, end: u64) -> bool {
        self.cursor < end || !self.folded.is_empty()
    }
}

pub(crate) fn compile_mask(plan: &Plan, paths: &[String]) -> Option<Arc<FieldMask>> {
    if paths.is_empty() {
        return None;
    }
    let mask = FieldMask::compile(plan, paths);
    (!mask.is_everything()).then(|| Arc::new(mask))
}

fn same_mask(one: &Option<Arc<FieldMask>>, other: &Option<Arc<FieldMask>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        _ => false,
    }
}
