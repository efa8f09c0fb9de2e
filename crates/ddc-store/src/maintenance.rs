//! Maintenance: garbage collection, reclaiming of space, scrubs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_ddc::gc::{self, RefPolicy};
use throng_ddc::{Bucket, Document, IoHash, Key, Namespace, Timestamp};

use crate::blob;
use crate::commit::Change;
use crate::index::IndexEntry;
use crate::key::{self, Location, RefValue};
use crate::log::{self, Found, Reader, losses, read_range};
use crate::marks::Marks;
use crate::open::Damage;
use crate::reads::is_damage;
use crate::record::{self, Kind, NAMED_BYTES};
use crate::store::{Store, StoreError, lock};

/// Entries that one step of a walk over the index reads, so that no step holds up writers for long.
const STEP: usize = 512;
/// Bytes of blobs that are moved before the moves are committed.
const MOVE_BYTES: u64 = 8 << 20;
/// Keys that one record of losses names.
const LOSS_KEYS_MAX: usize = 4096;
/// A segment is emptied when less than this part of it is in use.
const LIVE_PERCENT_MIN: u64 = 50;

/// What a collection needs to know.
pub struct CollectOptions<'a> {
    /// The time.
    pub now: Timestamp,
    /// How refs of a namespace expire.
    pub policy: &'a dyn Fn(&Namespace) -> RefPolicy,
    /// Time when a ref was last used, if that is known better than the store has it noted.
    pub last_access: &'a dyn Fn(&Namespace, &Bucket, &Key) -> Option<Timestamp>,
    /// Blobs younger than this stay, whoever needs them.
    pub blob_age_min: Duration,
}

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Refs that had expired.
    pub refs: u64,
    /// Blobs that no ref reached.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Blobs that were written again so that their segment could go.
    pub moved: u64,
    /// Segments that were removed.
    pub segments: u64,
}

/// What a scrub found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs whose bytes have another hash, or cannot be read. They are misses from now on.
    pub damaged: u64,
    /// Index entries whose file is gone.
    pub lost: u64,
}

/// What a namespace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Refs, finalised or not.
    pub refs: u64,
    /// Refs that wait for something that they refer to.
    pub unfinalised: u64,
    /// Blobs.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Forms of content ids.
    pub contents: u64,
}

/// What a verification found. Nothing is changed by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs whose bytes have another hash, or cannot be read.
    pub damaged: u64,
    /// Parts of the log that are no records although the log goes on behind them.
    pub log_gaps: u64,
    /// Finalised refs.
    pub refs: u64,
    /// Finalised refs that reach something that is not stored.
    pub incomplete: u64,
}

/// Takes a key and its entry.
type VisitEntry<'v> = dyn FnMut(&[u8], &IndexEntry) -> Result<(), StoreError> + 'v;

/// Takes a key and its value.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'v;

impl Store {
    /// Removes expired refs, then blobs that no ref reaches, then gives their space back.
    ///
    /// Requests go on meanwhile: a blob that a ref comes to rely on during the collection stays.
    /// Runs on the caller's thread; one at a time.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed; nothing else is affected.
    pub fn collect(&self, options: &CollectOptions<'_>) -> Result<CollectReport, StoreError> {
        let _one = lock(&self.maintenance);
        let mut done = CollectReport::default();
        {
            let _log = lock(&self.log);
            *lock(&self.relied_on) = Some(BTreeSet::new());
        }
        let result = self.namespaces().and_then(|namespaces| {
            for namespace in namespaces {
                self.collect_namespace(&namespace, options, &mut done)?;
            }
            Ok(())
        });
        {
            let _log = lock(&self.log);
            *lock(&self.relied_on) = None;
        }
        result?;
        self.give_back(&mut done, LIVE_PERCENT_MIN)?;
        Ok(done)
    }

