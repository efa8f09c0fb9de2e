//! The integration tests of this crate, one module per behaviour, in one program that links once.

#[path = "support/bus.rs"]
mod bus;
#[path = "support/crash.rs"]
mod crash;
mod http;
mod https;
mod nats;
#[cfg(feature = "nats")]
#[path = "../../../throng/tests/it/support/peers.rs"]
mod peers;
mod policy;
mod power_failure;
mod service;
mod slow_readers;
mod support;
mod trial;
