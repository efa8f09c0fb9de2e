//! Differences to a state that the receiver holds.

use super::axis::Scale;
use super::codec::{Codec, Op};
use super::{WORDS_MAX, mask};
use crate::bits::{BitReader, BitWriter};
use crate::wire::DecodeError;

impl Codec {
    /// Calls `each` with the place (word, shift, width) of every integer or fixed field above 8
    /// bits, in order, if this property's fields are differenced one by one; otherwise returns
    /// false: the property is the same or sent plain.
    #[inline]
    fn delta_fields(&self) -> Option<DeltaFields> {
        let one = |bits: u8| {
            (bits > 8).then_some(DeltaFields { count: 1, fields: [(0, 0, bits), (0, 0, 0), (0, 0, 0)] })
        };
        match &self.op {
            Op::UInt(bits) | Op::Int(bits) => one(*bits),
            Op::Fixed(axis) | Op::Wide(axis) => one(axis.bits),
            Op::Vec2(axes) => Some(DeltaFields::of(axes, self.words)),
            Op::Vec3(axes) => Some(DeltaFields::of(axes, self.words)),
            _ => None,
        }
    }

    /// Writes `now` as a difference to `base`.
    #[inline]
    pub fn write_delta(&self, base: &[u64], now: &[u64], writer: &mut BitWriter<'_>) {
        let words = usize::from(self.words);
        if let Op::Custom(custom) = &self.op {
            return custom.write_delta(&base[..words], &now[..words], writer);
        }
        let Some(fields) = self.delta_fields() else {
            let same = base[..words] == now[..words];
            writer.put_bool(same);
            if !same {
                self.write(now, writer);
            }
            return;
        };
        for (word, shift, bits) in fields.iter() {
            let old = base[word] >> shift & mask(bits);
            let new = now[word] >> shift & mask(bits);
            if bits <= 8 {
                let same = old == new;
                writer.put_bool(same);
                if !same {
                    writer.put(new, bits);
                }
                continue;
            }
            // The difference modulo the field's range, read as a signed number.
            let up = 64 - bits;
            let difference = (new.wrapping_sub(old) << up) as i64 >> up;
            match difference {
                0 => writer.put(0, 2),
                -32..=31 => writer.put(1 | (difference as u64 & mask(6)) << 2, 8),
                -512..=511 if bits > 10 => writer.put(2 | (difference as u64 & mask(10)) << 2, 12),
                _ => {
                    writer.put(3, 2);
                    writer.put(new, bits);
                }
            }
        }
    }

    /// Reads what [`write_delta`](Self::write_delta) wrote: `q` holds the baseline on entry, the
    /// new value on return.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_delta(&self, reader: &mut BitReader<'_>, q: &mut [u64]) -> Result<(), DecodeError> {
        if let Op::Custom(custom) = &self.op {
            return custom.read_delta(reader, &mut q[..usize::from(self.words)]);
        }
        let Some(fields) = self.delta_fields() else {
            return if reader.get_bool()? { Ok(()) } else { self.read(reader, q) };
        };
        for (word, shift, bits) in fields.iter() {
            let old = q[word] >> shift & mask(bits);
            let signed = |value: u64, bits: u32| ((value << (64 - bits)) as i64 >> (64 - bits)) as u64;
            let new = if bits <= 8 {
                if reader.get_bool()? { old } else { reader.get(bits)? }
            } else {
                match reader.get(2)? {
                    0 => old,
                    1 => old.wrapping_add(signed(reader.get(6)?, 6)) & mask(bits),
                    2 => old.wrapping_add(signed(reader.get(10)?, 10)) & mask(bits),
                    _ => reader.get(bits)?,
                }
            };
            q[word] = q[word] & !(mask(bits) << shift) | new << shift;
        }
        Ok(())
    }
}

/// Location of the fields of a property: (word, shift, width).
struct DeltaFields {
    count: usize,
    fields: [(u8, u8, u8); WORDS_MAX],
}

impl DeltaFields {
    #[inline]
    fn of(axes: &[Scale], words: u8) -> Self {
        let mut fields = [(0, 0, 0); WORDS_MAX];
        let mut shift = 0;
        for (at, (axis, field)) in axes.iter().zip(&mut fields).enumerate() {
            *field = if words == 1 { (0, shift, axis.bits) } else { (at as u8, 0, axis.bits) };
            shift += axis.bits;
        }
        Self { count: axes.len(), fields }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, u32, u32)> + '_ {
        self.fields[..self.count]
            .iter()
            .map(|(word, shift, bits)| (usize::from(*word), u32::from(*shift), u32::from(*bits)))
    }
}
