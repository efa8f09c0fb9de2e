//! B.4 and D.9: what an open room and a waiting ticket cost in memory.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::world;
use throng_matcher::Config;
use throng_wire::matcher::{Status, Writer};
use world::{World, player};

const OBJECTS: u64 = 100_000;
const ALONE: [&str; 2] = ["--exact", "memory::a_room_with_one_member_and_a_ticket_are_small"];

/// Bytes that the process has in memory.
#[expect(
    clippy::disallowed_methods,
    reason = "what the system says of this process, not an input of the matcher"
)]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// What each of many objects needs, the growth of tables included.
fn each(mut make: impl FnMut(&mut World, u64), world: &mut World) -> u64 {
    for number in 0..1_000 {
        make(world, OBJECTS + number);
    }
    let before = resident();
    for number in 0..OBJECTS {
        make(world, number);
        world.heard.clear();
    }
    (resident() - before) / OBJECTS
}

#[test]
fn a_room_with_one_member_and_a_ticket_are_small() {
    if !std::env::args().any(|argument| argument == ALONE[0]) {
        // Memory belongs to the process, and the other tests of this one use theirs.
        let child = Command::new(std::env::current_exe().unwrap()).args(ALONE).output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    let mut world = World::new(Config::default());
    let room =
        each(|world, number| drop(world.create_room("s", &format!("role-{number:08}"), "2v2")), &mut world);
    assert!(room < 2 << 10, "{room} bytes for an open room with one member");

    let rules = r#"{"name": "q", "sides": [{"name": "side", "count": 2, "min": 5, "max": 5}],
        "attributes": {"skill": {"type": "number"}, "level": {"type": "number"}, "mode": {"type": "string"},
                       "build": {"type": "string"}, "class": {"type": "string"}},
        "rules": [{"type": "near", "key": "skill", "max": 0}, {"type": "latency", "max_ms": 200}]}"#;
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(rules).0, Status::Ok);
    let make = |world: &mut World, number: u64| {
        let skill = number.to_string();
        let attrs = [
            ("skill", skill.as_str()),
            ("level", "7"),
            ("mode", "\"ranked\""),
            ("build", "\"1.2.3\""),
            ("class", "\"mage\""),
        ];
        let one = [("eu", 20.0), ("us", 90.0), ("ap", 180.0)]
            .iter()
            .fold(player(&format!("role-{number:08}"), &attrs), |one, (region, ms)| {
                one.nested(4, Writer::new().str(1, region).f64(2, *ms))
            });
        world.ticket("s", "q", vec![one]);
    };
    let ticket = each(make, &mut world);
    assert!(ticket < 2 << 10, "{ticket} bytes for a ticket");
}
