//! Byte streams become packets, however they are cut and in whichever form their tags are written.
//! Spec: gateway §2.1, §2.4, §2.5.

use std::ops::ControlFlow;

use proptest::{collection::vec, prelude::*, sample::Index};
use throng_wire::{
    FrameError, FrameReader, FrameWriter, MessagePack,
    frame::{
        Compression, Form, PACKET_BYTES_MAX, ReaderLimits, TAG_BYTES, is_ambiguous_for_legacy,
        legacy_padding, legacy_tag, tag,
    },
    write_entry, write_frame,
};

/// Packets that a reader yields for a stream that arrives in the given pieces, each as its bytes.
fn read<'a>(
    reader: &mut FrameReader,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Vec<u8>>, Result<(), FrameError>) {
    let mut packets = Vec::new();
    for piece in pieces {
        let result = reader.feed(piece, &mut |packet| {
            packets.push(packet.bytes().to_vec());
            ControlFlow::Continue(())
        });
        if result.is_err() {
            return (packets, result);
        }
    }
    (packets, Ok(()))
}

/// A packet of exactly `size` bytes with one message, at least 7.
fn packet_of(size: usize) -> Vec<u8> {
    assert!(size >= 7, "a message with a type and a body takes 7 bytes");
    for body_len in (size.saturating_sub(12)..size).rev() {
        let mut packet = Vec::new();
        let body = vec![0xA5; body_len];
        write_entry(&mut packet, &MessagePack { msg_type: 100, body: &body, ..MessagePack::default() });
        if packet.len() == size {
            return packet;
        }
    }
    // A length that grows by a byte skips a size; an empty message fills the gap.
    [packet_of(size - 2), vec![0x0A, 0x00]].concat()
}

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn framed(tag: [u8; TAG_BYTES], packet: &[u8]) -> Vec<u8> {
    [&tag[..], packet].concat()
}

fn current(packet: &[u8]) -> Vec<u8> {
    framed(tag(packet.len(), Compression::None), packet)
}

fn legacy(packet: &[u8]) -> Vec<u8> {
    framed(legacy_tag(packet.len(), Compression::None), packet)
}

fn snappy(packet: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(packet).expect("the packet is small")
}

/// Feeds the stream whole and byte by byte; both give these packets and this form.
fn check(stream: &[u8], expected: &[Vec<u8>], form: Form) {
    let mut whole = FrameReader::default();
    assert_eq!(read(&mut whole, [stream]), (expected.to_vec(), Ok(())));
    let mut drip = FrameReader::default();
    assert_eq!(read(&mut drip, stream.chunks(1)), (expected.to_vec(), Ok(())));
    assert_eq!((whole.form(), drip.form()), (form, form));
    assert_eq!((whole.buffered_bytes(), drip.buffered_bytes()), (0, 0));
    assert_eq!((whole.packets(), drip.packets()), (expected.len() as u64, expected.len() as u64));
    assert_eq!((whole.bytes(), drip.bytes()), (stream.len() as u64, stream.len() as u64));
}

/// The stream ends with this error, whole and byte by byte.
fn check_error(limits: ReaderLimits, stream: &[u8], packets: usize, expected: FrameError) {
    for chunk in [stream.len(), 1] {
        let (got, result) = read(&mut FrameReader::new(limits), stream.chunks(chunk));
        assert_eq!((got.len(), result), (packets, Err(expected)), "in pieces of {chunk}");
    }
}

#[test]
fn a_size_with_a_zero_high_byte_is_current() {
    let packet = packet_of(12);
    check(&current(&packet), &[packet], Form::Current);
}

#[test]
fn a_size_both_forms_write_alike_decides_nothing() {
    for size in [256, 308, 19_967, 20_224, 65_535] {
        let packet = packet_of(size);
        check(&current(&packet), &[packet], Form::Undecided);
    }
}

