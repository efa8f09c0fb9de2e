//! ENet peers as connections of event loops, over loopback.

use crate::common;

use std::io::IoSlice;
use std::time::Duration;

use common::*;
use throng_net::enet::{Config, Delivery, Endpoint, Event, Lane, Pacing, PeerId};
use throng_net::udp::UdpOptions;
use throng_net::*;

/// A server and a client that have exchanged a first message each.
fn connected() -> (Node, ConnKey, Node, ConnKey) {
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen(Transport::Enet);
    let key = client.net.connect(patient(addr, Transport::Enet)).unwrap();
    until_both(&mut server, &mut client, "connecting", |_, c| c.seen.connected == [key]);
    client.write_all(key, b"hello");
    until_both(&mut server, &mut client, "the greeting", |s, _| !s.seen.received.is_empty());
    let peer = server.accepted_one();
    assert_eq!(server.received(peer), b"hello");
    server.write_all(peer, b"welcome");
    until_both(&mut server, &mut client, "the answer", |_, c| c.received(key) == b"welcome");
    (server, peer, client, key)
}

/// Moves everything both ways. Returns how often somebody was told to wait.
fn flood(server: &mut Node, peer: ConnKey, client: &mut Node, key: ConnKey, sent: &[u8]) -> usize {
    let started = std::time::Instant::now();
    let before = (server.received(peer).len(), client.received(key).len());
    let (mut up, mut down, mut blocks) = (0, 0, 0);
    while server.received(peer).len() < before.0 + sent.len()
        || client.received(key).len() < before.1 + sent.len()
    {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        for (node, key, done) in [(&mut *client, key, &mut up), (&mut *server, peer, &mut down)] {
            let end = (*done + 20_000).min(sent.len());
            let outcome = node.net.write(key, &[IoSlice::new(&sent[*done..end])]);
            *done += outcome.taken;
            blocks += usize::from(outcome.blocked);
            node.step(1);
        }
    }
    assert!(server.received(peer)[before.0..] == *sent && client.received(key)[before.1..] == *sent);
    blocks
}

#[test]
fn bytes_flow_both_ways_and_a_full_queue_blocks() {
    let (mut server, peer, mut client, key) = connected();
    let blocks = flood(&mut server, peer, &mut client, key, &pattern(2 << 20));
    assert!(blocks > 0, "2 MiB should not fit at once");
    assert!(server.seen.writable.contains(&peer) && client.seen.writable.contains(&key));
}

#[test]
fn a_close_that_flushes_delivers_everything_first() {
    let (mut server, peer, mut client, key) = connected();
    let farewell = pattern(50_000);
    assert_eq!(server.net.write(peer, &[IoSlice::new(&farewell)]).taken, farewell.len());
    server.net.close(peer, CloseMode::Flush);
    until_both(&mut server, &mut client, "the end", |_, c| c.seen.closed.contains_key(&key));
    assert_eq!(client.received(key)[b"welcome".len()..], farewell);
    assert_eq!(client.seen.closed[&key].name(), "disconnected");
    until_both(&mut server, &mut client, "both have forgotten", |s, _| s.net.conn_count() == 0);
    assert!(server.seen.closed.is_empty(), "who closes is not told");
}

#[test]
fn a_paused_connection_keeps_what_arrives_and_ends_after_it() {
    let (mut server, peer, mut client, key) = connected();
    server.net.pause_read(peer);
    let sent = pattern(100_000);
    let (mut done, started) = (0, std::time::Instant::now());
    while done < sent.len() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        let end = (done + 10_000).min(sent.len());
        done += client.net.write(key, &[IoSlice::new(&sent[done..end])]).taken;
        client.step(1);
        server.step(1);
    }
    client.net.close(key, CloseMode::Flush);
    until_both(&mut server, &mut client, "the client is gone", |_, c| c.net.conn_count() == 0);
    assert_eq!((server.received(peer), server.seen.closed.len()), (&b"hello"[..], 0));
    server.net.resume_read(peer);
    server.until("the end", |node| node.seen.closed.contains_key(&peer));
    assert_eq!(server.received(peer)[5..], sent);
}

#[test]
fn a_connection_moves_to_another_loop() {
    let (mut owner, mut client) = (Node::new(), Node::new());
    owner.seen.accept = Some(Accept::HandOff);
    let addr = owner.listen(Transport::Enet);
    let key = client.net.connect(patient(addr, Transport::Enet)).unwrap();
    until_both(&mut owner, &mut client, "connecting", |o, c| {
        !c.seen.connected.is_empty() && !o.seen.accepted.is_empty()
    });
    let accepted = owner.accepted_one();
    let detached = owner.net.detach(accepted).unwrap();
    // Packets that arrive meanwhile must not be lost.
    client.write_all(key, b"early");
    for _ in 0..5 {
        client.step(1);
        owner.step(1);
    }
    let mut other = Node::new();
    let peer = other.net.attach(detached).unwrap();
    let sent = pattern(1 << 20);
    let started = std::time::Instant::now();
    let (mut up, mut down) = (0, 0);
    while other.received(peer).len() < 5 + sent.len() || client.received(key).len() < sent.len() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        up += client.net.write(key, &[IoSlice::new(&sent[up..(up + 9_000).min(sent.len())])]).taken;
        down += other.net.write(peer, &[IoSlice::new(&sent[down..(down + 60_000).min(sent.len())])]).taken;
        client.step(1);
        owner.step(1);
        other.step(1);
    }
    assert!(other.received(peer)[..5] == *b"early" && other.received(peer)[5..] == sent);
    assert!(client.received(key) == sent);
    assert!(other.seen.writable.contains(&peer), "a full queue blocks there too");
    other.net.close(peer, CloseMode::Flush);
    let started = std::time::Instant::now();
    while !client.seen.closed.contains_key(&key) {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        client.step(1);
        owner.step(1);
    }
}

