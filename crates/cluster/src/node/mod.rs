//! The state machine of one node.

mod arrivals;
mod choice;
mod drain;
mod lease;
mod permits;
mod worlds;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use throng_stdx::{Instant, Rng};

use crate::cas::{Known, Stopwatch};
use crate::defect::Defect;
use crate::directory::{Action, DirectoryRequest, DirectoryResult, Op, RequestId, Silence, Slot};
use crate::name::{Key, Name};
use crate::record::{
    ClusterRecord, DrainRecord, Home, NodeRecord, NodeState, PermitRecord, Record, WorldRecord,
};

use arrivals::Arrivals;
use drain::Drain;
use lease::{Lease, NodeWrite, Phase};
use permits::{PermitId, PermitSlot};
use worlds::{Closing, Held, Wanted};

pub use arrivals::{Answer, ArrivalId, Refusal};

/// Records that a node keeps in mind at most. Beyond them, records of further names are ignored
/// and counted; a cluster of 100 nodes with 256 worlds each has a quarter of them.
const RECORDS_MAX: usize = 100_000;

/// Settings of a class, as far as the choice of a home needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Hash of all settings of the class.
    pub hash: String,
    /// Labels that a node must have to be the home of such a world.
    pub labels: BTreeMap<String, String>,
    /// Number of its worlds that may be open in the cluster; `None`: any.
    pub worlds_max: Option<u32>,
}

/// Identity and configuration of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Content that the record `cluster` must have.
    pub cluster: ClusterRecord,
    /// First record of the node: the core sets its incarnation, nonce, state and number of worlds.
    pub record: NodeRecord,
    /// Name of the node.
    pub node: Name,
    /// True if this process holds the lock of its data folder, and the folder is on a file system
    /// of this machine, so no other process runs on the folder.
    pub has_lock: bool,
    /// Classes by name. Their hashes go into the node's record.
    pub classes: BTreeMap<Name, Class>,
    /// Longest time that an arrival waits, and that sockets of frozen worlds stay open.
    pub patience: Duration,
    /// Number of arrivals that may wait.
    pub arrivals_max: usize,
    /// Wall clock at [`Instant::ZERO`] in milliseconds since 1970. It only dates records.
    pub origin_unix_ms: u64,
}

/// Reason why a node cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The bucket has no readable `cluster` record: `throng cluster init` makes it.
    NoCluster,
    /// The `cluster` record differs from this node's settings.
    OtherCluster(ClusterRecord),
    /// Another process holds the node's name and renews its record.
    NameHeld(NodeRecord),
    /// The node's name has a record that this release cannot read, and a process renews it.
    NameUnreadable,
}

/// Reason why a world ends on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The node has lost its lease: sockets close with `world_restarted`.
    Deposed,
    /// The world was given another home while this node drained: sockets close with
    /// `world_moving` and the addresses.
    Moved {
        /// Home that was chosen.
        home: Home,
    },
    /// The world was closed: sockets close with `world_closed`.
    Closed,
    /// The record names another home or a later epoch: sockets close with `world_restarted`.
    GivenUp,
    /// The node has left: sockets close with `world_restarted`.
    Left,
}

