//! Packets, version 2. Little endian.
//!
//! A packet is a header of [`HEADER_BYTES`] and sections until its end. A section is `u8 kind`,
//! `varint count` and `count` items, each byte aligned. `docs/replication.md` has the tables with a
//! worked example.

use crate::bits::{BitReader, BitWriter};
use crate::class::Class;

/// Version of the format. Peers of another version are refused by
/// [`Server::check_protocol`](crate::Server::check_protocol).
pub const PROTOCOL_VERSION: u16 = 2;
/// Bytes before the first section.
pub const HEADER_BYTES: usize = 16;
/// Least and most bytes of the largest packet: parts and lengths of 16 bits have room.
pub(crate) const PACKET_BYTES: (usize, usize) = (64, 65_535);
/// Packets that one acknowledgement can speak of: the newest and 64 before it.
pub const ACK_WINDOW: u16 = 65;
/// Deepest baseline, in frames: what 5 bits can name.
pub const BASELINE_AGE_MAX: u32 = 32;

/// Kinds of sections.
pub mod kind {
    /// Update records.
    pub const UPDATE: u8 = 0x01;
    /// Create items.
    pub const CREATE: u8 = 0x02;
    /// Destroy items: varint index, u8 reason.
    pub const DESTROY: u8 = 0x03;
    /// Attachments.
    pub const ATTACH: u8 = 0x04;
    /// Exported strings: u8 table, varint number, varint length, UTF-8.
    pub const TOKENS: u8 = 0x05;
    /// Update records that a receiver without the object can skip: u16 length, then a record.
    pub const SIZED_UPDATE: u8 = 0x06;
    /// Slices of sections too large for one packet: varint index, u16 transfer, u16 part, u16
    /// parts, u16 length, bytes.
    pub const PART: u8 = 0x07;
    /// Clock samples: u32 frame, u32 milliseconds.
    pub const TIME: u8 = 0x08;
    /// Operations on keyed arrays: varint index, u8 array, u16 length, operations.
    pub const KEYED: u8 = 0x09;
    /// Changes of owners and parents: varint index, u8 flags (1 owner, 2 parent), with 2 varint
    /// parent and varint generation.
    pub const ROLE: u8 = 0x0a;
    /// Kinds from here on carry a length and may be skipped.
    pub const SKIPPABLE: u8 = 0x80;
    /// From receiver to sender: varint indices of objects whose baseline is missing.
    pub const BASELINE_RESET: u8 = 0x81;
    /// From receiver to sender: bytes for the game, at most once.
    pub const INPUT: u8 = 0x82;
    /// Hashes of states: u16 oldest packet under way, then items of varint index, varint mask, u32
    /// hash.
    pub const CHECK: u8 = 0x83;
}

/// Why bytes from outside were refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("the packet ends inside a field")]
    Truncated,
    /// A variable-length integer that does not fit.
    #[error("a variable-length integer does not fit")]
    Varint,
    /// A value outside its kind's range.
    #[error("a value is outside the range of its kind")]
    Value,
    /// A length above its limit.
    #[error("a length exceeds its limit")]
    TooLong,
    /// A section kind that must be known.
    #[error("unknown section kind")]
    Section,
    /// An object index above the limit, or zero.
    #[error("an object index is out of range")]
    Index,
    /// A class id that is not registered.
    #[error("unknown class")]
    Class,
    /// An update without length for an object that is not known.
    #[error("an update names an unknown object")]
    UnknownObject,
    /// An acknowledgement of a packet that was never sent.
    #[error("a packet that was never sent was acknowledged")]
    AckUnsent,
    /// Something that this side of the protocol must not send.
    #[error("the peer sent a section that its side must not send")]
    Forbidden,
}

/// The first 16 bytes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Number of the packet in its direction, wrapping.
    pub seq: u16,
    /// Newest number that was received and applied.
    pub ack: u16,
    /// Bit i: `ack - 1 - i` was applied.
    pub ack_bits: u64,
    /// Sender's frame.
    pub frame: u32,
}

