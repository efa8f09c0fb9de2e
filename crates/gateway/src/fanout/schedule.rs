//! Times: ticks, windows, phases, and the timer that wakes a channel.

use core::time::Duration;

use throng_stdx::Instant;

use crate::channel::{Channel, RateBy};
use crate::ids::ConnId;
use crate::switchboard::{Switchboard, Timer};

impl Channel {
    /// Sets the channel's timer to the next tick at which something is due, if any.
    pub(crate) fn arm(&mut self, board: &mut Switchboard) {
        let flush = self.fan.cohorts.iter().filter_map(|(_, cohort)| cohort.due).min();
        let state = if self.data.is_some() { self.fan.waiting.first().map(|(due, _)| *due) } else { None };
        let overdue = self.fan.overdue.first().map(|(due, _)| *due);
        let next = [flush, state, overdue].into_iter().flatten().min();
        match (next, self.fan.wake) {
            (Some(next), Some((armed, _))) if armed == next => {}
            (next, armed) => {
                if let Some((_, key)) = armed {
                    board.timers.cancel(key);
                }
                self.fan.wake = next.map(|next| {
                    let at = self.created + Duration::from_nanos(next.unsigned_abs());
                    (next, board.timers.insert(at, Timer::Channel(self.id)))
                });
            }
        }
    }

    /// Cancels the timer of a channel that is removed.
    pub(crate) fn disarm(&mut self, board: &mut Switchboard) {
        if let Some((_, key)) = self.fan.wake.take() {
            board.timers.cancel(key);
        }
    }

    pub(super) fn tick(&self) -> i64 {
        i64::try_from(self.settings.tick_interval.as_nanos()).unwrap_or(i64::MAX).max(1)
    }

    /// Whether windows of a rate that was chosen so end at the subscriber's turn.
    pub(super) fn takes_turns(&self, rate_by: RateBy) -> bool {
        match rate_by {
            RateBy::Gateway => true,
            RateBy::Default => self.is_of_world(),
            RateBy::Subscriber => false,
        }
    }

    /// What the flushes of a subscription's windows lie on a grid of.
    ///
    /// Windows of 50 ms on ticks of 20 ms would be flushed 60 and 40 ms apart, and 40 ms hold a
    /// single frame of a game server with 30 of them a second: one that is 7 ms late leaves a
    /// window empty. Who takes turns is served on time.
    pub(super) fn grain(&self, rate_by: RateBy, interval: i64) -> i64 {
        let tick = self.tick();
        if self.takes_turns(rate_by) { gcd(interval, tick) } else { tick }
    }

    /// The phase of a subscription to a cell or an entity whose rate the gateway chose, or nobody.
    ///
    /// Subscribers take turns, a tick each: all windows of one end at its turn, in all channels and
    /// at all rates, so that one write carries what they have for it; and no tick has to serve
    /// everybody. A channel flushes each rate [`TURNS`] times per interval, however many
    /// subscribers it has. Windows of long intervals end at one turn out of several, another one in
    /// each channel.
    pub(super) fn shared_phase(&self, conn: ConnId, interval: i64) -> i64 {
        let tick = self.tick();
        let turn = TURNS * tick;
        let turns = (interval / turn).max(1);
        let offset = i64::from(conn.0) % TURNS * tick + i64::from(self.id.0) % turns * turn;
        let created = i64::try_from(self.created.as_nanos()).unwrap_or(i64::MAX);
        phase(offset.saturating_sub(created), interval, tick)
    }

    pub(super) fn tick_at_or_after(&self, time: i64) -> i64 {
        let tick = self.tick();
        ceil_to(time.max(0), tick)
    }

    /// When the latest window of a subscription ended that has been flushed by now.
    pub(super) fn last_window(&self, key: u32, now: Instant, interval_ms: u32) -> i64 {
        let tick = self.tick();
        let (anchor, rate_by) = (self.subs[key as usize].anchor, self.subs[key as usize].rate_by);
        let interval = if interval_ms == 0 { tick } else { millis(interval_ms) };
        let grain = self.grain(rate_by, interval);
        let latest = self.time(now).div_euclid(grain) * grain;
        if latest <= anchor { anchor } else { anchor + (latest - anchor) / interval * interval }
    }
}

/// Ticks until a subscriber's turn comes again, where the gateway chose the rate.
const TURNS: i64 = 5;

pub(super) fn millis(value: u32) -> i64 {
    i64::from(value) * 1_000_000
}

pub(super) fn ceil_to(time: i64, step: i64) -> i64 {
    // Times reach 49 days of delay plus 49 of interval beyond 292 years at most; saturating keeps
    // the far end sane.
    time.saturating_add(step - 1).div_euclid(step).saturating_mul(step)
}

/// The phase that all anchors share whose windows are flushed at the same ticks.
pub(super) fn phase(anchor: i64, interval: i64, tick: i64) -> i64 {
    ceil_to(anchor, gcd(interval, tick)).rem_euclid(interval)
}

fn gcd(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
