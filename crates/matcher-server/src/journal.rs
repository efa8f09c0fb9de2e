//! The journal: the matcher's inputs in order, and snapshots.
//!
//! ```text
//! log/<first sequence>.seg     records one after the other
//! snap/<sequence>.snap         state before that record: length, CRC-32C, sequence, bytes
//! ```
//!
//! Records are those of [`throng_matcher::record`].
//!
//! It uses the store's [`Fs`], not its log: that one maps keys to blobs and may drop what a later
//! record overwrites, while here the order of all records is the content. Sharing the file system
//! means sharing the simulated disk of the power-failure tests.
//!
//! A record that does not check ends the log when nothing behind it proves that it had been
//! durable: it was being written when the power failed. A later record that says "everything up to
//! here is on disk" proves the opposite, and then the disk lost something that was promised: the
//! start stops, unless it is told to salvage.

mod replay;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_matcher::record::{Input, count_records, crc32c, write_record};
use throng_matcher::{Config, Histogram, Matcher, Notices, RULES, WallMs};
use throng_platform::{File, Folder, Fs};

pub(crate) use replay::Replay;

const LOG: &str = "log";
const SNAPSHOTS: &str = "snap";
const ID: &str = "id";
/// File of the platform that keeps two processes out of one folder.
const LOCK: &str = "lock";
/// File that is there from the first write of an import until the last.
const UNFINISHED_IMPORT: &str = "import.unfinished";
/// A new segment begins beyond this.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// No snapshot before the log has this size: small states would be written again and again.
const SNAPSHOT_LOG_BYTES_MIN: u64 = 16 << 20;
/// Flushes from 10 us to 1 s.
const FLUSH_BOUNDS_S: &[f64] = &[1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0];
/// Time between flushes with [`Durability::Async`].
const FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// Time when an answer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing is written; a restart begins empty.
    None,
    /// After the input was handed to the system, which has it on disk within 50 ms: the end of the
    /// process loses nothing, a power failure at most that much, always a prefix.
    Async,
    /// After the input is on disk. All that wait share a flush.
    Sync,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The system refuses a file.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// An import into the folder did not finish.
    #[error("an import into this folder did not finish; run `throng matcher import` again")]
    UnfinishedImport,
    /// Something that had been on disk is not there any more.
    #[error(
        "record {sequence} in {segment} at byte {offset} is damaged, though later records say that it had been on \
         disk; restore the file, or set `matcher.salvage` (`--salvage` for a replay) to skip it and lose what it did"
    )]
    Damaged {
        /// Number of the record.
        sequence: u64,
        /// Its file.
        segment: String,
        /// Byte in the segment.
        offset: u64,
    },
    /// The snapshot that the log continues is missing.
    #[error(
        "the log begins with record {first}, and the snapshot of all before is {}; restore it, or move the folder away to \
         begin with nothing{}",
        damaged.as_ref().map_or_else(|| "missing".to_owned(), |name| format!("damaged: {name}")),
        if *older {
            ", or set `matcher.salvage` (`--salvage` for a replay) to continue from an older one"
        } else {
            ""
        }
    )]
    Snapshot {
        /// Number of the log's first record.
        first: u64,
        /// The newest file of a snapshot, if there is one.
        damaged: Option<String>,
        /// True if there is an older one that is whole.
        older: bool,
    },
    /// A log of other rules.
    #[error(
        "the log was written by release {release} under rules {rules}, and this release has rules {RULES}: a replay would lead to \
         another state; run `throng matcher settle DIR` of release {release} on the folder first"
    )]
    OtherRules {
        /// The release that wrote it.
        release: String,
        /// Number of its rules.
        rules: u32,
    },
    /// A replay that does something else than the run which wrote the log.
    #[error("record {sequence} says that the run which wrote it {what} other than this replay does")]
    Diverged {
        /// Number of the record.
        sequence: u64,
        /// The part that differs.
        what: &'static str,
    },
    /// Records that no matcher of this version writes.
    #[error("record {sequence} is not one of this version: {why}")]
    Unknown {
        /// Number of the record.
        sequence: u64,
        /// The problem.
        why: String,
    },
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> JournalError {
    move |source| JournalError::Io { what, source }
}

