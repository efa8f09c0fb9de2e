//! Targets for frames, the packet envelope, the hand-written bodies and recordings.

use std::ops::ControlFlow;

use prost::Message as _;
use throng_wire::frame::{
    Form, FrameError, FrameReader, PACKET_BYTES_MAX, ReaderLimits, Scratch, TAG_BYTES,
    is_ambiguous_for_legacy,
};
use throng_wire::{
    AnyRef, Compressor, DataUpdate, Forward, MessagePack, Packet, channeldpb, cpr::CprReader, cpr::CprWriter,
    entry_len, forward_entry_len, replaypb, write_entry, write_forward_entry, write_frame,
};

/// A stream of frames. The first byte chooses the limits, the second how the stream is cut into
/// reads.
///
/// Asserts that the cut makes no difference, that nothing is kept beyond one frame, and that every
/// packet that was read reads the same after it was framed again, in either form and compression.
pub fn frame(input: &[u8]) {
    let [limits, cut, stream @ ..] = input else { return };
    let limits = ReaderLimits {
        legacy_packet_bytes_max: PACKET_BYTES_MAX << (limits & 1),
        accept_unknown_compression: limits & 2 != 0,
    };
    let whole = read_frames(limits, stream.chunks(stream.len().max(1)));
    let cut = usize::from(*cut).max(1);
    let pieces = read_frames(limits, stream.chunks(cut));
    assert_eq!(whole.packets, pieces.packets, "the cut of the stream changed what was read");
    assert_eq!(whole.error.map(|e| e.reason()), pieces.error.map(|e| e.reason()));
    assert_eq!(whole.form, pieces.form);

    // A reader that is asked to stop after every packet gives the same packets, one call at a time.
    let mut stepped = Vec::new();
    let mut reader = FrameReader::new(limits);
    let mut rest = stream;
    loop {
        let before = reader.packets();
        let result = reader.feed(rest, &mut |packet| {
            stepped.push(packet.bytes().to_vec());
            ControlFlow::Break(())
        });
        rest = &[];
        if result.is_err() || reader.packets() == before {
            break;
        }
    }
    assert_eq!(stepped, whole.packets);

    let mut compressor = Compressor::new();
    for packet in whole.packets.iter().filter(|packet| !packet.is_empty() && packet.len() <= PACKET_BYTES_MAX)
    {
        let plain = comes_back(packet, Form::Current, None);
        let snappy = comes_back(packet, Form::Current, Some(&mut compressor));
        let legacy = comes_back(packet, Form::Legacy, None);
        assert!(plain && snappy && legacy, "a packet that was read cannot be sent");
    }
}

/// What a reader made of a stream.
struct ReadFrames {
    packets: Vec<Vec<u8>>,
    error: Option<FrameError>,
    form: Form,
}

fn read_frames<'a>(limits: ReaderLimits, pieces: impl Iterator<Item = &'a [u8]>) -> ReadFrames {
    let mut reader = FrameReader::new(limits);
    let mut scratch = Scratch::default();
    let mut packets = Vec::new();
    let mut error = None;
    for piece in pieces {
        let result = reader.feed_with(&mut scratch, piece, &mut |packet| {
            assert_eq!(packet.messages().count(), packet.messages().len());
            packets.push(packet.bytes().to_vec());
            ControlFlow::Continue(())
        });
        let longest = TAG_BYTES + limits.legacy_packet_bytes_max.max(PACKET_BYTES_MAX);
        assert!(reader.buffered_bytes() < longest, "{} bytes are kept", reader.buffered_bytes());
        if let Err(found) = result {
            assert_eq!(reader.feed(&[], &mut |_| unreachable!("nothing follows an error")), Err(found));
            error = Some(found);
            break;
        }
    }
    assert_eq!(reader.packets(), packets.len() as u64);
    ReadFrames { packets, error, form: reader.form() }
}

/// Whether `packet`, framed, reads the same.
fn comes_back(packet: &[u8], form: Form, compressor: Option<&mut Compressor>) -> bool {
    let mut framed = Vec::new();
    write_frame(&mut framed, packet, compressor, form);
    let sent_size = framed.len() - TAG_BYTES;
    assert!(form != Form::Legacy || !is_ambiguous_for_legacy(sent_size));
    let outcome = read_frames(ReaderLimits::default(), framed.chunks(framed.len()));
    // Padding for legacy readers stands behind the packet.
    outcome.error.is_none() && outcome.packets.len() == 1 && outcome.packets[0].starts_with(packet)
}

