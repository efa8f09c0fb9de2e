//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod common;
mod editor;
mod fallback;
mod history;
mod hostile;
mod hosts;
#[cfg(feature = "object-storage")]
#[path = "common/linear.rs"]
mod linear;
mod maintenance;
mod replication;
#[cfg(feature = "object-storage")]
#[path = "common/s3.rs"]
mod s3;
mod tier;
mod tls;
