//! The conversation with a matcher, byte by byte.

use std::time::Duration;

use throng_client::{CallError, Instant, MatcherConfig, MatcherEvent, MatcherSession};
use throng_wire::matcher::{
    Event, FrameSplit, Header, Kind, Method, REQUEST_KEY_FIELD, Reader, Status, Writer, split,
};

const NOW: Instant = Instant::ZERO;

fn frame(header: Header, body: Writer) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(&mut bytes, &body.into_bytes());
    bytes
}

fn hello_ack(epoch: u64, first: u64, resumed: bool) -> Vec<u8> {
    let body = Writer::new().u64(1, 1).str(2, "m").u64(3, epoch).u64(4, first).u64(6, u64::from(resumed));
    frame(Header { kind: Kind::HelloAck, ..Header::default() }, body)
}

fn notify(last: u64, roles: &[&str]) -> Vec<u8> {
    let entry = |role: &&str| {
        let joined = Writer::new().str(2, role).str(20, "room");
        Writer::new().str(1, role).nested(Event::ROLES_JOIN_ROOM, joined)
    };
    let body = roles.iter().map(entry).fold(Writer::new(), |body, entry| body.nested(1, entry));
    frame(Header { kind: Kind::Notify, id: last, ..Header::default() }, body)
}

fn sent(session: &mut MatcherSession) -> Vec<(Header, Vec<u8>)> {
    let mut bytes = Vec::new();
    session.poll_transmit(&mut bytes);
    let (mut at, mut frames) = (0, Vec::new());
    while let FrameSplit::Whole { header, body, used } = split(&bytes[at..], 1 << 20).unwrap() {
        frames.push((header, body.to_vec()));
        at += used;
    }
    frames
}

fn events(session: &mut MatcherSession) -> Vec<MatcherEvent> {
    std::iter::from_fn(|| session.poll_event()).collect()
}

fn roles(events: &[MatcherEvent]) -> Vec<String> {
    let role = |event: &MatcherEvent| match event {
        MatcherEvent::Notice(notice) => Some(notice.roles.concat()),
        _ => None,
    };
    events.iter().filter_map(role).collect()
}

fn open() -> MatcherSession {
    let mut session = MatcherSession::new(MatcherConfig::new("s").token("t"));
    session.handle_connected(NOW);
    let hello = sent(&mut session);
    assert_eq!(hello[0].0.kind, Kind::Hello);
    let body = Reader::new(&hello[0].1).unwrap();
    assert_eq!((body.u64(1), body.str(2).unwrap(), body.str(4).unwrap()), (1, "s", "t"));
    session.handle_bytes(&hello_ack(7, 1, false));
    assert_eq!(events(&mut session), [MatcherEvent::Connected { resumed: false }]);
    session
}

#[test]
fn answers_find_their_calls_however_they_are_cut() {
    let mut session = open();
    let first = session.call(NOW, Method::PING, Writer::new()).unwrap();
    let second = session.call(NOW, Method::GET_ROOM_INFO, Writer::new().str(1, "x")).unwrap();
    let asked = sent(&mut session);
    assert_eq!((asked[0].0.code, asked[1].0.code), (Method::PING, Method::GET_ROOM_INFO));
    let answer = |id, code: Status, body| {
        frame(Header { kind: Kind::Response, id, code: code as u16, ..Header::default() }, body)
    };
    let detail = Writer::new().str(1, "RoomID").str(2, "\"x\"");
    let refusal = Writer::new().str(1, "no such room").nested(2, detail);
    let mut bytes = answer(asked[1].0.id, Status::NotFound, refusal);
    bytes.extend(answer(asked[0].0.id, Status::Ok, Writer::new()));
    // An answer that nobody waits for.
    bytes.extend(answer(99, Status::Ok, Writer::new()));
    for byte in bytes {
        session.handle_bytes(&[byte]);
    }
    let refused = CallError::Refused {
        status: Status::NotFound,
        message: "no such room".to_owned(),
        detail: vec![("RoomID".to_owned(), "\"x\"".to_owned())],
    };
    let wanted = [
        MatcherEvent::Answered { call: second, result: Err(refused) },
        MatcherEvent::Answered { call: first, result: Ok(Default::default()) },
    ];
    assert_eq!(events(&mut session), wanted);
}

#[test]
fn a_call_is_made_again_with_its_key_and_asks_do_not_need_one() {
    let mut session = open();
    session.call(NOW, Method::DELETE_ROOM, Writer::new().str(1, "x")).unwrap();
    session.call(NOW, Method::PING, Writer::new()).unwrap();
    let first = sent(&mut session);
    let key = |body: &[u8]| Reader::new(body).unwrap().bytes(REQUEST_KEY_FIELD).to_vec();
    assert_eq!((key(&first[0].1).len(), key(&first[1].1).len()), (16, 0));
    session.handle_closed();
    assert_eq!(events(&mut session), [MatcherEvent::Lost]);
    session.call(NOW, Method::DELETE_ROOM, Writer::new().str(1, "x")).unwrap();
    session.handle_connected(NOW);
    assert_eq!(sent(&mut session).len(), 1, "only the hello");
    session.handle_bytes(&hello_ack(7, 1, true));
    let again = sent(&mut session);
    assert_eq!(again[..2], first[..], "the very same");
    assert_ne!(key(&again[2].1), key(&again[0].1), "every call has its own key");
}

