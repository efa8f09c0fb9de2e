//! The matcher and its journal as one: what changes the state is logged before anybody hears of it.

use std::io;

use throng_matcher::record::Input;
use throng_matcher::{Caller, Matcher, Notices};
use throng_wire::matcher::{Status, method};

use crate::journal::Journal;

pub(crate) struct Engine {
    pub(crate) matcher: Matcher,
    pub(crate) journal: Option<Journal>,
    pub(crate) notices: Notices,
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
    ) -> Status {
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
        self.matcher.handle_timeout(now, &mut self.notices);
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
