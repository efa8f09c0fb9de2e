//! Tickets enter and leave their pools, change and end.

use smallvec::SmallVec;
use throng_wire::matcher::{Event, write_bytes, write_nested, write_u64};

use super::{
    EndedTickets, FORGOTTEN_PER_INPUT, PoolPosition, Standing, State, next_due, parse_players, ticket_id,
};
use crate::key::{PlayerKey, QueueKey, TicketKey};
use crate::matcher::{Matcher, fan_out};
use crate::problem::{Outcome, not_found};
use crate::queue::{Compiled, Facts, Key, OnMemberLost, PlayerInput, anchor_of, ordered};
use crate::turn::Turn;

/// Ended tickets stay readable for this long,
const ENDED_MS: u64 = 60_000;
/// but at most so many of them: beyond, the oldest are forgotten, as a burst of cancellations would
/// fill the memory.
const ENDED_MAX: u32 = 100_000;
/// Those that each input forgets for being beyond: more than it adds, and so few that a tick which
/// ends a hundred thousand leaves the work to the requests after it. They take the memory that they
/// had while they searched.
const FORGOTTEN_EARLY: usize = 4;

impl Matcher {
    /// Places of the tickets that have ended and are still readable, in the order of their ends.
    pub(crate) fn save_ended(&self) -> Vec<TicketKey> {
        let mut all = Vec::new();
        let mut at = self.ended_tickets.first;
        while let Some(ticket) = at {
            all.push(ticket);
            at = self.ended_after(ticket);
        }
        all
    }

    /// The ticket that ended next after one that has.
    fn ended_after(&self, ticket: TicketKey) -> Option<TicketKey> {
        match self.tickets.get(ticket)?.standing {
            Standing::Ended { next, .. } => next,
            _ => None,
        }
    }

