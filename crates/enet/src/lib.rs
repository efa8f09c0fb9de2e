//! ENet without its ceiling: a host and client that speak the protocol of the C library ENet 1.3
//! byte for byte, as a state machine without sockets, clock or threads.
//!
//! A [`Host`] owns all connections of one UDP socket, in both roles. Packets travel in up to 255
//! [lanes](Lane) (ENet calls them channels), each [reliably, unreliably in order, or without
//! order](Delivery). Existing ENet clients and servers, Godot's among them, need no change.
//! Differences from the C library:
//!
//! - **No 4,095 peers.** Connections are found by address and id, so the twelve bits of an id limit
//!   only those that share one remote socket.
//! - **Cost by activity.** Deadlines lie on a timer wheel and peers with work in a list. No code
//!   iterates over all peers, queues or fragments: acknowledging, resending and reassembling cost
//!   O(1) or O(log n) each, regardless of the length of a queue.
//! - **Strangers cost nothing.** A CONNECT makes an entry in a bounded table and is answered with
//!   fewer bytes than it had; the connection begins when the answer is acknowledged.
//! - **Bounded memory.** Everything that remote peers can make grow has a limit in [`Config`];
//!   memory for an announced packet is allocated only as it arrives. When it is used up, those who
//!   hold the most make room for those who hold less.
//!
//! # Driving a host
//!
//! Five verbs. Pass in received datagrams and the time, then drain all outputs:
//!
//! ```text
//!             handle_datagram(now, from, bytes) ──▶ ┌──────┐ ──▶ poll_transmit(now, buf)   until None
//!             handle_timeout(now)               ──▶ │ Host │ ──▶ poll_event()              until None
//!  connect, send, broadcast, disconnect, ...    ──▶ └──────┘ ──▶ next_timeout()            sleep until then
//! ```
//!
//! `now` never goes back. Pass in a whole batch of datagrams before polling output, so that answers
//! and acknowledgements share datagrams.
//!
//! An echo server on a socket of the standard library:
//!
//! ```no_run
//! use std::{net::UdpSocket, time::{Duration, Instant as Clock}};
//! use throng_enet::{Config, Event, Host, Instant};
//!
//! # fn entropy() -> u128 { 7 }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let socket = UdpSocket::bind("0.0.0.0:7777")?;
//! let start = Clock::now();
//! let now = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
//! // 128 bits from the operating system: nobody may guess them.
//! let mut host = Host::new(now(), Config::new(entropy()))?;
//! let (mut datagram, mut out) = ([0; 4096], Vec::new());
//! loop {
//!     let wait = host.next_timeout().map_or(Duration::from_secs(1), |at| at.since(now()));
//!     socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
//!     if let Ok((len, from)) = socket.recv_from(&mut datagram) {
//!         host.handle_datagram(now(), from, &datagram[..len]);
//!     }
//!     host.handle_timeout(now());
//!     while let Some(event) = host.poll_event() {
//!         if let Event::Received { peer, lane, data, delivery } = event {
//!             // A peer that does not take what it is sent runs into the limit; the packet is dropped.
//!             let _ = host.send(peer, lane, data, delivery);
//!         }
//!     }
//!     while let Some(transmit) = host.poll_transmit(now(), &mut out) {
//!         socket.send_to(&out, transmit.to)?;
//!     }
//! }
//! # }
//! ```
//!
//! A client and a server in one thread, without a socket:
//!
//! ```
//! use throng_enet::{Config, Delivery, Event, Host, Instant, Lane};
//!
//! let now = Instant::ZERO;
//! let (client_address, server_address) = ("10.0.0.1:5000".parse()?, "10.0.0.2:7777".parse()?);
//! let mut client = Host::new(now, Config::client(1))?;
//! let mut server = Host::new(now, Config::new(2))?;
//! let peer = client.connect(now, server_address, 2, 42)?;
//!
//! let mut said = Vec::new();
//! let mut buf = Vec::new();
//! for _ in 0..3 {
//!     while client.poll_transmit(now, &mut buf).is_some() {
//!         server.handle_datagram(now, client_address, &buf);
//!     }
//!     while server.poll_transmit(now, &mut buf).is_some() {
//!         client.handle_datagram(now, server_address, &buf);
//!     }
//!     while let Some(event) = client.poll_event() {
//!         if let Event::Connected { peer, .. } = event {
//!             client.send(peer, Lane(0), &b"hello"[..], Delivery::Reliable)?;
//!         }
//!     }
//!     while let Some(event) = server.poll_event() {
//!         match event {
//!             Event::Connected { data, .. } => assert_eq!(data, 42),
//!             Event::Received { data, .. } => said.push(data),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(said, [&b"hello"[..]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is not promised
//!
//! ENet neither encrypts nor authenticates: whoever sits on the path can read and change
//! everything. The [checksum](Config::checksum) keeps out forgers who do not; [`secure`] puts both
//! below ENet for clients of one's own. Throughput to one peer is bounded by the protocol's window
//! of 64 KiB per round trip, and by what its path carries. Reliable packets end with the
//! connection: what was not acknowledged then may or may not have arrived.
//!
//! # Costs
//!
//! An idle connection takes about 1.3 KiB, tables included, and sends one ping every half second.
//! The driver needs one call of [`Host::handle_timeout`] when [`Host::next_timeout`] says so, and
//! none while nobody is connected.

#![cfg_attr(not(any(test, fuzzing)), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod address;
mod budget;
mod checksum;
mod compress;
mod config;
mod estimate;
mod half_open;
mod host;
mod lane;
mod path;
mod peer;
mod queue;
mod range_coder;
mod secret;
#[cfg(feature = "secure")]
pub mod secure;
mod sent;
mod statistics;
#[cfg(test)]
mod tests;
mod types;
mod waiting;
pub mod wire;
mod work;

pub use bytes::Bytes;
pub use compress::{Compressor, CorruptBlock};
pub use config::{BandwidthReports, Config, Limits, Naming, Pings, Windows};
pub use host::{Hook, Host, Intercept};
pub use range_coder::RangeCoder;
pub use statistics::{RoundTrips, Traffic};
pub use throng_stdx::Instant;
pub use types::{
    ConfigError, ConnectError, Delivery, Event, Lane, PeerId, PeerInfo, PeerState, Reason, SendError, Stats,
    Transmit, Via,
};
#[cfg(fuzzing)]
#[doc(hidden)]
pub use work::steps;
