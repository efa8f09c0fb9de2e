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

    pub(crate) fn clear_word(&mut self, word: usize) {
        if let Some(word) = self.words.get_mut(word) {
            *word = 0;
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

/// A set whose empty words cost nothing to pass over: one bit more for each word that has any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sparse {
    words: Vec<u64>,
    /// Bit w: word w is not zero.
    top: Vec<u64>,
}

impl Sparse {
    #[inline]
    pub(crate) fn get(&self, at: u32) -> bool {
        self.word(at as usize / 64) >> (at % 64) & 1 != 0
    }

    #[inline]
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words.get(word).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Words that are not zero, one bit each.
    #[inline]
    pub(crate) fn top(&self) -> &[u64] {
        &self.top
    }

    #[inline]
    pub(crate) fn clear_all(&mut self) {
        for word in members(self.top.iter().copied()) {
            self.words[word] = 0;
        }
        self.top.fill(0);
    }

    #[inline]
    pub(crate) fn put_word(&mut self, word: usize, bits: u64) {
        self.words[word] = bits;
        let place = &mut self.top[word / 64];
        *place = *place & !(1 << (word % 64)) | u64::from(bits != 0) << (word % 64);
    }

    pub(crate) fn set(&mut self, at: u32) {
        let word = at as usize / 64;
        self.grow(word + 1);
        self.words[word] |= 1 << (at % 64);
        self.top[word / 64] |= 1 << (word % 64);
    }

    pub(crate) fn clear(&mut self, at: u32) {
        let word = at as usize / 64;
        if word < self.words.len() {
            self.put_word(word, self.words[word] & !(1 << (at % 64)));
        }
    }

    pub(crate) fn assign(&mut self, at: u32, on: bool) {
        if on {
            self.set(at);
        } else {
            self.clear(at);
        }
    }

    pub(crate) fn grow(&mut self, words: usize) {
        if self.words.len() < words {
            self.words.resize(words, 0);
            self.top.resize(words.div_ceil(64), 0);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = members(self.top.iter().copied());
        words.flat_map(|word| crate::wire::bits_of(self.words[word]).map(move |bit| (word * 64 + bit) as u32))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        (self.words.capacity() + self.top.capacity()) * 8
    }
}

/// Places of the bits that are set in a sequence of words.
#[inline]
pub(crate) fn members(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(at, word)| crate::wire::bits_of(word).map(move |bit| at * 64 + bit))
}
