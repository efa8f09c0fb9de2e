//! Two hosts on a clean link, strangers beside them, and what each may expect of the other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use throng_enet::wire::{Body, CHANNEL_NONE, Command, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED};
use throng_enet::{
    Config, ConnectError, Delivery, Event, Host, Intercept, Lane, Naming, PeerId, Reason, SendError, Via,
};
use throng_stdx::{Instant, Rng};

/// A client and a server, one millisecond apart.
struct Pair {
    now: Instant,
    hosts: [Host; 2],
    addresses: [SocketAddr; 2],
    events: [Vec<Event>; 2],
    /// The one datagram that gets lost: whose, and the how many-th.
    lost: Option<(usize, u64)>,
    sent: [u64; 2],
}

impl Pair {
    fn new() -> Self {
        Self::with(Config::client(1), Config::new(2))
    }

    fn with(client: Config, server: Config) -> Self {
        let now = Instant::from_millis(5_000);
        let hosts = [client, server].map(|config| Host::new(now, config).expect("sound"));
        Self {
            now,
            hosts,
            addresses: [address(1), address(2)],
            events: [Vec::new(), Vec::new()],
            lost: None,
            sent: [0, 0],
        }
    }

    fn connected() -> (Self, PeerId, PeerId) {
        let mut pair = Self::new();
        let (client, server) = pair.connect();
        (pair, client, server)
    }

    fn connect(&mut self) -> (PeerId, PeerId) {
        let client = self.hosts[0].connect(self.now, self.addresses[1], 8, 0).expect("there is room");
        self.run(5);
        assert_eq!(self.take(0), [Event::Connected { peer: client, data: 0 }]);
        let events = self.take(1);
        let [Event::Connected { peer: server, .. }] = events[..] else { panic!("{events:?}") };
        (client, server)
    }

    /// Lets milliseconds pass.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            let mut arriving: [Vec<Vec<u8>>; 2] = Default::default();
            for side in 0..2 {
                self.hosts[side].handle_timeout(self.now);
                let mut buf = Vec::new();
                while self.hosts[side].poll_transmit(self.now, &mut buf).is_some() {
                    self.sent[side] += 1;
                    if self.lost != Some((side, self.sent[side])) {
                        arriving[1 - side].push(buf.clone());
                    }
                }
            }
            for (side, datagrams) in arriving.iter().enumerate() {
                for datagram in datagrams {
                    self.hosts[side].handle_datagram(self.now, self.addresses[1 - side], datagram);
                }
                while let Some(event) = self.hosts[side].poll_event() {
                    self.events[side].push(event);
                }
                self.hosts[side].check_invariants();
            }
        }
    }

    fn take(&mut self, side: usize) -> Vec<Event> {
        std::mem::take(&mut self.events[side])
    }
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 7_777))
}

fn connect_datagram(connect_id: u32, peer_id: u16) -> Vec<u8> {
    let handshake = Handshake {
        peer_id,
        incoming_session: SESSION_UNUSED,
        outgoing_session: SESSION_UNUSED,
        mtu: 1400,
        window: 65_536,
        channels: 255,
        incoming_bandwidth: 0,
        outgoing_bandwidth: 0,
        throttle_interval: 5_000,
        throttle_acceleration: 2,
        throttle_deceleration: 2,
        connect_id: connect_id.to_be_bytes(),
    };
    let command = Command {
        channel: CHANNEL_NONE,
        number: 1,
        acknowledge: true,
        unsequenced: false,
        body: Body::Connect(handshake, 0),
    };
    let mut out = Vec::new();
    Header { peer_id: PEER_ID_NONE, session: 0, compressed: false, sent_time: Some(0) }.encode(&mut out);
    command.encode(&mut out);
    out
}

