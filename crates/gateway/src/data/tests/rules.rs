//! Rules of single fields: the merge functions of the web chat and of the tanks demo.

use prost::Message;
use prost_reflect::{DynamicMessage, Value};
use throng_stdx::Rng;

use super::*;
use crate::data::{Delta, FieldRule};

const CHAT: &str = "chatpb.ChatChannelData";
const TANKS: &str = "tankspb.TankGameChannelData";

fn with_rules() -> Schemas {
    builder()
        .profile(TANKS, Profile::Removable)
        .rule("chatpb.ChatChannelData.chatMessages", "retain sendTime 10000".parse().expect("a rule"))
        .rule("tankspb.TankGameChannelData.tankStates", "copy health".parse().expect("a rule"))
        .rule(
            "tankspb.TankGameChannelData.transformStates",
            "copy position rotation scale".parse().expect("a rule"),
        )
        .build()
        .expect("the rules fit")
}

/// Reads a message from its JSON form.
fn message(schemas: &Schemas, name: &str, json: &str) -> Vec<u8> {
    let descriptor = schemas.pool().get_message_by_name(name).expect("a known type");
    let mut deserializer = serde_json::Deserializer::from_str(json);
    DynamicMessage::deserialize(descriptor, &mut deserializer).expect("fits the type").encode_to_vec()
}

