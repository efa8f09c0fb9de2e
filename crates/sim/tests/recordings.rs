//! Recorded sessions play through the gateway: everything arrives, in order, in the recorded rhythm.
//!
//! The two real sessions belong to the specification (`../shared`, beside the workspace) and are not part of this
//! repository; where they are absent the tests say so and play one of our own.

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
use throng_gateway::{ChannelSettings, Config, ConnKind, Framing, StateMachine};
use throng_sim::link::LinkProfile;
use throng_sim::{Note, PeerId, World};
use throng_stdx::Instant;

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

/// What the owner of GLOBAL saw.
#[derive(Debug, Default)]
struct Sink {
    lines: Vec<ChatMessage>,
    /// (bodies, bytes) by user-space type.
    messages: BTreeMap<u32, (usize, usize)>,
    /// Connections that messages name.
    senders: Vec<u32>,
}

/// Plays a recording against a gateway with `shards` shards whose GLOBAL channel is owned by a sink.
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
