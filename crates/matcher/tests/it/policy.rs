//! Policies: what they are asked, what they may do, and that nothing changes without them.

use crate::world;

use std::collections::BTreeMap;

use throng_matcher::{
    Config, Handled, HookPoint, Matcher, ModeRules, Notices, PolicyRequest, QueueRules, Verdict, WallMs,
};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{START, World, role, to_mode, to_room};

/// A queue whose matches get their server from their mode's policy.
const ONE_VS_ONE: &str = r#"{"name": "m", "tick_ms": 100, "assign": "policy", "rules": [],
    "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}]}"#;

/// A mode `m` of four whose policy is asked at `points`.
fn world(points: &[HookPoint]) -> World {
    World::new(config(points))
}

fn config(points: &[HookPoint]) -> Config {
    let rules = ModeRules {
        capacity: 4,
        policy: "p".to_owned(),
        policy_points: points.to_vec(),
        ..ModeRules::default()
    };
    Config { modes: BTreeMap::from([("m".to_owned(), rules)]), ..Config::default() }
}

/// The same, but the mode is that of a queue.
fn config_of_queue(points: &[HookPoint]) -> Config {
    let mut config = config(points);
    config.modes.get_mut("m").unwrap().capacity = 0;
    Config { queues: vec![QueueRules::parse(ONE_VS_ONE.as_bytes()).unwrap()], ..config }
}

fn waits(handled: Handled) -> u64 {
    match handled {
        Handled::Waits(number) => number,
        Handled::Done(status) => panic!("{status:?}"),
    }
}

/// The only open question.
fn question(world: &mut World, point: HookPoint) -> PolicyRequest {
    let question = world.matcher.poll_question().expect("a question");
    assert_eq!((question.point, &question.policy[..]), (point, "p"));
    assert!(world.matcher.poll_question().is_none());
    question
}

fn answered(world: &mut World, number: u64) -> (Status, Vec<u8>) {
    let answered = world.matcher.poll_answered().expect("an answer");
    assert_eq!(answered.request, number);
    (answered.status, answered.body)
}

fn allow(world: &mut World, point: HookPoint) -> PolicyRequest {
    let asked = question(world, point);
    world.verdict(asked.id, Some(&Verdict::default()));
    asked
}

/// A room of the mode with `name` in it, made without questions but the one about adding.
fn room_with(world: &mut World, name: &str) -> String {
    let number = waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode(name, "m")));
    allow(world, HookPoint::OnAddingRoles);
    let (status, body) = answered(world, number);
    assert_eq!(status, Status::Ok);
    Reader::new(&body).unwrap().nested(1).unwrap().str(1).unwrap().to_owned()
}

#[test]
fn a_policy_is_asked_at_every_point_of_a_rooms_life() {
    let mut world = world(&HookPoint::ALL);
    let number = waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode("ann", "m")));
    let asked = question(&mut world, HookPoint::OnCreate);
    let server = Verdict { data: vec![("server".to_owned(), "\"h:1\"".to_owned())], ..Verdict::default() };
    world.verdict(asked.id, Some(&server));
    let asked = allow(&mut world, HookPoint::OnAddingRoles);
    let body = Reader::new(&asked.body).unwrap();
    assert_eq!((body.str(1).unwrap(), body.str(2).unwrap()), ("OnAddingRoles", "m"));
    assert_eq!(body.nested(4).unwrap().str(1).unwrap(), "ann");
    assert!(asked.body.windows(5).any(|part| part == b"\"h:1\""), "the room as OnCreate made it");
    assert_eq!(world.matcher.counts().rooms, 0, "nothing is there yet");
    assert!(world.take_heard().is_empty());
    let asked = question(&mut world, HookPoint::OnAddedRoles);
    assert_eq!(Reader::new(&asked.body).unwrap().nested(3).unwrap().u64(12), 1, "with its first member");
    world.verdict(asked.id, Some(&Verdict { hidden: Some(true), full: Some(true), ..Verdict::default() }));
    let (status, body) = answered(&mut world, number);
    let body = Reader::new(&body).unwrap();
    let room = body.nested(1).unwrap();
    assert_eq!((status, room.u64(5), room.u64(6), room.u64(12)), (Status::Ok, 1, 1, 1));
    let id = room.str(1).unwrap().to_owned();
    let heard = world.take_heard();
    assert_eq!((heard.len(), heard[0].kind), (1, Event::ROLES_JOIN_ROOM));

    let number = waits(world.begin(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "ann").str(2, &id)));
    allow(&mut world, HookPoint::OnDeletingRole);
    assert_eq!(answered(&mut world, number).0, Status::Ok);
    world.pass(2_000);
    let told = question(&mut world, HookPoint::OnDestroy);
    assert!(!told.waits && world.matcher.counts().rooms == 0);
}

