//! The recording player against hand-made gateway answers.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use prost::Message as _;
use throng_client::replay::{Player, PlayerConfig, Recording, RecordingError};
use throng_client::{ConnId, msg_type};
use throng_stdx::Instant;
use throng_wire::cpr::CprWriter;
use throng_wire::frame::FrameReader;
use throng_wire::{FrameWriter, MessagePack, channeldpb as pb, write_entry, write_message_entry};

/// AUTH, SUB of the recorded connection 9, then three user-space messages 100 ms apart.
fn recording() -> Recording {
    let mut writer = CprWriter::new(1 << 16);
    let mut add = |offset_ms, packet: &[u8]| {
        writer.push(Duration::from_millis(offset_ms), packet).expect("it fits");
    };
    let head = |msg_type| MessagePack { msg_type, stub_id: 77, ..MessagePack::default() };
    let mut packet = Vec::new();
    write_message_entry(&mut packet, &head(msg_type::AUTH), &pb::AuthMessage::default());
    add(0, &packet);
    packet.clear();
    let body = pb::SubscribedToChannelMessage { conn_id: 9, sub_options: None };
    write_message_entry(&mut packet, &head(msg_type::SUB_TO_CHANNEL), &body);
    add(40, &packet);
    for i in 0..3 {
        packet.clear();
        write_entry(&mut packet, &MessagePack { body: &[i], ..head(100) });
        add(100, &packet);
    }
    Recording::parse(&writer.into_bytes()).expect("it is well-formed")
}

struct Pair {
    now: Instant,
    player: Player,
    reader: FrameReader,
}

impl Pair {
    fn new(config: PlayerConfig) -> Pair {
        let mut player = Player::new(recording(), config);
        player.handle_connected(Instant::ZERO);
        Pair { now: Instant::ZERO, player, reader: FrameReader::default() }
    }

    /// (message type, stub id, body) of the next packet, if one is due.
    fn sent(&mut self) -> Option<(u32, u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        let frame = self.player.poll_transmit(self.now, &mut bytes)?;
        assert_eq!(frame.frame_bytes, bytes.len());
        let mut sent = None;
        self.reader
            .feed(&bytes, &mut |packet| {
                sent = packet.messages().next().map(|m| (m.msg_type, m.stub_id, m.body.to_vec()));
                ControlFlow::Continue(())
            })
            .expect("the player writes good frames");
        sent
    }

    fn answer(&mut self, stub_id: u32, msg_type: u32, body: &impl prost::Message) {
        let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
        let head = MessagePack { stub_id, msg_type, ..MessagePack::default() };
        writer.push_message(&head, body, &mut bytes).expect("the body is small");
        writer.flush(&mut bytes);
        self.player.handle_bytes(self.now, &bytes);
    }

    /// Moves the time to where a driver would wake up.
    fn advance(&mut self) {
        self.now = self.player.next_timeout().expect("something is to come");
        self.player.handle_timeout(self.now);
    }

    fn admit(&mut self) {
        let (msg_type, stub, _) = self.sent().expect("the authentication is first");
        assert_eq!(msg_type, msg_type::AUTH);
        self.answer(stub, msg_type, &pb::AuthResultMessage { conn_id: 4, ..Default::default() });
    }
}

#[test]
fn waits_for_answers_and_puts_its_own_ids_in() {
    let mut pair = Pair::new(PlayerConfig { grant_write: true, ..PlayerConfig::default() });
    pair.admit();
    assert_eq!(pair.sent(), None, "the subscription is 40 ms later");
    pair.advance();
    let (msg_type, stub, body) = pair.sent().expect("the subscription is due");
    assert_eq!(msg_type, msg_type::SUB_TO_CHANNEL);
    let body = pb::SubscribedToChannelMessage::decode(body.as_slice()).expect("a subscription");
    assert_eq!(body.conn_id, 4, "the recorded connection was 9, this one is 4");
    assert_eq!(body.sub_options.and_then(|o| o.data_access), Some(2));

    // The answer takes its time; what became due meanwhile is caught up afterwards.
    pair.now += Duration::from_millis(250);
    assert_eq!(pair.sent(), None);
    pair.answer(stub, msg_type, &pb::SubscribedToChannelResultMessage::default());
    assert_eq!(pair.sent(), Some((100, 0, vec![0])), "user-space messages await nothing: stub 0");
    assert_eq!(pair.sent(), Some((100, 0, vec![1])));
    assert_eq!(pair.sent(), None);
    pair.advance();
    assert_eq!(pair.sent(), Some((100, 0, vec![2])));
    assert_eq!(pair.now, Instant::from_millis(340), "the rhythm is kept");
    pair.answer(0, 100, &pb::ServerForwardMessage::default());
    pair.advance();
    assert!(pair.player.is_finished());
    let report = pair.player.report();
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.conn, report.packets_sent), (Some(ConnId(4)), 5));
    let user = report.types[&100];
    assert_eq!((user.recorded, user.sent, user.answered, user.received), (3, 3, 0, 1));
    assert_eq!(report.drift.max, Duration::from_millis(150));
}

#[test]
fn speed_divides_the_time_between_packets() {
    for (speed, end_ms) in [(2.0, 170), (10.0, 34), (f64::INFINITY, 0)] {
        let mut pair = Pair::new(PlayerConfig { speed, ..PlayerConfig::default() });
        pair.admit();
        while !pair.player.is_finished() {
            while let Some((msg_type, stub, _)) = pair.sent() {
                if msg_type == msg_type::SUB_TO_CHANNEL {
                    pair.answer(stub, msg_type, &pb::SubscribedToChannelResultMessage::default());
                }
            }
            pair.advance();
        }
        assert_eq!(pair.player.report().played, Duration::from_millis(end_ms), "speed {speed}");
    }
}

#[test]
fn what_is_not_answered_is_refused() {
    let mut pair = Pair::new(PlayerConfig::default());
    pair.admit();
    let mut types = Vec::new();
    while !pair.player.is_finished() {
        pair.advance();
        types.extend(std::iter::from_fn(|| pair.sent()).map(|(t, ..)| t));
    }
    assert_eq!(types, [msg_type::SUB_TO_CHANNEL, 100, 100, 100], "it goes on after 3 s");
    let report = pair.player.report();
    assert!(!report.is_clean());
    assert_eq!((report.refused.len(), report.refused[0].packet), (1, 1));
    assert!(report.to_string().contains("packet 1: type 6 was not answered"), "{report}");
}

#[test]
fn an_early_end_is_reported() {
    let mut pair = Pair::new(PlayerConfig::default());
    pair.admit();
    pair.player.handle_closed(pair.now);
    let report = pair.player.report();
    assert_eq!(report.closed.as_deref(), Some("by the gateway, after 1 of 5 packets"));
    assert!(pair.player.is_finished() && !report.is_clean());
}

#[test]
fn what_is_no_recording_is_refused() {
    assert_eq!(Recording::parse(b""), Err(RecordingError::Empty));
    let error = Recording::parse(b"\xFF\xFF\xFF").expect_err("no protobuf");
    assert!(error.to_string().starts_with("packet 0 cannot be read"), "{error}");
}

#[test]
fn our_own_recording_is_read() {
    let path = "../../fixtures/recordings/session_1_26-01-01_00-00-00.cpr";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let recording = Recording::parse(&std::fs::read(path).expect("it is checked in")).expect("it is good");
    assert_eq!((recording.packet_count(), recording.duration()), (22, Duration::from_millis(5040)));
    assert_eq!(recording.messages_by_type(), [(1, 1), (6, 1), (8, 20), (100, 1)].into());
}
