//! Cells, interest, entities and handovers, beyond what the recorded conversations show.

mod common;

use common::{Id, Received, Send, World, schemas_of};
use prost::Message;
use throng_gateway::spatial::{Grid, GridConfig};
use throng_gateway::{
    Balance, ChannelId, ChannelSettings, ChannelType, Config, ConnId, ConnKind, DampingStep, Lod,
    Permissions, Recovery, Refusal, Spatial, TypeSettings,
};
use throng_wire::channeldpb::spatial_interest_query::SphereAoi;
use throng_wire::channeldpb::*;
use throng_wire::unrealpb::{
    ActorState, DestroyObjectMessage, FRepMovement, FVector, SpatialChannelData, SpawnObjectMessage,
    UnrealObjectRef,
};

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

// ---- Handover -----------------------------------------------------------------------------------------------------------

#[test]
fn a15_a_handover_without_an_owner_at_the_destination_keeps_the_owner() {
    let mut world = world(config(2, 2));
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    world.close(b);
    world.take(a);
    move_to(&mut world, a, E + 1, 15.0);
    assert_eq!(world.take(a).iter().filter(|message| message.msg_type == 12).count(), 1);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(a))));
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![], vec![E + 1]));
    // Whoever takes the slot takes the entity.
    let c = world.join(ConnKind::Server, "c");
    ask_for_slot(&mut world, c);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(c))));
    let got = world.take(c);
    assert!(got.iter().any(|message| message.msg_type == 12 && message.channel == CELL + 1));
    move_to(&mut world, a, E + 1, 16.0);
    assert_eq!(world.refused(Refusal::WriteAccess), 1, "the former owner's word counts no more");
}

#[test]
fn an_owner_hears_of_every_handover_also_between_cells_that_it_does_not_see() {
    let mut world = world(config(4, 2));
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    world.close(b);
    for x in [25.0, 35.0, 39.0, 25.0] {
        world.take(a);
        move_to(&mut world, a, E + 1, x);
        let told = world.take(a).iter().filter(|message| message.msg_type == 12).count();
        assert_eq!(told, usize::from(x != 39.0), "at {x}");
    }
    assert_eq!(entity(&world, E + 1), (Some(CELL + 2), Some(world.conn(a))));
}

#[test]
fn a15_a_refused_handover_happens_when_the_cell_appears() {
    let mut world = world(config(2, 2));
    let a = spatial_server(&mut world, "a");
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    move_to(&mut world, a, E + 1, 15.0);
    assert_eq!((entity(&world, E + 1).0, world.refused(Refusal::UnknownCell)), (Some(CELL), 1));
    let b = spatial_server(&mut world, "b");
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
}

#[test]
fn a15_the_first_update_of_an_entity_without_data_hands_it_over() {
    let mut config = config(2, 2);
    config.spatial.follow_radius = 4.0;
    let mut world = world(config);
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    let client = world.join(ConnKind::Client, "c");
    let body = CreateEntityChannelMessage { entity_id: E + 1, ..Default::default() };
    world.send(a, [Send::new(MessageType::CreateEntityChannel, &body).to(CELL)]);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
    let data = Some(data(15.0, Some(E + 1), world.conn(client)));
    let body = ChannelDataUpdateMessage { data, ..Default::default() };
    world.send(a, [Send::new(MessageType::ChannelDataUpdate, &body).to(E + 1)]);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
    let seen = subscriptions(&world.take(client));
    assert!(seen.contains(&(6, CELL + 1)), "the client's interest follows its entity: {seen:?}");
}

#[test]
fn a15_messages_follow_an_entity_to_its_new_owner() {
    let mut world = world(config(2, 2));
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let client = world.join(ConnKind::Client, "c");
    world.take(a);
    world.take(b);
    world.send(client, [Send::user(150, b"first").to(E + 1)]);
    move_to(&mut world, a, E + 1, 15.0);
    world.send(client, [Send::user(150, b"second").to(E + 1)]);
    // What the former owner could not do any more it sends on to the owner.
    let forward = ServerForwardMessage { client_conn_id: 0, payload: b"redirected".to_vec() };
    world.send(a, [Send::user(150, &forward.encode_to_vec()).to(E + 1).broadcast(1)]);
    let calls = |messages: &[Received]| -> Vec<Vec<u8>> {
        let calls = messages.iter().filter(|message| message.msg_type == 150);
        calls.map(|message| message.decode::<ServerForwardMessage>().payload).collect()
    };
    assert_eq!(calls(&world.take(a)), [b"first".to_vec()]);
    let got = world.take(b);
    assert_eq!(calls(&got), [b"second".to_vec(), b"redirected".to_vec()]);
    let position = |wanted| got.iter().position(|message| message.msg_type == wanted).expect("it came");
    assert!(position(6) < position(12) && position(12) < position(150), "SUB, HANDOVER, calls");
    let handover: ChannelDataHandoverMessage = got[position(12)].decode();
    assert_eq!((handover.src_channel_id, handover.dst_channel_id), (CELL, CELL + 1));
    assert_eq!(handover.context_conn_id, 77);
}

