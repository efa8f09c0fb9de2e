//! Creations and updates that arrive in parts because no packet could hold it:
//! put together here, read when it is complete.

use std::collections::BTreeMap;

use crate::bits::BitReader;
use crate::wire::DecodeError;

/// Parts in one packet at most.
pub(crate) const PARTS_MAX: usize = 64;

/// Which transfer a part belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    object: u32,
    id: u16,
    parts: u16,
}

/// One part as it lies in a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartView {
    head: Head,
    part: u16,
    from: usize,
    len: usize,
}

impl PartView {
    /// Reads what follows the index.
    pub(super) fn read(object: u32, reader: &mut BitReader<'_>) -> Result<Self, DecodeError> {
        let (id, part) = (reader.get(16)? as u16, reader.get(16)? as u16);
        let (parts, len) = (reader.get(16)? as u16, reader.get(16)? as usize);
        if part >= parts || len == 0 {
            return Err(DecodeError::Value);
        }
        let from = reader.byte_position();
        reader.skip_bytes(len)?;
        Ok(Self { head: Head { object, id, parts }, part, from, len })
    }
}

/// The transfer under way. There is one at most: a part of another one ends it.
#[derive(Clone, Debug, Default)]
pub(super) struct Assembly {
    head: Option<Head>,
    parts: BTreeMap<u16, Vec<u8>>,
    bytes: usize,
    /// It was complete, and read; parts that come again are passed over.
    done: bool,
}

impl Assembly {
    /// True when the parts of a packet make the transfer complete. They must be of one transfer,
    /// which must not exceed `bytes_max`.
    pub(super) fn check(&self, items: &[PartView], bytes_max: usize) -> Result<bool, DecodeError> {
        let Some(head) = items.first().map(|item| item.head) else { return Ok(false) };
        if items.len() > PARTS_MAX {
            return Err(DecodeError::TooLong);
        }
        if items.iter().any(|item| item.head != head) {
            return Err(DecodeError::Value);
        }
        let known = self.head == Some(head);
        if known && self.done {
            return Ok(false);
        }
        let (mut count, mut bytes) = if known { (self.parts.len(), self.bytes) } else { (0, 0) };
        for (at, item) in items.iter().enumerate() {
            let again = items[..at].iter().any(|earlier| earlier.part == item.part)
                || known && self.parts.contains_key(&item.part);
            if !again {
                count += 1;
                bytes += item.len;
            }
        }
        if bytes > bytes_max { Err(DecodeError::TooLong) } else { Ok(count == usize::from(head.parts)) }
    }

    /// Takes the parts of a packet that was checked.
    pub(super) fn take(&mut self, items: &[PartView], body: &[u8]) {
        let Some(head) = items.first().map(|item| item.head) else { return };
        if self.head != Some(head) {
            *self = Self { head: Some(head), ..Self::default() };
        }
        if self.done {
            return;
        }
        for item in items {
            self.parts.entry(item.part).or_insert_with(|| {
                self.bytes += item.len;
                body[item.from..item.from + item.len].to_vec()
            });
        }
    }

    /// All parts, those of this packet included, one after the other.
    pub(super) fn join(&self, items: &[PartView], body: &[u8], out: &mut Vec<u8>) {
        let Some(head) = items.first().map(|item| item.head) else { return };
        let known = self.head == Some(head);
        for part in 0..head.parts {
            if let Some(bytes) = self.parts.get(&part).filter(|_| known) {
                out.extend_from_slice(bytes);
            } else if let Some(item) = items.iter().find(|item| item.part == part) {
                out.extend_from_slice(&body[item.from..item.from + item.len]);
            }
        }
    }

    /// The transfer was read.
    pub(super) fn finish(&mut self) {
        self.done = true;
        self.parts.clear();
        self.bytes = 0;
    }
}
