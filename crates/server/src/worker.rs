//! One shard thread: an event loop, a shard of the core, and the mailbox between it and the rest of the process.
//!
//! A round is: wait; take in what happened on the sockets; take in the mailbox; run what is due; write to every
//! connection that gained output, once; carry out closures; post the mail. Everything within a round has one time.

use std::collections::{HashSet, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use throng_gateway::{
    AuthTicket, CloseReason, Closed, ConnId, ConnKind, Due, Effect, Framing, SecurityEvent, Shard,
    ShardIndex, SharedFrame, Verdict,
};
use throng_net::{
    Accept, Clock, CloseCause, CloseMode, ConnKey, EventLoop, Flow, Handler, ListenerKey, SharedFile,
    TimedOut,
};
use throng_stdx::Instant;

use crate::auth::{Login, Logins};
use crate::capture::{Record, Tap};
use crate::mailbox::{Mailbox, Post, Taken};
use crate::pace::Pace;
use crate::recorder::Recorder;
use crate::report::{ChannelReport, ConnReport, RoundTimes, ShardReport, Ticks};

/// After a panic while running timers: pause before the next try, so that one that repeats does not eat the core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);
/// Rounds of writing within one round of the loop. Writing makes room, room makes conflated channels resume, which
/// is more to write; two passes settle that, and what is left over has its turn in the next round.
const WRITE_PASSES: usize = 2;

/// Frames from this size on are given to the kernel once for all their readers ...
const SHARED_FRAME_BYTES_MIN: usize = 16 << 10;
/// ... if there are so many: making the file costs about as much as the copies for four.
const SHARED_FRAME_HOLDERS_MIN: usize = 8;
/// Files kept for the frames of one pass. Cohorts are written one after the other, so a few are enough.
const SHARED_FILES_MAX: usize = 4;

/// Shortest time between rounds that game servers ask for, within what [`Pace`] puts off.
const URGENT_INTERVAL: Duration = Duration::from_micros(500);

/// Time a closed connection has to take what was queued for it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(3);
/// WebSocket close codes (RFC 6455 §7.4.1).
const WS_GOING_AWAY: u16 = 1001;
const WS_POLICY: u16 = 1008;

/// What a listener's connections are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerRole {
    pub(crate) kind: ConnKind,
    pub(crate) framing: Framing,
}

/// What a worker needs besides its loop.
pub(crate) struct WorkerParts {
    pub(crate) index: u16,
    pub(crate) clock: Clock,
    pub(crate) event_loop: EventLoop,
    pub(crate) shard: Shard,
    pub(crate) listeners: std::collections::HashMap<ListenerKey, ListenerRole>,
    /// All mailboxes by shard, the own one included.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) logins: Arc<Logins>,
    pub(crate) recorder: Recorder,
    pub(crate) heartbeat: Arc<Heartbeat>,
    /// Time to say goodbye to everyone.
    pub(crate) shutdown_timeout: Duration,
    /// Shortest average time between rounds, see [`Pace`].
    pub(crate) round_interval: Duration,
}

/// Whether a worker is in a round, and since when; read by the health check.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    /// Nanoseconds since the start of the clock plus one; 0 while waiting.
    round_began_ns: AtomicU64,
}

impl Heartbeat {
    /// How long the present round has taken; `None` while the worker waits for events.
    pub(crate) fn busy_for(&self, now: Instant) -> Option<Duration> {
        let began = self.round_began_ns.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.since(Instant::from_nanos(began)))
    }

    fn begin(&self, now: Instant) {
        self.round_began_ns.store(now.as_nanos() + 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.round_began_ns.store(0, Ordering::Relaxed);
    }
}

/// A shard thread, ready to run.
pub(crate) struct Worker {
    event_loop: EventLoop,
    driver: Driver,
    /// Allocation for gathered writes; always empty between them.
    slices: Vec<IoSlice<'static>>,
    /// Frames of the present pass that several connections get, and their bytes in the kernel, the latest last. Without
    /// a file where making one failed.
    shared: VecDeque<(SharedFrame, Option<SharedFile>)>,
    pace: Pace,
    shutdown_timeout: Duration,
}

