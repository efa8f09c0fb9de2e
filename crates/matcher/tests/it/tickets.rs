//! Tickets from the request to the seat.

use crate::world;

use throng_matcher::{Config, Scope};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{Heard, World, id_in, player, role, roles_in, to_room};

const DUEL: &str = r#"{
    "name": "duel",
    "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}],
    "attributes": {"skill": {"type": "number", "default": 0}},
    "rules": [{"name": "near", "type": "near", "key": "skill", "max": 5}],
    "expand": [{"target": "rules.near.max", "steps": [{"after_s": 10, "value": 50}]}],
    "timeout_s": 60
}"#;

fn duel() -> World {
    with(DUEL)
}

fn with(rules: &str) -> World {
    let mut world = World::new(Config::default());
    let (status, answer) = world.put_queue(rules);
    assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&answer));
    world
}

/// The duel's rules with another text in place of the limit on time.
fn duel_with(more: &str) -> World {
    with(&DUEL.replace(r#""timeout_s": 60"#, &format!(r#""timeout_s": 60, {more}"#)))
}

#[test]
fn two_near_tickets_become_a_room_with_seats() {
    let mut world = duel();
    let (a, b) = (world.solo("s1", "duel", "a", 10.0), world.solo("s2", "duel", "b", 12.0));
    world.take_heard();
    world.pass(250);
    let (a, b) = (world.get_ticket(&a), world.get_ticket(&b));
    assert_eq!((a.status.as_str(), b.status.as_str()), ("matched", "matched"));
    assert_eq!((&a.room, &a.matched), (&b.room, &b.matched));
    let ready = world.take_kind(Event::MATCH_READY);
    let told: Vec<(&str, Vec<String>, String)> =
        ready.iter().map(|heard| (heard.server.as_str(), heard.roles.clone(), heard.str(3))).collect();
    assert_eq!(told.len(), 2);
    assert!(told.iter().any(|(srv, roles, _)| *srv == "s1" && roles == &["a"]));
    assert_ne!(told[0].2, told[1].2, "one on each side");
    assert_eq!(ready[0].str(20), a.room);

    let claim = |id: &str| Writer::new().str(1, &a.room).str(2, id);
    let room = world.ok("s1", Method::CLAIM_SEAT, claim("a"));
    assert_eq!(roles_in(&room, 4), ["a"]);
    assert_eq!(world.ask("s3", Method::ROLE_JOIN_ROOM, to_room("stranger", &a.room)).0, Status::RoomFull);
    world.ok("s2", Method::ROLE_JOIN_ROOM, to_room("b", &a.room));
    let sealed = world.room(&a.room).1;
    assert_eq!(roles_in(&sealed, 4), ["a", "b"]);
}

#[test]
fn a_seat_that_nobody_claims_expires() {
    let mut world = duel_with(r#""seat_ttl_s": 20"#);
    let a = world.solo("s", "duel", "a", 0.0);
    world.solo("s", "duel", "b", 0.0);
    world.pass(250);
    let room = world.get_ticket(&a).room;
    world.ok("s", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, "a"));
    world.take_heard();
    world.pass(20_000);
    let audiences: Vec<Vec<String>> =
        world.take_kind(Event::SEAT_EXPIRED).into_iter().map(|heard| heard.roles).collect();
    assert_eq!(audiences, [["a", "b"]], "the room and the one who lost it");
    let late = world.ask("s", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, "b"));
    assert_eq!(late.0, Status::SeatExpired);
}

#[test]
fn distant_tickets_wait_until_the_rule_relaxes() {
    let mut world = duel();
    let (a, b) = (world.solo("s", "duel", "a", 0.0), world.solo("s", "duel", "b", 40.0));
    world.pass(9_750);
    assert_eq!(world.get_ticket(&a).status, "searching");
    world.pass(500);
    assert_eq!(world.get_ticket(&a).status, "matched");
    assert_eq!(world.get_ticket(&b).status, "matched");
}

#[test]
fn a_ticket_times_out_and_is_forgotten_after_a_minute() {
    let mut world = duel();
    let a = world.solo("s", "duel", "a", 0.0);
    world.take_heard();
    world.pass(60_250);
    assert_eq!(world.get_ticket(&a).status, "timed_out");
    assert!(world.heard.iter().any(|heard| heard.kind == Event::TICKET_UPDATE), "its server hears it");
    world.pass(60_000);
    world.solo("s", "duel", "c", 0.0);
    let (status, _) = world.ask("s", Method::GET_TICKET, Writer::new().str(1, &a));
    assert_eq!(status, Status::NotFound);
}

#[test]
fn a_player_has_one_ticket_per_queue_and_three_in_all() {
    let mut world = duel();
    for name in ["q2", "q3", "q4"] {
        assert_eq!(world.put_queue(&DUEL.replace("\"duel\"", &format!("\"{name}\""))).0, Status::Ok);
    }
    world.solo("s", "duel", "a", 0.0);
    let again = world.try_ticket("s", "duel", vec![player("a", &[])]);
    assert_eq!(again.0, Status::AlreadyInQueue);
    let second = world.solo("s", "q2", "a", 0.0);
    world.solo("s", "q3", "a", 0.0);
    assert_eq!(world.try_ticket("s", "q4", vec![player("a", &[])]).0, Status::AlreadyInQueue);
    // A match in one queue ends the others.
    world.solo("s", "duel", "b", 0.0);
    world.pass(250);
    let second = world.get_ticket(&second);
    assert_eq!((second.status.as_str(), second.reason.as_str()), ("cancelled", "matched_elsewhere"));
}

#[test]
fn what_does_not_fit_the_declarations_is_refused_with_the_key() {
    let mut world = duel();
    for (attr, json) in [("level", "1"), ("skill", "\"high\""), ("skill", "{")] {
        let (status, answer) = world.try_ticket("s", "duel", vec![player("a", &[(attr, json)])]);
        let why = Reader::new(&answer).unwrap().str(1).unwrap().to_owned();
        assert_eq!(status, Status::RuleInvalid);
        assert!(why.contains(attr), "{why}");
    }
    let party = vec![player("a", &[]), player("b", &[])];
    assert_eq!(world.try_ticket("s", "duel", party).0, Status::RuleInvalid, "no side holds two");
    assert_eq!(world.try_ticket("s", "none", vec![player("a", &[])]).0, Status::NotFound);
    assert_eq!(world.try_ticket("s", "duel", vec![]).0, Status::Invalid);
    let twice = vec![player("a", &[]), player("a", &[])];
    assert_eq!(world.try_ticket("s", "duel", twice).0, Status::Invalid);
    assert_eq!(world.matcher.counts(), throng_matcher::Counts::default(), "nothing stays behind");
}

#[test]
fn a_rule_set_that_contradicts_itself_is_refused_with_its_path() {
    let mut world = duel();
    let narrowed = DUEL.replace("\"value\": 50", "\"value\": 2");
    let (status, answer) = world.put_queue(&narrowed);
    assert_eq!(status, Status::RuleInvalid);
    let detail = Reader::new(&answer).unwrap().nested(2).unwrap();
    assert_eq!((detail.str(1), detail.str(2)), (Ok("Path"), Ok("\"expand[0].steps[0]\"")));
    let (status, _) = world.ask_as("", Scope::Trusted, Method::PUT_QUEUE, Writer::new().str(1, DUEL));
    assert_eq!(status, Status::Forbidden);
}

#[test]
fn a_replaced_rule_set_fails_tickets_that_can_never_match_now() {
    let mut world = duel();
    let (low, high) = (world.solo("s", "duel", "a", -50.0), world.solo("s", "duel", "b", 50.0));
    let bounded = DUEL.replace(
        r#""rules": ["#,
        r#""rules": [{"type": "compare", "key": "skill", "op": ">=", "value": 0}, "#,
    );
    assert_eq!(world.put_queue(&bounded).0, Status::Ok);
    let low = world.get_ticket(&low);
    assert_eq!(low.status, "failed");
    assert!(low.reason.contains("skill"), "{}", low.reason);
    assert_eq!(world.get_ticket(&high).status, "searching");
    let report = &world.matcher.queue_reports(1)[0];
    assert_eq!((report.searching, report.failed, report.cancelled), (1, 1, 0));
}

fn answer(world: &mut World, srv: &str, ticket: &world::Shown, role: &str, yes: bool) -> Status {
    let body = Writer::new().str(1, &ticket.matched).str(2, &ticket.id).str(3, role).u64(4, u64::from(yes));
    world.ask(srv, Method::ACCEPT_MATCH, body).0
}

const ACCEPT: &str = r#""accept": {"required": true, "timeout_s": 15, "cooldown_s": 30, "reveal": true}"#;

#[test]
fn a_match_needs_every_yes() {
    let mut world = duel_with(ACCEPT);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.take_heard();
    world.pass(250);
    let (a, b) = (world.get_ticket(&a), world.get_ticket(&b));
    assert_eq!(a.status, "proposed");
    let proposed = world.take_kind(Event::MATCH_PROPOSED);
    assert_eq!((proposed.len(), proposed[0].str(1)), (2, a.matched.clone()));
    assert_eq!(answer(&mut world, "s1", &a, "a", true), Status::Ok);
    assert_eq!(world.get_ticket(&a.id).status, "proposed");
    assert_eq!(answer(&mut world, "s1", &b, "b", true), Status::Forbidden);
    assert_eq!(answer(&mut world, "s2", &b, "b", true), Status::Ok);
    assert_eq!(world.get_ticket(&a.id).status, "matched");
    assert_eq!(answer(&mut world, "s2", &b, "b", true), Status::NotProposed);
}

#[test]
fn who_declines_waits_and_the_other_goes_on_with_the_old_waiting_time() {
    let mut world = duel_with(ACCEPT);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    let (a, b) = (world.get_ticket(&a), world.get_ticket(&b));
    assert_eq!(answer(&mut world, "s1", &a, "a", false), Status::Ok);
    assert_eq!(world.get_ticket(&a.id).status, "cancelled");
    assert_eq!(world.get_ticket(&b.id).status, "searching");
    let (status, refused) = world.try_ticket("s1", "duel", vec![player("a", &[])]);
    assert_eq!(status, Status::Cooldown);
    assert!(Reader::new(&refused).unwrap().nested(2).unwrap().str(1) == Ok("Until"));
    world.pass(30_000);
    world.solo("s1", "duel", "a", 45.0);
    world.pass(250);
    assert_eq!(world.get_ticket(&b.id).status, "searching", "the new one is young and far");
    world.pass(10_500);
    assert_eq!(world.get_ticket(&b.id).status, "proposed");
}

#[test]
fn silence_ends_a_proposal_at_its_deadline() {
    let mut world = duel_with(ACCEPT);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    let a = world.get_ticket(&a);
    answer(&mut world, "s1", &a, "a", true);
    world.pass(14_999);
    assert_eq!(world.get_ticket(&a.id).status, "proposed");
    world.take_heard();
    world.pass(1);
    assert_eq!(world.get_ticket(&a.id).status, "searching");
    assert_eq!(world.get_ticket(&b).status, "cancelled");
    assert_eq!(world.take_kind(Event::MATCH_CANCELLED).len(), 2);
}

#[test]
fn a_proposal_whose_time_ran_out_while_the_matcher_stood_still_blames_nobody() {
    let mut world = duel_with(ACCEPT);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    let a = world.get_ticket(&a);
    answer(&mut world, "s1", &a, "a", true);
    world.take_heard();
    world.now += 40_000;
    assert_eq!(answer(&mut world, "s1", &a, "a", true), Status::NotProposed);
    for ticket in [&a.id, &b] {
        assert_eq!(world.get_ticket(ticket).status, "searching");
    }
    let cancelled = world.take_kind(Event::MATCH_CANCELLED);
    assert_eq!(cancelled.iter().map(|heard| heard.str(2)).collect::<Vec<_>>(), ["restarted"; 2]);
}

#[test]
fn a_lost_server_cancels_its_tickets_and_a_restart_blames_nobody() {
    let mut world = duel_with(ACCEPT);
    world.session("s1", true);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    restart(&mut world);
    assert_eq!(world.get_ticket(&a).status, "searching");
    world.pass(250);
    for ticket in [&a, &b] {
        assert_eq!(world.get_ticket(ticket).status, "searching", "a player would not hear the question");
    }
    world.pass(9_751);
    let a = world.get_ticket(&a);
    assert_eq!((a.status.as_str(), a.reason.as_str()), ("cancelled", "disconnected"));
    assert_eq!(world.get_ticket(&b).status, "searching");
    assert_eq!(world.take_kind(Event::MATCH_PROPOSED).len(), 2, "before the restart");
}

/// A crash, and a start from the state before it.
fn restart(world: &mut World) {
    let again = throng_matcher::Matcher::restore(&world.matcher.snapshot()).unwrap();
    assert_eq!(again.digest(), world.matcher.digest());
    world.matcher = again;
    world.recover();
}

#[test]
fn players_are_asked_after_a_restart_once_their_servers_are_back() {
    let mut world = duel_with(ACCEPT);
    world.session("s1", true);
    world.session("s2", true);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    // Those who can hear meet each other, although the nearest cannot.
    let (c, d) = (world.solo("s3", "duel", "c", 1.0), world.solo("s3", "duel", "d", 1.0));
    world.pass(250);
    restart(&mut world);
    world.take_heard();
    world.session("s1", true);
    world.pass(2_000);
    let statuses = [&a, &b, &c, &d].map(|ticket| world.get_ticket(ticket).status);
    assert_eq!(statuses.iter().filter(|status| *status == "proposed").count(), 2, "{statuses:?}");
    assert_eq!(world.get_ticket(&b).reason, "server_lost");
    let explained = world.ok("", Method::EXPLAIN_TICKET, Writer::new().str(1, &b));
    assert!(String::from_utf8_lossy(&explained).contains("the server of a player is lost"));
    assert!(world.take_kind(Event::MATCH_PROPOSED).iter().all(|heard| heard.server != "s2"));
    world.session("s2", true);
    world.pass(1_250);
    let statuses = [&a, &b, &c, &d].map(|ticket| world.get_ticket(ticket).status);
    assert_eq!(statuses, ["proposed"; 4]);
    let asked = world.take_kind(Event::MATCH_PROPOSED);
    let asked = asked.iter().find(|heard| heard.server == "s2").expect("b is asked");
    assert!(asked.u64(2) >= world.now + 13_000, "it has the whole time to answer");
}

#[test]
fn who_was_asked_while_its_server_was_lost_is_asked_again_and_not_blamed() {
    let mut world = duel_with(ACCEPT);
    world.session("s1", true);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    let first = world.take_kind(Event::MATCH_PROPOSED);
    world.session("s1", false);
    world.pass(9_000);
    world.session("s1", true);
    let again = world.take_kind(Event::MATCH_PROPOSED);
    assert_eq!(again, first.into_iter().filter(|heard| heard.server == "s1").collect::<Vec<_>>());
    world.session("s1", false);
    world.pass(6_000);
    assert_eq!(world.get_ticket(&a).status, "searching", "it could not answer");
    assert_eq!(world.get_ticket(&b).status, "cancelled");
    world.solo("s2", "duel", "c", 0.0);
    world.pass(2_000);
    assert_eq!(world.get_ticket(&a).status, "searching");
    world.session("s1", true);
    world.pass(1_250);
    assert_eq!(world.get_ticket(&a).status, "proposed");
}

#[test]
fn a_player_that_moves_to_another_server_is_asked_there() {
    let mut world = duel_with(ACCEPT);
    for srv in ["s1", "s2", "s3"] {
        world.session(srv, true);
    }
    let team = world.create_team("s2", "carl", 3, "");
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    let first = world.take_kind(Event::MATCH_PROPOSED);
    let first = first.iter().find(|heard| heard.server == "s1").expect("a is asked");
    world.session("s1", false);
    for again in [true, false] {
        let join = Writer::new().nested(1, role("a")).str(2, &team);
        assert_eq!(world.ask_as("s3", Scope::Trusted, Method::JOIN_TEAM, join).0, Status::Ok);
        let asked = world.take_kind(Event::MATCH_PROPOSED);
        let asked: Vec<_> = asked.iter().map(|heard| (heard.server.as_str(), &heard.body)).collect();
        let expected = [("s3", &first.body)];
        assert_eq!(asked, if again { &expected[..] } else { &[] });
    }
    let accept =
        |ticket: &str, role: &str| Writer::new().str(1, &first.str(1)).str(2, ticket).str(3, role).u64(4, 1);
    world.ok("s3", Method::ACCEPT_MATCH, accept(&a, "a"));
    world.ok("s2", Method::ACCEPT_MATCH, accept(&b, "b"));
    assert_eq!([a, b].map(|ticket| world.get_ticket(&ticket).status), ["matched"; 2]);
}

/// A read is not in the log.
#[test]
fn a_read_changes_nothing_that_is_heard_of_earlier_timers() {
    let heard = |reads: bool| {
        let mut world = duel();
        let ticket = world.solo("s1", "duel", "a", 0.0);
        world.now += 5_050;
        if reads {
            world.get_ticket(&ticket);
        }
        world.pass_to_input(0);
        world.take_kind(Event::TICKET_UPDATE)
    };
    assert!(!heard(false).is_empty());
    assert_eq!(heard(true), heard(false));
}

/// Seats are kept, and a server that comes back finds them.
#[test]
fn a_queue_that_asks_nobody_matches_players_of_lost_servers() {
    let mut world = duel();
    world.session("s1", true);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.session("s1", false);
    world.pass(250);
    assert_eq!([a, b].map(|ticket| world.get_ticket(&ticket).status), ["matched"; 2]);
}

#[test]
fn tickets_are_counted_by_what_they_wait_for() {
    let mut world = duel_with(&format!(r#"{ACCEPT}, "assign": "external", "assign_timeout_s": 5"#));
    let count = |world: &World| {
        let [report] = &world.matcher.queue_reports(1)[..] else { panic!("one queue") };
        (report.searching, report.proposed, report.placing)
    };
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    assert_eq!(count(&world), (2, 0, 0));
    world.pass(250);
    assert_eq!(count(&world), (0, 2, 0));
    world.matcher = throng_matcher::Matcher::restore(&world.matcher.snapshot()).unwrap();
    assert_eq!(count(&world), (0, 2, 0), "counted again");
    for (srv, ticket, role) in [("s1", &a, "a"), ("s2", &b, "b")] {
        let ticket = world.get_ticket(ticket);
        assert_eq!(answer(&mut world, srv, &ticket, role, true), Status::Ok);
    }
    assert_eq!(count(&world), (0, 0, 2));
    world.pass(5_000);
    assert_eq!(count(&world).2, 0, "no server came");
}

#[test]
fn a_step_that_is_due_with_a_tick_is_taken_in_it() {
    let mut world = duel();
    let a = world.solo("s", "duel", "a", 0.0);
    world.solo("s", "duel", "b", 20.0);
    world.pass(9_999);
    assert_eq!(world.get_ticket(&a).status, "searching");
    world.pass(1);
    assert_eq!(world.get_ticket(&a).status, "matched");
}

#[test]
fn a_match_without_a_server_is_off() {
    let mut world = duel_with(r#""assign": "external", "assign_timeout_s": 5, "allocator": "alloc""#);
    world.session("alloc", true);
    let (a, _) = (world.solo("s", "duel", "a", 0.0), world.solo("s", "duel", "b", 0.0));
    world.pass(250);
    let placing = world.get_ticket(&a);
    assert_eq!(placing.status, "placing");
    assert_eq!(world.cancel("s", &a), Status::TicketClosed);
    let asked = world.take_kind(Event::MATCH_READY);
    assert_eq!((asked.len(), asked[0].server.as_str()), (1, "alloc"));
    world.pass(5_000);
    let held = world.get_ticket(&a);
    assert_eq!((held.status.as_str(), held.reason.as_str()), ("searching", "no_server"));
    world.pass(1_250);
    let room = world.get_ticket(&a).room;
    assert_ne!(room, placing.room);
    let assign = Writer::new().str(1, &room).str(2, "10.0.0.1:7777");
    world.take_heard();
    assert_eq!(world.ask("alloc", Method::ASSIGN_MATCH, assign).0, Status::Ok);
    let ready = world.take_kind(Event::MATCH_READY);
    assert_eq!((ready.len(), ready[0].str(4).as_str()), (2, "10.0.0.1:7777"));
    assert_eq!(world.get_ticket(&a).status, "matched");
}

#[test]
fn a_match_whose_world_has_no_home_after_10_s_is_off() {
    let mut world = duel_with(r#""assign": "external", "allocator": "alloc", "world": {"class": "duel"}"#);
    world.session("alloc", true);
    let (a, _) = (world.solo("s", "duel", "a", 0.0), world.solo("s", "duel", "b", 0.0));
    world.pass(250);
    world.pass(9_750);
    assert_eq!(world.get_ticket(&a).status, "placing");
    world.pass(250);
    assert_eq!(world.get_ticket(&a).status, "searching", "its players keep their place");
    let off = world.take_kind(Event::MATCH_CANCELLED);
    assert!(!off.is_empty() && off.iter().all(|event| event.str(2) == "no_server"));
}

#[test]
fn a_match_that_gets_no_world_is_made_again_after_growing_pauses_until_its_tickets_time_out() {
    let mut world = duel_with(r#""assign": "external", "allocator": "alloc", "world": {"class": "duel"}"#);
    world.session("alloc", true);
    let (a, _) = (world.solo("s", "duel", "a", 0.0), world.solo("s", "duel", "b", 0.0));
    let created = world.now;
    let mut tries = Vec::new();
    while world.get_ticket(&a).status != "timed_out" {
        world.pass(250);
        let asked = world.take_kind(Event::MATCH_READY).len() as u64;
        tries.extend((0..asked).map(|_| (world.now - created) / 1_000));
        assert!(world.now - created <= 70_000, "{tries:?}");
    }
    assert_eq!(tries, [0, 11, 23, 37, 55]);
}

#[test]
fn a_match_that_waits_for_its_server_waits_on_after_a_restart() {
    for more in ["", r#", "world": {"class": "duel"}"#] {
        for is_assigned in [true, false] {
            let rules = r#""assign": "external", "assign_timeout_s": 10, "allocator": "alloc""#;
            let mut world = duel_with(&format!("{rules}{more}"));
            let (a, _) = (world.solo("s", "duel", "a", 0.0), world.solo("s", "duel", "b", 0.0));
            world.pass(250);
            let room = world.get_ticket(&a).room;
            world.matcher = throng_matcher::Matcher::restore(&world.matcher.snapshot()).unwrap();
            world.recover();
            world.session("alloc", true);
            world.session("s", true);
            assert_eq!(world.get_ticket(&a).status, "placing", "{more}");
            let listed = world.ok("alloc", Method::LIST_MINE, Writer::new());
            let listed = Reader::new(&listed).unwrap().nested(4).unwrap();
            assert_eq!((listed.str(2).unwrap(), listed.str(4).unwrap()), (&*room, "assigning"));
            if is_assigned {
                let name = Writer::new().str(1, "World").str(2, "\"duel-1\"");
                let assign = Writer::new().str(1, &room).str(2, "10.0.0.1:7777").nested(3, name);
                world.ok("alloc", Method::ASSIGN_MATCH, assign);
                assert_eq!(world.take_kind(Event::MATCH_READY).len(), 2, "one for each side");
                assert_eq!(world.get_ticket(&a).status, "matched");
            } else {
                world.pass(9_999);
                assert_eq!(world.get_ticket(&a).status, "placing");
                world.pass(1);
                let a = world.get_ticket(&a);
                assert_eq!((a.status.as_str(), a.reason.as_str()), ("searching", "no_server"));
            }
        }
    }
}

#[test]
fn a_match_that_waits_for_its_server_gets_no_backfill() {
    let mut world = with(
        r#"{"name": "fill", "sides": [{"name": "red", "min": 1, "max": 2}, {"name": "blue", "min": 1, "max": 2}],
        "assign": "external", "allocator": "alloc", "backfill": {}}"#,
    );
    world.session("alloc", true);
    let tickets = ["a", "b"].map(|id| world.ticket("s", "fill", vec![player(id, &[])]));
    world.pass(1_000);
    let room = world.get_ticket(&tickets[0]).room;
    let start =
        || Writer::new().str(1, &room).str(2, "fill").nested(3, Writer::new().str(1, "red").u64(2, 1));
    let (status, why) = world.ask_as("game", Scope::Trusted, Method::START_BACKFILL, start());
    assert_eq!(status, Status::Invalid);
    assert!(String::from_utf8_lossy(&why).contains("waits for its server"));
    let assign = Writer::new().str(1, &room).str(2, "10.0.0.1:7777");
    world.ok("alloc", Method::ASSIGN_MATCH, assign);
    assert_eq!(world.ask_as("game", Scope::Trusted, Method::START_BACKFILL, start()).0, Status::Ok);
}

const FIVES: &str = r#"{
    "name": "fives", "sides": [{"name": "side", "count": 2, "min": 2, "max": 2}],
    "attributes": {"skill": {"type": "number", "default": 0}}, "backfill": {"ack_s": 10}
}"#;

#[test]
fn a_backfill_does_not_take_players_who_are_in_its_room() {
    let mut world = with(&FIVES.replace("\"backfill\"", "\"allow_in_room\": true, \"backfill\""));
    for id in ["a", "b", "c", "d"] {
        world.solo("game", "fives", id, 0.0);
    }
    world.pass(250);
    let room = world.take_kind(Event::MATCH_READY)[0].str(20);
    for id in ["a", "b", "c", "d"] {
        world.ok("game", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, id));
    }
    world.ok("game", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "c").str(2, &room));
    let side = {
        let info = world.room(&room).1;
        let info = Reader::new(&info).unwrap().nested(1).unwrap();
        let sides: Vec<Reader<'_>> = info.all(10).map(|side| Reader::new(side).unwrap()).collect();
        sides.iter().find(|side| side.all(2).count() == 1).unwrap().str(1).unwrap().to_owned()
    };
    let inside = world.solo("game", "fives", "a", 0.0);
    let start = Writer::new().str(1, &room).str(2, "fives").nested(3, Writer::new().str(1, &side).u64(2, 1));
    world.ok("game", Method::START_BACKFILL, start);
    world.pass(500);
    assert_eq!(world.get_ticket(&inside).status, "searching");
    let late = world.solo("game", "fives", "late", 0.0);
    world.pass(500);
    assert_eq!(world.get_ticket(&late).room, room);
}

#[test]
fn a_backfill_gets_players_and_needs_signs_of_life() {
    let mut world = with(FIVES);
    for id in ["a", "b", "c", "d"] {
        world.solo("game", "fives", id, 0.0);
    }
    world.pass(250);
    let room = world.take_kind(Event::MATCH_READY)[0].str(20);
    for id in ["a", "b", "c", "d"] {
        world.ok("game", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, id));
    }
    world.ok("game", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "c").str(2, &room));
    let side = {
        let info = world.room(&room).1;
        let info = Reader::new(&info).unwrap().nested(1).unwrap();
        let sides: Vec<Reader<'_>> = info.all(10).map(|side| Reader::new(side).unwrap()).collect();
        sides.iter().find(|side| side.all(2).count() == 1).unwrap().str(1).unwrap().to_owned()
    };
    let start = Writer::new().str(1, &room).str(2, "fives").nested(3, Writer::new().str(1, &side).u64(2, 1));
    let started = world.ok("game", Method::START_BACKFILL, start);
    let backfill = Reader::new(&started).unwrap().str(1).unwrap().to_owned();
    let late = world.solo("s", "fives", "late", 0.0);
    world.take_heard();
    world.pass(250);
    assert_eq!(world.get_ticket(&late).room, room);
    let told = world.take_kind(Event::BACKFILL_UPDATE);
    assert_eq!((told[0].server.as_str(), told[0].str(2).as_str()), ("game", "matched"));
    world.ok("s", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, "late"));
    assert_eq!(roles_in(&world.room(&room).1, 4).len(), 4);
    world.ok("game", Method::ACK_BACKFILL, Writer::new().str(1, &backfill));
    world.pass(10_000);
    assert_eq!(world.take_kind(Event::BACKFILL_UPDATE)[0].str(2), "no_ack");
    let gone = world.ask("game", Method::ACK_BACKFILL, Writer::new().str(1, &backfill));
    assert_eq!(gone.0, Status::NotFound);
}

