//! KCP sessions and the UDP sockets under them.
//!
//! All sessions of a listener share its socket, which one loop reads: the port's owner. A session
//! that was handed to another loop sends through the shared socket itself, and gets its datagrams
//! from the owner by [`Letter`]:
//! ```text
//!   owner loop:  socket ─▶ Port.routes ─▶ session here, or ─▶ Letter::Datagram ─▶ inbox of the loop that has it
//!   other loop:  session ─▶ shared socket;  Letter::Moved when it arrives, Letter::Ended when it goes ─▶ owner's inbox
//! ```

mod datagrams;
mod port;
mod session;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};
use throng_stdx::{Instant, Rng, TimerWheel};

use self::datagrams::{Outgoing, receive};
use self::port::{Port, SocketLocation};
pub(crate) use self::session::Session;
use self::session::{Address, Home};
use crate::config::{ConnectSpec, Limits, ListenerSpec};
use crate::event_loop::{ConnKey, ListenerKey, Timer, Waker};
use crate::handler::{CloseCause, Flow, Handler, TimedOut};
use crate::inbox;
use crate::kcp::{Kcp, MSS, Profile, Side};
use crate::listener::{Admission, Rules, allow_both_families};
use crate::stats::LoopStats;
use crate::sys;
use crate::udp::report_own_address;

/// Batches read from one socket per poll, so that a flood of datagrams cannot hold up the rest of
/// the loop.
const BATCHES_PER_POLL: usize = 8;
/// Socket buffers asked for: one socket carries every session of a listener.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Sessions per listener, and per address, whose peers have not proven that they own their address.
const UNPROVEN_MAX: usize = 8192;
const UNPROVEN_PER_IP_MAX: usize = 512;

/// Mail between loops about sessions.
pub(crate) enum Letter {
    /// A datagram for one of the receiver's sessions.
    Datagram { key: ConnKey, bytes: Vec<u8> },
    /// The peer of one of the receiver's sessions began a new one.
    Replaced { key: ConnKey },
    /// A session of the receiver's port now lives elsewhere.
    Moved { port: ListenerKey, peer: SocketAddr, conv: u32, inbox: Arc<Inbox>, key: ConnKey },
    /// The peer of a session of the receiver's port owns its address.
    Proven { port: ListenerKey, peer: SocketAddr, conv: u32 },
    /// A session of the receiver's port is no more.
    Ended { port: ListenerKey, peer: SocketAddr, conv: u32 },
}

impl inbox::Letter for Letter {
    /// Datagrams beyond are dropped, as a full socket buffer would.
    const MAX: usize = 16_384;

    fn may_be_refused(&self) -> bool {
        matches!(self, Self::Datagram { .. })
    }
}

type Inbox = inbox::Inbox<Letter>;

/// Parts of the loop that its sessions use.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) timers: &'a mut TimerWheel<Timer>,
    pub(crate) stats: &'a mut LoopStats,
    pub(crate) generation: &'a mut u32,
}

/// The sessions and ports of a loop.
pub(crate) struct Sessions {
    sessions: Slab<Session>,
    ports: Slab<Port>,
    inbox: Arc<Inbox>,
    /// Sessions that may have something to send, or news for the driver.
    dirty: Vec<ConnKey>,
    arrived: Vec<sys::Arrived>,
    out: Outgoing,
    rng: Rng,
}

impl Sessions {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            sessions: Slab::new(),
            ports: Slab::new(),
            inbox: Arc::new(Inbox::new(waker)),
            dirty: Vec::new(),
            arrived: Vec::new(),
            out: Outgoing::default(),
            // Timestamps and session numbers must not be predictable; the standard library's hash
            // keys are random.
            rng: Rng::new(RandomState::new().hash_one(0)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn get(&self, key: ConnKey) -> Option<&Session> {
        self.sessions.get(key.slot()).filter(|session| session.generation == key.generation())
    }

    fn get_mut(&mut self, key: ConnKey) -> Option<&mut Session> {
        self.sessions.get_mut(key.slot()).filter(|session| session.generation == key.generation())
    }

    /// Something of the last round has to be told or sent without waiting.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty()
    }

    // --- Sockets

