//! The typed layer: structs, enums, calls and elements by derivation, and what of theirs is
//! refused.

use std::collections::BTreeMap;

use throng_replication::wire::{DecodeError, HEADER_BYTES, Header, kind};
use throng_replication::{
    AttachError, Axis, Call, Class, Classes, Client, ClientConfig, ClientEvent, Condition, ConnId, Element,
    Event, Field, Filter, Handle, ObjectError, Property, Quantiser, Ref, Replicate, Server, ServerConfig,
    Value,
};
use throng_stdx::Instant;

#[derive(Clone, Debug, Default, PartialEq, Field)]
enum Stance {
    #[default]
    Idle,
    Running(f32, u8),
    Riding {
        mount: Ref<Player>,
        #[replicate(max = 8)]
        name: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Element)]
struct Item {
    kind: u16,
    #[replicate(Quantiser::UInt(4))]
    count: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Replicate)]
#[replicate(name = "player", cull_distance = 100.0, retain, calls(Shoot, Hurt, Wave))]
struct Player {
    #[replicate(Quantiser::Vec3([Axis::new(-1024.0, 0.125, 14); 3]), position)]
    position: [f32; 3],
    #[replicate(velocity)]
    velocity: [f32; 3],
    stance: Stance,
    #[replicate(max = 16)]
    name: String,
    #[replicate(max = 4)]
    marks: Vec<Option<u8>>,
    friend: Option<Ref<Player>>,
    #[replicate(condition = Condition::OwnerOnly)]
    gold: i32,
    #[replicate(keyed, max = 10)]
    bag: BTreeMap<u32, Item>,
    #[replicate(skip)]
    local: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Call)]
#[call(to = server)]
struct Shoot {
    direction: [f32; 2],
    at: Ref<Player>,
}

#[derive(Clone, Debug, Default, PartialEq, Call)]
#[call(to = clients, unreliable)]
struct Hurt {
    by: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Call)]
#[call(to = server, callable)]
struct Wave;

#[derive(Clone, Debug, Default, PartialEq, Replicate)]
struct Door {
    open: bool,
    target: Ref<Player>,
}

/// A player to a receiver, without descriptions of calls.
#[derive(Clone, Debug, Default, PartialEq, Replicate)]
#[replicate(name = "player", cull_distance = 100.0, retain)]
struct Careless {
    #[replicate(Quantiser::Vec3([Axis::new(-1024.0, 0.125, 14); 3]), position)]
    position: [f32; 3],
    #[replicate(velocity)]
    velocity: [f32; 3],
    stance: Stance,
    #[replicate(max = 16)]
    name: String,
    #[replicate(max = 4)]
    marks: Vec<Option<u8>>,
    friend: Option<Ref<Player>>,
    #[replicate(condition = Condition::OwnerOnly)]
    gold: i32,
}

struct Pair {
    server: Server,
    client: Client,
    id: ConnId,
    now: Instant,
    packets: Vec<Vec<u8>>,
}

impl Pair {
    fn new() -> Self {
        let mut classes = Classes::new();
        classes.add::<Player>().unwrap();
        classes.add::<Door>().unwrap();
        Self::of(&classes)
    }

    fn of(classes: &Classes) -> Self {
        let mut server = Server::new(ServerConfig::default(), classes);
        let id = server.connect().unwrap();
        server.set_views(id, &[throng_replication::View::default()]);
        let client = Client::new(ClientConfig::default(), classes);
        Self { server, client, id, now: Instant::ZERO, packets: Vec::new() }
    }

    fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.now += std::time::Duration::from_millis(33);
            let Self { server, client, packets, now, .. } = self;
            server.tick(*now, |out| {
                for packet in out.iter() {
                    client.receive(packet).unwrap();
                    packets.push(packet.to_vec());
                }
            });
            if let Some(packet) = self.client.poll_packet(self.now) {
                self.server.receive(self.id, packet).unwrap();
            }
        }
    }
}

fn hero(handle: Handle<Player>) -> Player {
    Player {
        position: [1.0, 2.0, 0.5],
        velocity: [0.1, -7.25, 1e-3],
        stance: Stance::Riding { mount: handle.into(), name: "Žofka".into() },
        name: "Ada".into(),
        marks: vec![Some(3), None, Some(250)],
        friend: Some(handle.into()),
        gold: -5,
        bag: BTreeMap::from([(7, Item { kind: 300, count: 15 }), (9, Item::default())]),
        local: 0,
    }
}

