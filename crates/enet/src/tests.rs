//! How much work things take, in turns of loops rather than in time.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use throng_stdx::{Instant, Rng};

use crate::wire::{Command, Header};
use crate::{BandwidthReports, Config, Delivery, Event, Host, Lane, PeerId, work};

/// A client and a server, ten milliseconds apart.
struct Pair {
    now: Instant,
    hosts: [Host; 2],
    rng: Rng,
    loss: f64,
}

impl Pair {
    fn new(server: Config) -> Self {
        let now = Instant::from_millis(1_000);
        let hosts = [Config::client(1), server].map(|config| Host::new(now, config).expect("sound"));
        Self { now, hosts, rng: Rng::new(5), loss: 0.0 }
    }

    fn connect(&mut self, lanes: u8) -> PeerId {
        let peer = self.hosts[0].connect(self.now, address(1), lanes, 0).expect("there is room");
        for _ in 0..4 {
            self.turn();
        }
        peer
    }

    /// Ten milliseconds; the packets that arrived at the server.
    fn turn(&mut self) -> usize {
        self.now += Duration::from_millis(10);
        let mut datagram = Vec::new();
        let mut arriving = [Vec::new(), Vec::new()];
        for side in 0..2 {
            self.hosts[side].handle_timeout(self.now);
            while self.hosts[side].poll_transmit(self.now, &mut datagram).is_some() {
                if !self.rng.chance(self.loss) {
                    arriving[1 - side].push(datagram.clone());
                }
            }
        }
        let mut received = 0;
        for (side, datagrams) in arriving.iter().enumerate() {
            for datagram in datagrams {
                self.hosts[side].handle_datagram(self.now, address(1 - side), datagram);
            }
            while let Some(event) = self.hosts[side].poll_event() {
                received += usize::from(side == 1 && matches!(event, Event::Received { .. }));
                assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
            }
        }
        received
    }
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, side as u8], 7_777))
}

/// Steps for each of `count` reliable packets that were all queued at once.
fn steps_per_queued_packet(count: usize, loss: f64) -> f64 {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    pair.loss = loss;
    let before = work::steps();
    for _ in 0..count {
        pair.hosts[0].send(peer, Lane(0), &b"0123456789"[..], Delivery::Reliable).expect("there is room");
    }
    let mut received = 0;
    for _ in 0..100_000 {
        received += pair.turn();
        if received == count {
            return (work::steps() - before) as f64 / count as f64;
        }
    }
    panic!("{received} of {count} packets arrived");
}

#[test]
fn a_hundred_thousand_queued_packets_cost_no_more_each_than_ten_thousand() {
    for loss in [0.0, 0.05] {
        let (short, long) = (steps_per_queued_packet(10_000, loss), steps_per_queued_packet(100_000, loss));
        assert!(long < 1.5 * short + 1.0 && long < 8.0, "loss {loss}: {short} steps each, then {long}");
    }
}

#[test]
fn what_waits_behind_a_closed_window_is_not_looked_at() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(2);
    for _ in 0..100_000 {
        pair.hosts[0].send(peer, Lane(0), &b"0123456789"[..], Delivery::Reliable).expect("there is room");
    }
    // The window fills up; nobody acknowledges.
    let mut datagram = Vec::new();
    while pair.hosts[0].poll_transmit(pair.now, &mut datagram).is_some() {}
    let before = work::steps();
    for _ in 0..1_000 {
        pair.hosts[0].send(peer, Lane(1), &b"now"[..], Delivery::Unreliable).expect("there is room");
        let mut sent = 0;
        while pair.hosts[0].poll_transmit(pair.now, &mut datagram).is_some() {
            sent += 1;
        }
        assert_eq!(sent, 1, "what may be lost passes");
    }
    let steps = work::steps() - before;
    assert!(steps < 10_000, "{steps} steps for 1,000 packets");
}

