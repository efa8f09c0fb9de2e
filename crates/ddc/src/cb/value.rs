//! Writing compact binary.

use super::field::{Field, HAS_NAME, Kind};
use crate::{IoHash, read_varuint, write_varuint};

/// Which containers are written in uniform form, where their types allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// None: every item has its type.
    Separate,
    /// Arrays only: how servers write, and what clients of this API expect to see.
    Plain,
    /// Objects and arrays, and floats in their smallest width: equal content gives equal bytes.
    Canonical,
}

/// A value to be written. For answers and tests; uploads are never decoded into it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// A number from 0.
    Integer(u64),
    /// A number below 0: the stored ones' complement, so that `Negative(0)` is -1.
    Negative(u64),
    /// A 32-bit float.
    Float32(f32),
    /// A 64-bit float.
    Float64(f64),
    /// Text.
    String(Vec<u8>),
    /// Bytes.
    Binary(Vec<u8>),
    /// A hash that is no attachment.
    Hash(IoHash),
    /// The hash of another document.
    ObjectAttachment(IoHash),
    /// The hash of data.
    BinaryAttachment(IoHash),
    /// 16 bytes, in the order of the text.
    Uuid([u8; 16]),
    /// 100 ns ticks since 0001-01-01.
    DateTime(i64),
    /// 100 ns ticks.
    TimeSpan(i64),
    /// 12 bytes.
    ObjectId([u8; 12]),
    /// Bytes with a numbered type.
    CustomById(u64, Vec<u8>),
    /// Bytes with a named type; the name must not be empty.
    CustomByName(Vec<u8>, Vec<u8>),
    /// Named fields, in order.
    Object(Vec<(Vec<u8>, Value)>),
    /// Items, in order.
    Array(Vec<Value>),
    /// A document that is copied as it is: the type byte of an object and its payload.
    Document(Vec<u8>),
}

impl Value {
    /// An object of these fields.
    pub fn object<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Value {
        Value::Object(fields.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value)).collect())
    }

    /// A text.
    #[must_use]
    pub fn string(text: &str) -> Value {
        Value::String(text.as_bytes().to_vec())
    }

    /// An array of hashes.
    pub fn hashes(hashes: impl IntoIterator<Item = IoHash>) -> Value {
        Value::Array(hashes.into_iter().map(Value::Hash).collect())
    }

    /// Copies a field of a checked document.
    #[must_use]
    pub fn from_field(field: &Field<'_>) -> Value {
        let content = || field.content().unwrap_or_default();
        let integer = || read_varuint(field.payload()).unwrap_or_default().0;
        let hash = || field.hash().unwrap_or_default();
        match field.kind() {
            Kind::Null => Value::Null,
            Kind::BoolFalse => Value::Bool(false),
            Kind::BoolTrue => Value::Bool(true),
            Kind::IntegerPositive => Value::Integer(integer()),
            Kind::IntegerNegative => Value::Negative(integer()),
            Kind::Float32 => Value::Float32(field.float().unwrap_or_default() as f32),
            Kind::Float64 => Value::Float64(field.float().unwrap_or_default()),
            Kind::String => Value::String(content().to_vec()),
            Kind::Binary => Value::Binary(content().to_vec()),
            Kind::Hash => Value::Hash(hash()),
            Kind::ObjectAttachment => Value::ObjectAttachment(hash()),
            Kind::BinaryAttachment => Value::BinaryAttachment(hash()),
            Kind::Uuid => Value::Uuid(field.payload().first_chunk().copied().unwrap_or_default()),
            Kind::ObjectId => Value::ObjectId(field.payload().first_chunk().copied().unwrap_or_default()),
            Kind::DateTime => Value::DateTime(field.ticks().unwrap_or_default()),
            Kind::TimeSpan => Value::TimeSpan(field.ticks().unwrap_or_default()),
            Kind::CustomById => {
                let (id, prefix) = read_varuint(content()).unwrap_or_default();
                Value::CustomById(id, content()[prefix..].to_vec())
            }
            Kind::CustomByName => {
                let (len, prefix) = read_varuint(content()).unwrap_or_default();
                let (name, data) = content()[prefix..].split_at_checked(len as usize).unwrap_or_default();
                Value::CustomByName(name.to_vec(), data.to_vec())
            }
            Kind::Object | Kind::UniformObject => {
                let pair =
                    |inner: Field<'_>| (inner.name().unwrap_or_default().to_vec(), Value::from_field(&inner));
                Value::Object(field.iter().map(pair).collect())
            }
            Kind::Array | Kind::UniformArray => {
                Value::Array(field.iter().map(|inner| Value::from_field(&inner)).collect())
            }
        }
    }

    /// This value as a field without a name: a document, if it is an object.
    #[must_use]
    pub fn encode(&self, style: Style) -> Vec<u8> {
        self.encode_named(None, style)
    }

    /// This value as a field, with its name.
    #[must_use]
    pub fn encode_named(&self, name: Option<&[u8]>, style: Style) -> Vec<u8> {
        let mut payload = Vec::new();
        let kind = self.write_payload(&mut payload, style);
        let mut out = Vec::with_capacity(payload.len() + 12 + name.map_or(0, <[u8]>::len));
        out.push(kind | if name.is_some() { HAS_NAME } else { 0 });
        if let Some(name) = name {
            write_sized(&mut out, name);
        }
        out.extend_from_slice(&payload);
        out
    }

    /// Appends the payload; gives the type.
    fn write_payload(&self, out: &mut Vec<u8>, style: Style) -> u8 {
        let kind = match self {
            Value::Null => Kind::Null,
            Value::Bool(true) => Kind::BoolTrue,
            Value::Bool(false) => Kind::BoolFalse,
            Value::Integer(value) => {
                write_varuint(out, *value);
                Kind::IntegerPositive
            }
            Value::Negative(complement) => {
                write_varuint(out, *complement);
                Kind::IntegerNegative
            }
            Value::Float64(wide) if style == Style::Canonical && f64::from(*wide as f32) == *wide => {
                out.extend_from_slice(&(*wide as f32).to_be_bytes());
                Kind::Float32
            }
            Value::Float32(value) => {
                out.extend_from_slice(&value.to_be_bytes());
                Kind::Float32
            }
            Value::Float64(value) => {
                out.extend_from_slice(&value.to_be_bytes());
                Kind::Float64
            }
            Value::String(bytes) => {
                write_sized(out, bytes);
                Kind::String
            }
            Value::Binary(bytes) => {
                write_sized(out, bytes);
                Kind::Binary
            }
            Value::Hash(hash) => {
                out.extend_from_slice(hash.as_bytes());
                Kind::Hash
            }
            Value::ObjectAttachment(hash) => {
                out.extend_from_slice(hash.as_bytes());
                Kind::ObjectAttachment
            }
            Value::BinaryAttachment(hash) => {
                out.extend_from_slice(hash.as_bytes());
                Kind::BinaryAttachment
            }
            Value::Uuid(bytes) => {
                out.extend_from_slice(bytes);
                Kind::Uuid
            }
            Value::ObjectId(bytes) => {
                out.extend_from_slice(bytes);
                Kind::ObjectId
            }
            Value::DateTime(ticks) => {
                out.extend_from_slice(&ticks.to_be_bytes());
                Kind::DateTime
            }
            Value::TimeSpan(ticks) => {
                out.extend_from_slice(&ticks.to_be_bytes());
                Kind::TimeSpan
            }
            Value::CustomById(id, data) => {
                let mut content = Vec::with_capacity(data.len() + 9);
                write_varuint(&mut content, *id);
                content.extend_from_slice(data);
                write_sized(out, &content);
                Kind::CustomById
            }
            Value::CustomByName(name, data) => {
                let mut content = Vec::with_capacity(name.len() + data.len() + 9);
                write_sized(&mut content, name);
                content.extend_from_slice(data);
                write_sized(out, &content);
                Kind::CustomByName
            }
            Value::Object(fields) => return write_object(out, fields, style),
            Value::Array(items) => return write_array(out, items, style),
            Value::Document(bytes) => {
                let (kind, payload) = bytes.split_first().unwrap_or((&(Kind::Object as u8), &[0]));
                out.extend_from_slice(payload);
                return *kind;
            }
        };
        kind as u8
    }
}

