//! Memory for what was received and cannot be delivered yet, or was not taken by the application.

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
    /// Whether `cost` more bytes fit. What is next in its lane may use everything, the rest half: otherwise packets behind
    /// a gap could keep out the one that closes it.
    pub(crate) fn has_room(&self, peer: Held, cost: usize, is_next: bool) -> bool {
        let peer_max = if is_next { self.peer_max } else { self.peer_max / 2 };
        let after = peer.0 + cost;
        after <= peer_max && (after <= GUARANTEED || self.total.0 + cost <= self.host_max)
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

/// What a packet or fragment costs beside its bytes: its entry in a map or queue and the allocation's header, rounded up.
pub(crate) const OVERHEAD: usize = 96;
/// What a peer may hold even when the host's budget is used up by others: the small packets of a game.
const GUARANTEED: usize = 16 * 1024;
