//! Spec §26.20: any bytes give a value or an error; an error changes nothing.

use crate::harness;
use harness::*;
use throng_replication::wire::{HEADER_BYTES, Header};
use throng_replication::{Client, ClientConfig, Handle, Packets, Received};
use throng_stdx::Rng;

/// Everything that an application could see of a client.
fn image(client: &Client) -> Vec<(u32, u32, u32, Vec<u64>)> {
    let replicas = client.replicas();
    replicas
        .map(|(index, replica)| (index, replica.generation(), replica.frame(), replica.words().to_vec()))
        .collect()
}

/// Real packets of a session: creations, updates, differences, calls, ends.
fn recorded() -> (Net, Vec<Vec<u8>>) {
    let mut net = Net::new(1);
    let mut packets = Vec::new();
    let mut things: Vec<Handle> = Vec::new();
    let mut rng = Rng::new(21);
    for frame in 0..60_u32 {
        if things.len() < 12 {
            for class in [THING, DELTA_THING, PAWN] {
                things.push(net.server.create(class).unwrap());
            }
        }
        for thing in &things {
            net.server.set(*thing, HEALTH, rng.below(1000)).unwrap();
        }
        if frame % 3 == 0 {
            let name = vec![frame as u8; rng.below(60) as usize];
            net.server.set(things[0], NAME, name.clone()).unwrap();
            net.server.attach(net.peers[0].id, things[1], 4, &name, frame % 2 == 0).unwrap();
        }
        if frame % 20 == 19 {
            let thing = things.pop().unwrap();
            net.server.destroy(thing, throng_replication::DestroyReason::Destroyed, false).unwrap();
        }
        net.step();
        for packet in &net.peers[0].sent {
            // For clients that have sent nothing yet: nothing of theirs is acknowledged.
            let mut packet = packet.clone();
            packet[2..4].fill(0xff);
            packet[4..12].fill(0);
            packets.push(packet);
        }
    }
    (net, packets)
}

fn damage(bytes: &mut Vec<u8>, from: usize, rng: &mut Rng) {
    for _ in 0..=rng.below(4) {
        if bytes.len() <= from {
            bytes.push(rng.next_u32() as u8);
            continue;
        }
        let at = from + rng.below((bytes.len() - from) as u64) as usize;
        match rng.below(5) {
            0 => bytes[at] = rng.next_u32() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize]),
            _ => {
                let copy = bytes[at..].to_vec();
                bytes.extend_from_slice(&copy);
                bytes.truncate(4000);
            }
        }
    }
}

#[test]
fn a_damaged_packet_changes_nothing_or_is_a_packet() {
    let (net, packets) = recorded();
    let mut rng = Rng::new(22);
    let (mut refused, mut applied) = (0, 0);
    for round in 0..200 {
        // A client somewhere in the session.
        let mut client =
            Client::new(ClientConfig { objects_max: 4096, ..ClientConfig::default() }, &net.classes);
        let until = rng.below(packets.len() as u64) as usize;
        for packet in &packets[..until] {
            client.receive(packet).unwrap();
        }
        let mut seq = u16::from_le_bytes([packets[until][0], packets[until][1]]);
        for _ in 0..60 {
            let mut bytes = packets[rng.below(packets.len() as u64) as usize].clone();
            let header = Header { seq, ack: u16::MAX, ack_bits: 0, frame: round + rng.below(40) as u32 };
            bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
            damage(&mut bytes, if rng.chance(0.9) { HEADER_BYTES } else { 0 }, &mut rng);
            let before = image(&client);
            match client.receive(&bytes) {
                Ok(Received::Applied) => {
                    applied += 1;
                    seq = u16::from_le_bytes([bytes[0], bytes[1]]).wrapping_add(1);
                }
                Ok(_) => assert_eq!(image(&client), before),
                Err(_) => {
                    refused += 1;
                    assert_eq!(image(&client), before, "{bytes:02x?}");
                }
            }
            while client.poll_event().is_some() {}
            client.poll_packet(net.now);
            for (_, replica) in client.replicas() {
                for property in 0..replica.class().property_count() {
                    assert!(replica.value(property).is_some());
                }
            }
        }
    }
    assert!(refused > 1000 && applied > 500, "{refused} refused, {applied} applied");
}

#[test]
fn a_server_withstands_any_client() {
    let (mut net, _) = recorded();
    let mut rng = Rng::new(23);
    let id = net.peers[0].id;
    let thing = net.server.create(THING).unwrap();
    net.server.set_owner(thing, Some(id)).unwrap();
    net.steps(6);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..20_000_u32 {
        let client = &mut net.peers[0].client;
        client.attach(thing, u64::from(round), &[7; 20], rng.chance(0.5)).unwrap_or(());
        client.send_input(&[1, 2, 3]).unwrap();
        let Some(packet) = client.poll_packet(net.now) else { continue };
        let mut bytes = packet.to_vec();
        damage(&mut bytes, if rng.chance(0.8) { HEADER_BYTES } else { 0 }, &mut rng);
        match net.server.receive(id, &bytes) {
            Ok(()) => taken += 1,
            Err(_) => refused += 1,
        }
        while net.server.poll_event().is_some() {}
        if round % 50 == 0 {
            net.now += FRAME;
            net.server.set(thing, HEALTH, round).unwrap();
            net.server.tick(net.now, |_| {});
        }
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}

/// The server skipped the section, the client refused its count.
#[test]
fn an_unknown_section_is_skipped_whatever_it_counts() {
    let mut client = Client::new(ClientConfig::default(), &classes());
    let mut packet = Header { seq: 0, ack: u16::MAX, ack_bits: 0, frame: 1 }.to_bytes().to_vec();
    packet.extend_from_slice(&[0xf0, 0xff, 0xff, 0x03, 1, 0, 7]);
    assert_eq!(client.receive(&packet), Ok(Received::Applied));
}

/// Forty bytes a frame made the server write everything that the client sees in every frame.
#[test]
fn requests_for_whole_states_are_served_a_few_a_frame() {
    const SEEN: u32 = 60;
    // Without differences none is needed.
    for (class, most) in [(DELTA_THING, 60 * 8), (THING, 0)] {
        let mut net = Net::new(1);
        let things: Vec<Handle> = (0..SEEN).map(|_| net.server.create(class).unwrap()).collect();
        for thing in &things {
            net.server.set(*thing, NAME, vec![7; 60]).unwrap();
        }
        net.steps(10);
        let (id, mut newest, mut bytes) = (net.peers[0].id, [0; 2], 0);
        let indices: Vec<u8> = things.iter().map(|thing| thing.index() as u8).collect();
        for frame in 0..60_u16 {
            let mut sink = |packets: Packets<'_>| {
                bytes += packets.bytes.len() as u64;
                newest = packets.iter().last().map_or(newest, |packet| [packet[0], packet[1]]);
            };
            net.server.tick(net.now + FRAME * u32::from(frame), &mut sink);
            // Everything arrived, and is missing all the same.
            let ack = u16::from_le_bytes(newest);
            let header = Header { seq: 1000 + frame, ack, ack_bits: u64::MAX, frame: frame.into() };
            let mut packet = header.to_bytes().to_vec();
            packet.extend_from_slice(&[0x81, SEEN as u8, SEEN as u8, 0]);
            packet.extend_from_slice(&indices);
            net.server.receive(id, &packet).unwrap();
        }
        assert!(bytes <= 60 * 20 + most * 100, "{bytes} bytes in 60 frames");
        let served = net.server.connection_stats(id).unwrap().resets;
        assert!((most.min(SEEN.into())..=most).contains(&served), "{served}");
    }
}
