//! A character as channel data: `throng.demo.Avatar` written and read, and the requests about it.
//!
//! The map counts metres from its corner. On the wire it is an Unreal world: centimetres from its
//! middle, and Z up.

use prost::Message as _;
use throng_wire::{channeldpb as pb, unrealpb};

use super::terrain::Body;
use crate::protocol::{self, Fields, Head, kind, put_bytes};

/// Full name of the data of entity channels.
pub(crate) const TYPE_NAME: &str = "throng.demo.Avatar";
/// Full name of the data of spatial channels.
pub(crate) const CELL_TYPE_NAME: &str = "unrealpb.SpatialChannelData";
/// The schema of entity data, as `.proto` source. It imports `unreal_common.proto`.
pub(crate) const SCHEMA: &str = include_str!("../../proto/world.proto");

const CENTIMETRES: f32 = 100.0;

/// Tags of the fields of `Avatar`.
const OBJ_REF: u32 = 1;
const PULSE: u32 = 2;
const ACTOR_STATE: u32 = 3;
const PADDING: u32 = 15;
/// The path to the position: `ActorState.replicatedMovement.location`.
const REPLICATED_MOVEMENT: u32 = 11;
const LINEAR_VELOCITY: u32 = 1;
const LOCATION: u32 = 3;
const ROTATION: u32 = 4;
/// Protobuf wire types of the two fixed sizes.
const FIXED32: u8 = 5;
const FIXED64: u8 = 1;

/// Age mark of an update, and what the character did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pulse {
    pub(crate) sent_ns: u64,
    pub(crate) sequence: u32,
    pub(crate) input_ns: u64,
    pub(crate) input_sequence: u32,
}

/// State of a character in channel data.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Avatar {
    /// The connection whose character it is; 0 when the data does not say.
    pub(crate) conn: u32,
    pub(crate) pulse: Pulse,
    pub(crate) body: Body,
}

/// Map metres to the wire's coordinates and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Side of the map in metres.
    pub(crate) side_metres: f32,
}

impl Scale {
    /// A place on the map in the gateway's plane.
    pub(crate) fn to_wire(self, metres: f32) -> f32 {
        (metres - self.side_metres / 2.0) * CENTIMETRES
    }

    fn metres(self, centimetres: f32) -> f32 {
        centimetres / CENTIMETRES + self.side_metres / 2.0
    }

    /// A position as the gateway names it: Y up.
    pub(crate) fn info(self, x: f32, y: f32, z: f32) -> pb::SpatialInfo {
        pb::SpatialInfo {
            x: f64::from(self.to_wire(x)),
            y: f64::from(y * CENTIMETRES),
            z: f64::from(self.to_wire(z)),
        }
    }
}

// ---- writing ----

