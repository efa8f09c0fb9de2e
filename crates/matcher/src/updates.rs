//! Periodic updates of waiting tickets: waiting times, estimates and positions.

use crate::key::QueueKey;
use crate::matcher::Matcher;
use crate::queue::{Round, SORTED_PER_STEP};
use crate::timers::Timer;
use crate::turn::Turn;

/// Tickets that are told in one step, about half a millisecond.
const TOLD_PER_STEP: usize = 500;
/// Time between two steps of a round.
const STEP_MS: u64 = 10;

impl Matcher {
    /// A queue that has tickets tells them how they stand from time to time.
    pub(crate) fn begin_updates(&mut self, index: QueueKey) {
        if let Some(at) = self.queues.begin_updates(index, self.now) {
            self.timers.set(at, Timer::Updates(index));
        }
    }

    /// Goes on with a queue's round, or begins the next.
    pub(crate) fn send_updates(&mut self, turn: &mut Turn<'_>, index: QueueKey) {
        let mut round = self.queues.take_round(index);
        if !self.queues.put_in_order(index, &mut round) || !self.tell_next(turn, index, &mut round) {
            self.queues.put_round(index, round);
            self.timers.set(self.now + STEP_MS, Timer::Updates(index));
        } else if let Some(at) = self.queues.end_round(index, self.now) {
            self.timers.set(at, Timer::Updates(index));
        }
    }

    /// Tells the next tickets. Whether all are told.
    fn tell_next(&mut self, turn: &mut Turn<'_>, index: QueueKey, round: &mut Round) -> bool {
        let mut told = 0;
        for _ in 0..SORTED_PER_STEP {
            let Some(next) = round.left.pop_first() else { return true };
            let Some(ticket) = self.queues.pass(index, next, round) else { continue };
            self.tell_ticket(turn, ticket);
            told += 1;
            if told == TOLD_PER_STEP {
                break;
            }
        }
        round.left.is_empty()
    }
}
