//! Spec §7.5 and §10.4: texts are told once, in the packet that first uses their number; startup
//! objects have names.

use std::collections::BTreeSet;

use crate::harness;
use harness::*;
use throng_replication::{
    Class, ClassId, ClientEvent, DestroyReason, Filter, Handle, Keyed, ObjectError, Property, Quantiser,
    ServerConfig, TokenError, Value,
};

const SIGN: ClassId = ClassId(3);
const TABLE: u8 = 4;

fn with_sign(peers: usize) -> Net {
    let mut classes = classes();
    let words = Quantiser::Array(Box::new(Quantiser::Token(TABLE)), 20);
    let class = Class::builder("sign")
        .property(Property::new("text", Quantiser::Token(TABLE)))
        .property(Property::new("words", words))
        .property(Property::new("number", Quantiser::UInt(8)))
        .keyed(Keyed::new("notes", 50).field("note", Quantiser::Token(TABLE)));
    assert_eq!(classes.register(class.build().unwrap()), Ok(SIGN));
    Net::of(classes, ServerConfig::default(), peers)
}

fn create(net: &mut Net, class: ClassId) -> Handle {
    let handle = net.server.create(class).unwrap();
    net.server.set_filter(handle, Filter::Always).unwrap();
    handle
}

fn text(net: &Net, peer: usize, handle: Handle) -> Option<String> {
    let client = &net.peers[peer].client;
    match client.replica(handle.index())?.value(0)? {
        Value::Token(id) => client.token(TABLE, id).map(str::to_owned),
        other => panic!("{other:?}"),
    }
}

/// How often the packets of the last frame hold these bytes.
fn on_wire(net: &Net, text: &str) -> usize {
    let holds = |packet: &Vec<u8>| packet.windows(text.len()).filter(|part| *part == text.as_bytes()).count();
    net.peers[0].sent.iter().map(holds).sum()
}

#[test]
fn a_text_is_told_until_it_has_arrived_and_never_again() {
    let mut net = with_sign(1);
    let sign = create(&mut net, SIGN);
    let (oak, elm) = (net.server.intern(TABLE, "oak").unwrap(), net.server.intern(TABLE, "elm").unwrap());
    assert_eq!(net.server.intern(TABLE, "oak"), Ok(oak));
    assert_eq!(net.server.intern(255, "oak"), Err(TokenError::Reserved));
    net.server.set(sign, 0, Value::Token(oak)).unwrap();
    net.step();
    assert_eq!((on_wire(&net, "oak"), text(&net, 0, sign).as_deref()), (1, Some("oak")));
    net.steps(3);
    // In use again before an acknowledgement of the text: told again. After it: not.
    net.up_lost = true;
    for (value, told) in [(elm, 1), (oak, 0), (elm, 1)] {
        net.server.set(sign, 0, Value::Token(value)).unwrap();
        net.step();
        assert_eq!(on_wire(&net, "elm"), told);
        assert_eq!(on_wire(&net, "oak"), 0);
    }
    net.settle(8);
    net.server.set(sign, 0, Value::Token(oak)).unwrap();
    net.step();
    net.server.set(sign, 0, Value::Token(elm)).unwrap();
    net.step();
    assert_eq!(on_wire(&net, "elm") + on_wire(&net, "oak"), 0);
    assert_eq!(text(&net, 0, sign).as_deref(), Some("elm"));
    // Numbers of the game's own are sent as they are.
    net.server.set(sign, 0, Value::Token(77)).unwrap();
    net.steps(2);
    assert_eq!(text(&net, 0, sign), None);
    net.check(&[sign]);
}

/// All patterns of losses of eight packets: whatever number a receiver holds, it knows the text.
#[test]
fn no_number_comes_without_its_text() {
    for pattern in 0..1 << 8_u32 {
        let mut net = with_sign(1);
        let sign = create(&mut net, SIGN);
        let mut sent = 0;
        net.fate = Some(Box::new(move |_, _| {
            sent += 1;
            sent > 8 || pattern >> (sent - 1) & 1 == 0
        }));
        for round in 0..12 {
            let words = ["a tree", "a stone", "a well"];
            let ids = words.map(|word| net.server.intern(TABLE, word).unwrap());
            net.server.set(sign, 0, Value::Token(ids[round % 3])).unwrap();
            if round == 5 {
                net.server.set(sign, 1, Value::List(ids.map(Value::Token).to_vec())).unwrap();
            }
            if round == 7 {
                let late = net.server.intern(TABLE, "a late one").unwrap();
                net.server.set_element(sign, 0, 1, &[Value::Token(late)]).unwrap();
            }
            net.step();
            if let Some(Value::Token(id)) =
                net.peers[0].client.replica(sign.index()).and_then(|it| it.value(0))
                && id != 0
            {
                assert!(text(&net, 0, sign).is_some(), "pattern {pattern:08b}");
            }
        }
        net.settle(30);
        net.check(&[sign]);
        let client = &net.peers[0].client;
        let replica = client.replica(sign.index()).unwrap();
        let Some(Value::List(words)) = replica.value(1) else { panic!("a list") };
        let notes = replica.element(0, 1).unwrap();
        for word in words.iter().chain(&notes) {
            assert!(matches!(word, Value::Token(id) if client.token(TABLE, *id).is_some()), "{word:?}");
        }
    }
}

