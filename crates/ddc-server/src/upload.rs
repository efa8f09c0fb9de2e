//! Bodies of requests, into memory or the store while they are hashed.

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use throng_admin::Turn;
use throng_ddc::compressed::{CompressedError, Decoder, Verified};
use throng_ddc::{Hasher, IoHash};
use throng_ddc_store::{Blob, LargeWriter, Store};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::answer::Problem;
use crate::memory::{FREE_BYTES, HELD_STEP_BYTES, Held, MEMORY_WAIT, Memory, SMALL_BYTES_MAX};
use crate::source::Source;
use crate::streaming::StreamedBlob;

/// Bytes that are hashed and written in one step.
const STEP_BYTES: usize = 1 << 20;

/// The body of a request.
///
/// It takes memory for a piece before the piece arrives, and for what it collects. Without memory
/// it comes in pieces of [`FREE_BYTES`], which go to a file, or wait for memory if all of it is
/// wanted in memory.
pub(crate) struct Upload<'c> {
    source: Box<dyn Source + 'c>,
    rest: Bytes,
    received: u64,
    limit: u64,
    /// File for what is received, whatever its size.
    file: Option<Box<LargeWriter>>,
    /// Learns what was written to a file.
    shown_to: Option<&'c StreamedBlob>,
    /// Hashes everything, if the name of the upload is a SHA-256.
    sha256: Option<Box<ring::digest::Context>>,
    /// Of all requests, and what this one holds of it.
    memory: Option<&'c Memory>,
    held: Option<Held>,
    /// Memory of a decoder.
    decoding: Option<Held>,
    turn: Option<Turn>,
    /// Time for which it may wait for memory still.
    patience: Duration,
}

/// Bytes that were received.
pub(crate) enum Received {
    /// In memory, with their hash.
    Small(Bytes, IoHash),
    /// In a file.
    Large(Box<LargeWriter>),
    /// Nowhere: they were stored before, and so only hashed. Their hash and how many there were.
    Known(IoHash, u64),
}

impl Received {
    pub(crate) fn hash(&self) -> IoHash {
        match self {
            Received::Small(_, hash) => *hash,
            Received::Large(writer) => writer.hash(),
            Received::Known(hash, _) => *hash,
        }
    }

    /// The bytes as a blob, even if they are not kept.
    pub(crate) fn blob(&self) -> Option<Blob> {
        match self {
            Received::Small(bytes, _) => Some(Blob::in_memory(bytes.clone())),
            Received::Large(writer) => Some(writer.blob()),
            Received::Known(..) => None,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Received::Small(bytes, _) => bytes.len() as u64,
            Received::Large(writer) => writer.written(),
            Received::Known(_, len) => *len,
        }
    }
}

