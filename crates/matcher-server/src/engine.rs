//! A shard of the matcher and its part of the journal as one: what changes the state is logged before anybody hears of it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use throng_matcher::record::{Input, write_record_of};
use throng_matcher::{Answered, Caller, Handled, Mail, Matcher, Notices, Verdict};
use throng_wire::matcher::{Method, method};

use crate::journal::Journal;
use crate::policy::{Asked, Policies};
use crate::trials::Trials;

/// Where inputs are written before they have an effect that anybody sees.
pub(crate) enum Log {
    /// Nowhere: a restart begins empty.
    None,
    /// To the journal of the only shard.
    Own(Journal),
    /// To a journal that shards write to in turns, whole batches of each, so that whatever one shard was told by another
    /// stands behind what made the other say it.
    Shared { shard: u8, records: Vec<u8>, journal: Arc<Mutex<Journal>> },
}

impl Log {
    fn append(&mut self, now: u64, input: Input<'_>) {
        match self {
            Log::None => {}
            Log::Own(journal) => journal.append(now, input),
            Log::Shared { shard, records, .. } => write_record_of(*shard, records, 0, now, input),
        }
    }

    fn commit(&mut self, now: u64) -> io::Result<u64> {
        match self {
            Log::None => Ok(0),
            Log::Own(journal) => commit(journal, now),
            Log::Shared { records, journal, .. } => {
                let mut journal = lock(journal);
                journal.append_records(records);
                commit(&mut journal, now)
            }
        }
    }
}

fn commit(journal: &mut Journal, now: u64) -> io::Result<u64> {
    if journal.has_failed() {
        return Err(io::Error::other("the journal cannot be flushed"));
    }
    let mark = journal.commit(now)?;
    Ok(if journal.holds_answers() { mark } else { 0 })
}

/// A lock that outlives a thread that panicked: that one ends the service.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One shard, or the only one.
pub(crate) struct Engine {
    pub(crate) matcher: Matcher,
    pub(crate) log: Log,
    pub(crate) notices: Notices,
    pub(crate) policies: Policies,
    pub(crate) trials: Trials,
    /// Its number, and how many there are.
    pub(crate) shard: (u16, u16),
}

impl Engine {
    /// Executes a request; its answer may leave after [`commit`](Engine::commit).
    #[inline]
    pub(crate) fn request(
        &mut self,
        now: u64,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Handled {
        if number == Method::TRY_QUEUE {
            return self.trials.begin((&self.matcher, now), caller, body, answer);
        }
        if method(number).is_some_and(|method| method.mutates) {
            let input = Input::Request { srv: caller.srv, scope: caller.scope, method: number, body };
            self.log.append(now, input);
        }
        self.matcher.handle(now, caller, number, body, answer, &mut self.notices)
    }

    pub(crate) fn session(&mut self, now: u64, srv: &str, up: bool) -> u32 {
        self.log.append(now, Input::Session { srv, up });
        self.matcher.handle_session(now, srv, up, &mut self.notices)
    }

    /// Mail of another shard.
    pub(crate) fn mail(&mut self, now: u64, from: u16, mail: Mail) {
        self.log.append(now, Input::Mail { from: from as u8 });
        self.matcher.handle_mail(now, from, mail, &mut self.notices);
    }

    /// A request that had to wait is answered.
    pub(crate) fn poll_answered(&mut self) -> Option<Answered> {
        self.matcher.poll_answered().or_else(|| self.trials.poll())
    }

    /// When there is something to do, in ms since the epoch.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        if self.trials.is_copying() { Some(0) } else { self.matcher.next_timeout() }
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self, now: u64) {
        self.trials.copy(&self.matcher);
        if self.matcher.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        self.log.append(now, Input::Timeout);
        let began = Instant::now();
        self.matcher.handle_timeout(now, &mut self.notices);
        self.matcher.note_time(began.elapsed());
    }

    /// A policy has answered, or cannot. `id` is the shard's own number of the question.
    pub(crate) fn verdict(&mut self, now: u64, id: u64, verdict: Option<&Verdict>) {
        let encoded = verdict.map(Verdict::to_bytes);
        self.log.append(now, Input::Verdict { id, verdict: encoded.as_deref() });
        self.matcher.handle_verdict(now, id, verdict, &mut self.notices);
    }

    /// Puts open questions to their policies; those that answer at once have their say now.
    pub(crate) fn ask_policies(&mut self, now: u64) {
        while let Some(mut question) = self.matcher.poll_question() {
            let id = question.id;
            let (shard, count) = self.shard;
            // A verdict that comes later says by it whose question it answers.
            question.id = id * u64::from(count) + u64::from(shard);
            let asked = self.policies.ask(&question);
            match asked {
                _ if !question.waits => {}
                Asked::Now(verdict) => self.verdict(now, id, Some(&verdict)),
                Asked::Nobody => self.verdict(now, id, None),
                Asked::Later => {}
            }
        }
    }

    /// Writes the batch to the journal. Returns the mark whose durability its answers wait for; 0 for no wait.
    pub(crate) fn commit(&mut self, now: u64) -> io::Result<u64> {
        self.log.commit(now)
    }

    /// Writes a snapshot if the journal is of that opinion. Of several shards that is the business of who has them all.
    pub(crate) fn snapshot(&mut self, now: u64, wants: fn(&Journal) -> bool) {
        if let Log::Own(journal) = &mut self.log
            && wants(journal)
            && self.matcher.next_timeout().is_none_or(|at| at > now)
        {
            journal.snapshot(self.matcher.snapshot());
        }
    }
}
