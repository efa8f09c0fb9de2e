//! Game servers crash, return, return elsewhere, or never return.

use throng_gateway::Refusal;

use super::*;

#[test]
fn a_crashed_server_returns_to_its_cells_and_entities() {
    let (mut world, a, b) = border(recovering());
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    interest(&mut world, b, conn, 5.0, 4.0);
    let old = world.conn(a);
    world.close(a);
    assert_eq!(entity(&world, E + 1), (Some(CELL), None));
    let back = returns(&mut world, "a");
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(old)));
    let types: Vec<(u32, u32)> = world.take(back).iter().map(|got| (got.msg_type, got.channel)).collect();
    assert!(types.contains(&(20, CELL)) && types.contains(&(20, E + 1)) && types.contains(&(21, 0)));
    assert!(world.closed(client).is_none());
    move_to(&mut world, back, E + 1, 15.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
}

#[test]
fn a_returning_server_takes_what_came_into_its_cells_and_leaves_what_left_its_own() {
    let (mut world, a, b) = border(recovering());
    create_entity(&mut world, a, CELL, E + 2, 5.0);
    // Into the cell of a server that is away: nobody is there to own them.
    world.close(b);
    move_to(&mut world, a, E + 1, 15.0);
    move_to(&mut world, a, E + 2, 15.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(a))));
    world.close(a);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), None));
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
    let (mut world, a, b) = border(recovering());
    world.close(b);
    move_to(&mut world, a, E + 1, 15.0);
    world.close(a);
    for (pit, owner) in [("a", world.conn(a)), ("b", world.conn(b))] {
        returns(&mut world, pit);
        assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(owner)));
    }
}

#[test]
fn another_server_takes_the_slot_of_one_that_never_returns() {
    let (mut world, a, _) = border(recovering());
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
    let back = returns(&mut world, "a");
    assert_eq!(entity(&world, E + 1).1, Some(world.conn(c)));
    move_to(&mut world, back, E + 1, 6.0);
    assert_eq!(world.refused(Refusal::WriteAccess), 1);
}
