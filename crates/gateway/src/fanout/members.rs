//! The members of a cohort, and the recipients of what all of them get.

use smallvec::SmallVec;

use super::Member;
use crate::findings::Findings;
use crate::ids::{ConnId, ShardIndex};
use crate::switchboard::{Address, Recipients};

/// Members in no particular order; the last one takes the position of one that leaves.
#[derive(Debug, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    /// Positions of those that have sent updates and want none of their own back. They are few, an
    /// owner often, except where all members write.
    writers: Vec<u32>,
    /// The member that sent last. Most channels have one sender, and neither its updates nor the
    /// windows that leave it out look at the list.
    latest: Option<LatestSender>,
    /// All members but the writers. Built at the end of a window and kept until a member joins,
    /// leaves or begins to write: windows end far more often than that.
    recipients: Option<Recipients>,
}

#[derive(Debug, Clone, Copy)]
struct LatestSender {
    at: u32,
    conn: ConnId,
    /// Counts instead of the one in the list.
    own_end: u64,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn get(&self, at: u32) -> Option<Member> {
        let own_end = self.latest.filter(|latest| latest.at == at).map(|latest| latest.own_end);
        let member = *self.list.get(at as usize)?;
        Some(Member { own_end: own_end.unwrap_or(member.own_end), ..member })
    }

    pub(super) fn address(&self, at: u32) -> Address {
        self.list[at as usize].address()
    }

    /// The connection is the only member, and wants none of its own updates.
    pub(super) fn is_only(&self, conn: ConnId) -> bool {
        match (self.latest, self.list.as_slice()) {
            (Some(latest), [_]) => latest.conn == conn && self.writers.len() == 1,
            (None, [only]) => only.conn == conn && only.skip_self,
            _ => false,
        }
    }

    /// Positions and connections of the members that get none of their own updates and sent one
    /// from `start` on.
    pub(super) fn privates(&self, start: u64) -> impl Iterator<Item = (u32, ConnId)> + Clone {
        self.writers.iter().filter_map(move |&at| match self.latest {
            Some(latest) if latest.at == at => (latest.own_end > start).then_some((at, latest.conn)),
            _ => {
                let member = &self.list[at as usize];
                (member.own_end > start).then_some((at, member.conn))
            }
        })
    }

    /// Addresses of the writers that sent nothing from `start` on.
    pub(super) fn silent_writers(&self, start: u64) -> impl Iterator<Item = Address> {
        let silent = move |at: u32| self.get(at).filter(|member| member.own_end <= start);
        self.writers.iter().filter_map(move |&at| silent(at)).map(|member| member.address())
    }

    /// Returns the position.
    pub(super) fn push(&mut self, member: Member) -> u32 {
        self.recipients = None;
        let at = self.list.len() as u32;
        if member.is_writer() {
            self.writers.push(at);
        }
        self.list.push(member);
        at
    }

    pub(super) fn swap_remove(&mut self, at: u32) -> Member {
        self.recipients = None;
        if let Some(latest) = self.latest.take_if(|latest| latest.at == at) {
            self.write_back(latest);
        }
        let member = self.list.swap_remove(at as usize);
        if member.is_writer() {
            self.writers.retain(|writer| *writer != at);
        }
        // The last member stands here now.
        let last = self.list.len() as u32;
        if self.list.get(at as usize).is_some_and(Member::is_writer) {
            self.writers.iter_mut().filter(|writer| **writer == last).for_each(|writer| *writer = at);
        }
        self.latest.iter_mut().filter(|latest| latest.at == last).for_each(|latest| latest.at = at);
        member
    }

    /// Notes that the update before index `end` is this connection's, if it sent the latest one as
    /// well.
    pub(super) fn note_next_own(&mut self, conn: ConnId, end: u64) -> bool {
        let latest = self.latest.as_mut().filter(|latest| latest.conn == conn);
        latest.map(|latest| latest.own_end = end).is_some()
    }

    /// Notes that the update before index `end` is the member's.
    pub(super) fn note_own(&mut self, at: u32, end: u64) {
        if let Some(latest) = self.latest.take() {
            self.write_back(latest);
        }
        self.change(at, |member| member.own_end = end);
        let conn = self.list.get(at as usize).map(|member| member.conn);
        self.latest = conn.map(|conn| LatestSender { at, conn, own_end: end });
    }

    fn write_back(&mut self, latest: LatestSender) {
        if let Some(member) = self.list.get_mut(latest.at as usize) {
            member.own_end = latest.own_end;
        }
    }

    pub(super) fn set_skip_self(&mut self, at: u32, skip_self: bool) {
        self.change(at, |member| member.skip_self = skip_self);
    }

    fn change(&mut self, at: u32, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.list.get_mut(at as usize) else { return };
        let before = member.is_writer();
        change(member);
        match (before, member.is_writer()) {
            (false, true) => self.writers.push(at),
            (true, false) => self.writers.retain(|writer| *writer != at),
            _ => return,
        }
        self.recipients = None;
    }

    /// All members but the writers, as receivers. `here` is the shard of the channel.
    pub(super) fn recipients(&mut self, here: ShardIndex) -> &Recipients {
        let list = &self.list;
        self.recipients.get_or_insert_with(|| recipients_of(list, here))
    }

