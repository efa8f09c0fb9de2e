//! Raw data of stored compressed buffers, decompressed block by block as it is sent.
//!
//! A buffer of a megabyte may hold gigabytes, so no request decompresses more than the block that
//! its client takes next. The memory for that is taken from that of all requests.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use throng_ddc::compressed::{CompressedError, Decoder, HEADER_BYTES, Header, OodleDecoder, Verified};
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::{Blob, is_damage};
use tokio::time::Instant;

use crate::answer::Problem;
use crate::blobs::HASH_FIRST_BYTES_MAX;
use crate::blocking;
use crate::body::{Body, Findings};
use crate::memory::MEMORY_WAIT;
use crate::origin::Located;
use crate::service::Service;
use crate::upload::compressed_problem;

/// Bytes of a stored block, and of the end of a buffer that stores everything, in one step.
const PIECE_BYTES: u64 = 512 << 10;
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
    source: Source,
}

/// Owner of the buffer, which learns of damage.
struct Source {
    findings: Arc<dyn Findings>,
    namespace: Namespace,
    form: Located,
}

/// Error of a decompression.
#[derive(Debug, thiserror::Error)]
enum RawError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error(transparent)]
    Damaged(#[from] CompressedError),
    #[error("what the ref refers to cannot be decompressed here")]
    NoDecoder,
}

impl From<RawError> for Problem {
    fn from(error: RawError) -> Problem {
        match error {
            RawError::Read(error) => error.into(),
            RawError::Damaged(error) => compressed_problem(&error),
            RawError::NoDecoder => Problem::missing(RawError::NoDecoder.to_string()),
        }
    }
}

impl RawBlob {
    fn new(blob: Blob, header: &Header, oodle: Option<Arc<dyn OodleDecoder>>, source: Source) -> RawBlob {
        let decoder = Some(Decoder::with_oodle(oodle));
        RawBlob { blob, at: 0, decoder, ready: Bytes::new(), left: header.raw_size, source }
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
    fn advance(&mut self) -> Result<(), RawError> {
        while self.ready.is_empty()
            && let Some(decoder) = &mut self.decoder
        {
            let advanced = step(decoder, &self.blob, &mut self.at);
            let is_bad = match &advanced {
                Ok(_) => false,
                Err(RawError::Read(error)) => is_damage(error),
                // The content was verified when the buffer was stored, so its bytes have changed.
                Err(RawError::Damaged(_)) => self.source.form.verified,
                Err(RawError::NoDecoder) => false,
            };
            if is_bad {
                let Source { findings, namespace, form } = &self.source;
                findings.damaged(namespace, &form.blob, &self.blob);
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
fn verify(blob: &Blob, oodle: Option<Arc<dyn OodleDecoder>>) -> Result<(), RawError> {
    let (mut decoder, mut at) = (Decoder::with_oodle(oodle), 0);
    while at < blob.len() {
        step(&mut decoder, blob, &mut at)?;
    }
    Ok(())
}

/// Header of a stored compressed buffer.
pub(crate) fn header_of(blob: &Blob) -> Result<Header, Problem> {
    let head = blob.read(0, HEADER_BYTES.min(usize::try_from(blob.len()).unwrap_or(HEADER_BYTES)))?;
    Header::read(&head).map_err(Problem::bad)
}

impl Service {
    /// The raw data `id` of a stored compressed buffer as a body. The buffer is hashed before, unless it
    /// is very large, and so is the raw data of one that was not verified when it was stored; the
    /// rest is verified on its way.
    ///
    /// # Errors
    /// 503 if other requests hold the memory; what is wrong with the buffer, as far as it shows by
    /// then.
    pub(crate) async fn raw_body(
        self: &Arc<Service>,
        namespace: &Namespace,
        id: &IoHash,
        form: Located,
        blob: Blob,
    ) -> Result<Body, Problem> {
        let blob = match blob.len() > HASH_FIRST_BYTES_MAX {
            true => blob,
            false => self.sound_blob(namespace, &form.blob, blob).await?,
        };
        let header = header_of(&blob)?;
        if header.raw_hash != *id {
            return Err(Problem::missing(
                "what is stored in place of what the ref refers to is something else",
            ));
        }
        let mut body = Body::default();
        let bytes = header.decoder_bytes() + header.block_size().max(PIECE_BYTES).min(header.raw_size);
        body.hold(self.memory.take(bytes, Instant::now() + MEMORY_WAIT).await?);
        let oodle = self.rules().oodle.clone();
        if !form.verified && header.raw_size <= HASH_FIRST_BYTES_MAX {
            let (read, oodle) = (blob.clone(), oodle.clone());
            let verified = blocking::elsewhere(move || verify(&read, oodle)).await;
            verified.ok_or_else(|| {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the data could not be decompressed; try again")
            })??;
        }
        let findings: Arc<dyn Findings> = Arc::<Service>::clone(self);
        let source = Source { findings, namespace: namespace.clone(), form };
        let mut raw = RawBlob::new(blob, &header, oodle, source);
        // What is wrong with the beginning is answered with its status.
        raw.advance()?;
        body.push_raw(raw);
        Ok(body)
    }
}
