//! KCP sessions over loopback.

use crate::common;

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use throng_net::kcp::{Profile, Segment};
use throng_net::*;

const GAME: Transport = Transport::Kcp(Profile::GAME);

/// A server and a client that have exchanged a first message each.
fn connected(transport: Transport) -> (Node, ConnKey, Node, ConnKey) {
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen(transport);
    let key = client.net.connect(patient(addr, transport)).unwrap();
    client.until("it is told", |node| node.seen.connected == [key]);
    client.write_all(key, b"hello");
    until_both(&mut server, &mut client, "the greeting arrives", |s, _| !s.seen.received.is_empty());
    let peer = server.accepted_one();
    assert_eq!(server.received(peer), b"hello");
    server.write_all(peer, b"welcome");
    until_both(&mut server, &mut client, "the answer arrives", |_, c| c.received(key) == b"welcome");
    (server, peer, client, key)
}

#[test]
fn bytes_flow_both_ways_with_both_profiles() {
    for profile in [Profile::REFERENCE, Profile::GAME] {
        let (mut server, peer, mut client, key) = connected(Transport::Kcp(profile));
        flood(&mut server, peer, &mut client, key, &pattern(200_000));
    }
}

/// Moves everything both ways between two connected ends.
fn flood(server: &mut Node, peer: ConnKey, client: &mut Node, key: ConnKey, sent: &[u8]) -> usize {
    let started = std::time::Instant::now();
    let before = (server.received(peer).len(), client.received(key).len());
    let (mut up, mut down, mut blocks) = (0, 0, 0);
    while server.received(peer).len() < before.0 + sent.len()
        || client.received(key).len() < before.1 + sent.len()
    {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        let outcome = client.net.write(key, &[IoSlice::new(&sent[up..])]);
        up += outcome.taken;
        blocks += usize::from(outcome.blocked);
        let outcome = server.net.write(peer, &[IoSlice::new(&sent[down..])]);
        down += outcome.taken;
        blocks += usize::from(outcome.blocked);
        client.step(1);
        server.step(1);
    }
    assert!(server.received(peer)[before.0..] == *sent && client.received(key)[before.1..] == *sent);
    blocks
}

#[test]
fn an_independent_peer_is_understood() {
    let mut node = Node::new();
    node.seen.echo = true;
    let addr = node.listen(Transport::Kcp(Profile::REFERENCE));
    let client = std::thread::spawn(move || library_client(addr, &pattern(50_000)));
    node.until("the client is done", |_| client.is_finished());
    assert!(client.join().unwrap() == pattern(50_000));
}

