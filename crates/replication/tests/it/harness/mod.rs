//! A server and its clients over links with loss, delay, duplicates and reordering, in virtual
//! time.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::VecDeque;
use std::time::Duration;

use throng_replication::{
    Axis, Class, ClassId, Classes, Client, ClientConfig, ClientEvent, Condition, ConnId, Handle, Property,
    Quantiser, Received, Server, ServerConfig, View,
};
use throng_stdx::{Instant, Rng};

pub const FRAME: Duration = Duration::from_millis(33);

/// Faults of a link in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: u64,
    /// Frames under way.
    pub delay: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { loss: 0.0, duplicate: 0.0, reorder: 0, delay: 1 }
    }
}

/// True when a packet from the server to a peer gets through.
pub type Fate = Box<dyn FnMut(usize, &[u8]) -> bool>;

pub struct Peer {
    pub id: ConnId,
    pub client: Client,
    /// (frame of arrival, bytes).
    down: VecDeque<(u32, Vec<u8>)>,
    up: VecDeque<(u32, Vec<u8>)>,
    /// Packets of the last frame, as sent.
    pub sent: Vec<Vec<u8>>,
    pub events: Vec<ClientEvent>,
}

pub struct Net {
    pub server: Server,
    pub peers: Vec<Peer>,
    pub link: Link,
    pub rng: Rng,
    pub now: Instant,
    pub frame: u32,
    pub classes: Classes,
    /// Lets the test decide the fate of each packet from the server instead: (peer, packet) gets
    /// through.
    pub fate: Option<Fate>,
    /// Does the same for packets to the server.
    pub up_lost: bool,
    client_config: ClientConfig,
}

/// Class 0: position, health, ammo. Class 1: as 0, with differences. Class 2: owner conditions.
pub fn classes() -> Classes {
    let (xy, z) = (Axis::new(-5242.88, 0.01, 20), Axis::new(-655.36, 0.01, 17));
    let position = || Property::new("position", Quantiser::Vec3([xy, xy, z])).world_position();
    let mut classes = Classes::new();
    for (name, delta) in [("thing", false), ("delta thing", true)] {
        let class = Class::builder(name)
            .property(position())
            .property(Property::new("health", Quantiser::UInt(10)))
            .property(Property::new("ammo", Quantiser::UInt(8)))
            .property(Property::new("score", Quantiser::UInt(32)))
            .property(Property::new("name", Quantiser::Blob(64)))
            .delta(delta);
        classes.register(class.build().unwrap()).unwrap();
    }
    let class = Class::builder("pawn")
        .property(position())
        .property(Property::new("health", Quantiser::UInt(10)))
        .property(Property::new("secret", Quantiser::UInt(16)).condition(Condition::OwnerOnly))
        .property(Property::new("ghost", Quantiser::UInt(16)).condition(Condition::SkipOwner))
        .property(Property::new("seed", Quantiser::UInt(16)).condition(Condition::InitialOnly))
        .property(Property::new("custom", Quantiser::UInt(16)).condition(Condition::Custom))
        .property(Property::new("team", Quantiser::UInt(16)).condition(Condition::Group(3)));
    classes.register(class.build().unwrap()).unwrap();
    classes
}

/// A net with one class more, whose property 1 has a condition that is chosen at run time.
pub fn with_dynamic(peers: usize) -> (Net, ClassId) {
    let mut classes = classes();
    let axis = Axis::new(-5242.88, 0.01, 20);
    let class = Class::builder("dynamic")
        .property(Property::new("position", Quantiser::Vec3([axis; 3])).world_position())
        .property(Property::new("value", Quantiser::UInt(16)).condition(Condition::Dynamic));
    let class = classes.register(class.build().unwrap()).unwrap();
    (Net::of(classes, ServerConfig::default(), peers), class)
}

pub const THING: ClassId = ClassId(0);
pub const DELTA_THING: ClassId = ClassId(1);
pub const PAWN: ClassId = ClassId(2);
pub const POSITION: usize = 0;
pub const HEALTH: usize = 1;
pub const AMMO: usize = 2;
pub const SCORE: usize = 3;
pub const NAME: usize = 4;

impl Net {
    pub fn new(peers: usize) -> Self {
        Self::with(ServerConfig::default(), peers)
    }

    pub fn with(config: ServerConfig, peers: usize) -> Self {
        Self::of(classes(), config, peers)
    }