/// A Snappy block, and bytes to compress.
///
/// Asserts that no block yields more than the limit, and that compressing and decompressing gives
/// back any bytes.
pub fn snappy(input: &[u8]) {
    let mut scratch = Scratch::default();
    for limit in [16, PACKET_BYTES_MAX] {
        match scratch.decompress(input, limit) {
            Ok(bytes) => assert!(bytes.len() <= limit),
            Err(FrameError::DeclaredTooLarge { declared, limit: said }) => {
                assert!(declared as usize > limit && said as usize == limit);
            }
            Err(FrameError::BadSnappy) => {}
            Err(other) => panic!("not an answer to a block: {other}"),
        }
    }
    let mut compressor = Compressor::new();
    if let Some(block) = compressor.compress(input) {
        assert_eq!(scratch.decompress(block, input.len()), Ok(input));
    }
}

/// A packet, read by hand and by the generated decoder.
///
/// Asserts that whatever the generated decoder accepts is accepted, with the same messages, and
/// that messages that were read are written so that both read them again.
pub fn packet(input: &[u8]) {
    let ours = Packet::parse(input);
    if let Ok(theirs) = channeldpb::Packet::decode(input) {
        let ours = ours.as_ref().expect("the generated decoder accepts this packet");
        let ours: Vec<_> = ours.messages().map(owned).collect();
        assert_eq!(ours, theirs.messages);
    }
    let Ok(packet) = ours else { return };
    let mut written = Vec::new();
    for message in packet.messages() {
        let before = written.len();
        write_entry(&mut written, &message);
        assert_eq!(written.len() - before, entry_len(&message));
    }
    let theirs = channeldpb::Packet::decode(written.as_slice()).expect("what we write is protobuf");
    assert_eq!(packet.messages().map(owned).collect::<Vec<_>>(), theirs.messages);
    let again = Packet::parse(&written).expect("we read what we write");
    assert!(packet.messages().eq(again.messages()));
}

fn owned(message: MessagePack<'_>) -> channeldpb::MessagePack {
    channeldpb::MessagePack {
        channel_id: message.channel_id,
        broadcast: message.broadcast,
        stub_id: message.stub_id,
        msg_type: message.msg_type,
        msg_body: message.body.to_vec(),
    }
}

/// The bodies that are read by hand: forwarded messages and data updates.
///
/// Asserts agreement with the generated decoder, and that what was read can be written and read
/// again.
pub fn body(input: &[u8]) {
    let forward = Forward::parse(input);
    if let Ok(theirs) = channeldpb::ServerForwardMessage::decode(input) {
        let ours = forward.as_ref().expect("the generated decoder accepts this forward");
        assert_eq!((ours.client_conn_id, ours.payload), (theirs.client_conn_id, &theirs.payload[..]));
    }
    if let Ok(forward) = forward {
        let head = MessagePack { msg_type: 100, ..Default::default() };
        let mut entry = Vec::new();
        write_forward_entry(&mut entry, &head, forward.client_conn_id, forward.payload);
        assert_eq!(entry.len(), forward_entry_len(&head, forward.client_conn_id, forward.payload.len()));
        let message = Packet::parse(&entry).expect("we read what we write").messages().next();
        let message = message.expect("one message was written");
        assert_eq!(Forward::parse(message.body), Ok(forward));
    }

    let update = DataUpdate::parse(input);
    if let Ok(theirs) = channeldpb::ChannelDataUpdateMessage::decode(input) {
        if let Some(data) = &theirs.data {
            let ours = update.as_ref().expect("the generated decoder accepts this update");
            assert_eq!(ours.value, &data.value[..]);
            assert_eq!(Some(ours.type_name), data.type_url.rsplit('/').next());
            assert_eq!(ours.context_conn_id, theirs.context_conn_id);
        } else {
            assert!(update.is_err(), "an update without data");
        }
    }
    if let Ok(any) = AnyRef::parse(input) {
        assert!(any.type_url.ends_with(any.type_name()) && !any.type_name().contains('/'));
    }
}

/// A recording.
///
/// Asserts agreement with the generated decoder, and that a recording survives being written again.
pub fn cpr(input: &[u8]) {
    let packets: Result<Vec<_>, _> = CprReader::new(input).collect();
    if let Ok(theirs) = replaypb::ReplaySession::decode(input) {
        // The generated decoder knows no rule about time.
        if let (Ok(ours), true) = (&packets, theirs.packets.iter().all(|packet| packet.offset_time >= 0)) {
            assert_eq!(ours.len(), theirs.packets.len());
        }
    }
    let Ok(packets) = packets else { return };
    let mut writer = CprWriter::new(usize::MAX);
    for packet in &packets {
        writer.push(packet.offset, packet.packet.bytes()).expect("there is no limit");
    }
    let bytes = writer.into_bytes();
    let again: Result<Vec<_>, _> = CprReader::new(&bytes).collect();
    assert_eq!(again.expect("we read what we write"), packets);
}
