//! Spec §26.15, 18 and 19: what nobody changes or sees costs nothing. Counted work, which is the
//! same on every machine; times are in `throng bench replication --scaling`.

use throng_replication::{Axis, Class, ClassId, Classes, Property, Quantiser, Server, ServerConfig, View};
use throng_stdx::Instant;

/// A hundred connections, each beside a few objects of its own, and any number of objects far from
/// all.
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

/// Work of the server in sixty frames after everything has settled.
fn work(server: &mut Server, mut change: impl FnMut(&mut Server, u64)) -> [u64; 7] {
    // Creations, then long enough for unanswered packets to be given up.
    for frame in 1..60 {
        change(server, frame);
        server.tick(Instant::from_millis(33 * frame), |_| {});
    }
    let count = |server: &Server| {
        let (stats, total) = (server.stats(), server.total_stats());
        [
            stats.objects_dirty,
            stats.properties_dirty,
            stats.records_shared,
            total.words_seen,
            total.objects_tested,
            total.records_copied,
            total.records_built,
        ]
    };
    let before = count(server);
    for frame in 60..120 {
        change(server, frame);
        server.tick(Instant::from_millis(33 * frame), |_| {});
    }
    let after = count(server);
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn a_hundred_thousand_clean_objects_are_not_looked_at() {
    let clean = |unseen| work(&mut server(1000, unseen).0, |_, _| {});
    assert_eq!(clean(0), [0; 7]);
    assert_eq!(clean(99_000), clean(0));
}

#[test]
fn fifty_thousand_sleepers_in_view_are_not_tested() {
    let (mut server, handles) = server(1000, 0);
    for at in 0..50_000_u32 {
        let sleeper = server.create(ClassId(0)).unwrap();
        // Around the first view, nearer than its range less the way that it may go.
        server.set(sleeper, 0, [(at % 190) as f32, 0.0, 0.0]).unwrap();
        server.set_dormant(sleeper, true).unwrap();
    }
    let work = work(&mut server, |server, frame| {
        server.set(handles[0], 1, frame).unwrap();
    });
    assert_eq!((work[0], work[4]), (60, 0));
}

#[test]
fn what_nobody_sees_costs_nobody_anything() {
    let cost = |unseen| {
        let (mut server, handles) = server(1000, unseen);
        work(&mut server, |server, frame| {
            for handle in &handles {
                server.set(*handle, 1, frame).unwrap();
            }
        })
    };
    let few = cost(2000);
    assert!(few.iter().take(4).all(|count| *count > 0), "{few:?}");
    assert_eq!(few, cost(4000));
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
        work(&mut server, |server, frame| {
            for handle in &handles {
                server.set(*handle, 1, frame).unwrap();
            }
            for sleeper in sleepers.iter().take(50) {
                server.set(*sleeper, 1, frame).unwrap();
            }
        })
    };
    // Changes of sleepers count when they wake.
    assert_eq!(cost(50_000), cost(0));
}
