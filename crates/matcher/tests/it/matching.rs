//! What a search must do, whatever it finds: leave nobody waiting who could play, be fair in time,
//! be repeatable; and how good its matches are for simulated populations.

use crate::world;

use throng_matcher::{Config, Scope, WallMs};
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};
use world::{World, player, shown};

fn with(rules: &str) -> World {
    let mut world = World::new(Config::default());
    let (status, answer) = world.put_queue(rules);
    assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&answer));
    world
}

fn near(side: usize, more: &str) -> String {
    format!(
        r#"{{"name": "q", "sides": [{{"name": "side", "count": 2, "min": {side}, "max": {side}}}],
        "attributes": {{"skill": {{"type": "number"}}}}, {more}
        "rules": [{{"name": "near", "type": "near", "key": "skill", "max": 1}}]}}"#
    )
}

/// D.5-3: nobody is left who could play. Without parties and with one rule that is easy to see:
/// among those left, sorted, no ten in a row are near enough.
#[test]
fn no_match_is_left_lying() {
    for (side, count) in [(1, 300), (2, 400), (5, 700)] {
        let (mut world, mut rng) = (with(&near(side, "")), Rng::new(side as u64));
        let mut skills: Vec<(String, f64)> = (0..count)
            .map(|number| {
                let skill = rng.f64() * 60.0;
                (world.solo("s", "q", &format!("r{number}"), skill), skill)
            })
            .collect();
        world.pass(250);
        skills.retain(|(id, _)| world.get_ticket(id).status == "searching");
        skills.sort_by(|a, b| a.1.total_cmp(&b.1));
        let possible = skills.windows(2 * side).find(|some| some[2 * side - 1].1 - some[0].1 <= 1.0);
        // Filling keeps to whom it chose first, so a window may be left whose ends exclude each
        // other's neighbours; each of its tickets as an anchor saw it, and took someone else.
        // Nobody is left when the whole window fits.
        assert_eq!(possible, None, "{side} against {side}");
        assert!(skills.len() < count as usize / 2);
    }
}

/// D.5-4: the oldest choose first, higher priority before them.
#[test]
fn the_oldest_play_first_and_priority_before_age() {
    let mut world = with(&near(1, ""));
    let old = world.solo("s", "q", "old", 10.0);
    world.pass(10);
    let middle = world.solo("s", "q", "middle", 10.5);
    world.pass(10);
    let young = world.solo("s", "q", "young", 9.0);
    world.pass(250);
    let states = [&old, &middle, &young].map(|id| world.get_ticket(id).status);
    assert_eq!(states, ["matched", "matched", "searching"], "the oldest takes the nearest");
    let patient = world.solo("s", "q", "patient", 8.5);
    world.pass(1);
    let urgent = Writer::new().str(1, "q").nested(2, player("urgent", &[("skill", "8.9")])).u64(5, 10);
    let (status, answer) = world.ask_as("s", Scope::Trusted, Method::CREATE_TICKET, urgent);
    assert_eq!(status, Status::Ok);
    let refused = Writer::new().str(1, "q").nested(2, player("x", &[("skill", "8.9")])).u64(5, 10);
    assert_eq!(world.ask("s", Method::CREATE_TICKET, refused).0, Status::Forbidden);
    world.pass(250);
    assert_eq!(world.get_ticket(&shown(&answer).id).status, "matched");
    let left = [&young, &patient].map(|id| world.get_ticket(id).status);
    assert!(left.contains(&"searching".to_owned()), "{left:?}");
}

