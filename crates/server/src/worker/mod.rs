//! One shard thread: an event loop, shards of worlds, and the mailbox between them and the rest of
//! the process.
//!
//! A round is: wait; take in what happened on the sockets; take in the mailbox; run what is due;
//! write to every connection that gained output, once; close clients if the output of all takes too
//! much memory; carry out closures; post the mail.
//! Everything within a round has one time.

#[cfg(test)]
mod cost;
mod driver;
mod events;
mod host;
mod load;
mod memory;
mod output;
mod standstill;
mod turn;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_gateway::{AcceptRefusal, Closed, ConnKind, Framing, Moved, SharedFrame};
use throng_net::{Clock, CloseMode, ConnKey, DetachedConn, EventLoop, ListenerKey, SharedFile};
use throng_stdx::Instant;

use self::driver::{Driver, HandOff, PANIC_MEMORY};
use self::host::{Leaving, Peer, Slot};
pub(crate) use self::load::ShardLoads;
pub(crate) use self::memory::OutputMemory;
pub use self::memory::set_return_memory;
use crate::auth::Logins;
use crate::desk::Desk;
use crate::mailbox::{Mailbox, Post};
use crate::pace::Pace;
use crate::recorder::Recorder;
use crate::world::{HostParts, World, WorldEpoch};
use crate::worlds::Worlds;

/// Rounds of writing within one round of the loop. Writing makes room, room makes conflated
/// channels resume, which is more to write; two passes settle that, and what is left over has its
/// turn in the next round.
const WRITE_PASSES: usize = 2;

/// Shortest time between rounds that game servers ask for, within what [`Pace`] puts off.
const URGENT_INTERVAL: Duration = Duration::from_micros(500);

/// Kind of a listener's connections.
#[derive(Clone, Debug)]
pub(crate) struct ListenerRole {
    pub(crate) kind: ConnKind,
    pub(crate) framing: Framing,
    /// Its connections may come from other addresses than they say, until they have proven theirs.
    pub(crate) unproven: bool,
    /// Its connections are clients that hold a descriptor each.
    pub(crate) may_give_way: bool,
    /// The world that it leads to; `None` for the main one.
    pub(crate) world: Option<Arc<str>>,
    /// Its connections log in in the main world before they enter that one.
    pub(crate) waits: bool,
}

/// Parts of a worker besides its loop.
pub(crate) struct WorkerParts {
    pub(crate) index: u16,
    pub(crate) clock: Clock,
    pub(crate) event_loop: EventLoop,
    /// The shard of the world that every worker has one of.
    pub(crate) main: HostParts,
    /// Shards of further worlds.
    pub(crate) others: Vec<HostParts>,
    pub(crate) listeners: std::collections::HashMap<ListenerKey, ListenerRole>,
    /// All mailboxes by worker, the own one included.
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) output_memory: Arc<OutputMemory>,
    pub(crate) loads: Arc<ShardLoads>,
    pub(crate) logins: Arc<Logins>,
    pub(crate) worlds: Arc<Worlds>,
    /// Of a process whose players find each other through it.
    pub(crate) desk: Option<Arc<Desk>>,
    pub(crate) recorder: Recorder,
    pub(crate) heartbeat: Arc<Heartbeat>,
    /// Time to say goodbye to everyone.
    pub(crate) shutdown_timeout: Duration,
    /// Shortest average time between rounds, see [`Pace`].
    pub(crate) round_interval: Duration,
}

/// Heartbeat of a worker: true while it is in a round, with its begin; read by the health check.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    /// Nanoseconds since the start of the clock plus one; 0 while waiting.
    round_began_ns: AtomicU64,
    /// Time of the core's last panic, in nanoseconds plus one, if there were several panics in a
    /// short time.
    unwell_ns: AtomicU64,
}

