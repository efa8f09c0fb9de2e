//! Background work of a node: records of last uses, garbage collections, scrubs.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use throng_ddc::api::RefName;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};
use throng_ddc_store::{CollectOptions, CollectReport, EvictOptions, ScrubReport, StoreError, Unused};

use crate::service::{Accesses, Maintenance, Service};

/// Part of the disk that the folder may fill unless the settings say otherwise.
const BYTES_MAX_PERCENT: u64 = 90;
/// How often a node looks whether the folder holds too much.
const EVICT_EVERY: Duration = Duration::from_secs(5);
/// Interval of the check whether uploads fill it faster than that.
const EVICT_LOOK: Duration = Duration::from_millis(250);
/// Longest sleep of a scrub: a stop waits for it.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// How often old events of the replication log are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

impl Service {
    /// Removes what expired and what nobody reaches; requests go on meanwhile. Copies of what an
    /// object storage has are only removed when there are too many: other nodes rely on what they
    /// are copies of.
    ///
    /// # Errors
    /// As the store says.
    pub fn collect(&self) -> Result<CollectReport, StoreError> {
        if self.tier().is_some() {
            return self.evict(self.bytes_max());
        }
        let policy = |namespace: &Namespace| self.rules_of(namespace).refs;
        let last =
            |namespace: &Namespace, bucket: &Bucket, key: &Key| self.last_access(namespace, bucket, key);
        // A full disk, folder or quota leaves only uploads in progress their age.
        let is_full = self.store.space().is_full || self.store.is_nearly_full(self.bytes_max());
        let blob_age_min = match is_full || self.store.was_over_quota() {
            true => throng_ddc::gc::UPLOAD_AGE_MIN,
            false => throng_ddc::gc::BLOB_AGE_MIN,
        };
        let collected = self.store.collect(&CollectOptions {
            now: self.now(),
            policy: &policy,
            last_access: &last,
            blob_age_min,
        })?;
        self.counters.add_collected(&collected);
        Ok(collected)
    }

    /// Bytes that the folder may hold.
    pub(crate) fn bytes_max(&self) -> u64 {
        let maintenance = &self.rules().maintenance;
        if self.tier().is_some() {
            return maintenance.copies_bytes_max.unwrap_or(u64::MAX);
        }
        if let Some(bytes_max) = maintenance.bytes_max {
            return bytes_max;
        }
        let space = self.store.space();
        let Some(free) = space.free else { return u64::MAX };
        let mut available = self.available.lock().unwrap_or_else(PoisonError::into_inner);
        available.with(free + space.used, self.clock.elapsed()) / 100 * BYTES_MAX_PERCENT
    }

    /// Removes what was unused longest, if the folder holds more than `bytes_max` bytes.
    ///
    /// # Errors
    /// As the store says.
    pub fn evict(&self, bytes_max: u64) -> Result<CollectReport, StoreError> {
        let evicted = self.with_eviction(bytes_max, |options| self.store.evict(options))?;
        self.counters.add_collected(&evicted);
        Ok(evicted)
    }

    /// Refs and copies that the next eviction removes first, at most `count`.
    ///
    /// # Errors
    /// As the store says.
    pub fn longest_unused(&self, count: usize) -> Result<Vec<Unused>, StoreError> {
        self.with_eviction(self.bytes_max(), |options| self.store.longest_unused(options, count))
    }

