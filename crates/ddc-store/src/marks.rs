//! Reachable blobs, in memory that does not grow with the store.

use std::collections::BTreeSet;

use throng_ddc::{Closure, Document, IoHash, Namespace, Resolution};

use crate::error::StoreError;
use crate::key::{self, RefValue};
use crate::run::{Filter, fingerprint, random};
use crate::store::Store;

/// Slots of a table at most: 192 MiB.
const SLOTS_MAX: u64 = 48 << 20;
/// Slots of a table at least: in small stores nearly every blob has slots of its own.
const SLOTS_MIN: u64 = 64 << 10;
/// Slots for an entry: with two probes, 1 of 7 blobs seems to be used as late as another.
const SLOTS_PER_ENTRY: u64 = 4;
/// Entries for which a filter is made at least.
const FILTER_ENTRIES_MIN: u64 = 64 << 10;
/// Objects that are known to have been walked; with more, all are forgotten and may be walked
/// again.
const WALKED_MAX: usize = 1 << 18;

/// Blobs that refs reach, and perhaps when they were last used, without their names.
///
/// A blob may seem to be reached that is not (1 of 100), or to be used later than it was, never the
/// other way round. The next pass has another seed, and takes most of what this one leaves.
pub(crate) struct Marks {
    reached: Filter,
    /// Last uses, four bytes each; none if every use counts the same.
    slots: Vec<u32>,
    seed: u64,
    /// Salt of the namespace for the fingerprints of its blobs.
    salt: u64,
    walked: BTreeSet<IoHash>,
}

impl Marks {
    /// No marks, for about `entries` blobs.
    pub(crate) fn new(entries: u64, with_times: bool) -> Marks {
        let slots = if with_times { (entries * SLOTS_PER_ENTRY).clamp(SLOTS_MIN, SLOTS_MAX) } else { 0 };
        Marks {
            reached: Filter::new(entries.max(FILTER_ENTRIES_MIN)),
            slots: vec![0; slots as usize],
            seed: random(),
            salt: 0,
            walked: BTreeSet::new(),
        }
    }

    fn fingerprint(&self, hash: &IoHash) -> u64 {
        (fingerprint(hash.as_bytes()) ^ self.salt ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn slots_of(&self, fingerprint: u64) -> [usize; 2] {
        let spread = |number: u64| ((u128::from(number) * self.slots.len() as u128) >> 64) as usize;
        [spread(fingerprint), spread(fingerprint.rotate_left(32).wrapping_mul(0xD129_0A7C_4F6B_5D2D))]
    }

    /// Notes that a blob was used at `time`, which is not 0.
    pub(crate) fn mark(&mut self, hash: &IoHash, time: u32) {
        let fingerprint = self.fingerprint(hash);
        self.reached.insert(fingerprint);
        if !self.slots.is_empty() {
            for slot in self.slots_of(fingerprint) {
                self.slots[slot] = self.slots[slot].max(time);
            }
        }
    }

    pub(crate) fn is_reached(&self, hash: &IoHash) -> bool {
        self.reached.has(self.fingerprint(hash))
    }

    /// Last use of a blob, 0 if no ref reaches it.
    pub(crate) fn last_use(&self, hash: &IoHash) -> u32 {
        if !self.is_reached(hash) {
            return 0;
        }
        self.slots_of(self.fingerprint(hash)).iter().map(|slot| self.slots[*slot]).min().unwrap_or(0)
    }

    /// Marks from now on blobs of this namespace: another one has its own with the same hash.
    pub(crate) fn begin_namespace(&mut self, namespace: &Namespace) {
        self.salt = fingerprint(namespace.as_str().as_bytes());
        self.walked.clear();
    }

    /// Forgets which objects were walked: those of the next refs were used at another time.
    pub(crate) fn begin_ref(&mut self, same_time: bool) {
        if !same_time || self.walked.len() >= WALKED_MAX {
            self.walked.clear();
        }
    }
}

impl Store {
    /// Marks everything that a ref reaches, in every form that is stored.
    pub(crate) fn mark(
        &self,
        namespace: &Namespace,
        value: &RefValue,
        time: u32,
        marks: &mut Marks,
    ) -> Result<(), StoreError> {
        let mut walked = std::mem::take(&mut marks.walked);
        let result = self.each_reached(namespace, value, &mut walked, &mut |hash| {
            marks.mark(hash, time);
            Ok(())
        });
        marks.walked = walked;
        result
    }

    /// Reports whether a ref reaches a blob whose record is in one of some segments.
    pub(crate) fn reaches(
        &self,
        namespace: &Namespace,
        value: &RefValue,
        is_wanted: &dyn Fn(u64) -> bool,
    ) -> Result<bool, StoreError> {
        let mut found = false;
        self.each_reached(namespace, value, &mut BTreeSet::new(), &mut |hash| {
            if !found && let Some(entry) = self.index.entry(&key::blob(namespace, hash))? {
                found = is_wanted(entry.record.segment);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Visits everything that a ref reaches, in every form that is stored, except what is in
    /// objects that were walked before.
    pub(crate) fn each_reached(
        &self,
        namespace: &Namespace,
        value: &RefValue,
        walked: &mut BTreeSet<IoHash>,
        visit: &mut dyn FnMut(&IoHash) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if value.inline.is_none() {
            visit(&value.object)?;
        }
        let Some(object) = self.object(namespace, value)? else { return Ok(()) };
        let Ok(document) = Document::parse(&object) else { return Ok(()) };
        let mut closure = Closure::new(&document);
        while let Some(attachment) = closure.next() {
            visit(&attachment.hash)?;
            // The same hash may be a binary attachment of another object: only walking it as an
            // object counts.
            if attachment.is_object() {
                let found = match walked.insert(attachment.hash) {
                    true => self.read_blob(namespace, &attachment.hash)?,
                    false => None,
                };
                match found {
                    Some(bytes) => closure.resolve(Resolution::Object(&bytes)),
                    None => closure.resolve(Resolution::Missing),
                }
                continue;
            }
            self.walk(&key::content(namespace, &attachment.hash), &mut |form, _| {
                if let Some(blob) = key::last_hash(form) {
                    visit(&blob)?;
                }
                Ok(())
            })?;
            closure.resolve(Resolution::Missing);
        }
        Ok(())
    }
}
