//! The JSON files of the reference, as operators may write them. Spec: gateway §4.4, §5.2.

use throng_gateway::{ChannelSettings, StateMachine};

use super::check;

/// Name; the file; `ok` with the warnings, or the error.
pub(crate) const STATE_MACHINES: &[(&str, &str, &str)] = &[
    ("smallest", r#"{"States": [{"Name": "A"}]}"#, "ok"),
    ("nothing", "", "line 1, column 0: EOF while parsing a value at line 1 column 0"),
    ("not JSON", "States: [A]", "line 1, column 1: expected value at line 1 column 1"),
    ("ends early", r#"{"States": ["#, "line 1, column 12: EOF while parsing a list at line 1 column 12"),
    (
        "error on the third line",
        "{\n\"States\": [\n{]}",
        "line 3, column 2: key must be a string at line 3 column 2",
    ),
    (
        "trailing comma",
        r#"{"States": [{"Name": "A"},]}"#,
        "line 1, column 27: trailing comma at line 1 column 27",
    ),
    ("two documents", "{} {}", "line 1, column 4: trailing characters at line 1 column 4"),
    ("a list", "[]", "`the file` must be an object"),
    ("a number", "7", "`the file` must be an object"),
    ("null", "null", "`the file` must be an object"),
    ("no states", "{}", "`States` is empty; a connection needs a state to start in"),
    ("empty states", r#"{"States": []}"#, "`States` is empty; a connection needs a state to start in"),
    ("null states", r#"{"States": null}"#, "`States` is empty; a connection needs a state to start in"),
    ("states as object", r#"{"States": {"A": {}}}"#, "`States` must be a list of states"),
    ("states as text", r#"{"States": "A"}"#, "`States` must be a list of states"),
    ("a state as text", r#"{"States": ["A"]}"#, "`States[0]` must be an object"),
    ("the second state as number", r#"{"States": [{"Name": "A"}, 2]}"#, "`States[1]` must be an object"),
    ("a name as number", r#"{"States": [{"Name": 1}]}"#, "`States[0].Name` must be a string"),
    (
        "a whitelist as number",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": 1}]}"#,
        "`States[0].MsgTypeWhitelist` must be a string",
    ),
    (
        "a whitelist as list",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": [1]}]}"#,
        "`States[0].MsgTypeWhitelist` must be a string",
    ),
    (
        "a blacklist as bool",
        r#"{"States": [{"Name": "A", "MsgTypeBlacklist": true}]}"#,
        "`States[0].MsgTypeBlacklist` must be a string",
    ),
    (
        "words in the whitelist",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "1,all,3"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `all` is not a type or range",
    ),
    (
        "a range backwards",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "9-8"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `9-8` is not a type or range",
    ),
    (
        "a negative type",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "-3"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `-3` is not a type or range",
    ),
    (
        "a type over 32 bits",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "4294967296"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `4294967296` is not a type or range",
    ),
    (
        "an open range",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "5-"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `5-` is not a type or range",
    ),
    (
        "three ends",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "1-2-3"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `1-2-3` is not a type or range",
    ),
    (
        "hexadecimal",
        r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "0x10"}]}"#,
        "ok: States[0].MsgTypeWhitelist: `0x10` is not a type or range",
    ),
    (
        "a bad blacklist",
        r#"{"States": [{"Name": "A", "MsgTypeBlacklist": "x"}]}"#,
        "ok: States[0].MsgTypeBlacklist: `x` is not a type or range",
    ),
    ("commas only", r#"{"States": [{"Name": "A", "MsgTypeWhitelist": " , ,, "}]}"#, "ok"),
    ("the whole range", r#"{"States": [{"Name": "A", "MsgTypeWhitelist": "0-4294967295"}]}"#, "ok"),
    (
        "two states of one name",
        r#"{"States": [{"Name": "A"}, {"Name": "A"}]}"#,
        "ok: States[1]: a state named `A` exists already; the first one is used",
    ),
    (
        "unknown initial state",
        r#"{"States": [{"Name": "A"}, {"Name": "B"}], "InitState": "C"}"#,
        "`InitState` names the unknown state `C`; known: A, B",
    ),
    (
        "initial state as number",
        r#"{"States": [{"Name": "A"}], "InitState": 0}"#,
        "`the file.InitState` must be a string",
    ),
    (
        "transitions as object",
        r#"{"States": [{"Name": "A"}], "Transitions": {}}"#,
        "`Transitions` must be a list of transitions",
    ),
    (
        "a transition as text",
        r#"{"States": [{"Name": "A"}], "Transitions": ["A-B"]}"#,
        "`Transitions[0]` must be an object",
    ),
    (
        "a transition to nowhere",
        r#"{"States": [{"Name": "A"}], "Transitions": [{"FromState": "A", "ToState": "B", "MsgType": 1}]}"#,
        "ok: Transitions[0]: `A` or `B` is not a state; the transition is ignored",
    ),
    (
        "a transition without names",
        r#"{"States": [{"Name": "A"}], "Transitions": [{}]}"#,
        "ok: Transitions[0]: `` or `` is not a state; the transition is ignored",
    ),
    (
        "a transition on text",
        r#"{"States": [{"Name": "A"}], "Transitions": [{"FromState": "A", "ToState": "A", "MsgType": "1"}]}"#,
        "`Transitions[0].MsgType` must be a number from 0 to 4294967295",
    ),
    (
        "a transition on -1",
        r#"{"States": [{"Name": "A"}], "Transitions": [{"FromState": "A", "ToState": "A", "MsgType": -1}]}"#,
        "`Transitions[0].MsgType` must be a number from 0 to 4294967295",
    ),
    (
        "a transition on 1.5",
        r#"{"States": [{"Name": "A"}], "Transitions": [{"FromState": "A", "ToState": "A", "MsgType": 1.5}]}"#,
        "`Transitions[0].MsgType` must be a number from 0 to 4294967295",
    ),
    ("unknown keys", r#"{"States": [{"Name": "A", "Colour": "red"}], "Version": 3}"#, "ok"),
    ("a byte order mark", "\u{feff}{}", "line 1, column 1: expected value at line 1 column 1"),
];

/// Name; the file; `ok` with the warnings, or the problems.
pub(crate) const SETTINGS: &[(&str, &str, &str)] = &[
    ("smallest", "{}", "ok"),
    ("nothing", "", "line 1, column 0: EOF while parsing a value at line 1 column 0"),
    ("not JSON", "TickIntervalMs = 5", "line 1, column 1: expected value at line 1 column 1"),
    ("ends early", r#"{"1": {"#, "line 1, column 7: EOF while parsing an object at line 1 column 7"),
    ("a comment", "{ // hifi\n}", "line 1, column 3: key must be a string at line 1 column 3"),
    ("a list", "[]", "the file must be an object with one key per channel type"),
    ("text", r#""hifi""#, "the file must be an object with one key per channel type"),
    (
        "a type by name",
        r#"{"GLOBAL": {"TickIntervalMs": 5}}"#,
        "`GLOBAL` must be a channel type number with an object as value",
    ),
    (
        "a negative type",
        r#"{"-1": {"TickIntervalMs": 5}}"#,
        "`-1` must be a channel type number with an object as value",
    ),
    (
        "a type over 32 bits",
        r#"{"4294967296": {"TickIntervalMs": 5}}"#,
        "`4294967296` must be a channel type number with an object as value",
    ),
    (
        "a type with blanks",
        r#"{" 1": {"TickIntervalMs": 5}}"#,
        "` 1` must be a channel type number with an object as value",
    ),
    (
        "an empty type",
        r#"{"": {"TickIntervalMs": 5}}"#,
        "`` must be a channel type number with an object as value",
    ),
    ("an entry as number", r#"{"1": 5}"#, "`1` must be a channel type number with an object as value"),
    ("an entry as null", r#"{"1": null}"#, "`1` must be a channel type number with an object as value"),
    ("no tick", r#"{"1": {}}"#, "`1.TickIntervalMs` must be at least 1"),
    ("tick zero", r#"{"1": {"TickIntervalMs": 0}}"#, "`1.TickIntervalMs` must be at least 1"),
    ("tick null", r#"{"1": {"TickIntervalMs": null}}"#, "`1.TickIntervalMs` must be at least 1"),
    (
        "tick negative",
        r#"{"1": {"TickIntervalMs": -5}}"#,
        "`1.TickIntervalMs` must be a whole number from 0 to 4294967295",
    ),
    (
        "tick as text",
        r#"{"1": {"TickIntervalMs": "5"}}"#,
        "`1.TickIntervalMs` must be a whole number from 0 to 4294967295",
    ),
    (
        "tick with a fraction",
        r#"{"1": {"TickIntervalMs": 0.5}}"#,
        "`1.TickIntervalMs` must be a whole number from 0 to 4294967295",
    ),
    (
        "tick over 32 bits",
        r#"{"1": {"TickIntervalMs": 4294967296}}"#,
        "`1.TickIntervalMs` must be a whole number from 0 to 4294967295",
    ),
    (
        "interval negative",
        r#"{"1": {"TickIntervalMs": 5, "DefaultFanOutIntervalMs": -1}}"#,
        "`1.DefaultFanOutIntervalMs` must be a whole number from 0 to 4294967295",
    ),
    ("interval zero means every tick", r#"{"1": {"TickIntervalMs": 5, "DefaultFanOutIntervalMs": 0}}"#, "ok"),
    (
        "delay over 31 bits",
        r#"{"1": {"TickIntervalMs": 5, "DefaultFanOutDelayMs": 2147483648}}"#,
        "`1.DefaultFanOutDelayMs` must be a whole number from -2147483648 to 2147483647",
    ),
    ("delay negative is allowed", r#"{"1": {"TickIntervalMs": 5, "DefaultFanOutDelayMs": -100}}"#, "ok"),
    (
        "a flag as number",
        r#"{"1": {"TickIntervalMs": 5, "RemoveChannelAfterOwnerRemoved": 1}}"#,
        "`1.RemoveChannelAfterOwnerRemoved` must be true or false",
    ),
    (
        "a flag as text",
        r#"{"1": {"TickIntervalMs": 5, "SendOwnerLostAndRecovered": "yes"}}"#,
        "`1.SendOwnerLostAndRecovered` must be true or false",
    ),
    (
        "broadcast as text",
        r#"{"1": {"TickIntervalMs": 5, "EnableClientBroadcast": "true"}}"#,
        "`1.EnableClientBroadcast` must be true or false",
    ),
    (
        "access as number",
        r#"{"1": {"TickIntervalMs": 5, "ACLSettings": 3}}"#,
        "`1.ACLSettings` must be an object",
    ),
    (
        "access level 256",
        r#"{"1": {"TickIntervalMs": 5, "ACLSettings": {"Sub": 256}}}"#,
        "`1.ACLSettings.Sub` must be a number from 0 to 255",
    ),
    (
        "access level -1",
        r#"{"1": {"TickIntervalMs": 5, "ACLSettings": {"Unsub": -1}}}"#,
        "`1.ACLSettings.Unsub` must be a number from 0 to 255",
    ),
    (
        "access level as text",
        r#"{"1": {"TickIntervalMs": 5, "ACLSettings": {"Remove": "any"}}}"#,
        "`1.ACLSettings.Remove` must be a number from 0 to 255",
    ),
    (
        "data type as number",
        r#"{"1": {"TickIntervalMs": 5, "DataMsgFullName": 7}}"#,
        "`1.DataMsgFullName` must be a string",
    ),
    (
        "a misspelt key",
        r#"{"1": {"TickIntervalMs": 5, "TickInterval": 7}}"#,
        "ok: `1.TickInterval` is not a setting; known: TickIntervalMs, DefaultFanOutIntervalMs, DefaultFanOutDelayMs, RemoveChannelAfterOwnerRemoved, SendOwnerLostAndRecovered, EnableClientBroadcast, ACLSettings, DataMsgFullName",
    ),
    (
        "two problems at once",
        r#"{"1": {"TickIntervalMs": 0}, "x": {}}"#,
        "`1.TickIntervalMs` must be at least 1; `x` must be a channel type number with an object as value",
    ),
    (
        "nested too deep",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        "line 1, column 128: recursion limit exceeded at line 1 column 128",
    ),
];

#[test]
fn state_machines() {
    check(
        STATE_MACHINES,
        |row| (row.0, row.2),
        |(_, text, _)| match StateMachine::parse(text) {
            Ok(machine) => accepted(machine.warnings()),
            Err(error) => error.to_string(),
        },
    );
}

#[test]
fn channel_settings() {
    check(
        SETTINGS,
        |row| (row.0, row.2),
        |(_, text, _)| match ChannelSettings::parse(text) {
            Ok(settings) => accepted(settings.warnings()),
            Err(error) => error.to_string(),
        },
    );
}

fn accepted(warnings: &[String]) -> String {
    if warnings.is_empty() { "ok".into() } else { format!("ok: {}", warnings.join("; ")) }
}
