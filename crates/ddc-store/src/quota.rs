//! Quotas of namespaces.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throng_ddc::Namespace;

use crate::error::StoreError;
use crate::key::RefValue;

/// Bytes of replaced refs that are remembered; with more, all are forgotten, and what they reached
/// counts until the next collection.
const REPLACED_BYTES_MAX: usize = 16 << 20;

/// Bytes of blobs and refs that namespaces may hold, and namespaces from which nothing is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Namespaces that differ from `default`.
    pub namespaces: BTreeMap<Namespace, u64>,
    /// All others; `None` for no limit.
    pub default: Option<u64>,
    /// Namespaces of which only what no ref reaches any more is evicted.
    pub kept: BTreeSet<Namespace>,
}

impl Quotas {
    pub(crate) fn of(&self, namespace: &Namespace) -> Option<u64> {
        self.namespaces.get(namespace).copied().or(self.default)
    }

    /// Reports whether blobs that only replaced refs of the namespace reached are to be removed
    /// before others.
    pub(crate) fn counts_replaced(&self, namespace: &Namespace) -> bool {
        self.of(namespace).is_some() || self.kept.contains(namespace)
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
    pub(crate) fn known(&self, namespace: &Namespace) -> Option<u64> {
        self.sizes.get(namespace).copied()
    }

    pub(crate) fn size(
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

/// Refs that were replaced or deleted in namespaces with a quota, and in those that are kept.
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

    pub(crate) fn take(&mut self, namespace: &Namespace) -> Vec<RefValue> {
        let values = self.values.remove(namespace).unwrap_or_default();
        self.bytes -= values.iter().map(bytes_of).sum::<usize>();
        values
    }
}

fn bytes_of(value: &RefValue) -> usize {
    size_of::<RefValue>() + value.inline.as_ref().map_or(0, bytes::Bytes::len)
}
