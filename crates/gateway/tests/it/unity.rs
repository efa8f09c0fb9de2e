//! What the Unity (Mirror) transport does on the wire, as a whole. Spec §10.
//!
//! TCP with the tag of the old form, one user-space type for all of Mirror's traffic, spawn
//! messages to the neighbourhood of a cell, transforms as channel data, an end by DISCONNECT. The
//! handover of its own data type, which stopped working in v0.6 of the reference, is not supported
//! here either.

use crate::common;

use std::sync::Arc;

use common::{Id, Received, Send, World};
use prost::Message;
use throng_gateway::data::SchemasBuilder;
use throng_gateway::spatial::{Grid, GridConfig};
use throng_gateway::{CloseReason, Config, ConnKind, Spatial, StateMachine};
use throng_wire::channeldpb::*;
use throng_wire::frame::{Compression, legacy_tag};
use throng_wire::{MessagePack, write_entry};

const CELL: u32 = 0x1_0000;
/// All of Mirror's traffic.
const MIRROR: u32 = 100;
const SINGLE_CONNECTION: u32 = 1;
const ADJACENT_BUT_SENDER: u32 = 64 | 4;

const TANKS: &str = "syntax = \"proto3\"; package tankspb;
import \"unity_common.proto\";
message TankGameChannelData { map<uint32, channeldpb.TransformState> transforms = 1; }";

#[derive(Clone, PartialEq, Message)]
struct Tanks {
    #[prost(btree_map = "uint32, message", tag = "1")]
    transforms: std::collections::BTreeMap<u32, Transform>,
}

#[derive(Clone, PartialEq, Message)]
struct Transform {
    #[prost(bool, tag = "1")]
    removed: bool,
    #[prost(message, optional, tag = "2")]
    position: Option<Vector>,
}

#[derive(Clone, PartialEq, Message)]
struct Vector {
    #[prost(float, tag = "1")]
    x: f32,
}

/// Three cells in a row, one server.
fn world() -> World {
    let grid = Grid::new(GridConfig {
        offset_x: 0.0,
        offset_z: 0.0,
        cell_width: 10.0,
        cell_height: 10.0,
        columns: 3,
        rows: 1,
        server_columns: 1,
        server_rows: 1,
        border_cells: 0,
    });
    let config = Config {
        spatial: Spatial { grid: Some(grid.expect("a grid")), ..Spatial::default() },
        client_state_machine: Arc::new(StateMachine::server()),
        ..Config::development()
    };
    let schemas = SchemasBuilder::new().add_proto("tanks.proto", TANKS).build().expect("it compiles");
    World::with_schemas(config, 1, Arc::new(schemas))
}

/// One frame per message, with the tag of the old form.
fn send(world: &mut World, id: Id, message: Send) {
    let mut packet = Vec::new();
    let Send { channel, broadcast, stub, msg_type, body } = &message;
    let pack = MessagePack {
        channel_id: *channel,
        broadcast: *broadcast,
        stub_id: *stub,
        msg_type: *msg_type,
        body,
    };
    write_entry(&mut packet, &pack);
    let tag = legacy_tag(packet.len(), Compression::None);
    world.send_raw(id, &[&tag[..], &packet].concat());
}

fn join(world: &mut World, kind: ConnKind) -> Id {
    let id = world.connect(kind);
    let auth = AuthMessage {
        player_identifier_token: "test".into(),
        login_token: "test".into(),
        resume_token: None,
        ..Default::default()
    };
    send(world, id, Send::new(MessageType::Auth, &auth));
    let got = world.take(id);
    assert_eq!(got[0].decode::<AuthResultMessage>().result, 0, "SUCCESSFUL");
    id
}

fn transforms(x: f32) -> prost_types::Any {
    let state = Transform { removed: false, position: Some(Vector { x }) };
    let value = Tanks { transforms: [(7, state)].into() }.encode_to_vec();
    prost_types::Any { type_url: "type.googleapis.com/tankspb.TankGameChannelData".into(), value }
}

fn mirror(messages: &[Received]) -> Vec<(u32, Vec<u8>)> {
    let of_mirror = messages.iter().filter(|message| message.msg_type == MIRROR);
    of_mirror.map(|message| (message.channel, message.decode::<ServerForwardMessage>().payload)).collect()
}

