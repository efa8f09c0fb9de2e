//! Updates that some subscriber has not received, and the removals to keep.

use std::sync::Arc;

use super::{Change, FanoutPosition, Joiner, Removals};
use crate::channel::Channel;
use crate::data::{FieldMask, MergeOptions, Plan, Update, filter, merged, removals};
use crate::ids::ConnId;
use crate::switchboard::Switchboard;

impl Channel {
    /// Queues a merged update for everybody who takes part. `covered` is an update that it is known
    /// to cover.
    pub(crate) fn push_update(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        update: Update,
        covered: Option<&Update>,
    ) {
        let now = self.time(board.now);
        let fan = &mut self.fan;
        if fan.cohorts.is_empty() {
            // Those who wait get it within their full state.
            self.arm(board);
            return;
        }
        let plan = self.data.as_ref().map(|data| data.content.plan());
        let covers_from = match (fan.ring.back(), plan) {
            (Some(last), _) if covered.is_some_and(|covered| covered.is(&last.update)) => last.covers_from,
            (Some(last), Some(plan)) if update.covers(&last.update, plan) => last.covers_from,
            _ => fan.end(),
        };
        fan.bytes += update.bytes().len();
        fan.ring.push_back(Change { sender, update, covers_from });
        let end = fan.end();
        if !fan.note_next_own(sender, end)
            && let Some(key) = self.key(sender)
        {
            self.fan.note_own(self.subs[key as usize].place, end);
        }
        let fan = &mut self.fan;
        let (mut newly_due, mut pending) = (false, false);
        for (_, cohort) in &mut fan.cohorts {
            if cohort.due.is_none() {
                // An owner often is the only one who gets its channel at its rate, and wants
                // nothing back.
                if cohort.start + 1 == end && cohort.is_only(sender) {
                    cohort.start = end;
                    continue;
                }
                cohort.due = Some(cohort.due_after(now));
                newly_due = true;
            }
            pending = true;
        }
        if !pending {
            self.trim();
            return;
        }
        if fan.bytes > board.config.limits.channel_backlog_bytes {
            self.fold(board);
        }
        if newly_due || self.fan.wake.is_none() {
            self.arm(board);
        }
    }

    /// Replaces the ring by merged updates per cohort, so that slow intervals cost what changed
    /// instead of all updates.
    fn fold(&mut self, board: &mut Switchboard) {
        let Some(data) = &self.data else { return };
        let plan = Arc::clone(data.content.plan());
        let options = self.merge_options;
        let fan = &mut self.fan;
        let (first, end) = (fan.first, fan.end());
        let pending = |from: u64| (from - first) as usize..;
        board.stats.updates_folded += fan.ring.len() as u64;
        let mut privates = 0;
        let mut behind = Vec::new();
        let mut moved = Vec::new();
        for (index, cohort) in &mut fan.cohorts {
            // Members with own updates in the window leave the shared accumulation.
            let start = cohort.start;
            let mut at = 0;
            while let Some(member) = cohort.members.get(at) {
                if !(member.skip_self && member.own_end > start) {
                    at += 1;
                    continue;
                }
                cohort.members.swap_remove(at);
                if let Some(other) = cohort.members.get(at) {
                    moved.push((other.sub, FanoutPosition::Member { cohort: index as u32, at }));
                }
                let folded = cohort.folded.clone();
                let joiner = Joiner { member, cursor: start, folded, not_before: i64::MIN };
                cohort.joiners.push(joiner);
                let place =
                    FanoutPosition::Joiner { cohort: index as u32, at: cohort.joiners.len() as u32 - 1 };
                moved.push((member.sub, place));
            }
            for joiner in &mut cohort.joiners {
                let own = if joiner.member.skip_self { Some(joiner.member.conn) } else { None };
                if joiner.cursor < end {
                    if privates < PRIVATE_FOLDS_MAX {
                        privates += 1;
                        let range = fan.ring.range(pending(joiner.cursor));
                        let others =
                            range.filter(|change| Some(change.sender) != own).map(|change| &change.update);
                        joiner.folded =
                            fold_updates(&plan, options.as_ref(), joiner.folded.iter().chain(others));
                    } else {
                        behind.push(joiner.member.sub);
                    }
                    joiner.cursor = end;
                }
            }
            if cohort.members.is_empty() {
                cohort.folded = Vec::new();
            } else if start < end {
                let updates = fan.ring.range(pending(start)).map(|change| &change.update);
                cohort.folded = fold_updates(&plan, options.as_ref(), cohort.folded.iter().chain(updates));
            }
            cohort.start = end;
        }
        for (key, place) in moved {
            self.subs[key as usize].place = place;
        }
        for key in behind {
            self.await_full_state(board, key);
        }
        self.trim();
    }

    /// Drops the updates that everybody has had.
    pub(crate) fn trim(&mut self) {
        let fan = &mut self.fan;
        let needed = fan
            .cohorts
            .iter()
            .flat_map(|(_, cohort)| {
                let start = (!cohort.members.is_empty()).then_some(cohort.start);
                start.into_iter().chain(cohort.joiners.iter().map(|joiner| joiner.cursor))
            })
            .min()
            .unwrap_or(fan.end());
        while fan.first < needed
            && let Some(change) = fan.ring.pop_front()
        {
            fan.bytes -= change.update.bytes().len();
            fan.first += 1;
        }
        if fan.ring.is_empty() && fan.ring.capacity() > RING_KEEP {
            fan.ring.shrink_to(RING_KEEP);
        }
    }
}

/// Bytes of removals kept per channel, some 25,000 entries with numeric keys. A reader that is
/// further behind than that keeps what it missed the removal of, until that key is used again.
const REMOVALS_BYTES_MAX: usize = 256 * 1024;

/// Members that get an accumulation of their own when a backlog is folded; more would let one
/// channel multiply its backlog by its writers, so the rest gets a full state instead.
const PRIVATE_FOLDS_MAX: usize = 32;

/// Ring slots kept while nothing is pending; a burst gives back what it took.
const RING_KEEP: usize = 32;

impl Removals {
    /// Keeps what an update removes; the oldest give way.
    pub(super) fn note(&mut self, plan: &Plan, update: &Update) {
        let mut removed = Vec::new();
        removals(plan, update, &mut removed);
        if !removed.is_empty() {
            self.keep(removed);
        }
    }

    /// Keeps an update that removes; the oldest give way.
    pub(super) fn keep(&mut self, removed: Vec<u8>) {
        self.bytes += removed.len();
        self.updates.push_back(removed);
        while self.bytes > REMOVALS_BYTES_MAX
            && let Some(oldest) = self.updates.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    /// All of them as one update, or what a mask keeps of it.
    pub(super) fn encode(&self, plan: &Plan, mask: Option<&FieldMask>) -> Vec<u8> {
        let all: Vec<u8> = self.updates.iter().flatten().copied().collect();
        let Some(mask) = mask else { return all };
        let mut kept = Vec::new();
        filter(plan, mask, &all, &mut kept);
        kept
    }
}

/// Merges updates into as few as possible, for keeping.
fn fold_updates<'a>(
    plan: &Arc<Plan>,
    options: Option<&MergeOptions>,
    updates: impl Iterator<Item = &'a Update>,
) -> Vec<Update> {
    // What was made of checked updates passes the check.
    merged(plan, options, None, updates)
        .into_iter()
        .filter_map(|bytes| Update::check(plan, bytes).ok())
        .collect()
}
