//! Work of a host, in turns of loops rather than in time.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use throng_stdx::{Instant, Rng};

use crate::peer::COMMANDS_PER_TURN;
use crate::wire::{Body, CHANNEL_NONE, Command, Fragment, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED};
use crate::{BandwidthReports, Config, Delivery, Event, Host, Lane, PeerId, SendError, work};

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
fn a_ping_is_due_at_once_when_a_shorter_interval_has_passed() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    for _ in 0..20 {
        pair.turn();
    }
    let mut datagram = Vec::new();
    assert_eq!(pair.hosts[0].poll_transmit(pair.now, &mut datagram), None);
    pair.hosts[0].set_ping_interval(peer, Duration::from_millis(50));
    assert!(pair.hosts[0].poll_transmit(pair.now, &mut datagram).is_some());
}

/// A peer that sends unreliable packets acknowledges nothing but pings.
#[test]
fn the_throttle_recovers_within_ten_seconds_of_a_jitter() {
    let mut pair = Pair::new(Config::new(2));
    let client = pair.connect(1);
    let server = pair.hosts[1].peers().next().expect("it is connected");
    let mut to_server = Vec::new();
    let mut throttles = Vec::new();
    for turn in 0..1_200 {
        pair.now += Duration::from_millis(10);
        pair.hosts.iter_mut().for_each(|host| host.handle_timeout(pair.now));
        pair.hosts[0].send(client, Lane(0), &b"input"[..], Delivery::Unreliable).expect("there is room");
        if turn < 200 && turn % 5 == 0 {
            pair.hosts[1].send(server, Lane(0), &b"state"[..], Delivery::Reliable).expect("there is room");
        }
        let mut datagram = Vec::new();
        while pair.hosts[1].poll_transmit(pair.now, &mut datagram).is_some() {
            pair.hosts[0].handle_datagram(pair.now, address(1), &datagram);
        }
        let late = if (100..200).contains(&turn) { 10 * (turn % 31) } else { 10 };
        while pair.hosts[0].poll_transmit(pair.now, &mut datagram).is_some() {
            to_server.push((pair.now + Duration::from_millis(late), datagram.clone()));
        }
        to_server.retain(|(at, datagram)| {
            let is_late = *at > pair.now;
            if !is_late {
                pair.hosts[1].handle_datagram(pair.now, address(0), datagram);
            }
            is_late
        });
        pair.hosts.iter_mut().for_each(|host| while host.poll_event().is_some() {});
        throttles.push(pair.hosts[1].peer(server).expect("it is connected").throttle);
    }
    assert!(throttles[200] < 16, "it holds packets back: {throttles:?}");
    assert_eq!(throttles[1_199], 32);
}

/// The range coder packs the ids of an answer worse than a CONNECT.
#[test]
fn a_handshake_takes_one_round_trip_with_the_range_coder_and_a_bandwidth() {
    for seed in 0..40 {
        let coder = || Some(alloc::boxed::Box::new(crate::RangeCoder::new()) as _);
        let limit = 1_000_000 + 7_919 * seed as u32;
        let server = Config {
            compressor: coder(),
            incoming_bandwidth: limit,
            outgoing_bandwidth: limit,
            ..Config::new(seed)
        };
        let mut pair = Pair::new(server);
        pair.hosts[0] =
            Host::new(pair.now, Config { compressor: coder(), ..Config::client(seed) }).expect("sound");
        pair.connect(1);
        assert_eq!(pair.hosts[1].peer_count(), 1, "seed {seed}");
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
        pair.now += Duration::from_micros(1);
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

/// The header under which a connected client's datagrams reach the server of `pair`.
fn client_header(pair: &mut Pair, peer: PeerId) -> Header {
    pair.hosts[0].send(peer, Lane(0), &b"x"[..], Delivery::Unreliable).expect("there is room");
    let mut datagram = Vec::new();
    let _ = pair.hosts[0].poll_transmit(pair.now, &mut datagram).expect("a datagram");
    let header = Header::decode(&datagram).expect("a header").0;
    Header { sent_time: Some(0), ..header }
}

/// Hands the server of `pair` one command that its client could have sent, a microsecond after the
/// one before: all of them have their turn at once.
fn inject(pair: &mut Pair, header: Header, command: Command<'_>) {
    pair.now += Duration::from_micros(1);
    let mut datagram = Vec::new();
    header.encode(&mut datagram);
    command.encode(&mut datagram);
    pair.hosts[1].handle_datagram(pair.now, address(0), &datagram);
}

fn loose_fragment(number: u16, count: u32, index: u32) -> Command<'static> {
    let fragment = Fragment { start: number, count, index, total: count, offset: index, payload: b"x" };
    let body = Body::SendUnreliableFragment(fragment);
    Command { channel: 0, number: 0, acknowledge: false, unsequenced: false, body }
}

#[test]
fn incomplete_unreliable_packets_do_not_slow_down_complete_ones() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    let header = client_header(&mut pair, peer);
    // The second halves of 10,000 packets, then 10,000 whole ones before them.
    for number in 20_000..30_000 {
        inject(&mut pair, header, loose_fragment(number, 2, 1));
    }
    let before = work::steps();
    for number in 1..10_000 {
        inject(&mut pair, header, loose_fragment(number, 1, 0));
    }
    let steps = work::steps() - before;
    let received = core::iter::from_fn(|| pair.hosts[1].poll_event()).count();
    assert_eq!(received, 9_999);
    assert!(steps < 50_000, "{steps} steps for 9,999 packets");
}

