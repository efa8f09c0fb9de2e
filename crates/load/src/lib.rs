//! Load for gateways: simulated players and game servers, the tests by name, and their reports.
//!
//! A run has one simulated game server, which owns a channel and simulates a world at 30 frames a
//! second, and many simulated players, who log in, are subscribed, send inputs at 30 Hz and receive
//! the state of everything that moved. [`engine::run`] plays one run against any server that speaks
//! the protocol, and measures one window of it; [`suites`] are the tests by name with the figures
//! that they are judged by; [`report`] is what comes out.
//!
//! How the figures come about:
//!
//! - *Open loop.* Everything is due at a time that is fixed beforehand, is sent when it is due, and
//!   is measured from that time, whether or not the server keeps up. A late generator shows as
//!   lateness and is called by name ([`engine::EngineReport::saturation`]), not taken for a slow
//!   server.
//! - *Stamps.* Every state update carries the time at which it was due; each player that receives
//!   it completely adds one latency. Updates that the server merged away count as missing.
//! - *Lean readers.* A player looks at the first few hundred bytes of a frame and lets the kernel
//!   drop the rest. One player per generator thread reads everything and must end with exactly the
//!   game server's state.
//! - *CPU and memory of the server* are read from its process clock and `/proc` at both ends of the
//!   window.
//! - *The physical limit* is measured by [`bare`]: a program that only writes the same bytes to as
//!   many sockets.
//!
//! The crate shares no code with the server, the codecs aside.
//!
//! ```no_run
//! use throng_load::engine::{self, Plan};
//! use throng_load::probe::Probe;
//!
//! let plan = Plan::single("127.0.0.1:12108".parse()?, "127.0.0.1:11288".parse()?, 100);
//! let outcome = engine::run(&plan, &Probe::new(None, None)?, &mut |_| {})?;
//! println!("{:.1}% of {} fan-outs", outcome.delivered_share() * 100.0, outcome.expected());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod arena;
mod background;
pub mod bare;
pub mod case;
pub mod chart;
pub mod child;
pub mod clock;
pub mod cluster;
pub mod ddc;
pub mod demo_players;
pub mod direct;
pub mod duration;
pub mod enet;
pub mod engine;
#[cfg(test)]
mod fake;
mod fleet;
pub mod interrupt;
mod link;
pub mod matcher;
pub mod network;
mod owner;
mod poll;
pub mod probe;
mod protocol;
pub mod report;
pub mod saved;
mod schedule;
mod socket;
pub mod spatial;
pub mod stats;
mod stream;
pub mod suites;
mod tls;
mod watch;
mod websocket;
pub mod world;

pub use link::{Transport, UnknownTransport};
pub use owner::OwnerCounts;
pub use socket::raise_descriptor_limit;
/// Plays recorded sessions; `throng replay` is made of it.
pub use throng_client::replay;
pub use tls::Trust;
