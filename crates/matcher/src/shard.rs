//! Which shard something belongs to.
//!
//! Rooms belong to the shard of their mode's name, tickets, matches and backfills to that of their queue's: so a random
//! join sees every room that it may choose, and a match makes its room where it is found. Players and rating pools belong
//! to the shard of their own names, a team to that of the player who made it. Whatever has an id names its shard in it.

use crate::crc32c::crc32c;
use crate::id::Id;

/// Most shards of one matcher: an id names its shard in its last digit.
pub const SHARDS_MAX: u16 = 16;

/// A shard of a matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) index: u16,
    /// How many there are.
    pub(crate) count: u16,
}

impl Default for Shard {
    /// The only one.
    fn default() -> Shard {
        Shard { index: 0, count: 1 }
    }
}

impl Shard {
    /// Whether it is the only one.
    #[inline]
    pub(crate) fn is_alone(self) -> bool {
        self.count == 1
    }

    /// The shard of a mode, queue, player or rating pool.
    pub(crate) fn of_name(self, name: &[u8]) -> u16 {
        shard_of_name(name, self.count)
    }

    /// Whether that is this one.
    pub(crate) fn owns(self, name: &[u8]) -> bool {
        self.of_name(name) == self.index
    }

    /// The shard that an id names, if there is one of this number.
    pub(crate) fn of_id(self, id: Id) -> Option<u16> {
        let shard = (id.nonce & 15) as u16;
        if self.is_alone() { Some(0) } else { Some(shard).filter(|shard| *shard < self.count) }
    }

    /// A nonce that names this shard. The only shard names nothing.
    #[inline]
    pub(crate) fn sign(self, nonce: u64) -> u64 {
        if self.is_alone() { nonce } else { nonce & !15 | u64::from(self.index) }
    }

    /// The secret of this shard's ids.
    pub(crate) fn secret(self, secret: [u8; 32]) -> [u8; 32] {
        if self.index == 0 {
            return secret;
        }
        *blake3::keyed_hash(&secret, &self.index.to_le_bytes()).as_bytes()
    }
}

pub(crate) fn shard_of_name(name: &[u8], count: u16) -> u16 {
    // The checksum's bits are linear in the name's: multiplying mixes them.
    let mixed = u64::from(crc32c(name)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (mixed % u64::from(count)) as u16
}
