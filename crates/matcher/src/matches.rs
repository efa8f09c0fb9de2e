//! From a filling to a room: proposals, answers, seats, the match's server.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use crate::claims::{Limit, RoomCopy};
use crate::config::{Caller, HookPoint, ModeRules, OnFull, Scope};
use crate::history::Change;
use crate::id::Id;
use crate::info::{DataMap, ROOM_DATA_FIELD, RoleRef, Text, check_id, check_len, entry, text};
use crate::matcher::{Matcher, fan_out, require};
use crate::notices::Notices;
use crate::people::People;
use crate::problem::{Outcome, Problem, forbidden, not_found, quote};
use crate::queue::{Assign, Bucket, Compiled, Filling, Kind, OnNo, PlayerFacts, assign};
use crate::room::{Room, Seat};
use crate::sides::Sides;
use crate::slab::{NONE, Slab};
use crate::ticket::{FORGOTTEN_PER_INPUT, State, Ticket, TicketPlayer};
use crate::timers::Timer;

/// A match stays known for this long after its room, so that its result can be reported.
const KNOWN_MS: u64 = 3_600_000;
const CONNECTION_BYTES_MAX: usize = 4 << 10;
/// Key of a room's data that says where to connect.
const CONNECTION_KEY: &str = "connection";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// Its players are asked.
    Proposed,
    /// Its room is there and waits for a server.
    Assigning,
    /// It is a room like any other.
    Made,
    /// Its players are claimed on other shards.
    Claiming,
    /// It waits for seats in a room of another shard.
    Seating,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Match {
    pub(crate) id: Id,
    pub(crate) queue: u32,
    pub(crate) stage: Stage,
    /// Tickets by side, until it is made.
    pub(crate) sides: Vec<Vec<u32>>,
    region: Option<u16>,
    pub(crate) quality: f64,
    level: u8,
    pub(crate) backfill: Option<u32>,
    pub(crate) room: Option<Id>,
    pub(crate) deadline: u64,
    /// Players who said yes.
    accepted: Vec<u32>,
    /// Player to position, once placed.
    pub(crate) positions: Vec<(u32, u8)>,
}

/// What has come of placing a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    /// Its players are to be [told](Matcher::make_ready); until when their seats are held.
    Ready(u64),
    /// It waits for a server.
    Waits,
    /// The backfill's room does not take them: the tickets search on.
    Refused,
}

/// Players of some tickets.
type Players = SmallVec<[u32; 16]>;

impl Match {
    fn tickets(&self) -> Vec<u32> {
        self.sides.iter().flatten().copied().collect()
    }
}

/// Ids of the players of tickets.
fn ids_of<'a>(
    tickets: &'a Slab<Ticket>,
    people: &'a People,
    side: &'a [u32],
) -> impl Iterator<Item = &'a [u8]> {
    let players = side.iter().flat_map(|ticket| &tickets[*ticket].players);
    players.map(|player| &people.players[player.player].id[..])
}

impl Matcher {
    /// The mode that a queue's rooms have: its name, room for all of its players.
    pub(crate) fn put_queue_mode(&mut self, compiled: &Compiled) -> u16 {
        let name = &compiled.set.name;
        let on_full = if compiled.set.backfill.is_some() { OnFull::Keep } else { OnFull::Seal };
        let known = self.config.modes.get(name).cloned();
        let rules = known.unwrap_or(ModeRules { on_full, hidden: true, ..ModeRules::default() });
        self.modes.put(name, ModeRules { capacity: compiled.set.players_max(), ..rules })
    }

    /// A search has found a match: its tickets search no more. What is to be done with it comes with the others of its
    /// batch, each step for all of them: so a step's code and the players' entries are at hand.
    pub(crate) fn take(&mut self, filling: Filling, backfill: Option<u32>, compiled: &Compiled) {
        let tickets: SmallVec<[u32; 16]> = filling.sides.iter().flatten().copied().collect();
        self.leave_pool_together(&tickets, compiled);
        self.scratch.found.push((filling, backfill));
    }

