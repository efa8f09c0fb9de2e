//! Filling a match around an anchor: near tickets first, then sides by size, then exchanges for
//! balance.

use smallvec::SmallVec;

use super::compiled::Compiled;
use super::facts::{Facts, PlayerFacts};
use super::order::Kinds;
use super::pool::{Hot, Key, Partition, Scan, Sizes, VISITS_PER_STEP, number, ordered};
use super::positions::assign;
use super::rules::{Placed, View};
use super::ruleset::{Clock, PartyPolicy, Prefer};
use crate::info::Text;
use crate::key::TicketKey;

/// Neighbours that are looked at for one position.
const SCARCE_VISITS: usize = 4_096;
/// Exchanges between sides that are tried for one match.
const EXCHANGES_MAX: usize = 200;

/// Start of a search.
#[derive(Clone, Debug)]
pub(crate) struct Start<'a> {
    /// Place where it stands in its partition.
    pub(crate) key: Key,
    pub(crate) hot: Hot,
    /// The anchor itself; `None` for a backfill.
    pub(crate) ticket: Option<TicketKey>,
    /// Players already there, by side.
    pub(crate) fixed: Vec<Vec<&'a Facts>>,
    /// Free places by side.
    pub(crate) open: Vec<u32>,
}

/// A match that holds every rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filling {
    /// Tickets by side.
    pub(crate) sides: Vec<Vec<TicketKey>>,
    pub(crate) level: u8,
    pub(crate) quality: f64,
    pub(crate) region: Option<u16>,
}

/// A search in one partition.
pub(crate) struct Search<'a, F> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) partition: &'a Partition,
    /// Names of the queue's regions.
    pub(crate) regions: &'a [Text],
    /// Facts of a ticket and when it was made.
    pub(crate) facts: F,
    /// Neighbours looked at.
    pub(crate) steps: u64,
    /// The last search ended at its limit.
    pub(crate) cut: bool,
    /// Place where the search goes on, and where it ended at its limit.
    pub(crate) scan: Option<Scan>,
    /// The last neighbours that a look which hit its limit saw, on each side.
    pub(crate) ends: (Key, Key),
    /// Memory for the neighbours.
    pub(crate) near: Vec<Candidate>,
}

/// A neighbour that the anchor may meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    ticket: TicketKey,
    value: f64,
    hot: Hot,
}

/// In which order candidates are placed, and on which of the sides that have room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As they come, on the emptiest side.
    Near,
    /// The largest parties first.
    Large,
    /// The largest parties first, on the side that lags behind in the main number.
    Even,
}

