//! KCP sessions and the UDP sockets under them.
//!
//! All sessions of a listener share its socket, which one loop reads: the port's owner. A session that was handed to
//! another loop sends through the shared socket itself, and gets its datagrams from the owner by [`Letter`]:
//! ```text
//!   owner loop:  socket ─▶ Port.routes ─▶ session here, or ─▶ Letter::Datagram ─▶ inbox of the loop that has it
//!   other loop:  session ─▶ shared socket;  Letter::Moved when it arrives, Letter::Ended when it goes ─▶ owner's inbox
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};
use throng_stdx::{Instant, Rng, TimerKey, TimerWheel};

use crate::config::{ConnectSpec, Limits, ListenerSpec};
use crate::event_loop::{ConnKey, ListenerKey, Timer, Waker};
use crate::handler::{Accept, CloseCause, Flow, Handler, TimedOut};
use crate::inbox;
use crate::kcp::{Kcp, MSS, Profile, Segments, Side};
use crate::listener::{Admission, Permit, Rules, allow_both_families, canonical};
use crate::stats::LoopStats;
use crate::sys;

/// Batches read from one socket per poll, so that a flood of datagrams cannot hold up the rest of the loop.
const BATCHES_PER_POLL: usize = 8;
/// Socket buffers asked for: one socket carries every session of a listener.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Sessions per listener, and per address, whose peers have not proven that they own their address.
const UNPROVEN_MAX: usize = 8192;
const UNPROVEN_PER_IP_MAX: usize = 512;
/// Time in which an honest peer proves itself; only sessions older than this make room for new ones.
const ROUND_TRIP: Duration = Duration::from_millis(250);
/// Ended sessions remembered, and for how long: late datagrams must not bring them back to life.
const GRAVES_MAX: usize = 4096;
const GRAVE_TIME: Duration = Duration::from_secs(30);
/// Datagrams kept for a session on its way to another loop. The peer repeats what exceeds it.
const HELD_DATAGRAMS_MAX: usize = 32;
/// Command of segments with payload; only these begin a session.
const PUSH_COMMAND: u8 = 81;

/// What loops tell each other about sessions.
pub(crate) enum Letter {
    /// A datagram for one of the receiver's sessions.
    Datagram { key: ConnKey, bytes: Vec<u8> },
    /// The peer of one of the receiver's sessions began a new one.
    Replaced { key: ConnKey },
    /// A session of the receiver's port now lives elsewhere.
    Moved { port: ListenerKey, peer: SocketAddr, conv: u32, inbox: Arc<Inbox>, key: ConnKey },
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

/// A UDP socket that accepts sessions.
struct Port {
    socket: Arc<UdpSocket>,
    profile: Profile,
    routes: HashMap<SocketAddr, Route>,
    admission: Arc<Admission>,
    unproven: Arc<Admission>,
    rules: Arc<Rules>,
    /// Sessions by age, as far back as the oldest whose peer has not proven its address.
    newcomers: VecDeque<ConnKey>,
    /// Sessions that ended, newest last.
    graves: VecDeque<(Instant, SocketAddr, u32)>,
    /// No new sessions; the socket stays for those there are.
    closing: bool,
}

struct Route {
    conv: u32,
    place: Place,
}

enum Place {
    Here(ConnKey),
    There(Arc<Inbox>, ConnKey),
    /// Detached, not attached yet; datagrams wait.
    Moving(Vec<Vec<u8>>),
}

/// Where a session's datagrams come from.
enum Home {
    /// A socket of its own.
    Own,
    /// A port of the same loop.
    Here(ListenerKey),
    /// A port of another loop, or of this one before the session travelled.
    There(Address),
}

/// A session's way back to its port; dropping it tells the port that the session is no more.
struct Address {
    owner: Arc<Inbox>,
    port: ListenerKey,
    peer: SocketAddr,
    conv: u32,
}

impl Drop for Address {
    fn drop(&mut self) {
        self.owner.post(Letter::Ended { port: self.port, peer: self.peer, conv: self.conv });
    }
}

pub(crate) struct Session {
    generation: u32,
    /// As the socket knows it, see [`canonical`].
    peer: SocketAddr,
    kcp: Kcp,
    profile: Profile,
    socket: Arc<UdpSocket>,
    home: Home,
    _permit: Option<Permit>,
    /// Held until the peer's address has proven itself.
    unproven: Option<Permit>,
    rules: Arc<Rules>,
    born: Instant,
    /// When a datagram of the session arrived last.
    heard: Instant,
    probed: Instant,
    timer: Option<(Instant, TimerKey)>,
    /// `Handler::connected` is still to be called.
    fresh: bool,
    paused: bool,
    /// The driver was told that the session is blocked and waits for news.
    wanted: bool,
    /// The driver closed it; it ends when everything has arrived, at the latest then.
    finish_by: Option<Instant>,
    /// In the list of sessions that may have something to send.
    dirty: bool,
}

impl Session {
    fn idle_timeout(&self) -> Duration {
        self.rules.limits.idle_timeout.unwrap_or(Limits::KCP_IDLE_TIMEOUT)
    }

