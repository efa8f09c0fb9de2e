//! ENet connections through the sealed layer, over loopback, and whoever has no business there.

use crate::common;

use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::*;
use throng_net::enet::HostCounters;
use throng_net::enet::secure::{ConnectToken, GateConfig, GateStats, TokenClaims, TokenKey};
use throng_net::*;

const KEY: [u8; 32] = [9; 32];

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A token of a backend with this key for a server at `addr`, good for so many seconds from now.
fn token(key: [u8; 32], addr: std::net::SocketAddr, seconds: i64) -> ConnectToken {
    let expires_unix_s = unix_s().checked_add_signed(seconds).unwrap();
    let claims = TokenClaims { user_id: 7, expires_unix_s, servers: vec![addr], ..TokenClaims::default() };
    TokenKey::new(key).issue(&claims, [5; 88]).unwrap()
}

fn guarded(plain: bool) -> (Node, std::net::SocketAddr) {
    let mut server = Node::new();
    let gate = GateConfig { plain, ..GateConfig::new(TokenKey::new(KEY), 1) };
    let addr = server.listen_with(ListenerSpec {
        enet_gate: Some(gate),
        ..ListenerSpec::new(loopback(), Transport::Enet)
    });
    (server, addr)
}

fn spec(addr: std::net::SocketAddr, token: Option<ConnectToken>) -> ConnectSpec {
    ConnectSpec { enet_token: token, ..ConnectSpec::new(addr, Transport::Enet) }
}

/// Time after which one that expects to be refused gives up: only the clock that a test moves
/// reaches it.
const HOPELESS: Duration = Duration::from_secs(60);

/// One that expects to be refused.
fn hopeless(addr: std::net::SocketAddr, token: Option<ConnectToken>) -> ConnectSpec {
    ConnectSpec { timeout: HOPELESS, ..spec(addr, token) }
}

/// Lets a client try until the gate has turned it away, and then give up.
#[track_caller]
fn is_refused(server: &mut Node, client: &mut Node, key: ConnKey, count: fn(&GateStats) -> u64) {
    let before = count(&figures(server).gate);
    until_both(server, client, "the gate turns it away", |s, _| count(&figures(s).gate) > before);
    client.pass(HOPELESS);
    until_both(server, client, "it gives up", |_, c| c.seen.closed.contains_key(&key));
}

fn figures(node: &Node) -> HostCounters {
    node.net.enet_figures()
}

#[test]
fn a_token_opens_a_connection_like_any_other() {
    let (mut server, addr) = guarded(false);
    let mut client = Node::new();
    let key = client.net.connect(spec(addr, Some(token(KEY, addr, 3600)))).unwrap();
    until_both(&mut server, &mut client, "connecting", |_, c| c.seen.connected == [key]);
    let sent: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    client.seen.echo = false;
    server.seen.echo = true;
    let (mut done, started) = (0, std::time::Instant::now());
    while client.received(key).len() < sent.len() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        let end = (done + 8_000).min(sent.len());
        done += client.net.write(key, &[std::io::IoSlice::new(&sent[done..end])]).taken;
        client.step(1);
        server.step(1);
    }
    assert!(client.received(key) == sent);
    let gate = figures(&server).gate;
    assert_eq!((gate.admitted, gate.refused_tokens, gate.dropped_forged), (1, 0, 0));
    client.net.close(key, CloseMode::Flush);
    until_both(&mut server, &mut client, "the end", |s, _| s.seen.closed.len() == 1);
}

