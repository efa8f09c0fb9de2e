//! Events of the client as flat structures, and the memory that they point to.

use std::collections::VecDeque;
use std::ffi::CString;

use bytes::Bytes;
use throng_client::{
    AuthOutcome, CallError, CloseReason, Event, Kind, MatchmakingEvent, RequestFailure, RequestId,
};

use crate::abi::*;

/// Events taken from the client and not yet polled; a list is one event there and several here.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Flat>,
    /// Memory that the event polled last points to.
    shown: Flat,
}

#[derive(Default)]
struct Flat {
    kind: u32,
    request: u32,
    channel: u32,
    channel_type: u32,
    conn: u32,
    msg_type: u32,
    broadcast: u32,
    code: u32,
    flag: u32,
    text: CString,
    data: Bytes,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next event. Its pointers are valid until the call after this one.
    pub(crate) fn next(&mut self) -> Option<ThrongEvent> {
        self.shown = self.waiting.pop_front()?;
        let Flat { kind, request, channel, channel_type, conn, msg_type, broadcast, code, flag, .. } =
            self.shown;
        let (text, data) = (self.shown.text.as_ptr(), &self.shown.data);
        Some(ThrongEvent {
            kind,
            request,
            channel,
            channel_type,
            conn,
            msg_type,
            broadcast,
            code,
            flag,
            text,
            data: data.as_ptr(),
            data_size: data.len(),
        })
    }

    pub(crate) fn take(&mut self, event: Event) {
        let flat = match event {
            Event::Authenticated { conn, recovering, resume_refused } => Flat {
                kind: THRONG_EVENT_AUTHENTICATED,
                conn: conn.0,
                code: resume_refused.into(),
                flag: recovering.into(),
                ..Flat::default()
            },
            Event::Recovered { channels } => {
                self.waiting.extend(channels.into_iter().map(|channel| {
                    let (name, data) =
                        channel.data.map(|data| (data.type_name, data.value)).unwrap_or_default();
                    Flat {
                        kind: THRONG_EVENT_RECOVERED,
                        channel: channel.channel.0,
                        channel_type: channel.channel_type.0,
                        conn: channel.owner.map_or(0, |owner| owner.0),
                        text: text(&name),
                        data,
                        ..Flat::default()
                    }
                }));
                Flat { kind: THRONG_EVENT_RECOVERY_END, ..Flat::default() }
            }
            Event::ChannelCreated { request, channel, channel_type, metadata, owner } => Flat {
                kind: THRONG_EVENT_CREATED,
                request: number(request),
                channel: channel.0,
                channel_type: channel_type.0,
                conn: owner.0,
                text: text(&metadata),
                ..Flat::default()
            },
            Event::ChannelRemoved { request, channel } => Flat {
                kind: THRONG_EVENT_REMOVED,
                request: number(request),
                channel: channel.0,
                ..Flat::default()
            },
            Event::ChannelList { request, channels } => {
                let request = number(request);
                self.waiting.extend(channels.into_iter().map(|entry| Flat {
                    kind: THRONG_EVENT_LISTED,
                    request,
                    channel: entry.channel.0,
                    channel_type: entry.channel_type.0,
                    text: text(&entry.metadata),
                    ..Flat::default()
                }));
                Flat { kind: THRONG_EVENT_LIST_END, request, ..Flat::default() }
            }
            Event::Subscribed { request, channel, conn, kind, channel_type, .. } => Flat {
                kind: THRONG_EVENT_SUBSCRIBED,
                request: number(request),
                channel: channel.0,
                channel_type: channel_type.0,
                conn: conn.0,
                flag: (kind == Kind::Server).into(),
                ..Flat::default()
            },
            Event::Unsubscribed { request, channel, conn, kind, channel_type } => Flat {
                kind: THRONG_EVENT_UNSUBSCRIBED,
                request: number(request),
                channel: channel.0,
                channel_type: channel_type.0,
                conn: conn.0,
                flag: (kind == Kind::Server).into(),
                ..Flat::default()
            },
            Event::Update { channel, type_name, value } => Flat {
                kind: THRONG_EVENT_UPDATE,
                channel: channel.0,
                text: text(&type_name),
                data: value,
                ..Flat::default()
            },
            Event::Message { channel, msg_type, broadcast, client, payload, .. } => Flat {
                kind: THRONG_EVENT_MESSAGE,
                channel: channel.0,
                msg_type,
                conn: client.0,
                broadcast,
                data: payload,
                ..Flat::default()
            },
            Event::Matchmaking { request, event } => matchmaking(number(request), event),
            Event::PeerAuthenticated { conn, outcome, recovering } => Flat {
                kind: THRONG_EVENT_PEER,
                conn: conn.0,
                code: match outcome {
                    AuthOutcome::Successful => 0,
                    AuthOutcome::InvalidPit => 1,
                    AuthOutcome::InvalidLoginToken => 2,
                    AuthOutcome::Other(code) => code.cast_unsigned(),
                },
                flag: recovering.into(),
                ..Flat::default()
            },
            Event::OwnerLost { channel } => {
                Flat { kind: THRONG_EVENT_OWNER_LOST, channel: channel.0, ..Flat::default() }
            }
            Event::OwnerRecovered { channel } => {
                Flat { kind: THRONG_EVENT_OWNER_RECOVERED, channel: channel.0, ..Flat::default() }
            }
            Event::RequestFailed { request, reason } => Flat {
                kind: THRONG_EVENT_REQUEST_FAILED,
                request: request.0,
                code: match reason {
                    RequestFailure::Timeout => 1,
                    RequestFailure::Closed => 2,
                },
                ..Flat::default()
            },
            Event::Closed { reason } => Flat {
                kind: THRONG_EVENT_DISCONNECTED,
                text: text(&reason.to_string()),
                code: match reason {
                    CloseReason::Gateway(code) => code.0.into(),
                    _ => 0,
                },
                ..Flat::default()
            },
            Event::Other { request, channel, msg_type, broadcast, body, .. } => Flat {
                kind: THRONG_EVENT_OTHER,
                request: number(request),
                channel: channel.0,
                msg_type,
                broadcast,
                data: body,
                ..Flat::default()
            },
            // A refusal of a later login ends the connection; what this version does not know is
            // left out.
            _ => return,
        };
        self.waiting.push_back(flat);
    }
}