#[test]
fn texts_that_fit_no_packet_with_their_use_go_in_parts() {
    let mut net = with_sign(2);
    let sign = create(&mut net, SIGN);
    let words: Vec<Value> =
        (0..20).map(|at| Value::Token(net.server.intern(TABLE, &format!("{at:0>200}")).unwrap())).collect();
    net.server.set(sign, 1, Value::List(words.clone())).unwrap();
    net.steps(8);
    net.check(&[sign]);
    for peer in &net.peers {
        for (at, word) in words.iter().enumerate() {
            let Value::Token(id) = word else { panic!() };
            assert_eq!(peer.client.token(TABLE, *id), Some(&format!("{at:0>200}")[..]));
        }
        assert_eq!(net.server.connection_stats(peer.id).unwrap().transfers, 1);
    }
}

#[test]
fn objects_know_what_they_are_made_from() {
    let mut net = with_sign(1);
    let tree = create(&mut net, THING);
    net.server.set_archetype(tree, "models/oak").unwrap();
    let plain = create(&mut net, THING);
    net.steps(2);
    let client = &net.peers[0].client;
    assert_eq!(client.replica(tree.index()).unwrap().archetype(), Some("models/oak"));
    assert_eq!(client.replica(tree.index()).unwrap().startup_name(), None);
    assert_eq!(client.replica(plain.index()).unwrap().archetype(), None);
}

#[test]
fn objects_of_the_map_are_bound_by_name_and_their_end_is_remembered() {
    let mut net = with_sign(1);
    let gate = net.server.create_startup(THING, "north gate").unwrap();
    net.server.set_filter(gate, Filter::Always).unwrap();
    // Never in scope of anybody, and yet in everybody's map.
    let wall = net.server.create_startup(THING, "wall").unwrap();
    net.server.set_filter(wall, Filter::Never).unwrap();
    assert_eq!(net.server.create_startup(THING, "wall"), Err(ObjectError::Name));
    assert_eq!(net.server.set_archetype(wall, "brick"), Err(ObjectError::Name));
    net.steps(3);
    let replica = net.peers[0].client.replica(gate.index()).unwrap();
    assert_eq!((replica.startup_name(), replica.archetype()), (Some("north gate"), None));
    net.peers[0].events.clear();
    net.link.loss = 0.5;
    net.server.destroy(gate, DestroyReason::Destroyed, false).unwrap();
    net.server.destroy(wall, DestroyReason::Streamed, false).unwrap();
    net.steps(30);
    let late = net.join();
    net.steps(30);
    net.settle(10);
    for peer in [0, late] {
        let ends: BTreeSet<(String, u8)> = net.peers[peer]
            .events
            .iter()
            .filter_map(|event| match event {
                ClientEvent::StartupDestroyed { name, reason } => Some((name.to_string(), *reason as u8)),
                _ => None,
            })
            .collect();
        let all = [("north gate".to_owned(), 0), ("wall".to_owned(), 3)];
        assert_eq!(ends, all.into_iter().collect(), "peer {peer}");
    }
    assert_eq!(net.server.create_startup(THING, "wall"), Err(ObjectError::Name));
    // Told once: nothing more is on the wire.
    net.step();
    assert_eq!(net.bytes_sent(0) + net.bytes_sent(late), 0);
}

/// Ends of other objects of the map waited for one whose name no packet holds.
#[test]
fn the_end_of_a_startup_object_with_a_long_name_holds_up_no_other() {
    let mut net = Net::with(ServerConfig { packet_bytes_max: 64, ..ServerConfig::default() }, 0);
    let names = ["short".to_owned(), "long".repeat(30), "shorter".to_owned()];
    for name in &names {
        let thing = net.server.create_startup(THING, name).unwrap();
        net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
    }
    let late = net.join();
    net.steps(6);
    let ended = net.peers[late].events.iter().filter_map(|event| match event {
        ClientEvent::StartupDestroyed { name, .. } => Some(&**name),
        _ => None,
    });
    assert_eq!(ended.collect::<BTreeSet<_>>(), BTreeSet::from(["short", "shorter"]));
    assert!(net.server.total_stats().oversized > 0);
}
