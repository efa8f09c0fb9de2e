//! Base-128 varints, the number format of protobuf.

use crate::WireError;

/// Most bytes a varint takes: 10 groups of 7 bits hold 64 bits.
pub const VARINT_BYTES_MAX: usize = 10;

/// Reads one varint off the front of `input`.
///
/// Encodings longer than necessary are accepted, as protobuf demands. After an error `input` is unchanged.
///
/// # Errors
/// [`WireError::Truncated`] if `input` ends inside it, [`WireError::VarintTooLong`] if it does not fit 64 bits.
#[inline]
pub fn read_varint(input: &mut &[u8]) -> Result<u64, WireError> {
    // Nearly all numbers of the protocol take one byte (tags, types) or two (lengths): keep those inline.
    match *input {
        [a, rest @ ..] if *a < 0x80 => {
            *input = rest;
            Ok(u64::from(*a))
        }
        [a, b, rest @ ..] if *b < 0x80 => {
            *input = rest;
            Ok(u64::from(*a & 0x7F) | u64::from(*b) << 7)
        }
        _ => read_varint_long(input),
    }
}

#[inline(never)]
fn read_varint_long(input: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0u64;
    for (index, byte) in input.iter().enumerate().take(VARINT_BYTES_MAX) {
        // Ten groups are 70 bits; the last group has room for one.
        if index == VARINT_BYTES_MAX - 1 && *byte > 1 {
            return Err(WireError::VarintTooLong);
        }
        value |= u64::from(byte & 0x7F) << (7 * index);
        if *byte < 0x80 {
            *input = &input[index + 1..];
            return Ok(value);
        }
    }
    // Ten bytes always end above: the tenth is at most 1.
    Err(WireError::Truncated)
}

/// Appends `value` in its shortest form.
#[inline]
pub fn write_varint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
        return;
    }
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

/// The few bytes in front of a body, put together on the stack so that they reach the output in one copy.
pub(crate) struct Prefix {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
}

impl Prefix {
    /// The longest user is a data update: entry tag and length (1 + 5), two envelope numbers (2 * 6), body, Any
    /// and type-url tags with lengths (3 * 6); a full varint may still follow while the others are short.
    const BYTES_MAX: usize = 64;

    #[inline]
    pub(crate) fn new() -> Prefix {
        Prefix { bytes: [0; Self::BYTES_MAX], len: 0 }
    }

    #[inline]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
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
