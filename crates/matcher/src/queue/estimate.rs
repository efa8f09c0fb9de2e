//! Wait estimates: waiting times of the last minutes, by kind of ticket.

use std::collections::{BTreeMap, VecDeque};

use crate::schema::v1;

/// Waits are counted in buckets whose bounds grow by a quarter: 64 of them reach from 0.1 s to a
/// day.
const BUCKETS: usize = 64;
const FIRST_MS: f64 = 100.0;
const GROWTH: f64 = 1.25;
/// Time is cut into slots, in which all that is matched counts the same.
const SLOT_MS: u64 = 15_000;
/// The last 15 minutes count,
const WINDOW_SLOTS: usize = 60;
/// by half after 5 minutes: after 20 slots.
const DECAY_PER_SLOT: f64 = 0.965_936_328_924_846;
/// Weight of a ticket by the age of its slot.
const WEIGHTS: [f64; WINDOW_SLOTS] = {
    let (mut weights, mut age) = ([1.0; WINDOW_SLOTS], 1);
    while age < WINDOW_SLOTS {
        weights[age] = weights[age - 1] * DECAY_PER_SLOT;
        age += 1;
    }
    weights
};
/// Fewer samples than this say nothing.
const SAMPLES_MIN: u64 = 20;
/// Kinds of tickets that are told apart, at most; beyond, only the coarser ones are counted.
const KINDS_MAX: usize = 4_096;

/// Kind of a ticket; `None` is the coarser kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) region: Option<u16>,
    pub(crate) skill: Option<i16>,
    pub(crate) size: Option<u8>,
}

impl Kind {
    /// Of a ticket. Skill is told apart in steps of 5 up to 100, as ratings around 25 have it, and
    /// of 100 beyond, as those around 1500 have it.
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

/// Tickets that were matched in one slot of time after waits of one bucket.
#[derive(Clone, Copy, Debug)]
struct Count {
    slot: u64,
    bucket: u8,
    tickets: u32,
}

/// Waits of one kind: what was matched within [`WINDOW_SLOTS`], in order of time. At most one count
/// for each slot and bucket, and seldom more than a few of a slot.
#[derive(Clone, Debug, Default)]
struct Histogram {
    counts: VecDeque<Count>,
    /// Tickets of all of them.
    tickets: u64,
}

impl Histogram {
    fn add(&mut self, slot: u64, bucket: Bucket, tickets: u32) {
        while let Some(first) = self.counts.front().filter(|first| is_over(first.slot, slot)) {
            self.tickets -= u64::from(first.tickets);
            self.counts.pop_front();
        }
        self.tickets += u64::from(tickets);
        let bucket = bucket.0 as u8;
        let own = self.counts.iter_mut().rev().take_while(|count| count.slot == slot);
        match own.into_iter().find(|count| count.bucket == bucket) {
            Some(count) => count.tickets += tickets,
            None => self.counts.push_back(Count { slot, bucket, tickets }),
        }
    }

    /// Tickets that count at a time, each as one.
    fn samples(&self, slot: u64) -> u64 {
        let over = self.counts.iter().take_while(|count| is_over(count.slot, slot));
        self.tickets - over.map(|count| u64::from(count.tickets)).sum::<u64>()
    }