#[test]
fn nobody_else_gets_in() {
    for plain in [false, true] {
        let (mut server, addr) = guarded(plain);
        let elsewhere = "192.0.2.1:9".parse().unwrap();
        let refused = [
            ("a wrong key", Some(token([8; 32], addr, 3600))),
            ("an expired token", Some(token(KEY, addr, -1))),
            ("no token", None),
        ];
        for (what, token) in refused {
            let mut client = Node::new();
            // Nothing tells it why: it runs into its own timeout, or plain clients are welcome.
            let has_token = token.is_some();
            let welcome = plain && !has_token;
            let spec = if welcome { spec(addr, None) } else { hopeless(addr, token) };
            let key = client.net.connect(spec).unwrap();
            if welcome {
                until_both(&mut server, &mut client, what, |_, c| c.seen.connected == [key]);
            } else if has_token {
                is_refused(&mut server, &mut client, key, |gate| gate.refused_tokens);
            } else {
                is_refused(&mut server, &mut client, key, |gate| gate.dropped_plain);
            }
            assert_eq!(client.seen.connected.len(), usize::from(welcome), "{what}, plain {plain}");
        }
        let gate = figures(&server).gate;
        assert_eq!((gate.admitted, gate.challenged), (0, 0));

        // A token for another server, where the gate knows its own name.
        let mut strict = Node::new();
        let gate = GateConfig { servers: vec![elsewhere], ..GateConfig::new(TokenKey::new(KEY), 1) };
        let listener = ListenerSpec::new(loopback(), Transport::Enet);
        let strict_addr = strict.listen_with(ListenerSpec { enet_gate: Some(gate), ..listener });
        let mut client = Node::new();
        let key = client.net.connect(hopeless(strict_addr, Some(token(KEY, strict_addr, 3600)))).unwrap();
        is_refused(&mut strict, &mut client, key, |gate| gate.refused_tokens);
        assert_eq!(figures(&strict).gate.admitted, 0);
    }
}

#[test]
fn a_used_token_is_nobody_elses() {
    let (mut server, addr) = guarded(false);
    let stolen = token(KEY, addr, 3600);
    let (mut player, mut thief) = (Node::new(), Node::new());
    let key = player.net.connect(spec(addr, Some(stolen.clone()))).unwrap();
    until_both(&mut server, &mut player, "connecting", |_, c| c.seen.connected == [key]);
    let theirs = thief.net.connect(hopeless(addr, Some(stolen))).unwrap();
    is_refused(&mut server, &mut thief, theirs, |gate| gate.refused_used);
    assert!(thief.seen.connected.is_empty());
    player.write_all(key, b"still here");
    until_both(&mut server, &mut player, "the player's words", |s, _| {
        s.seen.received.values().any(|bytes| bytes == b"still here")
    });
}

/// Somebody on the path who repeats every datagram, and sends each once more with a bit changed.
#[test]
fn on_the_path_nothing_can_be_repeated_or_changed() {
    let (mut server, addr) = guarded(false);
    let path = UdpSocket::bind(loopback()).unwrap();
    path.set_nonblocking(true).unwrap();
    let middle = path.local_addr().unwrap();
    let mut client = Node::new();
    let key = client.net.connect(spec(middle, Some(token(KEY, addr, 3600)))).unwrap();
    let sent: Vec<u8> = (0..5_000u32).map(|at| at as u8).collect();
    let (mut from, mut buf, mut count, mut written) = (None, [0; 2_048], 0_usize, false);
    let started = std::time::Instant::now();
    server.seen.echo = true;
    while client.received(key).len() < sent.len() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        client.step(1);
        server.step(1);
        if !written && !client.seen.connected.is_empty() {
            written = true;
            client.write_all(key, &sent);
        }
        while let Ok((len, source)) = path.recv_from(&mut buf) {
            let to = if source == addr {
                let Some(client) = from else { continue };
                client
            } else {
                from = Some(source);
                addr
            };
            count += 1;
            let mut changed = buf[..len].to_vec();
            // Behind the first two bytes: those only make it somebody else's datagram.
            changed[2 + count * 7 % (len - 2)] ^= 1 << (count % 8);
            // Whoever is first while the client gets in can keep it out; later it changes nothing.
            let first = written && count % 2 == 0;
            let all = if first {
                [&changed, &buf[..len], &buf[..len]]
            } else {
                [&buf[..len], &buf[..len], &changed]
            };
            for datagram in all {
                path.send_to(datagram, to).unwrap();
            }
        }
    }
    assert!(client.received(key) == sent);
    let received: Vec<&Vec<u8>> = server.seen.received.values().collect();
    assert!(received.len() == 1 && *received[0] == sent, "once, as it was");
    let all = figures(&server);
    assert!(all.gate.dropped_replayed > 0 && all.gate.dropped_forged > 0, "{:?}", all.gate);
    assert_eq!((all.gate.admitted, all.enet.dropped_malformed), (1, 0));
}
