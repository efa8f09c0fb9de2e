//! The Unreal profile, rule by rule (§9.3, §9.4).

use std::collections::BTreeMap;

use prost::Message;
use throng_wire::proto::unrealpb::{
    ActorState, FRepMovement, FVector, GameStateBase, PawnState, SceneComponentState, SpatialEntityState,
    UnrealObjectRef,
};

use super::*;
use crate::data::{Delta, split};

/// The fields of `tpspb.TestRepChannelData` that the rules tell apart.
#[derive(Clone, PartialEq, Message)]
struct World {
    #[prost(message, optional, tag = "1")]
    game_state: Option<GameStateBase>,
    #[prost(btree_map = "uint32, message", tag = "2")]
    actors: BTreeMap<u32, ActorState>,
    #[prost(btree_map = "uint32, message", tag = "3")]
    pawns: BTreeMap<u32, PawnState>,
    #[prost(btree_map = "uint32, message", tag = "9")]
    components: BTreeMap<u32, SceneComponentState>,
}

/// The fields of `tpspb.EntityChannelData` that the rules tell apart.
#[derive(Clone, PartialEq, Message)]
struct Entity {
    #[prost(message, optional, tag = "1")]
    obj_ref: Option<UnrealObjectRef>,
    #[prost(message, optional, tag = "2")]
    actor: Option<ActorState>,
}

#[derive(Clone, PartialEq, Message)]
struct Cell {
    #[prost(btree_map = "uint32, message", tag = "1")]
    entities: BTreeMap<u32, SpatialEntityState>,
}

fn actor(role: u32) -> ActorState {
    ActorState { local_role: Some(role), ..Default::default() }
}

fn hidden() -> ActorState {
    ActorState { b_hidden: Some(true), ..Default::default() }
}

fn removed_actor() -> ActorState {
    ActorState { removed: true, ..Default::default() }
}

fn pawn(pitch: u32) -> PawnState {
    PawnState { remote_view_pitch: Some(pitch), ..Default::default() }
}

fn visible(visible: bool) -> SceneComponentState {
    SceneComponentState { b_visible: Some(visible), ..Default::default() }
}

fn removed_component() -> SceneComponentState {
    SceneComponentState { removed: true, ..Default::default() }
}

fn object(net_guid: u32) -> UnrealObjectRef {
    UnrealObjectRef { net_guid: Some(net_guid), ..Default::default() }
}

/// Merges `updates` one by one, and as one delta, and expects `expected` from both.
fn check<M: Message + Default + PartialEq + std::fmt::Debug>(
    name: &str,
    start: &M,
    updates: &[M],
    expected: &M,
) {
    check_messages(name, start, updates, expected, 1);
}

/// As [`check`], for a delta that takes `messages` messages to say it.
fn check_messages<M: Message + Default + PartialEq + std::fmt::Debug>(
    name: &str,
    start: &M,
    updates: &[M],
    expected: &M,
    messages: usize,
) {
    let schemas = schemas();
    let plan = plan(&schemas, name);
    assert_eq!(plan.profile(), Profile::Unreal);
    let mut data = ChannelData::from_bytes(plan.clone(), &start.encode_to_vec()).expect("valid");
    let mut receiver = data.clone();
    let mut delta = Delta::new(plan);
    for update in updates {
        data.merge(&update.encode_to_vec(), None).expect("valid");
        delta.accumulate(&update.encode_to_vec(), None).expect("valid");
    }
    let mut out = Vec::new();
    delta.encode_messages(None, &mut out);
    assert_eq!(out.len(), messages);
    for message in out {
        receiver.merge(&message, None).expect("valid");
    }
    for result in [&data, &receiver] {
        let result = M::decode(encoded(result, None).as_slice()).expect("valid");
        assert_eq!(&result, expected);
    }
}

const WORLD: &str = "tpspb.TestRepChannelData";
const ENTITY: &str = "tpspb.EntityChannelData";
const CELL: &str = "unrealpb.SpatialChannelData";

#[test]
fn single_states_merge_deeply() {
    let state = |seconds, begun| World {
        game_state: Some(GameStateBase {
            replicated_world_time_seconds: seconds,
            b_replicated_has_begun_play: begun,
            ..Default::default()
        }),
        ..Default::default()
    };
    check(
        WORLD,
        &state(Some(1.0), None),
        &[state(None, Some(true)), state(Some(0.0), None)],
        &state(Some(0.0), Some(true)),
    );
}

