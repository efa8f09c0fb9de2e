//! Space on the disk: the free space, a reserve for operations that release space, and whether the
//! folder holds copies only.

use std::sync::atomic::Ordering;

use crate::error::StoreError;
use crate::locks::lock;
use crate::store::{Options, Store};

/// File that is as large as the reserve.
const RESERVE: &str = "reserve";
/// Bytes of the reserve that are given up at a time.
const RESERVE_STEP_BYTES: u64 = 8 << 20;
/// The reserve, and what uploads leave free beside it, are at most this part of the volume.
const RESERVE_PART: u64 = 16;
/// A segment is at most this part of the volume.
const SEGMENT_PART: u64 = 32;
/// Smallest segment on a small volume.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Smallest volume: 32 of the smallest segments.
const VOLUME_BYTES_MIN: u64 = SEGMENT_BYTES_MIN * SEGMENT_PART;
/// Uploads may exceed the limit of the folder by this part of it ...
const ALLOWANCE_PART: u64 = 16;
/// ... and by this many bytes at most.
const ALLOWANCE_BYTES_MAX: u64 = 64 << 20;
/// Blobs are removed when the folder has reached this part, in percent, of what it may hold.
pub const FULL_PERCENT: u64 = 95;
/// Growth since the last eviction, as a part of the limit, after which another one is due at once.
pub(crate) const EVICT_PART: u64 = 64;
/// Bytes for the keys of an upload in log and index, at least.
const UPLOAD_KEYS_BYTES: u64 = 4 << 10;

/// Space that the store uses and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of segments, large files and index.
    pub used: u64,
    /// Bytes that the disk has left; `None` if it does not say.
    pub free: Option<u64>,
    /// Uploads are refused.
    pub is_full: bool,
}

impl Options {
    /// The same for a volume of so many bytes: of a small one, reserve and segments are a part. One
    /// that is too small for that takes no new store.
    pub(crate) fn scaled_to(self, bytes: Option<u64>, is_new: bool) -> Result<Options, StoreError> {
        let Some(bytes) = bytes else { return Ok(self) };
        if is_new && bytes < VOLUME_BYTES_MIN {
            return Err(StoreError::TooSmall { bytes, needed: VOLUME_BYTES_MIN });
        }
        let segment_bytes_max = (bytes / SEGMENT_PART).max(SEGMENT_BYTES_MIN);
        Ok(Options {
            disk_reserve_bytes: self.disk_reserve_bytes.min(bytes / RESERVE_PART),
            free_bytes_min: self.free_bytes_min.min(bytes / RESERVE_PART),
            segment_bytes_max: self.segment_bytes_max.min(segment_bytes_max),
            ..self
        })
    }
}

/// Mark of a folder that holds copies only.
const COPIES: &str = "copies";

/// Mark of a folder that holds refs which were put here.
pub(crate) const OWN_REFS: &str = "own-refs";

impl Store {
    /// Notes, before the first of them, that refs were put here.
    pub(crate) fn note_own_refs(&self) -> Result<(), StoreError> {
        self.fs.open(OWN_REFS, true)?;
        self.fs.sync_dir("")?;
        self.has_own_refs.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Notes whether the folder holds copies of what an object storage has, rather than everything.
    ///
    /// # Errors
    /// As the system says.
    pub fn set_has_copies(&self, has_copies: bool) -> Result<(), StoreError> {
        if has_copies {
            self.fs.open(COPIES, true)?;
        } else if self.has_copies() {
            self.fs.remove(COPIES)?;
        }
        Ok(())
    }

    /// Reports whether the folder holds copies of what an object storage has, as far as that was
    /// noted.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.fs.open(COPIES, false).is_ok()
    }

