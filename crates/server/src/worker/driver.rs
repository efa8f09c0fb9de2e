//! Driver between the loop's keys and the core's connections: it passes inputs, drains outputs and
//! contains panics.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use throng_gateway::{
    AcceptRefusal, Accepted, AuthTicket, CloseReason, Closed, ConnKind, Due, Effect, Framing, Moved,
    SecurityEvent, ShardIndex, Stats, Verdict,
};
use throng_net::{Clock, ConnKey, EventLoop, ListenerKey};
use throng_stdx::Instant;

use super::host::{Closing, Conn, Host, Hosts, Leaving, Peer, Slot};
use super::memory::Returner;
use super::turn::{Share, Turn};
use super::{Heartbeat, ListenerRole, OutputMemory, ShardLoads, WorkerParts};
use crate::auth::{Login, Logins};
use crate::capture::{Record, Tap};
use crate::desk::{Desk, PlayerLocation};
use crate::mailbox::{Mailbox, Post, Taken, giving};
use crate::recorder::Recorder;
use crate::report::{ChannelReport, ConnReport, RoundTimes, ShardReport, Ticks, WorldReport};
use crate::world::{World, WorldEpoch};
use crate::worlds::{WorldRequest, Worlds};

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
    pub(super) hosts: Hosts,
    pub(super) listeners: std::collections::HashMap<ListenerKey, ListenerRole>,
    /// Which connection a key of the loop is, by its index: this is looked up for every read.
    pub(super) by_key: Vec<Option<(ConnKey, Peer)>>,
    pub(super) mailboxes: Arc<[Mailbox]>,
    pub(super) outgoing: Outgoing,
    /// Clients with a socket of their own that have not logged in, the oldest first, and some that
    /// have, or are gone. They give way to newcomers when descriptors run short.
    pub(super) strangers: VecDeque<(Instant, Peer)>,
    /// Length of `strangers` at which those that are none are taken out.
    strangers_max: usize,
    /// Game servers of this worker, still to be given priority.
    pub(super) newcomers: Vec<ConnKey>,
    /// Accepted for shards on other workers, still to be taken out of the loop.
    pub(super) hand_offs: Vec<HandOff>,
    /// Left for other worlds, still to be taken out of the loop.
    pub(super) moves: Vec<Leaving>,
    pub(super) dirty: Vec<Peer>,
    /// Connections that a core has closed, to be carried out at the end of the round.
    pub(super) closing: Vec<Closing>,
    /// Closed connections that still take what was queued for them.
    pub(super) farewells: HashMap<ConnKey, Farewell>,
    pub(super) farewells_ready: Vec<ConnKey>,
    pub(super) verdicts: Vec<(Slot, AuthTicket, Verdict)>,
    /// Paused because another worker's mailbox is full.
    pub(super) paused: Vec<ConnKey>,
    pub(super) woken: bool,
    /// The world in the path of a WebSocket that is about to be accepted.
    pub(super) requested: Option<(ConnKey, Box<str>)>,
    pub(super) output_memory: Arc<OutputMemory>,
    pub(super) returner: Returner,
    pub(super) loads: Arc<ShardLoads>,
    pub(super) logins: Arc<Logins>,
    pub(super) worlds: Arc<Worlds>,
    pub(super) desk: Option<Arc<Desk>>,
    pub(super) recorder: Recorder,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) rounds: RoundTimes,
    pub(super) ticks: Ticks,
    pub(super) panics: u64,
    /// Times of the latest panics, the newest last.
    recent_panics: VecDeque<Instant>,
    /// A shard is [broken](Host::broken).
    pub(super) broken: bool,
    /// Counters of worlds that were closed.
    retired: Stats,
    /// Posts to worlds or lives of theirs that have ended.
    pub(super) void_posts: u64,
    pub(super) congestions: u64,
    /// Posts that the latest round found in the mailbox.
    pub(super) mailbox: Taken,
    pub(super) mailbox_peak_bytes: usize,
    pub(super) stopping: Option<Instant>,
    /// Somebody looks at the messages of a connection.
    pub(super) tap: Option<(Slot, Box<Tap>)>,
}

