//! The index: sorted runs on disk under maps in memory, derived from the log.
//!
//! Acknowledged means: in the log. The index follows in checkpoints, each of which writes a run and
//! a manifest that names the runs and the position up to which they contain the log, so that a
//! start reads only the rest of the log. Runs are never changed; a merge replaces several by one.
//! Every block is checked when it is read, and an index that does not check is built again from the
//! log.
//!
//! A look-up asks the maps, then the runs from the newest to the oldest, most of which their
//! filters spare it. Each run has more than the entries of all newer ones together, so that there
//! are few of them and an entry is written again about as often as the logarithm of their number
//! says.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use throng_platform::Fs;

use crate::error::IndexError;
use crate::free::free_in_parts;
use crate::key::{self, Location};
use crate::locks::lock;
use crate::record::{self, LogPosition, RecordPosition};
use crate::run::{self, BlockCache, Filter, Run, RunEntry, RunInfo, RunIter, RunWriter, random};
use crate::turn::Turn;

pub(crate) const FOLDER: &str = "index";
/// Made when a block of the index does not check: the next start builds the index again.
const DAMAGE_MARK: &str = "index/damaged";
/// Two files that are written in turn, so that one of them is whole at any time.
const MANIFESTS: [&str; 2] = ["index/manifest.0", "index/manifest.1"];
const MANIFEST_MAGIC: &[u8; 8] = b"TDCIDX01";
/// An index up to this size is read as a whole when it is opened, so that its damage is found
/// before it is served.
const CHECKED_BYTES_MAX: u64 = 64 << 20;
/// Scans of at most so many entries use the blocks in memory; longer walks read each block once,
/// and would only keep others waiting for the list of blocks.
const KEEP_LIMIT_MAX: usize = 64;

/// Entries that become visible at a time, or that a scan copies; all look-ups wait meanwhile for
/// the first, and commits for the second, also while a scan of low priority has no processor.
const APPLY_STEP: usize = 64;
/// Entries in memory for which the filter is made; with more, it spares fewer look-ups.
const LAYER_ENTRIES: u64 = 1 << 16;

/// An entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) record: RecordPosition,
    pub(crate) value: Box<[u8]>,
}

impl IndexEntry {
    pub(crate) fn new(record: RecordPosition, value: impl Into<Box<[u8]>>) -> IndexEntry {
        IndexEntry { record, value: value.into() }
    }

    /// End of the record with its payload in its segment.
    pub(crate) fn record_end(&self, key: &[u8]) -> u64 {
        let location = Location::read(&self.value);
        let small = location.filter(|location| key.first() == Some(&b'b') && !location.is_large());
        self.record.offset
            + match small {
                Some(location) => record::bytes(key, &[0; record::BLOB_VALUE_BYTES]) + location.len,
                None => record::bytes(key, &self.value),
            }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let RecordPosition { first, segment, offset } = self.record;
        for mut number in [segment, segment - first.min(segment), offset] {
            while number >= 0x80 {
                out.push(number as u8 | 0x80);
                number >>= 7;
            }
            out.push(number as u8);
        }
        out.extend_from_slice(&self.value);
    }

    fn read(bytes: &[u8]) -> Option<IndexEntry> {
        let (record, value) = Self::parts(bytes)?;
        Some(IndexEntry::new(record, value))
    }

    /// Record and value of a written entry.
    fn parts(mut bytes: &[u8]) -> Option<(RecordPosition, &[u8])> {
        let mut number = || {
            let mut number = 0_u64;
            for shift in (0..64).step_by(7) {
                let (byte, rest) = bytes.split_first()?;
                bytes = rest;
                number |= u64::from(byte & 0x7F) << shift;
                if byte & 0x80 == 0 {
                    return Some(number);
                }
            }
            None
        };
        let (segment, behind, offset) = (number()?, number()?, number()?);
        let first = segment.checked_sub(behind)?;
        Some((RecordPosition { first, segment, offset }, bytes))
    }
}

/// A key and its entry.
pub(crate) type FoundEntry = (Box<[u8]>, IndexEntry);

/// Entries of one step of a scan, and the key up to which it looked if that is not the end.
type ScanStep = (Vec<FoundEntry>, Option<Box<[u8]>>);

/// A key and its value.
pub(crate) type Pair = (Box<[u8]>, Box<[u8]>);

