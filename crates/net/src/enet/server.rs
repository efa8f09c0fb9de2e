//! ENet hosts of one port on threads of their own, behind one handle.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_enet::secure::{GateConfig, Identity};
use throng_enet::{Bytes, Config, Delivery, Event, Host, Lane, PeerId, SendError};
use throng_stdx::Instant;

use super::guard::Gates;
use super::{DtlsConfig, Endpoint, HostCounters, OpenError, Pacing, TOO_SLOW, entropy};
use crate::clock::Clock;
use crate::event_loop::Waker;
use crate::udp::{UdpOptions, UdpPort};

/// Requests of the application that are handed over without waiting for [`Server::flush`].
const ORDERS_PER_POST: usize = 1_024;
/// Interval at which a shard publishes its counters.
const STATS_INTERVAL: Duration = Duration::from_millis(50);
/// The number given to everybody when a server ends.
const SHUTTING_DOWN: u32 = 0;

/// Configuration of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads, each with a socket of its own on the same port; peers are spread over them by their
    /// address and stay.
    pub shards: u16,
    /// The sockets.
    pub udp: UdpOptions,
    /// Distance of a busy shard's rounds.
    pub pacing: Pacing,
    /// Events that may wait for the application, per shard.
    pub events_max: usize,
    /// Admits only clients with a connect token, and encrypts everything; see
    /// [`secure`](super::secure). A token works once, whichever shard it comes to. The seed in it
    /// does not matter: each shard draws its own. Default: plain ENet.
    pub gate: Option<GateConfig>,
    /// DTLS on the same port. With a gate as well, clients need a token inside of DTLS too, unless
    /// the gate lets plain clients in. Default: none.
    pub dtls: Option<DtlsConfig>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        // A second of 10,000 players with six packets each.
        Self {
            shards: 1,
            udp: UdpOptions::default(),
            pacing: Pacing::default(),
            events_max: 65_536,
            gate: None,
            dtls: None,
        }
    }
}

/// Names a peer of a [`Server`]; never used again after its [`Event::Disconnected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerPeer {
    shard: u16,
    peer: PeerId,
}

impl ServerPeer {
    /// The thread that serves it, from 0.
    #[must_use]
    pub fn shard(self) -> u16 {
        self.shard
    }
}

/// Counts of all shards together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Of the hosts and their sockets.
    pub hosts: HostCounters,
    /// Packets that were dropped because their peer was gone.
    pub orphaned_packets: u64,
    /// Unreliable packets that could not be sent, mostly because too much waits for their peer.
    pub dropped_packets: u64,
    /// Peers disconnected because they could not be sent a reliable packet.
    pub too_slow: u64,
    /// Rounds that found the event queue full.
    pub events_full: u64,
}

/// ENet for a game with a tick: shards serve the protocol on threads of their own, the game reads
/// events and sends when it likes. See the [module documentation](super).
pub struct Server {
    addr: SocketAddr,
    shards: Vec<Shard>,
    /// Shard whose turn it is to give events.
    turn: usize,
    /// Identity that came with the event taken last.
    identity: Option<Box<Identity>>,
    arrivals: Arc<Arrivals>,
}

/// Wakes an application that waits for events of any shard.
#[derive(Default)]
struct Arrivals {
    /// Hand-overs so far.
    count: Mutex<u64>,
    changed: Condvar,
}

impl Arrivals {
    fn count(&self) -> u64 {
        *lock(&self.count)
    }

    fn note(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_one();
    }

