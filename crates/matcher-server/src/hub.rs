//! Connections, sessions and the engine behind them: everything but the sockets.

mod sessions;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throng_matcher::{Answered, Caller, Handled, Histogram, Scope};
use throng_net::{Accept, CloseCause, ConnKey, Flow, Handler, ListenerKey};
use throng_wire::matcher::{
    FRAME_BODY_BYTES_MAX, FrameSplit, HEADER_BYTES, Header, Kind, METHODS, STATUSES, Status, flags, split,
};

use crate::Report;
use crate::engine::Engine;
use crate::frames::{is_late, write_goaway, write_late, write_unavailable, write_without_session};
use crate::gate::{Gate, Guard};
use crate::service::{Call, Post};
use crate::session::{Reader, Session};
use crate::tokens::Tokens;

/// Time to say hello.
const HELLO_MS: u64 = 5_000;
/// Latencies of requests from 10 us to 1 s.
const LATENCY_BOUNDS_S: &[f64] =
    &[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.25, 1.0];
/// Requests of a batch, entries of a frame.
const BATCH_BOUNDS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 2_048.0, 4_096.0];
/// Modes in a report, the fullest.
pub(crate) const MODES_REPORTED: usize = 100;
/// Queues in a report, the oldest.
pub(crate) const QUEUES_REPORTED: usize = 100;
/// Output that a connection may leave untaken before its requests wait in its socket.
const OUT_BYTES_MAX: usize = 4 << 20;
/// Output beyond which no further notify frame is made: entries that wait in the session can still
/// be collapsed.
const OUT_BYTES_NOTIFY: usize = 512 << 10;

pub(crate) struct Conn {
    key: ConnKey,
    /// A frame that has arrived in part.
    input: Vec<u8>,
    out: Vec<u8>,
    /// Bytes of `out` that the socket took.
    taken: usize,
    /// Up to where `out` may leave, by what must be on disk before.
    marks: VecDeque<(u64, usize)>,
    /// Up to where `out` may leave now.
    open: usize,
    session: Option<usize>,
    scope: Scope,
    opened: u64,
    dirty: bool,
    paused: bool,
    blocked: bool,
    closing: bool,
}

/// Receiver of the answer of a request that waits for a policy.
enum Waiting {
    Frame { key: ConnKey, id: u64, method: u16 },
    Call(Call),
}

/// Action of the driver on a socket.
pub(crate) enum Act {
    Close(ConnKey),
    CloseNow(ConnKey),
    Resume(ConnKey),
}

pub(crate) struct Hub {
    pub(crate) engine: Engine,
    gate: Gate,
    guard: Guard,
    tokens: Tokens,
    area: String,
    matcher_id: String,
    /// By [`ConnKey::index`].
    conns: Vec<Option<Conn>>,
    dirty: Vec<usize>,
    /// Connections that had not said hello at the last [`Hub::tidy`], the oldest first.
    strangers: VecDeque<ConnKey>,
    sessions: Vec<Option<Session>>,
    by_srv: BTreeMap<String, usize>,
    /// Sessions whose readers were lost while the matcher did not have the lease.
    lost: Vec<usize>,
    /// Session by the place of its server's number.
    by_place: Vec<u32>,
    fresh: Vec<usize>,
    /// Sessions whose sinks wait for the journal.
    sealed: Vec<usize>,
    pub(crate) acts: Vec<Act>,
    /// Wall time of the batch.
    pub(crate) now: u64,
    batch_began: Instant,
    /// Time that the batch has taken up to its last answer, in us.
    spent: u64,
    inbox: Arc<Mutex<Vec<Post>>>,
    /// Replies to calls from this process that wait for the disk.
    held: VecDeque<(u64, Call, Status, Vec<u8>)>,
    replies: Vec<(Call, Status, Vec<u8>)>,
    /// By the matcher's number of the request, with when it came.
    waiting: BTreeMap<u64, (Instant, Waiting)>,
    epoch: u64,
    requests: [u64; 128],
    /// In the order of [`METHODS`].
    latencies: Vec<Histogram>,
    /// Place where a method's number is in it.
    method_at: [u8; 128],
    errors: [u64; 64],
    /// Requests of the batch under way.
    batch: u32,
    batches: Histogram,
    frames: Histogram,
    report: Report,
    published: Arc<Mutex<Report>>,
    pub(crate) stop: bool,
    /// Wall time of the loop's clock at zero.
    wall_start: u64,
}

