//! A draft of a rule set tried on a copy of the pool: it says what the matcher then does, and
//! changes nothing.

use crate::world;

use std::collections::{BTreeMap, BTreeSet};

use throng_matcher::{Caller, Config, Matcher, Scope, WallMs};
use throng_stdx::Rng;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer, method};
use world::{World, player, shown};

/// What one side of an answer says, or what was seen to happen.
#[derive(Debug, Default, PartialEq)]
struct Column {
    matches: u64,
    tickets: u64,
    players: u64,
    left: u64,
    timed_out: u64,
    failed: u64,
    waits: (Option<u64>, Option<u64>),
    spreads: (Option<f64>, Option<f64>),
}

impl Column {
    fn read(side: Reader<'_>) -> Column {
        let wait = |number| side.last(number).map(|field| field.scalar);
        let spread = |number| side.last(number).map(|field| f64::from_bits(field.scalar));
        Column {
            matches: side.u64(1),
            tickets: side.u64(2),
            players: side.u64(3),
            left: side.u64(4),
            timed_out: side.u64(5),
            failed: side.u64(6),
            waits: (wait(11), wait(12)),
            spreads: (spread(15), spread(16)),
        }
    }
}

fn try_queue(world: &mut World, draft: &str, seconds: u64) -> (Status, Vec<u8>) {
    let body = Writer::new().str(1, draft).u64(2, seconds);
    world.ask_as("", Scope::Admin, Method::TRY_QUEUE, body)
}

