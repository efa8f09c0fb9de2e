//! A world over several game servers, under faults: cells, entities that walk, handovers, and
//! visibility.
//!
//! Servers behave as the engine's plugin does: they move what they own, learn of ownership from
//! subscriptions and handovers, and set their players' interest. They spawn and destroy objects,
//! each wherever it likes, also under the id of an entity that is only then created. Clients keep a
//! view from what they are sent. Meanwhile servers crash and return or are replaced, links stall,
//! entities oscillate on borders and corners, groups move together and are locked.
//!
//! Checked all along: every entity is in the data of exactly one cell, data never goes back, nobody
//! is asked to act on an entity that it has not been given. Checked at the end: owners, positions
//! and cells agree everywhere, and every client's view is the world inside its interest.

mod clients;
mod judge;
mod mix;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_gateway::spatial::{Grid, GridConfig, Point};
use throng_gateway::{
    ChannelId, ChannelSettings, ChannelType, Config, ConnKind, Framing, Recovery, Spatial, TypeSettings,
};
use throng_stdx::{Instant, Rng};
use throng_wire::channeldpb::spatial_interest_query::SphereAoi;
use throng_wire::channeldpb::{
    AddEntityGroupMessage, AuthMessage, AuthResultMessage, ChannelDataHandoverMessage,
    ChannelDataRecoveryMessage, ChannelDataUpdateMessage, ChannelSubscriptionOptions, CreateChannelMessage,
    CreateChannelResultMessage, CreateEntityChannelMessage, CreateSpatialChannelsResultMessage,
    EntityGroupType, MessageType, RemoveChannelMessage, RemoveEntityGroupMessage, ServerForwardMessage,
    SpatialInfo, SpatialInterestQuery, SubscribedToChannelMessage, SubscribedToChannelResultMessage,
    UnsubscribedFromChannelMessage, UnsubscribedFromChannelResultMessage, UpdateSpatialInterestMessage,
};
use throng_wire::frame::{self, Compression, FrameReader};
use throng_wire::unrealpb::{
    ActorState, DestroyObjectMessage, FRepMovement, FVector, SpatialChannelData, SpawnObjectMessage,
    UnrealObjectRef,
};
use throng_wire::{MessagePack, write_entry};

use mix::Mix;

use crate::check::Violation;
use crate::link::LinkProfile;
use crate::world::{Carrier, Leave, Note, PeerId, World};

/// Entity data, as the fixtures' `tpspb.EntityChannelData` has it.
#[derive(Clone, PartialEq, Message)]
struct EntityData {
    #[prost(message, optional, tag = "1")]
    object: Option<UnrealObjectRef>,
    #[prost(message, optional, tag = "2")]
    actor: Option<ActorState>,
}

const TYPE_URL: &str = "type.googleapis.com/tpspb.EntityChannelData";
const TPS: &str = include_str!("../../../../fixtures/proto/tps.proto");
const SPATIAL: u32 = 0x1_0000;
const ENTITY: u32 = 0x8_0000;
/// User-space message from clients to entities.
const CALL: u32 = 150;
/// Unreal's messages about objects.
const SPAWN: u32 = 103;
const DESTROY: u32 = 104;
/// Objects that are no entity have ids from here on.
const OBJECT: u32 = 0xC_0000;
/// Objects of one server at a time.
const OBJECTS_MAX: usize = 3;
/// Side of a cell.
const SIDE: f64 = 10.0;
const COLUMNS: u32 = 6;
const ROWS: u32 = 4;
const SERVERS: usize = 3;
const STEP: Duration = Duration::from_millis(40);
const FAULTS: Duration = Duration::from_millis(1800);
const HEAL: Duration = Duration::from_millis(2600);
/// Time without input after which a run is at rest: longer than any round trip of a link.
const QUIET: Duration = Duration::from_millis(900);
/// Number of such periods to wait at most: the slowest links take seconds for the updates of a
/// crowd.
const QUIETS_MAX: u32 = 20;

