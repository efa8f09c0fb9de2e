//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod convergence;
mod delivery;
mod detail;
mod harness;
mod hostile;
mod interest;
mod keyed;
mod limits;
mod marks;
mod memory;
mod quantisers;
mod relations;
mod scope;
mod soak;
mod threads;
mod together;
mod tokens;
mod transfers;
mod typed;
mod upkeep;
mod wide;
