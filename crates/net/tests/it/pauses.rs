//! A process that was stopped for longer than its peers may be silent hears them before it judges
//! them.

use std::collections::HashSet;
use std::time::Duration;

use throng_net::{CloseCause, ConnKey, ConnectSpec, Limits, ListenerSpec, Transport, WsPolicy, kcp, ws};

use crate::common::*;

const PER_TRANSPORT: usize = 500;
/// Far more than a slow machine needs to bring everybody in: only the clock that this test moves
/// reaches it.
const IDLE: Duration = Duration::from_secs(60);

#[test]
fn two_thousand_peers_outlive_a_pause_that_is_longer_than_their_idle_timeout() {
    // A thousand descriptors, which some shells allow, are too few.
    assert!(throng_net::raise_descriptor_limit() > 4_000);
    let transports =
        [Transport::Tcp, Transport::WebSocket, Transport::Kcp(kcp::Profile::GAME), Transport::Enet];
    let (mut server, mut clients) = (Node::new(), Node::new());
    let mut keys = Vec::new();
    for transport in transports {
        let addr = server.listen_with(ListenerSpec {
            limits: Limits { idle_timeout: Some(IDLE), ..Limits::default() },
            ws: WsPolicy { ping_interval: None, ..WsPolicy::default() }.into(),
            ..ListenerSpec::new(loopback(), transport)
        });
        for _ in 0..PER_TRANSPORT {
            let mut spec = ConnectSpec::new(addr, transport);
            spec.timeout = PATIENCE;
            keys.push((clients.net.connect(spec).unwrap(), transport));
        }
        let wanted = keys.len();
        // A KCP session is there when its first bytes are.
        let say = |clients: &mut Node, key: ConnKey| match transport {
            Transport::WebSocket => {
                let mut frame = Vec::new();
                ws::write_message(&mut frame, b"a", Some([1; 4]));
                clients.write_all(key, &frame);
            }
            _ => clients.write_all(key, b"a"),
        };
        let mut said = HashSet::new();
        let started = std::time::Instant::now();
        while server.seen.received.len() < wanted {
            assert!(started.elapsed() < PATIENCE, "waited in vain until everyone is there and heard");
            server.step(1);
            clients.step(1);
            for &(key, kind) in &keys {
                let is_ready = matches!(kind, Transport::Kcp(_)) || clients.seen.connected.contains(&key);
                if kind == transport && is_ready && said.insert(key) {
                    say(&mut clients, key);
                }
            }
        }
    }
    // All of them speak while the process is stopped; only the last one to be read would be early.
    for &(key, transport) in &keys {
        let mut bytes = b"b".to_vec();
        if transport == Transport::WebSocket {
            bytes.clear();
            ws::write_message(&mut bytes, b"b", Some([1; 4]));
        }
        clients.write_all(key, &bytes);
    }
    clients.step(1);
    server.clock = server.clock.ahead(IDLE + Duration::from_millis(2_500));
    server.until("everyone is heard again", |server| {
        assert!(server.seen.closed.is_empty(), "{:?}", server.seen.closed.values().next());
        server.seen.received.values().all(|bytes| bytes == b"ab")
    });
    server.until("all input is read", |server| !server.net.is_behind());
    // Silence that no pause explains ends those that cannot be asked.
    while server.seen.closed.len() < 2 * PER_TRANSPORT {
        server.pass(Duration::from_millis(100));
        clients.step(0);
    }
    let idle = |cause: &CloseCause| matches!(cause, CloseCause::TimedOut(_) | CloseCause::DeadLink);
    assert!(server.seen.closed.values().all(idle));
}