/// The half of a worker that the event loop calls back into.
struct Driver {
    index: u16,
    clock: Clock,
    now: Instant,
    shard: Shard,
    listeners: std::collections::HashMap<ListenerKey, ListenerRole>,
    conns: HashMap<ConnId, Conn>,
    /// Which connection a key of the loop is, by its index: this is looked up for every read.
    by_key: Vec<Option<(ConnKey, ConnId)>>,
    /// Closed by the core before their socket arrived.
    closed_early: HashSet<ConnId>,
    mailboxes: Arc<[Mailbox]>,
    /// Posts of this round with their destinations, in the order in which they must be handed over.
    outgoing: VecDeque<(u16, Post)>,
    /// Game servers of this shard, still to be given priority.
    newcomers: Vec<ConnKey>,
    /// Their bytes.
    outgoing_bytes: usize,
    /// Accepted for other shards, still to be taken out of the loop.
    hand_offs: Vec<(ConnKey, ConnId, ShardIndex, ConnKind)>,
    dirty: Vec<ConnId>,
    /// Connections that the core has closed, to be carried out at the end of the round.
    closing: Vec<Closing>,
    /// Closed connections that still take what was queued for them.
    farewells: HashMap<ConnKey, Farewell>,
    farewells_ready: Vec<ConnKey>,
    verdicts: Vec<(AuthTicket, Verdict)>,
    /// Paused because another shard's mailbox is full.
    paused: Vec<ConnKey>,
    woken: bool,
    logins: Arc<Logins>,
    recorder: Recorder,
    heartbeat: Arc<Heartbeat>,
    rounds: RoundTimes,
    ticks: Ticks,
    panics: u64,
    congestions: u64,
    /// What the latest round found in the mailbox.
    mailbox: Taken,
    mailbox_peak_bytes: usize,
    /// No timers before this, after a panic in them.
    timers_from: Instant,
    stopping: Option<Instant>,
    /// Somebody looks at the messages of a connection.
    tap: Option<Box<Tap>>,
    #[cfg(test)]
    faults: crate::faults::Armed,
}

struct Conn {
    key: ConnKey,
    kind: ConnKind,
    bytes_out: u64,
    /// Waits for the loop to say that there is room.
    blocked: bool,
    dirty: bool,
}

/// A closure to carry out.
struct Closing {
    id: ConnId,
    /// Taken out of the table at once: the core may give the id to someone else within the same round. `None` when
    /// the socket is still on its way here.
    conn: Option<Conn>,
    reason: CloseReason,
    flush: Vec<u8>,
}

/// The end of a connection that the core has forgotten already.
struct Farewell {
    reason: CloseReason,
    bytes: Vec<u8>,
    sent: usize,
    until: Instant,
}

impl Worker {
    pub(crate) fn new(parts: WorkerParts) -> Worker {
        let driver = Driver {
            index: parts.index,
            clock: parts.clock,
            now: parts.clock.now(),
            shard: parts.shard,
            listeners: parts.listeners,
            conns: HashMap::new(),
            by_key: Vec::new(),
            closed_early: HashSet::new(),
            mailboxes: parts.mailboxes,
            outgoing: VecDeque::new(),
            newcomers: Vec::new(),
            outgoing_bytes: 0,
            hand_offs: Vec::new(),
            dirty: Vec::new(),
            closing: Vec::new(),
            farewells: HashMap::new(),
            farewells_ready: Vec::new(),
            verdicts: Vec::new(),
            paused: Vec::new(),
            woken: false,
            logins: parts.logins,
            recorder: parts.recorder,
            heartbeat: parts.heartbeat,
            rounds: RoundTimes::default(),
            ticks: Ticks::default(),
            panics: 0,
            congestions: 0,
            mailbox: Taken::default(),
            mailbox_peak_bytes: 0,
            timers_from: Instant::ZERO,
            stopping: None,
            tap: None,
            #[cfg(test)]
            faults: crate::faults::Armed::default(),
        };
        Worker {
            event_loop: parts.event_loop,
            driver,
            slices: Vec::new(),
            shared: VecDeque::new(),
            pace: Pace::new(parts.round_interval),
            shutdown_timeout: parts.shutdown_timeout,
        }
    }

