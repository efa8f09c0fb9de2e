//! Requests to the directory; and one key of it, as a node sees it: the newest record, and the
//! write that is to replace it.

use std::time::Duration;

use throng_stdx::Instant;

use crate::cas::{Known, Noted, Pending, Verdict};
use crate::name::Key;
use crate::times::AGAIN;

/// Number of a request to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Request to the directory. The driver answers each once, by
/// [`Node::handle_result`](crate::Node::handle_result), after 2 s at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRequest {
    /// Number of the request.
    pub id: RequestId,
    /// Key that it is about.
    pub key: Key,
    /// The request.
    pub action: Action,
}

/// Kind of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the record through the leader.
    Read,
    /// Write this value if the key is at revision `expected`; 0: if there is no record and no mark
    /// of a deletion.
    Write {
        /// Revision that is replaced.
        expected: u64,
        /// The new value.
        value: Vec<u8>,
    },
    /// Delete the record if the key is at revision `expected`, leaving a mark for an hour.
    Delete {
        /// Revision that is replaced.
        expected: u64,
    },
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryResult {
    /// The write or deletion was applied, at this revision.
    Applied(u64),
    /// The key is at another revision, so the write was not applied.
    Refused,
    /// The answer to a read: the revision of the key and its value. A deleted key has the revision
    /// of its mark and no value, a key without record and mark has revision 0.
    Found {
        /// Revision of the record or of the mark.
        revision: u64,
        /// The value, if there is one.
        value: Option<Vec<u8>>,
    },
    /// No answer, or one that says nothing about the outcome (time-out, no responders, error 10164
    /// of JetStream). A write may still be applied.
    Unknown,
}

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
    fn parse(bytes: &[u8]) -> Result<Self, String>;
    fn set_nonce(&mut self, nonce: u64);
}

/// Meaning of a write without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It may have been applied, or may be applied later.
    Open,
    /// A defect: it was not applied.
    Failure,
    /// A defect: it was applied.
    Success,
    /// A defect: it is sent again with this nonce.
    Renumber(u64),
}

/// Consequence of a result or a record for the write in flight.
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

    /// Takes the result of the request in flight. `nonce` is that of the request's write, if it was
    /// one.
    pub(crate) fn handle_result(
        &mut self,
        now: Instant,
        reading: Duration,
        nonce: Option<u64>,
        result: DirectoryResult,
        silence: Silence,
        is_renewal: bool,
    ) -> Decided<R, P> {
        self.flight = None;
        match result {
            DirectoryResult::Applied(revision) => self.applied(now, reading, nonce, revision),
            DirectoryResult::Refused => {
                self.wants_read |= self.pending.is_some();
                Decided::Nothing
            }
            DirectoryResult::Unknown => {
                self.retry_at = Some(now + AGAIN);
                match silence {
                    Silence::Failure if nonce.is_some() => self.pending = None,
                    Silence::Success if nonce.is_some() => {
                        return self.applied(now, reading, nonce, self.revision);
                    }
                    Silence::Renumber(nonce) => {
                        let value = self.pending.as_mut().and_then(|pending| pending.value.as_mut());
                        value.into_iter().for_each(|value| value.set_nonce(nonce));
                    }
                    Silence::Open | Silence::Failure | Silence::Success => {}
                }
                Decided::Nothing
            }
            DirectoryResult::Found { revision, value } => {
                let known = Known::parse(value.as_deref(), R::parse);
                self.wants_read = false;
                self.retry_at = Some(now + AGAIN);
                let decided = self.weigh(revision, &known, is_renewal);
                self.learn(now, reading, revision, known);
                decided
            }
        }
    }

    /// A write with this nonce was applied.
    fn applied(
        &mut self,
        now: Instant,
        reading: Duration,
        nonce: Option<u64>,
        revision: u64,
    ) -> Decided<R, P> {
        let is_current =
            |pending: &Pending<R, P>| nonce == Some(pending.value.as_ref().map_or(0, |value| value.nonce()));
        let Some(pending) = self.pending.take_if(|pending| is_current(pending)) else {
            // A write that was superseded before its result came: the watch shows by what.
            return Decided::Nothing;
        };
        let known = pending.value.clone().map_or(Known::Absent, Known::Record);
        self.learn(now, reading, revision, known);
        Decided::Applied(pending)
    }
}
