//! Players, ratings, queues and rooms as JSON lines: out of one matcher, into another.

use throng_matcher::{Config, Matcher, ModeRules, OnFull};
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
fn what_any_matcher_exports_can_be_imported() {
    for seed in 0..12 {
        let mut source = crate::snapshots::Source::new(seed);
        let config = crate::snapshots::config();
        let mut all = vec![Matcher::new(config, [4; 32], throng_matcher::WallMs(crate::world::START))];
        source.put_queues(&mut all);
        for input in 0..1_000 {
            source.step(&mut all);
            if input % 10 == 0 {
                let exported = lines(&all[0]);
                let imported = Matcher::import(&exported, [3; 32]);
                let imported = imported.unwrap_or_else(|error| panic!("seed {seed}, input {input}: {error}"));
                imported.check_invariants().unwrap();
                assert_eq!(without_seats(&lines(&imported)), without_seats(&exported));
            }
        }
    }
}

/// Lines without the seats of rooms, which are not imported.
fn without_seats(lines: &str) -> Vec<serde_json::Value> {
    let mut lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &mut lines {
        if let Some(info) = line.pointer_mut("/room/info").and_then(serde_json::Value::as_object_mut) {
            info.remove("Reserved");
            info.remove("IsFull");
        }
    }
    lines
}

#[test]
fn a_sealed_room_stays_full_though_members_have_left() {
    let seals = ModeRules { capacity: 2, on_full: OnFull::Seal, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("m".to_owned(), seals)].into(), ..Config::default() });
    let room = world.create_room("s", "a", "m");
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("b", &room));
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "b").str(2, &room));
    let exported = lines(&world.matcher);
    assert!(exported.contains("\"IsFull\":true") && exported.contains("\"sealed\":true"), "{exported}");
    let mut other = World::new(Config::default());
    other.matcher = Matcher::import(&exported, [3; 32]).unwrap();
    assert_eq!(lines(&other.matcher), exported);
    assert_eq!(other.room(&room), world.room(&room));
    assert_eq!(other.ask("s", Method::ROLE_JOIN_ROOM, to_room("c", &room)).0, Status::RoomClosed);
    assert_ne!(other.join_random("s", "c", "m"), room);
}

#[test]
fn a_match_with_nobody_there_yet_is_no_obstacle() {
    let mut world = world();
    world.ticket("s4", "duel", vec![player("gus", &[])]);
    world.pass(1_000);
    let exported = lines(&world.matcher);
    assert_eq!(world.matcher.counts().rooms, 4, "three and that of eve and gus");
    let imported = Matcher::import(&exported, [3; 32]).unwrap();
    assert_eq!(imported.counts().rooms, 3);
}

#[test]
fn a_room_beyond_its_capacity_and_full_of_data_is_imported() {
    let mode = |capacity| {
        let rules = ModeRules { capacity, ..ModeRules::default() };
        Config { modes: [("m".to_owned(), rules)].into(), ..Config::default() }
    };
    let mut world = World::new(mode(3));
    let room = world.create_room("s", "a", "m");
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("b", &room));
    for key in 0..64 {
        let data = Writer::new().str(1, &room).str(2, &format!("k{key}")).str(3, "1");
        world.ok("s", Method::SET_ROOM_DATA, data);
    }
    world.matcher.reconfigure(mode(1));
    let exported = lines(&world.matcher);
    let imported = Matcher::import(&exported, [3; 32]).unwrap();
    assert_eq!(without_seats(&lines(&imported)), without_seats(&exported));
}