/// A key and its entry; `None` for a deleted key.
pub(crate) type IndexChange = (Box<[u8]>, Option<IndexEntry>);

/// Entries in memory.
#[derive(Clone)]
struct Layer {
    entries: BTreeMap<Box<[u8]>, Option<IndexEntry>>,
    /// The ends of their keys. A look-up in the map reads keys from all over the memory, and that
    /// of a new key would be for nothing.
    filter: Filter,
}

impl Default for Layer {
    fn default() -> Layer {
        Layer { entries: BTreeMap::new(), filter: Filter::new(LAYER_ENTRIES) }
    }
}

impl Layer {
    fn get(&self, key: &[u8]) -> Option<&Option<IndexEntry>> {
        if self.filter.has(end_of(key)) { self.entries.get(key) } else { None }
    }

    fn insert(&mut self, key: Box<[u8]>, entry: Option<IndexEntry>) {
        self.filter.insert(end_of(&key));
        self.entries.insert(key, entry);
    }
}

/// The last bytes of a key, most of which are those of a hash, spread over a number.
fn end_of(key: &[u8]) -> u64 {
    let end = key.last_chunk().map_or(key.len() as u64, |end| u64::from_le_bytes(*end));
    end.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

struct Layers {
    /// Entries since the last checkpoint began.
    fresh: Layer,
    fresh_bytes: usize,
    /// Entries that a running checkpoint writes. Empty when none runs.
    frozen: Arc<Layer>,
    /// The newest first.
    runs: Arc<Vec<Arc<Run>>>,
}

/// Numbers that the manifest keeps for the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes of large blobs.
    pub(crate) large_bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Manifest {
    version: u64,
    position: LogPosition,
    totals: Totals,
    next_run: u64,
    runs: Vec<RunInfo>,
    /// Runs that the manifest before this one names, which is in the other file.
    before: Vec<u64>,
}

pub(crate) struct Index {
    fs: Arc<dyn Fs>,
    cache: Arc<BlockCache>,
    layers: RwLock<Layers>,
    manifest: Mutex<Manifest>,
    /// Held by a merge: one at a time.
    merge: Mutex<()>,
    /// Runs that merges replaced, until their files are removed. Walks may still read them.
    replaced: Mutex<Vec<(u64, Weak<Run>)>>,
    next_run: AtomicU64,
    /// Bytes of all runs: each upload asks for them.
    bytes: AtomicU64,
    damaged: AtomicBool,
    /// Walks and merges are to end.
    stopped: AtomicBool,
    /// A manifest or run was missing or damaged when it was opened, and an older one serves.
    fell_back: bool,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Index")
    }
}

impl Index {
    fn empty(fs: Arc<dyn Fs>, cache_bytes: usize) -> Index {
        let layers =
            Layers { fresh: Layer::default(), fresh_bytes: 0, frozen: Arc::default(), runs: Arc::default() };
        Index {
            fs,
            cache: Arc::new(BlockCache::new(cache_bytes)),
            layers: RwLock::new(layers),
            manifest: Mutex::default(),
            merge: Mutex::default(),
            replaced: Mutex::default(),
            next_run: AtomicU64::new(1),
            bytes: AtomicU64::new(0),
            damaged: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            fell_back: false,
        }
    }

