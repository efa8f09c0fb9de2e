//! Spec §12.2 and §13.2: filters of the game, teams, areas that are watched, and turns.

use crate::harness;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use harness::*;
use throng_replication::{
    Area, Band, ConnId, CountLimiter, CustomFilter, Filter, FilterBatch, Handle, LimitMode, LodProfile,
    Prioritiser, ServerConfig, Shape, View,
};

/// Even connections see even objects that lie west.
#[derive(Debug)]
struct Parity {
    frames: Arc<AtomicU32>,
    asked: Arc<AtomicU32>,
}

impl CustomFilter for Parity {
    fn begin_frame(&mut self, _: u32) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    fn filter(&self, connection: ConnId, views: &[View], candidates: &FilterBatch<'_>) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(views.len(), 1);
        let allowed = |bit: &u32| {
            candidates.x[*bit as usize] < 0.0
                && (candidates.first + bit).is_multiple_of(2) == connection.index().is_multiple_of(2)
        };
        (0..64).filter(allowed).fold(0, |all, bit| all | 1 << bit)
    }
}

#[test]
fn a_filter_of_the_game_decides_in_batches() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 2);
    let (frames, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let filter = Parity { frames: Arc::clone(&frames), asked: Arc::clone(&asked) };
    let id = net.server.add_filter(Box::new(filter), 1).unwrap();
    let things: Vec<Handle> = (0..100)
        .map(|at| {
            let thing = net.server.create(THING).unwrap();
            net.server.set(thing, POSITION, [if at < 50 { -3000.0_f32 } else { 3000.0 }, 0.0, 0.0]).unwrap();
            net.server.set_filter(thing, Filter::Custom(id)).unwrap();
            thing
        })
        .collect();
    net.settle(6);
    net.check(&things);
    for (peer, rest) in [(0, 0), (1, 1)] {
        for (at, thing) in things.iter().enumerate() {
            let seen = net.peers[peer].client.replica(thing.index()).is_some();
            assert_eq!(seen, at < 50 && thing.index() % 2 == rest, "{peer} {at}");
        }
    }
    assert_eq!(frames.load(Ordering::Relaxed), 6);
    // Two words of objects, two connections.
    assert_eq!(asked.load(Ordering::Relaxed), 6 * 2 * 2);
    // An object that takes another filter, and one that ends, are asked for no more.
    net.server.set_filter(things[0], Filter::Always).unwrap();
    net.server.destroy(things[1], throng_replication::DestroyReason::Destroyed, false).unwrap();
    net.settle(6);
    net.check(&things);
    assert!(net.peers.iter().all(|peer| peer.client.replica(things[0].index()).is_some()));
}

#[test]
fn a_filter_may_answer_now_and_then() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 2);
    let asked = Arc::new(AtomicU32::new(0));
    let filter = Parity { frames: Arc::default(), asked: Arc::clone(&asked) };
    let id = net.server.add_filter(Box::new(filter), 5).unwrap();
    let thing = net.server.create(THING).unwrap();
    net.server.set(thing, POSITION, [-3000.0_f32, 0.0, 0.0]).unwrap();
    net.server.set_filter(thing, Filter::Custom(id)).unwrap();
    net.settle(20);
    assert_eq!(asked.load(Ordering::Relaxed), 2 * 4);
    let seen = net.peers.iter().filter(|peer| peer.client.replica(thing.index()).is_some()).count();
    assert_eq!(seen, 1);
}

#[test]
fn teams_see_what_is_theirs() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 3);
    let flag = |net: &mut Net, teams| {
        let thing = net.server.create(THING).unwrap();
        net.server.set_filter(thing, Filter::Teams(teams)).unwrap();
        thing
    };
    let (red, both) = (flag(&mut net, 0b01), flag(&mut net, 0b11));
    for (peer, teams) in [(0, 0b01), (1, 0b10)] {
        net.server.set_teams(net.peers[peer].id, teams);
    }
    let blue = flag(&mut net, 0b10);
    let seen = |net: &mut Net| {
        net.settle(5);
        net.check(&[red, both, blue]);
        let look = |peer: &Peer| [red, both, blue].map(|thing| peer.client.replica(thing.index()).is_some());
        net.peers.iter().map(look).collect::<Vec<_>>()
    };
    assert_eq!(seen(&mut net), [[true, true, false], [false, true, true], [false; 3]]);
    // Who changes sides sees the other side's; what changes sides as well.
    net.server.set_teams(net.peers[0].id, 0b10);
    net.server.set_filter(both, Filter::Teams(0b100)).unwrap();
    assert_eq!(seen(&mut net), [[false, false, true], [false, false, true], [false; 3]]);
}

