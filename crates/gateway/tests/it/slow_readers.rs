//! Peers that miss updates: they do not read (weakness A-2: in the reference one of them freezes
//! every channel it subscribes to), or their transport may lose some.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{Id, Received, Send, World};
use throng_gateway::{Backlog, CloseReason, Config, ConnKind, Framing, OutboxBounds, Shard, StateMachine};
use throng_wire::channeldpb::{
    ChannelDataMergeOptions, ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage,
    CreateChannelResultMessage, MessageType, ServerForwardMessage, SubscribedToChannelMessage,
    UnsubscribedFromChannelMessage,
};

const TYPE_URL: &str = "type.googleapis.com/testpb.TestFieldMaskMessage";

fn config() -> Config {
    Config {
        development: true,
        client_state_machine: StateMachine::client_managing_channels().into(),
        outbox: OutboxBounds {
            soft_bytes: 4_000,
            low_water_bytes: 500,
            hard_bytes: [100_000, 50_000],
            stall_timeout: Duration::from_secs(30),
            repair_interval: Duration::from_millis(500),
        },
        ..Config::reference()
    }
}

/// Field `name` (1) holds a text: a state of which the latest counts.
fn state(text: &str) -> Vec<u8> {
    [&[0x0A, text.len() as u8], text.as_bytes()].concat()
}

fn update(channel: u32, text: &str) -> Send {
    let data = Some(prost_types::Any { type_url: TYPE_URL.into(), value: state(text) });
    let body = ChannelDataUpdateMessage { data, ..Default::default() };
    Send::new(MessageType::ChannelDataUpdate, &body).to(channel)
}

fn texts(messages: &[Received]) -> Vec<String> {
    let updates = messages.iter().filter(|message| message.msg_type == 8);
    updates
        .map(|message| {
            let value = message.decode::<ChannelDataUpdateMessage>().data.expect("data").value;
            String::from_utf8(value[2..].to_vec()).expect("text")
        })
        .collect()
}

fn channel(world: &mut World, owner: Id) -> u32 {
    let data = Some(prost_types::Any { type_url: TYPE_URL.into(), value: state("start") });
    let request = CreateChannelMessage { channel_type: 3, data, ..Default::default() };
    world.send(owner, [Send::new(MessageType::CreateChannel, &request)]);
    let channel = world.take(owner)[0].decode::<CreateChannelResultMessage>().channel_id;
    world.run_ms(50);
    world.take(owner);
    channel
}

fn subscribe(world: &mut World, client: Id, channel: u32) {
    let options = ChannelSubscriptionOptions { fan_out_interval_ms: Some(20), ..Default::default() };
    let request = SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) };
    world.send(client, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
    world.run_ms(50);
}

#[test]
fn a2_a_stalled_reader_is_conflated_and_nobody_else_notices() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = channel(&mut world, owner);
        let (slow, healthy) = (world.join(ConnKind::Client, "slow"), world.join(ConnKind::Client, "fine"));
        subscribe(&mut world, slow, channel);
        subscribe(&mut world, healthy, channel);
        world.take(slow);
        world.take(healthy);
        world.set_reading(slow, false);
        let filler = "x".repeat(100);
        for step in 0..500 {
            world.send(owner, [update(channel, &format!("{step} {filler}"))]);
            world.run_ms(20);
            assert_eq!(texts(&world.take(healthy)), [format!("{step} {filler}")], "step {step}");
            assert!(world.queued(slow) <= 4_000 + 300, "{} bytes queued", world.queued(slow));
        }
        assert!(world.stats().state_dropped > 400);
        world.set_reading(slow, true);
        world.run_ms(50);
        let got = texts(&world.take(slow));
        assert!(got.len() < 50, "{} messages", got.len());
        assert_eq!(got.last(), Some(&format!("499 {filler}")), "the latest state, in full");
        assert_eq!(world.stats().resyncs, 1);
        // From here on it is a subscriber like any other.
        for step in 0..5 {
            world.send(owner, [update(channel, &format!("{step}"))]);
            world.run_ms(20);
            assert_eq!(texts(&world.take(slow)), [format!("{step}")]);
        }
        assert_eq!(world.closed(slow), None);
    }
}

