//! From a match to its room: seats, the match's server, and the news that it is ready.

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bytes, write_nested, write_u64};

use crate::config::{HookPoint, Scope};
use crate::history::Change;
use crate::id::Id;
use crate::info::{
    CONNECTION_KEY, DataMap, PLACE_KEYS, ROOM_DATA_FIELD, RoleRef, Text, WORLD_KEY, check_len, entry,
    map_key, text,
};
use crate::key::{BackfillKey, MatchKey, PlayerKey, QueueKey, RoomKey, TicketKey};
use crate::matcher::{Matcher, fan_out};
use crate::matches::{Placement, Players, Stage};
use crate::people::People;
use crate::problem::{Outcome, Problem, forbidden, invalid, quote};
use crate::queue::{Assign, Compiled, PlayerFacts, Queues, State, assign, role_hash};
use crate::room::{Room, Seat};
use crate::timers::Timer;
use crate::turn::Turn;

const CONNECTION_BYTES_MAX: usize = 4 << 10;

/// Ids of the players of tickets.
fn ids_of<'a>(
    queues: &'a Queues,
    people: &'a People,
    side: &'a [TicketKey],
) -> impl Iterator<Item = &'a [u8]> {
    let players = side.iter().flat_map(|ticket| &queues[*ticket].players);
    players.filter_map(|player| Some(&people[player.player?].id()[..]))
}

impl Matcher {
    /// Makes the room, or takes the backfill's, with a seat for everybody; ends the players' other
    /// tickets.
    pub(crate) fn place(&mut self, turn: &mut Turn<'_>, index: MatchKey, compiled: &Compiled) -> Placement {
        let (queue, backfill) = (self.matches[index].queue(), self.matches[index].backfill());
        let room = match backfill {
            Some(backfill) => match self.room_to_fill(index, backfill) {
                Some(room) => room,
                None => {
                    self.refuse_seats(turn, index, backfill);
                    return Placement::Refused;
                }
            },
            None => self.room_of_match(index, queue),
        };
        let positions = self.positions_of(index, compiled);
        self.matches.set_positions(index, positions);
        let external = compiled.set.assign == Assign::External && backfill.is_none();
        let ttl = compiled.set.seat_ttl_s * 1_000;
        let asks = compiled.set.assign == Assign::Policy
            && backfill.is_none()
            && self.rooms.rules_of(room).asks(HookPoint::OnCreate);
        let wait = match (external, asks) {
            (true, _) => compiled.set.assign_timeout_ms(),
            (_, true) => self.config.policy_timeout_ms,
            _ => 0,
        };
        let until = self.now + wait + ttl;
        let id = self.rooms[room].id();
        let players = self.players_of_match(index);
        let sides = self.matches.take_sides(index);
        self.end_other_tickets(turn, index, &players);
        let seats = self.rooms[room].seats().len();
        self.rooms.reserve_seats(room, players.len());
        self.put_on_sides(room, compiled, &sides);
        self.seat_tickets(room, &sides, until);
        self.note_new_seats(room, seats);
        self.timers.set(until, Timer::Seats(id));
        self.rooms.reindex(room);
        self.note_placed(index, id);
        if compiled.set.rating.is_some() {
            let Matcher { matches, queues, .. } = self;
            // A backfill's result is that of the room's own match.
            let own = self.rooms[room].matched().and_then(|own| matches.find(own)).unwrap_or(index);
            let players = sides.iter().flatten().flat_map(|ticket| &queues[*ticket].facts.players);
            matches.enlist(own, players.map(|player| player.role));
        }
        if let Some(backfill) = backfill {
            self.backfill_placed(turn, backfill, room, &sides);
        }
        self.matches.put_sides(index, sides);
        if external {
            self.await_server(turn, index, compiled);
        } else if asks {
            self.matches.await_server(index, None);
            let found = self.matches[index].id();
            self.ask_for_server(found, room);
        } else {
            return Placement::Ready(until);
        }
        Placement::Waits
    }

    /// Counts a match whose seats are there.
    fn note_placed(&mut self, index: MatchKey, room: Id) {
        let now = self.now;
        self.matches.set_room(index, room);
        let found = &self.matches[index];
        let (queue, level, quality) = (found.queue(), found.level(), found.quality());
        self.queues.note_match(queue, now, level, quality);
        if !self.matches[index].positions().is_empty() {
            self.note_positions(index, room);
        }
    }

