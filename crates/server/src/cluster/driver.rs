//! The thread of a node: it runs the core of the cluster over NATS and the real clock.
//!
//! The thread has a runtime of its own, so that nothing else of the process delays a renewal.

mod problems;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use throng_admin::Problem;
use throng_cluster::{
    Address, Answer, ArrivalId, DirectoryRequest, DirectoryResult, EndReason, Event, Key, Name, Node,
    NodeState, Opener, Refusal, RequestId, WorldRecord, WorldState,
};
use throng_gateway::{CloseReason, ConnKind, Verdict};
use throng_net::Clock;
use throng_stdx::Instant;
use tokio::sync::{mpsc, oneshot, watch};

use super::bus::{Bus, Directory, News, TIMEOUT};
use super::plan::CLASS;
use super::view::Changes;
use super::{Command, End, EntryRequest, HOME, Hosted, Purpose, Shared, WorldLife, addresses, not_open};
use crate::fence::Fence;
use crate::mailbox::{Mailbox, Post};
use crate::process::{ProcessFigures, memory_limit};
use crate::world::World;
use crate::worlds::{WorldRequest, Worlds};

/// Requests to the directory that are in flight at a time.
const REQUESTS_MAX: usize = 256;
/// Time between two measurements of the load, which counts them with this weight.
const LOAD_INTERVAL: Duration = Duration::from_secs(1);
const LOAD_WEIGHT: f64 = 0.1;

/// Time after which a login that was sent into a world is one of its connections.
const ENTERING: Duration = Duration::from_secs(2);

/// Parts of a node.
pub(super) struct Parts {
    pub(super) core: Node,
    pub(super) node: Name,
    pub(super) clock: Clock,
    pub(super) bus: Bus,
    pub(super) directory: Directory,
    pub(super) worlds: Arc<Worlds>,
    pub(super) mailboxes: Arc<[Mailbox]>,
    pub(super) shared: Arc<Shared>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Boot id of this kernel.
    pub(super) boot: String,
    /// Addresses in the node's record.
    pub(super) addresses: Vec<Address>,
    pub(super) worlds_max: u32,
    pub(super) connections_max: usize,
    /// Worlds that are to be open by the settings, with their classes. They stay open without
    /// connections.
    pub(super) wanted: BTreeMap<Name, Name>,
    pub(super) default_world: Name,
}

/// A world of this node.
struct Here {
    fence: Arc<Fence>,
    world: World,
    /// The workers of its shards.
    workers: Arc<[u16]>,
    epoch: u64,
    is_served: bool,
    players: u32,
    /// Time at which a login was sent into it last.
    entered_at: Option<Instant>,
    /// Time without connections after which it closes, and when that began.
    idle: Option<Duration>,
    deserted_from: Instant,
}

/// Place for the answer to an arrival.
enum Reply {
    /// The verdict about a login.
    Login(oneshot::Sender<Verdict>),
    /// The world's home, or why it has none.
    Open { class: Name, reply: oneshot::Sender<Result<Hosted, Problem>> },
}

/// A request to close a world that is not answered yet.
struct Closing {
    world: Name,
    until: Instant,
    reply: oneshot::Sender<Result<(), Problem>>,
}

/// A login that waits for the home of its world.
struct Arrival {
    world: Name,
    kind: ConnKind,
    /// It may enter only because it asks for the world.
    has_asked: bool,
    /// It may enter only by a listener that leads to the world.
    by_listener: bool,
}

type Flight =
    Pin<Box<dyn Future<Output = (RequestId, Key, Result<DirectoryResult, String>, Duration)> + Send>>;

