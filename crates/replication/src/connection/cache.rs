//! Memory of a stage: the packets being written, and record variants that connections share.

use super::tokens::Exports;
use crate::bitmap::{Bitmap, Sparse};
use crate::frames::{SLACK, Stream, Word};
use crate::grid::Found;
use crate::priority::Batch;
use crate::sent::PacketOut;
use crate::server::Shared;
use crate::wire::{bits_of, write_delta_record};

/// Memory that stages reuse; one for each thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Objects that the filters let through, and the words that have any; empty between
    /// connections.
    pub(super) scope: Vec<u64>,
    pub(super) top: Vec<u64>,
    /// Objects near enough for each band of detail; empty between connections.
    pub(super) near: Vec<(Vec<u64>, Vec<u64>)>,
    /// Objects of one word in each band, before and now.
    pub(super) moves: [(u64, u64); crate::lod::BANDS_MAX],
    pub(crate) out: PacketOut,
    pub(super) batch: Box<Batch>,
    pub(super) priorities: Box<Lanes>,
    pub(super) record: Vec<u8>,
    pub(super) delta: Vec<u8>,
    pub(super) exports: Exports,
    /// An object's words with hidden references taken out.
    pub(super) block: Vec<u64>,
    pub(super) words: Vec<u32>,
    /// Objects whose time of lingering is up; empty between connections.
    pub(super) expired: Sparse,
    pub(super) candidates: Vec<u64>,
    /// Objects whose turn count limiters say it is; cleared before each connection's.
    pub(super) chosen: Bitmap,
    pub(super) waiting: Vec<(u32, u32)>,
    pub(super) entered: Vec<u32>,
    pub(super) left: Vec<u32>,
    /// Connections that left counts or events behind in this frame.
    pub(crate) touched: Vec<u32>,
    pub(super) cache: RecordCache,
    pub(super) variants: Variants,
}

impl Scratch {
    /// Begins a frame.
    pub(crate) fn begin(&mut self, sh: &Shared) {
        self.cache.begin(sh.frame, sh.config.record_cache_bytes);
        let (words, bands) = (sh.objects.bitmap_words(), sh.bands.len());
        if self.scope.len() < words {
            self.scope.resize(words, 0);
            self.top.resize(words.div_ceil(64), 0);
        }
        self.near.resize_with(bands, Default::default);
        for (near, within) in &mut self.near {
            if near.len() < words {
                near.resize(words, 0);
                within.resize(words, 0);
            }
        }
    }

    /// Memory for the results of a grid query; `tested` counts the objects it looked at.
    pub(super) fn found<'a>(&'a mut self, tested: &'a mut u64) -> Found<'a> {
        Found { scope: &mut self.scope, top: &mut self.top, near: &mut self.near, tested }
    }
}

#[derive(Debug)]
pub(super) struct Lanes(pub(super) [f32; 64]);

impl Default for Lanes {
    fn default() -> Self {
        Self([0.0; 64])
    }
}

/// Record variants of the present frame: direct-mapped, so that a collision costs a
/// rebuilt record and nothing else.
#[derive(Debug, Default)]
pub(super) struct RecordCache {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    frame: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    frame: u32,
    object: u32,
    base: u32,
    mask: u64,
    at: u32,
    len: u32,
}

/// Entries of the cache at most: twice what a busy frame asks for, and small enough for the
/// second-level cache.
const CACHE_ENTRIES: usize = 4096;
/// Bytes of records for each entry, where fewer entries will do.
const ENTRY_BYTES: usize = 64;

impl RecordCache {
    /// Begins a frame, whose records take up to `bytes_max`.
    pub(super) fn begin(&mut self, frame: u32, bytes_max: usize) {
        if self.frame != frame {
            self.frame = frame;
            self.bytes.clear();
        }
        if self.entries.is_empty() {
            let entries = (bytes_max / ENTRY_BYTES).clamp(1, CACHE_ENTRIES).next_power_of_two();
            self.entries.resize(entries, Entry { frame: u32::MAX, ..Entry::default() });
        }
    }

    fn slot(&self, object: u32, mask: u64, base: u32) -> usize {
        let mixed = (u64::from(object) ^ u64::from(base) << 32 ^ mask.rotate_left(17))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 52) as usize & (self.entries.len() - 1)
    }

    pub(super) fn find(&self, object: u32, mask: u64, base: u32) -> Option<&[u8]> {
        let entry = &self.entries[self.slot(object, mask, base)];
        let hit =
            entry.frame == self.frame && entry.object == object && entry.mask == mask && entry.base == base;
        hit.then(|| &self.bytes[entry.at as usize..][..entry.len as usize])
    }

    pub(super) fn keep(&mut self, object: u32, mask: u64, base: u32, record: &[u8], bytes_max: usize) {
        if self.bytes.len() + record.len() <= bytes_max {
            let (at, len) = (self.bytes.len() as u32, record.len() as u32);
            self.bytes.extend_from_slice(record);
            let slot = self.slot(object, mask, base);
            self.entries[slot] = Entry { frame: self.frame, object, base, mask, at, len };
        }
    }
}

