//! Opening a store: its version, its index, the rest of its log.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};

use throng_platform::Fs;

use crate::blob;
use crate::change::Change;
use crate::commit::index_value;
use crate::convert;
use crate::error::{IndexError, StoreError};
use crate::events;
use crate::gaps::{Gap, Gaps};
use crate::index::{self, Index, IndexEntry, Totals};
use crate::key::{self, Location};
use crate::locks::lock;
use crate::log::{self, Closed, Found, Known, Log, Missing, Reader, Room, Segments, losses, read_pair};
use crate::record::{Kind, LOSS_KEYS_MAX, LogPosition, RecordPosition};
use crate::run::fingerprint;
use crate::space::OWN_REFS;
use crate::store::{Opening, Options, Store};

/// Version of the format. The name of an empty file says it: names are not what decays.
const VERSION: u32 = 2;
const VERSION_PREFIX: &str = "format-";

impl Store {
    /// Opens the store in `fs`, or makes one there. An index that does not check is built again
    /// from the log.
    ///
    /// # Errors
    /// As the system says; a format that this version does not know.
    pub fn open(fs: Arc<dyn Fs>, options: Options) -> Result<Arc<Store>, StoreError> {
        Store::open_with(fs, options, How::Use)
    }

    /// Opens the store in `fs` and builds its index again from the log. Damage of the log that is
    /// found is acknowledged: later openings do not report it again.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn reindex(fs: Arc<dyn Fs>, options: Options) -> Result<Arc<Store>, StoreError> {
        Store::open_with(fs, options, How::Rebuild)
    }

    /// Opens a store for looking at it; `fs` keeps changes to itself.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::OldFormat`] for a store of version 1.
    pub fn open_read_only(fs: Arc<dyn Fs>, options: Options) -> Result<Arc<Store>, StoreError> {
        if read_version(&*fs)? && convert::exists(&*fs) {
            return Err(StoreError::OldFormat);
        }
        Store::open_with(fs, Options { disk_reserve_bytes: 0, ..options }, How::Look)
    }

    fn open_with(fs: Arc<dyn Fs>, options: Options, how: How) -> Result<Arc<Store>, StoreError> {
        let is_new = read_version(&*fs)?;
        let options = options.scaled_to(fs.size_bytes()?, is_new)?;
        for folder in [log::FOLDER, blob::FOLDER, index::FOLDER, "quarantine"] {
            fs.create_dir(folder)?;
        }
        fs.sync_dir("")?;
        let old = if is_new { convert::find(&fs)? } else { None };
        let segments = Arc::new(Segments::list(Arc::clone(&fs))?);
        // A disk that did not write what it said it did may have less of the log than the index.
        let usable = |position: LogPosition| {
            position.segment > 0
                && segments.are_whole_from(position.segment)
                && segments.bytes_of(position.segment) >= position.offset
        };
        // Even an index that is not used any more knows how much of the log was there.
        let indexed = index::known_position(&*fs);
        let closed = Closed::read(&*fs);
        let last_used = segments.last_used();
        let ends = [Some(indexed), closed.map(|closed| closed.end)].into_iter().flatten();
        // Segments before the last one are named by that.
        let ends = ends.filter(|end| end.segment >= last_used && end.offset > 0);
        let synced = ends.max().unwrap_or_default();
        let is_lost = last_used == 0 && !is_new && indexed.segment == 0;
        let is_cut = is_lost
            || !segments.holds(synced.segment, synced.offset) && synced.segment > 0
            || closed
                .filter(|closed| closed.end == synced)
                .map(|closed| closed.matches(&segments))
                .transpose()?
                == Some(false);
        let numbers = segments.numbers().into_iter().chain([indexed.segment, synced.segment]);
        let last_segment = numbers.max().unwrap_or(0);
        let missing = segments.missing()?;
        let has_losses = is_cut || !missing.is_empty();
        if has_losses && how == How::Rebuild {
            // Before the index goes, it gives back to the log what it can.
            drop(Store::open_with(fs.clone(), options.clone(), How::Use)?);
            return Store::open_with(fs, options, How::RebuildRepaired);
        }
        let found = match how {
            How::Rebuild | How::RebuildRepaired => None,
            How::Use | How::Look => Index::open(&fs, options.index_cache_bytes, &usable)?,
        };
        let is_rebuild = found.is_none();
        let is_short = found.as_ref().is_some_and(|(_, position, _)| has_losses || !usable(*position));
        let (index, from, totals) = match found {
            Some(found) => found,
            None => {
                (Index::create(&fs, options.index_cache_bytes)?, LogPosition::default(), Totals::default())
            }
        };
        // A store without an index has no log either, unless the index was lost.
        let has_log = segments.bytes() > 0;
        let is_asked = matches!(how, How::Rebuild | How::RebuildRepaired);
        let index_damaged = !is_asked && (is_rebuild && has_log || index.fell_back());
        if is_rebuild && has_log {
            tracing::warn!(bytes = segments.bytes(), "the index is built from the log");
        }
        let mut replay = Replay {
            index: &index,
            totals,
            lost: BTreeMap::new(),
            gaps: BTreeMap::new(),
            limit: options.checkpoint_bytes,
            flushes: is_rebuild,
            failure: None,
        };
        let room = Room::new(options.segment_bytes_max, options.reserve_bytes, options.zero_bytes);
        let known = Known { from, synced, is_cut, last: last_segment };
        let opened = Log::open(Arc::clone(&segments), known, room, how == How::Look, &mut replay);
        if let Some(error) = replay.failure.take() {
            return Err(error.into());
        }
        let log = opened?;
        for Missing { segment, offset, len } in missing {
            replay.gap(segment, offset, len);
        }
        let lost = replay.forget_lost()?;
        let (gap_lens, totals) = (replay.gaps, replay.totals);
        let found: BTreeSet<Gap> = gap_lens.keys().copied().collect();
        let mut gaps = Gaps::read(&*fs)?;
        let log_gaps = gaps.open(&found);
        if how != How::Look {
            gaps.add(&*fs, &found);
        }
        if !found.is_empty() {
            tracing::error!(
                gaps = found.len(),
                lost,
                "the log is damaged; the keys that the damage held are missing until they are put again"
            );
        }
        let has_lost = !index.scan(key::LOST, None, 1)?.is_empty();
        let has_own_refs = AtomicBool::new(fs.open(OWN_REFS, false).is_ok());
        let newest_bucket = index.get(events::NEWEST)?;
        let newest_bucket = newest_bucket
            .and_then(|value| value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)))
            .unwrap_or(0);
        // Numbers are never used twice, whatever became of the files.
        let large = fs.list(blob::FOLDER)?;
        let last = large.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).max().unwrap_or(0);
        let store = Arc::new(Store {
            fs,
            options,
            index,
            segments,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            closing: Condvar::new(),
            checkpointed_bytes: AtomicU64::new(0),
            log: Mutex::new(log),
            checkpoint: Mutex::default(),
            next_large: AtomicU64::new(last + 1),
            first_large: last + 1,
            large_bytes: AtomicU64::new(totals.large_bytes),
            maintenance: Mutex::default(),
            scrub: Mutex::default(),
            has_cleaned_up: AtomicBool::new(false),
            broken: Mutex::default(),
            is_broken: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            kept: RwLock::default(),
            bytes_max: AtomicU64::new(0),
            evicted_to: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            unmet: AtomicU64::new(u64::MAX),
            was_over_quota: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            asked_before: AtomicU64::new(0),
            has_reads: AtomicBool::new(false),
            own_changes: Mutex::default(),
            own_failure: Arc::default(),
            relied_on: Mutex::default(),
            freed_files: Arc::default(),
            large_files: Mutex::default(),
            replaced: Mutex::default(),
            replaced_turn: Mutex::default(),
            quotas: RwLock::default(),
            sizes: Mutex::default(),
            newest_bucket: AtomicU32::new(newest_bucket),
            opening: Opening { index_damaged, log_gaps },
            has_lost,
            has_own_refs,
            gaps: Mutex::new(gaps),
            counters: Default::default(),
        });
        store.counters.damaged.fetch_add(log_gaps, Ordering::Relaxed);
        if is_rebuild {
            // Until now a start would have begun the rebuild again.
            store.checkpoint()?;
        }
        if is_asked {
            lock(&store.gaps).acknowledge(&*store.fs);
        }
        if is_short && how == How::Use {
            store.restore(last_segment, &gap_lens)?;
        }
        if let Some(old) = old {
            convert::convert(&store, &old)?;
        }
        if is_new {
            // Before the version is noted: an old one that finds a new store must end.
            convert::write_sentinel(&*store.fs)?;
            store.fs.open(&format!("{VERSION_PREFIX}{VERSION}"), true)?;
            store.fs.sync_dir("")?;
            convert::remove_mark(&*store.fs);
        }
        store.look_at_disk();
        Ok(store)
    }
}

