//! Group commit: a queue of changes, batches of them to the log, one sync for each batch.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use throng_ddc::Timestamp;

use crate::change::{Change, ChangeResult, Done, Queue};
use crate::error::StoreError;
use crate::index::{IndexChange, IndexEntry, Totals};
use crate::key::{FileKind, Location};
use crate::locks::lock;
use crate::log::{AppendError, Log, Written};
use crate::plan::{Plan, Planned};
use crate::record::{Kind, LogPosition, RecordPosition};
use crate::store::{Durability, Store};

/// Bytes of payload that one write to the log takes at most, a last blob aside.
const BATCH_BYTES: usize = 16 << 20;
/// Changes that one write takes at most.
const BATCH_LEN: usize = 4096;
/// Time for which a batch may wait for as many changes as the one before it had.
const GATHER_MAX: Duration = Duration::from_micros(500);
/// Pause of maintenance at most.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// The index follows the log also when this much was appended since: a start reads and hashes it
/// again.
const CHECKPOINT_LOG_BYTES: u64 = 1 << 30;

impl Store {
    /// Commits what is queued, and checkpoints when it is time, until [`shut`](Store::shut) was
    /// called. For a thread.
    pub fn run(&self) {
        lock(&self.queue).is_served = true;
        let (mut last, mut took) = (0, Duration::ZERO);
        loop {
            {
                let mut queue = lock(&self.queue);
                while queue.changes.is_empty() {
                    if queue.closed {
                        queue.is_served = false;
                        drop(queue);
                        return self.remove_freed_files();
                    }
                    queue.wanted = 1;
                    queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                // Whoever was answered together asks again together, more or less. A sync for the
                // first of them alone would make all others wait for the one after it.
                queue.wanted = last;
                let patience = (took / 2).min(GATHER_MAX);
                let few = |queue: &mut Queue| queue.changes.len() < last && !queue.closed;
                drop(self.arrived.wait_timeout_while(queue, patience, few));
            }
            let started = Instant::now();
            last = self.commit_some().1;
            took = started.elapsed();
        }
    }

    /// Checkpoints the index whenever enough is in memory, and removes the files of deleted blobs;
    /// until the store is shut. For a thread.
    pub fn run_checkpoints(&self, every: std::time::Duration) {
        loop {
            {
                let queue = lock(&self.queue);
                if queue.closed {
                    return;
                }
                let wait = self.closing.wait_timeout_while(queue, every, |queue| !queue.closed);
                drop(wait);
            }
            if let Err(error) = self.checkpoint_if_due() {
                tracing::error!(%error, "the index could not be written; the log keeps growing");
            }
            self.remove_freed_files();
            self.look_at_disk();
        }
    }

    /// Merges the runs of the index whenever checkpoints have written enough; until the store is
    /// shut. For a thread.
    pub fn run_merges(&self, every: std::time::Duration) {
        loop {
            {
                let queue = lock(&self.queue);
                if queue.closed {
                    return;
                }
                drop(self.closing.wait_timeout_while(queue, every, |queue| !queue.closed));
            }
            if let Err(error) = self.merge()
                && !error.is_stop()
            {
                tracing::error!(%error, "the runs of the index could not be merged; look-ups become slower");
            }
        }
    }

    /// Ends [`run`](Store::run) once everything queued is committed. Later changes are refused.
    pub fn shut(&self) {
        lock(&self.queue).closed = true;
        self.arrived.notify_all();
        self.closing.notify_all();
    }

    /// Commits everything that is queued, in batches. Returns how many changes there were.
    pub fn commit(&self) -> usize {
        let mut total = 0;
        loop {
            match self.commit_some() {
                (0, _) => {
                    self.remove_freed_files();
                    return total;
                }
                (count, _) => total += count,
            }
        }
    }

    /// Commits changes of maintenance together, then leaves the log to requests for as long as that
    /// took, if there were any since the last time: an upload waits for one such commit at most.
    /// While uploads are refused for want of space, more is freed instead.
    pub(crate) fn commit_maintenance(&self) {
        let started = self.clock().elapsed();
        let changes = std::mem::take(&mut *lock(&self.own_changes));
        if !changes.is_empty() {
            let mut queue = lock(&self.queue);
            let mut is_awaited = false;
            for change in changes {
                let failed = Arc::clone(&self.own_failure);
                let done = move |outcome| {
                    if let Err(error) = outcome {
                        *lock(&failed) = Some(error);
                    }
                };
                is_awaited |= queue.push(change, Box::new(done));
            }
            self.announce_changes(queue, is_awaited);
        }
        self.await_commits();
        self.pause_for(self.clock().elapsed().saturating_sub(started));
    }

    /// Leaves the disk to requests for as long as maintenance had it, if there were any since the
    /// last time; not while uploads are refused for want of space.
    pub(crate) fn pause_for(&self, took: Duration) {
        let asked = self.asked.load(Ordering::Relaxed);
        let has_uploads = self.asked_before.swap(asked, Ordering::Relaxed) != asked;
        let has_reads = self.has_reads.swap(false, Ordering::Relaxed);
        if (has_uploads || has_reads) && !self.is_short_of_space() {
            self.clock().sleep(took.min(PAUSE_MAX));
        }
    }

    /// Waits until everything that is queued is committed, by the thread that does that if there is
    /// one. Maintenance gives way to requests, and must not hold the log of those that upload
    /// meanwhile.
    pub(crate) fn await_commits(&self) {
        let (sender, receiver) = mpsc::channel();
        let mut queue = lock(&self.queue);
        if queue.is_served {
            // The queue is in order: what answers this comes after all of it.
            let done: Done = Box::new(move |_| {
                let _ = sender.send(());
            });
            let is_awaited = queue.push(Change::Delete { key: Vec::new() }, done);
            self.announce_changes(queue, is_awaited);
            let _ = receiver.recv();
        } else {
            drop(queue);
            self.commit();
        }
        self.remove_freed_files();
    }

    /// Removes the files of blobs that are gone. Not for the thread that commits: to free the space
    /// of a large file takes a while.
    fn remove_freed_files(&self) {
        let files = std::mem::take(&mut *lock(&self.freed_files));
        for file in files {
            let _ = self.remove_large(file);
        }
    }

    /// Commits a batch. Returns how many changes there were, and how many of them by requests.
    fn commit_some(&self) -> (usize, usize) {
        // Taken under the lock of the log: batches are written in the order of the queue, and once
        // it is found empty here all that was in it is written.
        let mut log = lock(&self.log);
        let batch = self.take_batch();
        let count = batch.len();
        let asked = batch.iter().filter(|(change, _)| !change.is_own()).count();
        if count > 0 {
            self.commit_batch(&mut log, batch);
        }
        (count, asked)
    }

    pub(crate) fn submit(&self, change: Change, done: Done) {
        let checked = match change.stored_key() {
            Some(key) => self.check_uploads_to(key),
            None => self.check_writable(),
        };
        let mut queue = lock(&self.queue);
        match checked.and_then(|()| self.check_queue(&queue, &change)) {
            Ok(()) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                let is_awaited = queue.push(change, done);
                self.announce_changes(queue, is_awaited);
            }
            Err(error) => {
                drop(queue);
                if let Change::Large { location, .. } = change {
                    lock(&self.freed_files).push(location.file);
                }
                done(Err(error));
            }
        }
    }

