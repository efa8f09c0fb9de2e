//! One run: many peers perform random operations under faults; then all faults are healed, and the
//! final state must be correct.

mod actor;
mod events;
mod faults;
mod operate;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use actor::Actor;
use throng_client::Kind;
use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_gateway::{Authority, ChannelSettings, Config, ConnKind, Permissions, StateMachine};
use throng_stdx::{Instant, Rng};

use crate::check::{ActorIndex, InOrder, SubscriptionLog, Violation};
use crate::data::PROTO;
use crate::fault::{self, Fault, FaultKind};
use crate::world::{Leave, Note, PeerId, World};

/// Settings and counts of a run; for the log and for comparing two runs of one seed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunReport {
    /// Number of shards.
    pub shards: u16,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Events of the world.
    pub steps: u64,
    /// Kinds of faults that were injected.
    pub faults: BTreeSet<FaultKind>,
    /// Items that channels handled.
    pub items: u64,
    /// Update messages that subscribers got.
    pub updates: u64,
    /// User-space messages that arrived.
    pub messages: u64,
    /// Subscriptions that were checked to the end.
    pub converged: u64,
    /// Items whose time of arrival at a healthy subscriber was checked.
    pub timed: u64,
    /// Full states that were sent again to slow readers.
    pub resyncs: u64,
    /// Connections made.
    pub connections: u64,
    /// A hash of everything every peer saw, in order.
    pub history: u64,
}

/// Runs a seed.
///
/// # Errors
/// The first broken promise.
pub fn run(seed: u64) -> Result<RunReport, Violation> {
    Simulation::new(seed).run()
}

/// Time of faults.
const FAULT_PHASE: Duration = Duration::from_millis(2500);
/// Time for the repair after the faults.
const HEAL_PHASE: Duration = Duration::from_millis(4000);
/// Game servers, the master among them.
const SERVERS: usize = 2;
/// User-space message from clients to owners, and from servers to subscribers.
const TO_OWNER: u32 = 100;
const TO_ALL: u32 = 101;
/// A channel is not opened beyond this many.
const CHANNELS_MAX: usize = 6;
/// Outbox bounds, small so that they are met.
const SOFT_BYTES: usize = 32 << 10;
const HARD_BYTES: usize = 1 << 20;

struct Simulation {
    world: World,
    rng: Rng,
    actors: Vec<Actor>,
    by_peer: BTreeMap<PeerId, ActorIndex>,
    /// Bytes that strangers send once their connection is up.
    strangers: BTreeMap<PeerId, Vec<u8>>,
    channels: BTreeMap<u32, Channel>,
    faults: Vec<Fault>,
    /// Periods in which the gateway itself was paused.
    disturbed: Vec<(Instant, Instant)>,
    /// The longest tick of a channel.
    tick: Duration,
    /// By when each item is with the gateway at the latest; of writers in good health.
    sent: BTreeMap<u64, Instant>,
    logs: Vec<SubscriptionLog>,
    in_order: InOrder,
    phase: Phase,
    trace: bool,
    outcome: RunReport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Peers operate under faults.
    Faults,
    /// Faults are over, and all peers return.
    Heal,
    /// All final messages are sent; the rest arrives.
    Settle,
}

/// All items of a channel in order, and its map.
type Truth = (Vec<u64>, BTreeMap<u32, u64>);

/// A channel as the simulation knows it.
#[derive(Debug, Default)]
struct Channel {
    owner: ActorIndex,
    /// The observer has been notified of its removal.
    removed: bool,
    /// Has no owner any more, as far as anybody can know.
    orphaned: bool,
}

/// Tokens of `World::wake`: the action in the upper half, the actor in the lower.
const OPERATE: u64 = 1;
const TIMER: u64 = 2;
const RECONNECT: u64 = 3;
const FAULT: u64 = 4;
const FAULT_END: u64 = 5;

fn token(what: u64, whom: usize) -> u64 {
    (what << 32) | whom as u64
}

/// The observer: a server with a perfect link that is subscribed to every channel and receives
/// every update at every tick. Its view defines the order in which channels handled updates.
const OBSERVER: ActorIndex = 0;
/// The server that claims GLOBAL.
const MASTER: ActorIndex = 1;

fn schemas() -> Arc<Schemas> {
    static SCHEMAS: std::sync::OnceLock<Arc<Schemas>> = std::sync::OnceLock::new();
    let made = SCHEMAS.get_or_init(|| {
        let schemas = SchemasBuilder::new().add_proto("sim.proto", PROTO).build();
        Arc::new(schemas.expect("the schema of the simulation is correct"))
    });
    Arc::clone(made)
}