impl Header {
    /// The header as bytes.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let (seq, ack) = (u128::from(self.seq), u128::from(self.ack));
        let all = seq | ack << 16 | u128::from(self.ack_bits) << 32 | u128::from(self.frame) << 96;
        all.to_le_bytes()
    }

    /// Splits a packet into header and sections.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] below 16 bytes.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (head, rest) = packet.split_first_chunk::<HEADER_BYTES>().ok_or(DecodeError::Truncated)?;
        let all = u128::from_le_bytes(*head);
        let (seq, ack) = (all as u16, (all >> 16) as u16);
        Ok((Self { seq, ack, ack_bits: (all >> 32) as u64, frame: (all >> 96) as u32 }, rest))
    }
}

/// `a` is newer than `b` in 16-bit serial arithmetic.
#[must_use]
pub fn seq_newer(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) > 0
}

/// Which packets were applied, as told in every header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckState {
    /// Newest applied packet, if any.
    newest: Option<u16>,
    bits: u64,
}

impl AckState {
    /// Newest and window for a header. Before the first packet it names 65535, which nobody has
    /// sent then.
    #[must_use]
    pub fn fields(&self) -> (u16, u64) {
        (self.newest.unwrap_or(u16::MAX), self.bits)
    }

    /// True when a packet of this number may still be applied: it is newer than all before.
    #[must_use]
    pub fn is_new(&self, seq: u16) -> bool {
        self.newest.is_none_or(|newest| seq_newer(seq, newest))
    }

    /// Notes that packet `seq`, newer than all before, was applied.
    pub fn applied(&mut self, seq: u16) {
        if let Some(newest) = self.newest {
            let step = u32::from(seq.wrapping_sub(newest));
            self.bits = self.bits.checked_shl(step).unwrap_or(0);
            if step <= 64 {
                self.bits |= 1 << (step - 1);
            }
        }
        self.newest = Some(seq);
    }
}

/// Writes a change mask of `count` properties.
#[inline]
pub fn write_mask(writer: &mut BitWriter<'_>, mask: u64, count: u32) {
    if count <= 32 {
        writer.put(mask, count);
        return;
    }
    let groups = count.div_ceil(16);
    for group in 0..groups {
        writer.put_bool(mask >> (16 * group) & 0xffff != 0);
    }
    for group in 0..groups {
        let bits = mask >> (16 * group) & 0xffff;
        if bits != 0 {
            writer.put(bits, 16);
        }
    }
}

/// Reads a change mask of `count` properties.
///
/// # Errors
/// When the bits end or name a property that does not exist.
pub fn read_mask(reader: &mut BitReader<'_>, count: u32) -> Result<u64, DecodeError> {
    if count <= 32 {
        return reader.get(count);
    }
    let groups = reader.get(count.div_ceil(16))?;
    let mut mask = 0;
    for group in 0..count.div_ceil(16) {
        if groups >> group & 1 != 0 {
            mask |= reader.get(16)? << (16 * group);
        }
    }
    if mask & !crate::quantise::mask(count) == 0 { Ok(mask) } else { Err(DecodeError::Value) }
}

/// One heap value: wire bytes and how many of their bits count.
pub(crate) type HeapValue = (Vec<u8>, u32);

/// Appends an update record of the properties in `mask` to `out`, with whole values and not
/// differences. `index` is the object's, `q` its quantised block
/// ([`Class::quantised_words`] words). `heap` has the values that live outside the block, in the
/// order of their properties, as wire bytes and the bits that count; empty for a class without
/// strings, blobs, lists, options and enums.
///
/// # Panics
/// When `q` or `heap` is shorter than the class needs.
#[inline]
pub fn write_record(
    out: &mut Vec<u8>,
    index: u32,
    class: &Class,
    mask: u64,
    q: &[u64],
    heap: &[(Vec<u8>, u32)],
) {
    if class.plain && class.record_bytes_max <= PLAIN_BYTES_MAX {
        write_plain(out, index, class, mask, q);
        return;
    }
    crate::bits::write_varint(out, u64::from(index));
    let mut writer = BitWriter::new(out);
    let full = mask == class.update_mask;
    writer.put_bool(full);
    if !full {
        write_mask(&mut writer, mask, class.props.len() as u32);
    }
    writer.put_bool(false);
    write_properties(&mut writer, class, mask, q, heap);
    writer.finish();
}

