//! One session: its protocol state, its socket, the way back to its port.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use throng_stdx::{Instant, TimerKey};

use super::{Inbox, Letter};
use crate::config::Limits;
use crate::event_loop::ListenerKey;
use crate::kcp::{Kcp, Profile};
use crate::listener::{Permit, Rules, canonical};

/// Source of a session's datagrams.
pub(super) enum Home {
    /// A socket of its own.
    Own,
    /// A port of the same loop.
    Here(ListenerKey),
    /// A port of another loop, or of this one before the session travelled.
    There(Address),
}

/// A session's way back to its port; dropping it tells the port that the session is no more.
pub(super) struct Address {
    pub(super) owner: Arc<Inbox>,
    pub(super) port: ListenerKey,
    pub(super) peer: SocketAddr,
    pub(super) conv: u32,
}

impl Drop for Address {
    fn drop(&mut self) {
        self.owner.post(Letter::Ended { port: self.port, peer: self.peer, conv: self.conv });
    }
}

pub(crate) struct Session {
    pub(super) generation: u32,
    /// As the socket knows it, see [`canonical`].
    pub(super) peer: SocketAddr,
    /// The own address that it began at, where the socket serves several.
    pub(super) local: Option<IpAddr>,
    pub(super) kcp: Kcp,
    pub(super) profile: Profile,
    pub(super) socket: Arc<UdpSocket>,
    pub(super) home: Home,
    pub(super) _permit: Option<Permit>,
    /// Held until the peer's address has proven itself.
    pub(super) unproven: Option<Permit>,
    pub(super) rules: Arc<Rules>,
    pub(super) born: Instant,
    /// Arrival of the session's latest datagram.
    pub(super) heard: Instant,
    pub(super) probed: Instant,
    pub(super) timer: Option<(Instant, TimerKey)>,
    /// `Handler::connected` is still to be called.
    pub(super) fresh: bool,
    pub(super) paused: bool,
    /// The driver was told that the session is blocked and waits for news.
    pub(super) wanted: bool,
    /// The driver closed it; it ends when everything has arrived, at the latest then.
    pub(super) finish_by: Option<Instant>,
    /// In the list of sessions that may have something to send.
    pub(super) dirty: bool,
}

impl Session {
    pub(super) fn idle_timeout(&self) -> Duration {
        self.rules.limits.idle_timeout.unwrap_or(Limits::KCP_IDLE_TIMEOUT)
    }

    /// Time of the next probe of a silent peer: early enough that two probes may be lost.
    pub(super) fn probe_at(&self) -> Instant {
        self.heard.max(self.probed) + self.idle_timeout() / 3
    }

    pub(super) fn next_timeout(&self) -> Instant {
        let unproven = (!self.kcp.is_proven()).then(|| self.born + self.rules.limits.handshake_timeout);
        let silence = (self.heard + self.idle_timeout()).min(self.probe_at());
        [self.kcp.next_timeout(), unproven, self.finish_by].into_iter().flatten().fold(silence, Instant::min)
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        canonical(self.peer)
    }

    /// Its socket, if no other session shares it.
    pub(crate) fn own_fd(&self) -> Option<BorrowedFd<'_>> {
        matches!(self.home, Home::Own).then(|| self.socket.as_fd())
    }

    /// The driver is to hear of something that no datagram or timer will bring up again.
    pub(super) fn has_news(&self) -> bool {
        self.fresh || self.kcp.is_dead() || self.has_room_again() || (!self.paused && self.kcp.has_received())
    }

    pub(super) fn has_room_again(&self) -> bool {
        self.wanted && self.kcp.unsent_segments() <= self.queue_segments_max() / 2
    }

    /// Segments that may wait to be sent before the session counts as blocked.
    pub(super) fn queue_segments_max(&self) -> usize {
        (usize::from(self.profile.window) * 2).clamp(64, 512)
    }
}