impl<'a, F: Fn(TicketKey) -> (&'a Facts, u64) + Copy> Search<'a, F> {
    /// A match around the anchor, if filling finds one.
    pub(crate) fn attempt(&mut self, start: &Start<'a>) -> Option<Filling> {
        let mut near = std::mem::take(&mut self.near);
        near.clear();
        let found = self.attempt_with(start, &mut near);
        self.near = near;
        found
    }

    fn attempt_with(&mut self, start: &Start<'a>, all: &mut Vec<Candidate>) -> Option<Filling> {
        self.cut = false;
        let before = self.scan.take();
        let own = u32::from(start.hot.size);
        let compiled = self.compiled;
        let is_party = start.ticket.is_some();
        if is_party && !compiled.adds_up(own, self.partition.sizes()) {
            return None;
        }
        let has_positions = !compiled.set.positions.is_empty();
        if is_party && has_positions && !compiled.has_positions(&self.partition.wishes()) {
            return None;
        }
        let total: u32 = start.open.iter().sum();
        let limit = compiled.set.scan_limit;
        // Most matches are found among the very next: the rest is looked at when they are not.
        let plain = compiled.set.quality.prefer == Prefer::Skill && !has_positions && before.is_none();
        let first = if plain { (total as usize + total as usize / 4).min(limit) } else { limit };
        self.gather(start, first, before.as_ref(), all);
        let more = self.cut && first < limit;
        if self.cut && !more {
            self.note_scan(all);
        }
        if has_positions {
            self.gather_scarce(start, all);
        }
        if self.may_fill(start, all)
            && let Some(found) = self.fill(start, all, Way::Near)
        {
            return Some(found);
        }
        if more {
            all.clear();
            self.gather(start, limit, None, all);
            if self.cut {
                self.note_scan(all);
            }
        }
        if !self.may_fill(start, all) {
            return None;
        }
        if more && let Some(found) = self.fill(start, all, Way::Near) {
            return Some(found);
        }
        let mixed = all.iter().any(|candidate| candidate.hot.size != all[0].hot.size);
        if !mixed && compiled.main.is_none() {
            return None;
        }
        all.sort_by_key(|candidate| std::cmp::Reverse(candidate.hot.size));
        let large = if mixed { self.fill(start, all, Way::Large) } else { None };
        large.or_else(|| self.fill(start, all, Way::Even))
    }

    /// Returns whether there are players enough, in parties that add up and with somebody for each
    /// position. A backfill takes whom it gets.
    fn may_fill(&self, start: &Start<'a>, candidates: &[Candidate]) -> bool {
        if start.ticket.is_none() {
            return true;
        }
        let own = u32::from(start.hot.size);
        let players: u32 = candidates.iter().map(|candidate| u32::from(candidate.hot.size)).sum();
        let least: u32 = self.compiled.levels[self.compiled.levels.len() - 1].mins.iter().sum();
        let sizes = candidates.iter().map(|candidate| candidate.hot.size).collect::<Sizes>();
        if players + own < least || !self.compiled.adds_up(own, sizes) {
            return false;
        }
        if self.compiled.set.positions.is_empty() {
            return true;
        }
        let hots = candidates.iter().map(|candidate| &candidate.hot).chain([&start.hot]);
        let supply: SmallVec<[(u16, u32); 64]> = hots.map(|hot| (hot.wants, u32::from(hot.size))).collect();
        self.compiled.has_positions(&supply)
    }

    /// Returns whether a ticket has a player who is in the match that a backfill fills up.
    fn is_inside(&self, start: &Start<'a>, ticket: TicketKey) -> bool {
        let mut inside = start.fixed.iter().flatten().flat_map(|facts| &facts.players).peekable();
        inside.peek().is_some() && {
            let own = &(self.facts)(ticket).0.players;
            inside.any(|there| own.iter().any(|player| player.role == there.role))
        }
    }

    /// Returns whether a neighbour may be in a match with the anchor, as far as the two of them
    /// decide.
    fn may_join(&self, start: &Start<'a>, key: Key, hot: &Hot, distance: f64) -> bool {
        let compiled = self.compiled;
        if !compiled.eligible(&start.hot, hot, distance) || self.is_inside(start, key.1) {
            return false;
        }
        let asks = compiled.other_pair_rules || compiled.avoids && (start.hot.avoids || hot.avoids);
        if !asks {
            return true;
        }
        let own = ((self.facts)(key.1).0, hot.level);
        let ticket = start.ticket.map(|ticket| (self.facts)(ticket).0).into_iter();
        let fixed = start.fixed.iter().flatten().copied();
        fixed.chain(ticket).all(|facts| compiled.may_meet(own, (facts, start.hot.level)))
    }

    /// The nearest tickets that the anchor may meet, in order of distance. `before`: where a search
    /// ended at its limit, to go on there with those that it had found.
    fn gather(&mut self, start: &Start<'a>, limit: usize, before: Option<&Scan>, found: &mut Vec<Candidate>) {
        let order = &self.partition.order;
        let anchor = number(start.key.0);
        let wanted = Kinds { mask: start.hot.mask, wants: 0 };
        let (mut from, mut to) = (start.key, start.key);
        if let Some(scan) = before {
            (from, to) = (scan.left, scan.right);
            // Some of them may have left, or changed.
            for key in &scan.found {
                if let Some(hot) = order.get(*key)
                    && self.may_join(start, *key, hot, (number(key.0) - anchor).abs())
                {
                    found.push(Candidate { ticket: key.1, value: number(key.0), hot: *hot });
                }
            }
            if found.len() >= limit {
                // None of them made a match: others have their turn.
                found.clear();
            }
        }
        let apart = |entry: &'a (Key, Hot)| ((number(entry.0.0) - anchor).abs(), entry);
        let (mut left, mut right) =
            (order.before(from, wanted).map(apart).peekable(), order.after(to, wanted).map(apart).peekable());
        let reach = self.compiled.reach(start.hot.level);
        let roomiest = start.open.iter().copied().max().unwrap_or(0);
        self.cut = false;
        for visit in 0.. {
            let is_left = match (left.peek(), right.peek()) {
                (Some((before, _)), Some((after, _))) => before <= after,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => return,
            };
            let Some((distance, (key, hot))) = (if is_left { left.peek() } else { right.peek() }).copied()
            else {
                return;
            };
            if distance > reach {
                return;
            }
            if found.len() >= limit || visit >= limit * VISITS_PER_STEP {
                (self.cut, self.ends) = (true, (from, to));
                return;
            }
            if is_left {
                left.next();
                from = *key;
            } else {
                right.next();
                to = *key;
            }
            self.steps += 1;
            if u32::from(hot.size) <= roomiest && self.may_join(start, *key, hot, distance) {
                found.push(Candidate { ticket: key.1, value: number(key.0), hot: *hot });
            }
        }
    }

    /// Notes where the last look ended at its limit. A look at the very next only is none: the one
    /// behind it may see everybody, and then nothing goes on.
    fn note_scan(&mut self, found: &[Candidate]) {
        let (left, right) = self.ends;
        let found = found.iter().map(|candidate| (ordered(candidate.value), candidate.ticket)).collect();
        self.scan = Some(Scan { turn: 0, left, right, found });
    }

    /// Adds the nearest tickets for each position that few take, and puts those before the others:
    /// where many play damage and few heal, the next of all are no healers.
    fn gather_scarce(&mut self, start: &Start<'a>, found: &mut Vec<Candidate>) {
        let compiled = self.compiled;
        let positions = &compiled.set.positions;
        let wishes = self.partition.wishes();
        let takers = |at: usize| {
            wishes
                .iter()
                .filter(|(wants, _)| wants >> at & 1 == 1)
                .map(|(_, players)| u64::from(*players))
                .sum::<u64>()
        };
        let mut needed: SmallVec<[(u64, usize); 16]> = (0..positions.len())
            .filter(|at| positions[*at].per_side_min > 0)
            .map(|at| (takers(at), at))
            .collect();
        needed.sort_unstable();
        let anchor = number(start.key.0);
        let reach = compiled.reach(start.hot.level);
        let roomiest = start.open.iter().copied().max().unwrap_or(0);
        let mut scarce: Vec<Candidate> = Vec::new();
        for (_, at) in &needed {
            let most = 2 * positions[*at].per_side_min as usize * compiled.sides.len() + 2;
            let wanted = Kinds { mask: start.hot.mask, wants: 1 << at };
            let order = &self.partition.order;
            let apart = |entry: &'a (Key, Hot)| ((number(entry.0.0) - anchor).abs(), entry);
            let (mut left, mut right) = (
                order.before(start.key, wanted).map(apart).peekable(),
                order.after(start.key, wanted).map(apart).peekable(),
            );
            let mut count = 0;
            for _ in 0..SCARCE_VISITS {
                let next = match (left.peek(), right.peek()) {
                    (Some((before, _)), Some((after, _))) if before <= after => left.next(),
                    (Some(_), None) => left.next(),
                    (_, Some(_)) => right.next(),
                    (None, None) => None,
                };
                let Some((distance, (key, hot))) = next.filter(|(distance, _)| *distance <= reach) else {
                    break;
                };
                self.steps += 1;
                if hot.wants >> at & 1 == 1
                    && u32::from(hot.size) <= roomiest
                    && self.may_join(start, *key, hot, distance)
                {
                    count += 1;
                    if scarce.iter().all(|other| other.ticket != key.1) {
                        scarce.push(Candidate { ticket: key.1, value: number(key.0), hot: *hot });
                    }
                    if count == most {
                        break;
                    }
                }
            }
        }
        found.retain(|candidate| scarce.iter().all(|other| other.ticket != candidate.ticket));
        scarce.append(found);
        *found = scarce;
    }

    fn fill(&self, start: &Start<'a>, candidates: &[Candidate], way: Way) -> Option<Filling> {
        let mut filler = Filler::new(self, start, way)?;
        let mut order: Vec<Candidate>;
        let mut candidates = candidates;
        if way == Way::Near && self.compiled.set.quality.prefer != Prefer::Skill {
            order = candidates.to_vec();
            match self.compiled.set.quality.prefer {
                Prefer::Wait => order.sort_by_key(|candidate| (self.facts)(candidate.ticket).1),
                Prefer::Latency => order.sort_by(|a, b| {
                    let worst = |c: &Candidate| {
                        let pings = (self.facts)(c.ticket).0.pings.iter();
                        pings.map(|ping| ping.worst).fold(f32::INFINITY, f32::min)
                    };
                    worst(a).total_cmp(&worst(b))
                }),
                Prefer::Skill => {}
            }
            candidates = &order;
        }
        filler.fill(candidates)?;
        filler.finish()
    }
}

