//! The replication workloads on another public library: bevy_replicon.
//!
//! `cargo run --release` in this folder. The worlds, their seeds and the clock are those of `throng bench replication`;
//! so are the frames (60 to warm up, 300 measured) and the delay of acknowledgements (3 frames).
//!
//! Fairness. A frame is one `update` of the server's schedule with nothing in it but the library, on one thread, by
//! thread CPU time; values are applied before the clock starts, and real client apps answer outside of it. Position,
//! rotation and velocity are components of their own, everything else is one: the library sends components whole, so
//! thirteen would cost it more. Entities beyond the cull distance are hidden with the library's own visibility, which is
//! brought up to date outside of the clock. Nothing goes through a socket.

use std::collections::VecDeque;

use bevy::prelude::*;
use bevy::state::app::StatesPlugin;
use bevy_replicon::prelude::*;
use bevy_replicon::server::visibility::client_visibility::ClientVisibility;
use bevy_replicon::server::visibility::filters_mask::FilterBit;
use bevy_replicon::server::visibility::registry::FilterRegistry;
use bevy_replicon::shared::replication::registry::ReplicationRegistry;
use bevy_replicon::test_app::{ServerTestAppExt, TestClientEntity};
use serde::{Deserialize, Serialize};
use throng_replication_bench::clock::thread_cpu_ns;
use throng_replication_bench::workload::{CULL_DISTANCE, Chests, Group, SEED_BASE, Thing, World as Workload};

const WARM_UP: u32 = 60;
const FRAMES: u32 = 300;
const ACK_FRAMES: usize = 3;

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Position([f32; 3]);

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Rotation([f32; 4]);

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Velocity([f32; 3]);