    /// Reports whether the queue and the folder have room for a change.
    fn check_queue(&self, queue: &Queue, change: &Change) -> Result<(), StoreError> {
        let bytes = queue.bytes + change.payload_len() + 256;
        let is_full = queue.bytes > 0 && bytes > self.options.queue_bytes_max;
        if queue.closed || is_full {
            return Err(StoreError::Busy);
        }
        let len = match change {
            Change::Large { location, .. } => location.len,
            _ if change.stored_key().is_some() => change.payload_len() as u64,
            _ => return Ok(()),
        };
        self.take_room(len, queue.bytes as u64 + 256)
    }

    /// Queues without regard to limits: for what is bounded otherwise.
    pub(crate) fn enqueue(&self, change: Change, done: Done) {
        let mut queue = lock(&self.queue);
        let is_awaited = queue.push(change, done);
        self.announce_changes(queue, is_awaited);
    }

    /// Unlocks the queue, then wakes the committing thread if it waits for what was added: woken
    /// before, it would find the queue locked and sleep again.
    fn announce_changes(&self, queue: MutexGuard<'_, Queue>, is_awaited: bool) {
        drop(queue);
        if is_awaited {
            self.arrived.notify_all();
        }
    }

    fn take_batch(&self) -> Vec<(Change, Done)> {
        let mut queue = lock(&self.queue);
        let mut bytes = 0;
        let mut count = 0;
        for (change, _) in queue.changes.iter().take(BATCH_LEN) {
            if bytes >= BATCH_BYTES {
                break;
            }
            bytes += change.payload_len() + 256;
            count += 1;
        }
        queue.bytes = queue.bytes.saturating_sub(bytes);
        if count == queue.changes.len() {
            return std::mem::take(&mut queue.changes);
        }
        queue.changes.drain(..count).collect()
    }

