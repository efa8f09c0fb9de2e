//! The rooms and the modes that have them, which only this file and the one of the modes change.

mod modes;

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::config::{CAPACITY_MAX, Config, ModeRules, OnFull};
use crate::history::{Change, History, NAMED_MAX};
use crate::id::Id;
use crate::info::{DataMap, Info, ROOM_DATA_FIELD, check_growth};
use crate::key::{BackfillKey, Numbers, PlayerKey, RoomKey, ServerKey, TicketKey};
use crate::policy::verdict::Verdict;
use crate::problem::{Outcome, ensure};
use crate::schema::v1;
use crate::sides::{Side, Sides};
use crate::slab::{NONE, Slab};

pub(crate) use modes::{Mode, Modes};

/// Every room, and the modes with their indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rooms {
    list: Slab<RoomKey, Room>,
    modes: Modes,
    /// Rooms that were made since the beginning.
    made: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Room {
    id: Id,
    /// Age: rooms made later have greater ones.
    order: u64,
    created: u64,
    rev: u64,
    mode: u16,
    hidden: bool,
    full: bool,
    /// `full` was set from outside, so leaving does not clear it.
    forced_full: bool,
    sealed: bool,
    deleting: bool,
    /// Place where the mode's indexes have it.
    listed: bool,
    open_at: Option<u32>,
    open_place: u32,
    members: Vec<Member>,
    seats: Vec<Seat>,
    data: DataMap,
    sides: Sides,
    /// Server whose role made it.
    creator: Option<ServerKey>,
    /// The match that it is.
    matched: Option<Id>,
    /// Server that gave the match its world; empty for none.
    host: Box<[u8]>,
    backfill: Option<BackfillKey>,
    history: History,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) player: PlayerKey,
    pub(crate) info: Info,
}

/// A place kept for a role.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) player: PlayerKey,
    pub(crate) until: u64,
    /// Ticket that was matched, while it is readable.
    pub(crate) ticket: Option<TicketKey>,
    /// `None` where only the id of the role is known: a large tick makes a hundred thousand such
    /// seats.
    pub(crate) info: Option<Box<Info>>,
}

impl std::ops::Index<RoomKey> for Rooms {
    type Output = Room;

    #[inline]
    fn index(&self, key: RoomKey) -> &Room {
        &self.list[key]
    }
}

impl Rooms {
    pub(crate) fn new(config: &Config) -> Rooms {
        Rooms { modes: Modes::new(config), ..Rooms::default() }
    }