#[test]
fn a15_an_entity_that_oscillates_on_a_border_is_handed_over_once_per_crossing() {
    let mut world = world(config(2, 2));
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 9.9);
    for round in 0..50 {
        let (mover, x) = if round % 2 == 0 { (a, 10.1) } else { (b, 9.9) };
        move_to(&mut world, mover, E + 1, x);
        // Again at the same place, and a little further on the same side.
        move_to(&mut world, if round % 2 == 0 { b } else { a }, E + 1, x);
        assert_eq!(world.stats().handovers, round + 1);
    }
    let view = world.shards[0].channels().find(|view| view.id.0 == E + 1).expect("exists");
    assert_eq!(
        (view.version, view.cell, view.owner.map(|o| o.0)),
        (50, Some(ChannelId(CELL)), Some(world.conn(a)))
    );
}

#[test]
fn a15_an_update_from_before_a_loss_does_not_count_when_the_entity_is_back() {
    let mut world = world(config(2, 2));
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 9.0);
    let version_told = |world: &mut World, server| {
        let handover = world.take(server).into_iter().rfind(|message| message.msg_type == 12).expect("told");
        handover.decode::<ChannelDataHandoverMessage>().versions[&(E + 1)]
    };
    let update = |world: &mut World, server, x, version| {
        let body = ChannelDataUpdateMessage { data: Some(data(x, None, 0)), version, ..Default::default() };
        world.send(server, [Send::new(MessageType::ChannelDataUpdate, &body).to(E + 1)]);
    };
    // Over the border, and back by the other server's hand.
    update(&mut world, a, 10.5, 1);
    let first = version_told(&mut world, b);
    update(&mut world, b, 9.5, first);
    let second = version_told(&mut world, a);
    assert_eq!((first, second), (2, 3));
    // What `a` sent before it heard of either: with the version of then, it would carry the entity over once more.
    update(&mut world, a, 11.0, 1);
    update(&mut world, a, 12.0, first);
    assert_eq!(world.refused(Refusal::StaleVersion), 2);
    assert_eq!(world.stats().handovers, 2);
    // Within its own cells the owner needs not keep up.
    update(&mut world, a, 9.0, second);
    assert_eq!(world.refused(Refusal::StaleVersion), 2);
    let view = world.shards[0].channels().find(|view| view.id.0 == E + 1).expect("exists");
    assert_eq!((view.version, view.owner.map(|owner| owner.0)), (2, Some(world.conn(a))));
}

#[test]
fn a24_a_handover_is_encoded_at_most_twice_whatever_the_audience() {
    let mut world = world(config(3, 3));
    let a = spatial_server(&mut world, "a");
    spatial_server(&mut world, "b");
    spatial_server(&mut world, "c");
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let clients: Vec<Id> = (0..40).map(|index| world.join(ConnKind::Client, &format!("c{index}"))).collect();
    for (index, &client) in clients.iter().enumerate() {
        let conn = world.conn(client);
        interest(&mut world, a, conn, if index % 2 == 0 { 5.0 } else { 15.0 }, 1.0);
    }
    let before = world.stats().handover_encodes;
    move_to(&mut world, a, E + 1, 15.0);
    assert_eq!(world.stats().handover_encodes, before + 2);
    for &client in &clients {
        let got = world.take(client);
        assert_eq!(got.iter().filter(|message| message.msg_type == 12).count(), 1);
    }
}

