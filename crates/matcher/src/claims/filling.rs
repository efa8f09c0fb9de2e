//! Backfills whose room belongs to another shard than their queue.
//!
//! The backfill is with its queue, where the tickets are; the room knows that it has one. Whatever is asked of a backfill
//! claims the room, which brings the room as it is and keeps others that want to do something with its backfill waiting;
//! joining and leaving go on. A match claims the room too, behind its players, and then asks its shard for seats: whether
//! they fit is decided there. Until the answer comes the match cannot be called off, as what ends the backfill meanwhile
//! waits; but for the end of the room, whose news stand before the refusal.

use serde::{Deserialize, Serialize};
use throng_wire::matcher::Method;

use super::{Key, Known, Letter, Owner};
use crate::id::Id;
use crate::info::{RoleRef, Text};
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::sides::Sides;
use crate::slab::NONE;
use crate::timers::Timer;

/// A room, as a backfill sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RoomCopy {
    /// It accepts nobody any more.
    pub(crate) closed: bool,
    pub(crate) free: u32,
    pub(crate) has_backfill: bool,
    /// Those of its maker and its members, each once.
    pub(crate) servers: Vec<Text>,
    pub(crate) sides: Sides,
    /// Roles that seats are kept for.
    pub(crate) seats: Vec<Text>,
    /// Where its match is played.
    pub(crate) region: Option<Text>,
    pub(crate) connection: Option<String>,
}

/// A seat for a player of a match.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SeatAsked {
    pub(crate) side: u16,
    pub(crate) role: Text,
    pub(crate) server: Text,
    /// Empty where the player came alone.
    pub(crate) team: Text,
}

impl Matcher {
    /// Whether a room is with this shard.
    fn is_room_here(&self, id: Id) -> bool {
        self.shard.of_id(id).is_none_or(|home| home == self.shard.index)
    }

    /// A room of this shard.
    pub(crate) fn copy_room(&self, id: Id) -> Option<RoomCopy> {
        let room = self.rooms.get(id.index).filter(|room| room.id == id)?;
        let maker = self.people.servers.get(room.creator).map(|server| server.id.clone());
        let members = room.members.iter();
        let hosts = members.map(|member| self.people.players[member.player].server);
        let mut hosts: Vec<u32> = hosts.collect();
        hosts.sort_unstable();
        hosts.dedup();
        let servers = hosts.into_iter().map(|server| self.people.servers[server].id.clone()).chain(maker);
        let seats = room.seats.iter().map(|seat| self.people.players[seat.player].id.clone());
        let region = room.matched.and_then(|id| self.match_of(id)).and_then(|found| {
            let regions = &self.queues.list[self.matches[found].queue].regions;
            regions.get(usize::from(self.region_of_match(found)?)).cloned()
        });
        Some(RoomCopy {
            closed: room.deleting || room.sealed,
            free: room.free(self.modes[room.mode].rules.capacity),
            has_backfill: room.backfill != NONE || self.claims.filled.contains_key(&id),
            servers: servers.collect(),
            sides: room.sides.clone(),
            seats: seats.collect(),
            region,
            connection: crate::placing::connection_of(room),
        })
    }

    /// A room of whatever shard, as far as the request under way has claimed it.
    pub(crate) fn view_room(&self, id: Id) -> Option<RoomCopy> {
        if self.is_room_here(id) {
            return self.copy_room(id);
        }
        match self.claims.known_of(|key| *key == Key::Room(id))? {
            Known::Room(room) => room.clone(),
            _ => None,
        }
    }

    /// The room that a request about a backfill claims.
    pub(super) fn room_to_claim(&self, method: u16, body: &[u8]) -> Option<Key> {
        if !matches!(method, Method::UPDATE_BACKFILL | Method::ACK_BACKFILL | Method::STOP_BACKFILL) {
            return None;
        }
        let id = Id::parse(super::text_in(body, 1).ok()?)?;
        let backfill = self.backfills.get(id.index).filter(|backfill| backfill.id == id)?;
        Some(Key::Room(backfill.room))
    }

    /// A room has a backfill of this shard now.
    pub(crate) fn tie_backfill(&mut self, index: u32, sides: Vec<String>) {
        let (room, backfill) = (self.backfills[index].room, self.backfills[index].id);
        if !self.is_room_here(room) {
            let home = self.shard.of_id(room).unwrap_or_default();
            return self.send(home, Letter::Fill { room, backfill, sides });
        }
        if let Some(room) = self.rooms.get_mut(room.index) {
            room.backfill = index;
            room.begin_sides(&sides);
        }
    }

    /// It has it no more.
    pub(crate) fn untie_backfill(&mut self, room: Id, backfill: Id) {
        if !self.is_room_here(room) {
            let home = self.shard.of_id(room).unwrap_or_default();
            self.send(home, Letter::Unfill { room, backfill });
        } else if let Some(entry) = self.rooms.get_mut(room.index).filter(|entry| entry.id == room) {
            entry.backfill = NONE;
        }
    }

