//! Every vector of `fixtures/ddc`, both ways.

#![expect(clippy::disallowed_methods, reason = "the test reads the vectors; the core is handed bytes")]

use serde_json::Value as Json;
use throng_ddc::compressed::{self, CompressedError};
use throng_ddc::package::{self, Flags};
use throng_ddc::{
    AttachmentKind, Document, Field, IoHash, Kind, Style, Value, batch, check, read_varuint, write_varuint,
};

#[test]
fn hashes() {
    for row in rows("iohash") {
        let length = row["length"].as_u64().expect("a length") as usize;
        let data = match (row["data"].as_str(), name(&row)) {
            (Some(hex), _) => unhex(hex),
            (None, text) if text.contains("zero bytes") => vec![0; length],
            (None, _) => (0..length).map(|n| n as u8).collect(),
        };
        assert_eq!(data.len(), length);
        assert_eq!(IoHash::of(&data).to_string(), row["iohash"], "{}", name(&row));
    }
}

#[test]
fn variable_length_integers() {
    for row in rows("varuint") {
        let value: u64 = text(&row, "value").parse().expect("a number");
        let mut written = Vec::new();
        write_varuint(&mut written, value);
        assert_eq!(written, bytes(&row));
        assert_eq!(read_varuint(&written), Some((value, written.len())));
    }
    for row in rows("varuint_non_minimal") {
        let (stored, value): (_, u64) = (bytes(&row), text(&row, "value").parse().expect("a number"));
        assert_eq!(read_varuint(&stored), Some((value, stored.len())));
        // In a field, only the check for canonical form minds.
        let field = [&[Kind::IntegerPositive as u8], &stored[..]].concat();
        assert_eq!(defects(&field), ["InvalidInteger"]);
    }
}

#[test]
fn fields() {
    for row in rows("fields") {
        let (stored, name) = (bytes(&row), name(&row));
        let (field, len) = Field::read(&stored).expect(name);
        assert_eq!(
            (len, stored.len()),
            (stored.len(), row["size"].as_u64().expect("a size") as usize),
            "{name}"
        );
        assert_eq!(field.kind() as u64, row["type"].as_u64().expect("a type"), "{name}");
        assert_eq!(field.name(), row["field_name"].as_str().map(str::as_bytes), "{name}");
        if let Some(integer) = row["integer"].as_str() {
            assert_eq!(field.integer().map(|n| n.to_string()).as_deref(), Some(integer), "{name}");
        }
        assert_eq!(defects(&stored), strings(&row, "format_errors"), "{name}");
        let written = Value::from_field(&field).encode_named(field.name(), Style::Separate);
        assert_eq!(written, stored, "{name}");

        let document = Value::object([("v", Value::from_field(&field))]).encode(Style::Separate);
        let document = Document::parse(&document).expect(name);
        let json: Json = serde_json::from_str(&document.to_json()).expect(name);
        match field.kind() {
            // The vectors give time spans as ticks and years without padding.
            Kind::TimeSpan => assert_eq!(field.ticks(), row["json"].as_i64(), "{name}"),
            Kind::DateTime => {
                let rendered = json["v"].as_str().expect("text").trim_start_matches('0').to_owned();
                assert_eq!(rendered, row["json"], "{name}");
            }
            _ if row.get("integer").is_some() => assert_eq!(json["v"].to_string(), row["integer"], "{name}"),
            _ => assert_eq!(json["v"], row["json"], "{name}"),
        }
    }
}

#[test]
fn containers() {
    for row in rows("containers") {
        let (stored, name) = (bytes(&row), name(&row));
        assert_eq!(IoHash::of(&stored).to_string(), row["iohash"], "{name}");
        assert_eq!(defects(&stored), strings(&row, "format_errors"), "{name}");
        let (field, _) = Field::read(&stored).expect(name);
        let value = Value::from_field(&field);
        let styles = [Style::Canonical, Style::Plain, Style::Separate];
        if defects(&stored).is_empty() {
            assert_eq!(value.encode(Style::Canonical), stored, "{name}");
        } else {
            assert!(styles.iter().any(|style| value.encode(*style) == stored), "{name}: no style writes it");
        }
        assert!(check(&value.encode(Style::Canonical)).is_empty(), "{name}");

        let Ok(document) = Document::parse(&stored) else {
            assert!(field.is_array(), "{name}");
            continue;
        };
        let json: Json = serde_json::from_str(&document.to_json()).expect(name);
        assert_eq!(json, row["json"], "{name}");
        let attachments = document.attachments();
        let found: Vec<Json> = attachments
            .iter()
            .map(|found| {
                let kind = if found.kind == AttachmentKind::Object { "object" } else { "binary" };
                serde_json::json!([kind, found.hash.to_string()])
            })
            .collect();
        assert_eq!(Json::Array(found), row["attachments"], "{name}");
    }
}

