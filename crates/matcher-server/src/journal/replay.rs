//! Replay of a journal: its result and its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_matcher::record::{Input, Record, next_record, parse_input, read_record};
use throng_matcher::{BadSnapshot, Config, Matcher, Notices, RULES, ServerNumber, SnapshotHead, WallMs};
use throng_platform::{File, Fs};

use super::{
    JournalError, LOG, SNAPSHOTS, UNFINISHED_IMPORT, io_error, numbers, read_snapshot, segment_name,
    snapshot_name,
};

/// Entries kept for a server that is away: as many as its stream keeps, in bytes.
const UNREAD_BYTES_MAX: usize = 16 << 20;

/// Entries for servers that are away, since they were lost: no reader has got them.
#[derive(Default)]
struct Unread(BTreeMap<usize, Kept>);

/// Those of one server, and their bytes.
struct Kept {
    server: ServerNumber,
    notices: Notices,
    bytes: usize,
}

impl Unread {
    /// Keeps what an input has told to servers that are away.
    fn add(&mut self, matcher: &Matcher, told: &Notices) {
        for notice in told.iter().filter(|notice| matcher.is_away(notice.server)) {
            let server = notice.server;
            let new = || Kept { server, notices: Notices::default(), bytes: 0 };
            let kept = self.0.entry(server.place()).or_insert_with(new);
            if kept.server != server || kept.bytes > UNREAD_BYTES_MAX {
                *kept = new();
            }
            kept.bytes += notice.entry.len();
            kept.notices.keep(notice);
        }
    }

    /// Forgets what was kept for servers that have returned or were given up.
    fn forget(&mut self, matcher: &Matcher) {
        self.0.retain(|_, kept| matcher.is_away(kept.server));
    }
}

/// Reads a journal into a matcher.
pub(crate) struct Replay {
    pub(crate) matcher: Option<Matcher>,
    /// Number of the next record.
    pub(crate) sequence: u64,
    pub(crate) replayed: u64,
    pub(super) snapshot_bytes: u64,
    pub(super) log_bytes: u64,
    salvage: bool,
    /// True if something damaged was left out.
    pub(super) skipped: bool,
    /// The newest snapshot's number, if it is not whole.
    damaged: Option<u64>,
    notices: Notices,
    unread: Unread,
    answer: Vec<u8>,
    /// The first difference from the run that wrote the log.
    pub(crate) diverged: Option<(u64, &'static str)>,
    /// Hashes of the states in later snapshots, by the number of the record that they come before.
    states: BTreeMap<u64, [u8; 32]>,
    /// Hashes of the run that were the same here.
    pub(crate) compared: u64,
    /// Rules that the records which follow were written under, and the release.
    written: (u32, String),
}

impl Replay {
    /// Begins at the newest snapshot that is whole.
    pub(crate) fn begin(fs: &dyn Fs, salvage: bool) -> Result<Replay, JournalError> {
        Replay::begin_at(fs, salvage, false)
    }

    /// Begins where the log and the snapshots that follow can be compared with this replay: at the
    /// oldest snapshot, which is to have the state that its hash names.
    pub(crate) fn begin_to_verify(fs: &dyn Fs, salvage: bool) -> Result<Replay, JournalError> {
        Replay::begin_at(fs, salvage, true)
    }

    fn begin_at(fs: &dyn Fs, salvage: bool, oldest: bool) -> Result<Replay, JournalError> {
        if fs.open(UNFINISHED_IMPORT, false).is_ok() {
            return Err(JournalError::UnfinishedImport);
        }
        let mut replay = Replay {
            matcher: None,
            sequence: 0,
            replayed: 0,
            snapshot_bytes: 0,
            log_bytes: 0,
            salvage,
            skipped: false,
            damaged: None,
            notices: Notices::default(),
            unread: Unread::default(),
            answer: Vec::new(),
            diverged: None,
            states: BTreeMap::new(),
            compared: 0,
            written: (0, "before 0.1".to_owned()),
        };
        for sequence in numbers(fs, SNAPSHOTS, ".snap")?.into_iter().rev() {
            let Some(bytes) = read_snapshot(fs, sequence)? else {
                replay.damaged.get_or_insert(sequence);
                continue;
            };
            let unreadable = |error: BadSnapshot| JournalError::Unknown { sequence, why: error.to_string() };
            let (SnapshotHead { rules, release, hash, .. }, _) =
                SnapshotHead::split(&bytes).map_err(unreadable)?;
            let matcher = Matcher::restore(&bytes).map_err(unreadable)?;
            replay.written = (rules, release);
            replay.snapshot_bytes = bytes.len() as u64;
            (replay.matcher, replay.sequence) = (Some(matcher), sequence);
            if !oldest {
                break;
            }
            replay.states.insert(sequence, hash);
        }
        if oldest {
            replay.compare_state();
        }
        Ok(replay)
    }

