//! What a node does by itself: notes of last uses, collections, scrubs.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use throng_ddc::{Bucket, Key, Namespace};
use throng_store::{CollectOptions, Collected, Scrubbed, StoreError};

use crate::service::{Accesses, Care, Service};

impl Service {
    /// Removes what expired and what nobody reaches; requests go on meanwhile.
    ///
    /// # Errors
    /// As the store says.
    pub fn collect(&self) -> Result<Collected, StoreError> {
        let policy = |namespace: &Namespace| self.rules_of(namespace).refs;
        let last = |namespace: &Namespace, bucket: &Bucket, key: &Key| {
            let key = (namespace.clone(), bucket.clone(), *key);
            self.accesses.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
        };
        let collected = self.store.collect(&CollectOptions {
            now: self.now(),
            policy: &policy,
            last_access: &last,
            blob_age_min: throng_ddc::gc::BLOB_AGE_MIN,
        })?;
        self.counters.add_collected(&collected);
        Ok(collected)
    }

    /// Reads every blob, `bytes_per_s` bytes in a second, and puts damaged ones aside.
    ///
    /// # Errors
    /// As the store says.
    pub fn scrub(&self, bytes_per_s: u64) -> Result<Scrubbed, StoreError> {
        let scrubbed = self.store.scrub(&mut |bytes| {
            std::thread::sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64));
        })?;
        self.counters.add_scrubbed(&scrubbed);
        Ok(scrubbed)
    }

    /// Writes down which refs were used since the last time, and tells which.
    pub fn note_accesses(&self) -> Vec<(Namespace, Bucket, Key)> {
        let since = self.noted.swap(self.now().unix_ms(), Ordering::Relaxed);
        let accesses = self.accesses.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = accesses.iter().filter(|(_, used)| used.unix_ms() >= since);
        let fresh: Accesses = fresh.map(|(name, used)| (name.clone(), *used)).collect();
        drop(accesses);
        let names = fresh.keys().cloned().collect();
        self.note(fresh);
        names
    }

    pub(crate) fn note(&self, accesses: Accesses) {
        let accesses =
            accesses.into_iter().map(|((namespace, bucket, key), used)| (namespace, bucket, key, used));
        // A use that is lost with the process makes a ref look older than it is, by as long as notes are apart.
        self.store.note_accesses(accesses, Box::new(|_| {}));
    }

    /// Cares for the store until `end` is gone. For a thread.
    pub(crate) fn run_care(&self, care: Care, end: &Receiver<()>) {
        let started = Instant::now();
        let first = |every: Option<Duration>| every.map(|every| started + every);
        let (mut note, mut collect, mut scrub) =
            (started + care.note_every, first(care.collect_every), first(care.scrub_every));
        loop {
            let next = [Some(note), collect, scrub].into_iter().flatten().min().unwrap_or(note);
            match end.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                    self.note_accesses();
                    return;
                }
            }
            let now = Instant::now();
            if now >= note {
                self.note_accesses();
                note = now + care.note_every;
            }
            if collect.is_some_and(|due| now >= due) {
                match self.collect() {
                    Ok(done) => tracing::info!(
                        refs = done.refs,
                        blobs = done.blobs,
                        bytes = done.blob_bytes,
                        segments = done.segments,
                        "collected what nobody needs"
                    ),
                    Err(error) => tracing::error!(%error, "a collection ended early"),
                }
                collect = care.collect_every.map(|every| Instant::now() + every);
            }
            if scrub.is_some_and(|due| now >= due) {
                match self.scrub(care.scrub_bytes_per_s) {
                    Ok(done) => tracing::info!(
                        blobs = done.blobs,
                        bytes = done.bytes,
                        damaged = done.damaged,
                        lost = done.lost,
                        "scrubbed"
                    ),
                    Err(error) => tracing::error!(%error, "a scrub ended early"),
                }
                scrub = care.scrub_every.map(|every| Instant::now() + every);
            }
        }
    }
}
