//! naia 0.25.0. A frame is what its manual calls the loop: take packets, process them, take events and ticks, send; its clock
//! is its test clock, on a frame's time.
//!
//! It lacks: a filter by distance (entities are included and excluded user by user), differences, sharing between users.
//! It does find changes property by property, so an object is one component of thirteen, and a number to know it by;
//! integers are as wide as the workload says, floats go out whole: its fixed-point types round towards zero and have no offset.
//! A setter that marks a property tells every user of the object, before the clock starts: `apply_us` has that.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use naia_client::transport as client_io;
use naia_client::{Client, ClientConfig, JitterBufferType};
use naia_server::transport as server_io;
use naia_server::{ConnectEvent, RoomKey, Server, ServerConfig, UserKey};
use naia_shared::{
    ComponentFieldUpdate, ComponentKind, ComponentKinds, ComponentUpdate, EntityAndGlobalEntityConverter,
    GlobalWorldManagerType, IdentityToken, Instant, LocalEntityAndGlobalEntityConverter, Property, Protocol,
    ReplicaDynMut, ReplicaDynMutWrapper, ReplicaDynRef, ReplicaDynRefWrapper, ReplicaMutTrait,
    ReplicaMutWrapper, ReplicaRefTrait, ReplicaRefWrapper, Replicate, ReplicatedComponent, SerdeErr,
    TestClock, UnsignedInteger, WorldMutType, WorldRefType,
};
use throng_replication_bench::workload::BenchObject;

use crate::{ACK_FRAMES, Peer, Sent};

/// Frames in which clients connect, before there are objects.
const CONNECTING: usize = 1000;
/// Bytes a second and user: no limit.
const BANDWIDTH: u32 = 1_000_000_000;

#[derive(Replicate)]
struct Object {
    number: Property<u32>,
    position: Property<[f32; 3]>,
    rotation: Property<[f32; 4]>,
    velocity: Property<[f32; 3]>,
    health: Property<UnsignedInteger<10>>,
    armor: Property<UnsignedInteger<10>>,
    ammo: Property<u8>,
    state: Property<UnsignedInteger<4>>,
    flags: Property<UnsignedInteger<12>>,
    score: Property<u32>,
    pitch: Property<f32>,
    target: Property<UnsignedInteger<12>>,
    aim: Property<[f32; 3]>,
    cooldown: Property<f32>,
}

impl Object {
    fn of(number: u32, thing: &BenchObject) -> Self {
        Self::new_complete(
            number,
            thing.position,
            thing.rotation(),
            thing.velocity,
            UnsignedInteger::new(thing.health),
            UnsignedInteger::new(thing.armor),
            thing.ammo,
            UnsignedInteger::new(thing.state),
            UnsignedInteger::new(thing.flags),
            thing.score,
            thing.pitch,
            UnsignedInteger::new(thing.target),
            thing.aim,
            thing.cooldown,
        )
    }

    /// Sets the properties that are marked, by their numbers in the workload.
    fn set(&mut self, thing: &BenchObject) {
        let marked = |property: u32| thing.marked >> property & 1 != 0;
        if marked(0) {
            *self.position = thing.position;
        }
        if marked(1) {
            *self.rotation = thing.rotation();
        }
        if marked(2) {
            *self.velocity = thing.velocity;
        }
        if marked(3) {
            *self.health = UnsignedInteger::new(thing.health);
        }
        if marked(4) {
            *self.armor = UnsignedInteger::new(thing.armor);
        }
        if marked(5) {
            *self.ammo = thing.ammo;
        }
        if marked(6) {
            *self.state = UnsignedInteger::new(thing.state);
        }
        if marked(7) {
            *self.flags = UnsignedInteger::new(thing.flags);
        }
        if marked(8) {
            *self.score = thing.score;
        }
        if marked(9) {
            *self.pitch = thing.pitch;
        }
        if marked(10) {
            *self.target = UnsignedInteger::new(thing.target);
        }
        if marked(11) {
            *self.aim = thing.aim;
        }
        if marked(12) {
            *self.cooldown = thing.cooldown;
        }
    }

    fn equals(&self, thing: &BenchObject) -> bool {
        *self.position == thing.position
            && *self.rotation == thing.rotation()
            && *self.velocity == thing.velocity
            && self.health.get() == i128::from(thing.health)
            && self.armor.get() == i128::from(thing.armor)
            && *self.ammo == thing.ammo
            && self.state.get() == i128::from(thing.state)
            && self.flags.get() == i128::from(thing.flags)
            && *self.score == thing.score
            && *self.pitch == thing.pitch
            && self.target.get() == i128::from(thing.target)
            && *self.aim == thing.aim
            && *self.cooldown == thing.cooldown
    }
}

