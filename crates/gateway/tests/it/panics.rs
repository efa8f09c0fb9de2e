//! Panics at places all over the core: what can be made whole is, the rest is found.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use throng_gateway::{Closed, ConnKind, failpoint};
use throng_stdx::Rng;
use throng_wire::channeldpb::{
    ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage, CreateChannelResultMessage,
    ListChannelMessage, ListChannelResultMessage, MessageType, RemoveChannelMessage,
    SubscribedToChannelMessage, UnsubscribedFromChannelMessage,
};

use crate::common::{Id, Send, World};

const TEST: &str = "type.googleapis.com/testpb.TestMergeMessage";

fn config() -> throng_gateway::Config {
    throng_gateway::Config { development: true, ..throng_gateway::Config::reference() }
}

fn create(world: &mut World, owner: Id) -> u32 {
    world.take(owner);
    let data = Some(prost_types::Any { type_url: TEST.into(), value: vec![0x0A, 1, b'a'] });
    let request = CreateChannelMessage { channel_type: 3, data, ..Default::default() };
    world.send(owner, [Send::new(MessageType::CreateChannel, &request)]);
    let created = world.take(owner).into_iter().find(|message| message.msg_type == 3).expect("created");
    created.decode::<CreateChannelResultMessage>().channel_id
}

fn update(channel: u32) -> Send {
    let data = Some(prost_types::Any { type_url: TEST.into(), value: vec![0x0A, 1, b'b'] });
    let body = ChannelDataUpdateMessage { data, ..Default::default() };
    Send::new(MessageType::ChannelDataUpdate, &body).to(channel)
}

fn subscribe(conn_id: u32, channel: u32, interval_ms: u32) -> Send {
    let sub_options = Some(ChannelSubscriptionOptions {
        fan_out_interval_ms: Some(interval_ms),
        skip_self_update_fan_out: Some(false),
        ..Default::default()
    });
    Send::new(MessageType::SubToChannel, &SubscribedToChannelMessage { conn_id, sub_options }).to(channel)
}

#[derive(Default)]
struct Tally {
    struck: u32,
    restarted: u32,
}

/// A server with channels, clients that come, subscribe, leave and go, and a panic somewhere in
/// every second step.
fn run(seed: u64, shards: u16, tally: &mut Tally) {
    let mut rng = Rng::new(seed);
    let mut world = World::sharded(config(), shards);
    let server = world.join(ConnKind::Server, "s");
    let channels = [create(&mut world, server), create(&mut world, server), create(&mut world, server)];
    let mut clients: Vec<Id> =
        (0..4).map(|index| world.join(ConnKind::Client, &format!("c{index}"))).collect();
    for step in 0..40 {
        let armed = step % 2 == 1;
        if armed {
            assert!(failpoint::arm(1 + rng.below(40) as u32), "built with debug assertions");
        }
        let channel = channels[rng.below(3) as usize];
        let who = clients[rng.below(clients.len() as u64) as usize];
        let (conn, mut sender) = (world.conn(who), Some(server));
        let result = catch_unwind(AssertUnwindSafe(|| match rng.below(8) {
            0 | 1 => world.send(server, [update(channel)]),
            2 | 3 => world.send(server, [subscribe(conn, channel, [0, 20, 50][rng.below(3) as usize])]),
            4 => {
                let body = UnsubscribedFromChannelMessage { conn_id: conn };
                world.send(server, [Send::new(MessageType::UnsubFromChannel, &body).to(channel)]);
            }
            5 => {
                sender = None;
                world.run_ms(60);
            }
            6 => {
                sender = Some(who);
                world.close_as(who, Closed::Error);
                clients.retain(|client| *client != who);
                clients.push(world.join(ConnKind::Client, "again"));
            }
            _ => {
                let body = RemoveChannelMessage { channel_id: channel };
                world.send(server, [Send::new(MessageType::RemoveChannel, &body)]);
            }
        }));
        let passed = failpoint::disarm();
        if result.is_ok() {
            continue;
        }
        assert!(armed && !passed, "seed {seed}: a panic of its own");
        tally.struck += 1;
        // As the driver does: the core makes whole what it can, and the connection whose input it
        // was is closed.
        if world.shards.iter_mut().any(|shard| !shard.heal().is_empty()) {
            tally.restarted += 1;
            for shard in &mut world.shards {
                *shard = shard.restarted(seed);
                assert_eq!(shard.check_invariants(), []);
                assert_eq!(shard.connections().count(), 0);
            }
            return;
        }
        if let Some(sender) = sender {
            world.close_as(sender, Closed::Error);
        }
        if sender == Some(server) {
            // Its channels go with it.
            return;
        }
        world.run_ms(200);
    }
    // Whoever is subscribed gets what comes.
    for channel in channels {
        world.run_ms(500);
        clients.iter().for_each(|client| drop(world.take(*client)));
        let exists = world.shards.iter().flat_map(|shard| shard.channels()).any(|view| view.id.0 == channel);
        world.send(server, [update(channel)]);
        world.run_ms(500);
        for client in &clients {
            let conn = world.conn(*client);
            let views = world
                .shards
                .iter()
                .flat_map(|shard| shard.subscriptions_of(throng_gateway::ConnId(conn), 100));
            let subscribed = views.into_iter().any(|view| view.channel.0 == channel);
            let got =
                world.take(*client).iter().any(|message| message.msg_type == 8 && message.channel == channel);
            assert_eq!(got, exists && subscribed, "seed {seed}: channel {channel}, client {conn}");
        }
    }
}