#[test]
fn spoofed_connects_are_answered_with_fewer_bytes_and_kept_in_a_bounded_table() {
    let config = Config { half_open_max: 1_000, half_open_per_ip_max: 8, ..Config::new(3) };
    let mut host = Host::new(Instant::ZERO, config).expect("sound");
    let mut rng = Rng::new(1);
    let mut balance: BTreeMap<SocketAddr, (usize, usize)> = BTreeMap::new();
    let (mut now, mut buf) = (Instant::ZERO, Vec::new());
    for round in 0..20_000 {
        now += Duration::from_micros(50);
        let ip = [10, 1, rng.below(40) as u8, rng.below(250) as u8];
        let from = SocketAddr::from((ip, 1_000 + rng.below(4) as u16));
        let datagram = connect_datagram(rng.next_u32(), rng.below(4) as u16);
        balance.entry(from).or_default().0 += datagram.len();
        host.handle_datagram(now, from, &datagram);
        host.handle_timeout(now);
        while let Some(transmit) = host.poll_transmit(now, &mut buf) {
            let (received, sent) = balance.get_mut(&transmit.to).expect("only who asked is answered");
            *sent += buf.len();
            assert!(sent <= received, "{received} bytes in, {sent} out");
        }
        assert!(host.half_open_count() <= 1_000);
        if round % 1_000 == 0 {
            host.check_invariants();
        }
    }
    assert_eq!((host.peer_count(), host.poll_event()), (0, None));
    // An hour later nothing is left, and nothing was sent unasked.
    now += Duration::from_secs(3_600);
    while let Some(at) = host.next_timeout().filter(|at| *at <= now) {
        host.handle_timeout(at.max(now));
        assert_eq!(host.poll_transmit(now, &mut buf), None);
    }
    assert_eq!(host.half_open_count(), 0);
}

#[test]
fn answers_name_the_own_address_that_was_asked() {
    let now = Instant::from_millis(5_000);
    let mut client = Host::new(now, Config::client(1)).expect("sound");
    let mut server = Host::new(now, Config::new(2)).expect("sound");
    client.connect(now, address(2), 1, 0).expect("there is room");
    let mut buf = Vec::new();
    // The client moves on to another address of the server in the middle.
    for via in [Via(3), Via(3), Via(4)] {
        let mut asked = 0;
        while client.poll_transmit(now, &mut buf).is_some() {
            server.handle_datagram_via(now, address(1), via, &buf);
            asked += 1;
        }
        assert!(asked > 0);
        while let Some(event) = server.poll_event() {
            server.send(event.peer(), Lane(0), &b"news"[..], Delivery::Reliable).expect("there is room");
        }
        while let Some(transmit) = server.poll_transmit(now, &mut buf) {
            assert_eq!((transmit.to, transmit.via), (address(1), via));
            client.handle_datagram(now, address(2), &buf);
        }
        let peer = client.peers().next().expect("it connects");
        client.ping(peer);
    }
    assert_eq!(server.stats().connects, 1);
}

#[test]
fn honest_clients_get_in_during_a_flood_of_spoofed_connects() {
    let mut now = Instant::from_millis(5_000);
    let mut server = Host::new(now, Config::new(2)).expect("sound");
    // A thousand sources, each with many ports: half a million CONNECTs in five seconds, never an
    // answer.
    let spoofed = |n: u32| {
        SocketAddr::from(([203, 0, (n % 4) as u8, (n / 4 % 250) as u8], (1_000 + n / 1_000 % 60_000) as u16))
    };
    // A hundred clients, a tenth of a second away, one every fifty milliseconds.
    let mut clients = BTreeMap::new();
    let mut wire: BTreeMap<(Instant, u64), (bool, SocketAddr, Vec<u8>)> = BTreeMap::new();
    let (mut order, mut connected, mut slowest) = (0, BTreeMap::new(), Duration::ZERO);
    let mut rng = Rng::new(8);
    let mut buf = Vec::new();
    for ms in 0..6_000_u32 {
        now += Duration::from_millis(1);
        if ms < 5_000 {
            for n in 0..100 {
                let n = ms * 100 + n;
                server.handle_datagram(now, spoofed(n), &connect_datagram(rng.next_u32(), (n % 7) as u16));
            }
            if ms % 50 == 0 {
                let from = SocketAddr::from(([10, 0, 0, (ms / 50) as u8], 5_000));
                let mut client = Host::new(now, Config::client(ms.into())).expect("sound");
                client.connect(now, address(2), 8, 0).expect("there is room");
                clients.insert(from, (client, now));
            }
        }
        while let Some(entry) = wire.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to_server, other, datagram) = entry.remove();
            if to_server {
                server.handle_datagram(now, other, &datagram);
            } else if let Some((client, _)) = clients.get_mut(&other) {
                client.handle_datagram(now, address(2), &datagram);
            }
        }
        server.handle_timeout(now);
        while let Some(transmit) = server.poll_transmit(now, &mut buf) {
            order += 1;
            if clients.contains_key(&transmit.to) {
                wire.insert((now + Duration::from_millis(50), order), (false, transmit.to, buf.clone()));
            }
        }
        for (&from, (client, begun)) in &mut clients {
            client.handle_timeout(now);
            while client.poll_transmit(now, &mut buf).is_some() {
                order += 1;
                wire.insert((now + Duration::from_millis(50), order), (true, from, buf.clone()));
            }
            while let Some(event) = client.poll_event() {
                assert!(matches!(event, Event::Connected { .. }), "{event:?}");
                connected.insert(from, ());
                slowest = slowest.max(now.since(*begun));
            }
        }
        assert!(server.half_open_count() <= 16_384);
    }
    assert_eq!((connected.len(), server.peer_count()), (100, 100));
    assert!(slowest < Duration::from_millis(150), "{slowest:?}");
    let stats = server.stats();
    assert!(stats.bytes_out <= stats.bytes_in && stats.dropped_connects > 400_000, "{stats:?}");
}

