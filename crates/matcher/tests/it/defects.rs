//! Defects of the reference (specification A.9) that this matcher must not have, one test each.
//! Number 12 and 13 are about sending and waiting, and tested where that happens.

use crate::world;

use throng_matcher::{Config, ModeRules, OnFull};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, id_in, role, roles_in, team, to_mode, to_room};

fn plain() -> World {
    World::new(Config::default())
}

/// A mode of four whose rooms stay when they are full.
fn keeping() -> World {
    let rules = ModeRules { capacity: 4, on_full: OnFull::Keep, ..ModeRules::default() };
    World::new(Config { modes: [("keep".to_owned(), rules)].into(), ..Config::default() })
}

#[test]
fn a01_a_password_is_never_returned() {
    let mut world = plain();
    let body = Writer::new().nested(1, role("a")).nested(2, team(4, "secret word"));
    let created = world.ok("s", Method::CREATE_TEAM, body);
    let id = id_in(&created);
    let joined = world.ok(
        "s",
        Method::JOIN_TEAM,
        Writer::new().nested(1, role("b")).str(2, &id).str(3, "secret word"),
    );
    let shown = world.ok("s", Method::GET_TEAM_INFO, Writer::new().str(1, &id));
    let mut all = vec![created, joined, shown.clone()];
    all.extend(world.take_heard().into_iter().map(|heard| heard.body));
    assert!(all.iter().all(|bytes| !bytes.windows(11).any(|part| part == b"secret word")));
    assert_eq!(Reader::new(&shown).unwrap().nested(1).unwrap().u64(2), 1, "but that there is one");
}

#[test]
fn a02_a_missing_room_is_not_found() {
    assert_eq!(plain().room("no such room").0, Status::NotFound);
}

#[test]
fn a03_every_event_names_its_room_or_team() {
    let mut world = keeping();
    let room = world.create_room("s", "a", "keep");
    world.ok("s", Method::SET_ROOM_DATA, Writer::new().str(1, &room).str(2, "k").bytes(3, b"1"));
    world.ok("s", Method::BROADCAST_ROOM, Writer::new().str(1, &room).bytes(2, b"\"m\""));
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &room));
    let team = world.create_team("s", "a", 3, "");
    world.ok("s", Method::SET_TEAM_DATA, Writer::new().str(1, &team).str(2, "k").bytes(3, b"1"));
    world.ok("s", Method::BROADCAST_TEAM, Writer::new().str(1, &team).bytes(2, b"\"m\""));
    world.ok("s", Method::LEAVE_TEAM, Writer::new().str(1, "a").str(2, &team));
    let heard = world.take_heard();
    assert_eq!(heard.len(), 8);
    for event in heard {
        assert!([&room, &team].contains(&&event.str(20)) && event.u64(21) > 0, "{event:?}");
    }
}

#[test]
fn a04_events_of_a_team_keep_their_order() {
    let mut world = plain();
    let team = world.create_team("s", "a", 100, "");
    for index in 0..50 {
        world.join_team(&format!("s{}", index % 3), &format!("m{index}"), &team, "");
    }
    for server in ["s", "s0", "s1", "s2"] {
        let revs: Vec<u64> =
            world.heard.iter().filter(|heard| heard.server == server).map(|heard| heard.u64(21)).collect();
        assert!(revs.windows(2).all(|pair| pair[0] < pair[1]), "{server}: {revs:?}");
    }
}

#[test]
fn a05_of_two_joins_for_the_last_place_one_wins() {
    let mut world = plain();
    let team = world.create_team("s", "a", 2, "");
    assert_eq!(world.join_team("s", "b", &team, ""), Status::Ok);
    assert_eq!(world.join_team("s", "c", &team, ""), Status::TeamFull);
    let shown = world.ok("s", Method::GET_TEAM_INFO, Writer::new().str(1, &team));
    assert_eq!(roles_in(&shown, 5), ["a", "b"]);
}

#[test]
fn a06_a_team_without_places_is_invalid() {
    let mut world = plain();
    for max in [0, -1] {
        let body = Writer::new().nested(1, role("a")).nested(2, team(max, ""));
        assert_eq!(world.ask("s", Method::CREATE_TEAM, body).0, Status::Invalid);
    }
    assert_eq!(world.matcher.counts().teams, 0);
}

