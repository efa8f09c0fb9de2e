//! One stream of packets in both directions. Spec: enet §10, §11
//!
//! ```text
//! reliable numbers    ... r-1   r  | r+1   r+2   r+3 ... r+28672 | later: neither kept nor acknowledged
//!                      delivered   | `waiting`, by distance      |
//! unreliable packets follow the reliable number they carry: dropped behind r, delivered at r, in `loose` ahead of it
//! ```

use alloc::collections::BTreeMap;
use core::ops::Bound;

use bytes::Bytes;

use crate::Delivery;
use crate::assembly::{Added, Assembly};
use crate::budget::{Budget, Held, OVERHEAD};
use crate::sent::Numbers;
use crate::wire::Fragment;
use crate::work;

/// A lane's state, created when the lane is first used.
#[derive(Debug)]
pub(crate) struct LaneState {
    pub(crate) id: u8,
    /// Last reliable number given to a packet.
    pub(crate) reliable_out: u16,
    /// Last unreliable number given since.
    pub(crate) unreliable_out: u16,
    pub(crate) unacknowledged: Numbers,
    /// Unacknowledged commands in each sixteenth of the number space.
    windows: [u16; WINDOWS],
    /// Reliable numbers delivered so far; the low half is the number on the wire.
    delivered: u64,
    /// Last unreliable number delivered at `delivered`.
    unreliable_in: u16,
    /// Reliable packets beyond `delivered`, by their first number.
    waiting: BTreeMap<u64, Incoming>,
    /// Unreliable packets that are incomplete or ahead, by reliable and unreliable number.
    loose: BTreeMap<(u64, u16), Incoming>,
}

/// A packet that cannot be delivered yet.
#[derive(Debug)]
enum Incoming {
    Whole(Bytes),
    Parts { assembly: Assembly, cost: usize },
}

impl Incoming {
    fn cost(&self) -> usize {
        match self {
            Self::Whole(data) => data.len() + OVERHEAD,
            Self::Parts { cost, .. } => *cost,
        }
    }

    fn is_complete(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Parts { assembly, .. } => assembly.is_complete(),
        }
    }

    /// Numbers that the packet uses up.
    fn numbers(&self) -> u32 {
        match self {
            Self::Whole(_) => 1,
            Self::Parts { assembly, .. } => assembly.count(),
        }
    }

    /// The packet, and whether it came in fragments.
    fn finish(self) -> (Bytes, bool) {
        match self {
            Self::Whole(data) => (data, false),
            Self::Parts { assembly, .. } => (assembly.finish(), true),
        }
    }
}

/// What became of a data command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// Taken, or seen before: acknowledge it.
    Taken,
    /// Too far ahead: do not acknowledge it, so that it comes again.
    Ahead,
    /// No room: as `Ahead`, and drop the rest of the datagram.
    Full,
    /// Contradicts itself or an earlier command: drop the rest of the datagram.
    Malformed,
}

/// Takes what a lane delivers: content, and how it travelled.
pub(crate) type Deliver<'a> = dyn FnMut(&mut Budget, &mut Held, Bytes, Delivery) + 'a;

impl LaneState {
    pub(crate) fn new(id: u8) -> Self {
        Self {
            id,
            reliable_out: 0,
            unreliable_out: 0,
            unacknowledged: Numbers::default(),
            windows: [0; WINDOWS],
            delivered: 0,
            unreliable_in: 0,
            waiting: BTreeMap::new(),
            loose: BTreeMap::new(),
        }
    }

    // ---- sending

    /// Whether a number may be sent for the first time. Spec: enet §11.3
    pub(crate) fn window_is_open(&self, number: u16) -> bool {
        if !number.is_multiple_of(WINDOW_NUMBERS) {
            return true;
        }
        let window = usize::from(number / WINDOW_NUMBERS);
        let before = self.windows[(window + WINDOWS - 1) % WINDOWS];
        before < WINDOW_NUMBERS
            && (0..WINDOWS_FREE_SENDER).all(|ahead| self.windows[(window + ahead) % WINDOWS] == 0)
    }

