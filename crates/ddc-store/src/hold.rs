//! What no collection or eviction removes for a while: blobs that an upload in progress holds, or
//! that one has repeated a moment ago, and what answers rely on.

use std::collections::BTreeSet;

use throng_ddc::{Bucket, IoHash, Key, Namespace};

use crate::change::{Change, Done};
use crate::error::StoreError;
use crate::key::{self, RefValue};
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

    /// Reports whether a collection or eviction runs. One that begins later knows of all uses so
    /// far.
    #[must_use]
    pub fn is_collecting(&self) -> bool {
        lock(&self.relied_on).collections > 0
    }

    /// Keeps refs and all that they reach until the collections and evictions that run have ended,
    /// as far as it is stored: what is found after `done` was called stays. An eviction looks at a
    /// last use before it removes something, and a ref may be used in between.
    pub fn keep_used(&self, namespace: &Namespace, refs: &[(Bucket, Key)], done: Done) {
        match self.keys_of(namespace, refs) {
            Ok(keys) => self.submit(Change::Use { keys }, done),
            Err(error) => done(Err(error)),
        }
    }

    /// Keys of refs and of the blobs that they reach.
    fn keys_of(&self, namespace: &Namespace, refs: &[(Bucket, Key)]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut keys = Vec::new();
        for (bucket, name) in refs {
            let key = key::reference(namespace, bucket, name);
            let Some(value) = self.index.read(&key, |_, value| RefValue::read(value))?.flatten() else {
                continue;
            };
            self.each_reached(namespace, &value, &mut BTreeSet::new(), &mut |hash| {
                keys.push(key::blob(namespace, hash));
                Ok(())
            })?;
            keys.push(key);
        }
        Ok(keys)
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
