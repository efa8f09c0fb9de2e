//! Tests of the outbox: framing, compression, partial writes and bounds.

use super::*;
use bytes::Bytes;
use core::ops::ControlFlow;
use throng_stdx::Rng;
use throng_wire::frame::TAG_BYTES;
use throng_wire::{FrameReader, MessagePack, entry_len, write_entry};

fn entry(number: u32, body_len: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..body_len).map(|at| (at as u32 * 7 + number) as u8).collect();
    let mut out = Vec::new();
    write_entry(
        &mut out,
        &MessagePack { stub_id: number + 1, msg_type: 100, body: &body, ..Default::default() },
    );
    out
}

fn shared_entry(bytes: Vec<u8>) -> Arc<Entry> {
    Entry::new(bytes, &EntryBytes::default())
}

fn push(outbox: &mut Outbox, entry: &[u8]) {
    outbox.push_inline(entry.len(), |out| out.extend_from_slice(entry));
}

/// Lets the transport take up to `max` bytes.
fn take(outbox: &mut Outbox, max: usize) -> Vec<u8> {
    let mut slices = Vec::new();
    outbox.gather(&mut slices);
    let mut bytes = Vec::new();
    for slice in &slices {
        bytes.extend_from_slice(&slice[..slice.len().min(max - bytes.len())]);
    }
    outbox.advance(bytes.len());
    bytes
}

fn take_all(outbox: &mut Outbox) -> Vec<u8> {
    let mut all = Vec::new();
    while !outbox.is_empty() {
        all.extend(take(outbox, usize::MAX));
    }
    all
}

/// Stub ids of all messages, and the sizes and compression bytes of all frames.
fn read(bytes: &[u8]) -> (Vec<u32>, Vec<(usize, u8)>) {
    let (mut stubs, mut frames) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let size = usize::from(bytes[at + 2]) << 8 | usize::from(bytes[at + 3]);
        frames.push((size, bytes[at + 4]));
        at += TAG_BYTES + size;
    }
    assert_eq!(at, bytes.len(), "whole frames");
    let mut reader = FrameReader::default();
    reader
        .feed(bytes, &mut |packet| {
            stubs.extend(packet.messages().map(|message| message.stub_id));
            ControlFlow::Continue(())
        })
        .expect("valid frames");
    (stubs, frames)
}

fn strip_websocket(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 0x82);
        let (len, header) = match bytes[1] {
            126 => (usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), 4),
            len => (usize::from(len), 2),
        };
        assert!(header == 2 || len > 125, "the shortest header");
        out.extend_from_slice(&bytes[header..header + len]);
        bytes = &bytes[header + len..];
    }
    out
}

/// An entry in pieces is the same bytes as one in a piece, whatever the framing and the
/// compression.
#[test]
fn entries_in_pieces_are_their_concatenation() {
    let bytes: Vec<u8> = (0..2000_u32).map(|i| (i / 7) as u8).collect();
    let whole = Bytes::from(bytes.clone());
    for (framing, compress) in
        [(Framing::Stream, false), (Framing::Stream, true), (Framing::WebSocket, false)]
    {
        let entry = |in_pieces: bool| match in_pieces {
            true => {
                let pieces = [whole.slice(10..1500), whole.slice(1500..1600), whole.slice(1600..)];
                Entry::in_pieces(bytes[..10].to_vec(), pieces, &EntryBytes::default())
            }
            false => shared_entry(bytes.clone()),
        };
        let written = |in_pieces: bool| {
            let mut outbox = Outbox::new(framing);
            outbox.push_shared(&entry(in_pieces), false);
            outbox.push_inline(3, |out| out.extend_from_slice(b"end"));
            if compress {
                outbox.set_compress();
            }
            let mut out = Vec::new();
            // Bit by bit, as a slow transport takes it.
            while !outbox.is_empty() {
                let mut slices = Vec::new();
                outbox.gather(&mut slices);
                let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = all.len().min(700);
                out.extend_from_slice(&all[..taken]);
                outbox.advance(taken);
            }
            out
        };
        assert_eq!(entry(true).len(), entry(false).len());
        assert_eq!(written(true), written(false));
    }
}

#[test]
fn a_frame_of_one_shared_entry_is_recognised_and_is_what_gather_gives() {
    let shared = shared_entry(entry(1, 30_000));
    let mut outbox = Outbox::new(Framing::Stream);
    outbox.push_shared(&shared, false);
    assert!(outbox.shared_frame(40_000).is_none(), "too short");
    let found = outbox.shared_frame(20_000).expect("one shared entry");
    assert_eq!(found.holders(), 3, "this test, the outbox and what was found");
    let bytes = found.parts().concat();
    // A message behind it is a frame of its own by now.
    push(&mut outbox, &entry(2, 10));
    assert_eq!(outbox.shared_frame(20_000), Some(found));
    let all = take_all(&mut outbox);
    assert_eq!(all[..bytes.len()], bytes);
    assert_eq!(read(&all).0, [2, 3]);
}

