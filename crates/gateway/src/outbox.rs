//! Output queue of one peer: frames built in place around shared bytes.
//!
//! ```text
//! own       | header | inline entries ... | header |          (a buffer in chunks)
//! segments  | own ----------------------> | own -> | shared | shared | ...
//! frame       closed, tag written           open: grows until drained or full
//! ```
//!
//! Small messages are appended to `own`; fan-out entries are shared by reference, so a delivery to
//! a thousand peers copies nothing. The header of a frame (WebSocket header and tag) is reserved
//! when the frame opens and written when it closes, because only then the size is known. Everything
//! queued between two writes of the transport leaves as one frame (spec §2.3), and nothing is held
//! back (weakness A-12).

mod backlog;
mod entry;
mod frames;
mod own;
mod spares;
#[cfg(test)]
mod tests;

use core::mem;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

pub use backlog::Backlog;
use entry::Form;
pub use entry::SharedFrame;
pub(crate) use entry::{Entry, EntryBytes};
use frames::OpenFrame;
use own::{CHUNK_BYTES, Own};
pub(crate) use spares::Spares;
use throng_wire::frame::{self, Compression, PACKET_BYTES_SEND_MAX};

/// How a connection carries frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// A byte stream: frames follow each other (TCP, TLS, KCP).
    Stream,
    /// WebSocket: each frame is one binary message. Its header is part of the bytes, so drivers
    /// write plain bytes either way.
    WebSocket,
    /// Packets of which some may get lost: small state updates have frames of their own, and what
    /// [`Outbox::gather`] gives is either made of these or of everything else, see
    /// [`Outbox::may_get_lost`].
    Packets,
}

/// Bytes on their way to one peer. Owned by the shard; the driver drains it.
#[derive(Debug)]
pub struct Outbox {
    /// Headers and inline entries of all frames, in order.
    own: Own,
    segments: VecDeque<Segment>,
    /// The frame that still takes entries; always the last one.
    open: Option<OpenFrame>,
    /// Bytes not yet taken by the transport, reserved headers included.
    queued: usize,
    /// Those of them that are in shared entries.
    shared: usize,
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
    /// `start..end` of a chunk of `own`.
    Own { chunk: u32, start: u32, end: u32 },
    /// Part of a shared entry, from `start` on.
    Shared { entry: Arc<Entry>, start: u32, form: Form },
}

