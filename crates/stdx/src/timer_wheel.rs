//! Timer wheel: its cost depends on the timers that fire, not on those that wait.
//!
//! ```text
//! level 0   64 slots of 2^20 ns (about 1 ms)      the next  67 ms
//! level 1   64 slots of 2^26 ns (about 67 ms)     the next  4.3 s
//! level 2   64 slots of 2^32 ns (about 4.3 s)     the next  275 s
//!   ...     eight levels cover all of u64
//! ```
//!
//! A timer lies at the level of the highest six-bit group in which its time differs from the
//! cursor. When the cursor reaches a slot, its timers move to lower levels; those of the cursor's
//! own millisecond lie in a heap, which gives the exact order by (time, insertion). A timer
//! therefore moves at most eight times and usually twice, whatever the number of other timers.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::Instant;

/// A set of timers, each carrying a `T`, that fire in order of time and, at equal times, of
/// insertion.
///
/// Insertion and cancellation cost O(1); a timer that fires costs O(log n) of the timers in the
/// same millisecond. Times are exact to the nanosecond: the slots only sort, they never round.
#[derive(Debug)]
pub struct TimerWheel<T> {
    nodes: Vec<Node<T>>,
    /// Head of the list of unused nodes, linked through `next`.
    free: u32,
    /// Timers pending. Nodes in use are exactly these.
    len: usize,
    /// Insertions so far; the tie-break between equal times.
    inserted: u64,
    /// Every timer in the wheel lies in a later tick than this one; those of this tick and before
    /// are in `near`.
    cursor: u64,
    /// Timers at or before the cursor's tick, earliest first. May hold entries of cancelled timers,
    /// but never on top.
    near: BinaryHeap<Reverse<Near>>,
    /// Pending timers in `near`; the rest of `near` are entries of cancelled timers.
    near_live: usize,
    /// One bit per slot that holds timers.
    occupied: [u64; LEVELS],
    slots: Vec<Slot>,
}

/// Key of a pending timer. After the timer has fired or was cancelled, the key is void, even if its
/// node is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

