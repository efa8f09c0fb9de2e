//! The directory as `throng cluster` and the API show it, and its latest changes.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use throng_cluster::{Home, Name, NodeRecord, NodeState, WorldRecord, WorldState};

/// Changes that are kept. A caller that asks once a second misses none below this rate.
const CHANGES_MAX: usize = 1_000;

/// A node, whose record has not changed for a time.
pub(super) fn node_row(name: &Name, record: &NodeRecord, age_ms: u64) -> Value {
    json!({
        "name": name, "state": record.state, "incarnation": record.incarnation, "age_ms": age_ms,
        "release": record.release, "load_permille": record.load_permille, "worlds": record.worlds,
        "worlds_max": record.worlds_max, "addresses": record.addresses, "labels": record.labels,
        "classes": record.classes,
    })
}

pub(super) fn world_row(name: &Name, record: &WorldRecord) -> Value {
    json!({
        "name": name, "state": record.state, "epoch": record.epoch, "home": record.home.node,
        "incarnation": record.home.incarnation, "class": record.class, "why": record.why,
    })
}

/// Changes of nodes and worlds, as one node sees them in the directory.
#[derive(Debug, Default)]
pub(super) struct Changes {
    nodes: BTreeMap<Name, (u64, NodeState)>,
    worlds: BTreeMap<Name, (u64, Home, WorldState)>,
    /// The directory has been read, so further records are changes.
    is_complete: bool,
    /// Number of the latest change.
    number: u64,
    rows: VecDeque<Value>,
}

impl Changes {
    /// The directory has been read, at a time in ms since the epoch. Numbers begin there, so that
    /// none of an earlier process of the node is taken for one of this.
    pub(super) fn begin(&mut self, unix_ms: u64) {
        if !self.is_complete {
            (self.is_complete, self.number) = (true, unix_ms);
        }
    }

    pub(super) fn see_node(&mut self, name: &Name, record: Option<&NodeRecord>, unix_ms: u64) {
        let Some(record) = record else {
            self.nodes.remove(name);
            return;
        };
        let state = (record.incarnation, record.state);
        if self.nodes.insert(name.clone(), state) != Some(state) {
            self.push(json!({
                "at_ms": unix_ms, "node": name, "state": record.state, "incarnation": record.incarnation,
            }));
        }
    }

    pub(super) fn see_world(&mut self, name: &Name, record: Option<&WorldRecord>, unix_ms: u64) {
        let Some(record) = record else { return drop(self.worlds.remove(name)) };
        let state = (record.epoch, record.home.clone(), record.state);
        if self.worlds.insert(name.clone(), state.clone()) != Some(state) {
            self.push(json!({
                "at_ms": unix_ms, "world": name, "state": record.state, "epoch": record.epoch,
                "home": record.home.node, "incarnation": record.home.incarnation, "class": record.class,
                "why": record.why,
            }));
        }
    }

    fn push(&mut self, mut row: Value) {
        if !self.is_complete {
            return;
        }
        self.number += 1;
        row["number"] = self.number.into();
        self.rows.push_back(row);
        if self.rows.len() > CHANGES_MAX {
            self.rows.pop_front();
        }
    }

    /// Number of the latest change.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Changes behind a number. `missed` says that older ones are not kept any more, or that the
    /// number is not of this process.
    pub(super) fn after(&self, number: u64) -> Value {
        let oldest = self.number - self.rows.len() as u64;
        let skipped = usize::try_from(number.saturating_sub(oldest)).unwrap_or(usize::MAX);
        json!({
            "number": self.number, "missed": !(oldest..=self.number).contains(&number),
            "events": self.rows.iter().skip(skipped).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(changes: &mut Changes, name: &str, epoch: u64, state: &str) {
        let record = json!({
            "epoch": epoch, "home": { "node": "n1", "incarnation": 1 }, "state": state, "class": "hub",
            "class_hash": "h", "nonce": 1,
        });
        let record = WorldRecord::parse(record.to_string().as_bytes()).unwrap();
        changes.see_world(&Name::new(name).unwrap(), Some(&record), 7);
    }

    #[test]
    fn changes_are_told_once_and_in_their_order() {
        let mut changes = Changes::default();
        see(&mut changes, "hub", 1, "serving");
        assert_eq!(changes.number(), 0, "it was there before");
        changes.begin(0);
        for (epoch, state) in [(1, "serving"), (2, "assigned"), (2, "serving"), (2, "serving")] {
            see(&mut changes, "hub", epoch, state);
        }
        let states = |found: &Value| -> Vec<String> {
            let rows = found["events"].as_array().unwrap().iter();
            rows.map(|row| format!("{} {} {}", row["number"], row["world"], row["state"])).collect()
        };
        let all = changes.after(0);
        assert_eq!(states(&all), [r#"1 "hub" "assigned""#, r#"2 "hub" "serving""#]);
        assert_eq!((&all["missed"], &all["number"]), (&json!(false), &json!(2)));
        assert_eq!(states(&changes.after(1)), [r#"2 "hub" "serving""#]);
        assert!(states(&changes.after(2)).is_empty() && states(&changes.after(u64::MAX)).is_empty());
    }

    #[test]
    fn a_caller_learns_that_it_has_missed_changes() {
        let mut changes = Changes::default();
        changes.begin(0);
        for epoch in 0..CHANGES_MAX as u64 + 3 {
            see(&mut changes, "hub", epoch, "serving");
        }
        let (late, current) = (changes.after(2), changes.after(3));
        assert_eq!((&late["missed"], &current["missed"]), (&json!(true), &json!(false)));
        assert_eq!(current["events"].as_array().unwrap().len(), CHANGES_MAX);
        assert_eq!(current["events"][0]["number"], 4);
    }

    #[test]
    fn a_caller_learns_that_the_node_has_started_again() {
        let mut changes = Changes::default();
        changes.begin(5_000);
        changes.begin(6_000);
        see(&mut changes, "hub", 1, "serving");
        for (after, missed) in [(0, true), (4_999, true), (5_000, false), (5_001, false), (5_002, true)] {
            assert_eq!(changes.after(after)["missed"], missed, "{after}");
        }
        assert_eq!(changes.after(5_000)["events"][0]["number"], 5_001);
    }
}