/// Events that a run has met, for the figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpatialOutcome {
    /// Entities that changed their cell.
    pub handovers: u64,
    /// Those of them that changed their owner.
    pub across_servers: u64,
    /// Servers that crashed.
    pub crashes: u64,
    /// Crashed servers that recovered their slot.
    pub recovered: u64,
    /// Slots that another server took.
    pub taken_over: u64,
    /// Calls that reached the owner of an entity.
    pub calls: u64,
    /// Handovers that were refused at first.
    pub waited: u64,
    /// Entities alive at the end.
    pub entities: u64,
    /// Entities compared in clients' views at the end.
    pub seen: u64,
    /// Cells that the balancer moved.
    pub cells_moved: u64,
    /// Objects that are no entity, compared in clients' views at the end.
    pub objects: u64,
    /// Subscriptions of rooms whose count was compared at the end.
    pub in_rooms: u64,
    /// Full states that were sent again to slow clients.
    pub resyncs: u64,
    /// Clients closed for what waited for them.
    pub closed: u64,
    /// Sessions that clients resumed.
    pub resumed: u64,
    /// Panics at failpoints, and those of them that ended a life of the world.
    pub struck: u64,
    /// See `struck`.
    pub restarted: u64,
}

/// Movement of an entity.
#[derive(Debug, Clone, Copy)]
enum Gait {
    Walk,
    /// To and fro over a vertical border.
    Border(f64),
    /// Around a corner of four cells.
    Corner(f64, f64),
    /// Anywhere, outside the world and nowhere at all included.
    Jump,
}

/// For each entity: the cell whose data lists it, its owner, and the position in its data.
type Truth = BTreeMap<u32, (u32, Option<u32>, EntityPosition)>;

/// One end of a connection.
struct Link {
    peer: Option<PeerId>,
    reader: FrameReader,
    pending: Vec<u8>,
    conn: u32,
}