    /// Makes matches of the fillings of a queue that were [taken](Matcher::take): their players are asked, or they are
    /// placed at once.
    pub(crate) fn propose_taken(&mut self, queue: u32, compiled: &Compiled, notices: &mut Notices) {
        let mut found = std::mem::take(&mut self.scratch.found);
        // As in the search: one load does not wait for another.
        let touch = |all: u64, player: &TicketPlayer| {
            let player = &self.people.players[player.player];
            all ^ player.tickets.len() as u64 ^ u64::from(player.holds) ^ player.id.len() as u64
        };
        let tickets = found.iter().flat_map(|(filling, _)| filling.sides.iter().flatten());
        let players = tickets.flat_map(|ticket| &self.tickets[*ticket].players);
        std::hint::black_box(players.fold(0, touch));
        let mut ready = std::mem::take(&mut self.scratch.ready);
        for (filling, backfill) in found.drain(..) {
            ready.extend(self.propose(queue, compiled, filling, backfill, notices));
        }
        for (index, until) in ready.drain(..) {
            self.make_ready(index, until, None, notices);
        }
        (self.scratch.found, self.scratch.ready) = (found, ready);
    }

    /// Asks the players of a filling, or places it. Its match and until when its seats are held, if it is ready.
    fn propose(
        &mut self,
        queue: u32,
        compiled: &Compiled,
        filling: Filling,
        backfill: Option<u32>,
        notices: &mut Notices,
    ) -> Option<(u32, u64)> {
        let index = self.matches.next_index();
        let id = self.new_id(index);
        let asks = compiled.set.accept.required;
        let deadline = self.now + compiled.set.accept.timeout_s * 1_000;
        let Filling { sides, level, quality, region } = filling;
        let state = if asks { State::Proposed } else { State::Placing };
        for ticket in sides.iter().flatten() {
            let ticket = &mut self.tickets[*ticket];
            ticket.rev += 1;
            (ticket.state, ticket.matched, ticket.region) = (state, Some(id), region);
        }
        if asks {
            self.queues.list[queue].proposed += sides.iter().map(Vec::len).sum::<usize>() as u64;
        }
        if let Some(backfill) = backfill {
            self.backfills[backfill].pending = Some(index);
        }
        self.matches.insert(Match {
            id,
            queue,
            stage: Stage::Proposed,
            sides,
            region,
            quality,
            level,
            backfill,
            room: None,
            deadline,
            accepted: Vec::new(),
            positions: Vec::new(),
        });
        if asks {
            self.timers.set(deadline, Timer::Proposal(id));
            self.tell_proposed(index, compiled.set.accept.reveal, notices);
            return None;
        }
        self.place(index, compiled, notices)
    }

    fn find_match(&self, id: &[u8]) -> Option<u32> {
        let id = Id::parse(id)?;
        self.match_of(id)
    }

    pub(crate) fn match_of(&self, id: Id) -> Option<u32> {
        self.matches.get(id.index).filter(|found| found.id == id).map(|_| id.index)
    }

    pub(crate) fn players_of_match(&self, index: u32) -> Players {
        let mut players = Players::new();
        self.matches[index].sides.iter().for_each(|side| self.players_of(side, &mut players));
        players
    }

    fn players_of(&self, tickets: &[u32], players: &mut Players) {
        for ticket in tickets {
            self.tickets[*ticket].players.iter().for_each(|player| players.push(player.player));
        }
    }

    pub(crate) fn region_of_match(&self, index: u32) -> Option<u16> {
        self.matches[index].region
    }

    fn tell_proposed(&mut self, index: u32, reveal: bool, notices: &mut Notices) {
        let players = self.players_of_match(index);
        let found = &self.matches[index];
        for ticket in found.tickets() {
            self.scratch.event.clear();
            let text = self.ticket_text(ticket);
            let mut event = std::mem::take(&mut self.scratch.event);
            write_nested(&mut event, Event::MATCH_PROPOSED, |out| {
                write_bytes(out, 1, &found.id.text());
                write_u64(out, 2, found.deadline);
                write_u64(out, 3, players.len() as u64);
                write_bytes(out, 4, &text);
                for player in players.iter().filter(|_| reveal) {
                    write_bytes(out, 5, &self.people.players[*player].id);
                }
            });
            let own = self.tickets[ticket].players.iter().map(|player| player.player);
            fan_out(&self.people, own, self.tickets[ticket].players.len(), &event, 0, notices);
            self.scratch.event = event;
        }
    }

