//! Tables of each type of rule, and of refused rule sets.

use serde_json::{Value, json};

use super::compiled::Compiled;
use super::facts::{Facts, PlayerInput};
use super::rules::{Grade, Placed, View};
use super::ruleset::RuleSet;
use crate::info::Text;

/// A rule set of two sides with these members.
fn rules(more: Value) -> Value {
    let mut set = json!({"name": "q", "sides": [{"name": "side", "count": 2, "min": 1, "max": 9}],
        "attributes": {"n": {"type": "number"}, "m": {"type": "number"}, "t": {"type": "string"},
                       "l": {"type": "string_list"}}});
    if let (Some(set), Value::Object(more)) = (set.as_object_mut(), more) {
        set.extend(more);
    }
    set
}

fn compile(more: Value) -> Compiled {
    Compiled::new(RuleSet::parse(rules(more).to_string().as_bytes()).unwrap()).unwrap()
}

/// A party of players, each an object of attributes; latencies stand under `ping`.
fn facts(compiled: &Compiled, regions: &mut Vec<Text>, players: &Value) -> Facts {
    let players = players.as_array().unwrap().iter();
    let texts: Vec<Vec<(String, String)>> = players
        .map(|player| player.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.to_string())).collect())
        .collect();
    let pings: Vec<Vec<(String, f64)>> = texts
        .iter()
        .map(|attrs| match attrs.iter().find(|(key, _)| key == "ping") {
            Some((_, json)) => serde_json::from_str::<serde_json::Map<String, Value>>(json)
                .unwrap()
                .into_iter()
                .map(|(region, ms)| (region, ms.as_f64().unwrap()))
                .collect(),
            None => Vec::new(),
        })
        .collect();
    let party: Vec<PlayerInput<'_>> = texts
        .iter()
        .zip(&pings)
        .map(|(attrs, pings)| PlayerInput {
            attrs: attrs
                .iter()
                .filter(|(key, _)| key != "ping")
                .map(|(key, json)| (key.as_bytes(), json.as_bytes()))
                .collect(),
            pings: pings.iter().map(|(region, ms)| (region.as_bytes(), *ms)).collect(),
            ..PlayerInput::default()
        })
        .collect();
    compiled.facts(&party, regions).unwrap()
}

/// Quality of a match: sides of parties of players. Every party has reached the level.
fn grade(compiled: &Compiled, sides: &Value, level: u8) -> Option<(Grade, Vec<Text>)> {
    let mut regions = Vec::new();
    let all: Vec<Vec<Facts>> = sides
        .as_array()
        .unwrap()
        .iter()
        .map(|side| {
            side.as_array().unwrap().iter().map(|party| facts(compiled, &mut regions, party)).collect()
        })
        .collect();
    let sides: Vec<Vec<Placed<'_>>> =
        all.iter().map(|side| side.iter().map(|facts| (facts, level)).collect()).collect();
    let grade = View { compiled, sides: &sides, regions: &regions, level }.grade();
    grade.map(|grade| (grade, regions))
}

/// Two solos against each other.
fn duel(a: Value, b: Value) -> Value {
    json!([[[a]], [[b]]])
}

