//! Rooms of modes whose matches get a world of a gateway each.

use crate::world;

use throng_matcher::{Config, MatchWorld, Matcher, ModeRules, OnFull, Scope};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, role, to_room};

fn rules() -> ModeRules {
    ModeRules {
        capacity: 2,
        on_full: OnFull::Seal,
        world: Some(MatchWorld { class: "arena".to_owned() }),
        allocator: "gateway".to_owned(),
        ..ModeRules::default()
    }
}

fn duels() -> World {
    let modes = [("duel".to_owned(), rules())].into();
    let mut world = World::new(Config { modes, presence_grace_ms: 600_000, ..Config::default() });
    world.session("gateway", true);
    world
}

fn data(key: &str, json: &str) -> Writer {
    Writer::new().str(1, key).str(2, json)
}

fn assign(world: &mut World, srv: &str, room: &str) -> Status {
    let request = Writer::new().str(1, room).str(2, "tcp://here:1");
    let request = request.nested(3, data("World", "\"arena-1\"")).nested(3, data("Addresses", "{}"));
    world.ask(srv, Method::ASSIGN_MATCH, request).0
}

/// A room that two players of servers `s` and `t` have filled.
fn filled(world: &mut World) -> String {
    let room = world.join_random("s", "ann", "duel");
    assert_eq!(world.take_kind(Event::MATCH_READY), [], "it is not full");
    assert_eq!(world.join_random("t", "bob", "duel"), room);
    room
}

/// The same with a world.
fn with_world(world: &mut World) -> String {
    let room = filled(world);
    assert_eq!(assign(world, "gateway", &room), Status::Ok);
    room
}

/// The room of a match of two players of a queue whose matches get worlds of a class.
fn matched(world: &mut World, class: &str) -> String {
    let rules = r#"{"name": "q", "tick_ms": 100, "assign": "external", "allocator": "gateway",
        "world": {"class": "CLASS"}, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}]}"#;
    assert_eq!(world.put_queue(&rules.replace("CLASS", class)).0, Status::Ok);
    let ticket = world.ticket("s", "q", vec![world::player("fay", &[])]);
    world.ticket("s", "q", vec![world::player("gus", &[])]);
    world.pass(100);
    world.get_ticket(&ticket).room
}

fn restart(world: &mut World) {
    world.matcher = Matcher::restore(&world.matcher.snapshot()).unwrap();
    world.recover();
}

#[test]
fn a_full_room_gets_a_world_from_the_allocator_and_its_members_are_notified() {
    let mut world = duels();
    let room = filled(&mut world);
    let asked = world.take_kind(Event::MATCH_READY);
    let shown: Vec<_> = asked.iter().map(|heard| (&*heard.server, heard.str(12), heard.str(20))).collect();
    assert_eq!(shown, [("gateway", "arena".to_owned(), room.clone())]);
    assert_eq!(assign(&mut world, "s", &room), Status::Forbidden, "not the allocator");
    assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
    let ready = world.take_kind(Event::MATCH_READY);
    let mut servers: Vec<_> = ready.iter().map(|heard| (&*heard.server, heard.roles.clone())).collect();
    servers.sort();
    assert_eq!(servers, [("s", vec!["ann".to_owned()]), ("t", vec!["bob".to_owned()])]);
    for heard in &ready {
        assert_eq!(
            (heard.str(4), heard.str(20), heard.str(12)),
            ("tcp://here:1".to_owned(), room.clone(), String::new())
        );
        let body = Reader::new(&heard.body).unwrap();
        let keys: Vec<_> =
            body.all(11).map(|entry| Reader::new(entry).unwrap().str(1).unwrap().to_owned()).collect();
        assert_eq!(keys, ["World", "Addresses"]);
    }
    assert_eq!(assign(&mut world, "gateway", &room), Status::Ok, "it has that world");
    assert_eq!(world.take_heard(), [], "nothing has changed");
    world.pass(60_000);
    let (status, answer) = world.room(&room);
    let shown = Reader::new(&answer).unwrap().nested(1).unwrap();
    assert_eq!((status, shown.str(14).unwrap(), shown.u64(12)), (Status::Ok, "arena", 2));
}

