//! Reading fields in place.

use super::{Attachment, AttachmentKind};
use crate::{IoHash, read_varuint};

/// The type of a field, without the flag that says that it has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// No value.
    Null = 0x01,
    /// Named fields, each with its type.
    Object = 0x02,
    /// Named fields that share one type.
    UniformObject = 0x03,
    /// Items, each with its type.
    Array = 0x04,
    /// Items that share one type.
    UniformArray = 0x05,
    /// Bytes.
    Binary = 0x06,
    /// UTF-8 text.
    String = 0x07,
    /// 0 to 2^64 - 1.
    IntegerPositive = 0x08,
    /// -2^64 to -1, stored as ones' complement.
    IntegerNegative = 0x09,
    /// IEEE 754, 4 bytes.
    Float32 = 0x0A,
    /// IEEE 754, 8 bytes.
    Float64 = 0x0B,
    /// False; no payload.
    BoolFalse = 0x0C,
    /// True; no payload.
    BoolTrue = 0x0D,
    /// Hash of another document.
    ObjectAttachment = 0x0E,
    /// Hash of data.
    BinaryAttachment = 0x0F,
    /// A hash that is no attachment.
    Hash = 0x10,
    /// 16 bytes, in the order of the text.
    Uuid = 0x11,
    /// 100 ns ticks since 0001-01-01.
    DateTime = 0x12,
    /// 100 ns ticks.
    TimeSpan = 0x13,
    /// 12 bytes.
    ObjectId = 0x14,
    /// Bytes with a numbered type.
    CustomById = 0x1E,
    /// Bytes with a named type.
    CustomByName = 0x1F,
}

/// Set in a stored type when the field has a name.
pub(crate) const HAS_NAME: u8 = 0x80;

impl Kind {
    /// The kind of a stored type byte, with or without the name flag. `None` for everything that
    /// must not be stored.
    #[must_use]
    pub fn from_stored(byte: u8) -> Option<Kind> {
        use Kind::{
            Array, Binary, BinaryAttachment, BoolFalse, BoolTrue, CustomById, CustomByName, DateTime,
            Float32, Float64, Hash, IntegerNegative, IntegerPositive, Null, Object, ObjectAttachment,
            ObjectId, String, TimeSpan, UniformArray, UniformObject, Uuid,
        };
        Some(match byte & !HAS_NAME {
            0x01 => Null,
            0x02 => Object,
            0x03 => UniformObject,
            0x04 => Array,
            0x05 => UniformArray,
            0x06 => Binary,
            0x07 => String,
            0x08 => IntegerPositive,
            0x09 => IntegerNegative,
            0x0A => Float32,
            0x0B => Float64,
            0x0C => BoolFalse,
            0x0D => BoolTrue,
            0x0E => ObjectAttachment,
            0x0F => BinaryAttachment,
            0x10 => Hash,
            0x11 => Uuid,
            0x12 => DateTime,
            0x13 => TimeSpan,
            0x14 => ObjectId,
            0x1E => CustomById,
            0x1F => CustomByName,
            _ => return None,
        })
    }

    /// Reports whether the value is in the type, so that the payload has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        matches!(self, Kind::Null | Kind::BoolFalse | Kind::BoolTrue)
    }

    /// Reports whether the value is an object or an array.
    #[must_use]
    pub fn is_container(self) -> bool {
        matches!(self, Kind::Object | Kind::UniformObject | Kind::Array | Kind::UniformArray)
    }

    /// Bytes of the payload at the start of `bytes`, size prefix included. `None` if it passes
    /// their end.
    pub(crate) fn payload_len(self, bytes: &[u8]) -> Option<usize> {
        let len = match self {
            Kind::Null | Kind::BoolFalse | Kind::BoolTrue => 0,
            Kind::IntegerPositive | Kind::IntegerNegative => read_varuint(bytes)?.1,
            Kind::Float32 => 4,
            Kind::Float64 | Kind::DateTime | Kind::TimeSpan => 8,
            Kind::ObjectAttachment | Kind::BinaryAttachment | Kind::Hash => IoHash::BYTES,
            Kind::Uuid => 16,
            Kind::ObjectId => 12,
            Kind::Object
            | Kind::UniformObject
            | Kind::Array
            | Kind::UniformArray
            | Kind::Binary
            | Kind::String
            | Kind::CustomById
            | Kind::CustomByName => {
                let (size, prefix) = read_varuint(bytes)?;
                usize::try_from(size).ok()?.checked_add(prefix)?
            }
        };
        (len <= bytes.len()).then_some(len)
    }
}

/// A field within a document: a view of its bytes.
///
/// Readers answer `None` when the field is of another kind; they never panic, whatever the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    name: Option<&'a [u8]>,
    kind: Kind,
    /// With the size prefix, where the kind has one.
    payload: &'a [u8],
}