#[test]
fn a_burst_of_tiny_commands_takes_turns_with_other_peers() {
    const BURST: u16 = 60_000;
    let now = Instant::from_millis(1_000);
    let config = Config { naming: crate::Naming::Sequential, ..Config::new(2) };
    let mut crowd = Crowd { now, host: Host::new(now, config).expect("sound") };
    crowd.join(1);
    crowd.join(2);
    let before = work::steps();
    let mut datagram = Vec::new();
    for first in (1..BURST).step_by(50) {
        datagram.clear();
        Header { peer_id: 0, session: 0, compressed: false, sent_time: None }.encode(&mut datagram);
        for number in first..first + 50 {
            loose_fragment(number, 1, 0).encode(&mut datagram);
        }
        crowd.host.handle_datagram(crowd.now, Crowd::address(1), &datagram);
    }
    let most = u64::from(COMMANDS_PER_TURN) * 8;
    assert!(work::steps() - before < most, "{} steps for the burst", work::steps() - before);
    // A peer behind the burst is served at once.
    crowd.send(2, 1);
    let (mut received, mut turns) = (0, 0);
    loop {
        let (before, lens) = (work::steps(), crowd.events().0);
        assert_eq!(lens.contains(&1_024), turns == 0);
        received += lens.len();
        let Some(at) = crowd.host.next_timeout().filter(|&at| at < now + Duration::from_millis(100)) else {
            break;
        };
        crowd.now = at;
        crowd.host.handle_timeout(at);
        let steps = work::steps() - before;
        assert!(steps < most, "{steps} steps for a turn");
        turns += 1;
    }
    assert_eq!((received, turns), (usize::from(BURST) + 1, u32::from(BURST).div_ceil(COMMANDS_PER_TURN) - 1));
    assert_eq!(crowd.host.held_bytes(), 0);
}

#[test]
fn announcing_a_batch_takes_no_steps_however_much_waits() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    let header = client_header(&mut pair, peer);
    // Number 1 never comes.
    for number in 2..1_002 {
        let body = Body::SendReliable { payload: b"x" };
        inject(
            &mut pair,
            header,
            Command { channel: 0, number, acknowledge: false, unsequenced: false, body },
        );
    }
    assert!(pair.hosts[1].held_bytes() > 100_000, "{} bytes wait", pair.hosts[1].held_bytes());
    let before = work::steps();
    pair.hosts[1].prefetch([address(0); 64]);
    assert_eq!(work::steps() - before, 0);
}

