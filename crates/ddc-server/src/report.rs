//! Counters of the cache and sizes of its namespaces, for metrics and console.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use throng_ddc::Namespace;
use throng_ddc_store::{FULL_PERCENT, StoreError, Unused, UnusedName, Usage};

use crate::service::Service;
use crate::stats::{CacheStats, Latencies};

/// Time between two counts of what namespaces hold, at least.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// A count takes at most this part of the time.
const COUNT_PART: u32 = 100;
/// Refs or copies that the report names as the next to be evicted.
const UNUSED_MAX: usize = 20;

impl Service {
    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let store = self.store.stats();
        CacheStats {
            requests: read(&counters.requests),
            failures: read(&counters.failures),
            malformed: read(&counters.malformed),
            overloaded: read(&counters.overloaded),
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
            upkeep_failures: read(&counters.upkeep_failures),
            latencies: counters.latencies.each_ref().map(|latencies| Latencies {
                counts: latencies.counts.each_ref().map(read),
                sum_s: read(&latencies.sum_us) as f64 / 1e6,
            }),
            scrubbed_bytes: read(&counters.scrubbed_bytes),
            scrubbed: Duration::from_millis(read(&counters.scrubbed_ms)),
            damaged: read(&counters.damaged) + store.damaged,
            fetched: read(&self.origin_counters.fetched),
            fetched_bytes: read(&self.origin_counters.fetched_bytes),
            passed: read(&self.origin_counters.passed),
            origin_failures: read(&self.origin_counters.failures) + self.upstream_failures(),
            store,
            space: self.store.space(),
            index_damaged: self.store.has_damaged_index(),
        }
    }

    /// Sizes of namespaces at the last count, the largest first.
    #[must_use]
    pub fn sizes(&self) -> Vec<(Namespace, Usage)> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts what namespaces hold, and looks for what the next eviction removes first: a walk over
    /// the whole index.
    ///
    /// # Errors
    /// As the store says.
    pub fn count_sizes(&self) -> Result<(), StoreError> {
        let mut sizes = Vec::new();
        for namespace in self.store.namespaces()? {
            let usage = self.store.usage(&namespace)?;
            sizes.push((namespace, usage));
        }
        sizes.sort_by_key(|(_, usage)| std::cmp::Reverse(usage.blob_bytes));
        *self.sizes.lock().unwrap_or_else(PoisonError::into_inner) = sizes;
        let unused = self.longest_unused(UNUSED_MAX)?;
        *self.unused.lock().unwrap_or_else(PoisonError::into_inner) = unused;
        Ok(())
    }

    /// Refs and copies that the next eviction removes first, as of the last count.
    fn unused(&self) -> Vec<Unused> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts what namespaces hold from time to time until `end` is gone. For a thread of its own.
    pub(crate) fn run_counts(&self, end: &Receiver<()>) {
        loop {
            let started = Instant::now();
            if let Err(error) = self.count_sizes()
                && !error.is_stop()
            {
                tracing::error!(%error, "the sizes of namespaces could not be counted");
            }
            let wait = COUNT_EVERY.max(started.elapsed() * COUNT_PART);
            match end.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// [`stats`](Service::stats) and sizes as JSON, with hit ratios: what a hit-rate page shows.
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
            "overloaded": stats.overloaded,
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
            "upkeep_failures": stats.upkeep_failures,
            "sizes": self.sizes().iter().map(|(namespace, usage)| json!({
                "namespace": namespace.as_str(),
                "refs": usage.refs,
                "blobs": usage.blobs,
                "blob_bytes": usage.blob_bytes,
            })).collect::<Vec<_>>(),
            "eviction": {
                "begins_at_bytes": self.bytes_max() / 100 * FULL_PERCENT,
                "next": self.unused().iter().map(unused_row).collect::<Vec<_>>(),
            },
            "scrubbed_bytes": stats.scrubbed_bytes,
            "scrubbed_s": stats.scrubbed.as_secs_f64(),
            "damaged": stats.damaged,
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
                "passed_on": stats.passed,
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

impl Service {
    /// State in a line, for the detail of a readiness report.
    #[must_use]
    pub fn detail(&self) -> String {
        let CacheStats { damaged, space, index_damaged, .. } = self.stats();
        let mut parts = Vec::new();
        if space.is_full {
            parts.push("the disk is full: uploads are refused".to_owned());
        }
        if index_damaged {
            parts.push("the index is damaged: a restart rebuilds it".to_owned());
        }
        if damaged > 0 {
            parts.push(format!(
                "damage was found {damaged} times since the start: what it held is missing until it is uploaded again"
            ));
        }
        if parts.is_empty() { "serving".to_owned() } else { parts.join("; ") }
    }
}

/// Something that the next eviction removes, with its last use in seconds since 1970.
fn unused_row(unused: &Unused) -> Value {
    let (kind, name) = match &unused.name {
        UnusedName::Ref(bucket, key) => ("ref", format!("{bucket}/{key}")),
        UnusedName::Blob(hash) => ("blob", hash.to_string()),
    };
    json!({
        "namespace": unused.namespace.as_str(),
        "kind": kind,
        "name": name,
        "used_unix_s": unused.used.unix_ms() / 1000,
    })
}
