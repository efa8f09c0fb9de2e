//! Tokens known to a receiver. Others are sent in every packet that uses them until one such packet
//! is acknowledged.

use super::{Map, Stage};
use crate::Class;
use crate::bits::BitReader;
use crate::keyed::{KeyedClass, each_token};
use crate::sent::Item;
use crate::server::Shared;
use crate::tokens::{key_of, write_export};
use crate::wire::{HeapValue, bits_of, kind};

/// Exports that the next item needs in its packet.
#[derive(Debug, Default)]
pub(super) struct Exports {
    /// Key, and where the export ends in `bytes`.
    items: Vec<(u32, usize)>,
    bytes: Vec<u8>,
}

impl Exports {
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Tokens of the exports.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> {
        self.items.iter().map(|(key, _)| *key)
    }

    /// Bytes of the exports with their sections.
    pub(super) fn len(&self) -> usize {
        if self.items.is_empty() { 0 } else { self.bytes.len() + 2 * (self.items.len() / 100 + 1) }
    }

    /// Adds a token unless the receiver knows it. Numbers without a text are the game's own.
    pub(super) fn need(&mut self, known: &Map<()>, sh: &Shared, table: u8, id: u32) {
        let (Some(text), Some(key)) = (sh.tokens.text(table, id), key_of(table, id)) else { return };
        if !known.contains_key(&key) && !self.items.iter().any(|(listed, _)| *listed == key) {
            write_export(&mut self.bytes, table, id, text);
            self.items.push((key, self.bytes.len()));
        }
    }

    /// Adds what the properties of `mask` use.
    pub(super) fn need_of(
        &mut self,
        known: &Map<()>,
        sh: &Shared,
        (class, mask): (&Class, u64),
        words: &[u64],
        heap: &[HeapValue],
    ) {
        if sh.tokens.is_empty() {
            return;
        }
        for at in bits_of(mask & class.token_mask) {
            let prop = &class.props[at];
            let Some(table) = prop.codec.token_table() else { continue };
            if prop.codec.is_heap() {
                prop.codec.each_word(&heap[prop.heap].0, &mut |id| self.need(known, sh, table, id as u32));
            } else {
                self.need(known, sh, table, prop.words(words)[0] as u32);
            }
        }
    }

    /// Adds what fields of an element use.
    pub(super) fn need_of_fields(
        &mut self,
        known: &Map<()>,
        sh: &Shared,
        class: &KeyedClass,
        (mask, words): (u64, &[u64]),
    ) {
        if sh.tokens.is_empty() || !class.has_tokens {
            return;
        }
        for field in bits_of(mask).map(|at| &class.fields[at]) {
            if let Some(table) = field.codec.token_table() {
                self.need(known, sh, table, words[field.word] as u32);
            }
        }
    }

    /// Adds what operations on a keyed array use.
    pub(super) fn need_of_ops(&mut self, known: &Map<()>, sh: &Shared, class: &KeyedClass, ops: &[u8]) {
        if !sh.tokens.is_empty() && class.has_tokens {
            each_token(class, &mut BitReader::new(ops), &mut |table, id| self.need(known, sh, table, id));
        }
    }

    /// The exports as a section, for the body of a transfer.
    pub(super) fn write_section(&self, out: &mut Vec<u8>) {
        let mut from = 0;
        for items in self.items.chunks(100) {
            let Some((_, end)) = items.last() else { return };
            out.extend_from_slice(&[kind::TOKENS, items.len() as u8]);
            out.extend_from_slice(&self.bytes[from..*end]);
            from = *end;
        }
    }
}

impl Stage<'_> {
    /// Writes the exports into the packet that has room for them and for `bytes` more, so that what
    /// uses them stands beside them; false when there is no such packet in this frame.
    pub(super) fn write_exports(&mut self, bytes: usize) -> bool {
        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        let (log, out, exports) = (&mut conn.log, &mut scratch.out, &scratch.exports);
        if exports.is_empty() {
            return true;
        }
        let all = exports.len() + bytes;
        out.keep_together(log, all);
        if !out.find_room(all) {
            return false;
        }
        let mut from = 0;
        for (key, end) in &exports.items {
            let export = &exports.bytes[from..*end];
            from = *end;
            if !out.reserve(log, kind::TOKENS, export.len()) {
                return false;
            }
            out.put(export);
            log.push_item(Item::Token { key: *key });
        }
        conn.stats.tokens_sent += exports.items.len() as u64;
        true
    }
}
