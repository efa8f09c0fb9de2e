//! Compact binary: self-describing fields, in objects and arrays, each of a plain and a *uniform*
//! form in which the type of all items is written once.
//!
//! ```text
//! field   = type byte, [name length, name], payload      the name is there when the type has bit 0x80
//! object  = size, fields                                  uniform: size, type, (name, payload)*
//! array   = size, count, fields                           uniform: size, count, type, payload*
//! ```

mod check;
mod field;
mod json;
mod value;

pub use check::{Defect, Defects, check};
pub(crate) use field::HAS_NAME;
pub use field::{Field, Fields, Kind};
pub use json::JsonWriter;
pub use value::{Style, Value};

use crate::IoHash;

/// Objects and arrays may be nested this deep, the document itself included.
pub const DEPTH_MAX: usize = 64;

/// Bytes that are one object, checked once: sizes fit, types exist, nothing follows, nesting is
/// bounded.
///
/// Non-canonical form is fine; the bytes are never rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    bytes: &'a [u8],
    root: Field<'a>,
}

/// What an attachment refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttachmentKind {
    /// Another document, which may have attachments of its own.
    Object,
    /// Data: a content id or a blob.
    Binary,
}

/// One attachment field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    /// What the hash names.
    pub kind: AttachmentKind,
    /// The name.
    pub hash: IoHash,
}

impl<'a> Document<'a> {
    /// Checks `bytes`. Linear in their length; allocates nothing.
    ///
    /// # Errors
    /// The first defect that makes the document unreadable, or [`Defect::NotAnObject`].
    pub fn parse(bytes: &'a [u8]) -> Result<Document<'a>, Defect> {
        check::structure(bytes)?;
        let (root, _) = Field::read(bytes).ok_or(Defect::OutOfBounds)?;
        match root.kind() {
            Kind::Object | Kind::UniformObject if root.name().is_none() => Ok(Document { bytes, root }),
            _ => Err(Defect::NotAnObject),
        }
    }

    /// The bytes as they were stored.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The object itself.
    #[must_use]
    pub fn root(&self) -> Field<'a> {
        self.root
    }

    /// The first field with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Field<'a>> {
        self.root.get(name)
    }

    /// Every attachment field, depth first in stored order, duplicates included.
    #[must_use]
    pub fn attachments(&self) -> Vec<Attachment> {
        let mut found = Vec::new();
        self.root.visit(&mut |field| found.extend(field.attachment()));
        found
    }

    /// The attachment, if there is exactly one attachment field and it is binary.
    #[must_use]
    pub fn only_binary_attachment(&self) -> Option<IoHash> {
        match self.attachments()[..] {
            [Attachment { kind: AttachmentKind::Binary, hash }] => Some(hash),
            _ => None,
        }
    }

    /// JSON without blanks; hashes are 40 lower-case digits.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::text(self, false)
    }

    /// As [`to_json`](Document::to_json), with hashes that are no attachments in upper case: how
    /// answers of the service list them.
    #[must_use]
    pub fn to_answer_json(&self) -> String {
        json::text(self, true)
    }
}
