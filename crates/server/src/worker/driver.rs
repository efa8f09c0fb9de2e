//! Driver between the loop's keys and the core's connections: it passes inputs, drains outputs and
//! contains panics.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use throng_gateway::{
    AuthTicket, CloseReason, Closed, ConnHandle, ConnKind, Due, Effect, Framing, SecurityEvent, Shard,
    ShardIndex, Verdict,
};
use throng_net::{Clock, ConnKey, EventLoop, ListenerKey};
use throng_stdx::Instant;

use super::memory::Returner;
use super::{Heartbeat, ListenerRole, OutputMemory, ShardLoads, WorkerParts};
use crate::auth::{Login, Logins};
use crate::capture::{Record, Tap};
use crate::mailbox::{Life, Mailbox, Post, Taken};
use crate::recorder::Recorder;
use crate::report::{ChannelReport, ConnReport, RoundTimes, ShardReport, Ticks};

/// After a panic while running timers: pause before the next try, so that one that repeats does not
/// eat the core.
const PANIC_PAUSE: Duration = Duration::from_millis(10);

/// So many entries of [`Driver::strangers`] are kept without a look at them.
const STRANGERS_MIN: usize = 1_024;

/// So many panics within the time after which one is forgotten, and the process is not ready.
const PANICS_MAX: usize = 3;
pub(super) const PANIC_MEMORY: Duration = Duration::from_secs(60);

/// The half of a worker that the event loop calls back into.
pub(super) struct Driver {
    pub(super) index: u16,
    pub(super) clock: Clock,
    pub(super) now: Instant,
    pub(super) shard: Shard,
    /// For the shards of further lives.
    seed: u64,
    pub(super) listeners: std::collections::HashMap<ListenerKey, ListenerRole>,
    pub(super) conns: HashMap<ConnHandle, Conn>,
    /// Which connection a key of the loop is, by its index: this is looked up for every read.
    pub(super) by_key: Vec<Option<(ConnKey, ConnHandle)>>,
    /// Closed by the core before their socket arrived.
    pub(super) closed_early: HashSet<ConnHandle>,
    pub(super) mailboxes: Arc<[Mailbox]>,
    /// Posts of this round with their destinations, in the order in which they must be handed over.
    pub(super) outgoing: VecDeque<(u16, Post)>,
    /// Bytes of `outgoing`.
    pub(super) outgoing_bytes: usize,
    /// Clients with a socket of their own that have not logged in, the oldest first, and some that
    /// have, or are gone. They give way to newcomers when descriptors run short.
    pub(super) strangers: VecDeque<(Instant, ConnHandle)>,
    /// Length of `strangers` at which those that are none are taken out.
    strangers_max: usize,
    /// Game servers of this shard, still to be given priority.
    pub(super) newcomers: Vec<ConnKey>,
    /// Accepted for other shards, still to be taken out of the loop.
    pub(super) hand_offs: Vec<(ConnKey, ConnHandle, ShardIndex, ConnKind)>,
    pub(super) dirty: Vec<ConnHandle>,
    /// Connections that the core has closed, to be carried out at the end of the round.
    pub(super) closing: Vec<Closing>,
    /// Closed connections that still take what was queued for them.
    pub(super) farewells: HashMap<ConnKey, Farewell>,
    pub(super) farewells_ready: Vec<ConnKey>,
    pub(super) verdicts: Vec<(AuthTicket, Verdict)>,
    /// Paused because another shard's mailbox is full.
    pub(super) paused: Vec<ConnKey>,
    pub(super) woken: bool,
    pub(super) output_memory: Arc<OutputMemory>,
    pub(super) returner: Returner,
    pub(super) loads: Arc<ShardLoads>,
    pub(super) logins: Arc<Logins>,
    pub(super) recorder: Recorder,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) rounds: RoundTimes,
    pub(super) ticks: Ticks,
    pub(super) panics: u64,
    /// Times of the latest panics, the newest last.
    recent_panics: VecDeque<Instant>,
    /// Lives of the world before this one.
    pub(super) life: Life,
    /// Something is broken that only a restart of the world makes whole.
    pub(super) broken: bool,
    pub(super) congestions: u64,
    /// Posts that the latest round found in the mailbox.
    pub(super) mailbox: Taken,
    pub(super) mailbox_peak_bytes: usize,
    /// No timers before this, after a panic in them.
    pub(super) timers_from: Instant,
    pub(super) stopping: Option<Instant>,
    /// Somebody looks at the messages of a connection.
    pub(super) tap: Option<Box<Tap>>,
    #[cfg(test)]
    pub(super) faults: crate::faults::Armed,
}

pub(super) struct Conn {
    pub(super) key: ConnKey,
    pub(super) kind: ConnKind,
    pub(super) bytes_out: u64,
    /// Waits for the loop to say that there is room.
    pub(super) blocked: bool,
    pub(super) dirty: bool,
}

/// A closure to carry out.
pub(super) struct Closing {
    pub(super) id: ConnHandle,
    /// Taken out of the table at once: the core may give the id to someone else within the same
    /// round. `None` when the socket is still on its way here.
    pub(super) conn: Option<Conn>,
    pub(super) reason: CloseReason,
    pub(super) flush: Vec<u8>,
}

