//! Targets for state replication: packets from a server, records for every quantiser, packets from
//! a client.

use std::cell::RefCell;
use std::sync::LazyLock;

use throng_replication::wire::{HEADER_BYTES, Header};
use throng_replication::{
    Axis, Class, Classes, Client, ClientConfig, ClientEvent, Condition, Filter, Keyed, Property, Quantiser,
    Server, ServerConfig, Value,
};
use throng_stdx::Instant;

/// Objects with an index from here on do not exist.
const OBJECTS_MAX: u32 = 64;
/// Elements of the array of the class with many properties.
const ELEMENTS_MAX: u32 = 30;

/// Bytes of the longest blob, and of the longest transfer.
const LARGE: usize = 2000;
/// Texts that a client takes.
const TOKENS_MAX: usize = 8;

fn client_config() -> ClientConfig {
    ClientConfig {
        objects_max: OBJECTS_MAX,
        tokens_max: TOKENS_MAX,
        transfer_bytes_max: 2 * LARGE,
        ..ClientConfig::default()
    }
}

/// A class with every quantiser, the same with differences, and one with more properties than fit
/// one mask word.
fn classes() -> Classes {
    let axis = Axis::new(-512.0, 0.01, 17);
    let quantisers = [
        Quantiser::Vec3([axis; 3]),
        Quantiser::Bool,
        Quantiser::UInt(10),
        Quantiser::Int(33),
        Quantiser::VarUInt,
        Quantiser::VarInt,
        Quantiser::Fixed(axis),
        Quantiser::Vec2([axis; 2]),
        Quantiser::Unit3(10),
        Quantiser::Quat(10),
        Quantiser::Angle(9),
        Quantiser::F16,
        Quantiser::F32,
        Quantiser::F64,
        Quantiser::Token(1),
        Quantiser::Handle { hide: false },
        Quantiser::Blob(40),
        Quantiser::Array(Box::new(Quantiser::Quat(6)), 20),
        Quantiser::Text(12),
        Quantiser::Option(Box::new(Quantiser::Handle { hide: false })),
        Quantiser::Enum(vec![
            ("idle".into(), Vec::new()),
            ("named".into(), vec![Quantiser::Text(9), Quantiser::Option(Box::new(Quantiser::UInt(3)))]),
            ("list".into(), vec![Quantiser::Array(Box::new(Quantiser::Text(5)), 4)]),
        ]),
        Quantiser::Floats(3),
    ];
    let mut classes = Classes::new();
    for (name, delta) in [("everything", false), ("everything, by differences", true)] {
        let mut class = Class::builder(name).delta(delta);
        for (at, quantiser) in quantisers.iter().enumerate() {
            let property = Property::new(format!("p{at}"), quantiser.clone());
            class = class.property(if at == 0 { property.world_position() } else { property });
        }
        classes.register(class.build().expect("sound")).expect("two names");
    }
    let mut many = Class::builder("many");
    for at in 0..50 {
        let condition = if at % 7 == 3 { Condition::InitialOnly } else { Condition::Always };
        many = many.property(Property::new(format!("p{at}"), Quantiser::UInt(9)).condition(condition));
    }
    let bag =
        Keyed::new("bag", ELEMENTS_MAX).field("item", Quantiser::UInt(9)).field("text", Quantiser::VarUInt);
    let many = many.keyed(bag);
    classes.register(many.build().expect("sound")).expect("another name");
    let large = Class::builder("large")
        .property(Property::new("bytes", Quantiser::Blob(LARGE as u32)))
        .property(Property::new("word", Quantiser::Token(1)));
    classes.register(large.build().expect("sound")).expect("another name");
    classes
}

