//! Creating, listing, subscribing, updating, forwarding and removing: what the recorded
//! conversations do not show.

use crate::common;

use common::{Id, Received, Send, World};
use throng_gateway::{
    ChannelSettings, ChannelType, CloseReason, Config, ConnKind, KindPermissions, Limits, Permissions,
    Refusal, StateMachine, TypeRule, TypeSettings,
};
use throng_wire::channeldpb::{
    ChannelDataMergeOptions, ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage,
    CreateChannelResultMessage, ListChannelMessage, ListChannelResultMessage, MessageType,
    RemoveChannelMessage, ServerForwardMessage, SubscribedToChannelMessage, SubscribedToChannelResultMessage,
    UnsubscribedFromChannelMessage,
};

const CHAT: &str = "type.googleapis.com/chatpb.ChatChannelData";
const TEST: &str = "type.googleapis.com/testpb.TestMergeMessage";

fn config() -> Config {
    Config {
        development: true,
        client_state_machine: StateMachine::client_managing_channels().into(),
        ..Config::reference()
    }
}

fn safe() -> Config {
    Config { permissions: Permissions::safe(), ..config() }
}

fn any(type_url: &str, value: &[u8]) -> Option<prost_types::Any> {
    Some(prost_types::Any { type_url: type_url.into(), value: value.to_vec() })
}

fn create(channel_type: i32) -> CreateChannelMessage {
    CreateChannelMessage { channel_type, ..Default::default() }
}

fn send_create(world: &mut World, from: Id, request: &CreateChannelMessage) -> Option<u32> {
    world.take(from);
    world.send(from, [Send::new(MessageType::CreateChannel, request).stub(77)]);
    let got = world.take(from);
    let result = got.iter().find(|message| message.stub == 77)?;
    Some(result.decode::<CreateChannelResultMessage>().channel_id)
}

fn subscribe(world: &mut World, from: Id, channel: u32, access: i32) {
    let options = ChannelSubscriptionOptions { data_access: Some(access), ..Default::default() };
    let conn_id = world.conn(from);
    let request = SubscribedToChannelMessage { conn_id, sub_options: Some(options) };
    world.send(from, [Send::new(MessageType::SubToChannel, &request).to(channel).stub(5)]);
}

fn update(type_url: &str, value: &[u8]) -> Send {
    let body = ChannelDataUpdateMessage { data: any(type_url, value), ..Default::default() };
    Send::new(MessageType::ChannelDataUpdate, &body)
}

fn data_of(messages: &[Received]) -> Vec<Vec<u8>> {
    let updates = messages.iter().filter(|message| message.msg_type == 8);
    updates.map(|message| message.decode::<ChannelDataUpdateMessage>().data.expect("data").value).collect()
}

fn entry(text: &str) -> Vec<u8> {
    [&[0x0A, text.len() as u8], text.as_bytes()].concat()
}

#[test]
fn an_element_that_no_packet_takes_costs_nobody_else_anything() {
    const TYPE: &str = "type.googleapis.com/testpb.TestMergeMessage";
    let long = |len: usize| {
        let mut out = vec![0x0A];
        throng_wire::write_varint(&mut out, len as u64);
        out.resize(out.len() + len, b'x');
        out
    };
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let request = CreateChannelMessage { data: any(TYPE, &entry("a")), ..create(3) };
    let channel = send_create(&mut world, owner, &request).expect("an answer");
    let [reader, writer] = ["r", "w"].map(|pit| world.join(ConnKind::Server, pit));
    for id in [reader, writer] {
        subscribe(&mut world, id, channel, 2);
    }
    world.run_ms(200);
    world.take(reader);
    world.take(writer);
    // The first comes in with a shorter head than it would leave with.
    world.send(owner, [update("x/testpb.TestMergeMessage", &long(65_480)).to(channel)]);
    world.send(writer, [update(TYPE, &entry("b")).to(channel)]);
    world.run_ms(200);
    assert_eq!(data_of(&world.take(reader)).concat(), entry("b"));
    let late = world.join(ConnKind::Server, "late");
    subscribe(&mut world, late, channel, 1);
    world.run_ms(200);
    assert_eq!(data_of(&world.take(late)).concat(), [entry("a"), entry("b")].concat());
    assert!(world.refused(throng_gateway::Refusal::Oversize) >= 2);
}

// A-8: an update of another type aborts the reference's process.
#[test]
fn a8_an_update_of_another_type_is_refused() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let request = CreateChannelMessage { data: any(TEST, &entry("a")), ..create(3) };
    let channel = send_create(&mut world, owner, &request).expect("created");
    world.send(owner, [update(CHAT, &[]).to(channel), update("x/unknown.Type", &[]).to(channel)]);
    assert_eq!(world.refused(Refusal::WrongDataType), 2);
    world.send(owner, [update(TEST, &[0xFF]).to(channel)]);
    assert_eq!(world.refused(Refusal::BadData), 1);
    world.send(owner, [update(TEST, &entry("b")).to(channel)]);
    assert_eq!(world.stats().updates_merged, 1);
    let (name, bytes) = world.shards[0].channel_data(throng_gateway::ChannelId(channel)).expect("data");
    assert_eq!((name.as_str(), bytes), ("testpb.TestMergeMessage", [entry("a"), entry("b")].concat()));
}

