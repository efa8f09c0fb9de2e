//! A gateway with cells just good enough to test the simulated servers and players against:
//! everything at once and in order, one lock around it, no rates. No figure that it gives means
//! anything.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use prost::Message as _;
use throng_wire::{Forward, MessagePack, channeldpb as pb, unrealpb, write_forward_entry};

use super::avatar::{self, Scale};
use super::{ENTITY_FIRST, Grid};
use crate::fake::{Connection, Hub, listen};
use crate::protocol::{kind, update_value};

pub(crate) struct Fake {
    pub(crate) clients: SocketAddr,
    pub(crate) servers: SocketAddr,
}

impl Fake {
    pub(crate) fn start(grid: Option<Grid>) -> Self {
        let [clients, servers] = listen(Shared { grid, ..Shared::default() });
        Self { clients, servers }
    }
}

#[derive(Default)]
struct Shared {
    connections: Vec<Arc<Connection>>,
    grid: Option<Grid>,
    global_owner: u32,
    slots: Vec<u32>,
    cells: BTreeMap<u32, Cell>,
    entities: BTreeMap<u32, Entity>,
    logged_in: Vec<u32>,
}

#[derive(Default)]
struct Cell {
    owner: u32,
    subscribers: BTreeSet<u32>,
    entities: BTreeSet<u32>,
}

#[derive(Default)]
struct Entity {
    owner: u32,
    conn: u32,
    cell: u32,
    subscribers: BTreeSet<u32>,
    /// The value of the newest update.
    state: Vec<u8>,
}

impl Entity {
    fn object(&self, id: u32) -> unrealpb::UnrealObjectRef {
        unrealpb::UnrealObjectRef {
            net_guid: Some(id),
            owning_conn_id: Some(self.conn),
            ..unrealpb::UnrealObjectRef::default()
        }
    }

    fn full(&self, id: u32) -> Vec<u8> {
        let mut value = vec![1 << 3 | 2];
        let object = self.object(id).encode_to_vec();
        value.push(u8::try_from(object.len()).expect("short"));
        value.extend(object);
        value.extend_from_slice(&self.state);
        value
    }
}

fn any(type_name: &str, value: Vec<u8>) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{type_name}"), value }
}

fn pack(channel_id: u32, msg_type: u32, body: &[u8]) -> MessagePack<'_> {
    MessagePack { channel_id, broadcast: 0, stub_id: 0, msg_type, body }
}

fn update(type_name: &str, value: Vec<u8>) -> Vec<u8> {
    pb::ChannelDataUpdateMessage { data: Some(any(type_name, value)), ..Default::default() }.encode_to_vec()
}

impl Shared {
    fn send(&self, to: u32, channel: u32, kind: u32, body: &[u8]) {
        if let Some(connection) = to.checked_sub(1).and_then(|index| self.connections.get(index as usize)) {
            connection.message(&pack(channel, kind, body));
        }
    }

    fn told(&self, to: &[u32], channel: u32, kind: u32, conn: u32) {
        let body =
            pb::SubscribedToChannelResultMessage { conn_id: conn, ..Default::default() }.encode_to_vec();
        for &to in to {
            self.send(to, channel, kind, &body);
        }
    }

    fn subscribe(&mut self, channel: u32, conn: u32) {
        if let Some(cell) = self.cells.get_mut(&channel) {
            if cell.subscribers.insert(conn) {
                let owner = cell.owner;
                self.told(&[conn, owner], channel, kind::SUB_TO_CHANNEL, conn);
                let entry = |id: &u32| {
                    let obj_ref = Some(self.entities[id].object(*id));
                    (*id, unrealpb::SpatialEntityState { obj_ref, removed: false, entity_data: None })
                };
                let entities = self.cells[&channel].entities.iter().map(entry).collect();
                let data = unrealpb::SpatialChannelData { entities }.encode_to_vec();
                self.send(conn, channel, kind::CHANNEL_DATA_UPDATE, &update(avatar::CELL_TYPE_NAME, data));
            }
        } else if let Some(entity) = self.entities.get_mut(&channel)
            && entity.subscribers.insert(conn)
        {
            let full = entity.full(channel);
            self.told(&[conn], channel, kind::SUB_TO_CHANNEL, conn);
            self.send(conn, channel, kind::CHANNEL_DATA_UPDATE, &update(avatar::TYPE_NAME, full));
        }
    }

    fn unsubscribe(&mut self, channel: u32, conn: u32) {
        let cell = self.cells.get_mut(&channel).map(|cell| &mut cell.subscribers);
        let subscribers =
            cell.or_else(|| self.entities.get_mut(&channel).map(|entity| &mut entity.subscribers));
        if subscribers.is_some_and(|subscribers| subscribers.remove(&conn)) {
            self.told(&[conn], channel, kind::UNSUB_FROM_CHANNEL, conn);
        }
    }

