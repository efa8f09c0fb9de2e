//! Tickets enter and leave their pools, change, end and are forgotten.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::estimate::Bucket;
use super::ticket::{EndedTickets, PoolPosition, Standing, State, Ticket, next_due};
use super::{Anchor, Compiled, Facts, Hot, Key, Kind, Queues, Round, Seeker, Waiting, ordered};
use crate::id::Id;
use crate::key::{Numbers, PartitionKey, PlayerKey, QueueKey, TicketKey};
use crate::problem::{Outcome, ensure, not_found};
use crate::schema::v1;
use crate::slab::Slab;

/// Ended tickets stay readable for this long,
const ENDED_MS: u64 = 60_000;
/// but at most so many of them: beyond, the oldest are forgotten, as a burst of cancellations would
/// fill the memory.
const ENDED_MAX: u32 = 100_000;
/// Those that each input forgets for being beyond: more than it adds, and so few that a tick which
/// ends a hundred thousand leaves the work to the requests after it. They take the memory that they
/// had while they searched.
const FORGOTTEN_EARLY: usize = 4;
/// Partitions up to this size are counted for a ticket that comes back.
const COUNTED_MAX: usize = 256;
/// Times for which a ticket is held back after its first match that got no place, and at most.
const HELD_MS: [u64; 2] = [1_000, 30_000];
/// Tickets that are put in order in one step, or passed over because they left since, about half a
/// millisecond.
pub(crate) const SORTED_PER_STEP: u32 = 2_048;

/// A ticket's place in the order of fairness.
pub(super) fn anchor_of(tickets: &Slab<TicketKey, Ticket>, key: TicketKey) -> Anchor {
    tickets[key].anchor(key)
}

impl Ticket {
    pub(super) fn anchor(&self, key: TicketKey) -> Anchor {
        Anchor { class: 1, rank: -self.priority, created: self.created, who: Seeker::Ticket(key) }
    }
}

impl Queues {
    /// Tickets in the order of their places, from one on.
    pub(crate) fn tickets_from(&self, from: TicketKey) -> impl Iterator<Item = (TicketKey, &Ticket)> {
        self.tickets.iter_from(from)
    }

    pub(crate) fn get_ticket(&self, key: TicketKey) -> Option<&Ticket> {
        self.tickets.get(key)
    }

    pub(crate) fn find_ticket(&self, text: &[u8]) -> Outcome<TicketKey> {
        let index = text.get(11..19).and_then(crate::id::unhex);
        let key = index.map_or(TicketKey::LAST, |index| TicketKey::new(index as u32));
        let is_same = self.tickets.get(key).is_some_and(|ticket| &ticket.text()[..] == text);
        is_same.then_some(key).ok_or_else(|| not_found("ticket does not exist"))
    }

    /// Tickets that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Returns whether players of any ticket are asked to accept a match.
    pub(crate) fn has_proposed(&self) -> bool {
        self.list.iter().any(|(_, queue)| queue.proposed > 0)
    }

    /// Tickets that have ended and are still readable.
    pub(crate) fn ended(&self) -> usize {
        self.ended.len as usize
    }

    /// Returns whether a ticket searches in a queue.
    pub(crate) fn searches(&self, ticket: TicketKey, queue: QueueKey) -> bool {
        self.waiting.searches(ticket, queue)
    }

    /// Its place in the order of fairness.
    pub(crate) fn anchor(&self, ticket: TicketKey) -> Anchor {
        anchor_of(&self.tickets, ticket)
    }

    /// The index after the last ticket that ever was.
    pub(crate) fn tickets_end(&self) -> u32 {
        self.tickets.end()
    }

    /// Tickets of a queue that search.
    pub(crate) fn searching_tickets(&self, queue: QueueKey) -> Vec<TicketKey> {
        let partitions = self.list[queue].pool.partitions.iter();
        let mut all: Vec<TicketKey> =
            partitions.flat_map(|(_, part)| part.order.iter().map(|((_, ticket), _)| *ticket)).collect();
        all.sort_unstable();
        all
    }

