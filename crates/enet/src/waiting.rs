//! Packets of one peer that were received and cannot be delivered yet: behind a gap, or incomplete.
//! Spec: enet §10.4
//!
//! ```text
//! packets   (lane, kind, number)          whole packets, and the joined beginning of incomplete ones
//! pieces    (lane, kind, number), index   fragments ahead of that beginning
//! ```
//!
//! Memory grows with what has arrived, never with what a fragment announces, and every allocation
//! is charged to the
//! [`Budget`]: all lanes share two maps, so that a packet that never completes costs an entry and not a map of its own.
//! Fragments must tile the packet exactly, so neither gaps nor overlaps can reach the application.
//!
//! The beginning of a packet doubles its buffer while it is small. Doubling a long one would copy
//! megabytes at once, into pages that the system has to clear first: tens of milliseconds in which
//! no other peer is served. So once a quarter of a mebibyte has arrived, the address space of the
//! whole packet is reserved, whose pages the system provides one by one as fragments fill them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;

use crate::budget::{Budget, Held};
use crate::wire::Fragment;
use crate::work;

/// Packets that wait, over all lanes of a peer.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    packets: BTreeMap<PacketKey, Incoming>,
    pieces: BTreeMap<(PacketKey, u32), Piece>,
}

/// Identifies a packet that waits. In order of delivery within its lane and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketKey {
    pub(crate) lane: u8,
    pub(crate) kind: Kind,
    /// The reliable number, continued beyond sixteen bits.
    pub(crate) reliable: u64,
    /// The unreliable number; 0 for reliable packets.
    pub(crate) unreliable: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Reliable,
    Unreliable,
}

#[derive(Debug)]
enum Incoming {
    Whole(Bytes),
    Parts(Assembly),
}

/// A fragment ahead of the beginning of its packet.
#[derive(Debug)]
struct Piece {
    offset: u32,
    payload: Box<[u8]>,
}

/// A packet of which some fragments have arrived.
#[derive(Debug)]
struct Assembly {
    count: u32,
    total: u32,
    /// Fragments in `front`, and in `pieces`.
    joined: u32,
    ahead: u32,
    /// Payload bytes in `pieces`.
    ahead_bytes: usize,
    /// The first `joined` fragments.
    front: Vec<u8>,
}

/// Result of adding a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// More are missing.
    More,
    /// The last one missing has arrived.
    Complete,
    /// It arrived before.
    Known,
    /// It contradicts an earlier one.
    Contradiction,
    /// The budget has no room for it.
    Full,
}

/// A packet taken out to be delivered.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) data: Bytes,
    /// Numbers that the packet uses up.
    pub(crate) numbers: u32,
    pub(crate) in_parts: bool,
}

impl Waiting {
    pub(crate) fn contains(&self, key: PacketKey) -> bool {
        self.packets.contains_key(&key)
    }

    /// Keeps a whole packet that is new. False when the budget has no room for it.
    pub(crate) fn insert(
        &mut self,
        key: PacketKey,
        payload: &[u8],
        budget: &mut Budget,
        held: &mut Held,
    ) -> bool {
        let cost = payload.len() + PACKET_OVERHEAD;
        if !budget.has_room(*held, cost, false) {
            return false;
        }
        budget.take(held, cost);
        self.packets.insert(key, Incoming::Whole(Bytes::copy_from_slice(payload)));
        true
    }

