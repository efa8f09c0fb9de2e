//! Eviction: keeps a folder below its limit by deleting the longest unused refs and blobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use crate::change::Change;
use crate::collect::{CollectReport, cost};
use crate::error::StoreError;
use crate::key::{self, Location, RefValue};
use crate::locks::lock;
use crate::marks::Marks;
use crate::store::Store;

/// Blobs are removed when the folder has reached this part of what it may hold ...
pub const FULL_PERCENT: u64 = 95;
/// ... until the blobs are this part of it. Segments then hold a little more than the blobs in
/// them.
const KEEP_PERCENT: u64 = 72;
/// Segments are emptied when less than this part of them is in use: 72 % of blobs in segments that
/// are 85 % full make 85 %.
const LIVE_PERCENT_MIN: u64 = 85;
/// Uses are told apart by steps of this length: all refs of the last step that goes are removed
/// together.
const TIME_UNIT_MS: u64 = 4000;

/// Settings of an eviction.
pub struct EvictOptions<'a> {
    /// Bytes that the folder may hold.
    pub bytes_max: u64,
    /// True if the folder holds copies only, whose refs are not here.
    pub copies: bool,
    /// The time.
    pub now: Timestamp,
    /// Blobs that no ref reaches stay when they are younger than this: their refs are on the way.
    pub blob_age_min: Duration,
    /// True if nothing of a namespace may go.
    pub keeps: &'a dyn Fn(&Namespace) -> bool,
    /// Last use of a blob, where that is known.
    pub last_use: &'a dyn Fn(&IoHash) -> Option<Timestamp>,
    /// Last use of a ref, where that is known better than the store has it noted.
    pub last_access: &'a dyn Fn(&Namespace, &Bucket, &Key) -> Option<Timestamp>,
}

fn unit(time: Timestamp) -> u32 {
    u32::try_from(time.unix_ms() / TIME_UNIT_MS).unwrap_or(u32::MAX).max(1)
}

impl Store {
    /// Removes the refs and blobs that were unused longest, if the folder holds more than 95 % of
    /// `bytes_max`, until it holds about 85 %. A blob goes only when no ref that stays reaches it.
    ///
    /// Namespaces that keep everything take no uploads while the folder is above `bytes_max`
    /// although the others gave what they had.
    ///
    /// # Errors
    /// As the system says. What was removed by then stays removed.
    pub fn evict(&self, options: &EvictOptions<'_>) -> Result<CollectReport, StoreError> {
        let mut done = CollectReport::default();
        if self.disk_bytes() < options.bytes_max / 100 * FULL_PERCENT {
            self.set_kept(BTreeSet::new());
            return Ok(done);
        }
        let _one = lock(&self.maintenance);
        self.note_reliance(true);
        let result = self.evict_unused(options, &mut done);
        self.note_reliance(false);
        result?;
        self.give_back(&mut done, LIVE_PERCENT_MIN)?;
        let mut kept = BTreeSet::new();
        if self.disk_bytes() > options.bytes_max {
            kept.extend(self.namespaces()?.into_iter().filter(|namespace| (options.keeps)(namespace)));
        }
        self.set_kept(kept);
        Ok(done)
    }

    fn set_kept(&self, kept: BTreeSet<Namespace>) {
        let mut now = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept != *now && !kept.is_empty() {
            tracing::warn!(
                namespaces = kept.len(),
                "namespaces that keep everything and take no uploads, because the folder holds more than it may"
            );
        }
        *now = kept;
    }

