//! What the event loop calls back with.

use std::net::SocketAddr;

use throng_gateway::{Closed, ConnKind};
use throng_net::{Accept, CloseCause, ConnKey, Flow, Handler, ListenerKey, TimedOut};
use throng_stdx::Instant;

use super::driver::Driver;

impl Handler for Driver {
    fn polled(&mut self, now: Instant) {
        self.now = now;
        self.heartbeat.begin(now);
    }

    fn accepted(&mut self, listener: ListenerKey, key: ConnKey, peer: SocketAddr) -> Accept {
        let Some(role) = self.listeners.get(&listener).copied() else { return Accept::Refuse };
        let mut accepted = None;
        self.guard(|driver| {
            accepted = Some(driver.shard.accept(driver.now, role.kind, role.framing, peer.ip()));
        });
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
                Accept::Refuse
            }
            None => Accept::Refuse,
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
        // What this round has for others counts as if it were all for one of them.
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
            CloseCause::EndOfStream => Closed::EndOfStream,
            CloseCause::TimedOut(TimedOut::Idle | TimedOut::Ping) => Closed::Idle,
            _ => Closed::Error,
        };
        self.lose(conn, closed);
    }

    fn woken(&mut self) {
        self.woken = true;
    }
}