#[test]
fn a_veto_leads_a_random_join_to_the_next_room_and_then_to_a_new_one() {
    let mut world = world(&[HookPoint::OnAddingRoles]);
    let rooms = [room_with(&mut world, "a"), room_with(&mut world, "b")];
    let number = waits(world.begin(Method::ROLE_JOIN_RANDOM_ROOM, to_mode("c", "m")));
    for room in &rooms {
        let asked = question(&mut world, HookPoint::OnAddingRoles);
        let about = Reader::new(&asked.body).unwrap();
        assert_eq!(about.nested(3).unwrap().str(1).unwrap(), room);
        world.verdict(asked.id, Some(&Verdict::refusal("not with them")));
    }
    allow(&mut world, HookPoint::OnAddingRoles);
    let (status, body) = answered(&mut world, number);
    assert_eq!((status, Reader::new(&body).unwrap().u64(2)), (Status::Ok, 1), "made for her");
    assert_eq!(world.matcher.counts().rooms, 3);
    let number = waits(world.begin(Method::ROLE_JOIN_ROOM, to_room("d", &rooms[0])));
    let asked = question(&mut world, HookPoint::OnAddingRoles);
    world.verdict(asked.id, Some(&Verdict::refusal("not you")));
    let (status, body) = answered(&mut world, number);
    assert_eq!((status, Reader::new(&body).unwrap().str(1).unwrap()), (Status::Refused, "not you"));
}

#[test]
fn without_a_verdict_the_request_fails_and_nothing_has_changed() {
    let mut world = world(&HookPoint::ALL);
    let before = world.matcher.counts();
    let number = waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode("ann", "m").bytes(100, &[1; 16])));
    let asked = question(&mut world, HookPoint::OnCreate);
    world.pass(199);
    assert!(world.matcher.poll_answered().is_none());
    world.pass(1);
    assert_eq!(answered(&mut world, number).0, Status::PolicyUnavailable);
    assert_eq!(
        (world.matcher.counts().rooms, world.matcher.counts().players),
        (before.rooms, before.players)
    );
    world.verdict(asked.id, Some(&Verdict::default()));
    assert!(world.matcher.poll_answered().is_none() && world.matcher.poll_question().is_none(), "too late");
    let again = waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode("ann", "m").bytes(100, &[1; 16])));
    assert_ne!(again, number, "its key was not spent");
    let asked = question(&mut world, HookPoint::OnCreate);
    world.verdict(asked.id, None);
    assert_eq!(answered(&mut world, again).0, Status::PolicyUnavailable);
    assert_eq!(world.matcher.stats().policy_failures, 2);
}

