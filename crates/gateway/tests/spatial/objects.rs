//! SPAWN and DESTROY of Unreal, from servers and from cheats.

use throng_gateway::{Permissions, Refusal};
use throng_wire::unrealpb::{DestroyObjectMessage, SpawnObjectMessage};

use super::*;

#[test]
fn spawned_objects_are_noted_where_they_lie_and_destroyed_ones_forgotten() {
    let mut world = world(config(2, 1));
    let a = spatial_server(&mut world, "a");
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    let spawn = |id: u32, channel: Option<u32>, x: f32| {
        let message = SpawnObjectMessage {
            obj: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
            channel_id: channel,
            location: Some(FVector { x: Some(x), y: Some(5.0), z: Some(0.0) }),
            ..Default::default()
        };
        let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
        Send::user(103, &forward.encode_to_vec()).broadcast(2)
    };
    world.take(a);
    world.send(a, [spawn(E + 7, Some(CELL), 15.0).to(CELL)]);
    let got = world.take(a).pop().expect("the other cell's channel passes it on");
    let payload = got.decode::<ServerForwardMessage>().payload;
    let passed_on = SpawnObjectMessage::decode(&payload[..]).expect("valid");
    assert_eq!((got.channel, passed_on.channel_id), (CELL, Some(CELL + 1)));
    world.send(
        a,
        [spawn(E + 8, None, 5.0).to(CELL), spawn(E + 9, None, -5.0).to(CELL), spawn(0, None, 5.0).to(CELL)],
    );
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1, E + 8], vec![E + 7]));
    assert_eq!((world.refused(Refusal::OutsideWorld), world.refused(Refusal::BadBody)), (1, 1));

    let destroy = |id: u32| {
        let message = DestroyObjectMessage { net_id: id, reason: 0 };
        let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
        Send::user(104, &forward.encode_to_vec()).broadcast(2)
    };
    world.send(a, [destroy(E + 8).to(CELL), destroy(E + 1).to(CELL), destroy(CELL).to(CELL)]);
    assert_eq!(listed(&world, CELL), Vec::<u32>::new());
    assert!(world.shards[0].channels().all(|view| view.id.0 != E + 1), "the entity is gone");
    assert!(world.shards[0].channels().any(|view| view.id.0 == CELL), "a cell is no object");
}

// A-19, spec §9.2: what a client says about objects never counts as a server's word. In the safe profile it does not even
// reach one.
#[test]
fn a19_spawn_and_destroy_from_clients_are_refused_unless_the_profile_is_permissive() {
    for permissive in [false, true] {
        let mut config = config(2, 1);
        if permissive {
            config.permissions = Permissions::permissive();
        }
        let mut world = world(config);
        let a = spatial_server(&mut world, "a");
        create_entity(&mut world, a, CELL, E + 1, 5.0);
        let client = world.join(ConnKind::Client, "cheat");
        for channel in [CELL, E + 1] {
            world.send(
                client,
                [Send::new(MessageType::SubToChannel, &SubscribedToChannelMessage::default()).to(channel)],
            );
        }
        world.take(a);
        let spawn = SpawnObjectMessage {
            obj: Some(UnrealObjectRef { net_guid: Some(E + 7), ..Default::default() }),
            location: Some(FVector { x: Some(5.0), y: Some(5.0), z: Some(0.0) }),
            ..Default::default()
        };
        let destroy = DestroyObjectMessage { net_id: E + 1, reason: 0 };
        // As a client sends, and wrapped as a server does.
        let wrapped = |payload: Vec<u8>| ServerForwardMessage { client_conn_id: 0, payload }.encode_to_vec();
        let mut spoofed = Vec::new();
        for (msg_type, body) in [(103, spawn.encode_to_vec()), (104, destroy.encode_to_vec())] {
            for body in [body.clone(), wrapped(body)] {
                for (channel, broadcast) in [(CELL, 0), (CELL, 2), (E + 1, 0), (E + 1, 2)] {
                    spoofed.push(Send::user(msg_type, &body).broadcast(broadcast).to(channel));
                }
            }
        }
        let count = spoofed.len();
        world.send(client, spoofed);
        let reached = world.take(a);
        if permissive {
            assert_eq!(reached.len(), count, "the owner gets what a client says, as a client's");
            let from = world.conn(client);
            assert!(reached.iter().all(|got| got.decode::<ServerForwardMessage>().client_conn_id == from));
        } else {
            assert_eq!((reached, world.refused(Refusal::Permission)), (vec![], count as u64));
        }
        assert_eq!(listed(&world, CELL), [E + 1], "nothing was noted or forgotten");
        assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
    }
}

