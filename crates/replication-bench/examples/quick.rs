//! Cost of the library's stages in each group, in a few seconds: `cargo run --release --example
//! quick`. With the number of a group and a count of frames, only that one: long enough for a
//! profiler.
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::collections::VecDeque;

use throng_replication::wire::{AckState, Header};
use throng_replication_bench::clock::thread_cpu_ns;
use throng_replication_bench::shared::Shared;
use throng_replication_bench::workload::{Chests, Group, SEED_BASE, World};

fn main() {
    let words: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (only, frames) = (words.first().copied(), words.get(1).copied().unwrap_or(300));
    for delta in [false, true] {
        for (number, chests) in [
            (1, Chests::Sparse),
            (2, Chests::Sparse),
            (3, Chests::Sparse),
            (3, Chests::Full),
            (4, Chests::Sparse),
            (4, Chests::Full),
            (5, Chests::Sparse),
        ] {
            if only.is_none_or(|only| only == u32::from(number)) {
                run(number, chests, delta, frames);
            }
        }
    }
}

fn run(number: u8, chests: Chests, delta: bool, frames: u32) {
    let group = Group::new(number).expect("five groups");
    let mut world = World::new(group, chests, SEED_BASE);
    let mut shared = Shared::new(group.connections, delta, None, 4600.0, false);
    let mut acks = vec![AckState::default(); group.connections];
    let mut arriving: VecDeque<Vec<(u16, u16, u64)>> = VecDeque::new();
    let (mut total, mut stage, mut lanes, mut ack, mut bytes, mut packets) = (0, 0, 0, 0, 0, 0);
    let mut seq = 0_u16;
    for frame in 1..=60 + frames {
        world.step();
        shared.apply(&world.things);
        let start = thread_cpu_ns();
        if arriving.len() == 3 {
            for (conn, newest, bits) in arriving.pop_front().expect("three frames") {
                let header = Header { seq, ack: newest, ack_bits: bits, frame };
                let id = shared.connections[usize::from(conn)];
                shared.server.receive(id, &header.to_bytes()).expect("acknowledges what was sent");
            }
            seq = seq.wrapping_add(1);
        }
        let acked = thread_cpu_ns();
        shared.server.begin_frame(Shared::time(frame));
        let begun = thread_cpu_ns();
        let mut sent = Vec::with_capacity(group.connections);
        for mut lane in shared.server.lanes(1) {
            lane.run(&mut |out| {
                let state = &mut acks[out.connection.index() as usize];
                for packet in out.iter() {
                    state.applied(u16::from_le_bytes([packet[0], packet[1]]));
                    if frame > 60 {
                        bytes += packet.len();
                        packets += 1;
                    }
                }
                let (newest, bits) = state.fields();
                sent.push((out.connection.index() as u16, newest, bits));
            });
        }
        let run = thread_cpu_ns();
        shared.server.end_frame();
        let end = thread_cpu_ns();
        arriving.push_back(sent);
        if frame > 60 {
            total += end - start;
            ack += acked - start;
            stage += begun - acked;
            lanes += run - begun;
        }
    }
    let us = |ns: u64| ns as f64 / f64::from(frames) / 1000.0;
    let per_client = (frames as usize * group.connections) as f64;
    println!(
        "group {number} {chests:?} delta {delta}: net {:.1} us (acks {:.1}, shared {:.1}, connections {:.1} = {:.3} each), {:.1} bytes, {:.2} packets",
        us(total),
        us(ack),
        us(stage),
        us(lanes),
        us(lanes + ack) / group.connections as f64,
        bytes as f64 / per_client,
        f64::from(packets) / per_client
    );
}
