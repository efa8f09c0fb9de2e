//! What a connection remembers of an object, only where there is something to remember.
//!
//! A pair that is up to date costs its bits in the scope bitmaps. Masks, priorities and baselines live in pages of 64
//! objects that exist while one of them is used.

use crate::wire::bits_of;

const NONE: u32 = u32::MAX;

/// Properties that a receiver needs and that are not in flight, with the priority that has built up meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Page of each bitmap word.
    index: Vec<u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Words with a page, in no order.
    active: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Page {
    bits: u64,
    /// Place in `active`.
    active: u32,
    masks: [u64; 64],
    priority: [f32; 64],
}

impl Pending {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Objects of `word` with something pending.
    #[inline]
    pub(crate) fn bits(&self, word: u32) -> u64 {
        match self.index.get(word as usize) {
            Some(page) if *page != NONE => self.pages[*page as usize].bits,
            _ => 0,
        }
    }

    /// Words with something pending, ascending, into `out`.
    pub(crate) fn words(&self, out: &mut Vec<u32>) {
        out.clear();
        out.extend_from_slice(&self.active);
        out.sort_unstable();
    }

    pub(crate) fn mask(&self, object: u32) -> u64 {
        if self.bits(object / 64) >> (object % 64) & 1 == 0 {
            return 0;
        }
        self.pages[self.index[object as usize / 64] as usize].masks[object as usize % 64]
    }

    pub(crate) fn add(&mut self, object: u32, mask: u64) {
        if mask == 0 {
            return;
        }
        let (page, bit) = (self.page(object / 64), object as usize % 64);
        if page.bits >> bit & 1 == 0 {
            page.bits |= 1 << bit;
            page.masks[bit] = 0;
            page.priority[bit] = 0.0;
        }
        page.masks[bit] |= mask;
    }

    /// Adds to the priority and returns the sum. The object must be pending.
    pub(crate) fn grow(&mut self, object: u32, p: f32) -> f32 {
        let priority = &mut self.page(object / 64).priority[object as usize % 64];
        *priority += p;
        *priority
    }

    /// Nothing is pending any more.
    pub(crate) fn remove(&mut self, object: u32) {
        let word = object / 64;
        let Some(&at) = self.index.get(word as usize).filter(|at| **at != NONE) else { return };
        let page = &mut self.pages[at as usize];
        page.bits &= !(1 << (object % 64));
        if page.bits == 0 {
            let place = page.active as usize;
            self.active.swap_remove(place);
            if let Some(moved) = self.active.get(place) {
                let moved = self.index[*moved as usize];
                self.pages[moved as usize].active = place as u32;
            }
            self.index[word as usize] = NONE;
            self.free.push(at);
        }
    }

    fn page(&mut self, word: u32) -> &mut Page {
        if self.index.len() <= word as usize {
            self.index.resize(word as usize + 1, NONE);
        }
        if self.index[word as usize] == NONE {
            let at = self.free.pop().unwrap_or_else(|| {
                self.pages.push(Page { bits: 0, active: 0, masks: [0; 64], priority: [0.0; 64] });
                self.pages.len() as u32 - 1
            });
            self.pages[at as usize].active = self.active.len() as u32;
            self.active.push(word);
            self.index[word as usize] = at;
        }
        &mut self.pages[self.index[word as usize] as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.active.iter().flat_map(|word| bits_of(self.bits(*word)).map(move |bit| word * 64 + bit as u32))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + (self.index.capacity() + self.active.capacity()) * 4
    }
}

/// What a receiver is known to hold of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Newest frame whose state the receiver holds in full; [`Base::NEVER`] for none.
    pub(crate) frame: u32,
    /// Acknowledgements of frames before this one prove nothing: something of the object was lost and sent again in
    /// this frame. [`Base::NEVER`] while it was not sent again.
    pub(crate) mark: u32,
}

impl Base {
    pub(crate) const NEVER: u32 = u32::MAX;
    pub(crate) const UNKNOWN: Self = Self { frame: Self::NEVER, mark: 0 };
}

/// Baselines of all pairs of a connection.
#[derive(Debug, Default)]
pub(crate) struct Bases {
    index: Vec<u32>,
    pages: Vec<[Base; 64]>,
}

impl Bases {
    pub(crate) fn get(&self, object: u32) -> Base {
        match self.index.get(object as usize / 64) {
            Some(page) if *page != NONE => self.pages[*page as usize][object as usize % 64],
            _ => Base::UNKNOWN,
        }
    }

    pub(crate) fn at(&mut self, object: u32) -> &mut Base {
        let word = object as usize / 64;
        if self.index.len() <= word {
            self.index.resize(word + 1, NONE);
        }
        if self.index[word] == NONE {
            self.index[word] = self.pages.len() as u32;
            self.pages.push([Base::UNKNOWN; 64]);
        }
        &mut self.pages[self.index[word] as usize][object as usize % 64]
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<[Base; 64]>() + self.index.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn pages_agree_with_a_map() {
        let mut rng = throng_stdx::Rng::new(8);
        let (mut pending, mut model) = (Pending::default(), BTreeMap::<u32, u64>::new());
        for _ in 0..20_000 {
            let object = rng.below(1000) as u32;
            if rng.chance(0.5) {
                let mask = 1 << rng.below(64);
                pending.add(object, mask);
                *model.entry(object).or_default() |= mask;
            } else {
                pending.remove(object);
                model.remove(&object);
            }
            assert_eq!(pending.mask(object), model.get(&object).copied().unwrap_or(0));
            assert_eq!(pending.is_empty(), model.is_empty());
        }
        let mut objects: Vec<u32> = pending.iter().collect();
        objects.sort_unstable();
        assert!(objects.into_iter().eq(model.into_keys()));
    }
}