// A-8: to the owner of a channel without one aborts the reference's process.
#[test]
fn a8_a_message_to_the_owner_of_an_ownerless_channel_is_dropped() {
    let mut world = World::new(config());
    let server = world.join(ConnKind::Server, "s");
    let wrapped = prost::Message::encode_to_vec(&ServerForwardMessage::default());
    world.send(server, [Send::user(102, &wrapped).broadcast(1), Send::user(102, &wrapped)]);
    assert_eq!(world.refused(Refusal::NoOwner), 2);
    world.send(server, [Send::user(102, &[0xFF]).broadcast(2)]);
    assert_eq!(world.refused(Refusal::BadBody), 1);
    assert_eq!(world.closed(server), None);
}

#[test]
fn creation_data_that_does_not_decode_creates_nothing() {
    let mut world = World::new(config());
    let server = world.join(ConnKind::Server, "s");
    let bad = CreateChannelMessage { data: any(TEST, &[0xFF, 0xFF]), ..create(3) };
    assert_eq!(send_create(&mut world, server, &bad), None);
    assert_eq!(world.refused(Refusal::BadData), 1);
    assert_eq!(world.stats().channels.get(&ChannelType::SUBWORLD), None);
}

#[test]
fn removed_channel_ids_rest() {
    let mut world = World::sharded(config(), 2);
    let server = world.join(ConnKind::Server, "s");
    assert_eq!(send_create(&mut world, server, &create(3)), Some(1));
    assert_eq!(send_create(&mut world, server, &create(3)), Some(2));
    let remove = RemoveChannelMessage { channel_id: 1 };
    world.send(server, [Send::new(MessageType::RemoveChannel, &remove)]);
    assert_eq!(send_create(&mut world, server, &create(3)), Some(3));
}

#[test]
fn a_created_channel_is_there_for_everybody_when_its_creator_is_answered() {
    let mut world = World::sharded(config(), 4);
    let creator = loop {
        let id = world.join(ConnKind::Server, "s");
        if world.shard_of(id) == 0 {
            break id;
        }
    };
    world.take(creator);
    world.slow_shard = Some(0);
    let mut answered = 0;
    for _ in 0..8 {
        world.send(creator, [Send::new(MessageType::CreateChannel, &create(3)).stub(77)]);
        let ready = world.take(creator);
        let is_held = !world.held.is_empty();
        assert!(ready.is_empty() || !is_held, "answered before its home knows the channel");
        while world.deliver_held() {}
        let later = world.take(creator);
        answered += ready.iter().chain(&later).filter(|message| message.stub == 77).count();
    }
    assert_eq!(answered, 8);
}

#[test]
fn global_can_never_be_removed_and_ordinary_ids_end_before_the_spatial_ones() {
    let settings = TypeSettings { remove: throng_gateway::AccessLevel::Any, ..TypeSettings::fallback() };
    let mut world = World::new(Config {
        channel_settings: ChannelSettings::new([(ChannelType::GLOBAL, settings)]),
        spatial_channel_start: 4,
        ..config()
    });
    let server = world.join(ConnKind::Server, "s");
    world.send(server, [Send::new(MessageType::RemoveChannel, &RemoveChannelMessage { channel_id: 0 })]);
    assert_eq!(world.refused(Refusal::Access), 1);
    for expected in 1..=3 {
        assert_eq!(send_create(&mut world, server, &create(100)), Some(expected));
    }
    assert_eq!(send_create(&mut world, server, &create(100)), None);
    assert_eq!(world.refused(Refusal::ChannelsMax), 1);
}

// A-16: a second master replaces GLOBAL's data; the reference leaves subscribers with the old one.
#[test]
fn a16_subscribers_get_the_full_state_of_a_reclaimed_global() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let first = world.join(ConnKind::Server, "m1");
        let request = CreateChannelMessage { data: any(TEST, &entry("old")), ..create(1) };
        assert_eq!(send_create(&mut world, first, &request), Some(0));
        let client = world.join(ConnKind::Client, "c");
        subscribe(&mut world, client, 0, 1);
        world.run_ms(100);
        assert_eq!(data_of(&world.take(client)), [entry("old")]);

        let second = world.join(ConnKind::Server, "m2");
        let request = CreateChannelMessage { data: any(TEST, &entry("new")), ..create(1) };
        assert_eq!(send_create(&mut world, second, &request), None, "the first is still there");
        assert_eq!(world.refused(Refusal::AlreadyOwned), 1);
        world.close(first);
        assert_eq!(send_create(&mut world, second, &request), Some(0));
        world.run_ms(100);
        assert_eq!(data_of(&world.take(client)), [entry("new")]);
        world.send(second, [update(TEST, &entry("more"))]);
        world.run_ms(100);
        assert_eq!(data_of(&world.take(client)), [entry("more")]);
    }
}