#[test]
fn a_player_who_queues_its_team_leads_it() {
    let mut world = with(FIVES);
    let team = world.create_team("s", "a", 3, "");
    world.join_team("s", "b", &team, "");
    let mut ask = |who| {
        let asked = Writer::new().str(1, "fives").str(3, &team).nested(2, Writer::new().str(1, who));
        world.ask("s", Method::CREATE_TICKET, asked)
    };
    assert_eq!(ask("b").0, Status::Forbidden);
    let (status, ticket) = ask("a");
    assert_eq!(status, Status::Ok);
    let ticket = Reader::new(&ticket).unwrap().nested(1).unwrap();
    assert_eq!((ticket.all(3).count(), ticket.str(4).unwrap()), (2, &*team));
}

#[test]
fn a_team_waits_together_and_is_never_split() {
    let mut world = with(FIVES);
    let team = world.create_team("s", "a", 3, "");
    world.join_team("s", "b", &team, "");
    let (status, ticket) = world.ask("s", Method::CREATE_TICKET, Writer::new().str(1, "fives").str(3, &team));
    assert_eq!(status, Status::Ok);
    let ticket = world::shown(&ticket).id;
    world.solo("s", "fives", "c", 0.0);
    world.solo("s", "fives", "d", 0.0);
    world.pass(250);
    let room = world.get_ticket(&ticket).room;
    let info = world.room(&room).1;
    let info = Reader::new(&info).unwrap().nested(1).unwrap();
    let sides: Vec<Vec<String>> = info
        .all(10)
        .map(|side| {
            Reader::new(side).unwrap().all(2).map(|id| String::from_utf8(id.to_vec()).unwrap()).collect()
        })
        .collect();
    assert!(sides.contains(&vec!["a".to_owned(), "b".to_owned()]), "{sides:?}");
}

