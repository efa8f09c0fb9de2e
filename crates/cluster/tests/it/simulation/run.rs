//! One run: nodes with their processes, clocks and worker threads, players who arrive, and a
//! directory between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use throng_cluster::{
    Action, Answer, ArrivalId, Class, ClusterRecord, Defect, DirectoryRequest, DirectoryResult, EndReason,
    Event, Failure, Key, Name, Node, NodeRecord, NodeState, Refusal, RequestId, Setup, WorldRecord,
    WorldState,
};
use throng_stdx::{Instant, Rng};

use super::bus::Bus;

/// One millisecond; the unit of true time is the microsecond.
pub(crate) const MS: u64 = 1_000;
pub(crate) const S: u64 = 1_000 * MS;
/// A request without an answer ends after this time.
const TIMEOUT: u64 = 2 * S;
/// Lease time that a mark needs, by the fastest clock.
const SILENCE: u64 = 13_700 * MS;
/// Items of a run: some hundred times as many as a run of two minutes has.
const ITEMS_MAX: u64 = 1_000_000;
pub(crate) const CLASS: &str = "hub";
/// A class with a limit of worlds.
pub(crate) const LIMITED: &str = "cup";
pub(crate) const LIMIT: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) nodes: usize,
    /// Worlds that players always want.
    pub(crate) worlds: usize,
    pub(crate) defect: Option<Defect>,
    /// Wall clocks, which jump, in place of monotonic ones.
    pub(crate) wall_clock: bool,
    /// The directory loses acknowledged writes, so only liveness is checked.
    pub(crate) is_lossy: bool,
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).expect("a name")
}

#[derive(Debug)]
enum Item {
    /// Time for a node's timers.
    Tick,
    /// The watch delivers.
    Watch,
    /// The watch is established again after a gap.
    Synced,
    /// A request reaches the directory.
    Asked(DirectoryRequest, u64),
    /// A write without an answer is applied.
    Late(DirectoryRequest),
    /// The outcome of a request reaches the node.
    Answered(RequestId, DirectoryResult),
    /// The driver has made a world.
    Opened(Name, u64, u64),
    /// A worker takes an event.
    Worker(Event),
    Start,
}

struct Scheduled {
    at: u64,
    order: u64,
    node: usize,
    life: u32,
    item: Item,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A machine with a name, and the process on it.
pub(crate) struct Machine {
    pub(crate) name: Name,
    pub(crate) core: Option<Node>,
    life: u32,
    /// Number of its folder.
    folder: u32,
    boot: u32,
    /// Rate of its clock in thousandths.
    pub(crate) rate: u64,
    offset: u64,
    /// Jumps of its wall clock.
    pub(crate) jump: i64,
    pub(crate) stands_until: u64,
    pub(crate) slow_until: u64,
    /// Its requests are lost.
    pub(crate) cut_out_until: u64,
    /// Answers and deliveries to it are lost.
    pub(crate) cut_in_until: u64,
    pub(crate) late_watch_until: u64,
    pub(crate) has_gap: bool,
    is_rewound: bool,
    /// Keys that it was told of, so that a reading without them says that they are gone.
    known: BTreeSet<Rc<str>>,
    position: usize,
    tick_at: u64,
    /// Time at which workers take the latest event.
    posted: u64,
    /// Inputs of the time in which the process stood still.
    missed: Vec<Item>,
    /// Worlds on its workers.
    pub(crate) workers: BTreeMap<Name, OnWorker>,
    pub(crate) is_up: bool,
    pub(crate) failure: Option<Failure>,
    /// Keys of the records that it could not read.
    pub(crate) unreadable: Vec<String>,
    /// The supervisor starts the process again when it ends.
    pub(crate) is_supervised: bool,
    pub(crate) answers: BTreeMap<u64, Answer>,
    /// Worlds that it was requested to close and that are closing, and whether they were open.
    pub(crate) closings: Vec<(Name, bool)>,
}

/// A world on a worker.
pub(crate) struct OnWorker {
    /// The incarnation whose lease the worker compares with its clock.
    incarnation: u64,
    epoch: u64,
    is_served: bool,
}

/// Counts of events, for assertions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) marks: u64,
    pub(crate) homes: u64,
    pub(crate) lapses: u64,
    pub(crate) thaws: u64,
    pub(crate) moves: u64,
    pub(crate) deposed: u64,
    pub(crate) lost_answers: u64,
    pub(crate) arrived: u64,
    pub(crate) deleted: u64,
    pub(crate) exhausted: u64,
}

