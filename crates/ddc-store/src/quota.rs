//! Quotas of namespaces.

use std::collections::BTreeMap;

use throng_ddc::Namespace;

use crate::error::StoreError;

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

/// What namespaces with a quota hold. Counted once, when the first blob comes, and kept up from
/// then on. Only used by whoever holds the log.
#[derive(Debug, Default)]
pub(crate) struct Sizes(BTreeMap<Namespace, u64>);

impl Sizes {
    /// Counts a blob or ref of `len` bytes that is about to come, unless that is more than `quota`.
    /// Whether it may. `count` says what the namespace holds, if that is not known yet.
    pub(crate) fn admit(
        &mut self,
        namespace: &Namespace,
        len: u64,
        quota: u64,
        count: impl FnOnce() -> Result<u64, StoreError>,
    ) -> Result<bool, StoreError> {
        let size = match self.0.get_mut(namespace) {
            Some(size) => size,
            None => self.0.entry(namespace.clone()).or_insert(count()?),
        };
        let fits = size.checked_add(len).is_some_and(|after| after <= quota);
        if fits {
            *size += len;
        }
        Ok(fits)
    }

    /// Takes the size of a deleted blob or ref off.
    pub(crate) fn release(&mut self, namespace: &Namespace, len: u64) {
        if let Some(size) = self.0.get_mut(namespace) {
            *size = size.saturating_sub(len);
        }
    }

    /// Forgets everything: what was counted did not come about.
    pub(crate) fn reset(&mut self) {
        self.0.clear();
    }
}