/// The worlds of games with large entities: what many channels have for a reader in one round
/// exceeds the soft limit, and the reader takes it at once.
#[test]
fn a2_a_burst_of_many_channels_is_not_conflated_for_a_reader_that_keeps_up() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channels: Vec<u32> = (0..60).map(|_| channel(&mut world, owner)).collect();
        let (reader, stalled) = (world.join(ConnKind::Client, "fine"), world.join(ConnKind::Client, "slow"));
        for &channel in &channels {
            subscribe(&mut world, reader, channel);
            subscribe(&mut world, stalled, channel);
        }
        world.take(reader);
        world.set_reading(stalled, false);
        let filler = "x".repeat(100);
        let before = world.stats().state_dropped;
        for step in 0..20 {
            for &channel in &channels {
                world.send(owner, [update(channel, &format!("{step} {filler}"))]);
            }
            world.run_ms(20);
            let expected = format!("{step} {filler}");
            let got = texts(&world.take(reader)).iter().filter(|&text| *text == expected).count();
            assert_eq!(got, channels.len(), "updates of step {step}");
            assert!(world.queued(stalled) <= 4 * 4_000 + 300, "{} bytes queued", world.queued(stalled));
        }
        // All were dropped for the other one, but for the first burst.
        assert!(world.stats().state_dropped - before > 18 * 60);
        world.set_reading(stalled, true);
        world.run_ms(100);
        let got = texts(&world.take(stalled));
        let last = got.iter().filter(|text| text.starts_with("19 ")).count();
        assert_eq!(last, channels.len(), "the latest state of each channel");
    }
}

#[test]
fn a2_messages_that_are_not_state_are_never_dropped_but_end_the_connection() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = channel(&mut world, owner);
        let (slow, healthy) = (world.join(ConnKind::Client, "slow"), world.join(ConnKind::Client, "fine"));
        subscribe(&mut world, slow, channel);
        subscribe(&mut world, healthy, channel);
        world.take(owner);
        world.set_reading(slow, false);
        let body = prost::Message::encode_to_vec(&ServerForwardMessage {
            client_conn_id: world.conn(slow),
            payload: vec![7; 10_000],
        });
        for count in 1..=5 {
            world.send(owner, [Send::user(100, &body).to(channel).broadcast(1)]);
            assert_eq!(world.closed(slow).is_some(), count == 5, "after {count}");
        }
        assert_eq!(world.closed(slow), Some(CloseReason::SlowReader));
        assert_eq!(world.take_types(owner), [7], "the owner is told that it is gone");
        world.send(owner, [Send::user(100, &body).to(channel).broadcast(2)]);
        assert_eq!(world.take_types(healthy), [6, 8, 100]);
    }
}

#[test]
fn a2_a_reader_that_takes_nothing_is_closed_after_the_stall_timeout() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let channel = channel(&mut world, owner);
    let (stuck, dripping) = (world.join(ConnKind::Client, "stuck"), world.join(ConnKind::Client, "drip"));
    subscribe(&mut world, stuck, channel);
    subscribe(&mut world, dripping, channel);
    world.set_reading(stuck, false);
    world.set_reading(dripping, false);
    for step in 0..40 {
        world.send(owner, [update(channel, &format!("{step}"))]);
        world.run_ms(1_000);
        world.write(dripping, 1);
        // The driver has tried to write and failed.
        world.write(stuck, 0);
        if step == 0 {
            let (conn, now) = (world.conn(stuck), world.now);
            world.shards[0].handle_written(now, throng_gateway::ConnHandle(conn), 0);
        }
    }
    assert_eq!(world.closed(stuck), Some(CloseReason::Stalled));
    assert_eq!(world.closed(dripping), None);
}

#[test]
fn a_reader_that_catches_up_after_it_unsubscribed_and_came_back_gets_a_state() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = channel(&mut world, owner);
        let slow = world.join(ConnKind::Client, "slow");
        subscribe(&mut world, slow, channel);
        world.set_reading(slow, false);
        for step in 0..100 {
            world.send(owner, [update(channel, &format!("{step} {}", "x".repeat(90)))]);
            world.run_ms(20);
        }
        let unsub = UnsubscribedFromChannelMessage { conn_id: world.conn(slow) };
        world.send(slow, [Send::new(MessageType::UnsubFromChannel, &unsub).to(channel)]);
        world.set_reading(slow, true);
        world.take(slow);
        subscribe(&mut world, slow, channel);
        let got = texts(&world.take(slow));
        assert_eq!(got.len(), 1, "{got:?}");
        assert!(got[0].starts_with("99 "));
        world.send(owner, [update(channel, "after")]);
        world.run_ms(20);
        assert_eq!(texts(&world.take(slow)), ["after"]);
    }
}