/// The owner hears that the connection has arrived elsewhere after it has come back.
#[test]
fn a_connection_that_comes_straight_back_stays_where_its_socket_is() {
    let (mut owner, mut client, mut other) = (Node::new(), Node::new(), Node::new());
    owner.seen.accept = Some(Accept::HandOff);
    let addr = owner.listen(Transport::Enet);
    let key = client.net.connect(patient(addr, Transport::Enet)).unwrap();
    until_both(&mut owner, &mut client, "connecting", |o, c| {
        !c.seen.connected.is_empty() && !o.seen.accepted.is_empty()
    });
    let accepted = owner.accepted_one();
    let detached = owner.net.detach(accepted).unwrap();
    let there = other.net.attach(detached).unwrap();
    let detached = other.net.detach(there).unwrap();
    let back = owner.net.attach(detached).unwrap();
    client.write_all(key, b"hello");
    until_both(&mut owner, &mut client, "what was sent", |o, _| o.received(back) == b"hello");
}

#[test]
fn limits_and_bans_refuse_politely() {
    let mut server = Node::new();
    server.seen.banned = true;
    let addr = server.listen(Transport::Enet);
    let mut client = Node::new();
    let key = client.net.connect(patient(addr, Transport::Enet)).unwrap();
    until_both(&mut server, &mut client, "the refusal", |_, c| c.seen.closed.contains_key(&key));
    assert!(server.seen.accepted.is_empty());
    assert_eq!(server.net.stats().refused_by_handler, 1);
}

#[test]
fn a_silent_server_is_a_connect_timeout() {
    let nobody = std::net::UdpSocket::bind(loopback()).unwrap();
    let mut client = Node::new();
    let spec = ConnectSpec {
        timeout: Duration::from_millis(200),
        ..ConnectSpec::new(nobody.local_addr().unwrap(), Transport::Enet)
    };
    let key = client.net.connect(spec).unwrap();
    assert!(client.net.write(key, &[IoSlice::new(b"early")]).blocked);
    client.until("giving up", |node| node.seen.closed.contains_key(&key));
    assert_eq!(client.seen.closed[&key].name(), "connect_timeout");
}

#[test]
fn packets_of_any_lane_and_delivery_join_the_stream() {
    let mut server = Node::new();
    let addr = server.listen(Transport::Enet);
    let clock = Clock::start();
    let mut game =
        Endpoint::open(clock, loopback(), &UdpOptions::default(), Pacing::default(), Config::client(3))
            .unwrap();
    game.host().connect(clock.now(), addr, 3, 0).unwrap();
    let started = std::time::Instant::now();
    let mut peer: Option<PeerId> = None;
    while server.seen.received.values().map(Vec::len).sum::<usize>() < 6 {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        let mut fresh = None;
        game.turn(Some(game.now() + Duration::from_millis(1)), |host| {
            while let Some(event) = host.poll_event() {
                if let Event::Connected { peer, .. } = event {
                    fresh = Some(peer);
                }
            }
        })
        .unwrap();
        if let Some(found) = fresh {
            peer = Some(found);
            for (lane, delivery) in
                [(0, Delivery::Reliable), (1, Delivery::Unreliable), (2, Delivery::Unsequenced)]
            {
                game.host().send(found, Lane(lane), &b"ab"[..], delivery).unwrap();
            }
        }
        server.step(1);
    }
    assert!(peer.is_some());
    let key = server.accepted_one();
    assert_eq!(server.received(key), b"ababab");
}

/// A listener with a socket on each of two loops, and clients that have sent their number.
struct Sharded {
    first: Node,
    second: Node,
    clients: Node,
    keys: Vec<ConnKey>,
    /// Clients that have sent their number.
    greeted: usize,
}

