//! Panics of shards, and the driver's part of the recovery: what the core cannot heal ends the life
//! of the world.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use throng_gateway::{CloseReason, Closed, ConnHandle, Shard, ShardIndex, failpoint};
use throng_stdx::Instant;

use super::World;

/// Strikes of failpoints, and their results.
#[derive(Debug, Default)]
pub(super) struct Panics {
    is_armed: bool,
    struck: u64,
    restarts: u64,
}

impl World {
    /// A shard panics at the `passes`th place that it passes from now on, of those that `choice`
    /// picks. A build without debug assertions has no such places.
    pub fn strike(&mut self, passes: u32, choice: u64) {
        self.panics.is_armed = failpoint::arm_some(passes, choice);
    }

    /// Takes back a strike that has not happened.
    pub fn spare(&mut self) {
        failpoint::disarm();
        self.panics.is_armed = false;
    }

    /// Panics so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.panics.struck
    }

    /// Number of times that the world has begun again, empty.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.panics.restarts
    }

    /// Gives a shard an input. False after a strike; any other panic is a defect and continues.
    pub(super) fn guard(&mut self, shard: ShardIndex, input: impl FnOnce(&mut Shard, Instant)) -> bool {
        let now = self.now;
        let target = &mut self.shards[usize::from(shard.0)].shard;
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| input(target, now))) else { return true };
        if !self.panics.is_armed || failpoint::disarm() {
            resume_unwind(panic);
        }
        self.panics.is_armed = false;
        self.panics.struck += 1;
        if !target.heal().is_empty() {
            self.restart();
        }
        false
    }

    /// As [`World::guard`], for an input that comes from one connection: a panic closes it.
    pub(super) fn guard_conn(
        &mut self,
        shard: ShardIndex,
        conn: ConnHandle,
        input: impl FnOnce(&mut Shard, Instant),
    ) {
        let life = self.restarts();
        if self.guard(shard, input) || self.restarts() != life {
            return;
        }
        self.guard(shard, |shard, now| shard.handle_closed(now, conn, Closed::Error));
        self.drain(shard);
        self.close(conn, CloseReason::Internal, &[]);
    }

    /// Begins another life on all shards at once: every connection is closed, and nothing that was
    /// on its way arrives.
    fn restart(&mut self) {
        self.panics.restarts += 1;
        for conn in self.sockets.keys().copied().collect::<Vec<_>>() {
            self.close(conn, CloseReason::Restarted, &[]);
        }
        for index in 0..self.shards.len() {
            let seed = self.rng.next_u64();
            let slot = &mut self.shards[index];
            slot.inbox.clear();
            slot.shard = slot.shard.restarted(seed);
            assert_eq!(slot.shard.check_invariants(), []);
            self.drain(ShardIndex(index as u16));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The failpoints are the thread's, and it plays other worlds.
        self.spare();
    }
}