#[test]
fn one_address_cannot_take_the_whole_table() {
    let config = Config { half_open_per_ip_max: 10, half_open_per_prefix_max: 30, ..Config::new(3) };
    let mut host = Host::new(Instant::ZERO, config).expect("sound");
    for port in 1..100 {
        host.handle_datagram(Instant::ZERO, ([10, 0, 0, 1], port).into(), &connect_datagram(port.into(), 0));
    }
    assert_eq!(host.half_open_count(), 10);
    for last in 2..100 {
        host.handle_datagram(Instant::ZERO, ([10, 0, 0, last], 1).into(), &connect_datagram(7, 0));
    }
    assert_eq!(host.half_open_count(), 30);
    host.handle_datagram(Instant::ZERO, ([10, 0, 1, 1], 1).into(), &connect_datagram(7, 0));
    assert_eq!(host.half_open_count(), 31);
}

#[test]
fn a_flood_in_the_name_of_an_address_does_not_keep_its_owner_out() {
    let limits = |per_ip| Config { half_open_per_ip_max: per_ip, ..Config::new(3) };
    // The share of the address is full, then that of its prefix.
    for config in [limits(10), Config { half_open_per_prefix_max: 10, ..limits(1_000) }] {
        let mut server = Host::new(Instant::ZERO, config).expect("sound");
        let mut client = Host::new(Instant::ZERO, Config::new(4)).expect("sound");
        let [at, from] = [7u8, 1].map(|last| SocketAddr::from(([10, 0, 0, last], 7_777)));
        let (mut now, mut buf, mut forged) = (Instant::ZERO, Vec::new(), 0_u32);
        let mut flood = |server: &mut Host, now| {
            for _ in 0..2 {
                forged += 1;
                let port = 10_000 + (forged % 5_000) as u16;
                server.handle_datagram(now, ([10, 0, 0, 1], port).into(), &connect_datagram(forged, 0));
            }
        };
        (0..200).for_each(|_| flood(&mut server, now));
        client.connect(now, at, 1, 0).expect("a free slot");
        // Round trips of 4 ms beside 500 forged CONNECTs a second.
        for _ in 0..100 {
            now += Duration::from_millis(4);
            client.handle_timeout(now);
            server.handle_timeout(now);
            while client.poll_transmit(now, &mut buf).is_some() {
                server.handle_datagram(now, from, &buf);
            }
            flood(&mut server, now);
            while let Some(transmit) = server.poll_transmit(now, &mut buf) {
                if transmit.to == from {
                    client.handle_datagram(now, at, &buf);
                }
            }
            assert!(server.half_open_count() <= 11);
            server.check_invariants();
        }
        assert_eq!(server.peer_count(), 1);
    }
}

#[test]
fn the_handshake_survives_the_loss_of_any_of_its_datagrams() {
    for lost in 1..=3 {
        for side in [0, 1] {
            let mut pair = Pair::new();
            pair.lost = Some((side, lost));
            pair.hosts[0].connect(pair.now, pair.addresses[1], 1, 5).expect("there is room");
            pair.run(2_000);
            for side in [0, 1] {
                let events = pair.take(side);
                assert!(matches!(events[..], [Event::Connected { .. }]), "side {side}: {events:?}");
            }
        }
    }
}