#[test]
fn a_short_legacy_frame_decides_for_legacy() {
    for size in [7, 27, 255] {
        let packet = packet_of(size);
        check(&legacy(&packet), std::slice::from_ref(&packet), Form::Legacy);
        // Also after frames that decided nothing, and compressed.
        let before = packet_of(300);
        check(&[legacy(&before), legacy(&packet)].concat(), &[before, packet.clone()], Form::Legacy);
        let block = snappy(&packet);
        if block.len() < 256 {
            check(&framed(legacy_tag(block.len(), Compression::Snappy), &block), &[packet], Form::Legacy);
        }
    }
}

#[test]
fn a_first_frame_of_ambiguous_size_is_current_unless_its_front_is_a_packet() {
    for size in [19_968, 19_969, 19_980, 20_100, 20_223] {
        let packet = packet_of(size);
        check(&current(&packet), std::slice::from_ref(&packet), Form::Current);
        // A frame this size is decided for good: the next one is not looked at twice.
        check(&current(&packet).repeat(2), &[packet.clone(), packet.clone()], Form::Current);
    }
}

#[test]
fn an_ambiguous_compressed_frame_is_told_apart_by_what_it_decompresses_to() {
    // Snappy output that happens to have an ambiguous size: a block of literals.
    let body = noise(20_000);
    let mut packet = Vec::new();
    write_entry(&mut packet, &MessagePack { msg_type: 100, body: &body, ..MessagePack::default() });
    let block = snappy(&packet);
    assert!(is_ambiguous_for_legacy(block.len()), "{}", block.len());
    check(&framed(tag(block.len(), Compression::Snappy), &block), &[packet], Form::Current);
}

#[test]
fn a_front_that_is_not_strictly_a_packet_is_not_legacy() {
    // Valid packets to anyone, but not beyond doubt: an unknown field in the packet, one in the
    // message, a known one with another wire type, an unfinished entry, a broken one. The rest of
    // the current frame is arranged so that the whole is a packet.
    let fronts: [&[u8]; 5] = [
        &[0x0A, 0x02, 0x20, 0x15, 0x10, 0x01],
        &[0x0A, 0x02, 0x30, 0x15],
        &[0x0A, 0x03, 0x22, 0x01, 0x15],
        &[0x0A, 0xF0, 0x9B, 0x01, 0x20],
        &[0x12, 0x01, 0x00],
    ];
    for front in fronts {
        let size = 0x4E00 + front.len();
        let mut packet = front.to_vec();
        if front[1] == 0xF0 {
            // 19952 bytes of entry: type 1 (continued from the front), then a body, then a filler
            // entry.
            packet.push(1);
            packet.extend_from_slice(&[0x2A, 0xEA, 0x9B, 0x01]);
            packet.resize(4 + 19_952, 7);
        }
        let filler = packet_of(size - packet.len());
        packet.extend_from_slice(&filler);
        assert_eq!(packet.len(), size);
        check(&current(&packet), &[packet], Form::Current);
    }
}

/// The price of rule 2: a current peer that opens with a frame of ambiguous size whose front
/// happens to be a packet is taken for a legacy one. Every peer opens with AUTH, which is far too
/// short for that.
#[test]
fn a_front_that_is_a_packet_counts_as_legacy() {
    let front = packet_of(12);
    let stream = current(&[front, packet_of(0x4E0C - 12)].concat());
    check_error(ReaderLimits::default(), &stream, 1, FrameError::BadMagic { index: 0, byte: 0x0A });
}