    /// Tickets of a queue that are held back.
    pub(crate) fn held_tickets(&self, queue: QueueKey) -> Vec<TicketKey> {
        let of_queue = self.tickets.iter().filter(|(_, ticket)| ticket.queue == queue);
        of_queue.map(|(key, _)| key).filter(|key| self.is_held(*key)).collect()
    }

    /// Returns whether a ticket searches later: its match got no place, or a server of its players
    /// is lost.
    fn is_held(&self, key: TicketKey) -> bool {
        let ticket = &self.tickets[key];
        let has_place = ticket.state != State::Searching || ticket.place().is_some();
        !has_place && self.waiting.searches(key, ticket.queue)
    }

    /// Time up to which a ticket is held back, if it is.
    pub(crate) fn held_until(&self, key: TicketKey) -> Option<u64> {
        self.is_held(key).then(|| self.waiting.due_at(key))
    }

    /// A ticket whose match got no place searches again after a time that doubles with each such
    /// match.
    pub(crate) fn hold(&mut self, key: TicketKey, reason: &str, now: u64) {
        self.change_ticket(key, State::Searching, reason);
        let ticket = &mut self.tickets[key];
        let time = (HELD_MS[0] << ticket.refusals.min(16)).min(HELD_MS[1]);
        ticket.refusals = ticket.refusals.saturating_add(1);
        self.hold_until(key, now + time);
    }

    /// A ticket that is in no pool searches again at a time, or ends if it expires before.
    pub(crate) fn hold_until(&mut self, key: TicketKey, at: u64) {
        let ticket = &self.tickets[key];
        let at = at.min(ticket.expires);
        let queue = &mut self.list[ticket.queue];
        queue.held += 1;
        queue.due.enter(&mut self.waiting, ticket.queue, key, at);
    }

    /// The time of a ticket that was held back is over.
    pub(crate) fn release(&mut self, key: TicketKey) {
        self.list[self.tickets[key].queue].held -= 1;
        self.waiting.forget(key);
    }

    /// The place of the next ticket.
    pub(crate) fn next_ticket(&self) -> TicketKey {
        self.tickets.next_key()
    }

    /// Keeps a ticket at [`next_ticket`](Queues::next_ticket), which its id names.
    pub(crate) fn insert_ticket(&mut self, ticket: Ticket) -> TicketKey {
        self.live += 1;
        self.list[ticket.queue].live += 1;
        self.tickets.insert(ticket)
    }

    /// A ticket begins to search, or goes on.
    pub(crate) fn enter_pool(&mut self, key: TicketKey, now: u64) {
        let ticket = &mut self.tickets[key];
        let queue_key = ticket.queue;
        let queue = &mut self.list[queue_key];
        let compiled = queue.rules();
        ticket.state = State::Searching;
        ticket.level = compiled.level_at(now - ticket.created);
        let due = next_due(&compiled, ticket);
        let hot = compiled.hot(&ticket.facts, ticket.level);
        let value = (ordered(compiled.main_value(&ticket.facts)), key);
        let anchor = ticket.anchor(key);
        let partition = queue.pool.partition(compiled.partition_of(&ticket.facts));
        ticket.standing = Standing::InPool(PoolPosition { partition, key: value });
        let ahead = queue.pool.ahead(partition, anchor.rank);
        // One that comes back is before those that came meanwhile.
        let is_back = ticket.created < now;
        self.tickets[key].position = if is_back { self.position_of(key, ahead) } else { ahead };
        let queue = &mut self.list[queue_key];
        queue.due.enter(&mut self.waiting, queue_key, key, due);
        let tickets = &self.tickets;
        queue.pool.insert(&compiled, partition, value, hot, anchor, |other| anchor_of(tickets, other));
    }

