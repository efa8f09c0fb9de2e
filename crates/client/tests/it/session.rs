//! The session against hand-made gateway answers.

use std::ops::ControlFlow;
use std::time::Duration;

use prost::Message as _;
use throng_client::{
    Access, AuthOutcome, ChannelId, ChannelType, CloseReason, CompressionPolicy, ConnId, CreateChannel,
    Event, Kind, RequestFailure, SendError, Session, SessionConfig, SubscribeOptions, TagForm, msg_type,
};
use throng_stdx::Instant;
use throng_wire::frame::{Form, FrameReader};
use throng_wire::{DataUpdate, Forward, FrameWriter, MessagePack, channeldpb as pb};

/// A message that the session sent.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    channel: u32,
    stub: u32,
    msg_type: u32,
    body: Vec<u8>,
}

struct Pair {
    now: Instant,
    session: Session,
    reader: FrameReader,
}

impl Pair {
    fn new(config: SessionConfig) -> Pair {
        let mut session = Session::new(config);
        session.handle_connected(Instant::ZERO);
        Pair { now: Instant::ZERO, session, reader: FrameReader::default() }
    }

    /// A session that has been admitted as connection 7.
    fn open(config: SessionConfig) -> Pair {
        let mut pair = Pair::new(config);
        pair.take_sent();
        pair.answer(0, 1, msg_type::AUTH, &pb::AuthResultMessage { conn_id: 7, ..Default::default() });
        assert_eq!(
            pair.session.poll_event(),
            Some(Event::Authenticated { conn: ConnId(7), recovering: false, resume_refused: false })
        );
        pair
    }

    fn take_sent(&mut self) -> Vec<Sent> {
        let mut bytes = Vec::new();
        while self.session.poll_transmit(self.now, &mut bytes).is_some() {}
        let mut sent = Vec::new();
        self.reader
            .feed(&bytes, &mut |packet| {
                sent.extend(packet.messages().map(|m| Sent {
                    channel: m.channel_id,
                    stub: m.stub_id,
                    msg_type: m.msg_type,
                    body: m.body.to_vec(),
                }));
                ControlFlow::Continue(())
            })
            .expect("the session writes good frames");
        sent
    }

    fn answer(&mut self, channel_id: u32, stub_id: u32, msg_type: u32, body: &impl prost::Message) {
        let bytes = frame(channel_id, stub_id, msg_type, body);
        self.session.handle_bytes(self.now, &bytes);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }
}

fn frame(channel_id: u32, stub_id: u32, msg_type: u32, body: &impl prost::Message) -> Vec<u8> {
    let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
    let head = MessagePack { channel_id, stub_id, msg_type, ..Default::default() };
    writer.push_message(&head, body, &mut bytes).expect("the body is small");
    writer.flush(&mut bytes);
    bytes
}

#[test]
fn authenticates_first_and_holds_the_rest_back() {
    let mut pair = Pair::new(SessionConfig::client("alice", "secret"));
    pair.session.send(ChannelId(3), 100, b"early").expect("connected");
    let sent = pair.take_sent();
    assert_eq!(sent.len(), 1);
    let auth = pb::AuthMessage::decode(sent[0].body.as_slice()).expect("an AuthMessage");
    assert_eq!((auth.player_identifier_token.as_str(), auth.login_token.as_str()), ("alice", "secret"));
    assert_eq!(auth.resume_token, None, "the extension is not used unless asked for");

    pair.answer(0, 1, msg_type::AUTH, &pb::AuthResultMessage { conn_id: 7, ..Default::default() });
    let sent = pair.take_sent();
    assert_eq!((sent.len(), sent[0].channel, sent[0].body.as_slice()), (1, 3, &b"early"[..]));
    assert_eq!(pair.session.conn(), Some(ConnId(7)));
}

#[test]
fn a_refused_authentication_may_be_tried_again() {
    let mut pair = Pair::new(SessionConfig::client("alice", "wrong"));
    pair.take_sent();
    pair.answer(0, 1, msg_type::AUTH, &pb::AuthResultMessage { result: 2, ..Default::default() });
    assert_eq!(pair.events(), [Event::AuthRefused { outcome: AuthOutcome::InvalidLoginToken }]);
    assert_eq!(pair.session.next_timeout(), None, "nothing is under way");
    pair.session.authenticate(pair.now, "alice", "right").expect("connected");
    assert_eq!(pair.take_sent()[0].msg_type, msg_type::AUTH);
}