#[test]
fn every_kind_of_field_comes_back() {
    let mut pair = Pair::new();
    let handle = pair.server.create(&Player::default()).unwrap();
    let hero = hero(handle);
    pair.server.set_owner(handle.untyped(), Some(pair.id)).unwrap();
    hero.write(&mut pair.server, handle.untyped()).unwrap();
    pair.steps(4);
    let mut seen = Player { local: 4, ..Player::default() };
    assert_eq!(pair.client.read(handle, &mut seen), Some(()));
    assert_eq!(seen, Player { local: 4, ..hero.clone() });
    // Field by field, and back to what is smaller.
    Player::set_stance(&mut pair.server, handle, &Stance::Running(0.5, 3)).unwrap();
    Player::set_marks(&mut pair.server, handle, &vec![None]).unwrap();
    Player::set_friend(&mut pair.server, handle, &None).unwrap();
    Player::set_bag(&mut pair.server, handle, &BTreeMap::from([(9, Item { kind: 1, count: 2 })])).unwrap();
    pair.steps(4);
    pair.client.read(handle, &mut seen).unwrap();
    assert_eq!((&seen.stance, &seen.marks[..], &seen.friend), (&Stance::Running(0.5, 3), &[None][..], &None));
    assert_eq!(seen.bag, BTreeMap::from([(9, Item { kind: 1, count: 2 })]));
    assert_eq!(seen.name, "Ada");
    // Too long a string, too long a list.
    assert!(Player::set_name(&mut pair.server, handle, &"x".repeat(17)).is_err());
    assert!(Player::set_marks(&mut pair.server, handle, &vec![None; 5]).is_err());
}

#[test]
fn a_value_fits_only_objects_of_its_class() {
    #[derive(Clone, Debug, Default, PartialEq, Replicate)]
    struct Ogre {
        health: u16,
    }
    #[derive(Clone, Debug, Default, PartialEq, Replicate)]
    struct Chest {
        lock: u16,
    }
    let mut classes = Classes::new();
    classes.add::<Ogre>().unwrap();
    classes.add::<Chest>().unwrap();
    let mut pair = Pair::of(&classes);
    let chest = pair.server.create(&Chest { lock: 3 }).unwrap();
    pair.server.set_filter(chest.untyped(), Filter::Always).unwrap();
    let refused = Ogre { health: 77 }.write(&mut pair.server, chest.untyped());
    assert!(matches!(refused, Err(ObjectError::OtherClass)), "{refused:?}");
    pair.steps(4);
    let replica = pair.client.get(chest.untyped()).expect("it has arrived");
    assert_eq!((Chest::read(replica), Ogre::read(replica)), (Some(Chest { lock: 3 }), None));
    pair.server.destroy(chest.untyped(), throng_replication::DestroyReason::Destroyed, false).unwrap();
    let refused = Chest { lock: 4 }.write(&mut pair.server, chest.untyped());
    assert!(matches!(refused, Err(ObjectError::Unknown)), "{refused:?}");
}

#[test]
fn a_replica_is_read_into_a_value_without_allocation() {
    let mut pair = Pair::new();
    let handle = pair.server.create(&Player::default()).unwrap();
    pair.server.set_owner(handle.untyped(), Some(pair.id)).unwrap();
    let mut hero = hero(handle);
    let mut seen = Player::default();
    for gold in 0..3 {
        hero.gold = gold;
        hero.write(&mut pair.server, handle.untyped()).unwrap();
        pair.steps(4);
        let read = allocation_counter::measure(|| pair.client.read(handle, &mut seen).unwrap());
        assert!(gold == 0 || read.count_total == 0, "{} allocations", read.count_total);
        assert_eq!(seen, hero);
    }
}

