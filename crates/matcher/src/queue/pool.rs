//! Tickets that search: ordered by the main number, so that a search looks at near ones only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use serde::{Deserialize, Serialize};

use super::compiled::Compiled;
use super::facts::Facts;
use super::ruleset::Clock;
use crate::info::Text;
use crate::slab::Slab;

/// Where a ticket stands in its partition: its value as ordered bits, then its index.
pub(crate) type Key = (u64, u32);

/// What a search looks at first, beside the order: a few bytes that lie together for neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hot {
    pub(crate) size: u8,
    pub(crate) level: u8,
    /// It was an anchor, found nothing, and nothing near it has changed since.
    pub(crate) idle: bool,
    /// That search ended at its limit, so that what leaves may bring others into its reach.
    pub(crate) cut: bool,
    /// Regions that it can play in.
    pub(crate) mask: u64,
}

/// Who is tried next, in the order of fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Anchor {
    /// Backfills of high priority before all, those of low priority after.
    pub(crate) class: u8,
    /// Minus the priority.
    pub(crate) rank: i8,
    pub(crate) created: u64,
    pub(crate) backfill: bool,
    pub(crate) index: u32,
}

/// Tickets that may meet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Partition {
    pub(crate) key: Vec<Text>,
    pub(crate) index: BTreeMap<Key, Hot>,
    idle: u32,
    cuts: u32,
    /// Tickets by priority.
    ranks: BTreeMap<i8, u32>,
    /// Grows with every ticket that comes: a backfill looks again when it has.
    pub(crate) arrivals: u64,
    pub(crate) backfills: u32,
}

/// The tickets of a queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub(crate) partitions: Slab<Partition>,
    by_key: BTreeMap<Vec<Text>, u32>,
    /// Anchors to try.
    pub(crate) dirty: BTreeSet<Anchor>,
    pub(crate) size: u64,
}