    /// Tickets ahead of one that comes back, of `most` of its priority or above: counted in a small
    /// partition, in a large one as it was told last, until the next round.
    fn position_of(&self, key: TicketKey, most: u64) -> u64 {
        let ticket = &self.tickets[key];
        let Some(place) = ticket.place() else { return most };
        let order = &self.list[ticket.queue].pool.partitions[place.partition].order;
        if order.len() > COUNTED_MAX {
            return most.min(ticket.position);
        }
        let own = ticket.anchor(key);
        order.iter().filter(|((_, other), _)| anchor_of(&self.tickets, *other) < own).count() as u64
    }

    /// A ticket does not search any more.
    pub(crate) fn leave_pool(&mut self, key: TicketKey) {
        let compiled = self.list[self.tickets[key].queue].rules();
        self.leave_pool_together(&[key], &compiled);
    }

    /// The same for several of one partition, which is changed once for all. `compiled` are their
    /// queue's rules.
    pub(super) fn leave_pool_together(&mut self, all: &[TicketKey], compiled: &Compiled) {
        let (mut from, mut keys) = (None, SmallVec::<[Key; 16]>::new());
        for key in all {
            let ticket = &mut self.tickets[*key];
            let Some(place) = ticket.place() else {
                if self.waiting.searches(*key, ticket.queue) {
                    let queue = &mut self.list[ticket.queue];
                    queue.held -= 1;
                    queue.due.leave(&mut self.waiting, *key);
                }
                continue;
            };
            ticket.standing = Standing::Nowhere;
            from = Some((ticket.queue, place.partition));
            keys.push(place.key);
            self.list[ticket.queue].due.leave(&mut self.waiting, *key);
        }
        let Some((queue, partition)) = from else { return };
        keys.sort_unstable();
        let tickets = &self.tickets;
        self.list[queue].pool.remove(compiled, partition, &keys, |other| anchor_of(tickets, other));
    }

    /// A ticket's waiting time has reached a level. False if it has reached its end.
    pub(crate) fn relax(&mut self, key: TicketKey, at: u64, compiled: &Compiled) -> bool {
        let ticket = &mut self.tickets[key];
        if at >= ticket.expires {
            return false;
        }
        let Some(place) = ticket.place() else { return true };
        ticket.level = compiled.level_at(at - ticket.created);
        let due = next_due(compiled, ticket);
        let hot = compiled.hot(&ticket.facts, ticket.level);
        let (queue_key, anchor) = (ticket.queue, ticket.anchor(key));
        let queue = &mut self.list[queue_key];
        queue.due.enter(&mut self.waiting, queue_key, key, due);
        let tickets = &self.tickets;
        queue
            .pool
            .relax(compiled, place.partition, place.key, hot, anchor, |other| anchor_of(tickets, other));
        true
    }

    pub(crate) fn change_ticket(&mut self, key: TicketKey, state: State, reason: &str) {
        let ticket = &mut self.tickets[key];
        ticket.rev += 1;
        let proposed = &mut self.list[ticket.queue].proposed;
        *proposed =
            *proposed + u64::from(state == State::Proposed) - u64::from(ticket.state == State::Proposed);
        ticket.state = state;
        if !(ticket.reason.is_empty() && reason.is_empty()) {
            ticket.reason = Box::from(reason.as_bytes());
        }
    }

    /// Tickets, by side, are of a match whose players are asked, or which is placed at once.
    pub(crate) fn propose(
        &mut self,
        queue: QueueKey,
        sides: &[Vec<TicketKey>],
        (found, region): (Id, Option<u16>),
        asks: bool,
    ) {
        let state = if asks { State::Proposed } else { State::Placing };
        for key in sides.iter().flatten() {
            let ticket = &mut self.tickets[*key];
            ticket.rev += 1;
            (ticket.state, ticket.matched, ticket.region) = (state, Some(found), region);
        }
        if asks {
            self.list[queue].proposed += sides.iter().map(Vec::len).sum::<usize>() as u64;
        }
    }

    /// Tickets, by side, have seats in a room.
    pub(crate) fn seat(&mut self, sides: &[Vec<TicketKey>], room: Id) {
        sides.iter().flatten().for_each(|key| self.tickets[*key].room = Some(room));
    }

