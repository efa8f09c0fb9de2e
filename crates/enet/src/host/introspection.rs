//! Read access to a host.

use core::net::SocketAddr;

use super::closed::CLOSED_MAX;
use super::{Host, Owner};
use crate::peer::State;
use crate::types::{PeerId, PeerInfo, Stats};

impl Host {
    /// A look at a connection; `None` when it is over and its events were taken.
    #[must_use]
    pub fn peer(&self, peer: PeerId) -> Option<PeerInfo> {
        let slot = self.slots.get(peer.index as usize).filter(|slot| slot.generation == peer.generation)?;
        slot.peer.as_ref().map(|peer| peer.info())
    }

    /// Connections in no particular order, those that are being made or ended included.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.slots.iter().filter_map(|slot| slot.peer.as_ref()).map(|peer| peer.id)
    }

    /// Connections that are not over.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.live.len()
    }

    /// True if a connection with `address` exists that is not over.
    #[must_use]
    pub fn has_peer_at(&self, address: SocketAddr) -> bool {
        self.local_ids.has_peer_at(address)
    }

    /// Handshakes of strangers that have not proven their address yet.
    #[must_use]
    pub fn half_open_count(&self) -> usize {
        self.half_open.len()
    }

    /// Bytes received that wait in all peers together, with overhead.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.ctx.budget.total
    }

    /// Bytes that wait to be sent or acknowledged, in all peers together, with overhead.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.ctx.queued_bytes
    }

    /// Counters of the host.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.ctx.stats
    }

    /// Checks what must always hold. Slow; for tests and simulations.
    ///
    /// # Panics
    /// When something does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let (mut mapped, mut ranked, mut held) = (0, 0, 0);
        for slot in &self.slots {
            let Some(peer) = &slot.peer else { continue };
            peer.check_invariants();
            ranked += usize::from(peer.rank > 0);
            held += peer.held.bytes;
            assert_eq!(peer.is_mapped, peer.state != State::Over);
            if peer.is_mapped {
                mapped += 1;
                assert_eq!(self.live.get(peer.live_at as usize), Some(&peer.id.index));
                let owner = self.local_ids.get(peer.address, peer.local_id);
                assert_eq!(owner, Some(Owner::Peer(peer.id.index)));
            }
            assert!(peer.in_ready || !peer.has_events(), "events would never be taken");
        }
        assert_eq!(mapped, self.live.len());
        assert_eq!((ranked, held), (self.ctx.budget.ranks.len(), self.ctx.budget.total));
        if self.ctx.config.peers_per_ip_max != usize::MAX {
            assert_eq!(self.per_ip.values().sum::<usize>(), self.live.len());
        }
        let queued: usize =
            self.slots.iter().flat_map(|slot| &slot.peer).map(|peer| peer.queued_bytes()).sum();
        assert_eq!(queued, self.ctx.queued_bytes);
        assert_eq!(self.local_ids.len(), self.live.len() + self.half_open.len());
        assert!(self.by_remote.len() <= self.live.len());
        assert!(self.half_open.len() <= self.ctx.config.half_open_max);
        assert!(self.closed.len() <= CLOSED_MAX);
    }
}