#[test]
fn a_hard_rule_holds_or_not() {
    let n = |a: f64, b: f64| duel(json!({"n": a}), json!({"n": b}));
    let t = |a: &str, b: &str| duel(json!({"t": a}), json!({"t": b}));
    let l = |a: &[&str], b: &[&str]| duel(json!({"l": a}), json!({"l": b}));
    let absent = || duel(json!({}), json!({"n": 5.0, "t": "a", "l": ["a"]}));
    let none = || duel(json!({}), json!({}));
    let ping = |a: Value, b: Value| duel(json!({"ping": a}), json!({"ping": b}));
    let of_side = || json!([[[{"n": 1}], [{"n": 3}]], [[{"n": 9}]]]);
    for (rule, sides, holds) in [
        (json!({"type": "spread", "key": "n", "max": 2}), n(1.0, 3.0), true),
        (json!({"type": "spread", "key": "n", "max": 2}), n(1.0, 3.1), false),
        (json!({"type": "spread", "key": "n", "max": 0}), n(3.0, 3.0), true),
        (json!({"type": "spread", "key": "n", "max": 2, "of": "side"}), of_side(), true),
        (json!({"type": "spread", "key": "n", "max": 2}), of_side(), false),
        (json!({"type": "spread", "key": "n", "max": 2}), absent(), false),
        (json!({"type": "spread", "key": "n", "max": 2, "missing": "any"}), absent(), true),
        (json!({"type": "balance", "key": "n", "max": 7}), of_side(), true),
        (json!({"type": "balance", "key": "n", "max": 6.9}), of_side(), false),
        (json!({"type": "balance", "key": "n", "agg": "sum", "max": 5}), of_side(), true),
        (json!({"type": "balance", "key": "n", "agg": "sum", "max": 4}), of_side(), false),
        (json!({"type": "balance", "key": "n", "agg": "max", "max": 6}), of_side(), true),
        (json!({"type": "balance", "key": "n", "agg": "max", "max": 5}), of_side(), false),
        (json!({"type": "balance", "key": "n", "max": 0}), absent(), false),
        (json!({"type": "balance", "key": "n", "max": 0, "missing": "any"}), absent(), true),
        (json!({"type": "compare", "key": "n", "op": "<=", "value": 3}), n(1.0, 3.0), true),
        (json!({"type": "compare", "key": "n", "op": "<", "value": 3}), n(1.0, 3.0), false),
        (json!({"type": "compare", "key": "n", "op": ">", "value": 1}), n(1.0, 3.0), false),
        (json!({"type": "compare", "key": "n", "op": ">=", "value": 1}), n(1.0, 3.0), true),
        (json!({"type": "compare", "key": "n", "op": "!=", "value": 3}), n(1.0, 3.0), false),
        (json!({"type": "compare", "key": "t", "op": "=", "value": "a"}), t("a", "a"), true),
        (json!({"type": "compare", "key": "t", "op": "!=", "value": "a"}), t("b", "a"), false),
        (json!({"type": "compare", "key": "n", "op": "=", "value": 5}), absent(), false),
        (json!({"type": "compare", "key": "n", "op": "=", "value": 5, "missing": "any"}), absent(), true),
        (json!({"type": "equal", "key": "t"}), t("a", "a"), true),
        (json!({"type": "equal", "key": "t"}), t("a", "b"), false),
        (json!({"type": "equal", "key": "t"}), none(), false),
        (json!({"type": "equal", "key": "t", "missing": "any"}), absent(), true),
        (json!({"type": "differ", "key": "t"}), t("a", "b"), true),
        (json!({"type": "differ", "key": "t"}), t("a", "a"), false),
        (json!({"type": "differ", "key": "t"}), absent(), false),
        (json!({"type": "differ", "key": "t", "missing": "any"}), none(), true),
        (json!({"type": "overlap", "key": "l"}), l(&["a", "b"], &["b"]), true),
        (json!({"type": "overlap", "key": "l"}), l(&["a"], &["b"]), false),
        (json!({"type": "overlap", "key": "l", "min": 2}), l(&["a", "b"], &["b", "a"]), true),
        // Entries are those of a set: one that is listed twice is one.
        (json!({"type": "overlap", "key": "l", "min": 2}), l(&["a", "a"], &["a", "a"]), false),
        (json!({"type": "overlap", "key": "l", "min": 0}), l(&["a"], &[]), true),
        (json!({"type": "overlap", "key": "l"}), absent(), false),
        (json!({"type": "overlap", "key": "l", "missing": "any"}), absent(), true),
        (json!({"type": "overlap", "key": "l", "missing": "any"}), none(), true),
        (json!({"type": "contains", "key": "l", "value": "a", "min": 2}), l(&["a"], &["b", "a"]), true),
        (json!({"type": "contains", "key": "l", "value": "a", "max": 1}), l(&["a"], &["a"]), false),
        (json!({"type": "contains", "key": "t", "value": "a", "min": 1, "max": 1}), t("a", "b"), true),
        (json!({"type": "contains", "key": "t", "value": "a", "min": 1, "of": "side"}), t("a", "b"), false),
        (json!({"type": "contains", "key": "t", "value": "a", "max": 1}), absent(), false),
        (json!({"type": "contains", "key": "t", "value": "a", "max": 1, "missing": "any"}), absent(), true),
        (json!({"type": "total", "key": "n", "min": 4, "max": 4}), n(1.0, 3.0), true),
        (json!({"type": "total", "key": "n", "max": 3.9}), n(1.0, 3.0), false),
        (json!({"type": "total", "key": "n", "max": 2, "of": "side"}), n(1.0, 3.0), false),
        (json!({"type": "total", "key": "n", "max": 9}), absent(), false),
        (json!({"type": "total", "key": "n", "max": 9, "missing": "any"}), absent(), true),
        (json!({"type": "latency", "max_ms": 60}), ping(json!({"eu": 60}), json!({"eu": 5})), true),
        (json!({"type": "latency", "max_ms": 60}), ping(json!({"eu": 61}), json!({"eu": 5})), false),
        (json!({"type": "latency", "max_ms": 0.3}), ping(json!({"eu": 0.3}), json!({"eu": 0})), true),
        (json!({"type": "latency", "max_ms": 60}), ping(json!({"eu": 5}), json!({"us": 5})), false),
        (json!({"type": "latency", "max_ms": 60}), ping(json!({"eu": 5}), json!({})), false),
        (json!({"type": "latency", "max_ms": 60, "missing": "any"}), ping(json!({"eu": 5}), json!({})), true),
        (json!({"type": "latency", "max_ms": 60}), none(), false),
        (json!({"type": "latency", "max_ms": 60, "missing": "any"}), none(), true),
        (
            json!({"type": "latency", "max_ms": 60, "relative_ms": 9}),
            ping(json!({"eu": 20}), json!({"eu": 30})),
            false,
        ),
        (
            json!({"type": "latency", "max_ms": 60, "relative_ms": 10}),
            ping(json!({"eu": 20}), json!({"eu": 30})),
            true,
        ),
    ] {
        let compiled = compile(json!({ "rules": [rule] }));
        assert_eq!(grade(&compiled, &sides, 0).is_some(), holds, "{rule} for {sides}");
        // Within another rule it means the same.
        let mut inner = rule.clone();
        inner["name"] = json!("");
        for (kind, same) in [("all", holds), ("any", holds), ("not", !holds)] {
            let outer = json!({"type": kind, "rules": [inner]});
            let compiled = compile(json!({ "rules": [outer] }));
            assert_eq!(grade(&compiled, &sides, 0).is_some(), same, "{outer} for {sides}");
        }
        // A soft rule forbids nothing; one that is violated costs something.
        let mut soft = rule.clone();
        soft["weight"] = json!(0.5);
        let quality = grade(&compile(json!({ "rules": [soft] })), &sides, 0).map(|(grade, _)| grade.quality);
        let is_latency = rule["type"] == "latency";
        assert!(
            quality.is_some_and(|q| if holds { is_latency || q == 1.0 } else { q < 1.0 }),
            "{soft} for {sides}: {quality:?}"
        );
    }
}

