//! When data updates leave, in what form, and to whom. Spec §7.5 with the semantics it requires; weaknesses A-3 to A-7,
//! A-10, A-13, A-16.
//!
//! ```text
//! ring      | u7 | u8 | u9 | u10 |            updates by handling index, oldest first
//! cohort A         ^ start = 8                everybody in it has had everything before u8
//! cohort B              ^ start = 9
//! joiner of B                ^ cursor = 10    joined in the middle of B's window
//! ```
//!
//! Subscribers with the same interval, phase and mask form a cohort. When a window of the cohort ends, the pending
//! updates are merged and encoded once, and the bytes are shared by all members; a single pending update passes through
//! as it is. Own bytes are made only for a member that sent one of the pending updates itself and does not want it back,
//! and for joiners, who are members from then on. Where many members wrote, each one's bytes are pieces of the same pages
//! ([`Mosaic`]). Selecting by handling index makes delivery exactly-once whatever the arrival times (A-7).
//!
//! Windows end at `anchor + k * interval` and are flushed at the first tick of the channel at or after that. Since ticks
//! and windows are whole multiples of their greatest common divisor apart, phases are rounded up to it: that changes no
//! tick and makes more subscribers share a cohort.
//!
//! Cost per update: one merge and one push. Per window: one encoding per distinct range of updates, then a few
//! nanoseconds per member. A channel where nothing is pending has no timer.

use core::mem;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use core::time::Duration;
use slab::Slab;
use smallvec::SmallVec;
use throng_stdx::{Instant, TimerKey};
use throng_wire::frame::PACKET_BYTES_SEND_MAX;
use throng_wire::{data_update_entry_len, write_data_update_entry, write_data_update_head};

use crate::channel::{Channel, Options, RateBy};
use crate::data::{FieldMask, MergeOptions, Mosaic, Plan, Update, filter, merged, removals, split};
use crate::ids::{ChannelId, ConnId};
use crate::inspect::CohortView;
use crate::mail::{Payload, State};
use crate::outbox::Entry;
use crate::reason::Refusal;
use crate::switchboard::{Address, Switchboard, Timer};

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
    /// Subscriptions that get a full state, by the tick (channel time) at which it is due.
    waiting: BTreeSet<(i64, u32)>,
    /// Subscriptions whose interval became so short that what they have not had is due at this tick.
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

/// Bytes of removals kept per channel, some 6,000 entries with numeric keys. A reader that is further behind than that
/// keeps what it missed the removal of, until that key is used again.
const REMOVALS_BYTES_MAX: usize = 64 * 1024;

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
    mask: Option<Arc<FieldMask>>,
    /// Everything before this index was delivered to the members, `folded` excepted.
    start: u64,
    /// Updates before `start` that were taken out of the ring undelivered, in merged form.
    folded: Vec<Update>,
    members: Vec<Member>,
    joiners: Vec<Joiner>,
    /// The tick of the next flush; `None` when nothing is pending.
    due: Option<i64>,
    /// No window that ends at or before this time is flushed any more.
    done: i64,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    sub: u32,
    address: Address,
    skip_self: bool,
    /// One more than the index of the subscriber's latest own update, 0 for none.
    own_end: u64,
}

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
pub(crate) enum Place {
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

/// Payloads made in one tick, by what they contain.
#[derive(Default)]
struct Made {
    ranges: Vec<(u64, Option<Arc<FieldMask>>, Payload)>,
    /// The flag: with the removals in front, for subscribers that had an older state.
    states: Vec<(Option<Arc<FieldMask>>, bool, Payload)>,
}

/// Members that get an accumulation of their own when a backlog is folded; more would let one channel multiply its
/// backlog by its writers, so the rest gets a full state instead.
const PRIVATE_FOLDS_MAX: usize = 32;

impl Channel {
    // ---- Entering and leaving ---------------------------------------------------------------------------------------

    /// A new subscription, or one that has regained access, starts to take part.
    pub(crate) fn start_fan_out(&mut self, board: &mut Switchboard, key: u32) {
        let now = self.time(board.now);
        let sub = &self.subs[key as usize];
        if !sub.options.can_read() {
            return;
        }
        if sub.had_first {
            if self.data.is_some() {
                let cursor = self.fan.end();
                self.join(board, key, Position { cursor, folded: Vec::new(), own_end: 0 });
            }
        } else {
            let due = sub.anchor.saturating_add(millis(sub.options.interval_ms)).max(now);
            self.wait(key, due);
        }
        self.arm(board);
    }

