//! What a node does by itself: notes of last uses, collections, scrubs.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};
use throng_ddc_store::{CollectOptions, Collected, Scrubbed, StoreError};

use crate::service::{Accesses, Care, Service};

/// How often a node that keeps copies looks whether they are too many.
const EVICT_EVERY: Duration = Duration::from_secs(5);
/// How often old events of the replication log are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

impl Service {
    /// Removes what expired and what nobody reaches; requests go on meanwhile. Copies of what an object storage has are only
    /// removed when there are too many: other nodes rely on what they are copies of.
    ///
    /// # Errors
    /// As the store says.
    pub fn collect(&self) -> Result<Collected, StoreError> {
        if self.tier().is_some() {
            return self.evict(self.rules().care.copies_bytes_max.unwrap_or(u64::MAX));
        }
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

    /// Removes copies that were used longest ago, if there are more than `bytes_max` bytes of them.
    ///
    /// # Errors
    /// As the store says.
    pub fn evict(&self, bytes_max: u64) -> Result<Collected, StoreError> {
        let last =
            |hash: &IoHash| self.uses.lock().unwrap_or_else(PoisonError::into_inner).get(hash).copied();
        let evicted = self.store.evict(bytes_max, &last)?;
        self.counters.add_collected(&evicted);
        Ok(evicted)
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
        let copies = self.tier().is_some();
        // What others rely on too is not for one node to collect.
        let mut tasks = [
            Task::new(Some(care.note_every), |service| drop(service.note_accesses())),
            Task::new(care.collect_every.filter(|_| !copies), Service::collect_and_tell),
            Task::new(care.scrub_every, |service| service.scrub_and_tell(care.scrub_bytes_per_s)),
            Task::new(Some(FORGET_EVERY).filter(|_| self.store.has_events()), |service| {
                service.forget_events(care.events_age_max);
            }),
            Task::new(care.copies_bytes_max.filter(|_| copies).map(|_| EVICT_EVERY), |service| {
                service.evict_and_tell(care.copies_bytes_max.unwrap_or(u64::MAX));
            }),
        ];
        loop {
            let next = tasks.iter().filter_map(|task| task.due).min().unwrap_or_else(Instant::now);
            match end.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                    self.note_accesses();
                    return;
                }
            }
            for task in &mut tasks {
                task.run(self);
            }
        }
    }

    /// Forgets events of the replication log that are older than `age_max`.
    pub fn forget_events(&self, age_max: Duration) {
        let age_ms = u64::try_from(age_max.as_millis()).unwrap_or(u64::MAX);
        // Of exactly this age is old enough: times are whole milliseconds.
        let oldest = self.now().unix_ms().saturating_sub(age_ms).saturating_add(1);
        let before = Timestamp::from_unix_ms(oldest);
        if let Err(error) = self.store.forget_events(before) {
            tracing::error!(%error, "old events could not be forgotten");
        }
    }

    fn collect_and_tell(&self) {
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
    }

    fn evict_and_tell(&self, bytes_max: u64) {
        match self.evict(bytes_max) {
            Ok(done) if done.blobs == 0 => {}
            Ok(done) => tracing::info!(blobs = done.blobs, bytes = done.blob_bytes, "removed old copies"),
            Err(error) => tracing::error!(%error, "removing old copies ended early"),
        }
    }

    fn scrub_and_tell(&self, bytes_per_s: u64) {
        match self.scrub(bytes_per_s) {
            Ok(done) => tracing::info!(
                blobs = done.blobs,
                bytes = done.bytes,
                damaged = done.damaged,
                lost = done.lost,
                "scrubbed"
            ),
            Err(error) => tracing::error!(%error, "a scrub ended early"),
        }
    }
}

/// Something that is done again and again.
struct Task<'c> {
    every: Option<Duration>,
    due: Option<Instant>,
    work: Box<dyn Fn(&Service) + 'c>,
}

impl<'c> Task<'c> {
    fn new(every: Option<Duration>, work: impl Fn(&Service) + 'c) -> Task<'c> {
        Task { every, due: every.map(|every| Instant::now() + every), work: Box::new(work) }
    }

    /// Does it, if it is time.
    fn run(&mut self, service: &Service) {
        if self.due.is_some_and(|due| Instant::now() >= due) {
            (self.work)(service);
            self.due = self.every.map(|every| Instant::now() + every);
        }
    }
}
