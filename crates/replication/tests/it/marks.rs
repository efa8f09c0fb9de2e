//! Spec §4: polling, force, marks from other threads, forgotten marks; and §20: what is counted.

use crate::harness;
use harness::*;
use throng_replication::{Adaptive, Condition, Event, Handle, ServerConfig};

/// Sets health in the live block, without a mark.
fn quietly(net: &mut Net, thing: Handle, value: u32) {
    let word = net.classes.get(THING).unwrap().layout(HEALTH).2;
    net.server.live_mut(thing).unwrap()[word] = value;
}

#[test]
fn polled_objects_are_compared_in_turn() {
    let mut net = Net::new(1);
    let things: Vec<Handle> = (0..10).map(|_| net.server.create(THING).unwrap()).collect();
    net.settle(5);
    for thing in &things {
        net.server.set_poll(*thing, Some(5)).unwrap();
    }
    // A change that nobody marks is found within the period, a fifth of the objects in each frame.
    let mut found = Vec::new();
    for frame in 0..10_u32 {
        let before = net.server.stats().objects_dirty;
        if frame % 5 == 0 {
            things.iter().for_each(|thing| quietly(&mut net, *thing, 100 + frame));
        }
        net.step();
        found.push(net.server.stats().objects_dirty - before);
    }
    assert_eq!(found, [2; 10]);
    net.settle(5);
    net.check(&things);
    assert_eq!(net.value(0, things[0], HEALTH), 105);
    // What is polled no more, or has ended, is left alone.
    net.server.set_poll(things[0], None).unwrap();
    net.server.destroy(things[1], throng_replication::DestroyReason::Destroyed, false).unwrap();
    quietly(&mut net, things[0], 7);
    net.settle(10);
    assert_eq!(net.value(0, things[0], HEALTH), 105);
}

#[test]
fn force_brings_root_parts_and_dependents() {
    let mut net = Net::new(1);
    let root = net.server.create(THING).unwrap();
    let part = net.server.create_part(root, THING).unwrap();
    let beside = net.server.create(THING).unwrap();
    net.server.add_dependent(root, beside, throng_replication::Hint::After).unwrap();
    net.settle(5);
    for thing in [root, part, beside] {
        quietly(&mut net, thing, 33);
    }
    net.server.force_update(part).unwrap();
    net.step();
    net.settle(2);
    for thing in [root, part, beside] {
        assert_eq!(net.value(0, thing, HEALTH), 33);
    }
}

#[test]
fn marks_come_from_any_thread_and_none_is_lost() {
    let mut net = Net::new(1);
    let things: Vec<Handle> = (0..200).map(|_| net.server.create(THING).unwrap()).collect();
    let gone = net.server.create(THING).unwrap();
    net.settle(5);
    net.server.destroy(gone, throng_replication::DestroyReason::Destroyed, false).unwrap();
    let marker = net.server.marker();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (marker, things) = (marker.clone(), &things);
            scope.spawn(move || {
                for thing in things.iter().skip(part).step_by(4) {
                    marker.mark(*thing, 1 << HEALTH);
                }
                marker.mark(gone, 1);
                marker.mark(Handle::from_parts(1 << 30, 0), 1);
            });
        }
    });
    let word = net.classes.get(THING).unwrap().layout(HEALTH).2;
    let mut fetched = Vec::new();
    net.server.fetch_marked(|handle, mask, live| {
        assert_eq!(mask, 1 << HEALTH);
        live[word] = handle.index();
        fetched.push(handle);
    });
    assert_eq!(fetched, things);
    assert_eq!(net.server.stats().stale_marks, 1);
    net.server.fetch_marked(|_, _, _| panic!("every mark is taken once"));
    net.settle(4);
    net.check(&things);
    assert_eq!(net.value(0, things[50], HEALTH), u64::from(things[50].index()));
}

#[test]
fn forgotten_marks_are_reported_and_mended() {
    let mut net = Net::with(ServerConfig { verify_push: true, ..ServerConfig::default() }, 1);
    let thing = net.server.create(THING).unwrap();
    net.server.set(thing, SCORE, 5_u32).unwrap();
    net.settle(4);
    assert_eq!(net.server.poll_event(), None);
    quietly(&mut net, thing, 9);
    net.settle(3);
    let event = Event::UnmarkedChange { handle: thing, class: THING, property: HEALTH };
    assert_eq!(net.server.poll_event(), Some(event));
    assert_eq!((net.server.poll_event(), net.server.stats().unmarked_changes), (None, 1));
    assert_eq!(net.value(0, thing, HEALTH), 9);
}

