//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod browser;
mod common;
mod descriptors;
mod enet_gate;
mod enet_sealed;
mod enet_sessions;
mod godot_dtls;
mod godot_relay;
mod kcp_peer;
mod kcp_sessions;
mod migration;
mod pauses;
#[path = "../../../throng/tests/it/support/peers.rs"]
mod peers;
mod proxies;
mod random_operations;
#[path = "../../examples/godot_relay/relay.rs"]
mod relay;
mod tcp;
mod tls;
mod urgent;
mod websocket;
