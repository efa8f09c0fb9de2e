//! Crowds that move over a world of nine servers, with and without the load balancer.
//!
//! A world of 15 x 15 cells is updated ten times a second by the servers that own its entities.
//! Three kinds of crowds put the balancer to the test: one that stands in the region of one server,
//! one that gathers in the middle and goes home again and again, and one that walks round the
//! world. Load is what each server has to do: updates of entities per second.
//!
//! Checked every second: every entity belongs to the cell in which it stands and to the server of
//! that cell, every region is in one piece and no server is without one, a cell that has moved
//! rests for the cooldown. Figures of the whole time are in [`CrowdOutcome`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use throng_gateway::data::SchemasBuilder;
use throng_gateway::spatial::{Grid, GridConfig, Point};
use throng_gateway::{
    Balance, ChannelId, Config, ConnHandle, ConnId, ConnKind, Framing, Shard, ShardIndex, Spatial,
};
use throng_stdx::{Instant, Rng};
use throng_wire::channeldpb::{
    AuthMessage, ChannelDataUpdateMessage, CreateChannelMessage, CreateEntityChannelMessage, MessageType,
};
use throng_wire::frame::{self, Compression};
use throng_wire::{MessagePack, write_message_entry};

use crate::check::Violation;

/// Movement of a crowd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// The crowd stands in the region of one server.
    Stands,
    /// The crowd gathers in the middle of the world and disperses, twice a minute.
    Gathers,
    /// It walks round the world in two minutes.
    Circles,
}

/// Results of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CrowdOutcome {
    /// Highest load of any server at any look after the first ten seconds, the average of all being
    /// 1.
    pub highest: f64,
    /// Mean over time of the load of the busiest server, the average of all being 1.
    pub mean: f64,
    /// Cells that moved, and those that moved in the last third of the time.
    pub moved: u64,
    /// See `moved`.
    pub moved_late: u64,
    /// Cells that moved back to their previous server within four cooldowns.
    pub returned: u64,
    /// Handovers of entities.
    pub handovers: u64,
}

/// The settings that the figures are for.
pub const CROWD_BALANCE: Balance =
    Balance { interval_ms: 500, ratio: 1.25, load_min: 100.0, cooldown_ms: 5_000 };

const COLUMNS: u32 = 15;
const SERVER_COLUMNS: u32 = 3;
const SERVERS: u32 = SERVER_COLUMNS * SERVER_COLUMNS;
/// Side of a cell.
const SIDE: f64 = 20.0;
const WORLD: f64 = SIDE * COLUMNS as f64;
const ENTITIES: u32 = 450;
const STEP: Duration = Duration::from_millis(100);
const STEPS: u32 = 1_200;
/// Steps between checks of everything.
const CHECK_STEPS: u32 = 10;
/// Steps of warm-up, excluded from the figures because the start is not balanced.
const WARM_UP: u32 = 100;
const SPATIAL: u32 = 0x1_0000;
const ENTITY: u32 = 0x8_0000;
const PROTO: &str = "syntax = \"proto3\"; package crowd;
message Vector { optional float x = 1; optional float y = 2; optional float z = 3; }
message Entity { optional Vector position = 1; }";

