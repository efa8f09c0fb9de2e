//! The space that the folder may count on: a shortage of some minutes does not count.

use std::time::Duration;

/// Duration of a shortage of disk space, at least, before the folder shrinks: what another program
/// needs for some minutes costs no refs.
const WINDOW: Duration = Duration::from_secs(300);

/// Largest of the values of the last [`WINDOW`] or, depending on when it is asked, of up to
/// twice that time.
#[derive(Debug, Default)]
pub(crate) struct RecentMax {
    since: Duration,
    /// Since then.
    largest: u64,
    /// In the [`WINDOW`] before.
    before: u64,
}

impl RecentMax {
    /// Adds the value of a moment. Returns the largest.
    pub(crate) fn with(&mut self, value: u64, now: Duration) -> u64 {
        let age = now.saturating_sub(self.since);
        if age >= WINDOW {
            let before = if age < 2 * WINDOW { self.largest } else { 0 };
            *self = RecentMax { since: now, largest: 0, before };
        }
        self.largest = self.largest.max(value);
        self.largest.max(self.before)
    }
}