#[test]
fn a16_what_a_reclaimed_global_lacks_is_removed_from_those_who_have_it() {
    // kv[KEY] = {content "x"} and kv[KEY] = {removed}.
    let kept = |key: u8| vec![0x12, 7, 0x08, key, 0x12, 3, 0x12, 1, b'x'];
    let removed = |key: u8| vec![0x12, 6, 0x08, key, 0x12, 2, 0x08, 1];
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let first = world.join(ConnKind::Server, "m1");
        let data = [kept(1), kept(2)].concat();
        let request = CreateChannelMessage { data: any(TEST, &data), ..create(1) };
        assert_eq!(send_create(&mut world, first, &request), Some(0));
        let client = world.join(ConnKind::Client, "c");
        subscribe(&mut world, client, 0, 1);
        world.run_ms(100);
        assert_eq!(data_of(&world.take(client)), [data]);

        world.close(first);
        let second = world.join(ConnKind::Server, "m2");
        let data = [kept(2), kept(3)].concat();
        let request = CreateChannelMessage { data: any(TEST, &data), ..create(1) };
        assert_eq!(send_create(&mut world, second, &request), Some(0));
        // A subscriber without the old state receives only the new one.
        let late = world.join(ConnKind::Client, "late");
        subscribe(&mut world, late, 0, 1);
        world.run_ms(100);
        assert_eq!(data_of(&world.take(client)), [removed(1), data.clone()]);
        assert_eq!(data_of(&world.take(late)), [data]);
    }
}

// A-5: in the reference the first full state to a masked subscriber erases the other fields for
// everybody. A-6: the first update becomes the data and changes afterwards.
#[test]
fn a5_a6_masks_and_later_updates_touch_only_what_is_sent() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let channel = send_create(&mut world, owner, &create(3)).expect("created");
    let (masked, plain) = (world.join(ConnKind::Client, "m"), world.join(ConnKind::Client, "p"));
    let options = ChannelSubscriptionOptions { data_field_masks: vec!["kv".into()], ..Default::default() };
    let request = SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) };
    world.send(masked, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
    subscribe(&mut world, plain, channel, 1);
    let kv = [0x12, 6, 0x08, 1, 0x12, 2, 0x12, 0];
    let first = [entry("list"), kv.to_vec()].concat();
    world.send(owner, [update(TEST, &first).to(channel)]);
    world.run_ms(100);
    assert_eq!(data_of(&world.take(masked)), [kv.to_vec()]);
    assert_eq!(data_of(&world.take(plain)), std::slice::from_ref(&first));
    // An update of which the mask leaves nothing is not sent at all.
    world.send(owner, [update(TEST, &entry("two")).to(channel)]);
    world.run_ms(100);
    assert_eq!(data_of(&world.take(masked)), Vec::<Vec<u8>>::new());
    assert_eq!(data_of(&world.take(plain)), [entry("two")]);
    let late = world.join(ConnKind::Client, "l");
    subscribe(&mut world, late, channel, 1);
    world.run_ms(100);
    assert_eq!(data_of(&world.take(late)), [[entry("list"), entry("two"), kv.to_vec()].concat()]);
}

// A-4: after a burst the reference keeps and scans 2000 entries for ever.
#[test]
fn a4_a_burst_of_updates_leaves_nothing_behind() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let request = CreateChannelMessage { data: any(TEST, &[]), ..create(3) };
    let channel = send_create(&mut world, owner, &request).expect("created");
    let client = world.join(ConnKind::Client, "c");
    subscribe(&mut world, client, channel, 1);
    world.run_ms(100);
    for _ in 0..20 {
        world.send(owner, (0..100).map(|_| update(TEST, &entry("x")).to(channel)));
    }
    let backlog = |world: &World| {
        let found = world.shards[0].channels().find(|view| view.id.0 == channel).expect("the channel");
        found.backlog.0
    };
    assert_eq!(backlog(&world), 2_000);
    world.run_ms(100);
    assert_eq!(backlog(&world), 0);
    let updates = data_of(&world.take(client));
    assert_eq!(updates.iter().map(Vec::len).sum::<usize>(), 2_000 * 3);
    assert_eq!(world.shards[0].next_timeout(), None);
}

// A-3: one encoding for all subscribers of a cohort.
#[test]
fn a3_a_window_is_encoded_once_for_all() {
    let mut world = World::sharded(config(), 2);
    let owner = world.join(ConnKind::Server, "s");
    let request = CreateChannelMessage { data: any(TEST, &entry("x")), ..create(3) };
    let channel = send_create(&mut world, owner, &request).expect("created");
    for _ in 0..50 {
        let client = world.join(ConnKind::Client, "c");
        subscribe(&mut world, client, channel, 1);
    }
    world.run_ms(100);
    let before = world.stats();
    for _ in 0..10 {
        world.send(owner, (0..3).map(|_| update(TEST, &entry("y")).to(channel)));
        world.run_ms(20);
    }
    let after = world.stats();
    assert_eq!(after.fan_out_messages - before.fan_out_messages, 500);
    assert_eq!(after.fan_out_encodes - before.fan_out_encodes, 10);
}

