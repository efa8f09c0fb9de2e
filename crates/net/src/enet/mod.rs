//! ENet hosts on sockets: [`Server`] for a game that wants events at its own pace, [`Endpoint`] for
//! one that wants to be called on the network thread.
//!
//! The protocol is a state machine without I/O, [`throng_enet::Host`]; here are its sockets, clock
//! and threads. Existing ENet clients connect unchanged.
//!
//! # Embedding
//! A [`Server`] has a thread per shard that takes datagrams in, acknowledges, resends and pings
//! whether or not the game reads. A game that looks once per tick loses nobody:
//! ```no_run
//! use std::time::Duration;
//! use throng_net::enet::{Config, Delivery, Event, Lane, Server, ServerOptions};
//!
//! let mut server = Server::start("0.0.0.0:7777".parse()?, &ServerOptions::default(), Config::new)?;
//! loop {
//!     while let Some((peer, event)) = server.poll_event() {
//!         match event {
//!             Event::Received { lane, data, delivery, .. } => server.send(peer, lane, data, delivery),
//!             Event::Connected { .. } => server.send(peer, Lane(0), &b"welcome"[..], Delivery::Reliable),
//!             _ => {}
//!         }
//!     }
//!     // ... the game's tick ...
//!     server.flush();
//!     std::thread::sleep(Duration::from_millis(50));
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is bounded
//! Between a shard and the game lie at most [`ServerOptions::events_max`] events. Beyond that,
//! packets stay with their peers, where [`Config::peer_bytes_max`] bounds them: then reliable
//! packets are not acknowledged, so that their senders keep them, and others are dropped. Connects
//! and disconnects are never dropped. Towards a peer at most [`Config::send_bytes_max`] bytes wait:
//! an unreliable packet beyond that is dropped, and a peer that cannot be sent a reliable one is
//! disconnected with [`TOO_SLOW`].
//!
//! # What costs what
//! A round takes in everything that has arrived, lets the application answer, and sends;
//! acknowledgements share datagrams with answers. Rounds of a busy endpoint begin
//! [`Pacing::interval`] apart, so that their system calls serve many datagrams each. With nothing
//! to do an endpoint sleeps until the next timer, and for ever when nobody is connected.

mod counters;
mod dtls;
mod endpoint;
mod envelope;
mod guard;
mod port;
mod server;
pub(crate) mod sessions;

use std::io::{self, Read as _};

pub use counters::HostCounters;
pub use dtls::{DtlsConfig, DtlsStats};
pub use endpoint::{Endpoint, OpenError, Pacing};
pub use server::{Server, ServerOptions, ServerPeer, ServerStats};
pub use throng_enet::secure;
pub use throng_enet::{
    Bytes, Config, Delivery, Event, Host, Lane, PeerId, PeerInfo, RangeCoder, Reason, SendError, Stats,
};

/// The number given to a peer that is disconnected because it does not take what it is sent.
pub const TOO_SLOW: u32 = 0x534C_4F57;

/// 128 bits from the operating system, for [`Config::seed`].
///
/// # Errors
/// When the system's random device cannot be read.
pub fn entropy() -> io::Result<u128> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}
