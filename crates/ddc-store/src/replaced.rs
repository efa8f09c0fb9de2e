//! Space under a quota, or in a namespace that is kept, that only replaced refs take.
//!
//! A blob counts until it is collected. A namespace that replaces its refs all the time would
//! reach its quota with blobs that nothing reaches: those that only replaced refs reached are
//! collected as soon as an upload needs their space. An eviction collects those of namespaces from
//! which it takes nothing else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use throng_ddc::{IoHash, Namespace};

use crate::change::Change;
use crate::error::StoreError;
use crate::key::{self, RefValue};
use crate::locks::lock;
use crate::store::Store;

/// Objects that are known to have been walked; with more, all are forgotten.
const WALKED_MAX: usize = 1 << 18;
/// Blobs that are removed at a time.
const STEP: usize = 512;

impl Store {
    /// Bytes that a namespace may hold, if that is limited.
    #[must_use]
    pub fn quota(&self, namespace: &Namespace) -> Option<u64> {
        self.quotas().of(namespace)
    }

    /// Reports whether a namespace may hold `len` more bytes at present.
    ///
    /// # Errors
    /// As the system says.
    pub fn fits_quota(&self, namespace: &Namespace, len: u64) -> Result<bool, StoreError> {
        self.fits(namespace, len, 1)
    }

    /// Reports whether it may hold a copy of `len` bytes of what an upstream has. Copies come while
    /// half of the quota is free, which is left to uploads.
    ///
    /// # Errors
    /// As the system says.
    pub fn fits_copy(&self, namespace: &Namespace, len: u64) -> Result<bool, StoreError> {
        self.fits(namespace, len, 2)
    }

    fn fits(&self, namespace: &Namespace, len: u64, part: u64) -> Result<bool, StoreError> {
        let quotas = self.quotas();
        let Some(quota) = quotas.of(namespace) else { return Ok(true) };
        let known = lock(&self.sizes).known(namespace);
        let size = match known {
            Some(size) => size,
            None => {
                let _log = lock(&self.log);
                let mut sizes = lock(&self.sizes);
                sizes.follow(&quotas);
                *sizes.size(namespace, || self.size_of(namespace))?
            }
        };
        Ok(size.saturating_add(len) <= quota / part)
    }

    /// Removes what only those refs of a namespace reached that were replaced or deleted since the
    /// last time, regardless of its age: it is no upload that waits for its ref. What was uploaded
    /// again a moment ago may wait for one, and goes only if the quota has no room for `len` bytes
    /// otherwise; not even then if the ref was a copy of an upstream's, which clients do not know
    /// of. Only what happened while the namespace had a quota or was kept is known. The disk gets
    /// the space with the next collection.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed.
    pub fn collect_replaced(&self, namespace: &Namespace, len: u64) -> Result<(), StoreError> {
        let _one = lock(&self.replaced_turn);
        let replaced = lock(&self.replaced).take(namespace);
        if replaced.is_empty() {
            return Ok(());
        }
        self.note_reliance(true);
        let result = self.remove_unreached(namespace, &replaced, len);
        self.note_reliance(false);
        if result? {
            let mut kept = lock(&self.replaced);
            replaced.into_iter().for_each(|value| kept.insert(namespace.clone(), value));
        }
        Ok(())
    }

    /// Returns whether something stays that no ref reaches.
    fn remove_unreached(
        &self,
        namespace: &Namespace,
        replaced: &[RefValue],
        len: u64,
    ) -> Result<bool, StoreError> {
        let mut unreached: BTreeSet<IoHash> = BTreeSet::new();
        let mut walked = BTreeSet::new();
        let mut of_copies: BTreeSet<Vec<u8>> = BTreeSet::new();
        for adopted in [true, false] {
            for value in replaced.iter().filter(|value| value.adopted == adopted) {
                self.each_reached(namespace, value, &mut walked, &mut |hash| {
                    unreached.insert(*hash);
                    Ok(())
                })?;
            }
            if adopted {
                of_copies = unreached.iter().map(|hash| key::blob(namespace, hash)).collect();
            }
        }
        walked.clear();
        self.walk(&key::in_namespace(b'r', namespace), &mut |_, stored| {
            if let Some(value) = RefValue::read(stored).filter(|_| !unreached.is_empty()) {
                if walked.len() >= WALKED_MAX {
                    walked.clear();
                }
                self.each_reached(namespace, &value, &mut walked, &mut |hash| {
                    unreached.remove(hash);
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        for snapshot in self.snapshots(namespace)? {
            unreached.remove(&snapshot.blob);
        }
        let mut unreached = unreached.into_iter().map(|hash| key::blob(namespace, &hash)).collect();
        self.remove_blobs(&mut unreached)?;
        if !unreached.is_empty() && !self.fits_quota(namespace, len)? {
            let mut relied_on = lock(&self.relied_on);
            let own = unreached.iter().filter(|blob| !of_copies.contains(*blob));
            own.for_each(|blob| relied_on.repeated.remove(blob));
            drop(relied_on);
            self.remove_blobs(&mut unreached)?;
        }
        Ok(!unreached.is_empty())
    }

    /// Removes blobs that no upload relies on. Those that are still there afterwards are left.
    fn remove_blobs(&self, blobs: &mut Vec<Vec<u8>>) -> Result<(), StoreError> {
        // Not with the changes of a collection, which must learn of its own failures.
        let failure = Arc::new(Mutex::new(None));
        for step in blobs.chunks(STEP) {
            for key in step {
                let Some(value) = self.index.get(key)? else { continue };
                let failed = Arc::clone(&failure);
                let done = move |done| {
                    if let Err(error) = done {
                        *lock(&failed) = Some(error);
                    }
                };
                self.enqueue(Change::Collect { key: key.clone(), value }, Box::new(done));
            }
            self.await_commits();
        }
        if let Some(error) = lock(&failure).take() {
            return Err(error);
        }
        let mut left = Vec::new();
        for key in std::mem::take(blobs) {
            if self.index.get(&key)?.is_some() {
                left.push(key);
            }
        }
        *blobs = left;
        Ok(())
    }
}
