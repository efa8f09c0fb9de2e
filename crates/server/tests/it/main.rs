//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod auth;
mod browser;
mod common;
mod config_errors;
mod conformance;
mod descriptors;
#[path = "../../../client/examples/matchmaking.rs"]
mod example;
mod goodbyes;
mod matchmaking;
mod output_memory;
#[path = "../../../throng/tests/it/support/peers.rs"]
mod peers;
mod play;
mod secrets;
mod worlds;
