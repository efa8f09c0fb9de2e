//! Objects that a game server finds after its restart, and requests that are told apart.

use crate::world;

use throng_matcher::{Config, Handled, HookPoint, ModeRules, OnFull, Scope, Verdict};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, id_in, player, role, roles_in, team, to_mode, to_room};

const DUEL: &str =
    r#"{"name": "duel", "tick_ms": 100, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}]}"#;
const EXTERNAL: &str = r#"{"name": "war", "tick_ms": 100, "assign": "external", "allocator": "alloc",
    "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}],
    "attributes": {"build": {"type": "string", "default": ""}}}"#;

/// Ids in field 1 of the messages of a field.
fn ids(answer: &[u8], number: u32) -> Vec<String> {
    let all = Reader::new(answer).unwrap();
    all.all(number).map(|entry| Reader::new(entry).unwrap().str(1).unwrap().to_owned()).collect()
}

#[test]
fn matched_players_are_found_by_their_server() {
    let mut world = World::new(Config::default());
    world.put_queue(DUEL);
    let [ann, _] = ["ann", "ben"].map(|id| world.ticket("s1", "duel", vec![role(id)]));
    world.pass(100);
    let room = world.get_ticket(&ann).room;
    let mine = world.ok("s1", Method::LIST_MINE, Writer::new());
    assert_eq!((ids(&mine, 1), ids(&mine, 3).len()), (vec![room.clone()], 2));
    let of_role = world.ok("s1", Method::GET_ROLE, Writer::new().str(1, "ann"));
    assert_eq!((ids(&of_role, 3), ids(&of_role, 5)), (vec![room.clone()], vec![ann.clone()]));
    let tickets = world.ok("s1", Method::LIST_TICKETS, Writer::new().str(1, "ann"));
    assert_eq!(ids(&tickets, 1), [ann.as_str()]);
    world.ok("s1", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, "ann"));
    let of_role = world.ok("s1", Method::GET_ROLE, Writer::new().str(1, "ann"));
    assert_eq!((ids(&of_role, 3), ids(&of_role, 5).len()), (vec![room], 0), "a member has no seat");
    // Seats that expire are forgotten with their roles.
    world.pass(120_000);
    assert_eq!(world.matcher.counts().players, 1);
}

#[test]
fn the_allocator_learns_whom_a_match_is_for_and_finds_it_again() {
    let mut world = World::new(Config::default());
    world.session("alloc", true);
    world.put_queue(EXTERNAL);
    for id in ["ann", "ben"] {
        world.ticket("s1", "war", vec![player(id, &[("build", "\"7.1\"")]).str(6, "carl")]);
    }
    world.pass(100);
    let told = world.take_kind(Event::MATCH_READY);
    assert_eq!((told.len(), told[0].server.as_str()), (1, "alloc"));
    let body = Reader::new(&told[0].body).unwrap();
    let players: Vec<Reader<'_>> = body.all(9).map(|player| Reader::new(player).unwrap()).collect();
    assert_eq!(players.iter().map(|player| player.str(1).unwrap()).collect::<Vec<_>>(), ["ann", "ben"]);
    for player in &players {
        let attr = player.nested(3).unwrap();
        assert_eq!((attr.str(1), attr.str(2), player.all(6).count()), (Ok("build"), Ok("\"7.1\""), 0));
    }
    assert_eq!(body.all(10).count(), 2, "both sides");
    assert_eq!(body.str(12), Ok(""), "no world of its own");
    let mine = world.ok("alloc", Method::LIST_MINE, Writer::new());
    let found = Reader::new(&mine).unwrap().nested(4).unwrap();
    let room = found.str(2).unwrap().to_owned();
    assert_eq!((found.str(3), found.str(4), found.all(8).count()), (Ok("war"), Ok("assigning"), 2));
    let stranger = world.ok("s2", Method::LIST_MINE, Writer::new());
    assert!(stranger.is_empty());
    world.ok("alloc", Method::ASSIGN_MATCH, Writer::new().str(1, &room).str(2, "h:1"));
    let mine = world.ok("alloc", Method::LIST_MINE, Writer::new());
    let found = Reader::new(&mine).unwrap().nested(4).unwrap();
    assert_eq!((found.str(4), found.str(6)), (Ok("assigned"), Ok("h:1")));
}