#[test]
fn a_crowded_address_gets_its_last_id_in_a_few_steps() {
    let config = Config { half_open_per_ip_max: 8_192, half_open_per_prefix_max: 1 << 20, ..Config::new(2) };
    let mut pair = Pair::new(Config { half_open_max: 1 << 20, ..config });
    let now = pair.now;
    let mut steps_max = 0;
    for _ in 0..4_095 {
        let before = work::steps();
        let connected = pair.hosts[0].connect(now, address(1), 1, 0);
        connected.expect("an id is free");
        steps_max = steps_max.max(work::steps() - before);
    }
    assert!(steps_max <= 200, "{steps_max} steps for one connection");
    assert!(pair.hosts[0].connect(now, address(1), 1, 0).is_err(), "all ids are in use");
    for _ in 0..4 {
        pair.turn();
    }
    assert_eq!(pair.hosts[1].peer_count(), 4_095);
    // Another 1,000 CONNECTs from the full address, as a stranger can send them.
    let before = work::steps();
    for n in 0..1_000 {
        let datagram = connect_datagram(n, (n % 4_000) as u16);
        pair.hosts[1].handle_datagram(pair.now, address(0), &datagram);
    }
    let steps = work::steps() - before;
    assert!(steps <= 70_000, "{steps} steps for 1,000 CONNECTs");
    for host in &pair.hosts {
        host.check_invariants();
    }
}

fn connect_datagram(connect_id: u32, peer_id: u16) -> Vec<u8> {
    let handshake = Handshake {
        peer_id,
        incoming_session: SESSION_UNUSED,
        outgoing_session: SESSION_UNUSED,
        mtu: 1400,
        window: 65_536,
        channels: 1,
        incoming_bandwidth: 0,
        outgoing_bandwidth: 0,
        throttle_interval: 5_000,
        throttle_acceleration: 2,
        throttle_deceleration: 2,
        connect_id: connect_id.to_be_bytes(),
    };
    let body = Body::Connect(handshake, 0);
    let mut out = Vec::new();
    Header { peer_id: PEER_ID_NONE, session: 0, compressed: false, sent_time: Some(0) }.encode(&mut out);
    Command { channel: CHANNEL_NONE, number: 1, acknowledge: true, unsequenced: false, body }
        .encode(&mut out);
    out
}

#[test]
fn the_refusal_of_a_long_packet_names_the_longest_that_the_lane_takes_now() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    for _ in 0..4_080 {
        pair.hosts[0].send(peer, Lane(0), &b"x"[..], Delivery::Reliable).expect("there is room");
    }
    let refused = pair.hosts[0].send(peer, Lane(0), alloc::vec![0; 32 << 20], Delivery::Reliable);
    let Err(SendError::TooLongNow { len, max, lane }) = refused else { panic!("{refused:?}") };
    assert_eq!((len, lane), (32 << 20, 0));
    let refused = pair.hosts[0].send(peer, Lane(0), alloc::vec![0; max + 1], Delivery::Reliable);
    assert_eq!(refused, Err(SendError::TooLongNow { len: max + 1, max, lane }));
    assert_eq!(pair.hosts[0].send(peer, Lane(0), alloc::vec![0; max], Delivery::Reliable), Ok(()));
}

#[test]
fn a_full_budget_is_not_counted_as_malformed() {
    let config = Config { packet_bytes_max: 1_000, peer_bytes_max: 2_000, ..Config::new(2) };
    let mut pair = Pair::new(config);
    let peer = pair.connect(1);
    let header = client_header(&mut pair, peer);
    for number in 2..100 {
        let body = Body::SendReliable { payload: &[7; 100] };
        let command = Command { channel: 0, number, acknowledge: true, unsequenced: false, body };
        inject(&mut pair, header, command);
    }
    let stats = pair.hosts[1].stats();
    assert!(stats.dropped_full > 80, "{stats:?}");
    assert_eq!(stats.dropped_malformed, 0);
}

#[test]
fn a_datagram_with_another_session_is_not_the_peers() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    let header = client_header(&mut pair, peer);
    for session in 0..4 {
        inject(&mut pair, Header { session, ..header }, loose_fragment(1 + u16::from(session), 1, 0));
    }
    let received = core::iter::from_fn(|| pair.hosts[1].poll_event()).count();
    assert_eq!((received, pair.hosts[1].stats().dropped_unknown), (1, 3));
}