#[test]
fn what_is_counted_can_be_read() {
    let mut net = Net::with(ServerConfig { class_stats: true, ..ServerConfig::default() }, 2);
    let thing = net.server.create(THING).unwrap();
    net.settle(5);
    for value in 1..=10_u32 {
        net.server.set(thing, HEALTH, value).unwrap();
        net.step();
    }
    let class = net.server.class_stats(THING).unwrap().clone();
    assert_eq!(
        (class.objects_dirty, class.properties_dirty[HEALTH], class.properties_dirty[AMMO]),
        (10, 10, 0)
    );
    assert_eq!(class.records, 10);
    let before = net.server.total_stats();
    net.server.disconnect(net.peers[1].id);
    assert_eq!(net.server.total_stats(), before);
    net.server.observe_frame(FRAME, FRAME);
    let mut text = String::new();
    net.server.write_metrics(&mut text);
    for line in [
        "throng_repl_objects 1",
        "throng_repl_connections 1",
        "throng_repl_pairs_in_scope 1",
        "throng_repl_records_copied_total 20",
        "throng_repl_creates_total 2",
        "# TYPE throng_repl_packets_sent_total counter",
        "throng_repl_frame_seconds_sum{stage=\"shared\"} 0.033",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_budget_follows_the_link() {
    let mut net = Net::new(1);
    let id = net.peers[0].id;
    let limits = Adaptive { rate_min: 4000.0, rate_max: 40_000.0, lower: 0.5, raise: 10_000.0 };
    net.server.set_adaptive_budget(id, limits);
    let things: Vec<Handle> = (0..40).map(|_| net.server.create(THING).unwrap()).collect();
    let frames = |net: &mut Net, count: u32| {
        for _ in 0..count {
            for thing in &things {
                net.server.set(*thing, SCORE, net.frame).unwrap();
            }
            net.step();
        }
        net.server.budget_rate(id).unwrap()
    };
    assert_eq!(frames(&mut net, 30), 40_000.0);
    // Half of everything is lost: down to the least. Then up again, 10,000 a second.
    net.link.loss = 0.5;
    assert_eq!(frames(&mut net, 90), 4000.0);
    net.link.loss = 0.0;
    frames(&mut net, 6);
    let before = net.server.budget_rate(id).unwrap();
    let after = frames(&mut net, 30);
    assert!((after - before - 9900.0).abs() < 400.0, "{before} {after}");
    net.server.report_congestion(id);
    assert!(frames(&mut net, 1) < after * 0.6);
}

#[test]
fn the_clock_goes_along_once_in_a_while() {
    let interval = std::time::Duration::from_secs(1);
    let mut net = Net::with(ServerConfig { clock_interval: Some(interval), ..ServerConfig::default() }, 1);
    let thing = net.server.create(THING).unwrap();
    net.settle(3);
    assert_eq!(net.peers[0].client.clock(), Some((1, 33)));
    // A quiet server does not speak only to say what time it is.
    net.settle(40);
    assert_eq!(net.peers[0].client.clock(), Some((1, 33)));
    for value in 1..=70_u32 {
        net.server.set(thing, HEALTH, value).unwrap();
        net.step();
    }
    let (frame, ms) = net.peers[0].client.clock().unwrap();
    assert!((44..=110).contains(&frame) && ms == frame * 33, "{frame} {ms}");
}

#[test]
fn conditions_are_chosen_object_by_object() {
    let (mut net, class) = with_dynamic(3);
    let things = [net.server.create(class).unwrap(), net.server.create(class).unwrap()];
    for thing in things {
        net.server.set(thing, 1, 5_u32).unwrap();
        net.server.set_owner(thing, Some(net.peers[0].id)).unwrap();
    }
    net.server.set_replay(net.peers[2].id, true);
    let choose = |net: &mut Net, condition| net.server.set_condition(things[0], 1, condition).unwrap();
    let seen = |net: &mut Net, value: u32| {
        for thing in things {
            net.server.set(thing, 1, value).unwrap();
        }
        net.settle(4);
        // The other object's condition was never chosen: everybody.
        assert!((0..3).all(|peer| net.value(peer, things[1], 1) == u64::from(value)));
        [0, 1, 2].map(|peer| net.value(peer, things[0], 1))
    };
    assert_eq!(seen(&mut net, 6), [6, 6, 6]);
    choose(&mut net, Condition::OwnerOnly);
    assert_eq!(seen(&mut net, 7), [7, 6, 6]);
    choose(&mut net, Condition::SkipOwner);
    assert_eq!(seen(&mut net, 8), [7, 8, 8]);
    choose(&mut net, Condition::ReplayOnly);
    assert_eq!(seen(&mut net, 9), [7, 8, 9]);
    choose(&mut net, Condition::Never);
    assert_eq!(seen(&mut net, 10), [7, 8, 9]);
    choose(&mut net, Condition::Group(4));
    net.server.set_condition_groups(net.peers[1].id, 1 << 4);
    assert_eq!(seen(&mut net, 11), [7, 11, 9]);
    // Who becomes a member, or everybody, gets the value that is hours old.
    net.server.set_condition_groups(net.peers[0].id, 1 << 4);
    net.settle(4);
    assert_eq!(net.value(0, things[0], 1), 11);
    choose(&mut net, Condition::Always);
    net.settle(4);
    assert_eq!(net.value(2, things[0], 1), 11);
    let refused = net.server.set_condition(things[0], 0, Condition::Never);
    assert_eq!(refused, Err(throng_replication::ObjectError::Condition(0)));
    assert!(net.server.set_condition(things[0], 1, Condition::Dynamic).is_err());
}
