//! Bodies between JSON and protobuf, guided by the catalogue: a new method needs no code here.
//!
//! Free-form values pass through as the text they were sent as, in both directions.

mod encode;
mod time;

use std::fmt::Write as _;

use serde_json::value::RawValue;
use throng_wire::matcher::{FieldDef, Message, Type, event};
use throng_wire::{Field, WireType, fields};

pub use encode::encode;
pub(crate) use time::parse_time;
use time::write_time;

/// Appends a body that the matcher wrote as an object. Every member of the catalogue is there,
/// empty where the body has none, but for optional ones. Total: any bytes give a JSON object.
pub fn decode(message: &Message, body: &[u8], out: &mut String) {
    out.push('{');
    let mut first = true;
    for field in message.fields {
        let parts = || fields(body).map_while(Result::ok).filter(|part| part.number == field.number);
        if field.optional && parts().next().is_none() {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        write_text(field.name, out);
        out.push(':');
        write_member(field, parts(), out);
    }
    out.push('}');
}

fn write_member<'a>(field: &FieldDef, parts: impl Iterator<Item = Field<'a>>, out: &mut String) {
    match field.ty {
        Type::List(inner) => list(('[', ']'), parts, out, |part, out| write_value(inner, part, out)),
        Type::Map(inner) => list(('{', '}'), parts, out, |part, out| write_entry(inner, part, out)),
        Type::Keyed(inner, key) => list(('{', '}'), parts, out, |part, out| {
            let number = inner.named(key).map_or(0, |field| field.number);
            let own = fields(part.value).map_while(Result::ok).filter(|field| field.number == number).last();
            write_text(&own.map(|field| text(&field)).unwrap_or_default(), out);
            out.push(':');
            decode(inner, part.value, out);
        }),
        Type::Set => list(('{', '}'), parts, out, |part, out| {
            write_text(&text(part), out);
            out.push_str(":{}");
        }),
        ref single => match parts.last() {
            Some(part) => write_value(single, &part, out),
            None => out.push_str(absent(single)),
        },
    }
}

fn list<'a>(
    (open, close): (char, char),
    parts: impl Iterator<Item = Field<'a>>,
    out: &mut String,
    mut write: impl FnMut(&Field<'a>, &mut String),
) {
    out.push(open);
    for (index, part) in parts.enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(&part, out);
    }
    out.push(close);
}

/// An entry {1: key, 2: value} of a map.
fn write_entry(inner: &Type, part: &Field<'_>, out: &mut String) {
    let entry = || fields(part.value).map_while(Result::ok);
    let key = entry().filter(|field| field.number == 1).last();
    write_text(&key.map(|field| text(&field)).unwrap_or_default(), out);
    out.push(':');
    match entry().filter(|field| field.number == 2).last() {
        Some(value) => write_value(inner, &value, out),
        None => out.push_str(absent(inner)),
    }
}

/// The value that is not encoded.
fn absent(ty: &Type) -> &'static str {
    match ty {
        Type::Str => "\"\"",
        Type::Bool => "false",
        Type::U64 | Type::I64 | Type::F64 => "0",
        Type::Time => "\"1970-01-01T00:00:00.000Z\"",
        Type::Json | Type::Msg(_) | Type::List(_) | Type::Map(_) | Type::Keyed(..) | Type::Set => "null",
    }
}

fn write_value(ty: &Type, field: &Field<'_>, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = match ty {
        Type::Str => return write_text(&text(field), out),
        Type::Json => return write_json(field.value, out),
        Type::Bool => write!(out, "{}", field.scalar != 0),
        Type::U64 => write!(out, "{}", field.scalar),
        Type::I64 => write!(out, "{}", (field.scalar >> 1) as i64 ^ -((field.scalar & 1) as i64)),
        Type::F64 => return write_number(field, out),
        Type::Time => return write_time(field.scalar, out),
        Type::Msg(message) | Type::Keyed(message, _) => return decode(message, field.value, out),
        Type::List(inner) => return write_value(inner, field, out),
        // Never within a list or a map.
        Type::Map(_) | Type::Set => write!(out, "null"),
    };
}

fn write_number(field: &Field<'_>, out: &mut String) {
    let value = if field.wire_type == WireType::Fixed64 { f64::from_bits(field.scalar) } else { f64::NAN };
    // JSON has no infinities.
    let number = serde_json::Number::from_f64(value);
    out.push_str(&number.map_or_else(|| "null".to_owned(), |number| number.to_string()));
}