/// Rules whose numbers are drawn.
fn rules(rng: &mut Rng, version: u64) -> String {
    let (sides, size) = (1 + rng.below(3), 1 + rng.below(3));
    let min = 1 + rng.below(size);
    let near = 2 + rng.below(20);
    let tick = [50, 100, 250, 1_000][rng.below(4) as usize];
    let policy = ["any", "same_size", "large_vs_large"][rng.below(3) as usize];
    let clock = ["each", "oldest", "newest"][rng.below(3) as usize];
    let partition = if rng.chance(0.5) { r#""partition": ["mode"],"# } else { "" };
    let rating = if rng.chance(0.3) { r#""rating": {"pool": "ranked", "trust_ticket": true},"# } else { "" };
    let ping = if rng.chance(0.5) { r#", {"name": "ping", "type": "latency", "max_ms": 60}"# } else { "" };
    let limit = if rng.chance(0.3) {
        r#", {"name": "low", "type": "compare", "key": "skill", "op": "<", "value": 70}"#
    } else {
        ""
    };
    let scan = 8 + rng.below(20);
    let total = sides * min;
    let (min, size) = if total < 2 { (2, size.max(2)) } else { (min, size) };
    format!(
        r#"{{"name": "q", "version": "{version}", "tick_ms": {tick}, "timeout_s": 20, "scan_limit": {scan},
        "sides": [{{"name": "side", "count": {sides}, "min": {min}, "max": {size}}}], "seat_ttl_s": 3,
        "attributes": {{"skill": {{"type": "number", "default": 0}}, "mode": {{"type": "string", "default": ""}}}},
        {partition} {rating} "party": {{"max": {size}, "policy": "{policy}"}}, "expand_clock": "{clock}",
        "rules": [{{"name": "near", "type": "near", "key": "skill", "max": {near}}}{ping}{limit}],
        "expand": [{{"target": "rules.near.max", "steps": [{{"after_s": 2, "value": 25}}, {{"after_s": 7.5, "value": 60}}]}}]}}"#
    )
}

/// A queue with tickets that came over some time.
fn filled(rng: &mut Rng, live: &str, known: &mut Known) -> Option<World> {
    let mut world = World::new(Config::default());
    let (status, _) = world.put_queue(live);
    if status != Status::Ok {
        return None;
    }
    // What is due in the very moment of a tick goes with that or the next.
    world.pass(5);
    for number in 0..rng.below(250) {
        let size = 1 + rng.below(3);
        let skill = rng.below(100);
        let mode = if rng.chance(0.8) { "\"\"" } else { "\"hard\"" };
        let pings = [("eu", rng.below(90)), ("us", rng.below(90))];
        let members = (0..size).map(|member| {
            let all =
                player(&format!("r{number}_{member}"), &[("skill", &skill.to_string()), ("mode", mode)]);
            let near = |all: Writer, (region, ms): &(&str, u64)| {
                all.nested(4, Writer::new().str(1, region).f64(2, *ms as f64))
            };
            pings.iter().take(rng.below(3) as usize).fold(all, near)
        });
        let (status, answer) = world.try_ticket(&format!("s{}", number % 3), "q", members.collect());
        if status == Status::Ok {
            known.0.insert(shown(&answer).id, (world.now, size, skill as f64));
        }
        world.pass(10 * rng.below(8));
    }
    world.take_heard();
    Some(world)
}

/// Time when a ticket was made, how many are in it and their skill.
#[derive(Clone, Default)]
struct Known(BTreeMap<String, (u64, u64, f64)>);

/// What the matcher does when time passes.
fn played(world: &mut World, known: &Known, seconds: u64) -> Column {
    let searching = |world: &mut World| -> BTreeSet<String> {
        let answer = world.ask_as("", Scope::Admin, Method::LIST_TICKETS, Writer::new().str(2, "q")).1;
        let tickets = Reader::new(&answer).unwrap();
        tickets.all(1).map(|ticket| Reader::new(ticket).unwrap().str(1).unwrap().to_owned()).collect()
    };
    let (mut column, mut waits, mut before) = (Column::default(), Vec::new(), searching(world));
    let mut ranges: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    // What a change of rules has ended already.
    column.failed = failed(world);
    for _ in 0..seconds * 200 {
        world.pass(5);
        let heard = world.take_heard();
        let rooms = heard.iter().filter(|heard| heard.kind == Event::MATCH_READY).map(|heard| heard.str(20));
        column.matches += rooms.collect::<BTreeSet<_>>().len() as u64;
        if heard.is_empty() {
            continue;
        }
        let after = searching(world);
        for id in before.difference(&after) {
            let (created, size, skill) = known.0[id];
            let now = world.get_ticket(id);
            if now.status == "timed_out" {
                column.timed_out += 1;
                continue;
            }
            assert_eq!(now.status, "matched");
            column.tickets += 1;
            column.players += size;
            waits.push(world.now - created);
            let range = ranges.entry(now.matched).or_insert((skill, skill));
            *range = (range.0.min(skill), range.1.max(skill));
        }
        before = after;
    }
    column.left = before.len() as u64;
    waits.sort_unstable();
    let mut spreads: Vec<f64> = ranges.into_values().map(|(low, high)| high - low).collect();
    spreads.sort_unstable_by(f64::total_cmp);
    column.waits = (nearest(&waits, 0.5), nearest(&waits, 0.9));
    column.spreads = (nearest(&spreads, 0.5), nearest(&spreads, 1.0));
    column
}

fn failed(world: &mut World) -> u64 {
    let ended = world.take_kind(Event::TICKET_UPDATE);
    ended.iter().filter(|heard| shown(&heard.body).status == "failed").map(|_| 1).sum()
}

fn nearest<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    sorted.get(((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1)).copied()
}

fn again(world: &World) -> World {
    let mut other = World::new(Config::default());
    other.matcher = Matcher::restore(&world.matcher.snapshot()).unwrap();
    other.now = world.now;
    other
}

#[test]
fn both_columns_say_what_the_matcher_then_does() {
    let (mut tried, mut differ, mut failures, mut matched) = (0, 0, 0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (live, draft) = (rules(&mut rng, 1), rules(&mut rng, 2));
        let draft = if seed % 3 == 0 { live.clone() } else { draft };
        let mut known = Known::default();
        let Some(mut world) = filled(&mut rng, &live, &mut known) else { continue };
        let digest = world.matcher.digest();
        let seconds = 1 + rng.below(20);
        let (status, answer) = try_queue(&mut world, &draft, seconds);
        assert_eq!(world.matcher.digest(), digest, "a trial changes nothing");
        if status == Status::RuleInvalid {
            assert_eq!(world.put_queue(&draft), (status, answer), "refused as if it were put");
            continue;
        }
        assert_eq!(status, Status::Ok);
        let answer = Reader::new(&answer).unwrap();
        assert_eq!((answer.str(1), answer.u64(4)), (Ok("q"), seconds));
        assert_eq!(answer.u64(2), answer.u64(3), "all of a small pool are copied");
        let [ours, theirs] = [5, 6].map(|number| answer.nested(number).unwrap());
        assert_eq!((ours.u64(9), ours.u64(10)), (0, seconds * 1_000), "it was not cut");
        if draft == live {
            assert_eq!(answer.bytes(5), answer.bytes(6), "equal rules, equal columns");
        }
        let mut other = again(&world);
        let live_column = played(&mut world, &known, seconds);
        assert_eq!(Column::read(theirs), live_column, "seed {seed}: {live}");
        assert_eq!(other.put_queue(&draft).0, Status::Ok);
        let draft_column = played(&mut other, &known, seconds);
        assert_eq!(Column::read(ours), draft_column, "seed {seed}: {live} then {draft}");
        (tried, matched) = (tried + 1, matched + draft_column.matches);
        differ += u64::from(live_column != draft_column);
        failures += u64::from(draft_column.failed > 0);
    }
    assert!(
        tried > 80 && differ > 30 && failures > 5 && matched > 300,
        "{tried} {differ} {failures} {matched}"
    );
}

const DUEL: &str = r#"{"name": "duel", "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
    "attributes": {"skill": {"type": "number", "default": 0}}, "timeout_s": 40,
    "rules": [{"name": "near", "type": "near", "key": "skill", "max": 5}]}"#;

