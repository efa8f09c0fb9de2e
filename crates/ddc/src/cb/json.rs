//! Compact binary as JSON, piece by piece.

use std::fmt::Write as _;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::field::{Field, Fields, Kind};
use super::{Defect, Document};
use crate::read_varuint;
use crate::time::{ticks_to_iso_8601, time_span};

/// Bytes of a string or binary value that one step writes. A multiple of 3, so that the base64 of
/// the steps is that of the whole.
const STEP_BYTES: usize = 9 << 10;
/// Bytes of UTF-8 that follow the first of a character, at most.
const CONTINUATION_BYTES_MAX: usize = 3;

/// JSON of a document, written piece by piece: without blanks, hashes as 40 lower-case digits.
///
/// Memory beside the document: some dozen bytes per level of nesting.
#[derive(Clone, Debug)]
pub struct JsonWriter<B> {
    document: B,
    /// Work that is left, the next last.
    tasks: Vec<Task>,
    /// True if hashes that are no attachments are written in upper case.
    is_upper: bool,
}

/// Something that is still to be written. Ranges are bytes of the document.
#[derive(Clone, Debug)]
enum Task {
    Literal(&'static str),
    /// A value of this kind with its payload.
    Value(Kind, Range<usize>),
    /// Contents of a string literal.
    Text(Range<usize>),
    Base64(Range<usize>),
    /// Fields or items that a container still has, and its end.
    Items {
        rest: Range<usize>,
        uniform: Option<u8>,
        left: u64,
        is_object: bool,
        is_first: bool,
    },
}

impl<B: AsRef<[u8]>> JsonWriter<B> {
    /// A writer at the beginning of `document`, which is checked: linear in its length.
    ///
    /// # Errors
    /// As [`Document::parse`].
    pub fn new(document: B) -> Result<JsonWriter<B>, Defect> {
        let root = Document::parse(document.as_ref())?.root();
        let task = Task::Value(root.kind(), range_of(document.as_ref(), root.payload()));
        Ok(JsonWriter { document, tasks: vec![task], is_upper: false })
    }

