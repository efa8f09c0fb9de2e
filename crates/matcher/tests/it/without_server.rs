//! Matches that wait for their server and do not get it, and their tickets, which are held back
//! then: players leave, rooms are deleted, rules change, and the matcher restarts meanwhile.

use crate::world;

use throng_matcher::{Config, Matcher, Scope};
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, player};

const RULES: &str = r#"{
    "name": "duel", "tick_ms": 100, "assign": "external", "assign_timeout_s": 20, "allocator": "alloc",
    "sides": [{"name": "red", "min": 1, "max": 2}, {"name": "blue", "min": 1, "max": 2}], "timeout_s": 600
}"#;

/// A match of a player of server `s` and one of `t`, which waits for its server.
fn waiting() -> (World, [String; 2]) {
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(RULES).0, Status::Ok);
    ["alloc", "s", "t"].into_iter().for_each(|srv| world.session(srv, true));
    let tickets = [("s", "a"), ("t", "b")].map(|(srv, id)| world.ticket(srv, "duel", vec![player(id, &[])]));
    world.pass(100);
    assert_eq!(states(&mut world, &tickets), [("placing", ""); 2]);
    (world, tickets)
}

/// The same after its time: both tickets are held back for one second.
fn held() -> (World, [String; 2]) {
    let (mut world, tickets) = waiting();
    world.pass(20_000);
    assert_eq!(states(&mut world, &tickets), [("searching", "no_server"); 2]);
    world.take_heard();
    (world, tickets)
}

/// Status and reason of tickets.
fn states(world: &mut World, tickets: &[String; 2]) -> [(&'static str, &'static str); 2] {
    let known = ["", "searching", "placing", "matched", "cancelled", "timed_out", "failed", "no_server"];
    let known = |text: String| {
        let more = ["disconnected", "matched_elsewhere", "left"];
        known.into_iter().chain(more).find(|known| *known == text).unwrap_or("?")
    };
    tickets.each_ref().map(|id| {
        let shown = world.get_ticket(id);
        (known(shown.status), known(shown.reason))
    })
}

fn restart(world: &mut World) {
    world.matcher = Matcher::restore(&world.matcher.snapshot()).unwrap();
    world.recover();
    ["alloc", "t"].into_iter().for_each(|srv| world.session(srv, true));
}

/// A server is lost, and its grace passes.
fn lose(world: &mut World, srv: &str) {
    world.session(srv, false);
    world.pass(10_000);
}

fn assign(world: &mut World, room: &str) -> Status {
    world.ask("alloc", Method::ASSIGN_MATCH, Writer::new().str(1, room).str(2, "10.0.0.1:7777")).0
}

#[test]
fn a_player_who_is_gone_when_its_match_gets_no_server_does_not_search_again() {
    for is_restarted in [false, true] {
        let (mut world, tickets) = waiting();
        lose(&mut world, "s");
        assert_eq!(states(&mut world, &tickets), [("placing", "disconnected"), ("placing", "")]);
        if is_restarted {
            restart(&mut world);
        }
        world.pass(10_000);
        let after = [("cancelled", "disconnected"), ("searching", "no_server")];
        assert_eq!(states(&mut world, &tickets), after, "{is_restarted}");
        assert_eq!(world.matcher.counts().players, 1);
    }
}

#[test]
fn the_seat_of_a_player_who_is_gone_is_kept_when_its_match_gets_a_server() {
    let (mut world, tickets) = waiting();
    let room = world.get_ticket(&tickets[0]).room;
    lose(&mut world, "s");
    assert_eq!(assign(&mut world, &room), Status::Ok);
    assert_eq!(states(&mut world, &tickets), [("matched", ""); 2]);
    world.session("s", true);
    world.ok("s", Method::CLAIM_SEAT, Writer::new().str(1, &room).str(2, "a"));
}