fn vector(out: &mut Vec<u8>, field: u32, [x, y, z]: [f32; 3]) {
    out.push((field << 3 | 2) as u8);
    out.push(15);
    for (field, value) in (1u8..).zip([x, y, z]) {
        out.push(field << 3 | FIXED32);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Appends pulse and actor state: the value of an update.
fn put_state(out: &mut Vec<u8>, scale: Scale, avatar: &Avatar) {
    let Avatar { pulse, body, .. } = avatar;
    out.push((PULSE << 3 | 2) as u8);
    out.push(33);
    out.push(1 << 3 | FIXED64);
    out.extend_from_slice(&pulse.sent_ns.to_le_bytes());
    out.push(2 << 3 | FIXED32);
    out.extend_from_slice(&pulse.sequence.to_le_bytes());
    out.push(3 << 3 | FIXED64);
    out.extend_from_slice(&pulse.input_ns.to_le_bytes());
    out.push(4 << 3 | FIXED32);
    out.extend_from_slice(&pulse.input_sequence.to_le_bytes());
    out.push(5 << 3 | FIXED32);
    let events = u32::from(body.jumps) | u32::from(body.collisions) << 16;
    out.extend_from_slice(&events.to_le_bytes());
    // Three vectors of 17 bytes inside replicatedMovement inside actorState.
    out.extend_from_slice(&[(ACTOR_STATE << 3 | 2) as u8, 53, (REPLICATED_MOVEMENT << 3 | 2) as u8, 51]);
    let [across, along] = body.velocity();
    vector(out, LINEAR_VELOCITY, [across, along, body.rise].map(|metres| metres * CENTIMETRES));
    vector(out, LOCATION, [scale.to_wire(body.x), scale.to_wire(body.z), body.y * CENTIMETRES]);
    vector(out, ROTATION, [0.0, 0.0, body.heading.to_degrees()]);
}

/// Appends one update of a character as a packet entry, with `padding` bytes that say nothing.
/// `scratch` is only to save allocations.
pub(crate) fn put_update(
    out: &mut Vec<u8>,
    scratch: &mut [Vec<u8>; 2],
    channel: u32,
    scale: Scale,
    avatar: &Avatar,
    padding: &[u8],
) {
    let [value, body] = scratch;
    value.clear();
    put_state(value, scale, avatar);
    if !padding.is_empty() {
        put_bytes(value, PADDING, padding);
    }
    body.clear();
    protocol::update_body(body, TYPE_NAME, value);
    protocol::put_entry(out, Head { channel, kind: kind::CHANNEL_DATA_UPDATE, ..Head::default() }, body);
}

fn object(net_id: u32, conn: u32) -> unrealpb::UnrealObjectRef {
    unrealpb::UnrealObjectRef {
        net_guid: Some(net_id),
        owning_conn_id: Some(conn),
        ..unrealpb::UnrealObjectRef::default()
    }
}

/// The complete data of a character's channel.
pub(crate) fn full_state(net_id: u32, scale: Scale, avatar: &Avatar) -> Vec<u8> {
    let mut value = Vec::with_capacity(128);
    put_bytes(&mut value, OBJ_REF, &object(net_id, avatar.conn).encode_to_vec());
    put_state(&mut value, scale, avatar);
    value
}

fn write_options(access: pb::ChannelDataAccess) -> pb::ChannelSubscriptionOptions {
    pb::ChannelSubscriptionOptions {
        data_access: Some(access.into()),
        skip_self_update_fan_out: Some(true),
        ..pb::ChannelSubscriptionOptions::default()
    }
}

fn any(type_name: &str, value: Vec<u8>) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{type_name}"), value }
}

/// Asks for all cells of the next server slot.
pub(crate) fn create_cells(out: &mut Vec<u8>, stub: u32) {
    let body = pb::CreateChannelMessage {
        channel_type: pb::ChannelType::Spatial.into(),
        metadata: "throng-load".to_owned(),
        sub_options: Some(write_options(pb::ChannelDataAccess::WriteAccess)),
        data: Some(any(CELL_TYPE_NAME, Vec::new())),
        merge_options: None,
    };
    let head = Head { stub, kind: kind::CREATE_SPATIAL_CHANNEL, ..Head::default() };
    protocol::put_message(out, head, &body.encode_to_vec());
}

/// Asks in `channel` (a cell or GLOBAL) for the channel of a character.
pub(crate) fn create_entity(
    out: &mut Vec<u8>,
    stub: u32,
    channel: u32,
    net_id: u32,
    scale: Scale,
    avatar: &Avatar,
    well_known: bool,
) {
    let body = pb::CreateEntityChannelMessage {
        entity_id: net_id,
        sub_options: Some(write_options(pb::ChannelDataAccess::WriteAccess)),
        data: Some(any(TYPE_NAME, full_state(net_id, scale, avatar))),
        is_well_known: well_known,
        ..pb::CreateEntityChannelMessage::default()
    };
    let head = Head { channel, stub, kind: kind::CREATE_ENTITY_CHANNEL, ..Head::default() };
    protocol::put_message(out, head, &body.encode_to_vec());
}

/// Tells everyone but servers in `cell` that a character has come into being.
pub(crate) fn spawn(out: &mut Vec<u8>, cell: u32, net_id: u32, scale: Scale, avatar: &Avatar) {
    let Body { x, y, z, .. } = avatar.body;
    let object = unrealpb::SpawnObjectMessage {
        obj: Some(object(net_id, avatar.conn)),
        channel_id: Some(cell),
        local_role: None,
        location: Some(unrealpb::FVector {
            x: Some(scale.to_wire(x)),
            y: Some(scale.to_wire(z)),
            z: Some(y * CENTIMETRES),
        }),
    };
    let forward = pb::ServerForwardMessage { client_conn_id: avatar.conn, payload: object.encode_to_vec() };
    let head = Head { channel: cell, broadcast: ALL_BUT_SERVER, stub: 0, kind: kind::SPAWN };
    protocol::put_message(out, head, &forward.encode_to_vec());
}

/// Broadcast value: everyone in the channel, servers left out.
const ALL_BUT_SERVER: u32 = 32;

/// Makes a sphere around a character the interest of its player.
pub(crate) fn interest(out: &mut Vec<u8>, cell: u32, scale: Scale, avatar: &Avatar, metres: f32) {
    let Body { x, y, z, .. } = avatar.body;
    let sphere = pb::spatial_interest_query::SphereAoi {
        center: Some(scale.info(x, y, z)),
        radius: f64::from(metres * CENTIMETRES),
    };
    let body = pb::UpdateSpatialInterestMessage {
        conn_id: avatar.conn,
        query: Some(pb::SpatialInterestQuery {
            sphere_aoi: Some(sphere),
            ..pb::SpatialInterestQuery::default()
        }),
    };
    let head = Head { channel: cell, kind: kind::UPDATE_SPATIAL_INTEREST, ..Head::default() };
    protocol::put_message(out, head, &body.encode_to_vec());
}

/// Asks which cell a place is in.
pub(crate) fn query(out: &mut Vec<u8>, stub: u32, scale: Scale, x: f32, z: f32) {
    let body = pb::QuerySpatialChannelMessage { spatial_info: vec![scale.info(x, 0.0, z)] };
    let head = Head { stub, kind: kind::QUERY_SPATIAL_CHANNEL, ..Head::default() };
    protocol::put_message(out, head, &body.encode_to_vec());
}

/// A message to the owner of `channel` about connection `conn`.
pub(crate) fn to_owner(out: &mut Vec<u8>, channel: u32, message_kind: u32, conn: u32, payload: &[u8]) {
    let forward = pb::ServerForwardMessage { client_conn_id: conn, payload: payload.to_vec() };
    let head = Head { channel, kind: message_kind, ..Head::default() };
    protocol::put_message(out, head, &forward.encode_to_vec());
}

// ---- reading ----

/// The beginning of an update that a player looks at: age, number, and whether it is a full state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glance {
    pub(crate) sent_ns: u64,
    pub(crate) sequence: u32,
    /// The connection whose character it is, which only full states say.
    pub(crate) full: Option<u32>,
}

