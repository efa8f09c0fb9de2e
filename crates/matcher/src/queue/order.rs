//! A partition's tickets in order, in chunks: a search walks outwards through memory that lies
//! together.

use smallvec::SmallVec;

use super::pool::{Hot, Key};

/// Most tickets of a chunk: moving half of one for an insertion costs less than finding the place.
const CHUNK_MAX: usize = 128;
/// Neighbouring chunks that have so few together become one.
const MERGE_MAX: usize = CHUNK_MAX / 2;

/// Sorted by key. No chunk is empty. Cost of a change or look-up: O(log n), and a chunk is moved at
/// most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// The first key of each chunk, apart from the chunks: all of them fit into the nearest cache.
    firsts: Vec<Key>,
    chunks: Vec<Vec<(Key, Hot)>>,
    /// Kinds of the tickets of each chunk together: a walk passes over a chunk that has nothing it
    /// looks for. Never less than the truth; it may be more after a change in place.
    kinds: Vec<Kinds>,
    len: usize,
}

/// Regions and positions of some tickets, or those that a walk looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub(crate) mask: u64,
    pub(crate) wants: u16,
}

impl Kinds {
    /// A walk that looks for everything.
    pub(crate) const ALL: Kinds = Kinds { mask: u64::MAX, wants: 0 };

    fn of(tickets: &[(Key, Hot)]) -> Kinds {
        let add = |kinds: Kinds, (_, hot): &(Key, Hot)| kinds.with(hot);
        tickets.iter().fold(Kinds::default(), add)
    }

    fn with(self, hot: &Hot) -> Kinds {
        Kinds { mask: self.mask | hot.mask, wants: self.wants | hot.wants }
    }

    /// Returns whether what has these kinds may have one that is looked for. No position is looked
    /// for where `wanted` names none.
    #[inline]
    fn may_have(self, wanted: Kinds) -> bool {
        self.mask & wanted.mask != 0 && (wanted.wants == 0 || self.wants & wanted.wants != 0)
    }
}

impl Order {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Chunk and place where a key is, or where it would be inserted.
    fn find(&self, key: Key) -> (usize, Result<usize, usize>) {
        let chunk = self.firsts.partition_point(|first| *first <= key).saturating_sub(1);
        let place =
            self.chunks.get(chunk).map_or(Err(0), |all| all.binary_search_by_key(&key, |(key, _)| *key));
        (chunk, place)
    }