    /// Runs until the shutdown is complete.
    pub(crate) fn run(mut self) {
        let mut posts = VecDeque::new();
        loop {
            let (clock, deadline) = (self.driver.clock, self.driver.deadline());
            if let Err(error) = self.event_loop.poll(&clock, deadline, &mut self.driver) {
                // The loop cannot wait any more: without it this shard is dead, and the process with it.
                tracing::error!(shard = self.driver.index, %error, "the event loop failed; stopping the process");
                std::process::abort();
            }
            let now = self.round(&mut posts);
            self.pace.count(self.driver.now);
            if let Some(wait) = self.pace.wait(now, self.driver.deadline()) {
                self.pause(now + wait, &mut posts);
            }
            if let Some(until) = self.driver.stopping
                && (self.event_loop.conn_count() == 0 || now >= until)
            {
                return;
            }
        }
    }

    /// Lets events gather. What a game server says is handled at once: a handover in it should not wait, and game servers
    /// are few. When most of the pause is over by then, all that has gathered is handled along with it.
    fn pause(&mut self, until: Instant, posts: &mut VecDeque<Post>) {
        loop {
            let clock = self.driver.clock;
            let until = self.driver.deadline().map_or(until, |deadline| deadline.min(until));
            let left = until.since(clock.now());
            // A wait that fails would fail in the next poll as well, which reports it.
            if left.is_zero() || !self.event_loop.wait_urgent(left).unwrap_or(false) {
                return;
            }
            let now = clock.now();
            let rest = (self.driver.now + URGENT_INTERVAL).since(now).min(until.since(now));
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            if until.since(clock.now()) <= self.pace.interval() / 2 {
                return;
            }
            self.event_loop.serve_urgent(&clock, &mut self.driver);
            self.round(posts);
        }
    }

    /// Everything that a batch of events leads to. Returns the time afterwards.
    fn round(&mut self, posts: &mut VecDeque<Post>) -> Instant {
        self.work(posts);
        let now = self.driver.clock.now();
        self.driver.rounds.record(now.since(self.driver.now).as_nanos() as u64);
        self.driver.heartbeat.end();
        now
    }

    fn work(&mut self, posts: &mut VecDeque<Post>) {
        for key in std::mem::take(&mut self.driver.newcomers) {
            self.prioritise(key);
        }
        self.hand_off();
        if std::mem::take(&mut self.driver.woken) {
            self.take_posts(posts);
        }
        self.driver.run_due();
        self.driver.answer_logins();
        for _ in 0..WRITE_PASSES {
            self.write_dirty();
        }
        self.carry_out_closures();
        self.say_goodbyes();
        self.driver.post_mail();
        self.resume_paused();
    }

    /// Moves sockets to the shards that own their connections, behind the mail that announced them.
    fn hand_off(&mut self) {
        for (key, conn, shard, kind) in std::mem::take(&mut self.driver.hand_offs) {
            let post = match self.event_loop.detach(key) {
                Some(socket) => Post::Socket { conn, kind, socket: Box::new(socket) },
                None => {
                    self.event_loop.close(key, CloseMode::Now);
                    Post::SocketLost { conn }
                }
            };
            self.driver.send(shard, post);
        }
    }