    pub(crate) fn note_sent(&mut self, number: u16) {
        self.windows[usize::from(number / WINDOW_NUMBERS)] += 1;
    }

    pub(crate) fn note_acknowledged(&mut self, number: u16) {
        self.unacknowledged.remove(number);
        let window = &mut self.windows[usize::from(number / WINDOW_NUMBERS)];
        debug_assert!(*window > 0);
        *window = window.saturating_sub(1);
    }

    /// Forgets what was sent: the connection is ending.
    pub(crate) fn forget_sent(&mut self) {
        self.unacknowledged.clear();
        self.windows = [0; WINDOWS];
    }

    /// Whether a packet of `count` fragments that starts after `reliable_out` stays within what a receiver acknowledges.
    pub(crate) fn can_carry(&self, count: u32) -> bool {
        u32::from(self.reliable_out % WINDOW_NUMBERS) + count < u32::from(WINDOWS_ACCEPTED * WINDOW_NUMBERS)
    }

    // ---- receiving

    /// Where `number` stands relative to what was delivered.
    fn place(&self, number: u16) -> Place {
        let last = self.delivered as u16;
        let mut window = number / WINDOW_NUMBERS;
        if number < last {
            window += WINDOWS as u16;
        }
        let ahead = window.wrapping_sub(last / WINDOW_NUMBERS);
        if ahead < WINDOWS_ACCEPTED {
            Place::Acceptable(self.delivered + u64::from(number.wrapping_sub(last)))
        } else if ahead <= WINDOWS_ACCEPTED + 1 {
            Place::Ahead
        } else {
            Place::Behind
        }
    }

    pub(crate) fn receive_reliable(
        &mut self,
        number: u16,
        payload: &[u8],
        budget: &mut Budget,
        held: &mut Held,
        deliver: &mut Deliver<'_>,
    ) -> Receipt {
        let key = match self.place(number) {
            Place::Acceptable(key) => key,
            Place::Ahead => return Receipt::Ahead,
            Place::Behind => return Receipt::Taken,
        };
        if key == self.delivered || self.waiting.contains_key(&key) {
            return Receipt::Taken;
        }
        let is_next = key == self.delivered + 1;
        let cost = payload.len() + OVERHEAD;
        if !budget.has_room(*held, cost, is_next) {
            return Receipt::Full;
        }
        let data = Bytes::copy_from_slice(payload);
        if is_next {
            self.delivered = key;
            self.unreliable_in = 0;
            deliver(budget, held, data, Delivery::Reliable);
            self.deliver_waiting(budget, held, deliver);
            self.deliver_loose(budget, held, deliver);
        } else {
            budget.take(held, cost);
            self.waiting.insert(key, Incoming::Whole(data));
        }
        Receipt::Taken
    }

    pub(crate) fn receive_fragment(
        &mut self,
        number: u16,
        fragment: &Fragment<'_>,
        budget: &mut Budget,
        held: &mut Held,
        deliver: &mut Deliver<'_>,
    ) -> Receipt {
        if number != fragment.start.wrapping_add(fragment.index as u16) {
            return Receipt::Malformed;
        }
        let key = match self.place(fragment.start) {
            Place::Acceptable(key) if key != self.delivered => key,
            // Not kept; acknowledged by its own number.
            _ if matches!(self.place(number), Place::Ahead) => return Receipt::Ahead,
            _ => return Receipt::Taken,
        };
        match self.waiting.get(&key) {
            None => {}
            Some(Incoming::Parts { assembly, .. }) if assembly.agrees(fragment) => {
                let is_known = assembly.has(fragment.index);
                if is_known {
                    return Receipt::Taken;
                }
            }
            Some(_) => return Receipt::Malformed,
        }
        let is_next = key == self.delivered + 1;
        match add_fragment(&mut self.waiting, key, fragment, budget, held, is_next) {
            Ok(Added::Complete) if is_next => {
                self.deliver_waiting(budget, held, deliver);
                self.unreliable_in = 0;
                self.deliver_loose(budget, held, deliver);
                Receipt::Taken
            }
            Ok(_) => Receipt::Taken,
            Err(receipt) => receipt,
        }
    }