#[test]
fn what_a_server_has_comes_in_pages_below_a_frame() {
    let keep = ModeRules { capacity: 40, on_full: OnFull::Keep, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("m".to_owned(), keep)].into(), ..Config::default() });
    let value = format!("\"{}\"", "x".repeat(16_000));
    let mut made: Vec<String> = Vec::new();
    for number in 0..30 {
        let room = world.create_room("s", &format!("r{number}"), "m");
        for key in 0..8 {
            let body = Writer::new().str(1, &room).str(2, &format!("k{key}")).str(3, &value);
            world.ok("s", Method::SET_ROOM_DATA, body);
        }
        made.push(room);
    }
    let (mut seen, mut from, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = world.ok("s", Method::LIST_MINE, Writer::new().str(2, &from));
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        seen.extend(ids(&page, 1));
        pages += 1;
        from = Reader::new(&page).unwrap().str(5).unwrap().to_owned();
        if from.is_empty() {
            break;
        }
    }
    made.sort_unstable();
    seen.sort_unstable();
    assert_eq!((seen, pages > 3), (made, true));
    assert_eq!(world.ask("s", Method::LIST_MINE, Writer::new().str(2, "9.x")).0, Status::Invalid);
}

/// A gateway gives up the places of a player who has come back through another one meanwhile.
#[test]
fn a_role_that_joins_again_moves_to_the_calling_server() {
    let lobby = ModeRules { capacity: 4, exclusive: false, ..ModeRules::default() };
    let modes = [("lobby".to_owned(), lobby)].into();
    let mut world = World::new(Config { modes, ..Config::default() });
    let team = world.create_team("s", "ann", 4, "");
    world.join_team("s", "ben", &team, "");
    let room = world.join_random("s", "ben", "lobby");
    let seated = |id: &str| to_mode(id, "2v2").u64(3, 60);
    let again: [(&str, u16, Writer); 4] = [
        ("t", Method::JOIN_TEAM, Writer::new().nested(1, role("ben")).str(2, &team)),
        ("u", Method::ROLE_JOIN_RANDOM_ROOM, to_mode("ben", "lobby")),
        ("v", Method::ROLE_JOIN_ROOM, to_room("ben", &room)),
        ("w", Method::ROLE_JOIN_RANDOM_ROOM, seated("ben")),
    ];
    let mut former = "s";
    for (srv, method, request) in again {
        assert_eq!(world.ask_as(srv, Scope::Trusted, method, request).0, Status::Ok, "{method}");
        let shown = world.ok(srv, Method::GET_ROLE, Writer::new().str(1, "ben"));
        assert_eq!(Reader::new(&shown).unwrap().str(2).unwrap(), srv, "{method}");
        let lost = |place: &str| Writer::new().str(1, "ben").str(2, place).u64(4, 1);
        for (method, place) in [(Method::LEAVE_TEAM, &team), (Method::ROLE_LEAVE_ROOM, &room)] {
            let (status, _) = world.ask_as(former, Scope::Trusted, method, lost(place));
            assert_eq!(status, Status::Forbidden, "{former}");
        }
        // The loss of the former server takes nothing along either.
        world.session(former, true);
        world.session(former, false);
        world.pass(20_000);
        former = srv;
    }
    // The seat is taken.
    let (_, seat) = world.ask_as("x", Scope::Trusted, Method::ROLE_JOIN_RANDOM_ROOM, to_mode("ben", "2v2"));
    let seat = id_in(&seat);
    let shown = world.ok("x", Method::GET_ROLE, Writer::new().str(1, "ben"));
    for place in [&team, &room, &seat] {
        assert!(String::from_utf8_lossy(&shown).contains(place.as_str()), "{place}");
    }
}