// An engine says where it spawned an object, which may be where it no longer is.
#[test]
fn an_entity_is_listed_in_its_own_cell_only_wherever_it_was_spawned() {
    let (mut world, a, _) = border(config(2, 2));
    let spawn = |channel: u32, x: f32| {
        let message = SpawnObjectMessage {
            obj: Some(UnrealObjectRef { net_guid: Some(E + 1), ..Default::default() }),
            channel_id: Some(channel),
            location: Some(FVector { x: Some(x), y: Some(5.0), z: Some(0.0) }),
            ..Default::default()
        };
        let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
        Send::user(103, &forward.encode_to_vec()).broadcast(2).to(channel)
    };
    world.send(a, [spawn(CELL, 15.0)]);
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1], vec![]));
    move_to(&mut world, a, E + 1, 15.0);
    world.send(a, [spawn(CELL, 5.0)]);
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![], vec![E + 1]));
}

// Spec §8.8 and §8.9.
#[test]
fn an_entity_from_global_belongs_to_whose_cell_it_stands_in_and_a_well_known_one_to_every_client() {
    let (mut world, a, b) = border(config(2, 2));
    let master = world.join(ConnKind::Server, "master");
    let early = world.join(ConnKind::Client, "early");
    let conns = [a, b, master, early].map(|id| world.conn(id));
    for id in [a, b, master, early] {
        world.take(id);
    }
    let body = CreateEntityChannelMessage {
        entity_id: E + 7,
        data: Some(data(15.0, Some(E + 7), 0)),
        is_well_known: true,
        ..Default::default()
    };
    world.send(master, [Send::new(MessageType::CreateEntityChannel, &body).stub(5)]);
    assert_eq!(entity(&world, E + 7), (Some(CELL + 1), Some(conns[1])));
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1], vec![E + 7]));
    let told = world.take(b);
    let result = told.iter().find(|got| got.msg_type == 15).expect("the owner is told");
    assert_eq!((result.channel, result.stub), (CELL + 1, 5));
    assert!(subscriptions(&told).contains(&(6, E + 7)));
    assert_eq!(subscriptions(&world.take(early)), [(6, E + 7)]);
    for server in [a, master] {
        assert!(!subscriptions(&world.take(server)).contains(&(6, E + 7)), "servers are not subscribed");
    }
    let late = world.try_connect(ConnKind::Client, "10.0.0.7").expect("accepted");
    assert_eq!(subscriptions(&world.take(late)), [], "not before it has logged in");
    world.auth(late, "late");
    let got = world.take(late);
    let kinds: Vec<(u32, u32)> = got.iter().map(|got| (got.msg_type, got.channel)).collect();
    assert_eq!(kinds, [(1, 0), (6, E + 7)], "after the answer to its login");
    let options = got[1].decode::<SubscribedToChannelResultMessage>().sub_options.expect("options");
    assert_eq!(options.fan_out_delay_ms, Some(1000));
    // Its end is announced.
    let body = RemoveChannelMessage { channel_id: E + 7 };
    world.send(b, [Send::new(MessageType::RemoveChannel, &body)]);
    for client in [early, late] {
        let got = world.take(client);
        let removed = got.iter().find(|got| got.msg_type == 4).expect("a notice");
        assert_eq!(removed.decode::<RemoveChannelMessage>().channel_id, E + 7);
    }
}
