//! Seats: places of rooms that are kept for roles.

use throng_wire::matcher::{Event, Method, write_bytes};

use crate::history::Change;
use crate::id::Id;
use crate::info::{Info, RoleRef};
use crate::matcher::{Matcher, write_about};
use crate::room::{Newcomer, Seat};
use crate::slab::NONE;
use crate::team::two_texts;
use crate::timers::Timer;
use crate::turn::Turn;

impl Matcher {
    /// Seats whose time is over become free.
    pub(crate) fn expire_seats(&mut self, turn: &mut Turn<'_>, id: Id) {
        let index = id.index;
        if self.rooms.get(index).is_none_or(|room| room.id != id || room.deleting) {
            return;
        }
        loop {
            let now = self.now;
            let is_over = |seat: &Seat| seat.until <= now && !self.is_claimed(id, seat.player);
            let Some(at) = self.rooms[index].seats.iter().position(is_over) else { break };
            let room = &mut self.rooms[index];
            let seat = room.seats.remove(at);
            self.modes[room.mode].seats -= 1;
            room.rev += 1;
            let rev = room.rev;
            let role = self.people.players[seat.player].id.clone();
            room.sides.remove(&role);
            self.note_change(index, Change::of("seat_expired"), &[seat.player]);
            self.event(Event::SEAT_EXPIRED, |out| {
                write_bytes(out, 1, &role);
                write_about(out, id, rev, "");
            });
            self.tell_room(turn, index, 0);
            // The one who lost it hears it too.
            let player = &self.people.players[seat.player];
            turn.notices.push(
                self.people.number(player.server),
                std::iter::once(role.as_slice()),
                &self.scratch.event,
                0,
            );
            self.people.lose_seat(seat.player, index);
            self.people.release(seat.player);
        }
        if self.rooms[index].seats.iter().any(|seat| seat.until <= self.now) {
            // A claim in time waits for its verdict.
            self.timers.set(self.now + self.config.policy_timeout_ms, Timer::Seats(id));
        }
        self.after_leaving(turn, index);
    }

    /// Returns whether a claim of a role's seat waits for a policy.
    fn is_claimed(&self, room: Id, player: u32) -> bool {
        let role = &self.people.players[player].id;
        self.hooks.waiting_about(room).any(|kept| match kept.method {
            Method::CLAIM_SEAT => two_texts(&kept.body).is_ok_and(|(_, own)| own == role.as_slice()),
            Method::ROLE_JOIN_ROOM => {
                Matcher::parse_role_and(&kept.body).is_ok_and(|(own, ..)| own.id == role.as_slice())
            }
            _ => false,
        })
    }

    /// Reserves a place for a role until a time.
    pub(crate) fn reserve(&mut self, index: u32, mut newcomer: Newcomer, until: u64) {
        self.move_newcomer(&mut newcomer);
        self.seat(index, newcomer.player, Some(Box::new(newcomer.info)), until);
        self.note_new_seats(index, self.rooms[index].seats.len() - 1);
        let room = &self.rooms[index];
        self.timers.set(until, Timer::Seats(room.id));
        self.reindex_room(index);
    }

    /// The same for one of several: the caller sets the timer and sees to the indexes.
    pub(crate) fn seat(&mut self, index: u32, player: u32, info: Option<Box<Info>>, until: u64) {
        self.people.players[player].seats.push(index);
        self.rooms[index].seats.push(Seat { player, until, ticket: NONE, info });
        self.note_seats(index, 1);
    }

    /// A room has some seats more.
    pub(crate) fn note_seats(&mut self, index: u32, seats: usize) {
        let room = &mut self.rooms[index];
        room.rev += seats as u64;
        let mode = &mut self.modes[room.mode];
        mode.seats += seats as u32;
        let capacity = mode.rules.capacity;
        if !room.forced_full {
            room.full = room.free(capacity) == 0;
        }
    }

    /// Info of the role that a seat is kept for.
    pub(crate) fn info_of_seat(&self, seat: &Seat) -> Info {
        seat.info.as_deref().cloned().unwrap_or_else(|| {
            RoleRef::bare(&self.people.players[seat.player].id).info(self.people.server_of(seat.player), b"")
        })
    }
}
