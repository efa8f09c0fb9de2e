//! Virtual stream links: the effect of a TCP or WebSocket connection on bytes.

use std::collections::VecDeque;
use std::time::Duration;

use throng_stdx::{Instant, Rng};

/// Conditions of a link in one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkProfile {
    /// Least time on the way.
    pub delay: Duration,
    /// Up to this much is added at random; order is kept, as streams do.
    pub jitter: Duration,
    /// Bytes per second; 0 = unlimited.
    pub rate: u64,
    /// Bytes on the way or waiting for the reader before the link takes no more (socket buffers and
    /// window).
    pub window_bytes: usize,
    /// Largest chunk that arrives at once. Chunks end at random borders, so frames arrive in pieces
    /// and several together.
    pub chunk_bytes_max: usize,
    /// Chance that a chunk is lost and sent again: everything behind it waits `retransmit_after`.
    pub loss: f64,
    /// Time until a lost chunk arrives after all.
    pub retransmit_after: Duration,
}

impl LinkProfile {
    /// A link in one machine room: 100 us, nothing lost.
    #[must_use]
    pub fn local() -> Self {
        LinkProfile {
            delay: Duration::from_micros(100),
            jitter: Duration::from_micros(50),
            rate: 0,
            window_bytes: 256 * 1024,
            chunk_bytes_max: 64 * 1024,
            loss: 0.0,
            retransmit_after: Duration::from_millis(200),
        }
    }

    /// A link as players have it: some delay, some jitter, and chunks of any size.
    #[must_use]
    pub fn random(rng: &mut Rng) -> Self {
        LinkProfile {
            delay: Duration::from_micros(rng.range(50..40_000)),
            jitter: Duration::from_micros(rng.range(1..20_000)),
            rate: 0,
            window_bytes: 1 << rng.range(12..19),
            chunk_bytes_max: 1 << rng.range(3..16),
            loss: if rng.chance(0.3) { rng.f64() * 0.05 } else { 0.0 },
            retransmit_after: Duration::from_millis(rng.range(50..400)),
        }
    }
}

impl LinkProfile {
    /// Most time that bytes spend on the way, if there is room for them, the rate is unlimited and
    /// nothing stalls: what is lost is sent again once, and bytes wait for those before them, which
    /// were not pushed later.
    #[must_use]
    pub fn delay_max(&self) -> Duration {
        let again = if self.loss > 0.0 { self.retransmit_after } else { Duration::ZERO };
        self.delay + self.jitter + again
    }
}

/// One direction of a connection. Bytes arrive in order and whole, late and in pieces, until the
/// link is cut.
#[derive(Debug)]
pub struct Link {
    /// Sets the conditions from now on.
    pub profile: LinkProfile,
    /// Arrivals never fall.
    chunks: VecDeque<Chunk>,
    /// Bytes in `chunks`.
    in_flight_bytes: usize,
    /// Arrival of the last chunk; the next one is not earlier.
    last_arrival: Instant,
    /// Instant at which the sender's side is free again, at the profile's rate.
    line_free: Instant,
    /// Nothing arrives before.
    stalled_until: Instant,
    /// Most bytes ever in flight.
    peak_bytes: usize,
    /// The last push was not taken whole.
    full: bool,
}

#[derive(Debug)]
struct Chunk {
    arrival: Instant,
    /// Instant at which it was pushed; `None` if it had waited for room before.
    pushed: Option<Instant>,
    bytes: Vec<u8>,
}

impl Link {
    /// An empty link.
    #[must_use]
    pub fn new(profile: LinkProfile) -> Self {
        Link {
            profile,
            chunks: VecDeque::new(),
            in_flight_bytes: 0,
            last_arrival: Instant::ZERO,
            line_free: Instant::ZERO,
            stalled_until: Instant::ZERO,
            peak_bytes: 0,
            full: false,
        }
    }