    /// Keeps the positions of a match with those of its room's, where backfills find them.
    fn note_positions(&mut self, index: MatchKey, room: Id) {
        let rules = self.queues[self.matches[index].queue()].rules();
        let names = &rules.set.positions;
        let cast: Vec<(u64, Text)> = self.matches[index]
            .positions()
            .iter()
            .map(|(player, at)| {
                let name = names.get(usize::from(*at)).map_or("", |position| &position.name);
                (role_hash(self.people[*player].id()), Text::from_slice(name.as_bytes()))
            })
            .collect();
        let own = self.match_of_room(room).unwrap_or(index);
        if own != index {
            // Those who have left make room.
            let sides = self.rooms[RoomKey::new(room.index)].sides().list();
            let there: Vec<u64> =
                sides.iter().flat_map(|side| &side.players).map(|role| role_hash(role)).collect();
            self.matches.keep_cast(own, &there);
        }
        self.matches.add_cast(own, cast);
    }

    /// The match that a room is, if both are here.
    fn match_of_room(&self, room: Id) -> Option<MatchKey> {
        self.match_of(self.rooms[self.rooms.find(room)?].matched()?)
    }

    /// Positions that players of a room were given, by the hashes of their roles.
    pub(crate) fn cast_of(&self, room: Id) -> &[(u64, Text)] {
        self.match_of_room(room).map_or(&[], |found| self.matches[found].cast())
    }

    fn room_of_match(&mut self, index: MatchKey, queue: QueueKey) -> RoomKey {
        let mode = self.queues[queue].mode;
        let room = self.insert_room(mode, true, DataMap::default(), None);
        self.rooms.set_matched(room, self.matches[index].id());
        room
    }

    /// The room of a backfill, if what was found still fits.
    fn room_to_fill(&self, index: MatchKey, backfill: BackfillKey) -> Option<RoomKey> {
        let backfill = self.queues.get_backfill(backfill)?;
        let room = self.rooms.find(backfill.room)?;
        let entry = &self.rooms[room];
        let newcomers = self.players_of_match(index).len() as u32;
        let free = entry.free(self.rooms.rules_of(room).capacity);
        (!entry.deleting() && !entry.sealed() && free >= newcomers).then_some(room)
    }

    fn positions_of(&self, index: MatchKey, compiled: &Compiled) -> Vec<(PlayerKey, u8)> {
        let mut positions = Vec::new();
        if compiled.set.positions.is_empty() {
            return positions;
        }
        let backfill = self.matches[index].backfill().and_then(|backfill| self.queues.get_backfill(backfill));
        for (number, side) in self.matches[index].sides().iter().enumerate() {
            let tickets = || side.iter().map(|ticket| &self.queues[*ticket]);
            let players: Players =
                tickets().flat_map(|ticket| &ticket.players).filter_map(|player| player.player).collect();
            let there = backfill.map_or(&[][..], |backfill| backfill.players_of(number));
            let newcomers = tickets().flat_map(|ticket| &ticket.facts.players);
            let facts: Vec<&PlayerFacts> = there.iter().chain(newcomers).collect();
            let open = compiled.set.players_max();
            if let Some(assigned) = assign(&compiled.set.positions, &facts, open) {
                positions.extend(players.into_iter().zip(assigned.into_iter().skip(there.len())));
            }
        }
        positions
    }

    /// The players of a match wait for nothing else any more.
    fn end_other_tickets(&mut self, turn: &mut Turn<'_>, index: MatchKey, players: &[PlayerKey]) {
        let found = Some(self.matches[index].id());
        // Their entries are all over the memory: here one load does not wait for another.
        let waits_elsewhere = |player: &&PlayerKey| self.people[**player].tickets().len() > 1;
        let busy: SmallVec<[PlayerKey; 8]> = players.iter().filter(waits_elsewhere).copied().collect();
        for player in busy {
            self.end_tickets_of(turn, player, found);
        }
    }

