//! Evaluation of rules: for pairs of parties while a match is filled, and for a filled match.

use std::collections::BTreeSet;

use super::compiled::{Checkable, Compiled, Level};
use super::facts::{Attr, Facts, PlayerFacts};
use super::ruleset::{Agg, Choose, Clock, Missing, Of, RuleKind};
use crate::info::Text;
use crate::rating::systems::win_chance;

/// A party in a match and the level that its waiting time has reached.
pub(crate) type Placed<'a> = (&'a Facts, u8);

/// A match under examination: parties by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) sides: &'a [Vec<Placed<'a>>],
    /// Names of the queue's regions; none where it does not matter which of several good ones is
    /// the best.
    pub(crate) regions: &'a [Text],
    /// Level of the match as a whole.
    pub(crate) level: u8,
}

/// Grade of a match that violates no hard rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grade {
    pub(crate) quality: f64,
    pub(crate) region: Option<u16>,
}

impl<'a> View<'a> {
    pub(crate) fn rules(&self) -> &'a Level {
        &self.compiled.levels[usize::from(self.level)]
    }

    /// Grade of a match, if every hard rule holds. Those of type `near` are not asked where filling
    /// admits nobody who violates one; where the newest decides, one who comes may narrow what was
    /// admitted before.
    pub(crate) fn grade(&self) -> Option<Grade> {
        let Level { rules, split, .. } = self.rules();
        if split.iter().any(|key| !self.is_whole(*key)) {
            return None;
        }
        let latencies = || (0..rules.len()).filter(|number| rules[*number].rule.kind == RuleKind::Latency);
        let latency = latencies().find(|number| rules[*number].is_hard()).or_else(|| latencies().next());
        let region = latency.and_then(|number| self.region(&rules[number]));
        let asks_near = self.compiled.set.expand_clock == Clock::Newest;
        let is_asked = |rule: &Checkable| rule.is_hard() && (asks_near || rule.rule.kind != RuleKind::Near);
        for (number, rule) in rules.iter().enumerate().filter(|(_, rule)| is_asked(rule)) {
            let is_known = latency == Some(number);
            let violation = if is_known { self.latency(rule, region) } else { self.violation(rule) };
            if violation > 0.0 {
                return None;
            }
        }
        let weights = &self.compiled.set.quality.weights;
        let soft: Vec<f64> =
            rules.iter().filter_map(|rule| Some(rule.rule.weight? * self.violation(rule))).collect();
        let kept = if soft.is_empty() {
            1.0
        } else {
            (1.0 - soft.iter().sum::<f64>() / soft.len() as f64).clamp(0.0, 1.0)
        };
        let (region, near) = match region.zip(latency.map(|number| &rules[number])) {
            Some(((region, worst), rule)) => {
                let max = rule.rule.max_ms.unwrap_or(1.0).max(1.0);
                (Some(region), (1.0 - worst / max).clamp(0.0, 1.0))
            }
            None => (None, 1.0),
        };
        // A latency term of zero at the very limit would make such a match worthless: the limit is
        // what was asked for.
        let latency = if weights.latency == 0.0 { 1.0 } else { power(near.max(0.05), weights.latency) };
        let quality = power(self.skill_quality(), weights.skill) * power(kept, weights.soft) * latency;
        Some(Grade { quality: quality.clamp(0.0, 1.0), region })
    }

    /// Evenness of the sides by the rating: 1 without one.
    fn skill_quality(&self) -> f64 {
        if self.compiled.set.rating.is_none() || self.sides.len() < 2 {
            return 1.0;
        }
        let skills: Vec<Vec<(f64, f64)>> = (0..self.sides.len()).map(|side| self.skills(side)).collect();
        let mut least: f64 = 1.0;
        for (at, a) in skills.iter().enumerate() {
            for b in &skills[at + 1..] {
                least = least.min(1.0 - (2.0 * win_chance(a, b) - 1.0).abs());
            }
        }
        least
    }

    fn skills(&self, side: usize) -> Vec<(f64, f64)> {
        let (skill, deviation) = (self.compiled.key("skill"), self.compiled.key("skill_dev"));
        let number = |player: &PlayerFacts, key: usize| match player.attrs[key] {
            Attr::Number(value) => value,
            _ => 0.0,
        };
        let players = self.sides[side].iter().flat_map(|(facts, _)| &facts.players);
        players.map(|player| (number(player, skill), number(player, deviation))).collect()
    }

    /// 0 when a rule holds, else by how much it does not, up to 1.
    pub(crate) fn violation(&self, rule: &Checkable) -> f64 {
        let max = rule.rule.max.unwrap_or(f64::INFINITY);
        match rule.rule.kind {
            RuleKind::Spread => over(self.spread(rule), max),
            RuleKind::Near => self.near(rule),
            RuleKind::Balance => over(self.balance(rule), max),
            RuleKind::Compare => unless(self.parties().all(|facts| rule.compares(facts))),
            RuleKind::Equal => unless(self.equal(rule)),
            RuleKind::Differ => unless(self.differ(rule)),
            RuleKind::Overlap => match self.overlap(rule) {
                Some(shared) => over(rule.rule.min.unwrap_or(1.0), shared.len() as f64),
                None => unless(rule.missing == Missing::Any),
            },
            RuleKind::Contains => self.in_range(rule, |player| f64::from(rule.is_in(player))),
            RuleKind::Total => self.in_range(rule, |player| match player.attrs[rule.key] {
                Attr::Number(value) => value,
                _ => 0.0,
            }),
            RuleKind::Latency => self.latency(rule, self.region(rule)),
            RuleKind::Avoid => unless(!self.has_avoided()),
            RuleKind::WinChance => {
                let gap = (2.0 * win_chance(&self.skills(0), &self.skills(1)) - 1.0).abs();
                over(gap, rule.rule.max_gap.unwrap_or(1.0))
            }
            RuleKind::All => rule.inner.iter().map(|inner| self.violation(inner)).fold(0.0, f64::max),
            RuleKind::Any => rule.inner.iter().map(|inner| self.violation(inner)).fold(1.0, f64::min),
            RuleKind::Not => {
                let all = rule.inner.iter().map(|inner| self.violation(inner)).fold(0.0, f64::max);
                unless(all > 0.0)
            }
        }
    }

    fn parties(&self) -> impl Iterator<Item = &'a Facts> {
        self.sides.iter().flatten().map(|(facts, _)| *facts)
    }

    fn players(&self) -> impl Iterator<Item = &'a PlayerFacts> {
        self.parties().flat_map(|facts| &facts.players)
    }

    /// Highest minus lowest party value, over the match or within the worst side.
    fn spread(&self, rule: &Checkable) -> f64 {
        let of = |parties: &mut dyn Iterator<Item = &Placed<'_>>| {
            let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
            for (facts, _) in parties {
                match rule.known(facts.value(rule.key)) {
                    Some(value) => (low, high) = (low.min(value), high.max(value)),
                    None if rule.missing == Missing::Any => {}
                    None => return f64::INFINITY,
                }
            }
            (high - low).max(0.0)
        };
        match rule.rule.of.unwrap_or_default() {
            Of::Match => of(&mut self.sides.iter().flatten()),
            Of::Side => self.sides.iter().map(|side| of(&mut side.iter())).fold(0.0, f64::max),
        }
    }

    fn near(&self, rule: &Checkable) -> f64 {
        let all: Vec<Placed<'_>> = self.sides.iter().flatten().copied().collect();
        let mut worst: f64 = 0.0;
        for (at, a) in all.iter().enumerate() {
            for b in &all[at + 1..] {
                worst = worst
                    .max(over(rule.distance(a.0, b.0), self.compiled.near_limit(rule, a.1, b.1, self.level)));
            }
        }
        worst
    }

    fn balance(&self, rule: &Checkable) -> f64 {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for side in self.sides {
            let Some(value) = aggregate(rule, side) else {
                if rule.missing == Missing::Any {
                    continue;
                }
                return f64::INFINITY;
            };
            (low, high) = (low.min(value), high.max(value));
        }
        (high - low).max(0.0)
    }

    fn equal(&self, rule: &Checkable) -> bool {
        let mut first = None;
        self.players().map(|player| &player.attrs[rule.key]).all(|attr| match (attr, first) {
            (Attr::Absent, _) => rule.missing == Missing::Any,
            (attr, None) => {
                first = Some(attr);
                true
            }
            (attr, Some(first)) => attr == first,
        })
    }

    fn differ(&self, rule: &Checkable) -> bool {
        let mut seen: Vec<&Attr> = Vec::new();
        self.players().map(|player| &player.attrs[rule.key]).all(|attr| {
            let fresh = *attr != Attr::Absent && !seen.contains(&attr);
            seen.push(attr);
            fresh || *attr == Attr::Absent && rule.missing == Missing::Any
        })
    }

    /// Returns whether all players have the same text of a key.
    fn is_whole(&self, key: usize) -> bool {
        let mut texts = self.players().map(|player| player.text(key));
        let first = texts.next();
        texts.all(|text| Some(text) == first)
    }

    /// Texts that every player's list has, each once; `None` where a list is absent that is needed,
    /// or all are.
    pub(crate) fn overlap(&self, rule: &Checkable) -> Option<Vec<&'a [u8]>> {
        let mut shared: Option<Vec<&[u8]>> = None;
        for player in self.players() {
            let Attr::List(list) = &player.attrs[rule.key] else {
                if rule.missing == Missing::Any {
                    continue;
                }
                return None;
            };
            shared = Some(match shared {
                None => {
                    list.iter().map(|text| text.as_slice()).collect::<BTreeSet<_>>().into_iter().collect()
                }
                Some(shared) => {
                    shared.into_iter().filter(|s| list.iter().any(|t| t.as_slice() == *s)).collect()
                }
            });
        }
        shared
    }

    /// A sum over players in range, of the match or of each side. Who has no value where that is no
    /// matter adds nothing.
    fn in_range(&self, rule: &Checkable, count: impl Fn(&PlayerFacts) -> f64) -> f64 {
        let lacks = |player: &PlayerFacts| player.attrs[rule.key] == Attr::Absent;
        if rule.missing == Missing::Reject && self.players().any(lacks) {
            return 1.0;
        }
        let sums: Vec<f64> = match rule.rule.of.unwrap_or_default() {
            Of::Match => vec![self.players().map(count).sum()],
            Of::Side => {
                let side = |side: &Vec<Placed<'_>>| {
                    side.iter().flat_map(|(facts, _)| &facts.players).map(&count).sum()
                };
                self.sides.iter().map(side).collect()
            }
        };
        let (min, max) = (rule.rule.min.unwrap_or(f64::NEG_INFINITY), rule.rule.max.unwrap_or(f64::INFINITY));
        sums.into_iter().map(|sum| over(sum, max).max(over(min, sum))).fold(0.0, f64::max)
    }

    /// Of a latency rule with what [`region`](View::region) found for it.
    fn latency(&self, rule: &Checkable, region: Option<(u16, f64)>) -> f64 {
        let is_free = || rule.missing == Missing::Any && self.parties().all(|facts| facts.pings.is_empty());
        unless(region.is_some() || is_free())
    }

    /// The best region that a latency rule allows, of equally good ones the first by name, and the
    /// worst latency there.
    pub(crate) fn region(&self, rule: &Checkable) -> Option<(u16, f64)> {
        let parties =
            || self.parties().filter(|facts| rule.missing != Missing::Any || !facts.pings.is_empty());
        let regions = parties().map(|facts| facts.pings.len()).max()?;
        let max = rule.rule.max_ms.unwrap_or(f64::INFINITY);
        let mut best: Option<(u16, f64, f64)> = None;
        'regions: for region in 0..regions {
            let (mut low, mut high, mut sum, mut count) = (f64::INFINITY, 0.0_f64, 0.0, 0.0);
            for facts in parties() {
                let ping = facts.ping(region);
                if !ping.is_within(max) {
                    continue 'regions;
                }
                low = low.min(f64::from(ping.best));
                high = high.max(f64::from(ping.worst));
                sum += f64::from(ping.sum);
                count += f64::from(facts.size);
            }
            if rule.rule.relative_ms.is_some_and(|relative| (high - low) as f32 > relative as f32) {
                continue;
            }
            let score = match rule.rule.choose.unwrap_or_default() {
                Choose::MinWorst => high,
                Choose::MinMean => sum / count,
            };
            let is_better = |(other, least, _): (u16, f64, f64)| {
                score < least || score == least && is_named_before(self.regions, region, usize::from(other))
            };
            if best.is_none_or(is_better) {
                best = Some((region as u16, score, high));
            }
        }
        best.map(|(region, _, worst)| (region, worst))
    }

    fn has_avoided(&self) -> bool {
        if !self.parties().any(|facts| facts.avoids) {
            return false;
        }
        let anybody = |role: u64| self.players().any(|player| player.role == role);
        self.players().any(|player| player.avoid.iter().any(|role| anybody(*role)))
    }
}

