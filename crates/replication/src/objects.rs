//! Objects: dense arrays by network index, and one block of state each by class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::bitmap::{Bitmap, Sparse};
use crate::class::Class;
use crate::wire::HeapValue;

/// No connection owns the object.
pub(crate) const NOBODY: u32 = u32::MAX;
/// Frames whose states are kept for differences.
pub(crate) const HISTORY: usize = crate::wire::BASELINE_AGE_MAX as usize;
/// No frame has this number in practice: states carry it before their first frame.
const NEVER: u32 = u32::MAX;

/// State of all objects of one class. An object has a slot; its words lie at `slot * words`.
#[derive(Debug)]
pub(crate) struct ClassStore {
    pub(crate) class: Arc<Class>,
    pub(crate) live: Vec<u32>,
    pub(crate) quant: Vec<u64>,
    pub(crate) heap: Vec<HeapValue>,
    /// Set since the last frame, not yet compared.
    pub(crate) staged: Vec<Option<HeapValue>>,
    slots: u32,
    free: Vec<u32>,
    /// Ring of states by frame: `[frame % HISTORY][slot][word]`; only for classes with differences.
    history: Vec<u64>,
    history_frames: Vec<u32>,
    history_slots: usize,
    /// Frame in which each property changed last, `[slot][property]`; only for classes whose
    /// receivers keep objects.
    changed: Vec<u32>,
}

impl ClassStore {
    pub(crate) fn new(class: Arc<Class>) -> Self {
        Self {
            class,
            live: Vec::new(),
            quant: Vec::new(),
            heap: Vec::new(),
            staged: Vec::new(),
            slots: 0,
            free: Vec::new(),
            history: Vec::new(),
            history_frames: Vec::new(),
            history_slots: 0,
            changed: Vec::new(),
        }
    }

