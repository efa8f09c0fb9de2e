//! Changes of a frame: the common records, and lists that tell later what a packet contained.

use crate::wire::bits_of;

/// Frames whose lists are kept: a packet older than that counts as lost.
pub(crate) const RING: usize = 128;
/// Bytes that may be read past a short record, so that it can be copied at a constant length.
pub(crate) const SLACK: usize = 64;

/// Changed objects of one bitmap word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// Index of the word: objects `64 * word ..`.
    pub(crate) word: u32,
    /// Place of the first object in the frame's list.
    pub(crate) first: u32,
    /// Changed objects.
    pub(crate) bits: u64,
    /// Those of them that have a common record.
    pub(crate) fast: u64,
}

/// The objects that changed in one frame, and which of their properties.
#[derive(Debug, Default)]
pub(crate) struct FrameList {
    pub(crate) words: Vec<Word>,
    /// One mask for each object, in index order.
    pub(crate) masks: Vec<u64>,
}

impl FrameList {
    /// Changes of the objects `bits` of `word`: calls `each` with bit and mask.
    pub(crate) fn masks_of(&self, word: u32, bits: u64, mut each: impl FnMut(usize, u64)) {
        let Ok(at) = self.words.binary_search_by_key(&word, |entry| entry.word) else { return };
        let entry = &self.words[at];
        for bit in bits_of(bits & entry.bits) {
            let place = entry.first + (entry.bits & ((1 << bit) - 1)).count_ones();
            each(bit, self.masks[place as usize]);
        }
    }
}

/// Records of the present frame and lists of the last [`RING`] ones. Objects that are sent every
/// frame share one stream; each band of a level-of-detail profile has its own.
#[derive(Debug)]
pub(crate) struct Stream {
    ring: Vec<FrameList>,
    present: usize,
    /// Offset of the record of each listed object begins in `bytes`, and where the last ends.
    pub(crate) offsets: Vec<u32>,
    /// Records one after the other, then [`SLACK`] zeros.
    pub(crate) bytes: Vec<u8>,
    /// Place in the present list by object; meaningful for listed objects only.
    pub(crate) places: Vec<u32>,
    /// Bit w: the present list has word w.
    pub(crate) top: Vec<u64>,
    /// Place in the present list by word; meaningful for listed words only.
    at: Vec<u32>,
    /// Records leave properties out that a nearer band carries, so they never complete a receiver's
    /// state.
    pub(crate) partial: bool,
}

impl Stream {
    pub(crate) fn new(partial: bool) -> Self {
        Self {
            ring: (0..RING).map(|_| FrameList::default()).collect(),
            present: 0,
            offsets: vec![0],
            bytes: vec![0; SLACK],
            places: Vec::new(),
            top: Vec::new(),
            at: Vec::new(),
            partial,
        }
    }

    /// Clears the present list: `frame` begins.
    pub(crate) fn begin(&mut self, frame: u32, objects: usize) {
        for word in &self.ring[self.present].words {
            self.top[word.word as usize / 64] = 0;
        }
        self.present = frame as usize % RING;
        let list = &mut self.ring[self.present];
        list.words.clear();
        list.masks.clear();
        self.offsets.clear();
        self.offsets.push(0);
        self.bytes.clear();
        if self.places.len() < objects {
            self.places.resize(objects, 0);
            self.at.resize(objects / 64, 0);
            self.top.resize((objects / 64).div_ceil(64), 0);
        }
    }

    /// Lists an object, in ascending order. `fast`: its record is what was appended to `bytes`
    /// since the last one.
    #[inline]
    pub(crate) fn push(&mut self, object: u32, mask: u64, fast: bool) {
        let list = &mut self.ring[self.present];
        let (word, bit) = (object / 64, 1 << (object % 64));
        let place = list.masks.len() as u32;
        match list.words.last_mut() {
            Some(last) if last.word == word => {
                last.bits |= bit;
                last.fast |= if fast { bit } else { 0 };
            }
            _ => {
                self.top[word as usize / 64] |= 1 << (word % 64);
                self.at[word as usize] = list.words.len() as u32;
                list.words.push(Word { word, first: place, bits: bit, fast: if fast { bit } else { 0 } });
            }
        }
        list.masks.push(mask);
        self.offsets.push(self.bytes.len() as u32);
        self.places[object as usize] = place;
    }

    pub(crate) fn end(&mut self) {
        self.bytes.resize(self.bytes.len() + SLACK, 0);
    }

    /// The list of the present frame.
    #[inline]
    pub(crate) fn present(&self) -> &FrameList {
        &self.ring[self.present]
    }

    /// Changed objects of the words that `scope` has as well.
    #[inline]
    pub(crate) fn among<'a>(&'a self, scope: &'a [u64]) -> impl Iterator<Item = &'a Word> {
        let words = self.top.iter().zip(scope).map(|(changed, seen)| changed & seen);
        crate::bitmap::members(words).map(|word| &self.present().words[self.at[word] as usize])
    }

    /// Changes of an object, if the present list has it.
    pub(crate) fn mask_of(&self, object: u32) -> u64 {
        let word = object as usize / 64;
        if self.top.get(word / 64).is_none_or(|top| top >> (word % 64) & 1 == 0) {
            return 0;
        }
        let listed = self.present().words[self.at[word] as usize].bits >> (object % 64) & 1 != 0;
        if listed { self.present().masks[self.places[object as usize] as usize] } else { 0 }
    }

    /// Place of a listed word in the present list.
    #[inline]
    pub(crate) fn place_of(&self, word: u32) -> usize {
        self.at[word as usize] as usize
    }

    /// The list of a frame at most [`RING`] - 1 before the present one.
    pub(crate) fn list(&self, frame: u32) -> &FrameList {
        &self.ring[frame as usize % RING]
    }
}