    /// Rooms in the indexes of their modes, which count them.
    pub(crate) fn load(
        saved: &v1::Places<v1::Room<'_>>,
        modes: Modes,
        made: u64,
        unplaced: &'static str,
    ) -> Result<Rooms, &'static str> {
        let rooms = saved.objects.iter().map(|own| (own.id.place, Room::load(own)));
        let list = Slab::from_places(rooms, saved.free.clone()).ok_or(unplaced)?;
        let mut rooms = Rooms { list, modes, made };
        rooms.fill_modes()?;
        Ok(rooms)
    }

    /// Rooms that were exported, by place, among those of modes.
    pub(crate) fn build(
        rooms: Vec<(u32, Room)>,
        free: Vec<u32>,
        modes: Modes,
        made: u64,
    ) -> Result<Rooms, &'static str> {
        let list = Slab::from_places(rooms.into_iter(), free).ok_or("a room is there twice")?;
        let mut rooms = Rooms { list, modes, made };
        rooms.fill_modes()?;
        for key in (0..rooms.list.end()).map(RoomKey::new) {
            if rooms.list.get(key).is_some() {
                rooms.reindex(key);
            }
        }
        Ok(rooms)
    }

    fn fill_modes(&mut self) -> Result<(), &'static str> {
        let mut open = Vec::new();
        for (key, room) in self.list.iter() {
            let mode = self.modes.get_mut(room.mode).ok_or("a room has no mode")?;
            mode.rooms += 1;
            mode.members += room.members.len() as u32;
            mode.seats += room.seats.len() as u32;
            mode.teams += room.teams_from(0);
            if room.listed {
                mode.visible.insert(room.order, key);
            }
            open.extend(room.open_at.map(|free| (room.mode, free, room.open_place, room.order, key)));
        }
        open.sort_unstable();
        for (mode, free, at, order, key) in open {
            if free > CAPACITY_MAX || !self.modes[mode].open.restore(v1::Open { free, at }, order, key) {
                return Err("rooms to join are not in order");
            }
        }
        Ok(())
    }

    /// `ticket` says which tickets of a room's seats are still those of the room.
    pub(crate) fn save(
        &self,
        numbers: &Numbers,
        ticket: impl Fn(&Room, TicketKey) -> bool,
    ) -> v1::Places<v1::Room<'_>> {
        v1::Places {
            objects: self.list.iter().map(|(_, room)| room.save(numbers, |own| ticket(room, own))).collect(),
            free: self.list.free().to_vec(),
        }
    }

    /// Rooms that were made since the beginning.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    pub(crate) fn modes(&self) -> &Modes {
        &self.modes
    }

    /// The modes, whose rules may be changed.
    pub(crate) fn modes_mut(&mut self) -> &mut Modes {
        &mut self.modes
    }

    pub(crate) fn mode(&self, mode: u16) -> &Mode {
        &self.modes[mode]
    }

    /// Rules of a room's mode.
    pub(crate) fn rules_of(&self, key: RoomKey) -> &ModeRules {
        &self.modes[self[key].mode].rules
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get(&self, key: RoomKey) -> Option<&Room> {
        self.list.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RoomKey, &Room)> {
        self.list.iter()
    }

    pub(crate) fn find(&self, id: Id) -> Option<RoomKey> {
        let is_same = self.list.get(RoomKey::new(id.index)).is_some_and(|room| room.id == id);
        is_same.then_some(RoomKey::new(id.index))
    }

    /// The place of the next room that is made.
    pub(crate) fn next_key(&self) -> RoomKey {
        self.list.next_key()
    }

    /// Makes an empty room, in no index yet, at [`next_key`](Rooms::next_key), which `id` names.
    pub(crate) fn make(
        &mut self,
        id: Id,
        now: u64,
        mode: u16,
        hidden: bool,
        data: DataMap,
        creator: Option<ServerKey>,
    ) -> RoomKey {
        self.made += 1;
        self.modes[mode].rooms += 1;
        self.list.insert(Room {
            id,
            order: self.made,
            created: now,
            rev: 0,
            mode,
            hidden,
            full: false,
            forced_full: false,
            sealed: false,
            deleting: false,
            listed: false,
            open_at: None,
            open_place: 0,
            members: Vec::new(),
            seats: Vec::new(),
            data,
            sides: Sides::default(),
            creator,
            matched: None,
            host: Box::default(),
            backfill: None,
            history: History::default(),
        })
    }

    /// Marks a room as that of a match: players join it through the match or a backfill only.
    pub(crate) fn set_matched(&mut self, key: RoomKey, found: Id) {
        let room = &mut self.list[key];
        (room.full, room.forced_full) = (true, true);
        room.matched = Some(found);
    }

    /// Notes which server gave a room its world.
    pub(crate) fn set_host(&mut self, key: RoomKey, srv: &str) {
        self.list[key].host = srv.as_bytes().into();
    }

    pub(crate) fn set_backfill(&mut self, key: RoomKey, backfill: Option<BackfillKey>) {
        self.list[key].backfill = backfill;
    }

    /// Adds members; a room that they fill is sealed or deleting where its mode says so. Returns
    /// the place of the first.
    pub(crate) fn admit(&mut self, key: RoomKey, members: impl Iterator<Item = Member>) -> usize {
        let room = &mut self.list[key];
        let mode = &mut self.modes[room.mode];
        room.rev += 1;
        let first = room.members.len();
        room.members.extend(members);
        mode.members += (room.members.len() - first) as u32;
        mode.teams += room.teams_from(first);
        let capacity = mode.rules.capacity;
        let made = room.members.len() as u32 >= capacity;
        if !room.forced_full {
            room.full = room.free(capacity) == 0;
        }
        if made {
            match mode.rules.on_full {
                // The finished match is shown full and deleting, in the answer and in the event.
                OnFull::Delete => room.deleting = true,
                OnFull::Seal => room.sealed = true,
                OnFull::Keep => {}
            }
        }
        first
    }

    /// Makes a room what its policy wants it to be; `Data` was checked when the verdict came. Not
    /// in the indexes yet.
    pub(crate) fn change_by_policy(&mut self, key: RoomKey, changes: &Verdict) {
        let room = &mut self.list[key];
        room.hidden = changes.hidden.unwrap_or(room.hidden);
        if let Some(full) = changes.full {
            room.forced_full = full;
            room.full = full || room.sealed || room.free(self.modes[room.mode].rules.capacity) == 0;
        }
        room.deleting |= changes.deleting;
        // It was tried on a copy of the same data.
        let _ = changes.set_data(&mut room.data);
    }

    /// Gives a room its next revision.
    pub(crate) fn count_change(&mut self, key: RoomKey) {
        self.list[key].rev += 1;
    }

    /// Takes the member at a place out, whose role is `role`.
    pub(crate) fn remove_member(&mut self, key: RoomKey, at: usize, role: &[u8]) {
        let room = &mut self.list[key];
        let member = room.members.remove(at);
        let mode = &mut self.modes[room.mode];
        mode.members -= 1;
        mode.teams -= u32::from(room.has_lost_team(member.info.team()));
        room.sides.remove(role);
    }

    /// A room with a free place more opens again, unless it is sealed.
    pub(crate) fn open_again(&mut self, key: RoomKey) {
        let room = &mut self.list[key];
        if !room.sealed && !room.forced_full {
            room.full = room.free(self.modes[room.mode].rules.capacity) == 0;
        }
        self.reindex(key);
    }

    /// A room is deleting from now on, in no index any more. Returns its seats, which are gone.
    pub(crate) fn begin_end(&mut self, key: RoomKey, now: u64) -> Vec<Seat> {
        let room = &mut self.list[key];
        room.deleting = true;
        room.history.note((now, room.rev), Change::of("deleting"), std::iter::empty());
        let seats = std::mem::take(&mut room.seats);
        self.modes[room.mode].seats -= seats.len() as u32;
        self.reindex(key);
        seats
    }

    /// Removes a room that is in no index.
    pub(crate) fn remove(&mut self, key: RoomKey) -> Option<Room> {
        let room = self.list.remove(key)?;
        let mode = &mut self.modes[room.mode];
        mode.rooms -= 1;
        mode.members -= room.members.len() as u32;
        mode.teams -= room.teams_from(0);
        Some(room)
    }

    /// Makes space for further seats.
    pub(crate) fn reserve_seats(&mut self, key: RoomKey, count: usize) {
        self.list[key].seats.reserve(count);
    }

    /// Keeps seats. The room is not in the indexes as it is now yet.
    pub(crate) fn add_seats(&mut self, key: RoomKey, seats: impl Iterator<Item = Seat>) {
        let room = &mut self.list[key];
        let before = room.seats.len();
        room.seats.extend(seats);
        let more = room.seats.len() - before;
        room.rev += more as u64;
        let mode = &mut self.modes[room.mode];
        mode.seats += more as u32;
        if !room.forced_full {
            room.full = room.free(mode.rules.capacity) == 0;
        }
    }

    /// Takes the seat at a place away for one who becomes a member.
    pub(crate) fn claim_seat(&mut self, key: RoomKey, at: usize) {
        let room = &mut self.list[key];
        room.seats.remove(at);
        self.modes[room.mode].seats -= 1;
    }

    /// Takes the seat at a place away from a role.
    pub(crate) fn expire_seat(&mut self, key: RoomKey, at: usize, role: &[u8]) {
        self.claim_seat(key, at);
        let room = &mut self.list[key];
        room.rev += 1;
        room.sides.remove(role);
    }

    /// Sets the data of a match that has its server now, and the end of its seats.
    pub(crate) fn assign(&mut self, key: RoomKey, data: DataMap, until: u64) {
        let room = &mut self.list[key];
        room.data = data;
        room.rev += 1;
        room.seats.iter_mut().for_each(|seat| seat.until = until);
    }

    /// Sets a free-form value; an empty one removes it.
    pub(crate) fn set_data(&mut self, key: RoomKey, name: &[u8], value: &[u8]) -> Outcome {
        let room = &mut self.list[key];
        room.data.set_within(ROOM_DATA_FIELD, name, value, room.size())?;
        room.rev += 1;
        Ok(())
    }

    /// Replaces the info of the member at a place.
    pub(crate) fn set_info(&mut self, key: RoomKey, at: usize, info: Info) -> Outcome {
        let room = &mut self.list[key];
        let size = room.size();
        check_growth(size, size - room.members[at].info.bytes().len() + info.bytes().len())?;
        room.members[at].info = info;
        room.rev += 1;
        Ok(())
    }

    /// Sets the flags that are given.
    pub(crate) fn set_flags(&mut self, key: RoomKey, hidden: Option<bool>, full: Option<bool>) {
        let room = &mut self.list[key];
        let free = room.free(self.modes[room.mode].rules.capacity);
        room.hidden = hidden.unwrap_or(room.hidden);
        if let Some(full) = full {
            room.forced_full = full;
            room.full = full || room.sealed || free == 0;
        }
        room.rev += 1;
        self.reindex(key);
    }

    /// Gives a room that has no sides these.
    pub(crate) fn begin_sides<'a, P: IntoIterator<Item = &'a [u8]>>(
        &mut self,
        key: RoomKey,
        sides: impl Iterator<Item = (&'a [u8], P)>,
        spare: &mut Vec<u8>,
    ) {
        let room = &mut self.list[key];
        if room.sides.is_empty() {
            room.sides = Sides::new(sides, spare);
        }
    }

    pub(crate) fn change_sides(&mut self, key: RoomKey, change: impl FnOnce(&mut Vec<Side>)) {
        self.list[key].sides.change(change);
    }

    /// Notes a change of a room that has its revision by now, and the roles that it concerns.
    pub(crate) fn note<'a>(
        &mut self,
        key: RoomKey,
        now: u64,
        change: Change<'_>,
        roles: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) {
        let room = &mut self.list[key];
        room.history.note((now, room.rev), change, roles);
    }

    /// Notes the members of a room from one on.
    pub(crate) fn note_joined<'a>(
        &mut self,
        key: RoomKey,
        now: u64,
        first: usize,
        role: impl Fn(PlayerKey) -> &'a [u8] + Clone,
    ) {
        let room = &mut self.list[key];
        let joined = room.members[first..].iter().map(|member| role(member.player));
        room.history.note((now, room.rev), Change::of("joined"), joined);
    }

    /// Notes the seats of a room from one on.
    pub(crate) fn note_new_seats<'a>(
        &mut self,
        key: RoomKey,
        now: u64,
        first: usize,
        role: impl Fn(PlayerKey) -> &'a [u8],
    ) {
        let room = &mut self.list[key];
        // Read twice: once from all over the memory.
        let roles: SmallVec<[&[u8]; NAMED_MAX]> =
            room.seats[first..].iter().map(|seat| role(seat.player)).collect();
        room.history.note((now, room.rev), Change::of("seats_made"), roles.iter().copied());
    }

    /// Makes the mode's indexes agree with the room.
    pub(crate) fn reindex(&mut self, key: RoomKey) {
        let room = &mut self.list[key];
        let mode = &mut self.modes[room.mode];
        let lists = !room.deleting && !room.hidden;
        if lists != room.listed {
            room.listed = lists;
            if lists {
                mode.visible.insert(room.order, key);
            } else {
                mode.visible.remove(&room.order);
            }
        }
        let free = room.free(mode.rules.capacity);
        let is_open = !room.deleting
            && !room.full
            && !room.sealed
            && free > 0
            && (!room.hidden || mode.rules.random_joins_hidden);
        let wanted = is_open.then_some(free);
        if wanted == room.open_at {
            return;
        }
        let (order, old, place) = (room.order, room.open_at, room.open_place);
        room.open_at = wanted;
        let mut moved = None;
        if let Some(old) = old {
            moved = mode.open.remove(old as usize, order, place as usize);
        }
        if let Some(free) = wanted {
            mode.open.insert(free as usize, order, key);
            room.open_place = mode.open.last_place(free as usize) as u32;
        }
        if let Some(moved) = moved {
            self.list[moved].open_place = place;
        }
    }

    /// Checks each room and the counts and indexes of each mode.
    pub(crate) fn check_invariants(&self) -> Result<(), &'static str> {
        let mut counts: BTreeMap<u16, [u32; 4]> = BTreeMap::new();
        for (key, room) in self.iter() {
            ensure(room.id.index == key.index(), "the id of a room")?;
            let own = counts.entry(room.mode).or_default();
            let (members, seats) = (room.members.len() as u32, room.seats.len() as u32);
            for (count, more) in own.iter_mut().zip([1, members, seats, room.teams_from(0)]) {
                *count += more;
            }
        }
        for (number, mode) in (0..).zip(self.modes.iter()) {
            let counted = counts.remove(&number).unwrap_or_default();
            ensure([mode.rooms, mode.members, mode.seats, mode.teams] == counted, "the counts of a mode")?;
            for (order, room) in &mode.visible {
                let is_shown = |room: &Room| room.order == *order && !room.hidden && !room.deleting;
                ensure(self.get(*room).is_some_and(is_shown), "a room that is listed")?;
            }
        }
        ensure(counts.is_empty(), "the mode of a room")
    }
}

