//! Queues are put, and their ticks make matches of tickets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::order::Order;
use super::{
    Anchor, Compiled, Due, Estimates, Hot, Key, Observed, Partition, Pool, Queue, QueueCounters, QueueRules,
    RuleProblem, Search, Seeker, Slice, Start,
};
use crate::backfill::Backfill;
use crate::key::{BackfillKey, PartitionKey, QueueKey, TicketKey};
use crate::matcher::Matcher;
use crate::schema::v1;
use crate::slab::Slab;
use crate::stats::QueueReport;
use crate::ticket::{PoolPosition, Standing, Ticket};
use crate::timers::Timer;
use crate::turn::Turn;

/// Work of one slice of a search, in neighbours looked at: about a millisecond.
pub(super) const SLICE_STEPS: u64 = 40_000;
/// Steps of an anchor or a due ticket beside its neighbours.
const ANCHOR_STEPS: u64 = 40;
/// Steps of one tick for searches that go on where an earlier tick hit its limit: 2 to 5 ms,
/// however many go on.
const UNFINISHED_STEPS: u64 = 200_000;
/// Anchors without a ticket that are passed over at once.
const GONE_MAX: u64 = 64;
/// Steps of a matched ticket: its seats, its end and the events of both.
const MATCHED_STEPS: u64 = 60;
/// Matches that are made together: what they touch, some 8 KiB each, is to stay in the second
/// cache.
const BATCH: usize = 32;
/// Anchors that are looked up together,
const AHEAD: usize = 16;
/// and how many are passed over for that, of tickets that left.
const AHEAD_SCAN: usize = 256;

/// A ticket's place in the order of fairness.
pub(crate) fn anchor_of(tickets: &Slab<TicketKey, Ticket>, index: TicketKey) -> Anchor {
    tickets[index].anchor(index)
}

impl Ticket {
    fn anchor(&self, index: TicketKey) -> Anchor {
        Anchor { class: 1, rank: -self.priority, created: self.created, who: Seeker::Ticket(index) }
    }
}

