//! Buffers that outboxes pass on to each other.

use super::{KEEP_BYTES, Outbox};

/// Buffers of drained outboxes, for those that are filled next.
///
/// A connection that has nothing to send holds no buffer to speak of, whatever it had to send
/// before, and one that has begins with one that is large enough already: in steady state nothing
/// is allocated.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    /// Empty ones, the latest last: that is likely to be in the processor's cache.
    buffers: Vec<Vec<u8>>,
    /// What they hold together.
    bytes: usize,
}

/// Larger buffers are given back: a reader that was slow once is no measure for the next one.
const SPARE_BYTES_MAX: usize = 64 << 10;
/// Bytes of all spare buffers of a shard: what those hold who get something in the same tick, two
/// hundred players with 40 KiB each.
const SPARES_BYTES_MAX: usize = 8 << 20;

impl Spares {
    /// Gives an outbox that is about to be filled a buffer to begin with.
    #[inline]
    pub(crate) fn lend(&mut self, outbox: &mut Outbox) {
        debug_assert!(outbox.is_empty() && outbox.own.tail.is_empty(), "a buffer in use would be lost");
        if let Some(buffer) = self.buffers.pop() {
            self.bytes -= buffer.capacity();
            outbox.own.tail = buffer;
        }
    }

    /// Bytes held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes
    }

    /// Takes an empty buffer over, if it is worth it and there is room.
    pub(super) fn take(&mut self, buffer: &mut Vec<u8>) {
        let bytes = buffer.capacity();
        if (KEEP_BYTES + 1..=SPARE_BYTES_MAX).contains(&bytes) && self.bytes + bytes <= SPARES_BYTES_MAX {
            self.bytes += bytes;
            self.buffers.push(core::mem::take(buffer));
        }
    }
}