/// A number as bits in the number's order.
pub(crate) fn ordered(value: f64) -> u64 {
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The number of such bits.
pub(crate) fn number(ordered: u64) -> f64 {
    f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
}

impl Compiled {
    /// What neighbours see first of a party at a level.
    pub(crate) fn hot(&self, facts: &Facts, level: u8) -> Hot {
        // Where the oldest decides, a match may get values beyond those of this ticket's own waiting time.
        let widest =
            if self.set.expand_clock == Clock::Oldest { self.levels.len() - 1 } else { usize::from(level) };
        let max_ms = self.levels[widest].max_ms;
        let mask = if max_ms.is_finite() { facts.regions_within(max_ms) } else { u64::MAX };
        Hot { size: facts.size as u8, level, idle: false, cut: false, mask }
    }

    /// How far a party of a level may be from another of the match.
    pub(crate) fn reach(&self, level: u8) -> f64 {
        match self.set.expand_clock {
            Clock::Oldest => self.levels[self.levels.len() - 1].near,
            Clock::Each | Clock::Newest => self.levels[usize::from(level)].near,
        }
    }

    /// Whether two tickets can be in one match, as far as is seen at first sight.
    #[inline]
    pub(crate) fn eligible(&self, a: &Hot, b: &Hot, distance: f64) -> bool {
        a.mask & b.mask != 0 && distance <= self.reach(a.level) && distance <= self.reach(b.level)
    }
}

impl Pool {
    /// The partition of a key, made if there is none.
    pub(crate) fn partition(&mut self, key: Vec<Text>) -> u32 {
        if let Some(index) = self.by_key.get(&key) {
            return *index;
        }
        let index = self.partitions.insert(Partition { key: key.clone(), ..Partition::default() });
        self.by_key.insert(key, index);
        index
    }

    /// Forgets a partition that nothing is in.
    pub(crate) fn release(&mut self, partition: u32) {
        let empty = self.partitions.get(partition).is_some_and(|p| p.index.is_empty() && p.backfills == 0);
        if empty && let Some(gone) = self.partitions.remove(partition) {
            self.by_key.remove(&gone.key);
        }
    }

    /// Adds a ticket: it is tried, and so are idle ones that might meet it.
    pub(crate) fn insert(
        &mut self,
        compiled: &Compiled,
        partition: u32,
        key: Key,
        hot: Hot,
        anchor: Anchor,
        anchor_of: impl Fn(u32) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        part.index.insert(key, hot);
        part.arrivals += 1;
        *part.ranks.entry(anchor.rank).or_default() += 1;
        self.size += 1;
        self.dirty.insert(anchor);
        self.wake(compiled, partition, key, &hot, anchor_of);
    }

    /// Marks idle neighbours that might meet a ticket that is new or has relaxed.
    fn wake(
        &mut self,
        compiled: &Compiled,
        partition: u32,
        key: Key,
        hot: &Hot,
        anchor_of: impl Fn(u32) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        if part.idle == 0 {
            return;
        }
        let value = number(key.0);
        let dirty = &mut self.dirty;
        let (idle, cuts) = (&mut part.idle, &mut part.cuts);
        let mut look = |found: &Key, other: &mut Hot| {
            if other.idle && compiled.eligible(hot, other, (number(found.0) - value).abs()) {
                *idle -= 1;
                *cuts -= u32::from(other.cut);
                (other.idle, other.cut) = (false, false);
                dirty.insert(anchor_of(found.1));
            }
        };
        let reach = compiled.set.scan_limit * VISITS_PER_STEP;
        let far = compiled.reach(hot.level);
        for (found, other) in part.index.range_mut(..key).rev().take(reach) {
            if value - number(found.0) > far {
                break;
            }
            look(found, other);
        }
        for (found, other) in part.index.range_mut((Excluded(key), Unbounded)).take(reach) {
            if number(found.0) - value > far {
                break;
            }
            look(found, other);
        }
    }

    /// A ticket's level grew.
    pub(crate) fn relax(
        &mut self,
        compiled: &Compiled,
        partition: u32,
        key: Key,
        fresh: Hot,
        anchor: Anchor,
        anchor_of: impl Fn(u32) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        if let Some(hot) = part.index.get_mut(&key) {
            part.idle -= u32::from(hot.idle);
            part.cuts -= u32::from(hot.cut);
            *hot = fresh;
            self.dirty.insert(anchor);
            self.wake(compiled, partition, key, &fresh, anchor_of);
        }
    }

    /// Notes that a ticket as an anchor found nothing.
    pub(crate) fn rest(&mut self, partition: u32, key: Key, cut: bool) {
        let part = &mut self.partitions[partition];
        if let Some(hot) = part.index.get_mut(&key)
            && !hot.idle
        {
            (hot.idle, hot.cut) = (true, cut);
            part.idle += 1;
            part.cuts += u32::from(cut);
        }
    }

    /// Takes a ticket out. Idle ones whose search had ended before it may see others now.
    pub(crate) fn remove(
        &mut self,
        compiled: &Compiled,
        partition: u32,
        key: Key,
        anchor: Anchor,
        anchor_of: impl Fn(u32) -> Anchor,
    ) {
        self.dirty.remove(&anchor);
        let part = &mut self.partitions[partition];
        let Some(hot) = part.index.remove(&key) else { return };
        self.size -= 1;
        part.idle -= u32::from(hot.idle);
        part.cuts -= u32::from(hot.cut);
        if let Some(count) = part.ranks.get_mut(&anchor.rank) {
            *count -= 1;
            if *count == 0 {
                part.ranks.remove(&anchor.rank);
            }
        }
        if part.cuts > 0 {
            let reach = compiled.set.scan_limit * VISITS_PER_STEP;
            let dirty = &mut self.dirty;
            let (idle, cuts) = (&mut part.idle, &mut part.cuts);
            let mut look = |(found, other): (&Key, &mut Hot)| {
                if other.cut {
                    (other.idle, other.cut) = (false, false);
                    *idle -= 1;
                    *cuts -= 1;
                    dirty.insert(anchor_of(found.1));
                }
            };
            part.index.range_mut(..key).rev().take(reach).for_each(&mut look);
            part.index.range_mut((Excluded(key), Unbounded)).take(reach).for_each(&mut look);
        }
        self.release(partition);
    }

    /// Tickets of a partition that are considered before a new one of a priority.
    pub(crate) fn ahead(&self, partition: u32, rank: i8) -> u64 {
        let ranks = &self.partitions[partition].ranks;
        ranks.range(..=rank).map(|(_, count)| u64::from(*count)).sum()
    }
}

/// Neighbours that may be passed over for one that counts against the scan limit.
pub(crate) const VISITS_PER_STEP: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order_as_bits() {
        let values = [f64::NEG_INFINITY, -1e300, -2.5, -0.0, 1e-300, 2.5, 1e300, f64::INFINITY];
        for pair in values.windows(2) {
            assert!(ordered(pair[0]) < ordered(pair[1]), "{pair:?}");
        }
        assert_eq!(ordered(-0.0), ordered(0.0));
        for value in values {
            assert_eq!(number(ordered(value)), value);
        }
    }
}