impl<T> TimerWheel<T> {
    /// An empty wheel. Allocates about 8 KiB and no more until the first timer.
    #[must_use]
    pub fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            len: 0,
            inserted: 0,
            cursor: 0,
            near: BinaryHeap::new(),
            near_live: 0,
            occupied: [0; LEVELS],
            slots: alloc::vec![Slot { head: NONE, earliest: Instant::MAX }; LEVELS * SLOTS],
        }
    }

    /// Adds a timer that fires at `at`; a time in the past fires at the next
    /// [`pop_due`](Self::pop_due).
    ///
    /// # Panics
    /// When 2^32 - 1 timers are pending.
    pub fn insert(&mut self, at: Instant, value: T) -> TimerKey {
        let index = self.take_node();
        let order = self.inserted;
        self.inserted += 1;
        self.len += 1;
        let node = &mut self.nodes[index as usize];
        node.at = at;
        node.order = order;
        node.value = Some(value);
        let generation = node.generation;
        self.place(index);
        TimerKey { index, generation }
    }

    /// Removes the timer and returns its value; `None` if it has fired or was cancelled before.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let node = self.nodes.get(key.index as usize)?;
        if node.generation != key.generation || node.value.is_none() {
            return None;
        }
        if node.slot == NEAR {
            self.near_live -= 1;
            let value = self.release(key.index);
            self.prune_near();
            return value;
        }
        self.unlink(key.index);
        self.release(key.index)
    }

    /// Removes and returns the first timer whose time is `now` or earlier, with its time.
    ///
    /// Call until `None`. `now` should not go back; if it does, nothing fires early and order is
    /// kept among the timers pending.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, T)> {
        loop {
            // Everything in `near` comes before everything in the wheel.
            if let Some(Reverse(first)) = self.near.peek().copied() {
                if first.at > now {
                    return None;
                }
                self.near.pop();
                self.near_live -= 1;
                let value = self.release(first.index)?;
                self.prune_near();
                return Some((first.at, value));
            }
            let now_tick = tick(now);
            match self.first_slot() {
                Some((level, slot)) if self.slot_start(level, slot) <= now_tick => {
                    self.cursor = self.slot_start(level, slot);
                    self.spread(level, slot);
                }
                // No slot begins before `now`, so the cursor may follow it and new timers land
                // close to their place.
                _ => {
                    self.cursor = self.cursor.max(now_tick);
                    return None;
                }
            }
        }
    }

    /// Instant at which [`pop_due`](Self::pop_due) should next be called; `None` when no timer is
    /// pending.
    ///
    /// This is the time of the first timer, except after that very timer was cancelled: then it may
    /// lie earlier, and calling `pop_due` at that time moves it on.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        if let Some(Reverse(first)) = self.near.peek() {
            return Some(first.at);
        }
        self.first_slot().map(|(level, slot)| self.slots[level * SLOTS + slot].earliest)
    }

    /// Number of pending timers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The occupied slot that holds the earliest timers of the wheel. Lower levels come first:
    /// their timers share more leading bits with the cursor.
    fn first_slot(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// First tick of a slot, given the cursor.
    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let shift = level as u32 * SLOT_BITS;
        let above = (self.cursor >> shift) >> SLOT_BITS;
        ((above << SLOT_BITS) | slot as u64) << shift
    }

    /// Puts a node into the slot of its time relative to the cursor.
    fn place(&mut self, index: u32) {
        let Node { at, order, .. } = self.nodes[index as usize];
        let due = tick(at);
        if due <= self.cursor {
            self.nodes[index as usize].slot = NEAR;
            self.near_live += 1;
            self.near.push(Reverse(Near { at, order, index }));
            return;
        }
        let level = ((due ^ self.cursor).ilog2() / SLOT_BITS) as usize;
        let slot = (due >> (level as u32 * SLOT_BITS)) as usize % SLOTS;
        let place = level * SLOTS + slot;
        let head = self.slots[place].head;
        self.occupied[level] |= 1 << slot;
        self.slots[place].head = index;
        self.slots[place].earliest = self.slots[place].earliest.min(at);
        if head != NONE {
            self.nodes[head as usize].previous = index;
        }
        let node = &mut self.nodes[index as usize];
        node.slot = place as u16;
        node.previous = NONE;
        node.next = head;
    }

    /// Moves the timers of a slot that the cursor has reached to lower levels.
    fn spread(&mut self, level: usize, slot: usize) {
        let mut index = self.empty_slot(level * SLOTS + slot);
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.place(index);
            index = next;
        }
    }

    /// Takes a node out of its slot's list.
    fn unlink(&mut self, index: u32) {
        let Node { slot, next, previous, .. } = self.nodes[index as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
        } else if next != NONE {
            self.slots[slot as usize].head = next;
        } else {
            self.empty_slot(slot as usize);
        }
    }

    /// Marks a slot empty and returns the head of its list.
    fn empty_slot(&mut self, place: usize) -> u32 {
        self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
        self.slots[place].earliest = Instant::MAX;
        core::mem::replace(&mut self.slots[place].head, NONE)
    }

    /// Keeps the top of `near` alive, and `near` within a constant factor of the timers it really
    /// holds: without it, a loop of insertions and cancellations inside one millisecond would grow
    /// the heap.
    fn prune_near(&mut self) {
        let nodes = &self.nodes;
        let live = |near: &Near| {
            let node = &nodes[near.index as usize];
            node.value.is_some() && node.order == near.order
        };
        if self.near.len() > 2 * self.near_live + 64 {
            self.near.retain(|Reverse(near)| live(near));
        }
        while self.near.peek().is_some_and(|Reverse(near)| !live(near)) {
            self.near.pop();
        }
    }

    fn take_node(&mut self) -> u32 {
        if self.free != NONE {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            return index;
        }
        assert!(self.nodes.len() < NONE as usize, "2^32 - 1 timers are pending");
        let index = self.nodes.len() as u32;
        self.nodes.push(Node {
            at: Instant::ZERO,
            order: 0,
            next: NONE,
            previous: NONE,
            generation: 0,
            slot: NEAR,
            value: None,
        });
        index
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        let value = node.value.take();
        node.generation = node.generation.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        value
    }
}

