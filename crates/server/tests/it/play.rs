//! A game server and a player on every transport, over real sockets, with one, two and four shards.

use crate::{common, peers};

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use common::*;
use prost::Message as _;
use throng_net::enet::secure::{TokenClaims, TokenKey};
use throng_server::Service;
use throng_wire::{Forward, MessagePack, channeldpb as pb};

const UPDATE: u32 = pb::MessageType::ChannelDataUpdate as u32;
const DATA_TYPE: &str = "type.googleapis.com/test.Opaque";

/// Claims GLOBAL, lets `player` in, and plays a round: state to the player, a message back.
pub(crate) fn play(server: &mut Peer, player: &mut Peer) {
    let create = pb::CreateChannelMessage {
        channel_type: pb::ChannelType::Subworld as i32,
        metadata: format!("room of {}", player.id),
        ..Default::default()
    };
    let room: pb::CreateChannelResultMessage = server.ask(0, pb::MessageType::CreateChannel, &create);
    let channel = room.channel_id;
    assert!(channel > 0);
    let options = pb::ChannelSubscriptionOptions {
        data_access: Some(pb::ChannelDataAccess::ReadAccess as i32),
        fan_out_interval_ms: Some(10),
        ..Default::default()
    };
    let subscribe = pb::SubscribedToChannelMessage { conn_id: player.id, sub_options: Some(options) };
    let _: pb::SubscribedToChannelResultMessage =
        server.ask(channel, pb::MessageType::SubToChannel, &subscribe);
    let subscribed = player.receive(|message| {
        message.channel == channel && message.kind == pb::MessageType::SubToChannel as u32
    });
    let subscribed = pb::SubscribedToChannelResultMessage::decode(subscribed.body.as_slice()).unwrap();
    assert_eq!(subscribed.conn_id, player.id);

    // Field 1, three bytes: any message type has room for that.
    let state = vec![0x0a, 3, b'o', b'n', b'e'];
    let data = prost_types::Any { type_url: DATA_TYPE.into(), value: state.clone() };
    let update = pb::ChannelDataUpdateMessage { data: Some(data), ..Default::default() };
    let head = MessagePack { channel_id: channel, msg_type: UPDATE, ..Default::default() };
    server.send(head, &update.encode_to_vec());
    let arrived = player.receive(|message| message.channel == channel && message.kind == UPDATE);
    let arrived = pb::ChannelDataUpdateMessage::decode(arrived.body.as_slice()).unwrap();
    assert_eq!(arrived.data.unwrap().value, state);

    let head = MessagePack { channel_id: channel, msg_type: 100, ..Default::default() };
    player.send(head, b"to the owner");
    let forwarded =
        server.receive_beside(player, |message| message.channel == channel && message.kind == 100);
    let forwarded = Forward::parse(&forwarded.body).unwrap();
    assert_eq!((forwarded.client_conn_id, forwarded.payload), (player.id, &b"to the owner"[..]));
}

fn play_on(transport: &str, tls: bool) {
    play_with(transport, tls, &[]);
}

fn play_with(transport: &str, tls: bool, keys: &[(&str, &str)]) {
    for shards in ["1", "2", "4"] {
        let data = tempfile::tempdir().unwrap();
        let running = gateway(
            &[
                keys,
                &[
                    ("server.shards", shards),
                    ("server.data", data.path().to_str().unwrap()),
                    ("gateway.clients.transport", transport),
                    ("gateway.clients.tls", if tls { "true" } else { "false" }),
                    ("gateway.clients.kcp_profile", "game"),
                ],
            ]
            .concat(),
        );
        let pem = || std::fs::read(data.path().join("development-cert.pem")).unwrap();
        let dial = match (transport, tls) {
            ("tcp", false) => Dial::Tcp,
            ("tcp", true) => Dial::Tls(pem()),
            ("ws", false) => Dial::WebSocket,
            ("ws", true) => Dial::Wss(pem()),
            ("enet", _) => Dial::Enet,
            _ => Dial::Kcp,
        };
        let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
        // More players than shards, so that every shard has one.
        let mut players: Vec<Peer> = (0..5)
            .map(|index| Peer::login(clients(&running), &dial, &format!("player {index}"), ""))
            .collect();
        for player in &mut players {
            play(&mut server, player);
        }
        let (status, text) = http(&running, "/api/v1/connections");
        assert_eq!(status, 200);
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(list["total"], 6, "{text}");
        let list: serde_json::Value = serde_json::from_str(&http(&running, "/api/v1/channels").1).unwrap();
        assert_eq!(list["total"], 6, "GLOBAL and five rooms: {list}");
        let stopping = std::thread::spawn(move || running.shutdown());
        server.until_closed();
        // KCP has no way to say goodbye.
        if transport != "kcp" {
            for player in &mut players {
                player.until_closed();
            }
        }
        drop((server, players));
        assert!(stopping.join().unwrap(), "{transport}: everything was flushed in time");
    }
}

