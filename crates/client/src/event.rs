//! Identifiers and events.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use throng_wire::channeldpb as pb;

use crate::matcher::MatchmakingEvent;
use crate::options::SubscribeOptions;

/// Id of a connection; 0 stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Id of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

impl ChannelId {
    /// The channel that exists from the start; requests that concern no particular channel are sent
    /// to it.
    pub const GLOBAL: ChannelId = ChannelId(0);
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Type of a channel; any number may be used beside the named ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelType(pub u32);

impl ChannelType {
    /// The one channel with id 0.
    pub const GLOBAL: ChannelType = ChannelType(1);
    /// A channel between a few connections.
    pub const PRIVATE: ChannelType = ChannelType(2);
    /// A world of its own: a room, a match.
    pub const SUBWORLD: ChannelType = ChannelType(3);
    /// A cell of the spatial grid.
    pub const SPATIAL: ChannelType = ChannelType(4);
    /// One entity.
    pub const ENTITY: ChannelType = ChannelType(5);

    /// Enum fields travel as `int32`; the bits stay.
    pub(crate) fn to_wire(self) -> i32 {
        self.0.cast_signed()
    }

    pub(crate) fn from_wire(value: i32) -> Self {
        ChannelType(value.cast_unsigned())
    }
}

/// Kind of a connection, determined by its listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A player.
    Client,
    /// A game server.
    Server,
}

impl Kind {
    pub(crate) fn from_wire(value: i32) -> Self {
        if value == pb::ConnectionType::Server as i32 { Kind::Server } else { Kind::Client }
    }
}

/// A request that waits for its answer; the stub id on the wire. Unique among those waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

/// Result of an authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthOutcome {
    /// Admitted.
    Successful,
    /// The player identifier token was refused.
    InvalidPit,
    /// The login token was refused.
    InvalidLoginToken,
    /// A code that this version does not know.
    Other(i32),
}

/// Failure of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFailure {
    /// No response in time. The protocol has no negative responses, so a refusal looks the same.
    Timeout,
    /// The connection ended before the response.
    Closed,
}

/// Code with which the gateway closes a connection; `docs/transports.md` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// Another connection requested the closure.
    pub const KICKED: CloseCode = CloseCode(4001);
    /// The player or the address is banned.
    pub const BANNED: CloseCode = CloseCode(4002);
    /// The player resumed its session on a newer connection.
    pub const SUPERSEDED: CloseCode = CloseCode(4005);
    /// The gateway is full.
    pub const FULL: CloseCode = CloseCode(1013);
    /// This connection exceeded a rate limit.
    pub const RATE: CloseCode = CloseCode(4004);

    /// True if the gateway does not accept the connection again.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::KICKED | Self::BANNED | Self::SUPERSEDED)
    }

    /// True if the gateway accepts the connection again only later.
    #[must_use]
    pub fn is_overload(self) -> bool {
        matches!(self, Self::FULL | Self::RATE)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            1001 => "shutting down",
            1008 => "protocol violation",
            1011 => "internal error",
            1012 => "the world was restarted",
            1013 => "full",
            4001 => "kicked",
            4002 => "banned",
            4003 => "login",
            4004 => "rate limit exceeded",
            4005 => "superseded",
            4007 => "idle",
            4010 => "unknown world",
            4011 => "wrong world",
            4012 => "the world was closed",
            4013 => "another node serves the world",
            4014 => "the world has moved",
            4015 => "the world is not served now",
            _ => "other",
        };
        write!(f, "{text} ({})", self.0)
    }
}