#[test]
fn rules_without_names_are_told_apart() {
    // The limit of one is not that of another that looks like it.
    for (rules, holds) in [
        (
            json!([{"type": "near", "key": "n", "max": 10}, {"type": "any", "rules": [{"type": "near", "key": "n", "max": 2}]}]),
            false,
        ),
        (
            json!([{"type": "near", "key": "n", "max": 2, "weight": 1}, {"type": "any", "rules": [{"type": "near", "key": "n", "max": 10}]}]),
            true,
        ),
    ] {
        let compiled = compile(json!({ "rules": rules }));
        let sides = duel(json!({"n": 1}), json!({"n": 6}));
        assert_eq!(grade(&compiled, &sides, 0).is_some(), holds, "{rules}");
    }
    let compiled = compile(json!({"rules": [{"type": "near", "key": "n", "max": 10, "weight": 1},
                                            {"type": "near", "key": "n", "max": 4, "weight": 1}]}));
    let (found, _) = grade(&compiled, &duel(json!({"n": 1}), json!({"n": 6})), 0).unwrap();
    assert_eq!(found.quality, 1.0 - 0.25 / 2.0, "one holds, one is violated by a quarter");
}

#[test]
fn the_region_is_one_that_the_hard_rule_allows() {
    let rules = json!([{"type": "latency", "max_ms": 200, "choose": "min_mean", "weight": 0.1},
                       {"type": "latency", "max_ms": 60}]);
    let compiled = compile(json!({ "rules": rules }));
    let sides = json!([[[{"ping": {"far": 1, "near": 55}}]], [[{"ping": {"far": 70, "near": 55}}]]]);
    let (found, regions) = grade(&compiled, &sides, 0).unwrap();
    assert_eq!(found.region.map(|region| regions[usize::from(region)].as_slice()), Some(&b"near"[..]));
}

