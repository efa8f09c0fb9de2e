//! Lost connections and their return. Spec §4.7.

use crate::common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use common::{Id, Received, Send, World};
use throng_gateway::{
    CloseReason, Closed, Config, ConnKind, Recovery, Refusal, SecurityEventKind, StateMachine, failpoint,
};
use throng_wire::channeldpb::{
    AuthMessage, AuthResultMessage, ChannelDataAccess, ChannelDataRecoveryMessage, ChannelDataUpdateMessage,
    ChannelSubscriptionOptions, CreateChannelMessage, CreateChannelResultMessage, DisconnectMessage,
    MessageType, SubscribedToChannelMessage, UnsubscribedFromChannelMessage,
    UnsubscribedFromChannelResultMessage,
};

const TEST: &str = "type.googleapis.com/testpb.TestMergeMessage";

fn config() -> Config {
    Config {
        development: true,
        client_state_machine: StateMachine::client_managing_channels().into(),
        recovery: Recovery {
            servers: true,
            server_timeout: Some(Duration::from_secs(8)),
            client_window: Duration::from_secs(30),
            ..Recovery::default()
        },
        ..Config::reference()
    }
}

fn create(world: &mut World, owner: Id, channel_type: i32, data: Option<&[u8]>) -> u32 {
    world.take(owner);
    let data = data.map(|value| prost_types::Any { type_url: TEST.into(), value: value.to_vec() });
    let request = CreateChannelMessage { channel_type, data, ..Default::default() };
    world.send(owner, [Send::new(MessageType::CreateChannel, &request)]);
    world.take(owner)[0].decode::<CreateChannelResultMessage>().channel_id
}

fn subscribe(world: &mut World, from: Id, channel: u32) {
    let request = SubscribedToChannelMessage {
        conn_id: world.conn(from),
        sub_options: Some(ChannelSubscriptionOptions { fan_out_interval_ms: Some(70), ..Default::default() }),
    };
    world.send(from, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
}

fn entry(text: &str) -> Vec<u8> {
    [&[0x0A, text.len() as u8], text.as_bytes()].concat()
}

fn update(world: &mut World, from: Id, channel: u32, text: &str) {
    let data = Some(prost_types::Any { type_url: TEST.into(), value: entry(text) });
    let body = ChannelDataUpdateMessage { data, ..Default::default() };
    world.send(from, [Send::new(MessageType::ChannelDataUpdate, &body).to(channel)]);
}

fn types(messages: &[Received]) -> Vec<u32> {
    messages.iter().map(|message| message.msg_type).collect()
}

fn auth_result(messages: &[Received]) -> AuthResultMessage {
    messages.iter().find(|message| message.msg_type == 1).expect("an AUTH result").decode()
}

/// Authenticates with a resume token (empty: asks for one) and gives the result back.
fn auth_with(world: &mut World, id: Id, token: &[u8]) -> (AuthResultMessage, Vec<Received>) {
    let body = AuthMessage {
        player_identifier_token: "ann".into(),
        login_token: "lt".into(),
        resume_token: Some(token.to_vec()),
        ..Default::default()
    };
    world.send(id, [Send::new(MessageType::Auth, &body).stub(1)]);
    let got = world.take(id);
    (auth_result(&got), got)
}

#[test]
fn a_server_returns_to_every_channel_on_every_shard() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "pit");
        let channels: Vec<u32> = (0..6).map(|_| create(&mut world, owner, 3, Some(&entry("x")))).collect();
        let client = world.join(ConnKind::Client, "c");
        for channel in &channels {
            subscribe(&mut world, client, *channel);
        }
        world.run_ms(200);
        world.take(client);
        let old = world.conn(owner);
        world.close(owner);
        assert_eq!(types(&world.take(client)), [22; 6]);
        // While lost: messages to it are dropped, updates of others go on.
        world.send(client, [Send::user(100, b"x").to(channels[0])]);
        assert_eq!(world.refused(Refusal::NoOwner), 1);

        let back = world.connect(ConnKind::Server);
        world.auth(back, "pit");
        let got = world.take(back);
        let result = auth_result(&got);
        assert_eq!((result.conn_id, result.should_recover), (old, true));
        assert_eq!(types(&got), [1, 20, 20, 20, 20, 20, 20], "on {shards} shards");
        for message in &got[1..] {
            let data: ChannelDataRecoveryMessage = message.decode();
            assert_eq!((message.channel, data.owner_conn_id, data.channel_type), (data.channel_id, old, 3));
            assert_eq!(data.channel_data.expect("data").value, entry("x"));
            assert_eq!(data.sub_options.expect("options").skip_first_fan_out, Some(true));
            assert!(data.sub_time >= common::UNIX_START_NS as i64);
        }
        // Recovering: clients are not forwarded yet.
        world.send(client, [Send::user(100, b"x").to(channels[0])]);
        assert_eq!(world.refused(Refusal::OwnerRecovering), 1);
        world.run_ms(999);
        assert!(world.take(back).is_empty() && world.take(client).is_empty());
        world.run_ms(1);
        assert_eq!(types(&world.take(back)), [21], "RECOVERY_END");
        assert_eq!(types(&world.take(client)), [23; 6]);
        world.send(client, [Send::user(100, b"x").to(channels[1])]);
        assert_eq!(types(&world.take(back)), [100]);
        // It owns and writes under its old id; deltas go on where the recovered state ended.
        update(&mut world, back, channels[2], "y");
        world.run_ms(200);
        let got = world.take(client);
        assert_eq!(got[0].decode::<ChannelDataUpdateMessage>().data.expect("data").value, entry("y"));
        assert_eq!(world.stats().servers_recovered, 1);
        world.close(back);
        assert_eq!(types(&world.take(client)), [22; 6]);
    }
}