// The state that was on its way to the former subscription never comes.
#[test]
fn a_reader_that_returns_without_wanting_a_state_gets_what_follows() {
    for (shards, kind) in [(1, ConnKind::Client), (2, ConnKind::Client), (2, ConnKind::Server)] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = channel(&mut world, owner);
        let slow = world.join(kind, "slow");
        let conn_id = world.conn(slow);
        let subscribe = |world: &mut World, skip_first: bool| {
            let options = ChannelSubscriptionOptions {
                fan_out_interval_ms: Some(20),
                skip_first_fan_out: Some(skip_first),
                ..Default::default()
            };
            let request = SubscribedToChannelMessage { conn_id, sub_options: Some(options) };
            world.send(owner, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
            world.run_ms(50);
        };
        subscribe(&mut world, false);
        world.set_reading(slow, false);
        for step in 0..100 {
            world.send(owner, [update(channel, &format!("{step} {}", "x".repeat(90)))]);
            world.run_ms(20);
        }
        // Asks for a full state, and is gone before it is due.
        world.set_reading(slow, true);
        let unsub = UnsubscribedFromChannelMessage { conn_id };
        world.send(owner, [Send::new(MessageType::UnsubFromChannel, &unsub).to(channel)]);
        world.run_ms(50);
        world.take(slow);
        subscribe(&mut world, true);
        world.send(owner, [update(channel, "after")]);
        world.run_ms(40);
        assert_eq!(texts(&world.take(slow)), ["after"], "{kind:?} on {shards} shards");
    }
}

// The states of all channels that a reader has missed exceed its bound by far: each has its turn
// all the same.
#[test]
fn a_reader_behind_in_many_channels_catches_up_with_all_of_them() {
    let mut world = World::sharded(config(), 2);
    let owner = world.join(ConnKind::Server, "s");
    let channels: Vec<u32> = (0..60).map(|_| channel(&mut world, owner)).collect();
    let client = world.join(ConnKind::Client, "c");
    for &channel in &channels {
        subscribe(&mut world, client, channel);
    }
    world.take(client);
    world.set_reading(client, false);
    for step in 0..20 {
        let filler = "x".repeat(100);
        world.send(owner, channels.iter().map(|&channel| update(channel, &format!("{step} {filler}"))));
        world.run_ms(20);
    }
    assert!(world.stats().state_dropped > 600);
    world.set_reading(client, true);
    world.run_ms(100);
    let mut last = BTreeMap::new();
    for message in world.take(client) {
        last.insert(message.channel, texts(&[message]));
    }
    for channel in channels {
        let text = last.get(&channel).and_then(|texts| texts.last());
        assert!(text.is_some_and(|text| text.starts_with("19 ")), "{channel}: {text:?}");
    }
}

#[test]
fn a_full_state_larger_than_the_bounds_still_gets_through() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let url = "type.googleapis.com/testpb.TestMergeMessage";
    let value: Vec<u8> = (0..2_000).flat_map(|_| [&[0x0A, 100][..], &[b'z'; 100]].concat()).collect();
    let send = |world: &mut World, value: &[u8]| {
        let data = Some(prost_types::Any { type_url: url.into(), value: value.to_vec() });
        let body = ChannelDataUpdateMessage { data, ..Default::default() };
        world.send(owner, [Send::new(MessageType::ChannelDataUpdate, &body).to(1)]);
    };
    let request = CreateChannelMessage { channel_type: 3, ..Default::default() };
    world.send(owner, [Send::new(MessageType::CreateChannel, &request)]);
    for part in value.chunks(102 * 200) {
        send(&mut world, part);
    }
    let client = world.join(ConnKind::Client, "c");
    world.set_reading(client, false);
    subscribe(&mut world, client, 1);
    assert!(world.queued(client) > 200_000);
    assert_eq!(world.closed(client), None);
    world.set_reading(client, true);
    world.run_ms(100);
    let parts = world.take(client).into_iter().filter(|message| message.msg_type == 8);
    let whole: Vec<u8> =
        parts.flat_map(|part| part.decode::<ChannelDataUpdateMessage>().data.expect("data").value).collect();
    assert_eq!(whole, value, "once, whole, in order");
}