#[test]
fn games_of_the_period_under_way_are_moved() {
    let queue = r#"{"name": "g", "allow_in_room": true, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
        "rating": {"pool": "g", "system": "glicko2", "period_s": 60}}"#;
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(queue).0, Status::Ok);
    let ticket = world.ticket("s", "g", vec![player("x", &[])]);
    world.ticket("s", "g", vec![player("y", &[])]);
    world.pass(1_000);
    let matched = world.get_ticket(&ticket).matched;
    let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
    let result = Writer::new().str(1, &matched).nested(3, side("x", 1)).nested(3, side("y", 2));
    let rated = world.ask_as("", throng_matcher::Scope::Admin, Method::REPORT_RESULT, result);
    assert_eq!(rated.0, Status::Ok);
    let exported = lines(&world.matcher);
    let mut other = World::new(Config::default());
    (other.matcher, other.now) = (Matcher::import(&exported, [3; 32]).unwrap(), world.now);
    assert_eq!(lines(&other.matcher), exported);
    let skill = |world: &mut World| {
        world.pass(60_000);
        world.ok("s", Method::GET_RATINGS, Writer::new().str(1, "g").str(2, "x").str(2, "y"))
    };
    let before = lines(&world.matcher);
    assert_eq!(skill(&mut other), skill(&mut world));
    assert_ne!(lines(&world.matcher), before, "the period has ended");
    for (from, to, why) in [
        ("\"score\":1.0", "\"score\":0.3", "a score of 0, 0.5 or 1"),
        ("\"roles\":[\"x\"", "\"roles\":[\"y\"", "of two players"),
        ("\"period_ends\":17", "\"period_ends\":97", "31 days"),
        ("\"id\":\"0", "\"id\":\"x", "no id"),
    ] {
        let changed = exported.replacen(from, to, 1);
        assert_ne!(changed, exported, "{from}");
        let error = Matcher::import(&changed, [3; 32]).unwrap_err();
        assert!(error.why.contains(why), "{error}");
    }
}

#[test]
fn a_queue_that_was_changed_after_the_rules_file_stays_so() {
    let config = |rules: &str| Config {
        queues: vec![throng_matcher::QueueRules::parse(rules.as_bytes()).unwrap()],
        ..Config::default()
    };
    let [live, changed] =
        ["1", "2"].map(|min| QUEUE.replace("\"min\": 1, \"max\": 1", &format!("\"min\": 1, \"max\": {min}")));
    let live = live.replace("\"duel\",\n", "\"duel\", \"version\": \"live\", ");
    let mut world = World::new(config(QUEUE));
    assert_eq!(world.put_queue(&live).0, Status::Ok);
    let version = |matcher: &Matcher| {
        let mut world = World::new(Config::default());
        world.matcher = Matcher::restore(&matcher.snapshot()).unwrap();
        world.ok("s", Method::LIST_QUEUES, Writer::new())
    };
    let put = version(&world.matcher);
    assert!(put.windows(4).any(|part| part == b"live"));
    // A restart with the same file, from a snapshot or from exported lines.
    let mut restored = Matcher::restore(&world.matcher.snapshot()).unwrap();
    restored.reconfigure(config(QUEUE));
    assert_eq!(version(&restored), put);
    let mut imported = Matcher::import(&lines(&world.matcher), [3; 32]).unwrap();
    imported.reconfigure(config(QUEUE));
    assert_eq!(version(&imported), put);
    // With another text the file wins, and again only once.
    restored.reconfigure(config(&changed));
    assert!(!version(&restored).windows(4).any(|part| part == b"live"));
    world.matcher = restored;
    assert_eq!(world.put_queue(&live).0, Status::Ok);
    world.matcher.reconfigure(config(&changed));
    assert_eq!(version(&world.matcher), put);
}

#[test]
fn a_queue_that_needs_a_table_of_the_rules_file_is_imported_without() {
    let asked = ModeRules { policy: "p".to_owned(), ..ModeRules::default() };
    let config = Config { modes: [("duel".to_owned(), asked)].into(), ..Config::default() };
    let mut world = World::new(config.clone());
    let rules = QUEUE.replace("\"rating\"", "\"assign\": \"policy\", \"rating\"");
    assert_eq!(world.put_queue(&rules).0, Status::Ok);
    let exported = lines(&world.matcher);
    let mut imported = Matcher::import(&exported, [3; 32]).unwrap();
    imported.reconfigure(config);
    assert_eq!(lines(&imported), exported);
}

