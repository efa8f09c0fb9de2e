//! Recorded sessions are read and written as the reference gateway does. Spec: gateway §4.8.

#![allow(clippy::disallowed_methods, reason = "the core has no files; its tests read fixtures")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use prost::Message;
use throng_wire::{
    DataUpdate, MessagePack, Packet, channeldpb,
    cpr::{CprError, CprReader, CprWriter, Summary, file_name, summarize},
    replaypb, write_data_update_entry, write_entry, write_message_entry,
};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Expected contents of one recording; see the README beside it.
struct Expected {
    summary: Summary,
    /// Rounded, as are the gaps between packets.
    duration_ms: u128,
    gap_median_100_us: u128,
    gap_max_ms: u128,
    /// Per message type: how many, and bytes of all bodies.
    types: &'static [(u32, usize, usize)],
}

fn rounded(duration: Duration, unit: Duration) -> u128 {
    (duration + unit / 2).as_nanos() / unit.as_nanos()
}

const MS: Duration = Duration::from_millis(1);

fn check(path: &Path, bytes: &[u8], expected: &Expected) {
    let path = path.display();
    let summary = summarize(bytes).expect("the recording is readable");
    assert_eq!(rounded(summary.duration, MS), expected.duration_ms, "{path}");
    assert_eq!(Summary { duration: Duration::ZERO, ..summary }, expected.summary, "{path}");

    let packets: Vec<_> = CprReader::new(bytes).map(|packet| packet.expect("readable")).collect();
    assert_eq!(packets[0].offset, Duration::ZERO, "{path}");
    let mut gaps: Vec<_> = packets[1..].iter().map(|packet| packet.offset).collect();
    gaps.sort_unstable();
    let median = (gaps[(gaps.len() - 1) / 2] + gaps[gaps.len() / 2]) / 2;
    assert_eq!(rounded(median, MS / 10), expected.gap_median_100_us, "{path}");
    assert_eq!(rounded(gaps[gaps.len() - 1], MS), expected.gap_max_ms, "{path}");

    let mut types = BTreeMap::<u32, (usize, usize)>::new();
    for message in packets.iter().flat_map(|recorded| recorded.packet.messages()) {
        assert_eq!((message.channel_id, message.broadcast), (0, 0), "{path}");
        let (count, body_bytes) = types.entry(message.msg_type).or_default();
        *count += 1;
        *body_bytes += message.body.len();
    }
    let types: Vec<_> =
        types.into_iter().map(|(msg_type, (count, bytes))| (msg_type, count, bytes)).collect();
    assert_eq!(types, expected.types, "{path}");

    // Written again it is the same recording, to the generated types too.
    let mut writer = CprWriter::new(bytes.len());
    for recorded in &packets {
        writer.push(recorded.offset, recorded.packet.bytes()).expect("it is no larger than it was");
    }
    let written = writer.into_bytes();
    let decode = |bytes: &[u8]| replaypb::ReplaySession::decode(bytes).expect("a ReplaySession");
    assert_eq!(decode(&written), decode(bytes), "{path}");
}

/// A session of the kind the chat demo records, made up: log-in, subscription, one line every 250
/// ms.
fn own_recording() -> Vec<u8> {
    let mut writer = CprWriter::new(1 << 16);
    let mut record = |offset_ms, write: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = Vec::new();
        write(&mut packet);
        writer.push(Duration::from_millis(offset_ms), &packet).expect("it fits");
    };
    record(0, &|packet| {
        let body = channeldpb::AuthMessage {
            player_identifier_token: "ann".into(),
            login_token: "secret".into(),
            ..Default::default()
        };
        write_message_entry(
            packet,
            &MessagePack { stub_id: 1, msg_type: 1, ..MessagePack::default() },
            &body,
        );
    });
    record(40, &|packet| {
        let body = channeldpb::SubscribedToChannelMessage { conn_id: 1, sub_options: None };
        write_message_entry(packet, &MessagePack { msg_type: 6, ..MessagePack::default() }, &body);
    });
    for line in 0..20u8 {
        record(250, &|packet| {
            // ChatChannelData with one ChatMessage{sender "ann", content "line <letter>"}.
            let text = [b'l', b'i', b'n', b'e', b' ', b'a' + line];
            let chat = [&[0x0A, 13, 0x0A, 3, b'a', b'n', b'n', 0x1A, 6][..], &text].concat();
            write_data_update_entry(packet, 0, "type.googleapis.com/chatpb.ChatChannelData", &chat);
            // The player moves, too: the first line shares its packet.
            if line == 0 {
                write_entry(packet, &MessagePack { msg_type: 100, body: b"move", ..MessagePack::default() });
            }
        });
    }
    writer.into_bytes()
}