    /// Waits for a hand-over after the `seen`th; false at the deadline.
    fn wait(&self, seen: u64, deadline: std::time::Instant) -> bool {
        let mut count = lock(&self.count);
        while *count == seen {
            let rest = deadline.saturating_duration_since(std::time::Instant::now());
            if rest.is_zero() {
                return false;
            }
            count = self.changed.wait_timeout(count, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The application's end of a shard.
struct Shard {
    shared: Arc<Shared>,
    waker: Waker,
    /// Taken over and not yet handed out.
    events: VecDeque<Told>,
    orders: Vec<Order>,
    thread: Option<JoinHandle<()>>,
}

/// An event, and with `Connected` whom the peer's token names.
struct Told {
    event: Event,
    identity: Option<Box<Identity>>,
}

#[derive(Default)]
struct Shared {
    events: Mutex<VecDeque<Told>>,
    orders: Mutex<Vec<Order>>,
    stats: Mutex<ServerStats>,
    stop: AtomicBool,
    /// The shard has events that did not fit.
    full: AtomicBool,
}

enum Order {
    Send { peer: PeerId, lane: Lane, data: Bytes, delivery: Delivery },
    Broadcast { lane: Lane, data: Bytes, delivery: Delivery },
    Disconnect { peer: PeerId, data: u32, when: When },
    Configure(Box<dyn FnOnce(&mut Host) + Send>),
}

#[derive(Clone, Copy)]
enum When {
    Soon,
    Later,
    Now,
}

impl Server {
    /// Opens `addr` once per shard and starts the threads. `config` makes each shard's host from a
    /// seed.
    ///
    /// # Errors
    /// When the address cannot be had, the configuration contradicts itself, or threads ran out.
    pub fn start(
        addr: SocketAddr,
        options: &ServerOptions,
        mut config: impl FnMut(u128) -> Config,
    ) -> Result<Self, OpenError> {
        let clock = Clock::start();
        let ports = UdpPort::bind_all(addr, &options.udp, usize::from(options.shards.max(1)))
            .map_err(|source| OpenError::Socket { addr, source })?;
        let (addr, mut endpoints) = (ports[0].local_addr(), Vec::new());
        let gates = Gates::new(options.gate.clone(), options.dtls.clone())?;
        for port in ports {
            let guard = gates.guard(clock.now())?;
            endpoints.push(Endpoint::guarded(clock, port, options.pacing, config(entropy()?), guard)?);
        }
        let arrivals = Arc::new(Arrivals::default());
        let mut server = Self { addr, shards: Vec::new(), turn: 0, identity: None, arrivals };
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            let shared = Arc::new(Shared::default());
            let waker = endpoint.waker();
            let worker = Worker {
                endpoint,
                shared: shared.clone(),
                arrivals: server.arrivals.clone(),
                events_max: options.events_max.max(1),
                counts: ServerStats::default(),
                shown: Instant::ZERO,
            };
            let thread = std::thread::Builder::new().name(format!("enet-{index}")).spawn(|| worker.run())?;
            let (events, orders) = (VecDeque::new(), Vec::new());
            server.shards.push(Shard { shared, waker, events, orders, thread: Some(thread) });
        }
        Ok(server)
    }

    /// The address of the server.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes the next event; never waits. Events of one peer come in order, those of shards take
    /// turns.
    ///
    /// The peer that the event itself names is only half the name; use the one given beside it.
    pub fn poll_event(&mut self) -> Option<(ServerPeer, Event)> {
        for _ in 0..self.shards.len() {
            let index = self.turn;
            let shard = &mut self.shards[index];
            if shard.events.is_empty() {
                shard.fetch();
            }
            let told = shard.events.pop_front();
            // One that always has more would keep the others from their turn.
            if shard.events.is_empty() {
                self.turn = (index + 1) % self.shards.len();
            }
            if let Some(Told { event, identity }) = told {
                self.identity = identity;
                return Some((ServerPeer { shard: index as u16, peer: event.peer() }, event));
            }
        }
        None
    }

    /// Takes the next event, and waits up to `timeout` for one.
    ///
    /// For a server without a tick. Requests that were queued are [flushed](Self::flush) first.
    pub fn wait_event(&mut self, timeout: Duration) -> Option<(ServerPeer, Event)> {
        self.flush();
        let deadline = std::time::Instant::now() + timeout;
        loop {
            let seen = self.arrivals.count();
            if let Some(event) = self.poll_event() {
                return Some(event);
            }
            if !self.arrivals.wait(seen, deadline) {
                return None;
            }
        }
    }

    /// Whom the peer's token names, if the event that was [taken](Self::poll_event) last is its
    /// `Connected`; `None` for plain clients. It is for the game to keep.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_deref()
    }

    /// Queues a packet for a peer. It is handed to the peer's shard by [`flush`](Self::flush),
    /// together with others. What happens when the peer is gone or does not take what it is sent is
    /// said in the [module documentation](super).
    pub fn send(&mut self, peer: ServerPeer, lane: Lane, data: impl Into<Bytes>, delivery: Delivery) {
        self.order(peer.shard, Order::Send { peer: peer.peer, lane, data: data.into(), delivery });
    }

    /// Queues a packet for everybody who has the lane. The content is shared.
    pub fn broadcast(&mut self, lane: Lane, data: impl Into<Bytes>, delivery: Delivery) {
        let data = data.into();
        for shard in 0..self.shards.len() {
            self.order(shard as u16, Order::Broadcast { lane, data: data.clone(), delivery });
        }
    }

    /// Disconnects a peer; [`Event::Disconnected`] follows. `data` is a number for the peer's
    /// application.
    pub fn disconnect(&mut self, peer: ServerPeer, data: u32) {
        self.order(peer.shard, Order::Disconnect { peer: peer.peer, data, when: When::Soon });
    }

    /// The same, once everything sent so far has been acknowledged.
    pub fn disconnect_later(&mut self, peer: ServerPeer, data: u32) {
        self.order(peer.shard, Order::Disconnect { peer: peer.peer, data, when: When::Later });
    }

    /// Disconnects a peer without waiting for it; no event follows.
    pub fn disconnect_now(&mut self, peer: ServerPeer, data: u32) {
        self.order(peer.shard, Order::Disconnect { peer: peer.peer, data, when: When::Now });
    }

    /// Runs `change` on the host of a peer's shard, to set what has no request of its own. A panic
    /// in it ends the shard with all its peers.
    pub fn configure(&mut self, peer: ServerPeer, change: impl FnOnce(&mut Host, PeerId) + Send + 'static) {
        let id = peer.peer;
        self.order(peer.shard, Order::Configure(Box::new(move |host| change(host, id))));
    }

    /// Hands everything queued to the shards, which send at once. Once per tick is enough.
    pub fn flush(&mut self) {
        self.shards.iter_mut().for_each(Shard::post);
    }

    /// Counts of all shards, up to 50 ms old, older while nothing happens.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let mut sum = ServerStats::default();
        for shard in &self.shards {
            add(&mut sum, &lock(&shard.shared.stats));
        }
        sum
    }

    fn order(&mut self, shard: u16, order: Order) {
        let Some(shard) = self.shards.get_mut(usize::from(shard)) else { return };
        shard.orders.push(order);
        if shard.orders.len() >= ORDERS_PER_POST {
            shard.post();
        }
    }
}

impl Drop for Server {
    /// Tells every peer that it is over and ends the threads.
    fn drop(&mut self) {
        self.flush();
        for shard in &self.shards {
            shard.shared.stop.store(true, Ordering::Release);
            shard.waker.wake();
        }
        for shard in &mut self.shards {
            // A shard that panicked has said so on standard error.
            drop(shard.thread.take().map(JoinHandle::join));
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server")
            .field("addr", &self.addr)
            .field("shards", &self.shards.len())
            .finish_non_exhaustive()
    }
}

impl Shard {
    fn fetch(&mut self) {
        std::mem::swap(&mut *lock(&self.shared.events), &mut self.events);
        if self.shared.full.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn post(&mut self) {
        if !self.orders.is_empty() {
            lock(&self.shared.orders).append(&mut self.orders);
            self.waker.wake();
        }
    }
}

/// A shard's thread.
struct Worker {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    arrivals: Arc<Arrivals>,
    events_max: usize,
    counts: ServerStats,
    shown: Instant,
}

impl Worker {
    fn run(mut self) {
        let (mut orders, mut fresh) = (Vec::new(), Vec::new());
        let mut stopping = false;
        while !stopping {
            stopping = self.shared.stop.load(Ordering::Acquire);
            std::mem::swap(&mut *lock(&self.shared.orders), &mut orders);
            for order in orders.drain(..) {
                self.carry_out(order);
            }
            if stopping {
                let everybody: Vec<PeerId> = self.endpoint.host().peers().collect();
                for peer in everybody {
                    self.endpoint.host().disconnect_now(peer, SHUTTING_DOWN);
                }
            }
            let result = if stopping { self.endpoint.send() } else { self.turn(&mut fresh) };
            if let Err(error) = result {
                tracing::error!(%error, "an ENet socket failed; its thread ends");
                return;
            }
        }
    }