/// A term by its weight, which is mostly 1.
fn power(term: f64, weight: f64) -> f64 {
    if weight == 1.0 { term } else { term.powf(weight) }
}

impl Compiled {
    /// Greatest difference of two parties by a `near` rule.
    pub(crate) fn near_limit(&self, rule: &Checkable, a: u8, b: u8, whole: u8) -> f64 {
        // Every level has the same rules in the same order; only their limits differ. Within a rule
        // nothing expands.
        let limit = |level: u8| {
            let rule = rule.number.map_or(rule, |number| &self.levels[usize::from(level)].rules[number]);
            rule.rule.max.unwrap_or(f64::INFINITY)
        };
        match self.set.expand_clock {
            Clock::Each => limit(a).min(limit(b)),
            Clock::Oldest | Clock::Newest => limit(whole),
        }
    }

    /// Returns whether two parties may be in one match as far as filling does not see to it by
    /// other means: the main number and latency are kept as ranges.
    pub(crate) fn may_meet(&self, a: Placed<'_>, b: Placed<'_>) -> bool {
        let whole = self.join_levels(a.1, b.1);
        let level = &self.levels[usize::from(whole)];
        let players = || a.0.players.iter().chain(&b.0.players);
        if level.split.iter().any(|key| players().any(|player| player.text(*key) != self.text(a.0, *key))) {
            return false;
        }
        level.pair_rules.iter().all(|number| {
            let rule = &level.rules[*number];
            match rule.rule.kind {
                RuleKind::Near => rule.distance(a.0, b.0) <= self.near_limit(rule, a.1, b.1, whole),
                RuleKind::Spread => rule.distance(a.0, b.0) <= rule.rule.max.unwrap_or(f64::INFINITY),
                RuleKind::Avoid => !avoids(a.0, b.0) && !avoids(b.0, a.0),
                RuleKind::Equal => {
                    let own =
                        |facts: &Facts| facts.players.first().map(|player| player.attrs[rule.key].clone());
                    let (left, right) = (own(a.0), own(b.0));
                    let absent = left == Some(Attr::Absent) || right == Some(Attr::Absent);
                    left == right || absent && rule.missing == Missing::Any
                }
                RuleKind::Differ => a.0.players.iter().all(|player| {
                    let own = &player.attrs[rule.key];
                    *own == Attr::Absent || b.0.players.iter().all(|other| other.attrs[rule.key] != *own)
                }),
                // With others they share no more than the two do.
                RuleKind::Overlap => {
                    let sides = [vec![a, b]];
                    let view = View { compiled: self, sides: &sides, regions: &[], level: whole };
                    view.violation(rule) == 0.0
                }
                _ => true,
            }
        })
    }

