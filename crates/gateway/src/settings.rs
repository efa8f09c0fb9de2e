//! Channel settings files: timing, access levels and data type per channel type. Spec §5.2 and
//! §5.4.

use core::time::Duration;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::fsm::key;

/// The number of a channel type. The protocol names some (see the constants); games use others
/// freely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelType(pub u32);

impl ChannelType {
    /// No type; never created.
    pub const UNKNOWN: Self = Self(0);
    /// The one GLOBAL channel.
    pub const GLOBAL: Self = Self(1);
    /// A channel for its owner's purposes.
    pub const PRIVATE: Self = Self(2);
    /// A room, map or match.
    pub const SUBWORLD: Self = Self(3);
    /// A cell of the spatial grid.
    pub const SPATIAL: Self = Self(4);
    /// One entity.
    pub const ENTITY: Self = Self(5);

    /// The protocol's name, `None` for a type that has only a number.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "UNKNOWN",
            1 => "GLOBAL",
            2 => "PRIVATE",
            3 => "SUBWORLD",
            4 => "SPATIAL",
            5 => "ENTITY",
            100 => "TEST",
            101 => "TEST1",
            102 => "TEST2",
            103 => "TEST3",
            104 => "TEST4",
            _ => return None,
        })
    }
}

/// Who may act on a channel on behalf of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessLevel {
    /// Nobody.
    #[default]
    None,
    /// The channel's owner.
    Owner,
    /// The channel's owner and the owner of GLOBAL.
    OwnerAndGlobalOwner,
    /// Anybody.
    Any,
}

impl AccessLevel {
    /// The level for a number in a settings file; numbers without a meaning let nobody pass.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Owner,
            2 => Self::OwnerAndGlobalOwner,
            3 => Self::Any,
            _ => Self::None,
        }
    }

    /// Whether a sender with these roles passes.
    #[must_use]
    pub const fn passes(self, is_owner: bool, is_global_owner: bool) -> bool {
        match self {
            Self::None => false,
            Self::Owner => is_owner,
            Self::OwnerAndGlobalOwner => is_owner || is_global_owner,
            Self::Any => true,
        }
    }
}

/// Settings of one channel type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeSettings {
    /// Period of the tick grid on which fan-out happens, but for rates that the gateway chose
    /// itself. Never zero.
    pub tick_interval: Duration,
    /// Fan-out interval of subscriptions that ask for none. Zero means every tick.
    pub fan_out_interval: Duration,
    /// Fan-out delay in milliseconds of subscriptions that ask for none; negative brings the first
    /// state forward.
    pub fan_out_delay_ms: i32,
    /// Remove the channel when its owner's connection is gone for good.
    pub remove_after_owner_removed: bool,
    /// Tell subscribers when a recoverable owner is lost and when it is back.
    pub send_owner_lost_and_recovered: bool,
    /// Forward broadcasts of clients while the channel has no live owner (relay games without game
    /// servers). Not in the reference's files.
    pub enable_client_broadcast: bool,
    /// Who may subscribe others.
    pub sub: AccessLevel,
    /// Who may unsubscribe others.
    pub unsub: AccessLevel,
    /// Who may remove the channel.
    pub remove: AccessLevel,
    /// Full name of the data message that a channel starts with when its creator sends none.
    pub data_type: Option<String>,
}

impl TypeSettings {
    /// What the reference runs with when it has no readable file.
    #[must_use]
    pub fn fallback() -> Self {
        Self {
            tick_interval: Duration::from_millis(10),
            fan_out_interval: Duration::from_millis(20),
            fan_out_delay_ms: 0,
            remove_after_owner_removed: false,
            send_owner_lost_and_recovered: false,
            enable_client_broadcast: false,
            sub: AccessLevel::None,
            unsub: AccessLevel::None,
            remove: AccessLevel::None,
            data_type: None,
        }
    }
}

/// A loaded channel settings file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelSettings {
    types: BTreeMap<ChannelType, TypeSettings>,
    /// The GLOBAL entry without its access levels: what types get that the file does not name.
    other: TypeSettings,
    warnings: Vec<String>,
}

/// Why a channel settings file cannot be used. Every problem of the file is in the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.join("; "))]
pub struct SettingsError {
    /// One sentence per problem.
    pub problems: Vec<String>,
}

impl Default for ChannelSettings {
    /// The values of `channel_settings_hifi.json`, without a data type for entities.
    fn default() -> Self {
        let base = TypeSettings {
            tick_interval: Duration::from_millis(20),
            fan_out_interval: Duration::from_millis(20),
            fan_out_delay_ms: 0,
            remove_after_owner_removed: true,
            send_owner_lost_and_recovered: true,
            sub: AccessLevel::Any,
            unsub: AccessLevel::Any,
            remove: AccessLevel::OwnerAndGlobalOwner,
            ..TypeSettings::fallback()
        };
        let global =
            TypeSettings { remove_after_owner_removed: false, remove: AccessLevel::None, ..base.clone() };
        let private = TypeSettings {
            sub: AccessLevel::OwnerAndGlobalOwner,
            unsub: AccessLevel::OwnerAndGlobalOwner,
            ..base.clone()
        };
        let spatial = TypeSettings { remove_after_owner_removed: false, ..base.clone() };
        let entity = TypeSettings { send_owner_lost_and_recovered: false, ..base.clone() };
        Self::new([
            (ChannelType::GLOBAL, global),
            (ChannelType::PRIVATE, private),
            (ChannelType::SUBWORLD, base),
            (ChannelType::SPATIAL, spatial),
            (ChannelType::ENTITY, entity),
        ])
    }
}

