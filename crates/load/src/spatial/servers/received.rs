//! Messages that a simulated game server receives from the gateway.

use super::{STUB_CELLS, STUB_GLOBAL, STUB_QUERY, State};
use crate::fleet::INPUT_BYTES;
use crate::owner::read_input;
use crate::protocol::{self, Head, Sink, kind};
use crate::spatial::ENTITY_FIRST;
use crate::spatial::avatar::{self, Avatar, Scale};
use crate::world::Input;

/// Something that arrived, to be acted upon when the whole read has been scanned.
#[derive(Debug)]
pub(super) enum Event {
    LoggedIn { recovers: bool },
    Newcomer(u32),
    Claimed,
    Cells(Vec<u32>),
    Ready,
    Queried { player: usize, cell: u32 },
    Enter { cell: u32, conn: u32, x: f32, z: f32 },
    Created { entity: u32 },
    Left { channel: u32 },
    Handover { from: u32, to: u32, entities: Vec<(u32, Option<Avatar>)> },
    Input { entity: u32, input: Input },
    Recovered { channel: u32, avatar: Option<Avatar> },
    RecoveryEnd,
}

/// Messages that arrive for one server.
pub(super) struct Inbox<'a> {
    pub(super) scale: Scale,
    pub(super) state: State,
    pub(super) conn: &'a mut u32,
    pub(super) events: &'a mut Vec<Event>,
    pub(super) messages: &'a mut u64,
}

impl Sink for Inbox<'_> {
    fn message(&mut self, head: Head, body: &[u8], _whole: bool) {
        *self.messages += 1;
        let event = match head.kind {
            kind::INPUT => self.input(head.channel, body),
            kind::AUTH => self.login(body),
            kind::CREATE_CHANNEL if head.stub == STUB_GLOBAL => Some(Event::Claimed),
            kind::CREATE_SPATIAL_CHANNEL if head.stub == STUB_CELLS => {
                Some(Event::Cells(protocol::numbers(body, 1)))
            }
            kind::SPATIAL_CHANNELS_READY => Some(Event::Ready),
            kind::QUERY_SPATIAL_CHANNEL => head.stub.checked_sub(STUB_QUERY).and_then(|player| {
                let cell = *protocol::numbers(body, 1).first()?;
                Some(Event::Queried { player: player as usize, cell })
            }),
            kind::ENTER => {
                let (conn, payload) = protocol::forwarded(body);
                payload.first_chunk().map(|&[a, b, c, d, e, f, g, h]| Event::Enter {
                    cell: head.channel,
                    conn,
                    x: f32::from_le_bytes([a, b, c, d]),
                    z: f32::from_le_bytes([e, f, g, h]),
                })
            }
            kind::CREATE_ENTITY_CHANNEL => {
                let entity = protocol::created_channel(body).checked_sub(ENTITY_FIRST);
                entity.map(|entity| Event::Created { entity })
            }
            kind::UNSUB_FROM_CHANNEL if protocol::subject(body) == *self.conn => {
                Some(Event::Left { channel: head.channel })
            }
            kind::CHANNEL_DATA_HANDOVER => Some(self.handover(body)),
            kind::RECOVERY_CHANNEL_DATA => {
                let (channel, data) = protocol::recovery(body);
                Some(Event::Recovered { channel, avatar: avatar::read(data, self.scale) })
            }
            kind::RECOVERY_END => Some(Event::RecoveryEnd),
            _ => None,
        };
        self.events.extend(event);
    }

    fn completed(&mut self) {}
}

impl Inbox<'_> {
    fn input(&self, channel: u32, body: &[u8]) -> Option<Event> {
        let (_, payload) = protocol::forwarded(body);
        let input = read_input(payload.first_chunk::<INPUT_BYTES>()?);
        Some(Event::Input { entity: channel.checked_sub(ENTITY_FIRST)?, input })
    }

    /// The first answer is to this server's own login; later ones tell the owner of GLOBAL of
    /// players.
    fn login(&mut self, body: &[u8]) -> Option<Event> {
        let (conn, success) = protocol::auth_result(body);
        if !success {
            return None;
        }
        if self.state != State::LoggingIn {
            return Some(Event::Newcomer(conn));
        }
        self.state = State::Claiming;
        *self.conn = conn;
        Some(Event::LoggedIn { recovers: protocol::should_recover(body) })
    }

    fn handover(&self, body: &[u8]) -> Event {
        let (from, to, data) = avatar::handover(body);
        let entities = avatar::listed(data).filter_map(|listed| {
            let entity = listed.net_id.checked_sub(ENTITY_FIRST)?;
            Some((entity, listed.data.and_then(|data| avatar::read(data, self.scale))))
        });
        Event::Handover { from, to, entities: entities.collect() }
    }
}