    /// A slot with the class' defaults.
    pub(crate) fn allocate(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            let slots = self.slots as usize;
            self.live.resize(slots * self.class.live_words, 0);
            self.quant.resize(slots * self.class.words, 0);
            self.heap.resize_with(slots * self.class.heap_count, HeapValue::default);
            self.staged.resize_with(slots * self.class.heap_count, || None);
            self.slots - 1
        });
        let class = Arc::clone(&self.class);
        if class.flags.retain {
            self.changed.resize(self.slots as usize * class.props.len(), 0);
        }
        self.live_mut(slot).copy_from_slice(&class.live_defaults);
        self.quant_mut(slot).copy_from_slice(&class.defaults);
        let first = slot as usize * class.heap_count;
        for (at, default) in class.heap_defaults.iter().enumerate() {
            self.heap[first + at] = (default.0.to_vec(), default.1);
            self.staged[first + at] = None;
        }
        if class.flags.delta {
            if self.history_slots < self.slots as usize {
                self.history_slots = (self.slots as usize).next_power_of_two();
                self.history = vec![0; HISTORY * self.history_slots * class.words];
                // Losing what was kept is safe: states that are not found are sent whole.
                self.history_frames = vec![NEVER; HISTORY * self.history_slots];
            }
            for ring in 0..HISTORY {
                self.history_frames[ring * self.history_slots + slot as usize] = NEVER;
            }
        }
        slot
    }

    pub(crate) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    #[inline]
    pub(crate) fn live(&self, slot: u32) -> &[u32] {
        let words = self.class.live_words;
        &self.live[slot as usize * words..][..words]
    }

    #[inline]
    pub(crate) fn live_mut(&mut self, slot: u32) -> &mut [u32] {
        let words = self.class.live_words;
        &mut self.live[slot as usize * words..][..words]
    }

    #[inline]
    pub(crate) fn quant(&self, slot: u32) -> &[u64] {
        let words = self.class.words;
        &self.quant[slot as usize * words..][..words]
    }

    #[inline]
    pub(crate) fn quant_mut(&mut self, slot: u32) -> &mut [u64] {
        let words = self.class.words;
        &mut self.quant[slot as usize * words..][..words]
    }

    #[inline]
    pub(crate) fn heap(&self, slot: u32) -> &[HeapValue] {
        let count = self.class.heap_count;
        &self.heap[slot as usize * count..][..count]
    }

    /// Quantises the properties of `mask`; returns those whose bits changed, and the count of NaNs.
    #[inline(always)]
    pub(crate) fn quantise(&mut self, slot: u32, mask: u64) -> (u64, u32) {
        let class = &*self.class;
        let live = &self.live[slot as usize * class.live_words..][..class.live_words];
        let quant = &mut self.quant[slot as usize * class.words..][..class.words];
        let (mut changed, mut nans) = (0, 0);
        if class.plain {
            // Property and word have the same number, and nothing lies on the heap.
            let mut left = mask;
            if mask & class.integer_mask == class.integer_mask {
                left &= !class.integer_mask;
                for integer in &class.integers {
                    let (at, live) =
                        (integer.word, live.get(integer.live..).and_then(|live| live.first_chunk()));
                    let (Some([low, high]), Some(old)) = (live, quant.get_mut(at)) else { break };
                    let q = (u64::from(*low) | u64::from(*high) << 32).min(integer.max);
                    changed |= u64::from(*old != q) << (at % 64);
                    *old = q;
                }
            }
            for at in crate::wire::bits_of(left) {
                let (Some(prop), Some(old)) = (class.props.get(at), quant.get_mut(at)) else { break };
                let Some(live) = live.get(prop.live..) else { break };
                let (q, none) = prop.codec.quantise_word(live);
                nans += none;
                changed |= u64::from(*old != q) << at;
                *old = q;
            }
            return (changed, nans);
        }
        let mut left = mask;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(prop) = class.props.get(at) else { break };
            let words = prop.codec.words();
            let different = if prop.codec.is_heap() {
                let place = slot as usize * class.heap_count + prop.heap;
                match self.staged[place].take() {
                    Some(value) if value != self.heap[place] => {
                        self.heap[place] = value;
                        true
                    }
                    _ => false,
                }
            } else if words == 1 {
                let mut q = [0];
                nans += prop.codec.quantise(&live[prop.live..], &mut q);
                let different = quant[prop.word] != q[0];
                quant[prop.word] = q[0];
                different
            } else {
                let mut q = [0; crate::WORDS_MAX];
                nans += prop.codec.quantise(&live[prop.live..], &mut q);
                let old = &mut quant[prop.word..prop.word + words];
                let different = *old != q[..words];
                old.copy_from_slice(&q[..words]);
                different
            };
            changed |= u64::from(different) << at;
        }
        (changed, nans)
    }

    /// Properties of `mask` whose live value has other bits than the quantised copy; values on the
    /// heap are not looked at.
    pub(crate) fn differing(&self, slot: u32, mask: u64) -> u64 {
        let (live, quant) = (self.live(slot), self.quant(slot));
        let differs = |at: &usize| {
            let Some(prop) = self.class.props.get(*at).filter(|prop| !prop.codec.is_heap()) else {
                return false;
            };
            let mut q = [0; crate::WORDS_MAX];
            prop.codec.quantise(&live[prop.live..], &mut q);
            q[..prop.codec.words()] != *prop.words(quant)
        };
        crate::wire::bits_of(mask).filter(differs).fold(0, |all, at| all | 1 << at)
    }

    /// Notes that properties changed in `frame`, for receivers that keep objects.
    #[inline]
    pub(crate) fn note(&mut self, slot: u32, changed: u64, frame: u32) {
        let first = slot as usize * self.class.props.len();
        for property in crate::wire::bits_of(changed) {
            self.changed[first + property] = frame;
        }
    }

    /// Properties that changed in one of the frames from `since` to `now`.
    pub(crate) fn changed_since(&self, slot: u32, since: u32, now: u32) -> u64 {
        let count = self.class.props.len();
        let frames = self.changed.iter().skip(slot as usize * count).take(count);
        let late = |frame: &u32| now.wrapping_sub(*frame) <= now.wrapping_sub(since);
        frames.enumerate().fold(0, |all, (at, frame)| all | u64::from(late(frame)) << at)
    }

    /// Keeps the present state as that of `frame`.
    pub(crate) fn remember(&mut self, slot: u32, frame: u32) {
        let ring = frame as usize % HISTORY;
        let words = self.class.words;
        let place = ring * self.history_slots + slot as usize;
        let from = slot as usize * words;
        self.history[place * words..][..words].copy_from_slice(&self.quant[from..from + words]);
        self.history_frames[place] = frame;
    }

    /// The state that was sent in `frame`, if it is kept: the newest one of that frame or before.
    /// Usually one look.
    pub(crate) fn state_at(&self, slot: u32, frame: u32, now: u32) -> Option<&[u64]> {
        let words = self.class.words;
        let mut at = frame;
        // A state as old as the ring is being overwritten in this very frame.
        while now.wrapping_sub(at) < HISTORY as u32 && at != NEVER {
            let place = at as usize % HISTORY * self.history_slots + slot as usize;
            if self.history_frames[place] == at {
                return Some(&self.history[place * words..][..words]);
            }
            at = at.wrapping_sub(1);
        }
        None
    }
}