    fn evict_unused(&self, options: &EvictOptions<'_>, done: &mut CollectReport) -> Result<(), StoreError> {
        let namespaces = self.namespaces()?;
        let mut marks = Marks::new(self.index.entries(), true);
        if !options.copies {
            for namespace in &namespaces {
                self.mark_uses(namespace, options, &mut marks)?;
            }
        }
        let used_at = |marks: &Marks, hash: &IoHash, location: &Location| {
            let noted = (options.last_use)(hash).max(Some(location.put)).map_or(1, unit);
            // A ref's last use counts for what it reaches, however long ago that was put.
            match marks.last_use(hash) {
                0 => noted,
                used => used,
            }
        };
        // Bytes of blobs and refs by last use, and of the records that delete them.
        let mut bytes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut add = |used: u32, len: u64, key: &[u8]| {
            let (sum, cost_sum) = bytes.entry(used).or_default();
            *sum += len;
            *cost_sum += cost(key);
        };
        let mut live = 0;
        for namespace in &namespaces {
            let keeps = (options.keeps)(namespace);
            self.walk(&key::in_namespace(b'b', namespace), &mut |index_key, stored| {
                if let (Some((_, hash)), Some(location)) = (key::read_blob(index_key), Location::read(stored))
                {
                    live += location.len;
                    if !keeps {
                        add(used_at(&marks, &hash, &location), location.len, index_key);
                    }
                }
                Ok(())
            })?;
            self.walk(&key::in_namespace(b'r', namespace), &mut |index_key, stored| {
                live += stored.len() as u64;
                if let (Some((_, bucket, key)), Some(value), false) =
                    (key::read_reference(index_key), RefValue::read(stored), keeps)
                {
                    let used = self.ref_use(namespace, &bucket, &key, &value, options)?;
                    add(used, stored.len() as u64, index_key);
                }
                Ok(())
            })?;
        }
        let mut surplus = live.saturating_sub(options.bytes_max / 100 * KEEP_PERCENT);
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
        let Some(limit) = newest_to_go.last().map(|(used, _)| *used) else { return Ok(()) };
        let young = options.now.unix_ms().saturating_sub(options.blob_age_min.as_millis() as u64);
        for namespace in namespaces.iter().filter(|namespace| !(options.keeps)(namespace)) {
            let mut is_out = false;
            // Before the blobs: no ref may stay without what it reaches.
            self.walk(&key::in_namespace(b'r', namespace), &mut |index_key, stored| {
                let (Some((_, bucket, key)), Some(value)) =
                    (key::read_reference(index_key), RefValue::read(stored))
                else {
                    return Ok(());
                };
                if self.ref_use(namespace, &bucket, &key, &value, options)? <= limit && !options.copies {
                    if room == 0 {
                        is_out = true;
                        return Ok(());
                    }
                    room = room.saturating_sub(cost(index_key));
                    done.refs += 1;
                    self.queue_and_commit(Change::Collect { key: index_key.to_vec(), value: stored.into() })?;
                }
                Ok(())
            })?;
            self.commit_own()?;
            if is_out {
                break;
            }
            // Of the last step those go first that were not read since this process started.
            for spares in [true, false] {
                if surplus == 0 {
                    break;
                }
                self.walk(&key::in_namespace(b'b', namespace), &mut |index_key, stored| {
                    let (Some((_, hash)), Some(location)) =
                        (key::read_blob(index_key), Location::read(stored))
                    else {
                        return Ok(());
                    };
                    // A copy has no ref here that could be on its way.
                    let used = used_at(&marks, &hash, &location);
                    let is_spared = spares && used == limit && (options.last_use)(&hash).is_some();
                    let is_young =
                        !options.copies && location.put.unix_ms() > young && marks.last_use(&hash) == 0;
                    if surplus > 0 && room > 0 && used <= limit && !is_young && !is_spared {
                        room = room.saturating_sub(cost(index_key));
                        surplus = surplus.saturating_sub(location.len);
                        done.blobs += 1;
                        done.blob_bytes += location.len;
                        self.queue_and_commit(Change::Collect {
                            key: index_key.to_vec(),
                            value: stored.into(),
                        })?;
                    }
                    Ok(())
                })?;
                self.commit_own()?;
            }
            self.drop_unused_accesses(namespace)?;
            self.drop_unused_forms(namespace)?;
        }
        Ok(())
    }

    /// Marks what every ref of a namespace reaches with the ref's last use.
    fn mark_uses(
        &self,
        namespace: &Namespace,
        options: &EvictOptions<'_>,
        marks: &mut Marks,
    ) -> Result<(), StoreError> {
        let keeps = (options.keeps)(namespace);
        self.walk(&key::in_namespace(b'r', namespace), &mut |index_key, stored| {
            let (Some((_, bucket, key)), Some(value)) =
                (key::read_reference(index_key), RefValue::read(stored))
            else {
                return Ok(());
            };
            let used = match keeps {
                true => u32::MAX,
                false => self.ref_use(namespace, &bucket, &key, &value, options)?,
            };
            marks.begin_ref(false);
            self.mark(namespace, &value, used, marks)
        })?;
        for snapshot in self.snapshots(namespace)? {
            marks.mark(&snapshot.blob, u32::MAX);
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
    ) -> Result<u32, StoreError> {
        let noted = self.last_access(namespace, bucket, key)?;
        let used = (options.last_access)(namespace, bucket, key).max(noted).max(Some(value.put));
        Ok(used.map_or(1, unit))
    }
}
