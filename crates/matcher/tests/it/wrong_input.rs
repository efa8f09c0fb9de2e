//! Input that is wrong: it is refused by name, nothing is lost and nothing grows.

use crate::world;

use throng_matcher::{Config, ModeRules, OnFull, Scope};
use throng_wire::matcher::{Event, Method, Status, Writer};
use world::{World, id_in, role, roles_in, to_mode, to_room};

fn plain() -> World {
    let rules = ModeRules { capacity: 4, on_full: OnFull::Keep, ..ModeRules::default() };
    World::new(Config { modes: [("m".to_owned(), rules)].into(), ..Config::default() })
}

#[test]
fn methods_that_nobody_knows_are_refused() {
    let mut world = plain();
    for method in [0, 5, 29, 59, 79, 999, u16::MAX] {
        assert_eq!(world.ask("s", method, Writer::new()).0, Status::UnknownMethod, "{method}");
    }
}

#[test]
fn ten_wrong_passwords_in_a_minute_are_enough() {
    let mut world = plain();
    let team = world.create_team("s", "a", 4, "word");
    for _ in 0..10 {
        assert_eq!(world.join_team("t", "b", &team, "guess"), Status::WrongPassword);
    }
    assert_eq!(
        world.join_team("t", "b", &team, "word"),
        Status::RateLimited,
        "nor does it say that this is it"
    );
    assert_eq!(world.join_team("u", "c", &team, "word"), Status::Ok, "others go on");
    world.pass_to_input(60_001);
    assert_eq!(world.join_team("t", "b", &team, "word"), Status::Ok);
}

#[test]
fn a_stranger_does_not_learn_that_a_locked_team_is_full() {
    let mut world = plain();
    let team = world.create_team("s", "a", 1, "word");
    assert_eq!(world.join_team("t", "b", &team, "guess"), Status::WrongPassword);
    assert_eq!(world.join_team("t", "b", &team, "word"), Status::TeamFull);
}

#[test]
fn wrong_passwords_of_many_servers_take_bounded_memory() {
    let mut world = plain();
    let team = world.create_team("s", "a", 4, "word");
    let before = world.matcher.snapshot().len();
    for server in 0..5_000 {
        world.join_team(&format!("{server:0>120}"), "b", &team, "guess");
    }
    let grown = world.matcher.snapshot().len() - before;
    assert!(grown < 200_000, "{grown} bytes");
    assert_eq!(world.join_team("t", "b", &team, "word"), Status::Ok);
}

#[test]
fn data_over_the_limits_changes_nothing() {
    let mut world = plain();
    let room = world.create_room("s", "a", "m");
    world.take_heard();
    let long = |bytes: usize| "x".repeat(bytes);
    let keys = |number: u32| {
        (0..65).fold(role("b"), |info, key| {
            let entry = Writer::new().str(1, &format!("k{key}"));
            info.nested(number, if number == 4 { entry.f64(2, 1.0) } else { entry.str(2, "v") })
        })
    };
    let tags = (0..65).fold(role("b"), |info, tag| info.str(6, &format!("t{tag}")));
    let infos = [
        ("a long id", role(&long(129))),
        ("a long key", role("b").nested(4, Writer::new().str(1, &long(65)).f64(2, 1.0))),
        ("a long text", role("b").nested(5, Writer::new().str(1, "k").str(2, &long(4_097)))),
        ("a long tag", role("b").str(6, &long(65))),
        ("many numbers", keys(4)),
        ("many texts", keys(5)),
        ("many tags", tags),
    ];
    for (what, info) in infos {
        let join = Writer::new().nested(1, info).str(2, &room);
        assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, join).0, Status::TooLarge, "{what}");
    }
    let set = |value: &str| Writer::new().str(1, &room).str(2, "k").str(3, value);
    let value = format!("\"{}\"", long(16 << 10));
    assert_eq!(world.ask("s", Method::SET_ROOM_DATA, set(&value)).0, Status::TooLarge);
    assert_eq!(world.ask("s", Method::SET_ROOM_DATA, set("{no json")).0, Status::Invalid);
    let message = Writer::new().str(1, &room).str(2, &format!("\"{}\"", long(64 << 10)));
    assert_eq!(world.ask("s", Method::BROADCAST_ROOM, message).0, Status::TooLarge);
    assert_eq!(world.take_heard(), []);
    assert_eq!((roles_in(&world.room(&room).1, 4).len(), world.matcher.counts().players), (1, 1));
}