/// Looks at an update's value; `None` when it is not one of ours.
pub(crate) fn glance(value: &[u8]) -> Option<Glance> {
    let mut full = None;
    for (field, value) in Fields(value) {
        match field {
            OBJ_REF => full = Some(owning_conn(value.bytes())),
            PULSE => {
                let pulse = read_pulse(value.bytes());
                return Some(Glance { sent_ns: pulse.sent_ns, sequence: pulse.sequence, full });
            }
            _ => {}
        }
    }
    None
}

fn owning_conn(object: &[u8]) -> u32 {
    Fields(object).find(|&(field, _)| field == 7).map_or(0, |(_, value)| value.number() as u32)
}

fn read_pulse(bytes: &[u8]) -> Pulse {
    let mut pulse = Pulse::default();
    for (field, value) in Fields(bytes) {
        match field {
            1 => pulse.sent_ns = value.number(),
            2 => pulse.sequence = value.number() as u32,
            3 => pulse.input_ns = value.number(),
            4 => pulse.input_sequence = value.number() as u32,
            _ => {}
        }
    }
    pulse
}

fn read_vector(bytes: &[u8]) -> [f32; 3] {
    let mut vector = [0.0; 3];
    for (field, value) in Fields(bytes) {
        if let Some(place) = (field as usize).checked_sub(1).and_then(|index| vector.get_mut(index)) {
            *place = f32::from_bits(value.number() as u32);
        }
    }
    vector
}

