//! Spec §26.11 to §26.15 and §26.21: who sees what, what goes first, what sleeps.

use crate::harness;
use harness::*;
use throng_replication::{
    ConnId, DestroyReason, Filter, GroupKind, Handle, Prioritiser, ServerConfig, Sphere, View,
};

/// Steps 3 to 7 for every combination of owner, list, exclusion, inclusion and dynamic filter.
#[test]
fn filters_decide_in_order() {
    for case in 0..64_u32 {
        let bit = |at: u32| case >> at & 1 != 0;
        let (owns, only_owner, listed, excluded, included, near) =
            (bit(0), bit(1), bit(2), bit(3), bit(4), bit(5));
        let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 2);
        let (me, other) = (net.peers[0].id, net.peers[1].id);
        let thing = net.server.create(THING).unwrap();
        let x = if near { 0.0_f32 } else { 1000.0 };
        net.server.set(thing, POSITION, [x, 0.0, 0.0]).unwrap();
        net.server.set_owner(thing, Some(if owns { me } else { other })).unwrap();
        net.server.set_only_to_owner(thing, only_owner).unwrap();
        net.server.add_group(1, GroupKind::Exclusion);
        net.server.add_group(2, GroupKind::Inclusion);
        let groups: &[u16] = match (excluded, included) {
            (true, true) => &[1, 2],
            (true, false) => &[1],
            (false, true) => &[2],
            (false, false) => &[],
        };
        net.server.set_groups(thing, groups).unwrap();
        net.server.open_group(2, me, true);
        if listed {
            // Refused by name: out, whatever else.
            net.server.set_connection_filter(thing, false, &[me]).unwrap();
        }
        net.steps(2);
        let refused = only_owner && !owns || listed || excluded;
        let expected = !refused && (owns || included || near);
        assert_eq!(net.server.in_scope(me, thing), expected, "case {case:06b}");
    }
}

#[test]
fn lists_admit_and_refuse() {
    let mut net = Net::new(3);
    let ids: Vec<ConnId> = net.peers.iter().map(|peer| peer.id).collect();
    let thing = net.server.create(THING).unwrap();
    // Far from everybody: a list takes it out of the grid.
    net.server.set(thing, POSITION, [3000.0_f32, 0.0, 0.0]).unwrap();
    let seen = |net: &mut Net| {
        net.steps(8);
        net.peers.iter().map(|peer| peer.client.replica(thing.index()).is_some()).collect::<Vec<_>>()
    };
    net.server.set_connection_filter(thing, true, &ids[..1]).unwrap();
    assert_eq!(seen(&mut net), [true, false, false]);
    net.server.set_connection_filter(thing, false, &ids[..1]).unwrap();
    assert_eq!(seen(&mut net), [false, true, true]);
    net.server.set_connection_filter(thing, false, &[]).unwrap();
    assert_eq!(seen(&mut net), [true, true, true]);
    net.server.set_connection_filter(thing, true, &[]).unwrap();
    assert_eq!(seen(&mut net), [false, false, false]);
}

#[test]
fn groups_open_and_close() {
    let mut net = Net::new(1);
    let me = net.peers[0].id;
    let thing = net.server.create(THING).unwrap();
    net.server.set_filter(thing, Filter::Always).unwrap();
    net.server.add_group(7, GroupKind::Exclusion);
    net.server.set_groups(thing, &[7]).unwrap();
    for open in [false, true, false, true] {
        net.server.open_group(7, me, open);
        net.steps(8);
        assert_eq!(net.peers[0].client.replica(thing.index()).is_some(), open);
    }
}

#[test]
fn hysteresis_counts_exact_frames() {
    for frames in [0, 1, 2, 7, 255] {
        let mut net = Net::with(ServerConfig { hysteresis_frames: frames, ..ServerConfig::default() }, 1);
        let me = net.peers[0].id;
        let thing = net.server.create(THING).unwrap();
        net.steps(5);
        net.server.set(thing, POSITION, [251.0_f32, 0.0, 0.0]).unwrap();
        for frame in 0..u32::from(frames) {
            net.step();
            assert!(net.server.in_scope(me, thing), "left {frame} frames after, of {frames}");
        }
        net.step();
        assert!(!net.server.in_scope(me, thing), "stayed longer than {frames} frames");
        // A new refusal begins a new count; what the grid did not refuse acts at once.
        net.server.set(thing, POSITION, [0.0_f32; 3]).unwrap();
        net.steps(5);
        net.server.set_only_to_owner(thing, true).unwrap();
        net.step();
        assert!(!net.server.in_scope(me, thing));
    }
}

