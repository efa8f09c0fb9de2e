//! The matcher and its journal as one: what changes the state is logged before anybody hears of it.

use std::io;
use std::time::Instant;

use throng_matcher::record::Input;
use throng_matcher::{Caller, Handled, Matcher, Notices, Verdict};
use throng_wire::matcher::method;

use crate::journal::Journal;
use crate::policy::{Asked, Policies};

pub(crate) struct Engine {
    pub(crate) matcher: Matcher,
    pub(crate) journal: Option<Journal>,
    pub(crate) notices: Notices,
    pub(crate) policies: Policies,
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
        if let Some(journal) = &mut self.journal
            && method(number).is_some_and(|method| method.mutates)
        {
            let input = Input::Request { srv: caller.srv, scope: caller.scope, method: number, body };
            journal.append(now, input);
        }
        self.matcher.handle(now, caller, number, body, answer, &mut self.notices)
    }

    pub(crate) fn session(&mut self, now: u64, srv: &str, up: bool) -> u32 {
        if let Some(journal) = &mut self.journal {
            journal.append(now, Input::Session { srv, up });
        }
        self.matcher.handle_session(now, srv, up, &mut self.notices)
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self, now: u64) {
        if self.matcher.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        if let Some(journal) = &mut self.journal {
            journal.append(now, Input::Timeout);
        }
        let began = Instant::now();
        self.matcher.handle_timeout(now, &mut self.notices);
        self.matcher.note_time(began.elapsed());
    }

    /// A policy has answered, or cannot.
    pub(crate) fn verdict(&mut self, now: u64, id: u64, verdict: Option<&Verdict>) {
        if let Some(journal) = &mut self.journal {
            let encoded = verdict.map(Verdict::to_bytes);
            journal.append(now, Input::Verdict { id, verdict: encoded.as_deref() });
        }
        self.matcher.handle_verdict(now, id, verdict, &mut self.notices);
    }

    /// Puts open questions to their policies; those that answer at once have their say now.
    pub(crate) fn ask_policies(&mut self, now: u64) {
        while let Some(question) = self.matcher.poll_question() {
            let asked = self.policies.ask(&question);
            match asked {
                _ if !question.waits => {}
                Asked::Now(verdict) => self.verdict(now, question.id, Some(&verdict)),
                Asked::Nobody => self.verdict(now, question.id, None),
                Asked::Later => {}
            }
        }
    }

    /// Writes the batch to the journal. Returns the mark whose durability its answers wait for; 0 for no wait.
    pub(crate) fn commit(&mut self, now: u64) -> io::Result<u64> {
        let Some(journal) = &mut self.journal else { return Ok(0) };
        if journal.has_failed() {
            return Err(io::Error::other("the journal cannot be flushed"));
        }
        let mark = journal.commit(now)?;
        if journal.wants_snapshot() && self.matcher.next_timeout().is_none_or(|at| at > now) {
            journal.snapshot(self.matcher.snapshot());
        }
        Ok(if journal.holds_answers() { mark } else { 0 })
    }

    /// Answers with marks up to this may leave.
    pub(crate) fn durable(&self) -> u64 {
        match &self.journal {
            Some(journal) if journal.holds_answers() => journal.durable(),
            _ => u64::MAX,
        }
    }
}