impl Matcher {
    /// Puts tickets that a snapshot brought back into the pools of their queues. `places` are those
    /// of the tickets that wait.
    pub(crate) fn fill_pools(
        &mut self,
        places: impl Iterator<Item = (TicketKey, v1::Waiting)>,
    ) -> Result<(), &'static str> {
        let numbers: Vec<BTreeMap<u64, PartitionKey>> =
            self.queues.list.iter().map(|(_, queue)| queue.pool.numbers()).collect();
        type Entries = Vec<(Key, Hot, i8)>;
        let mut by_partition: BTreeMap<(QueueKey, PartitionKey), Entries> = BTreeMap::new();
        for (index, place) in places {
            let v1::Waiting { partition, value, idle, cut } = place;
            if cut && !idle {
                return Err("a search that hit its limit is marked as unfinished");
            }
            let Some(ticket) = self.tickets.get_mut(index) else { return Err("a ticket is missing") };
            let Some(queue) = self.queues.list.get(ticket.queue) else { return Err("a queue is missing") };
            let partition = numbers[ticket.queue.index() as usize].get(&partition);
            let partition = *partition.ok_or("a ticket is in no partition")?;
            let compiled = queue.rules();
            // A paused queue has no levels.
            let level = ticket.level.min((compiled.levels.len() - 1) as u8);
            let hot = Hot { idle, cut, ..compiled.hot(&ticket.facts, level) };
            let key = (value, index);
            ticket.standing = Standing::InPool(PoolPosition { partition, key });
            let anchor = ticket.anchor(index);
            by_partition.entry((ticket.queue, partition)).or_default().push((key, hot, anchor.rank));
        }
        for ((queue, partition), mut tickets) in by_partition {
            tickets.sort_unstable_by_key(|(key, ..)| *key);
            self.queues.list[queue].pool.fill(partition, &tickets);
        }
        Ok(())
    }

    /// Makes or replaces a queue. Live tickets are checked again; those that can never be matched
    /// any more fail.
    pub(crate) fn put_queue(
        &mut self,
        turn: &mut Turn<'_>,
        rules: &QueueRules,
    ) -> Result<QueueKey, RuleProblem> {
        let compiled = Arc::new(self.check_rules(rules)?);
        let mode = self.put_queue_mode(&compiled);
        let Some(index) = self.queues.by_name.get(&rules.name).copied() else {
            let queue = Queue {
                name: rules.name.clone(),
                source: rules.source.clone(),
                compiled: Some(compiled),
                paused: None,
                pool: Pool::default(),
                live: 0,
                proposed: 0,
                regions: Vec::new(),
                due: Due::default(),
                tick_at: 0,
                searching: false,
                tick_now: self.now,
                turns_until: 0,
                steps_left: 0,
                backfills: BTreeSet::new(),
                estimates: Estimates::default(),
                figures: QueueCounters::default(),
                mode,
                round: None,
                tells: false,
                observed: Observed::default(),
            };
            let index = self.queues.list.insert(queue);
            self.queues.by_name.insert(rules.name.clone(), index);
            return Ok(index);
        };
        let queue = &self.queues.list[index];
        if queue.source == rules.source && queue.paused.is_none() {
            return Ok(index);
        }
        let backfills: Vec<BackfillKey> = self.queues.list[index].backfills.iter().copied().collect();
        for backfill in backfills {
            self.end_backfill(turn, backfill, "stopped");
        }
        let waiting: Vec<TicketKey> = self.searching_tickets(index);
        let before = self.queues.list[index].rules();
        for ticket in &waiting {
            self.leave_pool(*ticket, &before);
        }
        let queue = &mut self.queues.list[index];
        (queue.source, queue.compiled, queue.mode) = (rules.source.clone(), Some(compiled), mode);
        queue.paused = None;
        for ticket in waiting {
            self.recheck(turn, ticket);
        }
        self.break_proposals(turn, index);
        Ok(index)
    }

    /// The rules that a queue would have, if they fit what its mode is configured to be.
    pub(super) fn check_rules(&self, rules: &QueueRules) -> Result<Compiled, RuleProblem> {
        let compiled = rules.compile()?;
        let modes = self.config.modes.clone();
        crate::Config { modes, queues: vec![rules.clone()], ..crate::Config::default() }.check()?;
        Ok(compiled)
    }

    /// Tickets of a queue that search.
    pub(crate) fn searching_tickets(&self, queue: QueueKey) -> Vec<TicketKey> {
        let partitions = self.queues.list[queue].pool.partitions.iter();
        let mut all: Vec<TicketKey> =
            partitions.flat_map(|(_, part)| part.order.iter().map(|((_, ticket), _)| *ticket)).collect();
        all.sort_unstable();
        all
    }

    /// Sees to it that a queue's next tick begins in time: on its grid, when something is due or
    /// after it.
    pub(crate) fn schedule(&mut self, index: QueueKey) {
        let now = self.now;
        let queue = &mut self.queues.list[index];
        if queue.searching || queue.paused.is_some() {
            return;
        }
        let tick = queue.rules().set.tick_ms;
        let next = (now / tick + 1) * tick;
        let due = queue.due.first().map(|at| at.checked_next_multiple_of(tick).unwrap_or(at).max(next));
        let is_idle = queue.pool.dirty.is_empty() && !queue.pool.has_unfinished();
        let Some(at) = (if is_idle { due } else { Some(next) }) else { return };
        if queue.tick_at == 0 || at < queue.tick_at {
            queue.tick_at = at;
            self.timers.set(at, Timer::Tick(index));
        }
    }

    /// A tick's time has come.
    pub(crate) fn begin_tick(&mut self, index: QueueKey, at: u64) {
        let Some(queue) = self.queues.list.get_mut(index) else { return };
        if queue.tick_at != at {
            return;
        }
        queue.tick_at = 0;
        if queue.paused.is_some() {
            return;
        }
        (queue.tick_now, queue.searching) = (at, true);
        (queue.turns_until, queue.steps_left) = (queue.pool.next_turn, UNFINISHED_STEPS);
        self.queues.searching.insert(index);
        self.wake_backfills(index);
    }

    /// Lets those backfills of a queue look that have not since something came or relaxed.
    fn wake_backfills(&mut self, index: QueueKey) {
        let Queue { backfills, pool, .. } = &mut self.queues.list[index];
        for backfill in backfills.iter() {
            if let Some(anchor) = self.backfills[*backfill].anchor(*backfill, pool) {
                pool.dirty.insert(anchor);
            }
        }
    }

    /// A part of a tick: bounded, so that requests do not wait for it.
    pub(crate) fn search_slice(&mut self, turn: &mut Turn<'_>) {
        let Some(index) = self.queues.searching.first().copied() else { return };
        let compiled = self.queues.list[index].rules();
        let queue = &mut self.queues.list[index];
        if queue.tick_now + compiled.set.tick_ms <= self.now {
            queue.tick_now = self.now;
        }
        let tick_now = queue.tick_now;
        let (mut steps, mut ahead) = (0, 0);
        while steps < SLICE_STEPS {
            let queue = &mut self.queues.list[index];
            if let Some((at, ticket)) = queue.due.pop(&mut self.waiting, index, tick_now) {
                if let Some(ticket) = ticket {
                    self.ticket_is_due(turn, ticket, at, &compiled);
                }
                if self.queues.list[index].due.first().is_none_or(|next| next > tick_now) {
                    self.wake_backfills(index);
                }
                steps += ANCHOR_STEPS;
                continue;
            }
            if ahead == 0 {
                ahead = self.look_ahead(index);
            }
            let (queue, waiting) = (&mut self.queues.list[index], &self.waiting);
            // Those whose tickets were matched with others meanwhile, nine of ten.
            let mut gone = 0;
            let is_gone =
                |anchor: &Anchor| anchor.ticket().is_some_and(|ticket| !waiting.searches(ticket, index));
            let next = loop {
                match queue.pool.dirty.pop_first() {
                    Some(anchor) if gone < GONE_MAX && is_gone(&anchor) => gone += 1,
                    next => break next,
                }
            };
            steps += ANCHOR_STEPS * gone;
            ahead = ahead.saturating_sub(gone as usize);
            let Some(anchor) = next else {
                if !self.scratch.found.is_empty() {
                    self.propose_taken(turn, index, &compiled);
                    continue;
                }
                if queue.steps_left > 0
                    && let Some(anchor) = queue.pool.next_unfinished(queue.turns_until)
                {
                    let taken = ANCHOR_STEPS + self.try_anchor(turn, index, &compiled, anchor, true);
                    let queue = &mut self.queues.list[index];
                    queue.steps_left = queue.steps_left.saturating_sub(taken);
                    steps += taken;
                    continue;
                }
                queue.searching = false;
                queue.estimates.settle(self.now);
                self.scratch.slice = Some(Slice { queue: index, ended: true, steps });
                self.queues.searching.remove(&index);
                self.schedule(index);
                return;
            };
            ahead = ahead.saturating_sub(1);
            steps += ANCHOR_STEPS + self.try_anchor(turn, index, &compiled, anchor, false);
        }
        self.propose_taken(turn, index, &compiled);
        self.scratch.slice = Some(Slice { queue: index, ended: false, steps });
    }

    /// Says how long the last [`handle_timeout`](Matcher::handle_timeout) took, for the figures of
    /// ticks. No input: it changes nothing that outlives the process.
    pub fn note_time(&mut self, took: Duration) {
        let Some(Slice { queue, ended, .. }) = self.scratch.slice.take() else { return };
        let Some(queue) = self.queues.list.get_mut(queue) else { return };
        queue.observed.under_way += took.as_secs_f64();
        if ended {
            let whole = std::mem::take(&mut queue.observed.under_way);
            queue.observed.ticks.observe(whole);
        }
    }

    /// Reports of at most `most` queues, the oldest first, so that the choice stands. Cost:
    /// O(most).
    #[must_use]
    pub fn queue_reports(&self, most: usize) -> Vec<QueueReport> {
        let report = |queue: &Queue| QueueReport {
            name: queue.name.clone(),
            searching: queue.pool.size,
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
            placing: queue.live - queue.pool.size - queue.proposed,
            qualities: queue.observed.qualities.clone(),
            waits: queue.observed.waits.clone(),
            ticks: queue.observed.ticks.clone(),
        };
        self.queues.list.iter().take(most).map(|(_, queue)| report(queue)).collect()
    }

    /// Looks up the next anchors, side by side: one by one, each would wait for the memory some ten
    /// times. It decides nothing. Returns how many anchors those are.
    fn look_ahead(&self, index: QueueKey) -> usize {
        let pool = &self.queues.list[index].pool;
        let (mut scanned, mut places) = (0, SmallVec::<[_; AHEAD]>::new());
        for anchor in pool.dirty.iter().take(AHEAD_SCAN) {
            scanned += 1;
            if let Some(ticket) = anchor.ticket().filter(|own| self.waiting.searches(*own, index)) {
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

    /// Looks for a match around an anchor and makes it. `goes_on`: it was the turn of its
    /// unfinished search. Returns the steps that it counts.
    fn try_anchor(
        &mut self,
        turn: &mut Turn<'_>,
        index: QueueKey,
        compiled: &Arc<Compiled>,
        anchor: Anchor,
        goes_on: bool,
    ) -> u64 {
        let tickets = &self.tickets;
        let queue = &self.queues.list[index];
        let (partition, start) = match anchor.who {
            Seeker::Backfill(backfill) => {
                // Another may have its number by now, that of another queue too.
                let own = |backfill: &&Backfill| backfill.queue == index && backfill.is_free();
                let Some(backfill) = self.backfills.get(backfill).filter(own) else { return 0 };
                (backfill.partition, backfill.start(compiled, self.now))
            }
            Seeker::Ticket(ticket) => {
                if !self.waiting.searches(ticket, index) {
                    return 0;
                }
                // Another may have its number by now.
                let own = tickets.get(ticket).filter(|own| own.anchor(ticket) == anchor);
                let Some(place) = own.and_then(|own| own.place()) else { return 0 };
                let Some(hot) = queue.pool.partitions[place.partition].order.get(place.key).copied() else {
                    return 0;
                };
                let open = compiled.sides.iter().map(|(_, max)| *max).collect();
                let start = Start { key: place.key, hot, ticket: Some(ticket), fixed: Vec::new(), open };
                (place.partition, start)
            }
        };
        let facts = |ticket: TicketKey| (&tickets[ticket].facts, tickets[ticket].created);
        let part: &Partition = &queue.pool.partitions[partition];
        let near = std::mem::take(&mut self.scratch.near);
        let regions = &queue.regions;
        let scan = anchor.ticket().and_then(|ticket| queue.pool.scans.get(&ticket).cloned());
        let had = scan.as_ref().map(|scan| scan.turn).filter(|_| !goes_on);
        let mut search = Search {
            compiled,
            partition: part,
            regions,
            facts,
            steps: 0,
            cut: false,
            scan,
            ends: (start.key, start.key),
            near,
        };
        let found = search.attempt(&start);
        let (steps, cut, key, arrivals) = (search.steps, search.cut, start.key, part.arrivals);
        let scan = search.scan.take();
        self.scratch.near = search.near;
        let queue = &mut self.queues.list[index];
        queue.figures.scans += steps;
        match (found, anchor.who) {
            (Some(filling), who) => {
                let backfill = match who {
                    Seeker::Backfill(backfill) => Some(backfill),
                    Seeker::Ticket(_) => None,
                };
                let taken: usize = filling.sides.iter().map(Vec::len).sum();
                self.take(filling, backfill, compiled);
                // A backfill's room is not as it was.
                if backfill.is_some() || self.scratch.found.len() == BATCH {
                    self.propose_taken(turn, index, compiled);
                }
                return steps + MATCHED_STEPS * taken as u64;
            }
            (None, Seeker::Backfill(backfill)) => self.backfills[backfill].seen = Some(arrivals),
            (None, Seeker::Ticket(ticket)) => match scan {
                Some(scan) => queue.pool.go_on_later(ticket, anchor, scan, had),
                None => {
                    queue.pool.scans.remove(&ticket);
                    queue.pool.rest(partition, key, cut);
                }
            },
        }
        steps
    }
}