#[test]
fn our_own_recording_has_its_figures() {
    let path = workspace().join("fixtures/recordings/session_1_26-01-01_00-00-00.cpr");
    if std::env::var_os("THRONG_UPDATE").is_some() {
        fs::write(&path, own_recording()).expect("the source tree is writable");
    }
    let bytes = fs::read(&path).expect("the recording is checked in");
    assert!(bytes == own_recording(), "the writer's output changed; run this test with THRONG_UPDATE=1");
    let expected = Expected {
        summary: Summary {
            packets: 22,
            messages: 23,
            packet_bytes: 1419,
            packet_bytes_max: 79,
            ..Summary::default()
        },
        duration_ms: 5040,
        gap_median_100_us: 2500,
        gap_max_ms: 250,
        types: &[(1, 1, 13), (6, 1, 2), (8, 20, 1260), (100, 1, 4)],
    };
    check(&path, &bytes, &expected);
}

/// The two recorded sessions that belong to the specification are not ours to copy; they are looked
/// for beside the workspace.
#[test]
#[allow(clippy::print_stderr, reason = "a check that did not take place has to show")]
fn the_recorded_sessions_have_their_figures() {
    let dir = workspace().join("../shared/fixtures/gateway/recordings");
    if !dir.exists() {
        eprintln!("{} is absent: only our own recording was checked", dir.display());
        return;
    }
    let webchat = Expected {
        summary: Summary {
            packets: 41,
            messages: 41,
            packet_bytes: 2956,
            packet_bytes_max: 78,
            ..Summary::default()
        },
        duration_ms: 19_276,
        gap_median_100_us: 2557,
        gap_max_ms: 4799,
        types: &[(1, 1, 12), (6, 1, 2), (8, 39, 2694)],
    };
    let tps = Expected {
        summary: Summary {
            packets: 2593,
            messages: 2596,
            packet_bytes: 114_672,
            packet_bytes_max: 162,
            ..Summary::default()
        },
        duration_ms: 33_684,
        gap_median_100_us: 105,
        gap_max_ms: 104,
        types: &[(1, 1, 19), (6, 1, 11), (100, 2594, 99_062)],
    };
    for (name, expected) in
        [("webchat/session_1_22-09-07_14-41-02.cpr", webchat), ("tps/session_2_22-09-16_16-44-04.cpr", tps)]
    {
        let path = dir.join(name);
        let bytes = fs::read(&path).expect("the recording is there");
        check(&path, &bytes, &expected);
    }

    let bytes =
        fs::read(dir.join("webchat/session_1_22-09-07_14-41-02.cpr")).expect("the recording is there");
    for message in CprReader::new(&bytes).flat_map(|packet| packet.expect("readable").packet.messages()) {
        if message.msg_type == 8 {
            let update = DataUpdate::parse(message.body).expect("an update");
            assert_eq!(update.type_name, "chatpb.ChatChannelData");
            assert!((66..=72).contains(&message.body.len()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// The generated types and the reader decode the writer's bytes.
    #[test]
    fn recordings_round_trip(
        packets in vec((any::<u64>().prop_map(|ns| ns >> 1), vec((any::<u32>(), vec(any::<u8>(), 0..50)), 0..4)), 0..20),
    ) {
        let mut writer = CprWriter::new(1 << 20);
        let mut expected = Vec::new();
        for (offset, messages) in &packets {
            let mut packet = Vec::new();
            for (msg_type, body) in messages {
                write_entry(&mut packet, &MessagePack { msg_type: *msg_type, body, ..MessagePack::default() });
            }
            writer.push(Duration::from_nanos(*offset), &packet).expect("it fits");
            expected.push((Duration::from_nanos(*offset), packet));
        }
        let bytes = writer.into_bytes();
        let read: Vec<_> = CprReader::new(&bytes)
            .map(|recorded| recorded.map(|recorded| (recorded.offset, recorded.packet.bytes().to_vec())))
            .collect::<Result<_, _>>()
            .expect("readable");
        prop_assert_eq!(read, expected);
        let session = replaypb::ReplaySession::decode(bytes.as_slice()).expect("a ReplaySession");
        prop_assert_eq!(session.encode_to_vec(), bytes);
    }

    /// Any bytes give packets and then an end or one error.
    #[test]
    fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>()) {
        let own = own_recording();
        for bytes in [&bytes[..], &own[..cut.index(own.len())]] {
            let errors = CprReader::new(bytes).filter(Result::is_err).count();
            prop_assert!(errors <= 1);
            prop_assert_eq!(summarize(bytes).is_err(), errors == 1);
        }
    }
}

#[test]
fn a_recording_never_exceeds_its_limit() {
    let packet = [0x0A, 0x02, 0x20, 0x64];
    let mut writer = CprWriter::new(20);
    assert!(writer.is_empty());
    // 8 bytes without an offset, 10 with one of a byte.
    writer.push(Duration::ZERO, &packet).expect("8 of 20");
    writer.push(Duration::from_nanos(5), &packet).expect("18 of 20");
    let full = writer.push(Duration::ZERO, &packet).expect_err("26 of 20");
    assert_eq!((full.bytes, full.bytes_max, writer.len()), (18, 20, 18));
    assert_eq!(summarize(&writer.into_bytes()).expect("readable").packets, 2);
}

#[test]
fn time_does_not_run_backwards() {
    // ReplaySession{ReplayPacket{offsetTime -1}}
    let bytes = [0x0A, 0x0B, 0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    assert_eq!(summarize(&bytes), Err(CprError::NegativeOffset(-1)));
}

#[test]
fn a_packet_without_content_is_recorded_as_such() {
    let mut writer = CprWriter::new(100);
    writer.push(Duration::ZERO, &[]).expect("it fits");
    let bytes = writer.into_bytes();
    assert_eq!(bytes, [0x0A, 0x02, 0x12, 0x00]);
    let recorded = CprReader::new(&bytes).next().expect("a packet").expect("readable");
    assert_eq!(recorded.packet, Packet::parse(&[]).expect("no messages"));
}

#[test]
fn files_are_named_by_connection_and_time() {
    let name = |conn, unix_seconds: u64| file_name(conn, unix_seconds * 1_000_000_000);
    // The reference would have named this one ..._14-41-02: the hour on the 12-hour clock.
    assert_eq!(name(1, 1_662_561_695), "session_1_22-09-07_14-41-35.000000000.cpr");
    assert_eq!(name(7, 0), "session_7_70-01-01_00-00-00.000000000.cpr");
    assert_eq!(name(7, 951_782_399), "session_7_00-02-28_23-59-59.000000000.cpr");
    assert_eq!(name(7, 951_782_400), "session_7_00-02-29_00-00-00.000000000.cpr");
    assert_eq!(name(7, 4_107_542_400), "session_7_00-03-01_00-00-00.000000000.cpr");
    assert_eq!(name(u32::MAX, 1_798_761_599), "session_4294967295_26-12-31_23-59-59.000000000.cpr");
    assert_eq!(file_name(1, 1_662_561_695_000_000_012), "session_1_22-09-07_14-41-35.000000012.cpr");
}
