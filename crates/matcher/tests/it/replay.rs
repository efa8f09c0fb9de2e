//! A log of inputs gives the identical state, wherever it is cut, whatever was read in between.

use crate::world;

use throng_matcher::{Caller, Config, Matcher, Notices, Scope, WallMs};
use throng_stdx::Rng;
use throng_wire::matcher::{Method, Writer};
use world::{START, player, role};

const QUEUE: &str = r#"{"name": "q", "sides": [{"name": "side", "count": 2, "min": 1, "max": 2}], "timeout_s": 20,
    "attributes": {"level": {"type": "number", "default": 0}}, "rating": {"pool": "p"},
    "rules": [{"name": "near", "type": "near", "key": "level", "max": 3}],
    "expand": [{"target": "rules.near.max", "steps": [{"after_s": 3, "value": 30}]}],
    "accept": {"required": true, "timeout_s": 2, "on_silence": "requeue", "cooldown_s": 1}, "backfill": {"ack_s": 3}}"#;

/// An input as the journal has it.
#[derive(Clone, Debug)]
enum Input {
    Request(u16, Vec<u8>),
    Session(String, bool),
    Timeout,
}

struct Run {
    matcher: Matcher,
    notices: Notices,
    log: Vec<(u64, Input)>,
}

impl Run {
    fn new() -> Run {
        let matcher = Matcher::new(Config::default(), [4; 32], WallMs(START));
        Run { matcher, notices: Notices::default(), log: Vec::new() }
    }

    fn apply(&mut self, now: u64, input: Input) -> Vec<u8> {
        let mut answer = Vec::new();
        match &input {
            Input::Request(method, body) => {
                let caller = Caller { srv: "s0", scope: Scope::Admin };
                self.matcher.handle(WallMs(now), caller, *method, body, &mut answer, &mut self.notices);
            }
            Input::Session(srv, up) => {
                self.matcher.handle_session(WallMs(now), srv, *up, &mut self.notices);
            }
            Input::Timeout => self.matcher.handle_timeout(WallMs(now), &mut self.notices),
        }
        self.notices.clear();
        self.log.push((now, input));
        answer
    }

    fn replay(log: &[(u64, Input)]) -> Run {
        let mut run = Run::new();
        for (now, input) in log {
            run.apply(*now, input.clone());
        }
        run
    }
}

/// Anything that changes something, about few enough roles that they meet.
fn request(rng: &mut Rng, known: &[Vec<u8>]) -> (u16, Vec<u8>) {
    let id = format!("r{}", rng.below(24));
    let any =
        |rng: &mut Rng| known.get(rng.below(known.len().max(1) as u64) as usize).cloned().unwrap_or_default();
    let body = match rng.below(9) {
        0..=3 => {
            let level = rng.below(12).to_string();
            let party = Writer::new().str(1, "q").nested(2, player(&id, &[("level", &level)]));
            return (Method::CREATE_TICKET, party.into_bytes());
        }
        4 => (Method::CANCEL_TICKET, Writer::new().bytes(1, &any(rng))),
        5 => (
            Method::ROLE_JOIN_RANDOM_ROOM,
            Writer::new().nested(1, role(&id)).nested(2, Writer::new().str(1, "2v2")),
        ),
        6 => (Method::CREATE_TEAM, Writer::new().nested(1, role(&id)).nested(2, world::team(3, ""))),
        7 => (Method::CLAIM_SEAT, Writer::new().bytes(1, &any(rng)).str(2, &id)),
        _ => (
            Method::PUT_QUEUE,
            Writer::new().str(1, &QUEUE.replace("20,", &format!("{},", 20 + rng.below(2)))),
        ),
    };
    (body.0, body.1.into_bytes())
}

/// Runs `count` inputs with reads between them, at times that jump, also back.
fn random_run(seed: u64, count: usize) -> Run {
    let (mut run, mut rng, mut now) = (Run::new(), Rng::new(seed), START);
    run.apply(now, Input::Request(Method::PUT_QUEUE, Writer::new().str(1, QUEUE).into_bytes()));
    let mut known: Vec<Vec<u8>> = Vec::new();
    while run.log.len() < count {
        match rng.below(40) {
            0 => now = now.saturating_sub(rng.below(2_000)),
            1 => now += rng.below(15_000),
            _ => now += rng.below(120),
        }
        if run.matcher.next_timeout().is_some_and(|at| at <= WallMs(now)) {
            run.apply(now, Input::Timeout);
            continue;
        }
        if rng.chance(0.02) {
            run.apply(now, Input::Session(format!("s{}", rng.below(2)), rng.chance(0.5)));
            continue;
        }
        // Reads are not in the log. They see later times than the inputs around them, and must
        // leave no trace.
        let mut read = Vec::new();
        let caller = Caller { srv: "s0", scope: Scope::Admin };
        let list = Writer::new().str(2, "q").into_bytes();
        run.matcher.handle(
            WallMs(now + 700),
            caller,
            Method::LIST_TICKETS,
            &list,
            &mut read,
            &mut run.notices,
        );
        assert!(run.notices.is_empty());
        let (method, body) = request(&mut rng, &known);
        let answer = run.apply(now, Input::Request(method, body));
        if let Ok(made) = throng_wire::matcher::Reader::new(&answer).and_then(|answer| answer.nested(1)) {
            known.push(made.bytes(1).to_vec());
            known.push(made.bytes(12).to_vec());
        }
        if known.len() > 60 {
            known.drain(..30);
        }
    }
    run
}

#[test]
fn a_log_replays_to_the_identical_state() {
    for seed in 0..8 {
        let run = random_run(seed, 3_000);
        assert_eq!(Run::replay(&run.log).matcher.digest(), run.matcher.digest(), "seed {seed}");
    }
}

/// A restart after every single input, from a snapshot and from the log: the same state, and one
/// that goes on.
#[test]
fn a_restart_at_every_boundary_of_the_log_loses_nothing() {
    let run = random_run(99, 700);
    let mut again = Run::new();
    for (at, (now, input)) in run.log.iter().enumerate() {
        again.apply(*now, input.clone());
        let snapshot = again.matcher.snapshot();
        let mut restored = Matcher::restore(&snapshot).unwrap();
        assert_eq!(restored.digest(), again.matcher.digest(), "input {at}");
        let before = restored.counts();
        let mut notices = Notices::default();
        restored.handle_recovered(WallMs(*now), &mut notices);
        // Nothing that lasts is lost: tickets search again, rooms and teams are what they were.
        if restored.next_timeout().is_none_or(|due| due > WallMs(*now)) {
            assert!(restored.counts().tickets <= before.tickets, "input {at}");
            assert_eq!(restored.counts().teams, before.teams, "input {at}");
        }
        // And it goes on: whatever is due in the next minute fires.
        let mut then = *now;
        while let Some(due) = restored.next_timeout().filter(|due| *due <= WallMs(*now + 60_000)) {
            then = then.max(due.0);
            restored.handle_timeout(WallMs(then), &mut notices);
        }
        // Going on from the restored state is going on from the original.
        again.matcher = Matcher::restore(&snapshot).unwrap();
    }
    assert_eq!(again.matcher.digest(), run.matcher.digest());
}
