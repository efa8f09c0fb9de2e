//! True state of the world, written by the thread of the game servers and read by players and by
//! the judge.
//!
//! Only measurements read it. No action of a player or server depends on it, so it cannot hide a
//! loss in the gateway.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One character.
#[derive(Debug, Default)]
pub(crate) struct Entity {
    /// Number of the newest update sent.
    pub(crate) sent: AtomicU32,
    /// Numbers of the first and the last update that fell due inside the measured window; 0 before.
    pub(crate) window_first: AtomicU32,
    pub(crate) window_last: AtomicU32,
    /// The spatial channel it is in, as its server knows it.
    pub(crate) cell: AtomicU32,
    /// Position on the map in metres: two `f32`, x in the upper half.
    place: AtomicU64,
}

impl Entity {
    pub(crate) fn put(&self, x: f32, z: f32) {
        self.place.store(u64::from(x.to_bits()) << 32 | u64::from(z.to_bits()), Ordering::Relaxed);
    }

    pub(crate) fn place(&self) -> (f32, f32) {
        let place = self.place.load(Ordering::Relaxed);
        (f32::from_bits((place >> 32) as u32), f32::from_bits(place as u32))
    }

    /// Notes that update `sequence` was sent; `measured` when it was due inside the window.
    pub(crate) fn send(&self, sequence: u32, measured: bool) {
        self.sent.store(sequence, Ordering::Relaxed);
        if measured {
            self.window_last.store(sequence, Ordering::Relaxed);
            if self.window_first.load(Ordering::Relaxed) == 0 {
                self.window_first.store(sequence, Ordering::Relaxed);
            }
        }
    }

    /// A new server continues from update `sequence`; later updates of its predecessor do not
    /// count.
    pub(crate) fn resume(&self, sequence: u32) {
        self.sent.fetch_min(sequence, Ordering::Relaxed);
        self.window_last.fetch_min(sequence, Ordering::Relaxed);
    }

    /// Number of updates in the window that a subscriber from `from` to `until`, both included,
    /// should have received.
    pub(crate) fn expected(&self, from: u32, until: u32) -> u64 {
        let first = self.window_first.load(Ordering::Relaxed);
        if first == 0 {
            return 0;
        }
        let (from, until) = (from.max(first), until.min(self.window_last.load(Ordering::Relaxed)));
        u64::from((until + 1).saturating_sub(from))
    }
}

/// All characters of a run by index; the id of a character's channel is the first entity id plus
/// its index.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) entities: Vec<Entity>,
    /// Number of entries so far.
    count: AtomicU32,
}

impl Oracle {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entities: (0..capacity).map(|_| Entity::default()).collect(), count: AtomicU32::new(0) }
    }

    pub(crate) fn count(&self) -> usize {
        (self.count.load(Ordering::Acquire) as usize).min(self.entities.len())
    }

    /// The next index; `None` when there is no room.
    pub(crate) fn allocate(&self) -> Option<u32> {
        let index = self.count.fetch_add(1, Ordering::AcqRel);
        ((index as usize) < self.entities.len()).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_updates_of_the_window_are_expected() {
        let entity = Entity::default();
        entity.send(1, false);
        assert_eq!(entity.expected(1, 9), 0, "the window has not begun");
        for sequence in 2..=11 {
            entity.send(sequence, true);
        }
        entity.send(12, false);
        assert_eq!(entity.expected(1, 100), 10);
        assert_eq!(entity.expected(5, 7), 3);
        assert_eq!(entity.expected(12, 20), 0);
        entity.put(1.5, 2.5);
        assert_eq!(entity.place(), (1.5, 2.5));
    }
}
