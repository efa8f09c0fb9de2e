//! `throng replay` plays recorded sessions against a gateway over real sockets, as fast as the
//! answers come, and says what was different.
//!
//! The two real sessions belong to the specification (`../shared`, beside the workspace) and are
//! not part of this repository; where they are absent the tests say so and play a recording of our
//! own.

#![allow(clippy::print_stdout, reason = "notes of a test run")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prost::Message as _;
use serde_json::Value;
use throng_client::{
    ChannelId, ChannelType, Client, CreateChannel, Event, Events, SessionConfig, SubscribeOptions,
};
use throng_server::config::Loader;
use throng_server::{Running, Service, start};

/// Far beyond what is needed; reached only when something is missing.
const PATIENCE: Duration = Duration::from_secs(120);

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

fn own() -> PathBuf {
    workspace().join("fixtures/recordings/session_1_26-01-01_00-00-00.cpr")
}

/// A real session, or `None` with a word about it.
fn real(path: &str) -> Option<PathBuf> {
    let path = workspace().join("../shared/fixtures/gateway/recordings").join(path);
    let found = path.is_file();
    if !found {
        println!("{} is absent: playing a recording of our own instead", path.display());
    }
    found.then_some(path)
}

/// A gateway whose GLOBAL channel belongs to a game server that keeps what it gets.
struct Stage {
    running: Running,
    runtime: tokio::runtime::Runtime,
    owner: Client,
    events: Events,
    sink: Sink,
}

#[derive(Debug, Default, PartialEq)]
struct Sink {
    /// Senders and contents of chat lines.
    lines: Vec<(String, String)>,
    /// Of user-space messages: how many, and their bytes.
    messages: (usize, usize),
    /// Connections that the messages name.
    senders: std::collections::BTreeSet<u32>,
}

impl Stage {
    fn new(transport: &str, shards: u16, state_machine: &str) -> Stage {
        let fixture = |path: &str| workspace().join("fixtures").join(path).display().to_string();
        let keys = [
            ("gateway.servers.addr", "127.0.0.1:0".to_owned()),
            ("gateway.clients.addr", "127.0.0.1:0".to_owned()),
            ("gateway.clients.transport", transport.to_owned()),
            ("gateway.clients.state_machine", state_machine.to_owned()),
            ("gateway.permissions", "channeld".to_owned()),
            ("gateway.schemas", fixture("proto/chat.proto")),
            ("server.shards", shards.to_string()),
            ("http.addr", String::new()),
        ];
        let loader =
            keys.into_iter().fold(Loader::new(), |loader, (key, value)| loader.flag("test", key, value));
        let running = start(loader.load().expect("a good configuration")).expect("a gateway");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let servers = running.address(Service::Servers).expect("a listener").to_string();
        let (owner, events) = runtime.block_on(async {
            let endpoint = servers.parse().expect("an address");
            let (owner, events) =
                Client::connect(endpoint, SessionConfig::server("sink", "")).await.expect("admitted");
            let global = CreateChannel::new(ChannelType::GLOBAL)
                .data("chatpb.ChatChannelData", Vec::new())
                .options(SubscribeOptions::read());
            assert_eq!(owner.create_channel(global).await.expect("created").channel, ChannelId(0));
            (owner, events)
        });
        Stage { running, runtime, owner, events, sink: Sink::default() }
    }

    /// Runs `throng replay` and returns its exit code and report.
    fn replay(&self, file: &Path, options: &[&str]) -> (Option<i32>, Value) {
        self.replay_within(PATIENCE, file, options)
    }

    fn replay_within(&self, answer_timeout: Duration, file: &Path, options: &[&str]) -> (Option<i32>, Value) {
        let clients = self.running.addresses().iter().find(|address| address.service == Service::Clients);
        let output = Command::new(env!("CARGO_BIN_EXE_throng"))
            .arg("replay")
            .arg(file)
            .args(["--addr", &clients.expect("a listener").to_string()])
            .args(["--speed", "max", "--settle", "0", "--json"])
            .args(["--answer-timeout", &answer_timeout.as_millis().to_string()])
            .args(options)
            .output()
            .expect("the program starts");
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code(), report)
    }

    /// Waits until the owner has everything that was sent, and checks that nothing is left over.
    fn expect(&mut self, lines: usize, messages: (usize, usize)) -> &Sink {
        let Stage { runtime, owner, events, sink, .. } = self;
        runtime.block_on(async {
            let enough = async {
                while (sink.lines.len(), sink.messages) != (lines, messages) {
                    sink.take(events.next().await.expect("the gateway stays"));
                }
                // Messages sent before this answer have arrived with it.
                owner.list_channels(None, Vec::new()).await.expect("an answer");
            };
            let in_time = tokio::time::timeout(PATIENCE, enough).await;
            while let Some(event) = events.try_next() {
                sink.take(event);
            }
            assert_eq!((sink.lines.len(), sink.messages), (lines, messages), "{in_time:?}: {sink:?}");
        });
        &self.sink
    }

    /// Waits until the gateway has counted so many requests without the access that they need.
    fn expect_refused(&self, count: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = self.running.metrics();
            let lines =
                page.lines().filter(|line| line.starts_with("throng_gateway_requests_refused_total{"));
            let refused: u64 = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
            if refused == count {
                return;
            }
            assert!(Instant::now() < deadline, "{refused} of {count} refusals:\n{page}");
            std::thread::yield_now();
        }
    }
}

