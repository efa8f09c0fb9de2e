//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod build_cache;
mod build_clients;
mod common;
mod descriptors;
mod disk;
mod editor;
mod fallback;
mod history;
mod hostile;
mod hosts;
#[cfg(feature = "object-storage")]
#[path = "common/linear.rs"]
mod linear;
mod maintenance;
mod memory;
mod pages;
#[path = "../../../throng/tests/it/support/peers.rs"]
mod peers;
mod preconditions;
mod replication;
#[cfg(feature = "object-storage")]
#[path = "common/s3.rs"]
mod s3;
mod strangers;
mod tier;
mod tls;
mod upstream;