#[test]
fn a_claim_with_the_data_of_a_role_moves_it_although_it_is_a_member() {
    let mut world = World::new(Config::default());
    world.put_queue(DUEL);
    let [ann, _] = ["ann", "ben"].map(|id| world.ticket("s1", "duel", vec![role(id)]));
    world.pass(100);
    let claim = Writer::new().str(1, &world.get_ticket(&ann).room).str(2, "ann");
    for (srv, claim, home) in
        [("s1", claim.clone(), "s1"), ("s2", claim.clone(), "s1"), ("s3", claim.nested(3, role("ann")), "s3")]
    {
        assert_eq!(world.ask_as(srv, Scope::Trusted, Method::CLAIM_SEAT, claim).0, Status::Ok);
        let (_, shown) = world.ask_as(srv, Scope::Trusted, Method::GET_ROLE, Writer::new().str(1, "ann"));
        assert_eq!(Reader::new(&shown).unwrap().str(2).unwrap(), home);
    }
}

#[test]
fn a_request_key_that_is_used_for_another_request_is_refused() {
    let mut world = World::new(Config::default());
    let create = |id: &str| to_mode(id, "2v2").bytes(100, &[7; 16]);
    let room = id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, create("ann")));
    assert_eq!(id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, create("ann"))), room, "a retry");
    assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, create("ben")).0, Status::Invalid);
    assert_eq!(world.ask("s", Method::ROLE_JOIN_RANDOM_ROOM, create("ann")).0, Status::Invalid);
    assert_eq!(world.matcher.counts().rooms, 1);
    assert_eq!(id_in(&world.ok("t", Method::ROLE_CREATE_ROOM, create("ben"))).len(), 24, "of another server");
}

#[test]
fn a_refusal_is_kept_for_a_server_that_has_nothing_else() {
    let slots = ModeRules { capacity: 3, unique_float: vec!["slot".to_owned()], ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("m".to_owned(), slots)].into(), ..Config::default() });
    let info = |id: &str| role(id).nested(4, Writer::new().str(1, "slot").f64(2, 1.0));
    let create = Writer::new().nested(1, info("a")).nested(2, Writer::new().str(1, "m"));
    let room = id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, create));
    let join = || Writer::new().nested(1, info("b")).str(2, &room).bytes(100, &[7; 16]);
    let (status, problem) = world.ask("t", Method::ROLE_JOIN_ROOM, join());
    assert_eq!(status, Status::Refused, "the slot is taken");
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &room));
    assert_eq!(world.ask("t", Method::ROLE_JOIN_ROOM, join()), (status, problem), "a retry");
    // Then the key expires, and its server with it.
    world.pass_to_input(61_000);
    assert!(!world.matcher.has_server(b"t"));
}

#[test]
fn a_retry_with_empty_members_is_the_same_request() {
    let mut world = World::new(Config::default());
    let key = |body: Writer| body.bytes(100, &[7; 16]);
    let info = || Writer::new().str(1, "2v2");
    let room = id_in(&world.ok(
        "s",
        Method::ROLE_CREATE_ROOM,
        key(Writer::new().nested(1, role("ann")).nested(2, info())),
    ));
    let spelled_out = Writer::new().nested(1, role("ann").str(2, "").str(3, "")).nested(2, info());
    assert_eq!(id_in(&world.ok("s", Method::ROLE_CREATE_ROOM, key(spelled_out))), room);
    let hidden = Writer::new().nested(1, role("ann")).nested(2, info().u64(2, 1));
    assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, key(hidden)).0, Status::Invalid);
}

