//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod cache;
mod common;
mod conformance;
mod crowds;
mod mixed;
mod recordings;
mod seeds;
mod spatial;
