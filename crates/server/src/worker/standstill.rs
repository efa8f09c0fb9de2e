//! Worlds that stand still because their node may not serve them now.
//!
//! Input waits, nothing is written, and the world's clock does not run, so no deadline and no
//! budget passes. Sockets stay open: the contents of their transports' windows are kept.

use std::sync::Arc;
use std::time::Duration;

use throng_gateway::{CloseReason, Closed, ConnHandle};
use throng_net::ConnKey;
use throng_stdx::Instant;

use super::Worker;
use super::driver::Driver;
use super::host::{Host, Peer, Slot};
use crate::fence::Fence;
use crate::world::World;

/// A round of this length compares the fences again before it writes.
const LONG_ROUND: Duration = Duration::from_secs(1);

/// The right to serve a world, and the times for which it was missing.
pub(super) struct Standstill {
    pub(super) fence: Arc<Fence>,
    /// Begin of the present standstill.
    since: Option<Instant>,
    /// Sum of those before: the world's clock is late by it.
    total: Duration,
    /// Input that waits: one read of a connection at most, because it pauses then.
    held_back: Vec<(ConnHandle, Box<[u8]>)>,
    paused: Vec<ConnKey>,
    /// It has lasted for so long that sockets are closed.
    is_over: bool,
}

impl Standstill {
    /// A world stands still until its fence is open.
    pub(super) fn new(fence: Arc<Fence>, now: Instant) -> Standstill {
        let (total, held_back, paused) = (Duration::ZERO, Vec::new(), Vec::new());
        Standstill { fence, since: Some(now), total, held_back, paused, is_over: false }
    }

    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.total += self.since.take().map_or(Duration::ZERO, |since| now.since(since));
        self.is_over = false;
    }

    /// The world's clock.
    pub(super) fn time(&self, now: Instant) -> Instant {
        self.since.unwrap_or(now) - self.total
    }

    /// The worker's clock at a time of the world's; `None` while that stands still.
    pub(super) fn due(&self, at: Instant) -> Option<Instant> {
        self.since.is_none().then(|| at + self.total)
    }
}

impl Host {
    pub(super) fn stands_still(&self) -> bool {
        self.standstill.as_ref().is_some_and(Standstill::is_on)
    }

    /// Returns whether a new connection may wait for the end of the standstill.
    pub(super) fn takes_connections(&self) -> bool {
        self.standstill.as_ref().is_none_or(|standstill| !standstill.is_over)
    }
}

impl Driver {
    /// Freezes worlds whose fence is closed, and thaws those whose fence is open again.
    pub(super) fn compare_fences(&mut self, now: Instant) {
        if !self.hosts.has_fences() {
            return;
        }
        for slot in self.hosts.slots() {
            let Some(host) = self.hosts.get_mut(slot) else { continue };
            let Some(standstill) = &mut host.standstill else { continue };
            match (standstill.fence.is_open(now), standstill.since) {
                (false, None) => standstill.begin(now),
                // Only at the begin of a round: within it, a world's clock would go back.
                (true, Some(_)) if now == self.now => self.thaw(slot, now),
                (true, _) | (false, Some(_)) => {}
            }
        }
    }

    /// Tells the keeper of the lease how many connections each world has, at the end of a round:
    /// the next one may be far away.
    pub(super) fn count_players(&mut self) {
        if !self.hosts.has_fences() {
            return;
        }
        for (_, host) in self.hosts.iter() {
            // Sockets that are closed by now, unless some are on other threads.
            let is_alone = host.workers.len() == 1;
            host.count_players(if is_alone { host.conns.len() } else { host.shard.live_connections() });
        }
    }

    /// Compares again before output is written, if the round took long.
    pub(super) fn compare_fences_after_work(&mut self) {
        if self.hosts.has_fences() {
            let now = self.clock.now();
            if now.since(self.now) > LONG_ROUND {
                self.compare_fences(now);
            }
        }
    }