/// Sends `bytes` with the `kcp` crate and returns as many bytes of the answer.
fn library_client(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    struct Out(Arc<UdpSocket>);
    impl io::Write for Out {
        fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
            self.0.send(datagram)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let socket = Arc::new(UdpSocket::bind(loopback()).unwrap());
    socket.connect(addr).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut kcp = ::kcp::Kcp::new(99, Out(socket.clone()));
    let clock = Clock::start();
    let mut parts = bytes.chunks(1000);
    let mut got = Vec::new();
    let mut buf = [0; 2000];
    while got.len() < bytes.len() {
        while kcp.wait_snd() < 32
            && let Some(part) = parts.next()
        {
            kcp.send(part).unwrap();
        }
        kcp.update(clock.now().as_millis() as u32).unwrap();
        if let Ok(count) = socket.recv(&mut buf) {
            kcp.input(&buf[..count]).unwrap();
        }
        while let Ok(count) = kcp.recv(&mut buf) {
            got.extend_from_slice(&buf[..count]);
        }
        assert!(clock.now() < throng_stdx::Instant::ZERO + PATIENCE, "waited in vain");
    }
    got
}

#[test]
fn a_full_queue_blocks_and_room_is_announced() {
    let (mut server, peer, mut client, key) = connected(GAME);
    let blocks = flood(&mut server, peer, &mut client, key, &pattern(3 << 20));
    assert!(blocks > 0, "3 MiB should not fit at once");
    assert!(server.seen.writable.contains(&peer) || client.seen.writable.contains(&key));
}

#[test]
fn a_session_moves_to_another_loop_and_on() {
    let (mut owner, mut client) = (Node::new(), Node::new());
    owner.seen.accept = Some(Accept::HandOff);
    let addr = owner.listen(GAME);
    let key = client.net.connect(patient(addr, GAME)).unwrap();
    client.write_all(key, b"hello");
    until_both(&mut owner, &mut client, "accepted", |o, _| !o.seen.accepted.is_empty());
    let first = owner.accepted_one();
    let detached = owner.net.detach(first).unwrap();
    assert!(owner.received(first).is_empty(), "the greeting travels with the session");
    // Datagrams that arrive while it is on its way are not lost.
    client.write_all(key, b" again");
    client.step(1);
    owner.step(1);
    // The owner goes on by itself, as a thread would.
    let stop = Arc::new(AtomicBool::new(false));
    let owner = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                owner.step(1);
            }
            owner
        }
    });
    let mut other = Node::new();
    let peer = other.net.attach(detached).unwrap();
    until_both(&mut other, &mut client, "both greetings arrive", |o, _| o.received(peer) == b"hello again");
    flood(&mut other, peer, &mut client, key, &pattern(300_000));
    // And on to a third.
    let mut third = Node::new();
    let detached = other.net.detach(peer).unwrap();
    assert_eq!(other.net.conn_count(), 0);
    let peer = third.net.attach(detached).unwrap();
    flood(&mut third, peer, &mut client, key, &pattern(100_000));
    // Its end reaches the owner: late datagrams do not bring it back.
    third.net.close(peer, CloseMode::Now);
    stop.store(true, Ordering::Relaxed);
    let mut owner = owner.join().unwrap();
    owner.until("it hears of the end", |owner| owner.net.conn_count() == 0);
    client.write_all(key, b"anyone there");
    let before = owner.net.stats().bad_datagrams;
    until_both(&mut owner, &mut client, "a late datagram", |o, _| o.net.stats().bad_datagrams > before);
    assert_eq!((owner.seen.accepted.len(), owner.net.conn_count()), (1, 0));
}

#[test]
fn a_client_session_moves_with_its_socket() {
    let (mut server, peer, mut client, key) = connected(GAME);
    let detached = client.net.detach(key).unwrap();
    assert_eq!(client.net.conn_count(), 0);
    let mut other = Node::new();
    let key = other.net.attach(detached).unwrap();
    flood(&mut server, peer, &mut other, key, &pattern(10_000));
}

/// A datagram with one push segment.
fn push(conv: u32, sn: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let segment = Segment { conv, command: 81, fragments_left: 0, window: 32, ts: 0, sn, una: 0, payload };
    segment.write(&mut out);
    out
}

#[test]
fn sessions_begin_and_are_replaced_as_the_reference_does() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Kcp(Profile::REFERENCE));
    let raw = UdpSocket::bind(loopback()).unwrap();
    raw.connect(addr).unwrap();
    let nothing: [(&str, Vec<u8>); 6] = [
        ("fewer than 24 bytes", push(1, 0, b"")[..23].to_vec()),
        ("an empty datagram", Vec::new()),
        ("an acknowledgement", {
            let mut d = push(1, 0, b"");
            d[4] = 82;
            d
        }),
        ("an unknown command", {
            let mut d = push(1, 0, b"");
            d[4] = 80;
            d
        }),
        ("a sequence number far from the first", push(1, 32, b"x")),
        ("a length beyond the end", {
            let mut d = push(1, 0, b"x");
            d[20] = 2;
            d
        }),
    ];
    for (count, (what, datagram)) in nothing.iter().enumerate() {
        raw.send(datagram).unwrap();
        node.until(what, |node| node.net.stats().datagrams_in == count as u64 + 1);
        assert!(node.seen.accepted.is_empty(), "{what}");
    }
    // The network may swap the first two.
    raw.send(&push(1, 1, b"two")).unwrap();
    raw.send(&push(1, 0, b"one")).unwrap();
    let first = node.accepted_one();
    node.until("both arrive", |node| node.received(first) == b"onetwo");
    // Another number begins only with its first segment.
    raw.send(&push(2, 1, b"x")).unwrap();
    node.until("it is ignored", |node| node.net.stats().datagrams_in == 9);
    assert!(!node.seen.closed.contains_key(&first));
    raw.send(&push(2, 0, b"new")).unwrap();
    node.until("the session is replaced", |node| node.seen.accepted.len() == 2);
    assert_eq!(node.seen.closed[&first].name(), "replaced");
    let second = node.seen.accepted[1].1;
    assert_eq!(node.received(second), b"new");
    // A late repetition of the old one changes nothing.
    raw.send(&push(1, 0, b"one")).unwrap();
    node.until("it is ignored", |node| node.net.stats().datagrams_in == 11);
    assert_eq!((node.seen.accepted.len(), node.net.conn_count()), (2, 1));
}