    /// Chains the tickets that a snapshot names as ended.
    pub(crate) fn load_ended(&mut self, all: &[TicketKey]) -> Result<(), &'static str> {
        for pair in all.windows(2) {
            match self.tickets.get_mut(pair[0]).map(|ticket| &mut ticket.standing) {
                Some(Standing::Ended { next: next @ None, .. }) => *next = Some(pair[1]),
                _ => return Err("an ended ticket is missing or there twice"),
            }
        }
        let (first, last) = (all.first().copied(), all.last().copied());
        let ends = |last| {
            matches!(self.tickets.get(last).map(|own| own.standing), Some(Standing::Ended { next: None, .. }))
        };
        if !last.is_none_or(ends) {
            return Err("the last ended ticket is missing or there twice");
        }
        self.ended_tickets = EndedTickets { first, last, len: all.len() as u32 };
        Ok(())
    }

    pub(crate) fn find_ticket(&self, text: &[u8]) -> Outcome<TicketKey> {
        let index = text.get(11..19).and_then(crate::id::unhex);
        let index = index.map_or(TicketKey::LAST, |index| TicketKey::new(index as u32));
        self.tickets
            .get(index)
            .filter(|ticket| ticket_id(ticket.id, ticket.created) == text)
            .map(|_| index)
            .ok_or_else(|| not_found("ticket does not exist"))
    }

    pub(crate) fn ticket_text(&self, index: TicketKey) -> [u8; 32] {
        let ticket = &self.tickets[index];
        ticket_id(ticket.id, ticket.created)
    }

    pub(crate) fn write_ticket(&self, index: TicketKey, out: &mut Vec<u8>) {
        let ticket = &self.tickets[index];
        let queue = &self.queues.list[ticket.queue];
        let now = self.clock.max(self.now);
        write_bytes(out, 1, &self.ticket_text(index));
        write_bytes(out, 2, queue.name.as_bytes());
        for player in &ticket.players {
            write_bytes(out, 3, &player.body);
        }
        if !ticket.team.is_empty() {
            write_bytes(out, 4, &ticket.team);
        }
        write_u64(out, 5, ticket.created);
        write_u64(out, 6, ticket.expires);
        let priority = i64::from(ticket.priority);
        write_u64(out, 7, (priority << 1 ^ priority >> 63) as u64);
        write_bytes(out, 8, ticket.state.name().as_bytes());
        write_u64(out, 9, ticket.rev);
        if !ticket.reason.is_empty() {
            write_bytes(out, 10, &ticket.reason);
        }
        if let Some(id) = ticket.matched {
            write_bytes(out, 11, &id.text());
        }
        if let Some(id) = ticket.room {
            write_bytes(out, 12, &id.text());
        }
        write_u64(out, 13, now.saturating_sub(ticket.created));
        if ticket.state.is_live() {
            if let Some((p50, p90)) = queue.estimates.of(now, ticket.kind(&queue.rules())) {
                throng_wire::write_varint(out, 14 << 3);
                throng_wire::write_varint(out, p50);
                throng_wire::write_varint(out, 15 << 3);
                throng_wire::write_varint(out, p90);
            }
            write_u64(out, 16, queue.pool.size);
            write_u64(out, 17, ticket.position);
        }
        if let Some(region) = ticket.region.and_then(|region| queue.regions.get(usize::from(region))) {
            write_bytes(out, 18, region);
        }
    }

    /// A ticket begins to search, or goes on.
    pub(crate) fn enter_pool(&mut self, index: TicketKey) {
        let compiled = self.queues.list[self.tickets[index].queue].rules();
        let now = self.now;
        let ticket = &mut self.tickets[index];
        ticket.state = State::Searching;
        ticket.level = compiled.level_at(now - ticket.created);
        let due = next_due(&compiled, ticket);
        let hot = compiled.hot(&ticket.facts, ticket.level);
        let key = (ordered(compiled.main_value(&ticket.facts)), index);
        let partition_key = compiled.partition_of(&ticket.facts);
        let queue_index = ticket.queue;
        let anchor = anchor_of(&self.tickets, index);
        let queue = &mut self.queues.list[queue_index];
        let partition = queue.pool.partition(partition_key);
        self.tickets[index].standing = Standing::InPool(PoolPosition { partition, key });
        let ahead = queue.pool.ahead(partition, anchor.rank);
        // One that comes back is before those that came meanwhile.
        let is_back = self.tickets[index].created < now;
        self.tickets[index].position = if is_back { self.position_of(index, ahead) } else { ahead };
        let queue = &mut self.queues.list[queue_index];
        queue.due.enter(&mut self.waiting, queue_index, index, due);
        let tickets = &self.tickets;
        queue.pool.insert(&compiled, partition, key, hot, anchor, |other| anchor_of(tickets, other));
        self.schedule(queue_index);
        self.begin_updates(queue_index);
    }

    /// A ticket does not search any more. `compiled` are its queue's rules.
    pub(crate) fn leave_pool(&mut self, index: TicketKey, compiled: &Compiled) {
        self.leave_pool_together(&[index], compiled);
    }

    /// The same for several of one partition, which is changed once for all.
    pub(crate) fn leave_pool_together(&mut self, all: &[TicketKey], compiled: &Compiled) {
        let (mut from, mut keys) = (None, SmallVec::<[Key; 16]>::new());
        for index in all {
            let ticket = &mut self.tickets[*index];
            let Some(place) = ticket.place() else { continue };
            ticket.standing = Standing::Nowhere;
            from = Some((ticket.queue, place.partition));
            keys.push(place.key);
            self.queues.list[ticket.queue].due.leave(&mut self.waiting, *index);
        }
        let Some((queue, partition)) = from else { return };
        keys.sort_unstable();
        let tickets = &self.tickets;
        self.queues.list[queue].pool.remove(compiled, partition, &keys, |other| anchor_of(tickets, other));
    }

    /// A ticket's waiting time has reached a level or its end.
    pub(crate) fn ticket_is_due(
        &mut self,
        turn: &mut Turn<'_>,
        index: TicketKey,
        at: u64,
        compiled: &Compiled,
    ) {
        let ticket = &mut self.tickets[index];
        if at >= ticket.expires {
            let queue = ticket.queue;
            self.queues.list[queue].figures.timed_out += 1;
            self.end_ticket(turn, index, State::TimedOut, "timeout");
            return;
        }
        let Some(place) = ticket.place() else { return };
        ticket.level = compiled.level_at(at - ticket.created);
        let due = next_due(compiled, ticket);
        let hot = compiled.hot(&ticket.facts, ticket.level);
        let queue_index = ticket.queue;
        let anchor = anchor_of(&self.tickets, index);
        let queue = &mut self.queues.list[queue_index];
        queue.due.enter(&mut self.waiting, queue_index, index, due);
        let tickets = &self.tickets;
        queue
            .pool
            .relax(compiled, place.partition, place.key, hot, anchor, |other| anchor_of(tickets, other));
    }

    /// A ticket's end: its players are free, it stays readable for a while.
    pub(crate) fn end_ticket(&mut self, turn: &mut Turn<'_>, index: TicketKey, state: State, reason: &str) {
        if self.tickets[index].place().is_some() {
            let compiled = self.queues.list[self.tickets[index].queue].rules();
            self.leave_pool(index, &compiled);
        }
        self.change_ticket(index, state, reason);
        if state != State::Matched {
            self.tell_ticket(turn, index);
        }
        self.live_tickets -= 1;
        let ticket = &mut self.tickets[index];
        if state != State::Matched {
            // At hand, other than those of a tick's matches: to forget them later would be slower.
            ticket.facts = Facts::default();
        }
        self.queues.list[ticket.queue].live -= 1;
        self.free_players(index);
    }

    /// Tickets of a queue, by side, have ended well: as [`end_ticket`](Matcher::end_ticket), for
    /// all at once.
    pub(crate) fn end_matched(&mut self, queue: QueueKey, sides: &[Vec<TicketKey>]) {
        let mut ended = 0;
        for index in sides.iter().flatten() {
            let ticket = &mut self.tickets[*index];
            ticket.rev += 1;
            ticket.state = State::Matched;
            self.free_players(*index);
            ended += 1;
        }
        self.live_tickets -= ended;
        self.queues.list[queue].live -= ended as u64;
    }

    /// The players of a ticket that has ended are free; it stays readable for a while.
    fn free_players(&mut self, index: TicketKey) {
        let ticket = &mut self.tickets[index];
        for player in &mut ticket.players {
            let Some(player) = player.player.take() else { continue };
            self.people.lose_ticket(player, index);
            self.people.release(player);
        }
        ticket.standing = Standing::Ended { until: self.now + ENDED_MS, next: None };
        let before = self.ended_tickets.last.replace(index);
        match before.and_then(|before| self.tickets.get_mut(before)).map(|ticket| &mut ticket.standing) {
            Some(Standing::Ended { next, .. }) => *next = Some(index),
            _ => self.ended_tickets.first = Some(index),
        }
        self.ended_tickets.len = self.ended_tickets.len.saturating_add(1);
    }

    /// Forgets ended tickets that are too many or whose time is over, a bounded number of them.
    pub(crate) fn forget_tickets(&mut self) {
        for forgotten in 0..FORGOTTEN_PER_INPUT {
            let Some((_, until)) = self.first_ended() else { return };
            let is_beyond = forgotten < FORGOTTEN_EARLY && self.ended_tickets.len > ENDED_MAX;
            if until > self.now && !is_beyond {
                return;
            }
            self.forget_first_ended();
        }
    }

    /// The ticket that ended first of those still readable, and until when it is.
    pub(crate) fn first_ended(&self) -> Option<(TicketKey, u64)> {
        let first = self.ended_tickets.first?;
        match self.tickets.get(first)?.standing {
            Standing::Ended { until, .. } => Some((first, until)),
            _ => None,
        }
    }

    pub(crate) fn forget_first_ended(&mut self) {
        let EndedTickets { first: Some(first), last, len } = self.ended_tickets else { return };
        let next = self.ended_after(first);
        let last = last.filter(|_| next.is_some());
        self.ended_tickets = EndedTickets { first: next, last, len: len.saturating_sub(1) };
        self.tickets.discard(first);
    }

    pub(crate) fn change_ticket(&mut self, index: TicketKey, state: State, reason: &str) {
        let ticket = &mut self.tickets[index];
        ticket.rev += 1;
        let proposed = &mut self.queues.list[ticket.queue].proposed;
        *proposed =
            *proposed + u64::from(state == State::Proposed) - u64::from(ticket.state == State::Proposed);
        ticket.state = state;
        if !(ticket.reason.is_empty() && reason.is_empty()) {
            ticket.reason = Box::from(reason.as_bytes());
        }
    }

    /// Tells the servers of a live ticket's players how it stands.
    pub(crate) fn tell_ticket(&mut self, turn: &mut Turn<'_>, index: TicketKey) {
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        write_nested(&mut event, Event::TICKET_UPDATE, |out| {
            write_nested(out, 1, |out| self.write_ticket(index, out));
        });
        let players = self.tickets[index].players.iter().filter_map(|player| player.player);
        fan_out(&self.people, players, &event, 0, turn.notices);
        self.scratch.event = event;
    }

    /// A player is gone: the tickets go, or go on without them.
    pub(crate) fn drop_from_tickets(&mut self, turn: &mut Turn<'_>, player: PlayerKey, reason: &str) {
        for index in self.people[player].tickets().to_vec() {
            let queue = self.tickets[index].queue;
            let on_lost = self.queues.list[queue].rules().set.on_member_lost;
            let shrinks = on_lost == OnMemberLost::Shrink && self.tickets[index].players.len() > 1;
            match self.tickets[index].state {
                State::Searching if !shrinks => {
                    self.queues.list[queue].figures.cancelled += 1;
                    self.end_ticket(turn, index, State::Cancelled, reason);
                }
                State::Proposed => self.withdraw(turn, index, shrinks, reason),
                // The seat outlasts the connection.
                _ => {}
            }
            if shrinks && self.tickets[index].state == State::Searching {
                self.shrink(turn, index, player);
            }
        }
    }

    fn shrink(&mut self, turn: &mut Turn<'_>, index: TicketKey, player: PlayerKey) {
        let compiled = self.queues.list[self.tickets[index].queue].rules();
        self.leave_pool(index, &compiled);
        self.tickets[index].players.retain(|member| member.player != Some(player));
        self.people.lose_ticket(player, index);
        self.recheck(turn, index);
        self.people.release(player);
    }

    /// Reads a ticket's players again, under the rules as they are now, and lets it search or fail.
    pub(crate) fn recheck(&mut self, turn: &mut Turn<'_>, index: TicketKey) {
        let ticket = &self.tickets[index];
        let queue = ticket.queue;
        let compiled = self.queues.list[queue].rules();
        let bodies: Vec<Box<[u8]>> = ticket.players.iter().map(|player| player.body.clone()).collect();
        let slices: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
        let mut inputs = parse_players(&slices).unwrap_or_default();
        self.fill_in_ratings(&compiled, inputs.iter_mut().map(|(input, _)| input));
        let party: Vec<PlayerInput<'_>> = inputs.into_iter().map(|(input, _)| input).collect();
        let facts = compiled.facts(&party, &mut self.queues.list[queue].regions);
        let checked = facts.and_then(|facts| match compiled.never(&facts) {
            Some(why) => Err(why),
            None => Ok(facts),
        });
        match checked {
            Ok(facts) => {
                self.tickets[index].facts = facts;
                self.change_ticket(index, State::Searching, "");
                self.enter_pool(index);
            }
            Err(why) => {
                self.queues.list[queue].figures.failed += 1;
                self.end_ticket(turn, index, State::Failed, &why);
            }
        }
    }

    /// Ratings count as attributes where the queue has a rating.
    pub(super) fn fill_in_ratings<'i, 'a: 'i>(
        &self,
        compiled: &Compiled,
        party: impl Iterator<Item = &'i mut PlayerInput<'a>>,
    ) {
        let Some(rule) = &compiled.set.rating else { return };
        for input in party {
            input.skill = Some(self.ratings.skill(&rule.pool, rule.system, input.role));
        }
    }
}