#[test]
fn groups_move_together_from_several_servers_and_locks_hold_them() {
    let mut world = world(config(3, 3));
    let servers = ["a", "b", "c"].map(|pit| spatial_server(&mut world, pit));
    for (index, &server) in servers.iter().enumerate() {
        create_entity(
            &mut world,
            server,
            CELL + index as u32,
            E + 1 + index as u32,
            5.0 + 10.0 * index as f32,
        );
    }
    group(&mut world, servers[0], E + 1, EntityGroupType::Handover, &[E + 1, E + 2, E + 3]);
    move_to(&mut world, servers[0], E + 1, 25.0);
    let owner = Some(world.conn(servers[2]));
    for id in 1..=3 {
        assert_eq!(entity(&world, E + id), (Some(CELL + 2), owner), "entity {id}");
    }
    // A locked member keeps everybody where they are, until it is free.
    group(&mut world, servers[2], E + 1, EntityGroupType::Lock, &[E + 2]);
    group(&mut world, servers[2], E + 2, EntityGroupType::Lock, &[E + 1]);
    move_to(&mut world, servers[2], E + 2, 5.0);
    assert_eq!((entity(&world, E + 2).0, world.refused(Refusal::Locked)), (Some(CELL + 2), 1));
    ungroup(&mut world, servers[2], E + 2, EntityGroupType::Lock, &[E + 1, E + 2, E + 3]);
    assert_eq!(entity(&world, E + 2), (Some(CELL), Some(world.conn(servers[0]))));
    // Out of the group it stays behind until it is in one of its own.
    ungroup(&mut world, servers[0], E + 2, EntityGroupType::Handover, &[E + 2]);
    move_to(&mut world, servers[0], E + 2, 15.0);
    assert_eq!(entity(&world, E + 2).0, Some(CELL));
    group(&mut world, servers[0], E + 2, EntityGroupType::Handover, &[E + 2]);
    move_to(&mut world, servers[0], E + 2, 16.0);
    assert_eq!(entity(&world, E + 2).0, Some(CELL + 1));
}

// ---- Recovery -----------------------------------------------------------------------------------------------------------

#[test]
fn a_crashed_server_returns_to_its_cells_and_entities() {
    let recovery = Recovery { servers: true, ..Recovery::default() };
    let mut world = world(Config { recovery, ..config(2, 2) });
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    interest(&mut world, b, conn, 5.0, 4.0);
    let old = world.conn(a);
    world.close(a);
    assert_eq!(entity(&world, E + 1), (Some(CELL), None));
    let back = world.try_connect(ConnKind::Server, "10.9.9.9").expect("accepted");
    world.auth(back, "a");
    world.run_ms(1500);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(old)));
    let types: Vec<(u32, u32)> = world.take(back).iter().map(|got| (got.msg_type, got.channel)).collect();
    assert!(types.contains(&(20, CELL)) && types.contains(&(20, E + 1)) && types.contains(&(21, 0)));
    assert!(world.closed(client).is_none());
    move_to(&mut world, back, E + 1, 15.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
}

#[test]
fn a_returning_server_takes_what_came_into_its_cells_and_leaves_what_left_its_own() {
    let recovery = Recovery { servers: true, ..Recovery::default() };
    let mut world = world(Config { recovery, ..config(2, 2) });
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    create_entity(&mut world, a, CELL, E + 2, 5.0);
    // Into the cell of a server that is away: nobody is there to own them.
    world.close(b);
    move_to(&mut world, a, E + 1, 15.0);
    move_to(&mut world, a, E + 2, 15.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(a))));
    world.close(a);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), None));
    let returns = |world: &mut World, pit| {
        let back = world.try_connect(ConnKind::Server, "10.9.9.9").expect("accepted");
        world.auth(back, pit);
        world.run_ms(1500);
        back
    };
    let (a_conn, b_conn) = (world.conn(a), world.conn(b));
    let b = returns(&mut world, "b");
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(b_conn)), "it has come into its cell");
    let got = world.take(b);
    let handed: Vec<u32> = got
        .iter()
        .filter(|message| message.msg_type == 12)
        .flat_map(|message| {
            let data = message.decode::<ChannelDataHandoverMessage>().data.expect("entities");
            SpatialChannelData::decode(&data.value[..]).expect("valid").entities.into_keys()
        })
        .collect();
    assert_eq!(handed.len(), 2, "{handed:?}");
    // The former owner comes back last, and does not get what lies in another's cell.
    let a = returns(&mut world, "a");
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(b_conn)));
    assert_eq!(entity(&world, E + 2), (Some(CELL + 1), Some(b_conn)));
    move_to(&mut world, a, E + 1, 5.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(b_conn)));
    move_to(&mut world, b, E + 1, 5.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(a_conn)));
}