pub(crate) struct Run {
    pub(crate) rng: Rng,
    pub(crate) options: Options,
    pub(crate) now: u64,
    pub(crate) bus: Bus,
    pub(crate) machines: Vec<Machine>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    processed: u64,
    /// Chance that a request meets a fault.
    pub(crate) hostility: f64,
    /// Homes of each epoch.
    homes: BTreeMap<(Name, u64), String>,
    renewed: BTreeMap<Name, u64>,
    /// Arrivals that wait: the time, the world.
    pub(crate) arrivals: u64,
    pub(crate) tally: Tally,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<String>,
    /// Changes the setup of a node.
    pub(crate) configure: fn(usize, &mut Setup),
    /// Nodes whose driver cannot make worlds.
    pub(crate) cannot_open: Vec<usize>,
    /// Age of what a follower shows.
    pub(crate) follower_lag: u64,
    /// Number of worlds that the class with a limit may have.
    pub(crate) limit: u32,
    /// Answers of the directory, one per write of a node, of directed tests.
    pub(crate) script: Vec<(Key, Fate)>,
}

/// Fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is applied and answered.
    Normal,
    /// It is applied, and the answer is as late as an answer may be.
    LateAnswer,
    /// It is applied, and not answered.
    NoAnswer,
    /// It is neither applied nor answered.
    Lost,
    /// It is not answered, and applied later.
    LateWrite,
    /// It is refused by error 10164, which says nothing.
    Busy,
}

impl Run {
    pub(crate) fn new(seed: u64, options: Options) -> Run {
        let mut rng = Rng::new(seed ^ 0x5EED_0FC1);
        let mut bus = Bus::default();
        bus.write(0, "cluster", 0, Some(cluster().to_bytes()));
        let machines = (0..options.nodes)
            .map(|index| Machine {
                name: name(&format!("n{index}")),
                core: None,
                life: 0,
                folder: index as u32,
                boot: index as u32,
                rate: 910 + rng.below(181),
                offset: rng.below(1_000) * S,
                jump: 0,
                stands_until: 0,
                slow_until: 0,
                cut_out_until: 0,
                cut_in_until: 0,
                late_watch_until: 0,
                has_gap: false,
                is_rewound: false,
                known: BTreeSet::new(),
                position: 0,
                tick_at: u64::MAX,
                posted: 0,
                missed: Vec::new(),
                workers: BTreeMap::new(),
                is_up: false,
                failure: None,
                unreadable: Vec::new(),
                is_supervised: true,
                answers: BTreeMap::new(),
                closings: Vec::new(),
            })
            .collect();
        Run {
            rng,
            options,
            now: 0,
            bus,
            machines,
            queue: BinaryHeap::new(),
            order: 0,
            processed: 0,
            hostility: 0.0,
            homes: BTreeMap::new(),
            renewed: BTreeMap::new(),
            arrivals: 0,
            tally: Tally::default(),
            violation: None,
            trace: None,
            configure: |_, _| {},
            cannot_open: Vec::new(),
            follower_lag: 0,
            limit: LIMIT,
            script: Vec::new(),
        }
    }

    pub(crate) fn clock(&self, node: usize) -> Instant {
        let machine = &self.machines[node];
        let nanos = (machine.offset + 1_000 * S) * 1_000 + self.now * machine.rate;
        let jump = if self.options.wall_clock { machine.jump * 1_000 } else { 0 };
        Instant::from_nanos(nanos.saturating_add_signed(jump))
    }