#[test]
fn the_cull_distance_is_inclusive_and_teleports_act_at_once() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let me = net.peers[0].id;
    let thing = net.server.create(THING).unwrap();
    for (position, seen) in [
        ([250.0_f32, 0.0, 0.0], true),
        ([250.01, 0.0, 0.0], false),
        ([-250.0, 0.0, 0.0], true),
        ([0.0, 0.0, 250.0], true),
        ([0.0, 0.0, 251.0], false),
        ([7000.0, -7000.0, 0.0], false),
        ([f32::NAN, 0.0, 0.0], false),
        ([0.0, 0.0, 0.0], true),
        ([f32::NAN, 0.0, 0.0], true),
        ([20_000.0, 0.0, 0.0], false),
    ] {
        net.server.set(thing, POSITION, position).unwrap();
        net.step();
        assert_eq!(net.server.in_scope(me, thing), seen, "{position:?}");
    }
    assert!(net.server.stats().nans >= 2);
    // Two views, one near: seen once.
    let far = View { position: [20_000.0, 10.0, 0.0], ..View::default() };
    net.server.set_views(me, &[View::default(), far]);
    net.steps(6);
    assert!(net.server.in_scope(me, thing));
    net.check(&[thing]);
}

#[test]
fn objects_leave_at_the_exit_factor() {
    let config = ServerConfig { hysteresis_frames: 0, exit_factor: 1.2, ..ServerConfig::default() };
    let mut net = Net::with(config, 1);
    let me = net.peers[0].id;
    let thing = net.server.create(THING).unwrap();
    for (x, seen) in
        [(260.0_f32, false), (249.0, true), (260.0, true), (299.0, true), (301.0, false), (260.0, false)]
    {
        net.server.set(thing, POSITION, [x, 0.0, 0.0]).unwrap();
        net.step();
        assert_eq!(net.server.in_scope(me, thing), seen, "at {x}");
    }
}

/// Its square was taken: objects left at four cull distances, if cells around the view had them.
#[test]
fn an_exit_factor_below_one_counts_as_one() {
    for exit_factor in [-2.0, 0.0, f32::NAN] {
        let mut net =
            Net::with(ServerConfig { exit_factor, hysteresis_frames: 0, ..ServerConfig::default() }, 1);
        let thing = net.server.create(THING).unwrap();
        for (x, inside) in [(10.0, true), (250.0, true), (250.5, false), (251.0, false), (250.0, true)] {
            net.server.set(thing, POSITION, [x, 0.0_f32, 0.0]).unwrap();
            net.steps(4);
            assert_eq!(net.server.in_scope(net.peers[0].id, thing), inside, "{exit_factor}, {x}");
        }
    }
}

#[test]
fn conditions_follow_the_owner() {
    const SECRET: usize = 2;
    const GHOST: usize = 3;
    let mut net = Net::new(2);
    let ids: Vec<ConnId> = net.peers.iter().map(|peer| peer.id).collect();
    let pawn = net.server.create(PAWN).unwrap();
    net.server.set_owner(pawn, Some(ids[0])).unwrap();
    net.server.set(pawn, SECRET, 11_u32).unwrap();
    net.server.set(pawn, GHOST, 22_u32).unwrap();
    net.steps(8);
    let values = |net: &Net, property| [net.value(0, pawn, property), net.value(1, pawn, property)];
    assert_eq!((values(&net, SECRET), values(&net, GHOST)), ([11, 0], [0, 22]));
    // Changes go to whom they belong.
    net.server.set(pawn, SECRET, 12_u32).unwrap();
    net.server.set(pawn, GHOST, 23_u32).unwrap();
    net.steps(4);
    assert_eq!((values(&net, SECRET), values(&net, GHOST)), ([12, 0], [0, 23]));
    // The new owner gets the secret in the next packet; the former one gets no more of it.
    net.server.set_owner(pawn, Some(ids[1])).unwrap();
    net.step();
    assert_eq!(values(&net, SECRET)[1], 12);
    net.server.set(pawn, SECRET, 13_u32).unwrap();
    net.server.set(pawn, GHOST, 24_u32).unwrap();
    net.steps(4);
    assert_eq!((values(&net, SECRET), values(&net, GHOST)), ([12, 13], [24, 23]));
}

