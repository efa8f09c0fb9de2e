//! Spec §7.1 (0x07), §10.4: what fits no packet goes in parts, while everything else goes on.

use crate::harness;
use harness::*;
use throng_replication::{
    Class, ClassId, Classes, Client, ClientConfig, ClientEvent, DestroyReason, Filter, Handle, ObjectError,
    Property, Quantiser, ServerConfig, Value,
};
use throng_stdx::Rng;

const BIG: ClassId = ClassId(3);
const SMALL: usize = 0;
const BODY: usize = 1;

/// The harness' classes, and one with a number and up to 64 KiB of bytes.
fn with_big(config: ServerConfig, peers: usize) -> Net {
    let mut classes = classes();
    let class = Class::builder("big")
        .property(Property::new("small", Quantiser::UInt(16)))
        .property(Property::new("body", Quantiser::Blob(65_536)))
        .delta(true);
    assert_eq!(classes.register(class.build().unwrap()), Ok(BIG));
    Net::of(classes, config, peers)
}

fn create(net: &mut Net, class: ClassId) -> Handle {
    let handle = net.server.create(class).unwrap();
    net.server.set_filter(handle, Filter::Always).unwrap();
    handle
}

fn body(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn held(net: &Net, handle: Handle) -> Option<Vec<u8>> {
    match net.peers[0].client.replica(handle.index())?.value(BODY)? {
        Value::Bytes(bytes) => Some(bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_object_of_many_packets_arrives_and_the_others_go_on() {
    let mut net = with_big(ServerConfig::default(), 1);
    let thing = create(&mut net, THING);
    net.steps(4);
    let big = create(&mut net, BIG);
    net.server.set(big, BODY, body(60_000, 1)).unwrap();
    net.server.set(thing, HEALTH, 700_u64).unwrap();
    net.step();
    assert_eq!(net.value(0, thing, HEALTH), 700, "it does not wait for the other");
    net.steps(6);
    assert_eq!(held(&net, big), Some(body(60_000, 1)));
    net.check(&[thing, big]);
    let created = net.peers[0].events.iter().filter(|event| matches!(event, ClientEvent::Created(_))).count();
    assert_eq!(created, 2);
    // An update of many packets; what is newer does not overtake it and is not lost behind it.
    net.server.set(big, BODY, body(50_000, 2)).unwrap();
    net.server.set(big, SMALL, 1_u64).unwrap();
    net.step();
    net.server.set(big, SMALL, 2_u64).unwrap();
    net.steps(8);
    net.check(&[thing, big]);
    let stats = net.server.connection_stats(net.peers[0].id).unwrap();
    assert_eq!((stats.transfers, stats.oversized), (2, 0));
    assert!(stats.parts_sent >= 110_000 / 1200 && stats.parts_sent <= 110_000 / 1100);
    assert_eq!(stats.properties_resent, 0);
    // Small changes of it are as small as ever.
    net.steps(4);
    net.server.set(big, SMALL, 3_u64).unwrap();
    net.step();
    assert!(net.bytes_sent(0) < 32);
    net.check(&[thing, big]);
}

/// Every pattern of losses of ten packets, with a change while the parts are on their way.
#[test]
fn every_loss_of_a_part_is_mended() {
    for pattern in 0..1 << 10_u32 {
        let mut net = with_big(ServerConfig::default(), 1);
        net.steps(2);
        let big = create(&mut net, BIG);
        net.server.set(big, BODY, body(4000, 1)).unwrap();
        let mut sent = 0;
        net.fate = Some(Box::new(move |_, _| {
            sent += 1;
            sent > 10 || pattern >> (sent - 1) & 1 == 0
        }));
        net.step();
        net.server.set(big, SMALL, 9_u64).unwrap();
        net.steps(2);
        net.server.set(big, BODY, body(3000, 2)).unwrap();
        net.steps(8);
        net.settle(45);
        assert_eq!(held(&net, big), Some(body(3000, 2)), "pattern {pattern:010b}");
        net.check(&[big]);
    }
}

/// Objects of all sizes come, change, leave, end with and without their last state; links lose a
/// third.
#[test]
fn any_life_of_large_objects_converges() {
    for seed in 0..24 {
        let mut net = with_big(ServerConfig::default(), 2);
        if seed % 3 == 0 {
            for peer in 0..2 {
                net.server.set_budget(net.peers[peer].id, Some((90_000.0, 9_000.0)));
            }
        }
        net.link = Link { loss: 0.3, duplicate: 0.1, reorder: 2, delay: 1 };
        let mut rng = Rng::new(seed);
        let mut objects: Vec<Handle> = Vec::new();
        for _ in 0..120 {
            match rng.below(8) {
                0 if objects.len() < 6 => {
                    let class = if rng.chance(0.3) { THING } else { BIG };
                    objects.push(create(&mut net, class));
                }
                1 if !objects.is_empty() => {
                    let at = rng.below(objects.len() as u64) as usize;
                    if rng.chance(0.3) {
                        let gone = objects.swap_remove(at);
                        net.server.destroy(gone, DestroyReason::Destroyed, rng.chance(0.5)).unwrap();
                    } else {
                        let filter = if rng.chance(0.5) { Filter::Always } else { Filter::Never };
                        net.server.set_filter(objects[at], filter).unwrap();
                    }
                }
                2..6 if !objects.is_empty() => {
                    let handle = objects[rng.below(objects.len() as u64) as usize];
                    let len = [10, 1100, 1180, 1300, 5000, 20_000][rng.below(6) as usize];
                    // Things have no such property, and shorter names.
                    if net.server.set(handle, BODY, body(len, rng.next_u32() as u8)).is_err() {
                        net.server.set(handle, HEALTH, rng.below(1000)).unwrap();
                    } else if rng.chance(0.5) {
                        net.server.set(handle, SMALL, rng.below(1000)).unwrap();
                    }
                }
                _ => {}
            }
            net.step();
        }
        net.settle(220);
        net.check(&objects);
    }
}

#[test]
fn the_last_state_of_a_large_object_arrives_before_its_end() {
    let mut net = with_big(ServerConfig::default(), 1);
    let big = create(&mut net, BIG);
    net.server.set(big, BODY, body(10, 1)).unwrap();
    net.steps(4);
    net.server.set(big, BODY, body(9000, 2)).unwrap();
    net.server.destroy(big, DestroyReason::TornOff, true).unwrap();
    net.peers[0].events.clear();
    net.link.loss = 0.5;
    net.steps(40);
    net.settle(20);
    let mask = 1 << BODY;
    let told = &net.peers[0].events;
    assert!(
        matches!(&told[..], [ClientEvent::Destroyed { handle, reason: DestroyReason::TornOff, .. }] if *handle == big)
            || matches!(&told[..], [ClientEvent::Updated { mask: changed, .. }, _] if changed & mask != 0),
        "{told:?}"
    );
    assert!(net.peers[0].client.is_empty());
    // Its index is free again.
    let next = create(&mut net, BIG);
    net.steps(6);
    assert_eq!(next.index(), big.index());
    net.check(&[next]);
}

/// A last state that no transfer holds is left out: properties, and elements of which there are
/// more than that.
#[test]
fn a_last_state_that_exceeds_the_limit_is_counted_and_holds_nothing_up() {
    let mut classes = classes();
    let bag = throng_replication::Keyed::new("bag", 900).field("item", Quantiser::UInt(32));
    let class = classes.register(Class::builder("keeper").keyed(bag).build().unwrap()).unwrap();
    let config = ServerConfig { transfer_bytes_max: 2000, ..ServerConfig::default() };
    let mut net = Net::of(classes, config, 1);
    let (keeper, thing) = (create(&mut net, class), create(&mut net, THING));
    net.steps(5);
    for key in 0..900 {
        net.server.set_element(keeper, 0, key, &[Value::UInt(7)]).unwrap();
    }
    net.server.destroy(keeper, DestroyReason::Destroyed, true).unwrap();
    net.server.set(thing, HEALTH, 5_u64).unwrap();
    net.steps(6);
    net.check(&[keeper, thing]);
    assert_eq!(net.server.total_stats().oversized, 1);
}

#[test]
fn a_budget_is_kept_and_others_move_on() {
    let mut net = with_big(ServerConfig::default(), 1);
    let thing = create(&mut net, THING);
    net.steps(4);
    // 1,000 bytes a frame.
    net.server.set_budget(net.peers[0].id, Some((30_303.0, 2000.0)));
    let big = create(&mut net, BIG);
    net.server.set(big, BODY, body(20_000, 1)).unwrap();
    for frame in 0..60_u64 {
        net.server.set(thing, HEALTH, frame).unwrap();
        net.step();
        let spent = net.bytes_sent(0) + 28 * net.peers[0].sent.len();
        assert!(spent <= 2000, "frame {frame}: {spent}");
        assert_eq!(net.value(0, thing, HEALTH), frame);
    }
    net.check(&[thing, big]);
}

/// The update is given up when its object leaves the scope, and is older than everything in flight.
#[test]
fn an_update_in_parts_of_a_kept_object_that_left_meanwhile_arrives() {
    let mut classes = classes();
    let class = Class::builder("kept").property(Property::new("small", Quantiser::UInt(16)));
    let class = class.property(Property::new("body", Quantiser::Blob(65_536))).retain(true).build();
    let class = classes.register(class.unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let kept = create(&mut net, class);
    net.steps(6);
    net.server.set(kept, BODY, body(20_000, 1)).unwrap();
    net.link.loss = 1.0;
    net.steps(60);
    net.server.set_filter(kept, Filter::Never).unwrap();
    net.steps(6);
    net.settle(10);
    assert_eq!(held(&net, kept), Some(Vec::new()), "it has the state of before");
    net.server.set_filter(kept, Filter::Always).unwrap();
    net.settle(20);
    assert_eq!(held(&net, kept), Some(body(20_000, 1)));
}

// ------------------------------------------------------------------------------------------- bytes
// from elsewhere

fn classes_of_keyed() -> Classes {
    let mut classes = Classes::new();
    let bag = throng_replication::Keyed::new("bag", 2).field("item", Quantiser::UInt(8));
    classes.register(Class::builder("keeper").keyed(bag).build().unwrap()).unwrap();
    classes
}

fn packet(seq: u16, sections: &[&[u8]]) -> Vec<u8> {
    let header =
        throng_replication::wire::Header { seq, ack: u16::MAX, ack_bits: 0, frame: u32::from(seq) + 1 };
    [&header.to_bytes()[..], &sections.concat()].concat()
}

/// A creation of object 1 of class 0, which has no properties.
const CREATE: &[u8] = &[2, 1, 1, 7, 0, 0, 0, 0, 0];

/// An item on the array of object 1 that adds keys of two bytes.
fn adding(keys: core::ops::Range<u16>) -> Vec<u8> {
    let count = keys.len() as u8;
    let ops: Vec<u8> = keys.flat_map(|key| [key as u8 | 0x80, (key >> 7) as u8, 0b01, 0]).collect();
    let len = (ops.len() as u16 + 1).to_le_bytes();
    [&[1, 0, len[0], len[1], count][..], &ops].concat()
}

/// Items of one packet on one array count together: each alone keeps the receiver's limit, 264
/// elements of an array of two, both do not.
#[test]
fn two_items_do_not_pass_the_limit_of_an_array_together() {
    let mut client = Client::new(ClientConfig::default(), &classes_of_keyed());
    client.receive(&packet(0, &[CREATE, &[9, 2], &adding(200..400), &adding(400..464)])).unwrap();
    let has = |client: &Client, keys: [u32; 2]| {
        let held = client.replica(1).unwrap().element_keys(0).collect::<Vec<_>>();
        (held.len(), keys.map(|key| held.contains(&key)))
    };
    assert_eq!(has(&client, [200, 500]), (264, [true, false]));
    // Key 200 goes and 500 comes, then 200 comes back: one too many.
    let leave = [1, 0, 4, 0, 1, 200, 1, 0];
    let more = packet(1, &[&[9, 3], &leave, &adding(500..501), &adding(200..201)]);
    assert!(client.receive(&more).is_err());
    assert_eq!(has(&client, [200, 500]), (264, [true, false]));
    let same = packet(1, &[&[9, 2], &leave, &adding(500..501)]);
    client.receive(&same).unwrap();
    assert_eq!(has(&client, [200, 500]), (264, [false, true]));
    // The same for an object that the packet creates.
    let fresh = packet(2, &[CREATE, &[9, 2], &adding(200..400), &adding(400..465)]);
    assert!(client.receive(&fresh).is_err());
}

/// A part of transfer `id` of object 1.
fn part(id: u8, part: u8, parts: u8, bytes: &[u8]) -> Vec<u8> {
    [&[7, 1, 1, id, 0, part, 0, parts, 0, bytes.len() as u8, 0][..], bytes].concat()
}

#[test]
fn parts_that_are_wrong_change_nothing() {
    let config = ClientConfig { transfer_bytes_max: 40, ..ClientConfig::default() };
    let mut client = Client::new(config, &classes_of_keyed());
    let (first, second) = CREATE.split_at(4);
    let refused: Vec<Vec<u8>> = vec![
        // Of two transfers, number beyond the count, empty, beyond the limit.
        [part(1, 0, 2, first), part(2, 1, 2, second)].concat(),
        part(1, 2, 2, first),
        part(1, 0, 2, &[]),
        part(1, 0, 2, &[0; 41]),
        // Complete, and not what parts may make: another part, a call, an unknown class, the end
        // inside an item.
        part(1, 0, 1, &part(2, 0, 1, CREATE)),
        part(1, 0, 1, &[4, 1, 1, 6, 0, 0]),
        part(1, 0, 1, &[2, 1, 1, 7, 0, 0, 0, 9, 0]),
        part(1, 0, 1, first),
        part(1, 0, 1, &[0x83, 0, 2, 0, 0, 0]),
    ];
    for sections in &refused {
        assert!(client.receive(&packet(0, &[sections])).is_err(), "{sections:02x?}");
        assert!(client.is_empty() && client.poll_event().is_none());
    }
    // In any order, twice, and in two packets; a part after the end means nothing.
    client.receive(&packet(0, &[&part(1, 1, 2, second), &part(1, 1, 2, second)])).unwrap();
    assert!(client.is_empty());
    client.receive(&packet(1, &[&part(1, 0, 2, first)])).unwrap();
    assert_eq!(client.len(), 1);
    client.receive(&packet(2, &[&part(1, 0, 2, first)])).unwrap();
    let events: Vec<_> = core::iter::from_fn(|| client.poll_event()).collect();
    assert!(matches!(events[..], [ClientEvent::Created(_)]), "{events:?}");
    // Another transfer ends the one before.
    client.receive(&packet(3, &[&part(5, 0, 2, first)])).unwrap();
    client.receive(&packet(4, &[&part(6, 1, 2, second)])).unwrap();
    client.receive(&packet(5, &[&part(5, 1, 2, second)])).unwrap();
    assert_eq!(client.poll_event(), None);
}

/// A long packet held more parts than a receiver takes: it was refused for ever.
#[test]
fn an_object_goes_in_parts_through_the_longest_packets_under_a_budget() {
    let mut net = with_big(ServerConfig { packet_bytes_max: 65_535, ..ServerConfig::default() }, 1);
    net.server.set_budget(net.peers[0].id, Some((1e7, 1e7)));
    let big = create(&mut net, BIG);
    net.server.set(big, BODY, body(65_536, 1)).unwrap();
    net.steps(10);
    net.check(&[big]);
}

/// Creations, updates and calls longer than the burst of the budget, and all behind them, waited
/// for ever, and no count showed it.
#[test]
fn objects_and_calls_beyond_the_burst_of_a_budget_go_in_parts() {
    for (packet_bytes_max, rate, burst) in [
        (1200, 30_000.0, 500.0),
        (1200, 30_000.0, 200.0),
        (1200, 30_000.0, 0.0),
        (1200, 30_000.0, f64::NAN),
        (9000, 32_000.0, 3200.0),
    ] {
        let what = format!("burst {burst}");
        let config = ServerConfig { packet_bytes_max, ..ServerConfig::default() };
        let (mut net, least) = (with_big(config, 1), 28.0 + 64.0);
        let id = net.peers[0].id;
        net.server.set_budget(id, Some((rate, burst)));
        let thing = create(&mut net, THING);
        net.steps(3);
        let big = create(&mut net, BIG);
        net.server.set(big, BODY, body(packet_bytes_max / 2, 1)).unwrap();
        let later = create(&mut net, THING);
        let spends = |net: &mut Net| {
            for _ in 0..400 {
                net.step();
                let spent = net.bytes_sent(0) + 28 * net.peers[0].sent.len();
                assert!(spent as f64 <= burst.max(least), "{what}: {spent}");
            }
        };
        spends(&mut net);
        net.check(&[thing, big, later]);
        net.server.set(big, BODY, body(packet_bytes_max / 2, 2)).unwrap();
        net.server.set(thing, HEALTH, 9_u64).unwrap();
        net.server.attach(id, thing, 1, &body(2000, 3), true).unwrap();
        net.server.attach(id, thing, 2, b"four", true).unwrap();
        spends(&mut net);
        net.check(&[thing, big, later]);
        let calls = net.peers[0].events.iter().filter_map(|event| match event {
            ClientEvent::Attachment(call) => Some((call.method, call.bytes.len())),
            _ => None,
        });
        assert_eq!(calls.collect::<Vec<_>>(), [(1, 2000), (2, 4)], "{what}");
        // The last state of an object as well.
        net.server.set(big, BODY, body(packet_bytes_max / 2, 4)).unwrap();
        net.server.destroy(big, DestroyReason::Destroyed, true).unwrap();
        spends(&mut net);
        net.check(&[thing, later]);
    }
}

/// Transfers and calls that began under a larger burst go on under a smaller one.
#[test]
fn a_burst_that_shrinks_meanwhile_stops_nothing() {
    let mut net = with_big(ServerConfig::default(), 1);
    let id = net.peers[0].id;
    let thing = create(&mut net, THING);
    net.steps(4);
    let big = create(&mut net, BIG);
    net.server.set(big, BODY, body(20_000, 1)).unwrap();
    net.server.attach(id, thing, 1, &body(9000, 3), true).unwrap();
    net.server.attach(id, thing, 2, &body(900, 3), false).unwrap();
    net.server.set_budget(id, Some((30_000.0, 3000.0)));
    net.step();
    net.server.set_budget(id, Some((30_000.0, 150.0)));
    net.steps(600);
    net.check(&[thing, big]);
    let calls = net.peers[0].events.iter().filter(|event| matches!(event, ClientEvent::Attachment(_)));
    assert_eq!(calls.count(), 1, "the unreliable one fits no packet any more");
    assert_eq!(net.server.connection_stats(id).unwrap().calls_dropped, 1);
}

/// Other properties of the object, and calls on it, waited until the value was shorter.
#[test]
fn a_property_that_no_transfer_holds_is_refused() {
    let config = ServerConfig { transfer_bytes_max: 2000, ..ServerConfig::default() };
    let mut net = with_big(config, 1);
    let big = create(&mut net, BIG);
    net.server.set(big, BODY, body(1500, 1)).unwrap();
    net.steps(6);
    let refused = net.server.set(big, BODY, body(3000, 1));
    assert!(matches!(refused, Err(ObjectError::TooLong { property: BODY, .. })), "{refused:?}");
    net.server.set(big, SMALL, 7_u64).unwrap();
    net.server.attach(net.peers[0].id, big, 1, b"call", true).unwrap();
    net.steps(6);
    net.check(&[big]);
    assert!(net.peers[0].events.iter().any(|event| matches!(event, ClientEvent::Attachment(_))));
    // The longest accepted value arrives.
    let longest = (0..2000).rev().find(|len| net.server.set(big, BODY, body(*len, 2)).is_ok()).unwrap();
    assert!(longest > 1800, "{longest}");
    let late = net.join();
    net.steps(8);
    net.check(&[big]);
    assert_eq!(net.value(late, big, SMALL), 7);
    assert_eq!(net.server.total_stats().oversized, 0);
}

/// Updates of every frame took what a creation, a part or a call would have needed, for ever.
#[test]
fn creations_and_calls_beyond_the_income_of_a_frame_arrive() {
    let mut net = with_big(ServerConfig::default(), 1);
    let id = net.peers[0].id;
    let things: Vec<Handle> = (0..30).map(|_| create(&mut net, THING)).collect();
    net.steps(4);
    // A frame earns 99 bytes, which nine updates take, a part 300.
    net.server.set_budget(id, Some((3000.0, 1500.0)));
    let change = |net: &mut Net, frame: u64| {
        things.iter().for_each(|thing| net.server.set(*thing, SCORE, frame).unwrap());
        net.step();
    };
    (1..30).for_each(|frame| change(&mut net, frame));
    let (big, small) = (create(&mut net, BIG), create(&mut net, BIG));
    net.server.set(big, BODY, body(5000, 1)).unwrap();
    net.server.set(small, BODY, body(200, 2)).unwrap();
    net.server.attach(id, things[0], 1, &body(400, 3), true).unwrap();
    net.peers[0].events.clear();
    (30..400).for_each(|frame| change(&mut net, frame));
    let count = |is: fn(&ClientEvent) -> bool| net.peers[0].events.iter().filter(|event| is(event)).count();
    assert_eq!(count(|event| matches!(event, ClientEvent::Created(_))), 2);
    assert_eq!(count(|event| matches!(event, ClientEvent::Attachment(_))), 1);
    assert!(count(|event| matches!(event, ClientEvent::Updated { .. })) > 500, "updates went on");
    assert!(net.server.connection_stats(id).unwrap().budget_saturated_frames > 100);
}
