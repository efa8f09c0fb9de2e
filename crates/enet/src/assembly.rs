//! Packets put together again from their fragments. Spec: enet §10.4
//!
//! Memory grows with what has arrived, never with what a fragment announces: the beginning of the packet lies in one
//! buffer, and fragments that are ahead of it wait in a map. Fragments must tile the packet exactly, so neither gaps nor
//! overlaps can reach the application.
//!
//! That buffer doubles while it is small. Doubling a long one would copy megabytes at once, into pages that the system has
//! to clear first: tens of milliseconds in which nobody else is served. So once a quarter of a mebibyte has arrived, the
//! address space of the whole packet is reserved, whose pages the system provides one by one as fragments fill them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;

use crate::wire::Fragment;

/// A packet of which some fragments have arrived.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    count: u32,
    total: u32,
    /// The first `joined` fragments.
    front: Vec<u8>,
    joined: u32,
    /// Later fragments by index, with their offsets.
    ahead: BTreeMap<u32, (u32, Bytes)>,
}

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It is new; more are missing.
    More,
    /// It was the last one missing.
    Complete,
    /// It contradicts an earlier one.
    Contradiction,
}

impl Assembly {
    pub(crate) fn new(fragment: &Fragment<'_>) -> Self {
        Self {
            count: fragment.count,
            total: fragment.total,
            front: Vec::new(),
            joined: 0,
            ahead: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.joined == self.count
    }

    /// Whether `fragment` can belong to this packet.
    pub(crate) fn agrees(&self, fragment: &Fragment<'_>) -> bool {
        (fragment.count, fragment.total) == (self.count, self.total)
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        index < self.joined || self.ahead.contains_key(&index)
    }

    /// Adds a fragment that [`agrees`](Self::agrees) and is not there yet.
    pub(crate) fn add(&mut self, fragment: &Fragment<'_>) -> Added {
        if fragment.index != self.joined {
            self.ahead.insert(fragment.index, (fragment.offset, Bytes::copy_from_slice(fragment.payload)));
            return Added::More;
        }
        if !self.join(fragment.offset, fragment.payload) {
            return Added::Contradiction;
        }
        while let Some((offset, payload)) = self.ahead.remove(&self.joined) {
            crate::work::step();
            if !self.join(offset, &payload) {
                return Added::Contradiction;
            }
        }
        if !self.is_complete() {
            Added::More
        } else if self.front.len() == self.total as usize {
            Added::Complete
        } else {
            Added::Contradiction
        }
    }

    /// The packet, once it is complete.
    pub(crate) fn finish(self) -> Bytes {
        debug_assert!(self.is_complete());
        self.front.into()
    }

    fn join(&mut self, offset: u32, payload: &[u8]) -> bool {
        if offset as usize != self.front.len() {
            return false;
        }
        if self.front.len() + payload.len() > self.front.capacity() {
            self.grow(payload.len());
        }
        self.front.extend_from_slice(payload);
        self.joined += 1;
        true
    }

    /// Makes room for `len` bytes more, and never for more than the packet needs.
    fn grow(&mut self, len: usize) {
        let left = (self.total as usize - self.front.len()).max(len);
        let is_long = self.front.len() >= DOUBLED_BYTES_MAX;
        if !(is_long && self.front.try_reserve_exact(left).is_ok()) {
            // Also where the system does not give out more address space than it has memory.
            let more = self.front.len().max(FIRST_BYTES).max(len);
            self.front.reserve_exact(more.min(left));
        }
    }
}

/// First allocation of a packet's buffer.
const FIRST_BYTES: usize = 8 * 1024;
/// The longest beginning that is copied to a larger buffer: 64 pages, some 100 us on a slow machine. Also what a sender
/// must have sent to have the address space of a whole packet (32 MiB at most) reserved.
const DOUBLED_BYTES_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn fragment(count: u32, index: u32, total: u32, offset: u32, payload: &[u8]) -> Fragment<'_> {
        Fragment { start: 1, count, index, total, offset, payload }
    }

    #[test]
    fn overlaps_and_gaps_are_contradictions() {
        // The second fragment lies over the first.
        let mut assembly = Assembly::new(&fragment(2, 0, 4, 0, b"abc"));
        assert_eq!(assembly.add(&fragment(2, 0, 4, 0, b"abc")), Added::More);
        assert_eq!(assembly.add(&fragment(2, 1, 4, 2, b"cd")), Added::Contradiction);
        // All fragments, but not all bytes.
        let mut assembly = Assembly::new(&fragment(2, 0, 9, 0, b"abc"));
        assert_eq!(assembly.add(&fragment(2, 1, 9, 3, b"d")), Added::More);
        assert_eq!(assembly.add(&fragment(2, 0, 9, 0, b"abc")), Added::Contradiction);
    }

    #[test]
    fn memory_follows_what_arrived() {
        let mut assembly = Assembly::new(&fragment(1 << 20, 7, 32 << 20, 100, b"x"));
        assembly.add(&fragment(1 << 20, 7, 32 << 20, 100, b"x"));
        assert_eq!(assembly.front.capacity(), 0);
        assembly.add(&fragment(1 << 20, 0, 32 << 20, 0, b"y"));
        assert_eq!(assembly.front.capacity(), FIRST_BYTES);
    }

    #[test]
    fn a_long_packet_is_moved_only_while_it_is_short() {
        let (part, total) = (1_024, 32 << 20);
        let count = (total / part) as u32;
        let payload = vec![7; part];
        let mut assembly = Assembly::new(&fragment(count, 0, total as u32, 0, &payload));
        let (mut capacity, mut copied) = (0, 0);
        for index in 0..count {
            let before = assembly.front.len();
            let added = assembly.add(&fragment(count, index, total as u32, index * part as u32, &payload));
            assert_eq!(added, if index + 1 == count { Added::Complete } else { Added::More });
            if assembly.front.capacity() != capacity {
                capacity = assembly.front.capacity();
                copied += before;
            }
        }
        assert!(copied <= 2 * DOUBLED_BYTES_MAX, "{copied} bytes were copied");
        assert_eq!(capacity, total);
        assert_eq!(assembly.finish().len(), total);
    }

    proptest! {
        #[test]
        fn any_order_gives_the_packet(data in prop::collection::vec(any::<u8>(), 1..2_000), part in 1_usize..300, seed: u64) {
            let parts: Vec<&[u8]> = data.chunks(part).collect();
            let mut order: Vec<usize> = (0..parts.len()).collect();
            let mut rng = throng_stdx::Rng::new(seed);
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
            let make = |i: usize| fragment(parts.len() as u32, i as u32, data.len() as u32, (i * part) as u32, parts[i]);
            let mut assembly = Assembly::new(&make(order[0]));
            let mut seen = vec![false; parts.len()];
            for (n, &i) in order.iter().enumerate() {
                prop_assert_eq!(assembly.has(i as u32), seen[i]);
                let added = assembly.add(&make(i));
                seen[i] = true;
                prop_assert!(assembly.has(i as u32));
                prop_assert_eq!(added, if n + 1 == order.len() { Added::Complete } else { Added::More });
            }
            prop_assert_eq!(assembly.finish(), Bytes::from(data));
        }
    }
}
