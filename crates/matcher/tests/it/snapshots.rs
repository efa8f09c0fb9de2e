//! A matcher that was restored from a snapshot and one that went on do the same from then on.

use throng_matcher::record::{Input, write_record};
use throng_matcher::{
    Caller, Config, Handled, HookPoint, Matcher, ModeRules, Notices, Scope, Select, Verdict, WallMs,
};
use throng_stdx::Rng;
use throng_wire::matcher::{Method, Reader, Status, Writer, method};

use crate::world::{START, player, role, team};

/// Inputs before the snapshot, and those that are compared after it.
const BEFORE: usize = 3_000;
const AFTER: usize = 10_000;

const QUEUES: [&str; 4] = [
    r#"{"name": "duel", "tick_ms": 100, "sides": [{"name": "side", "count": 2, "min": 1, "max": 2}], "timeout_s": 20,
        "attributes": {"level": {"type": "number", "default": 0}, "mode": {"type": "string", "default": "a"}},
        "rules": [{"name": "near", "type": "near", "key": "level", "max": 3}, {"type": "equal", "key": "mode"}],
        "expand": [{"target": "rules.near.max", "steps": [{"after_s": 3, "value": 30}]}], "scan_limit": 16,
        "accept": {"required": true, "timeout_s": 2, "on_silence": "requeue", "cooldown_s": 1},
        "updates_s": 1, "backfill": {"ack_s": 3}}"#,
    r#"{"name": "party", "tick_ms": 200, "sides": [{"name": "red", "min": 2, "max": 3}, {"name": "blue", "min": 2, "max": 3}],
        "rating": {"pool": "p"}, "attributes": {"level": {"type": "number", "default": 0}},
        "rules": [{"type": "latency", "max_ms": 80}], "positions": [{"name": "tank", "per_side_min": 1, "per_side_max": 3}, {"name": "any", "per_side_max": 3}],
        "timeout_s": 9, "seat_ttl_s": 3, "assign": "external", "assign_timeout_s": 2, "allocator": "s1", "backfill": {"ack_s": 5}}"#,
    r#"{"name": "plain", "tick_ms": 100, "sides": [{"name": "all", "min": 3, "max": 4}], "timeout_s": 30, "seat_ttl_s": 2, "backfill": {}}"#,
    r#"{"name": "judged", "tick_ms": 100, "sides": [{"name": "all", "min": 2, "max": 2}], "assign": "policy", "timeout_s": 20}"#,
];

pub(crate) fn config() -> Config {
    let policy = ModeRules { capacity: 3, policy: "p".to_owned(), ..ModeRules::default() };
    let random = ModeRules { capacity: 4, select: Select::Random, keep_empty: true, ..ModeRules::default() };
    let judged = ModeRules { capacity: 0, policy_points: vec![HookPoint::OnCreate], ..policy.clone() };
    let asked = ModeRules { policy_points: vec![HookPoint::OnAddingRoles], ..policy };
    let modes = [("asked".to_owned(), asked), ("judged".to_owned(), judged), ("random".to_owned(), random)];
    Config { modes: modes.into(), presence_grace_ms: 3_000, key_ttl_ms: 5_000, ..Config::default() }
}

/// Effects of an input, without indexes.
type Done = (Option<Handled>, Vec<u8>, Vec<(Vec<u8>, Vec<u8>, bool)>, Option<WallMs>, String);

fn apply(matcher: &mut Matcher, now: u64, input: Input<'_>) -> Done {
    let (mut answer, mut notices) = (Vec::new(), Notices::default());
    let handled = matcher.apply(WallMs(now), input, &mut answer, &mut notices);
    let told = notices.iter().map(|notice| {
        let server = matcher.server_name(notice.server).unwrap_or(b"?").to_vec();
        (server, notice.entry.to_vec(), notice.collapse != 0)
    });
    let told = told.collect();
    let questions: Vec<_> = std::iter::from_fn(|| matcher.poll_question()).collect();
    let answered: Vec<_> = std::iter::from_fn(|| matcher.poll_answered()).collect();
    (handled, answer, told, matcher.next_timeout(), format!("{questions:?} {answered:?}"))
}

/// Inputs by chance about few enough roles and servers that they meet.
pub(crate) struct Source {
    rng: Rng,
    now: u64,
    ids: Vec<Vec<u8>>,
    asked: u64,
    /// Inputs as a log.
    pub(crate) recorded: Vec<u8>,
    sequence: u64,
}