#[test]
fn a_client_whose_acknowledgements_get_lost_for_twelve_seconds_gets_in() {
    let mut now = Instant::from_millis(5_000);
    let begun = now;
    let mut client = Host::new(now, Config::client(1)).expect("sound");
    let mut server = Host::new(now, Config::new(2)).expect("sound");
    client.connect(now, address(2), 1, 0).expect("there is room");
    let mut buf = Vec::new();
    let mut connected = None;
    while connected.is_none() && now < begun + Duration::from_secs(30) {
        now += Duration::from_millis(10);
        client.handle_timeout(now);
        server.handle_timeout(now);
        while client.poll_transmit(now, &mut buf).is_some() {
            let (_, len) = Header::decode(&buf).expect("a header");
            let first = Command::decode(&buf[len..]).expect("a command").0;
            let is_lost =
                matches!(first.body, Body::Acknowledge { .. }) && now < begun + Duration::from_secs(12);
            if !is_lost {
                server.handle_datagram(now, address(1), &buf);
            }
        }
        while server.poll_transmit(now, &mut buf).is_some() {
            client.handle_datagram(now, address(2), &buf);
        }
        while client.poll_event().is_some() {}
        connected = server.poll_event();
    }
    assert!(matches!(connected, Some(Event::Connected { .. })), "{connected:?} {:?}", server.stats());
}

#[test]
fn a_lost_confirmation_of_the_end_is_repeated() {
    let (mut pair, client, _) = Pair::connected();
    pair.hosts[0].disconnect(client, 12);
    pair.lost = Some((1, 1 + pair.sent[1]));
    pair.run(100);
    assert!(matches!(pair.take(1)[..], [Event::Disconnected { data: 12, reason: Reason::Remote, .. }]));
    assert!(matches!(pair.take(0)[..], [Event::Disconnected { reason: Reason::Local, .. }]));
}

#[test]
fn an_attempt_that_was_not_answered_ends_with_disconnect_later_as_with_disconnect() {
    for later in [false, true] {
        let mut pair = Pair::new();
        let client = pair.hosts[0].connect(pair.now, pair.addresses[1], 1, 0).expect("there is room");
        let host = &mut pair.hosts[0];
        if later {
            host.disconnect_later(client, 3)
        } else {
            host.disconnect(client, 3)
        }
        pair.run(100);
        assert_eq!((pair.take(0), pair.take(1)), (Vec::new(), Vec::new()));
        assert_eq!(pair.hosts.each_ref().map(Host::peer_count), [0, 0]);
    }
}

#[test]
fn all_connections_with_an_address_end_when_another_client_has_it() {
    let (mut pair, _, server) = Pair::connected();
    let (_, second) = pair.connect();
    // A handshake that has not ended yet as well.
    let datagram = connect_datagram(9, 77);
    pair.hosts[1].handle_datagram(pair.now, address(1), &datagram);
    let other = address(9);
    pair.hosts[1].handle_datagram(pair.now, other, &datagram);
    assert_eq!(pair.hosts[1].half_open_count(), 2);
    let mut buf = Vec::new();
    while pair.hosts[1].poll_transmit(pair.now, &mut buf).is_some() {}

    pair.hosts[1].replace_peers_at(address(1));
    assert!(!pair.hosts[1].has_peer_at(address(1)));
    assert_eq!(pair.hosts[1].half_open_count(), 1);
    let mut ended = Vec::new();
    while let Some(event) = pair.hosts[1].poll_event() {
        let Event::Disconnected { peer, data: 0, reason: Reason::Replaced } = event else {
            panic!("{event:?}");
        };
        ended.push(peer);
    }
    ended.sort();
    assert_eq!(ended, [server, second]);
    while let Some(transmit) = pair.hosts[1].poll_transmit(pair.now, &mut buf) {
        assert_eq!(transmit.to, other, "nothing is sent to the address");
    }
    pair.hosts[1].check_invariants();
}

