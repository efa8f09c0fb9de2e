//! Eviction: keeps a folder below its limit by deleting the longest unused refs and blobs.
//!
//! Everything that may go is in one order of last uses. A blob is used whenever a ref that reaches
//! it is, and goes in the pass that takes the last of these refs: a pass that took refs and left
//! their blobs would give nothing back, and take more refs the next time. A blob that no ref
//! reaches was used when it was put or read, so an upload whose ref is on its way is among the
//! last to go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp, gc};

use crate::change::Change;
use crate::collect::{CollectReport, cost};
use crate::error::StoreError;
use crate::key::{self, Location, RefValue};
use crate::locks::lock;
use crate::marks::Marks;
use crate::record::RecordPosition;
use crate::space::EVICT_PART;
use crate::store::{Kept, Store};

/// Blobs are removed until they are this part of what the folder may hold. Segments then hold a
/// little more than the blobs in them.
const KEEP_PERCENT: u64 = 72;
/// Segments are emptied when less than this part of them is in use: 72 % of blobs in segments that
/// are 85 % full make 85 %.
const LIVE_PERCENT_MIN: u64 = 85;
/// Percentage of what would fit that a second pass keeps: less than [`LIVE_PERCENT_MIN`], so that
/// segments which the first one emptied are emptied again.
const AGAIN_PERCENT: u64 = 75;
/// Precision of ages in bits: exact to the millisecond up to four seconds, then to one part in
/// 4096. All refs of the last step that goes are removed together.
const AGE_BITS: u32 = 12;
/// Uses of the same age are split into so many steps: a burst of uses does not go at once. They go
/// in the order of the log, which empties whole segments and leaves little to move.
const SLICES: u64 = 32;
/// Step of what is never removed.
const NEVER: u32 = u32::MAX;

/// Settings of an eviction.
pub struct EvictOptions<'a> {
    /// Bytes that the folder may hold.
    pub bytes_max: u64,
    /// True if the folder holds copies only, whose refs are not here.
    pub copies: bool,
    /// The time.
    pub now: Timestamp,
    /// True if nothing of a namespace may go.
    pub keeps: &'a dyn Fn(&Namespace) -> bool,
    /// Last use of a blob, where that is known.
    pub last_use: &'a dyn Fn(&IoHash) -> Option<Timestamp>,
    /// Last use of a ref, where that is known better than the store has it noted.
    pub last_access: &'a dyn Fn(&Namespace, &Bucket, &Key) -> Option<Timestamp>,
}

impl EvictOptions<'_> {
    /// Step of a last use, which is not 0: later uses have larger ones. `slice` divides those of
    /// the same age.
    fn step(&self, used: Timestamp, slice: u64) -> u32 {
        let age = self.now.since(used).as_millis() as u64;
        let spread = u64::BITS.saturating_sub(age.leading_zeros() + AGE_BITS + 1);
        let age_step = (u64::from(spread) << AGE_BITS) + (age >> spread);
        NEVER - SLICES as u32 - (age_step * SLICES) as u32 + slice as u32
    }
}

/// The log at the start of an eviction, which is divided into slices.
struct Slices {
    /// Segments, and the bytes of those before each.
    starts: Vec<(u64, u64)>,
    /// Bytes of all.
    len: u64,
}

impl Slices {
    /// Slice of a record, below [`SLICES`]: later ones have larger ones. Records that were written
    /// since are in the last.
    fn of(&self, record: RecordPosition) -> u64 {
        let at = self.starts.partition_point(|(segment, _)| *segment <= record.segment);
        let start = at.checked_sub(1).map_or(0, |at| self.starts[at].1);
        let place = u128::from(start + record.offset) * u128::from(SLICES) / u128::from(self.len.max(1));
        u64::try_from(place).unwrap_or(SLICES).min(SLICES - 1)
    }
}

/// Sizes that an eviction is to reach.
struct Aim {
    bytes_max: u64,
    /// Bytes of the folder before it.
    used: u64,
    /// That is 95 % of `bytes_max`.
    is_full: bool,
    /// Bytes of the folder at which an upload fits that was refused.
    room: Option<u64>,
    /// The folder takes no uploads above `bytes_max`.
    is_limited: bool,
}