    fn turn(&mut self, fresh: &mut Vec<Told>) -> io::Result<()> {
        let waiting = lock(&self.shared.events).len();
        let room = self.events_max.saturating_sub(waiting);
        if room == 0 {
            // The reader wakes us when it has taken some; it may have done so just now.
            self.shared.full.store(true, Ordering::Release);
            if lock(&self.shared.events).is_empty() {
                return Ok(());
            }
            self.counts.events_full += 1;
        }
        self.endpoint.turn_guarded(None, |host, guard| {
            // Events that do not fit stay with the host, within its limits.
            while fresh.len() < room
                && let Some(event) = host.poll_event()
            {
                let is_new = matches!(event, Event::Connected { .. });
                let identity = if is_new { guard.identity(host, event.peer()).map(Box::new) } else { None };
                fresh.push(Told { event, identity });
            }
        })?;
        if fresh.len() == room {
            self.shared.full.store(true, Ordering::Release);
        }
        if !fresh.is_empty() {
            lock(&self.shared.events).extend(fresh.drain(..));
            self.arrivals.note();
        }
        if self.endpoint.now().since(self.shown) >= STATS_INTERVAL {
            self.show();
        }
        Ok(())
    }

    fn show(&mut self) {
        self.shown = self.endpoint.now();
        self.counts.hosts = self.endpoint.figures();
        *lock(&self.shared.stats) = self.counts;
    }

