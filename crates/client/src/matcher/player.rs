//! Requests of players to a matcher through the gateway: messages of type [`MATCHMAKING`] on
//! GLOBAL.
//!
//! A player sends `{1: method, 2: body}` with a stub of its choice, which the response repeats. The
//! gateway adds the player's role, and permits only methods that concern the player itself.

use bytes::Bytes;
use throng_wire::matcher::{Method, Reader, Status, Writer};

use super::session::{CallError, Notice, read_answer};
use crate::event::ChannelId;

/// Type of the messages, in both directions.
pub const MATCHMAKING: u32 = 110;

/// Request of a player.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchmakingRequest {
    /// Number of a method.
    pub method: u16,
    /// Its request.
    pub body: Bytes,
}

impl MatchmakingRequest {
    /// Creates a call of a method with a body as in the catalogue; the player's own ids may be
    /// omitted.
    #[must_use]
    pub fn new(method: u16, body: Writer) -> Self {
        MatchmakingRequest { method, body: body.into_bytes().into() }
    }

    /// Request to join a room of a mode with a free seat, or to open one.
    #[must_use]
    pub fn join_random_room(mode: &str) -> Self {
        let body = Writer::new().nested(1, Writer::new()).nested(2, Writer::new().str(1, mode));
        Self::new(Method::ROLE_JOIN_RANDOM_ROOM, body)
    }

    /// Request to wait in a queue, alone and without attributes.
    #[must_use]
    pub fn join_queue(queue: &str) -> Self {
        Self::new(Method::CREATE_TICKET, Writer::new().str(1, queue).nested(2, Writer::new()))
    }

    /// Encodes the request, for a message to GLOBAL.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        Writer::new().u64(1, self.method.into()).bytes(2, &self.body).into_bytes()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let body = Reader::new(bytes).ok()?;
        let method = u16::try_from(body.u64(1)).ok()?;
        Some(MatchmakingRequest { method, body: Bytes::copy_from_slice(body.bytes(2)) })
    }
}

/// Notification to a player.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatchmakingEvent {
    /// The response to a request.
    Answered {
        /// The method that was called.
        method: u16,
        /// Body of the response.
        result: Result<Bytes, CallError>,
    },
    /// A notification that names the player.
    Notice(Notice),
    /// The player has joined a match and is subscribed to its channel.
    Entered {
        /// The match.
        room: String,
        /// The channel.
        channel: ChannelId,
    },
    /// The player has left a match, and is no longer subscribed to its channel.
    Left {
        /// The match.
        room: String,
        /// The channel.
        channel: ChannelId,
    },
}

impl MatchmakingEvent {
    /// Encodes the event: {1: method, 2: status, 3: body} for a response, {4: entry} for a
    /// notification, {5: room, 6: channel, 7: 1 if the player is in it} for a match.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let place = |room: &str, channel: ChannelId, is_in| {
            Writer::new().str(5, room).u64(6, channel.0.into()).u64(7, is_in)
        };
        let body = match self {
            MatchmakingEvent::Answered { method, result } => {
                let (status, body) = match result {
                    Ok(body) => (Status::Ok, body.to_vec()),
                    Err(error) => refusal(error),
                };
                Writer::new().u64(1, u64::from(*method)).u64(2, status as u64).bytes(3, &body)
            }
            MatchmakingEvent::Notice(notice) => Writer::new().bytes(4, &notice.to_bytes()),
            MatchmakingEvent::Entered { room, channel } => place(room, *channel, 1),
            MatchmakingEvent::Left { room, channel } => place(room, *channel, 0),
        };
        body.into_bytes()
    }

    /// Decodes the output of [`to_bytes`](Self::to_bytes). `None` for events of later versions.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let body = Reader::new(bytes).ok()?;
        if let Some(entry) = body.last(4) {
            return Notice::parse(entry.value).map(MatchmakingEvent::Notice);
        }
        if body.last(5).is_some() {
            let (room, channel) = (body.str(5).ok()?.to_owned(), ChannelId(u32::try_from(body.u64(6)).ok()?));
            return Some(match body.u64(7) {
                0 => MatchmakingEvent::Left { room, channel },
                _ => MatchmakingEvent::Entered { room, channel },
            });
        }
        let (method, status) = (u16::try_from(body.u64(1)).ok()?, u16::try_from(body.u64(2)).ok()?);
        Some(MatchmakingEvent::Answered { method, result: read_answer(status, body.bytes(3)) })
    }
}

/// Encodes a refusal like the matcher does.
fn refusal(error: &CallError) -> (Status, Vec<u8>) {
    let (status, detail) = match error {
        CallError::Refused { status, detail, .. } => (*status, &detail[..]),
        CallError::Timeout => (Status::Timeout, &[][..]),
        CallError::TooMany(_) => (Status::Overloaded, &[][..]),
        CallError::TooLarge(_) => (Status::TooLarge, &[][..]),
        CallError::Closed | CallError::BadAnswer => (Status::Internal, &[][..]),
    };
    let message = match error {
        CallError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let body = detail.iter().fold(Writer::new().str(1, &message), |body, (key, value)| {
        body.nested(2, Writer::new().str(1, key).str(2, value))
    });
    (status, body.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_survives_the_way() {
        let notice = Notice { roles: vec!["a".to_owned()], kind: 15, body: Bytes::from_static(b"\x08\x01") };
        let refused = CallError::Refused {
            status: Status::RoomFull,
            message: "full".to_owned(),
            detail: vec![("RoomID".to_owned(), "\"x\"".to_owned())],
        };
        for event in [
            MatchmakingEvent::Answered { method: 30, result: Ok(Bytes::from_static(b"\x08\x01")) },
            MatchmakingEvent::Answered { method: 30, result: Err(refused) },
            MatchmakingEvent::Notice(notice),
            MatchmakingEvent::Entered { room: "r".to_owned(), channel: ChannelId(7) },
            MatchmakingEvent::Left { room: "r".to_owned(), channel: ChannelId(7) },
        ] {
            assert_eq!(MatchmakingEvent::parse(&event.to_bytes()), Some(event));
        }
        let request = MatchmakingRequest::new(30, Writer::new().str(1, "x"));
        assert_eq!(MatchmakingRequest::parse(&request.to_bytes()), Some(request));
        assert_eq!(MatchmakingRequest::parse(b"\xFF"), None);
    }
}