#[test]
fn acknowledgements_that_wait_for_one_peer_are_bounded() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.connect(1);
    let header = client_header(&mut pair, peer);
    for _ in 0..10_000 {
        let command = Command {
            channel: CHANNEL_NONE,
            number: 9,
            acknowledge: true,
            unsequenced: false,
            body: Body::Ping,
        };
        inject(&mut pair, header, command);
    }
    let mut datagram = Vec::new();
    let mut bytes = 0;
    while pair.hosts[1].poll_transmit(pair.now, &mut datagram).is_some() {
        bytes += datagram.len();
    }
    assert!((4_096 * 8..4_096 * 8 + 10_000).contains(&bytes), "{bytes} bytes of acknowledgements");
    assert_eq!(pair.hosts[1].stats().dropped_full, 10_000 - 4_096);
}

#[test]
fn a_verify_connect_with_another_connect_id_is_refused() {
    let mut pair = Pair::new(Config::new(2));
    let peer = pair.hosts[0].connect(pair.now, address(1), 1, 0).expect("there is room");
    let mut datagram = Vec::new();
    let _ = pair.hosts[0].poll_transmit(pair.now, &mut datagram).expect("a CONNECT");
    pair.hosts[1].handle_datagram(pair.now, address(0), &datagram);
    let _ = pair.hosts[1].poll_transmit(pair.now, &mut datagram).expect("a VERIFY_CONNECT");
    let (header, at) = Header::decode(&datagram).expect("a header");
    let Ok((Command { body: Body::VerifyConnect(handshake), number, channel, .. }, _)) =
        Command::decode(&datagram[at..])
    else {
        panic!("{datagram:?}")
    };
    let mut connect_id = handshake.connect_id;
    connect_id[3] ^= 1;
    let body = Body::VerifyConnect(Handshake { connect_id, ..handshake });
    let mut forged = Vec::new();
    header.encode(&mut forged);
    Command { channel, number, acknowledge: true, unsequenced: false, body }.encode(&mut forged);
    pair.hosts[0].handle_datagram(pair.now, address(1), &forged);
    let event = pair.hosts[0].poll_event();
    assert_eq!(event, Some(Event::Disconnected { peer, data: 0, reason: crate::Reason::Refused }));
}

#[test]
fn repeated_connects_from_an_unproven_address_are_answered_with_eight_bytes_more_at_most() {
    // A compressor that shrinks CONNECT makes the answer the longer datagram.
    let config = Config { compressor: Some(alloc::boxed::Box::new(OneConnect)), ..Config::new(2) };
    let mut pair = Pair::new(config);
    let mut packed = Vec::new();
    Header { peer_id: PEER_ID_NONE, session: 0, compressed: true, sent_time: Some(0) }.encode(&mut packed);
    packed.push(1);
    let (mut bytes_in, mut bytes_out, mut datagram) = (0, 0, Vec::new());
    for _ in 0..200 {
        bytes_in += packed.len();
        pair.hosts[1].handle_datagram(pair.now, address(0), &packed);
        while pair.hosts[1].poll_transmit(pair.now, &mut datagram).is_some() {
            bytes_out += datagram.len();
        }
        assert!(bytes_out <= bytes_in + 8, "{bytes_in} bytes in, {bytes_out} out");
    }
    assert!(bytes_out > 0, "the balance allows an answer in the end");
}

/// Unpacks any block to one CONNECT, and packs nothing.
struct OneConnect;

impl crate::Compressor for OneConnect {
    fn compress(&mut self, _: &[u8], _: usize, _: &mut Vec<u8>) -> bool {
        false
    }

    fn decompress(&mut self, _: &[u8], _: usize, output: &mut Vec<u8>) -> Result<(), crate::CorruptBlock> {
        output.extend_from_slice(&connect_datagram(7, 0)[4..]);
        Ok(())
    }
}

/// A server with many clients, each with an address of its own, of which only datagrams exist.
struct Crowd {
    now: Instant,
    host: Host,
}

/// Fragments that arrived, none of which completes a packet.
type Hoard = fn(u16) -> Body<'static>;

/// Bytes that a client of a [`Crowd`] holds at most behind a gap.
const HOARD_BYTES: usize = 128 << 10;

