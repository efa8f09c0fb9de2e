//! Players, ratings, queues and rooms as JSON lines: out of one matcher, into another.

use throng_matcher::{Config, Matcher, ModeRules};
use throng_wire::matcher::{Method, Status, Writer};

use crate::world::{World, player, roles_in, to_room};

const QUEUE: &str = r#"{"name": "duel",
    "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}], "rating": {"pool": "p"}}"#;

fn lines(matcher: &Matcher) -> String {
    let mut lines = Vec::new();
    matcher.export(&mut lines);
    String::from_utf8(lines).unwrap()
}

/// A matcher with rooms, a queue, ratings, and what is not exported: a team and a ticket.
fn world() -> World {
    let rules = ModeRules { capacity: 3, keep_empty: true, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("keep".to_owned(), rules)].into(), ..Config::default() });
    assert_eq!(world.put_queue(QUEUE).0, Status::Ok);
    let room = world.create_room("s1", "ann", "keep");
    world.ok("s2", Method::ROLE_JOIN_ROOM, to_room("ben", &room));
    world.ok(
        "s1",
        Method::SET_ROOM_DATA,
        Writer::new().str(1, &room).str(2, "map").str(3, "[1, {\"a\": \"\\n\"}]"),
    );
    let empty = world.create_room("s1", "cid", "keep");
    world.ok("s1", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "cid").str(2, &empty));
    world.create_room("s3", "dan", "2v2");
    let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
    let result = Writer::new().str(2, &room).nested(3, side("ann", 1)).nested(3, side("ben", 2)).str(6, "p");
    let rated = world.ask_as("", throng_matcher::Scope::Admin, Method::REPORT_RESULT, result);
    assert_eq!(rated.0, Status::Ok);
    world.ticket("s4", "duel", vec![player("eve", &[])]);
    world.create_team("s4", "fay", 3, "");
    world
}

#[test]
fn what_is_exported_is_imported() {
    let mut world = world();
    let exported = lines(&world.matcher);
    let imported = Matcher::import(&exported, [3; 32]).unwrap();
    assert_eq!(lines(&imported), exported, "nothing is lost on the way");
    let counts = imported.counts();
    assert_eq!((counts.rooms, counts.players, counts.tickets, counts.teams), (3, 3, 0, 0));
    imported.check_invariants().unwrap();
    // The rooms go on as they were, under their ids.
    let room = world.join_random("s1", "ann", "keep");
    let mut other = World::new(Config::default());
    other.matcher = imported;
    assert_eq!(other.room(&room).0, Status::Ok);
    assert_eq!(roles_in(&other.room(&room).1, 4), ["ann", "ben"]);
    other.ok("s9", Method::ROLE_JOIN_ROOM, to_room("gil", &room));
    assert_ne!(other.create_room("s9", "hal", "keep"), room);
    let skill = |world: &mut World| {
        world.ok("s", Method::GET_RATINGS, Writer::new().str(1, "p").str(2, "ann").str(2, "ben"))
    };
    assert_eq!(skill(&mut other), skill(&mut world));
}

#[test]
fn a_line_that_is_wrong_is_named() {
    let exported = lines(&world().matcher);
    let at =
        |kind: &str| exported.lines().position(|line| line.starts_with(&format!("{{\"{kind}\""))).unwrap();
    let (queue, rating, player, room) = (at("queue"), at("rating"), at("player"), at("room"));
    let changed = |line: usize, from: &str, to: &str| {
        let mut all: Vec<String> = exported.lines().map(str::to_owned).collect();
        assert!(all[line].contains(from), "{}", all[line]);
        all[line] = all[line].replacen(from, to, 1);
        all.join("\n")
    };
    let twice = |line: usize| {
        let mut all: Vec<&str> = exported.lines().collect();
        all.insert(line, all[line]);
        all.join("\n")
    };
    for (lines, line, why) in [
        (String::new(), 0, "no lines"),
        (changed(0, "\"export\":1", "\"export\":2"), 1, "version 2"),
        (exported.lines().skip(1).collect::<Vec<_>>().join("\n"), 1, "the first line"),
        (twice(0), 2, "the first line"),
        (twice(queue), queue + 2, "queue `duel` is there twice"),
        (changed(queue, "\"sides\"", "\"slides\""), queue + 1, "slides"),
        (twice(rating), rating + 2, "rated twice"),
        (changed(rating, "\"sigma\":", "\"sigma\":-"), rating + 1, "over 0"),
        (changed(rating, "weng_lin", "glicko2"), rating + 1, "mu and sigma"),
        (twice(player), player + 2, "there twice"),
        (changed(player, "\"role\":\"ann\"", "\"role\":\"zoe\""), room + 1, "role `ann` has no line"),
        (twice(room), room + 2, "that of another room"),
        (changed(room, "\"MatchMode\":\"keep\"", "\"MatchMode\":\"kept\""), room + 1, "no such match mode"),
        (changed(room, "\"RoomID\":\"0", "\"RoomID\":\"f"), room + 1, "too large"),
        (changed(room, "\"RoomID\":\"0", "\"RoomID\":\"x"), room + 1, "no id"),
        (changed(room, "\"sealed\"", "\"scaled\""), room + 1, "scaled"),
        (changed(player, "{\"player\"", "{\"planet\""), player + 1, "planet"),
        (exported.lines().rev().collect::<Vec<_>>().join("\n"), 1, "the first line"),
        (
            format!("{exported}{}", exported.lines().nth(queue).unwrap()),
            exported.lines().count() + 1,
            "too late",
        ),
    ] {
        let error = Matcher::import(&lines, [3; 32]).unwrap_err();
        assert!(error.line == line && error.why.contains(why), "{error}, not line {line}: {why}");
    }
}
