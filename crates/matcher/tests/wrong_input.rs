//! Input that is wrong: it is refused by name, nothing is lost and nothing grows.

mod world;

use throng_matcher::{Config, ModeRules, OnFull};
use throng_wire::matcher::{Event, Method, Status, Writer};
use world::{World, id_in, role, roles_in, to_mode};

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
    world.pass_everywhere(60_001);
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
    let before = world.shards.snapshot().len();
    for server in 0..5_000 {
        world.join_team(&format!("{server:0>120}"), "b", &team, "guess");
    }
    let grown = world.shards.snapshot().len() - before;
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
    assert_eq!((roles_in(&world.room(&room).1, 4).len(), world.counts().players), (1, 1));
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
    assert_eq!((id_in(&joined), world.matcher().now()), (room.clone(), start));
    world.pass_everywhere(3_600_000 + 29_000);
    assert_eq!(world.take_kind(Event::SEAT_EXPIRED), [], "it lives as long as was said");
    // A day ahead: what is due by then happens once, and the rest is there.
    world.pass_everywhere(86_400_000);
    assert!(!world.take_kind(Event::SEAT_EXPIRED).is_empty());
    world.pass_everywhere(86_400_000);
    assert_eq!(world.take_kind(Event::SEAT_EXPIRED), []);
    assert_eq!(roles_in(&world.room(&room).1, 4), ["a", "c"]);
}
