//! Worlds for the matches of rooms that players have filled by themselves.
//!
//! Such a room waits for its world as long as it is sealed and its data name no place.

use std::collections::BTreeSet;

use throng_wire::matcher::{Event, write_bytes, write_nested};

use crate::history::Change;
use crate::id::Id;
use crate::info::{CONNECTION_KEY, DataMap, WORLD_KEY};
use crate::key::RoomKey;
use crate::matcher::{Matcher, write_about};
use crate::placing::{connection_of, write_world};
use crate::problem::Outcome;
use crate::queue::ruleset::WORLD_TIMEOUT_S;
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    /// Returns whether a room waits for its world.
    pub(crate) fn wants_world(&self, index: RoomKey) -> bool {
        let room = &self.rooms[index];
        let has_place = room.data().get(CONNECTION_KEY).is_some();
        self.rooms.rules_of(index).world.is_some() && room.sealed() && !room.deleting() && !has_place
    }

    /// Returns whether a room's match has a world of its own.
    pub(crate) fn has_world(&self, index: RoomKey) -> bool {
        self.rooms[index].data().get(WORLD_KEY).is_some()
    }

    /// Asks the allocator of a mode for the world of a room that is sealed now.
    pub(super) fn ask_for_world(&mut self, turn: &mut Turn<'_>, index: RoomKey) {
        if !self.wants_world(index) {
            return;
        }
        let id = self.rooms[index].id();
        self.timers.set(self.now + WORLD_TIMEOUT_S * 1_000, Timer::Assign(id));
        let rules = self.rooms.rules_of(index);
        let class = rules.world.as_ref().map_or_else(String::new, |world| world.class.clone());
        let Some(server) = self.people.server(rules.allocator.as_bytes()) else { return };
        self.event(Event::MATCH_READY, |out| {
            write_bytes(out, 12, class.as_bytes());
            write_bytes(out, 20, &id.text());
        });
        turn.notices.push(self.people.number(server), std::iter::empty(), &self.scratch.event, 0);
    }

    /// After a start: rooms that wait for their world do so for a whole time at most. One that was
    /// imported has no timer yet; the timer of another may be due earlier.
    pub(crate) fn await_worlds(&mut self) {
        let until = self.now + WORLD_TIMEOUT_S * 1_000;
        let waiting = self.rooms.iter().filter(|(key, _)| self.wants_world(*key));
        let waiting: Vec<Id> = waiting.map(|(_, room)| room.id()).collect();
        for id in waiting {
            self.timers.set(until, Timer::Assign(id));
        }
    }

    /// A room has its world, as its data say: its members are notified.
    pub(crate) fn give_world(&mut self, turn: &mut Turn<'_>, index: RoomKey, data: DataMap) {
        self.rooms.assign(index, data, self.now);
        self.note_change(index, Change::of("assigned"), &[]);
        let room = &self.rooms[index];
        let mut place = Vec::new();
        write_bytes(&mut place, 4, connection_of(room).unwrap_or_default().as_bytes());
        write_world(room, &mut place);
        write_bytes(&mut place, 20, &room.id().text());
        self.event(Event::MATCH_READY, |out| out.extend_from_slice(&place));
        self.tell_room(turn, index, 0);
    }

    /// A room's match has another place, for example because its world has moved: each value that
    /// changed is announced like one that a caller sets.
    pub(crate) fn change_place(
        &mut self,
        turn: &mut Turn<'_>,
        index: RoomKey,
        place: &[(&[u8], &[u8])],
    ) -> Outcome {
        for (key, value) in place {
            let before = std::str::from_utf8(key).ok().and_then(|key| self.rooms[index].data().get(key));
            if before != Some(*value) {
                self.change_data(turn, index, key, value)?;
            }
        }
        Ok(())
    }

    /// Name of the server that gives a room its world, if its mode or queue has one now.
    pub(crate) fn allocator_of(&self, index: RoomKey) -> String {
        let mode = self.rooms.mode(self.rooms[index].mode());
        match self.queues.find(mode.name().as_bytes()) {
            Some(queue) => self.queues[queue].rules().set.allocator.clone(),
            None => mode.rules().allocator.clone(),
        }
    }

    /// Servers that follow the world of a room: the one that gave it, whatever the rules say now,
    /// and the present allocator, which has taken it over.
    fn hosts_of(&self, index: RoomKey) -> BTreeSet<Vec<u8>> {
        let names = [self.rooms[index].host().to_vec(), self.allocator_of(index).into_bytes()];
        names.into_iter().filter(|name| !name.is_empty()).collect()
    }

    /// Returns whether a server follows the world of a room.
    pub(crate) fn hosts_world_of(&self, srv: &str, index: RoomKey) -> bool {
        self.has_world(index) && self.hosts_of(index).contains(srv.as_bytes())
    }

    /// Tells the servers that follow a room's world that the room is gone: its world ends.
    pub(super) fn tell_allocator(&mut self, turn: &mut Turn<'_>, index: RoomKey) {
        if !self.has_world(index) {
            return;
        }
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        let room = &self.rooms[index];
        write_nested(&mut event, Event::ROLE_LEAVE_ROOM, |out| {
            write_nested(out, 1, |out| {
                self.write_room(index, None, out);
            });
            write_about(out, room.id(), room.rev(), "room_deleted");
        });
        for server in self.hosts_of(index).iter().filter_map(|name| self.people.server(name)) {
            turn.notices.push(self.people.number(server), std::iter::empty(), &event, 0);
        }
        self.scratch.event = event;
    }

    /// No world was opened in time: the match is off, and the room ends.
    pub(crate) fn end_without_world(&mut self, turn: &mut Turn<'_>, index: RoomKey) {
        let id = self.rooms[index].id();
        self.event(Event::MATCH_CANCELLED, |out| {
            write_bytes(out, 2, b"no_server");
            write_bytes(out, 20, &id.text());
        });
        self.tell_room(turn, index, 0);
        self.begin_end(turn, index);
    }
}
