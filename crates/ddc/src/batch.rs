//! Batch requests: many operations on refs in one document.

use std::collections::BTreeSet;

use crate::{Bucket, Document, Field, IoHash, Key, Style, Value};

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
    let result = |result: OpResult| {
        Value::object([
            ("opId", Value::Integer(u64::from(result.id))),
            ("response", result.response),
            ("statusCode", Value::Integer(u64::from(result.status))),
        ])
    };
    Value::object([("results", Value::Array(results.into_iter().map(result).collect()))]).encode(Style::Plain)
}
