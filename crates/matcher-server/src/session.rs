//! The stream of notifications of one server: numbered, bounded, resumable.

use std::collections::{HashMap, VecDeque};

use throng_matcher::ServerNumber;
use throng_wire::matcher::{Header, Kind};

/// Longest body of a notify frame, unless one entry alone is longer.
const FRAME_BYTES_MAX: usize = 256 << 10;
const FRAME_ENTRIES_MAX: u64 = 1_024;
/// Limits of what waits for a destination before it counts as lagging.
const QUEUE_BYTES_MAX: usize = 16 << 20;
const QUEUE_ENTRIES_MAX: u64 = 100_000;
/// Bytes up to which the memory of what waits is doubled, and that what was sent or replaced keeps
/// of it when it would grow.
const GROWTH_BYTES_MAX: usize = 1 << 20;
/// Limits of what is kept for a resumption.
const KEPT_BYTES_MAX: usize = 4 << 20;
const KEPT_MS: u64 = 10_000;

/// Some entries of a stream, for subscribers in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The stream they belong to; a new one begins at 1 after a gap.
    pub epoch: u64,
    /// Number of the last entry.
    pub seq: u64,
    /// The entries, encoded as the body of a notify frame.
    pub body: Vec<u8>,
}

/// Takes batches, on the matcher's thread: must not block.
pub type Sink = Box<dyn FnMut(Batch) -> Taken + Send>;

/// Answer of a [`Sink`] to a batch, which it has taken unless it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It takes another.
    More,
    /// It takes the next after [`Handle::resume`](crate::Handle::resume).
    Full,
    /// It wants no more; the subscription ends.
    Gone,
}

/// Reader of a stream.
pub(crate) enum Reader {
    Nobody,
    Connection(usize),
    /// Its number, and whether it waits to be resumed.
    Sink {
        sink: Sink,
        id: u64,
        full: bool,
    },
}

/// The stream of one server.
pub(crate) struct Session {
    pub(crate) srv: String,
    /// Its number in the matcher.
    pub(crate) server: ServerNumber,
    pub(crate) epoch: u64,
    pub(crate) reader: Reader,
    /// Number of the last entry that was queued.
    last: u64,
    /// Entries that were not sent, from `head` on, with those that were replaced.
    pending: Vec<u8>,
    head: usize,
    /// Each of them, in order.
    ends: VecDeque<Entry>,
    /// Position of the first of them in the stream, replaced ones counted.
    base: u64,
    /// Number of those that were replaced, and their bytes.
    replaced: (usize, usize),
    /// Positions of those that a later one may replace.
    by_key: HashMap<u64, u64>,
    /// True if the hub looks at it at the end of this batch.
    pub(crate) fresh: bool,
    /// True if the hub feeds its sink when the journal is durable.
    pub(crate) sealing: bool,
    /// A sink may have what is before this position,
    open: u64,
    /// and before these when the journal is durable up to a mark.
    sealed: VecDeque<(u64, u64)>,
    /// Durable with this mark are all frames that were written for a connection.
    framed: u64,
    /// Frames that were sent and not acknowledged: last number, time, bytes.
    sent: VecDeque<(u64, u64, Vec<u8>)>,
    sent_bytes: usize,
    /// Bytes of memory of the frames in `sent`.
    sent_memory: usize,
    /// Greatest number that is not in `sent` any more.
    forgotten: u64,
    spare: Vec<Vec<u8>>,
}

/// An entry that waits.
struct Entry {
    /// Place where its bytes end.
    end: u32,
    /// Number for collapsing; 0 for none.
    key: u64,
    is_replaced: bool,
}

/// Result of queueing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    Added,
    Replaced,
    /// The destination is too slow: everything was dropped and a new epoch begun.
    Lagging,
}

impl Session {
    pub(crate) fn new(srv: String, server: ServerNumber, epoch: u64) -> Session {
        Session {
            srv,
            server,
            epoch,
            reader: Reader::Nobody,
            last: 0,
            pending: Vec::new(),
            head: 0,
            ends: VecDeque::new(),
            base: 0,
            replaced: (0, 0),
            by_key: HashMap::new(),
            fresh: false,
            sealing: false,
            open: 0,
            sealed: VecDeque::new(),
            framed: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            sent_memory: 0,
            forgotten: 0,
            spare: Vec::new(),
        }
    }

    /// Number of the first entry that will be sent.
    pub(crate) fn next(&self) -> u64 {
        self.last + 1 - self.waiting()
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.waiting() > 0
    }