    /// Opens the index, and gives the position up to which it contains the log. `None` if there is
    /// none, or it is damaged; `usable` says whether the log has all from a position on, without
    /// which an older index is of no use.
    pub(crate) fn open(
        fs: &Arc<dyn Fs>,
        cache_bytes: usize,
        usable: &dyn Fn(LogPosition) -> bool,
    ) -> Result<Option<(Index, LogPosition, Totals)>, IndexError> {
        if fs.open(DAMAGE_MARK, false).is_ok() {
            tracing::error!("the index was found damaged; it is built again from the log");
            return Ok(None);
        }
        let mut manifests = Vec::new();
        for name in MANIFESTS {
            manifests.extend(read_manifest(&**fs, name)?);
        }
        // There is one as long as there was one checkpoint.
        let mut fell_back = manifests.len() == 1
            && (manifests[0].version > 1 || MANIFESTS.iter().all(|name| fs.open(name, false).is_ok()));
        manifests.sort_by_key(|manifest| std::cmp::Reverse(manifest.version));
        let named: Vec<u64> = manifests.iter().flat_map(|m| m.runs.iter().map(|run| run.number)).collect();
        for mut manifest in manifests {
            // The newest one may have more than the log, and then knows what that lost. A rebuild
            // that has not ended has the position 0.
            let is_complete = manifest.position.segment > 0;
            if !is_complete || fell_back && !usable(manifest.position) {
                fell_back = true;
                continue;
            }
            let mut index = Index { fell_back, ..Index::empty(Arc::clone(fs), cache_bytes) };
            // Of this one, if it does not check.
            fell_back = true;
            let runs = manifest.runs.iter().map(|info| Run::open(&**fs, *info, Arc::clone(&index.cache)));
            match runs.map(|run| run.map(Arc::new)).collect::<Result<Vec<_>, _>>() {
                Ok(runs) => {
                    index.layers.get_mut().unwrap_or_else(PoisonError::into_inner).runs = Arc::new(runs)
                }
                Err(error) => {
                    tracing::error!(%error, "the index cannot be opened");
                    continue;
                }
            }
            let bytes: u64 = manifest.runs.iter().map(|run| run.len).sum();
            index.bytes = AtomicU64::new(bytes);
            if bytes <= CHECKED_BYTES_MAX
                && let Err(error) = index.check()
            {
                tracing::error!(%error, "the index does not check");
                continue;
            }
            // Runs whose checkpoint or merge ended with the process.
            for number in fs.list(FOLDER)?.iter().filter_map(|name| run_number(name)) {
                if !named.contains(&number) {
                    fs.remove(&run::name(number))?;
                }
            }
            let last = named.iter().copied().max().unwrap_or(0);
            index.next_run = AtomicU64::new(manifest.next_run.max(last + 1));
            manifest.before = named;
            let (position, totals) = (manifest.position, manifest.totals);
            index.manifest = Mutex::new(manifest);
            return Ok(Some((index, position, totals)));
        }
        Ok(None)
    }

    /// An empty index in place of whatever is there.
    pub(crate) fn create(fs: &Arc<dyn Fs>, cache_bytes: usize) -> Result<Index, IndexError> {
        let mut index = Index::empty(Arc::clone(fs), cache_bytes);
        let names = fs.list(FOLDER)?;
        let last = names.iter().filter_map(|name| run_number(name)).max().unwrap_or(0);
        // Never a number that an older manifest names.
        index.next_run = AtomicU64::new(last + 1);
        for name in names {
            fs.remove(&format!("{FOLDER}/{name}"))?;
        }
        fs.sync_dir(FOLDER)?;
        Ok(index)
    }

    /// Entries of all runs, replaced ones included: an upper bound for how many keys there are.
    pub(crate) fn entries(&self) -> u64 {
        let layers = self.layers.read().unwrap_or_else(PoisonError::into_inner);
        let memory = layers.fresh.entries.len() + layers.frozen.entries.len();
        layers.runs.iter().map(|run| run.info.entries).sum::<u64>() + memory as u64
    }

    /// Bytes of all runs.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Reports whether a block did not check.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Reports whether an older manifest serves, because something was missing or damaged.
    pub(crate) fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Ends walks and merges, of which none begins any more.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Fails once walks and merges are to end.
    pub(crate) fn check_stop(&self) -> Result<(), IndexError> {
        if self.stopped.load(Ordering::Relaxed) { Err(IndexError::Stopped) } else { Ok(()) }
    }

    pub(crate) fn is_stopped(&self) -> &AtomicBool {
        &self.stopped
    }

    fn runs(&self) -> Arc<Vec<Arc<Run>>> {
        Arc::clone(&self.layers.read().unwrap_or_else(PoisonError::into_inner).runs)
    }

