//! One run: many peers do at random what peers do, faults come and go, then everything is healed and has to
//! come out right.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use throng_client::{
    Access, ChannelId, ChannelType, CloseReason as SessionEnd, CompressionPolicy, ConnId, CreateChannel,
    Event, Kind, MergeOptions, RequestId, Session, SessionConfig, SubscribeOptions, TagForm, broadcast,
};
use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_gateway::{
    Authority, ChannelSettings, Config, ConnKind, Framing, Permissions, ShardIndex, StateMachine,
};
use throng_net::kcp::Profile as KcpProfile;
use throng_stdx::{Instant, Rng};

use crate::check::{ActorIndex, End, Field, InOrder, SubscriptionLog, Violation, name_of};
use crate::data::{PROTO, SimData, SimEntry, TYPE_NAME, item, keys_of, writer_of};
use crate::fault::{self, Fault, FaultKind};
use crate::link::LinkProfile;
use crate::world::{Carrier, Leave, Note, PeerId, World};

/// What a run was and did; for the log and for comparing two runs of one seed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
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
pub fn run(seed: u64) -> Result<Outcome, Violation> {
    Simulation::new(seed).run()
}

/// Time of faults.
const FAULT_PHASE: Duration = Duration::from_millis(2500);
/// Time for everything to come right afterwards.
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
    /// When the gateway itself was held up.
    disturbed: Vec<(Instant, Instant)>,
    /// The longest tick of a channel.
    tick: Duration,
    /// By when each item is with the gateway at the latest; of writers in good health.
    sent: BTreeMap<u64, Instant>,
    logs: Vec<SubscriptionLog>,
    in_order: InOrder,
    phase: Phase,
    trace: bool,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Peers operate, faults come and go.
    Faults,
    /// Faults are over; everybody returns.
    Heal,
    /// Everybody has said its last; the rest arrives.
    Settle,
}

/// All items of a channel in order, and its map.
type Truth = (Vec<u64>, BTreeMap<u32, u64>);

/// A channel as the simulation knows it.
#[derive(Debug, Default)]
struct Channel {
    owner: ActorIndex,
    /// The observer was told that it is gone.
    removed: bool,
    /// Has no owner any more, as far as anybody can know.
    orphaned: bool,
}

struct Actor {
    kind: Kind,
    style: Style,
    profile: LinkProfile,
    /// Most time that bytes spent on its link while it was in good health.
    link_delay: Duration,
    session: Session,
    peer: Option<PeerId>,
    /// Bytes that the link has not taken yet.
    unsent: Vec<u8>,
    session_timer: Option<Instant>,
    conn: Option<ConnId>,
    /// Live subscriptions by channel.
    subscriptions: BTreeMap<u32, Subscription>,
    /// Subscribe requests under way, with what was asked for.
    asked: BTreeMap<RequestId, (u32, SubscribeOptions)>,
    /// The longest interval in each channel that it was given or has asked for. Nobody answers a change, and what was
    /// sent for one subscription may meet the next.
    intervals: BTreeMap<u32, Duration>,
    owned: BTreeSet<u32>,
    /// Items made so far.
    items: u32,
    /// User-space messages made so far.
    messages: u32,
    /// Items sent in the settle phase, by channel: they must be there at the end.
    last_items: Vec<(u32, u64)>,
    /// Items that wait to be given to the link.
    fresh_items: Vec<u64>,
    last_messages: Vec<(u32, u32)>,
    values: u64,
    slow: bool,
    /// Sends several times as much until then.
    floods_until: Instant,
    never_reads: bool,
    /// Last connection was lost with a chance of recovery.
    returns: u32,
}

#[derive(Debug)]
struct Subscription {
    log: SubscriptionLog,
    access: Access,
}

#[derive(Debug, Clone, Copy)]
struct Style {
    carrier: Carrier,
    legacy: bool,
    snappy: bool,
    resume: bool,
    /// The same in all its subscriptions, whoever asks for them: masks add up and answers may be missed, so
    /// nobody could say what the subscription of an actor that varies them gets.
    mask: Option<Field>,
    skip_self: bool,
}

impl Style {
    fn options(self, access: Access) -> SubscribeOptions {
        SubscribeOptions {
            access: Some(access),
            field_masks: match self.mask {
                None => vec![],
                Some(Field::Items) => vec!["items".to_owned()],
                Some(Field::Entries) => vec!["entries".to_owned()],
            },
            skip_self: Some(self.skip_self),
            ..SubscribeOptions::default()
        }
    }
}

/// Tokens of `World::wake`: what in the upper half, whom in the lower.
const OPERATE: u64 = 1;
const TIMER: u64 = 2;
const RECONNECT: u64 = 3;
const FAULT: u64 = 4;
const FAULT_END: u64 = 5;