    /// Adds a fragment to the packet at `key`, which it creates.
    pub(crate) fn add(
        &mut self,
        key: PacketKey,
        fragment: &Fragment<'_>,
        budget: &mut Budget,
        held: &mut Held,
        is_next: bool,
    ) -> Added {
        let mut created = None;
        let (assembly, entry_cost) = match self.packets.get_mut(&key) {
            Some(Incoming::Parts(assembly)) => (assembly, 0),
            Some(Incoming::Whole(_)) => return Added::Contradiction,
            None => (created.insert(Assembly::new(fragment)), PACKET_OVERHEAD),
        };
        if (fragment.count, fragment.total) != (assembly.count, assembly.total) {
            return Added::Contradiction;
        }
        let at = (key, fragment.index);
        if fragment.index < assembly.joined || self.pieces.contains_key(&at) {
            return Added::Known;
        }
        let len = fragment.payload.len();
        let added = if fragment.index != assembly.joined {
            let cost = len + PIECE_OVERHEAD;
            if !budget.has_room(*held, entry_cost + cost, is_next) {
                return Added::Full;
            }
            budget.take(held, entry_cost + cost);
            self.pieces.insert(at, Piece { offset: fragment.offset, payload: fragment.payload.into() });
            assembly.ahead += 1;
            assembly.ahead_bytes += len;
            Added::More
        } else if fragment.offset as usize != assembly.front.len() {
            Added::Contradiction
        } else {
            let Some(capacity) = assembly.capacity_for(len, entry_cost, budget, *held, is_next) else {
                return Added::Full;
            };
            let before = assembly.front.capacity();
            assembly.grow(capacity, len);
            budget.take(held, entry_cost + assembly.front.capacity() - before);
            assembly.front.extend_from_slice(fragment.payload);
            assembly.joined += 1;
            join_pieces(&mut self.pieces, key, assembly, budget, held)
        };
        if let Some(assembly) = created.filter(|_| added != Added::Contradiction) {
            self.packets.insert(key, Incoming::Parts(assembly));
        } else if added == Added::Contradiction {
            // The packet can never be completed. Forget it: its sender may start again.
            self.discard(key, budget, held);
        }
        added
    }

    /// The first packet of a lane and kind, and whether it is complete.
    pub(crate) fn first(&self, lane: u8, kind: Kind) -> Option<(PacketKey, bool)> {
        self.first_from(PacketKey { lane, kind, reliable: 0, unreliable: 0 })
    }

    /// The first packet of the lane and kind of `from` that is not before it, and whether it is
    /// complete.
    pub(crate) fn first_from(&self, from: PacketKey) -> Option<(PacketKey, bool)> {
        let (key, incoming) = self.packets.range(from..).next()?;
        ((key.lane, key.kind) == (from.lane, from.kind)).then(|| (*key, incoming.is_complete()))
    }

    /// Takes out a complete packet.
    pub(crate) fn take(&mut self, key: PacketKey, budget: &mut Budget, held: &mut Held) -> Option<Delivered> {
        let incoming = self.packets.remove(&key)?;
        budget.give_back(held, incoming.cost());
        debug_assert!(incoming.is_complete());
        Some(match incoming {
            Incoming::Whole(data) => Delivered { data, numbers: 1, in_parts: false },
            Incoming::Parts(assembly) => {
                Delivered { numbers: assembly.count, data: assembly.front.into(), in_parts: true }
            }
        })
    }

    /// Forgets a packet, complete or not.
    pub(crate) fn discard(&mut self, key: PacketKey, budget: &mut Budget, held: &mut Held) {
        let Some(incoming) = self.packets.remove(&key) else { return };
        budget.give_back(held, incoming.cost());
        let Incoming::Parts(assembly) = incoming else { return };
        for _ in 0..assembly.ahead {
            work::step();
            let next = self.pieces.range((key, 0)..).next().map(|(&at, _)| at);
            if let Some(at) = next.filter(|at| at.0 == key) {
                self.pieces.remove(&at);
            }
        }
    }

    /// Forgets the packets of a lane that may get lost.
    pub(crate) fn discard_loose(&mut self, lane: u8, budget: &mut Budget, held: &mut Held) {
        while let Some((key, _)) = self.first(lane, Kind::Unreliable) {
            work::step();
            self.discard(key, budget, held);
        }
    }

    /// Bytes that all packets together cost, with a look at each.
    pub(crate) fn held_bytes(&self) -> usize {
        let cost = |incoming| {
            work::step();
            Incoming::cost(incoming)
        };
        self.packets.values().map(cost).sum()
    }
}

impl Incoming {
    /// Bytes allocated for the packet, entries of the maps included.
    fn cost(&self) -> usize {
        PACKET_OVERHEAD
            + match self {
                Self::Whole(data) => data.len(),
                Self::Parts(assembly) => {
                    let Assembly { front, ahead_bytes, ahead, .. } = assembly;
                    front.capacity() + ahead_bytes + *ahead as usize * PIECE_OVERHEAD
                }
            }
    }

