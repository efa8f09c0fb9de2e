//! Batch requests: many operations on refs in one document.

use std::collections::BTreeSet;

use crate::cb::HAS_NAME;
use crate::varuint::{varuint_len, write_varuint};
use crate::{Bucket, Document, Field, IoHash, Key, Kind, Style, Value};

/// Most operations in one request.
pub const OPS_MAX: usize = 8192;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Chosen by the client, unique in its request.
    pub id: u32,
    /// Which ref.
    pub bucket: Bucket,
    /// Which ref.
    pub key: Key,
    /// What to do.
    pub action: OpAction,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpAction {
    /// Answers with the object.
    Get {
        /// Everything that the object reaches must be stored.
        resolve: bool,
    },
    /// Answers whether the ref exists.
    Head {
        /// Everything that the object reaches must be stored.
        resolve: bool,
    },
    /// Stores an object. Its hash is checked by whoever runs the operation, so that a wrong one
    /// fails only this operation.
    Put {
        /// The document. `None` if it is missing.
        payload: Option<Vec<u8>>,
        /// The hash that the client claims.
        hash: Option<IoHash>,
    },
}

/// Why a request is refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is no array `ops`.
    #[error("the request has no array named ops")]
    NoOps,
    /// Too many operations.
    #[error("{0} operations exceed the limit of 8192")]
    TooMany(usize),
    /// A field of an operation is missing or of a wrong type.
    #[error("operation {0} has no valid {1}")]
    BadField(usize, &'static str),
    /// Two operations share an id.
    #[error("two operations have the id {0}")]
    DuplicateId(u32),
}

/// Reads a request.
///
/// # Errors
/// As [`BatchError`] says; the request must be answered with 400 then.
pub fn read_request(request: &Document<'_>) -> Result<Vec<Op>, BatchError> {
    let ops = request.get("ops").filter(Field::is_array).ok_or(BatchError::NoOps)?;
    let count = ops.iter().take(OPS_MAX + 1).count();
    if count > OPS_MAX {
        return Err(BatchError::TooMany(count));
    }
    let mut ids = BTreeSet::new();
    let mut read = Vec::with_capacity(count);
    for (index, field) in ops.iter().enumerate() {
        let op = read_op(&field).map_err(|name| BatchError::BadField(index, name))?;
        if !ids.insert(op.id) {
            return Err(BatchError::DuplicateId(op.id));
        }
        read.push(op);
    }
    Ok(read)
}

/// Gives the name of the field that is wrong.
fn read_op(field: &Field<'_>) -> Result<Op, &'static str> {
    let text = |name: &'static str| field.get(name).and_then(|field| field.text()).ok_or(name);
    let id =
        field.get("opId").and_then(|id| id.integer()).and_then(|id| u32::try_from(id).ok()).ok_or("opId")?;
    let resolve = match field.get("resolveAttachments") {
        Some(field) => field.bool().ok_or("resolveAttachments")?,
        None => false,
    };
    let action = match text("op")? {
        "GET" => OpAction::Get { resolve },
        "HEAD" => OpAction::Head { resolve },
        "PUT" => OpAction::Put {
            payload: field.get("payload").and_then(|payload| payload.to_document_bytes()),
            hash: field.get("payloadHash").and_then(read_hash),
        },
        _ => return Err("op"),
    };
    Ok(Op {
        id,
        bucket: text("bucket")?.parse().map_err(|_| "bucket")?,
        key: text("key")?.parse().map_err(|_| "key")?,
        action,
    })
}

/// A hash, or its text.
fn read_hash(field: Field<'_>) -> Option<IoHash> {
    field.hash().or_else(|| field.text()?.parse().ok())
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OpResult {
    /// Id of the operation.
    pub id: u32,
    /// An HTTP status.
    pub status: u16,
    /// An object.
    pub response: Value,
}

/// Writes the answer to a request.
#[must_use]
pub fn write_response(results: Vec<OpResult>) -> Vec<u8> {
    let (mut heads, mut payloads) = (Vec::new(), Vec::new());
    for OpResult { id, status, response } in results {
        let bytes = response.encode(Style::Plain);
        heads.push(ResponseHead { id, status, kind: bytes[0], bytes: bytes.len() as u64 - 1 });
        payloads.push(bytes);
    }
    let mut pieces = frame_responses(&heads).into_iter();
    let mut out = pieces.next().unwrap_or_default();
    for (payload, piece) in payloads.iter().zip(pieces) {
        out.extend_from_slice(&payload[1..]);
        out.extend_from_slice(&piece);
    }
    out
}

/// The answer to one operation, without the response's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Id of the operation.
    pub id: u32,
    /// An HTTP status.
    pub status: u16,
    /// First byte of the response, which is an object without a name.
    pub kind: u8,
    /// Number of the bytes that follow it.
    pub bytes: u64,
}

/// The bytes of an answer around the responses: those before each, then those after the last.
#[must_use]
pub fn frame_responses(results: &[ResponseHead]) -> Vec<Vec<u8>> {
    let field = |out: &mut Vec<u8>, kind: u8, name: &str| {
        out.extend([kind | HAS_NAME, name.len() as u8]);
        out.extend_from_slice(name.as_bytes());
    };
    let item_len = |result: &ResponseHead| {
        let names = ["opId", "response", "statusCode"].map(|name| 2 + name.len()).iter().sum::<usize>();
        let numbers = varuint_len(result.id.into()) + varuint_len(result.status.into());
        (names + numbers) as u64 + result.bytes
    };
    let (mut pieces, mut out) = (Vec::with_capacity(results.len() + 1), Vec::new());
    let items: u64 = results.iter().map(item_len).map(|len| varuint_len(len) as u64 + len).sum();
    let array = varuint_len(results.len() as u64) as u64 + u64::from(!results.is_empty()) + items;
    out.push(Kind::Object as u8);
    write_varuint(&mut out, (2 + "results".len() + varuint_len(array)) as u64 + array);
    field(&mut out, if results.is_empty() { Kind::Array } else { Kind::UniformArray } as u8, "results");
    write_varuint(&mut out, array);
    write_varuint(&mut out, results.len() as u64);
    if !results.is_empty() {
        out.push(Kind::Object as u8);
    }
    for result in results {
        write_varuint(&mut out, item_len(result));
        field(&mut out, Kind::IntegerPositive as u8, "opId");
        write_varuint(&mut out, result.id.into());
        field(&mut out, result.kind, "response");
        pieces.push(std::mem::take(&mut out));
        field(&mut out, Kind::IntegerPositive as u8, "statusCode");
        write_varuint(&mut out, result.status.into());
    }
    pieces.push(out);
    pieces
}