    /// Reacts to a changed subscription. Spec §5.8: a new interval counts from the last fan-out.
    pub(crate) fn options_changed(&mut self, board: &mut Switchboard, key: u32, before: &Options) {
        let last = self.last_window(key, board.now, before.interval_ms);
        let options = &self.subs[key as usize].options;
        let (could, can) = (before.can_read(), options.can_read());
        let moved = before.interval_ms != options.interval_ms || before.masks != options.masks;
        let skip_self = options.skip_self;
        match (could, can) {
            (true, false) => {
                self.leave(key);
                let sub = &mut self.subs[key as usize];
                sub.anchor = last;
                // What it misses from here on is made good by a full state when it may read again.
                sub.stale |= sub.had_first;
                sub.had_first = false;
            }
            (false, true) => {
                // A first state that was skipped is due now: there is no telling what was missed meanwhile.
                self.subs[key as usize].had_first = false;
                self.start_fan_out(board, key);
            }
            (true, true) if moved => match self.subs[key as usize].place {
                Place::Nowhere => {}
                Place::Waiting { .. } => {
                    self.leave(key);
                    let sub = &self.subs[key as usize];
                    let due = sub.anchor.saturating_add(millis(sub.options.interval_ms));
                    let due = due.max(self.time(board.now));
                    self.wait(key, due);
                }
                Place::Member { .. } | Place::Joiner { .. } => {
                    let was_overdue = self.fan.overdue.iter().any(|&(_, overdue)| overdue == key);
                    let position = self.leave(key);
                    self.subs[key as usize].anchor = last;
                    let now = self.time(board.now);
                    let sub = &self.subs[key as usize];
                    let next = last.saturating_add(millis(sub.options.interval_ms));
                    let overdue = sub.rate_by != RateBy::Gateway
                        && position.is_behind(self.fan.end())
                        && (was_overdue || next <= now);
                    self.join(board, key, position);
                    if overdue {
                        // The new window would have ended already; the next one may be a whole interval away.
                        self.fan.overdue.insert((self.tick_at_or_after(now), key));
                    }
                }
            },
            _ => {}
        }
        if let Some(member) = self.fan.member_mut(self.subs[key as usize].place) {
            member.skip_self = skip_self;
        }
        self.arm(board);
    }

    /// The first update of a channel without data is about to be pushed.
    pub(crate) fn data_begun(&mut self, board: &mut Switchboard) {
        let cursor = self.fan.end();
        let unplaced: Vec<u32> = self
            .subs
            .iter()
            .filter(|(_, sub)| sub.place == Place::Nowhere && sub.options.can_read())
            .map(|(key, _)| key as u32)
            .collect();
        for key in unplaced {
            self.join(board, key, Position { cursor, folded: Vec::new(), own_end: 0 });
        }
        self.arm(board);
    }

    /// The data was replaced: nobody's deltas lead to it, so everybody with access gets it in full (A-16).
    pub(crate) fn data_replaced(&mut self, board: &mut Switchboard) {
        let keys: Vec<u32> = self.subs.iter().map(|(key, _)| key as u32).collect();
        for key in keys {
            self.await_full_state(board, key);
        }
        self.fan.first = self.fan.end();
        self.fan.ring.clear();
        self.fan.bytes = 0;
        self.fan.removals = Removals::default();
        self.arm(board);
    }

    /// A slow reader has room again: a full state replaces what it missed.
    pub(crate) fn resync(&mut self, board: &mut Switchboard, conn: ConnId) {
        let Some(key) = self.key(conn) else { return };
        board.stats.resyncs += 1;
        self.await_full_state(board, key);
        self.trim();
        self.arm(board);
    }

    /// Moves a subscription to the full states, due when its running window ends. One that waits already keeps its time.
    fn await_full_state(&mut self, board: &Switchboard, key: u32) {
        let sub = &self.subs[key as usize];
        if !sub.options.can_read() || matches!(sub.place, Place::Waiting { .. }) {
            return;
        }
        let interval_ms = sub.options.interval_ms;
        let last = self.last_window(key, board.now, interval_ms);
        self.leave(key);
        let sub = &mut self.subs[key as usize];
        sub.anchor = last;
        sub.stale = true;
        let due = last.saturating_add(millis(interval_ms)).max(self.time(board.now));
        self.wait(key, due);
    }

    /// Sends a subscription what it has not had, whatever its window.
    fn catch_up(&mut self, board: &mut Switchboard, key: u32, made: &mut Made) {
        let Position { cursor, folded, own_end } = self.leave(key);
        let Some(data) = &self.data else { return };
        let sub = &self.subs[key as usize];
        let end = self.fan.end();
        if cursor < end || !folded.is_empty() {
            let mask = compile_mask(data.content.plan(), &sub.options.masks);
            let own = (sub.options.skip_self && own_end > cursor).then_some(sub.address.conn);
            let payload = self.range_payload(board, cursor, end, &mask, &folded, own, made);
            board.deliver(&payload, Some(State { channel: self.id, full: false }), [sub.address]);
        }
        self.join(board, key, Position::at(end));
    }

    fn wait(&mut self, key: u32, due: i64) {
        let due = self.tick_at_or_after(due);
        self.fan.waiting.insert((due, key));
        self.subs[key as usize].place = Place::Waiting { due };
    }

