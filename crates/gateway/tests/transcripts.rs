//! The observed conversations, on one, two and four shards.
//!
//! Order counts within one connection. Channel ids are compared by first appearance, entries of lists and maps in any
//! order. Where the reference shows a defect the specification's correction is expected instead: see `DEVIATIONS`.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Id, Received, Send, World, schemas_of};
use prost::Message;
use serde_json::Value;
use throng_gateway::data::Schemas;
use throng_gateway::spatial::Coverage;
use throng_gateway::{ChannelSettings, Config, ConnKind, Recovery, Spatial, StateMachine, parse_controller};
use throng_wire::channeldpb::{
    AuthResultMessage, ChannelDataHandoverMessage, ChannelDataRecoveryMessage, ChannelDataUpdateMessage,
    CreateChannelResultMessage, CreateSpatialChannelsResultMessage, ListChannelResultMessage,
    QuerySpatialChannelResultMessage, RemoveChannelMessage, ServerForwardMessage,
    SpatialChannelsReadyMessage, SpatialRegionsUpdateMessage, SubscribedToChannelResultMessage,
    UnsubscribedFromChannelResultMessage,
};

use throng_wire::unrealpb::SpatialChannelData;

/// How our answer differs from the recorded one in a step, on purpose.
enum Change {
    /// A message with another type.
    Type { peer: &'static str, from: u32, to: u32 },
    /// A message that the reference does not send, after the others.
    Added { peer: &'static str, message: fn() -> Received },
    /// A message that we do not send.
    Dropped { peer: &'static str, msg_type: u32 },
    /// Messages of two senders that raced: any order is right.
    AnyOrder { peer: &'static str },
    /// SPATIAL_CHANNELS_READY with the server's own index.
    Ready { servers: &'static [(&'static str, u32)] },
    /// A subscription with another access.
    Access { peer: &'static str, access: i32 },
    /// A message with another stub.
    Stub { peer: &'static str, msg_type: u32, stub: u32 },
    /// CHANNEL_DATA_HANDOVER that names its cause.
    Cause { conn: u32 },
    /// The connection is closed where the reference lets it hang.
    Closed { peer: &'static str },
}

/// (scenario, step from 0, what differs, why).
const DEVIATIONS: &[(&str, usize, Change, &str)] = &[
    (
        "channels_and_access",
        26,
        Change::Added { peer: "master", message: remove_answer },
        "the remover is answered under its stub (spec 5.6)",
    ),
    (
        "owner_loss_removes_channel",
        6,
        Change::Type { peer: "c1", from: 0, to: 4 },
        "automatic removal is announced as REMOVE_CHANNEL (spec 5.6)",
    ),
    (
        "framing_and_state_machine",
        5,
        Change::Closed { peer: "garbage" },
        "an undecodable packet closes the connection (A-9)",
    ),
    (
        "user_space_routing",
        12,
        Change::AnyOrder { peer: "master" },
        "the requests of two servers were on their way at the same time",
    ),
    (
        "spatial_setup_interest_takeover",
        8,
        Change::Ready { servers: &[("srvA", 0), ("srvB", 1)] },
        "each server is told its own index (spec 8.3)",
    ),
    (
        "spatial_setup_interest_takeover",
        8,
        Change::Access { peer: "srvA", access: 2 },
        "a server watches its border as it asked for itself (spec 8.4)",
    ),
    (
        "spatial_setup_interest_takeover",
        26,
        Change::Dropped { peer: "srvB", msg_type: 6 },
        "a cell keeps its subscribers when another server takes it over (A-15)",
    ),
    (
        "spatial_setup_interest_takeover",
        26,
        Change::Dropped { peer: "srvB", msg_type: 8 },
        "a cell keeps its subscribers when another server takes it over (A-15)",
    ),
    (
        "spatial_setup_interest_takeover",
        18,
        Change::Stub { peer: "c1", msg_type: 7, stub: 0 },
        "nobody but the requester gets its stub (spec 3.4)",
    ),
    (
        "spatial_setup_interest_takeover",
        26,
        Change::Ready { servers: &[("srvC", 0), ("srvB", 1)] },
        "each server is told its own index (spec 8.3)",
    ),
    (
        "entity_handover",
        8,
        Change::Ready { servers: &[("srvA", 0), ("srvB", 1)] },
        "each server is told its own index (spec 8.3)",
    ),
    (
        "entity_handover",
        21,
        Change::Cause { conn: 4 },
        "a handover names the connection whose doing it is (spec 8.8)",
    ),
    (
        "entity_handover",
        22,
        Change::Cause { conn: 4 },
        "a handover names the connection whose doing it is (spec 8.8)",
    ),
    (
        "entity_handover",
        23,
        Change::Cause { conn: 4 },
        "a handover names the connection whose doing it is (spec 8.8)",
    ),
    (
        "entity_handover",
        24,
        Change::Cause { conn: 4 },
        "a handover names the connection whose doing it is (spec 8.8)",
    ),
    (
        "entity_handover",
        29,
        Change::Added { peer: "c1", message: entity_removed },
        "subscribers of a removed entity are told (spec 5.6)",
    ),
    (
        "entity_handover",
        29,
        Change::Added { peer: "c2", message: entity_removed },
        "subscribers of a removed entity are told (spec 5.6)",
    ),
    (
        "entity_handover",
        29,
        Change::Added { peer: "srvA", message: entity_removed },
        "subscribers of a removed entity are told (spec 5.6)",
    ),
    (
        "server_recovery",
        18,
        Change::AnyOrder { peer: "master2" },
        "a client's message and the owner's request were on their way at the same time",
    ),
    (
        "server_recovery",
        21,
        Change::Dropped { peer: "c1", msg_type: 23 },
        "only an owner that returns is announced (spec 4.7)",
    ),
    (
        "server_recovery",
        21,
        Change::Dropped { peer: "other2", msg_type: 23 },
        "only an owner that returns is announced (spec 4.7)",
    ),
    (
        "server_recovery",
        22,
        Change::Type { peer: "c1", from: 0, to: 4 },
        "automatic removal is announced as REMOVE_CHANNEL (spec 5.6)",
    ),
];

fn remove_answer() -> Received {
    let body = RemoveChannelMessage { channel_id: 1 }.encode_to_vec();
    Received { channel: 0, broadcast: 0, stub: 18, msg_type: 4, body }
}

fn entity_removed() -> Received {
    let body = RemoveChannelMessage { channel_id: 524_293 }.encode_to_vec();
    Received { channel: 0, broadcast: 0, stub: 0, msg_type: 4, body }
}

const SCENARIOS: [&str; 8] = [
    "channels_and_access",
    "owner_loss_removes_channel",
    "framing_and_state_machine",
    "user_space_routing",
    "misrouted_messages",
    "server_recovery",
    "spatial_setup_interest_takeover",
    "entity_handover",
];

#[test]
fn recorded_conversations_are_equivalent() {
    let text = include_str!("../../../fixtures/gateway/transcripts.json");
    let file: Value = serde_json::from_str(text).expect("the fixture is JSON");
    let mut problems = Vec::new();
    for name in SCENARIOS {
        let scenario =
            file["scenarios"].as_array().expect("a list").iter().find(|s| s["name"] == name).expect(name);
        for shards in [1, 2, 4] {
            problems.extend(play(name, scenario, shards));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

const FILES: [(&str, &str); 5] = [
    (
        "server_authoratative_fsm.json",
        include_str!("../../../fixtures/gateway/config/server_authoratative_fsm.json"),
    ),
    (
        "client_authoratative_fsm.json",
        include_str!("../../../fixtures/gateway/config/client_authoratative_fsm.json"),
    ),
    (
        "channel_settings_hifi.json",
        include_str!("../../../fixtures/gateway/config/channel_settings_hifi.json"),
    ),
    ("spatial_static_4x1.json", include_str!("../../../fixtures/gateway/config/spatial_static_4x1.json")),
    ("channel_settings_tps.json", include_str!("../../../fixtures/gateway/config/channel_settings_tps.json")),
];

fn config(settings: &Value) -> Config {
    let read = |key: &str| {
        let name = settings[key].as_str().expect("a file name");
        FILES.iter().find(|(file, _)| *file == name).expect("a stock file").1
    };
    Config {
        development: settings["devMode"] == true,
        server_state_machine: Arc::new(StateMachine::parse(read("serverStateMachine")).expect("loads")),
        client_state_machine: Arc::new(StateMachine::parse(read("clientStateMachine")).expect("loads")),
        channel_settings: ChannelSettings::parse(read("channelSettings")).expect("loads"),
        spatial: Spatial {
            grid: settings["spatialController"]
                .as_str()
                .map(|_| parse_controller(read("spatialController")).expect("loads")),
            // The recorded type does not expose its position to GLOBAL (appendix C).
            place_entities: false,
            coverage: Coverage::Sampled,
            ..Spatial::default()
        },
        recovery: Recovery {
            servers: settings["serverRecoverable"] == true,
            server_timeout: settings["recoverTimeoutMs"]
                .as_u64()
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis),
            ..Config::reference().recovery
        },
        ..Config::reference()
    }
}

/// Channel ids of the recording and ours.
#[derive(Default)]
struct Ids(BTreeMap<u32, u32>);

impl Ids {
    fn ours(&self, recorded: u32) -> u32 {
        self.0.get(&recorded).copied().unwrap_or(recorded)
    }
}

fn play(name: &str, scenario: &Value, shards: u16) -> Vec<String> {
    let types: Vec<&str> =
        scenario["dataTypes"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let packages: Vec<&str> =
        types.iter().filter_map(|name| name.split_once("pb.")).map(|(package, _)| package).collect();
    let schemas = &*schemas_of(&packages);
    let mut world = World::with_schemas(config(&scenario["settings"]), shards, schemas_of(&packages));
    let mut peers: BTreeMap<String, Id> = BTreeMap::new();
    let mut ids = Ids::default();
    let mut problems = Vec::new();
    for (index, step) in scenario["steps"].as_array().expect("a list").iter().enumerate() {
        if let Some(connect) = step["connect"].as_object() {
            for (peer, kind) in connect {
                let kind = if kind == "server" { ConnKind::Server } else { ConnKind::Client };
                peers.insert(peer.clone(), world.connect(kind));
            }
        }
        if let Some(peer) = step["close"].as_str() {
            world.close(peers[peer]);
        }
        if let Some(raw) = step["sendRawHex"].as_str() {
            world.send_raw(peers[step["from"].as_str().expect("a peer")], &hex(raw));
        }
        if let Some(messages) = step["send"].as_array() {
            let messages: Vec<Send> = messages.iter().map(|message| outgoing(message, &ids)).collect();
            let from = peers[step["from"].as_str().expect("a peer")];
            match (step["compression"].as_u64(), step["note"].as_str()) {
                (Some(1), _) | (_, Some("(compression byte 1)")) => world.send_snappy(from, messages),
                (Some(7), _) | (_, Some("(compression byte 7)")) => {
                    let mut frame = common::frame_of(messages, throng_wire::frame::Compression::None);
                    frame[4] = 7;
                    world.send_raw(from, &frame);
                }
                _ => world.send(from, messages),
            }
        }
        // A step without a wait is compared together with the next one.
        let Some(wait_ms) = step["waitMs"].as_u64() else { continue };
        world.run_ms(wait_ms);

        let mut expected: BTreeMap<String, Vec<Received>> = BTreeMap::new();
        if let Some(expect) = step["expect"].as_object() {
            for (peer, messages) in expect {
                let messages = messages.as_array().expect("a list").iter().map(incoming).collect();
                expected.insert(peer.clone(), messages);
            }
        }
        let mut must_close: Vec<&str> =
            step["closedByPeer"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (scenario, at, change, _) in DEVIATIONS {
            if *scenario == name && *at == index {
                apply(change, &mut expected, &mut must_close);
            }
        }
        for (peer, &id) in &peers {
            let got = world.take(id);
            let want = expected.remove(peer).unwrap_or_default();
            learn(&want, &got, &mut ids);
            let race = DEVIATIONS.iter().any(|(scenario, at, change, _)| {
                *scenario == name
                    && *at == index
                    && matches!(change, Change::AnyOrder { peer: other } if other == peer)
            });
            let same = |got: &Received, want: &Received| equivalent(got, want, &ids, schemas);
            let same = got.len() == want.len()
                && if race { same_set(&got, &want, same) } else { same_order(&got, &want, same) };
            if !same {
                problems.push(format!(
                    "{name} on {shards} shards, step {index}, {peer}:\n   got  {}\n   want {}",
                    show(&got),
                    show(&want),
                ));
            }
        }
        for peer in must_close {
            if world.closed(peers[peer]).is_none() {
                problems.push(format!("{name} on {shards} shards, step {index}: {peer} is not closed"));
            }
        }
    }
    problems
}

fn apply<'a>(change: &'a Change, expected: &mut BTreeMap<String, Vec<Received>>, closed: &mut Vec<&'a str>) {
    match change {
        Change::Type { peer, from, to } => {
            let list = expected.get_mut(*peer).expect("the peer gets something");
            let message = list.iter_mut().find(|message| message.msg_type == *from).expect("the message");
            message.msg_type = *to;
        }
        Change::Added { peer, message } => {
            expected.entry((*peer).to_owned()).or_default().push(message());
        }
        Change::Dropped { peer, msg_type } => {
            let list = expected.get_mut(*peer).expect("the peer gets something");
            let at = list.iter().position(|message| message.msg_type == *msg_type).expect("the message");
            list.remove(at);
        }
        Change::AnyOrder { .. } => {}
        Change::Ready { servers } => {
            for (peer, server_index) in *servers {
                let list = expected.get_mut(*peer).expect("the peer gets something");
                let message = list.iter_mut().find(|message| message.msg_type == 18).expect("READY");
                let server_count = message.decode::<SpatialChannelsReadyMessage>().server_count;
                message.body =
                    SpatialChannelsReadyMessage { server_index: *server_index, server_count }.encode_to_vec();
            }
        }
        Change::Access { peer, access } => {
            let list = expected.get_mut(*peer).expect("the peer gets something");
            let message = list.iter_mut().find(|message| message.msg_type == 6).expect("a subscription");
            let mut result: SubscribedToChannelResultMessage = message.decode();
            result.sub_options.as_mut().expect("options").data_access = Some(*access);
            message.body = result.encode_to_vec();
        }
        Change::Stub { peer, msg_type, stub } => {
            let list = expected.get_mut(*peer).expect("the peer gets something");
            let message = list.iter_mut().find(|message| message.msg_type == *msg_type).expect("the message");
            message.stub = *stub;
        }
        Change::Cause { conn } => {
            for message in expected.values_mut().flatten().filter(|message| message.msg_type == 12) {
                let handover = ChannelDataHandoverMessage { context_conn_id: *conn, ..message.decode() };
                message.body = handover.encode_to_vec();
            }
        }
        Change::Closed { peer } => closed.push(peer),
    }
}

/// Equal in order within each channel; messages of different channels have no mutual order (spec 1).
fn same_order(got: &[Received], want: &[Received], same: impl Fn(&Received, &Received) -> bool) -> bool {
    let mut rest: Vec<&Received> = got.iter().collect();
    want.iter().all(|want| {
        // The first one that is not of an earlier-compared channel must be it.
        let Some(at) = rest.iter().position(|got| same(got, want)) else { return false };
        let channel = rest[at].channel;
        let first = rest.iter().position(|got| got.channel == channel);
        rest.remove(at);
        first == Some(at)
    })
}

fn same_set(got: &[Received], want: &[Received], same: impl Fn(&Received, &Received) -> bool) -> bool {
    let mut rest: Vec<&Received> = got.iter().collect();
    want.iter().all(|want| rest.iter().position(|got| same(got, want)).map(|at| rest.remove(at)).is_some())
}

/// Learns from creation results which of our channels a recorded id means.
fn learn(want: &[Received], got: &[Received], ids: &mut Ids) {
    for (want, got) in want.iter().zip(got) {
        if want.msg_type == got.msg_type
            && matches!(want.msg_type, 3 | 10)
            && let Ok(want) = CreateChannelResultMessage::decode(&want.body[..])
            && let Ok(got) = CreateChannelResultMessage::decode(&got.body[..])
        {
            ids.0.insert(want.channel_id, got.channel_id);
        }
    }
}

fn equivalent(got: &Received, want: &Received, ids: &Ids, schemas: &Schemas) -> bool {
    let heads = got.channel == ids.ours(want.channel)
        && (got.broadcast, got.stub, got.msg_type) == (want.broadcast, want.stub, want.msg_type);
    heads
        && match got.msg_type {
            1 => got.decode::<AuthResultMessage>() == want.decode::<AuthResultMessage>(),
            3 | 15 => {
                let mut want: CreateChannelResultMessage = want.decode();
                want.channel_id = ids.ours(want.channel_id);
                got.decode::<CreateChannelResultMessage>() == want
            }
            4 => {
                let want: RemoveChannelMessage = want.decode();
                got.decode::<RemoveChannelMessage>().channel_id == ids.ours(want.channel_id)
            }
            5 => {
                let (mut got, mut want): (ListChannelResultMessage, ListChannelResultMessage) =
                    (got.decode(), want.decode());
                want.channels.iter_mut().for_each(|info| info.channel_id = ids.ours(info.channel_id));
                want.channels.sort_by_key(|info| info.channel_id);
                got.channels.sort_by_key(|info| info.channel_id);
                got == want
            }
            6 => got.decode::<SubscribedToChannelResultMessage>() == want.decode(),
            7 => got.decode::<UnsubscribedFromChannelResultMessage>() == want.decode(),
            // The answer to the creation of an ordinary channel with this type looks like that of type 3.
            10 if CreateChannelResultMessage::decode(&want.body[..]).is_ok() => {
                let mut want: CreateChannelResultMessage = want.decode();
                want.channel_id = ids.ours(want.channel_id);
                got.decode::<CreateChannelResultMessage>() == want
            }
            10 => {
                got.decode::<CreateSpatialChannelsResultMessage>()
                    == want.decode::<CreateSpatialChannelsResultMessage>()
            }
            11 => {
                got.decode::<QuerySpatialChannelResultMessage>()
                    == want.decode::<QuerySpatialChannelResultMessage>()
            }
            12 => {
                let (mut got, mut want): (ChannelDataHandoverMessage, ChannelDataHandoverMessage) =
                    (got.decode(), want.decode());
                same_entities(got.data.take(), want.data.take(), schemas) && got == want
            }
            13 => got.decode::<SpatialRegionsUpdateMessage>() == want.decode::<SpatialRegionsUpdateMessage>(),
            18 => got.decode::<SpatialChannelsReadyMessage>() == want.decode::<SpatialChannelsReadyMessage>(),
            8 => {
                let (got, want): (ChannelDataUpdateMessage, ChannelDataUpdateMessage) =
                    (got.decode(), want.decode());
                got.context_conn_id == want.context_conn_id && same_any(&got.data, &want.data, schemas)
            }
            20 => {
                let (mut got, mut want): (ChannelDataRecoveryMessage, ChannelDataRecoveryMessage) =
                    (got.decode(), want.decode());
                let same = same_any(&got.channel_data.take(), &want.channel_data.take(), schemas)
                    && same_any(&got.recovery_data.take(), &want.recovery_data.take(), schemas)
                    && got.sub_time > 0;
                want.channel_id = ids.ours(want.channel_id);
                got.sub_time = want.sub_time;
                same && got == want
            }
            100.. => got.decode::<ServerForwardMessage>() == want.decode(),
            _ => got.body == want.body,
        }
}

fn same_any(got: &Option<prost_types::Any>, want: &Option<prost_types::Any>, schemas: &Schemas) -> bool {
    let (Some(got), Some(want)) = (got, want) else { return got.is_none() && want.is_none() };
    let name = want.type_url.rsplit('/').next().expect("a name");
    let descriptor = schemas.pool().get_message_by_name(name).expect("a known type");
    let decode = |bytes: &[u8]| {
        prost_reflect::DynamicMessage::decode(descriptor.clone(), bytes).expect("a valid message")
    };
    got.type_url == want.type_url && decode(&got.value) == decode(&want.value)
}

/// Equal lists of entities, whatever the order of fields in their data.
fn same_entities(got: Option<prost_types::Any>, want: Option<prost_types::Any>, schemas: &Schemas) -> bool {
    let entities = |any: Option<prost_types::Any>| {
        let any = any.expect("data");
        assert!(any.type_url.ends_with("unrealpb.SpatialChannelData"));
        SpatialChannelData::decode(&any.value[..]).expect("valid").entities
    };
    let (got, want) = (entities(got), entities(want));
    got.len() == want.len()
        && got.iter().all(|(id, got)| {
            want.get(id).is_some_and(|want| {
                (&got.obj_ref, got.removed) == (&want.obj_ref, want.removed)
                    && same_any(&got.entity_data, &want.entity_data, schemas)
            })
        })
}

fn outgoing(message: &Value, ids: &Ids) -> Send {
    let Received { channel, broadcast, stub, msg_type, mut body } = incoming(message);
    if msg_type == 4 {
        let request = RemoveChannelMessage::decode(&body[..]).expect("valid");
        body = RemoveChannelMessage { channel_id: ids.ours(request.channel_id) }.encode_to_vec();
    }
    Send { channel: ids.ours(channel), broadcast, stub, msg_type, body }
}

fn incoming(message: &Value) -> Received {
    let number = |key: &str| message[key].as_u64().unwrap_or(0) as u32;
    let body = match message["bodyHex"].as_str() {
        Some(text) => hex(text),
        // Bodies with a time in them are given as JSON only.
        None if number("msgType") == 20 => recovery_data(&message["body"]),
        None => Vec::new(),
    };
    Received {
        body,
        channel: number("channelId"),
        broadcast: number("broadcast"),
        stub: number("stubId"),
        msg_type: number("msgType"),
    }
}

fn recovery_data(body: &Value) -> Vec<u8> {
    let mut body = body.clone();
    body["subTime"] = "1".into();
    let schemas = schemas_of(&["tps"]);
    let name = "channeldpb.ChannelDataRecoveryMessage";
    let descriptor = schemas.pool().get_message_by_name(name).expect("built in");
    let message = prost_reflect::DynamicMessage::deserialize(descriptor, body).expect("proto3 JSON");
    message.encode_to_vec()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

fn show(messages: &[Received]) -> String {
    let one = |message: &Received| {
        let body: String = message.body.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "[ch {} bc {} stub {} type {} {body}]",
            message.channel, message.broadcast, message.stub, message.msg_type
        )
    };
    messages.iter().map(one).collect::<Vec<_>>().join(" ")
}
