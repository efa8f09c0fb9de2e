//! How long it will take: waiting times of the last minutes, by kind of ticket.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Waits are counted in buckets whose bounds grow by a quarter: 64 of them reach from 0.1 s to a day.
const BUCKETS: usize = 64;
const FIRST_MS: f64 = 100.0;
const GROWTH: f64 = 1.25;
/// Weights halve in 5 minutes: 30 steps of 10 s.
const STEP_MS: u64 = 10_000;
const DECAY_PER_STEP: f64 = 0.977_159_968_434_245_9;
/// Fewer samples than this say nothing.
const SAMPLES_MIN: f64 = 20.0;
/// Kinds of tickets that are told apart, at most; beyond, only the coarser ones are counted.
const KINDS_MAX: usize = 4_096;

/// What tells tickets apart; `None` is the coarser kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Kind {
    pub(crate) region: Option<u16>,
    pub(crate) skill: Option<i16>,
    pub(crate) size: Option<u8>,
}

impl Kind {
    /// Of a ticket. Skill is told apart in steps of 5 up to 100, as ratings around 25 have it, and of 100 beyond, as those
    /// around 1500 have it.
    pub(crate) fn new(main: Option<f64>, region: Option<u16>, size: u32) -> Kind {
        let skill = main.filter(|value| value.is_finite()).map(|value| {
            let bucket =
                if value.abs() < 100.0 { value / 5.0 } else { 20.0 * value.signum() + value / 100.0 };
            bucket.clamp(-30_000.0, 30_000.0) as i16
        });
        Kind { region, skill, size: Some(size.min(255) as u8) }
    }

    /// Every ticket.
    pub(crate) const ALL: Kind = Kind { region: None, skill: None, size: None };

    /// From the finest to the coarsest: no party size, no skill, no region.
    fn coarser(self) -> [Kind; 4] {
        let no_size = Kind { size: None, ..self };
        let no_skill = Kind { skill: None, ..no_size };
        [self, no_size, no_skill, Kind { region: None, ..no_skill }]
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Histogram {
    weights: Vec<f64>,
    at_step: u64,
}

impl Histogram {
    fn decay(&mut self, now: u64) {
        let step = now / STEP_MS;
        let steps = step.saturating_sub(self.at_step).min(2_000);
        if steps > 0 {
            let factor = (0..steps).fold(1.0, |factor, _| factor * DECAY_PER_STEP);
            self.weights.iter_mut().for_each(|weight| *weight *= factor);
            self.at_step = step;
        }
    }

    fn quantile(&self, part: f64) -> u64 {
        let total: f64 = self.weights.iter().sum();
        let (mut below, mut bound) = (0.0, FIRST_MS);
        for weight in &self.weights {
            below += weight;
            if below >= total * part {
                break;
            }
            bound *= GROWTH;
        }
        bound as u64
    }
}

/// Waits that count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket(usize);

impl Bucket {
    /// The longest wait of each but the last, in ms.
    const BOUNDS: [f64; BUCKETS - 1] = {
        let (mut bounds, mut at) = ([FIRST_MS; BUCKETS - 1], 1);
        while at < bounds.len() {
            bounds[at] = bounds[at - 1] * GROWTH;
            at += 1;
        }
        bounds
    };

    /// Where to begin for waits of an exponent of two and two bits behind it, which have at most two buckets.
    const FIRSTS: [u8; 4 * 65] = {
        let (mut firsts, mut class) = ([0; 4 * 65], 0);
        while class < firsts.len() {
            let least = f64::from_bits((1023 << 52) + ((class as u64) << 50));
            let mut bucket = 0;
            while bucket < BUCKETS - 1 && Bucket::BOUNDS[bucket] < least {
                bucket += 1;
            }
            firsts[class] = bucket as u8;
            class += 1;
        }
        firsts
    };

    pub(crate) fn of(waited_ms: u64) -> Bucket {
        let waited = waited_ms.max(1) as f64;
        let class = (waited.to_bits() >> 50) - (1023 << 2);
        let mut bucket = usize::from(Bucket::FIRSTS[class as usize]);
        while Bucket::BOUNDS.get(bucket).is_some_and(|bound| *bound < waited) {
            bucket += 1;
        }
        Bucket(bucket)
    }
}

/// Waits of one queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Estimates {
    kinds: BTreeMap<Kind, Histogram>,
}

impl Estimates {
    /// Some tickets of `kind` were matched after waits of a [`Bucket`].
    pub(crate) fn record(&mut self, now: u64, kind: Kind, bucket: Bucket, tickets: u32) {
        let kinds = kind.coarser();
        for (at, kind) in kinds.into_iter().enumerate() {
            if at > 0 && kinds[at - 1] == kind {
                continue;
            }
            if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
                continue;
            }
            let fresh = || Histogram { weights: vec![0.0; BUCKETS], at_step: now / STEP_MS };
            let histogram = self.kinds.entry(kind).or_insert_with(fresh);
            histogram.decay(now);
            histogram.weights[bucket.0] += f64::from(tickets);
        }
    }

    /// The wait that a part of all tickets did not exceed.
    pub(crate) fn quantile(&self, now: u64, part: f64) -> Option<u64> {
        let mut histogram = self.kinds.get(&Kind::ALL)?.clone();
        histogram.decay(now);
        (histogram.weights.iter().sum::<f64>() >= 1.0).then(|| histogram.quantile(part))
    }

    /// Waits that half and nine of ten tickets like this did not exceed; `None` while too few were seen.
    pub(crate) fn of(&self, now: u64, kind: Kind) -> Option<(u64, u64)> {
        kind.coarser().into_iter().find_map(|kind| {
            let mut histogram = self.kinds.get(&kind)?.clone();
            histogram.decay(now);
            let enough = histogram.weights.iter().sum::<f64>() >= SAMPLES_MIN;
            enough.then(|| (histogram.quantile(0.5), histogram.quantile(0.9)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_in_the_first_bucket_that_holds_it() {
        let edges =
            Bucket::BOUNDS.iter().flat_map(|bound| [*bound as u64 - 1, *bound as u64, *bound as u64 + 1]);
        let powers = (0..64).flat_map(|power| [(1_u64 << power) - 1, 1 << power]);
        for waited in edges.chain(powers).chain([u64::MAX]) {
            let held = Bucket::BOUNDS.partition_point(|bound| *bound < waited as f64);
            assert_eq!(Bucket::of(waited), Bucket(held), "{waited} ms");
        }
    }

    #[test]
    fn a_rare_kind_falls_back_to_a_coarser_one() {
        let mut estimates = Estimates::default();
        let solo = Kind { region: Some(1), skill: Some(2), size: Some(1) };
        for index in 0..100 {
            estimates.record(0, solo, Bucket::of(if index < 60 { 1_000 } else { 9_000 }), 1);
        }
        let (p50, p90) = estimates.of(0, Kind { size: Some(5), ..solo }).unwrap();
        assert!((800..1_300).contains(&p50) && (7_500..12_000).contains(&p90), "{p50} {p90}");
        assert_eq!(Estimates::default().of(0, solo), None);
        assert_eq!(estimates.of(3_600_000, solo), None, "an hour ago is long ago");
    }
}
