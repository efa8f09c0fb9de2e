//! Garbage collection: expired refs, blobs that no ref reaches, and the space of both.
//!
//! A delete is a record too, and gives its space back only once a segment is empty. A collection
//! therefore does on a disk that is nearly full what there is space for, with the garbage of the
//! segments that give most back, and continues with what those gave back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_ddc::gc::{self, RefPolicy};
use throng_ddc::{Bucket, Key, Namespace, Timestamp};

use crate::change::Change;
use crate::error::StoreError;
use crate::free::free_in_parts;
use crate::key::{self, Location, RefValue};
use crate::locks::lock;
use crate::log::{self, AppendError, Found, Reader, losses, read_pair};
use crate::maintenance::OWN_CHANGES_MAX;
use crate::marks::Marks;
use crate::reads::is_damage;
use crate::record::{self, KEY_BYTES_MAX, Kind, LOSS_KEYS_MAX, NAMED_BYTES};
use crate::store::Store;
use crate::turn::Turn;
use throng_platform::File;

/// Bytes of blobs that are moved before the moves are committed, which are [`OWN_CHANGES_MAX`]
/// records at most. Uploads that arrive meanwhile wait for all of it: 64 KiB take a disk twice as
/// long as a small upload.
const MOVE_BYTES: u64 = 64 << 10;
/// The same while uploads are refused for want of space: a disk that takes long for each sync must
/// give space back all the same.
const MOVE_BYTES_URGENT: u64 = 2 << 20;
/// A segment is emptied when less than this part of it is in use.
const LIVE_PERCENT_MIN: u64 = 50;
/// The same on a disk that is nearly full.
const LIVE_PERCENT_MIN_FULL: u64 = 85;

/// Inputs of a collection.
pub struct CollectOptions<'a> {
    /// Present time.
    pub now: Timestamp,
    /// Expiry of the refs of a namespace.
    pub policy: &'a dyn Fn(&Namespace) -> RefPolicy,
    /// Time when a ref was last used, if that is known better than the store has it noted.
    pub last_access: &'a dyn Fn(&Namespace, &Bucket, &Key) -> Option<Timestamp>,
    /// Least age of a blob that is removed; younger ones stay even if no ref reaches them.
    pub blob_age_min: Duration,
}

/// Counts of one collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Refs that had expired.
    pub refs: u64,
    /// Blobs that no ref reached.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Blobs that were written again so that their segment could go.
    pub moved: u64,
    /// Segments that were removed.
    pub segments: u64,
}

/// Garbage of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Garbage {
    /// Bytes of its records.
    bytes: u64,
    /// Bytes of the large files that they name.
    large_bytes: u64,
    /// Bytes that it takes to delete all of it.
    cost: u64,
}

/// One step of a collection.
enum Step {
    /// Counts what could go, by segment.
    Survey(BTreeMap<u64, Garbage>),
    /// Removes everything that may go.
    Whole,
    /// Removes what is in some segments, for so many bytes of records.
    Part { segments: BTreeSet<u64>, room: u64 },
}

impl Step {
    fn is_survey(&self) -> bool {
        matches!(self, Step::Survey(_))
    }

    /// Reports whether something in this segment goes in this step.
    fn has(&self, segment: u64) -> bool {
        match self {
            Step::Survey(_) | Step::Whole => true,
            Step::Part { segments, .. } => segments.contains(&segment),
        }
    }

    /// Takes what it costs to delete a key out of what may be spent, of which `rest` is to stay.
    fn spend(&mut self, key: &[u8], rest: u64) -> bool {
        match self {
            Step::Survey(_) => false,
            Step::Whole => true,
            Step::Part { room, .. } => match room.checked_sub(cost(key)).filter(|left| *left >= rest) {
                Some(left) => {
                    *room = left;
                    true
                }
                None => false,
            },
        }
    }
}

/// Bytes that it takes to delete a key: in the log, and in the run of the index that says so.
pub(crate) fn cost(key: &[u8]) -> u64 {
    record::bytes(key, &[0; 16]) + NAMED_BYTES + key.len() as u64 + 16
}

/// Bytes of an entry's record, and of its payload in the log.
fn record_bytes(key: &[u8], value: &[u8]) -> u64 {
    // Commit and directory name the key as well.
    let bytes = record::bytes(key, value) + NAMED_BYTES;
    match (key.first(), Location::read(value)) {
        (Some(b'b'), Some(location)) if !location.is_large() => bytes + location.len,
        _ => bytes,
    }
}