#[test]
fn the_published_rendering_has_66_bytes() {
    let value = Value::object([
        ("RawHash", Value::BinaryAttachment(IoHash::of(b"test"))),
        ("RawSize", Value::Integer(4)),
    ]);
    let bytes = value.encode(Style::Plain);
    let json = Document::parse(&bytes).expect("a document").to_json();
    assert_eq!((json.len(), &json[..12]), (66, r#"{"RawHash":""#));
}

#[test]
fn malformed_input() {
    for row in rows("malformed") {
        let (stored, name) = (bytes(&row), name(&row));
        assert_eq!(defects(&stored), strings(&row, "errors"), "{name}");
        if row["must_reject"] == true {
            assert!(Document::parse(&stored).is_err(), "{name}");
        } else if stored[0] == Kind::Object as u8 && name != "trailing byte" {
            assert!(Document::parse(&stored).is_ok(), "{name}");
        }
    }
}

#[test]
fn batches() {
    for row in rows("batch") {
        let (stored, name) = (bytes(&row), name(&row));
        assert_eq!(defects(&stored), strings(&row, "format_errors"), "{name}");
        let document = Document::parse(&stored).expect(name);
        let json: Json = serde_json::from_str(&document.to_json()).expect(name);
        assert_eq!(json, row["json"], "{name}");
        let style = if defects(&stored).is_empty() { Style::Canonical } else { Style::Plain };
        assert_eq!(Value::from_field(&document.root()).encode(style), stored, "{name}");
        if name.contains("response") {
            let results = document.get("results").expect("results");
            let results = results.iter().map(|result| batch::OpResult {
                id: result.get("opId").and_then(|id| id.integer()).expect("an id") as u32,
                status: result.get("statusCode").and_then(|code| code.integer()).expect("a code") as u16,
                response: Value::Document(
                    result.get("response").and_then(|object| object.to_document_bytes()).expect("an object"),
                ),
            });
            assert_eq!(batch::write_response(results.collect()), stored);
        } else {
            let ops = batch::read_request(&document).expect(name);
            assert_eq!(ops.len(), row["json"]["ops"].as_array().expect("ops").len());
            for op in ops {
                if let batch::OpAction::Put { payload, hash } = op.action {
                    assert_eq!(hash, Some(IoHash::of(&payload.expect("a payload"))));
                }
            }
        }
    }
}

#[test]
fn compressed_buffers() {
    for row in rows("compressed_buffers") {
        let (stored, name) = (bytes(&row), name(&row));
        assert_eq!(IoHash::of(&stored).to_string(), row["body_iohash"], "{name}");
        if row["valid"] != true {
            let error = compressed::verify(&stored).expect_err(name);
            let found = match error {
                CompressedError::UnsupportedMethod(_) => "UnsupportedMethod".to_owned(),
                other => format!("{other:?}"),
            };
            assert_eq!(found, row["error"], "{name}");
            continue;
        }
        let verified = compressed::verify(&stored).expect(name);
        assert!(verified.hash_checked, "{name}");
        assert_eq!(verified.header.raw_hash.to_string(), row["raw_hash"], "{name}");
        let raw = compressed::decompress(&stored, 1 << 20, None).expect(name).expect(name);
        assert_eq!(raw.len() as u64, row["raw_size"].as_u64().expect("a size"), "{name}");
        if let Some(expected) = row["raw"].as_str() {
            assert_eq!(raw, unhex(expected), "{name}");
        }
        // The other way: what has one encoding is written like that, the rest reads back.
        if name == "None \"test\"" || name == "None 28 byte text" {
            assert_eq!(compressed::store(&raw), stored, "{name}");
        }
        let again = compressed::compress_lz4(&raw, 12);
        assert_eq!(compressed::decompress(&again, 1 << 20, None), Ok(Some(raw)), "{name}");
    }
}

#[test]
fn packages() {
    for row in rows("packages") {
        let (stored, name) = (bytes(&row), name(&row));
        if row["valid"] != true {
            assert!(package::split(&stored).is_err(), "{name}");
            continue;
        }
        let parts = package::split(&stored).expect(name);
        let (root, payload) = parts[0];
        assert_eq!(root.hash.to_string(), row["root_hash"], "{name}");
        assert_eq!(u64::from(root.flags.0), row["root_flags"], "{name}");
        let object = match root.flags.has(Flags::COMPRESSED) {
            true => compressed::decompress(payload, 1 << 20, None).expect(name).expect(name),
            false => payload.to_vec(),
        };
        assert_eq!(IoHash::of(&object), root.hash, "{name}");
        Document::parse(&object).expect(name);
        let attachments: Vec<Json> = parts[1..]
            .iter()
            .map(|(entry, _)| {
                serde_json::json!({"hash": entry.hash.to_string(), "flags": entry.flags.0, "size": entry.size})
            })
            .collect();
        assert_eq!(Json::Array(attachments), row["attachments"], "{name}");
        let joined: Vec<_> =
            parts.iter().map(|(entry, payload)| (entry.flags, entry.hash, *payload)).collect();
        assert_eq!(package::join(&joined), stored, "{name}");
    }
}

fn rows(section: &str) -> Vec<Json> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/ddc/vectors.json");
    let file = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let json: Json = serde_json::from_str(&file).expect("the vectors are JSON");
    let rows = json[section].as_array().expect("the section exists").clone();
    assert!(!rows.is_empty());
    rows
}

fn name(row: &Json) -> &str {
    row["name"].as_str().expect("a name")
}

fn text<'r>(row: &'r Json, field: &str) -> &'r str {
    row[field].as_str().expect("a text")
}

fn bytes(row: &Json) -> Vec<u8> {
    unhex(text(row, "bytes"))
}

fn strings(row: &Json, field: &str) -> Vec<String> {
    let items = row[field].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
}

/// What is wrong, by name, in alphabetical order as the vectors have it.
fn defects(bytes: &[u8]) -> Vec<String> {
    let mut names: Vec<String> = check(bytes).iter().map(|defect| format!("{defect:?}")).collect();
    names.sort();
    names
}

fn unhex(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digit).collect()
}
