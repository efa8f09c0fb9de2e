//! Tests of the module as a whole, through its public interface.

mod behaviour;
mod fixtures;
mod model;
mod property;
mod rules;
mod schema;
mod unreal;

use std::sync::Arc;

use prost_reflect::DynamicMessage;

use super::{ChannelData, FieldMask, MergeOptions, Plan, Profile, Schemas, SchemasBuilder};

const CHAT_PROTO: &str = include_str!("../../../../../fixtures/proto/chat.proto");
const TANKS_PROTO: &str = include_str!("../../../../../fixtures/proto/tanks.proto");
const TEST_PROTO: &str = include_str!("../../../../../fixtures/proto/test.proto");
const TPS_PROTO: &str = include_str!("../../../../../fixtures/proto/tps.proto");

/// The types of the demos and the fixtures.
fn builder() -> SchemasBuilder {
    SchemasBuilder::new()
        .add_proto("chat.proto", CHAT_PROTO)
        .add_proto("tanks.proto", TANKS_PROTO)
        .add_proto("test.proto", TEST_PROTO)
        .add_proto("tps.proto", TPS_PROTO)
}

fn schemas() -> Schemas {
    builder().build().expect("the demos' schemas compile")
}

fn plan(schemas: &Schemas, name: &str) -> Arc<Plan> {
    schemas.plan(name).unwrap_or_else(|| panic!("{name} is defined")).clone()
}

/// Decodes with the reflection library: the reading that all others must agree with.
fn decode(schemas: &Schemas, name: &str, bytes: &[u8]) -> DynamicMessage {
    let descriptor = schemas.pool().get_message_by_name(name).expect("a known type");
    DynamicMessage::decode(descriptor, bytes).expect("valid bytes")
}

fn encoded(data: &ChannelData, mask: Option<&FieldMask>) -> Vec<u8> {
    let mut out = Vec::new();
    data.encode(mask, &mut out);
    if mask.is_none() {
        assert_eq!(out.len(), data.encoded_len());
    }
    out
}

/// Compares what messages say. The library tells a written zero from an absent one, and cannot
/// print messages of recursive types; so both are rewritten and a difference is shown as bytes.
#[track_caller]
fn assert_same(got: &DynamicMessage, expected: &DynamicMessage, note: &dyn std::fmt::Debug) {
    let (got, expected) = (model::canonical(got), model::canonical(expected));
    if got != expected {
        let hex = |message: &DynamicMessage| {
            prost::Message::encode_to_vec(message).iter().map(|b| format!("{b:02x}")).collect::<String>()
        };
        panic!("got\n{}\nexpected\n{}\n{note:?}", hex(&got), hex(&expected));
    }
}
