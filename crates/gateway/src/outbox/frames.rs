//! The frame that still takes entries: opened, padded, compressed, closed.

use throng_wire::frame::{self, Compression, PACKET_BYTES_SEND_MAX, TAG_BYTES};

use super::entry::compress;
use super::{Framing, LOOSE_BYTES_MAX, Outbox, Segment};

#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFrame {
    /// Start of the reserved header in the last chunk of `own`, which has the whole frame.
    pub(super) header_at: usize,
    /// Index in `segments` of the segment that begins with the header.
    pub(super) first_segment: usize,
    /// Bytes of entries so far.
    pub(super) body: usize,
    /// It holds a shared entry that is known not to compress; trying again for every peer would be
    /// waste.
    pub(super) incompressible: bool,
    /// It may get lost.
    pub(super) loose: bool,
}

impl Outbox {
    #[inline]
    pub(super) fn make_room(&mut self, len: usize, loose: bool) {
        let max = if loose { LOOSE_BYTES_MAX } else { PACKET_BYTES_SEND_MAX };
        match &self.open {
            Some(open) if open.body + len <= max && open.loose == loose => return,
            Some(_) => self.close_frame(),
            None => {}
        }
        self.open_frame(loose);
    }

    pub(super) fn open_frame(&mut self, loose: bool) {
        self.own.begin_frame();
        let header_at = self.own.tail.len();
        let reserved = self.header_reserve();
        self.own.tail.extend_from_slice(&[0; WS_HEADER_BYTES_MAX + TAG_BYTES][..reserved]);
        let first_segment = self.segments.len();
        self.open = Some(OpenFrame { header_at, first_segment, body: 0, incompressible: false, loose });
        self.push_own(header_at);
        self.queued += reserved;
    }

    fn header_reserve(&self) -> usize {
        match self.framing {
            Framing::Stream | Framing::Packets => TAG_BYTES,
            Framing::WebSocket => WS_HEADER_BYTES_MAX + TAG_BYTES,
        }
    }

    /// Closes the open frame, compressing it if the peer takes that.
    pub(super) fn close_frame(&mut self) {
        let Some(open) = self.open else { return };
        if self.compress && !open.incompressible && self.compress_open(open) {
            self.finish_frame(Compression::Snappy);
            return;
        }
        if self.avoid_legacy_sizes && frame::is_ambiguous_for_legacy(open.body) {
            self.push_padding(frame::legacy_padding(open.body));
        }
        self.finish_frame(Compression::None);
    }

    /// Appends a field that every reader skips. Spec §2.5 rule 4.
    fn push_padding(&mut self, padding: &[u8]) {
        let start = self.own.tail.len();
        self.own.tail.extend_from_slice(padding);
        self.push_own(start);
        self.queued += padding.len();
        if let Some(open) = &mut self.open {
            open.body += padding.len();
        }
    }

    /// Replaces the open frame's body by its compressed form. False leaves the frame as it was: it
    /// does not pay, or the compressed size is one that a legacy peer misreads.
    fn compress_open(&mut self, open: OpenFrame) -> bool {
        let header = self.header_reserve();
        let mut plain = Vec::with_capacity(open.body);
        for (position, segment) in self.segments.iter().skip(open.first_segment).enumerate() {
            let bytes = segment.bytes(&self.own);
            plain.extend_from_slice(if position == 0 { &bytes[header..] } else { bytes });
        }
        debug_assert_eq!(plain.len(), open.body);
        let Some(packed) = compress(&plain) else { return false };
        if self.avoid_legacy_sizes && frame::is_ambiguous_for_legacy(packed.len()) {
            return false;
        }
        let shared = self.segments.range(open.first_segment..).filter(|segment| segment.is_shared());
        self.shared -= shared.map(Segment::len).sum::<usize>();
        self.segments.truncate(open.first_segment);
        self.own.tail.truncate(open.header_at + header);
        self.own.tail.extend_from_slice(&packed);
        self.push_own(open.header_at);
        self.queued = self.queued - open.body + packed.len();
        self.open = Some(OpenFrame { body: packed.len(), ..open });
        true
    }

    /// Writes the header of the open frame; from here on it is bytes.
    pub(super) fn finish_frame(&mut self, compression: Compression) {
        let Some(open) = self.open.take() else { return };
        let tag = frame::tag(open.body, compression);
        let reserved = self.header_reserve();
        let tag_at = open.header_at + reserved - TAG_BYTES;
        self.own.tail[tag_at..tag_at + TAG_BYTES].copy_from_slice(&tag);
        if self.framing == Framing::WebSocket {
            let (header, len) = websocket_header(TAG_BYTES + open.body);
            let start = tag_at - len;
            self.own.tail[start..tag_at].copy_from_slice(&header[..len]);
            // The header is reserved at its longest and written right-aligned; what is in front of
            // it is not sent.
            if let Some(Segment::Own { start: first, .. }) = self.segments.get_mut(open.first_segment) {
                *first = start as u32;
            }
            self.queued -= start - open.header_at;
        }
        self.packets += 1;
        // Its header is in place, and has the length that was reserved: there is none of WebSocket
        // here.
        self.note_run(TAG_BYTES + open.body, open.loose);
    }
}

/// A two-byte header and a 16-bit length cover every frame: 5 + 65,530 bytes at most.
const WS_HEADER_BYTES_MAX: usize = 4;
const _: () = assert!(TAG_BYTES + PACKET_BYTES_SEND_MAX <= u16::MAX as usize);

/// Header of a final, unmasked binary message (RFC 6455 §5.2), as servers send it.
fn websocket_header(payload: usize) -> ([u8; WS_HEADER_BYTES_MAX], usize) {
    const FINAL_BINARY: u8 = 0x82;
    if payload <= 125 {
        ([FINAL_BINARY, payload as u8, 0, 0], 2)
    } else {
        let [high, low] = (payload as u16).to_be_bytes();
        ([FINAL_BINARY, 126, high, low], 4)
    }
}
