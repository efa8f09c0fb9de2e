//! One stream of packets in both directions. Spec: enet §10, §11
//!
//! ```text
//! reliable numbers    ... r-1   r  | r+1   r+2   r+3 ... r+28672 | later: neither kept nor acknowledged
//!                      delivered   | `waiting`, by distance      |
//! unreliable packets follow the reliable number they carry: dropped behind r, delivered at r, in `loose` ahead of it
//! ```

use alloc::boxed::Box;

use bytes::Bytes;

use crate::Delivery;
use crate::budget::{Budget, Held, OVERHEAD};
use crate::sent::{Numbers, SentIndex};
use crate::waiting::{Added, Kind, PacketKey, Waiting};
use crate::wire::Fragment;
use crate::work;

/// A lane's state, created when the lane is first used. Small, so that those of a few lanes share a
/// cache line.
#[derive(Debug)]
pub(crate) struct LaneState {
    pub(crate) id: u8,
    /// Last reliable number given to a packet.
    pub(crate) reliable_out: u16,
    /// Last unreliable number given since.
    pub(crate) unreliable_out: u16,
    /// Last unreliable number delivered at `delivered`.
    unreliable_in: u16,
    /// Reliable numbers delivered so far; the low half is the number on the wire.
    delivered: u64,
    /// From the first reliable packet sent on.
    flight: Option<Box<Flight>>,
}

/// Reliable commands of a lane that are on their way. A cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Flight {
    unacknowledged: Numbers,
    /// Unacknowledged commands in each sixteenth of the number space.
    windows: [u16; WINDOWS],
}

/// Result of a data command.
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

/// A peer's memory for what arrives on any of its lanes, and the way to its application.
pub(crate) struct Inward<'a> {
    pub(crate) waiting: &'a mut Waiting,
    pub(crate) budget: &'a mut Budget,
    pub(crate) held: &'a mut Held,
    /// Takes a packet's content, and how it travelled.
    pub(crate) deliver: &'a mut dyn FnMut(&mut Budget, &mut Held, Bytes, Delivery),
}

impl Inward<'_> {
    fn deliver(&mut self, data: Bytes, delivery: Delivery) {
        (self.deliver)(self.budget, self.held, data, delivery);
    }

    fn has_room(&mut self, len: usize, is_next: bool) -> bool {
        self.budget.has_room(*self.held, len + OVERHEAD, is_next)
    }

    /// True if packets wait: without a look at `waiting`, which most datagrams do not need.
    fn has_waiting(&self) -> bool {
        self.held.waiting() > 0
    }

    fn is_waiting(&self, key: PacketKey) -> bool {
        self.has_waiting() && self.waiting.contains(key)
    }
}

impl LaneState {
    pub(crate) fn new(id: u8) -> Self {
        Self { id, reliable_out: 0, unreliable_out: 0, unreliable_in: 0, delivered: 0, flight: None }
    }

    // ---- sending

    /// True if a number may be sent for the first time. Spec: enet §11.3
    pub(crate) fn window_is_open(&self, number: u16) -> bool {
        let Some(flight) = self.flight.as_ref().filter(|_| number.is_multiple_of(WINDOW_NUMBERS)) else {
            return true;
        };
        let window = usize::from(number / WINDOW_NUMBERS);
        let before = flight.windows[(window + WINDOWS - 1) % WINDOWS];
        before < WINDOW_NUMBERS
            && (0..WINDOWS_FREE_SENDER).all(|ahead| flight.windows[(window + ahead) % WINDOWS] == 0)
    }

    /// Notes that a number was sent for the first time, as the command at `index`.
    pub(crate) fn note_sent(&mut self, number: u16, index: SentIndex) {
        let flight = self.flight.get_or_insert_default();
        flight.windows[usize::from(number / WINDOW_NUMBERS)] += 1;
        flight.unacknowledged.push(number, index);
    }

    /// The command on its way under a number.
    pub(crate) fn sent(&self, number: u16) -> Option<SentIndex> {
        self.flight.as_ref()?.unacknowledged.get(number)
    }

