//! Spec §26.15, 18 and 19: what nobody changes or sees costs nothing. Bounds are for the release profile of a quiet machine
//! in the specification; here they are wider, and what must not grow is compared with itself.

use throng_replication::{Axis, Class, ClassId, Classes, Property, Quantiser, Server, ServerConfig, View};
use throng_replication_bench::clock::thread_cpu_ns;
use throng_stdx::Instant;

/// A hundred connections, each beside a few objects of its own, and any number of objects far from all.
fn server(seen: usize, unseen: usize) -> (Server, Vec<throng_replication::Handle>) {
    let axis = Axis::new(-20_000.0, 0.1, 19);
    let mut classes = Classes::new();
    let class = Class::builder("thing").cull_distance(200.0);
    let class = class.property(Property::new("position", Quantiser::Vec3([axis; 3])).world_position());
    let class = class.property(Property::new("value", Quantiser::UInt(16)));
    classes.register(class.build().unwrap()).unwrap();
    let config = ServerConfig { objects_max: 1 << 20, ..ServerConfig::default() };
    let mut server = Server::new(config, &classes);
    let mut handles = Vec::new();
    let place = |server: &mut Server, x: f32, y: f32| {
        let handle = server.create(ClassId(0)).unwrap();
        server.set(handle, 0, [x, y, 0.0]).unwrap();
        handle
    };
    for at in 0..100 {
        let (x, y) = ((at % 10) as f32 * 600.0, (at / 10) as f32 * 600.0);
        let id = server.connect().unwrap();
        server.set_views(id, &[View { position: [x, y, 0.0], ..View::default() }]);
        for _ in 0..seen / 100 {
            handles.push(place(&mut server, x, y));
        }
    }
    for at in 0..unseen {
        place(&mut server, -7000.0 + (at % 1000) as f32, -7000.0 + (at / 1000) as f32);
    }
    (server, handles)
}

/// The cheapest of many frames, in nanoseconds: what the work takes when nothing disturbs it.
fn cheapest(server: &mut Server, from: u64, mut change: impl FnMut(&mut Server, u64)) -> u64 {
    let mut best = u64::MAX;
    for frame in from..from + 60 {
        change(server, frame);
        let start = thread_cpu_ns();
        server.tick(Instant::from_millis(33 * frame), |_| {});
        best = best.min(thread_cpu_ns() - start);
    }
    best
}

#[test]
fn a_hundred_thousand_clean_objects_cost_next_to_nothing() {
    let (mut server, _) = server(1000, 99_000);
    // Creations, then long enough for unanswered packets to be given up.
    let spent = cheapest(&mut server, 1, |_, _| {}).min(cheapest(&mut server, 61, |_, _| {}));
    // 300 us in the release profile.
    assert!(spent < 1_500_000, "{spent} ns");
}

#[test]
fn what_nobody_sees_costs_nobody_anything() {
    let cost = |unseen| {
        let (mut server, handles) = server(1000, unseen);
        cheapest(&mut server, 1, |server, frame| {
            for handle in &handles {
                server.set(*handle, 1, frame).unwrap();
            }
        })
    };
    let (few, many) = (cost(2000), cost(4000));
    // A tenth is allowed; the clock and the profile get as much again.
    assert!(many * 5 < few * 6, "{few} ns, with twice the objects {many} ns");
}

#[test]
fn fifty_thousand_sleepers_cost_nothing() {
    let cost = |sleepers| {
        let (mut server, handles) = server(1000, 0);
        let sleepers: Vec<_> = (0..sleepers).map(|_| server.create(ClassId(0)).unwrap()).collect();
        for sleeper in &sleepers {
            server.set(*sleeper, 0, [3000.0_f32, -9000.0, 0.0]).unwrap();
            server.set_dormant(*sleeper, true).unwrap();
        }
        cheapest(&mut server, 1, |server, frame| {
            for handle in &handles {
                server.set(*handle, 1, frame).unwrap();
            }
            for sleeper in sleepers.iter().take(50) {
                server.set(*sleeper, 1, frame).unwrap();
            }
        })
    };
    let (none, many) = (cost(0), cost(50_000));
    assert!(many < none + 200_000, "{none} ns, with sleepers {many} ns");
}
