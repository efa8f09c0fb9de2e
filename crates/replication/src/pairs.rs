//! State of pairs of connection and object, only where there is something to remember.
//!
//! A pair that is up to date costs its bits in the scope bitmaps. Masks, priorities and baselines
//! live in pages of 64 objects that exist while one of them is used.

use crate::wire::bits_of;

const NONE: u32 = u32::MAX;

/// Properties that a receiver needs and that are not in flight, with the priority that has built up
/// meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Page of each bitmap word.
    index: Vec<u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Words with a page, in no order.
    active: Vec<u32>,
    /// The present frame.
    pub(crate) frame: u32,
}

#[derive(Clone, Debug)]
struct Page {
    bits: u64,
    /// Place in `active`.
    active: u32,
    masks: [u64; 64],
    priority: [f32; 64],
    /// Frame in which the oldest change became pending.
    since: [u32; 64],
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
        let frame = self.frame;
        let (page, bit) = (self.page(object / 64), object as usize % 64);
        if page.bits >> bit & 1 == 0 {
            page.bits |= 1 << bit;
            page.masks[bit] = 0;
            page.priority[bit] = 0.0;
            page.since[bit] = frame;
        }
        page.masks[bit] |= mask;
    }

    /// Frames for which something of the object, which must be pending, has waited.
    pub(crate) fn waited(&self, object: u32) -> u32 {
        let Some(page) = self.index.get(object as usize / 64).and_then(|at| self.pages.get(*at as usize))
        else {
            return 0;
        };
        if page.bits >> (object % 64) & 1 == 0 {
            return 0;
        }
        self.frame.wrapping_sub(page.since[object as usize % 64])
    }

    /// Adds to the priority and returns the sum. The object must be pending. What is negative or
    /// not a number could hold it back for ever, and counts nothing.
    pub(crate) fn grow(&mut self, object: u32, p: f32) -> f32 {
        let priority = &mut self.page(object / 64).priority[object as usize % 64];
        *priority += p.max(0.0);
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
                if self.pages.is_empty() {
                    // Growing one by one would go on for long where losses are rare.
                    self.pages.reserve(4);
                }
                self.pages.push(Page {
                    bits: 0,
                    active: 0,
                    masks: [0; 64],
                    priority: [0.0; 64],
                    since: [0; 64],
                });
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

/// Which states a receiver is known to hold, for the 64 objects of a word together:
/// objects that travel together were acknowledged together, so a few groups name the baselines of
/// all.
#[derive(Debug, Default)]
pub(crate) struct Bases {
    words: Vec<BaseWord>,
}

#[derive(Clone, Debug, Default)]
struct BaseWord {
    /// (frame, objects): the receiver holds these objects' states of that frame in full.
    held: Vec<(u32, u64)>,
    /// Something of these objects was lost and not sent again yet: no acknowledgement proves
    /// anything.
    broken: u64,
    /// (frame, objects): what was lost was sent again in that frame; acknowledgements of earlier
    /// ones prove nothing.
    resent: Vec<(u32, u64)>,
}

impl BaseWord {
    fn forget(&mut self, bits: u64) {
        take(&mut self.held, bits);
        take(&mut self.resent, bits);
    }
}

/// Takes `bits` out of all groups; empty ones go.
fn take(groups: &mut Vec<(u32, u64)>, bits: u64) {
    groups.retain_mut(|(_, members)| {
        *members &= !bits;
        *members != 0
    });
}

fn put(groups: &mut Vec<(u32, u64)>, frame: u32, bits: u64) {
    take(groups, bits);
    match groups.iter_mut().find(|(known, _)| *known == frame) {
        Some((_, members)) => *members |= bits,
        None => groups.push((frame, bits)),
    }
}

impl Bases {
    /// Groups of (frame, objects) of a word.
    #[inline]
    pub(crate) fn held(&self, word: u32) -> &[(u32, u64)] {
        self.words.get(word as usize).map_or(&[], |word| &word.held)
    }

    /// The frame whose state the receiver holds.
    pub(crate) fn frame(&self, object: u32) -> Option<u32> {
        let groups = self.held(object / 64);
        groups.iter().find(|(_, members)| members >> (object % 64) & 1 != 0).map(|(frame, _)| *frame)
    }

    fn at(&mut self, word: u32) -> &mut BaseWord {
        let word = word as usize;
        if self.words.len() <= word {
            self.words.resize_with(word + 1, BaseWord::default);
        }
        &mut self.words[word]
    }

    /// Everything of these objects up to `frame` has arrived, unless something is missing.
    pub(crate) fn delivered(&mut self, word: u32, bits: u64, frame: u32) {
        let at = self.at(word);
        let mut whole = bits & !at.broken;
        for (since, members) in &mut at.resent {
            if since.wrapping_sub(frame) as i32 > 0 {
                whole &= !*members;
            } else {
                *members &= !bits;
            }
        }
        at.resent.retain(|(_, members)| *members != 0);
        if whole != 0 {
            put(&mut at.held, frame, whole);
        }
    }

    /// Something of these objects was lost.
    pub(crate) fn lost(&mut self, word: u32, bits: u64) {
        let at = self.at(word);
        at.broken |= bits;
        take(&mut at.resent, bits);
    }

    /// What was lost of these objects has been sent again, in `frame` at the latest.
    pub(crate) fn sent_again(&mut self, word: u32, bits: u64, frame: u32) {
        let at = self.at(word);
        let bits = bits & at.broken;
        if bits != 0 {
            at.broken &= !bits;
            put(&mut at.resent, frame, bits);
        }
    }

    /// The receiver's old states are of no use.
    pub(crate) fn invalidate(&mut self, object: u32) {
        let at = self.at(object / 64);
        at.forget(1 << (object % 64));
        at.broken |= 1 << (object % 64);
    }

    /// The object begins anew.
    pub(crate) fn reset(&mut self, object: u32) {
        let at = self.at(object / 64);
        at.forget(1 << (object % 64));
        at.broken &= !(1 << (object % 64));
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let groups = |word: &BaseWord| (word.held.capacity() + word.resent.capacity()) * 16;
        self.words.capacity() * size_of::<BaseWord>() + self.words.iter().map(groups).sum::<usize>()
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
