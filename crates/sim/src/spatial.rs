//! A world over several game servers, under faults: cells, entities that walk, handovers, and who sees what.
//!
//! Servers behave as the engine's plugin does: they move what they own, learn of ownership from subscriptions and
//! handovers, and set their players' interest. Clients keep a view from what they are sent. Meanwhile servers crash and
//! return or are replaced, links stall, entities oscillate on borders and corners, groups move together and are locked.
//!
//! Checked all along: every entity is in the data of exactly one cell, data never goes back, nobody is asked to act on
//! an entity that it has not been given. Checked at the end: owners, positions and cells agree everywhere, and every
//! client's view is the world inside its interest.

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
use throng_wire::unrealpb::{ActorState, FRepMovement, FVector, SpatialChannelData, UnrealObjectRef};
use throng_wire::{MessagePack, write_entry};

use crate::check::Violation;
use crate::link::LinkProfile;
use crate::world::{Leave, Note, PeerId, World};

/// Entity data, as the fixtures' `tpspb.EntityChannelData` has it.
#[derive(Clone, PartialEq, Message)]
struct EntityData {
    #[prost(message, optional, tag = "1")]
    object: Option<UnrealObjectRef>,
    #[prost(message, optional, tag = "2")]
    actor: Option<ActorState>,
}

const TYPE_URL: &str = "type.googleapis.com/tpspb.EntityChannelData";
const TPS: &str = include_str!("../../../fixtures/proto/tps.proto");
const SPATIAL: u32 = 0x1_0000;
const ENTITY: u32 = 0x8_0000;
/// User-space message from clients to entities.
const CALL: u32 = 150;
/// Side of a cell.
const SIDE: f64 = 10.0;
const COLUMNS: u32 = 6;
const ROWS: u32 = 4;
const SERVERS: usize = 3;
const STEP: Duration = Duration::from_millis(40);
const FAULTS: Duration = Duration::from_millis(1800);
const HEAL: Duration = Duration::from_millis(2600);
const SETTLE: Duration = Duration::from_millis(1800);

/// What a run has met, for the figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpatialOutcome {
    /// Entities that changed their cell.
    pub handovers: u64,
    /// Those of them that changed their owner.
    pub across_servers: u64,
    /// Servers that crashed.
    pub crashes: u64,
    /// Crashed servers that got their place back.
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
}

/// How an entity moves.
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

/// Of each entity: the cell whose data lists it, its owner, where its data says that it is.
type Truth = BTreeMap<u32, (u32, Option<u32>, Place)>;

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
struct Place {
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
    owned: BTreeMap<u32, Place>,
    /// What it knows of entities, owned or not.
    known: BTreeMap<u32, Place>,
    /// The highest count that it gave each entity: what it said before it learnt of a loss may arrive after it got the
    /// entity back.
    said: BTreeMap<u32, u32>,
    returns_at: Option<Instant>,
    had_slot: bool,
}

