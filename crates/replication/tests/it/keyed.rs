//! Spec §17.4 and §26.16: keyed arrays.

use crate::harness;
use std::collections::BTreeMap;

use harness::*;
use throng_replication::{
    Class, ClassError, ClassId, ClientEvent, Condition, ConnId, DestroyReason, ElementError, Filter, Handle,
    Keyed, Quantiser, Replica, ServerConfig, Value, View,
};
use throng_stdx::Rng;

/// Array 0: item and count, for everybody. Array 1: for the owner.
fn with_bag(config: ServerConfig, peers: usize) -> (Net, ClassId) {
    let mut classes = classes();
    let bag = |name: &str| {
        Keyed::new(name, 20_000).field("item", Quantiser::UInt(16)).field("count", Quantiser::UInt(10))
    };
    let class =
        Class::builder("chest").keyed(bag("open")).keyed(bag("secret").condition(Condition::OwnerOnly));
    let class = classes.register(class.build().unwrap()).unwrap();
    (Net::of(classes, config, peers), class)
}

fn values(item: u64, count: u64) -> [Value; 2] {
    [Value::UInt(item), Value::UInt(count)]
}

type Image = BTreeMap<u32, Vec<Value>>;

fn on_server(net: &Net, thing: Handle, array: usize) -> Image {
    let keys = net.server.element_keys(thing, array);
    keys.map(|key| (key, net.server.element(thing, array, key).unwrap())).collect()
}

fn on_client(net: &Net, peer: usize, thing: Handle, array: usize) -> Image {
    let replica = net.peers[peer].client.replica(thing.index()).unwrap();
    replica.element_keys(array).map(|key| (key, replica.element(array, key).unwrap())).collect()
}

/// Frames until everything of large arrays has gone out.
fn seen(net: &mut Net, thing: Handle) {
    net.server.set_filter(thing, Filter::Always).unwrap();
}

#[test]
fn elements_come_change_and_go() {
    let (mut net, class) = with_bag(ServerConfig::default(), 2);
    let chest = net.server.create(class).unwrap();
    seen(&mut net, chest);
    for key in [7, 3, 4_000_000_000] {
        net.server.set_element(chest, 0, key, &values(u64::from(key) % 100, 1)).unwrap();
    }
    net.settle(5);
    for peer in 0..2 {
        assert_eq!(on_client(&net, peer, chest, 0), on_server(&net, chest, 0));
    }
    net.peers[0].events.clear();
    net.server.set_element(chest, 0, 3, &values(3, 9)).unwrap();
    assert_eq!(net.server.remove_element(chest, 0, 7), Ok(true));
    assert_eq!(net.server.remove_element(chest, 0, 7), Ok(false));
    net.settle(3);
    assert_eq!(on_client(&net, 1, chest, 0), on_server(&net, chest, 0));
    assert_eq!(net.peers[0].events, [ClientEvent::Elements { handle: chest, array: 0 }]);
    // The same values are no change.
    let before = net.server.total_stats().elements_sent;
    net.server.set_element(chest, 0, 3, &values(3, 9)).unwrap();
    net.settle(3);
    assert_eq!(net.server.total_stats().elements_sent, before);
}

#[test]
fn one_change_among_ten_thousand_is_a_few_bytes() {
    let (mut net, class) = with_bag(ServerConfig::default(), 1);
    let chest = net.server.create(class).unwrap();
    seen(&mut net, chest);
    for key in 0..10_000 {
        net.server.set_element(chest, 0, key, &values(u64::from(key), 1)).unwrap();
    }
    net.settle(20);
    // More packets than one acknowledgement speaks of, and still nothing counts as lost.
    assert_eq!(net.server.total_stats().packets_lost, 0);
    assert_eq!(on_client(&net, 0, chest, 0), on_server(&net, chest, 0));
    // What acknowledgements owe each other has been said.
    net.settle(40);
    net.server.set_element(chest, 0, 5000, &values(5000, 77)).unwrap();
    net.step();
    assert!(net.bytes_sent(0) > 16 && net.bytes_sent(0) < 32 + 16, "{} bytes", net.bytes_sent(0));
    net.settle(3);
    assert_eq!(on_client(&net, 0, chest, 0)[&5000], values(5000, 77));
    // Time is the business of the example `limits` of replication-bench; counted here is work: one
    // operation for one change.
    let before = net.server.total_stats().elements_sent;
    net.server.set_element(chest, 0, 1, &values(1, 2)).unwrap();
    net.settle(3);
    assert_eq!(net.server.total_stats().elements_sent, before + 1);
}