#[test]
fn a_former_owner_that_returns_first_gives_up_what_lies_in_a_cell_whose_server_follows() {
    let recovery = Recovery { servers: true, ..Recovery::default() };
    let mut world = world(Config { recovery, ..config(2, 2) });
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    world.close(b);
    move_to(&mut world, a, E + 1, 15.0);
    world.close(a);
    for (pit, owner) in [("a", world.conn(a)), ("b", world.conn(b))] {
        let back = world.try_connect(ConnKind::Server, "10.9.9.9").expect("accepted");
        world.auth(back, pit);
        world.run_ms(1500);
        assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(owner)));
    }
}

#[test]
fn a_slot_with_more_cells_than_a_message_names_is_refused() {
    let mut world = world(config(25_000, 1));
    let server = world.join(ConnKind::Server, "a");
    ask_for_slot(&mut world, server);
    assert_eq!(world.refused(Refusal::Oversize), 1);
    assert!(world.shards[0].channels().all(|view| view.channel_type != ChannelType::SPATIAL));
    ask_for_slot(&mut world, server);
    assert_eq!((world.refused(Refusal::Oversize), world.refused(Refusal::NoSlot)), (2, 0), "it stays free");
}

#[test]
fn another_server_takes_the_slot_of_one_that_never_returns() {
    let recovery = Recovery { servers: true, ..Recovery::default() };
    let mut world = world(Config { recovery, ..config(2, 2) });
    let (a, _b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    interest(&mut world, a, conn, 5.0, 4.0);
    world.run_ms(100);
    world.take(client);
    world.close(a);
    let c = world.join(ConnKind::Server, "c");
    ask_for_slot(&mut world, c);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(c))));
    assert_eq!(listed(&world, CELL), [E + 1], "the cell keeps its data");
    let got: Vec<u32> = world.take(client).iter().map(|got| got.msg_type).collect();
    assert_eq!(got.iter().filter(|kind| matches!(kind, 22 | 23)).copied().collect::<Vec<_>>(), [22, 23]);
    // The lost one comes too late: its place is taken, and it owns nothing.
    let back = world.connect(ConnKind::Server);
    world.auth(back, "a");
    world.run_ms(1500);
    assert_eq!(entity(&world, E + 1).1, Some(world.conn(c)));
    move_to(&mut world, back, E + 1, 6.0);
    assert_eq!(world.refused(Refusal::WriteAccess), 1);
}

// ---- Interest -----------------------------------------------------------------------------------------------------------

#[test]
fn a23_only_cells_that_differ_are_touched() {
    let mut world = world(config(8, 1));
    let a = spatial_server(&mut world, "a");
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    interest(&mut world, a, conn, 15.0, 9.0);
    let all = [(6, CELL), (6, CELL + 1), (6, CELL + 2)];
    assert_eq!(subscriptions(&world.take(client)), all);
    interest(&mut world, a, conn, 25.0, 9.0);
    assert_eq!(subscriptions(&world.take(client)), [(7, CELL), (6, CELL + 3)]);
    interest(&mut world, a, conn, 25.0, 9.0);
    assert_eq!(subscriptions(&world.take(client)), []);
    // Out of the world there is nothing to be interested in (the reference keeps the stale interest).
    interest(&mut world, a, conn, -500.0, 9.0);
    assert_eq!(subscriptions(&world.take(client)), [(7, CELL + 1), (7, CELL + 2), (7, CELL + 3)]);
}

#[test]
fn rates_and_masks_fall_with_distance_and_the_last_step_holds_beyond() {
    let step = |distance, interval_ms, masks: &[&str]| DampingStep {
        distance,
        interval_ms,
        masks: masks.iter().map(|&mask| mask.to_owned()).collect(),
    };
    let mut config = config(8, 1);
    config.spatial.damping = vec![step(0, 20, &[]), step(1, 60, &["entities.objRef"]), step(3, 500, &[])];
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    interest(&mut world, a, conn, 5.0, 70.0);
    let got = world.take(client);
    let options = |cell: u32| {
        let result =
            got.iter().find(|got| got.msg_type == 6 && got.channel == CELL + cell).expect("subscribed");
        let options = result.decode::<SubscribedToChannelResultMessage>().sub_options.expect("options");
        (options.fan_out_interval_ms.expect("given"), options.data_field_masks.len())
    };
    assert_eq!([options(0), options(1), options(7)], [(20, 0), (60, 1), (500, 0)]);
}