    /// Puts a subscription into the cohort of its interval, phase and mask. There is data.
    fn join(&mut self, board: &Switchboard, key: u32, position: Position) {
        let now = self.time(board.now);
        let sub = &self.subs[key as usize];
        let Some(data) = &self.data else { return };
        let mask = compile_mask(data.content.plan(), &sub.options.masks);
        let tick = self.tick();
        let interval = if sub.options.interval_ms == 0 { tick } else { millis(sub.options.interval_ms) };
        let phase = match sub.rate_by {
            // Spec §7.5, A-10: an interval of zero means every tick.
            _ if sub.options.interval_ms == 0 => 0,
            RateBy::Gateway => self.shared_phase(sub.address.conn, interval),
            RateBy::Default if self.is_of_world() => self.shared_phase(sub.address.conn, interval),
            RateBy::Default | RateBy::Subscriber => phase(sub.anchor, interval, tick),
        };
        let anchor = sub.anchor;
        let member = Member {
            sub: key,
            address: sub.address,
            skip_self: sub.options.skip_self,
            own_end: position.own_end,
        };

        let fan = &mut self.fan;
        let index = match fan.cohort_for(interval, phase, &mask) {
            Some(index) => index,
            None => fan.cohorts.insert(Cohort {
                interval,
                phase,
                mask,
                start: position.cursor,
                folded: Vec::new(),
                members: Vec::new(),
                joiners: Vec::new(),
                due: None,
                done: i64::MIN,
            }),
        };
        let end = fan.end();
        let cohort = &mut fan.cohorts[index];
        if anchor <= now {
            cohort.done = cohort.done.max(anchor);
        }
        let in_step = position.cursor == cohort.start
            && position.folded.is_empty()
            && cohort.folded.is_empty()
            && anchor <= now;
        let pending = position.is_behind(end);
        let cohort_index = index as u32;
        let place = if in_step {
            cohort.members.push(member);
            Place::Member { cohort: cohort_index, at: cohort.members.len() as u32 - 1 }
        } else {
            let not_before = if anchor <= now { i64::MIN } else { anchor.saturating_add(interval) };
            let Position { cursor, folded, .. } = position;
            cohort.joiners.push(Joiner { member, cursor, folded, not_before });
            Place::Joiner { cohort: cohort_index, at: cohort.joiners.len() as u32 - 1 }
        };
        if pending && cohort.due.is_none() {
            cohort.due = Some(cohort.due_after(now, tick));
        }
        self.subs[key as usize].place = place;
    }

    /// Takes a subscription out of the fan-out and says how far it has come.
    pub(crate) fn leave(&mut self, key: u32) -> Position {
        let fan = &mut self.fan;
        fan.overdue.retain(|&(_, overdue)| overdue != key);
        let place = mem::replace(&mut self.subs[key as usize].place, Place::Nowhere);
        let (cohort_index, position, moved) = match place {
            Place::Nowhere => return Position::at(fan.end()),
            Place::Waiting { due } => {
                fan.waiting.remove(&(due, key));
                return Position::at(fan.end());
            }
            Place::Member { cohort: index, at } => {
                let cohort = &mut fan.cohorts[index as usize];
                let member = cohort.members.swap_remove(at as usize);
                let position =
                    Position { cursor: cohort.start, folded: cohort.folded.clone(), own_end: member.own_end };
                let moved = cohort.members.get(at as usize).map(|moved| (moved.sub, place));
                (index, position, moved)
            }
            Place::Joiner { cohort: index, at } => {
                let cohort = &mut fan.cohorts[index as usize];
                let Joiner { member, cursor, folded, .. } = cohort.joiners.swap_remove(at as usize);
                let position = Position { cursor, folded, own_end: member.own_end };
                let moved = cohort.joiners.get(at as usize).map(|moved| (moved.member.sub, place));
                (index, position, moved)
            }
        };
        if let Some((moved, place)) = moved {
            self.subs[moved as usize].place = place;
        }
        let cohort = &fan.cohorts[cohort_index as usize];
        if cohort.members.is_empty() && cohort.joiners.is_empty() {
            fan.cohorts.remove(cohort_index as usize);
        }
        position
    }

    // ---- Updates ----------------------------------------------------------------------------------------------------

