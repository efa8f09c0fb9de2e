//! The limit on reliable data in flight: a window derived from the delivery rate and the lowest
//! round trip time.
//!
//! ```text
//! window = 7/4 x rate x lowest round trip + 4 datagrams     never more than was negotiated
//! rate   = highest of the last rounds                        bytes acknowledged over the time that took
//! ```
//!
//! The first term keeps the narrowest link busy with a queue of at most one round trip; random loss
//! does not lower it. The second is the same for everybody, so connections that share a link
//! converge to equal shares. A sender that has nothing to send measures itself and not the path:
//! its samples can raise the rate and never lower it.
//!
//! The lowest round trip is measured anew every ten seconds. A sender whose own queue stands in the
//! way of that sends a quarter of its window for two round trips. This replaces the throttled
//! window of the C library, which fills any queue. Spec: enet §11.3

/// A connection's view of the path to its other end.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// Bytes acknowledged so far, and when that was last moved or began to be.
    delivered: u64,
    delivered_ms: u64,
    /// Highest rates in bytes per second, of this epoch and the one before.
    rates: [u64; 2],
    /// `delivered` at the end of this round, and rounds in this epoch.
    round_end: u64,
    rounds: u8,
    /// `delivered` up to which samples say more about the sender than about the path.
    limited_until: u64,
    window: u32,
    /// Lowest round trip, and lowest since `epoch_ms`.
    lowest_ms: u32,
    seen_ms: u32,
    epoch_ms: u64,
    /// End of the time in which the queue drains.
    drains_until_ms: Option<u64>,
}

/// State of the path when a command was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    delivered: u64,
    delivered_ms: u64,
    is_limited: bool,
}

impl Path {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            delivered: 0,
            delivered_ms: now_ms,
            rates: [0; 2],
            round_end: 0,
            rounds: 0,
            limited_until: 0,
            window: WINDOW_START,
            lowest_ms: u32::MAX,
            seen_ms: u32::MAX,
            epoch_ms: now_ms,
            drains_until_ms: None,
        }
    }

    /// Bytes that may be on their way.
    pub(crate) fn window(&self) -> u32 {
        match self.drains_until_ms {
            Some(_) => (self.window / 4).max(WINDOW_START / 4),
            None => self.window,
        }
    }

    /// Notes that data leaves; `in_flight` bytes were on their way before.
    pub(crate) fn note_sent(&mut self, now_ms: u64, in_flight: usize) -> Snapshot {
        if in_flight == 0 {
            self.delivered_ms = now_ms;
        }
        let is_limited = self.delivered < self.limited_until;
        Snapshot { delivered: self.delivered, delivered_ms: self.delivered_ms, is_limited }
    }

    /// Notes that nothing more waits to be sent.
    pub(crate) fn note_idle(&mut self, in_flight: usize) {
        self.limited_until = self.delivered + in_flight as u64;
    }

    /// Notes that `len` bytes were acknowledged. `sent` is their snapshot if their last
    /// transmission was meant.
    pub(crate) fn note_delivered(&mut self, now_ms: u64, len: usize, sent: Option<Snapshot>, mtu: u16) {
        self.delivered += len as u64;
        self.delivered_ms = now_ms;
        if let Some(sent) = sent {
            let elapsed_ms = now_ms.saturating_sub(sent.delivered_ms).max(1);
            let rate = (self.delivered - sent.delivered) * 1_000 / elapsed_ms;
            self.rates[0] = self.rates[0].max(rate);
            if sent.delivered >= self.round_end && !sent.is_limited {
                self.round_end = self.delivered;
                self.rounds += 1;
                if self.rounds == ROUNDS {
                    self.rounds = 0;
                    self.rates = [rate, self.rates[0]];
                }
            }
        }
        let rate = self.rates[0].max(self.rates[1]);
        if self.lowest_ms == u32::MAX || rate == 0 {
            return;
        }
        let in_pipe = rate * u64::from(self.lowest_ms.max(1)) / 1_000;
        let target = in_pipe * 7 / 4 + 4 * u64::from(mtu);
        let target = u32::try_from(target).unwrap_or(u32::MAX).min(crate::config::WINDOW_MAX);
        if self.window < target {
            // As fast as acknowledgements come: twice as much after each round trip.
            self.window = target.min(self.window + len as u32);
        } else if self.delivered > self.limited_until {
            self.window = target;
        }
    }

    /// Takes in a measured round trip. `is_busy`: data waits for room in the window.
    pub(crate) fn measure(&mut self, now_ms: u64, rtt_ms: u32, is_busy: bool) {
        self.lowest_ms = self.lowest_ms.min(rtt_ms);
        self.seen_ms = self.seen_ms.min(rtt_ms);
        if let Some(until) = self.drains_until_ms {
            if now_ms >= until {
                self.drains_until_ms = None;
                (self.lowest_ms, self.seen_ms, self.epoch_ms) = (self.seen_ms, u32::MAX, now_ms);
            }
        } else if now_ms.saturating_sub(self.epoch_ms) >= LOWEST_AGE_MS {
            if is_busy && self.seen_ms > self.lowest_ms + self.lowest_ms / 4 {
                // Until what is on its way has arrived, and once more for what then is.
                self.drains_until_ms = Some(now_ms + u64::from(rtt_ms) + u64::from(self.lowest_ms));
                self.seen_ms = u32::MAX;
            } else {
                (self.lowest_ms, self.seen_ms, self.epoch_ms) = (self.seen_ms, u32::MAX, now_ms);
            }
        }
    }
}