    /// The rules that two parties violate by themselves, whoever else plays: for filling and for
    /// explaining.
    pub(crate) fn pair_violations(
        &self,
        a: Placed<'_>,
        b: Placed<'_>,
        mut found: impl FnMut(String, String),
    ) {
        let whole = self.join_levels(a.1, b.1);
        let level = &self.levels[usize::from(whole)];
        for key in self.partition.iter().chain(&level.split) {
            let (left, right) = (self.text(a.0, *key), self.text(b.0, *key));
            if left != right {
                let why = format!("{} and {}", String::from_utf8_lossy(left), String::from_utf8_lossy(right));
                found(format!("partition {}", self.keys[*key]), why);
            }
        }
        let sides = [vec![a, b]];
        let view = View { compiled: self, sides: &sides, regions: &[], level: whole };
        for rule in level.rules.iter().filter(|rule| rule.is_hard()) {
            let pairwise = match rule.rule.kind {
                RuleKind::Spread => rule.rule.of.unwrap_or_default() == Of::Match,
                RuleKind::Near | RuleKind::Equal | RuleKind::Differ | RuleKind::Overlap => true,
                RuleKind::Latency | RuleKind::Avoid => true,
                _ => false,
            };
            if pairwise && view.violation(rule) > 0.0 {
                let why = match rule.rule.kind {
                    RuleKind::Spread | RuleKind::Near => {
                        let limit = match rule.rule.kind {
                            RuleKind::Near => self.near_limit(rule, a.1, b.1, whole),
                            _ => rule.rule.max.unwrap_or_default(),
                        };
                        format!("they differ by {:.2}, over {limit:.2}", rule.distance(a.0, b.0))
                    }
                    RuleKind::Latency => {
                        format!("no region within {} ms of both", rule.rule.max_ms.unwrap_or(0.0))
                    }
                    RuleKind::Avoid => "one avoids the other".to_owned(),
                    RuleKind::Overlap => "their lists share too little".to_owned(),
                    RuleKind::Equal => "their values differ".to_owned(),
                    _ => "their values are the same".to_owned(),
                };
                found(rule.name(), why);
            }
        }
    }
}