impl<T> Default for TimerWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct Node<T> {
    at: Instant,
    /// Unique number of the insertion: the tie-break, and the check that an entry of `near` still
    /// refers to this timer.
    order: u64,
    /// Next node of the slot or, in an unused node, of the free list.
    next: u32,
    previous: u32,
    /// Grows each time the node is given back, which makes old keys void.
    generation: u32,
    /// Index of the slot that holds the node, or [`NEAR`].
    slot: u16,
    /// `None` in an unused node.
    value: Option<T>,
}

/// An entry of the heap of near timers, ordered by time, then insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Near {
    at: Instant,
    order: u64,
    index: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// First node of the slot, [`NONE`] when empty.
    head: u32,
    /// No timer of the slot is earlier. Exact unless a timer was cancelled since the slot was last
    /// empty.
    earliest: Instant,
}

/// 2^20 ns, about a millisecond: channel ticks (5 ms and up) spread over different slots, and the
/// timers of one slot are few enough for the heap that sorts them.
const TICK_SHIFT: u32 = 20;
/// Sixty-four slots a level, so that one word says which are occupied.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 8;
const NONE: u32 = u32::MAX;
const NEAR: u16 = u16::MAX;

const _: () = assert!(LEVELS as u32 * SLOT_BITS >= u64::BITS - TICK_SHIFT, "the levels cover every Instant");
const _: () = assert!(LEVELS * SLOTS < NEAR as usize, "slot indices do not collide with NEAR");

