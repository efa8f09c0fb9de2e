//! E.4: why a ticket is not matched. What is named must be what keeps it: without that, the next
//! tick makes a match.

use crate::world;

use serde_json::{Value, json};
use throng_matcher::Config;
use throng_stdx::Rng;
use throng_wire::matcher::{Method, Reader, Status, Writer};
use world::{World, player};

/// Players by wanted position and attributes: parties of them.
type Party<'a> = &'a [(&'a str, &'a [(&'a str, &'a str)])];

fn with(rules: &Value) -> World {
    let mut world = World::new(Config::default());
    let (status, answer) = world.put_queue(&rules.to_string());
    assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&answer));
    world
}

/// Two sides of `size` with these members.
fn rules(size: u64, more: Value) -> Value {
    let mut set = json!({"name": "q", "sides": [{"name": "side", "count": 2, "min": size, "max": size}],
        "attributes": {"n": {"type": "number", "default": 0}, "t": {"type": "string", "default": ""},
                       "l": {"type": "string_list", "default": []}}});
    if let (Some(set), Value::Object(more)) = (set.as_object_mut(), more) {
        set.extend(more);
    }
    set
}

/// The summary of a ticket, and the rules that do not hold for its nearest together.
fn explained(world: &mut World, ticket: &str) -> (String, Vec<String>) {
    let why = world.ok("s", Method::EXPLAIN_TICKET, Writer::new().str(1, ticket));
    let why = Reader::new(&why).unwrap();
    let together = why.all(7).map(|fail| Reader::new(fail).unwrap().str(1).unwrap().to_owned());
    (why.str(2).unwrap().to_owned(), together.collect())
}

fn ticket(world: &mut World, number: usize, party: Party<'_>) -> String {
    let members = party.iter().enumerate().map(|(member, (wants, attrs))| {
        let player = player(&format!("r{number}_{member}"), attrs);
        if wants.is_empty() { player } else { player.str(5, wants) }
    });
    world.ticket("s", "q", members.collect())
}

