//! Conversations with the C library, played again with a Throng host in the place of either side:
//! given the same clock, the same calls and what the other side sent, it must send the same
//! datagrams at the same times, and its application must see the same events.
//!
//! The calls are read off the recorded datagrams: a data command seen for the first time was a call
//! of send, and so on.

use crate::fixture;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use fixture::{bytes, commands, flag, number, scenarios, steps, unpack, vectors};
use serde_json::Value;
use throng_enet::wire::{Body, CHANNEL_NONE, Fragment, PEER_ID_NONE};
use throng_enet::{
    BandwidthReports, Config, Delivery, Event, Host, Lane, Naming, PeerId, Pings, RangeCoder, Windows,
};
use throng_stdx::Instant;

/// Intended differences, and the comparison that remains.
#[derive(Clone, Copy, PartialEq)]
enum Check {
    /// Datagrams and events.
    Everything,
    /// Events: the datagrams differ for the reason given.
    Events(&'static str),
    /// Nothing of this side can be replayed, for the reason given.
    Nothing(&'static str),
}

fn check_for(name: &str, side: &str) -> Check {
    match (name.trim_end_matches("@1.3.18"), side) {
        ("malformed", "server") if !name.contains('@') => {
            Check::Events("an empty fragment is refused, as by 1.3.18")
        }
        ("malformed_connect", "server") => Check::Events("a repeated CONNECT is answered again"),
        ("amplification", "server") => Check::Events("a CONNECT is answered once, nothing is sent unasked"),
        ("disconnect_lost_ack", "server") => Check::Events("a repeated DISCONNECT is acknowledged again"),
        ("mtu_clamp_low", "client") => Check::Events("an MTU of 100 cannot be configured"),
        ("reliable_timeout", _) => {
            Check::Events("every command has its own timeout and does not wait for older ones to expire")
        }
        ("verify_ack_lost", "server") => Check::Nothing(
            "the client answers a VERIFY_CONNECT that the C library resent by timer; Throng sends none unasked",
        ),
        ("unreliable_seq_limit" | "reliable_seq_wrap", _) => {
            Check::Nothing("65,534 packets of it were not recorded; tests/session.rs has its own")
        }
        _ => Check::Everything,
    }
}

#[test]
fn recorded_conversations_repeat() {
    let vectors = vectors();
    let mut failures = Vec::new();
    let (mut repeated, mut exact) = (0, 0);
    for scenario in scenarios(&vectors) {
        for side in ["client", "server"] {
            let name = scenario["name"].as_str().expect("a name");
            let check = check_for(name, side);
            if matches!(check, Check::Nothing(_)) {
                continue;
            }
            let (expected, found) = replay(scenario, side);
            let kept = |line: &&String| check == Check::Everything || !line.contains(" sends ");
            let expected: Vec<&String> = expected.iter().filter(kept).collect();
            let found: Vec<&String> = found.iter().filter(kept).collect();
            repeated += 1;
            exact += usize::from(check == Check::Everything);
            if expected != found {
                let at = expected.iter().zip(&found).take_while(|(a, b)| a == b).count();
                failures.push(format!(
                    "{name}, {side}, step {at}:\n  recorded {:.400}\n  found    {:.400}",
                    expected.get(at).map_or("nothing", |line| line),
                    found.get(at).map_or("nothing", |line| line)
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {repeated} differ\n{}", failures.len(), failures.join("\n"));
    assert_eq!((repeated, exact), (71, 64), "of 76 sides");
}

/// The recording of one side, and the acts of a host in its place, in the same words.
fn replay(scenario: &Value, side: &str) -> (Vec<String>, Vec<String>) {
    let settings = &scenario["settings"];
    let is_server = side == "server";
    let base = settings["clock_base"].as_u64().unwrap_or(1_000);
    let bandwidth = |name: &str| settings[name].as_u64().unwrap_or(0) as u32;
    let mut config = Config {
        accept: is_server,
        naming: Naming::Sequential,
        pings: Pings::Always,
        windows: Windows::Throttled,
        bandwidth_reports: BandwidthReports::Always,
        resend_floor: Duration::ZERO,
        checksum: flag(scenario, "checksum"),
        mtu: mtu(scenario, side),
        incoming_bandwidth: bandwidth(&format!("{side}_in_bw")),
        outgoing_bandwidth: bandwidth(&format!("{side}_out_bw")),
        ..Config::new(7)
    };
    if flag(scenario, "range_coder") {
        config.compressor = Some(Box::new(RangeCoder::new()));
    }
    if is_server {
        config.peers_max = number(&settings["server_max_peers"]) as usize;
        config.lanes_max = number(&settings["server_channel_limit"]) as u8;
        if let Some(limit) = settings["server_duplicate_peers"].as_u64() {
            config.peers_per_ip_max = limit as usize;
        }
    }
    let other: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let at = |ms: u64| Instant::from_millis(base + ms);
    let mut host = Host::new(at(0), config).expect("a sound configuration");
    let mut player = Player { scenario, side, seen: BTreeSet::new(), connects: BTreeSet::new() };
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    let mut buf = Vec::new();
    let last = steps(scenario).iter().map(|step| number(&step["t_ms"])).max().expect("some steps");
    for t in 0..=last {
        let now: Vec<&Value> = steps(scenario).iter().filter(|step| number(&step["t_ms"]) == t).collect();
        let own: Vec<&Value> =
            now.iter().copied().filter(|step| step["kind"] == "datagram" && step["from"] == side).collect();
        player.act(&mut host, at(t), t, other, &own);
        let mut service = |host: &mut Host, datagrams: &[Vec<u8>]| {
            host.handle_timeout(at(t));
            while host.poll_transmit(at(t), &mut buf).is_some() {
                found.push(format!("{t} sends {}", hex(&buf)));
            }
            for datagram in datagrams {
                host.handle_datagram(at(t), other, datagram);
            }
            while host.poll_transmit(at(t), &mut buf).is_some() {
                found.push(format!("{t} sends {}", hex(&buf)));
            }
            host.check_invariants();
        };
        // The client is served first: what it receives now was sent one step ago, and the server
        // gets its datagrams now.
        let arrives = if is_server { t } else { t.wrapping_sub(1) };
        let arriving: Vec<Vec<u8>> = steps(scenario)
            .iter()
            .filter(|step| number(&step["t_ms"]) == arrives && step["lost"] != true)
            .filter(|step| {
                step["kind"] == "datagram" && step["from"] != side || step["kind"] == "inject" && is_server
            })
            .map(|step| bytes(&step["hex"]))
            .collect();
        service(&mut host, &arriving);
        while let Some(event) = host.poll_event() {
            found.push(Player::describe(t, event));
        }
        for step in now {
            if step["kind"] == "datagram" && step["from"] == side {
                expected.push(format!("{t} sends {}", step["hex"].as_str().expect("digits")));
            } else if step["kind"] == "event" && step["at"] == side {
                expected.push(describe_step(t, step));
            }
        }
    }
    // Within one step, an event and the datagrams around it have no order that both sides would
    // share.
    let key = |line: &String| {
        let mut words = line.split(' ');
        let time: u64 = words.next().and_then(|word| word.parse().ok()).expect("a time");
        (time, words.next() == Some("sends"))
    };
    expected.sort_by_key(key);
    found.sort_by_key(key);
    (expected, found)
}

/// Makes the calls that the recorded side made.
struct Player<'a> {
    scenario: &'a Value,
    side: &'a str,
    /// Commands whose call was made, by peer, channel, number and the like.
    seen: BTreeSet<(u16, u8, u8, u16, u16, u32)>,
    /// Connect ids seen so far.
    connects: BTreeSet<[u8; 4]>,
}

impl Player<'_> {
    fn act(&mut self, host: &mut Host, now: Instant, t: u64, other: SocketAddr, own: &[&Value]) {
        if t == 70
            && self.side == "server"
            && self.scenario["name"].as_str().expect("a name").starts_with("basic")
        {
            host.set_bandwidth(now, 100_000, 200_000);
        }
        let mut fragments: BTreeMap<(u16, u8, u16), (bool, Vec<u8>)> = BTreeMap::new();
        let unpacked: Vec<_> = own.iter().map(|step| unpack(self.scenario, &bytes(&step["hex"]))).collect();
        // The parts of a packet may stand in several datagrams; its call comes where the first part
        // is.
        for (header, body) in &unpacked {
            for command in commands(body) {
                if let Body::SendFragment(part) | Body::SendUnreliableFragment(part) = command.body {
                    let key = (header.peer_id, command.channel, part.start);
                    let packet = fragments.entry(key).or_insert((command.acknowledge, Vec::new()));
                    packet.1.extend_from_slice(part.payload);
                }
            }
        }
        for (header, body) in &unpacked {
            for command in commands(body) {
                let (kind, extra) = match command.body {
                    Body::SendUnreliable { unreliable_number, .. } => (7, unreliable_number),
                    Body::SendUnsequenced { group, .. } => (9, group),
                    Body::SendUnreliableFragment(Fragment { start, .. }) => (12, start),
                    Body::SendFragment(_) => (8, 0),
                    Body::SendReliable { .. } => (6, 0),
                    Body::Connect(handshake, _) => (2, handshake.peer_id),
                    Body::Disconnect { .. } => (4, 0),
                    Body::ThrottleConfigure { .. } => (11, 0),
                    _ => continue,
                };
                // Connections may follow each other on the same id.
                if let Body::Connect(handshake, _) = command.body {
                    self.connects.insert(handshake.connect_id);
                }
                let round = self.connects.len() as u32;
                let is_later_part = match command.body {
                    Body::SendFragment(part) | Body::SendUnreliableFragment(part) => part.index != 0,
                    _ => false,
                };
                if is_later_part {
                    continue;
                }
                if !self.seen.insert((header.peer_id, command.channel, kind, command.number, extra, round)) {
                    continue;
                }
                if let Body::Connect(handshake, data) = command.body {
                    host.set_next_connect_id(handshake.connect_id);
                    host.connect(now, other, handshake.channels as u8, data).expect("there is room");
                    continue;
                }
                let lane = Lane(command.channel);
                let peer = peer_of(host, header.peer_id);
                match command.body {
                    Body::ThrottleConfigure { interval, acceleration, deceleration } => {
                        let interval = Duration::from_millis(interval.into());
                        host.configure_throttle(peer, interval, acceleration, deceleration);
                        continue;
                    }
                    Body::Disconnect { data } if command.acknowledge => host.disconnect(peer, data),
                    Body::Disconnect { data } => host.disconnect_now(peer, data),
                    _ => {}
                }
                if command.channel == CHANNEL_NONE {
                    continue;
                }
                let (payload, delivery) = match command.body {
                    Body::SendReliable { payload } => (payload.to_vec(), Delivery::Reliable),
                    Body::SendUnreliable { payload, .. } => (payload.to_vec(), Delivery::Unreliable),
                    Body::SendUnsequenced { payload, .. } => (payload.to_vec(), Delivery::Unsequenced),
                    Body::SendFragment(part) | Body::SendUnreliableFragment(part) => {
                        let (reliable, packet) = fragments
                            .remove(&(header.peer_id, command.channel, part.start))
                            .expect("the parts were collected");
                        let delivery =
                            if reliable { Delivery::Reliable } else { Delivery::UnreliableFragmented };
                        (packet, delivery)
                    }
                    _ => continue,
                };
                host.send(peer, lane, payload, delivery).expect("the recorded call succeeded");
            }
        }
    }

    fn describe(t: u64, event: Event) -> String {
        match event {
            Event::Connected { data, .. } => format!("{t} connect {data}"),
            Event::Disconnected { data, .. } => format!("{t} disconnect {data}"),
            Event::Received { lane, data, delivery, .. } => {
                let delivery = match delivery {
                    Delivery::Reliable => "reliable",
                    Delivery::Unreliable => "unreliable",
                    Delivery::UnreliableFragmented => "unreliable_fragment",
                    _ => "unsequenced",
                };
                let prefix = &data[..data.len().min(64)];
                format!("{t} receive {} {} {delivery} {}", lane.0, data.len(), hex(prefix))
            }
            _ => format!("{t} something else"),
        }
    }
}

/// The connection that the recorded datagrams address by this id. Both ends give ids from 0
/// upwards, in the order of the connections; no id yet means the connection that was asked for
/// last.
fn peer_of(host: &Host, remote_id: u16) -> PeerId {
    let mut peers: Vec<PeerId> = host.peers().collect();
    peers.sort();
    let at = if remote_id == PEER_ID_NONE { peers.len() - 1 } else { usize::from(remote_id) };
    peers[at]
}

fn describe_step(t: u64, step: &Value) -> String {
    match step["type"].as_str() {
        Some("receive") => format!(
            "{t} receive {} {} {} {}",
            step["channel"],
            step["len"],
            step["delivery"].as_str().expect("a word"),
            step["payload_prefix_hex"].as_str().expect("digits")
        ),
        Some(word) => format!("{t} {word} {}", step["data"]),
        None => panic!("{step} has no type"),
    }
}

/// The MTU that this side was configured with, which it shows in its handshake.
fn mtu(scenario: &Value, side: &str) -> u16 {
    let shown = steps(scenario).iter().filter(|step| step["kind"] == "datagram" && step["from"] == side);
    let shown = shown.filter_map(|step| step["decoded"]["commands"][0]["mtu"].as_u64()).next();
    // A server shows the lower of the two.
    let default = if scenario["name"].as_str().expect("a name").ends_with("@1.3.18") { 1392 } else { 1400 };
    if side == "server" { default } else { shown.map_or(default, |mtu| mtu.clamp(576, 4096) as u16) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
