//! Events and timers of one connection, and its end.

use std::net::SocketAddr;

use super::conn::{Silence, get_mut};
use super::key::{ConnKey, ListenerKey};
use super::{EventLoop, URGENT_READS};
use crate::handler::{Accept, CloseCause, Flow, Handler, TimedOut};
use crate::listener::Permit;
use crate::stream::{End, Phase, Shared, Sink, Stream};
use crate::{proxy, sys, ws};

impl EventLoop {
    /// Lets a stream do something that may reach the handler, and acts on what comes of it.
    pub(super) fn drive<H: Handler>(
        &mut self,
        key: ConnKey,
        handler: &mut H,
        act: impl FnOnce(&mut Stream, &mut Shared<'_>, &mut dyn Sink) -> Result<usize, End>,
    ) {
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        let was_open = conn.stream.phase == Phase::Open;
        let mut sink = ToHandler {
            handler,
            key,
            listener: &mut conn.unknown,
            peer: &mut conn.peer,
            permit: &mut conn.permit,
        };
        let mut shared = Shared {
            scratch: &mut self.scratch,
            plain: &mut self.plain,
            stats: &mut self.stats,
            now: self.now,
        };
        match act(&mut conn.stream, &mut shared, &mut sink) {
            Ok(bytes) => {
                if bytes > 0 {
                    conn.heard = self.now;
                    conn.pinged = false;
                }
                if !was_open && conn.stream.phase == Phase::Open {
                    self.arm_open(key);
                }
                self.requeue(key);
            }
            Err(end) => self.end(key, end, handler),
        }
    }

    pub(super) fn handle_event(&mut self, key: ConnKey, conditions: u32, handler: &mut impl Handler) {
        // An event of a connection that an earlier event of the batch closed.
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        let ended = conditions & (sys::PEER_SHUT | sys::HUNG_UP | sys::FAILED) != 0;
        if conn.stream.phase == Phase::Connecting {
            if conditions & sys::WRITABLE == 0 && !ended {
                return;
            }
            self.drive(key, handler, |stream, shared, sink| stream.start(shared, sink).map(|()| 0));
        }
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        if conditions & sys::WRITABLE != 0 && conn.stream.note_writable(&mut self.stats) {
            handler.writable(key);
        }
        if conditions & sys::READABLE != 0 || ended {
            conn.stream.note_readable(ended);
            if !conn.queued || conn.urgent {
                self.read(key, handler);
            }
        } else {
            // Sending may have failed.
            self.requeue(key);
        }
    }

    /// Gives a connection its share of reading.
    pub(super) fn read(&mut self, key: ConnKey, handler: &mut impl Handler) {
        let reads = if self.conn_mut(key).is_some_and(|conn| conn.urgent) { URGENT_READS } else { 1 };
        for _ in 0..reads {
            if !self.conn_mut(key).is_some_and(|conn| conn.stream.has_work()) {
                return;
            }
            if !handler.may_read(key) {
                return self.requeue(key);
            }
            self.drive(key, handler, |stream, shared, sink| stream.read(shared, sink));
        }
    }

    pub(super) fn handle_timer(&mut self, key: ConnKey, handler: &mut impl Handler) {
        let now = self.now;
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        conn.timer = None;
        let timed_out = match conn.stream.phase {
            Phase::Connecting => TimedOut::Connect,
            Phase::Handshaking => TimedOut::Handshake,
            Phase::Lingering => {
                self.remove(key);
                return;
            }
            Phase::Open => match conn.check_silence(now) {
                Silence::Fine => return self.arm_open(key),
                Silence::Ping => {
                    conn.stream.ping(&mut self.stats);
                    self.requeue(key);
                    return self.arm_open(key);
                }
                Silence::TooLong(timed_out) => timed_out,
            },
        };
        // A page that slept hears why; nobody waits for one that has vanished.
        let lingers = conn.stream.phase == Phase::Open && conn.stream.is_websocket();
        let end = End { cause: Some(CloseCause::TimedOut(timed_out)), lingers };
        self.end(key, end, handler);
    }

    /// Sets the timer of a connection that is ready: to the next moment at which silence would
    /// matter.
    pub(super) fn arm_open(&mut self, key: ConnKey) {
        if let Some(conn) = self.conn_mut(key) {
            let at = conn.next_silence();
            self.set_timer(key, at);
        }
    }

    /// Ends a connection for a reason that the driver does not know yet.
    fn end(&mut self, key: ConnKey, end: End, handler: &mut impl Handler) {
        let Some(conn) = get_mut(&mut self.conns, key) else { return };
        let (unknown, peer) = (conn.unknown, conn.peer);
        if conn.stream.phase == Phase::Lingering {
            self.remove(key);
            return;
        }
        if end.lingers {
            let (code, reason) = match end.cause {
                Some(CloseCause::TimedOut(_)) => (ws::CLOSE_IDLE, "idle_timeout"),
                _ => (1000, ""),
            };
            conn.stream.finish(code, reason, &mut self.stats);
            self.linger(key);
        } else {
            self.remove(key);
        }
        match (unknown, end.cause) {
            (None, Some(cause)) => handler.closed(key, cause),
            (Some(listener), Some(cause)) => {
                self.stats.handshakes_failed += 1;
                handler.handshake_failed(listener, peer, cause);
            }
            (_, None) => self.stats.refused_by_handler += 1,
        }
    }

    /// Gives a connection that said goodbye its time.
    pub(super) fn linger(&mut self, key: ConnKey) {
        let Some(conn) = self.conn_mut(key) else { return };
        let flush_timeout = conn.rules.limits.flush_timeout;
        self.lingering.push_back(key);
        self.set_timer(key, Some(self.now + flush_timeout));
        self.requeue(key);
    }

    /// Ends connections that only say goodbye while newcomers find no place, the oldest first.
    pub(super) fn end_lingering(&mut self) {
        while let Some(&key) = self.lingering.front() {
            match self.conn_mut(key).map(|conn| conn.permit.as_ref()) {
                Some(permit) if !permit.is_some_and(Permit::is_wanted) => return,
                _ => {
                    self.lingering.pop_front();
                    self.remove(key);
                }
            }
        }
    }
}

/// Passes on what a stream has to tell.
struct ToHandler<'a, H> {
    handler: &'a mut H,
    key: ConnKey,
    /// Taken once the handler knows of the connection.
    listener: &'a mut Option<ListenerKey>,
    peer: &'a mut SocketAddr,
    permit: &'a mut Option<Permit>,
}

impl<H: Handler> Sink for ToHandler<'_, H> {
    fn comes_from(&mut self, addr: SocketAddr) -> bool {
        *self.peer = addr;
        let exempt = self.handler.is_proxy(addr.ip());
        let permitted = exempt || self.permit.as_mut().is_none_or(|permit| permit.comes_from(addr.ip()));
        permitted && self.listener.is_none_or(|listener| self.handler.admit(listener, addr))
    }

    fn forwarded_for(&mut self, list: &str) -> bool {
        let addr = proxy::behind(*self.peer, list, |ip| self.handler.is_proxy(ip));
        addr == *self.peer || self.comes_from(addr)
    }

    fn requested(&mut self, path: &str) {
        self.handler.requested(self.key, path);
    }

    fn ready(&mut self) -> Accept {
        match self.listener.take() {
            Some(listener) => self.handler.accepted(listener, self.key, *self.peer),
            None => {
                self.handler.connected(self.key);
                Accept::Keep
            }
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Flow {
        self.handler.data(self.key, bytes)
    }
}
