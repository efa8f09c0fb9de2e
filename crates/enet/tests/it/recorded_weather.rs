//! Recorded conversations of clients on the C library, carried to a Throng server by thirty kinds
//! of bad network.
//!
//! The recorded client cannot react, so what gets lost stays lost unless the recording repeats it.
//! What must hold all the same: reliable packets arrive exactly once and in the order of their
//! lane, others at most once, unreliable ones never behind a later one of their lane; nothing is
//! made up; and what waits is bounded.

use crate::fixture;
use crate::network;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use fixture::{bytes, flag, number, scenarios, steps, vectors};
use network::{CONDITIONS, Condition, Line, Season, Weather};
use serde_json::Value;
use throng_enet::{BandwidthReports, Config, Delivery, Event, Host, Naming, Pings, RangeCoder, Windows};
use throng_stdx::{Instant, Rng};

/// Runs of each recording on each network.
const SEEDS: u64 = 4;
/// The recordings take two seconds, the weather's course sixteen.
const HASTE: u32 = 8;

/// A packet as the recording describes it: its length, and the digits of its first bytes.
type Packet = (u64, String);

#[test]
fn recorded_clients_are_understood_on_any_network() {
    let vectors = vectors();
    let (mut runs, mut arrived, mut recorded) = (0, 0, 0);
    for scenario in scenarios(&vectors).iter().filter(is_fit) {
        for condition in &CONDITIONS {
            for seed in 0..SEEDS {
                let packets = play(scenario, condition, seed);
                runs += 1;
                arrived += packets;
                recorded += received(scenario).count();
            }
        }
    }
    // The networks were bad, and the connections stood.
    assert!(runs > 1_500 && arrived > recorded / 2 && arrived < recorded, "{runs}: {arrived} of {recorded}");
}

/// One connection, of which the server heard something.
fn is_fit(scenario: &&Value) -> bool {
    let connects = events(scenario, "connect").count();
    let injected = steps(scenario).iter().any(|step| step["kind"] == "inject");
    // Of the longest, most was not recorded.
    let is_whole = !scenario["name"].as_str().is_some_and(|name| name.contains("_seq_"));
    connects == 1 && !injected && is_whole && received(scenario).count() > 0
}

fn events<'a>(scenario: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let at_server = |step: &&Value| step["kind"] == "event" && step["at"] == "server";
    steps(scenario).iter().filter(at_server).filter(move |step| step["type"] == kind)
}

fn received(scenario: &Value) -> impl Iterator<Item = &Value> {
    events(scenario, "receive")
}

/// Plays a recording; the number of packets that arrived.
fn play(scenario: &Value, condition: &Condition, seed: u64) -> usize {
    let name = format!("{} on {}, seed {seed}", scenario["name"], condition.name);
    let mut rng = Rng::new(seed);
    let base = scenario["settings"]["clock_base"].as_u64().unwrap_or(1_000);
    let start = Instant::from_millis(base);
    let mut host = Host::new(start, config(scenario)).expect("a sound configuration");
    let (here, elsewhere): (SocketAddr, SocketAddr) =
        (([127, 0, 0, 1], 9).into(), ([127, 0, 0, 1], 10).into());
    let connected = events(scenario, "connect").next().map_or(0, |step| number(&step["t_ms"]));
    let mut line = Line::new(condition.link, start);
    let mut wire: BTreeMap<(Instant, usize), (SocketAddr, Vec<u8>)> = BTreeMap::new();
    let said = steps(scenario).iter().filter(|step| step["kind"] == "datagram" && step["from"] == "client");
    for (order, step) in said.filter(|step| step["lost"] != true).enumerate() {
        let (t, datagram) = (number(&step["t_ms"]), bytes(&step["hex"]));
        let sent = Instant::from_millis(base + t);
        // The handshake is about times, and the recorded client cannot answer to others.
        if t <= connected {
            wire.insert((sent, 2 * order), (here, datagram));
            continue;
        }
        let season = Season { passed: Duration::from_millis(t) * HASTE, is_stormy: true };
        let has_moved = condition.weather == Weather::Rebind && season.passed.as_secs() > 4;
        for copy in 0..=usize::from(rng.chance(condition.link.doubling)) {
            if let Some(at) = line.carry(&mut rng, sent, condition.weather, season, datagram.len()) {
                let from = if has_moved { elsewhere } else { here };
                wire.insert((at, 2 * order + copy), (from, datagram.clone()));
            }
        }
    }
    let mut seen = Seen::new(scenario);
    let mut buf = Vec::new();
    for ((at, _), (from, datagram)) in wire {
        host.handle_timeout(at);
        host.handle_datagram(at, from, &datagram);
        while let Some(event) = host.poll_event() {
            seen.take(&name, event);
        }
        while host.poll_transmit(at, &mut buf).is_some() {}
        host.check_invariants();
        assert!(host.held_bytes() < 100_000, "{name}: {} bytes wait", host.held_bytes());
    }
    assert!(seen.is_connected, "{name}");
    seen.count
}

