//! The reference page of rule sets names all there is.

use crate::world;

use std::collections::BTreeSet;

use throng_matcher::Config;
use throng_wire::matcher::Status;
use world::World;

const PAGE: &str = include_str!("../../../../docs/reference/rule-sets.md");

/// The members or values that could stand where `_` stands, from the refusal of that.
fn possible(world: &mut World, more: &str) -> BTreeSet<String> {
    let rules = format!(r#"{{"name": "q", "sides": [{{"name": "s", "min": 1, "max": 1}}], {more}}}"#);
    let (status, answer) = world.put_queue(&rules);
    assert_eq!(status, Status::RuleInvalid, "{more}");
    let answer = String::from_utf8_lossy(&answer);
    let listed = answer.split("expected").nth(1).unwrap_or_else(|| panic!("{more}: {answer}"));
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_member_and_value_is_explained() {
    let mut world = World::new(Config::default());
    let words: BTreeSet<&str> = PAGE
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    for place in [
        r#""_": 0"#,
        r#""party": {"_": 0}"#,
        r#""party": {"policy": "_"}"#,
        r#""party": {"skill": "_"}"#,
        r#""attributes": {"a": {"_": 0}}"#,
        r#""attributes": {"a": {"type": "_"}}"#,
        r#""rating": {"_": 0}"#,
        r#""rating": {"pool": "p", "system": "_"}"#,
        r#""rules": [{"_": 0}]"#,
        r#""rules": [{"type": "_"}]"#,
        r#""rules": [{"type": "spread", "of": "_"}]"#,
        r#""rules": [{"type": "balance", "agg": "_"}]"#,
        r#""rules": [{"type": "latency", "choose": "_"}]"#,
        r#""positions": [{"_": 0}]"#,
        r#""expand": [{"_": 0}]"#,
        r#""expand": [{"target": "x", "steps": [{"_": 0}]}]"#,
        r#""expand_clock": "_""#,
        r#""missing": "_""#,
        r#""quality": {"_": 0}"#,
        r#""quality": {"prefer": "_"}"#,
        r#""quality": {"weights": {"_": 0}}"#,
        r#""accept": {"_": 0}"#,
        r#""accept": {"on_decline": "_"}"#,
        r#""assign": "_""#,
        r#""backfill": {"_": 0}"#,
        r#""backfill": {"priority": "_"}"#,
        r#""on_member_lost": "_""#,
    ] {
        let names = possible(&mut world, place);
        assert!(!names.is_empty(), "{place}");
        for name in names {
            assert!(
                words.contains(name.as_str()),
                "docs/reference/rule-sets.md says nothing of `{name}`, as in {place}"
            );
        }
    }
}