#[test]
fn frames_that_hold_more_or_are_partly_written_are_not_shared() {
    let shared = shared_entry(entry(1, 30_000));
    let mut with_another = Outbox::new(Framing::Stream);
    with_another.push_shared(&shared, false);
    push(&mut with_another, &entry(2, 10));
    assert_eq!(with_another.shared_frame(0), None);
    let mut behind_another = Outbox::new(Framing::Stream);
    push(&mut behind_another, &entry(2, 10));
    behind_another.push_shared(&shared, false);
    assert_eq!(behind_another.shared_frame(0), None);
    for written in [1, TAG_BYTES, TAG_BYTES + 1] {
        let mut begun = Outbox::new(Framing::Stream);
        begun.push_shared(&shared, false);
        take(&mut begun, written);
        assert_eq!(begun.shared_frame(0), None, "{written} bytes written");
    }
    let mut websocket = Outbox::new(Framing::WebSocket);
    websocket.push_shared(&shared, false);
    assert_eq!(websocket.shared_frame(0), None);
}

// nothing is held back, and everything queued between two writes is one frame.
#[test]
fn a12_everything_queued_leaves_as_one_frame_at_once() {
    let mut outbox = Outbox::new(Framing::Stream);
    assert!(outbox.is_empty());
    for number in 0..50 {
        push(&mut outbox, &entry(number, 20));
    }
    let (stubs, frames) = read(&take_all(&mut outbox));
    assert_eq!(stubs, (1..=50).collect::<Vec<_>>());
    assert_eq!(frames.len(), 1);
    assert_eq!((outbox.take_packets(), outbox.queued_bytes()), (1, 0));
}

#[test]
fn frames_end_before_they_exceed_a_packet() {
    let mut outbox = Outbox::new(Framing::Stream);
    for number in 0..20 {
        push(&mut outbox, &entry(number, 30_000));
    }
    let (stubs, frames) = read(&take_all(&mut outbox));
    assert_eq!(stubs.len(), 20);
    assert_eq!(frames.len(), 10);
    assert!(frames.iter().all(|(size, _)| *size <= PACKET_BYTES_SEND_MAX));
}

#[test]
fn random_use_gives_back_every_message_in_order() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let framing = if rng.chance(0.5) { Framing::Stream } else { Framing::WebSocket };
        let mut outbox = Outbox::new(framing);
        outbox.set_avoid_legacy_sizes(rng.chance(0.5));
        let (mut bytes, mut number) = (Vec::new(), 0);
        for _ in 0..300 {
            match rng.below(10) {
                0..6 => {
                    let len = if rng.chance(0.1) { rng.below(40_000) } else { rng.below(300) };
                    let entry = entry(number, len as usize);
                    if rng.chance(0.5) {
                        outbox.push_shared(&shared_entry(entry), false);
                    } else {
                        push(&mut outbox, &entry);
                    }
                    number += 1;
                }
                6 if rng.chance(0.05) => outbox.set_compress(),
                _ => {
                    let max = if rng.chance(0.5) { usize::MAX } else { rng.below(5_000) as usize };
                    bytes.extend(take(&mut outbox, max));
                }
            }
            let mut slices = Vec::new();
            if rng.chance(0.1) {
                outbox.gather(&mut slices);
                let gathered: usize = slices.iter().map(|slice| slice.len()).sum();
                drop(slices);
                let all = outbox.segments.len() <= SLICES_MAX;
                assert!(!all || gathered == outbox.queued_bytes(), "the byte count is right");
            }
        }
        bytes.extend(take_all(&mut outbox));
        assert_eq!(outbox.queued_bytes(), 0);
        let bytes = if framing == Framing::WebSocket { strip_websocket(&bytes) } else { bytes };
        assert_eq!(read(&bytes).0, (1..=number).collect::<Vec<_>>(), "seed {seed}");
    }
}

