//! What spatial play costs on one core, without sockets.
//!
//! `handover`: one entity walks back and forth over a border that 20 players watch, per handover,
//! everything written. `handovers`: 1,000 entities in 225 cells of nine servers all change their
//! cell, with the players of the published scenario (interest of 30 m each), or with nobody but the
//! servers watching. `tick`: the fan-out of one entity channel with one update, by number of
//! subscribers: the tick that the publication calls the largest, at 130 players even if all of them
//! stand in one place. `interest`: a sphere of 30 m goes on to the next cell.

mod driver;

use std::cell::RefCell;
use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use driver::{Gateway, message};
use prost::Message;
use throng_gateway::{Config, ConnHandle, ConnKind, Spatial, spatial};
use throng_wire::channeldpb::{self as pb, ChannelDataUpdateMessage, CreateChannelMessage, MessageType};
use throng_wire::unrealpb::{ActorState, FRepMovement, FVector, UnrealObjectRef};

fn main() {
    divan::main();
}

const PROTO: &str = "syntax = \"proto3\"; package bench; import \"unreal_common.proto\";
message Entity { optional unrealpb.UnrealObjectRef objRef = 1; optional unrealpb.ActorState actorState = 2; }";
const CELLS: u32 = 0x1_0000;
const ENTITIES: u32 = 0x8_0000;
/// Side of a cell; the world counts in centimetres.
const SIDE: f64 = 2_000.0;
const RADIUS: f64 = 3_000.0;

#[derive(Clone, PartialEq, Message)]
struct Entity {
    #[prost(message, optional, tag = "1")]
    object: Option<UnrealObjectRef>,
    #[prost(message, optional, tag = "2")]
    state: Option<ActorState>,
}

impl Entity {
    fn at(id: u32, (x, z): (f64, f64)) -> Self {
        let axis = |value: f64| Some(value as f32);
        let vector = |x, z| Some(FVector { x: axis(x), y: axis(z), z: Some(0.0) });
        let movement = FRepMovement {
            linear_velocity: vector(400.0, 0.0),
            location: vector(x, z),
            rotation: vector(0.0, 0.0),
            ..FRepMovement::default()
        };
        let state = ActorState { replicated_movement: Some(movement), ..ActorState::default() };
        let object = UnrealObjectRef { net_guid: Some(id), ..UnrealObjectRef::default() };
        Self { object: Some(object), state: Some(state) }
    }

    fn any(&self) -> Option<prost_types::Any> {
        Some(prost_types::Any { type_url: "x/bench.Entity".into(), value: self.encode_to_vec() })
    }
}

struct World {
    gateway: Gateway,
    columns: u32,
    /// Owners of the cells, by slot.
    servers: Vec<ConnHandle>,
    server_columns: u32,
}

impl World {
    /// A square grid with this many cells and servers along a side.
    fn new(columns: u32, server_columns: u32) -> Self {
        let grid = spatial::Grid::new(spatial::GridConfig {
            offset_x: 0.0,
            offset_z: 0.0,
            cell_width: SIDE,
            cell_height: SIDE,
            columns,
            rows: columns,
            server_columns,
            server_rows: server_columns,
            border_cells: 0,
        });
        let config = Config {
            development: true,
            spatial: Spatial { grid: Some(grid.expect("a valid grid")), ..Spatial::default() },
            ..Config::reference()
        };
        let gateway = Gateway::new(config, PROTO);
        let mut world = Self { gateway, columns, servers: Vec::new(), server_columns };
        for _ in 0..server_columns * server_columns {
            let server = world.gateway.join(ConnKind::Server);
            world.servers.push(server);
            let request = CreateChannelMessage { channel_type: 4, ..CreateChannelMessage::default() };
            world.gateway.request(server, 0, MessageType::CreateSpatialChannel, &request);
        }
        world
    }

    fn cell(&self, column: u32, row: u32) -> u32 {
        CELLS + row * self.columns + column
    }

    fn owner(&self, column: u32, row: u32) -> ConnHandle {
        let block = self.columns / self.server_columns;
        self.servers[(column / block + row / block * self.server_columns) as usize]
    }

    fn place(&mut self, index: u32, (column, row): (u32, u32)) {
        let id = ENTITIES + index;
        let request = pb::CreateEntityChannelMessage {
            entity_id: id,
            data: Entity::at(id, middle(column, row)).any(),
            ..Default::default()
        };
        let (owner, cell) = (self.owner(column, row), self.cell(column, row));
        self.gateway.request(owner, cell, MessageType::CreateEntityChannel, &request);
    }

    fn look(&mut self, player: ConnHandle, (column, row): (u32, u32)) {
        let bytes = self.interest(player, (column, row));
        let owner = self.owner(column, row);
        self.gateway.receive(owner, &bytes);
        self.gateway.drain();
    }

