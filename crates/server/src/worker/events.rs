//! Callbacks of the event loop.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use throng_gateway::{Closed, ConnKind, close_code};
use throng_net::{Accept, CloseCause, ConnKey, Flow, Handler, ListenerKey, TimedOut};
use throng_stdx::Instant;

use super::driver::Driver;

/// The answer to a connection that the gateway cannot judge.
const REFUSED: Accept = Accept::Refuse { code: close_code::INTERNAL, reason: "internal" };

impl Handler for Driver {
    fn polled(&mut self, now: Instant) {
        self.now = now;
        self.heartbeat.begin(now);
    }

    fn paused(&mut self, gap: Duration) {
        tracing::warn!(
            shard = self.index,
            gap_ms = gap.as_millis() as u64,
            "the process was stopped or starved"
        );
        self.shard.excuse_pause(gap);
    }

    fn is_proxy(&mut self, addr: IpAddr) -> bool {
        self.shard.is_proxy(addr)
    }

    fn make_room(&mut self, older_than: Option<Instant>) -> bool {
        while let Some(&(accepted, conn)) = self.strangers.front() {
            if self.shard.is_stranger(conn) && older_than.is_some_and(|than| than < accepted) {
                return false;
            }
            self.strangers.pop_front();
            if self.shard.is_stranger(conn) {
                self.guard(|driver| driver.shard.give_way(driver.now, conn));
                return true;
            }
        }
        false
    }

    fn accepted(&mut self, listener: ListenerKey, key: ConnKey, peer: SocketAddr) -> Accept {
        let Some(role) = self.listeners.get(&listener).copied() else { return REFUSED };
        let mut accepted = None;
        self.guard(|driver| {
            let answer = driver.shard.accept(driver.now, role.kind, role.framing, peer.ip());
            if let Ok(new) = &answer
                && role.unproven
            {
                driver.shard.note_unproven(new.conn);
            }
            accepted = Some(answer);
        });
        if let Some(Ok(accepted)) = accepted
            && role.may_give_way
        {
            self.note_stranger(accepted.conn);
        }
        match accepted {
            Some(Ok(accepted)) if accepted.shard.0 == self.index => {
                self.adopt(accepted.conn, role.kind, key);
                self.mark_dirty(accepted.conn);
                if role.kind == ConnKind::Server {
                    self.newcomers.push(key);
                }
                Accept::Keep
            }
            Some(Ok(accepted)) => {
                self.hand_offs.push((key, accepted.conn, accepted.shard, role.kind));
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
        if let Some(conn) = self.conn_of(key) {
            self.guard(|driver| driver.shard.handle_proven(driver.now, conn));
        }
    }

    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
        let Some(conn) = self.conn_of(key) else { return Flow::Continue };
        if self.tap.is_some() {
            self.tap_arrived(conn, bytes);
        }
        self.guard_conn(conn, |driver| {
            #[cfg(test)]
            driver.faults.on_data();
            driver.shard.handle_bytes(driver.now, conn, bytes);
        });
        // Mail of this round counts as if it were all for one receiver.
        if self.others().any(|mailbox| mailbox.has_no_room_for(self.outgoing_bytes)) {
            self.congestions += 1;
            self.paused.push(key);
            return Flow::Pause;
        }
        Flow::Continue
    }

    fn writable(&mut self, key: ConnKey) {
        let Some(conn) = self.conn_of(key) else {
            self.farewells_ready.push(key);
            return;
        };
        if let Some(entry) = self.conns.get_mut(&conn) {
            entry.blocked = false;
        }
        self.mark_dirty(conn);
    }

    fn closed(&mut self, key: ConnKey, cause: CloseCause) {
        let Some(conn) = self.conn_of(key) else {
            self.farewells.remove(&key);
            return;
        };
        tracing::debug!(conn = conn.0, cause = cause.name(), "connection lost");
        let closed = match cause {
            CloseCause::WsClosed { code: Some(close_code::NORMAL) } | CloseCause::Disconnected { .. } => {
                Closed::Left
            }
            // A page that is reloaded says 1001, one that is closed by its browser often nothing.
            CloseCause::EndOfStream | CloseCause::WsClosed { .. } => Closed::EndOfStream,
            CloseCause::TimedOut(TimedOut::Idle | TimedOut::Ping) => Closed::Idle,
            _ => Closed::Error,
        };
        self.lose(conn, closed);
    }

    fn woken(&mut self) {
        self.woken = true;
    }
}