#[test]
fn clocks_that_jump_lose_nothing_and_end_nothing_early() {
    let mut world = plain();
    let room = world.create_room("s", "a", "m");
    let seat = Writer::new().nested(1, role("b")).nested(2, Writer::new().str(1, "m")).u64(3, 30);
    assert_eq!(id_in(&world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, seat)), room);
    let start = world.now;
    // Back by an hour: the matcher's own time stands still.
    world.now -= 3_600_000;
    let joined = world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, to_mode("c", "m"));
    assert_eq!((id_in(&joined), world.matcher.now().0), (room.clone(), start));
    world.pass_to_input(3_600_000 + 29_000);
    assert_eq!(world.take_kind(Event::SEAT_EXPIRED), [], "it lives as long as was said");
    // A day ahead: what is due by then happens once, and the rest is there.
    world.pass_to_input(86_400_000);
    assert!(!world.take_kind(Event::SEAT_EXPIRED).is_empty());
    world.pass_to_input(86_400_000);
    assert_eq!(world.take_kind(Event::SEAT_EXPIRED), []);
    assert_eq!(roles_in(&world.room(&room).1, 4), ["a", "c"]);
}

/// A queue's rooms have the mode of its name, which must not be one that players join by
/// themselves.
#[test]
fn a_queue_does_not_take_over_a_mode() {
    let arena = ModeRules { capacity: 4, ..ModeRules::default() };
    let own = ModeRules { hidden: true, linger_ms: 7, ..ModeRules::default() };
    let modes = [("arena".to_owned(), arena), ("own".to_owned(), own.clone()), ("3v3".to_owned(), own)];
    let config = Config { modes: modes.into(), ..Config::default() };
    let mut world = World::new(config.clone());
    let rules = |name: &str| {
        format!(r#"{{"name": "{name}", "sides": [{{"name": "side", "count": 2, "min": 1, "max": 1}}]}}"#)
    };
    for name in ["arena", "2v2"] {
        let room = world.create_room("s", &format!("{name} a"), name);
        let (status, problem) = world.put_queue(&rules(name));
        let problem = String::from_utf8_lossy(&problem).into_owned();
        assert!(
            status == Status::RuleInvalid && problem.contains("give the queue another name"),
            "{problem}"
        );
        let queue = throng_matcher::QueueRules::parse(rules(name).as_bytes()).unwrap();
        let wrong = Config { queues: vec![queue], ..config.clone() }.check().unwrap_err();
        assert_eq!(wrong.path, "name");
        for id in ["b", "c", "d"] {
            world.ok("s", Method::ROLE_JOIN_ROOM, to_room(&format!("{name} {id}"), &room));
        }
    }
    // Those of a table without capacity, and of none, are a queue's.
    for name in ["own", "3v3", "new"] {
        for _ in 0..2 {
            assert_eq!(world.put_queue(&rules(name)).0, Status::Ok, "{name}");
        }
    }
    // Neither does one that only the exported lines have.
    let mut lines = Vec::new();
    world.matcher.export(&mut lines);
    let lines = String::from_utf8(lines).unwrap();
    world.matcher = throng_matcher::Matcher::import(&lines, [3; 32]).unwrap();
    assert_eq!(world.put_queue(&rules("arena")).0, Status::RuleInvalid);
    assert_eq!(world.put_queue(&rules("own")).0, Status::Ok);
}

/// An info stays below 256 KiB as a whole, so that every answer about it fits into a frame.
#[test]
fn no_info_grows_over_its_limit() {
    const WHOLE: usize = 256 << 10;
    let mut world = plain();
    let room = world.create_room("s", "a", "m");
    let team = world.create_team("s", "a", 1_000, "");
    let value = format!("\"{}\"", "x".repeat((16 << 10) - 2));
    for (method, id, read) in [
        (Method::SET_ROOM_DATA, &room, Method::GET_ROOM_INFO),
        (Method::SET_TEAM_DATA, &team, Method::GET_TEAM_INFO),
    ] {
        // Keys first, then long values in their place.
        let mut refused = 0;
        for value in ["1", &value] {
            for key in 0..60 {
                let body = Writer::new().str(1, id).str(2, &format!("k{key}")).str(3, value);
                match world.ask("s", method, body).0 {
                    Status::Ok => {}
                    status => {
                        assert_eq!(status, Status::TooLarge);
                        refused += 1;
                    }
                }
            }
        }
        let info = world.ok("s", read, Writer::new().str(1, id));
        assert!(info.len() < WHOLE + 64 && refused > 40, "{} bytes, {refused} refused", info.len());
        // What makes it smaller is taken.
        let less = Writer::new().str(1, id).str(2, "k0").str(3, "1");
        assert_eq!(world.ask("s", method, less).0, Status::Ok);
        let body = Writer::new().str(1, id).str(2, "k1").str(3, "null");
        assert_eq!(world.ask("s", method, body).0, Status::Ok);
    }
}

/// A role with about 200 KiB of texts.
fn large(id: &str) -> Writer {
    let text = "x".repeat(4 << 10);
    (0..50).fold(role(id), |info, key| info.nested(5, Writer::new().str(1, &format!("k{key}")).str(2, &text)))
}

#[test]
fn members_count_for_the_size_of_their_room_and_team() {
    let mut world = plain();
    let create = |id: &str| Writer::new().nested(1, large(id)).nested(2, Writer::new().str(1, "m"));
    let room = id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, create("a")));
    let join = Writer::new().nested(1, large("b")).str(2, &room);
    assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, join).0, Status::TooLarge);
    let other = id_in(&world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, create("b")));
    assert_ne!(room, other, "a random join finds a room where there is space");
    let text = "x".repeat(4 << 10);
    let mut grown = 0;
    for key in 0..64 {
        let entry = Writer::new().str(1, &format!("n{key}")).str(2, &text);
        let update = Writer::new().str(1, &room).str(2, "a").nested(4, entry);
        grown += u32::from(
            world.ask("s", Method::UPDATE_ROOM_ROLE_DATA, Writer::new().nested(1, update)).0 == Status::Ok,
        );
    }
    assert!((10..16).contains(&grown), "{grown} texts more");

    let team = Writer::new().nested(1, large("c")).nested(2, world::team(9, ""));
    let team = id_in(&world.ok("s", Method::CREATE_TEAM, team));
    let join = Writer::new().nested(1, large("d")).str(2, &team);
    assert_eq!(world.ask("s", Method::JOIN_TEAM, join).0, Status::TooLarge);
    assert_eq!(world.matcher.counts().players, 3);
}

