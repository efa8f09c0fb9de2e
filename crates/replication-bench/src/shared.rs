//! The library itself under the workload: methods `shared` and `shared-delta`.

use std::time::Duration;

use throng_replication::{
    Axis, Class, ClassId, Classes, Condition, ConnId, GridConfig, Handle, LodProfile, Prioritiser,
    PrioritiserId, Property, Quantiser, Server, ServerConfig, Sphere, View,
};
use throng_stdx::Instant;

use crate::workload::{BenchObject, CULL_DISTANCE};

/// Time between frames in virtual time.
pub const FRAME: Duration = Duration::from_nanos(33_333_333);

/// The workload's properties, by number (spec §22).
#[must_use]
pub fn properties(is_character: bool) -> Vec<Property> {
    let (xy, z) = (Axis::new(-5242.88, 0.01, 20), Axis::new(-655.36, 0.01, 17));
    let velocity = Axis::new(-64.0, 1.0 / 32.0, 12);
    // A chest never moves: its transform is in the create item only.
    let condition = if is_character { Condition::Always } else { Condition::InitialOnly };
    vec![
        Property::new("position", Quantiser::Vec3([xy, xy, z])).world_position().condition(condition),
        Property::new("rotation", Quantiser::Quat(10)).condition(condition),
        Property::new("velocity", Quantiser::Vec3([velocity; 3])).condition(condition),
        Property::new("health", Quantiser::UInt(10)),
        Property::new("armor", Quantiser::UInt(10)),
        Property::new("ammo", Quantiser::UInt(8)),
        Property::new("state", Quantiser::UInt(4)),
        Property::new("flags", Quantiser::UInt(12)),
        Property::new("score", Quantiser::UInt(32)),
        Property::new("pitch", Quantiser::range(-90.0, 90.0, 8)),
        Property::new("target", Quantiser::UInt(12)),
        Property::new("aim", Quantiser::Unit3(10)),
        Property::new("cooldown", Quantiser::fixed(0.0, 0.01, 13)),
    ]
}

/// Class 0: character, class 1: chest.
#[must_use]
pub fn classes(delta: bool) -> Classes {
    let mut classes = Classes::new();
    for (name, is_character) in [("character", true), ("chest", false)] {
        let mut builder = Class::builder(name).cull_distance(CULL_DISTANCE).delta(delta);
        for property in properties(is_character) {
            builder = builder.property(property);
        }
        let class = builder.build().expect("the workload's properties are valid");
        classes.register(class).expect("two names");
    }
    classes
}

/// The prioritiser of all objects.
#[must_use]
pub fn sphere() -> Sphere {
    Sphere { r_in: 20.0, p_in: 2.0, r_out: 100.0, p_out: 1.0, p_outside: 1.0 }
}

/// Writes the properties of `mask` of a thing into a live block of its class.
pub fn store(thing: &BenchObject, mask: u16, live: &mut [u32]) {
    // Live words: 3 position, 4 rotation, 3 velocity, then 2 for each integer.
    if mask & 1 != 0 {
        for (word, part) in live[0..3].iter_mut().zip(thing.position) {
            *word = part.to_bits();
        }
    }
    if mask & 2 != 0 {
        for (word, part) in live[3..7].iter_mut().zip(thing.rotation()) {
            *word = part.to_bits();
        }
    }
    if mask & 4 != 0 {
        for (word, part) in live[7..10].iter_mut().zip(thing.velocity) {
            *word = part.to_bits();
        }
    }
    let integers = [
        (3, 10, u32::from(thing.health)),
        (4, 12, u32::from(thing.armor)),
        (5, 14, u32::from(thing.ammo)),
        (6, 16, u32::from(thing.state)),
        (7, 18, u32::from(thing.flags)),
        (8, 20, thing.score),
        (10, 23, u32::from(thing.target)),
    ];
    for (property, word, value) in integers {
        if mask >> property & 1 != 0 {
            live[word] = value;
        }
    }
    live[22] = thing.pitch.to_bits();
    if mask >> 11 & 1 != 0 {
        for (word, part) in live[25..28].iter_mut().zip(thing.aim) {
            *word = part.to_bits();
        }
    }
    live[28] = thing.cooldown.to_bits();
}

/// The library, set up for a workload.
#[derive(Debug)]
pub struct Shared {
    /// The server.
    pub server: Server,
    /// One for each connection of the group.
    pub connections: Vec<ConnId>,
    handles: Vec<Handle>,
    prioritiser: Option<PrioritiserId>,
    delta: bool,
    /// Class definitions, for receivers.
    pub classes: Classes,
}

impl Shared {
    /// A server with `connections` connections and no objects, for a world around the origin;
    /// `lod`: with the reference profile of detail.
    #[must_use]
    pub fn new(connections: usize, delta: bool, budget: Option<usize>, half_side: f32, lod: bool) -> Self {
        let classes = classes(delta);
        let side = half_side.max(500.0);
        let config = ServerConfig {
            hysteresis_frames: 0,
            objects_max: 1 << 20,
            connections_max: 1 << 16,
            overhead_bytes: 0,
            lod: lod.then(LodProfile::reference),
            grid: GridConfig { min: [-side; 2], max: [side; 2], cell: CULL_DISTANCE },
            ..ServerConfig::default()
        };
        let mut server = Server::new(config, &classes);
        let prioritiser = server.add_prioritiser(Prioritiser::Sphere(sphere()));
        let connections: Vec<ConnId> = (0..connections).filter_map(|_| server.connect()).collect();
        for id in &connections {
            if let Some(bytes) = budget {
                // Exactly so much a frame: what a frame leaves is not saved up.
                let rate = bytes as f64 / FRAME.as_secs_f64();
                server.set_budget(*id, Some((rate, bytes as f64)));
            }
        }
        Self { server, connections, handles: Vec::new(), prioritiser, delta, classes }
    }

    /// Whether differences are on.
    #[must_use]
    pub fn is_delta(&self) -> bool {
        self.delta
    }

    /// Handles of the objects, in the order of the world's things.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Creates the objects that the world has and the server lacks, and hands over what the last
    /// step set.
    pub fn apply(&mut self, things: &[BenchObject]) {
        for (at, thing) in things.iter().enumerate().skip(self.handles.len()) {
            let class = ClassId(u16::from(!thing.is_character));
            let handle = self.server.create(class).expect("the limit is a million objects");
            if let Some(prioritiser) = self.prioritiser {
                self.server.set_prioritiser(handle, prioritiser).expect("just created");
            }
            if thing.is_character {
                let owner = self.connections.get(at).copied();
                self.server.set_owner(handle, owner).expect("just created");
            }
            self.server.write_live(handle, 0x1fff, |live| store(thing, 0x1fff, live)).expect("just created");
            self.handles.push(handle);
        }
        for (thing, handle) in things.iter().zip(&self.handles) {
            if thing.marked != 0 {
                self.server
                    .write_live(*handle, u64::from(thing.marked), |live| store(thing, thing.marked, live))
                    .expect("objects of the workload live on");
            }
        }
        for (id, thing) in self.connections.iter().zip(things) {
            self.server.set_views(*id, &[View { position: thing.position, ..View::default() }]);
        }
    }

    /// Virtual time of a frame.
    #[must_use]
    pub fn time(frame: u32) -> Instant {
        Instant::ZERO + FRAME * frame
    }
}