#[test]
fn an_authentication_without_a_result_times_out() {
    let mut pair = Pair::new(SessionConfig::client("alice", ""));
    let at = pair.session.next_timeout().expect("a deadline");
    assert_eq!(at, Instant::ZERO + Duration::from_secs(5));
    pair.session.handle_timeout(at);
    assert_eq!(pair.events(), [Event::Closed { reason: CloseReason::AuthTimeout }]);
    assert!(pair.session.is_closed());
}

#[test]
fn answers_find_their_request() {
    let mut pair = Pair::open(SessionConfig::server("master", ""));
    let create =
        CreateChannel::new(ChannelType::SUBWORLD).metadata("room").options(SubscribeOptions::write());
    let request = pair.session.create_channel(pair.now, &create).expect("open");
    let list = pair.session.list_channels(pair.now, None, &[]).expect("open");
    let sent = pair.take_sent();
    assert_eq!([sent[0].stub, sent[1].stub], [request.0, list.0]);

    // A copy of somebody else's creation carries no stub and answers nothing.
    let created = |channel_id| pb::CreateChannelResultMessage {
        channel_type: 3,
        metadata: "room".into(),
        owner_conn_id: 7,
        channel_id,
    };
    pair.answer(0, 0, msg_type::CREATE_CHANNEL, &created(8));
    pair.answer(0, request.0, msg_type::CREATE_CHANNEL, &created(9));
    let events = pair.events();
    assert_eq!(events.iter().map(Event::request).collect::<Vec<_>>(), [None, Some(request)]);

    // The list is never answered: refused, as far as anybody can tell.
    let at = pair.session.next_timeout().expect("a deadline");
    pair.session.handle_timeout(at);
    assert_eq!(pair.events(), [Event::RequestFailed { request: list, reason: RequestFailure::Timeout }]);
    assert_eq!(pair.session.requests_waiting(), 0);
    assert_eq!(pair.session.next_timeout(), None);
}

#[test]
fn a_removal_is_answered_without_a_stub_by_the_reference() {
    let mut pair = Pair::open(SessionConfig::server("master", ""));
    let request = pair.session.remove_channel(pair.now, ChannelId(4)).expect("open");
    pair.answer(0, 0, msg_type::REMOVE_CHANNEL, &pb::RemoveChannelMessage { channel_id: 4 });
    assert_eq!(pair.events(), [Event::ChannelRemoved { request: Some(request), channel: ChannelId(4) }]);
}

#[test]
fn options_survive_the_wire() {
    let mut pair = Pair::open(SessionConfig::client("alice", ""));
    let options = SubscribeOptions {
        access: Some(Access::Write),
        field_masks: vec!["a.b".into()],
        fan_out_interval: Some(Duration::from_millis(50)),
        fan_out_delay_ms: Some(-50),
        skip_self: Some(false),
        skip_first: None,
    };
    pair.session.subscribe(pair.now, ChannelId(1), None, &options).expect("open");
    let sent = pair.take_sent();
    let body = pb::SubscribedToChannelMessage::decode(sent[0].body.as_slice()).expect("a subscription");
    assert_eq!(body.conn_id, 7, "servers have to name themselves, so everybody does");
    let result = pb::SubscribedToChannelResultMessage {
        conn_id: 7,
        sub_options: body.sub_options,
        conn_type: 2,
        channel_type: 3,
    };
    pair.answer(1, sent[0].stub, msg_type::SUB_TO_CHANNEL, &result);
    let events = pair.events();
    let [Event::Subscribed { options: effective, kind: Kind::Client, channel: ChannelId(1), .. }] =
        events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!(*effective, options);
}

#[test]
fn clients_send_opaque_bodies_and_servers_wrapped_ones() {
    let mut client = Pair::open(SessionConfig::client("alice", ""));
    client.session.send(ChannelId(2), 150, b"x").expect("open");
    assert_eq!(client.take_sent()[0].body, b"x");

    let mut server = Pair::open(SessionConfig::server("master", ""));
    server.session.forward(ChannelId(2), 1, 150, ConnId(9), b"y").expect("open");
    let sent = server.take_sent();
    let forward = Forward::parse(&sent[0].body).expect("a forward message");
    assert_eq!((forward.client_conn_id, forward.payload), (9, &b"y"[..]));

    server.session.update(ChannelId(2), "simpb.Data", &[8, 1]).expect("open");
    let sent = server.take_sent();
    let update = DataUpdate::parse(&sent[0].body).expect("an update");
    assert_eq!((update.type_name, update.value), ("simpb.Data", &[8, 1][..]));
}

