//! What waits to be written to one peer: frames built in place around shared bytes.
//!
//! ```text
//! own       | header | inline entries ... | header |          (one growing buffer)
//! segments  | own ----------------------> | own -> | shared | shared | ...
//! frame       closed, tag written           open: grows until drained or full
//! ```
//!
//! Small messages are appended to `own`; fan-out entries are shared by reference, so a delivery to a thousand peers
//! copies nothing. The header of a frame (WebSocket header and tag) is reserved when the frame opens and written when it
//! closes, because only then the size is known. Everything queued between two writes of the transport leaves as one
//! frame (spec §2.3), and nothing is held back (weakness A-12).

use core::mem;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use throng_wire::Compressor;
use throng_wire::frame::{self, Compression, PACKET_BYTES_SEND_MAX, TAG_BYTES};

/// How a connection carries frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// A byte stream: frames follow each other (TCP, TLS, KCP).
    Stream,
    /// WebSocket: each frame is one binary message. Its header is part of the bytes, so drivers write plain bytes either
    /// way.
    WebSocket,
    /// Packets of which some may get lost: small state updates have frames of their own, and what
    /// [`Outbox::gather`] gives is either made of these or of everything else, see [`Outbox::may_get_lost`].
    Packets,
}

/// A complete `Packet.messages` entry shared by everyone who gets it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// All of it, or what comes before the pieces.
    bytes: Box<[u8]>,
    /// The rest, by reference to bytes that entries share.
    pieces: Box<[Bytes]>,
    /// The entry alone as a Snappy block; made when the first compressing peer needs it. Empty when compression does not
    /// pay.
    snappy: OnceLock<Box<[u8]>>,
}

impl Entry {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Self> {
        debug_assert!(bytes.len() <= PACKET_BYTES_SEND_MAX, "an entry must fit a packet");
        Arc::new(Self { bytes: bytes.into_boxed_slice(), pieces: Box::default(), snappy: OnceLock::new() })
    }

    /// An entry whose end is made of pieces that other entries have as well.
    pub(crate) fn in_pieces(head: Vec<u8>, pieces: impl IntoIterator<Item = Bytes>) -> Arc<Self> {
        let pieces: Box<[Bytes]> = pieces.into_iter().collect();
        let entry = Self { bytes: head.into_boxed_slice(), pieces, snappy: OnceLock::new() };
        debug_assert!(entry.len() <= PACKET_BYTES_SEND_MAX, "an entry must fit a packet");
        Arc::new(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.pieces.iter().map(Bytes::len).sum::<usize>()
    }

    fn form(&self, form: Form) -> &[u8] {
        match form {
            Form::Plain => &self.bytes,
            Form::Piece(index) => &self.pieces[usize::from(index)],
            Form::Snappy => self.snappy(),
        }
    }

    fn snappy(&self) -> &[u8] {
        self.snappy.get_or_init(|| compress(&self.bytes).unwrap_or_default().into_boxed_slice())
    }
}

/// A frame that holds one shared entry and nothing else: everyone who gets it gets the same bytes, so a driver can give
/// them to the kernel once.
#[derive(Debug, Clone)]
pub struct SharedFrame {
    tag: [u8; TAG_BYTES],
    entry: Arc<Entry>,
    form: Form,
}

impl SharedFrame {
    /// The bytes of the frame, in order.
    #[must_use]
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.tag, self.entry.form(self.form)]
    }

    /// How many outboxes and other holders share the entry at the moment.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.entry)
    }
}

/// Whether both are the same entry in the same form; equal bytes of two entries do not count.
impl PartialEq for SharedFrame {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.entry, &other.entry) && self.form == other.form
    }
}

/// Bytes on their way to one peer. Owned by the shard; the driver drains it.
#[derive(Debug)]
pub struct Outbox {
    /// Headers and inline entries of all frames, in order.
    own: Vec<u8>,
    segments: VecDeque<Segment>,
    /// The frame that still takes entries; always the last one.
    open: Option<OpenFrame>,
    /// Bytes not yet taken by the transport, reserved headers included.
    queued: usize,
    framing: Framing,
    compress: bool,
    avoid_legacy_sizes: bool,
    /// Frames closed since the shard last asked.
    packets: u32,
    /// With [`Framing::Packets`]: how the bytes of the closed frames are to travel, in order.
    runs: Option<VecDeque<Run>>,
}