impl Store {
    /// Removes expired refs, then blobs that no ref reaches, then gives their space back; in
    /// several steps if the disk has no space for all the deletes.
    ///
    /// Requests go on meanwhile: a blob that a ref comes to rely on during the collection stays.
    /// Runs on the caller's thread; one at a time.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed; nothing else is affected.
    pub fn collect(&self, options: &CollectOptions<'_>) -> Result<CollectReport, StoreError> {
        let _one = lock(&self.maintenance);
        self.was_over_quota.store(false, Ordering::Relaxed);
        let mut done = CollectReport::default();
        loop {
            let before = done;
            let Some(mut step) = self.next_step(options)? else { return Ok(done) };
            let is_last = matches!(step, Step::Whole);
            self.collect_step(options, &mut step, &mut done)?;
            self.give_back(&mut done, if is_last { LIVE_PERCENT_MIN } else { LIVE_PERCENT_MIN_FULL })?;
            let is_idle =
                (done.refs, done.blobs, done.segments) == (before.refs, before.blobs, before.segments);
            if is_last || is_idle {
                return Ok(done);
            }
        }
    }

    /// The next step for which there is space; `None` if none is left that gives any back.
    fn next_step(&self, options: &CollectOptions<'_>) -> Result<Option<Step>, StoreError> {
        let room = self.room_for_moves(1);
        if self.index.entries().saturating_mul(cost(&[0; KEY_BYTES_MAX])) <= room {
            return Ok(Some(Step::Whole));
        }
        let mut survey = Step::Survey(BTreeMap::new());
        self.collect_step(options, &mut survey, &mut CollectReport::default())?;
        let Step::Survey(garbage) = survey else { return Ok(None) };
        if garbage.values().map(|garbage| garbage.cost).sum::<u64>() <= room {
            return Ok(Some(Step::Whole));
        }
        let live = self.live_bytes()?;
        let mut worth: Vec<(u64, u64, u64)> = Vec::new();
        for (segment, garbage) in garbage {
            let bytes = self.segments.bytes_of(segment).max(1);
            let rest = live.get(&segment).copied().unwrap_or(0).saturating_sub(garbage.bytes);
            let gives_back = rest * 100 < bytes * LIVE_PERCENT_MIN_FULL && rest <= self.room_for_moves(rest);
            if gives_back || garbage.large_bytes > 0 {
                // The refs that reach the blobs of a segment may be in others.
                let cost = rest + 2 * garbage.cost;
                worth.push((cost * 1000 / (bytes + garbage.large_bytes), segment, cost));
            }
        }
        worth.sort_unstable();
        let mut left = room;
        let mut segments = BTreeSet::new();
        for (_, segment, cost) in worth {
            if cost > left && !segments.is_empty() {
                break;
            }
            left = left.saturating_sub(cost);
            segments.insert(segment);
        }
        Ok((!segments.is_empty()).then_some(Step::Part { segments, room }))
    }

    fn collect_step(
        &self,
        options: &CollectOptions<'_>,
        step: &mut Step,
        done: &mut CollectReport,
    ) -> Result<(), StoreError> {
        self.note_reliance(true);
        let result = self.namespaces().and_then(|namespaces| {
            namespaces.iter().try_for_each(|namespace| self.collect_namespace(namespace, options, step, done))
        });
        self.forget_own(&result);
        self.note_reliance(false);
        result
    }

    /// Begins or ends to note, for one collection, which blobs refs come to rely on.
    pub(crate) fn note_reliance(&self, begins: bool) {
        let _log = lock(&self.log);
        let mut relied_on = lock(&self.relied_on);
        relied_on.repeated.age(self.clock().elapsed());
        match begins {
            true => relied_on.collections += 1,
            false => relied_on.collections -= 1,
        }
        if relied_on.collections == 0 {
            relied_on.used.clear();
        }
    }

