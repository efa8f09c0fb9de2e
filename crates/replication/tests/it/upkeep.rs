//! Upkeep of replicas over time: predicted differences (spec §9.4), replicas that stay when they
//! leave scope (§10.1), hashes of states (§18), and how long changes wait (§20).

use crate::harness;
use harness::*;
use throng_replication::wire::{HEADER_BYTES, kind};
use throng_replication::{
    Axis, Class, ClassError, ClientEvent, DestroyReason, Handle, Property, Quantiser, ServerConfig, Value,
    View,
};

const VELOCITY: usize = 1;
const HITS: usize = 2;

fn body(name: &str, predict: Option<f64>, retain: bool) -> Class {
    let axis = Axis::new(-5242.88, 0.01, 20);
    let speed = Axis::new(-64.0, 1.0 / 32.0, 12);
    let mut class = Class::builder(name)
        .property(Property::new("position", Quantiser::Vec3([axis; 3])).world_position())
        .property(Property::new("velocity", Quantiser::Vec3([speed; 3])).velocity())
        .property(Property::new("health", Quantiser::UInt(10)))
        .retain(retain)
        .delta(!retain);
    if let Some(rate) = predict {
        class = class.predict(rate);
    }
    class.build().unwrap()
}

/// Bytes that a steady walk costs in a hundred frames.
fn walk(predict: Option<f64>, loss: f64) -> u64 {
    let mut classes = classes();
    let class = classes.register(body("walker", predict, false)).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    net.link.loss = loss;
    let walker = net.server.create(class).unwrap();
    net.server.set(walker, VELOCITY, [9.0_f32, -4.5, 1.5]).unwrap();
    net.steps(20);
    let before = net.server.total_stats().bytes_sent;
    for frame in 1..=100_u16 {
        let seconds = f32::from(frame) / 30.0;
        net.server.set(walker, POSITION, [9.0 * seconds, -4.5 * seconds, 1.5 * seconds]).unwrap();
        net.step();
    }
    let bytes = net.server.total_stats().bytes_sent - before;
    net.link.loss = 0.0;
    net.settle(20);
    net.check(&[walker]);
    bytes
}

#[test]
fn a_steady_walk_costs_next_to_nothing_where_it_is_predicted() {
    let (plain, predicted) = (walk(None, 0.0), walk(Some(30.0), 0.0));
    // Header, section, index, mask and age take 21 bytes; the rest are the differences: 2 bits an
    // axis, not 12.
    assert!(predicted + 200 <= plain, "{predicted} of {plain}");
    for loss in [0.05, 0.3] {
        walk(Some(30.0), loss);
    }
}

#[test]
fn a_prediction_needs_position_and_velocity() {
    let axis = Axis::new(-5242.88, 0.01, 20);
    let place = Property::new("position", Quantiser::Vec3([axis; 3])).world_position();
    let still = Class::builder("still").property(place).predict(30.0).build();
    assert!(matches!(still, Err(ClassError::Predict { .. })));
    let (with, without) = (body("same", Some(30.0), false), body("same", None, false));
    assert_ne!(with.protocol_hash(), without.protocol_hash());
}