    /// The waits that parts of all did not exceed; each ticket counts the less, the longer ago it
    /// was matched.
    fn quantiles<const N: usize>(&self, slot: u64, parts: [f64; N]) -> [u64; N] {
        let mut weights = [0.0; BUCKETS];
        for count in self.counts.iter().filter(|count| !is_over(count.slot, slot)) {
            let age = slot.saturating_sub(count.slot) as usize;
            weights[usize::from(count.bucket)] += WEIGHTS[age] * f64::from(count.tickets);
        }
        let total: f64 = weights.iter().sum();
        parts.map(|part| {
            let (mut below, mut bound) = (0.0, FIRST_MS);
            for weight in weights {
                below += weight;
                if below >= total * part {
                    break;
                }
                bound *= GROWTH;
            }
            bound as u64
        })
    }
}

/// Returns whether what was matched in one slot counts no more in another.
fn is_over(matched: u64, now: u64) -> bool {
    matched + WINDOW_SLOTS as u64 <= now
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

    /// Place where to begin for waits of an exponent of two and two bits behind it, which have at
    /// most two buckets.
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
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimates {
    kinds: BTreeMap<Kind, Histogram>,
    /// Time when kinds that had become empty were last dropped.
    swept: u64,
    /// Matched tickets by bucket that are not among those yet.
    noted: BTreeMap<Kind, Vec<u32>>,
}

impl From<Kind> for v1::Kind {
    fn from(Kind { region, skill, size }: Kind) -> v1::Kind {
        v1::Kind { region, skill, size }
    }
}

impl From<v1::Kind> for Kind {
    fn from(v1::Kind { region, skill, size }: v1::Kind) -> Kind {
        Kind { region, skill, size }
    }
}

/// Kinds that are noted before they are counted.
const NOTED_MAX: usize = 256;

impl Estimates {
    pub(crate) fn save(&self) -> v1::Estimates {
        let count = |Count { slot, bucket, tickets }: &Count| v1::WaitCount {
            slot: *slot,
            bucket: *bucket,
            tickets: *tickets,
        };
        let kinds =
            self.kinds.iter().map(|(kind, own)| ((*kind).into(), own.counts.iter().map(count).collect()));
        let noted = self.noted.iter().map(|(kind, counts)| ((*kind).into(), counts.clone()));
        v1::Estimates { kinds: kinds.collect(), swept: self.swept, noted: noted.collect() }
    }

    pub(crate) fn load(saved: &v1::Estimates) -> Result<Estimates, &'static str> {
        let mut estimates = Estimates { swept: saved.swept, ..Estimates::default() };
        for (kind, counts) in &saved.kinds {
            let histogram = estimates.kinds.entry((*kind).into()).or_default();
            for v1::WaitCount { slot, bucket, tickets } in counts {
                if usize::from(*bucket) >= BUCKETS {
                    return Err("a wait is in no bucket");
                }
                histogram.counts.push_back(Count { slot: *slot, bucket: *bucket, tickets: *tickets });
                histogram.tickets += u64::from(*tickets);
            }
        }
        for (kind, counts) in &saved.noted {
            if counts.len() != BUCKETS {
                return Err("a wait is in no bucket");
            }
            estimates.noted.insert((*kind).into(), counts.clone());
        }
        Ok(estimates)
    }

    /// Tickets of `kind` were matched after these waits. They count once
    /// [`settle`](Estimates::settle) is called, all those of a tick together: one after the other,
    /// each would be looked up in four kinds.
    pub(crate) fn note(&mut self, now: u64, kind: Kind, waits: &[Bucket]) {
        let counts = self.noted.entry(kind).or_insert_with(|| vec![0; BUCKETS]);
        waits.iter().for_each(|bucket| counts[bucket.0] += 1);
        if self.noted.len() >= NOTED_MAX {
            self.settle(now);
        }
    }

    /// Counts what was [noted](Estimates::note).
    pub(crate) fn settle(&mut self, now: u64) {
        for (kind, counts) in std::mem::take(&mut self.noted) {
            for (bucket, tickets) in counts.into_iter().enumerate().filter(|(_, tickets)| *tickets > 0) {
                self.record(now, kind, Bucket(bucket), tickets);
            }
        }
    }

    fn record(&mut self, now: u64, kind: Kind, bucket: Bucket, tickets: u32) {
        let slot = now / SLOT_MS;
        if self.swept < slot {
            self.swept = slot;
            self.kinds.retain(|_, histogram| histogram.samples(slot) > 0);
        }
        let kinds = kind.coarser();
        for (at, kind) in kinds.into_iter().enumerate() {
            if at > 0 && kinds[at - 1] == kind {
                continue;
            }
            if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
                continue;
            }
            self.kinds.entry(kind).or_default().add(slot, bucket, tickets);
        }
    }

