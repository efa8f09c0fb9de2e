//! The store: its parts, its opening, and its changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};

use bytes::Bytes;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use crate::blob::{self, LargeWriter};
use crate::change::{Change, ChangeResult, Done, PutRef, Queue};
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::gaps::Gaps;
use crate::index::Index;
use crate::key::{self, Location};
use crate::locks::lock;
use crate::log::{Log, Segments};
use crate::quota::{Quotas, Replaced, Sizes};
use crate::repeated::Repeated;
use crate::run::fingerprint;
use throng_platform::{File, Fs};

/// Time when a change is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Time when it is on disk: it survives a power failure.
    #[default]
    Sync,
    /// Time when the system has it: it survives the end of the process, not of the machine.
    Cache,
}

/// How a store works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time when a change is acknowledged.
    pub durability: Durability,
    /// Objects of refs up to this size lie in the index; larger ones are blobs.
    pub inline_bytes_max: usize,
    /// A segment of the log is closed when it is this long.
    pub segment_bytes_max: u64,
    /// Space that is reserved for the log and for large blobs at a time; 0 for none.
    pub reserve_bytes: u64,
    /// Zeros that are written ahead of small changes; 0 for none. To overwrite them is durable
    /// several times sooner than to make a file longer.
    pub zero_bytes: u64,
    /// The index follows the log when this much is in memory only; also what a start may have to
    /// read again, without the blobs among it.
    pub checkpoint_bytes: usize,
    /// Memory for pages of the index.
    pub index_cache_bytes: usize,
    /// Bytes that may wait to be written before uploads are refused.
    pub queue_bytes_max: usize,
    /// True if refs that come and go are written to the replication log.
    pub replication_log: bool,
    /// Bytes of the disk that are kept for deletes and collections; 0 for none.
    pub disk_reserve_bytes: u64,
    /// Uploads are refused while the disk has less space than this.
    pub free_bytes_min: u64,
    /// Clock of the store and of its service.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Sync,
            inline_bytes_max: 64 << 10,
            segment_bytes_max: 256 << 20,
            reserve_bytes: 32 << 20,
            zero_bytes: 1 << 20,
            checkpoint_bytes: 16 << 20,
            index_cache_bytes: 32 << 20,
            queue_bytes_max: 128 << 20,
            replication_log: false,
            disk_reserve_bytes: 64 << 20,
            free_bytes_min: 128 << 20,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

/// Damage that a store had when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// A part of the index was missing or damaged.
    pub index_damaged: bool,
    /// Damaged or missing parts of the log that were found and not acknowledged by a rebuild of the
    /// index; the keys that they held are missing until they are put again.
    pub log_gaps: u64,
}

/// Counters of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches written to the log.
    pub commits: u64,
    /// Changes in them.
    pub changes: u64,
    /// Bytes appended to the log.
    pub log_bytes: u64,
    /// Checkpoints of the index.
    pub checkpoints: u64,
    /// Changes that were refused because a write failed.
    pub failures: u64,
    /// Damaged parts of the log, damaged blobs and lost files that were found.
    pub damaged: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) damaged: AtomicU64,
}

/// Namespaces of which nothing may go, while they alone hold more than the folder may.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) namespaces: BTreeSet<Namespace>,
    /// Bytes that the folder may hold.
    pub(crate) bytes_max: u64,
}

/// Refs and blobs that no collection or eviction removes.
#[derive(Default)]
pub(crate) struct Reliance {
    pub(crate) collections: u32,
    /// Fingerprints of those that refs or answers came to rely on since the first of the running
    /// collections began.
    pub(crate) used: BTreeSet<u64>,
    /// Blobs that uploads hold, and the number of uploads.
    pub(crate) held: BTreeMap<Vec<u8>, u32>,
    pub(crate) repeated: Repeated,
}

impl Reliance {
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.used.contains(&fingerprint(key)) || self.held.contains_key(key) || self.repeated.has(key)
    }
}