#[test]
fn entries_merge_deeply_or_are_inserted() {
    let start = World {
        actors: BTreeMap::from([(1, actor(3))]),
        pawns: BTreeMap::from([(1, pawn(10))]),
        components: BTreeMap::from([(1, visible(true))]),
        ..Default::default()
    };
    let update = World {
        actors: BTreeMap::from([(1, hidden()), (2, actor(1))]),
        pawns: BTreeMap::from([(2, pawn(0))]),
        components: BTreeMap::from([(
            1,
            SceneComponentState { b_absolute_scale: Some(false), ..Default::default() },
        )]),
        ..Default::default()
    };
    let expected = World {
        actors: BTreeMap::from([(1, ActorState { b_hidden: Some(true), ..actor(3) }), (2, actor(1))]),
        pawns: BTreeMap::from([(1, pawn(10)), (2, pawn(0))]),
        components: BTreeMap::from([(
            1,
            SceneComponentState { b_absolute_scale: Some(false), ..visible(true) },
        )]),
        ..Default::default()
    };
    check(WORLD, &start, &[update], &expected);
}

#[test]
fn vectors_inside_entries_keep_the_axes_an_update_leaves_out() {
    let moved = |x, y| World {
        actors: BTreeMap::from([(
            7,
            ActorState {
                replicated_movement: Some(FRepMovement {
                    location: Some(FVector { x, y, z: None }),
                    ..Default::default()
                }),
                ..Default::default()
            },
        )]),
        ..Default::default()
    };
    check(
        WORLD,
        &moved(Some(1.0), Some(2.0)),
        &[moved(Some(5.0), None), moved(None, Some(0.0))],
        &moved(Some(5.0), Some(0.0)),
    );
}

#[test]
fn a_removed_component_goes_alone() {
    let start = World {
        actors: BTreeMap::from([(1, actor(3))]),
        components: BTreeMap::from([(1, visible(true)), (2, visible(false))]),
        ..Default::default()
    };
    let update = World { components: BTreeMap::from([(1, removed_component())]), ..Default::default() };
    let expected = World {
        actors: BTreeMap::from([(1, actor(3))]),
        components: BTreeMap::from([(2, visible(false))]),
        ..Default::default()
    };
    check(WORLD, &start, &[update], &expected);
}

#[test]
fn a_removed_actor_takes_all_but_its_components_along() {
    let start = World {
        actors: BTreeMap::from([(1, actor(3)), (2, actor(3))]),
        pawns: BTreeMap::from([(1, pawn(1)), (2, pawn(2))]),
        components: BTreeMap::from([(1, visible(true))]),
        ..Default::default()
    };
    // The pawn state in the same update, and with the higher field number, does not survive: actors
    // come last.
    let update = World {
        actors: BTreeMap::from([(1, removed_actor())]),
        pawns: BTreeMap::from([(1, pawn(9))]),
        ..Default::default()
    };
    let expected = World {
        actors: BTreeMap::from([(2, actor(3))]),
        pawns: BTreeMap::from([(2, pawn(2))]),
        components: BTreeMap::from([(1, visible(true))]),
        ..Default::default()
    };
    check(WORLD, &start, std::slice::from_ref(&update), &expected);
    let before = World { pawns: BTreeMap::from([(1, pawn(5))]), ..Default::default() };
    check(WORLD, &start, &[before, update], &expected);
}

/// Without a second message the receiver would keep the old actor's properties, or lose the new
/// one.
#[test]
fn what_comes_back_after_its_removal_starts_afresh() {
    let start = World {
        actors: BTreeMap::from([(1, hidden())]),
        pawns: BTreeMap::from([(1, pawn(1))]),
        components: BTreeMap::from([(1, visible(true))]),
        ..Default::default()
    };
    let gone = World { actors: BTreeMap::from([(1, removed_actor())]), ..Default::default() };
    let actor_back = World { actors: BTreeMap::from([(1, actor(2))]), ..Default::default() };
    let expected = World { components: start.components.clone(), ..actor_back.clone() };
    check_messages(WORLD, &start, &[gone.clone(), actor_back], &expected, 2);

    let pawn_back = World { pawns: BTreeMap::from([(1, pawn(8))]), ..Default::default() };
    let expected = World { components: start.components.clone(), ..pawn_back.clone() };
    check_messages(WORLD, &start, &[gone, pawn_back], &expected, 2);

    let component_gone =
        World { components: BTreeMap::from([(1, removed_component())]), ..Default::default() };
    let component_back = World {
        components: BTreeMap::from([(
            1,
            SceneComponentState { b_absolute_scale: Some(true), ..Default::default() },
        )]),
        ..Default::default()
    };
    let expected = World { components: component_back.components.clone(), ..start.clone() };
    check_messages(WORLD, &start, &[component_gone, component_back], &expected, 2);
}

