//! Values of any length or shape: blobs, strings, lists, options, enums. They are kept as the bits
//! that go over the wire.

use super::codec::{Codec, Op};
use super::{Value, ValueMismatch, WORDS_MAX};
use crate::bits::{BitReader, BitWriter};
use crate::wire::DecodeError;

impl Codec {
    /// Encodes a value off the words as wire bits into `out`, which is cleared; returns the bits.
    ///
    /// # Errors
    /// [`ValueMismatch`] for another type or a length over the limit.
    pub fn write_heap(&self, value: &Value, out: &mut Vec<u8>) -> Result<u32, ValueMismatch> {
        out.clear();
        let mut writer = BitWriter::new(out);
        self.put(value, &mut writer)?;
        Ok(writer.finish())
    }

    fn put(&self, value: &Value, writer: &mut BitWriter<'_>) -> Result<(), ValueMismatch> {
        match (&self.op, value) {
            (Op::Blob(max), Value::Bytes(bytes)) if bytes.len() <= *max as usize => {
                writer.put_varint(bytes.len() as u64);
                writer.put_bytes(bytes);
            }
            (Op::Text(max), Value::Text(text)) if text.len() <= *max as usize => {
                writer.put_varint(text.len() as u64);
                writer.put_bytes(text.as_bytes());
            }
            (Op::Array(element, max), Value::List(items)) if items.len() <= *max as usize => {
                writer.put_varint(items.len() as u64);
                for item in items {
                    element.put(item, writer)?;
                }
            }
            (Op::Option(inner), Value::Option(value)) => {
                writer.put_bool(value.is_some());
                if let Some(value) = value {
                    inner.put(value, writer)?;
                }
            }
            (Op::Enum(variants), Value::Enum(number, values)) => {
                let fields = variants.get(*number as usize).ok_or(ValueMismatch)?;
                if fields.len() != values.len() {
                    return Err(ValueMismatch);
                }
                writer.put(u64::from(*number), tag_bits(variants.len()));
                for (field, value) in fields.iter().zip(values) {
                    field.put(value, writer)?;
                }
            }
            _ if self.is_heap() => return Err(ValueMismatch),
            _ => {
                let (mut live, mut q) = ([0; 4], [0; WORDS_MAX]);
                self.store(value, &mut live)?;
                self.quantise(&live, &mut q);
                self.write(&q, writer);
            }
        }
        Ok(())
    }

    /// Moves the wire bits of a value off the words from `reader` to `out`, checking everything;
    /// returns the bits.
    ///
    /// # Errors
    /// When the bytes end, a length is over the limit, a string is not UTF-8 or a variant does not
    /// exist.
    pub fn copy_heap(&self, reader: &mut BitReader<'_>, out: &mut Vec<u8>) -> Result<u32, DecodeError> {
        let mut writer = BitWriter::new(out);
        self.copy(reader, &mut writer)?;
        Ok(writer.finish())
    }

    fn copy(&self, reader: &mut BitReader<'_>, writer: &mut BitWriter<'_>) -> Result<(), DecodeError> {
        match &self.op {
            Op::Blob(max) | Op::Text(max) => {
                let count = get_count(reader, *max, 8)?;
                writer.put_varint(count as u64);
                let mut check = Utf8::default();
                for _ in 0..count {
                    let byte = reader.get(8)?;
                    check.take(byte as u8);
                    writer.put(byte, 8);
                }
                if matches!(self.op, Op::Text(_)) && !check.is_whole() {
                    return Err(DecodeError::Value);
                }
            }
            Op::Array(element, max) => {
                // Every element has a bit at least, so a count beyond what is left is a lie.
                let count = get_count(reader, *max, 1)?;
                writer.put_varint(count as u64);
                for _ in 0..count {
                    element.copy(reader, writer)?;
                }
            }
            Op::Option(inner) => {
                let some = reader.get_bool()?;
                writer.put_bool(some);
                if some {
                    inner.copy(reader, writer)?;
                }
            }
            Op::Enum(variants) => {
                let number = reader.get(tag_bits(variants.len()))?;
                let fields = variants.get(number as usize).ok_or(DecodeError::Value)?;
                writer.put(number, tag_bits(variants.len()));
                for field in fields {
                    field.copy(reader, writer)?;
                }
            }
            _ => {
                let mut q = [0; WORDS_MAX];
                self.read(reader, &mut q)?;
                self.write(&q, writer);
            }
        }
        Ok(())
    }