    fn interest(&self, player: ConnHandle, (column, row): (u32, u32)) -> Vec<u8> {
        let (x, z) = middle(column, row);
        let sphere = pb::spatial_interest_query::SphereAoi {
            center: Some(pb::SpatialInfo { x, y: 0.0, z }),
            radius: RADIUS,
        };
        let query = pb::SpatialInterestQuery { sphere_aoi: Some(sphere), ..Default::default() };
        let request = pb::UpdateSpatialInterestMessage { conn_id: player.0, query: Some(query) };
        message(self.cell(column, row), MessageType::UpdateSpatialInterest, &request)
    }

    fn update(&self, index: u32, (column, row): (u32, u32)) -> Vec<u8> {
        let id = ENTITIES + index;
        let data = Entity { object: None, ..Entity::at(id, middle(column, row)) }.any();
        message(id, MessageType::ChannelDataUpdate, &ChannelDataUpdateMessage { data, ..Default::default() })
    }
}

fn middle(column: u32, row: u32) -> (f64, f64) {
    ((f64::from(column) + 0.5) * SIDE, (f64::from(row) + 0.5) * SIDE)
}

/// Two cells with 20 players who see both, of one server or of two.
#[divan::bench(args = ["one server", "two servers"])]
fn handover(bencher: Bencher<'_, '_>, case: &str) {
    let mut world = World::new(2, if case == "one server" { 1 } else { 2 });
    for _ in 0..20 {
        let player = world.gateway.join(ConnKind::Client);
        world.look(player, (0, 0));
    }
    world.place(0, (0, 0));
    let updates = [world.update(0, (1, 0)), world.update(0, (0, 0))];
    let owners = [world.owner(0, 0), world.owner(1, 0)];
    let before = world.gateway.shard.stats().handovers;
    let mut turn = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        world.gateway.receive(owners[turn], &updates[turn]);
        world.gateway.drain();
        turn = 1 - turn;
    });
    assert!(world.gateway.shard.stats().handovers > before, "every update crosses the border");
}

/// Everyone walks to the next column and back.
#[divan::bench(args = [0, 1_000])]
fn handovers(bencher: Bencher<'_, '_>, players: u32) {
    let mut world = World::new(15, 3);
    let at = |index: u32| (index % 14, index / 14 % 15);
    for index in 0..1_000 {
        world.place(index, at(index));
        if index < players {
            let player = world.gateway.join(ConnKind::Client);
            world.look(player, at(index));
        }
    }
    let next = |index: u32| (at(index).0 + 1, at(index).1);
    let there: Vec<(ConnHandle, Vec<u8>)> = (0..1_000)
        .map(|index| (world.owner(at(index).0, at(index).1), world.update(index, next(index))))
        .collect();
    let back: Vec<(ConnHandle, Vec<u8>)> = (0..1_000)
        .map(|index| (world.owner(next(index).0, next(index).1), world.update(index, at(index))))
        .collect();
    let before = world.gateway.shard.stats().handovers;
    let mut turn = 0;
    bencher.counter(ItemsCount::new(1_000u32)).bench_local(|| {
        for (owner, update) in if turn == 0 { &there } else { &back } {
            world.gateway.receive(*owner, update);
        }
        world.gateway.drain();
        turn = 1 - turn;
    });
    assert_eq!((world.gateway.shard.stats().handovers - before) % 1_000, 0, "every update crosses a border");
}

/// A player walks to the next cell and back.
#[divan::bench]
fn interest(bencher: Bencher<'_, '_>) {
    let mut world = World::new(15, 3);
    let player = world.gateway.join(ConnKind::Client);
    world.look(player, (7, 7));
    let requests = [world.interest(player, (8, 7)), world.interest(player, (7, 7))];
    let owner = world.owner(7, 7);
    let mut turn = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        world.gateway.receive(owner, &requests[turn]);
        world.gateway.drain();
        turn = 1 - turn;
    });
}

/// One update goes out to everybody.
#[divan::bench(args = [1, 10, 130, 1_000])]
fn tick(bencher: Bencher<'_, '_>, subscribers: u32) {
    let world = RefCell::new(World::new(2, 1));
    let owner = world.borrow().owner(0, 0);
    world.borrow_mut().place(0, (0, 0));
    for _ in 0..subscribers {
        let player = world.borrow_mut().gateway.join(ConnKind::Client);
        let request = pb::SubscribedToChannelMessage { conn_id: player.0, sub_options: None };
        world.borrow_mut().gateway.request(owner, ENTITIES, MessageType::SubToChannel, &request);
    }
    let update = world.borrow().update(0, (0, 0));
    let before = world.borrow().gateway.shard.stats().fan_out_messages;
    bencher
        .with_inputs(|| {
            let world = &mut *world.borrow_mut();
            world.gateway.drain();
            world.gateway.receive(owner, &update);
            world.gateway.now += Duration::from_millis(40);
        })
        .bench_local_values(|()| {
            let world = &mut *world.borrow_mut();
            world.gateway.shard.handle_timeout(world.gateway.now);
        });
    let told = world.borrow().gateway.shard.stats().fan_out_messages - before;
    assert!(told >= 2 * u64::from(subscribers), "every update goes out");
}
