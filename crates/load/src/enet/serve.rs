//! Servers for the bench: an ENet host that echoes, and a bare socket that does.

use std::io::{self, BufRead as _, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use throng_net::Clock;
use throng_net::enet::{self, Config, Endpoint, Event, Host, Pacing, Server, ServerOptions, Stats};
use throng_net::udp::{UdpOptions, UdpPort, UdpStats};

use crate::interrupt;

/// Plan of the echo server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServePlan {
    /// Address of the listener.
    pub addr: SocketAddr,
    /// Connections at the same time.
    pub slots: usize,
    /// Threads.
    pub shards: u16,
    /// Times per second at which the game's thread polls events; zero echoes on the network
    /// threads.
    pub game_hz: u32,
    /// Shortest time between two rounds of a busy thread.
    pub interval: Duration,
    /// True if the kernel may segment and coalesce.
    pub segmentation: bool,
    /// Without ENet: datagrams are returned unchanged, which is the physical limit.
    pub bare: bool,
}

/// Counters of an echo server so far; a line of JSON per line that it reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Served {
    /// Datagrams received.
    pub datagrams_in: u64,
    /// Datagrams sent.
    pub datagrams_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Calls that received.
    pub reads: u64,
    /// Calls that sent.
    pub writes: u64,
    /// Packets delivered to the application.
    pub packets_in: u64,
    /// Connections now.
    pub peers: u64,
    /// Connections that ended because the other side no longer answered.
    pub timeouts: u64,
    /// Commands sent again.
    pub resent: u64,
    /// Unreliable packets that the protocol's throttle dropped because round trips had grown.
    pub throttled: u64,
    /// Handshakes in progress.
    pub half_open: u64,
    /// Bytes that the kernel grants for waiting datagrams.
    pub receive_buffer_bytes: u64,
}

/// Serves until interrupted. Writes `listening on ADDR`, then a line of counts for every line read.
///
/// # Errors
/// When the address cannot be had or a socket failed.
pub fn serve(plan: &ServePlan, mut out: impl Write + Send + 'static) -> Result<(), enet::OpenError> {
    let shown = Arc::new(Shown::default());
    let announce = {
        let shown = shown.clone();
        move |addr: SocketAddr| -> io::Result<()> {
            writeln!(out, "listening on {addr}")?;
            out.flush()?;
            std::thread::Builder::new().name("counts".to_owned()).spawn(move || {
                for _ in io::stdin().lock().lines().map_while(Result::ok) {
                    // Counts are made when they are asked for, by the threads that own them.
                    let line = serde_json::to_string(&shown.ask()).unwrap_or_default();
                    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                        return;
                    }
                }
            })?;
            Ok(())
        }
    };
    match plan {
        ServePlan { bare: true, .. } => serve_bare(plan, &shown, announce)?,
        ServePlan { game_hz: 0, .. } => serve_on_threads(plan, &shown, announce)?,
        _ => serve_at_ticks(plan, &shown, announce)?,
    }
    Ok(())
}

/// Counts by thread, refreshed on request.
#[derive(Default)]
struct Shown {
    wanted: AtomicU64,
    parts: Mutex<Vec<Served>>,
    ready: AtomicU64,
    wakers: Mutex<Vec<throng_net::Waker>>,
    stop: AtomicBool,
}

/// Flag by which a thread notices that counters are wanted.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait for a signal.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(8);

impl Shown {
    fn ask(&self) -> Served {
        let parts = lock(&self.parts).len() as u64;
        self.ready.store(0, Ordering::Release);
        self.wanted.fetch_add(1, Ordering::AcqRel);
        lock(&self.wakers).iter().for_each(throng_net::Waker::wake);
        for _ in 0..50 {
            if self.ready.load(Ordering::Acquire) >= parts {
                break;
            }
            std::thread::sleep(LOOK_INTERVAL / 20);
        }
        lock(&self.parts).iter().fold(Served::default(), |sum, part| sum.and(part))
    }

    fn enter(&self, waker: Option<throng_net::Waker>) -> usize {
        let mut parts = lock(&self.parts);
        parts.push(Served::default());
        lock(&self.wakers).extend(waker);
        parts.len() - 1
    }

