//! Refs and copies that the next eviction removes first.

use std::collections::BinaryHeap;

use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use crate::error::StoreError;
use crate::evict::EvictOptions;
use crate::key::{self, Location, RefValue};
use crate::store::Store;

/// Something that an eviction may remove. The order is that of the last use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unused {
    /// Last use, or the time when it was put.
    pub used: Timestamp,
    /// Namespace that it belongs to.
    pub namespace: Namespace,
    /// Its name there.
    pub name: UnusedName,
}

/// Name of something that an eviction may remove.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnusedName {
    /// A ref, in a folder that holds everything.
    Ref(Bucket, Key),
    /// A copy of what an object storage has.
    Blob(IoHash),
}

impl Store {
    /// The `count` refs that were unused longest, or blobs in a folder of copies, the longest
    /// first: a walk over all of them, in memory for `count`. Evictions remove blobs without a ref
    /// as well, which only their marks tell apart, and are free to take a few seconds' worth of
    /// uses in any order.
    ///
    /// # Errors
    /// As the system says.
    pub fn longest_unused(
        &self,
        options: &EvictOptions<'_>,
        count: usize,
    ) -> Result<Vec<Unused>, StoreError> {
        // The one that was used last is on top.
        let mut oldest: BinaryHeap<Unused> = BinaryHeap::with_capacity(count + 1);
        let mut offer = |unused: Unused| {
            oldest.push(unused);
            if oldest.len() > count {
                oldest.pop();
            }
        };
        for namespace in self.namespaces()?.iter().filter(|namespace| !(options.keeps)(namespace)) {
            let tag = if options.copies { b'b' } else { b'r' };
            self.walk(&key::in_namespace(tag, namespace), &mut |index_key, stored| {
                if options.copies {
                    let (blob, location) = (key::read_blob(index_key), Location::read(stored));
                    if let (Some((_, hash)), Some(location)) = (blob, location) {
                        let used = (options.last_use)(&hash).max(Some(location.put)).unwrap_or_default();
                        let name = UnusedName::Blob(hash);
                        offer(Unused { used, namespace: namespace.clone(), name });
                    }
                    return Ok(());
                }
                let (name, value) = (key::read_reference(index_key), RefValue::read(stored));
                if let (Some((_, bucket, key)), Some(value)) = (name, value) {
                    let noted = self.last_access(namespace, &bucket, &key)?;
                    let used =
                        (options.last_access)(namespace, &bucket, &key).max(noted).max(Some(value.put));
                    let name = UnusedName::Ref(bucket, key);
                    offer(Unused { used: used.unwrap_or_default(), namespace: namespace.clone(), name });
                }
                Ok(())
            })?;
        }
        Ok(oldest.into_sorted_vec())
    }
}