pub(super) struct Driver {
    parts: Parts,
    here: BTreeMap<Name, Here>,
    flights: FuturesUnordered<Flight>,
    /// Requests that wait for one of those in flight, each with the time by which it is answered.
    unsent: VecDeque<(DirectoryRequest, Instant)>,
    /// Workers that have stopped serving a world.
    frozen: mpsc::UnboundedReceiver<(Name, u64)>,
    freezes: mpsc::UnboundedSender<(Name, u64)>,
    arrivals: BTreeMap<u64, (Arrival, Reply)>,
    next_arrival: u64,
    /// Arrivals that are to open a world, each with the time by which it is answered, and requests
    /// to close one; the oldest first.
    opens: VecDeque<(Instant, u64)>,
    closings: Vec<Closing>,
    /// Keys with a value, and those that were read since the gap.
    known: BTreeSet<String>,
    read: BTreeSet<String>,
    /// Worlds that are wanted here and that no node serves, each since when.
    wanted_since: BTreeMap<Name, Instant>,
    changes: Changes,
    /// Followers of worlds.
    lives: BTreeMap<Name, Vec<watch::Sender<WorldLife>>>,
    load: f64,
    load_at: Instant,
    cpu_seconds: f64,
    frozen_since: Option<Instant>,
}

impl Driver {
    pub(super) fn new(parts: Parts) -> Driver {
        let (freezes, frozen) = mpsc::unbounded_channel();
        let load_at = parts.clock.now();
        Driver {
            parts,
            here: BTreeMap::new(),
            flights: FuturesUnordered::new(),
            unsent: VecDeque::new(),
            frozen,
            freezes,
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            opens: VecDeque::new(),
            closings: Vec::new(),
            known: BTreeSet::new(),
            read: BTreeSet::new(),
            wanted_since: BTreeMap::new(),
            changes: Changes::default(),
            lives: BTreeMap::new(),
            load: 0.0,
            load_at,
            cpu_seconds: ProcessFigures::read().cpu_seconds,
            frozen_since: None,
        }
    }

    /// Runs until the node has left or failed.
    pub(super) async fn run(mut self) {
        let mut news = self.parts.directory.watch();
        let now = self.parts.clock.now();
        for (world, class) in self.parts.wanted.clone() {
            self.open(now, world, class, Purpose::Lasting);
        }
        loop {
            if let Some(end) = self.act() {
                self.parts.shared.end(end);
                return;
            }
            self.publish();
            let now = self.parts.clock.now();
            let open = self.opens.front().map(|(until, _)| *until);
            let close = self.closings.first().map(|closing| closing.until);
            let due = [self.parts.core.next_timeout(), open, close].into_iter().flatten();
            let next = due.fold(self.load_at, Instant::min);
            tokio::select! {
                Some((id, key, result, took)) = self.flights.next() => self.result(id, &key, result, took),
                Some(news) = news.recv() => {
                    if let Some(why) = self.news(news) {
                        self.parts.shared.end(End::Failed(why));
                        return;
                    }
                }
                Some((world, epoch)) = self.frozen.recv() => {
                    let now = self.parts.clock.now();
                    self.parts.core.handle_frozen(now, &world, epoch);
                }
                Some(command) = self.parts.commands.recv() => self.command(command),
                () = tokio::time::sleep(next.since(now)) => {
                    let now = self.parts.clock.now();
                    self.parts.core.handle_timeout(now);
                    self.give_up(now);
                    if now >= self.load_at {
                        self.measure(now);
                    }
                }
            }
        }
    }

    fn open(&mut self, now: Instant, world: Name, class: Name, purpose: Purpose) {
        let is_served =
            self.parts.core.world(&world).is_some_and(|record| record.state == WorldState::Serving);
        if !is_served {
            self.wanted_since.entry(world.clone()).or_insert(now);
        }
        match purpose {
            Purpose::Lasting => self.parts.core.handle_open(now, world, class, false),
            Purpose::Match => self.parts.core.handle_open(now, world, class, true),
            Purpose::Room(room) => {
                let opener = Opener { node: self.parts.node.clone(), room };
                self.parts.core.handle_open_match(now, world, class, opener);
            }
        }
    }

    /// The class with which a login may open its world.
    ///
    /// # Errors
    /// It may not enter the world.
    fn class_for(&mut self, world: &Name, asked: Option<EntryRequest>) -> Result<Option<Name>, CloseReason> {
        let Some(EntryRequest { addr, now }) = asked else { return Ok(None) };
        let core = &self.parts.core;
        let is_open = |record: &&WorldRecord| record.state.is_open();
        if let Some(record) = core.world(world).filter(is_open) {
            return if self.admits_all(record) { Ok(None) } else { Err(CloseReason::UnknownWorld) };
        }
        let count = |class: &str| {
            let of_class =
                |record: &WorldRecord| record.class.as_str() == class && record.state != WorldState::Closed;
            core.worlds().filter(|(_, record)| of_class(record)).count()
        };
        let asked = WorldRequest { world: world.as_str(), addr, now };
        let class = self.parts.worlds.class_to_create(asked, count)?;
        Ok(Name::new(&class).ok())
    }