    pub(crate) fn accept_match(&mut self, caller: Caller<'_>, body: &[u8], notices: &mut Notices) -> Outcome {
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
            .filter(|index| self.matches[*index].stage == Stage::Proposed)
            .ok_or_else(closed)?;
        let ticket = self.find_ticket(ticket)?;
        if self.tickets[ticket].matched != Some(self.matches[index].id) {
            return Err(closed());
        }
        let player = self
            .people
            .player(role)
            .filter(|player| self.tickets[ticket].players.iter().any(|member| member.player == *player))
            .ok_or_else(|| Problem::new(Status::NotAMember, "the role is not in the ticket"))?;
        self.check_acts_for(caller, player)?;
        if !yes {
            let queue = self.matches[index].queue;
            self.cool_down(player, queue);
            let requeue = self.queues.list[queue].rules().set.accept.on_decline == OnNo::Requeue;
            self.queues.list[queue].figures.declined += 1;
            self.refuse_match(index, ticket, requeue, "declined", notices);
            return Ok(());
        }
        let found = &mut self.matches[index];
        if !found.accepted.contains(&player) {
            found.accepted.push(player);
        }
        let accepted = found.accepted.len();
        if accepted == self.players_of_match(index).len() {
            for ticket in self.matches[index].tickets() {
                self.change_ticket(ticket, State::Placing, "");
            }
            let compiled = self.queues.list[self.matches[index].queue].rules();
            if let Some((index, until)) = self.place(index, &compiled, notices) {
                self.make_ready(index, until, None, notices);
            }
        }
        Ok(())
    }

    /// A proposed ticket was cancelled by its owner, which counts as declining.
    pub(crate) fn decline(&mut self, ticket: u32, notices: &mut Notices) {
        let players: Vec<u32> = self.tickets[ticket].players.iter().map(|player| player.player).collect();
        for player in players {
            self.cool_down(player, self.tickets[ticket].queue);
        }
        if let Some(index) = self.tickets[ticket].matched.and_then(|id| self.match_of(id)) {
            self.queues.list[self.tickets[ticket].queue].figures.declined += 1;
            self.refuse_match(index, ticket, false, "declined", notices);
        }
    }

    /// A player of a proposed ticket is gone. With `requeue` the ticket searches on, as the others do.
    pub(crate) fn withdraw(&mut self, ticket: u32, requeue: bool, reason: &str, notices: &mut Notices) {
        if let Some(index) = self.tickets[ticket].matched.and_then(|id| self.match_of(id)) {
            self.refuse_match(index, ticket, requeue, reason, notices);
        }
    }

    /// Ends a proposal because of one ticket; the others search on.
    fn refuse_match(&mut self, index: u32, refused: u32, requeue: bool, reason: &str, notices: &mut Notices) {
        for ticket in self.break_match(index, reason, notices) {
            if ticket == refused && !requeue {
                self.end_ticket(ticket, State::Cancelled, reason, notices);
            } else {
                self.return_ticket(ticket, notices);
            }
        }
    }

    /// The deadline of a proposal: who said yes searches on, the others as configured.
    pub(crate) fn end_proposal(&mut self, id: Id, notices: &mut Notices) {
        let open = |index: &u32| self.matches[*index].stage == Stage::Proposed;
        let Some(index) = self.match_of(id).filter(open) else { return };
        let queue = self.matches[index].queue;
        let requeue = self.queues.list[queue].rules().set.accept.on_silence == OnNo::Requeue;
        let accepted = self.matches[index].accepted.clone();
        for ticket in self.break_match(index, "no_answer", notices) {
            let all = self.tickets[ticket].players.iter().all(|player| accepted.contains(&player.player));
            if all || requeue {
                self.return_ticket(ticket, notices);
            } else {
                self.end_ticket(ticket, State::Cancelled, "no_answer", notices);
            }
        }
    }

    /// Tells everybody that a match is off and forgets it. Gives its tickets.
    fn break_match(&mut self, index: u32, reason: &str, notices: &mut Notices) -> Vec<u32> {
        let players = self.players_of_match(index);
        let Some(found) = self.matches.remove(index) else { return Vec::new() };
        self.unclaim_match(found.id);
        self.event(Event::MATCH_CANCELLED, |out| {
            write_bytes(out, 1, &found.id.text());
            write_bytes(out, 2, reason.as_bytes());
            if let Some(room) = found.room {
                write_bytes(out, 20, &room.text());
            }
        });
        fan_out(&self.people, players.iter().copied(), players.len(), &self.scratch.event, 0, notices);
        if let Some(backfill) = found.backfill.and_then(|backfill| self.backfills.get_mut(backfill)) {
            backfill.pending = None;
        }
        found.tickets()
    }

    /// Whether a match has at most so many players for each side.
    pub(crate) fn fits(&self, index: u32, open: &[u32]) -> bool {
        let players = |side: &Vec<u32>| side.iter().map(|ticket| self.tickets[*ticket].players.len()).sum();
        self.matches[index]
            .sides
            .iter()
            .map(players)
            .zip(open)
            .all(|(size, open): (usize, _)| size <= *open as usize)
    }