    /// Queues a merged update for everybody who takes part.
    pub(crate) fn push_update(&mut self, board: &mut Switchboard, sender: ConnId, update: Update) {
        let own = self.key(sender).map(|key| self.subs[key as usize].place);
        let (now, tick) = (self.time(board.now), self.tick());
        let fan = &mut self.fan;
        if let Some(data) = self.data.as_ref().filter(|_| !self.subs.is_empty()) {
            fan.removals.note(data.content.plan(), &update);
        }
        if fan.cohorts.is_empty() {
            // Those who wait get it within their full state.
            self.arm(board);
            return;
        }
        let plan = self.data.as_ref().map(|data| data.content.plan());
        let covers_from = match (fan.ring.back(), plan) {
            (Some(last), Some(plan)) if update.covers(&last.update, plan) => last.covers_from,
            _ => fan.end(),
        };
        fan.bytes += update.bytes().len();
        fan.ring.push_back(Change { sender, update, covers_from });
        let end = fan.end();
        if let Some(member) = own.and_then(|place| fan.member_mut(place)) {
            member.own_end = end;
        }
        let (mut newly_due, mut pending) = (false, false);
        for (_, cohort) in &mut fan.cohorts {
            if cohort.due.is_none() {
                // An owner often is the only one who gets its channel at its rate, and wants nothing back.
                if cohort.start + 1 == end && cohort.is_only(sender) {
                    cohort.start = end;
                    continue;
                }
                cohort.due = Some(cohort.due_after(now, tick));
                newly_due = true;
            }
            pending = true;
        }
        if !pending {
            self.trim();
            return;
        }
        if fan.bytes > board.config.limits.channel_backlog_bytes {
            self.fold(board);
        }
        if newly_due || self.fan.wake.is_none() {
            self.arm(board);
        }
    }

    /// Replaces the ring by merged updates per cohort, so that slow intervals cost what changed instead of all updates.
    fn fold(&mut self, board: &mut Switchboard) {
        let Some(data) = &self.data else { return };
        let plan = Arc::clone(data.content.plan());
        let options = self.merge_options;
        let fan = &mut self.fan;
        let (first, end) = (fan.first, fan.end());
        let pending = |from: u64| (from - first) as usize..;
        board.stats.updates_folded += fan.ring.len() as u64;
        let mut privates = 0;
        let mut behind = Vec::new();
        let mut moved = Vec::new();
        for (index, cohort) in &mut fan.cohorts {
            // Members with own updates in the window leave the shared accumulation.
            let start = cohort.start;
            let mut at = 0;
            while at < cohort.members.len() {
                let member = cohort.members[at];
                if !(member.skip_self && member.own_end > start) {
                    at += 1;
                    continue;
                }
                cohort.members.swap_remove(at);
                if let Some(other) = cohort.members.get(at) {
                    moved.push((other.sub, Place::Member { cohort: index as u32, at: at as u32 }));
                }
                let folded = cohort.folded.clone();
                let joiner = Joiner { member, cursor: start, folded, not_before: i64::MIN };
                cohort.joiners.push(joiner);
                let place = Place::Joiner { cohort: index as u32, at: cohort.joiners.len() as u32 - 1 };
                moved.push((member.sub, place));
            }
            for joiner in &mut cohort.joiners {
                let own = if joiner.member.skip_self { Some(joiner.member.address.conn) } else { None };
                if joiner.cursor < end {
                    if privates < PRIVATE_FOLDS_MAX {
                        privates += 1;
                        let range = fan.ring.range(pending(joiner.cursor));
                        let others =
                            range.filter(|change| Some(change.sender) != own).map(|change| &change.update);
                        joiner.folded =
                            fold_updates(&plan, options.as_ref(), joiner.folded.iter().chain(others));
                    } else {
                        behind.push(joiner.member.sub);
                    }
                    joiner.cursor = end;
                }
            }
            if cohort.members.is_empty() {
                cohort.folded = Vec::new();
            } else if start < end {
                let updates = fan.ring.range(pending(start)).map(|change| &change.update);
                cohort.folded = fold_updates(&plan, options.as_ref(), cohort.folded.iter().chain(updates));
            }
            cohort.start = end;
        }
        for (key, place) in moved {
            self.subs[key as usize].place = place;
        }
        for key in behind {
            self.await_full_state(board, key);
        }
        self.trim();
    }

    // ---- Ticks ------------------------------------------------------------------------------------------------------

    /// The channel's timer fired: flushes every cohort whose window has ended, then sends the full states that are due.
    pub(crate) fn run_tick(&mut self, board: &mut Switchboard) {
        self.fan.wake = None;
        let tick = self.tick();
        let at = self.time(board.now).div_euclid(tick) * tick;
        board.stats.fan_out_ticks += 1;
        let mut made = Made::default();
        let due: SmallVec<[usize; 8]> = self
            .fan
            .cohorts
            .iter()
            .filter(|(_, cohort)| cohort.due.is_some_and(|due| due <= at))
            .map(|(index, _)| index)
            .collect();
        for index in due {
            self.flush(board, index, at, &mut made);
        }
        while let Some(&(due, key)) = self.fan.overdue.first()
            && due <= at
        {
            self.catch_up(board, key, &mut made);
        }
        if self.data.is_some() {
            while let Some(&(due, key)) = self.fan.waiting.first()
                && due <= at
            {
                self.fan.waiting.pop_first();
                self.send_full_state(board, key, at, &mut made);
            }
        }
        self.trim();
        self.arm(board);
    }