    pub(crate) fn note_acknowledged(&mut self, number: u16) {
        let Some(flight) = &mut self.flight else { return };
        flight.unacknowledged.remove(number);
        let window = &mut flight.windows[usize::from(number / WINDOW_NUMBERS)];
        debug_assert!(*window > 0);
        *window = window.saturating_sub(1);
    }

    /// Forgets what was sent: the connection is ending.
    pub(crate) fn forget_sent(&mut self) {
        self.flight = None;
    }

    /// The most numbers that a packet after `reliable_out` may use: beyond them a receiver
    /// acknowledges nothing.
    pub(crate) fn numbers_max(&self) -> u32 {
        let after = self.reliable_out % WINDOW_NUMBERS;
        u32::from(WINDOWS_ACCEPTED * WINDOW_NUMBERS - 1 - after)
    }

    // ---- receiving

    /// Position of `number` relative to what was delivered.
    fn position(&self, number: u16) -> Position {
        let last = self.delivered as u16;
        let mut window = number / WINDOW_NUMBERS;
        if number < last {
            window += WINDOWS as u16;
        }
        let ahead = window.wrapping_sub(last / WINDOW_NUMBERS);
        if ahead < WINDOWS_ACCEPTED {
            Position::Acceptable(self.delivered + u64::from(number.wrapping_sub(last)))
        } else if ahead <= WINDOWS_ACCEPTED + 1 {
            Position::Ahead
        } else {
            Position::Behind
        }
    }

    pub(crate) fn receive_reliable(
        &mut self,
        number: u16,
        payload: &[u8],
        inward: &mut Inward<'_>,
    ) -> Receipt {
        let at = match self.position(number) {
            Position::Acceptable(at) => at,
            Position::Ahead => return Receipt::Ahead,
            Position::Behind => return Receipt::Taken,
        };
        let key = self.reliable_key(at);
        if at == self.delivered || inward.is_waiting(key) {
            return Receipt::Taken;
        }
        if at != self.delivered + 1 {
            let Inward { waiting, budget, held, .. } = inward;
            return if waiting.insert(key, payload, budget, held) { Receipt::Taken } else { Receipt::Full };
        }
        if !inward.has_room(payload.len(), true) {
            return Receipt::Full;
        }
        self.delivered = at;
        self.unreliable_in = 0;
        inward.deliver(Bytes::copy_from_slice(payload), Delivery::Reliable);
        if inward.has_waiting() {
            self.deliver_waiting(inward);
            self.deliver_loose(inward);
        }
        Receipt::Taken
    }

    pub(crate) fn receive_fragment(
        &mut self,
        number: u16,
        fragment: &Fragment<'_>,
        inward: &mut Inward<'_>,
    ) -> Receipt {
        if number != fragment.start.wrapping_add(fragment.index as u16) {
            return Receipt::Malformed;
        }
        let at = match self.position(fragment.start) {
            Position::Acceptable(at) if at != self.delivered => at,
            // Not kept; acknowledged by its own number.
            _ if matches!(self.position(number), Position::Ahead) => return Receipt::Ahead,
            _ => return Receipt::Taken,
        };
        let is_next = at == self.delivered + 1;
        let Inward { waiting, budget, held, .. } = inward;
        match waiting.add(self.reliable_key(at), fragment, budget, held, is_next) {
            Added::Complete if is_next => {
                self.deliver_waiting(inward);
                self.unreliable_in = 0;
                self.deliver_loose(inward);
                Receipt::Taken
            }
            added => added.into(),
        }
    }

    /// Delivers complete reliable packets from the front on.
    fn deliver_waiting(&mut self, inward: &mut Inward<'_>) {
        while let Some((key, is_complete)) = inward.waiting.first(self.id, Kind::Reliable) {
            work::step();
            let Inward { waiting, budget, held, .. } = inward;
            if key.reliable <= self.delivered {
                // A number within the range of a fragmented packet before it: its sender
                // contradicts itself.
                waiting.discard(key, budget, held);
                continue;
            }
            if key.reliable > self.delivered + 1 || !is_complete {
                return;
            }
            let Some(packet) = waiting.take(key, budget, held) else { return };
            self.delivered += u64::from(packet.numbers);
            inward.deliver(packet.data, Delivery::Reliable);
        }
    }