    /// Breaks the match that a backfill waits for; its tickets search on.
    pub(crate) fn break_match_of_backfill(&mut self, index: u32, reason: &str, notices: &mut Notices) {
        for ticket in self.break_match(index, reason, notices) {
            self.return_ticket(ticket, notices);
        }
    }

    /// Open proposals of a queue whose rules have changed are off.
    pub(crate) fn break_proposals(&mut self, queue: u32, notices: &mut Notices) {
        let is_open = |stage| matches!(stage, Stage::Proposed | Stage::Claiming);
        let open = |found: &Match| found.queue == queue && is_open(found.stage);
        let all: Vec<u32> = self.matches.iter().filter(|(_, found)| open(found)).map(|(at, _)| at).collect();
        for index in all {
            self.break_match_of_backfill(index, "rules_changed", notices);
        }
    }

    fn return_ticket(&mut self, ticket: u32, notices: &mut Notices) {
        let entry = &mut self.tickets[ticket];
        (entry.matched, entry.room, entry.region) = (None, None, None);
        // The rules may be others by now.
        self.recheck(ticket, notices);
        if self.tickets[ticket].state == State::Searching {
            self.tell_ticket(ticket, notices);
        }
    }

    fn cool_down(&mut self, player: u32, queue: u32) {
        let seconds = self.queues.list[queue].rules().set.accept.cooldown_s;
        if seconds > 0 {
            let until = self.now + seconds * 1_000;
            let entry = &mut self.people.players[player];
            entry.cooldown_until = entry.cooldown_until.max(until);
            entry.holds += 1;
            self.timers.set(until, Timer::Cooldown(player));
        }
    }

    pub(crate) fn end_cooldown(&mut self, player: u32) {
        self.people.players[player].holds -= 1;
        self.people.release(player);
    }

    /// Places a match, where there are other shards as soon as its players are claimed. The match and until when its seats
    /// are held, if it is ready.
    fn place(&mut self, index: u32, compiled: &Compiled, notices: &mut Notices) -> Option<(u32, u64)> {
        if self.shard.is_alone() {
            return match self.place_now(index, compiled, notices) {
                Placed::Ready(until) => Some((index, until)),
                Placed::Waits | Placed::Refused => None,
            };
        }
        let found = &mut self.matches[index];
        found.stage = Stage::Claiming;
        let id = found.id;
        let roles: Vec<Text> = self
            .players_of_match(index)
            .iter()
            .map(|player| self.people.players[*player].id.clone())
            .collect();
        let room = self.backfill_of_match(id).map(|backfill| self.backfills[backfill.index].room);
        self.claim_match(id, roles.into_iter(), room);
        None
    }

    /// The players of a match are claimed. Whether it was placed.
    pub(crate) fn place_claimed(&mut self, id: Id, notices: &mut Notices) -> bool {
        let Some(index) = self.match_of(id).filter(|index| self.matches[*index].stage == Stage::Claiming)
        else {
            return false;
        };
        let compiled = self.queues.list[self.matches[index].queue].rules();
        let placed = self.place_now(index, &compiled, notices);
        if let Placed::Ready(until) = placed {
            self.make_ready(index, until, None, notices);
        }
        placed != Placed::Refused
    }

    /// The players of a match could not be claimed: its tickets search on.
    pub(crate) fn unplace(&mut self, id: Id, notices: &mut Notices) {
        if let Some(index) = self.match_of(id).filter(|index| self.matches[*index].stage == Stage::Claiming) {
            self.break_match_of_backfill(index, "players_not_free", notices);
        }
    }

