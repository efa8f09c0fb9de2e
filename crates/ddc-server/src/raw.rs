//! Raw data of stored compressed buffers, decompressed block by block as it is sent.
//!
//! A buffer of a megabyte may hold gigabytes, so no request decompresses more than the block that
//! its client takes next. The memory for that is taken from that of all requests.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use throng_ddc::compressed::{CompressedError, Decoder, Header, OodleDecoder, Verified};
use throng_ddc_store::{Blob, is_damage};

use crate::blocking;

/// Bytes of a stored block, and of the end of a buffer that stores everything, in one step.
pub(crate) const PIECE_BYTES: u64 = 512 << 10;
/// Blocks above this size are decompressed while the thread's other tasks move to another one.
const IN_PLACE_BYTES: u64 = 1 << 20;

/// The raw data of a stored compressed buffer. The last piece is held back until all of it has the
/// declared hash.
pub(crate) struct RawBlob {
    blob: Blob,
    /// Bytes of the buffer that were read.
    at: u64,
    /// `None` when the whole was verified.
    decoder: Option<Decoder>,
    /// Raw data that was not taken yet.
    ready: Bytes,
    /// Raw bytes that were not taken yet.
    left: u64,
    /// True if the content was verified when the buffer was stored: other content is damage.
    verified: bool,
    /// Called once if the stored buffer is damaged.
    damaged: Damaged,
}

/// Receiver of the news that a stored buffer is damaged.
pub(crate) type Damaged = Box<dyn Fn(&Blob) + Send + Sync>;

/// Error of a decompression.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RawError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error(transparent)]
    Damaged(#[from] CompressedError),
    #[error("what the ref refers to cannot be decompressed here")]
    NoDecoder,
}

impl RawBlob {
    /// Closes the blob's file: each further read opens it.
    pub(crate) fn close_file(&mut self) {
        self.blob.close_file();
    }

    pub(crate) fn new(
        blob: Blob,
        header: &Header,
        oodle: Option<Arc<dyn OodleDecoder>>,
        verified: bool,
        damaged: Damaged,
    ) -> RawBlob {
        let decoder = Some(Decoder::with_oodle(oodle));
        RawBlob { blob, at: 0, decoder, ready: Bytes::new(), left: header.raw_size, verified, damaged }
    }

    /// Raw bytes that were not taken yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next raw bytes, at most `at_most`.
    ///
    /// # Errors
    /// If the buffer cannot be read, is damaged, or holds something else than it declares.
    pub(crate) fn next(&mut self, at_most: usize) -> io::Result<Bytes> {
        self.advance().map_err(|error| match error {
            RawError::Read(error) => error,
            error => io::Error::new(io::ErrorKind::InvalidData, error),
        })?;
        let count = self.ready.len().min(at_most);
        self.left -= count as u64;
        Ok(self.ready.split_to(count))
    }

    /// Decompresses until there is a piece to send, or everything is verified.
    pub(crate) fn advance(&mut self) -> Result<(), RawError> {
        while self.ready.is_empty()
            && let Some(decoder) = &mut self.decoder
        {
            let advanced = step(decoder, &self.blob, &mut self.at);
            let is_bad = match &advanced {
                Ok(_) => false,
                Err(RawError::Read(error)) => is_damage(error),
                // The content was verified when the buffer was stored, so its bytes have changed.
                Err(RawError::Damaged(_)) => self.verified,
                Err(RawError::NoDecoder) => false,
            };
            if is_bad {
                (self.damaged)(&self.blob);
            }
            self.ready = advanced?;
            if self.at == self.blob.len() {
                self.decoder = None;
            }
        }
        // A buffer of another size than it declares does not get here.
        if self.ready.is_empty() && self.left > 0 { Err(CompressedError::BadSize.into()) } else { Ok(()) }
    }
}

/// Reads and decompresses up to the end of a block. The end of the buffer is given once its hash is
/// known.
fn step(decoder: &mut Decoder, blob: &Blob, at: &mut u64) -> Result<Bytes, RawError> {
    let count = decoder.wanted().min(PIECE_BYTES).min(blob.len() - *at);
    if count == 0 && *at < blob.len() {
        return Err(CompressedError::BadSize.into());
    }
    let input = blob.read(*at, count as usize)?;
    *at += count;
    let mut raw = Vec::new();
    let is_large = decoder.header().is_some_and(|header| header.block_size() > IN_PLACE_BYTES);
    let mut push = || decoder.push(&input, &mut |piece| raw.extend_from_slice(piece));
    let pushed = if is_large { blocking::in_place(push) } else { push() };
    pushed?;
    if !decoder.decodes_all() {
        return Err(RawError::NoDecoder);
    }
    if *at == blob.len() {
        finish(std::mem::take(decoder))?;
    }
    Ok(raw.into())
}

/// Verifies what was decompressed.
fn finish(decoder: Decoder) -> Result<(), RawError> {
    match decoder.finish()? {
        Verified { hash_checked: true, .. } => Ok(()),
        Verified { .. } => Err(RawError::NoDecoder),
    }
}

/// Decompresses a whole buffer and keeps nothing of it.
pub(crate) fn verify(blob: &Blob, oodle: Option<Arc<dyn OodleDecoder>>) -> Result<(), RawError> {
    let (mut decoder, mut at) = (Decoder::with_oodle(oodle), 0);
    while at < blob.len() {
        step(&mut decoder, blob, &mut at)?;
    }
    Ok(())
}