/// An update names at most as much as an info can hold; the time that it takes is not the square of
/// its length.
#[test]
fn an_update_of_more_values_than_an_info_holds_is_refused() {
    let mut world = plain();
    let room = world.create_room("s", "a", "m");
    let about = || Writer::new().str(1, &room).str(2, "a");
    let number = |key: u32| Writer::new().str(1, &format!("k{key}")).f64(2, 1.0);
    let text = |key: u32| Writer::new().str(1, &format!("k{key}")).str(2, "v");
    for count in [64, 65, 60_000] {
        let updates = [
            (0..count).fold(about(), |update, key| update.nested(3, number(key))),
            (0..count).fold(about(), |update, key| update.nested(4, text(key))),
            (0..count).fold(about(), |update, key| update.str(5, &format!("t{key}"))),
            (0..count).fold(about(), |update, key| update.str(6, &format!("t{key}"))),
        ];
        for update in updates {
            let status = world.ask("s", Method::UPDATE_ROOM_ROLE_DATA, Writer::new().nested(1, update)).0;
            assert_eq!(status, if count > 64 { Status::TooLarge } else { Status::Ok }, "{count}");
        }
    }
}

#[test]
fn a_thousand_rooms_are_asked_for_at_a_time() {
    let mut world = plain();
    let room = world.create_room("s", "a", "m");
    let ids = |count: u32| (0..count).fold(Writer::new(), |body, _| body.str(1, &room));
    assert_eq!(world.ask("s", Method::GET_ROOM_INFOS, ids(1_000).u64(9, 1)).0, Status::Ok, "ids are counted");
    assert_eq!(world.ask("s", Method::GET_ROOM_INFOS, ids(1_001)).0, Status::TooLarge);
}

/// What is refused leaves no trace: not even where the role's events go.
#[test]
fn a_refused_join_does_not_move_a_role_to_another_server() {
    let rules = ModeRules { unique_string: vec!["name".to_owned()], capacity: 4, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("u".to_owned(), rules)].into(), ..Config::default() });
    let named = |id: &str| role(id).nested(5, Writer::new().str(1, "name").str(2, "Ann"));
    let create = Writer::new().nested(1, named("a")).nested(2, Writer::new().str(1, "u"));
    let room = id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, create));
    let team = world.create_team("t", "b", 4, "");
    let join = Writer::new().nested(1, named("b")).str(2, &room);
    let refused = world.ask_as("elsewhere", Scope::Trusted, Method::ROLE_JOIN_ROOM, join).0;
    assert_eq!(refused, Status::Refused);
    world.take_heard();
    world.ok("t", Method::BROADCAST_TEAM, Writer::new().str(1, &team).str(2, "1"));
    let heard: Vec<String> = world.take_heard().into_iter().map(|heard| heard.server).collect();
    assert_eq!(heard, ["t"]);
}