    fn waiting(&self) -> u64 {
        (self.ends.len() - self.replaced.0) as u64
    }

    /// Queues an entry. One of the same `collapse` that was not sent goes for it; the numbers
    /// behind that one move up.
    pub(crate) fn push(&mut self, entry: &[u8], collapse: u64) -> Queued {
        let earlier = if collapse == 0 { None } else { self.by_key.get(&collapse).copied() };
        if let Some(at) = earlier {
            let at = (at - self.base) as usize;
            let size = self.size(at);
            self.ends[at].is_replaced = true;
            self.replaced = (self.replaced.0 + 1, self.replaced.1 + size);
        }
        let bytes = self.pending.len() - self.head - self.replaced.1;
        // A reader in this process that is full has not read what is kept for its resumption.
        let unread = if matches!(self.reader, Reader::Sink { full: true, .. }) { self.sent_bytes } else { 0 };
        if unread + bytes + entry.len() > QUEUE_BYTES_MAX || self.waiting() >= QUEUE_ENTRIES_MAX {
            self.reset();
            return Queued::Lagging;
        }
        // As much is moved as was replaced or sent since the last time: constant for each.
        if self.head + self.replaced.1 > bytes + FRAME_BYTES_MAX || self.replaced.0 > self.ends.len() / 2 {
            self.compact();
        }
        self.make_room(entry.len());
        if collapse != 0 {
            self.by_key.insert(collapse, self.base + self.ends.len() as u64);
        }
        self.pending.extend_from_slice(entry);
        let end = self.pending.len() as u32;
        self.ends.push_back(Entry { end, key: collapse, is_replaced: false });
        if earlier.is_some() {
            return Queued::Replaced;
        }
        self.last += 1;
        Queued::Added
    }

    /// Makes room for an entry. Memory is doubled only while it is little. Then all that may ever
    /// wait is reserved: the system gives memory when it is used, while each move to a larger place
    /// would leave a smaller one behind, which the allocator keeps for a while.
    fn make_room(&mut self, len: usize) {
        let has_room = |pending: &Vec<u8>| pending.capacity() - pending.len() >= len;
        if !has_room(&self.pending) && self.head + self.replaced.1 >= GROWTH_BYTES_MAX {
            self.compact();
        }
        if !has_room(&self.pending) {
            let doubled = 2 * self.pending.len();
            let most = if doubled > GROWTH_BYTES_MAX { QUEUE_BYTES_MAX + GROWTH_BYTES_MAX } else { doubled };
            self.pending.reserve_exact(len.max(most.saturating_sub(self.pending.len())));
        }
    }