/// Change that the driver must act on. A world belongs to the incarnation in which it was opened:
/// it is served under the lease of that incarnation and of no later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node holds its name now.
    Up {
        /// The new incarnation.
        incarnation: u64,
    },
    /// Another node has marked this one as lost, or another process has taken its name. All worlds
    /// have ended; the node takes its name again if no other process holds it.
    Deposed {
        /// The incarnation that ended.
        incarnation: u64,
    },
    /// The node cannot run and does nothing any more. The process exits with an error.
    Failed(Failure),
    /// The node has left and does nothing any more. The process exits.
    Left,
    /// A world was assigned to this node: make it, answer with [`Node::handle_opened`].
    Open {
        /// Name of the world.
        world: Name,
        /// Its epoch.
        epoch: u64,
        /// Incarnation of this node that it belongs to.
        incarnation: u64,
        /// Its class.
        class: Name,
    },
    /// The world's record says that it serves here: let players in.
    Serve {
        /// Name of the world.
        world: Name,
        /// Its epoch.
        epoch: u64,
        /// Incarnation of this node that it belongs to.
        incarnation: u64,
    },
    /// Stop serving the world, keep its sockets, answer with [`Node::handle_frozen`].
    Freeze {
        /// Name of the world.
        world: Name,
        /// Its epoch.
        epoch: u64,
        /// Incarnation of this node that it belongs to.
        incarnation: u64,
    },
    /// Continue with a world that was frozen, by [`Event::Freeze`] or [`Event::Lapsed`].
    Thaw {
        /// Name of the world.
        world: Name,
        /// Its epoch.
        epoch: u64,
        /// Incarnation of this node that it belongs to.
        incarnation: u64,
    },
    /// The directory had lost the record of the world, and this node has written it again.
    Renumbered {
        /// Name of the world.
        world: Name,
        /// Epoch up to now.
        from: u64,
        /// Epoch from now on.
        epoch: u64,
        /// Incarnation of this node that it belongs to.
        incarnation: u64,
    },
    /// Delete the world and close its sockets.
    End {
        /// Name of the world.
        world: Name,
        /// Its epoch.
        epoch: u64,
        /// Incarnation of this node that it belongs to.
        incarnation: u64,
        /// Reason.
        why: EndReason,
    },
    /// The lease has run out, so all worlds are frozen, each until its [`Event::Thaw`].
    Lapsed {
        /// Incarnation whose lease it is.
        incarnation: u64,
    },
    /// Worlds have been frozen for longer than [`Setup::patience`]: their sockets close with
    /// `world_unavailable`. The worlds stay.
    PatienceOver,
    /// A record cannot be read: it was damaged, or written by a later release. Told once, until it
    /// can be read again.
    Unreadable {
        /// The key of the record.
        key: Key,
        /// The defect.
        why: String,
    },
    /// A world that was to be closed by [`Node::handle_close`] is closing or closed by its record.
    Closing {
        /// Name of the world.
        world: Name,
        /// False if it was neither open nor about to be opened by this node.
        was_open: bool,
    },
    /// Answer to [`Node::handle_arrival`].
    Arrived {
        /// The arrival.
        arrival: ArrivalId,
        /// The answer.
        answer: Answer,
    },
}

/// Counters since the start, and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Renewals that succeeded.
    pub renewals: u64,
    /// Requests without an answer.
    pub unknown: u64,
    /// Writes that were refused.
    pub refused: u64,
    /// Gaps of the watch.
    pub gaps: u64,
    /// Nodes that this one marked as lost.
    pub marks: u64,
    /// Worlds of lost homes that this node assigned.
    pub claims: u64,
    /// Times at which this node lost its lease to another.
    pub deposed: u64,
    /// Times at which the lease ran out.
    pub lapses: u64,
    /// Worlds that this node served when the record named a later epoch or another home.
    pub conflicts: u64,
    /// Arrivals that were sent to another node.
    pub elsewhere: u64,
    /// Arrivals and worlds for which no node had room.
    pub no_room: u64,
    /// Records that this release cannot read, now.
    pub unreadable: u64,
    /// Records that were ignored because there are too many.
    pub ignored: u64,
}

/// Item whose time has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Node(Name),
    World(Name),
    Permit(PermitId),
}

