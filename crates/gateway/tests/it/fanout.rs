//! Fan-out through a whole shard: the recorded timelines, and delivery exactly once under random
//! schedules.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{Id, Received, Send, World};
use serde_json::Value;
use throng_gateway::{ChannelSettings, ChannelType, Config, ConnKind, Limits, TypeSettings};
use throng_stdx::{Instant, Rng};
use throng_wire::DataUpdate;
use throng_wire::channeldpb::{
    ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage, MessageType,
    SubscribedToChannelMessage, UnsubscribedFromChannelMessage,
};

const TYPE_URL: &str = "type.googleapis.com/testpb.TestMergeMessage";
const CHANNEL: u32 = 1;

fn config(tick_ms: u64) -> Config {
    let settings = TypeSettings {
        tick_interval: Duration::from_millis(tick_ms),
        sub: throng_gateway::AccessLevel::Any,
        ..TypeSettings::fallback()
    };
    Config {
        development: true,
        client_state_machine: throng_gateway::StateMachine::client_managing_channels().into(),
        channel_settings: ChannelSettings::new([(ChannelType(100), settings)]),
        ..Config::reference()
    }
}

fn any(value: &[u8]) -> prost_types::Any {
    prost_types::Any { type_url: TYPE_URL.into(), value: value.to_vec() }
}

/// A channel with data of the test type, owned by the returned server, which gets nothing from it.
fn channel(world: &mut World) -> Id {
    let owner = world.join(ConnKind::Server, "owner");
    let options = ChannelSubscriptionOptions { data_access: Some(0), ..Default::default() };
    let create = CreateChannelMessage {
        channel_type: 100,
        data: Some(any(&[])),
        sub_options: Some(options),
        ..Default::default()
    };
    world.send(owner, [Send::new(MessageType::CreateChannel, &create)]);
    world.take(owner);
    owner
}

/// Has the owner subscribe a client, so that it may be given WRITE access.
fn subscribe(world: &mut World, owner: Id, client: Id, options: ChannelSubscriptionOptions) {
    let request = SubscribedToChannelMessage { conn_id: world.conn(client), sub_options: Some(options) };
    world.send(owner, [Send::new(MessageType::SubToChannel, &request).to(CHANNEL)]);
}

/// An update that appends one string to the list.
fn update(text: &str) -> Send {
    let mut value = vec![0x0A, text.len() as u8];
    value.extend_from_slice(text.as_bytes());
    let body = ChannelDataUpdateMessage { data: Some(any(&value)), ..Default::default() };
    Send::new(MessageType::ChannelDataUpdate, &body).to(CHANNEL)
}

/// The strings of each data update among the messages.
fn lists(messages: &[Received]) -> Vec<Vec<String>> {
    let updates = messages.iter().filter(|message| message.msg_type == MessageType::ChannelDataUpdate as u32);
    updates
        .map(|message| {
            assert_eq!((message.channel, message.broadcast, message.stub), (CHANNEL, 0, 0));
            let update = DataUpdate::parse(&message.body).expect("a data update");
            assert_eq!((update.type_name, update.context_conn_id), ("testpb.TestMergeMessage", 0));
            list(update.value)
        })
        .collect()
}

fn list(mut value: &[u8]) -> Vec<String> {
    let mut out = Vec::new();
    while let Some(field) = throng_wire::read_field(&mut value).expect("valid") {
        assert_eq!(field.number, 1);
        out.push(field.str().expect("text").to_owned());
    }
    out
}

#[test]
fn recorded_timelines_hold() {
    let text = include_str!("../../../../fixtures/gateway/fanout.json");
    let file: Value = serde_json::from_str(text).expect("the fixture is JSON");
    let scenarios = file["scenarios"].as_array().expect("a list");
    assert_eq!(scenarios.len(), 9);
    for scenario in scenarios {
        play(scenario);
    }
}