#[test]
fn interest_follows_the_clients_entity_where_that_is_on() {
    let mut config = config(4, 2);
    config.spatial.follow_radius = 4.0;
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    spatial_server(&mut world, "b");
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    create_avatar(&mut world, a, CELL, E + 1, 5.0, conn);
    assert_eq!(subscriptions(&world.take(client)), [(6, CELL)]);
    move_to(&mut world, a, E + 1, 15.0);
    let got = subscriptions(&world.take(client));
    assert!(got.contains(&(7, CELL)) && got.contains(&(6, CELL + 1)), "{got:?}");
}

// ---- Level of detail ----------------------------------------------------------------------------------------------------

#[test]
fn entity_rates_follow_distance_with_hysteresis_unless_a_client_names_its_own() {
    let mut config = config(40, 1);
    config.spatial.lod = Some(Lod::published(1.0));
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let clients = [world.join(ConnKind::Client, "c"), world.join(ConnKind::Client, "d")];
    for (index, &client) in clients.iter().enumerate() {
        let conn = world.conn(client);
        create_avatar(&mut world, a, CELL, E + 1 + index as u32, 5.0, conn);
    }
    create_entity(&mut world, a, CELL, E + 9, 5.0);
    let sub = |interval| SubscribedToChannelMessage {
        conn_id: 0,
        sub_options: Some(ChannelSubscriptionOptions { fan_out_interval_ms: interval, ..Default::default() }),
    };
    world.send(clients[0], [Send::new(MessageType::SubToChannel, &sub(None)).to(E + 9)]);
    world.send(clients[1], [Send::new(MessageType::SubToChannel, &sub(Some(250))).to(E + 9)]);
    world.run_ms(500);
    // Updates that each client gets in two seconds while the entity stands about `x`.
    let count = |world: &mut World, x: f32| {
        move_to(world, a, E + 9, x);
        world.run_ms(1200);
        for client in clients {
            world.take(client);
        }
        for step in 0..200 {
            move_to(world, a, E + 9, x + (step % 2) as f32 * 0.01);
            world.run_ms(10);
        }
        clients.map(|client| world.take(client).iter().filter(|got| got.channel == E + 9).count())
    };
    let near = |got: usize, want: usize| got.abs_diff(want) <= 1 + want / 10;
    for (x, want) in [(10.0, 40), (40.0, 20), (55.5, 20), (57.0, 2), (55.5, 2), (50.0, 20), (12.0, 40)] {
        let [managed, own] = count(&mut world, x);
        assert!(near(managed, want), "{managed} updates at {x}, not {want}");
        assert!(near(own, 8), "{own} updates at {x} for a rate of its own");
    }
}

#[test]
fn the_sight_of_an_entity_tells_cells_distance_and_band() {
    let mut config = config(40, 1);
    config.spatial.lod = Some(Lod::published(1.0));
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    create_entity(&mut world, a, CELL + 3, E + 9, 35.0);
    let sight = |world: &World| world.shards[0].sight_of(ConnId(conn), ChannelId(E + 9)).expect("a place");
    let unseen = sight(&world);
    assert_eq!((unseen.cell, unseen.cell_channel), (Some(3), Some(ChannelId(CELL + 3))));
    assert_eq!((unseen.interest_cells, unseen.cells_away, unseen.own_entity), (0, None, None));
    assert_eq!((unseen.distance, unseen.band), (None, None));
    create_avatar(&mut world, a, CELL, E + 1, 5.0, conn);
    interest(&mut world, a, conn, 5.0, 10.0);
    let outside = sight(&world);
    assert!(outside.interest_cells > 0 && outside.cells_away.is_none(), "{outside:?}");
    assert_eq!((outside.own_entity, outside.distance), (Some(ChannelId(E + 1)), Some(30.0)));
    assert_eq!(outside.band, Some((1, Some(50.0))));
    interest(&mut world, a, conn, 5.0, 100.0);
    assert_eq!(sight(&world).cells_away, Some(2), "by its nearest edge");
    move_to(&mut world, a, E + 9, 205.0);
    assert_eq!((sight(&world).distance, sight(&world).band), (Some(200.0), Some((2, None))));
    move_to(&mut world, a, E + 9, 35.0);
    let there = sight(&world);
    for x in [f32::NAN, f32::NEG_INFINITY, 35.0] {
        move_to(&mut world, a, E + 9, x);
        assert_eq!(sight(&world), there, "no number is no place: it stays where it was");
    }
    assert_eq!(world.refused(Refusal::OutsideWorld), 2);
    assert_eq!(world.shards[0].sight_of(ConnId(conn), ChannelId::GLOBAL), None, "GLOBAL has no place");
}

