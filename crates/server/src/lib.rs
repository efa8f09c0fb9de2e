//! A Throng process: configuration, shards, wiring, supervision, shutdown.
//!
//! [`config::Loader`] merges the layers of a configuration, [`start`] turns it into a
//! [`Running`] process with every listener open, [`Signals`] waits for the end and shuts down in
//! order. Tests and load tools start processes inside their own on free ports:
//!
//! ```
//! use throng_server::{Service, config::Loader, start};
//!
//! let mut loader = Loader::new();
//! for key in ["gateway.servers.addr", "gateway.clients.addr", "http.addr"] {
//!     loader = loader.flag("test", key, "127.0.0.1:0");
//! }
//! let running = start(loader.load()?)?;
//! assert!(running.address(Service::Clients).is_some());
//! assert!(running.shutdown(), "nothing was cut off");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//! One per shard (`worker/`): its event loop, its part of the core and its mailbox, nothing shared.
//! One side runtime for blocking work: authentication, the admin listener. Writers for logs and
//! recordings.

// Worlds of a cluster are frozen, moved and ended by its driver alone.
#![cfg_attr(not(feature = "nats"), allow(dead_code))]

mod audit;
pub mod auth;
mod capture;
pub mod cluster;
pub mod config;
#[cfg(test)]
mod counting;
mod ddc;
mod ddc_policies;
pub mod ddc_tool;
mod desk;
pub mod doctor;
mod enet_gate;
#[cfg(test)]
mod faults;
mod fence;
mod files;
mod gateway_config;
mod inspect;
mod listen;
pub mod log;
mod mailbox;
mod matcher;
mod matchmaking;
mod metrics;
pub mod migrate;
mod monitor;
mod pace;
mod paging;
pub mod presets;
mod process;
mod recorder;
mod report;
mod runs;
mod schemas;
mod services;
mod signals;
mod start;
#[cfg(test)]
mod testing;
mod tls;
mod why;
mod worker;
mod world;
mod worlds;

pub use files::check_files;
pub use matcher::{import_matcher, take_over_area};
pub use services::SERVICES;
pub use signals::{End, Signals};
pub use start::{Address, Running, Service, StartError, from_here};
pub use throng_admin::{CpuProfile, ProfileError};
/// Does part of a start in advance, on any thread.
pub use throng_gateway::data::prepare;
/// Why connections are closed, not accepted, and messages refused.
pub use throng_gateway::{AcceptRefusal, CloseReason, Refusal};
pub use throng_matcher_server::{
    export as export_matcher, replay as replay_matcher, settle as settle_matcher,
};
pub use throng_wire::matcher::STATUSES as MATCHER_STATUSES;
pub use worker::set_return_memory;

/// Starts everything that the configuration asks for. Every listener is open when this returns.
///
/// ```no_run
/// let config = throng_server::config::Loader::new().load()?;
/// let running = throng_server::start(config)?;
/// for address in running.addresses() {
///     println!("{address}");
/// }
/// running.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// See [`StartError`]; nothing stays behind then.
pub fn start(config: config::Config) -> Result<Running, StartError> {
    let schemas = files::load(&config).map_err(StartError::Files)?;
    start::start(config, schemas)
}
