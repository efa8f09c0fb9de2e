//! D.7: rules are evaluated over members and newcomers together, those on positions too.

use crate::world;

use throng_matcher::{Config, Scope};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, player, to_room};

const RULES: &str = r#"{"name": "raid", "sides": [{"name": "side", "min": 2, "max": 4}], "backfill": {"ack_s": 600},
    "positions": [{"name": "tank", "per_side_min": 0, "per_side_max": 1}, {"name": "healer", "per_side_min": 0, "per_side_max": 1},
                  {"name": "damage", "per_side_min": 0, "per_side_max": 2}]}"#;

fn wants(world: &mut World, role: &str, positions: &[&str]) -> String {
    let player = positions.iter().fold(player(role, &[]), |player, position| player.str(5, position));
    world.ticket("s", "raid", vec![player])
}

/// Who was told which position.
fn told(world: &mut World) -> Vec<(String, String)> {
    let heard = world.take_kind(Event::MATCH_READY);
    let text = |entry: &Reader<'_>, number| entry.str(number).unwrap().to_owned();
    let positions = |heard: &world::Heard| -> Vec<(String, String)> {
        let body = Reader::new(&heard.body).unwrap();
        body.all(2)
            .map(|entry| Reader::new(entry).unwrap())
            .map(|entry| (text(&entry, 1), text(&entry, 2)))
            .collect()
    };
    heard.iter().flat_map(positions).collect()
}

#[test]
fn newcomers_take_positions_that_members_have_not() {
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(RULES).0, Status::Ok);
    let first = wants(&mut world, "a", &["tank"]);
    wants(&mut world, "b", &["healer"]);
    world.pass(250);
    let room = world.get_ticket(&first).room;
    for role in ["a", "b"] {
        world.ok("s", Method::ROLE_JOIN_ROOM, to_room(role, &room));
    }
    let start = Writer::new().str(1, &room).str(2, "raid").nested(3, Writer::new().str(1, "side").u64(2, 2));
    let (status, backfill) = world.ask_as("s", Scope::Trusted, Method::START_BACKFILL, start);
    assert_eq!(status, Status::Ok);
    let backfill = Reader::new(&backfill).unwrap().str(1).unwrap().to_owned();
    world.take_heard();
    // It looks before those that come later.
    world.pass(1);

    let tank = wants(&mut world, "t", &["tank"]);
    world.pass(250);
    assert_eq!(world.get_ticket(&tank).status, "searching", "the tank is there");
    let any = wants(&mut world, "x", &["tank", "healer", "damage"]);
    world.pass(250);
    assert_eq!(world.get_ticket(&any).room, room);
    assert_eq!(told(&mut world), [("x".to_owned(), "damage".to_owned())]);

    // Who came by the backfill has a position too.
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("x", &room));
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "b").str(2, &room));
    world.ok("s", Method::ACK_BACKFILL, Writer::new().str(1, &backfill));
    world.pass(250);
    assert_eq!(world.get_ticket(&tank).status, "searching");
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &room));
    world.ok("s", Method::ACK_BACKFILL, Writer::new().str(1, &backfill));
    world.pass(250);
    assert_eq!(world.get_ticket(&tank).room, room, "the tank has left");
    assert_eq!(told(&mut world), [("t".to_owned(), "tank".to_owned())]);
}
