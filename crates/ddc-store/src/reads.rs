//! Reads: what is visible is acknowledged.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use throng_ddc::{Attachment, Bucket, Closure, Document, IoHash, Key, Namespace, Resolution};

use crate::blob::{self, Blob};
use crate::change::{Change, PutRef};
use crate::error::StoreError;
use crate::key::{self, Location, RefValue};
use crate::locks::lock;
use crate::run::fingerprint;
use crate::store::Store;

/// Forms of a content id that one look-up reads; there are rarely more than two.
const FORMS_STEP: usize = 4;

impl Store {
    /// A blob.
    ///
    /// # Errors
    /// As the system says. A blob whose file is gone is a miss from now on, so that the next upload
    /// is kept.
    pub fn blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Blob>, StoreError> {
        self.note_read();
        self.find_blob(namespace, hash)
    }

    /// Has maintenance give way to reads. The flag is written once for each of its commits: threads
    /// that read share its cache line otherwise.
    fn note_read(&self) {
        if !self.has_reads.load(Ordering::Relaxed) {
            self.has_reads.store(true, Ordering::Relaxed);
        }
    }

    fn find_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Blob>, StoreError> {
        let key = key::blob(namespace, hash);
        let Some(location) = self.location(&key)? else { return Ok(None) };
        if let Some(blob) = self.open_blob(&location)? {
            return Ok(Some(blob));
        }
        // Moved, and its segment removed, since the look-up; or lost.
        match self.location(&key)? {
            Some(moved) if moved != location => self.open_blob(&moved),
            Some(lost) => {
                tracing::error!(%namespace, %hash, "the file of a blob is gone");
                self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                self.queue_maintenance(Change::Collect { key, value: lost.write().into() });
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Reports whether a blob is stored.
    ///
    /// # Errors
    /// As the system says.
    pub fn has_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<bool, StoreError> {
        Ok(self.index.read(&key::blob(namespace, hash), |_, _| ())?.is_some())
    }

    /// The blob that holds the best stored form of a content id: the lightest verified one, else
    /// the lightest.
    ///
    /// # Errors
    /// As the system says.
    pub fn content(&self, namespace: &Namespace, id: &IoHash) -> Result<Option<IoHash>, StoreError> {
        Ok(self.best_form(namespace, id)?.map(|(blob, _)| blob))
    }

    /// The same, and whether it was decoded and hashed.
    ///
    /// # Errors
    /// As the system says.
    pub fn best_form(
        &self,
        namespace: &Namespace,
        id: &IoHash,
    ) -> Result<Option<(IoHash, bool)>, StoreError> {
        let prefix = key::content(namespace, id);
        let mut after: Option<Box<[u8]>> = None;
        let mut unverified = None;
        loop {
            let forms = self.index.scan(&prefix, after.as_deref(), FORMS_STEP)?;
            let Some((last, _)) = forms.last() else { break };
            for (form, value) in &forms {
                let Some(blob) = key::last_hash(form) else { continue };
                let verified = **value == [1];
                if (verified || unverified.is_none()) && self.has_blob(namespace, &blob)? {
                    if verified {
                        return Ok(Some((blob, true)));
                    }
                    unverified = Some(blob);
                }
            }
            if forms.len() < FORMS_STEP {
                break;
            }
            after = Some(last.clone());
        }
        Ok(unverified.map(|blob| (blob, false)))
    }

    /// Reports whether a form of a content id was decoded and hashed.
    ///
    /// # Errors
    /// As the system says.
    pub fn has_verified_form(
        &self,
        namespace: &Namespace,
        id: &IoHash,
        weight: u64,
        blob: &IoHash,
    ) -> Result<bool, StoreError> {
        let form = key::content_form(namespace, id, weight, blob);
        Ok(self.index.read(&form, |_, value| value == [1])? == Some(true))
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
        self.note_read();
        let name = key::reference(namespace, bucket, key);
        Ok(self.index.read(&name, |_, value| RefValue::read(value))?.flatten())
    }

    /// Reports whether putting this ref would change nothing: it is stored as it is, not long ago,
    /// with all that it relies on. While a collection or an eviction runs, only
    /// [`put_ref`](Store::put_ref) can say so, since it also keeps what the ref relies on.
    ///
    /// # Errors
    /// As the system says. [`StoreError::Broken`] if the end of the log is unknown: a delete that
    /// failed may be found there.
    pub fn is_repeated(&self, put: &PutRef) -> Result<bool, StoreError> {
        self.check_writable()?;
        self.note_read();
        if lock(&self.relied_on).collections > 0 {
            return Ok(false);
        }
        let key = key::reference(&put.namespace, &put.bucket, &put.key);
        let is_refresh =
            |value: &[u8]| RefValue::read(value).is_some_and(|old| put.value.is_refresh_of(&old));
        if !self.index.read(&key, |_, value| is_refresh(value))?.unwrap_or_default() {
            return Ok(false);
        }
        for blob in &put.relies_on {
            if self.index.get(&key::blob(&put.namespace, blob))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reports whether a ref that is missing may have been put here: a start found its newest
    /// record damaged, and it was not put again since. In a folder that has only refs of an
    /// upstream, none was.
    ///
    /// # Errors
    /// As the system says.
    pub fn is_lost(&self, namespace: &Namespace, bucket: &Bucket, key: &Key) -> Result<bool, StoreError> {
        let mark = || key::lost(fingerprint(&key::reference(namespace, bucket, key)));
        let may_be_own = self.has_lost && self.has_own_refs.load(Ordering::Relaxed);
        Ok(may_be_own && self.index.get(&mark())?.is_some())
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

    /// A whole blob in memory. One that is damaged is put aside, and a miss.
    ///
    /// # Errors
    /// As the system says.
    pub fn read_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Bytes>, StoreError> {
        let Some(blob) = self.find_blob(namespace, hash)? else { return Ok(None) };
        match blob.read_sound(hash) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_damage(&error) => {
                self.discard_damaged(namespace, hash, &blob);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Walks everything that `document` reaches. The second part names the blobs it lies in,
    /// objects included.
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

    /// Up to `limit` forms of content ids of a namespace after the given one, in order: id, weight,
    /// blob.
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

    pub(crate) fn location(&self, key: &[u8]) -> Result<Option<Location>, StoreError> {
        Ok(self.index.read(key, |_, value| Location::read(value))?.flatten())
    }

    pub(crate) fn open_blob(&self, location: &Location) -> Result<Option<Blob>, StoreError> {
        if !location.is_large() {
            let file = self.segments.open(location.file)?;
            return Ok(file.map(|file| Blob::new(file, location)));
        }
        let mut files = lock(&self.large_files);
        if let Some(file) = files.get(&location.file).and_then(Weak::upgrade) {
            return Ok(Some(Blob::in_own_file(file, Arc::clone(&self.fs), location)));
        }
        match self.fs.open(&blob::name(location.file), false) {
            Ok(file) => {
                blob::note_open(&mut files, location.file, &file);
                Ok(Some(Blob::in_own_file(file, Arc::clone(&self.fs), location)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the file of a large blob that the index does not name any more.
    pub(crate) fn remove_large(&self, number: u64) -> io::Result<()> {
        let name = blob::name(number);
        let file = {
            let mut files = lock(&self.large_files);
            let is_read = files.remove(&number).is_some_and(|file| file.strong_count() > 0);
            let file = self.fs.open(&name, false).ok().filter(|_| !is_read);
            self.fs.remove(&name)?;
            file
        };
        if let Some(file) = file {
            self.free_space_of(&*file);
        }
        Ok(())
    }
}

/// Reports whether a read failed because the bytes are not those that were written.
#[must_use]
pub fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