impl Hub {
    pub(crate) fn new(
        engine: Engine,
        guard: Guard,
        tokens: Tokens,
        area: String,
        matcher_id: String,
        now: u64,
        epoch: u64,
        inbox: Arc<Mutex<Vec<Post>>>,
        published: Arc<Mutex<Report>>,
        wall_start: u64,
    ) -> Hub {
        let mut hub = Hub {
            engine,
            gate: guard.gate.clone(),
            guard,
            tokens,
            area,
            matcher_id,
            conns: Vec::new(),
            dirty: Vec::new(),
            strangers: VecDeque::new(),
            sessions: Vec::new(),
            by_srv: BTreeMap::new(),
            lost: Vec::new(),
            by_place: Vec::new(),
            fresh: Vec::new(),
            sealed: Vec::new(),
            acts: Vec::new(),
            now,
            batch_began: Instant::now(),
            spent: 0,
            inbox,
            held: VecDeque::new(),
            replies: Vec::new(),
            waiting: BTreeMap::new(),
            epoch,
            requests: [0; 128],
            latencies: METHODS.iter().map(|_| Histogram::new(LATENCY_BOUNDS_S)).collect(),
            method_at: method_at(),
            errors: [0; 64],
            batch: 0,
            batches: Histogram::new(BATCH_BOUNDS),
            frames: Histogram::new(BATCH_BOUNDS),
            report: Report::default(),
            published,
            stop: false,
            wall_start,
        };
        hub.keep_for_return();
        hub
    }