    /// When to ask a silent peer for a sign of life: often enough that two questions may be lost.
    fn probe_at(&self) -> Instant {
        self.heard.max(self.probed) + self.idle_timeout() / 3
    }

    fn next_timeout(&self) -> Instant {
        let unproven = (!self.kcp.is_proven()).then(|| self.born + self.rules.limits.handshake_timeout);
        let silence = (self.heard + self.idle_timeout()).min(self.probe_at());
        [self.kcp.next_timeout(), unproven, self.finish_by].into_iter().flatten().fold(silence, Instant::min)
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        canonical(self.peer)
    }

    /// Its socket, if no other session shares it.
    pub(crate) fn own_fd(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.home, Home::Own).then(|| self.socket.as_fd())
    }

    /// The driver is to hear of something that no datagram or timer will bring up again.
    fn has_news(&self) -> bool {
        self.fresh || self.kcp.is_dead() || self.has_room_again() || (!self.paused && self.kcp.has_received())
    }

    fn has_room_again(&self) -> bool {
        self.wanted && self.kcp.unsent_segments() <= self.queue_segments_max() / 2
    }

    /// Segments that may wait to be sent before the session counts as blocked.
    fn queue_segments_max(&self) -> usize {
        (usize::from(self.profile.window) * 2).clamp(64, 512)
    }
}