    fn with_eviction<T>(&self, bytes_max: u64, act: impl FnOnce(&EvictOptions<'_>) -> T) -> T {
        let last_use =
            |hash: &IoHash| self.uses.lock().unwrap_or_else(PoisonError::into_inner).get(hash).copied();
        act(&EvictOptions {
            bytes_max,
            copies: self.tier().is_some(),
            now: self.now(),
            keeps: &|namespace| self.rules_of(namespace).keeps,
            last_use: &last_use,
            last_access: &|namespace, bucket, key| self.last_access(namespace, bucket, key),
        })
    }

    /// Reads every blob, `bytes_per_s` bytes in a second, and puts damaged ones aside.
    ///
    /// # Errors
    /// As the store says.
    pub fn scrub(&self, bytes_per_s: u64) -> Result<ScrubReport, StoreError> {
        let began = self.clock.elapsed();
        let mut pace = Pace::new(bytes_per_s, began);
        let scrubbed = self.store.scrub(&mut |bytes| {
            let mut wait = pace.wait(bytes, self.clock.elapsed()).unwrap_or_default();
            // A large blob earns a wait of minutes, and a stop must not take that long.
            while !wait.is_zero() && !self.store.is_ending() {
                let step = wait.min(SLEEP_MAX);
                self.clock.sleep(step);
                wait -= step;
            }
        })?;
        self.counters.add_scrubbed(&scrubbed, self.clock.elapsed() - began);
        self.store.note_scrub(self.now());
        Ok(scrubbed)
    }

    /// Last use of a ref since it was last written down.
    fn last_access(&self, namespace: &Namespace, bucket: &Bucket, key: &Key) -> Option<Timestamp> {
        let name = RefName { namespace: namespace.clone(), bucket: bucket.clone(), key: *key };
        self.accesses.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied()
    }

    /// Writes down which refs were used since the last time, and tells which.
    pub fn note_accesses(&self) -> Vec<RefName> {
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
        // In an order that does not depend on the map, so that a simulated run can be repeated.
        let accesses = accesses.into_iter();
        let mut accesses: Vec<_> =
            accesses.map(|(name, used)| (name.namespace, name.bucket, name.key, used)).collect();
        accesses.sort_unstable();
        // A use that is lost with the process makes a ref look older than it is, by as long as
        // notes are apart.
        self.store.note_accesses(accesses, Box::new(|_| {}));
    }

    /// Scrubs the store from time to time until `end` is gone. For a thread of its own: a scrub
    /// takes hours.
    pub(crate) fn run_scrubs(&self, maintenance: Maintenance, end: &Receiver<()>) {
        let Some(every) = maintenance.scrub_every else { return };
        loop {
            // Counted from the end of the last scrub, of an earlier process too.
            let last = self.store.scrubbed_at().ok().flatten();
            let age = last.map_or(Duration::ZERO, |last| self.now().since(last));
            let wait = if last.is_some() { every.saturating_sub(age) } else { every };
            if last.is_none() {
                self.store.note_scrub(self.now());
            }
            match end.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => self.scrub_and_tell(maintenance.scrub_bytes_per_s),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does the other upkeep of the store until `end` is gone. For a thread.
    pub(crate) fn run_maintenance(&self, maintenance: Maintenance, end: &Receiver<()>) {
        let copies = self.tier().is_some();
        self.limit_uploads();
        // What others rely on too is not for one node to collect.
        let mut tasks = [
            Task::new(Some(maintenance.note_every), |service| drop(service.note_accesses())),
            Task::new(maintenance.collect_every.filter(|_| !copies), Service::collect_and_tell),
            Task::new(Some(FORGET_EVERY).filter(|_| self.store.has_events()), |service| {
                service.forget_events(maintenance.events_age_max);
            }),
            Task::new(Some(EVICT_EVERY), Service::evict_and_tell),
            Task::new(Some(EVICT_LOOK), |service| {
                service.limit_uploads();
                if service.is_eviction_urgent() {
                    service.evict_and_tell();
                }
            }),
            Task::new(Some(throng_ddc::gc::UPLOAD_AGE_MIN).filter(|_| !copies), |service| {
                if service.store.was_over_quota() {
                    service.collect_and_tell();
                }
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
        if let Err(error) = self.store.forget_events(before)
            && !error.is_stop()
        {
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
                "collection finished"
            ),
            Err(error) => self.note_failure(&error, "a collection ended early"),
        }
    }

    /// Tells the store how much the folder may hold. Copies are taken beyond the limit: whoever
    /// asks for one gets it.
    fn limit_uploads(&self) {
        if self.tier().is_none() {
            self.store.set_bytes_max(self.bytes_max());
        }
    }

    /// Reports whether an eviction is due that cannot wait for the next regular one.
    fn is_eviction_urgent(&self) -> bool {
        match self.tier() {
            Some(_) => self.store.outgrows(self.bytes_max()),
            None => self.store.is_eviction_urgent(),
        }
    }

    fn evict_and_tell(&self) {
        match self.evict(self.bytes_max()) {
            Ok(done) if done.blobs + done.refs == 0 => {}
            Ok(done) => tracing::info!(
                refs = done.refs,
                blobs = done.blobs,
                bytes = done.blob_bytes,
                "removed what was unused longest"
            ),
            Err(error) => self.note_failure(&error, "an eviction ended early"),
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
            Err(error) => self.note_failure(&error, "a scrub ended early"),
        }
    }

    /// Counts and reports maintenance that ended early, unless it was to stop.
    fn note_failure(&self, error: &StoreError, what: &str) {
        if !error.is_stop() {
            self.counters.add_upkeep_failure();
            tracing::error!(%error, "{what}");
        }
    }
}

/// Speed of a scrub. Blobs are small: what they take to read counts, and one wait for many of them
/// wakes the thread less often beside requests.
struct Pace {
    bytes_per_s: f64,
    /// Time by which everything so far should have been read.
    due: Duration,
}

impl Pace {
    /// Time that a wait takes at least.
    const WAIT_MIN: Duration = Duration::from_millis(5);
    /// Delay that is made up for: a thread of low priority is woken late from many waits.
    const LATE_MAX: Duration = Duration::from_millis(250);

    fn new(bytes_per_s: u64, now: Duration) -> Pace {
        Pace { bytes_per_s: bytes_per_s.max(1) as f64, due: now }
    }

    /// Counts bytes that were read until `now`. Returns the time to wait, if it is time for that.
    /// After a long delay the pace of later reads is what it was.
    fn wait(&mut self, bytes: u64, now: Duration) -> Option<Duration> {
        self.due += Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        self.due = self.due.max(now.saturating_sub(Self::LATE_MAX));
        Some(self.due.saturating_sub(now)).filter(|ahead| *ahead >= Self::WAIT_MIN)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_reads_as_fast_as_it_should_whatever_reading_takes() {
        let (mut now, mut waits) = (Duration::ZERO, 0);
        let mut pace = Pace::new(1_000_000, now);
        for _ in 0..1_000 {
            now += Duration::from_micros(400);
            if let Some(wait) = pace.wait(1_000, now) {
                assert!(wait >= Duration::from_millis(5), "{wait:?}");
                (now, waits) = (now + wait, waits + 1);
            }
        }
        assert!((990..=1_000).contains(&now.as_millis()), "a million bytes in a second: {now:?}");
        assert!((50..=200).contains(&waits), "{waits}");
    }

    #[test]
    fn a_scrub_that_is_woken_late_reads_as_fast_as_it_should() {
        let (mut now, mut late) = (Duration::ZERO, Duration::ZERO);
        let mut pace = Pace::new(1_000_000, now);
        for _ in 0..1_000 {
            if let Some(wait) = pace.wait(1_000, now) {
                late = Duration::from_millis(4);
                now += wait + late;
            }
        }
        assert!((990..=1_000 + 4).contains(&now.as_millis()), "a million bytes in a second: {now:?}");
        assert!(late > Duration::ZERO, "it waited");
    }

    #[test]
    fn a_scrub_that_was_slow_makes_up_for_a_moment_only() {
        let mut pace = Pace::new(1_000_000, Duration::ZERO);
        let now = Duration::from_secs(60);
        assert_eq!(pace.wait(1_000, now), None);
        assert_eq!(pace.wait(250_000, now), None);
        assert_eq!(pace.wait(20_000, now), Some(Duration::from_millis(20)));
    }
}
