//! Turns of maintenance on a processor.

use std::time::{Duration, Instant};

/// Time for which maintenance computes before it lets other threads run.
///
/// Linux protects a running thread for a slice of 1.4 ms and more, up to a tick of 4 ms, whatever
/// its priority: a thread that a request wakes on this processor waits for the end of it, and a
/// request wakes several. In a model of two threads on one processor, nine of ten waits took 0.1 ms
/// instead of 0.2 to 1.4 ms; the effect on a server's uploads is not measured.
const TURN: Duration = Duration::from_micros(100);

/// Turn of maintenance on a processor.
pub(crate) struct Turn {
    began: Instant,
}

impl Turn {
    pub(crate) fn begin() -> Turn {
        Turn { began: Instant::now() }
    }

    /// Lets other threads run if this one has computed for long enough, unless it `is_urgent`: on a
    /// busy processor, a thread that gives way gets less of it.
    pub(crate) fn give_way(&mut self, is_urgent: impl FnOnce() -> bool) {
        if self.began.elapsed() < TURN {
            return;
        }
        if !is_urgent() {
            std::thread::yield_now();
        }
        self.began = Instant::now();
    }
}
