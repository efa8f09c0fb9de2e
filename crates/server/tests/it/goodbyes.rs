//! Goodbyes: close codes that peers receive, and the effect of their own goodbyes.

use throng_net::CloseCause;
use throng_server::{Running, Service};
use throng_wire::{MessagePack, channeldpb as pb};

use crate::common::{Dial, Peer, gateway, http};

/// Ends a connection from the gateway's side.
struct Case {
    what: &'static str,
    code: u16,
    keys: &'static [(&'static str, &'static str)],
    act: fn(&Running, &mut Peer),
}

fn log_in(peer: &mut Peer) {
    assert_eq!(peer.authenticate("player", "").result, 0);
}

fn send(peer: &mut Peer, bytes: &[u8]) {
    log_in(peer);
    peer.send_bytes(bytes);
}

const CASES: &[Case] = &[
    Case { what: "garbage", code: 1008, keys: &[], act: |_, peer| send(peer, b"garbage") },
    Case { what: "a frame of size 0", code: 1008, keys: &[], act: |_, peer| send(peer, b"CH\0\0\0") },
    Case { what: "a bad packet", code: 1008, keys: &[], act: |_, peer| send(peer, b"CH\0\x02\0\xFF\xFF") },
    Case { what: "unknown compression", code: 1008, keys: &[], act: |_, peer| send(peer, b"CH\0\x01\x07x") },
    Case {
        what: "no login in time",
        code: 4003,
        keys: &[("gateway.limits.auth_timeout_ms", "1")],
        act: |_, _| {},
    },
    Case {
        what: "too many bytes",
        code: 4004,
        keys: &[("gateway.limits.client_bytes_per_s_max", "1000")],
        act: |_, peer| {
            log_in(peer);
            peer.send(MessagePack { msg_type: 200, ..MessagePack::default() }, &[0; 3_000]);
        },
    },
    Case {
        what: "messages that the state machine refuses",
        code: 4002,
        keys: &[("gateway.limits.refused_messages_max", "1")],
        act: |_, peer| {
            log_in(peer);
            peer.send(MessagePack { msg_type: 3, ..MessagePack::default() }, &[]);
        },
    },
    Case {
        what: "a kick by a game server",
        code: 4001,
        keys: &[],
        act: |running, peer| {
            log_in(peer);
            let addr = running.address(Service::Servers).unwrap();
            let mut server = Peer::login(addr, &Dial::Tcp, "server", "");
            let players = pb::DisconnectMessage { conn_id: peer.id };
            let head = MessagePack { msg_type: pb::MessageType::Disconnect as u32, ..MessagePack::default() };
            server.send(head, &prost::Message::encode_to_vec(&players));
            peer.until_closed();
        },
    },
    Case {
        what: "a second life of the session",
        code: 4005,
        keys: &[],
        act: |running, peer| {
            let auth = |token: &[u8]| pb::AuthMessage {
                player_identifier_token: "player".into(),
                resume_token: Some(token.to_vec()),
                ..Default::default()
            };
            let first: pb::AuthResultMessage = peer.ask(0, pb::MessageType::Auth, &auth(&[]));
            let addr = running.address(Service::Clients).unwrap();
            let mut again = Peer::connect(addr, &peer.dial.clone());
            let second: pb::AuthResultMessage =
                again.ask(0, pb::MessageType::Auth, &auth(&first.resume_token));
            assert!(second.should_recover);
        },
    },
];

#[test]
fn peers_hear_why_the_gateway_ends_their_connection() {
    for (transport, dial) in [("ws", Dial::WebSocket), ("enet", Dial::Enet)] {
        for case in CASES {
            for shards in ["1", "2"] {
                let keys =
                    [&[("gateway.clients.transport", transport), ("server.shards", shards)], case.keys];
                let running = gateway(&keys.concat());
                let addr = running.address(Service::Clients).unwrap();
                let mut peer = Peer::connect(addr, &dial);
                (case.act)(&running, &mut peer);
                let code = match peer.until_closed() {
                    CloseCause::WsClosed { code } => code.map(u32::from),
                    CloseCause::Disconnected { code } => Some(*code),
                    other => panic!("{transport}, {}: {other:?}", case.what),
                };
                assert_eq!(code, Some(u32::from(case.code)), "{transport}, {}", case.what);
            }
        }
    }
}

#[test]
fn a_connection_beyond_the_limits_hears_that_the_gateway_is_full() {
    for (transport, dial) in [("ws", Dial::WebSocket), ("enet", Dial::Enet)] {
        let running =
            gateway(&[("gateway.clients.transport", transport), ("gateway.limits.connections_max", "1")]);
        let addr = running.address(Service::Clients).unwrap();
        let first = Peer::login(addr, &dial, "first", "");
        let mut second = Peer::connect(addr, &dial);
        let cause = format!("{:?}", second.until_closed());
        assert!(cause.contains("1013"), "{transport}: {cause}");
        drop(first);
    }
}

/// Waits for a line of the metrics.
fn until_counted(running: &Running, line: &str) {
    let deadline = std::time::Instant::now() + crate::common::PATIENCE;
    loop {
        let (_, page) = http(running, "/metrics");
        if page.lines().any(|known| known == line) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{line} is not in\n{page}");
    }
}

#[test]
fn a_goodbye_is_told_from_a_loss() {
    let count = |reason: &str, kind: &str, count: u32| {
        format!("throng_gateway_connections_closed_total{{kind=\"{kind}\",reason=\"{reason}\"}} {count}")
    };
    for (transport, dial) in [("ws", Dial::WebSocket), ("enet", Dial::Enet)] {
        for shards in ["1", "2"] {
            let running = gateway(&[("gateway.clients.transport", transport), ("server.shards", shards)]);
            let addr = running.address(Service::Clients).unwrap();
            for index in 0..2 {
                let peer = Peer::login(addr, &dial, &format!("leaves {index}"), "");
                peer.leave(1000);
            }
            until_counted(&running, &count("left", "client", 2));
            if transport == "ws" {
                Peer::login(addr, &dial, "reloads", "").leave(1001);
                until_counted(&running, &count("end_of_stream", "client", 1));
            }
            let mut peer = Peer::login(addr, &dial, "says so", "");
            let own = pb::DisconnectMessage { conn_id: peer.id };
            let head = MessagePack { msg_type: pb::MessageType::Disconnect as u32, ..MessagePack::default() };
            peer.send(head, &prost::Message::encode_to_vec(&own));
            peer.until_closed();
            until_counted(&running, &count("left", "client", 3));
        }
    }
}