impl ChannelSettings {
    /// Settings from values. Without a GLOBAL entry the reference's built-in one fills in.
    ///
    /// # Panics
    /// When a tick interval is zero.
    #[must_use]
    pub fn new(types: impl IntoIterator<Item = (ChannelType, TypeSettings)>) -> Self {
        let mut types: BTreeMap<_, _> = types.into_iter().collect();
        assert!(types.values().all(|settings| !settings.tick_interval.is_zero()), "a tick interval is zero");
        let global = types.entry(ChannelType::GLOBAL).or_insert_with(TypeSettings::fallback).clone();
        let none = AccessLevel::None;
        let other = TypeSettings { sub: none, unsub: none, remove: none, ..global };
        Self { types, other, warnings: Vec::new() }
    }

    /// Reads a settings file.
    ///
    /// # Errors
    /// All problems at once: wrong JSON, wrong types of values, a tick interval of zero (weakness
    /// A-10).
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let root: Value = serde_json::from_str(text).map_err(|error| SettingsError {
            problems: vec![format!("line {}, column {}: {error}", error.line(), error.column())],
        })?;
        let Some(root) = root.as_object() else {
            return Err(SettingsError {
                problems: vec!["the file must be an object with one key per channel type".into()],
            });
        };
        let (mut problems, mut warnings, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in root {
            let (Ok(number), Some(entry)) = (name.parse::<u32>(), value.as_object()) else {
                problems.push(format!("`{name}` must be a channel type number with an object as value"));
                continue;
            };
            let mut reader = EntryReader { name, entry, problems: &mut problems };
            let tick_ms = reader.number("TickIntervalMs", 0, u32::MAX.into());
            if tick_ms == 0 {
                reader.problem("TickIntervalMs", "at least 1");
            }
            let empty = Map::new();
            let access = match key(entry, "ACLSettings") {
                None | Some(Value::Null) => &empty,
                Some(Value::Object(access)) => access,
                Some(_) => {
                    reader.problem("ACLSettings", "an object");
                    &empty
                }
            };
            let settings = TypeSettings {
                tick_interval: Duration::from_millis(tick_ms.max(1).unsigned_abs()),
                fan_out_interval: Duration::from_millis(
                    reader.number("DefaultFanOutIntervalMs", 0, u32::MAX.into()).unsigned_abs(),
                ),
                fan_out_delay_ms: reader.number("DefaultFanOutDelayMs", i32::MIN.into(), i32::MAX.into())
                    as i32,
                remove_after_owner_removed: reader.flag("RemoveChannelAfterOwnerRemoved"),
                send_owner_lost_and_recovered: reader.flag("SendOwnerLostAndRecovered"),
                enable_client_broadcast: reader.flag("EnableClientBroadcast"),
                data_type: reader.text("DataMsgFullName"),
                sub: reader.level(access, "Sub"),
                unsub: reader.level(access, "Unsub"),
                remove: reader.level(access, "Remove"),
            };
            for (unknown, _) in
                entry.iter().filter(|(key, _)| !KEYS.iter().any(|k| k.eq_ignore_ascii_case(key)))
            {
                warnings.push(format!("`{name}.{unknown}` is not a setting; known: {}", KEYS.join(", ")));
            }
            types.push((ChannelType(number), settings));
        }
        if !problems.is_empty() {
            return Err(SettingsError { problems });
        }
        Ok(Self { warnings, ..Self::new(types) })
    }

    /// Settings of a channel type.
    #[must_use]
    pub fn get(&self, channel_type: ChannelType) -> &TypeSettings {
        self.types.get(&channel_type).unwrap_or(&self.other)
    }

    /// The types that have an entry, with their settings.
    pub fn iter(&self) -> impl Iterator<Item = (ChannelType, &TypeSettings)> {
        self.types.iter().map(|(&channel_type, settings)| (channel_type, settings))
    }

    /// What was ignored while loading, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

const KEYS: [&str; 8] = [
    "TickIntervalMs",
    "DefaultFanOutIntervalMs",
    "DefaultFanOutDelayMs",
    "RemoveChannelAfterOwnerRemoved",
    "SendOwnerLostAndRecovered",
    "EnableClientBroadcast",
    "ACLSettings",
    "DataMsgFullName",
];

struct EntryReader<'a> {
    name: &'a str,
    entry: &'a Map<String, Value>,
    problems: &'a mut Vec<String>,
}

