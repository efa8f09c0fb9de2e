//! What a restart changes, and what it does not.

use crate::world;

use throng_matcher::{Config, Matcher, Scope};
use throng_wire::matcher::{Method, Status, Writer};
use world::{World, player, roles_in, to_mode};

/// A server that was already gone when the matcher ended has as long to come back as any other: it
/// may have found nobody to come back to.
#[test]
fn every_server_has_its_whole_grace_from_the_start() {
    for (what, downtime) in [("in its grace", 3_000), ("past its grace", 60_000)] {
        let mut world = World::new(Config::default());
        world.session("s", true);
        let room = world.create_room("s", "a", "2v2");
        world.session("s", false);
        world.now += downtime;
        world.recover();
        world.pass(9_999);
        assert_eq!(roles_in(&world.room(&room).1, 4), ["a"], "{what}: it may still come back");
        world.session("s", true);
        world.pass(60_000);
        assert_eq!(roles_in(&world.room(&room).1, 4), ["a"], "{what}: it came back");
        world.session("s", false);
        world.pass(60_000);
        assert_ne!(world.room(&room).0, Status::Ok, "{what}: it went for good");
    }
}

#[test]
fn a_server_that_does_not_come_back_after_a_restart_is_given_up() {
    let mut world = World::new(Config::default());
    world.session("s", true);
    world.create_room("s", "a", "2v2");
    world.session("s", false);
    world.now += 5_000;
    world.recover();
    world.pass(60_000);
    assert_eq!(
        (world.matcher.counts().rooms, world.matcher.counts().players, world.matcher.counts().servers),
        (0, 0, 0)
    );
}

/// Draining is for the process that stops; the one that starts from its journal serves again.
#[test]
fn a_matcher_that_was_drained_serves_again_after_its_restart() {
    let mut world = World::new(Config::default());
    assert_eq!(world.ask_as("", Scope::Admin, Method::DRAIN, Writer::new()).0, Status::Ok);
    assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, to_mode("a", "2v2")).0, Status::Draining);
    world.recover();
    assert_eq!(world.ask("s", Method::ROLE_CREATE_ROOM, to_mode("a", "2v2")).0, Status::Ok);
}

#[test]
fn snapshots_of_other_formats_are_refused_by_name() {
    for (snapshot, named) in [
        (&b"throng-matcher-13\nrest"[..], "format 13"),
        (b"throng-matcher-snapshot 2 1 0.2.0\nrest", "format 2 of release 0.2.0"),
        (b"throng-matcher-snapshot 1 1 0.1.0\nrest", "another hash"),
        (b"something else", "does not begin"),
    ] {
        let why = throng_matcher::Matcher::restore(snapshot).unwrap_err().to_string();
        assert!(why.contains(named), "{why}");
    }
}

#[test]
fn a_queue_whose_rule_set_is_not_taken_any_more_is_paused_and_goes_on_with_another() {
    const DUEL: &str = r#"{"name": "duel", "tick_ms": 100, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
        "attributes": {"skill": {"type": "number", "default": 0}},
        "rules": [{"type": "near", "key": "skill", "max": 5}]}"#;
    let mut world = world::World::new(Config::default());
    world.put_queue(DUEL);
    let ann = world.solo("s", "duel", "ann", 1.0);
    // As if a later release knew no rule of this kind.
    let mut snapshot = world.matcher.snapshot();
    let at = snapshot.windows(6).position(|part| part == b"\"near\"").unwrap();
    snapshot[at + 1..at + 5].copy_from_slice(b"nxxr");
    let snapshot = world::rehashed(&snapshot);
    world.matcher = throng_matcher::Matcher::restore(&snapshot).unwrap();
    let refused = world.try_ticket("s", "duel", vec![world::player("ben", &[("skill", "1")])]);
    assert_eq!(refused.0, Status::RuleInvalid);
    assert!(String::from_utf8_lossy(&refused.1).contains("paused"));
    world.pass(1_000);
    assert_eq!(world.get_ticket(&ann).status, "searching");
    assert_eq!(world.put_queue(DUEL).0, Status::Ok);
    world.solo("s", "duel", "ben", 1.0);
    world.pass(1_000);
    assert_eq!(world.get_ticket(&ann).status, "matched");
}

#[test]
fn a_stored_queue_is_paused_while_the_rules_file_has_a_mode_of_its_name() {
    const DUEL: &str = r#"{"name": "duel", "tick_ms": 100, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
        "attributes": {"skill": {"type": "number", "default": 0}}}"#;
    let mut world = world::World::new(Config::default());
    world.put_queue(DUEL);
    let ann = world.solo("s", "duel", "ann", 1.0);
    let mode = throng_matcher::ModeRules { capacity: 5, ..throng_matcher::ModeRules::default() };
    let with_mode = Config { modes: [("duel".to_owned(), mode)].into(), ..Config::default() };
    world.matcher.reconfigure(with_mode);
    let refused = world.try_ticket("s", "duel", vec![world::player("ben", &[])]);
    assert_eq!(refused.0, Status::RuleInvalid);
    let why = String::from_utf8_lossy(&refused.1).into_owned();
    assert!(why.contains("the queue is paused: `duel` is a match mode"), "{why}");
    assert_eq!(world.put_queue(DUEL).0, Status::RuleInvalid);
    let explained = world.ok("s", Method::EXPLAIN_TICKET, Writer::new().str(1, &ann));
    assert!(String::from_utf8_lossy(&explained).contains("the queue is paused: `duel` is a match mode"));
    world.matcher.reconfigure(Config::default());
    let ben = world.solo("s", "duel", "ben", 1.0);
    world.pass(1_000);
    assert_eq!([ann, ben].map(|ticket| world.get_ticket(&ticket).status), ["matched", "matched"]);
}

#[test]
fn a_match_that_is_being_placed_does_not_keep_a_restart_from_other_rules() {
    let rules = |positions: &str| {
        format!(
            r#"{{"name": "q", "tick_ms": 100, "assign": "external", "positions": [{positions}],
                "sides": [{{"name": "side", "min": 2, "max": 2}}]}}"#
        )
    };
    let position = |name: &str| format!(r#"{{"name": "{name}", "per_side_min": 1, "per_side_max": 2}}"#);
    let mut world = World::new(Config::default());
    world.put_queue(&rules(&format!("{}, {}", position("tank"), position("healer"))));
    for (id, wants) in [("ann", "tank"), ("ben", "healer")] {
        let ticket = world.ticket("s", "q", vec![player(id, &[]).str(5, wants)]);
        world.pass(100);
        assert_eq!(world.get_ticket(&ticket).status, if id == "ann" { "searching" } else { "placing" });
    }
    world.put_queue(&rules(&position("tank")));
    let restarted = Matcher::restore(&world.matcher.snapshot()).expect("its own snapshot");
    assert_eq!(restarted.digest(), world.matcher.digest());
}
