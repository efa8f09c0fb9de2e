//! Interface between a loop and its driver.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use throng_stdx::Instant;

use crate::event_loop::{ConnKey, ListenerKey};
use crate::proxy::ProxyError;
use crate::ws;

/// Receives what happens on a loop's sockets.
///
/// Calls come only from inside [`EventLoop::poll`](crate::EventLoop::poll). For every connection
/// the order is `accepted` or `connected`, then any number of `data` and `writable`, then `closed`
/// once; after `closed`, or after the driver closed or detached the connection itself, nothing more
/// is heard of its key.
pub trait Handler {
    /// A wait ended; `now` is the time of all calls until the next one. Always the first call of a
    /// poll.
    fn polled(&mut self, now: Instant) {
        let _ = now;
    }

    /// The process did nothing for `gap`: it was stopped, or had no processor. What has arrived
    /// meanwhile is about to be told; deadlines by which peers should have been heard do not count
    /// the gap.
    fn paused(&mut self, gap: Duration) {
        let _ = gap;
    }

    /// A connection was taken off a listener's queue, before any handshake, or a proxy has reported
    /// its address. `false` closes it at once, at the price of one system call: the place for bans.
    fn admit(&mut self, listener: ListenerKey, peer: SocketAddr) -> bool {
        let _ = (listener, peer);
        true
    }

    /// An address belongs to a proxy that is trusted: the addresses that it reports count as those
    /// of peers.
    fn is_proxy(&mut self, addr: IpAddr) -> bool {
        let _ = addr;
        false
    }

    /// Few descriptors are left: closes the oldest connection whose peer may give way, if it was
    /// accepted before `older_than`. Returns whether there was one.
    fn make_room(&mut self, older_than: Option<Instant>) -> bool {
        let _ = older_than;
        false
    }

    /// A connection is ready for use: all handshakes are complete. Behind a trusted proxy, `peer`
    /// is the address that it reports.
    fn accepted(&mut self, listener: ListenerKey, key: ConnKey, peer: SocketAddr) -> Accept;

    /// The request of a WebSocket that is about to be accepted names `path`, without its query.
    fn requested(&mut self, key: ConnKey, path: &str) {
        let _ = (key, path);
    }

    /// The peer of an accepted connection owns its address. Only KCP needs that said: its
    /// connections are accepted by a datagram on which anyone can write anybody's address.
    fn proven(&mut self, key: ConnKey) {
        let _ = key;
    }

    /// An outgoing connection is ready for use: all handshakes are complete.
    fn connected(&mut self, key: ConnKey) {
        let _ = key;
    }

    /// A stream has input. `false` leaves it there until the next poll, behind other connections.
    fn may_read(&mut self, key: ConnKey) -> bool {
        let _ = key;
        true
    }

    /// Bytes arrived, in stream order and never empty.
    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow;

    /// An accepted connection ended before it was ready, so that `accepted` was never called for
    /// it.
    fn handshake_failed(&mut self, listener: ListenerKey, peer: SocketAddr, cause: CloseCause) {
        let _ = (listener, peer, cause);
    }

    /// There is room to write again after a write was [blocked](WriteOutcome::blocked).
    fn writable(&mut self, key: ConnKey);

    /// The connection ended for a reason that the driver did not ask for.
    fn closed(&mut self, key: ConnKey, cause: CloseCause);

    /// The loop's [`Waker`](crate::Waker) was used since the last call; several uses may make one
    /// call.
    fn woken(&mut self);
}

/// Decision of the driver about a ready connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Serve it on this loop.
    Keep,
    /// Do not read from it here: the driver is about to [detach](crate::EventLoop::detach) it.
    HandOff,
    /// Close it. WebSocket and ENet peers are told a code.
    Refuse {
        /// Spec: RFC 6455 §7.4
        code: u16,
        /// For people; at most 123 bytes.
        reason: &'static str,
    },
}

