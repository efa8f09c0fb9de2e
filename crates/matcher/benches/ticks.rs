//! Cost of a tick over 100,000 searching tickets: matching, rooms, seats and notices, without
//! sessions and sockets.
//!
//! `cargo bench -p throng-matcher`; `cargo test -p throng-matcher --benches` runs each once.

use divan::Bencher;
use throng_matcher::{Caller, Config, Matcher, Notices, QueueRules, Scope, WallMs};
use throng_stdx::Rng;
use throng_wire::matcher::{Method, Status, Writer};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TICKETS: u64 = 100_000;
const START_MS: u64 = 1_700_000_000_000;
const TICK_MS: u64 = 10_000;
/// Tickets come evenly from some time before a tick until shortly before it: their waits differ,
/// and none relaxes.
const FIRST_MS: u64 = START_MS + 300;
const FILL_MS: u64 = 9_400;

fn main() {
    divan::main();
}

/// A ranked five against five, without asking.
fn rules(expand: &str) -> String {
    format!(
        r#"{{"name": "q", "tick_ms": {TICK_MS}, "updates_s": 0, "seat_ttl_s": 30,
            "sides": [{{"name": "red", "min": 5, "max": 5}}, {{"name": "blue", "min": 5, "max": 5}}],
            "attributes": {{"skill": {{"type": "number"}}, "build": {{"type": "string"}},
                            "mode": {{"type": "string"}}, "level": {{"type": "number"}},
                            "platform": {{"type": "string"}}}},
            "partition": ["build", "mode"], "party": {{"policy": "large_vs_large"}},
            "rules": [{{"name": "skill", "type": "near", "key": "skill", "max": 4}},
                      {{"name": "fair", "type": "balance", "key": "skill", "agg": "mean", "max": 1.5}},
                      {{"name": "ping", "type": "latency", "max_ms": 60}}, {{"name": "foes", "type": "avoid"}}]
            {expand}}}"#
    )
}

const RELAXING: &str = r#", "expand": [
    {"target": "rules.skill.max", "steps": [{"after_s": 10, "value": 6}, {"after_s": 30, "value": 10},
                                            {"after_s": 60, "value": 16}]},
    {"target": "rules.fair.max", "steps": [{"after_s": 60, "value": 3}]},
    {"target": "rules.ping.max_ms", "steps": [{"after_s": 20, "value": 90}, {"after_s": 60, "value": 150}]},
    {"target": "party.policy", "steps": [{"after_s": 45, "value": "any"}]}]"#;

/// A party of a size, everybody near one region.
fn ticket(rng: &mut Rng, number: u64, size: u64) -> Vec<u8> {
    ticket_of(rng, number, size, None, |player| player)
}

/// The same with a skill that is given, and players with `more`.
fn ticket_of(
    rng: &mut Rng,
    number: u64,
    size: u64,
    skill: Option<f64>,
    more: impl Fn(Writer) -> Writer,
) -> Vec<u8> {
    let any = 25.0 + 8.0 * (rng.f64() + rng.f64() + rng.f64() - 1.5);
    let skill = format!("{:.3}", skill.unwrap_or(any));
    let attr = |key: &str, json: &str| Writer::new().str(1, key).str(2, json);
    let ping = |region: &str, ms: f64| Writer::new().str(1, region).f64(2, ms);
    let party = (0..size).map(|member| {
        let player = Writer::new()
            .str(1, &format!("p{}", number * size + member))
            .nested(3, attr("skill", &skill))
            .nested(3, attr("build", "\"1.0\""))
            .nested(3, attr("mode", "\"ranked\""))
            .nested(3, attr("level", "12"))
            .nested(3, attr("platform", "\"pc\""))
            .nested(4, ping("eu", 20.0 + 20.0 * rng.f64()))
            .nested(4, ping("us", 110.0))
            .nested(4, ping("as", 180.0));
        more(player)
    });
    party.fold(Writer::new().str(1, "q"), |body, player| body.nested(2, player)).into_bytes()
}

fn filled(expand: &str, size: u64) -> (Matcher, Notices) {
    filled_with(expand, |rng, number| ticket(rng, number, size))
}

fn filled_with(expand: &str, make: impl Fn(&mut Rng, u64) -> Vec<u8>) -> (Matcher, Notices) {
    let queue = QueueRules::parse(rules(expand).as_bytes()).unwrap();
    let mut matcher =
        Matcher::new(Config { queues: vec![queue], ..Config::default() }, [9; 32], WallMs(START_MS));
    let mut notices = Notices::default();
    fill(&mut matcher, &mut notices, FIRST_MS, make);
    (matcher, notices)
}

