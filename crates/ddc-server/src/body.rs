//! Bodies of answers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use throng_ddc::{Hasher, IoHash, Namespace};
use throng_ddc_store::{Blob, is_damage};

use crate::json::JsonBody;
use crate::memory::{FREE_BYTES, Held, SMALL_BYTES_MAX, Waiters};
use crate::raw::RawBlob;
use crate::relay::Relay;
use crate::streaming::StreamedBlob;

/// Bytes that one step reads. Half of it costs an eighth more in system calls, twice of it falls
/// out of the second-level cache before it is sent.
pub(crate) const PIECE_BYTES: u64 = 512 << 10;
/// Parts of a body beyond which the files of blobs are opened when it is their turn.
const OPEN_PARTS_MAX: usize = 16;

/// The body of an answer: bytes in memory, parts of blobs, raw data of compressed ones, objects as
/// JSON and blobs that are passed on, one after the other.
#[derive(Default)]
pub(crate) struct Body {
    parts: VecDeque<Part>,
    left: u64,
    /// Given back after the parts, which it is for.
    held: Option<Held>,
    /// Requests that wait for memory, if the body holds some.
    waiters: Option<Waiters>,
}

enum Part {
    Bytes(Bytes),
    Blob { blob: Blob, at: u64, end: u64, check: Option<Box<Check>> },
    Streamed { streamed: Arc<StreamedBlob>, at: u64, end: u64 },
    Raw(Box<RawBlob>),
    Json(Box<JsonBody>),
    Relay(Box<Relay>),
}

/// A part of a blob that may be sent as it is.
pub(crate) struct FilePart {
    pub(crate) blob: Blob,
    pub(crate) at: u64,
    pub(crate) end: u64,
}

/// Receiver of what is found out about blobs on their way out.
pub(crate) trait Findings: Send + Sync {
    /// A stored blob is damaged.
    fn damaged(&self, namespace: &Namespace, hash: &IoHash, blob: &Blob);

    /// A stored blob has its hash.
    fn sound(&self, blob: &Blob);
}

/// Check of a blob on its way out.
pub(crate) struct Check {
    pub(crate) findings: Arc<dyn Findings>,
    pub(crate) namespace: Namespace,
    pub(crate) hash: IoHash,
    pub(crate) kind: CheckKind,
}

/// Kind of a check.
pub(crate) enum CheckKind {
    /// The whole blob is hashed, and its last piece held back until the hash is known.
    Whole(Box<Hasher>),
    /// Each MiB is compared with its sum before any of it is sent.
    Parts,
    /// The whole blob is read and checked before any of it is sent: it is small.
    AtOnce,
}

impl Check {
    /// The next bytes of a blob, from `at` on, at most up to `end` and `at_most`.
    fn read(&mut self, blob: &Blob, at: u64, end: u64, at_most: u64) -> io::Result<Bytes> {
        let damage = |error: io::Error| {
            if is_damage(&error) {
                // The rest is not sent: the receiver sees an answer that broke off.
                self.findings.damaged(&self.namespace, &self.hash, blob);
            }
            error
        };
        match &mut self.kind {
            CheckKind::Parts => {
                let (start, bytes) = blob.read_part_checked(at).map_err(damage)?;
                let last = (end - start).min(bytes.len() as u64).min(at - start + at_most);
                Ok(part_of(&bytes, (at - start) as usize, last as usize))
            }
            CheckKind::AtOnce => {
                let bytes = blob.read_sound(&self.hash).map_err(damage)?;
                Ok(part_of(&bytes, at as usize, end.min(at + at_most) as usize))
            }
            CheckKind::Whole(hasher) => {
                let bytes = blob.read(at, (end - at).min(at_most) as usize).map_err(damage)?;
                hasher.update(&bytes);
                if at + bytes.len() as u64 == end {
                    if hasher.finish() != self.hash {
                        let error = io::Error::new(io::ErrorKind::InvalidData, "a stored blob is damaged");
                        return Err(damage(error));
                    }
                    self.findings.sound(blob);
                }
                Ok(bytes)
            }
        }
    }
}