    /// Delivers complete reliable packets from the front on.
    fn deliver_waiting(&mut self, budget: &mut Budget, held: &mut Held, deliver: &mut Deliver<'_>) {
        while let Some(first) = self.waiting.first_entry() {
            work::step();
            let key = *first.key();
            if key > self.delivered + 1 || !first.get().is_complete() && key == self.delivered + 1 {
                return;
            }
            let incoming = first.remove();
            budget.give_back(held, incoming.cost());
            // A number within the range of a fragmented packet before it: its sender contradicts itself.
            if key <= self.delivered {
                continue;
            }
            self.delivered += u64::from(incoming.numbers());
            deliver(budget, held, incoming.finish().0, Delivery::Reliable);
        }
    }

    pub(crate) fn receive_unreliable(
        &mut self,
        number: u16,
        unreliable_number: u16,
        payload: &[u8],
        budget: &mut Budget,
        held: &mut Held,
        deliver: &mut Deliver<'_>,
    ) -> Receipt {
        let Place::Acceptable(at) = self.place(number) else { return Receipt::Taken };
        let key = (at, unreliable_number);
        if at == self.delivered && unreliable_number <= self.unreliable_in || self.loose.contains_key(&key) {
            return Receipt::Taken;
        }
        let cost = payload.len() + OVERHEAD;
        // What can be delivered at once does not wait for anything.
        if !budget.has_room(*held, cost, at == self.delivered) {
            return Receipt::Full;
        }
        let data = Bytes::copy_from_slice(payload);
        if at == self.delivered {
            self.unreliable_in = unreliable_number;
            deliver(budget, held, data, Delivery::Unreliable);
            self.drop_late(budget, held);
        } else {
            budget.take(held, cost);
            self.loose.insert(key, Incoming::Whole(data));
        }
        Receipt::Taken
    }

    pub(crate) fn receive_unreliable_fragment(
        &mut self,
        number: u16,
        fragment: &Fragment<'_>,
        budget: &mut Budget,
        held: &mut Held,
        deliver: &mut Deliver<'_>,
    ) -> Receipt {
        let Place::Acceptable(at) = self.place(number) else { return Receipt::Taken };
        let key = (at, fragment.start);
        if at == self.delivered && fragment.start <= self.unreliable_in {
            return Receipt::Taken;
        }
        match self.loose.get(&key) {
            None => {}
            Some(Incoming::Parts { assembly, .. }) if assembly.agrees(fragment) => {
                let is_known = assembly.has(fragment.index);
                if is_known {
                    return Receipt::Taken;
                }
            }
            Some(_) => return Receipt::Malformed,
        }
        match add_fragment(&mut self.loose, key, fragment, budget, held, false) {
            Ok(Added::Complete) if at == self.delivered => {
                self.deliver_loose(budget, held, deliver);
                Receipt::Taken
            }
            Ok(_) => Receipt::Taken,
            Err(receipt) => receipt,
        }
    }

    /// Delivers the complete unreliable packets of the present reliable number, in order and without waiting for gaps.
    fn deliver_loose(&mut self, budget: &mut Budget, held: &mut Held, deliver: &mut Deliver<'_>) {
        self.drop_late(budget, held);
        let mut after = Bound::Included((self.delivered, 0));
        while let Some((&key, incoming)) = self.loose.range((after, Bound::Unbounded)).next() {
            work::step();
            if key.0 != self.delivered {
                break;
            }
            after = Bound::Excluded(key);
            if !incoming.is_complete() {
                continue;
            }
            let Some(incoming) = self.loose.remove(&key) else { break };
            budget.give_back(held, incoming.cost());
            self.unreliable_in = key.1;
            let (data, in_parts) = incoming.finish();
            let delivery = if in_parts { Delivery::UnreliableFragmented } else { Delivery::Unreliable };
            deliver(budget, held, data, delivery);
        }
        self.drop_late(budget, held);
    }

