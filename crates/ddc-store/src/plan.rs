//! Effect of a batch of changes on the index; each change sees those before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use throng_ddc::IoHash;

use crate::change::{Change, ChangeResult};
use crate::error::StoreError;
use crate::events::{self, Cursor};
use crate::index::{IndexChange, IndexEntry};
use crate::key::{self, Location, RefValue};
use crate::locks::lock;
use crate::log::{Entry, write_pair};
use crate::quota::Quotas;
use crate::record::{Kind, LogPosition, RecordPosition};
use crate::run::fingerprint;
use crate::store::Store;

/// Turns changes of one batch into entries of the log, one after the other: each sees those before
/// it.
pub(crate) struct Plan<'s> {
    store: &'s Store,
    pub(crate) entries: Vec<Planned>,
    /// Entries that are in the index only.
    pub(crate) index_only: Vec<IndexChange>,
    /// Keys that this batch changes.
    pending: BTreeMap<Vec<u8>, Option<Pending>>,
    /// Large files that no entry names once the batch is written.
    pub(crate) freed_files: Vec<u64>,
    /// Bytes of large blobs that come, less those that go.
    pub(crate) large_bytes: i64,
    /// Position of the first entry.
    position: LogPosition,
    quotas: Arc<Quotas>,
}

/// A record, and what the index has to know of it.
pub(crate) struct Planned {
    pub(crate) entry: Entry,
    /// Smallest segment with a record of the key. `None`: the segment of this one, or, for a
    /// delete, that the index stays.
    pub(crate) first: Option<u64>,
}

/// Key that the batch sets.
struct Pending {
    first: u64,
    /// Value, empty for a blob of the batch, whose location is not known yet.
    value: Vec<u8>,
    /// Bytes of a blob of the batch.
    payload_len: u64,
}

