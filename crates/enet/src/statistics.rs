//! Counters of a connection.

use core::time::Duration;

/// Distribution of round trip times, in buckets that double: one sample per acknowledged command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    pub(crate) buckets: [u64; BUCKETS],
    sum_ms: u64,
}

impl RoundTrips {
    /// Samples taken.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Samples below each bound, which is not included: 1 ms, 2 ms, 4 ms and so on to 16,384 ms;
    /// the last has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let bounds = (0..BUCKETS).map(|i| match i {
            LAST => Duration::MAX,
            i => Duration::from_millis(1 << i),
        });
        bounds.zip(self.buckets)
    }

    /// All samples together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_millis(self.sum_ms)
    }

    /// A time that this share of all round trips stays below: the upper end of a bucket, so up to
    /// twice too long. `None` without samples.
    ///
    /// ```
    /// # let round_trips = throng_enet::RoundTrips::default();
    /// assert_eq!(round_trips.quantile(0.99), None);
    /// ```
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (share.clamp(0.0, 1.0) * self.count() as f64) as u64;
        let mut below = 0;
        for (bound, count) in self.buckets() {
            below += count;
            if below > 0 && below >= rank {
                return Some(bound);
            }
        }
        None
    }

    pub(crate) fn add(&mut self, rtt_ms: u32) {
        self.buckets[bucket(rtt_ms)] += 1;
        self.sum_ms += u64::from(rtt_ms);
    }
}

impl core::ops::AddAssign for RoundTrips {
    fn add_assign(&mut self, other: Self) {
        self.sum_ms += other.sum_ms;
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
    }
}

/// Datagrams and packets of one connection, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Datagrams received under this connection's id and session.
    pub datagrams_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Datagrams handed out.
    pub datagrams_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Packets delivered.
    pub packets_in: u64,
    /// Packets accepted by `send`.
    pub packets_out: u64,
}

/// The same distribution, as a connection keeps it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    buckets: [u32; BUCKETS],
    /// Enough for 49 days of waiting.
    sum_ms: u32,
}

impl Counts {
    pub(crate) fn add(&mut self, rtt_ms: u32) {
        let count = &mut self.buckets[bucket(rtt_ms)];
        *count = count.saturating_add(1);
        self.sum_ms = self.sum_ms.saturating_add(rtt_ms);
    }

    pub(crate) fn wide(&self) -> RoundTrips {
        RoundTrips { buckets: self.buckets.map(u64::from), sum_ms: self.sum_ms.into() }
    }
}

/// Bucket n holds the times below 2^n milliseconds that are in no earlier one.
fn bucket(rtt_ms: u32) -> usize {
    ((u32::BITS - rtt_ms.leading_zeros()) as usize).min(LAST)
}

const BUCKETS: usize = 16;
const LAST: usize = BUCKETS - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut times = RoundTrips::default();
        for rtt_ms in [0, 1, 1, 3, 30, 30, 30, 40_000] {
            times.add(rtt_ms);
        }
        assert_eq!((times.count(), times.sum()), (8, Duration::from_millis(40_095)));
        assert_eq!(times.quantile(0.0), Some(Duration::from_millis(1)));
        assert_eq!(times.quantile(0.3), Some(Duration::from_millis(2)));
        assert_eq!(times.quantile(0.5), Some(Duration::from_millis(4)));
        assert_eq!(times.quantile(0.8), Some(Duration::from_millis(32)));
        assert_eq!(times.quantile(1.0), Some(Duration::MAX));
    }
}