#[test]
fn the_typed_layer_writes_the_bytes_of_the_untyped_one() {
    let mut untyped = Classes::new();
    untyped.register(Player::class().unwrap()).unwrap();
    let class = Class::builder("Door")
        .property(Property::new("open", Quantiser::Bool))
        .property(Property::new("target", Quantiser::Handle { hide: false }));
    let door = untyped.register(class.build().unwrap()).unwrap();
    let (mut typed, mut plain) = (Pair::new(), Pair::of(&untyped));
    let handle = typed.server.create(&Door::default()).unwrap();
    let same = plain.server.create(door).unwrap();
    for (server, handle) in [(&mut typed.server, handle.untyped()), (&mut plain.server, same)] {
        server.set_filter(handle, Filter::Always).unwrap();
    }
    typed.steps(4);
    plain.steps(4);
    Door::set_open(&mut typed.server, handle, &true).unwrap();
    plain.server.set(same, 0, true).unwrap();
    typed.steps(2);
    plain.steps(2);
    assert_eq!(typed.packets, plain.packets);
}

#[test]
fn every_property_of_a_struct_writes_the_bytes_of_its_value() {
    let mut untyped = Classes::new();
    untyped.register(Player::class().unwrap()).unwrap();
    untyped.register(Door::class().unwrap()).unwrap();
    let (mut typed, mut plain) = (Pair::new(), Pair::of(&untyped));
    let handle = typed.server.create(&Player::default()).unwrap();
    let same = plain.server.create(throng_replication::ClassId(0)).unwrap();
    typed.server.set_owner(handle.untyped(), Some(typed.id)).unwrap();
    plain.server.set_owner(same, Some(plain.id)).unwrap();
    typed.steps(3);
    plain.steps(3);
    let hero = hero(handle);
    hero.write(&mut typed.server, handle.untyped()).unwrap();
    let reference = Value::Handle(same);
    let option = |value: Option<Value>| Value::Option(value.map(Box::new));
    let riding = vec![reference.clone(), Value::Text("Žofka".into())];
    let marks = [Some(3_u64), None, Some(250)].map(|mark| option(mark.map(Value::UInt)));
    let values = [
        Value::Vec3([1.0, 2.0, 0.5]),
        Value::Vec3([0.1, -7.25, 1e-3]),
        Value::Enum(2, riding),
        Value::Text("Ada".into()),
        Value::List(marks.to_vec()),
        option(Some(reference)),
        Value::Int(-5),
    ];
    for (property, value) in values.into_iter().enumerate() {
        plain.server.set(same, property, value).unwrap();
    }
    for (key, [kind, count]) in [(7, [300_u32, 15]), (9, [0, 0])] {
        plain.server.set_element(same, Player::BAG, key, &[kind.into(), count.into()]).unwrap();
    }
    typed.steps(3);
    plain.steps(3);
    assert_eq!(typed.packets, plain.packets);
}

#[test]
fn a_value_that_does_not_fit_creates_nothing() {
    let mut pair = Pair::new();
    let root = pair.server.create(&Player::default()).unwrap();
    pair.server.set_owner(root.untyped(), Some(pair.id)).unwrap();
    let long = Player { name: "x".repeat(17), ..Player::default() };
    assert!(pair.server.create(&long).is_err());
    assert!(pair.server.create_part(root, &long).is_err());
    pair.steps(4);
    assert_eq!(pair.client.len(), 1);
}

/// A field of each type, with the quantiser that the type has unless one is named.
#[derive(Clone, Debug, Default, PartialEq, Replicate)]
struct Defaults {
    r#type: bool,
    unsigned: [f32; 2],
    a: u8,
    b: u16,
    c: u32,
    d: u64,
    e: i8,
    f: i16,
    g: i32,
    h: i64,
    single: f32,
    double: f64,
    space: [f32; 3],
    turn: [f32; 4],
    text: String,
    bytes: std::sync::Arc<[u8]>,
    list: Vec<i16>,
    option: Option<String>,
    nested: Vec<Option<Vec<u8>>>,
    plain: Handle,
    reference: Ref<Player>,
}

