//! "Why did this client not get this update?" has to be answered as it is, not nearly so: what is
//! said to leave at a time leaves then, and not before.

use crate::common;

use std::time::Duration;

use common::{Id, Send, World};
use throng_gateway::{
    ChannelId, ChannelSettings, ChannelType, Config, ConnId, ConnKind, Delivery, OutboxBounds, Reach,
    StateMachine, TypeSettings,
};
use throng_stdx::{Instant, Rng};
use throng_wire::channeldpb::{
    ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage, MessageType,
    SubscribedToChannelMessage,
};

const TYPE_URL: &str = "type.googleapis.com/testpb.TestMergeMessage";
const CHANNEL: u32 = 1;

fn config() -> Config {
    let settings = TypeSettings {
        tick_interval: Duration::from_millis(10),
        sub: throng_gateway::AccessLevel::Any,
        ..TypeSettings::fallback()
    };
    Config {
        development: true,
        client_state_machine: StateMachine::client_managing_channels().into(),
        channel_settings: ChannelSettings::new([(ChannelType(100), settings)]),
        outbox: OutboxBounds { soft_bytes: 2_000, low_water_bytes: 500, ..Config::reference().outbox },
        ..Config::reference()
    }
}

fn any(value: &[u8]) -> prost_types::Any {
    prost_types::Any { type_url: TYPE_URL.into(), value: value.to_vec() }
}

/// A channel with data, owned by the returned server, which gets nothing from it.
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

fn subscribe(world: &mut World, owner: Id, client: Id, interval_ms: u32, access: i32) {
    let options = ChannelSubscriptionOptions {
        fan_out_interval_ms: Some(interval_ms),
        data_access: Some(access),
        ..Default::default()
    };
    let request = SubscribedToChannelMessage { conn_id: world.conn(client), sub_options: Some(options) };
    world.send(owner, [Send::new(MessageType::SubToChannel, &request).to(CHANNEL)]);
    world.take(client);
}

/// An update that appends one text to the list.
fn update(text: &str) -> Send {
    let mut value = vec![0x0A, text.len() as u8];
    value.extend_from_slice(text.as_bytes());
    let body = ChannelDataUpdateMessage { data: Some(any(&value)), ..Default::default() };
    Send::new(MessageType::ChannelDataUpdate, &body).to(CHANNEL)
}

fn reach(world: &World, client: Id) -> Reach {
    let conn = ConnId(world.conn(client));
    let found: Vec<Reach> =
        world.shards.iter().filter_map(|shard| shard.reach_of(world.now, conn, ChannelId(CHANNEL))).collect();
    assert_eq!(found.len(), 1, "a channel is on one shard");
    found.into_iter().next().expect("one")
}

fn delivery(world: &World, client: Id) -> Delivery {
    reach(world, client).delivery.expect("a subscription")
}

fn updates(world: &mut World, client: Id) -> usize {
    world.take(client).iter().filter(|got| got.msg_type == MessageType::ChannelDataUpdate as u32).count()
}

/// Lets time pass up to an instant, or to just before it.
fn run_to(world: &mut World, at: Instant, before: bool) {
    let wanted = at.since(world.now);
    world.run(if before { wanted.saturating_sub(Duration::from_nanos(1)) } else { wanted });
}

#[test]
fn what_is_said_to_leave_at_a_time_leaves_then_and_not_before() {
    for (seed, shards) in [(1, 1), (2, 3)] {
        let mut rng = Rng::new(seed);
        let mut world = World::sharded(config(), shards);
        let owner = channel(&mut world);
        let clients: Vec<Id> =
            (0..6).map(|index| world.join(ConnKind::Client, &format!("c{index}"))).collect();
        let mut asked = 0;
        for step in 0..400 {
            let client = clients[rng.below(6) as usize];
            match rng.below(4) {
                0 => {
                    let interval = [0, 10, 20, 35, 50, 100, 250][rng.below(7) as usize];
                    subscribe(&mut world, owner, client, interval, 2);
                }
                1 => world.send(owner, [update(&format!("{step}"))]),
                2 if reach(&world, client).delivery.is_some() => {
                    world.send(client, [update(&format!("{step}"))]);
                }
                _ => world.run_ms(rng.below(40)),
            }
            let Some(delivery) = reach(&world, client).delivery else { continue };
            let said = delivery.due;
            assert_eq!(said.is_some(), delivery.full_state || delivery.pending > 0, "{delivery:?}");
            let Some(said) = said else { continue };
            updates(&mut world, client);
            assert!(said >= world.now, "step {step}: nothing is late here, {delivery:?}");
            if said > world.now {
                run_to(&mut world, said, true);
                assert_eq!(updates(&mut world, client), 0, "step {step}: before its time, {delivery:?}");
            }
            run_to(&mut world, said, false);
            world.run(Duration::ZERO);
            assert!(updates(&mut world, client) > 0, "step {step}: not at its time, {delivery:?}");
            asked += 1;
        }
        assert!(asked > 100, "{asked} answers were tried");
    }
}

