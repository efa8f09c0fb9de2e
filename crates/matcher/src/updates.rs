//! Periodic updates of waiting tickets: waiting times, estimates and positions.

use crate::key::{QueueKey, TicketKey};
use crate::matcher::Matcher;
use crate::queue::{Round, Seeker, anchor_of};
use crate::timers::Timer;
use crate::turn::Turn;

/// Tickets that are told in one step, about half a millisecond.
const TOLD_PER_STEP: usize = 500;
/// Tickets that are put in order in one step, or passed over because they left since, about as
/// long.
const SORTED_PER_STEP: u32 = 2_048;
/// Time between two steps of a round.
const STEP_MS: u64 = 10;

/// Partitions up to this size are counted for a ticket that comes back.
const COUNTED_MAX: usize = 256;

impl Matcher {
    /// A queue that has tickets tells them how they stand from time to time.
    pub(crate) fn begin_updates(&mut self, index: QueueKey) {
        let queue = &mut self.queues.list[index];
        let seconds = queue.rules().set.updates_s;
        if !queue.tells && seconds > 0 {
            queue.tells = true;
            self.timers.set(self.now + seconds * 1_000, Timer::Updates(index));
        }
    }

    /// Tickets ahead of one that comes back, of `most` of its priority or above: counted in a small
    /// partition, in a large one as it was told last, until the next round.
    pub(crate) fn position_of(&self, ticket: TicketKey, most: u64) -> u64 {
        let entry = &self.tickets[ticket];
        let Some(place) = entry.place() else { return most };
        let order = &self.queues.list[entry.queue].pool.partitions[place.partition].order;
        if order.len() > COUNTED_MAX {
            return most.min(entry.position);
        }
        let own = anchor_of(&self.tickets, ticket);
        order.iter().filter(|((_, other), _)| anchor_of(&self.tickets, *other) < own).count() as u64
    }

    /// Goes on with a queue's round, or begins the next.
    pub(crate) fn send_updates(&mut self, turn: &mut Turn<'_>, index: QueueKey) {
        let mut round = self.queues.list[index].round.take().unwrap_or_default();
        if !self.put_in_order(index, &mut round) || !self.tell_next(turn, index, &mut round) {
            self.queues.list[index].round = Some(round);
            self.timers.set(self.now + STEP_MS, Timer::Updates(index));
            return;
        }
        let queue = &mut self.queues.list[index];
        let seconds = queue.rules().set.updates_s;
        if queue.pool.size > 0 && seconds > 0 {
            self.timers.set(self.now + seconds * 1_000, Timer::Updates(index));
        } else {
            queue.tells = false;
        }
    }

    /// Puts some more tickets of a queue in order. Whether all are.
    fn put_in_order(&self, index: QueueKey, round: &mut Round) -> bool {
        let end = self.tickets.end();
        let to = round.next.saturating_add(SORTED_PER_STEP).min(end);
        let searching =
            (round.next..to).map(TicketKey::new).filter(|ticket| self.waiting.searches(*ticket, index));
        let pool = &self.queues.list[index].pool;
        let places = searching.filter_map(|ticket| {
            let place = self.tickets[ticket].place()?;
            Some((ticket, pool.partitions[place.partition].number))
        });
        round.left.extend(places.map(|(ticket, part)| (part, anchor_of(&self.tickets, ticket))));
        round.next = to;
        to == end
    }

    /// Tells the next tickets. Whether all are told.
    fn tell_next(&mut self, turn: &mut Turn<'_>, index: QueueKey, round: &mut Round) -> bool {
        let mut told = 0;
        for _ in 0..SORTED_PER_STEP {
            let Some((part, anchor)) = round.left.pop_first() else { return true };
            let Seeker::Ticket(ticket) = anchor.who else { continue };
            // It may have left, and another may have its number or its partition's.
            let is_there = self.waiting.searches(ticket, index)
                && anchor_of(&self.tickets, ticket) == anchor
                && self.tickets[ticket].place().is_some_and(|place| {
                    self.queues.list[index].pool.partitions[place.partition].number == part
                });
            if !is_there {
                continue;
            }
            let ahead = if round.passed.0 == part { round.passed.1 } else { 0 };
            round.passed = (part, ahead + 1);
            self.tickets[ticket].position = ahead;
            self.tell_ticket(turn, ticket);
            told += 1;
            if told == TOLD_PER_STEP {
                return round.left.is_empty();
            }
        }
        round.left.is_empty()
    }
}
