//! The store itself: queue, group commit, reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use throng_ddc::{Attachment, Bucket, Closure, Document, IoHash, Key, Namespace, Resolution, Timestamp};

use crate::blob::{self, Blob, LargeWriter};
use crate::fs::{File, Fs};
use crate::index::{Index, IndexError};
use crate::key::{self, Location, RefValue};
use crate::log::{self, AppendError, Entry, Log, Place};

/// Bytes of payload that one write to the log takes at most, a last blob aside.
const BATCH_BYTES: usize = 16 << 20;
/// Changes that one write takes at most.
const BATCH_LEN: usize = 4096;
/// The index follows the log also when this much was appended since: a start reads and hashes it again.
const CHECKPOINT_LOG_BYTES: u64 = 1 << 30;
/// A ref that is put again unchanged is written again only when it is older than this, for policies that count from it.
const REF_REFRESH_MS: u64 = 3600 * 1000;

/// When a change is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on disk: it survives a power failure.
    #[default]
    Sync,
    /// When the system has it: it survives the end of the process, not of the machine.
    Cache,
}

/// How a store works.
#[derive(Clone, Debug)]
pub struct Options {
    /// When a change is acknowledged.
    pub durability: Durability,
    /// Objects of refs up to this size lie in the index; larger ones are blobs.
    pub inline_bytes_max: usize,
    /// A segment of the log is closed when it is this long.
    pub segment_bytes_max: u64,
    /// The index follows the log when this much is in memory only; also what a start may have to read again, without the
    /// blobs among it.
    pub checkpoint_bytes: usize,
    /// Memory for pages of the index.
    pub index_cache_bytes: usize,
    /// Bytes that may wait to be written before uploads are refused.
    pub queue_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Sync,
            inline_bytes_max: 64 << 10,
            segment_bytes_max: 256 << 20,
            checkpoint_bytes: 16 << 20,
            index_cache_bytes: 32 << 20,
            queue_bytes_max: 128 << 20,
        }
    }
}

/// Why something could not be stored or read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No space left. Reads go on, and writes too once there is space.
    #[error("the disk is full; nothing more can be stored until space is made")]
    Full,
    /// Too much waits to be written.
    #[error("more is being uploaded than the disk takes")]
    Busy,
    /// A write failed in a way that leaves the log's end unknown. Reads go on; writes need a restart.
    #[error("the store takes no writes since one failed: {0}")]
    Broken(Arc<io::Error>),
    /// The system says no.
    #[error("the store: {0}")]
    Io(Arc<io::Error>),
    /// The index file says no.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> StoreError {
        if error.kind() == io::ErrorKind::StorageFull || error.kind() == io::ErrorKind::QuotaExceeded {
            StoreError::Full
        } else {
            StoreError::Io(Arc::new(error))
        }
    }
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made.
    Done,
    /// What was to be put was there already; what was to be deleted or finalised was not.
    Unchanged,
    /// Another object is there, and overwriting was not permitted.
    Conflict(RefValue),
    /// A blob that the ref relies on was removed meanwhile: resolve the attachments again.
    Lost,
}

/// Called once, with what became of a change, when that is durable. On the thread that commits: it must not wait.
pub type Done = Box<dyn FnOnce(Result<Outcome, StoreError>) + Send>;

/// A ref that is to be put.
#[derive(Clone, Debug)]
pub struct PutRef {
    /// Where.
    pub namespace: Namespace,
    /// Where.
    pub bucket: Bucket,
    /// Where.
    pub key: Key,
    /// What.
    pub value: RefValue,
    /// Whether another object may be replaced.
    pub overwrite: bool,
    /// The blobs that everything the object reaches lies in, if it is to be finalised.
    pub relies_on: Vec<IoHash>,
}

