//! SPAWN and DESTROY of Unreal, from servers and from cheats.

use std::panic::{AssertUnwindSafe, catch_unwind};

use throng_gateway::{Permissions, Refusal, failpoint};
use throng_wire::unrealpb::{DestroyObjectMessage, SpawnObjectMessage};

use super::*;

/// As an engine says it in a channel.
fn spawn(id: u32, channel: u32, x: f32) -> Send {
    spawn_naming(Some(channel), id, x).to(channel)
}

/// The channel that the message names may be another than the one that it is sent to.
fn spawn_naming(channel_id: Option<u32>, id: u32, x: f32) -> Send {
    let message = SpawnObjectMessage {
        obj: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
        channel_id,
        location: Some(FVector { x: Some(x), y: Some(5.0), z: Some(0.0) }),
        ..Default::default()
    };
    let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
    Send::user(103, &forward.encode_to_vec()).broadcast(2)
}

fn destroy(id: u32, channel: u32) -> Send {
    let message = DestroyObjectMessage { net_id: id, reason: 0 };
    let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
    Send::user(104, &forward.encode_to_vec()).broadcast(2).to(channel)
}

/// An empty list.
const NONE: Vec<u32> = Vec::new();

/// What the two cells of [`border`] list beside its entity.
fn lists(world: &World) -> [Vec<u32>; 2] {
    [CELL, CELL + 1].map(|cell| listed(world, cell).into_iter().filter(|id| *id != E + 1).collect())
}

#[test]
fn spawned_objects_are_noted_where_they_lie_and_destroyed_ones_forgotten() {
    let mut world = world(config(2, 1));
    let a = spatial_server(&mut world, "a");
    create_entity(&mut world, a, CELL, E + 1, 5.0);
    world.take(a);
    world.send(a, [spawn(E + 7, CELL, 15.0)]);
    let got = world.take(a).pop().expect("the other cell's channel passes it on");
    let payload = got.decode::<ServerForwardMessage>().payload;
    let passed_on = SpawnObjectMessage::decode(&payload[..]).expect("valid");
    assert_eq!((got.channel, passed_on.channel_id), (CELL, Some(CELL + 1)));
    world.send(a, [(E + 8, 5.0), (E + 9, -5.0), (0, 5.0)].map(|(id, x)| spawn_naming(None, id, x).to(CELL)));
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1, E + 8], vec![E + 7]));
    assert_eq!((world.refused(Refusal::OutsideWorld), world.refused(Refusal::BadBody)), (1, 1));

    world.send(a, [E + 8, E + 1, CELL].map(|id| destroy(id, CELL)));
    assert_eq!(listed(&world, CELL), Vec::<u32>::new());
    assert!(world.shards[0].channels().all(|view| view.id.0 != E + 1), "the entity is gone");
    assert!(world.shards[0].channels().any(|view| view.id.0 == CELL), "a cell is no object");
}

// A-19, spec §9.2: what a client says about objects never counts as a server's word. In the safe
// profile it does not even reach one.
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
    world.send(a, [spawn(E + 1, CELL, 15.0)]);
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1], vec![]));
    move_to(&mut world, a, E + 1, 15.0);
    world.send(a, [spawn(E + 1, CELL, 5.0)]);
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

// Whatever order an engine says things in: what is one thing is in one cell.
#[test]
fn an_object_is_listed_in_one_cell_when_it_is_spawned_elsewhere_or_becomes_an_entity_there() {
    let (mut world, a, b) = border(config(2, 2));
    // Spawned, and spawned again in another cell.
    world.send(a, [spawn(E + 7, CELL, 5.0)]);
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
    let watcher = world.join(ConnKind::Client, "c");
    let conn = world.conn(watcher);
    interest(&mut world, a, conn, 5.0, 4.0);
    world.take(watcher);
    world.send(b, [spawn(E + 7, CELL + 1, 15.0)]);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
    let got = world.take(watcher);
    let told: ChannelDataHandoverMessage = got[0].decode();
    assert_eq!((got.len(), got[0].channel), (1, CELL + 1), "{got:?}");
    assert_eq!((told.src_channel_id, told.dst_channel_id), (CELL, CELL + 1));
    let data = SpatialChannelData::decode(&told.data.expect("entities").value[..]).expect("valid");
    assert_eq!(data.entities.into_keys().collect::<Vec<_>>(), [E + 7]);
    // An entity of another cell from here on, and handed over to and fro.
    create_entity(&mut world, a, CELL, E + 7, 5.0);
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
    move_to(&mut world, a, E + 7, 15.0);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
    move_to(&mut world, b, E + 7, 5.0);
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
    // Destroyed, spawned, and an entity again.
    world.send(a, [destroy(E + 7, CELL), spawn(E + 7, CELL, 15.0)]);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
    create_entity(&mut world, a, CELL, E + 7, 5.0);
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
    // The end of the entity, which a server says in another cell, is the end of the object.
    world.send(b, [destroy(E + 7, CELL + 1)]);
    assert_eq!(lists(&world), [NONE, NONE]);
}