    /// Returns whether connections without a credential for a world may enter it.
    fn admits_all(&self, record: &WorldRecord) -> bool {
        self.parts.worlds.class(record.class.as_str()).is_ok_and(|class| class.open)
    }

    fn command(&mut self, command: Command) {
        let now = self.parts.clock.now();
        match command {
            Command::Arrive { world, kind, asked, by_listener, reply } => match self.class_for(&world, asked)
            {
                Ok(class) => {
                    self.next_arrival += 1;
                    let has_asked = asked.is_some();
                    let arrival = Arrival { world: world.clone(), kind, has_asked, by_listener };
                    self.arrivals.insert(self.next_arrival, (arrival, Reply::Login(reply)));
                    self.parts.core.handle_arrival(now, ArrivalId(self.next_arrival), world, class);
                }
                // Its connection may be gone.
                Err(reason) => drop(reply.send(Verdict::Refused(reason))),
            },
            Command::Open { world, class, purpose, reply } => {
                if let Some(problem) = self.no_node_for(&world, &class) {
                    // The caller may have given up.
                    return drop(reply.send(Err(problem)));
                }
                if !matches!(purpose, Purpose::Lasting) {
                    self.open(now, world.clone(), class.clone(), purpose);
                }
                self.next_arrival += 1;
                let (kind, name) = (ConnKind::Server, world.clone());
                let arrival = Arrival { world: name, kind, has_asked: false, by_listener: false };
                let reply = Reply::Open { class: class.clone(), reply };
                self.arrivals.insert(self.next_arrival, (arrival, reply));
                self.opens.push_back((now + HOME, self.next_arrival));
                self.parts.core.handle_arrival(now, ArrivalId(self.next_arrival), world, Some(class));
            }
            Command::Look(look) => look(&self.parts.core, &self.changes),
            Command::Follow(world, life) => {
                // One without a record may be on its way here.
                if let Some(current) = self.life_of(&world) {
                    life.send_replace(current);
                }
                if !life.borrow().has_ended {
                    self.lives.entry(world).or_default().push(life);
                }
            }
            Command::Reconfigure(settings) => {
                let super::Reconfigured { core, classes, hashes } = *settings;
                self.parts.worlds.reconfigure(&core, classes);
                self.parts.core.handle_classes(now, hashes);
            }
            Command::Close(world, reply) => {
                let closing = |reply| Closing { world: world.clone(), until: now + HOME, reply };
                self.closings.extend(reply.map(closing));
                self.parts.core.handle_close(now, &world);
            }
            Command::Drain(wait, reply) => {
                // Not from the status, which another node that has just come is not in yet.
                let can_move = self.parts.bus.is_connected() && self.parts.core.has_other_up();
                if can_move {
                    self.report_players(now);
                    self.parts.core.handle_drain(now, Some(wait));
                }
                // The one who waits may have given up.
                let _ = reply.send(can_move);
            }
            Command::Stop => self.parts.core.handle_stop(now),
        }
    }

    /// Answers requests to open or close a world whose time is over. An open is not wanted any
    /// more; a close still is.
    fn give_up(&mut self, now: Instant) {
        while let Some((_, id)) = self.opens.pop_front_if(|(until, _)| *until <= now) {
            if let Some((Arrival { world, .. }, Reply::Open { reply, .. })) = self.arrivals.remove(&id) {
                self.wanted_since.remove(&world);
                // The caller may have given up.
                drop(reply.send(Err(self.no_home(&world))));
                self.parts.core.handle_departure(now, ArrivalId(id));
            }
        }
        let late: Vec<Closing> = self.closings.extract_if(.., |closing| closing.until <= now).collect();
        for Closing { world, reply, .. } in late {
            let why =
                self.hindrance().unwrap_or_else(|| "`throng cluster status` shows the directory".to_owned());
            let what = format!(
                "the closing of the world `{world}` was not written within {} s: {why}; this node tries again until the \
                 directory has answered it for 10 s",
                HOME.as_secs()
            );
            // The caller may have given up.
            drop(reply.send(Err(Problem::new(503, what))));
        }
    }

