//! The state machine of one process and one area.

use std::collections::VecDeque;
use std::time::Duration;

use throng_stdx::Instant;

use crate::cas::{Known, Noted, Pending, Stopwatch, Verdict};
use crate::record::{Identity, Record, State, Takeover};
use crate::times::{AGAIN, FREEZE, LOSS, RENEWAL};

/// Request to the directory. A write is a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read the record through the leader.
    Read,
    /// Write `record` if the key is at revision `expected`; 0: if there is none.
    Write {
        /// Revision that is replaced.
        expected: u64,
        /// The new value.
        record: Record,
    },
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The write was applied, at this revision.
    At(u64),
    /// The key is at another revision.
    Refused,
    /// No response: the write may still be applied.
    Unknown,
}

/// Change that the process must act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This process holds the lease now.
    Granted {
        /// Epoch of this lease.
        epoch: u64,
        /// True if the previous holder's state is given up and this process starts with an empty
        /// state.
        empty: bool,
    },
    /// Another process has taken the lease; the state of this process is obsolete.
    Deposed {
        /// The current record, if known.
        by: Option<Record>,
    },
    /// Another process holds the lease, or was the last holder.
    Waits {
        /// Its record.
        record: Record,
    },
}

impl Noted for Record {
    fn nonce(&self) -> u64 {
        self.nonce
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Renew,
    Take { epoch: u64, empty: bool },
    MarkLost,
    Claim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Waiting,
    Holding { revision: u64, renewed: Instant },
}

/// Record of another process, or revision 0 for none, and the reading of the stopwatch since which
/// it is unchanged.
#[derive(Clone, Copy, Debug)]
struct Observed {
    revision: u64,
    since: Duration,
}

/// The lease of one area, as one process sees it.
#[derive(Debug)]
pub struct Lease {
    own: Identity,
    takeover: Takeover,
    role: Role,
    epoch: u64,
    nonce: u64,
    observed: Option<Observed>,
    /// The record that this process saw or wrote last. The area is new only if there never was one.
    known: Option<Record>,
    /// Runs while reads are answered.
    stopwatch: Stopwatch,
    /// Holder that was reported last, so that each is reported once.
    told: Option<(String, State)>,
    write: Option<Pending<Record, Purpose>>,
    /// Time at which the request in flight was sent; `None` without one.
    under_way: Option<Instant>,
    /// Time when the next request is due.
    due: Instant,
    /// A write was refused, so the record must be read before the next one.
    must_read: bool,
    requests: VecDeque<Request>,
    events: VecDeque<Event>,
}

impl Lease {
    /// Creates the lease of a process that wants to serve. `seed` makes its writes distinct from
    /// those of all other processes.
    #[must_use]
    pub fn new(own: Identity, takeover: Takeover, seed: u64, now: Instant) -> Lease {
        Lease {
            own,
            takeover,
            role: Role::Waiting,
            epoch: 0,
            nonce: seed,
            observed: None,
            known: None,
            stopwatch: Stopwatch::new(now),
            told: None,
            write: None,
            under_way: None,
            due: now,
            must_read: false,
            requests: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Restores the record that an earlier life of this process saw last. A directory that has no
    /// record or an older one has lost it.
    pub fn remember(&mut self, record: Record) {
        self.known = Some(record);
    }

    /// The record that this process saw or wrote last.
    #[must_use]
    pub fn known(&self) -> Option<&Record> {
        self.known.as_ref()
    }

    /// Returns whether this process may serve at `now`.
    #[must_use]
    pub fn is_serving(&self, now: Instant) -> bool {
        self.serves_until().is_some_and(|until| now <= until)
    }

    /// Time until which this process may serve without another renewal; `None` while it does not
    /// hold the lease.
    #[must_use]
    pub fn serves_until(&self) -> Option<Instant> {
        match self.role {
            Role::Holding { renewed, .. } => Some(renewed + FREEZE),
            Role::Waiting => None,
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.under_way.is_some() || now < self.due {
            return;
        }
        let write = self.write.as_ref().filter(|_| !self.must_read);
        if let Some((expected, record)) = write.and_then(|write| Some((write.expected, write.value.clone()?)))
        {
            // Unchanged, whichever outcome the attempts before had.
            self.requests.push_back(Request::Write { expected, record });
        } else if let Role::Holding { revision, .. } = self.role
            && !self.must_read
        {
            let record = self.record(self.epoch, State::Serving);
            self.send_write(now, revision, record, Purpose::Renew);
            return;
        } else {
            self.requests.push_back(Request::Read);
        }
        self.under_way = Some(now);
    }

    /// Time when [`handle_timeout`](Lease::handle_timeout) has work; `None` while a request is
    /// in flight.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.under_way.is_none().then_some(self.due)
    }

    /// The next request to the directory.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// The next change.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes the result of a write.
    pub fn handle_write(&mut self, now: Instant, written: Written) {
        if self.under_way.take().is_none() {
            return;
        }
        match written {
            Written::At(revision) => self.succeeded(revision),
            Written::Unknown => self.due = now + AGAIN,
            Written::Refused => {
                self.must_read = true;
                self.due = now;
            }
        }
    }

    /// Takes the result of a read: the record and its revision, `None` if there is none, or an
    /// error without a response.
    pub fn handle_read(&mut self, now: Instant, answer: Result<Option<(u64, Record)>, ()>) {
        let Some(sent) = self.under_way.take() else { return };
        let Ok(found) = answer else {
            self.due = now + AGAIN;
            return;
        };
        self.must_read = false;
        if let Some(write) = &self.write {
            let (revision, known) = match &found {
                Some((revision, record)) => (*revision, Known::Record(record.clone())),
                None => (0, Known::Absent),
            };
            match write.judge(revision, &known) {
                Verdict::Applied => return self.succeeded(revision),
                Verdict::Again => {
                    self.due = now;
                    return;
                }
                Verdict::Older | Verdict::Superseded => self.write = None,
            }
        }
        if let Role::Holding { .. } = self.role {
            self.role = Role::Waiting;
            (self.observed, self.told) = (None, None);
            let by = found.as_ref().map(|(_, record)| record).filter(|record| !self.is_outdated(record));
            self.events.push_back(Event::Deposed { by: by.cloned() });
        }
        self.look(now, sent, found);
    }

    /// A waiting process has seen the record.
    fn look(&mut self, now: Instant, sent: Instant, found: Option<(u64, Record)>) {
        self.due = sent + RENEWAL;
        let reading = self.stopwatch.advance(now);
        self.stopwatch.answered(sent);
        let Some((revision, record)) = found else { return self.look_at_none(now, reading) };
        // An older revision may come from a follower that lags; but the epoch grows when a record
        // that the directory has lost is made again.
        let is_later = self.known.as_ref().is_none_or(|known| known.epoch < record.epoch);
        if self.observed.is_some_and(|seen| revision < seen.revision) && !is_later {
            return;
        }
        if self.is_outdated(&record) {
            return self.claim(now, revision);
        }
        self.known = Some(record.clone());
        let unchanged = self.observe(revision, reading);
        let is_own = record.journal == self.own.journal;
        let is_restart = is_own && record.machine == self.own.machine;
        let take = match record.state {
            State::Given => Some(!is_own),
            State::Lost => (is_own || self.takeover == Takeover::Empty).then_some(!is_own),
            // The old process is dead: this one has the folder's lock.
            State::Serving if is_restart => Some(false),
            State::Serving if unchanged >= LOSS && is_own => Some(false),
            State::Serving if unchanged >= LOSS => {
                let mut lost = record;
                self.nonce = self.nonce.wrapping_add(1);
                (lost.state, lost.nonce) = (State::Lost, self.nonce);
                return self.send_write(now, revision, lost, Purpose::MarkLost);
            }
            State::Serving => None,
        };
        if let Some(empty) = take {
            let epoch = record.epoch.saturating_add(1);
            let next = self.record(epoch, State::Serving);
            return self.send_write(now, revision, next, Purpose::Take { epoch, empty });
        }
        self.tell_of(record);
    }

    /// There is no record: the area is new, or the directory has lost its data.
    fn look_at_none(&mut self, now: Instant, reading: Duration) {
        let absent = self.observe(0, reading);
        let known = self.known.clone();
        let epoch = known.as_ref().map_or(0, |known| known.epoch).saturating_add(1);
        // The one who served last has the state; it makes its record again.
        match known.filter(|known| !self.is_own(known)) {
            None => {
                let record = self.record(epoch, State::Serving);
                self.send_write(now, 0, record, Purpose::Take { epoch, empty: false });
            }
            // It has not: its record is made for it, so that the same rules hold as for any other.
            Some(mut lost) if absent >= LOSS => {
                self.nonce = self.nonce.wrapping_add(1);
                (lost.epoch, lost.nonce) = (epoch, self.nonce);
                if lost.state == State::Serving {
                    lost.state = State::Lost;
                }
                self.send_write(now, 0, lost, Purpose::MarkLost);
            }
            Some(record) => self.tell_of(record),
        }
    }

    /// Returns whether a record is that of this process, or of its life before on this machine.
    fn is_own(&self, record: &Record) -> bool {
        record.incarnation == self.own.incarnation
            || (record.journal == self.own.journal && record.machine == self.own.machine)
    }

    /// Returns whether a record of another process is older than the lease that this one held last:
    /// the directory has lost that lease, and a process that knew less of it came first.
    fn is_outdated(&self, record: &Record) -> bool {
        let last = self.known.as_ref().filter(|known| self.is_own(known));
        last.is_some_and(|last| record.epoch <= last.epoch) && record.journal != self.own.journal
    }

    /// Takes the area back from the writer of an outdated record. The new record names no machine,
    /// so its lease is waited out like that of a copied folder: until then the other may serve.
    fn claim(&mut self, now: Instant, revision: u64) {
        let epoch = self.known.as_ref().map_or(0, |known| known.epoch).saturating_add(1);
        let mut claimed = self.record(epoch, State::Serving);
        claimed.machine.clear();
        self.send_write(now, revision, claimed, Purpose::Claim);
    }

    /// Reports the process that this one waits for, once.
    fn tell_of(&mut self, record: Record) {
        let told = (record.incarnation.clone(), record.state);
        if self.told.as_ref() != Some(&told) {
            self.told = Some(told);
            self.events.push_back(Event::Waits { record });
        }
    }

    /// Notes the revision that was read, and returns how long it has been that one.
    fn observe(&mut self, revision: u64, reading: Duration) -> Duration {
        match &mut self.observed {
            Some(seen) if revision == seen.revision => reading.saturating_sub(seen.since),
            seen => {
                *seen = Some(Observed { revision, since: reading });
                Duration::ZERO
            }
        }
    }

    fn record(&mut self, epoch: u64, state: State) -> Record {
        self.nonce = self.nonce.wrapping_add(1);
        Record {
            epoch,
            incarnation: self.own.incarnation.clone(),
            journal: self.own.journal.clone(),
            machine: self.own.machine.clone(),
            addresses: self.own.addresses.clone(),
            state,
            nonce: self.nonce,
        }
    }

    fn send_write(&mut self, now: Instant, expected: u64, record: Record, purpose: Purpose) {
        self.requests.push_back(Request::Write { expected, record: record.clone() });
        self.write = Some(Pending { expected, value: Some(record), sent: now, purpose });
        self.under_way = Some(now);
    }

    fn succeeded(&mut self, revision: u64) {
        let Some(write) = self.write.take() else { return };
        self.due = write.sent + RENEWAL;
        self.known = write.value;
        match write.purpose {
            Purpose::Renew => self.role = Role::Holding { revision, renewed: write.sent },
            Purpose::Take { epoch, empty } => {
                self.epoch = epoch;
                self.role = Role::Holding { revision, renewed: write.sent };
                self.events.push_back(Event::Granted { epoch: self.epoch, empty });
            }
            Purpose::MarkLost | Purpose::Claim => {
                self.observed = None;
                self.due = write.sent;
            }
        }
    }
}
