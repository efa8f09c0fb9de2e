//! D.5-5: the same tickets give the same matches in the same order, in whatever order the pool has
//! got them.

use serde_json::{Value, json};
use throng_stdx::Rng;
use throng_wire::matcher::{Method, Status, Writer};

use super::QueueRules;
use crate::config::{Caller, Config, Scope};
use crate::key::{QueueKey, TicketKey};
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::policy::Handled;
use crate::turn::Turn;
use crate::wall::WallMs;

const START: u64 = 1_700_000_000_000;
const TICKETS: usize = 60;

/// A match: sides of tickets, its quality as bits, its region.
type Found = (Vec<Vec<TicketKey>>, u64, Option<String>);

fn pick<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.below(of.len() as u64) as usize]
}

fn rules(rng: &mut Rng) -> Value {
    let max = 1 + rng.below(3);
    let step =
        |target: &str, value: Value| json!({"target": target, "steps": [{"after_s": 1, "value": value}]});
    json!({
        "name": "q", "expand_clock": pick(rng, &["each", "oldest", "newest"]),
        "sides": [{"name": "side", "count": 2, "min": 1, "max": max}],
        "party": {"policy": pick(rng, &["any", "same_size", "large_vs_large"])},
        "attributes": {"n": {"type": "number"}, "t": {"type": "string"}}, "partition": ["t"],
        "quality": {"prefer": pick(rng, &["skill", "wait", "latency"])},
        "accept": {"required": true}, "updates_s": 0, "missing": pick(rng, &["any", "reject"]),
        "rules": [{"name": "near", "type": "near", "key": "n", "max": 2}, {"type": "avoid"},
                  {"type": "balance", "key": "n", "max": 1, "weight": 0.5},
                  {"name": "ping", "type": "latency", "max_ms": 40, "choose": pick(rng, &["min_worst", "min_mean"])}],
        "positions": [{"name": "tank", "per_side_min": 0, "per_side_max": 2},
                      {"name": "healer", "per_side_min": 0, "per_side_max": 2}],
        "expand": [step("rules.near.max", json!(4)), step("rules.ping.max_ms", json!(60)),
                   step("partition", json!([]))]
    })
}

/// A player of few different values, so that much is equally good.
fn player(rng: &mut Rng, role: usize) -> Writer {
    let attr =
        |player: Writer, key: &str, json: String| player.nested(3, Writer::new().str(1, key).str(2, &json));
    let player = attr(Writer::new().str(1, &format!("r{role}")), "n", rng.below(8).to_string());
    let mut player = attr(player, "t", format!("{:?}", pick(rng, &["a", "b"])));
    let first = rng.below(4);
    for region in 0..4 {
        let name = ["oslo", "bonn", "rome", "kiev"][((first + region) % 4) as usize];
        player = player.nested(4, Writer::new().str(1, name).f64(2, 20.0 * (1 + rng.below(3)) as f64));
    }
    for name in ["tank", "healer"].into_iter().filter(|_| rng.chance(0.5)) {
        player = player.str(5, name);
    }
    if rng.chance(0.2) {
        player = player.str(6, &format!("r{}", rng.below(TICKETS as u64)));
    }
    player
}

/// A queue with tickets that have come at several times.
fn waiting(rng: &mut Rng) -> Matcher {
    let (mut matcher, mut notices) =
        (Matcher::new(Config::default(), [7; 32], WallMs(START)), Notices::default());
    let rules = QueueRules::parse(rules(rng).to_string().as_bytes()).unwrap();
    matcher.put_queue(&mut Turn::of_matcher(START, &mut Vec::new(), &mut notices), &rules).unwrap();
    let caller = Caller { srv: "s", scope: Scope::Trusted };
    let mut role = 0;
    for number in 0..TICKETS as u64 {
        let mut ask = Writer::new().str(1, "q").u64(5, rng.below(2) * 2);
        // A party is of one kind.
        let (kind, size) = (rng.below(1 << 32), 1 + rng.below(2));
        for _ in 0..size {
            ask = ask.nested(2, player(&mut Rng::new(kind), role));
            role += 1;
        }
        let now = START + number / 8;
        let handled = matcher.handle(
            WallMs(now),
            caller,
            Method::CREATE_TICKET,
            &ask.into_bytes(),
            &mut Vec::new(),
            &mut notices,
        );
        assert!(matches!(handled, Handled::Done(Status::Ok | Status::RuleInvalid)), "{handled:?}");
    }
    matcher
}

/// Takes all tickets out and puts them in again in the order of `all`, into an empty queue; then
/// ticks. Gives the region that each counts for, by ticket, and the matches.
fn matches_of(matcher: &mut Matcher, all: &[TicketKey]) -> (Vec<Option<String>>, Vec<Found>) {
    let queue = QueueKey::new(0);
    let mut notices = Notices::default();
    all.iter().for_each(|ticket| matcher.queues.leave_pool(*ticket));
    // Without the regions that earlier tickets have left behind.
    matcher.queues.begin_with(queue, &[], &[], |_, _| Vec::new());
    let mut no_answer = Vec::new();
    let turn = &mut Turn::of_matcher(START, &mut no_answer, &mut notices);
    all.iter().for_each(|ticket| matcher.recheck(turn, *ticket));
    let searching = matcher.queues.searching_tickets(queue);
    let until = matcher.now + 2_000;
    while let Some(at) = matcher.next_timeout().filter(|at| *at <= WallMs(until)) {
        matcher.handle_timeout(at, &mut notices);
    }
    let regions = &matcher.queues[queue].regions;
    let name = |region: u16| String::from_utf8_lossy(&regions[usize::from(region)]).into_owned();
    let home = |ticket: &TicketKey| matcher.queues[*ticket].facts.home.map(u16::from).map(name);
    let found = matcher.matches.iter().map(|(_, found)| found);
    let found =
        found.map(|found| (found.sides().to_vec(), found.quality().to_bits(), found.region().map(name)));
    (searching.iter().map(home).collect(), found.collect())
}

#[test]
fn the_order_of_coming_into_the_pool_decides_nothing() {
    let mut found = 0;
    for seed in 0..60 {
        let run = |permuted: u64| {
            let mut matcher = waiting(&mut Rng::new(seed));
            let mut all = matcher.queues.searching_tickets(QueueKey::new(0));
            let mut rng = Rng::new(permuted);
            for at in (1..all.len()).filter(|_| permuted > 0) {
                all.swap(at, rng.below(at as u64 + 1) as usize);
            }
            matches_of(&mut matcher, &all)
        };
        let first = run(0);
        found += first.1.len();
        for permuted in 1..4 {
            assert_eq!(run(permuted), first, "seed {seed}, order {permuted}");
        }
    }
    assert!(found > 500, "{found} matches");
}
