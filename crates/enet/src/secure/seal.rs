//! Sealed datagrams: layout, keys, replay.
//!
//! ```text
//! 0  2   FF FF
//! 2  1   kind: 1 request, 2 challenge, 3 response, 4 data
//! 3  8   data: number of the datagram, big-endian, from 0
//! 11 n   data: ciphertext
//!    16  data: tag over everything before it
//! ```

use alloc::vec::Vec;

use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, XChaCha20Poly1305};

/// Bytes by which sealing makes a datagram longer. The [`mtu`](crate::Config::mtu) of both hosts
/// should leave them room.
pub const SEAL_BYTES: usize = HEAD + TAG;

pub(super) const MAGIC: [u8; 2] = [0xFF, 0xFF];
pub(super) const REQUEST: u8 = 1;
pub(super) const CHALLENGE: u8 = 2;
pub(super) const RESPONSE: u8 = 3;
pub(super) const DATA: u8 = 4;
pub(super) const TAG: usize = 16;
pub(super) const SALT: usize = 12;
pub(super) const KEY: usize = 32;
const HEAD: usize = 11;

/// One direction of a session, at either end.
#[derive(Clone)]
pub(super) struct Cipher(ChaCha20Poly1305);

impl Cipher {
    /// The key of one session: `key` belongs to the token, the salts to this handshake. A client
    /// that uses its token again after a restart begins to count at 0 again, under another key.
    pub(super) fn derive(key: &[u8; KEY], client_salt: &[u8; SALT], server_salt: &[u8; SALT]) -> Self {
        let mut nonce = [0; 2 * SALT];
        nonce[..SALT].copy_from_slice(client_salt);
        nonce[SALT..].copy_from_slice(server_salt);
        // The key stream is a pseudo-random function of the nonce; the token's keys are used for
        // nothing else.
        let mut derived = [0; KEY];
        let kdf = XChaCha20Poly1305::new(key.into());
        let sealed = kdf.encrypt_in_place_detached(&nonce.into(), b"", &mut derived);
        sealed.expect("32 bytes are not too many");
        Self(ChaCha20Poly1305::new(&derived.into()))
    }

    /// Appends the sealed form of `datagram` to the empty `out`.
    pub(super) fn seal(&self, number: u64, datagram: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.push(DATA);
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(datagram);
        let (head, body) = out.split_at_mut(HEAD);
        let tag = self.0.encrypt_in_place_detached(&nonce(DATA, number), head, body);
        let tag = tag.expect("a datagram is not too long");
        out.extend_from_slice(&tag);
    }

    /// Leaves the content of a sealed datagram in the empty `out`, if it is genuine; its number.
    pub(super) fn open(&self, sealed: &[u8], out: &mut Vec<u8>) -> Option<u64> {
        let number = u64::from_be_bytes(*sealed.get(3..)?.first_chunk()?);
        let (head, rest) = sealed.split_at_checked(HEAD)?;
        let (body, tag) = rest.split_at_checked(rest.len().checked_sub(TAG)?)?;
        out.extend_from_slice(body);
        self.0.decrypt_in_place_detached(&nonce(DATA, number), head, out, tag.into()).ok()?;
        Some(number)
    }

    /// A tag that only who has the key can make, over `text`. One per key.
    pub(super) fn prove(&self, text: &[u8]) -> [u8; TAG] {
        let tag = self.0.encrypt_in_place_detached(&nonce(RESPONSE, 0), text, &mut []);
        tag.expect("nothing is not too long").into()
    }

    pub(super) fn is_proven(&self, text: &[u8], tag: &[u8; TAG]) -> bool {
        self.0.decrypt_in_place_detached(&nonce(RESPONSE, 0), text, &mut [], tag.into()).is_ok()
    }
}

fn nonce(kind: u8, number: u64) -> chacha20poly1305::Nonce {
    let mut nonce = [0; 12];
    nonce[0] = kind;
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce.into()
}

/// Which numbers have been seen: each once, and none that is older than the window.
#[derive(Clone, Debug, Default)]
pub(super) struct Replay {
    /// The highest number seen, plus one.
    next: u64,
    /// Bit n mod 256: number n was seen, for the last 256 numbers.
    seen: [u64; (WINDOW / 64) as usize],
}

impl Replay {
    /// True if a number is new. Asked before the datagram is opened.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        let (word, bit) = place(number);
        number + WINDOW >= self.next && self.seen[word] & bit == 0
    }

    /// Notes a number whose datagram was genuine.
    pub(super) fn note(&mut self, number: u64) {
        if number >= self.next {
            // Numbers that the window leaves behind make room for what it comes to.
            for passed in self.next..=number.min(self.next + WINDOW - 1) {
                let (word, bit) = place(passed);
                self.seen[word] &= !bit;
            }
            if number - self.next >= WINDOW {
                self.seen = Default::default();
            }
            self.next = number + 1;
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, 1 << (number % 64))
}

/// Datagrams that may be overtaken: a full send window and some.
const WINDOW: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use throng_stdx::Rng;

    #[test]
    fn numbers_are_new_once() {
        // Against a list of everything.
        let mut rng = Rng::new(3);
        let (mut replay, mut seen, mut highest) = (Replay::default(), Vec::new(), 0_u64);
        for _ in 0..20_000 {
            let number = match rng.below(10) {
                0 => highest + rng.below(600),
                1 => highest.saturating_sub(rng.below(600)),
                _ => highest.saturating_sub(rng.below(40)) + rng.below(41),
            };
            let expected =
                !seen.contains(&number) && (number + WINDOW > highest || highest == 0 && seen.is_empty());
            assert_eq!(replay.is_new(number), expected, "{number} after {highest}");
            if expected {
                replay.note(number);
                seen.push(number);
                highest = highest.max(number);
                seen.retain(|&number| number + 2 * WINDOW > highest);
            }
        }
        assert!(!replay.is_new(u64::MAX));
    }
}