/// Reads complete data; `None` without a pulse or a position.
pub(crate) fn read(value: &[u8], scale: Scale) -> Option<Avatar> {
    let mut avatar = Avatar::default();
    let (mut pulsed, mut placed) = (false, false);
    for (field, value) in Fields(value) {
        match field {
            OBJ_REF => avatar.conn = owning_conn(value.bytes()),
            PULSE => {
                avatar.pulse = read_pulse(value.bytes());
                pulsed = true;
                let events = Fields(value.bytes()).find(|&(field, _)| field == 5);
                let events = events.map_or(0, |(_, value)| value.number() as u32);
                avatar.body.jumps = events as u16;
                avatar.body.collisions = (events >> 16) as u16;
            }
            ACTOR_STATE => {
                let movement = Fields(value.bytes()).find(|&(field, _)| field == REPLICATED_MOVEMENT);
                for (field, value) in Fields(movement.map_or(&[][..], |(_, value)| value.bytes())) {
                    let [x, y, z] = read_vector(value.bytes());
                    match field {
                        LINEAR_VELOCITY => avatar.body.rise = z / CENTIMETRES,
                        LOCATION => {
                            placed = true;
                            avatar.body.x = scale.metres(x);
                            avatar.body.z = scale.metres(y);
                            avatar.body.y = z / CENTIMETRES;
                        }
                        ROTATION => avatar.body.heading = z.to_radians(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (pulsed && placed).then_some(avatar)
}

/// One entry of a cell's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed<'a> {
    pub(crate) net_id: u32,
    /// The connection whose character it is, 0 when not said.
    pub(crate) conn: u32,
    pub(crate) removed: bool,
    /// The complete data of its channel, if it came along.
    pub(crate) data: Option<&'a [u8]>,
}

/// The entries of a `SpatialChannelData` value.
pub(crate) fn listed(value: &[u8]) -> impl Iterator<Item = Listed<'_>> {
    Fields(value).filter(|&(field, _)| field == 1).map(|(_, entry)| {
        let mut listed = Listed { net_id: 0, conn: 0, removed: false, data: None };
        for (field, value) in Fields(entry.bytes()) {
            match field {
                1 => listed.net_id = value.number() as u32,
                _ => {
                    for (field, value) in Fields(value.bytes()) {
                        match field {
                            1 => listed.conn = owning_conn(value.bytes()),
                            2 => listed.removed = value.number() != 0,
                            3 => listed.data = Some(protocol::any_value(value.bytes())),
                            _ => {}
                        }
                    }
                }
            }
        }
        listed
    })
}

/// Source, destination and data of a CHANNEL_DATA_HANDOVER.
pub(crate) fn handover(body: &[u8]) -> (u32, u32, &[u8]) {
    let (mut from, mut to, mut data) = (0, 0, &[][..]);
    for (field, value) in Fields(body) {
        match field {
            1 => from = value.number() as u32,
            2 => to = value.number() as u32,
            4 => data = protocol::any_value(value.bytes()),
            _ => {}
        }
    }
    (from, to, data)
}

/// The entity and its connection that a SPAWN (a `ServerForwardMessage`) tells of.
pub(crate) fn spawned(body: &[u8]) -> (u32, u32) {
    let (_, payload) = protocol::forwarded(body);
    let object = Fields(payload).find(|&(field, _)| field == 1).map_or(&[][..], |(_, value)| value.bytes());
    let net_id = Fields(object).find(|&(field, _)| field == 1).map_or(0, |(_, value)| value.number() as u32);
    (net_id, owning_conn(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn avatar() -> Avatar {
        Avatar {
            conn: 77,
            pulse: Pulse { sent_ns: 1 << 40, sequence: 9, input_ns: 5, input_sequence: 6 },
            body: Body { x: 20.5, y: 1.25, z: 280.0, heading: 1.0, rise: -2.0, jumps: 3, collisions: 4 },
        }
    }

    #[test]
    fn full_state_comes_back() {
        let scale = Scale { side_metres: 300.0 };
        let value = full_state(0x80005, scale, &avatar());
        let read = read(&value, scale).expect("complete");
        assert_eq!((read.conn, read.pulse), (77, avatar().pulse));
        assert_eq!((read.body.jumps, read.body.collisions), (3, 4));
        for (a, b) in
            [(read.body.x, 20.5), (read.body.y, 1.25), (read.body.z, 280.0), (read.body.heading, 1.0)]
        {
            assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
        assert_eq!(glance(&value), Some(Glance { sent_ns: 1 << 40, sequence: 9, full: Some(77) }));
    }

    #[test]
    fn an_update_has_its_size_and_its_age() {
        let mut out = Vec::new();
        let scale = Scale { side_metres: 300.0 };
        put_update(&mut out, &mut Default::default(), 0x80001, scale, &avatar(), &[]);
        let mut value = Vec::new();
        put_state(&mut value, Scale { side_metres: 300.0 }, &avatar());
        assert_eq!(value.len(), 2 + 33 + 2 + 2 + 51, "the size that docs/benchmarks.md names");
        assert_eq!(glance(&value), Some(Glance { sent_ns: 1 << 40, sequence: 9, full: None }));
        assert!(out.len() < 160, "{}", out.len());
        let mut padded = Vec::new();
        put_update(&mut padded, &mut Default::default(), 0x80001, scale, &avatar(), &[0; 1_000]);
        assert!((1_000..1_020).contains(&(padded.len() - out.len())), "{}", padded.len());
        let state = unrealpb::ActorState::decode(
            Fields(&value).find(|&(field, _)| field == ACTOR_STATE).expect("there").1.bytes(),
        );
        let movement = state.expect("an actor state").replicated_movement.expect("moves");
        assert_eq!(movement.location.expect("is somewhere").x, Some(-12_950.0));
    }

    #[test]
    fn cells_list_their_entities() {
        let entry = |net_id: u32, data: Option<Vec<u8>>| {
            let state = unrealpb::SpatialEntityState {
                obj_ref: Some(object(net_id, 5)),
                removed: false,
                entity_data: data.map(|value| any(TYPE_NAME, value)),
            };
            (net_id, state)
        };
        let entities = [entry(1, None), entry(2, Some(vec![1, 2]))].into_iter().collect();
        let value = unrealpb::SpatialChannelData { entities }.encode_to_vec();
        let listed: Vec<_> = listed(&value).collect();
        assert_eq!(listed[0], Listed { net_id: 1, conn: 5, removed: false, data: None });
        assert_eq!(listed[1], Listed { net_id: 2, conn: 5, removed: false, data: Some(&[1, 2]) });
    }
}