#[test]
fn a_retry_that_comes_before_the_verdict_asks_nothing_and_gets_the_same_answer() {
    for verdict in [Some(Verdict::default()), Some(Verdict::refusal("no")), None] {
        let mut world = world(&[HookPoint::OnCreate, HookPoint::OnAddingRoles]);
        let create = |id: &str| to_mode(id, "m").bytes(100, &[1; 16]);
        let first = waits(world.begin(Method::ROLE_CREATE_ROOM, create("ann")));
        let asked = question(&mut world, HookPoint::OnCreate);
        let second = waits(world.begin(Method::ROLE_CREATE_ROOM, create("ann")));
        assert!(world.matcher.poll_question().is_none(), "the policy was asked about it");
        for (method, other) in
            [(Method::ROLE_CREATE_ROOM, create("ben")), (Method::ROLE_JOIN_RANDOM_ROOM, create("ann"))]
        {
            assert_eq!(world.begin(method, other), Handled::Done(Status::Invalid), "another request");
        }
        world.verdict(asked.id, Some(&Verdict::default()));
        let asked = question(&mut world, HookPoint::OnAddingRoles);
        let third = waits(world.begin(Method::ROLE_CREATE_ROOM, create("ann")));
        // Waiting requests survive a snapshot, retries included.
        world.matcher = Matcher::restore(&world.matcher.snapshot()).unwrap();
        let fourth = waits(world.begin(Method::ROLE_CREATE_ROOM, create("ann")));
        assert!(world.matcher.poll_question().is_none() && world.matcher.poll_answered().is_none());
        world.verdict(asked.id, verdict.as_ref());
        let (status, body) = answered(&mut world, first);
        let wanted = match &verdict {
            Some(verdict) if verdict.refuse => Status::Refused,
            Some(_) => Status::Ok,
            None => Status::PolicyUnavailable,
        };
        assert_eq!(status, wanted);
        for retry in [second, third, fourth] {
            assert_eq!(answered(&mut world, retry), (status, body.clone()));
        }
        assert!(world.matcher.poll_answered().is_none());
        assert_eq!(world.matcher.counts().rooms, usize::from(status == Status::Ok));
        let again = world.begin(Method::ROLE_CREATE_ROOM, create("ann"));
        match status {
            // The key of a transient refusal is free again.
            Status::PolicyUnavailable => assert!(matches!(again, Handled::Waits(_))),
            _ => assert_eq!(again, Handled::Done(status)),
        }
    }
}

#[test]
fn a_retry_of_a_request_that_waits_behind_a_question_waits_for_its_answer() {
    let mut world = world(&[HookPoint::OnAddingRoles]);
    let room = room_with(&mut world, "a");
    let joins = waits(world.begin(Method::ROLE_JOIN_ROOM, to_room("b", &room)));
    let asked = question(&mut world, HookPoint::OnAddingRoles);
    let set = || Writer::new().str(1, &room).str(2, "k").bytes(3, b"1").bytes(100, &[2; 16]);
    let sets = [(); 3].map(|()| waits(world.begin(Method::SET_ROOM_DATA, set())));
    world.verdict(asked.id, Some(&Verdict::default()));
    assert_eq!(answered(&mut world, joins).0, Status::Ok);
    for number in sets {
        assert_eq!(answered(&mut world, number).0, Status::Ok);
    }
    assert_eq!(world.begin(Method::SET_ROOM_DATA, set()), Handled::Done(Status::Ok));
    assert_eq!(world.matcher.open_questions(), 0);
    let rev = Reader::new(&world.room(&room).1).unwrap().nested(1).unwrap().u64(9);
    assert_eq!(rev, 3, "two roles came, and a value was set once");
}

#[test]
fn retries_that_wait_are_bounded() {
    let mut world = world(&[HookPoint::OnCreate]);
    let create = || to_mode("ann", "m").bytes(100, &[1; 16]);
    waits(world.begin(Method::ROLE_CREATE_ROOM, create()));
    for _ in 0..10_000 {
        waits(world.begin(Method::ROLE_CREATE_ROOM, create()));
    }
    assert_eq!(world.begin(Method::ROLE_CREATE_ROOM, create()), Handled::Done(Status::Overloaded));
    world.pass(200);
    let answered = world.take_answered();
    assert!(answered.len() == 10_001 && answered.iter().all(|s| *s == Status::PolicyUnavailable));
    waits(world.begin(Method::ROLE_CREATE_ROOM, create()));
    waits(world.begin(Method::ROLE_CREATE_ROOM, create()));
}

