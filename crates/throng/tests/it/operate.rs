//! Operations on a running gateway: missing updates of a client, busy connections, the audit log.

use crate::process;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use process::{Process, up};
use serde_json::Value;
use throng_client::{ChannelId, ChannelType, Client, CreateChannel, Event, SessionConfig, SubscribeOptions};

/// Far beyond what any step needs.
const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "a-token-of-the-operator";

fn throng(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throng")).args(arguments).stdin(Stdio::null()).output().expect("it runs")
}

/// A gateway with a token for its admin listener.
struct Gateway {
    _process: Process,
    players: String,
    servers: String,
    admin: String,
    folder: tempfile::TempDir,
}

impl Gateway {
    fn start(arguments: &[&str]) -> Gateway {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(
            folder.path().join("tokens"),
            format!("# one a line\nanother-token-of-the-operator\n{TOKEN}\n"),
        )
        .expect("written");
        std::fs::write(folder.path().join("token"), format!("{TOKEN}\n")).expect("written");
        let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/proto/chat.proto");
        let mut command = up(folder.path(), "gateway", "data");
        command
            .args(["--dev", "--gateway.servers.addr", "127.0.0.1:0", "--gateway.clients.addr", "127.0.0.1:0"])
            .args(["--http.tokens_file", "tokens", "--server.shards", "2", "--schema"])
            .arg(schema)
            .args(arguments);
        let (process, said) = Process::ready(&mut command);
        let [servers, players, admin] = ["game servers", "players", "admin"].map(|name| {
            let line = said.iter().find(|line| line.trim_start().starts_with(name));
            let line = line.unwrap_or_else(|| panic!("no {name}"));
            line.split_ascii_whitespace().find(|word| word.contains("://")).expect("an address").to_owned()
        });
        Gateway { _process: process, players, servers, admin, folder }
    }

    fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// Runs a command that asks this gateway.
    fn ask(&self, arguments: &[&str]) -> Output {
        let file = self.token_file().display().to_string();
        throng(&[arguments, &["--http", &self.admin, "--token-file", &file]].concat())
    }

