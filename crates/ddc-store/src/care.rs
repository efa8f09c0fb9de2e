//! Care: collection of what nobody needs, space given back, damage found.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::PoisonError;
use std::time::Duration;

use throng_ddc::gc::{self, RefPolicy};
use throng_ddc::{Bucket, Closure, Document, IoHash, Key, Namespace, Resolution, Timestamp};

use crate::blob;
use crate::commit::Change;
use crate::key::{self, Location, RefValue};
use crate::log;
use crate::store::{Store, StoreError, lock};

/// Entries that one step of a walk over the index reads, so that no step holds up writers for long.
const STEP: usize = 512;
/// Bytes of blobs that are moved before the moves are committed.
const MOVE_BYTES: u64 = 8 << 20;
/// A segment is emptied when less than this part of it is in use.
const LIVE_PERCENT_MIN: u64 = 50;

/// What a collection needs to know.
pub struct CollectOptions<'a> {
    /// The time.
    pub now: Timestamp,
    /// How refs of a namespace expire.
    pub policy: &'a dyn Fn(&Namespace) -> RefPolicy,
    /// When a ref was last used, if that is known better than the store has it noted.
    pub last_access: &'a dyn Fn(&Namespace, &Bucket, &Key) -> Option<Timestamp>,
    /// Blobs younger than this stay, whoever needs them.
    pub blob_age_min: Duration,
}

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
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
pub struct Scrubbed {
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
pub struct Verified {
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs whose bytes have another hash, or cannot be read.
    pub damaged: u64,
    /// Finalised refs.
    pub refs: u64,
    /// Finalised refs that reach something that is not stored.
    pub incomplete: u64,
}

/// Takes a key and its value.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'v;

impl Store {
    /// Removes expired refs, then blobs that no ref reaches, then gives their space back.
    ///
    /// Requests go on meanwhile: a blob that a ref comes to rely on during the collection stays. Runs on the caller's
    /// thread; one at a time.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed; nothing else is affected.
    pub fn collect(&self, options: &CollectOptions<'_>) -> Result<Collected, StoreError> {
        let _one = lock(&self.care);
        let mut done = Collected::default();
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
        done: &mut Collected,
    ) -> Result<(), StoreError> {
        let policy = (options.policy)(namespace);
        let mut reached = BTreeSet::new();
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
                self.queue_care(Change::Collect { key: index_key.to_vec(), value: stored.into() });
                return Ok(());
            }
            self.mark(namespace, &value, &mut reached)
        })?;
        self.commit();
        reached.extend(self.snapshots(namespace)?.iter().map(|snapshot| snapshot.blob));
        self.walk(&key::in_namespace(b'a', namespace), &mut |noted, stored| {
            let mut reference = noted.to_vec();
            reference[0] = b'r';
            if self.index.get(&reference)?.is_none() {
                self.queue_care(Change::Collect { key: noted.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();

        let mut files = Vec::new();
        self.walk(&key::in_namespace(b'b', namespace), &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            let is_reached = reached.contains(&hash);
            if gc::blob_expired(is_reached, location.put, options.now, options.blob_age_min) {
                done.blobs += 1;
                done.blob_bytes += location.len;
                if location.large {
                    files.push((index_key.to_vec(), location.file));
                }
                self.queue_care(Change::Collect { key: index_key.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();
        for (key, file) in files {
            // A ref that came in between kept it.
            if self.location(&key)?.is_none_or(|now| !now.large || now.file != file) {
                let _ = self.fs.remove(&blob::name(file));
            }
        }
        self.walk(&key::in_namespace(b'c', namespace), &mut |form, stored| {
            if let Some(blob) = key::last_hash(form)
                && !self.has_blob(namespace, &blob)?
            {
                self.queue_care(Change::Collect { key: form.to_vec(), value: stored.into() });
            }
            Ok(())
        })?;
        self.commit();
        Ok(())
    }

    /// Adds everything that a ref reaches, in every form that is stored.
    fn mark(
        &self,
        namespace: &Namespace,
        value: &RefValue,
        reached: &mut BTreeSet<IoHash>,
    ) -> Result<(), StoreError> {
        if value.inline.is_none() {
            reached.insert(value.object);
        }
        let Some(object) = self.object(namespace, value)? else { return Ok(()) };
        let Ok(document) = Document::parse(&object) else { return Ok(()) };
        let mut closure = Closure::new(&document);
        while let Some(attachment) = closure.next() {
            let new = reached.insert(attachment.hash);
            if attachment.is_object() && new {
                match self.read_blob(namespace, &attachment.hash)? {
                    Some(bytes) => closure.resolve(Resolution::Object(&bytes)),
                    None => closure.resolve(Resolution::Missing),
                }
                continue;
            }
            self.walk(&key::content(namespace, &attachment.hash), &mut |form, _| {
                reached.extend(key::last_hash(form));
                Ok(())
            })?;
            closure.resolve(Resolution::Missing);
        }
        Ok(())
    }

    /// Removes segments that hold no blob any more, and moves the blobs of those of which less than `live_percent_min` is in
    /// use.
    pub(crate) fn give_back(&self, done: &mut Collected, live_percent_min: u64) -> Result<(), StoreError> {
        // Everything else in a segment must be in the index before it may go.
        self.checkpoint()?;
        let open = lock(&self.log).position().segment;
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut large = BTreeSet::new();
        self.walk(b"b", &mut |_, stored| {
            match Location::read(stored) {
                Some(location) if location.large => drop(large.insert(location.file)),
                Some(location) => *live.entry(location.file).or_default() += location.len,
                None => {}
            }
            Ok(())
        })?;
        let mut sparse = BTreeSet::new();
        for segment in log::segments(&*self.fs)?.into_iter().filter(|segment| *segment < open) {
            match live.get(&segment) {
                None => {
                    self.fs.remove(&log::name(segment))?;
                    self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&segment);
                    done.segments += 1;
                }
                Some(bytes) => {
                    let len = self.fs.open(&log::name(segment), false)?.len()?;
                    if bytes * 100 < len * live_percent_min {
                        sparse.insert(segment);
                    }
                }
            }
        }
        if !sparse.is_empty() {
            let mut queued = 0;
            self.walk(b"b", &mut |index_key, stored| {
                let Some(location) = Location::read(stored) else { return Ok(()) };
                if location.large || !sparse.contains(&location.file) {
                    return Ok(());
                }
                let Some(blob) = self.open_blob(&location)? else { return Ok(()) };
                let payload = blob.read(0, location.len as usize)?;
                if key::last_hash(index_key) != Some(IoHash::of(&payload)) {
                    // Damage is the scrub's to find and count; it is not copied.
                    return Ok(());
                }
                done.moved += 1;
                queued += location.len;
                self.queue_care(Change::Move { key: index_key.to_vec(), from: location, payload });
                if queued >= MOVE_BYTES {
                    queued = 0;
                    self.commit();
                }
                Ok(())
            })?;
            self.commit();
        }
        // Uploads that ended with an earlier process.
        for name in self.fs.list(blob::FOLDER)? {
            if let Ok(file) = u64::from_str_radix(&name, 16)
                && file < self.first_large
                && !large.contains(&file)
            {
                self.fs.remove(&blob::name(file))?;
            }
        }
        Ok(())
    }

    /// Reads every blob and makes misses of those whose bytes are not what their name says. `pause` is called after each,
    /// with its size, so that the caller can bound the rate.
    ///
    /// # Errors
    /// As the system says about the index; unreadable blobs are damage, not errors.
    pub fn scrub(&self, pause: &mut dyn FnMut(u64)) -> Result<Scrubbed, StoreError> {
        let _one = lock(&self.care);
        let mut done = Scrubbed::default();
        self.walk(b"b", &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            done.blobs += 1;
            done.bytes += location.len;
            let blob = self.open_blob(&location)?;
            let sound = blob.as_ref().is_some_and(|blob| blob.hash().is_ok_and(|found| found == hash));
            if !sound && self.location(index_key)? == Some(location) {
                match blob {
                    Some(blob) => {
                        done.damaged += 1;
                        tracing::error!(%hash, "a blob is damaged; it is put aside");
                        self.put_aside(&hash, &blob, done.damaged);
                    }
                    None => done.lost += 1,
                }
                self.queue_care(Change::Delete { key: index_key.to_vec() });
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

    /// Reads every blob and follows every finalised ref.
    ///
    /// # Errors
    /// As the system says about the index; unreadable blobs are damage, not errors.
    pub fn verify(&self) -> Result<Verified, StoreError> {
        let _one = lock(&self.care);
        let mut found = Verified::default();
        self.walk(b"b", &mut |index_key, stored| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
            else {
                return Ok(());
            };
            found.blobs += 1;
            found.bytes += location.len;
            let blob = self.open_blob(&location)?;
            let sound = blob.is_some_and(|blob| blob.hash().is_ok_and(|is| is == hash));
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

    /// Makes a miss of a blob that was read and is not what its name says, and puts its bytes aside.
    pub fn discard_damaged(&self, namespace: &Namespace, hash: &IoHash, blob: &blob::Blob) {
        tracing::error!(%namespace, %hash, "a blob is damaged; it is put aside");
        self.put_aside(hash, blob, 0);
        self.queue_care(Change::Delete { key: key::blob(namespace, hash) });
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

    /// Calls `visit` with every entry under `prefix`, a step at a time; entries may change between steps.
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

    /// Queues a change of our own, whose outcome is looked up instead of awaited.
    pub(crate) fn queue_care(&self, change: Change) {
        self.enqueue(change, Box::new(|_| {}));
    }
}
