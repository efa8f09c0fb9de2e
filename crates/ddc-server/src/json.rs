//! Objects as JSON, converted while they are sent.

use bytes::Bytes;
use throng_ddc::{Defect, JsonWriter};

/// Bytes of JSON that are made in one step, which takes a fraction of a millisecond.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// An object as JSON, of which no more than a piece is in memory.
pub(crate) struct JsonBody {
    writer: JsonWriter<Bytes>,
    /// JSON that was not taken yet.
    ready: Bytes,
    left: u64,
}

impl JsonBody {
    /// Checks and measures an object: as much work as converting it.
    pub(crate) fn new(object: Bytes) -> Result<JsonBody, Defect> {
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
