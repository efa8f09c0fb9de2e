//! The matcher with its journal: every change is logged before its response or notification is
//! sent.

use std::io;
use std::time::Instant;

use throng_matcher::record::Input;
use throng_matcher::{Answered, Caller, Handled, Matcher, Notices, ServerNumber, Verdict, WallMs};
use throng_wire::matcher::{Method, method};

use crate::Report;
use crate::hub::{MODES_REPORTED, QUEUES_REPORTED};
use crate::journal::{Journal, no_flushes};
use crate::policy::{Policies, PolicyAnswer};
use crate::trials::Trials;

/// The state machine with what its inputs and outputs need.
pub(crate) struct Engine {
    pub(crate) matcher: Matcher,
    /// Inputs are written here before they have an effect that anybody sees; `None`: a restart
    /// begins empty.
    pub(crate) journal: Option<Journal>,
    pub(crate) notices: Notices,
    pub(crate) policies: Policies,
    pub(crate) trials: Trials,
}

impl Engine {
    fn append(&mut self, now: u64, input: Input<'_>) {
        if let Some(journal) = &mut self.journal {
            journal.append(now, input);
        }
    }

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
            self.append(now, input);
        }
        self.matcher.handle(WallMs(now), caller, number, body, answer, &mut self.notices)
    }

    pub(crate) fn session(&mut self, now: u64, srv: &str, up: bool) -> ServerNumber {
        self.append(now, Input::Session { srv, up });
        self.matcher.handle_session(WallMs(now), srv, up, &mut self.notices)
    }

    /// A request that had to wait is answered.
    pub(crate) fn poll_answered(&mut self) -> Option<Answered> {
        self.matcher.poll_answered().or_else(|| self.trials.poll())
    }

    /// Time when there is something to do, in ms since the epoch.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        if self.trials.is_copying() { Some(0) } else { self.matcher.next_timeout().map(|at| at.0) }
    }

    /// Begins anew with an empty state. The log says so, so that a replay does too.
    #[cfg(feature = "nats")]
    pub(crate) fn begin_empty(&mut self, now: u64) {
        let (secret, config) = (self.matcher.next_secret(), self.matcher.config().clone());
        self.append(now, Input::Begin { secret });
        self.append(now, Input::Configure(&crate::journal::config_json(&config)));
        self.matcher = Matcher::new(config, secret, WallMs(now));
        self.notices.clear();
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self, now: u64) {
        self.trials.copy(&self.matcher);
        if self.matcher.next_timeout().is_none_or(|at| at > WallMs(now)) {
            return;
        }
        self.append(now, Input::Timeout);
        let began = Instant::now();
        self.matcher.handle_timeout(WallMs(now), &mut self.notices);
        self.matcher.note_time(began.elapsed());
    }

    /// A policy has answered, or cannot.
    pub(crate) fn verdict(&mut self, now: u64, id: u64, verdict: Option<&Verdict>) {
        let encoded = verdict.map(Verdict::to_bytes);
        self.append(now, Input::Verdict { id, verdict: encoded.as_deref() });
        self.matcher.handle_verdict(WallMs(now), id, verdict, &mut self.notices);
    }

    /// Puts open questions to their policies; those that answer at once have their say now.
    pub(crate) fn ask_policies(&mut self, now: u64) {
        while let Some(question) = self.matcher.poll_question() {
            let id = question.id;
            match self.policies.ask(&question) {
                _ if !question.waits => {}
                PolicyAnswer::Now(verdict) => self.verdict(now, id, Some(&verdict)),
                PolicyAnswer::Nobody => self.verdict(now, id, None),
                PolicyAnswer::Later => {}
            }
        }
    }

    /// Writes the batch to the journal, and a snapshot where one pays. Returns the mark whose
    /// durability its answers wait for; 0 for no wait.
    pub(crate) fn commit(&mut self, now: u64) -> io::Result<u64> {
        let Some(journal) = &mut self.journal else { return Ok(0) };
        if journal.has_failed() {
            return Err(io::Error::other("the journal cannot be flushed"));
        }
        if let Some(hash) = self.matcher.take_outputs() {
            journal.append(now, Input::Outputs(hash));
        }
        let mark = journal.commit(now)?;
        let mark = if journal.holds_answers() { mark } else { 0 };
        self.snapshot(now, Journal::wants_snapshot);
        Ok(mark)
    }

    /// Writes a last snapshot after a commit, so that the next start replays nothing. While a tick
    /// goes on there is none.
    pub(crate) fn last_snapshot(&mut self, now: u64) {
        self.snapshot(now, Journal::has_news);
    }

    /// Writes a snapshot if the journal `wants` one and no search is under way.
    fn snapshot(&mut self, now: u64, wants: fn(&Journal) -> bool) {
        if let Some(journal) = &mut self.journal
            && wants(journal)
            && self.matcher.next_timeout().is_none_or(|at| at > WallMs(now))
        {
            journal.snapshot(self.matcher.snapshot());
        }
    }

    /// Answers with marks up to this may leave.
    pub(crate) fn durable(&self) -> u64 {
        self.journal.as_ref().map_or(u64::MAX, Journal::releases)
    }

    /// Returns whether a server still has roles or a session.
    pub(crate) fn keeps(&self, server: ServerNumber) -> bool {
        self.matcher.server_name(server).is_some()
    }

    /// Fills in what the matcher and its journal count.
    pub(crate) fn report(&self, report: &mut Report) {
        let matcher = &self.matcher;
        report.counts = matcher.counts();
        report.open_questions = matcher.open_questions();
        report.modes = matcher.busy_modes(MODES_REPORTED);
        report.mode_counts = matcher.mode_counts(MODES_REPORTED);
        report.queues = matcher.queue_reports(QUEUES_REPORTED);
        report.core = matcher.stats().clone();
        report.flushes = Some(self.journal.as_ref().map_or_else(no_flushes, Journal::flushes));
        report.journal_bytes = self.journal.as_ref().map_or(0, Journal::bytes);
    }
}