/// Whole frames that are written together.
#[derive(Debug, Clone, Copy)]
struct Run {
    bytes: usize,
    loose: bool,
}

#[derive(Debug)]
enum Segment {
    /// `own[start..end]`.
    Own { start: u32, end: u32 },
    /// Part of a shared entry, from `start` on.
    Shared { entry: Arc<Entry>, start: u32, form: Form },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// One of the pieces behind the plain bytes.
    Piece(u16),
    Snappy,
}

#[derive(Debug, Clone, Copy)]
struct OpenFrame {
    /// Where the reserved header begins in `own`.
    header_at: usize,
    /// Index in `segments` of the segment that begins with the header.
    first_segment: usize,
    /// Bytes of entries so far.
    body: usize,
    /// It holds a shared entry that is known not to compress; trying again for every peer would be waste.
    incompressible: bool,
    /// It may get lost.
    loose: bool,
}

/// Most slices handed out by one `gather`: Linux takes no more in one call.
const SLICES_MAX: usize = 1024;
/// Buffers above this are given back when a drained connection has become quiet. Keeps an idle connection, with the
/// header and segment of one frame, well below 1 KiB without allocating for the next frame.
const KEEP_BYTES: usize = 256;
const KEEP_SEGMENTS: usize = 8;
/// Consumed bytes at the front of `own` before it is compacted under a reader that never lets it drain.
const COMPACT_BYTES: usize = 64 << 10;
/// Below this, compressing a shared entry on its own costs more in tags than it saves.
const SNAPPY_ALONE_BYTES: usize = 256;
/// Entries that may get lost, and bytes of a frame of such: with its tag, and what a transport adds, it fits a datagram on
/// every usual path. A longer one would be lost whenever one of its parts is.
pub(crate) const LOOSE_BYTES_MAX: usize = 1_150;
/// Reliable frames are written together up to about this size.
const RUN_BYTES: usize = 64 << 10;
/// Up to this size copying a shared entry costs less than a reference to it: the count, the segment, and a slice of the
/// system call that writes it.
const COPY_BYTES_MAX: usize = 192;
const _: () = assert!(COPY_BYTES_MAX < SNAPPY_ALONE_BYTES);