impl Crowd {
    /// Room for a hoard of `hoarders` clients, who have filled it.
    fn full(hoarders: u16, hoard: Hoard) -> Self {
        Self::full_of(hoarders, hoard, HOARD_BYTES)
    }

    /// As [`full`](Self::full), with so many bytes for each that was not admitted.
    fn full_of(hoarders: u16, hoard: Hoard, each: usize) -> Self {
        let config = Config {
            naming: crate::Naming::Sequential,
            packet_bytes_max: HOARD_BYTES,
            peer_bytes_max: 2 * HOARD_BYTES,
            // The last eighth is for those that hold little.
            host_bytes_max: usize::from(hoarders) * each * 8 / 7,
            newcomer_bytes_max: 2 * each,
            ..Config::new(2)
        };
        let now = Instant::from_millis(1_000);
        let mut crowd = Self { now, host: Host::new(now, config).expect("sound") };
        for client in 1..=hoarders {
            crowd.join(client);
            crowd.hoard(client, hoard, 1_000);
        }
        assert!(crowd.host.stats().dropped_full > 0, "they take what they can get");
        crowd
    }

    fn join(&mut self, client: u16) {
        self.host.handle_datagram(self.now, Self::address(client), &connect_datagram(client.into(), 0));
        let mut datagram = Vec::new();
        while self.host.poll_transmit(self.now, &mut datagram).is_some() {}
        let sent_time = self.now.as_millis() as u16;
        self.receive(client, CHANNEL_NONE, 0, Body::Acknowledge { number: 1, sent_time });
        let mut events = core::iter::from_fn(|| self.host.poll_event());
        assert!(events.any(|event| matches!(event, Event::Connected { .. })));
    }

    fn receive(&mut self, client: u16, channel: u8, number: u16, body: Body<'_>) {
        let mut datagram = Vec::new();
        let sent_time = Some(self.now.as_millis() as u16);
        Header { peer_id: 0, session: 0, compressed: false, sent_time }.encode(&mut datagram);
        let acknowledge = matches!(body, Body::SendFragment(_));
        Command { channel, number, acknowledge, unsequenced: false, body }.encode(&mut datagram);
        self.host.handle_datagram(self.now, Self::address(client), &datagram);
        while self.host.poll_transmit(self.now, &mut datagram).is_some() {}
    }

    fn hoard(&mut self, client: u16, hoard: Hoard, fragments: u16) {
        for n in 0..fragments {
            let number = if let Body::SendFragment(_) = hoard(n) { 2 * n + 3 } else { 0 };
            self.receive(client, 0, number, hoard(n));
        }
    }

    /// A client sends a reliable packet of `parts` kibibytes.
    fn send(&mut self, client: u16, parts: u32) {
        let payload = [7; 1_024];
        for index in 0..parts {
            let (total, offset) = (parts * 1_024, index * 1_024);
            let fragment = Fragment { start: 1, count: parts, index, total, offset, payload: &payload };
            self.receive(client, 0, 1 + index as u16, Body::SendFragment(fragment));
        }
    }

    /// Lengths of the packets that have arrived, and connections that ended.
    fn events(&mut self) -> (Vec<usize>, usize) {
        self.host.check_invariants();
        let (mut lens, mut ends) = (Vec::new(), 0);
        while let Some(event) = self.host.poll_event() {
            match event {
                Event::Received { data, .. } => lens.push(data.len()),
                Event::Disconnected { reason, .. } => {
                    assert_eq!(reason, crate::Reason::MadeRoom);
                    ends += 1;
                }
                Event::Connected { .. } => {}
            }
        }
        (lens, ends)
    }

    fn address(client: u16) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, 1], client))
    }
}

/// Second halves of reliable packets behind a gap.
fn reliable_halves(n: u16) -> Body<'static> {
    Body::SendFragment(Fragment { start: 2 * n + 2, count: 2, index: 1, total: 2, offset: 1, payload: b"x" })
}

/// Second halves of packets that may get lost.
fn loose_halves(n: u16) -> Body<'static> {
    Body::SendUnreliableFragment(Fragment {
        start: n + 1,
        count: 2,
        index: 1,
        total: 2,
        offset: 1,
        payload: b"x",
    })
}