// Spec §2.5 rule 4: a legacy peer would read these sizes as 0 to 255.
#[test]
fn frames_to_peers_that_may_be_legacy_avoid_the_sizes_they_misread() {
    let overhead = entry(0, 20_000).len() - 20_000;
    for size in [19_967, 19_968, 20_000, 20_222, 20_223, 20_224] {
        let entry = entry(0, size - overhead);
        assert_eq!(entry.len(), size);
        for shared in [false, true] {
            let mut outbox = Outbox::new(Framing::Stream);
            if shared {
                outbox.push_shared(&shared_entry(entry.clone()), false)
            } else {
                push(&mut outbox, &entry)
            }
            let (stubs, frames) = read(&take_all(&mut outbox));
            assert_eq!((stubs.len(), frames.len()), (1, 1));
            assert!(!frame::is_ambiguous_for_legacy(frames[0].0), "{} of {size}", frames[0].0);

            let mut outbox = Outbox::new(Framing::Stream);
            outbox.set_avoid_legacy_sizes(false);
            push(&mut outbox, &entry);
            assert_eq!(read(&take_all(&mut outbox)).1[0].0, size, "a current peer needs no padding");

            // Noise, which goes plain to a compressing peer as well.
            let mut noise = vec![0; size - overhead];
            Rng::new(size as u64).fill(&mut noise);
            let mut bytes = Vec::new();
            let pack = MessagePack { stub_id: 1, msg_type: 100, body: &noise, ..Default::default() };
            write_entry(&mut bytes, &pack);
            let mut outbox = Outbox::new(Framing::Stream);
            outbox.set_compress();
            if shared {
                outbox.push_shared(&shared_entry(bytes), false)
            } else {
                push(&mut outbox, &bytes)
            }
            let (_, frames) = read(&take_all(&mut outbox));
            assert!(!frame::is_ambiguous_for_legacy(frames[0].0), "{} of {size} compressed", frames[0].0);
        }
    }
}