impl Outbox {
    /// How output is framed.
    #[must_use]
    pub fn framing(&self) -> Framing {
        self.framing
    }

    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            own: Vec::new(),
            segments: VecDeque::new(),
            open: None,
            queued: 0,
            framing,
            compress: false,
            avoid_legacy_sizes: true,
            packets: 0,
            runs: (framing == Framing::Packets).then(VecDeque::new),
        }
    }

    /// Whether state updates of this connection may get lost.
    pub(crate) fn is_loose(&self) -> bool {
        self.runs.is_some()
    }

    /// Whether what [`gather`](Self::gather) gives next may get lost. Closes the open frame.
    pub fn may_get_lost(&mut self) -> bool {
        self.close_frame();
        self.runs.as_ref().and_then(|runs| runs.front()).is_some_and(|run| run.loose)
    }

    /// Whether nothing waits to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that wait to be written, headers included.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// Appends slices of the waiting bytes to `iov`, in order, and closes the open frame.
    ///
    /// May stop after a thousand slices, and with [`Framing::Packets`] where bytes begin that travel differently. Whoever
    /// has written all of it asks again: after [`Shard::handle_written`](crate::Shard::handle_written) the connection is
    /// polled as writable once more.
    pub fn gather<'a>(&'a mut self, iov: &mut Vec<IoSlice<'a>>) {
        self.close_frame();
        let own = &self.own;
        let run = self.runs.as_ref().and_then(|runs| runs.front()).map_or(usize::MAX, |run| run.bytes);
        let mut left = run;
        for segment in self.segments.iter().take(SLICES_MAX) {
            if left == 0 {
                break;
            }
            let bytes = segment.bytes(own);
            left = left.saturating_sub(bytes.len());
            iov.push(IoSlice::new(bytes));
        }
    }

    /// What [`Self::gather`] would give first, if that is a frame of at least `len_min` bytes with one shared entry and
    /// nothing else. Closes the open frame. Streams only: the header of a WebSocket message is its connection's affair.
    pub fn shared_frame(&mut self, len_min: usize) -> Option<SharedFrame> {
        // A frame takes two segments then; looking at the bytes instead of keeping track of borders is as exact.
        if self.framing != Framing::Stream || self.queued < len_min {
            return None;
        }
        self.close_frame();
        let (head, body) = (self.segments.front()?, self.segments.get(1)?);
        let Segment::Shared { entry, start: 0, form } = body else { return None };
        let compression = match form {
            Form::Plain => Compression::None,
            Form::Piece(_) => return None,
            Form::Snappy => Compression::Snappy,
        };
        let tag = frame::tag(body.len(), compression);
        let whole = head.bytes(&self.own) == tag && tag.len() + body.len() >= len_min;
        whole.then(|| SharedFrame { tag, entry: Arc::clone(entry), form: *form })
    }

    /// Forgets the first `written` bytes of what [`Self::gather`] gave; the transport has them.
    ///
    /// Drivers call [`Shard::handle_written`](crate::Shard::handle_written) instead, which also resumes what waited for
    /// room.
    pub fn advance(&mut self, mut written: usize) {
        debug_assert!(written <= self.queued, "more written than queued");
        self.queued -= written.min(self.queued);
        self.advance_runs(written);
        while written > 0 {
            let Some(front) = self.segments.front_mut() else { break };
            let len = front.len();
            if written < len {
                front.skip(written);
                break;
            }
            written -= len;
            self.segments.pop_front();
            if let Some(open) = &mut self.open {
                debug_assert!(open.first_segment > 0, "the open frame was written");
                open.first_segment = open.first_segment.saturating_sub(1);
            }
        }
        if self.segments.is_empty() {
            self.release();
        } else {
            self.compact();
        }
    }

    fn advance_runs(&mut self, mut written: usize) {
        let Some(runs) = &mut self.runs else { return };
        while let Some(run) = runs.front_mut().filter(|_| written > 0) {
            let part = run.bytes.min(written);
            run.bytes -= part;
            written -= part;
            if run.bytes == 0 {
                runs.pop_front();
            }
        }
        if runs.is_empty() && runs.capacity() > KEEP_SEGMENTS {
            *runs = VecDeque::new();
        }
    }

    /// Queues transport control bytes (a WebSocket pong or close) at the next frame border.
    pub fn push_control(&mut self, bytes: &[u8]) {
        self.close_frame();
        let start = self.own.len();
        self.own.extend_from_slice(bytes);
        self.segments.push_back(Segment::Own { start: start as u32, end: self.own.len() as u32 });
        self.queued += bytes.len();
        self.note_run(bytes.len(), false);
    }

    /// Notes how bytes that are complete are to travel.
    fn note_run(&mut self, bytes: usize, loose: bool) {
        let Some(runs) = &mut self.runs else { return };
        // A frame that may get lost is a packet of its own: the loss of one costs nothing else.
        match runs.back_mut() {
            Some(run) if !run.loose && !loose && run.bytes + bytes <= RUN_BYTES => run.bytes += bytes,
            _ => runs.push_back(Run { bytes, loose }),
        }
    }

    /// Moves everything that waits into `out`.
    pub(crate) fn drain_into(&mut self, out: &mut Vec<u8>) {
        self.close_frame();
        for segment in self.segments.drain(..) {
            out.extend_from_slice(segment.bytes(&self.own));
        }
        self.runs.iter_mut().for_each(|runs| runs.clear());
        self.queued = 0;
        self.own = Vec::new();
    }

    /// The peer has sent Snappy: compress from the next frame on.
    pub(crate) fn set_compress(&mut self) {
        self.compress = true;
    }

    /// Whether frame sizes that legacy peers misread are to be avoided (until the peer is known to be current).
    pub(crate) fn set_avoid_legacy_sizes(&mut self, avoid: bool) {
        self.avoid_legacy_sizes = avoid;
    }

    /// Frames closed since the last call.
    pub(crate) fn take_packets(&mut self) -> u32 {
        mem::take(&mut self.packets)
    }

    /// Heap bytes held by the buffers; shared entries do not count.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.own.capacity() + self.segments.capacity() * mem::size_of::<Segment>()
    }

    /// Appends an entry of `len` bytes that `write` produces.
    ///
    /// # Panics
    /// In debug builds when `write` appends another number of bytes, or the entry fits no packet.
    #[inline]
    pub(crate) fn push_inline(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(len <= PACKET_BYTES_SEND_MAX);
        self.make_room(len, false);
        let start = self.own.len();
        write(&mut self.own);
        debug_assert_eq!(self.own.len(), start + len, "an entry has another length than announced");
        self.queued += len;
        if let Some(open) = &mut self.open {
            open.body += len;
        }
        let end = self.own.len() as u32;
        match self.segments.back_mut() {
            Some(Segment::Own { end: last, .. }) if *last as usize == start => *last = end,
            _ => self.segments.push_back(Segment::Own { start: start as u32, end }),
        }
    }

    /// Appends a shared entry, a large one without copying it; `loose` is for those that may get lost.
    #[inline]
    pub(crate) fn push_shared(&mut self, entry: &Arc<Entry>, loose: bool) {
        if entry.bytes.len() <= COPY_BYTES_MAX && entry.pieces.is_empty() && !loose {
            self.push_inline(entry.bytes.len(), |out| out.extend_from_slice(&entry.bytes));
            return;
        }
        let len = entry.len();
        let alone = self.compress && len >= SNAPPY_ALONE_BYTES && entry.pieces.is_empty();
        if alone && self.push_shared_compressed(entry, loose) {
            return;
        }
        self.make_room(len, loose);
        self.queued += len;
        if let Some(open) = &mut self.open {
            open.body += len;
            open.incompressible |= alone;
        }
        self.segments.push_back(Segment::Shared { entry: Arc::clone(entry), start: 0, form: Form::Plain });
        for index in 0..entry.pieces.len() {
            let form = Form::Piece(index as u16);
            self.segments.push_back(Segment::Shared { entry: Arc::clone(entry), start: 0, form });
        }
    }

    /// Gives a shared entry a frame of its own, so that the block compressed for one peer serves all. False when
    /// compression does not pay or gives a size that a legacy peer misreads; then nothing has changed.
    fn push_shared_compressed(&mut self, entry: &Arc<Entry>, loose: bool) -> bool {
        let body = entry.snappy().len();
        if body == 0 || (self.avoid_legacy_sizes && frame::is_ambiguous_for_legacy(body)) {
            return false;
        }
        self.close_frame();
        self.open_frame(loose);
        self.segments.push_back(Segment::Shared { entry: Arc::clone(entry), start: 0, form: Form::Snappy });
        self.queued += body;
        if let Some(open) = &mut self.open {
            open.body = body;
        }
        self.finish_frame(Compression::Snappy);
        true
    }

    #[inline]
    fn make_room(&mut self, len: usize, loose: bool) {
        let max = if loose { LOOSE_BYTES_MAX } else { PACKET_BYTES_SEND_MAX };
        match &self.open {
            Some(open) if open.body + len <= max && open.loose == loose => return,
            Some(_) => self.close_frame(),
            None => {}
        }
        self.open_frame(loose);
    }

    fn open_frame(&mut self, loose: bool) {
        let header_at = self.own.len();
        let reserved = self.header_reserve();
        self.own.extend_from_slice(&[0; WS_HEADER_BYTES_MAX + TAG_BYTES][..reserved]);
        let first_segment = self.segments.len();
        self.open = Some(OpenFrame { header_at, first_segment, body: 0, incompressible: false, loose });
        self.segments.push_back(Segment::Own { start: header_at as u32, end: self.own.len() as u32 });
        self.queued += reserved;
    }

    fn header_reserve(&self) -> usize {
        match self.framing {
            Framing::Stream | Framing::Packets => TAG_BYTES,
            Framing::WebSocket => WS_HEADER_BYTES_MAX + TAG_BYTES,
        }
    }

    /// Closes the open frame, compressing it if the peer takes that.
    fn close_frame(&mut self) {
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
        let start = self.own.len() as u32;
        self.own.extend_from_slice(padding);
        self.segments.push_back(Segment::Own { start, end: self.own.len() as u32 });
        self.queued += padding.len();
        if let Some(open) = &mut self.open {
            open.body += padding.len();
        }
    }

    /// Replaces the open frame's body by its compressed form. False leaves the frame as it was: it does not pay, or the
    /// compressed size is one that a legacy peer misreads.
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
        self.segments.truncate(open.first_segment);
        self.own.truncate(open.header_at + header);
        self.own.extend_from_slice(&packed);
        self.segments.push_back(Segment::Own { start: open.header_at as u32, end: self.own.len() as u32 });
        self.queued = self.queued - open.body + packed.len();
        self.open = Some(OpenFrame { body: packed.len(), ..open });
        true
    }

    /// Writes the header of the open frame; from here on it is bytes.
    fn finish_frame(&mut self, compression: Compression) {
        let Some(open) = self.open.take() else { return };
        let tag = frame::tag(open.body, compression);
        let reserved = self.header_reserve();
        let tag_at = open.header_at + reserved - TAG_BYTES;
        self.own[tag_at..tag_at + TAG_BYTES].copy_from_slice(&tag);
        if self.framing == Framing::WebSocket {
            let (header, len) = websocket_header(TAG_BYTES + open.body);
            let start = tag_at - len;
            self.own[start..tag_at].copy_from_slice(&header[..len]);
            // The header is reserved at its longest and written right-aligned; what is in front of it is not sent.
            if let Some(Segment::Own { start: first, .. }) = self.segments.get_mut(open.first_segment) {
                *first = start as u32;
            }
            self.queued -= start - open.header_at;
        }
        self.packets += 1;
        // Its header is in place, and has the length that was reserved: there is none of WebSocket here.
        self.note_run(TAG_BYTES + open.body, open.loose);
    }

    /// Everything is written: start over, keeping a little memory for the next frame.
    fn release(&mut self) {
        debug_assert!(self.open.is_none() && self.queued == 0);
        let used = self.own.len();
        self.own.clear();
        if self.own.capacity() > KEEP_BYTES && used < self.own.capacity() / 4 {
            self.own.shrink_to(KEEP_BYTES.max(used * 2));
        }
        if self.segments.capacity() > KEEP_SEGMENTS && used < COMPACT_BYTES {
            self.segments.shrink_to(KEEP_SEGMENTS);
        }
    }

    /// Drops the written front of `own` once it is large and at least half of it.
    fn compact(&mut self) {
        let first_own = self.segments.iter().find_map(|segment| match segment {
            Segment::Own { start, .. } => Some(*start as usize),
            Segment::Shared { .. } => None,
        });
        let written = first_own.unwrap_or(self.own.len());
        if written < COMPACT_BYTES || written < self.own.len() / 2 {
            return;
        }
        self.own.drain(..written);
        for segment in &mut self.segments {
            if let Segment::Own { start, end } = segment {
                *start -= written as u32;
                *end -= written as u32;
            }
        }
        if let Some(open) = &mut self.open {
            open.header_at -= written;
        }
    }
}