fn matchmaking(request: u32, event: MatchmakingEvent) -> Flat {
    match event {
        MatchmakingEvent::Answered { method, result } => {
            let (code, why, data) = match result {
                Ok(body) => (0, String::new(), body),
                Err(error) => (status(&error), error.to_string(), Bytes::new()),
            };
            let (text, msg_type) = (text(&why), method.into());
            Flat { kind: THRONG_EVENT_MATCHMAKING, request, msg_type, code, text, data, ..Flat::default() }
        }
        MatchmakingEvent::Notice(notice) => Flat {
            kind: THRONG_EVENT_NOTICE,
            msg_type: notice.kind,
            text: text(notice.name()),
            data: notice.body.clone(),
            ..Flat::default()
        },
        MatchmakingEvent::Entered { room, channel } => {
            Flat { kind: THRONG_EVENT_MATCHED, channel: channel.0, text: text(&room), ..Flat::default() }
        }
        MatchmakingEvent::Left { room, channel } => {
            Flat { kind: THRONG_EVENT_UNMATCHED, channel: channel.0, text: text(&room), ..Flat::default() }
        }
        // Values of later library versions.
        _ => Flat::default(),
    }
}

/// Returns the matcher's status, or 1 for a response that is missing or invalid.
fn status(error: &CallError) -> u32 {
    match error {
        CallError::Refused { status, .. } => *status as u32,
        _ => 1,
    }
}

fn number(request: Option<RequestId>) -> u32 {
    request.map_or(0, |request| request.0)
}

/// Converts a string for C. Zero bytes, which would end it, become spaces.
fn text(text: &str) -> CString {
    CString::new(text).or_else(|_| CString::new(text.replace('\0', " "))).unwrap_or_default()
}
