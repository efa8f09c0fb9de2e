//! Searching tickets, ordered by the main number, so that a search examines near ones only.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::anchors::{Anchor, Anchors};
use super::compiled::Compiled;
use super::facts::{Facts, PlayerFacts, REGIONS_MAX};
use super::order::Order;
use super::ruleset::Clock;
use crate::info::Text;
use crate::key::{PartitionKey, TicketKey};
use crate::schema::v1;
use crate::slab::Slab;

/// Place where a ticket stands in its partition: its value as ordered bits, then its index.
pub(crate) type Key = (u64, TicketKey);

/// Summary of a ticket that a search reads first: a few bytes that lie together for neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hot {
    pub(crate) size: u8,
    pub(crate) level: u8,
    /// It was an anchor, found nothing, and nothing near it has changed since.
    pub(crate) idle: bool,
    /// That search ended at its limit, so that what leaves may bring others into its reach.
    pub(crate) cut: bool,
    /// Somebody of it avoids somebody.
    pub(crate) avoids: bool,
    /// Positions that somebody of it takes, a bit for each; all where somebody takes any.
    pub(crate) wants: u16,
    /// Regions that it can play in.
    pub(crate) mask: u64,
}

/// Progress of an anchor's search that hit its limit. The next tick goes on there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Its place among the unfinished.
    pub(crate) turn: u64,
    /// The last neighbours that were looked at, on each side.
    pub(crate) left: Key,
    pub(crate) right: Key,
    /// Tickets that the anchor may meet.
    pub(crate) found: Vec<Key>,
}

/// Tickets that may meet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partition {
    /// Partitions of a queue that were made later have greater ones.
    pub(crate) number: u64,
    pub(crate) key: Vec<Text>,
    pub(crate) order: Order,
    idle: u32,
    cuts: u32,
    /// Tickets by priority.
    ranks: BTreeMap<i8, u32>,
    /// Tickets by number of players.
    sizes: BTreeMap<u8, u32>,
    /// Players by the positions that somebody of their ticket takes; empty where the queue has no
    /// positions.
    wishes: BTreeMap<u16, u32>,
    /// Grows with every ticket that comes or relaxes: a backfill looks again when it has.
    pub(crate) arrivals: u64,
    pub(crate) backfills: u32,
}