#[test]
fn quantisers_have_defaults_by_type_that_keep_every_value() {
    let mut classes = Classes::new();
    classes.add::<Defaults>().unwrap();
    let mut pair = Pair::of(&classes);
    let handle = pair.server.create(&Defaults::default()).unwrap();
    pair.server.set_owner(handle.untyped(), Some(pair.id)).unwrap();
    let extremes = [
        Defaults {
            r#type: true,
            unsigned: [f32::MIN, f32::MAX],
            a: u8::MAX,
            b: u16::MAX,
            c: u32::MAX,
            d: u64::MAX,
            e: i8::MIN,
            f: i16::MIN,
            g: i32::MIN,
            h: i64::MIN,
            single: f32::INFINITY,
            double: f64::MIN_POSITIVE,
            space: [1e-30, -1e30, 0.1],
            turn: [0.0, 0.0, 0.0, 1.0],
            text: "x".repeat(255),
            bytes: vec![9; 255].into(),
            list: vec![i16::MIN; 255],
            option: Some(String::new()),
            nested: vec![None, Some(vec![]), Some(vec![1, 2])],
            plain: handle.untyped(),
            reference: Handle::<Player>::default().into(),
        },
        Defaults { e: i8::MAX, f: i16::MAX, g: i32::MAX, h: i64::MAX, ..Defaults::default() },
    ];
    let mut seen = Defaults::default();
    for wanted in extremes {
        wanted.write(&mut pair.server, handle.untyped()).unwrap();
        pair.steps(12);
        pair.client.read(handle, &mut seen).unwrap();
        // A rotation has twelve bits an axis, and both signs mean the same.
        let turned: f32 = seen.turn.iter().zip(wanted.turn).map(|(a, b)| a * b).sum();
        assert!(turned.abs() > 0.999 || wanted.turn == [0.0; 4], "{:?}", seen.turn);
        assert_eq!(Defaults { turn: wanted.turn, ..seen.clone() }, wanted);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Replicate)]
struct Geometry {
    flat: glam::Vec2,
    #[replicate(Quantiser::Vec3([Axis::new(-1024.0, 0.125, 14); 3]), position)]
    place: glam::Vec3,
    fast: glam::Vec3A,
    four: glam::Vec4,
    turn: glam::Quat,
}

#[test]
fn vectors_of_glam_are_fields() {
    let mut classes = Classes::new();
    classes.add::<Geometry>().unwrap();
    let mut pair = Pair::of(&classes);
    let wanted = Geometry {
        flat: glam::vec2(0.1, -3.0),
        place: glam::vec3(1.125, -2.0, 8.5),
        fast: glam::vec3a(1e-3, 2.0, 1e9),
        four: glam::vec4(1.0, 2.0, 3.0, f32::MIN),
        turn: glam::Quat::from_rotation_z(0.75),
    };
    let handle = pair.server.create(&wanted).unwrap();
    pair.steps(3);
    let mut seen = Geometry::default();
    pair.client.read(handle, &mut seen).expect("nearer than its range");
    assert!(seen.turn.angle_between(wanted.turn) < 1e-2, "{:?}", seen.turn);
    assert_eq!(Geometry { turn: wanted.turn, ..seen }, wanted);
}

#[test]
fn names_of_another_class_are_not_given() {
    let mut pair = Pair::new();
    let door = pair.server.create(&Door::default()).unwrap();
    pair.server.set_filter(door.untyped(), Filter::Always).unwrap();
    pair.steps(3);
    assert_eq!(pair.client.typed::<Door>(door.untyped()), Some(door));
    assert_eq!(pair.client.typed::<Player>(door.untyped()), None);
    assert_eq!(pair.server.typed::<Player>(door.untyped()), None);
    assert_eq!(pair.client.typed::<Door>(Handle::from_parts(door.index(), 9)), None);
}

#[test]
fn calls_have_a_direction_a_class_and_arguments() {
    let mut pair = Pair::new();
    let hero = pair.server.create(&Player::default()).unwrap();
    pair.server.set_owner(hero.untyped(), Some(pair.id)).unwrap();
    pair.steps(4);
    while pair.client.poll_event().is_some() {}
    let shot = Shoot { direction: [0.25, -1.5], at: hero.into() };
    pair.client.call(hero, &shot).unwrap();
    assert_eq!(pair.client.call(hero, &Hurt { by: 1 }), Err(AttachError::Direction));
    assert_eq!(pair.server.call(pair.id, hero, &Wave), Err(AttachError::Direction));
    pair.server.call_all(hero, &Hurt { by: 700 }).unwrap();
    pair.steps(2);
    let Some(Event::Attachment(id, call)) = pair.server.poll_event() else { panic!("a call") };
    assert_eq!((id, pair.server.read_call(&call)), (pair.id, Some((hero, shot))));
    assert_eq!(pair.server.read_call::<Wave>(&call), None);
    let Some(ClientEvent::Attachment(call)) = pair.client.poll_event() else { panic!("a call") };
    assert_eq!(pair.client.read_call(&call), Some((hero, Hurt { by: 700 })));
    assert!(!call.reliable);
    // Without the object only the callable one goes.
    pair.server.set_owner(hero.untyped(), None).unwrap();
    pair.steps(4);
    assert_eq!(pair.client.call(hero, &Shoot::default()), Err(AttachError::NoRight));
    pair.client.call(hero, &Wave).unwrap();
    pair.steps(2);
    let calls: Vec<_> = std::iter::from_fn(|| pair.server.poll_event()).collect();
    assert!(matches!(&calls[..], [Event::Attachment(_, call)] if call.method == 2), "{calls:?}");
}