    fn carry_out(&mut self, order: Order) {
        let host = self.endpoint.host();
        match order {
            Order::Send { peer, lane, data, delivery } => match host.send(peer, lane, data, delivery) {
                Ok(()) => {}
                Err(SendError::UnknownPeer | SendError::NotConnected) => self.counts.orphaned_packets += 1,
                Err(error) if delivery == Delivery::Reliable => {
                    tracing::warn!(%error, "a reliable packet cannot be sent; its peer is disconnected");
                    self.counts.too_slow += 1;
                    host.disconnect(peer, TOO_SLOW);
                }
                Err(_) => self.counts.dropped_packets += 1,
            },
            Order::Broadcast { lane, data, delivery } => {
                host.broadcast(lane, data, delivery);
            }
            Order::Disconnect { peer, data, when } => match when {
                When::Soon => host.disconnect(peer, data),
                When::Later => host.disconnect_later(peer, data),
                When::Now => host.disconnect_now(peer, data),
            },
            Order::Configure(change) => change(host),
        }
    }
}

fn add(sum: &mut ServerStats, one: &ServerStats) {
    let ServerStats { hosts, orphaned_packets, dropped_packets, too_slow, events_full } = one;
    sum.hosts += *hosts;
    sum.orphaned_packets += orphaned_packets;
    sum.dropped_packets += dropped_packets;
    sum.too_slow += too_slow;
    sum.events_full += events_full;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The content stays whole when a holder panics: everybody only moves values in and out.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use throng_enet::Reason;

    /// Far beyond what any step needs; reached only when a test fails.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn server(options: &ServerOptions) -> Server {
        Server::start("127.0.0.1:0".parse().unwrap(), options, Config::new).unwrap()
    }

    /// Clients on one socket, driven by the test's thread.
    struct Clients {
        endpoint: Endpoint,
        connected: Vec<PeerId>,
        received: Vec<(PeerId, Bytes)>,
        gone: Vec<(u32, Reason)>,
    }

    impl Clients {
        fn connect(server: &Server, count: usize) -> Self {
            let clock = Clock::start();
            let addr = SocketAddr::new(server.addr().ip(), 0);
            let (pacing, config) = (Pacing::default(), Config::client(1));
            let mut endpoint = Endpoint::open(clock, addr, &UdpOptions::default(), pacing, config).unwrap();
            for data in 0..count {
                endpoint.host().connect(clock.now(), server.addr(), 2, data as u32).unwrap();
            }
            Self { endpoint, connected: Vec::new(), received: Vec::new(), gone: Vec::new() }
        }

        /// One client that the server has as this peer.
        fn connected(server: &mut Server) -> (Self, ServerPeer) {
            let mut clients = Self::connect(server, 1);
            let mut peer = None;
            clients.turn_until("connecting", |clients| {
                peer = peer.or_else(|| server.poll_event().map(|(peer, _)| peer));
                peer.is_some() && !clients.connected.is_empty()
            });
            (clients, peer.unwrap())
        }

        fn turn(&mut self) {
            let soon = self.endpoint.now() + Duration::from_millis(2);
            let (connected, received, gone) = (&mut self.connected, &mut self.received, &mut self.gone);
            let on_round = |host: &mut Host| {
                while let Some(event) = host.poll_event() {
                    match event {
                        Event::Connected { peer, .. } => connected.push(peer),
                        Event::Received { peer, data, .. } => received.push((peer, data)),
                        Event::Disconnected { data, reason, .. } => gone.push((data, reason)),
                        _ => {}
                    }
                }
            };
            self.endpoint.turn(Some(soon), on_round).unwrap();
        }

        fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
            let start = std::time::Instant::now();
            while !done(self) {
                assert!(start.elapsed() < PATIENCE, "{what} takes too long");
                self.turn();
            }
        }
    }