    /// The wait that a part of all tickets did not exceed.
    pub(crate) fn quantile(&self, now: u64, part: f64) -> Option<u64> {
        let slot = now / SLOT_MS;
        let all = self.kinds.get(&Kind::ALL).filter(|all| all.samples(slot) > 0)?;
        Some(all.quantiles(slot, [part])[0])
    }

    /// Waits that half and nine of ten tickets like this did not exceed; `None` while too few were
    /// seen.
    pub(crate) fn of(&self, now: u64, kind: Kind) -> Option<(u64, u64)> {
        let slot = now / SLOT_MS;
        let known = kind.coarser().into_iter().find_map(|kind| {
            self.kinds.get(&kind).filter(|histogram| histogram.samples(slot) >= SAMPLES_MIN)
        });
        let [p50, p90] = known?.quantiles(slot, [0.5, 0.9]);
        Some((p50, p90))
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
    }

    #[test]
    fn what_is_noted_counts_when_it_is_settled() {
        let (mut noted, mut recorded) = (Estimates::default(), Estimates::default());
        for skill in 0..3 * NOTED_MAX as i16 {
            let kind = Kind { skill: Some(skill % 300), ..SOLO };
            let waits = [1_000, 1_000, 30_000].map(Bucket::of);
            noted.note(0, kind, &waits);
            waits.into_iter().for_each(|wait| recorded.record(0, kind, wait, 1));
            assert!(noted.noted.len() < NOTED_MAX);
        }
        noted.settle(0);
        for kind in [Kind::ALL, Kind { skill: Some(0), ..SOLO }, Kind { skill: Some(299), ..SOLO }] {
            assert_eq!(noted.of(0, kind), recorded.of(0, kind));
        }
        assert!(noted.noted.is_empty() && noted.of(0, Kind::ALL).is_some());
    }

    const SOLO: Kind = Kind { region: Some(1), skill: Some(2), size: Some(1) };

    #[test]
    fn twenty_of_the_last_quarter_of_an_hour_are_enough() {
        let mut estimates = Estimates::default();
        for count in 1..=20 {
            assert_eq!(estimates.of(0, SOLO), None, "{} samples", count - 1);
            estimates.record(0, SOLO, Bucket::of(1_000), 1);
        }
        for (minutes, known) in
            [(0.0, true), (0.2, true), (5.0, true), (14.7, true), (15.0, false), (60.0, false)]
        {
            let now = (minutes * 60_000.0) as u64;
            assert_eq!(estimates.of(now, SOLO).is_some(), known, "after {minutes} minutes");
            assert_eq!(estimates.quantile(now, 0.5).is_some(), known, "after {minutes} minutes");
        }
        estimates.record(15 * 60_000, SOLO, Bucket::of(1_000), 1);
        assert_eq!(estimates.of(15 * 60_000, SOLO), None, "one is left");
    }

    #[test]
    fn what_was_five_minutes_ago_counts_half() {
        let of = |old: u32, new: u32| {
            let mut estimates = Estimates::default();
            estimates.record(0, SOLO, Bucket::of(1_000), old);
            estimates.record(5 * 60_000, SOLO, Bucket::of(60_000), new);
            estimates.of(5 * 60_000, SOLO).unwrap().0
        };
        assert!(of(100, 49) < 2_000 && of(100, 51) > 50_000, "{} {}", of(100, 49), of(100, 51));
    }

    #[test]
    fn kinds_that_nobody_is_of_any_more_make_room_for_others() {
        let mut estimates = Estimates::default();
        let kind = |skill: usize| Kind { skill: Some(skill as i16), ..SOLO };
        for skill in 0..2 * KINDS_MAX {
            estimates.record(0, kind(skill), Bucket::of(1_000), 20);
        }
        assert_eq!(estimates.kinds.len(), KINDS_MAX);
        let later = 16 * 60_000;
        estimates.record(later, kind(30_000), Bucket::of(60_000), 20);
        assert_eq!(estimates.kinds.len(), 4);
        assert!(estimates.of(later, kind(30_000)).unwrap().0 > 50_000);
    }
}