    pub(crate) fn listen(&mut self, spec: ListenerSpec, profile: Profile) -> io::Result<(usize, SocketAddr)> {
        if spec.tls.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "TLS does not exist for KCP"));
        }
        let socket = Socket::new(Domain::for_address(spec.addr), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        allow_both_families(&socket, spec.addr)?;
        let limits = &spec.limits;
        socket.set_recv_buffer_size(limits.receive_buffer_bytes.unwrap_or(SOCKET_BUFFER_BYTES))?;
        socket.set_send_buffer_size(limits.send_buffer_bytes.unwrap_or(SOCKET_BUFFER_BYTES))?;
        report_own_address(socket.as_fd(), spec.addr)?;
        socket.bind(&spec.addr.into())?;
        let socket: UdpSocket = socket.into();
        let addr = socket.local_addr()?;
        let unproven = Limits {
            connections_max: UNPROVEN_MAX,
            connections_per_ip_max: Some(UNPROVEN_PER_IP_MAX),
            ..Limits::default()
        };
        let slot = self.ports.insert(Port {
            socket: Arc::new(socket),
            profile,
            routes: HashMap::new(),
            convs: HashMap::new(),
            admission: Arc::new(Admission::new(limits)),
            unproven: Arc::new(Admission::new(&unproven)),
            rules: Rules::of(&spec),
            newcomers: VecDeque::new(),
            graves: VecDeque::new(),
            closing: false,
        });
        Ok((slot, addr))
    }

    pub(crate) fn port_fd(&self, slot: usize) -> BorrowedFd<'_> {
        self.ports[slot].socket.as_fd()
    }

    pub(crate) fn close_port(&mut self, slot: usize) {
        if let Some(port) = self.ports.get_mut(slot) {
            port.closing = true;
            if port.routes.is_empty() {
                self.ports.remove(slot);
            }
        }
    }

    pub(crate) fn connect(
        &mut self,
        spec: &ConnectSpec,
        profile: Profile,
        cx: &mut Cx<'_>,
    ) -> io::Result<ConnKey> {
        if spec.tls.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "TLS does not exist for KCP"));
        }
        let socket = Socket::new(Domain::for_address(spec.addr), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if let Some(addr) = spec.bind {
            socket.bind(&addr.into())?;
        }
        socket.connect(&spec.addr.into())?;
        let conv = self.rng.next_u32();
        let kcp = Kcp::new(conv, profile, Side::Connects, self.rng.next_u32(), cx.now);
        let key = self.insert(
            Session {
                generation: 0,
                peer: spec.addr,
                local: None,
                kcp,
                profile,
                socket: Arc::new(socket.into()),
                home: Home::Own,
                _permit: None,
                unproven: None,
                rules: Rules::outgoing(spec.flush_timeout),
                born: cx.now,
                heard: cx.now,
                probed: cx.now,
                timer: None,
                fresh: true,
                paused: false,
                wanted: false,
                finish_by: None,
                dirty: false,
            },
            cx,
        );
        self.mark(key);
        Ok(key)
    }

    // --- Driver's requests

    pub(crate) fn write(&mut self, key: ConnKey, slices: &[IoSlice<'_>]) -> (usize, bool) {
        let Some(session) = self.get_mut(key) else { return (0, true) };
        if session.finish_by.is_some() {
            return (0, true);
        }
        let free = session.queue_segments_max().saturating_sub(session.kcp.unsent_segments());
        let mut room = free * MSS;
        let (mut taken, mut offered) = (0, 0);
        for slice in slices {
            offered += slice.len();
            let part = &slice[..slice.len().min(room)];
            if !part.is_empty() {
                session.kcp.send(part);
            }
            taken += part.len();
            room -= part.len();
        }
        session.wanted = taken < offered;
        self.mark(key);
        (taken, taken < offered)
    }

    /// Ends a session once everything has arrived at the peer, or after its time.
    pub(crate) fn finish(&mut self, key: ConnKey, now: Instant) {
        if let Some(session) = self.get_mut(key) {
            session.finish_by.get_or_insert(now + session.rules.limits.flush_timeout);
            // The driver is to hear nothing more.
            (session.wanted, session.fresh) = (false, false);
            self.mark(key);
        }
    }

    pub(crate) fn close(&mut self, key: ConnKey, cx: &mut Cx<'_>) {
        self.remove(key, cx);
    }

    pub(crate) fn pause(&mut self, key: ConnKey) {
        if let Some(session) = self.get_mut(key) {
            session.paused = true;
        }
    }

    pub(crate) fn resume(&mut self, key: ConnKey) {
        if let Some(session) = self.get_mut(key) {
            session.paused = false;
            self.mark(key);
        }
    }

    pub(crate) fn detach(&mut self, key: ConnKey, cx: &mut Cx<'_>) -> Option<Session> {
        let session = self.get(key)?;
        if session.finish_by.is_some() {
            return None;
        }
        let mut session = self.sessions.remove(key.slot());
        if let Some((_, timer)) = session.timer.take() {
            cx.timers.cancel(timer);
        }
        if let Home::Here(port) = session.home {
            let name = (session.peer, session.kcp.conv());
            if let Some(route) = self.ports.get_mut(port.slot()).and_then(|p| p.routes.get_mut(&name)) {
                route.place = SocketLocation::Moving(Vec::new());
            }
            session.home = Home::There(Address {
                owner: self.inbox.clone(),
                port,
                peer: session.peer,
                conv: session.kcp.conv(),
            });
        }
        Some(session)
    }

    pub(crate) fn attach(&mut self, mut session: Session, cx: &mut Cx<'_>) -> ConnKey {
        session.paused = false;
        session.dirty = false;
        let key = self.insert(session, cx);
        if let Home::There(address) = &self.sessions[key.slot()].home {
            address.owner.post(Letter::Moved {
                port: address.port,
                peer: address.peer,
                conv: address.conv,
                inbox: self.inbox.clone(),
                key,
            });
        }
        self.mark(key);
        key
    }

    /// The process was paused: nobody's silence counts.
    pub(crate) fn excuse(&mut self, gap: Duration, now: Instant) {
        let mut keys = Vec::with_capacity(self.sessions.len());
        for (slot, session) in &mut self.sessions {
            for since in [&mut session.heard, &mut session.born, &mut session.probed] {
                *since = (*since + gap).min(now);
            }
            session.finish_by = session.finish_by.map(|at| at + gap);
            keys.push(ConnKey::session(slot, session.generation));
        }
        // Their timers are set anew.
        for key in keys {
            self.mark(key);
        }
    }

    // --- Events

    /// Reads a port's socket.
    pub(crate) fn read_port(
        &mut self,
        port: ListenerKey,
        scratch: &mut [u8],
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        for _ in 0..BATCHES_PER_POLL {
            let Some(socket) = self.ports.get(port.slot()).map(|port| port.socket.clone()) else { return };
            let mut arrived = std::mem::take(&mut self.arrived);
            let count = receive(&socket, scratch, &mut arrived, cx.stats);
            for (peer, local, range) in arrived.drain(..) {
                self.route(port, peer, local, &scratch[range], cx, handler);
            }
            self.arrived = arrived;
            if count < sys::DATAGRAM_BATCH {
                return;
            }
        }
    }

    /// Reads the socket of a session that has its own.
    pub(crate) fn read_own(
        &mut self,
        key: ConnKey,
        scratch: &mut [u8],
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        for _ in 0..BATCHES_PER_POLL {
            let Some(socket) = self.get(key).map(|session| session.socket.clone()) else { return };
            let mut arrived = std::mem::take(&mut self.arrived);
            let count = receive(&socket, scratch, &mut arrived, cx.stats);
            for (.., range) in arrived.drain(..) {
                self.feed(key, &scratch[range], cx, handler);
            }
            self.arrived = arrived;
            if count < sys::DATAGRAM_BATCH {
                return;
            }
        }
    }

    /// Reads the mail of other loops.
    pub(crate) fn read_inbox(&mut self, cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        for letter in self.inbox.take() {
            match letter {
                Letter::Datagram { key, bytes } => self.feed(key, &bytes, cx, handler),
                Letter::Replaced { key } => self.end(key, CloseCause::Replaced, cx, handler),
                Letter::Moved { port, peer, conv, inbox, key } => self.moved(port, peer, conv, inbox, key),
                Letter::Proven { port, peer, conv } => self.proven(port, peer, conv, cx, handler),
                Letter::Ended { port, peer, conv } => self.ended(port, peer, conv, cx.now),
            }
        }
    }

    /// Gives a session a datagram.
    fn feed(&mut self, key: ConnKey, datagram: &[u8], cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        let Some(session) = self.get_mut(key) else { return };
        match session.kcp.handle_datagram(cx.now, datagram) {
            Ok(()) => session.heard = cx.now,
            Err(_) => cx.stats.bad_datagrams += 1,
        }
        if session.kcp.is_proven() && session.unproven.take().is_some() {
            let (peer, conv) = (session.peer, session.kcp.conv());
            match &session.home {
                Home::Here(port) => {
                    let port = *port;
                    self.proven(port, peer, conv, cx, handler);
                }
                Home::There(address) => {
                    address.owner.post(Letter::Proven { port: address.port, peer, conv });
                }
                Home::Own => {}
            }
            handler.proven(key);
        }
        self.deliver(key, handler);
        self.mark(key);
    }

    /// Passes on what a session has received, until the handler pauses.
    fn deliver(&mut self, key: ConnKey, handler: &mut dyn Handler) {
        let Some(session) = self.get_mut(key) else { return };
        if std::mem::take(&mut session.fresh) {
            handler.connected(key);
        }
        while (!session.paused || session.finish_by.is_some())
            && let Some(piece) = session.kcp.poll_received()
        {
            if !piece.bytes.is_empty() && session.finish_by.is_none() {
                session.paused = handler.data(key, &piece.bytes) == Flow::Pause;
            }
        }
    }

    /// Does what is due for a session.
    pub(crate) fn handle_timer(&mut self, key: ConnKey, cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        let now = cx.now;
        let Some(session) = self.get_mut(key) else { return };
        session.timer = None;
        if session.finish_by.is_some_and(|at| at <= now) {
            self.remove(key, cx);
            return;
        }
        if !session.kcp.is_proven() && session.born + session.rules.limits.handshake_timeout <= now {
            return self.end(key, CloseCause::TimedOut(TimedOut::Handshake), cx, handler);
        }
        if session.heard + session.idle_timeout() <= now {
            return self.end(key, CloseCause::TimedOut(TimedOut::Idle), cx, handler);
        }
        if session.probe_at() <= now {
            session.probed = now;
            session.kcp.probe();
        }
        session.kcp.handle_timeout(now);
        self.mark(key);
    }

    /// Tells the driver what has become of the sessions that are marked. Part of a round's events.
    pub(crate) fn tell(&mut self, cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        for index in 0..self.dirty.len() {
            let key = self.dirty[index];
            let Some(session) = self.get_mut(key) else { continue };
            if session.kcp.is_dead() {
                self.end(key, CloseCause::DeadLink, cx, handler);
                continue;
            }
            let has_room_again = session.has_room_again();
            session.wanted &= !has_room_again;
            self.deliver(key, handler);
            if has_room_again {
                handler.writable(key);
            }
        }
    }

    /// Sends what the marked sessions have to send, and sets their timers.
    pub(crate) fn flush(&mut self, cx: &mut Cx<'_>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some(session) = self.sessions.get_mut(key.slot()) else { continue };
            if session.generation != key.generation() {
                continue;
            }
            session.dirty = false;
            let to = (!matches!(session.home, Home::Own)).then_some(session.peer);
            while session.kcp.poll_transmit(cx.now, &mut self.out.datagram) {
                self.out.push(&session.socket, (to, session.local), cx.stats);
            }
            if session.finish_by.is_some() && session.kcp.is_flushed() {
                self.remove(key, cx);
                continue;
            }
            if session.has_news() {
                // The next round tells it.
                session.dirty = true;
                self.dirty.push(key);
            }
            let at = session.next_timeout();
            if session.timer.as_ref().is_none_or(|(set, _)| *set != at) {
                if let Some((_, timer)) = session.timer.take() {
                    cx.timers.cancel(timer);
                }
                session.timer = Some((at, cx.timers.insert(at, Timer::Conn(key))));
            }
        }
        if self.dirty.is_empty() {
            // Keeps the allocation.
            self.dirty = dirty;
        }
        self.out.send(cx.stats);
    }

    fn mark(&mut self, key: ConnKey) {
        if let Some(session) = self.get_mut(key)
            && !session.dirty
        {
            session.dirty = true;
            self.dirty.push(key);
        }
    }

    fn end(&mut self, key: ConnKey, cause: CloseCause, cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        let told = self.get(key).is_some_and(|session| session.finish_by.is_none());
        self.remove(key, cx);
        if told {
            handler.closed(key, cause);
        }
    }

    fn insert(&mut self, mut session: Session, cx: &mut Cx<'_>) -> ConnKey {
        *cx.generation = ConnKey::next_generation(*cx.generation);
        session.generation = *cx.generation;
        let slot = self.sessions.insert(session);
        ConnKey::session(slot, *cx.generation)
    }

    fn remove(&mut self, key: ConnKey, cx: &mut Cx<'_>) {
        if self.get(key).is_none() {
            return;
        }
        let mut session = self.sessions.remove(key.slot());
        if let Some((_, timer)) = session.timer.take() {
            cx.timers.cancel(timer);
        }
        if let Home::Here(port) = session.home {
            self.ended(port, session.peer, session.kcp.conv(), cx.now);
        }
    }
}