#[test]
fn a_client_looks_from_its_next_entity_when_the_first_is_gone() {
    let mut config = config(40, 1);
    config.spatial.lod = Some(Lod::published(1.0));
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    create_entity(&mut world, a, CELL, E + 9, 8.0);
    for (id, x) in [(E + 1, 5.0), (E + 2, 205.0)] {
        create_avatar(&mut world, a, CELL, id, x, conn);
    }
    let sight = |world: &World| world.shards[0].sight_of(ConnId(conn), ChannelId(E + 9)).expect("a place");
    assert_eq!(
        (sight(&world).own_entity, sight(&world).band),
        (Some(ChannelId(E + 1)), Some((0, Some(10.0))))
    );
    let body = RemoveChannelMessage { channel_id: E + 1 };
    world.send(a, [Send::new(MessageType::RemoveChannel, &body)]);
    assert_eq!((sight(&world).own_entity, sight(&world).distance), (Some(ChannelId(E + 2)), Some(197.0)));
    assert_eq!(sight(&world).band, Some((2, None)));
}

// Spec §5.8: a new interval counts from the last fan-out. Windows that the gateway aligns are for rates that it chose.
#[test]
fn the_first_interval_that_a_client_names_counts_from_its_own_last_window() {
    let mut world = world(config(2, 1));
    let a = spatial_server(&mut world, "a");
    create_entity(&mut world, a, CELL, E + 9, 5.0);
    for pit in ["c", "d", "e", "f"] {
        let client = world.join(ConnKind::Client, pit);
        let sub = |interval| SubscribedToChannelMessage {
            conn_id: 0,
            sub_options: Some(ChannelSubscriptionOptions {
                fan_out_interval_ms: interval,
                ..Default::default()
            }),
        };
        world.send(client, [Send::new(MessageType::SubToChannel, &sub(None)).to(E + 9)]);
        // Steps of a millisecond, an update in each; the times at which the client got one.
        let mut step = 0_u32;
        let mut arrivals = |world: &mut World, steps: u32| {
            let mut times = Vec::new();
            for _ in 0..steps {
                step += 1;
                move_to(world, a, E + 9, 5.0 + (step % 2) as f32 * 0.01);
                world.run_ms(1);
                if world.take(client).iter().any(|got| got.channel == E + 9 && got.msg_type == 8) {
                    times.push(step);
                }
            }
            times
        };
        let last = *arrivals(&mut world, 300).last().expect("updates at the channel's own rate");
        world.send(client, [Send::new(MessageType::SubToChannel, &sub(Some(400))).to(E + 9)]);
        let times = arrivals(&mut world, 900);
        let tick = 10;
        assert!(times[0].abs_diff(last + 400) <= tick, "{pit}: {times:?} after {last}");
        assert!(times[1].abs_diff(last + 800) <= tick, "{pit}: {times:?} after {last}");
    }
}

// ---- Load balancing -----------------------------------------------------------------------------------------------------

#[test]
fn cells_move_from_a_crowded_server_and_come_to_rest() {
    let run = |balance: Option<Balance>| {
        let mut config = config(12, 3);
        config.spatial.balance = balance;
        let mut world = world(config);
        let servers = ["a", "b", "c"].map(|pit| spatial_server(&mut world, pit));
        // A crowd in the region of the first server: 30 entities over its four cells.
        for index in 0..30 {
            create_entity(
                &mut world,
                servers[0],
                CELL + index % 4,
                E + 1 + index,
                1.0 + (index % 4) as f32 * 10.0,
            );
        }
        let mut loads = Vec::new();
        let mut moved = Vec::new();
        for step in 0..300 {
            for index in 0..30 {
                let owner = entity(&world, E + 1 + index).1.expect("owned");
                let owner = servers.into_iter().find(|&id| world.conn(id) == owner).expect("a server");
                let x = 1.0 + (index % 4) as f32 * 10.0 + (step % 7) as f32;
                move_to(&mut world, owner, E + 1 + index, x);
            }
            world.run_ms(50);
            for server in servers {
                world.take(server);
            }
            loads = servers
                .map(|id| {
                    (0..30).filter(|index| entity(&world, E + 1 + index).1 == Some(world.conn(id))).count()
                })
                .to_vec();
            moved.push(world.stats().cells_moved);
        }
        (loads, moved, world.shards[0].regions_by_cell())
    };
    let (alone, moved, _) = run(None);
    assert_eq!((alone, moved.last()), (vec![30, 0, 0], Some(&0)));
    let balance = Balance { interval_ms: 250, ratio: 1.2, load_min: 10.0, cooldown_ms: 1000 };
    let (shared, moved, regions) = run(Some(balance));
    assert!(shared.iter().max() <= Some(&16), "{shared:?}");
    assert_eq!(moved[150], moved[299], "it comes to rest: {moved:?}");
    assert!(moved[299] >= 1 && regions.iter().filter(|&&server| server == 0).count() >= 1);
    assert_eq!(regions.len(), 12);
}

