//! Counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use throng_ddc_store::{CollectReport, ScrubReport, Space, Stats};

use crate::service::Service;

/// Counters since start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// What arrived and was no request.
    pub(crate) malformed: AtomicU64,
    pub(crate) ref_hits: AtomicU64,
    pub(crate) ref_misses: AtomicU64,
    pub(crate) blob_hits: AtomicU64,
    pub(crate) blob_misses: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    collections: AtomicU64,
    collected_refs: AtomicU64,
    collected_blobs: AtomicU64,
    collected_bytes: AtomicU64,
    scrubbed_bytes: AtomicU64,
    damaged: AtomicU64,
}

impl Counters {
    pub(crate) fn add_collected(&self, collected: &CollectReport) {
        self.collections.fetch_add(1, Ordering::Relaxed);
        self.collected_refs.fetch_add(collected.refs, Ordering::Relaxed);
        self.collected_blobs.fetch_add(collected.blobs, Ordering::Relaxed);
        self.collected_bytes.fetch_add(collected.blob_bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_scrubbed(&self, scrubbed: &ScrubReport) {
        self.scrubbed_bytes.fetch_add(scrubbed.bytes, Ordering::Relaxed);
        self.damaged.fetch_add(scrubbed.damaged + scrubbed.lost, Ordering::Relaxed);
    }

    pub(crate) fn add_damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the cache did since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests, those that were none included.
    pub requests: u64,
    /// Requests that failed for a reason that is ours.
    pub failures: u64,
    /// What arrived and was no request.
    pub malformed: u64,
    /// Refs that were asked for and found.
    pub ref_hits: u64,
    /// Refs that were asked for and not there.
    pub ref_misses: u64,
    /// Blobs that were asked for and found.
    pub blob_hits: u64,
    /// Blobs that were asked for and not there.
    pub blob_misses: u64,
    /// Bytes of blobs that were received.
    pub bytes_in: u64,
    /// Bytes of answers' bodies.
    pub bytes_out: u64,
    /// Collections.
    pub collections: u64,
    /// Refs that they removed.
    pub collected_refs: u64,
    /// Blobs that they removed.
    pub collected_blobs: u64,
    /// Bytes of those blobs.
    pub collected_bytes: u64,
    /// Bytes that scrubs read.
    pub scrubbed_bytes: u64,
    /// Blobs that were found damaged or lost.
    pub damaged: u64,
    /// Blobs that were brought from elsewhere.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Looks elsewhere that failed.
    pub origin_failures: u64,
    /// Counters of the store.
    pub store: Stats,
    /// Space that the store uses and has.
    pub space: Space,
    /// The index was found damaged.
    pub index_damaged: bool,
}

impl Service {
    /// What the cache did so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        CacheStats {
            requests: read(&counters.requests),
            failures: read(&counters.failures),
            malformed: read(&counters.malformed),
            ref_hits: read(&counters.ref_hits),
            ref_misses: read(&counters.ref_misses),
            blob_hits: read(&counters.blob_hits),
            blob_misses: read(&counters.blob_misses),
            bytes_in: read(&counters.bytes_in),
            bytes_out: read(&counters.bytes_out),
            collections: read(&counters.collections),
            collected_refs: read(&counters.collected_refs),
            collected_blobs: read(&counters.collected_blobs),
            collected_bytes: read(&counters.collected_bytes),
            scrubbed_bytes: read(&counters.scrubbed_bytes),
            damaged: read(&counters.damaged),
            fetched: read(&self.origin_counters.fetched),
            fetched_bytes: read(&self.origin_counters.fetched_bytes),
            origin_failures: read(&self.origin_counters.failures) + self.upstream_failures(),
            store: self.store.stats(),
            space: self.store.space(),
            index_damaged: self.store.has_damaged_index(),
        }
    }

    /// The same as JSON, with hit ratios: what a hit-rate page shows.
    #[must_use]
    pub fn report(&self) -> Value {
        let stats = self.stats();
        let space = stats.space;
        let ratio = |hits: u64, misses: u64| match hits + misses {
            0 => Value::Null,
            all => (hits as f64 / all as f64).into(),
        };
        let lookups = |hits: u64, misses: u64| json!({ "hits": hits, "misses": misses, "hit_ratio": ratio(hits, misses) });
        json!({
            "requests": stats.requests,
            "failures": stats.failures,
            "malformed": stats.malformed,
            "refs": lookups(stats.ref_hits, stats.ref_misses),
            "blobs": lookups(stats.blob_hits, stats.blob_misses),
            "bytes_in": stats.bytes_in,
            "bytes_out": stats.bytes_out,
            "collections": {
                "count": stats.collections,
                "refs": stats.collected_refs,
                "blobs": stats.collected_blobs,
                "blob_bytes": stats.collected_bytes,
            },
            "scrubbed_bytes": stats.scrubbed_bytes,
            "damaged": stats.damaged + stats.store.damaged,
            "disk": {
                "used_bytes": space.used,
                "free_bytes": space.free,
                "bytes_max": self.bytes_max(),
                "full": space.is_full,
                "index_damaged": stats.index_damaged,
            },
            "elsewhere": {
                "fetched_blobs": stats.fetched,
                "fetched_bytes": stats.fetched_bytes,
                "failures": stats.origin_failures,
                "unconfirmed_refs": self.origin_counters.stale.load(Ordering::Relaxed),
            },
            "store": {
                "commits": stats.store.commits,
                "changes": stats.store.changes,
                "log_bytes": stats.store.log_bytes,
                "checkpoints": stats.store.checkpoints,
                "failures": stats.store.failures,
            },
        })
    }
}
