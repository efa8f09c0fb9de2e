//! Event loop of one shard thread: epoll over listeners and connections of every stream transport.

mod accept;
mod conn;
mod key;
mod serve;
mod waker;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conn::{Conn, get_mut};
pub use key::{ConnKey, ListenerKey};
use key::{LISTENER_BIT, SESSION, WAKER_TOKEN};
use rustls::ClientConnection;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};
use throng_stdx::{Instant, TimerWheel};
pub use waker::Waker;

use crate::clock::Clock;
use crate::config::{ConnectSpec, Limits, ListenerSpec, Transport};
use crate::enet::sessions::{EnetConn, Enets};
use crate::enet::{Delivery, HostCounters};
use crate::handler::{CloseMode, Handler, WriteOutcome};
use crate::kcp::sessions::{Cx, Session, Sessions};
use crate::listener::{Listener, Permit, ReservedDescriptor, Rules};
use crate::shared_file::SharedFile;
use crate::stats::LoopStats;
use crate::stream::{Phase, Stream};
use crate::sys::{self, Epoll, Events};
use crate::ws;

/// Events taken per wait. More only makes the time between two waits, and so the reaction to
/// timers, longer.
const EVENTS_PER_POLL: usize = 512;
/// The same of prioritised connections; more than these are none.
const URGENT_PER_POLL: usize = 32;
/// Reads of one prioritised connection in a row, until what was written meanwhile has its turn: 256
/// KiB.
const URGENT_READS: usize = 4;
/// A wait or a round that lasts this much longer than it should was a pause of the whole process. A
/// scheduler's worst is tens of milliseconds; what a person stops, or a virtual machine that moves,
/// takes longer.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest time after a pause for which reading goes before timers. Thousands of sockets take a
/// fraction of it.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);
/// Bytes read from one connection per poll, and the size of the buffer that all share. Large enough
/// for the biggest frame of the gateway protocol in one read, small enough to stay in a processor's
/// second-level cache.
const READ_BYTES: usize = 64 * 1024;

/// A connection between two loops: taken out of one, on its way into another.
///
/// Dropping it closes the connection.
pub struct DetachedConn(Detached);

enum Detached {
    Stream(Box<Conn>),
    Session(Box<Session>),
    Enet(Box<EnetConn>),
}

impl DetachedConn {
    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        match &self.0 {
            Detached::Stream(conn) => conn.peer,
            Detached::Session(session) => session.peer(),
            Detached::Enet(conn) => conn.peer(),
        }
    }

    /// True for a connection over TCP, which holds a descriptor of its own.
    pub fn is_stream(&self) -> bool {
        matches!(self.0, Detached::Stream(_))
    }
}

impl std::fmt::Debug for DetachedConn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DetachedConn").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

pub(crate) enum Timer {
    Conn(ConnKey),
    Listener(ListenerKey),
}

/// Sockets, and what happens on them. See the [crate documentation](crate) for how it is driven.
///
/// One thread uses a loop; only [`Waker`]s are for others.
pub struct EventLoop {
    epoll: Epoll,
    events: Events,
    /// The connections that are served while others wait, once more, and those of which much output
    /// waits for room.
    urgent: Epoll,
    urgent_events: Events,
    waker: Waker,
    reserve: ReservedDescriptor,
    listeners: Slab<Listener>,
    conns: Slab<Conn>,
    sessions: Sessions,
    enets: Enets,
    generation: u32,
    timers: TimerWheel<Timer>,
    /// Connections with work that no event will announce: input beyond one round's share, failed
    /// writes.
    backlog: VecDeque<ConnKey>,
    /// The same of prioritised connections.
    urgent_backlog: VecDeque<ConnKey>,
    /// After a pause of the process: no timer runs before all sockets are read, or this time has
    /// come.
    catch_up_until: Option<Instant>,
    /// Connections that say goodbye, the oldest first; those that have ended since are skipped.
    lingering: VecDeque<ConnKey>,
    /// Connections that may give way to newcomers during their handshakes, the oldest first; those
    /// that have ended or are ready since are skipped.
    strangers: VecDeque<(Instant, ConnKey)>,
    scratch: Box<[u8]>,
    plain: Box<[u8]>,
    /// Time of the current or last poll.
    now: Instant,
    stats: LoopStats,
    /// The kernel, or a sandbox in front of it, has refused to send files.
    refuses_files: bool,
}