/// One node of a cluster. See the crate's documentation for how to drive it.
///
/// ```
/// use std::time::Duration;
/// use throng_cluster::{
///     Action, ClusterRecord, Event, Name, Node, NodeRecord, NodeState, DirectoryResult, Setup,
/// };
/// use throng_stdx::Instant;
///
/// # fn main() -> Result<(), String> {
/// let cluster = ClusterRecord {
///     format: 1,
///     name: Name::new("prod")?,
///     key_id: "a1b2".to_owned(),
///     rest: Default::default(),
/// };
/// let record = NodeRecord {
///     incarnation: 0,
///     nonce: 0,
///     state: NodeState::Up,
///     addresses: Vec::new(),
///     release: "0.1.0".to_owned(),
///     folder: "6f0c".to_owned(),
///     boot: "91aa".to_owned(),
///     labels: Default::default(),
///     classes: Default::default(),
///     load_permille: 0,
///     worlds: 0,
///     worlds_max: 256,
///     free_worlds: 256,
///     rest: Default::default(),
/// };
/// let setup = Setup {
///     cluster: cluster.clone(),
///     record,
///     node: Name::new("n1")?,
///     has_lock: true,
///     classes: Default::default(),
///     patience: Duration::from_secs(30),
///     arrivals_max: 10_000,
///     origin_unix_ms: 0,
/// };
/// let now = Instant::from_millis(1);
/// let mut node = Node::new(setup, 7, now);
///
/// // The watch delivers all records; no process holds the name, so the node takes it.
/// node.handle_record(now, "cluster", 1, Some(&cluster.to_bytes()));
/// node.handle_synced(now);
/// let ask = node.poll_request().expect("the node takes its name");
/// assert_eq!(ask.key.to_string(), "node.n1");
/// assert!(matches!(ask.action, Action::Write { expected: 0, .. }));
///
/// // The write was applied. The lease counts from its sending.
/// let later = now + Duration::from_millis(3);
/// node.handle_result(later, ask.id, DirectoryResult::Applied(2));
/// assert_eq!(node.poll_event(), Some(Event::Up { incarnation: 1 }));
/// assert_eq!(node.serves_until(), Some(now + throng_cluster::FREEZE));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Node {
    setup: Setup,
    /// Distinguishes this process's writes from all others.
    writer: u32,
    writes: u32,
    phase: Phase,
    lease: Option<Lease>,
    drain: Drain,
    /// Runs while the node's own renewals succeed, or, without a lease, its reads.
    stopwatch: Stopwatch,
    /// The watch has delivered everything, and has no gap.
    is_synced: bool,
    /// Greatest revision of the bucket that was seen.
    revision_max: u64,
    cluster: Known<ClusterRecord>,
    nodes: BTreeMap<Name, Slot<NodeRecord, NodeWrite>>,
    worlds: BTreeMap<Name, Slot<WorldRecord, WorldWrite>>,
    matchers: BTreeMap<Name, (u64, Known<Record>)>,
    drains: BTreeMap<Name, (u64, Known<DrainRecord>)>,
    permits: BTreeMap<PermitId, PermitSlot>,
    /// Permits that this node takes, or has taken, for worlds that are not open yet.
    openings: BTreeMap<Name, PermitId>,
    /// Worlds that this node has.
    held: BTreeMap<Name, Held>,
    /// Worlds by the nodes that are their homes by the record, or will be by a write in flight.
    by_home: BTreeMap<Name, BTreeSet<Name>>,
    /// Homes that let an assignment lapse, with the revision of their record at that time.
    avoided: BTreeMap<Name, u64>,
    /// Homes in `by_home`, by world.
    indexed: BTreeMap<Name, [Option<Name>; 2]>,
    /// Worlds that are to be open.
    wanted: BTreeMap<Name, Wanted>,
    /// Worlds that are to be closed.
    closing: BTreeMap<Name, Closing>,
    /// Assignments to this node that the driver could not make, by epoch.
    refused: BTreeMap<Name, u64>,
    /// Time until which the node has no room, because its driver could not make a world.
    full_until: Instant,
    /// Worlds whose home is gone, and since when this node knows.
    gone: BTreeMap<Name, Instant>,
    arrivals: Arrivals,
    dirty_nodes: BTreeSet<Name>,
    dirty_worlds: BTreeSet<Name>,
    wakes: BTreeSet<(Instant, Wake)>,
    flights: BTreeMap<u64, Flight>,
    requests: u64,
    unsent: VecDeque<DirectoryRequest>,
    events: VecDeque<Event>,
    stats: Stats,
    defect: Option<Defect>,
}

