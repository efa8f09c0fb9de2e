//! Allocations of a host: per connection, and per packet once it is warm.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use allocation_counter::measure;
use throng_enet::wire::{
    Body, CHANNEL_NONE, Command, Fragment, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED,
};
use throng_enet::{Config, Delivery, Event, Host, Lane};
use throng_stdx::Instant;

/// A client without memory of its own: what it says follows from what it hears.
fn answer(heard: &[u8], now: Instant, say: &mut Vec<u8>) -> bool {
    let Some((header, len)) = Header::decode(heard) else { return false };
    say.clear();
    let mut rest = &heard[len..];
    while let Ok((command, len)) = Command::decode(rest) {
        rest = &rest[len..];
        if let (true, Some(sent_time)) = (command.acknowledge, header.sent_time) {
            if let Body::VerifyConnect(verify) = command.body {
                let (peer_id, session) = (verify.peer_id, verify.outgoing_session);
                Header { peer_id, session, compressed: false, sent_time: None }.encode(say);
            } else if say.is_empty() {
                // The fixture's server is named by its client's port; see `Crowd`.
                Header { peer_id: 0, session: 0, compressed: false, sent_time: Some(now.as_millis() as u16) }
                    .encode(say);
            }
            let body = Body::Acknowledge { number: command.number, sent_time };
            let channel = command.channel;
            Command { channel, number: command.number, acknowledge: false, unsequenced: false, body }
                .encode(say);
        }
    }
    !say.is_empty()
}

fn connect_datagram() -> Vec<u8> {
    let handshake = Handshake {
        peer_id: 0,
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
        connect_id: [1, 2, 3, 4],
    };
    let body = Body::Connect(handshake, 0);
    let mut out = Vec::new();
    Header { peer_id: PEER_ID_NONE, session: 0, compressed: false, sent_time: Some(0) }.encode(&mut out);
    Command { channel: CHANNEL_NONE, number: 1, acknowledge: true, unsequenced: false, body }
        .encode(&mut out);
    out
}

#[test]
fn an_idle_connection_with_255_lanes_takes_less_than_a_kilobyte_and_a_half() {
    const PEERS: u32 = 10_000;
    // Sequential names: every client has an address of its own, so all are number 0 in session 0.
    let config = Config { naming: throng_enet::Naming::Sequential, ..Config::new(1) };
    let mut now = Instant::from_millis(1_000);
    let mut host = Host::new(now, config).expect("sound");
    let address = |n: u32| SocketAddr::from(((0x0A00_0000 | n).to_be_bytes(), 5_000));
    let connect = connect_datagram();
    let (mut heard, mut said) = (Vec::with_capacity(2_000), Vec::with_capacity(2_000));
    let used = measure(|| {
        for n in 0..PEERS {
            host.handle_datagram(now, address(n), &connect);
            let to = host.poll_transmit(now, &mut heard).expect("an answer").to;
            assert!(answer(&heard, now, &mut said));
            host.handle_datagram(now, to, &said);
        }
        while host.poll_event().is_some() {}
        // Pings, and their acknowledgements.
        for _ in 0..30 {
            now += Duration::from_millis(100);
            host.handle_timeout(now);
            while let Some(transmit) = host.poll_transmit(now, &mut heard) {
                if answer(&heard, now, &mut said) {
                    host.handle_datagram(now, transmit.to, &said);
                }
            }
        }
    });
    assert_eq!(host.peer_count(), PEERS as usize);
    assert_eq!(host.peers().filter_map(|peer| host.peer(peer)).map(|info| info.lanes).min(), Some(255));
    let each = used.bytes_current / i64::from(PEERS);
    assert!(each <= 1_536, "{each} bytes each");
    host.check_invariants();
}

#[test]
fn an_echo_allocates_nothing_but_the_packet() {
    let mut now = Instant::from_millis(1_000);
    let (client_address, server_address) =
        (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 2)));
    let mut client = Host::new(now, Config::client(1)).expect("sound");
    let mut server = Host::new(now, Config::new(2)).expect("sound");
    let peer = client.connect(now, server_address, 4, 0).expect("there is room");
    let mut buf = Vec::with_capacity(4_096);
    let content = throng_enet::Bytes::from_static(&[7; 40]);
    let mut echoed = 0;
    let mut counts = VecDeque::with_capacity(10_000);
    for round in 0..2_000 {
        now += Duration::from_millis(5);
        client.handle_timeout(now);
        if round > 3 {
            let delivery = if round % 2 == 0 { Delivery::Reliable } else { Delivery::Unreliable };
            client.send(peer, Lane((round % 4) as u8), content.clone(), delivery).expect("there is room");
        }
        let mut received = 0;
        let used = measure(|| server.handle_timeout(now));
        let mut allocations = used.count_total;
        while client.poll_transmit(now, &mut buf).is_some() {
            let used = measure(|| {
                server.handle_datagram(now, client_address, &buf);
                while let Some(event) = server.poll_event() {
                    if let Event::Received { peer, lane, data, delivery } = event {
                        received += 1;
                        server.send(peer, lane, data, delivery).expect("there is room");
                    }
                }
            });
            allocations += used.count_total;
        }
        loop {
            let mut is_over = false;
            let used = measure(|| is_over = server.poll_transmit(now, &mut buf).is_none());
            allocations += used.count_total;
            if is_over {
                break;
            }
            client.handle_datagram(now, server_address, &buf);
        }
        while let Some(event) = client.poll_event() {
            echoed += u32::from(matches!(event, Event::Received { .. }));
        }
        counts.push_back((allocations, received));
    }
    assert!(echoed > 1_990);
    let warm = counts.iter().skip(500);
    let (allocations, packets) = warm.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(packets >= 1_490 && allocations <= packets, "{allocations} allocations for {packets} packets");
}