#[test]
fn panics_at_places_all_over_the_core_leave_nothing_half_done() {
    let mut tally = Tally::default();
    // One shard: what unwinds through this harness takes the letters along that it was carrying to
    // others, which a driver keeps.
    for seed in 0..300 {
        run(seed, 1, &mut tally);
    }
    assert!(tally.struck > 10, "{} strikes", tally.struck);
    assert!(tally.restarted < tally.struck, "{} of {} ended the world", tally.restarted, tally.struck);
}

/// Plays a request of the server about a client at every place at which a panic can come between,
/// and compares what the client was notified of with what is so afterwards.
fn interrupt(request: impl Fn(&mut World, Id, u32, u32), begins_subscribed: bool) {
    let mut half_done = 0;
    for place in 1..200 {
        let mut world = World::new(config());
        let server = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, server);
        let client = world.join(ConnKind::Client, "c");
        let conn = world.conn(client);
        if begins_subscribed {
            world.send(server, [subscribe(conn, channel, 20)]);
        }
        world.run_ms(100);
        drop(world.take(client));
        failpoint::arm(place);
        let struck = catch_unwind(AssertUnwindSafe(|| request(&mut world, server, conn, channel))).is_err();
        failpoint::disarm();
        if !struck {
            assert!(half_done > 0, "no panic came between the change and its message");
            return;
        }
        if !world.shards[0].heal().is_empty() {
            continue;
        }
        world.run_ms(100);
        let views = world.shards[0].subscriptions_of(throng_gateway::ConnId(conn), 100);
        let subscribed = views.into_iter().any(|view| view.channel.0 == channel);
        half_done += u32::from(subscribed != begins_subscribed);
        let got = world.take(client);
        let ended = |message: &crate::common::Received| matches!(message.msg_type, 4 | 7);
        let at = |is_it: &dyn Fn(&crate::common::Received) -> bool| got.iter().position(is_it);
        match subscribed {
            true if !begins_subscribed => {
                let begun = at(&|message| message.msg_type == 6).expect("told of its subscription");
                let state = at(&|message| message.msg_type == 8).expect("the full state");
                assert!(begun < state, "place {place}");
            }
            true => assert!(at(&ended).is_none(), "place {place}: still subscribed"),
            false => assert_eq!(at(&ended).is_some(), begins_subscribed, "place {place}: {got:?}"),
        }
    }
    unreachable!("a request passes fewer places");
}

#[test]
fn a_panic_leaves_no_subscriber_without_notice_of_its_subscription() {
    interrupt(|world, server, conn, channel| world.send(server, [subscribe(conn, channel, 20)]), false);
}

#[test]
fn a_panic_leaves_no_former_subscriber_in_the_belief_that_it_is_one() {
    interrupt(
        |world, server, conn, channel| {
            let body = UnsubscribedFromChannelMessage { conn_id: conn };
            world.send(server, [Send::new(MessageType::UnsubFromChannel, &body).to(channel)]);
        },
        true,
    );
    interrupt(
        |world, server, _, channel| {
            let body = RemoveChannelMessage { channel_id: channel };
            world.send(server, [Send::new(MessageType::RemoveChannel, &body)]);
        },
        true,
    );
}