/// Bytes of blobs and refs.
#[derive(Clone, Copy)]
struct Sizes {
    all: u64,
    /// Those of namespaces that keep everything.
    kept: u64,
}

impl Aim {
    /// Bytes of the folder at which the upload fits; none if namespaces that keep everything, with
    /// their part of records and index, leave less.
    fn room(&self, sizes: Sizes) -> Option<u64> {
        let kept = share(self.used, sizes.kept, sizes.all);
        self.room.filter(|room| kept <= *room)
    }

    /// Bytes of blobs and refs that may stay.
    fn blobs(&self, sizes: Sizes) -> u64 {
        let full = self.is_full.then_some(self.bytes_max / 100 * KEEP_PERCENT);
        let room = self.room(sizes).map(|room| room / LIVE_PERCENT_MIN * KEEP_PERCENT);
        full.into_iter().chain(room).min().unwrap_or(u64::MAX)
    }

    /// Bytes of the folder after it.
    fn folder(&self, sizes: Sizes) -> u64 {
        let full = Some(self.bytes_max).filter(|_| self.is_full && self.is_limited);
        full.into_iter().chain(self.room(sizes)).min().unwrap_or(u64::MAX)
    }
}

/// `bytes` by the ratio of `part` to `all`.
fn share(bytes: u64, part: u64, all: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(part) / u128::from(all.max(1))).unwrap_or(u64::MAX)
}

impl Store {
    /// Removes the refs and blobs that were unused longest, if the folder holds more than 95 % of
    /// `bytes_max`, until it holds about 85 %; or until an upload fits that was refused. A blob
    /// goes only when no ref that stays reaches it.
    ///
    /// Of namespaces that are kept, only blobs that no ref reaches go; they take no uploads while
    /// the rest of them alone holds more than `bytes_max`.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed.
    pub fn evict(&self, options: &EvictOptions<'_>) -> Result<CollectReport, StoreError> {
        self.fit_segments(options.bytes_max);
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        let aim = Aim {
            bytes_max: options.bytes_max,
            used: self.disk_bytes(),
            is_full: self.is_nearly_full(options.bytes_max),
            room: self.room_for(wanted).filter(|_| wanted > 0 && self.lacks_room(wanted)),
            is_limited: self.bytes_max.load(Ordering::Relaxed) > 0,
        };
        let mut done = CollectReport::default();
        self.unmet.store(u64::MAX, Ordering::Relaxed);
        if !aim.is_full && aim.room.is_none() {
            self.set_kept(Kept::default());
            return Ok(done);
        }
        let _one = lock(&self.maintenance);
        self.note_reliance(true);
        let result = self.evict_until_there_is_room(options, &aim, &mut done);
        self.forget_own(&result);
        self.note_reliance(false);
        let kept_bytes = result?;
        self.evicted_to.store(self.disk_bytes(), Ordering::Relaxed);
        if self.lacks_room(wanted) {
            self.unmet.store(wanted, Ordering::Relaxed);
        }
        let mut kept = Kept { namespaces: BTreeSet::new(), bytes_max: options.bytes_max };
        if kept_bytes > options.bytes_max {
            let namespaces = self.namespaces()?.into_iter();
            kept.namespaces.extend(namespaces.filter(|namespace| (options.keeps)(namespace)));
        }
        self.set_kept(kept);
        Ok(done)
    }

    fn slices(&self) -> Slices {
        let end = lock(&self.log).position();
        let (mut starts, mut len) = (Vec::new(), 0);
        for segment in self.segments.numbers().into_iter().filter(|segment| *segment <= end.segment) {
            starts.push((segment, len));
            len += if segment == end.segment { end.offset } else { self.segments.bytes_of(segment) };
        }
        Slices { starts, len }
    }

    fn set_kept(&self, kept: Kept) {
        let mut now = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.namespaces != now.namespaces && !kept.namespaces.is_empty() {
            tracing::warn!(
                namespaces = kept.namespaces.len(),
                "the namespaces that keep everything take no uploads, because they alone hold more than the folder may"
            );
        }
        *now = kept;
    }

