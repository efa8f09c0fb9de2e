//! Deterministic simulation of the gateway: production shards under a virtual clock, virtual links and
//! seeded scheduling, with checkers that hold the product's promises.
//!
//! - [`World`] is the process and its network: shards, the mail between them, and a link to every peer.
//! - [`link`] says what a link does to bytes.
//!
//! One thread, no clock, no socket: a seed decides everything, and the same seed gives the same run on
//! every machine.

#![forbid(unsafe_code)]

pub mod link;
mod world;

pub use world::{ClosedByGateway, Conditions, Leave, Note, PeerId, UNIX_START_NS, World};