    /// Finds several tickets step by step together, so that the next [`get`](Order::get) of each
    /// meets warm memory.
    pub(crate) fn find_all(orders: &[(&Order, Key)]) {
        let mut parts: SmallVec<[_; 16]> = orders
            .iter()
            .map(|(order, key)| {
                let chunk = order.firsts.partition_point(|first| first <= key).saturating_sub(1);
                (order.chunks.get(chunk).map_or(&[][..], |chunk| chunk), *key)
            })
            .collect();
        for _ in 0..CHUNK_MAX.ilog2() {
            for (part, key) in &mut parts {
                let (lower, upper) = part.split_at(part.len() / 2);
                *part = if upper.first().is_some_and(|(first, _)| first <= key) { upper } else { lower };
            }
        }
        std::hint::black_box(parts);
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Hot> {
        let (chunk, place) = self.find(key);
        Some(&self.chunks[chunk][place.ok()?].1)
    }

    /// Changes a ticket in its place. Whether it is there.
    pub(crate) fn change(&mut self, key: Key, change: impl FnOnce(&mut Hot)) -> bool {
        let (chunk, place) = self.find(key);
        let Ok(place) = place else { return false };
        let hot = &mut self.chunks[chunk][place].1;
        change(hot);
        self.kinds[chunk] = self.kinds[chunk].with(hot);
        true
    }

    /// Adds a ticket that is not there.
    pub(crate) fn insert(&mut self, key: Key, hot: Hot) {
        let (mut chunk, place) = self.find(key);
        let mut place = place.unwrap_or_else(|place| place);
        self.len += 1;
        if self.chunks.is_empty() {
            self.firsts.push(key);
            self.chunks.push(vec![(key, hot)]);
            self.kinds.push(Kinds::default().with(&hot));
            return;
        }
        if self.chunks[chunk].len() == CHUNK_MAX {
            let upper = self.chunks[chunk].split_off(CHUNK_MAX / 2);
            self.firsts.insert(chunk + 1, upper[0].0);
            self.kinds.insert(chunk + 1, Kinds::of(&upper));
            self.chunks.insert(chunk + 1, upper);
            self.kinds[chunk] = Kinds::of(&self.chunks[chunk]);
            if place > CHUNK_MAX / 2 {
                (chunk, place) = (chunk + 1, place - CHUNK_MAX / 2);
            }
        }
        self.chunks[chunk].insert(place, (key, hot));
        self.kinds[chunk] = self.kinds[chunk].with(&hot);
        self.firsts[chunk] = self.chunks[chunk][0].0;
    }

    /// Takes tickets out, of which the keys are in order: a chunk that has several is moved once.
    /// Says which were there.
    pub(crate) fn remove(&mut self, mut keys: &[Key], mut removed: impl FnMut(Key, Hot)) {
        while let Some(first) = keys.first() {
            let (chunk, place) = self.find(*first);
            let Some(all) = self.chunks.get_mut(chunk) else { return };
            let end = self.firsts.get(chunk + 1);
            let (own, later) = keys.split_at(keys.partition_point(|key| end.is_none_or(|end| key < end)));
            keys = later;
            let place = place.unwrap_or_else(|place| place);
            let (mut own, mut kept) = (own.iter().peekable(), place);
            for at in place..all.len() {
                let (key, hot) = all[at];
                while own.next_if(|own| **own < key).is_some() {}
                if own.next_if_eq(&&key).is_some() {
                    removed(key, hot);
                } else if own.peek().is_none() {
                    all.copy_within(at.., kept);
                    kept += all.len() - at;
                    break;
                } else {
                    all[kept] = all[at];
                    kept += 1;
                }
            }
            self.len -= all.len() - kept;
            all.truncate(kept);
            self.tidy(chunk);
        }
    }

    /// A chunk has become smaller.
    fn tidy(&mut self, chunk: usize) {
        let left = self.chunks[chunk].len();
        if left == 0 {
            self.chunks.remove(chunk);
            self.firsts.remove(chunk);
            self.kinds.remove(chunk);
            return;
        }
        self.kinds[chunk] = Kinds::of(&self.chunks[chunk]);
        self.firsts[chunk] = self.chunks[chunk][0].0;
        if self.chunks.get(chunk + 1).is_some_and(|next| left + next.len() <= MERGE_MAX) {
            let next = self.chunks.remove(chunk + 1);
            self.firsts.remove(chunk + 1);
            let kinds = self.kinds.remove(chunk + 1);
            self.kinds[chunk].mask |= kinds.mask;
            self.kinds[chunk].wants |= kinds.wants;
            self.chunks[chunk].extend(next);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Key, Hot)> {
        self.chunks.iter().flatten()
    }

    /// Place where those before a key end: chunk, and place in it.
    fn end_before(&self, key: Key) -> (usize, usize) {
        let (chunk, place) = self.find(key);
        (chunk, place.unwrap_or_else(|place| place))
    }

    /// Place where those after a key begin.
    fn begin_after(&self, key: Key) -> (usize, usize) {
        let (chunk, place) = self.find(key);
        (chunk, place.map_or_else(|place| place, |place| place + 1))
    }

    /// Those before a key and those after it, the nearest first.
    pub(crate) fn around(&self, key: Key) -> (Before<'_>, After<'_>) {
        (self.before(key, Kinds::ALL), self.after(key, Kinds::ALL))
    }

    /// Those before a key, the nearest first, without chunks that have nothing of what is wanted.
    pub(crate) fn before(&self, key: Key, wanted: Kinds) -> Before<'_> {
        let (chunk, place) = self.end_before(key);
        let own = self.chunks.get(chunk).map_or(&[][..], |all| &all[..place]);
        Before { own, others: &self.chunks[..chunk], kinds: &self.kinds[..chunk], wanted }
    }

    /// Those after a key, the nearest first, without chunks that have nothing of what is wanted.
    pub(crate) fn after(&self, key: Key, wanted: Kinds) -> After<'_> {
        let (chunk, place) = self.begin_after(key);
        let own = self.chunks.get(chunk).map_or(&[][..], |all| &all[place..]);
        let others = self.chunks.get(chunk + 1..).unwrap_or_default();
        After { own, others, kinds: self.kinds.get(chunk + 1..).unwrap_or_default(), wanted }
    }