#[test]
fn a_claim_in_time_has_its_seat_though_the_policy_is_slow() {
    let rules = ModeRules {
        capacity: 2,
        on_full: OnFull::Keep,
        policy: "p".to_owned(),
        policy_points: vec![HookPoint::OnAddingRoles],
        ..ModeRules::default()
    };
    for verdict in [Some(Verdict::default()), Some(Verdict::refusal("no")), None] {
        let mut world =
            World::new(Config { modes: [("m".to_owned(), rules.clone())].into(), ..Config::default() });
        let answer =
            world.ask_as("s", Scope::Admin, Method::ROLE_JOIN_RANDOM_ROOM, to_mode("ann", "m").u64(3, 5)).1;
        let room = id_in(&answer);
        world.pass(4_950);
        let claim = Writer::new().str(1, &room).str(2, "ann");
        assert!(matches!(world.begin(Method::CLAIM_SEAT, claim), Handled::Waits(_)));
        let asked = world.matcher.poll_question().unwrap();
        world.pass(100);
        assert!(world.take_kind(Event::SEAT_EXPIRED).is_empty(), "its time is over, its claim is not");
        match &verdict {
            None => world.pass(101),
            given => world.verdict(asked.id, given.as_ref()),
        }
        let wanted = match &verdict {
            Some(verdict) if verdict.refuse => Status::Refused,
            Some(_) => Status::Ok,
            None => Status::PolicyUnavailable,
        };
        assert_eq!(world.take_answered(), [wanted]);
        world.pass(400);
        let expired = world.take_kind(Event::SEAT_EXPIRED).len();
        assert_eq!(expired, usize::from(wanted != Status::Ok), "{wanted:?}");
    }
}

#[test]
fn each_leave_event_of_a_deleted_room_has_a_revision_of_its_own() {
    let mut world = World::new(Config::default());
    let room = world.create_room("s1", "a", "2v2");
    for (srv, id) in [("s1", "b"), ("s2", "c")] {
        world.ok(srv, Method::ROLE_JOIN_ROOM, to_room(id, &room));
    }
    world.ok("s1", Method::DELETE_ROOM, Writer::new().str(1, &room));
    world.take_heard();
    world.pass(2_000);
    let left = world.take_kind(Event::ROLE_LEAVE_ROOM);
    let revs: Vec<u64> = left.iter().map(|heard| heard.u64(21)).collect();
    assert_eq!(revs.len(), 3);
    assert!(revs.windows(2).all(|pair| pair[0] < pair[1]), "{revs:?}");
    for heard in &left {
        let info = Reader::new(&heard.body).unwrap().nested(1).unwrap();
        assert_eq!(info.u64(9), heard.u64(21));
    }
}