/// Posts of a round with their destinations, in the order in which they must be handed over.
#[derive(Default)]
pub(super) struct Outgoing {
    posts: VecDeque<(u16, Post)>,
    pub(super) bytes: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, worker: u16, post: Post) {
        self.bytes += post.bytes();
        self.posts.push_back((worker, post));
    }

    fn retain(&mut self, keeps: impl Fn(&Post) -> bool) {
        self.posts.retain(|(_, post)| keeps(post));
        self.bytes = self.posts.iter().map(|(_, post)| post.bytes()).sum();
    }
}

/// A connection that is to move to another worker.
pub(super) struct HandOff {
    pub(super) key: ConnKey,
    pub(super) peer: Peer,
    pub(super) shard: ShardIndex,
    pub(super) kind: ConnKind,
}

/// The end of a connection that the core has forgotten already.
pub(super) struct Farewell {
    pub(super) reason: CloseReason,
    pub(super) world: Option<Arc<str>>,
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    pub(super) until: Instant,
}

impl Driver {
    /// Takes what is the driver's, and gives back the loop.
    pub(super) fn new(parts: WorkerParts) -> (EventLoop, Driver) {
        let now = parts.clock.now();
        let mut hosts = Hosts::new(parts.main, now);
        parts.others.into_iter().for_each(|other| hosts.open(other, now));
        let driver = Driver {
            index: parts.index,
            clock: parts.clock,
            now,
            hosts,
            listeners: parts.listeners,
            by_key: Vec::new(),
            mailboxes: parts.mailboxes,
            outgoing: Outgoing::default(),
            strangers: VecDeque::new(),
            strangers_max: STRANGERS_MIN,
            newcomers: Vec::new(),
            hand_offs: Vec::new(),
            moves: Vec::new(),
            dirty: Vec::new(),
            closing: Vec::new(),
            farewells: HashMap::new(),
            farewells_ready: Vec::new(),
            verdicts: Vec::new(),
            paused: Vec::new(),
            woken: false,
            requested: None,
            output_memory: parts.output_memory,
            returner: Returner::default(),
            loads: parts.loads,
            logins: parts.logins,
            worlds: parts.worlds,
            desk: parts.desk,
            recorder: parts.recorder,
            heartbeat: parts.heartbeat,
            rounds: RoundTimes::default(),
            ticks: Ticks::default(),
            panics: 0,
            recent_panics: VecDeque::new(),
            broken: false,
            retired: Stats::default(),
            void_posts: 0,
            congestions: 0,
            mailbox: Taken::default(),
            mailbox_peak_bytes: 0,
            stopping: None,
            tap: None,
        };
        (parts.event_loop, driver)
    }

