//! The published data: random bytes that anyone can make again from a seed.

use std::sync::LazyLock;

use throng_ddc::IoHash;

/// Content of a data set of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Set {
    /// 100 blobs of 64 KiB.
    Small,
    /// 100 blobs of 20 MiB.
    Large,
    /// 50 refs whose bodies of 2 MiB were put raw.
    RawRefs,
    /// 10 compact binary refs to blobs of 2 MiB.
    Binary,
    /// 1,000 compact binary refs to assets of a game: 130 bytes to 84 MB.
    Game,
}

impl Set {
    fn first_seed(self) -> u32 {
        match self {
            Set::Small => 1001,
            Set::Large => 1501,
            Set::RawRefs => 2001,
            Set::Binary => 3001,
            Set::Game => 5001,
        }
    }

    /// Number of items of the set.
    pub(crate) fn len(self) -> usize {
        match self {
            Set::Small | Set::Large => 100,
            Set::RawRefs => 50,
            Set::Binary => 10,
            Set::Game => GAME_SIZES.len(),
        }
    }

    /// Bytes of its first item.
    pub(crate) fn bytes(self) -> usize {
        self.bytes_of(0)
    }

    fn bytes_of(self, index: usize) -> usize {
        match self {
            Set::Small => 64 << 10,
            Set::Large => 20 << 20,
            Set::RawRefs | Set::Binary => 2 << 20,
            Set::Game => GAME_SIZES[index],
        }
    }
}

/// Sizes of the game's assets, drawn once and published as a list.
static GAME_SIZES: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let text = include_str!("../../../../fixtures/ddc/benchmark-game-sizes.json");
    let parsed: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let sizes = parsed["sizes"].as_array().map(Vec::as_slice).unwrap_or_default();
    sizes.iter().filter_map(|size| usize::try_from(size.as_u64()?).ok()).collect()
});

/// One blob of a set.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    set: Set,
    index: usize,
    /// Bytes.
    pub(crate) len: usize,
    /// Its name.
    pub(crate) hash: IoHash,
}

impl Item {
    /// Makes the blob to learn its name; 1 ms a megabyte.
    pub(crate) fn new(set: Set, index: usize) -> Self {
        let bytes = content(set, index);
        Self { set, index, len: bytes.len(), hash: IoHash::of(&bytes) }
    }

    /// Makes its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        content(self.set, self.index)
    }

    /// The key of its ref.
    pub(crate) fn key(&self) -> IoHash {
        IoHash::of(format!("ref_{}", self.hash).as_bytes())
    }
}

/// The 34 bytes of a ref's object: `payload`, an array of one attachment.
pub(crate) fn object(hash: &IoHash) -> Vec<u8> {
    let mut bytes = vec![0x02, 32, 0x85, 7];
    bytes.extend_from_slice(b"payload");
    bytes.extend_from_slice(&[22, 1, 0x0F]);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

fn content(set: Set, index: usize) -> Vec<u8> {
    let seed = set.first_seed() + u32::try_from(index).unwrap_or(u32::MAX);
    let mut random = Twister::new(seed);
    if set == Set::Game {
        // The size was drawn from the same sequence.
        random.next();
        random.next();
    }
    random.bytes(set.bytes_of(index))
}

/// The Mersenne Twister MT19937, seeded with an array of one number.
struct Twister {
    state: [u32; Self::N],
    index: usize,
}

impl Twister {
    const N: usize = 624;
    const M: usize = 397;

    fn new(seed: u32) -> Self {
        let mut state = [0_u32; Self::N];
        state[0] = 19_650_218;
        for i in 1..Self::N {
            state[i] = step(1_812_433_253, state[i - 1]).wrapping_add(i as u32);
        }
        // One turn more than there are words: the array of seeds has one.
        let mut i = 1;
        for _ in 0..Self::N {
            state[i] = (state[i] ^ step(1_664_525, state[i - 1])).wrapping_add(seed);
            i = Self::wrap(&mut state, i);
        }
        for _ in 1..Self::N {
            state[i] = (state[i] ^ step(1_566_083_941, state[i - 1])).wrapping_sub(i as u32);
            i = Self::wrap(&mut state, i);
        }
        state[0] = 0x8000_0000;
        Self { state, index: Self::N }
    }

    fn wrap(state: &mut [u32; Self::N], i: usize) -> usize {
        if i + 1 < Self::N {
            return i + 1;
        }
        state[0] = state[Self::N - 1];
        1
    }

    fn next(&mut self) -> u32 {
        if self.index == Self::N {
            self.twist();
        }
        let mut y = self.state[self.index];
        self.index += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..Self::N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % Self::N] & 0x7FFF_FFFF);
            let odd = if y & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + Self::M) % Self::N] ^ (y >> 1) ^ odd;
        }
        self.index = 0;
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 4);
        for _ in 0..len / 4 {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        let rest = len % 4;
        if rest > 0 {
            let last = self.next() >> (32 - 8 * rest);
            bytes.extend_from_slice(&last.to_le_bytes()[..rest]);
        }
        bytes
    }
}

fn step(factor: u32, word: u32) -> u32 {
    factor.wrapping_mul(word ^ (word >> 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_was_published() {
        let text = include_str!("../../../../fixtures/ddc/benchmark-game-sizes.json");
        let expected: serde_json::Value = serde_json::from_str(text).expect("JSON");
        for asset in expected["first_assets"].as_array().expect("a list") {
            let item = Item::new(Set::Game, asset["index"].as_u64().expect("a number") as usize);
            assert_eq!(item.len as u64, asset["length"].as_u64().expect("a number"));
            assert_eq!(item.hash.to_string(), asset["iohash"].as_str().expect("text"));
        }
        let sets = &expected["first_of_each_fixed_set"];
        for (name, set) in [("small_blob", Set::Small), ("refs_raw", Set::RawRefs), ("uecb", Set::Binary)] {
            assert_eq!(Item::new(set, 0).hash.to_string(), sets[name]["iohash"].as_str().expect("text"));
        }
        assert_eq!(Set::Game.len(), 1000);
    }

    #[test]
    fn the_object_of_a_ref_is_the_published_one() {
        let text = include_str!("../../../../fixtures/ddc/vectors.json");
        let vectors: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let found = vectors["containers"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|vector| vector["name"].as_str().is_some_and(|name| name.contains("benchmark ref")));
        let hex = found.expect("the vector exists")["bytes"].as_str().expect("text").to_owned();
        let hash: String = hex[hex.len() - 40..].to_owned();
        let ours: String =
            object(&hash.parse().expect("a hash")).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(ours, hex);
    }
}