// A-13: 80 KB of data never reach a late subscriber of the reference.
#[test]
fn a13_full_states_and_lists_over_a_packet_come_in_parts() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let request = CreateChannelMessage { data: any(TEST, &[]), metadata: "m".repeat(2_000), ..create(3) };
        let channel = send_create(&mut world, owner, &request).expect("created");
        let text = "z".repeat(100);
        for _ in 0..10 {
            world.send(owner, (0..200).map(|_| update(TEST, &entry(&text)).to(channel)));
        }
        let client = world.join(ConnKind::Client, "c");
        subscribe(&mut world, client, channel, 1);
        world.run_ms(100);
        let parts = data_of(&world.take(client));
        assert!(parts.len() > 3, "{} parts", parts.len());
        assert_eq!(parts.concat(), entry(&text).repeat(2_000));
        assert!(world.frame_sizes(client).iter().all(|size| *size <= 65_530));

        for _ in 0..60 {
            send_create(&mut world, owner, &request).expect("created");
        }
        let list = ListChannelMessage { type_filter: 3, ..Default::default() };
        world.send(client, [Send::new(MessageType::ListChannel, &list).stub(9)]);
        let got = world.take(client);
        assert!(got.len() > 1 && got.iter().all(|message| (message.msg_type, message.stub) == (5, 9)));
        let listed: usize =
            got.iter().map(|part| part.decode::<ListChannelResultMessage>().channels.len()).sum();
        assert_eq!(listed, 61);
    }
}

#[test]
fn lists_filter_by_type_and_by_any_of_the_substrings() {
    let mut world = World::sharded(config(), 4);
    let owner = world.join(ConnKind::Server, "s");
    for (number, metadata) in [(3, "red room"), (3, "blue room"), (2, "red den"), (3, "Red hall")] {
        let request = CreateChannelMessage { metadata: metadata.into(), ..create(number) };
        send_create(&mut world, owner, &request).expect("created");
    }
    let mut list = |type_filter, filters: &[&str]| {
        let metadata_filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
        let request = ListChannelMessage { type_filter, metadata_filters };
        world.send(owner, [Send::new(MessageType::ListChannel, &request)]);
        let result: ListChannelResultMessage = world.take(owner)[0].decode();
        result.channels.iter().map(|info| info.channel_id).collect::<Vec<_>>()
    };
    assert_eq!(list(0, &[]), [0, 1, 2, 3, 4]);
    assert_eq!(list(3, &[]), [1, 2, 4]);
    assert_eq!(list(3, &["red", "hall"]), [1, 4]);
    assert_eq!(list(0, &["room", "den"]), [1, 2, 3]);
    assert_eq!(list(9, &[]), Vec::<u32>::new());
}

// A-14: nobody is answered, but every refusal is counted under its reason.
#[test]
fn a14_refusals_are_counted_by_reason() {
    let mut world = World::new(config());
    let server = world.join(ConnKind::Server, "s");
    let sub = SubscribedToChannelMessage { conn_id: 999, sub_options: None };
    let unsub = UnsubscribedFromChannelMessage { conn_id: world.conn(server) };
    world.send(
        server,
        [
            Send::new(MessageType::SubToChannel, &sub),
            Send::new(MessageType::SubToChannel, &sub).to(55),
            Send::new(MessageType::UnsubFromChannel, &unsub),
            Send::new(MessageType::CreateChannel, &create(0)),
            Send::new(MessageType::CreateChannel, &create(4)),
            Send::user(2, b""),
            Send::user(19, b""),
            Send::user(99, b""),
            Send::user(5, b"\xff"),
            Send::new(MessageType::ListChannel, &ListChannelMessage::default()).to(55),
        ],
    );
    assert!(world.take(server).is_empty());
    for (reason, count) in [
        (Refusal::UnknownConnection, 1),
        (Refusal::UnknownChannel, 2),
        (Refusal::NotSubscribed, 1),
        (Refusal::ChannelType, 1),
        (Refusal::SpatialUnavailable, 2),
        (Refusal::UndefinedType, 2),
        (Refusal::BadBody, 1),
    ] {
        assert_eq!(world.refused(reason), count, "{reason}");
    }
}

