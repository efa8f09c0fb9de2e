//! Hash of what inputs put out, by which a replay is compared with the run that wrote the log.

/// Running hash of answers and notices. It detects a difference; it does not resist an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outputs([u64; LANES]);

/// Words that are mixed side by side: a multiplication waits for the one before it in its lane.
const LANES: usize = 4;
const WORD_BYTES: usize = 8;
/// Odd, with as many ones as zeros.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
const START: [u64; LANES] = [1, 2, 3, 4];

impl Default for Outputs {
    fn default() -> Outputs {
        Outputs(START)
    }
}

impl Outputs {
    /// Adds bytes and their length. Cost: a multiplication for 8 bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let Outputs(lanes) = self;
        lanes[0] = mix(lanes[0] ^ bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
        let (blocks, left) = words.as_chunks::<LANES>();
        let mut add = |lane: usize, word: u64| lanes[lane] = mix(lanes[lane] ^ word);
        for block in blocks {
            for (lane, word) in block.iter().enumerate() {
                add(lane, u64::from_le_bytes(*word));
            }
        }
        for (lane, word) in left.iter().enumerate() {
            add(lane, u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            add(left.len(), end_of(bytes, rest.len()));
        }
    }

    /// The hash of everything since the last call; `None` if nothing was added.
    pub(crate) fn take(&mut self) -> Option<u64> {
        let Outputs(lanes) = std::mem::take(self);
        (lanes != START).then(|| lanes.into_iter().fold(0, |hash, lane| mix(hash ^ lane)))
    }
}

/// The last `count` bytes as a number, the first of them lowest: fewer than a word, at least one.
fn end_of(bytes: &[u8], count: usize) -> u64 {
    match bytes.last_chunk::<WORD_BYTES>() {
        Some(last) => u64::from_le_bytes(*last) >> (8 * (WORD_BYTES - count)),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

fn mix(word: u64) -> u64 {
    let product = u128::from(word ^ FACTOR) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_every_boundary_counts() {
        let hash = |parts: &[&[u8]]| {
            let mut outputs = Outputs::default();
            parts.iter().for_each(|part| outputs.add(part));
            outputs.take()
        };
        assert_eq!(hash(&[]), None);
        for len in 0..80 {
            let bytes = vec![0x5A; len];
            let whole = hash(&[&bytes]);
            assert!(whole.is_some());
            for bit in 0..8 * len {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(hash(&[&changed]), whole, "bit {bit} of {len} bytes");
            }
            for cut in 1..len {
                assert_ne!(hash(&[&bytes[..cut], &bytes[cut..]]), whole, "{len} bytes cut at {cut}");
            }
        }
    }
}