#[test]
fn an_explanation_names_the_rule_in_the_way() {
    let mut world = duel();
    let a = world.solo("s", "duel", "a", 0.0);
    let alone = world.ok("s", Method::EXPLAIN_TICKET, Writer::new().str(1, &a));
    assert!(Reader::new(&alone).unwrap().str(2).unwrap().contains("no other player"));
    world.solo("s", "duel", "b", 30.0);
    world.pass(250);
    let why = world.ok("s", Method::EXPLAIN_TICKET, Writer::new().str(1, &a));
    let why = Reader::new(&why).unwrap();
    assert!(why.str(2).unwrap().contains("`near`"), "{}", why.str(2).unwrap());
    let candidate = why.nested(4).unwrap();
    let fail = candidate.nested(4).unwrap();
    assert_eq!((fail.str(1), fail.str(2)), (Ok("near"), Ok("they differ by 30.00, over 5.00")));
}

#[test]
fn players_in_a_room_do_not_queue_and_rooms_of_matches_are_ordinary() {
    let mut world = duel();
    let room = world.create_room("s", "a", "2v2");
    assert_eq!(world.try_ticket("s", "duel", vec![player("a", &[])]).0, Status::AlreadyInRoom);
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &room));
    let a = world.solo("s", "duel", "a", 0.0);
    world.solo("s", "duel", "b", 0.0);
    world.pass(250);
    let room = world.get_ticket(&a).room;
    let info = world.room(&room).1;
    assert_eq!(id_in(&info), room);
    let stats = world.ok("s", Method::GET_QUEUE_STATS, Writer::new().str(1, "duel"));
    let stats = Reader::new(&stats).unwrap();
    assert_eq!((stats.u64(2), stats.u64(4)), (0, 1));
}