// A-19: what a client may not do by default, even where its state machine lets it.
#[test]
fn a19_clients_have_no_authority_by_default() {
    let mut world = World::new(safe());
    let server = world.join(ConnKind::Server, "s");
    let client = world.join(ConnKind::Client, "c");
    for number in [1, 3, 5, 100, 1000] {
        assert_eq!(send_create(&mut world, client, &create(number)), None, "type {number}");
    }
    assert_eq!(world.refused(Refusal::Permission), 5);
    assert!(send_create(&mut world, client, &create(2)).is_some(), "a private channel of its own");

    let request = CreateChannelMessage { data: any(TEST, &[]), ..create(3) };
    let channel = send_create(&mut world, server, &request).expect("created");
    subscribe(&mut world, client, channel, 2);
    let result: SubscribedToChannelResultMessage = world.take(client)[0].decode();
    assert_eq!(result.sub_options.expect("options").data_access, Some(1), "WRITE became READ");
    world.send(client, [update(TEST, &entry("x")).to(channel)]);
    assert_eq!(world.refused(Refusal::WriteAccess), 1);

    // WRITE that a server gives is kept, also when the client changes something else.
    let options = ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() };
    let grant = SubscribedToChannelMessage { conn_id: world.conn(client), sub_options: Some(options) };
    world.send(server, [Send::new(MessageType::SubToChannel, &grant).to(channel)]);
    subscribe(&mut world, client, channel, 2);
    world.send(client, [update(TEST, &entry("x")).to(channel)]);
    assert_eq!(world.stats().updates_merged, 1);

    // Others it may not touch.
    let unsub = UnsubscribedFromChannelMessage { conn_id: world.conn(server) };
    world.send(client, [Send::new(MessageType::UnsubFromChannel, &unsub).to(channel)]);
    world
        .send(client, [Send::new(MessageType::RemoveChannel, &RemoveChannelMessage { channel_id: channel })]);
    assert_eq!(world.refused(Refusal::Access), 1);
    // Types that the gateway interprets from servers it does not take from clients at all.
    let forged = ServerForwardMessage { client_conn_id: 1, payload: vec![8, 9, 0x20, 0] };
    world.take(server);
    let spoofed = Send::user(104, &prost::Message::encode_to_vec(&forged)).to(channel).broadcast(2);
    let refused = world.refused(Refusal::Permission);
    world.send(client, [spoofed]);
    assert!(world.take(server).is_empty());
    assert_eq!(world.refused(Refusal::Permission), refused + 1);
    // Under other types a forged wrapper stays payload.
    world.send(client, [Send::user(105, &prost::Message::encode_to_vec(&forged)).to(channel).broadcast(2)]);
    let got = world.take(server).pop().expect("forwarded to the owner");
    let wrapper: ServerForwardMessage = got.decode();
    assert_eq!(wrapper.client_conn_id, world.conn(client));
    assert_eq!(wrapper.payload, prost::Message::encode_to_vec(&forged));
}

// A-15: a server without a claim may not write in the owner's name, except the owner of GLOBAL.
#[test]
fn a15_updates_of_bystanders_are_refused_by_default() {
    let mut world = World::new(safe());
    let (master, owner, other) = (
        world.join(ConnKind::Server, "m"),
        world.join(ConnKind::Server, "o"),
        world.join(ConnKind::Server, "x"),
    );
    send_create(&mut world, master, &create(1)).expect("GLOBAL");
    let request = CreateChannelMessage { data: any(TEST, &[]), ..create(3) };
    let channel = send_create(&mut world, owner, &request).expect("created");
    world.send(other, [update(TEST, &entry("x")).to(channel)]);
    assert_eq!(world.refused(Refusal::WriteAccess), 1);
    world.send(master, [update(TEST, &entry("x")).to(channel)]);
    world.send(owner, [update(TEST, &entry("x")).to(channel)]);
    assert_eq!(world.stats().updates_merged, 2);
}

#[test]
fn permissions_are_configurable() {
    let mut permissions = Permissions::safe();
    permissions.client = KindPermissions {
        create_types: TypeRule::Only(vec![ChannelType(100)]),
        subscribe_self_types: TypeRule::Only(vec![ChannelType(100)]),
        list_channels: false,
        ..permissions.client
    };
    let mut world = World::new(Config { permissions, ..config() });
    let client = world.join(ConnKind::Client, "c");
    assert!(send_create(&mut world, client, &create(100)).is_some());
    assert_eq!(send_create(&mut world, client, &create(2)), None);
    subscribe(&mut world, client, 0, 1);
    world.send(client, [Send::new(MessageType::ListChannel, &ListChannelMessage::default())]);
    assert_eq!(world.refused(Refusal::Permission), 3);
}

