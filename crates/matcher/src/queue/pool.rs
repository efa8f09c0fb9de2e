//! Tickets that search: ordered by the main number, so that a search looks at near ones only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::anchors::{Anchor, Anchors};
use super::compiled::Compiled;
use super::facts::Facts;
use super::order::Order;
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
    /// Somebody of it avoids somebody.
    pub(crate) avoids: bool,
    /// Regions that it can play in.
    pub(crate) mask: u64,
}

/// Tickets that may meet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Partition {
    pub(crate) key: Vec<Text>,
    pub(crate) order: Order,
    idle: u32,
    cuts: u32,
    /// Tickets by priority.
    ranks: BTreeMap<i8, u32>,
    /// Tickets by number of players.
    sizes: BTreeMap<u8, u32>,
    /// Grows with every ticket that comes or relaxes: a backfill looks again when it has.
    pub(crate) arrivals: u64,
    pub(crate) backfills: u32,
}

/// The tickets of a queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub(crate) partitions: Slab<Partition>,
    by_key: BTreeMap<Vec<Text>, u32>,
    /// Anchors to try. Those of tickets that left are passed over when their turn comes, which is within a tick.
    pub(crate) dirty: Anchors,
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
        Hot { size: facts.size as u8, level, idle: false, cut: false, avoids: facts.avoids, mask }
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
        let empty = self.partitions.get(partition).is_some_and(|p| p.order.is_empty() && p.backfills == 0);
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
        part.order.insert(key, hot);
        part.arrivals += 1;
        *part.ranks.entry(anchor.rank).or_default() += 1;
        *part.sizes.entry(hot.size).or_default() += 1;
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
        let mut look = |(found, other): &mut (Key, Hot)| {
            if other.idle && compiled.eligible(hot, other, (number(found.0) - value).abs()) {
                *idle -= 1;
                *cuts -= u32::from(other.cut);
                (other.idle, other.cut) = (false, false);
                dirty.insert(anchor_of(found.1));
            }
        };
        let reach = compiled.set.scan_limit * VISITS_PER_STEP;
        let far = compiled.reach(hot.level);
        let is_near = |found: &&mut (Key, Hot)| (number(found.0.0) - value).abs() <= far;
        part.order.before_mut(key).take(reach).take_while(is_near).for_each(&mut look);
        part.order.after_mut(key).take(reach).take_while(is_near).for_each(&mut look);
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
        if let Some(hot) = part.order.get_mut(key) {
            part.arrivals += 1;
            part.idle -= u32::from(hot.idle);
            part.cuts -= u32::from(hot.cut);
            if hot.idle {
                self.dirty.insert(anchor);
            }
            *hot = fresh;
            self.wake(compiled, partition, key, &fresh, anchor_of);
        }
    }

    /// Notes that a ticket as an anchor found nothing.
    pub(crate) fn rest(&mut self, partition: u32, key: Key, cut: bool) {
        let part = &mut self.partitions[partition];
        if let Some(hot) = part.order.get_mut(key)
            && !hot.idle
        {
            (hot.idle, hot.cut) = (true, cut);
            part.idle += 1;
            part.cuts += u32::from(cut);
        }
    }

    /// Takes tickets of a partition out, of which the keys are in order. Idle ones whose search had ended before them may
    /// see others now.
    pub(crate) fn remove(
        &mut self,
        compiled: &Compiled,
        partition: u32,
        keys: &[Key],
        anchor_of: impl Fn(u32) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        let Partition { order, idle, cuts, ranks, sizes, .. } = part;
        // Mostly all are of one priority and size: each is counted when another comes.
        let (mut rank, mut size) = ((0, 0), (0, 0));
        order.remove(keys, |key, hot| {
            self.size -= 1;
            *idle -= u32::from(hot.idle);
            *cuts -= u32::from(hot.cut);
            count(ranks, &mut rank, anchor_of(key.1).rank);
            count(sizes, &mut size, hot.size);
        });
        take(ranks, rank);
        take(sizes, size);
        for key in keys {
            if part.cuts == 0 {
                break;
            }
            let reach = compiled.set.scan_limit * VISITS_PER_STEP;
            let dirty = &mut self.dirty;
            let (idle, cuts) = (&mut part.idle, &mut part.cuts);
            let mut look = |(found, other): &mut (Key, Hot)| {
                if other.cut {
                    (other.idle, other.cut) = (false, false);
                    *idle -= 1;
                    *cuts -= 1;
                    dirty.insert(anchor_of(found.1));
                }
            };
            part.order.before_mut(*key).take(reach).for_each(&mut look);
            part.order.after_mut(*key).take(reach).for_each(&mut look);
        }
        self.release(partition);
    }

    /// Tickets of a partition that are considered before a new one of a priority.
    pub(crate) fn ahead(&self, partition: u32, rank: i8) -> u64 {
        let ranks = &self.partitions[partition].ranks;
        ranks.range(..=rank).map(|(_, count)| u64::from(*count)).sum()
    }
}

