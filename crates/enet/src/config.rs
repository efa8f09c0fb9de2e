//! Configuration of a host.

use alloc::boxed::Box;
use core::time::Duration;

use crate::{Compressor, ConfigError};

/// Configuration of a host; [`Config::new`] gives a server's defaults.
///
/// The checksum and the compressor must be the same at both ends; nothing on the wire says which
/// they are.
#[derive(Debug)]
pub struct Config {
    /// 128 bits that nobody else can guess, from the operating system. Ids, sessions and connect
    /// ids come from them, and so does the order of hash tables whose keys strangers choose. A
    /// fixed seed makes a run repeatable.
    pub seed: u128,
    /// True if strangers may connect. Off for a plain client.
    pub accept: bool,
    /// Connections at the same time. Costs nothing until they exist. Default 1,048,576.
    pub peers_max: usize,
    /// Connections at the same time from one IP address, whatever the port. Default: no limit, as
    /// players share addresses.
    pub peers_per_ip_max: usize,
    /// Lanes of a connection, 1 to 255; the other side may ask for fewer. A lane costs nothing
    /// until it is used.
    pub lanes_max: u8,
    /// Longest datagram in bytes, 576 to 4,096, the four bytes of a checksum aside. Default 1,392.
    pub mtu: u16,
    /// Bytes per second that this host can take, 0 for no limit. Shared out among its peers.
    pub incoming_bandwidth: u32,
    /// Bytes per second that this host sends at most, 0 for no limit. Enforced by dropping
    /// unreliable packets.
    pub outgoing_bandwidth: u32,
    /// True if every datagram carries a CRC-32, seeded with a secret of the connection: blind
    /// forgeries then fail.
    pub checksum: bool,
    /// Compresses every datagram where that makes it shorter.
    pub compressor: Option<Box<dyn Compressor>>,
    /// Longest packet in bytes, in both directions. Default 32 MiB.
    pub packet_bytes_max: usize,
    /// Bytes received from one peer that may wait: for a gap to close, for fragments, or for
    /// [`Host::poll_event`](crate::Host::poll_event). Beyond it, what arrives is dropped and not
    /// acknowledged; what is not next in its lane may use half. At least twice
    /// [`packet_bytes_max`](Self::packet_bytes_max). Default 65 MiB.
    pub peer_bytes_max: usize,
    /// Bytes of packets received from one peer and not yet taken, without what the host itself
    /// needs for them, from which on nothing more of it is received; so one packet of any length
    /// may exceed it. A packet that is next in its lane counts only those that could be taken
    /// already. Default: no such limit.
    pub waiting_bytes_max: usize,
    /// The limit of [`peer_bytes_max`](Self::peer_bytes_max) for a peer that has connected to this
    /// host, until [`Host::admit`] is called for it: for servers whose clients log in. Longer
    /// packets are not received before that. Default: no limit of its own.
    ///
    /// [`Host::admit`]: crate::Host::admit
    pub newcomer_bytes_max: usize,
    /// The same for all peers together; the last eighth is kept for peers that hold less than 16
    /// KiB. When it is used up, the peer that holds the most in packets that cannot be delivered
    /// yet makes room for those that hold less, and peers that were not admitted for all that were:
    /// it loses the unreliable ones, and if it has none, it is disconnected
    /// ([`Reason::MadeRoom`](crate::Reason::MadeRoom)). Default 1 GiB.
    pub host_bytes_max: usize,
    /// Bytes that may wait to be sent or acknowledged, per peer; beyond it
    /// [`Host::send`](crate::Host::send) fails. A packet sent to many peers counts at each, though
    /// it is stored once. Default 64 MiB.
    pub send_bytes_max: usize,
    /// The same for all peers together. Default: no limit, as what is broadcast counts at each
    /// peer.
    pub host_send_bytes_max: usize,
    /// Handshakes in progress. The table grows up to this and never beyond (about 250 bytes each);
    /// when it is full the oldest makes room. Default 16,384.
    pub half_open_max: usize,
    /// Handshakes in progress from one IPv4 address or IPv6 /64; beyond it the oldest makes room.
    /// Default 1,024.
    pub half_open_per_ip_max: usize,
    /// The same for one IPv4 /24 or IPv6 /48. While less than a quarter of the table is free, those
    /// that have a 256th of it get no more. Default 4,096.
    pub half_open_per_prefix_max: usize,
    /// Time that a handshake may take. Default 10 s. A client that has our answer and whose
    /// acknowledgements get lost has half a minute, as long as it is heard of.
    pub half_open_timeout: Duration,
    /// Shortest time after which a command is sent again. The C library has none, and resends
    /// within 5 ms on a fast link. Default 20 ms.
    pub resend_floor: Duration,
    /// True if clients of ENet-CSharp may connect beside those of the C library; the first word of
    /// their CONNECT tells them apart. Not with a checksum, as theirs is another, and never
    /// compressed. Written after the dialect's description and tested against that, not against the
    /// library itself. Costs one more look into a table for each datagram. Default: no.
    pub csharp_clients: bool,
    /// Choice of ids, sessions and connect ids.
    pub naming: Naming,
    /// Occasions on which BANDWIDTH_LIMIT is sent.
    pub bandwidth_reports: BandwidthReports,
    /// Occasions on which peers that have connected to this host are pinged.
    pub pings: Pings,
    /// Limit on reliable data that is on its way to a peer.
    pub windows: Windows,
}