#[test]
fn sets_converge_over_any_link() {
    for seed in 0..12 {
        let config = ServerConfig { packet_bytes_max: 700, ..ServerConfig::default() };
        let (mut net, class) = with_bag(config, 3);
        net.rng = Rng::new(seed);
        net.link = Link { loss: [0.05, 0.3][seed as usize % 2], duplicate: 0.1, reorder: 5, delay: 2 };
        let mut rng = Rng::new(seed + 100);
        let mut chests: Vec<Handle> = (0..4).map(|_| net.server.create(class).unwrap()).collect();
        for chest in &chests {
            seen(&mut net, *chest);
        }
        for frame in 0..200_u64 {
            for _ in 0..rng.below(8) {
                let (chest, key) = (chests[rng.below(4) as usize], rng.below(60) as u32);
                if rng.chance(0.4) {
                    net.server.remove_element(chest, 0, key).unwrap();
                } else {
                    net.server.set_element(chest, 0, key, &values(rng.below(9), frame)).unwrap();
                }
            }
            if frame == 100 {
                // Out of sight and back: everything begins anew.
                net.server.set_filter(chests[0], throng_replication::Filter::Never).unwrap();
                net.server.destroy(chests[3], throng_replication::DestroyReason::Destroyed, false).unwrap();
                chests[3] = net.server.create(class).unwrap();
                seen(&mut net, chests[3]);
            }
            if frame == 120 {
                seen(&mut net, chests[0]);
            }
            net.step();
        }
        net.settle(40);
        for chest in &chests {
            for peer in 0..3 {
                assert_eq!(on_client(&net, peer, *chest, 0), on_server(&net, *chest, 0), "seed {seed}");
            }
        }
    }
}

#[test]
fn an_array_may_be_the_owners_alone() {
    let (mut net, class) = with_bag(ServerConfig::default(), 2);
    let chest = net.server.create(class).unwrap();
    seen(&mut net, chest);
    net.server.set_owner(chest, Some(net.peers[0].id)).unwrap();
    net.server.set_element(chest, 1, 1, &values(1, 1)).unwrap();
    net.settle(5);
    let counts = |net: &Net| [0, 1].map(|peer| on_client(net, peer, chest, 1).len());
    assert_eq!(counts(&net), [1, 0]);
    // The next owner gets what is hours old; the former one keeps what it had.
    net.server.set_owner(chest, Some(net.peers[1].id)).unwrap();
    net.settle(5);
    assert_eq!(counts(&net), [1, 1]);
    net.server.set_element(chest, 1, 2, &values(2, 2)).unwrap();
    net.settle(5);
    assert_eq!(counts(&net), [1, 2]);
}

#[test]
fn a_sleeping_object_keeps_its_elements() {
    let (mut net, class) = with_bag(ServerConfig::default(), 1);
    let chest = net.server.create(class).unwrap();
    seen(&mut net, chest);
    net.settle(5);
    net.server.set_dormant(chest, true).unwrap();
    net.server.set_element(chest, 0, 1, &values(1, 1)).unwrap();
    net.settle(5);
    assert!(on_client(&net, 0, chest, 0).is_empty());
    net.server.set_dormant(chest, false).unwrap();
    net.settle(5);
    assert_eq!(on_client(&net, 0, chest, 0).len(), 1);
}