impl<'c> Upload<'c> {
    /// At most `limit` bytes. What is received as a whole takes its memory from `memory`, that of
    /// all requests, if it is given.
    pub(crate) fn new(
        source: Box<dyn Source + 'c>,
        limit: u64,
        memory: Option<&'c Memory>,
    ) -> Result<Upload<'c>, Problem> {
        let upload = Upload {
            source,
            rest: Bytes::new(),
            received: 0,
            limit,
            file: None,
            shown_to: None,
            sha256: None,
            memory,
            held: None,
            decoding: None,
            turn: None,
            patience: MEMORY_WAIT,
        };
        if upload.declared().is_some_and(|declared| declared > limit) {
            return Err(too_large(limit));
        }
        Ok(upload)
    }

    /// Receives into a file, and shows what comes while it comes.
    pub(crate) fn shown_to(self, shown_to: &'c StreamedBlob, file: LargeWriter) -> Upload<'c> {
        Upload { shown_to: Some(shown_to), file: Some(Box::new(file)), ..self }
    }

    /// Makes room for `more` bytes behind `bytes`, which may become `whole`.
    async fn room(&mut self, bytes: &mut BytesMut, more: usize, whole: u64) -> Result<(), Problem> {
        let wanted = bytes.len() + more;
        if bytes.capacity() < wanted {
            // A client's declared length is believed once the first MiB has come. All of it at
            // once: what grows step by step waits at each, while others wait for what it holds.
            // What is reserved counts, touched or not: the allocator gives used pages.
            let believed = if wanted > STEP_BYTES { usize::MAX } else { STEP_BYTES };
            let capacity = match (whole as usize).min(believed) {
                0 => wanted.next_power_of_two(),
                whole => wanted.max(whole),
            };
            self.charge(capacity).await?;
            bytes.reserve(capacity - bytes.len());
        }
        Ok(())
    }

    /// Takes memory for `bytes` of the body in all, if others hold no such amount.
    fn try_charge(&mut self, bytes: usize) -> bool {
        let Some(memory) = self.memory.filter(|_| bytes > FREE_BYTES) else { return true };
        let lacking = (bytes as u64).saturating_sub(self.held.as_ref().map_or(0, Held::bytes));
        if lacking == 0 {
            return true;
        }
        let Some(taken) = memory.try_take(self.source.address(), lacking) else { return false };
        Held::add(&mut self.held, taken);
        true
    }

    /// The same, and waits for it.
    async fn charge(&mut self, bytes: usize) -> Result<(), Problem> {
        let Some(memory) = self.memory.filter(|_| bytes > FREE_BYTES) else { return Ok(()) };
        let lacking = (bytes as u64).saturating_sub(self.held.as_ref().map_or(0, Held::bytes));
        if lacking > 0 {
            let taken = self.take(memory, lacking.max(HELD_STEP_BYTES)).await?;
            Held::add(&mut self.held, taken);
            // The client did not pause meanwhile.
            self.turn = None;
        }
        Ok(())
    }

    /// Takes memory. All waits of one request for it take [`MEMORY_WAIT`] together.
    async fn take(&mut self, memory: &Memory, bytes: u64) -> Result<Held, Problem> {
        let since = Instant::now();
        let taken = memory.take_for(self.source.address(), bytes, since + self.patience).await;
        self.patience = self.patience.saturating_sub(since.elapsed());
        Ok(taken?)
    }

    /// Hashes what arrives with SHA-256 as well.
    pub(crate) fn hash_sha256(&mut self) {
        self.sha256 = Some(Box::new(ring::digest::Context::new(&ring::digest::SHA256)));
    }

    /// SHA-256 of everything that arrived, if it was asked for.
    pub(crate) fn sha256(&mut self) -> Option<[u8; 32]> {
        self.sha256.take()?.finish().as_ref().try_into().ok()
    }

    /// Lowers the limit.
    pub(crate) fn limit(&mut self, limit: u64) -> Result<(), Problem> {
        if self.declared().is_some_and(|declared| declared > limit) {
            return Err(too_large(limit));
        }
        self.limit = self.limit.min(limit);
        Ok(())
    }

    /// How many bytes come, if the client says so.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.source.declared()
    }

    /// The next bytes, while `beside` them are held; `None` at the end.
    async fn next(&mut self, beside: usize) -> Result<Option<Bytes>, Problem> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        let wanted = self.source.asks_for();
        let is_held = self.try_charge(beside + wanted);
        self.source.allow(if is_held { wanted } else { FREE_BYTES });
        let mut sleep = None;
        let piece = poll_fn(|context| self.poll_piece(context, &mut sleep)).await;
        let piece = piece.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => Problem::paused(self.least()),
            io::ErrorKind::TimedOut => {
                let title =
                    "the body is too slow: it paused for 30 s, or took that long at less than 1 KiB/s";
                Problem::new(StatusCode::REQUEST_TIMEOUT, title)
            }
            io::ErrorKind::InvalidData => Problem::bad(error),
            _ => Problem::bad("the body broke off"),
        })?;
        if let (Some(sha256), Some(piece)) = (&mut self.sha256, &piece) {
            sha256.update(piece);
        }
        self.received += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        if self.received > self.limit { Err(too_large(self.limit)) } else { Ok(piece) }
    }

    /// Bytes of memory that it holds.
    fn held_bytes(&self) -> u64 {
        [&self.held, &self.decoding].into_iter().flatten().map(Held::bytes).sum()
    }

    /// Bytes that must come in a turn while another request waits.
    fn least(&self) -> u64 {
        Turn::least(self.held_bytes())
    }

    /// Fails with [`io::ErrorKind::ResourceBusy`] if the client pauses, and another request waits
    /// for the memory that this one holds.
    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        sleep: &mut Option<Pin<Box<Sleep>>>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            let piece = self.source.poll_piece(context);
            let Some(memory) = self.memory.filter(|_| piece.is_pending() && self.held_bytes() > 0) else {
                return piece;
            };
            let (moved, least) = (self.received + self.source.arrived() as u64, self.least());
            let turn = self.turn.get_or_insert_with(|| Turn::begin(moved));
            let sleep = sleep.get_or_insert_with(|| Box::pin(sleep_until(turn.end())));
            ready!(sleep.as_mut().poll(context));
            if turn.renew(moved) < least && memory.waiters().any() {
                return Poll::Ready(Err(io::ErrorKind::ResourceBusy.into()));
            }
            sleep.as_mut().reset(turn.end());
        }
    }

    /// Everything, in memory.
    pub(crate) async fn all(&mut self) -> Result<Bytes, Problem> {
        let Some(first) = self.next(0).await? else { return Ok(Bytes::new()) };
        // The usual body comes in one piece.
        if self.declared() == Some(0) { Ok(first) } else { Box::pin(self.collect(first)).await }
    }

    /// Everything from `first` on, in memory.
    async fn collect(&mut self, first: Bytes) -> Result<Bytes, Problem> {
        // The client decides when the next piece comes.
        self.charge(first.len()).await?;
        let Some(second) = self.next(first.len()).await? else { return Ok(first) };
        let (mut bytes, both) = (BytesMut::new(), first.len() + second.len());
        let whole = self.declared().map_or(0, |left| left + both as u64).min(self.limit);
        self.room(&mut bytes, both, whole).await?;
        bytes.extend_from_slice(&first);
        bytes.extend_from_slice(&second);
        drop((first, second));
        while let Some(more) = self.next(bytes.capacity()).await? {
            self.room(&mut bytes, more.len(), whole).await?;
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.freeze())
    }

    /// Exactly `count` bytes, in memory.
    pub(crate) async fn exactly(&mut self, count: usize) -> Result<Bytes, Problem> {
        let mut bytes = BytesMut::new();
        while bytes.len() < count {
            let mut piece =
                self.next(bytes.capacity()).await?.ok_or_else(|| Problem::bad("the body ends early"))?;
            if piece.len() > count - bytes.len() {
                self.rest = piece.split_off(count - bytes.len());
            }
            if bytes.is_empty() && piece.len() == count {
                return Ok(piece);
            }
            self.room(&mut bytes, piece.len(), count as u64).await?;
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// Reports whether everything was read.
    pub(crate) async fn at_end(&mut self) -> Result<bool, Problem> {
        let next = self.next(0).await?;
        self.rest = next.unwrap_or_default();
        Ok(self.rest.is_empty())
    }

    /// Takes everything and only hashes it.
    pub(crate) async fn hash(&mut self) -> Result<Received, Problem> {
        let (mut hasher, mut len) = (Hasher::new(), 0);
        while let Some(piece) = self.next(0).await? {
            hasher.update(&piece);
            len += piece.len() as u64;
            self.source.recycle(piece);
        }
        Ok(Received::Known(hasher.finish(), len))
    }

    /// Takes memory for something made of the body, until the request has ended.
    pub(crate) async fn hold(&mut self, bytes: u64) -> Result<(), Problem> {
        if let Some(memory) = self.memory {
            // It cannot wait for what it holds itself.
            let own = self.held.as_ref().map_or(0, Held::bytes);
            let taken = self.take(memory, bytes.min(memory.bytes().saturating_sub(own))).await?;
            Held::add(&mut self.held, taken);
        }
        Ok(())
    }

    /// Address of a client that stands for itself alone.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.source.address()
    }

    /// Adds the memory of what was received as a whole to `held`.
    pub(crate) fn give_held(&mut self, held: &mut Option<Held>) {
        if let Some(own) = self.held.take() {
            Held::add(held, own);
        }
    }

    /// Verifies a piece of a compressed buffer. Takes the memory that the decoder needs, once it is
    /// known, if that is much or the client decides how long it is needed.
    async fn decode(&mut self, decoder: &mut Decoder, piece: &[u8]) -> Result<(), Problem> {
        let free = if self.declared() == Some(0) { SMALL_BYTES_MAX } else { FREE_BYTES } as u64;
        let head = match decoder.header() {
            Some(_) => 0,
            None => piece.len().min(usize::try_from(decoder.wanted()).unwrap_or(usize::MAX)),
        };
        for part in [&piece[..head], &piece[head..]] {
            decoder.push(part, &mut |_| {}).map_err(|error| compressed_problem(&error))?;
            let needed = decoder.header().filter(|_| head > 0).map_or(0, |header| header.decoder_bytes());
            if let (Some(memory), None) = (self.memory, &self.decoding)
                && needed > free
            {
                // It cannot wait for what it holds itself.
                let others = memory.bytes().saturating_sub(self.held_bytes());
                self.decoding = Some(self.take(memory, needed.min(others)).await?);
            }
        }
        Ok(())
    }

    /// Takes `count` bytes, or everything, for the store; with a decoder, verifies them as a
    /// compressed buffer.
    pub(crate) async fn receive(
        &mut self,
        store: &Store,
        count: Option<u64>,
        mut decoder: Option<&mut Decoder>,
    ) -> Result<Received, Problem> {
        let mut wanted = count.unwrap_or(u64::MAX);
        let expected = count.or(self.declared()).unwrap_or(0);
        // Bytes that are written to a file together.
        let step = if expected > SMALL_BYTES_MAX as u64 { STEP_BYTES / 4 } else { STEP_BYTES };
        let mut writer = self.file.take();
        let mut buffer = BytesMut::new();
        let mut only: Option<Bytes> = None;
        while wanted > 0 {
            let beside = buffer.capacity().max(only.as_ref().map_or(0, Bytes::len));
            let Some(mut piece) = self.next(beside).await? else { break };
            if piece.len() as u64 > wanted {
                self.rest = piece.split_off(wanted as usize);
            }
            wanted -= piece.len() as u64;
            if let Some(decoder) = &mut decoder {
                self.decode(decoder, &piece).await?;
            }
            // The usual small upload arrives in one piece and is never copied.
            if buffer.is_empty() && only.is_none() && writer.is_none() {
                only = Some(piece);
            } else {
                if let Some(first) = only.take() {
                    buffer.reserve((expected.min(STEP_BYTES as u64) as usize).max(first.len() + piece.len()));
                    buffer.extend_from_slice(&first);
                }
                buffer.extend_from_slice(&piece);
            }
            let held = buffer.len().max(only.as_ref().map_or(0, Bytes::len));
            let is_last = wanted == 0 || self.declared() == Some(0);
            let room =
                if expected > 0 { step.min(expected as usize) } else { (held + 1).next_power_of_two() };
            if held >= step || !is_last && !self.try_charge(room.max(held)) {
                let file = match &mut writer {
                    Some(file) => file,
                    none => {
                        store.announce(expected)?;
                        none.insert(Box::new(store.begin_large()?))
                    }
                };
                match only.take() {
                    Some(bytes) => {
                        write(file, &bytes)?;
                        self.source.recycle(bytes);
                    }
                    None => {
                        write(file, &buffer)?;
                        buffer.clear();
                    }
                }
                if let Some(streamed) = self.shown_to {
                    streamed.advance(file.blob());
                }
            }
        }
        if count.is_some() && wanted > 0 {
            return Err(Problem::bad("the body ends early"));
        }
        self.decoding = None;
        let rest = only.unwrap_or_else(|| buffer.freeze());
        Ok(match writer {
            Some(mut file) => {
                write(&mut file, &rest)?;
                if let Some(streamed) = self.shown_to {
                    streamed.advance(file.blob());
                }
                Received::Large(file)
            }
            None => {
                let mut hasher = Hasher::new();
                hasher.update(&rest);
                Received::Small(rest, hasher.finish())
            }
        })
    }
}

/// Writes and hashes, in half a millisecond. Handing the thread over meanwhile (`block_in_place`)
/// would cost more than that, and with many uploads hundreds of threads with their memory.
fn write(file: &mut LargeWriter, bytes: &[u8]) -> Result<(), Problem> {
    file.write(bytes).map_err(Problem::from)
}

pub(crate) fn compressed_problem(error: &CompressedError) -> Problem {
    match error {
        CompressedError::BadHash => Problem::hash_mismatch(error.to_string()),
        _ => Problem::bad(error),
    }
}

/// Ends a verification.
pub(crate) fn verified(decoder: Decoder) -> Result<Verified, Problem> {
    decoder.finish().map_err(|error| compressed_problem(&error))
}

fn too_large(limit: u64) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body exceeds the limit of {limit} bytes"))
}
