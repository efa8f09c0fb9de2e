//! Bulk transfers: their speed alone, and the share that they leave to others.
//!
//! `THRONG_TRANSFER_SEEDS=<n>` plays more than a few of them on each network, `--nocapture` shows
//! the tables.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "seeds from the environment")]
#![allow(clippy::print_stderr, reason = "tables on request")]

use crate::network::{CONDITIONS, Condition, GOOD, Line, Link, Season, Weather};

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rusty_enet as rusty;
use throng_enet::{Bytes, Config, Delivery, Event, Host, Lane, PeerId};
use throng_stdx::{Instant, Rng};

/// Seeds on each network; the full proof has twenty.
const SEEDS: u64 = 3;
const TRANSFER_BYTES: usize = 4 << 20;
const PACKET_BYTES: usize = 64 << 10;

/// A sender and its receiver, 0 and 1, and what they give to the network.
trait Flow {
    /// Lets an end do what is due, and adds what it sends to `out`.
    fn step(&mut self, end: usize, now: Instant, out: &mut Vec<Vec<u8>>);
    fn receive(&mut self, end: usize, now: Instant, datagram: &[u8]);
    /// Bytes that the receiver's application has got.
    fn received(&self) -> usize;
    /// Gives the sender bytes to send.
    fn offer(&mut self, bytes: usize);
    /// The connection was given up.
    fn is_over(&self) -> bool {
        false
    }
}

/// This crate at both ends.
struct Ours {
    hosts: [Host; 2],
    peer: PeerId,
    is_connected: bool,
    is_over: bool,
    offered: usize,
    received: usize,
    buf: Vec<u8>,
}

impl Ours {
    fn new(seed: u64) -> Self {
        let now = Instant::from_millis(1_000);
        let config = |accept, seed: u64| Config {
            accept,
            packet_bytes_max: 1 << 20,
            send_bytes_max: 1 << 30,
            ..Config::new(seed.into())
        };
        let mut hosts = [config(false, 2 * seed), config(true, 2 * seed + 1)]
            .map(|config| Host::new(now, config).expect("sound"));
        let peer = hosts[0].connect(now, address(1), 1, 0).expect("there is room");
        Self { hosts, peer, is_connected: false, is_over: false, offered: 0, received: 0, buf: Vec::new() }
    }

    fn send_offered(&mut self) {
        while self.is_connected && self.offered > 0 {
            let len = self.offered.min(PACKET_BYTES);
            self.offered -= len;
            let data = Bytes::from(vec![7; len]);
            self.hosts[0].send(self.peer, Lane(0), data, Delivery::Reliable).expect("there is room");
        }
    }
}

impl Flow for Ours {
    fn step(&mut self, end: usize, now: Instant, out: &mut Vec<Vec<u8>>) {
        self.hosts[end].handle_timeout(now);
        while let Some(event) = self.hosts[end].poll_event() {
            match event {
                Event::Connected { .. } => self.is_connected |= end == 0,
                Event::Received { data, .. } => self.received += data.len(),
                _ => self.is_over = true,
            }
        }
        if !self.is_over {
            self.send_offered();
        }
        while self.hosts[end].poll_transmit(now, &mut self.buf).is_some() {
            out.push(self.buf.clone());
        }
    }

    fn receive(&mut self, end: usize, now: Instant, datagram: &[u8]) {
        self.hosts[end].handle_datagram(now, address(1 - end), datagram);
    }

    fn received(&self) -> usize {
        self.received
    }

