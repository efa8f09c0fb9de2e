//! Spec §17 and parts of §3 and §8: sub-objects, dependents, creation parents; peers with other
//! classes; atomic classes.

use crate::harness;
use harness::*;
use throng_replication::{
    Axis, Class, Classes, Client, ClientConfig, ClientEvent, DestroyReason, Event, Handle, Hint, ObjectError,
    Property, Quantiser, Server, ServerConfig, View,
};
use throng_stdx::Instant;

fn at(net: &mut Net, x: f32) -> Handle {
    let handle = net.server.create(THING).unwrap();
    net.server.set(handle, POSITION, [x, 0.0, 0.0]).unwrap();
    handle
}

fn sees(net: &mut Net, handle: Handle) -> bool {
    net.steps(8);
    net.peers[0].client.replica(handle.index()).is_some()
}

#[test]
fn sub_objects_live_and_die_with_their_root() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let root = at(&mut net, 10.0);
    let part = net.server.create_part(root, THING).unwrap();
    net.server.set(part, HEALTH, 5_u32).unwrap();
    assert!(sees(&mut net, root) && sees(&mut net, part));
    let created = net.peers[0].events.iter().filter_map(|event| match event {
        ClientEvent::Created(handle) => Some(handle.index()),
        _ => None,
    });
    let order: Vec<u32> = created.collect();
    assert_eq!(order, [root.index(), part.index()]);
    assert_eq!(net.peers[0].client.replica(part.index()).unwrap().parent(), Some(root));
    net.server.set(part, HEALTH, 6_u32).unwrap();
    net.steps(2);
    assert_eq!(net.value(0, part, HEALTH), 6);
    // Out of scope and back with the root, though nothing says where the part is.
    net.server.set(root, POSITION, [1000.0_f32, 0.0, 0.0]).unwrap();
    assert!(!sees(&mut net, part));
    net.server.set(root, POSITION, [10.0_f32, 0.0, 0.0]).unwrap();
    assert!(sees(&mut net, part));
    let id = net.peers[0].id;
    net.server.set_owner(root, Some(id)).unwrap();
    assert!(net.server.create_part(part, THING) == Err(ObjectError::Relation));
    net.server.destroy(root, DestroyReason::Destroyed, false).unwrap();
    assert!(!net.server.exists(part));
    assert!(!sees(&mut net, part) && !sees(&mut net, root));
}

#[test]
fn a_root_has_at_most_255_parts() {
    let mut net = Net::new(1);
    let root = at(&mut net, 0.0);
    for _ in 0..255 {
        net.server.create_part(root, THING).unwrap();
    }
    assert_eq!(net.server.create_part(root, THING), Err(ObjectError::Relation));
}

#[test]
fn sub_objects_survive_loss() {
    let mut net = Net::new(2);
    net.link = Link { loss: 0.3, ..Link::default() };
    let mut all = Vec::new();
    for frame in 0..30_u32 {
        let root = at(&mut net, frame as f32);
        all.push(root);
        all.push(net.server.create_part(root, PAWN).unwrap());
        for (place, handle) in all.iter().enumerate() {
            net.server.set(*handle, HEALTH, frame + place as u32).unwrap();
        }
        net.step();
        for peer in &net.peers {
            for (_, replica) in peer.client.replicas() {
                if let Some(root) = replica.parent() {
                    assert!(peer.client.get(root).is_some(), "a part without its root");
                }
            }
        }
    }
    net.settle(30);
    net.check(&all);
}

#[test]
fn dependents_and_parents_come_along() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let (rider, mount, saddle) = (at(&mut net, 10.0), at(&mut net, 2000.0), at(&mut net, 3000.0));
    assert!(!sees(&mut net, mount));
    net.server.add_dependent(rider, mount, Hint::Before).unwrap();
    net.server.set_parent(mount, Some(saddle)).unwrap();
    assert!(sees(&mut net, mount) && sees(&mut net, saddle));
    // A circle, directly or by a detour.
    assert_eq!(net.server.add_dependent(mount, rider, Hint::After), Err(ObjectError::Relation));
    assert_eq!(net.server.set_parent(saddle, Some(rider)), Err(ObjectError::Relation));
    net.server.remove_dependent(rider, mount).unwrap();
    assert!(!sees(&mut net, mount) && !sees(&mut net, saddle));
}

#[test]
fn relations_are_at_most_eight_deep() {
    let mut net = Net::new(1);
    let chain: Vec<Handle> = (0..12).map(|_| at(&mut net, 5000.0)).collect();
    let mut accepted = 0;
    for pair in chain.windows(2).rev() {
        accepted += usize::from(net.server.add_dependent(pair[0], pair[1], Hint::After).is_ok());
        if accepted == 8 {
            break;
        }
    }
    assert_eq!(net.server.add_dependent(chain[2], chain[3], Hint::After), Err(ObjectError::Relation));
}