    fn take_posts(&mut self, posts: &mut VecDeque<Post>) {
        let mine = usize::from(self.driver.index);
        let taken = self.driver.mailboxes[mine].take(posts);
        self.driver.mailbox = taken;
        self.driver.mailbox_peak_bytes = self.driver.mailbox_peak_bytes.max(taken.bytes);
        if taken.awaited {
            self.driver.mailboxes.iter().for_each(Mailbox::wake);
        }
        for post in posts.drain(..) {
            match post {
                Post::Mail(mail) => {
                    self.driver.guard(|driver| driver.shard.handle_mail(driver.now, mail));
                }
                Post::Socket { conn, kind, socket } => self.attach(conn, kind, *socket),
                Post::SocketLost { conn } if self.driver.closed_early.remove(&conn) => {}
                Post::SocketLost { conn } => self.driver.lose(conn, Closed::Error),
                Post::Verdict { ticket, verdict } => self.driver.verdicts.push((ticket, verdict)),
                Post::Report { lists, reply } => {
                    // The asker may have given up waiting.
                    let _ = reply.try_send(self.driver.report(&self.event_loop, lists));
                }
                Post::Look(look) => drop(self.driver.guard(|driver| look(&driver.shard))),
                Post::Capture(record) => self.driver.capture(record),
                Post::Reconfigure(config) => self.driver.shard.reconfigure(&config),
                Post::Shutdown => self.begin_shutdown(),
                #[cfg(test)]
                Post::Fault(fault) => drop(self.driver.guard(|driver| driver.faults.take(fault))),
            }
        }
    }

    fn prioritise(&mut self, key: ConnKey) {
        if let Err(error) = self.event_loop.prioritise(key) {
            tracing::debug!(%error, "a game server goes without priority");
        }
    }

    fn attach(&mut self, conn: ConnId, kind: ConnKind, socket: throng_net::DetachedConn) {
        match self.event_loop.attach(socket) {
            Ok(key) if self.driver.closed_early.remove(&conn) => self.event_loop.close(key, CloseMode::Now),
            Ok(key) => {
                self.driver.adopt(conn, kind, key);
                self.driver.mark_dirty(conn);
                if kind == ConnKind::Server {
                    self.prioritise(key);
                }
            }
            Err(error) => {
                tracing::debug!(conn = conn.0, %error, "a socket could not be moved to its shard");
                self.driver.lose(conn, Closed::Error);
            }
        }
    }

    fn begin_shutdown(&mut self) {
        for key in std::mem::take(&mut self.driver.listeners).into_keys() {
            self.event_loop.close_listener(key);
        }
        self.driver.stopping = Some(self.driver.now + self.shutdown_timeout);
        self.driver.guard(|driver| driver.shard.begin_shutdown(driver.now));
    }

    fn write_dirty(&mut self) {
        for conn in std::mem::take(&mut self.driver.dirty) {
            self.write(conn);
        }
        self.shared.clear();
    }

    /// Sends a large frame that many connections get by reference to bytes that the kernel has already. Does nothing if
    /// that is not what comes next; returns whether the connection is there and has more to write.
    fn write_shared(&mut self, conn: ConnId) -> bool {
        let driver = &mut self.driver;
        let Some(key) = driver.conns.get(&conn).map(|entry| entry.key) else { return false };
        let Some(outbox) = driver.shard.outbox(conn) else { return false };
        let small = outbox.queued_bytes() < SHARED_FRAME_BYTES_MIN;
        // What somebody looks at goes the plain way, where it can be seen.
        let watched = driver.tap.as_ref().is_some_and(|tap| tap.handle == conn);
        if small || watched || !self.event_loop.takes_shared(key) {
            return !outbox.is_empty();
        }
        let Some(frame) = outbox.shared_frame(SHARED_FRAME_BYTES_MIN) else { return true };
        let known = self.shared.iter().position(|(known, _)| *known == frame);
        let index = match known {
            Some(index) => index,
            None if frame.holders() < SHARED_FRAME_HOLDERS_MIN => return true,
            None => {
                let file = SharedFile::new(&frame.parts()).ok();
                if self.shared.len() == SHARED_FILES_MAX {
                    self.shared.pop_front();
                }
                self.shared.push_back((frame, file));
                self.shared.len() - 1
            }
        };
        let Some(file) = &self.shared[index].1 else { return true };
        let taken = self.event_loop.write_shared(key, file);
        if taken > 0 {
            if let Some(entry) = driver.conns.get_mut(&conn) {
                entry.bytes_out += taken as u64;
            }
            driver.guard_conn(conn, |driver| driver.shard.handle_written(driver.now, conn, taken));
        }
        driver.shard.outbox(conn).is_some_and(|outbox| !outbox.is_empty())
    }

