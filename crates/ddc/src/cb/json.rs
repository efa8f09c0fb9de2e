//! Compact binary as JSON.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::field::{Field, Kind};
use crate::read_varuint;
use crate::time::{ticks_to_iso_8601, time_span};

/// Appends the value of `field`, not its name. Hashes are written in upper case if `upper` says so.
pub(super) fn write(out: &mut String, field: &Field<'_>, upper: bool) {
    match field.kind() {
        Kind::Null => out.push_str("null"),
        Kind::BoolFalse => out.push_str("false"),
        Kind::BoolTrue => out.push_str("true"),
        Kind::Object | Kind::UniformObject => {
            out.push('{');
            for (index, inner) in field.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                string(out, inner.name().unwrap_or_default());
                out.push(':');
                write(out, &inner, upper);
            }
            out.push('}');
        }
        Kind::Array | Kind::UniformArray => {
            out.push('[');
            for (index, inner) in field.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(out, &inner, upper);
            }
            out.push(']');
        }
        Kind::IntegerPositive | Kind::IntegerNegative => {
            let _ = write!(out, "{}", field.integer().unwrap_or_default());
        }
        Kind::Float32 | Kind::Float64 => float(out, field.float().unwrap_or_default()),
        Kind::String => string(out, field.content().unwrap_or_default()),
        Kind::Binary => base64(out, field.content().unwrap_or_default()),
        Kind::Hash if upper => {
            let _ = write!(out, "\"{:X}\"", field.hash().unwrap_or_default());
        }
        Kind::ObjectAttachment | Kind::BinaryAttachment | Kind::Hash | Kind::Uuid | Kind::ObjectId => {
            out.push('"');
            for byte in field.payload() {
                let _ = write!(out, "{byte:02x}");
            }
            out.push('"');
        }
        Kind::DateTime => string(out, ticks_to_iso_8601(field.ticks().unwrap_or_default()).as_bytes()),
        Kind::TimeSpan => string(out, time_span(field.ticks().unwrap_or_default()).as_bytes()),
        Kind::CustomById => {
            let content = field.content().unwrap_or_default();
            let (id, prefix) = read_varuint(content).unwrap_or_default();
            let _ = write!(out, "{{\"Id\":{id},\"Data\":");
            base64(out, &content[prefix..]);
            out.push('}');
        }
        Kind::CustomByName => {
            let content = field.content().unwrap_or_default();
            let (len, prefix) = read_varuint(content).unwrap_or_default();
            let (name, data) = content[prefix..].split_at_checked(len as usize).unwrap_or_default();
            out.push_str("{\"Name\":");
            string(out, name);
            out.push_str(",\"Data\":");
            base64(out, data);
            out.push('}');
        }
    }
}

/// The shortest number that reads back; JSON has no infinities, they are `null`.
fn float(out: &mut String, value: f64) {
    if value.is_finite() {
        let _ = write!(out, "{value:?}");
    } else {
        out.push_str("null");
    }
}

/// Bytes that are not UTF-8 become the replacement character.
fn string(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\x1F' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

fn base64(out: &mut String, bytes: &[u8]) {
    out.push('"');
    STANDARD.encode_string(bytes, out);
    out.push('"');
}