    fn flush(&mut self, board: &mut Switchboard, index: usize, at: i64, made: &mut Made) {
        let end = self.fan.end();
        let cohort = &mut self.fan.cohorts[index];
        let mask = cohort.mask.clone();
        let start = cohort.start;
        let folded = mem::take(&mut cohort.folded);
        let mut members = mem::take(&mut cohort.members);
        let joiners = mem::take(&mut cohort.joiners);
        let state = Some(State { channel: self.id, full: false });

        let is_private = |member: &Member| member.skip_self && member.own_end > start;
        if (start < end || !folded.is_empty()) && members.iter().any(|member| !is_private(member)) {
            let shared = self.range_payload(board, start, end, &mask, &folded, None, made);
            let to = members.iter().filter(|member| !is_private(member)).map(|member| member.address);
            board.deliver(&shared, state, to);
        }
        let privates = members.iter().filter(|member| is_private(member));
        if privates.clone().count() < MOSAIC_MEMBERS_MIN {
            for member in privates {
                let own = Some(member.address.conn);
                let payload = self.range_payload(board, start, end, &mask, &folded, own, made);
                board.deliver(&payload, state, [member.address]);
            }
        } else {
            self.flush_mosaic(board, start, &mask, &folded, privates);
        }

        let mut early = Vec::new();
        for joiner in joiners {
            if joiner.not_before > at {
                early.push(joiner);
                continue;
            }
            let Joiner { member, cursor, folded, .. } = joiner;
            if cursor < end || !folded.is_empty() {
                let own = (member.skip_self && member.own_end > cursor).then_some(member.address.conn);
                let payload = self.range_payload(board, cursor, end, &mask, &folded, own, made);
                board.deliver(&payload, state, [member.address]);
            }
            self.subs[member.sub as usize].place =
                Place::Member { cohort: index as u32, at: members.len() as u32 };
            members.push(member);
        }
        for (position, joiner) in early.iter().enumerate() {
            self.subs[joiner.member.sub as usize].place =
                Place::Joiner { cohort: index as u32, at: position as u32 };
        }

        let tick = self.tick();
        let cohort = &mut self.fan.cohorts[index];
        cohort.start = end;
        cohort.done = cohort.done.max(at);
        cohort.members = members;
        cohort.due = early
            .iter()
            .any(|joiner| joiner.cursor < end || !joiner.folded.is_empty())
            .then(|| cohort.due_after(at, tick));
        cohort.joiners = early;
    }

    /// Gives each of many members the updates from `start` on without its own, in pieces of shared pages.
    fn flush_mosaic<'a>(
        &self,
        board: &mut Switchboard,
        start: u64,
        mask: &Option<Arc<FieldMask>>,
        folded: &[Update],
        members: impl Iterator<Item = &'a Member>,
    ) {
        let Some(data) = &self.data else { return };
        let plan = data.content.plan();
        let name = EntryName { channel: self.id, type_url: &data.type_url };
        let from = start.saturating_sub(self.fan.first) as usize;
        // What was folded is nobody's: who sent some of it has become a joiner. No connection has the id 0.
        let folded = folded.iter().map(|update| (0, update));
        let changes = self.fan.ring.range(from..).map(|change| (change.sender.0, &change.update));
        let mut mosaic = Mosaic::new(
            plan,
            self.merge_options,
            mask.clone(),
            name.value_bytes_max(),
            folded.chain(changes),
        );
        let state = Some(State { channel: self.id, full: false });
        let pages: Vec<Payload> = mosaic
            .pages()
            .iter()
            .map(|page| {
                let mut payload = Payload::new();
                if !page.is_empty() {
                    append_entries(board, plan, name, page, &mut payload);
                }
                payload
            })
            .collect();
        board.stats.fan_out_encodes += pages.len() as u64;
        for member in members {
            let others = mosaic.others(member.address.conn.0);
            let mut payload: Payload = pages[..others.without.start].iter().flatten().cloned().collect();
            let value_len: usize = others.pieces.iter().map(bytes::Bytes::len).sum();
            if value_len > 0 {
                let mut head = Vec::new();
                write_data_update_head(&mut head, name.channel.0, name.type_url, value_len);
                payload.push(Entry::in_pieces(head, others.pieces));
            }
            payload.extend(pages[others.without.end..].iter().flatten().cloned());
            for message in others.messages.iter().filter(|message| !message.is_empty()) {
                append_entries(board, plan, name, message, &mut payload);
                board.stats.fan_out_encodes += 1;
            }
            board.deliver(&payload, state, [member.address]);
        }
    }

