//! Queue of bytes to transmit.

use std::collections::VecDeque;

use throng_wire::frame::PACKET_BYTES_SEND_MAX;

/// Entries back to back, with their lengths: a packet is a run of them.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// Entries before this offset were taken.
    start: usize,
    lens: VecDeque<u32>,
}

impl Outbox {
    pub(super) fn queued_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        let len = self.bytes.len() - before;
        self.lens.push_back(u32::try_from(len).expect("an entry is at most one packet long"));
    }

    /// Moves entries into `packet` up to the largest size; returns their number.
    pub(super) fn take_packet(&mut self, packet: &mut Vec<u8>) -> usize {
        let (mut size, mut count) = (0, 0);
        while let Some(&len) = self.lens.front()
            && size + len as usize <= PACKET_BYTES_SEND_MAX
        {
            size += len as usize;
            count += 1;
            self.lens.pop_front();
        }
        packet.extend_from_slice(&self.bytes[self.start..self.start + size]);
        self.start += size;
        if self.lens.is_empty() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > PACKET_BYTES_SEND_MAX {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        count
    }
}