#[test]
fn the_page_has_the_members_of_every_line() {
    use std::collections::{BTreeMap, BTreeSet};
    const PAGE: &str = include_str!("../../../../docs/reference/matcher-journal.md");
    let mut world = world();
    // One of each kind and member: a game, a changed queue, ratings of both systems.
    let queue = QUEUE.replace("duel", "g").replace("\"p\"", "\"g\", \"system\": \"glicko2\"");
    let config = |queues| Config { queues, ..Config::default() };
    let parsed = throng_matcher::QueueRules::parse(queue.as_bytes()).unwrap();
    world.matcher.reconfigure(config(vec![parsed]));
    let hot = queue.replace("\"g\",\n", "\"g\", \"version\": \"2\",\n");
    for (rules, period) in [(hot.clone(), "0"), (hot, "60")] {
        let rules = rules.replace("glicko2\"", &format!("glicko2\", \"period_s\": {period}"));
        assert_eq!(world.put_queue(&rules).0, Status::Ok);
        let [x, y] = ["x", "y"].map(|role| format!("{role}{period}"));
        let ticket = world.ticket("s", "g", vec![player(&x, &[])]);
        world.ticket("s", "g", vec![player(&y, &[])]);
        world.pass(1_000);
        let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
        let result = Writer::new().str(1, &world.get_ticket(&ticket).matched);
        let result = result.nested(3, side(&x, 1)).nested(3, side(&y, 2));
        let rated = world.ask_as("", throng_matcher::Scope::Admin, Method::REPORT_RESULT, result);
        assert_eq!(rated.0, Status::Ok);
    }
    let mut written: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut order = Vec::new();
    for line in lines(&world.matcher).lines() {
        let line: BTreeMap<String, serde_json::Map<String, serde_json::Value>> =
            serde_json::from_str(line).unwrap();
        let (kind, members) = line.into_iter().next().unwrap();
        if !order.contains(&kind) {
            order.push(kind.clone());
        }
        written.entry(kind).or_default().extend(members.into_iter().map(|(name, _)| name));
    }
    let (mut told, mut told_order) = (BTreeMap::new(), Vec::new());
    for row in PAGE.lines().filter(|row| row.starts_with("| `{\"")) {
        let mut columns = row.split('|').skip(1);
        let kind = columns.next().unwrap().split('"').nth(1).unwrap().to_owned();
        let members = columns.next().unwrap().split('`').skip(1).step_by(2).map(str::to_owned);
        told_order.push(kind.clone());
        told.insert(kind, members.collect::<BTreeSet<_>>());
    }
    assert_eq!((told_order, told), (order, written), "docs/reference/matcher-journal.md, Export and import");
}

#[test]
fn a_line_that_is_wrong_is_named() {
    let exported = lines(&world().matcher);
    let at =
        |kind: &str| exported.lines().position(|line| line.starts_with(&format!("{{\"{kind}\""))).unwrap();
    let (queue, rating, player, room) = (at("queue"), at("rating"), at("player"), at("room"));
    let (mode, pool) = (at("mode"), at("pool"));
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
        (changed(pool, "weng_lin", "glicko2"), rating + 1, "mu and sigma"),
        (twice(pool), pool + 2, "pool `p` is there twice"),
        (changed(pool, "\"period_ms\":0", "\"period_ms\":2678400001"), pool + 1, "31 days"),
        (changed(rating, "\"pool\":\"p\"", "\"pool\":\"q\""), rating + 1, "pool `q` has no line"),
        (changed(rating, "\"games\":1", "\"games\":18446744073709551615"), rating + 1, "games is over"),
        (changed(0, "\"time\":1", "\"time\":99999"), 1, "time is over"),
        (
            changed(mode, "\"capacity\":", "\"capacity\":1000"),
            mode + 1,
            "rules.capacity: it is at most 10000",
        ),
        (changed(room, "\"Rev\":", "\"Rev\":9999999999999999"), room + 1, "Rev is over"),
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

#[test]
fn the_result_of_an_imported_room_counts_in_the_pool_of_its_queue() {
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(QUEUE).0, Status::Ok);
    let ticket = world.ticket("s", "duel", vec![player("ann", &[])]);
    world.ticket("s", "duel", vec![player("ben", &[])]);
    world.pass(1_000);
    let room = world.get_ticket(&ticket).room;
    for role in ["ann", "ben"] {
        world.ok("s", Method::ROLE_JOIN_ROOM, to_room(role, &room));
    }
    world.matcher = Matcher::import(&lines(&world.matcher), [3; 32]).unwrap();
    let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
    let result = Writer::new().str(2, &room).nested(3, side("ann", 1)).nested(3, side("ben", 2));
    let rated = world.ask_as("", throng_matcher::Scope::Admin, Method::REPORT_RESULT, result);
    assert_eq!(rated.0, Status::Ok);
    let plain = world.create_room("s", "cid", "2v2");
    let result = Writer::new().str(2, &plain).nested(3, side("cid", 1)).nested(3, side("dan", 2));
    let rated = world.ask_as("", throng_matcher::Scope::Admin, Method::REPORT_RESULT, result);
    assert_eq!(rated.0, Status::NotFound, "its mode is no queue");
}