    /// Replays every segment; writes nothing.
    pub(crate) fn run(&mut self, fs: &dyn Fs) -> Result<Ends, JournalError> {
        let segments = numbers(fs, LOG, ".seg")?;
        let mut ends = Ends::default();
        for (at, first) in segments.iter().enumerate() {
            // A segment whose successor begins no later than where we are has nothing new.
            if segments.get(at + 1).is_some_and(|next| *next <= self.sequence) {
                continue;
            }
            let name = segment_name(*first);
            if *first > self.sequence && ends.replayed.is_empty() && !(self.salvage && self.matcher.is_some())
            {
                return Err(self.without_beginning(*first));
            }
            // The end of its predecessor is missing, and what follows goes with it: a prefix is
            // what comes back.
            if *first > self.sequence && !self.salvage && !ends.replayed.is_empty() {
                if later_segments_need(fs, &segments[at..], self.sequence)? {
                    return Err(JournalError::Damaged { sequence: self.sequence, segment: name, offset: 0 });
                }
                tracing::info!(segment = name, "the journal ended before this segment");
                ends.beyond = segments[at..].to_vec();
                break;
            }
            let file = fs.open(&name, false).map_err(io_error("cannot open a segment of the journal"))?;
            let len = file.len().map_err(io_error("cannot read a segment of the journal"))?;
            let mut bytes = vec![0; len as usize];
            file.read_at(&mut bytes, 0).map_err(io_error("cannot read a segment of the journal"))?;
            self.log_bytes += len;
            let end = self.replay_segment(&name, &bytes)?;
            let is_torn = end < bytes.len() && !self.salvage;
            ends.replayed.push((file, is_torn.then_some(end as u64)));
            if is_torn {
                let later = later_segments_need(fs, &segments[at + 1..], self.sequence)?;
                if later || durable_behind(&bytes[end..], self.sequence) {
                    return Err(JournalError::Damaged {
                        sequence: self.sequence,
                        segment: name,
                        offset: end as u64,
                    });
                }
                tracing::info!(
                    segment = name,
                    cut = bytes.len() - end,
                    "the journal ended in the middle of a write"
                );
            } else if end < bytes.len() {
                let next = self.skip_damage(&name, &bytes, end)?;
                self.skipped = true;
                tracing::warn!(
                    segment = name,
                    from = end,
                    to = next,
                    "a damaged part of the journal was skipped"
                );
            }
        }
        match self.damaged {
            // No log is left either.
            Some(first) if self.matcher.is_none() => Err(self.without_beginning(first)),
            _ => Ok(ends),
        }
    }

    fn without_beginning(&self, first: u64) -> JournalError {
        let damaged = self.damaged.map(snapshot_name);
        JournalError::Snapshot { first, damaged, older: self.matcher.is_some() }
    }

    /// Replays from the front; returns where it stopped.
    fn replay_segment(&mut self, name: &str, bytes: &[u8]) -> Result<usize, JournalError> {
        let mut at = 0;
        while let Some(record) = read_record(&bytes[at..]) {
            if record.sequence > self.sequence {
                if !self.salvage {
                    return Err(JournalError::Damaged {
                        sequence: self.sequence,
                        segment: name.to_owned(),
                        offset: at as u64,
                    });
                }
                self.sequence = record.sequence;
                self.skipped = true;
            }
            at += record.len;
            if record.sequence < self.sequence {
                continue;
            }
            self.apply(&record)?;
        }
        Ok(at)
    }

    fn skip_damage(&mut self, name: &str, bytes: &[u8], from: usize) -> Result<usize, JournalError> {
        let mut at = from;
        while let Some(next) = next_record(&bytes[at..], self.sequence) {
            at += next;
            at += self.replay_segment(name, &bytes[at..])?;
        }
        Ok(at)
    }

    /// Compares the state with that of a snapshot which was taken here.
    fn compare_state(&mut self) {
        let (Some(hash), Some(matcher)) = (self.states.remove(&self.sequence), &self.matcher) else { return };
        if matcher.digest() == hash {
            self.compared += 1;
        } else {
            self.diverged.get_or_insert((self.sequence, "had a state"));
        }
    }

