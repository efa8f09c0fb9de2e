//! Matches are proposed, answered and broken.

use std::collections::BTreeSet;

use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use super::{GAVE_UP, Match, Placement, Players, Stage};
use crate::id::Id;
use crate::info::{check_id, text};
use crate::key::{BackfillKey, MatchKey, PlayerKey, QueueKey, ServerKey, TicketKey};
use crate::matcher::{FORGOTTEN_PER_INPUT, Matcher, fan_out};
use crate::problem::{Outcome, Problem, not_found};
use crate::queue::{
    Assign, Compiled, Filling, OnMemberLost, OnNo, Placed, RuleKind, State, TicketPlayer, View,
};
use crate::timers::Timer;
use crate::turn::Turn;

/// A match stays known for this long after its room, so that its result can be reported.
const KNOWN_MS: u64 = 3_600_000;

/// Players of a match that are asked to accept it.
#[derive(Clone, Copy)]
enum Recipients {
    All,
    /// Those on a server.
    Server(ServerKey),
    Player(PlayerKey),
}

impl Matcher {
    /// Makes matches of what searches in a queue have found: their players are
    /// asked, or they are placed at once.
    pub(crate) fn propose_taken(&mut self, turn: &mut Turn<'_>, queue: QueueKey, compiled: &Compiled) {
        let mut found = std::mem::take(&mut self.scratch.found);
        // As in the search: one load does not wait for another.
        let touch = |all: u64, player: &TicketPlayer| {
            all ^ player.player.map_or(0, |player| self.people[player].touch())
        };
        let tickets = found.iter().flat_map(|(filling, _)| filling.sides.iter().flatten());
        let players = tickets.flat_map(|ticket| &self.queues[*ticket].players);
        std::hint::black_box(players.fold(0, touch));
        let mut ready = std::mem::take(&mut self.scratch.ready);
        for (filling, backfill) in found.drain(..) {
            ready.extend(self.propose(turn, queue, compiled, filling, backfill));
        }
        for (index, until) in ready.drain(..) {
            self.make_ready(turn, index, until);
        }
        (self.scratch.found, self.scratch.ready) = (found, ready);
    }

    /// Asks the players of a filling, or places it. Its match and until when its seats are held, if
    /// it is ready. Where players would not hear the question, their tickets are held back and the
    /// others search on.
    fn propose(
        &mut self,
        turn: &mut Turn<'_>,
        queue: QueueKey,
        compiled: &Compiled,
        filling: Filling,
        backfill: Option<BackfillKey>,
    ) -> Option<(MatchKey, u64)> {
        let asks = compiled.set.accept.required;
        if asks && filling.sides.iter().flatten().any(|ticket| self.is_out_of_reach(*ticket)) {
            for ticket in filling.sides.into_iter().flatten() {
                if self.is_out_of_reach(ticket) {
                    self.hold_back(ticket);
                } else {
                    self.enter_pool(ticket);
                }
            }
            return None;
        }
        let index = self.matches.next_key();
        let id = self.new_id(index.index());
        let deadline = self.now + compiled.set.accept.timeout_s * 1_000;
        let Filling { sides, level, quality, region } = filling;
        self.queues.propose(queue, &sides, (id, region), asks);
        let shared = self.shared(compiled, &sides, level, backfill);
        if let Some(backfill) = backfill {
            self.queues.set_pending(backfill, Some(index));
        }
        let how = (level, quality, region);
        self.matches.propose(Match::new(id, queue, sides, how, backfill, deadline, shared));
        if asks {
            self.timers.set(deadline, Timer::Proposal(id));
            self.tell_proposed(turn, index, compiled.set.accept.reveal, Recipients::All);
            return None;
        }
        match self.place(turn, index, compiled) {
            Placement::Ready(until) => Some((index, until)),
            Placement::Waits | Placement::Refused => None,
        }
    }

