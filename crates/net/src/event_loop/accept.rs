//! Accepting connections, within the limits of the process and the listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::conn::{Conn, get_mut};
use super::key::ListenerKey;
use super::{EventLoop, Timer};
use crate::handler::{CloseCause, Handler};
use crate::listener::{Permit, Rules};
use crate::stream::{Phase, Stream};
use crate::sys;

/// Connections accepted from one listener per poll; the rest stays queued, so that a flood of
/// connections cannot starve those that are open.
const ACCEPTS_PER_POLL: usize = 64;
/// Rest of a listener after descriptors ran out or an accept failed for lack of memory.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Silence after which the kernel probes a TCP peer, and the time between its probes. The
/// reference's runtime takes 15 seconds for both (Spec: gateway-protocol §2.7); with 10,000 idle
/// connections that is 670 probes and as many answers a second for nothing, and a quarter of it
/// finds a vanished peer within three minutes as well.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

impl EventLoop {
    pub(super) fn accept(&mut self, key: ListenerKey, handler: &mut impl Handler) {
        let mut made = 0;
        for _ in 0..ACCEPTS_PER_POLL {
            let Some(listener) = self.listeners.get_mut(key.slot()) else { return };
            match listener.accept() {
                Ok((fd, peer)) => {
                    self.stats.accepted += 1;
                    let is_proxy = handler.is_proxy(peer.ip());
                    if listener.proxy_protocol && !is_proxy {
                        self.stats.proxy_errors += 1;
                        continue;
                    }
                    let (shortage, spared) =
                        (listener.shortage(&fd), listener.rules.limits.descriptors_spared);
                    // As many as are too many, not only one for this newcomer: others may have
                    // taken lower numbers that became free.
                    while made < shortage && self.make_room(handler) {
                        made += 1;
                    }
                    if made < shortage || shortage > spared / 2 {
                        self.stats.shed += 1;
                        continue;
                    }
                    let ip = (!is_proxy).then(|| peer.ip());
                    let Some(listener) = self.listeners.get(key.slot()) else { return };
                    let mut permit = listener.admission.permit(ip);
                    if permit.is_none() {
                        self.end_lingering();
                        let Some(listener) = self.listeners.get(key.slot()) else { return };
                        permit = listener.admission.permit(ip);
                    }
                    let Some(permit) = permit else {
                        self.stats.refused_by_limits += 1;
                        continue;
                    };
                    let Some(listener) = self.listeners.get(key.slot()) else { return };
                    if !handler.admit(key, peer) {
                        self.stats.refused_by_handler += 1;
                        continue;
                    }
                    let rules = listener.rules.clone();
                    match listener.stream(fd) {
                        Ok(stream) => self.take_in(key, stream, peer, permit, rules, handler),
                        Err(error) => {
                            self.stats.handshakes_failed += 1;
                            handler.handshake_failed(key, peer, CloseCause::Tls(error));
                        }
                    }
                    if shortage > spared / 4 {
                        // Those that give way do so at the end of the round.
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    self.stats.accept_errors += 1;
                    self.stats.shed += self.reserve.shed(listener, ACCEPTS_PER_POLL) as u64;
                    return self.rest_listener(key);
                }
                Err(error) if sys::is_out_of_memory(&error) => {
                    self.stats.accept_errors += 1;
                    return self.rest_listener(key);
                }
                // The connection ended while it was queued (ECONNABORTED and its kin); the next may
                // be fine.
                Err(_) => self.stats.accept_errors += 1,
            }
        }
    }

    fn take_in(
        &mut self,
        listener: ListenerKey,
        stream: Stream,
        peer: SocketAddr,
        permit: Permit,
        rules: Arc<Rules>,
        handler: &mut impl Handler,
    ) {
        // Options fail only if the connection is gone already, which the first read will report.
        drop(stream.set_no_delay());
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        drop(SockRef::from(&stream.fd()).set_tcp_keepalive(&keepalive));
        let deadline = self.now + rules.limits.handshake_timeout;
        let may_give_way = rules.limits.descriptors_spared > 0;
        let Ok(key) = self.insert(stream, peer, Some(permit), rules, Some(listener)) else {
            self.stats.accept_errors += 1;
            return;
        };
        self.drive(key, handler, |stream, shared, sink| stream.start(shared, sink).map(|()| 0));
        if self.conn_mut(key).is_some_and(|conn| conn.stream.phase == Phase::Handshaking) {
            self.set_timer(key, Some(deadline));
            if may_give_way {
                self.strangers.push_back((self.now, key));
            }
        }
    }

    /// Closes a connection for a newcomer, or has the handler close one: one that only says
    /// goodbye, else the oldest without a handshake or login.
    fn make_room(&mut self, handler: &mut impl Handler) -> bool {
        while let Some(key) = self.lingering.pop_front() {
            if self.remove(key).is_some() {
                return true;
            }
        }
        let is_stranger = |conn: &Conn| conn.stream.phase == Phase::Handshaking;
        while let Some(&(_, key)) = self.strangers.front()
            && !get_mut(&mut self.conns, key).is_some_and(|conn| is_stranger(conn))
        {
            self.strangers.pop_front();
        }
        let oldest = self.strangers.front().copied();
        let made = handler.make_room(oldest.map(|(accepted, _)| accepted))
            || oldest.is_some_and(|(_, key)| self.remove(key).is_some());
        self.stats.gave_way += u64::from(made);
        made
    }

    fn rest_listener(&mut self, key: ListenerKey) {
        if let Some(listener) = self.listeners.get_mut(key.slot())
            && self.epoll.remove(listener.fd()).is_ok()
        {
            listener.resting = true;
            self.timers.insert(self.now + ACCEPT_REST, Timer::Listener(key));
        }
    }

    pub(super) fn wake_listener(&mut self, key: ListenerKey) {
        if let Some(listener) = self.listeners.get_mut(key.slot())
            && listener.resting
        {
            if self.epoll.add(listener.fd(), key.token(), sys::READABLE).is_ok() {
                listener.resting = false;
            } else {
                self.timers.insert(self.now + ACCEPT_REST, Timer::Listener(key));
            }
        }
    }
}