/// A cache on disk. Shared by threads; see the crate's documentation.
///
/// Changes are queued and answered through [`Done`]; somebody must call [`commit`](Store::commit)
/// for them to be made, which [`Store::run`] does on a thread of its own.
pub struct Store {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) options: Options,
    pub(crate) index: Index,
    pub(crate) queue: Mutex<Queue>,
    /// There is something to commit, or nothing will come any more.
    pub(crate) arrived: Condvar,
    /// Nothing will come any more.
    pub(crate) closing: Condvar,
    pub(crate) log: Mutex<Log>,
    /// Held while a checkpoint runs.
    pub(crate) checkpoint: Mutex<()>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) next_large: AtomicU64,
    /// Bytes of large blobs that the index names.
    pub(crate) large_bytes: AtomicU64,
    /// Large files with smaller numbers are of earlier processes.
    pub(crate) first_large: u64,
    /// Held by collections and evictions: one at a time.
    pub(crate) maintenance: Mutex<()>,
    /// Held by a scrub: one at a time.
    pub(crate) scrub: Mutex<()>,
    /// Files of uploads that ended with an earlier process are gone.
    pub(crate) has_cleaned_up: AtomicBool,
    /// What `log_bytes` was at the last checkpoint.
    pub(crate) checkpointed_bytes: AtomicU64,
    pub(crate) broken: Mutex<Option<Arc<io::Error>>>,
    pub(crate) is_broken: AtomicBool,
    /// The disk has less space than uploads need.
    pub(crate) is_full: AtomicBool,
    /// Namespaces that take no uploads because nothing of them may go.
    pub(crate) kept: RwLock<Kept>,
    /// Bytes that the folder may hold, 0 for no limit.
    pub(crate) bytes_max: AtomicU64,
    /// Bytes that the last eviction left.
    pub(crate) evicted_to: AtomicU64,
    /// Size of the largest upload that was refused for want of room since the last eviction.
    pub(crate) wanted: AtomicU64,
    /// Size of the upload that the last eviction made no room for. The next one for it is not
    /// urgent.
    pub(crate) unmet: AtomicU64,
    /// Changes of requests that were queued so far, and at the last commit of maintenance.
    pub(crate) asked: AtomicU64,
    pub(crate) asked_before: AtomicU64,
    /// Requests have read blobs or refs since then.
    pub(crate) has_reads: AtomicBool,
    /// Changes of the store's own that are to be committed together.
    pub(crate) own_changes: Mutex<Vec<Change>>,
    /// The last failure of a change of the store's own, for the maintenance that made it.
    pub(crate) own_failure: Arc<Mutex<Option<StoreError>>>,
    /// Blobs that are not removed. Those that refs came to rely on are only used while `log` is
    /// held.
    pub(crate) relied_on: Mutex<Reliance>,
    /// Files of large blobs that the index does not name any more, and of uploads that ended early.
    /// After a crash, the next
    /// collection removes them.
    pub(crate) freed_files: Arc<Mutex<Vec<u64>>>,
    /// Open files of large blobs, by number. Blobs may be removed while they are read.
    pub(crate) large_files: Mutex<HashMap<u64, Weak<dyn File>>>,
    /// Refs that were replaced or deleted in namespaces with a quota, and in those that are kept.
    pub(crate) replaced: Mutex<Replaced>,
    /// Held while blobs of such refs are collected: one namespace at a time.
    pub(crate) replaced_turn: Mutex<()>,
    pub(crate) quotas: RwLock<Arc<Quotas>>,
    /// A quota refused something since the last collection.
    pub(crate) was_over_quota: AtomicBool,
    /// What namespaces with a quota hold. Only used by whoever holds `log`.
    pub(crate) sizes: Mutex<Sizes>,
    /// The newest bucket of time that any event has. Only used by whoever holds `log`.
    pub(crate) newest_bucket: AtomicU32,
    pub(crate) opening: Opening,
    /// There were marks of lost keys when it was opened. None are made later.
    pub(crate) has_lost: bool,
    /// Refs were put here, rather than brought from an upstream.
    pub(crate) has_own_refs: AtomicBool,
    pub(crate) gaps: Mutex<Gaps>,
    pub(crate) counters: Counters,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("fs", &self.fs).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Store {
    // --- Changes

    /// Puts a small blob, whose hash the caller has checked.
    pub fn put_blob(&self, namespace: &Namespace, hash: IoHash, payload: Bytes, now: Timestamp, done: Done) {
        debug_assert_eq!(IoHash::of(&payload), hash, "the caller hashes");
        self.submit(Change::Blob { key: key::blob(namespace, &hash), payload, put: now }, done);
    }

    /// A writer for a blob that is too large for memory.
    ///
    /// # Errors
    /// As the system says.
    pub fn begin_large(&self) -> Result<LargeWriter, StoreError> {
        self.check_uploads()?;
        let number = self.next_large.fetch_add(1, Ordering::Relaxed);
        let writer = LargeWriter::create(Arc::clone(&self.fs), number, Arc::clone(&self.freed_files))?;
        // It may be read while it is written.
        blob::note_open(&mut lock(&self.large_files), number, writer.file());
        Ok(writer)
    }

    /// A writer for a blob of `len` bytes, whose space it takes at once: writing them does not fail
    /// because the disk fills meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the disk has less; else as the system says.
    pub fn begin_large_of(&self, len: u64) -> Result<LargeWriter, StoreError> {
        let writer = self.begin_large()?;
        let bytes = blob::file_bytes(len);
        let lacks = |bytes: u64| Ok::<_, StoreError>(self.fs.free_bytes()?.is_some_and(|free| free < bytes));
        if lacks(bytes.saturating_add(self.options.free_bytes_min))? {
            return Err(StoreError::Full);
        }
        let file = writer.file();
        file.reserve(0, bytes);
        // Not every file system reserves space; another writer may have taken it.
        if file.len()? < bytes && lacks(bytes)? {
            return Err(StoreError::Full);
        }
        Ok(writer)
    }

    /// Puts what a writer has written, under its hash. Waits for the disk before it returns, with
    /// [`Durability::Sync`].
    ///
    /// # Errors
    /// As the system says; `done` is not called then.
    pub fn put_large(
        &self,
        namespace: &Namespace,
        writer: LargeWriter,
        now: Timestamp,
        done: Done,
    ) -> Result<(), StoreError> {
        let key = key::blob(namespace, &writer.hash());
        let location = writer.seal(self.options.durability == Durability::Sync, now)?;
        self.submit(Change::Large { key, location }, done);
        Ok(())
    }

    /// Notes that `blob` holds a form of `content`, and whether it was decoded and hashed. The
    /// verified one with the smallest weight wins, else the one with the smallest weight, while its
    /// blob exists.
    pub fn put_content(
        &self,
        namespace: &Namespace,
        content: IoHash,
        (weight, blob, verified): (u64, IoHash, bool),
        done: Done,
    ) {
        let key = key::content_form(namespace, &content, weight, &blob);
        self.submit(Change::Content { key, verified }, done);
    }

    /// Forgets every form of a content id. Their blobs stay until they are collected.
    ///
    /// # Errors
    /// As the system says.
    pub fn delete_content(
        &self,
        namespace: &Namespace,
        content: &IoHash,
        done: Done,
    ) -> Result<(), StoreError> {
        let forms = self.index.scan(&key::content(namespace, content), None, 1024)?;
        let Some(((last, _), others)) = forms.split_last() else {
            done(Ok(ChangeResult::Unchanged));
            return Ok(());
        };
        for (form, _) in others {
            self.enqueue(Change::Delete { key: form.to_vec() }, Box::new(|_| {}));
        }
        self.submit(Change::Delete { key: last.to_vec() }, done);
        Ok(())
    }

    /// Blobs that hold forms of a content id, the lightest first, stored or not.
    ///
    /// # Errors
    /// As the system says.
    pub fn forms(&self, namespace: &Namespace, content: &IoHash) -> Result<Vec<IoHash>, StoreError> {
        let forms = self.index.scan(&key::content(namespace, content), None, 1024)?;
        Ok(forms.iter().filter_map(|(form, _)| key::last_hash(form)).collect())
    }

    /// Puts a ref.
    pub fn put_ref(&self, put: PutRef, done: Done) {
        if !put.value.adopted
            && !self.has_own_refs.load(Ordering::Relaxed)
            && let Err(error) = self.note_own_refs()
        {
            done(Err(error));
            return;
        }
        let key = key::reference(&put.namespace, &put.bucket, &put.key);
        let relies_on = put.relies_on.iter().map(|hash| key::blob(&put.namespace, hash)).collect();
        self.submit(Change::Ref { key, value: put.value, overwrite: put.overwrite, relies_on }, done);
    }

    /// Finalises a ref, if it still has this object.
    pub fn finalise(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
        object: IoHash,
        relies_on: &[IoHash],
        done: Done,
    ) {
        let relies_on = relies_on.iter().map(|hash| key::blob(namespace, hash)).collect();
        self.submit(
            Change::Finalise { key: key::reference(namespace, bucket, key), object, relies_on },
            done,
        );
    }

    /// Notes when refs were last used. `done` is called when all of it is acknowledged.
    pub fn note_accesses(
        &self,
        accesses: impl IntoIterator<Item = (Namespace, Bucket, Key, Timestamp)>,
        done: Done,
    ) {
        for (namespace, bucket, key, used) in accesses {
            let key = key::access(&key::reference(&namespace, &bucket, &key));
            self.enqueue(Change::Access { key, used }, Box::new(|_| {}));
        }
        // The queue is in order: what answers this comes after all of them.
        self.enqueue(Change::Delete { key: Vec::new() }, done);
    }

    /// Time when a ref was last used, if that was ever noted.
    ///
    /// # Errors
    /// As the system says.
    pub fn last_access(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
    ) -> Result<Option<Timestamp>, StoreError> {
        let found = self.index.get(&key::access(&key::reference(namespace, bucket, key)))?;
        Ok(found.and_then(|value| key::read_access(&value)))
    }

    /// Deletes a ref. Its blobs stay until they are collected.
    pub fn delete_ref(&self, namespace: &Namespace, bucket: &Bucket, key: &Key, done: Done) {
        self.submit(Change::Delete { key: key::reference(namespace, bucket, key) }, done);
    }

    /// Deletes a blob, whoever relies on it.
    pub fn delete_blob(&self, namespace: &Namespace, hash: &IoHash, done: Done) {
        self.submit(Change::Delete { key: key::blob(namespace, hash) }, done);
    }

    /// Deletes every blob and content id of a namespace. Their space comes back with the next
    /// collection.
    ///
    /// # Errors
    /// As the system says.
    pub fn delete_blobs(&self, namespace: &Namespace, done: Done) -> Result<(), StoreError> {
        for tag in *b"cb" {
            let prefix = key::in_namespace(tag, namespace);
            let mut after: Option<Box<[u8]>> = None;
            loop {
                let step = self.index.scan(&prefix, after.as_deref(), 512)?;
                let Some((last, _)) = step.last() else { break };
                after = Some(last.clone());
                for (key, _) in step {
                    self.enqueue(Change::Delete { key: key.into() }, Box::new(|_| {}));
                }
            }
        }
        // The queue is in order: what answers this comes after all of them.
        self.enqueue(Change::Delete { key: Vec::new() }, done);
        Ok(())
    }

    /// Sets how much namespaces may hold from now on. What is there already stays.
    pub fn set_quotas(&self, quotas: Quotas) {
        *self.quotas.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(quotas);
    }

    /// Reports whether a quota refused something since the last collection began. What refs no
    /// longer reach counts until it is collected.
    #[must_use]
    pub fn was_over_quota(&self) -> bool {
        self.was_over_quota.load(Ordering::Relaxed)
    }

    pub(crate) fn quotas(&self) -> Arc<Quotas> {
        Arc::clone(&self.quotas.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reports whether the replication log is kept.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.options.replication_log
    }

    /// Clock of the store and of its service.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.options.clock
    }

    /// Objects of refs up to this size need no blob.
    #[must_use]
    pub fn inline_bytes_max(&self) -> usize {
        self.options.inline_bytes_max
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: read(&self.counters.commits),
            changes: read(&self.counters.changes),
            log_bytes: read(&self.counters.log_bytes),
            checkpoints: read(&self.counters.checkpoints),
            failures: read(&self.counters.failures),
            damaged: read(&self.counters.damaged),
        }
    }

    /// Reports whether uploads are possible.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::OverLimit`] or [`StoreError::Broken`] if not.
    pub fn check_uploads(&self) -> Result<(), StoreError> {
        self.check_writable()?;
        if self.is_full.load(Ordering::Relaxed) { Err(StoreError::Full) } else { self.check_limit(0) }
    }

    /// Reports whether something may be stored under this key.
    pub(crate) fn check_uploads_to(&self, key: &[u8]) -> Result<(), StoreError> {
        self.check_writable()?;
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        if kept.namespaces.is_empty() {
            return self.check_uploads();
        }
        match key::split_namespace(key).filter(|(namespace, _)| kept.namespaces.contains(namespace)) {
            Some((namespace, _)) => Err(StoreError::Kept { namespace, bytes_max: kept.bytes_max }),
            None => self.check_uploads(),
        }
    }

    /// Reports whether the folder takes a blob of so many bytes in a namespace at present.
    ///
    /// # Errors
    /// As an upload of it is refused.
    pub fn check_room(&self, namespace: &Namespace, bytes: u64) -> Result<(), StoreError> {
        self.check_uploads_to(&key::in_namespace(b'b', namespace))?;
        self.take_room(bytes, 0)
    }

    /// Damage that it had when it was opened.
    #[must_use]
    pub fn opening(&self) -> Opening {
        self.opening
    }

    /// Reports whether the index met damage since it was opened: the next start builds it again.
    #[must_use]
    pub fn has_damaged_index(&self) -> bool {
        self.index.is_damaged()
    }

    /// Reports whether a large blob has its file.
    pub(crate) fn has_file(&self, location: &Location) -> bool {
        !matches!(self.fs.open(&blob::name(location.file), false), Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// Reports whether writes are possible.
    ///
    /// # Errors
    /// [`StoreError::Broken`] if not.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        if !self.is_broken.load(Ordering::Relaxed) {
            return Ok(());
        }
        match &*lock(&self.broken) {
            Some(error) => Err(StoreError::Broken(Arc::clone(error))),
            None => Ok(()),
        }
    }
}