/// Packets of a server that creates six objects, changes them with differences, and ends one; of a
/// large one that goes in parts; of texts and of objects that the map has already. The packets are
/// small, so that a length byte names each.
fn session() -> (Classes, Vec<Vec<u8>>) {
    let classes = classes();
    let config = ServerConfig { packet_bytes_max: 256, ..ServerConfig::default() };
    let mut server = Server::new(config, &classes);
    let mut client = Client::new(client_config(), &classes);
    let id = server.connect().expect("the first");
    let handles: Vec<_> = (0..6)
        .map(|at| {
            let handle = server.create(throng_replication::ClassId(at % 3)).expect("few");
            server.set_filter(handle, Filter::Always).expect("just created");
            handle
        })
        .collect();
    let mut packets = Vec::new();
    let large = server.create(throng_replication::ClassId(3)).expect("few");
    let gate = server.create_startup(throng_replication::ClassId(2), "gate").expect("a new name");
    for handle in [large, gate] {
        server.set_filter(handle, Filter::Always).expect("just created");
    }
    for frame in 1..14_u64 {
        if frame == 1 || frame == 8 {
            let word = server.intern(1, if frame == 1 { "oak" } else { "elm" }).expect("few");
            server.set(large, 1, Value::Token(word)).expect("it exists");
            server.set(large, 0, vec![frame as u8; 700]).expect("it exists");
        }
        if frame == 9 {
            let reason = throng_replication::DestroyReason::Streamed;
            server.destroy(gate, reason, false).expect("it exists");
        }
        for handle in &handles[..if frame < 8 { 6 } else { 5 }] {
            server.set(*handle, 2, frame * 3).unwrap_or(());
            server.set(*handle, 16, vec![frame as u8; 5]).unwrap_or(());
            server.set(*handle, 18, "ä".repeat(frame as usize % 6)).unwrap_or(());
            server.set(*handle, 19, Value::Option(Some(Box::new(Value::Handle(handles[0]))))).unwrap_or(());
            let text = Value::Text("x".repeat(frame as usize % 5));
            server.set(*handle, 20, Value::Enum(2, vec![Value::List(vec![text; 3])])).unwrap_or(());
        }
        let element = [Value::UInt(frame), Value::UInt(frame << 9)];
        for key in 0..4 {
            let key = key + frame as u32 % 3;
            if frame % 4 == 3 {
                server.remove_element(handles[2], 0, key).expect("it has an array");
            } else {
                server.set_element(handles[2], 0, key, &element).expect("it has an array");
            }
        }
        if frame == 8 {
            let reason = throng_replication::DestroyReason::Destroyed;
            server.destroy(handles[5], reason, true).expect("it exists");
        }
        if frame == 10 {
            server.set_owner(handles[1], Some(id)).expect("both exist");
        }
        if frame == 6 {
            server.attach(id, handles[0], 3, &[7; 20], true).expect("little");
        }
        server.tick(Instant::from_millis(33 * frame), |out| {
            for packet in out.iter() {
                client.receive(packet).expect("our own packets are right");
                packets.push(packet.to_vec());
            }
        });
        if let Some(packet) = client.poll_packet(Instant::from_millis(33 * frame)) {
            server.receive(id, packet).expect("our own packets are right");
        }
    }
    (classes, packets)
}

static SESSION: LazyLock<(Classes, Vec<Vec<u8>>)> = LazyLock::new(session);

/// Image of a client, so that one that must not have changed can be compared.
fn image(client: &Client) -> u64 {
    let mut hash = u64::from(client.server_frame()) ^ client.len() as u64;
    let mut add = |word: u64| hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    for (table, id) in [(1, 1), (1, 2), (255, 1)] {
        add(client.token(table, id).map_or(0, |text| text.len() as u64 + 1));
    }
    for (index, replica) in client.replicas() {
        add(u64::from(index) << 32 | u64::from(replica.generation()));
        add(u64::from(replica.frame()));
        replica.words().iter().for_each(|word| add(*word));
        for key in replica.element_keys(0) {
            add(u64::from(key));
            for value in replica.element(0, key).expect("it is listed") {
                add(if let Value::UInt(value) = value { value } else { u64::MAX });
            }
        }
    }
    hash
}

/// Looks at a client after a packet: at all that it holds if the packet was refused, at what the
/// packet touched if not. Returns what it holds now.
fn look(client: &mut Client, before: u64, applied: bool) -> u64 {
    let now = image(client);
    if !applied {
        assert_eq!(now, before, "a refused packet changed something");
        assert_eq!(client.poll_event(), None, "a refused packet left an event");
        return now;
    }
    let mut events = 0;
    while let Some(event) = client.poll_event() {
        events += 1;
        match event {
            ClientEvent::Attachment(attachment) => assert!(attachment.bytes.len() <= 64 * 1024),
            ClientEvent::Created(handle) => read(client, handle.index()),
            ClientEvent::Updated { handle, .. } | ClientEvent::Elements { handle, .. } => {
                read(client, handle.index());
            }
            _ => {}
        }
    }
    assert!(events <= 4096, "more events than a packet has bytes");
    assert!(client.len() < OBJECTS_MAX as usize);
    now
}

/// Reads every property of a replica, if the packet that touched it has not ended it too.
fn read(client: &Client, index: u32) {
    let Some(replica) = client.replica(index) else { return };
    // Removed elements may leave a receiver late.
    assert!(replica.element_keys(0).len() <= 4 * ELEMENTS_MAX as usize + 256);
    for property in 0..replica.class().property_count() {
        match replica.value(property).expect("every property has a value") {
            Value::Bytes(bytes) => assert!(bytes.len() <= LARGE),
            Value::List(items) => assert!(items.len() <= 20),
            Value::Text(text) => assert!(text.len() <= 12),
            Value::Enum(variant, fields) => assert!(variant < 3 && fields.len() <= 2),
            _ => {}
        }
    }
}

/// A client that knows six objects, from the first half of the recorded session.
static PREPARED: LazyLock<(Client, u64)> = LazyLock::new(|| {
    let (classes, packets) = &*SESSION;
    let mut client = Client::new(client_config(), classes);
    for packet in &packets[..packets.len() / 2] {
        client.receive(&alone(packet)).expect("recorded");
        while client.poll_event().is_some() {}
    }
    let image = image(&client);
    (client, image)
});