    /// Makes the room, or takes the backfill's, with a seat for everybody; ends the players' other tickets.
    fn place_now(&mut self, index: u32, compiled: &Compiled, notices: &mut Notices) -> Placed {
        let (queue, backfill) = (self.matches[index].queue, self.matches[index].backfill);
        let room = match backfill {
            Some(backfill) => match self.room_to_fill(index, backfill) {
                Some(room) => room,
                None => {
                    let room = self.copy_room(self.backfills[backfill].room);
                    self.refuse_seats(index, backfill, room.as_ref(), notices);
                    return Placed::Refused;
                }
            },
            None => self.room_of_match(index, queue),
        };
        self.matches[index].positions = self.positions_of(index, compiled);
        let external = compiled.set.assign == Assign::External && backfill.is_none();
        let ttl = compiled.set.seat_ttl_s * 1_000;
        let asks = compiled.set.assign == Assign::Policy
            && backfill.is_none()
            && self.modes[self.rooms[room].mode].rules.asks(HookPoint::OnCreate);
        let wait = match (external, asks) {
            (true, _) => compiled.set.assign_timeout_s * 1_000,
            (_, true) => self.config.policy_timeout_ms,
            _ => 0,
        };
        let until = self.now + wait + ttl;
        let id = self.rooms[room].id;
        let players = self.players_of_match(index);
        let sides = std::mem::take(&mut self.matches[index].sides);
        self.end_other_tickets(index, &players, notices);
        let seats = self.rooms[room].seats.len();
        self.rooms[room].seats.reserve(players.len());
        self.put_on_sides(room, compiled, &sides);
        self.seat_tickets(room, &sides, until);
        self.note_new_seats(room, seats);
        self.timers.set(until, Timer::Seats(id));
        self.reindex_room(room);
        self.note_placed(index, id);
        if let Some(backfill) = backfill
            && let Some(room) = self.copy_room(id)
        {
            self.backfill_placed(backfill, &room, &sides, notices);
        }
        self.matches[index].sides = sides;
        if external {
            self.await_server(index, compiled, notices);
        } else if asks {
            self.matches[index].stage = Stage::Assigning;
            let found = self.matches[index].id;
            self.ask_for_server(found, room);
        } else {
            return Placed::Ready(until);
        }
        Placed::Waits
    }

    /// Counts a match whose seats are there.
    pub(crate) fn note_placed(&mut self, index: u32, room: Id) {
        let now = self.now;
        let found = &mut self.matches[index];
        found.room = Some(room);
        let (queue, level, quality) = (found.queue, found.level, found.quality);
        let entry = &mut self.queues.list[queue];
        entry.figures.record(now, level, quality);
        entry.observed.qualities.observe(quality);
    }

    fn room_of_match(&mut self, index: u32, queue: u32) -> u32 {
        let mode = self.queues.list[queue].mode;
        let room = self.insert_room(mode, true, DataMap::default(), NONE);
        let entry = &mut self.rooms[room];
        // Nobody else comes in, but by a backfill.
        (entry.full, entry.forced_full) = (true, true);
        entry.matched = Some(self.matches[index].id);
        room
    }

    /// The room of a backfill, if what was found still fits.
    fn room_to_fill(&self, index: u32, backfill: u32) -> Option<u32> {
        let backfill = self.backfills.get(backfill)?;
        let room = backfill.room.index;
        let entry = self.rooms.get(room).filter(|room| room.id == backfill.room)?;
        let newcomers = self.players_of_match(index).len() as u32;
        let free = entry.free(self.modes[entry.mode].rules.capacity);
        (!entry.deleting && !entry.sealed && free >= newcomers).then_some(room)
    }

    pub(crate) fn positions_of(&self, index: u32, compiled: &Compiled) -> Vec<(u32, u8)> {
        let mut positions = Vec::new();
        if compiled.set.positions.is_empty() {
            return positions;
        }
        for side in &self.matches[index].sides {
            let tickets = || side.iter().map(|ticket| &self.tickets[*ticket]);
            let players: Vec<u32> =
                tickets().flat_map(|ticket| &ticket.players).map(|player| player.player).collect();
            let facts: Vec<&PlayerFacts> = tickets().flat_map(|ticket| &ticket.facts.players).collect();
            let open = compiled.set.players_max();
            if let Some(assigned) = assign(&compiled.set.positions, &facts, open) {
                positions.extend(players.into_iter().zip(assigned));
            }
        }
        positions
    }

    /// The players of a match wait for nothing else any more.
    pub(crate) fn end_other_tickets(&mut self, index: u32, players: &[u32], notices: &mut Notices) {
        let found = Some(self.matches[index].id);
        // Their entries are all over the memory: here one load does not wait for another.
        let waits_elsewhere = |player: &&u32| self.people.players[**player].tickets.len() > 1;
        let busy: SmallVec<[u32; 8]> = players.iter().filter(waits_elsewhere).copied().collect();
        for player in busy {
            self.end_tickets_of(player, found, notices);
        }
    }

    /// Puts the players of tickets on the sides of a room, behind those who are there.
    fn put_on_sides(&mut self, room: u32, compiled: &Compiled, sides: &[Vec<u32>]) {
        let (tickets, people) = (&self.tickets, &self.people);
        let room = &mut self.rooms[room].sides;
        if room.is_empty() {
            let names = compiled.sides.iter().map(|(name, _)| name.as_bytes());
            let ids = sides.iter().map(|side| ids_of(tickets, people, side));
            *room = Sides::new(names.zip(ids), &mut self.scratch.event);
        } else {
            room.change(|there| {
                for (there, side) in there.iter_mut().zip(sides) {
                    there.players.extend(ids_of(tickets, people, side).map(Text::from_slice));
                }
            });
        }
    }

