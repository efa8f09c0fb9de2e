//! Pending updates of one subscriber, and the time at which they are sent.

use core::time::Duration;

use throng_stdx::Instant;

use super::{Cohort, FanoutPosition};
use crate::channel::{Channel, RateBy, Subscription};
use crate::ids::ConnId;
use crate::inspect::SubscriptionView;
use crate::why::Delivery;

impl Channel {
    /// Where the subscription of a connection stands; `None` without one. Costs a walk over the
    /// updates that somebody has not had.
    pub(crate) fn delivery(&self, conn: ConnId, now: Instant) -> Option<Delivery> {
        let key = self.key(conn)?;
        let sub = &self.subs[key as usize];
        // Whose interval became short may get what it has not had at once, whatever its window.
        let overdue = self.fan.overdue.iter().find(|(_, overdue)| *overdue == key).map(|(due, _)| *due);
        let sooner = |flush: i64| overdue.map_or(flush, |due| flush.min(due));
        let (pending, own, due, next) = match sub.place {
            FanoutPosition::Nowhere => (0, 0, None, None),
            FanoutPosition::Waiting { due } => {
                let due = self.data.is_some().then_some(due);
                (0, 0, due, due)
            }
            FanoutPosition::Member { cohort, at } => {
                let cohort = &self.fan.cohorts[cohort as usize];
                let skip_self = cohort.members.get(at)?.skip_self;
                let (pending, own) = self.pending(cohort.start, skip_self.then_some(conn));
                let pending = pending + cohort.folded.len();
                let next = sooner(self.next_flush(cohort, now, i64::MIN));
                (pending, own, (pending > 0).then_some(next), Some(next))
            }
            FanoutPosition::Joiner { cohort, at } => {
                let cohort = &self.fan.cohorts[cohort as usize];
                let joiner = &cohort.joiners[at as usize];
                let (pending, own) = self.pending(joiner.cursor, joiner.member.skip_self.then_some(conn));
                let pending = pending + joiner.folded.len();
                let next = sooner(self.next_flush(cohort, now, joiner.not_before));
                (pending, own, (pending > 0).then_some(next), Some(next))
            }
        };
        Some(Delivery {
            subscription: SubscriptionView::new(self, sub),
            rate_by: rate_by(sub),
            full_state: matches!(sub.place, FanoutPosition::Waiting { .. }),
            pending,
            own,
            due: due.map(|due| self.instant(due)),
            next: next.map(|next| self.instant(next)),
        })
    }

    /// Updates in the ring from `cursor` on: those of others, and those of `own`.
    fn pending(&self, cursor: u64, own: Option<ConnId>) -> (usize, usize) {
        let from = cursor.saturating_sub(self.fan.first) as usize;
        let range = || self.fan.ring.range(from.min(self.fan.ring.len())..);
        let own = range().filter(|change| Some(change.sender) == own).count();
        (range().len() - own, own)
    }

    /// When an update leaves that is handled now, for who gets nothing before `not_before`.
    fn next_flush(&self, cohort: &Cohort, now: Instant, not_before: i64) -> i64 {
        match cohort.due {
            Some(due) if due >= not_before => due,
            Some(due) => cohort.due_after(not_before.max(due)),
            None => cohort.due_after(not_before.max(self.time(now))),
        }
    }

    fn instant(&self, time: i64) -> Instant {
        self.created + Duration::from_nanos(time.max(0).unsigned_abs())
    }
}

fn rate_by(sub: &Subscription) -> &'static str {
    match sub.rate_by {
        RateBy::Default => "default",
        RateBy::Subscriber => "subscriber",
        RateBy::Gateway => "distance",
    }
}
