//! Clock of a cache, so that a simulation can give it another one.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use throng_ddc::Timestamp;

/// Time as a store and its service read it.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Wall time, which is stored.
    fn now(&self) -> Timestamp;

    /// Time since a fixed moment; never goes back.
    fn elapsed(&self) -> Duration;

    /// Waits on the calling thread.
    fn sleep(&self, time: Duration);
}

/// Clock of the system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_unix_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