    fn true_time(&self, node: usize, at: Instant) -> u64 {
        let machine = &self.machines[node];
        let jump = if self.options.wall_clock { machine.jump * 1_000 } else { 0 };
        let nanos = at.as_nanos().saturating_add_signed(-jump);
        nanos.saturating_sub((machine.offset + 1_000 * S) * 1_000).div_ceil(machine.rate)
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{:>10.3} {}", self.now as f64 / S as f64, line());
        }
    }

    fn schedule(&mut self, at: u64, node: usize, item: Item) {
        self.order += 1;
        let life = self.machines.get(node).map_or(0, |machine| machine.life);
        self.queue.push(Reverse(Scheduled { at: at.max(self.now), order: self.order, node, life, item }));
    }

    /// Delay of a message over the network.
    fn trip(&mut self) -> u64 {
        let longest = if self.rng.chance(0.05) { 20 * MS } else { MS };
        100 + self.rng.below(longest)
    }

    pub(crate) fn start(&mut self, node: usize, after: u64) {
        self.schedule(self.now + after, node, Item::Start);
    }

    fn begin(&mut self, node: usize) {
        if self.machines[node].core.is_some() {
            return;
        }
        let seed = self.rng.next_u64();
        let arrivals_max = 1_000;
        let clock = self.clock(node);
        let defect = self.options.defect;
        let machine = &mut self.machines[node];
        machine.life += 1;
        let mut setup = Setup {
            cluster: cluster(),
            record: NodeRecord {
                incarnation: 0,
                nonce: 0,
                state: NodeState::Up,
                addresses: vec![throng_cluster::Address {
                    transport: "tcp".to_owned(),
                    kind: "client".to_owned(),
                    address: format!("{}:1", machine.name),
                    world: None,
                }],
                release: "0.1.0".to_owned(),
                folder: format!("f{}", machine.folder),
                boot: format!("b{}", machine.boot),
                labels: BTreeMap::new(),
                classes: BTreeMap::new(),
                load_permille: 0,
                worlds: 0,
                worlds_max: 50,
                free_worlds: 50,
                rest: Default::default(),
            },
            node: machine.name.clone(),
            has_lock: true,
            classes: [(CLASS, None), (LIMITED, Some(LIMIT))]
                .map(|(class, worlds_max)| {
                    (name(class), Class { hash: "h".to_owned(), labels: BTreeMap::new(), worlds_max })
                })
                .into(),
            patience: Duration::from_secs(30),
            arrivals_max,
            origin_unix_ms: 0,
        };
        (self.configure)(node, &mut setup);
        machine.core = Some(Node::new(setup, seed, clock).with_defect(defect));
        machine.workers.clear();
        machine.answers.clear();
        machine.closings.clear();
        (machine.is_up, machine.failure, machine.tick_at) = (false, None, u64::MAX);
        (machine.has_gap, machine.position) = (false, 0);
        self.note(|| format!("start {node}"));
        self.handle(node, |core, now| core.handle_gap(now));
        self.machines[node].has_gap = true;
        let delay = self.trip();
        self.schedule(self.now + delay, node, Item::Synced);
    }

    /// The process stands still until a time.
    pub(crate) fn stop(&mut self, node: usize, until: u64) {
        self.note(|| format!("stop {node} until {until}"));
        if self.machines[node].core.is_some() {
            self.machines[node].stands_until = until;
            self.schedule(until, node, Item::Tick);
        }
    }

    /// The process ends at once.
    pub(crate) fn kill(&mut self, node: usize) {
        self.note(|| format!("kill {node}"));
        let machine = &mut self.machines[node];
        machine.core = None;
        machine.life += 1;
        machine.stands_until = 0;
        machine.missed.clear();
        machine.workers.clear();
        machine.is_up = false;
    }

    /// The machine gets an empty folder.
    pub(crate) fn lose_folder(&mut self, node: usize) {
        self.machines[node].folder += 100;
    }

    pub(crate) fn gap(&mut self, node: usize, until: u64) {
        let machine = &self.machines[node];
        if machine.core.is_none() || machine.has_gap || machine.stands_until > self.now {
            return;
        }
        self.machines[node].has_gap = true;
        self.note(|| format!("gap {node}"));
        self.handle(node, |core, now| core.handle_gap(now));
        self.schedule(until, node, Item::Synced);
    }

    /// The directory loses all but the first `length` writes, and all nodes read it again.
    pub(crate) fn lose(&mut self, length: usize) {
        self.note(|| format!("directory loses all after {length} writes"));
        self.bus.lose(length);
        if length == 0 {
            self.bus.write(self.now, "cluster", 0, Some(cluster().to_bytes()));
        }
        for node in 0..self.machines.len() {
            if self.machines[node].core.is_none() {
                continue;
            }
            self.machines[node].is_rewound = true;
            self.machines[node].has_gap = true;
            self.handle(node, |core, now| core.handle_gap(now));
            let until = self.now + self.rng.below(3 * S);
            self.schedule(until, node, Item::Synced);
        }
    }

    /// Calls a node's core, and does what it wants.
    pub(crate) fn handle(&mut self, node: usize, call: impl FnOnce(&mut Node, Instant)) {
        let now = self.clock(node);
        if self.machines[node].stands_until > self.now {
            return;
        }
        let Some(mut core) = self.machines[node].core.take() else { return };
        call(&mut core, now);
        let mut events = Vec::new();
        while let Some(event) = core.poll_event() {
            events.push(event);
        }
        let mut unsent = Vec::new();
        while let Some(ask) = core.poll_request() {
            unsent.push(ask);
        }
        let next = core.next_timeout();
        self.machines[node].core = Some(core);
        for event in events {
            self.act(node, event);
        }
        for ask in unsent {
            let delay = self.trip();
            self.schedule(self.now + delay, node, Item::Asked(ask, self.now));
        }
        if let Some(next) = next {
            let mut at = self.true_time(node, next).max(self.now);
            if self.now < self.machines[node].slow_until {
                at += self.rng.below(700 * MS);
            } else if self.hostility > 0.0 {
                at += self.rng.below(3 * MS);
            }
            if at < self.machines[node].tick_at {
                self.machines[node].tick_at = at;
                self.schedule(at, node, Item::Tick);
            }
        }
        self.check_overlap(node);
    }

    /// The driver acts on an event.
    fn act(&mut self, node: usize, event: Event) {
        self.note(|| format!("{node}: {event:?}"));
        let slow = if self.now < self.machines[node].slow_until { 500 * MS } else { 5 * MS };
        let delay = self.rng.below(slow);
        match &event {
            Event::Up { .. } => self.machines[node].is_up = true,
            Event::Lapsed { .. } => {
                // The workers see it by the time that is published for them.
                self.tally.lapses += 1;
                for worker in self.machines[node].workers.values_mut() {
                    worker.is_served = false;
                }
            }
            Event::Deposed { .. } => {
                self.tally.deposed += 1;
                self.machines[node].is_up = false;
            }
            Event::Failed(failure) => {
                self.machines[node].failure = Some(failure.clone());
                self.exit(node);
            }
            Event::Left => self.exit(node),
            Event::Open { world, epoch, incarnation, .. } => {
                self.schedule(self.now + delay, node, Item::Opened(world.clone(), *epoch, *incarnation));
            }
            Event::End { why, .. } => {
                self.tally.moves += u64::from(matches!(why, EndReason::Moved { .. }));
                self.post(node, delay, event);
            }
            Event::Thaw { .. } => {
                self.tally.thaws += 1;
                self.post(node, delay, event);
            }
            Event::Serve { .. } | Event::Freeze { .. } | Event::Renumbered { .. } => {
                self.post(node, delay, event);
            }
            Event::Arrived { arrival, answer } => {
                self.tally.arrived += 1;
                self.tally.exhausted += u64::from(*answer == Answer::Refused(Refusal::WorldsMax));
                self.machines[node].answers.insert(arrival.0, answer.clone());
            }
            Event::Closing { world, was_open } => {
                self.machines[node].closings.push((world.clone(), *was_open));
            }
            Event::Unreadable { key, .. } => self.machines[node].unreadable.push(key.to_string()),
            Event::PatienceOver => {}
        }
    }

    /// Workers take events in their order.
    fn post(&mut self, node: usize, delay: u64, event: Event) {
        let at = (self.now + delay).max(self.machines[node].posted);
        self.machines[node].posted = at;
        self.schedule(at, node, Item::Worker(event));
    }

    fn exit(&mut self, node: usize) {
        self.kill(node);
        if self.machines[node].is_supervised {
            let after = S + self.rng.below(2 * S);
            self.start(node, after);
        }
    }

    /// Runs until a time.
    pub(crate) fn run_until(&mut self, until: u64) {
        while self.violation.is_none() && self.queue.peek().is_some_and(|next| next.0.at <= until) {
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.now = next.at;
            self.processed += 1;
            if self.processed > ITEMS_MAX {
                let (node, item) = (next.node, &next.item);
                let core = self.machines[node].core.as_ref();
                let timeout = core.and_then(|core| core.next_timeout()).map(|at| self.true_time(node, at));
                self.complain(format!("node {node} does not come to rest: {item:?}, due at {timeout:?}"));
            }
            self.process(next);
        }
        self.now = until;
    }

    fn process(&mut self, next: Scheduled) {
        let Scheduled { node, life, item, .. } = next;
        // The network does not need the process.
        match item {
            Item::Start => return self.begin(node),
            Item::Asked(ask, sent) => return self.asked(node, life, ask, sent),
            Item::Late(ask) => {
                self.apply(&ask);
                return;
            }
            _ => {}
        }
        if self.machines[node].life != life || self.machines[node].core.is_none() {
            return;
        }
        // A process that stands still takes everything when it continues.
        if self.machines[node].stands_until > self.now {
            self.machines[node].missed.push(item);
            return;
        }
        if self.machines[node].stands_until > 0 {
            self.machines[node].stands_until = 0;
            // Its workers speak before it learns anything.
            self.check_overlap(node);
            for item in std::mem::take(&mut self.machines[node].missed) {
                self.take(node, life, item);
            }
        }
        self.take(node, life, item);
    }

    fn take(&mut self, node: usize, life: u32, item: Item) {
        if self.machines[node].life != life {
            return;
        }
        match item {
            Item::Tick => {
                self.machines[node].tick_at = u64::MAX;
                self.handle(node, |core, now| core.handle_timeout(now));
            }
            Item::Watch => self.deliver(node),
            Item::Synced => self.sync(node),
            Item::Answered(id, outcome) => {
                self.handle(node, |core, now| core.handle_result(now, id, outcome));
            }
            Item::Opened(world, epoch, incarnation) => {
                let is_made = !self.cannot_open.contains(&node);
                if is_made {
                    self.machines[node]
                        .workers
                        .insert(world.clone(), OnWorker { incarnation, epoch, is_served: false });
                }
                self.handle(node, |core, now| core.handle_opened(now, &world, epoch, is_made));
            }
            Item::Worker(event) => self.worker(node, event),
            Item::Start | Item::Asked(..) | Item::Late(_) => {}
        }
    }

    /// A worker thread takes an event.
    fn worker(&mut self, node: usize, event: Event) {
        let workers = &mut self.machines[node].workers;
        match event {
            Event::Serve { world, epoch, incarnation } => {
                workers.insert(world, OnWorker { incarnation, epoch, is_served: true });
            }
            Event::Thaw { world, epoch, .. } => {
                if let Some(worker) = workers.get_mut(&world).filter(|worker| worker.epoch == epoch) {
                    worker.is_served = true;
                }
            }
            Event::Freeze { world, epoch, .. } => {
                if let Some(worker) = workers.get_mut(&world).filter(|worker| worker.epoch == epoch) {
                    worker.is_served = false;
                }
                return self.handle(node, |core, now| core.handle_frozen(now, &world, epoch));
            }
            Event::Renumbered { world, from, epoch, .. } => {
                if let Some(worker) = workers.get_mut(&world).filter(|worker| worker.epoch == from) {
                    worker.epoch = epoch;
                }
            }
            Event::End { world, epoch, .. }
                if workers.get(&world).is_some_and(|worker| worker.epoch == epoch) =>
            {
                workers.remove(&world);
            }
            _ => {}
        }
        self.check_overlap(node);
    }

    fn deliver(&mut self, node: usize) {
        let machine = &self.machines[node];
        let blocked = machine.late_watch_until.max(machine.cut_in_until);
        if machine.has_gap {
            return;
        }
        if blocked > self.now {
            return self.schedule(blocked, node, Item::Watch);
        }
        while let Some(entry) = self.bus.log.get(self.machines[node].position).cloned() {
            self.machines[node].position += 1;
            self.machines[node].known.insert(Rc::clone(&entry.key));
            self.handle(node, |core, now| {
                core.handle_record(now, &entry.key, entry.revision, entry.value.as_deref());
            });
            if self.machines[node].core.is_none() {
                return;
            }
        }
    }

    /// Reads everything again, from a follower that may lag, and continues from there.
    fn sync(&mut self, node: usize) {
        let blocked = self.bus.away_until.max(self.machines[node].cut_in_until);
        if blocked > self.now {
            return self.schedule(blocked + MS, node, Item::Synced);
        }
        let is_stale = self.rng.chance(self.hostility * 5.0);
        let lag = if is_stale { self.rng.below(5 * S) } else { self.follower_lag };
        let length = self.bus.length_at(self.now.saturating_sub(lag));
        if std::mem::take(&mut self.machines[node].is_rewound) {
            self.handle(node, |core, now| core.handle_gap(now));
            self.handle(node, |core, now| core.handle_rewound(now));
        }
        let entries = self.bus.snapshot(length);
        let newest = entries.iter().map(|entry| entry.revision).max().unwrap_or(0);
        let before = std::mem::take(&mut self.machines[node].known);
        for entry in entries {
            self.machines[node].known.insert(Rc::clone(&entry.key));
            self.handle(node, |core, now| {
                core.handle_record(now, &entry.key, entry.revision, entry.value.as_deref());
            });
            if self.machines[node].core.is_none() {
                return;
            }
        }
        let gone: Vec<_> = before.difference(&self.machines[node].known).cloned().collect();
        for key in gone {
            self.handle(node, |core, now| core.handle_record(now, &key, newest, None));
        }
        self.machines[node].position = length;
        self.machines[node].has_gap = false;
        self.handle(node, |core, now| core.handle_synced(now));
        self.schedule(self.now, node, Item::Watch);
    }

    /// A request reaches the directory, or not.
    fn asked(&mut self, node: usize, life: u32, ask: DirectoryRequest, sent: u64) {
        let is_write = !matches!(ask.action, Action::Read);
        let scripted = self.script.iter().position(|(key, _)| is_write && *key == ask.key);
        let fate = if let Some(at) = scripted {
            self.script.remove(at).1
        } else if self.bus.is_away(self.now) || self.now < self.machines[node].cut_out_until {
            if self.rng.chance(0.1) && self.bus.is_away(self.now) { Fate::LateWrite } else { Fate::Lost }
        } else if self.rng.chance(self.hostility) {
            [Fate::LateAnswer, Fate::NoAnswer, Fate::Lost, Fate::LateWrite, Fate::Busy]
                [self.rng.below(5) as usize]
        } else {
            Fate::Normal
        };
        let id = ask.id;
        let lost = sent + TIMEOUT;
        let mut answer_at = self.now + self.trip();
        let outcome = match fate {
            Fate::Normal | Fate::LateAnswer => {
                if fate == Fate::LateAnswer {
                    let late = if scripted.is_some() { TIMEOUT - MS } else { self.rng.below(TIMEOUT) };
                    answer_at = sent + late;
                }
                if is_write { self.apply(&ask) } else { self.read(&ask) }
            }
            Fate::NoAnswer | Fate::Lost | Fate::LateWrite | Fate::Busy => {
                if is_write && fate == Fate::NoAnswer {
                    self.apply(&ask);
                }
                if is_write && fate == Fate::LateWrite {
                    let at = self.now.max(self.bus.away_until.min(sent + 10 * S)) + self.rng.below(10 * S);
                    let at = at.min(sent + 10 * S);
                    self.schedule(at, node, Item::Late(ask));
                }
                if fate != Fate::Busy {
                    answer_at = lost;
                }
                DirectoryResult::Unknown
            }
        };
        let is_cut = answer_at < self.machines[node].cut_in_until;
        let (mut answer_at, outcome) =
            if is_cut { (answer_at.max(lost), DirectoryResult::Unknown) } else { (answer_at, outcome) };
        self.tally.lost_answers += u64::from(outcome == DirectoryResult::Unknown);
        if self.machines[node].life == life {
            if self.now < self.machines[node].slow_until && self.rng.chance(0.3) {
                answer_at = (answer_at + self.rng.below(S)).min(lost.max(answer_at));
            }
            self.schedule(answer_at, node, Item::Answered(id, outcome));
        }
    }

    fn read(&mut self, ask: &DirectoryRequest) -> DirectoryResult {
        let lag = if self.rng.chance(self.hostility * 3.0) { self.rng.below(10 * S) } else { 0 };
        let (revision, value) = self.bus.read(&ask.key.to_string(), self.now.saturating_sub(lag));
        DirectoryResult::Found { revision, value }
    }

    /// Applies a write, and checks what it says.
    fn apply(&mut self, ask: &DirectoryRequest) -> DirectoryResult {
        let key = ask.key.to_string();
        let before = self.bus.get(&key).and_then(|entry| entry.value.clone());
        let (expected, value) = match &ask.action {
            Action::Write { expected, value } => (*expected, Some(value.clone())),
            Action::Delete { expected } => (*expected, None),
            Action::Read => return DirectoryResult::Unknown,
        };
        let Some(revision) = self.bus.write(self.now, &key, expected, value.clone()) else {
            return DirectoryResult::Refused;
        };
        match (&ask.key, value) {
            (Key::Node(name), Some(value)) => {
                let record = NodeRecord::parse(&value).expect("nodes write records");
                self.node_written(name, before.as_deref(), record);
            }
            (Key::World(name), Some(value)) => {
                let record = WorldRecord::parse(&value).expect("nodes write records");
                self.world_written(name, before.as_deref(), record);
            }
            (Key::World(_), None) => self.tally.deleted += 1,
            _ => {}
        }
        for node in 0..self.machines.len() {
            if self.machines[node].core.is_some() {
                let delay = self.trip();
                self.schedule(self.now + delay, node, Item::Watch);
            }
        }
        DirectoryResult::Applied(revision)
    }

    pub(crate) fn fail(&mut self, why: String) {
        if self.violation.is_none() && !self.options.is_lossy {
            self.violation = Some(format!("at {:.3} s: {why}", self.now as f64 / S as f64));
            self.note(|| "VIOLATION".to_owned());
        }
    }

    fn node_written(&mut self, name: &Name, before: Option<&[u8]>, record: NodeRecord) {
        let before = before.and_then(|before| NodeRecord::parse(before).ok());
        if before.as_ref().is_some_and(|before| before.incarnation > record.incarnation) {
            self.fail(format!("{name}: the incarnation falls to {}", record.incarnation));
        }
        if record.state != NodeState::Lost {
            self.renewed.insert(name.clone(), self.now);
            return;
        }
        self.note(|| format!("{name}#{} is marked as lost", record.incarnation));
        self.tally.marks += 1;
        let Some(renewed) = self.renewed.get(name).copied() else { return };
        let (mut silent, mut periods) = (self.now - renewed, 0);
        for (from, until) in &self.bus.away {
            let (from, until) = ((*from).max(renewed), (*until).min(self.now));
            if from < until {
                silent -= until - from;
                periods += 1;
            }
        }
        // An observer counts 5 s after its own last renewal.
        if silent + periods * 7 * S < SILENCE {
            self.fail(format!("{name} was marked after {silent} us of silence"));
        }
    }

    fn world_written(&mut self, world: &Name, before: Option<&[u8]>, record: WorldRecord) {
        self.note(|| {
            format!("{world}: {} {:?} at {} ({})", record.epoch, record.state, record.home, record.why)
        });
        let open = self.open_limited();
        if record.state == WorldState::Assigned && open > self.limit {
            self.fail(format!("{open} worlds of {LIMITED} are open, and {} may be", self.limit));
        }
        let home = record.home.to_string();
        let known = self.homes.entry((world.clone(), record.epoch)).or_insert_with(|| home.clone());
        if *known != home {
            let known = known.clone();
            self.fail(format!("epoch {} of {world} has the homes {known} and {home}", record.epoch));
        }
        let before = before.map(|before| WorldRecord::parse(before).expect("nodes write records"));
        let Some(before) = before else { return };
        if before.epoch > record.epoch {
            self.fail(format!("the epoch of {world} falls to {}", record.epoch));
        }
        if before.state != WorldState::Serving || before.epoch == record.epoch {
            return;
        }
        self.tally.homes += 1;
        // A world that serves moves only if its home is lost, has left, or drains.
        let node = self.bus.get(&Key::Node(before.home.node.clone()).to_string());
        let node = node.and_then(|entry| NodeRecord::parse(entry.value.as_deref()?).ok());
        let is_free = node
            .is_some_and(|node| node.incarnation > before.home.incarnation || node.state != NodeState::Up);
        if !is_free && record.why != "its home drains" {
            self.fail(format!("{world} was taken from {}, which lives: {}", before.home, record.why));
        }
    }

    /// Returns whether a node's workers send messages for a world now.
    pub(crate) fn speaks(&self, node: usize, world: &Name) -> bool {
        let machine = &self.machines[node];
        let Some(core) = &machine.core else { return false };
        let served = machine.workers.get(world).filter(|worker| worker.is_served);
        machine.stands_until <= self.now
            && served.is_some_and(|worker| core.incarnation() == Some(worker.incarnation))
            && core.may_serve(self.clock(node))
    }

    fn check_overlap(&mut self, node: usize) {
        let worlds: Vec<Name> = self.machines[node].workers.keys().cloned().collect();
        for world in worlds {
            if !self.speaks(node, &world) {
                continue;
            }
            for other in 0..self.machines.len() {
                if other != node && self.speaks(other, &world) {
                    self.fail(format!("{other} and {node} serve {world}"));
                }
            }
        }
    }

    /// A player wants into a world, by any node.
    pub(crate) fn arrive(&mut self, node: usize, world: &Name) -> u64 {
        self.arrive_for(node, world, CLASS)
    }

    /// The same for a world of a class.
    pub(crate) fn arrive_for(&mut self, node: usize, world: &Name, class: &str) -> u64 {
        self.arrivals += 1;
        let id = self.arrivals;
        let class = Some(name(class));
        let world = world.clone();
        self.handle(node, |core, now| core.handle_arrival(now, ArrivalId(id), world, class));
        id
    }

    /// The record of a world in the directory.
    pub(crate) fn world(&self, world: &Name) -> Option<WorldRecord> {
        let entry = self.bus.get(&Key::World(world.clone()).to_string())?;
        WorldRecord::parse(entry.value.as_deref()?).ok()
    }

    /// Number of open worlds of the class with a limit.
    pub(crate) fn open_limited(&self) -> u32 {
        let is_open =
            |record: &WorldRecord| record.class.as_str() == LIMITED && record.state != WorldState::Closed;
        let worlds = self.bus.all().filter(|entry| entry.key.starts_with("world."));
        let records = worlds.filter_map(|entry| WorldRecord::parse(entry.value.as_deref()?).ok());
        records.filter(is_open).count() as u32
    }

    /// Index of the machine that serves a world.
    pub(crate) fn server(&self, world: &Name) -> Option<usize> {
        (0..self.machines.len()).find(|node| self.speaks(*node, world))
    }
}

fn cluster() -> ClusterRecord {
    ClusterRecord { format: 1, name: name("test"), key_id: "k".to_owned(), rest: Default::default() }
}

impl Run {
    /// A violation that counts in lossy runs too.
    pub(crate) fn complain(&mut self, why: String) {
        self.options.is_lossy = false;
        self.fail(why);
    }

    /// Has a node look at its clock.
    pub(crate) fn wake(&mut self, node: usize) {
        self.schedule(self.now, node, Item::Tick);
        let item = if self.machines[node].has_gap { Item::Synced } else { Item::Watch };
        self.schedule(self.now, node, item);
    }
}
