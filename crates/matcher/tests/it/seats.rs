//! Reserved places: they count, only their role takes them, and they expire.

use crate::world;

use throng_matcher::{Config, Limit, ModeRules, OnFull, Scope};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, id_in, role, roles_in, to_mode, to_room};

fn pair() -> World {
    let rules = ModeRules { capacity: 2, on_full: OnFull::Keep, ..ModeRules::default() };
    World::new(Config { modes: [("pair".to_owned(), rules)].into(), ..Config::default() })
}

/// A room with `a` in it and a seat for `b`, for 5 s.
fn with_seat(world: &mut World) -> String {
    let room = world.create_room("s", "a", "pair");
    let seat = world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, to_mode("b", "pair").u64(3, 5));
    assert_eq!((id_in(&seat), roles_in(&seat, 4)), (room.clone(), vec!["a".to_owned()]));
    room
}

fn claim(world: &mut World, id: &str, room: &str) -> (Status, Vec<u8>) {
    world.ask("s", Method::CLAIM_SEAT, Writer::new().str(1, room).str(2, id).nested(3, role(id)))
}

#[test]
fn a_seat_counts_and_only_its_role_takes_it_once() {
    let mut world = pair();
    let room = with_seat(&mut world);
    assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, to_room("c", &room)).0, Status::RoomFull);
    assert_eq!(claim(&mut world, "c", &room).0, Status::SeatExpired, "a stranger has none");
    let (status, answer) = claim(&mut world, "b", &room);
    assert_eq!((status, roles_in(&answer, 4)), (Status::Ok, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(roles_in(&claim(&mut world, "b", &room).1, 4).len(), 2, "again changes nothing");
    world.pass(6_000);
    assert_eq!(Reader::new(&world.room(&room).1).unwrap().nested(1).unwrap().u64(12), 2);
}

#[test]
fn a_seat_that_is_reserved_again_is_the_same_one() {
    let mut world = pair();
    let reserve = || to_mode("b", "pair").u64(3, 5);
    let first = world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, reserve());
    let again = world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, reserve());
    let room = id_in(&first);
    let answer = Reader::new(&again).unwrap();
    assert_eq!((answer.u64(3), id_in(&again)), (1, room.clone()), "already");
    let shown = answer.nested(1).unwrap();
    assert_eq!((shown.u64(6), shown.all(11).count()), (0, 1), "there is room for another");
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("c", &room));
    world.take_heard();
    assert_eq!(claim(&mut world, "b", &room).0, Status::Ok);
    world.pass(6_000);
    assert_eq!(world.take_kind(Event::SEAT_EXPIRED), []);
}

#[test]
fn a_role_is_never_member_and_seat_of_a_room_at_once() {
    let seats = |world: &mut World, room: &str| {
        let answer = world.room(room).1;
        let shown = Reader::new(&answer).unwrap().nested(1).unwrap();
        (shown.u64(12), shown.all(11).count())
    };
    let mut world = pair();
    let room = with_seat(&mut world);
    assert_eq!(world.join_random("s", "b", "pair"), room, "where its seat is");
    assert_eq!(seats(&mut world, &room), (2, 0));
    // A team, one of whose members has a seat there.
    let seat = world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, to_mode("c", "pair").u64(3, 5));
    let team = world.create_team("s", "c", 2, "");
    assert_eq!(world.join_team("s", "d", &team, ""), Status::Ok);
    let room = id_in(&seat);
    world.ok("s", Method::TEAM_JOIN_ROOM, Writer::new().str(1, &team).str(2, &room));
    assert_eq!(seats(&mut world, &room), (2, 0));
    world.take_heard();
    world.pass(6_000);
    assert_eq!(world.take_kind(Event::SEAT_EXPIRED), []);
}

#[test]
fn a_join_takes_the_seat_too() {
    let mut world = pair();
    let room = with_seat(&mut world);
    let joined = world.ok("s", Method::ROLE_JOIN_ROOM, to_room("b", &room));
    assert_eq!(roles_in(&joined, 4), ["a", "b"]);
}

fn limited() -> World {
    let rules = ModeRules {
        capacity: 3,
        on_full: OnFull::Keep,
        limits: vec![Limit { key: "level".into(), min: Some(10.0), max: Some(60.0), required: true }],
        unique_string: vec!["class".into()],
        ..ModeRules::default()
    };
    World::new(Config { modes: [("lim".to_owned(), rules)].into(), ..Config::default() })
}

/// Numbers of the fields `FloatData` and `StringData` of a role.
const FLOAT: u32 = 4;
const STRING: u32 = 5;

fn leveled(id: &str, level: f64, class: &str) -> Writer {
    let level = Writer::new().str(1, "level").f64(2, level);
    role(id).nested(FLOAT, level).nested(STRING, Writer::new().str(1, "class").str(2, class))
}

#[test]
fn the_rules_of_a_mode_hold_for_the_role_of_a_seat_too() {
    let mut world = limited();
    let reserve = |id: &str, class: &str| {
        let create = Writer::new().str(1, "lim");
        Writer::new().nested(1, leveled(id, 20.0, class)).nested(2, create).u64(3, 60)
    };
    let room = id_in(&world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, reserve("a", "mage")));
    let join =
        |id: &str, level: f64, class: &str| Writer::new().nested(1, leveled(id, level, class)).str(2, &room);
    assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, join("a", 5.0, "mage")).0, Status::Refused);
    let other = world.ask("s", Method::ROLE_JOIN_ROOM, join("b", 20.0, "mage"));
    assert_eq!(other.0, Status::Refused, "the value of a seat is taken");
    world.ok("s", Method::ROLE_JOIN_ROOM, join("b", 20.0, "monk"));
    assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, join("a", 20.0, "monk")).0, Status::Refused);
    let claim = Writer::new().str(1, &room).str(2, "a");
    assert_eq!(
        world.ask("s", Method::CLAIM_SEAT, claim.nested(3, leveled("a", 70.0, "mage"))).0,
        Status::Refused
    );
    let claim = Writer::new().str(1, &room).str(2, "a");
    let claimed = world.ok("s", Method::CLAIM_SEAT, claim.nested(3, leveled("a", 30.0, "thief")));
    assert!(claimed.windows(5).any(|part| part == b"thief"), "what the claim gives is stored");
}