#[test]
fn a_decided_form_stays() {
    // Legacy: an 'N' always means a short size.
    let (short, other) = (packet_of(12), packet_of(7));
    check(&[legacy(&short), legacy(&other)].concat(), &[short.clone(), other], Form::Legacy);
    let stream = [legacy(&short), vec![0x43, 0x48, 0x4E, 0, 0]].concat();
    check_error(ReaderLimits::default(), &stream, 1, FrameError::ZeroSize);
    // ... and a packet that is valid, but not strictly, is no reason to doubt it.
    let odd = vec![0x0A, 0x02, 0x20, 0x15, 0x10, 0x01];
    check(&[legacy(&short), legacy(&odd)].concat(), &[short.clone(), odd], Form::Legacy);

    // Current: never, even if the front of the packet could be one.
    let mut packet = packet_of(12);
    packet.extend_from_slice(&packet_of(0x4E0C - 12));
    check(&[current(&short), current(&packet)].concat(), &[short, packet], Form::Current);
}

#[test]
fn a_legacy_peer_may_announce_24_bits_up_to_the_limit() {
    let short = packet_of(12);
    for size in [65_536, 70_000, 100_000] {
        let packet = packet_of(size);
        let stream = [legacy(&short), legacy(&packet)].concat();
        let limits = ReaderLimits { legacy_packet_bytes_max: 100_000, ..ReaderLimits::default() };
        let mut reader = FrameReader::new(limits);
        assert_eq!(read(&mut reader, stream.chunks(1000)), (vec![short.clone(), packet], Ok(())));

        let too_large = FrameError::LegacyTooLarge { size: size as u32, limit: 65_535 };
        check_error(ReaderLimits::default(), &stream, 1, too_large);
    }
    // Only a peer that is known to write the legacy form: to others it is a bad tag.
    let stream = legacy(&packet_of(65_536));
    check_error(ReaderLimits::default(), &stream, 0, FrameError::BadMagic { index: 1, byte: 1 });
    let stream = [current(&short), legacy(&packet_of(65_536))].concat();
    check_error(ReaderLimits::default(), &stream, 1, FrameError::BadMagic { index: 1, byte: 1 });
}

#[test]
fn an_ambiguous_frame_that_is_neither_ends_the_stream() {
    let mut stream = framed(tag(0x4E10, Compression::None), &vec![0xFF; 0x4E10]);
    check_error(
        ReaderLimits::default(),
        &stream,
        0,
        FrameError::BadPacket(throng_wire::WireError::VarintTooLong),
    );
    stream[4] = 1;
    check_error(ReaderLimits::default(), &stream, 0, FrameError::BadSnappy);
}

#[test]
fn a_declared_length_is_checked_before_anything_is_allocated() {
    // "4 GiB" in ten bytes, as a current, a legacy and an undecided peer would send it.
    let bomb = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0xFE, 0x01, 0x00, 0xFE, 0x01];
    let expected = FrameError::DeclaredTooLarge { declared: u32::MAX, limit: PACKET_BYTES_MAX as u32 };
    let stream = framed(tag(bomb.len(), Compression::Snappy), &bomb);
    check_error(ReaderLimits::default(), &stream, 0, expected);
    let stream =
        [legacy(&packet_of(12)), framed(legacy_tag(bomb.len(), Compression::Snappy), &bomb)].concat();
    check_error(ReaderLimits::default(), &stream, 1, expected);

    // One byte over the limit is over it; the limit itself is not.
    let stream = |size: usize| {
        let block = snappy(&packet_of(size));
        framed(tag(block.len(), Compression::Snappy), &block)
    };
    check(&stream(PACKET_BYTES_MAX), &[packet_of(PACKET_BYTES_MAX)], Form::Undecided);
    let expected = FrameError::DeclaredTooLarge { declared: 65_536, limit: 65_535 };
    check_error(ReaderLimits::default(), &stream(PACKET_BYTES_MAX + 1), 0, expected);
}

#[test]
fn wrong_bytes_are_refused_before_the_tag_is_complete() {
    let first = |bytes: &[u8]| read(&mut FrameReader::default(), [bytes]).1;
    assert_eq!(first(b"G"), Err(FrameError::BadMagic { index: 0, byte: b'G' }));
    assert_eq!(first(b"CO"), Err(FrameError::BadMagic { index: 1, byte: b'O' }));
    let split = read(&mut FrameReader::default(), [&b"C"[..], b"O"]).1;
    assert_eq!(split, Err(FrameError::BadMagic { index: 1, byte: b'O' }));
    assert_eq!(first(b"C"), Ok(()));
    assert_eq!(first(b"CH"), Ok(()));
}

