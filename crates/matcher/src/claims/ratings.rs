//! Reports of results: counted by the shard of their rating pool, answered when every shard knows what came of them. So
//! whoever reads a rating or makes a ticket after the answer finds the result in it, wherever that is.

use serde::{Deserialize, Serialize};
use throng_wire::matcher::Method;

use super::{Holder, Letter, RateAsked, RateResult};
use crate::config::Caller;
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::policy::{Asked, Kept};

/// A result that was counted, and the shards that have not said that they know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Share {
    waits: u16,
    holder: Holder,
    result: RateResult,
}

impl Matcher {
    /// What a report asks of its pool's shard, if it is one and in order.
    pub(super) fn rating_wanted(&self, caller: Caller<'_>, asked: &Asked<'_>) -> Option<RateAsked> {
        if asked.method.number != Method::REPORT_RESULT {
            return None;
        }
        self.rating_asked(caller, asked.body)
    }

    /// The same of a request that waits.
    pub(super) fn rating_of(&self, kept: &Kept) -> Option<RateAsked> {
        if kept.method != Method::REPORT_RESULT {
            return None;
        }
        self.rating_asked(kept.caller(), &kept.body)
    }

    /// Counts a result for whatever shard, and tells the others.
    pub(super) fn rate_and_share(&mut self, holder: Holder, asked: &RateAsked) {
        let result = self.rate_for_another(asked);
        if result.is_err() {
            return self.send(holder.0, Letter::Rated { job: holder.1, result });
        }
        self.claims.last += 1;
        let share = self.claims.last;
        let waits = ((1 << self.shard.count) - 1_u32) as u16 & !(1 << self.shard.index);
        self.claims.shares.insert(share, Share { waits, holder, result });
        self.send_all(|| Letter::Sync { share });
    }

    /// A shard knows all that was said before.
    pub(super) fn synced(&mut self, from: u16, id: u64) {
        let Some(share) = self.claims.shares.get_mut(&id) else { return };
        share.waits &= !(1 << from);
        if share.waits == 0
            && let Some(Share { holder, result, .. }) = self.claims.shares.remove(&id)
        {
            self.send(holder.0, Letter::Rated { job: holder.1, result });
        }
    }

    /// What the pool's shard says of a report.
    pub(super) fn rated_elsewhere(&mut self, id: u64, result: RateResult, notices: &mut Notices) {
        let Some(job) = self.claims.jobs.get_mut(&id) else { return };
        job.result = Some(result);
        self.go_on(id, notices);
    }
}
