//! The real clock. Cores receive the time as an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_stdx::Instant;

use crate::sys;

/// Monotonic time since the process (rather: this clock) was started, and the wall time of that
/// moment. It goes on while the machine sleeps (`CLOCK_BOOTTIME`), so that what ends by the wall
/// clock ends here as well.
///
/// Copies agree with each other, so one clock made at start-up serves every thread.
///
/// ```
/// let clock = throng_net::Clock::start();
/// let before = clock.now();
/// assert!(clock.now() >= before);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base_ns: u64,
    unix_start_ns: u64,
}

impl Clock {
    /// Starts a clock at [`Instant::ZERO`].
    pub fn start() -> Self {
        // A wall clock before 1970 is a broken machine; zero keeps every later sum meaningful.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self {
            base_ns: sys::boot_time_ns(),
            unix_start_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Time since the start. Never goes back; costs one system clock read.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(sys::boot_time_ns().saturating_sub(self.base_ns))
    }

    /// The clock as a process reads it that was stopped for `by` just now.
    #[must_use]
    pub fn ahead(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self { base_ns: self.base_ns.saturating_sub(by), ..self }
    }

    /// Wall time of the start in nanoseconds since 1970 (UTC); later jumps of the wall clock do not
    /// change it.
    pub fn unix_start_ns(&self) -> u64 {
        self.unix_start_ns
    }
}
