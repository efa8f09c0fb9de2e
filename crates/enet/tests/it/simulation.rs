//! Two hosts, thirty kinds of bad network, and what must hold on each of them:
//!
//! - reliable packets arrive exactly once and in the order of their lane, or the connection ends
//!   with a reason;
//! - unreliable packets arrive at most once and never behind a later packet of their lane, reliable
//!   or not;
//! - unsequenced packets arrive at most once;
//! - no queue grows without bound, and when everything has been acknowledged nothing is left.
//!
//! A failure names its seed; `THRONG_SEED=<n> cargo test -p throng-enet --test it simulation::`
//! plays that one again. `THRONG_SEEDS=<n>` plays more of them than usual.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "seeds from the environment, played on all cores"
)]

use crate::network;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use network::{CONDITIONS, GOOD, Line, Link, Season, Weather, condition};
use throng_enet::{Bytes, Config, Delivery, Event, Host, Lane, PeerId, PeerState, RangeCoder, Reason};
use throng_stdx::{Instant, Rng};

/// Chosen so that the whole takes about ten seconds on two cores.
const SEEDS: u64 = 1_000;

#[test]
fn promises_hold_on_any_network() {
    if let Some(seed) = number("THRONG_SEED") {
        World::new(seed).run();
        return;
    }
    let seeds = number("THRONG_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let total = Mutex::new((Report::default(), BTreeMap::<&str, Report>::new()));
    let failures = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&seed| seed < seeds)
                {
                    match std::panic::catch_unwind(|| World::new(seed).run()) {
                        Ok(report) => {
                            let (sum, by_condition) = &mut *total.lock().expect("nobody panics here");
                            sum.add(&report);
                            by_condition.entry(condition(seed).name).or_default().add(&report);
                        }
                        Err(cause) => {
                            let text = format!("{}: {}", condition(seed).name, text(&*cause));
                            failures.lock().expect("nobody panics here").insert(seed, text);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics here");
    if let Some((seed, text)) = failures.first_key_value() {
        let count = failures.len();
        panic!(
            "{count} of {seeds} seeds fail: {failures:#?}\n{text}\n  replay: THRONG_SEED={seed} cargo test -p throng-enet --test it simulation::"
        );
    }
    let (total, by_condition) = total.into_inner().expect("nobody panics here");
    if seeds < SEEDS {
        return;
    }
    // The networks were as bad as intended, and the traffic was there.
    assert_eq!(by_condition.len(), CONDITIONS.len());
    assert!(total.delivered > 60 * seeds && total.lost > 10 * seeds && total.doubled > seeds, "{total:?}");
    assert!(total.connected > seeds * 9 / 10 && total.fragmented > seeds, "{total:?}");
    let of = |name: &str| &by_condition[name];
    assert_eq!(of("2 MB/s").timeouts, 0);
    assert!(of("new NAT address").timeouts > 0, "nobody knows the new address: {:?}", of("new NAT address"));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 17, 99, 100, 101, 119] {
        assert_eq!(World::new(seed).run(), World::new(seed).run());
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn text(cause: &(dyn std::any::Any + Send)) -> &str {
    let words = cause.downcast_ref::<String>().map(String::as_str);
    words.or(cause.downcast_ref::<&str>().copied()).unwrap_or("panicked")
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    connected: u64,
    delivered: u64,
    fragmented: u64,
    lost: u64,
    doubled: u64,
    timeouts: u64,
    /// Of everything that happened, in order.
    digest: u64,
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.connected += other.connected;
        self.delivered += other.delivered;
        self.fragmented += other.fragmented;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.timeouts += other.timeouts;
    }

    fn note(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(7);
    }
}

/// One end: the host, its connection, and what it still owes its application.
struct End {
    host: Host,
    peer: Option<PeerId>,
    address: SocketAddr,
    /// The way from here to the other end, and the chance of a flipped bit.
    line: Line,
    damage: f64,
    rng: Rng,
    /// Packets sent, per lane: (number, delivery class).
    next: BTreeMap<u8, u32>,
    /// Reliable packets that the other end has not seen yet, per lane.
    promised: BTreeMap<u8, VecDeque<u32>>,
    /// Last number seen per lane and order, and all of those without order.
    last_ordered: BTreeMap<u8, u32>,
    unordered: BTreeSet<(u8, u32)>,
    sends_left: u32,
    ended: Option<Reason>,
}

struct World {
    now: Instant,
    ends: [End; 2],
    /// On the way: arrival and order, receiver, source, content.
    wire: BTreeMap<(Instant, u64), (usize, SocketAddr, Vec<u8>)>,
    sent: u64,
    rng: Rng,
    lanes: u8,
    report: Report,
    steps: u64,
    weather: Weather,
    starts_at: Instant,
    heals_at: Instant,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let condition = condition(seed);
        let checksum = rng.chance(0.3);
        let compress = rng.chance(0.2);
        let lanes = 1 + rng.below(4) as u8;
        let now = Instant::from_millis(rng.below(1 << 33));
        let sends = 20 + rng.below(150) as u32;
        let damage = if checksum && rng.chance(0.4) { rng.f64() * 0.05 } else { 0.0 };
        let end = |accept: bool, port: u16, link: Link, rng: &mut Rng| {
            let limit = |rng: &mut Rng| if rng.chance(0.1) { 200_000 } else { 0 };
            let mut config = Config {
                accept,
                checksum,
                mtu: [576, 1392, 4096][rng.below(3) as usize],
                incoming_bandwidth: limit(rng),
                outgoing_bandwidth: limit(rng),
                packet_bytes_max: 1 << 20,
                peer_bytes_max: 4 << 20,
                ..Config::new(u128::from(rng.next_u64()))
            };
            if compress {
                config.compressor = Some(Box::new(RangeCoder::new()));
            }
            End {
                host: Host::new(now, config).expect("sound"),
                peer: None,
                address: SocketAddr::from(([10, 0, 0, port as u8], port)),
                line: Line::new(link, now),
                damage,
                rng: rng.fork(),
                next: BTreeMap::new(),
                promised: BTreeMap::new(),
                last_ordered: BTreeMap::new(),
                unordered: BTreeSet::new(),
                sends_left: sends,
                ended: None,
            }
        };
        let back = condition.back.unwrap_or(condition.link);
        let ends = [end(false, 1, condition.link, &mut rng), end(true, 2, back, &mut rng)];
        Self {
            now,
            ends,
            wire: BTreeMap::new(),
            sent: 0,
            rng,
            lanes,
            report: Report::default(),
            steps: 0,
            weather: condition.weather,
            starts_at: now,
            heals_at: now + Duration::from_secs(20),
        }
    }

    fn run(mut self) -> Report {
        let server = self.ends[1].address;
        let peer = self.ends[0].host.connect(self.clock(0), server, self.lanes, 7).expect("there is room");
        self.ends[0].peer = Some(peer);
        let give_up = self.now + Duration::from_secs(150);
        while !self.is_done() {
            assert!(self.now < give_up, "no end after two minutes: {:?}", self.state());
            self.steps += 1;
            assert!(self.steps < 400_000, "too much work: {:?}", self.state());
            self.step();
        }
        self.check_end();
        self.report
    }

    /// Clock of an end.
    fn clock(&self, index: usize) -> Instant {
        if index == 0 && self.weather == Weather::Skew {
            let passed = self.now.since(self.starts_at);
            return self.now + passed * 3 / 100;
        }
        self.now
    }

    /// Time of the end's next timer on the world's clock.
    fn timeout(&self, index: usize) -> Option<Instant> {
        let at = self.ends[index].host.next_timeout()?;
        let wait = at.since(self.clock(index));
        // A little late rather than too early, for ever.
        Some(
            self.now
                + if index == 0 && self.weather == Weather::Skew {
                    wait * 100 / 103 + Duration::from_nanos(100)
                } else {
                    wait
                },
        )
    }

    /// Lets time pass until the next thing happens.
    fn step(&mut self) {
        let timers = [self.timeout(0), self.timeout(1)].into_iter().flatten();
        let arrivals = self.wire.keys().next().map(|&(at, _)| at);
        let app = self.now + Duration::from_micros(1 + self.rng.below(30_000));
        let next = timers.chain(arrivals).min().unwrap_or(app).min(app);
        self.now = self.now.max(next);
        let passed = self.now.since(self.starts_at);
        if self.now >= self.heals_at {
            for end in &mut self.ends {
                let link = end.line.link;
                end.line.link = Link { rate: link.rate.max(200_000), delay_ms: link.delay_ms, ..GOOD };
                end.damage = 0.0;
            }
        } else if self.weather == Weather::Rebind && passed > Duration::from_secs(4) {
            self.ends[0].address.set_port(9_999);
        }
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, from, datagram) = entry.remove();
            let now = self.clock(to);
            self.ends[to].host.handle_datagram(now, from, &datagram);
        }
        for index in 0..2 {
            let now = self.clock(index);
            self.ends[index].host.handle_timeout(now);
            self.take_events(index);
            self.send_something(index);
            self.transmit(index);
            self.check_bounds(index);
        }
    }

    fn transmit(&mut self, index: usize) {
        let mut buf = Vec::new();
        let other = 1 - index;
        let clock = self.clock(index);
        let season = Season { passed: self.now.since(self.starts_at), is_stormy: self.now < self.heals_at };
        while let Some(transmit) = self.ends[index].host.poll_transmit(clock, &mut buf) {
            assert!(!buf.is_empty() && buf.len() <= 4_100);
            self.report.note(buf.len() as u64);
            let doubling = self.ends[index].line.link.doubling;
            let copies = if self.rng.chance(doubling) { 2 } else { 1 };
            self.report.doubled += copies - 1;
            for _ in 0..copies {
                let is_known = transmit.to == self.ends[other].address;
                let line = &mut self.ends[index].line;
                let arrival = line.carry(&mut self.rng, self.now, self.weather, season, buf.len());
                let Some(arrival) = arrival.filter(|_| is_known) else {
                    self.report.lost += 1;
                    continue;
                };
                let mut copy = buf.clone();
                if self.rng.chance(self.ends[index].damage) {
                    let bit = self.rng.below(8 * copy.len() as u64) as usize;
                    copy[bit / 8] ^= 1 << (bit % 8);
                }
                self.sent += 1;
                let from = self.ends[index].address;
                self.wire.insert((arrival, self.sent), (other, from, copy));
            }
        }
    }

    fn send_something(&mut self, index: usize) {
        let lanes = self.lanes;
        let end = &mut self.ends[index];
        let Some(peer) = end.peer else { return };
        let is_connected = end.host.peer(peer).is_some_and(|info| info.state == PeerState::Connected);
        if !is_connected || end.ended.is_some() {
            return;
        }
        for _ in 0..end.rng.below(4) {
            if end.sends_left == 0 {
                return;
            }
            end.sends_left -= 1;
            let lane = end.rng.below(lanes.into()) as u8;
            let delivery = match end.rng.below(10) {
                0..4 => Delivery::Reliable,
                4..7 => Delivery::Unreliable,
                7 => Delivery::UnreliableFragmented,
                8 => Delivery::Unsequenced,
                _ => Delivery::UnsequencedFragmented,
            };
            let len = match end.rng.below(20) {
                0 => end.rng.below(60_000),
                1..4 => end.rng.below(5_000),
                _ => end.rng.below(200),
            } as usize;
            let number = end.next.entry(lane).or_insert(0);
            *number += 1;
            let number = *number;
            let data = payload(number, delivery, len);
            end.host.send(peer, Lane(lane), data, delivery).expect("the lane exists and there is room");
            if delivery == Delivery::Reliable {
                end.promised.entry(lane).or_default().push_back(number);
            }
        }
        // One side ends the conversation when it has nothing more to say.
        if index == 0 && end.sends_left == 0 && self.now >= self.heals_at {
            end.host.disconnect_later(peer, 9);
        }
    }

    fn take_events(&mut self, index: usize) {
        // Now and then an application looks the other way for a while.
        if self.rng.chance(0.3) {
            return;
        }
        while let Some(event) = self.ends[index].host.poll_event() {
            match event {
                Event::Connected { peer, data } => {
                    self.report.connected += 1;
                    assert_eq!(data, if index == 1 { 7 } else { 0 });
                    self.ends[index].peer = Some(peer);
                }
                Event::Disconnected { peer, reason, .. } => {
                    assert_eq!(Some(peer), self.ends[index].peer);
                    self.report.timeouts += u64::from(reason == Reason::Timeout);
                    self.ends[index].ended = Some(reason);
                }
                Event::Received { peer, lane, data, delivery } => {
                    assert_eq!(Some(peer), self.ends[index].peer);
                    self.receive(index, lane.0, &data, delivery);
                }
                _ => panic!("an event that is not known here"),
            }
        }
    }

    fn receive(&mut self, index: usize, lane: u8, data: &[u8], delivery: Delivery) {
        let (number, class, is_sound) = parse(data);
        assert!(is_sound, "the content changed on the way");
        self.report.delivered += 1;
        self.report.fragmented += u64::from(data.len() > 4_096);
        self.report.note(u64::from(number));
        let [a, b] = &mut self.ends;
        let (sender, receiver) = if index == 0 { (b, a) } else { (a, b) };
        if class == Delivery::Reliable {
            assert_eq!(delivery, Delivery::Reliable);
            let promised = sender.promised.get_mut(&lane).expect("something was sent");
            assert_eq!(promised.pop_front(), Some(number), "lane {lane}: not the next reliable packet");
        }
        let is_ordered = delivery != Delivery::Unsequenced
            && !matches!(class, Delivery::Unsequenced | Delivery::UnsequencedFragmented);
        if is_ordered {
            let last = receiver.last_ordered.entry(lane).or_insert(0);
            assert!(number > *last, "lane {lane}: {number} after {last}");
            *last = number;
        }
        assert!(receiver.unordered.insert((lane, number)), "lane {lane}: {number} twice");
    }

    fn check_bounds(&mut self, index: usize) {
        let end = &self.ends[index];
        if self.steps.is_multiple_of(8) {
            end.host.check_invariants();
        }
        if let Some(info) = end.peer.and_then(|peer| end.host.peer(peer)) {
            assert!(info.held_bytes <= 4 << 20);
            assert!(info.in_flight_bytes <= 65_536 + 4_096 && info.throttle <= 32, "{info:?}");
        }
        assert!(end.host.half_open_count() <= 1 && end.host.peer_count() <= 1);
    }

    fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.ended.is_some() || end.peer.is_none() && self.now >= self.heals_at)
            && self.ends[0].ended.is_some()
    }

    fn check_end(&mut self) {
        let reasons = [self.ends[0].ended, self.ends[1].ended];
        let was_clean = reasons[0] == Some(Reason::Local) && reasons[1] == Some(Reason::Remote);
        if was_clean {
            // The client waited for its last word to be acknowledged.
            let missing: usize = self.ends[0].promised.values().map(VecDeque::len).sum();
            assert_eq!(missing, 0, "an orderly end loses nothing");
        } else {
            assert!(reasons.iter().flatten().any(|reason| *reason == Reason::Timeout), "{reasons:?}");
        }
        for end in &self.ends {
            assert_eq!((end.host.peer_count(), end.host.held_bytes()), (0, 0));
        }
    }

    fn state(&self) -> Vec<String> {
        let look = |end: &End| format!("{:?} {:?}", end.ended, end.peer.and_then(|peer| end.host.peer(peer)));
        self.ends.iter().map(look).collect()
    }
}

/// A packet that says what it is: number, class, and bytes that follow from both.
fn payload(number: u32, delivery: Delivery, len: usize) -> Bytes {
    let mut data = number.to_be_bytes().to_vec();
    data.push(delivery as u8);
    data.extend((0..len).map(|i| (i as u32).wrapping_mul(number | 1) as u8));
    data.into()
}

fn parse(data: &[u8]) -> (u32, Delivery, bool) {
    let number = u32::from_be_bytes(data[..4].try_into().expect("four bytes"));
    let classes = [
        Delivery::Reliable,
        Delivery::Unreliable,
        Delivery::UnreliableFragmented,
        Delivery::Unsequenced,
        Delivery::UnsequencedFragmented,
    ];
    let class = classes[usize::from(data[4])];
    (number, class, payload(number, class, data.len() - 5) == data)
}