    /// Seats for the players of tickets.
    fn seat_tickets(&mut self, room: u32, sides: &[Vec<u32>], until: u64) {
        let (tickets, people, entry) = (&mut self.tickets, &mut self.people, &mut self.rooms[room]);
        let before = entry.seats.len();
        for ticket in sides.iter().flatten() {
            let ticket = &mut tickets[*ticket];
            ticket.room = Some(entry.id);
            for member in &ticket.players {
                let player = member.player;
                let info = (!ticket.team.is_empty()).then(|| {
                    let role = RoleRef::bare(&people.players[player].id);
                    Box::new(role.info(people.server_of(player), &ticket.team))
                });
                people.players[player].holds += 1;
                entry.seats.push(Seat { player, until, info });
            }
        }
        let seats = entry.seats.len() - before;
        self.note_seats(room, seats);
    }

    /// A player was matched: tickets of any other match, or of none, are over.
    fn end_tickets_of(&mut self, player: u32, found: Option<Id>, notices: &mut Notices) {
        for other in self.people.players[player].tickets.clone() {
            let matched = self.tickets[other].matched;
            let claims = || {
                let found = matched.and_then(|id| self.match_of(id));
                found.is_some_and(|found| self.matches[found].stage == Stage::Claiming)
            };
            match self.tickets[other].state {
                _ if matched.is_some() && matched == found => {}
                State::Searching => self.end_ticket(other, State::Cancelled, "matched_elsewhere", notices),
                State::Proposed => self.withdraw(other, false, "matched_elsewhere", notices),
                State::Placing if claims() => self.withdraw(other, false, "matched_elsewhere", notices),
                _ => {}
            }
        }
    }

    /// A role was matched on another shard.
    pub(crate) fn matched_elsewhere(&mut self, role: &[u8], notices: &mut Notices) {
        if let Some(player) = self.people.player(role) {
            // Held, as the last ticket may be what keeps the entry.
            self.people.players[player].holds += 1;
            self.end_tickets_of(player, None, notices);
            self.people.players[player].holds -= 1;
            self.people.release(player);
        }
    }

    fn await_server(&mut self, index: u32, compiled: &Compiled, notices: &mut Notices) {
        let deadline = self.now + compiled.set.assign_timeout_s * 1_000;
        let found = &mut self.matches[index];
        (found.stage, found.deadline) = (Stage::Assigning, deadline);
        let id = found.id;
        self.timers.set(deadline, Timer::Assign(id));
        let Some(server) = self.people.server(compiled.set.allocator.as_bytes()) else { return };
        let rest = self.ready_for_all(index, 0, None);
        self.write_ready(index, b"", &[], &rest);
        notices.push(server, std::iter::empty(), &self.scratch.event, 0);
    }

    /// Writes the event that a match is ready, for the players of a side or for who gives it a server. `rest` is what
    /// [is the same](Matcher::ready_for_all) for all of them.
    fn write_ready(&mut self, index: u32, side: &[u8], players: &[u32], rest: &[u8]) {
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        let found = &self.matches[index];
        let queue = &self.queues.list[found.queue];
        let positions = &queue.rules().set.positions;
        write_nested(&mut event, Event::MATCH_READY, |out| {
            write_bytes(out, 1, &found.id.text());
            for (player, position) in found.positions.iter().filter(|(player, _)| players.contains(player)) {
                write_nested(out, 2, |out| {
                    write_bytes(out, 1, &self.people.players[*player].id);
                    let name = positions.get(usize::from(*position)).map_or("", |position| &position.name);
                    write_bytes(out, 2, name.as_bytes());
                });
            }
            write_bytes(out, 3, side);
            out.extend_from_slice(rest);
        });
        self.scratch.event = event;
    }

    /// What the event that a match is ready tells everybody, as fields. `there`: its room, if that is with another shard.
    fn ready_for_all(&self, index: u32, seat_until: u64, there: Option<&RoomCopy>) -> Vec<u8> {
        let found = &self.matches[index];
        let queue = &self.queues.list[found.queue];
        let here = found.room.filter(|_| there.is_none()).and_then(|room| self.rooms.get(room.index));
        let connection = there.map_or_else(|| here.and_then(connection_of), |room| room.connection.clone());
        let mut out = Vec::with_capacity(128);
        write_bytes(&mut out, 4, connection.unwrap_or_default().as_bytes());
        if let Some(region) = found.region.and_then(|region| queue.regions.get(usize::from(region))) {
            write_bytes(&mut out, 5, region);
        }
        write_u64(&mut out, 6, seat_until);
        write_bytes(&mut out, 7, queue.name.as_bytes());
        if let Some(room) = found.room {
            write_bytes(&mut out, 20, &room.text());
        }
        out
    }