struct Client {
    link: Link,
    authenticated: bool,
    cells: BTreeSet<u32>,
    /// Entities in view, and their cells.
    view: BTreeMap<u32, u32>,
    /// Where entities stand to whose channels it is subscribed.
    known: BTreeMap<u32, Place>,
    subscribed: BTreeSet<u32>,
    next_call: u32,
    avatar: u32,
    /// Subscribed to, and perhaps not in view.
    unsure: BTreeSet<u32>,
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
    counts: BTreeMap<u32, u32>,
    moving: bool,
    faults: bool,
    recoverable: bool,
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
/// When an invariant of the gateway breaks.
pub fn run_spatial(seed: u64) -> Result<SpatialOutcome, Violation> {
    let mut simulation = Simulation::new(seed);
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
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5_9A71_A115);
        let grid = grid();
        let recoverable = rng.chance(0.7);
        let recovery = Recovery {
            servers: recoverable,
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
        let config = Config {
            auth_provider: false,
            channel_settings: ChannelSettings::new(types),
            recovery,
            spatial: Spatial { grid: Some(grid.clone()), balance, ..Spatial::default() },
            client_state_machine: Arc::new(throng_gateway::StateMachine::server()),
            ..Config::development()
        };
        let shards = [1, 2, 4][rng.below(3) as usize];
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
            counts: BTreeMap::new(),
            moving: true,
            faults: false,
            recoverable,
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
                said: BTreeMap::new(),
                returns_at: None,
                had_slot: false,
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
            });
            self.connect(Who::Client(self.clients.len() - 1));
        }
        self.run(Duration::from_millis(150))?;
        for index in 1..=SERVERS {
            self.populate(index);
        }
        self.faults = true;
        self.run(FAULTS)?;
        self.faults = false;
        self.world.heal();
        // Those who are away return now, before their time is up or after.
        for index in 1..self.servers.len() {
            if self.servers[index].link.peer.is_none() && index <= SERVERS {
                self.servers[index].returns_at = Some(self.world.now());
            }
        }
        self.run(HEAL)?;
        self.moving = false;
        // Several times: what is on its way to another owner has nobody to speak for it, and what was locked moves
        // with its whole group when the lock opens.
        for _ in 0..4 {
            self.last_words();
            self.run(SETTLE / 4)?;
        }
        self.run(SETTLE)?;
        self.judge()
    }

    // ---- Time and faults --------------------------------------------------------------------------------------------

    fn run(&mut self, duration: Duration) -> Result<(), Violation> {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            let next = (self.world.now() + STEP).min(end);
            while let Some(note) = self.world.step(next) {
                self.note(note)?;
            }
            self.check()?;
            if self.faults {
                self.fault();
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
                self.servers[index].returns_at =
                    self.rng.chance(0.7).then(|| self.world.now() + Duration::from_millis(away));
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
                self.log(format_args!("client {index} leaves"));
                self.world.leave(peer, Leave::Reset);
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
        let peer = self.world.connect(kind, Framing::Stream, addr, profile);
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

    // ---- Sending and receiving --------------------------------------------------------------------------------------

    fn send(&mut self, who: Who, channel: u32, msg_type: MessageType, body: &impl Message) {
        self.send_raw(who, channel, msg_type as u32, &body.encode_to_vec());
    }

    fn send_raw(&mut self, who: Who, channel: u32, msg_type: u32, body: &[u8]) {
        let mut packet = Vec::new();
        write_entry(
            &mut packet,
            &MessagePack { channel_id: channel, broadcast: 0, stub_id: 0, msg_type, body },
        );
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
                let auth =
                    AuthMessage { player_identifier_token, login_token: "t".into(), resume_token: None };
                self.send(who, 0, MessageType::Auth, &auth);
            }
            Note::Bytes(_, bytes) => {
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

    // ---- Servers ----------------------------------------------------------------------------------------------------

    fn at_server(&mut self, index: usize, message: &Received) -> Result<(), Violation> {
        if self.trace {
            let (channel, msg_type) = (message.channel, message.msg_type);
            self.log(format_args!("server {index} gets type {msg_type} of {channel:#x}"));
        }
        let conn = self.servers[index].link.conn;
        let is_entity = message.channel >= ENTITY;
        match message.msg_type {
            1 => {
                let result: AuthResultMessage = message.decode()?;
                if self.servers[index].authenticated {
                    return Ok(());
                }
                let server = &mut self.servers[index];
                server.authenticated = true;
                server.link.conn = result.conn_id;
                server.recovering = result.should_recover;
                if index == 0 {
                    let body = CreateChannelMessage {
                        channel_type: ChannelType::GLOBAL.0 as i32,
                        ..Default::default()
                    };
                    self.send(Who::Server(0), 0, MessageType::CreateChannel, &body);
                } else if !result.should_recover {
                    self.ask_for_slot(index);
                }
            }
            10 => {
                let result: CreateSpatialChannelsResultMessage = message.decode()?;
                if result.owner_conn_id == conn {
                    let server = &mut self.servers[index];
                    server.cells.extend(&result.spatial_channel_id);
                    let taken = !server.had_slot && index == SERVERS + 1;
                    server.had_slot = true;
                    self.outcome.taken_over += u64::from(taken);
                }
            }
            15 => {
                let result: CreateChannelResultMessage = message.decode()?;
                let server = &mut self.servers[index];
                if result.owner_conn_id == conn
                    && let Some(place) = server.known.get(&result.channel_id).copied()
                {
                    server.owned.insert(result.channel_id, place);
                }
            }
            6 => {
                let result: SubscribedToChannelResultMessage = message.decode()?;
                if result.conn_id == conn && is_entity {
                    let writes = result.sub_options.and_then(|options| options.data_access) == Some(2);
                    let server = &mut self.servers[index];
                    if writes {
                        // Its own from here on, to be moved when the handover says where it is.
                        let nowhere = Place { x: f32::NAN, z: 0.0, count: 0 };
                        server.owned.entry(message.channel).or_insert(nowhere);
                    } else {
                        server.owned.remove(&message.channel);
                    }
                } else if !is_entity && result.conn_id == conn && message.channel >= SPATIAL {
                    let writes = result.sub_options.and_then(|options| options.data_access) == Some(2);
                    if !writes {
                        self.servers[index].cells.remove(&message.channel);
                    }
                }
            }
            7 => {
                let result: UnsubscribedFromChannelResultMessage = message.decode()?;
                if result.conn_id == conn {
                    self.servers[index].owned.remove(&message.channel);
                    self.servers[index].known.remove(&message.channel);
                }
            }
            4 => {
                let result: RemoveChannelMessage = message.decode()?;
                self.servers[index].owned.remove(&result.channel_id);
                self.servers[index].known.remove(&result.channel_id);
            }
            8 if is_entity => {
                let update: ChannelDataUpdateMessage = message.decode()?;
                if let Some(place) = place_of(update.data.as_ref().map(|data| &data.value[..])) {
                    let server = &mut self.servers[index];
                    // Its own word counts for what it owns.
                    if server.owned.get(&message.channel).is_none_or(|own| own.count < place.count) {
                        server.known.insert(message.channel, place);
                        if let Some(own) = server.owned.get_mut(&message.channel) {
                            *own = place;
                        }
                    }
                }
            }
            12 => {
                let handover: ChannelDataHandoverMessage = message.decode()?;
                for (id, place) in entities_of(&handover)? {
                    let (from, to) = (handover.src_channel_id, handover.dst_channel_id);
                    self.log(format_args!(
                        "server {index} hears of {id:#x} from {from:#x} to {to:#x}: {place:?}"
                    ));
                    let server = &mut self.servers[index];
                    if let Some(mut place) = place {
                        place.count = place.count.max(server.said.get(&id).copied().unwrap_or(0));
                        server.known.insert(id, place);
                        if let Some(own) = server.owned.get_mut(&id) {
                            *own = place;
                        }
                    }
                    if self.servers[index].owned.contains_key(&id) {
                        self.set_interest(index, id);
                    }
                }
            }
            20 => {
                let recovered: ChannelDataRecoveryMessage = message.decode()?;
                let server = &mut self.servers[index];
                if recovered.owner_conn_id == conn {
                    if is_entity {
                        let value = recovered.channel_data.as_ref().map(|data| &data.value[..]);
                        let place = place_of(value).ok_or("a recovered entity has no position")?;
                        server.owned.insert(message.channel, place);
                        server.known.insert(message.channel, place);
                    } else if message.channel >= SPATIAL {
                        server.cells.insert(message.channel);
                    }
                }
            }
            21 => {
                self.servers[index].recovering = false;
                self.outcome.recovered += 1;
                if index > 0 && self.servers[index].cells.is_empty() {
                    self.ask_for_slot(index);
                }
            }
            CALL => {
                let forward: ServerForwardMessage = message.decode()?;
                if !self.servers[index].owned.contains_key(&message.channel) {
                    return Err(format!(
                        "server {index} is called by {} about {:#x}, which it was not given",
                        forward.client_conn_id, message.channel
                    ));
                }
                self.outcome.calls += 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn ask_for_slot(&mut self, index: usize) {
        if !self.servers[index].spatial {
            return;
        }
        let body = CreateChannelMessage {
            channel_type: ChannelType::SPATIAL.0 as i32,
            sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
            ..Default::default()
        };
        self.send(Who::Server(index), 0, MessageType::CreateSpatialChannel, &body);
    }

    /// A few entities in the cells of a server.
    fn populate(&mut self, index: usize) {
        let cells: Vec<u32> = self.servers[index].cells.iter().copied().collect();
        for _ in 0..3 {
            let Some(&cell) = cells.get(self.rng.below(cells.len().max(1) as u64) as usize) else { return };
            let (low, _) = self.grid.bounds(throng_gateway::spatial::Cell(cell - SPATIAL));
            let place = Place {
                x: (low.x + self.rng.f64() * SIDE * 0.99) as f32,
                z: (low.z + self.rng.f64() * SIDE * 0.99) as f32,
                count: 1,
            };
            let id = self.next_entity;
            self.next_entity += 1;
            let gait = match self.rng.below(5) {
                0 | 1 => Gait::Walk,
                2 => Gait::Border(SIDE * self.rng.range(1..u64::from(COLUMNS)) as f64),
                3 => {
                    Gait::Corner(SIDE * 2.0 * self.rng.range(1..3) as f64, SIDE * self.rng.range(1..4) as f64)
                }
                _ => Gait::Jump,
            };
            self.gaits.insert(id, gait);
            let client = self.clients.iter_mut().find(|client| client.avatar == 0);
            if let Some(client) = client {
                client.avatar = id;
            }
            let data = EntityData {
                object: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
                ..state(place)
            };
            let body = CreateEntityChannelMessage {
                entity_id: id,
                sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
                data: Some(any(&data)),
                ..Default::default()
            };
            self.servers[index].known.insert(id, place);
            self.send(Who::Server(index), cell, MessageType::CreateEntityChannel, &body);
            self.set_interest_at(index, id, place);
        }
    }

    /// What the peers do in a step.
    fn act(&mut self) {
        for index in 1..self.servers.len() {
            if !self.servers[index].authenticated || self.servers[index].recovering {
                continue;
            }
            if self.servers[index].cells.is_empty() && self.rng.chance(0.1) {
                self.ask_for_slot(index);
            }
            if !self.moving {
                continue;
            }
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                if self.rng.chance(0.6) {
                    self.move_entity(index, id);
                }
                if self.faults && self.rng.chance(0.01) {
                    self.group(index, id);
                }
            }
        }
        if !self.moving {
            return;
        }
        for index in 0..self.clients.len() {
            let entities: Vec<u32> = self.clients[index].view.keys().copied().collect();
            if self.clients[index].authenticated && !entities.is_empty() && self.rng.chance(0.3) {
                let id = entities[self.rng.below(entities.len() as u64) as usize];
                self.clients[index].next_call += 1;
                let call = self.clients[index].next_call;
                self.send_raw(Who::Client(index), id, CALL, &call.to_le_bytes());
            }
        }
    }

    fn move_entity(&mut self, index: usize, id: u32) {
        let Some(&place) = self.servers[index].owned.get(&id) else { return };
        let (x, z) = match self.gaits.get(&id).copied().unwrap_or(Gait::Walk) {
            Gait::Border(border) => {
                let side = if place.count.is_multiple_of(2) { -0.5 } else { 0.5 };
                (border + side, f64::from(place.z))
            }
            Gait::Corner(x, z) => {
                let quarter = f64::from(place.count % 4) * core::f64::consts::FRAC_PI_2 + 0.7;
                (x + quarter.cos(), z + quarter.sin())
            }
            Gait::Jump if self.rng.chance(0.2) => match self.rng.below(4) {
                0 => (f64::NAN, 1.0),
                1 => (-1.0, 1.0),
                2 => (1e30, f64::INFINITY),
                _ => (self.rng.f64() * SIDE * f64::from(COLUMNS), self.rng.f64() * SIDE * f64::from(ROWS)),
            },
            Gait::Walk | Gait::Jump => {
                let step = |rng: &mut Rng| (rng.f64() - 0.5) * 6.0;
                let (x, z) =
                    (f64::from(place.x) + step(&mut self.rng), f64::from(place.z) + step(&mut self.rng));
                (x.clamp(0.0, SIDE * f64::from(COLUMNS) - 0.01), z.clamp(0.0, SIDE * f64::from(ROWS) - 0.01))
            }
        };
        self.place(index, id, x as f32, z as f32);
    }

    fn place(&mut self, index: usize, id: u32, x: f32, z: f32) {
        let Some(own) = self.servers[index].owned.get_mut(&id).filter(|own| own.count > 0) else { return };
        own.count += 1;
        let count = own.count;
        if x.is_finite() && z.is_finite() {
            (own.x, own.z) = (x, z);
        }
        let sent = Place { x, z, count };
        self.servers[index].said.insert(id, count);
        self.log(format_args!("server {index} puts {id:#x} at {sent:?}"));
        let update = ChannelDataUpdateMessage { data: Some(any(&state(sent))), context_conn_id: 0 };
        self.send(Who::Server(index), id, MessageType::ChannelDataUpdate, &update);
    }

    fn group(&mut self, index: usize, id: u32) {
        let others: Vec<u32> = (0..2)
            .map(|_| ENTITY + 1 + self.rng.below(u64::from(self.next_entity - ENTITY)) as u32)
            .collect();
        let listed: Vec<u32> = [id].into_iter().chain(others).collect();
        match self.rng.below(4) {
            0 | 1 => {
                let kind =
                    if self.rng.chance(0.7) { EntityGroupType::Handover } else { EntityGroupType::Lock };
                let body = AddEntityGroupMessage { r#type: kind as i32, entities_to_add: listed };
                self.send(Who::Server(index), id, MessageType::EntityGroupAdd, &body);
            }
            2 => self.ungroup(index, id, EntityGroupType::Lock, listed),
            _ => {
                // Out of the group and into one of its own, so that it goes on moving.
                self.ungroup(index, id, EntityGroupType::Handover, vec![id]);
                let body = AddEntityGroupMessage {
                    r#type: EntityGroupType::Handover as i32,
                    entities_to_add: vec![id],
                };
                self.send(Who::Server(index), id, MessageType::EntityGroupAdd, &body);
            }
        }
    }

    fn ungroup(&mut self, index: usize, id: u32, kind: EntityGroupType, entities_to_remove: Vec<u32>) {
        let body = RemoveEntityGroupMessage { r#type: kind as i32, entities_to_remove };
        self.send(Who::Server(index), id, MessageType::EntityGroupRemove, &body);
    }

    /// The interest of the client whose avatar this is follows it.
    fn set_interest(&mut self, index: usize, id: u32) {
        let Some(&place) = self.servers[index].owned.get(&id) else { return };
        self.set_interest_at(index, id, place);
    }

    fn set_interest_at(&mut self, index: usize, id: u32, place: Place) {
        let Some(client) = self.clients.iter().find(|client| client.avatar == id) else { return };
        let conn_id = client.link.conn;
        let Some(cell) = self.grid.cell_at(Point { x: place.x.into(), z: place.z.into() }) else { return };
        let centre = SpatialInfo { x: place.x.into(), y: 0.0, z: place.z.into() };
        let sphere = SphereAoi { center: Some(centre), radius: SIDE * 1.2 };
        let query = SpatialInterestQuery { sphere_aoi: Some(sphere), ..Default::default() };
        let body = UpdateSpatialInterestMessage { conn_id, query: Some(query) };
        self.send(Who::Server(index), SPATIAL + cell.0, MessageType::UpdateSpatialInterest, &body);
    }

    /// Locks open, everybody moves alone and stands somewhere inside the world.
    fn last_words(&mut self) {
        for index in 1..self.servers.len() {
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                self.ungroup(index, id, EntityGroupType::Lock, vec![id]);
                self.ungroup(index, id, EntityGroupType::Handover, vec![id]);
                let body = AddEntityGroupMessage {
                    r#type: EntityGroupType::Handover as i32,
                    entities_to_add: vec![id],
                };
                self.send(Who::Server(index), id, MessageType::EntityGroupAdd, &body);
            }
        }
        for index in 1..self.servers.len() {
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                let x = self.rng.f64() * (SIDE * f64::from(COLUMNS) - 0.1);
                let z = self.rng.f64() * (SIDE * f64::from(ROWS) - 0.1);
                self.place(index, id, x as f32, z as f32);
            }
        }
    }

    // ---- Clients ----------------------------------------------------------------------------------------------------

    fn at_client(&mut self, index: usize, message: &Received) -> Result<(), Violation> {
        if self.trace {
            let (channel, msg_type) = (message.channel, message.msg_type);
            self.log(format_args!("client {index} gets type {msg_type} of {channel:#x}"));
        }
        let is_entity = message.channel >= ENTITY;
        let client = &mut self.clients[index];
        let conn = client.link.conn;
        let mut wanted = Vec::new();
        let mut dropped = Vec::new();
        let mut unsure = Vec::new();
        match message.msg_type {
            1 => {
                let result: AuthResultMessage = message.decode()?;
                client.link.conn = result.conn_id;
                client.authenticated = true;
                let avatar = client.avatar;
                for server in 1..self.servers.len() {
                    self.set_interest(server, avatar);
                }
                return Ok(());
            }
            6 => {
                let result: SubscribedToChannelResultMessage = message.decode()?;
                if result.conn_id == conn && is_entity {
                    client.subscribed.insert(message.channel);
                    // It went out of sight while the request was on its way.
                    if !client.view.contains_key(&message.channel) {
                        unsure.push(message.channel);
                    }
                } else if result.conn_id == conn && message.channel >= SPATIAL {
                    client.cells.insert(message.channel);
                }
            }
            7 => {
                let result: UnsubscribedFromChannelResultMessage = message.decode()?;
                if result.conn_id != conn {
                    return Ok(());
                }
                if is_entity {
                    client.subscribed.remove(&message.channel);
                    client.known.remove(&message.channel);
                    // It came back while the request was on its way.
                    if client.view.contains_key(&message.channel) {
                        wanted.push(message.channel);
                    }
                } else {
                    client.cells.remove(&message.channel);
                    let left = client.view.iter().filter(|(_, cell)| **cell == message.channel);
                    dropped.extend(left.map(|(id, _)| *id));
                }
            }
            4 => {
                let result: RemoveChannelMessage = message.decode()?;
                client.view.remove(&result.channel_id);
                client.known.remove(&result.channel_id);
                client.subscribed.remove(&result.channel_id);
            }
            8 => {
                let update: ChannelDataUpdateMessage = message.decode()?;
                let data = update.data.ok_or("an update without data")?;
                if is_entity {
                    if !client.subscribed.contains(&message.channel) {
                        return Err(format!(
                            "client {index} gets {:#x} without a subscription",
                            message.channel
                        ));
                    }
                    if let Some(place) = place_of(Some(&data.value)) {
                        let known = client.known.insert(message.channel, place);
                        if known.is_some_and(|known| known.count > place.count) {
                            return Err(format!("client {index}: {:#x} goes back", message.channel));
                        }
                    }
                } else if message.channel >= SPATIAL {
                    let cell =
                        SpatialChannelData::decode(&data.value[..]).map_err(|error| error.to_string())?;
                    for (id, entity) in cell.entities {
                        if entity.removed {
                            dropped.push(id);
                        } else {
                            client.view.insert(id, message.channel);
                            wanted.push(id);
                        }
                    }
                }
            }
            12 => {
                let handover: ChannelDataHandoverMessage = message.decode()?;
                let sees = client.cells.contains(&handover.dst_channel_id);
                for (id, place) in entities_of(&handover)? {
                    if let Some(place) = place {
                        client.known.insert(id, place);
                    }
                    if sees {
                        client.view.insert(id, handover.dst_channel_id);
                        wanted.push(id);
                    } else {
                        dropped.push(id);
                    }
                }
            }
            _ => {}
        }
        // A subscription that a handover made comes before the handover that says what for.
        self.clients[index].unsure.extend(unsure);
        if message.msg_type == 12 || message.msg_type == 8 {
            let client = &mut self.clients[index];
            let view = &client.view;
            dropped.extend(client.unsure.iter().filter(|id| !view.contains_key(id)));
            client.unsure.clear();
        }
        for id in dropped {
            let client = &mut self.clients[index];
            client.view.remove(&id);
            if client.subscribed.contains(&id) {
                let body = UnsubscribedFromChannelMessage { conn_id: client.link.conn };
                self.send(Who::Client(index), id, MessageType::UnsubFromChannel, &body);
            }
        }
        for id in wanted {
            if !self.clients[index].subscribed.contains(&id) {
                let body = SubscribedToChannelMessage { conn_id: 0, sub_options: None };
                self.send(Who::Client(index), id, MessageType::SubToChannel, &body);
            }
        }
        Ok(())
    }

    // ---- Checks -----------------------------------------------------------------------------------------------------

    /// The cell whose data lists each entity, and the data of each entity.
    fn truth(&self) -> Result<Truth, Violation> {
        let shard = self.world.shards().next().ok_or("no shard")?;
        shard.check_invariants();
        let mut listed: BTreeMap<u32, u32> = BTreeMap::new();
        for cell in 0..self.grid.cell_count() {
            let Some((_, bytes)) = shard.channel_data(ChannelId(SPATIAL + cell)) else { continue };
            let data = SpatialChannelData::decode(&bytes[..]).map_err(|error| error.to_string())?;
            for id in data.entities.into_keys() {
                if let Some(other) = listed.insert(id, SPATIAL + cell) {
                    return Err(format!("{id:#x} is in {other:#x} and in {:#x}", SPATIAL + cell));
                }
            }
        }
        let mut truth = BTreeMap::new();
        for channel in shard.channels().filter(|channel| channel.channel_type == ChannelType::ENTITY) {
            let id = channel.id.0;
            let cell = listed.remove(&id).ok_or_else(|| format!("{id:#x} is in no cell"))?;
            if channel.cell != Some(ChannelId(cell)) {
                return Err(format!("{id:#x} is listed in {cell:#x} but belongs to {:?}", channel.cell));
            }
            let (_, bytes) = shard.channel_data(channel.id).ok_or("an entity without data")?;
            let place = place_of(Some(&bytes)).ok_or("an entity without a position")?;
            truth.insert(id, (cell, channel.owner.map(|owner| owner.0), place));
        }
        match listed.pop_first() {
            Some((id, cell)) => Err(format!("{cell:#x} lists {id:#x}, which does not exist")),
            None => Ok(truth),
        }
    }

    fn check(&mut self) -> Result<(), Violation> {
        for (id, (.., place)) in self.truth()? {
            let last = self.counts.entry(id).or_default();
            if place.count < *last {
                return Err(format!("the data of {id:#x} goes back from {last} to {}", place.count));
            }
            *last = place.count;
        }
        Ok(())
    }

    /// Everything agrees.
    fn judge(&mut self) -> Result<(), Violation> {
        let truth = self.truth()?;
        let shard = self.world.shards().next().ok_or("no shard")?;
        let owners: BTreeMap<u32, Option<u32>> =
            shard.channels().map(|channel| (channel.id.0, channel.owner.map(|owner| owner.0))).collect();
        for (id, (cell, owner, place)) in &truth {
            let at = self.grid.cell_at(Point { x: place.x.into(), z: place.z.into() });
            if let Some(at) = at
                && SPATIAL + at.0 != *cell
            {
                let held: Vec<_> = self
                    .servers
                    .iter()
                    .filter_map(|server| Some((&server.pit, server.link.conn, server.owned.get(id)?)))
                    .collect();
                return Err(format!(
                    "{id:#x} stands in {:#x} and belongs to {cell:#x}; owner {owner:?}, {place:?}, held by {held:?}",
                    SPATIAL + at.0
                ));
            }
            let cell_owner = owners.get(cell).copied().flatten();
            if cell_owner.is_some() && *owner != cell_owner {
                return Err(format!("{id:#x} in {cell:#x} of {cell_owner:?} is owned by {owner:?}"));
            }
            let holder = self.servers.iter().find(|server| {
                server.link.peer.is_some() && server.authenticated && server.owned.contains_key(id)
            });
            if *owner != holder.map(|server| server.link.conn) {
                let holder = holder.map(|server| &server.pit);
                return Err(format!("{id:#x} is owned by {owner:?} and held by {holder:?}"));
            }
            if let Some(own) = holder.and_then(|server| server.owned.get(id))
                && (own.x, own.z) != (place.x, place.z)
            {
                return Err(format!("the owner of {id:#x} is at {own:?}, its data at {place:?}"));
            }
        }
        for server in &self.servers {
            if let Some(id) = server.owned.keys().find(|id| !truth.contains_key(id)) {
                return Err(format!("{} holds {id:#x}, which is gone", server.pit));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            let in_sight = truth.iter().filter(|(_, (cell, ..))| client.cells.contains(cell));
            let in_sight: BTreeMap<u32, (u32, Option<Place>)> =
                in_sight.map(|(id, (cell, _, place))| (*id, (*cell, Some(*place)))).collect();
            let view: BTreeMap<u32, (u32, Option<Place>)> =
                client.view.iter().map(|(id, cell)| (*id, (*cell, client.known.get(id).copied()))).collect();
            if in_sight != view {
                let wrong = in_sight.keys().chain(view.keys()).find(|id| in_sight.get(id) != view.get(id));
                let id = wrong.copied().unwrap_or(0);
                return Err(format!(
                    "client {index} sees {id:#x} at {:x?}, it is at {:x?}; interest {:x?}, subscribed {}",
                    view.get(&id),
                    in_sight.get(&id),
                    client.cells,
                    client.subscribed.contains(&id),
                ));
            }
            self.outcome.seen += in_sight.len() as u64;
        }
        let stats = shard.stats();
        self.outcome.handovers = stats.handovers;
        self.outcome.across_servers = stats.handovers_across_servers;
        self.outcome.cells_moved = stats.cells_moved;
        self.outcome.waited = stats.refused(throng_gateway::Refusal::Locked)
            + stats.refused(throng_gateway::Refusal::UnknownCell);
        self.outcome.entities = truth.len() as u64;
        if !self.recoverable && truth.len() > 9 {
            return Err("more entities than were created".into());
        }
        Ok(())
    }
}

impl Server {
    fn gone(&mut self) {
        self.link = Link::new();
        self.authenticated = false;
        self.recovering = false;
        self.cells.clear();
        self.owned.clear();
        self.known.clear();
        self.had_slot = false;
    }
}

impl Client {
    fn gone(&mut self) {
        *self = Client {
            link: Link::new(),
            authenticated: false,
            cells: BTreeSet::new(),
            view: BTreeMap::new(),
            known: BTreeMap::new(),
            subscribed: BTreeSet::new(),
            next_call: self.next_call,
            avatar: self.avatar,
            unsure: BTreeSet::new(),
        };
    }
}

fn state(place: Place) -> EntityData {
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

fn place_of(bytes: Option<&[u8]>) -> Option<Place> {
    let movement = EntityData::decode(bytes?).ok()?.actor?.replicated_movement?;
    let location = movement.location?;
    let count = movement.linear_velocity?.x? as u32;
    Some(Place { x: location.x?, z: location.y?, count })
}

fn entities_of(handover: &ChannelDataHandoverMessage) -> Result<Vec<(u32, Option<Place>)>, Violation> {
    let data = handover.data.as_ref().ok_or("a handover without data")?;
    let data = SpatialChannelData::decode(&data.value[..]).map_err(|error| error.to_string())?;
    let entities = data.entities.into_iter();
    Ok(entities
        .map(|(id, state)| (id, place_of(state.entity_data.as_ref().map(|any| &any.value[..]))))
        .collect())
}