    /// Evicts, and again if records and index take so much beside the blobs that the folder still
    /// holds too much, as long as that gives something back. Returns the bytes of namespaces that
    /// keep everything.
    fn evict_until_there_is_room(
        &self,
        options: &EvictOptions<'_>,
        aim: &Aim,
        done: &mut CollectReport,
    ) -> Result<u64, StoreError> {
        if !options.copies {
            for namespace in self.namespaces()?.iter().filter(|namespace| (options.keeps)(namespace)) {
                self.collect_replaced(namespace, 0)?;
            }
        }
        let (mut lowered, mut before) = (None, u64::MAX);
        loop {
            let keep = |sizes: Sizes| lowered.unwrap_or(aim.blobs(sizes)).min(sizes.all);
            let sizes = self.evict_unused(options, &keep, done)?;
            self.give_back(done, LIVE_PERCENT_MIN)?;
            let folder = aim.folder(sizes);
            // Deletes make the index longer until they are merged with what they delete.
            if self.disk_bytes() > folder
                && let Err(error) = self.merge()
            {
                tracing::debug!(%error, "no space to merge the runs of the index before an eviction continues");
            }
            let used = self.disk_bytes();
            // Blobs on which refs came to rely meanwhile stay, and so does what is kept.
            if used <= folder || used.saturating_add(folder / EVICT_PART) >= before {
                return Ok(sizes.kept);
            }
            before = used;
            lowered = Some(share(keep(sizes), folder / 100 * AGAIN_PERCENT, used));
        }
    }

    /// Evicts until blobs and refs have at most the bytes that `keep` gives for what they have.
    /// Returns what they had.
    fn evict_unused(
        &self,
        options: &EvictOptions<'_>,
        keep: &dyn Fn(Sizes) -> u64,
        done: &mut CollectReport,
    ) -> Result<Sizes, StoreError> {
        let namespaces = self.namespaces()?;
        let slices = self.slices();
        let mut marks = Marks::new(self.index.entries(), true);
        if !options.copies {
            for namespace in &namespaces {
                self.mark_uses(namespace, options, &slices, &mut marks)?;
            }
        }
        let used_at = |marks: &Marks, record: RecordPosition, hash: &IoHash, location: &Location| {
            // A ref's last use counts for what it reaches, however long ago that was put.
            match marks.last_use(hash) {
                0 => {
                    let used = (options.last_use)(hash).unwrap_or_default().max(location.put);
                    options.step(used, slices.of(record))
                }
                used => used,
            }
        };
        // A blob that no ref reaches is not kept, unless its ref may still come. Refs to copies are
        // not here.
        let is_kept = |marks: &Marks, hash: &IoHash, location: &Location| {
            options.copies
                || !gc::blob_expired(marks.is_reached(hash), location.put, options.now, gc::UPLOAD_AGE_MIN)
        };
        // Bytes of blobs and refs by last use, and of the records that delete them.
        let mut bytes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let (mut live, mut kept) = (0, 0);
        let mut add = |used: u32, len: u64, index_key: &[u8]| {
            live += len;
            if used == NEVER {
                return;
            }
            let (sum, cost_sum) = bytes.entry(used).or_default();
            *sum += len;
            *cost_sum += cost(index_key);
        };
        for namespace in &namespaces {
            let keeps = (options.keeps)(namespace);
            marks.begin_namespace(namespace);
            self.walk_entries(&key::in_namespace(b'b', namespace), &mut |index_key, entry| {
                let stored = &*entry.value;
                if let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
                {
                    let keeps = keeps && is_kept(&marks, &hash, &location);
                    kept += if keeps { location.len } else { 0 };
                    let used = if keeps { NEVER } else { used_at(&marks, entry.record, &hash, &location) };
                    add(used, location.len, index_key);
                }
                Ok(())
            })?;
            self.walk_entries(&key::in_namespace(b'r', namespace), &mut |index_key, entry| {
                let stored = &*entry.value;
                kept += if keeps { stored.len() as u64 } else { 0 };
                let used = match (key::read_reference(index_key), RefValue::read(stored)) {
                    (Some((_, bucket, key)), Some(value)) if !keeps => {
                        let used = self.ref_use(namespace, &bucket, &key, &value, options)?;
                        options.step(used, slices.of(entry.record))
                    }
                    _ => NEVER,
                };
                add(used, stored.len() as u64, index_key);
                Ok(())
            })?;
        }
        let sizes = Sizes { all: live, kept };
        let surplus = live.saturating_sub(keep(sizes));
        // A delete takes space until its segment is empty: on a disk that is nearly full, the
        // oldest go for which there is space, and the next eviction goes on with what they gave
        // back.
        let mut room = self.room_for_moves(1);
        let (mut freed, mut spent) = (0, 0);
        let newest_to_go = bytes.iter().take_while(|(_, (bytes, cost))| {
            let goes = freed < surplus && (spent < room || freed == 0);
            freed += bytes;
            spent += cost;
            goes
        });
        let Some(limit) = newest_to_go.last().map(|(used, _)| *used) else { return Ok(sizes) };
        for namespace in &namespaces {
            let keeps = (options.keeps)(namespace);
            let mut is_out = false;
            marks.begin_namespace(namespace);
            // Before the blobs: no ref may stay without what it reaches.
            self.walk_entries(&key::in_namespace(b'r', namespace), &mut |index_key, entry| {
                let stored = &*entry.value;
                let (Some((_, bucket, key)), Some(value), false) =
                    (key::read_reference(index_key), RefValue::read(stored), options.copies || keeps)
                else {
                    return Ok(());
                };
                let used = self.ref_use(namespace, &bucket, &key, &value, options)?;
                if keeps || options.step(used, slices.of(entry.record)) > limit {
                    // It may have been used since it was marked, and stays with what it reaches.
                    // Noted uses are whole seconds.
                    if used.unix_ms() + 1_000 > options.now.unix_ms() {
                        marks.begin_ref(false);
                        self.mark(namespace, &value, limit + 1, &mut marks)?;
                    }
                    return Ok(());
                }
                if room == 0 {
                    is_out = true;
                    return Ok(());
                }
                room = room.saturating_sub(cost(index_key));
                done.refs += 1;
                self.queue_and_commit(Change::Collect { key: index_key.to_vec(), value: stored.into() })
            })?;
            self.commit_own()?;
            if is_out {
                break;
            }
            self.walk_entries(&key::in_namespace(b'b', namespace), &mut |index_key, entry| {
                let stored = &*entry.value;
                let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
                else {
                    return Ok(());
                };
                let keeps = keeps && is_kept(&marks, &hash, &location);
                if room > 0 && !keeps && used_at(&marks, entry.record, &hash, &location) <= limit {
                    room = room.saturating_sub(cost(index_key));
                    done.blobs += 1;
                    done.blob_bytes += location.len;
                    if !options.copies {
                        // Only uploads in progress outlast the need for space.
                        lock(&self.relied_on).repeated.remove(index_key);
                    }
                    self.queue_and_commit(Change::Collect { key: index_key.to_vec(), value: stored.into() })?;
                }
                Ok(())
            })?;
            self.commit_own()?;
            self.drop_unused_accesses(namespace)?;
            self.drop_unused_forms(namespace)?;
        }
        Ok(sizes)
    }

