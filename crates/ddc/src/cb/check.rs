//! Defects of compact binary.

use std::collections::BTreeSet;
use std::fmt;

use super::DEPTH_MAX;
use super::field::{Field, HAS_NAME, Kind};
use crate::read_varuint;
use crate::varuint::varuint_len;

/// One thing that is wrong. The first five make bytes unreadable; the rest is legal but not
/// canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Defect {
    /// A size, count, name or value passes the end of what holds it.
    #[error("a size, count, name or value passes the end")]
    OutOfBounds,
    /// A type that does not exist or must not stand where it does.
    #[error("a field has an invalid type")]
    InvalidType,
    /// Bytes follow the document, or the last item of an array.
    #[error("bytes follow the last field")]
    Padding,
    /// Nested deeper than [`DEPTH_MAX`].
    #[error("objects and arrays are nested deeper than 64")]
    TooDeep,
    /// The document is not an object without a name.
    #[error("the document is not an object")]
    NotAnObject,
    /// Two fields of an object share a name.
    #[error("two fields of an object have the same name")]
    DuplicateName,
    /// A field of an object has no name.
    #[error("a field of an object has no name")]
    MissingName,
    /// An item of an array has a name.
    #[error("an item of an array has a name")]
    ArrayName,
    /// A number, size or count is not in its shortest form.
    #[error("an integer is not in its shortest form")]
    InvalidInteger,
    /// A 64-bit float that fits in 32 bits.
    #[error("a 64-bit float fits in 32 bits")]
    InvalidFloat,
    /// An object whose fields have one type, and is not uniform.
    #[error("an object of one type is not uniform")]
    NonUniformObject,
    /// An array whose items have one type, and is not uniform.
    #[error("an array of one type is not uniform")]
    NonUniformArray,
}

impl Defect {
    const ALL: [Defect; 12] = [
        Defect::OutOfBounds,
        Defect::InvalidType,
        Defect::Padding,
        Defect::TooDeep,
        Defect::NotAnObject,
        Defect::DuplicateName,
        Defect::MissingName,
        Defect::ArrayName,
        Defect::InvalidInteger,
        Defect::InvalidFloat,
        Defect::NonUniformObject,
        Defect::NonUniformArray,
    ];
}

/// A set of [`Defect`]s.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Defects(u16);

impl Defects {
    /// Reports whether nothing is wrong: the bytes are canonical.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Reports whether `defect` was found.
    #[must_use]
    pub fn contains(self, defect: Defect) -> bool {
        self.0 & 1 << defect as u8 != 0
    }

    /// What was found, worst first.
    pub fn iter(self) -> impl Iterator<Item = Defect> {
        Defect::ALL.into_iter().filter(move |defect| self.contains(*defect))
    }

    fn add(&mut self, defect: Defect) {
        self.0 |= 1 << defect as u8;
    }
}

impl fmt::Debug for Defects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Everything that is wrong with one field and what it holds, up to the first defect that makes it
/// unreadable.
///
/// For diagnosis: O(n log n). [`Document::parse`](super::Document::parse) is what decides about
/// uploads.
#[must_use]
pub fn check(bytes: &[u8]) -> Defects {
    let mut found = Defects::default();
    if let Err(defect) = walk(bytes, Some(&mut found)) {
        found.add(defect);
    }
    found
}

/// Reports whether one field and nothing else can be read from `bytes`.
pub(super) fn structure(bytes: &[u8]) -> Result<(), Defect> {
    walk(bytes, None)
}

fn walk(bytes: &[u8], notes: Option<&mut Defects>) -> Result<(), Defect> {
    let mut checker = Checker { notes };
    let stored = *bytes.first().ok_or(Defect::OutOfBounds)?;
    let used = 1 + checker.field(stored, &bytes[1..], 1)?;
    if used < bytes.len() { Err(Defect::Padding) } else { Ok(()) }
}

struct Checker<'n> {
    /// Where to note what is legal but not canonical; without it that is not looked for.
    notes: Option<&'n mut Defects>,
}