    fn commit_batch(&self, log: &mut Log, batch: Vec<(Change, Done)>) {
        let (changes, dones): (Vec<Change>, Vec<Done>) = batch.into_iter().unzip();
        let stores = changes.iter().filter(|change| change.stored_key().is_some()).count();
        // Uploads that find no space must not take the deletes among them along.
        let is_mixed = stores > 0 && stores < changes.len();
        let rest: Vec<(usize, Change)> = match is_mixed {
            true => {
                let all = changes.iter().enumerate();
                all.filter(|(_, change)| change.stored_key().is_none())
                    .map(|(at, change)| (at, change.clone()))
                    .collect()
            }
            false => Vec::new(),
        };
        let mut answers = self.make(log, changes);
        if !rest.is_empty() && answers.iter().all(|answer| matches!(answer, Err(StoreError::Full))) {
            let (places, changes): (Vec<usize>, Vec<Change>) = rest.into_iter().unzip();
            for (at, answer) in places.into_iter().zip(self.make(log, changes)) {
                answers[at] = answer;
            }
        }
        for (answer, done) in answers.into_iter().zip(dones) {
            done(answer);
        }
    }

    /// Makes all of these changes, or none.
    fn make(&self, log: &mut Log, changes: Vec<Change>) -> Vec<Result<ChangeResult, StoreError>> {
        let kept = self.reserve_kept(&changes);
        let room = self
            .check_writable()
            .and_then(|()| self.with_reserve(kept, || log.make_room().map_err(StoreError::from)));
        let mut plan = Plan::new(self, log.position());
        let mut new_files = Vec::new();
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            if let Change::Large { location, .. } = &change {
                new_files.push(location.file);
            }
            answers.push(room.clone().and_then(|()| plan.decide(change)));
        }
        let Plan { entries, index_only, freed_files, large_bytes, .. } = plan;
        let written = room.and_then(|()| self.write(log, entries, index_only, kept, large_bytes));
        let freed = match &written {
            Ok(()) => freed_files,
            Err(error) => {
                self.counters.failures.fetch_add(answers.len() as u64, Ordering::Relaxed);
                tracing::error!(%error, "changes could not be written");
                lock(&self.sizes).reset();
                answers.fill(Err(error.clone()));
                // Of a log whose end is unknown, a restart may find more than was acknowledged.
                if matches!(error, StoreError::Broken(_)) { Vec::new() } else { new_files }
            }
        };
        lock(&self.freed_files).extend(freed);
        answers
    }

    /// Bytes of the reserve that these changes leave alone: uploads all of it, and deletes of
    /// clients the half that a collection needs to give their space back.
    fn reserve_kept(&self, changes: &[Change]) -> u64 {
        if changes.iter().any(|change| change.stored_key().is_some()) {
            return u64::MAX;
        }
        let is_asked = changes.iter().any(|change| matches!(change, Change::Delete { .. }));
        if is_asked { self.options.disk_reserve_bytes / 2 } else { 0 }
    }

    /// Appends, syncs, makes visible.
    fn write(
        &self,
        log: &mut Log,
        planned: Vec<Planned>,
        index_only: Vec<IndexChange>,
        reserve_kept: u64,
        large_bytes: i64,
    ) -> Result<(), StoreError> {
        if planned.is_empty() {
            self.index.apply(index_only);
            return Ok(());
        }
        let before = log.position();
        let (entries, firsts): (Vec<_>, Vec<_>) =
            planned.into_iter().map(|planned| (planned.entry, planned.first)).unzip();
        let append = || {
            log.append(&entries).map_err(
                |AppendError { source, broken }| {
                    if broken { self.set_broken(source) } else { source.into() }
                },
            )
        };
        let written = self.with_reserve(reserve_kept, append)?;
        if self.options.durability == Durability::Sync
            && let Err(error) = log.sync()
        {
            // How much of this is on disk is unknown, and a second sync would only say that there
            // is nothing to do.
            return Err(self.set_broken(error));
        }
        let after = log.position();
        self.counters.log_bytes.fetch_add(after.offset - before.offset, Ordering::Relaxed);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.changes.fetch_add(entries.len() as u64, Ordering::Relaxed);
        self.large_bytes.fetch_add(large_bytes as u64, Ordering::Relaxed);
        let changes = entries.into_iter().zip(firsts).zip(written).filter_map(|((entry, first), written)| {
            let Written { segment, offset, payload } = written;
            let record = RecordPosition { first: first.unwrap_or(segment), segment, offset };
            let key: Box<[u8]> = entry.key.into();
            match entry.kind {
                Kind::Put => {
                    let payload = entry.payload.map(|bytes| (payload, bytes.len() as u64));
                    let value = index_value(entry.value, segment, payload);
                    Some((key, Some(IndexEntry::new(record, value))))
                }
                // A delete that is written again is about older records than those in the index.
                Kind::Delete => first.is_some().then_some((key, None)),
                Kind::Commit | Kind::Loss | Kind::Directory | Kind::Segments | Kind::Recent => None,
            }
        });
        self.index.apply(changes.chain(index_only));
        Ok(())
    }

    /// Writes the index up to what is in the log now, and gives that position: a start reads the
    /// log from there.
    ///
    /// # Errors
    /// As the system says; nothing is lost then.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.write_index().map(drop)
    }

    /// Writes the index if enough was written to the log since it was written last.
    ///
    /// # Errors
    /// As the system says; nothing is lost then.
    pub fn checkpoint_if_due(&self) -> Result<(), StoreError> {
        let written = self.counters.log_bytes.load(Ordering::Relaxed);
        let unseen = written - self.checkpointed_bytes.load(Ordering::Relaxed);
        let is_due =
            self.index.fresh_bytes() >= self.options.checkpoint_bytes || unseen >= CHECKPOINT_LOG_BYTES;
        if is_due { self.checkpoint() } else { Ok(()) }
    }

    pub(crate) fn write_index(&self) -> Result<LogPosition, StoreError> {
        let _one = lock(&self.checkpoint);
        let (position, totals) = {
            let mut log = lock(&self.log);
            // The index must not know of what the log could still lose.
            if let Err(error) = log.sync() {
                return Err(self.set_broken(error));
            }
            self.index.begin_checkpoint();
            self.checkpointed_bytes.store(self.counters.log_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            (log.position(), Totals { large_bytes: self.large_bytes.load(Ordering::Relaxed) })
        };
        self.with_reserve(0, || Ok(self.index.finish_checkpoint(position, totals)?))?;
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(position)
    }

    /// Merges the runs of the index as far as that is due.
    ///
    /// # Errors
    /// As the system says; nothing is lost then.
    pub fn merge(&self) -> Result<(), StoreError> {
        while self.index.merge()? {}
        Ok(())
    }

    pub(crate) fn set_broken(&self, error: io::Error) -> StoreError {
        let error = Arc::new(error);
        *lock(&self.broken) = Some(Arc::clone(&error));
        self.is_broken.store(true, Ordering::Relaxed);
        StoreError::Broken(error)
    }
}

/// Value that the index holds for a record.
pub(crate) fn index_value(value: Vec<u8>, segment: u64, payload: Option<(u64, u64)>) -> Vec<u8> {
    let Some((offset, len)) = payload else { return value };
    let put = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let put = Timestamp::from_unix_ms(put);
    let crc = crate::key::payload_crc(&value);
    Location { kind: FileKind::Segment, file: segment, offset, len, put, crc }.write().to_vec()
}