fn token(what: u64, whom: usize) -> u64 {
    (what << 32) | whom as u64
}

/// The observer: a server with a perfect link that is subscribed to every channel and gets everything at
/// every tick. What it sees is the order in which channels handled updates.
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
    // An update in the owner's name would not come back to the owner, and nobody could say which ones those are.
    config.permissions.server.update_for_owner = Authority::Nobody;
    config.abuse.auth_failures_max = 0;
    config.abuse.auth_timeout_counts = false;
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
            outcome: Outcome { shards, ..Outcome::default() },
        }
    }

    fn run(mut self) -> Result<Outcome, Violation> {
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

    /// The actor's connection has ended, whoever ended it.
    fn lost(&mut self, index: ActorIndex) -> Result<(), Violation> {
        let now = self.world.now();
        let actor = &mut self.actors[index];
        let Some(peer) = actor.peer.take() else { return Ok(()) };
        self.by_peer.remove(&peer);
        actor.session.handle_closed(now);
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

    /// Takes what the session has to say and to send.
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
            // Where the link took not all of it, nobody knows when it takes the rest.
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

    fn handle_event(&mut self, index: ActorIndex, event: Event) -> Result<(), Violation> {
        match event {
            Event::Authenticated { conn, .. } => {
                let twin = self.actors.iter().position(|a| a.peer.is_some() && a.conn == Some(conn));
                if let Some(twin) = twin.filter(|&twin| twin != index && self.actors[twin].session.is_open())
                {
                    // A vanished twin may still believe in its id; two live ones may not.
                    let peer = self.actors[twin].peer;
                    if peer.is_some_and(|peer| self.world.is_open(peer)) {
                        return Err(format!("actors {twin} and {index} both have connection id {conn}"));
                    }
                }
                self.actors[index].conn = Some(conn);
                if index == MASTER {
                    let now = self.world.now();
                    let create = CreateChannel::new(ChannelType::GLOBAL).metadata("master");
                    // Refused while an earlier owner is alive or may return; tried again later.
                    let _ = self.actors[index].session.create_channel(now, &create);
                }
            }
            Event::Recovered { channels } => self.recovered(index, channels)?,
            // The request may have been given up long ago; copies of others' creations name another owner.
            Event::ChannelCreated { channel, owner, .. } if self.actors[index].conn == Some(owner) => {
                self.created(index, channel.0)?;
            }
            Event::ChannelRemoved { channel, .. } => self.removed(index, channel.0),
            Event::Subscribed { request, channel, conn, options, .. } => {
                self.subscribed(index, request, channel.0, conn, options)?;
            }
            Event::Unsubscribed { channel, conn, .. } if self.actors[index].conn == Some(conn) => {
                let actor = &mut self.actors[index];
                if let Some(subscription) = actor.subscriptions.remove(&channel.0) {
                    self.logs.push(subscription.log);
                }
                if actor.owned.remove(&channel.0)
                    && let Some(channel) = self.channels.get_mut(&channel.0)
                {
                    channel.orphaned = true;
                }
            }
            Event::Update { channel, value, .. } => self.updated(index, channel.0, &value)?,
            Event::Message { channel, msg_type, client, payload, .. } => {
                self.message(index, channel.0, msg_type, client, &payload)?;
            }
            Event::Closed { reason: SessionEnd::BadFrame(error) } => {
                return Err(format!("the gateway sent actor {index} a bad frame: {error}"));
            }
            Event::Other { msg_type, .. } => {
                return Err(format!("the gateway sent actor {index} a message of type {msg_type}"));
            }
            _ => {}
        }
        if self.actors[index].session.counters().malformed > 0 {
            return Err(format!("the gateway sent actor {index} a body that does not decode"));
        }
        Ok(())
    }

    fn created(&mut self, index: ActorIndex, channel: u32) -> Result<(), Violation> {
        if channel == 0 {
            self.actors[index].owned.insert(0);
            return Ok(());
        }
        let new = Channel { owner: index, ..Channel::default() };
        if self.channels.insert(channel, new).is_some() {
            return Err(format!("channel id {channel} was given twice within seconds"));
        }
        self.actors[index].owned.insert(channel);
        // The observer looks at it from now on.
        let now = self.world.now();
        let options =
            SubscribeOptions { skip_self: Some(false), ..SubscribeOptions::read().every(Duration::ZERO) };
        let request = self.actors[OBSERVER].session.subscribe(now, ChannelId(channel), None, &options);
        request.map_err(|error| format!("the observer cannot subscribe: {error}"))?;
        self.pump(OBSERVER)
    }

    fn removed(&mut self, index: ActorIndex, channel: u32) {
        if let Some(subscription) = self.actors[index].subscriptions.remove(&channel) {
            self.logs.push(subscription.log);
        }
        self.actors[index].owned.remove(&channel);
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.orphaned = true;
            channel.removed |= index == OBSERVER;
        }
    }

    fn subscribed(
        &mut self,
        index: ActorIndex,
        request: Option<RequestId>,
        channel: u32,
        conn: ConnId,
        effective: SubscribeOptions,
    ) -> Result<(), Violation> {
        let actor = &mut self.actors[index];
        if let Some(request) = request {
            actor.asked.remove(&request);
        }
        if actor.conn != Some(conn) {
            return Ok(());
        }
        let access = effective.access.unwrap_or(Access::Read);
        let skip_self = effective.skip_self.unwrap_or(true);
        let longest = actor.intervals.entry(channel).or_default();
        *longest = effective.fan_out_interval.unwrap_or_default().max(*longest);
        let interval = *longest;
        let delay = effective.fan_out_delay_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
        let delay = Duration::from_millis(delay);
        if let Some(subscription) = actor.subscriptions.get_mut(&channel) {
            if subscription.access == Access::None {
                subscription.log.resets.push(subscription.log.updates.len());
            }
            subscription.access = access;
            subscription.log.interval = subscription.log.interval.max(interval);
            return Ok(());
        }
        let log = SubscriptionLog {
            actor: index,
            channel,
            skip_self,
            mask: match effective.field_masks.first().map(String::as_str) {
                Some("items") => Some(Field::Items),
                Some("entries") => Some(Field::Entries),
                _ => None,
            },
            updates: Vec::new(),
            given: Vec::new(),
            since: self.world.now() + delay,
            interval,
            slow: actor.slow,
            resets: Vec::new(),
        };
        actor.subscriptions.insert(channel, Subscription { log, access });
        Ok(())
    }

    fn recovered(
        &mut self,
        index: ActorIndex,
        channels: Vec<throng_client::RecoveredChannel>,
    ) -> Result<(), Violation> {
        for channel in channels {
            let id = channel.channel.0;
            let conn = self.actors[index].conn.ok_or("recovered without an id")?;
            self.subscribed(index, None, id, conn, channel.options)?;
            if channel.owner == Some(conn) {
                self.actors[index].owned.insert(id);
                if let Some(known) = self.channels.get_mut(&id) {
                    (known.owner, known.orphaned) = (index, false);
                }
            }
            if let Some(data) = channel.data {
                // The whole data, whatever the subscription's mask (spec §4.7).
                let mut state = SimData::decode(&*data.value).map_err(|e| format!("recovered data: {e}"))?;
                match self.actors[index].style.mask {
                    Some(Field::Items) => state.entries.clear(),
                    Some(Field::Entries) => state.items.clear(),
                    None => {}
                }
                self.updated(index, id, &state.encode_to_vec())?;
            }
        }
        Ok(())
    }

    fn updated(&mut self, index: ActorIndex, channel: u32, value: &[u8]) -> Result<(), Violation> {
        let update = SimData::decode(value).map_err(|e| format!("an update does not decode: {e}"))?;
        self.outcome.updates += 1;
        let given = self.actors[index].peer.and_then(|peer| self.world.given_at(peer));
        let Some(subscription) = self.actors[index].subscriptions.get_mut(&channel) else {
            return Err(format!(
                "actor {index} got an update of channel {channel}, to which it is not subscribed: {update:?}"
            ));
        };
        if subscription.access == Access::None {
            return Err(format!("actor {index} got an update of channel {channel} without access"));
        }
        subscription.log.updates.push(update);
        subscription.log.given.push(given);
        Ok(())
    }

    fn message(
        &mut self,
        index: ActorIndex,
        channel: u32,
        msg_type: u32,
        client: ConnId,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let Some((from, count)) = read_payload(payload) else {
            return Err(format!("actor {index} got a message that nobody sent: {payload:?}"));
        };
        self.outcome.messages += 1;
        if msg_type == TO_OWNER && self.actors[from].conn != Some(client) && self.actors[from].returns == 0 {
            return Err(format!("actor {index}: message of actor {from} names connection {client}"));
        }
        if msg_type == TO_ALL && !self.actors[index].subscriptions.contains_key(&channel) {
            return Err(format!(
                "actor {index} got a broadcast in channel {channel}, to which it is not subscribed"
            ));
        }
        self.in_order.arrived(from, index, channel, count)
    }

    /// An actor does something, and something else a little later.
    fn operate(&mut self, index: ActorIndex) -> Result<(), Violation> {
        if self.phase == Phase::Settle {
            return Ok(());
        }
        let now = self.world.now();
        let times = if self.actors[index].floods_until > now { 8 } else { 1 };
        if self.phase == Phase::Faults {
            for _ in 0..times {
                self.operate_once(index)?;
            }
        } else if index == MASTER && !self.actors[MASTER].owned.contains(&0) {
            let create = CreateChannel::new(ChannelType::GLOBAL).metadata("master");
            let _ = self.actors[MASTER].session.create_channel(now, &create);
        }
        self.pump(index)?;
        let pause = Duration::from_micros(self.rng.range(4_000..60_000));
        self.world.wake(now + pause, token(OPERATE, index));
        Ok(())
    }

    fn operate_once(&mut self, index: ActorIndex) -> Result<(), Violation> {
        let now = self.world.now();
        if !self.actors[index].session.is_open() {
            return Ok(());
        }
        let live: Vec<u32> =
            self.channels.iter().filter(|(_, c)| !c.removed).map(|(&channel, _)| channel).collect();
        let any = (!live.is_empty()).then(|| live[self.rng.below(live.len() as u64) as usize]);
        let subscribed = |channel| self.actors[index].subscriptions.contains_key(&channel);
        let owned = |channel| self.actors[index].owned.contains(&channel);
        // Sending may fail when the link is stalled and the outbox full; then the actor does nothing.
        match (self.rng.below(100), any) {
            (0..45, Some(channel)) => self.write(index, channel),
            (45..60, Some(channel)) => {
                let actor = &mut self.actors[index];
                let count = actor.messages;
                actor.messages += 1;
                let payload = payload(index, count);
                let _ = match actor.kind {
                    Kind::Client => actor.session.send(ChannelId(channel), TO_OWNER, &payload),
                    Kind::Server => {
                        let to = [broadcast::ALL, broadcast::ALL_BUT_SENDER, broadcast::ALL_BUT_SERVER];
                        let to = to[self.rng.below(3) as usize];
                        actor.session.forward(ChannelId(channel), to, TO_ALL, ConnId(0), &payload)
                    }
                };
            }
            (60..75, Some(channel)) => self.subscribe(index, channel),
            (75..80, Some(channel)) if subscribed(channel) && !owned(channel) => {
                let _ = self.actors[index].session.unsubscribe(now, ChannelId(channel), None);
            }
            (80..85, Some(channel)) if subscribed(channel) => {
                let interval = Duration::from_millis(self.rng.below(120));
                let options = self.actors[index].style.options(Access::Read);
                let options = SubscribeOptions { access: None, ..options }.every(interval);
                self.actors[index].asks_for(channel, interval);
                let _ = self.actors[index].session.change_subscription(ChannelId(channel), None, &options);
            }
            (85..87, Some(channel)) if subscribed(channel) => {
                let access = [Access::None, Access::Read, Access::Write][self.rng.below(3) as usize];
                let options = self.actors[index].style.options(access);
                let _ = self.actors[index].session.subscribe(now, ChannelId(channel), None, &options);
            }
            (87..88, Some(channel)) if owned(channel) => {
                let _ = self.actors[index].session.remove_channel(now, ChannelId(channel));
            }
            (88..91, Some(channel)) if index == MASTER => {
                let whom = self.rng.range(1 + SERVERS as u64..self.actors.len() as u64) as usize;
                if let Some(conn) = self.actors[whom].conn.filter(|_| self.actors[whom].session.is_open()) {
                    let options = self.actors[whom].style.options(Access::Write);
                    let session = &mut self.actors[MASTER].session;
                    let _ = if self.rng.chance(0.6) {
                        session.subscribe(now, ChannelId(channel), Some(conn), &options)
                    } else if self.channels[&channel].owner != whom {
                        session.unsubscribe(now, ChannelId(channel), Some(conn))
                    } else {
                        return Ok(());
                    };
                }
            }
            (91..93, _) => {
                let _ = self.actors[index].session.list_channels(now, None, &[]);
            }
            (93..100, _) if live.len() < CHANNELS_MAX => self.create(index),
            _ => {}
        }
        Ok(())
    }

    fn create(&mut self, index: ActorIndex) {
        let now = self.world.now();
        let channel_type = if self.rng.chance(0.7) { ChannelType::SUBWORLD } else { ChannelType(100) };
        let options = self.actors[index].style.options(Access::Write);
        let create = CreateChannel::new(channel_type)
            .metadata(format!("of {index}"))
            .data(TYPE_NAME, SimData::default().encode_to_vec())
            .merge(MergeOptions { check_removable: true, ..MergeOptions::default() })
            .options(options);
        let _ = self.actors[index].session.create_channel(now, &create);
    }

    fn subscribe(&mut self, index: ActorIndex, channel: u32) {
        let now = self.world.now();
        if self.actors[index].subscriptions.contains_key(&channel)
            || self.actors[index].asked.values().any(|&(asked, _)| asked == channel)
        {
            return;
        }
        let rng = &mut self.rng;
        let access = if rng.chance(0.6) { Access::Write } else { Access::Read };
        let options = SubscribeOptions {
            fan_out_interval: rng.chance(0.7).then(|| Duration::from_millis(rng.below(100))),
            fan_out_delay_ms: rng.chance(0.3).then(|| rng.below(200) as i32 - 50),
            ..self.actors[index].style.options(access)
        };
        if let Ok(request) = self.actors[index].session.subscribe(now, ChannelId(channel), None, &options) {
            self.actors[index].asks_for(channel, options.fan_out_interval.unwrap_or_default());
            self.actors[index].asked.insert(request, (channel, options));
        }
    }

    /// Sends an update if the actor may; returns the item.
    fn write(&mut self, index: ActorIndex, channel: u32) {
        let actor = &mut self.actors[index];
        let may = actor.owned.contains(&channel)
            || actor.subscriptions.get(&channel).is_some_and(|s| s.access == Access::Write);
        if !may {
            return;
        }
        let mut update = SimData::default();
        for _ in 0..self.rng.range(1..4) {
            update.items.push(item(index, actor.items));
            actor.items += 1;
        }
        for _ in 0..self.rng.below(3) {
            let key = self.rng.range(keys_of(index).start.into()..keys_of(index).end.into()) as u32;
            actor.values += 1;
            let entry = SimEntry { removed: self.rng.chance(0.4), value: actor.values };
            update.entries.insert(key, entry);
        }
        if self.rng.chance(0.6) {
            update.weight = vec![0x55; self.rng.range(500..4000) as usize];
        }
        let last = update.items.last().copied();
        let sent = actor.session.update(ChannelId(channel), TYPE_NAME, &update.encode_to_vec());
        if let (Ok(()), Some(last), Phase::Settle) = (&sent, last, self.phase) {
            actor.last_items.push((channel, last));
        }
        if sent.is_ok() && !actor.slow {
            actor.fresh_items.extend(update.items);
        }
    }

    fn begin_fault(&mut self, number: usize) -> Result<(), Violation> {
        if self.phase != Phase::Faults {
            return Ok(());
        }
        let fault = self.faults[number];
        self.outcome.faults.insert(fault.kind);
        let now = self.world.now();
        let until = now + fault.lasts;
        let index = self.rng.range(1..self.actors.len() as u64) as usize;
        self.trace(|| format!("{:?} for {:?}, victim actor {index}", fault.kind, fault.lasts));
        let victim = self.actors[index].peer.filter(|&peer| self.world.is_open(peer));
        let profile = &self.actors[index].profile;
        let slow_profile = match fault.kind {
            FaultKind::Delay => Some(LinkProfile { delay: fault.lasts / 2, ..profile.clone() }),
            FaultKind::TinyChunks => Some(LinkProfile { chunk_bytes_max: 3, ..profile.clone() }),
            FaultKind::Loss => Some(LinkProfile { loss: 0.3, ..profile.clone() }),
            FaultKind::Rate => Some(LinkProfile { rate: self.rng.range(500..8000), ..profile.clone() }),
            FaultKind::TinyWindow => Some(LinkProfile { window_bytes: 64, ..profile.clone() }),
            _ => None,
        };
        if let Some(profile) = slow_profile {
            self.make_slow(index);
            self.actors[index].profile = profile.clone();
            if let Some(peer) = victim {
                self.world.set_profile(peer, profile);
            }
            self.world.wake(until, token(FAULT_END, index));
        }
        match fault.kind {
            FaultKind::StalledReader | FaultKind::StalledWriter | FaultKind::Partition => {
                self.make_slow(index);
                if let Some(peer) = victim {
                    let up = fault.kind != FaultKind::StalledReader;
                    let down = fault.kind != FaultKind::StalledWriter;
                    self.world.stall(peer, up, down, until);
                }
            }
            FaultKind::NeverReads => {
                self.make_slow(index);
                self.actors[index].never_reads = true;
                if let Some(peer) = victim {
                    self.world.stall(peer, false, true, Instant::ZERO + FAULT_PHASE);
                }
            }
            FaultKind::Swizzle => self.swizzle()?,
            FaultKind::Reset => self.end_connection(index, Leave::Reset)?,
            FaultKind::Leave => self.end_connection(index, Leave::Close)?,
            FaultKind::Vanish => self.end_connection(index, Leave::Vanish(fault.lasts))?,
            FaultKind::ServerCrash => {
                let server = self.rng.range(1..1 + SERVERS as u64) as usize;
                self.end_connection(server, Leave::Reset)?;
            }
            FaultKind::ShardPause => {
                let shard = self.rng.below(self.world.shard_count().into()) as u16;
                self.world.pause_shard(ShardIndex(shard), now + fault.lasts / 4);
                self.disturbed.push((now, now + fault.lasts / 4));
            }
            FaultKind::SlowMail => {
                // The last slow mail is under way as long as any before it.
                self.disturbed.push((now, until + fault.lasts / 5));
                self.world.conditions.mail_delay_max = fault.lasts / 10;
                self.world.wake(until, token(FAULT_END, usize::MAX >> 32));
            }
            FaultKind::ProviderDown => {
                self.world.conditions.verdict_error = 0.7;
                self.world.conditions.verdict_delay_max = fault.lasts;
                self.world.wake(until, token(FAULT_END, usize::MAX >> 32));
            }
            FaultKind::Garbage => {
                let mut bytes = vec![0; self.rng.range(1..200) as usize];
                self.rng.fill(&mut bytes);
                if self.rng.chance(0.5) {
                    bytes.splice(..0, *b"CH");
                }
                self.stranger(bytes);
            }
            FaultKind::TornFrame => self.stranger(b"CH\x00\x40\x00\x0a\x30\x18\x01".to_vec()),
            FaultKind::IdleConnections => (0..10).for_each(|_| self.stranger(Vec::new())),
            FaultKind::Flood => self.actors[index].floods_until = until,
            _ => {}
        }
        Ok(())
    }

    fn end_fault(&mut self, index: usize) {
        if index >= self.actors.len() {
            self.world.conditions = Default::default();
            return;
        }
        if self.phase != Phase::Faults {
            // Healed in the meantime, which a link that loses would undo.
            return;
        }
        self.actors[index].profile = LinkProfile::random(&mut self.rng);
        if let Some(peer) = self.actors[index].peer {
            let profile = self.actors[index].profile.clone();
            self.world.set_profile(peer, profile);
        }
    }

    fn make_slow(&mut self, index: ActorIndex) {
        // What is on its way from there may now take any time.
        let now = self.world.now();
        self.sent.retain(|&item, by| writer_of(item) != index || *by <= now);
        let actor = &mut self.actors[index];
        actor.slow = true;
        for subscription in actor.subscriptions.values_mut() {
            subscription.log.slow = true;
        }
    }

    fn end_connection(&mut self, index: ActorIndex, how: Leave) -> Result<(), Violation> {
        self.actors[index].returns += 1;
        if let Some(peer) = self.actors[index].peer {
            self.world.leave(peer, how);
            self.lost(index)?;
        }
        Ok(())
    }

    /// Cuts off about half of the peers in one order; `lost` brings them back in another.
    fn swizzle(&mut self) -> Result<(), Violation> {
        let mut victims: Vec<usize> = (1..self.actors.len()).collect();
        while victims.len() > self.actors.len() / 2 {
            let which = self.rng.below(victims.len() as u64) as usize;
            let how = if self.rng.chance(0.5) { Leave::Reset } else { Leave::Close };
            self.end_connection(victims.swap_remove(which), how)?;
        }
        Ok(())
    }

    fn stranger(&mut self, bytes: Vec<u8>) {
        let kind = if self.rng.chance(0.5) { ConnKind::Client } else { ConnKind::Server };
        let addr = IpAddr::V4(Ipv4Addr::from(0x0B00_0001 + self.strangers.len() as u32));
        let peer = self.world.connect(kind, Framing::Stream, addr, LinkProfile::local());
        self.strangers.insert(peer, bytes);
    }

    /// Faults end: links are good again, everybody comes back.
    fn heal(&mut self) -> Result<(), Violation> {
        self.phase = Phase::Heal;
        for index in 0..self.actors.len() {
            let actor = &mut self.actors[index];
            actor.never_reads = false;
            actor.profile = LinkProfile { chunk_bytes_max: 2000, ..LinkProfile::local() };
            if let Some(peer) = actor.peer {
                let profile = actor.profile.clone();
                self.world.set_profile(peer, profile);
            }
        }
        self.world.heal();
        for index in 0..self.actors.len() {
            // After losses KCP may wait for many seconds before it tries again. A player's program connects anew.
            if self.actors[index].peer.is_some_and(|peer| self.world.backs_off(peer)) {
                self.end_connection(index, Leave::Reset)?;
            }
        }
        Ok(())
    }

    /// Everybody writes once more wherever it may, and sends a message to every owner.
    fn say_last_words(&mut self) -> Result<(), Violation> {
        self.phase = Phase::Settle;
        for index in 1..self.actors.len() {
            if !self.actors[index].session.is_open() {
                return Err(format!(
                    "actor {index} is not back {:?} after the faults ended; connection {:?}, closed {:?}",
                    HEAL_PHASE / 2,
                    self.actors[index].peer,
                    self.world.closed_by_gateway().last(),
                ));
            }
            let channels: Vec<u32> = self.channels.keys().copied().collect();
            for channel in channels {
                if self.channels[&channel].removed {
                    continue;
                }
                self.write(index, channel);
                let owner = self.channels[&channel].owner;
                let owned = self.actors[owner].owned.contains(&channel);
                let actor = &mut self.actors[index];
                if owned && actor.kind == Kind::Client {
                    let count = actor.messages;
                    actor.messages += 1;
                    if actor.session.send(ChannelId(channel), TO_OWNER, &payload(index, count)).is_ok() {
                        actor.last_messages.push((channel, count));
                    }
                }
            }
            self.pump(index)?;
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<(), Violation> {
        let truths = self.truths()?;
        for log in &self.logs {
            let Some((items, _)) = truths.get(&log.channel) else { continue };
            log.check_items(items, self.end_of(log.channel, false))?;
        }
        for actor in &self.actors {
            for (channel, subscription) in &actor.subscriptions {
                let Some((items, entries)) = truths.get(channel) else { continue };
                let end = self.end_of(*channel, subscription.access != Access::None);
                subscription.log.check_items(items, end)?;
                if end == End::Reached {
                    subscription.log.check_entries(entries)?;
                    self.outcome.converged += 1;
                }
            }
        }
        self.check_latencies()?;
        for (index, actor) in self.actors.iter().enumerate() {
            for (channel, last) in &actor.last_items {
                let known = truths.get(channel).is_some_and(|(items, _)| items.contains(last));
                if !known && !self.channels[channel].removed {
                    return Err(format!("actor {index}'s last item {} is lost", name_of(*last)));
                }
            }
            for &(channel, count) in &actor.last_messages {
                let owner = self.channels[&channel].owner;
                if self.actors[owner].owned.contains(&channel)
                    && self.in_order.last(index, owner, channel) != Some(count)
                {
                    return Err(format!(
                        "actor {index}'s last message {count} in channel {channel} did not reach owner {owner}"
                    ));
                }
            }
        }
        self.check_ownership()?;
        let bound = 4 * HARD_BYTES + 2 * throng_wire::frame::PACKET_BYTES_MAX;
        if self.world.peak_outbox_bytes() > bound {
            return Err(format!("an outbox held {} bytes", self.world.peak_outbox_bytes()));
        }
        self.outcome.items = truths.values().map(|(items, _)| items.len() as u64).sum();
        Ok(())
    }

    /// A slow or stalled peer delays nobody: what a writer in good health sends is handled soon, and what is handled is
    /// with every subscriber in good health soon.
    fn check_latencies(&mut self) -> Result<(), Violation> {
        let live = |actor: &Actor| actor.subscriptions.values().map(|s| s.log.clone()).collect::<Vec<_>>();
        let logs: Vec<SubscriptionLog> =
            self.actors.iter().flat_map(live).chain(self.logs.drain(..)).collect();
        // The observer gets everything at every tick. Mail crosses at most twice, each time within 0.2 ms.
        let ticks = self.tick + Duration::from_millis(1);
        let (observer, others): (Vec<_>, Vec<_>) = logs.into_iter().partition(|log| log.actor == OBSERVER);
        let mut handled = BTreeMap::new();
        for log in &observer {
            self.outcome.timed += log.check_latency(&self.sent, ticks, &self.disturbed)?;
            for (update, given) in log.updates.iter().zip(&log.given) {
                handled.extend(given.iter().flat_map(|&at| update.items.iter().map(move |&item| (item, at))));
            }
        }
        for log in &others {
            self.outcome.timed += log.check_latency(&handled, ticks, &self.disturbed)?;
        }
        Ok(())
    }

    fn end_of(&self, channel: u32, lives_on: bool) -> End {
        match self.channels.get(&channel) {
            Some(channel) if channel.removed => End::Cut,
            _ if lives_on => End::Reached,
            _ => End::Anywhere,
        }
    }

    /// What every channel handled, in order, and its map: as the observer saw it.
    fn truths(&self) -> Result<BTreeMap<u32, Truth>, Violation> {
        let observer = &self.actors[OBSERVER];
        let ended = self.logs.iter().filter(|log| log.actor == OBSERVER);
        let mut truths = BTreeMap::new();
        for log in observer.subscriptions.values().map(|s| &s.log).chain(ended) {
            let mut items = Vec::new();
            let mut entries = BTreeMap::new();
            for update in &log.updates {
                items.extend_from_slice(&update.items);
                for (&key, entry) in &update.entries {
                    if entry.removed {
                        entries.remove(&key);
                    } else {
                        entries.insert(key, entry.value);
                    }
                }
            }
            let mut seen = BTreeSet::new();
            if let Some(twice) = items.iter().find(|&&item| !seen.insert(item)) {
                return Err(format!("the observer got {} twice in channel {}", name_of(*twice), log.channel));
            }
            let mut last: BTreeMap<usize, u64> = BTreeMap::new();
            for &item in &items {
                let writer = writer_of(item);
                if last.insert(writer, item).is_some_and(|before| before >= item) {
                    return Err(format!("{} was handled after a later one of its writer", name_of(item)));
                }
            }
            truths.insert(log.channel, (items, entries));
        }
        Ok(truths)
    }

    /// No channel has two owners, and GLOBAL has one.
    fn check_ownership(&self) -> Result<(), Violation> {
        let mut owners: BTreeMap<u32, ActorIndex> = BTreeMap::new();
        for (index, actor) in self.actors.iter().enumerate() {
            for &channel in &actor.owned {
                if let Some(other) = owners.insert(channel, index) {
                    return Err(format!("actors {other} and {index} both own channel {channel}"));
                }
            }
        }
        if owners.get(&0) != Some(&MASTER) {
            return Err("the master could not claim GLOBAL again".to_owned());
        }
        Ok(())
    }
}

impl Actor {
    /// A request for an interval is on its way, whatever becomes of it.
    fn asks_for(&mut self, channel: u32, interval: Duration) {
        let longest = self.intervals.entry(channel).or_default();
        *longest = interval.max(*longest);
        if let Some(subscription) = self.subscriptions.get_mut(&channel) {
            subscription.log.interval = subscription.log.interval.max(interval);
        }
    }

    fn new(index: ActorIndex, rng: &mut Rng) -> Actor {
        let kind = if index <= SERVERS { Kind::Server } else { Kind::Client };
        let plain = index == OBSERVER;
        let style = Style {
            carrier: match rng.below(20) {
                0..8 if !plain => Carrier::Stream(Framing::WebSocket),
                8..10 if !plain => Carrier::Kcp(KcpProfile::GAME),
                10..11 if !plain => Carrier::Kcp(KcpProfile::REFERENCE),
                _ => Carrier::Stream(Framing::Stream),
            },
            legacy: rng.chance(0.2) && !plain,
            snappy: rng.chance(0.3) && !plain,
            resume: rng.chance(0.5),
            mask: match rng.below(8) {
                0 if !plain => Some(Field::Items),
                1 if !plain => Some(Field::Entries),
                _ => None,
            },
            skip_self: rng.chance(0.6) && !plain,
        };
        let name = format!("actor-{index}");
        let config = match kind {
            Kind::Client => SessionConfig::client(name, "secret"),
            Kind::Server => SessionConfig::server(name, "secret"),
        };
        let profile = if plain {
            LinkProfile { window_bytes: 8 << 20, ..LinkProfile::local() }
        } else {
            LinkProfile::random(rng)
        };
        // Less than what a burst of updates needs: such a peer falls behind now and then. So does one whose datagrams
        // are lost and sent again.
        let slow = profile.window_bytes < 128 << 10 || matches!(style.carrier, Carrier::Kcp(_));
        let config = SessionConfig {
            tag_form: if style.legacy { TagForm::Legacy } else { TagForm::Current },
            compression: if style.snappy { CompressionPolicy::Always } else { CompressionPolicy::Never },
            resume: style.resume && kind == Kind::Client,
            auth_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_millis(800),
            ..config
        };
        Actor {
            kind,
            style,
            link_delay: profile.delay_max(),
            profile,
            session: Session::new(config),
            peer: None,
            unsent: Vec::new(),
            session_timer: None,
            conn: None,
            subscriptions: BTreeMap::new(),
            asked: BTreeMap::new(),
            intervals: BTreeMap::new(),
            owned: BTreeSet::new(),
            items: 0,
            messages: 0,
            last_items: Vec::new(),
            fresh_items: Vec::new(),
            last_messages: Vec::new(),
            values: 0,
            slow,
            floods_until: Instant::ZERO,
            never_reads: false,
            returns: 0,
        }
    }
}

fn payload(from: ActorIndex, count: u32) -> [u8; 8] {
    (((from as u64) << 32) | u64::from(count)).to_le_bytes()
}

fn read_payload(payload: &[u8]) -> Option<(ActorIndex, u32)> {
    let value = u64::from_le_bytes(payload.try_into().ok()?);
    Some(((value >> 32) as usize, value as u32))
}

/// FNV-1a, so that two runs can be compared without keeping them.
fn hash(before: u64, text: &str) -> u64 {
    text.bytes().fold(before ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
