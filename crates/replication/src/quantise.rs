//! Quantisers: how a game value becomes a few bits, and back.
//!
//! A quantised value of fixed width is kept exactly as it goes over the wire, packed into one to three 64-bit words. A
//! comparison is then a comparison of words and writing a property is one `put` a word.
//!
//! The invariant that everything else rests on: `quantise(dequantise(q)) == q` for every `q` that `quantise` can produce.
//! Without it a value that did not change would flicker.

use core::f32::consts::TAU;
use core::f64::consts::FRAC_1_SQRT_2;

use crate::bits::{BitReader, BitWriter};
use crate::handle::Handle;
use crate::wire::DecodeError;

/// Most 64-bit words of one quantised property.
pub const WORDS_MAX: usize = 3;

/// One axis of a quantised vector: `q = floor((v - min) / step + 0.5)`, clamped to `0..2^bits - 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// Value of `q = 0`.
    pub min: f64,
    /// Distance between neighbouring values, above zero.
    pub step: f64,
    /// Width, 1 to 52.
    pub bits: u8,
}

impl Axis {
    /// An axis from its smallest value, its step and its width in bits.
    #[must_use]
    pub const fn new(min: f64, step: f64, bits: u8) -> Self {
        Self { min, step, bits }
    }

    /// An axis that covers `min..=max` with all of its `2^bits` values.
    #[must_use]
    pub fn range(min: f64, max: f64, bits: u8) -> Self {
        Self { min, step: (max - min) / (mask(u32::from(bits)) as f64), bits }
    }

    /// The largest value that the axis can name.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.min + self.step * mask(u32::from(self.bits)) as f64
    }

    #[inline]
    fn quantise(&self, value: f64) -> u64 {
        let scaled = (value - self.min) / self.step + 0.5;
        // NaN compares false and becomes the minimum. Above zero, the cast rounds down as `floor` does.
        if scaled > 0.0 { (scaled as i64 as u64).min(mask(u32::from(self.bits))) } else { 0 }
    }

    #[inline]
    fn dequantise(&self, q: u64) -> f64 {
        self.min + q as f64 * self.step
    }

    /// A 32-bit float has room for the distance between two neighbours everywhere on the axis.
    fn fits_f32(&self) -> bool {
        let largest = self.min.abs().max(self.max().abs());
        largest * f64::from(f32::EPSILON) < self.step * 0.49
    }

    fn check(&self) -> Result<(), QuantiserError> {
        if !(1..=52).contains(&self.bits) {
            return Err(QuantiserError::Bits { bits: self.bits, max: 52 });
        }
        if !(self.step > 0.0 && self.min.is_finite() && self.max().is_finite()) {
            return Err(QuantiserError::Axis);
        }
        // The same question for the 64-bit floats in which the arithmetic is done.
        let largest = self.min.abs().max(self.max().abs());
        if largest * f64::EPSILON >= self.step * 0.49 { Err(QuantiserError::Precision) } else { Ok(()) }
    }
}

/// How one property is quantised and written (spec §3). Widths are in bits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Quantiser {
    /// One bit.
    Bool,
    /// Unsigned integer of 1 to 64 bits; larger values saturate.
    UInt(u8),
    /// Signed integer of 1 to 64 bits, two's complement; values out of range saturate.
    Int(u8),
    /// Unsigned integer of any size, 7 value bits a byte.
    VarUInt,
    /// Signed integer of any size, zigzag, 7 value bits a byte.
    VarInt,
    /// A number on an axis. NaN becomes the minimum and is counted.
    Fixed(Axis),
    /// Two numbers, packed.
    Vec2([Axis; 2]),
    /// Three numbers, packed.
    Vec3([Axis; 3]),
    /// A direction: octahedral mapping, two coordinates of this many bits (2 to 24).
    Unit3(u8),
    /// A rotation: smallest three, 2 bits and three of this many bits (2 to 18). Order of components: x, y, z, w.
    Quat(u8),
    /// An angle in radians that wraps, 1 to 22 bits.
    Angle(u8),
    /// IEEE half precision; negative zero becomes zero, every NaN the same NaN.
    F16,
    /// IEEE single precision; negative zero becomes zero, every NaN the same NaN.
    F32,
    /// IEEE double precision; negative zero becomes zero, every NaN the same NaN.
    F64,
    /// Interned string of a table; written as the number that the table gave it.
    Token(u8),
    /// Reference to another object; `hide` replaces it by none for receivers that do not know the target.
    Handle {
        /// Never tell a receiver that an object exists which it may not see.
        hide: bool,
    },
    /// Bytes, at most this many.
    Blob(u32),
    /// List of elements of one quantiser (not itself a list or blob), at most this many; the whole list is one property.
    Array(Box<Quantiser>, u32),
}