/// Purpose of a write of a world's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldWrite {
    Assign { is_claim: bool },
    Serve { epoch: u64 },
    Close,
    Closed,
    Delete,
    Restore { from: u64 },
}

/// Request in flight.
#[derive(Clone, Debug)]
struct Flight {
    key: Key,
    /// Nonce of the write.
    nonce: Option<u64>,
    sent: Instant,
}

impl Node {
    /// Creates a node that wants its name. `seed` must differ between all processes.
    #[must_use]
    pub fn new(mut setup: Setup, seed: u64, now: Instant) -> Node {
        setup.record.classes = hashes(&setup.classes);
        let writer = Rng::new(seed).next_u32();
        Node {
            phase: Phase::Joining(lease::Joining::default()),
            setup,
            writer,
            writes: 0,
            lease: None,
            drain: Drain::default(),
            stopwatch: Stopwatch::new(now),
            is_synced: false,
            revision_max: 0,
            cluster: Known::Absent,
            nodes: BTreeMap::new(),
            worlds: BTreeMap::new(),
            matchers: BTreeMap::new(),
            drains: BTreeMap::new(),
            permits: BTreeMap::new(),
            openings: BTreeMap::new(),
            held: BTreeMap::new(),
            by_home: BTreeMap::new(),
            avoided: BTreeMap::new(),
            indexed: BTreeMap::new(),
            wanted: BTreeMap::new(),
            closing: BTreeMap::new(),
            refused: BTreeMap::new(),
            full_until: Instant::ZERO,
            gone: BTreeMap::new(),
            arrivals: Arrivals::default(),
            dirty_nodes: BTreeSet::new(),
            dirty_worlds: BTreeSet::new(),
            wakes: BTreeSet::new(),
            flights: BTreeMap::new(),
            requests: 0,
            unsent: VecDeque::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
            defect: None,
        }
    }

    /// Makes the node break a rule. For the tests of the simulation.
    #[doc(hidden)]
    #[must_use]
    pub fn with_defect(mut self, defect: Option<Defect>) -> Node {
        self.defect = defect;
        self
    }

    fn has(&self, defect: Defect) -> bool {
        cfg!(debug_assertions) && self.defect == Some(defect)
    }

    /// Takes a record from the watch: its key, its revision, and its value or the mark of a
    /// deletion. Records that are older than one seen are ignored.
    pub fn handle_record(&mut self, now: Instant, key: &str, revision: u64, value: Option<&[u8]>) {
        self.observe(now);
        self.revision_max = self.revision_max.max(revision);
        match Key::parse(key) {
            Some(key) => {
                let was_foreign = self.is_foreign(&key);
                self.learn(now, &key, revision, value);
                self.report_unreadable(key, was_foreign, value);
            }
            None => self.stats.ignored += 1,
        }
        self.step(now);
    }

    /// The watch has a gap. The driver reads everything again, through [`Node::handle_record`],
    /// and then calls [`Node::handle_synced`]. Until then the node renews and decides nothing.
    pub fn handle_gap(&mut self, now: Instant) {
        self.observe(now);
        self.stats.gaps += 1;
        self.is_synced = false;
        self.step(now);
    }

    /// All records have been delivered. The driver calls this once after the start and after each
    /// gap.
    pub fn handle_synced(&mut self, now: Instant) {
        self.observe(now);
        self.is_synced = true;
        self.consider_all();
        self.step(now);
    }