    /// Puts the players of tickets on the sides of a room, behind those who are there.
    fn put_on_sides(&mut self, room: RoomKey, compiled: &Compiled, sides: &[Vec<TicketKey>]) {
        let (queues, people) = (&self.queues, &self.people);
        if self.rooms[room].sides().is_empty() {
            let names = compiled.sides.iter().map(|(name, _)| name.as_bytes());
            let ids = sides.iter().map(|side| ids_of(queues, people, side));
            self.rooms.begin_sides(room, names.zip(ids), &mut self.scratch.event);
        } else {
            self.rooms.change_sides(room, |there| {
                for (there, side) in there.iter_mut().zip(sides) {
                    there.players.extend(ids_of(queues, people, side).map(Text::from_slice));
                }
            });
        }
    }

    /// Seats for the players of tickets.
    fn seat_tickets(&mut self, room: RoomKey, sides: &[Vec<TicketKey>], until: u64) {
        self.queues.seat(sides, self.rooms[room].id());
        let (queues, people) = (&self.queues, &mut self.people);
        let players = sides.iter().flatten().flat_map(|ticket| {
            let players = queues[*ticket].players.iter();
            players.filter_map(|member| member.player).map(|player| (*ticket, player))
        });
        let seats = players.map(|(ticket, player)| {
            let team = &queues[ticket].team;
            let info = (!team.is_empty()).then(|| {
                let role = RoleRef::bare(people[player].id());
                Box::new(role.info(people.server_of(player), team))
            });
            people.take_seat(player, room);
            Seat { player, until, ticket: Some(ticket), info }
        });
        self.rooms.add_seats(room, seats);
    }

    /// A player was matched: tickets of any other match, or of none, are over.
    fn end_tickets_of(&mut self, turn: &mut Turn<'_>, player: PlayerKey, found: Option<Id>) {
        for other in self.people[player].tickets().to_vec() {
            let matched = self.queues[other].matched;
            match self.queues[other].state {
                _ if matched.is_some() && matched == found => {}
                State::Searching => self.end_ticket(turn, other, State::Cancelled, "matched_elsewhere"),
                State::Proposed => self.withdraw(turn, other, None, "matched_elsewhere"),
                _ => {}
            }
        }
    }

    fn await_server(&mut self, turn: &mut Turn<'_>, index: MatchKey, compiled: &Compiled) {
        let deadline = self.now + compiled.set.assign_timeout_ms();
        self.matches.await_server(index, Some(deadline));
        let id = self.matches[index].id();
        self.timers.set(deadline, Timer::Assign(id));
        let Some(server) = self.people.server(compiled.set.allocator.as_bytes()) else { return };
        let mut rest = self.ready_for_all(index, 0);
        self.write_players(index, 9, &mut rest);
        rest.extend_from_slice(&self.sides_of(index));
        if let Some(world) = &compiled.set.world {
            write_bytes(&mut rest, 12, world.class.as_bytes());
        }
        self.write_ready(index, b"", &[], &rest);
        turn.notices.push(self.people.number(server), std::iter::empty(), &self.scratch.event, 0);
    }

    /// Writes the event that a match is ready, for the players of a side or for who gives it a
    /// server. `rest` is what [is the same](Matcher::ready_for_all) for all of them.
    fn write_ready(&mut self, index: MatchKey, side: &[u8], players: &[PlayerKey], rest: &[u8]) {
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        let found = &self.matches[index];
        let compiled = (!found.positions().is_empty()).then(|| self.queues[found.queue()].rules());
        let positions = compiled.as_ref().map_or(&[][..], |compiled| &compiled.set.positions);
        write_nested(&mut event, Event::MATCH_READY, |out| {
            write_bytes(out, 1, &found.id().text());
            for (player, position) in found.positions().iter().filter(|(player, _)| players.contains(player))
            {
                write_nested(out, 2, |out| {
                    write_bytes(out, 1, self.people[*player].id());
                    let name = positions.get(usize::from(*position)).map_or("", |position| &position.name);
                    write_bytes(out, 2, name.as_bytes());
                });
            }
            write_bytes(out, 3, side);
            out.extend_from_slice(rest);
        });
        self.scratch.event = event;
    }

