//! Seats: places of rooms that are kept for roles.

use throng_wire::matcher::{Event, Method, write_bytes};

use crate::history::Change;
use crate::id::Id;
use crate::info::{Info, RoleRef};
use crate::key::{PlayerKey, RoomKey};
use crate::matcher::{Matcher, fan_out, write_about};
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
            let Some(seat) = self.rooms[index].seats().iter().find(|seat| is_over(seat)) else { break };
            self.free_seat(turn, index, seat.player);
        }
        if self.rooms[index].seats().iter().any(|seat| seat.until <= self.now) {
            // A claim in time waits for its verdict.
            self.timers.set(self.now + self.config.policy_timeout_ms, Timer::Seats(id));
        }
        self.after_leaving(turn, index);
    }

    /// A role's seat is free again; the caller sees to the room, which may be empty.
    pub(crate) fn free_seat(&mut self, turn: &mut Turn<'_>, index: RoomKey, owner: PlayerKey) {
        let Some(at) = self.rooms[index].seats().iter().position(|seat| seat.player == owner) else { return };
        let role = self.people[owner].id().clone();
        self.rooms.expire_seat(index, at, &role);
        let (id, rev) = (self.rooms[index].id(), self.rooms[index].rev());
        self.note_change(index, Change::of("seat_expired"), &[owner]);
        self.event(Event::SEAT_EXPIRED, |out| {
            write_bytes(out, 1, &role);
            write_about(out, id, rev, "");
        });
        // One notice for each server, the owner's too.
        let members = self.rooms[index].members().iter().map(|member| member.player);
        let told = members.chain([owner]);
        fan_out(&self.people, told, &self.scratch.event, 0, turn.notices);
        self.people.lose_seat(owner, index);
        self.people.release(owner);
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
