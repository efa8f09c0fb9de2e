//! Targets for the derived-data cache: compact binary, packages, compressed buffers, batch
//! requests, routes.

use std::sync::Arc;

use throng_ddc::api::{Media, Method, Range, Route, RouteError, negotiate, query_values};
use throng_ddc::compressed::{self, CompressedError, Decoder, OodleDecoder, OodleOutcome, Verified};
use throng_ddc::package;
use throng_ddc::{Defect, Document, Field, IoHash, Style, Value, batch, check};

/// A document of compact binary.
///
/// Asserts that the two checks agree on what is readable, that what is readable survives being
/// written again, in canonical form too, and that every rendering of it stays proportional to its
/// size.
pub fn compact_binary(input: &[u8]) {
    let defects = check(input);
    let document = Document::parse(input);
    let unreadable = [Defect::OutOfBounds, Defect::InvalidType, Defect::Padding, Defect::TooDeep];
    let readable = !unreadable.into_iter().any(|defect| defects.contains(defect));
    match document {
        Ok(_) => assert!(readable, "{defects:?}"),
        Err(Defect::NotAnObject) => assert!(readable, "{defects:?}"),
        Err(defect) => assert!(defects.contains(defect), "{defect:?} is not among {defects:?}"),
    }
    let Ok(document) = document else { return };
    assert_eq!(document.bytes(), input);
    let json = document.to_json();
    // The longest rendering of one byte is an item of an array, a character of control, or a moment
    // of eight bytes.
    assert!(json.len() <= 64 + 16 * input.len(), "{} bytes became {}", input.len(), json.len());
    assert!(document.attachments().len() * IoHash::BYTES <= input.len());

    let value = Value::from_field(&document.root());
    for style in [Style::Separate, Style::Plain, Style::Canonical] {
        let written = value.encode(style);
        let again = Document::parse(&written).expect("we read what we write");
        assert_eq!(again.attachments(), document.attachments());
        if style == Style::Canonical {
            let left = check(&written);
            let ours = [
                Defect::InvalidInteger,
                Defect::InvalidFloat,
                Defect::NonUniformObject,
                Defect::NonUniformArray,
            ];
            assert!(!ours.into_iter().any(|defect| left.contains(defect)), "{left:?}");
            assert_eq!(Value::from_field(&again.root()).encode(Style::Canonical), written);
        } else {
            assert_eq!(again.to_json(), json);
        }
    }
    if let Some(first) = document.root().iter().find(Field::is_object) {
        let inner = first.to_document_bytes().expect("an object is a document");
        Document::parse(&inner).expect("an object within a document is a document");
    }
}

/// A batch request.
///
/// Asserts that what is accepted keeps its limits, and that an answer to it can be read.
pub fn ddc_batch(input: &[u8]) {
    let Ok(document) = Document::parse(input) else { return };
    let Ok(ops) = batch::read_request(&document) else { return };
    assert!(ops.len() <= batch::OPS_MAX);
    let mut results = Vec::new();
    for op in ops {
        let response = match op.action {
            batch::OpAction::Put { payload: Some(payload), .. } => {
                Document::parse(&payload).expect("a payload within a document is a document");
                Value::Document(payload)
            }
            _ => Value::object([("exists", Value::Bool(false))]),
        };
        results.push(batch::OpResult { id: op.id, status: 200, response });
    }
    let count = results.len();
    let answer = batch::write_response(results);
    let answer = Document::parse(&answer).expect("we read what we write");
    assert_eq!(answer.get("results").expect("results").iter().count(), count);
}

/// A compressed buffer. The first byte chooses how it is cut into reads.
///
/// Asserts that the cut makes no difference, that raw data has exactly the declared size and hash,
/// and that nothing more than it comes out.
pub fn compressed_buffer(input: &[u8]) {
    let [cut, input @ ..] = input else { return };
    let is_oodle =
        compressed::Header::read(input).is_ok_and(|header| header.method == compressed::Method::Oodle);
    for oodle in [false, true].into_iter().take(1 + usize::from(is_oodle)) {
        let whole = decode(input.chunks(input.len().max(1)), oodle);
        let pieces = decode(input.chunks(usize::from(*cut).max(1)), oodle);
        assert_eq!(whole, pieces, "the cut of the input changed the result");
        if let Ok((verified, raw)) = whole {
            assert!(compressed::Header::read(input) == Ok(verified.header));
            if verified.hash_checked {
                assert_eq!(raw.len() as u64, verified.header.raw_size);
                assert_eq!(IoHash::of(&raw), verified.header.raw_hash);
            }
        }
    }
    let raw = &input[..input.len().min(4096)];
    let written = compressed::compress_lz4(raw, cut % 13);
    assert_eq!(compressed::decompress(&written, 4096, None), Ok(Some(raw.to_vec())));
}

