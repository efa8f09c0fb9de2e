//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod common;
mod damage;
mod maintenance;
mod power_failure;
mod simulation;
mod space;