fn write_object(out: &mut Vec<u8>, fields: &[(Vec<u8>, Value)], style: Style) -> u8 {
    let parts: Vec<_> =
        fields.iter().map(|(name, value)| (Some(name.as_slice()), part(value, style))).collect();
    let uniform = style == Style::Canonical && are_one_type(&parts);
    write_parts(out, Vec::new(), &parts, uniform);
    if uniform { Kind::UniformObject as u8 } else { Kind::Object as u8 }
}

fn write_array(out: &mut Vec<u8>, items: &[Value], style: Style) -> u8 {
    let parts: Vec<_> = items.iter().map(|value| (None, part(value, style))).collect();
    let has_payload = |kind| Kind::from_stored(kind).is_some_and(|kind| !kind.is_empty());
    let uniform = style != Style::Separate && are_one_type(&parts) && has_payload(parts[0].1.0);
    let mut content = Vec::new();
    write_varuint(&mut content, parts.len() as u64);
    write_parts(out, content, &parts, uniform);
    if uniform { Kind::UniformArray as u8 } else { Kind::Array as u8 }
}

/// A type and its payload.
type Part = (u8, Vec<u8>);

fn part(value: &Value, style: Style) -> Part {
    let mut payload = Vec::new();
    (value.write_payload(&mut payload, style), payload)
}

fn are_one_type(parts: &[(Option<&[u8]>, Part)]) -> bool {
    parts.first().is_some_and(|(_, (first, _))| parts.iter().all(|(_, (kind, _))| kind == first))
}

/// Appends size and content of a container; `content` is what stands before its items.
fn write_parts(out: &mut Vec<u8>, mut content: Vec<u8>, parts: &[(Option<&[u8]>, Part)], uniform: bool) {
    let stored = |name: &Option<&[u8]>, kind: u8| kind | if name.is_some() { HAS_NAME } else { 0 };
    if let (true, Some((name, (kind, _)))) = (uniform, parts.first()) {
        content.push(stored(name, *kind));
    }
    for (name, (kind, payload)) in parts {
        if !uniform {
            content.push(stored(name, *kind));
        }
        if let Some(name) = name {
            write_sized(&mut content, name);
        }
        content.extend_from_slice(payload);
    }
    write_sized(out, &content);
}

fn write_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varuint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