#[test]
fn large_arrays_leave_room_for_others_under_a_budget() {
    let (mut net, class) = with_bag(ServerConfig::default(), 1);
    let id: ConnId = net.peers[0].id;
    net.server.set_views(id, &[View::default()]);
    net.server.set_budget(id, Some((30_000.0, 3000.0)));
    let (chest, thing) = (net.server.create(class).unwrap(), net.server.create(THING).unwrap());
    seen(&mut net, chest);
    net.settle(5);
    for key in 0..5000 {
        net.server.set_element(chest, 0, key, &values(u64::from(key), 1)).unwrap();
    }
    let mut updates = 0;
    for frame in 0..30_u32 {
        net.server.set(thing, HEALTH, frame + 1).unwrap();
        net.step();
        let events = net.peers[0].events.drain(..);
        updates += events.filter(|event| matches!(event, ClientEvent::Updated { .. })).count();
        assert!(net.bytes_sent(0) <= 3000, "{}", net.bytes_sent(0));
    }
    assert!(updates > 20, "{updates}");
    net.settle(100);
    assert_eq!(on_client(&net, 0, chest, 0).len(), 5000);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut net, class) = with_bag(ServerConfig::default(), 1);
    let (chest, thing) = (net.server.create(class).unwrap(), net.server.create(THING).unwrap());
    let set = |net: &mut Net, thing, array, values: &[Value]| net.server.set_element(thing, array, 1, values);
    assert_eq!(set(&mut net, chest, 0, &values(1, 1)), Ok(()));
    assert_eq!(set(&mut net, chest, 2, &values(1, 1)), Err(ElementError::Unknown));
    assert_eq!(set(&mut net, thing, 0, &values(1, 1)), Err(ElementError::Unknown));
    assert!(matches!(set(&mut net, chest, 0, &values(1, 1)[..1]), Err(ElementError::Value(_))));
    let text = [Value::UInt(1), Value::Bytes(vec![1])];
    assert!(matches!(set(&mut net, chest, 0, &text), Err(ElementError::Value(_))));
    let nested = Keyed::new("bad", 4).field("bytes", Quantiser::Blob(4));
    let refused = Class::builder("bad").keyed(nested).build();
    assert!(matches!(refused, Err(ClassError::Quantiser { .. })), "{refused:?}");
    let hash = |max| Class::builder("c").keyed(Keyed::new("k", max)).build().unwrap().protocol_hash();
    assert!(hash(1) != hash(2) && hash(1) == hash(1));
}

/// An item of operations is no longer than a packet has room.
#[test]
fn elements_arrive_in_packets_of_any_length() {
    for packet_bytes_max in [100, 150, 200, 300, 450] {
        let (mut net, class) = with_bag(ServerConfig { packet_bytes_max, ..ServerConfig::default() }, 1);
        let chest = net.server.create(class).unwrap();
        seen(&mut net, chest);
        for key in 0..200 {
            net.server.set_element(chest, 0, key, &values(u64::from(key), 1)).unwrap();
        }
        net.settle(40);
        let (held, wanted) = (on_client(&net, 0, chest, 0), on_server(&net, chest, 0));
        assert_eq!(held, wanted, "packets of {packet_bytes_max} bytes");
    }
}

/// Every element needs a text that the receiver lacks. Long texts exceed a packet by themselves.
#[test]
fn elements_with_texts_arrive_in_packets_of_any_length() {
    for (packet_bytes_max, length, count) in
        [(1200, 9, 300), (1200, 250, 60), (200, 9, 300), (80, 9, 100), (64, 9, 100), (64, 100, 10)]
    {
        let mut classes = classes();
        let mut labels = Keyed::new("labels", 300);
        // More fields than a packet holds texts.
        for field in 0..6 {
            labels = labels.field(format!("label {field}"), Quantiser::Token(field));
        }
        let class = Class::builder("shelf").keyed(labels);
        let class = classes.register(class.build().unwrap()).unwrap();
        let mut net = Net::of(classes, ServerConfig { packet_bytes_max, ..ServerConfig::default() }, 1);
        let shelf = net.server.create(class).unwrap();
        seen(&mut net, shelf);
        net.settle(3);
        for key in 0..count {
            let text = |field: u32| format!("{:0>length$}", key * 6 + field);
            let fields = if key % 10 == 0 { 6 } else { 1 };
            let values = (0..6).map(|field| match field < fields {
                true => Value::Token(net.server.intern(field as u8, &text(field)).unwrap()),
                false => Value::Token(0),
            });
            let values: Vec<Value> = values.collect();
            net.server.set_element(shelf, 0, key, &values).unwrap();
        }
        let what = format!("packets of {packet_bytes_max} bytes, texts of {length}");
        net.settle(150);
        assert_eq!(on_client(&net, 0, shelf, 0), on_server(&net, shelf, 0), "{what}");
        // A client that joins later lacks everything at once.
        net.join();
        net.settle(150);
        for peer in 0..2 {
            let held = on_client(&net, peer, shelf, 0);
            assert_eq!(held, on_server(&net, shelf, 0), "{what}, peer {peer}");
            for (field, value) in held.values().flat_map(|values| values.iter().enumerate()) {
                let Value::Token(id) = value else { panic!("{value:?}") };
                let text = net.peers[peer].client.token(field as u8, *id);
                assert!(*id == 0 || text.is_some_and(|text| text.len() == length), "{what}, peer {peer}");
            }
        }
    }
}

