//! Client and game-server SDK for the Throng gateway, and for any gateway that speaks the channeld
//! protocol.
//!
//! - [`Session`] is the conversation with a gateway: authentication, requests with time-outs,
//!   channel data, user-space messages, recovery and resumption. It owns no socket and reads no
//!   clock, so it runs in a game loop, under another runtime, or in a simulation.
//! - [`Client`] and [`Events`] drive a session on tokio over TCP, TLS or WebSocket and reconnect
//!   with growing pauses.
//! - [`Matcher`] calls a matcher over its framed RPC and takes its notifications;
//!   [`MatcherSession`] is that conversation without I/O.
//! - [`replay`] plays recorded sessions (`.cpr`) against a gateway and reports the differences.
//!
//! # A session by hand
//!
//! One input, then drain the outputs:
//!
//! ```
//! use throng_client::{ChannelId, Event, Session, SessionConfig};
//! use throng_stdx::Instant;
//!
//! let now = Instant::ZERO;
//! let mut session = Session::new(SessionConfig::client("alice", "secret"));
//! session.handle_connected(now);
//!
//! // The first frame is the authentication; send it.
//! let mut bytes = Vec::new();
//! let frame = session.poll_transmit(now, &mut bytes).expect("the authentication is waiting");
//! assert_eq!((frame.messages, &bytes[..2]), (1, &b"CH"[..]));
//!
//! // What is sent before the answer waits for it.
//! session.send(ChannelId::GLOBAL, 100, b"hello")?;
//! assert!(session.poll_transmit(now, &mut bytes).is_none());
//!
//! // AUTH result: stub 1, connection 2.
//! session.handle_bytes(now, b"CH\x00\x0a\x00\x0a\x08\x18\x01\x20\x01\x2a\x02\x10\x02");
//! assert!(matches!(session.poll_event(), Some(Event::Authenticated { recovering: false, .. })));
//! assert!(session.poll_transmit(now, &mut bytes).is_some());
//! # Ok::<(), throng_client::SendError>(())
//! ```
//!
//! # Clients and servers
//!
//! The listener determines the kind of a peer. A **client** sends user-space messages with
//! [`Session::send`]; they reach the owner of the channel with the sender's id. A **server** owns
//! channels: it claims GLOBAL with [`CreateChannel`] of type [`ChannelType::GLOBAL`], is notified
//! of every player that authenticates ([`Event::PeerAuthenticated`]), subscribes them to channels
//! and addresses messages with [`Session::forward`].
//! # Missing guarantees
//!
//! The protocol has no negative responses: a refused request fails with
//! [`RequestFailure::Timeout`]. Channel data is state: a slow reader may see several updates merged
//! into one, or a full state again.

#![forbid(unsafe_code)]

mod driver;
mod event;
mod matcher;
mod options;
pub mod replay;
mod session;
mod transport;

pub use driver::{Backoff, Client, ConnectError, Created, EVENTS_WAITING_MAX, Events, RequestError};
pub use event::{
    AuthOutcome, ChannelEntry, ChannelId, ChannelType, CloseCode, CloseReason, ConnId, Event, Kind, Payload,
    RecoveredChannel, RequestFailure, RequestId,
};
pub use matcher::{
    CallError, CallId, MATCHMAKING, MatchWorld, Matcher, MatcherConfig, MatcherConnectError, MatcherEvent,
    MatcherSession, MatchmakingEvent, MatchmakingRequest, Mine, NOTICES_WAITING_MAX, Notice, Notices,
    Notification, Role, Room, Team,
};
pub use options::{Access, CreateChannel, MergeOptions, SubscribeOptions};
pub use session::{
    CompressionPolicy, Counters, SendError, Session, SessionConfig, TagForm, Transmit, broadcast, msg_type,
};
/// The session's time; see [`Session`].
pub use throng_stdx::Instant;
pub use transport::{Endpoint, EndpointError, OpenError, tls_trusting};
