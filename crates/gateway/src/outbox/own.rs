//! Bytes that belong to one outbox, in chunks.

use std::collections::VecDeque;

/// Headers and inline entries of an outbox. The last chunk grows; a full one is freed as a whole
/// once it is written, so that a reader that takes little at a time holds what waits for it and
/// about one chunk more.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The chunk that takes bytes.
    pub(super) tail: Vec<u8>,
    /// Full chunks before it, in order.
    full: VecDeque<Vec<u8>>,
    /// Capacity of the full chunks.
    full_bytes: usize,
    /// Number of the first chunk; numbers count up from 0 since the outbox was last empty.
    first: u32,
}

/// A frame begins a new chunk if the last one holds so much. Of the size of a frame, so that only
/// outboxes of slow readers, and of those that get several frames at once, have a second chunk.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

impl Own {
    /// Number of the chunk that takes bytes.
    pub(super) fn tail_number(&self) -> u32 {
        self.first + self.full.len() as u32
    }

    /// Bytes of a chunk.
    pub(super) fn chunk(&self, number: u32) -> &[u8] {
        self.full.get((number - self.first) as usize).unwrap_or(&self.tail)
    }

    /// Begins a new chunk if the last one is full.
    #[inline]
    pub(super) fn begin_frame(&mut self) {
        if self.tail.len() >= CHUNK_BYTES {
            let full = std::mem::replace(&mut self.tail, Vec::with_capacity(CHUNK_BYTES));
            self.full_bytes += full.capacity();
            self.full.push_back(full);
        }
    }

    /// Frees the chunks before this one.
    pub(super) fn free_before(&mut self, number: u32) {
        while self.first < number
            && let Some(written) = self.full.pop_front()
        {
            self.full_bytes -= written.capacity();
            self.first += 1;
        }
    }

    pub(super) fn has_full_chunks(&self) -> bool {
        !self.full.is_empty()
    }

    /// Forgets everything and keeps the memory of the last chunk.
    pub(super) fn clear(&mut self) {
        self.tail.clear();
        self.full = VecDeque::new();
        (self.full_bytes, self.first) = (0, 0);
    }

    /// Memory held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.tail.capacity() + self.full_bytes + self.full.capacity() * size_of::<Vec<u8>>()
    }
}
