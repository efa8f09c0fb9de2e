//! What is refused, with a counted reason and without effect.

use throng_gateway::Refusal;

use super::*;

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
fn wrong_spatial_input_is_refused_with_a_counted_reason_and_changes_nothing() {
    let (mut world, a, _) = border(config(2, 2));
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
    // Positions that are no numbers are nobody's data; those that lie outside are, and nobody is
    // there.
    let data = |world: &World| world.shards[0].channel_data(ChannelId(E + 1)).expect("an entity with data");
    let there = data(&world);
    for x in [f32::NAN, f32::INFINITY] {
        move_to(&mut world, a, E + 1, x);
        create_entity(&mut world, a, CELL, E + 3, x);
    }
    assert_eq!(data(&world), there);
    for x in [-3.0, 1e30] {
        move_to(&mut world, a, E + 1, x);
    }
    expected.push((Refusal::OutsideWorld, 6));
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
