//! Sets of object indices, one bit each.

/// A set of small numbers. Reading past the end finds nothing; writing grows the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    #[inline]
    pub(crate) fn get(&self, at: u32) -> bool {
        self.word(at as usize / 64) >> (at % 64) & 1 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, at: u32) {
        let word = at as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (at % 64);
    }

    #[inline]
    pub(crate) fn clear(&mut self, at: u32) {
        if let Some(word) = self.words.get_mut(at as usize / 64) {
            *word &= !(1 << (at % 64));
        }
    }

    pub(crate) fn assign(&mut self, at: u32, on: bool) {
        if on {
            self.set(at);
        } else {
            self.clear(at);
        }
    }

    #[inline]
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words.get(word).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    #[inline]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// At least `words` words, so that loops need no bounds of their own.
    pub(crate) fn grow(&mut self, words: usize) {
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(at, word)| crate::wire::bits_of(*word).map(move |bit| (at * 64 + bit) as u32))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}
