//! Game servers crash, return, return elsewhere, or never return.

use throng_gateway::Refusal;
use throng_wire::unrealpb::{ChannelRecoveryData, SpawnObjectMessage};

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
    assert_eq!(world.refused(Refusal::FormerOwner), 1);
}

/// Logs a client in, or resumes as the one that had the token; its new token, and what it was
/// subscribed to.
fn log_in(world: &mut World, token: &[u8]) -> (Id, Vec<u8>, Vec<(u32, u32)>) {
    let client = send_login(world, token);
    world.run_ms(1500);
    let got = world.take(client);
    let result: AuthResultMessage = got[0].decode();
    assert_eq!(result.should_recover, !token.is_empty());
    (client, result.resume_token, subscriptions(&got))
}

fn send_login(world: &mut World, token: &[u8]) -> Id {
    let client = world.connect(ConnKind::Client);
    let body = AuthMessage {
        player_identifier_token: "ann".into(),
        login_token: "lt".into(),
        resume_token: Some(token.to_vec()),
        ..Default::default()
    };
    world.send(client, [Send::new(MessageType::Auth, &body)]);
    client
}

#[test]
fn a_client_that_resumes_leaves_the_cells_of_before_at_once() {
    for shards in [1, 4] {
        let mut world = World::with_schemas(config(4, 1), shards, schemas_of(&["tps"]));
        let a = spatial_server(&mut world, "a");
        let (client, token, _) = log_in(&mut world, b"");
        let conn = world.conn(client);
        interest(&mut world, a, conn, 5.0, 4.0);
        world.close(client);
        interest(&mut world, a, conn, 25.0, 4.0);
        let back = send_login(&mut world, &token);
        assert_eq!(subscriptions(&world.take(back)), [(7, CELL), (6, CELL + 2)], "{shards} shards");
    }
}

#[test]
fn a_client_that_is_away_keeps_its_access_when_its_entity_changes_servers() {
    let (mut world, a, b) = border(config(2, 2));
    let (client, token, _) = log_in(&mut world, b"");
    let write = SubscribedToChannelMessage {
        conn_id: world.conn(client),
        sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
    };
    world.send(a, [Send::new(MessageType::SubToChannel, &write).to(E + 1)]);
    world.close(client);
    move_to(&mut world, a, E + 1, 15.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL + 1), Some(world.conn(b))));
    let back = send_login(&mut world, &token);
    let got = world.take(back);
    let restored = got.iter().find(|message| message.msg_type == 20).expect("its channel");
    let restored: ChannelDataRecoveryMessage = restored.decode();
    assert_eq!(restored.sub_options.expect("options").data_access(), ChannelDataAccess::WriteAccess);
    move_to(&mut world, back, E + 1, 5.0);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))), "its update counts");
}

// Its servers are not told that it is away, so they do not ask again.
#[test]
fn a_client_that_resumes_sees_what_was_asked_for_while_it_was_away() {
    for follow_radius in [0.0, 4.0] {
        let mut config = config(4, 1);
        config.spatial.follow_radius = follow_radius;
        let mut world = world(config);
        let a = spatial_server(&mut world, "a");
        let (client, token, _) = log_in(&mut world, b"");
        let conn = world.conn(client);
        let go = |world: &mut World, x: f32| match follow_radius > 0.0 {
            true => move_to(world, a, E + 1, x),
            false => interest(world, a, conn, x.into(), 4.0),
        };
        create_avatar(&mut world, a, CELL, E + 1, 5.0, conn);
        go(&mut world, 5.0);
        assert_eq!(subscriptions(&world.take(client)), [(6, CELL)]);
        world.close(client);
        go(&mut world, 15.0);
        go(&mut world, 25.0);
        let (client, _, mut got) = log_in(&mut world, &token);
        got.retain(|(_, channel)| *channel < E);
        assert_eq!(got, [(7, CELL), (6, CELL + 2)], "follow {follow_radius}");
        // What is asked for later holds, and what was asked for of one who never returned is
        // nobody's.
        world.close(client);
        go(&mut world, 35.0);
        world.jump_to_ms(3_600_000);
        assert_eq!(world.refused(Refusal::UnknownConnection), 0);
        interest(&mut world, a, conn, 5.0, 4.0);
        assert_eq!(world.refused(Refusal::UnknownConnection), 1);
    }
}

