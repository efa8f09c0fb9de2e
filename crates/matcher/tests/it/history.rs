//! A room's history against what its members heard, and what one role is in.

use crate::world;

use std::collections::BTreeMap;

use throng_matcher::{Config, Matcher, ModeRules, OnFull, Scope};
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{Heard, World, role, team, to_mode, to_room};

const OPERATIONS: u64 = 60_000;
const ROLES: u64 = 24;

/// Revision, kind, whom it concerns, key, reason.
type Change = (u64, String, Vec<String>, String, String);

fn config() -> Config {
    let rules = ModeRules { capacity: 4, on_full: OnFull::Keep, ..ModeRules::default() };
    Config { modes: [("keep".to_owned(), rules)].into(), ..Config::default() }
}

fn history(world: &mut World, room: &str) -> (Status, Vec<Change>, Vec<u64>) {
    let (status, answer) = world.ask("", Method::GET_ROOM_HISTORY, Writer::new().str(1, room));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (mut changes, mut times) = (Vec::new(), Vec::new());
    for change in Reader::new(&answer).unwrap().all(1).filter(|_| status == Status::Ok) {
        let change = Reader::new(change).unwrap();
        let [kind, key, reason] = [3, 5, 6].map(|number| change.str(number).unwrap().to_owned());
        changes.push((change.u64(2), kind, change.all(4).map(text).collect(), key, reason));
        times.push(change.u64(1));
    }
    (status, changes, times)
}

/// What an event says has changed; nothing for those that are no change, or the room's last.
fn told(heard: &Heard) -> Option<Change> {
    let event = Reader::new(&heard.body).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (one, many) = (|number| vec![heard.str(number)], |number| event.all(number).map(text).collect());
    let flags = || match (event.u64(1), event.u64(2)) {
        (0, 0) => "open",
        (0, _) => "full",
        (_, 0) => "hidden",
        _ => "hidden and full",
    };
    let (kind, roles, key, reason) = match heard.kind {
        Event::ROLES_JOIN_ROOM => ("joined", many(2), String::new(), String::new()),
        Event::ROLE_LEAVE_ROOM if heard.str(22) == "room_deleted" => return None,
        Event::ROLE_LEAVE_ROOM => ("left", one(2), String::new(), heard.str(22)),
        Event::SET_ROOM_DATA => ("data", Vec::new(), heard.str(2), String::new()),
        Event::UPDATE_ROOM_ROLE_DATA => {
            let update = event.nested(1).unwrap();
            ("role_data", vec![update.str(2).unwrap().to_owned()], String::new(), String::new())
        }
        Event::ROOM_FLAGS => ("flags", Vec::new(), String::new(), flags().to_owned()),
        Event::SEAT_EXPIRED => ("seat_expired", one(1), String::new(), heard.str(22)),
        _ => return None,
    };
    Some((heard.u64(21), kind.to_owned(), roles, key, reason))
}

fn server(role: &str) -> String {
    format!("s{}", role[1..].parse::<u64>().unwrap() % 3)
}

/// One operation of some role; any answer will do.
fn operate(world: &mut World, rooms: &[String], rng: &mut Rng) {
    let id = format!("r{}", rng.below(ROLES));
    let srv = server(&id);
    let room = rooms.get(rng.below(rooms.len().max(1) as u64) as usize).cloned().unwrap_or_default();
    let one = || Writer::new().str(1, &room);
    match rng.below(40) {
        0..=9 => drop(world.ask(&srv, Method::ROLE_JOIN_RANDOM_ROOM, to_mode(&id, "keep"))),
        10..=12 => drop(world.ask(&srv, Method::ROLE_JOIN_RANDOM_ROOM, to_mode(&id, "keep").u64(3, 2))),
        13..=15 => drop(world.ask(&srv, Method::ROLE_JOIN_ROOM, to_room(&id, &room))),
        16 | 17 => {
            let body =
                Writer::new().str(1, &id).str(2, &room).str(3, if rng.chance(0.5) { "boss" } else { "" });
            drop(world.ask(&srv, Method::ROLE_LEAVE_ROOM, body));
        }
        18 | 19 => drop(world.ask(&srv, Method::CLAIM_SEAT, one().str(2, &id))),
        20..=27 => {
            let key = format!("k{}", rng.below(5));
            drop(world.ask(&srv, Method::SET_ROOM_DATA, one().str(2, &key).str(3, "7")));
        }
        28..=33 => {
            let update = one().str(2, &id).nested(3, Writer::new().str(1, "level").f64(2, 3.0));
            drop(world.ask(&srv, Method::UPDATE_ROOM_ROLE_DATA, Writer::new().nested(1, update)));
        }
        34 | 35 => {
            let body = one().u64(2, rng.below(2)).u64(3, rng.below(2));
            drop(world.ask_as("", Scope::Trusted, Method::SET_ROOM_FLAGS, body));
        }
        36 if rng.chance(0.1) => drop(world.ask_as("", Scope::Trusted, Method::DELETE_ROOM, one())),
        _ => world.pass(rng.below(300)),
    }
}