impl Checkable {
    fn known(&self, value: f64) -> Option<f64> {
        (!value.is_nan()).then_some(value)
    }

    /// Difference of two parties; 0 where an absent value is no matter, infinite where it is.
    pub(crate) fn distance(&self, a: &Facts, b: &Facts) -> f64 {
        match (self.known(a.value(self.key)), self.known(b.value(self.key))) {
            (Some(a), Some(b)) => (a - b).abs(),
            _ if self.missing == Missing::Any => 0.0,
            _ => f64::INFINITY,
        }
    }

    /// Returns whether each player's value compares as a `compare` rule says.
    pub(crate) fn compares(&self, facts: &Facts) -> bool {
        let op = self.rule.op.as_deref().unwrap_or("=");
        facts.players.iter().all(|player| match (&player.attrs[self.key], &self.value) {
            (Attr::Absent, _) => self.missing == Missing::Any,
            (Attr::Number(a), Attr::Number(b)) => match op {
                "=" => a == b,
                "!=" => a != b,
                "<" => a < b,
                "<=" => a <= b,
                ">" => a > b,
                _ => a >= b,
            },
            (a, b) => (a == b) == (op == "="),
        })
    }

    fn is_in(&self, player: &PlayerFacts) -> bool {
        match (&player.attrs[self.key], &self.value) {
            (Attr::List(list), Attr::Text(text)) => list.contains(text),
            (own, value) => own == value,
        }
    }
}