#[test]
fn what_is_named_is_what_keeps_it() {
    const SOLO: Party<'_> = &[("", &[])];
    const PAIR: Party<'_> = &[("", &[]), ("", &[])];
    const TANK: Party<'_> = &[("tank", &[])];
    const HEALER: Party<'_> = &[("healer", &[])];
    const LOW: Party<'_> = &[("", &[("n", "1")])];
    const HIGH: Party<'_> = &[("", &[("n", "9")])];
    const ALPS: Party<'_> = &[("", &[("l", r#"["alps"]"#)])];
    const DUNES: Party<'_> = &[("", &[("l", r#"["dunes"]"#)])];
    let positions = json!([{"name": "tank", "per_side_min": 1, "per_side_max": 1},
                           {"name": "healer", "per_side_min": 0, "per_side_max": 9}]);
    let one = |rule: Value| json!({ "rules": [rule] });
    let cases: [(&str, u64, Value, &[Party<'_>]); 9] = [
        ("positions", 2, json!({ "positions": positions }), &[HEALER, HEALER, HEALER, TANK]),
        ("party.policy", 2, json!({"party": {"policy": "same_size"}}), &[PAIR, SOLO, SOLO]),
        (
            "party.policy",
            4,
            json!({"party": {"policy": "large_vs_large"}}),
            &[PAIR, SOLO, SOLO, SOLO, SOLO, SOLO, SOLO],
        ),
        (
            "quality.min",
            1,
            json!({"quality": {"min": 0.9},
            "rules": [{"type": "near", "key": "n", "max": 1, "weight": 1}]}),
            &[LOW, HIGH],
        ),
        (
            "fair",
            2,
            one(json!({"name": "fair", "type": "balance", "key": "n", "max": 1})),
            &[LOW, LOW, LOW, HIGH],
        ),
        ("sum", 1, one(json!({"name": "sum", "type": "total", "key": "n", "min": 19})), &[LOW, HIGH]),
        ("near", 1, one(json!({"name": "near", "type": "near", "key": "n", "max": 4})), &[LOW, HIGH]),
        ("maps", 1, one(json!({"name": "maps", "type": "overlap", "key": "l"})), &[ALPS, DUNES]),
        (
            "small",
            1,
            one(json!({"name": "small", "type": "compare", "key": "n", "op": "<", "value": 5})),
            &[LOW, HIGH],
        ),
    ];
    for (named, size, more, parties) in cases {
        let mut set = rules(size, more);
        if named == "small" {
            // Within another rule, so that it is not refused at once.
            set["rules"] = json!([{"name": "small", "type": "any", "rules": [{"type": "compare", "key": "n", "op": "<", "value": 5}]}]);
        }
        let mut world = with(&set);
        let all: Vec<String> =
            parties.iter().enumerate().map(|(number, party)| ticket(&mut world, number, party)).collect();
        world.pass(250);
        for id in &all {
            assert_eq!(world.get_ticket(id).status, "searching", "{named}: {more:?}", more = set);
        }
        let (summary, together) = explained(&mut world, &all[0]);
        assert!(summary.contains(&format!("`{named}`")), "{named}: {summary}, {together:?}");
        assert_eq!(together, [named], "{summary}");
    }
}

/// A hard rule that holds is not in the way where a soft one costs more quality than `quality.min`
/// leaves.
#[test]
fn a_rule_that_holds_is_not_blamed_for_a_lack_of_quality() {
    for hard in [
        json!({"name": "wide", "type": "near", "key": "n", "max": 20}),
        json!({"name": "same", "type": "equal", "key": "t"}),
        json!({"name": "ping", "type": "latency", "max_ms": 100, "missing": "any"}),
    ] {
        let soft = json!({"name": "close", "type": "near", "key": "n", "max": 1, "weight": 1});
        let mut world = with(&rules(1, json!({ "rules": [hard, soft], "quality": {"min": 0.4} })));
        let first = ticket(&mut world, 1, &[("", &[("n", "1")])]);
        ticket(&mut world, 2, &[("", &[("n", "9")])]);
        world.pass(250);
        let (summary, together) = explained(&mut world, &first);
        assert_eq!(together, ["quality.min"], "{hard}: {summary}");
    }
}

/// More players than are shown are needed; and those who are refused by one of many do not hide
/// that the others fit.
#[test]
fn large_matches_are_explained_too() {
    let mut world = with(&rules(50, json!({})));
    let all: Vec<String> = (0..99).map(|number| ticket(&mut world, number, &[("", &[])])).collect();
    world.pass(250);
    let (summary, _) = explained(&mut world, &all[0]);
    assert!(summary.starts_with("99 of 100 players"), "{summary}");
    ticket(&mut world, 99, &[("", &[])]);
    let (summary, _) = explained(&mut world, &all[0]);
    assert!(summary.starts_with("a match is possible"), "{summary}");
    world.pass(250);
    assert_eq!(
        world.get_ticket(&all[0]).status,
        "matched",
        "more play than 64, as far as a search looks by default"
    );
}

/// `a match is possible` is said when the search finds one, whatever the rules.
#[test]
fn a_match_that_is_promised_is_made() {
    let mut promised = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let policy = ["any", "same_size", "large_vs_large"][rng.below(3) as usize];
        let set = rules(
            1 + rng.below(3),
            json!({"party": {"policy": policy},
                "rules": [{"name": "near", "type": "near", "key": "n", "max": 1 + rng.below(5)},
                          {"name": "fair", "type": "balance", "key": "n", "max": 1 + rng.below(2)},
                          {"name": "sum", "type": "total", "key": "n", "max": 10 + rng.below(30)}]}),
        );
        let mut world = with(&set);
        let mut all = Vec::new();
        for number in 0..2 + rng.below(12) as usize {
            let n = rng.below(12).to_string();
            let members =
                (0..1 + rng.below(2)).map(|member| player(&format!("r{number}_{member}"), &[("n", &n)]));
            let (status, answer) = world.try_ticket("s", "q", members.collect());
            if status == Status::Ok {
                all.push(world::shown(&answer).id);
            }
        }
        let Some(first) = all.first() else { continue };
        let is_promised = explained(&mut world, first).0.starts_with("a match is possible");
        world.pass(250);
        let is_matched = world.get_ticket(first).status == "matched";
        assert!(!is_promised || is_matched, "seed {seed}: the first anchor takes what it finds");
        promised += u32::from(is_promised);
        // Who is left is left by something that has a name, or by a lack of players.
        for id in all {
            if world.get_ticket(&id).status == "searching" {
                let (summary, _) = explained(&mut world, &id);
                assert!(!summary.starts_with("a match is possible"), "seed {seed}: {summary}");
            }
        }
    }
    assert!(promised > 30, "{promised}");
}

/// Without the rules that are named the search finds a match; without all others it does not.
#[test]
fn the_named_rules_and_no_others_are_in_the_way() {
    let all = json!([
        {"name": "near", "type": "near", "key": "n", "max": 3},
        {"name": "latency", "type": "latency", "max_ms": 60},
        {"name": "same", "type": "equal", "key": "t"},
        {"name": "maps", "type": "overlap", "key": "l"},
        {"name": "fair", "type": "balance", "key": "n", "max": 1},
        {"name": "apart", "type": "avoid"},
        {"name": "soft", "type": "spread", "key": "n", "max": 2, "weight": 1},
        {"name": "soft too", "type": "equal", "key": "t", "weight": 0.5},
    ]);
    let rules_of = |keeps: &dyn Fn(&str) -> bool| -> Vec<Value> {
        let is_soft = |rule: &Value| rule.get("weight").is_some();
        let named = |rule: &&Value| is_soft(rule) || keeps(rule["name"].as_str().unwrap());
        all.as_array().unwrap().iter().filter(named).cloned().collect()
    };
    let (mut explained_tickets, mut several, mut of_quality) = (0, 0, 0);
    for seed in 0..400 {
        let world_with = |keeps: &dyn Fn(&str) -> bool| {
            let mut rng = Rng::new(seed);
            let size = 1 + rng.below(2);
            let least = if rng.chance(0.5) && keeps("quality.min") { 0.7 } else { 0.0 };
            let set = json!({ "rules": rules_of(keeps), "quality": {"min": least} });
            let mut world = with(&rules(size, set));
            let mut tickets = Vec::new();
            for number in 0..2 * size + rng.below(6) {
                let n = rng.below(10).to_string();
                let t = format!("\"{}\"", ["a", "b"][rng.below(2) as usize]);
                let l = format!("[\"{}\"]", ["x", "y"][rng.below(2) as usize]);
                let mut who = player(&format!("r{number}"), &[("n", &n), ("t", &t), ("l", &l)]);
                for region in ["eu", "us"] {
                    let ms = if rng.chance(0.6) { 20.0 } else { 200.0 };
                    who = who.nested(4, Writer::new().str(1, region).f64(2, ms));
                }
                if rng.chance(0.2) {
                    who = who.str(6, &format!("r{}", rng.below(6)));
                }
                let (status, answer) = world.try_ticket("s", "q", vec![who]);
                // One that no region is near enough to is refused by some rule sets.
                tickets.push((status == Status::Ok).then(|| world::shown(&answer).id));
            }
            (world, tickets)
        };
        let (mut world, tickets) = world_with(&|_| true);
        for (at, id) in tickets.iter().enumerate() {
            let Some(id) = id else { continue };
            let (summary, named) = explained(&mut world, id);
            if !summary.contains("in the way") {
                continue;
            }
            let is_possible = |keeps: &dyn Fn(&str) -> bool| {
                let (mut other, others) = world_with(keeps);
                // Those that are refused under all the rules do not wait here either.
                for (at, id) in others.iter().enumerate() {
                    if let Some(id) = id.as_ref().filter(|_| tickets[at].is_none()) {
                        other.cancel("s", id);
                    }
                }
                explained(&mut other, others[at].as_ref().unwrap()).0.starts_with("a match is possible")
            };
            assert!(
                is_possible(&|rule| !named.iter().any(|name| name == rule)),
                "seed {seed}, {at}: {named:?}"
            );
            assert!(
                !is_possible(&|rule| named.iter().any(|name| name == rule)),
                "seed {seed}, {at}: {named:?}"
            );
            explained_tickets += 1;
            several += u32::from(named.len() > 1);
            of_quality += u32::from(named.iter().any(|name| name == "quality.min"));
        }
    }
    let counts = [explained_tickets, several, of_quality];
    assert!(counts.iter().zip([200, 20, 20]).all(|(count, least)| *count > least), "{counts:?}");
}

#[test]
fn a_ticket_that_ended_under_rules_with_more_levels_is_explained() {
    let relaxing = json!({"rules": [{"name": "near", "type": "near", "key": "n", "max": 1}],
        "expand": [{"target": "rules.near.max", "steps": [{"after_s": 1, "value": 2}]}]});
    let mut world = with(&rules(1, relaxing));
    let gone = ticket(&mut world, 1, &[("", &[])]);
    world.pass(2_000);
    assert_eq!(world.cancel("s", &gone), Status::Ok);
    world.put_queue(&rules(1, json!({})).to_string());
    assert_eq!(explained(&mut world, &gone).0, "it does not search");
}