// in the reference a second loss under the same identifier (all servers of one machine)
// replaces the first.
#[test]
fn a15_several_lost_servers_with_one_identifier_return_in_order_of_loss() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let servers: Vec<(Id, u32)> = (0..3)
            .map(|_| {
                let id = world.join(ConnKind::Server, "same-machine");
                (id, create(&mut world, id, 3, None))
            })
            .collect();
        let ids: Vec<u32> = servers.iter().map(|(id, _)| world.conn(*id)).collect();
        for at in [1, 0, 2] {
            world.close(servers[at].0);
            world.run_ms(10);
        }
        for at in [1, 0, 2] {
            let back = world.connect(ConnKind::Server);
            world.auth(back, "same-machine");
            let got = world.take(back);
            assert_eq!(auth_result(&got).conn_id, ids[at]);
            let data: ChannelDataRecoveryMessage = got[1].decode();
            assert_eq!(data.channel_id, servers[at].1);
            assert_eq!(data.channel_data, None, "a channel without data is recovered without data");
        }
        let fourth = world.connect(ConnKind::Server);
        world.auth(fourth, "same-machine");
        assert!(!auth_result(&world.take(fourth)).should_recover);
    }
}

#[test]
fn only_servers_recover_by_identifier_and_only_after_an_accident() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "pit");
    let channel = create(&mut world, owner, 3, None);
    let killer = world.join(ConnKind::Server, "other");
    world.close(owner);
    let client = world.connect(ConnKind::Client);
    world.auth(client, "pit");
    assert!(!auth_result(&world.take(client)).should_recover);
    let back = world.connect(ConnKind::Server);
    world.auth(back, "pit");
    assert!(auth_result(&world.take(back)).should_recover);
    world.run_ms(1_000);
    world.take(back);
    // DISCONNECT is not an accident: the channel goes with its owner.
    subscribe(&mut world, client, channel);
    world.take(client);
    let target = DisconnectMessage { conn_id: 1 };
    world.send(killer, [Send::new(MessageType::Disconnect, &target)]);
    assert_eq!(types(&world.take(client)), [4]);
    let again = world.connect(ConnKind::Server);
    world.auth(again, "pit");
    assert!(!auth_result(&world.take(again)).should_recover);
}

#[test]
fn a_timeout_drops_the_one_place_and_removes_only_what_the_lost_one_owned() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let (owner, guest) = (world.join(ConnKind::Server, "owner"), world.join(ConnKind::Server, "guest"));
        let channel = create(&mut world, owner, 3, None);
        subscribe(&mut world, guest, channel);
        let client = world.join(ConnKind::Client, "c");
        subscribe(&mut world, client, channel);
        world.take(client);
        world.take(owner);
        world.close(guest);
        assert_eq!(types(&world.take(owner)), [7], "the loss of a guest is told at once");
        world.run(Duration::from_secs(5));
        world.close(owner);
        world.run(Duration::from_secs(4));
        // The guest's time is up; the owner's is not, and the channel stays.
        assert_eq!(types(&world.take(client)), [22]);
        let back = world.connect(ConnKind::Server);
        world.auth(back, "guest");
        assert!(!auth_result(&world.take(back)).should_recover);
        let back = world.connect(ConnKind::Server);
        world.auth(back, "owner");
        assert!(auth_result(&world.take(back)).should_recover);
        world.run(Duration::from_secs(2));
        world.close(back);
        world.take(client);
        world.run(Duration::from_secs(9));
        assert_eq!(types(&world.take(client)), [4], "removed with msgType 4");
        assert_eq!(world.stats().recoveries_expired, 2);
        assert!(world.shards.iter().all(|shard| shard.next_timeout().is_none()));
    }
}

#[test]
fn data_over_a_packet_is_recovered_in_parts() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "pit");
    let channel = create(&mut world, owner, 3, Some(&[]));
    let text = "z".repeat(120);
    for _ in 0..1_000 {
        update(&mut world, owner, channel, &text);
    }
    world.close(owner);
    let back = world.connect(ConnKind::Server);
    world.auth(back, "pit");
    let got = world.take(back);
    let parts: Vec<Vec<u8>> = got[1..]
        .iter()
        .map(|message| message.decode::<ChannelDataRecoveryMessage>().channel_data.expect("data").value)
        .collect();
    assert!(parts.len() > 1);
    assert_eq!(parts.concat(), entry(&text).repeat(1_000));
}

#[test]
fn a_client_resumes_with_its_token_and_nobody_notices_the_gap() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, owner, 3, Some(&entry("a")));
        let client = world.connect(ConnKind::Client);
        let (result, _) = auth_with(&mut world, client, b"");
        let (id, token) = (result.conn_id, result.resume_token);
        assert_eq!(token.len(), 24);
        subscribe(&mut world, client, channel);
        world.run_ms(200);
        world.take(owner);
        world.close(client);
        assert!(world.take(owner).is_empty(), "the owner is not told of a short loss");
        update(&mut world, owner, channel, "b");
        world.run(Duration::from_secs(20));

        let back = world.connect(ConnKind::Client);
        let (result, got) = auth_with(&mut world, back, &token);
        assert_eq!((result.conn_id, result.should_recover), (id, true));
        assert_ne!(result.resume_token, token, "every return has a new token");
        assert_eq!(types(&got), [1, 20]);
        let data: ChannelDataRecoveryMessage = got[1].decode();
        assert_eq!(data.channel_data.expect("data").value, [entry("a"), entry("b")].concat());
        update(&mut world, owner, channel, "c");
        world.run_ms(1_000);
        let got = world.take(back);
        assert_eq!(types(&got), [8, 21]);
        assert_eq!(got[0].decode::<ChannelDataUpdateMessage>().data.expect("data").value, entry("c"));
        assert!(world.take(owner).is_empty());
        world.send(back, [Send::user(100, b"x").to(channel)]);
        assert_eq!(types(&world.take(owner)), [100]);

        // The old token is void; the login goes on without it.
        let thief = world.connect(ConnKind::Client);
        let (result, _) = auth_with(&mut world, thief, &token);
        assert!(!result.should_recover && result.conn_id != id);
        let bad = world.effects.iter().any(|effect| {
            matches!(effect, throng_gateway::Effect::SecurityLog(event) if event.what == SecurityEventKind::BadResumeToken)
        });
        assert!(bad);
    }
}