fn two_worlds(required: bool) -> (Classes, Classes) {
    let class = |bits: u8| {
        let xy = Axis::new(-100.0, 0.1, 12);
        let builder = Class::builder("changed").required(required);
        let builder = builder.property(Property::new("place", Quantiser::Vec3([xy; 3])).world_position());
        builder.property(Property::new("value", Quantiser::UInt(bits))).build().unwrap()
    };
    let (mut ours, mut theirs) = (classes(), classes());
    ours.register(class(8)).unwrap();
    theirs.register(class(9)).unwrap();
    (ours, theirs)
}

#[test]
fn objects_of_classes_that_differ_stay_away() {
    let (ours, theirs) = two_worlds(false);
    let mut server = Server::new(ServerConfig::default(), &ours);
    let mut client = Client::new(ClientConfig::default(), &theirs);
    let id = server.connect().unwrap();
    server.set_views(id, &[View::default()]);
    let before = server.create(throng_replication::ClassId(3)).unwrap();
    let refused = server.check_protocol(id, &theirs.protocol()).unwrap();
    assert_eq!(refused, [throng_replication::ClassId(3)]);
    assert_eq!(server.stats().protocol_mismatches, 1);
    let after = server.create(throng_replication::ClassId(3)).unwrap();
    let known = server.create(THING).unwrap();
    for frame in 1..5 {
        server.tick(Instant::from_millis(33 * frame), |packets| {
            for packet in packets.iter() {
                client.receive(packet).unwrap();
            }
        });
    }
    assert!(!server.in_scope(id, before) && !server.in_scope(id, after) && server.in_scope(id, known));
    assert_eq!(client.len(), 1);
}

#[test]
fn a_required_class_that_differs_ends_the_connection() {
    let (ours, theirs) = two_worlds(true);
    let mut server = Server::new(ServerConfig::default(), &ours);
    let id = server.connect().unwrap();
    assert_eq!(server.check_protocol(id, &ours.protocol()), Ok(Vec::new()));
    let error = server.check_protocol(id, &theirs.protocol()).unwrap_err();
    assert_eq!(error, throng_replication::ProtocolMismatch::Class { class: "changed".into() });
}

#[test]
fn an_atomic_class_resends_everything_of_the_frame() {
    for atomic in [false, true] {
        let mut classes = Classes::new();
        let class = Class::builder("door").atomic(atomic);
        let class = class.property(Property::new("open", Quantiser::UInt(8)));
        let id = classes
            .register(class.property(Property::new("lock", Quantiser::UInt(8))).build().unwrap())
            .unwrap();
        let mut server = Server::new(ServerConfig::default(), &classes);
        let mut client = Client::new(ClientConfig::default(), &classes);
        let conn = server.connect().unwrap();
        let door = server.create(id).unwrap();
        server.set_filter(door, throng_replication::Filter::Always).unwrap();
        let mut masks = Vec::new();
        for frame in 1..20_u32 {
            match frame {
                10 => {
                    server.set(door, 0, 1_u32).unwrap();
                    server.set(door, 1, 1_u32).unwrap();
                }
                11 => server.set(door, 0, 2_u32).unwrap(),
                _ => {}
            }
            server.tick(Instant::from_millis(33 * u64::from(frame)), |packets| {
                for packet in packets.iter().filter(|_| frame != 10) {
                    client.receive(packet).unwrap();
                }
            });
            while let Some(event) = client.poll_event() {
                if let ClientEvent::Updated { mask, .. } = event {
                    masks.push(mask);
                }
            }
            if let Some(packet) = client.poll_packet(Instant::from_millis(33 * u64::from(frame))) {
                server.receive(conn, packet).unwrap();
            }
        }
        // The packet of frame 11 carried the first property; an atomic class repeats it beside the
        // second.
        assert_eq!(masks, [1, if atomic { 3 } else { 2 }]);
    }
}

/// An object that follows one and is attached to another counted as a part.
#[test]
fn an_attached_dependent_may_have_parts() {
    let mut net = Net::new(1);
    let [rider, mount, saddle] = [1.0, 2.0, 3.0].map(|x| at(&mut net, x));
    net.server.add_dependent(rider, mount, Hint::After).unwrap();
    net.server.set_parent(mount, Some(saddle)).unwrap();
    let part = net.server.create_part(mount, THING).unwrap();
    assert!(sees(&mut net, part));
}