/// A match being filled.
struct Filler<'s, 'a, F> {
    search: &'s Search<'a, F>,
    start: &'s Start<'a>,
    way: Way,
    state: State,
}

/// A party that has a place.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    ticket: TicketKey,
    value: f64,
    size: u8,
    level: u8,
    side: u8,
}

impl Chosen {
    /// By how much its side has more of the main number than it would have with another party of
    /// its size instead.
    fn weight_over(&self, other: &Chosen) -> f64 {
        (self.value - other.value) * f64::from(self.size)
    }
}

#[derive(Clone, Debug)]
struct State {
    level: u8,
    /// Least and greatest main value.
    low: f64,
    high: f64,
    /// Range that the limits of all allow.
    floor: f64,
    ceiling: f64,
    mask: u64,
    /// Somebody of those chosen or already there avoids somebody.
    avoids: bool,
    chosen: SmallVec<[Chosen; 16]>,
    open: SmallVec<[u32; 4]>,
    sums: SmallVec<[f64; 4]>,
}

impl<'s, 'a, F: Fn(TicketKey) -> (&'a Facts, u64) + Copy> Filler<'s, 'a, F> {
    fn new(search: &'s Search<'a, F>, start: &'s Start<'a>, way: Way) -> Option<Filler<'s, 'a, F>> {
        let compiled = search.compiled;
        let value = number(start.key.0);
        let reach = compiled.reach(start.hot.level);
        let state = State {
            level: start.hot.level,
            low: value,
            high: value,
            floor: value - reach,
            ceiling: value + reach,
            mask: start.hot.mask,
            avoids: start.fixed.iter().flatten().any(|facts| facts.avoids),
            chosen: SmallVec::new(),
            open: SmallVec::from_slice(&start.open),
            sums: SmallVec::from_elem(0.0, start.open.len()),
        };
        let mut filler = Filler { search, start, way, state };
        for (sum, side) in filler.state.sums.iter_mut().zip(&start.fixed) {
            *sum = side.iter().map(|facts| compiled.weight(facts)).sum();
        }
        if let Some(ticket) = start.ticket {
            let own = Candidate { ticket, value, hot: start.hot };
            let side = filler.side_for(&own)?;
            filler.place(&own, side);
        }
        Some(filler)
    }

    fn fill(&mut self, candidates: &[Candidate]) -> Option<()> {
        let policy = match self.start.ticket {
            Some(_) => self.search.compiled.levels[usize::from(self.state.level)].policy,
            None => PartyPolicy::Any,
        };
        let sides = self.state.open.len();
        match policy {
            PartyPolicy::Any => self.add_all(candidates.iter()),
            PartyPolicy::LargeVsLarge => {
                let large = |hot: &Hot| self.search.compiled.is_large(u32::from(hot.size));
                if large(&self.start.hot) {
                    let large = || candidates.iter().filter(|candidate| large(&candidate.hot));
                    // One for each other side, before the small ones take the places.
                    let own = usize::from(self.state.chosen[0].side);
                    for side in (0..sides).filter(|side| *side != own) {
                        large().find(|candidate| self.add(candidate, Some(side)))?;
                    }
                    self.add_all(large());
                }
                self.add_all(candidates.iter().filter(|candidate| !large(&candidate.hot)));
            }
            PartyPolicy::SameSize => {
                self.add_even(u32::from(self.start.hot.size), candidates, 1)?;
                let mut sizes: Vec<u32> =
                    candidates.iter().map(|candidate| u32::from(candidate.hot.size)).collect();
                sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
                sizes.dedup();
                for size in sizes {
                    while self.add_even(size, candidates, 0).is_some() {}
                }
            }
        }
        Some(())
    }

    /// Adds whom it can until every place is taken.
    fn add_all<'c>(&mut self, candidates: impl Iterator<Item = &'c Candidate>) {
        for candidate in candidates {
            if self.state.open.iter().all(|open| *open == 0) {
                return;
            }
            self.add(candidate, None);
        }
    }

    /// Adds a party of a size to each side from the `from`th on, or to none.
    fn add_even(&mut self, size: u32, candidates: &[Candidate], from: usize) -> Option<()> {
        let before = self.state.clone();
        let anchor = if from == 1 { usize::from(self.state.chosen[0].side) } else { usize::MAX };
        for side in (0..self.state.open.len()).filter(|side| *side != anchor) {
            let found = candidates
                .iter()
                .filter(|candidate| u32::from(candidate.hot.size) == size)
                .any(|candidate| self.add(candidate, Some(side)));
            if !found {
                self.state = before;
                return None;
            }
        }
        Some(())
    }

    /// Adds a party if it may meet everybody chosen and has a place, on a given side or the best.
    fn add(&mut self, candidate: &Candidate, side: Option<usize>) -> bool {
        let compiled = self.search.compiled;
        let size = u32::from(candidate.hot.size);
        let fits = |side: usize, open: &[u32]| open[side] >= size;
        let has_room = match side {
            Some(side) => fits(side, &self.state.open),
            None => self.state.open.iter().any(|open| *open >= size),
        };
        if !has_room || self.state.chosen.iter().any(|other| other.ticket == candidate.ticket) {
            return false;
        }
        let level = compiled.join_levels(self.state.level, candidate.hot.level);
        let (low, high) = (self.state.low.min(candidate.value), self.state.high.max(candidate.value));
        let reach = compiled.reach(candidate.hot.level);
        let near = match compiled.set.expand_clock {
            Clock::Each => {
                candidate.value >= self.state.floor
                    && candidate.value <= self.state.ceiling
                    && self.state.low >= candidate.value - reach
                    && self.state.high <= candidate.value + reach
            }
            Clock::Oldest | Clock::Newest => high - low <= compiled.levels[usize::from(level)].near,
        };
        if !near {
            return false;
        }
        let Some(mask) = self.mask_with(candidate, level) else { return false };
        let avoids = compiled.avoids && (self.state.avoids || candidate.hot.avoids);
        if (avoids || compiled.other_pair_rules) && !self.meets_all(candidate) {
            return false;
        }
        let Some(side) = side.filter(|side| self.suits(*side, candidate)).or_else(|| match side {
            Some(_) => None,
            None => self.side_for(candidate),
        }) else {
            return false;
        };
        let state = &mut self.state;
        (state.level, state.low, state.high, state.mask) = (level, low, high, mask);
        state.floor = state.floor.max(candidate.value - reach);
        state.ceiling = state.ceiling.min(candidate.value + reach);
        self.place(candidate, side);
        true
    }

    fn meets_all(&self, candidate: &Candidate) -> bool {
        let own = ((self.search.facts)(candidate.ticket).0, candidate.hot.level);
        let fixed = self.start.fixed.iter().flatten().map(|facts| (*facts, self.start.hot.level));
        let chosen = self.state.chosen.iter().map(|other| ((self.search.facts)(other.ticket).0, other.level));
        fixed.chain(chosen).all(|other| self.search.compiled.may_meet(own, other))
    }

    /// Regions that are left with a candidate, at the level that the match has then; `None` for
    /// none.
    fn mask_with(&self, candidate: &Candidate, level: u8) -> Option<u64> {
        let compiled = self.search.compiled;
        let max_ms = compiled.levels[usize::from(level)].max_ms;
        if !max_ms.is_finite() {
            return Some(u64::MAX);
        }
        let of = |ticket: TicketKey, own: u8, mask: u64| {
            let exact = own == level && compiled.set.expand_clock != Clock::Oldest;
            if exact { mask } else { (self.search.facts)(ticket).0.regions_within(max_ms) }
        };
        let mut mask = of(candidate.ticket, candidate.hot.level, candidate.hot.mask);
        if level == self.state.level && compiled.set.expand_clock != Clock::Oldest {
            mask &= self.state.mask;
        } else {
            for facts in self.start.fixed.iter().flatten() {
                mask &= facts.regions_within(max_ms);
            }
            for other in &self.state.chosen {
                mask &= (self.search.facts)(other.ticket).0.regions_within(max_ms);
            }
        }
        (mask != 0).then_some(mask)
    }

    /// The side that a party goes to: with room, its positions filled by somebody, and by the way
    /// of filling.
    fn side_for(&self, candidate: &Candidate) -> Option<usize> {
        let state = &self.state;
        let mut best: Option<usize> = None;
        for side in 0..state.open.len() {
            if state.open[side] < u32::from(candidate.hot.size) {
                continue;
            }
            let better = best.is_none_or(|best| match self.way {
                Way::Even => state.sums[side] < state.sums[best],
                Way::Near | Way::Large => {
                    (state.open[best], state.sums[side]) < (state.open[side], state.sums[best])
                }
            });
            if better && self.suits(side, candidate) {
                best = Some(side);
            }
        }
        best
    }

    /// Returns whether a side's players with a party's can take their positions, and what is left
    /// can fill the others.
    #[inline]
    fn suits(&self, side: usize, candidate: &Candidate) -> bool {
        self.search.compiled.set.positions.is_empty() || self.can_take_positions(side, candidate)
    }

    fn can_take_positions(&self, side: usize, candidate: &Candidate) -> bool {
        let set = &self.search.compiled.set;
        let own = (self.search.facts)(candidate.ticket).0;
        let open = self.state.open[side] - u32::from(candidate.hot.size);
        let players: Vec<&PlayerFacts> = self.players_of(side).chain(&own.players).collect();
        assign(&set.positions, &players, open).is_some()
    }

    fn players_of(&self, side: usize) -> impl Iterator<Item = &'a PlayerFacts> {
        let fixed = self.start.fixed.get(side).into_iter().flatten().copied();
        let chosen = self.state.chosen.iter().filter(move |other| usize::from(other.side) == side);
        let facts = self.search.facts;
        fixed.chain(chosen.map(move |other| facts(other.ticket).0)).flat_map(|facts| &facts.players)
    }

    fn place(&mut self, candidate: &Candidate, side: usize) {
        let state = &mut self.state;
        let Candidate { ticket, value, hot } = *candidate;
        state.chosen.push(Chosen { ticket, value, size: hot.size, level: hot.level, side: side as u8 });
        state.avoids |= hot.avoids;
        state.open[side] -= u32::from(candidate.hot.size);
        state.sums[side] += candidate.value * f64::from(candidate.hot.size);
    }

    /// The match, if every side has enough and every hard rule holds.
    fn finish(mut self) -> Option<Filling> {
        let compiled = self.search.compiled;
        let level = &compiled.levels[usize::from(self.state.level)];
        if self.start.ticket.is_some() {
            let enough = |(side, min): (usize, &u32)| self.start.open[side] - self.state.open[side] >= *min;
            if !level.mins.iter().enumerate().all(enough) || !self.keeps_policy(level.policy) {
                return None;
            }
        } else if self.state.chosen.is_empty() {
            return None;
        }
        self.exchange();
        let sides = self.sides();
        let view = View { compiled, sides: &sides, regions: self.search.regions, level: self.state.level };
        let grade = view.grade()?;
        if grade.quality < level.quality_min {
            return None;
        }
        let of_side = |side: usize| {
            let chosen = self.state.chosen.iter().filter(move |other| usize::from(other.side) == side);
            let mut tickets = Vec::with_capacity(self.taken(side));
            tickets.extend(chosen.map(|other| other.ticket));
            tickets
        };
        let tickets = (0..self.state.open.len()).map(of_side).collect();
        Some(Filling {
            sides: tickets,
            level: self.state.level,
            quality: grade.quality,
            region: grade.region,
        })
    }

    /// Players placed on a side, each party of which has one or more.
    fn taken(&self, side: usize) -> usize {
        (self.start.open[side] - self.state.open[side]) as usize
    }

    fn keeps_policy(&self, policy: PartyPolicy) -> bool {
        let of_side = |side: usize| {
            let parties = self.state.chosen.iter().filter(move |other| usize::from(other.side) == side);
            parties.map(|other| u32::from(other.size))
        };
        let sides = 0..self.state.open.len();
        match policy {
            PartyPolicy::Any => true,
            PartyPolicy::LargeVsLarge => {
                let large =
                    sides.filter(|side| of_side(*side).any(|size| self.search.compiled.is_large(size)));
                let count = large.count();
                count == 0 || count == self.state.open.len()
            }
            PartyPolicy::SameSize => {
                let sorted = |side: usize| {
                    let mut sizes: Vec<u32> = of_side(side).collect();
                    sizes.sort_unstable();
                    sizes
                };
                let first = sorted(0);
                sides.skip(1).all(|side| sorted(side) == first)
            }
        }
    }

    fn sides(&self) -> Vec<Vec<Placed<'a>>> {
        let fixed = |side: usize| self.start.fixed.get(side).map_or(0, Vec::len);
        let side = |side: usize| Vec::with_capacity(fixed(side) + self.taken(side));
        let mut sides: Vec<Vec<Placed<'a>>> = (0..self.state.open.len()).map(side).collect();
        for (side, fixed) in self.start.fixed.iter().enumerate() {
            sides[side].extend(fixed.iter().map(|facts| (*facts, self.start.hot.level)));
        }
        // They are all over the memory: here the loads for one do not wait for those for another.
        let touch = |all: u64, other: &Chosen| {
            let (facts, created) = (self.search.facts)(other.ticket);
            let ping = facts.pings.first().map_or(0, |ping| ping.worst.to_bits());
            all ^ created ^ u64::from(facts.size ^ ping) ^ facts.values.len() as u64
        };
        std::hint::black_box(self.state.chosen.iter().fold(0, touch));
        for other in &self.state.chosen {
            sides[usize::from(other.side)].push(((self.search.facts)(other.ticket).0, other.level));
        }
        sides
    }

    /// Exchanges equal-sized parties between sides while their means in the main number come
    /// closer.
    fn exchange(&mut self) {
        let compiled = self.search.compiled;
        if compiled.main.is_none() || self.state.open.len() < 2 {
            return;
        }
        // Share of one player in a side's mean.
        let mut shares: SmallVec<[f64; 4]> = SmallVec::new();
        for side in 0..self.state.open.len() {
            let fixed: u32 = self.start.fixed.get(side).into_iter().flatten().map(|facts| facts.size).sum();
            shares.push(1.0 / f64::from(fixed + self.start.open[side] - self.state.open[side]).max(1.0));
        }
        for _ in 0..EXCHANGES_MAX {
            let Some((a, b)) = self.best_exchange(&shares) else { return };
            let (one, two) = (self.state.chosen[a], self.state.chosen[b]);
            let (from, to, moved) = (one.side, two.side, one.weight_over(&two));
            self.state.sums[usize::from(from)] -= moved;
            self.state.sums[usize::from(to)] += moved;
            (self.state.chosen[a].side, self.state.chosen[b].side) = (to, from);
            if !compiled.set.positions.is_empty() && !self.all_assigned() {
                (self.state.chosen[a].side, self.state.chosen[b].side) = (from, to);
                self.state.sums[usize::from(from)] += moved;
                self.state.sums[usize::from(to)] -= moved;
                return;
            }
        }
    }

    /// The exchange that brings two sides closest, if any brings them closer.
    fn best_exchange(&self, shares: &[f64]) -> Option<(usize, usize)> {
        let sums = &self.state.sums;
        let on = |side: usize| {
            let chosen = self.state.chosen.iter().enumerate();
            chosen.filter(|(_, party)| usize::from(party.side) == side).collect::<SmallVec<[_; 8]>>()
        };
        let sides: SmallVec<[_; 2]> = (0..sums.len()).map(on).collect();
        let mut best: Option<(f64, usize, usize)> = None;
        for (one, two) in (0..sides.len()).flat_map(|two| (0..two).map(move |one| (one, two))) {
            let apart = sums[one] * shares[one] - sums[two] * shares[two];
            let share = shares[one] + shares[two];
            for (a, first) in &sides[one] {
                for (b, second) in sides[two].iter().filter(|(_, second)| second.size == first.size) {
                    let gain = apart.abs() - (apart - first.weight_over(second) * share).abs();
                    if gain > 1e-9 && best.is_none_or(|(most, ..)| gain > most) {
                        best = Some((gain, *a, *b));
                    }
                }
            }
        }
        best.map(|(_, a, b)| (a, b))
    }

    fn all_assigned(&self) -> bool {
        (0..self.state.open.len()).all(|side| {
            let players: Vec<&PlayerFacts> = self.players_of(side).collect();
            assign(&self.search.compiled.set.positions, &players, self.state.open[side]).is_some()
        })
    }
}

impl Compiled {
    /// Returns whether a party takes half a side or more.
    pub(crate) fn is_large(&self, size: u32) -> bool {
        2 * size >= self.side_max
    }

    fn weight(&self, facts: &Facts) -> f64 {
        self.main_value(facts) * f64::from(facts.size)
    }
}