#[test]
fn every_event_is_a_change_in_order() {
    let mut world = World::new(config());
    (0..3).for_each(|server| world.session(&format!("s{server}"), true));
    let (mut rng, mut expected) = (Rng::new(5), BTreeMap::<String, Vec<Change>>::new());
    let (mut compared, mut kinds) = (0, BTreeMap::<String, u64>::new());
    for step in 0..OPERATIONS {
        let rooms: Vec<String> = expected.keys().cloned().collect();
        operate(&mut world, &rooms, &mut rng);
        for heard in world.take_heard() {
            let Some(change) = told(&heard) else { continue };
            let own = expected.entry(heard.str(20)).or_default();
            // Each server hears of it.
            if own.last() != Some(&change) {
                own.push(change);
            }
        }
        if step % 10 != 0 {
            continue;
        }
        for room in rooms {
            let (status, changes, times) = history(&mut world, &room);
            if status == Status::NotFound {
                expected.remove(&room);
                continue;
            }
            assert!(changes.len() <= 100 && times.is_sorted() && times.iter().all(|at| *at <= world.now));
            assert!(changes.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{changes:?}");
            changes.iter().for_each(|change| *kinds.entry(change.1.clone()).or_default() += 1);
            // Nobody hears of seats, of the end before it comes, or of a room without members.
            let silent = |kind: &str| matches!(kind, "seats_made" | "seat_claimed" | "deleting");
            let heard = &expected[&room];
            let seen = |change: &&Change| {
                !silent(&change.1) && (heard.contains(change) || change.1 != "data" && change.1 != "flags")
            };
            let shown: Vec<&Change> = changes.iter().filter(seen).collect();
            let wanted = &heard[heard.len().saturating_sub(shown.len())..];
            assert!(shown.iter().copied().eq(wanted), "{room}: {shown:#?} of {wanted:#?}");
            compared += 1;
        }
        if step % 5_000 == 0 {
            let again = Matcher::restore(&world.matcher.snapshot()).unwrap();
            assert_eq!(again.digest(), world.matcher.digest());
            world.matcher = again;
        }
    }
    assert!(compared > 10_000 && kinds.len() == 9, "{compared} {kinds:?}");
}

#[test]
fn a_match_says_whose_seats_it_made_and_that_it_has_a_server() {
    let mut world = World::new(Config::default());
    let rules = r#"{"name": "duel", "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}], "assign": "external"}"#;
    assert_eq!(world.put_queue(rules).0, Status::Ok);
    let [ann, _] = ["ann", "ben"].map(|id| world.ticket("s1", "duel", vec![role(id)]));
    world.pass(500);
    let room = world.get_ticket(&ann).room;
    let body = Writer::new().str(1, &room).str(2, "10.0.0.1:7777");
    assert_eq!(world.ask_as("", Scope::Trusted, Method::ASSIGN_MATCH, body).0, Status::Ok);
    let (_, changes, _) = history(&mut world, &room);
    let kinds: Vec<&str> = changes.iter().map(|change| change.1.as_str()).collect();
    assert_eq!(kinds, ["seats_made", "assigned"]);
    assert_eq!(changes[0].2, ["ann", "ben"]);
}

#[test]
fn a_role_is_found_with_all_that_it_is_in() {
    let mut world = World::new(Config::default());
    let rules = r#"{"name": "duel", "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}], "allow_in_room": true}"#;
    world.put_queue(rules);
    let body = Writer::new().nested(1, role("ann")).nested(2, team(3, ""));
    let team = world::id_in(&world.ok("s1", Method::CREATE_TEAM, body));
    let room = world.join_random("s1", "ann", "2v2");
    let ticket = world.ticket("s1", "duel", vec![role("ann")]);
    let ask = |world: &mut World, srv: &str, scope, id: &str| {
        world.ask_as(srv, scope, Method::GET_ROLE, Writer::new().str(1, id))
    };
    let (status, answer) = ask(&mut world, "s1", Scope::Server, "ann");
    assert_eq!(status, Status::Ok);
    let answer = Reader::new(&answer).unwrap();
    assert_eq!((answer.str(1), answer.str(2)), (Ok("ann"), Ok("s1")));
    for (number, id) in [(3, &room), (4, &team), (5, &ticket)] {
        assert_eq!(answer.all(number).count(), 1);
        assert_eq!(answer.nested(number).unwrap().str(1), Ok(id.as_str()));
    }
    assert_eq!(ask(&mut world, "s2", Scope::Server, "ann").0, Status::Forbidden);
    assert_eq!(ask(&mut world, "s2", Scope::Trusted, "ann").0, Status::Ok);
    assert_eq!(ask(&mut world, "", Scope::Admin, "nobody").0, Status::NotFound);
    assert_eq!(ask(&mut world, "", Scope::Admin, "").0, Status::Invalid);
}
