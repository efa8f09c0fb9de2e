//! Leaving a room, and its end.

use throng_wire::matcher::{Event, write_bytes, write_nested, write_u64};

use super::members::ROOM_REV_FIELD;
use crate::config::HookPoint;
use crate::history::Change;
use crate::id::Id;
use crate::key::{PlayerKey, RoomKey};
use crate::matcher::{Matcher, write_about};
use crate::policy::Verdict;
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    /// Takes a member out, if it is one: the event with the room as it was, then the removal.
    pub(crate) fn remove_from_room(
        &mut self,
        turn: &mut Turn<'_>,
        index: RoomKey,
        player: PlayerKey,
        reason: &str,
    ) {
        let Some(room) = self.rooms.get(index) else { return };
        let Some(at) = room.members().iter().position(|member| member.player == player) else { return };
        self.rooms.count_change(index);
        self.note_change(index, Change { reason, ..Change::of("left") }, &[player]);
        self.leave_event(index, at, reason);
        self.tell_room(turn, index, 0);
        self.rooms.remove_member(index, at, self.people[player].id());
        self.people.leave_room(player, index);
        if !self.rooms[index].deleting() {
            self.after_leaving(turn, index);
        }
    }

    /// Applies the policy's changes to a room that a role has left.
    pub(crate) fn change_after_leaving(&mut self, turn: &mut Turn<'_>, index: RoomKey, changes: &Verdict) {
        if self.rooms.get(index).is_none_or(|room| room.deleting()) || *changes == Verdict::default() {
            return;
        }
        self.rooms.change_by_policy(index, changes);
        if self.rooms[index].deleting() {
            self.begin_end(turn, index);
        } else {
            self.rooms.reindex(index);
        }
    }

    /// A room with a free place more: it goes, opens again, or stays sealed.
    pub(crate) fn after_leaving(&mut self, turn: &mut Turn<'_>, index: RoomKey) {
        let room = &self.rooms[index];
        let is_empty = room.members().is_empty() && room.seats().is_empty();
        if is_empty && !self.rooms.rules_of(index).keep_empty {
            self.begin_end(turn, index);
        } else {
            self.rooms.open_again(index);
        }
    }

    fn leave_event(&mut self, index: RoomKey, member: usize, reason: &str) {
        let mut event = std::mem::take(&mut self.scratch.event);
        event.clear();
        let room = &self.rooms[index];
        let partial = self.sends_partial(index).then_some(member..member + 1);
        write_nested(&mut event, Event::ROLE_LEAVE_ROOM, |out| {
            write_nested(out, 1, |out| self.write_room(index, partial, out));
            write_bytes(out, 2, self.people[room.members()[member].player].id());
            write_about(out, room.id(), room.rev(), reason);
        });
        self.scratch.event = event;
    }

    /// A room that is deleting leaves all indexes, releases its members and ends after its linger.
    pub(crate) fn begin_end(&mut self, turn: &mut Turn<'_>, index: RoomKey) {
        let seats = self.rooms.begin_end(index, self.now);
        let (id, linger) = (self.rooms[index].id(), self.rooms.rules_of(index).linger_ms);
        for member in self.rooms[index].members() {
            self.people.free_from_room(member.player, index);
        }
        for seat in seats {
            self.people.lose_seat(seat.player, index);
            self.people.release(seat.player);
        }
        self.timers.set(self.now + linger, Timer::RoomEnd(id));
        self.end_backfill_of(turn, index);
        if let Some(found) = self.rooms[index].matched() {
            self.end_unassigned(turn, found, "no_server");
        }
    }

    /// A room that accepts nobody any more needs no players.
    pub(super) fn end_backfill_of(&mut self, turn: &mut Turn<'_>, index: RoomKey) {
        if let Some(backfill) = self.rooms[index].backfill() {
            self.end_backfill(turn, backfill, "room_closed");
        }
    }

    /// The end of the linger: every remaining member gets one leave event, then the room is gone.
    pub(crate) fn end_room(&mut self, turn: &mut Turn<'_>, id: Id) {
        let Some(index) = self.rooms.find(id) else { return };
        if !self.rooms.rules_of(index).policy.is_empty() {
            let players: Vec<PlayerKey> =
                self.rooms[index].members().iter().map(|member| member.player).collect();
            for player in players {
                self.tell_policy(HookPoint::OnDeletingRole, index, Some(player));
            }
            self.tell_policy(HookPoint::OnDestroy, index, None);
        }
        let mut encoded = std::mem::take(&mut self.scratch.room);
        encoded.clear();
        let partial = self.sends_partial(index).then_some(0..0);
        let rev = self.write_room(index, partial, &mut encoded);
        let mut event = std::mem::take(&mut self.scratch.event);
        for at in 0..self.rooms[index].members().len() {
            self.rooms.count_change(index);
            let room = &self.rooms[index];
            let player = &self.people[room.members()[at].player];
            event.clear();
            write_nested(&mut event, Event::ROLE_LEAVE_ROOM, |out| {
                // The events differ in the revision.
                write_nested(out, 1, |out| {
                    out.extend_from_slice(&encoded[..rev.start]);
                    write_u64(out, ROOM_REV_FIELD, room.rev());
                    out.extend_from_slice(&encoded[rev.end..]);
                });
                write_bytes(out, 2, player.id());
                write_about(out, id, room.rev(), "room_deleted");
            });
            turn.notices.push(
                self.people.number(player.server()),
                std::iter::once(player.id().as_slice()),
                &event,
                0,
            );
        }
        self.scratch.event = event;
        self.scratch.room = encoded;
        self.tell_allocator(turn, index);
        let Some(room) = self.rooms.remove(index) else { return };
        self.stats.rooms_destroyed += 1;
        self.room_of_match_ended(room.matched());
        for member in room.members() {
            self.people.leave_room(member.player, index);
        }
        if let Some(creator) = room.creator() {
            self.people.let_go_of_server(creator);
        }
    }
}
