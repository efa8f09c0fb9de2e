//! A listener's socket with its host, and the assignment of its peers.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use throng_enet::{Host, PeerId};
use throng_stdx::Instant;

use super::envelope::Envelope;
use super::guard::Guard;
use super::sessions::{Inbox, Letter, QUEUE_BYTES_MAX};
use crate::event_loop::ConnKey;
use crate::listener::{Admission, Permit, Rules};
use crate::udp::UdpPort;

/// Progress of the bytes written to a connection; shared between its loop and its owner.
#[derive(Default)]
pub(super) struct Progress {
    /// Bytes that wait for nothing any more: acknowledged, or sent without that.
    pub(super) done: AtomicU64,
}

/// A socket that accepts peers.
pub(super) struct Port {
    pub(super) udp: UdpPort,
    pub(super) guard: Guard,
    pub(super) host: Host,
    pub(super) routes: HashMap<PeerId, Route>,
    pub(super) admission: Arc<Admission>,
    pub(super) rules: Arc<Rules>,
    /// Peers that were sent something which is not acknowledged yet.
    pub(super) watched: Vec<PeerId>,
    /// No new peers; the socket stays for those there are.
    pub(super) closing: bool,
    /// The sockets of the listener, if it has several.
    pub(super) group: Option<Arc<Group>>,
    /// Loop that accepts the new peers, if it is another: its inbox, and the place of its port.
    pub(super) front: Option<(Arc<Inbox>, usize)>,
    /// The kernel's send buffer is full.
    pub(super) blocked: bool,
}

/// Sockets of one listener on several loops.
pub(super) struct Group {
    /// The listener is closed.
    pub(super) closing: AtomicBool,
    /// Copies of the descriptors, so that no socket goes before the last loop does: the kernel
    /// would give the peers of all of them to others.
    pub(super) _sockets: Vec<OwnedFd>,
}

pub(super) struct Route {
    pub(super) place: SocketLocation,
    pub(super) progress: Arc<Progress>,
    pub(super) accepted_bytes: u64,
    pub(super) watched: bool,
    /// The driver closed it; it ends when everything has arrived, at the latest then.
    pub(super) finish_by: Option<Instant>,
    /// The handshake is complete.
    pub(super) connected: bool,
    /// Wrapping of the peer's packets; unknown until the first.
    pub(super) envelope: Option<Envelope>,
    /// Its place in the counts of the listener; `None` for outgoing connections.
    pub(super) _permit: Option<Permit>,
}

pub(super) enum SocketLocation {
    Here(ConnKey),
    There(Arc<Inbox>, ConnKey),
    /// Detached, not attached yet; what it is to be told waits.
    Moving(Vec<Letter>),
}

impl Port {
    pub(super) fn is_closing(&self) -> bool {
        self.closing || self.group.as_ref().is_some_and(|group| group.closing.load(Ordering::Acquire))
    }

    /// Nothing needs the port any more. Sockets of a group stay.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.routes.is_empty() && self.group.is_none()
    }

    pub(super) fn send(&mut self, now: Instant, buf: &mut Vec<u8>) {
        // A socket that has failed altogether sends nothing; its peers time out.
        self.blocked = !self.udp.flush().unwrap_or(true);
        if !self.blocked {
            self.guard.push_own(now, &mut self.udp);
        }
        while !self.blocked
            && let Some(transmit) = self.host.poll_transmit(now, buf)
        {
            self.guard.push(&mut self.udp, transmit, buf);
            if self.udp.pending() >= 64 {
                self.blocked = !self.udp.flush().unwrap_or(true);
            }
        }
        if !self.blocked {
            self.blocked = !self.udp.flush().unwrap_or(true);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.guard.handle_timeout(now, &mut self.host);
        if self.host.next_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
    }

    /// Updates what is known about peers that were sent something. Adds those with room again to
    /// `room`: for which inbox, or here, and under which key.
    pub(super) fn look_after_watched(&mut self, now: Instant, room: &mut Vec<(Option<Arc<Inbox>>, ConnKey)>) {
        let (host, routes) = (&mut self.host, &mut self.routes);
        let mut late = Vec::new();
        self.watched.retain(|&peer| {
            let Some(route) = routes.get_mut(&peer) else { return false };
            let queued = host.peer(peer).map_or(0, |info| info.queued_bytes as u64);
            let done = route.accepted_bytes.saturating_sub(queued);
            let before = route.progress.done.swap(done, Ordering::AcqRel);
            let waiting = route.accepted_bytes - done.min(route.accepted_bytes);
            if done != before && waiting <= QUEUE_BYTES_MAX / 2 {
                match &route.place {
                    SocketLocation::Here(key) => room.push((None, *key)),
                    SocketLocation::There(inbox, key) => room.push((Some(inbox.clone()), *key)),
                    SocketLocation::Moving(_) => {}
                }
            }
            if route.finish_by.is_some_and(|at| at <= now) {
                late.push(peer);
            }
            route.watched = queued > 0 || route.finish_by.is_some();
            route.watched
        });
        for peer in late {
            routes.remove(&peer);
            host.disconnect_now(peer, 0);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let finish = self.watched.iter().filter_map(|peer| self.routes.get(peer)?.finish_by).min();
        let blocked = self.blocked.then_some(Instant::ZERO);
        let guard = self.guard.next_timeout();
        [self.host.next_timeout(), guard, finish, blocked].into_iter().flatten().min()
    }
}