#[test]
fn calls_that_no_class_describes_are_dropped_and_counted() {
    let mut pair = Pair::new();
    // Its program lets it send what the server's class does not describe.
    let mut classes = Classes::new();
    classes.add::<Careless>().unwrap();
    pair.client = Client::new(ClientConfig::default(), &classes);
    let hero = pair.server.create(&Player::default()).unwrap();
    pair.server.set_owner(hero.untyped(), Some(pair.id)).unwrap();
    pair.steps(4);
    // An unknown method, arguments that end early, too many of them, the wrong direction, the wrong
    // reliability.
    for (method, bytes, reliable) in
        [(9, &[][..], true), (0, &[0], true), (2, &[0, 0], true), (1, &[0; 3], false), (2, &[0], false)]
    {
        pair.client.attach(hero.untyped(), method, bytes, reliable).unwrap();
    }
    pair.client.attach(hero.untyped(), 2, &[0], true).unwrap();
    pair.steps(3);
    let calls: Vec<_> = std::iter::from_fn(|| pair.server.poll_event()).collect();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(pair.server.connection_stats(pair.id).unwrap().calls_refused, 5);
}

/// Untyped calls of described ones have to fit, so that none vanishes on the way.
#[test]
fn a_call_that_does_not_fit_its_description_is_refused() {
    let mut pair = Pair::new();
    let hero = pair.server.create(&Player::default()).unwrap().untyped();
    pair.server.set_owner(hero, Some(pair.id)).unwrap();
    pair.steps(4);
    // A zero bit, then the fields.
    let hurt = (700_u32 << 1).to_le_bytes();
    let cases = [
        ((1, &hurt[..2], false), AttachError::Arguments),
        ((1, &hurt[..], false), AttachError::Arguments),
        ((1, &[0xff, 0xff, 0xff][..], false), AttachError::Arguments),
        ((1, &hurt[..3], true), AttachError::Reliability),
        ((2, &[0][..], true), AttachError::Direction),
        ((9, &[][..], true), AttachError::Direction),
    ];
    for ((method, bytes, reliable), error) in cases {
        let refused = pair.server.attach(pair.id, hero, method, bytes, reliable);
        assert_eq!(refused, Err(error), "{method}, {bytes:?}, {reliable}");
        let refused = pair.server.attach_all(hero, method, bytes, reliable);
        assert_eq!(refused, Err(error), "{method}, {bytes:?}, {reliable}");
    }
    for ((method, bytes, reliable), error) in [
        ((1, &hurt[..3], false), AttachError::Direction),
        ((2, &[0][..], false), AttachError::Reliability),
        ((2, &[0, 0][..], true), AttachError::Arguments),
    ] {
        assert_eq!(pair.client.attach(hero, method, bytes, reliable), Err(error), "{method}, {bytes:?}");
    }
    pair.server.attach(pair.id, hero, 1, &hurt[..3], false).unwrap();
    pair.server.attach_all(hero, 1, &hurt[..3], false).unwrap();
    while pair.client.poll_event().is_some() {}
    pair.steps(3);
    let calls = std::iter::from_fn(|| pair.client.poll_event());
    let calls = calls.filter(|event| matches!(event, ClientEvent::Attachment(_)));
    assert_eq!(calls.count(), 2);
}