    #[test]
    fn packets_of_many_peers_come_back_through_the_game_thread() {
        let mut server = server(&ServerOptions { shards: 2, ..ServerOptions::default() });
        let mut clients = Clients::connect(&server, 50);
        let mut peers = Vec::new();
        clients.turn_until("connecting", |clients| {
            while let Some((peer, Event::Connected { .. })) = server.poll_event() {
                peers.push(peer);
            }
            peers.len() == 50 && clients.connected.len() == 50
        });
        for peer in clients.connected.clone() {
            clients.endpoint.host().send(peer, Lane(1), &b"hello"[..], Delivery::Reliable).unwrap();
        }
        clients.turn_until("the echo", |clients| {
            while let Some((peer, event)) = server.poll_event() {
                let Event::Received { lane, data, delivery, .. } = event else { panic!("{event:?}") };
                server.send(peer, lane, data, delivery);
            }
            server.flush();
            clients.received.len() == 50
        });
        server.broadcast(Lane(0), &b"everybody"[..], Delivery::Reliable);
        server.disconnect_later(peers[0], 5);
        server.flush();
        clients.turn_until("the farewell", |clients| !clients.gone.is_empty());
        assert_eq!(clients.gone, [(5, Reason::Remote)]);
        clients.turn_until("the broadcast", |clients| clients.received.len() == 100);
        drop(server);
        clients.turn_until("the end", |clients| clients.gone.len() == 50);
    }

    /// Four clients with a socket each, so that they meet different shards, on every address
    /// family.
    #[test]
    fn shards_share_a_port_in_both_families() {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let addr: SocketAddr = addr.parse().unwrap();
            let options = ServerOptions { shards: 2, ..ServerOptions::default() };
            let mut server = match Server::start(addr, &options, Config::new) {
                Ok(server) => server,
                // A machine without IPv6.
                Err(OpenError::Socket { .. }) if addr.is_ipv6() => return,
                Err(error) => panic!("{error}"),
            };
            let (mut clients, mut shards) = (Vec::new(), BTreeMap::new());
            // A shard is chosen by a hash over ports that the system gives out: until both have
            // somebody.
            while shards.len() < 2 {
                assert!(clients.len() < 64, "64 clients are all on one shard");
                let mut fresh = Clients::connect(&server, 1);
                fresh.turn_until("connecting", |clients| !clients.connected.is_empty());
                let text = clients.len().to_string();
                fresh.endpoint.host().send(fresh.connected[0], Lane(1), text, Delivery::Reliable).unwrap();
                let mut met = None;
                fresh.turn_until("the echo", |clients| {
                    while let Some((peer, event)) = server.poll_event() {
                        if let Event::Received { data, lane, delivery, .. } = event {
                            met = Some(peer.shard());
                            server.send(peer, lane, data, delivery);
                        }
                    }
                    server.flush();
                    clients.received.len() == 1
                });
                assert_eq!(fresh.received[0].1, clients.len().to_string());
                *shards.entry(met.unwrap()).or_insert(0) += 1;
                clients.push(fresh);
            }
            // Everybody stays where they are when others have come.
            for (index, client) in clients.iter_mut().enumerate() {
                let peer = client.connected[0];
                client.endpoint.host().send(peer, Lane(0), "again", Delivery::Reliable).unwrap();
                client.turn_until("the second echo", |clients| {
                    while let Some((peer, event)) = server.poll_event() {
                        if let Event::Received { data, lane, delivery, .. } = event {
                            server.send(peer, lane, data, delivery);
                        }
                    }
                    server.flush();
                    clients.received.len() == 2
                });
                assert!(client.gone.is_empty(), "client {index}");
            }
        }
    }