    /// Ends a batch: writes the journal, hands notices to sessions, and marks what may leave when.
    ///
    /// # Errors
    /// The journal failed: nothing may be answered any more.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if self.batch > 0 {
            self.batches.observe(std::mem::take(&mut self.batch).into());
        }
        // Without the lease timers stand still.
        if self.guard.is_open {
            self.engine.timeout(self.now);
            self.engine.ask_policies(self.now);
        }
        self.answer_waiting();
        self.distribute();
        let mark = self.engine.commit(self.now)?;
        let durable = self.engine.durable();
        self.make_frames(mark);
        for index in 0..self.dirty.len() {
            if let Some(conn) = self.conns[self.dirty[index]].as_mut() {
                if mark > durable {
                    conn.marks.push_back((mark, conn.out.len()));
                } else {
                    conn.open = conn.out.len();
                    conn.marks.clear();
                }
            }
        }
        for (call, status, body) in self.replies.drain(..) {
            self.held.push_back((mark, call, status, body));
        }
        Ok(())
    }

    /// Lets out what waited for the disk.
    pub(crate) fn release(&mut self) {
        let durable = self.engine.durable();
        // Without a journal that holds answers there are no marks.
        let conns = if durable == u64::MAX { &mut [][..] } else { &mut self.conns[..] };
        for (index, conn) in conns.iter_mut().enumerate() {
            let Some(conn) = conn else { continue };
            while let Some((_, end)) = conn.marks.front().copied().filter(|(mark, _)| *mark <= durable) {
                conn.marks.pop_front();
                conn.open = end;
                if !conn.dirty {
                    conn.dirty = true;
                    self.dirty.push(index);
                }
            }
        }
        self.feed_sinks(durable);
        while let Some((_, call, status, body)) = pop_if(&mut self.held, |(mark, ..)| *mark <= durable) {
            (call.reply)(status, body);
        }
    }

    /// Connections with output to write.
    pub(crate) fn take_dirty(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.dirty)
    }

    /// Bytes that may be written to a connection now.
    pub(crate) fn output(&mut self, index: usize) -> Option<(ConnKey, &[u8])> {
        let conn = self.conns[index].as_mut()?;
        conn.dirty = false;
        if conn.blocked || conn.open == conn.taken {
            return None;
        }
        Some((conn.key, &conn.out[conn.taken..conn.open]))
    }

    /// The socket took `taken` bytes.
    pub(crate) fn wrote(&mut self, index: usize, taken: usize, blocked: bool) {
        let Some(conn) = self.conns[index].as_mut() else { return };
        conn.taken += taken;
        conn.blocked = blocked;
        if conn.taken == conn.out.len() {
            conn.out.clear();
            (conn.taken, conn.open) = (0, 0);
            conn.marks.clear();
            if conn.out.capacity() > OUT_BYTES_MAX {
                conn.out = Vec::new();
            }
        } else if conn.taken > OUT_BYTES_NOTIFY {
            conn.out.drain(..conn.taken);
            conn.open -= conn.taken;
            for (_, end) in &mut conn.marks {
                *end -= conn.taken;
            }
            conn.taken = 0;
        }
        if conn.out.len() - conn.taken < OUT_BYTES_NOTIFY {
            if conn.paused {
                conn.paused = false;
                self.acts.push(Act::Resume(conn.key));
            }
            if let Some(session) = conn.session
                && self.sessions[session].as_ref().is_some_and(Session::has_pending)
            {
                self.fresh.push(session);
            }
        }
        if conn.closing && conn.out.is_empty() {
            self.acts.push(Act::Close(conn.key));
        }
    }

    /// Returns whether a connection has output that has not left.
    pub(crate) fn has_output(&self) -> bool {
        self.conns.iter().flatten().any(|conn| !conn.out.is_empty())
    }

    /// Time when the engine has something to do, in ms since the epoch. Without the lease it has
    /// nothing.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        if self.guard.is_open { self.engine.next_timeout() } else { None }
    }

    /// Returns whether notices wait that a connection would take now.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Calls and subscriptions from this process.
    pub(crate) fn take_posts(&mut self) {
        let posts = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for post in posts {
            match post {
                Post::Call { call, reader, due } => {
                    self.batch += 1;
                    let mut answer = Vec::new();
                    let caller = Caller { srv: &call.srv, scope: call.scope };
                    let handled = if !self.guard.is_open {
                        Handled::Done(write_unavailable(&mut answer))
                    } else if self.batch_began > due {
                        Handled::Done(write_late(&mut answer))
                    } else if reader.is_some_and(|id| self.sink_of(&call.srv, id).is_none()) {
                        Handled::Done(write_without_session(&mut answer))
                    } else {
                        self.engine.request(self.now, caller, call.method, &call.body, &mut answer)
                    };
                    match handled {
                        Handled::Done(status) => {
                            self.count(call.method, status, self.batch_began);
                            self.replies.push((call, status, answer));
                        }
                        Handled::Waits(number) => {
                            self.waiting.insert(number, (self.batch_began, Waiting::Call(call)));
                        }
                    }
                }
                Post::Subscribe { srv, after, sink, id } => self.subscribe(&srv, after, sink, id),
                Post::Unsubscribe { srv, id } => {
                    if let Some(index) = self.sink_of(&srv, id) {
                        self.lose_session(index);
                    }
                }
                Post::Resume { srv, id } => {
                    if let Some(index) = self.sink_of(&srv, id)
                        && let Some(session) = self.sessions[index].as_mut()
                        && let Reader::Sink { full, .. } = &mut session.reader
                    {
                        *full = false;
                        self.fresh.push(index);
                    }
                }
                Post::Verdict { id, verdict } => self.engine.verdict(self.now, id, verdict.as_ref()),
                #[cfg(feature = "nats")]
                Post::BeginEmpty { kept, waits } => self.begin_empty(kept.as_deref(), waits),
                Post::Tried(answered) => self.engine.trials.take_done(answered),
                Post::Stop => self.stop = true,
            }
        }
    }

    /// Closes connections that never said hello; publishes the report.
    pub(crate) fn tidy(&mut self) {
        for conn in self.conns.iter().flatten() {
            if conn.session.is_none() && !conn.closing && self.now.saturating_sub(conn.opened) > HELLO_MS {
                self.acts.push(Act::CloseNow(conn.key));
            }
        }
        let conns = &self.conns;
        self.strangers.retain(|key| stranger(conns, *key).is_some());
        // Sessions that nobody reads and whose server has no roles any more.
        for index in 0..self.sessions.len() {
            let engine = &self.engine;
            let gone = self.sessions[index].as_ref().is_some_and(|session| {
                matches!(session.reader, Reader::Nobody) && !engine.keeps(session.server)
            });
            if gone {
                self.remove_session(index);
            }
        }
        let report = &mut self.report;
        report.requests = METHODS.iter().map(|m| (m.name, self.requests[usize::from(m.number)])).collect();
        report.latencies =
            METHODS.iter().map(|method| method.name).zip(self.latencies.iter().cloned()).collect();
        report.errors = STATUSES.iter().map(|(s, name, ..)| (*name, self.errors[*s as usize])).collect();
        report.requests_per_batch = Some(self.batches.clone());
        report.notices_per_frame = Some(self.frames.clone());
        self.engine.report(report);
        report.waits = self.gate.why_closed();
        report.sessions = self.by_srv.len();
        report.stream_bytes = self.sessions.iter().flatten().map(Session::memory).sum();
        report.connections = self.conns.iter().flatten().count();
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = report.clone();
    }

    /// Says goodbye to everybody.
    pub(crate) fn say_goodbye(&mut self) {
        for index in 0..self.conns.len() {
            if self.conns[index].is_some() {
                self.goaway(index, Status::Draining, "the matcher is stopping");
            }
        }
    }

    /// Answers requests that a policy held up.
    fn answer_waiting(&mut self) {
        while let Some(Answered { request, status, body }) = self.engine.poll_answered() {
            match self.waiting.remove(&request) {
                Some((since, Waiting::Call(call))) => {
                    self.count(call.method, status, since);
                    self.replies.push((call, status, body));
                }
                Some((since, Waiting::Frame { key, id, method })) => {
                    self.count(method, status, since);
                    let conn = self.conns.get_mut(key.index()).and_then(Option::as_mut);
                    let Some(conn) = conn.filter(|conn| conn.key == key) else { continue };
                    let header =
                        Header { kind: Kind::Response, code: status as u16, id, ..Header::default() };
                    header.write(&mut conn.out, &body);
                    if !conn.dirty {
                        conn.dirty = true;
                        self.dirty.push(key.index());
                    }
                }
                // Nobody wanted an answer.
                None => {}
            }
        }
    }

    fn frame(&mut self, index: usize, conn: &mut Conn, header: Header, body: &[u8]) -> bool {
        match header.kind {
            Kind::Request => {
                let Some(session) = conn.session.and_then(|session| self.sessions[session].as_ref()) else {
                    return false;
                };
                let caller = Caller { srv: &session.srv, scope: conn.scope };
                self.batch += 1;
                let start = conn.out.len();
                conn.out.extend_from_slice(&[0; HEADER_BYTES]);
                let handled = if !self.guard.is_open {
                    Handled::Done(write_unavailable(&mut conn.out))
                } else if is_late(self.spent, header.extra) {
                    Handled::Done(write_late(&mut conn.out))
                } else {
                    self.engine.request(self.now, caller, header.code, body, &mut conn.out)
                };
                self.spent = self.batch_began.elapsed().as_micros() as u64;
                let wants_answer = header.flags & flags::NO_RESPONSE == 0;
                let status = match handled {
                    Handled::Done(status) => status,
                    Handled::Waits(number) => {
                        conn.out.truncate(start);
                        if wants_answer {
                            let waiting =
                                Waiting::Frame { key: conn.key, id: header.id, method: header.code };
                            self.waiting.insert(number, (self.batch_began, waiting));
                        }
                        return true;
                    }
                };
                self.count(header.code, status, self.batch_began);
                if !wants_answer {
                    conn.out.truncate(start);
                    return true;
                }
                let answer = Header {
                    kind: Kind::Response,
                    flags: 0,
                    code: status as u16,
                    id: header.id,
                    extra: self.spent as u32,
                };
                let len = conn.out.len() - start - HEADER_BYTES;
                conn.out[start..start + HEADER_BYTES].copy_from_slice(&answer.bytes(len));
                true
            }
            Kind::Hello => self.hello(index, conn, body),
            Kind::NotifyAck => {
                if let Some(session) = conn.session.and_then(|session| self.sessions[session].as_mut()) {
                    session.acknowledge(header.id);
                }
                true
            }
            Kind::Ping => {
                Header { kind: Kind::Pong, id: header.id, ..Header::default() }.write(&mut conn.out, body);
                true
            }
            Kind::Pong => true,
            Kind::Response | Kind::Notify | Kind::HelloAck | Kind::Goaway => false,
        }
    }

    fn goaway(&mut self, index: usize, status: Status, text: &str) {
        if let Some(conn) = self.conns[index].as_mut() {
            write_goaway(&mut conn.out, status, text);
            conn.closing = true;
            conn.session = None;
            if !conn.dirty {
                conn.dirty = true;
                self.dirty.push(index);
            }
        }
    }

    fn count(&mut self, method: u16, status: Status, since: Instant) {
        if let Some(count) = self.requests.get_mut(usize::from(method)) {
            *count += 1;
            let at = usize::from(self.method_at[usize::from(method)]);
            if let Some(latency) = self.latencies.get_mut(at) {
                latency.observe(since.elapsed().as_secs_f64());
            }
        }
        if status != Status::Ok {
            self.errors[status as usize] += 1;
        }
    }

    /// Executes the frames at the front of `bytes`; returns how many bytes they took, or `None` for
    /// nonsense.
    fn frames(&mut self, index: usize, conn: &mut Conn, bytes: &[u8]) -> Option<usize> {
        let mut used = 0;
        while !conn.closing {
            match split(&bytes[used..], FRAME_BODY_BYTES_MAX) {
                Ok(FrameSplit::Whole { header, body, used: size }) => {
                    if !self.frame(index, conn, header, body) {
                        return None;
                    }
                    used += size;
                }
                Ok(FrameSplit::Partial { .. }) => return Some(used),
                Err(error) => {
                    write_goaway(&mut conn.out, Status::TooLarge, &error.to_string());
                    conn.closing = true;
                }
            }
        }
        Some(bytes.len())
    }
}