    /// Takes news of the watch. Returns why the node cannot begin, if that is in it.
    fn news(&mut self, news: News) -> Option<String> {
        let now = self.parts.clock.now();
        match news {
            News::Gap => {
                self.read.clear();
                self.parts.shared.change(|status| status.synced_since = None);
                self.parts.core.handle_gap(now);
            }
            News::Rewound => {
                self.known.clear();
                self.parts.core.handle_rewound(now);
            }
            News::Entry { key, revision, value } => {
                if key.starts_with("drain.") {
                    self.report_players(now);
                }
                self.parts.core.handle_record(now, &key, revision, value.as_deref());
                self.note_change(now, &key);
                self.note_served(now, &key);
                self.note_life(&key);
                match value {
                    Some(_) => self.known.insert(key.clone()),
                    None => self.known.remove(&key),
                };
                self.read.insert(key);
            }
            News::Synced { revision } => {
                let gone = self.known.difference(&self.read).cloned().collect::<Vec<_>>();
                for key in gone {
                    self.known.remove(&key);
                    self.parts.core.handle_record(now, &key, revision, None);
                    self.note_change(now, &key);
                    self.note_life(&key);
                }
                self.changes.begin(self.unix_ms(now));
                self.read.clear();
                if !self.parts.shared.is_up()
                    && let Some(why) = self.unreachable()
                {
                    return Some(why);
                }
                self.parts.shared.change(|status| status.synced_since = Some(now));
                self.parts.core.handle_synced(now);
            }
            News::Replicas { missing, wanted } => {
                self.parts.shared.change(|status| status.replicas = (missing, wanted));
            }
        }
        None
    }

    fn unix_ms(&self, now: Instant) -> u64 {
        self.parts.clock.unix_start_ns() / 1_000_000 + now.as_millis()
    }

    /// Keeps what has changed in the directory for those who ask.
    fn note_change(&mut self, now: Instant, key: &str) {
        let (core, unix_ms) = (&self.parts.core, self.unix_ms(now));
        match Key::parse(key) {
            Some(Key::Node(name)) => {
                self.changes.see_node(&name, core.node(&name).map(|(record, _)| record), unix_ms);
            }
            Some(Key::World(name)) => self.changes.see_world(&name, core.world(&name), unix_ms),
            _ => {}
        }
    }

    /// The life of a world, if its record says anything about it.
    fn life_of(&self, world: &Name) -> Option<WorldLife> {
        let record = self.parts.core.world(world)?;
        match record.state {
            WorldState::Closed => Some(WorldLife { has_ended: true, addresses: Vec::new() }),
            WorldState::Serving => {
                Some(WorldLife { has_ended: false, addresses: addresses(&self.parts.core, world, record) })
            }
            WorldState::Assigned | WorldState::Closing => None,
        }
    }

    /// Tells the followers of a world that it has another home, or has ended.
    fn note_life(&mut self, key: &str) {
        if self.lives.is_empty() {
            return;
        }
        let Some(Key::World(world)) = Key::parse(key) else { return };
        let life = match self.parts.core.world(&world) {
            Some(_) => self.life_of(&world),
            None => Some(WorldLife { has_ended: true, addresses: Vec::new() }),
        };
        let Some(life) = life else { return };
        let Some(followers) = self.lives.get_mut(&world) else { return };
        followers.retain(|follower| !follower.is_closed());
        for follower in followers {
            follower.send_if_modified(|last| {
                let is_new = *last != life;
                last.clone_from(&life);
                is_new
            });
        }
        if life.has_ended {
            self.lives.remove(&world);
        }
    }

    /// Measures the time until a world that was wanted is served.
    fn note_served(&mut self, now: Instant, key: &str) {
        if self.wanted_since.is_empty() {
            return;
        }
        let Some(Key::World(world)) = Key::parse(key) else { return };
        let is_open = self.parts.core.world(&world).is_some_and(|record| record.state == WorldState::Serving);
        if let Some(since) = is_open.then(|| self.wanted_since.remove(&world)).flatten() {
            self.parts.shared.change(|status| status.assigned.record(now.since(since)));
        }
    }