#[test]
fn a_forged_datagram_ends_no_session_whose_peer_has_proven_itself() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Kcp(Profile::GAME));
    // What is sent from here could come from anybody who writes this address on it.
    let raw = UdpSocket::bind(loopback()).unwrap();
    raw.connect(addr).unwrap();
    raw.set_nonblocking(true).unwrap();
    raw.send(&push(1, 0, b"login")).unwrap();
    let first = node.accepted_one();
    // Acknowledges what the server sends to a conversation: only the owner of the address sees the
    // timestamp.
    let prove = |node: &mut Node, conv: u32| {
        let key = node.seen.accepted.last().unwrap().1;
        node.write_all(key, b"hi");
        let mut buf = [0; 2048];
        let started = std::time::Instant::now();
        let (ts, sn) = loop {
            assert!(started.elapsed() < PATIENCE, "nothing came");
            node.step(1);
            let Ok(len) = raw.recv(&mut buf) else { continue };
            let word = |at: usize| u32::from_le_bytes(buf[at..at + 4].try_into().unwrap());
            if len > 24 && word(0) == conv && buf[4] == 81 {
                break (word(8), word(12));
            }
        };
        let mut ack = Vec::new();
        let empty =
            Segment { conv, command: 82, fragments_left: 0, window: 32, ts, sn, una: sn + 1, payload: b"" };
        empty.write(&mut ack);
        raw.send(&ack).unwrap();
    };
    prove(&mut node, 1);
    raw.send(&push(1, 1, b" and play")).unwrap();
    node.until("it is proven", |node| node.received(first) == b"login and play");
    for conv in 2..5 {
        raw.send(&push(conv, 0, b"forged")).unwrap();
        node.until("it is read", |node| node.seen.accepted.len() == conv as usize);
        assert!(!node.seen.closed.contains_key(&first), "conversation {conv}");
        assert_eq!(node.net.conn_count(), 2, "one newcomer beside it, the latest");
    }
    raw.send(&push(1, 2, b" on")).unwrap();
    node.until("it goes on", |node| node.received(first) == b"login and play on");
    // A peer that has begun anew, after a crash, proves that it is there.
    prove(&mut node, 4);
    node.until("the old session ends", |node| node.seen.closed.contains_key(&first));
    assert_eq!(node.seen.closed[&first].name(), "replaced");
    assert_eq!(node.net.conn_count(), 1);
}

#[test]
fn a_peer_that_never_proves_itself_gets_no_more_than_it_sent_and_ends() {
    let mut node = Node::new();
    const HANDSHAKE: Duration = Duration::from_secs(5);
    let limits = Limits { handshake_timeout: HANDSHAKE, ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), GAME) });
    let raw = UdpSocket::bind(loopback()).unwrap();
    raw.connect(addr).unwrap();
    raw.send(&push(7, 0, b"give me much")).unwrap();
    let key = node.accepted_one();
    let outcome = node.net.write(key, &[IoSlice::new(&pattern(100_000))]);
    assert_eq!(outcome.taken, 100_000);
    node.until("a first answer", |node| node.net.stats().bytes_out > 0);
    node.pass(HANDSHAKE);
    node.until("patience ends", |node| node.seen.closed.contains_key(&key));
    assert_eq!(node.seen.closed[&key].name(), "handshake_timeout");
    let stats = node.net.stats();
    assert!(stats.bytes_out > 0 && stats.bytes_out <= stats.bytes_in, "{stats:?}");
}