#[test]
fn attributes_that_no_rule_reads_are_refused() {
    let mut world = World::new(Config::default());
    let rules = DUEL.replace("\"sides\"", r#""attributes": {"m": {"type": "number_map"}}, "sides""#);
    let (status, problem) = world.put_queue(&rules);
    assert_eq!(status, Status::RuleInvalid);
    assert!(String::from_utf8_lossy(&problem).contains("attributes.m"));
}

#[test]
fn a_team_one_over_the_free_places_is_not_let_in() {
    let keep = ModeRules { capacity: 3, on_full: OnFull::Keep, ..ModeRules::default() };
    let mut world = World::new(Config { modes: [("m".to_owned(), keep)].into(), ..Config::default() });
    let of_two = world.create_team("s", "a", 4, "");
    assert_eq!(world.join_team("s", "b", &of_two, ""), Status::Ok);
    let full = world.create_room("s", "x", "m");
    world.ok("s", Method::ROLE_JOIN_ROOM, to_room("y", &full));
    let join = |room: &str| Writer::new().str(1, &of_two).str(2, room);
    assert_eq!(
        world.ask("s", Method::TEAM_JOIN_ROOM, join(&full)).0,
        Status::RoomFull,
        "one place, two players"
    );
    let mode = Writer::new().str(1, "m");
    let other = world.ok("s", Method::TEAM_JOIN_RANDOM_ROOM, Writer::new().str(1, &of_two).nested(2, mode));
    assert_ne!(id_in(&other), full);
    assert_eq!(roles_in(&other, 4), ["a", "b"]);
    let body = Writer::new().nested(1, role("p")).nested(2, team(9, ""));
    let large = id_in(&world.ok("s", Method::CREATE_TEAM, body));
    for id in ["q", "r", "t"] {
        assert_eq!(world.join_team("s", id, &large, ""), Status::Ok);
    }
    let body = Writer::new().str(1, &large).nested(2, Writer::new().str(1, "m"));
    assert_eq!(
        world.ask("s", Method::TEAM_CREATE_ROOM, body).0,
        Status::TeamTooLarge,
        "four for three places"
    );
}

#[test]
fn members_have_different_values_of_what_must_be_unique() {
    let slots = ModeRules {
        capacity: 3,
        on_full: OnFull::Keep,
        unique_float: vec!["slot".to_owned()],
        ..ModeRules::default()
    };
    let mut world = World::new(Config { modes: [("m".to_owned(), slots)].into(), ..Config::default() });
    let in_slot = |id: &str, slot: f64| {
        let info = role(id).nested(4, Writer::new().str(1, "slot").f64(2, slot));
        Writer::new().nested(1, info).nested(2, Writer::new().str(1, "m"))
    };
    let mut join =
        |id: &str, slot: f64| id_in(&world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, in_slot(id, slot)));
    let first = join("a", 1.0);
    assert_eq!(join("b", 2.0), first);
    let second = join("c", 1.0);
    assert_ne!(second, first, "the slot is taken there");
    assert_eq!(join("d", 3.0), first, "the fullest that fits");
}

#[test]
fn the_allocator_learns_the_class_of_a_match_s_world_and_players_the_data_that_it_assigns() {
    let mut world = World::new(Config::default());
    world.session("alloc", true);
    for (more, path) in [
        (r#""world": {"class": "Duel"}"#, "world.class"),
        (r#""world": {"class": "duel"}, "assign": "none""#, "`assign`"),
        (r#""world": {"class": "duel"}, "allocator": """#, "`allocator`"),
    ] {
        let rules = format!(
            r#"{{"name": "w", "sides": [{{"name": "s", "min": 1, "max": 1}}], {more}{}}}"#,
            if more.contains("allocator") { r#", "assign": "external""# } else { "" }
        );
        let (status, answer) = world.put_queue(&rules);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(status == Status::RuleInvalid && answer.contains(path), "{more}: {answer}");
    }
    world.put_queue(&EXTERNAL.replacen('{', r#"{"world": {"class": "duel"}, "#, 1));
    for id in ["ann", "ben"] {
        world.ticket("s1", "war", vec![role(id)]);
    }
    world.pass(100);
    let told = world.take_kind(Event::MATCH_READY);
    let body = Reader::new(&told[0].body).unwrap();
    assert_eq!((told[0].server.as_str(), body.str(12)), ("alloc", Ok("duel")));
    let data = Writer::new().str(1, "World").str(2, "\"duel-1\"");
    let more = Writer::new().str(1, "more").str(2, "1");
    let assign = Writer::new().str(1, body.str(20).unwrap()).str(2, "tcp://a:1");
    let assign = assign.nested(3, data).nested(3, more);
    world.ok("alloc", Method::ASSIGN_MATCH, assign);
    let told = world.take_kind(Event::MATCH_READY);
    assert!(!told.is_empty());
    for notice in told {
        let body = Reader::new(&notice.body).unwrap();
        assert_eq!((body.str(4), body.str(12)), (Ok("tcp://a:1"), Ok("")));
        let entries: Vec<Reader<'_>> = body.all(11).map(|entry| Reader::new(entry).unwrap()).collect();
        assert_eq!(entries.len(), 1, "what else there is, is in the room");
        assert_eq!((entries[0].str(1), entries[0].str(2)), (Ok("World"), Ok("\"duel-1\"")));
    }
}
