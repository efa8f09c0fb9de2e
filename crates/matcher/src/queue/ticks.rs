//! Ticks of a queue: when they begin, what is due, and the search around each anchor.

use std::time::Duration;

use smallvec::SmallVec;

use super::order::Order;
use super::{Anchor, Backfill, Compiled, Filling, Partition, Queue, Queues, Search, Seeker, Start, Ticket};
use crate::key::{BackfillKey, QueueKey, TicketKey};
use crate::stats::QueueReport;

/// Work of one slice of a search, in neighbours looked at: about a millisecond.
pub(crate) const SLICE_STEPS: u64 = 40_000;
/// Steps of an anchor or a due ticket beside its neighbours.
pub(crate) const ANCHOR_STEPS: u64 = 40;
/// Steps of one tick for searches that go on where an earlier tick hit its limit: 2 to 5 ms,
/// however many go on.
const UNFINISHED_STEPS: u64 = 200_000;
/// Anchors without a ticket that are passed over at once.
const GONE_MAX: u64 = 64;
/// Steps of a matched ticket: its seats, its end and the events of both.
const MATCHED_STEPS: u64 = 60;
/// Anchors that are looked up together,
const AHEAD: usize = 16;
/// and how many are passed over for that, of tickets that left.
const AHEAD_SCAN: usize = 256;

/// A match that a search has found, and the backfill that it is for.
pub(crate) type Found = (Filling, Option<BackfillKey>);

/// A part of a tick that was just done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) queue: QueueKey,
    /// True if the tick ended with it.
    pub(crate) ended: bool,
    /// Its work.
    pub(crate) steps: u64,
}

impl Queues {
    /// Sees to it that a queue's next tick begins in time: on its grid, when something is due or
    /// after it. Returns that time if it is earlier than was known.
    pub(crate) fn schedule(&mut self, key: QueueKey, now: u64) -> Option<u64> {
        let queue = &mut self.list[key];
        if queue.searching || queue.paused.is_some() {
            return None;
        }
        let tick = queue.rules().set.tick_ms;
        let next = (now / tick + 1) * tick;
        let due = queue.due.first().map(|at| at.checked_next_multiple_of(tick).unwrap_or(at).max(next));
        let is_idle = queue.pool.dirty.is_empty() && !queue.pool.has_unfinished();
        let at = if is_idle { due? } else { next };
        if queue.tick_at > 0 && at >= queue.tick_at {
            return None;
        }
        queue.tick_at = at;
        Some(at)
    }

    /// A tick's time has come.
    pub(crate) fn begin_tick(&mut self, key: QueueKey, at: u64) {
        let Some(queue) = self.list.get_mut(key) else { return };
        if queue.tick_at != at {
            return;
        }
        queue.tick_at = 0;
        if queue.paused.is_some() {
            return;
        }
        (queue.tick_now, queue.searching) = (at, true);
        (queue.turns_until, queue.steps_left) = (queue.pool.next_turn, UNFINISHED_STEPS);
        self.searching.insert(key);
        self.wake_backfills(key);
    }

    /// Lets those backfills of a queue look that have not since something came or relaxed.
    pub(crate) fn wake_backfills(&mut self, key: QueueKey) {
        let Queue { backfills, pool, .. } = &mut self.list[key];
        for backfill in backfills.iter() {
            if let Some(anchor) = self.backfills[*backfill].anchor(*backfill, pool) {
                pool.dirty.insert(anchor);
            }
        }
    }

    /// The queue whose tick goes on, and the time up to which tickets are due in it.
    pub(crate) fn begin_slice(&mut self, now: u64) -> Option<(QueueKey, u64)> {
        let key = *self.searching.first()?;
        let queue = &mut self.list[key];
        if queue.tick_now + queue.rules().set.tick_ms <= now {
            queue.tick_now = now;
        }
        Some((key, queue.tick_now))
    }

    /// Takes the first entry of what is due: its time, and the ticket unless it left.
    pub(crate) fn pop_due(&mut self, key: QueueKey, until: u64) -> Option<(u64, Option<TicketKey>)> {
        self.list[key].due.pop(&mut self.waiting, key, until)
    }

    pub(crate) fn has_due(&self, key: QueueKey, until: u64) -> bool {
        self.list[key].due.first().is_some_and(|next| next <= until)
    }

