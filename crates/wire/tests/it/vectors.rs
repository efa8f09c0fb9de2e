//! The observed frames of the reference gateway mean what they are said to mean, in both
//! directions. Spec: gateway Appendix D.

#![allow(clippy::disallowed_methods, reason = "the core has no files; its tests read fixtures")]

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::PathBuf};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;
use throng_wire::{
    FrameError, FrameReader, FrameWriter, MessagePack, channeldpb,
    frame::{Compression, Form, ReaderLimits, legacy_tag, tag},
};

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn vectors() -> Value {
    let text = fs::read_to_string(repository().join("fixtures/gateway/vectors.json")).expect("the fixture");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

fn pool() -> DescriptorPool {
    let files = [
        "channeld.proto",
        "unity_common.proto",
        "unreal_common.proto",
        "chat.proto",
        "tanks.proto",
        "tps.proto",
    ];
    let includes = [repository().join("crates/wire/proto"), repository().join("fixtures/proto")];
    let set = protox::compile(files, includes).expect("the proto files compile");
    DescriptorPool::from_file_descriptor_set(set).expect("the descriptors are consistent")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is text in {value}"))
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is a list"))
}

fn number(value: &Value, key: &str) -> u32 {
    value[key].as_u64().and_then(|n| n.try_into().ok()).unwrap_or_else(|| panic!("{key} is a number"))
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "hex digits come in pairs");
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}

/// A message without its body, and the body.
type OwnedMessage = (MessagePack<'static>, Vec<u8>);

/// The messages of a stream.
fn read(stream: &[u8]) -> (FrameReader, Result<Vec<OwnedMessage>, FrameError>) {
    let mut reader = FrameReader::default();
    let mut messages = Vec::new();
    let result = reader.feed(stream, &mut |packet| {
        for message in packet.messages() {
            messages.push((MessagePack { body: &[], ..message }, message.body.to_vec()));
        }
        ControlFlow::Continue(())
    });
    (reader, result.map(|()| messages))
}

/// Equal as JSON, where 1 and 1.0 are the same number.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, left)| right.get(key).is_some_and(|right| same(left, right)))
        }
        _ => left == right,
    }
}

#[test]
fn every_frame_decodes_to_its_messages() {
    let vectors = vectors();
    let vectors = array(&vectors, "vectors");
    assert_eq!(vectors.len(), 42);
    let mut legacy = 0;
    for vector in vectors {
        let name = text(vector, "name");
        let expected: Vec<_> = array(vector, "messages")
            .iter()
            .map(|message| {
                let head = MessagePack {
                    channel_id: number(message, "channelId"),
                    broadcast: number(message, "broadcast"),
                    stub_id: number(message, "stubId"),
                    msg_type: number(message, "msgType"),
                    body: &[],
                };
                (head, hex(text(message, "bodyHex")))
            })
            .collect();

        let check = |key: &str, form: Form, compressed: bool| {
            let (reader, messages) = read(&hex(text(vector, key)));
            assert_eq!(messages.as_ref(), Ok(&expected), "{name} {key}");
            assert_eq!((reader.form(), reader.peer_compresses()), (form, compressed), "{name} {key}");
            assert_eq!(reader.buffered_bytes(), 0);
        };
        // From 256 bytes on both forms look the same, so nothing is decided.
        let plain_size = number(vector, "packetSize");
        let snappy_size = hex(text(vector, "frameSnappyHex")).len() - 5;
        let form = |size: usize, short| if size < 256 { short } else { Form::Undecided };
        check("framePlainHex", form(plain_size as usize, Form::Current), false);
        check("frameSnappyHex", form(snappy_size, Form::Current), true);
        if vector.get("frameLegacyPlainHex").is_some() {
            check("frameLegacyPlainHex", form(plain_size as usize, Form::Legacy), false);
            legacy += 1;
        }

        // And back, in every way a frame can be written.
        for (compression, writes_legacy) in [
            (Compression::None, false),
            (Compression::Snappy, false),
            (Compression::None, true),
            (Compression::Snappy, true),
        ] {
            let mut writer = FrameWriter::new();
            writer.set_compression(compression);
            writer.set_writes_legacy(writes_legacy);
            let mut wire = Vec::new();
            for (head, body) in &expected {
                writer.push(&MessagePack { body, ..*head }, &mut wire).expect("it fits");
            }
            writer.flush(&mut wire);
            assert_eq!(read(&wire).1.as_ref(), Ok(&expected), "{name} {compression:?} {writes_legacy}");
        }
    }
    assert_eq!(legacy, 9);
}

/// As JSON, with the field names of the proto files.
fn to_json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).expect("the body is JSON")
}