    /// The updates of `start..end`, without those of `own`, as one message; made once per tick for the same range.
    fn range_payload(
        &self,
        board: &mut Switchboard,
        start: u64,
        end: u64,
        mask: &Option<Arc<FieldMask>>,
        folded: &[Update],
        own: Option<ConnId>,
        made: &mut Made,
    ) -> Payload {
        let Some(data) = &self.data else { return Payload::new() };
        let shareable = own.is_none() && folded.is_empty();
        // Where the last update says it all, the others need no merging, and all such ranges are one.
        let start = match self.fan.ring.back() {
            Some(last) if shareable && (last.covers_from..end).contains(&start) => end - 1,
            _ => start,
        };
        if shareable
            && let Some((_, _, payload)) =
                made.ranges.iter().find(|(from, with, _)| *from == start && same_mask(with, mask))
        {
            return payload.clone();
        }
        debug_assert!(start >= self.fan.first && end == self.fan.end());
        let from = start.saturating_sub(self.fan.first) as usize;
        let changes = self.fan.ring.range(from..).filter(|change| own != Some(change.sender));
        let updates = folded.iter().chain(changes.map(|change| &change.update));
        let mut payload = Payload::new();
        let plan = data.content.plan();
        let name = EntryName { channel: self.id, type_url: &data.type_url };
        let values = merged(plan, self.merge_options.as_ref(), mask.as_deref(), updates);
        board.stats.fan_out_encodes += u64::from(!values.is_empty());
        for value in values {
            // An update of which a mask leaves nothing is not sent (the reference sends an empty message).
            if mask.is_none() || !value.is_empty() {
                append_entries(board, plan, name, &value, &mut payload);
            }
        }
        if shareable {
            made.ranges.push((start, mask.clone(), payload.clone()));
        }
        payload
    }

    fn send_full_state(&mut self, board: &mut Switchboard, key: u32, at: i64, made: &mut Made) {
        let Some(data) = &self.data else { return };
        let sub = &mut self.subs[key as usize];
        sub.place = Place::Nowhere;
        sub.had_first = true;
        // Spec §7.5: windows count from the tick of the full state.
        sub.anchor = at;
        let stale = mem::take(&mut sub.stale) && !self.fan.removals.updates.is_empty();
        let address = sub.address;
        let plan = data.content.plan();
        let mask = compile_mask(plan, &sub.options.masks);
        let made_before =
            made.states.iter().find(|(with, behind, _)| *behind == stale && same_mask(with, &mask));
        let payload = match made_before {
            Some((.., payload)) => payload.clone(),
            None => {
                let mut payload = Payload::new();
                let name = EntryName { channel: self.id, type_url: &data.type_url };
                if stale {
                    let removed = self.fan.removals.encode(plan, mask.as_deref());
                    if !removed.is_empty() {
                        append_entries(board, plan, name, &removed, &mut payload);
                    }
                }
                let mut value = Vec::new();
                data.content.encode(mask.as_deref(), &mut value);
                append_entries(board, plan, name, &value, &mut payload);
                board.stats.fan_out_encodes += 1;
                made.states.push((mask, stale, payload.clone()));
                payload
            }
        };
        let state = State { channel: self.id, full: true };
        board.deliver(&payload, Some(state), [address]);
        let cursor = self.fan.end();
        self.join(board, key, Position::at(cursor));
    }

    /// Drops the updates that everybody has had.
    pub(crate) fn trim(&mut self) {
        let fan = &mut self.fan;
        let needed = fan
            .cohorts
            .iter()
            .flat_map(|(_, cohort)| {
                let start = (!cohort.members.is_empty()).then_some(cohort.start);
                start.into_iter().chain(cohort.joiners.iter().map(|joiner| joiner.cursor))
            })
            .min()
            .unwrap_or(fan.end());
        while fan.first < needed
            && let Some(change) = fan.ring.pop_front()
        {
            fan.bytes -= change.update.bytes().len();
            fan.first += 1;
        }
        if fan.ring.is_empty() && fan.ring.capacity() > RING_KEEP {
            fan.ring.shrink_to(RING_KEEP);
        }
    }

    /// Sets the channel's timer to the next tick at which something is due, if any.
    pub(crate) fn arm(&mut self, board: &mut Switchboard) {
        let flush = self.fan.cohorts.iter().filter_map(|(_, cohort)| cohort.due).min();
        let state = if self.data.is_some() { self.fan.waiting.first().map(|(due, _)| *due) } else { None };
        let overdue = self.fan.overdue.first().map(|(due, _)| *due);
        let next = [flush, state, overdue].into_iter().flatten().min();
        match (next, self.fan.wake) {
            (Some(next), Some((armed, _))) if armed == next => {}
            (next, armed) => {
                if let Some((_, key)) = armed {
                    board.timers.cancel(key);
                }
                self.fan.wake = next.map(|next| {
                    let at = self.created + Duration::from_nanos(next.unsigned_abs());
                    (next, board.timers.insert(at, Timer::Channel(self.id)))
                });
            }
        }
    }