    /// Looks up the next anchors, side by side: one by one, each would wait for the memory some ten
    /// times. It decides nothing. Returns how many anchors those are.
    pub(crate) fn look_ahead(&self, key: QueueKey) -> usize {
        let pool = &self.list[key].pool;
        let (mut scanned, mut places) = (0, SmallVec::<[_; AHEAD]>::new());
        for anchor in pool.dirty.iter().take(AHEAD_SCAN) {
            scanned += 1;
            if let Some(ticket) = anchor.ticket().filter(|own| self.waiting.searches(*own, key)) {
                places.extend(self.tickets.get(ticket).and_then(Ticket::place));
            }
            if places.len() == AHEAD {
                break;
            }
        }
        let orders = places.iter().map(|place| (&pool.partitions[place.partition].order, place.key));
        Order::find_all(&orders.collect::<SmallVec<[_; AHEAD]>>());
        scanned
    }

    /// Takes the next anchor to try, and says how many were passed over: those whose tickets were
    /// matched with others meanwhile, nine of ten.
    pub(crate) fn next_anchor(&mut self, key: QueueKey) -> (u64, Option<Anchor>) {
        let (dirty, waiting) = (&mut self.list[key].pool.dirty, &self.waiting);
        let mut gone = 0;
        let is_gone = |anchor: &Anchor| anchor.ticket().is_some_and(|ticket| !waiting.searches(ticket, key));
        loop {
            match dirty.pop_first() {
                Some(anchor) if gone < GONE_MAX && is_gone(&anchor) => gone += 1,
                next => return (gone, next),
            }
        }
    }

    /// Takes the next anchor whose search goes on, while the tick has steps for those.
    pub(crate) fn next_unfinished(&mut self, key: QueueKey) -> Option<Anchor> {
        let queue = &mut self.list[key];
        (queue.steps_left > 0).then(|| queue.pool.next_unfinished(queue.turns_until)).flatten()
    }

    pub(crate) fn end_tick(&mut self, key: QueueKey, now: u64) {
        let queue = &mut self.list[key];
        queue.searching = false;
        queue.estimates.settle(now);
        self.searching.remove(&key);
    }

    /// Looks for a match around an anchor, and takes its tickets out of the pool. `goes_on`: it was
    /// the turn of its unfinished search. Returns the steps that it counts.
    pub(crate) fn try_anchor(
        &mut self,
        key: QueueKey,
        compiled: &Compiled,
        anchor: Anchor,
        goes_on: bool,
        now: u64,
    ) -> (u64, Option<Found>) {
        let (steps, found) = self.search(key, compiled, anchor, goes_on, now).unwrap_or_default();
        let steps = ANCHOR_STEPS + steps;
        if goes_on {
            let left = &mut self.list[key].steps_left;
            *left = left.saturating_sub(steps);
        }
        (steps, found)
    }

    /// The same; `None` if the anchor is there no more.
    fn search(
        &mut self,
        key: QueueKey,
        compiled: &Compiled,
        anchor: Anchor,
        goes_on: bool,
        now: u64,
    ) -> Option<(u64, Option<Found>)> {
        let (tickets, queue) = (&self.tickets, &self.list[key]);
        let (partition, start, scan) = match anchor.who {
            Seeker::Backfill(backfill) => {
                // Another may have its number by now, that of another queue too.
                let own = |backfill: &&Backfill| backfill.queue == key && backfill.is_free();
                let backfill = self.backfills.get(backfill).filter(own)?;
                (backfill.partition?, backfill.start(compiled, now), None)
            }
            Seeker::Ticket(ticket) if !self.waiting.searches(ticket, key) => return None,
            Seeker::Ticket(ticket) => {
                // Another may have its number by now.
                let own = tickets.get(ticket).filter(|own| own.anchor(ticket) == anchor);
                let place = own.and_then(Ticket::place)?;
                let hot = *queue.pool.partitions[place.partition].order.get(place.key)?;
                let open = compiled.sides.iter().map(|(_, max)| *max).collect();
                let start = Start { key: place.key, hot, ticket: Some(ticket), fixed: Vec::new(), open };
                (place.partition, start, queue.pool.scans.get(&ticket).cloned())
            }
        };
        let had = scan.as_ref().map(|scan| scan.turn).filter(|_| !goes_on);
        let part: &Partition = &queue.pool.partitions[partition];
        let mut search = Search {
            compiled,
            partition: part,
            regions: &queue.regions,
            facts: |ticket: TicketKey| (&tickets[ticket].facts, tickets[ticket].created),
            steps: 0,
            cut: false,
            scan,
            ends: (start.key, start.key),
            near: std::mem::take(&mut self.near),
        };
        let found = search.attempt(&start);
        let (steps, cut, place, arrivals) = (search.steps, search.cut, start.key, part.arrivals);
        let scan = search.scan.take();
        self.near = search.near;
        let queue = &mut self.list[key];
        queue.figures.scans += steps;
        match (found, anchor.who) {
            (Some(filling), who) => {
                let taken = self.take(&filling, compiled);
                let backfill = match who {
                    Seeker::Backfill(backfill) => Some(backfill),
                    Seeker::Ticket(_) => None,
                };
                return Some((steps + MATCHED_STEPS * taken as u64, Some((filling, backfill))));
            }
            (None, Seeker::Backfill(backfill)) => self.backfills[backfill].seen = Some(arrivals),
            (None, Seeker::Ticket(ticket)) => match scan {
                Some(scan) => queue.pool.go_on_later(ticket, anchor, scan, had),
                None => {
                    queue.pool.scans.remove(&ticket);
                    queue.pool.rest(partition, place, cut);
                }
            },
        }
        Some((steps, None))
    }

