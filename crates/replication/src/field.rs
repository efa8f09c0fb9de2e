//! Types that replicated structs are made of: how they are quantised unless a field says otherwise,
//! and how they are read into a value that exists, without allocation.

use std::sync::Arc;

use crate::bits::BitReader;
use crate::handle::Handle;
use crate::quantise::{Codec, Quantiser, Value, WORDS_MAX};

/// A type that a field of a replicated struct, of an enum or of a call may have. `#[derive(Field)]`
/// implements it for enums.
pub trait Field: Default {
    /// Quantiser of fields that name none. `max` is the most elements or bytes, for types that need
    /// a limit.
    fn quantiser(max: u32) -> Quantiser;

    /// The value, to be set.
    fn to_value(&self) -> Value;

    /// Takes the value that was received; `None` when it has another type or does not fit, and
    /// `self` may be changed in part then. Keeps the memory that `self` has.
    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()>;
}

/// A received value: words of a replica, or a position in wire bits.
#[derive(Debug)]
pub struct FieldReader<'a, 'b> {
    codec: &'a Codec,
    words: &'a [u64],
    bits: Option<&'a mut BitReader<'b>>,
}

impl<'a, 'b> FieldReader<'a, 'b> {
    pub(crate) fn of_words(codec: &'a Codec, words: &'a [u64]) -> Self {
        Self { codec, words, bits: None }
    }

    pub(crate) fn of_bits(codec: &'a Codec, bits: &'a mut BitReader<'b>) -> Self {
        Self { codec, words: &[], bits: Some(bits) }
    }

    /// The value as it is. Allocates for strings, lists and enums only.
    pub fn value(&mut self) -> Option<Value> {
        match &mut self.bits {
            None => Some(self.codec.dequantise(self.words)),
            Some(bits) if self.codec.is_heap() => self.codec.take(bits).ok(),
            Some(bits) => {
                let mut q = [0; WORDS_MAX];
                self.codec.read(bits, &mut q).ok()?;
                Some(self.codec.dequantise(&q))
            }
        }
    }

    /// Replaces the bytes of a blob or string; `None` for other values.
    pub fn bytes(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let bits = self.bits.as_mut()?;
        let count = self.codec.byte_count(bits)?;
        out.clear();
        bits.get_bytes(count, out).ok()
    }

    /// Calls `each` with the number and the reader of every element of a list; returns their count.
    pub fn list(
        &mut self,
        mut each: impl FnMut(usize, &mut FieldReader<'_, 'b>) -> Option<()>,
    ) -> Option<usize> {
        let bits = self.bits.as_mut()?;
        let (element, count) = self.codec.element_count(bits)?;
        for at in 0..count {
            each(at, &mut FieldReader::of_bits(element, bits))?;
        }
        Some(count)
    }

    /// The reader of an option's value; the inner `None` when there is none.
    pub fn option(&mut self) -> Option<Option<FieldReader<'_, 'b>>> {
        let bits = self.bits.as_mut()?;
        let inner = self.codec.inner(bits)?;
        Some(inner.map(|inner| FieldReader::of_bits(inner, bits)))
    }

    /// The number of an enum's variant, and the readers of its fields.
    pub fn variant(&mut self) -> Option<(u32, VariantReader<'_, 'b>)> {
        let bits = self.bits.as_mut()?;
        let (number, fields) = self.codec.variant(bits)?;
        Some((number, VariantReader { fields, bits }))
    }
}

/// The fields of an enum's variant, in order.
#[derive(Debug)]
pub struct VariantReader<'a, 'b> {
    fields: &'a [Codec],
    bits: &'a mut BitReader<'b>,
}

impl VariantReader<'_, '_> {
    /// Reads the next field; `None` after the last.
    pub fn read(&mut self, field: &mut impl Field) -> Option<()> {
        let (codec, rest) = self.fields.split_first()?;
        self.fields = rest;
        field.read_from(&mut FieldReader::of_bits(codec, self.bits))
    }
}

macro_rules! integers {
    ($($type:ty => $quantiser:expr, $variant:ident as $wide:ty);* $(;)?) => {
        $(impl Field for $type {
            fn quantiser(_: u32) -> Quantiser {
                $quantiser
            }

            fn to_value(&self) -> Value {
                Value::$variant(<$wide>::from(*self))
            }

            fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
                *self = match reader.value()? {
                    Value::UInt(value) => value.try_into().ok()?,
                    Value::Int(value) => value.try_into().ok()?,
                    _ => return None,
                };
                Some(())
            }
        })*
    };
}
integers! {
    u8 => Quantiser::UInt(8), UInt as u64;
    u16 => Quantiser::UInt(16), UInt as u64;
    u32 => Quantiser::UInt(32), UInt as u64;
    u64 => Quantiser::UInt(64), UInt as u64;
    i8 => Quantiser::Int(8), Int as i64;
    i16 => Quantiser::Int(16), Int as i64;
    i32 => Quantiser::Int(32), Int as i64;
    i64 => Quantiser::Int(64), Int as i64;
}

