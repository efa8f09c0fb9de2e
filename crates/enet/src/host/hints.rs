//! Likely owners of addresses, in a fraction of the memory of all owners.
//!
//! With thousands of peers the entry of an address in [`LocalIds`](super::LocalIds) is not in the
//! processor's cache, and its keyed hash takes as long as the rest of a datagram's way to its peer.
//! A hint takes eight bytes, and a peer has room for four to eight of them. It may be wrong or
//! missing, so its user compares the peer's address and falls back to the table. Addresses that
//! collide, by chance or on purpose, cost that search.

use alloc::vec::Vec;
use core::net::SocketAddr;

/// Peers by address, as far as their sets have room.
#[derive(Debug)]
pub(super) struct Hints {
    /// A power of two of them.
    sets: Vec<Set>,
}

/// Half a cache line. The latest hint comes first.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Set([Hint; WAYS]);

#[derive(Clone, Copy, Debug, Default)]
struct Hint {
    /// Bits of the address' hash; 0 is no hint.
    tag: u32,
    index: u32,
}

impl Hints {
    pub(super) fn new() -> Self {
        Self { sets: alloc::vec![Set::default()] }
    }

    /// Makes room for `peers`. All hints are forgotten when that takes more sets.
    pub(super) fn reserve(&mut self, peers: usize) {
        if peers > self.sets.len() {
            self.sets = alloc::vec![Set::default(); peers.next_power_of_two()];
        }
    }

    /// The index of the peer that is likely to own an address; [`NONE`] without a hint.
    ///
    /// Looks at the whole set without a branch: a branch that depends on memory which is not in the
    /// processor's cache would keep the reads of a batch from overlapping.
    pub(super) fn get(&self, address: SocketAddr) -> u32 {
        let (set, tag) = self.place(address);
        self.sets[set].0.iter().fold(NONE, |found, hint| {
            let is_it = u32::from(hint.tag == tag).wrapping_neg();
            found & !is_it | hint.index & is_it
        })
    }

    pub(super) fn note(&mut self, address: SocketAddr, index: u32) {
        let (set, tag) = self.place(address);
        let hints = &mut self.sets[set].0;
        let at = hints.iter().position(|hint| hint.tag == tag).unwrap_or(WAYS - 1);
        hints.copy_within(..at, 1);
        hints[0] = Hint { tag, index };
    }

    fn place(&self, address: SocketAddr) -> (usize, u32) {
        let ip = match address {
            SocketAddr::V4(v4) => v4.ip().to_bits().into(),
            SocketAddr::V6(v6) => {
                let bits = v6.ip().to_bits();
                (bits >> 64) as u64 ^ (bits as u64).rotate_left(32)
            }
        };
        let word = (ip.rotate_left(16) ^ u64::from(address.port())) | 1 << 63;
        let product = u128::from(word) * u128::from(MULTIPLIER);
        let hash = (product >> 64) as u64 ^ product as u64;
        ((hash >> 32) as usize & (self.sets.len() - 1), hash as u32 | 1)
    }
}

/// No peer has this index.
pub(super) const NONE: u32 = u32::MAX;
/// Hints per set. With as many sets as peers, one address in fifty shares a set with four others.
const WAYS: usize = 4;
/// Odd, with as many ones as zeros: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn nearly_all_addresses_have_the_hint_noted_last() {
        let v4 = |n: u32| SocketAddr::from((Ipv4Addr::from_bits(0x0A00_0000 + n * 77), n as u16));
        let one_ip = |n: u32| SocketAddr::from((Ipv4Addr::LOCALHOST, 20_000 + n as u16));
        let v6 = |n: u32| SocketAddr::from((Ipv6Addr::from_bits(u128::from(n) << 64 | 1), 7));
        let families: [&dyn Fn(u32) -> SocketAddr; 3] = [&v4, &one_ip, &v6];
        for address in families {
            let mut hints = Hints::new();
            hints.reserve(4_000);
            for index in 0..4_000 {
                hints.note(address(index), index + 1);
                hints.note(address(index), index);
                assert_eq!(hints.get(address(index)), index);
            }
            let found = (0..4_000).filter(|&index| hints.get(address(index)) == index).count();
            assert!(found > 3_900, "{found} of 4,000");
            assert_eq!(hints.get(SocketAddr::from(([192, 0, 2, 1], 1))), NONE);
        }
    }
}
