//! Features that are right alone, together: each test is named after what went wrong without it.

use std::time::Duration;

use crate::harness;
use harness::*;
use throng_replication::wire::{DecodeError, Header, PROTOCOL_VERSION, kind};
use throng_replication::{
    AttachError, Axis, Band, Class, Classes, ClientEvent, Condition, ConnId, DestroyReason, Event, Filter,
    Handle, Hint, InputError, LodProfile, ObjectError, Property, Protocol, ProtocolMismatch, Quantiser,
    ServerConfig, ServerStats, Value, View,
};

/// A net whose class 3 is callable, 4 has a reference, 5 a hidden one.
fn net(config: ServerConfig, peers: usize) -> Net {
    let mut classes = classes();
    let score = || Property::new("score", Quantiser::UInt(32));
    let target = |hide| Property::new("target", Quantiser::Handle { hide });
    for class in [
        Class::builder("lever").property(score()).callable(true),
        Class::builder("pointer").property(score()).property(target(false)),
        Class::builder("secretive").property(score()).property(target(true)),
    ] {
        classes.register(class.build().unwrap()).unwrap();
    }
    Net::of(classes, config, peers)
}

const LEVER: throng_replication::ClassId = throng_replication::ClassId(3);
const POINTER: throng_replication::ClassId = throng_replication::ClassId(4);
const SECRETIVE: throng_replication::ClassId = throng_replication::ClassId(5);

fn seen_by_all(net: &mut Net, class: throng_replication::ClassId) -> Handle {
    let handle = net.server.create(class).unwrap();
    net.server.set_filter(handle, Filter::Always).unwrap();
    handle
}

fn calls_of(net: &mut Net, peer: usize) -> Vec<u64> {
    let calls = net.peers[peer].events.iter().filter_map(|event| match event {
        ClientEvent::Attachment(call) => Some(call.method),
        _ => None,
    });
    calls.collect()
}

fn calls_to_server(net: &mut Net) -> Vec<u64> {
    let events = std::iter::from_fn(|| net.server.poll_event());
    events
        .filter_map(|event| match event {
            Event::Attachment(_, call) => Some(call.method),
            _ => None,
        })
        .collect()
}

