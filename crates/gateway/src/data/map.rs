//! Map fields as encoded entries in one arena.
//!
//! The usual update replaces most entries of a map with values of the same size, in the order of
//! the update before. So an entry keeps its place in the arena as long as new bytes fit, and the
//! entry after the last one touched is tried before the hash index. Encoding copies the entries in
//! the order in which their keys first came.
//!
//! Removed entries stay behind as *dead* ones that their key takes up again; a
//! [`Delta`](super::Delta) empties its maps every window by declaring all entries dead.
//! [`MapField::tidy`] bounds what is left behind.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::check::Entry as EntryParts;
use super::cursor::{Records, read_varint};
use super::plan::Scalar;

/// Maps up to this many entries are searched from end to end: cheaper than hashing, and no index to
/// keep.
const LINEAR_MAX: usize = 8;

/// One map field.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapField {
    entries: Vec<Entry>,
    arena: Vec<u8>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Where the next key is expected.
    cursor: usize,
    live: usize,
    live_bytes: usize,
    /// Entries of this generation are live. Starts at 1; 0 marks entries removed on their own.
    generation: u32,
    /// Some live entry may say `removed`.
    pub(crate) holds_removed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The key, or the hash of a text key.
    key: u64,
    at: u32,
    len: u32,
    capacity: u32,
    generation: u32,
}

/// A key as maps compare it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    bits: u64,
    text: Option<&'a [u8]>,
}

impl<'a> Key<'a> {
    #[inline]
    pub(crate) fn new(scalar: Scalar, payload: &'a [u8]) -> Self {
        if scalar.is_text() {
            Key { bits: 0, text: Some(payload) }
        } else {
            Key { bits: scalar.key_bits(payload), text: None }
        }
    }

    /// Reads the key at the start of a regular entry, tag and length of the entry left out.
    #[inline]
    pub(crate) fn of_entry(scalar: Scalar, entry: &'a [u8]) -> Self {
        let payload = entry.get(1..).unwrap_or(&[]);
        match scalar {
            Scalar::Utf8 | Scalar::Bytes => Key { bits: 0, text: Some(EntryParts::read(entry).key) },
            Scalar::Fixed32 => Key { bits: scalar.key_bits(payload.get(..4).unwrap_or(&[])), text: None },
            Scalar::Fixed64 => Key { bits: scalar.key_bits(payload.get(..8).unwrap_or(&[])), text: None },
            _ => Key { bits: scalar.key_bits(payload), text: None },
        }
    }
}

impl MapField {
    pub(crate) fn new() -> Self {
        Self { generation: 1, ..Self::default() }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Encoded size of all entries.
    pub(crate) fn encoded_len(&self) -> usize {
        self.live_bytes
    }

    /// Bytes of memory held.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.arena.capacity() + self.index.capacity() * 5
    }