#[test]
fn packets_before_a_defect_are_handed_out() {
    let packet = packet_of(20);
    let stream = [current(&packet), current(&packet), vec![0; 5]].concat();
    check_error(ReaderLimits::default(), &stream, 2, FrameError::BadMagic { index: 0, byte: 0 });
}

/// Size that a legacy peer reads from a frame's tag. Spec: gateway §2.5.
fn legacy_reading(frame: &[u8]) -> usize {
    let byte = |index: usize| usize::from(frame[index]);
    if frame[1] != 0x48 {
        byte(1) << 16 | byte(2) << 8 | byte(3)
    } else if frame[2] != 0x4E {
        byte(2) << 8 | byte(3)
    } else {
        byte(3)
    }
}

#[test]
fn a_legacy_reader_never_gets_a_frame_it_would_misread() {
    for size in 19_960..=20_230 {
        let packet = packet_of(size);
        let mut frame = Vec::new();
        write_frame(&mut frame, &packet, None, Form::Legacy);
        assert_eq!(legacy_reading(&frame), frame.len() - TAG_BYTES, "{size}");
        assert_eq!(frame.len(), TAG_BYTES + size + legacy_padding(size).len());
        let mut reader = FrameReader::default();
        let (packets, result) = read(&mut reader, [&frame[..]]);
        assert_eq!((packets.len(), result), (1, Ok(())));
        assert!(packets[0].starts_with(&packet), "padding follows the messages");

        // Towards others nothing is added.
        frame.clear();
        write_frame(&mut frame, &packet, None, Form::Current);
        assert_eq!(frame, current(&packet));
    }
}

#[test]
fn an_incompressible_packet_is_sent_as_it_is() {
    let body = noise(65_000);
    let mut writer = FrameWriter::new();
    writer.set_compression(Compression::Snappy);
    let mut wire = Vec::new();
    writer
        .push(&MessagePack { msg_type: 100, body: &body, ..MessagePack::default() }, &mut wire)
        .expect("it fits");
    writer.flush(&mut wire);
    assert_eq!(wire[4], 0);
    assert_eq!(read(&mut FrameReader::default(), [&wire[..]]).0.len(), 1);
}

#[test]
fn a_message_over_the_limit_is_refused_and_the_rest_kept() {
    let mut writer = FrameWriter::new();
    let mut wire = Vec::new();
    let body = vec![0; 66_000];
    // 65530 bytes of packet: entry tag and length (4), type (2), body tag and length (4), body.
    for (len, fits) in [(65_520, true), (65_521, false), (66_000, false), (10, true)] {
        let message = MessagePack { msg_type: 100, body: &body[..len], ..MessagePack::default() };
        assert_eq!(writer.push(&message, &mut wire).is_ok(), fits, "{len}");
    }
    writer.flush(&mut wire);
    let (packets, result) = read(&mut FrameReader::default(), [&wire[..]]);
    assert_eq!((packets.iter().map(Vec::len).collect::<Vec<_>>(), result), (vec![65_530, 16], Ok(())));
}

/// Encoding of a packet on the wire.
#[derive(Debug, Clone)]
struct Written {
    packet: Vec<u8>,
    compressed: bool,
}

fn written() -> impl Strategy<Value = Written> {
    let size = prop_oneof![
        4 => 7..40usize,
        2 => 200..300usize,
        1 => 19_900..20_300usize,
        1 => 60_000..65_000usize,
    ];
    (size, any::<bool>()).prop_map(|(size, compressed)| Written { packet: packet_of(size), compressed })
}