impl Heartbeat {
    /// Duration of the present round; `None` while the worker waits for events.
    pub(crate) fn busy_for(&self, now: Instant) -> Option<Duration> {
        let began = self.round_began_ns.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.since(Instant::from_nanos(began)))
    }

    /// The core has panicked several times, and the last time not long ago.
    pub(crate) fn is_unwell(&self, now: Instant) -> bool {
        let last = self.unwell_ns.load(Ordering::Relaxed).checked_sub(1);
        last.is_some_and(|last| now.since(Instant::from_nanos(last)) < PANIC_MEMORY)
    }

    fn note_panic(&self, now: Instant, too_many: bool) {
        if too_many || self.is_unwell(now) {
            self.unwell_ns.store(now.as_nanos() + 1, Ordering::Relaxed);
        }
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
    /// Frames of the present pass that several connections get, and their bytes in the kernel, the
    /// latest last. Without a file where making one failed.
    shared: VecDeque<(SharedFrame, Option<SharedFile>)>,
    pace: Pace,
    looks: load::Looks,
    shutdown_timeout: Duration,
}

impl Worker {
    pub(crate) fn new(parts: WorkerParts) -> Worker {
        let (pace, shutdown_timeout) = (Pace::new(parts.round_interval), parts.shutdown_timeout);
        let (event_loop, driver) = Driver::new(parts);
        let (slices, shared, looks) = (Vec::new(), VecDeque::new(), load::Looks::default());
        Worker { event_loop, driver, slices, shared, pace, looks, shutdown_timeout }
    }