fn config(scenario: &Value) -> Config {
    let settings = &scenario["settings"];
    let bandwidth = |name: &str| settings[name].as_u64().unwrap_or(0) as u32;
    let mut config = Config {
        naming: Naming::Sequential,
        pings: Pings::Always,
        windows: Windows::Throttled,
        bandwidth_reports: BandwidthReports::Always,
        resend_floor: Duration::ZERO,
        checksum: flag(scenario, "checksum"),
        mtu: if scenario["name"].as_str().is_some_and(|name| name.ends_with("@1.3.18")) {
            1392
        } else {
            1400
        },
        lanes_max: number(&settings["server_channel_limit"]) as u8,
        incoming_bandwidth: bandwidth("server_in_bw"),
        outgoing_bandwidth: bandwidth("server_out_bw"),
        ..Config::new(7)
    };
    if flag(scenario, "range_coder") {
        config.compressor = Some(Box::new(RangeCoder::new()));
    }
    config
}

/// Packets that may still arrive, by lane and kind, in the order in which it was said.
struct Seen {
    expected: BTreeMap<(u64, Kind), VecDeque<Packet>>,
    is_connected: bool,
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Reliable,
    Unreliable,
    Unsequenced,
}

impl Seen {
    fn new(scenario: &Value) -> Self {
        let mut expected: BTreeMap<(u64, Kind), VecDeque<Packet>> = BTreeMap::new();
        for step in received(scenario) {
            let kind = match step["delivery"].as_str() {
                Some("reliable") => Kind::Reliable,
                Some("unsequenced") => Kind::Unsequenced,
                _ => Kind::Unreliable,
            };
            let digits = step["payload_prefix_hex"].as_str().expect("digits").to_owned();
            let packet = (number(&step["len"]), digits);
            expected.entry((number(&step["channel"]), kind)).or_default().push_back(packet);
        }
        Self { expected, is_connected: false, count: 0 }
    }

    fn take(&mut self, name: &str, event: Event) {
        let Event::Received { lane, data, delivery, .. } = event else {
            self.is_connected |= matches!(event, Event::Connected { .. });
            return;
        };
        let kind = match delivery {
            Delivery::Reliable => Kind::Reliable,
            Delivery::Unsequenced => Kind::Unsequenced,
            _ => Kind::Unreliable,
        };
        let digits = data.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
        let packet: Packet = (data.len() as u64, digits);
        let left = self.expected.entry((lane.0.into(), kind)).or_default();
        let at = left.iter().position(|other| *other == packet);
        let at = at.unwrap_or_else(|| panic!("{name}: {kind:?} on lane {} twice, late or made up", lane.0));
        match kind {
            Kind::Reliable => assert_eq!(at, 0, "{name}: lane {} has a gap", lane.0),
            // Those before it are too late now.
            Kind::Unreliable => drop(left.drain(..at)),
            Kind::Unsequenced => {}
        }
        left.remove(if kind == Kind::Unreliable { 0 } else { at });
        self.count += 1;
    }
}
