//! Decisions about refs and blobs to delete, without a store.

use std::time::Duration;

use crate::Timestamp;

/// Time when a ref may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefPolicy {
    /// Never.
    Keep,
    /// Time when it was not used for this long.
    LastAccess(Duration),
    /// This long after it was put, however much it is used.
    Ttl(Duration),
    /// On every pass.
    Always,
}

impl RefPolicy {
    /// Time without use after which refs go, unless configured otherwise.
    pub const TTL_DEFAULT: Duration = Duration::from_secs(14 * 24 * 3600);

    /// Reports whether a ref that was put and last used then may be removed now.
    #[must_use]
    pub fn expired(self, put: Timestamp, last_access: Timestamp, now: Timestamp) -> bool {
        match self {
            RefPolicy::Keep => false,
            RefPolicy::LastAccess(ttl) => now.since(last_access.max(put)) > ttl,
            RefPolicy::Ttl(ttl) => now.since(put) > ttl,
            RefPolicy::Always => true,
        }
    }
}

/// A blob that no ref reaches is kept this long, so that an upload is not overtaken by a collection
/// that began before its ref was put.
pub const BLOB_AGE_MIN: Duration = Duration::from_secs(3600);

/// On a full disk, or above a quota, a blob that no ref reaches is kept this long: an upload puts
/// its ref seconds after its blobs.
pub const UPLOAD_AGE_MIN: Duration = Duration::from_secs(5 * 60);

/// Reports whether a blob may be removed now.
#[must_use]
pub fn blob_expired(reached: bool, put: Timestamp, now: Timestamp, age_min: Duration) -> bool {
    !reached && now.since(put) > age_min
}

/// Time when a store that is bounded in bytes evicts, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Most bytes; 0 is no limit.
    pub bytes_max: u64,
}

impl Quota {
    /// Bytes to free now, which is 0 below 95 % of the limit; else what brings the store down to 85
    /// %.
    #[must_use]
    pub fn excess(self, used: u64) -> u64 {
        let limit = u128::from(self.bytes_max);
        if limit == 0 || u128::from(used) * 100 < limit * 95 {
            return 0;
        }
        u64::try_from(u128::from(used).saturating_sub(limit * 85 / 100)).unwrap_or(u64::MAX)
    }

    /// Reports whether `more` bytes fit.
    #[must_use]
    pub fn admits(self, used: u64, more: u64) -> bool {
        self.bytes_max == 0 || used.saturating_add(more) <= self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refs_go_when_their_policy_says() {
        let day = |n: u64| Timestamp::from_unix_ms(n * 86_400_000);
        let two_weeks = RefPolicy::TTL_DEFAULT;
        let check = |policy: RefPolicy, put, used, now, expected| {
            assert_eq!(policy.expired(day(put), day(used), day(now)), expected, "{policy:?}");
        };
        check(RefPolicy::Keep, 0, 0, 10_000, false);
        check(RefPolicy::LastAccess(two_weeks), 0, 10, 24, false);
        check(RefPolicy::LastAccess(two_weeks), 0, 10, 25, true);
        check(RefPolicy::LastAccess(two_weeks), 20, 0, 25, false);
        check(RefPolicy::Ttl(two_weeks), 0, 15, 15, true);
        check(RefPolicy::Ttl(two_weeks), 0, 0, 14, false);
        check(RefPolicy::Always, 1, 1, 1, true);
        // A clock that was set back expires nothing.
        check(RefPolicy::LastAccess(two_weeks), 100, 100, 1, false);
    }

    #[test]
    fn eviction_starts_at_95_percent_and_stops_at_85() {
        let quota = Quota { bytes_max: 1000 };
        assert_eq!(quota.excess(949), 0);
        assert_eq!(quota.excess(950), 100);
        assert_eq!(quota.excess(2000), 1150);
        assert_eq!(Quota { bytes_max: 0 }.excess(u64::MAX), 0);
        assert!(Quota { bytes_max: u64::MAX }.excess(u64::MAX) > 0);
        assert!(
            quota.admits(990, 10) && !quota.admits(990, 11) && Quota { bytes_max: 0 }.admits(u64::MAX, 1)
        );
    }
}
