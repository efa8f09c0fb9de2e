//! ENet peers as connections of an event loop.
//!
//! A listener is a [`Host`] and a socket on each of some loops, which stay there: the port's owner.
//! The first of the loops accepts the peers of all. A connection that was handed to another loop is
//! served there through letters:
//! ```text
//!   owner loop:  socket ─▶ Host ─▶ Letter::Newcomer ─▶ inbox of the loop that accepts
//!   owner loop:  socket ─▶ Host ─▶ connection here, or ─▶ Letter::Data, Ended, Room ─▶ inbox of the loop that has it
//!   other loop:  Letter::Write, Finish, Close, Moved ─▶ owner's inbox ─▶ Host ─▶ socket
//! ```
//! Bytes on their way to the owner count as queued, so a connection takes no more from its driver
//! there than here.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slab::Slab;
use throng_enet::{Bytes, Config, Delivery, Event, Host, PeerId, Reason};
use throng_stdx::Instant;

use super::envelope::Envelope;
use super::guard::{Gates, Guard};
use super::port::{Group, Port, Progress, Route, SocketLocation};
use super::{HostCounters, entropy};
use crate::config::{ConnectSpec, ListenerSpec};
use crate::event_loop::{ConnKey, Waker};
use crate::handler::{Accept, CloseCause, Flow, Handler, TimedOut};
use crate::inbox;
use crate::listener::{Admission, Permit, Rules};
use crate::stats::LoopStats;
use crate::udp::{UdpOptions, UdpPort, any_address};

/// Batches of 64 datagrams read from a socket per poll.
const BATCHES_PER_POLL: usize = 8;
/// Bytes that may wait in the protocol to be sent or acknowledged before a connection counts as
/// blocked: the most that can be on its way to one peer.
pub(super) const QUEUE_BYTES_MAX: u64 = 64 * 1024;
/// Bytes that the host holds per peer at most: the queue, and one write on top of it.
const SEND_BYTES_MAX: usize = 8 << 20;
/// Longest packet from a peer. A frame has 64 KiB; a packet may hold several.
const PACKET_BYTES_MAX: usize = 1 << 20;
/// Bytes kept for a connection whose driver has paused it.
const HELD_BYTES_MAX: usize = 4 << 20;

/// Socket buffers of an outgoing connection.
const CLIENT_BUFFER_BYTES: usize = 1 << 20;
/// The protocol's own idea of when a peer is gone, after the handshake had the caller's.
const TIMEOUT_LIMIT: u32 = 32;
const TIMEOUT_MIN: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// Letters between loops about connections.
pub(super) enum Letter {
    Newcomer { listener: usize, conn: Box<EnetConn> },
    Data { key: ConnKey, bytes: Bytes },
    Ended { key: ConnKey, cause: CloseCause },
    Room { key: ConnKey },
    Write { port: usize, peer: PeerId, bytes: Bytes, delivery: Delivery },
    Finish { port: usize, peer: PeerId, code: u32, until: Instant },
    Close { port: usize, peer: PeerId, code: u16 },
    Admit { port: usize, peer: PeerId },
    Moved { port: usize, peer: PeerId, inbox: Arc<Inbox>, key: ConnKey },
}

impl inbox::Letter for Letter {
    /// Data beyond is refused; its sender is then disconnected, as data must not be lost.
    const MAX: usize = 65_536;

    fn may_be_refused(&self) -> bool {
        matches!(self, Self::Data { .. })
    }
}

pub(super) type Inbox = inbox::Inbox<Letter>;

/// A connection, in the loop that serves it.
pub(crate) struct EnetConn {
    generation: u32,
    peer: SocketAddr,
    id: PeerId,
    port: usize,
    /// The owner's inbox when that is another loop.
    owner: Option<Arc<Inbox>>,
    rules: Arc<Rules>,
    progress: Arc<Progress>,
    connected: bool,
    written: u64,
    paused: bool,
    held: VecDeque<Bytes>,
    held_bytes: usize,
    /// Ended while it was paused: the driver hears of it after what is held.
    ended: Option<CloseCause>,
    /// The driver was told that the connection is blocked.
    wanted: bool,
    /// In the list of connections with news for the driver.
    has_news: bool,
    /// Given up by the driver, or handed on: dropping it does not end the peer.
    released: bool,
}