impl Session {
    fn reader_conn(&self) -> Option<usize> {
        if let Reader::Connection(index) = self.reader { Some(index) } else { None }
    }
}

impl Handler for Hub {
    /// A batch begins.
    fn polled(&mut self, now: throng_stdx::Instant) {
        self.now = self.now.max(self.wall_start + now.as_nanos() / 1_000_000);
        self.batch_began = Instant::now();
        self.spent = 0;
        let was_open = self.guard.is_open;
        self.guard.pass(now);
        if self.guard.is_open && !was_open {
            // A lease that is granted with an empty state posts that before it opens the gate. What
            // was asked before is refused: it would meet the state that is given up.
            self.guard.is_open = false;
            self.take_posts();
            self.guard.is_open = true;
            self.lose_late();
        }
    }

    fn make_room(&mut self, older_than: Option<throng_stdx::Instant>) -> bool {
        let older_than = older_than.map(|than| self.wall_start + than.as_nanos() / 1_000_000);
        while let Some(key) = self.strangers.front().copied() {
            let opened = stranger(&self.conns, key).map(|conn| conn.opened);
            if opened.zip(older_than).is_some_and(|(opened, than)| than < opened) {
                return false;
            }
            self.strangers.pop_front();
            if opened.is_some() {
                if let Some(conn) = self.conns[key.index()].as_mut() {
                    conn.closing = true;
                }
                self.acts.push(Act::CloseNow(key));
                return true;
            }
        }
        false
    }