fn config(rng: &mut Rng, tick_ms: u64) -> Config {
    let interval = rng.range(0..50);
    let settings = format!(
        r#"{{ "1": {{"TickIntervalMs": 10, "DefaultFanOutIntervalMs": 20, "ACLSettings": {{"Sub": 3, "Unsub": 3}}}},
             "3": {{"TickIntervalMs": {tick}, "DefaultFanOutIntervalMs": {interval}, "RemoveChannelAfterOwnerRemoved": true,
                    "SendOwnerLostAndRecovered": true, "ACLSettings": {{"Sub": 3, "Unsub": 3, "Remove": 2}}}},
             "100": {{"TickIntervalMs": {tick}, "DefaultFanOutIntervalMs": 30,
                    "ACLSettings": {{"Sub": 3, "Unsub": 3, "Remove": 2}}}} }}"#,
        tick = tick_ms,
    );
    let mut config = Config {
        development: true,
        auth_provider: rng.chance(0.5),
        client_state_machine: Arc::new(StateMachine::client_managing_channels()),
        channel_settings: ChannelSettings::parse(&settings).expect("the settings are correct"),
        permissions: Permissions::permissive(),
        offer_snappy: rng.chance(0.5),
        ..Config::default()
    };
    // An update in the owner's name would not come back to the owner, and nobody could say which
    // ones those are.
    config.permissions.server.update_for_owner = Authority::Nobody;
    config.abuse.auth_failures_max = 0;
    config.abuse.refusals_max = 0;
    config.abuse.auth_timeout = Some(Duration::from_millis(1500));
    config.recovery.servers = rng.chance(0.7);
    config.recovery.server_timeout = Some(Duration::from_millis(rng.range(300..1500)));
    config.recovery.client_window = Duration::from_millis(rng.range(0..2) * 1000);
    config.recovery.settle = Duration::from_millis(100);
    config.outbox.soft_bytes = SOFT_BYTES;
    config.outbox.low_water_bytes = SOFT_BYTES / 4;
    config.outbox.hard_bytes = [4 * HARD_BYTES, HARD_BYTES];
    config.outbox.stall_timeout = Duration::from_millis(rng.range(500..5000));
    config.limits.channel_backlog_bytes = 1 << rng.range(8..20);
    config
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng::new(seed);
        let shards = [1, 2, 4][rng.below(3) as usize];
        let tick_ms = rng.range(1..34);
        let world = World::new(config(&mut rng, tick_ms), schemas(), shards, rng.next_u64());
        let faults = fault::draw(&mut rng, FAULT_PHASE);
        let clients = rng.range(2..7) as usize;
        let mut actors = Vec::new();
        for index in 0..1 + SERVERS + clients {
            actors.push(Actor::new(index, &mut rng));
        }
        Simulation {
            world,
            rng,
            actors,
            by_peer: BTreeMap::new(),
            strangers: BTreeMap::new(),
            channels: BTreeMap::new(),
            faults,
            disturbed: Vec::new(),
            tick: Duration::from_millis(tick_ms),
            sent: BTreeMap::new(),
            logs: Vec::new(),
            in_order: InOrder::default(),
            phase: Phase::Faults,
            trace: std::env::var_os("THRONG_TRACE").is_some(),
            outcome: RunReport { shards, ..RunReport::default() },
        }
    }

    fn run(mut self) -> Result<RunReport, Violation> {
        self.play().map_err(|violation| {
            format!("{violation}\n  at {:?} of virtual time, phase {:?}", self.world.now(), self.phase)
        })?;
        let mut outcome = self.outcome;
        outcome.steps = self.world.steps();
        outcome.virtual_time = self.world.now().since(Instant::ZERO);
        outcome.resyncs = self.world.shards().map(|shard| shard.stats().resyncs).sum();
        Ok(outcome)
    }

    fn play(&mut self) -> Result<(), Violation> {
        self.connect(OBSERVER);
        self.until(Instant::from_millis(20))?;
        for index in 1..self.actors.len() {
            self.connect(index);
            let first = self.rng.range(30_000..100_000);
            let at = self.world.now() + Duration::from_micros(first);
            self.world.wake(at, token(OPERATE, index));
        }
        for (index, fault) in self.faults.iter().enumerate() {
            self.world.wake(Instant::ZERO + fault.at, token(FAULT, index));
        }
        self.until(Instant::ZERO + FAULT_PHASE)?;
        self.heal()?;
        self.until(Instant::ZERO + FAULT_PHASE + HEAL_PHASE / 2)?;
        self.say_last_words()?;
        self.until(Instant::ZERO + FAULT_PHASE + HEAL_PHASE)?;
        self.check_end()
    }

    fn until(&mut self, end: Instant) -> Result<(), Violation> {
        while let Some(note) = self.world.step(end) {
            self.handle(note)?;
        }
        Ok(())
    }

    fn handle(&mut self, note: Note) -> Result<(), Violation> {
        match note {
            Note::Opened(peer) => {
                if let Some(bytes) = self.strangers.get(&peer) {
                    self.world.send(peer, bytes);
                }
                if let Some(&index) = self.by_peer.get(&peer) {
                    let now = self.world.now();
                    self.actors[index].session.handle_connected(now);
                    self.pump(index)?;
                }
            }
            Note::Bytes(peer, bytes) => {
                if let Some(&index) = self.by_peer.get(&peer) {
                    let now = self.world.now();
                    self.actors[index].session.handle_bytes(now, &bytes);
                    self.pump(index)?;
                }
            }
            Note::Room(peer) => {
                if let Some(&index) = self.by_peer.get(&peer) {
                    self.pump(index)?;
                }
            }
            Note::Closed(peer) | Note::Refused(peer) => {
                if let Some(&index) = self.by_peer.get(&peer) {
                    self.lost(index)?;
                }
            }
            Note::Wake(token) => {
                let whom = token as u32 as usize;
                match token >> 32 {
                    OPERATE => self.operate(whom)?,
                    TIMER => {
                        self.actors[whom].session_timer = None;
                        let now = self.world.now();
                        self.actors[whom].session.handle_timeout(now);
                        self.pump(whom)?;
                    }
                    RECONNECT => {
                        if self.actors[whom].peer.is_none() {
                            self.connect(whom);
                        }
                    }
                    FAULT => self.begin_fault(whom)?,
                    FAULT_END => self.end_fault(whom),
                    other => unreachable!("no such token: {other}"),
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, index: ActorIndex) {
        let actor = &mut self.actors[index];
        let kind = match actor.kind {
            Kind::Client => ConnKind::Client,
            Kind::Server => ConnKind::Server,
        };
        let addr = IpAddr::V4(Ipv4Addr::from(0x0A00_0001 + index as u32));
        let peer = self.world.connect(kind, actor.style.carrier, addr, actor.profile.clone());
        actor.peer = Some(peer);
        actor.unsent.clear();
        self.by_peer.insert(peer, index);
        self.outcome.connections += 1;
    }

    /// Handles the end of the actor's connection, by either end.
    fn lost(&mut self, index: ActorIndex) -> Result<(), Violation> {
        let now = self.world.now();
        let actor = &mut self.actors[index];
        let Some(peer) = actor.peer.take() else { return Ok(()) };
        self.by_peer.remove(&peer);
        actor.session.handle_closed(now, None);
        actor.asked.clear();
        self.take_events(index)?;
        let actor = &mut self.actors[index];
        for (_, subscription) in std::mem::take(&mut actor.subscriptions) {
            self.logs.push(subscription.log);
        }
        for channel in std::mem::take(&mut actor.owned) {
            if let Some(channel) = self.channels.get_mut(&channel) {
                channel.orphaned = true;
            }
        }
        if index == OBSERVER {
            let reason = self.world.closed_by_gateway().iter().rev().find(|c| c.peer == peer);
            return Err(format!("the observer, which did nothing wrong, lost its connection: {reason:?}"));
        }
        let pause = Duration::from_micros(self.rng.range(5_000..400_000));
        self.world.wake(now + pause, token(RECONNECT, index));
        Ok(())
    }

    /// Drains the session's events and output.
    fn pump(&mut self, index: ActorIndex) -> Result<(), Violation> {
        self.take_events(index)?;
        let now = self.world.now();
        let actor = &mut self.actors[index];
        let Some(peer) = actor.peer else { return Ok(()) };
        if actor.session.is_closed() {
            self.world.leave(peer, Leave::Reset);
            return self.lost(index);
        }
        loop {
            if actor.unsent.is_empty() && actor.session.poll_transmit(now, &mut actor.unsent).is_none() {
                break;
            }
            let taken = self.world.send(peer, &actor.unsent);
            actor.unsent.drain(..taken);
            if !actor.unsent.is_empty() {
                break;
            }
        }
        for item in actor.fresh_items.drain(..) {
            // If the link took only a part, the time at which it takes the rest is unknown.
            if actor.unsent.is_empty() && !actor.slow {
                self.sent.insert(item, now + actor.link_delay);
            }
        }
        if let Some(at) = actor.session.next_timeout()
            && actor.session_timer.is_none_or(|scheduled| at < scheduled)
        {
            actor.session_timer = Some(at);
            self.world.wake(at, token(TIMER, index));
        }
        Ok(())
    }

    fn take_events(&mut self, index: ActorIndex) -> Result<(), Violation> {
        while let Some(event) = self.actors[index].session.poll_event() {
            self.trace(|| format!("actor {index}: {event:?}"));
            self.outcome.history = hash(self.outcome.history, &format!("{index} {event:?}"));
            self.handle_event(index, event)?;
        }
        Ok(())
    }

    #[allow(clippy::print_stderr, reason = "only with THRONG_TRACE, which asks for it")]
    fn trace(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:?} {}", self.world.now().since(Instant::ZERO), what());
        }
    }
}

/// FNV-1a, so that two runs can be compared without keeping them.
fn hash(before: u64, text: &str) -> u64 {
    text.bytes().fold(before ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
