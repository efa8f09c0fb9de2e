//! Quantisers: conversion of a game value to a few bits, and back.
//!
//! A quantised value of fixed width is kept exactly as it goes over the wire, packed into one to
//! three 64-bit words. A comparison is then a comparison of words and writing a property is one
//! `put` a word.
//!
//! The invariant that everything else rests on: `quantise(dequantise(q)) == q` for every `q` that
//! `quantise` can produce.

mod axis;
mod codec;
mod custom;
mod delta;
mod half;
mod list;
mod motion;
mod rotation;

use std::sync::Arc;

use crate::handle::Handle;

pub use axis::Axis;
pub use codec::Codec;
pub use custom::CustomQuantiser;
pub(crate) use motion::Motion;

/// Most 64-bit words of one quantised property.
pub const WORDS_MAX: usize = 3;
/// Quantisation of one property and written. Widths are in bits.
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
    /// A rotation: smallest three, 2 bits and three of this many bits (2 to 18). Order of
    /// components: x, y, z, w.
    Quat(u8),
    /// An angle in radians that wraps, 1 to 22 bits.
    Angle(u8),
    /// IEEE half precision; negative zero becomes zero, every NaN the same NaN.
    F16,
    /// IEEE single precision; negative zero becomes zero, every NaN the same NaN.
    F32,
    /// IEEE double precision; negative zero becomes zero, every NaN the same NaN.
    F64,
    /// Interned string of a table; written as the number that the table gave it, or any number of
    /// the game's. Texts of
    /// [`Server::intern`](crate::Server::intern) are told to receivers by themselves.
    Token(u8),
    /// Reference to another object; `hide` replaces it by none for receivers that do not know the
    /// target. One that was sent while the receiver knew the target stays when the target leaves
    /// its scope, and names nothing there.
    Handle {
        /// Never tell a receiver that an object exists which it may not see.
        hide: bool,
    },
    /// Bytes, at most this many.
    Blob(u32),
    /// String of at most this many bytes; other bytes than UTF-8 refuse the packet.
    Text(u32),
    /// List of elements of one quantiser, at most this many; the whole list is one property.
    Array(Box<Quantiser>, u32),
    /// A value or none: one bit, and the value's.
    Option(Box<Quantiser>),
    /// One of 1 to 256 variants, by name, each with the quantisers of its fields; a variant that
    /// does not exist refuses the packet.
    Enum(Vec<(String, Vec<Quantiser>)>),
    /// Two, three or four numbers of single precision, side by side, each as [`F32`](Self::F32).
    Floats(u8),
    /// The game's own.
    Custom(Arc<dyn CustomQuantiser>),
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
    #[error("{bits} bits or numbers, where {min} to {max} are possible")]
    Bits {
        /// The requested value.
        bits: u8,
        /// The fewest possible.
        min: u8,
        /// The most possible.
        max: u8,
    },
    /// Step not above zero, or a bound that is not a number.
    #[error("an axis needs finite bounds and a step above zero")]
    Axis,
    /// Values that floating point cannot tell apart.
    #[error("the step is finer than floating point at the axis' end; use fewer bits or smaller bounds")]
    Precision,
    /// Tokens in options or enums, hidden references or a game's own values within others, values
    /// of varying length as fields of keyed arrays, more than 32 such fields, or nesting deeper
    /// than 8.
    #[error("a value within another must have a plain quantiser, and lie at most 8 deep")]
    Nested,
    /// No variant, or too many.
    #[error("an enum of {count} variants, where 1 to 256 are possible")]
    Variants {
        /// Count of the variants.
        count: usize,
    },
    /// Two variants of one name.
    #[error("two variants of an enum have the same name")]
    Duplicate,
    /// A game's own quantiser with no words, or too many.
    #[error("a custom quantiser has 1 to 4 live words and 1 to {WORDS_MAX} quantised ones")]
    Words,
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
    /// For [`Quantiser::Vec2`] and two [`Quantiser::Floats`].
    Vec2([f32; 2]),
    /// For [`Quantiser::Vec3`], [`Quantiser::Unit3`] and three [`Quantiser::Floats`].
    Vec3([f32; 3]),
    /// For [`Quantiser::Quat`] and four [`Quantiser::Floats`]: x, y, z, w.
    Quat([f32; 4]),
    /// For [`Quantiser::Token`]: the number that the table gave the string.
    Token(u32),
    /// For [`Quantiser::Handle`].
    Handle(Handle),
    /// For [`Quantiser::Blob`].
    Bytes(Vec<u8>),
    /// For [`Quantiser::Array`].
    List(Vec<Value>),
    /// For [`Quantiser::Text`].
    Text(String),
    /// For [`Quantiser::Option`].
    Option(Option<Box<Value>>),
    /// For [`Quantiser::Enum`]: number of the variant, and its fields.
    Enum(u32, Vec<Value>),
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
    f32 => F32, f64 => F64, [f32; 2] => Vec2, [f32; 3] => Vec3, [f32; 4] => Quat, Handle => Handle, Vec<u8> => Bytes,
    String => Text);

/// The value has another type than the property's quantiser takes, or is longer than it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value does not have the type or length that the property's quantiser takes")]
pub struct ValueMismatch;

/// All ones in the low `bits` bits.
#[inline]
pub(crate) const fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}
