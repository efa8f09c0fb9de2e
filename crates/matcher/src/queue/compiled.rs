//! A rule set ready for use: keys by number, and the rules as they stand after each time that
//! relaxes something.

use super::facts::{Attr, Facts};
use super::ruleset::{
    AttributeKind, Clock, Missing, Of, PartyPolicy, QueueRules, Rule, RuleKind, RuleProblem, RuleSet,
};
use crate::info::Text;

impl QueueRules {
    pub(crate) fn compile(&self) -> Result<Compiled, RuleProblem> {
        Compiled::new(RuleSet::parse(self.source.as_bytes())?)
    }
}

/// A rule set ready for use.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub(crate) set: RuleSet,
    /// Declared keys: numbers in order of name, those of the rating, then all others.
    pub(crate) keys: Vec<String>,
    /// How many of them are numbers.
    pub(crate) numbers: usize,
    /// The number that tickets are ordered by.
    pub(crate) main: Option<usize>,
    /// Keys that split the pool however long a ticket waits.
    pub(crate) partition: Vec<usize>,
    /// By waiting time, the first from the beginning.
    pub(crate) levels: Vec<Level>,
    /// Sides by name, `count` spelled out; their largest sizes.
    pub(crate) sides: Vec<(String, u32)>,
    /// The largest of those.
    pub(crate) side_max: u32,
    /// True if players are kept from those whom they avoid.
    pub(crate) avoids: bool,
    /// True if any rule but that and those on the main number and latency looks at pairs.
    pub(crate) other_pair_rules: bool,
}

/// The rules from a waiting time on.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) after_ms: u64,
    pub(crate) rules: Vec<Checkable>,
    /// Those of them that are seen of two parties already, and not by the main number or latency,
    /// by number.
    pub(crate) pair_rules: Vec<usize>,
    /// Least players of each side.
    pub(crate) mins: Vec<u32>,
    pub(crate) policy: PartyPolicy,
    pub(crate) quality_min: f64,
    /// Keys that split at this level but not at the last.
    pub(crate) split: Vec<usize>,
    /// Greatest difference of two tickets in the main number.
    pub(crate) near: f64,
    /// Latency that every player must keep somewhere.
    pub(crate) max_ms: f64,
}

/// Something that keeps tickets from being matched: a rule by number, a key that splits for now, or
/// another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Rule(usize),
    Split(usize),
    Positions,
    Policy,
    Quality,
}

/// A rule with its key and value looked up.
#[derive(Clone, Debug)]
pub(crate) struct Checkable {
    pub(crate) rule: Rule,
    /// Its place among the rules of a level; `None` within another rule.
    pub(crate) number: Option<usize>,
    pub(crate) key: usize,
    pub(crate) value: Attr,
    pub(crate) missing: Missing,
    pub(crate) inner: Vec<Checkable>,
}

impl Checkable {
    pub(crate) fn is_hard(&self) -> bool {
        self.rule.weight.is_none()
    }

    /// What it is called in explanations.
    pub(crate) fn name(&self) -> String {
        if self.rule.name.is_empty() {
            format!("{:?} {}", self.rule.kind, self.rule.key.as_deref().unwrap_or("")).trim().to_lowercase()
        } else {
            self.rule.name.clone()
        }
    }
}

impl Compiled {
    /// # Errors
    /// As [`RuleSet::levels`].
    pub(crate) fn new(mut set: RuleSet) -> Result<Compiled, RuleProblem> {
        // A search that ends before it has seen as many as play would never find a match of single
        // players.
        set.scan_limit = set.scan_limit.max(set.players_max() as usize);
        let declared = |numbers: bool| {
            let of_kind =
                set.attributes.iter().filter(move |(_, a)| (a.kind == AttributeKind::Number) == numbers);
            of_kind.map(|(key, _)| key.clone())
        };
        let mut keys: Vec<String> = declared(true).collect();
        if set.rating.is_some() {
            keys.extend(["skill".to_owned(), "skill_dev".to_owned()]);
        }
        let numbers = keys.len();
        keys.extend(declared(false));
        let number_of = |key: &str| keys.iter().position(|known| known == key).unwrap_or(usize::MAX);
        let is_hard = |rule: &&Rule, kind: RuleKind| rule.kind == kind && rule.weight.is_none();
        let key_of = |kind: RuleKind| {
            let rule = set.rules.iter().find(|rule| is_hard(rule, kind));
            rule.and_then(|rule| rule.key.as_deref()).map(number_of)
        };
        let main = [RuleKind::Near, RuleKind::Spread, RuleKind::Balance]
            .into_iter()
            .find_map(key_of)
            .or_else(|| set.rating.as_ref().map(|_| number_of("skill")))
            .or_else(|| (numbers > 0).then_some(0));
        let levels = set.levels()?;
        let last = &levels[levels.len() - 1].1.partition;
        let partition: Vec<usize> = last.iter().map(|key| number_of(key)).collect();
        let sides: Vec<(String, u32)> =
            set.all_sides().into_iter().map(|(name, _, max)| (name, max)).collect();
        let levels: Vec<Level> = levels
            .iter()
            .map(|(after_ms, set)| level(*after_ms, set, &number_of, main, &partition))
            .collect();
        let other_pair_rules = !levels[0].split.is_empty()
            || set.rules.iter().any(|rule| {
                let by_main = rule.kind == RuleKind::Near
                    && rule.key.as_deref().map(number_of) == main
                    && !may_lack(rule, &set);
                let pair = matches!(
                    rule.kind,
                    RuleKind::Near
                        | RuleKind::Spread
                        | RuleKind::Equal
                        | RuleKind::Differ
                        | RuleKind::Overlap
                );
                rule.weight.is_none() && pair && !by_main
            });
        let avoids = set.rules.iter().any(|rule| is_hard(&rule, RuleKind::Avoid));
        let side_max = sides.iter().map(|(_, max)| *max).max().unwrap_or(0);
        Ok(Compiled {
            keys,
            numbers,
            main,
            partition,
            levels,
            sides,
            side_max,
            avoids,
            other_pair_rules,
            set,
        })
    }

