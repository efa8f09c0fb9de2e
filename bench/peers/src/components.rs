//! An object as components, for the libraries that replicate those of Bevy.
//!
//! Position, rotation and velocity are components of their own, everything else is one: such a library sends components
//! whole, so thirteen would cost it more. Values go out as they are in memory, by `serde`: there are no quantisers.

use bevy::prelude::*;
use serde::{Deserialize, Serialize};
use throng_replication_bench::workload::BenchObject;

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Position([f32; 3]);

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rotation([f32; 4]);

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Velocity([f32; 3]);

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    health: u16,
    armor: u16,
    ammo: u8,
    state: u8,
    flags: u16,
    score: u32,
    pitch: f32,
    target: u16,
    aim: [f32; 3],
    cooldown: f32,
}

impl Load {
    fn of(thing: &BenchObject) -> Self {
        Self {
            health: thing.health,
            armor: thing.armor,
            ammo: thing.ammo,
            state: thing.state,
            flags: thing.flags,
            score: thing.score,
            pitch: thing.pitch,
            target: thing.target,
            aim: thing.aim,
            cooldown: thing.cooldown,
        }
    }
}

/// All components of an object.
pub fn bundle(thing: &BenchObject) -> (Position, Rotation, Velocity, Load) {
    let rotation = Rotation(thing.rotation());
    (Position(thing.position), rotation, Velocity(thing.velocity), Load::of(thing))
}

/// Sets the components of what the world's step has marked.
pub fn apply(world: &mut World, entities: &[Entity], things: &[BenchObject]) {
    for (thing, entity) in things.iter().zip(entities) {
        if thing.marked == 0 {
            continue;
        }
        let (position, rotation, velocity, load) = bundle(thing);
        let mut entity = world.entity_mut(*entity);
        if thing.is_character {
            *entity.get_mut::<Position>().expect("spawned with it") = position;
            *entity.get_mut::<Rotation>().expect("spawned with it") = rotation;
            *entity.get_mut::<Velocity>().expect("spawned with it") = velocity;
        }
        *entity.get_mut::<Load>().expect("spawned with it") = load;
    }
}

/// An entity has the values of an object. Those of a chest's place are those of its creation.
pub fn equal(world: &World, entity: Entity, thing: &BenchObject) -> bool {
    let (position, rotation, velocity, load) = bundle(thing);
    world.get::<Position>(entity) == Some(&position)
        && world.get::<Rotation>(entity) == Some(&rotation)
        && world.get::<Velocity>(entity) == Some(&velocity)
        && world.get::<Load>(entity) == Some(&load)
}

/// Counts the objects of a client.
pub fn count(world: &mut World) -> usize {
    world.query::<&Load>().iter(world).count()
}