/// One entry of `testpb.TestMergeMessage.kv` (2): key (1), value (2) with `removed` (1) or
/// `content` (2). A state cannot tell a receiver to forget a list, so one that appends sees again
/// what it knew. What the state holds is complete, in order and without repetition, and what
/// follows is new.
#[test]
fn a_resynchronised_reader_gets_its_lists_again() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = channel(&mut world, owner);
        let slow = world.join(ConnKind::Client, "slow");
        subscribe(&mut world, slow, channel);
        world.take(slow);
        // Elements of the list (3) with a number (1), and a text (1) that fills the reader's queue.
        let append = |number: u8| {
            let value = [&[0x1A, 2, 0x08, number][..], &state(&"x".repeat(100))].concat();
            let data = Some(prost_types::Any { type_url: TYPE_URL.into(), value });
            let body = ChannelDataUpdateMessage { data, ..Default::default() };
            Send::new(MessageType::ChannelDataUpdate, &body).to(channel)
        };
        let lists = |messages: &[Received]| -> Vec<Vec<u8>> {
            let updates = messages.iter().filter(|message| message.msg_type == 8);
            let values =
                updates.map(|message| message.decode::<ChannelDataUpdateMessage>().data.expect("data").value);
            let element = |pair: &[u8]| (pair[..3] == [0x1A, 2, 0x08]).then(|| pair[3]);
            values.map(|value| value.windows(4).filter_map(element).collect()).collect()
        };
        for number in 1..=3 {
            world.send(owner, [append(number)]);
            world.run_ms(20);
        }
        assert_eq!(lists(&world.take(slow)), [[1], [2], [3]]);
        world.set_reading(slow, false);
        for number in 4..=120 {
            world.send(owner, [append(number)]);
            world.run_ms(20);
        }
        assert!(world.stats().state_dropped > 0);
        world.set_reading(slow, true);
        world.run_ms(50);
        let got = lists(&world.take(slow));
        let full: Vec<u8> = (1..=120).collect();
        assert_eq!(got.last(), Some(&full), "the whole list, each element once");
        world.send(owner, [append(121)]);
        world.run_ms(20);
        assert_eq!(lists(&world.take(slow)), [[121]]);
    }
}

fn entry(key: u8, content: Option<&str>) -> Vec<u8> {
    let value = match content {
        Some(text) => [&[0x12, text.len() as u8], text.as_bytes()].concat(),
        None => vec![0x08, 1],
    };
    let entry = [&[0x08, key, 0x12, value.len() as u8][..], &value].concat();
    [&[0x12, entry.len() as u8][..], &entry].concat()
}

/// An entry that is removed, with a long text beside.
fn removed_with(key: u8, text: &str) -> Vec<u8> {
    let field = |tag: u8, value: &[u8]| {
        let mut out = vec![tag];
        throng_wire::write_varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
        out
    };
    let value = [&[0x08, 1][..], &field(0x12, text.as_bytes())].concat();
    field(0x12, &[&[0x08, key][..], &field(0x12, &value)].concat())
}

/// What a receiver that merges every data message ends up with: the keys that are left.
fn keys_left(keys: &mut BTreeSet<u8>, messages: &[Received]) {
    for message in messages.iter().filter(|message| message.msg_type == 8) {
        let value = message.decode::<ChannelDataUpdateMessage>().data.expect("data").value;
        let mut rest = &value[..];
        while let [0x12, len, tail @ ..] = rest {
            let (entry, after) = tail.split_at(usize::from(*len));
            if entry[4] == 0x08 {
                keys.remove(&entry[1])
            } else {
                keys.insert(entry[1])
            };
            rest = after;
        }
        assert!(rest.is_empty(), "only entries of the map");
    }
}

