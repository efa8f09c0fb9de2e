//! Base-128 varints, the number format of protobuf.

use crate::WireError;

/// Most bytes a varint takes: 10 groups of 7 bits hold 64 bits.
pub const VARINT_BYTES_MAX: usize = 10;

/// Reads one varint off the front of `input`.
///
/// Encodings longer than necessary are accepted, as protobuf demands. After an error `input` is
/// unchanged.
///
/// # Errors
/// [`WireError::Truncated`] if `input` ends inside it, [`WireError::VarintTooLong`] if it does not
/// fit 64 bits.
#[inline]
pub fn read_varint(input: &mut &[u8]) -> Result<u64, WireError> {
    let mut at = 0;
    let Some(value) = read_varint_at(input, &mut at) else { return Err(varint_defect(input)) };
    *input = &input[at..];
    Ok(value)
}

/// Reads the varint at `*at` and moves `*at` behind it; `None`, moving nothing, where
/// [`read_varint`] has an error.
///
/// For loops over many numbers: a position in a local variable stays in a register.
#[inline(always)] // Where `at` has an address, every step of the caller's loop goes through memory.
pub fn read_varint_at(bytes: &[u8], at: &mut usize) -> Option<u64> {
    // Nearly all numbers of the protocol take one byte (tags, types) or two (lengths): keep those
    // inline.
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(first.into());
    }
    let second = *bytes.get(*at + 1)?;
    if second < 0x80 {
        *at += 2;
        return Some(u64::from(first & 0x7F) | u64::from(second) << 7);
    }
    let (value, len) = long_varint(&bytes[*at..])?;
    *at += len;
    Some(value)
}

/// The varint at the front and its length.
#[inline(never)]
fn long_varint(input: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, byte) in input.iter().enumerate().take(VARINT_BYTES_MAX) {
        // Ten groups are 70 bits; the last group has room for one.
        if index == VARINT_BYTES_MAX - 1 && *byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7F) << (7 * index);
        if *byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

/// Why there is no varint at the front of `input`.
#[cold]
fn varint_defect(input: &[u8]) -> WireError {
    if input.len() < VARINT_BYTES_MAX { WireError::Truncated } else { WireError::VarintTooLong }
}

/// Appends `value` in its shortest form.
#[inline]
pub fn write_varint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else {
        write_long_varint(out, value);
    }
}

/// Apart, so that the short form, which nearly all have, is small enough to be inlined.
#[inline(never)]
fn write_long_varint(out: &mut Vec<u8>, value: u64) {
    let mut prefix = Prefix::new();
    prefix.varint(value);
    out.extend_from_slice(prefix.as_slice());
}

/// Bytes that [`write_varint`] appends for `value`: 1 to 10.
#[inline]
#[must_use]
pub const fn varint_len(value: u64) -> usize {
    // Every 7 bits begun take a byte: ceil(bits / 7) by multiplication, for bits in 1..=64.
    let bits = 64 - (value | 1).leading_zeros() as usize;
    (bits * 9 + 64) / 64
}

/// The few bytes in front of a body, put together on the stack so that they reach the output in one
/// copy.
///
/// ```text
/// |  gap  | numbers, tags and lengths |        |
///      ^ start                        ^ end
/// ```
///
/// A length that covers the bytes themselves is put in front of them last, into the gap, which
/// saves a first round that only counts.
pub(crate) struct Prefix {
    bytes: [u8; Self::BYTES_MAX],
    start: usize,
    end: usize,
}

impl Prefix {
    /// Room for a one-byte tag and a length of 32 bits.
    const GAP: usize = 6;
    /// The longest user is a forwarded message: four numbers of 32 bits and the body's length, then
    /// the client and the payload's length, with a tag each.
    const BYTES_MAX: usize = Self::GAP + 4 * 6 + 6 + 6 + 1 + VARINT_BYTES_MAX;

    #[inline]
    pub(crate) fn new() -> Prefix {
        Prefix { bytes: [0; Self::BYTES_MAX], start: Self::GAP, end: Self::GAP }
    }

    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes[self.end] = byte;
        self.end += 1;
    }

    #[inline]
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Puts a one-byte tag and the length of everything behind them in front: what is there already
    /// and `more_bytes`.
    #[inline]
    pub(crate) fn enclose(&mut self, tag: u8, more_bytes: usize) {
        let mut len = self.end - self.start + more_bytes;
        self.start -= 1 + varint_len(len as u64);
        let mut at = self.start;
        self.bytes[at] = tag;
        at += 1;
        while len >= 0x80 {
            self.bytes[at] = len as u8 | 0x80;
            at += 1;
            len >>= 7;
        }
        self.bytes[at] = len as u8;
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_round_trips() {
        for bits in 0..64 {
            for value in [1u64 << bits, (1u64 << bits) - 1, u64::MAX >> bits] {
                let mut bytes = Vec::new();
                write_varint(&mut bytes, value);
                assert_eq!(bytes.len(), varint_len(value), "{value}");
                let mut input = bytes.as_slice();
                assert_eq!(read_varint(&mut input), Ok(value));
                assert!(input.is_empty());
            }
        }
    }

    #[test]
    fn truncated_and_overlong_are_errors() {
        let check = |bytes: &[u8], expected| {
            let mut input = bytes;
            assert_eq!(read_varint(&mut input), Err(expected), "{bytes:02x?}");
            assert_eq!(input, bytes, "an error consumes nothing");
            let mut at = 0;
            assert_eq!((read_varint_at(bytes, &mut at), at), (None, 0), "{bytes:02x?}");
        };
        check(&[], WireError::Truncated);
        check(&[0x80], WireError::Truncated);
        check(&[0x80; 9], WireError::Truncated);
        check(&[0x80; 10], WireError::VarintTooLong);
        check(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02], WireError::VarintTooLong);
    }

    #[test]
    fn longer_than_necessary_is_accepted() {
        let mut input: &[u8] = &[0x81, 0x80, 0x80, 0x00, 7];
        assert_eq!(read_varint(&mut input), Ok(1));
        assert_eq!(input, [7]);
    }
}