impl<'s> Plan<'s> {
    /// A plan for records from `position` on.
    pub(crate) fn new(store: &'s Store, position: LogPosition) -> Plan<'s> {
        let quotas = store.quotas();
        lock(&store.sizes).follow(&quotas);
        Plan {
            store,
            entries: Vec::new(),
            index_only: Vec::new(),
            pending: BTreeMap::new(),
            freed_files: Vec::new(),
            large_bytes: 0,
            position,
            quotas,
        }
    }

    /// What becomes of a change.
    pub(crate) fn decide(&mut self, change: Change) -> Result<ChangeResult, StoreError> {
        match change {
            Change::Blob { key, payload, put } => {
                let old = self.get(&key)?;
                if let Some(old) = &old
                    && !self.is_hole(&old.value)
                {
                    return Ok(ChangeResult::Unchanged);
                }
                if !self.admit(&key, 0, payload.len() as u64)? {
                    return Ok(ChangeResult::OverQuota);
                }
                self.forget_large(old.as_ref());
                let value = key::blob_value(put, &payload);
                self.put(key, value, Some(payload), old.as_ref());
            }
            Change::Large { key, location } => {
                let old = self.get(&key)?;
                if let Some(old) = &old
                    && !self.is_hole(&old.value)
                {
                    // A conversion that was interrupted puts the same file again.
                    let is_same = Location::read(&old.value)
                        .is_some_and(|old| old.is_large() && old.file == location.file);
                    if !is_same {
                        self.freed_files.push(location.file);
                    }
                    return Ok(ChangeResult::Unchanged);
                }
                if !self.admit(&key, 0, location.len)? {
                    self.freed_files.push(location.file);
                    return Ok(ChangeResult::OverQuota);
                }
                self.forget_large(old.as_ref());
                self.large_bytes += location.len as i64;
                self.set(key, location.write().to_vec(), old.as_ref());
            }
            Change::Content { key, verified } => {
                let old = self.get(&key)?;
                let value = vec![1; usize::from(verified)];
                if old.as_ref().is_some_and(|old| !verified || *old.value == value[..]) {
                    return Ok(ChangeResult::Unchanged);
                }
                self.set(key, value, old.as_ref());
            }
            Change::Ref { key, value, overwrite, relies_on } => {
                let old = self.get(&key)?;
                if let Some(old) = old.as_ref().and_then(|old| RefValue::read(&old.value)) {
                    if old.object != value.object && !overwrite {
                        return Ok(ChangeResult::Conflict(old));
                    }
                    if value.is_refresh_of(&old) && self.rely_on(&relies_on)? {
                        return Ok(ChangeResult::Unchanged);
                    }
                }
                if !self.rely_on(&relies_on)? {
                    return Ok(ChangeResult::Lost);
                }
                if old.is_none() && self.store.has_lost {
                    let mark = key::lost(fingerprint(&key));
                    if self.store.index.get(&mark)?.is_some() {
                        self.index_only.push((mark.into(), None));
                    }
                }
                let bytes = value.write();
                let old_len = old.as_ref().map_or(0, |old| old.value.len() as u64);
                if !self.admit(&key, old_len, bytes.len() as u64)? {
                    return Ok(ChangeResult::OverQuota);
                }
                if let Some(old) = &old {
                    self.note_replaced(&key, &old.value);
                }
                if value.finalised {
                    self.tell(&key, false, &value.object)?;
                }
                self.set(key, bytes, old.as_ref());
            }
            Change::Access { key, used } => {
                let seconds = u32::try_from(used.unix_ms() / 1000).unwrap_or(u32::MAX);
                let entry = IndexEntry::new(RecordPosition::default(), seconds.to_le_bytes());
                self.index_only.push((key.into(), Some(entry)));
            }
            Change::Finalise { key, object, relies_on } => {
                let old = self.get(&key)?;
                let Some(mut value) = old.as_ref().and_then(|old| RefValue::read(&old.value)) else {
                    return Ok(ChangeResult::Unchanged);
                };
                if value.object != object {
                    return Ok(ChangeResult::Conflict(value));
                }
                if !self.rely_on(&relies_on)? {
                    return Ok(ChangeResult::Lost);
                }
                if value.finalised {
                    return Ok(ChangeResult::Done);
                }
                value.finalised = true;
                self.tell(&key, false, &value.object)?;
                self.set(key, value.write(), old.as_ref());
            }
            Change::Use { keys } => {
                if !self.rely_on(&keys)? {
                    return Ok(ChangeResult::Lost);
                }
            }
            Change::Set { key, value } => {
                let old = self.get(&key)?;
                self.set(key, value, old.as_ref());
            }
            Change::Delete { key } => {
                let Some(old) = self.get(&key)? else { return Ok(ChangeResult::Unchanged) };
                self.delete(key, &old)?;
            }
            Change::Collect { key, value } => {
                let wanted = lock(&self.store.relied_on).has(&key);
                if self.has_blob_of_form(&key)? {
                    return Ok(ChangeResult::Unchanged);
                }
                let old = self.get(&key)?.filter(|old| !wanted && old.value == value);
                let Some(old) = old else { return Ok(ChangeResult::Unchanged) };
                self.delete(key, &old)?;
            }
            Change::Move { key, record, payload } => {
                let old = self.get(&key)?.filter(|old| old.record == record);
                let Some(old) = old else { return Ok(ChangeResult::Unchanged) };
                let value = match &payload {
                    Some(payload) => {
                        let put = Location::read(&old.value).map_or(0, |location| location.put.unix_ms());
                        key::blob_value(throng_ddc::Timestamp::from_unix_ms(put), payload)
                    }
                    None => old.value.to_vec(),
                };
                self.put(key, value, payload, Some(&old));
            }
            Change::MoveDelete { key, range } => {
                let entry = Entry { kind: Kind::Delete, key, value: range, payload: None, replaces: true };
                self.entries.push(Planned { entry, first: None });
            }
            Change::Loss { keys } => {
                let numbers = keys.iter().flat_map(|(key, segment, offset)| [*key, *segment, *offset]);
                let value = numbers.flat_map(u64::to_le_bytes).collect();
                let entry = Entry { kind: Kind::Loss, key: Vec::new(), value, payload: None, replaces: true };
                self.entries.push(Planned { entry, first: None });
            }
        }
        Ok(ChangeResult::Done)
    }

    /// Reports whether a blob's own file is gone, so that what the index says of it is worth
    /// nothing.
    fn is_hole(&self, value: &[u8]) -> bool {
        Location::read(value).is_some_and(|location| location.is_large() && !self.store.has_file(&location))
    }

    /// Reports whether a key is that of a form whose blob is stored: it was put again since the
    /// form was found without it, and refs may rely on it.
    fn has_blob_of_form(&self, key: &[u8]) -> Result<bool, StoreError> {
        let form = key.strip_prefix(b"c").and_then(|_| key::last_hash(key));
        let (Some(hash), Some((namespace, _))) = (form, key::split_namespace(key)) else { return Ok(false) };
        Ok(self.get(&key::blob(&namespace, &hash))?.is_some())
    }

    /// Takes the bytes of a large blob that goes off the total; its file goes once that is written.
    fn forget_large(&mut self, old: Option<&IndexEntry>) {
        if let Some(location) = old.and_then(|old| Location::read(&old.value)).filter(Location::is_large) {
            self.large_bytes -= location.len as i64;
            self.freed_files.push(location.file);
        }
    }

    /// Reports whether the namespace of a blob or ref may hold `len` bytes in place of `freed`;
    /// they are counted then.
    fn admit(&mut self, key: &[u8], freed: u64, len: u64) -> Result<bool, StoreError> {
        if self.quotas.is_empty() {
            return Ok(true);
        }
        let Some((namespace, _)) = key::split_namespace(key) else { return Ok(true) };
        let count = || self.store.size_of(&namespace);
        let fits = lock(&self.store.sizes).admit(&namespace, (freed, len), count)?;
        if !fits {
            self.store.was_over_quota.store(true, Ordering::Relaxed);
        }
        Ok(fits)
    }

    fn release(&mut self, key: &[u8], len: u64) -> Result<(), StoreError> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        let Some((namespace, _)) = key::split_namespace(key) else { return Ok(()) };
        let count = || self.store.size_of(&namespace);
        lock(&self.store.sizes).release(&namespace, len, count)
    }

