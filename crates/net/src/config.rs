//! Settings of a listener or an outgoing connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_enet::secure::{ConnectToken, GateConfig};

use crate::enet::DtlsConfig;
use crate::kcp;
use crate::tls::{TlsAcceptor, TlsConnector};

/// The protocol that carries a connection's byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// WebSocket (RFC 6455) over TCP: binary messages, whose payloads form the byte stream.
    WebSocket,
    /// KCP over UDP with the given tuning.
    Kcp(kcp::Profile),
    /// ENet over UDP: the packets that a peer sends, one after the other, form the byte stream, and
    /// what is written leaves as reliable packets on lane 0.
    Enet,
}

/// One listening address and the rules for connections that arrive there.
///
/// ```
/// use throng_net::{ListenerSpec, Transport};
/// let spec = ListenerSpec::new("127.0.0.1:0".parse().unwrap(), Transport::Tcp);
/// assert!(spec.tls.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct ListenerSpec {
    /// Address to bind; port 0 lets the system choose.
    pub addr: SocketAddr,
    /// Protocol of its connections.
    pub transport: Transport,
    /// TLS in front of TCP or WebSocket; not available for KCP and ENet.
    pub tls: Option<TlsAcceptor>,
    /// Encryption and admission of ENet peers; `None` for plain ENet. Ignored by other transports.
    pub enet_gate: Option<GateConfig>,
    /// DTLS of ENet peers, on the same port; `None` for none. Ignored by other transports.
    pub enet_dtls: Option<DtlsConfig>,
    /// WebSocket rules; ignored by other transports.
    pub ws: Arc<WsPolicy>,
    /// Every connection comes from a [trusted proxy](crate::Handler::is_proxy) and begins with a
    /// header of the PROXY protocol, version 2. TCP and WebSocket only.
    pub proxy_protocol: bool,
    /// Bounds and time limits.
    pub limits: Limits,
}

impl ListenerSpec {
    /// A listener without TLS and with default rules and limits.
    pub fn new(addr: SocketAddr, transport: Transport) -> Self {
        Self {
            addr,
            transport,
            tls: None,
            enet_gate: None,
            enet_dtls: None,
            ws: Arc::default(),
            proxy_protocol: false,
            limits: Limits::default(),
        }
    }
}

/// Bounds and time limits of a listener's connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections of this listener, wherever they have been handed to. Further ones are
    /// closed at once.
    pub connections_max: usize,
    /// Open connections of this listener from one address (one /64 for IPv6); `None` for no limit.
    pub connections_per_ip_max: Option<usize>,
    /// Descriptors of the process that connections of this listener leave free. When fewer are
    /// free, the oldest connection that may give way does so for a newcomer; with half of them gone
    /// newcomers are closed. TCP only.
    pub descriptors_spared: u64,
    /// Time for the TLS and WebSocket handshakes together, and for a KCP peer to acknowledge
    /// something.
    pub handshake_timeout: Duration,
    /// Close a connection from which nothing arrived for this long. `None`: never, except that KCP
    /// sessions, which have no other sign of life, then use [`Limits::KCP_IDLE_TIMEOUT`].
    pub idle_timeout: Option<Duration>,
    /// Time a [`CloseMode::Flush`](crate::CloseMode::Flush) may take before the connection is cut.
    pub flush_timeout: Duration,
    /// Connections the kernel queues before they are accepted (TCP).
    pub backlog: u32,
    /// Size asked of the kernel for each socket's send buffer, in bytes; `None` keeps automatic
    /// sizing, which is what large numbers of mostly idle connections want.
    pub send_buffer_bytes: Option<usize>,
    /// Size asked of the kernel for each socket's receive buffer, in bytes; `None` keeps automatic
    /// sizing. KCP listeners ask for 4 MiB when this is `None`, since one socket serves all their
    /// sessions.
    pub receive_buffer_bytes: Option<usize>,
    /// Bytes of ENet packets that cannot be delivered yet, fragments for example, that the host
    /// keeps of a peer until [`EventLoop::admit`](crate::EventLoop::admit), 4 MiB after it. Longer
    /// packets wait for it. `None`: no difference.
    pub newcomer_bytes_max: Option<usize>,
}

impl Limits {
    /// Idle timeout of KCP sessions when none is configured. A live but silent peer answers the
    /// window probes that the listener sends well within it, so only vanished peers are affected.
    pub const KCP_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 100_000,
            connections_per_ip_max: None,
            descriptors_spared: 0,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: None,
            flush_timeout: Duration::from_secs(5),
            backlog: 4096,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            newcomer_bytes_max: None,
        }
    }
}

/// Rules for the WebSocket connections of a listener.
#[derive(Clone, Debug)]
pub struct WsPolicy {
    /// Values of the `Origin` header that browsers may come from, compared without regard to case,
    /// for example `https://play.example.org`. Empty: any. Requests without an `Origin` (programs,
    /// not browsers) always pass.
    pub origins: Vec<String>,
    /// The only URL path that is served (query strings are ignored); `None` serves every path.
    pub path: Option<String>,
    /// Interval of the pings sent to a silent peer; a peer from which nothing arrived for one more
    /// interval is closed. `None` sends no pings. The default of 30 s stays below the 60 s after
    /// which proxies commonly give up.
    pub ping_interval: Option<Duration>,
    /// Largest message accepted, in bytes, summed over its fragments.
    pub message_bytes_max: u64,
}

impl Default for WsPolicy {
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            path: None,
            ping_interval: Some(Duration::from_secs(30)),
            message_bytes_max: 1 << 20,
        }
    }
}

/// An outgoing connection.
#[derive(Clone, Debug)]
pub struct ConnectSpec {
    /// Address to connect to.
    pub addr: SocketAddr,
    /// Protocol to speak.
    pub transport: Transport,
    /// TLS under TCP or WebSocket.
    pub tls: Option<TlsConnector>,
    /// ENet: what a server with a [gate](ListenerSpec::enet_gate) lets this connection in for.
    pub enet_token: Option<ConnectToken>,
    /// WebSocket: the `Host` header; defaults to `addr`.
    pub host: Option<String>,
    /// WebSocket: path and query of the request.
    pub path: String,
    /// WebSocket: the `Origin` header, if one is to be sent.
    pub origin: Option<String>,
    /// WebSocket: largest message accepted, in bytes.
    pub message_bytes_max: u64,
    /// Local address; load generators spread over several when one address runs out of ports.
    pub bind: Option<SocketAddr>,
    /// Time for connecting including all handshakes.
    pub timeout: Duration,
    /// Time a [`CloseMode::Flush`](crate::CloseMode::Flush) may take before the connection is cut.
    pub flush_timeout: Duration,
}

impl ConnectSpec {
    /// A connection without TLS, with default limits.
    pub fn new(addr: SocketAddr, transport: Transport) -> Self {
        Self {
            addr,
            transport,
            tls: None,
            enet_token: None,
            host: None,
            path: "/".into(),
            origin: None,
            message_bytes_max: 16 << 20,
            bind: None,
            timeout: Duration::from_secs(10),
            flush_timeout: Duration::from_secs(5),
        }
    }
}
