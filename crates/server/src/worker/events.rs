//! Callbacks of the event loop.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use throng_gateway::{AcceptRefusal, Accepted, CloseReason, Closed, ConnKind, WorldChoice, close_code};
use throng_net::{Accept, CloseCause, ConnKey, Flow, Handler, ListenerKey, TimedOut};
use throng_stdx::Instant;

use super::driver::{Driver, HandOff};
use super::host::{Host, Peer, Slot};
use super::turn::Turn;

/// The answer to a connection that the gateway cannot judge.
const REFUSED: Accept = Accept::Refuse { code: close_code::INTERNAL, reason: "internal" };

impl Handler for Driver {
    fn polled(&mut self, now: Instant) {
        self.now = now;
        self.heartbeat.begin(now);
        self.begin_turns(Turn::begin);
        self.compare_fences(now);
    }

    fn paused(&mut self, gap: Duration) {
        tracing::warn!(
            shard = self.index,
            gap_ms = gap.as_millis() as u64,
            "the process was stopped or starved"
        );
        for slot in self.hosts.slots() {
            if let Some(host) = self.hosts.get_mut(slot) {
                host.shard.excuse_pause(gap);
            }
        }
    }

    fn is_proxy(&mut self, addr: IpAddr) -> bool {
        self.hosts.get(Slot::MAIN).is_some_and(|host| host.shard.is_proxy(addr))
    }

    fn make_room(&mut self, older_than: Option<Instant>) -> bool {
        while let Some(&(accepted, peer)) = self.strangers.front() {
            let is_stranger = self.is_stranger(peer);
            if is_stranger && older_than.is_some_and(|than| than < accepted) {
                return false;
            }
            self.strangers.pop_front();
            if is_stranger {
                self.guard(peer.host, |host, now| host.shard.give_way(now, peer.conn));
                return true;
            }
        }
        false
    }

    fn requested(&mut self, key: ConnKey, path: &str) {
        self.requested = path.strip_prefix("/w/").map(|world| (key, world.into()));
    }

    fn accepted(&mut self, listener: ListenerKey, key: ConnKey, peer: SocketAddr) -> Accept {
        let Some(role) = self.listeners.get(&listener).cloned() else { return REFUSED };
        let slot = match role.world.as_deref().filter(|_| !role.waits) {
            None => Some(Slot::MAIN),
            Some(name) => self.hosts.slot_of_name(name),
        };
        let slot = slot.filter(|slot| self.hosts.get(*slot).is_some_and(Host::takes_connections));
        let Some(slot) = slot else {
            let refusal = AcceptRefusal::WorldNotOpen;
            self.guard(Slot::MAIN, |host, _| host.shard.count_refused(refusal));
            return Accept::Refuse { code: refusal.close_code(), reason: refusal.name() };
        };
        let requested = self.requested.take().filter(|(of, _)| *of == key).map(|(_, world)| world);
        let bound = role.world.as_deref().filter(|_| role.waits);
        if let (Some(bound), Some(requested)) = (bound, &requested)
            && *bound != **requested
        {
            let reason = CloseReason::WorldMismatch;
            return Accept::Refuse { code: close_code::WORLD_MISMATCH, reason: reason.name() };
        }
        let by_listener = bound.is_some();
        let asked = bound.map(Box::from).or(requested).map(|world| WorldChoice { world, by_listener });
        if !self.worlds.connections.reserve() {
            let refusal = AcceptRefusal::ConnectionsMax;
            self.guard(slot, |host, _| host.shard.count_refused(refusal));
            return Accept::Refuse { code: refusal.close_code(), reason: refusal.name() };
        }
        if let Some(host) = self.hosts.get_mut(slot) {
            // Given back with the account of the input if the world does not take it.
            host.counted += 1;
        }
        let mut accepted = None;
        self.guard(slot, |host, now| {
            let answer = host.shard.accept(now, role.kind, role.framing, peer.ip());
            accepted = Some(answer.map(|new| {
                if role.unproven {
                    host.shard.note_unproven(new.conn);
                }
                if let Some(asked) = asked {
                    host.shard.note_asked(new.conn, asked);
                }
                (new, host.worker_of(new.shard))
            }));
        });
        let new = |accepted: Accepted| Peer { host: slot, conn: accepted.conn };
        if let Some(Ok((accepted, _))) = accepted
            && role.may_give_way
        {
            self.note_stranger(new(accepted));
        }
        match accepted {
            Some(Ok((accepted, worker))) if worker == self.index => {
                self.adopt(new(accepted), role.kind, key);
                self.mark_dirty(new(accepted));
                if role.kind == ConnKind::Server {
                    self.newcomers.push(key);
                }
                Accept::Keep
            }
            Some(Ok((accepted, _))) => {
                let (peer, shard, kind) = (new(accepted), accepted.shard, role.kind);
                self.hand_offs.push(HandOff { key, peer, shard, kind });
                Accept::HandOff
            }
            Some(Err(refusal)) => {
                tracing::debug!(%peer, reason = refusal.name(), "connection refused");
                Accept::Refuse { code: refusal.close_code(), reason: refusal.name() }
            }
            None => REFUSED,
        }
    }