/// Returns whether a region's name comes before another's. The numbers are in the order in which
/// the queue has heard of them, which must not decide anything.
pub(crate) fn is_named_before(regions: &[Text], one: usize, other: usize) -> bool {
    let name = |region: usize| regions.get(region);
    name(one).is_some_and(|one| name(other).is_none_or(|other| one < other))
}

fn avoids(a: &Facts, b: &Facts) -> bool {
    let avoided = |role: &u64| b.players.iter().any(|player| player.role == *role);
    a.players.iter().any(|player| player.avoid.iter().any(avoided))
}

/// A side's aggregate: parties weigh by their players.
fn aggregate(rule: &Checkable, side: &[Placed<'_>]) -> Option<f64> {
    let (mut sum, mut max, mut count) = (0.0, f64::NEG_INFINITY, 0.0);
    for (facts, _) in side {
        let value = facts.value(rule.key);
        if value.is_nan() {
            if rule.missing == Missing::Any {
                continue;
            }
            return None;
        }
        let size = f64::from(facts.size);
        (sum, max, count) = (sum + value * size, f64::max(max, value), count + size);
    }
    if count == 0.0 {
        return None;
    }
    Some(match rule.rule.agg.unwrap_or(Agg::Mean) {
        Agg::Mean => sum / count,
        Agg::Sum => sum,
        Agg::Max => max,
    })
}

/// By how much a value exceeds a limit, as a part of the limit, at most 1.
fn over(value: f64, limit: f64) -> f64 {
    if value <= limit {
        return 0.0;
    }
    ((value - limit) / limit.abs().max(1e-9)).clamp(f64::MIN_POSITIVE, 1.0)
}

fn unless(holds: bool) -> f64 {
    f64::from(!holds)
}
