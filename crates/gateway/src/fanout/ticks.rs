//! The tick of a channel, and its fan-out as a whole: checked, emptied, begun anew.

use smallvec::SmallVec;

use super::{FanOut, FanoutPosition, Made};
use crate::channel::Channel;
use crate::failpoint::failpoint;
use crate::findings::Findings;
use crate::ids::ShardIndex;
use crate::switchboard::Switchboard;

impl Channel {
    /// The channel's timer fired: flushes every cohort whose window has ended, then sends the full
    /// states that are due.
    pub(crate) fn run_tick(&mut self, board: &mut Switchboard) {
        self.fan.wake = None;
        let (now, tick) = (self.time(board.now), self.tick());
        let at = now.div_euclid(tick) * tick;
        board.stats.fan_out_ticks += 1;
        failpoint!();
        let mut made = Made::default();
        let due: SmallVec<[usize; 8]> = self
            .fan
            .cohorts
            .iter()
            .filter(|(_, cohort)| cohort.due.is_some_and(|due| due <= now))
            .map(|(index, _)| index)
            .collect();
        for index in due {
            let grain = self.fan.cohorts[index].grain;
            failpoint!();
            self.flush(board, index, now.div_euclid(grain) * grain, &mut made);
        }
        while let Some(&(due, key)) = self.fan.overdue.first()
            && due <= at
        {
            self.catch_up(board, key, &mut made);
        }
        if self.data.is_some() {
            while let Some(&(due, key)) = self.fan.waiting.first()
                && due <= at
            {
                self.fan.waiting.pop_first();
                failpoint!();
                self.send_full_state(board, key, at, &mut made);
            }
        }
        self.trim();
        failpoint!();
        self.arm(board);
    }

    /// Checks what must hold between inputs. `here` is the shard of the channel.
    pub(crate) fn check_invariants(&self, here: ShardIndex, findings: &mut Findings) {
        let fan = &self.fan;
        let bytes: usize = fan.ring.iter().map(|change| change.update.bytes().len()).sum();
        findings.expect(fan.bytes == bytes, "the bytes of the ring are miscounted");
        let mut placed = 0;
        for (key, sub) in &self.subs {
            findings.expect(
                self.key(sub.address.conn) == Some(key as u32),
                "a subscription that cannot be found",
            );
            let in_place = match sub.place {
                FanoutPosition::Nowhere => true,
                FanoutPosition::Waiting { due } => fan.waiting.contains(&(due, key as u32)),
                FanoutPosition::Member { cohort, at } => {
                    placed += 1;
                    let cohort = fan.cohorts.get(cohort as usize);
                    cohort.and_then(|it| it.members.get(at)).is_some_and(|it| it.sub == key as u32)
                }
                FanoutPosition::Joiner { cohort, at } => {
                    placed += 1;
                    let cohort = fan.cohorts.get(cohort as usize);
                    let joiner = cohort.and_then(|it| it.joiners.get(at as usize));
                    joiner.is_some_and(|it| it.member.sub == key as u32)
                }
            };
            findings.expect(in_place, "a subscription is not where it says");
            // Nobody who may read is left out where there is something to get.
            let nowhere =
                sub.place == FanoutPosition::Nowhere && sub.options.can_read() && self.data.is_some();
            findings.expect(!nowhere, "a reader is nowhere");
        }
        let held: usize = fan.cohorts.iter().map(|(_, it)| it.members.len() + it.joiners.len()).sum();
        findings.expect(held == placed, "cohorts hold subscriptions that are gone");
        for (_, cohort) in &fan.cohorts {
            let empty = cohort.members.is_empty() && cohort.joiners.is_empty();
            findings.expect(!empty, "an empty cohort remains");
            cohort.members.check_invariants(here, findings);
            findings.expect(cohort.start <= fan.end(), "a cohort is ahead of the ring");
            findings.expect(
                cohort.members.is_empty() || cohort.start >= fan.first,
                "a cohort fell out of the ring",
            );
            let pending = (!cohort.members.is_empty() && cohort.start < fan.end())
                || !cohort.folded.is_empty()
                || cohort.joiners.iter().any(|joiner| joiner.cursor < fan.end());
            findings.expect(!pending || cohort.due.is_some(), "pending updates without a flush");
        }
        let due = fan.cohorts.iter().any(|(_, cohort)| cohort.due.is_some())
            || !fan.overdue.is_empty()
            || (self.data.is_some() && !fan.waiting.is_empty());
        findings.expect(due == fan.wake.is_some(), "the timer and what is due differ");
    }

    /// Empties the fan-out, as after a panic in it. What was removed of late stays known.
    pub(crate) fn reset_fan_out(&mut self, board: &mut Switchboard) {
        self.disarm(board);
        let removals = std::mem::take(&mut self.fan.removals);
        let first = self.fan.end();
        self.fan = FanOut { first, removals, ..FanOut::default() };
        self.find_subscriptions_anew();
    }

    /// Gives every subscriber a full state, and what follows it.
    pub(crate) fn restart_fan_out(&mut self, board: &mut Switchboard) {
        let now = self.time(board.now);
        let keys: Vec<u32> = self.subs.iter().map(|(key, _)| key as u32).collect();
        for key in keys {
            let sub = &mut self.subs[key as usize];
            sub.stale |= sub.had_first;
            sub.had_first = false;
            sub.anchor = sub.anchor.min(now);
            sub.place = FanoutPosition::Nowhere;
            board.add_place(sub.address.conn, self.id);
            if sub.options.can_read() {
                self.wait(key, now);
            }
        }
        if let Some(owner) = self.owner {
            board.add_place(owner, self.id);
        }
        self.arm(board);
    }
}