    fn proven(&mut self, key: ConnKey) {
        if let Some(peer) = self.conn_of(key) {
            self.guard(peer.host, |host, now| host.shard.handle_proven(now, peer.conn));
        }
    }

    fn may_read(&mut self, key: ConnKey) -> bool {
        let Some(peer) = self.conn_of(key) else { return true };
        let takes_turns = self.hosts.are_several();
        let Some(host) = self.hosts.get_mut(peer.host) else { return true };
        if !takes_turns && !host.turn.is_waiting() {
            return true;
        }
        host.conns.get_mut(&peer.conn).is_none_or(|conn| host.turn.admits(&mut conn.share))
    }

    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
        let Some(peer) = self.conn_of(key) else { return Flow::Continue };
        if self.hold_back(peer, key, bytes) {
            return Flow::Pause;
        }
        if self.tap.is_some() {
            self.tap_arrived(peer, bytes);
        }
        let began = self.step_begins();
        self.guard_conn(peer, |host, now| {
            #[cfg(test)]
            host.turn.charge(host.faults.on_data(host.epoch.world, now));
            host.shard.handle_bytes(now, peer.conn, bytes);
        });
        self.step_ends(peer.host, began);
        // Mail of this round counts as if it were all for one receiver.
        if self.others().any(|mailbox| mailbox.has_no_room_for(self.outgoing.bytes)) {
            self.congestions += 1;
            self.paused.push(key);
            return Flow::Pause;
        }
        Flow::Continue
    }

    fn writable(&mut self, key: ConnKey) {
        let Some(peer) = self.conn_of(key) else {
            self.farewells_ready.push(key);
            return;
        };
        let host = self.hosts.get_mut(peer.host);
        if let Some(entry) = host.and_then(|host| host.conns.get_mut(&peer.conn)) {
            entry.blocked = false;
        }
        self.mark_dirty(peer);
    }

    fn closed(&mut self, key: ConnKey, cause: CloseCause) {
        let Some(peer) = self.conn_of(key) else {
            self.farewells.remove(&key);
            return;
        };
        tracing::debug!(conn = peer.conn.0, cause = cause.name(), "connection lost");
        let closed = match cause {
            CloseCause::WsClosed { code: Some(close_code::NORMAL) } | CloseCause::Disconnected { .. } => {
                Closed::Left
            }
            // A page that is reloaded says 1001, one that is closed by its browser often nothing.
            CloseCause::EndOfStream | CloseCause::WsClosed { .. } => Closed::EndOfStream,
            CloseCause::TimedOut(TimedOut::Idle | TimedOut::Ping) => Closed::Idle,
            _ => Closed::Error,
        };
        self.lose(peer, closed);
    }

    fn woken(&mut self) {
        self.woken = true;
    }
}