/// Decision to continue or pause a connection's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More is welcome.
    Continue,
    /// Nothing more until [`EventLoop::resume_read`](crate::EventLoop::resume_read). The kernel's
    /// window then slows the peer down.
    Pause,
}

/// Way to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// Deliver what was written, say goodbye as the transport does, and give the peer until the
    /// listener's [`flush_timeout`](crate::Limits::flush_timeout) to take it.
    Flush,
    /// Drop the connection and whatever has not left yet.
    Now,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct WriteOutcome {
    /// Bytes taken from the front of the slices; the caller keeps the rest.
    pub taken: usize,
    /// The connection takes no more for now. [`Handler::writable`] (or [`Handler::closed`]) will be
    /// called; writing before that takes nothing.
    pub blocked: bool,
}

/// Why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseCause {
    /// The peer ended its stream in an orderly way.
    EndOfStream,
    /// The connection was reset or failed otherwise.
    Failed(io::Error),
    /// An outgoing connection did not come about.
    ConnectFailed(io::Error),
    /// Something took too long.
    TimedOut(TimedOut),
    /// The TLS peer broke the protocol, or one end does not trust the other.
    Tls(rustls::Error),
    /// The stream does not begin with a proxy's header that is served.
    Proxy(ProxyError),
    /// The WebSocket peer said goodbye, with a code if it gave one.
    WsClosed {
        /// Spec: RFC 6455 §7.4
        code: Option<u16>,
    },
    /// The WebSocket peer broke the protocol; it was told.
    WsProtocol(ws::ProtocolError),
    /// A request for a WebSocket was refused; the peer was told.
    WsRejected(ws::Rejection),
    /// The server did not open a WebSocket for us.
    WsRefused(ws::ResponseError),
    /// The ENet peer disconnected.
    Disconnected {
        /// The number that it gave as its reason; 0 for none.
        code: u32,
    },
    /// The KCP or ENet peer does not acknowledge what is sent to it.
    DeadLink,
    /// The KCP or ENet peer began a new session from the same address.
    Replaced,
    /// The peer sent more than a paused connection holds; or its ENet packets, which could not be
    /// delivered yet, made room for those of others.
    Overrun,
}

impl CloseCause {
    /// A short fixed name, for counters and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::EndOfStream => "end_of_stream",
            Self::Failed(error) if error.kind() == io::ErrorKind::ConnectionReset => "reset",
            Self::Failed(_) => "io_error",
            Self::ConnectFailed(_) => "connect_failed",
            Self::TimedOut(TimedOut::Connect) => "connect_timeout",
            Self::TimedOut(TimedOut::Handshake) => "handshake_timeout",
            Self::TimedOut(TimedOut::Idle) => "idle_timeout",
            Self::TimedOut(TimedOut::Ping) => "ping_timeout",
            Self::Tls(_) => "tls_error",
            Self::Proxy(_) => "proxy_header",
            Self::WsClosed { .. } => "ws_closed",
            Self::WsProtocol(ws::ProtocolError::Text) => "ws_text",
            Self::WsProtocol(ws::ProtocolError::BareFrames { .. }) => "ws_bare_frames",
            Self::WsProtocol(ws::ProtocolError::MessageTooLarge { .. }) => "ws_message_too_large",
            Self::WsProtocol(_) => "ws_protocol",
            Self::WsRejected(ws::Rejection { status: 403, .. }) => "ws_origin",
            Self::WsRejected(_) => "ws_bad_request",
            Self::WsRefused(_) => "ws_refused",
            Self::Disconnected { .. } => "disconnected",
            Self::DeadLink => "dead_link",
            Self::Replaced => "replaced",
            Self::Overrun => "overrun",
        }
    }
}

/// Event that a connection waited for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimedOut {
    /// The connection to be established.
    Connect,
    /// The TLS or WebSocket handshake.
    Handshake,
    /// Any byte, for the idle timeout.
    Idle,
    /// Any byte, after a ping.
    Ping,
}