fn play(scenario: &Value) {
    let name = scenario["name"].as_str().expect("a name");
    let mut world = World::new(config(10));
    let owner = channel(&mut world);
    let mut clients: BTreeMap<String, Id> = BTreeMap::new();
    for event in scenario["events"].as_array().expect("a list") {
        let t = event["t"].as_u64().expect("a time");
        world.now = Instant::from_millis(t);
        if let Some(client) = event["subscribe"].as_str() {
            let id =
                *clients.entry(client.to_owned()).or_insert_with(|| world.join(ConnKind::Client, client));
            let options = &event["options"];
            let flag = |key: &str| options[key].as_bool();
            let new = world.take(id).is_empty();
            let access = match options["dataAccess"].as_str() {
                Some("NO_ACCESS") => Some(0),
                Some("READ_ACCESS") => Some(1),
                _ if new => Some(2),
                _ => None,
            };
            let options = ChannelSubscriptionOptions {
                data_access: access,
                fan_out_interval_ms: options["fanOutIntervalMs"].as_u64().map(|ms| ms as u32),
                fan_out_delay_ms: options["fanOutDelayMs"].as_i64().map(|ms| ms as i32),
                skip_self_update_fan_out: flag("skipSelfUpdateFanOut"),
                skip_first_fan_out: flag("skipFirstFanOut"),
                ..Default::default()
            };
            subscribe(&mut world, owner, id, options);
            let got = world.take(id);
            assert!(lists(&got).is_empty(), "{name} at {t}: data outside a tick");
        }
        if let Some(text) = event["update"].as_str() {
            let by = match event["by"].as_str() {
                Some("owner") | None => owner,
                Some(client) => clients[client],
            };
            world.send(by, [update(text)]);
        }
        if event["tick"] != true {
            continue;
        }
        world.jump_to_ms(t);
        for (client, &id) in &clients {
            let got = lists(&world.take(id));
            let want: Vec<Vec<String>> = event["deliver"][client]
                .as_array()
                .into_iter()
                .flatten()
                .map(|list| {
                    let list = list.as_array().expect("a list of strings");
                    list.iter().map(|text| text.as_str().expect("text").to_owned()).collect()
                })
                .collect();
            if name == "late tick catches up in windows" && want.len() > 1 {
                // Several elapsed windows may come as one message (spec 7.5): what counts is the
                // content in order.
                assert_eq!(got.concat(), want.concat(), "{name} at {t}, {client}");
            } else {
                assert_eq!(got, want, "{name} at {t}, {client}");
            }
        }
    }
}

/// One subscriber as the model sees it.
#[derive(Default)]
struct Model {
    /// Every string it must have had by the end, in order.
    due: Vec<String>,
    had: Vec<String>,
    skip_self: bool,
    /// A full state comes before anything else and replaces what is due.
    awaits_full: bool,
}

// selection by handling index. Any schedule of updates, re-subscriptions, unsubscriptions and
// late ticks delivers every update to every subscriber with access exactly once and in order.
#[test]
fn a7_every_update_reaches_every_subscriber_exactly_once() {
    for seed in 0..300 {
        random_schedule(seed);
    }
}

fn random_schedule(seed: u64) {
    let mut rng = Rng::new(seed);
    let tick_ms = [5, 10, 20, 33][rng.below(4) as usize];
    let shards = [1, 2, 4][rng.below(3) as usize];
    let mut config = config(tick_ms);
    // Now and then a backlog bound so small that updates are folded together all the time.
    if rng.chance(0.3) {
        config.limits = Limits { channel_backlog_bytes: rng.below(60) as usize, ..config.limits };
    }
    let mut world = World::sharded(config, shards);
    let owner = channel(&mut world);
    let mut all: Vec<String> = Vec::new();
    let mut clients: Vec<(Id, Option<Model>)> = Vec::new();
    for step in 0..250 {
        match rng.below(100) {
            0..8 if clients.len() < 8 => {
                let id = world.join(ConnKind::Client, &format!("c{step}"));
                clients.push((id, None));
            }
            8..20 if !clients.is_empty() => {
                let at = rng.below(clients.len() as u64) as usize;
                let (id, model) = &mut clients[at];
                let skip_self = rng.chance(0.5);
                let skip_first = rng.chance(0.3);
                let options = ChannelSubscriptionOptions {
                    data_access: Some(2),
                    fan_out_interval_ms: Some([0, 7, 20, 50, 100, 333][rng.below(6) as usize]),
                    fan_out_delay_ms: Some(rng.below(200) as i32 - 100),
                    skip_self_update_fan_out: Some(skip_self),
                    skip_first_fan_out: Some(skip_first),
                    ..Default::default()
                };
                match model {
                    None => {
                        let awaits_full = !skip_first;
                        *model = Some(Model { skip_self, awaits_full, ..Model::default() });
                        subscribe(&mut world, owner, *id, options);
                    }
                    // The model follows changes of timing only; the flags keep their values.
                    Some(_) => {
                        let options = ChannelSubscriptionOptions {
                            data_access: None,
                            skip_self_update_fan_out: None,
                            skip_first_fan_out: None,
                            ..options
                        };
                        subscribe(&mut world, owner, *id, options);
                    }
                }
            }
            20..23 if !clients.is_empty() => {
                let at = rng.below(clients.len() as u64) as usize;
                let (id, model) = &mut clients[at];
                if model.take().is_some() {
                    let request = UnsubscribedFromChannelMessage { conn_id: world.conn(*id) };
                    world.send(*id, [Send::new(MessageType::UnsubFromChannel, &request).to(CHANNEL)]);
                    let got = world.take(*id);
                    let unsub = got.iter().position(|message| message.msg_type == 7).expect("a confirmation");
                    assert!(lists(&got[unsub..]).is_empty(), "data after the confirmed unsubscription");
                }
            }
            23..70 => {
                let text = format!("{step}");
                let by = rng.below(clients.len() as u64 + 2) as usize;
                let by = clients.get(by).filter(|(_, model)| model.is_some()).map_or(owner, |(id, _)| *id);
                world.send(by, [update(&text)]);
                all.push(text.clone());
                for (id, model) in &mut clients {
                    if let Some(model) = model
                        && (model.awaits_full || !(model.skip_self && *id == by))
                    {
                        model.due.push(text.clone());
                    }
                }
            }
            70..75 => {
                // An overloaded process: nothing runs for a while, then everything at once.
                let at = world.now + Duration::from_millis(rng.below(300));
                world.now = at;
                for shard in &mut world.shards {
                    shard.handle_timeout(at);
                }
                world.settle();
            }
            _ => world.run(Duration::from_micros(rng.below(40_000))),
        }
        collect(&mut world, &mut clients, &all);
    }
    world.run_ms(2_000);
    collect(&mut world, &mut clients, &all);
    for (id, model) in &clients {
        if let Some(model) = model {
            assert!(!model.awaits_full, "seed {seed}: {id:?} never got its full state");
            assert_eq!(model.had, model.due, "seed {seed}: {id:?} on {shards} shards, tick {tick_ms}");
        }
    }
    assert_eq!(
        world.shards.iter().map(|s| s.next_timeout()).collect::<BTreeSet<_>>(),
        BTreeSet::from([None])
    );
}

