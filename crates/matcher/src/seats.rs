//! Seats: places of rooms that are kept for roles.

use throng_wire::matcher::{Event, Method, write_bytes};

use crate::history::Change;
use crate::id::Id;
use crate::info::{Info, RoleRef};
use crate::key::{PlayerKey, RoomKey, TicketKey};
use crate::matcher::{Matcher, fan_out, write_about};
use crate::matches::GAVE_UP;
use crate::queue::State;
use crate::room::{Newcomer, Seat};
use crate::team::two_texts;
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    /// Seats whose time is over become free.
    pub(crate) fn expire_seats(&mut self, turn: &mut Turn<'_>, id: Id) {
        let Some(index) = self.rooms.find(id).filter(|index| !self.rooms[*index].deleting()) else { return };
        loop {
            let now = self.now;
            let is_over = |seat: &Seat| seat.until <= now && !self.is_claimed(id, seat.player);
            let Some(at) = self.rooms[index].seats().iter().position(is_over) else { break };
            let owner = self.rooms[index].seats()[at].player;
            self.free_seat(turn, index, at, "");
            self.people.release(owner);
        }
        if self.rooms[index].seats().iter().any(|seat| seat.until <= self.now) {
            // A claim in time waits for its verdict.
            self.timers.set(self.now + self.config.policy_timeout_ms, Timer::Seats(id));
        }
        self.after_leaving(turn, index);
    }

    /// Takes a seat away from its role and notifies the room. The caller sees to the role and to
    /// what follows for the room.
    fn free_seat(&mut self, turn: &mut Turn<'_>, index: RoomKey, at: usize, reason: &str) {
        let owner = self.rooms[index].seats()[at].player;
        let role = self.people[owner].id().clone();
        self.rooms.expire_seat(index, at, &role);
        let (id, rev) = (self.rooms[index].id(), self.rooms[index].rev());
        self.note_change(index, Change { reason, ..Change::of("seat_expired") }, &[owner]);
        self.event(Event::SEAT_EXPIRED, |out| {
            write_bytes(out, 1, &role);
            write_about(out, id, rev, reason);
        });
        // One notice for each server, the owner's too.
        let members = self.rooms[index].members().iter().map(|member| member.player);
        let told = members.chain([owner]);
        fan_out(&self.people, told, &self.scratch.event, 0, turn.notices);
        self.people.lose_seat(owner, index);
    }

    /// A role gives its seat up, or loses it to a kick.
    pub(crate) fn leave_seat(&mut self, turn: &mut Turn<'_>, index: RoomKey, at: usize, reason: &str) {
        let Seat { player: owner, ticket, .. } = self.rooms[index].seats()[at];
        self.rooms.count_change(index);
        let id = self.rooms[index].id();
        // Another ticket may have its number by now.
        let is_placed = |key: &TicketKey| {
            let ticket = self.queues.get_ticket(*key);
            ticket.is_some_and(|ticket| ticket.state == State::Placing && ticket.room == Some(id))
        };
        if let Some(ticket) = ticket.filter(is_placed) {
            self.queues.change_ticket(ticket, State::Placing, GAVE_UP);
        }
        self.free_seat(turn, index, at, reason);
        self.people.release(owner);
        self.after_leaving(turn, index);
    }

    /// A new member of an exclusive room gives up its seats in others. Seats of matches stay: who
    /// was matched may leave this room for them.
    pub(crate) fn free_other_seats(&mut self, turn: &mut Turn<'_>, index: RoomKey, player: PlayerKey) {
        for other in self.people[player].seats().to_vec() {
            let is_lost = other != index && self.is_exclusive(other) && self.rooms[other].matched().is_none();
            let seat = self.rooms[other].seats().iter().position(|seat| seat.player == player);
            if let Some(at) = seat.filter(|_| is_lost) {
                self.free_seat(turn, other, at, "joined");
                self.after_leaving(turn, other);
            }
        }
    }

    /// Returns whether a claim of a role's seat waits for a policy.
    fn is_claimed(&self, room: Id, player: PlayerKey) -> bool {
        let role = self.people[player].id();
        self.hooks.waiting_about(room).any(|kept| match kept.method {
            Method::CLAIM_SEAT => two_texts(&kept.body).is_ok_and(|(_, own)| own == role.as_slice()),
            Method::ROLE_JOIN_ROOM | Method::ROLE_JOIN_RANDOM_ROOM => {
                Matcher::parse_role_and(&kept.body).is_ok_and(|(own, ..)| own.id == role.as_slice())
            }
            _ => false,
        })
    }

    /// Reserves a place for a role until a time.
    pub(crate) fn reserve(&mut self, index: RoomKey, mut newcomer: Newcomer, until: u64) {
        self.move_newcomer(&mut newcomer);
        self.seat(index, newcomer.player, Some(Box::new(newcomer.info)), until);
        self.note_new_seats(index, self.rooms[index].seats().len() - 1);
        let room = &self.rooms[index];
        self.timers.set(until, Timer::Seats(room.id()));
        self.rooms.reindex(index);
    }

    /// The same for one of several: the caller sets the timer and sees to the indexes.
    pub(crate) fn seat(&mut self, index: RoomKey, player: PlayerKey, info: Option<Box<Info>>, until: u64) {
        self.people.take_seat(player, index);
        self.rooms.add_seats(index, std::iter::once(Seat { player, until, ticket: None, info }));
    }

    /// The role of a seat becomes a member.
    pub(crate) fn end_seat(&mut self, index: RoomKey, player: PlayerKey) {
        let seat = self.rooms[index].seats().iter().position(|seat| seat.player == player);
        if let Some(at) = seat {
            self.rooms.claim_seat(index, at);
            self.note_change(index, Change::of("seat_claimed"), &[player]);
            self.people.lose_seat(player, index);
        }
    }

    /// Info of the role that a seat is kept for.
    pub(crate) fn info_of_seat(&self, seat: &Seat) -> Info {
        seat.info.as_deref().cloned().unwrap_or_else(|| {
            RoleRef::bare(self.people[seat.player].id()).info(self.people.server_of(seat.player), b"")
        })
    }
}