#[test]
fn a_party_that_differs_by_a_key_of_the_partition_is_refused() {
    let compiled = compile(json!({"partition": ["t"]}));
    let mut regions = Vec::new();
    for (party, possible) in [
        (json!([{"t": "a"}, {"t": "a"}]), true),
        (json!([{}, {}]), true),
        (json!([{"t": "a"}, {"t": "b"}]), false),
        (json!([{"t": "a"}, {}]), false),
        (json!([{}, {"t": "b"}]), false),
        (json!([{"t": ""}, {"t": "b"}]), false),
    ] {
        let facts = facts(&compiled, &mut regions, &party);
        assert_eq!(compiled.never(&facts).is_none(), possible, "{party}");
    }
    // Where the key splits no more after a time, until then.
    let later = json!({"partition": ["t"], "expand": [{"target": "partition", "steps": [{"after_s": 30, "value": []}]}]});
    let compiled = compile(later);
    let sides = json!([[[{"t": "a"}, {"t": "b"}]], [[{"t": "a"}]]]);
    assert!(grade(&compiled, &sides, 0).is_none() && grade(&compiled, &sides, 1).is_some());
}

#[test]
fn steps_only_relax_and_stay_in_range() {
    let base = |target: &str, values: &[Value]| {
        let steps: Vec<Value> =
            values.iter().enumerate().map(|(at, value)| json!({"after_s": at + 1, "value": value})).collect();
        rules(json!({
            "sides": [{"name": "side", "count": 2, "min": 3, "max": 9}], "quality": {"min": 0.5},
            "partition": ["t", "u"], "party": {"policy": "same_size"},
            "attributes": {"n": {"type": "number"}, "t": {"type": "string"}, "u": {"type": "string"},
                           "l": {"type": "string_list"}},
            "rules": [{"name": "near", "type": "near", "key": "n", "max": 4},
                      {"type": "spread", "key": "n", "max": 4},
                      {"name": "a.b", "type": "overlap", "key": "l", "min": 2},
                      {"name": "sum", "type": "total", "key": "n", "min": 1, "max": 9},
                      {"name": "ping", "type": "latency", "max_ms": 60, "relative_ms": 5}],
            "expand": [{"target": target, "steps": steps}]}))
    };
    for (target, values, taken) in [
        ("rules.near.max", json!([4, 6, 6]), true),
        ("rules.near.max", json!([6, 5]), false),
        ("rules.near.max", json!(["6"]), false),
        ("rules.near.min", json!([1]), false),
        ("rules.near.key", json!([1]), false),
        ("rules..max", json!([9]), false),
        ("rules.other.max", json!([9]), false),
        ("rules.a.b.min", json!([1]), true),
        ("rules.a.b.min", json!([3]), false),
        ("rules.sum.min", json!([0, -5]), true),
        ("rules.sum.min", json!([2]), false),
        ("rules.sum.max", json!([8]), false),
        ("rules.ping.max_ms", json!([90, 80]), false),
        ("rules.ping.relative_ms", json!([9]), true),
        ("sides.side.min", json!([2, 1]), true),
        ("sides.side.min", json!([0]), false),
        ("sides.side.min", json!([-1]), false),
        ("sides.side.min", json!([2.5]), false),
        ("sides.side.min", json!([4]), false),
        ("sides.side1.min", json!([2]), false),
        ("quality.min", json!([0.2, 0]), true),
        ("quality.min", json!([-0.1]), false),
        ("quality.min", json!([0.6]), false),
        ("party.policy", json!(["any"]), true),
        ("party.policy", json!(["large_vs_large"]), false),
        ("party.policy", json!(["any", "same_size"]), false),
        ("partition", json!([["u"], []]), true),
        ("partition", json!([["u"], ["t"]]), false),
        ("partition", json!([["n"]]), false),
        ("partition", json!(["t"]), false),
    ] {
        let text = base(target, values.as_array().unwrap()).to_string();
        let found = RuleSet::parse(text.as_bytes());
        assert_eq!(found.is_ok(), taken, "{target} {values}: {:?}", found.err());
    }
}