fn protocol() -> Protocol {
    let mut protocol = Protocol::builder();
    protocol.tick_interval(Duration::from_millis(33)).add_component::<Object>();
    protocol.build()
}

// ---------------------------------------------------------------------------------------------------------- world

/// The smallest world that naia can work on: an entity is a place in a list, with one component.
#[derive(Default)]
struct Store(Vec<Option<Box<dyn Replicate>>>);

impl Store {
    fn get(&self, entity: u32) -> Option<&dyn Replicate> {
        self.0.get(entity as usize)?.as_deref()
    }

    fn get_mut(&mut self, entity: u32) -> Option<&mut (dyn Replicate + 'static)> {
        self.0.get_mut(entity as usize)?.as_deref_mut()
    }

    fn typed<R: ReplicatedComponent>(&self, entity: u32) -> Option<&R> {
        self.get(entity)?.to_any().downcast_ref()
    }
}

struct Shared<'a, R>(&'a R);

impl<R: Replicate> ReplicaRefTrait<R> for Shared<'_, R> {
    fn to_ref(&self) -> &R {
        self.0
    }
}

struct Unique<'a, R>(&'a mut R);

impl<R: Replicate> ReplicaRefTrait<R> for Unique<'_, R> {
    fn to_ref(&self) -> &R {
        self.0
    }
}

impl<R: Replicate> ReplicaMutTrait<R> for Unique<'_, R> {
    fn to_mut(&mut self) -> &mut R {
        self.0
    }
}

/// naia takes worlds by value: both kinds of reference read alike.
macro_rules! reads {
    ($store:ty) => {
        impl WorldRefType<u32> for $store {
            fn has_entity(&self, entity: &u32) -> bool {
                (*entity as usize) < self.0.len()
            }

            fn entities(&self) -> Vec<u32> {
                (0..self.0.len() as u32).collect()
            }

            fn has_component<R: ReplicatedComponent>(&self, entity: &u32) -> bool {
                self.typed::<R>(*entity).is_some()
            }

            fn has_component_of_kind(&self, entity: &u32, kind: &ComponentKind) -> bool {
                self.get(*entity).is_some_and(|component| component.kind() == *kind)
            }

            fn component<'a, R: ReplicatedComponent>(
                &'a self,
                entity: &u32,
            ) -> Option<ReplicaRefWrapper<'a, R>> {
                self.typed(*entity).map(|component| ReplicaRefWrapper::new(Shared(component)))
            }

            fn component_of_kind<'a>(
                &'a self,
                entity: &u32,
                kind: &ComponentKind,
            ) -> Option<ReplicaDynRefWrapper<'a>> {
                let component = self.get(*entity).filter(|component| component.kind() == *kind)?;
                Some(ReplicaDynRefWrapper::new(ReplicaDynRef::new(component)))
            }
        }
    };
}

reads!(&Store);
reads!(&mut Store);

/// What naia does with entities that clients own or that a server hands out: none here.
macro_rules! never {
    ($($name:ident($($arg:ident: $of:ty),*);)*) => {
        $(fn $name(&mut self, $($arg: $of),*) {
            $(let _ = $arg;)*
            unreachable!("no client owns an entity")
        })*
    };
}

impl WorldMutType<u32> for &mut Store {
    fn spawn_entity(&mut self) -> u32 {
        self.0.push(None);
        self.0.len() as u32 - 1
    }

    fn local_duplicate_entity(&mut self, _: &u32) -> u32 {
        unreachable!("no client owns an entity")
    }

    fn despawn_entity(&mut self, entity: &u32) {
        self.0[*entity as usize] = None;
    }

    fn component_kinds(&mut self, entity: &u32) -> Vec<ComponentKind> {
        self.get(*entity).map(Replicate::kind).into_iter().collect()
    }