/// Everything about objects that stages walk over, by network index.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) class: Vec<u16>,
    pub(crate) generation: Vec<u32>,
    pub(crate) slot: Vec<u32>,
    pub(crate) owner: Vec<u32>,
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) z: Vec<f32>,
    pub(crate) cull: Vec<f32>,
    pub(crate) prioritiser: Vec<u8>,
    /// Root of a sub-object, creation parent of an attached one; 0 for none.
    pub(crate) parent: Vec<u32>,
    /// Connections that have it in scope.
    pub(crate) refs: Vec<u32>,
    /// Connections whose receiver may know it.
    pub(crate) known: Vec<u32>,
    /// Properties with the condition `Custom` that are switched off.
    pub(crate) disabled: Vec<u64>,
    /// Marked since the last frame; of a dormant object since it fell asleep.
    pub(crate) dirty_mask: Vec<u64>,
    pub(crate) dirty: Sparse,
    pub(crate) alive: Bitmap,
    /// In scope of everybody whom no static filter excludes.
    pub(crate) always: Sparse,
    /// Its priority may be below the threshold: it is computed in every frame with a change.
    pub(crate) throttled: Bitmap,
    /// Not sent through common records: conditions by group, hidden references.
    pub(crate) special: Bitmap,
    /// Its class sends differences.
    pub(crate) delta: Bitmap,
    /// What of it is lost is sent again together.
    pub(crate) atomic: Bitmap,
    /// Sent less often when far away.
    pub(crate) lod: Bitmap,
    /// Others are in scope because it is, and the other way round.
    pub(crate) leads: Bitmap,
    pub(crate) follows: Bitmap,
    /// Its class gives some connections other properties than the rest.
    pub(crate) conditional: Bitmap,
    pub(crate) dormant: Bitmap,
    /// Dormant objects that the next frame takes for awake.
    pub(crate) flushing: BTreeSet<u32>,
    /// Properties of objects that fell asleep since the last frame, and that had changed since
    /// then: they are quantised already.
    pub(crate) settled: BTreeMap<u32, u64>,
    /// Destroyed with its last changes still to be sent.
    pub(crate) flush: Bitmap,
    pub(crate) destroy_reason: Vec<u8>,
    free: Vec<u32>,
}

impl Objects {
    /// Words of a bitmap over all indices.
    pub(crate) fn bitmap_words(&self) -> usize {
        self.class.len() / 64
    }

    /// An unused index, that which was given back last, or a new one of 1 to `max`.
    pub(crate) fn allocate(&mut self, max: u32) -> Option<u32> {
        if self.free.is_empty() {
            let first = self.class.len() as u32;
            if first > max || max == 0 {
                return None;
            }
            // Whole words of 64, so that loops over bitmaps and over arrays have the same bounds.
            let len = first as usize + 64;
            self.class.resize(len, 0);
            self.generation.resize(len, 0);
            self.slot.resize(len, 0);
            self.owner.resize(len, NOBODY);
            for axis in [&mut self.x, &mut self.y, &mut self.z, &mut self.cull] {
                axis.resize(len, 0.0);
            }
            self.prioritiser.resize(len, 0);
            self.parent.resize(len, 0);
            self.refs.resize(len, 0);
            self.known.resize(len, 0);
            self.disabled.resize(len, 0);
            self.dirty_mask.resize(len, 0);
            self.destroy_reason.resize(len, 0);
            for bitmap in [
                &mut self.alive,
                &mut self.throttled,
                &mut self.special,
                &mut self.delta,
                &mut self.atomic,
                &mut self.lod,
                &mut self.leads,
                &mut self.follows,
                &mut self.conditional,
                &mut self.dormant,
                &mut self.flush,
            ] {
                bitmap.grow(len / 64);
            }
            self.dirty.grow(len / 64);
            self.always.grow(len / 64);
            // Index 0 names nothing.
            let last = max.min(len as u32 - 1);
            self.free.extend((first.max(1)..=last).rev());
        }
        self.free.pop()
    }

    /// The object is dormant, and the next frame does not flush it.
    pub(crate) fn sleeps(&self, index: u32) -> bool {
        self.dormant.get(index) && !self.flushing.contains(&index)
    }

    /// The properties that changed when a dormant object fell asleep, and those of `mask` that may
    /// change now: marks of a sleeper stay until it wakes.
    #[cold]
    pub(crate) fn marks_of_sleeper(&mut self, index: u32, mask: u64) -> (u64, u64) {
        let settled = self.settled.remove(&index).unwrap_or(0);
        if self.alive.get(index) && self.sleeps(index) {
            self.dirty_mask[index as usize] = mask;
            return (settled, 0);
        }
        (settled, mask)
    }

    pub(crate) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }
}
