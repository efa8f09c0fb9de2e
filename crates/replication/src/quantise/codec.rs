//! A quantiser made ready for the hot path.

use core::f32::consts::TAU;
use core::f64::consts::FRAC_1_SQRT_2;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::axis::Scale;
use super::half::{canonical, half_from, half_to};
use super::rotation::{dequantise_quat, dequantise_unit, quantise_quat, quantise_unit};
use super::{Axis, CustomQuantiser, Quantiser, QuantiserError, Value, ValueMismatch, WORDS_MAX, mask};
use crate::bits::{BitReader, BitWriter};
use crate::handle::Handle;
use crate::wire::DecodeError;

/// Most variants of an enum.
const ENUM_VARIANTS_MAX: usize = 256;
/// Deepest nesting of lists, options and enums.
const DEPTH_MAX: usize = 7;

/// A quantiser made ready for the hot path.
#[derive(Clone, Debug)]
pub struct Codec {
    pub(super) op: Op,
    /// Wire bits of each word; 0 when the width depends on the value.
    word_bits: [u8; WORDS_MAX],
    pub(super) words: u8,
    live_words: u8,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
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
    Token(u8),
    Handle,
    Blob(u32),
    Text(u32),
    Array(Box<Codec>, u32),
    Option(Box<Codec>),
    /// Fields of each variant.
    Enum(Vec<Vec<Codec>>),
    /// Two to four numbers of single precision.
    Floats,
    Custom(Arc<dyn CustomQuantiser>),
}