#[test]
fn a07_a_join_after_the_last_one_left_finds_no_team() {
    let mut world = plain();
    let team = world.create_team("s", "a", 2, "");
    world.ok("s", Method::LEAVE_TEAM, Writer::new().str(1, "a").str(2, &team));
    assert_eq!(world.join_team("s", "b", &team, ""), Status::NotFound);
    assert_eq!(world.matcher.counts(), throng_matcher::Counts::default(), "nothing stays behind");
}

#[test]
fn a08_a_stranger_cannot_leave_a_team() {
    let mut world = plain();
    let team = world.create_team("s", "a", 2, "");
    world.take_heard();
    let left = world.ask("s", Method::LEAVE_TEAM, Writer::new().str(1, "stranger").str(2, &team));
    assert_eq!(left.0, Status::NotAMember);
    assert!(world.heard.is_empty());
}

#[test]
fn a09_nobody_joins_a_dead_room() {
    let mut world = keeping();
    let room = world.create_room("s", "a", "keep");
    world.ok("s", Method::DELETE_ROOM, Writer::new().str(1, &room));
    assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, to_room("b", &room)).0, Status::RoomClosed);
    assert_ne!(world.join_random("s", "c", "keep"), room);
    world.pass(1_000);
    assert_eq!(world.ask("s", Method::ROLE_JOIN_ROOM, to_room("b", &room)).0, Status::NotFound);
}

#[test]
fn a10_a_team_that_fills_a_new_room_leaves_nothing_in_the_indexes() {
    let mut world = plain();
    let team = world.create_team("s", "a", 2, "");
    world.join_team("s", "b", &team, "");
    let body = Writer::new().str(1, &team).nested(2, Writer::new().str(1, "1v1"));
    let made = world.ok("s", Method::TEAM_JOIN_RANDOM_ROOM, body);
    let info = Reader::new(&made).unwrap().nested(1).unwrap();
    assert_eq!((info.u64(6), info.u64(7)), (1, 1), "the answer shows it full and deleting");
    let list = world.ok("s", Method::GET_ROOM_LIST, Writer::new().str(1, "1v1"));
    assert!(list.is_empty());
    assert_ne!(world.join_random("s", "c", "1v1"), id_in(&made));
    world.pass(1_000);
    assert_eq!(world.room(&id_in(&made)).0, Status::NotFound);
}

#[test]
fn a11_every_room_is_destroyed_on_time_and_tells_each_member_once() {
    let mut world = plain();
    for index in 0..400 {
        world.join_random("s", &format!("r{index}"), "2v2");
        world.pass(1);
    }
    world.pass(1_000);
    assert_eq!(world.matcher.counts(), throng_matcher::Counts::default());
    let mut left: Vec<String> = world
        .take_heard()
        .into_iter()
        .filter(|heard| heard.kind == Event::ROLE_LEAVE_ROOM)
        .map(|heard| {
            assert_eq!((heard.str(22).as_str(), heard.roles.clone()), ("room_deleted", vec![heard.str(2)]));
            heard.str(2)
        })
        .collect();
    assert_eq!(left.len(), 400);
    left.sort();
    left.dedup();
    assert_eq!(left.len(), 400);
}

#[test]
fn a14_a_random_join_does_not_walk_the_open_rooms() {
    let mut world = keeping();
    for index in 0..20_000 {
        world.create_room("s", &format!("owner{index}"), "keep");
    }
    // Twenty thousand candidates, and the oldest of the fullest is taken at once.
    let first = world.join_random("s", "x", "keep");
    assert_eq!(world.join_random("s", "y", "keep"), first, "the fullest room that fits");
    assert_eq!(world.join_random("s", "z", "keep"), first);
    assert_ne!(world.join_random("s", "next", "keep"), first);
}

