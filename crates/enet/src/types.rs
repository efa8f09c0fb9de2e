//! Types that go in and out of a host: identifiers, packets, events, errors.

use core::net::SocketAddr;
use core::time::Duration;

use bytes::Bytes;

use crate::statistics::{RoundTrips, Traffic};

/// Names a connection of a [`Host`](crate::Host). When the connection is over, the name is never
/// used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One of the up to 255 independent streams of a connection; ENet calls it a channel.
///
/// Order is kept within a lane and not between lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u8);

/// Guarantees for a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Arrives once and in order, or the connection ends.
    Reliable,
    /// May get lost, but never overtakes: not an earlier packet of its lane, reliable or not. One
    /// too long for a datagram (about 1,360 bytes) is sent reliably.
    Unreliable,
    /// As [`Unreliable`](Self::Unreliable), but one too long for a datagram is cut up and lost with
    /// any of its parts.
    UnreliableFragmented,
    /// May get lost and may overtake; arrives at most once. One too long for a datagram is sent
    /// reliably.
    Unsequenced,
    /// As [`Unsequenced`](Self::Unsequenced), but one too long for a datagram becomes
    /// [`UnreliableFragmented`](Self::UnreliableFragmented). What Godot sends as "unreliable".
    UnsequencedFragmented,
}

/// Something that happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The handshake is complete, at whichever side began it.
    Connected {
        /// The connection.
        peer: PeerId,
        /// The number that the client gave to [`Host::connect`](crate::Host::connect); 0 at the
        /// client itself.
        data: u32,
    },
    /// A packet has arrived.
    Received {
        /// The connection.
        peer: PeerId,
        /// The lane it was sent on.
        lane: Lane,
        /// Its content.
        data: Bytes,
        /// Guarantees it travelled under: `UnsequencedFragmented` arrives as `Unsequenced` or
        /// `UnreliableFragmented`, and a long packet that had to go reliably as `Reliable`.
        delivery: Delivery,
    },
    /// The connection, or the attempt to make one, is over. Nothing more comes for this peer and
    /// its name is void.
    Disconnected {
        /// The connection.
        peer: PeerId,
        /// The number that the other side gave as its reason; 0 when it gave none.
        data: u32,
        /// Why.
        reason: Reason,
    },
}

impl Event {
    /// The connection that the event is about.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        match *self {
            Self::Connected { peer, .. } | Self::Received { peer, .. } | Self::Disconnected { peer, .. } => {
                peer
            }
        }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The other side disconnected.
    Remote,
    /// This side disconnected, and the other side has confirmed it.
    Local,
    /// The other side no longer acknowledges, or never answered.
    Timeout,
    /// The answer to CONNECT contradicts it.
    Refused,
    /// The same remote peer has connected anew, for instance after a restart on the same port, or
    /// [`Host::replace_peers_at`](crate::Host::replace_peers_at) was called.
    Replaced,
    /// It held the most received data when the host had no room left, and reliable packets were
    /// dropped to make room for others.
    MadeRoom,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerState {
    /// CONNECT is on its way.
    Connecting,
    /// Packets flow.
    Connected,
    /// [`Host::disconnect`](crate::Host::disconnect) or
    /// [`Host::disconnect_later`](crate::Host::disconnect_later) was called, or the other side has
    /// disconnected: no packet can be sent any more.
    Disconnecting,
    /// Over; events are still to be read.
    Over,
}

/// Addresses for the datagram that [`Host::poll_transmit`](crate::Host::poll_transmit) wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the datagram counts as sent"]
pub struct Transmit {
    /// The destination.
    pub to: SocketAddr,
    /// The own address to send from.
    pub via: Via,
}

/// One of the socket's own addresses, as its driver numbers them: answers leave from the address
/// that was asked, on a server that has several. 0 leaves the choice to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Via(pub u16);