/// Worlds whose ends the allocator heard of.
fn ended(world: &mut World) -> Vec<String> {
    let heard = world.take_kind(Event::ROLE_LEAVE_ROOM);
    let of_allocator = heard.iter().filter(|heard| heard.server == "gateway" && heard.roles.is_empty());
    let ended = of_allocator.map(|heard| {
        assert_eq!(heard.str(22), "room_deleted");
        let room = Reader::new(&heard.body).unwrap().nested(1).unwrap();
        let entries = room.all(8).map(|entry| Reader::new(entry).unwrap());
        entries.filter(|entry| entry.str(1).unwrap() == "World").map(|entry| entry.str(2).unwrap().to_owned())
    });
    ended.flatten().collect()
}

#[test]
fn the_allocator_hears_of_the_end_of_a_room_with_a_world_however_it_ends() {
    let delete = |world: &mut World, srv: &str, room: &str| {
        world.ask(srv, Method::DELETE_ROOM, Writer::new().str(1, room)).0
    };
    let leave = |world: &mut World, id: &str, room: &str| {
        world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, id).str(2, room));
    };
    for way in ["left", "deleted", "by the allocator"] {
        let mut world = duels();
        let room = filled(&mut world);
        assert_eq!(delete(&mut world, "gateway", &room), Status::Forbidden, "{way}: it has given no world");
        assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
        world.take_heard();
        match way {
            "left" => ["ann", "bob"].into_iter().for_each(|id| leave(&mut world, id, &room)),
            "deleted" => assert_eq!(delete(&mut world, "s", &room), Status::Ok),
            _ => assert_eq!(delete(&mut world, "gateway", &room), Status::Ok),
        }
        world.pass(700_000);
        assert_eq!(ended(&mut world), ["\"arena-1\""], "{way}");
    }
    // One without a world ends without it.
    let mut world = duels();
    let room = filled(&mut world);
    assert_eq!(delete(&mut world, "s", &room), Status::Ok);
    world.pass(5_000);
    assert_eq!(ended(&mut world), [""; 0]);
}

#[test]
fn a_place_in_a_match_with_a_world_outlasts_the_server_where_the_player_asked() {
    let mut world = duels();
    world.session("s", true);
    let room = with_world(&mut world);
    let other = world.join_random("s", "cid", "duel");
    world.take_heard();
    world.session("s", false);
    world.pass(700_000);
    assert_eq!((world.room(&room).0, world.room(&other).0), (Status::Ok, Status::NotFound));
    assert_eq!(ended(&mut world), [""; 0]);
    // The server is back, and finds its role in the room.
    world.session("s", true);
    let answer = world.ok("s", Method::LIST_MINE, Writer::new());
    let rooms = Reader::new(&answer).unwrap().all(1).count();
    assert_eq!(rooms, 1);
    // The world ends, and its allocator deletes the room.
    world.ok("gateway", Method::DELETE_ROOM, Writer::new().str(1, &room));
    world.pass(5_000);
    assert_eq!(world.room(&room).0, Status::NotFound);
}