impl Codec {
    /// Prepares `quantiser`.
    ///
    /// # Errors
    /// When its parameters are out of range or its values cannot be told apart.
    pub fn compile(quantiser: &Quantiser) -> Result<Self, QuantiserError> {
        let bits_in = |bits: u8, min: u8, max: u8| {
            if (min..=max).contains(&bits) { Ok(()) } else { Err(QuantiserError::Bits { bits, min, max }) }
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
                bits_in(bits, 1, 64)?;
                fixed(Op::UInt(bits), 2, bits)
            }
            Quantiser::Int(bits) => {
                bits_in(bits, 1, 64)?;
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
                bits_in(bits, 2, 24)?;
                fixed(Op::Unit3(Scale::new(Axis::range(-1.0, 1.0, bits))), 3, 2 * bits)
            }
            Quantiser::Quat(bits) => {
                bits_in(bits, 2, 18)?;
                let axis = Axis::range(-FRAC_1_SQRT_2, FRAC_1_SQRT_2, bits);
                fixed(Op::Quat(Scale::new(axis)), 4, 2 + 3 * bits)
            }
            Quantiser::Angle(bits) => {
                bits_in(bits, 1, 22)?;
                fixed(Op::Angle(bits), 1, bits)
            }
            Quantiser::F16 => fixed(Op::F16, 1, 16),
            Quantiser::F32 => fixed(Op::F32, 1, 32),
            Quantiser::F64 => fixed(Op::F64, 2, 64),
            Quantiser::Token(table) => varying(Op::Token(table), 1),
            Quantiser::Handle { .. } => varying(Op::Handle, 2),
            Quantiser::Blob(max) => varying(Op::Blob(max), 0),
            Quantiser::Text(max) => varying(Op::Text(max), 0),
            Quantiser::Array(ref element, max) => {
                varying(Op::Array(Box::new(Self::compile_inner(element)?), max), 0)
            }
            Quantiser::Option(ref inner) => {
                let inner = Self::compile_inner(inner)?;
                if inner.token_table().is_some() {
                    return Err(QuantiserError::Nested);
                }
                varying(Op::Option(Box::new(inner)), 0)
            }
            Quantiser::Enum(ref variants) => {
                let (mut compiled, mut names) = (Vec::new(), BTreeSet::new());
                for (name, fields) in variants {
                    if !names.insert(name) {
                        return Err(QuantiserError::Duplicate);
                    }
                    let fields: Result<Vec<_>, _> = fields.iter().map(Self::compile_inner).collect();
                    let fields = fields?;
                    if fields.iter().any(|field| field.token_table().is_some()) {
                        return Err(QuantiserError::Nested);
                    }
                    compiled.push(fields);
                }
                if !(1..=ENUM_VARIANTS_MAX).contains(&compiled.len()) {
                    return Err(QuantiserError::Variants { count: compiled.len() });
                }
                varying(Op::Enum(compiled), 0)
            }
            Quantiser::Floats(count) => {
                bits_in(count, 2, 4)?;
                let word_bits = [64, if count > 2 { 32 * (count - 2) } else { 0 }, 0];
                Self { op: Op::Floats, word_bits, words: count.div_ceil(2), live_words: count }
            }
            Quantiser::Custom(ref custom) => {
                let (live_words, words) = custom.words();
                if !(1..=4).contains(&live_words) || !(1..=WORDS_MAX).contains(&words) {
                    return Err(QuantiserError::Words);
                }
                let op = Op::Custom(Arc::clone(custom));
                Self { op, word_bits: [0; WORDS_MAX], words: words as u8, live_words: live_words as u8 }
            }
        })
    }

    /// Prepares what stands within another value.
    fn compile_inner(quantiser: &Quantiser) -> Result<Self, QuantiserError> {
        let inner = Self::compile(quantiser)?;
        let depth = inner.depth();
        // A hidden reference is hidden property by property.
        if depth > DEPTH_MAX
            || matches!(inner.op, Op::Custom(_))
            || matches!(quantiser, Quantiser::Handle { hide: true })
        {
            return Err(QuantiserError::Nested);
        }
        Ok(inner)
    }

    fn depth(&self) -> usize {
        let inner = match &self.op {
            Op::Array(inner, _) | Op::Option(inner) => inner.depth(),
            Op::Enum(variants) => variants.iter().flatten().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        };
        inner + 1
    }

    /// 64-bit words of the quantised value.
    #[must_use]
    #[inline]
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

    /// No value takes more wire bits, blobs and arrays aside.
    pub(crate) fn bits_max(&self) -> u32 {
        match &self.op {
            Op::Custom(custom) => custom.bits_max(),
            // Numbers of variable length take ten bytes at most.
            _ => self.fixed_bits().unwrap_or(80),
        }
    }

    /// Wire bits of each word; zero where the width depends on the value.
    pub(crate) fn word_bits(&self) -> &[u8] {
        &self.word_bits[..usize::from(self.words)]
    }

    /// The value lives outside the words: blob, string, list, option or enum.
    #[must_use]
    #[inline]
    pub fn is_heap(&self) -> bool {
        matches!(self.op, Op::Blob(_) | Op::Text(_) | Op::Array(..) | Op::Option(_) | Op::Enum(_))
    }

    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.op, Op::Custom(_))
    }

    /// The table that the value's tokens, or those of an array's elements, are in.
    pub(crate) fn token_table(&self) -> Option<u8> {
        match &self.op {
            Op::Token(table) => Some(*table),
            Op::Array(element, _) => element.token_table(),
            _ => None,
        }
    }

    /// The value is a reference, or a list of them.
    pub(crate) fn has_handles(&self) -> bool {
        match &self.op {
            Op::Handle => true,
            Op::Array(inner, _) | Op::Option(inner) => inner.has_handles(),
            Op::Enum(variants) => variants.iter().flatten().any(Self::has_handles),
            _ => false,
        }
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
            (Op::Custom(custom), _) => custom.store(value, &mut live[..usize::from(self.live_words)])?,
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
            (Op::Floats, Value::Vec2(value)) if self.live_words == 2 => store_floats(live, value),
            (Op::Floats, Value::Vec3(value)) if self.live_words == 3 => store_floats(live, value),
            (Op::Floats, Value::Quat(value)) if self.live_words == 4 => store_floats(live, value),
            (Op::Token(_), Value::Token(id)) => live[0] = *id,
            (Op::Handle, Value::Handle(handle)) => {
                live[0] = handle.index();
                live[1] = handle.generation();
            }
            _ => return Err(ValueMismatch),
        }
        Ok(())
    }

    /// Quantises a value of one word: the word, and how many of the numbers were NaN. The usual
    /// kinds without a call.
    #[inline(always)]
    pub(crate) fn quantise_word(&self, live: &[u32]) -> (u64, u32) {
        let float = |word: &u32| f32::from_bits(*word);
        let wide = |word: &u32| f64::from(float(word));
        match (&self.op, live) {
            (Op::UInt(bits), [low, high, ..]) => {
                let value = u64::from(*low) | u64::from(*high) << 32;
                (value.min(u64::MAX >> ((64 - u32::from(*bits)) & 63)), 0)
            }
            (Op::Fixed(axis), [value, ..]) => {
                let ([q], nans) = Scale::quantise_counted([axis], [wide(value)]);
                (q, nans)
            }
            (Op::Vec3(axes), [x, y, z, ..]) => {
                let values = [wide(x), wide(y), wide(z)];
                let ([x, y, z], nans) = Scale::quantise_counted(axes.each_ref(), values);
                (x | y << axes[0].bits | z << (axes[0].bits + axes[1].bits), nans)
            }
            (Op::Unit3(axis), [x, y, z, ..]) => quantise_unit([float(x), float(y), float(z)], axis),
            (Op::Quat(axis), [x, y, z, w, ..]) => {
                quantise_quat([float(x), float(y), float(z), float(w)], axis)
            }
            _ => {
                let mut q = [0];
                let nans = self.quantise(live, &mut q);
                (q[0], nans)
            }
        }
    }

    /// Quantises live words into `out`; returns how many of the numbers were NaN.
    #[inline]
    pub fn quantise(&self, live: &[u32], out: &mut [u64]) -> u32 {
        let two = |at: usize| u64::from(live[at]) | u64::from(live[at + 1]) << 32;
        let float = |at: usize| f32::from_bits(live[at]);
        match &self.op {
            Op::Bool => out[0] = u64::from(live[0] != 0),
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
                let ([q], nans) = Scale::quantise_counted([axis], [f64::from(float(0))]);
                out[0] = q;
                return nans;
            }
            Op::Wide(axis) => {
                let value = f64::from_bits(two(0));
                out[0] = axis.quantise(value);
                return u32::from(value.is_nan());
            }
            Op::Vec2(axes) => {
                let values = [0, 1].map(|at| f64::from(float(at)));
                let (parts, nans) = Scale::quantise_counted(axes.each_ref(), values);
                pack(axes, parts, self.words, out);
                return nans;
            }
            Op::Vec3(axes) => {
                let values = [0, 1, 2].map(|at| f64::from(float(at)));
                let (parts, nans) = Scale::quantise_counted(axes.each_ref(), values);
                pack(axes, parts, self.words, out);
                return nans;
            }
            Op::Unit3(axis) => {
                let (q, nans) = quantise_unit([0, 1, 2].map(float), axis);
                out[0] = q;
                return nans;
            }
            Op::Quat(axis) => {
                let (q, nans) = quantise_quat([0, 1, 2, 3].map(float), axis);
                out[0] = q;
                return nans;
            }
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
            Op::Token(_) => out[0] = u64::from(live[0]),
            // No object has the index 0, whatever its generation.
            Op::Handle => out[0] = if live[0] == 0 { 0 } else { two(0) },
            Op::Blob(_) | Op::Text(_) | Op::Array(..) | Op::Option(_) | Op::Enum(_) => {}
            Op::Floats => {
                let bits = |at: usize| match live.get(at).filter(|_| at < usize::from(self.live_words)) {
                    Some(word) => u64::from(canonical(f32::from_bits(*word)).to_bits()),
                    None => 0,
                };
                for (at, word) in out.iter_mut().take(usize::from(self.words)).enumerate() {
                    *word = bits(2 * at) | bits(2 * at + 1) << 32;
                }
                let numbers = live.iter().take(usize::from(self.live_words));
                return numbers.filter(|word| f32::from_bits(**word).is_nan()).count() as u32;
            }
            Op::Custom(custom) => {
                custom.quantise(&live[..usize::from(self.live_words)], &mut out[..usize::from(self.words)])
            }
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
            Op::Token(_) => Value::Token(q[0] as u32),
            Op::Handle => Value::Handle(Handle::from_parts(q[0] as u32, (q[0] >> 32) as u32)),
            Op::Floats => {
                let at = |at: usize| f32::from_bits((q[at / 2] >> (32 * (at % 2))) as u32);
                match self.live_words {
                    2 => Value::Vec2([at(0), at(1)]),
                    3 => Value::Vec3([at(0), at(1), at(2)]),
                    _ => Value::Quat([at(0), at(1), at(2), at(3)]),
                }
            }
            Op::Blob(_) => Value::Bytes(Vec::new()),
            Op::Text(_) => Value::Text(String::new()),
            Op::Option(_) => Value::Option(None),
            Op::Enum(_) => Value::Enum(0, Vec::new()),
            Op::Array(..) => Value::List(Vec::new()),
            Op::Custom(custom) => custom.dequantise(&q[..usize::from(self.words)]),
        }
    }

    /// Writes quantised words. Not for blobs and arrays.
    #[inline]
    pub fn write(&self, q: &[u64], writer: &mut BitWriter<'_>) {
        if self.word_bits[0] != 0 {
            for (word, bits) in q.iter().zip(self.word_bits()) {
                writer.put(*word, u32::from(*bits));
            }
        } else if let Op::Custom(custom) = &self.op {
            custom.write(&q[..usize::from(self.words)], writer);
        } else if let Op::Handle = self.op {
            writer.put_varint(q[0] & mask(32));
            if q[0] & mask(32) != 0 {
                writer.put_varint(q[0] >> 32);
            }
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
        } else if let Op::Custom(custom) = &self.op {
            custom.read(reader, &mut q[..usize::from(self.words)])?;
        } else {
            let number = reader.get_varint()?;
            let generation = match self.op {
                Op::Handle if number != 0 => reader.get_varint()?,
                _ => 0,
            };
            let short = matches!(self.op, Op::Token(_) | Op::Handle);
            if short && number.max(generation) > u64::from(u32::MAX) {
                return Err(DecodeError::Value);
            }
            q[0] = number | generation << 32;
        }
        Ok(())
    }
}

fn store_floats(live: &mut [u32], value: &[f32]) {
    for (live, value) in live.iter_mut().zip(value) {
        *live = value.to_bits();
    }
}

#[inline]
pub(super) fn pack<const N: usize>(axes: &[Scale; N], parts: [u64; N], words: u8, out: &mut [u64]) {
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
pub(super) fn unpack<const N: usize>(axes: &[Scale; N], words: u8, q: &[u64]) -> [u64; N] {
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