impl Link {
    fn new() -> Self {
        Self { peer: None, reader: FrameReader::default(), pending: Vec::new(), conn: 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct EntityPosition {
    x: f32,
    z: f32,
    count: u32,
}

struct Server {
    link: Link,
    pit: String,
    /// Wants a slot.
    spatial: bool,
    authenticated: bool,
    recovering: bool,
    cells: BTreeSet<u32>,
    owned: BTreeMap<u32, EntityPosition>,
    /// Its view of entities, owned or not.
    known: BTreeMap<u32, EntityPosition>,
    /// The version of each entity that it last received, so that its updates from before a loss do
    /// not count when it owns the entity again.
    versions: BTreeMap<u32, u64>,
    returns_at: Option<Instant>,
    had_slot: bool,
    /// Objects that are no entity, and that only it speaks of.
    objects: Vec<u32>,
}

struct Client {
    link: Link,
    authenticated: bool,
    cells: BTreeSet<u32>,
    /// Entities in view, and their cells.
    view: BTreeMap<u32, u32>,
    /// Positions of the entities to whose channels it is subscribed.
    known: BTreeMap<u32, EntityPosition>,
    subscribed: BTreeSet<u32>,
    next_call: u32,
    avatar: u32,
    /// Subscribed to, and perhaps not in view.
    unsure: BTreeSet<u32>,
    /// Rooms that it is in, and the latest count that it has of each.
    rooms: BTreeMap<u32, u32>,
    /// With which it resumes its session.
    token: Vec<u8>,
    /// Its connection may end without either side's doing: KCP gives up in a long stall.
    may_give_up: bool,
}

struct Received {
    channel: u32,
    msg_type: u32,
    body: Vec<u8>,
}

impl Received {
    fn decode<M: Message + Default>(&self) -> Result<M, Violation> {
        M::decode(&self.body[..]).map_err(|error| format!("a body of type {}: {error}", self.msg_type))
    }
}

struct Simulation {
    world: World,
    rng: Rng,
    grid: Grid,
    servers: Vec<Server>,
    clients: Vec<Client>,
    by_peer: BTreeMap<PeerId, Who>,
    gaits: BTreeMap<u32, Gait>,
    next_entity: u32,
    next_object: u32,
    /// Entities that a SPAWN has ever named.
    spawned: BTreeSet<u32>,
    counts: BTreeMap<u32, u32>,
    moving: bool,
    faults: bool,
    /// True if a message was sent to some peer.
    heard: bool,
    /// It is a long run with other features.
    mixed: bool,
    mix: Mix,
    /// Rooms and their counts.
    rooms: BTreeMap<u32, u32>,
    /// Lives of the world that have ended, as far as the peers know.
    restarts: u64,
    trace: bool,
    outcome: SpatialOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Server(usize),
    Client(usize),
}

/// Plays one seed.
///
/// # Errors
/// The first broken promise.
///
/// # Panics
/// An invariant of the gateway is broken.
pub fn run_spatial(seed: u64) -> Result<SpatialOutcome, Violation> {
    let mut simulation = Simulation::new(seed, false);
    simulation.play()?;
    Ok(simulation.outcome)
}

/// Plays one seed of the world together with features that have a simulation of their own, or none:
/// rates by distance, slow clients, other transports, subscription options, dropped output, and
/// channels outside the world.
///
/// # Errors
/// The first broken promise.
///
/// # Panics
/// An invariant of the gateway is broken.
pub fn run_mixed(seed: u64) -> Result<SpatialOutcome, Violation> {
    let mut simulation = Simulation::new(seed, true);
    simulation.play()?;
    Ok(simulation.outcome)
}

fn grid() -> Grid {
    Grid::new(GridConfig {
        offset_x: 0.0,
        offset_z: 0.0,
        cell_width: SIDE,
        cell_height: SIDE,
        columns: COLUMNS,
        rows: ROWS,
        server_columns: SERVERS as u32,
        server_rows: 1,
        border_cells: 1,
    })
    .expect("a valid grid")
}

fn schemas() -> Arc<Schemas> {
    Arc::new(SchemasBuilder::new().add_proto("tps.proto", TPS).build().expect("the fixture compiles"))
}

impl Simulation {
    fn new(seed: u64, mixed: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x5_9A71_A115);
        let grid = grid();
        let recovery = Recovery {
            servers: rng.chance(0.7),
            server_timeout: Some(Duration::from_millis(rng.range(300..2000))),
            settle: Duration::from_millis(200),
            ..Recovery::default()
        };
        let base = ChannelSettings::default();
        let types = base.iter().map(|(kind, settings)| {
            let data_type = match kind {
                ChannelType::SPATIAL => Some("unrealpb.SpatialChannelData".to_owned()),
                ChannelType::ENTITY => Some("tpspb.EntityChannelData".to_owned()),
                _ => None,
            };
            (kind, TypeSettings { data_type, ..settings.clone() })
        });
        let balance = rng.chance(0.3).then_some(throng_gateway::Balance {
            interval_ms: 200,
            ratio: 1.1,
            load_min: 1.0,
            cooldown_ms: 400,
        });
        let mut config = Config {
            auth_provider: false,
            channel_settings: ChannelSettings::new(types),
            recovery,
            unreal_objects: true,
            spatial: Spatial { grid: Some(grid.clone()), balance, ..Spatial::default() },
            client_state_machine: Arc::new(throng_gateway::StateMachine::server()),
            ..Config::development()
        };
        let shards = [1, 2, 4][rng.below(3) as usize];
        let mix = if mixed { Mix::draw(&mut rng) } else { Mix::default() };
        mix.configure(&mut config);
        let world = World::new(config, schemas(), shards, seed);
        Self {
            world,
            rng,
            grid,
            servers: Vec::new(),
            clients: Vec::new(),
            by_peer: BTreeMap::new(),
            gaits: BTreeMap::new(),
            next_entity: ENTITY + 1,
            next_object: OBJECT,
            spawned: BTreeSet::new(),
            counts: BTreeMap::new(),
            moving: true,
            faults: false,
            heard: false,
            mixed,
            mix,
            rooms: BTreeMap::new(),
            restarts: 0,
            trace: std::env::var_os("THRONG_TRACE").is_some(),
            outcome: SpatialOutcome::default(),
        }
    }

    fn play(&mut self) -> Result<(), Violation> {
        // The master, the spatial servers, a spare one.
        for index in 0..SERVERS + 2 {
            self.servers.push(Server {
                link: Link::new(),
                pit: format!("server {index}"),
                spatial: index > 0,
                authenticated: false,
                recovering: false,
                cells: BTreeSet::new(),
                owned: BTreeMap::new(),
                known: BTreeMap::new(),
                versions: BTreeMap::new(),
                returns_at: None,
                had_slot: false,
                objects: Vec::new(),
            });
        }
        for index in 0..=SERVERS {
            self.connect(Who::Server(index));
        }
        self.run(Duration::from_millis(150))?;
        for _ in 0..4 {
            self.clients.push(Client {
                link: Link::new(),
                authenticated: false,
                cells: BTreeSet::new(),
                view: BTreeMap::new(),
                known: BTreeMap::new(),
                subscribed: BTreeSet::new(),
                next_call: 0,
                avatar: 0,
                unsure: BTreeSet::new(),
                rooms: BTreeMap::new(),
                token: Vec::new(),
                may_give_up: false,
            });
            self.connect(Who::Client(self.clients.len() - 1));
        }
        self.run(Duration::from_millis(150))?;
        for index in 1..=SERVERS {
            self.populate(index);
        }
        self.faults = true;
        self.run(if self.mixed { mix::FAULTS } else { FAULTS })?;
        self.faults = false;
        self.world.heal();
        self.world.spare();
        // Those who are away return now, before their time is up or after.
        for index in 1..self.servers.len() {
            if self.servers[index].link.peer.is_none() && index <= SERVERS {
                self.servers[index].returns_at = Some(self.world.now());
            }
        }
        self.run(HEAL)?;
        self.moving = false;
        // Several times: what is on its way to another owner has nobody to speak for it. Groups
        // part first, or what was locked would take its whole group along when the lock opens, away
        // from whoever is about to speak for it.
        for _ in 0..4 {
            self.part();
            self.ask_again();
            self.run(QUIET / 4)?;
            self.last_words();
            self.run(QUIET / 4)?;
        }
        self.come_to_rest()?;
        self.judge()?;
        self.judge_rooms()
    }

    /// Runs until all messages have been delivered.
    fn come_to_rest(&mut self) -> Result<(), Violation> {
        for _ in 0..QUIETS_MAX {
            self.heard = false;
            self.run(QUIET)?;
            if !self.heard {
                return Ok(());
            }
        }
        Err("the world does not come to rest".into())
    }

    // ---- Time and faults ------------------------------------------------------------------------

    fn run(&mut self, duration: Duration) -> Result<(), Violation> {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            let next = (self.world.now() + STEP).min(end);
            while let Some(note) = self.world.step(next) {
                self.hear_of_restart();
                self.note(note)?;
            }
            self.hear_of_restart();
            self.check()?;
            if self.faults {
                self.fault();
                self.mixed_faults();
            }
            self.come_back();
            self.act();
        }
        Ok(())
    }

    fn fault(&mut self) {
        if self.rng.chance(0.02) {
            let index = 1 + self.rng.below(SERVERS as u64 + 1) as usize;
            if let Some(peer) = self.servers[index].link.peer {
                let how = match self.rng.below(3) {
                    0 => Leave::Close,
                    1 => Leave::Reset,
                    _ => Leave::Vanish(Duration::from_millis(self.rng.range(10..400))),
                };
                self.log(format_args!("server {index} crashes: {how:?}"));
                self.outcome.crashes += 1;
                self.world.leave(peer, how);
                let server = &mut self.servers[index];
                server.gone();
                let away = self.rng.range(20..1500);
                self.servers[index].returns_at = (self.rng.chance(0.7) || self.mixed)
                    .then(|| self.world.now() + Duration::from_millis(away));
            }
        }
        if self.rng.chance(0.03) {
            let index = self.rng.below(self.clients.len() as u64) as usize;
            if let Some(peer) = self.clients[index].link.peer {
                let until = self.world.now() + Duration::from_millis(self.rng.range(20..500));
                let (up, down) = (self.rng.chance(0.5), self.rng.chance(0.7));
                self.world.stall(peer, up, down, until);
            }
        }
        if self.rng.chance(0.02) {
            let index = self.rng.below(self.servers.len() as u64) as usize;
            if let Some(peer) = self.servers[index].link.peer {
                let until = self.world.now() + Duration::from_millis(self.rng.range(20..300));
                self.world.stall(peer, true, true, until);
            }
        }
        if self.rng.chance(0.02) {
            let shard = self.rng.below(u64::from(self.world.shard_count())) as u16;
            let until = self.world.now() + Duration::from_millis(self.rng.range(5..80));
            self.world.pause_shard(throng_gateway::ShardIndex(shard), until);
        }
        if self.rng.chance(0.01) {
            let index = self.rng.below(self.clients.len() as u64) as usize;
            if let Some(peer) = self.clients[index].link.peer {
                let how = match self.mix.resume.then(|| self.rng.below(3)) {
                    Some(0) => Leave::Close,
                    Some(1) => Leave::Vanish(Duration::from_millis(self.rng.range(10..900))),
                    _ => Leave::Reset,
                };
                self.log(format_args!("client {index} leaves: {how:?}"));
                self.world.leave(peer, how);
                self.clients[index].gone();
                self.connect(Who::Client(index));
            }
        }
        // The spare one waits for a slot.
        let spare = SERVERS + 1;
        if self.servers[spare].link.peer.is_none()
            && self.servers[spare].returns_at.is_none()
            && self.rng.chance(0.02)
        {
            self.connect(Who::Server(spare));
        }
    }

    fn come_back(&mut self) {
        for index in 0..self.servers.len() {
            if self.servers[index].returns_at.is_some_and(|at| at <= self.world.now()) {
                self.servers[index].returns_at = None;
                self.connect(Who::Server(index));
            }
        }
    }

    fn connect(&mut self, who: Who) {
        let (kind, addr) = match who {
            // Another address each time: servers return from elsewhere.
            Who::Server(_) => {
                (ConnKind::Server, IpAddr::V4(Ipv4Addr::new(10, 0, self.rng.next_u32() as u8, 1)))
            }
            Who::Client(_) => (ConnKind::Client, IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1))),
        };
        let profile = match who {
            Who::Server(_) => LinkProfile::local(),
            Who::Client(_) if self.rng.chance(0.3) => LinkProfile::random(&mut self.rng),
            Who::Client(_) => LinkProfile::local(),
        };
        let carrier = match who {
            Who::Client(_) if self.mix.carriers => self.mix.carrier(&mut self.rng),
            _ => Framing::Stream.into(),
        };
        if let Who::Client(index) = who {
            self.clients[index].may_give_up = matches!(carrier, Carrier::Kcp(_));
        }
        let peer = self.world.connect(kind, carrier, addr, profile);
        self.by_peer.insert(peer, who);
        *self.link(who) = Link { peer: Some(peer), ..Link::new() };
    }

    fn link(&mut self, who: Who) -> &mut Link {
        match who {
            Who::Server(index) => &mut self.servers[index].link,
            Who::Client(index) => &mut self.clients[index].link,
        }
    }

    fn log(&self, what: impl Debug) {
        if self.trace {
            #[allow(clippy::print_stderr, reason = "asked for with THRONG_TRACE")]
            {
                eprintln!("{:?} {what:?}", self.world.now());
            }
        }
    }

    // ---- Sending and receiving ------------------------------------------------------------------

    fn send(&mut self, who: Who, channel: u32, msg_type: MessageType, body: &impl Message) {
        self.send_raw(who, channel, msg_type as u32, 0, &body.encode_to_vec());
    }

    fn send_raw(&mut self, who: Who, channel: u32, msg_type: u32, broadcast: u32, body: &[u8]) {
        let mut packet = Vec::new();
        write_entry(&mut packet, &MessagePack { channel_id: channel, broadcast, stub_id: 0, msg_type, body });
        let link = self.link(who);
        link.pending.extend_from_slice(&frame::tag(packet.len(), Compression::None));
        link.pending.extend_from_slice(&packet);
        self.push(who);
    }

    fn push(&mut self, who: Who) {
        let link = self.link(who);
        let Some(peer) = link.peer else { return };
        let pending = std::mem::take(&mut link.pending);
        let taken = self.world.send(peer, &pending);
        self.link(who).pending = pending[taken.min(pending.len())..].to_vec();
    }

    fn note(&mut self, note: Note) -> Result<(), Violation> {
        let peer = match &note {
            Note::Opened(peer)
            | Note::Refused(peer)
            | Note::Bytes(peer, _)
            | Note::Room(peer)
            | Note::Closed(peer) => *peer,
            Note::Wake(_) => return Ok(()),
        };
        let Some(&who) = self.by_peer.get(&peer) else { return Ok(()) };
        if self.link(who).peer != Some(peer) {
            return Ok(());
        }
        match note {
            Note::Opened(_) => {
                let player_identifier_token = match who {
                    Who::Server(index) => self.servers[index].pit.clone(),
                    Who::Client(index) => format!("client {index}"),
                };
                let resume_token = match who {
                    Who::Client(index) if self.mix.resume => Some(self.clients[index].token.clone()),
                    _ => None,
                };
                let auth = AuthMessage {
                    player_identifier_token,
                    login_token: "t".into(),
                    resume_token,
                    world: None,
                };
                self.send(who, 0, MessageType::Auth, &auth);
            }
            Note::Bytes(_, bytes) => {
                self.heard = true;
                let mut reader = std::mem::take(&mut self.link(who).reader);
                let mut messages = Vec::new();
                let fed = reader.feed(&bytes, &mut |packet| {
                    messages.extend(packet.messages().map(|message| Received {
                        channel: message.channel_id,
                        msg_type: message.msg_type,
                        body: message.body.to_vec(),
                    }));
                    ControlFlow::Continue(())
                });
                fed.map_err(|error| format!("{who:?} got a bad frame: {error}"))?;
                self.link(who).reader = reader;
                for message in messages {
                    match who {
                        Who::Server(index) => self.at_server(index, &message)?,
                        Who::Client(index) => self.at_client(index, &message)?,
                    }
                }
            }
            Note::Room(_) => self.push(who),
            Note::Refused(_) | Note::Closed(_) => {
                if let Who::Client(index) = who {
                    let closed = self.world.closed_by_gateway().iter().rev().find(|it| it.peer == peer);
                    let reason = closed.map(|closed| closed.reason);
                    let gave_up = matches!(note, Note::Closed(_)) && self.clients[index].may_give_up;
                    let struck = self.world.struck() > 0;
                    if reason.map_or(gave_up, |reason| self.mix.may_close(reason, struck)) {
                        self.log(format_args!("client {index} is closed: {reason:?}"));
                        self.clients[index].gone();
                        self.connect(who);
                        return Ok(());
                    }
                }
                let Who::Server(index) = who else {
                    return Err(format!(
                        "the gateway closed a healthy client: {:?}",
                        self.world.closed_by_gateway()
                    ));
                };
                self.servers[index].gone();
                self.servers[index].returns_at = Some(self.world.now() + Duration::from_millis(100));
            }
            Note::Wake(_) => {}
        }
        Ok(())
    }
}

