//! The permission to serve.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use throng_stdx::Instant;

/// A matcher that stood still for longer than this answers what has queued up with `UNAVAILABLE`,
const STALL: Duration = Duration::from_secs(1);
/// as far as it arrives within this time: what waits in sockets is read in some rounds.
const STALLED_FOR: Duration = Duration::from_millis(250);

/// Time since the machine started, suspended time included.
pub(crate) fn boot_time() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The permission to serve, which a lease gives and takes. Without one the matcher always serves.
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gate(Option<Arc<Leased>>);

#[derive(Debug, Default)]
struct Leased {
    /// Boot time in ns until which it serves; 0: it does not.
    until: AtomicU64,
    /// Why it does not, for people.
    why: Mutex<String>,
}

impl Gate {
    /// A gate that is closed until a lease is held.
    #[must_use]
    pub fn leased() -> Gate {
        let gate = Gate(Some(Arc::default()));
        gate.close("the server of the area is not known yet");
        gate
    }

    /// Why this matcher does not serve, for people; `None` while it does.
    #[must_use]
    pub fn why_closed(&self) -> Option<String> {
        let leased = self.0.as_ref().filter(|_| !self.is_open(boot_time()))?;
        Some(leased.why.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.0.as_ref().is_none_or(|leased| now.as_nanos() < leased.until.load(Ordering::Acquire))
    }

    /// Serves until a boot time.
    #[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "only a bus has leases"))]
    pub(crate) fn open_until(&self, until: Option<Instant>) {
        if let Some(leased) = &self.0 {
            leased.until.store(until.map_or(0, Instant::as_nanos), Ordering::Release);
        }
    }

    /// Says why it is closed when it is.
    pub(crate) fn close(&self, why: &str) {
        if let Some(leased) = &self.0 {
            why.clone_into(&mut leased.why.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// The gate as the matcher's thread passes it, once a round.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) gate: Gate,
    /// Boot time at which the clock of the matcher's thread is zero.
    start: Instant,
    /// Time when the last round began.
    last: Instant,
    /// Requests that arrive before this had queued up while the process stood still.
    stalled_until: Instant,
    /// State of the gate in this round.
    pub(crate) is_open: bool,
}

impl Guard {
    pub(crate) fn new(gate: Gate, start: Instant) -> Guard {
        let is_open = gate.is_open(start);
        Guard { gate, start, last: start, stalled_until: Instant::ZERO, is_open }
    }

    /// A round begins at `now` by the clock of the matcher's thread: whether it may serve.
    pub(crate) fn pass(&mut self, now: Instant) {
        if self.gate.0.is_none() {
            return;
        }
        let now = self.start + now.since(Instant::ZERO);
        if now.since(self.last) > STALL {
            self.stalled_until = now + STALLED_FOR;
        }
        self.last = now;
        self.is_open = now >= self.stalled_until && self.gate.is_open(now);
    }
}