    /// Calls `each` with the word of every token or reference in a value's wire bits.
    pub(crate) fn each_word(&self, bits: &[u8], each: &mut dyn FnMut(u64)) {
        // They are our own bits, or were checked: nothing of them is missing.
        let result = self.visit(&mut BitReader::new(bits), each);
        debug_assert!(result.is_ok(), "checked bits fail: {result:?}");
    }

    fn visit(&self, reader: &mut BitReader<'_>, each: &mut dyn FnMut(u64)) -> Result<(), DecodeError> {
        match &self.op {
            Op::Blob(max) | Op::Text(max) => {
                for _ in 0..get_count(reader, *max, 8)? {
                    reader.get(8)?;
                }
            }
            Op::Array(element, max) => {
                for _ in 0..get_count(reader, *max, 1)? {
                    element.visit(reader, each)?;
                }
            }
            Op::Option(inner) => {
                if reader.get_bool()? {
                    inner.visit(reader, each)?;
                }
            }
            Op::Enum(variants) => {
                let number = reader.get(tag_bits(variants.len()))?;
                for field in variants.get(number as usize).ok_or(DecodeError::Value)? {
                    field.visit(reader, each)?;
                }
            }
            _ => {
                let mut q = [0; WORDS_MAX];
                self.read(reader, &mut q)?;
                if matches!(self.op, Op::Token(_) | Op::Handle) {
                    each(q[0]);
                }
            }
        }
        Ok(())
    }

    /// The value of wire bits.
    ///
    /// # Errors
    /// When the bits are not what [`write_heap`](Self::write_heap) wrote.
    pub fn read_heap(&self, bits: &[u8]) -> Result<Value, DecodeError> {
        self.take(&mut BitReader::new(bits))
    }

    pub(crate) fn take(&self, reader: &mut BitReader<'_>) -> Result<Value, DecodeError> {
        Ok(match &self.op {
            Op::Blob(max) | Op::Text(max) => {
                let mut bytes = Vec::new();
                let count = get_count(reader, *max, 8)?;
                reader.get_bytes(count, &mut bytes)?;
                if matches!(self.op, Op::Blob(_)) {
                    Value::Bytes(bytes)
                } else {
                    Value::Text(String::from_utf8(bytes).map_err(|_| DecodeError::Value)?)
                }
            }
            Op::Array(element, max) => {
                let mut items = Vec::new();
                for _ in 0..get_count(reader, *max, 1)? {
                    items.push(element.take(reader)?);
                }
                Value::List(items)
            }
            Op::Option(inner) => {
                let some = reader.get_bool()?;
                Value::Option(if some { Some(Box::new(inner.take(reader)?)) } else { None })
            }
            Op::Enum(variants) => {
                let number = reader.get(tag_bits(variants.len()))?;
                let fields = variants.get(number as usize).ok_or(DecodeError::Value)?;
                let values: Result<_, _> = fields.iter().map(|field| field.take(reader)).collect();
                Value::Enum(number as u32, values?)
            }
            _ => {
                let mut q = [0; WORDS_MAX];
                self.read(reader, &mut q)?;
                self.dequantise(&q)
            }
        })
    }

    /// Reads the length of a blob or string.
    pub(crate) fn byte_count(&self, reader: &mut BitReader<'_>) -> Option<usize> {
        let (Op::Blob(max) | Op::Text(max)) = self.op else { return None };
        get_count(reader, max, 8).ok()
    }

