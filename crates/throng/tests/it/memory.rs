//! Memory of a running gateway, as the system counts it.

#![allow(clippy::print_stdout, reason = "notes of a test run")]

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use prost::Message as _;
use serde_json::Value;
use throng_client::{
    ChannelType, Client, ConnId, CreateChannel, RequestError, SendError, SessionConfig, SubscribeOptions,
};
use throng_wire::{FrameWriter, MessagePack, channeldpb as pb};

use crate::process::{Process, fetch, up};

/// Far beyond what any step needs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Five seconds on a quiet machine. The allocator by itself takes a minute.
const RETURN_TIME: Duration = Duration::from_secs(40);
const MIB: usize = 1 << 20;
const BOUND: usize = 64 * MIB;
const MESSAGE_BYTES: usize = 60_000;

fn resident_bytes(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a figure");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

/// The one client of a gateway.
fn client(admin: &str) -> Option<Value> {
    let listed = fetch(admin, "/api/v1/connections?search=client").expect("it answers");
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let mut rows = listed["connections"].as_array()?.iter();
    rows.find(|row| row["kind"] == "client" && row["authenticated"] == true).cloned()
}

#[test]
fn memory_of_a_slow_reader_is_bounded_and_returned_to_the_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = up(folder.path(), "gateway", "data");
    command.args(["--dev", "--gateway.servers.addr", "127.0.0.1:0", "--gateway.clients.addr", "127.0.0.1:0"]);
    command.args(["--gateway.clients.transport", "tcp", "--server.shards", "2"]);
    command.args(["--gateway.limits.outbox_hard_bytes", &BOUND.to_string()]);
    command.args(["--gateway.limits.outbox_total_bytes", &(4 * BOUND).to_string()]);
    command.args(["--gateway.limits.stall_timeout_ms", "600000"]);
    let (process, said) = Process::ready(&mut command);
    let [servers, players, admin] = ["game servers", "players", "admin"].map(|name| {
        let line = said.iter().find(|line| line.trim_start().starts_with(name)).expect("a line");
        let address = line.split_ascii_whitespace().find(|word| word.contains("://"));
        address.expect("an address").to_owned()
    });
    let admin = admin.trim_start_matches("http://").to_owned();

    let mut stuck = TcpStream::connect(players.trim_start_matches("tcp://")).expect("it listens");
    let auth = pb::AuthMessage { player_identifier_token: "stuck".into(), ..Default::default() };
    let (mut writer, mut frame) = (FrameWriter::new(), Vec::new());
    let body = auth.encode_to_vec();
    let login = MessagePack { msg_type: pb::MessageType::Auth as u32, body: &body, ..Default::default() };
    writer.push(&login, &mut frame).expect("it fits");
    writer.flush(&mut frame);
    stuck.write_all(&frame).expect("sent");

    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let config = SessionConfig { request_timeout: PATIENCE, ..SessionConfig::server("server", "") };
        let (server, _events) =
            Client::connect(servers.parse().expect("an address"), config).await.expect("a server");
        let create = CreateChannel::new(ChannelType::SUBWORLD);
        let room = server.create_channel(create).await.expect("created").channel;
        let until = Instant::now() + PATIENCE;
        let conn = loop {
            assert!(Instant::now() < until, "the client logs in");
            if let Some(row) = client(&admin) {
                break ConnId(row["id"].as_u64().expect("an id") as u32);
            }
        };
        server.subscribe_other(room, Some(conn), SubscribeOptions::read()).await.expect("subscribed");
        let before = resident_bytes(&process);
        let started = Instant::now();
        let message = vec![7; MESSAGE_BYTES];
        let broadcast = pb::BroadcastType::AllButSender as u32;
        let send = async || loop {
            match server.forward(room, broadcast, 100, ConnId(0), message.clone()).await {
                // The gateway reads slower than this sends.
                Err(RequestError::Send(SendError::QueueFull { .. })) => {
                    assert!(started.elapsed() < PATIENCE, "the gateway reads");
                    tokio::task::yield_now().await;
                }
                sent => break sent.expect("sent"),
            }
        };
        // Up to a little below the bound.
        let queued = || client(&admin).map(|row| row["queued_bytes"].as_u64().unwrap_or(0) as usize);
        let until = Instant::now() + PATIENCE;
        let mut held = 0;
        while held < BOUND - 4 * MIB {
            assert!(Instant::now() < until, "{held} bytes wait");
            for _ in 0..20 {
                send().await;
            }
            // Behind them on the same connection: they are in the gateway, and none is on its way.
            server.list_channels(None, Vec::new()).await.expect("an answer");
            held = queued().expect("it is there");
        }
        let grown = resident_bytes(&process).saturating_sub(before);
        assert!(grown <= BOUND / 4 * 5 + 16 * MIB, "{} MiB resident for a bound of 64", grown / MIB);
        assert!(grown >= BOUND / 2, "{} MiB resident while {} wait", grown / MIB, held / MIB);
        // Over it: the client is closed, and its memory goes back.
        while client(&admin).is_some() {
            assert!(Instant::now() < until, "the client is closed");
            send().await;
        }
        let closed = Instant::now();
        loop {
            let kept = resident_bytes(&process).saturating_sub(before);
            if kept <= 16 * MIB {
                break;
            }
            assert!(closed.elapsed() < RETURN_TIME, "{} of {} MiB are kept", kept / MIB, grown / MIB);
            // A pause in which the process has something to do.
            assert!(fetch(&admin, "/health/live").is_some(), "it answers");
        }
        println!("{} MiB held, returned after {:?}", grown / MIB, closed.elapsed());
    });
}