/// Elements from before an object fell asleep are sent, also after losses; those that are set in
/// its sleep wait for a flush, or for its waking.
#[test]
fn elements_from_before_the_sleep_and_flushed_ones_arrive() {
    let cases = [(true, false), (true, true), (false, false), (false, true)];
    for (same_frame, lost) in cases {
        let what = format!("asleep in the same frame: {same_frame}, lost: {lost}");
        let (mut net, class) = with_bag(ServerConfig::default(), 1);
        let chest = net.server.create(class).unwrap();
        seen(&mut net, chest);
        net.settle(5);
        for key in 0..3 {
            net.server.set_element(chest, 0, key, &values(9, 1)).unwrap();
        }
        if same_frame {
            net.server.set_dormant(chest, true).unwrap();
        }
        net.link.loss = if lost { 1.0 } else { 0.0 };
        net.step();
        net.server.set_dormant(chest, true).unwrap();
        net.settle(60);
        let keys = |net: &Net| on_client(net, 0, chest, 0).into_keys().collect::<Vec<u32>>();
        assert_eq!(keys(&net), [0, 1, 2], "{what}");
        // A sleeper's changes wait, for a client that joins just as well.
        net.server.set_element(chest, 0, 3, &values(9, 1)).unwrap();
        net.server.set_element(chest, 0, 1, &values(8, 8)).unwrap();
        net.settle(10);
        let late = net.join();
        net.settle(10);
        for peer in [0, late] {
            let held = on_client(&net, peer, chest, 0);
            assert!(held.len() == 3 && held.values().all(|held| *held == values(9, 1)), "{what}: {held:?}");
        }
        // A flush sends them, those of its frame too, also after a loss.
        net.server.flush_dormant(chest).unwrap();
        net.server.set_element(chest, 0, 4, &values(9, 1)).unwrap();
        net.link.loss = if lost { 1.0 } else { 0.0 };
        net.step();
        net.server.set_element(chest, 0, 5, &values(9, 1)).unwrap();
        net.settle(60);
        assert_eq!(keys(&net), [0, 1, 2, 3, 4], "{what}: flushed");
        net.server.set_dormant(chest, false).unwrap();
        net.settle(10);
        assert_eq!(keys(&net), [0, 1, 2, 3, 4, 5], "{what}: woken");
    }
}

/// Elements of array 0 in the last state.
fn last_elements(last: &Replica) -> Image {
    last.element_keys(0).map(|key| (key, last.element(0, key).unwrap())).collect()
}

/// The end of an object that is flushed carries its elements, also after losses; one that is torn
/// off is always flushed.
#[test]
fn the_end_carries_the_last_elements() {
    let ends =
        [(DestroyReason::Destroyed, true), (DestroyReason::TornOff, true), (DestroyReason::TornOff, false)];
    for ((reason, flush), many) in ends.into_iter().flat_map(|end| [(end, 3), (end, 900)]) {
        for (lost, dormant) in (0..4).flat_map(|lost| [(lost, false), (lost, true)]) {
            let what = format!("{reason:?}, flush {flush}, {many} elements, {lost} frames lost, {dormant}");
            let (mut net, class) = with_bag(ServerConfig::default(), 1);
            let chest = net.server.create(class).unwrap();
            seen(&mut net, chest);
            for key in 0..many {
                net.server.set_element(chest, 0, key, &values(1, 1)).unwrap();
            }
            net.settle(8);
            // Changes in flight when the end comes, and changes of its frame.
            net.link.loss = 1.0;
            net.server.set_element(chest, 0, 1, &values(7, 7)).unwrap();
            net.step();
            net.server.set_dormant(chest, dormant).unwrap();
            net.server.remove_element(chest, 0, 2).unwrap();
            for key in 2000..2000 + many {
                net.server.set_element(chest, 0, key, &values(2, 2)).unwrap();
            }
            let wanted = on_server(&net, chest, 0);
            net.server.destroy(chest, reason, flush).unwrap();
            net.steps(lost);
            net.settle(90);
            let lasts = net.peers[0].events.iter().filter_map(|event| match event {
                ClientEvent::Destroyed { handle, last, .. } if *handle == chest => Some(last_elements(last)),
                _ => None,
            });
            assert_eq!(lasts.collect::<Vec<_>>(), [wanted], "{what}");
        }
    }
}