    /// Remembers a ref that goes: what only it reached need not count in a quota, nor be kept.
    fn note_replaced(&self, key: &[u8], value: &[u8]) {
        let namespace = key::split_namespace(key).map(|(namespace, _)| namespace);
        let namespace = namespace.filter(|namespace| self.quotas.counts_replaced(namespace));
        if let (Some(namespace), Some(value)) = (namespace, RefValue::read(value)) {
            lock(&self.store.replaced).insert(namespace, value);
        }
    }

    /// Deletes a key, and what follows from that.
    fn delete(&mut self, key: Vec<u8>, old: &IndexEntry) -> Result<(), StoreError> {
        match key.first() {
            Some(b'b') => {
                let unwritten =
                    self.pending.get(&key).and_then(Option::as_ref).map_or(0, |new| new.payload_len);
                let len = Location::read(&old.value).map_or(unwritten, |location| location.len);
                self.release(&key, len)?;
                self.forget_large(Some(old));
            }
            Some(b'r') => {
                self.release(&key, old.value.len() as u64)?;
                self.note_replaced(&key, &old.value);
                if let Some(value) = RefValue::read(&old.value).filter(|value| value.finalised) {
                    self.tell(&key, true, &value.object)?;
                }
            }
            _ => {}
        }
        if old.record.segment == 0 {
            self.index_only.push((key.into(), None));
            return Ok(());
        }
        let RecordPosition { first, segment, .. } = old.record;
        self.pending.insert(key.clone(), None);
        let value = write_pair(first, segment);
        let entry = Entry { kind: Kind::Delete, key, value, payload: None, replaces: true };
        self.entries.push(Planned { entry, first: Some(first) });
        Ok(())
    }

    /// Adds an event to the replication log, if there is one.
    fn tell(&mut self, reference: &[u8], deleted: bool, object: &IoHash) -> Result<(), StoreError> {
        if !self.store.has_events() {
            return Ok(());
        }
        let now = self.store.clock().now();
        let newest = self.store.newest_bucket.load(Ordering::Relaxed);
        let bucket = Cursor::at(now).bucket.max(newest);
        if bucket > newest {
            self.store.newest_bucket.store(bucket, Ordering::Relaxed);
            let old = self.get(events::NEWEST)?;
            self.set(events::NEWEST.to_vec(), bucket.to_be_bytes().to_vec(), old.as_ref());
        }
        let cursor = Cursor { bucket, sequence: self.position.sequence + self.entries.len() as u64 };
        if let Some((key, value)) = events::entry(reference, cursor, now, deleted, object) {
            self.set(key, value, None);
        }
        Ok(())
    }

    /// Reports whether all these refs and blobs are stored. A collection that runs will not take
    /// those that are.
    fn rely_on(&mut self, keys: &[Vec<u8>]) -> Result<bool, StoreError> {
        let mut used = Vec::with_capacity(keys.len());
        for key in keys {
            if self.get(key)?.is_some() {
                used.push(fingerprint(key));
            }
        }
        let are_all_stored = used.len() == keys.len();
        let mut relied_on = lock(&self.store.relied_on);
        if relied_on.collections > 0 {
            relied_on.used.extend(used);
        }
        Ok(are_all_stored)
    }

    fn set(&mut self, key: Vec<u8>, value: Vec<u8>, old: Option<&IndexEntry>) {
        self.put(key, value, None, old);
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>, payload: Option<Bytes>, old: Option<&IndexEntry>) {
        let first = old.map_or(self.position.segment, |old| old.record.first);
        // A segment that is gone holds no record; the smallest one that may is a later one.
        let first = self.store.segments.next_from(first).unwrap_or(self.position.segment);
        // A blob's location is not known yet; that it exists is.
        let known = if payload.is_some() { Vec::new() } else { value.clone() };
        let payload_len = payload.as_ref().map_or(0, |payload| payload.len() as u64);
        self.pending.insert(key.clone(), Some(Pending { first, value: known, payload_len }));
        let entry = Entry { kind: Kind::Put, key, value, payload, replaces: old.is_some() };
        self.entries.push(Planned { entry, first: Some(first) });
    }

    /// The entry of a key after the changes so far.
    fn get(&self, key: &[u8]) -> Result<Option<IndexEntry>, StoreError> {
        match self.pending.get(key) {
            Some(pending) => Ok(pending.as_ref().map(|pending| {
                let segment = self.position.segment;
                let record = RecordPosition { first: pending.first, segment, offset: u64::MAX };
                IndexEntry::new(record, pending.value.clone())
            })),
            None => Ok(self.store.index.entry(key)?),
        }
    }
}
