//! The changes of a room, as they are noted and told.

use crate::history::Change;
use crate::key::{PlayerKey, RoomKey};
use crate::matcher::Matcher;
use crate::problem::Outcome;
use crate::turn::Turn;

impl Matcher {
    pub(crate) fn get_room_history(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let room = self.find_room(crate::team::two_texts(body)?.0)?;
        turn.answer.extend_from_slice(self.rooms[room].history().shown());
        Ok(())
    }

    /// Notes a change of a room that has its revision by now, and whom it concerns.
    pub(crate) fn note_change(&mut self, room: RoomKey, change: Change<'_>, players: &[PlayerKey]) {
        let Matcher { people, rooms, now, .. } = self;
        rooms.note(room, *now, change, players.iter().map(|player| &people[*player].id()[..]));
    }

    /// Notes the seats of a room from one on.
    pub(crate) fn note_new_seats(&mut self, room: RoomKey, first: usize) {
        let Matcher { people, rooms, now, .. } = self;
        rooms.note_new_seats(room, *now, first, |player| people[player].id());
    }
}
