//! Values of any length: blobs and arrays. They are kept as the bits that go over the wire.

use super::codec::{Codec, Op};
use super::{Value, ValueMismatch, WORDS_MAX};
use crate::bits::{BitReader, BitWriter};
use crate::wire::DecodeError;

impl Codec {
    /// Encodes a blob or array as wire bits into `out`, which is cleared; returns the bits.
    ///
    /// # Errors
    /// [`ValueMismatch`] for another type or a length over the limit.
    pub fn write_heap(&self, value: &Value, out: &mut Vec<u8>) -> Result<u32, ValueMismatch> {
        out.clear();
        let mut writer = BitWriter::new(out);
        match (&self.op, value) {
            (Op::Blob(max), Value::Bytes(bytes)) if bytes.len() <= *max as usize => {
                writer.put_varint(bytes.len() as u64);
                writer.put_bytes(bytes);
            }
            (Op::Array(element, max), Value::List(items)) if items.len() <= *max as usize => {
                writer.put_varint(items.len() as u64);
                let (mut live, mut q) = ([0; 4], [0; WORDS_MAX]);
                for item in items {
                    element.store(item, &mut live)?;
                    element.quantise(&live, &mut q);
                    element.write(&q, &mut writer);
                }
            }
            _ => return Err(ValueMismatch),
        }
        Ok(writer.finish())
    }

    /// Moves the wire bits of a blob or array from `reader` to `out`, checking every length; returns the bits.
    ///
    /// # Errors
    /// When the bytes end or a length is over the limit.
    pub fn copy_heap(&self, reader: &mut BitReader<'_>, out: &mut Vec<u8>) -> Result<u32, DecodeError> {
        let count = reader.get_varint()?;
        let mut writer = BitWriter::new(out);
        writer.put_varint(count);
        match &self.op {
            Op::Blob(max) => {
                if count > u64::from(*max) || count as usize > reader.bits_left() / 8 {
                    return Err(DecodeError::TooLong);
                }
                for _ in 0..count {
                    writer.put(reader.get(8)?, 8);
                }
            }
            Op::Array(element, max) => {
                // Every element has a bit at least, so a count beyond what is left is a lie.
                if count > u64::from(*max) || count as usize > reader.bits_left() {
                    return Err(DecodeError::TooLong);
                }
                let mut q = [0; WORDS_MAX];
                for _ in 0..count {
                    element.read(reader, &mut q)?;
                    element.write(&q, &mut writer);
                }
            }
            _ => return Err(DecodeError::Value),
        }
        Ok(writer.finish())
    }

    /// Calls `each` with the first word of every element of an array's wire bits.
    pub(crate) fn each_word(&self, bits: &[u8], each: &mut dyn FnMut(u64)) {
        let Op::Array(element, _) = &self.op else { return };
        let (mut reader, mut q) = (BitReader::new(bits), [0; WORDS_MAX]);
        // They are our own bits: nothing of them is missing.
        for _ in 0..reader.get_varint().unwrap_or(0) {
            if element.read(&mut reader, &mut q).is_ok() {
                each(q[0]);
            }
        }
    }

    /// The value of a blob's or array's wire bits.
    ///
    /// # Errors
    /// When the bits are not what [`write_heap`](Self::write_heap) wrote.
    pub fn read_heap(&self, bits: &[u8]) -> Result<Value, DecodeError> {
        let mut reader = BitReader::new(bits);
        let count = reader.get_varint()?;
        match &self.op {
            Op::Blob(_) => {
                let mut bytes = Vec::new();
                reader.get_bytes(usize::try_from(count).map_err(|_| DecodeError::TooLong)?, &mut bytes)?;
                Ok(Value::Bytes(bytes))
            }
            Op::Array(element, _) => {
                let mut items = Vec::new();
                let mut q = [0; WORDS_MAX];
                for _ in 0..count {
                    element.read(&mut reader, &mut q)?;
                    items.push(element.dequantise(&q));
                }
                Ok(Value::List(items))
            }
            _ => Err(DecodeError::Value),
        }
    }
}