    /// Reads every block.
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        for run in self.runs().iter() {
            let mut entries = run.iter(b"", false)?;
            while entries.next().map_err(|error| self.note_damage(error))?.is_some() {
                self.check_stop()?;
            }
        }
        Ok(())
    }

    fn note_damage(&self, error: IndexError) -> IndexError {
        if matches!(error, IndexError::Damaged { .. }) && !self.damaged.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "look-ups that need this block fail; the next start builds the index again");
            // Without the mark, a start that meets the block again notices it as well.
            let _ = self.fs.open(DAMAGE_MARK, true).and_then(|file| file.sync());
            let _ = self.fs.sync_dir(FOLDER);
        }
        error
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, IndexError> {
        self.read(key, |_, value| value.into())
    }

    pub(crate) fn entry(&self, key: &[u8]) -> Result<Option<IndexEntry>, IndexError> {
        self.read(key, |record, value| IndexEntry::new(record, value))
    }

    /// Result of `read` for the entry of a key, `None` if there is none.
    pub(crate) fn read<T>(
        &self,
        key: &[u8],
        read: impl Fn(RecordPosition, &[u8]) -> T,
    ) -> Result<Option<T>, IndexError> {
        let layers = self.layers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = layers.fresh.get(key).or_else(|| layers.frozen.get(key)) {
            return Ok(entry.as_ref().map(|entry| read(entry.record, &entry.value)));
        }
        let runs = Arc::clone(&layers.runs);
        drop(layers);
        let fingerprint = run::fingerprint(key);
        for run in runs.iter() {
            // Outer to inner: the run has the key, it is not deleted, its entry is sound.
            let found = run.get(key, fingerprint, |bytes| {
                bytes.map(|bytes| IndexEntry::parts(bytes).map(|(record, value)| read(record, value)))
            });
            match found.map_err(|error| self.note_damage(error))? {
                None => {}
                Some(None) => return Ok(None),
                Some(Some(found)) => {
                    let damaged = || self.note_damage(IndexError::damaged(run.info.number, 0));
                    return found.ok_or_else(damaged).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Up to `limit` keys that begin with `prefix`, after `after`, in order, with their values.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, IndexError> {
        let entries = self.scan_entries(prefix, after, limit)?;
        Ok(entries.into_iter().map(|(key, entry)| (key, entry.value)).collect())
    }

    /// The same with whole entries.
    pub(crate) fn scan_entries(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<FoundEntry>, IndexError> {
        let (mut found, mut end) = self.scan_step(prefix, after, limit)?;
        while let Some(after) = end.filter(|_| found.len() < limit) {
            let (more, next) = self.scan_step(prefix, Some(&after), limit - found.len())?;
            found.extend(more);
            end = next;
        }
        Ok(found)
    }

    /// One step of a scan, and the key up to which it looked if that is not the end.
    fn scan_step(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<ScanStep, IndexError> {
        let start = match after {
            Some(after) if after >= prefix => Excluded(after),
            _ => Included(prefix),
        };
        let mut end: Option<Box<[u8]>> = None;
        let mut memory = Vec::new();
        let mut add = |layer: &Layer, step: usize| {
            let part = layer.entries.range::<[u8], _>((start, Unbounded));
            let part = part.take_while(|(key, _)| key.starts_with(prefix)).take(step);
            let part: Vec<IndexChange> = part.map(|(key, entry)| (key.clone(), entry.clone())).collect();
            if part.len() == step {
                let last = part.last().map(|(key, _)| key.clone());
                end = end.take().into_iter().chain(last).min();
            }
            memory.push(part.into_iter().peekable());
        };
        let (frozen, runs) = {
            let layers = self.layers.read().unwrap_or_else(PoisonError::into_inner);
            add(&layers.fresh, limit.min(APPLY_STEP));
            (Arc::clone(&layers.frozen), Arc::clone(&layers.runs))
        };
        add(&frozen, limit);
        let from = match start {
            Included(key) | Excluded(key) => key,
            Unbounded => b"",
        };
        // Forms of one content id are looked up with every answer; the filters know their common
        // prefix.
        let filtered = key::is_form_prefix(prefix).then(|| run::fingerprint(prefix));
        let mut disk = Vec::new();
        for run in runs.iter() {
            if filtered.is_some_and(|fingerprint| !run.has(fingerprint)) {
                continue;
            }
            let cursor = RunCursor::new(run, from, after, limit <= KEEP_LIMIT_MAX);
            disk.push((cursor.map_err(|error| self.note_damage(error))?, run.info.number));
        }
        let mut found = Vec::new();
        while found.len() < limit {
            let in_memory = memory.iter_mut().filter_map(|part| part.peek().map(|(key, _)| key));
            let on_disk = disk.iter().filter_map(|(cursor, _)| cursor.head.as_ref().map(|(key, _)| key));
            let next = in_memory.chain(on_disk).min().filter(|key| key.starts_with(prefix)).cloned();
            let Some(next) = next.filter(|key| end.as_ref().is_none_or(|end| key <= end)) else { break };
            // The newest source that has the key decides; the others skip it.
            let mut entry: Option<Option<IndexEntry>> = None;
            for part in &mut memory {
                if let Some((_, value)) = part.next_if(|(key, _)| *key == next) {
                    entry.get_or_insert(value);
                }
            }
            for (cursor, number) in &mut disk {
                if cursor.head.as_ref().is_some_and(|(key, _)| *key == next) {
                    let head = cursor.advance().map_err(|error| self.note_damage(error))?;
                    if entry.is_none()
                        && let Some((_, value)) = head
                    {
                        let read = |bytes: Box<[u8]>| {
                            let damaged = || self.note_damage(IndexError::damaged(*number, 0));
                            IndexEntry::read(&bytes).ok_or_else(damaged)
                        };
                        entry = Some(value.map(read).transpose()?);
                    }
                }
            }
            if let Some(Some(entry)) = entry {
                found.push((next, entry));
            }
        }
        Ok((found, end))
    }

    /// Makes entries visible, in their order. They must be in the log already.
    pub(crate) fn apply(&self, entries: impl IntoIterator<Item = IndexChange>) {
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
            for (key, entry) in entries.by_ref().take(APPLY_STEP) {
                layers.fresh_bytes += key.len() + entry.as_ref().map_or(0, |entry| entry.value.len()) + 96;
                layers.fresh.insert(key, entry);
            }
        }
    }

    /// Bytes in memory that the next checkpoint would move to disk.
    pub(crate) fn fresh_bytes(&self) -> usize {
        self.layers.read().unwrap_or_else(PoisonError::into_inner).fresh_bytes
    }

    /// Sets aside what was applied so far, to be written by
    /// [`finish_checkpoint`](Index::finish_checkpoint). Nothing may be applied between reading the
    /// log's position and this call.
    pub(crate) fn begin_checkpoint(&self) {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        layers.fresh_bytes = 0;
        let fresh = std::mem::take(&mut layers.fresh);
        if layers.frozen.entries.is_empty() {
            // Every look-up waits for this.
            layers.frozen = Arc::new(fresh);
            return;
        }
        // Entries that an earlier checkpoint could not write are still there, and older.
        let frozen = Arc::make_mut(&mut layers.frozen);
        fresh.entries.into_iter().for_each(|(key, entry)| frozen.insert(key, entry));
    }

    /// Writes what was set aside as a run, and a manifest that contains the log up to `position`.
    pub(crate) fn finish_checkpoint(&self, position: LogPosition, totals: Totals) -> Result<(), IndexError> {
        let frozen = Arc::clone(&self.layers.read().unwrap_or_else(PoisonError::into_inner).frozen);
        let mut runs = Vec::new();
        if !frozen.entries.is_empty() {
            let mut bytes = Vec::new();
            runs.extend(self.write_run(frozen.entries.len() as u64, |writer| {
                for (key, entry) in &frozen.entries {
                    bytes.clear();
                    if let Some(entry) = entry {
                        entry.write(&mut bytes);
                    }
                    writer.add(key, entry.is_some().then_some(&bytes[..]))?;
                }
                Ok(())
            })?);
        }
        let mut manifest = lock(&self.manifest);
        // A merge changes the list only under the same lock.
        runs.extend(self.runs().iter().cloned());
        self.write_manifest(&mut manifest, (position, totals), &runs)?;
        self.count_bytes(&runs);
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        let done = (std::mem::take(&mut layers.frozen), std::mem::replace(&mut layers.runs, Arc::new(runs)));
        drop(layers);
        drop(manifest);
        // Dropping them takes a while, in which others may read.
        drop((frozen, done));
        Ok(())
    }

    fn count_bytes(&self, runs: &[Arc<Run>]) {
        self.bytes.store(runs.iter().map(|run| run.info.len).sum(), Ordering::Relaxed);
    }

    /// Writes a run of what `fill` adds. `None` if that is nothing. A run that fails leaves no
    /// file: the disk may be full.
    fn write_run(
        &self,
        entries_max: u64,
        fill: impl FnOnce(&mut RunWriter) -> Result<(), IndexError>,
    ) -> Result<Option<Arc<Run>>, IndexError> {
        let number = self.next_run.fetch_add(1, Ordering::Relaxed);
        let write = || -> Result<Option<Arc<Run>>, IndexError> {
            let mut writer = RunWriter::create(&*self.fs, number, random(), entries_max)?;
            fill(&mut writer)?;
            let Some(info) = writer.finish()? else { return Ok(None) };
            Ok(Some(Arc::new(Run::open(&*self.fs, info, Arc::clone(&self.cache))?)))
        };
        let written = write();
        if !matches!(written, Ok(Some(_))) {
            let _ = self.fs.remove(&run::name(number));
        }
        written
    }

    /// Writes the manifest that names `runs`, and removes runs that neither it nor the one before
    /// names. Changes `manifest` only if that succeeds.
    fn write_manifest(
        &self,
        manifest: &mut Manifest,
        (position, totals): (LogPosition, Totals),
        runs: &[Arc<Run>],
    ) -> Result<(), IndexError> {
        let next = Manifest {
            version: manifest.version + 1,
            position,
            totals,
            next_run: self.next_run.load(Ordering::Relaxed),
            runs: runs.iter().map(|run| run.info).collect(),
            before: manifest.runs.iter().map(|run| run.number).collect(),
        };
        let file = self.fs.open(MANIFESTS[(next.version % 2) as usize], true)?;
        // The runs must be found under their names before anything names them.
        self.fs.sync_dir(FOLDER)?;
        file.write_at(&[IoSlice::new(&next.write())], 0)?;
        file.sync()?;
        let unnamed = std::mem::take(&mut manifest.before);
        *manifest = next;
        for number in unnamed {
            if !manifest.names(number) {
                self.remove_run(number);
            }
        }
        Ok(())
    }

    /// Removes the file of a run that no manifest names.
    fn remove_run(&self, number: u64) {
        let mut replaced = lock(&self.replaced);
        let place = replaced.iter().position(|(replaced, _)| *replaced == number);
        let run = place.map(|place| replaced.swap_remove(place).1);
        drop(replaced);
        let name = run::name(number);
        // The last walk that reads it frees its space otherwise.
        let is_unread = run.is_some_and(|run| run.strong_count() == 0);
        let file = self.fs.open(&name, false).ok().filter(|_| is_unread);
        if self.fs.remove(&name).is_ok()
            && let Some(file) = file
        {
            free_in_parts(&*file, &self.stopped, &mut || {});
        }
    }

    /// Merges runs, if the sizes of some have come close to each other. Whether it did.
    pub(crate) fn merge(&self) -> Result<bool, IndexError> {
        let _one = lock(&self.merge);
        let runs = self.runs();
        let Some(count) = merge_count(&runs) else { return Ok(false) };
        let (merged, rest) = runs.split_at(count);
        let entries = merged.iter().map(|run| run.info.entries).sum();
        let written = self.write_run(entries, |writer| self.merge_into(writer, merged, rest.is_empty()))?;
        let mut manifest = lock(&self.manifest);
        let now = self.runs();
        let oldest_merged = merged.first().map_or(0, |run| run.info.number);
        let fresh = now.iter().take_while(|run| run.info.number != oldest_merged).cloned();
        let replaced: Vec<Arc<Run>> = fresh.chain(written).chain(rest.iter().cloned()).collect();
        let contained = (manifest.position, manifest.totals);
        self.write_manifest(&mut manifest, contained, &replaced)?;
        lock(&self.replaced).extend(merged.iter().map(|run| (run.info.number, Arc::downgrade(run))));
        self.count_bytes(&replaced);
        self.layers.write().unwrap_or_else(PoisonError::into_inner).runs = Arc::new(replaced);
        Ok(true)
    }

    /// Adds the newest entry of each key; `is_oldest` if no older run has entries to hide.
    fn merge_into(
        &self,
        writer: &mut RunWriter,
        merged: &[Arc<Run>],
        is_oldest: bool,
    ) -> Result<(), IndexError> {
        let mut cursors = Vec::new();
        for run in merged {
            cursors.push(RunCursor::new(run, b"", None, false).map_err(|error| self.note_damage(error))?);
        }
        let mut turn = Turn::begin();
        while let Some(next) =
            cursors.iter().filter_map(|cursor| cursor.head.as_ref().map(|(key, _)| key)).min().cloned()
        {
            self.check_stop()?;
            turn.give_way(|| false);
            let mut newest: Option<Option<Box<[u8]>>> = None;
            for cursor in &mut cursors {
                if cursor.head.as_ref().is_some_and(|(key, _)| *key == next)
                    && let Some((_, value)) = cursor.advance().map_err(|error| self.note_damage(error))?
                {
                    newest.get_or_insert(value);
                }
            }
            match newest.flatten() {
                Some(value) => writer.add(&next, Some(&value))?,
                None if is_oldest => {}
                None => writer.add(&next, None)?,
            }
        }
        Ok(())
    }
}

/// Number of the newest runs to merge: those up to the last that is not larger than all newer
/// ones together.
fn merge_count(runs: &[Arc<Run>]) -> Option<usize> {
    let mut newer = 0;
    let mut count = 0;
    for (index, run) in runs.iter().enumerate() {
        if index > 0 && run.info.len <= newer {
            count = index + 1;
        }
        newer += run.info.len;
    }
    (count > 1).then_some(count)
}

/// Number of a run by its file name.
fn run_number(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(".run")?, 16).ok()
}

/// Cursor of a scan or merge over one run.
struct RunCursor {
    entries: RunIter,
    /// The next entry.
    head: Option<RunEntry>,
}

impl RunCursor {
    fn new(run: &Arc<Run>, from: &[u8], after: Option<&[u8]>, keep: bool) -> Result<RunCursor, IndexError> {
        let mut cursor = RunCursor { entries: run.iter(from, keep)?, head: None };
        cursor.advance()?;
        if cursor.head.as_ref().is_some_and(|(key, _)| Some(&**key) == after) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// Takes the next entry.
    fn advance(&mut self) -> Result<Option<RunEntry>, IndexError> {
        let next = self.entries.next()?;
        Ok(std::mem::replace(&mut self.head, next))
    }
}

impl Manifest {
    fn names(&self, number: u64) -> bool {
        self.before.contains(&number) || self.runs.iter().any(|run| run.number == number)
    }

    /// Magic, length(4) and CRC-32C(4) of the rest: numbers of eight bytes.
    fn write(&self) -> Vec<u8> {
        let LogPosition { segment, offset, sequence } = self.position;
        let Totals { large_bytes } = self.totals;
        let mut numbers =
            vec![self.version, segment, offset, sequence, large_bytes, self.next_run, self.runs.len() as u64];
        for RunInfo { number, nonce, len, entries } in &self.runs {
            numbers.extend([*number, *nonce, *len, *entries]);
        }
        let body: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut bytes = MANIFEST_MAGIC.to_vec();
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Manifest> {
        let rest = bytes.strip_prefix(MANIFEST_MAGIC)?;
        let (len, rest) = rest.split_first_chunk()?;
        let (crc, rest) = rest.split_first_chunk()?;
        let body = rest.get(..u32::from_le_bytes(*len) as usize)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut numbers =
            body.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        let mut number = || numbers.next();
        let version = number()?;
        let position = LogPosition { segment: number()?, offset: number()?, sequence: number()? };
        let totals = Totals { large_bytes: number()? };
        let (next_run, count) = (number()?, number()?);
        let mut runs = Vec::new();
        for _ in 0..count {
            runs.push(RunInfo { number: number()?, nonce: number()?, len: number()?, entries: number()? });
        }
        Some(Manifest { version, position, totals, next_run, runs, before: Vec::new() })
    }
}

/// The position up to which an index contains the log, also one that does not check otherwise: the
/// log was synced up to there.
pub(crate) fn known_position(fs: &dyn Fs) -> LogPosition {
    let manifests = MANIFESTS.iter().filter_map(|name| read_manifest(fs, name).ok().flatten());
    manifests.map(|manifest| manifest.position).max().unwrap_or_default()
}

fn read_manifest(fs: &dyn Fs, name: &str) -> Result<Option<Manifest>, IndexError> {
    let file = match fs.open(name, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // A manifest of as many runs as ever are is a kilobyte long.
    let mut bytes = vec![0; file.len()?.min(1 << 20) as usize];
    file.read_at(&mut bytes, 0)?;
    let manifest = Manifest::read(&bytes);
    if manifest.is_none() {
        tracing::warn!(
            name,
            "a manifest of the index does not check: the power failed while it was written, or it is damaged"
        );
    }
    Ok(manifest)
}