    /// Entries that all players of a match share by the rules that ask for it, with those whom a
    /// backfill finds there.
    fn shared(
        &self,
        compiled: &Compiled,
        sides: &[Vec<TicketKey>],
        level: u8,
        backfill: Option<BackfillKey>,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let rules = &compiled.levels[usize::from(level)].rules;
        let mut overlaps = rules.iter().filter(|rule| rule.rule.kind == RuleKind::Overlap).peekable();
        if overlaps.peek().is_none() {
            return out;
        }
        let fixed = backfill.map(|index| self.queues[index].start(compiled, self.now).fixed);
        let newcomers = sides.iter().map(|side| side.iter().map(|ticket| &self.queues[*ticket].facts));
        let mut all: Vec<Vec<Placed<'_>>> =
            newcomers.map(|side| side.map(|facts| (facts, level)).collect()).collect();
        for (side, there) in all.iter_mut().zip(fixed.unwrap_or_default()) {
            side.extend(there.into_iter().map(|facts| (facts, level)));
        }
        let view = View { compiled, sides: &all, regions: &[], level };
        for rule in overlaps {
            let Some(shared) = view.overlap(rule) else { continue };
            let name = Some(&rule.rule.name).filter(|name| !name.is_empty()).or(rule.rule.key.as_ref());
            write_nested(&mut out, 8, |out| {
                write_bytes(out, 1, name.map_or(&[], |name| name.as_bytes()));
                shared.into_iter().for_each(|entry| write_bytes(out, 2, entry));
            });
        }
        out
    }

    fn find_match(&self, id: &[u8]) -> Option<MatchKey> {
        let id = Id::parse(id)?;
        self.match_of(id)
    }

    pub(crate) fn match_of(&self, id: Id) -> Option<MatchKey> {
        self.matches.find(id)
    }

    pub(crate) fn players_of_match(&self, index: MatchKey) -> Players {
        let mut players = Players::new();
        self.matches[index].sides().iter().for_each(|side| self.players_of(side, &mut players));
        players
    }

    pub(crate) fn players_of(&self, tickets: &[TicketKey], players: &mut Players) {
        for ticket in tickets {
            players.extend(self.queues[*ticket].players.iter().filter_map(|player| player.player));
        }
    }

    /// A lost server is back: its players are asked again to accept the matches that wait for them.
    pub(crate) fn propose_again(&mut self, turn: &mut Turn<'_>, server: ServerKey) {
        if !self.queues.has_proposed() {
            return;
        }
        let found = self.proposed_to(self.people.players_of(server));
        self.tell_again(turn, found, Recipients::Server(server));
    }

    /// Players that moved to another server are asked through that one.
    pub(crate) fn propose_to_moved(&mut self, turn: &mut Turn<'_>) {
        while let Some(player) = self.people.take_moved() {
            let found = self.proposed_to(std::iter::once(player));
            self.tell_again(turn, found, Recipients::Player(player));
        }
    }

    /// Matches that wait for these players to accept them.
    fn proposed_to(&self, players: impl Iterator<Item = PlayerKey>) -> BTreeSet<MatchKey> {
        let tickets = players.flat_map(|player| self.people[player].tickets().iter().copied());
        let proposed = tickets.filter(|ticket| self.queues[*ticket].state == State::Proposed);
        proposed.filter_map(|ticket| self.queues[ticket].matched.and_then(|id| self.match_of(id))).collect()
    }

    fn tell_again(&mut self, turn: &mut Turn<'_>, found: BTreeSet<MatchKey>, to: Recipients) {
        for index in found {
            let reveal = self.queues[self.matches[index].queue()].rules().set.accept.reveal;
            self.tell_proposed(turn, index, reveal, to);
        }
    }

    /// Asks players of a match to accept it.
    fn tell_proposed(&mut self, turn: &mut Turn<'_>, index: MatchKey, reveal: bool, to: Recipients) {
        let players = self.players_of_match(index);
        let found = &self.matches[index];
        for ticket in found.tickets() {
            self.scratch.event.clear();
            let text = self.queues[ticket].text();
            let mut event = std::mem::take(&mut self.scratch.event);
            write_nested(&mut event, Event::MATCH_PROPOSED, |out| {
                write_bytes(out, 1, &found.id().text());
                write_u64(out, 2, found.deadline());
                write_u64(out, 3, players.len() as u64);
                write_bytes(out, 4, &text);
                for player in players.iter().filter(|_| reveal) {
                    write_bytes(out, 5, self.people[*player].id());
                }
            });
            let own = self.queues[ticket].players.iter().filter_map(|player| player.player);
            let own = own.filter(|player| match to {
                Recipients::All => true,
                Recipients::Server(server) => self.people[*player].server() == server,
                Recipients::Player(one) => *player == one,
            });
            fan_out(&self.people, own, &event, 0, turn.notices);
            self.scratch.event = event;
        }
    }