// ---- Unreal's objects ---------------------------------------------------------------------------------------------------

#[test]
fn spawned_objects_are_noted_where_they_lie_and_destroyed_ones_forgotten() {
    let mut world = world(config(2, 1));
    let a = spatial_server(&mut world, "a");
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let spawn = |id: u32, channel: Option<u32>, x: f32| {
        let message = SpawnObjectMessage {
            obj: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
            channel_id: channel,
            location: Some(FVector { x: Some(x), y: Some(5.0), z: Some(0.0) }),
            ..Default::default()
        };
        let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
        Send::user(103, &forward.encode_to_vec()).broadcast(2)
    };
    world.take(a);
    world.send(a, [spawn(E + 7, Some(CELL), 15.0).to(CELL)]);
    let got = world.take(a).pop().expect("the other cell's channel passes it on");
    let payload = got.decode::<ServerForwardMessage>().payload;
    let passed_on = SpawnObjectMessage::decode(&payload[..]).expect("valid");
    assert_eq!((got.channel, passed_on.channel_id), (CELL, Some(CELL + 1)));
    world.send(
        a,
        [spawn(E + 8, None, 5.0).to(CELL), spawn(E + 9, None, -5.0).to(CELL), spawn(0, None, 5.0).to(CELL)],
    );
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1, E + 8], vec![E + 7]));
    assert_eq!((world.refused(Refusal::OutsideWorld), world.refused(Refusal::BadBody)), (1, 1));

    let destroy = |id: u32| {
        let message = DestroyObjectMessage { net_id: id, reason: 0 };
        let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
        Send::user(104, &forward.encode_to_vec()).broadcast(2)
    };
    world.send(a, [destroy(E + 8).to(CELL), destroy(E + 1).to(CELL), destroy(CELL).to(CELL)]);
    assert_eq!(listed(&world, CELL), Vec::<u32>::new());
    assert!(world.shards[0].channels().all(|view| view.id.0 != E + 1), "the entity is gone");
    assert!(world.shards[0].channels().any(|view| view.id.0 == CELL), "a cell is no object");
}

// A-19, spec §9.2: what a client says about objects never counts as a server's word. In the safe profile it does not even
// reach one.
#[test]
fn a19_spawn_and_destroy_from_clients_are_refused_unless_the_profile_is_permissive() {
    for permissive in [false, true] {
        let mut config = config(2, 1);
        if permissive {
            config.permissions = Permissions::permissive();
        }
        let mut world = world(config);
        let a = spatial_server(&mut world, "a");
        create_entity(&mut world, a, CELL, E + 1, 5.0);
        let client = world.join(ConnKind::Client, "cheat");
        for channel in [CELL, E + 1] {
            world.send(
                client,
                [Send::new(MessageType::SubToChannel, &SubscribedToChannelMessage::default()).to(channel)],
            );
        }
        world.take(a);
        let spawn = SpawnObjectMessage {
            obj: Some(UnrealObjectRef { net_guid: Some(E + 7), ..Default::default() }),
            location: Some(FVector { x: Some(5.0), y: Some(5.0), z: Some(0.0) }),
            ..Default::default()
        };
        let destroy = DestroyObjectMessage { net_id: E + 1, reason: 0 };
        // As a client sends, and wrapped as a server does.
        let wrapped = |payload: Vec<u8>| ServerForwardMessage { client_conn_id: 0, payload }.encode_to_vec();
        let mut spoofed = Vec::new();
        for (msg_type, body) in [(103, spawn.encode_to_vec()), (104, destroy.encode_to_vec())] {
            for body in [body.clone(), wrapped(body)] {
                for (channel, broadcast) in [(CELL, 0), (CELL, 2), (E + 1, 0), (E + 1, 2)] {
                    spoofed.push(Send::user(msg_type, &body).broadcast(broadcast).to(channel));
                }
            }
        }
        let count = spoofed.len();
        world.send(client, spoofed);
        let reached = world.take(a);
        if permissive {
            assert_eq!(reached.len(), count, "the owner gets what a client says, as a client's");
            let from = world.conn(client);
            assert!(reached.iter().all(|got| got.decode::<ServerForwardMessage>().client_conn_id == from));
        } else {
            assert_eq!((reached, world.refused(Refusal::Permission)), (vec![], count as u64));
        }
        assert_eq!(listed(&world, CELL), [E + 1], "nothing was noted or forgotten");
        assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
    }
}