    /// The directory has lost acknowledged writes: its last revision is less than one seen, or the
    /// bucket was made again. The node forgets all revisions. The driver calls this within a gap,
    /// before it reads everything again.
    pub fn handle_rewound(&mut self, now: Instant) {
        self.observe(now);
        self.cluster = Known::Absent;
        self.matchers.clear();
        self.drains.clear();
        for (name, slot) in &mut self.nodes {
            slot.forget();
            self.dirty_nodes.insert(name.clone());
        }
        for (name, slot) in &mut self.worlds {
            slot.forget();
            self.dirty_worlds.insert(name.clone());
        }
        self.permits.values_mut().for_each(PermitSlot::forget);
        self.openings.clear();
        let worlds: Vec<Name> = self.worlds.keys().cloned().collect();
        for world in worlds {
            self.index(&world);
        }
        self.forget_own_write();
        self.step(now);
    }

    /// Takes the result of a request.
    pub fn handle_result(&mut self, now: Instant, id: RequestId, result: DirectoryResult) {
        self.observe(now);
        let Some(flight) = self.flights.remove(&id.0) else { return };
        self.stats.unknown += u64::from(result == DirectoryResult::Unknown);
        self.stats.refused += u64::from(result == DirectoryResult::Refused);
        if let DirectoryResult::Applied(revision) | DirectoryResult::Found { revision, .. } = &result {
            self.revision_max = self.revision_max.max(*revision);
        }
        let was_foreign = self.is_foreign(&flight.key);
        let value = match &result {
            DirectoryResult::Found { value, .. } => value.clone(),
            _ => None,
        };
        match flight.key.clone() {
            Key::Node(name) => self.on_node_result(now, &name, &flight, result),
            Key::World(name) => self.on_world_result(now, &name, &flight, result),
            Key::Permit(class, number) => self.on_permit_result(now, &(class, number), &flight, result),
            Key::Cluster | Key::Matcher(_) | Key::Drain(_) => {}
        }
        self.report_unreadable(flight.key, was_foreign, value.as_deref());
        self.step(now);
    }

    /// The driver has measured the node's load, see [`NodeRecord::load_permille`], and the number
    /// of worlds for which there is room. The next renewal says so.
    pub fn handle_load(&mut self, now: Instant, load_permille: u16, free_worlds: u32) {
        self.observe(now);
        (self.setup.record.load_permille, self.setup.record.free_worlds) = (load_permille, free_worlds);
        self.step(now);
    }

    /// The classes have changed, for worlds that open from now on. The next renewal says so.
    pub fn handle_classes(&mut self, now: Instant, classes: BTreeMap<Name, Class>) {
        self.observe(now);
        self.setup.record.classes = hashes(&classes);
        self.setup.classes = classes;
        self.renew_soon(now);
        self.step(now);
    }