impl Source {
    pub(crate) fn new(seed: u64) -> Source {
        let (ids, recorded) = (Vec::new(), Vec::new());
        Source { rng: Rng::new(seed), now: START, ids, asked: 0, recorded, sequence: 0 }
    }

    pub(crate) fn log(&mut self, input: Input<'_>) {
        write_record(&mut self.recorded, self.sequence, self.now, input);
        self.sequence += 1;
    }

    pub(crate) fn put_queues(&mut self, all: &mut [Matcher]) {
        for queue in QUEUES {
            let body = Writer::new().str(1, queue).into_bytes();
            let (scope, method) = (Scope::Admin, Method::PUT_QUEUE);
            let (handled, answer) = self.give(all, Input::Request { srv: "s0", scope, method, body: &body });
            assert_eq!(handled, Some(Handled::Done(Status::Ok)), "{}", answer.escape_ascii());
        }
    }

    fn id(&mut self) -> Vec<u8> {
        let at = self.rng.below(self.ids.len().max(1) as u64) as usize;
        self.ids.get(at).cloned().unwrap_or_default()
    }

    fn request(&mut self) -> (u16, Writer) {
        let who = format!("r{}", self.rng.below(40));
        let (id, other) = (self.id(), self.id());
        let queue = ["duel", "party", "plain", "judged"][self.rng.below(4) as usize];
        let mode = ["2v2", "asked", "random", "1v1"][self.rng.below(4) as usize];
        match self.rng.below(24) {
            0..=5 => {
                let level = self.rng.below(12).to_string();
                let latency = Writer::new().str(1, ["eu", "us"][self.rng.below(2) as usize]).f64(2, 30.0);
                let own = player(&who, &[("level", &level)]).nested(4, latency);
                let mut party = Writer::new().str(1, queue).nested(2, own);
                if self.rng.chance(0.3) {
                    party = party.nested(2, player(&format!("r{}", self.rng.below(40)), &[]));
                }
                (Method::CREATE_TICKET, party)
            }
            6 => (Method::CANCEL_TICKET, Writer::new().bytes(1, &id)),
            7 => {
                let yes = u64::from(self.rng.chance(0.8));
                (Method::ACCEPT_MATCH, Writer::new().bytes(1, &id).bytes(2, &other).str(3, &who).u64(4, yes))
            }
            8..=10 => {
                let to = Writer::new().str(1, mode);
                (Method::ROLE_JOIN_RANDOM_ROOM, Writer::new().nested(1, role(&who)).nested(2, to))
            }
            11 => (Method::ROLE_LEAVE_ROOM, Writer::new().str(1, &who).bytes(2, &id)),
            12 => (Method::CREATE_TEAM, Writer::new().nested(1, role(&who)).nested(2, team(3, "x"))),
            13 => {
                let password = ["x", "y"][self.rng.below(2) as usize];
                (Method::JOIN_TEAM, Writer::new().nested(1, role(&who)).bytes(2, &id).str(3, password))
            }
            14 => (Method::LEAVE_TEAM, Writer::new().str(1, &who).bytes(2, &id)),
            15 => (Method::CLAIM_SEAT, Writer::new().bytes(1, &id).str(2, &who)),
            16 => (Method::SET_ROOM_DATA, Writer::new().bytes(1, &id).str(2, "k").str(3, "[1]")),
            17 => {
                let side = ["side", "red", "all"][self.rng.below(3) as usize];
                let open = Writer::new().str(1, side).u64(2, 1);
                (Method::START_BACKFILL, Writer::new().bytes(1, &id).str(2, queue).nested(3, open))
            }
            18 => (Method::ACK_BACKFILL, Writer::new().bytes(1, &id)),
            19 => (Method::ASSIGN_MATCH, Writer::new().bytes(1, &id).str(2, "h:1")),
            20 => {
                let side = |name: &str, rank| Writer::new().str(1, name).u64(2, rank);
                let loser = format!("r{}", self.rng.below(40));
                let result = Writer::new().bytes(2, &id).nested(3, side(&who, 1)).nested(3, side(&loser, 2));
                (Method::REPORT_RESULT, result.str(6, "p"))
            }
            21 => (Method::DELETE_ROOM, Writer::new().bytes(1, &other)),
            22 => (Method::STOP_BACKFILL, Writer::new().bytes(1, &id)),
            _ => (
                Method::PUT_QUEUE,
                Writer::new().str(1, &QUEUES[2].replace("30,", &format!("{},", 30 + self.rng.below(2)))),
            ),
        }
    }

