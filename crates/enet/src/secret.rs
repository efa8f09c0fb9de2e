//! Numbers that strangers cannot guess, and hash tables that they cannot unbalance.

use core::hash::{BuildHasher, Hasher};

/// A secret key: draws numbers that cannot be told from earlier ones, and keys the hash tables.
///
/// The generator of `stdx` will not do here: its outputs, which ids and connect ids show to
/// everybody, give its state away. SipHash of a counter does not.
#[derive(Clone, Debug)]
pub(crate) struct Secret {
    key: [u64; 2],
    drawn: u64,
}

impl Secret {
    pub(crate) fn new(seed: u128) -> Self {
        Self { key: [seed as u64, (seed >> 64) as u64], drawn: 0 }
    }

    /// Sixty-four fresh bits.
    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = Sip::<2, 4>::new(self.key);
        hasher.write_u64(self.drawn);
        hasher.finish()
    }

    /// A key for hash tables, independent of everything drawn otherwise.
    pub(crate) fn table_key(&mut self) -> Keyed {
        Keyed([self.draw(), self.draw()])
    }
}

/// A keyed hasher for tables whose keys strangers choose.
#[derive(Clone, Debug)]
pub(crate) struct Keyed([u64; 2]);

impl BuildHasher for Keyed {
    type Hasher = Sip<1, 3>;

    fn build_hasher(&self) -> Self::Hasher {
        Sip::new(self.0)
    }
}

/// SipHash with `C` rounds for each word and `D` at the end, over 64-bit words; shorter writes are
/// padded, so it is not the byte-stream variant. Numbers that others see are drawn with 2 and 4;
/// tables, whose hashes nobody sees, have 1 and 3, as those of the standard library.
#[derive(Clone, Debug)]
pub(crate) struct Sip<const C: usize, const D: usize> {
    state: [u64; 4],
    words: u64,
}

impl<const C: usize, const D: usize> Sip<C, D> {
    fn new([k0, k1]: [u64; 2]) -> Self {
        let state = [
            k0 ^ 0x736F_6D65_7073_6575,
            k1 ^ 0x646F_7261_6E64_6F6D,
            k0 ^ 0x6C79_6765_6E65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self { state, words: 0 }
    }

    fn word(&mut self, word: u64) {
        self.words += 1;
        self.state[3] ^= word;
        for _ in 0..C {
            self.state = round(self.state);
        }
        self.state[0] ^= word;
    }
}

impl<const C: usize, const D: usize> Hasher for Sip<C, D> {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.word(self.words << 56);
        last.state[2] ^= 0xFF;
        let mut state = last.state;
        for _ in 0..D {
            state = round(state);
        }
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

fn round([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v0 = v0.wrapping_add(v1);
    v1 = v1.rotate_left(13) ^ v0;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v3);
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.wrapping_add(v3);
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.wrapping_add(v1);
    v1 = v1.rotate_left(17) ^ v2;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

#[cfg(test)]
mod tests {
    use super::Secret;
    use alloc::collections::BTreeSet;

    #[test]
    fn draws_differ_and_depend_on_every_bit_of_the_seed() {
        let mut secret = Secret::new(1);
        let draws: BTreeSet<u64> = (0..1_000).map(|_| secret.draw()).collect();
        assert_eq!(draws.len(), 1_000);
        let firsts: BTreeSet<u64> = (0..128).map(|bit| Secret::new(1 << bit).draw()).collect();
        assert_eq!(firsts.len(), 128);
    }
}