    /// Fields of the ready event that are the same for all players.
    fn ready_for_all(&self, index: MatchKey, seat_until: u64) -> Vec<u8> {
        let found = &self.matches[index];
        let queue = &self.queues[found.queue()];
        let room = found.room().and_then(|room| self.rooms.get(RoomKey::new(room.index)));
        let connection = room.and_then(connection_of);
        let mut out = Vec::with_capacity(128);
        write_bytes(&mut out, 4, connection.unwrap_or_default().as_bytes());
        if let Some(region) = found.region().and_then(|region| queue.regions.get(usize::from(region))) {
            write_bytes(&mut out, 5, region);
        }
        write_u64(&mut out, 6, seat_until);
        write_bytes(&mut out, 7, queue.name.as_bytes());
        out.extend_from_slice(found.shared());
        room.into_iter().for_each(|room| write_world(room, &mut out));
        if let Some(room) = found.room() {
            write_bytes(&mut out, 20, &room.text());
        }
        out
    }

    /// The players of a match as their tickets say, but for whom they avoid.
    fn write_players(&self, index: MatchKey, number: u32, out: &mut Vec<u8>) {
        for ticket in self.matches[index].sides().iter().flatten() {
            for player in &self.queues[*ticket].players {
                write_nested(out, number, |out| {
                    let told = fields(&player.body).map_while(Result::ok).filter(|field| field.number != 6);
                    told.for_each(|field| out.extend_from_slice(field.raw));
                });
            }
        }
    }

    /// The sides of a match's room, as fields of a room.
    fn sides_of(&self, index: MatchKey) -> Vec<u8> {
        let room = self.matches[index].room().and_then(|room| self.rooms.get(RoomKey::new(room.index)));
        room.map(|room| room.sides().bytes().to_vec()).unwrap_or_default()
    }

    /// A match as its allocator finds it again.
    pub(crate) fn write_match(&self, index: MatchKey, out: &mut Vec<u8>) {
        let found = &self.matches[index];
        let queue = &self.queues[found.queue()];
        let room = found.room().and_then(|room| self.rooms.get(RoomKey::new(room.index)));
        write_bytes(out, 1, &found.id().text());
        if let Some(room) = found.room() {
            write_bytes(out, 2, &room.text());
        }
        write_bytes(out, 3, queue.name.as_bytes());
        let waits = found.stage() == Stage::Assigning;
        write_bytes(out, 4, if waits { b"assigning" } else { b"assigned" });
        if let Some(region) = found.region().and_then(|region| queue.regions.get(usize::from(region))) {
            write_bytes(out, 5, region);
        }
        write_bytes(out, 6, room.and_then(connection_of).unwrap_or_default().as_bytes());
        write_u64(out, 7, if waits { found.deadline() } else { 0 });
        self.write_players(index, 8, out);
        if let Some(world) = &queue.rules().set.world {
            write_bytes(out, 9, world.class.as_bytes());
        }
    }

    /// A room of a mode as the allocator of its world finds it again.
    pub(crate) fn write_hosted(&self, index: RoomKey, out: &mut Vec<u8>) {
        let room = &self.rooms[index];
        write_bytes(out, 2, &room.id().text());
        write_bytes(out, 4, if self.wants_world(index) { b"assigning" } else { b"assigned" });
        write_bytes(out, 6, connection_of(room).unwrap_or_default().as_bytes());
        let queue = self.queues.find(self.rooms.mode(room.mode()).name().as_bytes());
        let own = queue.and_then(|queue| self.queues[queue].rules().set.world.clone());
        if let Some(world) = own.or_else(|| self.rooms.rules_of(index).world.clone()) {
            write_bytes(out, 9, world.class.as_bytes());
        }
    }

    /// Tells the players where they play; their tickets have ended well.
    pub(crate) fn make_ready(&mut self, turn: &mut Turn<'_>, index: MatchKey, seat_until: u64) {
        let queue = self.matches[index].queue();
        let compiled = self.queues[queue].rules();
        let sides = self.matches.take_sides(index);
        let rest = self.ready_for_all(index, seat_until);
        let room = self.matches[index].room().and_then(|room| self.rooms.get(RoomKey::new(room.index)));
        let mut names = room.map(|room| room.sides().names()).unwrap_or_default().into_iter();
        for side in &sides {
            let name = names.next().unwrap_or_default();
            if side.is_empty() {
                continue;
            }
            let mut players = Players::new();
            self.players_of(side, &mut players);
            self.write_ready(index, &name, &players, &rest);
            fan_out(&self.people, players.iter().copied(), &self.scratch.event, 0, turn.notices);
        }
        let is_backfill = self.matches.make(index);
        self.queues.record_waits(queue, &compiled, &sides, self.now);
        let people = &mut self.people;
        self.queues.end_matched(queue, &sides, self.now, |player, ticket| people.end_ticket(player, ticket));
        if is_backfill {
            // Its result is the room's own match's.
            self.matches.remove(index);
        }
    }