/// Records up to this length are put together in registers.
const PLAIN_BYTES_MAX: usize = 64;

/// A record whose properties are one word of fixed width each: the usual case, and the hottest loop
/// of the shared stage. The same bits as the general way.
#[inline]
fn write_plain(out: &mut Vec<u8>, index: u32, class: &Class, mask: u64, q: &[u64]) {
    let mut words = [[0_u8; 8]; PLAIN_BYTES_MAX / 8 + 1];
    let (mut word, mut used, mut full) = (0_u64, 0_u32, 0_usize);
    let mut put = |value: u64, bits: u32| {
        word |= value << used;
        let total = used + bits;
        if total >= 64 {
            words[full] = word.to_le_bytes();
            full += 1;
            // Nothing is left of a value that ends with the word.
            word = value >> 1 >> (63 - used);
            used = total - 64;
        } else {
            used = total;
        }
    };
    let mut rest = u64::from(index);
    while rest >= 0x80 {
        put(rest & 0x7f | 0x80, 8);
        rest >>= 7;
    }
    put(rest, 8);
    let count = class.props.len() as u32;
    if mask == class.update_mask {
        put(1, 2);
    } else if count <= 32 {
        // Not full, the mask, no difference.
        put(mask << 1, count + 2);
    } else {
        put(0, 1);
        let groups = count.div_ceil(16);
        for group in 0..groups {
            put(u64::from(mask >> (16 * group) & 0xffff != 0), 1);
        }
        for group in 0..groups {
            let bits = mask >> (16 * group) & 0xffff;
            if bits != 0 {
                put(bits, 16);
            }
        }
        put(0, 1);
    }
    if mask == class.all_mask() {
        for (value, bits) in q.iter().zip(&class.word_bits) {
            put(*value, u32::from(*bits));
        }
    } else {
        for property in bits_of(mask) {
            let (Some(value), Some(bits)) = (q.get(property), class.word_bits.get(property)) else { break };
            put(*value, u32::from(*bits));
        }
    }
    words[full] = word.to_le_bytes();
    // More than needed, but of a known length, which takes no call.
    let from = out.len();
    out.extend_from_slice(words.as_flattened());
    out.truncate(from + full * 8 + used.div_ceil(8) as usize);
}

/// Writes an update record whose properties are differences to `base`, the state of `age` frames
/// ago (1 to 32).
pub fn write_delta_record(
    out: &mut Vec<u8>,
    index: u32,
    class: &Class,
    mask: u64,
    (base, age): (&[u64], u32),
    q: &[u64],
    heap: &[(Vec<u8>, u32)],
) {
    crate::bits::write_varint(out, u64::from(index));
    let mut writer = BitWriter::new(out);
    let full = mask == class.update_mask;
    writer.put_bool(full);
    if !full {
        write_mask(&mut writer, mask, class.props.len() as u32);
    }
    writer.put_bool(true);
    writer.put(u64::from(age - 1), 5);
    let mut moved = [0; crate::WORDS_MAX];
    for at in bits_of(mask) {
        let prop = &class.props[at];
        if prop.codec.is_heap() {
            // Never "same": whether the receiver's copy is the baseline's is not known for values
            // off the block.
            writer.put_bool(false);
            let (bytes, bits) = &heap[prop.heap];
            writer.put_bits(bytes, *bits);
        } else {
            let from = class.ahead(at, (base, age), &mut moved);
            prop.codec.write_delta(from, prop.words(q), &mut writer);
        }
    }
    writer.finish();
}

/// Writes the properties of `mask` in order, plain.
#[inline]
pub(crate) fn write_properties(
    writer: &mut BitWriter<'_>,
    class: &Class,
    mask: u64,
    q: &[u64],
    heap: &[HeapValue],
) {
    for at in bits_of(mask) {
        let prop = &class.props[at];
        if prop.codec.is_heap() {
            let (bytes, bits) = &heap[prop.heap];
            writer.put_bits(bytes, *bits);
        } else {
            prop.codec.write(prop.words(q), writer);
        }
    }
}