/// A mode of four members who share no slot and no class.
fn unique() -> World {
    let rules = ModeRules {
        capacity: 4,
        on_full: OnFull::Keep,
        unique_float: vec!["slot".to_owned()],
        unique_string: vec!["class".to_owned()],
        ..ModeRules::default()
    };
    World::new(Config { modes: [("u".to_owned(), rules)].into(), ..Config::default() })
}

fn in_slot(id: &str, slot: f64, class: &str) -> Writer {
    let slot = Writer::new().str(1, "slot").f64(2, slot);
    role(id).nested(4, slot).nested(5, Writer::new().str(1, "class").str(2, class))
}

#[test]
fn values_that_must_differ_differ_after_an_update_too() {
    let mut world = unique();
    let mode = || Writer::new().str(1, "u");
    let made = world.ok(
        "s",
        Method::ROLE_CREATE_ROOM,
        Writer::new().nested(1, in_slot("a", 0.0, "x")).nested(2, mode()),
    );
    let room = id_in(&made);
    let join = |world: &mut World, who: Writer| {
        world.ask("s", Method::ROLE_JOIN_ROOM, Writer::new().nested(1, who).str(2, &room)).0
    };
    assert_eq!(join(&mut world, in_slot("b", -0.0, "y")), Status::Refused, "the two zeros are one value");
    assert_eq!(join(&mut world, in_slot("b", 2.0, "y")), Status::Ok);
    let update = |world: &mut World, change: Writer| {
        let body = Writer::new().str(1, &room).str(2, "b").bytes(5, b"ready");
        let body = Writer::new().bytes(1, &[body.into_bytes(), change.into_bytes()].concat());
        world.ask("s", Method::UPDATE_ROOM_ROLE_DATA, body).0
    };
    let slot = |slot: f64| Writer::new().nested(3, Writer::new().str(1, "slot").f64(2, slot));
    let class = |class: &str| Writer::new().nested(4, Writer::new().str(1, "class").str(2, class));
    for change in [slot(0.0), slot(-0.0), class("x")] {
        assert_eq!(update(&mut world, change), Status::Refused);
    }
    for change in [slot(2.0), slot(3.0), class("y"), class("z"), Writer::new()] {
        assert_eq!(update(&mut world, change), Status::Ok);
    }
}

#[test]
fn what_is_no_number_is_nowhere_taken() {
    let mut world = plain();
    let queue = r#"{"name": "q", "sides": [{"name": "a", "min": 2, "max": 2}]}"#;
    assert_eq!(world.put_queue(queue).0, Status::Ok);
    let room = world.create_room("s", "a", "m");
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let entry = || Writer::new().str(1, "k").f64(2, value);
        let join = Writer::new().nested(1, role("b").nested(4, entry())).nested(2, Writer::new().str(1, "m"));
        assert_eq!(world.ask("s", Method::ROLE_JOIN_RANDOM_ROOM, join).0, Status::Invalid, "{value}");
        let update = Writer::new().nested(1, Writer::new().str(1, &room).str(2, "a").nested(3, entry()));
        assert_eq!(world.ask("s", Method::UPDATE_ROOM_ROLE_DATA, update).0, Status::Invalid, "{value}");
        let team = Writer::new().nested(1, role("c").nested(4, entry())).nested(2, world::team(3, ""));
        assert_eq!(world.ask("s", Method::CREATE_TEAM, team).0, Status::Invalid, "{value}");
        let ticket = vec![role("d").nested(4, entry())];
        assert_eq!(world.try_ticket("s", "q", ticket).0, Status::Invalid, "{value}");
    }
}