    /// Bytes that the link takes now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.profile.window_bytes.saturating_sub(self.in_flight_bytes)
    }

    /// Takes as much of `bytes` as there is room for and returns how much.
    pub fn push(&mut self, now: Instant, rng: &mut Rng, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let pushed = (!self.full).then_some(now);
        self.full = taken < bytes.len();
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let len = (rng.range(1..self.profile.chunk_bytes_max as u64 + 1) as usize).min(rest.len());
            let (chunk, behind) = rest.split_at(len);
            rest = behind;
            if let Some(ns) = (len as u64 * 1_000_000_000).checked_div(self.profile.rate) {
                self.line_free = self.line_free.max(now) + Duration::from_nanos(ns);
            }
            let mut arrival = self.line_free.max(now) + self.profile.delay;
            arrival += Duration::from_nanos(rng.below(self.profile.jitter.as_nanos() as u64 + 1));
            if rng.chance(self.profile.loss) {
                arrival += self.profile.retransmit_after;
            }
            self.last_arrival = self.last_arrival.max(arrival);
            self.chunks.push_back(Chunk { arrival: self.last_arrival, pushed, bytes: chunk.to_vec() });
        }
        self.in_flight_bytes += taken;
        self.peak_bytes = self.peak_bytes.max(self.in_flight_bytes);
        taken
    }

    /// The next chunk that has arrived.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.pop_with_time(now).map(|(_, bytes)| bytes)
    }

    /// As [`Link::pop`], with the time at which the chunk was pushed, or `None` if it had to wait
    /// for room before.
    pub fn pop_with_time(&mut self, now: Instant) -> Option<(Option<Instant>, Vec<u8>)> {
        if self.next_arrival()? > now {
            return None;
        }
        let chunk = self.chunks.pop_front()?;
        self.in_flight_bytes -= chunk.bytes.len();
        Some((chunk.pushed, chunk.bytes))
    }

    /// Arrival of the next chunk.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.chunks.front().map(|chunk| chunk.arrival.max(self.stalled_until))
    }

    /// Nothing arrives before `until`: a partition, or a reader that does not read.
    pub fn stall(&mut self, until: Instant) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// Ends a stall; bytes in transit arrive as soon as the profile allows.
    pub fn heal(&mut self, now: Instant) {
        self.stalled_until = self.stalled_until.min(now);
        let latest = now + self.profile.delay + self.profile.jitter;
        for chunk in &mut self.chunks {
            chunk.arrival = latest.min(chunk.arrival);
        }
        self.last_arrival = self.last_arrival.min(latest);
        self.line_free = self.line_free.min(now);
    }

    /// Discards the bytes in transit.
    pub fn cut(&mut self) {
        self.chunks.clear();
        self.in_flight_bytes = 0;
    }

    /// Most bytes ever in flight; never above the window.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes and pops until everything is through; returns the bytes and the time of the last.
    fn carry(profile: LinkProfile, seed: u64, bytes: &[u8]) -> (Vec<u8>, Instant) {
        let mut rng = Rng::new(seed);
        let mut link = Link::new(profile);
        let (mut now, mut sent, mut out) = (Instant::ZERO, 0, Vec::new());
        while out.len() < bytes.len() {
            sent += link.push(now, &mut rng, &bytes[sent..]);
            now = now.max(link.next_arrival().expect("bytes are on the way"));
            while let Some(chunk) = link.pop(now) {
                out.extend_from_slice(&chunk);
            }
            assert!(link.peak_bytes() <= link.profile.window_bytes);
        }
        (out, now)
    }

    #[test]
    fn bytes_arrive_whole_and_in_order_whatever_the_profile() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        for seed in 0..50 {
            let profile = LinkProfile::random(&mut Rng::new(seed));
            let (out, end) = carry(profile.clone(), seed, &bytes);
            assert_eq!(out, bytes);
            assert_eq!(carry(profile, seed, &bytes).1, end, "the same seed takes the same time");
        }
    }

    #[test]
    fn the_rate_is_kept() {
        let profile = LinkProfile { rate: 10_000, ..LinkProfile::local() };
        let (_, end) = carry(profile, 1, &[7; 50_000]);
        let seconds = end.since(Instant::ZERO).as_secs_f64();
        assert!((4.9..5.2).contains(&seconds), "50,000 bytes at 10,000 a second took {seconds} s");
    }

    #[test]
    fn a_stalled_link_fills_up_and_delivers_later() {
        let mut rng = Rng::new(3);
        let mut link = Link::new(LinkProfile { window_bytes: 1000, ..LinkProfile::local() });
        link.stall(Instant::from_millis(500));
        assert_eq!(link.push(Instant::ZERO, &mut rng, &[1; 5000]), 1000);
        assert_eq!(link.room(), 0);
        assert!(link.pop(Instant::from_millis(499)).is_none());
        assert!(link.pop(Instant::from_millis(500)).is_some());
    }
}