#[test]
fn an_update_leaves_when_the_answer_before_it_said() {
    let mut world = World::new(config());
    let owner = channel(&mut world);
    let client = world.join(ConnKind::Client, "c");
    subscribe(&mut world, owner, client, 100, 1);
    world.run_ms(333);
    updates(&mut world, client);
    let before = delivery(&world, client);
    assert_eq!((before.pending, before.own, before.due, before.rate_by), (0, 0, None, "subscriber"));
    let next = before.next.expect("it would leave at some time");
    world.send(owner, [update("a"), update("b")]);
    let after = delivery(&world, client);
    assert_eq!((after.pending, after.due, after.next), (2, Some(next), Some(next)));
    run_to(&mut world, next, true);
    assert_eq!(updates(&mut world, client), 0);
    run_to(&mut world, next, false);
    assert_eq!(updates(&mut world, client), 1);
}

#[test]
fn own_updates_and_missing_access_are_named() {
    let mut world = World::new(config());
    let owner = channel(&mut world);
    let client = world.join(ConnKind::Client, "c");
    let other = world.join(ConnKind::Client, "d");
    assert_eq!(reach(&world, other).delivery, None, "nobody subscribed it");
    for each in [client, other] {
        subscribe(&mut world, owner, each, 100, 2);
    }
    world.run_ms(200);
    world.send(client, [update("mine")]);
    let own = delivery(&world, client);
    assert_eq!((own.pending, own.own, own.due), (0, 1, None), "what it sent itself does not come back");
    let others = delivery(&world, other);
    assert_eq!((others.pending, others.own, others.due), (1, 0, others.next));
    subscribe(&mut world, owner, client, 100, 0);
    let blind = delivery(&world, client);
    assert_eq!((blind.subscription.access, blind.next), (0, None), "without access nothing leaves for it");
}

#[test]
fn what_a_slow_reader_misses_is_counted_until_the_full_state_comes() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = channel(&mut world);
        let client = world.join(ConnKind::Client, "c");
        subscribe(&mut world, owner, client, 10, 1);
        world.run_ms(50);
        let conn = ConnId(world.conn(client));
        let shard = world.shard_of(client);
        let queue = |world: &World| {
            world.shards[shard].queue_of(world.now, conn, ChannelId(CHANNEL)).expect("it is here")
        };
        assert_eq!((queue(&world).lag, queue(&world).dropped, queue(&world).stalled), (None, 0, None));
        world.set_reading(client, false);
        let filler = "x".repeat(100);
        for _ in 0..40 {
            world.send(owner, [update(&filler)]);
            world.run_ms(10);
        }
        let held = queue(&world);
        let lag = held.lag.expect("it misses updates");
        assert!(held.queued_bytes > held.soft_bytes && held.queued_bytes < held.hard_bytes, "{held:?}");
        assert_eq!((held.dropped, lag.asked), (lag.dropped, false));
        assert_eq!(held.dropped, world.stats().state_dropped);
        assert!(held.stalled.expect("something waits") >= Duration::from_millis(380), "{held:?}");
        world.set_reading(client, true);
        world.run_ms(50);
        let healed = queue(&world);
        assert_eq!((healed.lag, healed.lagging, healed.queued_bytes), (None, 0, 0));
        assert_eq!((healed.dropped, healed.dropped_at), (held.dropped, held.dropped_at), "it stays known");
    }
}
