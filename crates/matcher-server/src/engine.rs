//! The matcher with its journal: every change is logged before its response or notification is
//! sent.

use std::io;
#[cfg(feature = "nats")]
use std::path::Path;
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

    /// Begins again with an empty state, as another matcher has replaced this one. The log says so,
    /// so that a replay does too. What is there goes to a folder called `kept`, or that with a
    /// number. One that only `waits` leaves everything as it is when that fails, and when there is
    /// nothing to keep. Returns whether it has begun again.
    #[cfg(feature = "nats")]
    pub(crate) fn begin_empty(&mut self, now: u64, kept: Option<&Path>, waits: bool) -> bool {
        let is_blank = self.matcher.is_blank();
        if waits && is_blank {
            return false;
        }
        if let Some(kept) = kept.filter(|_| !is_blank) {
            let folder = crate::unused_folder(kept);
            match crate::journal::keep(&folder, &self.matcher) {
                Ok(()) => {
                    tracing::warn!(folder = %folder.display(), "this matcher was replaced; its state is kept here");
                }
                Err(error) => {
                    tracing::error!(%error, "this matcher was replaced; its state cannot be kept");
                    if waits {
                        return false;
                    }
                }
            }
        }
        let (secret, config) = (self.matcher.next_secret(), self.matcher.config().clone());
        self.append(now, Input::Begin { secret });
        self.append(now, Input::Configure(&crate::journal::config_json(&config)));
        self.matcher = Matcher::new(config, secret, WallMs(now));
        self.notices.clear();
        true
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
        let Some(journal) = &mut self.journal else {
            // Only records of a journal have the hashes.
            self.matcher.ignore_outputs();
            return Ok(0);
        };
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

#[cfg(all(test, feature = "nats"))]
mod tests {
    use throng_matcher::{Config, Scope};
    use throng_wire::matcher::Writer;

    use super::*;

    fn engine() -> Engine {
        let config = Config::default();
        let matcher = Matcher::new(config, [1; 32], WallMs(5));
        let (policies, trials) = (Policies::default(), Trials::default());
        Engine { matcher, journal: None, notices: Notices::default(), policies, trials }
    }

    fn join(engine: &mut Engine, role: &str) {
        let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, "2v2"));
        let caller = Caller { srv: "s", scope: Scope::Server };
        let (method, body) = (Method::ROLE_JOIN_RANDOM_ROOM, body.into_bytes());
        let handled = engine.request(6, caller, method, &body, &mut Vec::new());
        assert_eq!(handled.status(), Some(throng_wire::matcher::Status::Ok));
    }

    #[test]
    fn the_state_of_a_matcher_that_was_replaced_is_kept() {
        let data = tempfile::tempdir().unwrap();
        let kept = data.path().join("replaced-id");
        let mut engine = engine();
        assert!(!engine.begin_empty(7, Some(&kept), true), "there is nothing to keep");
        assert!(engine.begin_empty(7, Some(&kept), false));
        assert!(!kept.exists());
        for (role, name) in [("ann", "replaced-id"), ("ben", "replaced-id-2"), ("cid", "replaced-id-3")] {
            join(&mut engine, role);
            assert!(engine.begin_empty(8, Some(&kept), role == "ann"));
            assert!(engine.matcher.is_blank());
            let lines = crate::export(&data.path().join(name)).unwrap();
            let player = format!("{{\"player\":{{\"role\":\"{role}\"");
            assert!(String::from_utf8(lines).unwrap().contains(&player));
        }
    }

    #[test]
    fn a_waiting_matcher_that_cannot_keep_its_state_still_has_it() {
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join("file"), "").unwrap();
        let kept = data.path().join("file/replaced-id");
        let mut engine = engine();
        join(&mut engine, "ann");
        assert!(!engine.begin_empty(7, Some(&kept), true));
        assert!(!engine.matcher.is_blank());
        assert!(engine.begin_empty(7, Some(&kept), false), "the area is served");
        assert!(engine.matcher.is_blank());
    }
}
