//! What the shard costs per message and per delivered frame, without sockets.
//!
//! `forward`: 64-byte messages of many clients to the owner of GLOBAL, ns per message. `fan_out`:
//! the state of 400 entities (58 bytes each) to 400 subscribers, per flush and per delivery.
//! `all_write`: every subscriber writes its own entity once per window and does not want it back,
//! per flush and per delivery.

mod driver;

use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use driver::{Gateway, framed};
use throng_gateway::{Config, ConnHandle, ConnKind, StateMachine};
use throng_wire::channeldpb::{
    ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage, MessageType,
    SubscribedToChannelMessage,
};
use throng_wire::{MessagePack, write_entry, write_message_entry};

fn main() {
    divan::main();
}

const PROTO: &str = "syntax = \"proto3\"; package bench;
message World { map<uint32, State> states = 1; }
message State { bytes body = 1; bool removed = 2; }";

/// A gateway whose clients may create channels.
fn gateway() -> Gateway {
    let config = Config {
        client_state_machine: StateMachine::client_managing_channels().into(),
        development: true,
        ..Config::reference()
    };
    Gateway::new(config, PROTO)
}

fn run(gateway: &mut Gateway, duration: Duration) {
    gateway.now += duration;
    gateway.shard.handle_timeout(gateway.now);
    gateway.drain();
}

/// Each of the clients sends this many messages in one read, as they arrive under load.
const MESSAGES_PER_READ: usize = 8;

#[divan::bench(args = [1, 1000])]
fn forward(bencher: Bencher<'_, '_>, clients: usize) {
    let mut gateway = gateway();
    let owner = gateway.join(ConnKind::Server);
    let claim = CreateChannelMessage { channel_type: 1, ..Default::default() };
    gateway.request(owner, 0, MessageType::CreateChannel, &claim);
    let clients: Vec<ConnHandle> = (0..clients).map(|_| gateway.join(ConnKind::Client)).collect();
    let mut packet = Vec::new();
    let message = MessagePack { msg_type: 100, body: &[7; 64], ..Default::default() };
    write_entry(&mut packet, &message);
    let read = framed(&packet).repeat(MESSAGES_PER_READ);
    bencher.counter(ItemsCount::new(clients.len() * MESSAGES_PER_READ)).bench_local(|| {
        for client in &clients {
            gateway.receive(*client, &read);
        }
        gateway.drain();
    });
    assert!(gateway.shard.stats().forwarded > 0 && gateway.written > 0);
}

fn states(entities: u32, round: u8) -> Vec<u8> {
    states_of(0..entities, round)
}

fn states_of(entities: std::ops::Range<u32>, round: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for entity in entities {
        let mut entry = vec![0x08];
        throng_wire::write_varint(&mut entry, u64::from(entity) + 1);
        entry.extend_from_slice(&[0x12, 52, 0x0A, 50]);
        entry.extend_from_slice(&[round; 50]);
        out.push(0x0A);
        throng_wire::write_varint(&mut out, entry.len() as u64);
        out.extend(entry);
    }
    out
}

/// One update of all entities and one flush, with the given number of subscribers.
#[divan::bench(args = [(1, 400), (400, 400), (1000, 100)])]
fn fan_out(bencher: Bencher<'_, '_>, (subscribers, entities): (usize, u32)) {
    let mut gateway = gateway();
    let owner = gateway.join(ConnKind::Server);
    let any = |value| Some(prost_types::Any { type_url: "x/bench.World".into(), value });
    let claim =
        CreateChannelMessage { channel_type: 1, data: any(states(entities, 0)), ..Default::default() };
    gateway.request(owner, 0, MessageType::CreateChannel, &claim);
    for _ in 0..subscribers {
        let client = gateway.join(ConnKind::Client);
        let options = ChannelSubscriptionOptions { fan_out_interval_ms: Some(20), ..Default::default() };
        let request = SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) };
        gateway.request(client, 0, MessageType::SubToChannel, &request);
    }
    run(&mut gateway, Duration::from_millis(100));
    let update = ChannelDataUpdateMessage { data: any(states(entities, 1)), ..Default::default() };
    let mut packet = Vec::new();
    let head = MessagePack { msg_type: 8, ..Default::default() };
    write_message_entry(&mut packet, &head, &update);
    let read = framed(&packet);
    let before = gateway.shard.stats().fan_out_messages;
    bencher.counter(ItemsCount::new(subscribers)).bench_local(|| {
        gateway.receive(owner, &read);
        run(&mut gateway, Duration::from_millis(20));
    });
    assert!(gateway.shard.stats().fan_out_messages > before);
}

/// One update of each of the writers, which all subscribe to the same channel, and one flush.
/// `shared` says whether they write the same entity instead of one each.
#[divan::bench(args = [(50, false), (200, false), (600, false), (600, true)])]
fn all_write(bencher: Bencher<'_, '_>, (writers, shared): (u32, bool)) {
    let mut gateway = gateway();
    let any = |value| Some(prost_types::Any { type_url: "x/bench.World".into(), value });
    let create = CreateChannelMessage { channel_type: 1, data: any(Vec::new()), ..Default::default() };
    let owner = gateway.join(ConnKind::Server);
    gateway.request(owner, 0, MessageType::CreateChannel, &create);
    let mut reads = Vec::new();
    for writer in 0..writers {
        let client = gateway.join(ConnKind::Client);
        let options = ChannelSubscriptionOptions {
            data_access: Some(2),
            fan_out_interval_ms: Some(20),
            ..Default::default()
        };
        let request = SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) };
        gateway.request(client, 0, MessageType::SubToChannel, &request);
        let entity = if shared { 0 } else { writer };
        let state = any(states_of(entity..entity + 1, 1));
        let update = ChannelDataUpdateMessage { data: state, ..Default::default() };
        let mut packet = Vec::new();
        let head = MessagePack { msg_type: 8, ..Default::default() };
        write_message_entry(&mut packet, &head, &update);
        reads.push((client, framed(&packet)));
    }
    run(&mut gateway, Duration::from_millis(100));
    let before = gateway.shard.stats().fan_out_messages;
    bencher.counter(ItemsCount::new(writers)).bench_local(|| {
        for (client, read) in &reads {
            gateway.receive(*client, read);
        }
        run(&mut gateway, Duration::from_millis(20));
    });
    assert!(gateway.shard.stats().fan_out_messages > before);
}
