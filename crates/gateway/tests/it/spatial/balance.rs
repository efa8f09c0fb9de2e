//! Cells move between servers by load.

use std::panic::{AssertUnwindSafe, catch_unwind};

use throng_gateway::{Balance, failpoint};

use super::*;

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

/// Cells and servers of the last SPATIAL_REGIONS_UPDATE among some messages.
fn regions_told(messages: &[Received]) -> Option<Vec<u32>> {
    let told = messages.iter().rfind(|message| message.msg_type == 13)?;
    let regions = told.decode::<SpatialRegionsUpdateMessage>().regions;
    Some(regions.iter().map(|region| region.server_index).collect())
}

/// Two servers, and twelve entities in the three cells of the first; the balancer is frozen.
fn frozen() -> (Config, World, Id, Id) {
    let mut config = config(6, 2);
    config.spatial.balance =
        Some(Balance { interval_ms: 250, ratio: 1.2, load_min: 10.0, cooldown_ms: 1000 });
    config.spatial.balance_frozen = true;
    let mut world = world(config.clone());
    let (a, b) = (spatial_server(&mut world, "a"), spatial_server(&mut world, "b"));
    for index in 0..12 {
        create_entity(&mut world, a, CELL + index % 3, E + 1 + index, 5.0 + (index % 3) as f32 * 10.0);
    }
    (config, world, a, b)
}

#[test]
fn nothing_moves_while_frozen_and_every_move_is_announced() {
    let (mut config, mut world, a, b) = frozen();
    // Both servers say where their entities are, twenty times a second; what each was told of
    // regions last.
    let play = |world: &mut World, steps: u32| {
        let mut told = [None, None];
        for step in 0..steps {
            for index in 0..12 {
                let owner = entity(world, E + 1 + index).1.expect("owned");
                let owner = if owner == world.conn(a) { a } else { b };
                move_to(world, owner, E + 1 + index, 4.0 + (index % 3) as f32 * 10.0 + (step % 2) as f32);
            }
            world.run_ms(50);
            for (told, server) in told.iter_mut().zip([a, b]) {
                *told = regions_told(&world.take(server)).or(told.take());
            }
        }
        told
    };
    assert_eq!(play(&mut world, 100), [None, None]);
    assert_eq!(world.shards[0].regions_by_cell(), [0, 0, 0, 1, 1, 1]);
    assert!(world.shards[0].server_loads()[0] > 100.0, "it goes on measuring");
    config.spatial.balance_frozen = false;
    world.shards[0].reconfigure(&config);
    let told = play(&mut world, 100);
    let regions = world.shards[0].regions_by_cell();
    assert_eq!(regions, [0, 0, 1, 1, 1, 1]);
    assert_eq!(told, [Some(regions.clone()), Some(regions)]);
    // The cell's entities went along, and their former owner's word counts no more.
    assert_eq!(entity(&world, E + 3), (Some(CELL + 2), Some(world.conn(b))));
}

#[test]
fn a_panic_while_a_cell_moves_leaves_no_cell_between_two_servers() {
    let mut halves = 0;
    for place in 1..200 {
        let (mut config, mut world, a, b) = frozen();
        for step in 0..40 {
            for index in 0..12 {
                let x = 4.0 + (index % 3) as f32 * 10.0 + (step % 2) as f32;
                move_to(&mut world, a, E + 1 + index, x);
            }
            world.run_ms(50);
        }
        world.run_ms(20);
        config.spatial.balance_frozen = false;
        world.shards[0].reconfigure(&config);
        assert!(failpoint::arm(place), "built with debug assertions");
        let struck = catch_unwind(AssertUnwindSafe(|| world.run_ms(300))).is_err();
        failpoint::disarm();
        if !struck {
            assert_eq!(world.stats().cells_moved, 1);
            assert!(halves > 0, "no panic struck the move itself");
            return;
        }
        let broken = world.shards[0].heal();
        halves += u32::from(broken.iter().any(|broken| broken.what.contains("halfway")));
        if !broken.is_empty() {
            // The driver restarts the world.
            continue;
        }
        world.run_ms(300);
        let regions = world.shards[0].regions_by_cell();
        for (cell, region) in regions.into_iter().enumerate() {
            let server = world.conn([a, b][region as usize]);
            for index in 0..12 {
                let (lies_in, owner) = entity(&world, E + 1 + index);
                assert!(lies_in != Some(CELL + cell as u32) || owner == Some(server), "place {place}");
            }
        }
    }
    unreachable!("moving a cell passes fewer places");
}
