//! The changes of a room, as they are noted and told.

use smallvec::SmallVec;

use crate::history::{Change, NAMED_MAX};
use crate::matcher::Matcher;
use crate::people::People;
use crate::problem::Outcome;
use crate::slab::Slab;
use crate::turn::Turn;

impl Matcher {
    pub(crate) fn get_room_history(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let room = self.find_room(crate::team::two_texts(body)?.0)?;
        turn.answer.extend_from_slice(self.rooms[room].history.shown());
        Ok(())
    }

    /// Notes a change of a room that has its revision by now, and whom it concerns.
    pub(crate) fn note_change(&mut self, room: u32, change: Change<'_>, players: &[u32]) {
        let Matcher { people, rooms, now, .. } = self;
        let room = &mut rooms[room];
        let roles = players.iter().map(|player| role(people, *player));
        room.history.note((*now, room.rev), change, roles);
    }

    /// Notes the seats of a room from one on.
    pub(crate) fn note_new_seats(&mut self, room: u32, first: usize) {
        let Matcher { people, rooms, now, .. } = self;
        let room = &mut rooms[room];
        // Read twice: once from all over the memory.
        let roles: SmallVec<[&[u8]; NAMED_MAX]> =
            room.seats[first..].iter().map(|seat| role(people, seat.player)).collect();
        let roles = roles.iter().copied();
        room.history.note((*now, room.rev), Change::of("seats_made"), roles);
    }
}

fn role(people: &People, player: u32) -> &[u8] {
    let players: &Slab<_> = &people.players;
    &players[player].id
}
