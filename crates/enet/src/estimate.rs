//! Round trip time, and the throttle that follows it. Spec: enet §12.2, §13.1
//!
//! All in whole milliseconds, as the reference computes it: the throttle's decisions depend on the
//! rounding.

/// Estimates of one connection's round trip time, and the throttle on its unreliable packets.
///
/// Its size and the place of `throttle` decide the cache lines of a peer.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Estimate {
    /// Share of unreliable packets that pass, 0 to [`THROTTLE_SCALE`].
    pub(crate) throttle: u32,
    counter: u32,
    /// Upper end for `throttle`, when bandwidth is short for this peer in particular.
    pub(crate) limit: Option<u32>,
    pub(crate) rtt_ms: u32,
    pub(crate) variance_ms: u32,
    /// Lowest and highest of the current epoch.
    lowest_ms: u32,
    highest_variance_ms: u32,
    /// Those of the last one.
    last_ms: u32,
    last_variance_ms: u32,
    /// Start of the epoch; `None` before the first acknowledgement.
    epoch_ms: Option<u64>,
    pub(crate) interval_ms: u32,
    pub(crate) acceleration: u32,
    pub(crate) deceleration: u32,
}

impl Estimate {
    pub(crate) fn new() -> Self {
        Self {
            rtt_ms: RTT_START_MS,
            variance_ms: 0,
            lowest_ms: RTT_START_MS,
            highest_variance_ms: 0,
            last_ms: RTT_START_MS,
            last_variance_ms: 0,
            epoch_ms: None,
            throttle: THROTTLE_SCALE,
            limit: None,
            counter: 0,
            interval_ms: THROTTLE_INTERVAL_MS,
            acceleration: THROTTLE_STEP,
            deceleration: THROTTLE_STEP,
        }
    }

    /// Takes in a measured round trip. `limit` is the highest throttle value allowed.
    pub(crate) fn measure(&mut self, now_ms: u64, rtt_ms: u32, is_first: bool, limit: u32) {
        let rtt = rtt_ms.max(1);
        if is_first {
            self.rtt_ms = rtt;
            self.variance_ms = rtt.div_ceil(2);
        } else {
            self.adapt(rtt, limit);
            self.variance_ms -= self.variance_ms / 4;
            let off = rtt.abs_diff(self.rtt_ms);
            self.variance_ms += off / 4;
            if rtt >= self.rtt_ms {
                self.rtt_ms += off / 8;
            } else {
                self.rtt_ms -= off / 8;
            }
        }
        self.lowest_ms = self.lowest_ms.min(self.rtt_ms);
        self.highest_variance_ms = self.highest_variance_ms.max(self.variance_ms);
        if self.epoch_ms.is_none_or(|epoch| now_ms.saturating_sub(epoch) >= self.interval_ms.into()) {
            self.last_ms = self.lowest_ms;
            self.last_variance_ms = self.highest_variance_ms.max(1);
            self.lowest_ms = self.rtt_ms;
            self.highest_variance_ms = self.variance_ms;
            self.epoch_ms = Some(now_ms);
        }
    }

    fn adapt(&mut self, rtt: u32, limit: u32) {
        if self.last_ms <= self.last_variance_ms {
            self.throttle = limit;
        } else if rtt <= self.last_ms {
            self.throttle = self.throttle.saturating_add(self.acceleration).min(limit);
        } else if rtt > self.last_ms.saturating_add(2 * self.last_variance_ms) {
            self.throttle = self.throttle.saturating_sub(self.deceleration);
        }
    }

    /// True if the next unreliable packet may go.
    pub(crate) fn lets_pass(&mut self) -> bool {
        self.counter = (self.counter + THROTTLE_COUNTER_STEP) % THROTTLE_SCALE;
        self.counter <= self.throttle
    }

    /// Undoes the last [`lets_pass`](Self::lets_pass): its packet did not fit after all and will
    /// ask again.
    pub(crate) fn take_back(&mut self) {
        self.counter = (self.counter + THROTTLE_SCALE - THROTTLE_COUNTER_STEP) % THROTTLE_SCALE;
    }

    /// Time that a command has before others that were sent later tell that it is lost: what is
    /// reordered comes within a quarter of a round trip.
    pub(crate) fn patience_ms(&self) -> u32 {
        self.rtt_ms.saturating_add((self.rtt_ms / 4).max(self.variance_ms).max(2))
    }

    /// Time after which a command sent now counts as lost, in milliseconds.
    ///
    /// `is_patient`: where round trips are steady, their deviation says nothing about a queue that
    /// begins to grow. Half a round trip keeps a sender from resending what waits in it, and so
    /// from filling it.
    pub(crate) fn resend_after_ms(&self, floor_ms: u32, is_patient: bool) -> u32 {
        let half = if is_patient { self.rtt_ms / 2 } else { 0 };
        self.rtt_ms.saturating_add(self.variance_ms.saturating_mul(4).max(half)).max(floor_ms).max(1)
    }
}

/// The loss statistic. Spec: enet §12.6
#[derive(Clone, Debug, Default)]
pub(crate) struct Loss {
    epoch_ms: Option<u64>,
    pub(crate) sent: u32,
    pub(crate) lost: u32,
    /// Running mean, in 65536ths.
    pub(crate) mean: u32,
}