    /// The same, to be changed.
    pub(crate) fn before_mut(&mut self, key: Key) -> impl Iterator<Item = &mut (Key, Hot)> {
        let (chunk, place) = self.end_before(key);
        let (lower, rest) = self.chunks.split_at_mut(chunk);
        let own = rest.first_mut().map_or(&mut [][..], |all| &mut all[..place]);
        own.iter_mut().rev().chain(lower.iter_mut().rev().flat_map(|all| all.iter_mut().rev()))
    }

    /// The same, to be changed.
    pub(crate) fn after_mut(&mut self, key: Key) -> impl Iterator<Item = &mut (Key, Hot)> {
        let (chunk, place) = self.begin_after(key);
        let mut rest = self.chunks[chunk..].iter_mut();
        let own = rest.next().map_or(&mut [][..], |all| &mut all[place..]);
        own.iter_mut().chain(rest.flatten())
    }
}

/// Those before a key, the nearest first: the rest of its chunk, then the chunks before.
pub(crate) struct Before<'a> {
    own: &'a [(Key, Hot)],
    others: &'a [Vec<(Key, Hot)>],
    kinds: &'a [Kinds],
    wanted: Kinds,
}

impl<'a> Iterator for Before<'a> {
    type Item = &'a (Key, Hot);

    #[inline]
    fn next(&mut self) -> Option<&'a (Key, Hot)> {
        loop {
            if let Some((next, own)) = self.own.split_last() {
                self.own = own;
                return Some(next);
            }
            let (kinds, rest) = self.kinds.split_last()?;
            let (next, others) = self.others.split_last()?;
            (self.kinds, self.others) = (rest, others);
            if kinds.may_have(self.wanted) {
                self.own = next;
            }
        }
    }
}

/// Those after a key, the nearest first.
pub(crate) struct After<'a> {
    own: &'a [(Key, Hot)],
    others: &'a [Vec<(Key, Hot)>],
    kinds: &'a [Kinds],
    wanted: Kinds,
}

impl<'a> Iterator for After<'a> {
    type Item = &'a (Key, Hot);

    #[inline]
    fn next(&mut self) -> Option<&'a (Key, Hot)> {
        loop {
            if let Some((next, own)) = self.own.split_first() {
                self.own = own;
                return Some(next);
            }
            let (kinds, rest) = self.kinds.split_first()?;
            let (next, others) = self.others.split_first()?;
            (self.kinds, self.others) = (rest, others);
            if kinds.may_have(self.wanted) {
                self.own = next;
            }
        }
    }
}

