//! Counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_ddc::api::{Method, Route};
use throng_ddc_store::{CollectReport, ScrubReport, Space, Stats};

/// Names of the operations that are timed apart.
pub const OPERATIONS: [&str; 8] =
    ["get_ref", "put_ref", "get_blob", "put_blob", "exists", "batch", "build_cache", "other"];
/// Upper bounds of the durations that are counted together.
pub const LATENCY_BOUNDS_S: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Kind of a request, in the order of [`OPERATIONS`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    GetRef,
    PutRef,
    GetBlob,
    PutBlob,
    Exists,
    Batch,
    BuildCache,
    Other,
}

impl Operation {
    pub(crate) fn of(method: &str, route: &Route) -> Operation {
        let is_put = Method::parse(method).is_some_and(|method| matches!(method, Method::Put | Method::Post));
        match route {
            Route::Ref(..) if method == "DELETE" => Operation::Other,
            Route::Ref(..) if is_put => Operation::PutRef,
            Route::Ref(..) => Operation::GetRef,
            Route::Finalise(..) => Operation::PutRef,
            Route::RefBlob(..) => Operation::GetBlob,
            Route::Blob(..) | Route::Family(..) if method == "DELETE" => Operation::Other,
            Route::Blob(..) | Route::Family(..) if is_put => Operation::PutBlob,
            Route::Blob(..) => Operation::GetBlob,
            Route::RefsExist(_) | Route::Exists(..) | Route::Exist(..) => Operation::Exists,
            Route::BlobBatch | Route::RefNamespace(_) if is_put => Operation::Batch,
            _ => Operation::Other,
        }
    }
}

/// Durations of the requests of one operation, from the request's head to the answer's.
#[derive(Debug, Default)]
pub(crate) struct LatencyCounters {
    pub(crate) counts: [AtomicU64; LATENCY_BOUNDS_S.len() + 1],
    pub(crate) sum_us: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latencies {
    /// Requests by duration: one more than there are [`LATENCY_BOUNDS_S`].
    pub counts: [u64; LATENCY_BOUNDS_S.len() + 1],
    /// Sum of all durations.
    pub sum_s: f64,
}

/// Counters since start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// What arrived and was no request.
    pub(crate) malformed: AtomicU64,
    /// Requests that were answered with 429.
    pub(crate) overloaded: AtomicU64,
    pub(crate) ref_hits: AtomicU64,
    pub(crate) ref_misses: AtomicU64,
    pub(crate) blob_hits: AtomicU64,
    pub(crate) blob_misses: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) collections: AtomicU64,
    pub(crate) collected_refs: AtomicU64,
    pub(crate) collected_blobs: AtomicU64,
    pub(crate) collected_bytes: AtomicU64,
    pub(crate) scrubbed_bytes: AtomicU64,
    pub(crate) scrubbed_ms: AtomicU64,
    /// Damage of what came from elsewhere; the store counts its own.
    pub(crate) damaged: AtomicU64,
    pub(crate) upkeep_failures: AtomicU64,
    pub(crate) latencies: [LatencyCounters; OPERATIONS.len()],
}

impl Counters {
    pub(crate) fn observe(&self, operation: Operation, taken: Duration) {
        let latencies = &self.latencies[operation as usize];
        let seconds = taken.as_secs_f64();
        let bucket = LATENCY_BOUNDS_S.partition_point(|bound| *bound < seconds);
        latencies.counts[bucket].fetch_add(1, Ordering::Relaxed);
        latencies.sum_us.fetch_add(taken.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_upkeep_failure(&self) {
        self.upkeep_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_collected(&self, collected: &CollectReport) {
        self.collections.fetch_add(1, Ordering::Relaxed);
        self.collected_refs.fetch_add(collected.refs, Ordering::Relaxed);
        self.collected_blobs.fetch_add(collected.blobs, Ordering::Relaxed);
        self.collected_bytes.fetch_add(collected.blob_bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_scrubbed(&self, scrubbed: &ScrubReport, took: Duration) {
        self.scrubbed_ms.fetch_add(took.as_millis() as u64, Ordering::Relaxed);
        self.scrubbed_bytes.fetch_add(scrubbed.bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the cache did since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheStats {
    /// Requests, those that were none included.
    pub requests: u64,
    /// Requests that failed for a reason that is ours.
    pub failures: u64,
    /// What arrived and was no request.
    pub malformed: u64,
    /// Requests that were answered with 429: too much went on.
    pub overloaded: u64,
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
    /// Collections, evictions and scrubs that failed.
    pub upkeep_failures: u64,
    /// Durations of requests, in the order of [`OPERATIONS`].
    pub latencies: [Latencies; OPERATIONS.len()],
    /// Bytes that scrubs read.
    pub scrubbed_bytes: u64,
    /// Time that they took.
    pub scrubbed: Duration,
    /// Damage that was found: parts of the log, blobs, lost files, what came from elsewhere.
    pub damaged: u64,
    /// Blobs that were brought from elsewhere.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Blobs and refs of an upstream that were passed on and not kept.
    pub passed: u64,
    /// Looks elsewhere that failed.
    pub origin_failures: u64,
    /// Counters of the store.
    pub store: Stats,
    /// Space that the store uses and has.
    pub space: Space,
    /// The index was found damaged.
    pub index_damaged: bool,
}
