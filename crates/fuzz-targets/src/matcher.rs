//! Targets for the matcher: frames, requests with any bodies, rule sets, snapshots, JSON bodies,
//! records of the journal.

use throng_matcher::record::{Input, next_record, parse_input, read_record, write_record};
use throng_matcher::{Caller, Config, Matcher, Notices, QueueRules, Scope, WallMs, json};
use throng_wire::matcher::{FRAME_BODY_BYTES_MAX, FrameSplit, METHODS, Method, Reader, Writer, split};

const START: u64 = 1_700_000_000_000;
/// Inputs of one run.
const REQUESTS_MAX: usize = 64;

/// Frames of a stream: each whole one lies within what was given, and none is longer than the
/// limit.
pub fn matcher_frame(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(FrameSplit::Whole { header, body, used }) = split(rest, FRAME_BODY_BYTES_MAX) {
        assert!(used <= rest.len() && body.len() <= FRAME_BODY_BYTES_MAX);
        let mut again = Vec::new();
        header.write(&mut again, body);
        assert!(split(&again, FRAME_BODY_BYTES_MAX).is_ok(), "what was read can be written");
        let _ = Reader::new(body);
        rest = &rest[used..];
    }
}

/// Requests: method, length, body, time that passes. Whatever they are, a snapshot gives the
/// identical state back.
pub fn matcher_request(bytes: &[u8]) {
    let queue = QueueRules::parse(SEED_RULES.as_bytes()).expect("the seed is a rule set");
    let config = Config { queues: vec![queue], ..Config::default() };
    let mut matcher = Matcher::new(config, [1; 32], WallMs(START));
    let (mut notices, mut now, mut rest) = (Notices::default(), START, bytes);
    for _ in 0..REQUESTS_MAX {
        let [method, len, passes, tail @ ..] = rest else { break };
        let (body, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        let number = METHODS[usize::from(*method) % METHODS.len()].number;
        let caller = Caller { srv: "s", scope: Scope::Admin };
        matcher.handle(WallMs(now), caller, number, body, &mut Vec::new(), &mut notices);
        now += u64::from(*passes) * 10;
        for _ in 0..64 {
            if matcher.next_timeout().is_none_or(|at| at > WallMs(now)) {
                break;
            }
            matcher.handle_timeout(WallMs(now), &mut notices);
        }
        notices.clear();
    }
    let again = Matcher::restore(&matcher.snapshot()).expect("its own snapshot");
    assert_eq!(again.digest(), matcher.digest());
}

/// A rule set: refused with a path, or one under which tickets can wait and ticks pass.
pub fn matcher_rules(bytes: &[u8]) {
    let rules = match QueueRules::parse(bytes) {
        Ok(rules) => rules,
        Err(problem) => {
            assert!(!problem.reason.is_empty());
            return;
        }
    };
    let name = rules.name().to_owned();
    let config = Config { queues: vec![rules], ..Config::default() };
    let mut matcher = Matcher::new(config, [1; 32], WallMs(START));
    let mut notices = Notices::default();
    for number in 0..12 {
        let caller = Caller { srv: "s", scope: Scope::Server };
        let player = Writer::new().str(1, &format!("r{number}"));
        let latency = Writer::new().str(1, "eu").f64(2, 20.0);
        let body = Writer::new().str(1, &name).nested(2, player.nested(4, latency)).into_bytes();
        matcher.handle(WallMs(START), caller, Method::CREATE_TICKET, &body, &mut Vec::new(), &mut notices);
    }
    for step in 1..40 {
        matcher.handle_timeout(WallMs(START + step * 500), &mut notices);
    }
    let again = Matcher::restore(&matcher.snapshot()).expect("its own snapshot");
    assert_eq!(again.digest(), matcher.digest());
}

/// A snapshot from a file: refused, or a state that can be written again.
pub fn matcher_snapshot(bytes: &[u8]) {
    if let Ok(matcher) = Matcher::restore(bytes) {
        let _ = matcher.snapshot();
    }
}

/// A body of the HTTP interface. The first byte names the method. JSON that is taken comes back as
/// JSON that says the same when it is taken again; with the first byte's top bit set, the rest is
/// an answer's body, which gives JSON whatever it is.
pub fn matcher_json(bytes: &[u8]) {
    let Some((method, rest)) = bytes.split_first() else { return };
    let message = &METHODS[usize::from(method & 0x7F) % METHODS.len()];
    let mut text = String::new();
    if method & 0x80 != 0 {
        json::decode(message.response, rest, &mut text);
        assert!(is_json(&text) && is_json(&json::problem("CODE", rest)) && is_json(&json::batch(1, 2, rest)));
        return;
    }
    let mut body = Vec::new();
    if let Err(why) = json::encode(message.request, rest, &mut body) {
        assert!(!why.is_empty());
        return;
    }
    json::decode(message.request, &body, &mut text);
    let (mut again, mut same) = (Vec::new(), String::new());
    let taken = json::encode(message.request, text.as_bytes(), &mut again);
    assert!(taken.is_ok(), "{taken:?}: {text}");
    json::decode(message.request, &again, &mut same);
    assert_eq!(text, same);
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// The journal of a matcher, whole or damaged: what is read can be written as it was, and the
/// search behind damage finds only what checks. The same bytes as the body of one record, whose
/// first byte is its type.
pub fn matcher_record(bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(record) = read_record(rest).or_else(|| {
        rest = &rest[next_record(rest, 0)?..];
        read_record(rest)
    }) {
        if let Some(input) = parse_input(record.kind, record.body) {
            same_record(record.sequence, record.time, input, &rest[..record.len]);
        }
        rest = &rest[record.len..];
    }
    if let Some((kind, body)) = bytes.split_first()
        && let Some(input) = parse_input(*kind, body)
    {
        let mut log = Vec::new();
        write_record(&mut log, 1, START, input);
        let record = read_record(&log).expect("what was written can be read");
        assert_eq!(parse_input(record.kind, record.body), Some(input));
    }
}

fn same_record(sequence: u64, time: u64, input: Input<'_>, was: &[u8]) {
    let mut again = Vec::new();
    write_record(&mut again, sequence, time, input);
    // A session's flag is one byte of which only one value says yes.
    assert!(again == was || matches!(input, Input::Session { up: false, .. }));
}

/// Rules of every kind.
const SEED_RULES: &str = r#"{"name": "q", "sides": [{"name": "a", "count": 2, "min": 1, "max": 2}],
    "attributes": {"level": {"type": "number", "default": 1}, "map": {"type": "string_list", "default": ["x"]}},
    "rules": [{"name": "near", "type": "near", "key": "skill", "max": 5}, {"type": "overlap", "key": "map"},
              {"type": "avoid"}, {"type": "balance", "key": "level", "max": 9, "weight": 0.5}],
    "rating": {"pool": "p"}, "accept": {"required": true}, "backfill": {},
    "expand": [{"target": "rules.near.max", "steps": [{"after_s": 5, "value": 50}]}]}"#;

/// Seeds of the corpora, as today's catalogue has them: target, input.
#[must_use]
pub fn matcher_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let player = |id: &str| Writer::new().str(1, id).nested(3, Writer::new().str(1, "map").str(2, "[\"x\"]"));
    let ticket = |id: &str| Writer::new().str(1, "q").nested(2, player(id)).into_bytes();
    let join = |id: &str| {
        Writer::new().nested(1, Writer::new().str(1, id)).nested(2, Writer::new().str(1, "1v1")).into_bytes()
    };
    let mut requests = Vec::new();
    let mut ask = |number: u16, body: &[u8], passes: u8| {
        let at = METHODS.iter().position(|method| method.number == number).unwrap_or_default();
        requests.extend([at as u8, body.len() as u8, passes]);
        requests.extend_from_slice(body);
    };
    for id in ["a", "b", "c"] {
        ask(Method::CREATE_TICKET, &ticket(id), 10);
        ask(Method::ROLE_JOIN_RANDOM_ROOM, &join(&id.to_uppercase()), 20);
    }
    ask(Method::LIST_TICKETS, &Writer::new().str(2, "q").into_bytes(), 255);
    ask(Method::GET_QUEUE_STATS, &Writer::new().str(1, "q").into_bytes(), 255);
    let mut frames = Vec::new();
    let header = throng_wire::matcher::Header { code: Method::CREATE_TICKET, id: 1, ..Default::default() };
    header.write(&mut frames, &ticket("a"));
    header.write(&mut frames, &join("b"));
    let snapshot = Matcher::new(Config::default(), [1; 32], WallMs(START)).snapshot();
    let role = r#"{"RoleID": "a", "FloatData": {"level": 1.5}, "StringData": {"n": "é"}, "Tags": {"t": {}}}"#;
    let create = r#"{"MatchMode": "2v2", "Data": {"k": [1, null]}}"#;
    let mut text =
        vec![METHODS.iter().position(|m| m.number == Method::ROLE_CREATE_ROOM).unwrap_or_default() as u8];
    text.extend_from_slice(format!(r#"{{"CreatorInfo": {role}, "CreateInfo": {create}}}"#).as_bytes());
    let mut log = Vec::new();
    let inputs = [
        Input::Begin { secret: [7; 32] },
        Input::Rules { number: 1, release: "0.1.0" },
        Input::Configure(b"{}"),
        Input::Request { srv: "s", scope: Scope::Admin, method: Method::CREATE_TICKET, body: &ticket("a") },
        Input::Session { srv: "s", up: true },
        Input::Timeout,
        Input::Recovered,
        Input::Durable(5),
        Input::Verdict { id: 3, verdict: Some(&[]) },
    ];
    for (sequence, input) in inputs.into_iter().enumerate() {
        write_record(&mut log, sequence as u64, START, input);
    }
    vec![
        ("matcher_frame", frames),
        ("matcher_json", text),
        ("matcher_record", log),
        ("matcher_request", requests),
        ("matcher_rules", SEED_RULES.as_bytes().to_vec()),
        ("matcher_snapshot", snapshot),
    ]
}