    /// Entries that the servers which are away have not got, each server's in order.
    pub(super) fn unread(&mut self) -> Notices {
        let mut all = Notices::default();
        if let Some(matcher) = &self.matcher {
            self.unread.forget(matcher);
        }
        for kept in std::mem::take(&mut self.unread.0).values() {
            kept.notices.iter().for_each(|notice| all.keep(notice));
        }
        all
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<(), JournalError> {
        let sequence = record.sequence;
        self.compare_state();
        let unknown = |why: String| JournalError::Unknown { sequence, why };
        let input =
            parse_input(record.kind, record.body).ok_or_else(|| unknown(format!("type {}", record.kind)))?;
        self.sequence = sequence + 1;
        self.replayed += 1;
        let now = record.time;
        if let Input::Rules { number, release } = input {
            self.written = (number, release.to_owned());
            // Inputs that a crash left without their hash end here.
            if let Some(matcher) = &mut self.matcher {
                matcher.take_outputs();
            }
            return Ok(());
        }
        if let (Input::Outputs(hash), Some(matcher)) = (input, &mut self.matcher) {
            if matcher.take_outputs() == Some(hash) {
                self.compared += 1;
            } else {
                self.diverged.get_or_insert((sequence, "answered"));
            }
            return Ok(());
        }
        if self.written.0 != RULES && !matches!(input, Input::Durable(_)) {
            let (rules, release) = self.written.clone();
            return Err(JournalError::OtherRules { release, rules });
        }
        if let Input::Begin { secret } = input {
            self.matcher = Some(Matcher::new(Config::default(), secret, WallMs(now)));
            self.unread = Unread::default();
            return Ok(());
        }
        let Some(matcher) = &mut self.matcher else {
            return Err(unknown("it comes before the beginning; a segment is missing".to_owned()));
        };
        if let Input::Configure(json) = input {
            let config = serde_json::from_slice(json).map_err(|error| unknown(error.to_string()))?;
            matcher.reconfigure(config);
            return Ok(());
        }
        matcher.apply(WallMs(now), input, &mut self.answer, &mut self.notices);
        self.unread.add(matcher, &self.notices);
        if matches!(input, Input::Session { .. }) {
            self.unread.forget(matcher);
        }
        // They were asked and answered then.
        while matcher.poll_question().is_some() || matcher.poll_answered().is_some() {}
        self.answer.clear();
        self.notices.clear();
        Ok(())
    }
}

/// Place where a journal ends that was replayed: what has to be done before it goes on.
#[derive(Default)]
pub(crate) struct Ends {
    /// Segments, and where a torn one is to be cut.
    replayed: Vec<(Arc<dyn File>, Option<u64>)>,
    /// Segments behind the end. Left there, their numbers would be taken for later ones than those
    /// to come.
    beyond: Vec<u64>,
}

impl Ends {
    /// Leaves the records that were replayed, all of them on disk: a process that was killed may
    /// not have come to that, and what follows says that they are.
    pub(super) fn mend(self, fs: &dyn Fs) -> Result<(), JournalError> {
        for (file, cut) in self.replayed {
            if let Some(len) = cut {
                file.set_len(len).map_err(io_error("cannot cut a torn record"))?;
            }
            file.sync().map_err(io_error("cannot make the end of the journal durable"))?;
        }
        // The last first: what a power failure leaves of them is behind the end again.
        for first in self.beyond.into_iter().rev() {
            fs.remove(&segment_name(first))
                .map_err(io_error("cannot remove what is behind the journal's end"))?;
        }
        fs.sync_dir(LOG).map_err(io_error("cannot remove what is behind the journal's end"))
    }
}

/// Returns whether a record behind damage says that the record `sequence` had been on disk.
fn durable_behind(bytes: &[u8], sequence: u64) -> bool {
    let mut at = 0;
    while let Some(next) = next_record(&bytes[at..], sequence) {
        at += next;
        while let Some(record) = read_record(&bytes[at..]) {
            if let Some(Input::Durable(below)) = parse_input(record.kind, record.body)
                && below > sequence
            {
                return true;
            }
            at += record.len;
        }
    }
    false
}

/// Returns whether a later segment holds records: segments are begun only when their predecessor is
/// complete in memory, and flushed in order, so a record there that says `sequence` was durable
/// proves it.
fn later_segments_need(fs: &dyn Fs, later: &[u64], sequence: u64) -> Result<bool, JournalError> {
    for first in later {
        let file = fs
            .open(&segment_name(*first), false)
            .map_err(io_error("cannot open a segment of the journal"))?;
        let len = file.len().map_err(io_error("cannot read a segment of the journal"))?;
        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, 0).map_err(io_error("cannot read a segment of the journal"))?;
        let mut at = 0;
        while let Some(record) = read_record(&bytes[at..]) {
            if matches!(parse_input(record.kind, record.body), Some(Input::Durable(below)) if below > sequence)
            {
                return Ok(true);
            }
            at += record.len;
        }
    }
    Ok(false)
}