macro_rules! plain {
    ($($type:ty => $quantiser:expr, $variant:ident);* $(;)?) => {
        $(impl Field for $type {
            fn quantiser(_: u32) -> Quantiser {
                $quantiser
            }

            fn to_value(&self) -> Value {
                Value::$variant(*self)
            }

            fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
                let Value::$variant(value) = reader.value()? else { return None };
                *self = value;
                Some(())
            }
        })*
    };
}
plain! {
    bool => Quantiser::Bool, Bool;
    [f32; 2] => Quantiser::Floats(2), Vec2;
    [f32; 3] => Quantiser::Floats(3), Vec3;
    [f32; 4] => Quantiser::Quat(12), Quat;
    Handle => Quantiser::Handle { hide: false }, Handle;
}

macro_rules! floats {
    ($($type:ty => $quantiser:expr, $variant:ident);* $(;)?) => {
        $(impl Field for $type {
            fn quantiser(_: u32) -> Quantiser {
                $quantiser
            }

            fn to_value(&self) -> Value {
                Value::$variant(*self)
            }

            fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
                *self = match reader.value()? {
                    Value::F32(value) => value as $type,
                    Value::F64(value) => value as $type,
                    _ => return None,
                };
                Some(())
            }
        })*
    };
}
floats! {
    f32 => Quantiser::F32, F32;
    f64 => Quantiser::F64, F64;
}

impl Field for String {
    fn quantiser(max: u32) -> Quantiser {
        Quantiser::Text(max)
    }

    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }

    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
        let mut bytes = core::mem::take(self).into_bytes();
        reader.bytes(&mut bytes)?;
        *self = Self::from_utf8(bytes).ok()?;
        Some(())
    }
}

impl<T: Field> Field for Vec<T> {
    fn quantiser(max: u32) -> Quantiser {
        // Elements with a length of their own have the same limit.
        Quantiser::Array(Box::new(T::quantiser(max)), max)
    }

    fn to_value(&self) -> Value {
        Value::List(self.iter().map(Field::to_value).collect())
    }

    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
        let count = reader.list(|at, element| {
            if at == self.len() {
                self.push(T::default());
            }
            self[at].read_from(element)
        })?;
        self.truncate(count);
        Some(())
    }
}

impl<T: Field> Field for Option<T> {
    fn quantiser(max: u32) -> Quantiser {
        Quantiser::Option(Box::new(T::quantiser(max)))
    }

    fn to_value(&self) -> Value {
        Value::Option(self.as_ref().map(|value| Box::new(value.to_value())))
    }

    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
        match reader.option()? {
            None => *self = None,
            Some(mut inner) => self.get_or_insert_default().read_from(&mut inner)?,
        }
        Some(())
    }
}

/// Bytes are a list of numbers; a blob is denser to write.
impl Field for Arc<[u8]> {
    fn quantiser(max: u32) -> Quantiser {
        Quantiser::Blob(max)
    }

    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }

    fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
        let mut bytes = Vec::new();
        reader.bytes(&mut bytes)?;
        if **self != bytes[..] {
            *self = bytes.into();
        }
        Some(())
    }
}

#[cfg(feature = "glam")]
mod glam_fields {
    use super::{Field, FieldReader, Quantiser, Value};

    macro_rules! vectors {
        ($($type:ty => $quantiser:expr, $variant:ident);* $(;)?) => {
            $(impl Field for $type {
                fn quantiser(_: u32) -> Quantiser {
                    $quantiser
                }

                fn to_value(&self) -> Value {
                    Value::$variant(self.to_array())
                }

                fn read_from(&mut self, reader: &mut FieldReader<'_, '_>) -> Option<()> {
                    let Value::$variant(value) = reader.value()? else { return None };
                    *self = <$type>::from_array(value);
                    Some(())
                }
            })*
        };
    }
    vectors! {
        glam::Vec2 => Quantiser::Floats(2), Vec2;
        glam::Vec3 => Quantiser::Floats(3), Vec3;
        glam::Vec3A => Quantiser::Floats(3), Vec3;
        glam::Vec4 => Quantiser::Floats(4), Quat;
        glam::Quat => Quantiser::Quat(12), Quat;
    }
}
