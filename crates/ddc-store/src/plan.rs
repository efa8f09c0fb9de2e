//! What a batch of changes does to the index: each change sees those before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use throng_ddc::{IoHash, Timestamp};

use crate::commit::Change;
use crate::events::{self, Cursor};
use crate::key::{self, Location, RefValue};
use crate::log::{self, Entry, Place};
use crate::quota::Quotas;
use crate::store::{Outcome, Store, StoreError, lock};

/// Turns changes of one batch into entries of the log, one after the other: each sees those before it.
pub(crate) struct Plan<'s> {
    store: &'s Store,
    pub(crate) entries: Vec<Entry>,
    /// What this batch makes of keys. The value of a blob is not known yet; it is empty here.
    pending: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Large files that nobody refers to.
    pub(crate) unused_files: Vec<u64>,
    /// Sequence number of the first entry.
    sequence: u64,
    quotas: Arc<Quotas>,
}

impl<'s> Plan<'s> {
    pub(crate) fn new(store: &'s Store, sequence: u64) -> Plan<'s> {
        Plan {
            store,
            entries: Vec::new(),
            pending: BTreeMap::new(),
            unused_files: Vec::new(),
            sequence,
            quotas: store.quotas(),
        }
    }

    /// What becomes of a change.
    pub(crate) fn decide(&mut self, change: Change) -> Result<Outcome, StoreError> {
        match change {
            Change::Blob { key, payload, put } => {
                if self.exists(&key)? {
                    return Ok(Outcome::Unchanged);
                }
                if !self.admit(&key, payload.len() as u64)? {
                    return Ok(Outcome::OverQuota);
                }
                let value = Some(put.unix_ms().to_le_bytes().to_vec());
                self.write(Entry { key, value, payload: Some(payload) });
            }
            Change::Large { key, location } => {
                if self.exists(&key)? {
                    self.unused_files.push(location.file);
                    return Ok(Outcome::Unchanged);
                }
                if !self.admit(&key, location.len)? {
                    self.unused_files.push(location.file);
                    return Ok(Outcome::OverQuota);
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
                    if value.is_refresh_of(&old) && self.rely_on(&relies_on)? {
                        return Ok(Outcome::Unchanged);
                    }
                }
                if !self.rely_on(&relies_on)? {
                    return Ok(Outcome::Lost);
                }
                if value.finalised {
                    self.tell(&key, false, &value.object);
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
                self.tell(&key, false, &value.object);
                self.write(Entry { key, value: Some(value.write()), payload: None });
            }
            Change::Set { key, value } => self.write(Entry { key, value: Some(value), payload: None }),
            Change::Delete { key } => {
                let Some(old) = self.get(&key)? else { return Ok(Outcome::Unchanged) };
                self.leave(&key, &old);
                self.write(Entry { key, value: None, payload: None });
            }
            Change::Collect { key, value } => {
                let wanted = lock(&self.store.relied_on).as_ref().is_some_and(|wanted| wanted.contains(&key));
                if wanted || self.get(&key)?.as_deref() != Some(&value) {
                    return Ok(Outcome::Unchanged);
                }
                self.leave(&key, &value);
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

    /// Whether the namespace of a blob may hold so many bytes more; they are counted then.
    fn admit(&mut self, blob: &[u8], len: u64) -> Result<bool, StoreError> {
        if self.quotas.is_empty() {
            return Ok(true);
        }
        let Some((namespace, _)) = key::read_blob(blob) else { return Ok(true) };
        match self.quotas.of(&namespace) {
            Some(quota) => lock(&self.store.sizes).admit(self.store, &namespace, len, quota),
            None => Ok(true),
        }
    }

    /// Notes what follows from the end of a key.
    fn leave(&mut self, key: &[u8], value: &[u8]) {
        match key.first() {
            Some(b'b') if !self.quotas.is_empty() => {
                // A blob of this batch has no location yet.
                let unwritten = || self.entries.iter().rev().find(|entry| entry.key == key);
                let len = match Location::read(value) {
                    Some(location) => location.len,
                    None => unwritten().and_then(|entry| entry.payload.as_ref()).map_or(0, Bytes::len) as u64,
                };
                if let Some((namespace, _)) = key::read_blob(key) {
                    lock(&self.store.sizes).release(&namespace, len);
                }
            }
            Some(b'r') => {
                if let Some(value) = RefValue::read(value).filter(|value| value.finalised) {
                    self.tell(key, true, &value.object);
                }
            }
            _ => {}
        }
    }

    /// Adds an event to the replication log, if there is one.
    fn tell(&mut self, reference: &[u8], deleted: bool, object: &IoHash) {
        if !self.store.has_events() {
            return;
        }
        let now = events::now();
        let newest = self.store.newest_bucket.load(Ordering::Relaxed);
        let bucket = Cursor::at(now).bucket.max(newest);
        if bucket > newest {
            self.store.newest_bucket.store(bucket, Ordering::Relaxed);
            let value = Some(bucket.to_be_bytes().to_vec());
            self.write(Entry { key: events::NEWEST.to_vec(), value, payload: None });
        }
        let cursor = Cursor { bucket, sequence: self.sequence + self.entries.len() as u64 };
        if let Some((key, value)) = events::entry(reference, cursor, now, deleted, object) {
            self.write(Entry { key, value: Some(value), payload: None });
        }
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
pub(crate) fn index_entry(found: log::Found) -> (Box<[u8]>, Option<Box<[u8]>>) {
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