/// The open end of the journal. One writer.
#[derive(Debug)]
pub(crate) struct Journal {
    fs: Arc<dyn Fs>,
    durability: Durability,
    file: Arc<dyn File>,
    /// Place where the next batch goes.
    offset: u64,
    /// Number of the next record.
    sequence: u64,
    /// Records that were appended and not written.
    buf: Vec<u8>,
    bytes: u64,
    since_snapshot: u64,
    snapshot_bytes: u64,
    /// Number in the last `Durable` record.
    said: u64,
    flusher: Arc<Flusher>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Flusher {
    state: Mutex<Work>,
    changed: Condvar,
    durable: AtomicU64,
    failed: AtomicU64,
    /// Durations of flushes, in s.
    flushes: Mutex<Histogram>,
}

#[derive(Debug, Default)]
struct Work {
    /// Every record below this was written to `files`.
    written: u64,
    /// Files with unflushed records, oldest first; the last is the current one.
    files: Vec<Arc<dyn File>>,
    snapshot: Option<(u64, Vec<u8>)>,
    stop: bool,
}

/// A matcher that was read back, and the journal to go on with.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) matcher: Matcher,
    pub(crate) journal: Option<Journal>,
    /// Records that were replayed.
    pub(crate) replayed: u64,
    /// Entries that servers which were away before the end have not read, and those of the restart.
    pub(crate) notices: Notices,
}

/// Options of opening.
pub(crate) struct OpenOptions<'a> {
    pub(crate) fs: Option<Arc<dyn Fs>>,
    pub(crate) durability: Durability,
    pub(crate) config: Config,
    pub(crate) secret: [u8; 32],
    pub(crate) now: u64,
    pub(crate) salvage: bool,
    /// Called from the flusher's thread when more is durable.
    pub(crate) wake: Box<dyn Fn() + Send + 'a>,
}

/// Id of the journal in a folder, made with it: 32 hex digits of `fresh` where there is none yet.
///
/// # Errors
/// As the system says; also a file that is no id.
pub fn journal_id(fs: &dyn Fs, fresh: [u8; 16]) -> io::Result<String> {
    let file = fs.open(ID, true)?;
    if file.is_empty()? {
        let id: String = fresh.iter().map(|byte| format!("{byte:02x}")).collect();
        file.write_at(&[IoSlice::new(id.as_bytes())], 0)?;
        file.sync()?;
        fs.sync_dir("")?;
        return Ok(id);
    }
    let mut bytes = vec![0; file.len()?.min(64) as usize];
    file.read_at(&mut bytes, 0)?;
    let id = String::from_utf8(bytes).ok().filter(|id| id.len() == 32);
    let id = id.filter(|id| id.bytes().all(|digit| digit.is_ascii_hexdigit()));
    id.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the file `id` of the journal is no id; remove it")
    })
}

/// Flush histogram of a journal that was never flushed.
pub(crate) fn no_flushes() -> Histogram {
    Histogram::new(FLUSH_BOUNDS_S)
}

impl Journal {
    /// Reads what is there and opens a new segment behind it.
    pub(crate) fn open(options: OpenOptions<'static>) -> Result<Recovered, JournalError> {
        let OpenOptions { fs, durability, config, secret, now, salvage, wake } = options;
        let Some(fs) = fs.filter(|_| durability != Durability::None) else {
            let matcher = Matcher::new(config, secret, WallMs(now));
            return Ok(Recovered { matcher, journal: None, replayed: 0, notices: Notices::default() });
        };
        make_folders(&*fs)?;
        let mut replay = Replay::begin(&*fs, salvage)?;
        replay.run(&*fs)?.mend(&*fs)?;
        if let Some(matcher) = replay.matcher.as_ref().filter(|_| replay.skipped) {
            // The next start has nothing to skip.
            write_snapshot(&*fs, replay.sequence, &matcher.snapshot())?;
        }
        let mut notices = replay.unread();
        let Replay { matcher, sequence, replayed, snapshot_bytes, log_bytes, .. } = replay;
        let file = create_segment(&*fs, sequence)?;
        let flusher = Arc::new(Flusher {
            state: Mutex::new(Work { written: sequence, files: vec![Arc::clone(&file)], ..Work::default() }),
            changed: Condvar::new(),
            durable: AtomicU64::new(sequence),
            failed: AtomicU64::new(0),
            flushes: Mutex::new(no_flushes()),
        });
        let thread = {
            let (fs, flusher) = (Arc::clone(&fs), Arc::clone(&flusher));
            std::thread::Builder::new()
                .name("journal".to_owned())
                .spawn(move || flusher.run(&*fs, durability, &*wake))
                .map_err(io_error("cannot start the journal's thread"))?
        };
        let mut journal = Journal {
            fs,
            durability,
            file,
            offset: 0,
            sequence,
            buf: Vec::with_capacity(1 << 20),
            bytes: 0,
            since_snapshot: log_bytes,
            snapshot_bytes,
            said: sequence,
            flusher,
            thread: Some(thread),
        };
        journal.append(now, Input::Rules { number: RULES, release: env!("CARGO_PKG_VERSION") });
        let matcher = match matcher {
            Some(mut matcher) => {
                // A replay of this log begins anew at the record of the rules, too.
                matcher.take_outputs();
                // Later than all before, also after a clock that went back: epochs of streams begin
                // at the time of the start, and two starts in one moment would share them.
                let now = now.max(matcher.now().0 + 1);
                journal.append(now, Input::Configure(&config_json(&config)));
                matcher.reconfigure(config);
                journal.append(now, Input::Recovered);
                matcher.handle_recovered(WallMs(now), &mut notices);
                while matcher.poll_question().is_some() || matcher.poll_answered().is_some() {}
                matcher
            }
            None => {
                journal.append(now, Input::Begin { secret });
                journal.append(now, Input::Configure(&config_json(&config)));
                Matcher::new(config, secret, WallMs(now))
            }
        };
        Ok(Recovered { matcher, journal: Some(journal), replayed, notices })
    }