    /// Gives a connection's output to the transport, as much as it takes.
    fn write(&mut self, conn: ConnId) {
        let driver = &mut self.driver;
        let Some(entry) = driver.conns.get_mut(&conn) else { return };
        entry.dirty = false;
        if entry.blocked || !self.write_shared(conn) {
            return;
        }
        let driver = &mut self.driver;
        let Some(entry) = driver.conns.get_mut(&conn) else { return };
        let Some(outbox) = driver.shard.outbox(conn) else { return };
        let mut slices = recycle(std::mem::take(&mut self.slices));
        let loose = outbox.may_get_lost();
        outbox.gather(&mut slices);
        let outcome = match loose {
            true => self.event_loop.write_loose(entry.key, &slices),
            false => self.event_loop.write(entry.key, &slices),
        };
        if let Some(tap) = driver.tap.as_mut().filter(|tap| tap.handle == conn) {
            tap.written(driver.now, &slices, outcome.taken);
        }
        self.slices = recycle(slices);
        entry.blocked = outcome.blocked;
        entry.bytes_out += outcome.taken as u64;
        driver.guard_conn(conn, |driver| driver.shard.handle_written(driver.now, conn, outcome.taken));
        let more = !outcome.blocked && outcome.taken > 0;
        if more && driver.shard.outbox(conn).is_some_and(|outbox| !outbox.is_empty()) {
            driver.mark_dirty(conn);
        }
    }

    fn carry_out_closures(&mut self) {
        for Closing { id, conn, reason, flush } in std::mem::take(&mut self.driver.closing) {
            let Some(entry) = conn else {
                self.driver.closed_early.insert(id);
                continue;
            };
            tracing::debug!(conn = id.0, kind = ?entry.kind, reason = reason.name(), "connection closed");
            if flush.is_empty() && reason != CloseReason::Shutdown {
                self.event_loop.close(entry.key, CloseMode::Now);
                continue;
            }
            self.event_loop.pause_read(entry.key);
            let until = self.driver.now + FAREWELL_TIMEOUT;
            self.driver.farewells.insert(entry.key, Farewell { reason, bytes: flush, sent: 0, until });
            self.driver.farewells_ready.push(entry.key);
        }
    }

    /// Goes on with connections that are closed but still have something to be told.
    fn say_goodbyes(&mut self) {
        for key in std::mem::take(&mut self.driver.farewells_ready) {
            let Some(farewell) = self.driver.farewells.get_mut(&key) else { continue };
            let rest = &farewell.bytes[farewell.sent..];
            if !rest.is_empty() {
                farewell.sent += self.event_loop.write(key, &[IoSlice::new(rest)]).taken;
            }
            if farewell.sent == farewell.bytes.len() {
                let (code, text) = match farewell.reason {
                    CloseReason::Shutdown => (WS_GOING_AWAY, "shutting down; reconnect"),
                    reason => (WS_POLICY, reason.name()),
                };
                self.event_loop.close_with(key, code, text);
                self.driver.farewells.remove(&key);
            }
        }
        let now = self.driver.now;
        let late: Vec<ConnKey> = match self.driver.farewells.is_empty() {
            true => return,
            false => self
                .driver
                .farewells
                .iter()
                .filter(|(_, each)| each.until <= now)
                .map(|(key, _)| *key)
                .collect(),
        };
        for key in late {
            self.driver.farewells.remove(&key);
            self.event_loop.close(key, CloseMode::Now);
        }
    }