/// The parent stayed as it was at the creation, and named the next object with its index.
#[test]
fn a_parent_changes_and_ends_on_receivers() {
    let limits = ServerConfig { objects_max: 3, ..ServerConfig::default() };
    let mut net = Net::with(limits, 1);
    let [child, first, second] = [0.0, 1.0, 2.0].map(|x| at(&mut net, x));
    let agree = |net: &mut Net, wanted: Option<Handle>| {
        net.settle(6);
        for peer in &mut net.peers {
            assert_eq!(peer.client.get(child).unwrap().parent(), wanted);
            let changed = |event: &ClientEvent| matches!(event, ClientEvent::ParentChanged { handle, .. } if *handle == child);
            peer.events.retain(changed);
        }
    };
    net.server.set_parent(child, Some(first)).unwrap();
    agree(&mut net, Some(first));
    assert!(net.peers[0].events.is_empty(), "the creation said so");
    // Changed while nothing arrives, and seen by a client that joins.
    net.up_lost = true;
    net.fate = Some(Box::new(|_, _| false));
    net.server.set_parent(child, Some(second)).unwrap();
    net.steps(40);
    net.join();
    agree(&mut net, Some(second));
    let told = [ClientEvent::ParentChanged { handle: child, parent: Some(second) }];
    assert_eq!((&net.peers[0].events[..], &net.peers[1].events[..]), (&told[..], &[][..]));
    net.server.set_parent(child, None).unwrap();
    agree(&mut net, None);
    net.server.set_parent(child, Some(second)).unwrap();
    agree(&mut net, Some(second));
    // Another object gets the index of the parent that ends.
    net.server.destroy(second, DestroyReason::Destroyed, false).unwrap();
    agree(&mut net, None);
    assert_eq!(at(&mut net, 3.0).index(), second.index());
    agree(&mut net, None);
    // A change of the owner leaves the parent alone.
    net.server.set_parent(child, Some(first)).unwrap();
    agree(&mut net, Some(first));
    net.peers[0].events.clear();
    net.server.set_owner(child, Some(net.peers[0].id)).unwrap();
    agree(&mut net, Some(first));
    assert!(net.peers[0].events.is_empty() && net.peers[0].client.get(child).unwrap().is_owner());
}

/// They ended as objects that are out of scope, and those of retained classes did not end.
#[test]
fn objects_of_a_class_that_is_refused_end_with_that_reason() {
    let mut classes = classes();
    let kept = Class::builder("kept").property(Property::new("value", Quantiser::UInt(8))).retain(true);
    let kept = classes.register(kept.build().unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let id = net.peers[0].id;
    let things = [THING, kept].map(|class| net.server.create(class).unwrap());
    let right = net.classes.protocol();
    let mut wrong = right.clone();
    things.iter().for_each(|thing| net.server.set_owner(*thing, Some(id)).unwrap());
    for hash in [THING, kept].map(|class| usize::from(class.0)) {
        wrong.classes[hash] ^= 1;
    }
    let calls = |net: &mut Net, round: u64| {
        net.steps(6);
        for thing in things {
            net.server.attach(id, thing, round, b"down", true).unwrap();
            net.peers[0].client.attach(thing, round, b"up", true).unwrap();
        }
        net.steps(6);
        let down = net.peers[0].events.drain(..).filter(|event| matches!(event, ClientEvent::Attachment(_)));
        let up = std::iter::from_fn(|| net.server.poll_event());
        (down.count(), up.filter(|event| matches!(event, Event::Attachment(..))).count())
    };
    assert_eq!(calls(&mut net, 1), (2, 2));
    assert_eq!(net.server.check_protocol(id, &wrong), Ok(vec![THING, kept]));
    net.steps(8);
    let reasons = net.peers[0].events.drain(..).filter_map(|event| match event {
        ClientEvent::Destroyed { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), [DestroyReason::ProtocolMismatch; 2]);
    // Calls go on where they were when the classes agree again.
    assert_eq!(net.server.check_protocol(id, &right), Ok(Vec::new()));
    assert_eq!(calls(&mut net, 2), (2, 2));
}

/// The acknowledgement of the creation was lost, and so was the change.
#[test]
fn a_creation_that_is_sent_again_reports_another_owner_and_parent() {
    let mut net = Net::new(1);
    let [child, above] = [0.0, 1.0].map(|x| at(&mut net, x));
    net.up_lost = true;
    net.step();
    assert!(net.peers[0].client.get(child).is_some());
    net.fate = Some(Box::new(|_, _| false));
    net.server.set_parent(child, Some(above)).unwrap();
    net.server.set_owner(child, Some(net.peers[0].id)).unwrap();
    net.steps(60);
    net.peers[0].events.clear();
    net.settle(6);
    let told = net.peers[0].events.iter().filter(|event| !matches!(event, ClientEvent::Created(_)));
    let owner = ClientEvent::OwnerChanged { handle: child, owner: true };
    let parent = ClientEvent::ParentChanged { handle: child, parent: Some(above) };
    assert!(told.eq([&owner, &parent]), "{:?}", net.peers[0].events);
}