fn state(place: EntityPosition) -> EntityData {
    let vector = |x, y| FVector { x: Some(x), y: Some(y), z: Some(0.0) };
    let movement = FRepMovement {
        location: Some(vector(place.x, place.z)),
        linear_velocity: Some(vector(place.count as f32, 0.0)),
        ..Default::default()
    };
    EntityData {
        object: None,
        actor: Some(ActorState { replicated_movement: Some(movement), ..Default::default() }),
    }
}

fn any(data: &EntityData) -> prost_types::Any {
    prost_types::Any { type_url: TYPE_URL.to_owned(), value: data.encode_to_vec() }
}

fn place_of(bytes: Option<&[u8]>) -> Option<EntityPosition> {
    let movement = EntityData::decode(bytes?).ok()?.actor?.replicated_movement?;
    let location = movement.location?;
    let count = movement.linear_velocity?.x? as u32;
    Some(EntityPosition { x: location.x?, z: location.y?, count })
}

fn entities_of(
    handover: &ChannelDataHandoverMessage,
) -> Result<Vec<(u32, Option<EntityPosition>)>, Violation> {
    let data = handover.data.as_ref().ok_or("a handover without data")?;
    let data = SpatialChannelData::decode(&data.value[..]).map_err(|error| error.to_string())?;
    let entities = data.entities.into_iter();
    Ok(entities
        .map(|(id, state)| (id, place_of(state.entity_data.as_ref().map(|any| &any.value[..]))))
        .collect())
}
