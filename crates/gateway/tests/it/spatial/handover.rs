//! An entity changes its cell: owners, audiences, groups, order, what is refused and tried again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use throng_gateway::{ConnId, Effect, Permissions, PositionPath, Refusal, failpoint};

use super::*;

#[test]
fn a15_a_handover_without_an_owner_at_the_destination_keeps_the_owner() {
    let (mut world, a, b) = border(config(2, 2));
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
    assert_eq!(world.refused(Refusal::FormerOwner), 1, "the former owner's word counts no more");
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
    let (mut world, a, b) = border(config(2, 2));
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
    // What `a` sent before it heard of either: with the version of then, it would carry the entity
    // over once more.
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

#[test]
fn an_entity_without_a_group_goes_where_it_stands_when_it_is_in_one_again() {
    let (mut world, a, b) = border(config(2, 2));
    group(&mut world, a, E + 1, EntityGroupType::Handover, &[E + 1]);
    ungroup(&mut world, a, E + 1, EntityGroupType::Handover, &[E + 1]);
    move_to(&mut world, a, E + 1, 15.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
    group(&mut world, a, E + 1, EntityGroupType::Handover, &[E + 1]);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
}

#[test]
fn a15_a_former_owner_writes_no_more_until_it_owns_the_entity_or_is_given_write() {
    for permissions in [Permissions::safe(), Permissions::permissive()] {
        let (mut world, a, b) = border(Config { permissions, ..config(2, 2) });
        move_to(&mut world, a, E + 1, 15.0);
        assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
        // A late frame would hand it back over the border.
        move_to(&mut world, a, E + 1, 5.0);
        assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
        assert_eq!(world.refused(Refusal::FormerOwner), 1);
        // What the former owner gives itself is not given.
        let write = |world: &World, id| SubscribedToChannelMessage {
            conn_id: world.conn(id),
            sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
        };
        let own = write(&world, a);
        world.send(a, [Send::new(MessageType::SubToChannel, &own).to(E + 1)]);
        move_to(&mut world, a, E + 1, 5.0);
        assert_eq!(world.refused(Refusal::FormerOwner), 2);
        let given = write(&world, a);
        world.send(b, [Send::new(MessageType::SubToChannel, &given).to(E + 1)]);
        move_to(&mut world, a, E + 1, 16.0);
        assert_eq!(world.refused(Refusal::FormerOwner), 2, "the owner has given it WRITE");
        // The one becomes the owner again, the other a former owner.
        move_to(&mut world, b, E + 1, 5.0);
        assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
        move_to(&mut world, a, E + 1, 6.0);
        move_to(&mut world, b, E + 1, 15.0);
        assert_eq!(world.refused(Refusal::FormerOwner), 3);
        assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
    }
}

#[test]
fn a_server_that_is_given_write_while_it_is_away_is_no_former_owner_when_it_returns() {
    let (mut world, a, _) = border(Config { permissions: Permissions::permissive(), ..recovering() });
    let write = SubscribedToChannelMessage {
        conn_id: world.conn(a),
        sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
    };
    world.close(a);
    let c = spatial_server(&mut world, "c");
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(c))));
    world.send(c, [Send::new(MessageType::SubToChannel, &write).to(E + 1)]);
    let back = returns(&mut world, "a");
    move_to(&mut world, back, E + 1, 15.0);
    assert_eq!(world.refused(Refusal::FormerOwner), 0);
    assert_eq!(entity(&world, E + 1).0, Some(CELL + 1), "its update counts");
}

#[test]
fn a15_a_server_whose_cell_was_taken_over_is_a_former_owner_when_it_returns() {
    let mut world = world(Config { permissions: Permissions::permissive(), ..recovering() });
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let old = world.conn(a);
    world.close(a);
    let c = spatial_server(&mut world, "c");
    assert_eq!(
        entity(&world, E + 1),
        (Some(CELL), Some(world.conn(c))),
        "the slot and its entities are taken"
    );
    let back = returns(&mut world, "a");
    move_to(&mut world, back, E + 1, 15.0);
    assert_eq!(world.refused(Refusal::FormerOwner), 1);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(c))));
    // Its id means another connection once it has closed.
    world.close_as(back, throng_gateway::Closed::Error);
    world.run_ms(3_600_000);
    assert!(world.shards[0].world().is_some_and(|view| view.entities == 1));
    let _ = (old, b);
}

const SNAKE: &str = r#"syntax = "proto3";
package snake;
message Vec { float x = 1; float y = 2; float z = 3; }
message Pose { Vec world_position = 4; }
message Body { Pose current_pose = 2; }
message Soul { int32 age = 1; }
"#;

/// An entity of a type in protobuf's own spelling, 5 to the right of the origin, then 15.
fn crosses_with(path: &str) -> bool {
    let schemas =
        throng_gateway::data::SchemasBuilder::new().add_proto("snake.proto", SNAKE).build().unwrap();
    let mut config = config(2, 2);
    config.spatial.positions = vec![PositionPath { path: path.into(), z_up: false }];
    let mut world = World::with_schemas(config, 1, schemas.into());
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    let at = |x: f32| prost_types::Any {
        type_url: "type.googleapis.com/snake.Body".into(),
        value: [&[0x12, 7, 0x22, 5, 0x0D][..], &x.to_le_bytes()].concat(),
    };
    let body = CreateEntityChannelMessage { entity_id: E + 1, data: Some(at(5.0)), ..Default::default() };
    world.send(a, [Send::new(MessageType::CreateEntityChannel, &body).to(CELL)]);
    let body = ChannelDataUpdateMessage { data: Some(at(15.0)), ..Default::default() };
    world.send(a, [Send::new(MessageType::ChannelDataUpdate, &body).to(E + 1)]);
    entity(&world, E + 1) == (Some(CELL + 1), Some(world.conn(b)))
}