#[test]
fn an_entity_without_a_cell_takes_its_object_along_when_it_gets_one() {
    let (mut world, a, _) = border(config(2, 2));
    let master = world.join(ConnKind::Server, "master");
    world.send(a, [spawn(E + 7, CELL, 5.0)]);
    let body = CreateEntityChannelMessage { entity_id: E + 7, ..Default::default() };
    world.send(master, [Send::new(MessageType::CreateEntityChannel, &body)]);
    assert_eq!((entity(&world, E + 7).0, lists(&world)), (None, [vec![E + 7], NONE]));
    let body = ChannelDataUpdateMessage { data: Some(data(15.0, Some(E + 7), 0)), ..Default::default() };
    world.send(master, [Send::new(MessageType::ChannelDataUpdate, &body).to(E + 7)]);
    assert_eq!((entity(&world, E + 7).0, lists(&world)), (Some(CELL + 1), [NONE, vec![E + 7]]));
    // One that ends without ever having been in a cell.
    world.send(a, [spawn(E + 8, CELL, 5.0)]);
    let body = CreateEntityChannelMessage { entity_id: E + 8, ..Default::default() };
    world.send(master, [Send::new(MessageType::CreateEntityChannel, &body)]);
    let body = RemoveChannelMessage { channel_id: E + 8 };
    world.send(master, [Send::new(MessageType::RemoveChannel, &body)]);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
}

// The master of an engine does not wait for the servers of cells.
#[test]
fn an_entity_from_global_gets_its_cell_when_that_is_made() {
    let mut world = world(config(2, 2));
    let master = world.join(ConnKind::Server, "master");
    create_entity(&mut world, master, 0, E + 1, 5.0);
    assert_eq!(entity(&world, E + 1), (None, Some(world.conn(master))));
    let a = spatial_server(&mut world, "a");
    assert_eq!(
        (entity(&world, E + 1), listed(&world, CELL)),
        ((Some(CELL), Some(world.conn(a))), vec![E + 1])
    );
}

#[test]
fn an_object_destroyed_anywhere_is_in_no_cell_and_those_who_watch_the_cell_are_told() {
    let (mut world, a, _) = border(config(2, 2));
    let client = world.join(ConnKind::Client, "c");
    let conn = world.conn(client);
    interest(&mut world, a, conn, 5.0, 4.0);
    world.send(a, [spawn(E + 7, CELL, 5.0)]);
    world.run_ms(100);
    world.take(client);
    world.send(a, [destroy(E + 7, 0)]);
    assert_eq!(lists(&world), [NONE, NONE]);
    world.run_ms(100);
    let updates = world.take(client).into_iter().filter(|got| got.msg_type == 8 && got.channel == CELL);
    let removed = updates
        .filter_map(|got| got.decode::<ChannelDataUpdateMessage>().data)
        .flat_map(|data| SpatialChannelData::decode(&data.value[..]).expect("valid").entities)
        .filter(|(id, state)| *id == E + 7 && state.removed);
    assert_eq!(removed.count(), 1);
}

#[test]
fn objects_end_with_their_cell_and_entities_are_listed_again_when_it_returns() {
    let (mut world, a, b) = border(recovering());
    world.send(a, [spawn(E + 7, CELL, 5.0), spawn(E + 8, CELL, 6.0)]);
    let body = RemoveChannelMessage { channel_id: CELL };
    world.send(a, [Send::new(MessageType::RemoveChannel, &body)]);
    assert!(world.shards[0].channels().all(|view| view.id.0 != CELL), "the cell is gone");
    // Elsewhere it is a new object.
    world.send(b, [spawn(E + 7, CELL + 1, 15.0)]);
    assert_eq!(listed(&world, CELL + 1), [E + 7]);
    world.close(a);
    let c = world.join(ConnKind::Server, "c");
    ask_for_slot(&mut world, c);
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1], vec![E + 7]));
    create_entity(&mut world, c, CELL, E + 8, 5.0);
    assert_eq!(listed(&world, CELL), [E + 1, E + 8]);
}

#[test]
fn objects_survive_a_crash_of_their_server_in_their_one_cell() {
    let (mut world, a, b) = border(recovering());
    world.send(a, [spawn(E + 7, CELL, 5.0)]);
    world.close(a);
    world.send(b, [spawn(E + 7, CELL + 1, 15.0)]);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
    world.send(b, [spawn(E + 7, CELL + 1, 5.0)]);
    returns(&mut world, "a");
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
    create_entity(&mut world, b, CELL + 1, E + 7, 15.0);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
    move_to(&mut world, b, E + 7, 5.0);
    assert_eq!((lists(&world), entity(&world, E + 7).1), ([vec![E + 7], NONE], Some(world.conn(a))));
}