#[test]
fn options_of_the_channel_mean_nothing_here() {
    let schemas = schemas();
    let start = World { components: BTreeMap::from([(1, visible(true))]), ..Default::default() };
    let mut data = ChannelData::from_bytes(plan(&schemas, WORLD), &start.encode_to_vec()).expect("valid");
    let update = World { components: BTreeMap::from([(1, removed_component())]), ..Default::default() };
    let options = MergeOptions { replace_list: true, list_size_limit: 1, ..Default::default() };
    data.merge(&update.encode_to_vec(), Some(&options)).expect("valid");
    assert_eq!(data.encoded_len(), 0);
}

#[test]
fn a_key_twice_in_one_update_counts_as_decoders_read_it() {
    let schemas = schemas();
    let start = World { actors: BTreeMap::from([(1, actor(3))]), ..Default::default() };
    let mut data = ChannelData::from_bytes(plan(&schemas, WORLD), &start.encode_to_vec()).expect("valid");
    let first = World { actors: BTreeMap::from([(1, hidden())]), ..Default::default() };
    let second = World { actors: BTreeMap::from([(1, actor(4))]), ..Default::default() };
    data.merge(&[first.encode_to_vec(), second.encode_to_vec()].concat(), None).expect("valid");
    let result = World::decode(encoded(&data, None).as_slice()).expect("valid");
    assert_eq!(result.actors[&1], actor(4));
}

#[test]
fn the_reference_of_an_entity_is_set_once() {
    let start = Entity { obj_ref: Some(object(5)), actor: Some(actor(1)) };
    let update = Entity { obj_ref: Some(object(6)), actor: Some(hidden()) };
    let expected =
        Entity { obj_ref: Some(object(5)), actor: Some(ActorState { b_hidden: Some(true), ..actor(1) }) };
    check(ENTITY, &start, &[update], &expected);
}

#[test]
fn a_cell_keeps_the_first_state_of_an_entity_until_it_is_removed() {
    let entity = |guid| SpatialEntityState { obj_ref: Some(object(guid)), ..Default::default() };
    let removed = SpatialEntityState { removed: true, ..Default::default() };
    let cell = |entries: &[(u32, SpatialEntityState)]| Cell { entities: entries.iter().cloned().collect() };
    let start = cell(&[(1, entity(1)), (2, entity(2))]);
    check(
        CELL,
        &start,
        &[cell(&[(1, entity(10)), (3, entity(3))]), cell(&[(2, removed.clone())]), cell(&[(3, entity(30))])],
        &cell(&[(1, entity(1)), (3, entity(3))]),
    );
    check_messages(
        CELL,
        &start,
        &[cell(&[(1, removed)]), cell(&[(1, entity(11))])],
        &cell(&[(1, entity(11)), (2, entity(2))]),
        2,
    );
}

#[test]
fn split_updates_keep_actors_last() {
    let schemas = schemas();
    let plan = plan(&schemas, WORLD);
    let update = World {
        actors: BTreeMap::from([(1, removed_actor())]),
        pawns: (0..20).map(|id| (id, pawn(id))).collect(),
        ..Default::default()
    };
    let mut parts = Vec::new();
    let _ = split(&plan, &update.encode_to_vec(), 40, &mut parts).expect("small entries");
    assert!(parts.len() > 3);
    let mut data = ChannelData::new(plan);
    for part in parts {
        data.merge(&part, None).expect("valid");
    }
    let result = World::decode(encoded(&data, None).as_slice()).expect("valid");
    assert_eq!(result.pawns.len(), 19);
    assert!(!result.pawns.contains_key(&1));
}
