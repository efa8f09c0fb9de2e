//! Members of rooms: picking, filling and showing them.

use std::ops::Range;

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bool, write_bytes, write_nested, write_u64};

use super::{CreateInfo, Member, Newcomer, Newcomers, check_unique, decimal, size_of_all};
use crate::config::{Caller, OnFull, Scope, Snapshot};
use crate::id::Id;
use crate::info::{DataMap, ROOM_DATA_FIELD, RoleRef, bytes, check_growth, write_entry};
use crate::key::{RoomKey, ServerKey};
use crate::matcher::{Matcher, fan_out, write_about};
use crate::policy::Verdict;
use crate::problem::{Outcome, Problem, not_found, quote, quote_all};
use crate::queue::role_hash;
use crate::turn::Turn;

/// Members up to which an event carries all of them, where the mode does not say.
const SNAPSHOT_MEMBERS_MAX: usize = 16;
/// Number of the field of a room's revision.
pub(super) const ROOM_REV_FIELD: u32 = 9;
/// Rooms of which a random join asks the policy before it makes one.
const CANDIDATES_MAX: usize = 64;

impl Matcher {
    pub(crate) fn find_room(&self, id: &[u8]) -> Outcome<RoomKey> {
        let found = Id::parse(id).and_then(|id| self.rooms.find(id));
        found.ok_or_else(|| not_found("room does not exist"))
    }