    /// The number of a declared key.
    pub(crate) fn key(&self, name: &str) -> usize {
        self.keys.iter().position(|key| key == name).unwrap_or(usize::MAX)
    }

    /// The level that a waiting time has reached.
    pub(crate) fn level_at(&self, waited_ms: u64) -> u8 {
        self.levels.iter().take_while(|level| level.after_ms <= waited_ms).count().saturating_sub(1) as u8
    }

    /// The level of a match of two parties.
    pub(crate) fn join_levels(&self, a: u8, b: u8) -> u8 {
        match self.set.expand_clock {
            Clock::Each | Clock::Newest => a.min(b),
            Clock::Oldest => a.max(b),
        }
    }

    /// The value that orders the pool.
    pub(crate) fn main_value(&self, facts: &Facts) -> f64 {
        let value = self.main.map_or(0.0, |key| facts.value(key));
        if value.is_nan() { 0.0 } else { value }
    }

    /// The part of the pool that a party is in.
    pub(crate) fn partition_of(&self, facts: &Facts) -> Vec<Text> {
        self.partition.iter().map(|key| Text::from_slice(self.text(facts, *key))).collect()
    }

    /// A party's text of a key: its first player's.
    pub(crate) fn text<'f>(&self, facts: &'f Facts, key: usize) -> &'f [u8] {
        facts.players.first().map_or(&[], |player| player.text(key))
    }

    /// What keeps tickets of a level from being matched, beside a lack of players.
    pub(crate) fn obstacles(&self, level: u8) -> Vec<Obstacle> {
        let Level { rules, split, policy, quality_min, .. } = &self.levels[usize::from(level)];
        let hard = (0..rules.len()).filter(|number| rules[*number].is_hard());
        let others = [
            (!self.set.positions.is_empty()).then_some(Obstacle::Positions),
            (*policy != PartyPolicy::Any).then_some(Obstacle::Policy),
            (*quality_min > 0.0).then_some(Obstacle::Quality),
        ];
        let split = split.iter().map(|key| Obstacle::Split(*key));
        hard.map(Obstacle::Rule).chain(split).chain(others.into_iter().flatten()).collect()
    }

    /// Name of an obstacle in explanations: as in `expand`, but for rules.
    pub(crate) fn obstacle_name(&self, obstacle: Obstacle) -> String {
        match obstacle {
            Obstacle::Rule(number) => self.levels[0].rules[number].name(),
            Obstacle::Split(key) => format!("partition {}", self.keys[key]),
            Obstacle::Positions => "positions".to_owned(),
            Obstacle::Policy => "party.policy".to_owned(),
            Obstacle::Quality => "quality.min".to_owned(),
        }
    }

    /// These rules as they would be without some obstacles. A rule is gone altogether: as a soft
    /// one it would still be part of the quality.
    pub(crate) fn without(&self, obstacles: &[Obstacle]) -> Compiled {
        let has = |obstacle: Obstacle| obstacles.contains(&obstacle);
        let mut less = self.clone();
        if has(Obstacle::Positions) {
            less.set.positions.clear();
        }
        for level in &mut less.levels {
            level.rules.retain(|rule| rule.number.is_none_or(|number| !has(Obstacle::Rule(number))));
            for (number, rule) in level.rules.iter_mut().enumerate() {
                rule.number = Some(number);
            }
            level.look_up(self.main, &self.set);
            level.split.retain(|key| !has(Obstacle::Split(*key)));
            if has(Obstacle::Policy) {
                level.policy = PartyPolicy::Any;
            }
            if has(Obstacle::Quality) {
                level.quality_min = 0.0;
            }
        }
        less
    }

    /// Why a party can never be matched under these rules, whoever else comes.
    pub(crate) fn never(&self, facts: &Facts) -> Option<String> {
        let last = &self.levels[self.levels.len() - 1];
        if facts.size > self.set.party_max() {
            return Some(format!("the party has {} players, over {}", facts.size, self.set.party_max()));
        }
        for key in &self.partition {
            if facts.players.iter().any(|player| player.text(*key) != self.text(facts, *key)) {
                return Some(format!("`{}` differs within the party", self.keys[*key]));
            }
        }
        for rule in last.rules.iter().filter(|rule| rule.is_hard()) {
            let keyed = rule.rule.key.as_deref().filter(|_| rule.missing == Missing::Reject);
            if let Some(key) = keyed
                && facts.players.iter().any(|player| player.attrs[rule.key] == Attr::Absent)
            {
                return Some(format!("`{key}` is absent and rule `{}` needs it", rule.name()));
            }
            let alone = match rule.rule.kind {
                RuleKind::Compare => rule.compares(facts),
                RuleKind::Latency => {
                    rule.missing == Missing::Any && facts.pings.is_empty()
                        || facts.regions_within(rule.rule.max_ms.unwrap_or(0.0)) != 0
                }
                _ => true,
            };
            if !alone {
                let key = rule.rule.key.as_deref().unwrap_or("Latency");
                return Some(format!("`{key}` can never satisfy rule `{}`", rule.name()));
            }
        }
        None
    }
}