#[test]
fn a_client_that_restarts_replaces_its_old_connection() {
    let config = || Config { naming: Naming::Sequential, ..Config::client(1) };
    let mut pair = Pair::with(config(), Config::new(2));
    let (_, old) = pair.connect();
    pair.hosts[0] = Host::new(pair.now, Config { seed: 99, ..config() }).expect("sound");
    pair.hosts[0].connect(pair.now, pair.addresses[1], 1, 5).expect("there is room");
    pair.run(5);
    let events = pair.take(1);
    assert_eq!(events[0], Event::Disconnected { peer: old, data: 0, reason: Reason::Replaced });
    assert!(matches!(events[1], Event::Connected { data: 5, .. }));
    assert_eq!(pair.hosts[1].peer_count(), 1);
}

#[test]
fn ids_are_per_address_and_run_out_gracefully() {
    let mut host = Host::new(Instant::ZERO, Config::client(1)).expect("sound");
    for _ in 0..4_095 {
        host.connect(Instant::ZERO, address(1), 1, 0).expect("an id is free");
    }
    let full = host.connect(Instant::ZERO, address(1), 1, 0);
    assert_eq!(full, Err(ConnectError::AddressFull(address(1))));
    // Another address has all of its own.
    host.connect(Instant::ZERO, address(2), 1, 0).expect("an id is free");
    assert_eq!(host.peer_count(), 4_096);
    host.check_invariants();
}

#[test]
fn more_than_4095_clients_share_a_port() {
    const CLIENTS: u16 = 6_000;
    let mut server = Host::new(
        Instant::ZERO,
        Config { half_open_per_ip_max: 8_000, half_open_per_prefix_max: 8_000, ..Config::new(2) },
    )
    .expect("sound");
    let (mut now, mut buf) = (Instant::from_millis(1), Vec::new());
    let from = |port: u16| SocketAddr::from(([10, 9, 9, 9], port + 1));
    let mut clients: Vec<Host> =
        (0..CLIENTS).map(|n| Host::new(now, Config::client(n.into())).expect("sound")).collect();
    for client in &mut clients {
        client.connect(now, address(2), 4, 0).expect("there is room");
    }
    for _ in 0..4 {
        now += Duration::from_millis(1);
        for (port, client) in (0..).zip(&mut clients) {
            while client.poll_transmit(now, &mut buf).is_some() {
                server.handle_datagram(now, from(port), &buf);
            }
        }
        while let Some(transmit) = server.poll_transmit(now, &mut buf) {
            clients[usize::from(transmit.to.port() - 1)].handle_datagram(now, address(2), &buf);
        }
    }
    let connects = std::iter::from_fn(|| server.poll_event()).count();
    assert_eq!((connects, server.peer_count()), (usize::from(CLIENTS), CLIENTS.into()));
    assert_eq!(server.broadcast(Lane(0), &b"all"[..], Delivery::Reliable), usize::from(CLIENTS));
    server.check_invariants();
}

#[test]
fn numbers_wrap_and_the_last_unreliable_one_goes_reliably() {
    let (mut pair, client, _) = Pair::connected();
    let (mut got, mut last) = (0_u32, None);
    for round in 0..140 {
        for n in 0..500_u32 {
            let data = (round * 500 + n).to_be_bytes().to_vec();
            pair.hosts[0].send(client, Lane(0), data.clone(), Delivery::Reliable).expect("room");
            pair.hosts[0].send(client, Lane(1), data, Delivery::Unreliable).expect("room");
        }
        pair.run(8);
        for event in pair.take(1) {
            let Event::Received { lane, data, delivery, .. } = event else { panic!("{event:?}") };
            let number = u32::from_be_bytes(data[..].try_into().expect("four bytes"));
            if lane == Lane(0) {
                assert_eq!(number, got);
                got += 1;
            } else {
                assert!(last.is_none_or(|last| number > last));
                last = Some(number);
                // Unreliable numbers stop at 65,535, and a reliable packet starts them anew.
                assert_eq!(delivery == Delivery::Reliable, number == 65_535, "{number}");
            }
        }
    }
    pair.run(50);
    got += pair.take(1).iter().filter(|event| matches!(event, Event::Received { lane: Lane(0), .. })).count()
        as u32;
    assert_eq!((got, last), (70_000, Some(69_999)));
}