#[test]
fn proposals_count_as_accepted_and_servers_as_given() {
    let mut world = World::new(Config::default());
    let asks =
        DUEL.replacen('{', r#"{"accept": {"required": true}, "assign": "external", "allocator": "s9","#, 1);
    assert_eq!(world.put_queue(&asks).0, Status::Ok);
    world.solo("s1", "duel", "ann", 10.0);
    world.solo("s1", "duel", "ben", 12.0);
    world.solo("s1", "duel", "cat", 40.0);
    let answer = try_queue(&mut world, &asks, 5).1;
    let live = Reader::new(&answer).unwrap().nested(6).unwrap();
    assert_eq!((live.u64(1), live.u64(4)), (1, 1), "one match; cat searches on");
}

#[test]
fn what_can_never_match_is_said_with_the_reason() {
    let mut world = World::new(Config::default());
    world.put_queue(DUEL);
    world.solo("s1", "duel", "ann", 10.0);
    world.solo("s1", "duel", "ben", 90.0);
    let rule = r#""rules": [{"name": "low", "type": "compare", "key": "skill", "op": "<", "value": 50},"#;
    let answer = try_queue(&mut world, &DUEL.replace(r#""rules": ["#, rule), 5).1;
    let draft = Reader::new(&answer).unwrap().nested(5).unwrap();
    assert_eq!((draft.u64(6), draft.u64(4)), (1, 1));
    let reason = draft.nested(7).unwrap();
    assert!(reason.str(1).unwrap().contains("low") && reason.u64(2) == 1, "{:?}", reason.str(1));
}

#[test]
fn a_queue_that_is_not_there_has_one_column_over_nobody() {
    let mut world = World::new(Config::default());
    let answer = try_queue(&mut world, DUEL, 0).1;
    let answer = Reader::new(&answer).unwrap();
    assert_eq!(
        (answer.u64(2), answer.u64(3), answer.u64(4)),
        (0, 0, 40),
        "60 s, but no longer than a ticket waits"
    );
    assert!(answer.last(6).is_none());
    assert_eq!(Column::read(answer.nested(5).unwrap()), Column::default());
}

#[test]
fn it_is_for_admins_and_leaves_no_record() {
    let mut world = World::new(Config::default());
    let body = || Writer::new().str(1, DUEL);
    for scope in [Scope::Server, Scope::Trusted] {
        assert_eq!(world.ask_as("s1", scope, Method::TRY_QUEUE, body()).0, Status::Forbidden);
    }
    assert!(!method(Method::TRY_QUEUE).unwrap().mutates);
    let (status, answer) = try_queue(&mut world, r#"{"name": "duel", "sides": [], "timeout_s": 0}"#, 5);
    assert_eq!(status, Status::RuleInvalid);
    assert_eq!(world.put_queue(r#"{"name": "duel", "sides": [], "timeout_s": 0}"#), (status, answer));
}

#[test]
fn what_changes_while_it_is_copied_does_no_harm() {
    let mut world = World::new(Config::default());
    world.put_queue(DUEL);
    world.solo("s1", "duel", "ann", 10.0);
    let leaver = world.solo("s1", "duel", "ben", 50.0);
    let body = Writer::new().str(1, DUEL).u64(2, 5).into_bytes();
    let admin = Caller { srv: "", scope: Scope::Admin };
    let mut trial = world.matcher.trial(WallMs(world.now), admin, &body).unwrap();
    world.pass(20);
    world.solo("s1", "duel", "cat", 12.0);
    world.cancel("s1", &leaver);
    while !trial.copy(&world.matcher) {}
    let answer = trial.run();
    let answer = Reader::new(&answer).unwrap();
    assert_eq!((answer.u64(2), answer.u64(3)), (2, 1), "ben has left, cat came too late");
    assert_eq!(answer.nested(6).unwrap().u64(4), 1);

    let mut trial = world.matcher.trial(WallMs(world.now), admin, &body).unwrap();
    let other =
        DUEL.replace("attributes\": {", "attributes\": {\"early\": {\"type\": \"number\", \"default\": 1}, ");
    assert_eq!(world.put_queue(&other).0, Status::Ok);
    while !trial.copy(&world.matcher) {}
    let answer = trial.run();
    let live = Reader::new(&answer).unwrap().nested(6).unwrap();
    assert_eq!(live.u64(1), 1, "ann and cat meet under the rules that are in force by now");
}