    /// Cancels the timer of a channel that is removed.
    pub(crate) fn disarm(&mut self, board: &mut Switchboard) {
        if let Some((_, key)) = self.fan.wake.take() {
            board.timers.cancel(key);
        }
    }

    // ---- Times ------------------------------------------------------------------------------------------------------

    fn tick(&self) -> i64 {
        i64::try_from(self.settings.tick_interval.as_nanos()).unwrap_or(i64::MAX).max(1)
    }

    /// The phase of a subscription to a cell or an entity whose rate the gateway chose, or nobody.
    ///
    /// Subscribers take turns, a tick each: all windows of one end at its turn, in all channels and at all rates, so that
    /// one write carries what they have for it; and no tick has to serve everybody. A channel flushes each rate
    /// [`TURNS`] times per interval, however many subscribers it has. Windows of long intervals end at one turn out of
    /// several, another one in each channel.
    fn shared_phase(&self, conn: ConnId, interval: i64) -> i64 {
        let tick = self.tick();
        let turn = TURNS * tick;
        let turns = (interval / turn).max(1);
        let offset = i64::from(conn.0) % TURNS * tick + i64::from(self.id.0) % turns * turn;
        let created = i64::try_from(self.created.as_nanos()).unwrap_or(i64::MAX);
        phase(offset.saturating_sub(created), interval, tick)
    }

    fn tick_at_or_after(&self, time: i64) -> i64 {
        let tick = self.tick();
        ceil_to(time.max(0), tick)
    }

    /// When the latest window of a subscription ended that has been flushed by now.
    fn last_window(&self, key: u32, now: Instant, interval_ms: u32) -> i64 {
        let tick = self.tick();
        let latest_tick = self.time(now).div_euclid(tick) * tick;
        let anchor = self.subs[key as usize].anchor;
        let interval = if interval_ms == 0 { tick } else { millis(interval_ms) };
        if latest_tick <= anchor { anchor } else { anchor + (latest_tick - anchor) / interval * interval }
    }

    /// Checks what must hold between inputs; for tests and the simulator.
    pub(crate) fn check_invariants(&self) {
        let fan = &self.fan;
        assert_eq!(fan.bytes, fan.ring.iter().map(|change| change.update.bytes().len()).sum::<usize>());
        for (key, sub) in &self.subs {
            match sub.place {
                Place::Nowhere => {}
                Place::Waiting { due } => assert!(fan.waiting.contains(&(due, key as u32))),
                Place::Member { cohort, at } => {
                    assert_eq!(fan.cohorts[cohort as usize].members[at as usize].sub, key as u32);
                }
                Place::Joiner { cohort, at } => {
                    assert_eq!(fan.cohorts[cohort as usize].joiners[at as usize].member.sub, key as u32);
                }
            }
        }
        for (_, cohort) in &fan.cohorts {
            assert!(!cohort.members.is_empty() || !cohort.joiners.is_empty(), "an empty cohort remains");
            assert!(cohort.start <= fan.end());
            assert!(cohort.members.is_empty() || cohort.start >= fan.first, "a cohort fell out of the ring");
            let pending = (!cohort.members.is_empty() && cohort.start < fan.end())
                || !cohort.folded.is_empty()
                || cohort.joiners.iter().any(|joiner| joiner.cursor < fan.end());
            assert!(!pending || cohort.due.is_some(), "pending updates without a flush");
        }
        let due = fan.cohorts.iter().any(|(_, cohort)| cohort.due.is_some())
            || !fan.overdue.is_empty()
            || (self.data.is_some() && !fan.waiting.is_empty());
        assert_eq!(due, fan.wake.is_some(), "the timer and what is due differ");
    }
}

/// Cohorts of one interval and mask in a channel; who comes later joins one of them.
const PHASES_MAX: usize = 10;

/// Ticks until a subscriber's turn comes again, where the gateway chose the rate.
const TURNS: i64 = 5;

/// Members with own updates in a window from which on their messages are laid out in shared pages. Below, as many merges
/// cost less than finding out which senders touched the same.
const MOSAIC_MEMBERS_MIN: usize = 3;

/// Ring slots kept while nothing is pending; a burst gives back what it took (A-4).
const RING_KEEP: usize = 32;