    fn accepted(&mut self, _: ListenerKey, key: ConnKey, _: SocketAddr) -> Accept {
        self.strangers.push_back(key);
        let index = key.index();
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        self.conns[index] = Some(Conn {
            key,
            input: Vec::new(),
            out: Vec::new(),
            taken: 0,
            marks: VecDeque::new(),
            open: 0,
            session: None,
            scope: Scope::Server,
            opened: self.now,
            dirty: false,
            paused: false,
            blocked: false,
            closing: false,
        });
        Accept::Keep
    }

    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
        let index = key.index();
        let Some(mut conn) = self.conns[index].take() else { return Flow::Continue };
        let input = std::mem::take(&mut conn.input);
        let used = if input.is_empty() {
            let used = self.frames(index, &mut conn, bytes);
            if let Some(used) = used {
                conn.input.extend_from_slice(&bytes[used..]);
            }
            used
        } else {
            let mut input = input;
            input.extend_from_slice(bytes);
            let used = self.frames(index, &mut conn, &input);
            if let Some(used) = used {
                input.drain(..used);
                conn.input = input;
            }
            used
        };
        if used.is_none() {
            self.acts.push(Act::CloseNow(key));
        }
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(index);
        }
        conn.paused = conn.out.len() - conn.taken > OUT_BYTES_MAX;
        let flow = if conn.paused { Flow::Pause } else { Flow::Continue };
        self.conns[index] = Some(conn);
        flow
    }

    fn writable(&mut self, key: ConnKey) {
        let index = key.index();
        if let Some(conn) = self.conns[index].as_mut() {
            conn.blocked = false;
            if !conn.dirty {
                conn.dirty = true;
                self.dirty.push(index);
            }
        }
    }

    fn closed(&mut self, key: ConnKey, _: CloseCause) {
        self.forget(key);
    }

    fn woken(&mut self) {
        self.take_posts();
    }
}

impl Hub {
    /// A connection is gone; its session waits for the server to come back.
    pub(crate) fn forget(&mut self, key: ConnKey) {
        let index = key.index();
        if self.conns.get(index).is_none_or(|conn| conn.as_ref().is_none_or(|conn| conn.key != key)) {
            return;
        }
        let Some(conn) = self.conns[index].take() else { return };
        if let Some(session) = conn.session
            && self.sessions[session].as_ref().and_then(Session::reader_conn) == Some(index)
        {
            self.lose_session(session);
        }
    }
}

/// The connection of `key`, if it is open and has not said hello.
fn stranger(conns: &[Option<Conn>], key: ConnKey) -> Option<&Conn> {
    let conn = conns.get(key.index())?.as_ref()?;
    (conn.key == key && conn.session.is_none() && !conn.closing).then_some(conn)
}

const NOBODY: u32 = u32::MAX;

/// Place where each method's number is among [`METHODS`]; beyond them for a number that is none's.
fn method_at() -> [u8; 128] {
    let mut at = [u8::MAX; 128];
    for (index, method) in METHODS.iter().enumerate() {
        at[usize::from(method.number)] = index as u8;
    }
    at
}

