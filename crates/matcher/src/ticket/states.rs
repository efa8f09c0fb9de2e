//! Begin, status notifications and end of tickets.

use throng_wire::matcher::{Event, write_bytes, write_nested, write_u64};

use crate::key::{PlayerKey, TicketKey};
use crate::matcher::{Matcher, fan_out};
use crate::queue::{Compiled, OnMemberLost, PlayerInput, State, parse_players};
use crate::turn::Turn;

/// Reason of a ticket that is held back because a server of its players is lost.
pub(crate) const SERVER_LOST: &str = "server_lost";
/// Time after which it is looked at again.
const OUT_OF_REACH_MS: u64 = 1_000;

impl Matcher {
    pub(crate) fn write_ticket(&self, index: TicketKey, out: &mut Vec<u8>) {
        let ticket = &self.queues[index];
        let queue = &self.queues[ticket.queue];
        let now = self.clock.max(self.now);
        write_bytes(out, 1, &ticket.text());
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

    /// A ticket begins to search.
    pub(crate) fn enter_pool(&mut self, index: TicketKey) {
        self.queues.enter_pool(index, self.now);
        self.look_for(index);
    }

    /// Sees to it that the queue of a ticket that entered its pool searches, and tells how it
    /// stands.
    fn look_for(&mut self, index: TicketKey) {
        let queue = self.queues[index].queue;
        self.schedule(queue);
        self.begin_updates(queue);
    }

    /// A ticket searches on, under the rules as they are now.
    pub(crate) fn go_on(&mut self, turn: &mut Turn<'_>, index: TicketKey) {
        self.recheck(turn, index);
        if self.queues[index].state == State::Searching {
            self.tell_ticket(turn, index);
        }
    }

    /// A ticket searches on, once all of its players can hear of a proposal.
    pub(crate) fn search_or_hold(&mut self, turn: &mut Turn<'_>, index: TicketKey) {
        if self.is_out_of_reach(index) {
            self.hold_back(index);
        } else {
            self.go_on(turn, index);
        }
    }

    /// Returns whether a player of a ticket would not hear of a proposal, because its server is
    /// lost. Queues without acceptance match such tickets all the same, and keep their seats.
    pub(crate) fn is_out_of_reach(&self, index: TicketKey) -> bool {
        let ticket = &self.queues[index];
        let mut players = ticket.players.iter().filter_map(|own| own.player);
        self.queues[ticket.queue].rules().set.accept.required
            && players.any(|player| self.people[self.people[player].server()].is_lost())
    }

    /// Holds a ticket back that has left its pool, until its players can hear of a proposal again.
    pub(crate) fn hold_back(&mut self, index: TicketKey) {
        let ticket = &self.queues[index];
        if ticket.state != State::Searching || &*ticket.reason != SERVER_LOST.as_bytes() {
            self.queues.change_ticket(index, State::Searching, SERVER_LOST);
        }
        self.queues.hold_until(index, self.now + OUT_OF_REACH_MS);
        self.schedule(self.queues[index].queue);
    }

    /// A ticket's waiting time has reached a level or its end, or it was held back until now.
    pub(crate) fn ticket_is_due(
        &mut self,
        turn: &mut Turn<'_>,
        index: TicketKey,
        at: u64,
        compiled: &Compiled,
    ) {
        if self.queues.held_until(index).is_some() && at < self.queues[index].expires {
            self.queues.release(index);
            return self.search_or_hold(turn, index);
        }
        if !self.queues.relax(index, at, compiled) {
            self.queues.count(self.queues[index].queue, |figures| &mut figures.timed_out);
            self.end_ticket(turn, index, State::TimedOut, "timeout");
        }
    }

    /// A ticket's end without a match: its players are free, it stays readable for a while.
    pub(crate) fn end_ticket(&mut self, turn: &mut Turn<'_>, index: TicketKey, state: State, reason: &str) {
        self.queues.leave_pool(index);
        self.queues.change_ticket(index, state, reason);
        self.tell_ticket(turn, index);
        let people = &mut self.people;
        self.queues.end_ticket(index, self.now, |player| people.end_ticket(player, index));
    }

    /// Tells the servers of a live ticket's players how it stands.
    pub(crate) fn tell_ticket(&mut self, turn: &mut Turn<'_>, index: TicketKey) {
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        write_nested(&mut event, Event::TICKET_UPDATE, |out| {
            write_nested(out, 1, |out| self.write_ticket(index, out));
        });
        let players = self.queues[index].players.iter().filter_map(|player| player.player);
        fan_out(&self.people, players, &event, 0, turn.notices);
        self.scratch.event = event;
    }

    /// A player is gone: its tickets end, or continue with the others.
    pub(crate) fn drop_from_tickets(&mut self, turn: &mut Turn<'_>, player: PlayerKey, reason: &str) {
        for index in self.people[player].tickets().to_vec() {
            self.drop_from_ticket(turn, index, player, reason);
        }
    }

    /// A player of a ticket is gone: the ticket ends, or continues with the others.
    pub(super) fn drop_from_ticket(
        &mut self,
        turn: &mut Turn<'_>,
        index: TicketKey,
        player: PlayerKey,
        reason: &str,
    ) {
        let ticket = &self.queues[index];
        let queue = ticket.queue;
        let on_lost = self.queues[queue].rules().set.on_member_lost;
        let shrinks = on_lost == OnMemberLost::Shrink && ticket.players.len() > 1;
        match ticket.state {
            State::Searching if !shrinks => {
                self.queues.count(queue, |figures| &mut figures.cancelled);
                self.end_ticket(turn, index, State::Cancelled, reason);
            }
            State::Searching => self.shrink(turn, index, player),
            State::Proposed => self.withdraw(turn, index, shrinks.then_some(player), reason),
            // The seat outlasts the connection. Without a server for the match the search ends.
            State::Placing => {
                if self.queues.lose_player(index, player) {
                    self.queues.change_ticket(index, State::Placing, reason);
                }
            }
            State::Matched | State::Cancelled | State::TimedOut | State::Failed => {}
        }
    }

    /// Removes a player from a ticket that is in no match, and notifies the others.
    pub(crate) fn shrink(&mut self, turn: &mut Turn<'_>, index: TicketKey, player: PlayerKey) {
        self.queues.leave_pool(index);
        self.queues.drop_player(index, player);
        self.people.lose_ticket(player, index);
        if self.is_out_of_reach(index) {
            self.hold_back(index);
            self.tell_ticket(turn, index);
        } else {
            self.go_on(turn, index);
        }
        self.people.release(player);
    }

    /// Reads a ticket's players again, under the rules as they are now, and lets it search or fail.
    pub(crate) fn recheck(&mut self, turn: &mut Turn<'_>, index: TicketKey) {
        let ticket = &self.queues[index];
        let queue = ticket.queue;
        let compiled = self.queues[queue].rules();
        let bodies: Vec<Box<[u8]>> = ticket.players.iter().map(|player| player.body.clone()).collect();
        let slices: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
        let mut inputs = parse_players(&slices).unwrap_or_default();
        self.fill_in_ratings(&compiled, inputs.iter_mut().map(|(input, _)| input));
        let party: Vec<PlayerInput<'_>> = inputs.into_iter().map(|(input, _)| input).collect();
        let facts = self.queues.facts(queue, &party);
        let checked = facts.and_then(|facts| match compiled.never(&facts) {
            Some(why) => Err(why),
            None => Ok(facts),
        });
        match checked {
            Ok(facts) => {
                self.queues.search_again(index, facts, self.now);
                self.look_for(index);
            }
            Err(why) => {
                self.queues.count(queue, |figures| &mut figures.failed);
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