    pub fn of(classes: Classes, config: ServerConfig, peers: usize) -> Self {
        let client_config = ClientConfig {
            packet_bytes_max: config.packet_bytes_max,
            objects_max: config.objects_max,
            ..ClientConfig::default()
        };
        let server = Server::new(config, &classes);
        let mut net = Self {
            client_config,
            server,
            peers: Vec::new(),
            link: Link::default(),
            rng: Rng::new(1),
            now: Instant::ZERO,
            frame: 0,
            classes,
            fate: None,
            up_lost: false,
        };
        for _ in 0..peers {
            net.join();
        }
        net
    }

    pub fn join(&mut self) -> usize {
        let id = self.server.connect().unwrap();
        self.server.set_views(id, &[View::default()]);
        self.peers.push(Peer {
            id,
            client: Client::new(self.client_config.clone(), &self.classes),
            down: VecDeque::new(),
            up: VecDeque::new(),
            sent: Vec::new(),
            events: Vec::new(),
        });
        self.peers.len() - 1
    }

    /// One frame: packets that are due arrive, the server runs, its packets go out.
    pub fn step(&mut self) {
        self.frame += 1;
        self.now += FRAME;
        let (link, frame) = (self.link, self.frame);
        for peer in &mut self.peers {
            while let Some(at) = peer.up.iter().position(|(due, _)| *due <= frame) {
                let (_, packet) = peer.up.remove(at).unwrap();
                self.server.receive(peer.id, &packet).expect("our own client is polite");
            }
            peer.sent.clear();
        }
        let (peers, rng, fate) = (&mut self.peers, &mut self.rng, &mut self.fate);
        self.server.tick(self.now, |packets| {
            let (at, peer) =
                peers.iter_mut().enumerate().find(|(_, peer)| peer.id == packets.connection).unwrap();
            for packet in packets.iter() {
                peer.sent.push(packet.to_vec());
                let passes = match fate {
                    Some(fate) => fate(at, packet),
                    None => !rng.chance(link.loss),
                };
                if passes {
                    let due = frame + link.delay + rng.below(link.reorder + 1) as u32;
                    peer.down.push_back((due, packet.to_vec()));
                    if rng.chance(link.duplicate) {
                        peer.down.push_back((due + 1, packet.to_vec()));
                    }
                }
            }
        });
        for peer in &mut self.peers {
            while let Some(at) = peer.down.iter().position(|(due, _)| *due <= frame + 1) {
                let (_, packet) = peer.down.remove(at).unwrap();
                let received = peer.client.receive(&packet).expect("our own server is polite");
                let _: Received = received;
            }
            while let Some(event) = peer.client.poll_event() {
                peer.events.push(event);
            }
            if let Some(packet) = peer.client.poll_packet(self.now)
                && !self.rng.chance(link.loss)
                && !self.up_lost
            {
                peer.up.push_back((frame + link.delay, packet.to_vec()));
            }
        }
    }

    pub fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Quiet frames without loss.
    pub fn settle(&mut self, frames: u32) {
        self.link = Link { delay: self.link.delay, ..Link::default() };
        self.fate = None;
        self.up_lost = false;
        self.steps(frames);
    }

    /// Replicas are exactly the objects in scope, bit for bit.
    pub fn check(&self, objects: &[Handle]) {
        for (at, peer) in self.peers.iter().enumerate() {
            let mut expected = 0;
            for handle in objects {
                let replica = peer.client.replica(handle.index());
                if !self.server.exists(*handle) || !self.server.in_scope(peer.id, *handle) {
                    assert!(
                        replica.is_none_or(|replica| replica.generation() != handle.generation()),
                        "peer {at}: {handle:?} is out of scope and still there"
                    );
                    continue;
                }
                expected += 1;
                let replica = replica.unwrap_or_else(|| panic!("peer {at}: {handle:?} is missing"));
                assert_eq!(replica.generation(), handle.generation());
                for property in 0..replica.class().property_count() {
                    assert_eq!(
                        replica.value(property),
                        Some(self.server.quantised(*handle, property).unwrap()),
                        "peer {at}: {handle:?} property {property}"
                    );
                }
            }
            assert_eq!(peer.client.len(), expected, "peer {at}");
        }
    }

    pub fn value(&self, peer: usize, handle: Handle, property: usize) -> u64 {
        match self.peers[peer].client.replica(handle.index()).and_then(|replica| replica.value(property)) {
            Some(throng_replication::Value::UInt(value)) => value,
            other => panic!("{other:?}"),
        }
    }

    /// Sections of a packet as (kind, count), for what is on the wire.
    pub fn bytes_sent(&self, peer: usize) -> usize {
        self.peers[peer].sent.iter().map(Vec::len).sum()
    }
}
