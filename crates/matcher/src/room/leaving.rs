//! Leaving a room, and its end.

use throng_wire::matcher::{Event, write_bytes, write_nested};

use crate::config::HookPoint;
use crate::history::Change;
use crate::id::Id;
use crate::matcher::{Matcher, write_about};
use crate::policy::Verdict;
use crate::slab::NONE;
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    /// Takes a member out, if it is one: the event with the room as it was, then the removal.
    pub(crate) fn remove_from_room(&mut self, turn: &mut Turn<'_>, index: u32, player: u32, reason: &str) {
        let Some(room) = self.rooms.get_mut(index) else { return };
        let Some(at) = room.members.iter().position(|member| member.player == player) else { return };
        room.rev += 1;
        self.note_change(index, Change { reason, ..Change::of("left") }, &[player]);
        self.leave_event(index, at, reason);
        self.tell_room(turn, index, 0);
        let room = &mut self.rooms[index];
        let member = room.members.remove(at);
        let mode = &mut self.modes[room.mode];
        mode.members -= 1;
        mode.teams -= u32::from(room.has_lost_team(member.info.team()));
        room.sides.remove(&self.people.players[player].id);
        let deleting = room.deleting;
        let entry = &mut self.people.players[player];
        entry.rooms.retain(|other| *other != index);
        if entry.room == index {
            entry.room = NONE;
        }
        self.people.release(player);
        if !deleting {
            self.after_leaving(turn, index);
        }
    }

    /// Applies the policy's changes to a room that a role has left.
    pub(crate) fn change_after_leaving(&mut self, turn: &mut Turn<'_>, index: u32, changes: &Verdict) {
        if self.rooms.get(index).is_none_or(|room| room.deleting) || *changes == Verdict::default() {
            return;
        }
        self.change_by_policy(index, changes);
        if self.rooms[index].deleting {
            self.begin_end(turn, index);
        } else {
            self.reindex_room(index);
        }
    }

    /// A room with a free place more: it goes, opens again, or stays sealed.
    pub(crate) fn after_leaving(&mut self, turn: &mut Turn<'_>, index: u32) {
        let room = &mut self.rooms[index];
        let rules = &self.modes[room.mode].rules;
        if room.members.is_empty() && room.seats.is_empty() && !rules.keep_empty {
            room.deleting = true;
            self.begin_end(turn, index);
            return;
        }
        if !room.sealed && !room.forced_full {
            room.full = room.free(rules.capacity) == 0;
        }
        self.reindex_room(index);
    }

    fn leave_event(&mut self, index: u32, member: usize, reason: &str) {
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        let room = &self.rooms[index];
        let partial = self.sends_partial(index).then_some(member..member + 1);
        write_nested(&mut event, Event::ROLE_LEAVE_ROOM, |out| {
            write_nested(out, 1, |out| self.write_room(index, partial, out));
            write_bytes(out, 2, &self.people.players[room.members[member].player].id);
            write_about(out, room.id, room.rev, reason);
        });
        self.scratch.event = event;
    }

    /// A room that is deleting leaves all indexes, releases its members and ends after its linger.
    pub(crate) fn begin_end(&mut self, turn: &mut Turn<'_>, index: u32) {
        let room = &mut self.rooms[index];
        room.deleting = true;
        let (id, linger) = (room.id, self.modes[room.mode].rules.linger_ms);
        room.history.note((self.now, room.rev), Change::of("deleting"), std::iter::empty());
        for member in &room.members {
            let player = &mut self.people.players[member.player];
            if player.room == index {
                player.room = NONE;
            }
        }
        let seats = std::mem::take(&mut room.seats);
        self.modes[room.mode].seats -= seats.len() as u32;
        for seat in seats {
            self.people.lose_seat(seat.player, index);
            self.people.release(seat.player);
        }
        self.reindex_room(index);
        self.timers.set(self.now + linger, Timer::RoomEnd(id));
        self.end_backfill_of(turn, index);
    }

    /// A room that accepts nobody any more needs no players.
    pub(super) fn end_backfill_of(&mut self, turn: &mut Turn<'_>, index: u32) {
        let backfill = self.rooms[index].backfill;
        if backfill != NONE {
            self.end_backfill(turn, backfill, "room_closed");
        }
    }

    /// The end of the linger: every remaining member gets one leave event, then the room is gone.
    pub(crate) fn end_room(&mut self, turn: &mut Turn<'_>, id: Id) {
        let index = id.index;
        if self.rooms.get(index).is_none_or(|room| room.id != id) {
            return;
        }
        if !self.modes[self.rooms[index].mode].rules.policy.is_empty() {
            let players: Vec<u32> = self.rooms[index].members.iter().map(|member| member.player).collect();
            for player in players {
                self.tell_policy(HookPoint::OnDeletingRole, index, Some(player));
            }
            self.tell_policy(HookPoint::OnDestroy, index, None);
        }
        let mut event = std::mem::take(&mut self.scratch.event);
        let partial = self.sends_partial(index).then_some(0..0);
        for at in 0..self.rooms[index].members.len() {
            self.rooms[index].rev += 1;
            let room = &self.rooms[index];
            let player = &self.people.players[room.members[at].player];
            event.clear();
            write_nested(&mut event, Event::ROLE_LEAVE_ROOM, |out| {
                write_nested(out, 1, |out| self.write_room(index, partial.clone(), out));
                write_bytes(out, 2, &player.id);
                write_about(out, id, room.rev, "room_deleted");
            });
            turn.notices.push(
                self.people.number(player.server),
                std::iter::once(player.id.as_slice()),
                &event,
                0,
            );
        }
        self.scratch.event = event;
        let Some(room) = self.rooms.remove(index) else { return };
        self.stats.rooms_destroyed += 1;
        self.room_of_match_ended(room.matched);
        let mode = &mut self.modes[room.mode];
        mode.rooms -= 1;
        mode.members -= room.members.len() as u32;
        mode.teams -= room.teams_from(0);
        for member in &room.members {
            let entry = &mut self.people.players[member.player];
            entry.rooms.retain(|other| *other != index);
            self.people.release(member.player);
        }
        if room.creator != NONE {
            self.people.servers[room.creator].holds -= 1;
            self.people.release_server(room.creator);
        }
    }
}