    /// A ticket's match is off.
    pub(crate) fn unmatch(&mut self, key: TicketKey) {
        let ticket = &mut self.tickets[key];
        (ticket.matched, ticket.room, ticket.region) = (None, None, None);
    }

    /// A ticket goes on without one of its players.
    pub(crate) fn drop_player(&mut self, key: TicketKey, player: PlayerKey) {
        self.tickets[key].players.retain(|member| member.player != Some(player));
    }

    /// A player of a ticket that is placed is lost. Returns whether that is news.
    pub(crate) fn lose_player(&mut self, key: TicketKey, player: PlayerKey) -> bool {
        let mut players = self.tickets[key].players.iter_mut();
        let own = players.find(|own| own.player == Some(player) && !own.is_lost());
        own.map(super::TicketPlayer::lose).is_some()
    }

    /// A ticket searches with other facts.
    pub(crate) fn search_again(&mut self, key: TicketKey, facts: Facts, now: u64) {
        self.tickets[key].facts = facts;
        self.change_ticket(key, State::Searching, "");
        self.enter_pool(key, now);
    }

    /// A ticket has ended without a match: it stays readable for a while. `free` gets its players.
    pub(crate) fn end_ticket(&mut self, key: TicketKey, now: u64, free: impl FnMut(PlayerKey)) {
        let ticket = &mut self.tickets[key];
        // At hand, other than those of a tick's matches: to forget them later would be slower.
        ticket.facts = Facts::default();
        self.live -= 1;
        self.list[ticket.queue].live -= 1;
        self.list_ended(key, now, free);
    }

    /// Tickets of a queue, by side, have ended with a match. `free` gets their players.
    pub(crate) fn end_matched(
        &mut self,
        queue: QueueKey,
        sides: &[Vec<TicketKey>],
        now: u64,
        mut free: impl FnMut(PlayerKey, TicketKey),
    ) {
        let mut ended = 0;
        for key in sides.iter().flatten() {
            let ticket = &mut self.tickets[*key];
            ticket.rev += 1;
            (ticket.state, ticket.reason) = (State::Matched, Box::default());
            self.list_ended(*key, now, |player| free(player, *key));
            ended += 1;
        }
        self.live -= ended;
        self.list[queue].live -= ended as u64;
    }

    fn list_ended(&mut self, key: TicketKey, now: u64, free: impl FnMut(PlayerKey)) {
        let ticket = &mut self.tickets[key];
        ticket.players.iter_mut().filter_map(|own| own.player.take()).for_each(free);
        ticket.standing = Standing::Ended { until: now + ENDED_MS, next: None };
        let before = self.ended.last.replace(key);
        match before.and_then(|before| self.tickets.get_mut(before)).map(|ticket| &mut ticket.standing) {
            Some(Standing::Ended { next, .. }) => *next = Some(key),
            _ => self.ended.first = Some(key),
        }
        self.ended.len = self.ended.len.saturating_add(1);
    }

    /// Forgets ended tickets that are too many or whose time is over, at most `most` of them.
    pub(crate) fn forget_tickets(&mut self, now: u64, most: usize) {
        for forgotten in 0..most {
            let Some((_, until)) = self.first_ended() else { return };
            let is_beyond = forgotten < FORGOTTEN_EARLY && self.ended.len > ENDED_MAX;
            if until > now && !is_beyond {
                return;
            }
            self.forget_first_ended();
        }
    }

    /// The ticket that ended first of those still readable, and until when it is.
    pub(crate) fn first_ended(&self) -> Option<(TicketKey, u64)> {
        let first = self.ended.first?;
        match self.tickets.get(first)?.standing {
            Standing::Ended { until, .. } => Some((first, until)),
            _ => None,
        }
    }

    pub(crate) fn forget_first_ended(&mut self) {
        let EndedTickets { first: Some(first), last, len } = self.ended else { return };
        let next = self.ended_after(first);
        let last = last.filter(|_| next.is_some());
        self.ended = EndedTickets { first: next, last, len: len.saturating_sub(1) };
        self.tickets.discard(first);
    }