    /// A room of this shard has a backfill of another.
    pub(super) fn filled(&mut self, from: u16, id: Id, backfill: Id, sides: Vec<String>) {
        let room = self.rooms.get_mut(id.index).filter(|room| room.id == id);
        match room.filter(|room| !room.deleting && !room.sealed) {
            Some(room) => {
                room.begin_sides(&sides);
                self.claims.filled.insert(id, backfill);
            }
            None => self.send(from, Letter::Closed { backfill }),
        }
    }

    pub(super) fn unfilled(&mut self, room: Id, backfill: Id) {
        if self.claims.filled.get(&room) == Some(&backfill) {
            self.claims.filled.remove(&room);
        }
    }

    /// A room of this shard accepts nobody any more: tells the shard of its backfill.
    pub(crate) fn close_to_others(&mut self, room: Id) {
        if let Some(backfill) = self.claims.filled.remove(&room)
            && let Some(home) = self.shard.of_id(backfill)
        {
            self.send(home, Letter::Closed { backfill });
        }
    }

    pub(super) fn room_closed_elsewhere(&mut self, id: Id, notices: &mut Notices) {
        if self.backfills.get(id.index).is_some_and(|backfill| backfill.id == id) {
            self.end_backfill(id.index, "room_closed", notices);
        }
    }

    /// Asks for the seats of a match whose players are claimed, if it fills a room of another shard.
    pub(super) fn seat_elsewhere(&mut self, job: u64, found: Id) -> bool {
        let Some((room, until, seats)) = self.seats_to_ask(found) else { return false };
        if self.is_room_here(room) {
            return false;
        }
        self.begin_seating(found, until);
        if let Some(job) = self.claims.jobs.get_mut(&job) {
            job.acts = true;
        }
        let home = self.shard.of_id(room).unwrap_or_default();
        self.send(home, Letter::Seat { job, room, until, seats });
        true
    }

    /// Makes seats in a room of this shard, if they all fit.
    pub(super) fn seat_for_another(&mut self, id: Id, until: u64, seats: Vec<SeatAsked>) -> bool {
        let Some(room) = self.rooms.get(id.index).filter(|room| room.id == id) else { return false };
        let free = room.free(self.modes[room.mode].rules.capacity);
        if room.deleting || room.sealed || (free as usize) < seats.len() {
            return false;
        }
        let first = room.seats.len();
        for SeatAsked { side, role, server, team } in seats {
            let server_entry = self.people.server_entry(&server);
            let player = self.people.player_entry(&role, server_entry);
            let info = (!team.is_empty()).then(|| Box::new(RoleRef::bare(&role).info(&server, &team)));
            self.rooms[id.index].sides.change(|sides| {
                if let Some(side) = sides.get_mut(usize::from(side)) {
                    side.players.push(role);
                }
            });
            self.seat(id.index, player, info, until);
        }
        self.note_new_seats(id.index, first);
        self.timers.set(until, Timer::Seats(id));
        self.reindex_room(id.index);
        true
    }

    /// Whether the seats that a match asked for are there. Without its job the match was called off, as the room was.
    pub(super) fn seated_elsewhere(
        &mut self,
        from: u16,
        job: u64,
        done: bool,
        room: Option<RoomCopy>,
        notices: &mut Notices,
    ) {
        let Some(Owner::Match(found)) = self.claims.jobs.get(&job).map(|job| &job.owner) else { return };
        let found = *found;
        self.claims.by_match.remove(&found);
        let backfill = self.backfill_of_match(found);
        self.place_seated(found, done, room, notices);
        self.settle(job, done, done.then_some(from));
        if let Some(id) = backfill
            && let Some(reason) = self.claims.ends.remove(&id)
        {
            self.end_backfill(id.index, &reason, notices);
        }
    }

    /// Rooms of this shard and their backfills, by id: for tests.
    #[doc(hidden)]
    pub fn backfills_of_rooms(&self) -> impl Iterator<Item = (String, String)> {
        let text = |id: Id| String::from_utf8_lossy(&id.text()).into_owned();
        let own = self.rooms.iter().filter(|(_, room)| room.backfill != NONE);
        let own = own.map(move |(_, room)| (text(room.id), text(self.backfills[room.backfill].id)));
        own.chain(self.claims.filled.iter().map(move |(room, backfill)| (text(*room), text(*backfill))))
    }

    /// Backfills of this shard and their rooms, the other way round: for tests.
    #[doc(hidden)]
    pub fn rooms_of_backfills(&self) -> impl Iterator<Item = (String, String)> {
        let text = |id: Id| String::from_utf8_lossy(&id.text()).into_owned();
        self.backfills.iter().map(move |(_, backfill)| (text(backfill.room), text(backfill.id)))
    }

    /// Puts the end of a backfill off whose match has asked for seats. Whether that was needed.
    pub(crate) fn ends_after_seating(&mut self, backfill: Id, reason: &str) -> bool {
        let seats = self.is_seating(backfill);
        if seats {
            self.claims.ends.entry(backfill).or_insert_with(|| reason.to_owned());
        }
        seats
    }
}