/// A look at one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The other end.
    pub address: SocketAddr,
    /// State of the connection.
    pub state: PeerState,
    /// Id by which the other end is addressed; 4,095 until it is known.
    pub remote_id: u16,
    /// Number that the client chose for the connection, as it stands on the wire.
    pub connect_id: [u8; 4],
    /// Bytes per second that the other end takes, 0 for no limit.
    pub incoming_bandwidth: u32,
    /// Bytes per second that the other end sends at most, 0 for no limit.
    pub outgoing_bandwidth: u32,
    /// Lanes agreed upon: 0 to `lanes - 1` can be used.
    pub lanes: u8,
    /// Longest datagram in bytes.
    pub mtu: u16,
    /// Bytes of reliable data that may be unacknowledged, before the throttle.
    pub window_bytes: u32,
    /// Smoothed round trip time; 500 ms until the first acknowledgement.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_variance: Duration,
    /// Share of unreliable packets that the throttle lets pass, 0 to 32.
    pub throttle: u8,
    /// Settings of the throttle, as either side configured it last: the interval between looks, and
    /// by how many 32nds it opens and closes.
    pub throttle_settings: (Duration, u32, u32),
    /// Share of commands lost lately, 0 to 65,536.
    pub loss: u32,
    /// Packets accepted by `send` of which nothing was sent yet.
    pub queued_packets: usize,
    /// Bytes accepted by `send` and not yet acknowledged or sent for good.
    pub queued_bytes: usize,
    /// Reliable commands that were sent and not acknowledged.
    pub unacknowledged_commands: usize,
    /// Bytes of reliable data on their way.
    pub in_flight_bytes: usize,
    /// Bytes received that wait for a gap to close, for fragments or for the application, with
    /// overhead.
    pub held_bytes: usize,
    /// The same without the overhead of packets that the application can take: what
    /// [`Config::waiting_bytes_max`](crate::Config::waiting_bytes_max) limits.
    pub waiting_bytes: usize,
    /// Commands sent again so far.
    pub resent_commands: u64,
    /// Shortest round trip so far; `None` before the first acknowledgement.
    pub lowest_rtt: Option<Duration>,
    /// All round trips so far.
    pub round_trips: RoundTrips,
    /// Datagrams and packets so far.
    pub traffic: Traffic,
}

/// Counters of a host. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Datagrams received, whatever became of them.
    pub datagrams_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Datagrams handed out.
    pub datagrams_out: u64,
    /// Bytes handed out.
    pub bytes_out: u64,
    /// Reliable commands sent again.
    pub resent_commands: u64,
    /// Of these, before their time because later ones were acknowledged.
    pub resent_early: u64,
    /// Unreliable packets that the throttle dropped.
    pub throttled_packets: u64,
    /// Packets delivered.
    pub packets_in: u64,
    /// Packets accepted by `send`.
    pub packets_out: u64,
    /// Connections completed.
    pub connects: u64,
    /// Connections that ended, attempts included.
    pub disconnects: u64,
    /// Connections that ended because the other side no longer answered.
    pub timeouts: u64,
    /// Datagrams dropped because they are too short for their header.
    pub dropped_short: u64,
    /// Datagrams dropped because their sender has no connection with that id and session.
    pub dropped_unknown: u64,
    /// Datagrams dropped because they cannot be decompressed, or arrived compressed at a host
    /// without a compressor.
    pub dropped_compression: u64,
    /// Datagrams dropped because of their checksum.
    pub dropped_checksum: u64,
    /// Datagrams whose rest was dropped because of a command that is malformed or not allowed in
    /// this state.
    pub dropped_malformed: u64,
    /// CONNECTs dropped: not accepting, bad values, no free id or a limit reached.
    pub dropped_connects: u64,
    /// Handshakes that were not completed in time or made room for others.
    pub dropped_half_open: u64,
    /// Packets, fragments or requests for acknowledgement dropped because too much is waiting; none
    /// was acknowledged.
    pub dropped_full: u64,
    /// Times that the peer with the most received data made room for others: it lost unreliable
    /// packets that were waiting, or was disconnected.
    pub made_room: u64,
    /// Acknowledgements dropped because nothing was sent at the time they name.
    pub dropped_acks: u64,
    /// Round trips of all connections.
    pub round_trips: RoundTrips,
}

