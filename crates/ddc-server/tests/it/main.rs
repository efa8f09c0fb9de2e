//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod care;
mod common;
mod editor;
mod elsewhere;
mod history;
mod hostile;
mod hosts;
#[cfg(feature = "object-storage")]
#[path = "common/linear.rs"]
mod linear;
mod replication;
#[cfg(feature = "object-storage")]
#[path = "common/s3.rs"]
mod s3;
mod tier;
mod tls;