#[test]
fn a15_a_role_is_in_one_room_and_joining_again_changes_nothing() {
    let mut world = keeping();
    let room = world.create_room("s", "a", "keep");
    world.take_heard();
    let again = world.ok("s", Method::ROLE_JOIN_ROOM, to_room("a", &room));
    assert_eq!(Reader::new(&again).unwrap().u64(3), 1);
    assert_eq!((roles_in(&again, 4).len(), world.heard.len()), (1, 0));
    assert_eq!(world.join_random("s", "a", "keep"), room);
    let (status, answer) = world.ask("s", Method::ROLE_CREATE_ROOM, to_mode("a", "1v1"));
    assert_eq!(status, Status::AlreadyInRoom);
    let detail = Reader::new(&answer).unwrap().nested(2).unwrap();
    assert_eq!((detail.str(1), detail.str(2)), (Ok("RoomID"), Ok(format!("\"{room}\"").as_str())));
}

#[test]
fn a16_roles_of_a_lost_server_leave_after_the_grace_period() {
    let mut world = keeping();
    world.session("s1", true);
    let room = world.create_room("s1", "a", "keep");
    world.ok("s2", Method::ROLE_JOIN_ROOM, to_room("b", &room));
    let team = world.create_team("s1", "a", 3, "");
    world.join_team("s2", "b", &team, "");
    world.take_heard();
    world.session("s1", false);
    world.pass(9_999);
    assert!(world.heard.is_empty());
    world.session("s1", true);
    world.session("s1", false);
    world.pass(9_999);
    assert!(world.heard.is_empty(), "the server came back in between");
    world.pass(1);
    let reasons: Vec<(u32, String, String)> = world
        .take_heard()
        .into_iter()
        .filter(|heard| heard.server == "s2" && heard.kind != Event::CHANGE_TEAM_LEADER)
        .map(|heard| (heard.kind, heard.str(22), heard.roles.join(",")))
        .collect();
    let wanted = |kind| (kind, "disconnected".to_owned(), "b".to_owned());
    assert_eq!(reasons, [wanted(Event::LEAVE_TEAM), wanted(Event::ROLE_LEAVE_ROOM)]);
}

#[test]
fn a18_members_of_one_server_share_one_entry() {
    let mut world = keeping();
    let room = world.create_room("s1", "a", "keep");
    world.ok("s1", Method::ROLE_JOIN_ROOM, to_room("b", &room));
    world.ok("s2", Method::ROLE_JOIN_ROOM, to_room("c", &room));
    world.take_heard();
    world.ok("s1", Method::BROADCAST_ROOM, Writer::new().str(1, &room).bytes(2, b"\"m\""));
    let heard = world.take_heard();
    let to: Vec<(String, Vec<String>)> = heard.into_iter().map(|heard| (heard.server, heard.roles)).collect();
    assert_eq!(to, [("s1".into(), vec!["a".into(), "b".into()]), ("s2".into(), vec!["c".into()])]);
}

#[test]
fn a19_leaving_opens_a_full_room_and_deletes_an_empty_one() {
    let mut world = keeping();
    let room = world.create_room("s", "a", "keep");
    for id in ["b", "c", "d"] {
        assert_eq!(world.join_random("s", id, "keep"), room);
    }
    let full = |world: &mut World| Reader::new(&world.room(&room).1).unwrap().nested(1).unwrap().u64(6);
    assert_eq!(full(&mut world), 1);
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "b").str(2, &room));
    assert_eq!(full(&mut world), 0);
    assert_eq!(world.join_random("s", "e", "keep"), room);
    for id in ["a", "c", "d", "e"] {
        world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, id).str(2, &room));
    }
    world.pass(1_000);
    assert_eq!(world.room(&room).0, Status::NotFound);
}

#[test]
fn a20_a_restart_loses_nothing() {
    let mut world = keeping();
    let room = world.create_room("s", "a", "keep");
    let before = world.room(&room);
    let bytes = world.matcher.snapshot();
    let again = throng_matcher::Matcher::restore(&bytes).unwrap();
    assert_eq!(again.digest(), world.matcher.digest());
    world.matcher = again;
    assert_eq!(world.room(&room), before);
    assert_eq!(world.join_random("s", "b", "keep"), room);
}