impl Partition {
    /// Sizes of the parties that are here.
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes.keys().copied().collect()
    }
}

/// Sizes of parties, as a set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes(u64);

impl FromIterator<u8> for Sizes {
    /// Of sizes from 1 to 64, the most that a ticket has.
    fn from_iter<I: IntoIterator<Item = u8>>(sizes: I) -> Sizes {
        Sizes(sizes.into_iter().fold(0, |set, size| set | 1 << ((size - 1) % 64)))
    }
}

impl Sizes {
    fn has_ones(self) -> bool {
        self.0 & 1 == 1
    }

    /// The numbers of players, up to `most`, that parties of these sizes make together, however many there are: bit n for n.
    fn sums(self, most: u32) -> u128 {
        let mut sums = 1_u128;
        for size in (1..=64).filter(|size| self.0 >> (size - 1) & 1 == 1) {
            // One more, then two more, then four: every multiple.
            let mut step = size;
            while step <= most {
                sums |= sums << step;
                step *= 2;
            }
        }
        sums
    }
}

impl Compiled {
    /// Whether an anchor and parties of these sizes could fill the sides at all, if everything else fitted.
    pub(crate) fn adds_up(&self, anchor: u32, others: Sizes) -> bool {
        let most = self.side_max;
        // With parties of one, which most are, every number can be made.
        if most >= u128::BITS || others.has_ones() && anchor <= most {
            return true;
        }
        let (alone, mins) = (others.sums(most), &self.levels[self.levels.len() - 1].mins);
        let fills = |sums: u128, min: u32, max: u32| (sums >> min) & (u128::MAX >> (127 - (max - min))) != 0;
        (0..mins.len()).any(|own| {
            self.sides.iter().zip(mins).enumerate().all(|(side, ((_, max), min))| {
                fills(if side == own { alone << anchor } else { alone }, *min, *max)
            })
        })
    }
}

/// One more of a key; those of another so far are taken out.
fn count<K: Ord + Copy>(counts: &mut BTreeMap<K, u32>, so_far: &mut (K, u32), key: K) {
    if so_far.0 != key {
        take(counts, *so_far);
        *so_far = (key, 0);
    }
    so_far.1 += 1;
}

fn take<K: Ord>(counts: &mut BTreeMap<K, u32>, (key, taken): (K, u32)) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= taken;
        if *count == 0 {
            counts.remove(&key);
        }
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

    #[test]
    fn parties_that_do_not_add_up_are_told_by_their_sizes() {
        let rules = |sides: &str| {
            let json = format!(r#"{{"name": "q", "sides": [{sides}]}}"#);
            Compiled::new(super::super::RuleSet::parse(json.as_bytes()).unwrap()).unwrap()
        };
        let sizes = |all: &[u8]| all.iter().copied().collect::<Sizes>();
        let fives = rules(r#"{"name": "side", "count": 2, "min": 5, "max": 5}"#);
        assert!(fives.adds_up(1, sizes(&[1])));
        assert!(fives.adds_up(2, sizes(&[3, 5])));
        assert!(fives.adds_up(5, sizes(&[5])));
        assert!(!fives.adds_up(4, sizes(&[4])));
        assert!(!fives.adds_up(3, sizes(&[3, 4])), "3, 4, 6 and 7 only");
        assert!(!fives.adds_up(2, sizes(&[3])), "the other side would have 3 or 6");
        let uneven = rules(r#"{"name": "one", "min": 1, "max": 1}, {"name": "many", "min": 4, "max": 6}"#);
        assert!(uneven.adds_up(4, sizes(&[1])) && uneven.adds_up(1, sizes(&[2])));
        assert!(!uneven.adds_up(2, sizes(&[2, 3])), "nobody to be alone");
        let many = rules(r#"{"name": "all", "min": 100, "max": 200}"#);
        assert!(many.adds_up(64, sizes(&[64])), "not told apart");
    }
}
