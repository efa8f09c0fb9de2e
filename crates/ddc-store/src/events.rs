//! The replication log: added and removed refs, in order, for replicas of the cache.
//!
//! | Key | Value |
//! |---|---|
//! | `e` namespace bucket(4) sequence(8) | an [`Event`]: milliseconds since 1970 (8), 1 if deleted, hash of the object, length of the bucket's name (1), bucket, key |
//! | `t` namespace | bucket(4) and sequence(8) of the last event that was forgotten |
//! | `s` namespace milliseconds(8) | hash of the blob that is a snapshot |
//! | `E` | the newest bucket of time that any event has |
//! | `S` | milliseconds since 1970 at which the last scrub ended (8) |
//!
//! Numbers in keys are big-endian, so that events lie in order. An event is written with the change
//! that it tells of: either both are in the log or none is. A bucket of time is five minutes;
//! buckets never go back, even when the clock does, so that no event appears behind a reader.

use std::collections::BTreeMap;

use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use crate::change::{Change, Done};
use crate::error::StoreError;
use crate::key;
use crate::locks::lock;
use crate::store::Store;

/// Length of a bucket of time.
const BUCKET_MS: u64 = 5 * 60 * 1000;
/// Snapshots that are kept of a namespace.
const SNAPSHOTS_MAX: usize = 2;
/// Where the newest bucket of time is kept.
pub(crate) const NEWEST: &[u8] = b"E";
/// Key of the time at which the last scrub ended.
const SCRUBBED: &[u8] = b"S";

/// A place in the replication log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// Buckets of five minutes since 1970.
    pub bucket: u32,
    /// Orders events; never used twice.
    pub sequence: u64,
}

/// A ref that came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place.
    pub cursor: Cursor,
    /// Time when it was written.
    pub at: Timestamp,
    /// True if the ref was deleted; else it was finalised.
    pub deleted: bool,
    /// Bucket of the ref.
    pub bucket: Bucket,
    /// Key of the ref.
    pub key: Key,
    /// Hash of its object.
    pub object: IoHash,
}

/// A list of all refs of a namespace, as a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Time when it was made.
    pub at: Timestamp,
    /// The blob.
    pub blob: IoHash,
}

impl Cursor {
    /// The beginning of the bucket of time in which `at` lies.
    #[must_use]
    pub fn at(at: Timestamp) -> Cursor {
        Cursor { bucket: u32::try_from(at.unix_ms() / BUCKET_MS).unwrap_or(u32::MAX), sequence: 0 }
    }

    fn write(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.bucket.to_be_bytes());
        bytes[4..].copy_from_slice(&self.sequence.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Cursor> {
        let (bucket, sequence) = bytes.split_first_chunk()?;
        let sequence = u64::from_be_bytes(sequence.try_into().ok()?);
        Some(Cursor { bucket: u32::from_be_bytes(*bucket), sequence })
    }
}

fn event_key(namespace: &Namespace, cursor: Cursor) -> Vec<u8> {
    let mut key = key::in_namespace(b'e', namespace);
    key.extend_from_slice(&cursor.write());
    key
}

/// An entry of the log for an event: its key and value.
pub(crate) fn entry(
    reference: &[u8],
    cursor: Cursor,
    at: Timestamp,
    deleted: bool,
    object: &IoHash,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let (namespace, bucket, key) = key::read_reference(reference)?;
    let mut value = Vec::with_capacity(30 + bucket.as_str().len() + Key::CHARS);
    value.extend_from_slice(&at.unix_ms().to_le_bytes());
    value.push(u8::from(deleted));
    value.extend_from_slice(object.as_bytes());
    value.push(bucket.as_str().len() as u8);
    value.extend_from_slice(bucket.as_str().as_bytes());
    value.extend_from_slice(key.as_str().as_bytes());
    Some((event_key(&namespace, cursor), value))
}

fn read_event(cursor: Cursor, value: &[u8]) -> Option<Event> {
    let (at, rest) = value.split_first_chunk()?;
    let (deleted, rest) = rest.split_first()?;
    let (object, rest) = rest.split_at_checked(IoHash::BYTES)?;
    let (len, rest) = rest.split_first()?;
    let (bucket, key) = rest.split_at_checked(usize::from(*len))?;
    Some(Event {
        cursor,
        at: Timestamp::from_unix_ms(u64::from_le_bytes(*at)),
        deleted: *deleted != 0,
        bucket: std::str::from_utf8(bucket).ok()?.parse().ok()?,
        key: std::str::from_utf8(key).ok()?.parse().ok()?,
        object: IoHash::read(object)?,
    })
}

impl Store {
    /// Up to `limit` events of a namespace after `after`, in order.
    ///
    /// # Errors
    /// As the system says.
    pub fn events(
        &self,
        namespace: &Namespace,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let prefix = key::in_namespace(b'e', namespace);
        let after = after.map(|cursor| event_key(namespace, cursor));
        let found = self.index.scan(&prefix, after.as_deref(), limit)?;
        let events = found
            .iter()
            .filter_map(|(key, value)| read_event(Cursor::read(key.get(prefix.len()..)?)?, value));
        Ok(events.collect())
    }

