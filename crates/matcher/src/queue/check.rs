//! Checks of a rule set: every limit, and no contradiction.

use super::ruleset::{
    Assign, AttributeKind, MatchWorld, PLAYERS_MAX, RULE_DEPTH_MAX, RULES_MAX, Rule, RuleKind, RuleProblem,
    RuleSet, SIDES_MAX, STEPS_MAX, SideRule, problem,
};

type Checked = Result<(), RuleProblem>;

/// Checks a rule set that was read.
///
/// # Errors
/// The first thing that is wrong, with its path in the document.
pub(super) fn check(set: &RuleSet) -> Checked {
    check_numbers(set)?;
    check_sides(set)?;
    check_attributes(set)?;
    between("rules", set.rules.len() as u64, 0, RULES_MAX as u64)?;
    for (at, rule) in set.rules.iter().enumerate() {
        check_rule(set, rule, &format!("rules[{at}]"), 0)?;
        if !rule.name.is_empty() && set.rules[..at].iter().any(|other| other.name == rule.name) {
            return Err(problem(format!("rules[{at}].name"), "another rule has this name"));
        }
    }
    check_positions(set)?;
    check_steps(set)
}

fn between(path: &str, value: u64, min: u64, max: u64) -> Checked {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(problem(path, format!("{value} is not between {min} and {max}")))
}

fn check_world(set: &RuleSet, world: &MatchWorld) -> Checked {
    world.check()?;
    if set.assign != Assign::External || set.allocator.is_empty() {
        return Err(problem(
            "world",
            "the allocator opens it: set `assign` to \"external\" and `allocator` to the `SrvID` of a gateway's link",
        ));
    }
    Ok(())
}

fn check_numbers(set: &RuleSet) -> Checked {
    if set.name.is_empty() || set.name.len() > 64 {
        return Err(problem("name", "it must have 1 to 64 bytes"));
    }
    between("tick_ms", set.tick_ms, 50, 10_000)?;
    between("timeout_s", set.timeout_s, 1, 86_400)?;
    between("scan_limit", set.scan_limit as u64, 8, 4_096)?;
    between("seat_ttl_s", set.seat_ttl_s, 1, 3_600)?;
    between("assign_timeout_s", set.assign_timeout_s, 1, 3_600)?;
    between("accept.timeout_s", set.accept.timeout_s, 1, 600)?;
    between("accept.cooldown_s", set.accept.cooldown_s, 0, 86_400)?;
    between("updates_s", set.updates_s, 0, 3_600)?;
    if let Some(backfill) = &set.backfill {
        between("backfill.ack_s", backfill.ack_s, 1, 600)?;
    }
    if let Some(world) = &set.world {
        check_world(set, world)?;
    }
    if let Some(rating) = &set.rating {
        between("rating.pool", rating.pool.len() as u64, 1, 64)?;
        between("rating.period_s", rating.period_s, 0, 31 * 86_400)?;
    }
    if !(0.0..=1.0).contains(&set.quality.min) {
        return Err(problem("quality.min", "it must be 0 to 1"));
    }
    let weights = &set.quality.weights;
    if [weights.skill, weights.soft, weights.latency].iter().any(|weight| !(0.0..=100.0).contains(weight)) {
        return Err(problem("quality.weights", "weights are 0 to 100"));
    }
    if !set.party.bonus_per_extra.is_finite() {
        return Err(problem("party.bonus_per_extra", "it must be finite"));
    }
    Ok(())
}

fn check_sides(set: &RuleSet) -> Checked {
    between("sides", set.sides.len() as u64, 1, u64::from(SIDES_MAX))?;
    for (at, side) in set.sides.iter().enumerate() {
        between(&format!("sides[{at}].count"), u64::from(side.count), 1, u64::from(SIDES_MAX))?;
        between(&format!("sides[{at}].max"), u64::from(side.max), 1, u64::from(PLAYERS_MAX))?;
        if side.min == 0 || side.min > side.max {
            let reason = format!("it must be 1 to max ({})", side.max);
            return Err(problem(format!("sides[{at}].min"), reason));
        }
        if side.name.is_empty() || set.sides[..at].iter().any(|other| other.name == side.name) {
            return Err(problem(format!("sides[{at}].name"), "it must be a name that no other side has"));
        }
    }
    let sides = set.sides.iter().map(|side| side.count).sum::<u32>();
    between("sides", u64::from(sides), 1, u64::from(SIDES_MAX))?;
    // Those of a `count` have their numbers behind the name.
    for (at, side) in set.sides.iter().enumerate() {
        let before = set.sides[..at].iter().flat_map(SideRule::names);
        let mut twice = before.filter(|name| side.names().any(|own| own == *name));
        if let Some(name) = twice.next() {
            let reason = format!("with the counts there are two sides `{name}`");
            return Err(problem(format!("sides[{at}].name"), reason));
        }
    }
    between("sides", u64::from(set.players_max()), 1, u64::from(PLAYERS_MAX))?;
    if set.party.max == Some(0) {
        return Err(problem("party.max", "it must be over 0"));
    }
    Ok(())
}