/// What sessions need of the loop that they live in.
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
            // Timestamps and session numbers must not be predictable; the standard library's hash keys are random.
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
            if let Some(route) = self.ports.get_mut(port.slot()).and_then(|p| p.routes.get_mut(&session.peer))
            {
                route.place = Place::Moving(Vec::new());
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
            for (peer, range) in arrived.drain(..) {
                self.route(port, peer, &scratch[range], cx, handler);
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
            for (_, range) in arrived.drain(..) {
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
                Letter::Ended { port, peer, conv } => self.ended(port, peer, conv, cx.now),
            }
        }
    }

    fn moved(&mut self, port: ListenerKey, peer: SocketAddr, conv: u32, inbox: Arc<Inbox>, key: ConnKey) {
        let route = self.ports.get_mut(port.slot()).and_then(|port| port.routes.get_mut(&peer));
        match route {
            Some(route) if route.conv == conv => {
                if let Place::Moving(held) = &mut route.place {
                    for bytes in held.drain(..) {
                        inbox.post(Letter::Datagram { key, bytes });
                    }
                }
                route.place = Place::There(inbox, key);
            }
            // The peer began another session while this one was on its way.
            _ => drop(inbox.post(Letter::Replaced { key })),
        }
    }

    fn ended(&mut self, port: ListenerKey, peer: SocketAddr, conv: u32, now: Instant) {
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        p.bury(peer, conv, now);
        if p.routes.get(&peer).is_some_and(|route| route.conv == conv) {
            p.routes.remove(&peer);
            if p.closing && p.routes.is_empty() {
                self.ports.remove(port.slot());
            }
        }
    }

    /// Gives a port's datagram to its session, beginning one if it asks for that.
    fn route(
        &mut self,
        port: ListenerKey,
        peer: SocketAddr,
        datagram: &[u8],
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        let Some(Ok(first)) = Segments::new(datagram).next() else {
            cx.stats.bad_datagrams += 1;
            return;
        };
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        if let Some(route) = p.routes.get_mut(&peer) {
            let conv = route.conv;
            if conv == first.conv {
                match &mut route.place {
                    Place::Here(key) => {
                        let key = *key;
                        self.feed(key, datagram, cx, handler);
                    }
                    Place::There(inbox, key) => {
                        inbox.post(Letter::Datagram { key: *key, bytes: datagram.to_vec() });
                    }
                    Place::Moving(held) if held.len() < HELD_DATAGRAMS_MAX => held.push(datagram.to_vec()),
                    Place::Moving(_) => {}
                }
                return;
            }
            // Spec: gateway-protocol §2.7, a datagram with another conv and sn = 0 replaces the session.
            let begins = first.command == PUSH_COMMAND && first.sn == 0;
            if !begins || p.closing || p.is_buried(peer, first.conv, cx.now) {
                cx.stats.bad_datagrams += 1;
                return;
            }
            let Some(old) = p.routes.remove(&peer) else { return };
            p.bury(peer, conv, cx.now);
            match old.place {
                Place::Here(key) => self.end(key, CloseCause::Replaced, cx, handler),
                Place::There(inbox, key) => drop(inbox.post(Letter::Replaced { key })),
                Place::Moving(_) => {}
            }
        } else {
            // Any segment of the first window may come first: the network reorders.
            let begins = first.command == PUSH_COMMAND && first.sn < u32::from(p.profile.window);
            if !begins || p.closing || p.is_buried(peer, first.conv, cx.now) {
                cx.stats.bad_datagrams += 1;
                return;
            }
        }
        self.accept(port, peer, first.conv, datagram, cx, handler);
    }

    fn accept(
        &mut self,
        port: ListenerKey,
        peer: SocketAddr,
        conv: u32,
        datagram: &[u8],
        cx: &mut Cx<'_>,
        handler: &mut dyn Handler,
    ) {
        cx.stats.accepted += 1;
        self.make_room(port, cx, handler);
        let Some(p) = self.ports.get_mut(port.slot()) else { return };
        let permits = p.admission.permit(peer.ip()).zip(p.unproven.permit(peer.ip()));
        let Some((permit, unproven)) = permits else {
            cx.stats.refused_by_limits += 1;
            return;
        };
        if !handler.admit(port, canonical(peer)) {
            cx.stats.refused_by_handler += 1;
            return;
        }
        let kcp = Kcp::new(conv, p.profile, Side::Accepts, self.rng.next_u32(), cx.now);
        let session = Session {
            generation: 0,
            peer,
            kcp,
            profile: p.profile,
            socket: p.socket.clone(),
            home: Home::Here(port),
            _permit: Some(permit),
            unproven: Some(unproven),
            rules: p.rules.clone(),
            born: cx.now,
            heard: cx.now,
            probed: cx.now,
            timer: None,
            fresh: false,
            paused: false,
            wanted: false,
            finish_by: None,
            dirty: false,
        };
        let key = self.insert(session, cx);
        if let Some(p) = self.ports.get_mut(port.slot()) {
            p.routes.insert(peer, Route { conv, place: Place::Here(key) });
            p.newcomers.push_back(key);
        }
        match handler.accepted(port, key, canonical(peer)) {
            Accept::Keep => {}
            Accept::HandOff => self.pause(key),
            Accept::Refuse => {
                cx.stats.refused_by_handler += 1;
                self.remove(key, cx);
                return;
            }
        }
        self.feed(key, datagram, cx, handler);
    }

    /// Ends the oldest session whose peer has not proven its address if there is no room for another: a flood with
    /// forged addresses must not keep honest peers out, which prove themselves in one round trip.
    fn make_room(&mut self, port: ListenerKey, cx: &mut Cx<'_>, handler: &mut dyn Handler) {
        loop {
            let Some(p) = self.ports.get(port.slot()) else { return };
            let Some(&oldest) = p.newcomers.front() else { return };
            let waits_since = self.get(oldest).filter(|it| !it.kcp.is_proven()).map(|it| it.born);
            if let Some(born) = waits_since {
                let is_full = p.admission.is_full() || p.unproven.is_full();
                if is_full && born + ROUND_TRIP <= cx.now {
                    self.end(oldest, CloseCause::TimedOut(TimedOut::Handshake), cx, handler);
                }
                return;
            }
            if let Some(p) = self.ports.get_mut(port.slot()) {
                p.newcomers.pop_front();
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
        if session.kcp.is_proven() {
            session.unproven = None;
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
                self.out.push(&session.socket, to, cx.stats);
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

impl Port {
    fn bury(&mut self, peer: SocketAddr, conv: u32, now: Instant) {
        while self.graves.len() >= GRAVES_MAX
            || self.graves.front().is_some_and(|(at, ..)| *at + GRAVE_TIME <= now)
        {
            self.graves.pop_front();
        }
        self.graves.push_back((now, peer, conv));
    }

    /// Whether a session ended not long ago. Asked only for datagrams that would begin one.
    fn is_buried(&self, peer: SocketAddr, conv: u32, now: Instant) -> bool {
        let recent = self.graves.iter().rev().take_while(|(at, ..)| *at + GRAVE_TIME > now);
        recent.into_iter().any(|(_, p, c)| (*p, *c) == (peer, conv))
    }
}

fn receive(
    socket: &UdpSocket,
    scratch: &mut [u8],
    arrived: &mut Vec<sys::Arrived>,
    stats: &mut LoopStats,
) -> usize {
    stats.reads += 1;
    // Errors are no more than lost datagrams: reports of unreachable peers among them, which time out.
    let count = sys::receive_datagrams(socket.as_fd(), scratch, arrived).unwrap_or(0);
    stats.datagrams_in += count as u64;
    stats.bytes_in += arrived.iter().map(|(_, range)| range.len() as u64).sum::<u64>();
    count
}

/// Datagrams on their way to one socket.
#[derive(Default)]
struct Outgoing {
    socket: Option<Arc<UdpSocket>>,
    bytes: Vec<u8>,
    /// Address and end in `bytes` of each datagram.
    ends: Vec<(Option<SocketAddr>, usize)>,
    /// The datagram at hand.
    datagram: Vec<u8>,
}

impl Outgoing {
    /// Adds the datagram at hand.
    fn push(&mut self, socket: &Arc<UdpSocket>, to: Option<SocketAddr>, stats: &mut LoopStats) {
        let same = self.socket.as_ref().is_some_and(|last| Arc::ptr_eq(last, socket));
        if !same || self.ends.len() == sys::DATAGRAM_BATCH {
            self.send(stats);
            self.socket = Some(socket.clone());
        }
        self.bytes.extend_from_slice(&self.datagram);
        self.ends.push((to, self.bytes.len()));
    }

    fn send(&mut self, stats: &mut LoopStats) {
        let Some(socket) = self.socket.take() else { return };
        let mut start = 0;
        let datagrams: Vec<(Option<SocketAddr>, &[u8])> = self
            .ends
            .iter()
            .map(|&(to, end)| (to, &self.bytes[std::mem::replace(&mut start, end)..end]))
            .collect();
        let mut rest = &datagrams[..];
        while !rest.is_empty() {
            stats.writes += 1;
            match sys::send_datagrams(socket.as_fd(), rest) {
                Ok(count) => {
                    stats.datagrams_out += count as u64;
                    stats.bytes_out += rest[..count].iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
                    rest = &rest[count.max(1)..];
                }
                // A full buffer loses datagrams, which is what congestion control listens to.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || sys::is_out_of_memory(&error) => {
                    break;
                }
                // This one cannot be sent (an unreachable peer, for example); the next ones may.
                Err(_) => rest = &rest[1..],
            }
        }
        self.bytes.clear();
        self.ends.clear();
    }
}