fn tick(at: Instant) -> u64 {
    at.as_nanos() >> TICK_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::time::Duration;
    use proptest::prelude::*;

    #[test]
    fn fires_in_order_of_time_then_insertion() {
        let mut timers = TimerWheel::new();
        let at = Instant::from_millis;
        for (time, name) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c'), (90_000, 'e')] {
            timers.insert(at(time), name);
        }
        assert_eq!(timers.pop_due(at(9)), None);
        let fired: Vec<char> =
            core::iter::from_fn(|| timers.pop_due(at(100_000)).map(|(_, name)| name)).collect();
        assert_eq!(fired, ['a', 'b', 'c', 'd', 'e']);
        assert!(timers.is_empty() && timers.next().is_none());
    }

    #[test]
    fn is_exact_to_the_nanosecond() {
        let mut timers = TimerWheel::new();
        let at = Instant::from_nanos(5_000_000_123);
        timers.insert(at, ());
        assert_eq!(timers.next(), Some(at));
        assert_eq!(timers.pop_due(at - Duration::from_nanos(1)), None);
        assert_eq!(timers.next(), Some(at));
        assert_eq!(timers.pop_due(at), Some((at, ())));
    }

    #[test]
    fn a_key_dies_with_its_timer() {
        let mut timers = TimerWheel::new();
        let first = timers.insert(Instant::from_millis(1), 1);
        assert_eq!(timers.cancel(first), Some(1));
        let second = timers.insert(Instant::from_millis(1), 2);
        assert_eq!(timers.cancel(first), None, "the place is reused, the key is not");
        assert_eq!(timers.pop_due(Instant::from_millis(2)), Some((Instant::from_millis(1), 2)));
        assert_eq!(timers.cancel(second), None);
    }

    #[test]
    fn the_past_fires_at_once_and_the_end_of_time_never_early() {
        let mut timers = TimerWheel::new();
        assert_eq!(timers.pop_due(Instant::from_millis(1_000)), None);
        timers.insert(Instant::MAX, "never");
        timers.insert(Instant::ZERO, "past");
        assert_eq!(timers.pop_due(Instant::from_millis(1_000)), Some((Instant::ZERO, "past")));
        assert_eq!(timers.pop_due(Instant::from_nanos(u64::MAX - 1)), None);
        assert_eq!(timers.pop_due(Instant::MAX), Some((Instant::MAX, "never")));
    }

    #[test]
    fn cancelling_inside_one_millisecond_does_not_grow_memory() {
        let mut timers = TimerWheel::new();
        for _ in 0..10_000 {
            let top = timers.insert(Instant::from_nanos(1), 0);
            let key = timers.insert(Instant::from_nanos(2), 1);
            timers.cancel(key);
            timers.cancel(top);
        }
        timers.insert(Instant::ZERO, 2);
        for _ in 0..10_000 {
            let key = timers.insert(Instant::from_nanos(2), 1);
            timers.cancel(key);
        }
        assert_eq!(timers.len(), 1);
        assert!(timers.near.len() < 100, "{} entries for one timer", timers.near.len());
        assert!(timers.nodes.len() <= 3);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Adds a timer this far from the current time; negative is the past.
        Insert(i64),
        /// Cancels the n-th timer ever added.
        Cancel(usize),
        /// Lets time pass and takes what is due.
        Advance(u64),
        /// Sleeps until `next` as a driver does and takes what is due.
        Sleep,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Spans of every magnitude, so that every level of the wheel is used.
        let span = (0_u32..45, any::<u64>()).prop_map(|(bits, word)| word & ((1 << bits) - 1));
        let step = prop_oneof![
            4 => span.clone().prop_map(|ns| Step::Insert(ns as i64)),
            1 => span.clone().prop_map(|ns| Step::Insert(-(ns as i64))),
            2 => (0_usize..200).prop_map(Step::Cancel),
            2 => span.prop_map(Step::Advance),
            1 => Just(Step::Sleep),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(steps in steps()) {
            let mut wheel = TimerWheel::new();
            let mut model: BTreeMap<(Instant, usize), ()> = BTreeMap::new();
            let mut keys = Vec::new();
            let mut now = Instant::from_millis(1_000_000);
            for step in steps {
                match step {
                    Step::Insert(ns) => {
                        let gap = Duration::from_nanos(ns.unsigned_abs());
                        let at = if ns < 0 { now - gap } else { now + gap };
                        keys.push((at, wheel.insert(at, keys.len())));
                        model.insert((at, keys.len() - 1), ());
                    }
                    Step::Cancel(n) => {
                        let Some(&(at, key)) = keys.get(n) else { continue };
                        let expected = model.remove(&(at, n)).map(|()| n);
                        prop_assert_eq!(wheel.cancel(key), expected);
                    }
                    Step::Advance(ns) => now += Duration::from_nanos(ns),
                    Step::Sleep => now = now.max(wheel.next().unwrap_or(now)),
                }
                if !matches!(step, Step::Insert(_) | Step::Cancel(_)) {
                    while let Some((at, n)) = wheel.pop_due(now) {
                        let first = model.pop_first().map(|(key, ())| key);
                        prop_assert_eq!(first, Some((at, n)));
                        prop_assert!(at <= now);
                    }
                    prop_assert!(model.first_key_value().is_none_or(|(&(at, _), ())| at > now));
                }
                prop_assert_eq!(wheel.len(), model.len());
                let first = model.first_key_value().map(|(&(at, _), ())| at);
                match (wheel.next(), first) {
                    (Some(next), Some(first)) => prop_assert!(next <= first, "{next} is later than {first}"),
                    (next, first) => prop_assert_eq!(next.is_some(), first.is_some()),
                }
            }
            // A driver that only ever sleeps until `next` reaches every timer in a bounded number
            // of wake-ups.
            let mut wakes = 0;
            while let Some(next) = wheel.next() {
                wakes += 1;
                prop_assert!(wakes <= 10 * keys.len() + 10, "next() makes no progress");
                now = now.max(next);
                while let Some((at, n)) = wheel.pop_due(now) {
                    prop_assert_eq!(model.pop_first().map(|(key, ())| key), Some((at, n)));
                }
            }
            prop_assert!(model.is_empty());
        }
    }
}
