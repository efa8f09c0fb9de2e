//! Recorded sessions play through the gateway: everything arrives, in order, in the recorded
//! rhythm.
//!
//! The two real sessions belong to the specification (`../shared`, beside the workspace) and are
//! not part of this repository; where they are absent the tests say so and play one of our own.

#![allow(clippy::print_stdout, reason = "figures and notes of a test run")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use throng_client::replay::{Player, PlayerConfig, Recording, Report};
use throng_client::{ChannelId, ChannelType, CreateChannel, Event, Session, SessionConfig, SubscribeOptions};
use throng_gateway::data::SchemasBuilder;
use throng_gateway::{ChannelSettings, Config, ConnKind, Framing, Spatial, StateMachine, parse_controller};
use throng_sim::link::LinkProfile;
use throng_sim::{Note, PeerId, World};
use throng_stdx::Instant;
use throng_wire::channeldpb::{self as pb, MessageType};
use throng_wire::unrealpb::{ActorState, FRepMovement, FVector};

#[derive(Clone, PartialEq, prost::Message)]
struct ChatData {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<ChatMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChatMessage {
    #[prost(string, tag = "1")]
    sender: String,
    #[prost(string, tag = "3")]
    content: String,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    let path = workspace().join("fixtures").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A real session, or `None` with a word about it.
fn real(path: &str) -> Option<Recording> {
    let path = workspace().join("../shared/fixtures/gateway/recordings").join(path);
    match std::fs::read(&path) {
        Ok(bytes) => Some(Recording::parse(&bytes).expect("a good recording")),
        Err(_) => {
            println!("{} is absent: playing a recording of our own instead", path.display());
            None
        }
    }
}

fn own() -> Recording {
    let path = workspace().join("fixtures/recordings/session_1_26-01-01_00-00-00.cpr");
    Recording::parse(&std::fs::read(path).expect("it is checked in")).expect("a good recording")
}

/// Messages that the owner of GLOBAL received.
#[derive(Debug, Default)]
struct Sink {
    lines: Vec<ChatMessage>,
    /// (bodies, bytes) by user-space type.
    messages: BTreeMap<u32, (usize, usize)>,
    /// Connections that messages name.
    senders: Vec<u32>,
}

/// Plays a recording against a gateway with `shards` shards whose GLOBAL channel is owned by a
/// sink.
fn play(recording: Recording, config: PlayerConfig, shards: u16) -> (Report, Sink) {
    let file = |name: &str| text(&format!("gateway/config/{name}"));
    let gateway = Config {
        development: true,
        client_state_machine: Arc::new(
            StateMachine::parse(&file("client_authoratative_fsm.json")).expect("a stock file"),
        ),
        channel_settings: ChannelSettings::parse(&file("channel_settings_hifi.json")).expect("a stock file"),
        ..Config::reference()
    };
    let schemas = SchemasBuilder::new().add_proto("chat.proto", &text("proto/chat.proto"));
    let schemas = Arc::new(schemas.build().expect("the schema compiles"));
    let mut world = World::new(gateway, schemas, shards, 1);
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let connect =
        |world: &mut World, kind| world.connect(kind, Framing::Stream, localhost, LinkProfile::local());

    let mut owner = Session::new(SessionConfig::server("sink", ""));
    let owner_peer = connect(&mut world, ConnKind::Server);
    let mut player = Player::new(recording, config);
    let mut player_peer: Option<PeerId> = None;
    let mut sink = Sink::default();
    let end = Instant::from_millis(120_000);
    while !player.is_finished() {
        match world.step(end).expect("the player ends by itself") {
            Note::Opened(peer) if peer == owner_peer => owner.handle_connected(world.now()),
            Note::Opened(_) => player.handle_connected(world.now()),
            Note::Bytes(peer, bytes) if peer == owner_peer => owner.handle_bytes(world.now(), &bytes),
            Note::Bytes(_, bytes) => player.handle_bytes(world.now(), &bytes),
            Note::Closed(peer) if Some(peer) == player_peer => player.handle_closed(world.now()),
            Note::Wake(_) => player.handle_timeout(world.now()),
            other => assert!(!matches!(other, Note::Closed(_) | Note::Refused(_)), "{other:?}"),
        }
        while let Some(event) = owner.poll_event() {
            match event {
                Event::Authenticated { .. } => {
                    let create = CreateChannel::new(ChannelType::GLOBAL)
                        .data("chatpb.ChatChannelData", vec![])
                        .options(SubscribeOptions::read());
                    owner.create_channel(world.now(), &create).expect("connected");
                }
                Event::ChannelCreated { channel: ChannelId(0), .. } => {
                    player_peer = Some(connect(&mut world, ConnKind::Client));
                }
                Event::Update { value, .. } => {
                    sink.lines.extend(ChatData::decode(value).expect("chat").messages);
                }
                Event::Message { msg_type, client, payload, .. } => {
                    let (count, bytes) = sink.messages.entry(msg_type).or_default();
                    *count += 1;
                    *bytes += payload.len();
                    sink.senders.push(client.0);
                }
                _ => {}
            }
        }
        let mut bytes = Vec::new();
        while owner.poll_transmit(world.now(), &mut bytes).is_some() {}
        assert_eq!(world.send(owner_peer, &bytes), bytes.len());
        let mut bytes = Vec::new();
        while player.poll_transmit(world.now(), &mut bytes).is_some() {}
        if let Some(peer) = player_peer {
            assert_eq!(world.send(peer, &bytes), bytes.len());
        }
        if let Some(at) = player.next_timeout() {
            world.wake(at, 0);
        }
    }
    (player.report().clone(), sink)
}

/// Plays at several speeds and with several shards, and checks the rhythm.
fn play_all(recording: &Recording, config: &PlayerConfig, check: impl Fn(&Report, &Sink)) {
    for (speed, shards) in [(1.0, 1), (1.0, 4), (10.0, 2), (f64::INFINITY, 1)] {
        let config = PlayerConfig { speed, ..config.clone() };
        let (report, sink) = play(recording.clone(), config, shards);
        assert!(report.is_clean(), "speed {speed}, {shards} shards:\n{report}");
        check(&report, &sink);
        let wanted = report.recorded.div_f64(speed.min(1e9));
        let late = report.played.saturating_sub(wanted);
        // Waiting for the two answers takes the way there and back, and is caught up.
        assert!(late < Duration::from_millis(5), "speed {speed}: {late:?} late\n{report}");
    }
}

#[test]
fn the_web_chat_session_plays() {
    let config = PlayerConfig { grant_write: true, ..PlayerConfig::default() };
    let Some(recording) = real("webchat/session_1_22-09-07_14-41-02.cpr") else {
        return our_own_session_plays_with(&config);
    };
    assert_eq!(recording.packet_count(), 41);
    assert_eq!(recording.duration().as_secs_f64().mul_add(1e3, 0.5) as u64, 19_276, "milliseconds, rounded");
    assert_eq!(recording.messages_by_type(), [(1, 1), (6, 1), (8, 39)].into());
    play_all(&recording, &config, |report, sink| {
        assert_eq!(sink.lines.len(), 39, "every line arrives once");
        assert!(sink.lines.iter().all(|line| line.sender == "User1"));
        assert_eq!((report.types[&1].answered, report.types[&6].answered), (1, 1));
    });

    // As recorded, without the access that newer gateways ask for, its updates are refused.
    let (report, sink) = play(recording, PlayerConfig::default(), 1);
    assert_eq!((report.types[&8].sent, sink.lines.len()), (39, 0));
}

#[test]
fn the_third_person_session_plays() {
    let config = PlayerConfig::default();
    let Some(recording) = real("tps/session_2_22-09-16_16-44-04.cpr") else {
        return our_own_session_plays_with(&config);
    };
    assert_eq!(recording.packet_count(), 2593);
    assert_eq!(recording.duration().as_secs_f64().mul_add(1e3, 0.5) as u64, 33_684, "milliseconds, rounded");
    assert_eq!(recording.messages_by_type(), [(1, 1), (6, 1), (100, 2594)].into());
    play_all(&recording, &config, |report, sink| {
        assert_eq!(sink.messages, [(100, (2594, 99_062))].into());
        let conn = report.conn.expect("admitted").0;
        assert!(sink.senders.iter().all(|&sender| sender == conn));
    });
}

fn our_own_session_plays_with(config: &PlayerConfig) {
    let config = PlayerConfig { grant_write: true, ..config.clone() };
    play_all(&own(), &config, |report, sink| {
        assert_eq!(sink.lines.len(), 20);
        assert_eq!(sink.lines[19].content, "line t");
        assert_eq!(sink.messages, [(100, (1, 4))].into());
        assert_eq!(report.packets_sent, 22);
    });
}

#[test]
fn our_own_session_plays() {
    our_own_session_plays_with(&PlayerConfig::default());
}

/// The character of the recorded player, and the cell that it begins in.
const CHARACTER: u32 = 0x8_0000 + 1;
const CELL: u32 = 0x1_0000 + 1;
/// Between two crossings of the border.
const WALK: Duration = Duration::from_millis(50);

#[derive(Clone, PartialEq, prost::Message)]
struct Character {
    #[prost(message, optional, tag = "2")]
    actor: Option<ActorState>,
}

/// A character at this distance east of the border between the two servers.
fn character(x: f32) -> Vec<u8> {
    let location = Some(FVector { x: Some(x), y: Some(0.0), z: Some(0.0) });
    let movement = FRepMovement { location, ..FRepMovement::default() };
    Character { actor: Some(ActorState { replicated_movement: Some(movement), ..ActorState::default() }) }
        .encode_to_vec()
}

/// Messages that the two servers of a world received of a session whose character walks to and fro
/// between them.
struct Walk {
    report: Report,
    /// (messages, bytes) by server.
    got: [(usize, usize); 2],
    crossings: u64,
    handovers: u64,
}

fn play_in_a_world(recording: Recording, speed: f64, shards: u16) -> Walk {
    let file = |name: &str| text(&format!("gateway/config/{name}"));
    let grid = parse_controller(&file("spatial_static_4x1.json")).expect("a stock file");
    let gateway = Config {
        development: true,
        client_state_machine: Arc::new(
            StateMachine::parse(&file("client_authoratative_fsm.json")).expect("a stock file"),
        ),
        channel_settings: ChannelSettings::parse(&file("channel_settings_tps.json")).expect("a stock file"),
        spatial: Spatial { grid: Some(grid), ..Spatial::default() },
        ..Config::reference()
    };
    let schemas = SchemasBuilder::new().add_proto("tps.proto", &text("proto/tps.proto"));
    let mut world = World::new(gateway, Arc::new(schemas.build().expect("it compiles")), shards, 1);
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let connect =
        |world: &mut World, kind| world.connect(kind, Framing::Stream, localhost, LinkProfile::local());

    let mut servers = ["west", "east"].map(|name| Session::new(SessionConfig::server(name, "")));
    let mut peers = vec![connect(&mut world, ConnKind::Server)];
    let config = PlayerConfig { speed, channel: Some(CHARACTER), ..PlayerConfig::default() };
    let mut player = Player::new(recording, config);
    let mut player_peer: Option<PeerId> = None;
    let mut walk = Walk { report: player.report().clone(), got: [(0, 0); 2], crossings: 0, handovers: 0 };
    while !player.is_finished() {
        let note = world.step(Instant::from_millis(120_000)).expect("the player ends by itself");
        let now = world.now();
        let server = |peer: PeerId| peers.iter().position(|known| *known == peer);
        match note {
            Note::Opened(peer) => match server(peer) {
                Some(index) => servers[index].handle_connected(now),
                None => player.handle_connected(now),
            },
            Note::Bytes(peer, bytes) => match server(peer) {
                Some(index) => servers[index].handle_bytes(now, &bytes),
                None => player.handle_bytes(now, &bytes),
            },
            Note::Wake(0) => player.handle_timeout(now),
            Note::Wake(_) => {
                // The server that has the character takes it over the border.
                let here = (walk.crossings % 2) as usize;
                let to = character([100.0, -100.0][here]);
                servers[here]
                    .update(ChannelId(CHARACTER), "tpspb.EntityChannelData", &to)
                    .expect("connected");
                walk.crossings += 1;
                world.wake(now + WALK, 1);
            }
            Note::Closed(peer) if Some(peer) == player_peer => player.handle_closed(now),
            other => panic!("{other:?}"),
        }
        for (index, server) in servers.iter_mut().enumerate() {
            while let Some(event) = server.poll_event() {
                match event {
                    Event::Authenticated { .. } => {
                        let ask = pb::CreateChannelMessage { channel_type: 4, ..Default::default() };
                        let kind = MessageType::CreateSpatialChannel as u32;
                        server
                            .request_raw(now, ChannelId::GLOBAL, kind, &ask.encode_to_vec())
                            .expect("connected");
                    }
                    // The slots are taken in order.
                    Event::Other { msg_type: 10, .. } if index == 0 => {
                        peers.push(connect(&mut world, ConnKind::Server));
                    }
                    Event::Other { msg_type: 10, .. } => {}
                    Event::Other { msg_type: 18, .. } if index == 0 => {
                        let data = prost_types::Any {
                            type_url: "type.googleapis.com/tpspb.EntityChannelData".into(),
                            value: character(-100.0),
                        };
                        let create = pb::CreateEntityChannelMessage {
                            entity_id: CHARACTER,
                            data: Some(data),
                            ..Default::default()
                        };
                        let kind = MessageType::CreateEntityChannel as u32;
                        server
                            .request_raw(now, ChannelId(CELL), kind, &create.encode_to_vec())
                            .expect("connected");
                        player_peer = Some(connect(&mut world, ConnKind::Client));
                        world.wake(now + WALK, 1);
                    }
                    Event::Message { channel, msg_type, payload, .. } => {
                        assert_eq!((channel, msg_type), (ChannelId(CHARACTER), 100));
                        walk.got[index].0 += 1;
                        walk.got[index].1 += payload.len();
                    }
                    _ => {}
                }
            }
        }
        for (server, peer) in servers.iter_mut().zip(&peers) {
            let mut bytes = Vec::new();
            while server.poll_transmit(now, &mut bytes).is_some() {}
            assert_eq!(world.send(*peer, &bytes), bytes.len());
        }
        if let Some(peer) = player_peer {
            let mut bytes = Vec::new();
            while player.poll_transmit(now, &mut bytes).is_some() {}
            assert_eq!(world.send(peer, &bytes), bytes.len());
        }
        if let Some(at) = player.next_timeout() {
            world.wake(at, 0);
        }
    }
    walk.report = player.report().clone();
    walk.handovers = world.shards().map(|shard| shard.stats().handovers).sum();
    walk
}

/// The recorded player of an Unreal game, whose character changes servers twenty times a second:
/// every message reaches the server that has the character.
#[test]
fn the_third_person_session_plays_across_two_servers() {
    let (recording, messages, bytes) = match real("tps/session_2_22-09-16_16-44-04.cpr") {
        Some(recording) => (recording, 2594, 99_062),
        None => (own(), 1, 4),
    };
    for (speed, shards) in [(1.0, 1), (1.0, 4), (10.0, 2)] {
        let Walk { report, got: [west, east], crossings, handovers } =
            play_in_a_world(recording.clone(), speed, shards);
        if messages > 1 {
            assert!(report.is_clean(), "speed {speed}, {shards} shards:\n{report}");
            assert!(west.0 > messages / 4 && east.0 > messages / 4, "{west:?} {east:?}");
        }
        assert_eq!((west.0 + east.0, west.1 + east.1), (messages, bytes));
        assert!(crossings > 10 && (handovers == crossings || handovers + 1 == crossings), "{handovers}");
    }
}