    fn collect_namespace(
        &self,
        namespace: &Namespace,
        options: &CollectOptions<'_>,
        step: &mut Step,
        done: &mut CollectReport,
    ) -> Result<(), StoreError> {
        let policy = (options.policy)(namespace);
        let mut marks = Marks::new(self.index.entries(), false);
        // Half of the room is for blobs.
        let rest = if let Step::Part { room, .. } = step { *room / 2 } else { 0 };
        self.walk_entries(&key::in_namespace(b'r', namespace), &mut |index_key, entry| {
            let (Some((_, bucket, key)), Some(value)) =
                (key::read_reference(index_key), RefValue::read(&entry.value))
            else {
                return Ok(());
            };
            let noted = self.last_access(namespace, &bucket, &key)?;
            let used = (options.last_access)(namespace, &bucket, &key).max(noted).unwrap_or(value.put);
            if policy.expired(value.put, used, options.now) {
                if let Step::Survey(garbage) = step {
                    let garbage = garbage.entry(entry.record.segment).or_default();
                    garbage.bytes += record_bytes(index_key, &entry.value);
                    garbage.cost += cost(index_key);
                    return Ok(());
                }
                // A blob goes only after all refs that reach it.
                let goes = step.has(entry.record.segment)
                    || self.reaches(namespace, &value, &|segment| step.has(segment))?;
                if goes && step.spend(index_key, rest) {
                    done.refs += 1;
                    let change = Change::Collect { key: index_key.to_vec(), value: entry.value.clone() };
                    return self.queue_and_commit(change);
                }
            }
            marks.begin_ref(true);
            self.mark(namespace, &value, 1, &mut marks)
        })?;
        self.commit_own()?;
        for snapshot in self.snapshots(namespace)? {
            marks.mark(&snapshot.blob, 1);
        }
        if !step.is_survey() {
            self.drop_unused_accesses(namespace)?;
        }
        self.walk_entries(&key::in_namespace(b'b', namespace), &mut |index_key, entry| {
            let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(&entry.value))
            else {
                return Ok(());
            };
            let is_reached = marks.is_reached(&hash);
            if !gc::blob_expired(is_reached, location.put, options.now, options.blob_age_min) {
                return Ok(());
            }
            if let Step::Survey(garbage) = step {
                let garbage = garbage.entry(entry.record.segment).or_default();
                garbage.bytes += record_bytes(index_key, &entry.value);
                garbage.large_bytes += if location.is_large() { location.len } else { 0 };
                garbage.cost += cost(index_key);
            } else if step.has(entry.record.segment) && step.spend(index_key, 0) {
                done.blobs += 1;
                done.blob_bytes += location.len;
                let change = Change::Collect { key: index_key.to_vec(), value: entry.value.clone() };
                self.queue_and_commit(change)?;
            }
            Ok(())
        })?;
        self.commit_own()?;
        if step.is_survey() { Ok(()) } else { self.drop_unused_forms(namespace) }
    }

    /// Removes the last uses of refs that are gone.
    pub(crate) fn drop_unused_accesses(&self, namespace: &Namespace) -> Result<(), StoreError> {
        self.walk(&key::in_namespace(b'a', namespace), &mut |noted, stored| {
            let mut reference = noted.to_vec();
            reference[0] = b'r';
            if self.index.get(&reference)?.is_none() {
                self.queue_and_commit(Change::Collect { key: noted.to_vec(), value: stored.into() })?;
            }
            Ok(())
        })?;
        self.commit_own()
    }

    /// Removes forms of content ids whose blobs are gone.
    pub(crate) fn drop_unused_forms(&self, namespace: &Namespace) -> Result<(), StoreError> {
        self.walk(&key::in_namespace(b'c', namespace), &mut |form, stored| {
            if let Some(blob) = key::last_hash(form)
                && !self.has_blob(namespace, &blob)?
            {
                self.queue_and_commit(Change::Collect { key: form.to_vec(), value: stored.into() })?;
            }
            Ok(())
        })?;
        self.commit_own()
    }

    /// Removes segments without a live record, after moving the live records out of those of which
    /// less than `live_percent_min` is in use. Deletes move as long as an older record of their key
    /// may exist: the index can be built again from the log at any time.
    ///
    /// On a disk that is nearly full, as much moves at a time as there is space for, out of the
    /// segments that give most of theirs back.
    pub(crate) fn give_back(
        &self,
        done: &mut CollectReport,
        live_percent_min: u64,
    ) -> Result<(), StoreError> {
        // Records before this position are in the index on disk; those behind it lie in segments
        // that stay.
        let mut open = self.write_index()?.segment;
        let mut may_close = true;
        loop {
            let mut live = self.live_bytes()?;
            let live_of_open = live.get(&open).copied().unwrap_or(0);
            if std::mem::take(&mut may_close)
                && self.close_if_sparse((open, live_of_open), live_percent_min)?
            {
                open = self.write_index()?.segment;
                continue;
            }
            let mut sparse: Vec<(u64, u64)> = Vec::new();
            for segment in self.segments.numbers().into_iter().filter(|segment| *segment < open) {
                let bytes = live.get(&segment).copied().unwrap_or(0);
                if bytes * 100 < self.segments.bytes_of(segment) * live_percent_min {
                    sparse.push((bytes, segment));
                }
            }
            sparse.sort_unstable();
            let room = self.room_for_moves(sparse.first().map_or(0, |(bytes, _)| *bytes));
            let mut moved = 0;
            let fits = |(bytes, _): &&(u64, u64)| {
                moved += bytes;
                moved <= room
            };
            let now: BTreeSet<u64> = sparse.iter().take_while(fits).map(|(_, segment)| *segment).collect();
            if now.iter().any(|segment| live.contains_key(segment)) {
                self.move_live(&now, done)?;
                live = self.live_bytes()?;
            }
            let emptied: Vec<u64> = now.into_iter().filter(|segment| !live.contains_key(segment)).collect();
            let ready = self.move_deletes_of(&emptied)?;
            if !ready.is_empty() {
                // The moved records are durable, and no index on disk needs the old ones, before
                // they go.
                self.write_index()?;
                self.note_removal(&ready)?;
                for segment in &ready {
                    self.index.check_stop()?;
                    let file = self.segments.remove(*segment)?;
                    done.segments += 1;
                    self.fs.sync_dir(log::FOLDER)?;
                    // After a power failure it is gone, or whole.
                    if let Some(file) = file {
                        self.free_space_of(&*file);
                    }
                }
            }
            if ready.len() == sparse.len() || ready.is_empty() {
                return self.remove_unfinished_uploads();
            }
        }
    }

    /// Frees the space of a removed file, and leaves the disk to requests meanwhile.
    pub(crate) fn free_space_of(&self, file: &dyn File) {
        let mut since = self.clock().elapsed();
        free_in_parts(file, self.index.is_stopped(), &mut || {
            self.pause_for(self.clock().elapsed().saturating_sub(since));
            since = self.clock().elapsed();
        });
    }

    /// Closes a segment that is still written, with `live` bytes in use, if it is sparse and gives
    /// back as much as a full one that is.
    fn close_if_sparse(
        &self,
        (segment, live): (u64, u64),
        live_percent_min: u64,
    ) -> Result<bool, StoreError> {
        let mut log = lock(&self.log);
        let (position, full) = (log.position(), log.segment_bytes_max());
        let bytes = position.offset;
        let is_sparse = live * 100 < bytes * live_percent_min
            && bytes.saturating_sub(live) * 100 >= full * (100 - live_percent_min);
        if position.segment != segment || !is_sparse {
            return Ok(false);
        }
        self.with_reserve(0, || Ok(log.begin_segment()?))?;
        Ok(true)
    }

    /// Makes durable which segments are there, without those that are to go: they are not taken for
    /// lost then.
    pub(crate) fn note_removal(&self, going: &[u64]) -> Result<(), StoreError> {
        let mut log = lock(&self.log);
        self.with_reserve(0, || {
            log.list_segments(going).map_err(
                |AppendError { source, broken }| {
                    if broken { self.set_broken(source) } else { source.into() }
                },
            )
        })?;
        log.sync().map_err(|error| self.set_broken(error))
    }

    /// Bytes of records that may be written before segments are removed; `least` are in the segment
    /// with the fewest, and fit as long as disk and reserve have space for them and the index.
    pub(crate) fn room_for_moves(&self, least: u64) -> u64 {
        let part = self.options.disk_reserve_bytes / 8;
        match self.fs.free_bytes() {
            Ok(Some(free)) if least == 0 && free < self.options.free_bytes_min => 0,
            Ok(Some(free)) if least + part > free + self.reserve_bytes() => (free / 2).max(part),
            Ok(Some(free)) => (free / 2).max(part).max(least),
            _ => u64::MAX,
        }
    }

    /// Bytes of records in each segment that the index names.
    fn live_bytes(&self) -> Result<BTreeMap<u64, u64>, StoreError> {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        self.walk_entries(b"", &mut |key, entry| {
            if entry.record.segment > 0 {
                *live.entry(entry.record.segment).or_default() += record_bytes(key, &entry.value);
            }
            Ok(())
        })?;
        Ok(live)
    }

    /// Writes the live records of segments again at the end of the log.
    fn move_live(&self, segments: &BTreeSet<u64>, done: &mut CollectReport) -> Result<(), StoreError> {
        let move_bytes = if self.is_short_of_space() { MOVE_BYTES_URGENT } else { MOVE_BYTES };
        let mut queued_bytes = 0;
        self.walk_entries(b"", &mut |index_key, entry| {
            if !segments.contains(&entry.record.segment) {
                return Ok(());
            }
            let location = Location::read(&entry.value)
                .filter(|location| index_key.first() == Some(&b'b') && !location.is_large());
            let payload = match location {
                None => None,
                Some(location) => match self.open_blob(&location)?.map(|blob| (blob.read_checked(), blob)) {
                    Some((Ok(payload), _)) => Some(payload),
                    Some((Err(error), blob)) if is_damage(&error) => {
                        if let Some((namespace, hash)) = key::read_blob(index_key) {
                            self.discard_damaged(&namespace, &hash, &blob);
                        }
                        return Ok(());
                    }
                    Some((Err(error), _)) => return Err(error.into()),
                    None => return Ok(()),
                },
            };
            done.moved += 1;
            queued_bytes += payload.as_ref().map_or(0, |payload| payload.len() as u64);
            let change = Change::Move { key: index_key.to_vec(), record: entry.record, payload };
            if self.queue_own(change) >= OWN_CHANGES_MAX || queued_bytes >= move_bytes {
                queued_bytes = 0;
                self.commit_own()?;
            }
            Ok(())
        })?;
        self.commit_own()
    }

    /// Writes the deletes of empty segments again, for as many of them as there is space for, and
    /// gives those.
    fn move_deletes_of(&self, emptied: &[u64]) -> Result<Vec<u64>, StoreError> {
        let room = self.room_for_moves(1);
        let written = || self.counters.log_bytes.load(Ordering::Relaxed);
        let before = written();
        let mut ready = Vec::new();
        for segment in emptied {
            // A delete that could not be written again must not go with its segment: what it
            // deleted would be found again.
            match self.move_deletes(*segment) {
                Ok(()) => ready.push(*segment),
                Err(error) if error.is_full() && !ready.is_empty() => break,
                Err(error) => return Err(error),
            }
            if written() - before > room {
                break;
            }
        }
        Ok(ready)
    }

    /// Writes the deletes of a segment again that an older record still needs, and the losses.
    fn move_deletes(&self, segment: u64) -> Result<(), StoreError> {
        let turn = Turn::begin();
        let mut deletes = Deletes { store: self, segment, lost: Vec::new(), failed: None, turn };
        let read = self.segments.read(segment, 0, 0, log::ALL_SYNCED, &mut deletes);
        if let Some(failed) = deletes.failed {
            return Err(failed);
        }
        read?;
        let lost = deletes.lost;
        let first = self.segments.next_from(0).unwrap_or(segment);
        let needed = lost.into_iter().filter(|(_, bound, _)| first < *bound && first != segment);
        let needed: Vec<_> = needed.collect();
        for keys in needed.chunks(LOSS_KEYS_MAX) {
            self.queue_own(Change::Loss { keys: keys.to_vec() });
            // Each alone: a commit names the keys of all its records.
            self.commit_own()?;
        }
        self.commit_own()
    }
}