#[test]
fn areas_show_what_no_view_is_near() {
    let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
    let at = |net: &mut Net, position: [f32; 3]| {
        let thing = net.server.create(THING).unwrap();
        net.server.set(thing, POSITION, position).unwrap();
        thing
    };
    let things = [
        at(&mut net, [3000.0, 3000.0, 0.0]),
        at(&mut net, [3099.0, 3000.0, 0.0]),
        at(&mut net, [3101.0, 3000.0, 0.0]),
        at(&mut net, [-3000.0, 0.0, 5.0]),
        at(&mut net, [-3000.0, 0.0, 20.0]),
        at(&mut net, [0.0, 2000.0, 0.0]),
        at(&mut net, [900.0, 2000.0, 0.0]),
    ];
    let sphere = Shape::Sphere { centre: [3000.0, 3000.0, 0.0], radius: 100.0 };
    let room = Shape::Box { min: [-3010.0, -10.0, 0.0], max: [-2990.0, 10.0, 10.0] };
    let cone =
        Shape::Cone { apex: [0.0, 1000.0, 0.0], direction: [0.0, 1.0, 0.0], cosine: 0.9, length: 1200.0 };
    let areas = [sphere, room, cone].map(|shape| Area { shape, band: 0 });
    net.server.set_areas(net.peers[0].id, &areas);
    net.settle(5);
    net.check(&things);
    let seen = things.map(|thing| net.peers[0].client.replica(thing.index()).is_some());
    assert_eq!(seen, [true, true, false, true, false, true, false]);
    net.server.set_areas(net.peers[0].id, &[]);
    net.settle(5);
    assert!(net.peers[0].client.is_empty());
}

#[test]
fn an_area_has_its_own_band() {
    let bands = vec![Band::new(10.0, 30.0), Band::new(f32::INFINITY, 1.0)];
    let config =
        ServerConfig { lod: Some(LodProfile { bands, frame_rate: 30.0 }), ..ServerConfig::default() };
    let mut net = Net::with(config, 2);
    let thing = net.server.create(THING).unwrap();
    net.server.set(thing, POSITION, [200.0_f32, 0.0, 0.0]).unwrap();
    let shape = Shape::Sphere { centre: [200.0, 0.0, 0.0], radius: 5.0 };
    net.server.set_areas(net.peers[1].id, &[Area { shape, band: 0 }]);
    net.settle(5);
    let mut updates = [0; 2];
    for frame in 0..60_u32 {
        net.server.set(thing, HEALTH, frame + 1).unwrap();
        net.step();
        for (peer, updates) in net.peers.iter().zip(&mut updates) {
            *updates += u32::from(peer.sent.iter().any(|packet| packet.len() > 16));
        }
    }
    assert!(updates[0] <= 3 && updates[1] >= 59, "{updates:?}");
}

/// Sends of each thing in `frames` frames in which all of them change.
fn sends(limiter: CountLimiter, frames: u32, owned: bool) -> Vec<u32> {
    let mut net = Net::new(1);
    let id = net.server.add_prioritiser(Prioritiser::CountLimiter(limiter)).unwrap();
    let things: Vec<Handle> = (0..12)
        .map(|_| {
            let thing = net.server.create(THING).unwrap();
            net.server.set_prioritiser(thing, id).unwrap();
            thing
        })
        .collect();
    if owned {
        net.server.set_owner(things[0], Some(net.peers[0].id)).unwrap();
    }
    net.settle(6);
    net.peers[0].events.clear();
    let mut sends = vec![0; things.len()];
    for frame in 0..frames {
        for thing in &things {
            net.server.set(*thing, SCORE, frame + 1).unwrap();
        }
        net.step();
        for event in net.peers[0].events.drain(..) {
            if let throng_replication::ClientEvent::Updated { handle, .. } = event {
                let at = things.iter().position(|thing| *thing == handle).unwrap();
                sends[at] += 1;
            }
        }
    }
    net.settle(20);
    net.check(&things);
    sends
}

#[test]
fn so_many_a_frame_take_turns() {
    for mode in [LimitMode::RoundRobin, LimitMode::Fill] {
        let limiter = CountLimiter { count: 3, mode, ..CountLimiter::default() };
        let sends = sends(limiter, 40, false);
        // Forty frames of three, over twelve: ten each, and the frames at the ends.
        assert!(sends.iter().all(|count| (9..=11).contains(count)), "{mode:?} {sends:?}");
    }
}

#[test]
fn an_owner_does_not_wait_for_its_turn() {
    let limiter = CountLimiter { count: 1, ..CountLimiter::default() };
    let sends = sends(limiter, 44, true);
    assert!(sends[0] >= 43, "{sends:?}");
    assert!(sends[1..].iter().all(|count| (3..=5).contains(count)), "{sends:?}");
}
