//! The KCP reliable protocol as a state machine without sockets or clock.
//!
//! KCP delivers segments over datagrams once and in order: sequence numbers, selective and
//! cumulative acknowledgements, retransmission by timeout and by later acknowledgements, a receive
//! window and a congestion window. It has no handshake and no goodbye: a session exists as soon as
//! one end sends, under a number (`conv`) that it chose.
//!
//! # Segment
//! A datagram holds one or more segments of 24 bytes, little-endian, and payload:
//! ```text
//! offset 0     4    5    6    8   12  16   20   24
//!        conv  cmd  frg  wnd  ts  sn  una  len  payload[len]
//! ```
//! `cmd` is 81 push, 82 acknowledgement (of `sn`, echoing its `ts`), 83 question for the window, 84
//! answer to it. `wnd` is the free part of the sender's receive window, `una` the first sequence
//! number it has not received. `frg` counts down the parts of a message; streams leave it 0. (Spec:
//! gateway-protocol §2.7)
//!
//! # Driving it
//! One input ([`Kcp::handle_datagram`], [`Kcp::send`], [`Kcp::handle_timeout`]), then outputs until
//! they are dry: [`Kcp::poll_transmit`] and [`Kcp::poll_received`]; then [`Kcp::next_timeout`] says
//! when to come back. `now` never goes back.
//!
//! ```
//! use throng_net::kcp::{Kcp, Profile, Side};
//! use throng_stdx::Instant;
//! let now = Instant::ZERO;
//! let mut client = Kcp::new(7, Profile::GAME, Side::Connects, 1, now);
//! let mut server = Kcp::new(7, Profile::GAME, Side::Accepts, 2, now);
//! client.send(b"hello");
//! let mut datagram = Vec::new();
//! while client.poll_transmit(now, &mut datagram) {
//!     server.handle_datagram(now, &datagram).unwrap();
//! }
//! assert_eq!(server.poll_received().unwrap().bytes, b"hello");
//! ```
//!
//! # Spoofed addresses
//! The accepting end sends no more bytes than it received, and acknowledges nothing, until the peer
//! acknowledges something with the right echo of its timestamp. Timestamps start at a random value,
//! so this cannot be done blindly from a forged source address, and the listener is of no use for
//! amplifying an attack on that address. (That nothing is acknowledged makes the peer repeat its
//! question, which is what allows repeating an answer that was lost. An end that only ever listens
//! is not proven.)

mod core;
mod profile;
mod segment;
pub(crate) mod sessions;

pub use self::core::{Kcp, KcpStats, Received, Side};
pub use profile::Profile;
pub use segment::{DatagramError, SEGMENT_HEADER_BYTES, Segment, Segments};

/// Largest datagram sent, in bytes.
pub const MTU: usize = 1400;
/// Largest payload of a segment sent, in bytes.
pub const MSS: usize = MTU - SEGMENT_HEADER_BYTES;