impl EnetConn {
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn waiting(&self) -> u64 {
        self.written.saturating_sub(self.progress.done.load(Ordering::Acquire))
    }
}

impl Drop for EnetConn {
    fn drop(&mut self) {
        // Lost between two loops, or its loop has ended.
        if let Some(owner) = self.owner.as_ref().filter(|_| !self.released) {
            owner.post(Letter::Close { port: self.port, peer: self.id, code: 0 });
        }
    }
}

/// The ENet connections and ports of a loop.
pub(crate) struct Enets {
    conns: Slab<EnetConn>,
    ports: Slab<Port>,
    inbox: Arc<Inbox>,
    /// Connections with something to tell that no event will bring up.
    news: Vec<ConnKey>,
    buf: Vec<u8>,
}

impl Enets {
    pub(crate) fn new(waker: Waker) -> Self {
        let inbox = Arc::new(Inbox::new(waker));
        Self { conns: Slab::new(), ports: Slab::new(), inbox, news: Vec::new(), buf: Vec::new() }
    }

    /// Connections, and peers of this loop's sockets that are served elsewhere or are saying
    /// goodbye.
    pub(crate) fn len(&self) -> usize {
        let away = self.conns.iter().filter(|(_, conn)| conn.owner.is_some()).count();
        away + self.ports.iter().map(|(_, port)| port.routes.len()).sum::<usize>()
    }

    pub(crate) fn peer(&self, key: ConnKey) -> Option<SocketAddr> {
        self.get(key).map(EnetConn::peer)
    }

    pub(crate) fn figures(&self) -> HostCounters {
        let mut sum = HostCounters::default();
        for (_, port) in &self.ports {
            sum += HostCounters::of(&port.host, &port.udp, &port.guard);
        }
        sum
    }

    fn get(&self, key: ConnKey) -> Option<&EnetConn> {
        self.conns.get(key.slot()).filter(|conn| conn.generation == key.generation())
    }

    fn get_mut(&mut self, key: ConnKey) -> Option<&mut EnetConn> {
        self.conns.get_mut(key.slot()).filter(|conn| conn.generation == key.generation())
    }

    // --- Sockets