    fn component_mut<'a, R: ReplicatedComponent>(
        &'a mut self,
        entity: &u32,
    ) -> Option<ReplicaMutWrapper<'a, R>> {
        let component = self.get_mut(*entity)?.to_any_mut().downcast_mut()?;
        Some(ReplicaMutWrapper::new(Unique(component)))
    }

    fn component_mut_of_kind<'a>(
        &'a mut self,
        entity: &u32,
        kind: &ComponentKind,
    ) -> Option<ReplicaDynMutWrapper<'a>> {
        let component = self.get_mut(*entity).filter(|component| component.kind() == *kind)?;
        Some(ReplicaDynMutWrapper::new(ReplicaDynMut::new(component)))
    }

    fn component_apply_update(
        &mut self,
        converter: &dyn LocalEntityAndGlobalEntityConverter,
        entity: &u32,
        _: &ComponentKind,
        update: ComponentUpdate,
    ) -> Result<(), SerdeErr> {
        self.get_mut(*entity).map_or(Ok(()), |component| component.read_apply_update(converter, update))
    }

    fn component_apply_field_update(
        &mut self,
        converter: &dyn LocalEntityAndGlobalEntityConverter,
        entity: &u32,
        _: &ComponentKind,
        update: ComponentFieldUpdate,
    ) -> Result<(), SerdeErr> {
        self.get_mut(*entity).map_or(Ok(()), |component| component.read_apply_field_update(converter, update))
    }

    fn insert_component<R: ReplicatedComponent>(&mut self, entity: &u32, component: R) {
        self.0[*entity as usize] = Some(Box::new(component));
    }

    fn insert_boxed_component(&mut self, entity: &u32, component: Box<dyn Replicate>) {
        self.0[*entity as usize] = Some(component);
    }

    fn remove_component<R: ReplicatedComponent>(&mut self, entity: &u32) -> Option<R> {
        self.0[*entity as usize].take()?.to_boxed_any().downcast().ok().map(|component| *component)
    }

    fn remove_component_of_kind(&mut self, entity: &u32, _: &ComponentKind) -> Option<Box<dyn Replicate>> {
        self.0[*entity as usize].take()
    }

    never! {
        local_duplicate_components(to: &u32, from: &u32);
        mirror_entities(to: &u32, from: &u32);
        mirror_components(to: &u32, from: &u32, kind: &ComponentKind);
        entity_publish(
            kinds: &ComponentKinds,
            converter: &dyn EntityAndGlobalEntityConverter<u32>,
            manager: &dyn GlobalWorldManagerType,
            entity: &u32
        );
        component_publish(
            kinds: &ComponentKinds,
            converter: &dyn EntityAndGlobalEntityConverter<u32>,
            manager: &dyn GlobalWorldManagerType,
            entity: &u32,
            kind: &ComponentKind
        );
        entity_unpublish(entity: &u32);
        component_unpublish(entity: &u32, kind: &ComponentKind);
        entity_enable_delegation(
            kinds: &ComponentKinds,
            converter: &dyn EntityAndGlobalEntityConverter<u32>,
            manager: &dyn GlobalWorldManagerType,
            entity: &u32
        );
        component_enable_delegation(
            kinds: &ComponentKinds,
            converter: &dyn EntityAndGlobalEntityConverter<u32>,
            manager: &dyn GlobalWorldManagerType,
            entity: &u32,
            kind: &ComponentKind
        );
        entity_disable_delegation(entity: &u32);
        component_disable_delegation(entity: &u32, kind: &ComponentKind);
    }
}

// ------------------------------------------------------------------------------------------------------ transport

/// All packets under way. naia's own in-process transport walks over all connections for each packet that it sends.
#[derive(Default)]
struct Wires {
    /// Clients that wait for a token, and the tokens.
    joining: VecDeque<SocketAddr>,
    tokens: HashMap<SocketAddr, IdentityToken>,
    to_server: VecDeque<(SocketAddr, Vec<u8>)>,
    /// What clients sent in this frame.
    from_clients: Vec<(SocketAddr, Vec<u8>)>,
    to_clients: Vec<VecDeque<Vec<u8>>>,
    sent: Sent,
}

#[derive(Clone)]
struct Wire {
    all: Arc<Mutex<Wires>>,
    at: usize,
    last: Vec<u8>,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Wires> {
        self.all.lock().expect("one thread")
    }

    fn of(&self, at: usize) -> Self {
        Self { all: Arc::clone(&self.all), at, last: Vec::new() }
    }
}

fn address(at: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + at as u16))
}

fn seat_of(address: &SocketAddr) -> usize {
    usize::from(address.port()) - 10_000
}

impl From<Wire> for Box<dyn server_io::Socket> {
    fn from(wire: Wire) -> Self {
        Box::new(wire)
    }
}