impl EventLoop {
    /// Makes a loop without sockets.
    ///
    /// # Errors
    /// The process is out of file descriptors; a loop takes five.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let waker = Waker::new()?;
        let sessions = Sessions::new(waker.clone());
        let enets = Enets::new(waker.clone());
        epoll.add(waker.fd(), WAKER_TOKEN, sys::READABLE)?;
        let urgent = Epoll::new()?;
        urgent.add(waker.urgent_fd(), WAKER_TOKEN, sys::READABLE)?;
        Ok(Self {
            epoll,
            events: Events::with_capacity(EVENTS_PER_POLL),
            urgent,
            urgent_events: Events::with_capacity(URGENT_PER_POLL),
            waker,
            reserve: ReservedDescriptor::new()?,
            listeners: Slab::new(),
            conns: Slab::new(),
            sessions,
            enets,
            generation: 0,
            timers: TimerWheel::new(),
            backlog: VecDeque::new(),
            urgent_backlog: VecDeque::new(),
            catch_up_until: None,
            lingering: VecDeque::new(),
            strangers: VecDeque::new(),
            scratch: vec![0; READ_BYTES].into(),
            plain: vec![0; READ_BYTES].into(),
            now: Instant::ZERO,
            stats: LoopStats::default(),
            refuses_files: false,
        })
    }

    /// A handle that interrupts [`EventLoop::poll`] from any thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Opens a listener. Returns its key and the address it got.
    ///
    /// # Errors
    /// The address is in use or not ours, or the specification asks for a combination that does not
    /// exist ([`io::ErrorKind::InvalidInput`]).
    pub fn listen(&mut self, spec: ListenerSpec) -> io::Result<(ListenerKey, SocketAddr)> {
        Self::listen_on(std::slice::from_mut(self), spec)
    }

    /// Opens a listener on the first of `loops`, which accepts all its connections. An ENet
    /// listener has a socket on each of them, so that they share the work of the protocol: the
    /// kernel spreads the peers, and a peer stays with its socket even if another loop serves its
    /// connection.
    ///
    /// # Errors
    /// As for [`listen`](Self::listen); also when there is no loop.
    pub fn listen_on(loops: &mut [Self], spec: ListenerSpec) -> io::Result<(ListenerKey, SocketAddr)> {
        if spec.transport == Transport::Enet {
            let mut enets: Vec<_> = loops.iter_mut().map(|one| (&mut one.enets, one.now)).collect();
            let (slots, addr) = Enets::listen(&mut enets, &spec)?;
            let first = slots.first().map(|slot| ListenerKey::enet(*slot));
            for (one, slot) in loops.iter().zip(slots) {
                let key = ListenerKey::enet(slot);
                one.epoll.add(one.enets.port_fd(slot), key.token(), sys::READABLE)?;
            }
            return first.map(|key| (key, addr)).ok_or(io::ErrorKind::InvalidInput.into());
        }
        let first = loops.first_mut().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        first.listen_alone(spec)
    }

    fn listen_alone(&mut self, spec: ListenerSpec) -> io::Result<(ListenerKey, SocketAddr)> {
        if let Transport::Kcp(profile) = spec.transport {
            let (slot, addr) = self.sessions.listen(spec, profile)?;
            let key = ListenerKey::new(slot, SESSION);
            self.epoll.add(self.sessions.port_fd(slot), key.token(), sys::READABLE)?;
            return Ok((key, addr));
        }
        let (listener, addr) = Listener::bind(spec)?;
        Ok((self.watch_listener(listener)?, addr))
    }

    /// Opens a listener on a Unix socket, a plain stream of bytes. Its file is removed with it.
    /// Peers have the address 127.0.0.1 and port 0; who may connect is a matter of the file's and
    /// its folder's permissions.
    ///
    /// # Errors
    /// The file exists and is in use or no socket, the path is longer than 107 bytes, or its folder
    /// cannot be written.
    pub fn listen_unix(&mut self, path: &Path, limits: Limits) -> io::Result<ListenerKey> {
        let listener = Listener::bind_unix(path, limits)?;
        self.watch_listener(listener)
    }

    fn watch_listener(&mut self, listener: Listener) -> io::Result<ListenerKey> {
        let entry = self.listeners.vacant_entry();
        let key = ListenerKey::new(entry.key(), 0);
        self.epoll.add(listener.fd(), key.token(), sys::READABLE)?;
        entry.insert(listener);
        Ok(key)
    }

    /// Closes a listener; its connections stay. Unknown keys are ignored.
    pub fn close_listener(&mut self, key: ListenerKey) {
        if key.is_port() {
            return self.sessions.close_port(key.slot());
        }
        if key.is_enet() {
            return self.enets.close_port(key.slot());
        }
        if let Some(listener) = self.listeners.try_remove(key.slot())
            && !listener.resting
        {
            // Closing the descriptor right after takes it out of the set in any case.
            drop(self.epoll.remove(listener.fd()));
        }
    }

    /// Begins an outgoing connection. [`Handler::connected`] or [`Handler::closed`] will be called
    /// for it.
    ///
    /// # Errors
    /// The attempt could not even be made: no descriptors, no such local address, a TLS
    /// configuration that does not work.
    pub fn connect(&mut self, spec: ConnectSpec) -> io::Result<ConnKey> {
        if let Transport::Kcp(profile) = spec.transport {
            let (sessions, mut cx) = self.sessions();
            let key = sessions.connect(&spec, profile, &mut cx)?;
            return self.watch_session(key);
        }
        if spec.transport == Transport::Enet {
            let (key, slot) = self.enets.connect(&spec, self.now, &mut self.generation)?;
            let token = ListenerKey::enet(slot).token();
            if let Err(error) = self.epoll.add(self.enets.port_fd(slot), token, sys::READABLE) {
                self.enets.close(key);
                return Err(error);
            }
            return Ok(key);
        }
        let socket = Socket::new(Domain::for_address(spec.addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(addr) = spec.bind {
            socket.set_reuse_address(true)?;
            socket.bind(&addr.into())?;
        }
        match socket.connect(&spec.addr.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let tls = spec.tls.map(|tls| ClientConnection::new(tls.config, tls.server_name));
        let tls = tls.transpose().map_err(io::Error::other)?.map(Into::into);
        let ws = (spec.transport == Transport::WebSocket).then(|| {
            let host = spec.host.unwrap_or_else(|| spec.addr.to_string());
            let (request, response) = ws::request_head(&host, &spec.path, spec.origin.as_deref());
            ws::Endpoint::client(request, response, spec.message_bytes_max)
        });
        let stream = Stream::connecting(socket.into(), tls, ws);
        let key = self.insert(stream, spec.addr, None, Rules::outgoing(spec.flush_timeout), None)?;
        self.set_timer(key, Some(self.now + spec.timeout));
        Ok(key)
    }

    /// Waits until something happens, `deadline` comes (`None`: no deadline) or a [`Waker`] is
    /// used, then tells `handler` about one batch of events. Returns the time of the batch.
    ///
    /// Reads the clock twice: before the wait to know its length, and after it for the batch.
    ///
    /// # Errors
    /// Waiting itself failed, which a working system does not do.
    pub fn poll(
        &mut self,
        clock: &Clock,
        deadline: Option<Instant>,
        handler: &mut impl Handler,
    ) -> io::Result<Instant> {
        let last = self.now;
        self.now = clock.now();
        if self.stats.polls > 0 {
            self.excuse_pause(last, handler);
        }
        let (sessions, mut cx) = self.sessions();
        sessions.flush(&mut cx);
        self.enets.flush(self.now, &mut self.stats);
        let timeout = if self.has_backlog() || self.is_behind() {
            Some(Duration::ZERO)
        } else {
            let next = [deadline, self.timers.next(), self.enets.next_timeout()].into_iter().flatten().min();
            next.map(|at| at.since(self.now))
        };
        let planned = timeout.map(|timeout| self.now + timeout);
        self.epoll.wait(&mut self.events, timeout)?;
        self.now = clock.now();
        self.stats.polls += 1;
        handler.polled(self.now);
        if let Some(planned) = planned {
            self.excuse_pause(planned, handler);
        }
        self.end_lingering();

        // Connections queued from here on wait for the next poll, so a poll ends.
        let backlog = self.backlog.len();
        let mut index = 0;
        while let Some((token, conditions)) = self.events.get(index) {
            index += 1;
            if token == WAKER_TOKEN {
                self.waker.clear();
                let (sessions, mut cx) = self.sessions();
                sessions.read_inbox(&mut cx, handler);
                self.enets.read_inbox(self.now, &mut self.stats, &mut self.generation, handler);
                handler.woken();
            } else if token & LISTENER_BIT != 0 {
                let key = ListenerKey::from_token(token);
                if key.is_port() {
                    let (sessions, mut cx, scratch) = self.sessions_and_scratch();
                    sessions.read_port(key, scratch, &mut cx, handler);
                } else if key.is_enet() {
                    self.enets.read_port(key.slot(), self.now, &mut self.stats);
                } else {
                    self.accept(key, handler);
                }
            } else {
                let key = ConnKey::from_token(token);
                if key.is_session() {
                    let (sessions, mut cx, scratch) = self.sessions_and_scratch();
                    sessions.read_own(key, scratch, &mut cx, handler);
                } else {
                    self.handle_event(key, conditions, handler);
                }
            }
        }
        self.serve_urgent_backlog(handler);
        for _ in 0..backlog {
            let Some(key) = self.backlog.pop_front() else { break };
            if let Some(conn) = self.conn_mut(key) {
                conn.queued = false;
                self.read(key, handler);
            }
        }
        let more = index > 0 || self.has_backlog();
        if self.catch_up_until.is_some_and(|until| !more || self.now >= until) {
            self.catch_up_until = None;
        }
        if self.is_behind() {
            let (sessions, mut cx) = self.sessions();
            sessions.tell(&mut cx, handler);
            self.enets.tell_news_only(&mut self.stats, &mut self.generation, handler);
            return Ok(self.now);
        }
        while let Some((_, timer)) = self.timers.pop_due(self.now) {
            match timer {
                Timer::Conn(key) if key.is_session() => {
                    let (sessions, mut cx) = self.sessions();
                    sessions.handle_timer(key, &mut cx, handler);
                }
                Timer::Conn(key) => self.handle_timer(key, handler),
                Timer::Listener(key) => self.wake_listener(key),
            }
        }
        let (sessions, mut cx) = self.sessions();
        sessions.tell(&mut cx, handler);
        self.enets.tell(self.now, &mut self.stats, &mut self.generation, handler);
        Ok(self.now)
    }

    /// After a pause of the process, not everything that has gathered has been read yet: no timer
    /// is to run.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.catch_up_until.is_some()
    }

    /// Has waited for longer than until `planned`: if it was a pause, nobody's silence counts, and
    /// reading goes first.
    fn excuse_pause(&mut self, planned: Instant, handler: &mut impl Handler) {
        let gap = self.now.since(planned);
        if gap < PAUSE_MIN {
            return;
        }
        self.catch_up_until = Some(self.now + gap.min(CATCH_UP_MAX));
        for (_, conn) in &mut self.conns {
            conn.heard = (conn.heard + gap).min(self.now);
            if let Some((at, timer)) = conn.timer.take()
                && let Some(kind) = self.timers.cancel(timer)
            {
                conn.timer = Some((at + gap, self.timers.insert(at + gap, kind)));
            }
        }
        self.sessions.excuse(gap, self.now);
        handler.paused(gap);
    }

    /// Connections have work that no event will announce.
    fn has_backlog(&self) -> bool {
        let streams = !self.backlog.is_empty() || !self.urgent_backlog.is_empty();
        streams || self.sessions.has_work() || self.enets.has_work()
    }

    /// As [`write`](Self::write), for bytes of which the peer may miss all or nothing. Over ENet
    /// they travel as an unreliable packet that overtakes nothing and is dropped rather than late;
    /// other transports know no such thing.
    pub fn write_loose(&mut self, key: ConnKey, slices: &[IoSlice<'_>]) -> WriteOutcome {
        if key.is_enet() {
            let (taken, blocked) = self.enets.write(key, slices, Delivery::Unreliable);
            return WriteOutcome { taken, blocked };
        }
        self.write(key, slices)
    }

    /// [`EventLoop::wait_urgent`] waits for this connection as well from now on. Streams only;
    /// other keys are ignored.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn prioritise(&mut self, key: ConnKey) -> io::Result<()> {
        if key.is_session() || key.is_enet() {
            return Ok(());
        }
        let Some(conn) = get_mut(&mut self.conns, key).filter(|conn| !conn.urgent) else { return Ok(()) };
        if std::mem::take(&mut conn.room_awaited) {
            self.urgent.remove(conn.stream.fd())?;
        }
        self.urgent.add(conn.stream.fd(), key.token(), sys::READABLE | sys::WRITABLE | sys::EDGE)?;
        conn.urgent = true;
        Ok(())
    }

    /// Makes [`EventLoop::wait_urgent`] return once this connection has room for output, which
    /// otherwise only the next [`EventLoop::poll`] reports. For connections with more output than
    /// the kernel buffers. Streams only; other keys are ignored.
    pub fn await_room(&mut self, key: ConnKey) {
        if !key.is_stream() {
            return;
        }
        if let Some(conn) = get_mut(&mut self.conns, key)
            && !conn.urgent
            && !conn.room_awaited
        {
            // Without memory for it, room is noticed a little later.
            let added = self.urgent.add(conn.stream.fd(), key.token(), sys::WRITABLE | sys::EDGE);
            conn.room_awaited = added.is_ok();
        }
    }

    /// Waits for input of [prioritised](EventLoop::prioritise) connections,
    /// [room](EventLoop::await_room) or [`Waker::wake_urgent`], `timeout` at most; all other events
    /// gather. Returns true if there is any. [`EventLoop::serve_urgent`] handles it before the next
    /// wait of this kind, or [`EventLoop::poll`] with all other events.
    ///
    /// # Errors
    /// Waiting itself failed, which a working system does not do.
    pub fn wait_urgent(&mut self, timeout: Duration) -> io::Result<bool> {
        let timeout = if self.has_urgent_backlog() { Duration::ZERO } else { timeout };
        self.urgent.wait(&mut self.urgent_events, Some(timeout))?;
        Ok(self.urgent_events.get(0).is_some() || self.has_urgent_backlog())
    }

    /// A prioritised connection has sent more than one turn takes in.
    #[must_use]
    pub fn has_urgent_backlog(&self) -> bool {
        !self.urgent_backlog.is_empty()
    }

    /// Tells `handler` about what [`EventLoop::wait_urgent`] has found, and about nothing else.
    pub fn serve_urgent(&mut self, clock: &Clock, handler: &mut impl Handler) {
        self.now = clock.now();
        self.stats.polls += 1;
        handler.polled(self.now);
        let mut index = 0;
        while let Some((token, conditions)) = self.urgent_events.get(index) {
            index += 1;
            if token == WAKER_TOKEN {
                self.waker.clear_urgent();
                handler.woken();
                continue;
            }
            let key = ConnKey::from_token(token);
            if let Some(conn) = get_mut(&mut self.conns, key)
                && std::mem::take(&mut conn.room_awaited)
            {
                drop(self.urgent.remove(conn.stream.fd()));
            }
            self.handle_event(key, conditions, handler);
        }
        self.serve_urgent_backlog(handler);
    }

    fn serve_urgent_backlog(&mut self, handler: &mut impl Handler) {
        for _ in 0..self.urgent_backlog.len() {
            let Some(key) = self.urgent_backlog.pop_front() else { return };
            if let Some(conn) = self.conn_mut(key) {
                conn.queued = false;
                self.read(key, handler);
            }
        }
    }

    /// Writes the bytes of `slices`, in order, as far as the connection takes them. Never waits.
    ///
    /// Unknown keys take nothing and count as blocked.
    pub fn write(&mut self, key: ConnKey, slices: &[IoSlice<'_>]) -> WriteOutcome {
        if key.is_session() {
            let (taken, blocked) = self.sessions.write(key, slices);
            return WriteOutcome { taken, blocked };
        }
        if key.is_enet() {
            let (taken, blocked) = self.enets.write(key, slices, Delivery::Reliable);
            return WriteOutcome { taken, blocked };
        }
        let nothing = WriteOutcome { taken: 0, blocked: true };
        let Some(conn) = get_mut(&mut self.conns, key) else { return nothing };
        if conn.stream.phase != Phase::Open {
            conn.stream.wanted = conn.stream.phase == Phase::Connecting;
            return nothing;
        }
        let taken = conn.stream.write(slices, &mut self.stats);
        let blocked = conn.stream.is_blocked();
        conn.stream.wanted = blocked;
        self.requeue(key);
        WriteOutcome { taken, blocked }
    }

    /// Sends bytes that many connections get; worth it from about 16 KiB and a few connections on.
    /// Returns how many bytes were taken: fewer than all, or none, means that [`EventLoop::write`]
    /// is to be tried with the rest. Only plain TCP connections take any.
    pub fn write_shared(&mut self, key: ConnKey, file: &SharedFile) -> usize {
        if !self.takes_shared(key) {
            return 0;
        }
        let Some(conn) = get_mut(&mut self.conns, key) else { return 0 };
        match conn.stream.write_shared(file, &mut self.stats) {
            Ok(taken) => taken,
            Err(error) => {
                let refusals = [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EOPNOTSUPP];
                self.refuses_files |= error.raw_os_error().is_some_and(|code| refusals.contains(&code));
                0
            }
        }
    }

    /// True if [`EventLoop::write_shared`] has an effect for a connection.
    #[must_use]
    pub fn takes_shared(&self, key: ConnKey) -> bool {
        !self.refuses_files
            && key.is_stream()
            && (self.conns.get(key.slot()))
                .filter(|conn| conn.generation == key.generation())
                .is_some_and(|conn| conn.stream.phase == Phase::Open && conn.stream.is_plain())
    }

    /// Closes a connection. The handler hears nothing more of it. Unknown keys are ignored.
    ///
    /// A WebSocket peer is told code 1000 by a flushing close; see [`EventLoop::close_with`].
    pub fn close(&mut self, key: ConnKey, mode: CloseMode) {
        match mode {
            CloseMode::Flush => self.close_with(key, 1000, ""),
            CloseMode::Now if key.is_enet() => self.enets.close(key),
            CloseMode::Now if key.is_session() => {
                let (sessions, mut cx) = self.sessions();
                sessions.close(key, &mut cx);
            }
            CloseMode::Now => {
                if self.conn_mut(key).is_some_and(|conn| conn.stream.phase != Phase::Lingering) {
                    self.remove(key);
                }
            }
        }
    }

    /// Closes a connection as [`CloseMode::Flush`] does, and gives a WebSocket peer a code and a
    /// reason for people (cut at 123 bytes). Other transports have no words for it.
    pub fn close_with(&mut self, key: ConnKey, code: u16, reason: &str) {
        if key.is_session() {
            return self.sessions.finish(key, self.now);
        }
        if key.is_enet() {
            return self.enets.finish(key, code, self.now);
        }
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        match conn.stream.phase {
            Phase::Open => {
                conn.stream.finish(code, reason, &mut self.stats);
                self.linger(key);
            }
            Phase::Lingering => {}
            Phase::Connecting | Phase::Handshaking => {
                self.remove(key);
            }
        }
    }

    /// The peer of an ENet connection is no stranger any more: it has logged in, for example. See
    /// [`Limits::newcomer_bytes_max`]. Unknown keys and those of other connections are ignored.
    pub fn admit(&mut self, key: ConnKey) {
        if key.is_enet() {
            self.enets.admit(key);
        }
    }

    /// Stops delivering a connection's input, as [`Flow::Pause`](crate::Flow::Pause) does. Unknown
    /// keys are ignored.
    pub fn pause_read(&mut self, key: ConnKey) {
        if key.is_session() {
            return self.sessions.pause(key);
        }
        if key.is_enet() {
            return self.enets.pause(key);
        }
        if let Some(conn) = self.conn_mut(key)
            && conn.stream.phase != Phase::Lingering
        {
            conn.stream.paused = true;
        }
    }

    /// Continues to deliver a connection's input. Unknown keys are ignored.
    pub fn resume_read(&mut self, key: ConnKey) {
        if key.is_session() {
            return self.sessions.resume(key);
        }
        if key.is_enet() {
            return self.enets.resume(key);
        }
        if let Some(conn) = self.conn_mut(key) {
            conn.stream.paused = false;
            self.requeue(key);
        }
    }

    /// Takes a ready connection out of this loop, to be [attached](EventLoop::attach) to another.
    /// Nothing that arrived is lost. `None` when the key is unknown or the connection not ready.
    pub fn detach(&mut self, key: ConnKey) -> Option<DetachedConn> {
        if key.is_session() {
            let (sessions, mut cx) = self.sessions();
            let session = sessions.detach(key, &mut cx)?;
            if let Some(fd) = session.own_fd() {
                drop(self.epoll.remove(fd));
            }
            return Some(DetachedConn(Detached::Session(Box::new(session))));
        }
        if key.is_enet() {
            return self.enets.detach(key).map(|conn| DetachedConn(Detached::Enet(Box::new(conn))));
        }
        let conn = self.conn_mut(key)?;
        if conn.stream.phase != Phase::Open {
            return None;
        }
        self.remove(key).map(|conn| DetachedConn(Detached::Stream(Box::new(conn))))
    }

    /// Takes over a connection from another loop and serves it, reading included.
    ///
    /// # Errors
    /// The kernel could not register the socket; the connection is closed then.
    pub fn attach(&mut self, detached: DetachedConn) -> io::Result<ConnKey> {
        let mut conn = match detached.0 {
            Detached::Stream(conn) => *conn,
            Detached::Session(session) => {
                let (sessions, mut cx) = self.sessions();
                let key = sessions.attach(*session, &mut cx);
                return self.watch_session(key);
            }
            Detached::Enet(conn) => return Ok(self.enets.attach(*conn, &mut self.generation)),
        };
        conn.stream.paused = false;
        let key = self.insert(conn.stream, conn.peer, conn.permit, conn.rules, None)?;
        self.arm_open(key);
        self.requeue(key);
        Ok(key)
    }

    /// The peer's address; `None` for unknown keys.
    pub fn peer(&self, key: ConnKey) -> Option<SocketAddr> {
        if key.is_session() {
            return self.sessions.get(key).map(Session::peer);
        }
        if key.is_enet() {
            return self.enets.peer(key);
        }
        let conn = self.conns.get(key.slot())?;
        (conn.generation == key.generation()).then_some(conn.peer)
    }

    /// Connections of this loop, including those that are still shaking hands or saying goodbye.
    pub fn conn_count(&self) -> usize {
        self.conns.len() + self.sessions.len() + self.enets.len()
    }

    /// Counts since the loop was made.
    pub fn stats(&self) -> &LoopStats {
        &self.stats
    }

    /// Counters of the ENet hosts of this loop's listeners and outgoing connections.
    pub fn enet_figures(&self) -> HostCounters {
        self.enets.figures()
    }

    fn sessions(&mut self) -> (&mut Sessions, Cx<'_>) {
        let (sessions, cx, _) = self.sessions_and_scratch();
        (sessions, cx)
    }

    fn sessions_and_scratch(&mut self) -> (&mut Sessions, Cx<'_>, &mut [u8]) {
        let cx = Cx {
            now: self.now,
            timers: &mut self.timers,
            stats: &mut self.stats,
            generation: &mut self.generation,
        };
        (&mut self.sessions, cx, &mut self.scratch)
    }

    /// Registers the socket of a session that has its own.
    fn watch_session(&mut self, key: ConnKey) -> io::Result<ConnKey> {
        if let Some(fd) = self.sessions.get(key).and_then(Session::own_fd)
            && let Err(error) = self.epoll.add(fd, key.token(), sys::READABLE)
        {
            self.close(key, CloseMode::Now);
            return Err(error);
        }
        Ok(key)
    }

    fn insert(
        &mut self,
        stream: Stream,
        peer: SocketAddr,
        permit: Option<Permit>,
        rules: Arc<Rules>,
        unknown: Option<ListenerKey>,
    ) -> io::Result<ConnKey> {
        let entry = self.conns.vacant_entry();
        self.generation = ConnKey::next_generation(self.generation);
        let key = ConnKey::stream(entry.key(), self.generation);
        let interest = sys::READABLE | sys::WRITABLE | sys::PEER_SHUT | sys::EDGE;
        self.epoll.add(stream.fd(), key.token(), interest)?;
        entry.insert(Conn {
            generation: self.generation,
            peer,
            permit,
            rules,
            unknown,
            heard: self.now,
            pinged: false,
            timer: None,
            queued: false,
            urgent: false,
            room_awaited: false,
            stream,
        });
        Ok(key)
    }

    fn remove(&mut self, key: ConnKey) -> Option<Conn> {
        self.conn_mut(key)?;
        let mut conn = self.conns.remove(key.slot());
        if let Some((_, timer)) = conn.timer.take() {
            self.timers.cancel(timer);
        }
        // A detached connection must not raise events here; for others closing would do.
        drop(self.epoll.remove(conn.stream.fd()));
        if std::mem::take(&mut conn.urgent) || std::mem::take(&mut conn.room_awaited) {
            drop(self.urgent.remove(conn.stream.fd()));
        }
        Some(conn)
    }

    fn requeue(&mut self, key: ConnKey) {
        if let Some(conn) = get_mut(&mut self.conns, key)
            && conn.stream.has_work()
            && !conn.queued
        {
            conn.queued = true;
            match conn.urgent {
                true => self.urgent_backlog.push_back(key),
                false => self.backlog.push_back(key),
            }
        }
    }

    fn set_timer(&mut self, key: ConnKey, at: Option<Instant>) {
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        if let Some((_, timer)) = conn.timer.take() {
            self.timers.cancel(timer);
        }
        conn.timer = at.map(|at| (at, self.timers.insert(at, Timer::Conn(key))));
    }

    fn conn_mut(&mut self, key: ConnKey) -> Option<&mut Conn> {
        get_mut(&mut self.conns, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        // A WebSocket adds its box, TLS what the library needs.
        assert!(size_of::<Conn>() <= 256, "{} bytes", size_of::<Conn>());
        assert!(size_of::<ws::Endpoint>() <= 256, "{} bytes", size_of::<ws::Endpoint>());
    }
}