    fn resume_paused(&mut self) {
        if self.driver.paused.is_empty() || self.driver.others().any(Mailbox::is_congested) {
            return;
        }
        for key in std::mem::take(&mut self.driver.paused) {
            self.event_loop.resume_read(key);
        }
    }
}

impl Driver {
    /// When the next round must begin if nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let timers = self.shard.next_timeout().map(|at| at.max(self.timers_from));
        let writes = (!self.dirty.is_empty()).then_some(Instant::ZERO);
        let farewells = self.farewells.values().map(|farewell| farewell.until).min();
        [timers, writes, self.stopping, farewells].into_iter().flatten().min()
    }

    fn run_due(&mut self) {
        let due = self.shard.next_timeout().is_some_and(|at| at <= self.now);
        if due
            && self.now >= self.timers_from
            && !self.guard(|driver| {
                #[cfg(test)]
                driver.faults.on_timeout();
                driver.tick();
            })
        {
            self.timers_from = self.now + PANIC_PAUSE;
        }
    }

    /// Runs what is due, and measures the channels' ticks.
    fn tick(&mut self) {
        let mut began = self.clock.now();
        while let Some(due) = self.shard.handle_due(self.now) {
            let ended = self.clock.now();
            if let Due::Tick(channel_type) = due {
                self.ticks.record(channel_type, ended.since(began).as_nanos() as u64);
            }
            began = ended;
        }
    }

    fn answer_logins(&mut self) {
        // An answer can cause the next question, hence the loop; each turn answers what is there.
        while let Some((ticket, verdict)) = self.verdicts.pop() {
            self.guard(|driver| driver.shard.handle_verdict(driver.now, ticket, verdict));
        }
    }

    fn adopt(&mut self, conn: ConnId, kind: ConnKind, key: ConnKey) {
        let entry = Conn { key, kind, bytes_out: 0, blocked: false, dirty: false };
        self.conns.insert(conn, entry);
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, None);
        }
        self.by_key[key.index()] = Some((key, conn));
    }

    fn forget(&mut self, conn: ConnId) -> Option<Conn> {
        if let Some(tap) = self.tap.take_if(|tap| tap.handle == conn) {
            tap.end("the connection was closed");
        }
        let entry = self.conns.remove(&conn)?;
        self.by_key[entry.key.index()] = None;
        Some(entry)
    }

    fn conn_of(&self, key: ConnKey) -> Option<ConnId> {
        match self.by_key.get(key.index()) {
            Some(Some((known, conn))) if *known == key => Some(*conn),
            _ => None,
        }
    }

    fn close(&mut self, id: ConnId, reason: CloseReason, flush: Vec<u8>) {
        let conn = self.forget(id);
        self.closing.push(Closing { id, conn, reason, flush });
    }

    /// The transport lost a connection.
    fn lose(&mut self, conn: ConnId, cause: Closed) {
        self.forget(conn);
        self.guard(|driver| driver.shard.handle_closed(driver.now, conn, cause));
    }

    fn mark_dirty(&mut self, conn: ConnId) {
        if let Some(entry) = self.conns.get_mut(&conn)
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(conn);
        }
    }

    /// Gives the core one input and takes its outputs. A panic is counted and contained; `false` tells of one.
    fn guard(&mut self, input: impl FnOnce(&mut Driver)) -> bool {
        let calm = catch_unwind(AssertUnwindSafe(|| input(self))).is_ok();
        if !calm {
            self.panics += 1;
        }
        // Outputs can break on the state that a panic left behind.
        if catch_unwind(AssertUnwindSafe(|| self.drain())).is_err() {
            self.panics += 1;
            return false;
        }
        calm
    }

    /// As [`Driver::guard`], for an input that comes from one connection: a panic ends that connection.
    fn guard_conn(&mut self, conn: ConnId, input: impl FnOnce(&mut Driver)) {
        if self.guard(input) {
            return;
        }
        tracing::error!(conn = conn.0, "the core panicked on a connection's input; closing the connection");
        self.guard(|driver| driver.shard.handle_closed(driver.now, conn, Closed::Error));
        // Usually not there any more: the core has asked to close it, or it never got that far.
        if self.conns.contains_key(&conn) {
            self.close(conn, CloseReason::Internal, Vec::new());
        }
    }

    /// Begins to record a connection's messages, in place of another's.
    fn capture(&mut self, record: Arc<Record>) {
        self.tap = None;
        let Some(handle) = self.shard.handle_of(record.conn) else { return };
        let web_socket =
            self.shard.outbox(handle).is_some_and(|outbox| outbox.framing() == Framing::WebSocket);
        self.tap = Some(Box::new(Tap::new(handle, record, web_socket)));
    }

    fn tap_arrived(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(tap) = &mut self.tap else { return };
        if tap.is_over(self.now) {
            self.tap = None;
        } else if tap.handle == conn {
            let at_border = self.shard.reads_at_border(conn) == Some(true);
            tap.arrived(self.now, bytes, at_border);
        }
    }

    /// Takes every output of the core.
    fn drain(&mut self) {
        while let Some((shard, mail)) = self.shard.poll_mail() {
            self.send(shard, Post::Mail(mail));
        }
        while let Some(effect) = self.shard.poll_effect() {
            self.carry_out(effect);
        }
        while let Some(conn) = self.shard.poll_writable() {
            self.mark_dirty(conn);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Close { conn, reason, flush } => self.close(conn, reason, flush),
            Effect::Authenticate { ticket, conn, kind, addr, pit, lt } => {
                let login = Login { conn: conn.0, kind, addr, player: pit, token: lt };
                if let Some(verdict) = self.logins.ask(ticket, login) {
                    self.verdicts.push((ticket, verdict));
                }
            }
            Effect::Recording { conn: _, name, bytes } => self.recorder.append(name, bytes),
            Effect::SecurityLog(event) => log_security(&event),
            // The catalogue of effects may grow; one that nobody carries out must not go unnoticed.
            other => tracing::error!(?other, "an effect of the core is not carried out"),
        }
    }

    /// Has a post handed over at the end of the round.
    fn send(&mut self, to: ShardIndex, post: Post) {
        self.outgoing_bytes += post.bytes();
        self.outgoing.push_back((to.0, post));
    }

    /// Hands mail over in the order in which the core gave it out, across receivers too: what one shard tells two
    /// others must not be overtaken by what these tell each other.
    fn post_mail(&mut self) {
        self.outgoing_bytes = 0;
        let mut run = VecDeque::new();
        while let Some((to, post)) = self.outgoing.pop_front() {
            run.push_back(post);
            if self.outgoing.front().is_none_or(|(next, _)| *next != to) {
                self.mailboxes[usize::from(to)].post_all(&mut run);
            }
        }
    }

    /// The mailboxes of the other shards.
    fn others(&self) -> impl Iterator<Item = &Mailbox> {
        let mine = usize::from(self.index);
        self.mailboxes.iter().enumerate().filter(move |(index, _)| *index != mine).map(|(_, mailbox)| mailbox)
    }

    fn report(&self, event_loop: &EventLoop, lists: bool) -> ShardReport {
        let mut connections = Vec::new();
        let mut channels = Vec::new();
        if lists {
            connections.extend(self.shard.connections().map(|view| {
                let bytes_out = self.conns.get(&view.handle).map_or(0, |conn| conn.bytes_out);
                ConnReport { shard: self.index, bytes_out, open: self.now.since(view.accepted), view }
            }));
            channels.extend(self.shard.channels().map(|view| ChannelReport { shard: self.index, view }));
        }
        ShardReport {
            stats: self.shard.stats().clone(),
            loop_stats: *event_loop.stats(),
            enet: event_loop.enet_figures(),
            rounds: self.rounds.clone(),
            ticks: self.ticks.clone(),
            world: self.shard.world(),
            panics: self.panics,
            congestions: self.congestions,
            mailbox: self.mailbox,
            mailbox_peak_bytes: self.mailbox_peak_bytes,
            recordings_dropped: self.recorder.dropped(),
            connections,
            channels,
        }
    }
}