impl Quantiser {
    /// `min`, `step`, width: the exact rule is at [`Axis`].
    #[must_use]
    pub const fn fixed(min: f64, step: f64, bits: u8) -> Self {
        Self::Fixed(Axis::new(min, step, bits))
    }

    /// `fixed` whose values span `min..=max`.
    #[must_use]
    pub fn range(min: f64, max: f64, bits: u8) -> Self {
        Self::Fixed(Axis::range(min, max, bits))
    }
}

/// Why a quantiser was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiserError {
    /// Width out of range.
    #[error("{bits} bits, where 1 to {max} are possible")]
    Bits {
        /// What was asked for.
        bits: u8,
        /// The most possible.
        max: u8,
    },
    /// Step not above zero, or a bound that is not a number.
    #[error("an axis needs finite bounds and a step above zero")]
    Axis,
    /// Values that floating point cannot tell apart.
    #[error("the step is finer than floating point at the axis' end; use fewer bits or smaller bounds")]
    Precision,
    /// List of lists, or list of blobs.
    #[error("elements of an array must have a plain quantiser")]
    Nested,
}

/// A game value, as set and as read back.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// For [`Quantiser::Bool`].
    Bool(bool),
    /// For unsigned quantisers.
    UInt(u64),
    /// For signed quantisers.
    Int(i64),
    /// For every quantiser of one number.
    F32(f32),
    /// For every quantiser of one number.
    F64(f64),
    /// For [`Quantiser::Vec2`].
    Vec2([f32; 2]),
    /// For [`Quantiser::Vec3`] and [`Quantiser::Unit3`].
    Vec3([f32; 3]),
    /// For [`Quantiser::Quat`]: x, y, z, w.
    Quat([f32; 4]),
    /// For [`Quantiser::Token`]: the number that the table gave the string.
    Token(u32),
    /// For [`Quantiser::Handle`].
    Handle(Handle),
    /// For [`Quantiser::Blob`].
    Bytes(Vec<u8>),
    /// For [`Quantiser::Array`].
    List(Vec<Value>),
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}
value_from!(bool => Bool, u8 => UInt, u16 => UInt, u32 => UInt, u64 => UInt, i8 => Int, i16 => Int, i32 => Int, i64 => Int,
    f32 => F32, f64 => F64, [f32; 2] => Vec2, [f32; 3] => Vec3, [f32; 4] => Quat, Handle => Handle, Vec<u8> => Bytes);

/// The value has another type than the property's quantiser takes, or is longer than it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value does not have the type or length that the property's quantiser takes")]
pub struct ValueMismatch;

/// An axis made ready for the hot path.
#[derive(Clone, Copy, Debug)]
struct Scale {
    axis: Axis,
    /// One over the step.
    inverse: f64,
    top: u64,
    bits: u8,
    /// Multiplying by the inverse is off by less than [`DOUBT`].
    quick: bool,
}

/// Products closer than this to a whole number are computed again by division: twice the error of a product of 28 bits.
const DOUBT: f64 = 1e-7;