#[test]
fn recovery_collects_until_its_end_and_sorts_by_time() {
    let mut pair = Pair::new(SessionConfig::server("master", ""));
    pair.take_sent();
    let result = pb::AuthResultMessage { conn_id: 1, should_recover: true, ..Default::default() };
    pair.answer(0, 1, msg_type::AUTH, &result);
    pair.session.forward(ChannelId(1), 2, 100, ConnId(0), b"held").expect("connected");
    assert!(pair.take_sent().is_empty(), "nothing is sent while recovering");

    for (channel_id, sub_time) in [(5, 300), (3, 100), (4, 200)] {
        let body = pb::ChannelDataRecoveryMessage { channel_id, sub_time, ..Default::default() };
        pair.answer(channel_id, 0, msg_type::RECOVERY_CHANNEL_DATA, &body);
    }
    pair.answer(5, 0, msg_type::CHANNEL_OWNER_LOST, &());
    let resumed = Event::Authenticated { conn: ConnId(1), recovering: true, resume_refused: false };
    assert_eq!(pair.events(), [resumed]);
    pair.answer(0, 0, msg_type::RECOVERY_END, &());
    let events = pair.events();
    let [Event::Recovered { channels }, Event::OwnerLost { channel: ChannelId(5) }] = events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!(channels.iter().map(|c| c.channel.0).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(pair.take_sent().len(), 1, "what was held goes out");
}

#[test]
fn a_resume_token_is_presented_after_a_reconnect() {
    let mut pair = Pair::new(SessionConfig { resume: true, ..SessionConfig::client("alice", "") });
    let token = |sent: Vec<Sent>| {
        pb::AuthMessage::decode(sent[0].body.as_slice()).expect("an AuthMessage").resume_token
    };
    assert_eq!(token(pair.take_sent()), Some(vec![]), "present but empty: please give me one");
    let result = pb::AuthResultMessage { conn_id: 7, resume_token: b"token".to_vec(), ..Default::default() };
    pair.answer(0, 1, msg_type::AUTH, &result);
    pair.session.handle_closed(pair.now, None);
    assert!(matches!(
        pair.events().as_slice(),
        [Event::Authenticated { .. }, Event::Closed { reason: CloseReason::Transport }]
    ));
    pair.session.handle_connected(pair.now);
    assert_eq!(token(pair.take_sent()), Some(b"token".to_vec()));
    let (resume_token, resume_refused) = (b"next".to_vec(), true);
    let result = pb::AuthResultMessage { conn_id: 8, resume_token, resume_refused, ..Default::default() };
    pair.answer(0, 1, msg_type::AUTH, &result);
    let new = Event::Authenticated { conn: ConnId(8), recovering: false, resume_refused: true };
    assert_eq!(pair.events(), [new], "its session is gone");
    assert_eq!(pair.session.resume_token(), b"next");
}

#[test]
fn snappy_is_used_when_offered_and_undone_by_a_reconnect() {
    let mut pair = Pair::new(SessionConfig::client("alice", ""));
    pair.take_sent();
    let result = pb::AuthResultMessage { conn_id: 7, compression_type: 1, ..Default::default() };
    pair.answer(0, 1, msg_type::AUTH, &result);
    pair.session.send(ChannelId(1), 100, &[b'x'; 1000]).expect("open");
    let mut bytes = Vec::new();
    let frame = pair.session.poll_transmit(pair.now, &mut bytes).expect("a frame");
    assert!(bytes[4] == 1 && frame.frame_bytes < 200, "{frame:?}");

    pair.session.handle_closed(pair.now, None);
    pair.session.handle_connected(pair.now);
    pair.take_sent();
    pair.answer(0, 1, msg_type::AUTH, &pb::AuthResultMessage { conn_id: 8, ..Default::default() });
    pair.session.send(ChannelId(1), 100, &[b'x'; 1000]).expect("open");
    bytes.clear();
    let frame = pair.session.poll_transmit(pair.now, &mut bytes).expect("a frame");
    assert!(bytes[4] == 0 && frame.frame_bytes > 1000, "{frame:?}");
}

#[test]
fn the_legacy_tag_is_what_a_gateway_detects() {
    let config = SessionConfig {
        tag_form: TagForm::Legacy,
        compression: CompressionPolicy::Never,
        ..SessionConfig::client("alice", "")
    };
    let mut pair = Pair::new(config);
    assert_eq!(pair.take_sent().len(), 1);
    assert_eq!(pair.reader.form(), Form::Legacy);
}

#[test]
fn queues_are_bounded() {
    let mut pair = Pair::open(SessionConfig {
        outbox_bytes_max: 1000,
        events_max: 10,
        requests_max: 2,
        ..SessionConfig::client("alice", "")
    });
    let mut sent = 0;
    let error = loop {
        match pair.session.send(ChannelId(1), 100, &[0; 100]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SendError::QueueFull { limit_bytes: 1000, .. }) && sent == 9, "{error}, {sent}");
    assert_eq!(pair.take_sent().len(), 9);
    for _ in 0..2 {
        pair.session.list_channels(pair.now, None, &[]).expect("below the bound");
    }
    assert_eq!(pair.session.list_channels(pair.now, None, &[]), Err(SendError::TooManyRequests(2)));
    assert!(matches!(pair.session.send(ChannelId(1), 100, &[0; 66_000]), Err(SendError::TooLarge { .. })));

    for _ in 0..11 {
        pair.answer(1, 0, msg_type::CHANNEL_OWNER_LOST, &());
    }
    let events = pair.events();
    assert_eq!(events.last(), Some(&Event::Closed { reason: CloseReason::EventsNotTaken { limit: 10 } }));
    assert_eq!(pair.session.send(ChannelId(1), 100, b""), Err(SendError::NotConnected));
}

#[test]
fn wrong_input_closes_or_is_counted() {
    let mut pair = Pair::open(SessionConfig::client("alice", ""));
    // A body that is no protobuf: dropped, counted, the rest goes on.
    let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
    let bad = MessagePack { msg_type: msg_type::SUB_TO_CHANNEL, body: &[0xFF], ..Default::default() };
    writer.push(&bad, &mut bytes).expect("small");
    writer.flush(&mut bytes);
    pair.session.handle_bytes(pair.now, &bytes);
    assert!(pair.events().is_empty());
    assert_eq!(pair.session.counters().malformed, 1);

    let request = pair.session.list_channels(pair.now, None, &[]).expect("open");
    pair.session.handle_bytes(pair.now, b"GET / HTTP/1.1\r\n\r\n");
    let events = pair.events();
    assert_eq!(events[0], Event::RequestFailed { request, reason: RequestFailure::Closed });
    assert!(matches!(events[1], Event::Closed { reason: CloseReason::BadFrame(_) }));
}

#[test]
fn any_split_of_the_bytes_gives_the_same_events() {
    let mut bytes = frame(0, 1, msg_type::AUTH, &pb::AuthResultMessage { conn_id: 7, ..Default::default() });
    for i in 0..20 {
        bytes.extend(frame(i, 0, msg_type::CHANNEL_OWNER_LOST, &()));
    }
    let events_of = |chunk: usize| {
        let mut pair = Pair::new(SessionConfig::client("alice", ""));
        for chunk in bytes.chunks(chunk) {
            pair.session.handle_bytes(pair.now, chunk);
        }
        pair.events()
    };
    let whole = events_of(bytes.len());
    assert_eq!(whole.len(), 21);
    for chunk in [1, 2, 3, 5, 7, 11, 100] {
        assert_eq!(events_of(chunk), whole);
    }
}

#[test]
fn recovered_data_contains_what_came_before_it_and_may_come_in_parts() {
    let mut pair = Pair::new(SessionConfig::server("master", ""));
    pair.take_sent();
    let result = pb::AuthResultMessage { conn_id: 1, should_recover: true, ..Default::default() };
    pair.answer(0, 1, msg_type::AUTH, &result);
    let update = |value: &[u8]| pb::ChannelDataUpdateMessage {
        data: Some(prost_types::Any { type_url: "type.googleapis.com/t.T".into(), value: value.to_vec() }),
        ..Default::default()
    };
    pair.answer(5, 0, msg_type::CHANNEL_DATA_UPDATE, &update(b"stale"));
    for part in [b"one", b"two"] {
        let channel_data = update(part).data;
        let body = pb::ChannelDataRecoveryMessage { channel_id: 5, channel_data, ..Default::default() };
        pair.answer(5, 0, msg_type::RECOVERY_CHANNEL_DATA, &body);
    }
    // Data of an extension may go on when the message has ended.
    for part in [b"red", b"sea"] {
        let recovery_data = update(part).data;
        let body = pb::ChannelDataRecoveryMessage { channel_id: 5, recovery_data, ..Default::default() };
        pair.answer(5, 0, msg_type::RECOVERY_CHANNEL_DATA, &body);
    }
    pair.answer(5, 0, msg_type::CHANNEL_DATA_UPDATE, &update(b"fresh"));
    pair.answer(0, 0, msg_type::RECOVERY_END, &());
    let events = pair.events();
    let [_, Event::Recovered { channels }, Event::Update { value, .. }] = events.as_slice() else {
        panic!("{events:?}");
    };
    let data = channels[0].data.as_ref().expect("data");
    assert_eq!((channels.len(), data.value.as_ref(), value.as_ref()), (1, &b"onetwo"[..], &b"fresh"[..]));
    let extension = channels[0].extension.as_ref().expect("an extension");
    assert_eq!(extension.value.as_ref(), b"redsea");
}