#[test]
fn a_room_names_the_home_to_which_its_world_has_moved() {
    let mut world = duels();
    let room = with_world(&mut world);
    world.take_heard();
    let moved = |room: &str| {
        let place = Writer::new().str(1, room).str(2, "tcp://there:2");
        place.nested(3, data("World", "\"arena-1\"")).nested(3, data("Addresses", r#"{"client":{}}"#))
    };
    assert_eq!(world.ask("s", Method::ASSIGN_MATCH, moved(&room)).0, Status::Forbidden, "not the allocator");
    world.ok("gateway", Method::ASSIGN_MATCH, moved(&room));
    let told = world.take_kind(Event::SET_ROOM_DATA);
    let mut told: Vec<_> =
        told.iter().map(|heard| (heard.server.clone(), heard.str(2), heard.str(3))).collect();
    told.sort();
    let [addresses, connection] = [("Addresses", r#"{"client":{}}"#), ("connection", "\"tcp://there:2\"")];
    let wanted = ["s", "t"].into_iter().flat_map(|srv| {
        [addresses, connection].map(|(key, json)| (srv.to_owned(), key.to_owned(), json.to_owned()))
    });
    assert_eq!(told, wanted.collect::<Vec<_>>());
    world.ok("gateway", Method::ASSIGN_MATCH, moved(&room));
    assert_eq!(world.take_heard(), [], "the room names that home already");
}

/// Rooms that the allocator finds in `ListMine`, each with its state and the class of its world.
fn listed(world: &mut World) -> Vec<(String, String, String)> {
    let answer = world.ok("gateway", Method::LIST_MINE, Writer::new());
    let matches = Reader::new(&answer).unwrap().all(4).map(|found| Reader::new(found).unwrap());
    let text = |found: &Reader<'_>, number| found.str(number).unwrap().to_owned();
    matches.map(|found| (text(&found, 2), text(&found, 4), text(&found, 9))).collect()
}

#[test]
fn an_allocator_finds_its_matches_again() {
    let mut world = duels();
    assert_eq!(listed(&mut world), []);
    let assigned = with_world(&mut world);
    world.join_random("s", "cid", "duel");
    let waiting = world.join_random("s", "dan", "duel");
    world.join_random("s", "eve", "duel");
    let matched = matched(&mut world, "dungeon");
    let mut wanted = [
        (&assigned, "assigned", "arena"),
        (&waiting, "assigning", "arena"),
        (&matched, "assigning", "dungeon"),
    ]
    .map(|(room, state, class)| (room.clone(), state.to_owned(), class.to_owned()));
    wanted.sort();
    let mut found = listed(&mut world);
    found.sort();
    assert_eq!(found, wanted);
    assert_eq!(assign(&mut world, "gateway", &matched), Status::Ok);
    assert!(listed(&mut world).contains(&(matched, "assigned".to_owned(), "dungeon".to_owned())));
}

#[test]
fn a_match_that_gets_a_world_is_not_assigned_without_one() {
    let mut world = duels();
    let room = filled(&mut world);
    let place = Writer::new().str(1, &room).str(2, "tcp://here:1");
    assert_eq!(world.ask("gateway", Method::ASSIGN_MATCH, place).0, Status::Invalid);
    assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
}

#[test]
fn the_allocator_of_a_queue_hears_of_the_end_of_its_rooms() {
    let mut world = duels();
    let room = matched(&mut world, "arena");
    assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
    world.take_heard();
    // All seats expire.
    world.pass(700_000);
    assert_eq!(world.room(&room).0, Status::NotFound);
    assert_eq!(ended(&mut world), ["\"arena-1\""]);
}

#[test]
fn a_world_ends_with_its_room_although_the_rules_name_no_allocator_any_more() {
    for is_transferred in [false, true] {
        let mut world = duels();
        let [other, room] = [with_world(&mut world), matched(&mut world, "arena")];
        assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
        for role in ["fay", "gus"] {
            world.ok("s", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, role));
        }
        let sides = r#""sides": [{"name": "side", "count": 2, "min": 1, "max": 1}]"#;
        assert_eq!(world.put_queue(&format!(r#"{{"name": "q", "tick_ms": 100, {sides}}}"#)).0, Status::Ok);
        restart(&mut world);
        if is_transferred {
            world = imported(&world);
        }
        world.session("gateway", true);
        without_allocator(&mut world);
        world.take_heard();
        for room in [&room, &other] {
            assert_eq!(assign(&mut world, "gateway", room), Status::Ok, "its home has moved");
            assert_eq!(world.ask("s", Method::DELETE_ROOM, Writer::new().str(1, room)).0, Status::Ok);
        }
        world.pass(700_000);
        assert_eq!(ended(&mut world), ["\"arena-1\"", "\"arena-1\""], "{is_transferred}");
    }
}

#[test]
fn a_refused_assignment_changes_nothing() {
    let mut world = duels();
    let room = with_world(&mut world);
    let (before, _) = (world.room(&room), world.take_heard());
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let request = Writer::new().str(1, &room).str(2, "tcp://there:1");
    let request = request.nested(3, data("World", "\"arena-2\"")).nested(3, data("Addresses", &long));
    let refused = world.ask_as("director", Scope::Trusted, Method::ASSIGN_MATCH, request);
    assert_eq!((refused.0, world.room(&room)), (Status::TooLarge, before));
    without_allocator(&mut world);
    world.ok("s", Method::DELETE_ROOM, Writer::new().str(1, &room));
    world.pass(700_000);
    assert_eq!(ended(&mut world), ["\"arena-1\""], "the server that gave the world hears of its end");
}

/// A matcher whose modes name no world and no allocator any more.
fn without_allocator(world: &mut World) {
    let bare = ModeRules { world: None, allocator: String::new(), ..rules() };
    let modes = [("duel".to_owned(), bare)].into();
    world.matcher.reconfigure(Config { modes, presence_grace_ms: 600_000, ..Config::default() });
}

#[test]
fn a_world_that_a_trusted_caller_has_moved_still_ends_by_the_server_that_gave_it() {
    for caller in ["director", ""] {
        let mut world = duels();
        world.session("director", true);
        let room = with_world(&mut world);
        let request = Writer::new().str(1, &room).str(2, "tcp://there:2");
        let request = request.nested(3, data("World", "\"arena-1\"")).nested(3, data("Addresses", "{}"));
        let moved = world.ask_as(caller, Scope::Trusted, Method::ASSIGN_MATCH, request);
        assert_eq!(moved.0, Status::Ok);
        without_allocator(&mut world);
        assert_eq!(assign(&mut world, "gateway", &room), Status::Ok, "its home has moved");
        world.take_heard();
        world.ok("s", Method::DELETE_ROOM, Writer::new().str(1, &room));
        world.pass(700_000);
        let heard = world.take_kind(Event::ROLE_LEAVE_ROOM);
        let told: Vec<&str> =
            heard.iter().filter(|heard| heard.roles.is_empty()).map(|heard| &*heard.server).collect();
        assert_eq!(told, ["gateway"], "{caller}");
    }
}

#[test]
fn a_trusted_caller_that_gives_a_world_hears_of_its_end() {
    let mut world = duels();
    world.session("director", true);
    let room = filled(&mut world);
    let request = Writer::new().str(1, &room).str(2, "tcp://here:1");
    let given = request.nested(3, data("World", "\"arena-1\"")).nested(3, data("Addresses", "{}"));
    assert_eq!(world.ask_as("director", Scope::Trusted, Method::ASSIGN_MATCH, given).0, Status::Ok);
    without_allocator(&mut world);
    world.take_heard();
    world.ok("s", Method::DELETE_ROOM, Writer::new().str(1, &room));
    world.pass(700_000);
    let heard = world.take_kind(Event::ROLE_LEAVE_ROOM);
    assert!(heard.iter().any(|heard| heard.server == "director" && heard.roles.is_empty()));
}

/// A room that waits for its world from now on ends after ten seconds.
fn ends_without_world(world: &mut World, room: &str) {
    world.pass(9_999);
    assert_eq!((world.take_kind(Event::MATCH_CANCELLED), world.room(room).0), (vec![], Status::Ok));
    world.pass(1);
    let cancelled = world.take_kind(Event::MATCH_CANCELLED);
    assert_eq!(cancelled.len(), 2);
    assert!(cancelled.iter().all(|heard| heard.str(2) == "no_server" && heard.str(20) == room));
    assert_eq!(assign(world, "gateway", room), Status::NotProposed, "too late");
}

#[test]
fn a_full_room_that_gets_no_world_within_ten_seconds_ends() {
    let mut world = duels();
    let room = filled(&mut world);
    ends_without_world(&mut world, &room);
    // The players are free for another match.
    assert_ne!(filled(&mut world), room);
}

#[test]
fn a_matcher_that_was_restored_still_waits_for_the_world() {
    let mut world = duels();
    let room = filled(&mut world);
    restart(&mut world);
    world.session("gateway", true);
    assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
    world.join_random("s", "cid", "duel");
    let other = world.join_random("s", "dan", "duel");
    restart(&mut world);
    world.pass(20_000);
    assert_eq!(world.room(&other).0, Status::NotFound);
    assert_eq!(world.room(&room).0, Status::Ok);
}

/// A matcher that has imported what `world` exports, an hour later.
fn imported(world: &World) -> World {
    let mut lines = Vec::new();
    world.matcher.export(&mut lines);
    let mut other = duels();
    other.matcher = Matcher::import(std::str::from_utf8(&lines).unwrap(), [3; 32]).unwrap();
    other.now = world.now + 3_600_000;
    other.recover();
    other.session("gateway", true);
    other
}

#[test]
fn an_imported_room_keeps_its_world() {
    let mut world = duels();
    let room = with_world(&mut world);
    let mut other = imported(&world);
    assert_eq!(other.room(&room), world.room(&room));
    assert_eq!(listed(&mut other), [(room, "assigned".to_owned(), "arena".to_owned())]);
    other.pass(20_000);
    assert_eq!(other.take_kind(Event::MATCH_CANCELLED), []);
}

#[test]
fn an_imported_full_room_that_gets_no_world_within_ten_seconds_ends() {
    let mut world = duels();
    let room = filled(&mut world);
    let mut other = imported(&world);
    assert_eq!(listed(&mut other), [(room.clone(), "assigning".to_owned(), "arena".to_owned())]);
    ends_without_world(&mut other, &room);
}

#[test]
fn callers_do_not_set_the_place_of_a_match() {
    let mut world = duels();
    for key in ["connection", "World", "Addresses"] {
        let mode = Writer::new().str(1, "duel").nested(3, data(key, "\"theirs\""));
        let create = Writer::new().nested(1, role("ann")).nested(2, mode);
        assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, create).0, Status::Invalid, "{key}");
    }
    let room = world.create_room("s", "ann", "duel");
    for key in ["connection", "World", "Addresses"] {
        let set = Writer::new().str(1, &room).str(2, key).str(3, "\"theirs\"");
        assert_eq!(world.ask("s", Method::SET_ROOM_DATA, set).0, Status::Invalid, "{key}");
    }
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("bob", &room));
    assert_eq!(assign(&mut world, "gateway", &room), Status::Ok);
}

#[test]
fn a_room_that_its_players_left_or_that_is_not_full_gets_no_world() {
    let mut world = duels();
    let open = world.join_random("s", "ann", "duel");
    assert_eq!(assign(&mut world, "gateway", &open), Status::NotProposed);
    let room = {
        world.join_random("s", "bob", "duel");
        open
    };
    for id in ["ann", "bob"] {
        world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, id).str(2, &room));
    }
    assert_ne!(assign(&mut world, "gateway", &room), Status::Ok);
    world.pass(20_000);
    assert_eq!(world.take_kind(Event::MATCH_CANCELLED), [], "nobody is left to hear it");
}

#[test]
fn a_mode_whose_world_cannot_be_given_is_refused() {
    assert!(rules().check().is_ok());
    let class = |class: &str| Some(MatchWorld { class: class.to_owned() });
    for (wrong, path, why) in [
        (ModeRules { capacity: 0, ..rules() }, "world", "never full"),
        (ModeRules { on_full: OnFull::Delete, ..rules() }, "world", "seal"),
        (ModeRules { allocator: String::new(), ..rules() }, "world", "SrvID"),
        (ModeRules { world: class("A"), ..rules() }, "world.class", "lower-case"),
        (ModeRules { world: class(""), ..rules() }, "world.class", "1 to 18"),
    ] {
        let problem = wrong.check().unwrap_err();
        assert_eq!(problem.path, path);
        assert!(problem.reason.contains(why), "{problem:?}");
    }
}