#[test]
fn tcp() {
    play_on("tcp", false);
}

#[test]
fn tcp_with_tls() {
    play_on("tcp", true);
}

#[test]
fn enet() {
    play_on("enet", false);
}

#[test]
fn enet_with_unreliable_updates() {
    play_with("enet", false, &[("gateway.clients.enet_updates", "unreliable")]);
}

#[test]
fn enet_over_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        // A machine without IPv6.
        return;
    }
    play_with("enet", false, &[("gateway.clients.addr", "[::1]:0")]);
}

#[test]
fn enet_with_tokens() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0707070707070707070707070707070707070707070707070707070707070707\n")
        .unwrap();
    let running = gateway(&[
        ("server.shards", "2"),
        ("gateway.clients.transport", "enet"),
        ("gateway.clients.enet_key_file", file.path().to_str().unwrap()),
    ]);
    let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
    for user_id in 0..3 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let addr = clients(&running);
        let claims = TokenClaims {
            user_id,
            expires_unix_s: now + 3600,
            servers: vec![addr],
            ..TokenClaims::default()
        };
        let token = TokenKey::new([7; 32]).issue(&claims, [user_id as u8; 88]).unwrap();
        let mut player = Peer::login(addr, &Dial::Sealed(Box::new(token)), &format!("player {user_id}"), "");
        play(&mut server, &mut player);
    }
    let (_, page) = http(&running, "/metrics");
    for line in ["throng_enet_gate_total{outcome=\"admitted\"} 3", "throng_enet_connects_total 3"] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
}

/// A client of Godot 3 comes as far as a peer of ENet; the rest is as without DTLS.
#[test]
fn enet_with_dtls_for_godot() {
    let mut probe = Command::new("godot3-server");
    if probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return peers::skip("godot3-server");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let made = throng_net::development_certificate(&["localhost".to_owned()], now).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("enet.crt"), folder.path().join("enet.key"));
    std::fs::write(&cert, made.cert_pem).unwrap();
    std::fs::write(&key, made.key_pem).unwrap();
    let running = gateway(&[
        ("server.shards", "2"),
        ("gateway.clients.transport", "enet"),
        ("gateway.clients.enet_dtls_cert", cert.to_str().unwrap()),
        ("gateway.clients.enet_dtls_key", key.to_str().unwrap()),
    ]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../net/tests/it/godot/dtls.gd");
    let mut godot = Command::new("godot3-server");
    godot.arg("-s").arg(script).arg("--").arg(clients(&running).port().to_string()).arg(&cert).arg("2");
    // It writes a log into the folder that it runs in.
    let output = godot.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(said, ["secure", "verified"], "{text}");
    // The acknowledgement that makes the peer may still be on its way.
    let until = Instant::now() + PATIENCE;
    let expected = ["throng_enet_dtls_total{outcome=\"completed\"} 1", "throng_enet_connects_total 1"];
    loop {
        let (_, page) = http(&running, "/metrics");
        if expected.iter().all(|line| page.lines().any(|known| known == *line)) {
            return;
        }
        assert!(Instant::now() < until, "{page}");
    }
}

/// The C library's own client plays: `peer/bridge.c` passes a player's bytes on through it.
#[test]
fn enet_with_the_c_library() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peer/bridge.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("enet-bridge");
    let mut probe = Command::new("cc");
    probe.args(["-E", "-include", "enet/enet.h", "-x", "c", "/dev/null", "-o", "/dev/null"]);
    if !probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return peers::skip("libenet-dev");
    }
    let built = Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-lenet").status();
    assert!(built.is_ok_and(|status| status.success()), "bridge.c does not compile");

    let data = tempfile::tempdir().unwrap();
    let running = gateway(&[
        ("server.shards", "2"),
        ("server.data", data.path().to_str().unwrap()),
        ("gateway.clients.transport", "enet"),
    ]);
    let port = clients(&running).port().to_string();
    let mut bridges = Vec::new();
    let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
    // More players than shards, so that every shard has one.
    for index in 0..3 {
        let mut bridge = Command::new(&program).arg(&port).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(bridge.stdout.take().unwrap()).read_line(&mut line).unwrap();
        bridges.push(bridge);
        let addr = SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap()));
        let mut player = Peer::login(addr, &Dial::Tcp, &format!("player {index}"), "");
        play(&mut server, &mut player);
    }
    // Their players have left; that is the end of each.
    for mut bridge in bridges {
        assert!(bridge.wait().unwrap().success());
    }
}

#[test]
fn websocket() {
    play_on("ws", false);
}

#[test]
fn websocket_with_tls() {
    play_on("ws", true);
}

#[test]
fn kcp() {
    play_on("kcp", false);
}