impl server_io::Socket for Wire {
    fn listen(self: Box<Self>) -> server_io::ListenResult {
        let wire = *self;
        (Box::new(wire.clone()), Box::new(Doorbell(wire.clone())), Box::new(wire.clone()), Box::new(wire))
    }
}

impl server_io::AuthSender for Wire {
    fn accept(&self, address: &SocketAddr, token: &IdentityToken) -> Result<(), server_io::SendError> {
        self.lock().tokens.insert(*address, token.clone());
        Ok(())
    }

    fn reject(&self, _: &SocketAddr) -> Result<(), server_io::SendError> {
        Err(server_io::SendError)
    }
}

/// Who asks to join; what a client sends with it is empty.
#[derive(Clone)]
struct Doorbell(Wire);

impl server_io::AuthReceiver for Doorbell {
    fn receive(&mut self) -> Result<Option<(SocketAddr, &[u8])>, server_io::RecvError> {
        let next = self.0.lock().joining.pop_front();
        Ok(next.map(|address| (address, &[][..])))
    }
}

impl server_io::PacketSender for Wire {
    fn send(&self, address: &SocketAddr, payload: &[u8]) -> Result<(), server_io::SendError> {
        let mut wires = self.lock();
        wires.sent.bytes += payload.len() as u64;
        wires.sent.packets += 1;
        wires.to_clients[seat_of(address)].push_back(payload.to_vec());
        Ok(())
    }
}

impl server_io::PacketReceiver for Wire {
    fn receive(&mut self) -> Result<Option<(SocketAddr, &[u8])>, server_io::RecvError> {
        let next = self.lock().to_server.pop_front();
        Ok(next.map(|(address, packet)| {
            self.last = packet;
            (address, &self.last[..])
        }))
    }
}

// The client's end.

impl From<Wire> for Box<dyn client_io::Socket> {
    fn from(wire: Wire) -> Self {
        Box::new(wire)
    }
}

type ClientHandles = (
    Box<dyn client_io::IdentityReceiver>,
    Box<dyn client_io::PacketSender>,
    Box<dyn client_io::PacketReceiver>,
);

impl client_io::Socket for Wire {
    fn connect(self: Box<Self>) -> ClientHandles {
        let wire = *self;
        wire.lock().joining.push_back(address(wire.at));
        (Box::new(wire.clone()), Box::new(wire.clone()), Box::new(wire))
    }

    fn connect_with_auth(self: Box<Self>, _: Vec<u8>) -> ClientHandles {
        client_io::Socket::connect(self)
    }

    fn connect_with_auth_headers(self: Box<Self>, _: Vec<(String, String)>) -> ClientHandles {
        client_io::Socket::connect(self)
    }

    fn connect_with_auth_and_headers(self: Box<Self>, _: Vec<u8>, _: Vec<(String, String)>) -> ClientHandles {
        client_io::Socket::connect(self)
    }
}

impl client_io::IdentityReceiver for Wire {
    fn receive(&mut self) -> client_io::IdentityReceiverResult {
        match self.lock().tokens.get(&address(self.at)) {
            Some(token) => client_io::IdentityReceiverResult::Success(token.clone()),
            None => client_io::IdentityReceiverResult::Waiting,
        }
    }
}

impl client_io::PacketSender for Wire {
    fn send(&self, payload: &[u8]) -> Result<(), client_io::SendError> {
        self.lock().from_clients.push((address(self.at), payload.to_vec()));
        Ok(())
    }

    fn server_addr(&self) -> client_io::ServerAddr {
        client_io::ServerAddr::Found(address(0))
    }
}

impl client_io::PacketReceiver for Wire {
    fn receive(&mut self) -> Result<Option<&[u8]>, client_io::RecvError> {
        let next = self.lock().to_clients[self.at].pop_front();
        Ok(next.map(|packet| {
            self.last = packet;
            &self.last[..]
        }))
    }

    fn server_addr(&self) -> client_io::ServerAddr {
        client_io::ServerAddr::Found(address(0))
    }
}

// ----------------------------------------------------------------------------------------------------------- peer

struct Seat {
    client: Client<u32>,
    store: Store,
    user: Option<UserKey>,
    /// Places in `store` by the objects' numbers, once asked for.
    places: HashMap<u32, u32>,
}

pub struct Naia {
    server: Server<u32>,
    store: Store,
    room: Option<RoomKey>,
    seats: Vec<Seat>,
    wire: Wire,
    frames: u64,
    answers: VecDeque<Vec<(SocketAddr, Vec<u8>)>>,
}

