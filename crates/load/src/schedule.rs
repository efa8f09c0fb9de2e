//! Schedule of the players of a thread: connections and sends.
//!
//! Sends are *open loop*: input number `c` of player `k` of `n` is due at `epoch + (c + k/n) *
//! period`, whatever the server does. The players' sends are spread evenly over a period, so the
//! schedule is a timing wheel of one slot per player and needs no queue: the next send is always
//! the next slot.

use std::time::Duration;

use crate::clock::nanoseconds;
use crate::poll::BUNDLE;

/// Connection attempts under way at once, below the usual accept backlog.
const CONNECTING_MAX: usize = 200;
/// Attempts that were held back are made up for in bursts of so many.
const BURST: u64 = 16;

/// The timetable of one thread.
#[derive(Debug)]
pub(crate) struct Schedule {
    players: usize,
    /// Between the starts of two connections.
    gap_ns: u64,
    /// Connections started, and those of them that are still being made.
    started: usize,
    connecting: usize,
    next_connect_ns: u64,
    /// Between two sends of a player; `None` when they send nothing.
    period_ns: Option<u64>,
    /// Time of slot 0 of cycle 0, the next cycle, and the next slot in it.
    epoch_ns: u64,
    cycle: u64,
    slot: usize,
}

impl Schedule {
    pub(crate) fn new(players: usize, connects_per_s: u32, sends_per_s: Option<f64>, now_ns: u64) -> Self {
        Self {
            players,
            gap_ns: 1_000_000_000 / u64::from(connects_per_s.max(1)),
            started: 0,
            connecting: 0,
            next_connect_ns: now_ns,
            period_ns: sends_per_s.map(|rate| (1e9 / rate) as u64),
            epoch_ns: now_ns,
            cycle: 0,
            slot: 0,
        }
    }

    /// The player whose connection is to be started now. Its end, good or bad, is told by
    /// [`Self::connected`].
    pub(crate) fn next_to_connect(&mut self, now_ns: u64) -> Option<usize> {
        if !self.may_connect() || self.next_connect_ns > now_ns {
            return None;
        }
        // Attempts held back by the bound are not made up for in one burst.
        self.next_connect_ns =
            (self.next_connect_ns + self.gap_ns).max(now_ns.saturating_sub(self.gap_ns * BURST));
        self.connecting += 1;
        self.started += 1;
        Some(self.started - 1)
    }

    /// An attempt to connect has ended.
    pub(crate) fn connected(&mut self) {
        self.connecting -= 1;
    }

    fn may_connect(&self) -> bool {
        self.started < self.players && self.connecting < CONNECTING_MAX
    }

    /// Nothing could be sent yet: the first cycle begins now.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        self.epoch_ns = now_ns;
    }

    /// The player that is to send, and since when.
    pub(crate) fn next_to_send(&mut self, now_ns: u64) -> Option<(usize, u64)> {
        let due = self.send_due_ns().filter(|&due| due <= now_ns)?;
        let player = self.slot;
        self.slot += 1;
        if self.slot == self.players {
            self.slot = 0;
            self.cycle += 1;
        }
        Some((player, due))
    }

    fn send_due_ns(&self) -> Option<u64> {
        let period = self.period_ns.filter(|_| self.players > 0)?;
        Some(self.epoch_ns + self.cycle * period + period * self.slot as u64 / self.players as u64)
    }

    /// Wait until the next send or connection attempt, `most` at most. Sends due shortly after it
    /// share the wake-up.
    pub(crate) fn wait(&self, now_ns: u64, most: Duration) -> Duration {
        let connect = self.may_connect().then_some(self.next_connect_ns);
        let due = connect.into_iter().chain(self.send_due_ns()).min().unwrap_or(u64::MAX);
        let due = due.saturating_add(nanoseconds(BUNDLE));
        Duration::from_nanos(due.saturating_sub(now_ns)).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_spread_over_a_period_and_caught_up() {
        let mut schedule = Schedule::new(4, 1_000, Some(10.0), 1_000);
        let due: Vec<_> = std::iter::from_fn(|| schedule.next_to_send(150_001_000)).collect();
        let expected = [(0, 0), (1, 25), (2, 50), (3, 75), (0, 100), (1, 125), (2, 150)];
        assert_eq!(due, expected.map(|(player, ms)| (player, ms * 1_000_000 + 1_000)));
        assert_eq!(schedule.wait(150_001_000, Duration::from_secs(1)), Duration::ZERO, "connections are due");
    }

    #[test]
    fn connections_start_at_their_rate_and_are_bounded() {
        let mut schedule = Schedule::new(500, 1_000, None, 0);
        assert_eq!(schedule.next_to_connect(0), Some(0));
        assert_eq!(schedule.next_to_connect(0), None, "the next one is due a millisecond later");
        let ten_seconds = 10_000_000_000;
        let burst = std::iter::from_fn(|| schedule.next_to_connect(ten_seconds)).count();
        assert_eq!(burst as u64, BURST + 2);
        let rest = std::iter::from_fn(|| schedule.next_to_connect(2 * ten_seconds)).count();
        assert!(rest <= BURST as usize + 2, "{rest} at once after a long pause");
        for ms in 0..1_000 {
            schedule.next_to_connect(3 * ten_seconds + ms * 1_000_000);
        }
        assert_eq!(schedule.connecting, CONNECTING_MAX);
        schedule.connected();
        assert!(schedule.next_to_connect(5 * ten_seconds).is_some());
    }
}
