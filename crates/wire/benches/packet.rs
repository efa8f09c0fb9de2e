//! Cost of the envelope: one packet of 8 messages, 608 bytes, as a busy subscriber gets it.
//!
//! `cargo bench -p throng-wire`; `cargo test -p throng-wire --benches` runs each once.

use std::ops::ControlFlow;

use divan::{Bencher, black_box, counter::ItemsCount};
use throng_wire::{
    Compressor, FrameReader, MessagePack, Packet,
    frame::{Compression, Form, Scratch, TAG_BYTES, tag},
    write_data_update_entry, write_entry, write_forward_entry, write_frame,
};

const MESSAGES: usize = 8;

fn main() {
    divan::main();
}

/// The messages of the packet: 67 bytes of body each, which makes 76 of entry.
fn with_messages<R>(f: impl FnOnce(&[MessagePack<'_>]) -> R) -> R {
    let body: Vec<u8> = (0..67u8).map(|i| i.wrapping_mul(37)).collect();
    let messages: Vec<_> = (0..MESSAGES as u32)
        .map(|i| MessagePack { channel_id: 1000 + i, msg_type: 8, body: &body, ..MessagePack::default() })
        .collect();
    f(&messages)
}

fn packet() -> Vec<u8> {
    let mut packet = Vec::new();
    with_messages(|messages| messages.iter().for_each(|message| write_entry(&mut packet, message)));
    assert_eq!(packet.len(), 608);
    packet
}

fn frame() -> Vec<u8> {
    let packet = packet();
    [&tag(packet.len(), Compression::None)[..], &packet].concat()
}

/// Looks at everything a gateway looks at. Not inlined, as no real consumer is: into the measuring
/// loop it gets too few registers and costs half as much again.
#[inline(never)]
fn consume(packet: Packet<'_>) -> usize {
    packet.messages().fold(0, |sum, message| {
        let numbers = message.channel_id ^ message.msg_type ^ message.stub_id;
        sum ^ numbers as usize ^ message.body.len()
    })
}

#[divan::bench]
fn decode_packet(bencher: Bencher<'_, '_>) {
    let packet = packet();
    bencher
        .counter(ItemsCount::new(MESSAGES))
        .bench_local(|| consume(Packet::parse(black_box(&packet)).expect("valid")));
}

#[divan::bench]
fn decode_frame(bencher: Bencher<'_, '_>) {
    let frame = frame();
    let mut reader = FrameReader::default();
    bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
        let mut sum = 0;
        reader
            .feed(black_box(&frame), &mut |packet| {
                sum ^= consume(packet);
                ControlFlow::Continue(())
            })
            .expect("valid");
        sum
    });
}

/// The same stream in reads that end inside frames: what copying a split frame costs.
#[divan::bench]
fn decode_frame_in_two_pieces(bencher: Bencher<'_, '_>) {
    let frame = frame();
    let mut reader = FrameReader::default();
    bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
        let mut sum = 0;
        for piece in [&frame[..300], &frame[300..]] {
            reader
                .feed(black_box(piece), &mut |packet| {
                    sum ^= consume(packet);
                    ControlFlow::Continue(())
                })
                .expect("valid");
        }
        sum
    });
}

#[divan::bench]
fn decode_snappy_frame(bencher: Bencher<'_, '_>) {
    let mut frame = Vec::new();
    write_frame(&mut frame, &packet(), Some(&mut Compressor::new()), Form::Current);
    assert_eq!(frame[4], 1);
    let mut reader = FrameReader::default();
    let mut scratch = Scratch::default();
    bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
        let mut sum = 0;
        reader
            .feed_with(&mut scratch, black_box(&frame), &mut |packet| {
                sum ^= consume(packet);
                ControlFlow::Continue(())
            })
            .expect("valid");
        sum
    });
}

#[divan::bench]
fn encode_packet(bencher: Bencher<'_, '_>) {
    let mut out = Vec::with_capacity(1024);
    with_messages(|messages| {
        bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
            out.clear();
            black_box(messages).iter().for_each(|message| write_entry(&mut out, message));
            out.len()
        });
    });
}

/// Work of a gateway for every message of a client.
#[divan::bench]
fn encode_forwards(bencher: Bencher<'_, '_>) {
    let mut out = Vec::with_capacity(1024);
    with_messages(|messages| {
        bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
            out.clear();
            for message in black_box(messages) {
                write_forward_entry(&mut out, message, 70_000, message.body);
            }
            out.len()
        });
    });
}

#[divan::bench]
fn encode_data_updates(bencher: Bencher<'_, '_>) {
    let mut out = Vec::with_capacity(1024);
    let value = [7; 30];
    bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
        out.clear();
        for channel_id in 0..MESSAGES as u32 {
            write_data_update_entry(&mut out, channel_id, "type.googleapis.com/game.Data", black_box(&value));
        }
        out.len()
    });
}

#[divan::bench]
fn encode_snappy_frame(bencher: Bencher<'_, '_>) {
    let packet = packet();
    let mut compressor = Compressor::new();
    let mut out = Vec::with_capacity(1024 + TAG_BYTES);
    bencher.counter(ItemsCount::new(MESSAGES)).bench_local(|| {
        out.clear();
        write_frame(&mut out, black_box(&packet), Some(&mut compressor), Form::Current);
        out.len()
    });
}