/// The state that makes good what a stalled reader missed cannot say what is gone: the removals
/// come before it.
#[test]
fn a_resynchronised_reader_keeps_no_entries_that_were_removed_meanwhile() {
    const KV_TYPE: &str = "type.googleapis.com/testpb.TestMergeMessage";
    let any = |value: Vec<u8>| Some(prost_types::Any { type_url: KV_TYPE.into(), value });
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let merge_options =
            ChannelDataMergeOptions { should_check_removable_map_field: true, ..Default::default() };
        let data = any((1..=4).map(|key| entry(key, Some("a"))).collect::<Vec<_>>().concat());
        let request = CreateChannelMessage {
            channel_type: 3,
            data,
            merge_options: Some(merge_options),
            ..Default::default()
        };
        world.send(owner, [Send::new(MessageType::CreateChannel, &request)]);
        let channel = world.take(owner)[0].decode::<CreateChannelResultMessage>().channel_id;
        let slow = world.join(ConnKind::Client, "slow");
        subscribe(&mut world, slow, channel);
        let mut keys = BTreeSet::new();
        keys_left(&mut keys, &world.take(slow));
        assert_eq!(keys, BTreeSet::from([1, 2, 3, 4]));

        world.set_reading(slow, false);
        let filler = "x".repeat(100);
        let publish = |world: &mut World, value: Vec<u8>| {
            let body = ChannelDataUpdateMessage { data: any(value), ..Default::default() };
            world.send(owner, [Send::new(MessageType::ChannelDataUpdate, &body).to(channel)]);
            world.run_ms(20);
        };
        for step in 0..100 {
            publish(&mut world, entry(2, Some(&filler)));
            match step {
                // Gone for good, and gone but back again.
                // With its last content beside, as generated games send it.
                60 => publish(&mut world, removed_with(1, &filler.repeat(600))),
                65 => publish(&mut world, removed_with(4, &filler.repeat(600))),
                70 => publish(&mut world, entry(3, None)),
                80 => publish(&mut world, entry(3, Some("d"))),
                _ => {}
            }
        }
        world.set_reading(slow, true);
        world.run_ms(50);
        keys_left(&mut keys, &world.take(slow));
        assert_eq!(world.stats().resyncs, 1);
        assert_eq!(keys, BTreeSet::from([2, 3]));
    }
}

#[test]
fn updates_that_get_lost_are_made_good_by_a_full_state_in_time() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let (first, second) = (channel(&mut world, owner), channel(&mut world, owner));
        let lossy = world.connect_with(ConnKind::Client, Framing::Packets, "10.0.0.9").expect("accepted");
        world.auth(lossy, "lossy");
        for channel in [first, second] {
            subscribe(&mut world, lossy, channel);
        }
        world.take(lossy);
        // Not lossy yet: nothing is held back, and what may get lost arrives.
        world.send(owner, [update(first, "seen")]);
        world.run_ms(20);
        assert_eq!(texts(&world.take(lossy)), ["seen"]);
        world.run_ms(600);
        assert_eq!(texts(&world.take(lossy)), ["seen"], "nobody knows whether it has arrived");
        world.run_ms(5_000);
        assert!(world.take(lossy).is_empty(), "a full state makes everything good, once");

        // Every small update is lost; messages are not, and full states come in their interval.
        world.set_losing(lossy, true);
        let (mut seen, mut heard) = (Vec::new(), 0);
        let hello = prost::Message::encode_to_vec(&ServerForwardMessage {
            client_conn_id: world.conn(lossy),
            payload: b"hello".to_vec(),
        });
        for step in 0..200 {
            world.send(
                owner,
                [update(first, &format!("{step}")), Send::user(100, &hello).to(second).broadcast(1)],
            );
            world.run_ms(20);
            let messages = world.take(lossy);
            heard += messages.iter().filter(|message| message.msg_type == 100).count();
            seen.extend(texts(&messages).into_iter().map(|text| (step, text)));
        }
        assert_eq!(heard, 200, "only state updates may get lost");
        assert!((6..=9).contains(&seen.len()), "one in half a second: {seen:?}");
        for (step, text) in &seen {
            let behind = step - text.parse::<i32>().expect("a number");
            assert!((0..=2).contains(&behind), "{text} at {step}");
        }
        // The last one is made good, too, and then there is silence.
        world.run_ms(600);
        assert_eq!(texts(&world.take(lossy)), ["199"]);
        world.run_ms(5_000);
        assert!(world.take(lossy).is_empty());

        // What does not fit a datagram, and what goes to others, is not at risk.
        let long = "y".repeat(100);
        let loose = world.stats().state_loose;
        let filler: Vec<Send> = (0..20).map(|_| update(first, &long)).collect();
        world.send(owner, filler);
        world.run_ms(20);
        assert!(world.stats().state_loose <= loose + 1);
        // Nobody asks for what was given up.
        let unsub = UnsubscribedFromChannelMessage { conn_id: world.conn(lossy) };
        world.send(lossy, [Send::new(MessageType::UnsubFromChannel, &unsub).to(first)]);
        world.run_ms(2_000);
        assert_eq!(world.closed(lossy), None);
    }
}