    /// Tells the players where they play; their tickets have ended well.
    pub(crate) fn make_ready(
        &mut self,
        index: u32,
        seat_until: u64,
        there: Option<&RoomCopy>,
        notices: &mut Notices,
    ) {
        let queue = self.matches[index].queue;
        let compiled = self.queues.list[queue].rules();
        let sides = std::mem::take(&mut self.matches[index].sides);
        let rest = self.ready_for_all(index, seat_until, there);
        let here = self.matches[index].room.and_then(|room| self.rooms.get(room.index));
        let names = there.map(|room| &room.sides).or(here.map(|room| &room.sides)).map(Sides::names);
        let mut names = names.unwrap_or_default().into_iter();
        for side in &sides {
            let name = names.next().unwrap_or_default();
            if side.is_empty() {
                continue;
            }
            let mut players = Players::new();
            self.players_of(side, &mut players);
            self.write_ready(index, &name, &players, &rest);
            fan_out(&self.people, players.iter().copied(), players.len(), &self.scratch.event, 0, notices);
        }
        let found = &mut self.matches[index];
        found.stage = Stage::Made;
        (found.positions, found.accepted) = (Vec::new(), Vec::new());
        let (is_backfill, id) = (found.backfill.take().is_some(), found.id);
        self.record_waits(queue, &compiled, sides.iter().flatten());
        self.end_matched(queue, &sides);
        if is_backfill {
            // Its result is the room's own match's.
            self.matches.remove(id.index);
        }
    }