#[test]
fn the_count_of_members_is_the_matchers() {
    let queue = r#"{"name": "q", "assign": "external", "sides": [{"name": "a", "min": 2, "max": 2}]}"#;
    let mut world = plain();
    assert_eq!(world.put_queue(queue).0, Status::Ok);
    let data = |key: &str| Writer::new().str(1, "m").nested(3, Writer::new().str(1, key).str(2, "7"));
    let create = |key: &str| Writer::new().nested(1, role("a")).nested(2, data(key));
    assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, create("roleCount")).0, Status::Invalid);
    assert_eq!(world.ask("s", Method::ROLE_JOIN_RANDOM_ROOM, create("roleCount")).0, Status::Invalid);
    let room = id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, create("k")));
    let set = Writer::new().str(1, &room).str(2, "roleCount").str(3, "7");
    assert_eq!(world.ask("s", Method::SET_ROOM_DATA, set).0, Status::Invalid);
    let ticket = world.ticket("s", "q", vec![role("b"), role("c")]);
    world.pass(1_000);
    let found = world.get_ticket(&ticket).room;
    let assign = |key: &str| {
        Writer::new().str(1, &found).str(2, "h:1").nested(3, Writer::new().str(1, key).str(2, "7"))
    };
    assert_eq!(
        world.ask_as("", Scope::Trusted, Method::ASSIGN_MATCH, assign("roleCount")).0,
        Status::Invalid
    );
    assert_eq!(world.ask_as("", Scope::Trusted, Method::ASSIGN_MATCH, assign("k")).0, Status::Ok);
}

#[test]
fn a_retry_with_another_order_of_its_entries_is_a_retry() {
    let mut world = plain();
    let entry = |key: &str, value: f64| Writer::new().str(1, key).f64(2, value);
    let join = |first: (&str, f64), second: (&str, f64)| {
        let who = role("a").nested(4, entry(first.0, first.1)).nested(4, entry(second.0, second.1));
        let body = Writer::new().nested(1, who).nested(2, Writer::new().str(1, "m"));
        body.bytes(throng_wire::matcher::REQUEST_KEY_FIELD, &[7; 16])
    };
    let first = world.ok("s", Method::ROLE_CREATE_ROOM, join(("x", 1.0), ("y", 2.0)));
    assert_eq!(world.ok("s", Method::ROLE_CREATE_ROOM, join(("y", 2.0), ("x", 1.0))), first);
    let other = world.ask("s", Method::ROLE_CREATE_ROOM, join(("x", 2.0), ("y", 1.0)));
    assert_eq!(other.0, Status::Invalid);
}

#[test]
fn a_room_is_created_with_data_up_to_the_limit() {
    let mut world = plain();
    for (method, bytes) in [Method::ROLE_CREATE_ROOM, Method::ROLE_JOIN_RANDOM_ROOM]
        .into_iter()
        .flat_map(|method| [100, 122, 200, 16_000].map(|bytes| (method, bytes)))
    {
        let value = format!("\"{}\"", "x".repeat(bytes));
        let create = Writer::new().str(1, "m").nested(3, Writer::new().str(1, "d").str(2, &value));
        let body = Writer::new().nested(1, role(&format!("{method}.{bytes}"))).nested(2, create);
        assert_eq!(world.ask("s", method, body).0, Status::Ok, "method {method}, {bytes} bytes");
    }
}

#[test]
fn a_key_that_is_there_twice_in_a_map_of_a_role_is_refused() {
    let mut world = plain();
    let float = |value| Writer::new().str(1, "level").f64(2, value);
    let text = |value| Writer::new().str(1, "name").str(2, value);
    let mode = Writer::new().str(1, "m");
    for role in [
        role("a").nested(4, float(90.0)).nested(4, float(20.0)),
        role("a").nested(5, text("x")).nested(5, text("x")),
    ] {
        let body = Writer::new().nested(1, role).nested(2, mode.clone());
        assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, body).0, Status::Invalid);
    }
    let role = role("a").nested(4, float(90.0)).nested(5, text("x"));
    world.ok("s", Method::ROLE_CREATE_ROOM, Writer::new().nested(1, role).nested(2, mode));
}

#[test]
fn a_request_that_lacked_a_right_is_executed_when_it_comes_again_with_it() {
    let mut world = plain();
    let put = |world: &mut World, scope| {
        let rules = r#"{"name": "q", "sides": [{"name": "s", "count": 2, "min": 1, "max": 1}]}"#;
        let body = Writer::new().str(1, rules).bytes(throng_wire::matcher::REQUEST_KEY_FIELD, &[7; 16]);
        world.ask_as("s", scope, Method::PUT_QUEUE, body).0
    };
    assert_eq!(put(&mut world, Scope::Server), Status::Forbidden);
    assert_eq!(put(&mut world, Scope::Admin), Status::Ok);
}