impl Scale {
    fn new(axis: Axis) -> Self {
        let top = mask(u32::from(axis.bits));
        Self { axis, inverse: axis.step.recip(), top, bits: axis.bits, quick: axis.bits <= 28 }
    }

    /// As [`Axis::quantise`], to the bit, mostly without its division.
    #[inline]
    fn quantise(&self, value: f64) -> u64 {
        let scaled = (value - self.axis.min) * self.inverse + 0.5;
        if scaled > self.top as f64 + 1.0 {
            return self.top;
        }
        let q = scaled as i64;
        let rest = scaled - q as f64;
        if self.quick && rest > DOUBT && rest < 1.0 - DOUBT { q as u64 } else { self.axis.quantise(value) }
    }

    #[inline]
    fn dequantise(&self, q: u64) -> f64 {
        self.axis.dequantise(q)
    }
}

/// A quantiser made ready for the hot path.
#[derive(Clone, Debug)]
pub struct Codec {
    op: Op,
    /// Wire bits of each word; 0 when the width depends on the value.
    word_bits: [u8; WORDS_MAX],
    words: u8,
    live_words: u8,
}

#[derive(Clone, Debug)]
enum Op {
    Bool,
    UInt(u8),
    Int(u8),
    VarUInt,
    VarInt,
    Fixed(Scale),
    /// As `Fixed`, with live values of 64 bits because 32 cannot tell neighbours apart.
    Wide(Scale),
    Vec2([Scale; 2]),
    Vec3([Scale; 3]),
    Unit3(Scale),
    Quat(Scale),
    Angle(u8),
    F16,
    F32,
    F64,
    Token,
    Handle,
    Blob(u32),
    Array(Box<Codec>, u32),
}

/// All ones in the low `bits` bits.
#[inline]
pub(crate) const fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

impl Codec {
    /// Prepares `quantiser`.
    ///
    /// # Errors
    /// When its parameters are out of range or its values cannot be told apart.
    pub fn compile(quantiser: &Quantiser) -> Result<Self, QuantiserError> {
        let bits_in = |bits: u8, max: u8| {
            if (1..=max).contains(&bits) { Ok(()) } else { Err(QuantiserError::Bits { bits, max }) }
        };
        let fixed = |op, live_words, bits: u8| Self { op, word_bits: [bits, 0, 0], words: 1, live_words };
        let varying = |op, live_words| Self { op, word_bits: [0; WORDS_MAX], words: 1, live_words };
        let vector = |op, axes: &[Axis]| {
            let total: u32 = axes.iter().map(|axis| u32::from(axis.bits)).sum();
            for axis in axes {
                axis.check()?;
                if !axis.fits_f32() {
                    return Err(QuantiserError::Precision);
                }
            }
            let mut word_bits = [0; WORDS_MAX];
            let words = if total <= 64 {
                word_bits[0] = total as u8;
                1
            } else {
                for (bits, axis) in word_bits.iter_mut().zip(axes) {
                    *bits = axis.bits;
                }
                axes.len() as u8
            };
            Ok(Self { op, word_bits, words, live_words: axes.len() as u8 })
        };
        Ok(match *quantiser {
            Quantiser::Bool => fixed(Op::Bool, 1, 1),
            Quantiser::UInt(bits) => {
                bits_in(bits, 64)?;
                fixed(Op::UInt(bits), 2, bits)
            }
            Quantiser::Int(bits) => {
                bits_in(bits, 64)?;
                fixed(Op::Int(bits), 2, bits)
            }
            Quantiser::VarUInt => varying(Op::VarUInt, 2),
            Quantiser::VarInt => varying(Op::VarInt, 2),
            Quantiser::Fixed(axis) => {
                axis.check()?;
                if axis.fits_f32() {
                    fixed(Op::Fixed(Scale::new(axis)), 1, axis.bits)
                } else {
                    fixed(Op::Wide(Scale::new(axis)), 2, axis.bits)
                }
            }
            Quantiser::Vec2(axes) => vector(Op::Vec2(axes.map(Scale::new)), &axes)?,
            Quantiser::Vec3(axes) => vector(Op::Vec3(axes.map(Scale::new)), &axes)?,
            Quantiser::Unit3(bits) => {
                bits_in(bits.saturating_sub(1), 23).map_err(|_| QuantiserError::Bits { bits, max: 24 })?;
                fixed(Op::Unit3(Scale::new(Axis::range(-1.0, 1.0, bits))), 3, 2 * bits)
            }
            Quantiser::Quat(bits) => {
                bits_in(bits.saturating_sub(1), 17).map_err(|_| QuantiserError::Bits { bits, max: 18 })?;
                let axis = Axis::range(-FRAC_1_SQRT_2, FRAC_1_SQRT_2, bits);
                fixed(Op::Quat(Scale::new(axis)), 4, 2 + 3 * bits)
            }
            Quantiser::Angle(bits) => {
                bits_in(bits, 22)?;
                fixed(Op::Angle(bits), 1, bits)
            }
            Quantiser::F16 => fixed(Op::F16, 1, 16),
            Quantiser::F32 => fixed(Op::F32, 1, 32),
            Quantiser::F64 => fixed(Op::F64, 2, 64),
            Quantiser::Token(_) => varying(Op::Token, 1),
            Quantiser::Handle { .. } => varying(Op::Handle, 2),
            Quantiser::Blob(max) => varying(Op::Blob(max), 0),
            Quantiser::Array(ref element, max) => {
                let element = Self::compile(element)?;
                if element.is_heap() {
                    return Err(QuantiserError::Nested);
                }
                varying(Op::Array(Box::new(element), max), 0)
            }
        })
    }