    /// Notes how long tickets waited that are matched: those of one kind at once, which those of a match mostly are.
    fn record_waits<'a>(&mut self, queue: u32, compiled: &Compiled, matched: impl Iterator<Item = &'a u32>) {
        let (tickets, now) = (&self.tickets, self.now);
        let entry = &mut self.queues.list[queue];
        let mut kinds: SmallVec<[(Kind, Bucket, u32); 8]> = SmallVec::new();
        for ticket in matched.map(|ticket| &tickets[*ticket]) {
            let waited = now - ticket.created;
            entry.observed.waits.observe(waited as f64 / 1_000.0);
            let (kind, bucket) = (ticket.kind(compiled), Bucket::of(waited));
            match kinds.iter_mut().find(|known| (known.0, known.1) == (kind, bucket)) {
                Some((.., count)) => *count += 1,
                None => kinds.push((kind, bucket, 1)),
            }
        }
        for (kind, bucket, count) in kinds {
            entry.estimates.record(now, kind, bucket, count);
        }
    }

    pub(crate) fn assign_match(&mut self, caller: Caller<'_>, body: &[u8], notices: &mut Notices) -> Outcome {
        let (mut room, mut connection, mut data) = (&[][..], &[][..], Vec::new());
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => room = text(&field)?,
                2 => connection = text(&field)?,
                3 => data.push(entry(&field)?),
                _ => {}
            }
        }
        check_len(connection, CONNECTION_BYTES_MAX, "Connection")?;
        let room = self.find_room(room)?;
        let closed = || Problem::new(Status::NotProposed, "the room is no match that waits for a server");
        let index = self.rooms[room].matched.and_then(|id| self.match_of(id)).ok_or_else(closed)?;
        if self.matches[index].stage != Stage::Assigning {
            return Err(closed());
        }
        let rules = self.queues.list[self.matches[index].queue].rules();
        if caller.scope == Scope::Server && rules.set.allocator != caller.srv {
            return Err(forbidden("only the queue's allocator or a trusted server may assign a match"));
        }
        let mut values = self.rooms[room].data.clone();
        for (key, value) in data {
            values.set(ROOM_DATA_FIELD, key, value.map_or(&[][..], |value| value.value))?;
        }
        values.set(ROOM_DATA_FIELD, CONNECTION_KEY.as_bytes(), quote(connection).as_bytes())?;
        self.give_server(self.matches[index].id, room, values, notices);
        Ok(())
    }

    /// The room of a match that has no server yet.
    pub(crate) fn room_that_waits(&self, found: Id) -> Option<u32> {
        let found = &self.matches[self.match_of(found)?];
        let room = found.room.filter(|_| found.stage == Stage::Assigning)?;
        self.rooms.get(room.index).filter(|entry| entry.id == room).map(|_| room.index)
    }

    /// A match has its server, as the room's data say: its players hear of it.
    pub(crate) fn give_server(&mut self, found: Id, room: u32, data: DataMap, notices: &mut Notices) {
        let Some(index) = self.match_of(found) else { return };
        let rules = self.queues.list[self.matches[index].queue].rules();
        let until = self.now + rules.set.seat_ttl_s * 1_000;
        let entry = &mut self.rooms[room];
        entry.data = data;
        entry.rev += 1;
        entry.seats.iter_mut().for_each(|seat| seat.until = until);
        let id = entry.id;
        self.note_change(room, Change::of("assigned"), &[]);
        self.timers.set(until, Timer::Seats(id));
        self.make_ready(index, until, None, notices);
    }

    /// No server was given: the room goes, the tickets search on.
    pub(crate) fn end_unassigned(&mut self, id: Id, reason: &str, notices: &mut Notices) {
        let waits = |index: &u32| self.matches[*index].stage == Stage::Assigning;
        let Some(index) = self.match_of(id).filter(waits) else { return };
        let room = self.matches[index].room;
        let tickets = self.break_match(index, reason, notices);
        for ticket in tickets {
            self.return_ticket(ticket, notices);
        }
        if let Some(room) = room.filter(|room| self.rooms.get(room.index).is_some_and(|r| r.id == *room)) {
            self.begin_end(room.index, notices);
        }
    }

    /// After a restart: open proposals are off and nobody is blamed; what has a room is a match.
    pub(crate) fn reopen_proposals(&mut self, notices: &mut Notices) {
        let open: Vec<u32> =
            self.matches.iter().filter(|(_, m)| m.stage != Stage::Made).map(|(i, _)| i).collect();
        for index in open {
            if self.matches.get(index).is_none() {
                continue;
            }
            let room = self.matches[index].room.and_then(|room| self.rooms.get(room.index));
            match room.filter(|_| self.matches[index].stage == Stage::Assigning) {
                Some(room) => {
                    let until = room.seats.iter().map(|seat| seat.until).max().unwrap_or(self.now);
                    self.make_ready(index, until, None, notices);
                }
                None => {
                    for ticket in self.break_match(index, "restarted", notices) {
                        self.return_ticket(ticket, notices);
                    }
                }
            }
        }
    }

    /// A match's room is gone: the match stays known for its result.
    pub(crate) fn room_of_match_ended(&mut self, matched: Option<Id>) {
        if let Some(index) = matched.and_then(|id| self.match_of(id)) {
            self.ended_matches.push_back((self.now + KNOWN_MS, self.matches[index].id));
        }
    }

    /// Forgets matches whose time is over, a bounded number of them.
    pub(crate) fn forget_matches(&mut self) {
        for _ in 0..FORGOTTEN_PER_INPUT {
            let Some((until, id)) = self.ended_matches.front().copied() else { return };
            if until > self.now {
                return;
            }
            self.ended_matches.pop_front();
            if self.match_of(id).is_some() {
                self.matches.remove(id.index);
            }
        }
    }

    /// The match that a request names by its id or its room's.
    pub(crate) fn match_named(&self, id: &[u8], room: &[u8]) -> Outcome<u32> {
        let found = if id.is_empty() {
            let room = self.find_room(room)?;
            self.rooms[room].matched.and_then(|id| self.match_of(id))
        } else {
            self.find_match(id)
        };
        found
            .filter(|index| self.matches[*index].stage == Stage::Made)
            .ok_or_else(|| not_found("match does not exist"))
    }

    pub(crate) fn put_queue_request(
        &mut self,
        caller: Caller<'_>,
        body: &[u8],
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Outcome {
        require(caller, Scope::Admin)?;
        let mut json = &[][..];
        for field in fields(body) {
            let field = field?;
            if field.number == 1 {
                json = crate::info::bytes(&field)?;
            }
        }
        let refused = |problem: crate::RuleProblem| {
            Problem::new(Status::RuleInvalid, problem.to_string())
                .with("Path", quote(problem.path.as_bytes()))
        };
        let rules = crate::QueueRules::parse(json).map_err(refused)?;
        let is_new = !self.queues.by_name.contains_key(rules.name());
        if is_new && !self.has_left(Limit::Queues) {
            return Err(Problem::new(Status::TooLarge, "the matcher has as many queues as it takes"));
        }
        let index = self.put_queue(&rules, notices).map_err(refused)?;
        self.write_queue(index, answer);
        Ok(())
    }
}

/// Where players connect, as a room's data say.
pub(crate) fn connection_of(room: &Room) -> Option<String> {
    serde_json::from_slice(room.data.get(CONNECTION_KEY)?).ok()
}