    /// Drops what can no longer be delivered in order.
    fn drop_late(&mut self, budget: &mut Budget, held: &mut Held) {
        while let Some(first) = self.loose.first_entry() {
            work::step();
            if *first.key() > (self.delivered, self.unreliable_in) {
                return;
            }
            budget.give_back(held, first.remove().cost());
        }
    }

    /// Bytes that the waiting packets hold.
    pub(crate) fn held_bytes(&self) -> usize {
        self.waiting.values().chain(self.loose.values()).map(Incoming::cost).sum()
    }
}

/// Adds a fragment that is new to the packet at `key`, which it creates.
fn add_fragment<K: Ord + Copy>(
    packets: &mut BTreeMap<K, Incoming>,
    key: K,
    fragment: &Fragment<'_>,
    budget: &mut Budget,
    held: &mut Held,
    is_next: bool,
) -> Result<Added, Receipt> {
    let more = fragment.payload.len() + OVERHEAD;
    if !budget.has_room(*held, more, is_next) {
        return Err(Receipt::Full);
    }
    budget.take(held, more);
    let entry =
        packets.entry(key).or_insert_with(|| Incoming::Parts { assembly: Assembly::new(fragment), cost: 0 });
    let Incoming::Parts { assembly, cost } = entry else { return Err(Receipt::Malformed) };
    *cost += more;
    match assembly.add(fragment) {
        Added::Contradiction => {
            // The packet can never be completed. Forget it: its sender may start again.
            if let Some(incoming) = packets.remove(&key) {
                budget.give_back(held, incoming.cost());
            }
            Err(Receipt::Malformed)
        }
        added => Ok(added),
    }
}

enum Place {
    /// New, or equal to the last delivered number; with the number continued beyond sixteen bits.
    Acceptable(u64),
    /// Too far ahead to be kept.
    Ahead,
    /// An old number.
    Behind,
}