impl Handler for Driver {
    fn polled(&mut self, now: Instant) {
        self.now = now;
        self.heartbeat.begin(now);
    }

    fn accepted(&mut self, listener: ListenerKey, key: ConnKey, peer: SocketAddr) -> Accept {
        let Some(role) = self.listeners.get(&listener).copied() else { return Accept::Refuse };
        let mut accepted = None;
        self.guard(|driver| {
            accepted = Some(driver.shard.accept(driver.now, role.kind, role.framing, peer.ip()));
        });
        match accepted {
            Some(Ok(accepted)) if accepted.shard.0 == self.index => {
                self.adopt(accepted.conn, role.kind, key);
                self.mark_dirty(accepted.conn);
                if role.kind == ConnKind::Server {
                    self.newcomers.push(key);
                }
                Accept::Keep
            }
            Some(Ok(accepted)) => {
                self.hand_offs.push((key, accepted.conn, accepted.shard, role.kind));
                Accept::HandOff
            }
            Some(Err(refusal)) => {
                tracing::debug!(%peer, reason = refusal.name(), "connection refused");
                Accept::Refuse
            }
            None => Accept::Refuse,
        }
    }

    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
        let Some(conn) = self.conn_of(key) else { return Flow::Continue };
        if self.tap.is_some() {
            self.tap_arrived(conn, bytes);
        }
        self.guard_conn(conn, |driver| {
            #[cfg(test)]
            driver.faults.on_data();
            driver.shard.handle_bytes(driver.now, conn, bytes);
        });
        // What this round has for others counts as if it were all for one of them.
        if self.others().any(|mailbox| mailbox.has_no_room_for(self.outgoing_bytes)) {
            self.congestions += 1;
            self.paused.push(key);
            return Flow::Pause;
        }
        Flow::Continue
    }

    fn writable(&mut self, key: ConnKey) {
        let Some(conn) = self.conn_of(key) else {
            self.farewells_ready.push(key);
            return;
        };
        if let Some(entry) = self.conns.get_mut(&conn) {
            entry.blocked = false;
        }
        self.mark_dirty(conn);
    }

    fn closed(&mut self, key: ConnKey, cause: CloseCause) {
        let Some(conn) = self.conn_of(key) else {
            self.farewells.remove(&key);
            return;
        };
        tracing::debug!(conn = conn.0, cause = cause.name(), "connection lost");
        let closed = match cause {
            CloseCause::EndOfStream => Closed::EndOfStream,
            CloseCause::TimedOut(TimedOut::Idle | TimedOut::Ping) => Closed::Idle,
            _ => Closed::Error,
        };
        self.lose(conn, closed);
    }

    fn woken(&mut self) {
        self.woken = true;
    }
}

/// Empties a vector of slices and frees it from its lifetime, keeping its memory: collecting a vector's own iterator
/// into the same layout happens in place.
fn recycle<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}

fn log_security(event: &SecurityEvent) {
    let conn = event.conn.map(|conn| conn.0);
    let addr = event.addr.map(|addr| addr.to_string());
    // A player identifier is no secret, but it is chosen by the peer: it goes out quoted and cut.
    let player: Option<String> = event.pit.as_ref().map(|pit| pit.chars().take(64).collect());
    tracing::warn!(target: "security", conn, addr, player, event = event.what.name(), "security event");
}