impl Checker<'_> {
    /// Checks a field behind its type byte. Gives how many bytes it takes.
    fn field(&mut self, stored: u8, bytes: &[u8], depth: usize) -> Result<usize, Defect> {
        let kind = Kind::from_stored(stored).ok_or(Defect::InvalidType)?;
        let mut at = 0;
        if stored & HAS_NAME != 0 {
            let (len, prefix) = self.varuint(bytes)?;
            at = usize::try_from(len)
                .ok()
                .and_then(|len| len.checked_add(prefix))
                .ok_or(Defect::OutOfBounds)?;
            if at > bytes.len() {
                return Err(Defect::OutOfBounds);
            }
        }
        let bytes = &bytes[at..];
        let len = kind.payload_len(bytes).ok_or(Defect::OutOfBounds)?;
        let payload = &bytes[..len];
        match kind {
            Kind::Object | Kind::UniformObject => self.object(kind, payload, depth)?,
            Kind::Array | Kind::UniformArray => self.array(kind, payload, depth)?,
            Kind::IntegerPositive | Kind::IntegerNegative | Kind::Binary | Kind::String => {
                self.varuint(payload)?;
            }
            Kind::CustomById => {
                let (_, prefix) = self.varuint(payload)?;
                self.varuint(&payload[prefix..])?;
            }
            Kind::CustomByName => self.custom_by_name(payload)?,
            Kind::Float64 => self.float(payload),
            _ => {}
        }
        Ok(at + len)
    }

    fn object(&mut self, kind: Kind, payload: &[u8], depth: usize) -> Result<(), Defect> {
        if depth > DEPTH_MAX {
            return Err(Defect::TooDeep);
        }
        let (_, prefix) = self.varuint(payload)?;
        let mut rest = &payload[prefix..];
        if rest.is_empty() {
            return Ok(());
        }
        let uniform = if kind == Kind::UniformObject { Some(take_type(&mut rest)?) } else { None };
        if rest.is_empty() {
            return Err(Defect::OutOfBounds);
        }
        let mut names = BTreeSet::new();
        let mut types = Types::default();
        while !rest.is_empty() {
            let stored = match uniform {
                Some(stored) => stored,
                None => take_type(&mut rest)?,
            };
            let used = self.field(stored, rest, depth + 1)?;
            // A uniform object of values without name and payload has no bytes to read on from.
            if used == 0 && uniform.is_some() {
                return Err(Defect::InvalidType);
            }
            types.add(stored);
            if self.notes.is_some() {
                match Field::read_typed(stored, rest).and_then(|(field, _)| field.name()) {
                    None => self.note(Defect::MissingName),
                    Some(name) if !names.insert(name) => self.note(Defect::DuplicateName),
                    Some(_) => {}
                }
            }
            rest = &rest[used..];
        }
        if uniform.is_none() && types.are_one() {
            self.note(Defect::NonUniformObject);
        }
        Ok(())
    }

    fn array(&mut self, kind: Kind, payload: &[u8], depth: usize) -> Result<(), Defect> {
        if depth > DEPTH_MAX {
            return Err(Defect::TooDeep);
        }
        let (_, prefix) = self.varuint(payload)?;
        let mut rest = &payload[prefix..];
        let (count, prefix) = self.varuint(rest)?;
        rest = &rest[prefix..];
        // Every item takes at least a byte.
        if count > rest.len() as u64 {
            return Err(Defect::OutOfBounds);
        }
        let uniform = if kind == Kind::UniformArray { Some(take_type(&mut rest)?) } else { None };
        let mut types = Types::default();
        for _ in 0..count {
            let stored = match uniform {
                Some(stored) => stored,
                None => take_type(&mut rest)?,
            };
            let used = self.field(stored, rest, depth + 1)?;
            if used == 0 && uniform.is_some() {
                return Err(Defect::InvalidType);
            }
            types.add(stored);
            if stored & HAS_NAME != 0 {
                self.note(Defect::ArrayName);
            }
            rest = &rest[used..];
        }
        if !rest.is_empty() {
            return Err(Defect::Padding);
        }
        if uniform.is_none() && types.are_one_with_payload() {
            self.note(Defect::NonUniformArray);
        }
        Ok(())
    }

    fn custom_by_name(&mut self, payload: &[u8]) -> Result<(), Defect> {
        let (_, prefix) = self.varuint(payload)?;
        let rest = &payload[prefix..];
        let (len, prefix) = self.varuint(rest)?;
        if len == 0 {
            return Err(Defect::InvalidType);
        }
        if len > (rest.len() - prefix) as u64 { Err(Defect::OutOfBounds) } else { Ok(()) }
    }

    fn float(&mut self, payload: &[u8]) {
        if let Some(bytes) = payload.first_chunk() {
            let wide = f64::from_be_bytes(*bytes);
            if f64::from(wide as f32) == wide {
                self.note(Defect::InvalidFloat);
            }
        }
    }

    fn varuint(&mut self, bytes: &[u8]) -> Result<(u64, usize), Defect> {
        let (value, len) = read_varuint(bytes).ok_or(Defect::OutOfBounds)?;
        if len > varuint_len(value) {
            self.note(Defect::InvalidInteger);
        }
        Ok((value, len))
    }

    fn note(&mut self, defect: Defect) {
        if let Some(notes) = &mut self.notes {
            notes.add(defect);
        }
    }
}

fn take_type(rest: &mut &[u8]) -> Result<u8, Defect> {
    let (stored, after) = rest.split_first().ok_or(Defect::OutOfBounds)?;
    *rest = after;
    Ok(*stored)
}

/// True if the type bytes of a container are all the same.
#[derive(Default)]
struct Types {
    first: Option<u8>,
    differ: bool,
}

impl Types {
    fn add(&mut self, stored: u8) {
        self.differ |= *self.first.get_or_insert(stored) != stored;
    }

    fn are_one(&self) -> bool {
        self.first.is_some() && !self.differ
    }

    fn are_one_with_payload(&self) -> bool {
        let empty = |stored| Kind::from_stored(stored).is_some_and(Kind::is_empty);
        self.are_one() && !self.first.is_some_and(empty)
    }
}
