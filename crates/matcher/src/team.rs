//! The team service.

mod owner;
mod service;

use throng_wire::fields;

use crate::info::{ID_BYTES_MAX, MESSAGE_BYTES_MAX, bytes, check_json, check_len, text};
use crate::problem::{Outcome, Problem, forbidden, lives_elsewhere};

pub(crate) use owner::{TeamMember, Teams};

pub(crate) fn strange_to_team() -> Problem {
    forbidden("no member of the team lives on this server")
}

/// Fields 1 and 2 of a body, as texts.
pub(crate) fn two_texts(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut first, mut second) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => first = text(&field)?,
            2 => second = text(&field)?,
            _ => {}
        }
    }
    check_len(first, ID_BYTES_MAX, "an id")?;
    Ok((first, second))
}

/// A request that a role leaves a team or a room.
#[derive(Default)]
pub(crate) struct Departure<'a> {
    pub(crate) role: &'a [u8],
    /// Id of the team or room.
    pub(crate) place: &'a [u8],
    /// The role that kicks; empty if the role leaves.
    pub(crate) actor: &'a [u8],
    /// The player has disconnected.
    pub(crate) is_lost: bool,
}

impl<'a> Departure<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Outcome<Departure<'a>> {
        let mut departure = Departure::default();
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => departure.role = text(&field)?,
                2 => departure.place = text(&field)?,
                3 => departure.actor = text(&field)?,
                4 => departure.is_lost = field.scalar != 0,
                _ => {}
            }
        }
        Ok(departure)
    }

    /// Refuses a report of a lost player by a server that is not the role's own (`is_own`): the
    /// player may have come back through another one.
    ///
    /// # Errors
    /// The role lives on another server.
    pub(crate) fn check_loss(&self, is_own: bool) -> Outcome {
        if self.is_lost && !is_own { Err(lives_elsewhere()) } else { Ok(()) }
    }

    /// Reason in the notification to the other members.
    pub(crate) fn reason(&self, is_kick: bool) -> &'static str {
        match (is_kick, self.is_lost) {
            (true, _) => "kicked",
            (false, true) => "disconnected",
            (false, false) => "left",
        }
    }
}

/// An id and the message of a broadcast.
pub(crate) fn text_and_message(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut id, mut message) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => id = text(&field)?,
            2 => message = bytes(&field)?,
            _ => {}
        }
    }
    check_len(message, MESSAGE_BYTES_MAX, "Msg")?;
    check_json(message)?;
    Ok((id, message))
}