#[test]
fn numbers_in_falling_order_cost_no_more_than_in_rising_order() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    for _ in 0..20_000 {
        pair.hosts[0].send(peer, Lane(0), &b"x"[..], Delivery::Reliable).expect("there is room");
    }
    let mut datagrams = Vec::new();
    let mut datagram = Vec::new();
    while pair.hosts[0].poll_transmit(pair.now, &mut datagram).is_some() {
        datagrams.push(datagram.clone());
    }
    let mut commands = Vec::new();
    for datagram in &datagrams {
        let (header, mut at) = Header::decode(datagram).expect("a header");
        while let Ok((_, len)) = Command::decode(&datagram[at..]) {
            commands.push((header, &datagram[at..at + len]));
            at += len;
        }
    }
    assert!(commands.len() >= 8_000, "{}", commands.len());
    let before = work::steps();
    for (header, command) in commands.iter().rev() {
        let mut datagram = Vec::new();
        header.encode(&mut datagram);
        datagram.extend_from_slice(command);
        pair.hosts[1].handle_datagram(pair.now, address(0), &datagram);
        let mut out = Vec::new();
        while pair.hosts[1].poll_transmit(pair.now, &mut out).is_some() {}
    }
    let each = (work::steps() - before) / commands.len() as u64;
    assert!(each < 8, "{each} steps each");
    let delivered = core::iter::from_fn(|| pair.hosts[1].poll_event()).count();
    assert_eq!(delivered, commands.len());
}

#[test]
fn a_broadcast_looks_at_nobody_who_is_gone() {
    let mut pair = Pair::new(Config::new(2));
    let peers: Vec<PeerId> =
        (0..500).map(|_| pair.hosts[0].connect(pair.now, address(1), 1, 0).expect("there is room")).collect();
    for _ in 0..4 {
        pair.turn();
    }
    assert_eq!(pair.hosts[1].peer_count(), 500);
    for peer in &peers[1..] {
        pair.hosts[0].disconnect_now(*peer, 0);
    }
    let mut datagram = Vec::new();
    while pair.hosts[0].poll_transmit(pair.now, &mut datagram).is_some() {
        pair.hosts[1].handle_datagram(pair.now, address(0), &datagram);
    }
    while pair.hosts[1].poll_event().is_some() {}
    pair.hosts[1].check_invariants();
    let before = work::steps();
    assert_eq!(pair.hosts[1].broadcast(Lane(0), &b"to all"[..], Delivery::Unreliable), 1);
    assert_eq!(work::steps() - before, 1);
}

#[test]
fn sharing_bandwidth_takes_one_look_at_each_peer_whatever_they_announce() {
    let limited = Config {
        incoming_bandwidth: 10_000_000,
        outgoing_bandwidth: 10_000_000,
        bandwidth_reports: BandwidthReports::Always,
        ..Config::new(2)
    };
    let now = Instant::from_millis(1_000);
    let mut server = Host::new(now, limited).expect("sound");
    // Announcements that fall under the growing share one after the other.
    let mut clients: Vec<Host> = (0..200)
        .map(|n| {
            let config = Config { outgoing_bandwidth: 40_000 + 100 * n, ..Config::client(u128::from(n)) };
            let mut client = Host::new(now, config).expect("sound");
            client.connect(now, address(1), 1, 0).expect("there is room");
            client
        })
        .collect();
    let mut datagram = Vec::new();
    let steps = |at: Instant, server: &mut Host, clients: &mut [Host]| {
        let before = work::steps();
        server.handle_timeout(at);
        let after = work::steps();
        let mut datagram = Vec::new();
        while let Some(transmit) = server.poll_transmit(at, &mut datagram) {
            clients[usize::from(transmit.to.port())].handle_datagram(at, address(1), &datagram);
        }
        after - before
    };
    for _ in 0..3 {
        for (n, client) in clients.iter_mut().enumerate() {
            while client.poll_transmit(now, &mut datagram).is_some() {
                let from = SocketAddr::from(([10, 0, 1, 1], n as u16));
                server.handle_datagram(now, from, &datagram);
            }
        }
        steps(now, &mut server, &mut clients);
    }
    assert_eq!(server.peer_count(), 200);
    let later = steps(now + Duration::from_secs(1), &mut server, &mut clients);
    assert!((200..=200 * 8).contains(&later), "{later} steps for 200 peers");
}