#[test]
fn several_listeners_serve_the_same_world() {
    let running =
        gateway(&[("gateway.clients.extra", "ws://127.0.0.1:0,kcp://127.0.0.1:0"), ("server.shards", "2")]);
    let addresses: Vec<_> =
        running.addresses().iter().filter(|address| address.service == Service::Clients).collect();
    let schemes: Vec<&str> = addresses.iter().map(|address| address.scheme).collect();
    assert_eq!(schemes, ["tcp", "ws", "kcp"]);
    let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
    for (address, dial) in addresses.iter().zip([Dial::Tcp, Dial::WebSocket, Dial::Kcp]) {
        let mut player = Peer::login(address.addr, &dial, "player", "");
        play(&mut server, &mut player);
    }
}

#[test]
fn websocket_peers_hear_why_the_gateway_goes() {
    let running = gateway(&[("gateway.clients.transport", "ws")]);
    let mut player = Peer::login(clients(&running), &Dial::WebSocket, "player", "");
    let stopping = std::thread::spawn(move || running.shutdown());
    let cause = format!("{:?}", player.until_closed());
    assert!(cause.contains("1001"), "{cause}");
    drop(player);
    assert!(stopping.join().unwrap());
}

#[test]
fn metrics_count_what_was_played() {
    let running = gateway(&[("metrics.compat", "channeld"), ("server.shards", "2")]);
    let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
    let mut player = Peer::login(clients(&running), &Dial::Tcp, "player", "");
    play(&mut server, &mut player);
    player.send_bytes(b"not a frame at all");
    player.until_closed();
    let (status, page) = http(&running, "/metrics");
    assert_eq!(status, 200);
    for line in [
        "throng_gateway_connections{kind=\"server\"} 1",
        "throng_gateway_connections{kind=\"client\"} 0",
        "throng_gateway_authenticated_total{kind=\"client\"} 1",
        "throng_gateway_connections_closed_total{kind=\"client\",reason=\"bad_magic\"} 1",
        "throng_gateway_channels{type=\"SUBWORLD\"} 1",
        "throng_ready 1",
        "connection_num{type=\"SERVER\"} 1",
        "channel_num{type=\"GLOBAL\"} 1",
        "connection_closed{connType=\"CLIENT\"} 1",
    ] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("messages_in{connType=\"CLIENT\"}") >= 2.0);
    assert!(value("throng_gateway_in_bytes_total{kind=\"client\"}") > 0.0);
    assert!(value("throng_shard_round_seconds_count{shard=\"0\"}") > 0.0);
    assert!(value("process_cpu_seconds_total") > 0.0);
}

#[test]
fn health_reports_every_part_and_limits_their_use() {
    let running = gateway(&[("server.shards", "2")]);
    let (status, text) = http(&running, "/health/ready");
    assert_eq!(status, 200);
    let health: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<&str> =
        health["parts"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["shard 0", "shard 1", "core", "listeners"]);
    let limits = http(&running, "/api/v1/limits").1;
    assert!(limits.contains("gateway.limits.connections_max"), "{limits}");
    let server: serde_json::Value = serde_json::from_str(&http(&running, "/api/v1/server").1).unwrap();
    assert_eq!(server["shards"], 2);
}

#[test]
fn recordings_are_written_when_a_connection_ends() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("r");
    let running = gateway(&[
        ("gateway.recordings.enabled", "true"),
        ("gateway.recordings.dir", folder.to_str().unwrap()),
        ("server.shards", "2"),
    ]);
    let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
    let mut player = Peer::login(clients(&running), &Dial::Tcp, "player", "");
    play(&mut server, &mut player);
    drop((player, server));
    assert!(running.shutdown());
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let bytes = std::fs::read(&files[0]).unwrap();
    let packets = throng_wire::cpr::CprReader::new(&bytes).filter_map(Result::ok).count();
    assert!(packets >= 2, "a login and a message: {packets}");
}

#[test]
fn limits_can_be_reloaded() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |channels: u32| {
        let text = format!(
            "[gateway.limits]\nchannels_max = {channels}\n[gateway.servers]\naddr = '127.0.0.1:0'\n\
             [gateway.clients]\naddr = '127.0.0.1:0'\n[http]\naddr = ''\n"
        );
        std::fs::write(file.path(), text).unwrap();
    };
    write(65_536);
    let loader = throng_server::config::Loader::new().file(file.path());
    let running = throng_server::start(loader.load().unwrap()).unwrap();
    write(7);
    let changes = running.reload().unwrap();
    assert_eq!(
        (changes.applied.as_slice(), changes.need_restart.len()),
        (&["gateway.limits.channels_max".to_owned()][..], 0)
    );
    assert_eq!(running.settings().limits.channels_max, 7);
    std::fs::write(file.path(), "[gateway.limits]\nchannels_max = 'x'\n").unwrap();
    assert!(running.reload().is_err());
    assert_eq!(running.settings().limits.channels_max, 7, "the running configuration stays");
}
