//! Rule sets as written: the conditions of a queue's matches, and their relaxation with the waiting
//! time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::rating::systems::System;

/// Problem of a rule set, and its path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct RuleProblem {
    /// Path in the document, as in `rules[2].max`.
    pub path: String,
    /// Why it is refused.
    pub reason: String,
}

pub(crate) fn problem(path: impl Into<String>, reason: impl Into<String>) -> RuleProblem {
    RuleProblem { path: path.into(), reason: reason.into() }
}

/// A rule set as written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSet {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) version: String,
    #[serde(default = "defaults::tick_ms")]
    pub(crate) tick_ms: u64,
    #[serde(default = "defaults::timeout_s")]
    pub(crate) timeout_s: u64,
    pub(crate) sides: Vec<SideRule>,
    #[serde(default)]
    pub(crate) party: Party,
    #[serde(default)]
    pub(crate) attributes: BTreeMap<String, Attribute>,
    #[serde(default)]
    pub(crate) partition: Vec<String>,
    #[serde(default)]
    pub(crate) rating: Option<RatingRule>,
    #[serde(default)]
    pub(crate) rules: Vec<Rule>,
    #[serde(default)]
    pub(crate) positions: Vec<Position>,
    #[serde(default)]
    pub(crate) expand: Vec<Expand>,
    #[serde(default)]
    pub(crate) expand_clock: Clock,
    #[serde(default)]
    pub(crate) missing: Missing,
    #[serde(default)]
    pub(crate) quality: Quality,
    #[serde(default = "defaults::scan_limit")]
    pub(crate) scan_limit: usize,
    #[serde(default)]
    pub(crate) accept: Accept,
    #[serde(default = "defaults::seat_ttl_s")]
    pub(crate) seat_ttl_s: u64,
    #[serde(default)]
    pub(crate) assign: Assign,
    #[serde(default = "defaults::assign_timeout_s")]
    pub(crate) assign_timeout_s: u64,
    /// Server that gives matches their servers, with `assign = "external"`.
    #[serde(default)]
    pub(crate) allocator: String,
    /// World that the allocator opens for each match.
    #[serde(default)]
    pub(crate) world: Option<MatchWorld>,
    /// True if rooms of this queue may be filled up again; without it a full room is sealed.
    #[serde(default)]
    pub(crate) backfill: Option<Backfill>,
    /// Time between two messages to a waiting ticket about how it stands; 0 sends none.
    #[serde(default = "defaults::updates_s")]
    pub(crate) updates_s: u64,
    #[serde(default)]
    pub(crate) allow_in_room: bool,
    #[serde(default)]
    pub(crate) on_member_lost: OnMemberLost,
}

