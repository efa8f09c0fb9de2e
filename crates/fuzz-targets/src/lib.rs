//! What a hostile peer may send.
//!
//! Each fuzz target is a function here: it takes any bytes, feeds them to a decoder as a peer or a
//! file could, and asserts what must hold for every input. `fuzz/` gives the functions to
//! libFuzzer; `tests/it/corpora.rs` replays what was found, with plain `cargo test` and without
//! libFuzzer.
//!
//! The promise of all targets: no panic, no memory beyond the stated limits, no hang. What each
//! asserts on top of that stands at its function.

#![forbid(unsafe_code)]

mod cluster;
mod data;
mod ddc;
mod enet;
mod files;
mod gateway;
mod kcp;
mod matcher;
mod messages;
mod process;
mod replication;
mod websocket;
mod wire;

use throng_stdx::Rng;

pub use cluster::{cluster_node, cluster_record};
pub use data::data;
pub use ddc::{compact_binary, compressed_buffer, ddc_batch, ddc_package, ddc_routes};
pub use enet::{
    enet_command, enet_compressed_session, enet_datagram, enet_gate, enet_hostile_session, enet_long_session,
    enet_range_coder, enet_session,
};
pub use files::{channel_settings, state_machine};
pub use gateway::gateway;
pub use kcp::{kcp, kcp_link};
pub use matcher::{
    matcher_frame, matcher_json, matcher_record, matcher_request, matcher_rules, matcher_seeds,
    matcher_snapshot,
};
pub use messages::message;
pub use process::{Message, Process};
pub use replication::{replication_client, replication_packet, replication_seeds, replication_server};
pub use websocket::{handshake, websocket};
pub use wire::{body, cpr, frame, packet, snappy};

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the binary in `fuzz/fuzz_targets` and of the folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Takes one input. Panics if what the target asserts does not hold.
    pub run: fn(&[u8]),
}

/// Every fuzz target.
pub const TARGETS: &[Target] = &[
    Target { name: "body", run: body },
    Target { name: "channel_settings", run: channel_settings },
    Target { name: "cluster_node", run: cluster_node },
    Target { name: "cluster_record", run: cluster_record },
    Target { name: "compact_binary", run: compact_binary },
    Target { name: "compressed_buffer", run: compressed_buffer },
    Target { name: "cpr", run: cpr },
    Target { name: "data", run: data },
    Target { name: "ddc_batch", run: ddc_batch },
    Target { name: "ddc_package", run: ddc_package },
    Target { name: "ddc_routes", run: ddc_routes },
    Target { name: "enet_command", run: enet_command },
    Target { name: "enet_compressed_session", run: enet_compressed_session },
    Target { name: "enet_datagram", run: enet_datagram },
    Target { name: "enet_gate", run: enet_gate },
    Target { name: "enet_hostile_session", run: enet_hostile_session },
    Target { name: "enet_long_session", run: enet_long_session },
    Target { name: "enet_range_coder", run: enet_range_coder },
    Target { name: "enet_session", run: enet_session },
    Target { name: "frame", run: frame },
    Target { name: "gateway", run: gateway },
    Target { name: "handshake", run: handshake },
    Target { name: "kcp", run: kcp },
    Target { name: "kcp_link", run: kcp_link },
    Target { name: "matcher_frame", run: matcher_frame },
    Target { name: "matcher_json", run: matcher_json },
    Target { name: "matcher_record", run: matcher_record },
    Target { name: "matcher_request", run: matcher_request },
    Target { name: "matcher_rules", run: matcher_rules },
    Target { name: "matcher_snapshot", run: matcher_snapshot },
    Target { name: "message", run: message },
    Target { name: "packet", run: packet },
    Target { name: "replication_client", run: replication_client },
    Target { name: "replication_packet", run: replication_packet },
    Target { name: "replication_server", run: replication_server },
    Target { name: "snappy", run: snappy },
    Target { name: "state_machine", run: state_machine },
    Target { name: "websocket", run: websocket },
];

/// Runs a target's body and asserts that it never holds more than `bytes_max` bytes and takes at
/// most `steps_max` turns of loops whose length depends on the input. Steps are counted where the
/// code is built for fuzzing.
pub(crate) fn bounded(bytes_max: u64, steps_max: u64, run: impl FnOnce()) {
    #[cfg(fuzzing)]
    let before = throng_enet::steps();
    let used = allocation_counter::measure(run).bytes_max;
    assert!(used <= bytes_max, "{used} bytes at once, {bytes_max} are allowed");
    #[cfg(fuzzing)]
    {
        let steps = throng_enet::steps() - before;
        assert!(steps <= steps_max, "{steps} steps, {steps_max} are allowed");
    }
    #[cfg(not(fuzzing))]
    let _ = steps_max;
}

/// One to four small changes of one of `inputs`, of which there is at least one.
///
/// # Panics
/// Without inputs.
#[must_use]
pub fn change(inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let pick = |rng: &mut Rng| inputs[rng.below(inputs.len() as u64) as usize].clone();
    let mut bytes = pick(rng);
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(6) {
            0 if at < bytes.len() => bytes[at] = rng.next_u32() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, [0x00, 0x01, 0x7F, 0x80, 0xFF][rng.below(5) as usize]),
            4 => {
                let other = pick(rng);
                bytes.splice(at..at, other);
            }
            _ => {
                let end = (at + rng.below(8) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}
