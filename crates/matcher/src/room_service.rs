//! The room service: requests about rooms.

mod teams;

use smallvec::smallvec;
use throng_wire::fields;
use throng_wire::matcher::{Event, Status, write_bool, write_bytes, write_nested};

use crate::config::{Caller, Scope};
use crate::history::Change;
use crate::info::{RoleRef, Update, bytes, check_id, text};
use crate::key::{PlayerKey, RoomKey};
use crate::listing::{page_start, write_page};
use crate::matcher::{Matcher, collapse_key, write_about};
use crate::problem::{Outcome, Problem, forbidden, invalid};
use crate::room::{CreateInfo, Newcomer, Newcomers, check_stays_unique};
use crate::team::{Departure, text_and_message, two_texts};
use crate::timers::Timer;
use crate::turn::Turn;

/// Rooms that one answer lists.
pub(crate) const ROOM_LIST_MAX: usize = 1_000;
/// Longest reservation, in seconds.
const RESERVE_S_MAX: u64 = 3_600;
const INFOS_MAX: usize = 1_000;

impl Matcher {
    pub(crate) fn role_join_random_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (role, create, reserve) = Self::parse_role_and(body)?;
        let create = CreateInfo::parse(create)?;
        let mode = self.rooms.modes_mut().resolve(create.mode)?;
        if self.rooms.mode(mode).rules().exclusive
            && let Some(room) = self.room_of(role.id)
        {
            if self.rooms[room].mode() == mode {
                self.move_member(turn.caller, &role)?;
                return self.answer_join(room, false, true, turn.answer);
            }
            return Err(self.already_in(room));
        }
        self.check_open_to(mode, 1)?;
        self.rooms.mode(mode).rules().check_limits(&role)?;
        if reserve > RESERVE_S_MAX {
            return Err(invalid(format!("a seat is reserved for at most {RESERVE_S_MAX} s")));
        }
        if let Some((player, room)) = self.seat_in_mode(role.id, mode) {
            self.home_of(turn.caller, &role)?;
            self.check_acts_for(turn.caller, player)?;
            if reserve > 0 {
                self.move_member(turn.caller, &role)?;
                return self.answer_join(room, false, true, turn.answer);
            }
            self.take_seat(turn, room, player, Some(&role))?;
            return self.answer_encoded(false, turn.answer);
        }
        let newcomer = self.newcomer(turn.caller, &role)?;
        let player = newcomer.player;
        let joined = match reserve {
            0 => self.join_any(turn, mode, &create, smallvec![newcomer]),
            _ => self.reserve_any(mode, &create, newcomer, self.now + reserve * 1_000, turn.answer),
        };
        if joined.is_err() {
            self.people.release(player);
        }
        joined
    }

    /// A role and the room of a mode that keeps a seat for it.
    fn seat_in_mode(&self, role: &[u8], mode: u16) -> Option<(PlayerKey, RoomKey)> {
        let player = self.people.player(role)?;
        let in_time = |room: &&RoomKey| {
            let room = &self.rooms[**room];
            let mut seats = room.seats().iter().filter(|seat| seat.player == player);
            room.mode() == mode && seats.any(|seat| seat.until > self.now)
        };
        Some((player, *self.people[player].seats().iter().find(in_time)?))
    }

    /// All newcomers join an open room that admits them, or one is made.
    fn join_any(
        &mut self,
        turn: &mut Turn<'_>,
        mode: u16,
        create: &CreateInfo<'_>,
        mut newcomers: Newcomers,
    ) -> Outcome {
        if let Some(room) = self.pick_room(mode, &newcomers)? {
            if self.rooms[room].has_member(newcomers[0].player) {
                self.move_newcomer(&mut newcomers[0]);
                return self.answer_join(room, false, true, turn.answer);
            }
            let changes = self.ask_to_admit(room, &newcomers)?;
            self.admit(turn, room, newcomers, &changes);
            return self.answer_encoded(false, turn.answer);
        }
        self.make_room(turn, mode, create, newcomers)?;
        self.answer_encoded(true, turn.answer)
    }

    /// The same with a seat instead of membership: the policy is asked when it is claimed.
    fn reserve_any(
        &mut self,
        mode: u16,
        create: &CreateInfo<'_>,
        mut newcomer: Newcomer,
        until: u64,
        answer: &mut Vec<u8>,
    ) -> Outcome {
        if let Some(room) = self.pick_room(mode, std::slice::from_ref(&newcomer))? {
            if self.rooms[room].has_member(newcomer.player) {
                self.move_newcomer(&mut newcomer);
                return self.answer_join(room, false, true, answer);
            }
            self.reserve(room, newcomer, until);
            return self.answer_join(room, false, false, answer);
        }
        self.check_not_draining()?;
        let (hidden, data) = self.ask_to_create(mode, create)?;
        self.move_newcomer(&mut newcomer);
        let creator = Some(self.people[newcomer.player].server());
        let room = self.insert_room(mode, hidden, data, creator);
        self.reserve(room, newcomer, until);
        self.answer_join(room, true, false, answer)
    }

    pub(crate) fn role_create_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (role, create, _) = Self::parse_role_and(body)?;
        let create = CreateInfo::parse(create)?;
        let mode = self.rooms.modes_mut().resolve(create.mode)?;
        if let Some(room) = self.room_of(role.id).filter(|_| self.rooms.mode(mode).rules().exclusive) {
            return Err(self.already_in(room));
        }
        self.check_open_to(mode, 1)?;
        self.rooms.mode(mode).rules().check_limits(&role)?;
        let newcomer = self.newcomer(turn.caller, &role)?;
        self.make_room_or_release(turn, mode, &create, smallvec![newcomer])?;
        write_bytes(turn.answer, 1, &self.scratch.room);
        Ok(())
    }

    pub(crate) fn role_join_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (role, room, _) = Self::parse_role_and(body)?;
        let room = self.find_room(room)?;
        let known = self.people.player(role.id);
        if known.is_some_and(|player| self.rooms[room].has_member(player)) && !self.rooms[room].deleting() {
            self.move_member(turn.caller, &role)?;
            return self.answer_join(room, false, true, turn.answer);
        }
        if let Some(other) = self.room_of(role.id).filter(|_| self.is_exclusive(room)) {
            return Err(self.already_in(other));
        }
        if let Some(player) = known.filter(|player| self.rooms[room].has_seat(*player)) {
            self.home_of(turn.caller, &role)?;
            self.check_acts_for(turn.caller, player)?;
            self.take_seat(turn, room, player, Some(&role))?;
            return self.answer_encoded(false, turn.answer);
        }
        self.check_joinable(room, 1)?;
        let mode = self.rooms[room].mode();
        self.rooms.mode(mode).rules().check_limits(&role)?;
        let newcomers: Newcomers = smallvec![self.newcomer(turn.caller, &role)?];
        let allowed = self.check_fits(room, &newcomers).and_then(|()| self.ask_to_admit(room, &newcomers));
        let changes = allowed.inspect_err(|_| self.release_newcomers(&newcomers))?;
        self.admit(turn, room, newcomers, &changes);
        self.answer_encoded(false, turn.answer)
    }

    pub(crate) fn role_leave_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let departure = Departure::parse(body)?;
        let Departure { role, place: room, actor, .. } = departure;
        check_id(role, "RoleID")?;
        let index = self.find_room(room)?;
        let seat = self.seat_of(index, role);
        let player = seat.map_or_else(|| self.member_of_room(index, role), |(_, player)| Ok(player))?;
        let own = self.people.server_of(player) == turn.caller.srv.as_bytes();
        departure.check_loss(own)?;
        if !own && !self.owns_room(turn.caller, index) {
            return Err(forbidden(
                "only the role's server, the room's maker or a trusted server may do this",
            ));
        }
        let kicked = !actor.is_empty() && actor != role || !own && turn.caller.scope == Scope::Server;
        let reason = departure.reason(kicked);
        if let Some((at, _)) = seat {
            self.leave_seat(turn, index, at, reason);
            write_nested(turn.answer, 1, |out| self.write_room(index, None, out));
            return Ok(());
        }
        let changes = self.ask_to_remove(index, player)?;
        // The room outlives this call: a deleting room lingers, and linger is not shorter than one
        // step.
        self.remove_from_room(turn, index, player, reason);
        self.change_after_leaving(turn, index, &changes);
        write_nested(turn.answer, 1, |out| self.write_room(index, None, out));
        Ok(())
    }

    pub(crate) fn broadcast_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (room, message) = text_and_message(body)?;
        let index = self.find_room(room)?;
        self.check_has_part_in(turn.caller, index)?;
        let (id, rev) = (self.rooms[index].id(), self.rooms[index].rev());
        self.event(Event::BROADCAST_ROOM, |out| {
            write_bytes(out, 1, message);
            write_about(out, id, rev, "");
        });
        self.tell_room(turn, index, 0);
        Ok(())
    }

    pub(crate) fn set_room_data(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut room, mut key, mut value) = (&[][..], &[][..], &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => room = text(&field)?,
                2 => key = text(&field)?,
                3 => value = bytes(&field)?,
                _ => {}
            }
        }
        let index = self.find_room(room)?;
        self.check_has_part_in(turn.caller, index)?;
        self.rooms.rules_of(index).check_key(key)?;
        self.change_data(turn, index, key, value)
    }

    /// Sets a free-form value of a room, an empty one removes it; its members are notified.
    pub(crate) fn change_data(
        &mut self,
        turn: &mut Turn<'_>,
        index: RoomKey,
        key: &[u8],
        value: &[u8],
    ) -> Outcome {
        let collapses = self.rooms.rules_of(index).collapse;
        self.rooms.set_data(index, key, value)?;
        let (id, rev) = (self.rooms[index].id(), self.rooms[index].rev());
        let collapse = collapse_key(collapses, id, Event::SET_ROOM_DATA, key);
        self.note_change(index, Change { key, ..Change::of("data") }, &[]);
        self.event(Event::SET_ROOM_DATA, |out| {
            write_bytes(out, 2, key);
            write_bytes(out, 3, if value.is_empty() { b"null" } else { value });
            write_about(out, id, rev, "");
        });
        self.tell_room(turn, index, collapse);
        Ok(())
    }

    pub(crate) fn update_room_role_data(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let mut encoded = &[][..];
        for field in fields(body) {
            let field = field?;
            if field.number == 1 {
                encoded = bytes(&field)?;
            }
        }
        let update = Update::parse(encoded)?;
        let index = self.find_room(update.room)?;
        let player = self.member_of_room(index, update.role)?;
        if !self.owns_room(turn.caller, index) {
            self.check_acts_for(turn.caller, player)?;
        }
        let room = &self.rooms[index];
        let at = room.members().iter().position(|member| member.player == player).unwrap_or_default();
        let team = room.members()[at].info.team().to_vec();
        let srv = self.people.server_of(player);
        let next = room.members()[at].info.updated(&update, srv, &team)?;
        check_stays_unique(self.rooms.rules_of(index), room, at, &next)?;
        self.rooms.set_info(index, at, next)?;
        let (id, rev) = (self.rooms[index].id(), self.rooms[index].rev());
        let collapse = collapse_key(
            self.rooms.rules_of(index).collapse && only_one_value(encoded),
            id,
            Event::UPDATE_ROOM_ROLE_DATA,
            &what_it_sets(encoded),
        );
        self.note_change(index, Change::of("role_data"), &[player]);
        self.event(Event::UPDATE_ROOM_ROLE_DATA, |out| {
            write_bytes(out, 1, encoded);
            write_about(out, id, rev, "");
        });
        self.tell_room(turn, index, collapse);
        Ok(())
    }

    pub(crate) fn delete_room(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let Ok(index) = self.find_room(two_texts(body)?.0) else { return Ok(()) };
        if self.rooms[index].deleting() {
            return Ok(());
        }
        if !self.hosts_world_of(turn.caller.srv, index) {
            self.check_has_part_in(turn.caller, index)?;
        }
        self.rooms.count_change(index);
        self.begin_end(turn, index);
        write_bool(turn.answer, 1, true);
        Ok(())
    }

    pub(crate) fn get_room_info(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.find_room(two_texts(body)?.0)?;
        write_nested(turn.answer, 1, |out| self.write_room(index, None, out));
        Ok(())
    }

    pub(crate) fn get_room_infos(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut ids, mut from) = (Vec::new(), &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 if ids.len() == INFOS_MAX => {
                    return Err(crate::problem::too_large(format!("more than {INFOS_MAX} RoomIDs")));
                }
                1 => ids.push(text(&field)?),
                2 => from = text(&field)?,
                _ => {}
            }
        }
        let from = page_start(from)? as usize;
        let rooms = ids.iter().enumerate().skip(from);
        let known = rooms.filter_map(|(at, id)| Some((at, self.find_room(id).ok()?)));
        let write = |(_, room), out: &mut Vec<u8>| {
            write_nested(out, 1, |out| self.write_room(room, None, out));
        };
        write_page(turn.answer, 2, known, |(at, _)| at.to_string(), write);
        Ok(())
    }

    pub(crate) fn get_room_list(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mode, _) = two_texts(body)?;
        if let Some(mode) = self.rooms.modes().find(mode) {
            for room in mode.visible().values().take(ROOM_LIST_MAX) {
                write_bytes(turn.answer, 1, &self.rooms[*room].id().text());
            }
        }
        Ok(())
    }

    pub(crate) fn set_room_flags(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut room, mut hidden, mut full) = (&[][..], None, None);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => room = text(&field)?,
                2 => hidden = Some(field.scalar != 0),
                3 => full = Some(field.scalar != 0),
                _ => {}
            }
        }
        let index = self.find_room(room)?;
        if !self.owns_room(turn.caller, index) {
            return Err(forbidden("only the room's maker or a trusted server may set its flags"));
        }
        if self.rooms[index].deleting() {
            return Err(Problem::new(Status::RoomClosed, "the room is being deleted"));
        }
        self.rooms.set_flags(index, hidden, full);
        let room = &self.rooms[index];
        let (id, rev, hidden, full) = (room.id(), room.rev(), room.hidden(), room.full());
        let reason = match (hidden, full) {
            (false, false) => "open",
            (false, true) => "full",
            (true, false) => "hidden",
            (true, true) => "hidden and full",
        };
        self.note_change(index, Change { reason, ..Change::of("flags") }, &[]);
        self.event(Event::ROOM_FLAGS, |out| {
            write_bool(out, 1, hidden);
            write_bool(out, 2, full);
            write_about(out, id, rev, "");
        });
        self.tell_room(turn, index, 0);
        write_nested(turn.answer, 1, |out| self.write_room(index, None, out));
        Ok(())
    }

    pub(crate) fn claim_seat(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut room, mut id, mut role) = (&[][..], &[][..], None);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => room = text(&field)?,
                2 => id = text(&field)?,
                3 => role = Some(RoleRef::parse(bytes(&field)?)?),
                _ => {}
            }
        }
        check_id(id, "RoleID")?;
        if role.as_ref().is_some_and(|role| role.id != id) {
            return Err(invalid("RoleInfo is about another role"));
        }
        let room = self.find_room(room)?;
        let player = self.people.player(id).ok_or_else(seat_expired)?;
        self.check_acts_for(turn.caller, player)?;
        if self.rooms[room].has_member(player) {
            if let Some(role) = &role {
                self.move_member(turn.caller, role)?;
            }
            write_nested(turn.answer, 1, |out| self.write_room(room, None, out));
            return Ok(());
        }
        self.take_seat(turn, room, player, role.as_ref())?;
        write_bytes(turn.answer, 1, &self.scratch.room);
        Ok(())
    }

    /// Turns a seat into membership; the room is left in `scratch.room`.
    fn take_seat(
        &mut self,
        turn: &mut Turn<'_>,
        room: RoomKey,
        player: PlayerKey,
        role: Option<&RoleRef<'_>>,
    ) -> Outcome {
        // Its timer may still wait behind others. A claim that came in time may have waited for its
        // verdict.
        let at = self.rooms[room]
            .seats()
            .iter()
            .position(|seat| seat.player == player && seat.until > turn.now)
            .ok_or_else(seat_expired)?;
        let other = self.people[player].room().filter(|other| *other != room);
        if let Some(other) = other.filter(|_| self.is_exclusive(room)) {
            return Err(self.already_in(other));
        }
        let kept = self.info_of_seat(&self.rooms[room].seats()[at]);
        if let Some(role) = role {
            self.rooms.rules_of(room).check_limits(role)?;
        }
        let newcomer = match role {
            Some(role) => {
                let Newcomer { info, moves, .. } = self.newcomer(turn.caller, role)?;
                Newcomer { player, info: role.info(info.srv(), kept.team()), moves }
            }
            None => Newcomer { player, info: kept.clone(), moves: false },
        };
        let newcomers: Newcomers = smallvec![newcomer];
        self.check_fits(room, &newcomers)?;
        let changes = self.ask_to_admit(room, &newcomers)?;
        self.admit(turn, room, newcomers, &changes);
        let left = self.rooms[room].seats().iter().map(|seat| seat.until).min();
        if let Some(until) = left {
            let id = self.rooms[room].id();
            self.timers.set(until, Timer::Seats(id));
        }
        Ok(())
    }

    /// Refuses servers that have nothing to do with a room.
    pub(crate) fn check_has_part_in(&self, caller: Caller<'_>, room: RoomKey) -> Outcome {
        if self.owns_room(caller, room) || self.hosts_in_room(caller, room) {
            return Ok(());
        }
        Err(forbidden("only the room's maker, a member's server or a trusted server may do this"))
    }

    pub(crate) fn is_exclusive(&self, room: RoomKey) -> bool {
        self.rooms.rules_of(room).exclusive
    }

    fn member_of_room(&self, index: RoomKey, role: &[u8]) -> Outcome<PlayerKey> {
        self.people
            .player(role)
            .filter(|player| self.rooms[index].has_member(*player))
            .ok_or_else(|| Problem::new(Status::NotAMember, "role does not exist"))
    }

    /// A role's seat in a room, by its place.
    fn seat_of(&self, index: RoomKey, role: &[u8]) -> Option<(usize, PlayerKey)> {
        let player = self.people.player(role)?;
        let at = self.rooms[index].seats().iter().position(|seat| seat.player == player)?;
        Some((at, player))
    }

    /// Returns whether a room has places for so many players without seats in it.
    fn check_joinable(&self, index: RoomKey, size: usize) -> Outcome {
        let room = &self.rooms[index];
        if room.deleting() || room.sealed() {
            return Err(Problem::new(Status::RoomClosed, "the room accepts no more players"));
        }
        let free = room.free(self.rooms.rules_of(index).capacity) as usize;
        if size > 0 && (room.full() || free < size) {
            return Err(Problem::new(Status::RoomFull, "the room is full"));
        }
        Ok(())
    }

    /// A group that no room of the mode could ever hold.
    fn check_open_to(&self, mode: u16, size: usize) -> Outcome {
        if size > self.rooms.mode(mode).rules().capacity as usize {
            if size > 1 {
                return Err(Problem::new(Status::TeamTooLarge, "the team exceeds the mode's capacity"));
            }
            return Err(Problem::new(Status::Refused, "the mode's rooms have no capacity"));
        }
        Ok(())
    }

    fn make_room_or_release(
        &mut self,
        turn: &mut Turn<'_>,
        mode: u16,
        create: &CreateInfo<'_>,
        newcomers: Newcomers,
    ) -> Outcome<RoomKey> {
        let player = newcomers[0].player;
        let made = self.make_room(turn, mode, create, newcomers);
        if made.is_err() {
            self.people.release(player);
        }
        made
    }

    fn answer_join(&self, room: RoomKey, created: bool, already: bool, answer: &mut Vec<u8>) -> Outcome {
        write_nested(answer, 1, |out| self.write_room(room, None, out));
        write_bool(answer, 2, created);
        write_bool(answer, 3, already);
        Ok(())
    }

    /// The answer after [`Matcher::admit`], which left the room encoded.
    fn answer_encoded(&self, created: bool, answer: &mut Vec<u8>) -> Outcome {
        write_bytes(answer, 1, &self.scratch.room);
        write_bool(answer, 2, created);
        Ok(())
    }
}

fn seat_expired() -> Problem {
    Problem::new(Status::SeatExpired, "the role has no seat in this room, or no longer")
}

fn id_and_bytes(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut id, mut second) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => id = text(&field)?,
            2 => second = bytes(&field)?,
            _ => {}
        }
    }
    Ok((id, second))
}

/// Updates of one value replace each other; anything more is sent as it came.
fn only_one_value(update: &[u8]) -> bool {
    fields(update).map_while(Result::ok).filter(|field| field.number >= 3).count() == 1
}

/// Role, kind of value and key of an update of one value.
fn what_it_sets(update: &[u8]) -> Vec<u8> {
    let mut what = Vec::new();
    for field in fields(update).map_while(Result::ok) {
        match field.number {
            2 => what.extend_from_slice(field.value),
            3 | 4 => {
                what.push(field.number as u8);
                let key = fields(field.value).map_while(Result::ok).find(|part| part.number == 1);
                what.extend_from_slice(key.map_or(&[], |key| key.value));
            }
            number @ (5 | 6) => {
                // Adding and removing a tag are about the same value: the later one counts.
                let _ = number;
                what.push(5);
                what.extend_from_slice(field.value);
            }
            _ => {}
        }
    }
    what
}