impl Store {
    /// Writes to the log again what the index has and the log has lost, up to segment `last`, and
    /// names the keys that only the log still has: the lost part had their deletes. Small blobs
    /// that were in the lost part are misses from now on. Reads the whole log.
    fn restore(&self, last: u64, gaps: &BTreeMap<Gap, u64>) -> Result<(), StoreError> {
        tracing::error!("the log is shorter than it was; what the index still has of it is written again");
        self.walk_entries(b"", &mut |key, entry| {
            let IndexEntry { record, value } = entry;
            let place = (record.segment, record.offset);
            let gap = gaps.range(..=place).next_back();
            let is_in_gap = gap.is_some_and(|((segment, offset), len)| {
                *segment == record.segment && record.offset < offset + len
            });
            let is_held = self.segments.holds(record.segment, entry.record_end(key)) && !is_in_gap;
            if record.segment == 0 || is_held {
                return Ok(());
            }
            let is_lost = key.first() == Some(&b'b')
                && Location::read(value).is_some_and(|location| !location.is_large());
            self.queue_and_commit(match is_lost {
                true => Change::Delete { key: key.to_vec() },
                false => Change::Move { key: key.to_vec(), record: *record, payload: None },
            })
        })?;
        self.commit_own()?;
        let mut undeleted = Undeleted { index: &self.index, keys: BTreeMap::new(), failure: None };
        for number in self.segments.numbers().into_iter().filter(|number| *number <= last) {
            let read = self.segments.read(number, 0, 0, log::ALL_SYNCED, &mut undeleted);
            if let Some(error) = undeleted.failure.take() {
                return Err(error.into());
            }
            read?;
        }
        let keys: Vec<_> = undeleted.keys.into_keys().map(|key| (key, last + 1, 0)).collect();
        for keys in keys.chunks(LOSS_KEYS_MAX) {
            self.queue_own(Change::Loss { keys: keys.to_vec() });
            // Each alone: a commit names the keys of all its records.
            self.commit_own()?;
        }
        // A list without what is missing: later starts need not do all this again. They begin
        // behind the lost part.
        self.note_removal(&[])?;
        self.checkpoint()
    }
}