/// D.5-5 and -6: the same inputs give the same state, and a large tick is cut into slices between
/// which requests pass.
#[test]
fn a_large_tick_is_cut_and_repeatable() {
    let run = || {
        let mut world = with(&near(5, r#""scan_limit": 32,"#));
        let mut rng = Rng::new(5);
        for number in 0..5_000 {
            world.solo("s", "q", &format!("r{number}"), rng.f64() * 1_000.0);
        }
        world.now += 250;
        let mut slices = 0;
        while world.matcher.next_timeout().is_some_and(|at| at <= WallMs(world.now)) {
            world.pass(0);
            assert_eq!(world.ask("s", Method::PING, Writer::new()).0, Status::Ok);
            slices += 1;
        }
        (world.matcher.digest(), slices)
    };
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    assert!(first.1 >= 1);
}

/// Parties of one to five, ranked: whole parties, large ones against large ones.
#[test]
fn large_parties_meet_large_parties() {
    let rules =
        near(5, r#""party": {"policy": "large_vs_large"}, "#).replace("\"max\": 1}]", "\"max\": 100}]");
    let (mut world, mut rng) = (with(&rules), Rng::new(3));
    let mut number = 0;
    for _ in 0..400 {
        let size = 1 + rng.below(5);
        let skill = format!("{}", rng.below(50));
        let party = (0..size)
            .map(|_| {
                number += 1;
                player(&format!("r{number}"), &[("skill", &skill)])
            })
            .collect();
        world.ticket("s", "q", party);
    }
    world.take_heard();
    world.pass(250);
    let mut matches = 0;
    let mut rooms: Vec<String> =
        world.take_kind(Event::MATCH_READY).iter().map(|heard| heard.str(20)).collect();
    rooms.dedup();
    for room in rooms {
        let info = world.room(&room).1;
        let info = Reader::new(&info).unwrap().nested(1).unwrap();
        let sides: Vec<usize> = info.all(10).map(|side| Reader::new(side).unwrap().all(2).count()).collect();
        assert_eq!(sides, [5, 5]);
        matches += 1;
    }
    assert!(matches > 60, "{matches} matches of 1,200 players");
}

#[test]
fn positions_are_filled_with_who_wants_them() {
    let rules = r#"{"name": "q", "sides": [{"name": "side", "count": 2, "min": 3, "max": 3}],
        "positions": [{"name": "tank", "per_side_min": 1, "per_side_max": 1},
                      {"name": "healer", "per_side_min": 1, "per_side_max": 1},
                      {"name": "damage", "per_side_min": 0, "per_side_max": 3}]}"#;
    let mut world = with(rules);
    let wish =
        |id: &str, wants: &[&str]| wants.iter().fold(player(id, &[]), |player, want| player.str(5, want));
    for number in 0..8 {
        world.ticket("s", "q", vec![wish(&format!("d{number}"), &["damage"])]);
    }
    world.pass(250);
    assert!(world.take_kind(Event::MATCH_READY).is_empty(), "nobody would tank");
    world.ticket("s", "q", vec![wish("t1", &["tank"])]);
    world.ticket("s", "q", vec![wish("t2", &["tank", "damage"])]);
    world.ticket("s", "q", vec![wish("h1", &["healer", "tank"])]);
    world.ticket("s", "q", vec![wish("h2", &["healer"])]);
    world.pass(250);
    let ready = world.take_kind(Event::MATCH_READY);
    assert_eq!(ready.len(), 2);
    for heard in ready {
        let mut positions: Vec<String> = Reader::new(&heard.body)
            .unwrap()
            .all(2)
            .map(|entry| Reader::new(entry).unwrap().str(2).unwrap().to_owned())
            .collect();
        positions.sort();
        assert_eq!(positions, ["damage", "healer", "tank"], "{heard:?}");
    }
    let refused = world.try_ticket("s", "q", vec![wish("x", &["goalkeeper"])]);
    assert_eq!(refused.0, Status::RuleInvalid);
}

/// The rules of the how-to, without asking.
const RANKED: &str = r#"{"name": "q", "timeout_s": 300,
    "sides": [{"name": "red", "min": 5, "max": 5}, {"name": "blue", "min": 5, "max": 5}],
    "attributes": {"skill": {"type": "number"}}, "party": {"policy": "large_vs_large"},
    "rules": [{"name": "skill", "type": "near", "key": "skill", "max": 4},
              {"name": "fair", "type": "balance", "key": "skill", "agg": "mean", "max": 1.5},
              {"name": "ping", "type": "latency", "max_ms": 60}],
    "expand": [{"target": "rules.skill.max", "steps": [{"after_s": 10, "value": 6}, {"after_s": 30, "value": 10},
                                                       {"after_s": 60, "value": 16}]},
               {"target": "rules.fair.max", "steps": [{"after_s": 60, "value": 3}]},
               {"target": "rules.ping.max_ms", "steps": [{"after_s": 20, "value": 90}, {"after_s": 60, "value": 150}]},
               {"target": "party.policy", "steps": [{"after_s": 45, "value": "any"}]}]}"#;

/// A ticket of the simulated population and what became of it.
struct Simulated {
    id: String,
    created: u64,
    promised: Option<u64>,
}

/// Ratings around 25, latencies to three regions of which one is near, mostly single players: most
/// are matched well, soon, and not much later than they were told.
#[test]
fn a_population_is_matched_evenly_and_as_promised() {
    (1..=3).for_each(population_is_matched);
}

fn population_is_matched(seed: u64) {
    let (mut world, mut rng) = (with(RANKED), Rng::new(seed));
    let mut waiting: Vec<Simulated> = Vec::new();
    let (mut waits, mut kept, mut promised, mut number) = (Vec::new(), 0, 0, 0);
    for _ in 0..4 * 240 {
        for _ in 0..rng.below(8) {
            let size = [1, 1, 1, 1, 1, 1, 2, 2, 3, 5][rng.below(10) as usize];
            let skill = 25.0 + 8.0 * (0..6).map(|_| rng.f64() - 0.5).sum::<f64>();
            let home = rng.below(3);
            let party = (0..size).map(|_| {
                number += 1;
                let text = format!("{skill:.3}");
                (0..3).fold(player(&format!("r{number}"), &[("skill", &text)]), |player, region| {
                    let ms = if region == home { 15.0 } else { 80.0 } + rng.f64() * 30.0;
                    player.nested(4, Writer::new().str(1, &format!("region{region}")).f64(2, ms))
                })
            });
            let party: Vec<Writer> = party.collect();
            let (status, answer) = world.try_ticket("s", "q", party);
            assert_eq!(status, Status::Ok);
            let ticket = Reader::new(&answer).unwrap().nested(1).unwrap();
            let promised = ticket.last(15).map(|field| field.scalar);
            waiting.push(Simulated { id: shown(&answer).id, created: world.now, promised });
        }
        world.pass(250);
        let mut rooms: Vec<String> =
            world.take_kind(Event::MATCH_READY).iter().map(|heard| heard.str(20)).collect();
        rooms.dedup();
        if !rooms.is_empty() {
            let now = world.now;
            waiting.retain(|ticket| {
                if world.get_ticket(&ticket.id).status != "matched" {
                    return true;
                }
                let waited = now - ticket.created;
                waits.push(waited);
                if let Some(p90) = ticket.promised {
                    promised += 1;
                    kept += u64::from(waited as f64 <= 1.5 * p90 as f64);
                }
                false
            });
        }
    }
    waits.sort_unstable();
    let stats = world.ok("s", Method::GET_QUEUE_STATS, Writer::new().str(1, "q"));
    let stats = Reader::new(&stats).unwrap();
    let quality = |field| f64::from_bits(stats.last(field).unwrap().scalar);
    let quantile = |part: f64| waits[(waits.len() as f64 * part) as usize];
    assert!(waits.len() > 20 * waiting.len().max(1), "{} matched, {} waiting", waits.len(), waiting.len());
    assert!(quantile(0.5) < 10_000 && quantile(0.9) < 45_000, "{} {}", quantile(0.5), quantile(0.9));
    // Without a rating quality is the room that is left below the latency's limit: the worst of ten
    // players is near it.
    assert!(quality(12) > 0.2, "median quality {}", quality(12));
    assert!(promised > 1_000, "most were promised something: {promised}");
    assert!(
        kept * 10 >= promised * 8,
        "seed {seed}: {kept} of {promised} waited no longer than 1.5 times what they were told"
    );
}

/// D.5-3: who stands between two that may meet does not keep them apart, within the steps that a
/// search has.
#[test]
fn neighbours_that_cannot_be_met_are_passed_over() {
    let rules = r#"{"name": "q", "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
        "attributes": {"skill": {"type": "number"}},
        "rules": [{"type": "near", "key": "skill", "max": 50}, {"type": "latency", "max_ms": 60}]}"#;
    for between in [10, 30, 100] {
        let mut world = with(rules);
        let mut far = |id: &str, skill: f64, region: &str| {
            let one = player(id, &[("skill", &skill.to_string())]);
            let ticket = vec![one.nested(4, Writer::new().str(1, region).f64(2, 20.0))];
            shown(&world.try_ticket("s", "q", ticket).1).id
        };
        let pair = [far("a", 0.0, "home"), far("b", 40.0, "home")];
        // Each alone in its part of the world.
        for number in 0..between {
            far(&format!("r{number}"), 1.0 + f64::from(number) / 10.0, &format!("region{}", number % 60));
        }
        world.pass(250);
        assert_eq!(pair.map(|id| world.get_ticket(&id).status), ["matched", "matched"], "{between} between");
    }
}

