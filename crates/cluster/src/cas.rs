//! Parts that all leases share: writes by compare-and-set whose outcome may be unknown, and a clock
//! that counts only while the directory answers.

use std::time::Duration;

use throng_stdx::Instant;

use crate::times::ANSWERED;

/// Content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known<R> {
    /// There is no record.
    Absent,
    /// There is a record that this release cannot read. It is left alone.
    Foreign,
    /// The record.
    Record(R),
}

impl<R> Known<R> {
    /// The content of a key with this value. A value that cannot be read is foreign.
    pub(crate) fn parse(value: Option<&[u8]>, parse: fn(&[u8]) -> Result<R, String>) -> Known<R> {
        match value.map(parse) {
            None => Known::Absent,
            Some(Ok(record)) => Known::Record(record),
            Some(Err(_)) => Known::Foreign,
        }
    }

    pub(crate) fn record(&self) -> Option<&R> {
        match self {
            Known::Record(record) => Some(record),
            Known::Absent | Known::Foreign => None,
        }
    }
}

/// A record whose writes can be told apart.
pub(crate) trait Noted {
    /// Number of this write.
    fn nonce(&self) -> u64;
}

/// A write that is not decided: in flight, or to be sent again unchanged.
///
/// A write without an answer may still be applied, so another write to the same key could be
/// applied beside it, and a read in between proves nothing. It is sent again, with the same nonce,
/// until it succeeds or is refused; [`Pending::judge`] reads a refusal.
#[derive(Clone, Debug)]
pub(crate) struct Pending<R, P> {
    /// Revision that is replaced; 0: there is no record.
    pub(crate) expected: u64,
    /// The new value; `None` deletes the record.
    pub(crate) value: Option<R>,
    /// Time of the first attempt. It counts, because any attempt may be the one that was applied.
    pub(crate) sent: Instant,
    pub(crate) purpose: P,
}

/// Meaning of the record that a writer reads after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// An earlier attempt of this write had succeeded.
    Applied,
    /// The record is still the expected one: send again.
    Again,
    /// The record is older than the expected one. Reads may be some seconds old, so this proves
    /// nothing; or the directory has lost writes.
    Older,
    /// Another write came first.
    Superseded,
}

impl<R: Noted, P> Pending<R, P> {
    pub(crate) fn judge(&self, revision: u64, found: &Known<R>) -> Verdict {
        let is_this = match (&self.value, found) {
            (Some(value), Known::Record(record)) => value.nonce() == record.nonce(),
            (None, Known::Absent) => true,
            _ => false,
        };
        if is_this {
            return Verdict::Applied;
        }
        match revision.cmp(&self.expected) {
            std::cmp::Ordering::Less => Verdict::Older,
            std::cmp::Ordering::Equal => Verdict::Again,
            std::cmp::Ordering::Greater => Verdict::Superseded,
        }
    }
}

/// Clock of an observer that runs only while the directory is known to answer it. A record has
/// been silent for the difference of two readings.
///
/// While the directory is away from all nodes, none of them counts, so its return costs no lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    counted: Duration,
    advanced: Instant,
    /// Time at which the latest answered request was sent.
    answered: Option<Instant>,
}

impl Stopwatch {
    pub(crate) fn new(now: Instant) -> Stopwatch {
        Stopwatch { counted: Duration::ZERO, advanced: now, answered: None }
    }

    /// Counts the time up to `now` as far as it may be counted, and returns the reading.
    pub(crate) fn advance(&mut self, now: Instant) -> Duration {
        if let Some(answered) = self.answered {
            self.counted += now.min(answered + ANSWERED).since(self.advanced);
        }
        self.advanced = self.advanced.max(now);
        self.counted
    }

    /// A request that was sent at `sent` was answered.
    pub(crate) fn answered(&mut self, sent: Instant) {
        self.answered = self.answered.max(Some(sent));
    }

    /// Returns whether time counts at `now`.
    pub(crate) fn runs(&self, now: Instant) -> bool {
        self.answered.is_some_and(|answered| now.since(answered) < ANSWERED)
    }

    /// Time up to which it was advanced.
    pub(crate) fn last(&self) -> Instant {
        self.advanced
    }

    pub(crate) fn reading(&self) -> Duration {
        self.counted
    }
}