#[test]
fn a_mask_hides_from_a_client_that_resumes_what_it_hid_before() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    // `kv` is field 2.
    let hidden = [0x12, 4, 0x08, 1, 0x12, 0];
    let channel = create(&mut world, owner, 3, Some(&[entry("a"), hidden.to_vec()].concat()));
    let client = world.connect(ConnKind::Client);
    let (result, _) = auth_with(&mut world, client, b"");
    let options = ChannelSubscriptionOptions {
        fan_out_interval_ms: Some(70),
        data_field_masks: vec!["list".into()],
        ..Default::default()
    };
    let request = SubscribedToChannelMessage { conn_id: world.conn(client), sub_options: Some(options) };
    world.send(client, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
    world.run_ms(200);
    let got = world.take(client);
    let first = got.iter().find(|message| message.msg_type == 8).expect("the state");
    assert_eq!(first.decode::<ChannelDataUpdateMessage>().data.expect("data").value, entry("a"));
    world.close(client);
    let back = world.connect(ConnKind::Client);
    let (_, got) = auth_with(&mut world, back, &result.resume_token);
    let data: ChannelDataRecoveryMessage = got[1].decode();
    assert_eq!(data.channel_data.expect("data").value, entry("a"));
}

#[test]
fn data_that_does_not_fit_beside_the_head_is_recovered_as_a_full_state() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "pit");
    world.take(owner);
    let request = CreateChannelMessage { channel_type: 3, metadata: "m".repeat(1_000), ..Default::default() };
    world.send(owner, [Send::new(MessageType::CreateChannel, &request)]);
    let channel = world.take(owner)[0].decode::<CreateChannelResultMessage>().channel_id;
    let mut long = vec![0x0A];
    throng_wire::write_varint(&mut long, 65_000);
    long.resize(long.len() + 65_000, b'x');
    let body = ChannelDataUpdateMessage {
        data: Some(prost_types::Any { type_url: TEST.into(), value: long.clone() }),
        ..Default::default()
    };
    update(&mut world, owner, channel, "short");
    world.send(owner, [Send::new(MessageType::ChannelDataUpdate, &body).to(channel)]);
    world.close(owner);
    let back = world.connect(ConnKind::Server);
    world.auth(back, "pit");
    world.run_ms(200);
    let got = world.take(back);
    let states = got.iter().filter(|message| message.msg_type == 8);
    let values = states.map(|message| message.decode::<ChannelDataUpdateMessage>().data.expect("data").value);
    assert_eq!(values.collect::<Vec<_>>().concat(), [entry("short"), long].concat());
    assert_eq!(world.refused(Refusal::Oversize), 0);
}

#[test]
fn a_client_that_leaves_frees_its_places_at_once_and_its_token_is_void() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let server = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, server, 3, None);
        for by_message in [false, true] {
            let client = world.connect(ConnKind::Client);
            let (result, _) = auth_with(&mut world, client, &[]);
            subscribe(&mut world, client, channel);
            world.take(server);
            if by_message {
                let goodbye = DisconnectMessage { conn_id: world.conn(client) };
                world.send(client, [Send::new(MessageType::Disconnect, &goodbye)]);
            } else {
                world.close_as(client, Closed::Left);
            }
            let unsub: UnsubscribedFromChannelResultMessage = world.take(server)[0].decode();
            assert_eq!(unsub.conn_id, world.conn(client), "the owner hears of it at once");
            // The one that tries the void token below leaves as well.
            assert_eq!(
                world.stats().closed(ConnKind::Client, CloseReason::Left),
                1 + 2 * u64::from(by_message)
            );
            let again = world.connect(ConnKind::Client);
            let (again_result, _) = auth_with(&mut world, again, &result.resume_token);
            assert!(!again_result.should_recover, "a goodbye voids the token");
            world.close_as(again, Closed::Left);
            world.take(server);
        }
    }
}

#[test]
fn a_server_that_says_goodbye_is_recovered_like_one_that_was_killed() {
    let mut world = World::new(config());
    let server = world.join(ConnKind::Server, "s");
    let channel = create(&mut world, server, 3, None);
    world.close_as(server, Closed::Left);
    assert_eq!(world.stats().closed(ConnKind::Server, CloseReason::EndOfStream), 1);
    let again = world.connect(ConnKind::Server);
    world.auth(again, "s");
    let result = auth_result(&world.take(again));
    assert!(result.should_recover);
    world.run_ms(2_000);
    let recovered = world.shards[0].channels().find(|view| view.id.0 == channel).expect("it is still there");
    assert!(recovered.owner.is_some());
}

#[test]
fn a_token_supersedes_a_connection_that_only_looks_alive() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, owner, 3, Some(&entry("a")));
        let stale = world.connect(ConnKind::Client);
        let (result, _) = auth_with(&mut world, stale, b"");
        subscribe(&mut world, stale, channel);
        world.take(owner);
        let id = result.conn_id;
        let mut token = result.resume_token;
        let mut previous = stale;
        for _ in 0..3 {
            let back = world.connect(ConnKind::Client);
            let (result, got) = auth_with(&mut world, back, &token);
            assert_eq!(world.closed(previous), Some(throng_gateway::CloseReason::Superseded));
            assert_eq!((result.conn_id, types(&got)), (id, vec![1, 20]));
            token = result.resume_token;
            previous = back;
        }
        assert!(world.take(owner).is_empty());
        assert_eq!(world.stats().clients_resumed, 3);
    }
}

#[test]
fn a_second_return_does_not_end_with_the_answers_to_the_first() {
    let mut world = World::sharded(config(), 2);
    let owner = world.join(ConnKind::Server, "s");
    create(&mut world, owner, 3, Some(&entry("a")));
    let on_first_shard = |world: &mut World| loop {
        let id = world.connect(ConnKind::Client);
        if world.shard_of(id) == 0 {
            return id;
        }
    };
    let first = on_first_shard(&mut world);
    let (result, _) = auth_with(&mut world, first, b"");
    world.slow_shard = Some(1);
    let (mut token, mut last) = (result.resume_token, first);
    for _ in 0..2 {
        world.close(last);
        last = on_first_shard(&mut world);
        let (result, got) = auth_with(&mut world, last, &token);
        assert_eq!(types(&got), [1], "shard 1 has not answered");
        token = result.resume_token;
    }
    let recovery_end = MessageType::RecoveryEnd as u32;
    let letters = world.held.len();
    world.run_ms(1_000);
    for left in (0..letters).rev() {
        assert!(world.deliver_held());
        let has_ended = world.take_types(last).contains(&recovery_end);
        assert_eq!(has_ended, left == 0, "{left} letters of shard 1 are not delivered");
    }
}