fn collect(world: &mut World, clients: &mut [(Id, Option<Model>)], all: &[String]) {
    for (id, model) in clients {
        for got in lists(&world.take(*id)) {
            let Some(model) = model else { panic!("data without a subscription") };
            if model.awaits_full {
                // The full state stands for everything before it.
                assert_eq!(got, all, "a full state is complete");
                model.awaits_full = false;
                model.had.clear();
                model.due.clear();
            } else {
                assert!(!got.is_empty(), "an empty message");
                model.had.extend(got);
                assert!(model.due.starts_with(&model.had), "had {:?} due {:?}", model.had, model.due);
            }
        }
    }
}

// Pacing: at most one message per interval, the first at subscription + delay + interval.
#[test]
fn messages_keep_their_distance() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let tick_ms = [5, 20, 33][rng.below(3) as usize];
        let mut world = World::new(config(tick_ms));
        let owner = channel(&mut world);
        world.run(Duration::from_micros(rng.below(50_000)));
        let client = world.join(ConnKind::Client, "c");
        let interval_ms = 1 + rng.below(120);
        let delay_ms = rng.below(100);
        let since = world.now;
        let options = ChannelSubscriptionOptions {
            data_access: Some(1),
            fan_out_interval_ms: Some(interval_ms as u32),
            fan_out_delay_ms: Some(delay_ms as i32),
            ..Default::default()
        };
        subscribe(&mut world, owner, client, options);
        world.take(client);
        let mut times = Vec::new();
        for step in 0..4000 {
            world.run(Duration::from_micros(500));
            if step % 3 == 0 {
                world.send(owner, [update("x")]);
            }
            times.extend(lists(&world.take(client)).iter().map(|_| world.now));
        }
        let first = times[0].since(since);
        let earliest = Duration::from_millis(delay_ms + interval_ms);
        assert!(first >= earliest, "seed {seed}: first after {first:?}");
        assert!(first <= earliest + Duration::from_millis(tick_ms + 1), "seed {seed}: first after {first:?}");
        // A window ends up to a tick before it is flushed, and the sample is half a millisecond
        // wide.
        let shortest = Duration::from_millis(interval_ms.saturating_sub(tick_ms));
        for pair in times.windows(2) {
            assert!(pair[1].since(pair[0]) + Duration::from_millis(1) >= shortest, "seed {seed}");
        }
        let span = times[times.len() - 1].since(times[0]).as_millis() as u64;
        let messages_max = span / interval_ms.max(tick_ms) + 1;
        assert!(times.len() as u64 <= messages_max + 1, "seed {seed}: {} messages in {span} ms", times.len());
        assert!(times.len() as u64 + 2 >= messages_max, "seed {seed}: only {} messages", times.len());
    }
}