/// Time limits are the driver's and travel with the request; what is due by itself is in one queue
/// of timers.
#[test]
fn a17_no_request_sets_a_timer_of_its_own() {
    let mut world = keeping();
    let room = world.create_room("s", "a", "keep");
    let team = world.create_team("s", "a", 3, "");
    assert_eq!(world.matcher.next_timeout(), None);
    for _ in 0..1_000 {
        world.ok("s", Method::PING, Writer::new());
        world.ok("s", Method::GET_ROOM_INFO, Writer::new().str(1, &room));
        world.ok("s", Method::SET_ROOM_DATA, Writer::new().str(1, &room).str(2, "k").bytes(3, b"1"));
        world.ok("s", Method::BROADCAST_TEAM, Writer::new().str(1, &team).bytes(2, b"1"));
    }
    assert_eq!(world.matcher.next_timeout(), None);
}

/// In a mode whose members may be in other rooms too, a team of which some are in the room does not
/// come in as a whole, and nobody becomes a member twice.
#[test]
fn a_team_joins_a_shared_room_as_a_whole_or_not_at_all() {
    let rules = ModeRules { capacity: 5, on_full: OnFull::Keep, exclusive: false, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("hall".to_owned(), rules)].into(), ..Config::default() });
    let room = world.create_room("s", "b", "hall");
    let team = world.create_team("s", "a", 5, "");
    assert_eq!(world.join_team("s", "b", &team, ""), Status::Ok);
    let to = Writer::new().str(1, &team).str(2, &room);
    let (status, answer) = world.ask("s", Method::TEAM_JOIN_ROOM, to.clone());
    assert_eq!(status, Status::AlreadyInRoom);
    assert!(answer.windows(3).any(|part| part == b"\"b\""), "it says who is there");
    let random = Writer::new().str(1, &team).nested(2, Writer::new().str(1, "hall"));
    let other = world.ok("s", Method::TEAM_JOIN_RANDOM_ROOM, random.clone());
    assert_ne!(id_in(&other), room, "one that takes them all is made");
    assert_eq!(roles_in(&other, 4), ["a", "b"]);
    assert_eq!(id_in(&world.ok("s", Method::TEAM_JOIN_RANDOM_ROOM, random)), id_in(&other), "again");
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("a", &room));
    assert_eq!(roles_in(&world.ok("s", Method::TEAM_JOIN_ROOM, to), 4), ["b", "a"], "they are all there");
}

/// A mode that is not exclusive is open to those who are in a room of one that is, by whatever way
/// they join.
#[test]
fn an_exclusive_room_does_not_keep_a_role_out_of_shared_ones() {
    let shared = ModeRules { capacity: 4, exclusive: false, ..ModeRules::default() };
    let config = Config { modes: [("lobby".to_owned(), shared)].into(), ..Config::default() };
    let mut world = World::new(config);
    let lobby = world.create_room("s", "host", "lobby");
    for id in ["a", "b", "c"] {
        world.create_room("s", id, "2v2");
    }
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("a", &lobby));
    assert_eq!(world.join_random("s", "b", "lobby"), lobby);
    world.create_room("s", "c", "lobby");
    assert_eq!(roles_in(&world.room(&lobby).1, 4), ["host", "a", "b"]);
}

#[test]
fn the_refusal_of_a_team_names_the_members_and_the_room() {
    let mut world = plain();
    let team = world.create_team("s", "a", 4, "");
    for id in ["b", "c"] {
        assert_eq!(world.join_team("s", id, &team, ""), Status::Ok);
    }
    let room = world.create_room("s", "b", "2v2");
    for method in [Method::TEAM_CREATE_ROOM, Method::TEAM_JOIN_RANDOM_ROOM] {
        let body = Writer::new().str(1, &team).nested(2, Writer::new().str(1, "2v2"));
        let (status, problem) = world.ask("s", method, body);
        assert_eq!(status, Status::AlreadyInRoom);
        let details: Vec<(String, String)> = Reader::new(&problem)
            .unwrap()
            .all(2)
            .map(|entry| Reader::new(entry).unwrap())
            .map(|entry| (entry.str(1).unwrap().to_owned(), entry.str(2).unwrap().to_owned()))
            .collect();
        let wanted = [("RoomID", format!("\"{room}\"")), ("RoleIDs", "[\"b\"]".to_owned())];
        assert_eq!(details, wanted.map(|(name, json)| (name.to_owned(), json)));
    }
}