/// The tickets of a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pub(crate) partitions: Slab<PartitionKey, Partition>,
    partitions_made: u64,
    by_key: BTreeMap<Vec<Text>, PartitionKey>,
    /// Anchors to try. Those of tickets that left are passed over when their turn comes, which is
    /// within a tick.
    pub(crate) dirty: Anchors,
    /// Anchors whose search goes on in a later tick, in turn; one whose scan has another turn by
    /// now is void.
    unfinished: VecDeque<(u64, Anchor)>,
    /// Progress of each of them.
    pub(crate) scans: BTreeMap<TicketKey, Scan>,
    /// The next turn to be given.
    pub(crate) next_turn: u64,
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
    /// Summary of a party at a level.
    pub(crate) fn hot(&self, facts: &Facts, level: u8) -> Hot {
        // Where the oldest decides, a match may get values beyond those of this ticket's own
        // waiting time.
        let widest =
            if self.set.expand_clock == Clock::Oldest { self.levels.len() - 1 } else { usize::from(level) };
        let max_ms = self.levels[widest].max_ms;
        let mask = if max_ms.is_finite() { facts.regions_within(max_ms) } else { u64::MAX };
        let wants = self.wants_of(facts);
        Hot { size: facts.size as u8, level, idle: false, cut: false, avoids: facts.avoids, wants, mask }
    }

    /// True if a party's facts are as these rules see a party: a value for each key, only positions
    /// of theirs, no more regions than exist.
    pub(crate) fn fits(&self, facts: &Facts) -> bool {
        let (keys, count) = (self.keys.len(), self.set.positions.len());
        let fits = |player: &PlayerFacts| {
            let mut wants = player.wants.iter();
            player.attrs.len() == keys && (count == 0 || wants.all(|at| usize::from(*at) < count))
        };
        facts.pings.len() <= REGIONS_MAX && facts.players.iter().all(fits)
    }

    /// Positions that somebody of a party takes, a bit for each.
    fn wants_of(&self, facts: &Facts) -> u16 {
        if self.set.positions.is_empty() {
            return 0;
        }
        let of_player = |wants: &[u8]| match wants {
            [] => u16::MAX,
            some => some.iter().fold(0, |set, position| set | 1 << position),
        };
        facts.players.iter().fold(0, |set, player| set | of_player(&player.wants))
    }

    /// Returns whether `supply`, players by the positions that they may take, can fill the
    /// positions of every side at all. It refuses early and never promises: a player counts for
    /// each position of the ticket.
    pub(crate) fn has_positions(&self, supply: &[(u16, u32)]) -> bool {
        let positions = &self.set.positions;
        let needed: SmallVec<[usize; 16]> =
            (0..positions.len()).filter(|at| positions[*at].per_side_min > 0).collect();
        let sides = self.sides.len() as u64;
        let holds = |subset: u16| {
            let wanted = |at: &&usize| subset >> **at & 1 == 1;
            let need: u64 =
                needed.iter().filter(wanted).map(|at| u64::from(positions[*at].per_side_min)).sum::<u64>()
                    * sides;
            let there = supply.iter().filter(|(wants, _)| wants & subset != 0);
            there.map(|(_, players)| u64::from(*players)).sum::<u64>() >= need
        };
        // Hall's condition: each set of positions finds as many players as it needs. Of many
        // positions single ones only.
        if needed.len() > SUBSETS_OF {
            return needed.iter().all(|at| holds(1 << at));
        }
        (1..1_u16 << needed.len()).all(|chosen| {
            let bits = needed.iter().enumerate().filter(|(bit, _)| chosen >> bit & 1 == 1);
            holds(bits.fold(0, |subset, (_, at)| subset | 1 << at))
        })
    }

    /// Greatest distance of a party of a level from another of the match.
    pub(crate) fn reach(&self, level: u8) -> f64 {
        match self.set.expand_clock {
            Clock::Oldest => self.levels[self.levels.len() - 1].near,
            Clock::Each | Clock::Newest => self.levels[usize::from(level)].near,
        }
    }

    /// Returns whether two tickets can be in one match, as far as is seen at first sight.
    #[inline]
    pub(crate) fn eligible(&self, a: &Hot, b: &Hot, distance: f64) -> bool {
        a.mask & b.mask != 0 && distance <= self.reach(a.level) && distance <= self.reach(b.level)
    }
}