    /// Marks what every ref of a namespace reaches with the ref's last use.
    fn mark_uses(
        &self,
        namespace: &Namespace,
        options: &EvictOptions<'_>,
        slices: &Slices,
        marks: &mut Marks,
    ) -> Result<(), StoreError> {
        let keeps = (options.keeps)(namespace);
        marks.begin_namespace(namespace);
        self.walk_entries(&key::in_namespace(b'r', namespace), &mut |index_key, entry| {
            let (Some((_, bucket, key)), Some(value)) =
                (key::read_reference(index_key), RefValue::read(&entry.value))
            else {
                return Ok(());
            };
            let used = match keeps {
                true => NEVER,
                false => {
                    let used = self.ref_use(namespace, &bucket, &key, &value, options)?;
                    options.step(used, slices.of(entry.record))
                }
            };
            marks.begin_ref(false);
            self.mark(namespace, &value, used, marks)
        })?;
        for snapshot in self.snapshots(namespace)? {
            marks.mark(&snapshot.blob, NEVER);
        }
        Ok(())
    }

    fn ref_use(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
        value: &RefValue,
        options: &EvictOptions<'_>,
    ) -> Result<Timestamp, StoreError> {
        let noted = self.last_access(namespace, bucket, key)?;
        let known = (options.last_access)(namespace, bucket, key).max(noted);
        Ok(known.unwrap_or_default().max(value.put))
    }
}