/// The end of a connection that the core has forgotten already.
pub(super) struct Farewell {
    pub(super) reason: CloseReason,
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    pub(super) until: Instant,
}

impl Driver {
    /// Takes what is the driver's, and gives back the loop.
    pub(super) fn new(parts: WorkerParts) -> (EventLoop, Driver) {
        let driver = Driver {
            index: parts.index,
            clock: parts.clock,
            now: parts.clock.now(),
            shard: parts.shard,
            seed: parts.seed,
            listeners: parts.listeners,
            conns: HashMap::new(),
            by_key: Vec::new(),
            closed_early: HashSet::new(),
            mailboxes: parts.mailboxes,
            outgoing: VecDeque::new(),
            strangers: VecDeque::new(),
            strangers_max: STRANGERS_MIN,
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
            output_memory: parts.output_memory,
            returner: Returner::default(),
            loads: parts.loads,
            logins: parts.logins,
            recorder: parts.recorder,
            heartbeat: parts.heartbeat,
            rounds: RoundTimes::default(),
            ticks: Ticks::default(),
            panics: 0,
            recent_panics: VecDeque::new(),
            life: 0,
            broken: false,
            congestions: 0,
            mailbox: Taken::default(),
            mailbox_peak_bytes: 0,
            timers_from: Instant::ZERO,
            stopping: None,
            tap: None,
            #[cfg(test)]
            faults: crate::faults::Armed::default(),
        };
        (parts.event_loop, driver)
    }