impl Pool {
    /// Its partitions in order of their keys.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (PartitionKey, &Partition)> {
        self.by_key.values().map(|index| (*index, &self.partitions[*index]))
    }

    /// Partitions and anchors. Tickets say themselves where they wait.
    pub(crate) fn save(&self) -> v1::Pool<'_> {
        let mut partitions: Vec<v1::Partition<'_>> = self
            .partitions
            .iter()
            .map(|(_, part)| v1::Partition {
                number: part.number,
                key: part.key.iter().map(|text| &text[..]).collect(),
                arrivals: part.arrivals,
            })
            .collect();
        partitions.sort_unstable_by_key(|part| part.number);
        let (anchors, late_anchors) = self.dirty.save();
        let saved = |(value, ticket): &Key| (*value, ticket.index());
        let scan = |(ticket, scan): (&TicketKey, &Scan)| v1::Scan {
            ticket: ticket.index(),
            turn: scan.turn,
            left: saved(&scan.left),
            right: saved(&scan.right),
            found: scan.found.iter().map(saved).collect(),
        };
        v1::Pool {
            partitions,
            partitions_made: self.partitions_made,
            anchors,
            late_anchors,
            unfinished: self.unfinished.iter().map(|(turn, anchor)| (*turn, (*anchor).into())).collect(),
            scans: self.scans.iter().map(scan).collect(),
            next_turn: self.next_turn,
        }
    }

    /// A pool without tickets.
    pub(crate) fn load(saved: &v1::Pool<'_>) -> Result<Pool, &'static str> {
        let mut pool = Pool {
            dirty: Anchors::load(&saved.anchors, &saved.late_anchors),
            unfinished: saved.unfinished.iter().map(|(turn, anchor)| (*turn, (*anchor).into())).collect(),
            next_turn: saved.next_turn,
            ..Pool::default()
        };
        for saved in &saved.partitions {
            let index = pool.partition(saved.key.iter().map(|text| Text::from_slice(text)).collect());
            let part = &mut pool.partitions[index];
            (part.number, part.arrivals) = (saved.number, saved.arrivals);
        }
        if pool.partitions.len() != saved.partitions.len() {
            return Err("a partition is there twice");
        }
        pool.partitions_made = saved.partitions_made;
        for v1::Scan { ticket, turn, left, right, found } in &saved.scans {
            let key = |(value, ticket): &(u64, u32)| (*value, TicketKey::new(*ticket));
            let found = found.iter().map(key).collect();
            let scan = Scan { turn: *turn, left: key(left), right: key(right), found };
            pool.scans.insert(TicketKey::new(*ticket), scan);
        }
        Ok(pool)
    }

    /// Indexes of partitions by number.
    pub(crate) fn numbers(&self) -> BTreeMap<u64, PartitionKey> {
        self.partitions.iter().map(|(index, part)| (part.number, index)).collect()
    }

    /// Returns the place of a waiting ticket, for a snapshot.
    pub(crate) fn save_place(&self, partition: PartitionKey, key: Key) -> Option<v1::Waiting> {
        let part = self.partitions.get(partition)?;
        let hot = part.order.get(key)?;
        Some(v1::Waiting { partition: part.number, value: key.0, idle: hot.idle, cut: hot.cut })
    }

    /// Puts the tickets of a snapshot into a partition. They come in order of their keys.
    pub(crate) fn fill(&mut self, partition: PartitionKey, tickets: &[(Key, Hot, i8)]) {
        let Partition { order, idle, cuts, ranks, sizes, wishes, .. } = &mut self.partitions[partition];
        *order = tickets.iter().map(|(key, hot, _)| (*key, *hot)).collect();
        self.size += tickets.len() as u64;
        for (_, hot, rank) in tickets {
            *idle += u32::from(hot.idle);
            *cuts += u32::from(hot.cut);
            *ranks.entry(*rank).or_default() += 1;
            *sizes.entry(hot.size).or_default() += 1;
            if hot.wants != 0 {
                *wishes.entry(hot.wants).or_default() += u32::from(hot.size);
            }
        }
    }

    /// Returns whether its counts are those of its tickets.
    pub(crate) fn is_counted(&self) -> bool {
        let mut size = 0;
        let mut all = self.partitions.iter();
        let counts = all.all(|(index, part)| {
            size += part.order.len() as u64;
            let idle = part.order.iter().filter(|(_, hot)| hot.idle).count() as u32;
            let cuts = part.order.iter().filter(|(_, hot)| hot.cut).count() as u32;
            let ranks: u32 = part.ranks.values().sum();
            let sizes: u32 = part.sizes.values().sum();
            let len = part.order.len() as u32;
            self.by_key.get(&part.key) == Some(&index)
                && (part.idle, part.cuts, ranks, sizes) == (idle, cuts, len, len)
        });
        counts && size == self.size && self.by_key.len() == self.partitions.len()
    }

    /// The partition of a key, made if there is none.
    pub(crate) fn partition(&mut self, key: Vec<Text>) -> PartitionKey {
        if let Some(index) = self.by_key.get(&key) {
            return *index;
        }
        let number = self.partitions_made;
        self.partitions_made += 1;
        let index = self.partitions.insert(Partition { number, key: key.clone(), ..Partition::default() });
        self.by_key.insert(key, index);
        index
    }

    /// Forgets a partition that nothing is in.
    pub(crate) fn release(&mut self, partition: PartitionKey) {
        let empty = self.partitions.get(partition).is_some_and(|p| p.order.is_empty() && p.backfills == 0);
        if empty && let Some(gone) = self.partitions.remove(partition) {
            self.by_key.remove(&gone.key);
        }
    }

    /// Adds a ticket: it is tried, and so are idle ones that might meet it.
    pub(crate) fn insert(
        &mut self,
        compiled: &Compiled,
        partition: PartitionKey,
        key: Key,
        hot: Hot,
        anchor: Anchor,
        anchor_of: impl Fn(TicketKey) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        part.order.insert(key, hot);
        part.arrivals += 1;
        *part.ranks.entry(anchor.rank).or_default() += 1;
        *part.sizes.entry(hot.size).or_default() += 1;
        if hot.wants != 0 {
            *part.wishes.entry(hot.wants).or_default() += u32::from(hot.size);
        }
        self.size += 1;
        self.dirty.insert(anchor);
        self.wake(compiled, partition, key, &hot, anchor_of);
    }

    /// Marks idle neighbours that might meet a ticket that is new or has relaxed.
    fn wake(
        &mut self,
        compiled: &Compiled,
        partition: PartitionKey,
        key: Key,
        hot: &Hot,
        anchor_of: impl Fn(TicketKey) -> Anchor,
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
        partition: PartitionKey,
        key: Key,
        fresh: Hot,
        anchor: Anchor,
        anchor_of: impl Fn(TicketKey) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        let Some(old) = part.order.get(key).copied() else { return };
        part.order.change(key, |hot| *hot = fresh);
        part.arrivals += 1;
        part.idle -= u32::from(old.idle);
        part.cuts -= u32::from(old.cut);
        // Its search so far was made under other limits.
        let went_on = self.scans.remove(&key.1).is_some();
        if old.idle || went_on {
            self.dirty.insert(anchor);
        }
        self.wake(compiled, partition, key, &fresh, anchor_of);
    }

    /// Notes how far an anchor's search has come that hit its limit: it goes on in a later tick.
    /// `had`: the turn of an earlier part of it, which it keeps.
    pub(crate) fn go_on_later(
        &mut self,
        ticket: TicketKey,
        anchor: Anchor,
        mut scan: Scan,
        had: Option<u64>,
    ) {
        scan.turn = had.unwrap_or(self.next_turn);
        if had.is_none() {
            self.next_turn += 1;
            self.unfinished.push_back((scan.turn, anchor));
        }
        self.scans.insert(ticket, scan);
    }

    /// Takes the next anchor whose search goes on, of those that had their turn given before
    /// `until`.
    pub(crate) fn next_unfinished(&mut self, until: u64) -> Option<Anchor> {
        loop {
            let (turn, anchor) = *self.unfinished.front().filter(|(turn, _)| *turn < until)?;
            self.unfinished.pop_front();
            if anchor
                .ticket()
                .and_then(|ticket| self.scans.get(&ticket))
                .is_some_and(|scan| scan.turn == turn)
            {
                return Some(anchor);
            }
        }
    }

    /// Returns whether an anchor's search goes on in the next tick.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty()
    }

    /// Notes that a ticket as an anchor found nothing.
    pub(crate) fn rest(&mut self, partition: PartitionKey, key: Key, cut: bool) {
        let part = &mut self.partitions[partition];
        if part.order.get(key).is_some_and(|hot| !hot.idle) {
            part.order.change(key, |hot| (hot.idle, hot.cut) = (true, cut));
            part.idle += 1;
            part.cuts += u32::from(cut);
        }
    }

    /// Takes tickets of a partition out, of which the keys are in order. Idle ones whose search had
    /// ended before them may see others now.
    pub(crate) fn remove(
        &mut self,
        compiled: &Compiled,
        partition: PartitionKey,
        keys: &[Key],
        anchor_of: impl Fn(TicketKey) -> Anchor,
    ) {
        let part = &mut self.partitions[partition];
        let Partition { order, idle, cuts, ranks, sizes, wishes, .. } = part;
        // Mostly all are of one priority and size: each is counted when another comes.
        let (mut rank, mut size) = ((0, 0), (0, 0));
        order.remove(keys, |key, hot| {
            self.size -= 1;
            *idle -= u32::from(hot.idle);
            *cuts -= u32::from(hot.cut);
            count(ranks, &mut rank, anchor_of(key.1).rank);
            count(sizes, &mut size, hot.size);
            if hot.wants != 0 {
                take(wishes, (hot.wants, u32::from(hot.size)));
            }
        });
        if !self.scans.is_empty() {
            keys.iter().for_each(|key| drop(self.scans.remove(&key.1)));
        }
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
    pub(crate) fn ahead(&self, partition: PartitionKey, rank: i8) -> u64 {
        let ranks = &self.partitions[partition].ranks;
        ranks.range(..=rank).map(|(_, count)| u64::from(*count)).sum()
    }
}

impl Partition {
    /// Players who are here by the positions that they take.
    pub(crate) fn wishes(&self) -> SmallVec<[(u16, u32); 16]> {
        self.wishes.iter().map(|(wants, players)| (*wants, *players)).collect()
    }

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

    /// The numbers of players, up to `most`, that parties of these sizes make together, however
    /// many there are: bit n for n.
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
    /// Returns whether an anchor and parties of these sizes could fill the sides at all, if
    /// everything else fitted.
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

/// Positions of which every set is asked whether there are players enough.
const SUBSETS_OF: usize = 6;
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
