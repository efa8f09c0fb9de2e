//! The members of a cohort, and the recipients of what all of them get.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Member;
use crate::findings::Findings;
use crate::ids::{ConnId, ShardIndex};

/// Members in no particular order; the last one takes the position of one that leaves.
#[derive(Debug, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    /// Positions of those that have sent updates and want none of their own back. They are few, an
    /// owner often, except where all members write.
    writers: Vec<u32>,
    /// All other members. Made at the end of a window and kept until somebody comes, leaves or
    /// begins to write: windows end far more often than that.
    recipients: Option<Recipients>,
}

impl Member {
    fn is_writer(&self) -> bool {
        self.skip_self && self.own_end > 0
    }
}

/// Receivers of one payload, sorted by shard once for many payloads. 4 bytes per member beside the
/// 24 of the member, 8 on the home of the channel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recipients {
    /// Slots of this shard.
    pub(crate) local: Box<[(u32, ConnId)]>,
    pub(crate) remote: SmallVec<[(ShardIndex, Arc<[ConnId]>); 4]>,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[Member] {
        &self.list
    }

    pub(super) fn writers(&self) -> impl Iterator<Item = &Member> + Clone {
        self.writers.iter().map(|&at| &self.list[at as usize])
    }

    pub(super) fn get(&self, at: u32) -> Option<&Member> {
        self.list.get(at as usize)
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
        let member = self.list.swap_remove(at as usize);
        if member.is_writer() {
            self.writers.retain(|writer| *writer != at);
        }
        if self.list.get(at as usize).is_some_and(Member::is_writer) {
            let last = self.list.len() as u32;
            self.writers.iter_mut().filter(|writer| **writer == last).for_each(|writer| *writer = at);
        }
        member
    }

    /// The member's latest own update is the one before index `end`.
    pub(super) fn set_own_end(&mut self, at: u32, end: u64) {
        self.change(at, |member| member.own_end = end);
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
        self.recipients.get_or_insert_with(|| Recipients::of(list, here))
    }

    pub(super) fn check_invariants(&self, here: ShardIndex, findings: &mut Findings) {
        let mut writers = self.writers.clone();
        writers.sort_unstable();
        let expected = (0..).zip(&self.list).filter(|(_, member)| member.is_writer()).map(|(at, _)| at);
        findings.expect(writers.iter().copied().eq(expected), "the writers are not those who wrote");
        let current = self.recipients.as_ref().is_none_or(|it| *it == Recipients::of(&self.list, here));
        findings.expect(current, "recipients are not the members that do not write");
    }
}

impl Recipients {
    fn of(members: &[Member], here: ShardIndex) -> Self {
        let readers = members.iter().filter(|member| !member.is_writer());
        let on = |shard| readers.clone().filter(move |member| member.shard == shard);
        let mut shards: SmallVec<[ShardIndex; 8]> = SmallVec::new();
        for member in readers.clone() {
            if member.shard != here && !shards.contains(&member.shard) {
                shards.push(member.shard);
            }
        }
        Self {
            local: on(here).map(|member| (member.slot, member.conn)).collect(),
            remote: shards
                .into_iter()
                .map(|shard| (shard, on(shard).map(|member| member.conn).collect()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switchboard::Address;

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
            let writers: Vec<u32> = members.writers().map(|member| member.conn.0).collect();
            let others: Vec<u32> = members.recipients(here).local.iter().map(|(_, conn)| conn.0).collect();
            let mut findings = Findings::default();
            members.check_invariants(here, &mut findings);
            assert!(findings.broken.is_empty(), "{:?}", findings.broken);
            (writers, others)
        };
        members.set_own_end(3, 8);
        members.set_own_end(3, 9);
        members.set_own_end(1, 10);
        assert_eq!(state(&mut members), (vec![3, 1], vec![0, 2]));
        members.swap_remove(0);
        assert_eq!(state(&mut members), (vec![3, 1], vec![2]), "the last writer took the first position");
        members.set_skip_self(1, false);
        assert_eq!(state(&mut members), (vec![3], vec![1, 2]), "it gets its own updates back");
        members.swap_remove(0);
        assert_eq!(state(&mut members), (vec![], vec![2, 1]));
    }
}