#[test]
fn descriptions_of_calls_are_part_of_the_protocol() {
    use throng_replication::Direction::{ToClients, ToServer};
    let of = |call: throng_replication::Call| Class::builder("x").call(call).build().unwrap().protocol_hash();
    let call = || throng_replication::Call::new("fire", ToServer);
    let hashes = [
        of(call()),
        of(call().unreliable()),
        of(call().callable()),
        of(call().argument(Quantiser::UInt(4))),
        of(call().argument(Quantiser::UInt(5))),
        of(throng_replication::Call::new("fire", ToClients)),
        Class::builder("x").build().unwrap().protocol_hash(),
    ];
    let different: std::collections::BTreeSet<u64> = hashes.into_iter().collect();
    assert_eq!(different.len(), hashes.len());
}

/// A packet that creates an object of class 0 with property 0 in these bits, for a receiver of its
/// own.
fn refuses(quantiser: Quantiser, bits: &[u8]) -> Option<DecodeError> {
    let mut classes = Classes::new();
    let class = Class::builder("x").property(Property::new("p", quantiser));
    classes.register(class.build().unwrap()).unwrap();
    let mut client = Client::new(ClientConfig::default(), &classes);
    let mut packet = Header { seq: 0, ack: u16::MAX, ack_bits: 0, frame: 1 }.to_bytes().to_vec();
    // Index 1, generation 0, class 0, no flags; then the mask, one bit, and the property.
    packet.extend_from_slice(&[kind::CREATE, 1, 1, 0, 0, 0, 0, 0, 0]);
    let mut carry = 1_u16;
    for byte in bits {
        carry |= u16::from(*byte) << 1;
        packet.push(carry as u8);
        carry >>= 8;
    }
    packet.push(carry as u8);
    let result = client.receive(&packet).err();
    assert!(result.is_none() || client.is_empty() && client.poll_event().is_none());
    assert!(packet.len() > HEADER_BYTES);
    result
}

#[test]
fn unknown_variants_broken_strings_and_excess_lengths_refuse_the_packet() {
    assert_eq!(refuses(Quantiser::Text(4), &[3, b'a', 0xc3, 0xa9]), None);
    assert_eq!(refuses(Quantiser::Text(4), &[3, b'a', 0xc3, b'a']), Some(DecodeError::Value));
    assert_eq!(refuses(Quantiser::Text(4), &[2, b'a', 0xc3]), Some(DecodeError::Value));
    assert_eq!(refuses(Quantiser::Text(4), &[5, b'a', b'a', b'a', b'a', b'a']), Some(DecodeError::TooLong));
    // Idle, Running(f32, u8), Riding: two bits of variant, the fourth does not exist.
    assert_eq!(refuses(Stance::quantiser(0), &[]), None);
    assert_eq!(refuses(Stance::quantiser(0), &[0b01, 0, 0, 0, 0]), None);
    assert_eq!(refuses(Stance::quantiser(0), &[0b11, 0, 0, 0, 0, 0]), Some(DecodeError::Value));
    assert_eq!(refuses(Vec::<Option<u8>>::quantiser(2), &[2]), None);
    assert_eq!(refuses(Vec::<Option<u8>>::quantiser(2), &[3, 0b000]), Some(DecodeError::TooLong));
}

#[test]
fn an_option_without_a_value_is_one_bit() {
    let bits = |value: Value| {
        let codec = throng_replication::Codec::compile(&Option::<u32>::quantiser(0)).unwrap();
        codec.write_heap(&value, &mut Vec::new()).unwrap()
    };
    assert_eq!((bits(None::<u32>.to_value()), bits(Some(7_u32).to_value())), (1, 33));
}

#[test]
fn components_that_come_and_go_are_parts() {
    let mut pair = Pair::new();
    let hero = pair.server.create(&Player::default()).unwrap();
    let door = pair.server.create_part(hero, &Door { open: true, ..Door::default() }).unwrap();
    pair.steps(4);
    let replica = pair.client.get(door.untyped()).unwrap();
    assert_eq!((replica.parent(), Door::read(replica).unwrap().open), (Some(hero.untyped()), true));
    pair.server.destroy(door.untyped(), throng_replication::DestroyReason::Destroyed, false).unwrap();
    pair.steps(4);
    assert!(pair.client.get(door.untyped()).is_none() && pair.client.get(hero.untyped()).is_some());
}

#[test]
fn both_sides_go_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Server>();
    check::<Client>();
    check::<Handle<std::cell::Cell<u8>>>();
}