    fn result(&mut self, id: RequestId, key: &Key, result: Result<DirectoryResult, String>, took: Duration) {
        let now = self.parts.clock.now();
        self.parts.shared.change(|status| match &result {
            Ok(DirectoryResult::Applied(_)) => {
                status.writes.record(took);
                status.problem = None;
            }
            Err(why) => status.problem = Some(why.clone()),
            Ok(_) => {}
        });
        let is_lease = *key == Key::Node(self.parts.node.clone());
        if is_lease && result.is_err() && took >= TIMEOUT && self.parts.bus.is_connected() {
            // The server may hang without having closed the connection.
            let client = self.parts.bus.client.clone();
            tokio::spawn(async move { client.force_reconnect().await });
        }
        self.parts.core.handle_result(now, id, result.unwrap_or(DirectoryResult::Unknown));
    }

    /// Does what the core wants. Returns how the node has ended, if it has.
    fn act(&mut self) -> Option<End> {
        let mut end = None;
        while let Some(event) = self.parts.core.poll_event() {
            end = self.event(event).or(end);
        }
        let until = self.parts.core.serves_until();
        for here in self.here.values() {
            match until.filter(|_| here.is_served) {
                Some(until) => here.fence.open_until(until),
                None => here.fence.close(),
            }
        }
        let now = self.parts.clock.now();
        while let Some(request) = self.parts.core.poll_request() {
            let request = (request, now + TIMEOUT);
            // The lease does not wait behind the worlds.
            match request.0.key == Key::Node(self.parts.node.clone()) {
                true => self.unsent.push_front(request),
                false => self.unsent.push_back(request),
            }
        }
        while self.flights.len() < REQUESTS_MAX
            && let Some((request, until)) = self.unsent.pop_front()
        {
            self.send(request, until, now);
        }
        end
    }

    fn send(&mut self, request: DirectoryRequest, until: Instant, now: Instant) {
        let (directory, clock) = (self.parts.directory.clone(), self.parts.clock);
        let DirectoryRequest { id, key, action } = request;
        self.flights.push(Box::pin(async move {
            let left = until.since(now);
            let done = tokio::time::timeout(left, directory.execute(&key, action)).await;
            let done = done.unwrap_or_else(|_| Err("NATS did not answer within 2 s".to_owned()));
            (id, key, done, clock.now().since(now))
        }));
    }