/// Messages to clients that do not read, of which every second client gets twice as many.
#[test]
fn the_fullest_clients_make_room_when_all_output_takes_too_much() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let (all, half) = (channel(&mut world, owner), channel(&mut world, owner));
        let stuck_server = world.join(ConnKind::Server, "stuck server");
        let clients: Vec<Id> = (0..8).map(|index| world.join(ConnKind::Client, &index.to_string())).collect();
        let healthy = world.join(ConnKind::Client, "healthy");
        for channel in [all, half] {
            let request = SubscribedToChannelMessage { conn_id: world.conn(stuck_server), sub_options: None };
            world.send(stuck_server, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
        }
        world.set_reading(stuck_server, false);
        for (index, client) in clients.iter().copied().chain([healthy]).enumerate() {
            subscribe(&mut world, client, all);
            if index % 2 == 0 {
                subscribe(&mut world, client, half);
            }
            world.set_reading(client, client == healthy);
        }
        let held = |world: &World| world.shards.iter().map(Shard::backlog).sum::<Backlog>();
        let before = held(&world);
        let client_conn_id = world.conn(healthy);
        let body = |len| ServerForwardMessage { client_conn_id, payload: vec![7; len] };
        let body = |len| prost::Message::encode_to_vec(&body(len));
        for _ in 0..10 {
            world.send(owner, [Send::user(100, &body(1_000)).to(all).broadcast(4)]);
            world.send(owner, [Send::user(100, &body(1_000)).to(half).broadcast(4)]);
        }
        let grown = held(&world);
        let shared = grown.shared_bytes - before.shared_bytes;
        assert!((120_000..130_000).contains(&shared), "8 and 4 clients times 10,000: {shared}");
        let once = grown.held_bytes() - before.held_bytes();
        assert!((20_000..60_000).contains(&once), "what all wait for is there once: {once}");

        // One byte too much costs one client of each shard that has to do something about it.
        let now = world.now;
        let waiting = |world: &mut World| {
            clients.iter().map(|id| (world.queued(*id), *id)).collect::<Vec<(usize, Id)>>()
        };
        let queues = waiting(&mut world);
        for shard in &mut world.shards {
            shard.shed_backlog(now, 1);
        }
        world.settle();
        for shard in 0..usize::from(shards) {
            let here = queues.iter().filter(|(_, id)| world.shard_of(*id) == shard);
            let fullest = here.clone().map(|(queued, _)| *queued).max();
            let closed: Vec<&(usize, Id)> = here.filter(|(_, id)| world.closed(*id).is_some()).collect();
            assert_eq!(closed.len(), usize::from(fullest.is_some()), "of shard {shard}");
            for (queued, id) in closed {
                assert_eq!((Some(*queued), world.closed(*id)), (fullest, Some(CloseReason::OutputMemory)));
            }
        }
        // All of it ends all clients that wait for something, and nobody else.
        for shard in &mut world.shards {
            shard.shed_backlog(now, usize::MAX);
        }
        world.settle();
        assert!(clients.iter().all(|id| world.closed(*id) == Some(CloseReason::OutputMemory)));
        assert_eq!((world.closed(healthy), world.closed(stuck_server)), (None, None));
        assert_eq!(held(&world).shared_bytes, before.shared_bytes);
        world.send(owner, [Send::user(100, &body(10)).to(all).broadcast(4)]);
        assert_eq!(world.take(healthy).last().map(|message| message.msg_type), Some(100));
        world.set_reading(stuck_server, true);
        world.run_ms(50);
        let got = world.take(stuck_server).iter().filter(|message| message.msg_type == 100).count();
        assert_eq!(got, 21, "a game server loses nothing");
    }
}
