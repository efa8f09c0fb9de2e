//! Channel data and updates of it. Spec: gateway §7.

use throng_gateway::data::{ChannelData, DataLimits, SchemasBuilder};

use super::{check, hex};

const SCHEMA: &str = r#"
    syntax = "proto3";
    package t;
    message Inner { int32 n = 1; Inner deeper = 2; }
    message World {
        string name = 1;
        Inner inner = 2;
        repeated string list = 3;
        map<uint32, Inner> entries = 4;
        repeated int32 numbers = 5;
        fixed64 eight = 6;
        bool flag = 7;
        bytes blob = 8;
        float four = 9;
    }
"#;

/// Name; the type; the update; `bytes of state` after it was merged into empty data, or the error.
///
/// A type that no schema describes is kept as it comes, up to 64 bytes; described data may have
/// 256.
pub(crate) const ROWS: &[(&str, &str, &str, &str)] = &[
    ("nothing", "t.World", "", "0"),
    ("a name", "t.World", "0a0161", "3"),
    ("a name that is not text", "t.World", "0a01ff", "t.World.name is not UTF-8 text"),
    ("half a UTF-8 character", "t.World", "0a02e282", "t.World.name is not UTF-8 text"),
    ("a UTF-16 surrogate", "t.World", "0a03eda080", "t.World.name is not UTF-8 text"),
    ("a name that ends early", "t.World", "0a0561", "not a valid message at byte 0 of the innermost message"),
    ("list text that is not text", "t.World", "1a0161 1a01c0", "t.World.list is not UTF-8 text"),
    ("bytes may be anything", "t.World", "4202ff00", "4"),
    ("a name as number is an unknown field", "t.World", "0805", "2"),
    ("an unknown field is kept", "t.World", "980601", "3"),
    (
        "an unknown field that ends early",
        "t.World",
        "9806",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "the second field is bad",
        "t.World",
        "0a0161 0a0561",
        "not a valid message at byte 3 of the innermost message",
    ),
    ("a tag with number 0", "t.World", "0001", "not a valid message at byte 0 of the innermost message"),
    ("wire type 7", "t.World", "0f", "not a valid message at byte 0 of the innermost message"),
    (
        "a varint of eleven bytes",
        "t.World",
        "38ffffffffffffffffffff01",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "an 8-byte number in 7 bytes",
        "t.World",
        "31 00*7",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "a 4-byte number in 3 bytes",
        "t.World",
        "4d000000",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "an inner message that ends early",
        "t.World",
        "1201 08",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "an inner message with a bad field",
        "t.World",
        "1203 080100",
        "not a valid message at byte 2 of the innermost message",
    ),
    (
        "packed numbers that end early",
        "t.World",
        "2a0180",
        "not a valid message at byte 0 of the innermost message",
    ),
    ("a map entry without key and value", "t.World", "2200", "6"),
    (
        "a map entry with a bad value",
        "t.World",
        "2204 0801 1205",
        "not a valid message at byte 2 of the innermost message",
    ),
    ("a map key as text", "t.World", "2203 0a0161", "6"),
    ("a group that is closed", "t.World", "9b069c06", "4"),
    (
        "a group that is not closed",
        "t.World",
        "9b06",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "a group closed by another",
        "t.World",
        "9b06a406",
        "not a valid message at byte 0 of the innermost message",
    ),
    (
        "over the limit",
        "t.World",
        "42fd01 61*253 3801",
        "channel data of 258 bytes would exceed the limit of 256",
    ),
    ("a described name with a blank", "t. World", "0a0161", "no schema, kept as it is: 3"),
    (
        "an unknown type",
        "nobody.Knows",
        "ffff",
        "no schema, kept as it is: not a valid message at byte 0 of the innermost message",
    ),
    ("an unknown type within its bound", "nobody.Knows", "0a3e 61*62", "no schema, kept as it is: 64"),
    (
        "an unknown type over its bound",
        "nobody.Knows",
        "0a3f 61*63",
        "no schema, kept as it is: channel data of 65 bytes would exceed the limit of 64",
    ),
];

#[test]
fn channel_data() {
    let schemas = SchemasBuilder::new()
        .add_proto("t.proto", SCHEMA)
        .limits(DataLimits { state_bytes_max: 256, opaque_bytes_max: 64 })
        .build()
        .expect("the schema compiles");
    check(
        ROWS,
        |row| (row.0, row.3),
        |(_, name, update, _)| {
            let plan = schemas.plan_or_opaque(name).expect("unknown types are allowed");
            let mut data = ChannelData::new(plan.clone());
            let answer = match data.merge(&hex(update), None) {
                Ok(()) => data.encoded_len().to_string(),
                Err(error) => {
                    assert_eq!(data.encoded_len(), 0, "a refused update changed the data");
                    error.to_string()
                }
            };
            if plan.is_opaque() { format!("no schema, kept as it is: {answer}") } else { answer }
        },
    );
}

#[test]
fn messages_nested_too_deep_are_refused_without_recursion_to_match() {
    let schemas = SchemasBuilder::new().add_proto("t.proto", SCHEMA).build().expect("the schema compiles");
    let plan = schemas.plan("t.Inner").expect("it is described");
    let mut nested: Vec<u8> = Vec::new();
    for _ in 0..20_000 {
        // Each layer is `deeper = <what is inside>`, written back to front.
        let mut len = Vec::new();
        throng_wire::write_varint(&mut len, nested.len() as u64);
        nested.extend(len.iter().rev());
        nested.push(0x12);
    }
    nested.reverse();
    let error = ChannelData::new(plan.clone()).merge(&nested, None).expect_err("20,000 layers");
    assert!(error.to_string().starts_with("messages nest deeper than"), "{error}");
}
