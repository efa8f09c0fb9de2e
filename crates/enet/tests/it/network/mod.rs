//! Thirty kinds of bad network.

#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use throng_stdx::{Instant, Rng};

/// A kind of network.
pub(crate) struct Condition {
    pub(crate) name: &'static str,
    /// Both directions.
    pub(crate) link: Link,
    /// Differences of the way back; the rest is as the way there.
    pub(crate) back: Option<Link>,
    pub(crate) weather: Weather,
}

/// Properties of a link in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Bytes per second, 0 for no limit, and bytes that wait for their turn before the link drops
    /// some.
    pub(crate) rate: u64,
    pub(crate) queue_bytes: u64,
    pub(crate) delay_ms: u64,
    pub(crate) jitter_ms: u64,
    pub(crate) loss: f64,
    pub(crate) doubling: f64,
    /// Share of datagrams that are held back for several times the delay.
    pub(crate) straggling: f64,
    /// Longer datagrams vanish.
    pub(crate) bytes_max: usize,
}

/// Changes while time passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weather {
    Steady,
    /// For a second of every four, half of everything is lost.
    Bursts,
    /// For three seconds of every nine, nothing passes.
    Flaps,
    /// After four seconds the way is ten times as long, after eight it is as before.
    Detour,
    /// The client's clock runs three percent fast.
    Skew,
    /// After four seconds the client has another address.
    Rebind,
}

pub(crate) const GOOD: Link = Link {
    rate: 2_000_000,
    queue_bytes: 256_000,
    delay_ms: 2,
    jitter_ms: 1,
    loss: 0.0,
    doubling: 0.0,
    straggling: 0.0,
    bytes_max: usize::MAX,
};

const fn steady(name: &'static str, link: Link) -> Condition {
    Condition { name, link, back: None, weather: Weather::Steady }
}

const fn changing(name: &'static str, weather: Weather) -> Condition {
    Condition { name, link: Link { delay_ms: 20, ..GOOD }, back: None, weather }
}

/// Eighteen combinations of rate, loss, lag and reordering, and twelve kinds of trouble.
pub(crate) const CONDITIONS: [Condition; 30] = [
    steady("64 kB/s", Link { rate: 64_000, ..GOOD }),
    steady("128 kB/s", Link { rate: 128_000, ..GOOD }),
    steady("256 kB/s", Link { rate: 256_000, ..GOOD }),
    steady("1 MB/s", Link { rate: 1_000_000, ..GOOD }),
    steady("2 MB/s", GOOD),
    steady("loss 1%", Link { loss: 0.01, ..GOOD }),
    steady("loss 5%", Link { loss: 0.05, ..GOOD }),
    steady("loss 10%", Link { loss: 0.1, ..GOOD }),
    steady("loss 20%", Link { loss: 0.2, ..GOOD }),
    steady("lag 25 ms", Link { delay_ms: 25, ..GOOD }),
    steady("lag 50 ms", Link { delay_ms: 50, jitter_ms: 10, ..GOOD }),
    steady("lag 100 ms", Link { delay_ms: 100, jitter_ms: 20, ..GOOD }),
    steady("reorder 5%", Link { straggling: 0.05, delay_ms: 20, ..GOOD }),
    steady("reorder 15%", Link { straggling: 0.15, delay_ms: 20, ..GOOD }),
    steady("loss 5%, lag 100 ms", Link { loss: 0.05, delay_ms: 100, ..GOOD }),
    steady("loss 10%, reorder 10%", Link { loss: 0.1, straggling: 0.1, delay_ms: 20, ..GOOD }),
    steady("64 kB/s, loss 5%, lag 50 ms", Link { rate: 64_000, loss: 0.05, delay_ms: 50, ..GOOD }),
    steady(
        "128 kB/s, loss 20%, reorder 30%",
        Link { rate: 128_000, loss: 0.2, straggling: 0.3, delay_ms: 30, ..GOOD },
    ),
    changing("bursts of 50% loss", Weather::Bursts),
    steady("reorder 30%", Link { straggling: 0.3, delay_ms: 40, jitter_ms: 40, ..GOOD }),
    steady("lag 500 ms", Link { delay_ms: 250, jitter_ms: 50, ..GOOD }),
    steady("doubling 30%", Link { doubling: 0.3, delay_ms: 20, jitter_ms: 10, ..GOOD }),
    steady("black hole above 1,200 bytes", Link { bytes_max: 1_200, ..GOOD }),
    Condition {
        name: "asymmetric",
        link: Link { rate: 32_000, delay_ms: 80, loss: 0.05, ..GOOD },
        back: Some(Link { delay_ms: 5, ..GOOD }),
        weather: Weather::Steady,
    },
    changing("clock skew", Weather::Skew),
    changing("new NAT address", Weather::Rebind),
    steady("32 kB/s", Link { rate: 32_000, queue_bytes: 16_000, ..GOOD }),
    steady("bufferbloat", Link { rate: 48_000, queue_bytes: 512_000, delay_ms: 10, ..GOOD }),
    changing("flapping", Weather::Flaps),
    changing("detour", Weather::Detour),
];

pub(crate) fn condition(seed: u64) -> &'static Condition {
    &CONDITIONS[(seed % CONDITIONS.len() as u64) as usize]
}

/// A link, and when it is free again.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) link: Link,
    free: Instant,
}

/// A moment in the course of the weather.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Season {
    pub(crate) passed: Duration,
    /// The bad days are not over.
    pub(crate) is_stormy: bool,
}

impl Line {
    pub(crate) fn new(link: Link, now: Instant) -> Self {
        Self { link, free: now }
    }

    /// Arrival of a datagram sent now; `None` when it is lost.
    pub(crate) fn carry(
        &mut self,
        rng: &mut Rng,
        now: Instant,
        weather: Weather,
        season: Season,
        len: usize,
    ) -> Option<Instant> {
        let (link, seconds) = (&self.link, season.passed.as_secs());
        let loss = match weather {
            Weather::Bursts if season.is_stormy && seconds % 4 == 3 => 0.5,
            Weather::Flaps if season.is_stormy && seconds % 9 >= 6 => 1.0,
            _ => link.loss,
        };
        // The line takes one datagram after the other; what finds a full queue is lost.
        let free = self.free.max(now);
        let waits = free.since(now).as_nanos() as u64 * link.rate / 1_000_000_000;
        if rng.chance(loss) || len > link.bytes_max || waits > link.queue_bytes {
            return None;
        }
        let ns = (len as u64 + 28) * 1_000_000_000 / link.rate;
        self.free = free + Duration::from_nanos(ns);
        let mut delay_ms = link.delay_ms;
        if weather == Weather::Detour && (4..8).contains(&seconds) {
            delay_ms *= 10;
        }
        let mut delay_us = delay_ms * 1_000 + rng.below(link.jitter_ms * 1_000 + 1);
        if rng.chance(link.straggling) {
            delay_us += rng.below(4_000 * delay_ms + 1_000);
        }
        Some(self.free + Duration::from_micros(delay_us))
    }
}