/// Keys that the index does not have although the log does not delete them.
struct Undeleted<'i> {
    index: &'i Index,
    /// Position of the newest record by the fingerprint of its key.
    keys: BTreeMap<u64, (u64, u64)>,
    failure: Option<IndexError>,
}

impl Reader for Undeleted<'_> {
    fn record(&mut self, found: Found) -> io::Result<()> {
        match found.kind {
            Kind::Put => match self.index.entry(&found.key) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.keys.insert(fingerprint(&found.key), (found.segment, found.offset));
                }
                Err(error) => {
                    self.failure = Some(error);
                    return Err(io::Error::other("the index cannot be read"));
                }
            },
            Kind::Delete => {
                let last = read_pair(&found.value).map_or(u64::MAX, |(_, last)| last);
                let key = fingerprint(&found.key);
                if self.keys.get(&key).is_some_and(|(segment, _)| *segment <= last) {
                    self.keys.remove(&key);
                }
            }
            Kind::Loss => {
                for (key, segment, offset) in losses(&found.value) {
                    if self.keys.get(&key).is_some_and(|place| *place < (segment, offset)) {
                        self.keys.remove(&key);
                    }
                }
            }
            Kind::Commit | Kind::Directory | Kind::Segments | Kind::Recent => {}
        }
        Ok(())
    }

    // Damage that was found before; a start that reads the log again finds it again.
    fn lost(&mut self, _fingerprint: u64, _segment: u64, _offset: u64) {}

    fn gap(&mut self, _segment: u64, _offset: u64, _len: u64) {}
}

/// Purpose of an opening.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Use,
    /// Builds the index again.
    Rebuild,
    /// The same, when the index has given back what the log lacked.
    RebuildRepaired,
    /// Changes nothing.
    Look,
}

/// Reports whether no version is noted.
fn read_version(fs: &dyn Fs) -> Result<bool, StoreError> {
    let names = match fs.list("") {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let mut is_new = true;
    for version in names.iter().filter_map(|name| name.strip_prefix(VERSION_PREFIX)) {
        if version.parse() != Ok(VERSION) {
            return Err(StoreError::Format(version.to_owned()));
        }
        is_new = false;
    }
    Ok(is_new)
}

/// Applies records of the log to the index.
struct Replay<'i> {
    index: &'i Index,
    totals: Totals,
    /// Keys whose records were damaged, by fingerprint: what lies before the position is not
    /// current any more.
    lost: BTreeMap<u64, (u64, u64)>,
    /// Lengths of gaps.
    gaps: BTreeMap<Gap, u64>,
    /// Bytes of entries that may be in memory.
    limit: usize,
    /// True if entries go to disk on the way.
    flushes: bool,
    failure: Option<IndexError>,
}

