//! What all shards together may have no more than so many of.
//!
//! Each shard may have a part; the parts add up to the whole. One that has used its part up asks the others in turn, and
//! each gives half of what it does not use: so a request is refused when nobody has any left, and never is there more than
//! the whole, whatever the mail does.

use serde::{Deserialize, Serialize};
use throng_wire::matcher::Method;

use super::{Letter, Owner};
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::queue::QUEUES_MAX;

/// Something that is counted over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Limit {
    /// Live tickets.
    Tickets,
    Queues,
}

/// What one shard may have.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Allowance {
    /// Below what there is where the whole was made smaller.
    most: i64,
    /// The whole that this is a part of, but for what was lent.
    whole: i64,
}

impl Matcher {
    fn whole(&self, limit: Limit) -> usize {
        match limit {
            Limit::Tickets => self.config.tickets_max,
            Limit::Queues => QUEUES_MAX,
        }
    }

    /// How many more this shard may have.
    fn left(&self, limit: Limit) -> i64 {
        let used = match limit {
            Limit::Tickets => self.live_tickets,
            Limit::Queues => self.queues.by_name.len(),
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
        for limit in [Limit::Tickets, Limit::Queues] {
            let whole = i64::try_from(self.whole(limit)).unwrap_or(i64::MAX).min(1 << 48);
            let part = &mut self.claims.parts[limit as usize];
            let change = whole - part.whole;
            part.most += (change * (index + 1)).div_euclid(count) - (change * index).div_euclid(count);
            part.whole = whole;
        }
    }

    /// The limit of what a request makes, if this shard has nothing left of it.
    pub(super) fn limit_reached(&self, method: u16) -> Option<Limit> {
        let limit = match method {
            Method::CREATE_TICKET => Limit::Tickets,
            Method::PUT_QUEUE => Limit::Queues,
            _ => return None,
        };
        (!self.has_left(limit)).then_some(limit)
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
        let waits = |owner: &Owner| matches!(owner, Owner::Request(Some(_)));
        if self.claims.jobs.get(&id).is_some_and(|job| waits(&job.owner)) {
            self.go_on(id, notices);
        }
    }
}