impl Segment {
    fn bytes<'a>(&'a self, own: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Own { start, end } => &own[*start as usize..*end as usize],
            Self::Shared { entry, start, form } => &entry.form(*form)[*start as usize..],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Own { start, end } => (end - start) as usize,
            Self::Shared { entry, start, form } => entry.form(*form).len() - *start as usize,
        }
    }

    fn skip(&mut self, bytes: usize) {
        match self {
            Self::Own { start, .. } | Self::Shared { start, .. } => *start += bytes as u32,
        }
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

/// A Snappy block of `plain`, or `None` when it would not be smaller.
fn compress(plain: &[u8]) -> Option<Vec<u8>> {
    Compressor::new().compress(plain).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ops::ControlFlow;
    use throng_stdx::Rng;
    use throng_wire::{FrameReader, MessagePack, entry_len, write_entry};

    fn entry(number: u32, body_len: usize) -> Vec<u8> {
        let body: Vec<u8> = (0..body_len).map(|at| (at as u32 * 7 + number) as u8).collect();
        let mut out = Vec::new();
        write_entry(
            &mut out,
            &MessagePack { stub_id: number + 1, msg_type: 100, body: &body, ..Default::default() },
        );
        out
    }

    fn push(outbox: &mut Outbox, entry: &[u8]) {
        outbox.push_inline(entry.len(), |out| out.extend_from_slice(entry));
    }

    /// Lets the transport take up to `max` bytes.
    fn take(outbox: &mut Outbox, max: usize) -> Vec<u8> {
        let mut slices = Vec::new();
        outbox.gather(&mut slices);
        let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        bytes.truncate(max);
        outbox.advance(bytes.len());
        bytes
    }

    fn take_all(outbox: &mut Outbox) -> Vec<u8> {
        let mut all = Vec::new();
        while !outbox.is_empty() {
            all.extend(take(outbox, usize::MAX));
        }
        all
    }

    /// Stub ids of all messages, and the sizes and compression bytes of all frames.
    fn read(bytes: &[u8]) -> (Vec<u32>, Vec<(usize, u8)>) {
        let (mut stubs, mut frames) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < bytes.len() {
            let size = usize::from(bytes[at + 2]) << 8 | usize::from(bytes[at + 3]);
            frames.push((size, bytes[at + 4]));
            at += TAG_BYTES + size;
        }
        assert_eq!(at, bytes.len(), "whole frames");
        let mut reader = FrameReader::default();
        reader
            .feed(bytes, &mut |packet| {
                stubs.extend(packet.messages().map(|message| message.stub_id));
                ControlFlow::Continue(())
            })
            .expect("valid frames");
        (stubs, frames)
    }

    fn strip_websocket(mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(bytes[0], 0x82);
            let (len, header) = match bytes[1] {
                126 => (usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), 4),
                len => (usize::from(len), 2),
            };
            assert!(header == 2 || len > 125, "the shortest header");
            out.extend_from_slice(&bytes[header..header + len]);
            bytes = &bytes[header + len..];
        }
        out
    }

    /// An entry in pieces is the same bytes as one in a piece, whatever the framing and the compression.
    #[test]
    fn entries_in_pieces_are_their_concatenation() {
        let bytes: Vec<u8> = (0..2000_u32).map(|i| (i / 7) as u8).collect();
        let whole = Bytes::from(bytes.clone());
        for (framing, compress) in
            [(Framing::Stream, false), (Framing::Stream, true), (Framing::WebSocket, false)]
        {
            let entry = |in_pieces: bool| match in_pieces {
                true => {
                    let pieces = [whole.slice(10..1500), whole.slice(1500..1600), whole.slice(1600..)];
                    Entry::in_pieces(bytes[..10].to_vec(), pieces)
                }
                false => Entry::new(bytes.clone()),
            };
            let written = |in_pieces: bool| {
                let mut outbox = Outbox::new(framing);
                outbox.push_shared(&entry(in_pieces), false);
                outbox.push_inline(3, |out| out.extend_from_slice(b"end"));
                if compress {
                    outbox.set_compress();
                }
                let mut out = Vec::new();
                // Bit by bit, as a slow transport takes it.
                while !outbox.is_empty() {
                    let mut slices = Vec::new();
                    outbox.gather(&mut slices);
                    let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                    let taken = all.len().min(700);
                    out.extend_from_slice(&all[..taken]);
                    outbox.advance(taken);
                }
                out
            };
            assert_eq!(entry(true).len(), entry(false).len());
            assert_eq!(written(true), written(false));
        }
    }

    #[test]
    fn a_frame_of_one_shared_entry_is_recognised_and_is_what_gather_gives() {
        let shared = Entry::new(entry(1, 30_000));
        let mut outbox = Outbox::new(Framing::Stream);
        outbox.push_shared(&shared, false);
        assert!(outbox.shared_frame(40_000).is_none(), "too short");
        let found = outbox.shared_frame(20_000).expect("one shared entry");
        assert_eq!(found.holders(), 3, "this test, the outbox and what was found");
        let bytes = found.parts().concat();
        // A message behind it is a frame of its own by now.
        push(&mut outbox, &entry(2, 10));
        assert_eq!(outbox.shared_frame(20_000), Some(found));
        let all = take_all(&mut outbox);
        assert_eq!(all[..bytes.len()], bytes);
        assert_eq!(read(&all).0, [2, 3]);
    }

    #[test]
    fn frames_that_hold_more_or_are_partly_written_are_not_shared() {
        let shared = Entry::new(entry(1, 30_000));
        let mut with_another = Outbox::new(Framing::Stream);
        with_another.push_shared(&shared, false);
        push(&mut with_another, &entry(2, 10));
        assert_eq!(with_another.shared_frame(0), None);
        let mut behind_another = Outbox::new(Framing::Stream);
        push(&mut behind_another, &entry(2, 10));
        behind_another.push_shared(&shared, false);
        assert_eq!(behind_another.shared_frame(0), None);
        for written in [1, TAG_BYTES, TAG_BYTES + 1] {
            let mut begun = Outbox::new(Framing::Stream);
            begun.push_shared(&shared, false);
            take(&mut begun, written);
            assert_eq!(begun.shared_frame(0), None, "{written} bytes written");
        }
        let mut websocket = Outbox::new(Framing::WebSocket);
        websocket.push_shared(&shared, false);
        assert_eq!(websocket.shared_frame(0), None);
    }

    // A-12: nothing is held back, and everything queued between two writes is one frame.
    #[test]
    fn a12_everything_queued_leaves_as_one_frame_at_once() {
        let mut outbox = Outbox::new(Framing::Stream);
        assert!(outbox.is_empty());
        for number in 0..50 {
            push(&mut outbox, &entry(number, 20));
        }
        let (stubs, frames) = read(&take_all(&mut outbox));
        assert_eq!(stubs, (1..=50).collect::<Vec<_>>());
        assert_eq!(frames.len(), 1);
        assert_eq!((outbox.take_packets(), outbox.queued_bytes()), (1, 0));
    }

    #[test]
    fn frames_end_before_they_exceed_a_packet() {
        let mut outbox = Outbox::new(Framing::Stream);
        for number in 0..20 {
            push(&mut outbox, &entry(number, 30_000));
        }
        let (stubs, frames) = read(&take_all(&mut outbox));
        assert_eq!(stubs.len(), 20);
        assert_eq!(frames.len(), 10);
        assert!(frames.iter().all(|(size, _)| *size <= PACKET_BYTES_SEND_MAX));
    }

    #[test]
    fn random_use_gives_back_every_message_in_order() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let framing = if rng.chance(0.5) { Framing::Stream } else { Framing::WebSocket };
            let mut outbox = Outbox::new(framing);
            outbox.set_avoid_legacy_sizes(rng.chance(0.5));
            let (mut bytes, mut number) = (Vec::new(), 0);
            for _ in 0..300 {
                match rng.below(10) {
                    0..6 => {
                        let len = if rng.chance(0.1) { rng.below(40_000) } else { rng.below(300) };
                        let entry = entry(number, len as usize);
                        if rng.chance(0.5) {
                            outbox.push_shared(&Entry::new(entry), false);
                        } else {
                            push(&mut outbox, &entry);
                        }
                        number += 1;
                    }
                    6 if rng.chance(0.05) => outbox.set_compress(),
                    _ => {
                        let max = if rng.chance(0.5) { usize::MAX } else { rng.below(5_000) as usize };
                        bytes.extend(take(&mut outbox, max));
                    }
                }
                let mut slices = Vec::new();
                if rng.chance(0.1) {
                    outbox.gather(&mut slices);
                    let gathered: usize = slices.iter().map(|slice| slice.len()).sum();
                    drop(slices);
                    let all = outbox.segments.len() <= SLICES_MAX;
                    assert!(!all || gathered == outbox.queued_bytes(), "the byte count is right");
                }
            }
            bytes.extend(take_all(&mut outbox));
            assert_eq!(outbox.queued_bytes(), 0);
            let bytes = if framing == Framing::WebSocket { strip_websocket(&bytes) } else { bytes };
            assert_eq!(read(&bytes).0, (1..=number).collect::<Vec<_>>(), "seed {seed}");
        }
    }

    // Spec §2.5 rule 4: a legacy peer would read these sizes as 0 to 255.
    #[test]
    fn frames_to_peers_that_may_be_legacy_avoid_the_sizes_they_misread() {
        let overhead = entry(0, 20_000).len() - 20_000;
        for size in [19_967, 19_968, 20_000, 20_222, 20_223, 20_224] {
            let entry = entry(0, size - overhead);
            assert_eq!(entry.len(), size);
            for shared in [false, true] {
                let mut outbox = Outbox::new(Framing::Stream);
                if shared {
                    outbox.push_shared(&Entry::new(entry.clone()), false)
                } else {
                    push(&mut outbox, &entry)
                }
                let (stubs, frames) = read(&take_all(&mut outbox));
                assert_eq!((stubs.len(), frames.len()), (1, 1));
                assert!(!frame::is_ambiguous_for_legacy(frames[0].0), "{} of {size}", frames[0].0);

                let mut outbox = Outbox::new(Framing::Stream);
                outbox.set_avoid_legacy_sizes(false);
                push(&mut outbox, &entry);
                assert_eq!(read(&take_all(&mut outbox)).1[0].0, size, "a current peer needs no padding");

                // Noise, which goes plain to a compressing peer as well.
                let mut noise = vec![0; size - overhead];
                Rng::new(size as u64).fill(&mut noise);
                let mut bytes = Vec::new();
                let pack = MessagePack { stub_id: 1, msg_type: 100, body: &noise, ..Default::default() };
                write_entry(&mut bytes, &pack);
                let mut outbox = Outbox::new(Framing::Stream);
                outbox.set_compress();
                if shared {
                    outbox.push_shared(&Entry::new(bytes), false)
                } else {
                    push(&mut outbox, &bytes)
                }
                let (_, frames) = read(&take_all(&mut outbox));
                assert!(!frame::is_ambiguous_for_legacy(frames[0].0), "{} of {size} compressed", frames[0].0);
            }
        }
    }

    // Spec §2.4 and architecture: compression is done once per distinct run, and only where it pays.
    #[test]
    fn shared_entries_are_compressed_once_for_all_peers() {
        let mut repetitive = Vec::new();
        let body = vec![7; 20_000];
        let pack = MessagePack { stub_id: 1, msg_type: 8, body: &body, ..Default::default() };
        assert!(entry_len(&pack) > 20_000);
        write_entry(&mut repetitive, &pack);
        let shared = Entry::new(repetitive);
        let mut sent = Vec::new();
        for _ in 0..3 {
            let mut outbox = Outbox::new(Framing::Stream);
            outbox.set_compress();
            push(&mut outbox, &entry(4, 3));
            outbox.push_shared(&shared, false);
            push(&mut outbox, &entry(5, 3));
            let bytes = take_all(&mut outbox);
            let (stubs, frames) = read(&bytes);
            assert_eq!(stubs, [5, 1, 6]);
            assert_eq!(frames.iter().map(|(_, compression)| *compression).collect::<Vec<_>>(), [0, 1, 0]);
            assert!(frames[1].0 < 2_000, "the block is small");
            sent.push(bytes);
        }
        assert!(sent.windows(2).all(|pair| pair[0] == pair[1]));
        assert!(shared.snappy.get().is_some(), "the block is kept with the entry");
    }

    #[test]
    fn incompressible_frames_go_plain_to_a_compressing_peer() {
        let mut noise = vec![0; 60_000];
        Rng::new(1).fill(&mut noise);
        let mut bytes = Vec::new();
        write_entry(&mut bytes, &MessagePack { stub_id: 1, msg_type: 8, body: &noise, ..Default::default() });
        let mut outbox = Outbox::new(Framing::Stream);
        outbox.set_compress();
        outbox.push_shared(&Entry::new(bytes.clone()), false);
        push(&mut outbox, &bytes);
        let (_, frames) = read(&take_all(&mut outbox));
        assert_eq!(frames.iter().map(|(_, compression)| *compression).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn control_bytes_go_between_frames() {
        let mut outbox = Outbox::new(Framing::WebSocket);
        push(&mut outbox, &entry(0, 10));
        outbox.push_control(&[0x8A, 0]);
        push(&mut outbox, &entry(1, 10));
        let bytes = take_all(&mut outbox);
        let first = 2 + usize::from(bytes[1]);
        assert_eq!(bytes[first..first + 2], [0x8A, 0]);
        assert_eq!(bytes[first + 2], 0x82);
    }

    #[test]
    fn a_drained_outbox_keeps_little_memory_and_needs_no_more() {
        let mut outbox = Outbox::new(Framing::Stream);
        for number in 0..3_000 {
            push(&mut outbox, &entry(number, 100));
        }
        take_all(&mut outbox);
        let shared = Entry::new(entry(0, 500));
        for _ in 0..3 {
            outbox.push_shared(&shared, false);
            take_all(&mut outbox);
        }
        let kept = outbox.heap_bytes();
        assert!(kept <= 600, "{kept} bytes kept");
        for _ in 0..100 {
            outbox.push_shared(&shared, false);
            take_all(&mut outbox);
            assert_eq!(outbox.heap_bytes(), kept, "steady state allocates nothing");
        }
    }

    #[test]
    fn a_reader_that_never_drains_does_not_grow_the_buffer() {
        let mut outbox = Outbox::new(Framing::Stream);
        let entry = entry(0, 1_000);
        for _ in 0..40 {
            push(&mut outbox, &entry);
        }
        for _ in 0..5_000 {
            push(&mut outbox, &entry);
            let written = take(&mut outbox, 1_015).len();
            assert_eq!(written, 1_015);
        }
        assert!(outbox.heap_bytes() < 8 * COMPACT_BYTES, "{} bytes", outbox.heap_bytes());
    }
}