#[derive(Clone, PartialEq, Message)]
struct Vector {
    #[prost(float, optional, tag = "1")]
    x: Option<f32>,
    #[prost(float, optional, tag = "2")]
    y: Option<f32>,
    #[prost(float, optional, tag = "3")]
    z: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct Entity {
    #[prost(message, optional, tag = "1")]
    position: Option<Vector>,
}

struct Crowd {
    shard: Shard,
    grid: Grid,
    now: Instant,
    servers: Vec<ConnHandle>,
    /// For each entity, its home and its position in the crowd, both from -1 to 1 along each axis.
    places: Vec<[f64; 4]>,
    motion: Motion,
    moves: Moves,
}

/// The moves of cells that were seen.
#[derive(Default)]
struct Moves {
    regions: Vec<u32>,
    /// By cell: when it moved last, and from which server.
    last: BTreeMap<usize, (Instant, u32)>,
    returned: u64,
}

/// Two minutes of a crowd's life.
///
/// # Errors
/// The first broken promise.
///
/// # Panics
/// An invariant of the gateway is broken.
pub fn run_crowd(seed: u64, motion: Motion, balance: Option<Balance>) -> Result<CrowdOutcome, Violation> {
    let mut crowd = Crowd::new(seed, motion, balance);
    let mut outcome = CrowdOutcome::default();
    let mut looks = 0.0;
    for step in 0..STEPS {
        let loads = crowd.step(step)?;
        if step == STEPS * 2 / 3 {
            outcome.moved_late = crowd.shard.stats().cells_moved;
        }
        if step >= WARM_UP {
            let highest = loads.iter().copied().max().unwrap_or(0);
            let highest = f64::from(highest) * f64::from(SERVERS) / f64::from(ENTITIES);
            outcome.highest = outcome.highest.max(highest);
            outcome.mean += highest;
            looks += 1.0;
        }
    }
    let stats = crowd.shard.stats();
    outcome.mean /= looks;
    outcome.moved = stats.cells_moved;
    outcome.moved_late = stats.cells_moved - outcome.moved_late;
    outcome.returned = crowd.moves.returned;
    outcome.handovers = stats.handovers;
    Ok(outcome)
}

impl Crowd {
    fn new(seed: u64, motion: Motion, balance: Option<Balance>) -> Self {
        let mut rng = Rng::new(seed);
        let grid = Grid::new(GridConfig {
            offset_x: 0.0,
            offset_z: 0.0,
            cell_width: SIDE,
            cell_height: SIDE,
            columns: COLUMNS,
            rows: COLUMNS,
            server_columns: SERVER_COLUMNS,
            server_rows: SERVER_COLUMNS,
            border_cells: 0,
        })
        .expect("a valid grid");
        let config = Config {
            spatial: Spatial { grid: Some(grid.clone()), balance, ..Spatial::default() },
            ..Config::development()
        };
        let schemas = SchemasBuilder::new().add_proto("crowd.proto", PROTO).build().expect("it compiles");
        let shard = Shard::new(Arc::new(config), Arc::new(schemas), ShardIndex(0), 1, seed, 0);
        let mut unit = || rng.f64() * 2.0 - 1.0;
        // The sum of two is denser in the middle, as crowds are.
        let places =
            (0..ENTITIES).map(|_| [unit(), unit(), (unit() + unit()) / 2.0, (unit() + unit()) / 2.0]);
        let places = places.collect();
        let now = Instant::ZERO;
        let mut crowd =
            Self { shard, grid, now, servers: Vec::new(), places, motion, moves: Moves::default() };
        for _ in 0..SERVERS {
            let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let accepted =
                crowd.shard.accept(now, ConnKind::Server, Framing::Stream, addr).expect("accepted");
            let auth = AuthMessage { player_identifier_token: "s".into(), ..Default::default() };
            crowd.send(accepted.conn, 0, MessageType::Auth, &auth);
            let request = CreateChannelMessage { channel_type: 4, ..CreateChannelMessage::default() };
            crowd.send(accepted.conn, 0, MessageType::CreateSpatialChannel, &request);
            crowd.servers.push(accepted.conn);
        }
        for index in 0..ENTITIES {
            let at = crowd.place(index, 0);
            let cell = crowd.grid.cell_at(at).expect("inside");
            let owner = crowd.servers[crowd.grid.server_of(cell).0 as usize];
            let data = Some(data(at));
            let request =
                CreateEntityChannelMessage { entity_id: ENTITY + index, data, ..Default::default() };
            crowd.send(owner, SPATIAL + cell.0, MessageType::CreateEntityChannel, &request);
        }
        crowd.moves.regions = crowd.shard.regions_by_cell();
        crowd
    }

    /// Position of an entity.
    fn place(&self, index: u32, step: u32) -> Point {
        let [home_x, home_z, x, z] = self.places[index as usize];
        let seconds = f64::from(step) * STEP.as_secs_f64();
        let turn = |period: f64| seconds / period * core::f64::consts::TAU;
        let middle = WORLD / 2.0;
        // A few steps to and fro keep everyone moving.
        let sway = (turn(4.0) + f64::from(index)).sin();
        let (x, z) = match self.motion {
            Motion::Stands => (WORLD / 6.0 + x * 45.0, WORLD / 6.0 + z * 45.0),
            Motion::Gathers => {
                let away = (1.0 + turn(60.0).cos()) / 2.0;
                let mix = |home: f64, crowd: f64| middle + home * away * 140.0 + crowd * (1.0 - away) * 40.0;
                (mix(home_x, x), mix(home_z, z))
            }
            Motion::Circles => {
                let (sin, cos) = turn(120.0).sin_cos();
                (middle + cos * 95.0 + x * 45.0, middle + sin * 95.0 + z * 45.0)
            }
        };
        let inside = |at: f64| (at + sway).clamp(0.5, WORLD - 0.5);
        Point { x: inside(x), z: inside(z) }
    }

    /// Everyone moves; entities by server.
    fn step(&mut self, step: u32) -> Result<Vec<u32>, Violation> {
        self.now += STEP;
        self.shard.handle_timeout(self.now);
        self.drain();
        let owners = self.owners();
        let mut loads = vec![0; self.servers.len()];
        for index in 0..ENTITIES {
            let (owner, _) = owners[&(ENTITY + index)];
            let named = |server: &ConnHandle| owner == Some(ConnId(server.0));
            let Some(server) = self.servers.iter().position(named) else {
                return Err(format!("entity {index} has no owner"));
            };
            loads[server] += 1;
            let data = Some(data(self.place(index, step)));
            let update = ChannelDataUpdateMessage { data, ..Default::default() };
            self.send(self.servers[server], ENTITY + index, MessageType::ChannelDataUpdate, &update);
        }
        self.note_moves(step)?;
        if step.is_multiple_of(CHECK_STEPS) {
            self.check(step)?;
        }
        Ok(loads)
    }