    /// A world stops at once: nothing of it is written any more, in this round either.
    pub(super) fn freeze_world(&mut self, world: World) {
        let now = self.now;
        let host = self.hosts.slot_of(world).and_then(|slot| self.hosts.get_mut(slot));
        if let Some(standstill) = host.and_then(|host| host.standstill.as_mut()) {
            standstill.begin(now);
        }
    }

    fn thaw(&mut self, slot: Slot, now: Instant) {
        let Some(host) = self.hosts.get_mut(slot) else { return };
        // Sockets are read before timers run.
        host.timers_from = now + Duration::from_nanos(1);
        let Some(standstill) = &mut host.standstill else { return };
        standstill.end(now);
        let held_back = std::mem::take(&mut standstill.held_back);
        self.paused.append(&mut standstill.paused);
        let conns: Vec<_> = host.conns.keys().copied().collect();
        for (conn, bytes) in held_back {
            let peer = Peer { host: slot, conn };
            self.guard_conn(peer, |host, now| host.shard.handle_bytes(now, conn, &bytes));
        }
        conns.into_iter().for_each(|conn| self.mark_dirty(Peer { host: slot, conn }));
    }

    /// Keeps input of a world that stands still. Returns whether it does.
    pub(super) fn hold_back(&mut self, peer: Peer, key: ConnKey, bytes: &[u8]) -> bool {
        if !self.hosts.has_fences() {
            return false;
        }
        let host = self.hosts.get_mut(peer.host);
        let Some(standstill) = host.and_then(|host| host.standstill.as_mut()) else { return false };
        if standstill.since.is_none() {
            return false;
        }
        standstill.held_back.push((peer.conn, bytes.into()));
        standstill.paused.push(key);
        true
    }

    /// Closes the connections of a world that has stood still for too long. The world stays.
    pub(super) fn evict(&mut self, world: World) {
        let Some(slot) = self.hosts.slot_of(world) else { return };
        let Some(host) = self.hosts.get_mut(slot) else { return };
        let Some(standstill) = host.standstill.as_mut().filter(|standstill| standstill.is_on()) else {
            return;
        };
        standstill.is_over = true;
        let conns: Vec<_> = host.conns.keys().copied().collect();
        for conn in conns {
            let peer = Peer { host: slot, conn };
            self.close(peer, CloseReason::WorldUnavailable, Vec::new());
            self.guard(slot, |host, now| host.shard.handle_closed(now, conn, Closed::Standstill));
        }
    }

    /// Forgets a world that this node gives up: its connections are closed, without another
    /// message.
    pub(super) fn end_world(&mut self, world: World, reason: CloseReason) {
        let Some(slot) = self.hosts.slot_of(world).filter(|slot| *slot != Slot::MAIN) else { return };
        self.empty(slot, reason);
        self.tell_desk_of_end(slot);
        if let Some(host) = self.hosts.close(slot) {
            self.retire(&host);
        }
    }
}

impl Worker {
    /// Takes the connections of worlds that stand still out of those that are written to. A thaw
    /// puts them back.
    pub(super) fn spare_standing(&mut self) {
        let driver = &mut self.driver;
        driver.compare_fences_after_work();
        if !driver.hosts.has_fences() {
            return;
        }
        let mut dirty = std::mem::take(&mut driver.dirty);
        dirty.retain(|peer| {
            let Some(host) = driver.hosts.get_mut(peer.host) else { return false };
            if !host.stands_still() {
                return true;
            }
            if let Some(conn) = host.conns.get_mut(&peer.conn) {
                conn.dirty = false;
            }
            false
        });
        driver.dirty = dirty;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_world_is_late_by_all_its_standstills() {
        let at = Instant::from_millis;
        let mut standstill = Standstill::new(Arc::new(Fence::default()), at(100));
        assert_eq!((standstill.time(at(140)), standstill.due(at(100))), (at(100), None));
        standstill.end(at(150));
        assert_eq!((standstill.time(at(170)), standstill.due(at(130))), (at(120), Some(at(180))));
        standstill.begin(at(200));
        standstill.begin(at(210));
        assert_eq!(standstill.time(at(900)), at(150));
        standstill.end(at(1_000));
        assert_eq!((standstill.time(at(1_001)), standstill.is_on()), (at(151), false));
    }
}