#[test]
fn every_body_has_the_fields_described() {
    let pool = pool();
    let vectors = vectors();
    let mut bodies = 0;
    for vector in array(&vectors, "vectors") {
        for message in array(vector, "messages") {
            let Some(expected) = message.get("body") else { continue };
            let name = text(vector, "name");
            let descriptor = pool.get_message_by_name(text(message, "bodyType")).expect("the type is known");
            let body = hex(text(message, "bodyHex"));
            let decoded =
                DynamicMessage::decode(descriptor.clone(), body.as_slice()).expect("the body decodes");

            let json = to_json(&decoded);
            assert!(same(&json, expected), "{name}\n{json:#}\n{expected:#}");

            // Through text, too: the order of map entries within an Any is free, so compare text
            // again.
            let from_json = DynamicMessage::deserialize(descriptor, expected).expect("the JSON is a body");
            assert!(same(&to_json(&from_json), expected), "{name}");
            bodies += 1;
        }
    }
    assert_eq!(bodies, 41);
}

/// Decodes and encodes a body with its generated type.
fn recode<T: Message + Default>(body: &[u8]) -> Vec<u8> {
    T::decode(body).expect("the body decodes").encode_to_vec()
}

#[test]
fn generated_types_keep_every_field() {
    type Recode = fn(&[u8]) -> Vec<u8>;
    macro_rules! types {
        ($($name:ident)*) => { [$((concat!("channeldpb.", stringify!($name)), recode::<channeldpb::$name> as Recode)),*] };
    }
    let types = BTreeMap::from(types![
        AuthMessage AuthResultMessage CreateChannelMessage CreateChannelResultMessage RemoveChannelMessage
        ListChannelMessage ListChannelResultMessage SubscribedToChannelMessage SubscribedToChannelResultMessage
        UnsubscribedFromChannelResultMessage ChannelDataUpdateMessage DisconnectMessage
        CreateSpatialChannelsResultMessage QuerySpatialChannelMessage QuerySpatialChannelResultMessage
        ChannelDataHandoverMessage SpatialRegionsUpdateMessage UpdateSpatialInterestMessage
        CreateEntityChannelMessage AddEntityGroupMessage RemoveEntityGroupMessage SpatialChannelsReadyMessage
        ChannelDataRecoveryMessage EndRecoveryMesssage ChannelOwnerLostMessage ChannelOwnerRecoveredMessage
        DebugGetSpatialRegionsMessage ServerForwardMessage
    ]);
    let pool = pool();
    let vectors = vectors();
    for message in array(&vectors, "vectors").iter().flat_map(|vector| array(vector, "messages")) {
        if message.get("body").is_none() {
            continue;
        }
        let name = text(message, "bodyType");
        let recode = types.get(name).unwrap_or_else(|| panic!("no generated type for {name}"));
        let body = hex(text(message, "bodyHex"));
        let decode = |bytes: &[u8]| {
            let descriptor = pool.get_message_by_name(name).expect("the type is known");
            DynamicMessage::decode(descriptor, bytes).expect("the body decodes")
        };
        assert_eq!(decode(&recode(&body)), decode(&body), "{name}");
    }
}

#[test]
fn tags_have_the_observed_bytes() {
    let vectors = vectors();
    let tags = array(&vectors, "tagsBySize");
    assert_eq!(tags.len(), 11);
    for row in tags {
        let size = number(row, "packetSize") as usize;
        assert_eq!(tag(size, Compression::None).to_vec(), hex(text(row, "tagHex")), "{size}");
        assert_eq!(legacy_tag(size, Compression::None).to_vec(), hex(text(row, "legacyTagHex")), "{size}");
    }
}

#[test]
fn invalid_frames_end_the_stream() {
    let vectors = vectors();
    let frames = array(&vectors, "invalidFrames");
    let expected = ["bad_magic", "bad_magic", "zero_size", "bad_packet", "bad_snappy"];
    assert_eq!(frames.len(), expected.len());
    for (row, expected) in frames.iter().zip(expected) {
        let bytes = hex(text(row, "hex"));
        let (mut reader, result) = read(&bytes);
        let error = result.expect_err(text(row, "why"));
        assert_eq!(error.reason(), expected, "{}", text(row, "why"));

        // The stream stays ended, and nothing of it is kept.
        let again = reader.feed(&tag(4, Compression::None), &mut |_| ControlFlow::Continue(()));
        assert_eq!(again, Err(error));
        assert_eq!(reader.buffered_bytes(), 0);
    }
}

#[test]
fn unknown_compression_is_refused_or_counts_as_none() {
    let stream = hex("434800040207010a022015");
    let (_, result) = read(&stream[..5]);
    assert_eq!(result, Err(FrameError::UnknownCompression(2)));

    let stream = hex("43480004020a022015");
    let limits = ReaderLimits { accept_unknown_compression: true, ..ReaderLimits::default() };
    let mut reader = FrameReader::new(limits);
    let mut types = Vec::new();
    reader
        .feed(&stream, &mut |packet| {
            types.extend(packet.messages().map(|message| message.msg_type));
            ControlFlow::Continue(())
        })
        .expect("a frame");
    assert_eq!((types, reader.peer_compresses()), (vec![21], false));
}