/// Free-form bytes came from a caller, and may be anything.
fn write_json(bytes: &[u8], out: &mut String) {
    let value = serde_json::from_slice::<&RawValue>(bytes);
    out.push_str(value.map_or("null", RawValue::get));
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

fn text(field: &Field<'_>) -> String {
    String::from_utf8_lossy(field.value).into_owned()
}

/// A batch of notifications in the reference's shape, with its place in the stream. Total, like
/// [`decode`].
#[must_use]
pub fn batch(epoch: u64, seq: u64, body: &[u8]) -> String {
    let mut out = format!("{{\"Epoch\":{epoch},\"Seq\":{seq},\"Msgs\":");
    let entries = fields(body).map_while(Result::ok).filter(|entry| entry.number == 1);
    list(('[', ']'), entries, &mut out, |entry, out| {
        let parts = || fields(entry.value).map_while(Result::ok);
        out.push_str("{\"RoleIDs\":");
        list(('[', ']'), parts().filter(|part| part.number == 1), out, |part, out| {
            write_text(&text(part), out);
        });
        out.push_str(",\"NotifyMsg\":");
        let events = parts().filter(|part| event(part.number).is_some());
        list(('{', '}'), events, out, |part, out| {
            if let Some(event) = event(part.number) {
                write_text(event.name, out);
                out.push(':');
                decode(event.message, part.value, out);
            }
        });
        out.push('}');
    });
    out.push('}');
    out
}

/// The body of a refusal, {1: message, 2: detail}, as a problem.
#[must_use]
pub fn problem(code: &str, body: &[u8]) -> String {
    let parts = |number| fields(body).map_while(Result::ok).filter(move |part| part.number == number);
    let mut out = String::from("{\"code\":");
    write_text(code, &mut out);
    out.push_str(",\"message\":");
    write_text(&parts(1).last().map(|part| text(&part)).unwrap_or_default(), &mut out);
    out.push_str(",\"detail\":");
    list(('{', '}'), parts(2), &mut out, |part, out| write_entry(&Type::Json, part, out));
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use throng_wire::matcher::{METHODS, Status, Writer, method_named};

    fn decoded(message: &Message, body: &[u8]) -> Value {
        let mut out = String::new();
        decode(message, body, &mut out);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    #[test]
    fn a_room_survives_both_ways() {
        let method = method_named("RoleJoinRandomRoom").unwrap();
        let info = json!({
            "RoomInfo": {
                "RoomID": "5ea4", "CreateTime": "2020-04-26T10:11:08.337Z", "MatchMode": "2v2",
                "Roles": {"r1": {"RoleID": "r1", "SrvID": "s", "TeamID": "", "FloatData": {"level": 10.5},
                    "StringData": {"name": "\"é\n"}, "Tags": {"ready": {}}}},
                "IsHidden": false, "IsFull": true, "IsDeleting": false, "Data": {"roleCount": 1, "map": ["a", null]},
                "Rev": 3, "Sides": [{"Name": "red", "RoleIDs": ["r1"]}], "Reserved": {}, "Members": 1,
                "IsPartial": false, "World": ""
            },
            "Created": true, "Already": false
        });
        let mut body = Vec::new();
        encode(method.response, info.to_string().as_bytes(), &mut body).unwrap();
        assert_eq!(decoded(method.response, &body), info);
    }

    #[test]
    fn free_form_values_keep_their_text() {
        let method = method_named("SetRoomData").unwrap();
        let mut body = Vec::new();
        let data = "{ \"z\": 1.50, \"a\": 123456789012345678901234567890 }";
        encode(method.request, format!("{{\"Data\": {data}}}").as_bytes(), &mut body).unwrap();
        assert!(body.windows(data.len()).any(|part| part == data.as_bytes()), "{}", body.escape_ascii());
        let mut out = String::new();
        decode(method.request, &body, &mut out);
        assert!(out.contains(data), "{out}");
    }

    #[test]
    fn values_that_are_not_encoded_are_zero() {
        let state = Writer::new().u64(1, 3).nested(2, Writer::new().str(1, "blue"));
        let value = decoded(
            method_named("AckBackfill").unwrap().response,
            &Writer::new().nested(1, state).into_bytes(),
        );
        assert_eq!(value["State"]["Open"], json!({"blue": 0}));
        let info = Writer::new().str(1, "r").nested(4, Writer::new().str(1, "level"));
        let body = Writer::new().nested(1, info).into_bytes();
        let value = decoded(method_named("RoleCreateRoom").unwrap().request, &body);
        assert_eq!(value["CreatorInfo"]["FloatData"], json!({"level": 0}));
    }

    #[test]
    fn free_form_bytes_that_are_not_json_cannot_break_out() {
        let body = Writer::new().str(1, "room").bytes(3, b"1},\"x\":{").into_bytes();
        let value = decoded(method_named("SetRoomData").unwrap().request, &body);
        assert_eq!(value, json!({"RoomID": "room", "Key": "", "Data": null}));
    }

    #[test]
    fn any_bytes_decode_to_json() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2_000).collect();
        for method in METHODS {
            for start in 0..64 {
                decoded(method.response, &bytes[start..]);
            }
        }
        let text = batch(1, 2, &bytes);
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    }

    #[test]
    fn a_refusal_has_a_message_and_details() {
        let detail = Writer::new().str(1, "RoomID").bytes(2, b"\"5ea4\"");
        let body = Writer::new().str(1, "in another room").nested(2, detail).into_bytes();
        let text = problem(Status::AlreadyInRoom.name(), &body);
        let wanted =
            json!({"code": "ALREADY_IN_ROOM", "message": "in another room", "detail": {"RoomID": "5ea4"}});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), wanted);
    }
}