fn check_attributes(set: &RuleSet) -> Checked {
    between("attributes", set.attributes.len() as u64, 0, 32)?;
    for (key, attribute) in &set.attributes {
        let path = format!("attributes.{key}");
        if set.rating.is_some() && (key == "skill" || key == "skill_dev") {
            return Err(problem(path, "the rating fills it in; it is not declared"));
        }
        if attribute.min.zip(attribute.max).is_some_and(|(min, max)| min > max) {
            return Err(problem(path, "min is over max"));
        }
        if let Some(default) = &attribute.default {
            attribute.check(default).map_err(|reason| problem(format!("{path}.default"), reason))?;
        }
    }
    for (at, key) in set.partition.iter().enumerate() {
        key_of(set, key, &[AttributeKind::String]).map_err(|why| problem(format!("partition[{at}]"), why))?;
    }
    Ok(())
}

fn check_positions(set: &RuleSet) -> Checked {
    between("positions", set.positions.len() as u64, 0, 16)?;
    let (mut needed, mut places) = (0_u64, 0_u64);
    for (at, position) in set.positions.iter().enumerate() {
        if position.per_side_min > position.per_side_max {
            return Err(problem(format!("positions[{at}]"), "per_side_min is over per_side_max"));
        }
        if set.positions[..at].iter().any(|other| other.name == position.name) {
            return Err(problem(format!("positions[{at}].name"), "another position has this name"));
        }
        needed += u64::from(position.per_side_min);
        places += u64::from(position.per_side_max);
    }
    for side in &set.sides {
        if needed > u64::from(side.max) {
            let reason = format!("side `{}` has fewer places than positions need", side.name);
            return Err(problem("positions", reason));
        }
        if !set.positions.is_empty() && places < u64::from(side.min) {
            let reason = format!("side `{}` needs more players than positions allow", side.name);
            return Err(problem("positions", reason));
        }
    }
    Ok(())
}

fn check_steps(set: &RuleSet) -> Checked {
    between("expand", set.expand.len() as u64, 0, 64)?;
    for (at, expand) in set.expand.iter().enumerate() {
        between(&format!("expand[{at}].steps"), expand.steps.len() as u64, 1, STEPS_MAX as u64)?;
        let mut last = 0.0;
        for (number, step) in expand.steps.iter().enumerate() {
            if !(step.after_s.is_finite() && step.after_s > last && step.after_s <= 86_400.0) {
                let path = format!("expand[{at}].steps[{number}].after_s");
                return Err(problem(path, "steps come one after the other, from over 0 to 86400"));
            }
            last = step.after_s;
        }
    }
    Ok(())
}

/// Members that a rule of a kind needs and those it may have.
type Members = (&'static [&'static str], &'static [&'static str]);

fn members_of(kind: RuleKind) -> (&'static [AttributeKind], Members) {
    use AttributeKind::{Number, String as Text, StringList};
    match kind {
        RuleKind::Spread => (&[Number], (&["max"], &["of"])),
        RuleKind::Near => (&[Number], (&["max"], &[])),
        RuleKind::Balance => (&[Number], (&["max"], &["agg"])),
        RuleKind::Compare => (&[Number, Text], (&["op", "value"], &[])),
        RuleKind::Equal | RuleKind::Differ => (&[Number, Text], (&[], &[])),
        RuleKind::Overlap => (&[StringList], (&[], &["min"])),
        RuleKind::Contains => (&[Text, StringList], (&["value"], &["min", "max", "of"])),
        RuleKind::Latency => (&[], (&["max_ms"], &["relative_ms", "choose"])),
        RuleKind::Total => (&[Number], (&[], &["min", "max", "of"])),
        RuleKind::Avoid => (&[], (&[], &[])),
        RuleKind::WinChance => (&[], (&["max_gap"], &[])),
        RuleKind::All | RuleKind::Any | RuleKind::Not => (&[], (&["rules"], &[])),
    }
}