    /// Opens a listener with a socket for each of `loops`, the first of which accepts the peers.
    /// Returns the places of the ports and their address.
    pub(crate) fn listen(
        loops: &mut [(&mut Self, Instant)],
        spec: &ListenerSpec,
    ) -> io::Result<(Vec<usize>, SocketAddr)> {
        if spec.tls.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "TLS does not exist for ENet"));
        }
        let limits = &spec.limits;
        let defaults = UdpOptions::default();
        let udp = UdpOptions {
            receive_buffer_bytes: limits.receive_buffer_bytes.unwrap_or(defaults.receive_buffer_bytes),
            send_buffer_bytes: limits.send_buffer_bytes.unwrap_or(defaults.send_buffer_bytes),
            ..defaults
        };
        let sockets = UdpPort::bind_all(spec.addr, &udp, loops.len())?;
        let Some(addr) = sockets.first().map(UdpPort::local_addr) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a listener needs a loop"));
        };
        let copies: io::Result<Vec<_>> =
            sockets.iter().map(|socket| socket.fd().try_clone_to_owned()).collect();
        let group = Arc::new(Group { closing: AtomicBool::new(false), _sockets: copies? });
        let group = (loops.len() > 1).then_some(group);
        let gates = Gates::new(spec.enet_gate.clone(), spec.enet_dtls.clone())?;
        let (admission, rules) = (Arc::new(Admission::new(limits)), Rules::of(spec));
        let (mut slots, mut front) = (Vec::new(), None);
        for ((enets, now), udp) in loops.iter_mut().zip(sockets) {
            let config = Config {
                peers_max: limits.connections_max,
                packet_bytes_max: PACKET_BYTES_MAX,
                peer_bytes_max: 4 * PACKET_BYTES_MAX,
                newcomer_bytes_max: limits.newcomer_bytes_max.unwrap_or(usize::MAX),
                send_bytes_max: SEND_BYTES_MAX,
                half_open_timeout: limits.handshake_timeout,
                ..Config::new(entropy()?)
            };
            let guard = gates.guard(*now)?;
            let host = Host::new(*now, guard.fit(config)).map_err(io::Error::other)?;
            let slot = enets.ports.insert(Port {
                udp,
                guard,
                host,
                routes: HashMap::new(),
                admission: admission.clone(),
                rules: rules.clone(),
                watched: Vec::new(),
                closing: false,
                group: group.clone(),
                front: front.clone(),
                blocked: false,
            });
            front.get_or_insert_with(|| (enets.inbox.clone(), slot));
            slots.push(slot);
        }
        Ok((slots, addr))
    }

    pub(crate) fn port_fd(&self, slot: usize) -> BorrowedFd<'_> {
        self.ports[slot].udp.fd()
    }

    pub(crate) fn close_port(&mut self, slot: usize) {
        if let Some(port) = self.ports.get_mut(slot) {
            port.closing = true;
            if let Some(group) = &port.group {
                group.closing.store(true, Ordering::Release);
            }
            if port.is_over() {
                self.ports.remove(slot);
            }
        }
    }

    /// Begins an outgoing connection, on a socket of its own. Returns the place of that socket's
    /// port as well.
    pub(crate) fn connect(
        &mut self,
        spec: &ConnectSpec,
        now: Instant,
        generation: &mut u32,
    ) -> io::Result<(ConnKey, usize)> {
        if spec.tls.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "TLS does not exist for ENet"));
        }
        let udp = UdpOptions {
            receive_buffer_bytes: CLIENT_BUFFER_BYTES,
            send_buffer_bytes: CLIENT_BUFFER_BYTES,
            segmentation: false,
            ..UdpOptions::default()
        };
        let udp = UdpPort::bind(spec.bind.unwrap_or(any_address(spec.addr)), &udp)?;
        let config = Config {
            packet_bytes_max: PACKET_BYTES_MAX,
            peer_bytes_max: 4 * PACKET_BYTES_MAX,
            send_bytes_max: SEND_BYTES_MAX,
            ..Config::client(entropy()?)
        };
        let guard = Guard::entry(now, spec.enet_token.as_ref(), spec.addr, entropy()?);
        let mut host = Host::new(now, guard.fit(config)).map_err(io::Error::other)?;
        let id = host.connect(now, spec.addr, 1, 0).map_err(io::Error::other)?;
        host.set_timeout(id, 32, spec.timeout, spec.timeout);
        let rules = Rules::outgoing(spec.flush_timeout);
        let slot = self.ports.insert(Port {
            udp,
            guard,
            host,
            routes: HashMap::new(),
            admission: Arc::new(Admission::new(&rules.limits)),
            rules,
            watched: Vec::new(),
            closing: true,
            group: None,
            front: None,
            blocked: false,
        });
        Ok((self.insert(slot, id, spec.addr, None, generation), slot))
    }

    // --- Driver's requests

    /// Takes everything or nothing, so that a packet holds whole frames whenever a write does.
    pub(crate) fn write(
        &mut self,
        key: ConnKey,
        slices: &[IoSlice<'_>],
        delivery: Delivery,
    ) -> (usize, bool) {
        let Some(conn) = self.get_mut(key) else { return (0, true) };
        if !conn.connected || conn.wanted || conn.waiting() >= QUEUE_BYTES_MAX || conn.ended.is_some() {
            conn.wanted = true;
            return (0, true);
        }
        let mut packet = Vec::with_capacity(slices.iter().map(|slice| slice.len()).sum());
        slices.iter().for_each(|slice| packet.extend_from_slice(slice));
        if packet.is_empty() {
            return (0, false);
        }
        let (taken, bytes) = (packet.len(), Bytes::from(packet));
        conn.written += taken as u64;
        let blocked = conn.waiting() >= QUEUE_BYTES_MAX;
        conn.wanted = blocked;
        let (port, peer) = (conn.port, conn.id);
        self.post_to_owner(key, Letter::Write { port, peer, bytes, delivery });
        (taken, blocked)
    }

    /// Ends a connection once everything has arrived at the peer, or after its time.
    pub(crate) fn finish(&mut self, key: ConnKey, code: u16, now: Instant) {
        let Some(conn) = self.get(key) else { return };
        let until = now + conn.rules.limits.flush_timeout;
        let letter = Letter::Finish { port: conn.port, peer: conn.id, code: code.into(), until };
        self.post_to_owner(key, letter);
        self.forget(key);
    }

    pub(crate) fn close(&mut self, key: ConnKey) {
        let Some(conn) = self.get(key) else { return };
        let letter = Letter::Close { port: conn.port, peer: conn.id, code: 0 };
        self.post_to_owner(key, letter);
        self.forget(key);
    }

    /// The driver knows the peer from now on.
    pub(crate) fn admit(&mut self, key: ConnKey) {
        let Some(conn) = self.get(key) else { return };
        let letter = Letter::Admit { port: conn.port, peer: conn.id };
        self.post_to_owner(key, letter);
    }

    pub(crate) fn pause(&mut self, key: ConnKey) {
        if let Some(conn) = self.get_mut(key) {
            conn.paused = true;
        }
    }

    pub(crate) fn resume(&mut self, key: ConnKey) {
        if let Some(conn) = self.get_mut(key) {
            conn.paused = false;
            self.note_news(key);
        }
    }

    pub(crate) fn detach(&mut self, key: ConnKey) -> Option<EnetConn> {
        let conn = self.get(key)?;
        if conn.ended.is_some() {
            return None;
        }
        let mut conn = self.conns.remove(key.slot());
        if conn.owner.is_none() {
            let route = self.ports.get_mut(conn.port).and_then(|port| port.routes.get_mut(&conn.id))?;
            route.place = SocketLocation::Moving(Vec::new());
            conn.owner = Some(self.inbox.clone());
        }
        Some(conn)
    }

    pub(crate) fn attach(&mut self, conn: EnetConn, generation: &mut u32) -> ConnKey {
        let key = self.take_over(conn, generation);
        self.settle(key);
        key
    }

    /// Gives a connection a key here. Its owner keeps what arrives for it until it is
    /// [settled](Self::settle).
    fn take_over(&mut self, mut conn: EnetConn, generation: &mut u32) -> ConnKey {
        *generation = ConnKey::next_generation(*generation);
        conn.generation = *generation;
        (conn.paused, conn.has_news) = (false, false);
        ConnKey::enet(self.conns.insert(conn), *generation)
    }

    /// Has the owner of a connection's port send everything here.
    fn settle(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key.slot()) else { return };
        let (port, peer, inbox) = (conn.port, conn.id, self.inbox.clone());
        match conn.owner.take_if(|owner| Arc::ptr_eq(owner, &inbox)) {
            // Back where its socket is.
            Some(_) => {
                let route = self.ports.get_mut(port).and_then(|port| port.routes.get_mut(&peer));
                let place = route.map(|route| std::mem::replace(&mut route.place, SocketLocation::Here(key)));
                match place {
                    None => conn.ended = Some(CloseCause::EndOfStream),
                    Some(SocketLocation::Moving(letters)) => {
                        for letter in letters {
                            if let Letter::Data { bytes, .. } = letter {
                                conn.held_bytes += bytes.len();
                                conn.held.push_back(bytes);
                            }
                        }
                    }
                    Some(_) => {}
                }
            }
            None => {
                if let Some(owner) = &conn.owner {
                    owner.post(Letter::Moved { port, peer, inbox, key });
                }
            }
        }
        self.note_news(key);
    }

    // --- Events

    /// Reads a port's socket into its host; [`tell`](Self::tell) follows.
    pub(crate) fn read_port(&mut self, slot: usize, now: Instant, stats: &mut LoopStats) {
        let Some(port) = self.ports.get_mut(slot) else { return };
        let before = *port.udp.stats();
        for _ in 0..BATCHES_PER_POLL {
            let more = port.guard.receive(now, &mut port.udp, &mut port.host);
            // An error is as good as silence: peers whose datagrams are lost time out.
            if !more.unwrap_or(false) {
                break;
            }
        }
        let after = port.udp.stats();
        stats.reads += after.reads - before.reads;
        stats.datagrams_in += after.datagrams_in - before.datagrams_in;
        stats.bytes_in += after.bytes_in - before.bytes_in;
    }

    /// Reads the mail of other loops.
    pub(crate) fn read_inbox(
        &mut self,
        now: Instant,
        stats: &mut LoopStats,
        generation: &mut u32,
        handler: &mut dyn Handler,
    ) {
        for letter in self.inbox.take() {
            match letter {
                Letter::Newcomer { listener, conn } => {
                    self.welcome(listener, *conn, stats, generation, handler);
                }
                Letter::Data { key, bytes } => self.give(key, bytes, handler),
                Letter::Ended { key, cause } => self.end(key, cause, handler),
                Letter::Room { key } => self.tell_room(key, handler),
                other => self.handle_request(other),
            }
        }
        self.tell(now, stats, generation, handler);
    }

    /// Tells the driver what has become of peers.
    pub(crate) fn tell(
        &mut self,
        now: Instant,
        stats: &mut LoopStats,
        generation: &mut u32,
        handler: &mut dyn Handler,
    ) {
        for slot in self.port_slots() {
            self.ports[slot].handle_timeout(now);
        }
        self.tell_news_only(stats, generation, handler);
    }

    /// As [`tell`](Self::tell), without timers: after a pause, everything that has gathered is read
    /// before any of them.
    pub(crate) fn tell_news_only(
        &mut self,
        stats: &mut LoopStats,
        generation: &mut u32,
        handler: &mut dyn Handler,
    ) {
        for key in std::mem::take(&mut self.news) {
            self.tell_news(key, handler);
        }
        for slot in self.port_slots() {
            while let Some(event) = self.ports.get_mut(slot).and_then(|port| port.host.poll_event()) {
                match event {
                    Event::Connected { peer, .. } => self.accept(slot, peer, stats, generation, handler),
                    Event::Received { peer, data, .. } => self.route_data(slot, peer, data, handler),
                    Event::Disconnected { peer, reason, data } => {
                        self.route_end(slot, peer, reason, data, handler);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Sends what hosts have to send, and looks after peers that were sent something.
    pub(crate) fn flush(&mut self, now: Instant, stats: &mut LoopStats) {
        for slot in self.port_slots() {
            let port = &mut self.ports[slot];
            let before = *port.udp.stats();
            port.send(now, &mut self.buf);
            let after = port.udp.stats();
            stats.writes += after.writes - before.writes;
            stats.datagrams_out += after.datagrams_out - before.datagrams_out;
            stats.bytes_out += after.bytes_out - before.bytes_out;
            let mut room = Vec::new();
            port.look_after_watched(now, &mut room);
            for (place, key) in room {
                match place {
                    None => {
                        let is_wanted = self.get(key).is_some_and(|conn| conn.wanted);
                        if is_wanted {
                            self.note_news(key);
                        }
                    }
                    Some(inbox) => drop(inbox.post(Letter::Room { key })),
                }
            }
            if self.ports[slot].is_over() {
                self.ports.remove(slot);
            }
        }
    }

    /// Something of the last round has to be told without waiting.
    pub(crate) fn has_work(&self) -> bool {
        // Sending the last word to a peer ends its connection.
        !self.news.is_empty() || self.ports.iter().any(|(_, port)| port.host.has_events())
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.ports.iter().filter_map(|(_, port)| port.next_timeout()).min()
    }

    // --- The owner's side

    fn port_slots(&self) -> Vec<usize> {
        // One per ENet listener, and one per outgoing connection.
        self.ports.iter().map(|(slot, _)| slot).collect()
    }

    fn accept(
        &mut self,
        slot: usize,
        id: PeerId,
        stats: &mut LoopStats,
        generation: &mut u32,
        handler: &mut dyn Handler,
    ) {
        let port = &mut self.ports[slot];
        if let Some(route) = port.routes.get_mut(&id) {
            // One of ours.
            route.connected = true;
            port.host.set_timeout(id, TIMEOUT_LIMIT, TIMEOUT_MIN, TIMEOUT_MAX);
            if let SocketLocation::Here(key) = route.place
                && let Some(conn) = self.get_mut(key)
            {
                conn.connected = true;
                handler.connected(key);
                self.note_news(key);
            }
            return;
        }
        stats.accepted += 1;
        let Some(peer) = port.host.peer(id).map(|info| info.address) else { return };
        let permit = if port.is_closing() { None } else { port.admission.permit(Some(peer.ip())) };
        let Some(permit) = permit else {
            stats.refused_by_limits += 1;
            return port.host.disconnect_now(id, 0);
        };
        if let Some((front, listener)) = port.front.clone() {
            let key = self.insert(slot, id, peer, Some(permit), generation);
            if let Some(conn) = self.detach(key) {
                front.post(Letter::Newcomer { listener, conn: Box::new(conn) });
            }
            return;
        }
        let listener = crate::event_loop::ListenerKey::enet(slot);
        if !handler.admit(listener, peer) {
            stats.refused_by_handler += 1;
            return port.host.disconnect_now(id, 0);
        }
        let key = self.insert(slot, id, peer, Some(permit), generation);
        match handler.accepted(listener, key, peer) {
            Accept::Keep => {}
            Accept::HandOff => self.pause(key),
            Accept::Refuse { code, .. } => {
                stats.refused_by_handler += 1;
                self.drop_peer(slot, id, code);
                self.forget(key);
            }
        }
    }

    /// Accepts a peer of another loop's socket.
    fn welcome(
        &mut self,
        listener: usize,
        conn: EnetConn,
        stats: &mut LoopStats,
        generation: &mut u32,
        handler: &mut dyn Handler,
    ) {
        // Dropping the connection ends it.
        if self.ports.get(listener).is_none_or(Port::is_closing) {
            stats.refused_by_limits += 1;
            return;
        }
        let (listener, peer) = (crate::event_loop::ListenerKey::enet(listener), conn.peer);
        if !handler.admit(listener, peer) {
            stats.refused_by_handler += 1;
            return;
        }
        let (port, id) = (conn.port, conn.id);
        let key = self.take_over(conn, generation);
        match handler.accepted(listener, key, peer) {
            Accept::Keep => self.settle(key),
            Accept::HandOff => self.pause(key),
            Accept::Refuse { code, .. } => {
                stats.refused_by_handler += 1;
                self.post_to_owner(key, Letter::Close { port, peer: id, code });
                self.forget(key);
            }
        }
    }

    fn insert(
        &mut self,
        slot: usize,
        id: PeerId,
        peer: SocketAddr,
        permit: Option<Permit>,
        generation: &mut u32,
    ) -> ConnKey {
        *generation = ConnKey::next_generation(*generation);
        let progress = Arc::new(Progress::default());
        let connected = permit.is_some();
        let port = &mut self.ports[slot];
        let conn = EnetConn {
            generation: *generation,
            peer,
            id,
            port: slot,
            owner: None,
            rules: port.rules.clone(),
            progress: progress.clone(),
            connected,
            written: 0,
            paused: false,
            held: VecDeque::new(),
            held_bytes: 0,
            ended: None,
            wanted: false,
            has_news: false,
            released: false,
        };
        let key = ConnKey::enet(self.conns.insert(conn), *generation);
        let route = Route {
            place: SocketLocation::Here(key),
            progress,
            accepted_bytes: 0,
            watched: false,
            finish_by: None,
            connected,
            envelope: None,
            _permit: permit,
        };
        port.routes.insert(id, route);
        key
    }

    fn route_data(&mut self, slot: usize, peer: PeerId, data: Bytes, handler: &mut dyn Handler) {
        let Some(route) = self.ports[slot].routes.get_mut(&peer).filter(|route| route.finish_by.is_none())
        else {
            return;
        };
        let data = route.envelope.get_or_insert_with(|| Envelope::of(&data)).open(data);
        match &mut route.place {
            SocketLocation::Here(key) => {
                let key = *key;
                self.give(key, data, handler);
            }
            SocketLocation::There(inbox, key) => {
                if !inbox.post(Letter::Data { key: *key, bytes: data }) {
                    inbox.post(Letter::Ended { key: *key, cause: CloseCause::Overrun });
                    self.drop_peer(slot, peer, 0);
                }
            }
            SocketLocation::Moving(letters) => {
                // The key is put right when the connection has arrived.
                letters.push(Letter::Data { key: ConnKey::enet(0, 0), bytes: data });
            }
        }
    }

    fn route_end(&mut self, slot: usize, peer: PeerId, reason: Reason, code: u32, handler: &mut dyn Handler) {
        let Some(route) = self.ports[slot].routes.remove(&peer) else { return };
        if route.finish_by.is_some() {
            // The driver has forgotten it.
            return;
        }
        let cause = match reason {
            _ if !route.connected => CloseCause::TimedOut(TimedOut::Connect),
            Reason::Remote => CloseCause::Disconnected { code },
            Reason::Local => CloseCause::EndOfStream,
            Reason::Timeout => CloseCause::DeadLink,
            Reason::Replaced => CloseCause::Replaced,
            Reason::MadeRoom => CloseCause::Overrun,
            _ => CloseCause::TimedOut(TimedOut::Handshake),
        };
        match route.place {
            SocketLocation::Here(key) => self.end(key, cause, handler),
            SocketLocation::There(inbox, key) => drop(inbox.post(Letter::Ended { key, cause })),
            // The loop that attaches it learns that its route is gone.
            SocketLocation::Moving(_) => {}
        }
    }

    /// Carries out what the loop that serves a connection wants of its peer.
    fn handle_request(&mut self, letter: Letter) {
        match letter {
            Letter::Write { port, peer, bytes, delivery } => {
                let Some(port) = self.ports.get_mut(port) else { return };
                let Some(route) = port.routes.get_mut(&peer) else { return };
                let len = bytes.len() as u64;
                let (packet, lane) = route.envelope.unwrap_or(Envelope::None).close(bytes);
                // Within the limits by construction; a peer that just went away is told of soon.
                if port.host.send(peer, lane, packet, delivery).is_ok() {
                    route.accepted_bytes += len;
                }
                if !route.watched {
                    route.watched = true;
                    port.watched.push(peer);
                }
            }
            Letter::Finish { port, peer, code, until } => {
                let Some(port) = self.ports.get_mut(port) else { return };
                let Some(route) = port.routes.get_mut(&peer) else { return };
                route.finish_by = Some(until);
                if !route.watched {
                    route.watched = true;
                    port.watched.push(peer);
                }
                port.host.disconnect_later(peer, code);
            }
            Letter::Close { port, peer, code } => self.drop_peer(port, peer, code),
            Letter::Admit { port, peer } => {
                if let Some(port) = self.ports.get_mut(port) {
                    port.host.admit(peer);
                }
            }
            Letter::Moved { port, peer, inbox, key } => {
                let route = self.ports.get_mut(port).and_then(|port| port.routes.get_mut(&peer));
                let Some(route) = route else {
                    inbox.post(Letter::Ended { key, cause: CloseCause::EndOfStream });
                    return;
                };
                // It has come back since.
                if matches!(route.place, SocketLocation::Here(_)) {
                    return;
                }
                if let SocketLocation::Moving(letters) = &mut route.place {
                    for letter in letters.drain(..) {
                        if let Letter::Data { bytes, .. } = letter {
                            inbox.post(Letter::Data { key, bytes });
                        }
                    }
                }
                route.place = SocketLocation::There(inbox, key);
            }
            // For connections, not for ports.
            Letter::Newcomer { .. } | Letter::Data { .. } | Letter::Ended { .. } | Letter::Room { .. } => {}
        }
    }

    fn drop_peer(&mut self, slot: usize, peer: PeerId, code: u16) {
        if let Some(port) = self.ports.get_mut(slot)
            && port.routes.remove(&peer).is_some()
        {
            port.host.disconnect_now(peer, code.into());
        }
    }

    // --- The connection's side

    fn post_to_owner(&mut self, key: ConnKey, letter: Letter) {
        match self.get(key).and_then(|conn| conn.owner.clone()) {
            Some(owner) => drop(owner.post(letter)),
            None => self.handle_request(letter),
        }
    }

    /// Gives a connection bytes, or keeps them while it is paused.
    fn give(&mut self, key: ConnKey, bytes: Bytes, handler: &mut dyn Handler) {
        let Some(conn) = self.get_mut(key) else { return };
        if bytes.is_empty() {
            return;
        }
        if conn.paused || !conn.held.is_empty() {
            conn.held_bytes += bytes.len();
            conn.held.push_back(bytes);
            if conn.held_bytes > HELD_BYTES_MAX {
                let letter = Letter::Close { port: conn.port, peer: conn.id, code: 0 };
                self.post_to_owner(key, letter);
                self.forget(key);
                handler.closed(key, CloseCause::Overrun);
            }
            return;
        }
        if handler.data(key, &bytes) == Flow::Pause
            && let Some(conn) = self.get_mut(key)
        {
            conn.paused = true;
        }
    }

    fn end(&mut self, key: ConnKey, cause: CloseCause, handler: &mut dyn Handler) {
        let Some(conn) = self.get_mut(key) else { return };
        if conn.held.is_empty() {
            self.forget(key);
            handler.closed(key, cause);
        } else {
            conn.ended = Some(cause);
        }
    }

    fn tell_room(&mut self, key: ConnKey, handler: &mut dyn Handler) {
        if let Some(conn) = self.get_mut(key)
            && conn.wanted
            && conn.waiting() <= QUEUE_BYTES_MAX / 2
        {
            conn.wanted = false;
            handler.writable(key);
        }
    }

    fn tell_news(&mut self, key: ConnKey, handler: &mut dyn Handler) {
        let Some(conn) = self.get_mut(key) else { return };
        conn.has_news = false;
        while let Some(conn) = self.get_mut(key).filter(|conn| !conn.paused)
            && let Some(bytes) = conn.held.pop_front()
        {
            conn.held_bytes -= bytes.len();
            if handler.data(key, &bytes) == Flow::Pause
                && let Some(conn) = self.get_mut(key)
            {
                conn.paused = true;
            }
        }
        let Some(conn) = self.get_mut(key) else { return };
        if conn.held.is_empty()
            && let Some(cause) = conn.ended.take()
        {
            self.forget(key);
            return handler.closed(key, cause);
        }
        self.tell_room(key, handler);
    }

    fn note_news(&mut self, key: ConnKey) {
        if let Some(conn) = self.get_mut(key)
            && !conn.has_news
        {
            conn.has_news = true;
            self.news.push(key);
        }
    }

    /// The driver is to hear nothing more.
    fn forget(&mut self, key: ConnKey) {
        if self.get(key).is_some() {
            self.conns.remove(key.slot()).released = true;
        }
    }
}

const _: () = assert!(QUEUE_BYTES_MAX as usize * 2 < SEND_BYTES_MAX, "a write fits on top of a full queue");