#[derive(Debug)]
pub(crate) enum Change {
    Blob {
        key: Vec<u8>,
        payload: Bytes,
        put: Timestamp,
    },
    Large {
        key: Vec<u8>,
        location: Location,
    },
    Content {
        key: Vec<u8>,
    },
    Ref {
        key: Vec<u8>,
        value: RefValue,
        overwrite: bool,
        relies_on: Vec<Vec<u8>>,
    },
    /// Notes when a ref was last used.
    Access {
        key: Vec<u8>,
        used: Timestamp,
    },
    Finalise {
        key: Vec<u8>,
        object: IoHash,
        relies_on: Vec<Vec<u8>>,
    },
    Delete {
        key: Vec<u8>,
    },
    /// Deletes what still has this value, unless a ref came to rely on it.
    Collect {
        key: Vec<u8>,
        value: Box<[u8]>,
    },
    /// Writes a blob again at the end of the log, if it is still where it was.
    Move {
        key: Vec<u8>,
        from: Location,
        payload: Bytes,
    },
}

impl Change {
    fn payload_len(&self) -> usize {
        match self {
            Change::Blob { payload, .. } | Change::Move { payload, .. } => payload.len(),
            Change::Ref { value, .. } => value.inline.as_ref().map_or(0, Bytes::len),
            _ => 0,
        }
    }
}

#[derive(Default)]
struct Queue {
    changes: Vec<(Change, Done)>,
    bytes: usize,
    closed: bool,
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
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    changes: AtomicU64,
    log_bytes: AtomicU64,
    checkpoints: AtomicU64,
    failures: AtomicU64,
}