// Spec: enet §6, §10
const WINDOWS: usize = 16;
const WINDOW_NUMBERS: u16 = 4096;
const WINDOWS_ACCEPTED: u16 = 7;
/// Ten since 1.3.17: with eight, a lost acknowledgement in a long burst could block both ends.
const WINDOWS_FREE_SENDER: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    struct Fixture {
        lane: LaneState,
        budget: Budget,
        held: Held,
        out: Vec<(Bytes, Delivery)>,
    }

    impl Fixture {
        fn new(peer_max: usize) -> Self {
            let budget = Budget { peer_max, host_max: 1 << 30, total: Held(0) };
            Self { lane: LaneState::new(0), budget, held: Held(0), out: Vec::new() }
        }

        fn reliable(&mut self, number: u16, payload: &'static [u8]) -> Receipt {
            let out = &mut self.out;
            let mut deliver = |_: &mut Budget, _: &mut Held, data, delivery| out.push((data, delivery));
            self.lane.receive_reliable(number, payload, &mut self.budget, &mut self.held, &mut deliver)
        }

        fn unreliable(&mut self, number: u16, unreliable: u16, payload: &'static [u8]) -> Receipt {
            let out = &mut self.out;
            let mut deliver = |_: &mut Budget, _: &mut Held, data, delivery| out.push((data, delivery));
            let (budget, held) = (&mut self.budget, &mut self.held);
            self.lane.receive_unreliable(number, unreliable, payload, budget, held, &mut deliver)
        }

        fn fragment(&mut self, number: u16, fragment: &Fragment<'_>) -> Receipt {
            let out = &mut self.out;
            let mut deliver = |_: &mut Budget, _: &mut Held, data, delivery| out.push((data, delivery));
            self.lane.receive_fragment(number, fragment, &mut self.budget, &mut self.held, &mut deliver)
        }

        fn payloads(&mut self) -> Vec<Bytes> {
            self.out.drain(..).map(|(data, _)| data).collect()
        }
    }

    #[test]
    fn gaps_hold_back_and_duplicates_vanish() {
        let mut f = Fixture::new(1 << 20);
        assert_eq!(f.reliable(2, b"b"), Receipt::Taken);
        assert_eq!(f.reliable(2, b"b"), Receipt::Taken);
        assert_eq!(f.unreliable(1, 1, b"a1"), Receipt::Taken);
        assert_eq!(f.unreliable(2, 2, b"b2"), Receipt::Taken);
        assert_eq!(f.unreliable(2, 1, b"b1"), Receipt::Taken);
        assert!(f.payloads().is_empty());
        assert_eq!(f.reliable(1, b"a"), Receipt::Taken);
        // What belonged between 1 and 2 is too late once 2 was delivered.
        assert_eq!(f.payloads(), [&b"a"[..], b"b", b"b1", b"b2"]);
        assert_eq!(f.reliable(1, b"a"), Receipt::Taken);
        assert_eq!(f.unreliable(2, 2, b"b2"), Receipt::Taken);
        assert!(f.payloads().is_empty());
        assert_eq!((f.held.0, f.lane.held_bytes()), (0, 0));
    }

    #[test]
    fn the_window_decides_what_is_kept_and_acknowledged() {
        let mut f = Fixture::new(1 << 20);
        assert_eq!(f.reliable(7 * 4096 - 1, b"x"), Receipt::Taken);
        assert_eq!(f.reliable(7 * 4096, b"x"), Receipt::Ahead);
        assert_eq!(f.reliable(9 * 4096 - 1, b"x"), Receipt::Ahead);
        // Behind: acknowledged, not kept.
        assert_eq!(f.reliable(9 * 4096, b"x"), Receipt::Taken);
        assert_eq!(f.lane.waiting.len(), 1);
    }

    #[test]
    fn numbers_wrap() {
        let mut f = Fixture::new(1 << 20);
        f.lane.delivered = 65_534;
        for number in [0, 1, 65_535] {
            assert_eq!(f.reliable(number, b"x"), Receipt::Taken);
        }
        assert_eq!((f.payloads().len(), f.lane.delivered), (3, 65_537));
    }

    #[test]
    fn the_packet_that_closes_a_gap_has_room() {
        let mut f = Fixture::new(2_000);
        let mut number = 2;
        while f.reliable(number, b"0123456789") == Receipt::Taken {
            number += 1;
        }
        assert!(number > 5 && f.held.0 <= 1_000);
        assert_eq!(f.reliable(1, b"0123456789"), Receipt::Taken);
        assert_eq!(f.payloads().len(), usize::from(number) - 1);
        assert_eq!(f.held.0, 0);
    }

    #[test]
    fn a_fragmented_packet_uses_up_its_numbers() {
        let mut f = Fixture::new(1 << 20);
        let part = |index: u32, payload: &'static [u8]| Fragment {
            start: 1,
            count: 3,
            index,
            total: 5,
            offset: 2 * index,
            payload,
        };
        assert_eq!(f.reliable(4, b"after"), Receipt::Taken);
        // A number in the middle of the fragmented packet: kept until that is delivered, then dropped.
        assert_eq!(f.reliable(2, b"odd"), Receipt::Taken);
        for (index, payload) in [(2, &b"e"[..]), (0, b"ab"), (0, b"ab"), (1, b"cd")] {
            assert_eq!(f.fragment(1 + index as u16, &part(index, payload)), Receipt::Taken);
        }
        assert_eq!(f.payloads(), [&b"abcde"[..], b"after"]);
        assert_eq!((f.lane.delivered, f.held.0), (4, 0));
        assert_eq!(f.fragment(3, &part(1, b"cd")), Receipt::Malformed, "number and index disagree");
    }

    #[test]
    fn the_sender_stops_before_the_windows_run_full() {
        let mut lane = LaneState::new(0);
        assert!(lane.window_is_open(0) && lane.window_is_open(5));
        lane.note_sent(4096);
        assert!(!lane.window_is_open(0), "window 1 is within ten of window 0");
        assert!(!lane.window_is_open(8 * 4096), "ten windows from 8 reach window 1");
        assert!(lane.window_is_open(7 * 4096));
        lane.unacknowledged.push(4096, 0);
        lane.note_acknowledged(4096);
        assert!(lane.window_is_open(0));
    }
}