    pub(crate) fn receive_unreliable(
        &mut self,
        number: u16,
        unreliable_number: u16,
        payload: &[u8],
        inward: &mut Inward<'_>,
    ) -> Receipt {
        let Position::Acceptable(at) = self.position(number) else { return Receipt::Taken };
        let key = self.loose_key(at, unreliable_number);
        if at == self.delivered && unreliable_number <= self.unreliable_in || inward.is_waiting(key) {
            return Receipt::Taken;
        }
        if at != self.delivered {
            let Inward { waiting, budget, held, .. } = inward;
            return if waiting.insert(key, payload, budget, held) { Receipt::Taken } else { Receipt::Full };
        }
        // A packet that can be delivered at once does not wait for anything.
        if !inward.has_room(payload.len(), true) {
            return Receipt::Full;
        }
        self.unreliable_in = unreliable_number;
        inward.deliver(Bytes::copy_from_slice(payload), Delivery::Unreliable);
        if inward.has_waiting() {
            self.drop_late(inward);
        }
        Receipt::Taken
    }

    pub(crate) fn receive_unreliable_fragment(
        &mut self,
        number: u16,
        fragment: &Fragment<'_>,
        inward: &mut Inward<'_>,
    ) -> Receipt {
        let Position::Acceptable(at) = self.position(number) else { return Receipt::Taken };
        if at == self.delivered && fragment.start <= self.unreliable_in {
            return Receipt::Taken;
        }
        let key = self.loose_key(at, fragment.start);
        let Inward { waiting, budget, held, .. } = inward;
        match waiting.add(key, fragment, budget, held, false) {
            Added::Complete if at == self.delivered => {
                // All others at this reliable number are incomplete, or they would have been
                // delivered.
                self.deliver_one_loose(key, inward);
                self.drop_late(inward);
                Receipt::Taken
            }
            added => added.into(),
        }
    }

    /// Delivers the complete unreliable packets of a reliable number that has just been reached, in
    /// order and without waiting for gaps.
    fn deliver_loose(&mut self, inward: &mut Inward<'_>) {
        self.drop_late(inward);
        let mut from = self.loose_key(self.delivered, 0);
        while let Some((key, is_complete)) = inward.waiting.first_from(from) {
            work::step();
            if key.reliable != self.delivered {
                break;
            }
            if is_complete {
                self.deliver_one_loose(key, inward);
            }
            let Some(next) = key.unreliable.checked_add(1) else { break };
            from = self.loose_key(self.delivered, next);
        }
        self.drop_late(inward);
    }

    fn deliver_one_loose(&mut self, key: PacketKey, inward: &mut Inward<'_>) {
        let Inward { waiting, budget, held, .. } = inward;
        let Some(packet) = waiting.take(key, budget, held) else { return };
        self.unreliable_in = key.unreliable;
        let delivery = if packet.in_parts { Delivery::UnreliableFragmented } else { Delivery::Unreliable };
        inward.deliver(packet.data, delivery);
    }

    /// Drops what can no longer be delivered in order.
    fn drop_late(&mut self, inward: &mut Inward<'_>) {
        let Inward { waiting, budget, held, .. } = inward;
        while let Some((key, _)) = waiting.first(self.id, Kind::Unreliable) {
            work::step();
            if (key.reliable, key.unreliable) > (self.delivered, self.unreliable_in) {
                return;
            }
            waiting.discard(key, budget, held);
        }
    }

    fn reliable_key(&self, at: u64) -> PacketKey {
        PacketKey { lane: self.id, kind: Kind::Reliable, reliable: at, unreliable: 0 }
    }

    fn loose_key(&self, at: u64, unreliable: u16) -> PacketKey {
        PacketKey { lane: self.id, kind: Kind::Unreliable, reliable: at, unreliable }
    }
}

impl From<Added> for Receipt {
    fn from(added: Added) -> Self {
        match added {
            Added::More | Added::Complete | Added::Known => Self::Taken,
            Added::Contradiction => Self::Malformed,
            Added::Full => Self::Full,
        }
    }
}