    pub(super) fn check_invariants(&self, here: ShardIndex, findings: &mut Findings) {
        let mut writers = self.writers.clone();
        writers.sort_unstable();
        let expected = (0..).zip(&self.list).filter(|(_, member)| member.is_writer()).map(|(at, _)| at);
        findings.expect(writers.iter().copied().eq(expected), "the writers are not those who wrote");
        let is_there = |latest: LatestSender| {
            let member = self.list.get(latest.at as usize);
            member.is_some_and(|it| it.conn == latest.conn && (1..=latest.own_end).contains(&it.own_end))
        };
        findings.expect(self.latest.is_none_or(is_there), "the latest sender is not where it says");
        let current = self.recipients.as_ref().is_none_or(|it| *it == recipients_of(&self.list, here));
        findings.expect(current, "recipients are not the members that do not write");
    }
}

impl Member {
    fn is_writer(&self) -> bool {
        self.skip_self && self.own_end > 0
    }
}

/// The members that are no writers, as receivers.
fn recipients_of(members: &[Member], here: ShardIndex) -> Recipients {
    let readers = members.iter().filter(|member| !member.is_writer());
    let on = |shard| readers.clone().filter(move |member| member.shard == shard);
    let mut shards: SmallVec<[ShardIndex; 8]> = SmallVec::new();
    for member in readers.clone() {
        if member.shard != here && !shards.contains(&member.shard) {
            shards.push(member.shard);
        }
    }
    Recipients {
        local: on(here).map(|member| (member.slot, member.conn)).collect(),
        remote: shards
            .into_iter()
            .map(|shard| (shard, on(shard).map(|member| member.conn).collect()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn member(conn: u32, shard: u16) -> Member {
        Member::new(conn, Address { conn: ConnId(conn), shard: ShardIndex(shard), slot: conn + 100 }, true, 0)
    }

    #[test]
    fn recipients_are_sorted_once_and_again_when_somebody_comes_or_leaves() {
        let here = ShardIndex(1);
        let mut members = Members::default();
        for (conn, shard) in [(1, 0), (2, 1), (3, 2), (4, 0)] {
            members.push(member(conn, shard));
        }
        let first = members.recipients(here);
        assert_eq!(*first.local, [(102, ConnId(2))]);
        let lists: Vec<_> = first.remote.iter().map(|(shard, conns)| (shard.0, conns.to_vec())).collect();
        assert_eq!(lists, [(0, vec![ConnId(1), ConnId(4)]), (2, vec![ConnId(3)])]);
        let list = Arc::clone(&first.remote[0].1);
        assert!(Arc::ptr_eq(&list, &members.recipients(here).remote[0].1), "made anew for every window");

        assert_eq!(members.swap_remove(0).conn, ConnId(1));
        assert_eq!(*members.recipients(here).remote[0].1, [ConnId(4)]);
        assert_eq!(*list, [ConnId(1), ConnId(4)], "a letter under way keeps its list");
        members.push(member(5, 1));
        assert_eq!(*members.recipients(here).local, [(102, ConnId(2)), (105, ConnId(5))]);
    }

    #[test]
    fn writers_are_told_from_recipients_wherever_they_stand() {
        let here = ShardIndex(0);
        let mut members = Members::default();
        for conn in 0..4 {
            members.push(member(conn, 0));
        }
        let state = |members: &mut Members| {
            let writers: Vec<u32> = members.privates(0).map(|(_, conn)| conn.0).collect();
            let others: Vec<u32> = members.recipients(here).local.iter().map(|(_, conn)| conn.0).collect();
            let mut findings = Findings::default();
            members.check_invariants(here, &mut findings);
            assert!(findings.broken.is_empty(), "{:?}", findings.broken);
            (writers, others)
        };
        members.note_own(3, 8);
        assert!(members.note_next_own(ConnId(3), 9) && !members.note_next_own(ConnId(1), 10));
        members.note_own(1, 10);
        assert_eq!(members.privates(8).map(|(at, _)| at).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(members.privates(9).map(|(at, _)| at).collect::<Vec<_>>(), [1]);
        assert_eq!(members.silent_writers(9).map(|to| to.conn.0).collect::<Vec<_>>(), [3]);
        assert_eq!(state(&mut members), (vec![3, 1], vec![0, 2]));
        members.swap_remove(0);
        assert_eq!(state(&mut members), (vec![3, 1], vec![2]), "the last writer took the first position");
        members.set_skip_self(1, false);
        assert_eq!(state(&mut members), (vec![3], vec![1, 2]), "it gets its own updates back");
        assert!(members.note_next_own(ConnId(1), 12));
        assert_eq!(members.swap_remove(0).own_end, 9);
        assert_eq!(state(&mut members), (vec![], vec![2, 1]));
        assert_eq!(members.swap_remove(1).own_end, 12);
        assert!(!members.note_next_own(ConnId(1), 13) && members.is_only(ConnId(2)));
        members.set_skip_self(0, false);
        assert!(!members.is_only(ConnId(2)), "it gets its own updates");
        members.set_skip_self(0, true);
        assert!(members.is_only(ConnId(2)) && !members.is_only(ConnId(1)));
    }
}
