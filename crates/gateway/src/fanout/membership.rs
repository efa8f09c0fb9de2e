//! Entering and leaving the fan-out.

use core::mem;
use std::sync::Arc;

use super::schedule::{millis, phase};
use super::{
    Cohort, FanOut, FanoutPosition, Joiner, Made, Member, Members, Position, Removals, compile_mask,
    same_mask,
};
use crate::channel::{Channel, Options, RateBy};
use crate::data::{ChannelData, FieldMask, Update, replaced};
use crate::failpoint::failpoint;
use crate::ids::ConnId;
use crate::mail::State;
use crate::switchboard::Switchboard;

impl Channel {
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
                // A first state that was skipped is due now: there is no telling what was missed
                // meanwhile.
                self.subs[key as usize].had_first = false;
                self.start_fan_out(board, key);
            }
            (true, true) if moved => match self.subs[key as usize].place {
                FanoutPosition::Nowhere => {}
                FanoutPosition::Waiting { .. } => {
                    self.leave(key);
                    let sub = &self.subs[key as usize];
                    let due = sub.anchor.saturating_add(millis(sub.options.interval_ms));
                    let due = due.max(self.time(board.now));
                    self.wait(key, due);
                }
                FanoutPosition::Member { .. } | FanoutPosition::Joiner { .. } => {
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
                        // The new window would have ended already; the next one may be a whole
                        // interval away.
                        self.fan.overdue.insert((self.tick_at_or_after(now), key));
                    }
                }
            },
            _ => {}
        }
        self.fan.set_skip_self(self.subs[key as usize].place, skip_self);
        self.arm(board);
    }

    /// The first update of a channel without data is about to be pushed.
    pub(crate) fn data_begun(&mut self, board: &mut Switchboard) {
        let cursor = self.fan.end();
        let unplaced: Vec<u32> = self
            .subs
            .iter()
            .filter(|(_, sub)| sub.place == FanoutPosition::Nowhere && sub.options.can_read())
            .map(|(key, _)| key as u32)
            .collect();
        for key in unplaced {
            self.join(board, key, Position { cursor, folded: Vec::new(), own_end: 0 });
        }
        self.arm(board);
    }

    /// Keeps the removals of entries of the data that `new` lacks, which replaces it next. Removals
    /// of another type are of no use to a reader of this one.
    pub(crate) fn keep_removals(&mut self, new: &ChannelData) {
        let Some(old) = &mut self.data else { return };
        if !Arc::ptr_eq(new.plan(), old.content.plan()) {
            self.fan.removals = Removals::default();
            return;
        }
        old.content.settle();
        for update in replaced(&old.content, new) {
            self.fan.removals.keep(update);
        }
    }

    /// Keeps the removals in an update that is merged next, for readers that will get a full state
    /// instead of it.
    pub(crate) fn keep_removals_of(&mut self, update: &Update) {
        if let Some(data) = self.data.as_ref().filter(|_| !self.subs.is_empty()) {
            self.fan.removals.note(data.content.plan(), update);
        }
    }

    /// The data was replaced: nobody's deltas lead to it, so everybody with access gets it in full
    /// behind the removal of what it lacks.
    pub(crate) fn data_replaced(&mut self, board: &mut Switchboard) {
        let keys: Vec<u32> = self.subs.iter().map(|(key, _)| key as u32).collect();
        failpoint!();
        for key in keys {
            self.await_full_state(board, key);
        }
        self.fan.first = self.fan.end();
        failpoint!();
        self.fan.ring.clear();
        self.fan.bytes = 0;
        failpoint!();
        self.arm(board);
    }

    /// A slow reader has room again: a full state replaces what it missed.
    pub(crate) fn resync(&mut self, board: &mut Switchboard, conn: ConnId) {
        let Some(key) = self.key(conn) else { return };
        board.stats.resyncs += 1;
        failpoint!();
        self.await_full_state(board, key);
        self.trim();
        self.arm(board);
    }

    /// Moves a subscription to the full states, due when its running window ends. One that waits
    /// already keeps its time.
    pub(crate) fn await_full_state(&mut self, board: &Switchboard, key: u32) {
        let sub = &self.subs[key as usize];
        if !sub.options.can_read() || matches!(sub.place, FanoutPosition::Waiting { .. }) {
            return;
        }
        let interval_ms = sub.options.interval_ms;
        let last = self.last_window(key, board.now, interval_ms);
        self.leave(key);
        failpoint!();
        let sub = &mut self.subs[key as usize];
        sub.anchor = last;
        sub.stale = true;
        failpoint!();
        let due = last.saturating_add(millis(interval_ms)).max(self.time(board.now));
        self.wait(key, due);
    }

    /// Sends a subscription what it has not had, whatever its window.
    pub(super) fn catch_up(&mut self, board: &mut Switchboard, key: u32, made: &mut Made) {
        let Position { cursor, folded, own_end } = self.leave(key);
        failpoint!();
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

    pub(super) fn wait(&mut self, key: u32, due: i64) {
        let due = self.tick_at_or_after(due);
        self.fan.waiting.insert((due, key));
        failpoint!();
        self.subs[key as usize].place = FanoutPosition::Waiting { due };
    }

    /// Puts a subscription into the cohort of its interval, phase and mask. There is data.
    pub(super) fn join(&mut self, board: &Switchboard, key: u32, position: Position) {
        let now = self.time(board.now);
        let sub = &self.subs[key as usize];
        let Some(data) = &self.data else { return };
        let mask = compile_mask(data.content.plan(), &sub.options.masks);
        let tick = self.tick();
        let interval = if sub.options.interval_ms == 0 { tick } else { millis(sub.options.interval_ms) };
        let phase = match sub.rate_by {
            // Spec §7.5, A-10: an interval of zero means every tick.
            _ if sub.options.interval_ms == 0 => 0,
            by if self.takes_turns(by) => self.shared_phase(sub.address.conn, interval),
            _ => phase(sub.anchor, interval, tick),
        };
        let grain = self.grain(sub.rate_by, interval);
        let anchor = sub.anchor;
        let member = Member::new(key, sub.address, sub.options.skip_self, position.own_end);

        let fan = &mut self.fan;
        let index = match fan.cohort_for(interval, phase, grain, &mask) {
            Some(index) => index,
            None => fan.cohorts.insert(Cohort {
                interval,
                phase,
                grain,
                mask,
                start: position.cursor,
                folded: Vec::new(),
                members: Members::default(),
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
        failpoint!();
        let place = if in_step {
            FanoutPosition::Member { cohort: cohort_index, at: cohort.members.push(member) }
        } else {
            let not_before = if anchor <= now { i64::MIN } else { anchor.saturating_add(interval) };
            let Position { cursor, folded, .. } = position;
            cohort.joiners.push(Joiner { member, cursor, folded, not_before });
            FanoutPosition::Joiner { cohort: cohort_index, at: cohort.joiners.len() as u32 - 1 }
        };
        if pending && cohort.due.is_none() {
            cohort.due = Some(cohort.due_after(now));
        }
        self.subs[key as usize].place = place;
    }

    /// Takes a subscription out of the fan-out and says how far it has come.
    pub(crate) fn leave(&mut self, key: u32) -> Position {
        let fan = &mut self.fan;
        fan.overdue.retain(|&(_, overdue)| overdue != key);
        let place = mem::replace(&mut self.subs[key as usize].place, FanoutPosition::Nowhere);
        failpoint!();
        let (cohort_index, position, moved) = match place {
            FanoutPosition::Nowhere => return Position::at(fan.end()),
            FanoutPosition::Waiting { due } => {
                fan.waiting.remove(&(due, key));
                return Position::at(fan.end());
            }
            FanoutPosition::Member { cohort: index, at } => {
                let cohort = &mut fan.cohorts[index as usize];
                let member = cohort.members.swap_remove(at);
                let position =
                    Position { cursor: cohort.start, folded: cohort.folded.clone(), own_end: member.own_end };
                let moved = cohort.members.get(at).map(|moved| (moved.sub, place));
                (index, position, moved)
            }
            FanoutPosition::Joiner { cohort: index, at } => {
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
}

impl FanOut {
    /// The cohort that a subscription joins, if there is one for it.
    ///
    /// A channel that many subscribers get once a second would have a cohort per tick, each with a
    /// merge of its own. Where there are many cohorts a newcomer shares the one whose window ends
    /// next before its own: its first window is shorter, all others are as long as it asked for.
    fn cohort_for(
        &self,
        interval: i64,
        phase: i64,
        grain: i64,
        mask: &Option<Arc<FieldMask>>,
    ) -> Option<usize> {
        let (mut count, mut best) = (0, None);
        for (index, cohort) in &self.cohorts {
            let alike = cohort.interval == interval && cohort.grain == grain;
            if alike && same_mask(&cohort.mask, mask) {
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
}

/// Cohorts of one interval and mask in a channel; who comes later joins one of them.
const PHASES_MAX: usize = 10;
