//! Counters of ENet hosts and their sockets, for metrics.

use throng_enet::secure::GateStats;
use throng_enet::{Host, Stats};

use super::dtls::DtlsStats;
use super::guard::Guard;
use crate::udp::{UdpPort, UdpStats};

/// Counters of hosts and their sockets, for metrics; those of several hosts can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCounters {
    /// Peers that are connected, or connecting or disconnecting.
    pub peers: usize,
    /// Handshakes that are not proven yet.
    pub half_open: usize,
    /// Bytes received that wait for a gap to close, for fragments or for the application, with
    /// overhead.
    pub held_bytes: usize,
    /// Bytes that wait to be sent or acknowledged, with overhead.
    pub queued_bytes: usize,
    /// Of the sockets.
    pub udp: UdpStats,
    /// Of the protocol.
    pub enet: Stats,
    /// Of the sealed layer below it; zero without one.
    pub gate: GateStats,
    /// Of DTLS; zero without a certificate.
    pub dtls: DtlsStats,
}

impl HostCounters {
    pub(super) fn of(host: &Host, udp: &UdpPort, guard: &Guard) -> Self {
        Self {
            peers: host.peer_count(),
            half_open: host.half_open_count(),
            held_bytes: host.held_bytes(),
            queued_bytes: host.queued_bytes(),
            udp: *udp.stats(),
            enet: *host.stats(),
            gate: guard.stats(),
            dtls: guard.dtls_stats(),
        }
    }
}

impl std::ops::AddAssign for HostCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { peers, half_open, held_bytes, queued_bytes, udp, enet, gate, dtls } = other;
        self.peers += peers;
        self.half_open += half_open;
        self.held_bytes += held_bytes;
        self.queued_bytes += queued_bytes;
        self.udp += udp;
        self.enet += enet;
        self.gate += gate;
        self.dtls += dtls;
    }
}