    fn is_complete(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Parts(assembly) => assembly.joined == assembly.count,
        }
    }
}

impl Assembly {
    fn new(fragment: &Fragment<'_>) -> Self {
        let (count, total) = (fragment.count, fragment.total);
        Self { count, total, joined: 0, ahead: 0, ahead_bytes: 0, front: Vec::new() }
    }

    /// Capacity that `front` gets to take `len` more bytes and then all pieces; `None` when the
    /// budget has no room for it.
    fn capacity_for(
        &self,
        len: usize,
        entry_cost: usize,
        budget: &mut Budget,
        held: Held,
        is_next: bool,
    ) -> Option<usize> {
        let total = self.total as usize;
        let (filled, capacity) = (self.front.len(), self.front.capacity());
        // A sender that contradicts itself may have sent pieces for more than the packet.
        let needed = (filled + len + self.ahead_bytes).min(total);
        if needed <= capacity {
            return budget.has_room(held, entry_cost, is_next).then_some(capacity);
        }
        if filled >= DOUBLED_BYTES_MAX && budget.may_reserve(held, total - capacity, is_next) {
            return Some(total);
        }
        let doubled = needed.max(2 * filled).max(FIRST_BYTES).min(total);
        let fits = budget.has_room(held, entry_cost + doubled - capacity, is_next);
        fits.then_some(doubled)
    }

    fn grow(&mut self, capacity: usize, len: usize) {
        let filled = self.front.len();
        if capacity > self.front.capacity() && self.front.try_reserve_exact(capacity - filled).is_err() {
            // The system does not give out more address space than it has memory.
            self.front.reserve_exact(filled.max(len + self.ahead_bytes));
        }
    }
}

/// Appends the pieces that follow the beginning of a packet to it.
fn join_pieces(
    pieces: &mut BTreeMap<(PacketKey, u32), Piece>,
    key: PacketKey,
    assembly: &mut Assembly,
    budget: &mut Budget,
    held: &mut Held,
) -> Added {
    while assembly.ahead > 0 {
        work::step();
        let Some(Piece { offset, payload }) = pieces.remove(&(key, assembly.joined)) else { break };
        assembly.ahead -= 1;
        assembly.ahead_bytes -= payload.len();
        budget.give_back(held, payload.len() + PIECE_OVERHEAD);
        if offset as usize != assembly.front.len() {
            return Added::Contradiction;
        }
        assembly.front.extend_from_slice(&payload);
        assembly.joined += 1;
    }
    if assembly.joined < assembly.count {
        Added::More
    } else if assembly.front.len() == assembly.total as usize {
        Added::Complete
    } else {
        Added::Contradiction
    }
}