impl Naia {
    fn hand_over(&mut self) {
        let packets = self.answers.pop_front().into_iter().flatten();
        self.wire.lock().to_server.extend(packets);
    }
}

impl Peer for Naia {
    const NAME: &'static str = "naia 0.25.0";
    const SEEN_AT_FIRST: bool = false;

    fn new(things: &[BenchObject], connections: usize) -> Self {
        TestClock::init(0);
        let wires = Wires { to_clients: vec![VecDeque::new(); connections], ..Wires::default() };
        let wire = Wire { all: Arc::new(Mutex::new(wires)), at: 0, last: Vec::new() };
        let mut config = ServerConfig { require_auth: false, ..ServerConfig::default() };
        config.connection.bandwidth.target_bytes_per_sec = BANDWIDTH;
        let mut server = Server::new(config, protocol());
        server.listen(wire.clone());
        let seats = (0..connections).map(|at| {
            let config = ClientConfig { jitter_buffer: JitterBufferType::Bypass, ..ClientConfig::default() };
            let mut client = Client::new(config, protocol());
            client.connect(wire.of(at));
            Seat { client, store: Store::default(), user: None, places: HashMap::new() }
        });
        let seats = seats.collect();
        let store = Store::default();
        let mut peer = Self { server, store, room: None, seats, wire, frames: 0, answers: VecDeque::new() };
        for _ in 0..CONNECTING {
            peer.frame();
            peer.deliver();
            peer.hand_over();
            if peer
                .seats
                .iter()
                .all(|seat| seat.user.is_some() && seat.client.connection_status().is_connected())
            {
                break;
            }
        }
        // Nobody is in the room: an object is in nobody's scope until it is included.
        let room = peer.server.create_room().key();
        for (number, thing) in things.iter().enumerate() {
            let mut entity = peer.server.spawn_entity(&mut peer.store);
            entity.insert_component(Object::of(number as u32, thing)).enter_room(&room);
        }
        peer.room = Some(room);
        peer
    }

    fn apply(&mut self, things: &[BenchObject]) {
        for (entity, thing) in things.iter().enumerate().filter(|(_, thing)| thing.marked != 0) {
            let component = self.store.get_mut(entity as u32).expect("spawned");
            component.to_any_mut().downcast_mut::<Object>().expect("the only kind").set(thing);
        }
    }

    fn show(&mut self, connection: usize, object: usize, sees: bool) {
        let user = self.seats[connection].user.expect("connected");
        let mut scope = self.server.user_scope_mut(&user);
        if sees {
            scope.include(&(object as u32));
        } else {
            scope.exclude(&(object as u32));
        }
    }

    fn arrive(&mut self) {
        if self.answers.len() == ACK_FRAMES {
            self.hand_over();
        }
    }

    fn frame(&mut self) {
        let now = Instant::now();
        self.server.receive_all_packets();
        self.server.process_all_packets(&mut self.store, &now);
        let mut events = self.server.take_world_events();
        for user in events.read::<ConnectEvent>() {
            let address = self.server.user_address(&user).expect("connected");
            self.seats[seat_of(&address)].user = Some(user);
        }
        self.server.take_tick_events(&now);
        self.server.send_all_packets(&self.store);
    }

    fn deliver(&mut self) -> Sent {
        let now = Instant::now();
        for seat in &mut self.seats {
            seat.client.receive_all_packets();
            seat.client.process_all_packets(&mut seat.store, &now);
            seat.client.take_world_events();
            seat.client.take_tick_events(&now);
            seat.client.send_all_packets(&seat.store);
        }
        self.frames += 1;
        TestClock::init(self.frames * 1000 / 30);
        let mut wires = self.wire.lock();
        let answers = std::mem::take(&mut wires.from_clients);
        self.answers.push_back(answers);
        std::mem::take(&mut wires.sent)
    }

    fn held(&mut self, connection: usize) -> usize {
        let seat = &mut self.seats[connection];
        seat.places.clear();
        for (place, component) in seat.store.0.iter().enumerate() {
            if let Some(object) = component.as_ref().and_then(|it| it.to_any().downcast_ref::<Object>()) {
                seat.places.insert(*object.number, place as u32);
            }
        }
        seat.places.len()
    }

    fn holds(&mut self, connection: usize, object: usize, thing: &BenchObject) -> bool {
        let seat = &self.seats[connection];
        let place = seat.places.get(&(object as u32));
        place.and_then(|place| seat.store.typed::<Object>(*place)).is_some_and(|object| object.equals(thing))
    }
}