    /// Adds a record; it is written by the next [`commit`](Journal::commit).
    pub(crate) fn append(&mut self, now: u64, input: Input<'_>) {
        write_record(&mut self.buf, self.sequence, now, input);
        self.sequence += 1;
    }

    /// Hands what was appended to the system. Returns the number of the next record: what came
    /// before is on disk when [`durable`](Journal::durable) has reached it.
    ///
    /// # Errors
    /// As the system says; the journal is unusable then.
    pub(crate) fn commit(&mut self, now: u64) -> io::Result<u64> {
        if self.buf.is_empty() {
            return Ok(self.sequence);
        }
        let durable = self.durable();
        if durable > self.said {
            self.said = durable;
            self.append(now, Input::Durable(durable));
        }
        let mut files = None;
        if self.offset >= SEGMENT_BYTES_MAX {
            let first = self.sequence - count_records(&self.buf);
            self.file =
                create_segment(&*self.fs, first).map_err(|error| io::Error::other(error.to_string()))?;
            self.offset = 0;
            files = Some(Arc::clone(&self.file));
        }
        self.file.write_at(&[IoSlice::new(&self.buf)], self.offset)?;
        let written = self.buf.len() as u64;
        self.offset += written;
        self.bytes += written;
        self.since_snapshot += written;
        self.buf.clear();
        let mut work = self.flusher.state.lock().unwrap_or_else(PoisonError::into_inner);
        work.written = self.sequence;
        work.files.extend(files);
        drop(work);
        if self.durability == Durability::Sync {
            self.flusher.changed.notify_one();
        }
        Ok(self.sequence)
    }

    /// Every record below this is on disk.
    pub(crate) fn durable(&self) -> u64 {
        self.flusher.durable.load(Ordering::Acquire)
    }

    /// Durations of flushes since the start, in s.
    pub(crate) fn flushes(&self) -> Histogram {
        self.flusher.flushes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a flush failed: nothing that was not durable before may be promised any
    /// more.
    pub(crate) fn has_failed(&self) -> bool {
        self.flusher.failed.load(Ordering::Acquire) > 0
    }

    /// Returns whether answers wait for the disk.
    pub(crate) fn holds_answers(&self) -> bool {
        self.durability == Durability::Sync
    }

    /// Answers with marks up to this may leave.
    pub(crate) fn releases(&self) -> u64 {
        if self.holds_answers() { self.durable() } else { u64::MAX }
    }

    /// Bytes written since the start.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the log has become so long that a snapshot pays.
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.since_snapshot > SNAPSHOT_LOG_BYTES_MIN.max(2 * self.snapshot_bytes)
    }

    /// Returns whether anything was logged since the last snapshot.
    pub(crate) fn has_news(&self) -> bool {
        self.since_snapshot > 0
    }