    fn interest(&mut self, request: &pb::UpdateSpatialInterestMessage, grid: Grid) {
        let sphere = request.query.as_ref().and_then(|query| query.sphere_aoi).expect("spheres only");
        let centre = sphere.center.expect("a centre");
        let side = f64::from(grid.cell_metres) * 100.0;
        let offset = side * f64::from(grid.columns) / 2.0;
        let wanted: BTreeSet<u32> = (0..grid.columns * grid.columns)
            .filter(|index| {
                let low = |index: u32| f64::from(index) * side - offset;
                let (x, z) = (low(index % grid.columns), low(index / grid.columns));
                let away = |at: f64, low: f64| (low - at).max(at - low - side).max(0.0);
                away(centre.x, x).hypot(away(centre.z, z)) <= sphere.radius
            })
            .map(|index| super::SPATIAL_FIRST + index)
            .collect();
        let conn = request.conn_id;
        let had: Vec<u32> = self
            .cells
            .iter()
            .filter(|(_, cell)| cell.subscribers.contains(&conn))
            .map(|(id, _)| *id)
            .collect();
        for cell in had.iter().filter(|cell| !wanted.contains(cell)) {
            self.unsubscribe(*cell, conn);
        }
        for cell in wanted {
            self.subscribe(cell, conn);
        }
    }

    fn cell_at(&self, value: &[u8]) -> Option<u32> {
        let grid = self.grid?;
        let side = grid.cell_metres * grid.columns as f32;
        let body = avatar::read(value, Scale { side_metres: side })?.body;
        Some(grid.cell(body.x, body.z))
    }

    fn handover(&mut self, id: u32, to: u32) {
        let entity = self.entities.get_mut(&id).expect("known");
        let from = std::mem::replace(&mut entity.cell, to);
        let (old_owner, new_owner) = (self.cells[&from].owner, self.cells[&to].owner);
        entity.owner = new_owner;
        if old_owner != new_owner {
            entity.subscribers.remove(&old_owner);
            self.told(&[old_owner], id, kind::UNSUB_FROM_CHANNEL, old_owner);
        }
        let sources = std::mem::take(&mut self.cells.get_mut(&from).expect("known").entities);
        self.cells.get_mut(&from).expect("known").entities =
            sources.into_iter().filter(|&other| other != id).collect();
        self.cells.get_mut(&to).expect("known").entities.insert(id);
        let destination = self.cells[&to].subscribers.clone();
        for &conn in &self.cells[&from].subscribers {
            if !destination.contains(&conn) {
                self.tell_handover(conn, id, from, to, false);
            }
        }
        for conn in destination {
            let entity = self.entities.get_mut(&id).expect("known");
            let new = entity.subscribers.insert(conn);
            if new {
                self.told(&[conn], id, kind::SUB_TO_CHANNEL, conn);
            }
            self.tell_handover(conn, id, from, to, new);
        }
    }

    fn tell_handover(&self, conn: u32, id: u32, from: u32, to: u32, full: bool) {
        let entity = &self.entities[&id];
        let entity_data = full.then(|| any(avatar::TYPE_NAME, entity.full(id)));
        let state =
            unrealpb::SpatialEntityState { obj_ref: Some(entity.object(id)), removed: false, entity_data };
        let data = unrealpb::SpatialChannelData { entities: [(id, state)].into_iter().collect() };
        let body = pb::ChannelDataHandoverMessage {
            src_channel_id: from,
            dst_channel_id: to,
            context_conn_id: 0,
            data: Some(any(avatar::CELL_TYPE_NAME, data.encode_to_vec())),
            ..Default::default()
        };
        self.send(conn, to, kind::CHANNEL_DATA_HANDOVER, &body.encode_to_vec());
    }

    fn create_cells(&mut self, from: &Connection, message: &MessagePack<'_>) {
        let grid = self.grid.expect("only with a grid");
        let slot = u32::try_from(self.slots.len()).expect("few");
        self.slots.push(from.id);
        let all = (0..u32::try_from(grid.cells()).expect("few")).map(|index| super::SPATIAL_FIRST + index);
        let ids: Vec<u32> = all.filter(|&cell| grid.server_of(cell) == slot).collect();
        for &id in &ids {
            self.cells.insert(id, Cell { owner: from.id, ..Cell::default() });
            self.subscribe(id, from.id);
        }
        if self.slots.len() == grid.servers() {
            for &server in &self.slots {
                self.send(server, 0, kind::SPATIAL_CHANNELS_READY, &[]);
            }
        }
        let body = pb::CreateSpatialChannelsResultMessage {
            spatial_channel_id: ids,
            metadata: String::new(),
            owner_conn_id: from.id,
        };
        from.message(&MessagePack { body: &body.encode_to_vec(), ..*message });
    }