#[test]
fn a_long_packet_arrives_while_others_play() {
    let (mut pair, client, _) = Pair::connected();
    let big: Vec<u8> = (0..32 << 20).map(|i: u32| (i ^ (i >> 9)) as u8).collect();
    pair.hosts[0].send(client, Lane(0), big.clone(), Delivery::Reliable).expect("room");
    let mut others = 0;
    for n in 0.. {
        pair.hosts[0].send(client, Lane(1), vec![0], Delivery::Unreliable).expect("room");
        pair.run(1);
        let arrived = pair.take(1).into_iter().any(|event| match event {
            Event::Received { lane: Lane(0), data, .. } => data == big,
            _ => {
                others += 1;
                false
            }
        });
        if arrived {
            // Packets sent meanwhile did not wait for it.
            assert!(others >= n, "{others} of {n}");
            return;
        }
        assert!(n < 2_000, "64 KiB a round trip of two milliseconds");
    }
}

#[test]
fn an_application_that_does_not_listen_is_not_flooded() {
    let small = Config { packet_bytes_max: 10_000, peer_bytes_max: 20_000, ..Config::new(2) };
    let mut pair = Pair::with(Config::client(1), small);
    let (client, server) = pair.connect();
    for n in 0..100_u32 {
        let data = [&n.to_be_bytes()[..], &[0; 996]].concat();
        pair.hosts[0].send(client, Lane(0), data, Delivery::Reliable).expect("room");
    }
    // Both ends, without anybody taking the server's events.
    let mut buf = Vec::new();
    for _ in 0..200 {
        pair.now += Duration::from_millis(1);
        for side in 0..2 {
            pair.hosts[side].handle_timeout(pair.now);
            while pair.hosts[side].poll_transmit(pair.now, &mut buf).is_some() {
                let from = pair.addresses[side];
                pair.hosts[1 - side].handle_datagram(pair.now, from, &buf);
            }
        }
        assert!(pair.hosts[1].held_bytes() <= 20_000);
        pair.hosts[1].check_invariants();
    }
    assert!(pair.hosts[1].stats().dropped_full > 0);
    // As soon as it listens, everything comes, in order; what was refused several times comes with
    // growing pauses.
    pair.run(20_000);
    let numbers: Vec<u32> = pair
        .take(1)
        .iter()
        .map(|event| match event {
            Event::Received { data, .. } => u32::from_be_bytes(data[..4].try_into().expect("four bytes")),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    assert_eq!(pair.hosts[1].peer(server).map(|info| info.held_bytes), Some(0));
}

#[test]
fn sending_says_what_is_wrong() {
    let (mut pair, client, _) = Pair::connected();
    let host = &mut pair.hosts[0];
    let wrong = host.send(client, Lane(8), vec![1], Delivery::Reliable);
    assert_eq!(wrong, Err(SendError::NoSuchLane { lane: 8, lanes: 8 }));
    let wrong = host.send(client, Lane(0), vec![1; (32 << 20) + 1], Delivery::Reliable);
    assert_eq!(wrong, Err(SendError::TooLong { len: (32 << 20) + 1, max: 32 << 20 }));
    host.disconnect(client, 0);
    assert_eq!(host.send(client, Lane(0), vec![1], Delivery::Reliable), Err(SendError::NotConnected));
    host.reset(client);
    assert_eq!(host.send(client, Lane(0), vec![1], Delivery::Reliable), Err(SendError::UnknownPeer));
}

#[test]
fn what_waits_for_all_peers_together_has_a_limit() {
    let config = Config { host_send_bytes_max: 10_000, ..Config::client(1) };
    let mut pair = Pair::with(config, Config::new(2));
    let (one, _) = pair.connect();
    let (two, _) = pair.connect();
    let host = &mut pair.hosts[0];
    assert_eq!(host.send(one, Lane(0), vec![1; 8_000], Delivery::Reliable), Ok(()));
    let wrong = host.send(two, Lane(0), vec![1; 8_000], Delivery::Reliable);
    assert_eq!(wrong, Err(SendError::HostQueueFull { queued: host.queued_bytes() }));
    assert_eq!(host.send(two, Lane(0), vec![1; 1_000], Delivery::Unreliable), Ok(()));
    // Packets that are acknowledged, sent for good or given up no longer count.
    pair.run(30);
    assert_eq!(pair.hosts[0].queued_bytes(), 0);
    assert_eq!(pair.hosts[0].send(two, Lane(0), vec![1; 8_000], Delivery::Reliable), Ok(()));
    pair.hosts[0].reset(two);
    assert_eq!(pair.hosts[0].queued_bytes(), 0);
}

/// A stock datagram in the other dialect, and the way back: bit 15 and bit 14 of the first word.
fn translate(datagram: &mut [u8], to_csharp: bool) {
    let (stock, csharp) = (0x80, 0x40);
    let (from, to) = if to_csharp { (stock, csharp) } else { (csharp, stock) };
    let has_time = datagram[0] & from != 0;
    datagram[0] &= 0x3F;
    datagram[0] |= if has_time { to } else { 0 };
}

#[test]
fn clients_of_two_dialects_share_a_port() {
    let now = Instant::from_millis(5_000);
    let server = |csharp_clients| {
        let compressor: Box<dyn throng_enet::Compressor> = Box::new(throng_enet::RangeCoder::new());
        Host::new(now, Config { csharp_clients, compressor: Some(compressor), ..Config::new(2) })
            .expect("sound")
    };
    for (allowed, expected) in [(true, 2), (false, 1)] {
        let mut server = server(allowed);
        let mut clients = [1, 2].map(|seed| Host::new(now, Config::client(seed)).expect("sound"));
        // Stock clients that understand compression are tested elsewhere.
        clients[0] = Host::new(
            now,
            Config { compressor: Some(Box::new(throng_enet::RangeCoder::new())), ..Config::client(1) },
        )
        .expect("sound");
        let mut peers = Vec::new();
        for client in &mut clients {
            peers.push(client.connect(now, address(9), 2, 0).expect("there is room"));
        }
        let (mut buf, mut connected, mut echoed) = (Vec::new(), 0, 0);
        for ms in 0..60 {
            let now = now + Duration::from_millis(ms);
            for (index, client) in clients.iter_mut().enumerate() {
                client.handle_timeout(now);
                while client.poll_transmit(now, &mut buf).is_some() {
                    if index == 1 {
                        translate(&mut buf, true);
                    }
                    server.handle_datagram(now, address(index as u8), &buf);
                }
            }
            server.handle_timeout(now);
            while let Some(event) = server.poll_event() {
                match event {
                    Event::Connected { .. } => connected += 1,
                    Event::Received { peer, lane, data, delivery } => {
                        server.send(peer, lane, data, delivery).expect("there is room");
                    }
                    other => panic!("{other:?}"),
                }
            }
            while let Some(transmit) = server.poll_transmit(now, &mut buf) {
                let index = usize::from(transmit.to == address(1));
                if index == 1 {
                    assert_eq!(buf[0] & 0x80, 0, "this bit means nothing there");
                    translate(&mut buf, false);
                }
                clients[index].handle_datagram(now, address(9), &buf);
            }
            for (client, peer) in clients.iter_mut().zip(&peers) {
                while let Some(event) = client.poll_event() {
                    match event {
                        Event::Connected { .. } => {
                            client.send(*peer, Lane(0), vec![7; 5_000], Delivery::Reliable).expect("room");
                            client.send(*peer, Lane(1), vec![7; 50], Delivery::Unreliable).expect("room");
                        }
                        Event::Received { data, .. } => {
                            assert!(data.iter().all(|&byte| byte == 7));
                            echoed += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        assert_eq!((connected, echoed), (expected, 2 * expected));
        server.check_invariants();
    }
}

#[test]
fn idle_connections_only_ping() {
    let (mut pair, ..) = Pair::connected();
    let before = pair.sent;
    pair.run(10_000);
    // The client pings every half second and is acknowledged; that spares the server nine of ten
    // pings of its own.
    let each = pair.sent.iter().zip(before).map(|(now, before)| now - before).max();
    assert!(each.is_some_and(|each| (20..=24).contains(&each)), "{each:?}");
    assert!(pair.take(0).is_empty() && pair.take(1).is_empty());
}

#[test]
fn a_client_that_vanishes_is_missed_without_its_pings() {
    let (mut pair, client, server) = Pair::connected();
    pair.run(3_000);
    pair.take(1);
    pair.hosts[0].reset(client);
    pair.run(9_000);
    let end = pair.take(1).pop();
    assert!(
        matches!(end, Some(Event::Disconnected { peer, reason: Reason::Timeout, .. }) if peer == server),
        "{end:?}"
    );
}

#[test]
fn other_protocols_can_share_the_port() {
    let mut host = Host::new(Instant::ZERO, Config::new(1)).expect("sound");
    host.set_intercept(Some(Box::new(|_, bytes| match bytes {
        b"who is there" => Intercept::Answer(b"a server".to_vec()),
        _ => Intercept::Pass,
    })));
    host.handle_datagram(Instant::ZERO, address(9), b"who is there");
    let mut buf = Vec::new();
    let transmit = host.poll_transmit(Instant::ZERO, &mut buf).expect("an answer");
    assert_eq!((transmit.to, &buf[..]), (address(9), &b"a server"[..]));
    host.handle_datagram(Instant::ZERO, address(9), &connect_datagram(1, 0));
    assert_eq!(host.half_open_count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_traffic_harms_nobody(seed: u64) {
        let mut rng = Rng::new(seed);
        let (mut pair, client, server) = Pair::connected();
        let mut buf = Vec::new();
        for _ in 0..60 {
            pair.now += Duration::from_millis(rng.below(40));
            for (side, peer) in [(0, client), (1, server)] {
                let len = if rng.chance(0.2) { rng.below(6_000) } else { rng.below(60) } as usize;
                let classes = [Delivery::Reliable, Delivery::Unreliable, Delivery::UnreliableFragmented, Delivery::Unsequenced];
                let delivery = classes[rng.below(4) as usize];
                // The connection may have ended by now.
                let _ = pair.hosts[side].send(peer, Lane(rng.below(8) as u8), vec![7; len], delivery);
                pair.hosts[side].handle_timeout(pair.now);
                while pair.hosts[side].poll_transmit(pair.now, &mut buf).is_some() {
                    for _ in 0..rng.below(4) {
                        let at = rng.below(buf.len() as u64) as usize;
                        match rng.below(3) {
                            0 => buf[at] = rng.next_u32() as u8,
                            1 => buf.truncate(at.max(1)),
                            _ => buf[at] ^= 1 << rng.below(8),
                        }
                    }
                    let from = pair.addresses[side];
                    pair.hosts[1 - side].handle_datagram(pair.now, from, &buf);
                }
                while pair.hosts[side].poll_event().is_some() {}
                pair.hosts[side].check_invariants();
            }
        }
    }
}

#[test]
fn a_limit_of_waiting_bytes_holds_without_overhead_and_lets_a_gap_close() {
    let small = Config { waiting_bytes_max: 5_000, ..Config::new(2) };
    let mut pair = Pair::with(Config::client(1), small);
    let (client, server) = pair.connect();
    let mut buf = Vec::new();
    let mut first = true;
    for n in 0..40_u32 {
        let data = [&n.to_be_bytes()[..], &[0; 996]].concat();
        pair.hosts[0].send(client, Lane(0), data, Delivery::Reliable).expect("room");
        pair.hosts[0].handle_timeout(pair.now);
        while pair.hosts[0].poll_transmit(pair.now, &mut buf).is_some() {
            // The first one is lost, so the others wait behind a gap.
            if !std::mem::take(&mut first) {
                pair.hosts[1].handle_datagram(pair.now, pair.addresses[0], &buf);
            }
        }
        let info = pair.hosts[1].peer(server).expect("it is connected");
        assert!(info.waiting_bytes <= 8_000, "{} bytes wait", info.waiting_bytes);
        pair.hosts[1].check_invariants();
    }
    assert!(pair.hosts[1].stats().dropped_full > 0);
    pair.run(20_000);
    let numbers: Vec<u32> = pair
        .take(1)
        .iter()
        .filter_map(|event| match event {
            Event::Received { data, .. } => {
                Some(u32::from_be_bytes(data[..4].try_into().expect("four bytes")))
            }
            _ => None,
        })
        .collect();
    assert_eq!(numbers.first(), Some(&0), "the gap was closed");
    assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>());
}