impl Sharded {
    fn new(spec: ListenerSpec, accept: Accept, clients: usize) -> Self {
        let mut loops = [EventLoop::new().unwrap(), EventLoop::new().unwrap()];
        let (_, addr) = EventLoop::listen_on(&mut loops, spec).unwrap();
        let [mut first, second] = loops.map(Node::of);
        first.seen.accept = Some(accept);
        let mut node = Node::new();
        let connect = |_| node.net.connect(patient(addr, Transport::Enet)).unwrap();
        let keys = (0..clients).map(connect).collect();
        Self { first, second, clients: node, keys, greeted: 0 }
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let started = std::time::Instant::now();
        while !done(self) {
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
            for node in [&mut self.first, &mut self.second, &mut self.clients] {
                node.step(1);
            }
            while let Some(&key) = self.clients.seen.connected.get(self.greeted) {
                let number = self.keys.iter().position(|known| *known == key).unwrap();
                self.clients.write_all(key, &[number as u8]);
                self.greeted += 1;
            }
        }
    }
}

#[test]
fn sockets_on_two_loops_share_the_peers_that_the_first_loop_accepts() {
    let spec = ListenerSpec::new(loopback(), Transport::Enet);
    let mut all = Sharded::new(spec, Accept::HandOff, 32);
    all.until("everybody is accepted", |all| all.first.seen.accepted.len() == 32);
    assert!(all.second.seen.accepted.is_empty());
    let shares = [&all.first, &all.second].map(|node| node.net.enet_figures().peers);
    assert!(shares.iter().sum::<usize>() == 32 && !shares.contains(&0), "{shares:?}");
    // Connections of each socket go to each of the loops, some with data that is there already.
    for (index, (_, key)) in all.first.seen.accepted.clone().into_iter().enumerate() {
        let conn = all.first.net.detach(key).unwrap();
        let node = if index % 2 == 0 { &mut all.first } else { &mut all.second };
        node.net.attach(conn).unwrap();
    }
    (all.first.seen.echo, all.second.seen.echo) = (true, true);
    all.until("everybody is answered", |all| all.clients.seen.received.len() == 32);
    for (number, key) in all.keys.clone().into_iter().enumerate() {
        assert_eq!(all.clients.received(key), [number as u8]);
        all.clients.net.close(key, CloseMode::Flush);
    }
    all.until("everybody has left", |all| [&all.first, &all.second].iter().all(|n| n.net.conn_count() == 0));
    let closed = [&all.first, &all.second].map(|node| node.seen.closed.len());
    assert_eq!(closed, [16, 16], "where they were served");
}

#[test]
fn a_limit_and_a_refusal_hold_for_all_sockets_of_a_listener() {
    let mut spec = ListenerSpec::new(loopback(), Transport::Enet);
    spec.limits.connections_max = 16;
    let mut all = Sharded::new(spec, Accept::Keep, 20);
    all.until("four are refused", |all| all.clients.seen.closed.len() == 4);
    assert_eq!(all.first.seen.accepted.len(), 16);

    let spec = ListenerSpec::new(loopback(), Transport::Enet);
    let refuse = Accept::Refuse { code: 4_242, reason: "full" };
    let mut all = Sharded::new(spec, refuse, 20);
    all.until("all are refused", |all| all.clients.seen.closed.len() == 20);
    let coded = |cause: &CloseCause| matches!(cause, CloseCause::Disconnected { code: 4_242 });
    assert!(all.clients.seen.closed.values().all(coded), "{:?}", all.clients.seen.closed);
    assert!([&all.first, &all.second].iter().all(|node| node.net.conn_count() == 0));
}

#[test]
fn a_listener_that_closes_keeps_the_peers_of_all_its_sockets_and_takes_no_more() {
    let mut all = Sharded::new(ListenerSpec::new(loopback(), Transport::Enet), Accept::Keep, 16);
    all.until("everybody has been heard", |all| all.first.seen.received.len() == 16);
    let (listener, _) = all.first.seen.accepted[0];
    all.first.net.close_listener(listener);
    let server = all.clients.net.peer(all.keys[0]).unwrap();
    let late: Vec<_> =
        (0..16).map(|_| all.clients.net.connect(patient(server, Transport::Enet)).unwrap()).collect();
    all.keys.extend(&late);
    all.until("the late are refused", |all| late.iter().all(|key| all.clients.seen.closed.contains_key(key)));
    assert_eq!((all.first.seen.accepted.len(), all.clients.seen.closed.len()), (16, 16));
}

#[test]
fn long_packets_of_newcomers_wait_until_they_are_admitted() {
    let (mut server, mut client) = (Node::new(), Node::new());
    let mut spec = ListenerSpec::new(loopback(), Transport::Enet);
    spec.limits.newcomer_bytes_max = Some(32 << 10);
    let addr = server.listen_with(spec);
    let key = client.net.connect(patient(addr, Transport::Enet)).unwrap();
    until_both(&mut server, &mut client, "connecting", |_, c| c.seen.connected == [key]);
    let outcome = client.net.write(key, &[IoSlice::new(&pattern(60_000))]);
    assert_eq!(outcome.taken, 60_000, "one packet");
    until_both(&mut server, &mut client, "it is too much", |s, _| {
        s.net.enet_figures().enet.dropped_full > 0 && !s.seen.accepted.is_empty()
    });
    let peer = server.accepted_one();
    assert!(server.received(peer).is_empty());
    server.net.admit(peer);
    until_both(&mut server, &mut client, "the packet", |s, _| s.received(peer) == pattern(60_000));
}
