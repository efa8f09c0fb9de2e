//! Bit streams: bytes are filled from bit 0 up, a field of n bits is written low bit first.

use crate::wire::DecodeError;

/// Appends fields of 0 to 64 bits to a byte vector.
///
/// Nothing of the last, partial word reaches the vector before [`finish`](Self::finish).
#[derive(Debug)]
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    used: u32,
    start: usize,
}

impl<'a> BitWriter<'a> {
    /// A writer that appends to `out`, beginning at a byte border.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, word: 0, used: 0, start }
    }

    /// Appends the low `bits` bits of `value`, low bit first.
    ///
    /// `bits` is at most 64 and `value` must have no bit above them.
    #[inline]
    pub fn put(&mut self, value: u64, bits: u32) {
        debug_assert!(
            bits <= 64 && (bits == 64 || value >> bits == 0),
            "{value:#x} has more than {bits} bits"
        );
        self.word |= value << self.used;
        let total = self.used + bits;
        if total >= 64 {
            self.out.extend_from_slice(&self.word.to_le_bytes());
            // A shift by 64 is undefined for the machine; a full word leaves nothing over.
            self.word = if self.used == 0 { 0 } else { value >> (64 - self.used) };
            self.used = total - 64;
        } else {
            self.used = total;
        }
    }

    /// Appends one bit.
    #[inline]
    pub fn put_bool(&mut self, value: bool) {
        self.put(u64::from(value), 1);
    }

    /// Appends a variable-length integer: 7 value bits a byte, low group first, high bit set on all
    /// but the last.
    #[inline]
    pub fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(value & 0x7f | 0x80, 8);
            value >>= 7;
        }
        self.put(value, 8);
    }

    /// Appends whole bytes at the current bit position.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.put(u64::from_le_bytes(*word), 64);
        }
        for byte in rest {
            self.put(u64::from(*byte), 8);
        }
    }

    /// Appends the first `bits` bits of `source`, which another writer produced.
    pub fn put_bits(&mut self, source: &[u8], bits: u32) {
        let whole = (bits / 8) as usize;
        self.put_bytes(&source[..whole]);
        let rest = bits % 8;
        if rest > 0 {
            self.put(u64::from(source[whole]) & ((1 << rest) - 1), rest);
        }
    }

    /// Bits written so far.
    #[must_use]
    pub fn bit_len(&self) -> u32 {
        ((self.out.len() - self.start) * 8) as u32 + self.used
    }

    /// Pads with zero bits to the next byte and writes what is left; returns the bits before
    /// padding.
    pub fn finish(self) -> u32 {
        let bits = self.bit_len();
        let bytes = self.used.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.word.to_le_bytes()[..bytes]);
        bits
    }
}

