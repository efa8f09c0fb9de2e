//! A loop with a recording handler, driven until a condition holds.
#![allow(dead_code, unreachable_pub)] // Each test file uses its own part.

use std::collections::{HashMap, HashSet};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use throng_net::*;

/// Far beyond what any step needs; reached only when a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Records what a loop tells.
#[derive(Default)]
pub struct Recorder {
    pub accepted: Vec<(ListenerKey, ConnKey)>,
    pub connected: Vec<ConnKey>,
    pub received: HashMap<ConnKey, Vec<u8>>,
    pub writable: HashSet<ConnKey>,
    pub closed: HashMap<ConnKey, CloseCause>,
    pub woken: usize,
    /// Answer to `accepted`.
    pub accept: Option<Accept>,
    /// Answer to `admit` is no.
    pub banned: bool,
    /// Addresses of trusted proxies.
    pub proxies: Vec<IpAddr>,
    /// Connections that give way when asked.
    pub giving_way: usize,
    /// Pause after each delivery.
    pub pause: bool,
    /// [`Node::until`] writes received bytes back.
    pub echo: bool,
    pub to_echo: Vec<(ConnKey, Vec<u8>)>,
}

impl Handler for Recorder {
    fn admit(&mut self, _: ListenerKey, _: SocketAddr) -> bool {
        !self.banned
    }
    fn accepted(&mut self, listener: ListenerKey, key: ConnKey, _: SocketAddr) -> Accept {
        self.accepted.push((listener, key));
        self.accept.unwrap_or(Accept::Keep)
    }
    fn is_proxy(&mut self, addr: IpAddr) -> bool {
        self.proxies.contains(&addr)
    }
    fn make_room(&mut self, _: Option<throng_stdx::Instant>) -> bool {
        let gives_way = self.giving_way > 0;
        self.giving_way -= usize::from(gives_way);
        gives_way
    }
    fn connected(&mut self, key: ConnKey) {
        self.connected.push(key);
    }
    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
        assert!(!bytes.is_empty());
        assert!(!self.closed.contains_key(&key), "data after closed");
        if self.echo {
            self.to_echo.push((key, bytes.to_vec()));
        }
        self.received.entry(key).or_default().extend_from_slice(bytes);
        if self.pause { Flow::Pause } else { Flow::Continue }
    }
    fn writable(&mut self, key: ConnKey) {
        self.writable.insert(key);
    }
    fn closed(&mut self, key: ConnKey, cause: CloseCause) {
        assert!(self.closed.insert(key, cause).is_none(), "closed twice");
    }
    fn woken(&mut self) {
        self.woken += 1;
    }
}

/// A loop, its handler and its clock.
pub struct Node {
    pub net: EventLoop,
    pub clock: Clock,
    pub seen: Recorder,
}

impl Node {
    pub fn new() -> Self {
        Self::of(EventLoop::new().unwrap())
    }

    pub fn of(net: EventLoop) -> Self {
        Self { net, clock: Clock::start(), seen: Recorder::default() }
    }

    pub fn listen(&mut self, transport: Transport) -> SocketAddr {
        self.listen_with(ListenerSpec::new(loopback(), transport))
    }

    pub fn listen_with(&mut self, spec: ListenerSpec) -> SocketAddr {
        self.net.listen(spec).unwrap().1
    }

    /// One poll that waits `millis` at most.
    pub fn step(&mut self, millis: u64) {
        let deadline = self.clock.now() + Duration::from_millis(millis);
        self.net.poll(&self.clock, Some(deadline), &mut self.seen).unwrap();
        for (key, bytes) in std::mem::take(&mut self.seen.to_echo) {
            self.write_all(key, &bytes);
        }
    }

    /// Lets time pass of which the machine knows nothing, in parts that are too short for a pause
    /// of the process: silence in a pause is excused.
    pub fn pass(&mut self, time: Duration) {
        const PART: Duration = Duration::from_millis(100);
        for _ in 0..time.div_duration_f64(PART).ceil() as u64 {
            self.clock = self.clock.ahead(PART);
            self.step(0);
        }
    }

    /// Polls until `done`.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let started = std::time::Instant::now();
        while !done(self) {
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
            self.step(5);
        }
    }

    /// The only connection accepted so far.
    #[track_caller]
    pub fn accepted_one(&mut self) -> ConnKey {
        self.until("a connection is accepted", |node| !node.seen.accepted.is_empty());
        self.seen.accepted[0].1
    }

    pub fn received(&self, key: ConnKey) -> &[u8] {
        self.seen.received.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Writes everything, polling while the connection is blocked.
    #[track_caller]
    pub fn write_all(&mut self, key: ConnKey, mut bytes: &[u8]) {
        let started = std::time::Instant::now();
        loop {
            let outcome = self.net.write(key, &[IoSlice::new(bytes)]);
            bytes = &bytes[outcome.taken..];
            if bytes.is_empty() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain to write");
            let deadline = self.clock.now() + Duration::from_millis(5);
            self.net.poll(&self.clock, Some(deadline), &mut self.seen).unwrap();
        }
    }
}

/// A connection for which a slow machine has all the time that it needs.
pub fn patient(addr: SocketAddr, transport: Transport) -> ConnectSpec {
    ConnectSpec { timeout: PATIENCE, ..ConnectSpec::new(addr, transport) }
}

/// An address without a listener, which stays taken while the stream lasts.
pub fn deaf_address() -> (std::net::TcpStream, SocketAddr) {
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let addr = stream.local_addr().unwrap();
    (stream, addr)
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Polls two loops in turn until `done`.
#[track_caller]
pub fn until_both(a: &mut Node, b: &mut Node, what: &str, mut done: impl FnMut(&Node, &Node) -> bool) {
    let started = std::time::Instant::now();
    while !done(a, b) {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        a.step(1);
        b.step(1);
    }
}

/// Open descriptors of this process.
pub fn descriptor_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}