impl Sink {
    fn take(&mut self, event: Event) {
        match event {
            Event::Update { value, .. } => {
                let chat = ChatData::decode(value).expect("chat");
                self.lines.extend(chat.messages.into_iter().map(|line| (line.sender, line.content)));
            }
            Event::Message { client, payload, .. } => {
                self.messages.0 += 1;
                self.messages.1 += payload.len();
                self.senders.insert(client.0);
            }
            _ => {}
        }
    }
}

/// Both transports that sessions are recorded from, and more than one shard.
const STAGES: [(&str, u16); 3] = [("tcp", 1), ("tcp", 2), ("ws", 4)];

#[test]
fn the_web_chat_session_plays() {
    let Some(file) = real("webchat/session_1_22-09-07_14-41-02.cpr") else { return our_own_session_plays() };
    for (transport, shards) in STAGES {
        let mut stage = Stage::new(transport, shards, "client_authoratative");
        let (code, report) = stage.replay(&file, &["--grant-write"]);
        assert_eq!(
            (code, &report["clean"], &report["packets_sent"]),
            (Some(0), &true.into(), &41.into()),
            "{report}"
        );
        for (msg_type, sent, answered) in [("1", 1, 1), ("6", 1, 1), ("8", 39, 0)] {
            let counts = &report["types"][msg_type];
            assert_eq!((&counts["sent"], &counts["answered"]), (&sent.into(), &answered.into()), "{report}");
        }
        let sink = stage.expect(39, (0, 0));
        assert!(sink.lines.iter().all(|(sender, _)| sender == "User1"), "{sink:?}");
    }
}

#[test]
fn as_recorded_without_the_access_that_it_needs_the_web_chat_is_refused() {
    let (file, updates, messages) = match real("webchat/session_1_22-09-07_14-41-02.cpr") {
        Some(file) => (file, 39, (0, 0)),
        None => (own(), 20, (1, 4)),
    };
    let mut stage = Stage::new("ws", 2, "client_authoratative");
    let (code, report) = stage.replay(&file, &[]);
    // The protocol does not tell the sender.
    assert_eq!((code, &report["types"]["8"]["sent"]), (Some(0), &updates.into()), "{report}");
    stage.expect_refused(updates);
    stage.expect(0, messages);
}

#[test]
fn the_third_person_session_plays() {
    let Some(file) = real("tps/session_2_22-09-16_16-44-04.cpr") else { return our_own_session_plays() };
    for (transport, shards) in STAGES {
        let mut stage = Stage::new(transport, shards, "client_authoratative");
        let (code, report) = stage.replay(&file, &[]);
        assert_eq!(
            (code, &report["clean"], &report["packets_sent"]),
            (Some(0), &true.into(), &2593.into()),
            "{report}"
        );
        assert_eq!(report["types"]["100"]["sent"], 2594, "{report}");
        let sink = stage.expect(0, (2594, 99_062));
        assert_eq!(
            sink.senders.iter().map(|id| Value::from(*id)).collect::<Vec<_>>(),
            [report["connection"].clone()]
        );
    }
}

#[test]
fn our_own_session_plays() {
    for (transport, shards) in STAGES {
        let mut stage = Stage::new(transport, shards, "client_authoratative");
        let (code, report) = stage.replay(&own(), &["--grant-write"]);
        assert_eq!((code, &report["packets_sent"]), (Some(0), &22.into()), "{report}");
        let sink = stage.expect(20, (1, 4));
        assert_eq!(sink.lines[19].1, "line t");
    }
}

#[test]
fn what_a_gateway_does_not_answer_is_reported_and_exits_1() {
    // Its players may only log in and send user-space messages.
    let mut stage = Stage::new("tcp", 1, "client_non_authoratative");
    let (code, report) = stage.replay_within(Duration::from_secs(5), &own(), &["--grant-write"]);
    assert_eq!((code, &report["clean"]), (Some(1), &false.into()), "{report}");
    assert_eq!(report["refused"], serde_json::json!([{ "packet": 1, "msg_type": 6 }]), "{report}");
    stage.expect(0, (1, 4));
}