#[test]
fn the_rest_of_a_party_searches_on_when_its_match_gets_no_server() {
    let mut world = World::new(Config::default());
    let rules = RULES.replace("\"timeout_s\"", "\"on_member_lost\": \"shrink\", \"timeout_s\"");
    assert_eq!(world.put_queue(&rules).0, Status::Ok);
    ["s", "t", "u"].into_iter().for_each(|srv| world.session(srv, true));
    let team = world.create_team("s", "a", 2, "");
    world.join_team("u", "gone", &team, "");
    let asked = Writer::new().str(1, "duel").str(3, &team);
    let ticket = world::shown(&world.ok("s", Method::CREATE_TICKET, asked)).id;
    world.ticket("t", "duel", vec![player("b", &[])]);
    world.pass(100);
    lose(&mut world, "u");
    world.pass(10_000);
    let answer = world.ok("s", Method::GET_TICKET, Writer::new().str(1, &ticket));
    let shown = Reader::new(&answer).unwrap().nested(1).unwrap();
    let players: Vec<_> =
        shown.all(3).map(|player| Reader::new(player).unwrap().str(1).unwrap().to_owned()).collect();
    assert_eq!((shown.str(8).unwrap(), players), ("searching", vec!["a".to_owned()]));
    world.pass(1_100);
    assert_eq!(world.get_ticket(&ticket).status, "placing", "it meets the other one again");
}

/// The player was reported by its server, which is still there: it may be back by then.
#[test]
fn a_player_who_was_lost_while_its_match_was_placed_does_not_search_on_with_its_party() {
    let mut world = World::new(Config::default());
    let rules = RULES.replace("\"timeout_s\"", "\"on_member_lost\": \"shrink\", \"timeout_s\"");
    assert_eq!(world.put_queue(&rules).0, Status::Ok);
    let other = rules.replace("\"duel\"", "\"other\"");
    assert_eq!(world.put_queue(&other).0, Status::Ok);
    ["s", "t", "u"].into_iter().for_each(|srv| world.session(srv, true));
    let team = world.create_team("s", "a", 2, "");
    world.join_team("u", "gone", &team, "");
    let asked = Writer::new().str(1, "duel").str(3, &team);
    let ticket = world::shown(&world.ok("s", Method::CREATE_TICKET, asked)).id;
    world.ticket("t", "duel", vec![player("b", &[]).u64(7, 1)]);
    world.pass(100);
    let lost = Writer::new().str(1, &ticket).str(2, "gone");
    for _ in 0..2 {
        let answer = world.ok("u", Method::CANCEL_TICKET, lost.clone());
        let shown = Reader::new(&answer).unwrap().nested(1).unwrap();
        let marks: Vec<u64> = shown.all(3).map(|player| Reader::new(player).unwrap().u64(7)).collect();
        assert_eq!((shown.str(8).unwrap(), marks, shown.u64(9)), ("placing", vec![0, 1], 3));
    }
    let own = world.ticket("u", "other", vec![player("gone", &[])]);
    world.take_heard();
    world.pass(20_000);
    for heard in world.take_kind(Event::TICKET_UPDATE).iter().filter(|heard| heard.server == "s") {
        assert_eq!(world::roles_in(&heard.body, 3), ["a"]);
    }
    world.pass(1_100);
    let found = world.get_ticket(&ticket);
    assert_eq!(found.status, "placing", "it meets the other one again, who could not mark itself as lost");
    assert_eq!(world.get_ticket(&own).status, "searching");
}

#[test]
fn a_match_whose_room_was_deleted_gets_no_server_and_its_players_search_again() {
    for is_restarted in [false, true] {
        let (mut world, tickets) = waiting();
        let room = world.get_ticket(&tickets[0]).room;
        let delete = Writer::new().str(1, &room);
        assert_eq!(world.ask_as("", Scope::Trusted, Method::DELETE_ROOM, delete).0, Status::Ok);
        if is_restarted {
            restart(&mut world);
            world.session("s", true);
        }
        assert_ne!(assign(&mut world, &room), Status::Ok, "{is_restarted}");
        assert_eq!(
            world.take_kind(Event::MATCH_READY).iter().filter(|heard| heard.server != "alloc").count(),
            0
        );
        world.pass(30_000);
        let next = world.get_ticket(&tickets[0]);
        assert!(next.status == "placing" && next.room != room, "{next:?}");
        assert_eq!(assign(&mut world, &next.room), Status::Ok);
        assert_eq!(states(&mut world, &tickets), [("matched", ""); 2]);
    }
}

