//! Maintenance: scrubs, verification, walks over the index.

use std::io::IoSlice;
use std::sync::atomic::Ordering;

use throng_ddc::{Document, IoHash, Namespace};

use crate::blob;
use crate::change::Change;
use crate::error::StoreError;
use crate::index::IndexEntry;
use crate::key::{self, Location, RefValue};
use crate::locks::lock;
use crate::log::{self, Missing, Reader as _};
use crate::open::Damage;
use crate::store::Store;
use crate::turn::Turn;

/// Changes of maintenance that are committed at a time: uploads that arrive meanwhile wait for all
/// of them. One commit takes no longer than two of an upload by itself.
pub(crate) const OWN_CHANGES_MAX: usize = 64;
/// Entries that one step of a walk over the index reads, so that no step holds up writers for long.
const STEP: usize = 512;

/// Findings of a scrub.
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

/// Contents of a namespace.
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
    /// Damaged or missing parts of the log that no rebuild of the index acknowledged.
    pub log_gaps: u64,
    /// True if a part of the index is missing or damaged: a start builds it again from the log.
    pub index_damaged: bool,
    /// Finalised refs.
    pub refs: u64,
    /// Finalised refs that reach something that is not stored.
    pub incomplete: u64,
}

/// Takes a key and its entry.
pub(crate) type VisitEntry<'v> = dyn FnMut(&[u8], &IndexEntry) -> Result<(), StoreError> + 'v;

/// Takes a key and its value.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'v;

impl Store {
    /// Removes files of uploads that ended with an earlier process.
    pub(crate) fn remove_unfinished_uploads(&self) -> Result<(), StoreError> {
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
            self.remove_large(file)?;
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
            let mut turn = Turn::begin();
            let sound = blob.as_ref().is_some_and(|blob| {
                blob.is_sound_while(&hash, &mut || {
                    turn.give_way(|| false);
                    !self.is_ending()
                })
            });
            self.index.check_stop()?;
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
                self.await_commits();
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

    /// Bytes of the blobs and refs of a namespace, as a quota counts them.
    ///
    /// # Errors
    /// As the system says.
    pub fn size_of(&self, namespace: &Namespace) -> Result<u64, StoreError> {
        let mut size = 0;
        self.walk_at_once(&key::in_namespace(b'b', namespace), &mut |_, entry| {
            size += Location::read(&entry.value).map_or(0, |location| location.len);
            Ok(())
        })?;
        self.walk_at_once(&key::in_namespace(b'r', namespace), &mut |_, entry| {
            size += entry.value.len() as u64;
            Ok(())
        })?;
        Ok(size)
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
        for Missing { segment, offset, len } in self.segments.missing()? {
            damage.gap(segment, offset, len);
        }
        // The end of the log at the opening lies before a new segment now, and is judged otherwise.
        found.log_gaps = lock(&self.gaps).open(&damage.gaps).max(self.opening.log_gaps);
        found.index_damaged = self.opening.index_damaged;
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

    /// Ends collections, evictions, scrubs, merges and counts at their next step, with an error of
    /// which [`StoreError::is_stop`] is true: the store is to stop. Requests go on.
    pub fn end_maintenance(&self) {
        self.index.stop();
    }

    /// Reports whether the store is to stop.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.index.is_stopped().load(Ordering::Relaxed)
    }

    /// Calls `visit` with every entry under `prefix`, a step at a time; entries may change between
    /// steps. Gives way to requests in between.
    ///
    /// # Errors
    /// Those of `visit`, those of the index, and once maintenance is to end.
    pub(crate) fn walk(&self, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.walk_entries(prefix, &mut |key, entry| visit(key, &entry.value))
    }

    /// The same with whole entries.
    pub(crate) fn walk_entries(&self, prefix: &[u8], visit: &mut VisitEntry<'_>) -> Result<(), StoreError> {
        let mut turn = Turn::begin();
        self.walk_at_once(prefix, &mut |key, entry| {
            visit(key, entry)?;
            turn.give_way(|| self.is_short_of_space());
            Ok(())
        })
    }

    /// The same without giving way: requests wait for it.
    fn walk_at_once(&self, prefix: &[u8], visit: &mut VisitEntry<'_>) -> Result<(), StoreError> {
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let step = self.index.scan_entries(prefix, after.as_deref(), STEP)?;
            for (key, entry) in &step {
                self.index.check_stop()?;
                visit(key, entry)?;
            }
            match step.into_iter().last() {
                Some((key, _)) => after = Some(key),
                None => return Ok(()),
            }
        }
    }

    /// Queues a change of our own, and commits when enough are queued.
    ///
    /// # Errors
    /// Failure of this change or an earlier one.
    pub(crate) fn queue_and_commit(&self, change: Change) -> Result<(), StoreError> {
        match self.queue_own(change) >= OWN_CHANGES_MAX {
            true => self.commit_own(),
            false => Ok(()),
        }
    }

    /// Queues a change of our own for [`commit_own`](Store::commit_own), which reports its failure.
    /// Gives how many wait for that.
    pub(crate) fn queue_own(&self, change: Change) -> usize {
        let mut changes = lock(&self.own_changes);
        changes.push(change);
        changes.len()
    }

    /// Forgets changes that maintenance which failed did not commit: later, refs may rely on what
    /// they remove.
    pub(crate) fn forget_own<T>(&self, result: &Result<T, StoreError>) {
        if result.is_err() {
            lock(&self.own_changes).clear();
        }
    }

    /// Commits everything that is queued.
    ///
    /// # Errors
    /// The last failure of a change of our own since the last call.
    pub(crate) fn commit_own(&self) -> Result<(), StoreError> {
        self.commit_maintenance();
        lock(&self.own_failure).take().map_or(Ok(()), Err)
    }

    /// Queues a change of our own, whose outcome is looked up instead of awaited.
    pub(crate) fn queue_maintenance(&self, change: Change) {
        self.enqueue(change, Box::new(|_| {}));
    }
}
