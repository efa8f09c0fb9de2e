//! Queues are put, and their ticks make matches of tickets.

use std::time::Duration;

use crate::key::{BackfillKey, QueueKey};
use crate::matcher::Matcher;
use crate::queue::{ANCHOR_STEPS, Compiled, Found, QueueRules, RuleProblem, SLICE_STEPS, Slice};
use crate::stats::QueueReport;
use crate::timers::Timer;
use crate::turn::Turn;

/// Matches that are made together: what they touch, some 8 KiB each, is to stay in the second
/// cache.
const BATCH: usize = 32;

impl Matcher {
    /// Makes or replaces a queue. Live tickets are checked again; those that can never be matched
    /// any more fail.
    pub(crate) fn put_queue(
        &mut self,
        turn: &mut Turn<'_>,
        rules: &QueueRules,
    ) -> Result<QueueKey, RuleProblem> {
        let compiled = self.check_rules(rules)?;
        Ok(self.set_queue(turn, rules, compiled))
    }

    /// The same by rules that fit the configuration, or were made under another.
    pub(crate) fn set_queue(
        &mut self,
        turn: &mut Turn<'_>,
        rules: &QueueRules,
        compiled: Compiled,
    ) -> QueueKey {
        let mode = self.put_queue_mode(&compiled);
        let Some(index) = self.queues.find(rules.name().as_bytes()) else {
            return self.queues.make(rules, compiled, mode, self.now);
        };
        let queue = &self.queues[index];
        if queue.source == rules.source() && queue.paused.is_none() {
            return index;
        }
        let backfills: Vec<BackfillKey> = queue.backfills.iter().copied().collect();
        for backfill in backfills {
            self.end_backfill(turn, backfill, "stopped");
        }
        let mut waiting = self.queues.searching_tickets(index);
        waiting.extend(self.queues.held_tickets(index));
        waiting.iter().for_each(|ticket| self.queues.leave_pool(*ticket));
        self.queues.replace(index, rules, compiled, mode);
        for ticket in waiting {
            self.recheck(turn, ticket);
        }
        self.break_proposals(turn, index);
        index
    }

    /// The rules that a queue would have, if they fit what its mode is configured to be.
    pub(crate) fn check_rules(&self, rules: &QueueRules) -> Result<Compiled, RuleProblem> {
        let compiled = rules.compile()?;
        let modes = self.config.modes.clone();
        crate::Config { modes, queues: vec![rules.clone()], ..crate::Config::default() }.check()?;
        Ok(compiled)
    }

    /// Sees to it that a queue's next tick begins in time.
    pub(crate) fn schedule(&mut self, index: QueueKey) {
        if let Some(at) = self.queues.schedule(index, self.now) {
            self.timers.set(at, Timer::Tick(index));
        }
    }

    /// A part of a tick: bounded, so that requests do not wait for it.
    pub(crate) fn search_slice(&mut self, turn: &mut Turn<'_>) {
        let Some((index, tick_now)) = self.queues.begin_slice(self.now) else { return };
        let compiled = self.queues[index].rules();
        let (mut steps, mut ahead) = (0, 0);
        while steps < SLICE_STEPS {
            if let Some((at, ticket)) = self.queues.pop_due(index, tick_now) {
                if let Some(ticket) = ticket {
                    self.ticket_is_due(turn, ticket, at, &compiled);
                }
                if !self.queues.has_due(index, tick_now) {
                    self.queues.wake_backfills(index);
                }
                steps += ANCHOR_STEPS;
                continue;
            }
            if ahead == 0 {
                ahead = self.queues.look_ahead(index);
            }
            let (gone, next) = self.queues.next_anchor(index);
            steps += ANCHOR_STEPS * gone;
            ahead = ahead.saturating_sub(gone as usize);
            let goes_on = next.is_none();
            if goes_on && !self.scratch.found.is_empty() {
                self.propose_taken(turn, index, &compiled);
                continue;
            }
            let Some(anchor) = next.or_else(|| self.queues.next_unfinished(index)) else {
                self.queues.end_tick(index, self.now);
                self.scratch.slice = Some(Slice { queue: index, ended: true, steps });
                self.schedule(index);
                return;
            };
            ahead = ahead.saturating_sub(usize::from(!goes_on));
            let (taken, found) = self.queues.try_anchor(index, &compiled, anchor, goes_on, self.now);
            steps += taken;
            self.note_found(turn, index, &compiled, found);
        }
        self.propose_taken(turn, index, &compiled);
        self.scratch.slice = Some(Slice { queue: index, ended: false, steps });
    }

    /// Keeps a match that was found, to make it with the others of its batch, each step for all of
    /// them: so a step's code and the players' entries are at hand.
    fn note_found(
        &mut self,
        turn: &mut Turn<'_>,
        index: QueueKey,
        compiled: &Compiled,
        found: Option<Found>,
    ) {
        let Some(found) = found else { return };
        let is_backfill = found.1.is_some();
        self.scratch.found.push(found);
        // A backfill's room is not as it was.
        if is_backfill || self.scratch.found.len() == BATCH {
            self.propose_taken(turn, index, compiled);
        }
    }

    /// Says how long the last [`handle_timeout`](Matcher::handle_timeout) took, for the figures of
    /// ticks. No input: it changes nothing that outlives the process.
    pub fn note_time(&mut self, took: Duration) {
        if let Some(slice) = self.scratch.slice.take() {
            self.queues.note_time(slice, took);
        }
    }

    /// Reports of at most `most` queues, the oldest first, so that the choice stands. Cost:
    /// O(most).
    #[must_use]
    pub fn queue_reports(&self, most: usize) -> Vec<QueueReport> {
        self.queues.reports(most)
    }
}