/// Reason for the end of a session's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The transport ended.
    Transport,
    /// The gateway closed the connection and gave a [code](CloseCode); only WebSockets carry one.
    Gateway(CloseCode),
    /// The gateway sent an invalid frame.
    BadFrame(String),
    /// Another node of the cluster serves the world. [`Client`](crate::Client) goes there, and
    /// reports this only if its search fails.
    Elsewhere {
        /// Addresses of the node, as the gateway knows them; not all of them need be endpoints.
        addresses: Vec<String>,
        /// The world, for [`Session::set_world`](crate::Session::set_world).
        world: String,
        /// Endpoints on the way up to here, if the client went there itself.
        way: Vec<String>,
    },
    /// No authentication result in time.
    AuthTimeout,
    /// The application did not read its events.
    EventsNotTaken {
        /// The bound that was exceeded.
        limit: usize,
    },
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Transport => f.write_str("transport ended"),
            CloseReason::Gateway(code) => write!(f, "the gateway closed the connection: {code}"),
            CloseReason::BadFrame(error) => write!(f, "gateway sent a bad frame: {error}"),
            CloseReason::Elsewhere { addresses, world, way } => {
                let addresses =
                    if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
                write!(f, "world_elsewhere: another node serves the world `{world}`, at {addresses}")?;
                if way.is_empty() { Ok(()) } else { write!(f, "; the way here: {}", way.join(", ")) }
            }
            CloseReason::AuthTimeout => f.write_str("no authentication result in time"),
            CloseReason::EventsNotTaken { limit } => write!(f, "more than {limit} events were not read"),
        }
    }
}

/// A serialized message with the full name of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Full name, without prefix: `chatpb.ChatChannelData`.
    pub type_name: String,
    /// The message.
    pub value: Bytes,
}

impl Payload {
    /// A payload from its parts.
    pub fn new(type_name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Payload { type_name: type_name.into(), value: value.into() }
    }

    pub(crate) fn from_any(any: prost_types::Any) -> Self {
        let type_name = any.type_url.rsplit('/').next().unwrap_or_default().to_owned();
        Payload { type_name, value: any.value.into() }
    }

    pub(crate) fn to_any(&self) -> prost_types::Any {
        prost_types::Any {
            type_url: format!("type.googleapis.com/{}", self.type_name),
            value: self.value.to_vec(),
        }
    }
}

/// A channel in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelEntry {
    /// Its id.
    pub channel: ChannelId,
    /// Its type.
    pub channel_type: ChannelType,
    /// Metadata that its creator set.
    pub metadata: String,
}

/// A channel to which a recovered connection is subscribed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredChannel {
    /// Its id.
    pub channel: ChannelId,
    /// Its type.
    pub channel_type: ChannelType,
    /// Metadata that its creator set.
    pub metadata: String,
    /// Its owner, if one is live.
    pub owner: Option<ConnId>,
    /// Time of the lost subscription, in nanoseconds since 1970.
    pub subscribed_at_unix_ns: i64,
    /// Options of the subscription.
    pub options: SubscribeOptions,
    /// The channel's data as it is now; updates follow.
    pub data: Option<Payload>,
    /// Data of a gateway extension.
    pub extension: Option<Payload>,
}