    /// The ticket that ended next after one that has.
    fn ended_after(&self, key: TicketKey) -> Option<TicketKey> {
        match self.tickets.get(key)?.standing {
            Standing::Ended { next, .. } => next,
            _ => None,
        }
    }

    /// Notes how long tickets waited that are matched: those of one kind at once, which those of a
    /// match mostly are. `compiled` are their queue's rules.
    pub(crate) fn record_waits(
        &mut self,
        queue: QueueKey,
        compiled: &Compiled,
        sides: &[Vec<TicketKey>],
        now: u64,
    ) {
        let queue = &mut self.list[queue];
        let mut kinds: SmallVec<[(Kind, SmallVec<[Bucket; 16]>); 4]> = SmallVec::new();
        for ticket in sides.iter().flatten().map(|key| &self.tickets[*key]) {
            let waited = now - ticket.created;
            queue.observed.waits.observe(waited as f64 / 1_000.0);
            let (kind, bucket) = (ticket.kind(compiled), Bucket::of(waited));
            match kinds.iter_mut().find(|known| known.0 == kind) {
                Some((_, waits)) => waits.push(bucket),
                None => kinds.push((kind, SmallVec::from_slice(&[bucket]))),
            }
        }
        for (kind, waits) in kinds {
            queue.estimates.note(now, kind, &waits);
        }
        if !queue.searching {
            queue.estimates.settle(now);
        }
    }

    /// A queue that has tickets tells them how they stand from time to time: when it does first,
    /// unless it does already.
    pub(crate) fn begin_updates(&mut self, key: QueueKey, now: u64) -> Option<u64> {
        let queue = &mut self.list[key];
        let seconds = queue.rules().set.updates_s;
        if queue.tells || seconds == 0 {
            return None;
        }
        queue.tells = true;
        Some(now + seconds * 1_000)
    }

    /// The round of telling tickets that is under way, or a new one.
    pub(crate) fn take_round(&mut self, key: QueueKey) -> Round {
        self.list[key].round.take().unwrap_or_default()
    }

    /// Keeps a round that is not over.
    pub(crate) fn put_round(&mut self, key: QueueKey, round: Round) {
        self.list[key].round = Some(round);
    }

    /// A round is over: when the next begins, if there is one.
    pub(crate) fn end_round(&mut self, key: QueueKey, now: u64) -> Option<u64> {
        let queue = &mut self.list[key];
        let seconds = queue.rules().set.updates_s;
        queue.tells = queue.pool.size > 0 && seconds > 0;
        queue.tells.then_some(now + seconds * 1_000)
    }

    /// Puts some more tickets of a queue in order. Whether all are.
    pub(crate) fn put_in_order(&self, key: QueueKey, round: &mut Round) -> bool {
        let end = self.tickets.end();
        let to = round.next.saturating_add(SORTED_PER_STEP).min(end);
        let all = (round.next..to).map(TicketKey::new);
        let searching = all.filter(|ticket| self.waiting.searches(*ticket, key));
        let pool = &self.list[key].pool;
        let places = searching.filter_map(|ticket| {
            let place = self.tickets[ticket].place()?;
            Some((pool.partitions[place.partition].number, anchor_of(&self.tickets, ticket)))
        });
        round.left.extend(places);
        round.next = to;
        to == end
    }

    /// A round comes to a ticket of a partition: its place, if it still searches there. Its
    /// position in the queue is the one that it is notified of now.
    pub(crate) fn pass(
        &mut self,
        key: QueueKey,
        (part, anchor): (u64, Anchor),
        round: &mut Round,
    ) -> Option<TicketKey> {
        let ticket = anchor.ticket()?;
        // It may have left, and another may have its number or its partition's.
        let is_there = self.waiting.searches(ticket, key)
            && anchor_of(&self.tickets, ticket) == anchor
            && self.tickets[ticket]
                .place()
                .is_some_and(|place| self.list[key].pool.partitions[place.partition].number == part);
        if !is_there {
            return None;
        }
        let ahead = if round.passed.0 == part { round.passed.1 } else { 0 };
        round.passed = (part, ahead + 1);
        self.tickets[ticket].position = ahead;
        Some(ticket)
    }

