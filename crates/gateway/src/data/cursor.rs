//! Reading and writing protobuf wire bytes: varints, records, length prefixes.
//!
//! A *record* is one tag with its payload. Two readers share this file: [`skip_payload`] and
//! [`read_varint`] report errors and serve the validator; [`Records`] walks bytes that were
//! validated before and simply ends where bytes do not parse.

pub(crate) use throng_wire::{varint_len, write_varint};

/// Wire type of varints.
pub(crate) const VARINT: u8 = 0;
/// Wire type of eight little-endian bytes.
pub(crate) const FIXED64: u8 = 1;
/// Wire type of length-delimited payloads.
pub(crate) const LEN: u8 = 2;
/// Wire type that opens a proto2 group.
pub(crate) const GROUP_START: u8 = 3;
/// Wire type that closes a proto2 group.
pub(crate) const GROUP_END: u8 = 4;
/// Wire type of four little-endian bytes.
pub(crate) const FIXED32: u8 = 5;

/// Largest field number protobuf allows.
pub(crate) const FIELD_NUMBER_MAX: u64 = (1 << 29) - 1;

/// Reads a varint at `*pos` and moves past it; `None` when it is cut short or longer than ten
/// bytes.
///
/// Made for tags and lengths, nearly all of one byte: a second inlined case costs the walks over
/// records more than it saves.
#[inline]
pub(crate) fn read_varint(bytes: &[u8], pos: &mut usize) -> Option<u64> {
    let first = *bytes.get(*pos)?;
    if first < 0x80 {
        *pos += 1;
        return Some(u64::from(first));
    }
    read_varint_slow(bytes, pos)
}

/// As [`read_varint`], made for keys of maps, mostly of two bytes.
#[inline]
pub(crate) fn read_key_varint(bytes: &[u8], pos: &mut usize) -> Option<u64> {
    match bytes.get(*pos..)? {
        [a, b, ..] if *a >= 0x80 && *b < 0x80 => {
            *pos += 2;
            Some(u64::from(*a & 0x7f) | u64::from(*b) << 7)
        }
        _ => read_varint(bytes, pos),
    }
}

#[inline(never)]
fn read_varint_slow(bytes: &[u8], pos: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for (i, &byte) in bytes.get(*pos..)?.iter().take(10).enumerate() {
        // The tenth byte holds one bit only.
        if i == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *pos += i + 1;
            return Some(value);
        }
    }
    None
}

/// Appends what `body` writes, preceded by its length.
///
/// The length is not known before, so the body is moved up by the few bytes of its prefix
/// afterwards: one copy of the body, against a second walk over the tree to measure it.
pub(crate) fn write_prefixed<R>(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let start = out.len();
    // Most nested messages are shorter than 128 bytes.
    out.push(0);
    let result = body(out);
    let len = out.len() - start - 1;
    let extra = varint_len(len as u64) - 1;
    if extra > 0 {
        let end = out.len();
        out.resize(end + extra, 0);
        out.copy_within(start + 1..end, start + 1 + extra);
    }
    let mut value = len;
    for byte in &mut out[start..=start + extra] {
        *byte = (value & 0x7f) as u8 | 0x80;
        value >>= 7;
    }
    out[start + extra] &= 0x7f;
    result
}

/// Moves past one payload of wire type `wire` that belongs to field `number`.
///
/// `depth` is how many more groups may open. `None` when the bytes are cut short or the type does
/// not exist.
pub(crate) fn skip_payload(bytes: &[u8], pos: &mut usize, number: u64, wire: u8, depth: u32) -> Option<()> {
    match wire {
        VARINT => {
            read_varint(bytes, pos)?;
        }
        FIXED64 => *pos += 8,
        FIXED32 => *pos += 4,
        LEN => {
            let len = read_varint(bytes, pos)?;
            *pos = pos.checked_add(usize::try_from(len).ok()?)?;
        }
        GROUP_START => loop {
            let tag = read_varint(bytes, pos)?;
            let (inner, inner_wire) = (tag >> 3, (tag & 7) as u8);
            if inner == 0 || inner > FIELD_NUMBER_MAX {
                return None;
            }
            if inner_wire == GROUP_END {
                if inner != number {
                    return None;
                }
                break;
            }
            skip_payload(bytes, pos, inner, inner_wire, depth.checked_sub(1)?)?;
        },
        _ => return None,
    }
    (*pos <= bytes.len()).then_some(())
}

/// One field occurrence on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// Field number.
    pub(crate) number: u32,
    /// Wire type.
    pub(crate) wire: u8,
    /// The whole occurrence, tag included.
    pub(crate) raw: &'a [u8],
    /// What follows the tag; for length-delimited records what follows the length.
    pub(crate) payload: &'a [u8],
}

/// Iterator over the records of bytes that passed validation.
#[derive(Clone, Debug)]
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Records<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    /// Offset of the next record.
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        let start = self.pos;
        let mut pos = start;
        let tag = read_varint(self.bytes, &mut pos)?;
        let (number, wire) = ((tag >> 3) as u32, (tag & 7) as u8);
        let mut from = pos;
        match wire {
            LEN => {
                let len = read_varint(self.bytes, &mut pos)? as usize;
                from = pos;
                pos = pos.checked_add(len)?;
            }
            FIXED32 => pos += 4,
            FIXED64 => pos += 8,
            VARINT => {
                read_varint(self.bytes, &mut pos)?;
            }
            _ => skip_payload(self.bytes, &mut pos, u64::from(number), wire, 100)?,
        }
        let (raw, payload) = (self.bytes.get(start..pos)?, self.bytes.get(from..pos)?);
        self.pos = pos;
        Some(Record { number, wire, raw, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_at_every_length() {
        for bits in 0..64 {
            for value in [1u64 << bits, (1u64 << bits) - 1, u64::MAX >> bits] {
                let mut out = Vec::new();
                write_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value), "{value}");
                let mut pos = 0;
                assert_eq!(read_varint(&out, &mut pos), Some(value));
                assert_eq!(pos, out.len());
                assert_eq!(read_varint(&out[..out.len() - 1], &mut 0), None);
            }
        }
        assert_eq!(read_varint(&[0xff; 10], &mut 0), None);
        assert_eq!(read_varint(&[0x80; 11], &mut 0), None);
    }

    #[test]
    fn prefixed_bodies_carry_their_length() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let mut out = vec![9];
            write_prefixed(&mut out, |out| out.extend((0..len).map(|i| i as u8)));
            let mut pos = 1;
            assert_eq!(read_varint(&out, &mut pos), Some(len as u64));
            assert_eq!(pos, 1 + varint_len(len as u64));
            assert!(out[pos..].iter().enumerate().all(|(i, &b)| b == i as u8));
            assert_eq!(out.len() - pos, len);
        }
    }

    #[test]
    fn groups_are_skipped_whole_or_refused() {
        // field 1 group { field 2 varint 5 }
        let good = [0x0b, 0x10, 0x05, 0x0c];
        assert_eq!(skip_payload(&good, &mut 1, 1, GROUP_START, 10), Some(()));
        let wrong_end = [0x0b, 0x10, 0x05, 0x14];
        assert_eq!(skip_payload(&wrong_end, &mut 1, 1, GROUP_START, 10), None);
        let deep = vec![0x0b; 50];
        assert_eq!(skip_payload(&deep, &mut 1, 1, GROUP_START, 10), None);
    }
}