/// Event that a session reports to its application.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The gateway admitted this connection. If `recovering`, [`Event::Recovered`] follows, and
    /// messages sent before it wait for it.
    Authenticated {
        /// The id of this connection; the previous id if it was recovered or resumed.
        conn: ConnId,
        /// The gateway restores the subscriptions of a lost connection.
        recovering: bool,
        /// The gateway no longer knows the session that was to be resumed, so this is a new one.
        resume_refused: bool,
    },
    /// The gateway refused; [`Session::authenticate`](crate::Session::authenticate) tries again.
    AuthRefused {
        /// Why.
        outcome: AuthOutcome,
    },
    /// The subscriptions of the lost connection are restored, oldest first. Events that arrived
    /// during the recovery follow.
    Recovered {
        /// Restored state.
        channels: Vec<RecoveredChannel>,
    },
    /// A channel was created: by this connection, or as a copy to the owner of GLOBAL.
    ChannelCreated {
        /// The request that this answers.
        request: Option<RequestId>,
        /// Its id.
        channel: ChannelId,
        /// Its type.
        channel_type: ChannelType,
        /// Metadata that its creator set.
        metadata: String,
        /// Its owner.
        owner: ConnId,
    },
    /// A channel was removed.
    ChannelRemoved {
        /// The request that this answers.
        request: Option<RequestId>,
        /// Its id.
        channel: ChannelId,
    },
    /// Channels that match a list request. A long list may come in several events, of which the
    /// first names the request.
    ChannelList {
        /// The request that this answers.
        request: Option<RequestId>,
        /// In no particular order.
        channels: Vec<ChannelEntry>,
    },
    /// A connection was subscribed to a channel, or the access of its subscription changed. The
    /// requesting connection, the subscribed one and the channel's owner receive this event.
    Subscribed {
        /// The request that this answers.
        request: Option<RequestId>,
        /// The channel.
        channel: ChannelId,
        /// The subscribed connection.
        conn: ConnId,
        /// Its kind.
        kind: Kind,
        /// The options in force.
        options: SubscribeOptions,
        /// Type of the channel.
        channel_type: ChannelType,
    },
    /// A connection was unsubscribed.
    Unsubscribed {
        /// The request that this answers.
        request: Option<RequestId>,
        /// The channel.
        channel: ChannelId,
        /// The connection.
        conn: ConnId,
        /// Its kind.
        kind: Kind,
        /// Type of the channel.
        channel_type: ChannelType,
    },
    /// Channel data. The first update of a subscription is the full state, and later ones must be
    /// merged into it. A client that fell far behind may receive a full state again.
    Update {
        /// The channel.
        channel: ChannelId,
        /// Full name of the data type.
        type_name: Arc<str>,
        /// The serialized message.
        value: Bytes,
    },
    /// A user-space message.
    Message {
        /// The channel that it was sent to.
        channel: ChannelId,
        /// Its number, from 100 on.
        msg_type: u32,
        /// The broadcast value of the sender.
        broadcast: u32,
        /// The stub id of the sender.
        stub_id: u32,
        /// For servers: the client that sent it. For clients: the value that the sending server
        /// set.
        client: ConnId,
        /// The body.
        payload: Bytes,
    },
    /// To players: a response or notification of the matcher behind the gateway.
    Matchmaking {
        /// The request that this answers.
        request: Option<RequestId>,
        /// Content of the message.
        event: MatchmakingEvent,
    },
    /// To the owner of GLOBAL: the authentication of another connection.
    PeerAuthenticated {
        /// The connection.
        conn: ConnId,
        /// Its result.
        outcome: AuthOutcome,
        /// True if it resumes a lost connection.
        recovering: bool,
    },
    /// The connection that owns the channel was lost and may return.
    OwnerLost {
        /// The channel.
        channel: ChannelId,
    },
    /// The owner of the channel is back.
    OwnerRecovered {
        /// The channel.
        channel: ChannelId,
    },
    /// A request failed.
    RequestFailed {
        /// The request.
        request: RequestId,
        /// Why.
        reason: RequestFailure,
    },
    /// A message below 100 that has no event of its own.
    Other {
        /// The request that this answers.
        request: Option<RequestId>,
        /// Its channel.
        channel: ChannelId,
        /// Its number.
        msg_type: u32,
        /// Its broadcast value.
        broadcast: u32,
        /// Its stub id.
        stub_id: u32,
        /// Its body.
        body: Bytes,
    },
    /// The connection is over; the driver closes the transport and may connect again.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

impl Event {
    /// The request of this session that the event answers or fails.
    #[must_use]
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Event::ChannelCreated { request, .. }
            | Event::ChannelRemoved { request, .. }
            | Event::ChannelList { request, .. }
            | Event::Subscribed { request, .. }
            | Event::Unsubscribed { request, .. }
            | Event::Matchmaking { request, .. }
            | Event::Other { request, .. } => *request,
            Event::RequestFailed { request, .. } => Some(*request),
            _ => None,
        }
    }
}