    /// Reads the length of a list.
    pub(crate) fn element_count(&self, reader: &mut BitReader<'_>) -> Option<(&Self, usize)> {
        let Op::Array(element, max) = &self.op else { return None };
        Some((element, get_count(reader, *max, 1).ok()?))
    }

    /// Reads whether an option has a value.
    pub(crate) fn inner(&self, reader: &mut BitReader<'_>) -> Option<Option<&Self>> {
        let Op::Option(inner) = &self.op else { return None };
        Some(if reader.get_bool().ok()? { Some(inner) } else { None })
    }

    /// Reads the number of an enum's variant.
    pub(crate) fn variant(&self, reader: &mut BitReader<'_>) -> Option<(u32, &[Self])> {
        let Op::Enum(variants) = &self.op else { return None };
        let number = reader.get(tag_bits(variants.len())).ok()?;
        Some((number as u32, variants.get(number as usize)?))
    }

    /// Wire bytes and bits of the default: empty, none, or the first variant with the defaults of
    /// its fields.
    pub(crate) fn default_value(&self) -> Value {
        match &self.op {
            Op::Enum(variants) => {
                let fields = variants.first().map_or(&[][..], Vec::as_slice);
                Value::Enum(0, fields.iter().map(Self::default_value).collect())
            }
            _ => self.dequantise(&[0; WORDS_MAX]),
        }
    }
}

/// Bits of a variant's number: one at least, so that every element of a list has a bit.
pub(crate) fn tag_bits(variants: usize) -> u32 {
    (usize::BITS - variants.saturating_sub(1).leading_zeros()).max(1)
}

/// A length of at most `max` of which each unit has so many bits.
pub(crate) fn get_count(reader: &mut BitReader<'_>, max: u32, bits: usize) -> Result<usize, DecodeError> {
    let count = reader.get_varint()?;
    if count > u64::from(max) || count as usize > reader.bits_left() / bits {
        return Err(DecodeError::TooLong);
    }
    Ok(count as usize)
}

/// Checks UTF-8 byte by byte, without memory for the string.
#[derive(Default)]
struct Utf8 {
    /// Continuation bytes still to come, and the range of the next one.
    left: u8,
    range: (u8, u8),
    broken: bool,
}

impl Utf8 {
    fn take(&mut self, byte: u8) {
        if self.left > 0 {
            self.broken |= byte < self.range.0 || byte > self.range.1;
            (self.left, self.range) = (self.left - 1, (0x80, 0xbf));
            return;
        }
        // The first continuation byte excludes overlong forms, surrogates and what lies beyond
        // Unicode.
        (self.left, self.range) = match byte {
            0..=0x7f => (0, (0, 0)),
            0xc2..=0xdf => (1, (0x80, 0xbf)),
            0xe0 => (2, (0xa0, 0xbf)),
            0xed => (2, (0x80, 0x9f)),
            0xe1..=0xef => (2, (0x80, 0xbf)),
            0xf0 => (3, (0x90, 0xbf)),
            0xf1..=0xf3 => (3, (0x80, 0xbf)),
            0xf4 => (3, (0x80, 0x8f)),
            _ => {
                self.broken = true;
                (0, (0, 0))
            }
        };
    }

    fn is_whole(&self) -> bool {
        self.left == 0 && !self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_checked_as_the_standard_library_does() {
        let mut rng = throng_stdx::Rng::new(5);
        for _ in 0..200_000 {
            let len = rng.below(6);
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    [rng.next_u32() as u8, 0x80, 0xc2, 0xe0, 0xed, 0xf0, 0xf4, 0xa0][rng.below(8) as usize]
                })
                .collect();
            let mut check = Utf8::default();
            bytes.iter().for_each(|byte| check.take(*byte));
            assert_eq!(check.is_whole(), core::str::from_utf8(&bytes).is_ok(), "{bytes:x?}");
        }
    }
}