impl FromIterator<(Key, Hot)> for Order {
    /// Of tickets in order.
    fn from_iter<I: IntoIterator<Item = (Key, Hot)>>(all: I) -> Order {
        let mut order = Order::default();
        for (key, hot) in all {
            match order.chunks.last_mut() {
                Some(last) if last.len() < CHUNK_MAX / 2 => last.push((key, hot)),
                _ => {
                    order.firsts.push(key);
                    order.chunks.push(vec![(key, hot)]);
                }
            }
            order.len += 1;
        }
        order.kinds = order.chunks.iter().map(|chunk| Kinds::of(chunk)).collect();
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound::{Excluded, Unbounded};

    use throng_stdx::Rng;

    use super::*;
    use crate::key::TicketKey;

    fn hot(mask: u64) -> Hot {
        Hot {
            size: 1,
            level: 0,
            idle: false,
            cut: false,
            avoids: false,
            wants: mask as u16 & 7,
            mask: mask | 1,
        }
    }

    #[test]
    fn it_does_what_an_ordered_map_does() {
        let (mut rng, mut order, mut map) = (Rng::new(1), Order::default(), BTreeMap::new());
        for step in 0..40_000_u64 {
            // Grows, then shrinks, again and again; few values, so that keys also differ by ticket
            // only.
            let (value, place) = (rng.below(50), rng.below(40) as u32);
            let key = (value, TicketKey::new(place));
            let grows = rng.chance(if step / 4_000 % 2 == 0 { 0.8 } else { 0.2 });
            if grows && !map.contains_key(&key) {
                order.insert(key, hot(step));
                map.insert(key, hot(step));
            } else if !grows {
                // Alone, or with neighbours and some that are not there.
                let more = if rng.chance(0.1) { 1 + rng.below(12) as u32 } else { 0 };
                let keys: Vec<Key> =
                    (place..=place + more).map(|ticket| (value, TicketKey::new(ticket))).collect();
                let mut removed = Vec::new();
                order.remove(&keys, |key, hot| removed.push((key, hot)));
                let there = keys.iter().filter_map(|key| Some((*key, map.remove(key)?)));
                assert_eq!(removed, there.collect::<Vec<_>>());
            }
            assert_eq!((order.len(), order.is_empty()), (map.len(), map.is_empty()));
            assert_eq!(order.get(key), map.get(&key));
            if order.change(key, |hot| hot.mask += 1) {
                map.get_mut(&key).unwrap().mask += 1;
            }
            let wanted = Kinds { mask: 6, wants: 1 << rng.below(3) };
            let is_wanted =
                |(_, hot): &&(Key, Hot)| hot.mask & wanted.mask != 0 && hot.wants & wanted.wants != 0;
            let all = order.before(key, Kinds::ALL).filter(is_wanted).map(|(key, _)| *key);
            assert!(
                order.before(key, wanted).filter(is_wanted).map(|(key, _)| *key).eq(all),
                "no wanted one is passed over"
            );
            let all = order.after(key, Kinds::ALL).filter(is_wanted).map(|(key, _)| *key);
            assert!(order.after(key, wanted).filter(is_wanted).map(|(key, _)| *key).eq(all));
            let pair = |(key, hot): (&Key, &Hot)| (*key, *hot);
            let before: Vec<_> = map.range(..key).rev().take(9).map(pair).collect();
            let after: Vec<_> = map.range((Excluded(key), Unbounded)).take(9).map(pair).collect();
            let (lower, upper) = order.around(key);
            assert_eq!(lower.take(9).copied().collect::<Vec<_>>(), before);
            assert_eq!(upper.take(9).copied().collect::<Vec<_>>(), after);
            assert_eq!(order.before_mut(key).take(9).map(|found| *found).collect::<Vec<_>>(), before);
            assert_eq!(order.after_mut(key).take(9).map(|found| *found).collect::<Vec<_>>(), after);
        }
        let all: Vec<(Key, Hot)> = map.into_iter().collect();
        assert_eq!(order.iter().copied().collect::<Vec<_>>(), all);
        assert!(order.chunks.len() <= 2 * all.len().div_ceil(MERGE_MAX) + 1, "{} chunks", order.chunks.len());
        let rebuilt: Order = all.iter().copied().collect();
        assert_eq!(rebuilt.iter().copied().collect::<Vec<_>>(), all);
    }
}