    /// Instant at which the next round must begin if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let timers = self.shard.next_timeout().map(|at| at.max(self.timers_from));
        let writes = (!self.dirty.is_empty()).then_some(Instant::ZERO);
        let farewells = self.farewells.values().map(|farewell| farewell.until).min();
        [timers, writes, self.stopping, farewells, self.returner.deadline()].into_iter().flatten().min()
    }

    pub(super) fn run_due(&mut self) {
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

    pub(super) fn answer_logins(&mut self) {
        // An answer can cause the next question, hence the loop; each turn answers what is there.
        while let Some((ticket, verdict)) = self.verdicts.pop() {
            self.guard(|driver| driver.shard.handle_verdict(driver.now, ticket, verdict));
        }
    }

    pub(super) fn adopt(&mut self, conn: ConnHandle, kind: ConnKind, key: ConnKey) {
        let entry = Conn { key, kind, bytes_out: 0, blocked: false, dirty: false };
        self.conns.insert(conn, entry);
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, None);
        }
        self.by_key[key.index()] = Some((key, conn));
    }

    /// Notes a client that gives way as long as it has not logged in.
    pub(super) fn note_stranger(&mut self, conn: ConnHandle) {
        if self.strangers.len() >= self.strangers_max {
            let shard = &self.shard;
            self.strangers.retain(|(_, conn)| shard.is_stranger(*conn));
            self.strangers_max = STRANGERS_MIN.max(2 * self.strangers.len());
        }
        self.strangers.push_back((self.now, conn));
    }

    pub(super) fn forget(&mut self, conn: ConnHandle) -> Option<Conn> {
        if let Some(tap) = self.tap.take_if(|tap| tap.handle == conn) {
            tap.end("the connection was closed");
        }
        let entry = self.conns.remove(&conn)?;
        self.by_key[entry.key.index()] = None;
        Some(entry)
    }

    pub(super) fn conn_of(&self, key: ConnKey) -> Option<ConnHandle> {
        match self.by_key.get(key.index()) {
            Some(Some((known, conn))) if *known == key => Some(*conn),
            _ => None,
        }
    }

    fn close(&mut self, id: ConnHandle, reason: CloseReason, flush: Vec<u8>) {
        let conn = self.forget(id);
        self.closing.push(Closing { id, conn, reason, flush });
    }

    /// The transport lost a connection.
    pub(super) fn lose(&mut self, conn: ConnHandle, cause: Closed) {
        self.forget(conn);
        self.guard(|driver| driver.shard.handle_closed(driver.now, conn, cause));
    }

    pub(super) fn mark_dirty(&mut self, conn: ConnHandle) {
        if let Some(entry) = self.conns.get_mut(&conn)
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(conn);
        }
    }

    /// Gives the core one input and takes its outputs. A panic is counted and contained; `false`
    /// tells of one.
    pub(super) fn guard(&mut self, input: impl FnOnce(&mut Driver)) -> bool {
        if self.broken {
            // Input from here on belongs to a world that is about to end.
            return false;
        }
        let calm = catch_unwind(AssertUnwindSafe(|| input(self))).is_ok();
        if !calm {
            self.heal();
        }
        if self.broken {
            return false;
        }
        // Outputs can break on the state that a panic left behind.
        if catch_unwind(AssertUnwindSafe(|| self.drain())).is_err() {
            self.panicked();
            self.broken = true;
            return false;
        }
        calm
    }

    fn panicked(&mut self) {
        self.panics += 1;
        while self.recent_panics.front().is_some_and(|at| self.now.since(*at) >= PANIC_MEMORY) {
            self.recent_panics.pop_front();
        }
        self.recent_panics.push_back(self.now);
        let too_many = self.recent_panics.len() >= PANICS_MAX;
        if too_many {
            self.recent_panics.pop_front();
        }
        self.heartbeat.note_panic(self.now, too_many);
    }

    /// The core has panicked: it makes whole what it can; the worker restarts the world if that is
    /// not all.
    fn heal(&mut self) {
        self.panicked();
        let left = catch_unwind(AssertUnwindSafe(|| self.shard.heal()));
        match left {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                tracing::error!(shard = self.index, broken = ?left, "a panic broke what cannot be healed");
                self.broken = true;
            }
            Err(_) => {
                self.panicked();
                self.broken = true;
            }
        }
    }

    /// Begins another life of the world: everybody is closed, and nothing of the former life counts
    /// any more. The sockets of closed connections are the worker's affair, as always.
    pub(super) fn restart(&mut self, life: Life) {
        self.life = life;
        self.broken = false;
        let ids: Vec<ConnHandle> = self.conns.keys().copied().collect();
        for id in ids {
            self.close(id, CloseReason::Restarted, Vec::new());
        }
        self.shard = self.shard.restarted(u64::from(life).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.seed);
        self.closed_early.clear();
        self.strangers.clear();
        self.dirty.clear();
        self.verdicts.clear();
        self.timers_from = Instant::ZERO;
        let void = |post: &Post| matches!(post, Post::Mail { .. });
        self.outgoing.retain(|(_, post)| !void(post));
        self.outgoing_bytes = self.outgoing.iter().map(|(_, post)| post.bytes()).sum();
        if self.stopping.is_some() {
            self.guard(|driver| driver.shard.begin_shutdown(driver.now));
        }
    }

    /// As [`Driver::guard`], for an input that comes from one connection: a panic ends that
    /// connection.
    pub(super) fn guard_conn(&mut self, conn: ConnHandle, input: impl FnOnce(&mut Driver)) {
        if self.guard(input) || self.broken {
            return;
        }
        tracing::error!(conn = conn.0, "panic on a connection's input; closing the connection");
        self.guard(|driver| driver.shard.handle_closed(driver.now, conn, Closed::Error));
        // Usually not there any more: the core has asked to close it, or it never got that far.
        if self.conns.contains_key(&conn) {
            self.close(conn, CloseReason::Internal, Vec::new());
        }
    }

    /// Begins to record a connection's messages, in place of another's.
    pub(super) fn capture(&mut self, record: Arc<Record>) {
        self.tap = None;
        let Some(handle) = self.shard.handle_of(record.conn) else { return };
        let web_socket =
            self.shard.outbox(handle).is_some_and(|outbox| outbox.framing() == Framing::WebSocket);
        self.tap = Some(Box::new(Tap::new(handle, record, web_socket)));
    }

    pub(super) fn tap_arrived(&mut self, conn: ConnHandle, bytes: &[u8]) {
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
            let life = self.life;
            self.send(shard, Post::Mail { life, mail });
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
                if let Some(verdict) = self.logins.ask(self.life, ticket, login) {
                    self.verdicts.push((ticket, verdict));
                }
            }
            Effect::Recording { conn: _, name, bytes } => self.recorder.append(name, bytes),
            Effect::NoPosition { data_type } => tracing::warn!(
                data_type,
                "entities of this type have no position that can be read, so none of them changes its cell; \
                 `gateway.spatial.positions` names the paths"
            ),
            Effect::SecurityLog(event) => log_security(&event),
            // The catalogue of effects may grow; one that nobody carries out must not go unnoticed.
            other => tracing::error!(?other, "an effect of the core was ignored"),
        }
    }

    /// Has a post handed over at the end of the round.
    pub(super) fn send(&mut self, to: ShardIndex, post: Post) {
        self.outgoing_bytes += post.bytes();
        self.outgoing.push_back((to.0, post));
    }

    /// Hands mail over in the order in which the core gave it out, across receivers too: what one
    /// shard tells two others must not be overtaken by what these tell each other.
    pub(super) fn post_mail(&mut self) {
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
    pub(super) fn others(&self) -> impl Iterator<Item = &Mailbox> {
        let mine = usize::from(self.index);
        self.mailboxes.iter().enumerate().filter(move |(index, _)| *index != mine).map(|(_, mailbox)| mailbox)
    }

    pub(super) fn report(&self, event_loop: &EventLoop, lists: bool) -> ShardReport {
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

fn log_security(event: &SecurityEvent) {
    let conn = event.conn.map(|conn| conn.0);
    let addr = event.addr.map(|addr| addr.to_string());
    // A player identifier is no secret, but it is chosen by the peer: it goes out quoted and cut.
    let player: Option<String> = event.pit.as_ref().map(|pit| pit.chars().take(64).collect());
    tracing::warn!(target: "security", conn, addr, player, event = event.what.name(), "security event");
}