#[test]
fn what_a_busy_shard_sent_to_a_lost_client_does_not_reach_it_after_its_return() {
    let mut world = World::sharded(config(), 3);
    let owner = world.join(ConnKind::Server, "s");
    let channel = loop {
        let channel = create(&mut world, owner, 3, Some(&entry("a")));
        if world.shards[2].channel_data(throng_gateway::ChannelId(channel)).is_some() {
            break channel;
        }
    };
    let on_second_shard = |world: &mut World| loop {
        let id = world.connect(ConnKind::Client);
        if world.shard_of(id) == 1 {
            return id;
        }
    };
    let first = on_second_shard(&mut world);
    let (result, _) = auth_with(&mut world, first, b"");
    subscribe(&mut world, first, channel);
    world.run_ms(200);
    let mut token = result.resume_token;
    let mut last = first;
    for text in ["b", "c"] {
        world.slow_shard = Some(2);
        update(&mut world, owner, channel, text);
        world.run_ms(200);
        assert!(!world.held.is_empty(), "the update waits in the busy shard");
        world.close(last);
        last = on_second_shard(&mut world);
        let (result, got) = auth_with(&mut world, last, &token);
        token = result.resume_token;
        assert_eq!(types(&got), [1]);
        while world.deliver_held() {}
        world.slow_shard = None;
        assert_eq!(types(&world.take(last)), [20], "the recovered data has the update already");
        update(&mut world, owner, channel, "d");
        world.run_ms(1_000);
        assert_eq!(types(&world.take(last)), [8, 21]);
    }
}

#[test]
fn a_panic_while_a_client_is_lost_leaves_it_no_second_subscription() {
    let on_first_shard = |world: &mut World| loop {
        let id = world.connect(ConnKind::Client);
        if world.shard_of(id) == 0 {
            return id;
        }
    };
    let mut healed = 0;
    for place in 1..200 {
        let mut world = World::sharded(config(), 2);
        let owner = world.join(ConnKind::Server, "s");
        let channel = loop {
            let channel = create(&mut world, owner, 3, Some(&entry("a")));
            if world.shards[1].channel_data(throng_gateway::ChannelId(channel)).is_some() {
                break channel;
            }
        };
        let first = on_first_shard(&mut world);
        let result = auth_with(&mut world, first, b"").0;
        let (conn_id, mut token) = (result.conn_id, result.resume_token);
        let subscribe = |world: &mut World, from: Id| {
            let request = SubscribedToChannelMessage { conn_id, sub_options: None };
            world.send(from, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
        };
        subscribe(&mut world, first);
        world.run_ms(200);
        world.slow_shard = Some(0);
        world.close(first);
        assert!(failpoint::arm(place), "built with debug assertions");
        let struck = catch_unwind(AssertUnwindSafe(|| while world.deliver_held() {})).is_err();
        failpoint::disarm();
        world.slow_shard = None;
        if !struck {
            assert!(healed > 1, "{healed} of {place} panics were healed");
            return;
        }
        if !world.shards[1].heal().is_empty() {
            continue;
        }
        healed += 1;
        while world.deliver_held() {}
        for _ in 0..2 {
            let back = on_first_shard(&mut world);
            token = auth_with(&mut world, back, &token).0.resume_token;
            subscribe(&mut world, back);
            world.run_ms(200);
            world.close(back);
        }
        let last = on_first_shard(&mut world);
        auth_with(&mut world, last, &token);
        let body = UnsubscribedFromChannelMessage { conn_id };
        world.send(last, [Send::new(MessageType::UnsubFromChannel, &body).to(channel)]);
        world.run_ms(1_000);
        world.take(last);
        update(&mut world, owner, channel, "b");
        world.run_ms(200);
        assert_eq!(world.take(last), [], "place {place}: it unsubscribed");
    }
    unreachable!("a letter passes fewer places");
}

#[test]
fn the_owner_learns_of_a_client_that_does_not_return() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, owner, 3, None);
        let client = world.connect(ConnKind::Client);
        let (result, _) = auth_with(&mut world, client, b"");
        subscribe(&mut world, client, channel);
        world.take(owner);
        world.close(client);
        world.run_ms(29_999);
        assert!(world.take(owner).is_empty());
        world.run_ms(1);
        let got = world.take(owner);
        assert_eq!(types(&got), [7]);
        assert_eq!(got[0].decode::<UnsubscribedFromChannelResultMessage>().conn_id, result.conn_id);
        let back = world.connect(ConnKind::Client);
        assert!(!auth_with(&mut world, back, &result.resume_token).0.should_recover);
    }
}

#[test]
fn lost_connections_are_bounded() {
    let recovery = Recovery { lost_max: 3, ..config().recovery };
    let mut world = World::new(Config { recovery, ..config() });
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let client = world.connect(ConnKind::Client);
        tokens.push(auth_with(&mut world, client, b"").0.resume_token);
        world.close(client);
    }
    for (at, token) in tokens.iter().enumerate() {
        let back = world.connect(ConnKind::Client);
        assert_eq!(auth_with(&mut world, back, token).0.should_recover, at >= 2, "loss {at}");
    }
}

#[test]
fn a_client_that_finds_no_room_to_resume_is_logged_in() {
    let recovery = Recovery { lost_max: 0, ..config().recovery };
    let mut world = World::new(Config { recovery, ..config() });
    let stale = world.connect(ConnKind::Client);
    let token = auth_with(&mut world, stale, b"").0.resume_token;
    let back = world.connect(ConnKind::Client);
    let (result, _) = auth_with(&mut world, back, &token);
    assert_eq!(world.closed(stale), Some(throng_gateway::CloseReason::Superseded));
    assert!(!result.should_recover && !result.resume_token.is_empty(), "{result:?}");
}

#[test]
fn stock_peers_never_see_tokens_and_the_window_switches_resuming_off() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    create(&mut world, owner, 1, None);
    let stock = world.connect(ConnKind::Client);
    world.auth(stock, "ann");
    assert!(auth_result(&world.take(stock)).resume_token.is_empty());
    let ours = world.connect(ConnKind::Client);
    world.take(owner);
    assert_eq!(auth_with(&mut world, ours, b"").0.resume_token.len(), 24);
    assert!(auth_result(&world.take(owner)).resume_token.is_empty(), "the master's copy has none");

    let recovery = Recovery { client_window: Duration::ZERO, ..config().recovery };
    let mut world = World::new(Config { recovery, ..config() });
    let client = world.connect(ConnKind::Client);
    assert!(auth_with(&mut world, client, b"").0.resume_token.is_empty());
}