/// Finds the deletes and losses of a segment that are still needed.
struct Deletes<'s> {
    store: &'s Store,
    segment: u64,
    lost: Vec<(u64, u64, u64)>,
    failed: Option<StoreError>,
    turn: Turn,
}

impl Reader for Deletes<'_> {
    fn record(&mut self, found: Found) -> io::Result<()> {
        if let Err(stopped) = self.store.index.check_stop() {
            self.failed = Some(stopped.into());
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.turn.give_way(|| self.store.is_short_of_space());
        match found.kind {
            Kind::Delete => {
                // A segment that is emptied with this one still exists: its removal may be lost.
                let needed = read_pair(&found.value).is_some_and(|(first, last)| {
                    let segments = &self.store.segments;
                    segments.any_in(first, last.min(self.segment.saturating_sub(1)))
                        || segments.any_in(first.max(self.segment + 1), last)
                });
                if needed {
                    let change = Change::MoveDelete { key: found.key, range: found.value };
                    if let Err(error) = self.store.queue_and_commit(change) {
                        self.failed = Some(error);
                        return Err(io::Error::other("a delete could not be moved"));
                    }
                }
            }
            Kind::Loss => self.lost.extend(losses(&found.value)),
            Kind::Put | Kind::Commit | Kind::Directory | Kind::Segments | Kind::Recent => {}
        }
        Ok(())
    }

    fn lost(&mut self, fingerprint: u64, segment: u64, offset: u64) {
        self.lost.push((fingerprint, segment, offset));
    }

    fn gap(&mut self, segment: u64, offset: u64, len: u64) {
        let new = lock(&self.store.gaps).add(&*self.store.fs, &[(segment, offset)].into());
        self.store.counters.damaged.fetch_add(new, Ordering::Relaxed);
        tracing::error!(segment, offset, len, "a part of the log is damaged");
    }
}