    pub(crate) fn accept_match(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut id, mut ticket, mut role, mut yes) = (&[][..], &[][..], &[][..], false);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => id = text(&field)?,
                2 => ticket = text(&field)?,
                3 => role = text(&field)?,
                4 => yes = field.scalar != 0,
                _ => {}
            }
        }
        check_id(role, "RoleID")?;
        let closed = || Problem::new(Status::NotProposed, "the match does not wait for this answer");
        let index = self
            .find_match(id)
            .filter(|index| self.matches[*index].stage() == Stage::Proposed)
            .ok_or_else(closed)?;
        let ticket = self.queues.find_ticket(ticket)?;
        if self.queues[ticket].matched != Some(self.matches[index].id()) {
            return Err(closed());
        }
        let player = self.player_of(ticket, role)?;
        self.check_acts_for(turn.caller, player)?;
        if !yes {
            let queue = self.matches[index].queue();
            self.cool_down(player, queue);
            let requeue = self.queues[queue].rules().set.accept.on_decline == OnNo::Requeue;
            self.queues.count(queue, |figures| &mut figures.declined);
            self.refuse_match(turn, index, ticket, requeue, "declined");
            return Ok(());
        }
        let accepted = self.matches.accept(index, player);
        if accepted == self.players_of_match(index).len() {
            for ticket in self.matches[index].tickets() {
                self.queues.change_ticket(ticket, State::Placing, "");
            }
            let compiled = self.queues[self.matches[index].queue()].rules();
            if let Placement::Ready(until) = self.place(turn, index, &compiled) {
                self.make_ready(turn, index, until);
            }
        }
        Ok(())
    }

    /// A proposed ticket was cancelled by its owner, which counts as declining.
    pub(crate) fn decline(&mut self, turn: &mut Turn<'_>, ticket: TicketKey) {
        let players: Players =
            self.queues[ticket].players.iter().filter_map(|player| player.player).collect();
        for player in players {
            self.cool_down(player, self.queues[ticket].queue);
        }
        if let Some(index) = self.queues[ticket].matched.and_then(|id| self.match_of(id)) {
            self.queues.count(self.queues[ticket].queue, |figures| &mut figures.declined);
            self.refuse_match(turn, index, ticket, false, "declined");
        }
    }

    /// A player of a proposed ticket is gone: the ticket ends, or searches on without `lost`. The
    /// other tickets search on.
    pub(crate) fn withdraw(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: TicketKey,
        lost: Option<PlayerKey>,
        reason: &str,
    ) {
        let Some(index) = self.queues[ticket].matched.and_then(|id| self.match_of(id)) else { return };
        for own in self.break_match(turn, index, reason) {
            match lost {
                _ if own != ticket => self.return_ticket(turn, own),
                Some(player) => {
                    self.queues.unmatch(own);
                    self.shrink(turn, own, player);
                }
                None => self.end_ticket(turn, own, State::Cancelled, reason),
            }
        }
    }

    /// Ends a proposal because of one ticket; the others search on.
    fn refuse_match(
        &mut self,
        turn: &mut Turn<'_>,
        index: MatchKey,
        refused: TicketKey,
        requeue: bool,
        reason: &str,
    ) {
        for ticket in self.break_match(turn, index, reason) {
            if ticket == refused && !requeue {
                self.end_ticket(turn, ticket, State::Cancelled, reason);
            } else {
                self.return_ticket(turn, ticket);
            }
        }
    }

    /// The deadline of a proposal: who said yes searches on, and who could not answer because its
    /// server is lost; the others as configured.
    ///
    /// `was_deaf`: the matcher took no answers when the time ran out, because it stood still or had
    /// lost the lease on its area. No player is counted as having declined then, as after a
    /// restart.
    pub(crate) fn end_proposal(&mut self, turn: &mut Turn<'_>, id: Id, was_deaf: bool) {
        let open = |index: &MatchKey| self.matches[*index].stage() == Stage::Proposed;
        let Some(index) = self.match_of(id).filter(open) else { return };
        if was_deaf {
            return self.reopen_proposal(turn, index);
        }
        let queue = self.matches[index].queue();
        let requeue = self.queues[queue].rules().set.accept.on_silence == OnNo::Requeue;
        let accepted = self.matches[index].accepted().to_vec();
        for ticket in self.break_match(turn, index, "no_answer") {
            let mut players = self.queues[ticket].players.iter().filter_map(|player| player.player);
            let all = players.all(|player| accepted.contains(&player));
            if all || requeue || self.is_out_of_reach(ticket) {
                self.return_ticket(turn, ticket);
            } else {
                self.end_ticket(turn, ticket, State::Cancelled, "no_answer");
            }
        }
    }

    /// Tells everybody that a match is off and forgets it. Gives its tickets.
    fn break_match(&mut self, turn: &mut Turn<'_>, index: MatchKey, reason: &str) -> Vec<TicketKey> {
        let players = self.players_of_match(index);
        let Some(found) = self.matches.remove(index) else { return Vec::new() };
        self.event(Event::MATCH_CANCELLED, |out| {
            write_bytes(out, 1, &found.id().text());
            write_bytes(out, 2, reason.as_bytes());
            if let Some(room) = found.room() {
                write_bytes(out, 20, &room.text());
            }
        });
        fan_out(&self.people, players.iter().copied(), &self.scratch.event, 0, turn.notices);
        if let Some(backfill) = found.backfill() {
            self.queues.set_pending(backfill, None);
        }
        found.tickets()
    }

    /// Returns whether a match has at most so many players for each side.
    pub(crate) fn fits(&self, index: MatchKey, open: &[u32]) -> bool {
        let players =
            |side: &Vec<TicketKey>| side.iter().map(|ticket| self.queues[*ticket].players.len()).sum();
        self.matches[index]
            .sides()
            .iter()
            .map(players)
            .zip(open)
            .all(|(size, open): (usize, _)| size <= *open as usize)
    }

    /// Breaks the match that a backfill waits for; its tickets search on.
    pub(crate) fn break_match_of_backfill(&mut self, turn: &mut Turn<'_>, index: MatchKey, reason: &str) {
        for ticket in self.break_match(turn, index, reason) {
            self.return_ticket(turn, ticket);
        }
    }

    /// Open proposals of a queue whose rules have changed are off.
    pub(crate) fn break_proposals(&mut self, turn: &mut Turn<'_>, queue: QueueKey) {
        let open = |found: &Match| found.queue() == queue && found.stage() == Stage::Proposed;
        let all: Vec<MatchKey> =
            self.matches.iter().filter(|(_, found)| open(found)).map(|(at, _)| at).collect();
        for index in all {
            self.break_match_of_backfill(turn, index, "rules_changed");
        }
    }

    fn return_ticket(&mut self, turn: &mut Turn<'_>, ticket: TicketKey) {
        self.queues.unmatch(ticket);
        if self.keep_rest_or_end(turn, ticket) {
            self.search_or_hold(turn, ticket);
        }
    }

    /// The match of a ticket got no place, by `reason`: the ticket is held back for a while, so
    /// that others are matched, and policy or allocator are not asked for the same players in every
    /// tick.
    fn hold_ticket(&mut self, turn: &mut Turn<'_>, ticket: TicketKey, reason: &str) {
        if self.queues[ticket].state != State::Placing {
            return;
        }
        self.queues.unmatch(ticket);
        if !self.keep_rest_or_end(turn, ticket) {
            return;
        }
        self.queues.hold(ticket, reason, self.now);
        self.schedule(self.queues[ticket].queue);
        self.tell_ticket(turn, ticket);
    }

    /// Players of a ticket may have gone while it was placed: it goes on without them, or ends.
    /// Returns whether it goes on.
    fn keep_rest_or_end(&mut self, turn: &mut Turn<'_>, ticket: TicketKey) -> bool {
        if self.keep_rest(ticket) {
            return true;
        }
        let gone = self.queues[ticket].reason.clone();
        self.queues.count(self.queues[ticket].queue, |figures| &mut figures.cancelled);
        self.end_ticket(turn, ticket, State::Cancelled, &String::from_utf8_lossy(&gone));
        false
    }

    /// The others go on if the queue of the ticket says so. False if the ticket ends.
    fn keep_rest(&mut self, key: TicketKey) -> bool {
        let ticket = &self.queues[key];
        if ticket.reason.is_empty() {
            return true;
        }
        let shrinks = self.queues[ticket.queue].rules().set.on_member_lost == OnMemberLost::Shrink;
        let lost = ticket.players.iter().filter(|own| own.is_lost());
        let gone: Players = lost.filter_map(|own| own.player).collect();
        if !shrinks || gone.len() == ticket.players.len() || &*ticket.reason == GAVE_UP.as_bytes() {
            return false;
        }
        for player in gone {
            self.queues.drop_player(key, player);
            self.people.end_ticket(player, key);
        }
        true
    }

    fn cool_down(&mut self, player: PlayerKey, queue: QueueKey) {
        let seconds = self.queues[queue].rules().set.accept.cooldown_s;
        if seconds > 0 {
            let until = self.now + seconds * 1_000;
            self.people.cool_down(player, until);
            self.timers.set(until, Timer::Cooldown(player));
        }
    }

    pub(crate) fn end_cooldown(&mut self, player: PlayerKey) {
        self.people.let_go_of(player);
    }

    /// No server was given: the room goes, the tickets search on later.
    pub(crate) fn end_unassigned(&mut self, turn: &mut Turn<'_>, id: Id, reason: &str) {
        let waits = |index: &MatchKey| self.matches[*index].stage() == Stage::Assigning;
        let Some(index) = self.match_of(id).filter(waits) else { return };
        let room = self.matches[index].room();
        for ticket in self.break_match(turn, index, reason) {
            self.hold_ticket(turn, ticket, reason);
        }
        let room = room.and_then(|room| self.rooms.find(room));
        if let Some(room) = room.filter(|room| !self.rooms[*room].deleting()) {
            self.begin_end(turn, room);
        }
    }

    /// After a restart: cancels open proposals without a penalty. A match that waits for its server
    /// still does, until the same time; the question to a policy is lost, and the match with it.
    pub(crate) fn reopen_proposals(&mut self, turn: &mut Turn<'_>) {
        let open: Vec<MatchKey> =
            self.matches.iter().filter(|(_, m)| m.stage() != Stage::Made).map(|(i, _)| i).collect();
        for index in open {
            if !self.matches.has(index) {
                continue;
            }
            let found = &self.matches[index];
            if found.stage() != Stage::Assigning {
                self.reopen_proposal(turn, index);
            } else if self.queues[found.queue()].rules().set.assign == Assign::Policy {
                self.end_unassigned(turn, found.id(), "policy_unavailable");
            }
        }
    }

    /// Cancels a proposal without a penalty: its tickets search again.
    fn reopen_proposal(&mut self, turn: &mut Turn<'_>, index: MatchKey) {
        for ticket in self.break_match(turn, index, "restarted") {
            self.return_ticket(turn, ticket);
        }
    }

    /// A match's room is gone: the match stays known for its result.
    pub(crate) fn room_of_match_ended(&mut self, matched: Option<Id>) {
        if let Some(index) = matched.and_then(|id| self.match_of(id)) {
            self.matches.end(index, self.now + KNOWN_MS);
        }
    }

    /// Forgets matches whose time is over, a bounded number of them.
    pub(crate) fn forget_matches(&mut self) {
        for _ in 0..FORGOTTEN_PER_INPUT {
            if !self.matches.forget_one(self.now) {
                return;
            }
        }
    }

    /// The match that a request names by its id or its room's.
    pub(crate) fn match_named(&self, id: &[u8], room: &[u8]) -> Outcome<MatchKey> {
        let found = if id.is_empty() {
            let room = self.find_room(room)?;
            self.rooms[room].matched().and_then(|id| self.match_of(id))
        } else {
            self.find_match(id)
        };
        found
            .filter(|index| self.matches[*index].stage() == Stage::Made)
            .ok_or_else(|| not_found("match does not exist"))
    }
}