    /// The next input, given to all. They answer the same.
    pub(crate) fn step(&mut self, all: &mut [Matcher]) -> (Option<Handled>, Vec<u8>) {
        self.now += if self.rng.chance(0.02) { self.rng.below(6_000) } else { self.rng.below(60) };
        let now = self.now;
        let srv = format!("s{}", self.rng.below(5));
        if all[0].next_timeout().is_some_and(|at| at <= WallMs(now)) {
            return self.give(all, Input::Timeout);
        }
        if self.rng.chance(0.02) {
            let up = self.rng.chance(0.6);
            return self.give(all, Input::Session { srv: &srv, up });
        }
        if self.rng.chance(0.05) && self.asked > 0 {
            let refusal = Verdict::refusal("no").to_bytes();
            let verdict = [None, Some(&[][..]), Some(&refusal[..])][self.rng.below(3) as usize];
            let id = self.asked - self.rng.below(4).min(self.asked);
            return self.give(all, Input::Verdict { id, verdict });
        }
        let (method, mut body) = self.request();
        if self.rng.chance(0.2) {
            let mut key = [0; 16];
            key[0] = self.rng.below(50) as u8;
            body = body.bytes(throng_wire::matcher::REQUEST_KEY_FIELD, &key);
        }
        let body = body.into_bytes();
        let scope = if self.rng.chance(0.5) { Scope::Server } else { Scope::Admin };
        self.give(all, Input::Request { srv: &srv, scope, method, body: &body })
    }

    fn give(&mut self, all: &mut [Matcher], input: Input<'_>) -> (Option<Handled>, Vec<u8>) {
        self.log(input);
        let now = self.now;
        let mut done = all.iter_mut().map(|matcher| apply(matcher, now, input));
        let first = done.next().unwrap();
        for other in done {
            assert_eq!(other, first, "{input:?}");
        }
        if let Some(Handled::Waits(number)) = first.0 {
            self.asked = number + 1;
        }
        if let Ok(made) = Reader::new(&first.1).and_then(|answer| answer.nested(1)) {
            self.ids.push(made.bytes(1).to_vec());
        }
        if let Ok(answer) = Reader::new(&first.1) {
            self.ids.extend(
                [1, 2].map(|field| answer.bytes(field).to_vec()).into_iter().filter(|id| id.len() == 24),
            );
        }
        // Ids of matches and rooms come in notices.
        for (_, entry, _) in &first.2 {
            let hex = |window: &[u8]| {
                window.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
            };
            self.ids.extend(entry.windows(24).filter(|window| hex(window)).take(2).map(<[u8]>::to_vec));
        }
        if self.ids.len() > 80 {
            self.ids.drain(..40);
        }
        (first.0, first.1)
    }
}

fn ask_all(matcher: &mut Matcher, now: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for number in 0..40 {
        for (number, body) in [
            (Method::GET_ROLE, Writer::new().str(1, &format!("r{number}"))),
            (Method::LIST_TICKETS, Writer::new().str(2, "duel")),
            (Method::GET_QUEUE_STATS, Writer::new().str(1, "plain")),
        ] {
            assert!(!method(number).unwrap().mutates);
            let (mut answer, mut notices) = (Vec::new(), Notices::default());
            let caller = Caller { srv: "s0", scope: Scope::Admin };
            matcher.handle(WallMs(now), caller, number, &body.into_bytes(), &mut answer, &mut notices);
            all.push(answer);
        }
    }
    all
}

#[test]
fn a_restored_matcher_and_one_that_went_on_answer_the_next_inputs_alike() {
    for seed in 0..24 {
        let mut source = Source::new(seed);
        let mut all = vec![Matcher::new(config(), [seed as u8; 32], WallMs(START))];
        source.put_queues(&mut all);
        for _ in 0..BEFORE {
            source.step(&mut all);
            all[0].check_invariants().unwrap();
        }
        let restored = Matcher::restore(&all[0].snapshot()).unwrap();
        all.push(restored);
        for step in 0..AFTER {
            source.step(&mut all);
            if step % 500 == 0 {
                let (left, right) = all.split_at_mut(1);
                assert_eq!(left[0].digest(), right[0].digest(), "seed {seed}, input {step}");
                assert_eq!(ask_all(&mut left[0], source.now), ask_all(&mut right[0], source.now));
                right[0].check_invariants().unwrap();
                // The one is restored again and again, the other never.
                right[0] = Matcher::restore(&right[0].snapshot()).unwrap();
            }
        }
        let stats = all[0].stats();
        assert!(stats.rooms_created > 100, "{stats:?}");
        let made: u64 = all[0].queue_reports(9).iter().map(|queue| queue.matches).sum();
        assert!(made > 10, "{made} matches");
    }
}