/// Limits of a [`Config`] that can be changed while the host runs, with
/// [`Host::set_limits`](crate::Host::set_limits). Each is explained at the field of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`Config::peers_per_ip_max`].
    pub peers_per_ip_max: usize,
    /// See [`Config::lanes_max`].
    pub lanes_max: u8,
    /// See [`Config::packet_bytes_max`].
    pub packet_bytes_max: usize,
    /// See [`Config::peer_bytes_max`].
    pub peer_bytes_max: usize,
    /// See [`Config::waiting_bytes_max`].
    pub waiting_bytes_max: usize,
}

/// Naming of a host's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Naming {
    /// At random: a stranger who cannot see the traffic has to guess 30 bits to finish a handshake
    /// and 14 to be heard.
    #[default]
    Random,
    /// Lowest free number first, as the C library does it. For comparing bytes with it; strangers
    /// can guess everything.
    Sequential,
}

/// Occasions on which a host pings the peers that have connected to it. It always pings those it
/// has connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pings {
    /// After a peer was silent for two ping intervals, and every ten to keep measuring the round
    /// trip. Clients ping by themselves, so this halves the cost of idle ones; one that vanishes is
    /// missed an interval later. While the throttle holds unreliable packets back, and after
    /// [`Host::set_ping_interval`](crate::Host::set_ping_interval), as [`Always`](Self::Always).
    #[default]
    WhenSilent,
    /// Whenever nothing was acknowledged for the ping interval, whatever has arrived meanwhile, as
    /// the C library does it.
    Always,
}

/// Limit on reliable data that is on its way to a peer at the same time. Never more than both ends
/// agreed on, 64 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Windows {
    /// As much as the path carries, measured by the rate of acknowledgements and the lowest round
    /// trip; the throttle decides about unreliable packets only. Queues on the way stay short, and
    /// links are shared.
    #[default]
    Adaptive,
    /// All that was agreed on, times the throttle, as the C library does it. For comparing bytes
    /// with it.
    Throttled,
}

/// Occasions on which a host sends BANDWIDTH_LIMIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BandwidthReports {
    /// Only while this host has a limit, and once after it was lifted.
    #[default]
    WhenLimited,
    /// To every peer whenever one comes or goes, as the C library does it. Costs a look at every
    /// peer each time.
    Always,
}

impl Config {
    /// A server's defaults.
    ///
    /// ```
    /// # let entropy = 7;
    /// let config = throng_enet::Config { lanes_max: 4, ..throng_enet::Config::new(entropy) };
    /// assert!(config.accept);
    /// ```
    #[must_use]
    pub fn new(seed: u128) -> Self {
        Self {
            seed,
            accept: true,
            peers_max: 1 << 20,
            peers_per_ip_max: usize::MAX,
            lanes_max: LANES_MAX,
            mtu: 1392,
            incoming_bandwidth: 0,
            outgoing_bandwidth: 0,
            checksum: false,
            compressor: None,
            packet_bytes_max: 32 << 20,
            peer_bytes_max: 65 << 20,
            waiting_bytes_max: usize::MAX,
            newcomer_bytes_max: usize::MAX,
            host_bytes_max: 1 << 30,
            send_bytes_max: 64 << 20,
            host_send_bytes_max: usize::MAX,
            half_open_max: 16_384,
            half_open_per_ip_max: 1_024,
            half_open_per_prefix_max: 4_096,
            half_open_timeout: Duration::from_secs(10),
            resend_floor: Duration::from_millis(20),
            csharp_clients: false,
            naming: Naming::Random,
            bandwidth_reports: BandwidthReports::WhenLimited,
            pings: Pings::WhenSilent,
            windows: Windows::Adaptive,
        }
    }

    /// The defaults of a client: strangers cannot connect to it.
    #[must_use]
    pub fn client(seed: u128) -> Self {
        Self { accept: false, ..Self::new(seed) }
    }

    /// The limits that can be changed while a host runs.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            peers_per_ip_max: self.peers_per_ip_max,
            lanes_max: self.lanes_max,
            packet_bytes_max: self.packet_bytes_max,
            peer_bytes_max: self.peer_bytes_max,
            waiting_bytes_max: self.waiting_bytes_max,
        }
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        let Limits { peers_per_ip_max, lanes_max, packet_bytes_max, peer_bytes_max, waiting_bytes_max } =
            limits;
        (self.peers_per_ip_max, self.lanes_max) = (peers_per_ip_max, lanes_max);
        (self.packet_bytes_max, self.peer_bytes_max) = (packet_bytes_max, peer_bytes_max);
        self.waiting_bytes_max = waiting_bytes_max;
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if self.lanes_max == 0 {
            return Err(ConfigError::Lanes);
        }
        if self.packet_bytes_max > PACKET_BYTES_CAP {
            return Err(ConfigError::PacketTooLong(self.packet_bytes_max));
        }
        if self.peer_bytes_max < 2 * self.packet_bytes_max {
            return Err(ConfigError::PeerBytes {
                have: self.peer_bytes_max,
                need: 2 * self.packet_bytes_max,
            });
        }
        Ok(())
    }

    /// Payload bytes of a fragment. Spec: enet §11.1
    pub(crate) fn fragment_bytes(&self, mtu: u16) -> usize {
        usize::from(mtu) - 4 - 24 - if self.checksum { 4 } else { 0 }
    }
}

// Spec: enet §6
pub(crate) const MTU_MIN: u16 = 576;
pub(crate) const MTU_MAX: u16 = 4096;
pub(crate) const LANES_MAX: u8 = 255;
pub(crate) const WINDOW_MIN: u32 = 4096;
pub(crate) const WINDOW_MAX: u32 = 65_536;
pub(crate) const FRAGMENTS_MAX: u32 = 1 << 20;
/// A gigabyte: lengths and offsets stay far from the ends of their 32 bits.
const PACKET_BYTES_CAP: usize = 1 << 30;
