//! Spec §19: the bytes of every connection are the same for any number of threads, and for every
//! run.

use crate::harness;
use harness::*;
use throng_replication::wire::{AckState, Header};
use throng_replication::{ClassId, Handle, Server, ServerConfig, View};
use throng_stdx::{Instant, Rng};

/// Forty connections, two hundred objects, loss, creation and destruction; returns a hash of all
/// bytes, by connection.
fn bytes(threads: usize) -> Vec<u64> {
    let classes = classes();
    let mut server = Server::new(ServerConfig::default(), &classes);
    let ids: Vec<_> = (0..40).map(|_| server.connect().unwrap()).collect();
    let mut acks = vec![AckState::default(); ids.len()];
    let mut hashes = vec![0xcbf2_9ce4_8422_2325_u64; ids.len()];
    let mut rng = Rng::new(9);
    let mut things: Vec<Handle> = Vec::new();
    let mut now = Instant::ZERO;
    for frame in 0..80_u32 {
        now += FRAME;
        while things.len() < 200 {
            let class = ClassId(things.len() as u16 % 3);
            let thing = server.create(class).unwrap();
            server.set_owner(thing, Some(ids[things.len() % ids.len()])).unwrap();
            things.push(thing);
        }
        let gone = things.swap_remove(rng.below(things.len() as u64) as usize);
        server.destroy(gone, throng_replication::DestroyReason::Destroyed, false).unwrap();
        for thing in &things {
            let mut place = || ((rng.f64() - 0.5) * 600.0) as f32;
            let position = [place(), place(), 0.0];
            server.set(*thing, POSITION, position).unwrap();
            server.set(*thing, HEALTH, rng.below(1000)).unwrap();
        }
        for (at, id) in ids.iter().enumerate() {
            if at % 4 == 0 && frame == 20 {
                server.set_budget(*id, Some((20_000.0, 2000.0)));
            }
            server.set_views(
                *id,
                &[View { position: [at as f32 * 10.0 - 200.0, 0.0, 0.0], ..View::default() }],
            );
            let (ack, ack_bits) = acks[at].fields();
            if ack != u16::MAX {
                let header = Header { seq: frame as u16, ack, ack_bits, frame };
                server.receive(*id, &header.to_bytes()).unwrap();
            }
        }
        server.begin_frame(now);
        let written: Vec<Vec<(usize, Vec<u8>)>> = std::thread::scope(|scope| {
            let lanes = server.lanes(threads).map(|mut lane| {
                scope.spawn(move || {
                    let mut packets = Vec::new();
                    lane.run(&mut |out: throng_replication::Packets<'_>| {
                        packets.extend(
                            out.iter().map(|packet| (out.connection.index() as usize, packet.to_vec())),
                        );
                    });
                    packets
                })
            });
            let lanes: Vec<_> = lanes.collect();
            lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
        });
        server.end_frame();
        for (at, packet) in written.into_iter().flatten() {
            for byte in &packet {
                hashes[at] = (hashes[at] ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
            // One packet in eleven is lost.
            if !(packet.len() + at + frame as usize).is_multiple_of(11) {
                acks[at].applied(u16::from_le_bytes([packet[0], packet[1]]));
            }
        }
    }
    hashes
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let one = bytes(1);
    for threads in [1, 2, 8] {
        assert_eq!(bytes(threads), one, "{threads} threads");
    }
}