    /// Does everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.observe(now);
        self.step(now);
    }

    /// Next request to the directory.
    pub fn poll_request(&mut self) -> Option<DirectoryRequest> {
        self.unsent.pop_front()
    }

    /// Next change.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Earliest time at which [`Node::handle_timeout`] has work; `None` after the end of the node.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Over) {
            return None;
        }
        let wake = self.wakes.first().map(|(at, _)| *at);
        [wake, self.lease_timeout(), self.arrivals.next_timeout(), self.drain_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let is_foreign = |is: bool| u64::from(is);
        let unreadable =
            self.nodes.values().map(|slot| is_foreign(slot.known == Known::Foreign)).sum::<u64>()
                + self.worlds.values().map(|slot| is_foreign(slot.known == Known::Foreign)).sum::<u64>()
                + self.matchers.values().map(|(_, known)| is_foreign(*known == Known::Foreign)).sum::<u64>()
                + self.drains.values().map(|(_, known)| is_foreign(*known == Known::Foreign)).sum::<u64>()
                + self.permits.values().map(|slot| is_foreign(slot.known == Known::Foreign)).sum::<u64>()
                + is_foreign(self.cluster == Known::Foreign);
        Stats { unreadable, ..self.stats }
    }

    /// Nodes of the directory, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&Name, &NodeRecord)> {
        self.nodes.iter().filter_map(|(name, slot)| Some((name, slot.known.record()?)))
    }

    /// Returns whether another node takes worlds.
    #[must_use]
    pub fn has_other_up(&self) -> bool {
        self.nodes().any(|(name, node)| *name != self.setup.node && node.state == NodeState::Up)
    }

    /// The record of a node, and the time for which it has not changed while the directory
    /// answered.
    #[must_use]
    pub fn node(&self, name: &Name) -> Option<(&NodeRecord, Duration)> {
        let slot = self.nodes.get(name)?;
        Some((slot.known.record()?, self.stopwatch.reading().saturating_sub(slot.since)))
    }

    /// Worlds of the directory, by name.
    pub fn worlds(&self) -> impl Iterator<Item = (&Name, &WorldRecord)> {
        self.worlds.iter().filter_map(|(name, slot)| Some((name, slot.known.record()?)))
    }

    /// The record of a world.
    #[must_use]
    pub fn world(&self, name: &Name) -> Option<&WorldRecord> {
        self.worlds.get(name)?.known.record()
    }

    /// Areas of the directory, by name.
    pub fn matchers(&self) -> impl Iterator<Item = (&Name, &Record)> {
        self.matchers.iter().filter_map(|(name, (_, known))| Some((name, known.record()?)))
    }

    /// Counts time up to `now` and notices the end of the lease. Every input begins with it.
    fn observe(&mut self, now: Instant) {
        self.stopwatch.advance(now);
        if self.has(Defect::CountWhileCutOff) {
            self.stopwatch.answered(now);
        }
        self.check_lease(now);
    }

    /// Decides what there is to decide. Every input ends with it.
    fn step(&mut self, now: Instant) {
        while let Some((at, wake)) = self.wakes.first().cloned().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, wake.clone()));
            match wake {
                Wake::Node(name) => {
                    if let Some(slot) = self.nodes.get_mut(&name) {
                        slot.wake = None;
                    }
                    self.dirty_nodes.insert(name);
                }
                Wake::World(name) => {
                    if let Some(slot) = self.worlds.get_mut(&name) {
                        slot.wake = None;
                    }
                    self.dirty_worlds.insert(name);
                }
                Wake::Permit(id) => {
                    if let Some(slot) = self.permits.get_mut(&id) {
                        slot.wake = None;
                    }
                    self.pump_permit(now, &id);
                }
            }
        }
        self.step_lease(now);
        while let Some(name) = self.dirty_nodes.pop_first() {
            self.consider_node(now, &name);
        }
        loop {
            while let Some(name) = self.dirty_worlds.pop_first() {
                self.consider_world(now, &name);
                self.settle(now, &name);
                self.settle_permit(now, &name);
                self.forget_world(now, &name);
            }
            self.step_drain(now);
            if self.dirty_worlds.is_empty() {
                break;
            }
        }
        self.expire_arrivals(now);
    }

    /// Considers everything, because nothing could be decided for a while.
    fn consider_all(&mut self) {
        self.dirty_worlds.extend(self.worlds.keys().cloned());
        self.dirty_nodes.extend(self.nodes.keys().cloned());
    }

    /// Returns whether the node may decide about others: it has its lease, its renewals succeed,
    /// and it has seen everything.
    fn decides(&self, now: Instant) -> bool {
        self.is_synced
            && matches!(self.phase, Phase::Up)
            && self.lease.as_ref().is_some_and(|lease| !lease.has_lapsed)
            && self.stopwatch.runs(now)
    }

    /// Takes a record, unless it is older than one seen.
    fn learn(&mut self, now: Instant, key: &Key, revision: u64, value: Option<&[u8]>) {
        match key {
            Key::Cluster => self.cluster = Known::parse(value, ClusterRecord::parse),
            Key::Node(name) => {
                if self.nodes.len() + self.worlds.len() >= RECORDS_MAX && !self.nodes.contains_key(name) {
                    self.stats.ignored += 1;
                    return;
                }
                self.learn_node(now, name, revision, Known::parse(value, NodeRecord::parse));
            }
            Key::World(name) => {
                if self.nodes.len() + self.worlds.len() >= RECORDS_MAX && !self.worlds.contains_key(name) {
                    self.stats.ignored += 1;
                    return;
                }
                self.learn_world(now, name, revision, Known::parse(value, WorldRecord::parse));
            }
            Key::Matcher(name) => {
                keep(&mut self.matchers, name, revision, Known::parse(value, Record::parse), &mut self.stats);
            }
            Key::Drain(name) => {
                keep(
                    &mut self.drains,
                    name,
                    revision,
                    Known::parse(value, DrainRecord::parse),
                    &mut self.stats,
                );
                if *name == self.setup.node {
                    self.on_drain_record(now);
                }
            }
            Key::Permit(class, number) => {
                let id = (class.clone(), *number);
                if self.permits.len() >= RECORDS_MAX && !self.permits.contains_key(&id) {
                    self.stats.ignored += 1;
                    return;
                }
                self.learn_permit(now, &id, revision, Known::parse(value, PermitRecord::parse));
            }
        }
    }

    /// Returns whether a key has a record that cannot be read.
    fn is_foreign(&self, key: &Key) -> bool {
        match key {
            Key::Cluster => self.cluster == Known::Foreign,
            Key::Node(name) => self.nodes.get(name).is_some_and(|slot| slot.known == Known::Foreign),
            Key::World(name) => self.worlds.get(name).is_some_and(|slot| slot.known == Known::Foreign),
            Key::Matcher(name) => self.matchers.get(name).is_some_and(|(_, known)| *known == Known::Foreign),
            Key::Drain(name) => self.drains.get(name).is_some_and(|(_, known)| *known == Known::Foreign),
            Key::Permit(class, number) => {
                let slot = self.permits.get(&(class.clone(), *number));
                slot.is_some_and(|slot| slot.known == Known::Foreign)
            }
        }
    }

    /// Reports a record that cannot be read, unless the one before could not be read either.
    fn report_unreadable(&mut self, key: Key, was_foreign: bool, value: Option<&[u8]>) {
        let Some(value) = value.filter(|_| !was_foreign && self.is_foreign(&key)) else { return };
        let why = match &key {
            Key::Cluster => ClusterRecord::parse(value).err(),
            Key::Node(_) => NodeRecord::parse(value).err(),
            Key::World(_) => WorldRecord::parse(value).err(),
            Key::Matcher(_) => Record::parse(value).err(),
            Key::Drain(_) => DrainRecord::parse(value).err(),
            Key::Permit(..) => PermitRecord::parse(value).err(),
        };
        if let Some(why) = why {
            self.events.push_back(Event::Unreadable { key, why });
        }
    }

    /// Meaning of a request without an answer, which a defect may change.
    fn silence(&mut self) -> Silence {
        if self.has(Defect::TimeoutIsFailure) {
            Silence::Failure
        } else if self.has(Defect::TimeoutIsSuccess) {
            Silence::Success
        } else if self.has(Defect::FreshNonce) {
            Silence::Renumber(self.nonce())
        } else {
            Silence::Open
        }
    }

    fn nonce(&mut self) -> u64 {
        self.writes = self.writes.wrapping_add(1);
        u64::from(self.writer) << 32 | u64::from(self.writes)
    }

    /// Returns whether this process wrote a record with this nonce.
    fn is_mine(&self, nonce: u64) -> bool {
        nonce >> 32 == u64::from(self.writer)
    }

    fn next_request(&mut self, key: Key, nonce: Option<u64>, now: Instant) -> RequestId {
        self.requests += 1;
        self.flights.insert(self.requests, Flight { key, nonce, sent: now });
        RequestId(self.requests)
    }

    fn send(&mut self, now: Instant, key: Key, op: Op) -> u64 {
        let (nonce, action) = match op {
            Op::Read => (None, Action::Read),
            Op::Write { expected, nonce, value } => (Some(nonce), Action::Write { expected, value }),
            Op::Delete { expected } => (Some(0), Action::Delete { expected }),
        };
        let id = self.next_request(key.clone(), nonce, now);
        self.unsent.push_back(DirectoryRequest { id, key, action });
        id.0
    }

    /// Sends what a node's record is waiting for, if it is time.
    fn pump_node(&mut self, now: Instant, name: &Name) {
        let Some(slot) = self.nodes.get_mut(name) else { return };
        if let Some(op) = slot.next_op(now) {
            let id = self.send(now, Key::Node(name.clone()), op);
            if let Some(slot) = self.nodes.get_mut(name) {
                slot.flight = Some(id);
            }
        } else if let Some(at) = slot.retry_at.filter(|_| slot.flight.is_none()) {
            self.wake_node(name, at);
        }
    }

    /// Sends what a world's record is waiting for, if it is time.
    fn pump_world(&mut self, now: Instant, name: &Name) {
        let Some(slot) = self.worlds.get_mut(name) else { return };
        if let Some(op) = slot.next_op(now) {
            let id = self.send(now, Key::World(name.clone()), op);
            if let Some(slot) = self.worlds.get_mut(name) {
                slot.flight = Some(id);
            }
        } else if let Some(at) = slot.retry_at.filter(|_| slot.flight.is_none()) {
            self.wake_world(name, at);
        }
    }

    /// Sends what a permit is waiting for, if it is time.
    fn pump_permit(&mut self, now: Instant, id: &PermitId) {
        let Some(slot) = self.permits.get_mut(id) else { return };
        if let Some(op) = slot.next_op(now) {
            let sent = self.send(now, Key::Permit(id.0.clone(), id.1), op);
            if let Some(slot) = self.permits.get_mut(id) {
                slot.flight = Some(sent);
            }
        } else if let Some(at) = slot.retry_at.filter(|_| slot.flight.is_none())
            && slot.wake.is_none_or(|wake| at < wake)
        {
            if let Some(old) = slot.wake.replace(at) {
                self.wakes.remove(&(old, Wake::Permit(id.clone())));
            }
            self.wakes.insert((at, Wake::Permit(id.clone())));
        }
    }

    /// Considers a node again at `at`, or before.
    fn wake_node(&mut self, name: &Name, at: Instant) {
        let Some(slot) = self.nodes.get_mut(name) else { return };
        if slot.wake.is_none_or(|wake| at < wake) {
            if let Some(old) = slot.wake.replace(at) {
                self.wakes.remove(&(old, Wake::Node(name.clone())));
            }
            self.wakes.insert((at, Wake::Node(name.clone())));
        }
    }

    /// Considers a world again at `at`, or before.
    fn wake_world(&mut self, name: &Name, at: Instant) {
        let Some(slot) = self.worlds.get_mut(name) else { return };
        if slot.wake.is_none_or(|wake| at < wake) {
            if let Some(old) = slot.wake.replace(at) {
                self.wakes.remove(&(old, Wake::World(name.clone())));
            }
            self.wakes.insert((at, Wake::World(name.clone())));
        }
    }
}

/// The classes of a node as its record has them.
fn hashes(classes: &BTreeMap<Name, Class>) -> BTreeMap<Name, String> {
    classes.iter().map(|(name, class)| (name.clone(), class.hash.clone())).collect()
}

/// Keeps a record that the node only shows.
fn keep<R>(
    table: &mut BTreeMap<Name, (u64, Known<R>)>,
    name: &Name,
    revision: u64,
    known: Known<R>,
    stats: &mut Stats,
) {
    if table.len() >= RECORDS_MAX && !table.contains_key(name) {
        stats.ignored += 1;
    } else if table.get(name).is_none_or(|seen| revision >= seen.0) {
        table.insert(name.clone(), (revision, known));
    }
}