#[test]
fn who_gives_the_seat_of_a_match_up_that_waits_for_its_server_does_not_search_again() {
    let (mut world, tickets) = waiting();
    let room = world.get_ticket(&tickets[0]).room;
    world.ok("s", Method::ROLE_LEAVE_ROOM, Writer::new().str(1, "a").str(2, &room));
    world.pass(20_000);
    assert_eq!(states(&mut world, &tickets), [("cancelled", "left"), ("searching", "no_server")]);
}

#[test]
fn a_ticket_that_is_held_back_ends_like_any_other() {
    let (mut world, tickets) = held();
    assert_eq!(world.cancel("s", &tickets[0]), Status::Ok);
    assert_eq!(world.cancel("s", &tickets[0]), Status::Ok, "again");
    world.ticket("s", "duel", vec![player("a", &[])]);
    world.pass(1_000);
    assert_eq!(states(&mut world, &tickets), [("cancelled", "cancelled"), ("placing", "")]);

    let (mut world, tickets) = held();
    let never = RULES.replace("\"timeout_s\"", "\"attributes\": {\"x\": {\"type\": \"number\"}}, \"rules\": [{\"name\": \"x\", \"type\": \"near\", \"key\": \"x\", \"max\": 1}], \"timeout_s\"");
    assert_eq!(world.put_queue(&never).0, Status::Ok);
    world.pass(1_000);
    for (status, _) in states(&mut world, &tickets) {
        assert!(["searching", "placing", "failed"].contains(&status), "{status}");
    }

    // Its player is matched elsewhere meanwhile.
    let (mut world, tickets) = held();
    let other = RULES
        .replace("\"duel\"", "\"other\"")
        .replace("external", "none")
        .replace(", \"allocator\": \"alloc\"", "");
    assert_eq!(world.put_queue(&other).0, Status::Ok);
    for (srv, id) in [("s", "a"), ("s", "c")] {
        world.ticket(srv, "other", vec![player(id, &[])]);
    }
    world.pass(100);
    assert_eq!(
        states(&mut world, &tickets),
        [("cancelled", "matched_elsewhere"), ("searching", "no_server")]
    );
}

#[test]
fn a_ticket_that_is_held_back_is_cancelled_with_its_lost_server() {
    let mut world = World::new(Config { presence_grace_ms: 500, ..Config::default() });
    assert_eq!(world.put_queue(RULES).0, Status::Ok);
    world.session("s", true);
    let ticket = world.ticket("s", "duel", vec![player("a", &[])]);
    world.ticket("t", "duel", vec![player("b", &[])]);
    world.pass(20_100);
    assert_eq!(world.get_ticket(&ticket).reason, "no_server");
    world.session("s", false);
    world.pass(500);
    let shown = world.get_ticket(&ticket);
    assert_eq!((&*shown.status, &*shown.reason), ("cancelled", "disconnected"));
}

#[test]
fn a_restart_keeps_how_long_a_ticket_is_held_back() {
    for passed in [1, 500, 999] {
        let (mut world, tickets) = held();
        world.pass(passed);
        restart(&mut world);
        world.session("s", true);
        world.pass(999 - passed);
        assert_eq!(states(&mut world, &tickets), [("searching", "no_server"); 2]);
        world.pass(101);
        assert_eq!(states(&mut world, &tickets)[0].0, "placing", "{passed}");
        // The next pause is twice as long.
        world.pass(20_000);
        restart(&mut world);
        world.session("s", true);
        world.pass(1_800);
        assert_eq!(states(&mut world, &tickets), [("searching", "no_server"); 2], "{passed}");
        world.pass(400);
        assert_eq!(states(&mut world, &tickets)[0].0, "placing", "{passed}");
    }
}

#[test]
fn players_whose_tickets_are_held_back_are_free_after_an_export() {
    let (world, _) = held();
    let mut lines = Vec::new();
    world.matcher.export(&mut lines);
    let mut other = World::new(Config::default());
    other.matcher = Matcher::import(std::str::from_utf8(&lines).unwrap(), [3; 32]).unwrap();
    other.now = world.now;
    other.recover();
    let tickets = [("s", "a"), ("t", "b")].map(|(srv, id)| other.ticket(srv, "duel", vec![player(id, &[])]));
    other.pass(100);
    assert_eq!(states(&mut other, &tickets), [("placing", ""); 2]);
}