/// A net with an object that its receivers keep.
fn kept() -> (Net, Handle) {
    let mut classes = classes();
    let class = classes.register(body("landmark", None, true)).unwrap();
    let mut net = Net::of(classes, ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let landmark = net.server.create(class).unwrap();
    net.server.set(landmark, HITS, 1_u32).unwrap();
    net.steps(8);
    (net, landmark)
}

fn look_from(net: &mut Net, x: f32) {
    let id = net.peers[0].id;
    net.server.set_views(id, &[View { position: [x, 0.0, 0.0], ..View::default() }]);
}

#[test]
fn a_kept_replica_comes_back_with_what_changed() {
    for loss in [0.0, 0.3] {
        let (mut net, landmark) = kept();
        let creates = net.server.total_stats().creates;
        net.link.loss = loss;
        net.server.set(landmark, HITS, 2_u32).unwrap();
        net.step();
        look_from(&mut net, 3000.0);
        net.steps(20);
        net.server.set(landmark, HITS, 3_u32).unwrap();
        net.steps(20);
        let replica = net.peers[0].client.replica(landmark.index()).expect("it stays");
        assert_ne!(replica.value(HITS), Some(Value::UInt(3)), "out of scope, it is not brought up to date");
        net.link.loss = 0.0;
        look_from(&mut net, 0.0);
        net.settle(10);
        net.check(&[landmark]);
        let stats = net.server.total_stats();
        assert_eq!((stats.creates, stats.destroys), (creates, 0));
    }
}

#[test]
fn nothing_is_sent_for_a_kept_replica_that_did_not_change() {
    let (mut net, landmark) = kept();
    look_from(&mut net, 3000.0);
    net.steps(10);
    look_from(&mut net, 0.0);
    for _ in 0..5 {
        net.step();
        assert_eq!(net.bytes_sent(0), 0);
    }
    assert!(net.server.is_live(net.peers[0].id, landmark));
}

#[test]
fn the_end_of_a_kept_object_is_told() {
    let (mut net, landmark) = kept();
    look_from(&mut net, 3000.0);
    net.steps(10);
    net.server.destroy(landmark, DestroyReason::Destroyed, false).unwrap();
    // Lost once, told again.
    net.fate = Some(Box::new(|_, _| false));
    net.step();
    net.fate = None;
    net.server.create(THING).unwrap();
    look_from(&mut net, 0.0);
    net.settle(20);
    assert!(
        net.peers[0]
            .client
            .replica(landmark.index())
            .is_none_or(|replica| { replica.generation() != landmark.generation() })
    );
    // Its index is free again.
    let again =
        (0..200).map(|_| net.server.create(THING).unwrap()).any(|new| new.index() == landmark.index());
    assert!(again);
}

#[test]
fn a_connection_that_kept_something_leaves_nothing_behind() {
    let (mut net, landmark) = kept();
    look_from(&mut net, 3000.0);
    net.steps(10);
    net.server.disconnect(net.peers[0].id);
    net.server.destroy(landmark, DestroyReason::Destroyed, false).unwrap();
    net.peers.clear();
    net.step();
    let again =
        (0..200).map(|_| net.server.create(THING).unwrap()).any(|new| new.index() == landmark.index());
    assert!(again);
}

/// An update whose value is altered on the way, so that the replica is wrong and nobody has lost
/// anything.
fn corrupted(check_frames: u16) -> (Net, Handle) {
    let mut net = Net::with(ServerConfig { check_frames, ..ServerConfig::default() }, 1);
    let thing = net.server.create(THING).unwrap();
    net.steps(8);
    net.server.set(thing, AMMO, 0xa5_u32).unwrap();
    net.fate = Some(Box::new(|_, _| false));
    net.step();
    net.fate = None;
    let mut packet = net.peers[0].sent[0].clone();
    // The same place as in the example of docs/replication.md.
    assert_eq!(packet[HEADER_BYTES], kind::UPDATE);
    packet[HEADER_BYTES + 4] ^= 0x40;
    net.peers[0].client.receive(&packet).unwrap();
    (net, thing)
}

#[test]
fn a_replica_that_is_wrong_is_found_named_and_mended() {
    let (mut net, thing) = corrupted(4);
    // Hashes travel with packets that go anyway: another property changes now and then.
    for score in 1..30_u32 {
        net.server.set(thing, SCORE, score).unwrap();
        net.step();
    }
    net.settle(10);
    net.check(&[thing]);
    let found: Vec<&ClientEvent> = net.peers[0]
        .events
        .iter()
        .filter(|event| matches!(event, ClientEvent::Diverged { property: AMMO, .. }))
        .collect();
    let ClientEvent::Diverged { handle, held, sent, .. } = found[0] else { panic!("filtered") };
    assert_eq!((*handle, sent), (thing, &Value::UInt(0xa5)));
    assert_ne!(held, sent);
    assert_eq!(found.len(), 1);
}

#[test]
fn hashes_never_accuse_over_a_lossy_link() {
    let mut net = Net::with(ServerConfig { check_frames: 1, ..ServerConfig::default() }, 2);
    net.link = Link { loss: 0.2, duplicate: 0.1, reorder: 3, delay: 2 };
    let things: Vec<Handle> = [THING, DELTA_THING, PAWN]
        .into_iter()
        .cycle()
        .take(12)
        .map(|class| net.server.create(class).unwrap())
        .collect();
    for round in 0..300_u32 {
        for (at, thing) in things.iter().enumerate() {
            if (round as usize + at).is_multiple_of(3) {
                net.server.set(*thing, HEALTH, round).unwrap();
            }
        }
        if round % 50 == 20 {
            let id = net.peers[0].id;
            net.server.set_owner(things[2], (round % 100 == 20).then_some(id)).unwrap();
        }
        net.step();
    }
    for peer in &net.peers {
        assert!(!peer.events.iter().any(|event| matches!(event, ClientEvent::Diverged { .. })));
    }
    net.link = Link::default();
    net.settle(20);
    net.check(&things);
}

#[test]
fn how_long_changes_wait_is_counted() {
    let mut net = Net::new(1);
    let things: Vec<Handle> = (0..40).map(|_| net.server.create(DELTA_THING).unwrap()).collect();
    net.steps(20);
    let id = net.peers[0].id;
    assert_eq!(net.server.connection_stats(id).unwrap().starvation_frames_max, 0);
    // Room for a few records a frame.
    net.server.set_budget(id, Some((100.0 / FRAME.as_secs_f64(), 100.0)));
    for round in 1..60_u32 {
        for thing in &things {
            net.server.set(*thing, SCORE, round).unwrap();
        }
        net.step();
    }
    let most = net.server.connection_stats(id).unwrap().starvation_frames_max;
    assert!((2..40).contains(&most), "{most} frames");
    let mut text = String::new();
    net.server.write_metrics(&mut text);
    assert!(text.contains(&format!("throng_repl_starvation_frames_max {most}\n")), "{text}");
}

#[test]
fn a_packet_has_one_short_list_of_hashes() {
    let (mut net, thing) = corrupted(0);
    let item = [thing.index() as u8, 1, 0, 0, 0, 0];
    let section = |count: u8| {
        let items = item.repeat(usize::from(count));
        let mut bytes = vec![kind::CHECK, count];
        bytes.extend_from_slice(&(items.len() as u16 + 2).to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend(items);
        bytes
    };
    let header = net.peers[0].sent[0][..HEADER_BYTES].to_vec();
    let client = &mut net.peers[0].client;
    for body in [section(65), [section(1), section(1)].concat()] {
        let mut packet = [header.clone(), body].concat();
        let seq = u16::from_le_bytes([packet[0], packet[1]]) + 1;
        packet[..2].copy_from_slice(&seq.to_le_bytes());
        assert_eq!(client.receive(&packet), Err(throng_replication::wire::DecodeError::TooLong));
    }
}
