//! What all shards together may have no more than so many of.
//!
//! Each shard may have a part; the parts add up to the whole. One that has used its part up asks the others in turn, and
//! each gives half of what it does not use: so a request is refused when nobody has any left, and never is there more than
//! the whole, whatever the mail does.

use serde::{Deserialize, Serialize};
use throng_wire::matcher::Method;

use super::{JOBS_MAX, Letter, Owner};
use crate::id::Id;
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::policy::{Kept, PENDING_MAX};
use crate::queue::QUEUES_MAX;

/// Something that is counted over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Limit {
    /// Live tickets.
    Tickets,
    Queues,
    /// Questions to policies that wait for a verdict.
    Questions,
}

/// What one shard may have.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Allowance {
    /// Below what there is where the whole was made smaller.
    most: i64,
    /// The whole that this is a part of, but for what was lent.
    whole: i64,
}

/// What a request makes one more of.
pub(super) fn limit_of(method: u16) -> Option<Limit> {
    match method {
        Method::CREATE_TICKET => Some(Limit::Tickets),
        Method::PUT_QUEUE => Some(Limit::Queues),
        _ => None,
    }
}

impl Matcher {
    fn whole(&self, limit: Limit) -> usize {
        match limit {
            Limit::Tickets => self.config.tickets_max,
            Limit::Queues => QUEUES_MAX,
            Limit::Questions => PENDING_MAX,
        }
    }

    /// How many more this shard may have.
    fn left(&self, limit: Limit) -> i64 {
        let used = match limit {
            Limit::Tickets => self.live_tickets,
            Limit::Queues => self.queues.by_name.len(),
            Limit::Questions => self.open_questions(),
        };
        let alone = || i64::try_from(self.whole(limit)).unwrap_or(i64::MAX);
        let most = if self.shard.is_alone() { alone() } else { self.claims.parts[limit as usize].most };
        most.saturating_sub(used as i64)
    }

    /// Whether one more may be made.
    pub(crate) fn has_left(&self, limit: Limit) -> bool {
        self.left(limit) > 0
    }

    /// Gives this shard its part of changed limits: an even one of what was added or taken away.
    pub(crate) fn divide_limits(&mut self) {
        if self.shard.is_alone() {
            return;
        }
        let (index, count) = (i64::from(self.shard.index), i64::from(self.shard.count));
        for limit in [Limit::Tickets, Limit::Queues, Limit::Questions] {
            let whole = i64::try_from(self.whole(limit)).unwrap_or(i64::MAX).min(1 << 48);
            let part = &mut self.claims.parts[limit as usize];
            let change = whole - part.whole;
            part.most += (change * (index + 1)).div_euclid(count) - (change * index).div_euclid(count);
            part.whole = whole;
        }
    }

    /// Whether another shard may have a question to a policy left for the request under way, which has not asked them all.
    pub(crate) fn may_get_question(&self) -> bool {
        let job = self.claims.current.and_then(|job| self.claims.jobs.get(&job));
        job.map_or_else(|| self.may_ask_others(), |job| job.lenders + 1 < self.shard.count)
    }

    /// Whether there are others, and this shard may wait for them.
    pub(crate) fn may_ask_others(&self) -> bool {
        !self.shard.is_alone() && self.claims.jobs.len() < JOBS_MAX
    }

    /// Keeps a request until another shard has given it a question, or none has.
    pub(crate) fn wait_for_question(&mut self, kept: Kept) {
        let number = kept.number;
        let owner = Owner::Request(Some(kept));
        let known = self.claims.by_request.get(&number).copied();
        let id = known.unwrap_or_else(|| self.begin_job(Owner::Request(None), Vec::new()));
        self.claims.by_request.insert(number, id);
        self.begin_asking(id, owner);
    }

    /// The same for a match and its server.
    pub(crate) fn wait_for_question_of_match(&mut self, found: Id) {
        let id = self.begin_job(Owner::Server(found), Vec::new());
        self.begin_asking(id, Owner::Server(found));
    }

    /// A request has its question, or waits for one about its room: its next one is asked for anew.
    pub(crate) fn has_question(&mut self, number: u64) {
        let job = self.claims.by_request.get(&number);
        if let Some(job) = job.and_then(|job| self.claims.jobs.get_mut(job)) {
            (job.lenders, job.asks) = (0, false);
        }
    }

    fn begin_asking(&mut self, id: u64, owner: Owner) {
        if let Some(job) = self.claims.jobs.get_mut(&id) {
            (job.owner, job.asks) = (owner, true);
        }
        self.ask_next(id);
    }

    /// Asks the next shard for a job.
    pub(super) fn borrow(&mut self, id: u64, limit: Limit) {
        let wanted = 1 - self.left(limit);
        let Some(job) = self.claims.jobs.get_mut(&id) else { return };
        job.lenders += 1;
        let to = (self.shard.index + job.lenders) % self.shard.count;
        self.send(to, Letter::Borrow { job: id, limit, wanted });
    }

    /// What another shard gets of this one's part: half of what is unused, or what it needs.
    pub(super) fn lend(&mut self, limit: Limit, wanted: i64) -> i64 {
        let left = self.left(limit).max(0);
        let amount = (left - left / 2).max(wanted.min(left));
        self.claims.parts[limit as usize].most -= amount;
        amount
    }

    /// Another shard gave a part of its own, also if nobody waits for it any more.
    pub(super) fn lent(&mut self, id: u64, limit: Limit, amount: i64, notices: &mut Notices) {
        self.claims.parts[limit as usize].most += amount;
        let waits = |owner: &Owner| matches!(owner, Owner::Request(Some(_)) | Owner::Server(_));
        if self.claims.jobs.get(&id).is_some_and(|job| waits(&job.owner)) {
            self.go_on(id, notices);
        }
    }
}
