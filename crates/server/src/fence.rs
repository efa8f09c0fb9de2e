//! The right to serve a world, which a node of a cluster has only while its lease lasts.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use throng_stdx::Instant;

/// Shared by the thread that keeps the lease and the worker of the world. The worker compares it
/// with its clock before every round, so a process that stood still freezes the world before it
/// sends anything.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    /// Nanoseconds of the process's clock, plus one; 0: closed.
    open_until_ns: AtomicU64,
    players: AtomicU32,
    is_deserted: AtomicBool,
}

impl Fence {
    /// The world may be served up to a time, and no longer.
    pub(crate) fn open_until(&self, until: Instant) {
        self.open_until_ns.store(until.as_nanos() + 1, Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.open_until_ns.store(0, Ordering::Release);
    }

    pub(crate) fn is_open(&self, now: Instant) -> bool {
        now.as_nanos() < self.open_until_ns.load(Ordering::Acquire)
    }

    /// Connections of the world, as its worker saw them last.
    pub(crate) fn players(&self) -> u32 {
        self.players.load(Ordering::Relaxed)
    }

    /// The world had no connection when its worker saw it last, and none that may resume.
    pub(crate) fn is_deserted(&self) -> bool {
        self.is_deserted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_players(&self, players: usize, is_deserted: bool) {
        self.players.store(u32::try_from(players).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.is_deserted.store(is_deserted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_open_up_to_its_time_and_closed_at_first() {
        let fence = Fence::default();
        let at = Instant::from_millis;
        assert!(!fence.is_open(Instant::ZERO) && !fence.is_open(at(1)));
        fence.open_until(at(11));
        assert!(fence.is_open(at(1)) && fence.is_open(at(11)) && !fence.is_open(at(12)));
        fence.close();
        assert!(!fence.is_open(at(1)));
    }
}
