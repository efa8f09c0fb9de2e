//! A search starves nobody: nearer tickets that cannot be met delay a match, and do not prevent it.

use crate::world;

use serde_json::{Value, json};
use throng_matcher::Config;
use throng_wire::matcher::{Method, Reader, Status, Writer};
use world::{World, player};

const TICK_MS: u64 = 250;

fn with(rules: &Value) -> World {
    let mut world = World::new(Config::default());
    let (status, answer) = world.put_queue(&rules.to_string());
    assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&answer));
    world
}

fn matched(world: &mut World, tickets: &[String]) -> usize {
    tickets.iter().filter(|id| world.get_ticket(id).status == "matched").count()
}

fn in_region(id: &str, skill: u32, region: &str) -> Writer {
    let skill = skill.to_string();
    player(id, &[("skill", &skill)]).nested(4, Writer::new().str(1, region).f64(2, 20.0))
}

#[test]
fn parties_of_another_region_do_not_keep_compatible_players_waiting() {
    let mut world = with(&json!({"name": "q", "tick_ms": TICK_MS, "timeout_s": 600,
        "sides": [{"name": "side", "count": 2, "min": 5, "max": 5}],
        "attributes": {"skill": {"type": "number", "default": 0}},
        "rules": [{"type": "near", "key": "skill", "max": 10_000}, {"type": "latency", "max_ms": 80}]}));
    for number in 0..300 {
        let member = |member: u32| in_region(&format!("eu{number}_{member}"), 1_000 + number, "eu");
        world.ticket("s", "q", (0..4).map(member).collect());
    }
    // Around the parties, so that these are nearer to each of them than most of the others are.
    let solos: Vec<String> = (0..10)
        .map(|number| {
            world.ticket("s", "q", vec![in_region(&format!("us{number}"), 900 + number * 55, "us")])
        })
        .collect();
    world.pass(10 * TICK_MS);
    assert_eq!(matched(&mut world, &solos), 10);
}

/// Two that may meet, and 300 nearer to both that may meet nobody by one rule.
fn delayed_by(rule: Value, attrs: impl Fn(u32) -> Vec<(&'static str, String)>) {
    let mut rules = vec![json!({"type": "near", "key": "skill", "max": 10_000})];
    rules.push(rule.clone());
    let mut world = with(&json!({"name": "q", "tick_ms": TICK_MS, "timeout_s": 600,
        "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}], "rules": rules,
        "attributes": {"skill": {"type": "number", "default": 0}, "n": {"type": "number", "default": 0},
                       "t": {"type": "string", "default": ""}, "l": {"type": "string_list", "default": []}}}));
    let mut ticket = |id: String, skill: u32, number: u32| {
        let mut all = attrs(number);
        all.push(("skill", skill.to_string()));
        let all: Vec<(&str, &str)> = all.iter().map(|(key, json)| (*key, json.as_str())).collect();
        world.ticket("s", "q", vec![player(&id, &all)])
    };
    (1..=300).for_each(|number| drop(ticket(format!("r{number}"), 1_000 + number, number)));
    let pair = [ticket("a".to_owned(), 1_000, 0), ticket("b".to_owned(), 1_301, 0)];
    world.pass(10 * TICK_MS);
    assert_eq!(matched(&mut world, &pair), 2, "{rule}");
}

#[test]
fn nearer_tickets_that_a_pair_rule_excludes_delay_a_match_by_ten_ticks_at_most() {
    let number = |number: u32| vec![("n", (number * 100).to_string())];
    delayed_by(json!({"type": "near", "key": "n", "max": 5}), number);
    delayed_by(json!({"type": "spread", "key": "n", "max": 5}), number);
    let text = |number: u32| vec![("t", format!("\"t{number}\""))];
    delayed_by(json!({"type": "equal", "key": "t"}), text);
    let list = |number: u32| vec![("l", format!("[\"l{number}\"]"))];
    delayed_by(json!({"type": "overlap", "key": "l"}), list);
}

/// One group of five: a tank, a healer, three who deal damage.
fn dungeon() -> World {
    with(&json!({"name": "q", "tick_ms": TICK_MS, "timeout_s": 600,
        "sides": [{"name": "group", "min": 5, "max": 5}],
        "attributes": {"skill": {"type": "number", "default": 0}},
        "positions": [{"name": "tank", "per_side_min": 1, "per_side_max": 1},
                      {"name": "healer", "per_side_min": 1, "per_side_max": 1},
                      {"name": "damage", "per_side_min": 3, "per_side_max": 3}],
        "rules": [{"type": "near", "key": "skill", "max": 10_000}]}))
}

fn wants(world: &mut World, id: &str, skill: u64, position: &str) -> String {
    let skill = skill.to_string();
    world.ticket("s", "q", vec![player(id, &[("skill", &skill)]).str(5, position)])
}

fn scans(world: &mut World) -> u64 {
    let stats = world.ok("s", Method::GET_QUEUE_STATS, Writer::new().str(1, "q"));
    Reader::new(&stats).unwrap().u64(14)
}

#[test]
fn as_many_groups_are_made_as_there_are_of_the_scarce_however_many_others_wait() {
    for damage in [100, 500, 2_000, 20_000] {
        let mut world = dungeon();
        for number in 0..damage {
            wants(&mut world, &format!("d{number}"), number * 1_000 / damage, "damage");
        }
        let mut scarce = Vec::new();
        for number in 0..20 {
            scarce.push(wants(&mut world, &format!("t{number}"), number * 50, "tank"));
            scarce.push(wants(&mut world, &format!("h{number}"), number * 50 + 25, "healer"));
        }
        world.pass(TICK_MS);
        assert_eq!(matched(&mut world, &scarce), 40, "with {damage} who deal damage");
    }
}

#[test]
fn a_queue_that_lacks_a_position_is_not_searched() {
    let mut world = dungeon();
    for number in 0..2_000 {
        wants(&mut world, &format!("d{number}"), number, "damage");
    }
    wants(&mut world, "t", 5, "tank");
    world.pass(20 * TICK_MS);
    assert_eq!(scans(&mut world), 0, "a count of wishes refuses before any neighbour is looked at");
    wants(&mut world, "h", 7, "healer");
    world.pass(TICK_MS);
    assert!(scans(&mut world) > 0);
    assert_eq!(world.matcher.counts().matches, 1);
}

/// A pool that a search has seen whole is searched again only after a change.
#[test]
fn a_search_that_saw_everybody_does_not_go_on() {
    // Two sides of one whose means are to be equal, and no two of one skill.
    let rules = r#"{"name": "q", "tick_ms": 100, "updates_s": 0, "timeout_s": 600, "scan_limit": 256,
        "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}], "attributes": {"skill": {"type": "number"}},
        "rules": [{"type": "near", "key": "skill", "max": 100},
                  {"type": "balance", "key": "skill", "agg": "mean", "max": 0}]}"#;
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(rules).0, Status::Ok);
    for number in 0..60 {
        world.solo("s", "q", &format!("r{number}"), f64::from(number));
    }
    let scans = |world: &World| world.matcher.queue_reports(1)[0].scans;
    world.pass(1_000);
    let first = scans(&world);
    assert!(first >= 60 * 59, "{first}: each has seen all others");
    world.pass(60_000);
    assert_eq!(scans(&world), first);
}