    /// Owners, and cells of entities, by channel.
    fn owners(&self) -> BTreeMap<u32, (Option<ConnId>, Option<ChannelId>)> {
        self.shard.channels().map(|view| (view.id.0, (view.owner, view.cell))).collect()
    }

    fn check(&self, step: u32) -> Result<(), Violation> {
        let owners = self.owners();
        for index in 0..ENTITIES {
            let at = self.place(index, step);
            let (owner, cell) = owners[&(ENTITY + index)];
            let stands_in = self.grid.cell_at(at).map(|cell| ChannelId(SPATIAL + cell.0));
            if cell != stands_in {
                return Err(format!(
                    "step {step}: entity {index} belongs to {cell:?} and stands in {stands_in:?}"
                ));
            }
            let of_cell = cell.and_then(|cell| owners[&cell.0].0);
            if owner != of_cell {
                return Err(format!("step {step}: entity {index} is {owner:?}'s, its cell {of_cell:?}'s"));
            }
        }
        let regions = self.shard.regions_by_cell();
        for (index, &conn) in self.servers.iter().enumerate() {
            let cells: Vec<usize> =
                (0..regions.len()).filter(|&cell| regions[cell] == index as u32).collect();
            // None of them has taken over another's id.
            if let Some(stray) =
                cells.iter().find(|&&cell| owners[&(SPATIAL + cell as u32)].0 != Some(ConnId(conn.0)))
            {
                return Err(format!(
                    "step {step}: cell {stray} is in the region of server {index}, not its own"
                ));
            }
            if !is_whole(&cells) {
                return Err(format!("step {step}: the region of server {index} is in pieces: {cells:?}"));
            }
        }
        Ok(())
    }

    fn note_moves(&mut self, step: u32) -> Result<(), Violation> {
        let regions = self.shard.regions_by_cell();
        let cooldown = Duration::from_millis(CROWD_BALANCE.cooldown_ms.into());
        let moves = &mut self.moves;
        for (cell, (&before, &after)) in moves.regions.iter().zip(&regions).enumerate() {
            if before == after {
                continue;
            }
            if let Some((at, from)) = moves.last.insert(cell, (self.now, before)) {
                let rested = self.now.since(at);
                // The cell was seen to move up to a step after it did.
                if rested + STEP < cooldown {
                    return Err(format!("step {step}: cell {cell} moved again after {rested:?}"));
                }
                moves.returned += u64::from(from == after && rested + STEP < cooldown * 4);
            }
        }
        moves.regions = regions;
        Ok(())
    }

    fn send(&mut self, from: ConnHandle, channel: u32, msg_type: MessageType, body: &impl Message) {
        let head = MessagePack { channel_id: channel, msg_type: msg_type as u32, ..Default::default() };
        let mut packet = Vec::new();
        write_message_entry(&mut packet, &head, body);
        let bytes = [&frame::tag(packet.len(), Compression::None)[..], &packet].concat();
        self.shard.handle_bytes(self.now, from, &bytes);
        self.drain();
    }

    /// Takes everything that is to be written, as a transport that never blocks.
    fn drain(&mut self) {
        while let Some(conn) = self.shard.poll_writable() {
            let Some(outbox) = self.shard.outbox(conn) else { continue };
            outbox.gather(&mut Vec::new());
            let bytes = outbox.queued_bytes();
            self.shard.handle_written(self.now, conn, bytes);
        }
        while self.shard.poll_effect().is_some() {}
    }
}

fn data(at: Point) -> prost_types::Any {
    let position = Vector { x: Some(at.x as f32), y: Some(0.0), z: Some(at.z as f32) };
    let value = Entity { position: Some(position) }.encode_to_vec();
    prost_types::Any { type_url: "type.googleapis.com/crowd.Entity".into(), value }
}

/// True if the cells, in ascending order, are one connected piece of at least one cell.
fn is_whole(cells: &[usize]) -> bool {
    let columns = COLUMNS as usize;
    let mut rest = cells.to_vec();
    let Some(first) = rest.pop() else { return false };
    let mut reached = vec![first];
    while let Some(cell) = reached.pop() {
        rest.retain(|&other| {
            let (column, row) = (cell % columns, cell / columns);
            let side = column.abs_diff(other % columns) + row.abs_diff(other / columns) == 1;
            if side {
                reached.push(other);
            }
            !side
        });
    }
    rest.is_empty()
}
