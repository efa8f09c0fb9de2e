//! The WebSocket protocol (RFC 6455) as state machines without sockets or clock.
//!
//! [`Decoder`] turns incoming bytes into [`Event`]s, [`RequestReader`] and [`ResponseReader`] do
//! the opening handshake, and a few functions write frames. Message payloads are unmasked in place
//! and handed out as they arrive, however the peer fragments them: nothing of a message is ever
//! buffered, so its size costs no memory, and only its sum is limited. Binary messages carry the
//! connection's byte stream; text messages are refused, since no peer of ours means one.
//!
//! ```
//! use std::ops::ControlFlow;
//! use throng_net::ws::{Decoder, Event, Role, write_message};
//! let mut wire = Vec::new();
//! write_message(&mut wire, b"hello", Some([1, 2, 3, 4]));
//! let mut got = Vec::new();
//! Decoder::new(Role::Server, 1 << 20).feed(&mut wire, &mut |event| {
//!     if let Event::Data(bytes) = event { got.extend_from_slice(bytes) }
//!     ControlFlow::Continue(())
//! }).unwrap();
//! assert_eq!(got, b"hello");
//! ```

mod decoder;
mod endpoint;
mod handshake;
mod outgoing;

pub use decoder::{Decoder, Event, ProtocolError};
pub(crate) use endpoint::{Endpoint, FeedResult};
pub use handshake::{
    HEAD_BYTES_MAX, Rejection, Request, RequestReader, ResponseError, ResponseReader, accept_response,
    request_head,
};
pub use outgoing::{Borders, write_close, write_message};
pub(crate) use outgoing::{OP_PING, OP_PONG, write_control};

/// Close code for a peer from which nothing has come for too long.
pub(crate) const CLOSE_IDLE: u16 = 4007;

/// Which end of the connection we are. Clients mask what they send, servers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We accepted the connection.
    Server,
    /// We made the connection.
    Client,
}
