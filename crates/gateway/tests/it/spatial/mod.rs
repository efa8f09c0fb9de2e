//! Cells, interest, entities and handovers, beyond what the recorded conversations show.

use crate::common;

mod balance;
mod handover;
mod interest;
mod objects;
mod rates;
mod recorded;
mod recovery;
mod wrong_input;

use common::{Id, Received, Send, World, schemas_of};
use prost::Message;
use throng_gateway::spatial::{Grid, GridConfig};
use throng_gateway::{
    ChannelId, ChannelSettings, ChannelType, Config, ConnKind, Lod, Recovery, Spatial, TypeSettings,
};
use throng_wire::channeldpb::spatial_interest_query::SphereAoi;
use throng_wire::channeldpb::*;
use throng_wire::unrealpb::{ActorState, FRepMovement, FVector, SpatialChannelData, UnrealObjectRef};

const CELL: u32 = 0x1_0000;
const E: u32 = 0x8_0000;

#[derive(Clone, PartialEq, Message)]
struct EntityData {
    #[prost(message, optional, tag = "1")]
    object: Option<UnrealObjectRef>,
    #[prost(message, optional, tag = "2")]
    actor: Option<ActorState>,
}

fn config(columns: u32, servers: u32) -> Config {
    let grid = Grid::new(GridConfig {
        offset_x: 0.0,
        offset_z: 0.0,
        cell_width: 10.0,
        cell_height: 10.0,
        columns,
        rows: 1,
        server_columns: servers,
        server_rows: 1,
        border_cells: 1,
    })
    .expect("a grid");
    let types = ChannelSettings::default();
    let types = types.iter().map(|(kind, settings)| {
        let name = (kind == ChannelType::SPATIAL).then(|| "unrealpb.SpatialChannelData".to_owned());
        (kind, TypeSettings { data_type: name, ..settings.clone() })
    });
    Config {
        channel_settings: ChannelSettings::new(types),
        unreal_objects: true,
        spatial: Spatial { grid: Some(grid), ..Spatial::default() },
        client_state_machine: std::sync::Arc::new(throng_gateway::StateMachine::server()),
        ..Config::development()
    }
}

fn world(config: Config) -> World {
    World::with_schemas(config, 2, schemas_of(&["tps"]))
}

/// A server with a slot of the grid.
fn spatial_server(world: &mut World, pit: &str) -> Id {
    let server = world.join(ConnKind::Server, pit);
    ask_for_slot(world, server);
    world.take(server);
    server
}

fn ask_for_slot(world: &mut World, server: Id) {
    let sub_options = Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() });
    let body = CreateChannelMessage { channel_type: 4, sub_options, ..Default::default() };
    world.send(server, [Send::new(MessageType::CreateChannel, &body).stub(9)]);
}

fn data(x: f32, id: Option<u32>, client: u32) -> prost_types::Any {
    let location = Some(FVector { x: Some(x), y: Some(5.0), z: Some(0.0) });
    let movement = FRepMovement { location, ..Default::default() };
    let object = id.map(|id| UnrealObjectRef {
        net_guid: Some(id),
        owning_conn_id: (client > 0).then_some(client),
        ..Default::default()
    });
    let actor = Some(ActorState { replicated_movement: Some(movement), ..Default::default() });
    let value = EntityData { object, actor }.encode_to_vec();
    prost_types::Any { type_url: "type.googleapis.com/tpspb.EntityChannelData".into(), value }
}

fn create_entity(world: &mut World, server: Id, cell: u32, id: u32, x: f32) {
    create_avatar(world, server, cell, id, x, 0);
}

fn create_avatar(world: &mut World, server: Id, cell: u32, id: u32, x: f32, client: u32) {
    let body = CreateEntityChannelMessage {
        entity_id: id,
        data: Some(data(x, Some(id), client)),
        sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
        ..Default::default()
    };
    world.send(server, [Send::new(MessageType::CreateEntityChannel, &body).to(cell)]);
}

fn move_to(world: &mut World, server: Id, id: u32, x: f32) {
    let body =
        ChannelDataUpdateMessage { data: Some(data(x, None, 0)), context_conn_id: 77, ..Default::default() };
    world.send(server, [Send::new(MessageType::ChannelDataUpdate, &body).to(id)]);
}

fn group(world: &mut World, server: Id, id: u32, kind: EntityGroupType, ids: &[u32]) {
    let body = AddEntityGroupMessage { r#type: kind as i32, entities_to_add: ids.to_vec() };
    world.send(server, [Send::new(MessageType::EntityGroupAdd, &body).to(id)]);
}

fn ungroup(world: &mut World, server: Id, id: u32, kind: EntityGroupType, ids: &[u32]) {
    let body = RemoveEntityGroupMessage { r#type: kind as i32, entities_to_remove: ids.to_vec() };
    world.send(server, [Send::new(MessageType::EntityGroupRemove, &body).to(id)]);
}

fn interest(world: &mut World, server: Id, client: u32, x: f64, radius: f64) {
    let center = Some(SpatialInfo { x, y: 0.0, z: 5.0 });
    let query = SpatialInterestQuery { sphere_aoi: Some(SphereAoi { center, radius }), ..Default::default() };
    let body = UpdateSpatialInterestMessage { conn_id: client, query: Some(query) };
    world.send(server, [Send::new(MessageType::UpdateSpatialInterest, &body).to(CELL)]);
}

/// Cell and owner of an entity.
fn entity(world: &World, id: u32) -> (Option<u32>, Option<u32>) {
    let view = world.shards[0].channels().find(|view| view.id.0 == id).expect("exists");
    (view.cell.map(|cell| cell.0), view.owner.map(|owner| owner.0))
}

fn listed(world: &World, cell: u32) -> Vec<u32> {
    let (_, bytes) = world.shards[0].channel_data(ChannelId(cell)).expect("a cell with data");
    SpatialChannelData::decode(&bytes[..]).expect("valid").entities.into_keys().collect()
}

fn subscriptions(messages: &[Received]) -> Vec<(u32, u32)> {
    let results = messages.iter().filter(|message| matches!(message.msg_type, 6 | 7));
    results.map(|message| (message.msg_type, message.channel)).collect()
}

/// Cells that come back to a server that returns.
fn recovering() -> Config {
    let recovery = Recovery { servers: true, ..Recovery::default() };
    Config { recovery, ..config(2, 2) }
}

/// A long row of cells and the published rates by distance.
fn with_rates() -> Config {
    let mut config = config(40, 1);
    config.spatial.lod = Some(Lod::published(1.0));
    config
}

/// A world of two cells with a server each, and an entity of the first one in the middle of its
/// cell.
fn border(config: Config) -> (World, Id, Id) {
    let mut world = world(config);
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    (world, a, b)
}

/// A world with one server and one client, and the client's connection id.
fn with_client(config: Config) -> (World, Id, Id, u32) {
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    (world, a, client, conn)
}

/// A lost server logs in again, from another address, and has been told everything.
fn returns(world: &mut World, pit: &str) -> Id {
    let back = world.try_connect(ConnKind::Server, "10.9.9.9").expect("accepted");
    world.auth(back, pit);
    world.run_ms(1500);
    back
}