/// Bytes that a packet in the map costs beside its buffers: its share of a node, which may be less
/// than half full.
pub(crate) const PACKET_OVERHEAD: usize = 192;
/// The same for a piece.
const PIECE_OVERHEAD: usize = 128;
/// First allocation of a packet's buffer.
const FIRST_BYTES: usize = 2 * 1024;
/// The longest beginning that is copied to a larger buffer: 64 pages, some 100 us on a slow
/// machine. Also the bytes that a sender must have sent to have the address space of a whole packet
/// (32 MiB at most) reserved.
const DOUBLED_BYTES_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const KEY: PacketKey = PacketKey { lane: 0, kind: Kind::Reliable, reliable: 1, unreliable: 0 };

    struct Fixture {
        waiting: Waiting,
        budget: Budget,
        held: Held,
    }

    impl Fixture {
        fn new() -> Self {
            let budget = Budget::new(1 << 30, 1 << 30, 1 << 30);
            Self { waiting: Waiting::default(), budget, held: Held::default() }
        }

        fn add(&mut self, fragment: &Fragment<'_>) -> Added {
            let added = self.waiting.add(KEY, fragment, &mut self.budget, &mut self.held, true);
            assert_eq!(self.held.bytes, self.waiting.held_bytes());
            added
        }

        fn assembly(&self) -> &Assembly {
            let Some(Incoming::Parts(assembly)) = self.waiting.packets.get(&KEY) else {
                panic!("no assembly")
            };
            assembly
        }

        fn take(&mut self) -> Bytes {
            let taken = self.waiting.take(KEY, &mut self.budget, &mut self.held).expect("it is complete");
            assert_eq!(self.held.bytes, 0);
            taken.data
        }
    }

    fn fragment(count: u32, index: u32, total: u32, offset: u32, payload: &[u8]) -> Fragment<'_> {
        Fragment { start: 1, count, index, total, offset, payload }
    }

    #[test]
    fn overlaps_and_gaps_are_contradictions() {
        // The second fragment lies over the first.
        let mut f = Fixture::new();
        assert_eq!(f.add(&fragment(2, 0, 4, 0, b"abc")), Added::More);
        assert_eq!(f.add(&fragment(2, 1, 4, 2, b"cd")), Added::Contradiction);
        // All fragments, but not all bytes.
        assert_eq!(f.add(&fragment(2, 1, 9, 3, b"d")), Added::More);
        assert_eq!(f.add(&fragment(2, 0, 9, 0, b"abc")), Added::Contradiction);
        // Pieces that never fit are forgotten with their packet.
        assert_eq!(f.add(&fragment(3, 2, 9, 3, b"d")), Added::More);
        assert_eq!(f.add(&fragment(3, 0, 9, 1, b"abc")), Added::Contradiction);
        assert!(f.waiting.packets.is_empty() && f.waiting.pieces.is_empty());
    }

    #[test]
    fn memory_follows_what_arrived() {
        let mut f = Fixture::new();
        f.add(&fragment(1 << 20, 7, 32 << 20, 100, b"x"));
        assert_eq!(f.assembly().front.capacity(), 0);
        f.add(&fragment(1 << 20, 0, 32 << 20, 0, b"y"));
        assert_eq!(f.assembly().front.capacity(), FIRST_BYTES);
    }

    #[test]
    fn a_long_packet_is_moved_only_while_it_is_short() {
        let (part, total) = (1_024, 32 << 20);
        let count = (total / part) as u32;
        let payload = vec![7; part];
        let mut f = Fixture::new();
        let (mut capacity, mut copied) = (0, 0);
        for index in 0..count {
            let before = index as usize * part;
            let added = f.add(&fragment(count, index, total as u32, before as u32, &payload));
            assert_eq!(added, if index + 1 == count { Added::Complete } else { Added::More });
            if f.assembly().front.capacity() != capacity {
                capacity = f.assembly().front.capacity();
                copied += before;
            }
        }
        assert!(copied <= 2 * DOUBLED_BYTES_MAX, "{copied} bytes were copied");
        assert_eq!(capacity, total);
        assert_eq!(f.take().len(), total);
    }

    #[test]
    fn announcing_long_packets_reserves_at_most_half_of_the_hosts_bytes() {
        let mut f = Fixture::new();
        f.budget.host_max = 40 << 20;
        let payload = vec![7; 1_024];
        for index in 0..300 {
            f.add(&fragment(32_768, index, 32 << 20, index * 1_024, &payload));
        }
        assert_eq!(f.assembly().front.capacity(), 512 * 1_024, "32 MiB are more than half of 40");
    }

    proptest! {
        #[test]
        fn any_order_gives_the_packet(data in prop::collection::vec(any::<u8>(), 1..9_000), part in 1_usize..1_300, seed: u64) {
            let parts: Vec<&[u8]> = data.chunks(part).collect();
            let mut order: Vec<usize> = (0..parts.len()).collect();
            let mut rng = throng_stdx::Rng::new(seed);
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
            let make = |i: usize| fragment(parts.len() as u32, i as u32, data.len() as u32, (i * part) as u32, parts[i]);
            let mut f = Fixture::new();
            for (n, &i) in order.iter().enumerate() {
                prop_assert_eq!(f.add(&make(i)), if n + 1 == order.len() { Added::Complete } else { Added::More });
                prop_assert_eq!(f.add(&make(i)), Added::Known);
            }
            prop_assert_eq!(f.take(), Bytes::from(data));
            prop_assert!(f.waiting.pieces.is_empty());
        }
    }
}
