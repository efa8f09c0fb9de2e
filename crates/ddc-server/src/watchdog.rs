//! Time limits of connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A time limit that is moved with every request and looked at only when it could have passed:
/// moving it costs no more than reading the clock.
pub(crate) struct Watchdog {
    due: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Watchdog {
    pub(crate) fn new(time: Duration) -> Watchdog {
        let due = Instant::now() + time;
        Watchdog { due, sleep: Box::pin(sleep_until(due)) }
    }

    /// From now on there is this much time.
    pub(crate) fn within(&mut self, time: Duration) {
        self.until(Instant::now() + time);
    }

    /// There is time until `due`.
    pub(crate) fn until(&mut self, due: Instant) {
        self.due = due;
        if self.due < self.sleep.deadline() {
            self.sleep.as_mut().reset(self.due);
        }
    }

    /// Ends with [`io::ErrorKind::TimedOut`].
    pub(crate) fn poll<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        loop {
            if self.sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= self.due {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.sleep.as_mut().reset(self.due);
        }
    }
}