/// Records of the present frame's lists as differences to a state of some frames ago, made word by
/// word when the first connection asks for them: most connections share one of a few ages.
#[derive(Debug, Default)]
pub(super) struct Variants {
    /// By stream and age.
    lists: Vec<Variant>,
}

#[derive(Debug)]
struct Variant {
    frame: u32,
    /// First offset of each listed word, or `ABSENT`.
    words: Vec<u32>,
    /// Offset of the record of each listed object of a word begins, and where the word's last ends.
    offsets: Vec<u32>,
    /// Records, then [`SLACK`] zeros.
    bytes: Vec<u8>,
}

const ABSENT: u32 = u32::MAX;
/// Ages that a record can name.
const AGES: usize = crate::wire::BASELINE_AGE_MAX as usize;

impl Variants {
    /// Offsets and bytes of the records of a listed word, as differences to the state of `age`
    /// frames ago (1 to 32). An object whose difference is not shorter, or whose state is not kept,
    /// has its plain record.
    pub(super) fn records(
        &mut self,
        sh: &Shared,
        (index, stream): (usize, &Stream),
        word: &Word,
        age: u32,
        built: &mut u64,
    ) -> (&[u32], &[u8]) {
        let place = index * AGES + age as usize - 1;
        while self.lists.len() <= place {
            let (words, offsets, bytes) = (Vec::new(), Vec::new(), Vec::new());
            self.lists.push(Variant { frame: sh.frame.wrapping_sub(1), words, offsets, bytes });
        }
        let list = &mut self.lists[place];
        let words = stream.present().words.len();
        if list.frame != sh.frame {
            list.frame = sh.frame;
            list.words.clear();
            list.words.resize(words, ABSENT);
            list.offsets.clear();
            list.bytes.clear();
            list.bytes.resize(SLACK, 0);
        }
        let at = stream.place_of(word.word);
        if list.words[at] == ABSENT {
            list.words[at] = list.offsets.len() as u32;
            list.bytes.truncate(list.bytes.len() - SLACK);
            for (listed, bit) in bits_of(word.bits).enumerate() {
                list.offsets.push(list.bytes.len() as u32);
                if word.fast >> bit & 1 == 0 {
                    continue;
                }
                let (object, place) = (word.word * 64 + bit as u32, word.first as usize + listed);
                let plain = &stream.bytes[stream.offsets[place] as usize..stream.offsets[place + 1] as usize];
                let (store, slot) = (sh.store(object), sh.objects.slot[object as usize]);
                let from = list.bytes.len();
                if store.class.flags.delta
                    && let Some(state) = store.state_at(slot, sh.frame.wrapping_sub(age), sh.frame)
                {
                    let mask = stream.present().masks[place] & store.class.update_masks[0];
                    let now = (store.quant(slot), store.heap(slot));
                    write_delta_record(
                        &mut list.bytes,
                        object,
                        &store.class,
                        mask,
                        (state, age),
                        now.0,
                        now.1,
                    );
                    *built += 1;
                }
                if list.bytes.len() == from || list.bytes.len() - from >= plain.len() {
                    list.bytes.truncate(from);
                    list.bytes.extend_from_slice(plain);
                }
            }
            list.offsets.push(list.bytes.len() as u32);
            list.bytes.resize(list.bytes.len() + SLACK, 0);
        }
        (&list.offsets[list.words[at] as usize..], &list.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_for_its_object_mask_base_and_frame_alone() {
        // One entry: everything collides.
        let mut cache = RecordCache::default();
        cache.begin(7, ENTRY_BYTES);
        cache.keep(1, 2, 3, b"record", 6);
        assert_eq!(cache.find(1, 2, 3), Some(&b"record"[..]));
        for (object, mask, base) in [(9, 2, 3), (1, 9, 3), (1, 2, 9)] {
            assert_eq!(cache.find(object, mask, base), None);
        }
        // Beyond the limit nothing is kept, and nothing is forgotten.
        cache.keep(4, 5, 6, b"!", 6);
        assert_eq!((cache.find(4, 5, 6), cache.find(1, 2, 3)), (None, Some(&b"record"[..])));
        cache.begin(7, ENTRY_BYTES);
        assert_eq!(cache.find(1, 2, 3), Some(&b"record"[..]));
        cache.begin(8, ENTRY_BYTES);
        assert_eq!(cache.find(1, 2, 3), None);
        cache.keep(4, 5, 6, b"!", 6);
        assert_eq!(cache.find(4, 5, 6), Some(&b"!"[..]));
    }
}