    /// Called by the owner of part `index`; `seen` is its own.
    fn show(&self, index: usize, seen: &mut u64, counts: impl FnOnce() -> Served) {
        let wanted = self.wanted.load(Ordering::Acquire);
        if wanted != *seen {
            *seen = wanted;
            lock(&self.parts)[index] = counts();
            self.ready.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Served {
    fn and(self, other: &Self) -> Self {
        Self {
            datagrams_in: self.datagrams_in + other.datagrams_in,
            datagrams_out: self.datagrams_out + other.datagrams_out,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            packets_in: self.packets_in + other.packets_in,
            peers: self.peers + other.peers,
            timeouts: self.timeouts + other.timeouts,
            resent: self.resent + other.resent,
            throttled: self.throttled + other.throttled,
            half_open: self.half_open + other.half_open,
            receive_buffer_bytes: self.receive_buffer_bytes.max(other.receive_buffer_bytes),
        }
    }

    fn of_port(port: &UdpPort) -> Self {
        Self { receive_buffer_bytes: port.receive_buffer_bytes() as u64, ..Self::of_udp(port.stats()) }
    }

    fn of_udp(udp: &UdpStats) -> Self {
        Self {
            datagrams_in: udp.datagrams_in,
            datagrams_out: udp.datagrams_out,
            bytes_in: udp.bytes_in,
            bytes_out: udp.bytes_out,
            reads: udp.reads,
            writes: udp.writes,
            ..Self::default()
        }
    }

    fn of_enet(enet: &Stats) -> Self {
        Self {
            packets_in: enet.packets_in,
            timeouts: enet.timeouts,
            resent: enet.resent_commands,
            throttled: enet.throttled_packets,
            ..Self::default()
        }
    }

    fn of_host(host: &Host) -> Self {
        Self {
            peers: host.peer_count() as u64,
            half_open: host.half_open_count() as u64,
            ..Self::of_enet(host.stats())
        }
    }
}

fn config(plan: &ServePlan, seed: u128) -> Config {
    Config { peers_max: plan.slots, ..Config::new(seed) }
}

fn serve_on_threads(
    plan: &ServePlan,
    shown: &Arc<Shown>,
    announce: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> Result<(), enet::OpenError> {
    let clock = Clock::start();
    let udp = UdpOptions { segmentation: plan.segmentation, ..UdpOptions::default() };
    let pacing = Pacing { interval: plan.interval };
    let ports = UdpPort::bind_all(plan.addr, &udp, plan.shards.max(1).into())
        .map_err(|source| enet::OpenError::Socket { addr: plan.addr, source })?;
    let addr = ports[0].local_addr();
    let mut endpoints = Vec::new();
    for port in ports {
        endpoints.push(Endpoint::over(clock, port, pacing, config(plan, enet::entropy()?))?);
    }
    let indexes: Vec<usize> = endpoints.iter().map(|endpoint| shown.enter(Some(endpoint.waker()))).collect();
    announce(addr)?;
    let mut poller = crate::poll::Poller::new()?;
    std::thread::scope(|scope| {
        for (index, endpoint) in indexes.into_iter().zip(endpoints) {
            scope.spawn(move || echo(endpoint, index, shown));
        }
        while !interrupt::requested() {
            // A signal ends the wait; one that comes just before it is noticed at its end.
            if poller.wait(SIGNAL_PATIENCE).is_err() {
                break;
            }
        }
        shown.stop.store(true, Ordering::Release);
        lock(&shown.wakers).iter().for_each(throng_net::Waker::wake);
    });
    Ok(())
}

fn echo(mut endpoint: Endpoint, index: usize, shown: &Shown) {
    let mut seen = 0;
    while !shown.stop.load(Ordering::Acquire) {
        let round = endpoint.turn(None, |host| {
            while let Some(event) = host.poll_event() {
                if let Event::Received { peer, lane, data, delivery } = event {
                    // A peer that takes nothing runs into its limit; what it cannot take is lost to
                    // it.
                    let _ = host.send(peer, lane, data, delivery);
                }
            }
        });
        if round.is_err() {
            return;
        }
        let counts = Served::of_port(endpoint.port());
        let host = endpoint.host();
        shown.show(index, &mut seen, || Served::of_host(host).and(&counts));
    }
}

fn serve_at_ticks(
    plan: &ServePlan,
    shown: &Arc<Shown>,
    announce: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> Result<(), enet::OpenError> {
    let options = ServerOptions {
        shards: plan.shards,
        pacing: Pacing { interval: plan.interval },
        udp: UdpOptions { segmentation: plan.segmentation, ..UdpOptions::default() },
        ..ServerOptions::default()
    };
    let mut server = Server::start(plan.addr, &options, |seed| config(plan, seed))?;
    let (index, mut seen) = (shown.enter(None), 0);
    announce(server.addr())?;
    let tick = Duration::from_secs(1) / plan.game_hz.max(1);
    let mut due = std::time::Instant::now();
    while !interrupt::requested() {
        while let Some((peer, event)) = server.poll_event() {
            if let Event::Received { lane, data, delivery, .. } = event {
                server.send(peer, lane, data, delivery);
            }
        }
        server.flush();
        shown.show(index, &mut seen, || {
            let hosts = server.stats().hosts;
            let waiting =
                Served { peers: hosts.peers as u64, half_open: hosts.half_open as u64, ..Served::default() };
            Served::of_udp(&hosts.udp).and(&Served::of_enet(&hosts.enet)).and(&waiting)
        });
        due += tick;
        std::thread::sleep(due.saturating_duration_since(std::time::Instant::now()));
    }
    Ok(())
}

/// Sends every datagram back, in batches and at the same pace as the real server.
fn serve_bare(
    plan: &ServePlan,
    shown: &Arc<Shown>,
    announce: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> io::Result<()> {
    let mut port = UdpPort::bind(plan.addr, &UdpOptions::default())?;
    let (index, mut seen) = (shown.enter(None), 0);
    announce(port.local_addr())?;
    let mut poller = crate::poll::Poller::new()?;
    poller.add(std::os::fd::AsRawFd::as_raw_fd(&port.fd()), 0, true, false)?;
    let mut datagrams: Vec<(SocketAddr, Vec<u8>)> = Vec::new();
    let mut spare: Vec<Vec<u8>> = Vec::new();
    while !interrupt::requested() {
        let began = std::time::Instant::now();
        let mut received = false;
        loop {
            let more = port.receive(|from, bytes| {
                received = true;
                let mut copy = spare.pop().unwrap_or_default();
                copy.clear();
                copy.extend_from_slice(bytes);
                datagrams.push((from, copy));
            })?;
            for (to, bytes) in datagrams.drain(..) {
                port.push(to, &bytes);
                spare.push(bytes);
            }
            port.flush()?;
            if !more {
                break;
            }
        }
        shown.show(index, &mut seen, || Served::of_port(&port));
        if received {
            std::thread::sleep(plan.interval.saturating_sub(began.elapsed()));
        } else {
            poller.wait(LOOK_INTERVAL)?;
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