    /// `throng why` about a connection and a channel: exit code and answer.
    fn why(&self, conn: u32, channel: u32) -> (Option<i32>, Value) {
        let [conn, channel] = [conn, channel].map(|id| id.to_string());
        let output = self.ask(&["why", "--conn", &conn, "--channel", &channel, "--json"]);
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    fn request(&self, method: &str, path: &str, body: &str) -> u16 {
        let addr = self.admin.trim_start_matches("http://");
        let mut stream = TcpStream::connect(addr).expect("it listens");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }
}

/// True if a step of an answer lets an update through.
fn passes(answer: &Value, step: &str) -> Option<bool> {
    let steps = answer["steps"].as_array()?;
    steps.iter().find(|each| each["step"] == step)?["passes"].as_bool()
}

#[test]
fn why_a_client_gets_no_update_is_told_at_every_step_of_its_way() {
    let gateway = Gateway::start(&[]);
    tokio::runtime::Runtime::new().expect("threads").block_on(follow_an_update(&gateway));
}

async fn follow_an_update(gateway: &Gateway) {
    let connect = |address: &str, config| Client::connect(address.parse().expect("an address"), config);
    let (server, _server_events) =
        connect(&gateway.servers, SessionConfig::server("server", "")).await.expect("a server");
    let data = b"\x0A\x00".to_vec();
    let create = CreateChannel::new(ChannelType::SUBWORLD).data("chatpb.ChatChannelData", data);
    let channel = server.create_channel(create).await.expect("created").channel;
    let (client, mut events) =
        connect(&gateway.players, SessionConfig::client("player", "")).await.expect("a player");
    let conn = client.conn();
    let why = || gateway.why(conn.0, channel.0);

    let (code, answer) = why();
    assert_eq!((code, passes(&answer, "subscription")), (Some(1), Some(false)), "{answer}");
    assert!(answer["verdict"].as_str().is_some_and(|verdict| verdict.contains("not subscribed")), "{answer}");

    // A minute to the first state: nothing of it is late here.
    let slow = SubscribeOptions::read().every(Duration::from_secs(60));
    server.subscribe_other(channel, Some(conn), slow).await.expect("subscribed");
    let (code, answer) = why();
    assert_eq!(
        (code, passes(&answer, "subscription"), passes(&answer, "fan-out")),
        (Some(0), Some(true), Some(true)),
        "what is due within its window is on its way: {answer}"
    );
    assert!(
        answer["verdict"].as_str().is_some_and(|verdict| verdict.contains("; the next fan-out is in ")),
        "{answer}"
    );
    // Up to the channel's next tick after the minute.
    let due = answer["due_in_ms"].as_i64().expect("a time");
    assert!((1..=60_100).contains(&due) && answer["subscription"]["interval_ms"] == 60_000, "{answer}");
    assert_eq!(answer["queue"]["dropped_updates"], 0, "{answer}");

    server.unsubscribe(channel, Some(conn)).await.expect("it was subscribed");
    let fast = SubscribeOptions::read().every(Duration::from_millis(20));
    server.subscribe_other(channel, Some(conn), fast).await.expect("subscribed");
    while !matches!(events.next().await.expect("it lasts"), Event::Update { .. }) {}
    let (code, answer) = why();
    assert_eq!(code, Some(0), "{answer}");
    assert!(answer["next_in_ms"].as_i64().is_some_and(|next| next <= 40), "{answer}");

    let (code, answer) = gateway.why(conn.0, 4_000_000);
    assert_eq!((code, passes(&answer, "channel")), (Some(1), Some(false)), "{answer}");
    let text = gateway.ask(&["top", "--once", "--interval", "10ms"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("players") && text.contains("client") && text.contains("limits"), "{text}");

    client.close().await;
    while events.next().await.is_some() {}
    let until = Instant::now() + PATIENCE;
    loop {
        // The gateway hears of it when it reads.
        let (code, answer) = why();
        if answer["closed"].is_object() {
            assert_eq!((code, &answer["closed"]["reason"]), (Some(1), &"left".into()), "{answer}");
            break;
        }
        assert!(Instant::now() < until, "{answer}");
    }
    assert_eq!(gateway.why(4_000_000, channel.0).0, Some(2), "nobody ever had that id");
    let without = throng(&["why", "--conn", "1", "--channel", "0", "--http", &gateway.admin]);
    let complaint = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(2) && complaint.contains("--token-file"), "{complaint}");
}

#[test]
fn entities_without_a_position_are_reported_by_why_and_doctor() {
    let gateway = Gateway::start(&["--gateway.spatial.controller", "4x1"]);
    tokio::runtime::Runtime::new().expect("threads").block_on(misplace_an_entity(&gateway));
}

async fn misplace_an_entity(gateway: &Gateway) {
    const CELL: ChannelId = ChannelId(65_536);
    const ENTITY: u32 = 524_289;
    let doctor = || {
        let admin = gateway.admin.trim_start_matches("http://");
        let tokens = gateway.folder.path().join("tokens").display().to_string();
        let output = throng(&["doctor", "--json", "--http", admin, "--http.tokens_file", &tokens]);
        let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rows = rows.as_array().expect("a list").iter();
        rows.filter(|row| row["subject"] == "positions").cloned().collect::<Vec<_>>()
    };
    assert!(doctor().iter().all(|row| row["severity"] == "ok"), "{:?}", doctor());
    let address = gateway.servers.parse().expect("an address");
    let (server, _events) =
        Client::connect(address, SessionConfig::server("server", "")).await.expect("a server");
    let request = |channel: ChannelId, kind: u32, body: &'static [u8]| {
        server.submit(move |session, now| session.request_raw(now, channel, kind, body))
    };
    // CREATE_CHANNEL of type SPATIAL, then CREATE_ENTITY_CHANNEL with data that has no position.
    request(ChannelId(0), 3, b"\x08\x04").await.expect("sent");
    let entity = b"\x08\x81\x80\x20\x22\x2c\x0a\x2atype.googleapis.com/chatpb.ChatChannelData";
    request(CELL, 15, entity).await.expect("sent");
    let until = Instant::now() + PATIENCE;
    let answer = loop {
        let (_, answer) = gateway.why(server.conn().0, ENTITY);
        if answer["sight"].is_object() {
            break answer;
        }
        assert!(Instant::now() < until, "{answer}");
    };
    assert_eq!(answer["sight"]["without_position"], true, "{answer}");
    let steps = answer["steps"].as_array().expect("steps");
    let place = steps.iter().find(|step| step["step"] == "interest").expect("a place");
    assert!(place["what"].as_str().is_some_and(|what| what.contains("no position")), "{answer}");
    let found = loop {
        let found = doctor();
        if found.iter().any(|row| row["severity"] == "poor") {
            break found;
        }
        assert!(Instant::now() < until, "{found:?}");
    };
    let text = format!("{found:?}");
    assert!(text.contains("chatpb.ChatChannelData") && text.contains("gateway.spatial.positions"), "{text}");
}

#[test]
fn what_changes_something_is_a_line_of_the_audit_log() {
    let gateway = Gateway::start(&[]);
    assert_eq!(gateway.request("POST", "/api/v1/capture", r#"{"connection":77}"#), 404);
    assert_eq!(gateway.request("DELETE", "/api/v1/capture", ""), 200);
    let text = std::fs::read_to_string(gateway.folder.path().join("data/audit.jsonl")).expect("it is there");
    assert!(!text.contains(TOKEN), "{text}");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let said: Vec<_> = rows.iter().map(|row| (&row["who"], &row["what"], &row["status"])).collect();
    let wanted = [("token 2", "POST /api/v1/capture", 404), ("token 2", "DELETE /api/v1/capture", 200)]
        .map(|(who, what, status)| (Value::from(who), Value::from(what), Value::from(status)));
    let wanted: Vec<_> = wanted.iter().map(|(who, what, status)| (who, what, status)).collect();
    assert_eq!(said, wanted, "{text}");
    assert_eq!(rows[0]["parameters"]["connection"], 77);
    assert!(rows[0]["time"].as_str().is_some_and(|time| time.ends_with('Z')) && rows[0]["from"].is_string());
}
