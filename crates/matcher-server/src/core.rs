//! The matcher behind the connections: one shard on this thread, or several on their own.

use std::io;
use std::time::Duration;

#[cfg(test)]
use throng_matcher::Matcher;
use throng_matcher::{Answered, Caller, Handled, Notices, Verdict};

use crate::Report;
use crate::engine::{Engine, Log};
use crate::journal::{Journal, no_flushes};
use crate::pool::{Pool, add_report};

pub(crate) enum Core {
    /// Executes at once.
    One(Box<Engine>),
    /// Executes elsewhere; every request waits.
    Many(Box<Pool>),
}

impl Core {
    /// Executes a request, or hands it on; see [`Core::poll_answered`].
    #[inline]
    pub(crate) fn request(
        &mut self,
        now: u64,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        deadline: Duration,
        answer: &mut Vec<u8>,
    ) -> Handled {
        match self {
            Core::One(engine) => engine.request(now, caller, number, body, answer),
            Core::Many(pool) => pool.request(caller, number, body, deadline, answer),
        }
    }

    pub(crate) fn session(&mut self, now: u64, srv: &str, up: bool) -> u32 {
        match self {
            Core::One(engine) => engine.session(now, srv, up),
            Core::Many(pool) => pool.session(srv, up),
        }
    }

    pub(crate) fn verdict(&mut self, now: u64, id: u64, verdict: Option<Verdict>) {
        match self {
            Core::One(engine) => engine.verdict(now, id, verdict.as_ref()),
            Core::Many(pool) => pool.verdict(id, verdict),
        }
    }

    /// A shard's trial is done.
    pub(crate) fn tried(&mut self, shard: u16, answered: Answered) {
        match self {
            Core::One(engine) => engine.trials.take_done(answered),
            Core::Many(pool) => pool.tried(shard, answered),
        }
    }

    /// Does what is due and takes what others have done.
    pub(crate) fn end_batch(&mut self, now: u64) {
        match self {
            Core::One(engine) => {
                engine.timeout(now);
                engine.ask_policies(now);
            }
            Core::Many(pool) => pool.collect(),
        }
    }

    pub(crate) fn poll_answered(&mut self) -> Option<Answered> {
        match self {
            Core::One(engine) => engine.poll_answered(),
            Core::Many(pool) => pool.poll_answered(),
        }
    }

    pub(crate) fn notices(&mut self) -> &mut Notices {
        match self {
            Core::One(engine) => &mut engine.notices,
            Core::Many(pool) => &mut pool.notices,
        }
    }

    /// Writes the batch to the journal. Returns the mark whose durability its answers wait for; 0 for no wait.
    pub(crate) fn commit(&mut self, now: u64) -> io::Result<u64> {
        match self {
            Core::One(engine) => {
                let mark = engine.commit(now)?;
                engine.snapshot(now, Journal::wants_snapshot);
                Ok(mark)
            }
            Core::Many(pool) => pool.commit(now),
        }
    }

    /// Writes a last snapshot after a commit, so that the next start replays nothing. While a tick goes on there is none.
    pub(crate) fn last_snapshot(&mut self, now: u64) {
        match self {
            Core::One(engine) => engine.snapshot(now, Journal::has_news),
            Core::Many(pool) => pool.last_snapshot(now),
        }
    }

    /// Answers with marks up to this may leave.
    pub(crate) fn durable(&self) -> u64 {
        match self {
            Core::One(engine) => match &engine.log {
                Log::Own(journal) => journal.releases(),
                _ => u64::MAX,
            },
            Core::Many(pool) => pool.durable(),
        }
    }

    /// When this thread has something to do, in ms since the epoch.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        match self {
            Core::One(engine) => engine.next_timeout(),
            Core::Many(_) => None,
        }
    }

    /// Whether a server, by its number and name, still has roles or a session.
    pub(crate) fn keeps(&mut self, server: u32, srv: &str) -> bool {
        match self {
            Core::One(engine) => engine.matcher.server_name(server) == Some(srv.as_bytes()),
            Core::Many(pool) => pool.keeps(srv),
        }
    }

    /// Fills in what the matcher itself counts.
    pub(crate) fn report(&self, report: &mut Report) {
        match self {
            Core::One(engine) => {
                add_report(report, &engine.matcher);
                let journal = match &engine.log {
                    Log::Own(journal) => Some(journal),
                    _ => None,
                };
                report.flushes = Some(journal.map_or_else(no_flushes, Journal::flushes));
                report.journal_bytes = journal.map_or(0, Journal::bytes);
            }
            Core::Many(pool) => pool.report(report),
        }
    }
}

#[cfg(test)]
impl Core {
    /// Lets shards that have no threads do what they have to do.
    pub(crate) fn turn_all(&self, now: u64) {
        if let Core::Many(pool) = self {
            pool.turn_all(now);
        }
    }

    /// The snapshot of all shards.
    pub(crate) fn state(&self) -> Vec<u8> {
        match self {
            Core::One(engine) => engine.matcher.snapshot(),
            Core::Many(pool) => pool.state(),
        }
    }

    pub(crate) fn each(&mut self, mut look: impl FnMut(&mut Matcher)) {
        match self {
            Core::One(engine) => look(&mut engine.matcher),
            Core::Many(pool) => pool.each(look),
        }
    }
}