// Spec §2.4 and architecture: compression is done once per distinct run, and only where it pays.
#[test]
fn shared_entries_are_compressed_once_for_all_peers() {
    let mut repetitive = Vec::new();
    let body = vec![7; 20_000];
    let pack = MessagePack { stub_id: 1, msg_type: 8, body: &body, ..Default::default() };
    assert!(entry_len(&pack) > 20_000);
    write_entry(&mut repetitive, &pack);
    let shared = shared_entry(repetitive);
    let mut sent = Vec::new();
    for _ in 0..3 {
        let mut outbox = Outbox::new(Framing::Stream);
        outbox.set_compress();
        push(&mut outbox, &entry(4, 3));
        outbox.push_shared(&shared, false);
        push(&mut outbox, &entry(5, 3));
        let bytes = take_all(&mut outbox);
        let (stubs, frames) = read(&bytes);
        assert_eq!(stubs, [5, 1, 6]);
        assert_eq!(frames.iter().map(|(_, compression)| *compression).collect::<Vec<_>>(), [0, 1, 0]);
        assert!(frames[1].0 < 2_000, "the block is small");
        sent.push(bytes);
    }
    assert!(sent.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(shared.snappy.get().is_some(), "the block is kept with the entry");
}

#[test]
fn incompressible_frames_go_plain_to_a_compressing_peer() {
    let mut noise = vec![0; 60_000];
    Rng::new(1).fill(&mut noise);
    let mut bytes = Vec::new();
    write_entry(&mut bytes, &MessagePack { stub_id: 1, msg_type: 8, body: &noise, ..Default::default() });
    let mut outbox = Outbox::new(Framing::Stream);
    outbox.set_compress();
    outbox.push_shared(&shared_entry(bytes.clone()), false);
    push(&mut outbox, &bytes);
    let (_, frames) = read(&take_all(&mut outbox));
    assert_eq!(frames.iter().map(|(_, compression)| *compression).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn control_bytes_go_between_frames() {
    let mut outbox = Outbox::new(Framing::WebSocket);
    push(&mut outbox, &entry(0, 10));
    outbox.push_control(&[0x8A, 0]);
    push(&mut outbox, &entry(1, 10));
    let bytes = take_all(&mut outbox);
    let first = 2 + usize::from(bytes[1]);
    assert_eq!(bytes[first..first + 2], [0x8A, 0]);
    assert_eq!(bytes[first + 2], 0x82);
}

#[test]
fn a_drained_outbox_keeps_little_memory_and_needs_no_more() {
    let mut outbox = Outbox::new(Framing::Stream);
    for number in 0..3_000 {
        push(&mut outbox, &entry(number, 100));
    }
    take_all(&mut outbox);
    let shared = shared_entry(entry(0, 500));
    for _ in 0..3 {
        outbox.push_shared(&shared, false);
        take_all(&mut outbox);
    }
    let kept = outbox.heap_bytes();
    assert!(kept <= 600, "{kept} bytes kept");
    for _ in 0..100 {
        outbox.push_shared(&shared, false);
        take_all(&mut outbox);
        assert_eq!(outbox.heap_bytes(), kept, "steady state allocates nothing");
    }
}

#[test]
fn a_buffer_serves_one_connection_after_another() {
    let mut spares = Spares::default();
    let message = entry(0, 100);
    let mut first = Outbox::new(Framing::Stream);
    spares.lend(&mut first);
    for _ in 0..100 {
        push(&mut first, &message);
    }
    let (queued, held) = (first.queued_bytes(), first.own.tail.capacity());
    first.gather(&mut Vec::new());
    first.advance_with(queued - 1, &mut spares);
    assert_eq!(first.own.tail.capacity(), held, "a part of it waits still");
    first.advance_with(1, &mut spares);
    assert_eq!((first.is_empty(), first.own.tail.capacity()), (true, 0));

    let mut second = Outbox::new(Framing::WebSocket);
    spares.lend(&mut second);
    push(&mut second, &message);
    assert_eq!(second.own.tail.capacity(), held);
    assert!(take_all(&mut second).ends_with(&message));
}

#[test]
fn spare_buffers_are_bounded() {
    let mut spares = Spares::default();
    let fill = |spares: &mut Spares, messages: usize| {
        let mut outbox = Outbox::new(Framing::Stream);
        for _ in 0..messages {
            push(&mut outbox, &entry(0, 1_000));
        }
        let queued = outbox.queued_bytes();
        outbox.gather(&mut Vec::new());
        outbox.advance_with(queued, spares);
        outbox.own.tail.capacity()
    };
    // What a slow reader made grow is kept by nobody, nor what is small by others than the
    // connection itself.
    assert_eq!(fill(&mut spares, 200), 0);
    assert_eq!(spares.held(), 0);
    let kept: Vec<usize> = (0..500).map(|_| fill(&mut spares, 40)).collect();
    assert_eq!(kept[0], 0);
    assert!((1..=8 << 20).contains(&spares.held()), "{} bytes", spares.held());
    assert!(kept.iter().all(|bytes| *bytes <= CHUNK_BYTES));
}

#[test]
fn a_reader_that_never_drains_does_not_grow_the_buffer() {
    let mut outbox = Outbox::new(Framing::Stream);
    let entry = entry(0, 1_000);
    for _ in 0..40 {
        push(&mut outbox, &entry);
    }
    for _ in 0..5_000 {
        push(&mut outbox, &entry);
        let written = take(&mut outbox, 1_015).len();
        assert_eq!(written, 1_015);
    }
    assert!(outbox.heap_bytes() < 8 * CHUNK_BYTES, "{} bytes", outbox.heap_bytes());
}

/// A reader that is megabytes behind and takes as much as comes holds what waits for it, not what
/// it has taken already.
#[test]
fn a_slow_reader_holds_little_more_than_what_waits_for_it() {
    for framing in [Framing::Stream, Framing::WebSocket, Framing::Packets] {
        let mut outbox = Outbox::new(framing);
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        for number in 0..3_000 {
            push(&mut outbox, &entry(number, 1_000));
            sent.push(number + 1);
            if number == 1_500 {
                taken.extend(take(&mut outbox, 100));
            }
            if number > 1_500 {
                taken.extend(take(&mut outbox, 1_000));
                let (held, queued) = (outbox.heap_bytes(), outbox.queued_bytes());
                assert!(held <= queued / 4 * 5 + 4 * CHUNK_BYTES, "{held} bytes held of {queued}");
            }
        }
        taken.extend(take_all(&mut outbox));
        assert!(outbox.heap_bytes() <= CHUNK_BYTES, "{} bytes held of nothing", outbox.heap_bytes());
        if framing != Framing::WebSocket {
            assert_eq!(read(&taken).0, sent);
        }
    }
}

#[test]
fn shared_bytes_are_those_of_entries_that_wait() {
    let counted = EntryBytes::default();
    let shared = Entry::new(entry(1, 30_000), &counted);
    let len = shared.len();
    assert_eq!(counted.get(), len);
    for compress in [false, true] {
        let mut outbox = Outbox::new(Framing::Stream);
        if compress {
            outbox.set_compress();
        }
        push(&mut outbox, &entry(2, 10));
        assert_eq!(outbox.shared_bytes(), 0);
        outbox.push_shared(&shared, false);
        let waiting = outbox.shared_bytes();
        assert_eq!(waiting, if compress { shared.snappy().len() } else { len });
        while !outbox.is_empty() {
            take(&mut outbox, 7_000);
            assert!(outbox.shared_bytes() <= outbox.queued_bytes());
        }
        assert_eq!(outbox.shared_bytes(), 0);
    }
    assert_eq!(counted.get(), len + shared.snappy().len());
    drop(shared);
    assert_eq!(counted.get(), 0);
}