/// A party that lacks the number that others are kept near by meets whomever, where that is no
/// matter.
#[test]
fn who_has_no_number_is_near_everybody_where_that_is_no_matter() {
    let rules = |missing: &str, default: &str| {
        format!(
            r#"{{"name": "q", "sides": [{{"name": "side", "count": 2, "min": 1, "max": 1}}],
            "attributes": {{"skill": {{"type": "number"{default}}}}}, "missing": "{missing}",
            "rules": [{{"type": "near", "key": "skill", "max": 4}}]}}"#
        )
    };
    for (missing, default, matched) in
        [("any", "", true), ("any", r#", "default": 0"#, false), ("any", r#", "default": 24"#, true)]
    {
        let mut world = with(&rules(missing, default));
        let bare = world.ticket("s", "q", vec![player("bare", &[])]);
        world.solo("s", "q", "known", 25.0);
        world.pass(250);
        assert_eq!(world.get_ticket(&bare).status == "matched", matched, "{missing} {default}");
    }
    let refused = with(&rules("reject", "")).try_ticket("s", "q", vec![player("bare", &[])]);
    assert_eq!(refused.0, Status::RuleInvalid);
}

/// D.4.2: where the newest decides, one who comes narrows what older ones were let in by.
#[test]
fn the_newest_of_a_match_narrows_it_for_all() {
    let rules = r#"{"name": "q", "sides": [{"name": "all", "min": 3, "max": 3}], "expand_clock": "newest",
        "attributes": {"skill": {"type": "number"}, "level": {"type": "number"}},
        "rules": [{"name": "skill", "type": "near", "key": "skill", "max": 4},
                  {"name": "level", "type": "near", "key": "level", "max": 4}],
        "expand": [{"target": "rules.level.max", "steps": [{"after_s": 10, "value": 20}]}]}"#;
    let mut world = with(rules);
    let mut wait =
        |id: &str, level: &str| world.ticket("s", "q", vec![player(id, &[("skill", "1"), ("level", level)])]);
    let old = [wait("a", "0"), wait("b", "6")];
    world.pass(11_000);
    let young = world.ticket("s", "q", vec![player("c", &[("skill", "1"), ("level", "3")])]);
    world.pass(250);
    assert_eq!(world.get_ticket(&young).status, "searching", "a and b differ by 6, over 4");
    world.pass(10_000);
    assert_eq!(old.map(|id| world.get_ticket(&id).status), ["matched", "matched"]);
}
