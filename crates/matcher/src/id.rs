//! Unguessable ids that lead to their object without a table.

use crate::schema::v1;

/// Bytes of a team's or room's id in text.
pub(crate) const ID_BYTES: usize = 24;

/// Place of an object and the secret that tells it from others that had or will have the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) index: u32,
    pub(crate) nonce: u64,
}

const HEX: &[u8; 16] = b"0123456789abcdef";
/// Digits of 32 bits, which are translated at once: most requests name an id, and answers and
/// notices are full of them.
const DIGITS: usize = 8;
/// A value in each of the eight bytes.
const EACH: u64 = 0x0101_0101_0101_0101;

impl Id {
    /// 24 hex digits.
    pub(crate) fn text(self) -> [u8; ID_BYTES] {
        let mut text = [0; ID_BYTES];
        let parts = [self.index, (self.nonce >> 32) as u32, self.nonce as u32];
        for (digits, part) in text.as_chunks_mut::<DIGITS>().0.iter_mut().zip(parts) {
            *digits = eight_digits(part);
        }
        text
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Id> {
        let ([index, high, low], []) = text.as_chunks::<DIGITS>() else { return None };
        let nonce = u64::from(of_eight_digits(*high)?) << 32 | u64::from(of_eight_digits(*low)?);
        Some(Id { index: of_eight_digits(*index)?, nonce })
    }
}

fn eight_digits(value: u32) -> [u8; DIGITS] {
    // Each digit moves to a byte of its own.
    let mut digits = u64::from(value);
    digits = (digits | digits << 16) & 0x0000_FFFF_0000_FFFF;
    digits = (digits | digits << 8) & 0x00FF_00FF_00FF_00FF;
    digits = (digits | digits << 4) & (EACH * 0x0F);
    let letters = (digits + EACH * 6) >> 4 & EACH;
    (digits + EACH * u64::from(b'0') + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

fn of_eight_digits(text: [u8; DIGITS]) -> Option<u32> {
    let digits = u64::from_be_bytes(text);
    let letters = digits >> 6 & EACH;
    let mut value = (digits & (EACH * 0x0F)) + letters * 9;
    value = (value | value >> 4) & 0x00FF_00FF_00FF_00FF;
    value = (value | value >> 8) & 0x0000_FFFF_0000_FFFF;
    let value = (value | value >> 16) as u32;
    // Other characters give a number, too, of which they are not the digits.
    (eight_digits(value) == text).then_some(value)
}

impl From<Id> for v1::Id {
    fn from(Id { index, nonce }: Id) -> v1::Id {
        v1::Id { place: index, nonce }
    }
}

impl From<v1::Id> for Id {
    fn from(v1::Id { place, nonce }: v1::Id) -> Id {
        Id { index: place, nonce }
    }
}

pub(crate) fn hex(out: &mut [u8], value: u64) {
    let mut rest = value;
    for digit in out.iter_mut().rev() {
        *digit = HEX[(rest & 15) as usize];
        rest >>= 4;
    }
}

pub(crate) fn unhex(text: &[u8]) -> Option<u64> {
    let mut value = 0;
    for digit in text {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(digit);
    }
    Some(value)
}

/// Gives nonces: BLAKE3 of a counter under a secret key, so that who sees many of them still cannot
/// guess the next. The same key and counter give the same nonces, which is what a replay needs.
#[derive(Clone, Debug)]
pub(crate) struct Nonces {
    key: [u8; 32],
    block: u64,
    ready: [u64; 8],
    used: u8,
}

impl Nonces {
    pub(crate) fn new(key: [u8; 32]) -> Nonces {
        Nonces { key, block: 0, ready: [0; 8], used: 8 }
    }

    /// The secret key, and how many nonces were given.
    pub(crate) fn save(&self) -> ([u8; 32], u64) {
        (self.key, 8 * self.block + u64::from(self.used) - 8)
    }

    /// Goes on behind the nonces that were given.
    pub(crate) fn load(key: [u8; 32], given: u64) -> Nonces {
        let mut nonces = Nonces { block: given / 8, ..Nonces::new(key) };
        for _ in 0..given % 8 {
            nonces.next();
        }
        nonces
    }

    pub(crate) fn next(&mut self) -> u64 {
        if self.used == 8 {
            let mut hasher = blake3::Hasher::new_keyed(&self.key);
            hasher.update(&self.block.to_le_bytes());
            let mut bytes = [0; 64];
            hasher.finalize_xof().fill(&mut bytes);
            for (word, bytes) in self.ready.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            self.block += 1;
            self.used = 0;
        }
        self.used += 1;
        self.ready[usize::from(self.used) - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text() {
        let mut nonces = Nonces::new([7; 32]);
        for index in [0, 1, u32::MAX - 1] {
            let id = Id { index, nonce: nonces.next() };
            assert_eq!(Id::parse(&id.text()), Some(id));
        }
        for bad in [&b""[..], b"0000", b"0000000000000000000000000", &[b'0'; 32]] {
            assert_eq!(Id::parse(bad), None);
        }
    }

    #[test]
    fn each_place_of_an_id_takes_each_digit_and_nothing_else() {
        for place in 0..ID_BYTES {
            for other in [b'0', b'9', b'a', b'f'] {
                for byte in 0..=u8::MAX {
                    let mut text = [other; ID_BYTES];
                    text[place] = byte;
                    let is_digit = byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                    assert_eq!(Id::parse(&text).map(Id::text), is_digit.then_some(text));
                    if let Some(Id { index, nonce }) = Id::parse(&text) {
                        assert_eq!(format!("{index:08x}{nonce:016x}").as_bytes(), text);
                    }
                }
            }
        }
    }
}
