//! The channel data of the simulated world on the wire: updates cut to fit frames, and the stamps
//! read back.

use std::collections::BTreeMap;

use throng_wire::{varint_len, write_varint};

use crate::protocol::{self, Fields, PACKET_BYTES_MAX, put_bytes};
use crate::world::{CHARACTER_BYTES, World};

/// Full name of the channel-data message.
pub const TYPE_NAME: &str = "throng.demo.Arena";
/// The schema that a server under test must know, as `.proto` source. Its file name is
/// `demo.proto`.
pub const SCHEMA: &str = include_str!("../proto/demo.proto");

/// Bytes of an update's value: a frame, less the envelope (type URL, lengths, ids) and the entry
/// that reaches the limit.
const VALUE_BYTES_MAX: usize = PACKET_BYTES_MAX - 96 - ENTRY_BYTES_MAX;
/// Bytes of a character's map entry: two tags and lengths around a key of up to five bytes and the
/// state.
const ENTRY_BYTES_MAX: usize = 2 + 6 + 2 + CHARACTER_BYTES;
/// Parts whose stamps a receiver keeps apart; more than enough for the largest world.
pub(crate) const PARTS_MAX: usize = 8;

/// Age mark of one part of an update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) part: usize,
    pub(crate) sent_ns: u64,
    pub(crate) frame: u32,
}

/// Calls `each` with the bodies of the CHANNEL_DATA_UPDATEs for the characters with these indices:
/// one if they fit one frame, which about 1,000 do, else several parts.
///
/// Player numbers are index + 1. Without characters there is no update.
pub(crate) fn updates(world: &World, indices: &[usize], sent_ns: u64, mut each: impl FnMut(&[u8])) {
    let mut value = Vec::new();
    let mut body = Vec::new();
    let mut indices = indices.iter().copied().peekable();
    let mut part = 0;
    while indices.peek().is_some() {
        value.clear();
        put_stamp(&mut value, Stamp { part, sent_ns, frame: world.frame() });
        while let Some(index) = indices.next_if(|_| value.len() <= VALUE_BYTES_MAX) {
            put_character(&mut value, world, index);
        }
        body.clear();
        protocol::update_body(&mut body, TYPE_NAME, &value);
        each(&body);
        part += 1;
    }
}

fn put_character(value: &mut Vec<u8>, world: &World, index: usize) {
    let number = index as u64 + 1;
    value.push(2 << 3 | 2);
    write_varint(value, (1 + varint_len(number) + 2 + CHARACTER_BYTES) as u64);
    value.push(1 << 3);
    write_varint(value, number);
    value.push(2 << 3 | 2);
    value.push(CHARACTER_BYTES as u8);
    world.characters()[index].encode(value);
}

/// An update that only has the size of one: a stamp, if given, and `padding` bytes that receivers
/// skip.
pub(crate) fn padded_update(stamp: Option<Stamp>, padding: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(padding + 64);
    if let Some(stamp) = stamp {
        put_stamp(&mut value, stamp);
    }
    put_bytes(&mut value, 15, &vec![0; padding]);
    let mut body = Vec::with_capacity(padding + 128);
    protocol::update_body(&mut body, TYPE_NAME, &value);
    body
}

fn put_stamp(out: &mut Vec<u8>, stamp: Stamp) {
    let mut mark = Vec::with_capacity(16);
    mark.push(1 << 3 | 1);
    mark.extend_from_slice(&stamp.sent_ns.to_le_bytes());
    mark.push(2 << 3 | 5);
    mark.extend_from_slice(&stamp.frame.to_le_bytes());
    let mut entry = Vec::with_capacity(20);
    entry.push(1 << 3);
    write_varint(&mut entry, stamp.part as u64);
    put_bytes(&mut entry, 2, &mark);
    put_bytes(out, 1, &entry);
}

/// The stamps at the start of (the beginning of) an arena value.
pub(crate) fn stamps(value: &[u8]) -> impl Iterator<Item = Stamp> + '_ {
    Fields(value).take_while(|&(field, _)| field == 1).map(|(_, entry)| {
        let mut stamp = Stamp::default();
        for (field, value) in Fields(entry.bytes()) {
            match field {
                1 => stamp.part = usize::try_from(value.number()).unwrap_or(usize::MAX),
                _ => {
                    for (field, value) in Fields(value.bytes()) {
                        match field {
                            1 => stamp.sent_ns = value.number(),
                            _ => stamp.frame = value.number() as u32,
                        }
                    }
                }
            }
        }
        stamp
    })
}

/// State of a subscriber that reads everything: player number to encoded character.
pub(crate) type View = BTreeMap<u32, Vec<u8>>;

/// Merges a complete arena value into `view`; false when it is malformed.
#[must_use]
pub(crate) fn merge(view: &mut View, value: &[u8]) -> bool {
    let mut bytes = 0;
    for (field, entry) in Fields(value) {
        bytes += 1 + varint_len(entry.bytes().len() as u64) + entry.bytes().len();
        if field != 2 {
            continue;
        }
        let (mut number, mut state) = (0, &[][..]);
        for (field, value) in Fields(entry.bytes()) {
            match field {
                1 => number = value.number() as u32,
                _ => state = value.bytes(),
            }
        }
        if number == 0 || state.len() != CHARACTER_BYTES {
            return false;
        }
        view.insert(number, state.to_vec());
    }
    bytes == value.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Head, kind, put_message, update_value};

    #[test]
    fn every_part_fits_a_frame_and_carries_its_stamp_first() {
        let mut world = World::new(1, 2_000);
        world.step();
        let everyone: Vec<usize> = (0..2_000).collect();
        let mut view = View::new();
        let mut parts = 0;
        updates(&world, &everyone, 77, |body| {
            let head = Head { channel: u32::MAX, kind: kind::CHANNEL_DATA_UPDATE, ..Head::default() };
            put_message(&mut Vec::new(), head, body);
            let found: Vec<_> = stamps(update_value(&body[..384])).collect();
            assert_eq!(found, [Stamp { part: parts, sent_ns: 77, frame: 1 }]);
            assert!(merge(&mut view, update_value(body)));
            parts += 1;
        });
        assert_eq!((parts, view.len()), (2, 2_000));
        let mut state = Vec::new();
        world.characters()[41].encode(&mut state);
        assert_eq!(view[&42], state);
    }

    #[test]
    fn malformed_values_are_noticed() {
        assert!(!merge(&mut View::new(), &[2 << 3 | 2, 4, 1 << 3, 1, 2 << 3 | 2, 0]), "short character");
        assert!(!merge(&mut View::new(), &[0xff, 0xff]), "no field");
    }
}