    /// Bytes of segments, large files and the index, unused space in them included.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.segments.bytes() + self.large_bytes.load(Ordering::Relaxed) + self.index.bytes()
    }

    /// Bytes of the index.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Space that the store uses and has, as of the last look at the disk.
    #[must_use]
    pub fn space(&self) -> Space {
        Space {
            used: self.disk_bytes(),
            free: self.fs.free_bytes().unwrap_or(None),
            is_full: self.is_full.load(Ordering::Relaxed),
        }
    }

    /// Closes segments from now on when they are a part of what the folder may hold: so much of it
    /// may be deleted and not yet given back.
    pub(crate) fn fit_segments(&self, bytes_max: u64) {
        let bytes = (bytes_max / SEGMENT_PART).max(SEGMENT_BYTES_MIN);
        lock(&self.log).set_segment_bytes_max(self.options.segment_bytes_max.min(bytes));
    }

    /// Sets how much the folder may hold, 0 for no limit. Uploads that would exceed it by more than
    /// a 16th of it, or 64 MiB, are refused.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Reports whether an eviction is due that cannot wait: the folder is nearly full and grows, or
    /// an upload was refused for which an eviction may make room.
    #[must_use]
    pub fn is_eviction_urgent(&self) -> bool {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let wanted = self.wanted.load(Ordering::Relaxed);
        let is_asked = wanted < self.unmet.load(Ordering::Relaxed) && self.lacks_room(wanted);
        bytes_max > 0 && (is_asked || self.outgrows(bytes_max))
    }

    /// Reports whether the folder is nearly full and has grown since the last eviction, if it may
    /// hold so many bytes.
    #[must_use]
    pub fn outgrows(&self, bytes_max: u64) -> bool {
        let grown_to = || self.evicted_to.load(Ordering::Relaxed) + bytes_max / EVICT_PART;
        self.is_nearly_full(bytes_max) && self.disk_bytes() >= grown_to()
    }

    /// Reports whether the folder is as full as evictions let it become, if it may hold so many
    /// bytes.
    #[must_use]
    pub fn is_nearly_full(&self, bytes_max: u64) -> bool {
        self.disk_bytes() >= bytes_max / 100 * FULL_PERCENT
    }

    /// Bytes that the folder may hold before an upload of `more` bytes; `None` without a limit.
    pub(crate) fn room_for(&self, more: u64) -> Option<u64> {
        let bytes_max = Some(self.bytes_max.load(Ordering::Relaxed)).filter(|bytes_max| *bytes_max > 0)?;
        let most = bytes_max.saturating_add((bytes_max / ALLOWANCE_PART).min(ALLOWANCE_BYTES_MAX));
        Some(most.saturating_sub(more))
    }

    /// Reports whether an upload of `more` bytes would fill the folder beyond its limit.
    pub(crate) fn lacks_room(&self, more: u64) -> bool {
        self.room_for(more).is_some_and(|bytes| self.disk_bytes() > bytes)
    }

    /// Reports whether the folder may take an upload of `len` bytes after `queued` bytes that are
    /// not stored yet. If not, an eviction is to make room.
    pub(crate) fn take_room(&self, len: u64, queued: u64) -> Result<(), StoreError> {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if bytes_max > 0 && len > bytes_max {
            return Err(StoreError::AboveLimit { bytes: len, bytes_max });
        }
        self.check_limit(len + queued).inspect_err(|_| {
            // Beside its payload, an upload writes keys.
            self.wanted.fetch_max(len + UPLOAD_KEYS_BYTES, Ordering::Relaxed);
        })
    }

    /// Announces an upload of `len` bytes, so that an eviction can make room while it arrives.
    ///
    /// # Errors
    /// If the folder may not hold so much.
    pub fn announce(&self, len: u64) -> Result<(), StoreError> {
        match self.take_room(len, 0) {
            Err(StoreError::OverLimit { .. }) => Ok(()),
            other => other,
        }
    }

    /// Reports whether the folder may take so many bytes more.
    pub(crate) fn check_limit(&self, more: u64) -> Result<(), StoreError> {
        match self.lacks_room(more) {
            true => Err(StoreError::OverLimit { bytes_max: self.bytes_max.load(Ordering::Relaxed) }),
            false => Ok(()),
        }
    }

    /// Reports whether the disk is full, or the folder holds more than it may.
    pub(crate) fn is_short_of_space(&self) -> bool {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        self.is_full.load(Ordering::Relaxed) || bytes_max > 0 && self.disk_bytes() > bytes_max
    }

    /// Looks at what the disk has left: uploads are refused from now on, or permitted again. Makes
    /// the reserve.
    pub fn look_at_disk(&self) {
        let Ok(Some(free)) = self.fs.free_bytes() else { return };
        let reserve = self.options.disk_reserve_bytes;
        let missing = reserve.saturating_sub(self.reserve_bytes());
        // Uploads must not take what deletes and collections will need.
        let is_full = free < self.options.free_bytes_min + missing;
        if missing > 0 && !is_full {
            match self.fs.open(RESERVE, true) {
                Ok(file) => file.reserve(0, reserve),
                Err(error) => {
                    tracing::warn!(%error, "no space could be reserved for deletes and collections")
                }
            }
        }
        if is_full != self.is_full.swap(is_full, Ordering::Relaxed) {
            if is_full {
                tracing::error!(free, "the disk is nearly full; uploads are refused until there is space");
            } else {
                tracing::info!(free, "the disk has space again; uploads resume");
            }
        }
    }

    /// Bytes of the reserve that are left.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.fs.open(RESERVE, false).and_then(|file| file.len()).unwrap_or(0)
    }

    /// Does something that may use the reserve down to `kept` bytes. A part is given up whenever
    /// the disk is full: other processes could take more than that.
    pub(crate) fn with_reserve<T>(
        &self,
        kept: u64,
        mut act: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            match act() {
                Err(error) if error.is_full() && self.reserve_bytes() > kept => {
                    let left = self.reserve_bytes().saturating_sub(RESERVE_STEP_BYTES).max(kept);
                    tracing::warn!(left, "the disk is full; deletes and collections use the reserve");
                    let file = self.fs.open(RESERVE, false)?;
                    file.set_len(left).and_then(|()| file.sync())?;
                    self.is_full.store(true, Ordering::Relaxed);
                }
                other => return other,
            }
        }
    }
}
