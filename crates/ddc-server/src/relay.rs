//! Blobs that are sent as they arrive, and kept nowhere.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use throng_ddc::{Hasher, IoHash};

use crate::memory::Held;
use crate::source::{FetchedBody, OTHER_CONTENT, Source as _};
use crate::streaming::HELD_BYTES;

/// A blob that is sent as it arrives. Its end is held back until all of it has its hash.
pub(crate) struct Relay {
    source: FetchedBody,
    hash: IoHash,
    hasher: Hasher,
    /// Bytes that arrived and were not taken.
    pieces: VecDeque<Bytes>,
    waiting: u64,
    /// Bytes that have not arrived.
    to_come: u64,
    /// Everything arrived, and has its hash.
    is_sound: bool,
    failed: Failed,
    _held: Held,
}

/// Receiver of the news that a transfer failed, and why.
pub(crate) type Failed = Box<dyn Fn(&io::Error) + Send + Sync>;

impl Relay {
    /// A blob of `len` bytes from `source`, with the memory of its held end and a piece.
    pub(crate) fn new(source: FetchedBody, hash: IoHash, len: u64, failed: Failed, held: Held) -> Relay {
        Relay {
            source,
            hash,
            hasher: Hasher::new(),
            pieces: VecDeque::new(),
            waiting: 0,
            to_come: len,
            is_sound: false,
            failed,
            _held: held,
        }
    }

    /// Waits until [`next`](Relay::next) gives something, if there is anything more.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sendable() == 0 && self.left() > 0 {
            let failure = match ready!(self.source.poll_piece(context)) {
                Ok(Some(piece)) if piece.len() as u64 <= self.to_come => {
                    self.hasher.update(&piece);
                    self.waiting += piece.len() as u64;
                    self.to_come -= piece.len() as u64;
                    self.pieces.push_back(piece);
                    self.is_sound = self.to_come == 0 && self.hasher.finish() == self.hash;
                    if self.is_sound || self.to_come > 0 {
                        continue;
                    }
                    io::Error::new(io::ErrorKind::InvalidData, OTHER_CONTENT)
                }
                Ok(Some(_)) => io::Error::new(io::ErrorKind::InvalidData, OTHER_CONTENT),
                Ok(None) => io::ErrorKind::UnexpectedEof.into(),
                Err(error) => error,
            };
            (self.failed)(&failure);
            return Poll::Ready(Err(failure));
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes that may be sent now.
    pub(crate) fn sendable(&self) -> u64 {
        if self.is_sound { self.waiting } else { self.waiting.saturating_sub(HELD_BYTES) }
    }

    /// Bytes that were not taken yet.
    pub(crate) fn left(&self) -> u64 {
        self.waiting + self.to_come
    }

    /// The next bytes that may be sent, at most `at_most`.
    pub(crate) fn next(&mut self, at_most: usize) -> Bytes {
        let sendable = usize::try_from(self.sendable()).unwrap_or(usize::MAX).min(at_most);
        let Some(piece) = self.pieces.front_mut() else { return Bytes::new() };
        let taken = piece.split_to(piece.len().min(sendable));
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        self.waiting -= taken.len() as u64;
        taken
    }
}