#[test]
fn notifications_are_acknowledged_when_they_were_taken_and_go_on_where_they_were() {
    let mut session = open();
    session.handle_bytes(&notify(2, &["a", "b"]));
    session.handle_bytes(&notify(3, &["c"]));
    assert!(sent(&mut session).is_empty(), "nobody took them yet");
    assert_eq!(roles(&[session.poll_event().unwrap(), session.poll_event().unwrap()]), ["a", "b"]);
    let acks = |session: &mut MatcherSession| -> Vec<u64> {
        let frames = sent(session);
        assert!(frames.iter().all(|(header, _)| header.kind == Kind::NotifyAck));
        frames.iter().map(|(header, _)| header.id).collect()
    };
    assert_eq!(acks(&mut session), [2]);
    assert_eq!(roles(&events(&mut session)), ["c"]);
    assert_eq!(acks(&mut session), [3]);
    session.handle_closed();
    session.handle_connected(NOW);
    let hello = sent(&mut session);
    let body = Reader::new(&hello[0].1).unwrap();
    assert_eq!((body.u64(5), body.u64(6)), (3, 7), "the last number and its epoch");
    session.handle_bytes(&hello_ack(7, 4, true));
    session.handle_bytes(&notify(4, &["d"]));
    let events = events(&mut session);
    assert_eq!(events[1], MatcherEvent::Connected { resumed: true });
    assert_eq!(roles(&events), ["d"]);
}

#[test]
fn missing_notifications_are_said_to_be_missing() {
    let mut session = open();
    session.handle_bytes(&notify(1, &["a"]));
    // Slower than the matcher may wait for.
    session.handle_bytes(&hello_ack(8, 1, false));
    session.handle_bytes(&notify(1, &["b"]));
    let seen = events(&mut session);
    assert_eq!((roles(&seen), &seen[1]), (vec!["a".to_owned(), "b".to_owned()], &MatcherEvent::Gap));
    session.handle_closed();
    session.handle_connected(NOW);
    session.handle_bytes(&hello_ack(9, 1, false));
    let seen = events(&mut session);
    assert_eq!(seen, [MatcherEvent::Lost, MatcherEvent::Connected { resumed: false }, MatcherEvent::Gap]);
}

#[test]
fn what_takes_too_long_ends() {
    let mut session = MatcherSession::new(MatcherConfig::new("s"));
    let call = session.call(NOW, Method::PING, Writer::new()).unwrap();
    session.handle_connected(NOW);
    let hello = NOW + Duration::from_secs(5);
    assert_eq!(session.next_timeout(), Some(hello));
    session.handle_timeout(hello);
    assert_eq!(events(&mut session), [MatcherEvent::Lost]);
    let late = session.next_timeout().unwrap();
    session.handle_timeout(late);
    let timeout = MatcherEvent::Answered { call, result: Err(CallError::Timeout) };
    assert_eq!((events(&mut session), session.next_timeout()), (vec![timeout], None));
}

#[test]
fn a_goodbye_for_good_ends_every_call_and_one_for_a_restart_none() {
    let goaway = |status: Status| {
        let body = Writer::new().u64(1, status as u64).str(2, "bye");
        frame(Header { kind: Kind::Goaway, ..Header::default() }, body)
    };
    let mut session = open();
    let call = session.call(NOW, Method::PING, Writer::new()).unwrap();
    // One that has no lease on its area yet says so, or the one that waits for it.
    for status in [Status::Draining, Status::Unavailable] {
        session.handle_bytes(&goaway(status));
        assert_eq!(events(&mut session), [MatcherEvent::Lost], "{status:?}");
        session.handle_connected(NOW);
    }
    session.handle_bytes(&goaway(Status::Unauthenticated));
    let refused = MatcherEvent::Refused { status: Status::Unauthenticated, message: "bye".to_owned() };
    let ended = MatcherEvent::Answered { call, result: Err(CallError::Closed) };
    assert_eq!(events(&mut session), [ended, refused]);
    assert_eq!(session.call(NOW, Method::PING, Writer::new()), Err(CallError::Closed));
    // A session that was never open is not kept open.
    let mut session = MatcherSession::new(MatcherConfig::new("s"));
    session.handle_connected(NOW);
    session.handle_bytes(&goaway(Status::Unavailable));
    assert!(session.is_over());
}

#[test]
fn any_bytes_end_the_connection_at_worst() {
    for seed in 0..=255_u8 {
        let mut session = open();
        let bytes: Vec<u8> = (0..200_u8).map(|index| index.wrapping_mul(31).wrapping_add(seed)).collect();
        session.handle_bytes(&bytes);
        let mut frame = hello_ack(7, 1, false);
        frame[usize::from(seed) % 24] ^= seed;
        session.handle_connected(NOW);
        session.handle_bytes(&frame);
        events(&mut session);
    }
}
