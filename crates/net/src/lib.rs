//! Sockets: one event loop per thread for TCP, TLS, WebSocket and KCP connections, and the real
//! clock.
//!
//! An [`EventLoop`] owns sockets and reports their events to a [`Handler`]: a connection was
//! accepted, bytes arrived, there is room to write again, the connection ended. On every transport,
//! the handler sees a connection as an ordered stream of bytes; handshakes, WebSocket control
//! frames, TLS records and KCP acknowledgements are handled inside this crate. Connections can move
//! to another thread's loop ([`EventLoop::detach`], [`EventLoop::attach`]).
//! # Driving contract
//! ```no_run
//! use std::io::IoSlice;
//! use std::net::SocketAddr;
//! use throng_net::*;
//!
//! struct Echo { replies: Vec<(ConnKey, Vec<u8>)> }
//! impl Handler for Echo {
//!     fn accepted(&mut self, _: ListenerKey, _: ConnKey, _: SocketAddr) -> Accept { Accept::Keep }
//!     fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
//!         self.replies.push((key, bytes.to_vec()));
//!         Flow::Continue
//!     }
//!     fn writable(&mut self, _: ConnKey) {}
//!     fn closed(&mut self, _: ConnKey, _: CloseCause) {}
//!     fn woken(&mut self) {}
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let clock = Clock::start();
//! let mut event_loop = EventLoop::new()?;
//! let (_, addr) = event_loop.listen(ListenerSpec::new("127.0.0.1:0".parse().unwrap(), Transport::Tcp))?;
//! println!("listening on {addr}");
//! let mut echo = Echo { replies: Vec::new() };
//! loop {
//!     event_loop.poll(&clock, None, &mut echo)?;
//!     for (key, reply) in echo.replies.drain(..) {
//!         let outcome = event_loop.write(key, &[IoSlice::new(&reply)]);
//!         // A real handler keeps what was not taken and continues when `writable` is called.
//!         assert_eq!(outcome.taken, reply.len());
//!     }
//! }
//! # }
//! ```
//! The handler has no access to the loop while it is called: it records events, and the driver acts
//! on them (write, close, move) after [`EventLoop::poll`] has returned.
//!
//! Two modules stand beside the loop: [`udp`] sends and receives datagrams in batches, and [`enet`]
//! puts ENet hosts on such sockets, with threads of their own.
//! # Cost
//! An idle TCP connection costs its table entry (under 300 bytes) and no timer; reads go through
//! one buffer that all connections share. A batch of events costs one wait and one clock read, each
//! readable connection one read of at most 64 KiB per batch, so that a busy peer cannot starve the
//! others.

#![deny(unsafe_code)]

mod clock;
mod config;
pub mod enet;
mod event_loop;
mod handler;
mod inbox;
pub mod kcp;
mod listener;
mod proxy;
mod records;
mod shared_file;
mod stats;
mod stream;
mod sys;
mod tls;
pub mod udp;
pub mod ws;

pub use clock::Clock;
pub use config::{ConnectSpec, Limits, ListenerSpec, Transport, WsPolicy};
pub use event_loop::{ConnKey, DetachedConn, EventLoop, ListenerKey, Waker};
pub use handler::{Accept, CloseCause, CloseMode, Flow, Handler, TimedOut, WriteOutcome};
pub use proxy::ProxyError;
pub use shared_file::SharedFile;
pub use stats::LoopStats;
pub use sys::{descriptor_limit, raise_descriptor_limit};
pub use tls::{
    DevelopmentCertificate, TlsAcceptor, TlsConfigError, TlsConnector, development_certificate,
    tls_client_config, tls_server_config,
};