/// The end of an object that had just come back left out the elements that were added meanwhile.
#[test]
fn the_end_of_an_object_that_just_came_back_carries_its_elements() {
    let (mut net, class) = with_bag(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let chest = net.server.create(class).unwrap();
    seen(&mut net, chest);
    net.server.set_element(chest, 0, 1, &values(1, 1)).unwrap();
    net.settle(6);
    // Neither its end nor its new creation finds room: what was saved up is spent.
    net.server.set_budget(net.peers[0].id, Some((0.0, 0.0)));
    net.server.set_element(chest, 0, 1, &values(1, 3)).unwrap();
    net.step();
    for filter in [Filter::Never, Filter::Always] {
        net.server.set_filter(chest, filter).unwrap();
        net.step();
    }
    net.server.set_element(chest, 0, 2, &values(2, 2)).unwrap();
    let wanted = on_server(&net, chest, 0);
    net.server.destroy(chest, DestroyReason::Destroyed, true).unwrap();
    net.server.set_budget(net.peers[0].id, None);
    net.settle(6);
    let lasts = net.peers[0].events.iter().filter_map(|event| match event {
        ClientEvent::Destroyed { last, .. } => Some(last_elements(last)),
        _ => None,
    });
    assert_eq!(lasts.collect::<Vec<_>>(), [wanted]);
}

/// The receiver counted as many elements as the class allows: it refused the packets of a server
/// that removed and added keys of a full array, because additions can come before removals.
#[test]
fn the_keys_of_a_full_array_change_over_any_link() {
    let mut classes = classes();
    let bag = Keyed::new("bag", 2).field("item", Quantiser::UInt(16));
    let class = classes.register(Class::builder("pocket").keyed(bag).build().unwrap()).unwrap();
    let mut net = Net::of(classes, ServerConfig::default(), 1);
    let pocket = net.server.create(class).unwrap();
    seen(&mut net, pocket);
    let set = |net: &mut Net, key: u32| net.server.set_element(pocket, 0, key, &[Value::UInt(7)]);
    for key in [1, 2] {
        set(&mut net, key).unwrap();
    }
    net.settle(6);
    // Key 1 comes again after all others, so nothing says that it went.
    for (gone, new) in [(1, 3), (2, 1)] {
        assert_eq!(net.server.remove_element(pocket, 0, gone), Ok(true));
        set(&mut net, new).unwrap();
    }
    net.settle(6);
    assert_eq!(on_client(&net, 0, pocket, 0), on_server(&net, pocket, 0));
    net.link = Link { loss: 0.2, duplicate: 0.1, reorder: 3, delay: 2 };
    for _ in 0..500 {
        let key = net.rng.below(20) as u32;
        if set(&mut net, key).is_err() {
            let keys: Vec<u32> = net.server.element_keys(pocket, 0).collect();
            let gone = keys[net.rng.below(2) as usize];
            net.server.remove_element(pocket, 0, gone).unwrap();
        }
        net.step();
    }
    net.settle(20);
    assert_eq!(on_client(&net, 0, pocket, 0), on_server(&net, pocket, 0));
}

/// Properties stayed, elements came and changed.
#[test]
fn a_temporary_class_sends_no_later_elements() {
    let mut classes = classes();
    let bag = Keyed::new("bag", 900).field("item", Quantiser::UInt(16));
    let class = Class::builder("spark").keyed(bag).temporary(true).build().unwrap();
    let class = classes.register(class).unwrap();
    // The first two elements go in packets of their own, and get lost.
    for lost in [0, 1, 2] {
        let mut net = Net::of(classes.clone(), ServerConfig::default(), 1);
        let spark = net.server.create(class).unwrap();
        seen(&mut net, spark);
        for key in 0..600 {
            net.server.set_element(spark, 0, key, &[Value::UInt(1)]).unwrap();
        }
        let mut sent = 0;
        net.fate = Some(Box::new(move |_, _| {
            sent += 1;
            sent > lost
        }));
        net.steps(12);
        let first = on_server(&net, spark, 0);
        assert_eq!(on_client(&net, 0, spark, 0), first);
        net.server.set_element(spark, 0, 1, &[Value::UInt(7)]).unwrap();
        net.server.set_element(spark, 0, 700, &[Value::UInt(7)]).unwrap();
        net.server.remove_element(spark, 0, 2).unwrap();
        net.server.set_dormant(spark, true).unwrap();
        net.settle(12);
        assert_eq!(on_client(&net, 0, spark, 0), first);
        // A client that joins gets those of its own creation.
        let late = net.join();
        net.settle(12);
        assert_eq!(on_client(&net, late, spark, 0), on_server(&net, spark, 0));
    }
}