fn fill(matcher: &mut Matcher, notices: &mut Notices, first: u64, make: impl Fn(&mut Rng, u64) -> Vec<u8>) {
    let (mut rng, mut answer) = (Rng::new(1), Vec::new());
    for number in 0..TICKETS {
        answer.clear();
        let caller = Caller { srv: "s", scope: Scope::Server };
        let body = make(&mut rng, number);
        let now = first + number * FILL_MS / TICKETS;
        let done = matcher.handle(WallMs(now), caller, Method::CREATE_TICKET, &body, &mut answer, notices);
        assert_eq!(done.status(), Some(Status::Ok), "{}", String::from_utf8_lossy(&answer));
        notices.clear();
    }
}

/// Everything that is due at a time. Returns how many slices that took.
fn tick(matcher: &mut Matcher, notices: &mut Notices, now: u64) -> u64 {
    let mut slices = 0;
    while matcher.next_timeout().is_some_and(|at| at <= WallMs(now)) {
        matcher.handle_timeout(WallMs(now), notices);
        notices.clear();
        slices += 1;
    }
    slices
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn most_can_be_matched(bencher: Bencher<'_, '_>) {
    bencher.with_inputs(|| filled(RELAXING, 1)).bench_local_refs(|(matcher, notices)| {
        tick(matcher, notices, START_MS + TICK_MS);
        assert!(matcher.counts().rooms > TICKETS as usize / 11);
    });
}

/// The same when it is not the first of its size: memory is there already.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn most_can_be_matched_again(bencher: Bencher<'_, '_>) {
    let input = || {
        let (mut matcher, mut notices) = filled(RELAXING, 1);
        // The first rooms end with their seats, the tickets are forgotten.
        tick(&mut matcher, &mut notices, START_MS + TICK_MS);
        let later = START_MS + 12 * TICK_MS;
        (0..1_000).for_each(|_| matcher.handle_timeout(WallMs(later), &mut notices));
        fill(&mut matcher, &mut notices, later + FIRST_MS - START_MS, |rng, number| ticket(rng, number, 1));
        (matcher, notices)
    };
    bencher.with_inputs(input).bench_local_refs(|(matcher, notices)| {
        tick(matcher, notices, START_MS + 13 * TICK_MS);
        assert!(matcher.counts().rooms > TICKETS as usize / 11);
    });
}

/// Kinds of pools in which nothing can be matched.
#[derive(Clone, Copy, Debug)]
enum Unmatchable {
    /// Parties of four: two do not fit on a side of five, and no smaller party arrives.
    Sizes,
    /// No player takes a position that each side needs.
    Roles,
    /// Everybody is out of everybody's range.
    Ranges,
}

const UNMATCHABLE: [Unmatchable; 3] = [Unmatchable::Sizes, Unmatchable::Roles, Unmatchable::Ranges];

impl Unmatchable {
    fn filled(self) -> (Matcher, Notices) {
        let positions = r#", "positions": [{"name": "damage", "per_side_max": 5}, {"name": "healer", "per_side_min": 1, "per_side_max": 5}]"#;
        match self {
            Unmatchable::Sizes => filled("", 4),
            Unmatchable::Roles => filled_with(positions, |rng, number| {
                ticket_of(rng, number, 1, None, |player| player.str(5, "damage"))
            }),
            Unmatchable::Ranges => filled_with("", |rng, number| {
                ticket_of(rng, number, 1, Some(10.0 * number as f64), |player| player)
            }),
        }
    }
}

#[divan::bench(sample_count = 5, sample_size = 1, args = UNMATCHABLE)]
fn none_can_be_matched_first(bencher: Bencher<'_, '_>, kind: Unmatchable) {
    bencher.with_inputs(|| kind.filled()).bench_local_refs(|(matcher, notices)| {
        tick(matcher, notices, START_MS + TICK_MS);
        assert_eq!(matcher.counts().rooms, 0);
    });
}

#[divan::bench(sample_count = 5, sample_size = 1, args = UNMATCHABLE)]
fn none_can_be_matched_later(bencher: Bencher<'_, '_>, kind: Unmatchable) {
    let input = || {
        let (mut matcher, mut notices) = kind.filled();
        tick(&mut matcher, &mut notices, START_MS + TICK_MS);
        (matcher, notices)
    };
    bencher.with_inputs(input).bench_local_refs(|(matcher, notices)| {
        tick(matcher, notices, START_MS + 2 * TICK_MS);
    });
}