#[test]
fn only_the_room_of_an_open_question_waits() {
    let mut world = world(&[HookPoint::OnAddingRoles]);
    let rooms = [room_with(&mut world, "a"), room_with(&mut world, "b")];
    let joins = waits(world.begin(Method::ROLE_JOIN_ROOM, to_room("c", &rooms[0])));
    let asked = question(&mut world, HookPoint::OnAddingRoles);
    let set = |room: &str| Writer::new().str(1, room).str(2, "k").bytes(3, b"1");
    let sets = waits(world.begin(Method::SET_ROOM_DATA, set(&rooms[0])));
    let second = waits(world.begin(Method::ROLE_JOIN_ROOM, to_room("d", &rooms[0])));
    let leaves = waits(world.begin(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &rooms[0])));
    assert_eq!(world.begin(Method::SET_ROOM_DATA, set(&rooms[1])), Handled::Done(Status::Ok));
    assert_eq!(
        world.begin(Method::GET_ROOM_INFO, Writer::new().str(1, &rooms[0])),
        Handled::Done(Status::Ok)
    );
    world.verdict(asked.id, Some(&Verdict::default()));
    assert_eq!(answered(&mut world, joins).0, Status::Ok);
    assert_eq!(answered(&mut world, sets).0, Status::Ok);
    assert!(world.matcher.poll_answered().is_none(), "the second join has a question of its own");
    allow(&mut world, HookPoint::OnAddingRoles);
    assert_eq!(answered(&mut world, second).0, Status::Ok);
    assert_eq!(answered(&mut world, leaves).0, Status::Ok);
    // What waits behind a question that fails goes on.
    let first = waits(world.begin(Method::ROLE_JOIN_ROOM, to_room("e", &rooms[0])));
    let asked = question(&mut world, HookPoint::OnAddingRoles);
    let held = waits(world.begin(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "b").str(2, &rooms[0])));
    world.verdict(asked.id, None);
    assert_eq!(answered(&mut world, first).0, Status::PolicyUnavailable);
    assert_eq!(answered(&mut world, held).0, Status::NotAMember);
}

/// Makes rooms until so many questions more are open.
fn open_questions(world: &mut World, count: usize) {
    let before = world.matcher.open_questions();
    for index in before..before + count {
        waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode(&format!("r{index}"), "m")));
    }
    assert_eq!(world.matcher.open_questions(), before + count);
}

#[test]
fn at_most_a_thousand_questions_are_open() {
    let mut world = world(&[HookPoint::OnCreate]);
    open_questions(&mut world, 1_000);
    let refused = world.begin(Method::ROLE_CREATE_ROOM, to_mode("beyond", "m"));
    assert_eq!(refused, Handled::Done(Status::PolicyUnavailable));
    world.pass(200);
    let answered = world.take_answered();
    assert!(answered.len() == 1_000 && answered.iter().all(|s| *s == Status::PolicyUnavailable));
    assert_eq!((world.matcher.open_questions(), world.matcher.counts().players), (0, 0));
    open_questions(&mut world, 1_000);
}

#[test]
fn a_match_that_gets_no_question_ends_as_if_the_policy_were_silent() {
    let mut world = World::new(config_of_queue(&[HookPoint::OnCreate]));
    world.session("s", true);
    open_questions(&mut world, 998);
    for id in ["a", "b", "c", "d", "e", "f"] {
        world.ok("s", Method::CREATE_TICKET, Writer::new().str(1, "m").nested(2, role(id)));
    }
    world.pass(100);
    assert_eq!(world.matcher.open_questions(), 1_000, "two of the matches ask");
    // The third ends with them, neither earlier nor again and again.
    world.pass(199);
    assert_eq!(world.take_kind(Event::MATCH_CANCELLED), []);
    world.pass(1);
    let cancelled = world.take_kind(Event::MATCH_CANCELLED);
    assert_eq!(cancelled.len(), 3);
    assert!(cancelled.iter().all(|heard| heard.str(2) == "policy_unavailable"));
}

