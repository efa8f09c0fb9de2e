//! Which cells a client sees, how often, and what of them.

use throng_gateway::DampingStep;

use super::*;

#[test]
fn a23_only_cells_that_differ_are_touched() {
    let (mut world, a, client, conn) = with_client(config(8, 1));
    interest(&mut world, a, conn, 15.0, 9.0);
    let all = [(6, CELL), (6, CELL + 1), (6, CELL + 2)];
    assert_eq!(subscriptions(&world.take(client)), all);
    interest(&mut world, a, conn, 25.0, 9.0);
    assert_eq!(subscriptions(&world.take(client)), [(7, CELL), (6, CELL + 3)]);
    interest(&mut world, a, conn, 25.0, 9.0);
    assert_eq!(subscriptions(&world.take(client)), []);
    // Out of the world there is nothing to be interested in (the reference keeps the stale
    // interest).
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
    let (mut world, a, client, conn) = with_client(config);
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

// Engines name the connection of whoever controls an actor, which may be a server's own.
#[test]
fn interest_follows_clients_and_leaves_servers_their_borders() {
    let mut config = config(6, 2);
    config.spatial.follow_radius = 4.0;
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    spatial_server(&mut world, "b");
    assert!(subscriptions(&world.take(a)).contains(&(6, CELL + 3)), "its border");
    let conn = world.conn(a);
    create_avatar(&mut world, a, CELL, E + 1, 5.0, conn);
    move_to(&mut world, a, E + 1, 15.0);
    assert!(!subscriptions(&world.take(a)).contains(&(7, CELL + 3)));
}

// Spec §8.7 skips cells that do not exist; nobody would ask again for a client that stands still.
#[test]
fn a_client_that_is_followed_sees_cells_that_are_made_after_it_has_come_to_stand() {
    let mut config = config(6, 3);
    config.spatial.follow_radius = 8.0;
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let [near, far] = ["near", "far"].map(|pit| world.join(ConnKind::Client, pit));
    let [near_conn, far_conn] = [near, far].map(|id| world.conn(id));
    create_avatar(&mut world, a, CELL + 1, E + 1, 15.0, near_conn);
    create_avatar(&mut world, a, CELL, E + 2, 5.0, far_conn);
    world.take(far);
    world.take(near);
    let updates = world.stats().interest_updates;
    let b = world.join(ConnKind::Server, "b");
    ask_for_slot(&mut world, b);
    assert_eq!(subscriptions(&world.take(near)), [(6, CELL + 2)]);
    assert_eq!(subscriptions(&world.take(far)), []);
    assert_eq!(world.stats().interest_updates - updates, 1, "only who stands near is looked at");
    let told = subscriptions(&world.take(b));
    assert_eq!(told.iter().filter(|what| **what == (6, CELL + 2)).count(), 2, "itself and the client");
    // A cell that goes and comes again.
    let body = RemoveChannelMessage { channel_id: CELL + 2 };
    world.send(b, [Send::new(MessageType::RemoveChannel, &body)]);
    world.close(b);
    world.take(near);
    spatial_server(&mut world, "c");
    assert_eq!(subscriptions(&world.take(near)), [(6, CELL + 2)]);
    // One that waits beyond the last cell for the next one.
    let d = world.join(ConnKind::Client, "d");
    let conn = world.conn(d);
    create_avatar(&mut world, a, CELL, E + 3, 5.0, conn);
    move_to(&mut world, a, E + 3, 45.0);
    world.take(d);
    spatial_server(&mut world, "e");
    assert_eq!(entity(&world, E + 3).0, Some(CELL + 4));
    assert!(subscriptions(&world.take(d)).contains(&(6, CELL + 4)));
}

#[test]
fn a_cell_that_comes_nearer_is_sent_with_what_was_masked() {
    let step = |distance, masks: &[&str]| DampingStep {
        distance,
        interval_ms: 20,
        masks: masks.iter().map(|&mask| mask.to_owned()).collect(),
    };
    let mut config = config(8, 1);
    config.spatial.damping = vec![step(0, &[]), step(2, &["entities.nothing"])];
    let (mut world, a, client, conn) = with_client(config);
    create_entity(&mut world, a, CELL + 4, E + 1, 45.0);
    let seen = |world: &mut World| {
        world.run_ms(200);
        let updates =
            world.take(client).into_iter().filter(|got| got.msg_type == 8 && got.channel == CELL + 4);
        let data = updates.map(|got| got.decode::<ChannelDataUpdateMessage>().data.expect("data").value);
        let all = data.flat_map(|bytes| SpatialChannelData::decode(&bytes[..]).expect("valid").entities);
        all.filter(|(_, state)| state.obj_ref.is_some()).map(|(id, _)| id).collect::<Vec<_>>()
    };
    interest(&mut world, a, conn, 5.0, 60.0);
    assert_eq!(seen(&mut world), Vec::<u32>::new(), "masked");
    interest(&mut world, a, conn, 45.0, 60.0);
    assert_eq!(seen(&mut world), [E + 1], "its own cell");
}
