//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod congestion;
mod fixture;
mod golden;
mod interop;
mod interop_godot;
mod interop_python;
mod memory;
mod network;
mod peer;
#[path = "../../../throng/tests/it/support/peers.rs"]
mod peers;
mod recorded_weather;
mod replay;
mod session;
mod simulation;
