//! Classes that are known only when the program runs, as an engine's editor or a scripting language
//! has them: the schema is text here. `cargo run --example runtime_schema` prints what a client
//! sees.

#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use throng_replication::{
    Axis, Class, ClassId, Classes, Client, ClientConfig, ClientEvent, Filter, Instant, Property, Quantiser,
    Server, ServerConfig, Value,
};

const SCHEMA: &str = "\
class crate
position vec3 world
durability uint8
label text32

class player
position vec3 world
health uint10
target object
";

/// Builds classes from lines of `name quantiser [world]`.
fn classes(schema: &str) -> Result<Classes, Box<dyn std::error::Error>> {
    let metres = Axis::new(-1024.0, 1.0 / 64.0, 17);
    let mut classes = Classes::new();
    for block in schema.split("\n\n") {
        let mut lines = block.lines();
        let name =
            lines.next().and_then(|line| line.strip_prefix("class ")).ok_or("a block begins with a class")?;
        let mut class = Class::builder(name);
        for line in lines {
            let mut words = line.split(' ');
            let (name, kind) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let number = kind.trim_start_matches(char::is_alphabetic).parse::<u8>();
            let quantiser = match (kind.trim_end_matches(char::is_numeric), number) {
                ("vec", Ok(3)) => Quantiser::Vec3([metres; 3]),
                ("uint", Ok(bits)) => Quantiser::UInt(bits),
                ("text", Ok(bytes)) => Quantiser::Text(bytes.into()),
                ("object", _) => Quantiser::Handle { hide: true },
                _ => return Err(format!("unknown quantiser {kind}").into()),
            };
            let property = Property::new(name, quantiser);
            class = class.property(if words.next() == Some("world") {
                property.world_position()
            } else {
                property
            });
        }
        classes.register(class.build()?)?;
    }
    Ok(classes)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let classes = classes(SCHEMA)?;
    let mut server = Server::new(ServerConfig::default(), &classes);
    let mut client = Client::new(ClientConfig::default(), &classes);
    let id = server.connect().ok_or("no room")?;
    let (chest, player) = (server.create(ClassId(0))?, server.create(ClassId(1))?);
    for handle in [chest, player] {
        server.set_filter(handle, Filter::Always)?;
    }
    // Properties by name, looked up once.
    let property = |class: u16, name: &str| {
        classes.get(ClassId(class)).and_then(|class| class.property_index(name)).ok_or("no such property")
    };
    server.set(chest, property(0, "label")?, "apples".to_owned())?;
    server.set(player, property(1, "health")?, 900_u32)?;
    server.set(player, property(1, "target")?, chest)?;
    server.tick(Instant::from_millis(33), |packets| {
        for packet in packets.iter() {
            let received = client.receive(packet);
            debug_assert!(received.is_ok(), "{received:?}");
        }
    });
    if let Some(answer) = client.poll_packet(Instant::from_millis(40)) {
        server.receive(id, answer)?;
    }
    while let Some(event) = client.poll_event() {
        let ClientEvent::Created(handle) = event else { continue };
        let Some(replica) = client.get(handle) else { continue };
        println!("{} {handle:?}", replica.class().name());
        for at in 0..replica.class().property_count() {
            let (name, value) = (replica.class().property_name(at), replica.value(at));
            let here = match value {
                Some(Value::Handle(target)) if client.get(target).is_some() => " (here)",
                _ => "",
            };
            println!("  {} = {:?}{here}", name.unwrap_or(""), value.unwrap_or(Value::Bool(false)));
        }
    }
    Ok(())
}