// A-20: a client has as many subscriptions as it may, wherever the channels live and however fast
// it asks.
#[test]
fn a20_subscriptions_are_limited_per_connection_whatever_the_shards() {
    for shards in [1, 2, 4] {
        let limits = Limits { subscriptions_per_client: 3, ..Limits::default() };
        let mut world = World::sharded(Config { limits, ..config() }, shards);
        let server = world.join(ConnKind::Server, "s");
        // More clients than shards, so that some live elsewhere than their channels.
        let clients: Vec<Id> = (0..4).map(|_| world.join(ConnKind::Client, "c")).collect();
        let channels: Vec<u32> =
            (0..8).map(|_| send_create(&mut world, server, &create(3)).expect("created")).collect();
        let ask = |channel: u32| {
            let request = SubscribedToChannelMessage { conn_id: 0, sub_options: None };
            Send::new(MessageType::SubToChannel, &request).to(channel)
        };
        let answers = |world: &mut World, client: Id| -> Vec<u32> {
            let got = world.take(client);
            let answers = got.iter().filter(|message| message.msg_type == MessageType::SubToChannel as u32);
            answers.map(|message| message.channel).collect()
        };
        let mut kept = None;
        for (number, &client) in clients.iter().enumerate() {
            let refused = |world: &World| world.refused(Refusal::SubscriptionsPerConnection) as usize;
            let before = refused(&world);
            // What is refused does not count: channel 99 does not exist.
            world.send(client, [ask(99)]);
            assert_eq!(world.refused(Refusal::UnknownChannel) as usize, number + 1);
            // All at once: no shard can know what the others are about to admit.
            world.send(client, channels.iter().map(|&channel| ask(channel)));
            let mut held = answers(&mut world, client);
            assert_eq!((held.len(), refused(&world) - before), (3, 5), "{shards} shards");
            // Another level of detail of a channel that it has is no further subscription.
            let slower = ChannelSubscriptionOptions { fan_out_interval_ms: Some(90), ..Default::default() };
            let request = SubscribedToChannelMessage { conn_id: 0, sub_options: Some(slower) };
            world.send(client, [Send::new(MessageType::SubToChannel, &request).to(held[0])]);
            assert_eq!(refused(&world) - before, 5);
            // A server cannot exceed the limit for it either.
            let other = *channels.iter().find(|channel| !held.contains(channel)).expect("eight are too many");
            subscribe_other(&mut world, server, client, other);
            assert_eq!((answers(&mut world, client), refused(&world) - before), (vec![], 6));
            // What it leaves, and what is removed, makes room.
            let leave = UnsubscribedFromChannelMessage { conn_id: world.conn(client) };
            world.send(client, [Send::new(MessageType::UnsubFromChannel, &leave).to(held.remove(0))]);
            subscribe_other(&mut world, server, client, other);
            assert_eq!((answers(&mut world, client), refused(&world) - before), (vec![other], 6));
            world.send(client, [ask(held[0])]);
            assert_eq!(refused(&world) - before, 6, "asking again for what it has");
            kept = kept.or(Some(held[0]));
        }
        let removed = RemoveChannelMessage { channel_id: kept.expect("there are clients") };
        world.send(server, [Send::new(MessageType::RemoveChannel, &removed)]);
        let client = clients[0];
        world.take(client);
        world.send(client, channels[4..].iter().map(|&channel| ask(channel)));
        assert_eq!(answers(&mut world, client).len(), 1, "{shards} shards: one was removed");
    }
}

fn subscribe_other(world: &mut World, server: Id, client: Id, channel: u32) {
    let request = SubscribedToChannelMessage { conn_id: world.conn(client), sub_options: None };
    world.send(server, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
}

// A-20: everything that a peer can make grow has a bound and a counted refusal.
#[test]
fn a20_limits_hold_and_are_counted() {
    let limits = Limits {
        channels: 6,
        channels_per_client: 2,
        subscriptions_per_client: 3,
        metadata_bytes: 10,
        field_masks: 4,
        filter_bytes: 8,
        list_filters: 2,
        list_results: 2,
        ..Limits::default()
    };
    let mut world = World::new(Config { limits, ..config() });
    let (server, client) = (world.join(ConnKind::Server, "s"), world.join(ConnKind::Client, "c"));
    assert_eq!(send_create(&mut world, client, &create(100)), Some(1));
    assert_eq!(send_create(&mut world, client, &create(100)), Some(2));
    assert_eq!(send_create(&mut world, client, &create(100)), None);
    assert_eq!(world.refused(Refusal::ChannelsPerConnection), 1);
    for _ in 0..3 {
        assert!(send_create(&mut world, server, &create(3)).is_some());
    }
    assert_eq!(send_create(&mut world, server, &create(3)), None);
    assert_eq!(world.refused(Refusal::ChannelsMax), 1);
    // Freed again when a channel goes.
    world.send(server, [Send::new(MessageType::RemoveChannel, &RemoveChannelMessage { channel_id: 5 })]);
    assert!(send_create(&mut world, server, &create(3)).is_some());

    let long = CreateChannelMessage { metadata: "x".repeat(11), ..create(3) };
    assert_eq!(send_create(&mut world, server, &long), None);
    assert_eq!(world.refused(Refusal::MetadataBytes), 1);

    subscribe(&mut world, client, 3, 1);
    subscribe(&mut world, client, 4, 1);
    assert_eq!(world.refused(Refusal::SubscriptionsPerConnection), 1);
    let mut masks = |names: &[&str]| {
        let data_field_masks = names.iter().map(|name| (*name).to_owned()).collect();
        let options = ChannelSubscriptionOptions { data_field_masks, ..Default::default() };
        let request = SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) };
        world.send(client, [Send::new(MessageType::SubToChannel, &request).to(3)]);
        world.refused(Refusal::FieldMasks)
    };
    assert_eq!(masks(&["a", "b", "c"]), 0);
    assert_eq!(masks(&["a", "b"]), 1, "masks add up");
    assert_eq!(masks(&["much too long"]), 2);
    let list = |filters: Vec<String>| {
        let request = ListChannelMessage { type_filter: 0, metadata_filters: filters };
        Send::new(MessageType::ListChannel, &request)
    };
    world.send(client, [list(vec![String::new(); 3]), list(vec!["x".repeat(9)])]);
    assert_eq!(world.refused(Refusal::ListFilters), 2);
    world.take(client);
    world.send(client, [list(vec![])]);
    let result: ListChannelResultMessage = world.take(client)[0].decode();
    assert_eq!(result.channels.len(), 2);
    assert_eq!(world.closed(client), None);
}

