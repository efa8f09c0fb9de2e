//! Review of a file of a channeld deployment: the entries that Throng accepts unchanged, those that
//! differ and those that it refuses. It uses the readers that load such files at a start; the
//! differences in behaviour are listed here.

use serde_json::{Map, Value};
use throng_gateway::{ChannelSettings, StateMachine, parse_controller};

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Means the same in both.
    Same,
    /// Is understood and acts otherwise, or not at all.
    Differs,
    /// Stops a start.
    Refused,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Severity.
    pub weight: Weight,
    /// Position in the file; empty for the whole file.
    pub path: String,
    /// Value, and its effect here.
    pub what: String,
}

/// Kind of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `-sfsm`, `-cfsm`.
    StateMachine,
    /// `-chs`.
    ChannelSettings,
    /// `-scc`.
    SpatialController,
}

impl FileKind {
    /// As people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileKind::StateMachine => "state machine",
            FileKind::ChannelSettings => "channel settings",
            FileKind::SpatialController => "spatial controller",
        }
    }

    /// Kind of a file by its content; `None` if it is none of them.
    #[must_use]
    pub fn of(text: &str) -> Option<FileKind> {
        let root: Value = serde_json::from_str(text).ok()?;
        let root = root.as_object()?;
        let has = |name: &str| root.keys().any(|key| key.eq_ignore_ascii_case(name));
        match root {
            _ if has("States") || has("Transitions") => Some(FileKind::StateMachine),
            _ if has("SpatialControllerType") || has("Config") => Some(FileKind::SpatialController),
            _ if root.keys().any(|key| key.parse::<u32>().is_ok()) => Some(FileKind::ChannelSettings),
            _ => None,
        }
    }
}

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(weight: Weight, path: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { weight, path: path.into(), what: what.into() }
    }

    fn differs(path: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding::new(Weight::Differs, path, what)
    }

    fn refused(what: impl Into<String>) -> Finding {
        Finding::new(Weight::Refused, "", what)
    }
}

/// Findings in a file of a kind, in the file's order; never empty.
#[must_use]
pub fn inspect(kind: FileKind, text: &str) -> Vec<Finding> {
    match kind {
        FileKind::StateMachine => state_machine(text),
        FileKind::ChannelSettings => channel_settings(text),
        FileKind::SpatialController => spatial_controller(text),
    }
}

/// Full names of the data types that channel settings name and that no built-in schema describes.
#[must_use]
pub fn data_types(text: &str) -> Vec<String> {
    let Ok(settings) = ChannelSettings::parse(text) else { return Vec::new() };
    let built_in = |name: &str| BUILT_IN.iter().any(|package| name.starts_with(package));
    let names = settings.iter().filter_map(|(_, settings)| settings.data_type.clone());
    names.filter(|name| !built_in(name)).collect()
}

/// Packages whose messages need no schema file.
const BUILT_IN: [&str; 3] = ["channeldpb.", "unrealpb.", "google.protobuf."];

fn state_machine(text: &str) -> Vec<Finding> {
    let machine = match StateMachine::parse(text) {
        Ok(machine) => machine,
        Err(error) => return vec![Finding::refused(error.to_string())],
    };
    let names: Vec<&str> = machine.state_names().collect();
    let mut found =
        vec![Finding::new(Weight::Same, "States", format!("{} states: {}", names.len(), names.join(", ")))];
    let skipped = |warning: &String| {
        // A warning begins with the path that it is about.
        let (path, what) = warning.split_once(": ").unwrap_or(("", warning));
        Finding::differs(path, what)
    };
    found.extend(machine.warnings().iter().map(skipped));
    let root = object(text);
    found.extend(unknown(&root, "", &["States", "InitState", "Transitions"]));
    for (list, keys) in [
        ("States", &["Name", "MsgTypeWhitelist", "MsgTypeBlacklist"]),
        ("Transitions", &["FromState", "ToState", "MsgType"]),
    ] {
        let entries = member(&root, list).and_then(Value::as_array);
        for (index, entry) in entries.into_iter().flatten().enumerate() {
            found.extend(
                entry
                    .as_object()
                    .into_iter()
                    .flat_map(|entry| unknown(entry, &format!("{list}[{index}]."), keys)),
            );
        }
    }
    found
}

