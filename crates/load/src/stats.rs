//! Counters and latency distributions.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::network::Fates;

/// Longest latency that is recorded exactly: one minute.
const MICROSECONDS_MAX: u64 = 60_000_000;

/// End of the first bucket of a distribution, and how much longer each is than the one before.
const BUCKET_FIRST_US: u64 = 10;
const BUCKET_GROWTH: f64 = 1.25;

/// A distribution of times, 1 microsecond to 1 minute, three significant digits.
#[derive(Debug, Clone)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MICROSECONDS_MAX, 3);
        Self(histogram.expect("the bounds are constants that the histogram accepts"))
    }
}

impl Times {
    /// Adds one time; longer ones than a minute count as a minute.
    pub fn record(&mut self, time: Duration) {
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(microseconds.max(1));
    }

    /// Adds the time from `from_ns` to `to_ns`, zero when they are the wrong way round.
    pub(crate) fn record_between(&mut self, from_ns: u64, to_ns: u64) {
        self.record(Duration::from_nanos(to_ns.saturating_sub(from_ns)));
    }

    /// Adds all of another distribution.
    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// Number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that this share (0 to 1) of the recorded ones does not exceed, in milliseconds.
    #[must_use]
    pub fn quantile_ms(&self, share: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(share) as f64 / 1_000.0 }
    }

    /// The same for a report: not a number when no time was recorded, so that no row shows a time
    /// of 0.
    #[must_use]
    pub fn measured_ms(&self, share: f64) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.quantile_ms(share) }
    }

    /// The usual marks.
    #[must_use]
    pub fn summary(&self) -> TimesSummary {
        TimesSummary {
            count: self.count(),
            p50_ms: self.quantile_ms(0.5),
            p90_ms: self.quantile_ms(0.9),
            p99_ms: self.quantile_ms(0.99),
            p999_ms: self.quantile_ms(0.999),
            max_ms: if self.0.is_empty() { 0.0 } else { self.0.max() as f64 / 1_000.0 },
        }
    }

    /// The distribution in steps of a quarter: from the first that holds a time to the last.
    #[must_use]
    pub fn distribution(&self) -> Vec<Bucket> {
        let steps = self.0.iter_log(BUCKET_FIRST_US, BUCKET_GROWTH);
        let buckets = steps.map(|step| Bucket {
            to_ms: step.value_iterated_to() as f64 / 1_000.0,
            count: step.count_since_last_iteration(),
        });
        let mut buckets: Vec<Bucket> = buckets.skip_while(|bucket| bucket.count == 0).collect();
        while buckets.last().is_some_and(|bucket| bucket.count == 0) {
            buckets.pop();
        }
        buckets
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }
}

/// Marks of a distribution of times, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TimesSummary {
    /// Samples.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

/// The times from where the bucket before ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bucket {
    /// Longest time in it, in milliseconds.
    pub to_ms: f64,
    /// Times in it.
    pub count: u64,
}

/// Counters of one generator thread, or of all of them together.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Connections that are ready for the run.
    pub ready: u64,
    /// Connections that failed or ended before the run did.
    pub lost: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Messages received.
    pub messages_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// State updates received, of any age.
    pub updates_in: u64,
    /// State updates sent inside the measured window that arrived, newest per fan-out.
    pub delivered: u64,
    /// Messages to single players sent inside the window that arrived.
    pub notices: u64,
    /// Sends that fell due inside the window.
    pub due: u64,
    /// Of these, how many the server refused to read for too long.
    pub refused: u64,
    /// CPU time of the generator threads.
    pub cpu: Duration,
    /// Intended send to complete arrival, of state updates.
    pub state: Times,
    /// The same, of messages to single players.
    pub notice: Times,
    /// Intended to actual send.
    pub lateness: Times,
    /// State latencies since the last display refresh.
    pub recent: Times,
    /// Malformed updates seen by the players that read everything.
    pub malformed: u64,
    /// Fates of everything that passed a simulated network.
    pub fates: Fates,
    /// The first thing that went wrong.
    pub first_error: Option<String>,
}

impl Counts {
    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Self) {
        self.ready += other.ready;
        self.lost += other.lost;
        self.frames_in += other.frames_in;
        self.messages_in += other.messages_in;
        self.bytes_in += other.bytes_in;
        self.messages_out += other.messages_out;
        self.bytes_out += other.bytes_out;
        self.updates_in += other.updates_in;
        self.delivered += other.delivered;
        self.notices += other.notices;
        self.due += other.due;
        self.refused += other.refused;
        self.cpu += other.cpu;
        self.state.add(&other.state);
        self.notice.add(&other.notice);
        self.lateness.add(&other.lateness);
        self.recent.add(&other.recent);
        self.malformed += other.malformed;
        self.fates.add(&other.fates);
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_back_within_three_digits() {
        let mut times = Times::default();
        for ms in 1..=1_000u64 {
            times.record(Duration::from_millis(ms));
        }
        let summary = times.summary();
        assert_eq!(summary.count, 1_000);
        assert!((summary.p50_ms - 500.0).abs() < 1.0 && (summary.p99_ms - 990.0).abs() < 1.0, "{summary:?}");
        assert!((summary.max_ms - 1_000.0).abs() < 1.0);
    }

    #[test]
    fn a_distribution_holds_every_time_once() {
        let mut times = Times::default();
        for ms in 1..=1_000u64 {
            times.record(Duration::from_millis(ms));
        }
        let buckets = times.distribution();
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1_000);
        assert!(buckets.is_sorted_by(|a, b| a.to_ms < b.to_ms), "{buckets:?}");
        let (first, last) = (buckets[0], buckets[buckets.len() - 1]);
        assert!(first.count > 0 && first.to_ms >= 1.0 && first.to_ms < 1.3, "{first:?}");
        assert!(last.count > 0 && last.to_ms >= 999.0, "{last:?}");
        assert!(Times::default().distribution().is_empty());
    }

    #[test]
    fn extremes_saturate() {
        let mut times = Times::default();
        times.record(Duration::ZERO);
        times.record(Duration::from_secs(3_600));
        times.record_between(10, 5);
        assert_eq!(times.count(), 3);
        assert!(times.summary().max_ms <= 61_000.0);
        assert_eq!(Times::default().summary(), TimesSummary::default());
    }
}