// Spec §9.3. Engines leave the list to the gateway; one that does not must not break it.
#[test]
fn a_servers_update_of_a_cells_list_keeps_everything_in_one_cell() {
    let (mut world, a, b) = border(config(2, 2));
    let update = |entries: &[(u32, bool)], cell: u32| {
        let state = |id: u32, removed| throng_wire::unrealpb::SpatialEntityState {
            obj_ref: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
            removed,
            entity_data: None,
        };
        let entities = entries.iter().map(|&(id, removed)| (id, state(id, removed))).collect();
        let value = SpatialChannelData { entities }.encode_to_vec();
        let type_url = "type.googleapis.com/unrealpb.SpatialChannelData".to_owned();
        let data = Some(prost_types::Any { type_url, value });
        let body = ChannelDataUpdateMessage { data, ..Default::default() };
        Send::new(MessageType::ChannelDataUpdate, &body).to(cell)
    };
    // Another's entity is refused, what is new is taken.
    world.send(b, [update(&[(E + 1, false), (E + 7, false)], CELL + 1)]);
    assert_eq!((listed(&world, CELL), listed(&world, CELL + 1)), (vec![E + 1], vec![E + 7]));
    assert_eq!(world.refused(Refusal::EntityId), 1);
    create_entity(&mut world, a, CELL, E + 7, 5.0);
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
    // What is said to be gone is gone, entity and all.
    world.send(a, [update(&[(E + 7, true)], CELL)]);
    assert_eq!(lists(&world), [NONE, NONE]);
    assert!(world.shards[0].channels().all(|view| view.id.0 != E + 7), "the entity is gone");
    // Not by a server that sees it somewhere else.
    world.send(b, [update(&[(E + 1, true)], CELL + 1)]);
    assert_eq!(entity(&world, E + 1), (Some(CELL), Some(world.conn(a))));
}

// The message names the cell in which the object lies; who is told of it is another question.
#[test]
fn an_object_is_listed_in_its_cell_also_when_it_is_spawned_through_another_channel() {
    let (mut world, a, _) = border(config(2, 2));
    world.send(a, [spawn_naming(Some(CELL + 1), E + 7, 15.0).to(CELL)]);
    assert_eq!(lists(&world), [NONE, vec![E + 7]]);
    world.send(a, [spawn_naming(Some(CELL), E + 7, 5.0).to(0)]);
    assert_eq!(lists(&world), [vec![E + 7], NONE]);
}

#[test]
fn an_object_whose_end_a_panic_interrupts_is_gone_for_its_cell_and_those_who_watch_it() {
    for told in [CELL, CELL + 1, 0] {
        for place in 1.. {
            let (mut world, a, _) = border(config(2, 2));
            let client = world.join(ConnKind::Client, "c");
            let conn = world.conn(client);
            interest(&mut world, a, conn, 5.0, 4.0);
            world.send(a, [spawn(E + 8, CELL, 5.0)]);
            world.run_ms(100);
            world.take(client);
            assert!(listed(&world, CELL).contains(&(E + 8)));
            assert!(failpoint::arm(place), "built with debug assertions");
            let struck = catch_unwind(AssertUnwindSafe(|| world.send(a, [destroy(E + 8, told)]))).is_err();
            failpoint::disarm();
            if !struck {
                assert!(place > 2, "no panic struck between the message and the list");
                break;
            }
            assert_eq!(world.shards[0].heal(), [], "place {place} in {told:#x}");
            world.run_ms(200);
            let is_told =
                world.take(client).iter().any(|it| matches!(it.msg_type, 8 | 104) && it.channel == CELL);
            let is_listed = listed(&world, CELL).contains(&(E + 8));
            assert_eq!((is_listed, is_told), (false, true), "place {place} in {told:#x}");
        }
    }
}

#[test]
fn a_panic_while_an_object_is_listed_leaves_no_subscriber_of_its_cell_without_it() {
    let mut listed_then = 0;
    for place in 1..100 {
        let (mut world, a, b) = border(config(2, 2));
        world.take(b);
        assert!(failpoint::arm(place), "built with debug assertions");
        // It names another cell than the one it lies in, so the gateway passes it on to that.
        let spawn = spawn_naming(None, E + 7, 15.0).to(CELL);
        let struck = catch_unwind(AssertUnwindSafe(|| world.send(a, [spawn]))).is_err();
        failpoint::disarm();
        if !struck {
            assert!(listed_then > 0, "no panic struck between the list and the message");
            return;
        }
        if !world.shards[0].heal().is_empty() {
            continue;
        }
        world.run_ms(200);
        let told = world.take(b).iter().any(|it| matches!(it.msg_type, 8 | 103) && it.channel == CELL + 1);
        let is_listed = listed(&world, CELL + 1) == [E + 7];
        assert!(told || !is_listed, "place {place}");
        listed_then += u32::from(is_listed);
    }
    unreachable!("an object's begin passes fewer places");
}