#[test]
fn those_who_hold_the_most_make_room_for_those_who_hold_less() {
    let mut crowd = Crowd::full(40, reliable_halves);
    crowd.join(1_000);
    crowd.send(1_000, 60);
    // Reliable packets were acknowledged and do not come again, so their sender cannot continue.
    assert_eq!(crowd.events(), ([60 << 10].into(), 1));
    assert_eq!((crowd.host.stats().made_room, crowd.host.stats().disconnects), (1, 1));
}

#[test]
fn unreliable_fragments_make_room_without_an_end_of_their_connection() {
    let mut crowd = Crowd::full(40, loose_halves);
    crowd.join(1_000);
    crowd.send(1_000, 60);
    assert_eq!(crowd.events(), ([60 << 10].into(), 0));
    assert_eq!((crowd.host.stats().made_room, crowd.host.peer_count()), (1, 41));
}

#[test]
fn who_holds_as_much_as_the_others_gets_no_room_from_them() {
    let mut crowd = Crowd::full(40, reliable_halves);
    crowd.join(1_000);
    for round in 0..2 {
        crowd.hoard(1_000, reliable_halves, 1_000);
        // One made room until this one held as much.
        assert_eq!(crowd.events(), (Vec::new(), 1 - round));
    }
    assert_eq!(crowd.host.peer_count(), 40);
}

#[test]
fn room_is_made_without_a_look_at_all_peers() {
    let steps = |hoarders: u16| {
        let mut crowd = Crowd::full(hoarders, reliable_halves);
        crowd.join(60_000);
        let before = work::steps();
        crowd.send(60_000, 60);
        let steps = work::steps() - before;
        assert_eq!(crowd.events(), ([60 << 10].into(), 1));
        steps
    };
    let (few, many) = (steps(20), steps(400));
    assert!(many <= few + 20, "{few} steps among 20 hoarders, {many} among 400");
}

#[test]
fn peers_that_were_not_admitted_make_room_for_those_that_were_and_get_none_from_them() {
    let mut crowd = Crowd::full_of(40, reliable_halves, 32 << 10);
    crowd.join(1_000);
    crowd.send(1_000, 60);
    assert_eq!(crowd.events(), (Vec::new(), 1), "it gets as much as the others have");
    let player = crowd.host.peers().max().expect("it is connected");
    crowd.host.admit(player);
    crowd.send(1_000, 60);
    assert_eq!(crowd.events(), ([60 << 10].into(), 1));
    // Another long packet of the player waits; newcomers fill what is left.
    for index in 0..50 {
        let (total, offset) = (60 << 10, index << 10);
        let payload = &[7; 1_024];
        let fragment = Fragment { start: 61, count: 60, index, total, offset, payload };
        crowd.receive(1_000, 0, 61 + index as u16, Body::SendFragment(fragment));
    }
    for client in 2_000..2_010 {
        crowd.join(client);
        crowd.hoard(client, reliable_halves, 1_000);
    }
    let _ = crowd.events();
    let held = crowd.host.peer(player).expect("it is connected").held_bytes;
    assert!(held >= 50 << 10, "{held} bytes");
}

#[test]
fn newcomers_hold_less_until_they_are_admitted() {
    let config = Config { naming: crate::Naming::Sequential, newcomer_bytes_max: 32 << 10, ..Config::new(2) };
    let now = Instant::from_millis(1_000);
    let mut crowd = Crowd { now, host: Host::new(now, config).expect("sound") };
    crowd.join(1);
    crowd.hoard(1, reliable_halves, 1_000);
    let held = crowd.host.held_bytes();
    assert!((15 << 10..=16 << 10).contains(&held), "{held} bytes, half of them are for what is next");
    let peer = crowd.host.peers().next().expect("it is connected");
    crowd.host.admit(peer);
    crowd.hoard(1, reliable_halves, 1_000);
    assert_eq!(crowd.host.held_bytes(), 1_000 * held / (held / 321));
    assert_eq!(crowd.events(), (Vec::new(), 0));
}
