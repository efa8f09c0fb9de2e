//! Pacing of the rounds of a busy shard.

use std::time::Duration;

use throng_stdx::Instant;

/// Rounds that may follow each other at once before they are spread out. Enough for a login or any
/// other short conversation to go through without a delay.
const BURST: u32 = 8;

/// Spreads the rounds of a busy shard out, so that one round serves what several would have.
///
/// A round costs a wake-up, which on virtual machines is more than the work of most messages. A
/// hundred players at 30 Hz cause 3,000 rounds a second if each input has its own; at one per 10
/// ms, inputs share rounds and the game server gets them in shared writes. Rounds below the rate,
/// and bursts, are not delayed at all, and neither is what has a time of its own: a fan-out takes
/// place when it is due and takes along what has arrived.
///
/// The rule is the generic cell rate algorithm: `due` is when the next round would be on schedule.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    due: Instant,
}

impl Pace {
    /// One round per `interval` on average; zero for no limit.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, due: Instant::ZERO }
    }

    /// Settings that it was made with.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Counts a round that has begun at `now`.
    pub(crate) fn count(&mut self, now: Instant) {
        // Rounds that fan-outs ask for can exceed the rate by themselves: what waits behind them is
        // put off by no more than one interval.
        self.due = self.due.max(now).min(now + self.interval * BURST) + self.interval;
    }

    /// Delay of the next round; `None` when it may begin. At `deadline` it must begin.
    pub(crate) fn wait(&self, now: Instant, deadline: Option<Instant>) -> Option<Duration> {
        let wait = self.due.since(now + self.interval * BURST);
        let wait = deadline.map_or(wait, |deadline| wait.min(deadline.since(now)));
        (!wait.is_zero()).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(1);

    fn rounds_within(pace: &mut Pace, from: Instant, length: Duration, every: Duration) -> u32 {
        let (mut now, mut rounds) = (from, 0);
        while now < from + length {
            now = now + pace.wait(now, None).unwrap_or_default();
            pace.count(now);
            rounds += 1;
            now += every;
        }
        rounds
    }

    #[test]
    fn a_flood_of_events_shares_one_round_per_interval() {
        let mut pace = Pace::new(INTERVAL);
        let second = Duration::from_secs(1);
        let rounds = rounds_within(&mut pace, Instant::ZERO, second, Duration::from_micros(10));
        assert!((1_000..=1_000 + BURST + 1).contains(&rounds), "{rounds} rounds");
    }

    #[test]
    fn rounds_below_the_rate_and_bursts_are_never_put_off() {
        let mut pace = Pace::new(INTERVAL);
        for step in 0..1_000_u64 {
            let now = Instant::from_millis(step * 2);
            assert_eq!(pace.wait(now, None), None);
            pace.count(now);
        }
        let later = Instant::from_millis(10_000);
        for _ in 0..BURST {
            assert_eq!(pace.wait(later, None), None);
            pace.count(later);
        }
        pace.count(later);
        assert_eq!(pace.wait(later, None), Some(INTERVAL));
    }

    #[test]
    fn what_is_due_is_not_put_off_and_costs_later_rounds_one_interval_at_most() {
        let mut pace = Pace::new(INTERVAL);
        let now = Instant::from_millis(5);
        for _ in 0..1_000 {
            pace.count(now);
        }
        assert_eq!(pace.wait(now, None), Some(INTERVAL));
        assert_eq!(pace.wait(now, Some(now + INTERVAL / 4)), Some(INTERVAL / 4));
        assert_eq!(pace.wait(now, Some(now)), None);
        assert_eq!(pace.wait(now, Some(now + INTERVAL * 2)), Some(INTERVAL));
    }

    #[test]
    fn zero_switches_it_off() {
        let mut pace = Pace::new(Duration::ZERO);
        for _ in 0..100 {
            pace.count(Instant::ZERO);
            assert_eq!(pace.wait(Instant::ZERO, None), None);
        }
    }
}