// Ids of lost connections stay theirs; everything else is given out again.
#[test]
fn churn_with_losses_and_returns_keeps_ids_unique() {
    for shards in [1, 3] {
        let mut world = World::sharded(Config { conn_id_bits: 6, ..config() }, shards);
        let owner = world.join(ConnKind::Server, "s");
        let channel = create(&mut world, owner, 3, Some(&[]));
        let mut tokens: Vec<Vec<u8>> = Vec::new();
        for round in 0..200 {
            let client = world.connect(ConnKind::Client);
            let token = if round % 3 == 0 { tokens.pop().unwrap_or_default() } else { Vec::new() };
            let (result, _) = auth_with(&mut world, client, &token);
            assert!(result.conn_id <= 63);
            subscribe(&mut world, client, channel);
            world.run_ms(700);
            tokens.push(result.resume_token);
            world.close(client);
        }
        world.run(Duration::from_secs(60));
        assert_eq!(world.stats().subscriptions, 1, "only the owner's");
    }
}

#[test]
fn the_owner_of_global_is_its_owner_again_after_its_return_on_every_shard() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "master");
        let claim = CreateChannelMessage { channel_type: 1, ..Default::default() };
        world.send(owner, [Send::new(MessageType::CreateChannel, &claim)]);
        world.close(owner);
        let back = world.connect(ConnKind::Server);
        world.auth(back, "master");
        world.run_ms(1_500);
        world.take(back);
        // It hears who logs in, and what clients on every shard say to it.
        for index in 0..shards {
            let client = world.join(ConnKind::Client, &format!("c{index}"));
            assert_eq!(world.take_types(back), [1], "shard {index} of {shards}");
            world.send(client, [Send::user(150, b"hello")]);
            assert_eq!(world.take_types(back), [150], "shard {index} of {shards}");
        }
        let rival = world.join(ConnKind::Server, "rival");
        world.send(rival, [Send::new(MessageType::CreateChannel, &claim)]);
        assert_eq!(world.refused(Refusal::AlreadyOwned), 1);
    }
}

#[test]
fn a_returning_server_owns_what_it_owned_unless_another_owns_it_now() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner_of = |world: &World, channel: u32| {
            let view = world.shards.iter().flat_map(|shard| shard.channels()).find(|it| it.id.0 == channel);
            view.expect("the channel is there").owner.map(|owner| owner.0)
        };
        let (owner, guest) = (world.join(ConnKind::Server, "owner"), world.join(ConnKind::Server, "guest"));
        let channel = create(&mut world, owner, 3, None);
        let claim = CreateChannelMessage { channel_type: 1, ..Default::default() };
        world.send(owner, [Send::new(MessageType::CreateChannel, &claim)]);
        subscribe(&mut world, guest, channel);
        let (owner_id, guest_id) = (world.conn(owner), world.conn(guest));
        assert_eq!((owner_of(&world, channel), owner_of(&world, 0)), (Some(owner_id), Some(owner_id)));
        world.close(owner);
        world.close(guest);

        // A guest stays a guest, although the channel has no owner.
        let back = world.connect(ConnKind::Server);
        world.auth(back, "guest");
        assert_eq!(auth_result(&world.take(back)).conn_id, guest_id);
        assert_eq!(owner_of(&world, channel), None, "{shards} shards");
        // GLOBAL has no owner and is claimed by another, which keeps it.
        let rival = world.join(ConnKind::Server, "rival");
        world.send(rival, [Send::new(MessageType::CreateChannel, &claim)]);
        let rival_id = Some(world.conn(rival));
        assert_eq!(owner_of(&world, 0), rival_id, "{shards} shards");

        let back = world.connect(ConnKind::Server);
        world.auth(back, "owner");
        assert_eq!(auth_result(&world.take(back)).conn_id, owner_id);
        assert_eq!(owner_of(&world, channel), Some(owner_id), "{shards} shards");
        assert_eq!(owner_of(&world, 0), rival_id, "{shards} shards");
        // The rival is still the one that hears of logins.
        world.run_ms(1_500);
        world.take(rival);
        world.take(back);
        world.join(ConnKind::Client, "c");
        assert_eq!(world.take_types(rival), [1]);
        assert!(world.take_types(back).is_empty());
    }
}

/// Authenticates under a name with a resume token (empty: asks for one), with the consent of the
/// provider where it is asked. `None` without a result.
fn auth_as(world: &mut World, id: Id, pit: &str, token: &[u8]) -> Option<AuthResultMessage> {
    let body = AuthMessage {
        player_identifier_token: pit.into(),
        login_token: "lt".into(),
        resume_token: Some(token.to_vec()),
        world: None,
    };
    world.send(id, [Send::new(MessageType::Auth, &body).stub(1)]);
    consent(world);
    world.take(id).iter().find(|message| message.msg_type == 1).map(Received::decode)
}

/// The provider says yes to every login that waits for it.
fn consent(world: &mut World) {
    let effects = std::mem::take(&mut world.effects);
    for effect in effects {
        if let throng_gateway::Effect::Authenticate { ticket, .. } = effect {
            world.shards[0].handle_verdict(world.now, ticket, throng_gateway::Verdict::Success);
        }
    }
    world.settle();
}

#[test]
fn a_token_resumes_under_the_name_of_its_session_only() {
    for (shards, lost) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut world = World::sharded(config(), shards);
        let ann = world.connect(ConnKind::Client);
        let first = auth_as(&mut world, ann, "ann", b"").unwrap();
        if lost {
            world.close(ann);
        }
        for name in ["bob", "", "Ann"] {
            let other = world.connect(ConnKind::Client);
            let result = auth_as(&mut world, other, name, &first.resume_token).unwrap();
            assert!(!result.should_recover && result.conn_id != first.conn_id, "{name}: {result:?}");
        }
        assert_eq!(world.closed(ann), None);
        let back = world.connect(ConnKind::Client);
        let result = auth_as(&mut world, back, "ann", &first.resume_token).unwrap();
        assert!(result.should_recover, "it is still good for its holder");
    }
}

