//! Quotas of namespaces.
//!
//! A blob counts until it is collected. A namespace that replaces its refs all the time would
//! reach its quota with blobs that nothing reaches: those that only replaced refs reached are
//! collected as soon as an upload needs their space.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use throng_ddc::{IoHash, Namespace};

use crate::change::Change;
use crate::error::StoreError;
use crate::key::{self, RefValue};
use crate::locks::lock;
use crate::store::Store;

/// Bytes of replaced refs that are remembered; with more, all are forgotten, and what they reached
/// counts until the next collection.
const REPLACED_BYTES_MAX: usize = 16 << 20;
/// Objects that are known to have been walked; with more, all are forgotten.
const WALKED_MAX: usize = 1 << 18;
/// Blobs that are removed at a time.
const STEP: usize = 512;

/// Bytes of blobs and refs that namespaces may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Namespaces that differ from `default`.
    pub namespaces: BTreeMap<Namespace, u64>,
    /// All others; `None` for no limit.
    pub default: Option<u64>,
}

impl Quotas {
    pub(crate) fn of(&self, namespace: &Namespace) -> Option<u64> {
        self.namespaces.get(namespace).copied().or(self.default)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.default.is_none()
    }
}

/// Sizes of namespaces with a quota. Counted once, before their first change, and kept up from
/// then on. Only used by whoever holds the log.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    quotas: Arc<Quotas>,
    sizes: BTreeMap<Namespace, u64>,
}

impl Sizes {
    /// Forgets everything if the quotas have changed: changes of a namespace without one are not
    /// counted.
    pub(crate) fn follow(&mut self, quotas: &Arc<Quotas>) {
        if !Arc::ptr_eq(&self.quotas, quotas) && self.quotas != *quotas {
            self.reset();
        }
        self.quotas = Arc::clone(quotas);
    }

    /// Counts a blob or ref of `len` bytes that is to take the place of `freed` bytes, unless
    /// the namespace grows beyond its quota. Whether it may come. `count` says what the namespace
    /// holds, if that is not known yet.
    pub(crate) fn admit(
        &mut self,
        namespace: &Namespace,
        (freed, len): (u64, u64),
        count: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<bool, StoreError> {
        let Some(quota) = self.quotas.of(namespace) else { return Ok(true) };
        let size = self.size(namespace, count)?;
        let after = size.saturating_sub(freed).saturating_add(len);
        let fits = after <= quota || len <= freed;
        if fits {
            *size = after;
        }
        Ok(fits)
    }

    /// Takes the size of a deleted blob or ref off.
    pub(crate) fn release(
        &mut self,
        namespace: &Namespace,
        len: u64,
        count: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<(), StoreError> {
        if self.quotas.of(namespace).is_some() {
            let size = self.size(namespace, count)?;
            *size = size.saturating_sub(len);
        }
        Ok(())
    }

    /// Forgets everything: what was counted did not come about.
    pub(crate) fn reset(&mut self) {
        self.sizes.clear();
    }

    /// Size of a namespace, if it was counted.
    fn known(&self, namespace: &Namespace) -> Option<u64> {
        self.sizes.get(namespace).copied()
    }

    fn size(
        &mut self,
        namespace: &Namespace,
        count: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<&mut u64, StoreError> {
        match self.sizes.entry(namespace.clone()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => Ok(unknown.insert(count()?)),
        }
    }
}

/// Refs that were replaced or deleted in namespaces with a quota.
#[derive(Default)]
pub(crate) struct Replaced {
    values: BTreeMap<Namespace, Vec<RefValue>>,
    bytes: usize,
}

impl Replaced {
    pub(crate) fn insert(&mut self, namespace: Namespace, value: RefValue) {
        self.bytes += bytes_of(&value);
        self.values.entry(namespace).or_default().push(value);
        if self.bytes > REPLACED_BYTES_MAX {
            *self = Replaced::default();
        }
    }

    fn take(&mut self, namespace: &Namespace) -> Vec<RefValue> {
        let values = self.values.remove(namespace).unwrap_or_default();
        self.bytes -= values.iter().map(bytes_of).sum::<usize>();
        values
    }
}

fn bytes_of(value: &RefValue) -> usize {
    size_of::<RefValue>() + value.inline.as_ref().map_or(0, bytes::Bytes::len)
}

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
        Ok(size.saturating_add(len) <= quota)
    }

    /// Removes what only those refs of a namespace reached that were replaced or deleted since the
    /// last time, regardless of its age: it is no upload that waits for its ref. Only what happened
    /// while the namespace had a quota is known. The disk gets the space with the next collection.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed.
    pub fn collect_replaced(&self, namespace: &Namespace) -> Result<(), StoreError> {
        let _one = lock(&self.replaced_turn);
        let replaced = lock(&self.replaced).take(namespace);
        if replaced.is_empty() {
            return Ok(());
        }
        self.note_reliance(true);
        let result = self.remove_unreached(namespace, &replaced);
        self.note_reliance(false);
        result
    }

    fn remove_unreached(&self, namespace: &Namespace, replaced: &[RefValue]) -> Result<(), StoreError> {
        let mut unreached: BTreeSet<IoHash> = BTreeSet::new();
        let mut walked = BTreeSet::new();
        for value in replaced {
            self.each_reached(namespace, value, &mut walked, &mut |hash| {
                unreached.insert(*hash);
                Ok(())
            })?;
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
        // Not with the changes of a collection, which must learn of its own failures.
        let failure = Arc::new(Mutex::new(None));
        let unreached: Vec<IoHash> = unreached.into_iter().collect();
        for step in unreached.chunks(STEP) {
            for hash in step {
                let key = key::blob(namespace, hash);
                let Some(value) = self.index.get(&key)? else { continue };
                let failed = Arc::clone(&failure);
                let done = move |done| {
                    if let Err(error) = done {
                        *lock(&failed) = Some(error);
                    }
                };
                self.enqueue(Change::Collect { key, value }, Box::new(done));
            }
            self.await_commits();
        }
        let failed = lock(&failure).take();
        failed.map_or(Ok(()), Err)
    }
}