    /// As [`run`](Self::run). A panic outside of the core leaves sockets and tables in no known
    /// state, for which there is no other cure than another process.
    pub(crate) fn run_or_abort(self) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run())).is_err() {
            tracing::error!("a panic outside of the core; stopping the process");
            std::process::abort();
        }
    }

    /// Runs until the shutdown is complete.
    pub(crate) fn run(mut self) {
        let mut posts = VecDeque::new();
        loop {
            let (clock, deadline) = (self.driver.clock, self.driver.deadline());
            if let Err(error) = self.event_loop.poll(&clock, deadline, &mut self.driver) {
                // The loop cannot wait any more: without it this shard is dead, and the process
                // with it.
                tracing::error!(shard = self.driver.index, %error, "the event loop failed; stopping the process");
                std::process::abort();
            }
            let now = self.round(&mut posts);
            self.pace.count(self.driver.now);
            if !self.event_loop.is_behind()
                && let Some(wait) = self.pace.wait(now, self.driver.deadline())
            {
                self.pause(now + wait, &mut posts);
            }
            if let Some(until) = self.driver.stopping
                && (self.event_loop.conn_count() == 0 || now >= until)
            {
                return;
            }
        }
    }

    /// Lets events gather. What a game server says is handled at once: a handover in it should not
    /// wait, and game servers are few. When the pause is nearly over by then, all that has gathered
    /// is handled along with it.
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
            if !rest.is_zero() && !self.event_loop.has_urgent_backlog() {
                std::thread::sleep(rest);
            }
            if until.since(clock.now()) <= self.pace.interval() / 6 {
                return;
            }
            self.event_loop.serve_urgent(&clock, &mut self.driver);
            self.round(posts);
        }
    }

    /// Everything that a batch of events leads to. Returns the time afterwards.
    fn round(&mut self, posts: &mut VecDeque<Post>) -> Instant {
        self.work(posts);
        self.driver.count_players();
        let now = self.driver.clock.now();
        let busy = now.since(self.driver.now);
        self.driver.rounds.record(busy.as_nanos() as u64);
        self.note_load();
        self.driver.heartbeat.end();
        now
    }

    /// Begins a life of a world that has begun on another worker. `None` if the world has ended, or
    /// has begun yet another life.
    fn follow(&mut self, to: WorldEpoch) -> Option<Slot> {
        let slot = self.driver.hosts.slot_of(to.world)?;
        let now = self.driver.hosts.get(slot)?.epoch.life;
        if to.life > now {
            let (shard, world, life) = (self.driver.index, to.world.0, to.life);
            tracing::error!(shard, world, life, "the world restarts empty after a panic");
            // Sockets on their way to shards of the former life would belong to nobody.
            for HandOff { key, .. } in self.driver.hand_offs.extract_if(.., |each| each.peer.host == slot) {
                self.event_loop.close_with(key, throng_gateway::close_code::RESTARTED, "restarted");
            }
            self.driver.restart(slot, to);
        }
        (to.life >= now).then_some(slot)
    }

    /// Restarts worlds on every worker if something broke that cannot be healed.
    fn restart_if_broken(&mut self) {
        if !std::mem::take(&mut self.driver.broken) {
            return;
        }
        let broken = self.driver.hosts.iter().filter(|(_, host)| host.broken);
        let broken: Vec<_> = broken.map(|(_, host)| (host.epoch, Arc::clone(&host.workers))).collect();
        for (epoch, workers) in broken {
            let to = WorldEpoch { life: epoch.life + 1, ..epoch };
            for worker in workers.iter().filter(|worker| **worker != self.driver.index) {
                self.driver.mailboxes[usize::from(*worker)].post(Post::Restart { to });
            }
            self.follow(to);
        }
    }

    fn work(&mut self, posts: &mut VecDeque<Post>) {
        self.restart_if_broken();
        for key in std::mem::take(&mut self.driver.newcomers) {
            self.prioritise(key);
        }
        self.hand_off();
        if std::mem::take(&mut self.driver.woken) {
            self.take_posts(posts);
        }
        // After a pause everybody is heard before anybody's time is up.
        if !self.event_loop.is_behind() {
            self.driver.run_due();
        }
        self.driver.close_idle();
        self.driver.answer_logins();
        self.driver.begin_turns(turn::Turn::begin_part);
        for _ in 0..WRITE_PASSES {
            self.write_dirty();
        }
        self.restart_if_broken();
        self.shed_output();
        self.carry_out_closures();
        self.say_goodbyes();
        self.move_away();
        self.driver.post_mail();
        self.resume_paused();
    }

    /// Moves sockets to the shards that own their connections, behind the mail that announced them.
    fn hand_off(&mut self) {
        for HandOff { key, peer, shard, kind } in std::mem::take(&mut self.driver.hand_offs) {
            let Some(host) = self.driver.hosts.get(peer.host) else {
                self.event_loop.close(key, CloseMode::Now);
                continue;
            };
            let (to, conn) = (host.epoch, peer.conn);
            let post = match self.event_loop.detach(key) {
                Some(socket) => Post::Socket { to, conn, kind, socket: Box::new(socket) },
                None => {
                    self.event_loop.close(key, CloseMode::Now);
                    Post::SocketLost { to, conn }
                }
            };
            self.driver.outgoing.push(host.worker_of(shard), post);
        }
    }

    /// Takes sockets to the worlds that their connections have left for.
    fn move_away(&mut self) {
        for Leaving { peer, key, moved } in std::mem::take(&mut self.driver.moves) {
            let Some(key) = key else {
                // Its socket is closed when it comes.
                self.driver.worlds.connections.replace(1, 0);
                if let Some(host) = self.driver.hosts.get_mut(peer.host) {
                    host.closed_early.insert(peer.conn);
                }
                continue;
            };
            let world = World(moved.world());
            let Some(to) = self.driver.worlds.by_number(world) else {
                self.driver.worlds.connections.replace(1, 0);
                self.refuse(key, AcceptRefusal::WorldNotOpen);
                continue;
            };
            match self.event_loop.detach(key) {
                Some(socket) => {
                    let (moved, socket) = (Box::new(moved), Box::new(socket));
                    self.driver.outgoing.push(to.worker, Post::Arrive { world, moved, socket });
                }
                None => {
                    self.driver.worlds.connections.replace(1, 0);
                    self.event_loop.close(key, CloseMode::Now);
                }
            }
        }
    }

    /// A connection comes from another world.
    fn arrive(&mut self, world: World, moved: Moved, socket: DetachedConn) {
        let kind = moved.kind();
        let slot = self.driver.hosts.slot_of(world);
        let entered = match slot {
            Some(slot) => self.driver.enter(slot, moved),
            None => {
                self.driver.worlds.connections.replace(1, 0);
                Err(AcceptRefusal::WorldNotOpen)
            }
        };
        match (slot, entered) {
            (Some(host), Ok(accepted)) => {
                let peer = Peer { host, conn: accepted.conn };
                let may_give_way = kind == ConnKind::Client && socket.is_stream();
                self.attach(peer, kind, socket);
                if may_give_way && self.driver.is_stranger(peer) {
                    self.driver.note_stranger(peer);
                }
            }
            (_, Err(refusal)) => {
                if let Ok(key) = self.event_loop.attach(socket) {
                    self.refuse(key, refusal);
                }
            }
            (None, Ok(_)) => {}
        }
    }

    fn refuse(&mut self, key: ConnKey, refusal: AcceptRefusal) {
        tracing::debug!(reason = refusal.name(), "connection refused");
        self.event_loop.close_with(key, refusal.close_code(), refusal.name());
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
            self.take_post(post);
        }
    }

    fn take_post(&mut self, post: Post) {
        let mut at = None;
        if let Post::Mail { to, .. }
        | Post::Socket { to, .. }
        | Post::SocketLost { to, .. }
        | Post::TellPlayer { to, .. }
        | Post::Verdict { to, .. } = &post
        {
            // Mail of a new life may come before the order to begin it.
            at = self.follow(*to);
            if at.is_none() {
                self.driver.void_posts += 1;
                return;
            }
        }
        let host = at.unwrap_or(Slot::MAIN);
        match post {
            Post::Mail { mail, .. } => {
                self.driver.guard(host, |host, now| host.shard.handle_mail(now, mail));
            }
            Post::Socket { conn, kind, socket, .. } => self.attach(Peer { host, conn }, kind, *socket),
            Post::SocketLost { conn, .. } => {
                if !self.driver.was_closed_early(Peer { host, conn }) {
                    self.driver.lose(Peer { host, conn }, Closed::Error);
                }
            }
            Post::Verdict { ticket, verdict, .. } => self.driver.verdicts.push((host, ticket, verdict)),
            Post::TellPlayer { conn, stub, payload, .. } => {
                self.driver.guard(host, |host, now| host.shard.tell_player(now, conn, stub, &payload));
            }
            Post::Restart { to } => drop(self.follow(to)),
            Post::Report { lists, reply } => {
                // The asker may have given up waiting.
                let _ = reply.try_send(self.driver.report(&self.event_loop, lists));
            }
            Post::Look { world, look } => {
                if let Some(slot) = self.driver.hosts.slot_of(world) {
                    self.driver.guard(slot, |host, _| look(&host.shard));
                }
            }
            Post::Capture { world, record } => self.driver.capture(world, record),
            Post::Arrive { world, moved, socket } => self.arrive(world, *moved, *socket),
            Post::Open(parts) => self.driver.hosts.open(*parts, self.driver.now),
            Post::Close(world) => self.driver.close_world(world),
            Post::Freeze { world, done } => {
                self.driver.freeze_world(world);
                done();
            }
            Post::Evict(world) => self.driver.evict(world),
            Post::End { world, reason } => self.driver.end_world(world, reason),
            Post::Reconfigure(config) => self.driver.reconfigure(&config),
            Post::Shutdown => self.begin_shutdown(),
            #[cfg(test)]
            Post::Fault(world, fault) => {
                let slot = self.driver.hosts.slot_of(world).unwrap_or(Slot::MAIN);
                self.driver.guard(slot, |host, _| host.faults.take(fault));
            }
        }
    }

    fn prioritise(&mut self, key: ConnKey) {
        if let Err(error) = self.event_loop.prioritise(key) {
            tracing::debug!(%error, "cannot raise the priority of a game server's socket");
        }
    }

    fn attach(&mut self, peer: Peer, kind: ConnKind, socket: DetachedConn) {
        match self.event_loop.attach(socket) {
            Ok(key) if self.driver.was_closed_early(peer) => self.event_loop.close(key, CloseMode::Now),
            Ok(key) => {
                self.driver.adopt(peer, kind, key);
                self.driver.mark_dirty(peer);
                if kind == ConnKind::Server {
                    self.prioritise(key);
                }
            }
            Err(error) => {
                tracing::debug!(conn = peer.conn.0, %error, "a socket could not be moved to its shard");
                self.driver.lose(peer, Closed::Error);
            }
        }
    }

    fn begin_shutdown(&mut self) {
        for key in std::mem::take(&mut self.driver.listeners).into_keys() {
            self.event_loop.close_listener(key);
        }
        self.driver.stopping = Some(self.driver.now + self.shutdown_timeout);
        for slot in self.driver.hosts.slots() {
            self.driver.guard(slot, |host, now| host.shard.begin_shutdown(now));
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