fn earn_a_ban(world: &mut World, id: Id) {
    for _ in 0..10 {
        world.send(id, [Send::new(MessageType::Disconnect, &DisconnectMessage { conn_id: 5 })]);
    }
    assert_eq!(world.closed(id), Some(CloseReason::StateMachineRefusals));
}

#[test]
fn a_ban_ends_all_connections_and_sessions_of_its_player() {
    for shards in [1, 2] {
        let with_provider = Config {
            development: false,
            auth_provider: true,
            abuse: throng_gateway::Abuse::default(),
            ..config()
        };
        let mut world = World::sharded(with_provider, shards);
        let clients: Vec<Id> = (0..4).map(|_| world.connect(ConnKind::Client)).collect();
        let [lost, other, banned, bob] = clients[..] else { panic!("four") };
        let names = [(lost, "ann"), (other, "ann"), (banned, "ann"), (bob, "bob")];
        let tokens = names.map(|(id, name)| auth_as(&mut world, id, name, b"").unwrap().resume_token);
        world.close(lost);
        // One whose login waits for the provider.
        let late = world.connect(ConnKind::Client);
        world.auth(late, "ann");
        earn_a_ban(&mut world, banned);
        consent(&mut world);
        for id in [other, late] {
            assert_eq!(world.closed(id), Some(CloseReason::BannedPlayer));
        }
        assert_eq!((world.closed(bob), world.stats().recoveries_expired), (None, 1));
        for token in &tokens {
            let back = world.connect(ConnKind::Client);
            assert_eq!(auth_as(&mut world, back, "ann", token), None);
            assert_eq!(world.closed(back), Some(CloseReason::BannedPlayer));
            let other_name = world.connect(ConnKind::Client);
            assert!(!auth_as(&mut world, other_name, "carl", token).unwrap().should_recover);
        }
        world.close(bob);
        let back = world.connect(ConnKind::Client);
        assert!(auth_as(&mut world, back, "bob", &tokens[3]).unwrap().should_recover);
        world.run(Duration::from_secs(901));
        let later = world.connect(ConnKind::Client);
        assert!(!auth_as(&mut world, later, "ann", &tokens[0]).unwrap().should_recover);
    }
}

/// Without a provider a name proves nothing: others who use it are not to pay for one.
#[test]
fn in_development_a_ban_closes_no_other_connection_of_the_name_but_refuses_its_return() {
    let mut world = World::new(Config { abuse: throng_gateway::Abuse::default(), ..config() });
    let [other, banned] = [(); 2].map(|()| world.connect(ConnKind::Client));
    let token = auth_as(&mut world, other, "ann", b"").unwrap().resume_token;
    auth_as(&mut world, banned, "ann", b"").unwrap();
    earn_a_ban(&mut world, banned);
    assert_eq!(world.closed(other), None);
    world.close(other);
    let back = world.connect(ConnKind::Client);
    assert_eq!(auth_as(&mut world, back, "ann", &token), None);
    assert_eq!(world.closed(back), Some(CloseReason::BannedPlayer));
}

#[test]
fn the_client_that_was_lost_first_makes_room_also_when_another_was_lost_before_and_returned() {
    let recovery = Recovery { lost_max: 2, ..config().recovery };
    let mut world = World::new(Config { recovery, ..config() });
    let login = |world: &mut World, token: &[u8]| {
        let client = world.connect(ConnKind::Client);
        let (result, _) = auth_with(world, client, token);
        (client, result)
    };
    let (first, result) = login(&mut world, b"");
    world.close(first);
    let (second, of_second) = login(&mut world, b"");
    world.close(second);
    let (back, of_first) = login(&mut world, &result.resume_token);
    assert!(of_first.should_recover);
    world.close(back);
    let (third, _) = login(&mut world, b"");
    world.close(third);
    assert!(login(&mut world, &of_first.resume_token).1.should_recover);
    assert!(!login(&mut world, &of_second.resume_token).1.should_recover);
}

#[test]
fn a_server_decides_about_a_client_that_is_lost() {
    for shards in [1, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        create(&mut world, owner, 1, None);
        let channel = create(&mut world, owner, 3, Some(&entry("a")));
        let (stays, goes) = (create(&mut world, owner, 3, None), create(&mut world, owner, 3, None));
        let client = world.connect(ConnKind::Client);
        let (result, _) = auth_with(&mut world, client, b"");
        let id = result.conn_id;
        let write = named(id, ChannelDataAccess::WriteAccess);
        for channel in [channel, stays, goes] {
            world.send(owner, [Send::new(MessageType::SubToChannel, &write).to(channel)]);
        }
        world.close(client);
        world.take(owner);
        // Another access, and the end of a subscription.
        let read = named(id, ChannelDataAccess::ReadAccess);
        world.send(owner, [Send::new(MessageType::SubToChannel, &read).to(channel)]);
        let leave = UnsubscribedFromChannelMessage { conn_id: id };
        world.send(owner, [Send::new(MessageType::UnsubFromChannel, &leave).to(goes)]);
        assert_eq!(types(&world.take(owner)), [6, 7], "{shards} shards");
        let back = world.connect(ConnKind::Client);
        let (result, mut got) = auth_with(&mut world, back, &result.resume_token);
        assert!(result.should_recover);
        got.extend(world.take(back));
        let restored = got.iter().filter(|message| message.msg_type == 20);
        let restored: BTreeMap<u32, i32> = restored
            .map(|message| {
                let body: ChannelDataRecoveryMessage = message.decode();
                (message.channel, body.sub_options.expect("options").data_access())
            })
            .map(|(channel, access)| (channel, access as i32))
            .collect();
        let (read, write) = (ChannelDataAccess::ReadAccess as i32, ChannelDataAccess::WriteAccess as i32);
        assert_eq!(restored, BTreeMap::from([(channel, read), (stays, write)]), "{shards} shards");
        // A kick ends its session.
        world.close(back);
        world.take(owner);
        let kick = DisconnectMessage { conn_id: id };
        world.send(owner, [Send::new(MessageType::Disconnect, &kick)]);
        let told: Vec<u32> = types(&world.take(owner));
        assert!(told.contains(&7), "{shards} shards: the owner hears that it does not return: {told:?}");
        let again = world.connect(ConnKind::Client);
        assert!(!auth_with(&mut world, again, &result.resume_token).0.should_recover, "{shards} shards");
    }
}