/// A recorded packet for a client that has sent nothing: it acknowledges nothing.
fn alone(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[2..12].copy_from_slice(&[0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet
}

thread_local! {
    /// A clone of [`PREPARED`] that has applied nothing since: a refused packet leaves it good for
    /// the next input.
    static CLIENT: RefCell<Client> = RefCell::new(PREPARED.0.clone());
}

/// Lets `session` have the prepared client; true from it says that the client has changed.
fn with_prepared(session: impl FnOnce(&mut Client, u64) -> bool) {
    CLIENT.with_borrow_mut(|client| {
        if session(client, PREPARED.1) {
            client.clone_from(&PREPARED.0);
        }
    });
}

/// Sections of packets for a client that knows six objects: a length byte and a packet's sections,
/// again and again.
///
/// Asserts that a refused packet changes nothing, that replicas stay readable and that nothing
/// exceeds its limit.
pub fn replication_client(input: &[u8]) {
    with_prepared(|client, image| {
        let (mut rest, mut image, mut changed) = (input, image, false);
        let mut seq = (SESSION.1.len() / 2) as u16;
        let mut frame = client.server_frame();
        let mut packet = Vec::with_capacity(HEADER_BYTES + 255);
        while let Some((len, tail)) = rest.split_first() {
            let (sections, tail) = tail.split_at(usize::from(*len).min(tail.len()));
            rest = tail;
            frame += 1;
            packet.clear();
            packet.extend_from_slice(&Header { seq, ack: u16::MAX, ack_bits: 0, frame }.to_bytes());
            packet.extend_from_slice(sections);
            let applied = client.receive(&packet).is_ok();
            seq = seq.wrapping_add(u16::from(applied));
            image = look(client, image, applied);
            if applied {
                client.poll_packet(Instant::from_millis(u64::from(frame)));
                changed = true;
            }
        }
        changed
    });
}

/// One whole packet, header included, for a client that knows six objects.
///
/// Asserts what [`replication_client`] does.
pub fn replication_packet(input: &[u8]) {
    with_prepared(|client, image| {
        let applied = client.receive(input).is_ok();
        look(client, image, applied);
        applied
    });
}

/// Packets of a client, after an honest beginning: a length byte and what follows the sequence
/// number.
///
/// Asserts that the server goes on, whatever was acknowledged, called or asked for.
pub fn replication_server(input: &[u8]) {
    let (classes, _) = &*SESSION;
    let mut server =
        Server::new(ServerConfig { objects_max: OBJECTS_MAX, ..ServerConfig::default() }, classes);
    let id = server.connect().expect("the first");
    let mut handles = Vec::new();
    for at in 0..3 {
        let handle = server.create(throng_replication::ClassId(at)).expect("few");
        server.set_filter(handle, Filter::Always).expect("just created");
        server.set_owner(handle, (at == 1).then_some(id)).expect("just created");
        handles.push(handle);
    }
    let (mut rest, mut time, mut seq) = (input, 0, 0_u16);
    while let Some((len, tail)) = rest.split_first() {
        time += 33;
        for handle in &handles {
            server.set(*handle, 2, time).expect("it exists");
        }
        server.tick(Instant::from_millis(time), |out| assert!(out.bytes.len() <= 1 << 16));
        let (body, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        let mut packet = seq.to_le_bytes().to_vec();
        packet.extend_from_slice(body);
        if packet.len() >= HEADER_BYTES && server.receive(id, &packet).is_ok() {
            seq = seq.wrapping_add(1);
        }
        while server.poll_event().is_some() {}
    }
    server.tick(Instant::from_millis(time + 33), |_| {});
}

/// Inputs to begin with: the recorded session, for each of the three targets.
#[must_use]
pub fn replication_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let (_, packets) = &*SESSION;
    let framed = |from: usize, packets: &[Vec<u8>]| {
        packets.iter().fold(Vec::new(), |mut all, packet| {
            let body = &packet[from..packet.len().min(from + 255)];
            all.push(body.len() as u8);
            all.extend_from_slice(body);
            all
        })
    };
    let acknowledging: Vec<Vec<u8>> = (0..4_u16)
        .map(|at| {
            let mut bytes = Header { seq: at, ack: at, ack_bits: 1, frame: 1 }.to_bytes().to_vec();
            // An input of three bytes, a reset of object 2, a reliable call on it.
            bytes.extend_from_slice(&[0x82, 1, 3, 0, 1, 2, 3, 0x81, 1, 1, 0, 2]);
            bytes.extend_from_slice(&[0x04, 1, 2, 7, at as u8, 9, 2, 1, 1]);
            bytes
        })
        .collect();
    vec![
        ("replication_client", framed(HEADER_BYTES, &packets[packets.len() / 2..])),
        ("replication_packet", alone(&packets[packets.len() / 2])),
        ("replication_server", framed(2, &acknowledging)),
    ]
}