#[test]
fn conditions_switch_and_groups_join() {
    const SEED: usize = 4;
    const CUSTOM: usize = 5;
    const TEAM: usize = 6;
    let mut net = Net::new(2);
    let pawn = net.server.create(PAWN).unwrap();
    for property in [SEED, CUSTOM, TEAM] {
        net.server.set(pawn, property, 5_u32).unwrap();
    }
    net.server.set_condition_enabled(pawn, 1 << CUSTOM, false).unwrap();
    net.server.set_condition_groups(net.peers[1].id, 1 << 3);
    net.steps(8);
    let values = |net: &Net, property| [net.value(0, pawn, property), net.value(1, pawn, property)];
    assert_eq!([values(&net, SEED), values(&net, CUSTOM), values(&net, TEAM)], [[5, 5], [0, 0], [0, 5]]);
    for property in [SEED, CUSTOM, TEAM] {
        net.server.set(pawn, property, 6_u32).unwrap();
    }
    net.steps(4);
    assert_eq!([values(&net, SEED), values(&net, CUSTOM), values(&net, TEAM)], [[5, 5], [0, 0], [0, 6]]);
    // Switched on, joined: the present value, though it did not change.
    net.server.set_condition_enabled(pawn, 1 << CUSTOM, true).unwrap();
    net.server.set_condition_groups(net.peers[0].id, 1 << 3);
    net.steps(4);
    assert_eq!([values(&net, CUSTOM), values(&net, TEAM)], [[6, 6], [6, 6]]);
}

/// §13.3: with demand D, budget B and priorities within a factor k, nobody waits longer than the
/// bound.
#[test]
fn nobody_starves_and_no_frame_overspends() {
    for scarcity in [1.5_f64, 3.0, 6.0] {
        let mut net = Net::new(1);
        let me = net.peers[0].id;
        let sphere = Sphere { r_in: 20.0, p_in: 2.0, r_out: 200.0, p_out: 0.4, p_outside: 0.4 };
        let prioritiser = net.server.add_prioritiser(Prioritiser::Sphere(sphere)).unwrap();
        let things: Vec<Handle> = (0..100).map(|_| net.server.create(THING).unwrap()).collect();
        for (at, thing) in things.iter().enumerate() {
            net.server.set(*thing, POSITION, [at as f32 * 2.0, 0.0, 0.0]).unwrap();
            net.server.set_prioritiser(*thing, prioritiser).unwrap();
        }
        net.server.set_owner(things[0], Some(me)).unwrap();
        net.steps(10);
        // A record of score alone: index, 7 bits, 32 bits.
        let demand = 100.0 * 6.0;
        let budget = (demand / scarcity) as usize + 46;
        net.server.set_budget(me, Some((budget as f64 / FRAME.as_secs_f64(), budget as f64)));
        let mut last = vec![0_u32; things.len()];
        let mut longest = 0;
        let mut owned = 0;
        for frame in 1..300_u32 {
            for thing in &things {
                net.server.set(*thing, SCORE, frame).unwrap();
            }
            net.step();
            let spent = net.bytes_sent(0) + net.peers[0].sent.len() * 28;
            assert!(spent <= budget + 1, "frame {frame} spent {spent} of {budget}");
            for event in net.peers[0].events.drain(..) {
                if let throng_replication::ClientEvent::Updated { handle, .. } = event {
                    let at = things.iter().position(|thing| *thing == handle).unwrap();
                    if last[at] > 0 {
                        longest = longest.max(frame - last[at]);
                    }
                    last[at] = frame;
                    owned += u32::from(at == 0);
                }
            }
        }
        let k = 2.0 / 0.4;
        let bound = (2.0 * k * scarcity.ceil() + (1.0_f64 / 0.4).ceil()) as u32;
        assert!(longest <= bound, "somebody waited {longest} frames, the bound is {bound}");
        assert!(last.iter().all(|frame| *frame > 300 - 2 * bound.min(140)));
        assert!(owned >= 297, "the owner's object was sent in {owned} of 299 frames");
    }
}