    /// Instant at which the next round must begin if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let timers = self.hosts.iter().flat_map(|(_, host)| [host.next_timeout(), host.closes_at()]);
        let timers = timers.flatten().min();
        let put_off = self.hosts.iter().any(|(_, host)| host.turn.is_waiting());
        let put_off = put_off.then_some(Instant::ZERO);
        let writes = (!self.dirty.is_empty()).then_some(Instant::ZERO);
        let farewells = self.farewells.values().map(|farewell| farewell.until).min();
        [timers, writes, put_off, self.stopping, farewells, self.returner.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn run_due(&mut self) {
        self.begin_turns(Turn::begin_part);
        for slot in self.hosts.slots() {
            let due = self.hosts.get(slot).and_then(Host::next_timeout).is_some_and(|at| at <= self.now);
            if due
                && !self.run_due_of(slot)
                && let Some(host) = self.hosts.get_mut(slot)
            {
                host.timers_from = self.now + PANIC_PAUSE;
            }
        }
    }

    /// Runs what is due, and measures the channels' ticks.
    fn run_due_of(&mut self, slot: Slot) -> bool {
        let (clock, mut ticks) = (self.clock, std::mem::take(&mut self.ticks));
        let takes_turns = self.hosts.are_several();
        let calm = self.guard(slot, |host, now| {
            #[cfg(test)]
            host.faults.on_timeout();
            let mut began = clock.now();
            while !(takes_turns && host.turn.is_over())
                && let Some(due) = host.shard.handle_due(now)
            {
                let ended = clock.now();
                host.turn.charge(ended.since(began));
                if let Due::Tick(channel_type) = due {
                    ticks.record(channel_type, ended.since(began).as_nanos() as u64);
                }
                began = ended;
            }
        });
        self.ticks = ticks;
        calm
    }

    /// A part of the round begins: every world has its turn in it.
    pub(super) fn begin_turns(&mut self, begin: fn(&mut Turn)) {
        for slot in self.hosts.slots() {
            if let Some(host) = self.hosts.get_mut(slot) {
                begin(&mut host.turn);
            }
        }
    }

    /// Begin of a step that counts as part of a world's turn; `None` where there are no turns.
    pub(super) fn step_begins(&self) -> Option<Instant> {
        self.hosts.are_several().then(|| self.clock.now())
    }

    pub(super) fn step_ends(&mut self, slot: Slot, began: Option<Instant>) {
        if let Some(began) = began
            && let Some(host) = self.hosts.get_mut(slot)
        {
            host.turn.charge(self.clock.now().since(began));
        }
    }

    pub(super) fn answer_logins(&mut self) {
        // An answer can cause the next question, hence the loop; each turn answers what is there.
        while let Some((slot, ticket, verdict)) = self.verdicts.pop() {
            self.guard(slot, |host, now| host.shard.handle_verdict(now, ticket, verdict));
        }
    }

    pub(super) fn adopt(&mut self, peer: Peer, kind: ConnKind, key: ConnKey) {
        let Some(host) = self.hosts.get_mut(peer.host) else { return };
        let share = Share::default();
        let conn = Conn { key, kind, bytes_out: 0, blocked: false, admitted: false, dirty: false, share };
        // The core may have closed it in this round, before its socket came.
        if let Some(closing) =
            self.closing.iter_mut().find(|closing| closing.peer == peer && closing.conn.is_none())
        {
            closing.conn = Some(conn);
            return;
        }
        // So may it have sent it back to the world that it came from.
        if let Some(leaving) =
            self.moves.iter_mut().find(|leaving| leaving.peer == peer && leaving.key.is_none())
        {
            leaving.key = Some(key);
            return;
        }
        host.conns.insert(peer.conn, conn);
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, None);
        }
        self.by_key[key.index()] = Some((key, peer));
    }

    pub(super) fn is_stranger(&self, peer: Peer) -> bool {
        self.hosts.get(peer.host).is_some_and(|host| host.shard.is_stranger(peer.conn))
    }

    /// Notes a client that gives way as long as it has not logged in.
    pub(super) fn note_stranger(&mut self, peer: Peer) {
        if self.strangers.len() >= self.strangers_max {
            let mut strangers = std::mem::take(&mut self.strangers);
            strangers.retain(|(_, peer)| self.is_stranger(*peer));
            self.strangers_max = STRANGERS_MIN.max(2 * strangers.len());
            self.strangers = strangers;
        }
        self.strangers.push_back((self.now, peer));
    }

    pub(super) fn forget(&mut self, peer: Peer) -> Option<Conn> {
        if self.tap_of(peer).is_some()
            && let Some((_, tap)) = self.tap.take()
        {
            tap.end("the connection was closed");
        }
        let host = self.hosts.get_mut(peer.host)?;
        let entry = host.conns.remove(&peer.conn)?;
        host.turn.forget(entry.share);
        self.by_key[entry.key.index()] = None;
        Some(entry)
    }

    pub(super) fn conn_of(&self, key: ConnKey) -> Option<Peer> {
        match self.by_key.get(key.index()) {
            Some(Some((known, peer))) if *known == key => Some(*peer),
            _ => None,
        }
    }

    pub(super) fn close(&mut self, peer: Peer, reason: CloseReason, flush: Vec<u8>) {
        let host = self.hosts.get(peer.host).filter(|_| reason == CloseReason::WorldMoving);
        let world = host.map(|host| Arc::clone(&host.name));
        self.close_naming(peer, reason, world, flush);
    }

    fn close_naming(&mut self, peer: Peer, reason: CloseReason, world: Option<Arc<str>>, flush: Vec<u8>) {
        let conn = self.forget(peer);
        // A world that stands still says nothing, not to those who leave it either.
        let is_silent = self.hosts.get(peer.host).is_some_and(Host::stands_still);
        let flush = if is_silent { Vec::new() } else { flush };
        self.closing.push(Closing { peer, conn, reason, world, flush });
    }

    /// The transport lost a connection.
    pub(super) fn lose(&mut self, peer: Peer, cause: Closed) {
        self.forget(peer);
        // Nothing waits for its socket any more.
        let moves = self.moves.len();
        self.moves.retain(|leaving| leaving.peer != peer || leaving.key.is_some());
        self.worlds.connections.replace(moves - self.moves.len(), 0);
        self.closing.retain(|closing| closing.peer != peer || closing.conn.is_some());
        self.guard(peer.host, |host, now| host.shard.handle_closed(now, peer.conn, cause));
    }

    pub(super) fn mark_dirty(&mut self, peer: Peer) {
        let Some(host) = self.hosts.get_mut(peer.host) else { return };
        if let Some(entry) = host.conns.get_mut(&peer.conn)
            && !entry.dirty
        {
            entry.dirty = true;
            self.dirty.push(peer);
        }
    }

    /// Gives a core one input and takes its outputs. A panic is counted and contained; `false`
    /// tells of one, or of a world that has ended.
    pub(super) fn guard(&mut self, slot: Slot, input: impl FnOnce(&mut Host, Instant)) -> bool {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(slot) else { return false };
        if host.broken {
            // Input from here on belongs to a world that is about to end.
            return false;
        }
        let now = host.time(now);
        let calm = catch_unwind(AssertUnwindSafe(|| input(host, now))).is_ok();
        if !calm && !self.heal(slot) {
            return false;
        }
        // Outputs can break on the state that a panic left behind.
        if catch_unwind(AssertUnwindSafe(|| self.drain(slot))).is_err() {
            self.panicked();
            self.give_up(slot);
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

    /// A core has panicked: it makes whole what it can; the worker restarts the world if that is
    /// not all.
    fn heal(&mut self, slot: Slot) -> bool {
        self.panicked();
        let Some(host) = self.hosts.get_mut(slot) else { return false };
        let world = host.epoch.world.0;
        match catch_unwind(AssertUnwindSafe(|| host.shard.heal())) {
            Ok(left) if left.is_empty() => return true,
            Ok(left) => {
                tracing::error!(shard = self.index, world, broken = ?left, "a panic broke what cannot be healed");
            }
            Err(_) => self.panicked(),
        }
        self.give_up(slot);
        false
    }

    fn give_up(&mut self, slot: Slot) {
        if let Some(host) = self.hosts.get_mut(slot) {
            (host.broken, self.broken) = (true, true);
        }
    }

    /// Begins another life of a world: everybody is closed, and nothing of the former life counts
    /// any more. The sockets of closed connections are the worker's affair, as always.
    pub(super) fn restart(&mut self, slot: Slot, to: WorldEpoch) {
        self.empty(slot, CloseReason::Restarted);
        self.tell_desk_of_end(slot);
        let stopping = self.stopping.is_some();
        if let Some(host) = self.hosts.get_mut(slot) {
            host.begin(to);
            host.count(self.now, &self.worlds.connections);
        }
        if stopping {
            self.guard(slot, |host, now| host.shard.begin_shutdown(now));
        }
    }

    /// Closes all connections of a shard, and forgets what it has said and is to hear.
    pub(super) fn empty(&mut self, slot: Slot, reason: CloseReason) {
        let Some(host) = self.hosts.get(slot) else { return };
        let world = host.epoch.world;
        let conns: Vec<_> = host.conns.keys().copied().collect();
        for conn in conns {
            self.close(Peer { host: slot, conn }, reason, Vec::new());
        }
        self.strangers.retain(|(_, peer)| peer.host != slot);
        self.dirty.retain(|peer| peer.host != slot);
        self.verdicts.retain(|(at, ..)| *at != slot);
        self.outgoing.retain(|post| !matches!(post, Post::Mail { to, .. } if to.world == world));
    }

    /// The core has closed a connection before its socket came here.
    pub(super) fn was_closed_early(&mut self, peer: Peer) -> bool {
        self.hosts.get_mut(peer.host).is_some_and(|host| host.closed_early.remove(&peer.conn))
    }

    pub(super) fn reconfigure(&mut self, config: &throng_gateway::Config) {
        for slot in self.hosts.slots() {
            if let Some(host) = self.hosts.get_mut(slot).filter(|host| !host.has_class) {
                host.shard.reconfigure(config);
            }
        }
    }

    /// A connection comes from another world.
    pub(super) fn enter(&mut self, slot: Slot, moved: Moved) -> Result<Accepted, AcceptRefusal> {
        let mut entered = Err(AcceptRefusal::WorldNotOpen);
        // Its place in the count of the process comes with it.
        if let Some(host) = self.hosts.get_mut(slot) {
            host.counted += 1;
        }
        self.guard(slot, |host, now| entered = host.shard.enter(now, moved));
        entered
    }

    /// Says goodbye to everyone in a world, and forgets it.
    pub(super) fn close_world(&mut self, world: World) {
        let Some(slot) = self.hosts.slot_of(world).filter(|slot| *slot != Slot::MAIN) else { return };
        self.guard(slot, |host, now| host.shard.close_world(now));
        self.empty(slot, CloseReason::WorldClosed);
        self.tell_desk_of_end(slot);
        if let Some(host) = self.hosts.close(slot) {
            self.worlds.connections.replace(host.counted, 0);
            self.retire(&host);
        }
    }

    /// The matcher hears that players are gone with their world.
    pub(super) fn tell_desk_of_end(&self, slot: Slot) {
        if let (Some(desk), Some(host)) = (&self.desk, self.hosts.get(slot)) {
            desk.world_ended(host.epoch);
        }
    }

    /// Keeps the counters of a world that has ended.
    pub(super) fn retire(&mut self, host: &Host) {
        self.retired.retire(host.shard.stats());
    }

    /// Closes worlds that have been without connections for their idle time.
    pub(super) fn close_idle(&mut self) {
        for slot in self.hosts.slots() {
            let Some(host) = self.hosts.get_mut(slot) else { continue };
            if host.closes_at().is_none_or(|at| at > self.now) {
                continue;
            }
            let (world, workers) = (host.epoch.world, Arc::clone(&host.workers));
            if self.worlds.close_idle(&host.name, world, &mut host.entrants_seen) {
                tracing::info!(world = &*host.name, "a world without connections is closed");
                for worker in workers.iter().filter(|worker| **worker != self.index) {
                    self.mailboxes[usize::from(*worker)].post(Post::Close(world));
                }
                self.close_world(world);
            } else {
                host.stay(self.now);
            }
        }
    }

    /// As [`Driver::guard`], for an input that comes from one connection: a panic ends that
    /// connection.
    pub(super) fn guard_conn(&mut self, peer: Peer, input: impl FnOnce(&mut Host, Instant)) {
        if self.guard(peer.host, input) || self.hosts.get(peer.host).is_none_or(|host| host.broken) {
            return;
        }
        tracing::error!(conn = peer.conn.0, "panic on a connection's input; closing the connection");
        self.guard(peer.host, |host, now| host.shard.handle_closed(now, peer.conn, Closed::Error));
        // Usually not there any more: the core has asked to close it, or it never got that far.
        if self.hosts.get(peer.host).is_some_and(|host| host.conns.contains_key(&peer.conn)) {
            self.close(peer, CloseReason::Internal, Vec::new());
        }
    }

    /// Begins to record a connection's messages, in place of another's.
    pub(super) fn capture(&mut self, world: World, record: Arc<Record>) {
        self.tap = None;
        let Some(slot) = self.hosts.slot_of(world) else { return };
        let Some(host) = self.hosts.get_mut(slot) else { return };
        let Some(handle) = host.shard.handle_of(record.conn) else { return };
        let web_socket =
            host.shard.outbox(handle).is_some_and(|outbox| outbox.framing() == Framing::WebSocket);
        self.tap = Some((slot, Box::new(Tap::new(handle, record, web_socket))));
    }

    /// The capture of a connection, if it is captured.
    pub(super) fn tap_of(&mut self, peer: Peer) -> Option<&mut Tap> {
        let (slot, tap) = self.tap.as_mut()?;
        (*slot == peer.host && tap.handle == peer.conn).then_some(&mut **tap)
    }

    pub(super) fn tap_arrived(&mut self, peer: Peer, bytes: &[u8]) {
        let now = self.now;
        if self.tap.as_ref().is_some_and(|(_, tap)| tap.is_over(now)) {
            self.tap = None;
        } else if self.tap_of(peer).is_some() {
            let host = self.hosts.get(peer.host);
            let at_border = host.is_some_and(|host| host.shard.reads_at_border(peer.conn) == Some(true));
            if let Some(tap) = self.tap_of(peer) {
                tap.arrived(now, bytes, at_border);
            }
        }
    }

    /// Takes every output of a core.
    fn drain(&mut self, slot: Slot) {
        let Some(host) = self.hosts.get_mut(slot) else { return };
        while let Some((shard, mail)) = host.shard.poll_mail() {
            self.outgoing.push(host.worker_of(shard), Post::Mail { to: host.epoch, mail });
        }
        while let Some(effect) = self.hosts.get_mut(slot).and_then(|host| host.shard.poll_effect()) {
            self.carry_out(slot, effect);
        }
        let Some(host) = self.hosts.get_mut(slot) else { return };
        while let Some(conn) = host.shard.poll_writable() {
            if let Some(entry) = host.conns.get_mut(&conn)
                && !entry.dirty
            {
                entry.dirty = true;
                self.dirty.push(Peer { host: slot, conn });
            }
        }
        host.count(self.now, &self.worlds.connections);
    }

    fn carry_out(&mut self, slot: Slot, effect: Effect) {
        match effect {
            Effect::Close { conn, reason, world: Some(world), flush } => {
                self.close_naming(Peer { host: slot, conn }, reason, Some(world.into()), flush);
            }
            Effect::Close { conn, reason, flush, .. } => self.close(Peer { host: slot, conn }, reason, flush),
            Effect::Authenticate { ticket, conn, kind, addr, pit, lt, asked } => {
                let login = Login { conn: conn.0, kind, addr, player: pit, token: lt };
                let Some(to) = self.hosts.get(slot).map(|host| host.epoch) else { return };
                if let Some(verdict) = self.logins.ask(self.index, to, ticket, login, asked, self.now) {
                    self.verdicts.push((slot, ticket, verdict));
                }
            }
            Effect::ChooseWorld { ticket, addr, asked } => {
                let Some(here) = self.hosts.get(slot).map(|host| host.epoch.world) else { return };
                let asked = WorldRequest { world: &asked.world, addr, now: self.now };
                let give = giving(&self.mailboxes);
                let verdict = self.worlds.settle(here, Verdict::Success.into(), Some(asked), give);
                self.verdicts.push((slot, ticket, verdict));
            }
            Effect::FindWorld { ticket, world, asked } => {
                let Some(to) = self.hosts.get(slot).map(|host| host.epoch) else { return };
                if let Some(verdict) = self.logins.find_world(self.index, to, ticket, world, asked) {
                    self.verdicts.push((slot, ticket, verdict));
                }
            }
            Effect::Move { conn } => {
                let peer = Peer { host: slot, conn };
                match self.hosts.get_mut(slot).and_then(|host| host.shard.take_moved(conn)) {
                    Some(moved) => {
                        let key = self.forget(peer).map(|entry| entry.key);
                        // Counted on its way too, until the world that it enters counts it.
                        self.worlds.connections.add();
                        self.moves.push(Leaving { peer, key, moved });
                    }
                    None => self.close(peer, CloseReason::Internal, Vec::new()),
                }
            }
            Effect::Matchmake { conn, player, what } => {
                let Some(to) = self.hosts.get(slot).map(|host| host.epoch) else { return };
                let at = PlayerLocation { worker: self.index, to, conn };
                if let Some((stub, refused)) = self.desk.as_ref().and_then(|desk| desk.take(at, player, what))
                {
                    at.tell(&self.mailboxes, stub, &refused);
                }
            }
            Effect::Recording { conn: _, name, bytes } => {
                // Connection ids are those of a world.
                let world = self.hosts.get(slot).filter(|_| slot != Slot::MAIN).map(|host| &host.name);
                let name = world.map_or_else(|| name.clone(), |world| format!("{world}-{name}"));
                self.recorder.append(name, bytes);
            }
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

    /// Hands mail over in the order in which the cores gave it out, across receivers too: what one
    /// shard tells two others must not be overtaken by what these tell each other.
    pub(super) fn post_mail(&mut self) {
        self.outgoing.bytes = 0;
        let mut run = VecDeque::new();
        while let Some((to, post)) = self.outgoing.posts.pop_front() {
            run.push_back(post);
            if self.outgoing.posts.front().is_none_or(|(next, _)| *next != to) {
                self.mailboxes[usize::from(to)].post_all(&mut run);
            }
        }
    }

    /// The mailboxes of the other workers.
    pub(super) fn others(&self) -> impl Iterator<Item = &Mailbox> {
        let mine = usize::from(self.index);
        self.mailboxes.iter().enumerate().filter(move |(index, _)| *index != mine).map(|(_, mailbox)| mailbox)
    }

    pub(super) fn report(&self, event_loop: &EventLoop, lists: bool) -> ShardReport {
        ShardReport {
            retired: self.retired.clone(),
            worlds: self.hosts.iter().map(|(_, host)| self.world_report(host, lists)).collect(),
            loop_stats: *event_loop.stats(),
            enet: event_loop.enet_figures(),
            rounds: self.rounds.clone(),
            ticks: self.ticks.clone(),
            panics: self.panics,
            congestions: self.congestions,
            void_posts: self.void_posts,
            mailbox: self.mailbox,
            mailbox_peak_bytes: self.mailbox_peak_bytes,
            recordings_dropped: self.recorder.dropped(),
        }
    }

    fn world_report(&self, host: &Host, lists: bool) -> WorldReport {
        let mut connections = Vec::new();
        let mut channels = Vec::new();
        if lists {
            connections.extend(host.shard.connections().map(|view| {
                let bytes_out = host.conns.get(&view.handle).map_or(0, |conn| conn.bytes_out);
                ConnReport {
                    shard: self.index,
                    bytes_out,
                    open: host.time(self.now).since(view.accepted),
                    view,
                }
            }));
            channels.extend(host.shard.channels().map(|view| ChannelReport { shard: self.index, view }));
        }
        let world = host.epoch.world;
        WorldReport {
            world,
            stats: host.shard.stats().clone(),
            view: host.shard.world(),
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