#[test]
fn a_vanished_peer_ends_at_the_idle_timeout_and_a_silent_one_stays() {
    let (mut server, mut silent) = (Node::new(), Node::new());
    let limits = Limits { idle_timeout: Some(Duration::from_secs(2)), ..Limits::default() };
    let addr = server.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), GAME) });
    let mut vanished = Node::new();
    for client in [&mut silent, &mut vanished] {
        let key = client.net.connect(patient(addr, GAME)).unwrap();
        client.write_all(key, b"hello");
        let expected = server.seen.accepted.len() + 1;
        until_both(&mut server, client, "accepted", |s, _| s.seen.received.len() == expected);
        let peer = server.seen.accepted[expected - 1].1;
        server.write_all(peer, b"welcome");
        until_both(&mut server, client, "welcomed", |_, c| c.received(key) == b"welcome");
    }
    drop(vanished);
    let gone = server.seen.accepted[1].1;
    until_both(&mut server, &mut silent, "the vanished one is found out", |s, _| {
        s.seen.closed.contains_key(&gone)
    });
    assert_eq!(server.seen.closed[&gone].name(), "idle_timeout");
    // The silent one has answered the listener's questions all along, and still does.
    let until = server.clock.now() + Duration::from_secs(3);
    until_both(&mut server, &mut silent, "time has passed", |s, _| s.clock.now() > until);
    assert_eq!(server.seen.closed.len(), 1);
}

#[test]
fn a_flushing_close_delivers_everything() {
    let (mut server, peer, mut client, key) = connected(GAME);
    let farewell = pattern(60_000);
    assert_eq!(server.net.write(peer, &[IoSlice::new(&farewell)]).taken, farewell.len());
    server.net.close(peer, CloseMode::Flush);
    assert!(server.net.write(peer, &[IoSlice::new(b"late")]).blocked);
    until_both(&mut server, &mut client, "everything arrives", |s, c| {
        c.received(key).len() == 7 + farewell.len() && s.net.conn_count() == 0
    });
    assert!(server.seen.closed.is_empty());
}

#[test]
fn a_paused_session_delivers_nothing_and_slows_its_peer() {
    let (mut server, peer, mut client, key) = connected(GAME);
    server.net.pause_read(peer);
    let sent = pattern(2 << 20);
    let mut at = 0;
    for _ in 0..50 {
        at += client.net.write(key, &[IoSlice::new(&sent[at..])]).taken;
        client.step(1);
        server.step(1);
    }
    assert!(at < sent.len(), "the window is closed");
    assert_eq!(server.received(peer), b"hello");
    server.net.resume_read(peer);
    until_both(&mut server, &mut client, "what was sent arrives", |s, _| s.received(peer).len() == 5 + at);
    assert!(server.received(peer)[5..] == sent[..at]);
}

#[test]
fn limits_hold_and_come_back() {
    let mut node = Node::new();
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), GAME) });
    let raws: Vec<UdpSocket> = (0..3)
        .map(|i| {
            let raw = UdpSocket::bind(loopback()).unwrap();
            raw.connect(addr).unwrap();
            raw.send(&push(i, 0, b"x")).unwrap();
            raw
        })
        .collect();
    node.until("the third is refused", |node| node.net.stats().refused_by_limits == 1);
    assert_eq!(node.seen.accepted.len(), 2);
    let key = node.seen.accepted[0].1;
    node.net.close(key, CloseMode::Now);
    raws[2].send(&push(2, 0, b"x")).unwrap();
    node.until("there is room again", |node| node.seen.accepted.len() == 3);
}

#[test]
fn peers_that_do_not_prove_themselves_make_room_for_others() {
    let mut node = Node::new();
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), GAME) });
    let raws: Vec<UdpSocket> = (0..3)
        .map(|_| {
            let raw = UdpSocket::bind(loopback()).unwrap();
            raw.connect(addr).unwrap();
            raw
        })
        .collect();
    for raw in &raws[..2] {
        raw.send(&push(1, 0, b"x")).unwrap();
    }
    node.until("two are accepted", |node| node.seen.accepted.len() == 2);
    let oldest = node.seen.accepted[0].1;
    node.until("a third gets in", |node| {
        raws[2].send(&push(1, 0, b"x")).unwrap();
        node.seen.accepted.len() == 3
    });
    assert_eq!(node.seen.closed[&oldest].name(), "handshake_timeout");
    assert_eq!(node.net.conn_count(), 2);
}

