//! The integration tests of this crate, one module per behaviour, in one program that links once.

#[cfg(feature = "nats")]
#[path = "../../../matcher-server/tests/it/support/bus.rs"]
mod bus;
mod cache;
mod cache_pages;
mod cli;
mod cluster;
mod demo;
mod deploy;
mod docs;
mod hygiene;
#[path = "../../../ddc-server/tests/it/common/linear.rs"]
mod linear;
mod load;
mod matcher;
mod memory;
mod nats;
mod nats_faults;
mod operate;
#[path = "support/peers.rs"]
mod peers;
#[path = "support/process.rs"]
mod process;
mod prometheus;
mod prose;
mod reference;
mod replay;
#[path = "../../../client/examples/chat_client.rs"]
mod rust_sample;
#[cfg(feature = "object-storage")]
#[path = "../../../ddc-server/tests/it/common/s3.rs"]
#[allow(dead_code, reason = "the cache's own tests use the rest")]
mod s3;
mod sdk;
mod takeover;