fn level(
    after_ms: u64,
    set: &RuleSet,
    number_of: &dyn Fn(&str) -> usize,
    main: Option<usize>,
    partition: &[usize],
) -> Level {
    let rules: Vec<Checkable> = (0..)
        .zip(&set.rules)
        .map(|(number, rule)| Checkable { number: Some(number), ..checkable(rule, set, number_of) })
        .collect();
    let mut level = Level {
        after_ms,
        mins: set.all_sides().into_iter().map(|(_, min, _)| min).collect(),
        policy: set.party.policy,
        quality_min: set.quality.min,
        split: set
            .partition
            .iter()
            .map(|key| number_of(key))
            .filter(|key| !partition.contains(key))
            .collect(),
        near: f64::INFINITY,
        max_ms: f64::INFINITY,
        pair_rules: Vec::new(),
        rules,
    };
    level.look_up(main, set);
    level
}

impl Level {
    /// Sets what is derived from the rules.
    fn look_up(&mut self, main: Option<usize>, set: &RuleSet) {
        let by_main = |rule: &Checkable| Some(rule.key) == main && !may_lack(&rule.rule, set);
        let of_pairs = |rule: &Checkable| {
            rule.is_hard()
                && match rule.rule.kind {
                    RuleKind::Near => !by_main(rule),
                    RuleKind::Spread => rule.rule.of.unwrap_or_default() == Of::Match,
                    RuleKind::Avoid | RuleKind::Equal | RuleKind::Differ | RuleKind::Overlap => true,
                    _ => false,
                }
        };
        self.pair_rules = (0..self.rules.len()).filter(|number| of_pairs(&self.rules[*number])).collect();
        (self.near, self.max_ms) = limits(&self.rules, main, set);
    }
}

/// Greatest difference of two tickets in the main number, and the latency that every player must
/// keep somewhere.
fn limits(rules: &[Checkable], main: Option<usize>, set: &RuleSet) -> (f64, f64) {
    let hard = |kind: RuleKind| rules.iter().filter(move |rule| rule.is_hard() && rule.rule.kind == kind);
    let near = hard(RuleKind::Near)
        .filter(|rule| Some(rule.key) == main && !may_lack(&rule.rule, set))
        .filter_map(|rule| rule.rule.max);
    let max_ms = hard(RuleKind::Latency)
        .filter(|rule| rule.missing == Missing::Reject)
        .filter_map(|rule| rule.rule.max_ms);
    (near.fold(f64::INFINITY, f64::min), max_ms.fold(f64::INFINITY, f64::min))
}

/// Returns whether a party may have no value of a rule's key and yet be matched: then it has no
/// place in the order by that key.
fn may_lack(rule: &Rule, set: &RuleSet) -> bool {
    let attribute = rule.key.as_ref().and_then(|key| set.attributes.get(key));
    rule.missing.unwrap_or(set.missing) == Missing::Any && attribute.is_some_and(|a| a.default.is_none())
}

fn checkable(rule: &Rule, set: &RuleSet, number_of: &dyn Fn(&str) -> usize) -> Checkable {
    let value = match &rule.value {
        Some(serde_json::Value::String(text)) => Attr::Text(Text::from_slice(text.as_bytes())),
        Some(value) => value.as_f64().map_or(Attr::Absent, Attr::Number),
        None => Attr::Absent,
    };
    Checkable {
        number: None,
        key: rule.key.as_deref().map_or(usize::MAX, number_of),
        value,
        missing: rule.missing.unwrap_or(set.missing),
        inner: rule.rules.iter().map(|inner| checkable(inner, set, number_of)).collect(),
        rule: rule.clone(),
    }
}