#[derive(Component, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Load {
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
    fn of(thing: &Thing) -> Self {
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

#[derive(Resource, Clone, Copy)]
struct InRange(FilterBit);

impl FromWorld for InRange {
    fn from_world(world: &mut World) -> Self {
        let bit = world.resource_scope(|world, mut filters: Mut<FilterRegistry>| {
            world.resource_scope(|world, mut registry: Mut<ReplicationRegistry>| {
                filters.register_scope::<Entity>(world, &mut registry, ScopeLifetime::WhileVisible)
            })
        });
        Self(bit)
    }
}

fn app() -> App {
    let mut app = App::new();
    app.add_plugins((MinimalPlugins, StatesPlugin, RepliconPlugins.set(ServerPlugin::new(PostUpdate))))
        .replicate::<Position>()
        .replicate::<Rotation>()
        .replicate::<Velocity>()
        .replicate::<Load>();
    app.init_resource::<InRange>();
    app.finish();
    app.cleanup();
    app
}

struct Spread {
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

fn spread(mut samples: Vec<u64>) -> Spread {
    samples.sort_unstable();
    let us = |ns: u64| ns as f64 / 1000.0;
    let at = |share: f64| us(samples[((samples.len() as f64 * share).ceil() as usize).max(1) - 1]);
    let mean = us(samples.iter().sum()) / samples.len() as f64;
    Spread { mean, p50: at(0.5), p99: at(0.99), max: us(samples[samples.len() - 1]) }
}

fn run(number: u8, chests: Chests) {
    let group = Group::new(number).expect("five groups");
    let mut workload = Workload::new(group, chests, SEED_BASE);
    let mut server = app();
    let mut clients: Vec<App> = (0..group.connections).map(|_| app()).collect();
    for client in &mut clients {
        server.connect_client(client);
    }
    let seats: Vec<Entity> =
        clients.iter().map(|client| **client.world().resource::<TestClientEntity>()).collect();
    let bit = server.world().resource::<InRange>().0;
    let entities: Vec<Entity> = workload
        .things
        .iter()
        .map(|thing| {
            let transform = (Position(thing.position), Rotation(thing.rotation()), Velocity(thing.velocity));
            server.world_mut().spawn((Replicated, transform, Load::of(thing))).id()
        })
        .collect();
    let mut visible = vec![vec![true; entities.len()]; seats.len()];
    let mut answers: VecDeque<Vec<Vec<(usize, bytes::Bytes)>>> = VecDeque::new();
    let (mut samples, mut bytes, mut messages) = (Vec::new(), 0_u64, 0_u64);
    for frame in 1..=WARM_UP + FRAMES {
        workload.step();
        for (thing, entity) in workload.things.iter().zip(&entities) {
            if thing.marked == 0 {
                continue;
            }
            let mut entity = server.world_mut().entity_mut(*entity);
            if thing.is_character {
                *entity.get_mut::<Position>().expect("spawned with it") = Position(thing.position);
                *entity.get_mut::<Rotation>().expect("spawned with it") = Rotation(thing.rotation());
                *entity.get_mut::<Velocity>().expect("spawned with it") = Velocity(thing.velocity);
            }
            *entity.get_mut::<Load>().expect("spawned with it") = Load::of(thing);
        }
        for (at, seat) in seats.iter().enumerate() {
            let view = workload.things[at].position;
            let mut seat = server.world_mut().entity_mut(*seat);
            let Some(mut visibility) = seat.get_mut::<ClientVisibility>() else { continue };
            for (place, thing) in workload.things.iter().enumerate() {
                let square: f32 = (0..3).map(|i| (thing.position[i] - view[i]).powi(2)).sum();
                let sees = square <= CULL_DISTANCE * CULL_DISTANCE;
                if sees != visible[at][place] {
                    visible[at][place] = sees;
                    visibility.set(entities[place], bit, sees);
                }
            }
        }
        if answers.len() == ACK_FRAMES {
            let mut inbox = server.world_mut().resource_mut::<ServerMessages>();
            for (seat, sent) in seats.iter().zip(answers.pop_front().expect("three frames")) {
                for (channel, message) in sent {
                    inbox.insert_received(*seat, channel, message);
                }
            }
        }
        let start = thread_cpu_ns();
        server.update();
        let spent = thread_cpu_ns() - start;

        let mut outbox = server.world_mut().resource_mut::<ServerMessages>();
        for (to, channel, message) in outbox.drain_sent() {
            if frame > WARM_UP {
                bytes += message.len() as u64;
                messages += 1;
            }
            let at = seats.iter().position(|seat| *seat == to).expect("a client");
            clients[at].world_mut().resource_mut::<ClientMessages>().insert_received(channel, message);
        }
        let sent = clients.iter_mut().map(|client| {
            client.update();
            client.world_mut().resource_mut::<ClientMessages>().drain_sent().collect()
        });
        answers.push_back(sent.collect());
        if frame > WARM_UP {
            samples.push(spent);
        }
    }
    // The receivers hold what their connections may see.
    let mut held = 0;
    for client in &mut clients {
        let mut remote = client.world_mut().query::<(&Remote, &Load)>();
        held += remote.iter(client.world()).count();
    }
    let expected: usize = visible.iter().flatten().filter(|sees| **sees).count();
    let spread = spread(samples);
    let frames = f64::from(FRAMES) * seats.len() as f64;
    println!(
        "{{\"library\":\"bevy_replicon 0.44.3\",\"group\":{number},\"chests\":\"{}\",\"net_us\":{{\"mean\":{:.1},\"p50\":{:.1},\
         \"p99\":{:.1},\"max\":{:.1}}},\"bytes_per_client_frame\":{:.1},\"messages_per_client_frame\":{:.2},\
         \"replicas\":{held},\"expected\":{expected}}}",
        if chests == Chests::Sparse { "sparse" } else { "full" },
        spread.mean,
        spread.p50,
        spread.p99,
        spread.max,
        bytes as f64 / frames,
        messages as f64 / frames,
    );
}

fn main() {
    // One thread: whatever the library hands to a pool would escape the clock.
    bevy::tasks::ComputeTaskPool::get_or_init(|| bevy::tasks::TaskPoolBuilder::new().num_threads(1).build());
    let only: Option<u8> = std::env::args().nth(1).and_then(|word| word.parse().ok());
    for (number, chests) in [
        (1, Chests::Sparse),
        (2, Chests::Sparse),
        (3, Chests::Sparse),
        (3, Chests::Full),
        (4, Chests::Sparse),
        (4, Chests::Full),
        (5, Chests::Sparse),
    ] {
        if only.is_none_or(|only| only == number) {
            run(number, chests);
        }
    }
}