fn chat(schemas: &Schemas, times: &[i64]) -> Vec<u8> {
    let lines: Vec<String> = times.iter().map(|time| format!(r#"{{"sendTime": "{time}"}}"#)).collect();
    message(schemas, CHAT, &format!(r#"{{"chatMessages": [{}]}}"#, lines.join(",")))
}

fn times(schemas: &Schemas, data: &ChannelData) -> Vec<i64> {
    let message = decode(schemas, CHAT, &encoded(data, None));
    let lines = message.get_field_by_name("chatMessages").expect("a field").into_owned();
    let time = |line: &Value| line.as_message()?.get_field_by_name("sendTime")?.as_i64();
    lines.as_list().expect("a list").iter().map(|line| time(line).expect("a time")).collect()
}

/// Appendix C, web chat: beyond the last n lines, what was said within ten seconds before them
/// stays.
#[test]
fn a_chat_keeps_recent_lines_beyond_its_limit() {
    let schemas = with_rules();
    let options = MergeOptions { list_size_limit: 2, truncate_top: true, ..MergeOptions::default() };
    let mut data = ChannelData::new(plan(&schemas, CHAT));
    let mut say = |said: &[i64], options: &MergeOptions| {
        data.merge(&chat(&schemas, said), Some(options)).expect("valid");
        times(&schemas, &data)
    };
    assert_eq!(say(&[1_000, 2_000], &options), [1_000, 2_000]);
    // The limit keeps 2,000 and 12,000; 1,000 lies 1,000 before them.
    assert_eq!(say(&[12_000], &options), [1_000, 2_000, 12_000]);
    assert_eq!(say(&[30_000], &options), [2_000, 12_000, 30_000], "exactly the span still counts");
    assert_eq!(say(&[31_000], &options), [30_000, 31_000]);
    // Without truncateTop the first ones stay and no rule applies.
    let first = MergeOptions { truncate_top: false, ..options };
    assert_eq!(say(&[31_500], &first), [30_000, 31_000]);
    // Times out of order, at the ends of their range, and none.
    assert_eq!(say(&[i64::MIN, 0], &options), [30_000, 31_000, i64::MIN, 0]);
    assert_eq!(say(&[i64::MAX], &options), [30_000, 31_000, 0, i64::MAX]);
}

/// The tanks and transforms of a state, as JSON.
fn tanks(schemas: &Schemas, data: &ChannelData) -> String {
    let message = decode(schemas, TANKS, &encoded(data, None));
    serde_json::to_string(&message).expect("a message has a JSON form")
}

/// Appendix C, tanks: of a tank that exists only the health changes, of a transform each vector as
/// a whole.
#[test]
fn tanks_take_over_what_their_game_copies() {
    let schemas = with_rules();
    let mut data = ChannelData::new(plan(&schemas, TANKS));
    let mut merge = |json: &str| {
        data.merge(&message(&schemas, TANKS, json), None).expect("valid");
        tanks(&schemas, &data)
    };
    let tank = |json: &str| format!(r#"{{"tankStates":{{"7":{json}}}}}"#);
    let transform = |json: &str| format!(r#"{{"transformStates":{{"7":{json}}}}}"#);
    assert_eq!(merge(&tank(r#"{"health":100,"isAI":true}"#)), tank(r#"{"health":100,"isAI":true}"#));
    assert_eq!(merge(&tank(r#"{"health":60}"#)), tank(r#"{"health":60,"isAI":true}"#));
    // Health has no presence: a tank can lose all of it.
    assert_eq!(merge(&tank("{}")), tank(r#"{"isAI":true}"#));
    assert_eq!(merge(&tank(r#"{"removed":true}"#)), "{}");
    let standing = r#"{"position":{"x":1.0,"y":2.0},"scale":{"x":1.0}}"#;
    assert_eq!(merge(&transform(standing)), transform(standing));
    // A vector is replaced, not merged: y is gone. What the update leaves out stays.
    let moved = r#"{"position":{"x":5.0},"scale":{"x":1.0}}"#;
    assert_eq!(merge(&transform(r#"{"position":{"x":5.0}}"#)), transform(moved));
}

/// A window folded into a delta does what its updates did, also where an entry went and came back.
#[test]
fn deltas_agree_with_the_state_under_rules() {
    let schemas = with_rules();
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut update = || -> Vec<u8> {
            let entry = |rng: &mut Rng| match rng.below(4) {
                0 => r#"{"removed":true}"#.to_owned(),
                1 => format!(r#"{{"health":{}}}"#, rng.below(3)),
                _ => format!(r#"{{"health":{},"isAI":{}}}"#, rng.below(3), rng.chance(0.5)),
            };
            let vector = |rng: &mut Rng| match rng.below(3) {
                0 => format!(r#"{{"position":{{"x":{}}}}}"#, rng.below(3)),
                1 => r#"{"removed":true}"#.to_owned(),
                _ => format!(r#"{{"rotation":{{"y":{}}},"scale":{{"x":1}}}}"#, rng.below(3)),
            };
            let (tank, other) = (entry(&mut rng), vector(&mut rng));
            let (one, two) = (rng.below(3), rng.below(2));
            let json =
                format!(r#"{{"tankStates":{{"{one}":{tank}}},"transformStates":{{"{two}":{other}}}}}"#);
            message(&schemas, TANKS, &json)
        };
        let mut state = ChannelData::new(plan(&schemas, TANKS));
        state.merge(&update(), None).expect("valid");
        let mut receiver = state.clone();
        let mut delta = Delta::new(plan(&schemas, TANKS));
        for _ in 0..4 {
            let update = update();
            state.merge(&update, None).expect("valid");
            delta.accumulate(&update, None).expect("valid");
        }
        let mut messages = Vec::new();
        delta.encode_messages(None, &mut messages);
        for message in messages {
            receiver.merge(&message, None).expect("valid");
        }
        let decoded = |data: &ChannelData| decode(&schemas, TANKS, &encoded(data, None));
        assert_same(&decoded(&receiver), &decoded(&state), &seed);
    }
}

#[test]
fn rules_that_fit_nothing_are_refused_with_their_reason() {
    let refusal = |field: &str, rule: &str| {
        let rule: FieldRule = rule.parse().expect("a rule");
        builder().rule(field, rule).build().expect_err("it does not fit").to_string()
    };
    let list = "chatpb.ChatChannelData.chatMessages";
    let map = "tankspb.TankGameChannelData.tankStates";
    assert!(refusal("chatpb.Nothing.x", "copy a").contains("no schema file defines"));
    assert!(refusal(list, "retain when 5").ends_with("chatpb.ChatMessage has no field `when`"));
    assert!(refusal(list, "retain content 5").ends_with("`content` is not a single whole number"));
    assert!(refusal(list, "copy content").ends_with("`copy` needs a map of messages"));
    assert!(refusal(map, "retain health 5").ends_with("`retain` needs a list of messages"));
    assert!(refusal("tpspb.TestRepChannelData.actorStates", "copy removed").contains("profile unreal"));
    for text in ["", "retain", "retain a", "retain a b", "retain a -1", "copy", "keep a"] {
        assert!(text.parse::<FieldRule>().is_err(), "{text}");
    }
}