    #[test]
    fn a_server_without_a_tick_waits_for_events() {
        let mut server = server(&ServerOptions { shards: 2, ..ServerOptions::default() });
        assert!(server.wait_event(Duration::ZERO).is_none());
        let addr = server.addr();
        let client = std::thread::spawn(move || {
            let udp = UdpOptions::default();
            let any = "127.0.0.1:0".parse().unwrap();
            let config = Config::client(entropy().unwrap());
            let mut endpoint = Endpoint::open(Clock::start(), any, &udp, Pacing::default(), config).unwrap();
            let now = endpoint.now();
            let peer = endpoint.host().connect(now, addr, 1, 9).unwrap();
            let mut echo = None;
            while echo.is_none() {
                endpoint
                    .turn(None, |host| {
                        while let Some(event) = host.poll_event() {
                            match event {
                                Event::Connected { .. } => {
                                    host.send(peer, Lane(0), "ping", Delivery::Reliable).unwrap();
                                }
                                Event::Received { data, .. } => echo = Some(data),
                                event => panic!("{event:?}"),
                            }
                        }
                    })
                    .unwrap();
            }
            echo
        });
        let Some((peer, Event::Connected { data: 9, .. })) = server.wait_event(PATIENCE) else { panic!() };
        let Some((_, Event::Received { data, lane, delivery, .. })) = server.wait_event(PATIENCE) else {
            panic!()
        };
        server.send(peer, lane, data, delivery);
        // Hands the echo over before it waits.
        assert!(server.wait_event(Duration::from_millis(1)).is_none());
        assert_eq!(client.join().unwrap().as_deref(), Some(&b"ping"[..]));
    }

    #[test]
    fn shards_take_turns_however_much_one_has_to_tell() {
        let mut server = server(&ServerOptions { shards: 2, ..ServerOptions::default() });
        // A name for the events that this test makes up; the shards themselves have nobody.
        let peer = Clients::connect(&server, 1).endpoint.host().peers().next().unwrap();
        let put = |server: &Server, shard: usize, data: u32| {
            let told = Told { event: Event::Connected { peer, data }, identity: None };
            lock(&server.shards[shard].shared.events).push_back(told);
        };
        put(&server, 0, 0);
        put(&server, 0, 1);
        put(&server, 1, 2);
        let mut order = Vec::new();
        for _ in 0..4 {
            // The first shard always has more.
            put(&server, 0, 3);
            let Some((peer, Event::Connected { data, .. })) = server.poll_event() else { panic!("an event") };
            order.push((peer.shard(), data));
        }
        assert_eq!(order, [(0, 0), (0, 1), (0, 3), (1, 2)]);
    }

    #[test]
    fn a_game_that_does_not_read_loses_nothing_that_is_reliable() {
        let mut server = server(&ServerOptions { events_max: 10, ..ServerOptions::default() });
        let mut clients = Clients::connect(&server, 1);
        clients.turn_until("connecting", |clients| !clients.connected.is_empty());
        let peer = clients.connected[0];
        for number in 0..500u16 {
            let packet = number.to_be_bytes().to_vec();
            clients.endpoint.host().send(peer, Lane(0), packet, Delivery::Reliable).unwrap();
        }
        // The shard acknowledges although nobody reads.
        clients.turn_until("acknowledging", |clients| {
            let info = clients.endpoint.host().peer(peer).unwrap();
            info.queued_packets + info.unacknowledged_commands == 0
        });
        let mut numbers = Vec::new();
        clients.turn_until("reading", |_| {
            while let Some((_, event)) = server.poll_event() {
                if let Event::Received { data, .. } = event {
                    numbers.push(u16::from_be_bytes([data[0], data[1]]));
                }
            }
            numbers.len() == 500
        });
        assert!(numbers.is_sorted(), "in order");
        assert!(server.stats().events_full > 0);
    }

    #[test]
    fn a_peer_that_cannot_be_sent_a_reliable_packet_is_sent_away() {
        let mut server = server(&ServerOptions::default());
        let (mut clients, peer) = Clients::connected(&mut server);
        // It has two lanes.
        server.send(peer, Lane(9), "lost", Delivery::Unreliable);
        server.send(peer, Lane(1), "before", Delivery::Reliable);
        server.flush();
        clients.turn_until("a packet", |clients| clients.received.len() == 1);
        assert!(clients.gone.is_empty());
        server.send(peer, Lane(9), "a gap", Delivery::Reliable);
        server.flush();
        clients.turn_until("the end", |clients| !clients.gone.is_empty());
        assert_eq!(clients.gone, [(TOO_SLOW, Reason::Remote)]);
    }

    #[test]
    fn a_peer_that_takes_nothing_is_sent_away() {
        let config = |seed| Config { send_bytes_max: 100_000, ..Config::new(seed) };
        let mut server =
            Server::start("127.0.0.1:0".parse().unwrap(), &ServerOptions::default(), config).unwrap();
        let (mut clients, peer) = Clients::connected(&mut server);
        for _ in 0..50 {
            server.send(peer, Lane(0), vec![0; 10_000], Delivery::Reliable);
        }
        server.flush();
        clients.turn_until("the end", |clients| !clients.gone.is_empty());
        assert_eq!(clients.gone, [(TOO_SLOW, Reason::Remote)]);
    }
}