/// One command in a datagram from the client at `address`, whose connection has id 0 and session 0.
fn command(command: Command<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    Header { peer_id: 0, session: 0, compressed: false, sent_time: Some(0) }.encode(&mut out);
    command.encode(&mut out);
    out
}

/// Traffic of four peers: a packet number, a fragment, and whether it is reliable.
type Flood = fn(u32) -> (u16, Fragment<'static>, bool);

#[test]
fn what_peers_make_a_host_allocate_is_charged_and_bounded() {
    const AT_ONCE: &str = "fragments of packets within a millisecond";
    const FLOODS: [(&str, Flood); 7] = [
        (AT_ONCE, |n| (1, fragment(n as u16, 2, 1, 2, 1, b"x"), false)),
        ("second fragments of reliable packets", |n| {
            let start = (2 * n % 28_000 + 2) as u16;
            (start + 1, fragment(start, 2, 1, 1_000, 999, b"x"), true)
        }),
        ("second fragments of unreliable packets", |n| (1, fragment(n as u16, 2, 1, 2, 1, b"x"), false)),
        ("first fragments of unreliable packets", |n| {
            (1, fragment(n as u16, 2_000, 0, 1 << 20, 0, b"x"), false)
        }),
        ("every other fragment of one packet", |n| {
            (1, fragment(7, 1 << 20, (2 * n + 1) % (1 << 20), 32 << 20, (2 * n + 1) % (1 << 20), b"x"), false)
        }),
        ("fragments in falling order", |n| {
            let index = 900_000 - n % 900_000;
            (1, fragment(7, 1 << 20, index, 32 << 20, index, &[7; 40]), false)
        }),
        ("the beginning of a long packet", |n| {
            let (start, index) = ((n / 400) as u16, n % 400);
            (1, fragment(start, 30_000, index, 32 << 20, index * 1_024, &[7; 1_024]), false)
        }),
    ];
    for (name, flood) in FLOODS {
        let config =
            Config { naming: throng_enet::Naming::Sequential, host_bytes_max: 40 << 20, ..Config::new(1) };
        let now = Instant::from_millis(1_000);
        let mut host = Host::new(now, config).expect("sound");
        let address = |n: u8| SocketAddr::from(([10, 0, 0, n], 5_000));
        let (mut heard, mut said) = (Vec::with_capacity(2_000), Vec::with_capacity(2_000));
        for n in 0..4 {
            host.handle_datagram(now, address(n), &connect_datagram());
            let _ = host.poll_transmit(now, &mut heard).expect("an answer");
            assert!(answer(&heard, now, &mut said));
            host.handle_datagram(now, address(n), &said);
        }
        while host.poll_event().is_some() {}
        assert_eq!(host.held_bytes(), 0);
        let (mut charged_max, mut now) = (0, now);
        let used = measure(|| {
            for n in 0..250_000 {
                // Slow enough for every command to have its turn at once, but for one flood.
                now += Duration::from_micros(u64::from(name != AT_ONCE));
                let (number, fragment, is_reliable) = flood(n);
                let body = if is_reliable {
                    Body::SendFragment(fragment)
                } else {
                    Body::SendUnreliableFragment(fragment)
                };
                let datagram = command(Command {
                    channel: (n / 65_536) as u8,
                    number,
                    acknowledge: false,
                    unsequenced: false,
                    body,
                });
                for peer in 0..4 {
                    host.handle_datagram(now, address(peer), &datagram);
                }
                charged_max = charged_max.max(host.held_bytes());
            }
        });
        assert!(charged_max <= 40 << 20, "{name}: {charged_max} bytes charged");
        assert!(charged_max >= 15 << 20, "{name}: {charged_max} bytes charged");
        let limit = charged_max as u64 * 13 / 10;
        assert!(used.bytes_max <= limit, "{name}: {} bytes allocated, {charged_max} charged", used.bytes_max);
        host.check_invariants();
        let peers: Vec<_> = host.peers().collect();
        for peer in peers {
            host.reset(peer);
        }
        assert_eq!(host.held_bytes(), 0);
    }
}

fn fragment(
    start: u16,
    count: u32,
    index: u32,
    total: u32,
    offset: u32,
    payload: &'static [u8],
) -> Fragment<'static> {
    Fragment { start, count, index, total, offset, payload }
}