#[test]
fn positions_are_found_by_json_names_in_either_spelling() {
    assert!(crosses_with("current_pose.world_position"));
    assert!(crosses_with("currentPose.worldPosition"));
    assert!(!crosses_with("currentPose.position"));
}

#[test]
fn entities_without_a_position_are_told_of_once_per_type_and_counted() {
    let schemas =
        throng_gateway::data::SchemasBuilder::new().add_proto("snake.proto", SNAKE).build().unwrap();
    assert!(schemas.has_position("current_pose.worldPosition") && !schemas.has_position("currentPose"));
    assert!(schemas.position_paths().contains("current_pose.world_position"));
    let mut world = World::with_schemas(config(2, 2), 1, schemas.into());
    let a = spatial_server(&mut world, "a");
    for id in [E + 1, E + 2] {
        let soul = prost_types::Any { type_url: "type.googleapis.com/snake.Soul".into(), value: vec![8, 3] };
        let body = CreateEntityChannelMessage { entity_id: id, data: Some(soul), ..Default::default() };
        world.send(a, [Send::new(MessageType::CreateEntityChannel, &body).to(CELL)]);
    }
    let told = world
        .effects
        .iter()
        .filter(|effect| matches!(effect, Effect::NoPosition { data_type } if data_type == "snake.Soul"));
    assert_eq!(told.count(), 1);
    assert_eq!(world.shards[0].world().map(|view| view.placeless), Some(2));
    let sight = world.shards[0].sight_of(ConnId(world.conn(a)), ChannelId(E + 1)).expect("an entity");
    assert!(sight.placeless);
    let detail = world.shards[0].world_detail(10).expect("a world");
    assert_eq!((detail.placeless, &detail.placeless_types[..]), (2, &["snake.Soul".to_owned()][..]));
}

#[test]
fn a_panic_in_a_handover_leaves_no_entity_with_an_owner_that_does_not_know() {
    let mut halves = 0;
    for place in 1..300 {
        let (mut world, a, b) = border(config(2, 2));
        world.take(a);
        world.take(b);
        assert!(failpoint::arm(place), "built with debug assertions");
        let moved = catch_unwind(AssertUnwindSafe(|| move_to(&mut world, a, E + 1, 15.0)));
        failpoint::disarm();
        if moved.is_ok() {
            assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
            assert!(halves > 0, "no panic struck the handover itself");
            return;
        }
        let broken = world.shards[0].heal();
        halves += u32::from(broken.iter().any(|broken| broken.what.contains("halfway")));
        if !broken.is_empty() {
            // The driver restarts the world.
            continue;
        }
        world.run_ms(100);
        let told = world.take(b).iter().any(|message| message.msg_type == 12);
        let (cell, owner) = entity(&world, E + 1);
        assert_eq!(owner == Some(world.conn(b)), told, "place {place}");
        assert_eq!(cell == Some(CELL + 1), told, "place {place}");
    }
    unreachable!("a handover passes fewer places");
}

#[test]
fn an_entity_whose_creation_a_panic_interrupted_is_there_as_a_whole_or_not_at_all() {
    let mut half_made = 0;
    for place in 1..100 {
        let mut world = world(config(2, 1));
        let a = spatial_server(&mut world, "a");
        let conn = ConnId(world.conn(a));
        assert!(failpoint::arm(place), "built with debug assertions");
        let create = AssertUnwindSafe(|| create_entity(&mut world, a, CELL, E + 1, 5.0));
        let struck = catch_unwind(create).is_err();
        failpoint::disarm();
        if !struck {
            assert!(half_made > 0, "no panic struck the creation itself");
            return;
        }
        let exists = |world: &World| world.shards[0].channels().any(|channel| channel.id.0 == E + 1);
        let existed = exists(&world);
        if !world.shards[0].heal().is_empty() {
            continue;
        }
        half_made += u32::from(existed && !exists(&world));
        assert_eq!(listed(&world, CELL), if exists(&world) { vec![E + 1] } else { vec![] }, "place {place}");
        let subscribed = world.shards[0].subscriptions_of(conn, 100);
        let subscribed = subscribed.into_iter().any(|view| view.channel.0 == E + 1);
        assert_eq!(exists(&world), subscribed, "place {place}: its owner is to know of it");
    }
    unreachable!("a creation passes fewer places");
}

#[test]
fn a_panic_while_a_server_takes_a_slot_leaves_no_entity_to_the_former_one() {
    let mut halves = 0;
    for place in 1..300 {
        let (mut world, a, b) = border(config(2, 2));
        world.close(b);
        move_to(&mut world, a, E + 1, 15.0);
        let c = world.join(ConnKind::Server, "c");
        assert!(failpoint::arm(place), "built with debug assertions");
        let took = catch_unwind(AssertUnwindSafe(|| ask_for_slot(&mut world, c)));
        failpoint::disarm();
        if took.is_ok() {
            assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(c))));
            assert!(halves > 0, "no panic struck the change itself");
            return;
        }
        let broken = world.shards[0].heal();
        halves += u32::from(broken.iter().any(|broken| broken.what.contains("halfway")));
        if broken.is_empty() {
            let owner_of = |id| {
                let view = world.shards[0].channels().find(|view| view.id.0 == id);
                view.and_then(|view| view.owner)
            };
            let c = ConnId(world.conn(c));
            assert_eq!(owner_of(E + 1) == Some(c), owner_of(CELL + 1) == Some(c), "place {place}");
        }
    }
    unreachable!("taking a slot passes fewer places");
}