    /// 64-bit words of the quantised value.
    #[must_use]
    pub fn words(&self) -> usize {
        usize::from(self.words)
    }

    /// 32-bit words of the live value.
    #[must_use]
    pub fn live_words(&self) -> usize {
        usize::from(self.live_words)
    }

    /// Wire bits, or `None` when they depend on the value.
    #[must_use]
    pub fn fixed_bits(&self) -> Option<u32> {
        (self.word_bits[0] != 0).then(|| self.word_bits.iter().map(|bits| u32::from(*bits)).sum())
    }

    /// Wire bits of each word; zero where the width depends on the value.
    pub(crate) fn word_bits(&self) -> &[u8] {
        &self.word_bits[..usize::from(self.words)]
    }

    /// The value lives outside the words: blob or array.
    #[must_use]
    pub fn is_heap(&self) -> bool {
        matches!(self.op, Op::Blob(_) | Op::Array(..))
    }

    pub(crate) fn is_handle(&self) -> bool {
        matches!(self.op, Op::Handle)
    }

    /// Writes `value` as live words. Costs a few nanoseconds.
    ///
    /// # Errors
    /// [`ValueMismatch`]; nothing is written then.
    pub fn store(&self, value: &Value, live: &mut [u32]) -> Result<(), ValueMismatch> {
        let number = || match *value {
            Value::F32(value) => Ok(f64::from(value)),
            Value::F64(value) => Ok(value),
            _ => Err(ValueMismatch),
        };
        let integer = || match *value {
            Value::UInt(value) => Ok(i128::from(value)),
            Value::Int(value) => Ok(i128::from(value)),
            _ => Err(ValueMismatch),
        };
        let mut two = |value: u64| {
            live[0] = value as u32;
            live[1] = (value >> 32) as u32;
        };
        match (&self.op, value) {
            (Op::Bool, Value::Bool(value)) => live[0] = u32::from(*value),
            (Op::UInt(_) | Op::VarUInt, _) => two(integer()?.clamp(0, i128::from(u64::MAX)) as u64),
            (Op::Int(_) | Op::VarInt, _) => {
                two(integer()?.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64 as u64);
            }
            (Op::Fixed(_) | Op::Angle(_) | Op::F16 | Op::F32, _) => live[0] = (number()? as f32).to_bits(),
            (Op::Wide(_) | Op::F64, _) => two(number()?.to_bits()),
            (Op::Vec2(_), Value::Vec2(value)) => store_floats(live, value),
            (Op::Vec3(_) | Op::Unit3(_), Value::Vec3(value)) => store_floats(live, value),
            (Op::Quat(_), Value::Quat(value)) => store_floats(live, value),
            (Op::Token, Value::Token(id)) => live[0] = *id,
            (Op::Handle, Value::Handle(handle)) => {
                live[0] = handle.index();
                live[1] = handle.generation();
            }
            _ => return Err(ValueMismatch),
        }
        Ok(())
    }