    /// Takes a newcomer's place in the tables. Undone by `release_newcomers` when the join fails.
    pub(crate) fn newcomer<'a>(&mut self, caller: Caller<'a>, role: &RoleRef<'a>) -> Outcome<Newcomer> {
        let srv = self.home_of(caller, role)?;
        let info = role.info(srv, b"");
        if let Some(player) = self.people.player(role.id) {
            let moves = self.people.server_of(player) != srv;
            return Ok(Newcomer { player, info, moves });
        }
        let server = self.people.server_entry(srv);
        Ok(Newcomer { player: self.people.player_entry(role.id, server), info, moves: false })
    }

    /// A newcomer that certainly joins lives where it came from.
    pub(crate) fn move_newcomer(&mut self, newcomer: &mut Newcomer) {
        if std::mem::take(&mut newcomer.moves) {
            let old = self.people[newcomer.player].server();
            let server = self.people.server_entry(newcomer.info.srv());
            self.people.move_to(newcomer.player, server);
            self.people.release_server(old);
        }
    }

    /// Moves a role that is in the requested team or room already to the calling server. When its
    /// former server gives up its roles, this one keeps its team, rooms and tickets.
    pub(crate) fn move_member(&mut self, caller: Caller<'_>, role: &RoleRef<'_>) -> Outcome {
        let mut newcomer = self.newcomer(caller, role)?;
        self.move_newcomer(&mut newcomer);
        Ok(())
    }

    pub(crate) fn release_newcomers(&mut self, newcomers: &[Newcomer]) {
        for newcomer in newcomers {
            self.people.release(newcomer.player);
        }
    }

    /// The live exclusive room that a role is in.
    pub(crate) fn room_of(&self, role: &[u8]) -> Option<RoomKey> {
        self.people[self.people.player(role)?].room()
    }

    pub(crate) fn already_in(&self, room: RoomKey) -> Problem {
        let id = self.rooms[room].id();
        Problem::new(Status::AlreadyInRoom, "the role is in another room").with("RoomID", quote(&id.text()))
    }

    /// A random join's room: the first candidate whose policy admits the newcomers, or `None`.
    ///
    /// # Errors
    /// The policy is to be asked first.
    pub(crate) fn pick_room(&mut self, mode: u16, newcomers: &[Newcomer]) -> Outcome<Option<RoomKey>> {
        let mut found = std::mem::take(&mut self.scratch.candidates);
        let Matcher { rooms, nonces, .. } = self;
        let mode = rooms.mode(mode);
        let rules = mode.rules();
        let vetoes = !rules.unique_float.is_empty() || !rules.unique_string.is_empty() || !rules.exclusive;
        let asks = !rules.policy.is_empty();
        let limit = if vetoes || asks { CANDIDATES_MAX } else { 1 };
        let draw = |count: usize| (nonces.next() % count as u64) as usize;
        mode.open().candidates(rules.select, newcomers.len(), limit, draw, &mut found);
        let picked = if asks {
            self.pick_by_policy(&found, newcomers)
        } else {
            Ok(found.iter().copied().find(|room| self.check_fits(*room, newcomers).is_ok()))
        };
        self.scratch.candidates = found;
        picked
    }

    /// Returns whether some newcomers are members and others are not.
    fn is_split(&self, room: RoomKey, newcomers: &[Newcomer]) -> bool {
        let mut there = newcomers.iter().map(|newcomer| self.rooms[room].has_member(newcomer.player));
        let first = there.next();
        there.any(|is_there| Some(is_there) != first)
    }

    /// Returns whether newcomers share a value with members, seats or each other that must be
    /// unique, their infos are more than the room's has space for, or, where they may be in several
    /// rooms, only some of them are members.
    pub(crate) fn check_fits(&self, room: RoomKey, newcomers: &[Newcomer]) -> Outcome {
        let size = self.rooms[room].size();
        check_growth(size, size + size_of_all(newcomers))?;
        let rules = self.rooms.rules_of(room);
        if !rules.exclusive && self.is_split(room, newcomers) {
            let there = newcomers.iter().filter(|newcomer| self.rooms[room].has_member(newcomer.player));
            let roles = quote_all(there.map(|newcomer| self.people[newcomer.player].id().as_slice()));
            let message = "some members of the team are in the room";
            let id = quote(&self.rooms[room].id().text());
            return Err(Problem::new(Status::AlreadyInRoom, message)
                .with("RoomID", id)
                .with("RoleIDs", roles));
        }
        if rules.unique_float.is_empty() && rules.unique_string.is_empty() {
            return Ok(());
        }
        let members = self.rooms[room].members().iter().map(|member| &member.info);
        // A seat's values are taken, unless its role is the newcomer.
        let is_other = |player| newcomers.iter().all(|newcomer| newcomer.player != player);
        let seats = self.rooms[room].seats().iter().filter(|seat| is_other(seat.player));
        check_unique(rules, members.chain(seats.filter_map(|seat| seat.info.as_deref())), newcomers)
    }

    /// Makes a room with its first members. The caller has checked capacity and limits.
    pub(crate) fn make_room(
        &mut self,
        turn: &mut Turn<'_>,
        mode: u16,
        create: &CreateInfo<'_>,
        mut newcomers: Newcomers,
    ) -> Outcome<RoomKey> {
        self.check_not_draining()?;
        check_unique(self.rooms.mode(mode).rules(), std::iter::empty(), &newcomers)?;
        let (hidden, data) = self.ask_to_create(mode, create)?;
        check_growth(0, data.bytes().len() + size_of_all(&newcomers))?;
        let changes = self.ask_to_begin(mode, hidden, &data, &newcomers)?;
        newcomers.iter_mut().for_each(|newcomer| self.move_newcomer(newcomer));
        let creator = newcomers.first().map(|first| self.people[first.player].server());
        let room = self.insert_room(mode, hidden, data, creator);
        self.admit(turn, room, newcomers, &changes);
        Ok(room)
    }

    /// An empty room, in no index yet.
    pub(crate) fn insert_room(
        &mut self,
        mode: u16,
        hidden: bool,
        data: DataMap,
        creator: Option<ServerKey>,
    ) -> RoomKey {
        let id = self.new_id(self.rooms.next_key().index());
        self.stats.rooms_created += 1;
        if let Some(creator) = creator {
            let is_there = self.people.hold_server(creator, 1);
            debug_assert!(is_there, "the server of a role");
        }
        self.rooms.make(id, self.now, mode, hidden, data, creator)
    }

    /// Adds members, in place of their seats, makes the changes that the policy wants, and tells
    /// everybody. Leaves the room as encoded in `scratch.room`.
    pub(crate) fn admit(
        &mut self,
        turn: &mut Turn<'_>,
        index: RoomKey,
        mut newcomers: Newcomers,
        changes: &Verdict,
    ) {
        newcomers.iter_mut().for_each(|newcomer| self.move_newcomer(newcomer));
        newcomers.iter().for_each(|newcomer| self.end_seat(index, newcomer.player));
        self.stats.roles_joined += newcomers.len() as u64;
        let exclusive = self.rooms.rules_of(index).exclusive;
        let was_sealed = self.rooms[index].sealed();
        let found = self.rooms[index].matched().and_then(|found| self.matches.find(found));
        let Matcher { people, rooms, matches, now, .. } = self;
        if let Some(found) = found.filter(|found| !matches[*found].roster().is_empty()) {
            let joined = newcomers.iter().map(|newcomer| role_hash(people[newcomer.player].id()));
            matches.enlist(found, joined);
        }
        let players: SmallVec<[_; 8]> = newcomers.iter().map(|newcomer| newcomer.player).collect();
        let members = newcomers.into_iter().map(|newcomer| {
            people.enter_room(newcomer.player, index, exclusive);
            Member { player: newcomer.player, info: newcomer.info }
        });
        let first = rooms.admit(index, members);
        rooms.note_joined(index, *now, first, |player| people[player].id());
        self.rooms.change_by_policy(index, changes);
        for player in players.into_iter().filter(|_| exclusive) {
            self.free_other_seats(turn, index, player);
        }
        let deleting = self.rooms[index].deleting();
        self.announce_members(turn, index, first);
        if deleting {
            self.begin_end(turn, index);
        } else {
            if self.rooms[index].sealed() {
                self.end_backfill_of(turn, index);
                if !was_sealed {
                    self.ask_for_world(turn, index);
                }
            }
            self.rooms.reindex(index);
        }
    }

    fn announce_members(&mut self, turn: &mut Turn<'_>, index: RoomKey, first: usize) {
        let mut encoded = std::mem::take(&mut self.scratch.room);
        encoded.clear();
        self.write_room(index, None, &mut encoded);
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        let room = &self.rooms[index];
        let partial = self.sends_partial(index);
        write_nested(&mut event, Event::ROLES_JOIN_ROOM, |out| {
            if partial {
                write_nested(out, 1, |out| self.write_room(index, Some(first..room.members().len()), out));
            } else {
                write_bytes(out, 1, &encoded);
            }
            for member in &room.members()[first..] {
                write_bytes(out, 2, self.people[member.player].id());
            }
            write_about(out, room.id(), room.rev(), "");
        });
        self.scratch.event = event;
        self.scratch.room = encoded;
        self.tell_room(turn, index, 0);
    }

    pub(super) fn sends_partial(&self, index: RoomKey) -> bool {
        let room = &self.rooms[index];
        match self.rooms.rules_of(index).snapshot {
            Snapshot::Full => false,
            Snapshot::Delta => true,
            Snapshot::Auto => room.members().len() > SNAPSHOT_MEMBERS_MAX,
        }
    }

    /// Sends the event in `scratch.event` to the room's members.
    pub(crate) fn tell_room(&self, turn: &mut Turn<'_>, index: RoomKey, collapse: u64) {
        let members = self.rooms[index].members();
        let players = members.iter().map(|member| member.player);
        fan_out(&self.people, players, &self.scratch.event, collapse, turn.notices);
    }

    /// Encodes a room; `only` lists these members instead of all and says so. Returns the place of
    /// the revision in `out`.
    pub(crate) fn write_room(
        &self,
        index: RoomKey,
        only: Option<Range<usize>>,
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        self.write_room_with(index, only, &[], out)
    }

    /// The same as it would be with newcomers.
    pub(crate) fn write_room_with(
        &self,
        index: RoomKey,
        only: Option<Range<usize>>,
        newcomers: &[Newcomer],
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        let room = &self.rooms[index];
        let mode = self.rooms.mode(room.mode());
        let count = room.members().len() + newcomers.len();
        let fills = !newcomers.is_empty() && count as u32 >= mode.rules().capacity;
        write_bytes(out, 1, &room.id().text());
        write_u64(out, 2, room.created());
        write_bytes(out, 3, mode.name().as_bytes());
        let partial = only.is_some();
        for member in &room.members()[only.unwrap_or(0..room.members().len())] {
            write_bytes(out, 4, member.info.bytes());
        }
        for newcomer in newcomers {
            write_bytes(out, 4, newcomer.info.bytes());
        }
        write_bool(out, 5, room.hidden());
        write_bool(out, 6, room.full() || fills);
        write_bool(out, 7, room.deleting() || fills && mode.rules().on_full == OnFull::Delete);
        if !partial {
            if !mode.rules().count_key.is_empty() {
                let mut digits = [0; 20];
                let count = decimal(count as u64, &mut digits);
                write_entry(out, ROOM_DATA_FIELD, mode.rules().count_key.as_bytes(), count);
            }
            out.extend_from_slice(room.data().bytes());
        }
        let rev_start = out.len();
        write_u64(out, ROOM_REV_FIELD, room.rev());
        let rev = rev_start..out.len();
        if !partial {
            out.extend_from_slice(room.sides().bytes());
            for seat in room.seats() {
                write_nested(out, 11, |out| {
                    write_bytes(out, 1, self.people[seat.player].id());
                    write_u64(out, 2, seat.until);
                });
            }
        }
        write_u64(out, 12, count as u64);
        write_bool(out, 13, partial);
        if let Some(world) = &mode.rules().world {
            write_bytes(out, 14, world.class.as_bytes());
        }
        rev
    }

    /// Returns whether the caller may change a room from outside.
    pub(crate) fn owns_room(&self, caller: Caller<'_>, index: RoomKey) -> bool {
        if caller.scope > Scope::Server {
            return true;
        }
        let creator = self.rooms[index].creator();
        creator.is_some_and(|server| self.people[server].id().as_slice() == caller.srv.as_bytes())
    }

    /// Returns whether a member of the room lives on the caller's server.
    pub(crate) fn hosts_in_room(&self, caller: Caller<'_>, index: RoomKey) -> bool {
        let members = self.rooms[index].members();
        members.iter().any(|member| self.people.server_of(member.player) == caller.srv.as_bytes())
    }

    /// Fields of a request to join: a role or team, a room or what to make.
    pub(crate) fn parse_role_and<'a>(body: &'a [u8]) -> Outcome<(RoleRef<'a>, &'a [u8], u64)> {
        let (mut role, mut second, mut third) = (None, &[][..], 0);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => role = Some(RoleRef::parse(bytes(&field)?)?),
                2 => second = bytes(&field)?,
                3 => third = field.scalar,
                _ => {}
            }
        }
        let role = role.ok_or_else(|| crate::problem::invalid("the role is missing"))?;
        Ok((role, second, third))
    }
}