    /// Reports whether everything was written.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Appends what comes next to `out`, until that has `len` bytes or everything was written. The
    /// last step exceeds `len` by 54 KiB at most.
    pub fn write(&mut self, out: &mut String, len: usize) {
        let JsonWriter { document, tasks, is_upper } = self;
        let bytes = document.as_ref();
        while out.len() < len
            && let Some(task) = tasks.pop()
        {
            match task {
                Task::Literal(text) => out.push_str(text),
                Task::Value(kind, payload) => {
                    value(bytes, &Field::of(kind, &bytes[payload]), *is_upper, out, tasks);
                }
                Task::Text(text) => {
                    let end = text.start + text_step(&bytes[text.clone()]);
                    if end < text.end {
                        tasks.push(Task::Text(end..text.end));
                    }
                    escape(out, &bytes[text.start..end]);
                }
                Task::Base64(data) => {
                    let end = data.end.min(data.start + STEP_BYTES);
                    if end < data.end {
                        tasks.push(Task::Base64(end..data.end));
                    }
                    STANDARD.encode_string(&bytes[data.start..end], out);
                }
                Task::Items { rest, uniform, left, is_object, is_first } => {
                    let mut fields = Fields { rest: &bytes[rest], uniform, left };
                    let Some(field) = fields.next() else {
                        out.push(if is_object { '}' } else { ']' });
                        continue;
                    };
                    if !is_first {
                        out.push(',');
                    }
                    let (rest, left) = (range_of(bytes, fields.rest), fields.left);
                    tasks.push(Task::Items { rest, uniform, left, is_object, is_first: false });
                    if !is_object {
                        value(bytes, &field, *is_upper, out, tasks);
                        continue;
                    }
                    out.push('"');
                    tasks.push(Task::Value(field.kind(), range_of(bytes, field.payload())));
                    tasks.push(Task::Literal("\":"));
                    tasks.push(Task::Text(range_of(bytes, field.name().unwrap_or_default())));
                }
            }
        }
    }
}

/// JSON of a document as a whole. Hashes that are no attachments are written in upper case if
/// `is_upper` says so.
pub(super) fn text(document: &Document<'_>, is_upper: bool) -> String {
    let (bytes, root) = (document.bytes(), document.root());
    let task = Task::Value(root.kind(), range_of(bytes, root.payload()));
    let mut out = String::with_capacity(2 * bytes.len());
    JsonWriter { document: bytes, tasks: vec![task], is_upper }.write(&mut out, usize::MAX);
    out
}

/// Writes a value that is short, and begins to write another one.
fn value(bytes: &[u8], field: &Field<'_>, is_upper: bool, out: &mut String, tasks: &mut Vec<Task>) {
    match field.kind() {
        Kind::Null => out.push_str("null"),
        Kind::BoolFalse => out.push_str("false"),
        Kind::BoolTrue => out.push_str("true"),
        Kind::Object | Kind::UniformObject | Kind::Array | Kind::UniformArray => {
            let is_object = field.is_object();
            out.push(if is_object { '{' } else { '[' });
            let Fields { rest, uniform, left } = field.iter();
            let rest = range_of(bytes, rest);
            tasks.push(Task::Items { rest, uniform, left, is_object, is_first: true });
        }
        Kind::IntegerPositive | Kind::IntegerNegative => {
            let _ = write!(out, "{}", field.integer().unwrap_or_default());
        }
        Kind::Float32 | Kind::Float64 => float(out, field.float().unwrap_or_default()),
        Kind::String => {
            out.push('"');
            tasks.push(Task::Literal("\""));
            tasks.push(Task::Text(range_of(bytes, field.content().unwrap_or_default())));
        }
        Kind::Binary => base64(bytes, field.content().unwrap_or_default(), "\"", out, tasks),
        Kind::Hash if is_upper => {
            let _ = write!(out, "\"{:X}\"", field.hash().unwrap_or_default());
        }
        Kind::ObjectAttachment | Kind::BinaryAttachment | Kind::Hash | Kind::Uuid | Kind::ObjectId => {
            out.push('"');
            for byte in field.payload() {
                for digit in [byte >> 4, byte & 0xF] {
                    out.push(char::from(DIGITS[usize::from(digit)]));
                }
            }
            out.push('"');
        }
        Kind::DateTime => {
            let _ = write!(out, "\"{}\"", ticks_to_iso_8601(field.ticks().unwrap_or_default()));
        }
        Kind::TimeSpan => {
            let _ = write!(out, "\"{}\"", time_span(field.ticks().unwrap_or_default()));
        }
        Kind::CustomById => {
            let content = field.content().unwrap_or_default();
            let (id, prefix) = read_varuint(content).unwrap_or_default();
            let _ = write!(out, "{{\"Id\":{id},\"Data\":");
            base64(bytes, &content[prefix..], "\"}", out, tasks);
        }
        Kind::CustomByName => {
            let content = field.content().unwrap_or_default();
            let (len, prefix) = read_varuint(content).unwrap_or_default();
            let (name, data) = content[prefix..].split_at_checked(len as usize).unwrap_or_default();
            out.push_str("{\"Name\":\"");
            tasks.push(Task::Literal("\"}"));
            tasks.push(Task::Base64(range_of(bytes, data)));
            tasks.push(Task::Literal("\",\"Data\":\""));
            tasks.push(Task::Text(range_of(bytes, name)));
        }
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The shortest number that reads back; JSON has no infinities, they are `null`.
fn float(out: &mut String, value: f64) {
    if value.is_finite() {
        let _ = write!(out, "{value:?}");
    } else {
        out.push_str("null");
    }
}

/// Begins to write a string literal with the base64 of `data`, and `end` behind it.
fn base64(bytes: &[u8], data: &[u8], end: &'static str, out: &mut String, tasks: &mut Vec<Task>) {
    out.push('"');
    tasks.push(Task::Literal(end));
    tasks.push(Task::Base64(range_of(bytes, data)));
}

/// Place of `part` within `bytes`, which it is a part of; an empty one may be from elsewhere.
fn range_of(bytes: &[u8], part: &[u8]) -> Range<usize> {
    if part.is_empty() {
        return 0..0;
    }
    let start = part.as_ptr().addr() - bytes.as_ptr().addr();
    start..start + part.len()
}

/// Bytes of `text` that one step writes: no sequence of UTF-8 is divided. A byte that continues a
/// sequence ends three bytes after its beginning at the latest, whatever follows.
fn text_step(text: &[u8]) -> usize {
    if text.len() <= STEP_BYTES {
        return text.len();
    }
    let is_start = |at: &usize| text[*at] & 0xC0 != 0x80;
    (STEP_BYTES - CONTINUATION_BYTES_MAX..=STEP_BYTES).rev().find(is_start).unwrap_or(STEP_BYTES)
}

/// Appends the contents of a string literal. Bytes that are not UTF-8 become the replacement
/// character.
fn escape(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F)) {
            let (plain, special) = rest.split_at(at);
            out.push_str(plain);
            match special.as_bytes()[0] {
                b'\n' => out.push_str("\\n"),
                b'\r' => out.push_str("\\r"),
                b'\t' => out.push_str("\\t"),
                byte @ (b'"' | b'\\') => out.extend(['\\', char::from(byte)]),
                byte => {
                    out.push_str(if byte < 0x10 { "\\u000" } else { "\\u001" });
                    out.push(char::from(DIGITS[usize::from(byte & 0xF)]));
                }
            }
            rest = &special[1..];
        }
        out.push_str(rest);
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Style, Value};
    use super::*;

