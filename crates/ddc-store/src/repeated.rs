//! Blobs that were uploaded again a moment ago.

use std::collections::BTreeSet;
use std::time::Duration;

use throng_ddc::gc::UPLOAD_AGE_MIN;

use crate::run::fingerprint;

/// Uploads of each of the two sets.
const UPLOADS_MAX: usize = 1 << 16;

/// Fingerprints of blobs that were uploaded again. Each is kept for [`UPLOAD_AGE_MIN`], and up to
/// twice as long; for less if there are too many.
#[derive(Default)]
pub(crate) struct Repeated {
    young: BTreeSet<u64>,
    old: BTreeSet<u64>,
    /// Time at which the young set began.
    begun: Duration,
}

impl Repeated {
    pub(crate) fn insert(&mut self, blob: &[u8], now: Duration) {
        self.age(now);
        if self.young.len() >= UPLOADS_MAX {
            self.turn(now);
        }
        self.young.insert(fingerprint(blob));
    }

    /// Forgets what is old enough by now.
    pub(crate) fn age(&mut self, now: Duration) {
        let age = now.saturating_sub(self.begun);
        if age >= UPLOAD_AGE_MIN {
            self.turn(now);
        }
        if age >= 2 * UPLOAD_AGE_MIN {
            self.old.clear();
        }
    }

    fn turn(&mut self, now: Duration) {
        self.old = std::mem::take(&mut self.young);
        self.begun = now;
    }

    pub(crate) fn remove(&mut self, blob: &[u8]) {
        let blob = fingerprint(blob);
        self.young.remove(&blob);
        self.old.remove(&blob);
    }

    pub(crate) fn has(&self, blob: &[u8]) -> bool {
        let blob = fingerprint(blob);
        self.young.contains(&blob) || self.old.contains(&blob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_upload_is_remembered_for_the_age_of_an_upload() {
        let mut repeated = Repeated::default();
        repeated.insert(b"first", UPLOAD_AGE_MIN / 2);
        repeated.age(UPLOAD_AGE_MIN);
        assert!(repeated.has(b"first") && !repeated.has(b"other"));
        repeated.insert(b"second", UPLOAD_AGE_MIN);
        repeated.age(2 * UPLOAD_AGE_MIN);
        assert!(!repeated.has(b"first") && repeated.has(b"second"));
        repeated.age(20 * UPLOAD_AGE_MIN);
        assert!(!repeated.has(b"second"));
    }
}