#[test]
fn mirrors_traffic_goes_to_the_server_and_back_to_one_client() {
    let mut world = world();
    let server = join(&mut world, ConnKind::Server);
    let create = CreateChannelMessage { channel_type: ChannelType::Subworld as i32, ..Default::default() };
    send(&mut world, server, Send::new(MessageType::CreateChannel, &create));
    let channel = world.take(server)[0].decode::<CreateChannelResultMessage>().channel_id;
    let client = join(&mut world, ConnKind::Client);
    let subscribe = SubscribedToChannelMessage { conn_id: world.conn(client), sub_options: None };
    send(&mut world, server, Send::new(MessageType::SubToChannel, &subscribe).to(channel));
    assert_eq!(world.take_types(client), [MessageType::SubToChannel as u32]);
    world.take(server);

    send(&mut world, client, Send::user(MIRROR, b"input").to(channel));
    let got = world.take(server);
    let forward: ServerForwardMessage = got[0].decode();
    assert_eq!((forward.client_conn_id, &forward.payload[..]), (world.conn(client), &b"input"[..]));

    let answer = ServerForwardMessage { client_conn_id: world.conn(client), payload: b"state".to_vec() };
    let answer = Send::user(MIRROR, &answer.encode_to_vec()).broadcast(SINGLE_CONNECTION).to(channel);
    send(&mut world, server, answer);
    assert_eq!(mirror(&world.take(client)), [(channel, b"state".to_vec())]);

    // The transport ends a client by DISCONNECT.
    let disconnect = DisconnectMessage { conn_id: world.conn(client) };
    send(&mut world, server, Send::new(MessageType::Disconnect, &disconnect));
    assert_eq!(world.closed(client), Some(CloseReason::Kicked));
    assert_eq!(world.closed(server), None);
}

#[test]
fn a_spawn_reaches_the_neighbourhood_but_not_its_owner_or_the_sender() {
    let mut world = world();
    let server = join(&mut world, ConnKind::Server);
    let sub_options = Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() });
    let create = CreateChannelMessage { channel_type: 4, sub_options, ..Default::default() };
    send(&mut world, server, Send::new(MessageType::CreateChannel, &create));
    // One player in each cell; the player of the first owns what is spawned there.
    let players: Vec<Id> = (0..3)
        .map(|cell| {
            let player = join(&mut world, ConnKind::Client);
            let subscribe = SubscribedToChannelMessage { conn_id: world.conn(player), sub_options: None };
            send(&mut world, server, Send::new(MessageType::SubToChannel, &subscribe).to(CELL + cell));
            world.take(player);
            player
        })
        .collect();
    world.take(server);
    let spawn = |owner: u32| {
        let body = ServerForwardMessage { client_conn_id: owner, payload: b"tank".to_vec() };
        Send::user(MIRROR, &body.encode_to_vec()).broadcast(ADJACENT_BUT_SENDER).to(CELL)
    };
    let owner = world.conn(players[0]);
    send(&mut world, server, spawn(owner));
    let heard: Vec<usize> = players.iter().map(|&player| mirror(&world.take(player)).len()).collect();
    assert_eq!(heard, [0, 1, 0], "the owner is excluded, the second cell is adjacent, the third is not");
    assert!(mirror(&world.take(server)).is_empty());
}

#[test]
fn whoever_may_write_sends_transforms() {
    let mut world = world();
    let server = join(&mut world, ConnKind::Server);
    let create = CreateChannelMessage {
        channel_type: ChannelType::Subworld as i32,
        data: Some(transforms(1.0)),
        ..Default::default()
    };
    send(&mut world, server, Send::new(MessageType::CreateChannel, &create));
    let channel = world.take(server)[0].decode::<CreateChannelResultMessage>().channel_id;
    let clients = [join(&mut world, ConnKind::Client), join(&mut world, ConnKind::Client)];
    for (client, access) in
        clients.iter().zip([ChannelDataAccess::WriteAccess, ChannelDataAccess::ReadAccess])
    {
        let sub_options =
            Some(ChannelSubscriptionOptions { data_access: Some(access as i32), ..Default::default() });
        let subscribe = SubscribedToChannelMessage { conn_id: world.conn(*client), sub_options };
        send(&mut world, server, Send::new(MessageType::SubToChannel, &subscribe).to(channel));
    }
    let position = |world: &mut World, id: Id| {
        world.run_ms(200);
        let updates = world.take(id);
        let last = updates.iter().rfind(|got| got.msg_type == MessageType::ChannelDataUpdate as u32)?;
        let data = last.decode::<ChannelDataUpdateMessage>().data?;
        let tanks = Tanks::decode(&data.value[..]).expect("valid");
        Some(tanks.transforms[&7].position.as_ref()?.x)
    };
    assert_eq!(position(&mut world, clients[1]), Some(1.0));
    for (client, x) in [(0, 2.0), (1, 3.0)] {
        let update = ChannelDataUpdateMessage { data: Some(transforms(x)), ..Default::default() };
        send(&mut world, clients[client], Send::new(MessageType::ChannelDataUpdate, &update).to(channel));
    }
    assert_eq!(position(&mut world, clients[1]), Some(2.0), "write access decides, not the kind of peer");
}