impl Loss {
    pub(crate) fn update(&mut self, now_ms: u64) {
        let epoch = *self.epoch_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(epoch) >= LOSS_INTERVAL_MS && self.sent > 0 {
            let loss = (u64::from(self.lost) * 65_536 / u64::from(self.sent)) as u32;
            self.mean = (7 * self.mean + loss.min(65_536)) / 8;
            *self = Self { epoch_ms: Some(now_ms), mean: self.mean, ..Self::default() };
        }
    }
}

pub(crate) const THROTTLE_SCALE: u32 = 32;
pub(crate) const THROTTLE_INTERVAL_MS: u32 = 5_000;
pub(crate) const THROTTLE_STEP: u32 = 2;
const THROTTLE_COUNTER_STEP: u32 = 7;
const RTT_START_MS: u32 = 500;
const LOSS_INTERVAL_MS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_is_taken_as_it_is() {
        let mut estimate = Estimate::new();
        estimate.measure(1_000, 41, true, 32);
        assert_eq!((estimate.rtt_ms, estimate.variance_ms), (41, 21));
        assert_eq!(estimate.resend_after_ms(20, false), 41 + 84);
        let mut loopback = Estimate::new();
        loopback.measure(1_000, 0, true, 32);
        // The reference resends after five milliseconds here.
        assert_eq!(loopback.resend_after_ms(0, false), 5);
        assert_eq!(loopback.resend_after_ms(20, false), 20);
    }

    #[test]
    fn rising_round_trips_close_the_throttle_and_falling_ones_open_it() {
        let mut estimate = Estimate::new();
        let mut now = 1_000;
        for step in 0..90 {
            estimate.measure(now, 50, step == 0, 32);
            now += 100;
        }
        assert_eq!(estimate.throttle, 32);
        for _ in 0..8 {
            estimate.measure(now, 400, false, 32);
            now += 100;
        }
        assert_eq!(estimate.throttle, 16);
        for _ in 0..8 {
            estimate.measure(now, 30, false, 32);
            now += 1;
        }
        assert_eq!(estimate.throttle, 32);
    }

    #[test]
    fn a_half_open_throttle_lets_half_pass() {
        let mut estimate = Estimate::new();
        for (throttle, expected) in [(32, 32), (31, 32), (16, 17), (0, 1)] {
            estimate.throttle = throttle;
            let passed = (0..32).filter(|_| estimate.lets_pass()).count();
            assert_eq!(passed, expected, "throttle {throttle}");
        }
    }

    /// The specification's sentences, one after the other, in wide signed numbers.
    #[derive(Default)]
    struct Model {
        rtt: i64,
        variance: i64,
        lowest: i64,
        highest_variance: i64,
        last: i64,
        last_variance: i64,
        epoch: i64,
        throttle: i64,
        has_ack: bool,
    }

    impl Model {
        fn measure(&mut self, now: i64, rtt: i64, interval: i64, acceleration: i64, deceleration: i64) {
            let rtt = rtt.max(1);
            if self.has_ack {
                if self.last <= self.last_variance {
                    self.throttle = 32;
                } else if rtt <= self.last {
                    self.throttle = 32.min(self.throttle + acceleration);
                } else if rtt > self.last + 2 * self.last_variance {
                    self.throttle = 0.max(self.throttle - deceleration);
                }
                self.variance -= self.variance / 4;
                let off = (rtt - self.rtt).abs();
                self.variance += off / 4;
                self.rtt += if rtt >= self.rtt { off / 8 } else { -(off / 8) };
            } else {
                (self.rtt, self.variance, self.has_ack) = (rtt, (rtt + 1) / 2, true);
            }
            self.lowest = self.lowest.min(self.rtt);
            self.highest_variance = self.highest_variance.max(self.variance);
            if self.epoch == 0 || now - self.epoch >= interval {
                (self.last, self.last_variance) = (self.lowest, self.highest_variance.max(1));
                (self.lowest, self.highest_variance, self.epoch) = (self.rtt, self.variance, now);
            }
        }
    }

    #[test]
    fn the_throttle_follows_the_formula() {
        for seed in 0..200 {
            let mut rng = throng_stdx::Rng::new(seed);
            let (interval, up, down) =
                (1 + rng.below(6_000) as u32, rng.below(33) as u32, rng.below(33) as u32);
            let mut estimate = Estimate::new();
            (estimate.interval_ms, estimate.acceleration, estimate.deceleration) = (interval, up, down);
            let mut model = Model { rtt: 500, lowest: 500, last: 500, throttle: 32, ..Model::default() };
            let (mut now, mut base) = (1_000, 1 + rng.below(300));
            for step in 0..2_000 {
                now += rng.below(400);
                if rng.chance(0.02) {
                    base = rng.below(1_000);
                }
                let rtt = base + rng.below(1 + base / 2);
                estimate.measure(now, rtt as u32, step == 0, 32);
                model.measure(now as i64, rtt as i64, interval.into(), up.into(), down.into());
                let ours = [estimate.rtt_ms, estimate.variance_ms, estimate.throttle].map(i64::from);
                assert_eq!(ours, [model.rtt, model.variance, model.throttle], "seed {seed}, step {step}");
            }
        }
    }

    #[test]
    fn absurd_settings_do_not_overflow() {
        let mut estimate = Estimate::new();
        (estimate.interval_ms, estimate.acceleration, estimate.deceleration) = (0, u32::MAX, u32::MAX);
        for (now, rtt) in [(1, 1), (2, u32::MAX), (3, 1), (4, u32::MAX / 2), (u64::MAX, 7)] {
            estimate.measure(now, rtt, now == 1, 32);
            assert!(estimate.throttle <= 32 && estimate.resend_after_ms(20, true) >= 1);
        }
    }
}