#[test]
fn subscribers_get_full_states_after_a_panic_in_a_flush() {
    for place in 1..200 {
        let mut world = World::new(config());
        let server = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, server);
        let clients: Vec<Id> = (0..3).map(|_| world.join(ConnKind::Client, "c")).collect();
        for client in &clients {
            let conn = world.conn(*client);
            world.send(server, [subscribe(conn, channel, 20)]);
        }
        world.run_ms(100);
        clients.iter().for_each(|client| drop(world.take(*client)));
        world.send(server, [update(channel)]);
        failpoint::arm(place);
        let struck = catch_unwind(AssertUnwindSafe(|| world.run_ms(100))).is_err();
        if !struck {
            failpoint::disarm();
            assert!(place > 5, "a flush passes several places");
            return;
        }
        assert_eq!(world.shards[0].heal(), [], "place {place}");
        world.run_ms(100);
        for _ in 0..5 {
            world.send(server, [update(channel)]);
            world.run_ms(40);
        }
        for client in &clients {
            let got = world.take(*client);
            let updates = got.iter().filter(|message| message.msg_type == 8).count();
            assert!(updates >= 6, "place {place}: the full state and five updates, {updates} came");
        }
    }
    unreachable!("a tick passes fewer places");
}

/// Plays `act` with a panic at every place that it passes. `check` judges the world that was
/// healed.
fn at_every_place<T>(
    shards: u16,
    set_up: impl Fn(&mut World) -> T,
    act: impl Fn(&mut World, &T),
    check: impl Fn(&mut World, &T, u32),
) {
    let mut healed = 0;
    for place in 1..200 {
        let mut world = World::sharded(config(), shards);
        let cast = set_up(&mut world);
        assert!(failpoint::arm(place), "built with debug assertions");
        let struck = catch_unwind(AssertUnwindSafe(|| act(&mut world, &cast))).is_err();
        failpoint::disarm();
        if !struck {
            assert!(healed > 2, "{shards} shards: {healed} of {place} panics were healed");
            return;
        }
        let left: Vec<_> = world.shards.iter_mut().flat_map(throng_gateway::Shard::heal).collect();
        if left.is_empty() {
            healed += 1;
            world.run_ms(300);
            check(&mut world, &cast, place);
        }
    }
    unreachable!("a request passes fewer places");
}

/// Channels other than GLOBAL that exist, and those that LIST_CHANNEL names.
fn existing_and_listed(world: &mut World, watcher: Id) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let exist = world.shards.iter().flat_map(|shard| shard.channels()).map(|view| view.id.0);
    let exist = exist.filter(|id| *id != 0).collect();
    world.take(watcher);
    world.send(watcher, [Send::new(MessageType::ListChannel, &ListChannelMessage::default())]);
    let results = world.take(watcher).into_iter().filter(|message| message.msg_type == 5);
    let listed = results.flat_map(|message| message.decode::<ListChannelResultMessage>().channels);
    (exist, listed.map(|info| info.channel_id).filter(|id| *id != 0).collect())
}

#[test]
fn a_panic_leaves_no_channel_half_made() {
    for shards in 1..=3 {
        at_every_place(
            shards,
            |world| {
                let master = world.join(ConnKind::Server, "m");
                let claim = CreateChannelMessage { channel_type: 1, ..Default::default() };
                world.send(master, [Send::new(MessageType::CreateChannel, &claim)]);
                let creator = world.join(ConnKind::Server, "s");
                world.take(master);
                world.take(creator);
                [master, creator]
            },
            |world, [_, creator]| {
                let data = Some(prost_types::Any { type_url: TEST.into(), value: vec![0x0A, 1, b'a'] });
                let request = CreateChannelMessage { channel_type: 3, data, ..Default::default() };
                world.send(*creator, [Send::new(MessageType::CreateChannel, &request)]);
            },
            |world, [master, creator], place| {
                let case = format!("{shards} shards, place {place}");
                for (who, owns) in [(*creator, true), (*master, false)] {
                    let mut known = BTreeSet::new();
                    for message in world.take(who) {
                        if message.msg_type == 3 {
                            known.insert(message.decode::<CreateChannelResultMessage>().channel_id);
                        } else if message.msg_type == 4 {
                            known.remove(&message.decode::<RemoveChannelMessage>().channel_id);
                        }
                    }
                    let conn = throng_gateway::ConnId(world.conn(who));
                    let views = world.shards.iter().flat_map(|shard| shard.channels());
                    let owned: BTreeSet<u32> = views
                        .filter(|view| view.id.0 != 0 && (!owns || view.owner == Some(conn)))
                        .map(|view| view.id.0)
                        .collect();
                    assert_eq!(known, owned, "{case}: known and there");
                }
                let (exist, listed) = existing_and_listed(world, *master);
                assert_eq!(exist, listed, "{case}: there and listed");
            },
        );
    }
}