/// Stands for a decoder of Oodle: a block repeats its first byte, or is damaged, or finds the
/// decoder out of order.
#[derive(Debug)]
struct Repeats;

impl OodleDecoder for Repeats {
    fn decode(&self, block: &[u8], raw: &mut [u8]) -> OodleOutcome {
        raw.fill(block[0]);
        match block[0] {
            0 => OodleOutcome::Damaged,
            255 => OodleOutcome::Unavailable,
            _ => OodleOutcome::Decoded,
        }
    }
}

fn decode<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    oodle: bool,
) -> Result<(Verified, Vec<u8>), CompressedError> {
    let mut decoder = match oodle {
        true => Decoder::with_oodle(Some(Arc::new(Repeats))),
        false => Decoder::new(),
    };
    let mut raw = Vec::new();
    for piece in pieces {
        decoder.push(piece, &mut |bytes| raw.extend_from_slice(bytes))?;
        if let Some(header) = decoder.header() {
            assert!(raw.len() as u64 <= header.raw_size, "more came out than was declared");
        }
    }
    Ok((decoder.finish()?, raw))
}

/// A package.
///
/// Asserts that what is accepted is accounted for to the last byte and is written back the same.
pub fn ddc_package(input: &[u8]) {
    let Ok(parts) = package::split(input) else { return };
    let joined: Vec<_> = parts.iter().map(|(entry, payload)| (entry.flags, entry.hash, *payload)).collect();
    assert_eq!(package::join(&joined), input);
    let table = package::Table::read(input).expect("a package has a table");
    assert_eq!(table.total_bytes(), Some(input.len() as u64));
}

/// A request: lines with method, path, query, `Accept` and `Range`.
///
/// Asserts that what a route takes from a path are names as they are stored, that a name is read
/// again as itself, that nothing is negotiated that was not offered, and that a range lies within
/// the body.
pub fn ddc_routes(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.splitn(5, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (method, path, query, accept, range) = (line(), line(), line(), line(), line());
    let method = Method::parse(method).unwrap_or(Method::Get);
    match Route::find(method, path) {
        Ok(route) => {
            assert!(route.methods().contains(&method));
            let names = match &route {
                Route::Ref(name, _)
                | Route::Finalise(name, ..)
                | Route::RefMetadata(name)
                | Route::RefBlob(name, _) => {
                    check_name(name.key.as_str(), 40, "");
                    assert_eq!(name.key.as_str().parse(), Ok(name.key));
                    vec![name.namespace.as_str(), name.bucket.as_str()]
                }
                Route::Bucket(namespace, bucket) => vec![namespace.as_str(), bucket.as_str()],
                Route::RefNamespace(namespace)
                | Route::Blob(_, namespace, _)
                | Route::Family(_, namespace) => {
                    vec![namespace.as_str()]
                }
                _ => Vec::new(),
            };
            for name in names {
                check_name(name, 64, "-_.");
                assert!(!name.starts_with('.') && !name.ends_with('.'), "{name:?}");
            }
        }
        Err(RouteError::Method(allowed)) => assert!(!allowed.contains(&method) && !allowed.is_empty()),
        Err(_) => {}
    }
    for value in query_values(query, "id") {
        // Each byte that is no UTF-8 becomes three.
        assert!(value.len() <= 3 * query.len());
    }
    let offers = [Media::Json, Media::CompactBinary];
    assert!(negotiate(Some(accept), &offers).is_none_or(|media| offers.contains(&media)));
    let len = input.len() as u64;
    if let Range::Part { start, end } = Range::read(Some(range), len) {
        assert!(start < end && end <= len, "{start}..{end} of {len}");
    }
}

fn check_name(name: &str, chars_max: usize, more: &str) {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
    assert!(!name.is_empty() && name.len() <= chars_max && name.chars().all(allowed), "{name:?}");
}