/// A subscription of another connection, with this access.
fn named(conn_id: u32, access: ChannelDataAccess) -> SubscribedToChannelMessage {
    let sub_options =
        Some(ChannelSubscriptionOptions { data_access: Some(access as i32), ..Default::default() });
    SubscribedToChannelMessage { conn_id, sub_options }
}

fn connect_on(world: &mut World, shard: usize) -> Id {
    loop {
        let id = world.connect(ConnKind::Client);
        if world.shard_of(id) == shard {
            return id;
        }
    }
}

#[test]
fn what_is_sent_at_the_answer_to_a_resumption_finds_the_subscriptions() {
    for (shard, by_owner) in [(1, false), (2, false), (3, false), (3, true)] {
        let mut world = World::sharded(config(), 4);
        let owner = world.join(ConnKind::Server, "s");
        let channels: Vec<u32> = (0..8).map(|_| create(&mut world, owner, 3, Some(&entry("a")))).collect();
        let client = connect_on(&mut world, shard);
        let (result, _) = auth_with(&mut world, client, b"");
        let write = named(result.conn_id, ChannelDataAccess::WriteAccess);
        for channel in &channels {
            world.send(owner, [Send::new(MessageType::SubToChannel, &write).to(*channel)]);
        }
        world.close(client);
        let back = connect_on(&mut world, shard);
        // The client and the other shards are faster than the rest of the mail of shard 0.
        world.slow_shard = Some(0);
        let auth = AuthMessage {
            player_identifier_token: "ann".into(),
            login_token: "lt".into(),
            resume_token: Some(result.resume_token),
            ..Default::default()
        };
        world.send(back, [Send::new(MessageType::Auth, &auth)]);
        while world.take_types(back) != [1] {
            assert!(world.deliver_held(), "an answer comes");
        }
        for channel in &channels {
            if by_owner {
                let read = named(result.conn_id, ChannelDataAccess::ReadAccess);
                world.send(owner, [Send::new(MessageType::SubToChannel, &read).to(*channel)]);
            } else {
                update(&mut world, back, *channel, "b");
            }
        }
        while world.deliver_held() {}
        world.slow_shard = None;
        assert!(world.take_types(back).iter().filter(|msg_type| **msg_type == 20).count() == 8);
        if by_owner {
            for channel in &channels {
                update(&mut world, back, *channel, "b");
            }
        }
        assert_eq!(world.refused(Refusal::WriteAccess), if by_owner { 8 } else { 0 }, "on shard {shard}");
        for channel in &channels {
            let id = throng_gateway::ChannelId(*channel);
            let data = world.shards.iter().find_map(|shard| shard.channel_data(id)).expect("a channel").1;
            assert_eq!(data.ends_with(&entry("b")), !by_owner, "on shard {shard}");
        }
    }
}

#[test]
fn a_server_subscribes_a_client_that_is_lost() {
    for shards in [1, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let channels: Vec<u32> = (0..4).map(|_| create(&mut world, owner, 3, Some(&entry("a")))).collect();
        let client = world.connect(ConnKind::Client);
        let (result, _) = auth_with(&mut world, client, b"");
        world.close(client);
        world.take(owner);
        let write = named(result.conn_id, ChannelDataAccess::WriteAccess);
        let leave = UnsubscribedFromChannelMessage { conn_id: result.conn_id };
        for channel in &channels {
            world.send(owner, [Send::new(MessageType::UnsubFromChannel, &leave).to(*channel)]);
            world.send(owner, [Send::new(MessageType::SubToChannel, &write).to(*channel)]);
        }
        assert_eq!(types(&world.take(owner)), [6; 4], "{shards} shards");
        assert_eq!(world.refused(Refusal::NotSubscribed), 4, "{shards} shards");
        let back = world.connect(ConnKind::Client);
        let (result, mut got) = auth_with(&mut world, back, &result.resume_token);
        got.extend(world.take(back));
        let restored = got.iter().filter(|message| message.msg_type == 20);
        let mut restored: Vec<u32> = restored
            .map(|message| {
                let body: ChannelDataRecoveryMessage = message.decode();
                let options = body.sub_options.expect("options");
                assert_eq!(options.data_access(), ChannelDataAccess::WriteAccess);
                assert_eq!(body.channel_data.expect("data").value, entry("a"));
                message.channel
            })
            .collect();
        restored.sort_unstable();
        assert_eq!(restored, channels, "{shards} shards");
        for channel in &channels {
            update(&mut world, back, *channel, "b");
        }
        assert_eq!(world.refused(Refusal::WriteAccess), 0, "{shards} shards");
        // One that does not return is unknown.
        world.close(back);
        world.run(Duration::from_secs(31));
        world.take(owner);
        let again = named(result.conn_id, ChannelDataAccess::ReadAccess);
        world.send(owner, [Send::new(MessageType::SubToChannel, &again).to(channels[0])]);
        assert_eq!(world.refused(Refusal::UnknownConnection), 1, "{shards} shards");
        assert_eq!(world.take(owner), [], "{shards} shards");
    }
}

#[test]
fn every_connection_of_a_session_has_a_recording_of_its_own() {
    let mut world = World::new(Config { recording: true, ..config() });
    let mut token = Vec::new();
    for _ in 0..3 {
        let client = world.connect(ConnKind::Client);
        token = auth_with(&mut world, client, &token).0.resume_token;
        world.close(client);
    }
    let recordings = world.effects.iter().filter_map(|effect| match effect {
        throng_gateway::Effect::Recording { conn, name, .. } => Some((*conn, name.as_str())),
        _ => None,
    });
    let recordings: Vec<_> = recordings.collect();
    assert!(recordings.iter().all(|(conn, _)| *conn == recordings[0].0), "one session: {recordings:?}");
    let names: std::collections::BTreeSet<_> = recordings.iter().map(|(_, name)| name).collect();
    assert_eq!(names.len(), 3, "{recordings:?}");
}

