//! Times at which tickets of a queue relax or time out.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use crate::key::{QueueKey, TicketKey};
use crate::schema::v1;
use crate::slab::NONE;

/// Each ticket's entry in the list of what is due, by ticket: looking at an entry needs nothing
/// else of the ticket, which is large and elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Vec<Wait>);

#[derive(Clone, Copy, Debug)]
struct Wait {
    at: u64,
    /// Queue whose list has the entry.
    queue: Option<QueueKey>,
    /// True if the ticket searches; without, the entry is one that it left behind.
    searches: bool,
}

const NO_WAIT: Wait = Wait { at: 0, queue: None, searches: false };

impl Waiting {
    pub(crate) fn save(&self) -> Vec<v1::Wait> {
        let known =
            (0..).zip(&self.0).filter(|(_, wait)| wait.queue.is_some() || wait.searches || wait.at != 0);
        let wait = |(ticket, Wait { at, queue, searches }): (u32, &Wait)| v1::Wait {
            ticket,
            at: *at,
            queue: queue.map_or(NONE, QueueKey::index),
            searches: *searches,
        };
        known.map(wait).collect()
    }

    /// `tickets` is the number of their places.
    pub(crate) fn load(saved: &[v1::Wait], tickets: u32) -> Result<Waiting, &'static str> {
        let mut waiting = Waiting(vec![NO_WAIT; tickets as usize]);
        for v1::Wait { ticket, at, queue, searches } in saved {
            let own = waiting.0.get_mut(*ticket as usize).ok_or("a ticket that waits is missing")?;
            *own = Wait {
                at: *at,
                queue: Some(QueueKey::new(*queue)).filter(|_| *queue != NONE),
                searches: *searches,
            };
        }
        Ok(waiting)
    }

    /// A ticket searches in a queue and is due at a time. Whether it needs an entry: one that left
    /// and came back finds its own again.
    fn set(&mut self, ticket: TicketKey, queue: QueueKey, at: u64) -> bool {
        let index = ticket.index() as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, NO_WAIT);
        }
        let known = self.is_listed(ticket, queue, at);
        self.0[index] = Wait { at, queue: Some(queue), searches: true };
        !known
    }

    fn is_listed(&self, ticket: TicketKey, queue: QueueKey, at: u64) -> bool {
        self.0.get(ticket.index() as usize).is_some_and(|own| (own.at, own.queue) == (at, Some(queue)))
    }

    /// Returns whether a ticket searches in a queue.
    pub(crate) fn searches(&self, ticket: TicketKey, queue: QueueKey) -> bool {
        self.0.get(ticket.index() as usize).is_some_and(|own| own.searches && own.queue == Some(queue))
    }

    /// Time when a ticket is due. Known when its entry is at hand.
    pub(crate) fn due_at(&self, ticket: TicketKey) -> u64 {
        self.0.get(ticket.index() as usize).map_or(0, |own| own.at)
    }

    /// Forgets a ticket whose entry was taken.
    pub(crate) fn forget(&mut self, ticket: TicketKey) {
        if let Some(own) = self.0.get_mut(ticket.index() as usize) {
            *own = NO_WAIT;
        }
    }

    /// Number of tickets that search, for checks.
    pub(crate) fn searching(&self) -> u64 {
        self.0.iter().filter(|wait| wait.searches).count() as u64
    }

    /// Returns whether an entry is of a ticket that still searches; if not, the ticket has it no
    /// more.
    fn keep(&mut self, ticket: TicketKey, queue: QueueKey, at: u64) -> bool {
        if !self.is_listed(ticket, queue, at) {
            return false;
        }
        let own = &mut self.0[ticket.index() as usize];
        if !own.searches {
            *own = NO_WAIT;
        }
        own.searches
    }
}

/// Time when tickets relax or time out, in order of time, then of coming. Entries of tickets that
/// left stay until their time, or until half of all are such.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due {
    all: BTreeMap<u64, VecDeque<TicketKey>>,
    len: usize,
    /// About how many are of tickets that left.
    left: usize,
    /// The last time that was looked through.
    seen: u64,
}

/// Entries below which those of tickets that left are no burden.
const LEFT_MIN: usize = 1_024;
/// Entries looked through at a time, some 10 us: about half of them go, so that it is seldom done.
const SWEEP: usize = 1_024;

impl Due {
    pub(crate) fn save(&self) -> v1::Due {
        let all = self
            .all
            .iter()
            .map(|(at, tickets)| (*at, tickets.iter().map(|own| own.index()).collect()))
            .collect();
        v1::Due { all, left: self.left as u64, seen: self.seen }
    }