/// Bytes that a new connection may have on its way: 14 datagrams, between TCP's ten and the 47 of
/// the C library.
const WINDOW_START: u32 = 20 * 1024;
/// Rounds after which an epoch of rates ends: a sample counts for five to ten.
const ROUNDS: u8 = 5;
/// Age at which the lowest round trip is measured anew: a path changes seldom, and measuring costs
/// a round trip.
const LOWEST_AGE_MS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of `rate` bytes per millisecond behind a queue, `delay_ms` long; the window after
    /// `ms`.
    fn run(rate: u64, delay_ms: u64, ms: u64) -> (u32, u64) {
        let mut path = Path::new(0);
        let mut wire: alloc::collections::VecDeque<(u64, u64, Snapshot)> = Default::default();
        let (mut free_us, mut in_flight, mut queue_max) = (0_u64, 0_usize, 0);
        for now in 0..ms {
            while let Some(&(at, sent, snapshot)) = wire.front().filter(|(at, ..)| *at <= now * 1_000) {
                wire.pop_front();
                let _ = at;
                in_flight -= 1_000;
                path.measure(now, (now - sent) as u32, true);
                path.note_delivered(now, 1_000, Some(snapshot), 1_400);
            }
            while in_flight + 1_000 <= path.window() as usize {
                let snapshot = path.note_sent(now, in_flight);
                free_us = free_us.max(now * 1_000) + 1_000_000 / rate;
                if now > ms / 2 {
                    queue_max = queue_max.max((free_us - now * 1_000) * rate / 1_000);
                }
                wire.push_back((free_us + delay_ms * 1_000, now, snapshot));
                in_flight += 1_000;
            }
        }
        (path.window(), queue_max)
    }

    #[test]
    fn the_window_follows_the_link_and_its_queue_stays_short() {
        // 250 kB/s, 40 ms: 10 kB are in the pipe.
        let (window, queue) = run(250, 40, 60_000);
        assert!((16_000..34_000).contains(&window), "{window}");
        assert!(queue < 24_000, "{queue} bytes wait");
        // A long and fast one gets all that the protocol has.
        assert_eq!(run(10_000, 100, 5_000).0, 65_536);
    }

    #[test]
    fn a_sender_without_backlog_keeps_its_window() {
        let mut path = Path::new(0);
        path.window = 50_000;
        for now in (0..60_000).step_by(100) {
            let snapshot = path.note_sent(now, 0);
            path.note_idle(100);
            path.measure(now + 20, 20, false);
            path.note_delivered(now + 20, 100, Some(snapshot), 1_400);
        }
        assert_eq!(path.window(), 50_000);
    }
}