impl<'a> Field<'a> {
    /// The field at the start of `bytes`, and how many bytes it takes.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<(Field<'a>, usize)> {
        let (stored, rest) = bytes.split_first()?;
        let (field, len) = Field::read_typed(*stored, rest)?;
        Some((field, 1 + len))
    }

    /// A field whose type was written before.
    pub(crate) fn read_typed(stored: u8, bytes: &'a [u8]) -> Option<(Field<'a>, usize)> {
        let kind = Kind::from_stored(stored)?;
        let (name, name_end) = if stored & HAS_NAME == 0 {
            (None, 0)
        } else {
            let (len, prefix) = read_varuint(bytes)?;
            let end = usize::try_from(len).ok()?.checked_add(prefix)?;
            (Some(bytes.get(prefix..end)?), end)
        };
        let rest = &bytes[name_end..];
        let len = kind.payload_len(rest)?;
        Some((Field { name, kind, payload: &rest[..len] }, name_end + len))
    }

    /// A field without a name, of a payload that was read before.
    pub(super) fn of(kind: Kind, payload: &'a [u8]) -> Field<'a> {
        Field { name: None, kind, payload }
    }

    /// The name, if the field has one. UTF-8 by convention; not checked.
    #[must_use]
    pub fn name(&self) -> Option<&'a [u8]> {
        self.name
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The stored payload, size prefix included.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Fields of an object or items of an array; nothing for other kinds.
    #[must_use]
    pub fn iter(&self) -> Fields<'a> {
        self.try_iter().unwrap_or(Fields { rest: &[], uniform: None, left: 0 })
    }

    /// The first field of an object with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Field<'a>> {
        self.is_object().then(|| self.iter().find(|field| field.name == Some(name.as_bytes())))?
    }

    /// Reports whether this is an object, uniform or not.
    #[must_use]
    pub fn is_object(&self) -> bool {
        matches!(self.kind, Kind::Object | Kind::UniformObject)
    }

    /// Reports whether this is an array, uniform or not.
    #[must_use]
    pub fn is_array(&self) -> bool {
        matches!(self.kind, Kind::Array | Kind::UniformArray)
    }

    /// An object as a document of its own: the bytes of this field without its name.
    #[must_use]
    pub fn to_document_bytes(&self) -> Option<Vec<u8>> {
        self.is_object().then(|| [&[self.kind as u8], self.payload].concat())
    }

    /// The value of an integer.
    #[must_use]
    pub fn integer(&self) -> Option<i128> {
        let value = || read_varuint(self.payload).map(|(value, _)| i128::from(value));
        match self.kind {
            Kind::IntegerPositive => value(),
            Kind::IntegerNegative => value().map(|value| -value - 1),
            _ => None,
        }
    }

    /// The value of a bool.
    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        match self.kind {
            Kind::BoolTrue => Some(true),
            Kind::BoolFalse => Some(false),
            _ => None,
        }
    }

    /// The value of a float of either width.
    #[must_use]
    pub fn float(&self) -> Option<f64> {
        match self.kind {
            Kind::Float32 => self.payload.first_chunk().map(|bytes| f64::from(f32::from_be_bytes(*bytes))),
            Kind::Float64 => self.payload.first_chunk().map(|bytes| f64::from_be_bytes(*bytes)),
            _ => None,
        }
    }

    /// The ticks of a moment or time span.
    #[must_use]
    pub fn ticks(&self) -> Option<i64> {
        match self.kind {
            Kind::DateTime | Kind::TimeSpan => {
                self.payload.first_chunk().map(|bytes| i64::from_be_bytes(*bytes))
            }
            _ => None,
        }
    }

    /// The bytes of a string, binary or custom value (with its type), without the size.
    #[must_use]
    pub fn content(&self) -> Option<&'a [u8]> {
        match self.kind {
            Kind::String | Kind::Binary | Kind::CustomById | Kind::CustomByName => {
                let (_, prefix) = read_varuint(self.payload)?;
                self.payload.get(prefix..)
            }
            _ => None,
        }
    }

    /// The text of a string that is UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        if self.kind == Kind::String { std::str::from_utf8(self.content()?).ok() } else { None }
    }

    /// The value of a hash or attachment.
    #[must_use]
    pub fn hash(&self) -> Option<IoHash> {
        match self.kind {
            Kind::Hash | Kind::ObjectAttachment | Kind::BinaryAttachment => IoHash::read(self.payload),
            _ => None,
        }
    }

    /// The attachment, if this field is one.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        let kind = match self.kind {
            Kind::ObjectAttachment => AttachmentKind::Object,
            Kind::BinaryAttachment => AttachmentKind::Binary,
            _ => return None,
        };
        Some(Attachment { kind, hash: self.hash()? })
    }

    /// Calls `visit` with this field and everything in it, depth first in stored order.
    ///
    /// For fields of a checked document, whose nesting is bounded.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Field<'a>)) {
        visit(self);
        // A large array of numbers or hashes is one type away from being skipped, but only if it is
        // uniform.
        for field in self.iter() {
            if field.kind.is_container() {
                field.visit(visit);
            } else {
                visit(&field);
            }
        }
    }

    fn try_iter(&self) -> Option<Fields<'a>> {
        if !self.kind.is_container() {
            return None;
        }
        let (_, prefix) = read_varuint(self.payload)?;
        let mut rest = &self.payload[prefix..];
        let mut left = u64::MAX;
        if self.is_array() {
            let (count, count_len) = read_varuint(rest)?;
            rest = &rest[count_len..];
            left = count;
        }
        let mut uniform = None;
        if matches!(self.kind, Kind::UniformObject | Kind::UniformArray) {
            let (stored, items) = rest.split_first()?;
            (uniform, rest) = (Some(*stored), items);
        }
        Some(Fields { rest, uniform, left })
    }
}

/// Fields of an object or items of an array, in stored order. Ends early if the bytes do.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    pub(super) rest: &'a [u8],
    /// The type of all of them, in uniform containers.
    pub(super) uniform: Option<u8>,
    /// How many items an array still has.
    pub(super) left: u64,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.rest.is_empty() || self.left == 0 {
            return None;
        }
        let (field, len) = match self.uniform {
            Some(stored) => Field::read_typed(stored, self.rest),
            None => Field::read(self.rest),
        }?;
        self.rest = &self.rest[len..];
        self.left -= 1;
        Some(field)
    }
}