#[test]
fn relay_games_without_servers_may_broadcast_where_settings_allow() {
    let relay = TypeSettings { enable_client_broadcast: true, ..TypeSettings::fallback() };
    for shards in [1, 2] {
        let channel_settings = ChannelSettings::new([(ChannelType(100), relay.clone())]);
        let mut world = World::sharded(Config { channel_settings, ..config() }, shards);
        let (a, b, c) = (
            world.join(ConnKind::Client, "a"),
            world.join(ConnKind::Client, "b"),
            world.join(ConnKind::Client, "c"),
        );
        let channel = send_create(&mut world, a, &create(100)).expect("created");
        for id in [b, c] {
            subscribe(&mut world, id, channel, 1);
            world.take(id);
        }
        // While there is an owner everything goes to it.
        world.take(a);
        world.send(b, [Send::user(120, b"hi").to(channel).broadcast(2)]);
        assert_eq!((world.take(a).len(), world.take(b).len(), world.take(c).len()), (1, 0, 0));
        world.close(a);
        let mut reach = |broadcast: u32| {
            world.send(b, [Send::user(120, b"hi").to(channel).broadcast(broadcast).stub(4)]);
            let (to_b, to_c) = (world.take(b), world.take(c));
            for message in to_b.iter().chain(&to_c) {
                assert_eq!((message.stub, message.broadcast, message.channel), (4, broadcast, channel));
                assert_eq!(message.decode::<ServerForwardMessage>().client_conn_id, world.conn(b));
            }
            (to_b.len(), to_c.len())
        };
        assert_eq!(reach(2), (1, 1));
        assert_eq!(reach(4), (0, 1));
        assert_eq!(reach(16), (0, 0));
        assert_eq!(reach(64), (0, 0));
        assert_eq!(reach(1), (0, 0));
        assert_eq!(reach(0), (0, 0));
    }
}

#[test]
fn an_owner_that_unsubscribes_gives_up_the_channel_and_global_can_be_claimed_again() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let master = world.join(ConnKind::Server, "m");
        let channel = send_create(&mut world, master, &create(1)).expect("claimed");
        let unsub = UnsubscribedFromChannelMessage { conn_id: world.conn(master) };
        world.send(master, [Send::new(MessageType::UnsubFromChannel, &unsub).to(channel).stub(3)]);
        let got = world.take(master);
        assert_eq!((got.len(), got[0].msg_type, got[0].stub), (1, 7, 3));
        let client = world.join(ConnKind::Client, "c");
        assert!(world.take(master).is_empty(), "no copy of the AUTH result any more");
        let second = world.join(ConnKind::Server, "m2");
        assert_eq!(send_create(&mut world, second, &create(1)), Some(0));
        world.send(client, [Send::user(100, b"x")]);
        assert_eq!(world.take_types(second), [100]);
    }
}

#[test]
fn a_target_that_owns_the_channel_is_told_once() {
    let mut world = World::new(config());
    let (owner, other) = (world.join(ConnKind::Server, "o"), world.join(ConnKind::Server, "x"));
    let channel = send_create(&mut world, owner, &create(3)).expect("created");
    let options = ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() };
    let request = SubscribedToChannelMessage { conn_id: world.conn(owner), sub_options: Some(options) };
    world.send(other, [Send::new(MessageType::SubToChannel, &request).to(channel)]);
    assert_eq!((world.take_types(owner), world.take_types(other)), (vec![6], vec![6]));
}

#[test]
fn merge_options_of_the_creation_hold_for_the_channel() {
    let mut world = World::new(config());
    let owner = world.join(ConnKind::Server, "s");
    let merge_options =
        Some(ChannelDataMergeOptions { list_size_limit: 2, truncate_top: true, ..Default::default() });
    let request = CreateChannelMessage { data: any(TEST, &entry("a")), merge_options, ..create(3) };
    let channel = send_create(&mut world, owner, &request).expect("created");
    world.send(owner, ["b", "c"].map(|text| update(TEST, &entry(text)).to(channel)));
    let (_, bytes) = world.shards[0].channel_data(throng_gateway::ChannelId(channel)).expect("data");
    assert_eq!(bytes, [entry("b"), entry("c")].concat());
}