#[test]
fn a_seat_can_be_given_up() {
    let mut world = pair();
    let room = with_seat(&mut world);
    world.take_heard();
    let leave = |id: &str| Writer::new().str(1, id).str(2, &room);
    assert_eq!(world.ask("t", Method::ROLE_LEAVE_ROOM, leave("b")).0, Status::Forbidden);
    let left = world.ok("s", Method::ROLE_LEAVE_ROOM, leave("b"));
    assert_eq!(Reader::new(&left).unwrap().nested(1).unwrap().all(11).count(), 0);
    let heard = world.take_kind(Event::SEAT_EXPIRED);
    assert_eq!((heard.len(), heard[0].str(1)), (1, "b".to_owned()), "the room hears it");
    assert_eq!(world.ask("s", Method::ROLE_LEAVE_ROOM, leave("b")).0, Status::NotAMember);
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("c", &room));
    // The last seat of a room without members takes the room along.
    let alone = id_in(&world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, to_mode("d", "pair").u64(3, 5)));
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "d").str(2, &alone));
    world.pass(60_000);
    assert_eq!(world.room(&alone).0, Status::NotFound);
}

#[test]
fn a_member_of_an_exclusive_room_keeps_no_seat_in_another() {
    let mut world = pair();
    let room = with_seat(&mut world);
    let own = world.create_room("s", "b", "pair");
    assert_ne!(own, room);
    assert_eq!(claim(&mut world, "b", &room).0, Status::SeatExpired);
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("c", &room));
}

#[test]
fn an_unclaimed_seat_is_free_again_and_everybody_hears_it() {
    let mut world = pair();
    let room = with_seat(&mut world);
    world.take_heard();
    world.pass(5_000);
    let heard = world.take_heard();
    assert!(heard.iter().all(|heard| heard.kind == Event::SEAT_EXPIRED && heard.str(1) == "b"));
    assert_eq!(heard.len(), 1, "one notice for the server of both");
    assert_eq!(heard[0].roles, ["a", "b"], "the room and the one who lost it");
    assert_eq!(claim(&mut world, "b", &room).0, Status::SeatExpired);
    assert_eq!(world.join_random("s", "c", "pair"), room);
}

#[test]
fn each_server_hears_once_of_a_seat_that_expires_and_with_a_revision_of_its_own() {
    let rules = ModeRules { capacity: 9, on_full: OnFull::Keep, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("m".to_owned(), rules)].into(), ..Config::default() });
    world.session("s3", true);
    let room = world.create_room("s1", "a", "m");
    world.ok("s2", Method::ROLE_JOIN_ROOM, to_room("b", &room));
    for (srv, id) in [("s1", "c"), ("s3", "d"), ("s1", "e")] {
        world.ok(srv, Method::ROLE_JOIN_RANDOM_ROOM, to_mode(id, "m").u64(3, 5));
    }
    world.take_heard();
    world.pass(5_000);
    let heard = world.take_kind(Event::SEAT_EXPIRED);
    for (server, count) in [("s1", 3), ("s2", 3), ("s3", 1)] {
        let revs: Vec<u64> =
            heard.iter().filter(|heard| heard.server == server).map(|heard| heard.u64(21)).collect();
        assert!(revs.len() == count && revs.windows(2).all(|pair| pair[0] < pair[1]), "{server}: {revs:?}");
    }
}

#[test]
fn a_late_claim_fails_though_the_timer_has_not_fired_yet() {
    let mut world = pair();
    let room = with_seat(&mut world);
    // Two thousand other rooms end before the seat's timer, more than one input fires.
    for index in 0..2_000 {
        world.join_random("s", &format!("x{index}"), "1v1");
        world.join_random("s", &format!("y{index}"), "1v1");
    }
    world.now += 5_000;
    assert_eq!(claim(&mut world, "b", &room).0, Status::SeatExpired);
}

#[test]
fn teams_in_rooms_are_counted_by_mode() {
    let rules = ModeRules { capacity: 9, ..ModeRules::default() };
    let modes = [("m".to_owned(), rules)].into();
    let mut world = World::new(Config { modes, ..Config::default() });
    let teams = |world: &World| world.matcher.mode_counts(1)[0].teams;
    let mut room = String::new();
    for (leader, other) in [("a", "b"), ("c", "d")] {
        let team = world.create_team("s", leader, 4, "");
        assert_eq!(world.join_team("s", other, &team, ""), Status::Ok);
        let join = Writer::new().str(1, &team).nested(2, Writer::new().str(1, "m"));
        room = id_in(&world.ok("s", Method::TEAM_JOIN_RANDOM_ROOM, join));
    }
    world.join_random("s", "alone", "m");
    assert_eq!((world.matcher.counts().rooms, teams(&world)), (1, 2));
    for (member, left) in [("a", 2), ("d", 2), ("b", 1), ("alone", 1)] {
        world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, member).str(2, &room));
        assert_eq!(teams(&world), left, "{member} left");
    }
    world.ask_as("s", Scope::Admin, Method::DELETE_ROOM, Writer::new().str(1, &room));
    world.pass(2_000);
    assert_eq!((world.matcher.counts().rooms, teams(&world)), (0, 0));
}
