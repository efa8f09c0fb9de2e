//! bevy_replicon 0.44.3. A frame is one `update` of the server's schedule with nothing in it but the library.
//!
//! It lacks: quantisers (values go out as they are in memory), a filter by distance (entities are hidden one by one, with a
//! filter of its own), a priority beyond a frequency, differences.

use std::collections::VecDeque;

use bevy::prelude::*;
use bevy::state::app::StatesPlugin;
use bevy_replicon::prelude::*;
use bevy_replicon::server::visibility::client_visibility::ClientVisibility;
use bevy_replicon::server::visibility::filters_mask::FilterBit;
use bevy_replicon::server::visibility::registry::FilterRegistry;
use bevy_replicon::shared::replication::registry::ReplicationRegistry;
use bevy_replicon::shared::server_entity_map::ServerEntityMap;
use bevy_replicon::test_app::{ServerTestAppExt, TestClientEntity};
use throng_replication_bench::workload::BenchObject;

use crate::components::{Load, Position, Rotation, Velocity, apply, bundle, count, equal};
use crate::{ACK_FRAMES, Peer, Sent};

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

/// Messages of a frame from one client, with their channels.
type Messages = Vec<(usize, bytes::Bytes)>;

pub struct Replicon {
    server: App,
    clients: Vec<App>,
    /// The clients' entities at the server.
    seats: Vec<Entity>,
    entities: Vec<Entity>,
    in_range: FilterBit,
    answers: VecDeque<Vec<Messages>>,
}

impl Peer for Replicon {
    const NAME: &'static str = "bevy_replicon 0.44.3";
    const SEEN_AT_FIRST: bool = true;

    fn new(things: &[BenchObject], connections: usize) -> Self {
        let mut server = app();
        let mut clients: Vec<App> = (0..connections).map(|_| app()).collect();
        for client in &mut clients {
            server.connect_client(client);
        }
        let seats = clients.iter().map(|client| **client.world().resource::<TestClientEntity>()).collect();
        let in_range = server.world().resource::<InRange>().0;
        let spawn = |thing| server.world_mut().spawn((Replicated, bundle(thing))).id();
        let entities = things.iter().map(spawn).collect();
        Self { server, clients, seats, entities, in_range, answers: VecDeque::new() }
    }

    fn apply(&mut self, things: &[BenchObject]) {
        apply(self.server.world_mut(), &self.entities, things);
    }

    fn show(&mut self, connection: usize, object: usize, sees: bool) {
        let mut seat = self.server.world_mut().entity_mut(self.seats[connection]);
        let mut visibility = seat.get_mut::<ClientVisibility>().expect("connected");
        visibility.set(self.entities[object], self.in_range, sees);
    }

    fn arrive(&mut self) {
        if self.answers.len() < ACK_FRAMES {
            return;
        }
        let mut inbox = self.server.world_mut().resource_mut::<ServerMessages>();
        for (seat, sent) in self.seats.iter().zip(self.answers.pop_front().into_iter().flatten()) {
            for (channel, message) in sent {
                inbox.insert_received(*seat, channel, message);
            }
        }
    }

    fn frame(&mut self) {
        self.server.update();
    }

    fn deliver(&mut self) -> Sent {
        let mut all = Sent::default();
        let mut outbox = self.server.world_mut().resource_mut::<ServerMessages>();
        for (to, channel, message) in outbox.drain_sent() {
            all.bytes += message.len() as u64;
            all.packets += 1;
            let at = self.seats.iter().position(|seat| *seat == to).expect("a client");
            self.clients[at].world_mut().resource_mut::<ClientMessages>().insert_received(channel, message);
        }
        let sent = self.clients.iter_mut().map(|client| {
            client.update();
            client.world_mut().resource_mut::<ClientMessages>().drain_sent().collect()
        });
        self.answers.push_back(sent.collect());
        all
    }

    fn held(&mut self, connection: usize) -> usize {
        count(self.clients[connection].world_mut())
    }

    fn holds(&mut self, connection: usize, object: usize, thing: &BenchObject) -> bool {
        let world = self.clients[connection].world();
        let map = world.resource::<ServerEntityMap>().to_client();
        map.get(&self.entities[object]).is_some_and(|entity| equal(world, *entity, thing))
    }
}
