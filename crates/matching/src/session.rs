//! The stream of notifications of one server: numbered, bounded, resumable.

use std::collections::VecDeque;

use throng_wire::matcher::{Header, Kind};

/// Longest body of a notify frame, unless one entry alone is longer.
const FRAME_BYTES_MAX: usize = 256 << 10;
const FRAME_ENTRIES_MAX: u64 = 1_024;
/// What may wait for a destination before it counts as lagging.
const QUEUE_BYTES_MAX: usize = 16 << 20;
const QUEUE_ENTRIES_MAX: u64 = 100_000;
/// What is kept for a resumption.
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

/// What a [`Sink`] says to a batch, which it has taken unless it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It takes another.
    More,
    /// It takes the next after [`Handle::resume`](crate::Handle::resume).
    Full,
    /// It wants no more; the subscription ends.
    Gone,
}

/// Who reads a stream.
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
    pub(crate) server: u32,
    pub(crate) epoch: u64,
    pub(crate) reader: Reader,
    /// Number of the last entry that was queued.
    last: u64,
    /// Entries that were not sent.
    pending: Vec<u8>,
    /// Where each of them ends, and what it may be replaced by.
    ends: VecDeque<(u32, u64)>,
    /// Whether any of them may be replaced.
    collapses: bool,
    /// Whether the hub looks at it at the end of this batch.
    pub(crate) fresh: bool,
    /// Whether the hub feeds its sink when the journal is durable.
    pub(crate) sealing: bool,
    /// How many of them a sink may have.
    open: usize,
    /// How many more when the journal is durable up to a mark.
    sealed: VecDeque<(u64, usize)>,
    /// Durable with this mark are all frames that were written for a connection.
    framed: u64,
    /// Frames that were sent and not acknowledged: last number, time, bytes.
    sent: VecDeque<(u64, u64, Vec<u8>)>,
    sent_bytes: usize,
    /// Greatest number that is not in `sent` any more.
    forgotten: u64,
    spare: Vec<Vec<u8>>,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    Added,
    Replaced,
    /// The destination is too slow: everything was dropped and a new epoch begun.
    Lagging,
}

impl Session {
    pub(crate) fn new(srv: String, server: u32, epoch: u64) -> Session {
        Session {
            srv,
            server,
            epoch,
            reader: Reader::Nobody,
            last: 0,
            pending: Vec::new(),
            ends: VecDeque::new(),
            collapses: false,
            fresh: false,
            sealing: false,
            open: 0,
            sealed: VecDeque::new(),
            framed: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            forgotten: 0,
            spare: Vec::new(),
        }
    }

    /// Number of the first entry that will be sent.
    pub(crate) fn next(&self) -> u64 {
        self.last + 1 - self.ends.len() as u64
    }

    pub(crate) fn push(&mut self, entry: &[u8], collapse: u64) -> Queued {
        if collapse != 0 && self.collapses && self.replace(entry, collapse) {
            return Queued::Replaced;
        }
        let over =
            self.pending.len() + entry.len() > QUEUE_BYTES_MAX || self.ends.len() as u64 >= QUEUE_ENTRIES_MAX;
        if over {
            self.reset();
            return Queued::Lagging;
        }
        self.pending.extend_from_slice(entry);
        self.ends.push_back((self.pending.len() as u32, collapse));
        self.collapses |= collapse != 0;
        self.last += 1;
        Queued::Added
    }

