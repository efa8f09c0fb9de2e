//! Objects as JSON, converted while they are sent.

use bytes::Bytes;
use hyper::StatusCode;
use throng_ddc::{Defect, Document, JsonWriter};
use tokio::time::Instant;

use crate::answer::Problem;
use crate::blocking;
use crate::body::Body;
use crate::memory::MEMORY_WAIT;
use crate::service::Service;

/// Bytes of JSON that are made in one step, which takes a fraction of a millisecond.
const PIECE_BYTES: usize = 64 << 10;
/// Objects up to this size are converted as a whole.
const WHOLE_BYTES_MAX: usize = 8 << 10;
/// Objects up to this size are measured on the thread that answers.
const IN_PLACE_BYTES_MAX: usize = 64 << 10;

/// An object as JSON, of which no more than a piece is in memory.
pub(crate) struct JsonBody {
    writer: JsonWriter<Bytes>,
    /// JSON that was not taken yet.
    ready: Bytes,
    left: u64,
}

impl JsonBody {
    /// Checks and measures an object: as much work as converting it.
    fn new(object: Bytes) -> Result<JsonBody, Defect> {
        let writer = JsonWriter::new(object)?;
        let (mut measured, mut piece, mut left) = (writer.clone(), String::new(), 0);
        while !measured.is_done() {
            piece.clear();
            measured.write(&mut piece, PIECE_BYTES);
            left += piece.len() as u64;
        }
        Ok(JsonBody { writer, ready: Bytes::new(), left })
    }

    /// Bytes that were not taken yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next bytes, at most `at_most`.
    pub(crate) fn next(&mut self, at_most: usize) -> Bytes {
        if self.ready.is_empty() {
            let mut piece = String::new();
            self.writer.write(&mut piece, PIECE_BYTES);
            self.ready = piece.into();
        }
        let taken = self.ready.split_to(self.ready.len().min(at_most));
        self.left = self.left.saturating_sub(taken.len() as u64);
        taken
    }
}

impl Service {
    /// The JSON of an object as a body.
    pub(crate) async fn json_body(&self, object: Bytes) -> Result<Body, Problem> {
        if object.len() <= WHOLE_BYTES_MAX {
            return Ok(Body::bytes(Document::parse(&object).map_err(Problem::bad)?.to_json()));
        }
        let held = self.memory.take(PIECE_BYTES as u64, Instant::now() + MEMORY_WAIT).await?;
        let json = match object.len() <= IN_PLACE_BYTES_MAX {
            true => JsonBody::new(object),
            false => blocking::elsewhere(move || JsonBody::new(object)).await.ok_or_else(|| {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the object could not be converted; try again")
            })?,
        };
        let mut body = Body::default();
        body.push_json(json.map_err(Problem::bad)?);
        body.hold(held);
        Ok(body)
    }
}