/// Most slices handed out by one `gather`: Linux takes no more in one call.
const SLICES_MAX: usize = 1024;
/// Buffers above this are given back when a drained connection has become quiet. Keeps an idle
/// connection, with the header and segment of one frame, well below 1 KiB without allocating for
/// the next frame.
const KEEP_BYTES: usize = 256;
const KEEP_SEGMENTS: usize = 8;
/// From here on a buffer grows by quarters: a thousand readers that fall behind hold what waits for
/// them, not twice that.
const SLOW_GROWTH_BYTES: usize = 16 << 10;
/// Below this, compressing a shared entry on its own costs more in tags than it saves.
const SNAPPY_ALONE_BYTES: usize = 256;
/// Entries that may get lost, and bytes of a frame of such: with its tag, and what a transport
/// adds, it fits a datagram on every usual path. A longer one would be lost whenever one of its
/// parts is.
pub(crate) const LOOSE_BYTES_MAX: usize = 1_150;
/// Reliable frames are written together up to about this size.
const RUN_BYTES: usize = 64 << 10;
/// Up to this size copying a shared entry costs less than a reference to it: the count, the
/// segment, and a slice of the system call that writes it.
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
            own: Own::default(),
            segments: VecDeque::new(),
            open: None,
            queued: 0,
            shared: 0,
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
    /// May stop after a thousand slices, and with [`Framing::Packets`] where bytes begin that
    /// travel differently. Whoever has written all of it asks again: after
    /// [`Shard::handle_written`](crate::Shard::handle_written) the connection is polled as writable
    /// once more.
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

    /// What [`Self::gather`] would give first, if that is a frame of at least `len_min` bytes with
    /// one shared entry and nothing else. Closes the open frame. Streams only: the header of a
    /// WebSocket message is its connection's affair.
    pub fn shared_frame(&mut self, len_min: usize) -> Option<SharedFrame> {
        // A frame takes two segments then; looking at the bytes instead of keeping track of borders
        // is as exact.
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
    /// Drivers call [`Shard::handle_written`](crate::Shard::handle_written) instead, which also
    /// resumes what waited for room.
    pub fn advance(&mut self, written: usize) {
        self.forget(written);
        if self.segments.is_empty() {
            self.release();
        }
    }

    /// As [`advance`](Self::advance); a buffer that is not needed any more goes to those of other
    /// outboxes.
    pub(crate) fn advance_with(&mut self, written: usize, spares: &mut Spares) {
        self.forget(written);
        if self.segments.is_empty() {
            let used = self.own.tail.len();
            self.own.clear();
            spares.take(&mut self.own.tail);
            self.shrink(used);
        }
    }

    fn forget(&mut self, mut written: usize) {
        debug_assert!(written <= self.queued, "more written than queued");
        self.queued -= written.min(self.queued);
        self.advance_runs(written);
        while written > 0 {
            let Some(front) = self.segments.front_mut() else { break };
            let len = front.len();
            if front.is_shared() {
                self.shared -= written.min(len);
            }
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
        if self.own.has_full_chunks() {
            let left = self.segments.iter().find_map(|segment| match segment {
                Segment::Own { chunk, .. } => Some(*chunk),
                Segment::Shared { .. } => None,
            });
            self.own.free_before(left.unwrap_or(self.own.tail_number()));
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
        self.own.begin_frame();
        let start = self.own.tail.len();
        self.own.tail.extend_from_slice(bytes);
        self.push_own(start);
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
        (self.queued, self.shared) = (0, 0);
        self.own = Own::default();
    }

    /// The peer has sent Snappy: compress from the next frame on.
    pub(crate) fn set_compress(&mut self) {
        self.compress = true;
    }

    /// Whether frame sizes that legacy peers misread are to be avoided (until the peer is known to
    /// be current).
    pub(crate) fn set_avoid_legacy_sizes(&mut self, avoid: bool) {
        self.avoid_legacy_sizes = avoid;
    }

    /// Frames closed since the last call.
    pub(crate) fn take_packets(&mut self) -> u32 {
        mem::take(&mut self.packets)
    }

    /// Heap bytes held by the buffers; shared entries do not count.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.own.heap_bytes() + self.segments.capacity() * mem::size_of::<Segment>()
    }

    /// Bytes of shared entries that wait to be written.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.shared
    }

    /// Queues the end of the last chunk, from `start` on.
    fn push_own(&mut self, start: usize) {
        let (chunk, end) = (self.own.tail_number(), self.own.tail.len() as u32);
        self.segments.push_back(Segment::Own { chunk, start: start as u32, end });
    }

    /// Appends an entry of `len` bytes that `write` produces.
    ///
    /// # Panics
    /// In debug builds when `write` appends another number of bytes, or the entry fits no packet.
    #[inline]
    pub(crate) fn push_inline(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(len <= PACKET_BYTES_SEND_MAX);
        self.make_room(len, false);
        let own = &mut self.own.tail;
        let start = own.len();
        if own.capacity() - start < len && start >= SLOW_GROWTH_BYTES {
            own.reserve_exact(len.max(start / 4));
        }
        write(own);
        let end = own.len();
        debug_assert_eq!(end, start + len, "an entry has another length than announced");
        self.queued += len;
        if let Some(open) = &mut self.open {
            open.body += len;
        }
        // The chunk is the last one: the frame is open.
        match self.segments.back_mut() {
            Some(Segment::Own { end: last, .. }) if *last as usize == start => *last = end as u32,
            _ => self.push_own(start),
        }
    }

    /// Appends a shared entry, a large one without copying it; `loose` is for those that may get
    /// lost.
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
        self.shared += len;
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

    /// Gives a shared entry a frame of its own, so that the block compressed for one peer serves
    /// all. False when compression does not pay or gives a size that a legacy peer misreads; then
    /// nothing has changed.
    fn push_shared_compressed(&mut self, entry: &Arc<Entry>, loose: bool) -> bool {
        let body = entry.snappy().len();
        if body == 0 || (self.avoid_legacy_sizes && frame::is_ambiguous_for_legacy(body)) {
            return false;
        }
        self.close_frame();
        self.open_frame(loose);
        self.segments.push_back(Segment::Shared { entry: Arc::clone(entry), start: 0, form: Form::Snappy });
        self.queued += body;
        self.shared += body;
        if let Some(open) = &mut self.open {
            open.body = body;
        }
        self.finish_frame(Compression::Snappy);
        true
    }

    /// Everything is written: start over, keeping a little memory for the next frame.
    fn release(&mut self) {
        debug_assert!(self.open.is_none() && self.queued == 0);
        let used = self.own.tail.len();
        self.own.clear();
        self.shrink(used);
    }

    /// Gives back memory that is far more than the `used` bytes of late, or than any connection
    /// should keep.
    fn shrink(&mut self, used: usize) {
        let own = &mut self.own.tail;
        if own.capacity() > CHUNK_BYTES {
            *own = Vec::new();
        } else if own.capacity() > KEEP_BYTES && used < own.capacity() / 4 {
            own.shrink_to(KEEP_BYTES.max(used * 2));
        }
        if self.segments.capacity() > KEEP_SEGMENTS && used < CHUNK_BYTES {
            self.segments.shrink_to(KEEP_SEGMENTS);
        }
    }
}

impl Segment {
    fn bytes<'a>(&'a self, own: &'a Own) -> &'a [u8] {
        match self {
            Self::Own { chunk, start, end } => &own.chunk(*chunk)[*start as usize..*end as usize],
            Self::Shared { entry, start, form } => &entry.form(*form)[*start as usize..],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Own { start, end, .. } => (end - start) as usize,
            Self::Shared { entry, start, form } => entry.form(*form).len() - *start as usize,
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    fn skip(&mut self, bytes: usize) {
        match self {
            Self::Own { start, .. } | Self::Shared { start, .. } => *start += bytes as u32,
        }
    }
}