#[test]
fn unproven_peers_of_one_address_are_bounded() {
    const UNPROVEN_PER_IP_MAX: usize = 512;
    let mut node = Node::new();
    let limits = Limits { handshake_timeout: Duration::from_secs(3600), ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), GAME) });
    let begin = |from: &str| {
        let raw = UdpSocket::bind((from, 0)).unwrap();
        raw.connect(addr).unwrap();
        raw.send(&push(1, 0, b"x")).unwrap();
        raw
    };
    let mut open = Vec::new();
    for count in 1..=UNPROVEN_PER_IP_MAX {
        open.push(begin("127.0.0.1"));
        node.until("it is accepted", |node| node.seen.accepted.len() == count);
    }
    open.push(begin("127.0.0.1"));
    node.until("one more is refused", |node| node.net.stats().refused_by_limits == 1);
    // Another address has a bound of its own.
    open.push(begin("127.0.0.2"));
    node.until("it is accepted", |node| node.seen.accepted.len() == UNPROVEN_PER_IP_MAX + 1);
    // A session that ends gives its place back.
    let first = node.seen.accepted[0].1;
    node.net.close(first, CloseMode::Now);
    open.push(begin("127.0.0.1"));
    node.until("it is accepted", |node| node.seen.accepted.len() == UNPROVEN_PER_IP_MAX + 2);
    assert_eq!(node.net.stats().refused_by_limits, 1);
}

#[test]
fn tls_is_refused_where_it_does_not_exist() {
    let made = development_certificate(&["localhost".into()], Duration::from_secs(1_700_000_000)).unwrap();
    let config = tls_server_config(made.cert_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    let spec = ListenerSpec { tls: Some(TlsAcceptor::new(config)), ..ListenerSpec::new(loopback(), GAME) };
    let error = Node::new().net.listen(spec).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_thousand_sessions_share_a_socket() {
    let (mut server, mut client) = (Node::new(), Node::new());
    server.seen.echo = true;
    let addr = server.listen(GAME);
    let mut all = Vec::new();
    for round in 0..5 {
        let keys: Vec<ConnKey> = (0..200).map(|_| client.net.connect(patient(addr, GAME)).unwrap()).collect();
        for (i, &key) in keys.iter().enumerate() {
            client.write_all(key, &[round, i as u8]);
        }
        until_both(&mut server, &mut client, "all have their answers", |_, c| {
            keys.iter().enumerate().all(|(i, &key)| c.received(key) == [round, i as u8])
        });
        all.extend(keys);
    }
    assert_eq!((server.net.conn_count(), client.net.conn_count()), (1000, 1000));
    for key in all {
        client.net.close(key, CloseMode::Flush);
    }
    until_both(&mut server, &mut client, "all are closed", |_, c| c.net.conn_count() == 0);
    assert!(server.seen.closed.is_empty() && client.seen.closed.is_empty());
}

#[test]
fn answers_leave_from_the_address_that_was_asked() {
    for (listen, asked) in
        [("0.0.0.0:0", "127.0.0.2"), ("[::]:0", "127.0.0.2"), ("[::]:0", "::1"), ("0.0.0.0:0", "127.0.0.1")]
    {
        let mut node = Node::new();
        node.seen.echo = true;
        let addr = node.listen_with(ListenerSpec::new(listen.parse().unwrap(), GAME));
        let asked = SocketAddr::new(asked.parse().unwrap(), addr.port());
        // Not connected: it hears answers from anywhere.
        let any = if asked.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let client = UdpSocket::bind(any).unwrap();
        client.set_nonblocking(true).unwrap();
        client.send_to(&push(7, 0, b"hello"), asked).unwrap();
        let mut answer = None;
        node.until("it answers", |_| {
            answer = client.recv_from(&mut [0; 2_000]).ok();
            answer.is_some()
        });
        assert_eq!(answer.map(|(_, from)| from), Some(asked), "asked at {listen}");
    }
}
