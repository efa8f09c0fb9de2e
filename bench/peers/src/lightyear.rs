//! lightyear 0.30.1, whose replication is bevy_replicon's with a transport, messages and timelines around it. A frame is one
//! `update` of the server's schedule with nothing in it but the library; prediction, interpolation and inputs are left out.
//!
//! It lacks what bevy_replicon lacks: quantisers, a filter by distance (entities are hidden one by one), differences.
//! Connections are links of its own in-process transport, cut open so that acknowledgements can be held back.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ::lightyear::crossbeam::CrossbeamIo;
use ::lightyear::prelude::client::{ClientPlugins, Connect, RawClient};
use ::lightyear::prelude::server::{LinkOf, RawServer, ServerPlugins};
use ::lightyear::prelude::*;
use bevy::prelude::*;
use bevy::state::app::StatesPlugin;
use bevy::time::TimeUpdateStrategy;
use bevy_replicon::shared::server_entity_map::ServerEntityMap;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use throng_replication_bench::workload::BenchObject;

use crate::components::{Load, Position, Rotation, Velocity, apply, bundle, count, equal};
use crate::{ACK_FRAMES, Peer, Sent};

const TICK: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// Frames in which clients connect, before there are objects.
const CONNECTING: usize = 30;

fn app(plugins: impl PluginGroup) -> App {
    let mut app = App::new();
    app.add_plugins((MinimalPlugins, StatesPlugin));
    app.add_plugins(plugins);
    app.insert_resource(TimeUpdateStrategy::ManualDuration(TICK));
    app.component::<Position>().replicate();
    app.component::<Rotation>().replicate();
    app.component::<Velocity>().replicate();
    app.component::<Load>().replicate();
    app.finish();
    app.cleanup();
    app
}

/// One connection: the client's app, and both ends of the cable between it and the server.
struct Seat {
    client: App,
    /// The link's entity at the server.
    link: Entity,
    from_server: Receiver<Bytes>,
    to_client: Sender<Bytes>,
    from_client: Receiver<Bytes>,
    to_server: Sender<Bytes>,
}

impl Seat {
    fn new(server: &mut World, listener: Entity, at: usize) -> Self {
        let (to_server, server_in) = unbounded();
        let (server_out, from_server) = unbounded();
        let (to_client, client_in) = unbounded();
        let (client_out, from_client) = unbounded();
        // Connections are told apart by their address.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + at as u16));
        let io = CrossbeamIo::new(server_out, server_in);
        let link = (LinkOf { server: listener }, Link::default(), PeerAddr(address), ReplicationSender, io);
        let link = server.spawn(link).id();
        server.trigger(LinkStart { entity: link });
        let mut client = app(ClientPlugins { tick_duration: TICK });
        let io = CrossbeamIo::new(client_out, client_in);
        let entity = client
            .world_mut()
            .spawn((RawClient, Link::default(), LocalAddr(address), ReplicationReceiver, io))
            .id();
        client.world_mut().trigger(Connect { entity });
        Self { client, link, from_server, to_client, from_client, to_server }
    }

    fn deliver(&mut self, sent: &mut Sent) -> Vec<Bytes> {
        for packet in self.from_server.try_iter() {
            sent.bytes += packet.len() as u64;
            sent.packets += 1;
            self.to_client.send(packet).expect("the client listens");
        }
        self.client.update();
        self.from_client.try_iter().collect()
    }
}

pub struct Lightyear {
    server: App,
    seats: Vec<Seat>,
    entities: Vec<Entity>,
    /// What clients sent in the last frames.
    answers: VecDeque<Vec<Vec<Bytes>>>,
}

impl Lightyear {
    fn hand_over(&mut self) {
        for (seat, packets) in self.seats.iter().zip(self.answers.pop_front().into_iter().flatten()) {
            packets.into_iter().for_each(|packet| seat.to_server.send(packet).expect("the server listens"));
        }
    }
}

impl Peer for Lightyear {
    const NAME: &'static str = "lightyear 0.30.1";
    const SEEN_AT_FIRST: bool = true;

    fn new(things: &[BenchObject], connections: usize) -> Self {
        let mut server = app(ServerPlugins { tick_duration: TICK });
        let listener = server.world_mut().spawn(RawServer).id();
        server.world_mut().entity_mut(listener).insert(Linked);
        server.update();
        let seats = (0..connections).map(|at| Seat::new(server.world_mut(), listener, at)).collect();
        let mut peer = Self { server, seats, entities: Vec::new(), answers: VecDeque::new() };
        for _ in 0..CONNECTING {
            peer.frame();
            peer.deliver();
            peer.hand_over();
        }
        let world = peer.server.world_mut();
        let spawn = |thing| world.spawn((Replicate::to_clients(NetworkTarget::All), bundle(thing))).id();
        peer.entities = things.iter().map(spawn).collect();
        peer
    }

    fn apply(&mut self, things: &[BenchObject]) {
        apply(self.server.world_mut(), &self.entities, things);
    }

    fn show(&mut self, connection: usize, object: usize, sees: bool) {
        let (world, entity, link) =
            (self.server.world_mut(), self.entities[object], self.seats[connection].link);
        if sees {
            world.gain_visibility(entity, link);
        } else {
            world.lose_visibility(entity, link);
        }
    }

    fn arrive(&mut self) {
        if self.answers.len() == ACK_FRAMES {
            self.hand_over();
        }
    }

    fn frame(&mut self) {
        self.server.update();
    }

    fn deliver(&mut self) -> Sent {
        let mut sent = Sent::default();
        let answers = self.seats.iter_mut().map(|seat| seat.deliver(&mut sent)).collect();
        self.answers.push_back(answers);
        sent
    }

    fn held(&mut self, connection: usize) -> usize {
        count(self.seats[connection].client.world_mut())
    }

    fn holds(&mut self, connection: usize, object: usize, thing: &BenchObject) -> bool {
        let world = self.seats[connection].client.world();
        let map = world.resource::<ServerEntityMap>().to_client();
        map.get(&self.entities[object]).is_some_and(|entity| equal(world, *entity, thing))
    }
}