#[test]
fn a_match_gets_its_server_from_the_policy_or_its_tickets_search_on() {
    let config = config_of_queue(&[HookPoint::OnCreate]);
    let without = Config { modes: BTreeMap::new(), ..config.clone() };
    assert_eq!(without.check().unwrap_err().path, "assign", "its mode names no policy");
    let mut world = World::new(config);
    world.session("s", true);
    for id in ["a", "b"] {
        world.ok("s", Method::CREATE_TICKET, Writer::new().str(1, "m").nested(2, role(id)));
    }
    world.pass(100);
    let asked = question(&mut world, HookPoint::OnCreate);
    assert_eq!(Reader::new(&asked.body).unwrap().nested(3).unwrap().str(3).unwrap(), "m");
    world.take_heard();
    world.verdict(asked.id, Some(&Verdict::refusal("no machines")));
    let heard = world.take_heard();
    let cancelled = heard.iter().find(|heard| heard.kind == Event::MATCH_CANCELLED).unwrap();
    assert_eq!(cancelled.str(2), "refused");
    world.pass(900);
    assert!(world.matcher.poll_question().is_none(), "not in every tick");
    world.pass(200);
    let asked = world.matcher.poll_question().expect("they are matched again");
    let server =
        Verdict { data: vec![("connection".to_owned(), "\"h:7\"".to_owned())], ..Verdict::default() };
    world.take_heard();
    world.verdict(asked.id, Some(&server));
    let heard = world.take_heard();
    let ready: Vec<_> = heard.iter().filter(|heard| heard.kind == Event::MATCH_READY).collect();
    assert_eq!(ready.len(), 2, "one for each side");
    assert_eq!(ready[0].str(4), "h:7");
}

#[test]
fn a_match_whose_policy_was_asked_before_a_restart_is_made_again() {
    let mut world = World::new(config_of_queue(&[HookPoint::OnCreate]));
    world.session("s", true);
    for id in ["a", "b"] {
        world.ok("s", Method::CREATE_TICKET, Writer::new().str(1, "m").nested(2, role(id)));
    }
    world.pass(100);
    question(&mut world, HookPoint::OnCreate);
    world.matcher = throng_matcher::Matcher::restore(&world.matcher.snapshot()).unwrap();
    world.recover();
    world.session("s", true);
    world.pass(1_100);
    question(&mut world, HookPoint::OnCreate);
}

#[test]
fn a_policy_that_refuses_a_match_is_asked_about_its_tickets_less_and_less_often() {
    let mut world = World::new(config_of_queue(&[HookPoint::OnCreate]));
    world.session("s", true);
    let wait = |world: &mut World, id: &str| {
        let answer = world.ok("s", Method::CREATE_TICKET, Writer::new().str(1, "m").nested(2, role(id)));
        Reader::new(&answer).unwrap().nested(1).unwrap().str(1).unwrap().to_owned()
    };
    let tickets = ["a", "b"].map(|id| wait(&mut world, id));
    let (begun, mut asked_at) = (world.now, Vec::new());
    while world.now < begun + 100_000 {
        world.pass(100);
        if let Some(asked) = world.matcher.poll_question() {
            asked_at.push(world.now - begun);
            // Nonsense in its Data counts as much as a refusal, and no answer does.
            let bad = vec![("Connection".repeat(100), "1".to_owned())];
            let verdict = match asked_at.len() {
                1 => Some(Verdict { data: bad, ..Verdict::default() }),
                2 => None,
                _ => Some(Verdict::refusal("no machines")),
            };
            world.verdict(asked.id, verdict.as_ref());
        }
    }
    let waited: Vec<u64> = asked_at.windows(2).map(|pair| (pair[1] - pair[0]).div_ceil(1_000)).collect();
    assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30]);
    let heard = world.take_kind(Event::MATCH_CANCELLED);
    let reasons: Vec<String> = heard.iter().map(|heard| heard.str(2)).collect();
    assert_eq!(heard.len(), asked_at.len(), "once for the server of both");
    assert_eq!(reasons[..3], ["refused", "policy_unavailable", "refused"]);

    // Held tickets show as searching, and others are matched meanwhile.
    let answer = world.ok("s", Method::GET_TICKET, Writer::new().str(1, &tickets[0]));
    let ticket = Reader::new(&answer).unwrap().nested(1).unwrap();
    assert_eq!((ticket.str(8).unwrap(), ticket.str(10).unwrap()), ("searching", "refused"));
    let answer = world.ok("s", Method::EXPLAIN_TICKET, Writer::new().str(1, &tickets[0]));
    let why = Reader::new(&answer).unwrap().str(2).unwrap().to_owned();
    assert!(why.contains("policy") && why.contains("searches again in"), "{why}");
    for id in ["c", "d"] {
        wait(&mut world, id);
    }
    world.pass(100);
    let asked = question(&mut world, HookPoint::OnCreate);
    world.verdict(asked.id, Some(&Verdict::default()));
    assert_eq!(world.take_kind(Event::MATCH_READY).len(), 2);

    // A snapshot keeps how long they wait, and they can be cancelled.
    let again = Matcher::restore(&world.matcher.snapshot()).unwrap();
    again.check_invariants().unwrap();
    assert_eq!(
        (again.digest(), again.next_timeout()),
        (world.matcher.digest(), world.matcher.next_timeout())
    );
    world.ok("s", Method::CANCEL_TICKET, Writer::new().str(1, &tickets[0]));
    world.pass(31_000);
    assert!(world.matcher.poll_question().is_none(), "one alone");
}