    /// Place where the bytes of an entry begin.
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(self.head, |before| self.ends[before].end as usize)
    }

    fn size(&self, at: usize) -> usize {
        self.ends[at].end as usize - self.start(at)
    }

    /// Lets go of the bytes that were sent or replaced.
    fn compact(&mut self) {
        let (mut start, mut kept) = (self.head, 0);
        let mut gone = Vec::new();
        for (at, entry) in self.ends.iter_mut().enumerate() {
            let end = entry.end as usize;
            if entry.is_replaced {
                gone.push(self.base + at as u64);
            } else {
                self.pending.copy_within(start..end, kept);
                kept += end - start;
                entry.end = kept as u32;
                if entry.key != 0 {
                    self.by_key.insert(entry.key, self.base + (at - gone.len()) as u64);
                }
            }
            start = end;
        }
        self.pending.truncate(kept);
        self.ends.retain(|entry| !entry.is_replaced);
        let moved = |limit: &mut u64| *limit -= gone.partition_point(|at| at < limit) as u64;
        moved(&mut self.open);
        self.sealed.iter_mut().for_each(|(_, limit)| moved(limit));
        (self.head, self.replaced) = (0, (0, 0));
    }

    /// Begins a new epoch: what was queued and kept is gone, and the reader will see that.
    pub(crate) fn reset(&mut self) {
        self.epoch += 1;
        self.last = 0;
        // With their memory: the one who fell behind may never read again.
        self.pending = Vec::new();
        self.ends = VecDeque::new();
        self.by_key = HashMap::new();
        self.sealed.clear();
        self.sent = VecDeque::new();
        self.spare = Vec::new();
        (self.head, self.base, self.replaced, self.open) = (0, 0, (0, 0), 0);
        (self.sent_bytes, self.sent_memory, self.forgotten) = (0, 0, 0);
    }

    /// Bytes of memory that the stream has.
    pub(crate) fn memory(&self) -> usize {
        let spare: usize = self.spare.iter().map(Vec::capacity).sum();
        let entries = self.ends.capacity() * size_of::<Entry>();
        self.pending.capacity() + self.sent_memory + spare + entries
    }

    /// Queued entries may go to a sink when the journal is durable up to `mark`.
    pub(crate) fn seal(&mut self, mark: u64) {
        let limit = self.base + self.ends.len() as u64;
        match self.sealed.back_mut() {
            Some((last, sealed)) if *last == mark => *sealed = limit,
            _ => self.sealed.push_back((mark, limit)),
        }
    }

    /// Returns whether some of what is queued waits for the journal.
    pub(crate) fn is_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// The next frame's worth of the entries before position `limit`: number of the last, body, how
    /// many.
    fn take(&mut self, limit: u64) -> Option<(u64, Vec<u8>, u64)> {
        let within = self.ends.len().min(limit.saturating_sub(self.base) as usize);
        let (mut taken, mut entries, mut bytes) = (0, 0, 0);
        while taken < within {
            if !self.ends[taken].is_replaced {
                let size = self.size(taken);
                if entries == FRAME_ENTRIES_MAX || entries > 0 && bytes + size > FRAME_BYTES_MAX {
                    break;
                }
                (entries, bytes) = (entries + 1, bytes + size);
            }
            taken += 1;
        }
        if entries == 0 {
            return None;
        }
        let seq = self.next() + entries - 1;
        let mut body = self.spare.pop().unwrap_or_default();
        // It is kept for a while: with little more memory than it needs.
        if bytes == self.pending.len() && self.pending.capacity() <= bytes + bytes / 4 {
            std::mem::swap(&mut body, &mut self.pending);
        } else {
            body.reserve_exact(bytes);
            for at in (0..taken).filter(|at| !self.ends[*at].is_replaced) {
                body.extend_from_slice(&self.pending[self.start(at)..self.ends[at].end as usize]);
            }
        }
        for at in 0..taken {
            let start = self.head;
            let Some(entry) = self.ends.pop_front() else { break };
            self.head = entry.end as usize;
            if entry.is_replaced {
                self.replaced = (self.replaced.0 - 1, self.replaced.1 - (self.head - start));
            } else if entry.key != 0 {
                debug_assert_eq!(self.by_key.get(&entry.key), Some(&(self.base + at as u64)));
                self.by_key.remove(&entry.key);
            }
        }
        self.base += taken as u64;
        if self.ends.is_empty() {
            self.pending.clear();
            self.pending.shrink_to(GROWTH_BYTES_MAX);
            self.head = 0;
        }
        Some((seq, body, entries))
    }

    /// Appends the next notify frame, which is durable with `mark`, to `out` and keeps it for a
    /// resumption. Its entries; `None` when there was nothing.
    pub(crate) fn write_frame(&mut self, now: u64, mark: u64, out: &mut Vec<u8>) -> Option<u64> {
        let (seq, body, entries) = self.take(u64::MAX)?;
        self.framed = mark;
        Header { kind: Kind::Notify, id: seq, ..Header::default() }.write(out, &body);
        self.keep(now, seq, body);
        Some(entries)
    }

    /// Gives what is queued and durable to the sink, as far as it takes it, and says of each batch
    /// how many entries it has. `false` when the sink is gone.
    pub(crate) fn feed_sink(&mut self, now: u64, durable: u64, mut given: impl FnMut(u64)) -> bool {
        while let Some((_, limit)) = self.sealed.pop_front_if(|(mark, _)| *mark <= durable) {
            self.open = limit;
        }
        while !matches!(self.reader, Reader::Sink { full: true, .. }) {
            let Some((seq, body, entries)) = self.take(self.open) else { break };
            given(entries);
            let batch = Batch { epoch: self.epoch, seq, body: body.clone() };
            self.keep(now, seq, body);
            if !self.give(batch) {
                return false;
            }
        }
        true
    }

    /// Begins a new epoch if a sink would get frames now that wait for the journal on their way to
    /// a connection.
    pub(crate) fn change_to_sink(&mut self, durable: u64) {
        if self.framed > durable {
            self.reset();
        }
    }

    /// Gives a batch to the sink. `false` when it is gone.
    pub(crate) fn give(&mut self, batch: Batch) -> bool {
        let Reader::Sink { sink, full, .. } = &mut self.reader else { return true };
        match sink(batch) {
            Taken::More => *full = false,
            Taken::Full => *full = true,
            Taken::Gone => {
                self.reader = Reader::Nobody;
                return false;
            }
        }
        true
    }

    /// A batch without entries, which says where the stream stands.
    pub(crate) fn place(&self) -> Batch {
        Batch { epoch: self.epoch, seq: self.next() - 1, body: Vec::new() }
    }

    fn keep(&mut self, now: u64, seq: u64, body: Vec<u8>) {
        (self.sent_bytes, self.sent_memory) =
            (self.sent_bytes + body.len(), self.sent_memory + body.capacity());
        self.sent.push_back((seq, now, body));
        while let Some((seq, at, _)) = self.sent.front() {
            if self.sent_bytes <= KEPT_BYTES_MAX && now.saturating_sub(*at) <= KEPT_MS {
                break;
            }
            self.forgotten = *seq;
            self.recycle();
        }
    }

    /// The reader has handled everything up to `seq`.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        while let Some((last, ..)) = self.sent.front().filter(|(last, ..)| *last <= seq) {
            self.forgotten = *last;
            self.recycle();
        }
    }

    fn recycle(&mut self) {
        let Some((_, _, mut body)) = self.sent.pop_front() else { return };
        (self.sent_bytes, self.sent_memory) =
            (self.sent_bytes - body.len(), self.sent_memory - body.capacity());
        if self.spare.len() < 4 {
            body.clear();
            self.spare.push(body);
        }
    }

    /// Goes on behind `seq` of `epoch` if all that follows is still here: appends the frames again.
    /// Otherwise it is a gap, and the reader gets a stream from its first entry on: a new one, or
    /// this one if it was never read and the reader comes from an earlier one (0: it is new).
    pub(crate) fn resume(&mut self, epoch: u64, seq: u64, out: &mut Vec<u8>) -> bool {
        if epoch != 0 && epoch != self.epoch && self.next() == 1 {
            return false;
        }
        let whole_frames = seq == self.forgotten || self.sent.iter().any(|(last, ..)| *last == seq);
        let nothing_missed = seq.checked_add(1) == Some(self.next());
        if epoch != self.epoch || !(whole_frames || nothing_missed) {
            self.reset();
            return false;
        }
        self.acknowledge(seq);
        for (last, _, body) in &self.sent {
            Header { kind: Kind::Notify, id: *last, ..Header::default() }.write(out, body);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use throng_stdx::Rng;
    use throng_wire::matcher::{FrameSplit, split};

    use super::*;

    /// Numbers of the last entries, and bodies.
    type Frames = Vec<(u64, Vec<u8>)>;

    fn frames(bytes: &[u8]) -> Frames {
        let (mut at, mut found) = (0, Vec::new());
        while let Ok(FrameSplit::Whole { header, body, used }) = split(&bytes[at..], usize::MAX >> 1) {
            found.push((header.id, body.to_vec()));
            at += used;
        }
        found
    }

    #[test]
    fn frames_are_cut_by_bytes_and_entries_and_lose_nothing() {
        let mut session = Session::new("s".into(), ServerNumber::default(), 1);
        let mut all = Vec::new();
        for index in 0..3_000_u32 {
            let entry = vec![index as u8; 1 + (index as usize * 37) % 600];
            all.extend_from_slice(&entry);
            assert_eq!(session.push(&entry, 0), Queued::Added);
        }
        let mut out = Vec::new();
        let mut count = 0;
        while let Some(entries) = session.write_frame(0, 0, &mut out) {
            count += entries;
        }
        assert_eq!(count, 3_000);
        let frames = frames(&out);
        assert_eq!(frames.last().unwrap().0, 3_000);
        assert!(frames.iter().all(|(_, body)| body.len() <= FRAME_BYTES_MAX));
        assert_eq!(frames.concat_bodies(), all);
    }

    trait ConcatBodies {
        fn concat_bodies(&self) -> Vec<u8>;
    }
    impl ConcatBodies for Vec<(u64, Vec<u8>)> {
        fn concat_bodies(&self) -> Vec<u8> {
            self.iter().flat_map(|(_, body)| body.clone()).collect()
        }
    }

    #[test]
    fn a_resumption_repeats_exactly_what_was_not_acknowledged() {
        let mut session = Session::new("s".into(), ServerNumber::default(), 7);
        let mut out = Vec::new();
        for entry in [&b"a"[..], b"b", b"c"] {
            session.push(entry, 0);
            session.write_frame(0, 0, &mut out);
        }
        session.acknowledge(1);
        session.push(b"d", 0);
        out.clear();
        assert!(session.resume(7, 2, &mut out));
        session.write_frame(0, 0, &mut out);
        assert_eq!(frames(&out), [(3, b"c".to_vec()), (4, b"d".to_vec())]);
        out.clear();
        assert!(!session.resume(7, 1, &mut out), "acknowledged frames are gone: a gap");
        assert_eq!((session.epoch, session.next()), (8, 1));
        assert!(!session.resume(8, u64::MAX, &mut out), "nothing has that number");
    }

    #[test]
    fn a_stream_that_was_never_read_is_kept_for_the_reader_of_an_earlier_one() {
        for (epoch, kept) in [(6, true), (0, false)] {
            let mut session = Session::new("s".into(), ServerNumber::default(), 7);
            session.push(b"a", 0);
            let mut out = Vec::new();
            assert!(!session.resume(epoch, 3, &mut out), "it has missed something");
            assert_eq!((session.epoch == 7, session.has_pending()), (kept, kept), "epoch {epoch}");
            session.push(b"b", 0);
            session.write_frame(0, 0, &mut out);
            assert!(!session.resume(epoch, 3, &mut Vec::new()));
            assert!(session.epoch > 7 && !session.has_pending(), "it was read since");
        }
    }

    #[test]
    fn a_slow_reader_costs_bounded_memory_and_learns_of_the_gap() {
        let mut session = Session::new("s".into(), ServerNumber::default(), 1);
        let entry = vec![0; 1 << 20];
        let outcomes: Vec<Queued> = (0..17).map(|_| session.push(&entry, 0)).collect();
        assert_eq!(outcomes.last(), Some(&Queued::Lagging));
        assert_eq!((session.epoch, session.waiting()), (2, 0));
    }

    #[test]
    fn a_reader_that_never_reads_costs_little_more_than_what_waits_for_it() {
        const ENTRIES_BYTES: usize = (QUEUE_ENTRIES_MAX as usize).next_power_of_two() * size_of::<Entry>();
        const MOST: usize = QUEUE_BYTES_MAX + ENTRIES_BYTES + 3 * GROWTH_BYTES_MAX;
        for size in [200, 60_000, 1 << 20] {
            let mut session = Session::new("s".into(), ServerNumber::default(), 1);
            let mut taken = 0;
            let sink: Sink = Box::new(move |batch| {
                taken += batch.body.len();
                if taken < 1 << 20 { Taken::More } else { Taken::Full }
            });
            session.reader = Reader::Sink { sink, id: 0, full: false };
            let (entry, mut most, mut gaps) = (vec![7; size], 0, 0);
            for step in 0..(100 << 20) / size as u64 {
                if session.push(&entry, 0) == Queued::Lagging {
                    assert!(session.memory() < 4 << 10, "a gap frees what was there");
                    gaps += 1;
                }
                session.seal(step);
                assert!(session.feed_sink(0, step, |_| ()));
                most = most.max(session.memory());
            }
            assert!(
                gaps > 2 && most > QUEUE_BYTES_MAX / 2,
                "entries of {size} bytes: {gaps} gaps, {most} bytes"
            );
            assert!(most < MOST, "entries of {size} bytes: {most} bytes, over {MOST}");
        }
    }

    #[test]
    fn a_queue_that_fills_leaves_little_memory_behind() {
        for size in [200, 60_000, 1 << 20] {
            let mut session = Session::new("s".into(), ServerNumber::default(), 1);
            let (entry, mut left, mut before) = (vec![7; size], 0, 0);
            while session.push(&entry, 0) == Queued::Added {
                let now = session.pending.capacity();
                left += if now == before { 0 } else { before };
                before = now;
            }
            assert!(left <= 3 * GROWTH_BYTES_MAX, "entries of {size} bytes: {left} bytes");
        }
    }

    #[test]
    fn later_values_replace_earlier_ones_that_were_not_sent() {
        let mut session = Session::new("s".into(), ServerNumber::default(), 1);
        for (entry, key) in [(&b"x1"[..], 5), (b"join", 0), (b"y1", 6), (b"x2", 5)] {
            session.push(entry, key);
        }
        let mut out = Vec::new();
        session.write_frame(0, 0, &mut out);
        assert_eq!(frames(&out), [(3, b"joiny1x2".to_vec())]);
    }

    /// The stream as lists: what waits with its key, how many of it are open, and how many more
    /// with each mark.
    #[derive(Default)]
    struct Model {
        waiting: Vec<(Vec<u8>, u64)>,
        open: usize,
        sealed: Vec<(u64, usize)>,
        last: u64,
    }

    impl Model {
        fn push(&mut self, entry: &[u8], key: u64) -> Queued {
            let earlier = self.waiting.iter().position(|(_, own)| key != 0 && *own == key);
            if let Some(at) = earlier {
                self.waiting.remove(at);
                self.open -= usize::from(at < self.open);
                self.sealed.iter_mut().for_each(|(_, limit)| *limit -= usize::from(at < *limit));
            } else {
                self.last += 1;
            }
            self.waiting.push((entry.to_vec(), key));
            if earlier.is_some() { Queued::Replaced } else { Queued::Added }
        }

        /// Number of the last and bytes of the next frame of the first `limit`.
        fn take(&mut self, limit: usize) -> Option<(u64, Vec<u8>)> {
            let limit = limit.min(self.waiting.len());
            let (mut count, mut bytes) = (0, 0);
            while count < limit.min(FRAME_ENTRIES_MAX as usize)
                && (count == 0 || bytes + self.waiting[count].0.len() <= FRAME_BYTES_MAX)
            {
                bytes += self.waiting[count].0.len();
                count += 1;
            }
            let seq = self.last - self.waiting.len() as u64 + count as u64;
            let taken: Vec<u8> = self.waiting.drain(..count).flat_map(|(entry, _)| entry).collect();
            self.open = self.open.saturating_sub(count);
            self.sealed.iter_mut().for_each(|(_, limit)| *limit = limit.saturating_sub(count));
            (count > 0).then_some((seq, taken))
        }
    }

    #[test]
    fn a_stream_is_what_lists_would_make_of_it() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let (mut session, mut model) =
                (Session::new("s".into(), ServerNumber::default(), 1), Model::default());
            let (keys, mark_every) = (1 + rng.below(40), 2 + rng.below(30));
            let got: Arc<Mutex<Frames>> = Arc::default();
            let given = Arc::clone(&got);
            let sink: Sink = Box::new(move |batch| {
                given.lock().unwrap().push((batch.seq, batch.body));
                Taken::More
            });
            session.reader = Reader::Sink { sink, id: 0, full: false };
            for step in 0..3_000_u64 {
                let len = if rng.below(50) == 0 { 60_000 } else { 1 + rng.below(300) };
                let entry = vec![step as u8; len as usize];
                let key = if rng.below(3) == 0 { 0 } else { 1 + rng.below(keys) };
                assert_eq!(session.push(&entry, key), model.push(&entry, key), "seed {seed}");
                if rng.below(mark_every) == 0 {
                    session.seal(step);
                    model.sealed.push((step, model.waiting.len()));
                }
                if rng.below(20) == 0 {
                    // As for a connection, which waits for the disk elsewhere.
                    let mut out = Vec::new();
                    session.write_frame(0, 0, &mut out);
                    assert_eq!(frames(&out), Vec::from_iter(model.take(usize::MAX)), "seed {seed}");
                }
                if rng.below(20) == 0 {
                    let durable = step.saturating_sub(rng.below(100));
                    assert!(session.feed_sink(0, durable, |_| ()));
                    let open =
                        model.sealed.iter().rfind(|(mark, _)| *mark <= durable).map(|(_, limit)| *limit);
                    model.open = open.unwrap_or(model.open);
                    model.sealed.retain(|(mark, _)| *mark > durable);
                    let mut wanted = Vec::new();
                    while let Some(frame) = model.take(model.open) {
                        wanted.push(frame);
                    }
                    assert_eq!(std::mem::take(&mut *got.lock().unwrap()), wanted, "seed {seed}");
                }
                assert_eq!(session.next(), model.last + 1 - model.waiting.len() as u64);
            }
        }
    }

    #[test]
    fn what_is_replaced_costs_no_memory() {
        let mut session = Session::new("s".into(), ServerNumber::default(), 1);
        let entry = vec![7; 1 << 10];
        session.push(&entry, 0);
        for step in 0..200_000_u64 {
            assert_ne!(session.push(&entry, 1 + step % 100), Queued::Lagging);
        }
        assert_eq!(session.waiting(), 101);
        assert!(session.pending.capacity() < 2 << 20, "{} bytes", session.pending.capacity());
    }
}