impl core::ops::AddAssign for Stats {
    /// Adds the counts of another host, for a sum over several.
    fn add_assign(&mut self, other: Self) {
        let Self {
            datagrams_in,
            bytes_in,
            datagrams_out,
            bytes_out,
            resent_commands,
            resent_early,
            throttled_packets,
            packets_in,
            packets_out,
            connects,
            disconnects,
            timeouts,
            dropped_short,
            dropped_unknown,
            dropped_compression,
            dropped_checksum,
            dropped_malformed,
            dropped_connects,
            dropped_half_open,
            dropped_full,
            made_room,
            dropped_acks,
            round_trips,
        } = other;
        self.datagrams_in += datagrams_in;
        self.bytes_in += bytes_in;
        self.datagrams_out += datagrams_out;
        self.bytes_out += bytes_out;
        self.resent_commands += resent_commands;
        self.resent_early += resent_early;
        self.throttled_packets += throttled_packets;
        self.packets_in += packets_in;
        self.packets_out += packets_out;
        self.connects += connects;
        self.disconnects += disconnects;
        self.timeouts += timeouts;
        self.dropped_short += dropped_short;
        self.dropped_unknown += dropped_unknown;
        self.dropped_compression += dropped_compression;
        self.dropped_checksum += dropped_checksum;
        self.dropped_malformed += dropped_malformed;
        self.dropped_connects += dropped_connects;
        self.dropped_half_open += dropped_half_open;
        self.dropped_full += dropped_full;
        self.made_room += made_room;
        self.dropped_acks += dropped_acks;
        self.round_trips += round_trips;
    }
}

/// A [`Config`](crate::Config) cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The MTU is out of range.
    #[error("an MTU of {0} bytes is outside 576 to 4096")]
    Mtu(u16),
    /// No lane is allowed.
    #[error("a connection needs at least one lane; raise lanes_max")]
    Lanes,
    /// The longest packet is absurd.
    #[error("packets of {0} bytes exceed the limit of 1 GiB; lower packet_bytes_max")]
    PacketTooLong(usize),
    /// The longest packet could never be received.
    #[error("peer_bytes_max is {have} and must be at least {need}, twice packet_bytes_max")]
    PeerBytes {
        /// As configured.
        have: usize,
        /// The least that works.
        need: usize,
    },
}

/// A connection cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host has as many connections as its configuration allows.
    #[error("all {0} connections are in use; raise peers_max")]
    HostFull(usize),
    /// All 4,095 ids towards that address are in use.
    #[error("4095 connections with {0} exist, the protocol's limit; use a second socket")]
    AddressFull(SocketAddr),
}

/// A packet was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The connection is over, or never was.
    #[error("the connection is over")]
    UnknownPeer,
    /// The connection is not established yet, or is being closed.
    #[error("the connection is not established")]
    NotConnected,
    /// The lane was not agreed upon.
    #[error("lane {lane} does not exist, the connection has {lanes}")]
    NoSuchLane {
        /// As asked for.
        lane: u8,
        /// Lanes of this connection.
        lanes: u8,
    },
    /// The packet is too long.
    #[error("a packet of {len} bytes exceeds the limit of {max}; raise packet_bytes_max or split it")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The most that this connection can carry.
        max: usize,
    },
    /// The packet needs more sequence numbers than the lane has before its next window.
    #[error(
        "a packet of {len} bytes exceeds the {max} that lane {lane} takes now; send up to {max}, or use another lane"
    )]
    TooLongNow {
        /// Its length in bytes.
        len: usize,
        /// The longest that the lane takes now, 24,576 to 28,671 fragments.
        max: usize,
        /// The lane.
        lane: u8,
    },
    /// Too much is waiting for this peer already.
    #[error("{queued} bytes are waiting to be sent; wait, or raise send_bytes_max")]
    QueueFull {
        /// Bytes that wait.
        queued: usize,
    },
    /// Too much is waiting for all peers together.
    #[error("{queued} bytes are waiting to be sent to all peers; wait, or raise host_send_bytes_max")]
    HostQueueFull {
        /// Bytes that wait.
        queued: usize,
    },
}