#[test]
fn a_panic_leaves_no_reader_with_what_the_replaced_data_lacks() {
    // kv[KEY] = {content "x"} and kv[KEY] = {removed}.
    let kept = |key: u8| vec![0x12, 7, 0x08, key, 0x12, 3, 0x12, 1, b'x'];
    let removed = |key: u8| vec![0x12, 6, 0x08, key, 0x12, 2, 0x08, 1];
    let claim = |data: Vec<u8>| {
        let data = Some(prost_types::Any { type_url: TEST.into(), value: data });
        let request = CreateChannelMessage { channel_type: 1, data, ..Default::default() };
        Send::new(MessageType::CreateChannel, &request)
    };
    for shards in 1..=3 {
        at_every_place(
            shards,
            |world| {
                let first = world.join(ConnKind::Server, "m1");
                world.send(first, [claim([kept(1), kept(2)].concat())]);
                let client = world.join(ConnKind::Client, "c");
                let conn = world.conn(client);
                world.send(first, [subscribe(conn, 0, 20)]);
                world.run_ms(100);
                assert!(world.take_types(client).contains(&8), "it has the old data");
                world.close(first);
                let second = world.join(ConnKind::Server, "m2");
                world.take(second);
                world.take(client);
                (client, second)
            },
            |world, (_, second)| {
                world.send(*second, [claim([kept(2), kept(3)].concat())]);
                world.run_ms(100);
            },
            |world, (client, second), place| {
                let case = format!("{shards} shards, place {place}");
                let got: Vec<Vec<u8>> = world
                    .take(*client)
                    .into_iter()
                    .filter(|message| message.msg_type == 8)
                    .filter_map(|message| message.decode::<ChannelDataUpdateMessage>().data)
                    .map(|data| data.value)
                    .collect();
                let global = world.shards[0].channel_data(throng_gateway::ChannelId(0));
                let is_new = global.expect("its data stays").1.windows(9).any(|part| part == kept(3));
                assert_eq!(got.iter().any(|data| *data == removed(1)), is_new, "{case}: {got:02x?}");
                // A claim that was interrupted is none that its sender relies on.
                let told = world.take(*second).iter().any(|message| message.msg_type == 3);
                let owner = world.shards[0].channels().find(|view| view.id.0 == 0).expect("GLOBAL").owner;
                let owns = owner == Some(throng_gateway::ConnId(world.conn(*second)));
                assert_eq!(told && world.closed(*second).is_none(), owns, "{case}");
            },
        );
    }
}

#[test]
fn a_panic_leaves_no_reader_with_an_entry_that_an_update_removed() {
    // kv[KEY] = {content "x"} and kv[KEY] = {removed}.
    let kept = |key: u8| vec![0x12, 7, 0x08, key, 0x12, 3, 0x12, 1, b'x'];
    let removed = |key: u8| vec![0x12, 6, 0x08, key, 0x12, 2, 0x08, 1];
    at_every_place(
        1,
        |world| {
            let server = world.join(ConnKind::Server, "s");
            world.take(server);
            let value = [kept(1), kept(2)].concat();
            let data = Some(prost_types::Any { type_url: TEST.into(), value });
            let request = CreateChannelMessage { channel_type: 3, data, ..Default::default() };
            world.send(server, [Send::new(MessageType::CreateChannel, &request)]);
            let created = world.take(server).into_iter().find(|message| message.msg_type == 3);
            let channel = created.expect("created").decode::<CreateChannelResultMessage>().channel_id;
            let client = world.join(ConnKind::Client, "c");
            let conn = world.conn(client);
            world.send(server, [subscribe(conn, channel, 20)]);
            world.run_ms(100);
            assert!(world.take_types(client).contains(&8), "it has both entries");
            (server, client, channel)
        },
        |world, (server, _, channel)| {
            let data = Some(prost_types::Any { type_url: TEST.into(), value: removed(1) });
            let body = ChannelDataUpdateMessage { data, ..Default::default() };
            world.send(*server, [Send::new(MessageType::ChannelDataUpdate, &body).to(*channel)]);
            world.run_ms(100);
        },
        |world, (_, client, channel), place| {
            let told = world
                .take(*client)
                .into_iter()
                .filter(|message| message.msg_type == 8)
                .filter_map(|message| message.decode::<ChannelDataUpdateMessage>().data)
                .any(|data| data.value == removed(1));
            let data = world.shards[0].channel_data(throng_gateway::ChannelId(*channel));
            let is_gone = !data.expect("its data stays").1.windows(9).any(|part| part == kept(1));
            assert!(told || !is_gone, "place {place}: the entry is gone and its reader was not told");
        },
    );
}