impl Replay<'_> {
    fn apply(&mut self, found: Found) -> Result<(), IndexError> {
        let Found { kind, key, value, segment, offset, payload } = found;
        let old = match kind {
            Kind::Put | Kind::Delete => self.index.entry(&key)?,
            Kind::Commit | Kind::Directory | Kind::Segments | Kind::Recent => None,
            Kind::Loss => {
                for (key, segment, offset) in losses(&value) {
                    self.lose(key, segment, offset);
                }
                None
            }
        };
        match kind {
            Kind::Put => {
                let first = old.as_ref().map_or(segment, |old| old.record.first);
                self.count(&key, old.as_ref(), false);
                let value = index_value(value, segment, payload);
                let entry = IndexEntry::new(RecordPosition { first, segment, offset }, value);
                self.count(&key, Some(&entry), true);
                self.index.apply([(key.into(), Some(entry))]);
            }
            Kind::Delete => {
                let last = read_pair(&value).map_or(u64::MAX, |(_, last)| last);
                if let Some(old) = old.filter(|old| old.record.segment <= last) {
                    self.count(&key, Some(&old), false);
                    self.index.apply([(key.into(), None)]);
                }
            }
            Kind::Commit | Kind::Loss | Kind::Directory | Kind::Segments | Kind::Recent => {}
        }
        if self.flushes && self.index.fresh_bytes() > self.limit {
            self.index.begin_checkpoint();
            // The position says that the rebuild has not ended.
            self.index.finish_checkpoint(LogPosition::default(), Totals::default())?;
            while self.index.merge()? {}
        }
        Ok(())
    }

    fn count(&mut self, key: &[u8], entry: Option<&IndexEntry>, comes: bool) {
        if key.first() == Some(&b'b')
            && let Some(location) =
                entry.and_then(|entry| Location::read(&entry.value)).filter(Location::is_large)
        {
            let total = &mut self.totals.large_bytes;
            *total = if comes { *total + location.len } else { total.saturating_sub(location.len) };
        }
    }

    fn lose(&mut self, fingerprint: u64, segment: u64, offset: u64) {
        let bound = self.lost.entry(fingerprint).or_default();
        *bound = (*bound).max((segment, offset));
    }

    /// Takes keys out of the index whose newest record was lost, and marks them as lost. Gives how
    /// many records were lost.
    fn forget_lost(&mut self) -> Result<usize, IndexError> {
        if self.lost.is_empty() {
            return Ok(0);
        }
        let mut missing: BTreeSet<u64> = self.lost.keys().copied().collect();
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let step = self.index.scan_entries(b"", after.as_deref(), 512)?;
            let Some((last, _)) = step.last() else { break };
            after = Some(last.clone());
            for (key, entry) in step {
                let RecordPosition { segment, offset, .. } = entry.record;
                let fingerprint = fingerprint(&key);
                let Some(bound) = self.lost.get(&fingerprint) else { continue };
                if segment > 0 && (segment, offset) < *bound {
                    self.count(&key, Some(&entry), false);
                    self.index.apply([(key, None)]);
                } else {
                    missing.remove(&fingerprint);
                }
            }
        }
        let mark = IndexEntry::new(RecordPosition::default(), []);
        let marks = missing.into_iter().map(|key| (key::lost(key).into(), Some(mark.clone())));
        self.index.apply(marks);
        Ok(self.lost.len())
    }
}

impl Reader for Replay<'_> {
    fn record(&mut self, found: Found) -> io::Result<()> {
        self.apply(found).map_err(|error| {
            let text = error.to_string();
            self.failure = Some(error);
            io::Error::other(text)
        })
    }

    fn lost(&mut self, fingerprint: u64, segment: u64, offset: u64) {
        self.lose(fingerprint, segment, offset);
    }

    fn gap(&mut self, segment: u64, offset: u64, len: u64) {
        self.gaps.insert((segment, offset), len);
        tracing::error!(segment, offset, len, "a part of the log is damaged or missing");
    }
}

/// Counts what is wrong with a log.
#[derive(Default)]
pub(crate) struct Damage {
    pub(crate) records: u64,
    pub(crate) gaps: BTreeSet<Gap>,
    pub(crate) lost: BTreeSet<u64>,
}

impl Reader for Damage {
    fn record(&mut self, _found: Found) -> io::Result<()> {
        self.records += 1;
        Ok(())
    }

    fn lost(&mut self, fingerprint: u64, _segment: u64, _offset: u64) {
        self.lost.insert(fingerprint);
    }

    fn gap(&mut self, segment: u64, offset: u64, len: u64) {
        self.gaps.insert((segment, offset));
        tracing::error!(segment, offset, len, "a part of the log is damaged or missing");
    }
}