#[test]
fn reliable_calls_survive_a_visit_out_of_scope() {
    let mut net = net(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let lever = seen_by_all(&mut net, LEVER);
    net.steps(6);
    let me = net.peers[0].id;
    for round in 0..4_u64 {
        for call in 0..3 {
            net.server.attach(me, lever, 3 * round + call, b"", true).unwrap();
            net.peers[0].client.attach(lever, 3 * round + call, b"", true).unwrap();
        }
        net.steps(if round % 2 == 0 { 0 } else { 6 });
        net.server.set_filter(lever, Filter::Never).unwrap();
        net.steps(6);
        assert!(net.peers[0].client.get(lever).is_none());
        net.server.set_filter(lever, Filter::Always).unwrap();
        net.steps(8);
    }
    assert!(calls_of(&mut net, 0).into_iter().eq(0..12), "{:?}", calls_of(&mut net, 0));
    let called = calls_to_server(&mut net);
    assert!(called.iter().copied().eq(0..12), "{called:?}");
}

#[test]
fn a_change_before_the_confirmation_of_a_creation_survives_a_change_of_band() {
    let bands = vec![Band::new(20.0, 30.0), Band::new(f32::INFINITY, 1.0)];
    let config =
        ServerConfig { lod: Some(LodProfile { bands, frame_rate: 30.0 }), ..ServerConfig::default() };
    let mut net = Net::with(config, 1);
    net.link.delay = 4;
    let thing = net.server.create(THING).unwrap();
    net.server.set(thing, POSITION, [100.0_f32, 0.0, 0.0]).unwrap();
    net.step();
    net.step();
    net.server.set(thing, HEALTH, 7_u32).unwrap();
    net.step();
    net.server.set_views(net.peers[0].id, &[View { position: [100.0, 0.0, 0.0], ..View::default() }]);
    net.steps(60);
    net.check(&[thing]);
}

#[test]
fn a_flushed_object_comes_into_scope_where_it_moved() {
    let mut net = Net::new(1);
    let things = [THING, DELTA_THING].map(|class| net.server.create(class).unwrap());
    for thing in things {
        net.server.set(thing, POSITION, [1000.0_f32, 0.0, 0.0]).unwrap();
    }
    net.steps(5);
    for thing in things {
        net.server.set_dormant(thing, true).unwrap();
        net.server.set(thing, POSITION, [10.0_f32, 0.0, 0.0]).unwrap();
        net.server.flush_dormant(thing).unwrap();
    }
    net.steps(8);
    net.check(&things);
    assert_eq!(net.peers[0].client.len(), 2);
}

#[test]
fn differences_build_on_what_a_flush_sent() {
    let mut net = Net::new(1);
    let thing = net.server.create(DELTA_THING).unwrap();
    net.steps(8);
    for value in 1..20_u32 {
        net.server.set_dormant(thing, true).unwrap();
        net.server.set(thing, SCORE, 1_000_000 + value).unwrap();
        net.server.flush_dormant(thing).unwrap();
        net.step();
        net.server.set_dormant(thing, false).unwrap();
        net.server.set(thing, HEALTH, value).unwrap();
        net.steps(value % 3);
        net.server.set(thing, SCORE, 1_000_000 + 2 * value).unwrap();
        net.step();
    }
    net.steps(8);
    net.check(&[thing]);
}

#[test]
fn a_call_that_crosses_an_end_or_a_new_owner_is_dropped_and_counted() {
    let mut net = Net::new(2);
    net.link.delay = 3;
    let thing = net.server.create(THING).unwrap();
    let [me, other] = [0, 1].map(|peer| net.peers[peer].id);
    net.server.set_owner(thing, Some(me)).unwrap();
    net.steps(12);
    // The new owner's call overtakes nothing; the call of the former one is dropped, and later ones
    // count again.
    net.peers[0].client.attach(thing, 1, b"", true).unwrap();
    net.server.set_owner(thing, Some(other)).unwrap();
    net.steps(12);
    assert_eq!(net.peers[0].client.attach(thing, 2, b"", true), Err(AttachError::NoRight));
    net.server.set_owner(thing, Some(me)).unwrap();
    net.steps(12);
    net.peers[0].client.attach(thing, 3, b"", true).unwrap();
    net.steps(12);
    assert_eq!(calls_to_server(&mut net), [3]);
    net.peers[0].client.attach(thing, 4, b"", true).unwrap();
    net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
    net.steps(12);
    assert_eq!(calls_to_server(&mut net), [0; 0]);
    assert_eq!(net.server.connection_stats(me).unwrap().calls_refused, 2);
}

#[test]
fn a_call_of_many_parts_is_dropped_whole_when_its_beginning_was() {
    let mut net = Net::new(2);
    let thing = net.server.create(THING).unwrap();
    let [me, other] = [0, 1].map(|peer| net.peers[peer].id);
    net.server.set_owner(thing, Some(me)).unwrap();
    net.steps(8);
    net.peers[0].client.attach(thing, 1, &[1; 4000], true).unwrap();
    net.server.set_owner(thing, Some(other)).unwrap();
    net.step();
    net.server.set_owner(thing, Some(me)).unwrap();
    net.steps(12);
    net.peers[0].client.attach(thing, 2, &[2; 4000], true).unwrap();
    net.steps(12);
    let whole = std::iter::from_fn(|| net.server.poll_event()).filter_map(|event| match event {
        Event::Attachment(_, call) => Some((call.method, call.bytes)),
        _ => None,
    });
    let whole: Vec<_> = whole.collect();
    assert_eq!(whole.last(), Some(&(2, vec![2; 4000])));
    assert!(whole.iter().all(|(method, bytes)| *bytes == vec![*method as u8; 4000]));
}

#[test]
fn everyone_who_sees_it_calls_on_a_callable_object() {
    let mut net = net(ServerConfig::default(), 2);
    let lever = seen_by_all(&mut net, LEVER);
    net.server.set_connection_filter(lever, true, &[net.peers[0].id]).unwrap();
    net.steps(6);
    net.peers[0].client.attach(lever, 5, b"", true).unwrap();
    assert_eq!(net.peers[1].client.attach(lever, 6, b"", true), Err(AttachError::UnknownObject));
    // A client that does not keep to it: dropped.
    let mut packet = Header { seq: 60, ack: u16::MAX, ack_bits: 0, frame: 1 }.to_bytes().to_vec();
    packet.extend_from_slice(&[kind::ATTACH, 1, lever.index() as u8, 6, 9, 0]);
    let impolite = net.peers.pop().unwrap().id;
    net.server.receive(impolite, &packet).unwrap();
    assert_eq!(net.server.connection_stats(impolite).unwrap().calls_refused, 1);
    net.server.disconnect(impolite);
    net.steps(4);
    assert_eq!(calls_to_server(&mut net), [5]);
}

#[test]
fn a_change_of_owner_reaches_clients_that_have_the_object() {
    for loss in [0.0, 0.5] {
        let mut net = Net::new(2);
        let thing = net.server.create(THING).unwrap();
        net.steps(8);
        net.link.loss = loss;
        let ids = [0, 1].map(|peer| net.peers[peer].id);
        for owner in [Some(0), Some(1), None, Some(1)] {
            net.server.set_owner(thing, owner.map(|owner| ids[owner])).unwrap();
            net.steps(if loss > 0.0 { 60 } else { 6 });
            for peer in 0..2 {
                let replica = net.peers[peer].client.get(thing).unwrap();
                assert_eq!(replica.is_owner(), owner == Some(peer), "peer {peer}, owner {owner:?}");
            }
        }
        let heard = |peer: usize| {
            let events = net.peers[peer].events.iter().filter_map(|event| match event {
                ClientEvent::OwnerChanged { handle, owner } if *handle == thing => Some(*owner),
                _ => None,
            });
            events.collect::<Vec<_>>()
        };
        assert_eq!((heard(0), heard(1)), (vec![true, false], vec![true, false, true]));
    }
}

#[test]
fn a_hidden_reference_appears_with_a_target_that_comes_within_a_round_trip() {
    let mut net = net(ServerConfig::default(), 1);
    net.link.delay = 4;
    let (pointer, target) = (seen_by_all(&mut net, SECRETIVE), net.server.create(SECRETIVE).unwrap());
    net.server.set_filter(target, Filter::Never).unwrap();
    net.server.set(pointer, 1, target).unwrap();
    net.steps(2);
    net.server.set_filter(target, Filter::Always).unwrap();
    net.steps(20);
    assert_eq!(net.peers[0].client.get(pointer).unwrap().value(1), Some(Value::Handle(target)));
}

#[test]
fn a_silent_client_does_not_stop_creation() {
    let config = ServerConfig { objects_max: 512, ..ServerConfig::default() };
    let mut net = Net::with(config, 2);
    net.up_lost = false;
    let silent = net.peers.pop().unwrap().id;
    let mut unresponsive = Vec::new();
    for _ in 0..700 {
        let thing = net.server.create(THING).expect("a client that says nothing holds no index for long");
        net.now += FRAME;
        let honest = &mut net.peers[0];
        net.server.tick(net.now, |packets| {
            if packets.connection == honest.id {
                for packet in packets.iter() {
                    honest.client.receive(packet).unwrap();
                }
            }
        });
        if let Some(answer) = honest.client.poll_packet(net.now) {
            net.server.receive(honest.id, answer).unwrap();
        }
        net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
        unresponsive.extend(std::iter::from_fn(|| net.server.poll_event()));
    }
    assert_eq!(unresponsive, [Event::Unresponsive(silent)]);
    assert!(net.server.connection_stats(silent).is_none());
}

/// It acknowledges everything else, so it is not silent; each end that it does not confirm holds an
/// index for ever.
#[test]
fn a_client_that_confirms_no_end_does_not_stop_creation() {
    // Whole ends, and ends in parts.
    for packet_bytes_max in [1200, 64] {
        let config = ServerConfig { objects_max: 512, packet_bytes_max, ..ServerConfig::default() };
        let mut net = Net::with(config, 1);
        let me = net.peers.pop().unwrap().id;
        let steady = seen_by_all(&mut net, THING);
        let (mut sent, mut newest, mut seq) = (Vec::new(), None, 0_u16);
        let mut brief = None;
        let end = (0..6000_u32).find_map(|frame| {
            net.server.set(steady, HEALTH, frame % 1000).unwrap();
            if frame % 4 == 0 {
                let thing = net.server.create(THING).expect("no client holds an index for long");
                net.server.set(thing, NAME, vec![7; 60]).unwrap();
                net.server.set_filter(thing, Filter::Always).unwrap();
                brief = Some(thing);
            } else if let Some(thing) = brief.take() {
                net.server.destroy(thing, DestroyReason::Destroyed, true).unwrap();
            }
            net.now += FRAME;
            net.server.tick(net.now, |packets| {
                for packet in packets.iter() {
                    let (header, body) = Header::parse(packet).unwrap();
                    let ends = [kind::DESTROY, kind::PART, kind::SIZED_UPDATE];
                    let confirmed = !body.first().is_some_and(|section| ends.contains(section));
                    sent.push((header.seq, confirmed));
                    newest = if confirmed { Some(header.seq) } else { newest };
                }
            });
            if let Some(ack) = newest {
                let age = |of: u16| u32::from(ack.wrapping_sub(of).wrapping_sub(1));
                let known = sent.iter().rev().take(200).filter(|(of, yes)| *yes && age(*of) < 64);
                let ack_bits = known.fold(0, |bits, (of, _)| bits | 1_u64 << age(*of));
                let packet = Header { seq, ack, ack_bits, frame: 0 }.to_bytes();
                seq = seq.wrapping_add(1);
                net.server.receive(me, &packet).unwrap();
            }
            let mut events = std::iter::from_fn(|| net.server.poll_event());
            events.find(|event| *event == Event::Unresponsive(me)).map(|_| frame)
        });
        assert!(end.is_some_and(|frame| frame > 60), "{end:?}, with packets of {packet_bytes_max} bytes");
    }
}

/// The object left the scope and came back before its first creation was confirmed, without room
/// for its end: that confirmation counted for the second creation, which was lost.
#[test]
fn the_confirmation_of_an_earlier_creation_does_not_count_for_a_later_one() {
    let mut net = net(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    net.link.delay = 4;
    let me = net.peers[0].id;
    let thing = seen_by_all(&mut net, THING);
    net.step();
    net.server.set_budget(me, Some((0.0, 0.0)));
    net.server.set_filter(thing, Filter::Never).unwrap();
    net.step();
    net.server.set_budget(me, None);
    net.server.set_filter(thing, Filter::Always).unwrap();
    net.server.set(thing, HEALTH, 7_u32).unwrap();
    net.fate = Some(Box::new(|_, _| false));
    net.step();
    net.settle(60);
    net.check(&[thing]);
}

#[test]
fn an_idle_client_is_not_unresponsive() {
    let mut net = Net::new(1);
    let thing = net.server.create(THING).unwrap();
    net.steps(8);
    // The last packet is lost, then nothing happens for a minute, then something does.
    net.server.set(thing, HEALTH, 1_u32).unwrap();
    net.link.loss = 1.0;
    net.step();
    net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
    net.steps(40);
    net.link.loss = 0.0;
    net.steps(2000);
    let thing = net.server.create(THING).unwrap();
    net.steps(8);
    net.check(&[thing]);
    assert_eq!(net.server.poll_event(), None);
}

#[test]
fn references_never_name_the_next_user_of_an_index() {
    let mut net = net(ServerConfig { check_frames: 2, ..ServerConfig::default() }, 1);
    let (pointer, target) = (seen_by_all(&mut net, POINTER), seen_by_all(&mut net, POINTER));
    net.server.set(pointer, 1, target).unwrap();
    net.steps(8);
    assert_eq!(net.peers[0].client.resolve(target), Some(target));
    net.server.destroy(target, DestroyReason::Destroyed, false).unwrap();
    net.steps(8);
    let next = (0..300).map(|_| seen_by_all(&mut net, POINTER)).find(|next| next.index() == target.index());
    let next = next.expect("the index is used again");
    net.steps(8);
    let replica = net.peers[0].client.get(pointer).unwrap();
    assert_eq!(replica.value(1), Some(Value::Handle(target)));
    assert_eq!(net.peers[0].client.resolve(target), None);
    net.server.set(pointer, 1, next).unwrap();
    net.steps(8);
    assert_eq!(net.peers[0].client.get(pointer).unwrap().value(1), Some(Value::Handle(next)));
    assert_eq!(net.peers[0].client.resolve(next), Some(next));
    // Words agree on both sides, generation included.
    assert!(!net.peers[0].events.iter().any(|event| matches!(event, ClientEvent::Diverged { .. })));
}

#[test]
fn referrers_are_notified_when_a_target_appears() {
    let mut net = net(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let (pointer, target) = (seen_by_all(&mut net, POINTER), net.server.create(POINTER).unwrap());
    net.server.set_filter(target, Filter::Never).unwrap();
    net.server.set(pointer, 1, target).unwrap();
    for _ in 0..2 {
        net.steps(8);
        net.peers[0].events.clear();
        net.server.set_filter(target, Filter::Always).unwrap();
        net.steps(8);
        let notified = |event: &ClientEvent| matches!(event, ClientEvent::Updated { handle, mask: 0b10, .. } if *handle == pointer);
        assert_eq!(net.peers[0].events.iter().filter(|event| notified(event)).count(), 1);
        net.server.set_filter(target, Filter::Never).unwrap();
    }
}

#[test]
fn the_end_carries_the_last_state() {
    for reason in [DestroyReason::Destroyed, DestroyReason::TornOff] {
        let mut net = Net::new(1);
        let thing = net.server.create(THING).unwrap();
        net.steps(8);
        net.server.set(thing, HEALTH, 77_u32).unwrap();
        net.server.destroy(thing, reason, true).unwrap();
        net.steps(4);
        let last = net.peers[0].events.iter().find_map(|event| match event {
            ClientEvent::Destroyed { handle, last, .. } if *handle == thing => Some(last),
            _ => None,
        });
        assert_eq!(last.unwrap().value(HEALTH), Some(Value::UInt(77)));
    }
}

#[test]
fn calls_are_reported_after_the_changes_of_their_packet() {
    let mut net = Net::new(1);
    let thing = net.server.create(THING).unwrap();
    net.steps(8);
    net.peers[0].events.clear();
    let me = net.peers[0].id;
    // The client takes events only after three packets: changes join up to the next call.
    for value in 1..=3_u32 {
        net.server.set(thing, HEALTH, value).unwrap();
        if value != 2 {
            net.server.attach(me, thing, u64::from(value), b"", true).unwrap();
        }
        net.server.set(thing, AMMO, 5 * value).unwrap();
        let now = net.now + FRAME;
        net.now = now;
        let client = &mut net.peers[0].client;
        net.server.tick(now, |packets| {
            for packet in packets.iter() {
                client.receive(packet).unwrap();
            }
        });
    }
    let events: Vec<&str> = std::iter::from_fn(|| net.peers[0].client.poll_event())
        .map(|event| match event {
            ClientEvent::Updated { handle, mask: 0b110, .. } if handle == thing => "changed",
            ClientEvent::Attachment(_) => "called",
            _ => "something else",
        })
        .collect();
    assert_eq!(events, ["changed", "called", "changed", "called"]);
}

/// An object whose properties depend on the receiver, in a band that is seldom due: only calls went
/// out, and the change of their frame came up to a second later.
#[test]
fn a_call_on_a_far_pawn_does_not_overtake_the_change_of_its_frame() {
    for class in [THING, PAWN] {
        let config = ServerConfig { lod: Some(LodProfile::reference()), ..ServerConfig::default() };
        let mut net = Net::with(config, 1);
        let pawn = net.server.create(class).unwrap();
        net.server.set(pawn, POSITION, [100.0_f32, 0.0, 0.0]).unwrap();
        net.steps(40);
        for value in 1..60_u32 {
            net.server.set(pawn, HEALTH, value).unwrap();
            let me = net.peers[0].id;
            net.server.attach(me, pawn, u64::from(value), b"", value % 2 == 0).unwrap();
            net.step();
            assert_eq!(calls_of(&mut net, 0).last(), Some(&u64::from(value)));
            assert_eq!(net.value(0, pawn, HEALTH), u64::from(value), "at the call of that frame");
        }
    }
}

/// The room for the text of a token was not counted: the call went into the next packet, and came
/// alone when the first was lost.
#[test]
fn a_call_is_in_the_packet_of_a_state_with_a_new_text() {
    let mut classes = Classes::new();
    let class = Class::builder("named")
        .property(Property::new("score", Quantiser::UInt(32)))
        .property(Property::new("word", Quantiser::Token(1)));
    let named = classes.register(class.build().unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig { packet_bytes_max: 300, ..ServerConfig::default() }, 1);
    let me = net.peers[0].id;
    let things = [0; 2].map(|_| seen_by_all(&mut net, named));
    net.steps(8);
    for thing in things {
        net.server.set(thing, 0, 5_u32).unwrap();
        net.server.attach(me, thing, 1, &[1; 60], true).unwrap();
    }
    let word = net.server.intern(1, &"w".repeat(150)).unwrap();
    net.server.set(things[1], 1, Value::Token(word)).unwrap();
    let client = net.peers[0].client.clone();
    net.step();
    assert_eq!(net.peers[0].sent.len(), 2);
    for packet in &net.peers[0].sent {
        // The other one is lost.
        let mut client = client.clone();
        client.receive(packet).unwrap();
        while let Some(event) = client.poll_event() {
            if let ClientEvent::Attachment(call) = event {
                assert_eq!(client.get(call.object).unwrap().value(0), Some(Value::UInt(5)));
            }
        }
    }
}

#[test]
fn peers_with_other_defaults_or_another_version_do_not_agree() {
    let class = |default: u32| {
        let health = Property::new("health", Quantiser::UInt(10)).default_value(default);
        let mut classes = Classes::new();
        classes.register(Class::builder("pawn").property(health).build().unwrap()).unwrap();
        classes
    };
    let mut server = throng_replication::Server::new(ServerConfig::default(), &class(100));
    let id = server.connect().unwrap();
    assert_eq!(server.check_protocol(id, &class(100).protocol()), Ok(Vec::new()));
    let refused = server.check_protocol(id, &class(99).protocol()).unwrap();
    assert_eq!(refused, [throng_replication::ClassId(0)]);
    let old = Protocol { version: 1, ..class(100).protocol() };
    let refused = Err(ProtocolMismatch::Version { theirs: 1, ours: PROTOCOL_VERSION });
    assert_eq!(server.check_protocol(id, &old), refused);
    assert_eq!(Protocol::from_bytes(&old.to_bytes()), Some(old));
    let blob = |default: &[u8]| {
        let name = Property::new("name", Quantiser::Blob(9)).default_value(default.to_vec());
        Class::builder("pawn").property(name).build().unwrap().protocol_hash()
    };
    assert_ne!(blob(b"a"), blob(b"b"));
}

#[test]
fn ends_of_parts_cost_what_they_end() {
    let work = |roots: usize| {
        let mut net = Net::new(0);
        let mut all = Vec::new();
        for _ in 0..roots {
            let root = net.server.create(THING).unwrap();
            for _ in 0..20 {
                net.server.create_part(root, THING).unwrap();
            }
            all.push(root);
        }
        for pair in all.windows(2) {
            net.server.add_dependent(pair[0], pair[1], Hint::After).unwrap_or(());
        }
        for root in &all {
            net.server.destroy(*root, DestroyReason::Destroyed, false).unwrap();
        }
        let ServerStats { relations_ended, .. } = net.server.stats();
        relations_ended
    };
    let (few, many) = (work(50), work(500));
    assert!(few >= 50 * 20 && many <= 11 * few, "{few} and {many}");
}

#[test]
fn an_input_that_no_packet_holds_is_refused() {
    let mut net = Net::new(1);
    let client = &mut net.peers[0].client;
    assert_eq!(client.send_input(&[0; 1181]), Err(InputError::TooLong { bytes: 1181, max: 1180 }));
    client.send_input(&[1; 1180]).unwrap();
    client.send_input(b"after").unwrap();
    net.steps(4);
    let inputs = std::iter::from_fn(|| net.server.poll_event()).map(|event| match event {
        Event::Input(_, bytes) => bytes.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(inputs.collect::<Vec<_>>(), [1180, 5]);
}

#[test]
fn calls_without_arguments_are_bounded() {
    let mut net = Net::new(1);
    let thing = net.server.create(THING).unwrap();
    net.steps(8);
    let me = net.peers[0].id;
    let accepted =
        (0..10_000).take_while(|call| net.server.attach(me, thing, *call, b"", true).is_ok()).count();
    assert_eq!(accepted, 256 * 1024 / 64);
    // What has arrived makes room again.
    net.steps(200);
    assert!(net.server.attach(me, thing, 0, b"", true).is_ok());
}

#[test]
fn an_object_cannot_hang_on_its_own_part() {
    let mut net = Net::new(1);
    let root = net.server.create(THING).unwrap();
    let part = net.server.create_part(root, THING).unwrap();
    assert_eq!(net.server.set_parent(root, Some(part)), Err(ObjectError::Relation));
    // Another object can; the part's root comes with it.
    let rider = net.server.create(THING).unwrap();
    net.server.set_filter(root, Filter::Never).unwrap();
    net.server.set_parent(rider, Some(part)).unwrap();
    assert_eq!(net.server.set_parent(root, Some(rider)), Err(ObjectError::Relation));
    net.steps(8);
    net.check(&[root, part, rider]);
    assert_eq!(net.peers[0].client.len(), 3);
}

#[test]
fn a_crowd_that_joins_at_once_is_spread_over_frames_nearest_first() {
    let config = ServerConfig { creates_per_frame: 400, ..ServerConfig::default() };
    let mut net = Net::with(config, 0);
    let things: Vec<Handle> = (0..500).map(|_| net.server.create(THING).unwrap()).collect();
    for (at, thing) in things.iter().enumerate() {
        net.server.set(*thing, POSITION, [((at * 37) % 500) as f32 / 10.0, 0.0, 0.0]).unwrap();
    }
    for _ in 0..4 {
        net.join();
    }
    let mut before = 0;
    for frame in 1..=5_u64 {
        net.step();
        let creates = net.server.total_stats().creates;
        assert_eq!(creates - before, 400, "frame {frame}");
        before = creates;
    }
    net.steps(8);
    net.check(&things);
    let created = net.peers[0].events.iter().filter_map(|event| match event {
        ClientEvent::Created(handle) => Some((handle.index() as usize - 1) * 37 % 500 / 100),
        _ => None,
    });
    assert!(created.is_sorted(), "the nearest hundred come first");
}

#[test]
fn the_round_trip_time_is_known() {
    let mut net = Net::new(1);
    net.link.delay = 3;
    let thing = net.server.create(THING).unwrap();
    let id = net.peers[0].id;
    assert_eq!(net.server.connection_stats(id).unwrap().rtt, Duration::ZERO);
    for value in 0..60_u32 {
        net.server.set(thing, HEALTH, value).unwrap();
        net.step();
    }
    let rtt = net.server.connection_stats(id).unwrap().rtt;
    assert!((4 * FRAME..=7 * FRAME).contains(&rtt), "{rtt:?}");
}

#[test]
fn the_id_of_an_ended_connection_names_nothing() {
    let mut net = Net::new(1);
    let old = net.peers.pop().unwrap().id;
    net.server.disconnect(old);
    let at = net.join();
    let new = net.peers[at].id;
    assert_eq!((new.index(), new.generation()), (old.index(), old.generation() + 1));
    let thing = net.server.create(THING).unwrap();
    net.server.set_connection_filter(thing, true, &[old]).unwrap();
    assert_eq!(net.server.set_owner(thing, Some(old)), Err(ObjectError::UnknownConnection));
    assert_eq!(net.server.attach(old, thing, 1, b"", true), Err(AttachError::UnknownConnection));
    net.server.set_views(old, &[]);
    net.server.disconnect(old);
    net.steps(5);
    assert!(net.server.connection_stats(old).is_none() && net.server.connection_stats(new).is_some());
    assert!(!net.server.in_scope(new, thing) && !net.server.in_scope(ConnId::from_parts(7, 0), thing));
}

#[test]
fn longer_datagrams_are_refused() {
    let mut net = Net::new(1);
    let mut packet = Header { seq: 9, ack: u16::MAX, ack_bits: 0, frame: 1 }.to_bytes().to_vec();
    packet.extend([kind::INPUT, 1, 0, 0].repeat(16_246));
    let id = net.peers[0].id;
    assert_eq!(net.server.receive(id, &packet), Err(DecodeError::TooLong));
    assert_eq!(net.server.poll_event(), None);
    assert_eq!(net.peers[0].client.receive(&packet), Err(DecodeError::TooLong));
    packet.truncate(1200);
    assert_eq!(net.server.receive(id, &packet), Ok(()));
}

#[test]
fn a_right_that_came_and_went_between_frames_reveals_nothing() {
    let mut net = Net::new(1);
    let me = net.peers[0].id;
    let [secret, custom, team] = [2, 5, 6];
    let pawn = net.server.create(PAWN).unwrap();
    net.server.set_filter(pawn, Filter::Always).unwrap();
    net.server.set_condition_enabled(pawn, 1 << custom, false).unwrap();
    for property in [secret, custom, team] {
        net.server.set(pawn, property, 4242_u32).unwrap();
    }
    net.steps(8);
    let seen = |net: &Net| {
        [secret, custom, team].map(|property| net.peers[0].client.get(pawn).unwrap().value(property))
    };
    let before = seen(&net);
    assert!(!before.contains(&Some(Value::UInt(4242))), "{before:?}");
    net.server.set_owner(pawn, Some(me)).unwrap();
    net.server.set_owner(pawn, None).unwrap();
    net.server.set_condition_enabled(pawn, 1 << custom, true).unwrap();
    net.server.set_condition_enabled(pawn, 1 << custom, false).unwrap();
    net.server.set_condition_groups(me, 1 << 3);
    net.server.set_condition_groups(me, 0);
    net.steps(8);
    assert_eq!(seen(&net), before);
    // What is granted for good arrives.
    net.server.set_owner(pawn, Some(me)).unwrap();
    net.server.set_condition_enabled(pawn, 1 << custom, true).unwrap();
    net.server.set_condition_groups(me, 1 << 3);
    net.steps(8);
    assert_eq!(seen(&net), [const { Some(Value::UInt(4242)) }; 3]);
}

#[test]
fn a_hidden_reference_to_an_ended_object_stays_hidden_when_its_index_is_used_again() {
    let mut classes = Classes::new();
    let class = Class::builder("pointer").property(Property::new("target", Quantiser::Handle { hide: true }));
    let class = classes.register(class.build().unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let [pointer, secret] = [0; 2].map(|_| net.server.create(class).unwrap());
    net.server.set_filter(pointer, Filter::Always).unwrap();
    net.server.set_filter(secret, Filter::Never).unwrap();
    net.server.set(pointer, 0, secret).unwrap();
    net.steps(8);
    net.server.destroy(secret, DestroyReason::Destroyed, false).unwrap();
    net.steps(8);
    let visible = net.server.create(class).unwrap();
    assert_eq!(visible.index(), secret.index(), "the index is used again");
    net.server.set_filter(visible, Filter::Always).unwrap();
    net.steps(8);
    let held = net.peers[0].client.get(pointer).unwrap().value(0);
    assert_eq!(held, Some(Value::Handle(Handle::NONE)));
}

#[test]
fn referrers_in_options_and_enums_are_notified_when_the_target_appears() {
    let reference = || Quantiser::Handle { hide: false };
    let wrapped = |handle: Handle| {
        let handle = || Value::Handle(handle);
        [
            handle(),
            Value::List(vec![handle()]),
            Value::Option(Some(Box::new(handle()))),
            Value::Enum(1, vec![handle()]),
        ]
    };
    let mut classes = Classes::new();
    let class = Class::builder("pointer")
        .property(Property::new("plain", reference()))
        .property(Property::new("list", Quantiser::Array(Box::new(reference()), 4)))
        .property(Property::new("option", Quantiser::Option(Box::new(reference()))))
        .property(Property::new(
            "enum",
            Quantiser::Enum(vec![("none".into(), Vec::new()), ("at".into(), vec![reference()])]),
        ));
    let class = classes.register(class.build().unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let [pointer, target] = [0; 2].map(|_| net.server.create(class).unwrap());
    net.server.set_filter(pointer, Filter::Always).unwrap();
    net.server.set_filter(target, Filter::Never).unwrap();
    for (property, value) in wrapped(target).into_iter().enumerate() {
        net.server.set(pointer, property, value).unwrap();
    }
    net.steps(8);
    net.peers[0].events.clear();
    net.server.set_filter(target, Filter::Always).unwrap();
    net.steps(8);
    let notified = net.peers[0].events.iter().fold(0, |all, event| match event {
        ClientEvent::Updated { handle, mask, .. } if *handle == pointer => all | mask,
        _ => all,
    });
    assert_eq!(notified, 0b1111);
}

#[test]
fn every_object_up_to_the_limit_arrives_and_no_other_is_made() {
    for limit in [1, 5, 63, 64, 100, 128] {
        let config = ServerConfig { objects_max: limit, ..ServerConfig::default() };
        let mut net = Net::with(config, 1);
        let things: Vec<Handle> = (0..limit).map(|_| net.server.create(THING).unwrap()).collect();
        assert_eq!(net.server.create(THING), Err(ObjectError::TooMany(limit)));
        for thing in &things {
            net.server.set_filter(*thing, Filter::Always).unwrap();
        }
        net.steps(12);
        let held = things.iter().filter(|thing| net.peers[0].client.get(**thing).is_some()).count();
        assert_eq!(held, things.len());
    }
}

#[test]
fn few_packets_in_flight_are_enough_to_send() {
    for limit in [0, 1, 8, 9] {
        let config = ServerConfig { packets_in_flight_max: limit, ..ServerConfig::default() };
        let mut net = Net::with(config, 1);
        let thing = net.server.create(THING).unwrap();
        net.steps(8);
        net.check(&[thing]);
    }
}

#[test]
fn checks_find_no_room_in_a_packet_that_only_asks() {
    let config = ServerConfig { packets_in_flight_max: 32, check_frames: 10, ..ServerConfig::default() };
    let mut net = Net::with(config, 1);
    let things: Vec<Handle> = (0..60).map(|_| seen_by_all(&mut net, THING)).collect();
    net.steps(8);
    // The receiver falls silent with changes of half of them under way: the limit is reached, and
    // empty packets ask, while the other half is settled.
    net.up_lost = true;
    for value in 0..100_u32 {
        for thing in &things[..30] {
            net.server.set(*thing, SCORE, value).unwrap();
            net.server.set(*thing, NAME, vec![value as u8; 60]).unwrap();
        }
        net.step();
    }
    net.up_lost = false;
    net.steps(40);
    net.check(&things);
}

/// A band kept what it had gathered before the sleep although the owner, who has no band, had got
/// it. When the object lost its owner, the value of then went out, and differences were taken from
/// values that the client had never got.
#[test]
fn a_sleeper_in_a_far_band_keeps_its_state_when_its_owner_changes() {
    for delta in [false, true] {
        let mut classes = classes();
        let place = Quantiser::Vec3([Axis::new(-512.0, 0.01, 17); 3]);
        let number = |name| Property::new(name, Quantiser::UInt(32));
        let class = Class::builder("sleeper")
            .property(Property::new("position", place).world_position())
            .property(number("count"))
            .property(number("skip").condition(Condition::SkipOwner))
            .delta(delta);
        let class = classes.register(class.build().unwrap()).unwrap();
        let config =
            ServerConfig { lod: Some(LodProfile::reference()), check_frames: 1, ..ServerConfig::default() };
        let mut net = Net::of(classes, config, 1);
        let id = net.peers[0].id;
        let thing = net.server.create(class).unwrap();
        net.server.set(thing, POSITION, [80.0_f32, 0.0, 0.0]).unwrap();
        let look = |net: &mut Net, x| {
            net.server.set_views(id, &[View { position: [x, 0.0, 0.0], ..View::default() }]);
        };
        for frame in 0..100_u32 {
            match frame {
                14 => net.server.set(thing, 1, 16_u32).unwrap(),
                15 => net.server.set_dormant(thing, true).unwrap(),
                19 => net.server.set_owner(thing, Some(id)).unwrap(),
                20 => look(&mut net, 67.0),
                22 => net.server.set(thing, 1, 33_u32).unwrap(),
                23 => net.server.set_owner(thing, None).unwrap(),
                25 => look(&mut net, -86.0),
                26 => net.server.set(thing, 1, 34_u32).unwrap(),
                _ => {}
            }
            net.step();
            let wanted = if frame < 24 { [0, 16] } else { [16, 16] };
            let held = if frame < 8 { 0 } else { net.value(0, thing, 1) };
            assert!(wanted.contains(&held) || frame < 8, "delta {delta}, frame {frame}: {held}");
        }
        net.server.set_dormant(thing, false).unwrap();
        net.steps(40);
        net.check(&[thing]);
        let diverged = |event: &ClientEvent| matches!(event, ClientEvent::Diverged { .. });
        assert!(!net.peers[0].events.iter().any(diverged));
    }
}

/// A change that was lost before the sleep was sent again with a value set in the sleep.
#[test]
fn a_change_lost_before_the_sleep_is_sent_again_with_its_value() {
    let mut net = Net::new(2);
    let things = [THING, DELTA_THING].map(|class| net.server.create(class).unwrap());
    net.steps(6);
    net.fate = Some(Box::new(|peer, _| peer != 0));
    things.iter().for_each(|thing| net.server.set(*thing, HEALTH, 16_u32).unwrap());
    net.step();
    things.iter().for_each(|thing| net.server.set_dormant(*thing, true).unwrap());
    things.iter().for_each(|thing| net.server.set(*thing, HEALTH, 33_u32).unwrap());
    net.settle(60);
    for thing in things {
        assert_eq!([0, 1].map(|peer| net.value(peer, thing, HEALTH)), [16, 16]);
    }
    net.check(&things);
    // The last state has the changes of the sleep.
    net.server.destroy(things[0], DestroyReason::Destroyed, true).unwrap();
    net.settle(6);
    let last = net.peers[0].events.iter().find_map(|event| match event {
        ClientEvent::Destroyed { last, .. } => last.value(HEALTH),
        _ => None,
    });
    assert_eq!(last, Some(Value::UInt(33)));
}