    #[test]
    fn pieces_of_any_length_are_the_whole() {
        let mut string = "ab\"\\\n\r\t\u{1}\u{1f}é€𝄞".repeat(3_000);
        string.insert(1, 'x');
        let value = Value::object([
            (&*"k€".repeat(8_000), Value::string(&string)),
            ("data", Value::Binary(vec![0xA5; 40_001])),
            ("items", Value::Array((0..5_000).map(Value::Integer).collect())),
            ("none", Value::Array(Vec::new())),
            ("inner", Value::object([("empty", Value::string(""))])),
        ]);
        let bytes = value.encode(Style::Plain);
        let whole = text(&Document::parse(&bytes).expect("a document"), false);
        let json: serde_json::Value = serde_json::from_str(&whole).expect("JSON");
        assert_eq!(json[&*"k€".repeat(8_000)], *string);
        assert_eq!(json["data"], *STANDARD.encode([0xA5; 40_001]));
        assert_eq!(json["items"][4_999], 4_999);
        assert_eq!((&json["none"], &json["inner"]["empty"]), (&serde_json::json!([]), &"".into()));
        for len in [1, 7, 1_000, 64 << 10] {
            let mut writer = JsonWriter::new(&bytes).expect("a document");
            let mut pieces = String::new();
            while !writer.is_done() {
                let mut piece = String::new();
                writer.write(&mut piece, len);
                assert!(piece.len() <= len + (54 << 10), "{} bytes for {len}", piece.len());
                pieces += &piece;
            }
            assert!(pieces == whole, "pieces of {len} bytes");
        }
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_replaced_as_in_the_whole() {
        // Sequences that are cut, too long, or nothing but continuations, over the end of a step.
        for broken in [&b"\xE2\x82"[..], b"\xE2\x82\xAC", b"\xF0\x9D\x84", b"\x80", b"\xC3", b"\xFF\xE2"] {
            for shift in 0..4 {
                let mut text = vec![b'a'; shift];
                while text.len() < 3 * STEP_BYTES {
                    text.extend_from_slice(broken);
                }
                let mut out = String::new();
                let mut rest = &text[..];
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(text_step(rest));
                    escape(&mut out, now);
                    rest = later;
                }
                assert!(out == String::from_utf8_lossy(&text), "{broken:?}, {shift}");
            }
        }
    }
}