    pub(crate) fn assign_match(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
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
        let found = self.rooms[room].matched().and_then(|id| self.match_of(id));
        let found = found.filter(|index| self.matches[*index].stage() == Stage::Assigning);
        let is_allocator = |allocator: &str| !allocator.is_empty() && allocator == turn.caller.srv;
        let is_allocator = match found {
            Some(index) => is_allocator(&self.queues[self.matches[index].queue()].rules().set.allocator),
            None if self.wants_world(room) => is_allocator(&self.rooms.rules_of(room).allocator),
            None if self.has_world(room) && !self.rooms[room].deleting() => {
                self.hosts_world_of(turn.caller.srv, room)
            }
            None => return Err(closed()),
        };
        if turn.caller.scope == Scope::Server && !is_allocator {
            return Err(forbidden("only the allocator or a trusted server may assign a match"));
        }
        for (key, _) in data.iter().filter(|(key, _)| !PLACE_KEYS.contains(key)) {
            self.rooms.rules_of(room).check_key(key)?;
        }
        let gets_world =
            found.is_none_or(|found| self.queues[self.matches[found].queue()].rules().set.world.is_some());
        if gets_world && !data.iter().any(|(key, value)| *key == WORLD_KEY.as_bytes() && value.is_some()) {
            return Err(invalid("Data does not name the World of the match"));
        }
        let connection = quote(connection);
        let own = data.iter().map(|(key, value)| (*key, value.map_or(&[][..], |value| value.value)));
        let place: Vec<_> = own.chain([(CONNECTION_KEY.as_bytes(), connection.as_bytes())]).collect();
        let mut values = self.rooms[room].data().clone();
        for (key, value) in &place {
            values.set(ROOM_DATA_FIELD, key, value)?;
        }
        // A trusted caller who moves the world of another does not take it over.
        if gets_world && (is_allocator || !self.has_world(room)) {
            self.rooms.set_host(room, turn.caller.srv);
        }
        match found {
            Some(index) => self.give_server(turn, self.matches[index].id(), room, values),
            None if self.has_world(room) => return self.change_place(turn, room, &place),
            None => self.give_world(turn, room, values),
        }
        Ok(())
    }

    /// The room of a match that has no server yet.
    pub(crate) fn room_that_waits(&self, found: Id) -> Option<RoomKey> {
        let found = &self.matches[self.match_of(found)?];
        let room = found.room().filter(|_| found.stage() == Stage::Assigning)?;
        self.rooms.find(room)
    }

    /// A match has its server, as the room's data say: its players hear of it.
    pub(crate) fn give_server(&mut self, turn: &mut Turn<'_>, found: Id, room: RoomKey, data: DataMap) {
        let Some(index) = self.match_of(found) else { return };
        let rules = self.queues[self.matches[index].queue()].rules();
        let until = self.now + rules.set.seat_ttl_s * 1_000;
        self.rooms.assign(room, data, until);
        let id = self.rooms[room].id();
        self.note_change(room, Change::of("assigned"), &[]);
        self.timers.set(until, Timer::Seats(id));
        self.make_ready(turn, index, until);
    }
}

/// Writes the world of a room's match as fields of the ready event. The rest of the data, which may
/// be long, is in the room.
pub(crate) fn write_world(room: &Room, out: &mut Vec<u8>) {
    let data = room.data().entries();
    for entry in data.filter(|entry| [b"World" as &[u8], b"Addresses"].contains(&map_key(entry))) {
        write_bytes(out, 11, entry);
    }
}

/// Place where players connect, as a room's data say.
pub(crate) fn connection_of(room: &Room) -> Option<String> {
    serde_json::from_slice(room.data().get(CONNECTION_KEY)?).ok()
}