    pub(crate) fn save_tickets(&self, numbers: &Numbers) -> v1::Places<v1::Ticket<'_>> {
        let place_of = |ticket: &Ticket| {
            let place = ticket.place()?;
            self.list[ticket.queue].pool.save_place(place.partition, place.key)
        };
        v1::Places {
            objects: self.tickets.iter().map(|(_, ticket)| ticket.save(numbers, place_of(ticket))).collect(),
            free: self.tickets.free().to_vec(),
        }
    }

    /// Places of the tickets that have ended and are still readable, in the order of their ends.
    pub(crate) fn save_ended(&self) -> Vec<u32> {
        let all = std::iter::successors(self.ended.first, |key| self.ended_after(*key));
        all.map(TicketKey::index).collect()
    }

    pub(crate) fn save_waits(&self) -> Vec<v1::Wait> {
        self.waiting.save()
    }

    pub(super) fn load_tickets(
        &mut self,
        saved: &v1::State<'_>,
        unplaced: &'static str,
    ) -> Result<(), &'static str> {
        let all = &saved.tickets.objects;
        let tickets = all.iter().map(|own| Ok((own.id.place, Ticket::load(own, saved.now)?)));
        let tickets = tickets.collect::<Result<Vec<_>, &'static str>>()?;
        self.tickets = Slab::from_places(tickets.into_iter(), saved.tickets.free.clone()).ok_or(unplaced)?;
        self.waiting = Waiting::load(&saved.waits, self.tickets.end())?;
        let places = all.iter().map(|own| (TicketKey::new(own.id.place), own.waits.is_some()));
        let live = places.filter(|(key, _)| self.tickets[*key].state.is_live());
        for (key, has_place) in live {
            let ticket = &self.tickets[key];
            let is_held = ticket.state == State::Searching && !has_place;
            let queue = self.list.get_mut(ticket.queue).ok_or("a ticket has no queue")?;
            // The rules see the party of a match that is being placed no more, and may be others by
            // now; those of a paused queue are unknown.
            if ticket.state != State::Placing && queue.paused.is_none() {
                let rules = queue.rules();
                let has_level = usize::from(ticket.level) < rules.levels.len();
                ensure(has_level && rules.fits(&ticket.facts), "a ticket that its queue's rules do not fit")?;
            }
            queue.live += 1;
            queue.proposed += u64::from(ticket.state == State::Proposed);
            queue.held += u64::from(is_held);
            self.live += 1;
            let waits = !is_held || self.waiting.searches(key, ticket.queue);
            ensure(waits, "a ticket that is held back and never due")?;
        }
        self.load_ended(&saved.ended_tickets)?;
        let waiting = all.iter().filter_map(|own| Some((TicketKey::new(own.id.place), own.waits?)));
        self.fill_pools(waiting)
    }

    /// Chains the tickets that a snapshot names as ended.
    fn load_ended(&mut self, all: &[u32]) -> Result<(), &'static str> {
        let all: Vec<TicketKey> = all.iter().copied().map(TicketKey::new).collect();
        for pair in all.windows(2) {
            match self.tickets.get_mut(pair[0]).map(|ticket| &mut ticket.standing) {
                Some(Standing::Ended { next: next @ None, .. }) => *next = Some(pair[1]),
                _ => return Err("an ended ticket is missing or there twice"),
            }
        }
        let (first, last) = (all.first().copied(), all.last().copied());
        let is_last = |key| {
            let ticket = self.tickets.get(key);
            matches!(ticket.map(|own| own.standing), Some(Standing::Ended { next: None, .. }))
        };
        if !last.is_none_or(is_last) {
            return Err("the last ended ticket is missing or there twice");
        }
        self.ended = EndedTickets { first, last, len: all.len() as u32 };
        Ok(())
    }

    /// Puts tickets that a snapshot brought back into the pools of their queues. `places` are those
    /// of the tickets that wait.
    fn fill_pools(
        &mut self,
        places: impl Iterator<Item = (TicketKey, v1::Waiting)>,
    ) -> Result<(), &'static str> {
        let numbers: Vec<BTreeMap<u64, PartitionKey>> =
            self.list.iter().map(|(_, queue)| queue.pool.numbers()).collect();
        type Entries = Vec<(Key, Hot, i8)>;
        let mut by_partition: BTreeMap<(QueueKey, PartitionKey), Entries> = BTreeMap::new();
        for (key, place) in places {
            let v1::Waiting { partition, value, idle, cut } = place;
            if cut && !idle {
                return Err("a search that hit its limit is marked as unfinished");
            }
            let Some(ticket) = self.tickets.get_mut(key) else { return Err("a ticket is missing") };
            let Some(queue) = self.list.get(ticket.queue) else { return Err("a queue is missing") };
            let partition = numbers[ticket.queue.index() as usize].get(&partition);
            let partition = *partition.ok_or("a ticket is in no partition")?;
            let compiled = queue.rules();
            // A paused queue has no levels.
            let level = ticket.level.min((compiled.levels.len() - 1) as u8);
            let hot = Hot { idle, cut, ..compiled.hot(&ticket.facts, level) };
            ticket.standing = Standing::InPool(PoolPosition { partition, key: (value, key) });
            let rank = ticket.anchor(key).rank;
            by_partition.entry((ticket.queue, partition)).or_default().push(((value, key), hot, rank));
        }
        for ((queue, partition), mut tickets) in by_partition {
            tickets.sort_unstable_by_key(|(key, ..)| *key);
            self.list[queue].pool.fill(partition, &tickets);
        }
        Ok(())
    }

    /// Checks each ticket, and that `has_ticket` holds for its players while it is live. Gives the
    /// numbers of live ones, those that are proposed, in the pool, and held back, by queue.
    pub(super) fn check_tickets(
        &self,
        has_ticket: impl Fn(PlayerKey, TicketKey) -> bool,
    ) -> Result<BTreeMap<QueueKey, [u64; 4]>, &'static str> {
        let (mut live, mut ended) = (BTreeMap::new(), 0);
        for (key, ticket) in self.tickets.iter() {
            ensure(ticket.id.index == key.index(), "the id of a ticket")?;
            let queue = self.list.get(ticket.queue).ok_or("the queue of a ticket")?;
            if !ticket.state.is_live() {
                ended += 1;
                continue;
            }
            let counts: &mut [u64; 4] = live.entry(ticket.queue).or_default();
            counts[0] += 1;
            counts[1] += u64::from(ticket.state == State::Proposed);
            counts[2] += u64::from(ticket.place().is_some());
            counts[3] += u64::from(self.is_held(key));
            let is_free = |own: &Option<PlayerKey>| own.is_none_or(|player| !has_ticket(player, key));
            ensure(!ticket.players.iter().any(|own| is_free(&own.player)), "a player of a ticket")?;
            let place = ticket.place();
            ensure(place.is_none() || ticket.state == State::Searching, "the place of a ticket")?;
            let searches = ticket.state == State::Searching;
            ensure(self.waiting.searches(key, ticket.queue) == searches, "a ticket that waits")?;
            if let Some(place) = place {
                let part = queue.pool.partitions.get(place.partition);
                ensure(part.is_some_and(|part| part.order.get(place.key).is_some()), "a ticket in its pool")?;
            }
        }
        let counted: u64 = live.values().map(|counts| counts[0]).sum();
        ensure(self.live as u64 == counted, "the number of tickets")?;
        let searching: u64 = live.values().map(|counts| counts[2] + counts[3]).sum();
        ensure(self.waiting.searching() == searching, "the tickets that wait")?;
        ensure(self.save_ended().len() == ended, "the tickets that have ended")?;
        Ok(live)
    }
}