fn check_rule(set: &RuleSet, rule: &Rule, path: &str, depth: usize) -> Checked {
    if depth > RULE_DEPTH_MAX {
        return Err(problem(path, format!("rules nest deeper than {RULE_DEPTH_MAX}")));
    }
    check_members(set, rule, path)?;
    check_values(set, rule, path)?;
    if rule.kind == RuleKind::WinChance {
        let sides: u32 = set.sides.iter().map(|side| side.count).sum();
        if sides != 2 || set.rating.is_none() {
            return Err(problem(path, "win_chance needs two sides and a rating"));
        }
    }
    for (at, inner) in rule.rules.iter().enumerate() {
        let inner_path = format!("{path}.rules[{at}]");
        if inner.weight.is_some() {
            return Err(problem(format!("{inner_path}.weight"), "rules within a rule are hard"));
        }
        check_rule(set, inner, &inner_path, depth + 1)?;
    }
    Ok(())
}

fn check_members(set: &RuleSet, rule: &Rule, path: &str) -> Checked {
    let (keys, (needs, may)) = members_of(rule.kind);
    let has = [
        ("max", rule.max.is_some()),
        ("min", rule.min.is_some()),
        ("of", rule.of.is_some()),
        ("agg", rule.agg.is_some()),
        ("op", rule.op.is_some()),
        ("value", rule.value.is_some()),
        ("max_ms", rule.max_ms.is_some()),
        ("relative_ms", rule.relative_ms.is_some()),
        ("choose", rule.choose.is_some()),
        ("max_gap", rule.max_gap.is_some()),
        ("rules", !rule.rules.is_empty()),
    ];
    for (member, present) in has {
        if needs.contains(&member) && !present {
            return Err(problem(path, format!("a rule of this type needs `{member}`")));
        }
        if present && !needs.contains(&member) && !may.contains(&member) {
            return Err(problem(format!("{path}.{member}"), "a rule of this type has no such member"));
        }
    }
    match (&rule.key, keys.is_empty()) {
        (None, false) => Err(problem(path, "a rule of this type needs `key`")),
        (Some(_), true) => Err(problem(format!("{path}.key"), "a rule of this type has no key")),
        (Some(key), false) => key_of(set, key, keys).map_err(|why| problem(format!("{path}.key"), why)),
        (None, true) => Ok(()),
    }
}

fn check_values(set: &RuleSet, rule: &Rule, path: &str) -> Checked {
    let numbers = [rule.max, rule.min, rule.max_ms, rule.relative_ms, rule.max_gap, rule.weight];
    if numbers.into_iter().flatten().any(|number| !number.is_finite()) {
        return Err(problem(path, "numbers must be finite"));
    }
    if rule.min.zip(rule.max).is_some_and(|(min, max)| min > max) {
        return Err(problem(path, "min is over max: no match can ever hold"));
    }
    let negative = [rule.max_ms, rule.relative_ms, rule.max_gap, rule.weight];
    let distance = matches!(rule.kind, RuleKind::Spread | RuleKind::Near | RuleKind::Balance);
    if negative.into_iter().flatten().any(|n| n < 0.0) || distance && rule.max.is_some_and(|max| max < 0.0) {
        return Err(problem(path, "a distance cannot be below 0"));
    }
    if rule.kind == RuleKind::Compare {
        let op = rule.op.as_deref().unwrap_or_default();
        let attribute = rule.key.as_ref().and_then(|key| set.attributes.get(key));
        let number = attribute.is_none_or(|attribute| attribute.kind == AttributeKind::Number);
        let fits = |value: &serde_json::Value| if number { value.is_number() } else { value.is_string() };
        if !rule.value.as_ref().is_some_and(fits) {
            return Err(problem(format!("{path}.value"), "it must be of the key's type"));
        }
        let ops: &[&str] = if number { &["=", "!=", "<", "<=", ">", ">="] } else { &["=", "!="] };
        if !ops.contains(&op) {
            return Err(problem(format!("{path}.op"), format!("no operator `{op}` for this value")));
        }
    }
    if rule.kind == RuleKind::Contains && !rule.value.as_ref().is_some_and(serde_json::Value::is_string) {
        return Err(problem(format!("{path}.value"), "it must be a string"));
    }
    Ok(())
}

fn key_of(set: &RuleSet, key: &str, kinds: &[AttributeKind]) -> Result<(), String> {
    if set.rating.is_some() && (key == "skill" || key == "skill_dev") {
        let number = kinds.contains(&AttributeKind::Number);
        return if number { Ok(()) } else { Err("it is a number".to_owned()) };
    }
    match set.attributes.get(key) {
        None => Err(format!("`{key}` is not declared in attributes")),
        Some(attribute) if !kinds.contains(&attribute.kind) => {
            Err(format!("`{key}` is declared with another type than this needs"))
        }
        Some(_) => Ok(()),
    }
}