fn channel_settings(text: &str) -> Vec<Finding> {
    let settings = match ChannelSettings::parse(text) {
        Ok(settings) => settings,
        Err(error) => return error.problems.into_iter().map(Finding::refused).collect(),
    };
    let root = object(text);
    let mut found = Vec::new();
    for (kind, each) in settings.iter() {
        let name = kind.name().map_or_else(|| kind.0.to_string(), str::to_owned);
        let Some(entry) = root.get(&kind.0.to_string()).and_then(Value::as_object) else {
            let what = "no entry for GLOBAL; its built-in settings apply, also to types without an entry";
            found.push(Finding::new(Weight::Same, "1", what));
            continue;
        };
        let what = format!(
            "{name}: ticks of {} ms, fan-out every {} ms, delay {} ms",
            each.tick_interval.as_millis(),
            each.fan_out_interval.as_millis(),
            each.fan_out_delay_ms
        );
        found.push(Finding::new(Weight::Same, kind.0.to_string(), what));
        let access = member(entry, "ACLSettings").and_then(Value::as_object);
        for (action, value) in access.into_iter().flatten() {
            let path = format!("{}.ACLSettings.{action}", kind.0);
            match value.as_u64() {
                _ if !["Sub", "Unsub", "Remove"].iter().any(|known| known.eq_ignore_ascii_case(action)) => {
                    found.push(Finding::differs(path, "is not one of Sub, Unsub, Remove; both ignore it"));
                }
                Some(0..=3) => {}
                _ => found.push(Finding::differs(
                    path,
                    format!("{value} is not an access level; no one has access"),
                )),
            }
        }
        let interval = each.fan_out_interval;
        if !interval.is_zero() && interval < each.tick_interval {
            let what = format!(
                "{} ms is shorter than a tick of {} ms; both send only at ticks",
                interval.as_millis(),
                each.tick_interval.as_millis()
            );
            found.push(Finding::differs(format!("{}.DefaultFanOutIntervalMs", kind.0), what));
        }
    }
    found.extend(
        settings.warnings().iter().map(|warning| Finding::differs("", format!("{warning}; ignored"))),
    );
    found
}

fn spatial_controller(text: &str) -> Vec<Finding> {
    let grid = match parse_controller(text) {
        Ok(grid) => *grid.config(),
        Err(problems) => return problems.into_iter().map(Finding::refused).collect(),
    };
    let what = format!(
        "{} by {} cells of {} by {} world units, from ({}, {}), over {} servers",
        grid.columns,
        grid.rows,
        grid.cell_width,
        grid.cell_height,
        grid.offset_x,
        grid.offset_z,
        grid.server_columns * grid.server_rows
    );
    let mut found = vec![Finding::new(Weight::Same, "Config", what)];
    // Spec: gateway-protocol §8.2
    for (cells, servers, name) in
        [(grid.columns, grid.server_columns, "Cols"), (grid.rows, grid.server_rows, "Rows")]
    {
        if !cells.is_multiple_of(servers) {
            let what = format!(
                "{cells} cells over {servers} servers: the last one has fewer cells; in channeld it has none"
            );
            found.push(Finding::differs(format!("Config.Server{name}"), what));
        }
    }
    let root = object(text);
    found.extend(unknown(&root, "", &["SpatialControllerType", "Config"]));
    let keys = [
        "WorldOffsetX",
        "WorldOffsetZ",
        "GridWidth",
        "GridHeight",
        "GridCols",
        "GridRows",
        "ServerCols",
        "ServerRows",
        "ServerInterestBorderSize",
    ];
    let config = member(&root, "Config").and_then(Value::as_object);
    found.extend(config.into_iter().flat_map(|config| unknown(config, "Config.", &keys)));
    found
}

/// The file as an object; empty when it is none, which the readers have refused before.
fn object(text: &str) -> Map<String, Value> {
    match serde_json::from_str(text) {
        Ok(Value::Object(root)) => root,
        _ => Map::new(),
    }
}

fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn unknown(object: &Map<String, Value>, path: &str, known: &[&str]) -> Vec<Finding> {
    let strange = object.iter().filter(|(key, _)| !known.iter().any(|known| known.eq_ignore_ascii_case(key)));
    let finding = |(key, value): (&String, &Value)| {
        Finding::differs(format!("{path}{key}"), format!("{value} is ignored by both"))
    };
    strange.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(kind: FileKind, text: &str) -> Vec<(Weight, String)> {
        inspect(kind, text).into_iter().map(|finding| (finding.weight, finding.path)).collect()
    }

    #[test]
    fn stock_files_are_known_by_their_content_and_mean_the_same() {
        let files = [
            (
                FileKind::StateMachine,
                include_str!("../../../fixtures/gateway/config/state_machine_with_transitions.json"),
            ),
            (
                FileKind::StateMachine,
                include_str!("../../../fixtures/gateway/config/client_authoratative_fsm.json"),
            ),
            (
                FileKind::ChannelSettings,
                include_str!("../../../fixtures/gateway/config/channel_settings_ue.json"),
            ),
            (
                FileKind::SpatialController,
                include_str!("../../../fixtures/gateway/config/spatial_static_2x2.json"),
            ),
            (
                FileKind::SpatialController,
                include_str!("../../../fixtures/gateway/config/spatial_static_benchmark.json"),
            ),
        ];
        for (kind, text) in files {
            assert_eq!(FileKind::of(text), Some(kind));
            let found = inspect(kind, text);
            assert!(!found.is_empty() && found.iter().all(|each| each.weight == Weight::Same), "{found:?}");
        }
        for other in ["", "[]", "{}", r#"{"name": "package"}"#] {
            assert_eq!(FileKind::of(other), None, "{other}");
        }
    }

    #[test]
    fn what_differs_is_named_with_its_place() {
        use Weight::{Differs, Same};
        let machine =
            r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "1,x-2", "Color": "red"}], "Version": 2}"#;
        assert_eq!(
            weights(FileKind::StateMachine, machine),
            [
                (Same, "States".to_owned()),
                (Differs, "States[0].MsgTypeWhitelist".to_owned()),
                (Differs, "Version".to_owned()),
                (Differs, "States[0].Color".to_owned()),
            ]
        );
        let settings = r#"{"1": {"TickIntervalMs": 50, "DefaultFanOutIntervalMs": 20, "ACLSettings": {"Sub": 9, "Ban": 1}}}"#;
        let found = weights(FileKind::ChannelSettings, settings);
        let paths: Vec<&str> = found.iter().map(|(_, path)| path.as_str()).collect();
        assert_eq!(paths, ["1", "1.ACLSettings.Ban", "1.ACLSettings.Sub", "1.DefaultFanOutIntervalMs"]);
        assert_eq!(found.iter().filter(|(weight, _)| *weight == Differs).count(), 3);
    }

    #[test]
    fn what_stops_a_start_is_refused_with_every_problem() {
        let refused = |kind, text| {
            let found = inspect(kind, text);
            assert!(found.iter().all(|each| each.weight == Weight::Refused), "{found:?}");
            found.len()
        };
        assert_eq!(refused(FileKind::StateMachine, r#"{"States": []}"#), 1);
        assert_eq!(refused(FileKind::ChannelSettings, r#"{"1": {"TickIntervalMs": 0}, "x": 1}"#), 2);
        assert_eq!(
            refused(FileKind::SpatialController, r#"{"SpatialControllerType": "Quad", "Config": {}}"#),
            9
        );
    }

    #[test]
    fn data_types_that_need_a_schema_are_listed() {
        let settings = r#"{"4": {"TickIntervalMs": 10, "DataMsgFullName": "unrealpb.SpatialChannelData"},
                           "5": {"TickIntervalMs": 10, "DataMsgFullName": "tpspb.EntityChannelData"}}"#;
        assert_eq!(data_types(settings), ["tpspb.EntityChannelData"]);
    }
}