fn stream_of(frames: &[Written], write_tag: fn(usize, Compression) -> [u8; TAG_BYTES]) -> Vec<u8> {
    let mut stream = Vec::new();
    for frame in frames {
        if frame.compressed {
            let block = snappy(&frame.packet);
            stream.extend(framed(write_tag(block.len(), Compression::Snappy), &block));
        } else {
            stream.extend(framed(write_tag(frame.packet.len(), Compression::None), &frame.packet));
        }
    }
    stream
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any cutting of any sequence of frames, in either form, gives the packets that were written.
    #[test]
    fn any_split_gives_the_same_packets(
        frames in vec(written(), 0..8),
        writes_legacy: bool,
        cuts in vec(any::<Index>(), 0..20),
    ) {
        // A legacy peer's own frame of ambiguous size cannot be told from a short one once it is
        // known as legacy.
        prop_assume!(!writes_legacy || frames.iter().all(|frame| {
            let size = if frame.compressed { snappy(&frame.packet).len() } else { frame.packet.len() };
            !is_ambiguous_for_legacy(size)
        }));
        let stream = stream_of(&frames, if writes_legacy { legacy_tag } else { tag });
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);

        let mut reader = FrameReader::default();
        let (packets, result) = read(&mut reader, pieces);
        prop_assert_eq!(result, Ok(()));
        let expected: Vec<_> = frames.iter().map(|frame| frame.packet.clone()).collect();
        prop_assert!(packets == expected);
        prop_assert_eq!(reader.buffered_bytes(), 0);
        prop_assert_eq!(reader.peer_compresses(), frames.iter().any(|frame| frame.compressed));
        let other = if writes_legacy { Form::Current } else { Form::Legacy };
        prop_assert_ne!(reader.form(), other);
    }

    /// Stopping after any packets and resuming loses and repeats nothing.
    #[test]
    fn stopping_and_resuming_gives_the_same_packets(
        frames in vec(written(), 1..8),
        stops in vec(any::<bool>(), 8),
        pieces in 1..4usize,
    ) {
        let stream = stream_of(&frames, tag);
        let mut reader = FrameReader::default();
        let mut packets: Vec<Vec<u8>> = Vec::new();
        let mut feed = |reader: &mut FrameReader, piece: &[u8]| {
            let before = packets.len();
            let mut stopped = false;
            let result = reader.feed(piece, &mut |packet| {
                assert!(!stopped, "nothing is handed out after a break");
                stopped = stops[packets.len()];
                packets.push(packet.bytes().to_vec());
                if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(result, Ok(()));
            (packets.len() - before, stopped)
        };
        for piece in stream.chunks(stream.len().div_ceil(pieces)) {
            feed(&mut reader, piece);
        }
        while feed(&mut reader, &[]).1 {}
        prop_assert_eq!(reader.buffered_bytes(), 0);
        let expected: Vec<_> = frames.iter().map(|frame| frame.packet.clone()).collect();
        prop_assert!(packets == expected);
    }

    /// Any bytes behind any number of valid frames end in packets or an error, the same however
    /// they are cut.
    #[test]
    fn any_bytes_are_handled(
        frames in vec(written(), 0..3),
        mut noise in vec(any::<u8>(), 0..400),
        tagged: bool,
        chunk in 1..50usize,
    ) {
        if tagged && noise.len() >= 5 {
            let high = if noise[0] & 1 == 0 { 0 } else { 0x4E };
            noise[..3].copy_from_slice(&[0x43, 0x48, high]);
            noise[4] &= 1;
        }
        let stream = [stream_of(&frames, tag), noise].concat();
        let (mut whole, mut cut) = (FrameReader::default(), FrameReader::default());
        let expected = read(&mut whole, [&stream[..]]);
        let got = read(&mut cut, stream.chunks(chunk));
        prop_assert!(got.0 == expected.0);
        prop_assert_eq!(got.1, expected.1);
        prop_assert_eq!(whole.buffered_bytes(), cut.buffered_bytes());
        prop_assert_eq!(whole.form(), cut.form());
    }
}