impl EntryReader<'_> {
    fn problem(&mut self, field: &str, expected: &str) {
        self.problems.push(format!("`{}.{field}` must be {expected}", self.name));
    }

    fn number(&mut self, field: &str, min: i64, max: i64) -> i64 {
        match key(self.entry, field) {
            None | Some(Value::Null) => 0,
            Some(value) => match value.as_i64().filter(|number| (min..=max).contains(number)) {
                Some(number) => number,
                None => {
                    self.problem(field, &format!("a whole number from {min} to {max}"));
                    // One problem per field: a wrong tick interval is not also a zero one.
                    1
                }
            },
        }
    }

    fn flag(&mut self, field: &str) -> bool {
        match key(self.entry, field) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.problem(field, "true or false");
                false
            }
        }
    }

    fn text(&mut self, field: &str) -> Option<String> {
        match key(self.entry, field) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.problem(field, "a string");
                None
            }
        }
    }

    fn level(&mut self, access: &Map<String, Value>, field: &str) -> AccessLevel {
        match key(access, field) {
            None | Some(Value::Null) => AccessLevel::None,
            Some(value) => match value.as_u64().filter(|number| *number <= 255) {
                Some(number) => AccessLevel::from_number(number),
                None => {
                    self.problem(&format!("ACLSettings.{field}"), "a number from 0 to 255");
                    AccessLevel::None
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIFI: &str = include_str!("../../../fixtures/gateway/config/channel_settings_hifi.json");
    const LOFI: &str = include_str!("../../../fixtures/gateway/config/channel_settings_lofi.json");
    const TPS: &str = include_str!("../../../fixtures/gateway/config/channel_settings_tps.json");
    const UE: &str = include_str!("../../../fixtures/gateway/config/channel_settings_ue.json");

    #[test]
    fn stock_files_load_without_remarks() {
        for text in [HIFI, LOFI, TPS, UE] {
            let settings = ChannelSettings::parse(text).expect("a stock file loads");
            assert!(settings.warnings().is_empty());
        }
        let tps = ChannelSettings::parse(TPS).expect("loads");
        assert_eq!(tps.get(ChannelType::GLOBAL).data_type.as_deref(), Some("tpspb.TestRepChannelData"));
        assert_eq!(tps.get(ChannelType::ENTITY).tick_interval, Duration::from_millis(33));
        let lofi = ChannelSettings::parse(LOFI).expect("loads");
        assert_eq!(lofi.get(ChannelType::PRIVATE).fan_out_interval, Duration::from_millis(200));
        assert!(!lofi.get(ChannelType::GLOBAL).send_owner_lost_and_recovered);
    }

    #[test]
    fn the_default_is_the_hifi_file() {
        let file = ChannelSettings::parse(HIFI).expect("loads");
        let built_in = ChannelSettings::default();
        for (channel_type, settings) in file.iter() {
            let expected = TypeSettings { data_type: None, ..settings.clone() };
            assert_eq!(built_in.get(channel_type), &expected, "{channel_type:?}");
        }
    }

    #[test]
    fn unlisted_types_get_globals_timing_and_no_access() {
        let settings = ChannelSettings::parse(HIFI).expect("loads");
        let other = settings.get(ChannelType(200));
        assert_eq!(other.tick_interval, Duration::from_millis(20));
        assert!(!other.remove_after_owner_removed);
        assert_eq!(
            (other.sub, other.unsub, other.remove),
            (AccessLevel::None, AccessLevel::None, AccessLevel::None)
        );
        let none = ChannelSettings::parse("{}").expect("an empty file falls back");
        assert_eq!(none.get(ChannelType::GLOBAL), &TypeSettings::fallback());
    }

    #[test]
    fn access_levels_pass_whom_the_table_says() {
        let roles = [(false, false), (true, false), (false, true), (true, true)];
        let pass =
            |number: u64| roles.map(|(owner, global)| AccessLevel::from_number(number).passes(owner, global));
        assert_eq!(pass(0), [false; 4]);
        assert_eq!(pass(1), [false, true, false, true]);
        assert_eq!(pass(2), [false, true, true, true]);
        assert_eq!(pass(3), [true; 4]);
        assert_eq!(pass(4), [false; 4]);
    }

    // A-10: a tick of zero spins in the reference.
    #[test]
    fn a10_all_problems_are_reported_at_once_and_a_zero_tick_is_one() {
        let text = r#"{"1": {"TickIntervalMs": 0}, "x": {}, "2": {"TickIntervalMs": 5, "DefaultFanOutDelayMs": "a",
                       "ACLSettings": {"Sub": 300}, "RemoveChannelAfterOwnerRemoved": 1}}"#;
        let error = ChannelSettings::parse(text).expect_err("many problems");
        assert_eq!(error.problems.len(), 5, "{error}");
        assert!(error.to_string().contains("`1.TickIntervalMs` must be at least 1"));
        let unknown = ChannelSettings::parse(r#"{"1": {"tickintervalms": 5, "Tickk": 1}}"#).expect("loads");
        assert_eq!(unknown.warnings().len(), 1);
        assert_eq!(unknown.get(ChannelType::GLOBAL).tick_interval, Duration::from_millis(5));
        assert!(ChannelSettings::parse("[1]").is_err());
        assert!(ChannelSettings::parse("{").expect_err("not json").to_string().starts_with("line 1"));
    }
}