#[test]
fn joining_gets_the_nearest_first_and_updates_go_on() {
    let mut net = Net::with(ServerConfig::default(), 1);
    let me = net.peers[0].id;
    let things: Vec<Handle> = (0..2100).map(|_| net.server.create(THING).unwrap()).collect();
    for (at, thing) in things.iter().enumerate() {
        // Numbers do not follow distance.
        let distance = ((at * 937) % 2100) as f32 / 2100.0 * 240.0;
        net.server.set(*thing, POSITION, [distance, 0.0, 0.0]).unwrap();
        net.server.set(*thing, NAME, vec![at as u8; 20]).unwrap();
    }
    net.server.set_budget(me, Some((32_000.0, 3200.0)));
    let near = things[0];
    let mut joined: Vec<u32> = Vec::new();
    let mut frames = 0_u32;
    while joined.len() < things.len() {
        frames += 1;
        assert!(frames < 300, "{} of 2100 after {frames} frames", joined.len());
        net.server.set(near, SCORE, frames).unwrap();
        net.step();
        for event in net.peers[0].events.drain(..) {
            if let throng_replication::ClientEvent::Created(handle) = event {
                joined.push(handle.index());
            }
        }
        if frames > 10 && frames.is_multiple_of(5) {
            assert!(net.value(0, near, SCORE) + 6 >= u64::from(frames), "updates of the nearest stopped");
        }
    }
    let order = |index: &u32| (*index as usize - 1) * 937 % 2100;
    assert!(joined.iter().map(order).is_sorted(), "the nearest come first");
}

#[test]
fn sleepers_cost_nothing_and_wake_with_what_changed() {
    let mut net = Net::new(1);
    let thing = net.server.create(THING).unwrap();
    net.steps(6);
    net.server.set_dormant(thing, true).unwrap();
    net.server.set(thing, HEALTH, 5_u32).unwrap();
    net.steps(6);
    assert_eq!(net.value(0, thing, HEALTH), 0);
    // A flush sends exactly what changed, and it sleeps on.
    net.server.set(thing, AMMO, 6_u32).unwrap();
    net.server.flush_dormant(thing).unwrap();
    net.step();
    assert_eq!(net.bytes_sent(0), 16 + 2 + 1 + (1 + 5 + 1 + 10 + 8_usize).div_ceil(8));
    net.server.set(thing, HEALTH, 7_u32).unwrap();
    net.steps(6);
    assert_eq!((net.value(0, thing, HEALTH), net.value(0, thing, AMMO)), (5, 6));
    // A client that joins meanwhile gets what the others have.
    let late = net.join();
    net.steps(6);
    assert_eq!(net.value(late, thing, HEALTH), 5);
    net.check(&[thing]);
    net.server.set_dormant(thing, false).unwrap();
    net.steps(6);
    assert_eq!(net.value(late, thing, HEALTH), 7);
    net.check(&[thing]);
}

#[test]
fn hidden_references_tell_nothing() {
    use throng_replication::{Class, Classes, Client, ClientConfig, Property, Quantiser, Server, Value};
    let mut classes = Classes::new();
    let class = Class::builder("pointer").property(Property::new("target", Quantiser::Handle { hide: true }));
    let id = classes.register(class.build().unwrap()).unwrap();
    let mut server = Server::new(ServerConfig::default(), &classes);
    let mut client = Client::new(ClientConfig::default(), &classes);
    let me = server.connect().unwrap();
    let (pointer, target) = (server.create(id).unwrap(), server.create(id).unwrap());
    server.set_filter(pointer, Filter::Always).unwrap();
    server.set_filter(target, Filter::Never).unwrap();
    server.set(pointer, 0, target).unwrap();
    let mut now = throng_stdx::Instant::ZERO;
    let mut steps = |server: &mut Server, client: &mut Client| {
        for _ in 0..6 {
            now += FRAME;
            server.tick(now, |packets| {
                for packet in packets.iter() {
                    client.receive(packet).unwrap();
                }
            });
            if let Some(packet) = client.poll_packet(now) {
                server.receive(me, packet).unwrap();
            }
        }
        client.replica(pointer.index()).unwrap().value(0)
    };
    assert_eq!(steps(&mut server, &mut client), Some(Value::Handle(Handle::NONE)));
    server.set_filter(target, Filter::Always).unwrap();
    let Some(Value::Handle(seen)) = steps(&mut server, &mut client) else { panic!("not a reference") };
    assert_eq!(client.resolve(seen), Some(target));
    server.destroy(target, DestroyReason::Destroyed, false).unwrap();
    steps(&mut server, &mut client);
    assert_eq!(client.resolve(seen), None);
}
