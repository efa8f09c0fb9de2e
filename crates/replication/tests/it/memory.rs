//! Spec §20 and §26.22: what a frame allocates and what a pair keeps.

use std::time::Duration;

use allocation_counter::measure;
use throng_replication::wire::{AckState, Header};
use throng_replication::{
    Axis, Class, ClassId, Classes, Handle, LodProfile, Property, Quantiser, Server, ServerConfig, View,
};
use throng_stdx::{Instant, Rng};

fn classes(delta: bool) -> Classes {
    let mut classes = Classes::new();
    let axis = Axis::new(-2000.0, 0.01, 20);
    let mut class = Class::builder("thing").delta(delta);
    class = class.property(Property::new("position", Quantiser::Vec3([axis; 3])).world_position());
    for at in 0..10 {
        class = class.property(Property::new(format!("p{at}"), Quantiser::UInt(12)));
    }
    classes.register(class.build().unwrap()).unwrap();
    classes
}

struct World {
    server: Server,
    things: Vec<Handle>,
    acks: Vec<AckState>,
    rng: Rng,
    now: Instant,
    frame: u32,
    loss: f64,
}

impl World {
    fn new(config: ServerConfig, delta: bool, connections: usize, things: usize) -> Self {
        let classes = classes(delta);
        let mut server = Server::new(config, &classes);
        for _ in 0..connections {
            let id = server.connect().unwrap();
            server.set_views(id, &[View::default()]);
        }
        let things = (0..things).map(|_| server.create(ClassId(0)).unwrap()).collect();
        let acks = vec![AckState::default(); connections];
        Self { server, things, acks, rng: Rng::new(3), now: Instant::ZERO, frame: 0, loss: 0.0 }
    }

    /// A frame in which everything moves and every connection acknowledges; returns allocations of
    /// the server.
    fn frame(&mut self) -> u64 {
        self.frame += 1;
        self.now += Duration::from_millis(33);
        let Self { server, things, acks, rng, now, loss, .. } = self;
        let connections = acks.len();
        let mut count = 0;
        for (at, state) in acks.iter().enumerate() {
            let (ack, ack_bits) = state.fields();
            let header = Header { seq: self.frame as u16, ack, ack_bits, frame: self.frame };
            let id = throng_replication::ConnId::from_parts(at as u32, 0);
            count += measure(|| server.receive(id, &header.to_bytes()).unwrap()).count_total;
        }
        for (at, thing) in things.iter().enumerate() {
            let angle = self.frame as f32 / 30.0 + at as f32;
            let position = [angle.cos() * 100.0, angle.sin() * 100.0, 0.0];
            let number = rng.below(4096);
            count += measure(|| {
                server.set(*thing, 0, position).unwrap();
                server.set(*thing, 1 + at % 10, number).unwrap();
            })
            .count_total;
        }
        let used = measure(|| {
            server.tick(*now, |packets| {
                for packet in packets.iter() {
                    if !rng.chance(*loss) {
                        acks[packets.connection.index() as usize]
                            .applied(u16::from_le_bytes([packet[0], packet[1]]));
                    }
                }
            });
        });
        assert_eq!(acks.len(), connections);
        count + used.count_total
    }
}

#[test]
fn a_steady_frame_allocates_nothing() {
    let lod = ServerConfig { lod: Some(LodProfile::reference()), ..ServerConfig::default() };
    for (config, delta, loss) in [
        (ServerConfig::default(), false, 0.0),
        (ServerConfig::default(), true, 0.0),
        (lod, false, 0.0),
        (ServerConfig::default(), false, 0.05),
    ] {
        let mut world = World::new(config, delta, 20, 150);
        world.loss = loss;
        // Every list of the ring of frames, every band at every phase, has been as long as it gets.
        for _ in 0..700 {
            world.frame();
        }
        let busy: Vec<(u32, u64)> =
            (0..60).map(|at| (at, world.frame())).filter(|(_, count)| *count > 0).collect();
        assert!(busy.is_empty(), "(frame, allocations): {busy:?}, differences {delta}, loss {loss}");
    }
}

#[test]
fn pairs_are_small() {
    // Everything in scope, everything lost, so that every pair has something pending and a state
    // that was broken.
    for (delta, limit) in [(false, 24), (true, 40)] {
        let mut world = World::new(ServerConfig::default(), delta, 4, 6400);
        for _ in 0..12 {
            world.frame();
        }
        world.loss = 1.0;
        for _ in 0..60 {
            world.frame();
        }
        let bytes = world.server.connection_bytes(throng_replication::ConnId::from_parts(0, 0)).unwrap();
        assert!(bytes / 6400 <= limit, "{} bytes a pair, differences {delta}", bytes / 6400);
    }
}

#[test]
fn what_is_out_of_scope_is_a_few_bits() {
    let world = |things| {
        let mut world = World::new(ServerConfig::default(), false, 1, things);
        world.server.set_views(
            throng_replication::ConnId::from_parts(0, 0),
            &[View { position: [1900.0; 3], ..View::default() }],
        );
        world.frame();
        world.frame();
        world.server.connection_bytes(throng_replication::ConnId::from_parts(0, 0)).unwrap()
    };
    let bytes = world(51_200) - world(6400);
    // Five bitmaps, one bit each, and their summaries.
    assert!(bytes * 8 <= (51_200 - 6400) * 6, "{bytes} bytes");
}