#[test]
fn new_rules_let_tickets_search_again_whose_match_was_refused() {
    let mut world = World::new(config_of_queue(&[HookPoint::OnCreate]));
    world.session("s", true);
    for id in ["a", "b"] {
        world.ok("s", Method::CREATE_TICKET, Writer::new().str(1, "m").nested(2, role(id)));
    }
    world.pass(100);
    let asked = question(&mut world, HookPoint::OnCreate);
    world.verdict(asked.id, Some(&Verdict::refusal("no machines")));
    let rules = ONE_VS_ONE.replace(r#""assign": "policy""#, r#""assign": "none""#);
    let put = Writer::new().str(1, &rules);
    assert_eq!(world.ask_as("s", throng_matcher::Scope::Admin, Method::PUT_QUEUE, put).0, Status::Ok);
    world.pass(100);
    assert_eq!(world.take_kind(Event::MATCH_READY).len(), 2);
}

#[test]
fn a_snapshot_keeps_what_waits_and_a_restart_ends_it() {
    let mut world = world(&[HookPoint::OnAddingRoles]);
    let number = waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode("a", "m")));
    let asked = question(&mut world, HookPoint::OnAddingRoles);
    let snapshot = world.matcher.snapshot();
    let mut again = Matcher::restore(&snapshot).unwrap();
    assert_eq!(again.digest(), world.matcher.digest());
    let mut notices = Notices::default();
    again.handle_verdict(WallMs(START), asked.id, Some(&Verdict::default()), &mut notices);
    let reply = again.poll_answered().unwrap();
    assert_eq!((reply.request, reply.status), (number, Status::Ok));
    let mut again = Matcher::restore(&snapshot).unwrap();
    again.reconfigure(config(&[]));
    again.handle_recovered(WallMs(START), &mut notices);
    assert_eq!((again.open_questions(), again.counts().rooms), (0, 0));
    again.handle_verdict(WallMs(START), asked.id, Some(&Verdict::default()), &mut notices);
    assert!(again.poll_answered().is_none());
}

#[test]
fn a_policy_that_gives_back_the_count_it_was_shown_changes_nothing_by_it() {
    let mut world = world(&[HookPoint::OnCreate, HookPoint::OnAddedRoles]);
    let number = waits(world.begin(Method::ROLE_CREATE_ROOM, to_mode("a", "m")));
    for point in [HookPoint::OnCreate, HookPoint::OnAddedRoles] {
        let asked = question(&mut world, point);
        let data = [("roleCount", "7"), ("k", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        world.verdict(asked.id, Some(&Verdict { data: data.to_vec(), ..Verdict::default() }));
    }
    let (status, answer) = answered(&mut world, number);
    assert_eq!(status, Status::Ok);
    let room = Reader::new(&answer).unwrap().nested(1).unwrap();
    let data: Vec<_> = room
        .all(8)
        .map(|entry| Reader::new(entry).unwrap())
        .map(|entry| (entry.str(1).unwrap().to_owned(), entry.bytes(2).to_vec()))
        .collect();
    let wanted = [("roleCount", b"1"), ("k", b"1")].map(|(key, value)| (key.to_owned(), value.to_vec()));
    assert_eq!(data, wanted);
}