    /// Writes a snapshot of the state after all that was committed, in the background.
    pub(crate) fn snapshot(&mut self, bytes: Vec<u8>) {
        debug_assert!(self.buf.is_empty(), "a snapshot follows a commit");
        self.snapshot_bytes = bytes.len() as u64;
        self.since_snapshot = 0;
        let mut work = self.flusher.state.lock().unwrap_or_else(PoisonError::into_inner);
        work.snapshot = Some((self.sequence, bytes));
        self.flusher.changed.notify_one();
    }
}

impl Drop for Journal {
    /// Flushes what was committed.
    fn drop(&mut self) {
        self.flusher.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.flusher.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl Flusher {
    fn run(&self, fs: &dyn Fs, durability: Durability, wake: &dyn Fn()) {
        loop {
            let mut work = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let behind = work.written > self.durable.load(Ordering::Acquire);
                if work.stop || work.snapshot.is_some() || behind && durability == Durability::Sync {
                    break;
                }
                let waited = self.changed.wait_timeout(work, FLUSH_INTERVAL);
                let (next, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
                work = next;
                if timed_out.timed_out() {
                    break;
                }
            }
            let (written, stop, snapshot) = (work.written, work.stop, work.snapshot.take());
            let files = work.files.clone();
            drop(work);
            if written > self.durable.load(Ordering::Acquire) {
                let began = Instant::now();
                let result = files.iter().try_for_each(|file| file.sync());
                let took = began.elapsed().as_secs_f64();
                self.flushes.lock().unwrap_or_else(PoisonError::into_inner).observe(took);
                if let Err(error) = result {
                    tracing::error!(%error, "the journal cannot be flushed; nothing is acknowledged any more");
                    self.failed.store(1, Ordering::Release);
                    wake();
                    return;
                }
                let mut work = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                // Files that had a successor are complete now.
                let complete = files.len() - 1;
                work.files.drain(..complete);
                drop(work);
                self.durable.store(written, Ordering::Release);
                wake();
            }
            if let Some((sequence, bytes)) = snapshot
                && let Err(error) = write_snapshot(fs, sequence, &bytes)
            {
                tracing::error!(%error, "a snapshot of the matcher could not be written; the log continues");
            }
            if stop {
                return;
            }
        }
    }
}

/// Leaves only a snapshot. Gives the number of records that led to it.
pub(crate) fn settle(fs: &dyn Fs) -> Result<u64, JournalError> {
    let mut replay = Replay::begin(fs, false)?;
    replay.run(fs)?;
    let Some(matcher) = &replay.matcher else { return Ok(0) };
    begin_at(fs, replay.sequence, matcher)?;
    let failed = io_error("cannot remove the log behind the snapshot");
    for first in numbers(fs, LOG, ".seg")?.into_iter().filter(|first| *first != replay.sequence) {
        fs.remove(&segment_name(first)).map_err(&failed)?;
    }
    fs.sync_dir(LOG).map_err(&failed)?;
    Ok(replay.replayed)
}

/// Makes a journal that holds only a snapshot, in a folder that [`is_unused`].
pub(crate) fn keep(folder: &Path, matcher: &Matcher) -> Result<(), JournalError> {
    let fs = Folder::new(folder).map_err(io_error("cannot make the folder"))?;
    let mark = |wrong| io_error("cannot mark the import as unfinished")(wrong);
    fs.open(UNFINISHED_IMPORT, true).and_then(|file| file.sync()).map_err(mark)?;
    make_folders(&fs)?;
    for (files, ends) in [(LOG, ".seg"), (SNAPSHOTS, ".snap")] {
        for name in fs.list(files).map_err(mark)?.iter().filter(|name| name.ends_with(ends)) {
            fs.remove(&format!("{files}/{name}")).map_err(mark)?;
        }
    }
    begin_at(&fs, 1, matcher)?;
    fs.remove(UNFINISHED_IMPORT).and_then(|()| fs.sync_dir("")).map_err(mark)
}

/// Returns whether a folder holds nothing, or what an import left that did not finish.
pub(crate) fn is_unused(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(entries) => {
            let names: Vec<_> = entries.map_while(Result::ok).map(|entry| entry.file_name()).collect();
            names.iter().all(|name| name == LOCK) || names.iter().any(|name| name == UNFINISHED_IMPORT)
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Writes a snapshot and an empty segment behind it, which tells that there was a snapshot if that
/// is lost.
fn begin_at(fs: &dyn Fs, sequence: u64, matcher: &Matcher) -> Result<(), JournalError> {
    write_snapshot(fs, sequence, &matcher.snapshot())?;
    create_segment(fs, sequence).map(drop)
}

fn make_folders(fs: &dyn Fs) -> Result<(), JournalError> {
    for folder in [LOG, SNAPSHOTS] {
        fs.create_dir(folder).map_err(io_error("cannot make a folder of the journal"))?;
    }
    fs.sync_dir("").map_err(io_error("cannot make the journal's folders durable"))
}

fn segment_name(first: u64) -> String {
    format!("{LOG}/{first:016x}.seg")
}

fn snapshot_name(sequence: u64) -> String {
    format!("{SNAPSHOTS}/{sequence:016x}.snap")
}

fn create_segment(fs: &dyn Fs, first: u64) -> Result<Arc<dyn File>, JournalError> {
    let file =
        fs.open(&segment_name(first), true).map_err(io_error("cannot make a segment of the journal"))?;
    file.set_len(0).map_err(io_error("cannot make a segment of the journal"))?;
    fs.sync_dir(LOG).map_err(io_error("cannot make a segment of the journal durable"))?;
    Ok(file)
}

fn numbers(fs: &dyn Fs, folder: &str, suffix: &str) -> Result<Vec<u64>, JournalError> {
    let names = fs.list(folder).map_err(io_error("cannot list the journal"))?;
    let mut found: Vec<u64> =
        names.iter().filter_map(|name| u64::from_str_radix(name.strip_suffix(suffix)?, 16).ok()).collect();
    found.sort_unstable();
    Ok(found)
}

/// The new snapshot first, durable by content and name; only then what it replaces goes.
fn write_snapshot(fs: &dyn Fs, sequence: u64, bytes: &[u8]) -> Result<(), JournalError> {
    let failed = io_error("cannot write a snapshot");
    let mut head = Vec::with_capacity(20);
    head.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    head.extend_from_slice(&crc32c(bytes).to_le_bytes());
    head.extend_from_slice(&sequence.to_le_bytes());
    let file = fs.open(&snapshot_name(sequence), true).map_err(&failed)?;
    file.set_len(0).map_err(&failed)?;
    file.write_at(&[IoSlice::new(&head), IoSlice::new(bytes)], 0).map_err(&failed)?;
    file.sync().map_err(&failed)?;
    fs.sync_dir(SNAPSHOTS).map_err(&failed)?;
    for old in numbers(fs, SNAPSHOTS, ".snap")?.into_iter().filter(|old| *old < sequence) {
        fs.remove(&snapshot_name(old)).map_err(&failed)?;
    }
    let segments = numbers(fs, LOG, ".seg")?;
    for pair in segments.windows(2).filter(|pair| pair[1] <= sequence) {
        fs.remove(&segment_name(pair[0])).map_err(&failed)?;
    }
    Ok(())
}

/// A snapshot, unless it was being written when the power failed.
fn read_snapshot(fs: &dyn Fs, sequence: u64) -> Result<Option<Vec<u8>>, JournalError> {
    let failed = io_error("cannot read a snapshot");
    let file = fs.open(&snapshot_name(sequence), false).map_err(&failed)?;
    let len = file.len().map_err(&failed)?;
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0).map_err(&failed)?;
    let Some((head, body)) = bytes.split_first_chunk::<20>() else { return Ok(None) };
    let size = u64::from_le_bytes(std::array::from_fn(|index| head[index]));
    let crc = u32::from_le_bytes(std::array::from_fn(|index| head[8 + index]));
    let number = u64::from_le_bytes(std::array::from_fn(|index| head[12 + index]));
    let whole = size == body.len() as u64 && number == sequence && crc32c(body) == crc;
    Ok(whole.then(|| body.to_vec()))
}

pub(crate) fn config_json(config: &Config) -> Vec<u8> {
    // Maps with text keys and numbers: nothing in it can fail to be JSON.
    serde_json::to_vec(config).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use throng_platform::{DiskState, SimulatedDisk};
    use throng_stdx::Rng;

    use super::*;

    fn opened(disk: &SimulatedDisk, now: u64) -> Result<Recovered, JournalError> {
        Journal::open(OpenOptions {
            fs: Some(Arc::new(disk.clone()) as Arc<dyn Fs>),
            durability: Durability::Async,
            config: Config::default(),
            secret: [5; 32],
            now,
            salvage: false,
            wake: Box::new(|| {}),
        })
    }

    #[test]
    fn an_import_that_did_not_finish_is_no_journal_and_can_be_done_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let mut lines = Vec::new();
        Matcher::new(Config::default(), [1; 32], WallMs(5)).export(&mut lines);
        let lines = String::from_utf8(lines).expect("text");
        crate::import(folder, &lines, [2; 32]).expect("an empty folder");
        assert!(!is_unused(folder));
        // As after a kill before the last step, the first, or any between.
        std::fs::write(folder.join(UNFINISHED_IMPORT), "").expect("a file");
        for lost in ["", "snap", "log"] {
            if !lost.is_empty() {
                std::fs::remove_dir_all(folder.join(lost)).expect("a folder");
            }
            let fs = Folder::new(folder).expect("a folder");
            assert!(
                matches!(Replay::begin(&fs, false), Err(JournalError::UnfinishedImport)),
                "without {lost}"
            );
        }
        crate::import(folder, &lines, [3; 32]).expect("what an import left is not used");
        assert_eq!(crate::export(folder).expect("a journal"), lines.as_bytes());
        assert!(matches!(crate::import(folder, &lines, [3; 32]), Err(crate::ImportError::NotEmpty)));
        std::fs::remove_dir_all(folder.join("snap")).expect("a folder");
        std::fs::remove_dir_all(folder.join("log")).expect("a folder");
        assert!(is_unused(folder), "the lock alone is nothing");
    }

    #[test]
    fn a_snapshot_is_on_disk_before_what_it_replaces_goes() {
        let disk = SimulatedDisk::new(DiskState::default());
        for folder in [LOG, SNAPSHOTS] {
            disk.create_dir(folder).unwrap();
        }
        disk.sync_dir("").unwrap();
        let state = Matcher::new(Config::default(), [1; 32], WallMs(5)).snapshot();
        write_snapshot(&disk, 7, &state).unwrap();
        write_snapshot(&disk, 9, &state).unwrap();
        for seed in 0..64 {
            let after = SimulatedDisk::new(disk.state().after_power_failure(&mut Rng::new(seed)));
            assert_eq!(read_snapshot(&after, 9).unwrap().as_ref(), Some(&state), "seed {seed}");
        }
    }

    #[test]
    fn a_log_of_other_rules_is_refused_before_anything_is_written() {
        let disk = SimulatedDisk::new(DiskState::default());
        let Recovered { journal, .. } = opened(&disk, 5).unwrap();
        let mut journal = journal.unwrap();
        journal.append(6, Input::Rules { number: RULES + 1, release: "9.9.1" });
        journal.append(6, Input::Session { srv: "s", up: true });
        journal.commit(6).unwrap();
        drop(journal);
        let names = |disk: &SimulatedDisk| (disk.list(LOG).unwrap(), disk.list(SNAPSHOTS).unwrap());
        let before = names(&disk);
        let why = opened(&disk, 7).unwrap_err().to_string();
        assert!(why.contains("release 9.9.1") && why.contains("throng matcher settle"), "{why}");
        assert_eq!(names(&disk), before);
    }

    #[test]
    fn a_settled_journal_is_a_snapshot_of_the_same_state() {
        let disk = SimulatedDisk::new(DiskState::default());
        let Recovered { mut matcher, journal, .. } = opened(&disk, 5).unwrap();
        let mut journal = journal.unwrap();
        journal.append(6, Input::Session { srv: "s", up: true });
        matcher.handle_session(WallMs(6), "s", true, &mut Notices::default());
        journal.commit(6).unwrap();
        drop(journal);
        assert!(settle(&disk).unwrap() > 0);
        let names = disk.list(LOG).unwrap();
        assert_eq!(names.len(), 1);
        assert!(disk.open(&format!("{LOG}/{}", names[0]), false).unwrap().is_empty().unwrap());
        let mut replay = Replay::begin(&disk, false).unwrap();
        replay.run(&disk).unwrap();
        assert_eq!(replay.matcher.unwrap().digest(), matcher.digest());
        let lost = SimulatedDisk::new(disk.state().after_power_failure(&mut Rng::new(1)));
        for name in lost.list(SNAPSHOTS).unwrap() {
            lost.remove(&format!("{SNAPSHOTS}/{name}")).unwrap();
        }
        let why = opened(&lost, 7).unwrap_err().to_string();
        assert!(why.contains("the snapshot of all before is missing"), "{why}");
        assert!(opened(&disk, 7).is_ok());
    }

    #[test]
    fn a_kept_journal_without_its_snapshot_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("kept");
        keep(&folder, &Matcher::new(Config::default(), [1; 32], WallMs(5))).unwrap();
        let fs = Folder::new(&folder).unwrap();
        let run = || Replay::begin(&fs, false).and_then(|mut replay| replay.run(&fs).map(drop));
        run().unwrap();
        for name in fs.list(SNAPSHOTS).unwrap() {
            fs.remove(&format!("{SNAPSHOTS}/{name}")).unwrap();
        }
        assert!(run().unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn a_replay_that_does_something_else_is_found() {
        let disk = SimulatedDisk::new(DiskState::default());
        let diverged = |disk: &SimulatedDisk| {
            let mut replay = Replay::begin_to_verify(disk, false).unwrap();
            replay.run(disk).unwrap();
            (replay.diverged.map(|(_, what)| what), replay.compared)
        };
        let Recovered { mut matcher, journal, .. } = opened(&disk, 5).unwrap();
        let mut journal = journal.unwrap();
        let (mut answer, mut notices) = (Vec::new(), Notices::default());
        let input = Input::Request { srv: "s", scope: throng_matcher::Scope::Admin, method: 90, body: &[] };
        journal.append(6, input);
        matcher.apply(WallMs(6), input, &mut answer, &mut notices);
        journal.append(6, Input::Outputs(matcher.take_outputs().unwrap()));
        journal.commit(6).unwrap();
        assert_eq!(diverged(&disk), (None, 1));
        journal.append(7, input);
        journal.append(7, Input::Outputs(1));
        journal.commit(7).unwrap();
        drop(journal);
        assert_eq!(diverged(&disk), (Some("answered"), 1));
    }

    #[test]
    fn what_a_server_has_not_read_outlives_restarts_until_it_returns() {
        let disk = SimulatedDisk::new(DiskState::default());
        let mut now = 5;
        // A life in which `inputs` happen, and the entries that wait for each server at its start.
        let mut live = |inputs: &[Input<'_>]| {
            now += 10;
            let Recovered { mut matcher, journal, notices, .. } = opened(&disk, now).unwrap();
            let names = notices.iter().map(|notice| matcher.server_name(notice.server).unwrap().to_vec());
            let names: Vec<String> = names.map(|name| String::from_utf8(name).unwrap()).collect();
            let mut journal = journal.unwrap();
            for input in inputs {
                journal.append(now + 5, *input);
                matcher.apply(WallMs(now + 5), *input, &mut Vec::new(), &mut Notices::default());
            }
            journal.commit(now + 5).unwrap();
            names
        };
        let bodies = ["ann", "bob", "bea"].map(|role| {
            let role = throng_wire::matcher::Writer::new().str(1, role);
            let mode = throng_wire::matcher::Writer::new().str(1, "2v2");
            throng_wire::matcher::Writer::new().nested(1, role).nested(2, mode).into_bytes()
        });
        let join = |srv, body| Input::Request {
            srv,
            scope: throng_matcher::Scope::Server,
            method: throng_wire::matcher::Method::ROLE_JOIN_RANDOM_ROOM,
            body,
        };
        let up = |srv| Input::Session { srv, up: true };
        assert_eq!(live(&[up("a"), up("b"), join("a", &bodies[0]), join("b", &bodies[1])]).len(), 0);
        // `a` was away, and the life before it had not told it anything since.
        assert_eq!(live(&[up("b"), join("b", &bodies[2])]).len(), 0);
        assert_eq!(live(&[]), ["a"]);
        assert_eq!(live(&[up("a")]), ["a"], "it did not return");
        assert_eq!(live(&[]).len(), 0, "it has read it");
    }

    #[test]
    fn a_journal_keeps_its_id() {
        let disk = SimulatedDisk::new(DiskState::default());
        let id = journal_id(&disk, [7; 16]).unwrap();
        assert_eq!((id.len(), journal_id(&disk, [8; 16]).unwrap()), (32, id.clone()));
        let copy = SimulatedDisk::new(disk.state().after_power_failure(&mut Rng::new(1)));
        assert_eq!(journal_id(&copy, [9; 16]).unwrap(), id, "it is durable before anybody hears of it");
    }
}