    fn offer(&mut self, bytes: usize) {
        self.offered += bytes;
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

/// The C library, transpiled, at both ends.
struct Theirs {
    hosts: [rusty::Host<Queue>; 2],
    clock: Rc<Cell<Duration>>,
    offered: usize,
    is_connected: bool,
    is_over: bool,
    received: usize,
}

/// A socket that is two queues.
#[derive(Clone, Default)]
struct Queue {
    inward: Rc<RefCell<VecDeque<Vec<u8>>>>,
    outward: Rc<RefCell<Vec<Vec<u8>>>>,
    other: usize,
}

impl rusty::Socket for Queue {
    type Address = SocketAddr;
    type Error = std::io::Error;

    fn send(&mut self, _: SocketAddr, datagram: &[u8]) -> Result<usize, std::io::Error> {
        self.outward.borrow_mut().push(datagram.to_vec());
        Ok(datagram.len())
    }

    fn receive(
        &mut self,
        buf: &mut [u8; rusty::MTU_MAX],
    ) -> Result<Option<(SocketAddr, rusty::PacketReceived)>, std::io::Error> {
        let Some(datagram) = self.inward.borrow_mut().pop_front() else { return Ok(None) };
        buf[..datagram.len()].copy_from_slice(&datagram);
        Ok(Some((address(self.other), rusty::PacketReceived::Complete(datagram.len()))))
    }
}

impl Theirs {
    fn new(seed: u64) -> Self {
        let clock = Rc::new(Cell::new(Duration::from_millis(1_000)));
        let mut hosts = [0, 1].map(|end| {
            let time = clock.clone();
            let settings = rusty::HostSettings {
                peer_limit: 1,
                channel_limit: 1,
                time: Box::new(move || time.get()),
                seed: Some(2 * seed as u32 + end as u32),
                ..Default::default()
            };
            rusty::Host::new(Queue { other: 1 - end, ..Queue::default() }, settings).expect("sound")
        });
        hosts[0].connect(address(1), 1, 0).expect("there is room");
        Self { hosts, clock, offered: 0, is_connected: false, is_over: false, received: 0 }
    }
}

impl Flow for Theirs {
    fn step(&mut self, end: usize, now: Instant, out: &mut Vec<Vec<u8>>) {
        self.clock.set(Duration::from_nanos(now.as_nanos()));
        while let Some(event) = self.hosts[end].service().expect("queues do not fail") {
            match event {
                rusty::Event::Connect { .. } => self.is_connected |= end == 0,
                rusty::Event::Receive { packet, .. } => self.received += packet.data().len(),
                rusty::Event::Disconnect { .. } => self.is_over = true,
            }
        }
        while end == 0 && self.is_connected && self.offered > 0 {
            let len = self.offered.min(PACKET_BYTES);
            self.offered -= len;
            let packet = rusty::Packet::reliable(vec![7; len].as_slice());
            self.hosts[0].peer_mut(rusty::PeerID(0)).send(0, &packet).expect("there is room");
        }
        self.hosts[end].flush();
        out.append(&mut self.hosts[end].socket().outward.borrow_mut());
    }

    fn receive(&mut self, end: usize, _: Instant, datagram: &[u8]) {
        self.hosts[end].socket().inward.borrow_mut().push_back(datagram.to_vec());
    }

    fn received(&self) -> usize {
        self.received
    }

    fn offer(&mut self, bytes: usize) {
        self.offered += bytes;
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

/// A sender that halves its window at a loss and otherwise adds a datagram to it each round trip,
/// as TCP Reno does.
#[derive(Default)]
struct Reno {
    window: f64,
    threshold: f64,
    next: u32,
    acknowledged: u32,
    repeated: u32,
    /// Losses up to here belong to one halving.
    recovered: u32,
    last_progress_ms: u64,
    got: BTreeSet<u32>,
    in_order: u32,
    acks: Vec<u32>,
    resend: Option<u32>,
}

const RENO_BYTES: usize = 1_392;

impl Reno {
    fn new() -> Self {
        Self { window: 10.0, threshold: 1e9, last_progress_ms: 1_000, ..Self::default() }
    }

    fn lose(&mut self, window: f64) {
        self.threshold = (self.window / 2.0).max(2.0);
        self.window = window.min(self.threshold);
        self.recovered = self.next;
        self.resend = Some(self.acknowledged);
    }
}

impl Flow for Reno {
    fn step(&mut self, end: usize, now: Instant, out: &mut Vec<Vec<u8>>) {
        if end == 1 {
            out.extend(self.acks.drain(..).map(|ack| ack.to_be_bytes().to_vec()));
            return;
        }
        if now.as_millis() > self.last_progress_ms + 500 {
            self.last_progress_ms = now.as_millis();
            self.lose(1.0);
            self.next = self.acknowledged + 1;
        }
        let mut send = |number: u32| {
            let mut datagram = vec![0; RENO_BYTES];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            out.push(datagram);
        };
        self.resend.take().into_iter().for_each(&mut send);
        // Each repeated acknowledgement tells of a datagram that has left the network.
        let may_fly = self.window as u32 + if self.repeated >= 3 { self.repeated } else { 0 };
        while self.next < self.acknowledged + may_fly {
            send(self.next);
            self.next += 1;
        }
    }

    fn receive(&mut self, end: usize, now: Instant, datagram: &[u8]) {
        let number = u32::from_be_bytes(datagram[..4].try_into().expect("four bytes"));
        if end == 1 {
            if number >= self.in_order {
                self.got.insert(number);
            }
            while self.got.remove(&self.in_order) {
                self.in_order += 1;
            }
            self.acks.push(self.in_order);
        } else if number > self.acknowledged {
            self.acknowledged = number;
            self.next = self.next.max(number);
            self.last_progress_ms = now.as_millis();
            if number < self.recovered {
                // More of the same loss.
                self.resend = Some(number);
                self.repeated = 0;
                return;
            }
            self.repeated = 0;
            self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        } else {
            self.repeated += 1;
            if self.repeated == 3 && self.acknowledged >= self.recovered {
                self.lose(f64::MAX);
            }
        }
    }

    fn received(&self) -> usize {
        self.in_order as usize * RENO_BYTES
    }

    fn offer(&mut self, _: usize) {}
}

/// Flows over one path in both directions.
struct Network {
    now: Instant,
    start: Instant,
    lines: [Line; 2],
    weather: Weather,
    rng: Rng,
    order: u64,
    wire: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    out: Vec<Vec<u8>>,
    sent_bytes: u64,
    /// Times at which the sender's datagrams were dropped, in milliseconds.
    dropped_ms: Vec<u64>,
}

impl Network {
    fn new(condition: &Condition, seed: u64) -> Self {
        let start = Instant::from_millis(1_000);
        let back = condition.back.unwrap_or(condition.link);
        Self {
            now: start,
            start,
            lines: [condition.link, back].map(|link| Line::new(link, start)),
            weather: condition.weather,
            rng: Rng::new(seed),
            order: 0,
            wire: BTreeMap::new(),
            out: Vec::new(),
            sent_bytes: 0,
            dropped_ms: Vec::new(),
        }
    }

    /// A millisecond.
    fn step(&mut self, flows: &mut [Box<dyn Flow>]) {
        self.now += Duration::from_millis(1);
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (flow, end, datagram) = entry.remove();
            flows[flow].receive(end, self.clock(end), &datagram);
        }
        let season = Season { passed: self.now.since(self.start), is_stormy: true };
        for index in 0..flows.len() {
            // Those that share a path take turns to be first.
            let index = (index + self.now.as_millis() as usize) % flows.len();
            for end in 0..2 {
                let clock = self.clock(end);
                flows[index].step(end, clock, &mut self.out);
                for datagram in self.out.drain(..) {
                    self.sent_bytes += if end == 0 { datagram.len() as u64 } else { 0 };
                    let copies = if self.rng.chance(self.lines[end].link.doubling) { 2 } else { 1 };
                    for _ in 0..copies {
                        let arrival = self.lines[end].carry(
                            &mut self.rng,
                            self.now,
                            self.weather,
                            season,
                            datagram.len(),
                        );
                        self.order += 1;
                        match arrival {
                            Some(at) => {
                                self.wire.insert((at, self.order), (index, 1 - end, datagram.clone()));
                            }
                            None if end == 0 => self.dropped_ms.push(season.passed.as_millis() as u64),
                            None => {}
                        }
                    }
                }
            }
        }
    }

    fn clock(&self, end: usize) -> Instant {
        if end == 0 && self.weather == Weather::Skew {
            return self.now + self.now.since(self.start) * 3 / 100;
        }
        self.now
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, end as u8], 7_777))
}

/// Milliseconds that a transfer takes alone; the highest number when the connection is given up.
fn transfer_ms(condition: &Condition, seed: u64, mut flow: Box<dyn Flow>) -> u64 {
    let mut network = Network::new(condition, seed);
    flow.offer(TRANSFER_BYTES);
    let mut flows = [flow];
    while flows[0].received() < TRANSFER_BYTES {
        network.step(&mut flows);
        if flows[0].is_over() {
            return u64::MAX;
        }
        assert!(network.now < Instant::from_millis(2_000_000), "{}: no end", condition.name);
    }
    network.now.since(network.start).as_millis() as u64
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
fn alone_a_transfer_takes_no_longer_than_the_c_librarys() {
    let seeds = std::env::var("THRONG_TRANSFER_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number"));
    let mut slow = Vec::new();
    let mut table = String::new();
    for condition in &CONDITIONS {
        // Neither gets through where long datagrams vanish or the address changes.
        if condition.link.bytes_max < 1_500 || condition.weather == Weather::Rebind {
            continue;
        }
        let run = |make: &dyn Fn(u64) -> Box<dyn Flow>| {
            median((0..seeds).map(|seed| transfer_ms(condition, seed, make(seed))).collect())
        };
        let ours = run(&|seed| Box::new(Ours::new(seed)));
        let theirs = run(&|seed| Box::new(Theirs::new(seed)));
        assert!(ours < u64::MAX, "{}: the connection ended", condition.name);
        let ratio = ours as f64 / theirs as f64;
        table += &format!("{:32} {ours:>8} ms {theirs:>8} ms {ratio:>6.3}\n", condition.name);
        if ratio > 1.04 {
            slow.push(condition.name);
        }
    }
    eprint!("{table}");
    assert!(slow.is_empty(), "{slow:?} are slower than the C library:\n{table}");
}

/// 250 kB/s, 40 ms, and room for 120 ms in the queue. The C library's window alone overflows it.
const NARROW: Condition = Condition {
    name: "250 kB/s",
    link: Link { rate: 250_000, queue_bytes: 30_000, delay_ms: 20, ..GOOD },
    back: None,
    weather: Weather::Steady,
};
/// The same with room for the window of the C library beside others.
const SHARED: Condition = Condition { link: Link { queue_bytes: 256_000, ..NARROW.link }, ..NARROW };

/// Shares of the bytes that flows get in a minute.
fn share(condition: &Condition, mut flows: Vec<Box<dyn Flow>>) -> Vec<f64> {
    let mut network = Network::new(condition, 1);
    for flow in &mut flows {
        flow.offer(64 << 20);
    }
    for _ in 0..60_000 {
        network.step(&mut flows);
    }
    let sum: usize = flows.iter().map(|flow| flow.received()).sum();
    assert!(sum > 12_000_000, "{sum} bytes in a minute");
    flows.iter().map(|flow| flow.received() as f64 / sum as f64).collect()
}

#[test]
fn a_transfer_fills_a_narrow_link_and_not_its_queue() {
    let mut network = Network::new(&NARROW, 1);
    let mut flows: [Box<dyn Flow>; 1] = [Box::new(Ours::new(1))];
    flows[0].offer(TRANSFER_BYTES);
    while flows[0].received() < TRANSFER_BYTES {
        network.step(&mut flows);
    }
    let seconds = network.now.since(network.start).as_secs_f64();
    let rate = TRANSFER_BYTES as f64 / seconds;
    assert!(rate > 235_000.0, "{rate:.0} bytes/s");
    assert_eq!(network.dropped_ms, Vec::<u64>::new(), "{rate:.0} bytes/s");
    let overhead = network.sent_bytes as f64 / TRANSFER_BYTES as f64;
    assert!(overhead < 1.03, "{overhead:.3} bytes sent for each");
}

#[test]
fn two_transfers_share_a_link_equally() {
    for condition in [&NARROW, &SHARED] {
        let shares = share(condition, vec![Box::new(Ours::new(1)), Box::new(Ours::new(2))]);
        let jain = 1.0 / (2.0 * shares.iter().map(|share| share * share).sum::<f64>());
        eprintln!("{}: Jain {jain:.3}: {shares:.3?}", condition.name);
        assert!(jain >= 0.9, "Jain {jain:.3}: {shares:?}");
    }
}

#[test]
fn beside_reno_and_the_c_library_neither_side_starves() {
    let others: [(&str, Box<dyn Flow>); 2] =
        [("Reno", Box::new(Reno::new())), ("the C library", Box::new(Theirs::new(2)))];
    for (name, other) in others {
        let shares = share(&SHARED, vec![Box::new(Ours::new(1)), other]);
        eprintln!("beside {name}: {shares:.3?}");
        assert!(shares.iter().all(|&share| share >= 0.2), "beside {name}: {shares:?}");
    }
}