#[test]
fn a_replaced_rule_set_ends_open_proposals_and_rechecks_their_tickets() {
    let mut world = duel_with(ACCEPT);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 0.0));
    world.pass(250);
    assert_eq!(world.get_ticket(&a).status, "proposed");
    let declared = r#""attributes": {"a_map": {"type": "string", "default": "x"}, "#;
    let more = DUEL
        .replace(r#""attributes": {"#, declared)
        .replace("\"rules\"", r#""partition": ["a_map"], "rules""#);
    assert_eq!(world.put_queue(&more).0, Status::Ok);
    assert_eq!(world.get_ticket(&a).status, "searching");
    world.pass(250);
    assert_eq!(world.get_ticket(&a).status, "matched", "the new rules ask nobody");
    assert_eq!(world.get_ticket(&b).status, "matched");
}

/// A queue's rooms have room for its players, after a restart too.
#[test]
fn a_mode_of_a_queue_has_room_for_its_players_after_a_restart() {
    let rules = throng_matcher::ModeRules { hidden: true, ..throng_matcher::ModeRules::default() };
    let config = Config { modes: [("duel".to_owned(), rules)].into(), ..Config::default() };
    let mut world = World::new(config.clone());
    let sides = r#"[{"name": "side", "count": 2, "min": 1, "max": 1}]"#;
    assert_eq!(world.put_queue(&format!(r#"{{"name": "duel", "sides": {sides}}}"#)).0, Status::Ok);
    let bytes = world.matcher.snapshot();
    let mut again = throng_matcher::Matcher::restore(&bytes).unwrap();
    assert_eq!(again.digest(), world.matcher.digest());
    again.reconfigure(config);
    assert_eq!(again.digest(), world.matcher.digest());
}

/// Spec: D.2 rule 3.
#[test]
fn a_ticket_that_shrinks_outlives_its_proposal() {
    let accept = r#""backfill": {"ack_s": 10}, "on_member_lost": "shrink", "accept": {"required": true}"#;
    let mut world = with(&FIVES.replace(r#""backfill": {"ack_s": 10}"#, accept));
    world.session("gone", true);
    let team = world.create_team("s", "a", 2, "");
    world.join_team("gone", "b", &team, "");
    let asked = Writer::new().str(1, "fives").str(3, &team);
    let (status, ticket) = world.ask("s", Method::CREATE_TICKET, asked);
    assert_eq!(status, Status::Ok);
    let ticket = world::shown(&ticket).id;
    for id in ["c", "d"] {
        world.solo("s", "fives", id, 0.0);
    }
    world.pass(250);
    assert_eq!(world.get_ticket(&ticket).status, "proposed");
    world.session("gone", false);
    world.pass(10_000);
    assert_eq!(world.get_ticket(&ticket).status, "searching", "the rest go on");
    world.solo("s", "fives", "e", 0.0);
    world.pass(250);
    assert_eq!(world.get_ticket(&ticket).status, "proposed");
    let proposed = world.take_kind(Event::MATCH_PROPOSED);
    assert_eq!(proposed.last().map(|heard| heard.u64(3)), Some(4), "each player once, none who is gone");
    let stats = world.ok("s", Method::GET_QUEUE_STATS, Writer::new().str(1, "fives"));
    let declined = Reader::new(&stats).unwrap().last(7).map_or(0, |field| field.scalar);
    assert_eq!(declined, 0, "who is lost has declined nothing");
}

/// Spec: D.2 rule 3 and D.6 step 1. Servers report players who are gone one by one.
#[test]
fn a_player_reported_as_lost_has_declined_nothing() {
    for shrinks in [true, false] {
        let rule = if shrinks { r#""on_member_lost": "shrink", "# } else { "" };
        let accept =
            format!(r#"{rule}"backfill": {{"ack_s": 10}}, "accept": {{"required": true, "cooldown_s": 60}}"#);
        let mut world = with(&FIVES.replace(r#""backfill": {"ack_s": 10}"#, &accept));
        let team = world.create_team("s", "a", 2, "");
        world.join_team("t", "b", &team, "");
        let queued = Writer::new().str(1, "fives").str(3, &team);
        let party = world::shown(&world.ok("s", Method::CREATE_TICKET, queued)).id;
        let others = ["c", "d"].map(|id| world.solo("s", "fives", id, 0.0));
        world.pass(250);
        assert_eq!(world.get_ticket(&party).status, "proposed");

        let lost = |player: &str| Writer::new().str(1, &party).str(2, player);
        assert_eq!(world.ask("s", Method::CANCEL_TICKET, lost("b")).0, Status::Forbidden, "not its server");
        assert_eq!(world.ask("t", Method::CANCEL_TICKET, lost("c")).0, Status::NotAMember);
        let asked_by_another = Writer::new().str(1, &party).str(3, "c");
        assert_eq!(world.ask("s", Method::CANCEL_TICKET, asked_by_another).0, Status::NotAMember);
        world.take_heard();
        world.ok("t", Method::CANCEL_TICKET, lost("b"));
        let all = world.take_heard();
        let heard: Vec<&Heard> = all.iter().filter(|heard| heard.kind == Event::MATCH_CANCELLED).collect();
        assert!(!heard.is_empty() && heard.iter().all(|heard| heard.str(2) == "disconnected"), "{shrinks}");
        let told = tickets_told(&mut world, &all, &party);
        let all_of_it = ["a", "b"].map(String::from).to_vec();
        let expected = if shrinks {
            vec![("s", "searching", vec!["a".to_owned()])]
        } else {
            vec![("s", "cancelled", all_of_it.clone()), ("t", "cancelled", all_of_it)]
        };
        assert_eq!(told, expected);
        let shown = world.get_ticket(&party);
        let expected = if shrinks { ("searching", "") } else { ("cancelled", "disconnected") };
        assert_eq!((&*shown.status, &*shown.reason), expected);
        for other in &others {
            assert_eq!(world.get_ticket(other).status, "searching");
        }

        world.ask("s", Method::CANCEL_TICKET, lost("a"));
        assert_eq!(world.get_ticket(&party).status, "cancelled", "no player is left");
        for (srv, id) in [("s", "a"), ("t", "b")] {
            assert_eq!(world.try_ticket(srv, "fives", vec![player(id, &[])]).0, Status::Ok, "no cooldown");
        }
        let stats = world.ok("s", Method::GET_QUEUE_STATS, Writer::new().str(1, "fives"));
        assert_eq!(Reader::new(&stats).unwrap().last(7).map_or(0, |field| field.scalar), 0);
    }
}

/// The notices about a ticket: server, state and players. The last one is of its present revision.
fn tickets_told<'a>(world: &mut World, heard: &'a [Heard], id: &str) -> Vec<(&'a str, &'a str, Vec<String>)> {
    let shown = world.ok("s", Method::GET_TICKET, Writer::new().str(1, id));
    let now = Reader::new(&shown).unwrap().nested(1).unwrap().u64(9);
    let mut rev = 0;
    let mut told = Vec::new();
    for heard in heard.iter().filter(|heard| heard.kind == Event::TICKET_UPDATE) {
        let ticket = Reader::new(&heard.body).unwrap().nested(1).unwrap();
        if ticket.str(1).unwrap() == id {
            told.push((heard.server.as_str(), ticket.str(8).unwrap(), roles_in(&heard.body, 3)));
            rev = ticket.u64(9);
        }
    }
    assert_eq!(rev, now, "a notice that is outdated already");
    told
}

/// Spec: D.2 rule 3.
#[test]
fn the_rest_of_a_ticket_is_told_that_it_searches_on_without_the_player_who_is_gone() {
    let shrinks = r#""backfill": {"ack_s": 10}, "updates_s": 0, "on_member_lost": "shrink""#;
    let threes = FIVES.replace(r#""min": 2, "max": 2"#, r#""min": 3, "max": 3"#);
    let mut world = with(&threes.replace(r#""backfill": {"ack_s": 10}"#, shrinks));
    let team = world.create_team("s", "a", 3, "");
    world.join_team("t", "b", &team, "");
    world.join_team("u", "c", &team, "");
    for srv in ["s", "t", "u"] {
        world.session(srv, true);
    }
    let queued = Writer::new().str(1, "fives").str(3, &team);
    let party = world::shown(&world.ok("s", Method::CREATE_TICKET, queued)).id;
    world.take_heard();
    world.ok("t", Method::CANCEL_TICKET, Writer::new().str(1, &party).str(2, "b"));
    let rest = ["a", "c"].map(String::from).to_vec();
    let all = world.take_heard();
    let expected = [("s", "searching", rest.clone()), ("u", "searching", rest)];
    assert_eq!(tickets_told(&mut world, &all, &party), expected);
    // The same of a server that is given up.
    world.session("u", false);
    world.pass(10_000);
    let all = world.take_heard();
    assert_eq!(tickets_told(&mut world, &all, &party), [("s", "searching", vec!["a".to_owned()])]);
}

/// Spec: A.3 and A.4, [T] `Reason`, and D.2 rule 4.
#[test]
fn the_others_are_told_that_a_player_is_gone_and_an_ended_ticket_says_how_to_give_up_a_seat() {
    let mut world = duel();
    let team = world.create_team("s", "a", 2, "");
    world.join_team("s", "b", &team, "");
    let ticket = world.solo("s", "duel", "a", 0.0);
    world.solo("s", "duel", "c", 0.0);
    world.pass(250);
    let shown = world.get_ticket(&ticket);
    assert_eq!(shown.status, "matched");
    let lost = Writer::new().str(1, &ticket).str(2, "a");
    let (status, why) = world.ask("s", Method::CANCEL_TICKET, lost);
    assert_eq!(status, Status::TicketClosed);
    assert!(String::from_utf8_lossy(&why).contains("`RoleLeaveRoom` gives up a seat"), "{why:?}");
    let own = Writer::new().str(1, &ticket).str(3, "a");
    assert_eq!(world.ask("s", Method::CANCEL_TICKET, own).0, Status::TicketClosed);

    world.ok("s", Method::CLAIM_SEAT, Writer::new().str(1, &shown.room).str(2, "a"));
    world.take_heard();
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &shown.room).u64(4, 1));
    world.ok("s", Method::LEAVE_TEAM, Writer::new().str(1, "a").str(2, &team).u64(4, 1));
    let heard = world.take_heard();
    let why = |kind| heard.iter().find(|heard| heard.kind == kind).map(|heard| heard.str(22));
    for kind in [Event::ROLE_LEAVE_ROOM, Event::LEAVE_TEAM] {
        assert_eq!(why(kind).as_deref(), Some("disconnected"), "{kind}");
    }

    // A ticket that is cancelled already: again, by the player and as lost.
    let ticket = world.solo("s", "duel", "b", 0.0);
    for field in [3, 3, 2] {
        let (status, answer) =
            world.ask("s", Method::CANCEL_TICKET, Writer::new().str(1, &ticket).str(field, "b"));
        assert_eq!((status, &*world::shown(&answer).reason), (Status::Ok, "cancelled"));
    }
}

/// Spec: D.6 step 1. The queue of the declined match says how long, not that of another that is
/// open too.
#[test]
fn who_declines_one_of_two_matches_waits_as_its_queue_says() {
    let mut world = duel_with(r#""accept": {"required": true, "timeout_s": 60, "cooldown_s": 1}"#);
    let strict = DUEL.replace("\"duel\"", "\"strict\"").replace(r#""timeout_s": 60"#, ACCEPT);
    assert_eq!(world.put_queue(&strict).0, Status::Ok);
    let mild = world.solo("s1", "duel", "a", 0.0);
    let declined = world.solo("s1", "strict", "a", 0.0);
    for (queue, id) in [("duel", "b"), ("strict", "c")] {
        world.solo("s2", queue, id, 0.0);
    }
    world.pass(250);
    assert_eq!(world.get_ticket(&mild).status, "proposed");
    let declined = world.get_ticket(&declined);
    assert_eq!(answer(&mut world, "s1", &declined, "a", false), Status::Ok);
    assert_eq!(world.try_ticket("s1", "strict", vec![player("a", &[])]).0, Status::Cooldown);
    // Declining the milder one, too, does not shorten it.
    let mild = world.get_ticket(&mild);
    assert_eq!(answer(&mut world, "s1", &mild, "a", false), Status::Ok);
    world.pass(1_000);
    assert_eq!(world.try_ticket("s1", "strict", vec![player("a", &[])]).0, Status::Cooldown);
}

/// Spec: D.7, a match against slots that were lost meanwhile.
#[test]
fn a_backfill_with_fewer_places_calls_off_a_match_that_needs_more() {
    let mut world = with(
        r#"{
            "name": "late", "sides": [{"name": "side", "min": 1, "max": 2}],
            "accept": {"required": true, "timeout_s": 15}, "backfill": {"priority": "high"}
        }"#,
    );
    let room = world.create_room("game", "host", "2v2");
    let side = Writer::new().str(1, "side").u64(2, 1);
    let start = Writer::new().str(1, &room).str(2, "late").nested(3, side);
    let started = world.ok("game", Method::START_BACKFILL, start);
    let started = Reader::new(&started).unwrap();
    let (backfill, rev) = (started.str(1).unwrap().to_owned(), started.u64(2));
    let late = world.ticket("s", "late", vec![player("late", &[])]);
    world.pass(250);
    assert_eq!(world.get_ticket(&late).status, "proposed");
    let none = Writer::new().str(1, &backfill).u64(2, rev);
    let updated = world.ok("game", Method::UPDATE_BACKFILL, none);
    assert_eq!(Reader::new(&updated).unwrap().u64(1), rev + 1);
    assert_eq!(world.get_ticket(&late).status, "searching");
    let off = world.take_kind(Event::MATCH_CANCELLED);
    assert_eq!((off.len(), off[0].str(2).as_str()), (1, "no_places"));
}

/// Spec: D.2, `Players` and rule 7.
#[test]
fn a_team_over_the_limits_of_a_ticket_is_refused() {
    let rules = r#"{
        "name": "war", "sides": [{"name": "side", "count": 2, "min": 1, "max": 100}],
        "attributes": {"note": {"type": "string", "default": ""}}
    }"#;
    let mut world = with(rules);
    let team = world.create_team("s", "r0", 100, "");
    for number in 1..64 {
        world.join_team("s", &format!("r{number}"), &team, "");
    }
    let asked = || Writer::new().str(1, "war").str(3, &team);
    let (status, ticket) = world.ask("s", Method::CREATE_TICKET, asked());
    assert_eq!(status, Status::Ok);
    let ticket = world::shown(&ticket).id;
    assert_eq!(world.cancel("s", &ticket), Status::Ok);
    world.join_team("s", "r64", &team, "");
    assert_eq!(world.ask("s", Method::CREATE_TICKET, asked()).0, Status::TooLarge);
}

#[test]
fn positions_for_more_players_than_there_are_numbers_are_taken() {
    let huge = r#""positions": [{"name": "a", "per_side_max": 4294967295}, {"name": "b", "per_side_max": 4294967295}]"#;
    duel_with(huge);
    let many = huge.replace("per_side_max", "per_side_min\": 4294967295, \"per_side_max");
    let mut world = duel();
    let (status, _) = world.put_queue(&DUEL.replace(r#""timeout_s": 60"#, &many));
    assert_eq!(status, Status::RuleInvalid);
}

/// A queue of pairs that plays with backfills whose servers are seldom heard.
fn pairs_late(more: &str) -> World {
    with(&format!(
        r#"{{"name": "late", "sides": [{{"name": "side", "min": 2, "max": 2}}], "backfill": {{"ack_s": 600}},
        "attributes": {{"skill": {{"type": "number", "default": 0}}}}, {more}}}"#
    ))
}

/// A room's backfill of two places.
fn start_late(world: &mut World) -> String {
    let room = world.create_room("game", "host", "2v2");
    let start = Writer::new().str(1, &room).str(2, "late").nested(3, Writer::new().str(1, "side").u64(2, 2));
    let start = start.nested(4, Writer::new().str(1, "skill").bytes(2, b"0"));
    world.ok("game", Method::START_BACKFILL, start);
    room
}

/// Spec: D.5 and D.7, a backfill looks again when a limit of its own or of a ticket grows, whatever
/// its server does.
#[test]
fn a_backfill_relaxes_while_it_waits() {
    let rules = r#""rules": [{"name": "near", "type": "near", "key": "skill", "max": 4}],
        "expand": [{"target": "rules.near.max", "steps": [{"after_s": 10, "value": 50}]}]"#;
    for backfill_first in [true, false] {
        let mut world = pairs_late(rules);
        let mut room = String::new();
        if backfill_first {
            room = start_late(&mut world);
            world.pass(2_000);
        }
        let far = world.solo("s", "late", "far", 20.0);
        world.pass(2_000);
        if !backfill_first {
            room = start_late(&mut world);
        }
        world.pass(7_000);
        assert_eq!(world.get_ticket(&far).status, "searching");
        world.pass(4_000);
        assert_eq!(world.get_ticket(&far).room, room, "backfill first: {backfill_first}");
    }
}

/// Spec: D.4.1 `latency`, where a backfill's room is in no region.
#[test]
fn a_backfill_of_no_region_takes_players_of_regions_that_come_later() {
    let mut world = pairs_late(r#""rules": [{"type": "latency", "max_ms": 60}]"#);
    let room = start_late(&mut world);
    for region in ["eu", "us"] {
        let one = player(region, &[]).nested(4, Writer::new().str(1, region).f64(2, 20.0));
        let one = world.ticket("s", "late", vec![one]);
        world.pass(250);
        assert_eq!(world.get_ticket(&one).room, room, "{region}");
    }
}

/// Spec: D.8 `Position`, of a ticket that comes back from a proposal.
#[test]
fn a_ticket_that_comes_back_is_ahead_of_those_that_came_later() {
    let mut world = duel_with(r#""accept": {"required": true}"#);
    let (a, b) = (world.solo("s1", "duel", "a", 0.0), world.solo("s2", "duel", "b", 1.0));
    world.pass(250);
    world.solo("s3", "duel", "c", 1_000.0);
    assert_eq!(world.cancel("s1", &a), Status::Ok);
    let answer = world.ok("s2", Method::GET_TICKET, Writer::new().str(1, &b));
    let ticket = Reader::new(&answer).unwrap().nested(1).unwrap();
    assert_eq!((ticket.str(8).unwrap(), ticket.u64(17)), ("searching", 0));
}

#[test]
fn what_lists_have_in_common_is_told() {
    let mut world = with(
        r#"{"name": "maps", "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
            "attributes": {"maps": {"type": "string_list"}, "langs": {"type": "string_list"}}, "missing": "any",
            "rules": [{"name": "map", "type": "overlap", "key": "maps", "min": 2},
                      {"type": "overlap", "key": "langs", "weight": 0.5}]}"#,
    );
    world.ticket("s", "maps", vec![player("a", &[("maps", r#"["x","z","y"]"#), ("langs", r#"["en"]"#)])]);
    world.ticket("s", "maps", vec![player("b", &[("maps", r#"["y","q","x"]"#), ("langs", r#"["de"]"#)])]);
    world.pass(250);
    let ready = world.take_kind(Event::MATCH_READY);
    assert_eq!(ready.len(), 2);
    for heard in ready {
        let body = Reader::new(&heard.body).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let shared: Vec<(String, Vec<String>)> = body
            .all(8)
            .map(|shared| Reader::new(shared).unwrap())
            .map(|shared| (shared.str(1).unwrap().to_owned(), shared.all(2).map(text).collect()))
            .collect();
        assert_eq!(
            shared,
            [("map".to_owned(), vec!["x".to_owned(), "y".to_owned()]), ("langs".to_owned(), vec![])]
        );
    }
}

/// As many ended tickets are readable as fit the limit, whatever happens at once.
#[test]
fn a_burst_of_cancellations_leaves_a_bounded_number_of_tickets() {
    let mut world = duel();
    let id = |answer: &[u8]| Reader::new(answer).unwrap().nested(1).unwrap().str(1).unwrap().to_owned();
    let mut ended: Vec<String> = Vec::new();
    for _ in 0..100_050 {
        let (status, answer) = world.try_ticket("s", "duel", vec![player("a", &[])]);
        assert_eq!(status, Status::Ok);
        ended.push(id(&answer));
        world.ok("s", Method::CANCEL_TICKET, Writer::new().str(1, ended.last().unwrap()));
        world.take_heard();
    }
    let mut is_known = |ticket: &str| {
        let (status, _) = world.ask("s", Method::GET_TICKET, Writer::new().str(1, ticket));
        status == Status::Ok
    };
    assert!(!is_known(&ended[0]) && !is_known(&ended[48]), "the oldest are forgotten");
    assert!(is_known(&ended[50]) && is_known(&ended[100_049]));
}