    fn event(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Up { incarnation } => {
                tracing::info!(node = %self.parts.node, incarnation, "the node is in its cluster");
                self.parts.shared.up();
            }
            Event::Deposed { incarnation } => {
                tracing::error!(
                    incarnation,
                    "another node has marked this one as lost; its worlds have ended here"
                );
            }
            Event::Failed(failure) => return Some(End::Failed(self.explain(&failure))),
            Event::Left => return Some(End::Left),
            Event::Open { world, epoch, class, .. } => self.make(world, &class, epoch),
            Event::Serve { world, epoch, .. } => {
                tracing::info!(%world, epoch, "this node serves the world");
                self.serve(&world, epoch);
            }
            Event::Thaw { world, epoch, .. } => self.serve(&world, epoch),
            Event::Freeze { world, epoch, .. } => self.freeze(world, epoch),
            Event::Renumbered { world, from, epoch, .. } => {
                if let Some(here) = self.here.get_mut(&world).filter(|here| here.epoch == from) {
                    here.epoch = epoch;
                }
            }
            Event::End { world, epoch, why, .. } => self.end_world(&world, epoch, &why),
            Event::Lapsed { .. } => {
                tracing::error!("the lease has run out: the worlds of this node stand still");
                for here in self.here.values_mut() {
                    here.is_served = false;
                    here.fence.close();
                }
            }
            Event::Unreadable { key, why } => {
                let bucket = super::plan::bucket(&self.parts.shared.cluster().name);
                tracing::error!(
                    %key, why,
                    "a record cannot be read and is left alone; a later release wrote it, or it is damaged: then \
                     `nats kv del {bucket} {key}` removes it"
                );
            }
            Event::PatienceOver => {
                tracing::error!("the worlds have stood still for too long: their connections are closed");
                for here in self.here.values() {
                    self.each_worker(here, |mailbox| mailbox.post(Post::Evict(here.world)));
                }
            }
            Event::Closing { world, was_open } => {
                for closing in self.closings.extract_if(.., |closing| closing.world == world) {
                    let done = if was_open { Ok(()) } else { Err(not_open(world.as_str())) };
                    // The caller may have given up.
                    drop(closing.reply.send(done));
                }
            }
            Event::Arrived { arrival, answer } => {
                let (arrival, reply) = self.arrivals.remove(&arrival.0)?;
                let reply = match reply {
                    Reply::Login(reply) => reply,
                    Reply::Open { class, reply } => {
                        let record = self.parts.core.world(&arrival.world);
                        let served = record.map(|record| record.class.clone());
                        let found = match answer {
                            Answer::Here { .. } => Ok(Hosted {
                                node: self.parts.node.clone(),
                                addresses: self.parts.addresses.clone(),
                                class: served,
                            }),
                            Answer::Elsewhere { home, addresses } => {
                                Ok(Hosted { node: home.node, addresses, class: served })
                            }
                            Answer::Refused(why) => {
                                self.wanted_since.remove(&arrival.world);
                                Err(self.not_opened(&arrival.world, &class, why))
                            }
                        };
                        // The one who waited may have given up.
                        drop(reply.send(found));
                        return None;
                    }
                };
                let verdict = match answer {
                    Answer::Here { .. } | Answer::Elsewhere { .. } if !self.may_enter(&arrival) => {
                        Verdict::Refused(CloseReason::UnknownWorld)
                    }
                    Answer::Here { .. } => Verdict::Success,
                    Answer::Elsewhere { addresses, .. } => {
                        let kind = match arrival.kind {
                            ConnKind::Client => "client",
                            ConnKind::Server => "server",
                        };
                        // A listener of the world comes first. Others need a credential for it, or
                        // an open class.
                        let record = self.parts.core.world(&arrival.world);
                        let needs_door =
                            arrival.by_listener && !record.is_some_and(|record| self.admits_all(record));
                        let mut addresses: Vec<Address> = addresses
                            .into_iter()
                            .filter(|each| each.kind == kind)
                            .filter(|each| match &each.world {
                                Some(world) => *world == arrival.world,
                                None => !needs_door || self.is_default(&arrival.world),
                            })
                            .collect();
                        addresses.sort_by_key(|each| each.world.is_none());
                        let url = |each: Address| format!("{}://{}", each.transport, each.address);
                        let addresses = addresses.into_iter().map(url);
                        Verdict::OtherNode {
                            world: arrival.world.to_string(),
                            addresses: addresses.collect(),
                        }
                    }
                    Answer::Refused(Refusal::Unavailable) => Verdict::Refused(CloseReason::WorldUnavailable),
                    Answer::Refused(Refusal::NoRoom) => Verdict::Refused(CloseReason::NoRoom),
                    Answer::Refused(Refusal::WorldsMax) => Verdict::Refused(CloseReason::WorldsMax),
                    Answer::Refused(Refusal::UnknownWorld) => Verdict::Refused(CloseReason::UnknownWorld),
                    Answer::Refused(Refusal::Closed) => Verdict::Refused(CloseReason::WorldClosed),
                };
                if verdict == Verdict::Success
                    && let Some(here) = self.here.get_mut(&arrival.world)
                {
                    // It comes for it.
                    let now = self.parts.clock.now();
                    (here.deserted_from, here.entered_at) = (now, Some(now));
                    self.report_players(now);
                }
                // Its connection may be gone.
                let _ = reply.send(verdict);
            }
        }
        None
    }

    /// Returns whether logins that name no world enter this one.
    fn is_default(&self, world: &Name) -> bool {
        self.parts.default_world == *world
    }

    /// Makes a world that was assigned to this node. Its fence is closed until it is served.
    fn make(&mut self, world: Name, class: &Name, epoch: u64) {
        let now = self.parts.clock.now();
        let fence = Arc::new(Fence::default());
        let (mailboxes, worlds) = (&self.parts.mailboxes, &self.parts.worlds);
        let give = |worker, parts| mailboxes[usize::from(worker)].post(Post::Open(Box::new(parts)));
        let class = Some(class.as_str()).filter(|class| *class != CLASS);
        let lasting = self.parts.wanted.contains_key(&world);
        let is_match = self.parts.core.world(&world).is_some_and(|record| record.ephemeral);
        let kind = (lasting, is_match);
        let opened = worlds.open_behind(Arc::clone(&fence), (world.as_str(), class), kind, give);
        let is_made = opened.is_ok();
        match opened {
            Ok(open) => {
                let idle_s =
                    class.and_then(|class| worlds.class(class).ok()).map_or(0, |keys| keys.world_idle_s);
                let here = Here {
                    fence,
                    world: open.world,
                    workers: open.workers,
                    epoch,
                    is_served: false,
                    players: 0,
                    entered_at: None,
                    idle: Some(Duration::from_secs(idle_s)).filter(|idle| !lasting && !idle.is_zero()),
                    deserted_from: now,
                };
                self.here.insert(world.clone(), here);
            }
            Err(why) => tracing::error!(%world, why, "the world cannot be opened here"),
        }
        self.parts.core.handle_opened(now, &world, epoch, is_made);
    }

    fn may_enter(&self, arrival: &Arrival) -> bool {
        let record = || self.parts.core.world(&arrival.world);
        !arrival.has_asked || record().is_some_and(|record| self.admits_all(record))
    }

    fn serve(&mut self, world: &Name, epoch: u64) {
        let until = self.parts.core.serves_until();
        if let Some(here) = self.here.get_mut(world).filter(|here| here.epoch == epoch)
            && let Some(until) = until
        {
            here.is_served = true;
            here.fence.open_until(until);
            for worker in here.workers.iter() {
                self.parts.mailboxes[usize::from(*worker)].wake();
            }
        }
    }

    fn each_worker(&self, here: &Here, tell: impl Fn(&Mailbox)) {
        here.workers.iter().for_each(|worker| tell(&self.parts.mailboxes[usize::from(*worker)]));
    }

    fn freeze(&mut self, world: Name, epoch: u64) {
        let Some(here) = self.here.get_mut(&world).filter(|here| here.epoch == epoch) else { return };
        here.is_served = false;
        here.fence.close();
        let left = Arc::new(AtomicUsize::new(here.workers.len()));
        for worker in here.workers.iter() {
            let (left, freezes, world) = (Arc::clone(&left), self.freezes.clone(), world.clone());
            let done = Box::new(move || {
                // Without the driver there is nothing that waits for it.
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    drop(freezes.send((world, epoch)));
                }
            });
            self.parts.mailboxes[usize::from(*worker)].post(Post::Freeze { world: here.world, done });
        }
    }

    fn end_world(&mut self, world: &Name, epoch: u64, why: &EndReason) {
        let Some(here) = self.here.remove(world) else { return };
        here.fence.close();
        tracing::info!(%world, epoch, ?why, "the world ends on this node");
        let reason = match why {
            EndReason::Closed => CloseReason::WorldClosed,
            EndReason::Moved { .. } => CloseReason::WorldMoving,
            EndReason::Deposed | EndReason::GivenUp | EndReason::Left => CloseReason::Restarted,
        };
        let mailboxes = &self.parts.mailboxes;
        self.parts.worlds.close(world.as_str(), |worker, world| {
            mailboxes[usize::from(worker)].post(Post::End { world, reason });
        });
    }

    /// Publishes the state of the node for health and metrics.
    fn publish(&mut self) {
        let now = self.parts.clock.now();
        let core = &self.parts.core;
        let is_frozen = core.incarnation().is_some() && !core.may_serve(now);
        if !is_frozen && let Some(since) = self.frozen_since.take() {
            self.parts.shared.change(|status| status.frozen += now.since(since));
        }
        if is_frozen && self.frozen_since.is_none() {
            self.frozen_since = Some(now);
        }
        let is_connected = self.parts.bus.is_connected();
        let lease_until = core.serves_until();
        let (stats, arrivals) = (core.stats(), core.arrivals_waiting());
        let frozen_since = self.frozen_since;
        self.parts.shared.change(|status| {
            if is_connected != status.is_connected {
                let is_first = status.connection_since == Instant::ZERO;
                status.reconnects += u64::from(is_connected && !is_first);
                (status.is_connected, status.connection_since) = (is_connected, now);
            }
            (status.stats, status.arrivals) = (stats, arrivals);
            (status.lease_until, status.frozen_since) = (lease_until, frozen_since);
        });
    }

    /// Reports the worlds whose number of connections has changed. A login on its way into a world
    /// counts as one.
    fn report_players(&mut self, now: Instant) {
        for (world, here) in &mut self.here {
            let is_entering = here.entered_at.is_some_and(|at| now.since(at) < ENTERING);
            let count = here.fence.players().max(u32::from(is_entering));
            if std::mem::replace(&mut here.players, count) != count {
                self.parts.core.handle_players(now, world, count);
            }
        }
    }

    /// Measures the load, once a second; counts what the directory says; reports players.
    fn measure(&mut self, now: Instant) {
        self.load_at = now + LOAD_INTERVAL;
        self.report_players(now);
        let mut idle = Vec::new();
        for (world, here) in &mut self.here {
            let is_over = here.idle.is_some_and(|idle| now.since(here.deserted_from) >= idle);
            if !here.fence.is_deserted() || !here.is_served {
                here.deserted_from = now;
            } else if is_over {
                idle.push(world.clone());
                here.deserted_from = now;
            }
        }
        let connections: usize = self.here.values().map(|here| here.players as usize).sum();
        for world in idle {
            tracing::info!(%world, "the world closes: it has had no connection for its idle time");
            self.parts.core.handle_close(now, &world);
        }
        let figures = ProcessFigures::read();
        let cpu = figures.cpu_seconds - std::mem::replace(&mut self.cpu_seconds, figures.cpu_seconds);
        let share = |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        let greatest = [
            share(cpu, self.parts.mailboxes.len() as f64 * LOAD_INTERVAL.as_secs_f64()),
            share(figures.resident_bytes as f64, memory_limit() as f64),
            share(connections as f64, self.parts.connections_max as f64),
            share(self.here.len() as f64, f64::from(self.parts.worlds_max)),
        ];
        let greatest = greatest.into_iter().fold(0.0, f64::max);
        self.load += (greatest - self.load) * LOAD_WEIGHT;
        let held = u32::try_from(self.here.len()).unwrap_or(u32::MAX);
        let free = self.parts.worlds_max.saturating_sub(held);
        self.parts.core.handle_load(now, (self.load * 1_000.0) as u16, free);
        self.count();
    }

    /// Counts nodes and worlds by state, and looks for what another machine makes an error.
    fn count(&mut self) {
        let core = &self.parts.core;
        let (mut nodes, mut worlds) = ([0_usize; 4], [0_usize; 4]);
        let mut is_draining = false;
        let (mut live, mut homeless) = (BTreeSet::new(), 0);
        for (name, record) in core.nodes() {
            nodes[record.state as usize] += 1;
            if record.is_live() {
                live.insert((name, record.incarnation));
            }
            if *name == self.parts.node {
                is_draining = record.state == NodeState::Draining;
            }
        }
        for (_, record) in core.worlds() {
            worlds[record.state as usize] += 1;
            let is_open = matches!(record.state, WorldState::Assigned | WorldState::Serving);
            let is_served = record.state == WorldState::Serving
                && live.contains(&(&record.home.node, record.home.incarnation));
            homeless += usize::from(is_open && !is_served);
        }
        let served = self.here.values().filter(|here| here.is_served).count();
        let here = self.here.len();
        let unreachable = self.unreachable();
        self.parts.shared.change(|status| {
            if let Some(why) = unreachable.as_ref().filter(|_| status.unreachable.is_none()) {
                tracing::error!("{why}");
            }
            (status.nodes, status.worlds) = (nodes, worlds);
            status.homeless = homeless;
            status.is_draining = is_draining;
            status.unreachable = unreachable;
            (status.served, status.here) = (served, here);
        });
    }
}