/// Reads fields of 0 to 64 bits from bytes. Total: past the end it returns an error, never a
/// made-up value.
#[derive(Clone, Debug)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    /// A reader at the first bit of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `bits` bits (at most 64).
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    #[inline]
    pub fn get(&mut self, bits: u32) -> Result<u64, DecodeError> {
        debug_assert!(bits <= 64, "a field has at most 64 bits");
        let end = self.at + bits as usize;
        if end > self.bytes.len() * 8 {
            return Err(DecodeError::Truncated);
        }
        if bits == 0 {
            return Ok(0);
        }
        let (byte, shift) = (self.at / 8, (self.at % 8) as u32);
        self.at = end;
        let low = match self.bytes.get(byte..byte + 8) {
            Some(word) => u64::from_le_bytes(word.try_into().map_err(|_| DecodeError::Truncated)?),
            None => {
                let mut word = [0; 8];
                let rest = &self.bytes[byte..];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        };
        let mut value = low >> shift;
        if shift > 0 && bits > 64 - shift {
            value |= u64::from(self.bytes[byte + 8]) << (64 - shift);
        }
        Ok(if bits == 64 { value } else { value & ((1 << bits) - 1) })
    }

    /// The next bit.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] at the end.
    #[inline]
    pub fn get_bool(&mut self) -> Result<bool, DecodeError> {
        Ok(self.get(1)? != 0)
    }

    /// A variable-length integer of at most ten bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] at the end, [`DecodeError::Varint`] when it does not fit 64 bits.
    #[inline]
    pub fn get_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let byte = self.get(8)?;
            if shift == 63 && byte > 1 {
                return Err(DecodeError::Varint);
            }
            value |= (byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    /// Appends the next `count` bytes, which need not begin at a byte border, to `out`.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left; then nothing is appended.
    pub fn get_bytes(&mut self, count: usize, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        if self.bits_left() / 8 < count {
            return Err(DecodeError::Truncated);
        }
        if self.at.is_multiple_of(8) {
            let start = self.at / 8;
            out.extend_from_slice(&self.bytes[start..start + count]);
            self.at += count * 8;
        } else {
            for _ in 0..count {
                out.push(self.get(8)? as u8);
            }
        }
        Ok(())
    }

    /// Moves to the next byte border, if between two.
    pub fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }

    /// Moves `bytes` bytes on from the current byte border.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    pub fn skip_bytes(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.align();
        if self.bits_left() / 8 < bytes {
            return Err(DecodeError::Truncated);
        }
        self.at += bytes * 8;
        Ok(())
    }

    /// Bits not read yet.
    #[must_use]
    pub fn bits_left(&self) -> usize {
        self.bytes.len() * 8 - self.at
    }

    /// Offset of the next bit, in whole bytes, rounded up.
    #[must_use]
    pub fn byte_position(&self) -> usize {
        self.at.div_ceil(8)
    }

    /// Offset of the next bit.
    #[must_use]
    pub fn bit_position(&self) -> usize {
        self.at
    }

    /// All bytes, read or not.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Bytes that [`write_varint`] needs for `value`.
#[must_use]
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Appends `value` as a variable-length integer.
#[inline]
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 & 0x7f | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_any_widths() {
        let mut rng = throng_stdx::Rng::new(1);
        for _ in 0..2000 {
            let fields: Vec<(u64, u32)> = (0..rng.below(40))
                .map(|_| {
                    let bits = rng.below(65) as u32;
                    let value = if bits == 0 { 0 } else { rng.next_u64() >> (64 - bits) };
                    (value, bits)
                })
                .collect();
            let mut out = vec![7];
            let mut writer = BitWriter::new(&mut out);
            for (value, bits) in &fields {
                writer.put(*value, *bits);
            }
            let bits = writer.finish();
            assert_eq!(bits, fields.iter().map(|field| field.1).sum::<u32>());
            assert_eq!(out.len(), 1 + bits.div_ceil(8) as usize);
            let mut reader = BitReader::new(&out[1..]);
            for (value, bits) in &fields {
                assert_eq!(reader.get(*bits), Ok(*value));
            }
            assert!(reader.bits_left() < 8);
            assert_eq!(reader.get(64), Err(DecodeError::Truncated));
        }
    }

    #[test]
    fn low_bit_first() {
        let mut out = Vec::new();
        let mut writer = BitWriter::new(&mut out);
        writer.put(0b1, 1);
        writer.put(0b01, 2);
        writer.put(0x1ff, 9);
        writer.finish();
        assert_eq!(out, [0b1111_1011, 0b0000_1111]);
    }

    #[test]
    fn varints_have_one_length() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            write_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value));
            assert_eq!(BitReader::new(&out).get_varint(), Ok(value));
            let mut bits = Vec::new();
            let mut writer = BitWriter::new(&mut bits);
            writer.put_varint(value);
            writer.finish();
            assert_eq!(bits, out);
        }
        assert_eq!(BitReader::new(&[0xff; 11]).get_varint(), Err(DecodeError::Varint));
        assert_eq!(BitReader::new(&[0x80]).get_varint(), Err(DecodeError::Truncated));
    }
}