fn pop_if<T>(queue: &mut VecDeque<T>, test: impl FnOnce(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(test) { queue.pop_front() } else { None }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throng_matcher::{Config, Matcher, Notices};
    use throng_net::Handler as _;
    use throng_wire::matcher::{Method, Writer};

    use super::*;
    use crate::session::{Batch, Sink, Taken};

    fn hub(config: Config) -> (Hub, Arc<Mutex<Vec<Post>>>) {
        let matcher = Matcher::new(config, [1; 32], throng_matcher::WallMs(0));
        hub_of(matcher, Notices::default(), 1)
    }

    fn hub_of(matcher: Matcher, notices: Notices, epoch: u64) -> (Hub, Arc<Mutex<Vec<Post>>>) {
        let (policies, trials) = (crate::Policies::default(), crate::trials::Trials::default());
        let engine = Engine { matcher, journal: None, notices, policies, trials };
        let inbox: Arc<Mutex<Vec<Post>>> = Arc::default();
        let (tokens, report) = (Tokens::default(), Arc::default());
        let (area, id) = (String::new(), String::new());
        let guard = Guard::new(Gate::default(), throng_stdx::Instant::ZERO);
        let hub = Hub::new(engine, guard, tokens, area, id, 0, epoch, Arc::clone(&inbox), report, 0);
        (hub, inbox)
    }

    #[test]
    fn a_request_that_comes_too_late_is_not_executed() {
        assert!(!is_late(2_999_999, 0) && is_late(3_000_001, 0), "the default");
        assert!(!is_late(50_000, 50) && is_late(50_001, 50));
        let (mut hub, inbox) = hub(Config::default());
        let seen: Arc<Mutex<Vec<Status>>> = Arc::default();
        for due in [hub.batch_began - Duration::from_millis(1), hub.batch_began + Duration::from_millis(1)] {
            let seen = Arc::clone(&seen);
            let reply = Box::new(move |status, _| seen.lock().unwrap().push(status));
            inbox.lock().unwrap().push(Post::Call { call: join("s", "ann", reply), reader: None, due });
        }
        hub.take_posts();
        hub.end().unwrap();
        hub.release();
        assert_eq!(*seen.lock().unwrap(), [Status::Timeout, Status::Ok]);
        hub.tidy();
        assert_eq!(hub.report.counts.rooms, 1);
    }

    /// A role of `srv` joins the open room.
    fn join(srv: &str, role: &str, reply: crate::service::Reply) -> Call {
        let role = Writer::new().nested(1, Writer::new().str(1, role));
        Call {
            srv: srv.to_owned(),
            scope: Scope::Server,
            method: Method::ROLE_JOIN_RANDOM_ROOM,
            body: role.nested(2, Writer::new().str(1, "2v2")).into_bytes(),
            reply,
        }
    }

    /// A hub whose servers are given up after a second, and the batches that its servers read.
    struct Stage {
        hub: Hub,
        inbox: Arc<Mutex<Vec<Post>>>,
        now_ms: u64,
        read: Arc<Mutex<Vec<(String, Batch)>>>,
    }

    impl Stage {
        fn new() -> Stage {
            let (hub, inbox) = hub(Config { presence_grace_ms: 1_000, ..Config::default() });
            Stage { hub, inbox, now_ms: 0, read: Arc::default() }
        }

        /// Another life of the process, with the state that the journal has.
        fn restart(&mut self) {
            let (mut hub, _) = hub(Config::default());
            std::mem::swap(&mut hub.engine.matcher, &mut self.hub.engine.matcher);
            let (mut matcher, mut notices) = (hub.engine.matcher, Notices::default());
            matcher.handle_recovered(throng_matcher::WallMs(self.now_ms), &mut notices);
            (self.hub, self.inbox) = hub_of(matcher, notices, 1_000);
        }

        fn turn(&mut self, posts: impl IntoIterator<Item = Post>) {
            self.inbox.lock().unwrap().extend(posts);
            self.hub.polled(throng_stdx::Instant::from_millis(self.now_ms));
            self.hub.take_posts();
            self.hub.end().unwrap();
            self.hub.release();
        }

        fn subscribe(&self, srv: &str, after: Option<(u64, u64)>) -> Post {
            let (read, name) = (Arc::clone(&self.read), srv.to_owned());
            let sink: Sink = Box::new(move |batch| {
                read.lock().unwrap().push((name.clone(), batch));
                Taken::More
            });
            Post::Subscribe { srv: srv.to_owned(), after, sink, id: 1 }
        }

        fn join(&self, srv: &str, role: &str) -> Post {
            let due = self.hub.batch_began + Duration::from_secs(3_600);
            Post::Call { call: join(srv, role, Box::new(|_, _| {})), reader: None, due }
        }

        /// The answer to a join by a server whose notifications subscription `id` reads.
        fn join_read_by(&mut self, id: u64, srv: &str, role: &str) -> Option<Status> {
            let seen: Arc<Mutex<Option<Status>>> = Arc::default();
            let slot = Arc::clone(&seen);
            let reply = Box::new(move |status, _| *slot.lock().unwrap() = Some(status));
            let due = self.hub.batch_began + Duration::from_secs(3_600);
            self.turn([Post::Call { call: join(srv, role, reply), reader: Some(id), due }]);
            seen.lock().unwrap().take()
        }

        /// The server's session ends, and then its grace.
        fn give_up(&mut self, srv: &str) {
            self.turn([Post::Unsubscribe { srv: srv.to_owned(), id: 1 }]);
            self.now_ms += 2_000;
            self.turn([]);
            assert!(!self.hub.engine.matcher.has_server(srv.as_bytes()));
        }

        /// Everything that `srv` has read: epochs, numbers, and whether there were entries.
        fn read_by(&self, srv: &str) -> Vec<(u64, u64, bool)> {
            let all = self.read.lock().unwrap();
            let own = all.iter().filter(|(name, _)| name == srv);
            own.map(|(_, batch)| (batch.epoch, batch.seq, !batch.body.is_empty())).collect()
        }
    }

    #[test]
    fn a_reader_that_never_reads_occupies_what_the_reference_promises() {
        const MOST: usize = 32 << 20;
        let mut stage = Stage::new();
        // As a stream of events that its connection does not take.
        let unread = Arc::new(Mutex::new(0));
        let waiting = Arc::clone(&unread);
        let sink: Sink = Box::new(move |batch| {
            let mut waiting = waiting.lock().unwrap();
            *waiting += batch.body.len();
            if *waiting < 1 << 20 { Taken::More } else { Taken::Full }
        });
        let room: Arc<Mutex<Vec<u8>>> = Arc::default();
        let slot = Arc::clone(&room);
        let call = join("a", "ann", Box::new(move |_, body| *slot.lock().unwrap() = body));
        let due = stage.hub.batch_began + Duration::from_secs(3_600);
        let subscribe = Post::Subscribe { srv: "a".to_owned(), after: None, sink, id: 1 };
        stage.turn([subscribe, Post::Call { call, reader: None, due }]);
        let joined = room.lock().unwrap().clone();
        let joined = throng_wire::matcher::Reader::new(&joined).unwrap();
        let room = joined.nested(1).unwrap().bytes(1).to_vec();
        let message = format!("\"{}\"", "m".repeat(60_000));
        let (mut most, mut sent) = (0, 0);
        while stage.hub.report.lagging < 3 {
            let body = Writer::new().bytes(1, &room).bytes(2, message.as_bytes()).into_bytes();
            let reply = Box::new(|status, _: Vec<u8>| assert_eq!(status, Status::Ok));
            let (srv, method) = ("game".to_owned(), Method::BROADCAST_ROOM);
            let call = Call { srv, scope: Scope::Admin, method, body, reply };
            stage.turn([Post::Call { call, reader: None, due }]);
            stage.hub.tidy();
            most = most.max(stage.hub.report.stream_bytes + *unread.lock().unwrap());
            sent += message.len();
            assert!(sent < 8 * MOST, "no bound");
        }
        assert!((MOST / 2..MOST).contains(&most), "{most} bytes");
    }

    #[test]
    fn a_server_that_returns_after_a_restart_hears_what_it_missed() {
        let mut stage = Stage::new();
        stage.turn(["a", "b"].map(|srv| stage.subscribe(srv, None)));
        // The server of `cat` reads no notifications, and nothing waits for it.
        stage.turn([("a", "ann"), ("b", "bob"), ("c", "cat")].map(|(srv, role)| stage.join(srv, role)));
        let before = stage.read_by("a").last().map(|(epoch, seq, _)| (*epoch, *seq));
        stage.restart();
        stage.read.lock().unwrap().clear();
        stage.turn([stage.subscribe("b", None), stage.join("b", "bea")]);
        assert_eq!(stage.hub.by_srv.keys().collect::<Vec<_>>(), ["a", "b"]);
        stage.turn([stage.subscribe("a", before)]);
        let read = stage.read_by("a");
        let [(epoch, 0, false), (same, 1, true)] = read[..] else { panic!("{read:?}") };
        assert!(epoch == same && before.is_some_and(|(old, _)| old != epoch), "a gap: {read:?}");
    }

    #[test]
    fn a_matcher_without_a_journal_hashes_no_outputs() {
        let mut stage = Stage::new();
        stage.turn([stage.subscribe("a", None)]);
        stage.turn([stage.join("a", "ann")]);
        assert_eq!(stage.hub.engine.matcher.take_outputs(), None);
    }

    #[test]
    fn a_server_that_is_given_up_takes_nothing_from_the_one_that_has_its_place() {
        let mut stage = Stage::new();
        stage.turn([stage.subscribe("a", None)]);
        stage.give_up("a");
        stage.turn([stage.subscribe("b", None)]);
        stage.hub.tidy();
        stage.turn([stage.join("b", "carl")]);
        let read = stage.read_by("b");
        assert!(read.last().is_some_and(|(_, seq, has_entries)| *seq == 1 && *has_entries), "{read:?}");
    }

    #[test]
    fn a_server_that_comes_back_reads_nothing_of_the_one_that_has_its_place() {
        let mut stage = Stage::new();
        stage.turn([stage.subscribe("a", None)]);
        let (epoch, seq, _) = stage.read_by("a")[0];
        stage.give_up("a");
        stage.turn([stage.join("b", "carl")]);
        stage.turn([stage.subscribe("a", Some((epoch, seq)))]);
        stage.turn([]);
        let read = stage.read_by("a");
        assert!(read.iter().all(|(.., has_entries)| !has_entries), "{read:?}");
        assert!(read[1].0 != epoch, "its roles were given up: {read:?}");
    }

    #[test]
    fn a_notification_of_the_turn_in_which_its_server_is_given_up_goes_to_no_other() {
        let mut stage = Stage::new();
        stage.turn([stage.subscribe("a", None), stage.join("a", "ann"), stage.join("a", "bob")]);
        stage.turn([Post::Unsubscribe { srv: "a".to_owned(), id: 1 }]);
        stage.now_ms += 2_000;
        let before = stage.read.lock().unwrap().len();
        // The roles of `a` leave their room one by one, and `b` comes into the place of `a`.
        stage.turn([stage.subscribe("b", None)]);
        stage.turn([]);
        let all = stage.read.lock().unwrap();
        assert!(all[before..].iter().all(|(_, batch)| batch.body.is_empty()), "{:?}", &all[before..]);
    }

    #[test]
    fn no_request_is_executed_after_the_session_that_reads_of_it_was_refused() {
        let mut stage = Stage::new();
        let gate = Gate::leased();
        stage.hub.gate = gate.clone();
        stage.hub.guard = Guard::new(gate.clone(), throng_stdx::Instant::ZERO);
        // The gate opens between a subscription and the request that comes with it.
        stage.turn([stage.subscribe("a", None)]);
        gate.open_until(Some(throng_stdx::Instant::from_nanos(u64::MAX)));
        stage.turn([]);
        assert_eq!(stage.join_read_by(1, "a", "ann"), Some(Status::Unavailable));
        assert_eq!(stage.hub.engine.matcher.counts().rooms, 0);
        stage.turn([stage.subscribe("a", None)]);
        assert_eq!(stage.join_read_by(1, "a", "ann"), Some(Status::Ok));
        assert!(stage.read_by("a").last().is_some_and(|(_, seq, has_entries)| *seq == 1 && *has_entries));
        // Another session took its place.
        assert_eq!(stage.join_read_by(2, "a", "bob"), Some(Status::Unavailable));
    }

    #[test]
    fn time_stands_still_without_the_lease_although_a_server_is_lost() {
        let mut stage = Stage::new();
        stage.turn([stage.subscribe("a", None), stage.join("a", "ann")]);
        let gate = Gate::leased();
        stage.hub.gate = gate.clone();
        stage.hub.guard = Guard::new(gate.clone(), throng_stdx::Instant::ZERO);
        let before = stage.hub.engine.matcher.digest();
        stage.now_ms = 40_000;
        stage.turn([Post::Unsubscribe { srv: "a".to_owned(), id: 1 }]);
        assert_eq!(stage.hub.engine.matcher.digest(), before);
        gate.open_until(Some(throng_stdx::Instant::from_nanos(u64::MAX)));
        let mut turns = 0;
        while stage.hub.engine.matcher.counts().rooms > 0 {
            stage.now_ms += 300;
            stage.turn([]);
            turns += 1;
            assert!(turns < 100, "the grace ends");
        }
        assert!(turns > 3, "it has its whole grace");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn no_request_meets_a_state_that_is_given_up() {
        let mut stage = Stage::new();
        stage.turn([stage.subscribe("a", None), stage.join("a", "ann"), stage.join("a", "bob")]);
        let gate = Gate::leased();
        stage.hub.gate = gate.clone();
        stage.hub.guard = Guard::new(gate.clone(), throng_stdx::Instant::ZERO);
        // A service without the lease begins no session.
        stage.turn([stage.subscribe("late", None)]);
        assert_eq!(stage.read_by("late"), []);
        stage.inbox.lock().unwrap().push(Post::BeginEmpty { kept: None, waits: false });
        gate.open_until(Some(throng_stdx::Instant::from_nanos(u64::MAX)));
        stage.hub.polled(throng_stdx::Instant::from_millis(stage.now_ms));
        assert_eq!(stage.hub.engine.matcher.counts().rooms, 0, "before any request of this turn");
        stage.turn([stage.subscribe("b", None), stage.join("a", "dora")]);
        stage.turn([]);
        assert!(stage.read_by("b").iter().all(|(.., has_entries)| !has_entries));
        let read = stage.read_by("a");
        let [(first, ..), .., (gap, 0, false), (epoch, 1, true)] = read[..] else { panic!("{read:?}") };
        assert!(first != gap && gap == epoch, "{read:?}");
    }
}