    /// Encoded entries, each with its tag, in the order in which their keys first came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.entries
            .iter()
            .filter(|entry| entry.generation == self.generation)
            .map(|entry| self.record(entry))
    }

    /// The encoded entry of a key.
    pub(crate) fn get(&self, key: Key<'_>) -> Option<&[u8]> {
        let key = self.hashed(key);
        let at = self.find(key)?;
        let entry = &self.entries[at];
        (entry.generation == self.generation).then(|| self.record(entry))
    }

    /// Sets the entry of `key` to `record`, an encoded entry with its tag.
    #[inline]
    pub(crate) fn put(&mut self, key: Key<'_>, record: &[u8]) {
        let key = self.hashed(key);
        let Some(at) = self.find(key) else {
            self.insert(key, record);
            return;
        };
        self.cursor = at + 1;
        let entry = &mut self.entries[at];
        if entry.generation == self.generation {
            self.live_bytes -= entry.len as usize;
        } else {
            entry.generation = self.generation;
            self.live += 1;
        }
        self.live_bytes += record.len();
        entry.len = record.len() as u32;
        if entry.len > entry.capacity {
            entry.at = self.arena.len() as u32;
            entry.capacity = reserved(record.len());
            let end = self.arena.len() + entry.capacity as usize;
            self.arena.resize(end, 0);
        }
        let from = entry.at as usize;
        self.arena[from..from + record.len()].copy_from_slice(record);
    }

    /// Removes the entry of `key`.
    pub(crate) fn remove(&mut self, key: Key<'_>) -> bool {
        let key = self.hashed(key);
        match self.find(key) {
            Some(at) => self.kill(at),
            None => false,
        }
    }

    /// Removes the entries whose encoded form `drop` picks.
    pub(crate) fn remove_if(&mut self, mut drop: impl FnMut(&[u8]) -> bool) {
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if entry.generation == self.generation && drop(self.record(entry)) {
                self.kill(at);
            }
        }
    }

    /// Removes all entries, keeping their places for the same keys to come.
    pub(crate) fn clear(&mut self) {
        self.tidy();
        self.generation += 1;
        self.cursor = 0;
        self.live = 0;
        self.live_bytes = 0;
        self.holds_removed = false;
    }

    /// Rebuilds the map when most of it is dead.
    pub(crate) fn tidy(&mut self) {
        let dead = self.entries.len() - self.live;
        // The constants keep small maps from being rebuilt for every removal.
        if dead <= 3 * self.live + 64 && self.arena.len() <= 4 * self.live_bytes + 4096 {
            return;
        }
        let mut arena = Vec::with_capacity(self.live_bytes + self.live_bytes / 4);
        self.entries.retain(|entry| entry.generation == self.generation);
        for entry in &mut self.entries {
            let from = entry.at as usize;
            entry.at = arena.len() as u32;
            arena.extend_from_slice(&self.arena[from..from + entry.len as usize]);
            entry.capacity = reserved(entry.len as usize);
            arena.resize(entry.at as usize + entry.capacity as usize, 0);
        }
        self.entries.shrink_to(2 * self.entries.len());
        self.arena = arena;
        self.index = HashTable::new();
        self.cursor = 0;
        if self.entries.len() > LINEAR_MAX {
            self.build_index();
        }
    }

    fn record(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.at as usize..entry.at as usize + entry.len as usize]
    }

    /// Replaces the zero bits of a text key by its hash.
    #[inline]
    fn hashed<'a>(&self, key: Key<'a>) -> Key<'a> {
        match key.text {
            Some(text) => Key { bits: self.hasher.hash_one(text), text: key.text },
            None => key,
        }
    }

    #[inline]
    fn find(&self, key: Key<'_>) -> Option<usize> {
        if let Some(entry) = self.entries.get(self.cursor)
            && self.is(entry, key)
        {
            return Some(self.cursor);
        }
        if self.entries.len() <= LINEAR_MAX {
            return self.entries.iter().position(|entry| self.is(entry, key));
        }
        let hash = self.hasher.hash_one(key.bits);
        self.index.find(hash, |&at| self.is(&self.entries[at as usize], key)).map(|&at| at as usize)
    }

    #[inline]
    fn is(&self, entry: &Entry, key: Key<'_>) -> bool {
        entry.key == key.bits && key.text.is_none_or(|text| text == text_key(self.record(entry)))
    }

    fn insert(&mut self, key: Key<'_>, record: &[u8]) {
        let at = self.arena.len() as u32;
        let (len, capacity) = (record.len() as u32, reserved(record.len()));
        self.arena.extend_from_slice(record);
        self.arena.resize(at as usize + capacity as usize, 0);
        self.entries.push(Entry { key: key.bits, at, len, capacity, generation: self.generation });
        self.cursor = self.entries.len();
        self.live += 1;
        self.live_bytes += record.len();
        match self.entries.len() {
            count if count <= LINEAR_MAX => {}
            count if count == LINEAR_MAX + 1 => self.build_index(),
            count => {
                let (entries, hasher) = (&self.entries, &self.hasher);
                let hash = |&at: &u32| hasher.hash_one(entries[at as usize].key);
                self.index.insert_unique(hasher.hash_one(key.bits), (count - 1) as u32, hash);
            }
        }
    }

    fn build_index(&mut self) {
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash = |&at: &u32| hasher.hash_one(entries[at as usize].key);
        self.index = HashTable::with_capacity(2 * entries.len());
        for at in 0..entries.len() as u32 {
            self.index.insert_unique(hash(&at), at, hash);
        }
    }

    fn kill(&mut self, at: usize) -> bool {
        let entry = &mut self.entries[at];
        if entry.generation != self.generation {
            return false;
        }
        entry.generation = 0;
        self.live -= 1;
        self.live_bytes -= entry.len as usize;
        true
    }
}

/// Place given to an entry of `len` bytes: values change by a few bytes when a number grows or
/// becomes zero.
fn reserved(len: usize) -> u32 {
    (len.next_multiple_of(8) + 8) as u32
}

/// The parts of an encoded entry that starts with its tag.
#[inline]
pub(crate) fn entry_parts(record: &[u8]) -> EntryParts<'_> {
    let mut pos = 0;
    let _tag = read_varint(record, &mut pos);
    let _len = read_varint(record, &mut pos);
    EntryParts::read(record.get(pos..).unwrap_or(&[]))
}

fn text_key(record: &[u8]) -> &[u8] {
    Records::new(record).next().map_or(&[], |entry| EntryParts::read(entry.payload).key)
}
