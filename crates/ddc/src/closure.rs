//! The blobs and objects that a ref reaches, and the missing ones among them.

use std::collections::{BTreeSet, VecDeque};

use crate::{Attachment, AttachmentKind, Document, IoHash};

/// How the store resolves one attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution<'a> {
    /// Nothing is stored under this hash.
    Missing,
    /// The data is in this blob: a compressed form for a content id, else the blob of the same
    /// hash.
    Blob(IoHash),
    /// An object attachment, with its bytes.
    Object(&'a [u8]),
}

/// The walk from an object through its attachments, object attachments included.
///
/// Ask [`next`](Closure::next) what to look up, answer with [`resolve`](Closure::resolve), until
/// there is nothing more. The walk does no I/O, so that the same code serves a folder and an object
/// store. Every hash is asked for once, so cycles end and the cost is linear in the distinct
/// attachments.
///
/// ```
/// use throng_ddc::{Closure, Document, IoHash, Resolution, Style, Value};
/// let bytes = Value::object([("a", Value::BinaryAttachment(IoHash::of(b"data")))]).encode(Style::Canonical);
/// let mut closure = Closure::new(&Document::parse(&bytes)?);
/// while closure.next().is_some() {
///     closure.resolve(Resolution::Missing);
/// }
/// assert_eq!(closure.missing(), [IoHash::of(b"data")]);
/// # Ok::<(), throng_ddc::Defect>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Closure {
    /// To be looked up; the first is being looked up.
    queue: VecDeque<Attachment>,
    seen: BTreeSet<Attachment>,
    missing: Vec<IoHash>,
    blobs: Vec<IoHash>,
    objects: Vec<IoHash>,
}

impl Closure {
    /// The walk that starts at `root`.
    #[must_use]
    pub fn new(root: &Document<'_>) -> Closure {
        let mut closure = Closure::default();
        closure.follow(root);
        closure
    }

    /// What to look up now. The same until it is resolved; `None` when the walk is over.
    #[must_use]
    pub fn next(&self) -> Option<Attachment> {
        self.queue.front().copied()
    }

    /// Answers what [`next`](Closure::next) asks. Nothing happens when the walk is over.
    pub fn resolve(&mut self, resolution: Resolution<'_>) {
        let Some(attachment) = self.queue.pop_front() else { return };
        match resolution {
            Resolution::Missing => self.missing.push(attachment.hash),
            Resolution::Blob(blob) => self.blobs.push(blob),
            Resolution::Object(bytes) => {
                self.objects.push(attachment.hash);
                // Something else than a document under this hash is stored bytes without
                // attachments.
                if let Ok(document) = Document::parse(bytes) {
                    self.follow(&document);
                }
            }
        }
    }

    /// Attachments that are not stored, each once, in the order of the walk.
    #[must_use]
    pub fn missing(&self) -> &[IoHash] {
        &self.missing
    }

    /// Blobs that hold binary attachments, in the order of the walk.
    #[must_use]
    pub fn blobs(&self) -> &[IoHash] {
        &self.blobs
    }

    /// Object attachments that are stored, in the order of the walk.
    #[must_use]
    pub fn objects(&self) -> &[IoHash] {
        &self.objects
    }

    fn follow(&mut self, document: &Document<'_>) {
        document.root().visit(&mut |field| {
            if let Some(attachment) = field.attachment()
                && self.seen.insert(attachment)
            {
                self.queue.push_back(attachment);
            }
        });
    }
}

impl Attachment {
    /// Reports whether this names another document.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.kind == AttachmentKind::Object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Style, Value};

    fn document(fields: &[(&str, Value)]) -> Vec<u8> {
        Value::object(fields.iter().cloned()).encode(Style::Canonical)
    }

    #[test]
    fn objects_are_followed_and_each_hash_is_asked_once() {
        let blob = IoHash::of(b"blob");
        let child =
            document(&[("b", Value::BinaryAttachment(blob)), ("self", Value::BinaryAttachment(blob))]);
        let child_hash = IoHash::of(&child);
        let root = document(&[
            ("one", Value::ObjectAttachment(child_hash)),
            ("two", Value::Array(vec![Value::ObjectAttachment(child_hash)])),
            ("hash", Value::Hash(IoHash::of(b"no attachment"))),
            ("gone", Value::BinaryAttachment(IoHash::of(b"gone"))),
        ]);
        let mut closure = Closure::new(&Document::parse(&root).expect("a document"));
        let mut asked = Vec::new();
        while let Some(attachment) = closure.next() {
            asked.push(attachment.hash);
            closure.resolve(match attachment.hash {
                hash if hash == child_hash => Resolution::Object(&child),
                hash if hash == blob => Resolution::Blob(blob),
                _ => Resolution::Missing,
            });
        }
        assert_eq!(asked, [child_hash, IoHash::of(b"gone"), blob]);
        assert_eq!(closure.missing(), [IoHash::of(b"gone")]);
        assert_eq!(closure.blobs(), [blob]);
        assert_eq!(closure.objects(), [child_hash]);
    }

    #[test]
    fn a_cycle_ends() {
        // No object can contain its own hash; a store that answers wrongly can still make one.
        let hash = IoHash::of(b"claimed");
        let bytes = document(&[("again", Value::ObjectAttachment(hash))]);
        let mut closure = Closure::new(&Document::parse(&bytes).expect("a document"));
        let mut steps = 0;
        while closure.next().is_some() {
            closure.resolve(Resolution::Object(&bytes));
            steps += 1;
        }
        assert_eq!(steps, 1);
    }
}
