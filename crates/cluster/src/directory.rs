//! One key of the directory, as a node sees it: the newest record, and the write that is to replace
//! it.

use std::time::Duration;

use throng_stdx::Instant;

use crate::cas::{Known, Noted, Pending, Verdict};
use crate::times::AGAIN;

/// Request that a key is waiting for.
pub(crate) enum Op {
    Read,
    Write { expected: u64, nonce: u64, value: Vec<u8> },
    Delete { expected: u64 },
}

/// A record of which a node writes.
pub(crate) trait Entry: Noted + Clone {
    /// Epoch or incarnation. It is unique only if it is behind the deletion of the record before.
    fn ordinal(&self) -> u64;
    fn bytes(&self) -> Vec<u8>;
}

/// DirectoryResult of a request about a key.
pub(crate) enum Reply<R> {
    Applied(u64),
    Refused,
    Found(u64, Known<R>),
    Unknown,
}

/// Consequence of a reply or a record for the write in flight.
#[derive(Debug)]
pub(crate) enum Decided<R, P> {
    /// Nothing is decided.
    Nothing,
    /// The write was applied.
    Applied(Pending<R, P>),
    /// Another write came first.
    Superseded,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot<R, P> {
    /// Revision of `known`; 0 if nothing was seen.
    pub(crate) revision: u64,
    pub(crate) known: Known<R>,
    /// Reading of the stopwatch when this revision was seen.
    pub(crate) since: Duration,
    /// Time at which this revision was seen.
    pub(crate) seen_at: Instant,
    pub(crate) pending: Option<Pending<R, P>>,
    /// Number of the request in flight. There is at most one per key.
    pub(crate) flight: Option<u64>,
    pub(crate) wants_read: bool,
    /// Earliest time of the next request.
    pub(crate) retry_at: Option<Instant>,
    /// Time at which the node considers the key again.
    pub(crate) wake: Option<Instant>,
}

impl<R: Entry, P: Copy> Slot<R, P> {
    pub(crate) fn new(now: Instant, reading: Duration) -> Slot<R, P> {
        Slot {
            revision: 0,
            known: Known::Absent,
            since: reading,
            seen_at: now,
            pending: None,
            flight: None,
            wants_read: false,
            retry_at: None,
            wake: None,
        }
    }

    /// Forgets the record, because the directory has lost writes.
    pub(crate) fn forget(&mut self) {
        self.revision = 0;
        self.known = Known::Absent;
        self.pending = None;
    }

    /// Returns whether no request is in flight or due.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_none() && self.flight.is_none() && !self.wants_read
    }

    /// Starts a write that replaces the record that was seen.
    pub(crate) fn submit(&mut self, now: Instant, value: Option<R>, purpose: P) {
        self.pending = Some(Pending { expected: self.revision, value, sent: now, purpose });
        self.retry_at = None;
    }

    /// The request to send now, if there is one.
    pub(crate) fn next_op(&mut self, now: Instant) -> Option<Op> {
        if self.flight.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        if self.wants_read {
            return Some(Op::Read);
        }
        let pending = self.pending.as_ref()?;
        Some(match &pending.value {
            Some(value) => {
                Op::Write { expected: pending.expected, nonce: value.nonce(), value: value.bytes() }
            }
            None => Op::Delete { expected: pending.expected },
        })
    }

    /// Takes a record from the watch or a read. Returns whether it is news.
    pub(crate) fn learn(&mut self, now: Instant, reading: Duration, revision: u64, known: Known<R>) -> bool {
        if revision <= self.revision {
            return false;
        }
        self.set(now, reading, revision, known);
        true
    }

    pub(crate) fn set(&mut self, now: Instant, reading: Duration, revision: u64, known: Known<R>) {
        (self.revision, self.known) = (revision, known);
        (self.since, self.seen_at) = (reading, now);
    }

    /// Weighs the write in flight against a record that was found. `is_renewal` writes may be based
    /// on any record of their own writer, and on none: no other process may write in between.
    pub(crate) fn weigh(&mut self, revision: u64, found: &Known<R>, is_renewal: bool) -> Decided<R, P> {
        let Some(pending) = &mut self.pending else { return Decided::Nothing };
        let verdict = pending.judge(revision, found);
        if verdict == Verdict::Applied {
            return self.pending.take().map_or(Decided::Nothing, Decided::Applied);
        }
        let value = pending.value.as_ref();
        // The base changes, the write does not: of all its attempts one is applied at most.
        let may_rebase = match found {
            Known::Absent => {
                let is_behind = value.is_some_and(|value| value.ordinal() >= revision);
                is_renewal || (is_behind && matches!(self.known, Known::Absent))
            }
            Known::Record(record) => {
                is_renewal && value.is_some_and(|value| value.nonce() >> 32 == record.nonce() >> 32)
            }
            Known::Foreign => false,
        };
        if may_rebase {
            pending.expected = revision;
            return Decided::Nothing;
        }
        if verdict == Verdict::Superseded {
            self.pending = None;
            return Decided::Superseded;
        }
        Decided::Nothing
    }

    /// Takes the reply to the request in flight. `nonce` is that of the request's write.
    pub(crate) fn reply(
        &mut self,
        now: Instant,
        reading: Duration,
        nonce: Option<u64>,
        reply: Reply<R>,
        is_renewal: bool,
    ) -> Decided<R, P> {
        self.flight = None;
        let is_current =
            |pending: &Pending<R, P>| nonce == Some(pending.value.as_ref().map_or(0, |value| value.nonce()));
        match reply {
            Reply::Applied(revision) => {
                let Some(pending) = self.pending.take_if(|pending| is_current(pending)) else {
                    // A write that was superseded before its reply came: the watch shows by what.
                    return Decided::Nothing;
                };
                let known = pending.value.clone().map_or(Known::Absent, Known::Record);
                self.learn(now, reading, revision, known);
                Decided::Applied(pending)
            }
            Reply::Refused => {
                self.wants_read |= self.pending.is_some();
                Decided::Nothing
            }
            Reply::Unknown => {
                self.retry_at = Some(now + AGAIN);
                Decided::Nothing
            }
            Reply::Found(revision, known) => {
                self.wants_read = false;
                self.retry_at = Some(now + AGAIN);
                let decided = self.weigh(revision, &known, is_renewal);
                self.learn(now, reading, revision, known);
                decided
            }
        }
    }
}
