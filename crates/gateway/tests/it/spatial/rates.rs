//! Rates of entities by distance, and from which entity a client looks.

use throng_gateway::{ConnId, Refusal};

use super::*;

#[test]
fn entity_rates_follow_distance_with_hysteresis_unless_a_client_names_its_own() {
    let mut world = world(with_rates());
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

// On ticks of 20 ms, windows of 50 ms would be 60 and 40 ms long, and 40 ms hold one frame of a
// server that makes 30 a second: every frame that is a little late would leave somebody's window
// empty.
#[test]
fn rates_by_distance_are_kept_between_the_ticks_of_the_channel() {
    let mut world = world(with_rates());
    let a = spatial_server(&mut world, "a");
    create_entity(&mut world, a, CELL, E + 9, 5.0);
    for (number, pit) in ["c", "d", "e", "f", "g"].into_iter().enumerate() {
        let client = world.join(ConnKind::Client, pit);
        let conn = world.conn(client);
        create_avatar(&mut world, a, CELL, E + 1 + number as u32, 5.0, conn);
        let body = SubscribedToChannelMessage { conn_id: 0, sub_options: None };
        world.send(client, [Send::new(MessageType::SubToChannel, &body).to(E + 9)]);
        world.run_ms(300);
        world.take(client);
        let mut times = Vec::new();
        for step in 0..500_u32 {
            move_to(&mut world, a, E + 9, 5.0 + (step % 2) as f32 * 0.01);
            world.run_ms(1);
            if world.take(client).iter().any(|got| got.channel == E + 9 && got.msg_type == 8) {
                times.push(step);
            }
        }
        // The first may have waited for the first update.
        assert!(times.len() >= 10, "{pit}: {times:?}");
        assert!(times[1..].windows(2).all(|pair| pair[1] - pair[0] == 50), "{pit}: {times:?}");
    }
}

#[test]
fn the_sight_of_an_entity_tells_cells_distance_and_band() {
    let (mut world, a, _, conn) = with_client(with_rates());
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
    let (mut world, a, _, conn) = with_client(with_rates());
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

#[test]
fn what_a_client_leaves_behind_is_nobodys() {
    let (mut world, a, client, conn) = with_client(with_rates());
    create_entity(&mut world, a, CELL, E + 9, 8.0);
    for (id, x) in [(E + 1, 5.0), (E + 2, 205.0)] {
        create_avatar(&mut world, a, CELL, id, x, conn);
    }
    world.close(client);
    // Its id is somebody else's before long.
    let sees_nothing = |world: &World| {
        let sight = world.shards[0].sight_of(ConnId(conn), ChannelId(E + 9)).expect("a place");
        assert_eq!((sight.own_entity, sight.band), (None, None));
        assert!(world.shards[0].interest_of(ConnId(conn)).is_some_and(|interest| interest.entity.is_none()));
    };
    sees_nothing(&world);
    move_to(&mut world, a, E + 2, 5.0);
    sees_nothing(&world);
    let body = RemoveChannelMessage { channel_id: E + 1 };
    world.send(a, [Send::new(MessageType::RemoveChannel, &body)]);
    sees_nothing(&world);
}

// Spec §5.8: a new interval counts from the last fan-out. Windows that the gateway aligns are for
// rates that it chose.
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