/// A cache on disk. Shared by threads; see the crate's documentation.
///
/// Changes are queued and answered through [`Done`]; somebody must call [`commit`](Store::commit) for them to be made, which
/// [`Store::run`] does on a thread of its own.
pub struct Store {
    pub(crate) fs: Arc<dyn Fs>,
    options: Options,
    pub(crate) index: Index,
    queue: Mutex<Queue>,
    /// There is something to commit, or nothing will come any more.
    arrived: Condvar,
    /// Nothing will come any more.
    closing: Condvar,
    pub(crate) log: Mutex<Log>,
    /// Held while a checkpoint runs.
    checkpoint: Mutex<()>,
    pub(crate) segments: RwLock<BTreeMap<u64, Arc<dyn File>>>,
    next_large: AtomicU64,
    /// Large files with smaller numbers are of earlier processes.
    pub(crate) first_large: u64,
    /// Held by collections and scrubs: one at a time.
    pub(crate) care: Mutex<()>,
    /// What `log_bytes` was at the last checkpoint.
    checkpointed_bytes: AtomicU64,
    broken: Mutex<Option<Arc<io::Error>>>,
    is_broken: AtomicBool,
    /// Blobs that refs came to rely on since the running collection began; `None` when none runs. Only used by whoever
    /// holds `log`.
    pub(crate) relied_on: Mutex<Option<BTreeSet<Vec<u8>>>>,
    counters: Counters,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("fs", &self.fs).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in `fs`, or makes one there.
    ///
    /// # Errors
    /// As the system says; a damaged index.
    pub fn open(fs: Arc<dyn Fs>, options: Options) -> Result<Arc<Store>, StoreError> {
        for folder in [log::FOLDER, blob::FOLDER, "quarantine"] {
            fs.create_dir(folder)?;
        }
        let index_file = fs.open("index.redb", true)?;
        fs.sync_dir("")?;
        let index = match Index::open(Arc::clone(&index_file), options.index_cache_bytes) {
            Ok(index) => index,
            // The power failed while the file was being made, or it is damaged. All of it is in the log, if that is whole.
            Err(error) if log::segments(&*fs)?.first().is_none_or(|first| *first == log::FIRST) => {
                tracing::warn!(%error, "the index is made anew from the log");
                index_file.set_len(0)?;
                Index::open(index_file, options.index_cache_bytes)?
            }
            Err(error) => return Err(error.into()),
        };
        let from = index.position()?.unwrap_or_default();
        let log = Log::open(Arc::clone(&fs), from, options.segment_bytes_max, &mut |found| {
            index.apply([index_entry(found)]);
        })?;
        // Numbers are never used twice, whatever became of the files.
        let large = fs.list(blob::FOLDER)?;
        let last = large.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).max().unwrap_or(0);
        let store = Store {
            fs,
            options,
            index,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            closing: Condvar::new(),
            checkpointed_bytes: AtomicU64::new(0),
            log: Mutex::new(log),
            checkpoint: Mutex::default(),
            segments: RwLock::default(),
            next_large: AtomicU64::new(last + 1),
            first_large: last + 1,
            care: Mutex::default(),
            broken: Mutex::default(),
            is_broken: AtomicBool::new(false),
            relied_on: Mutex::default(),
            counters: Counters::default(),
        };
        Ok(Arc::new(store))
    }

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
        self.check_writable()?;
        let number = self.next_large.fetch_add(1, Ordering::Relaxed);
        Ok(LargeWriter::create(Arc::clone(&self.fs), number)?)
    }

    /// Puts what a writer has written, under its hash. Waits for the disk before it returns, with [`Durability::Sync`].
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

    /// Says that `blob` holds a form of `content`. The one with the smallest weight wins, while its blob exists.
    pub fn put_content(&self, namespace: &Namespace, content: IoHash, weight: u64, blob: IoHash, done: Done) {
        let key = key::content_form(namespace, &content, weight, &blob);
        self.submit(Change::Content { key }, done);
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
            done(Ok(Outcome::Unchanged));
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

    /// When a ref was last used, if that was ever noted.
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
        Ok(found
            .and_then(|value| Some(Timestamp::from_unix_ms(u64::from_le_bytes(value[..].try_into().ok()?)))))
    }

    /// Deletes a ref. Its blobs stay until they are collected.
    pub fn delete_ref(&self, namespace: &Namespace, bucket: &Bucket, key: &Key, done: Done) {
        self.submit(Change::Delete { key: key::reference(namespace, bucket, key) }, done);
    }

    /// Deletes a blob, whoever relies on it.
    pub fn delete_blob(&self, namespace: &Namespace, hash: &IoHash, done: Done) {
        self.submit(Change::Delete { key: key::blob(namespace, hash) }, done);
    }

    /// Deletes every blob and content id of a namespace. Their space comes back with the next collection.
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

    // --- Reads

    /// A blob.
    ///
    /// # Errors
    /// As the system says. A blob whose file is gone is a miss, and counted as such.
    pub fn blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Blob>, StoreError> {
        let key = key::blob(namespace, hash);
        let Some(location) = self.location(&key)? else { return Ok(None) };
        match self.open_blob(&location)? {
            Some(blob) => Ok(Some(blob)),
            // Moved, and its segment removed, since we looked.
            None => match self.location(&key)? {
                Some(moved) if moved != location => self.open_blob(&moved),
                _ => Ok(None),
            },
        }
    }

    /// Whether a blob is stored.
    ///
    /// # Errors
    /// As the system says.
    pub fn has_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<bool, StoreError> {
        Ok(self.index.get(&key::blob(namespace, hash))?.is_some())
    }

    /// The blob that holds the lightest stored form of a content id.
    ///
    /// # Errors
    /// As the system says.
    pub fn content(&self, namespace: &Namespace, id: &IoHash) -> Result<Option<IoHash>, StoreError> {
        let prefix = key::content(namespace, id);
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let forms = self.index.scan(&prefix, after.as_deref(), 4)?;
            let Some((last, _)) = forms.last() else { return Ok(None) };
            for (form, _) in &forms {
                if let Some(blob) = key::last_hash(form)
                    && self.has_blob(namespace, &blob)?
                {
                    return Ok(Some(blob));
                }
            }
            after = Some(last.clone());
        }
    }

    /// A ref, finalised or not.
    ///
    /// # Errors
    /// As the system says.
    pub fn reference(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
    ) -> Result<Option<RefValue>, StoreError> {
        let found = self.index.get(&key::reference(namespace, bucket, key))?;
        Ok(found.and_then(|value| RefValue::read(&value)))
    }

    /// The bytes of a ref's object. `None` if it is a blob that is gone.
    ///
    /// # Errors
    /// As the system says.
    pub fn object(&self, namespace: &Namespace, value: &RefValue) -> Result<Option<Bytes>, StoreError> {
        match &value.inline {
            Some(inline) => Ok(Some(inline.clone())),
            None => self.read_blob(namespace, &value.object),
        }
    }

    /// A whole blob in memory.
    ///
    /// # Errors
    /// As the system says.
    pub fn read_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Bytes>, StoreError> {
        let Some(blob) = self.blob(namespace, hash)? else { return Ok(None) };
        Ok(Some(blob.read(0, usize::try_from(blob.len()).unwrap_or(usize::MAX))?))
    }

    /// Walks everything that `document` reaches. The second part names the blobs it lies in, objects included.
    ///
    /// # Errors
    /// As the system says.
    pub fn close(
        &self,
        namespace: &Namespace,
        document: &Document<'_>,
    ) -> Result<(Closure, Vec<IoHash>), StoreError> {
        let mut closure = Closure::new(document);
        while let Some(attachment) = closure.next() {
            if attachment.is_object() {
                match self.read_blob(namespace, &attachment.hash)? {
                    Some(bytes) => closure.resolve(Resolution::Object(&bytes)),
                    None => closure.resolve(Resolution::Missing),
                }
            } else {
                match self.resolve(namespace, &attachment)? {
                    Some(blob) => closure.resolve(Resolution::Blob(blob)),
                    None => closure.resolve(Resolution::Missing),
                }
            }
        }
        let blobs = closure.blobs().iter().chain(closure.objects()).copied().collect();
        Ok((closure, blobs))
    }

    /// The blob of a binary attachment: first as a content id, then as itself.
    ///
    /// # Errors
    /// As the system says.
    pub fn resolve(
        &self,
        namespace: &Namespace,
        attachment: &Attachment,
    ) -> Result<Option<IoHash>, StoreError> {
        if let Some(blob) = self.content(namespace, &attachment.hash)? {
            return Ok(Some(blob));
        }
        Ok(self.has_blob(namespace, &attachment.hash)?.then_some(attachment.hash))
    }

    /// Up to `limit` refs of a bucket, or of all buckets, after the given one, in order.
    ///
    /// # Errors
    /// As the system says.
    pub fn refs(
        &self,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
        after: Option<(&Bucket, &Key)>,
        limit: usize,
    ) -> Result<Vec<(Bucket, Key, RefValue)>, StoreError> {
        let prefix = match bucket {
            Some(bucket) => key::bucket(namespace, bucket),
            None => key::in_namespace(b'r', namespace),
        };
        let after = after.map(|(bucket, key)| key::reference(namespace, bucket, key));
        let found = self.index.scan(&prefix, after.as_deref(), limit)?;
        Ok(found
            .into_iter()
            .filter_map(|(key, value)| {
                let (_, bucket, key) = key::read_reference(&key)?;
                Some((bucket, key, RefValue::read(&value)?))
            })
            .collect())
    }

    /// Up to `limit` blobs of a namespace after the given one, in order of their hashes.
    ///
    /// # Errors
    /// As the system says.
    pub fn blobs(
        &self,
        namespace: &Namespace,
        after: Option<&IoHash>,
        limit: usize,
    ) -> Result<Vec<IoHash>, StoreError> {
        let after = after.map(|hash| key::blob(namespace, hash));
        let found = self.index.scan(&key::in_namespace(b'b', namespace), after.as_deref(), limit)?;
        Ok(found.iter().filter_map(|(key, _)| key::last_hash(key)).collect())
    }

    /// Up to `limit` forms of content ids of a namespace after the given one, in order: id, weight, blob.
    ///
    /// # Errors
    /// As the system says.
    pub fn contents(
        &self,
        namespace: &Namespace,
        after: Option<(IoHash, u64, IoHash)>,
        limit: usize,
    ) -> Result<Vec<(IoHash, u64, IoHash)>, StoreError> {
        let after = after.map(|(id, weight, blob)| key::content_form(namespace, &id, weight, &blob));
        let found = self.index.scan(&key::in_namespace(b'c', namespace), after.as_deref(), limit)?;
        Ok(found.iter().filter_map(|(key, _)| key::read_content_form(key)).collect())
    }

    /// Every namespace in which something is stored.
    ///
    /// # Errors
    /// As the system says.
    pub fn namespaces(&self) -> Result<Vec<Namespace>, StoreError> {
        let mut found = BTreeSet::new();
        for tag in *b"br" {
            let mut after = vec![tag];
            // One step per namespace: from the first key found, past everything in that namespace.
            while let Some((key, _)) = self.index.scan(&[tag], Some(&after), 1)?.pop() {
                let namespace = match tag {
                    b'b' => key::read_blob(&key).map(|(namespace, _)| namespace),
                    _ => key::read_reference(&key).map(|(namespace, ..)| namespace),
                };
                let Some(namespace) = namespace else { break };
                after = key::in_namespace(tag, &namespace);
                after.extend_from_slice(&[0xFF; 200]);
                found.insert(namespace);
            }
        }
        Ok(found.into_iter().collect())
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
        }
    }

    /// Whether writes are possible.
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

    // --- Committing

    /// Commits what is queued, and checkpoints when it is time, until [`shut`](Store::shut) was called. For a thread.
    pub fn run(&self) {
        loop {
            {
                let mut queue = lock(&self.queue);
                while queue.changes.is_empty() {
                    if queue.closed {
                        return;
                    }
                    queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
            self.commit();
        }
    }

    /// Checkpoints the index whenever enough is in memory; until the store is shut. For a thread.
    pub fn run_checkpoints(&self, every: std::time::Duration) {
        loop {
            {
                let queue = lock(&self.queue);
                if queue.closed {
                    return;
                }
                let wait = self.closing.wait_timeout_while(queue, every, |queue| !queue.closed);
                drop(wait);
            }
            let written = self.counters.log_bytes.load(Ordering::Relaxed);
            let unseen = written - self.checkpointed_bytes.load(Ordering::Relaxed);
            let due =
                self.index.fresh_bytes() >= self.options.checkpoint_bytes || unseen >= CHECKPOINT_LOG_BYTES;
            if due && let Err(error) = self.checkpoint() {
                tracing::error!(%error, "the index could not be written; the log keeps growing");
            }
        }
    }

    /// Ends [`run`](Store::run) once everything queued is committed. Later changes are refused.
    pub fn shut(&self) {
        lock(&self.queue).closed = true;
        self.arrived.notify_all();
        self.closing.notify_all();
    }

    /// Commits everything that is queued, in batches. Returns how many changes there were.
    pub fn commit(&self) -> usize {
        let mut count = 0;
        loop {
            let batch = self.take_batch();
            if batch.is_empty() {
                return count;
            }
            count += batch.len();
            let mut log = lock(&self.log);
            self.commit_batch(&mut log, batch);
        }
    }

    fn submit(&self, change: Change, done: Done) {
        if let Err(error) = self.check_writable() {
            return done(Err(error));
        }
        let queue = lock(&self.queue);
        let bytes = change.payload_len() + 256;
        if queue.closed || queue.bytes + bytes > self.options.queue_bytes_max && queue.bytes > 0 {
            drop(queue);
            return done(Err(StoreError::Busy));
        }
        drop(queue);
        self.enqueue(change, done);
    }

    /// Queues without regard to limits: for what is bounded otherwise.
    pub(crate) fn enqueue(&self, change: Change, done: Done) {
        let mut queue = lock(&self.queue);
        let bytes = change.payload_len() + 256;
        queue.bytes += bytes;
        queue.changes.push((change, done));
        let first = queue.changes.len() == 1;
        drop(queue);
        if first {
            self.arrived.notify_all();
        }
    }

    fn take_batch(&self) -> Vec<(Change, Done)> {
        let mut queue = lock(&self.queue);
        let mut bytes = 0;
        let mut count = 0;
        for (change, _) in queue.changes.iter().take(BATCH_LEN) {
            if bytes >= BATCH_BYTES {
                break;
            }
            bytes += change.payload_len() + 256;
            count += 1;
        }
        queue.bytes = queue.bytes.saturating_sub(bytes);
        if count == queue.changes.len() {
            return std::mem::take(&mut queue.changes);
        }
        queue.changes.drain(..count).collect()
    }

    fn commit_batch(&self, log: &mut Log, batch: Vec<(Change, Done)>) {
        let mut plan =
            Plan { store: self, entries: Vec::new(), pending: BTreeMap::new(), unused_files: Vec::new() };
        let mut answers = Vec::with_capacity(batch.len());
        for (change, done) in batch {
            answers.push((plan.decide(change), done));
        }
        let Plan { entries, unused_files, .. } = plan;
        let written = self.write(log, entries);
        if let Err(error) = &written {
            self.counters.failures.fetch_add(answers.len() as u64, Ordering::Relaxed);
            tracing::error!(%error, "changes could not be written");
        }
        for file in unused_files {
            let _ = self.fs.remove(&blob::name(file));
        }
        for (answer, done) in answers {
            done(match (&written, answer) {
                (Err(error), _) => Err(error.clone()),
                (Ok(()), answer) => answer,
            });
        }
    }

    /// Appends, syncs, makes visible.
    fn write(&self, log: &mut Log, entries: Vec<Entry>) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        self.check_writable()?;
        let before = log.position();
        let places =
            log.append(&entries).map_err(
                |AppendError { source, broken }| {
                    if broken { self.set_broken(source) } else { source.into() }
                },
            )?;
        if self.options.durability == Durability::Sync
            && let Err(error) = log.sync()
        {
            // What of this is on disk nobody knows, and asking again would only say that there is nothing to do.
            return Err(self.set_broken(error));
        }
        let after = log.position();
        let bytes = if after.segment == before.segment { after.offset - before.offset } else { after.offset };
        self.counters.log_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.changes.fetch_add(entries.len() as u64, Ordering::Relaxed);
        self.index.apply(
            entries.into_iter().zip(places).map(|(entry, payload)| {
                index_entry(log::Found { key: entry.key, value: entry.value, payload })
            }),
        );
        Ok(())
    }

    /// Writes the index up to what is in the log now. What a start has to read begins there.
    ///
    /// # Errors
    /// As the system says; nothing is lost then.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        let _one = lock(&self.checkpoint);
        let position = {
            let mut log = lock(&self.log);
            // The index must not know of what the log could still lose.
            if let Err(error) = log.sync() {
                return Err(self.set_broken(error));
            }
            self.index.begin_checkpoint();
            self.checkpointed_bytes.store(self.counters.log_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            log.position()
        };
        self.index.finish_checkpoint(position)?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn set_broken(&self, error: io::Error) -> StoreError {
        let error = Arc::new(error);
        *lock(&self.broken) = Some(Arc::clone(&error));
        self.is_broken.store(true, Ordering::Relaxed);
        StoreError::Broken(error)
    }

    pub(crate) fn location(&self, key: &[u8]) -> Result<Option<Location>, StoreError> {
        Ok(self.index.get(key)?.and_then(|value| Location::read(&value)))
    }

    pub(crate) fn open_blob(&self, location: &Location) -> Result<Option<Blob>, StoreError> {
        if location.large {
            return match self.fs.open(&blob::name(location.file), false) {
                Ok(file) => Ok(Some(Blob::new(file, location))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
        let open = self.segments.read().unwrap_or_else(PoisonError::into_inner).get(&location.file).cloned();
        let file = match open {
            Some(file) => file,
            None => match self.fs.open(&log::name(location.file), false) {
                Ok(file) => {
                    let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
                    Arc::clone(segments.entry(location.file).or_insert(file))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            },
        };
        Ok(Some(Blob::new(file, location)))
    }
}

/// Turns changes of one batch into entries of the log, one after the other: each sees those before it.
struct Plan<'s> {
    store: &'s Store,
    entries: Vec<Entry>,
    /// What this batch makes of keys. The value of a blob is not known yet; it is empty here.
    pending: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Large files that nobody refers to.
    unused_files: Vec<u64>,
}

impl Plan<'_> {
    fn decide(&mut self, change: Change) -> Result<Outcome, StoreError> {
        match change {
            Change::Blob { key, payload, put } => {
                if self.exists(&key)? {
                    return Ok(Outcome::Unchanged);
                }
                let value = Some(put.unix_ms().to_le_bytes().to_vec());
                self.write(Entry { key, value, payload: Some(payload) });
            }
            Change::Large { key, location } => {
                if self.exists(&key)? {
                    self.unused_files.push(location.file);
                    return Ok(Outcome::Unchanged);
                }
                self.write(Entry { key, value: Some(location.write().to_vec()), payload: None });
            }
            Change::Content { key } => {
                if self.exists(&key)? {
                    return Ok(Outcome::Unchanged);
                }
                self.write(Entry { key, value: Some(Vec::new()), payload: None });
            }
            Change::Ref { key, value, overwrite, relies_on } => {
                if let Some(old) = self.get(&key)?.and_then(|old| RefValue::read(&old)) {
                    if old.object != value.object && !overwrite {
                        return Ok(Outcome::Conflict(old));
                    }
                    let age = value.put.unix_ms().saturating_sub(old.put.unix_ms());
                    let same = old.object == value.object && old.finalised == value.finalised;
                    if same && age < REF_REFRESH_MS && self.rely_on(&relies_on)? {
                        return Ok(Outcome::Unchanged);
                    }
                }
                if !self.rely_on(&relies_on)? {
                    return Ok(Outcome::Lost);
                }
                self.write(Entry { key, value: Some(value.write()), payload: None });
            }
            Change::Access { key, used } => {
                self.write(Entry { key, value: Some(used.unix_ms().to_le_bytes().to_vec()), payload: None });
            }
            Change::Finalise { key, object, relies_on } => {
                let Some(mut value) = self.get(&key)?.and_then(|old| RefValue::read(&old)) else {
                    return Ok(Outcome::Unchanged);
                };
                if value.object != object {
                    return Ok(Outcome::Conflict(value));
                }
                if !self.rely_on(&relies_on)? {
                    return Ok(Outcome::Lost);
                }
                if value.finalised {
                    return Ok(Outcome::Done);
                }
                value.finalised = true;
                self.write(Entry { key, value: Some(value.write()), payload: None });
            }
            Change::Delete { key } => {
                if !self.exists(&key)? {
                    return Ok(Outcome::Unchanged);
                }
                self.write(Entry { key, value: None, payload: None });
            }
            Change::Collect { key, value } => {
                let wanted = lock(&self.store.relied_on).as_ref().is_some_and(|wanted| wanted.contains(&key));
                if wanted || self.get(&key)?.as_deref() != Some(&value) {
                    return Ok(Outcome::Unchanged);
                }
                self.write(Entry { key, value: None, payload: None });
            }
            Change::Move { key, from, payload } => {
                if self.get(&key)?.as_deref() != Some(&from.write()) {
                    return Ok(Outcome::Unchanged);
                }
                let value = Some(from.put.unix_ms().to_le_bytes().to_vec());
                self.write(Entry { key, value, payload: Some(payload) });
            }
        }
        Ok(Outcome::Done)
    }

    /// Whether all these blobs are stored. A collection that runs will not take them.
    fn rely_on(&mut self, blobs: &[Vec<u8>]) -> Result<bool, StoreError> {
        for key in blobs {
            if !self.exists(key)? {
                return Ok(false);
            }
        }
        if let Some(relied_on) = &mut *lock(&self.store.relied_on) {
            relied_on.extend(blobs.iter().cloned());
        }
        Ok(true)
    }

    fn write(&mut self, entry: Entry) {
        // A blob's location is not known yet; that it exists is.
        let seen = if entry.payload.is_some() { Some(Vec::new()) } else { entry.value.clone() };
        self.pending.insert(entry.key.clone(), seen);
        self.entries.push(entry);
    }

    fn exists(&self, key: &[u8]) -> Result<bool, StoreError> {
        match self.pending.get(key) {
            Some(value) => Ok(value.is_some()),
            None => Ok(self.store.index.get(key)?.is_some()),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, StoreError> {
        match self.pending.get(key) {
            Some(value) => Ok(value.as_deref().map(Box::from)),
            None => Ok(self.store.index.get(key)?),
        }
    }
}

/// What the index holds for a record.
fn index_entry(found: log::Found) -> (Box<[u8]>, Option<Box<[u8]>>) {
    let value = match (found.value, found.payload) {
        (Some(value), Some(place)) => {
            let put = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let put = Timestamp::from_unix_ms(put);
            let Place { segment, offset, len } = place;
            Some(Location { large: false, file: segment, offset, len, put }.write().to_vec())
        }
        (value, _) => value,
    };
    (found.key.into(), value.map(Vec::into))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
