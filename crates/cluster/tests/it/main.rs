//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod faults;
mod records;
mod rules;
mod simulation;