/// Part of what was read. A small one does not keep all of it.
fn part_of(bytes: &Bytes, start: usize, end: usize) -> Bytes {
    if end - start < bytes.len() / 2 {
        return Bytes::copy_from_slice(&bytes[start..end]);
    }
    bytes.slice(start..end)
}

impl Body {
    pub(crate) fn bytes(bytes: impl Into<Bytes>) -> Body {
        // Room for one part: most bodies have no other.
        let mut body = Body { parts: VecDeque::with_capacity(1), ..Body::default() };
        body.push_bytes(bytes.into());
        body
    }

    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.left += bytes.len() as u64;
            self.parts.push_back(Part::Bytes(bytes));
        }
    }

    /// Bytes `at..end` of a blob. Only a whole blob can be hashed.
    pub(crate) fn push_blob(&mut self, mut blob: Blob, at: u64, end: u64, check: Option<Box<Check>>) {
        if at < end {
            if self.parts.len() >= OPEN_PARTS_MAX {
                blob.close_file();
            }
            self.left += end - at;
            self.parts.push_back(Part::Blob { blob, at, end, check });
        }
    }

    /// A whole blob that is on its way here.
    pub(crate) fn push_streamed(&mut self, streamed: Arc<StreamedBlob>, end: u64) {
        self.left += end;
        self.parts.push_back(Part::Streamed { streamed, at: 0, end });
    }

    /// The raw data of a compressed buffer.
    pub(crate) fn push_raw(&mut self, raw: RawBlob) {
        if raw.left() > 0 {
            self.left += raw.left();
            self.parts.push_back(Part::Raw(Box::new(raw)));
        }
    }

    /// An object as JSON.
    pub(crate) fn push_json(&mut self, json: JsonBody) {
        self.left += json.left();
        self.parts.push_back(Part::Json(Box::new(json)));
    }

    /// A whole blob that is passed on as it arrives.
    pub(crate) fn push_relay(&mut self, relay: Relay) {
        self.left += relay.left();
        self.parts.push_back(Part::Relay(Box::new(relay)));
    }

    /// Reports whether what comes next may not be here yet.
    pub(crate) fn must_wait(&self) -> bool {
        match self.parts.front() {
            Some(Part::Streamed { .. }) => true,
            Some(Part::Relay(relay)) => relay.sendable() == 0,
            _ => false,
        }
    }

    /// Waits until [`take_file`](Body::take_file) or [`step`](Body::step) give something, if there
    /// is anything more.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (streamed, at, end) = match self.parts.front_mut() {
            Some(Part::Streamed { streamed, at, end }) => (streamed, at, end),
            Some(Part::Relay(relay)) => return relay.poll_ready(context),
            _ => return Poll::Ready(Ok(())),
        };
        let (blob, until) = ready!(streamed.poll_part(context, *at))?;
        let part = Part::Blob { blob, at: *at, end: until.min(*end), check: None };
        *at = until.min(*end);
        if *at == *end {
            self.parts.pop_front();
        }
        self.parts.push_front(part);
        Poll::Ready(Ok(()))
    }

    pub(crate) fn append(&mut self, mut other: Body) {
        self.left += other.left;
        self.parts.append(&mut other.parts);
        if let Some(held) = other.held.take() {
            self.hold(held);
        }
    }

    /// Holds memory for the parts as long as they are there.
    pub(crate) fn hold(&mut self, held: Held) {
        Held::add(&mut self.held, held);
    }

    /// Bytes of that memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, Held::bytes)
    }

    /// Closes the files of blobs: each further read of one opens it.
    pub(crate) fn close_files(&mut self) {
        for part in &mut self.parts {
            match part {
                Part::Blob { blob, .. } => blob.close_file(),
                Part::Raw(raw) => raw.close_file(),
                _ => {}
            }
        }
    }

    /// Takes the first byte away, of bytes in memory or of a blob that needs no check.
    pub(crate) fn take_byte(&mut self) -> io::Result<Option<u8>> {
        let byte = match self.parts.front_mut() {
            Some(Part::Bytes(bytes)) => bytes.split_to(1)[0],
            Some(Part::Blob { blob, at, check: None, .. }) => {
                let byte = blob.read(*at, 1)?[0];
                *at += 1;
                byte
            }
            _ => return Ok(None),
        };
        self.left -= 1;
        self.parts.pop_front_if(|part| match part {
            Part::Bytes(bytes) => bytes.is_empty(),
            Part::Blob { at, end, .. } | Part::Streamed { at, end, .. } => at == end,
            Part::Raw(_) | Part::Json(_) | Part::Relay(_) => false,
        });
        Ok(Some(byte))
    }

    /// Bytes in memory for which nothing may be held yet. Those of large objects hold their own.
    pub(crate) fn uncounted_bytes(&self) -> u64 {
        let of_part = |part: &Part| match part {
            Part::Bytes(bytes) if bytes.len() <= SMALL_BYTES_MAX => bytes.len() as u64,
            _ => 0,
        };
        let all: u64 = self.parts.iter().map(of_part).sum();
        let all = all.saturating_sub(self.held_bytes());
        if all > FREE_BYTES as u64 { all } else { 0 }
    }

    /// Makes room for requests that wait, if a client does not take the body.
    pub(crate) fn watch(&mut self, waiters: &Waiters) {
        let is_file = |part: &Part| matches!(part, Part::Blob { check: None, .. } | Part::Streamed { .. });
        if self.left > FREE_BYTES as u64 && !self.parts.iter().all(is_file) {
            self.waiters = Some(waiters.clone());
        }
    }

    /// The requests that wait for memory, if the body holds some.
    pub(crate) fn waiters(&self) -> Option<&Waiters> {
        self.waiters.as_ref()
    }

    pub(crate) fn len(&self) -> u64 {
        self.left
    }

    /// What comes next, if it is part of a file that needs no look on its way out.
    pub(crate) fn take_file(&mut self) -> Option<FilePart> {
        let taken = self.parts.pop_front_if(|part| matches!(part, Part::Blob { check: None, .. }))?;
        let Part::Blob { blob, at, end, .. } = taken else { return None };
        self.left -= end - at;
        Some(FilePart { blob, at, end })
    }

    /// The next bytes, at most `at_most`.
    pub(crate) fn step(&mut self, at_most: usize) -> Option<io::Result<Bytes>> {
        let piece = PIECE_BYTES.min(at_most as u64);
        let bytes = match self.parts.front_mut()? {
            Part::Streamed { .. } => {
                return Some(Err(io::Error::other("no reader waits for the streamed blob")));
            }
            Part::Raw(raw) => {
                let bytes = match raw.next(at_most) {
                    Ok(bytes) => bytes,
                    Err(error) => return Some(Err(error)),
                };
                if raw.left() == 0 {
                    self.parts.pop_front();
                }
                bytes
            }
            Part::Json(json) => {
                let bytes = json.next(at_most);
                if json.left() == 0 {
                    self.parts.pop_front();
                }
                bytes
            }
            Part::Relay(relay) => {
                let bytes = relay.next(at_most);
                if relay.left() == 0 {
                    self.parts.pop_front();
                }
                bytes
            }
            Part::Bytes(bytes) => {
                let taken = bytes.split_to(bytes.len().min(at_most));
                if bytes.is_empty() {
                    self.parts.pop_front();
                }
                taken
            }
            Part::Blob { blob, at, end, check } => {
                let read = match check {
                    Some(check) => check.read(blob, *at, *end, piece),
                    None => blob.read(*at, (*end - *at).min(piece) as usize),
                };
                let bytes = match read {
                    Ok(bytes) => bytes,
                    Err(error) => return Some(Err(error)),
                };
                *at += bytes.len() as u64;
                if *at == *end {
                    self.parts.pop_front();
                }
                bytes
            }
        };
        self.left -= bytes.len() as u64;
        Some(Ok(bytes))
    }
}