#[test]
fn a_token_holds_until_the_answer_to_it_has_arrived() {
    for shards in [1, 4] {
        let mut world = World::sharded(config(), shards);
        let server = world.join(ConnKind::Server, "s");
        create(&mut world, server, 1, None);
        let channel = create(&mut world, server, 3, Some(&entry("a")));
        let client = world.connect(ConnKind::Client);
        let (AuthResultMessage { conn_id, resume_token: first, .. }, _) = auth_with(&mut world, client, b"");
        subscribe(&mut world, client, channel);
        world.close(client);
        let resume = |world: &mut World, token: &[u8]| {
            let back = world.connect(ConnKind::Client);
            let (result, _) = auth_with(world, back, token);
            assert_eq!(result.should_recover, result.conn_id == conn_id);
            (back, result.should_recover, result.resume_token)
        };
        // The link is lost with the answer, and then seems to live.
        let (back, has_resumed, lost_token) = resume(&mut world, &first);
        assert!(has_resumed);
        world.close(back);
        let (stale, has_resumed, _) = resume(&mut world, &first);
        assert!(has_resumed, "{shards} shards: the answer was lost");
        let (back, has_resumed, second) = resume(&mut world, &first);
        assert!(has_resumed, "{shards} shards: the answer was lost again");
        assert_eq!(world.closed(stale), Some(CloseReason::Superseded));
        assert!(!resume(&mut world, &lost_token).1, "{shards} shards: a token of a session that ended");
        // A message from it proves that the answer has arrived.
        update(&mut world, back, channel, "b");
        assert!(!resume(&mut world, &first).1, "{shards} shards: the answer has arrived");
        assert_eq!(world.closed(back), None);
        // The new one replaces the one before as well.
        let (_, has_resumed, third) = resume(&mut world, &second);
        assert!(has_resumed, "{shards} shards");
        assert_eq!(world.closed(back), Some(CloseReason::Superseded));
        // A kick voids both.
        let kick = DisconnectMessage { conn_id };
        world.send(server, [Send::new(MessageType::Disconnect, &kick)]);
        for token in [&second, &third] {
            assert!(!resume(&mut world, token).1, "{shards} shards: its session was ended");
        }
    }
}

fn ask_to_resume(world: &mut World, shard: usize, token: &[u8]) -> Id {
    let id = connect_on(world, shard);
    let auth = AuthMessage {
        player_identifier_token: "ann".into(),
        login_token: "lt".into(),
        resume_token: Some(token.to_vec()),
        ..Default::default()
    };
    world.send(id, [Send::new(MessageType::Auth, &auth)]);
    id
}

#[test]
fn a_client_that_tries_again_and_again_while_its_old_connection_is_closed_resumes() {
    for tries in [&[0][..], &[0, 3], &[0, 3, 2]] {
        let mut world = World::sharded(config(), 4);
        let owner = world.join(ConnKind::Server, "s");
        let channels: Vec<u32> = (0..8).map(|_| create(&mut world, owner, 3, Some(&entry("a")))).collect();
        let first = connect_on(&mut world, 1);
        let (AuthResultMessage { conn_id, resume_token: token, .. }, _) = auth_with(&mut world, first, b"");
        for channel in &channels {
            subscribe(&mut world, first, *channel);
        }
        world.slow_shard = Some(1);
        world.close(first);
        // Shard 0 has not heard of the end. Each try but the last is given up, or not.
        let mut earlier = Vec::new();
        for shard in tries {
            let id = ask_to_resume(&mut world, *shard, &token);
            if *shard == 0 {
                world.close(id);
            } else {
                earlier.push(id);
            }
        }
        let back = ask_to_resume(&mut world, 2, &token);
        while world.deliver_held() {}
        world.slow_shard = None;
        world.run_ms(100);
        let got = world.take(back);
        let result = auth_result(&got);
        assert_eq!((result.should_recover, result.conn_id), (true, conn_id), "{tries:?}");
        assert_eq!(types(&got).iter().filter(|msg_type| **msg_type == 20).count(), 8, "{tries:?}");
        for id in earlier {
            assert_eq!(world.closed(id), Some(CloseReason::Superseded));
        }
    }
}

#[test]
fn a_return_that_is_known_before_the_loss_keeps_every_subscription() {
    for heard in 1..3 {
        let mut world = World::sharded(config(), 4);
        let owner = world.join(ConnKind::Server, "s");
        let channels: Vec<u32> = (0..8).map(|_| create(&mut world, owner, 3, Some(&entry("a")))).collect();
        let first = connect_on(&mut world, 1);
        let (AuthResultMessage { resume_token: token, .. }, _) = auth_with(&mut world, first, b"");
        for channel in &channels {
            subscribe(&mut world, first, *channel);
        }
        world.slow_shard = Some(1);
        world.close(first);
        // Shard 0 hears of it first, others after the return.
        for _ in 0..heard {
            assert!(world.deliver_held());
        }
        let back = ask_to_resume(&mut world, 2, &token);
        while world.deliver_held() {}
        world.slow_shard = None;
        world.run_ms(100);
        let got = world.take(back);
        assert!(auth_result(&got).should_recover, "{heard} shards had heard");
        assert_eq!(
            types(&got).iter().filter(|msg_type| **msg_type == 20).count(),
            8,
            "{heard} shards had heard"
        );
        for channel in &channels {
            update(&mut world, owner, *channel, "b");
        }
        world.run_ms(200);
        let updates = world.take_types(back).iter().filter(|msg_type| **msg_type == 8).count();
        assert_eq!(updates, 8, "{heard} shards had heard");
    }
}

#[test]
fn a_connection_that_a_client_has_given_up_does_not_supersede_the_one_after_it() {
    let mut world = World::sharded(config(), 4);
    let owner = world.join(ConnKind::Server, "s");
    create(&mut world, owner, 1, None);
    let first = connect_on(&mut world, 1);
    let (AuthResultMessage { conn_id, resume_token: token, .. }, _) = auth_with(&mut world, first, b"");
    world.close(first);
    // The earlier connection's request leaves its busy shard after the later one's.
    world.slow_shard = Some(3);
    let earlier = ask_to_resume(&mut world, 3, &token);
    let later = ask_to_resume(&mut world, 2, &token);
    let AuthResultMessage { should_recover, resume_token: newest, .. } = auth_result(&world.take(later));
    assert!(should_recover);
    while world.deliver_held() {}
    world.slow_shard = None;
    assert_eq!((world.closed(earlier), world.closed(later)), (Some(CloseReason::Superseded), None));
    world.close(later);
    let back = ask_to_resume(&mut world, 0, &newest);
    assert_eq!(auth_result(&world.take(back)).conn_id, conn_id);
}