mod defaults {
    pub(super) fn tick_ms() -> u64 {
        250
    }
    pub(super) fn timeout_s() -> u64 {
        300
    }
    pub(super) fn scan_limit() -> usize {
        64
    }
    pub(super) fn seat_ttl_s() -> u64 {
        30
    }
    pub(super) fn assign_timeout_s() -> u64 {
        30
    }
    pub(super) fn one() -> u32 {
        1
    }
    pub(super) fn answer_s() -> u64 {
        15
    }
    pub(super) fn ack_s() -> u64 {
        10
    }
    pub(super) fn period_s() -> u64 {
        86_400
    }
    pub(super) fn updates_s() -> u64 {
        5
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SideRule {
    pub(crate) name: String,
    #[serde(default = "defaults::one")]
    pub(crate) count: u32,
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl SideRule {
    /// Names of its sides, `count` spelled out.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        (1..=self.count)
            .map(|number| if self.count == 1 { self.name.clone() } else { format!("{}{number}", self.name) })
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Party {
    pub(crate) max: Option<u32>,
    pub(crate) policy: PartyPolicy,
    pub(crate) skill: PartySkill,
    pub(crate) bonus_per_extra: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartyPolicy {
    #[default]
    Any,
    SameSize,
    LargeVsLarge,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartySkill {
    Max,
    #[default]
    Mean,
    SoftMax,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attribute {
    #[serde(rename = "type")]
    pub(crate) kind: AttributeKind,
    #[serde(default)]
    pub(crate) default: Option<Value>,
    #[serde(default)]
    pub(crate) min: Option<f64>,
    #[serde(default)]
    pub(crate) max: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AttributeKind {
    Number,
    String,
    StringList,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RatingRule {
    #[serde(default)]
    pub(crate) system: System,
    pub(crate) pool: String,
    /// Callers' own `skill` and `skill_dev` count.
    #[serde(default)]
    pub(crate) trust_ticket: bool,
    /// Length of a Glicko-2 rating period; 0: every game is its own.
    #[serde(default = "defaults::period_s")]
    pub(crate) period_s: u64,
}

/// A rule set that was checked: it has a name, its numbers are in range and nothing in it
/// contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct QueueRules {
    pub(super) name: String,
    /// JSON as given.
    pub(super) source: String,
}

impl QueueRules {
    /// Reads a rule set.
    ///
    /// # Errors
    /// The first thing that is wrong, with its path in the document.
    pub fn parse(json: &[u8]) -> Result<QueueRules, RuleProblem> {
        let set = RuleSet::parse(json)?;
        let source = String::from_utf8_lossy(json).into_owned();
        Ok(QueueRules { name: set.name, source })
    }

    /// Name of the queue.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// JSON as given.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The same name with changed members.
    pub(crate) fn changed(&self, change: impl FnOnce(&mut Map<String, Value>)) -> QueueRules {
        let mut rules: Value = serde_json::from_str(&self.source).unwrap_or_default();
        if let Some(members) = rules.as_object_mut() {
            change(members);
        }
        QueueRules { name: self.name.clone(), source: rules.to_string() }
    }

    /// Returns whether a policy gives its matches their servers.
    pub(crate) fn asks_policy(&self) -> bool {
        RuleSet::parse(self.source.as_bytes()).is_ok_and(|set| set.assign == Assign::Policy)
    }

    /// The pool that it rates in, and by which system.
    pub(crate) fn rating(&self) -> Option<(String, System)> {
        RuleSet::parse(self.source.as_bytes()).ok()?.rating.map(|rating| (rating.pool, rating.system))
    }
}

impl TryFrom<Value> for QueueRules {
    type Error = RuleProblem;

    fn try_from(value: Value) -> Result<QueueRules, RuleProblem> {
        QueueRules::parse(value.to_string().as_bytes())
    }
}

impl From<QueueRules> for Value {
    fn from(rules: QueueRules) -> Value {
        // The text was read as JSON once.
        serde_json::from_str(&rules.source).unwrap_or_default()
    }
}

/// A rule with the members of every type; `check` refuses those that its type does not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: RuleKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<Of>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agg: Option<Agg>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) op: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) relative_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) choose: Option<Choose>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_gap: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rules: Vec<Rule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<Missing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RuleKind {
    Spread,
    Near,
    Balance,
    Compare,
    Equal,
    Differ,
    Overlap,
    Contains,
    Latency,
    Total,
    Avoid,
    WinChance,
    All,
    Any,
    Not,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Of {
    #[default]
    Match,
    Side,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Agg {
    #[default]
    Mean,
    Sum,
    Max,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Choose {
    #[default]
    MinWorst,
    MinMean,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Position {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) per_side_min: u32,
    pub(crate) per_side_max: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expand {
    pub(crate) target: String,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) after_s: f64,
    pub(crate) value: Value,
}

impl Step {
    fn after_ms(&self) -> u64 {
        (self.after_s * 1e3).round() as u64
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    #[default]
    Each,
    Oldest,
    Newest,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Missing {
    #[default]
    Reject,
    Any,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Quality {
    pub(crate) min: f64,
    pub(crate) prefer: Prefer,
    pub(crate) weights: Weights,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Prefer {
    #[default]
    Skill,
    Wait,
    Latency,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Weights {
    pub(crate) skill: f64,
    pub(crate) soft: f64,
    pub(crate) latency: f64,
}

impl Default for Weights {
    fn default() -> Weights {
        Weights { skill: 1.0, soft: 1.0, latency: 1.0 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Accept {
    pub(crate) required: bool,
    /// Tells players who else would play.
    pub(crate) reveal: bool,
    #[serde(default = "defaults::answer_s")]
    pub(crate) timeout_s: u64,
    pub(crate) on_decline: OnNo,
    pub(crate) on_silence: OnNo,
    pub(crate) cooldown_s: u64,
}

impl Default for Accept {
    fn default() -> Accept {
        Accept {
            required: false,
            reveal: false,
            timeout_s: defaults::answer_s(),
            on_decline: OnNo::Cancel,
            on_silence: OnNo::Cancel,
            cooldown_s: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnNo {
    #[default]
    Cancel,
    Requeue,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Assign {
    Policy,
    External,
    #[default]
    None,
}

/// World of a gateway for one match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatchWorld {
    /// Its class.
    pub class: String,
}

impl MatchWorld {
    /// Checks the name of the class.
    ///
    /// # Errors
    /// The characters that a name may have.
    pub(crate) fn check(&self) -> Result<(), RuleProblem> {
        let lower = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = self.class.as_bytes();
        let fits = bytes.first().is_some_and(|first| lower(*first))
            && bytes.len() <= 18
            && bytes.iter().all(|c| lower(*c) || *c == b'-');
        if fits {
            return Ok(());
        }
        Err(problem("world.class", "a class has 1 to 18 lower-case letters, digits and `-`, no `-` first"))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnMemberLost {
    #[default]
    Cancel,
    Shrink,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Backfill {
    pub(crate) priority: BackfillPriority,
    #[serde(default = "defaults::ack_s")]
    pub(crate) ack_s: u64,
}

impl Default for Backfill {
    fn default() -> Backfill {
        Backfill { priority: BackfillPriority::Normal, ack_s: defaults::ack_s() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackfillPriority {
    High,
    #[default]
    Normal,
    Low,
}

/// Longest rule set: several fit into a page of them.
const BYTES_MAX: usize = 256 << 10;
pub(super) const SIDES_MAX: u32 = 16;
pub(super) const PLAYERS_MAX: u32 = 200;
pub(super) const RULES_MAX: usize = 64;
pub(super) const STEPS_MAX: usize = 64;
pub(super) const RULE_DEPTH_MAX: usize = 4;
/// Waiting times from which other rules hold. How many a ticket has reached is kept in a byte.
const TIMES_MAX: usize = 255;
/// Time after which gateways give up to open a world.
pub(crate) const WORLD_TIMEOUT_S: u64 = 10;

impl RuleSet {
    /// Time for the assignment of a server, in milliseconds.
    pub(crate) fn assign_timeout_ms(&self) -> u64 {
        let longest = self.world.as_ref().map_or(self.assign_timeout_s, |_| WORLD_TIMEOUT_S);
        self.assign_timeout_s.min(longest) * 1_000
    }

    /// Reads and checks a rule set.
    ///
    /// # Errors
    /// The first thing that is wrong, with its path in the document.
    pub(crate) fn parse(json: &[u8]) -> Result<RuleSet, RuleProblem> {
        if json.len() > BYTES_MAX {
            return Err(problem(".", format!("it has {} bytes, over {BYTES_MAX}", json.len())));
        }
        let mut reader = serde_json::Deserializer::from_slice(json);
        let rules: RuleSet = serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| problem(error.path().to_string(), error.inner().to_string()))?;
        reader.end().map_err(|error| problem(".", error.to_string()))?;
        super::check::check(&rules)?;
        // No level may be narrower than the one before.
        let times = rules.levels()?.len() - 1;
        if times > TIMES_MAX {
            let reason = format!("{times} times change something, over {TIMES_MAX}");
            return Err(problem("expand", reason));
        }
        Ok(rules)
    }

    /// Sides by name and size, `count` spelled out.
    pub(crate) fn all_sides(&self) -> Vec<(String, u32, u32)> {
        let mut all = Vec::new();
        for side in &self.sides {
            all.extend(side.names().map(|name| (name, side.min, side.max)));
        }
        all
    }

    pub(crate) fn players_max(&self) -> u32 {
        self.sides.iter().map(|side| side.count * side.max).sum()
    }

    pub(crate) fn party_max(&self) -> u32 {
        let largest = self.sides.iter().map(|side| side.max).max().unwrap_or(1);
        self.party.max.unwrap_or(largest).min(largest)
    }

    /// The rule set as it stands after each time that changes something: (ms waited, rules), the
    /// first at 0.
    pub(crate) fn levels(&self) -> Result<Vec<(u64, RuleSet)>, RuleProblem> {
        let mut times: Vec<u64> = vec![0];
        for expand in &self.expand {
            times.extend(expand.steps.iter().map(Step::after_ms));
        }
        times.sort_unstable();
        times.dedup();
        let mut levels: Vec<(u64, RuleSet)> = Vec::new();
        for time in times {
            let mut rules = levels.last().map_or_else(|| self.clone(), |(_, rules)| rules.clone());
            for (at, expand) in self.expand.iter().enumerate() {
                for (number, step) in expand.steps.iter().enumerate() {
                    if step.after_ms() == time {
                        let path = format!("expand[{at}].steps[{number}]");
                        rules.apply(&expand.target, &step.value).map_err(|reason| problem(path, reason))?;
                    }
                }
            }
            levels.push((time, rules));
        }
        Ok(levels)
    }

    fn apply(&mut self, target: &str, value: &Value) -> Result<(), String> {
        let number =
            || value.as_f64().filter(|v| v.is_finite()).ok_or("the value must be a number".to_owned());
        if target == "partition" {
            let keys: Vec<String> =
                serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
            if keys.iter().any(|key| !self.partition.contains(key)) {
                return Err("a step must relax: it may only keep keys of partition".to_owned());
            }
            self.partition = keys;
        } else if target == "party.policy" {
            let policy: PartyPolicy =
                serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
            if policy != PartyPolicy::Any && policy != self.party.policy {
                return Err("a step must relax: only to \"any\"".to_owned());
            }
            self.party.policy = policy;
        } else if target == "quality.min" {
            let min = number()?;
            if min < 0.0 {
                return Err("it must be 0 to 1".to_owned());
            }
            relaxes(min <= self.quality.min)?;
            self.quality.min = min;
        } else if let Some(name) = target.strip_prefix("sides.").and_then(|rest| rest.strip_suffix(".min")) {
            let min =
                value.as_u64().filter(|min| *min > 0).ok_or("the value must be a whole number over 0")?;
            let side = self.sides.iter_mut().find(|side| side.name == name);
            let side = side.ok_or_else(|| format!("no side is called `{name}`"))?;
            relaxes(min <= u64::from(side.min))?;
            side.min = min as u32;
        } else if let Some((name, member)) =
            target.strip_prefix("rules.").and_then(|rest| rest.rsplit_once('.'))
        {
            let value = number()?;
            let rule = self.rules.iter_mut().find(|rule| !name.is_empty() && rule.name == name);
            let rule = rule.ok_or_else(|| format!("no rule is called `{name}`"))?;
            let (slot, relaxed) = match member {
                "max" => (&mut rule.max, Some(true)),
                "max_ms" => (&mut rule.max_ms, Some(true)),
                "relative_ms" => (&mut rule.relative_ms, Some(true)),
                "max_gap" => (&mut rule.max_gap, Some(true)),
                "min" => (&mut rule.min, Some(false)),
                _ => return Err(format!("`{member}` of a rule cannot be expanded")),
            };
            let before = slot.ok_or_else(|| format!("rule `{name}` has no `{member}`"))?;
            relaxes(if relaxed == Some(true) { value >= before } else { value <= before })?;
            *slot = Some(value);
        } else {
            return Err(format!("`{target}` cannot be expanded"));
        }
        Ok(())
    }
}

impl Attribute {
    /// Returns whether a value is one of this attribute.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        match self.kind {
            AttributeKind::Number => {
                let number = value.as_f64().ok_or("it must be a number")?;
                if self.min.is_some_and(|min| number < min) || self.max.is_some_and(|max| number > max) {
                    return Err(format!("{number} is out of range"));
                }
            }
            AttributeKind::String => {
                let text = value.as_str().ok_or("it must be a string")?;
                if text.len() > 256 {
                    return Err("texts have at most 256 bytes".to_owned());
                }
            }
            AttributeKind::StringList => {
                let list = value.as_array().ok_or("it must be a list of strings")?;
                if list.len() > 64
                    || list.iter().any(|item| item.as_str().is_none_or(|text| text.len() > 256))
                {
                    return Err("it must be a list of at most 64 texts".to_owned());
                }
            }
        }
        Ok(())
    }
}

fn relaxes(relaxed: bool) -> Result<(), String> {
    if relaxed { Ok(()) } else { Err("a step must relax: what was possible stays possible".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two teams of five, ranked.
    pub(crate) const RANKED: &str = r#"{
        "name": "ranked5", "sides": [{"name": "red", "min": 5, "max": 5}, {"name": "blue", "min": 5, "max": 5}],
        "attributes": {"skill": {"type": "number"}, "build": {"type": "string", "default": ""}},
        "partition": ["build"],
        "rules": [
            {"name": "skill", "type": "near", "key": "skill", "max": 4},
            {"name": "fair", "type": "balance", "key": "skill", "agg": "mean", "max": 1.5},
            {"name": "ping", "type": "latency", "max_ms": 60},
            {"name": "foes", "type": "avoid"}],
        "party": {"policy": "large_vs_large"},
        "expand": [
            {"target": "rules.skill.max", "steps": [{"after_s": 10, "value": 6}, {"after_s": 30, "value": 10}]},
            {"target": "party.policy", "steps": [{"after_s": 45, "value": "any"}]}]
    }"#;

    #[test]
    fn expansion_makes_levels() {
        let levels = RuleSet::parse(RANKED.as_bytes()).unwrap().levels().unwrap();
        let seen: Vec<(u64, Option<f64>, PartyPolicy)> =
            levels.iter().map(|(at, rules)| (*at, rules.rules[0].max, rules.party.policy)).collect();
        use PartyPolicy::{Any, LargeVsLarge};
        assert_eq!(
            seen,
            [
                (0, Some(4.0), LargeVsLarge),
                (10_000, Some(6.0), LargeVsLarge),
                (30_000, Some(10.0), LargeVsLarge),
                (45_000, Some(10.0), Any)
            ]
        );
    }

    #[test]
    fn a_rule_set_changes_at_255_times() {
        let with = |times: u32| {
            let step = |at: u32| format!(r#"{{"after_s": {at}, "value": {}}}"#, f64::from(at));
            let targets: Vec<Vec<String>> =
                (1..=times).map(step).collect::<Vec<_>>().chunks(STEPS_MAX).map(<[String]>::to_vec).collect();
            let rule = |at: usize| format!(r#"{{"name": "r{at}", "type": "near", "key": "k", "max": 0}}"#);
            let expand = |(at, steps): (usize, &Vec<String>)| {
                format!(r#"{{"target": "rules.r{at}.max", "steps": [{}]}}"#, steps.join(", "))
            };
            let rules: Vec<String> = (0..targets.len()).map(rule).collect();
            let expand: Vec<String> = targets.iter().enumerate().map(expand).collect();
            let text = format!(
                r#"{{"name": "q", "sides": [{{"name": "a", "min": 2, "max": 2}}], "attributes": {{"k": {{"type": "number"}}}},
                    "rules": [{}], "expand": [{}]}}"#,
                rules.join(", "),
                expand.join(", ")
            );
            RuleSet::parse(text.as_bytes()).map(|rules| rules.levels().unwrap().len())
        };
        assert_eq!(with(255), Ok(256));
        let why = with(256).unwrap_err().to_string();
        assert_eq!(why, "expand: 256 times change something, over 255");
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_its_path() {
        for (from, to, path) in [
            (r#""max": 4"#, r#""max": -4"#, "rules[0]"),
            (r#""value": 6"#, r#""value": 3"#, "expand[0].steps[0]"),
            (r#""key": "skill", "max": 4"#, r#""key": "skil", "max": 4"#, "rules[0].key"),
            (r#""min": 5, "max": 5}]"#, r#""min": 6, "max": 5}]"#, "sides[1].min"),
            (r#""partition": ["build"]"#, r#""partition": ["skill"]"#, "partition[0]"),
            (r#""max_ms": 60"#, r#""max_ms": 60, "agg": "sum""#, "rules[2].agg"),
            (r#""name": "ranked5""#, r#""name": "ranked5", "tick": 5"#, "tick"),
            (r#""target": "party.policy""#, r#""target": "party.size""#, "expand[1].steps[0]"),
            (r#""name": "red", "min""#, r#""name": "blue", "min""#, "sides[1].name"),
            (
                r#"{"name": "blue", "min": 5"#,
                r#"{"name": "re", "count": 2, "min": 1, "max": 1}, {"name": "re2", "min": 5"#,
                "sides[2].name",
            ),
        ] {
            let text = RANKED.replacen(from, to, 1);
            assert_ne!(text, RANKED, "{from}");
            let found = RuleSet::parse(text.as_bytes()).unwrap_err();
            assert_eq!(found.path, path, "{found}");
        }
    }
}
