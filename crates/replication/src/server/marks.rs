//! Ways to say that something may have changed, beside [`Server::set`]: polling, force, marks from
//! other threads, and the check that nothing was forgotten.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Event, Server};
use crate::class::ClassId;
use crate::handle::Handle;
use crate::server::ObjectError;
use crate::wire::bits_of;

/// Marks objects from any thread, while the game owns the server; see [`Server::marker`]. Clones
/// mark the same server.
#[derive(Clone, Debug)]
pub struct Marker {
    marks: Arc<Marks>,
}

#[derive(Debug)]
pub(super) struct Marks {
    masks: Vec<AtomicU64>,
    /// One bit for each object that has a mask.
    dirty: Vec<AtomicU64>,
}

impl Marker {
    /// Marks properties of an object. Costs two atomic operations; does not wait. A handle beyond
    /// the server's limit is ignored.
    pub fn mark(&self, handle: Handle, mask: u64) {
        let at = handle.index() as usize;
        if let Some(place) = self.marks.masks.get(at) {
            place.fetch_or(mask, Ordering::Relaxed);
            // Who sees the bit sees the mask.
            self.marks.dirty[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
        }
    }
}

/// Objects that are polled every so many frames, spread over these by their index.
#[derive(Debug, Default)]
pub(super) struct Polled {
    /// By period less one, then by index modulo the period.
    periods: Vec<Vec<BTreeSet<u32>>>,
}

impl Polled {
    fn bucket(&mut self, index: u32, period: u8) -> &mut BTreeSet<u32> {
        let period = usize::from(period.max(1));
        if self.periods.len() < period {
            self.periods.resize_with(period, Vec::new);
        }
        let buckets = &mut self.periods[period - 1];
        buckets.resize_with(period, BTreeSet::new);
        &mut buckets[index as usize % period]
    }

    pub(super) fn remove(&mut self, index: u32) {
        for buckets in &mut self.periods {
            let period = buckets.len();
            if let Some(bucket) = buckets.get_mut(index as usize % period.max(1)) {
                bucket.remove(&index);
            }
        }
    }

    fn due(&self, frame: u32) -> impl Iterator<Item = u32> {
        let due = self.periods.iter().filter_map(move |buckets| {
            let period = buckets.len();
            buckets.get(frame as usize % period.max(1))
        });
        due.flatten().copied()
    }
}

impl Server {
    /// The object's live block, to be changed without a mark: for objects that are polled, or
    /// marked apart. Its layout is that of [`Class::layout`](crate::Class::layout).
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn live_mut(&mut self, handle: Handle) -> Result<&mut [u32], ObjectError> {
        let index = self.known(handle)?;
        let store = &mut self.shared.stores[usize::from(self.shared.objects.class[index as usize])];
        Ok(store.live_mut(self.shared.objects.slot[index as usize]))
    }

    /// Compares all properties of the object every `period` frames (1 to 255; 0 counts as 1), once
    /// for all connections; `None` ends that.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_poll(&mut self, handle: Handle, period: Option<u8>) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.polled.remove(index);
        if let Some(period) = period {
            self.polled.bucket(index, period).insert(index);
        }
        Ok(())
    }

    /// Compares all properties of the object in the next frame, with those of its root, its parts
    /// and its dependents.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn force_update(&mut self, handle: Handle) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let above = self.shared.objects.parent[index as usize];
        let root = if above != 0 { above } else { index };
        let mut forced = vec![root, index];
        forced.extend(self.shared.followers.get(&root).into_iter().flatten().map(|follower| follower.object));
        for object in forced {
            self.mark(object, self.shared.store(object).class.all_mask());
        }
        Ok(())
    }

    /// A way to mark objects from other threads. Marks made while a frame begins belong to the next
    /// one.
    pub fn marker(&mut self) -> Marker {
        // Index 0 names nothing.
        let objects = self.shared.config.objects_max as usize + 1;
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let marks = self.marks.get_or_insert_with(|| {
            Arc::new(Marks { masks: zeros(objects), dirty: zeros(objects.div_ceil(64)) })
        });
        Marker { marks: Arc::clone(marks) }
    }

    /// Takes the marks of all [markers](Self::marker): `fetch` writes the present values of the
    /// marked properties into the object's live block. Call it before the frame begins. Marks of
    /// objects that do not exist are counted.
    pub fn fetch_marked(&mut self, mut fetch: impl FnMut(Handle, u64, &mut [u32])) {
        let Some(marks) = self.marks.clone() else { return };
        for (word, dirty) in marks.dirty.iter().enumerate() {
            if dirty.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for bit in bits_of(dirty.swap(0, Ordering::Acquire)) {
                let index = (word * 64 + bit) as u32;
                let mask = marks.masks[index as usize].swap(0, Ordering::Relaxed);
                let objects = &self.shared.objects;
                if !objects.alive.get(index) {
                    self.stats.stale_marks += 1;
                    continue;
                }
                let handle = Handle::from_parts(index, objects.generation[index as usize]);
                let store = &mut self.shared.stores[usize::from(objects.class[index as usize])];
                fetch(handle, mask, store.live_mut(objects.slot[index as usize]));
                self.mark(index, mask);
            }
        }
    }

    /// Marks what is to be polled in the frame that begins.
    pub(super) fn poll(&mut self) {
        let frame = self.shared.frame;
        let objects = &mut self.shared.objects;
        for index in self.polled.due(frame) {
            let store = &self.shared.stores[usize::from(objects.class[index as usize])];
            objects.dirty_mask[index as usize] |= store.class.all_mask();
            objects.dirty.set(index);
        }
    }

    /// Finds changes that were never marked, reports and marks them. Costs a comparison of
    /// everything.
    pub(super) fn verify_push(&mut self) {
        let alive: Vec<u32> = self.shared.objects.alive.iter().collect();
        for index in alive {
            let objects = &self.shared.objects;
            let at = index as usize;
            let store = &self.shared.stores[usize::from(objects.class[at])];
            let unmarked =
                store.differing(objects.slot[at], store.class.all_mask() & !objects.dirty_mask[at]);
            let handle = Handle::from_parts(index, objects.generation[at]);
            let class = ClassId(objects.class[at]);
            for property in bits_of(unmarked) {
                self.stats.unmarked_changes += 1;
                self.events.push_back(Event::UnmarkedChange { handle, class, property });
            }
            if unmarked != 0 {
                self.mark(index, unmarked);
            }
        }
    }
}