#[test]
fn a_step_applies_from_its_time_on() {
    let step = |after_s: f64| {
        compile(json!({"rules": [{"name": "near", "type": "near", "key": "n", "max": 4}],
                       "expand": [{"target": "rules.near.max", "steps": [{"after_s": after_s, "value": 6}]}]}))
    };
    for (after_s, waited_ms, level) in
        [(10.0, 9_999, 0), (10.0, 10_000, 1), (1.001, 1_000, 0), (1.001, 1_001, 1)]
    {
        assert_eq!(step(after_s).level_at(waited_ms), level, "{after_s} s after {waited_ms} ms");
    }
}

#[test]
fn more_levels_than_are_counted_are_refused() {
    let expand = |count: usize| {
        let steps = |first: usize| {
            (0..64)
                .map(move |at| json!({"after_s": first + at + 1, "value": 4.0 + (first + at) as f64}))
                .collect::<Vec<_>>()
        };
        let rules_of =
            (0..count).map(|at| json!({"name": format!("r{at}"), "type": "near", "key": "n", "max": 4}));
        let all = (0..count).map(|at| json!({"target": format!("rules.r{at}.max"), "steps": steps(at * 64)}));
        rules(json!({"rules": rules_of.collect::<Vec<_>>(), "expand": all.collect::<Vec<_>>()})).to_string()
    };
    assert!(RuleSet::parse(expand(3).as_bytes()).is_ok());
    let refused = RuleSet::parse(expand(4).as_bytes()).unwrap_err();
    assert_eq!(refused.path, "expand");
}

#[test]
fn a_value_of_another_type_than_its_key_is_refused() {
    for (rule, path) in [
        (json!({"type": "compare", "key": "n", "op": "=", "value": "a"}), "rules[0].value"),
        (json!({"type": "compare", "key": "t", "op": "=", "value": 5}), "rules[0].value"),
        (json!({"type": "compare", "key": "t", "op": "!=", "value": true}), "rules[0].value"),
        (json!({"type": "compare", "key": "t", "op": "<", "value": "a"}), "rules[0].op"),
        (json!({"type": "contains", "key": "t", "value": 5}), "rules[0].value"),
    ] {
        let text = rules(json!({ "rules": [rule] })).to_string();
        assert_eq!(RuleSet::parse(text.as_bytes()).map(|_| ()).unwrap_err().path, path, "{rule}");
    }
}