    /// The tickets of a match search no more. Returns how many they are.
    fn take(&mut self, filling: &Filling, compiled: &Compiled) -> usize {
        let tickets: SmallVec<[TicketKey; 16]> = filling.sides.iter().flatten().copied().collect();
        // As in the search: one load does not wait for another.
        let touch =
            |all: u64, ticket: &TicketKey| all ^ self.tickets[*ticket].touch() ^ self.waiting.due_at(*ticket);
        std::hint::black_box(tickets.iter().fold(0, touch));
        self.leave_pool_together(&tickets, compiled);
        tickets.len()
    }

    /// Returns whether the search that a tick makes around a ticket finds a match.
    pub(crate) fn finds(&self, key: TicketKey, compiled: &Compiled) -> bool {
        let ticket = &self.tickets[key];
        let Some(place) = ticket.place() else { return false };
        let queue = &self.list[ticket.queue];
        let facts = |ticket: TicketKey| (&self.tickets[ticket].facts, self.tickets[ticket].created);
        let mut search = Search {
            compiled,
            partition: &queue.pool.partitions[place.partition],
            regions: &queue.regions,
            facts,
            steps: 0,
            cut: false,
            scan: None,
            ends: (place.key, place.key),
            near: Vec::new(),
        };
        search
            .attempt(&Start {
                key: place.key,
                hot: compiled.hot(&ticket.facts, ticket.level),
                ticket: Some(key),
                fixed: Vec::new(),
                open: compiled.sides.iter().map(|(_, max)| *max).collect(),
            })
            .is_some()
    }

    /// Notes how long a part of a tick took.
    pub(crate) fn note_time(&mut self, slice: Slice, took: Duration) {
        let Some(queue) = self.list.get_mut(slice.queue) else { return };
        queue.observed.under_way += took.as_secs_f64();
        if slice.ended {
            let whole = std::mem::take(&mut queue.observed.under_way);
            queue.observed.ticks.observe(whole);
        }
    }

    /// Reports of at most `most` queues, the oldest first.
    pub(crate) fn reports(&self, most: usize) -> Vec<QueueReport> {
        let report = |queue: &Queue| QueueReport {
            name: queue.name.clone(),
            searching: queue.pool.size + queue.held,
            backfills: queue.backfills.len(),
            matches: queue.figures.matches,
            expansions: queue.figures.expansions.clone(),
            relaxed: queue.figures.expansions.iter().skip(1).sum(),
            timed_out: queue.figures.timed_out,
            cancelled: queue.figures.cancelled,
            declined: queue.figures.declined,
            failed: queue.figures.failed,
            scans: queue.figures.scans,
            proposed: queue.proposed,
            placing: queue.live - queue.pool.size - queue.held - queue.proposed,
            qualities: queue.observed.qualities.clone(),
            waits: queue.observed.waits.clone(),
            ticks: queue.observed.ticks.clone(),
        };
        self.list.iter().take(most).map(|(_, queue)| report(queue)).collect()
    }
}