    fn collect_namespace(
        &self,
        namespace: &Namespace,
        options: &CollectOptions<'_>,
        done: &mut CollectReport,
    ) -> Result<(), StoreError> {
        let policy = (options.policy)(namespace);
        let mut marks = Marks::new(self.index.entries(), false);
        self.walk(&key::in_namespace(b'r', namespace), &mut |index_key, stored| {
            let (Some((_, bucket, key)), Some(value)) =
                (key::read_reference(index_key), RefValue::read(stored))
            else {
                return Ok(());
            };
            let noted = self.last_access(namespace, &bucket, &key)?;
            let used = (options.last_access)(namespace, &bucket, &key).max(noted).unwrap_or(value.put);
            if policy.expired(value.put, used, options.now) {
                done.refs += 1;
                self.queue_and_commit(Change::Collect { key: index_key.to_vec(), value: stored.into() });
                return Ok(());
            }
            marks.begin_ref(true);
            self.mark(namespace, &value, 1, &mut marks)
        })?;
        self.commit();
        for snapshot in self.snapshots(namespace)? {
            marks.mark(&snapshot.blob, 1);
        }
        self.drop_unused_accesses(namespace)?;
        self.walk(&key::in_namespace(b'b', namespace), &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            let is_reached = marks.is_reached(&hash);
            if gc::blob_expired(is_reached, location.put, options.now, options.blob_age_min) {
                done.blobs += 1;
                done.blob_bytes += location.len;
                self.queue_and_commit(Change::Collect { key: index_key.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();
        self.drop_unused_forms(namespace)
    }

    /// Removes the last uses of refs that are gone.
    pub(crate) fn drop_unused_accesses(&self, namespace: &Namespace) -> Result<(), StoreError> {
        self.walk(&key::in_namespace(b'a', namespace), &mut |noted, stored| {
            let mut reference = noted.to_vec();
            reference[0] = b'r';
            if self.index.get(&reference)?.is_none() {
                self.queue_and_commit(Change::Collect { key: noted.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();
        Ok(())
    }

    /// Removes forms of content ids whose blobs are gone.
    pub(crate) fn drop_unused_forms(&self, namespace: &Namespace) -> Result<(), StoreError> {
        self.walk(&key::in_namespace(b'c', namespace), &mut |form, stored| {
            if let Some(blob) = key::last_hash(form)
                && !self.has_blob(namespace, &blob)?
            {
                self.queue_and_commit(Change::Collect { key: form.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();
        Ok(())
    }

    /// Removes segments without a live record, after moving the live records out of those of which
    /// less than `live_percent_min` is in use. Deletes move as long as an older record of their key
    /// may exist: the index can be built again from the log at any time.
    ///
    /// On a disk that is nearly full, as much moves at a time as there is space for, out of the
    /// segments that give most of theirs back.
    pub(crate) fn give_back(
        &self,
        done: &mut CollectReport,
        live_percent_min: u64,
    ) -> Result<(), StoreError> {
        // Records before this position are in the index on disk; those behind it lie in segments
        // that stay.
        let open = self.write_index()?.segment;
        loop {
            let mut live = self.live_bytes()?;
            let mut sparse: Vec<(u64, u64)> = Vec::new();
            for segment in self.segments.numbers().into_iter().filter(|segment| *segment < open) {
                let bytes = live.get(&segment).copied().unwrap_or(0);
                if bytes * 100 < self.segments.bytes_of(segment) * live_percent_min {
                    sparse.push((bytes, segment));
                }
            }
            sparse.sort_unstable();
            let room = self.room_for_moves(sparse.first().map_or(0, |(bytes, _)| *bytes));
            let mut moved = 0;
            let fits = |(bytes, _): &&(u64, u64)| {
                moved += bytes;
                moved <= room
            };
            let now: BTreeSet<u64> = sparse.iter().take_while(fits).map(|(_, segment)| *segment).collect();
            if now.iter().any(|segment| live.contains_key(segment)) {
                self.move_live(&now, done)?;
                live = self.live_bytes()?;
            }
            let is_last_step = now.len() == sparse.len();
            let emptied: Vec<u64> = now.into_iter().filter(|segment| !live.contains_key(segment)).collect();
            if !emptied.is_empty() {
                let failures = self.stats().failures;
                for segment in &emptied {
                    self.move_deletes(*segment)?;
                }
                // A delete that could not be written again must not go with its segment: what it
                // deleted would be found again.
                if self.stats().failures > failures {
                    return self.remove_unfinished_uploads();
                }
                // The moved records are durable, and no index on disk needs the old ones, before
                // they go.
                self.write_index()?;
                for segment in &emptied {
                    self.segments.remove(*segment)?;
                    done.segments += 1;
                }
                self.fs.sync_dir(log::FOLDER)?;
            }
            if is_last_step || emptied.is_empty() {
                return self.remove_unfinished_uploads();
            }
        }
    }

    /// Bytes of live records that may be written again before segments are removed; `least` are in
    /// the segment with the fewest.
    fn room_for_moves(&self, least: u64) -> u64 {
        match self.fs.free_bytes() {
            Ok(Some(free)) if least == 0 && free < self.options.free_bytes_min => 0,
            Ok(Some(free)) => (free / 2).max(self.options.disk_reserve_bytes / 8).max(least),
            _ => u64::MAX,
        }
    }

    /// Bytes of records in each segment that the index names.
    fn live_bytes(&self) -> Result<BTreeMap<u64, u64>, StoreError> {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        self.walk_entries(b"", &mut |key, entry| {
            if entry.record.segment > 0 {
                // Commit and directory name the key as well.
                let mut bytes = record::bytes(key, &entry.value) + NAMED_BYTES;
                if key.first() == Some(&b'b')
                    && let Some(location) = Location::read(&entry.value)
                    && !location.is_large()
                {
                    bytes += location.len;
                }
                *live.entry(entry.record.segment).or_default() += bytes;
            }
            Ok(())
        })?;
        Ok(live)
    }

    /// Writes the live records of segments again at the end of the log.
    fn move_live(&self, segments: &BTreeSet<u64>, done: &mut CollectReport) -> Result<(), StoreError> {
        let mut queued = 0;
        self.walk_entries(b"", &mut |index_key, entry| {
            if !segments.contains(&entry.record.segment) {
                return Ok(());
            }
            let location = Location::read(&entry.value)
                .filter(|location| index_key.first() == Some(&b'b') && !location.is_large());
            let payload = match location {
                None => None,
                Some(location) => match self.open_blob(&location)?.map(|blob| (blob.read_checked(), blob)) {
                    Some((Ok(payload), _)) => Some(payload),
                    Some((Err(error), blob)) if is_damage(&error) => {
                        if let Some((namespace, hash)) = key::read_blob(index_key) {
                            self.discard_damaged(&namespace, &hash, &blob);
                        }
                        return Ok(());
                    }
                    Some((Err(error), _)) => return Err(error.into()),
                    None => return Ok(()),
                },
            };
            done.moved += 1;
            queued += payload.as_ref().map_or(0, |payload| payload.len() as u64) + 256;
            self.queue_maintenance(Change::Move { key: index_key.to_vec(), record: entry.record, payload });
            if queued >= MOVE_BYTES {
                queued = 0;
                self.commit();
            }
            Ok(())
        })?;
        self.commit();
        Ok(())
    }

    /// Writes the deletes of a segment again that an older record still needs, and the losses.
    fn move_deletes(&self, segment: u64) -> Result<(), StoreError> {
        let mut deletes = Deletes { store: self, segment, lost: Vec::new() };
        self.segments.read(segment, 0, 0, log::ALL_SYNCED, &mut deletes)?;
        let lost = std::mem::take(&mut deletes.lost);
        let first = self.segments.next_from(0).unwrap_or(segment);
        let needed = lost.into_iter().filter(|(_, bound, _)| first < *bound && first != segment);
        let needed: Vec<_> = needed.collect();
        for keys in needed.chunks(LOSS_KEYS_MAX) {
            self.queue_maintenance(Change::Loss { keys: keys.to_vec() });
        }
        self.commit();
        Ok(())
    }

    /// Removes files of uploads that ended with an earlier process.
    fn remove_unfinished_uploads(&self) -> Result<(), StoreError> {
        let names = self.fs.list(blob::FOLDER)?;
        let olds = names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok());
        let mut olds: Vec<u64> = olds.filter(|file| *file < self.first_large).collect();
        if olds.is_empty() || self.has_cleaned_up.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let mut named = Vec::new();
        self.walk(b"b", &mut |_, stored| {
            named.extend(Location::read(stored).filter(Location::is_large).map(|location| location.file));
            Ok(())
        })?;
        named.sort_unstable();
        olds.retain(|file| named.binary_search(file).is_err());
        for file in olds {
            self.fs.remove(&blob::name(file))?;
        }
        Ok(())
    }

    /// Reads every blob and makes misses of those whose bytes are not what their name says. `pause`
    /// is called after each, with its size, so that the caller can bound the rate.
    ///
    /// # Errors
    /// As the system says about the index; unreadable blobs are damage, not errors.
    pub fn scrub(&self, pause: &mut dyn FnMut(u64)) -> Result<ScrubReport, StoreError> {
        let _one = lock(&self.scrub);
        let mut done = ScrubReport::default();
        self.index.check()?;
        self.walk(b"b", &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            done.blobs += 1;
            done.bytes += location.len;
            let blob = self.open_blob(&location)?;
            let sound = blob.as_ref().is_some_and(|blob| blob.is_sound(&hash));
            if !sound && self.location(index_key)? == Some(location) {
                match blob {
                    Some(blob) => {
                        done.damaged += 1;
                        tracing::error!(%hash, "a blob is damaged; it is quarantined");
                        self.put_aside(&hash, &blob, done.damaged);
                    }
                    None => done.lost += 1,
                }
                self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                self.queue_maintenance(Change::Collect { key: index_key.to_vec(), value: stored.into() });
                self.commit();
            }
            pause(location.len);
            Ok(())
        })?;
        Ok(done)
    }

    /// Counts what a namespace holds: one walk over its part of the index.
    ///
    /// # Errors
    /// As the system says.
    pub fn usage(&self, namespace: &Namespace) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        self.walk(&key::in_namespace(b'r', namespace), &mut |_, stored| {
            usage.refs += 1;
            usage.unfinalised += u64::from(RefValue::read(stored).is_some_and(|value| !value.finalised));
            Ok(())
        })?;
        self.walk(&key::in_namespace(b'b', namespace), &mut |_, stored| {
            usage.blobs += 1;
            usage.blob_bytes += Location::read(stored).map_or(0, |location| location.len);
            Ok(())
        })?;
        self.walk(&key::in_namespace(b'c', namespace), &mut |_, _| {
            usage.contents += 1;
            Ok(())
        })?;
        Ok(usage)
    }

    /// Reads the whole log and index, every blob, and follows every finalised ref.
    ///
    /// # Errors
    /// As the system says about the index; unreadable blobs are damage, not errors.
    pub fn verify(&self) -> Result<VerifyReport, StoreError> {
        let _one = lock(&self.maintenance);
        self.index.check()?;
        let mut found = VerifyReport::default();
        let mut damage = Damage::default();
        let numbers = self.segments.numbers();
        for segment in &numbers {
            let synced = if Some(segment) == numbers.last() { 0 } else { log::ALL_SYNCED };
            self.segments.read(*segment, 0, 0, synced, &mut damage)?;
        }
        found.log_gaps = damage.gaps;
        self.walk(b"b", &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            found.blobs += 1;
            found.bytes += location.len;
            let blob = self.open_blob(&location)?;
            let sound = blob.is_some_and(|blob| blob.is_sound(&hash));
            found.damaged += u64::from(!sound);
            Ok(())
        })?;
        self.walk(b"r", &mut |index_key, stored| {
            let (Some((namespace, ..)), Some(value)) =
                (key::read_reference(index_key), RefValue::read(stored))
            else {
                return Ok(());
            };
            if !value.finalised {
                return Ok(());
            }
            found.refs += 1;
            let object = self.object(&namespace, &value)?;
            let complete = match object.as_deref().map(Document::parse) {
                Some(Ok(document)) => self.close(&namespace, &document)?.0.missing().is_empty(),
                _ => false,
            };
            found.incomplete += u64::from(!complete);
            Ok(())
        })?;
        Ok(found)
    }

    /// Makes a miss of a blob that was read and is not what its name says, and puts its bytes
    /// aside.
    pub fn discard_damaged(&self, namespace: &Namespace, hash: &IoHash, blob: &blob::Blob) {
        tracing::error!(%namespace, %hash, "a blob is damaged; it is quarantined");
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        self.put_aside(hash, blob, 0);
        self.queue_maintenance(Change::Delete { key: key::blob(namespace, hash) });
    }

    /// Copies what can be read of a damaged blob, for people to look at.
    fn put_aside(&self, hash: &IoHash, blob: &blob::Blob, number: u64) {
        let copy = || -> std::io::Result<()> {
            let file = self.fs.open(&format!("quarantine/{hash}-{number}"), true)?;
            let mut offset = 0;
            while offset < blob.len() {
                let piece = blob.read(offset, (blob.len() - offset).min(1 << 18) as usize)?;
                file.write_at(&[IoSlice::new(&piece)], offset)?;
                offset += piece.len() as u64;
            }
            Ok(())
        };
        if let Err(error) = copy() {
            tracing::warn!(%error, %hash, "the damaged blob could not be copied");
        }
    }

    /// Calls `visit` with every entry under `prefix`, a step at a time; entries may change between
    /// steps.
    pub(crate) fn walk(&self, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let step = self.index.scan(prefix, after.as_deref(), STEP)?;
            for (key, value) in &step {
                visit(key, value)?;
            }
            match step.into_iter().last() {
                Some((key, _)) => after = Some(key),
                None => return Ok(()),
            }
        }
    }

    /// The same with whole entries.
    fn walk_entries(&self, prefix: &[u8], visit: &mut VisitEntry<'_>) -> Result<(), StoreError> {
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let step = self.index.scan_entries(prefix, after.as_deref(), STEP)?;
            for (key, entry) in &step {
                visit(key, entry)?;
            }
            match step.into_iter().last() {
                Some((key, _)) => after = Some(key),
                None => return Ok(()),
            }
        }
    }

    /// Queues a change of our own, and commits when enough is queued.
    pub(crate) fn queue_and_commit(&self, change: Change) {
        self.queue_maintenance(change);
        if lock(&self.queue).changes.len() >= STEP {
            self.commit();
        }
    }

    /// Queues a change of our own, whose outcome is looked up instead of awaited.
    pub(crate) fn queue_maintenance(&self, change: Change) {
        self.enqueue(change, Box::new(|_| {}));
    }
}

/// Finds the deletes and losses of a segment that are still needed.
struct Deletes<'s> {
    store: &'s Store,
    segment: u64,
    lost: Vec<(u64, u64, u64)>,
}

impl Reader for Deletes<'_> {
    fn record(&mut self, found: Found) -> io::Result<()> {
        match found.kind {
            Kind::Delete => {
                // A segment that is emptied with this one still exists: its removal may be lost.
                let needed = read_range(&found.value).is_some_and(|(first, last)| {
                    let segments = &self.store.segments;
                    segments.any_in(first, last.min(self.segment.saturating_sub(1)))
                        || segments.any_in(first.max(self.segment + 1), last)
                });
                if needed {
                    self.store.queue_and_commit(Change::MoveDelete { key: found.key, range: found.value });
                }
            }
            Kind::Loss => self.lost.extend(losses(&found.value)),
            Kind::Put | Kind::Commit | Kind::Directory => {}
        }
        Ok(())
    }

    fn lost(&mut self, fingerprint: u64, segment: u64, offset: u64) {
        self.lost.push((fingerprint, segment, offset));
    }

    fn gap(&mut self, segment: u64, offset: u64, len: u64) {
        self.store.counters.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(segment, offset, len, "a part of the log is damaged");
    }
}