    /// Takes out an earlier entry of the same value; the numbers behind it move up, for none of them was sent.
    fn replace(&mut self, entry: &[u8], collapse: u64) -> bool {
        let Some(at) = self.ends.iter().position(|(_, key)| *key == collapse) else { return false };
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].0) as usize;
        let end = self.ends[at].0 as usize;
        self.pending.drain(start..end);
        self.ends.remove(at);
        for (later, _) in self.ends.iter_mut().skip(at) {
            *later -= (end - start) as u32;
        }
        self.each_limit(|limit| *limit -= usize::from(at < *limit));
        self.pending.extend_from_slice(entry);
        self.ends.push_back((self.pending.len() as u32, collapse));
        true
    }

    /// Begins a new epoch: what was queued and kept is gone, and the reader will see that.
    pub(crate) fn reset(&mut self) {
        self.epoch += 1;
        self.last = 0;
        self.pending.clear();
        self.ends.clear();
        self.sealed.clear();
        self.sent.clear();
        self.open = 0;
        (self.sent_bytes, self.forgotten, self.collapses) = (0, 0, false);
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn each_limit(&mut self, change: impl Fn(&mut usize)) {
        change(&mut self.open);
        self.sealed.iter_mut().for_each(|(_, limit)| change(limit));
    }

    /// What is queued may go to a sink when the journal is durable up to `mark`.
    pub(crate) fn seal(&mut self, mark: u64) {
        match self.sealed.back_mut() {
            Some((last, limit)) if *last == mark => *limit = self.ends.len(),
            _ => self.sealed.push_back((mark, self.ends.len())),
        }
    }

    /// Whether some of what is queued waits for the journal.
    pub(crate) fn is_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// The next frame's worth of the first `limit` entries: number of the last, body, how many.
    fn take(&mut self, limit: usize) -> Option<(u64, Vec<u8>, u64)> {
        let mut count = self.ends.len().min(FRAME_ENTRIES_MAX as usize).min(limit);
        if count == 0 {
            return None;
        }
        let first = self.next();
        let fits = |end: u32| end as usize <= FRAME_BYTES_MAX;
        while count > 1 && !fits(self.ends[count - 1].0) {
            // By halves first: entries are of similar sizes.
            count = if fits(self.ends[count / 2].0) { count - 1 } else { count / 2 };
        }
        let end = self.ends[count - 1].0;
        let mut body = self.spare.pop().unwrap_or_default();
        if count == self.ends.len() {
            std::mem::swap(&mut body, &mut self.pending);
            self.ends.clear();
            self.collapses = false;
        } else {
            body.extend_from_slice(&self.pending[..end as usize]);
            self.pending.drain(..end as usize);
            self.ends.drain(..count);
            for (later, _) in &mut self.ends {
                *later -= end;
            }
        }
        self.each_limit(|limit| *limit = limit.saturating_sub(count));
        Some((first + count as u64 - 1, body, count as u64))
    }

    /// Appends the next notify frame, which is durable with `mark`, to `out` and keeps it for a resumption. Its entries;
    /// `None` when there was nothing.
    pub(crate) fn write_frame(&mut self, now: u64, mark: u64, out: &mut Vec<u8>) -> Option<u64> {
        let (seq, body, entries) = self.take(usize::MAX)?;
        self.framed = mark;
        Header { kind: Kind::Notify, id: seq, ..Header::default() }.write(out, &body);
        self.keep(now, seq, body);
        Some(entries)
    }

    /// Gives what is queued and durable to the sink, as far as it takes it, and says of each batch how many entries it has.
    /// `false` when the sink is gone.
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

    /// Begins a new epoch if a sink would get frames now that wait for the journal on their way to a connection.
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
        self.sent_bytes += body.len();
        self.sent.push_back((seq, now, body));
        while let Some((seq, at, body)) = self.sent.front() {
            if self.sent_bytes <= KEPT_BYTES_MAX && now.saturating_sub(*at) <= KEPT_MS {
                break;
            }
            self.forgotten = *seq;
            self.sent_bytes -= body.len();
            self.recycle();
        }
    }

    /// The reader has handled everything up to `seq`.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        while let Some((last, _, body)) = self.sent.front().filter(|(last, ..)| *last <= seq) {
            self.forgotten = *last;
            self.sent_bytes -= body.len();
            self.recycle();
        }
    }

    fn recycle(&mut self) {
        if let Some((_, _, mut body)) = self.sent.pop_front()
            && self.spare.len() < 4
        {
            body.clear();
            self.spare.push(body);
        }
    }

    /// Goes on behind `seq` of `epoch` if all that follows is still here: appends the frames again. Otherwise begins a
    /// new epoch.
    pub(crate) fn resume(&mut self, epoch: u64, seq: u64, out: &mut Vec<u8>) -> bool {
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
    use super::*;
    use throng_wire::matcher::{FrameSplit, split};

    fn frames(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let (mut at, mut found) = (0, Vec::new());
        while let Ok(FrameSplit::Whole { header, body, used }) = split(&bytes[at..], usize::MAX >> 1) {
            found.push((header.id, body.to_vec()));
            at += used;
        }
        found
    }

    #[test]
    fn frames_are_cut_by_bytes_and_entries_and_lose_nothing() {
        let mut session = Session::new("s".into(), 0, 1);
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
        let mut session = Session::new("s".into(), 0, 7);
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
    fn a_slow_reader_costs_bounded_memory_and_learns_of_the_gap() {
        let mut session = Session::new("s".into(), 0, 1);
        let entry = vec![0; 1 << 20];
        let outcomes: Vec<Queued> = (0..17).map(|_| session.push(&entry, 0)).collect();
        assert_eq!(outcomes.last(), Some(&Queued::Lagging));
        assert_eq!((session.epoch, session.has_pending()), (2, false));
    }

    #[test]
    fn later_values_replace_earlier_ones_that_were_not_sent() {
        let mut session = Session::new("s".into(), 0, 1);
        for (entry, key) in [(&b"x1"[..], 5), (b"join", 0), (b"y1", 6), (b"x2", 5)] {
            session.push(entry, key);
        }
        let mut out = Vec::new();
        session.write_frame(0, 0, &mut out);
        assert_eq!(frames(&out), [(3, b"joiny1x2".to_vec())]);
    }
}