    fn create_entity(&mut self, from: &Connection, message: &MessagePack<'_>) {
        let request =
            pb::CreateEntityChannelMessage::decode(message.body).expect("generator speaks protobuf");
        let id = request.entity_id;
        assert!(id >= ENTITY_FIRST && !self.entities.contains_key(&id), "ids of entities are unique");
        let value = request.data.expect("complete data").value;
        let conn =
            avatar::glance(&value).and_then(|glance| glance.full).expect("a full state names its player");
        // The object reference comes first; what follows is what updates carry.
        let state = value[2 + usize::from(value[1])..].to_vec();
        self.entities.insert(
            id,
            Entity { owner: from.id, conn, cell: message.channel_id, state, ..Entity::default() },
        );
        let body = pb::CreateChannelResultMessage { channel_id: id, ..Default::default() }.encode_to_vec();
        from.message(&MessagePack { body: &body, ..*message });
        if request.is_well_known {
            for conn in self.logged_in.clone() {
                self.subscribe(id, conn);
            }
        }
    }

    fn user_message(&mut self, from: &Connection, message: &MessagePack<'_>) {
        let owner = match (self.cells.get(&message.channel_id), self.entities.get(&message.channel_id)) {
            (Some(cell), _) => cell.owner,
            (_, Some(entity)) => entity.owner,
            _ => panic!("a message to a channel that is not there: {message:?}"),
        };
        if !from.is_server {
            let target = &self.connections[owner as usize - 1];
            target.send(|out| write_forward_entry(out, message, from.id, message.body));
            return;
        }
        let to: Vec<u32> = match message.broadcast {
            0 => vec![owner],
            _ => {
                assert_eq!(message.msg_type, kind::SPAWN);
                let (id, _) = avatar::spawned(message.body);
                let cell = self.cells.get_mut(&message.channel_id).expect("spawned in a cell");
                cell.entities.insert(id);
                cell.subscribers.iter().copied().collect()
            }
        };
        assert!(Forward::parse(message.body).is_ok(), "servers send forwards");
        for to in to {
            self.connections[to as usize - 1].message(message);
        }
    }
}

impl Hub for Shared {
    fn connections(&mut self) -> &mut Vec<Arc<Connection>> {
        &mut self.connections
    }

    fn handle(&mut self, from: &Connection, message: &MessagePack<'_>) {
        match message.msg_type {
            kind::AUTH => {
                let body = pb::AuthResultMessage { conn_id: from.id, ..Default::default() }.encode_to_vec();
                from.message(&MessagePack { body: &body, ..*message });
                if !from.is_server {
                    self.send(self.global_owner, 0, kind::AUTH, &body);
                    self.logged_in.push(from.id);
                    let known: Vec<u32> = if self.grid.is_none() {
                        self.entities.keys().copied().collect()
                    } else {
                        Vec::new()
                    };
                    for id in known {
                        self.subscribe(id, from.id);
                    }
                }
            }
            kind::CREATE_CHANNEL => {
                self.global_owner = from.id;
                let body = pb::CreateChannelResultMessage::default().encode_to_vec();
                from.message(&MessagePack { body: &body, ..*message });
            }
            kind::CREATE_SPATIAL_CHANNEL => self.create_cells(from, message),
            kind::CREATE_ENTITY_CHANNEL => self.create_entity(from, message),
            kind::QUERY_SPATIAL_CHANNEL => {
                let request = pb::QuerySpatialChannelMessage::decode(message.body).expect("protobuf");
                let grid = self.grid.expect("only with a grid");
                let side = grid.cell_metres * grid.columns as f32;
                let metres = |value: f64| value as f32 / 100.0 + side / 2.0;
                let cell = |at: &pb::SpatialInfo| grid.cell(metres(at.x), metres(at.z));
                let channel_id = request.spatial_info.iter().map(cell).collect();
                let body = pb::QuerySpatialChannelResultMessage { channel_id }.encode_to_vec();
                from.message(&MessagePack { body: &body, ..*message });
            }
            kind::UPDATE_SPATIAL_INTEREST => {
                let request = pb::UpdateSpatialInterestMessage::decode(message.body).expect("protobuf");
                let grid = self.grid.expect("only with a grid");
                self.interest(&request, grid);
            }
            kind::SUB_TO_CHANNEL => {
                let request = pb::SubscribedToChannelMessage::decode(message.body).expect("protobuf");
                self.subscribe(message.channel_id, request.conn_id);
            }
            kind::UNSUB_FROM_CHANNEL => {
                let request = pb::UnsubscribedFromChannelMessage::decode(message.body).expect("protobuf");
                self.unsubscribe(message.channel_id, request.conn_id);
            }
            kind::CHANNEL_DATA_UPDATE => {
                let value = update_value(message.body).to_vec();
                let to = self.cell_at(&value);
                let Some(entity) = self.entities.get_mut(&message.channel_id) else { return };
                if entity.owner != from.id {
                    return;
                }
                entity.state = value;
                let cell = entity.cell;
                let subscribers: Vec<u32> =
                    entity.subscribers.iter().copied().filter(|&conn| conn != from.id).collect();
                for conn in subscribers {
                    self.send(conn, message.channel_id, kind::CHANNEL_DATA_UPDATE, message.body);
                }
                if let Some(to) = to.filter(|&to| to != cell) {
                    self.handover(message.channel_id, to);
                }
            }
            100.. => self.user_message(from, message),
            other => panic!("the generator sent message type {other}"),
        }
    }
}