#[test]
fn a_client_that_resumes_gets_the_rates_of_where_things_have_come_meanwhile() {
    let mut world = world(with_rates());
    let a = spatial_server(&mut world, "a");
    let (client, token, _) = log_in(&mut world, b"");
    let conn = world.conn(client);
    create_avatar(&mut world, a, CELL, E + 1, 5.0, conn);
    create_entity(&mut world, a, CELL + 30, E + 9, 305.0);
    let body = SubscribedToChannelMessage { conn_id: 0, sub_options: None };
    world.send(client, [Send::new(MessageType::SubToChannel, &body).to(E + 9)]);
    world.run_ms(500);
    world.close(client);
    move_to(&mut world, a, E + 9, 6.0);
    let (client, ..) = log_in(&mut world, &token);
    world.take(client);
    for step in 0..100 {
        move_to(&mut world, a, E + 9, 6.0 + (step % 2) as f32 * 0.01);
        world.run_ms(10);
    }
    let updates = world.take(client).iter().filter(|got| got.msg_type == 8 && got.channel == E + 9).count();
    assert!((18..=22).contains(&updates), "{updates} updates in a second, not 20");
}

#[test]
fn a_client_that_resumes_gets_the_well_known_entities_that_were_made_while_it_was_away() {
    let mut world = world(config(2, 1));
    let a = spatial_server(&mut world, "a");
    let (client, token, _) = log_in(&mut world, b"");
    world.close(client);
    let well_known = |id: u32| CreateEntityChannelMessage {
        entity_id: id,
        data: Some(data(5.0, Some(id), 0)),
        is_well_known: true,
        ..Default::default()
    };
    for id in [E + 1, E + 2] {
        world.send(a, [Send::new(MessageType::CreateEntityChannel, &well_known(id)).to(CELL)]);
    }
    world.send(a, [Send::new(MessageType::RemoveChannel, &RemoveChannelMessage { channel_id: E + 2 })]);
    let (client, ..) = log_in(&mut world, &token);
    move_to(&mut world, a, E + 1, 6.0);
    world.run_ms(200);
    let got = world.take(client);
    assert_eq!(got.iter().filter(|got| got.msg_type == 8 && got.channel == E + 1).count(), 1, "{got:?}");
    // One that does not return leaves nothing behind.
    world.close(client);
    world.send(a, [Send::new(MessageType::CreateEntityChannel, &well_known(E + 3)).to(CELL)]);
    world.jump_to_ms(3_600_000);
    let view = world.shards[0].channels().find(|view| view.id.0 == E + 3).expect("exists");
    assert_eq!(view.lost, 0);
}

// A game has more objects than a packet holds.
#[test]
fn a_master_that_returns_is_told_of_all_objects_however_many() {
    const OBJECTS: u32 = 16_000;
    let mut world = world(recovering());
    let master = world.join(ConnKind::Server, "master");
    let body = CreateChannelMessage { channel_type: 1, ..Default::default() };
    world.send(master, [Send::new(MessageType::CreateChannel, &body)]);
    for id in E..E + OBJECTS {
        let obj = UnrealObjectRef { net_guid: Some(id), owning_conn_id: Some(1), ..Default::default() };
        let spawn = SpawnObjectMessage { obj: Some(obj), channel_id: Some(0), ..Default::default() };
        let body = ServerForwardMessage { client_conn_id: 0, payload: spawn.encode_to_vec() }.encode_to_vec();
        world.send(master, [Send::user(103, &body).broadcast(2)]);
    }
    world.close(master);
    let back = returns(&mut world, "master");
    let got = world.take(back);
    let parts = got.iter().filter(|got| got.msg_type == 20 && got.channel == 0);
    let objects = parts
        .filter_map(|part| part.decode::<ChannelDataRecoveryMessage>().recovery_data)
        .flat_map(|data| ChannelRecoveryData::decode(&data.value[..]).expect("valid").obj_refs);
    assert_eq!(objects.map(|(id, _)| id).collect::<Vec<_>>(), (E..E + OBJECTS).collect::<Vec<_>>());
    assert_eq!(world.refused(Refusal::Oversize), 0);
}

#[test]
fn a_client_that_resumes_sees_cells_of_its_area_that_were_made_while_it_was_away_or_later() {
    let mut config = config(6, 3);
    config.spatial.follow_radius = 18.0;
    let mut world = world(config);
    let a = spatial_server(&mut world, "a");
    let (client, token, _) = log_in(&mut world, b"");
    let conn = world.conn(client);
    create_avatar(&mut world, a, CELL + 1, E + 1, 15.0, conn);
    world.close(client);
    let b = spatial_server(&mut world, "b");
    let (client, token, got) = log_in(&mut world, &token);
    assert!(got.contains(&(6, CELL + 2)) && got.contains(&(6, CELL + 3)), "{got:?}");
    world.close(client);
    let (client, ..) = log_in(&mut world, &token);
    world.take(client);
    let body = RemoveChannelMessage { channel_id: CELL + 2 };
    world.send(b, [Send::new(MessageType::RemoveChannel, &body)]);
    world.close(b);
    world.take(client);
    spatial_server(&mut world, "c");
    assert!(subscriptions(&world.take(client)).contains(&(6, CELL + 2)));
}