// Spec 5.8: a changed interval applies from the next fan-out, which may be overdue by the new one.
#[test]
fn a_shorter_interval_sends_what_is_overdue_at_once() {
    let mut world = World::new(config(10));
    let owner = channel(&mut world);
    let client = world.join(ConnKind::Client, "client");
    let every = |ms| ChannelSubscriptionOptions { fan_out_interval_ms: Some(ms), ..Default::default() };
    subscribe(&mut world, owner, client, every(200));
    world.run_ms(200);
    assert_eq!(lists(&world.take(client)).len(), 1, "the full state");
    world.run_ms(20);
    world.send(owner, [update("waits")]);
    world.run_ms(170);
    assert!(lists(&world.take(client)).is_empty(), "190 of 200 ms");
    subscribe(&mut world, owner, client, every(120));
    world.run_ms(10);
    assert_eq!(lists(&world.take(client)), [["waits"]]);
    // The next windows count from the full state: they end after 240 and 360 ms.
    world.send(owner, [update("next")]);
    world.run_ms(30);
    assert!(lists(&world.take(client)).is_empty());
    world.run_ms(10);
    assert_eq!(lists(&world.take(client)), [["next"]]);

    // What became due stays due, whatever else changes before the tick.
    world.send(owner, [update("twice")]);
    world.run_ms(110);
    subscribe(&mut world, owner, client, every(50));
    subscribe(&mut world, owner, client, every(1000));
    world.run_ms(10);
    assert_eq!(lists(&world.take(client)), [["twice"]]);
}

// an interval of zero hangs the reference's channel; here it means every tick.
#[test]
fn a10_an_interval_of_zero_means_every_tick() {
    let mut world = World::new(config(20));
    let owner = channel(&mut world);
    let client = world.join(ConnKind::Client, "c");
    let options = ChannelSubscriptionOptions { fan_out_interval_ms: Some(0), ..Default::default() };
    subscribe(&mut world, owner, client, options);
    world.run_ms(40);
    world.take(client);
    for step in 0..10 {
        world.send(owner, [update(&format!("{step}a")), update(&format!("{step}b"))]);
        world.run_ms(20);
        assert_eq!(lists(&world.take(client)), [[format!("{step}a"), format!("{step}b")]]);
    }
    assert_eq!(world.shards[0].next_timeout(), None);
}

// the reference loses a removal that is not the first update of its window, and clients keep
// ghosts.
#[test]
fn a7_removals_survive_wherever_they_stand_in_a_window() {
    let mut world = World::new(config(20));
    let owner = channel(&mut world);
    let client = world.join(ConnKind::Client, "c");
    subscribe(&mut world, owner, client, ChannelSubscriptionOptions::default());
    world.run_ms(100);
    world.take(client);
    // kv[1] = {content "x"}, then kv[1] = {removed}.
    let value = |state: &[u8]| {
        let mut value = vec![0x12, 4 + state.len() as u8, 0x08, 1, 0x12, state.len() as u8];
        value.extend_from_slice(state);
        let body = ChannelDataUpdateMessage { data: Some(any(&value)), ..Default::default() };
        Send::new(MessageType::ChannelDataUpdate, &body).to(CHANNEL)
    };
    world.send(owner, [update("first"), value(&[0x12, 1, b'x']), value(&[0x08, 1])]);
    world.run_ms(20);
    let got = world.take(client);
    let message = got.iter().find(|message| message.msg_type == 8).expect("an update");
    let update = DataUpdate::parse(&message.body).expect("a data update");
    let removed = [0x08, 1, 0x12, 2, 0x08, 1];
    assert!(update.value.windows(removed.len()).any(|window| window == removed), "{:02x?}", update.value);
}

// A backlog over its bound with more writers than get an accumulation of their own: the rest gets a
// full state, and everybody converges.
#[test]
fn writers_behind_a_folded_backlog_get_a_full_state() {
    let mut config = config(20);
    config.limits = Limits { channel_backlog_bytes: 2_000, ..config.limits };
    let mut world = World::new(config);
    let owner = channel(&mut world);
    let writers: Vec<Id> = (0..60)
        .map(|_| {
            let client = world.join(ConnKind::Client, "c");
            let options = ChannelSubscriptionOptions {
                data_access: Some(2),
                fan_out_interval_ms: Some(10_000),
                ..Default::default()
            };
            subscribe(&mut world, owner, client, options);
            client
        })
        .collect();
    world.run_ms(10_020);
    let mut all = BTreeSet::new();
    for round in 0..10 {
        for (number, writer) in writers.iter().enumerate() {
            let text = format!("{round}-{number}");
            world.send(*writer, [update(&text)]);
            all.insert((number, text));
        }
        world.run_ms(100);
    }
    assert!(world.stats().updates_folded > 0);
    for writer in &writers {
        world.take(*writer);
    }
    world.run_ms(20_000);
    let mut full = 0;
    for (number, writer) in writers.iter().enumerate() {
        let got: BTreeSet<String> = lists(&world.take(*writer)).concat().into_iter().collect();
        let others: BTreeSet<String> =
            all.iter().filter(|(by, _)| *by != number).map(|(_, text)| text.clone()).collect();
        assert!(got.is_superset(&others), "writer {number} misses something");
        full += usize::from(got.len() > others.len());
    }
    assert!(full > 0 && full < writers.len(), "{full} full states");
}