// ---- Wrong input --------------------------------------------------------------------------------------------------------

#[test]
fn wrong_spatial_input_is_refused_with_a_counted_reason_and_changes_nothing() {
    let mut world = world(config(2, 2));
    let (a, _b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    let state = |world: &World| {
        let mut views: Vec<_> = world.shards.iter().flat_map(|shard| shard.channels()).collect();
        views.sort_by_key(|view| view.id);
        views.iter().map(|view| (view.id, view.owner, view.cell, view.subscriptions)).collect::<Vec<_>>()
    };
    let before = state(&world);
    let third = world.join(ConnKind::Server, "third");

    let bad = [f64::NAN, f64::INFINITY];
    let mut expected: Vec<(Refusal, u64)> = Vec::new();
    // Positions that are no numbers or lie outside.
    for x in [f32::NAN, f32::INFINITY, -3.0, 1e30] {
        move_to(&mut world, a, E + 1, x);
    }
    expected.push((Refusal::OutsideWorld, 4));
    // Interest without an area; an absurd one costs the world once and covers it.
    for radius in [bad[0], bad[1], 0.0, -1.0] {
        interest(&mut world, a, conn, 5.0, radius);
    }
    expected.push((Refusal::InterestQuery, 4));
    interest(&mut world, a, 999_999, 5.0, 5.0);
    expected.push((Refusal::UnknownConnection, 1));
    // Ids that clash or are none.
    for id in [E + 1, 99, CELL] {
        create_entity(&mut world, a, CELL, id, 5.0);
    }
    expected.push((Refusal::EntityId, 3));
    create_entity(&mut world, a, E + 1, E + 5, 5.0);
    expected.push((Refusal::NotSpatial, 1));
    // Groups with strangers, of strangers, and of what is no entity.
    group(&mut world, a, E + 1, EntityGroupType::Handover, &[E + 1, E + 77]);
    expected.push((Refusal::UnknownEntity, 1));
    group(&mut world, third, E + 1, EntityGroupType::Handover, &[E + 1]);
    expected.push((Refusal::Access, 1));
    group(&mut world, a, CELL, EntityGroupType::Lock, &[E + 1]);
    expected.push((Refusal::NotEntity, 1));
    ungroup(&mut world, a, E + 1, EntityGroupType::Lock, &[E + 1]);
    expected.push((Refusal::NoGroup, 1));
    // A slot where there is none, and by a client.
    ask_for_slot(&mut world, third);
    expected.push((Refusal::NoSlot, 1));
    ask_for_slot(&mut world, client);
    create_entity(&mut world, client, CELL, E + 6, 5.0);
    interest(&mut world, client, 1, 5.0, 5.0);
    expected.push((Refusal::Permission, 3));

    for (refusal, count) in expected {
        assert_eq!(world.refused(refusal), count, "{refusal}");
    }
    assert_eq!(state(&world), before);
    interest(&mut world, a, conn, 5.0, 1e300);
    assert_eq!(subscriptions(&world.take(client)), [(6, CELL), (6, CELL + 1)]);
}

#[test]
fn without_a_grid_entities_work_and_spatial_requests_are_refused() {
    let mut config = config(2, 2);
    config.spatial.grid = None;
    let mut world = world(config);
    let server = world.join(ConnKind::Server, "a");
    ask_for_slot(&mut world, server);
    interest(&mut world, server, 1, 5.0, 5.0);
    world.send(server, [Send::new(MessageType::QuerySpatialChannel, &QuerySpatialChannelMessage::default())]);
    world.send(server, [Send::user(99, &[])]);
    assert_eq!(world.refused(Refusal::SpatialUnavailable), 3);
    create_entity(&mut world, server, 0, E + 1, 5.0);
    move_to(&mut world, server, E + 1, 500.0);
    assert_eq!(entity(&world, E + 1), (None, Some(world.conn(server))));
}