enum Position {
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
        waiting: Waiting,
        budget: Budget,
        held: Held,
        out: Vec<(Bytes, Delivery)>,
    }

    impl Fixture {
        fn new(peer_max: usize) -> Self {
            let budget = Budget::new(peer_max, peer_max, 1 << 30);
            let waiting = Waiting::default();
            Self { lane: LaneState::new(0), waiting, budget, held: Held::default(), out: Vec::new() }
        }

        fn receive(&mut self, receive: impl FnOnce(&mut LaneState, &mut Inward<'_>) -> Receipt) -> Receipt {
            let Self { lane, waiting, budget, held, out } = self;
            let mut deliver = |_: &mut Budget, _: &mut Held, data, delivery| out.push((data, delivery));
            let receipt = receive(lane, &mut Inward { waiting, budget, held, deliver: &mut deliver });
            assert_eq!(held.bytes, waiting.held_bytes());
            receipt
        }

        fn reliable(&mut self, number: u16, payload: &'static [u8]) -> Receipt {
            self.receive(|lane, inward| lane.receive_reliable(number, payload, inward))
        }

        fn unreliable(&mut self, number: u16, unreliable: u16, payload: &'static [u8]) -> Receipt {
            self.receive(|lane, inward| lane.receive_unreliable(number, unreliable, payload, inward))
        }

        fn fragment(&mut self, number: u16, fragment: &Fragment<'_>) -> Receipt {
            self.receive(|lane, inward| lane.receive_fragment(number, fragment, inward))
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
        // A packet between 1 and 2 is too late once 2 was delivered.
        assert_eq!(f.payloads(), [&b"a"[..], b"b", b"b1", b"b2"]);
        assert_eq!(f.reliable(1, b"a"), Receipt::Taken);
        assert_eq!(f.unreliable(2, 2, b"b2"), Receipt::Taken);
        assert!(f.payloads().is_empty());
        assert_eq!(f.held.bytes, 0);
    }

    #[test]
    fn the_window_decides_what_is_kept_and_acknowledged() {
        let mut f = Fixture::new(1 << 20);
        assert_eq!(f.reliable(7 * 4096 - 1, b"x"), Receipt::Taken);
        assert_eq!(f.reliable(7 * 4096, b"x"), Receipt::Ahead);
        assert_eq!(f.reliable(9 * 4096 - 1, b"x"), Receipt::Ahead);
        // Behind: acknowledged, not kept.
        assert_eq!(f.reliable(9 * 4096, b"x"), Receipt::Taken);
        assert_eq!(f.waiting.first(0, Kind::Reliable).map(|(key, _)| key.reliable), Some(7 * 4096 - 1));
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
        assert!(number > 5 && f.held.bytes <= 1_000);
        assert_eq!(f.reliable(1, b"0123456789"), Receipt::Taken);
        assert_eq!(f.payloads().len(), usize::from(number) - 1);
        assert_eq!(f.held.bytes, 0);
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
        // A number in the middle of the fragmented packet: kept until that is delivered, then
        // dropped.
        assert_eq!(f.reliable(2, b"odd"), Receipt::Taken);
        for (index, payload) in [(2, &b"e"[..]), (0, b"ab"), (0, b"ab"), (1, b"cd")] {
            assert_eq!(f.fragment(1 + index as u16, &part(index, payload)), Receipt::Taken);
        }
        assert_eq!(f.payloads(), [&b"abcde"[..], b"after"]);
        assert_eq!((f.lane.delivered, f.held.bytes), (4, 0));
        assert_eq!(f.fragment(3, &part(1, b"cd")), Receipt::Malformed, "number and index disagree");
    }

    #[test]
    fn the_sender_stops_before_the_windows_run_full() {
        let mut lane = LaneState::new(0);
        assert!(lane.window_is_open(0) && lane.window_is_open(5));
        lane.note_sent(4096, 0);
        assert!(!lane.window_is_open(0), "window 1 is within ten of window 0");
        assert!(!lane.window_is_open(8 * 4096), "ten windows from 8 reach window 1");
        assert!(lane.window_is_open(7 * 4096));
        lane.note_acknowledged(4096);
        assert!(lane.window_is_open(0));
    }
}
