//! Blobs that an upload in progress holds, or that one has repeated a moment ago.

use throng_ddc::{IoHash, Namespace};

use crate::key;
use crate::locks::lock;
use crate::store::Store;

/// Blobs of an upload that no collection or eviction removes until this is dropped. Requests that
/// delete blobs are made all the same.
pub struct Hold<'s> {
    store: &'s Store,
    keys: Vec<Vec<u8>>,
}

impl Store {
    /// Holds blobs, those that are not stored yet included. One that is being removed at this
    /// moment may still go: look it up afterwards.
    #[must_use]
    pub fn hold(&self, namespace: &Namespace, blobs: &[IoHash]) -> Hold<'_> {
        let keys: Vec<Vec<u8>> = blobs.iter().map(|blob| key::blob(namespace, blob)).collect();
        let mut relied_on = lock(&self.relied_on);
        for key in &keys {
            *relied_on.held.entry(key.clone()).or_default() += 1;
        }
        Hold { store: self, keys }
    }

    /// Notes that a stored blob was uploaded once more: the ref that is to reach it may still come,
    /// and the one that reaches it may go before.
    pub fn note_repeated(&self, namespace: &Namespace, blob: &IoHash) {
        let (now, key) = (self.clock().elapsed(), key::blob(namespace, blob));
        lock(&self.relied_on).repeated.insert(&key, now);
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut relied_on = lock(&self.store.relied_on);
        for key in self.keys.drain(..) {
            if let Some(holders) = relied_on.held.get_mut(&key) {
                *holders -= 1;
                if *holders == 0 {
                    relied_on.held.remove(&key);
                }
            }
        }
    }
}