    pub(crate) fn load(saved: &v1::Due) -> Due {
        let all = saved
            .all
            .iter()
            .map(|(at, tickets)| (*at, tickets.iter().copied().map(TicketKey::new).collect()));
        let len = saved.all.iter().map(|(_, tickets)| tickets.len()).sum();
        Due { all: all.collect(), len, left: saved.left as usize, seen: saved.seen }
    }

    /// A ticket searches in the queue, which this is of, and relaxes or times out at a time.
    pub(crate) fn enter(&mut self, waiting: &mut Waiting, queue: QueueKey, ticket: TicketKey, at: u64) {
        if waiting.set(ticket, queue, at) {
            self.all.entry(at).or_default().push_back(ticket);
            self.len += 1;
        } else {
            self.left = self.left.saturating_sub(1);
        }
        if self.left > LEFT_MIN.max(self.len / 2) {
            self.sweep(waiting, queue);
        }
    }

    /// A ticket does not search any more. Its entry is left to those who come: a tick of many
    /// matches has enough to do.
    pub(crate) fn leave(&mut self, waiting: &mut Waiting, ticket: TicketKey) {
        if let Some(own) = waiting.0.get_mut(ticket.index() as usize) {
            own.searches = false;
        }
        self.left += 1;
    }

    /// Drops entries of tickets that left, among some.
    fn sweep(&mut self, waiting: &mut Waiting, queue: QueueKey) {
        let mut looked = 0;
        while looked < SWEEP {
            let Some((at, tickets)) = self.all.range_mut((Excluded(self.seen), Unbounded)).next() else {
                self.seen = 0;
                return;
            };
            let (at, before) = (*at, tickets.len());
            tickets.retain(|ticket| waiting.keep(*ticket, queue, at));
            let gone = before - tickets.len();
            if tickets.is_empty() {
                self.all.remove(&at);
            }
            (self.len, self.left, self.seen) = (self.len - gone, self.left.saturating_sub(gone), at);
            looked += before;
        }
    }

    /// Time when the first is due.
    pub(crate) fn first(&self) -> Option<u64> {
        Some(*self.all.first_key_value()?.0)
    }

    /// Takes the first entry, if it is due now: its time, and the ticket unless it left.
    pub(crate) fn pop(
        &mut self,
        waiting: &mut Waiting,
        queue: QueueKey,
        now: u64,
    ) -> Option<(u64, Option<TicketKey>)> {
        let mut first = self.all.first_entry().filter(|first| *first.key() <= now)?;
        let (at, ticket) = (*first.key(), first.get_mut().pop_front());
        if first.get().is_empty() {
            first.remove();
        }
        self.len -= 1;
        let ticket = ticket.filter(|ticket| waiting.keep(*ticket, queue, at));
        if ticket.is_none() {
            self.left = self.left.saturating_sub(1);
        }
        Some((at, ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Place of a ticket.
    fn t(index: u32) -> TicketKey {
        TicketKey::new(index)
    }

    #[test]
    fn tickets_that_left_are_no_burden() {
        let (mut due, mut waiting) = (Due::default(), Waiting::default());
        let queue = QueueKey::new(0);
        for round in 0..100_000_u64 {
            // One of a hundred stays, the others come and go.
            let ticket = t(round as u32 / 100 + 1);
            due.enter(&mut waiting, queue, ticket, 1_000_000 + round);
            if round % 100 != 99 {
                due.leave(&mut waiting, ticket);
            }
        }
        assert!(due.len < 4 * LEFT_MIN, "{} entries for 1,000 tickets", due.len);
        let all = std::iter::from_fn(|| due.pop(&mut waiting, queue, u64::MAX)).collect::<Vec<_>>();
        assert_eq!(all.iter().filter(|(_, ticket)| ticket.is_some()).count(), 1_000);
        assert_eq!((due.len, due.first()), (0, None));
    }

    #[test]
    fn the_first_due_comes_first_and_once() {
        let (mut due, mut waiting) = (Due::default(), Waiting::default());
        let (queue, other) = (QueueKey::new(7), QueueKey::new(6));
        for (at, ticket) in [(20, 1), (10, 5), (20, 0), (10, 3)] {
            due.enter(&mut waiting, queue, t(ticket), at);
        }
        due.leave(&mut waiting, t(5));
        due.leave(&mut waiting, t(0));
        due.enter(&mut waiting, queue, t(0), 20);
        assert!(waiting.searches(t(0), queue));
        assert!(!waiting.searches(t(0), other) && !waiting.searches(t(5), queue));
        assert_eq!((due.first(), due.pop(&mut waiting, queue, 9)), (Some(10), None));
        let order = std::iter::from_fn(|| due.pop(&mut waiting, queue, 20)).collect::<Vec<_>>();
        assert_eq!(order, [(10, None), (10, Some(t(3))), (20, Some(t(1))), (20, Some(t(0)))]);
    }
}