#[test]
fn removal_of_a_channel_with_many_involved_leaves_no_trace() {
    for shards in [1, 2, 4] {
        let mut world = World::sharded(config(), shards);
        let owner = world.join(ConnKind::Server, "s");
        let clients: Vec<Id> = (0..6).map(|_| world.join(ConnKind::Client, "c")).collect();
        for _ in 0..5 {
            let request = CreateChannelMessage { data: any(TEST, &entry("x")), ..create(3) };
            let channel = send_create(&mut world, owner, &request).expect("created");
            for client in &clients {
                subscribe(&mut world, *client, channel, 1);
            }
            world.run_ms(30);
            world.send(owner, [update(TEST, &entry("y")).to(channel)]);
        }
        for client in &clients {
            world.take(*client);
        }
        world.close(owner);
        for client in &clients {
            assert_eq!(world.take_types(*client), [4; 5]);
        }
        world.run_ms(100);
        assert_eq!(world.stats().subscriptions, 0);
        assert!(world.shards.iter().all(|shard| shard.next_timeout().is_none()));
        assert_eq!(world.stats().channels[&ChannelType::SUBWORLD], 0);
        assert_eq!(world.closed(clients[0]), None::<CloseReason>);
    }
}

// A-11: in the reference every answer waits for a tick.
#[test]
fn a11_requests_are_answered_without_waiting_for_a_tick() {
    for shards in [1, 2] {
        let mut world = World::sharded(config(), shards);
        let server = world.join(ConnKind::Server, "s");
        let before = world.now;
        let channel = send_create(&mut world, server, &create(3)).expect("answered at once");
        subscribe(&mut world, server, channel, 2);
        world.send(server, [Send::new(MessageType::ListChannel, &ListChannelMessage::default())]);
        let request = RemoveChannelMessage { channel_id: channel };
        world.send(server, [Send::new(MessageType::RemoveChannel, &request)]);
        assert_eq!(world.take_types(server), [6, 5, 4]);
        assert_eq!(world.now, before);
    }
}

#[test]
fn a_reloaded_configuration_holds_for_new_channels_and_for_everybody_at_once() {
    let mut world = World::new(config());
    let server = world.join(ConnKind::Server, "s");
    let old = send_create(&mut world, server, &create(3)).expect("created");
    let settings = TypeSettings { remove: throng_gateway::AccessLevel::None, ..TypeSettings::fallback() };
    let next = Config {
        channel_settings: ChannelSettings::new([(ChannelType::SUBWORLD, settings)]),
        limits: Limits { metadata_bytes: 3, ..Limits::default() },
        ..config()
    };
    world.shards[0].reconfigure(&next);
    let long = CreateChannelMessage { metadata: "four".into(), ..create(3) };
    assert_eq!(send_create(&mut world, server, &long), None);
    let new = send_create(&mut world, server, &create(3)).expect("created");
    for channel_id in [old, new] {
        world.send(server, [Send::new(MessageType::RemoveChannel, &RemoveChannelMessage { channel_id })]);
    }
    assert_eq!(world.refused(Refusal::Access), 1, "only the new channel has the new access level");
}

#[test]
fn managing_the_subscriptions_of_others_needs_the_permission_beside_the_access() {
    for may in [false, true] {
        let mut config = Config { development: true, ..Config::reference() };
        config.client_state_machine = StateMachine::client_managing_channels().into();
        config.permissions.client.manage_others = may;
        let mut world = World::new(config);
        let owner = world.join(ConnKind::Client, "owner");
        let other = world.join(ConnKind::Client, "other");
        let create = CreateChannelMessage { channel_type: 2, ..Default::default() };
        world.send(owner, [Send::new(MessageType::CreateChannel, &create)]);
        let created = world.take(owner).into_iter().find(|message| message.msg_type == 3).expect("created");
        let channel = created.decode::<CreateChannelResultMessage>().channel_id;
        // A client's SUB means itself; ending another's subscription is what it can name.
        let conn_id = world.conn(other);
        let own = SubscribedToChannelMessage { conn_id, sub_options: None };
        world.send(other, [Send::new(MessageType::SubToChannel, &own).to(channel)]);
        let end = UnsubscribedFromChannelMessage { conn_id };
        world.send(owner, [Send::new(MessageType::UnsubFromChannel, &end).to(channel)]);
        assert_eq!(world.refused(Refusal::Permission), u64::from(!may), "unsubscribe, {may}");
    }
    for may in [false, true] {
        let mut config = Config { development: true, ..Config::reference() };
        config.permissions.server.manage_others = may;
        let mut world = World::new(config);
        let owner = world.join(ConnKind::Server, "owner");
        let other = world.join(ConnKind::Client, "other");
        let create = CreateChannelMessage { channel_type: 3, ..Default::default() };
        world.send(owner, [Send::new(MessageType::CreateChannel, &create)]);
        let created = world.take(owner).into_iter().find(|message| message.msg_type == 3).expect("created");
        let channel = created.decode::<CreateChannelResultMessage>().channel_id;
        let named = SubscribedToChannelMessage { conn_id: world.conn(other), sub_options: None };
        world.send(owner, [Send::new(MessageType::SubToChannel, &named).to(channel)]);
        let heard = world.take_types(other).contains(&(MessageType::SubToChannel as u32));
        assert_eq!((world.refused(Refusal::Permission), heard), (u64::from(!may), may), "subscribe, {may}");
    }
}