    /// Quantises live words into `out`; returns how many of the numbers were NaN.
    #[inline]
    pub fn quantise(&self, live: &[u32], out: &mut [u64]) -> u32 {
        let two = |at: usize| u64::from(live[at]) | u64::from(live[at + 1]) << 32;
        let float = |at: usize| f32::from_bits(live[at]);
        match &self.op {
            Op::Bool => out[0] = u64::from(live[0]),
            Op::UInt(bits) => out[0] = two(0).min(mask(u32::from(*bits))),
            Op::Int(bits) => {
                let shift = 64 - u32::from(*bits);
                let value = (two(0) as i64).clamp(i64::MIN >> shift, i64::MAX >> shift);
                out[0] = value as u64 & mask(u32::from(*bits));
            }
            Op::VarUInt => out[0] = two(0),
            Op::VarInt => {
                let value = two(0) as i64;
                out[0] = (value << 1 ^ value >> 63) as u64;
            }
            Op::Fixed(axis) => {
                let value = float(0);
                out[0] = axis.quantise(f64::from(value));
                return u32::from(value.is_nan());
            }
            Op::Wide(axis) => {
                let value = f64::from_bits(two(0));
                out[0] = axis.quantise(value);
                return u32::from(value.is_nan());
            }
            Op::Vec2(axes) => {
                let value = [float(0), float(1)];
                pack(axes, [0, 1].map(|i| axes[i].quantise(f64::from(value[i]))), self.words, out);
                return u32::from(value[0].is_nan()) + u32::from(value[1].is_nan());
            }
            Op::Vec3(axes) => {
                let value = [float(0), float(1), float(2)];
                pack(axes, [0, 1, 2].map(|i| axes[i].quantise(f64::from(value[i]))), self.words, out);
                return value.iter().map(|value| u32::from(value.is_nan())).sum();
            }
            Op::Unit3(axis) => return quantise_unit([float(0), float(1), float(2)], axis, out),
            Op::Quat(axis) => return quantise_quat([float(0), float(1), float(2), float(3)], axis, out),
            Op::Angle(bits) => {
                let value = float(0);
                let count = f64::from(1_u32 << bits);
                let turns = f64::from(value) / f64::from(TAU);
                let turns = turns - turns.floor();
                // A NaN or an infinity casts to zero.
                out[0] = (turns * count + 0.5) as u64 & mask(u32::from(*bits));
                return u32::from(!value.is_finite());
            }
            Op::F16 => out[0] = u64::from(half_from(float(0))),
            Op::F32 => out[0] = u64::from(canonical(float(0)).to_bits()),
            Op::F64 => {
                let value = f64::from_bits(two(0));
                let value = if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() };
                out[0] = value;
            }
            Op::Token => out[0] = u64::from(live[0]),
            Op::Handle => out[0] = two(0),
            Op::Blob(_) | Op::Array(..) => {}
        }
        0
    }

    /// The game value of quantised words. Blobs and arrays: see [`read_heap`](Self::read_heap).
    #[must_use]
    pub fn dequantise(&self, q: &[u64]) -> Value {
        match &self.op {
            Op::Bool => Value::Bool(q[0] != 0),
            Op::UInt(_) | Op::VarUInt => Value::UInt(q[0]),
            Op::Int(bits) => {
                let shift = 64 - u32::from(*bits);
                Value::Int((q[0] << shift) as i64 >> shift)
            }
            Op::VarInt => Value::Int((q[0] >> 1) as i64 ^ -((q[0] & 1) as i64)),
            Op::Fixed(axis) => Value::F32(axis.dequantise(q[0]) as f32),
            Op::Wide(axis) => Value::F64(axis.dequantise(q[0])),
            Op::Vec2(axes) => {
                let parts = unpack(axes, self.words, q);
                Value::Vec2([0, 1].map(|i| axes[i].dequantise(parts[i]) as f32))
            }
            Op::Vec3(axes) => {
                let parts = unpack(axes, self.words, q);
                Value::Vec3([0, 1, 2].map(|i| axes[i].dequantise(parts[i]) as f32))
            }
            Op::Unit3(axis) => Value::Vec3(dequantise_unit(q[0], axis)),
            Op::Quat(axis) => Value::Quat(dequantise_quat(q[0], axis)),
            Op::Angle(bits) => Value::F32((q[0] as f64 / f64::from(1_u32 << bits) * f64::from(TAU)) as f32),
            Op::F16 => Value::F32(half_to(q[0] as u16)),
            Op::F32 => Value::F32(f32::from_bits(q[0] as u32)),
            Op::F64 => Value::F64(f64::from_bits(q[0])),
            Op::Token => Value::Token(q[0] as u32),
            Op::Handle => Value::Handle(Handle::from_parts(q[0] as u32, (q[0] >> 32) as u32)),
            Op::Blob(_) => Value::Bytes(Vec::new()),
            Op::Array(..) => Value::List(Vec::new()),
        }
    }

    /// Writes quantised words. Not for blobs and arrays.
    #[inline]
    pub fn write(&self, q: &[u64], writer: &mut BitWriter<'_>) {
        if self.word_bits[0] != 0 {
            for (word, bits) in q.iter().zip(self.word_bits()) {
                writer.put(*word, u32::from(*bits));
            }
        } else if self.is_handle() {
            writer.put_varint(q[0] & mask(32));
        } else {
            writer.put_varint(q[0]);
        }
    }

    /// Reads quantised words. Not for blobs and arrays.
    ///
    /// # Errors
    /// When the bytes end, or a number is larger than its kind allows.
    #[inline]
    pub fn read(&self, reader: &mut BitReader<'_>, q: &mut [u64]) -> Result<(), DecodeError> {
        if self.word_bits[0] != 0 {
            for (word, bits) in q.iter_mut().zip(self.word_bits).take(usize::from(self.words)) {
                *word = reader.get(u32::from(bits))?;
            }
        } else {
            q[0] = reader.get_varint()?;
            if matches!(self.op, Op::Token | Op::Handle) && q[0] > u64::from(u32::MAX) {
                return Err(DecodeError::Value);
            }
        }
        Ok(())
    }

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

    /// Calls `each` with the place (word, shift, width) of every integer or fixed field above 8 bits, in order, if this
    /// property's fields are differenced one by one; otherwise returns false: the property is the same or sent plain.
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

    /// Writes `now` as a difference to `base` (spec §9.3).
    #[inline]
    pub fn write_delta(&self, base: &[u64], now: &[u64], writer: &mut BitWriter<'_>) {
        let words = usize::from(self.words);
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

    /// Reads what [`write_delta`](Self::write_delta) wrote: `q` holds the baseline on entry, the new value on return.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_delta(&self, reader: &mut BitReader<'_>, q: &mut [u64]) -> Result<(), DecodeError> {
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

/// Where the fields of a property lie: (word, shift, width).
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

fn store_floats(live: &mut [u32], value: &[f32]) {
    for (live, value) in live.iter_mut().zip(value) {
        *live = value.to_bits();
    }
}

#[inline]
fn pack<const N: usize>(axes: &[Scale; N], parts: [u64; N], words: u8, out: &mut [u64]) {
    if words == 1 {
        let mut shift = 0;
        out[0] = 0;
        for (axis, part) in axes.iter().zip(parts) {
            out[0] |= part << shift;
            shift += axis.bits;
        }
    } else {
        out[..N].copy_from_slice(&parts);
    }
}

#[inline]
fn unpack<const N: usize>(axes: &[Scale; N], words: u8, q: &[u64]) -> [u64; N] {
    let mut shift = 0;
    core::array::from_fn(|i| {
        if words == 1 {
            let part = q[0] >> shift & mask(u32::from(axes[i].bits));
            shift += u32::from(axes[i].bits);
            part
        } else {
            q[i]
        }
    })
}

/// Longest way to a value that maps to itself, and longest circle of values that map to each other.
const SETTLE_STEPS: usize = 8;

/// Follows `q` to where `again` leaves it: near a tie a value may come back under another name. With very few bits such
/// names may form a circle; its smallest member stands for all, so the result is stable either way.
fn settle(mut q: u64, again: impl Fn(u64) -> u64) -> u64 {
    for _ in 0..SETTLE_STEPS {
        let next = again(q);
        if next == q {
            return q;
        }
        q = next;
    }
    let mut least = q;
    for _ in 0..SETTLE_STEPS {
        q = again(q);
        least = least.min(q);
    }
    least
}

fn quantise_quat(value: [f32; 4], axis: &Scale, out: &mut [u64]) -> u32 {
    let mut value = value.map(f64::from);
    let square: f64 = value.iter().map(|part| part * part).sum();
    // Also false for NaN.
    if !(square.is_finite() && square > 1e-12) {
        out[0] = smallest_three([0.0, 0.0, 0.0, 1.0], axis).0;
        return 1;
    }
    if (square - 1.0).abs() > 1e-5 {
        let scale = square.sqrt().recip();
        value = value.map(|part| part * scale);
    }
    let (mut q, close) = smallest_three(value, axis);
    if close {
        q = settle(q, |q| smallest_three(dequantise_quat(q, axis).map(f64::from), axis).0);
    }
    out[0] = q;
    0
}

/// Packed bits, and whether two components are so close that rounding may exchange them.
#[inline]
fn smallest_three(value: [f64; 4], axis: &Scale) -> (u64, bool) {
    let mut largest = 0;
    for at in 1..4 {
        if value[at].abs() > value[largest].abs() {
            largest = at;
        }
    }
    let sign = if value[largest] < 0.0 { -1.0 } else { 1.0 };
    let near = value[largest].abs() - 4.0 * axis.axis.step;
    let (mut q, mut shift, mut close) = (largest as u64, 2, false);
    for (at, part) in value.iter().enumerate() {
        if at != largest {
            q |= axis.quantise(sign * part) << shift;
            shift += u32::from(axis.bits);
            close |= part.abs() >= near;
        }
    }
    (q, close)
}

fn dequantise_quat(q: u64, axis: &Scale) -> [f32; 4] {
    let largest = (q & 3) as usize;
    let bits = u32::from(axis.bits);
    let (mut value, mut shift, mut square) = ([0.0; 4], 2, 0.0);
    for (at, part) in value.iter_mut().enumerate() {
        if at != largest {
            *part = axis.dequantise(q >> shift & mask(bits));
            square += *part * *part;
            shift += bits;
        }
    }
    value[largest] = (1.0 - square).max(0.0).sqrt();
    value.map(|part| part as f32)
}

fn quantise_unit(value: [f32; 3], axis: &Scale, out: &mut [u64]) -> u32 {
    let value = value.map(f64::from);
    let sum: f64 = value.iter().map(|part| part.abs()).sum();
    if !(sum.is_finite() && sum > 1e-12) {
        out[0] = octahedron([0.0, 0.0, 1.0], 1.0, axis);
        return 1;
    }
    let mut q = octahedron(value, sum, axis);
    let top = mask(u32::from(axis.bits));
    let (u, v) = (q & top, q >> axis.bits);
    // The map's outer edge is folded: a point on it has two names. Elsewhere rounding cannot leave the cell.
    if u <= 1 || v <= 1 || u >= top - 1 || v >= top - 1 {
        q = settle(q, |q| {
            let back = dequantise_unit(q, axis).map(f64::from);
            octahedron(back, back.iter().map(|part| part.abs()).sum(), axis)
        });
    }
    out[0] = q;
    0
}

#[inline]
fn octahedron(value: [f64; 3], sum: f64, axis: &Scale) -> u64 {
    let (mut u, mut v) = (value[0] / sum, value[1] / sum);
    if value[2] < 0.0 {
        (u, v) = ((1.0 - v.abs()).copysign(u), (1.0 - u.abs()).copysign(v));
    }
    axis.quantise(u) | axis.quantise(v) << axis.bits
}

fn dequantise_unit(q: u64, axis: &Scale) -> [f32; 3] {
    let top = mask(u32::from(axis.bits));
    let (mut u, mut v) = (axis.dequantise(q & top), axis.dequantise(q >> axis.bits & top));
    let z = 1.0 - u.abs() - v.abs();
    if z < 0.0 {
        (u, v) = ((1.0 - v.abs()).copysign(u), (1.0 - u.abs()).copysign(v));
    }
    let length = (u * u + v * v + z * z).sqrt();
    [u, v, z].map(|part| (part / length) as f32)
}

#[inline]
fn canonical(value: f32) -> f32 {
    // Adding zero turns negative zero into zero.
    if value.is_nan() { f32::NAN } else { value + 0.0 }
}

/// Half precision, rounded to nearest, ties to even.
fn half_from(value: f32) -> u16 {
    let value = canonical(value);
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if value.is_nan() {
        return 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    let half = if magnitude < 0x3880_0000 {
        // Subnormal: multiples of 2^-24. The product is exact, so one rounding remains.
        let scaled = f64::from(f32::from_bits(magnitude)) * 16_777_216.0;
        scaled.round_ties_even() as u32
    } else {
        let rounded = magnitude + 0x0fff + (magnitude >> 13 & 1);
        (rounded >> 13) - 0x1_c000
    };
    // A value that rounds to zero loses its sign, like every zero.
    if half == 0 { 0 } else { sign | half as u16 }
}

fn half_to(half: u16) -> f32 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (half >> 10 & 0x1f, f32::from(half & 0x3ff));
    match exponent {
        0 => sign * fraction / 16_777_216.0,
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * f32::from(exponent as i16 - 15).exp2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The division that the exact rule asks for is mostly avoided, never its result.
    #[test]
    fn the_quick_way_rounds_like_the_rule() {
        let mut rng = throng_stdx::Rng::new(11);
        for axis in [
            Axis::new(-5242.88, 0.01, 20),
            Axis::new(-64.0, 1.0 / 32.0, 12),
            Axis::new(0.0, 0.01, 13),
            Axis::range(-90.0, 90.0, 8),
            Axis::new(-3.0, 0.1, 28),
            Axis::new(-3.0, 0.1, 29),
        ] {
            let scale = Scale::new(axis);
            let check =
                |value: f64| assert_eq!(scale.quantise(value), axis.quantise(value), "{axis:?} {value}");
            for _ in 0..100_000 {
                let q = (rng.next_u64() >> 8) as f64 / (1_u64 << 56) as f64 * scale.top as f64;
                check(axis.min + axis.step * q);
                // On and beside the borders between two values.
                let border = axis.min + axis.step * (q.floor() + 0.5);
                for value in [border, border.next_up(), border.next_down(), f64::from(border as f32)] {
                    check(value);
                }
            }
            for value in
                [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, axis.max(), axis.min]
            {
                check(value);
            }
        }
    }
}