    /// The last event of a namespace that was forgotten: what follows it is there.
    ///
    /// # Errors
    /// As the system says.
    pub fn forgotten(&self, namespace: &Namespace) -> Result<Option<Cursor>, StoreError> {
        let found = self.index.get(&key::in_namespace(b't', namespace))?;
        Ok(found.and_then(|value| Cursor::read(&value)))
    }

    /// Forgets events from before `before`. Returns how many.
    ///
    /// # Errors
    /// As the system says.
    pub fn forget_events(&self, before: Timestamp) -> Result<u64, StoreError> {
        // The slot for failures of the store's own changes has one user at a time.
        let _one = lock(&self.maintenance);
        let mut count = 0;
        let mut last = BTreeMap::new();
        self.walk(b"e", &mut |index_key, value| {
            let Some((namespace, cursor)) = key::split_namespace(index_key) else { return Ok(()) };
            if let Some(event) = Cursor::read(cursor).and_then(|cursor| read_event(cursor, value))
                && event.at < before
            {
                last.insert(namespace, event.cursor);
                count += 1;
                self.queue_and_commit(Change::Delete { key: index_key.to_vec() })?;
            }
            Ok(())
        })?;
        for (namespace, cursor) in last {
            let key = key::in_namespace(b't', &namespace);
            self.queue_own(Change::Set { key, value: cursor.write().to_vec() });
        }
        self.commit_own()?;
        Ok(count)
    }

    /// Notes that a blob is a snapshot of a namespace. Only the newest ones stay.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_snapshot(
        &self,
        namespace: &Namespace,
        snapshot: Snapshot,
        done: Done,
    ) -> Result<(), StoreError> {
        let prefix = key::in_namespace(b's', namespace);
        let olds = self.index.scan(&prefix, None, 1024)?;
        for (old, _) in olds.iter().take((olds.len() + 1).saturating_sub(SNAPSHOTS_MAX)) {
            self.queue_maintenance(Change::Delete { key: old.to_vec() });
        }
        let mut key = prefix;
        key.extend_from_slice(&snapshot.at.unix_ms().to_be_bytes());
        self.enqueue(Change::Set { key, value: snapshot.blob.as_bytes().to_vec() }, done);
        Ok(())
    }

    /// Notes that a scrub ended.
    pub fn note_scrub(&self, at: Timestamp) {
        let value = at.unix_ms().to_le_bytes().to_vec();
        self.queue_maintenance(Change::Set { key: SCRUBBED.to_vec(), value });
    }

    /// Time at which the last scrub ended.
    ///
    /// # Errors
    /// As the system says.
    pub fn scrubbed_at(&self) -> Result<Option<Timestamp>, StoreError> {
        let found = self.index.get(SCRUBBED)?;
        let ms = found.and_then(|value| value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
        Ok(ms.map(Timestamp::from_unix_ms))
    }

    /// The snapshots of a namespace, the oldest first.
    ///
    /// # Errors
    /// As the system says.
    pub fn snapshots(&self, namespace: &Namespace) -> Result<Vec<Snapshot>, StoreError> {
        let prefix = key::in_namespace(b's', namespace);
        let found = self.index.scan(&prefix, None, 1024)?;
        let snapshots = found.iter().filter_map(|(key, value)| {
            let at = u64::from_be_bytes(key.get(prefix.len()..)?.try_into().ok()?);
            Some(Snapshot { at: Timestamp::from_unix_ms(at), blob: IoHash::read(value)? })
        });
        Ok(snapshots.collect())
    }
}