impl Removals {
    /// Keeps what an update removes; the oldest give way.
    fn note(&mut self, plan: &Plan, update: &Update) {
        let mut removed = Vec::new();
        removals(plan, update, &mut removed);
        if removed.is_empty() {
            return;
        }
        self.bytes += removed.len();
        self.updates.push_back(removed);
        while self.bytes > REMOVALS_BYTES_MAX
            && let Some(oldest) = self.updates.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    /// All of them as one update, or what a mask keeps of it.
    fn encode(&self, plan: &Plan, mask: Option<&FieldMask>) -> Vec<u8> {
        let all: Vec<u8> = self.updates.iter().flatten().copied().collect();
        let Some(mask) = mask else { return all };
        let mut kept = Vec::new();
        filter(plan, mask, &all, &mut kept);
        kept
    }
}

impl FanOut {
    /// The cohort that a subscription joins, if there is one for it.
    ///
    /// A channel that many subscribers get once a second would have a cohort per tick, each with a merge of its own.
    /// Where there are many cohorts a newcomer shares the one whose window ends next before its own: its first window is
    /// shorter, all others are as long as it asked for.
    fn cohort_for(&self, interval: i64, phase: i64, mask: &Option<Arc<FieldMask>>) -> Option<usize> {
        let (mut count, mut best) = (0, None);
        for (index, cohort) in &self.cohorts {
            if cohort.interval == interval && same_mask(&cohort.mask, mask) {
                let early = (phase - cohort.phase).rem_euclid(interval);
                if early == 0 {
                    return Some(index);
                }
                count += 1;
                if best.is_none_or(|(least, _)| early < least) {
                    best = Some((early, index));
                }
            }
        }
        best.filter(|_| count >= PHASES_MAX).map(|(_, index)| index)
    }

    /// The handling index of the next update.
    fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    fn member_mut(&mut self, place: Place) -> Option<&mut Member> {
        match place {
            Place::Member { cohort, at } => self.cohorts[cohort as usize].members.get_mut(at as usize),
            Place::Joiner { cohort, at } => {
                self.cohorts[cohort as usize].joiners.get_mut(at as usize).map(|joiner| &mut joiner.member)
            }
            Place::Nowhere | Place::Waiting { .. } => None,
        }
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
        self.joiners.is_empty()
            && matches!(self.members.as_slice(), [only] if only.address.conn == conn && only.skip_self)
    }

    /// The tick at which an update that is handled at `now` leaves: the first one at or after the end of a window that
    /// has not been flushed.
    fn due_after(&self, now: i64, tick: i64) -> i64 {
        let lower = self.done.max(ceil_to(now, tick) - tick);
        let windows = (lower + 1 - self.phase + self.interval - 1).div_euclid(self.interval);
        ceil_to(self.phase + windows * self.interval, tick)
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

/// How a data message is labelled.
#[derive(Clone, Copy)]
struct EntryName<'a> {
    channel: ChannelId,
    type_url: &'a str,
}

impl EntryName<'_> {
    /// The longest value that fits a packet.
    fn value_bytes_max(self) -> usize {
        let overhead = data_update_entry_len(self.channel.0, self.type_url, PACKET_BYTES_SEND_MAX)
            - PACKET_BYTES_SEND_MAX;
        PACKET_BYTES_SEND_MAX - overhead
    }
}

/// Merges updates into as few as possible, for keeping.
fn fold_updates<'a>(
    plan: &Arc<Plan>,
    options: Option<&MergeOptions>,
    updates: impl Iterator<Item = &'a Update>,
) -> Vec<Update> {
    // What was made of checked updates passes the check.
    merged(plan, options, None, updates)
        .into_iter()
        .filter_map(|bytes| Update::check(plan, bytes).ok())
        .collect()
}

/// Appends a data message, split where it fits no packet (A-13). Parts merge to the whole at the receiver.
fn append_entries(
    board: &mut Switchboard,
    plan: &Plan,
    name: EntryName<'_>,
    value: &[u8],
    out: &mut Payload,
) {
    let entry = |value: &[u8]| {
        let mut bytes = Vec::with_capacity(data_update_entry_len(name.channel.0, name.type_url, value.len()));
        write_data_update_entry(&mut bytes, name.channel.0, name.type_url, value);
        Entry::new(bytes)
    };
    if data_update_entry_len(name.channel.0, name.type_url, value.len()) <= PACKET_BYTES_SEND_MAX {
        out.push(entry(value));
        return;
    }
    let mut parts = Vec::new();
    match split(plan, value, name.value_bytes_max(), &mut parts) {
        Ok(_) => out.extend(parts.iter().map(|part| entry(part))),
        // A single element over the size of a packet cannot be sent to anybody.
        Err(_) => board.refuse(Refusal::Oversize),
    }
}

fn compile_mask(plan: &Plan, paths: &[String]) -> Option<Arc<FieldMask>> {
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

fn millis(value: u32) -> i64 {
    i64::from(value) * 1_000_000
}

fn ceil_to(time: i64, step: i64) -> i64 {
    // Times reach 49 days of delay plus 49 of interval beyond 292 years at most; saturating keeps the far end sane.
    time.saturating_add(step - 1).div_euclid(step).saturating_mul(step)
}

/// The phase that all anchors share whose windows are flushed at the same ticks.
fn phase(anchor: i64, interval: i64, tick: i64) -> i64 {
    ceil_to(anchor, gcd(interval, tick)).rem_euclid(interval)
}

fn gcd(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