impl Room {
    /// `ticket` says which tickets of seats are still those of this room.
    fn save(&self, numbers: &Numbers, ticket: impl Fn(TicketKey) -> bool) -> v1::Room<'_> {
        v1::Room {
            id: self.id.into(),
            number: self.order,
            created: self.created,
            rev: self.rev,
            mode: self.mode,
            hidden: self.hidden,
            full: self.full,
            forced_full: self.forced_full,
            sealed: self.sealed,
            deleting: self.deleting,
            open: self.open_at.map(|free| v1::Open { free, at: self.open_place }),
            members: self.members.iter().map(|member| member.save(numbers)).collect(),
            seats: self.seats.iter().map(|seat| seat.save(numbers, &ticket)).collect(),
            data: self.data.bytes(),
            sides: self.sides.bytes(),
            creator: self.creator.and_then(|creator| numbers.server(creator)),
            matched: self.matched.map(Id::into),
            host: &self.host,
            backfill: self.backfill.map(BackfillKey::index),
            history: self.history.bytes(),
        }
    }

    pub(super) fn load(saved: &v1::Room<'_>) -> Room {
        let member = |member: &v1::Member<'_>| Member {
            player: PlayerKey::new(member.player),
            info: Info::load(member.info),
        };
        let seat = |seat: &v1::Seat<'_>| Seat {
            player: PlayerKey::new(seat.player),
            until: seat.until,
            ticket: seat.ticket.map(TicketKey::new),
            info: seat.info.map(|info| Box::new(Info::load(info))),
        };
        Room {
            id: saved.id.into(),
            order: saved.number,
            created: saved.created,
            rev: saved.rev,
            mode: saved.mode,
            hidden: saved.hidden,
            full: saved.full,
            forced_full: saved.forced_full,
            sealed: saved.sealed,
            deleting: saved.deleting,
            listed: !saved.deleting && !saved.hidden,
            open_at: saved.open.map(|open| open.free),
            open_place: saved.open.map_or(0, |open| open.at),
            members: saved.members.iter().map(member).collect(),
            seats: saved.seats.iter().map(seat).collect(),
            data: DataMap::load(saved.data),
            sides: Sides::load(saved.sides),
            creator: saved.creator.map(ServerKey::new),
            matched: saved.matched.map(Id::from),
            host: saved.host.into(),
            backfill: saved.backfill.map(BackfillKey::new),
            history: History::load(saved.history),
        }
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// Age: rooms made later have greater ones.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    pub(crate) fn rev(&self) -> u64 {
        self.rev
    }

    pub(crate) fn mode(&self) -> u16 {
        self.mode
    }

    pub(crate) fn hidden(&self) -> bool {
        self.hidden
    }

    pub(crate) fn full(&self) -> bool {
        self.full
    }

    /// `full` was set from outside, so leaving does not clear it.
    pub(crate) fn forced_full(&self) -> bool {
        self.forced_full
    }

    pub(crate) fn sealed(&self) -> bool {
        self.sealed
    }

    pub(crate) fn deleting(&self) -> bool {
        self.deleting
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(crate) fn seats(&self) -> &[Seat] {
        &self.seats
    }

    pub(crate) fn data(&self) -> &DataMap {
        &self.data
    }

    pub(crate) fn sides(&self) -> &Sides {
        &self.sides
    }

    /// Server whose role made it.
    pub(crate) fn creator(&self) -> Option<ServerKey> {
        self.creator
    }

    /// The match that it is.
    pub(crate) fn matched(&self) -> Option<Id> {
        self.matched
    }

    /// Server that gave the match its world; empty for none.
    pub(crate) fn host(&self) -> &[u8] {
        &self.host
    }

    pub(crate) fn backfill(&self) -> Option<BackfillKey> {
        self.backfill
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Number of teams among the members from `first` on that have no member before `first`. Cost:
    /// O(members), and a look-up each.
    fn teams_from(&self, first: usize) -> u32 {
        let (before, after) = self.members.split_at(first);
        let teams = after.iter().map(|member| member.info.team()).filter(|team| !team.is_empty());
        let mut teams: BTreeSet<&[u8]> = teams.collect();
        if !teams.is_empty() {
            before.iter().for_each(|member| {
                teams.remove(member.info.team());
            });
        }
        teams.len() as u32
    }

    /// Returns whether a role that has left was the last of its team.
    fn has_lost_team(&self, team: &[u8]) -> bool {
        !team.is_empty() && self.members.iter().all(|member| member.info.team() != team)
    }

    pub(crate) fn free(&self, capacity: u32) -> u32 {
        capacity.saturating_sub((self.members.len() + self.seats.len()) as u32)
    }

    /// Bytes of data and members, which are nearly all of its info. Cost: O(members).
    pub(crate) fn size(&self) -> usize {
        let members: usize = self.members.iter().map(|member| member.info.bytes().len()).sum();
        self.data.bytes().len() + members
    }

    pub(crate) fn has_member(&self, player: PlayerKey) -> bool {
        self.members.iter().any(|member| member.player == player)
    }

    pub(crate) fn has_seat(&self, player: PlayerKey) -> bool {
        self.seats.iter().any(|seat| seat.player == player)
    }
}

impl Member {
    fn save(&self, numbers: &Numbers) -> v1::Member<'_> {
        v1::Member { player: numbers.player(self.player).unwrap_or(NONE), info: self.info.bytes() }
    }
}

impl Seat {
    fn save(&self, numbers: &Numbers, ticket: impl Fn(TicketKey) -> bool) -> v1::Seat<'_> {
        v1::Seat {
            player: numbers.player(self.player).unwrap_or(NONE),
            until: self.until,
            ticket: self.ticket.filter(|own| ticket(*own)).map(TicketKey::index),
            info: self.info.as_deref().map(Info::bytes),
        }
    }
}