/// Places of the set bits, ascending.
#[inline]
pub(crate) fn bits_of(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        (mask != 0).then(|| {
            let at = mask.trailing_zeros();
            mask &= mask - 1;
            at as usize
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_sixteen_bytes_little_endian() {
        let header = Header { seq: 0x0102, ack: 0x0304, ack_bits: 0x1122_3344_5566_7788, frame: 0xa0b0_c0d0 };
        let bytes = header.to_bytes();
        assert_eq!(
            bytes,
            [2, 1, 4, 3, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xd0, 0xc0, 0xb0, 0xa0]
        );
        assert_eq!(Header::parse(&bytes), Ok((header, &[][..])));
        assert_eq!(Header::parse(&bytes[..15]), Err(DecodeError::Truncated));
    }

    #[test]
    fn masks_come_back() {
        let mut rng = throng_stdx::Rng::new(2);
        for count in 1..=64 {
            for _ in 0..50 {
                let mask = rng.next_u64() & rng.next_u64() & crate::quantise::mask(count);
                let mut out = Vec::new();
                let mut writer = BitWriter::new(&mut out);
                write_mask(&mut writer, mask, count);
                writer.finish();
                assert_eq!(read_mask(&mut BitReader::new(&out), count), Ok(mask));
            }
        }
        // 33 properties have three groups; the third has one property.
        assert_eq!(read_mask(&mut BitReader::new(&[0b0001_0100, 0, 0]), 33), Err(DecodeError::Value));
    }

    #[test]
    fn the_quick_way_writes_the_same_bits() {
        use crate::{Axis, Property, Quantiser};
        let mut rng = throng_stdx::Rng::new(12);
        for count in [3, 13, 32, 33, 50] {
            let axis = Axis::new(0.0, 1.0, 3);
            let mut builder = Class::builder("plain");
            for at in 0..count {
                let quantiser = if at % 5 == 4 {
                    Quantiser::Vec3([axis; 3])
                } else {
                    Quantiser::UInt(if count > 20 { 1 + at % 8 } else { 20 })
                };
                builder = builder.property(Property::new(format!("p{at}"), quantiser));
            }
            let class = builder.build().unwrap();
            assert!(class.plain && class.record_bytes_max <= PLAIN_BYTES_MAX);
            for round in 0..200 {
                let mask = if round == 0 { class.update_mask } else { rng.next_u64() & class.update_mask };
                let q: Vec<u64> = class
                    .word_bits
                    .iter()
                    .map(|bits| rng.next_u64() & crate::quantise::mask(u32::from(*bits)))
                    .collect();
                let mut quick = Vec::new();
                write_record(&mut quick, 300, &class, mask, &q, &[]);
                let mut general = vec![0xac, 0x02];
                let mut writer = BitWriter::new(&mut general);
                writer.put_bool(mask == class.update_mask);
                if mask != class.update_mask {
                    write_mask(&mut writer, mask, class.props.len() as u32);
                }
                writer.put_bool(false);
                write_properties(&mut writer, &class, mask, &q, &[]);
                writer.finish();
                assert_eq!(quick, general);
            }
        }
    }

    #[test]
    fn acknowledgements_cover_sixty_five() {
        let mut state = AckState::default();
        assert_eq!(state.fields(), (u16::MAX, 0));
        for seq in [0, 1, 3] {
            assert!(state.is_new(seq));
            state.applied(seq);
        }
        assert_eq!(state.fields(), (3, 0b110));
        assert!(!state.is_new(2) && !state.is_new(3));
        state.applied(3 + 64);
        assert_eq!(state.fields(), (67, 1 << 63));
        state.applied(67 + 65);
        assert_eq!(state.fields().1, 0);
        assert!(state.is_new(132_u16.wrapping_add(32767)));
        assert!(!state.is_new(132_u16.wrapping_add(32768)));
    }
}
