//! Time as a value.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};
use core::time::Duration;

/// A point in time: whole nanoseconds since the origin of the process or of the simulation.
///
/// Sixty-four bits reach 584 years. Arithmetic saturates at both ends, so that a deadline computed
/// from a hostile or absurd duration is "never" and not "long ago".
///
/// ```
/// use core::time::Duration;
/// use throng_stdx::Instant;
///
/// let start = Instant::from_millis(5);
/// let later = start + Duration::from_micros(20);
/// assert_eq!(later.as_nanos(), 5_020_000);
/// assert_eq!(later.since(start), Duration::from_micros(20));
/// assert_eq!(start.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// The far end, 584 years after the origin: the deadline of something that never happens.
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `millis` milliseconds after the origin; [`Instant::MAX`] when that does not fit.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the origin, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time since `earlier`; zero when `earlier` lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::MAX`].
    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(nanos(after)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::ZERO`].
    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(before)))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, before: Duration) {
        *self = *self - before;
    }
}

impl fmt::Display for Instant {
    /// Seconds with six decimals, for logs: `12.345678s`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{:06}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1_000)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Instant::MAX + Duration::from_nanos(1), Instant::MAX);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::from_millis(1) - Duration::MAX, Instant::ZERO);
        assert_eq!(Instant::from_millis(u64::MAX), Instant::MAX);
    }

    #[test]
    fn since_is_exact_and_never_negative() {
        let (a, b) = (Instant::from_nanos(3), Instant::from_nanos(10));
        assert_eq!(b.since(a), Duration::from_nanos(7));
        assert_eq!(a.since(b), Duration::ZERO);
    }

    #[test]
    fn prints_seconds() {
        assert_eq!(Instant::from_nanos(12_345_678_912).to_string(), "12.345678s");
        assert_eq!(Instant::from_millis(1_050).to_string(), "1.050000s");
    }
}
