//! Origin of the data: the folder, an object storage, or partly another cache.
//!
//! | Origin | Blobs | Refs | An upload is acknowledged when |
//! |---|---|---|---|
//! | none | in the folder | in the folder | it is in the folder |
//! | object storage | there; the folder has copies | there only | the storage has it |
//! | upstream | in the folder, or brought from the upstream | the same | it is in the folder |
//!
//! What comes from elsewhere is hashed before it is kept. Requests for the same absent blob wait
//! for the first of them, except those that came through another cache: what the first waits for
//! may be the one that asks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_ddc::api::RefName;
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::Tier;

use crate::upstream::Upstream;

/// Where a node gets what it does not have.
#[derive(Debug, Default)]
pub enum Origin {
    /// Nowhere: the folder holds everything.
    #[default]
    Alone,
    /// From an object storage that it shares with others.
    Tier(Tier),
    /// From another cache.
    Upstream(Box<Upstream>),
}

/// What became of looks elsewhere.
#[derive(Debug, Default)]
pub(crate) struct OriginCounters {
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Refs that were served although the upstream did not say whether they are as they were.
    pub(crate) stale: AtomicU64,
    /// Blobs and refs of an upstream that were served and could not be kept.
    pub(crate) passed: AtomicU64,
    pub(crate) passed_log: OnceAMinute,
    pub(crate) loop_log: OnceAMinute,
    /// True if the last look failed, so that a change is logged and nothing else.
    pub(crate) failing: AtomicBool,
    /// The last read from the object storage that ended too early. Heads of objects may arrive
    /// while bodies do not, so that only reading it again shows that the storage works.
    pub(crate) broken_off: Mutex<Option<Read>>,
}

/// Limit of a line of the log: one in a minute.
#[derive(Debug, Default)]
pub(crate) struct OnceAMinute {
    /// Milliseconds on the clock from which on the next line may come.
    next_ms: AtomicU64,
}

impl OnceAMinute {
    /// Reports whether the line may come, which it does then.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        let now = now.as_millis() as u64;
        let next = self.next_ms.load(Ordering::Relaxed);
        let (ordering, later) = (Ordering::Relaxed, now + 60_000);
        now >= next && self.next_ms.compare_exchange(next, later, ordering, ordering).is_ok()
    }
}

/// Something that is read from an object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Blob(Namespace, IoHash),
    Ref(RefName),
}

/// What an object reaches.
pub(crate) struct Closed {
    /// What is stored nowhere, in the order of the walk.
    pub(crate) missing: Vec<IoHash>,
    /// The blobs that hold the rest.
    pub(crate) blobs: Vec<IoHash>,
}

/// Blob that holds a content: the raw bytes themselves, or a compressed form of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) blob: IoHash,
    /// The content is known to have its hash.
    pub(crate) verified: bool,
}

impl Located {
    /// The raw bytes with this hash.
    pub(crate) fn raw(hash: &IoHash) -> Located {
        Located { blob: *hash, verified: true }
    }
}

/// Which attachments count as stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that this cache answers for: its folder and its object storage.
    Own,
    /// Those of the upstream too, which are brought here.
    All,
}

/// A blob of a namespace.
type Wanted = (Namespace, IoHash);

/// Blobs that are on their way here: who holds the lock of one brings it.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<Wanted, Arc<tokio::sync::Mutex<()>>>>);

impl Flights {
    /// The turn to bring a blob here.
    pub(crate) fn join(&self, namespace: &Namespace, hash: &IoHash) -> Flight<'_> {
        let key = (namespace.clone(), *hash);
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = Arc::clone(flights.entry(key.clone()).or_default());
        Flight { flights: self, key, lock }
    }
}

/// One of those who want the same blob.
pub(crate) struct Flight<'s> {
    flights: &'s Flights,
    key: Wanted,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Flight<'_> {
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.lock.lock().await
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flights = self.flights.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's and this one.
        if Arc::strong_count(&self.lock) <= 2 {
            flights.remove(&self.key);
        }
    }
}
