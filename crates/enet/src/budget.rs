//! Memory for received data that cannot be delivered yet, or that the application has not taken.

/// Bytes held by one peer, or by all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held(pub(crate) usize);

/// The limits on what one peer's packets may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) peer_max: usize,
    pub(crate) host_max: usize,
    /// Sum over all peers.
    pub(crate) total: Held,
}

impl Budget {
    /// True if `cost` more bytes fit. The next packet of a lane may use all of the peer's share,
    /// the others half: otherwise packets behind a gap could keep out the one that closes it. The
    /// last eighth of the host's bytes is for peers that hold little.
    pub(crate) fn has_room(&self, peer: Held, cost: usize, is_next: bool) -> bool {
        let peer_max = if is_next { self.peer_max } else { self.peer_max / 2 };
        let after = peer.0 + cost;
        let host_max = if after <= GUARANTEED { self.host_max } else { self.host_max - self.host_max / 8 };
        after <= peer_max && self.total.0 + cost <= host_max
    }

    /// True if `cost` bytes may be set aside before they arrive: only while half of the host's
    /// bytes are free, so that announcing long packets cannot use up what others need.
    pub(crate) fn may_reserve(&self, peer: Held, cost: usize, is_next: bool) -> bool {
        self.has_room(peer, cost, is_next) && self.total.0 + cost <= self.host_max / 2
    }

    pub(crate) fn take(&mut self, peer: &mut Held, cost: usize) {
        peer.0 += cost;
        self.total.0 += cost;
    }

    pub(crate) fn give_back(&mut self, peer: &mut Held, cost: usize) {
        debug_assert!(peer.0 >= cost && self.total.0 >= cost, "nothing is given back twice");
        peer.0 = peer.0.saturating_sub(cost);
        self.total.0 = self.total.0.saturating_sub(cost);
    }
}

/// Bytes that a packet in a queue costs beside its content: its entry, and that of a queue which
/// has just doubled.
pub(crate) const OVERHEAD: usize = 128;
/// Bytes held up to which a peer may use the last eighth of the host's: the small packets of a
/// game.
const GUARANTEED: usize = 16 * 1024;
