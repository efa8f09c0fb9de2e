//! Memory for received data that cannot be delivered yet, or that the application has not taken.
//!
//! A full budget of the host takes data from the peer that holds the most; peers that are not
//! admitted lose theirs first. [`Ranks`] finds the next one
//! without a walk over the others.

use alloc::collections::BTreeSet;

/// Bytes held by one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) bytes: usize,
    /// Of these, in packets that were delivered and that the application has not taken.
    pub(crate) inbox: usize,
    /// Number of these packets.
    pub(crate) inbox_count: u32,
    /// The application has not admitted the peer.
    pub(crate) is_newcomer: bool,
}

impl Held {
    /// Bytes held, but for the overhead of packets that the application can take.
    pub(crate) fn content(self) -> usize {
        self.bytes - self.inbox_count as usize * OVERHEAD
    }

    /// Bytes of packets that cannot be delivered yet, and could be dropped.
    pub(crate) fn waiting(self) -> usize {
        self.bytes - self.inbox
    }
}

/// The limits on what one peer's packets may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) peer_max: usize,
    pub(crate) newcomer_max: usize,
    pub(crate) host_max: usize,
    /// Content at which a peer's share is full, whatever `peer_max` leaves.
    pub(crate) waiting_max: usize,
    /// Sum over all peers.
    pub(crate) total: usize,
    /// Bytes that the peer that was refused last would hold if the host had had room.
    pub(crate) wanted: Option<usize>,
    pub(crate) ranks: Ranks,
}

impl Budget {
    pub(crate) fn new(peer_max: usize, newcomer_max: usize, host_max: usize) -> Self {
        let (waiting_max, ranks) = (usize::MAX, Ranks::default());
        Self { peer_max, newcomer_max, host_max, waiting_max, total: 0, wanted: None, ranks }
    }

    /// True if `cost` more bytes fit. The next packet of a lane may use all of the peer's share,
    /// the others half: otherwise packets behind a gap could keep out the one that closes it. The
    /// last eighth of the host's bytes is for peers that hold little.
    pub(crate) fn has_room(&mut self, peer: Held, cost: usize, is_next: bool) -> bool {
        let is_within_share = self.peer_has_room(peer, cost, is_next);
        let fits = is_within_share && self.host_has_room(peer, cost);
        if is_within_share && !fits {
            self.wanted = Some(peer.bytes + cost);
        }
        fits
    }

    /// True if `cost` bytes may be set aside before they arrive: only while half of the host's
    /// bytes are free, so that announcing long packets cannot use up what others need.
    pub(crate) fn may_reserve(&self, peer: Held, cost: usize, is_next: bool) -> bool {
        self.peer_has_room(peer, cost, is_next) && self.total + cost <= self.host_max / 2
    }

    fn peer_has_room(&self, peer: Held, cost: usize, is_next: bool) -> bool {
        let max = if peer.is_newcomer { self.newcomer_max.min(self.peer_max) } else { self.peer_max };
        // The next packet of a lane closes a gap: what waits behind it does not keep it out.
        let behind = if is_next { peer.waiting() } else { 0 };
        peer.content() - behind < self.waiting_max && peer.bytes + cost <= if is_next { max } else { max / 2 }
    }

    fn host_has_room(&self, peer: Held, cost: usize) -> bool {
        let is_small = peer.bytes + cost <= GUARANTEED;
        let host_max = if is_small { self.host_max } else { self.host_max - self.host_max / 8 };
        self.total + cost <= host_max
    }

    pub(crate) fn take(&mut self, peer: &mut Held, cost: usize) {
        peer.bytes += cost;
        self.total += cost;
    }

    pub(crate) fn give_back(&mut self, peer: &mut Held, cost: usize) {
        debug_assert!(peer.bytes >= cost && self.total >= cost, "nothing is given back twice");
        peer.bytes = peer.bytes.saturating_sub(cost);
        self.total = self.total.saturating_sub(cost);
    }

    /// Takes note of a packet that was delivered and waits for the application.
    pub(crate) fn take_delivered(&mut self, peer: &mut Held, len: usize) {
        self.take(peer, len + OVERHEAD);
        peer.inbox += len + OVERHEAD;
        peer.inbox_count += 1;
    }

    /// The application has taken a packet.
    pub(crate) fn give_back_delivered(&mut self, peer: &mut Held, len: usize) {
        peer.inbox -= len + OVERHEAD;
        peer.inbox_count -= 1;
        self.give_back(peer, len + OVERHEAD);
    }
}

/// Peers by what waits in them, of those that hold more than a little.
#[derive(Debug, Default)]
pub(crate) struct Ranks(BTreeSet<(u32, u32)>);

impl Ranks {
    /// Rank of a peer: coarse, so that few packets change it. 0 is none, and peers that were not
    /// admitted come before all others.
    pub(crate) fn rank(peer: Held) -> u32 {
        let rank = u32::try_from(peer.waiting() / GUARANTEED).map_or(RANK_MAX, |rank| rank.min(RANK_MAX));
        if rank > 0 && peer.is_newcomer { rank + RANK_MAX } else { rank }
    }

    /// Moves the peer at `index` from one rank to another.
    pub(crate) fn change(&mut self, index: u32, from: u32, to: u32) {
        if from > 0 {
            self.0.remove(&(from, index));
        }
        if to > 0 {
            self.0.insert((to, index));
        }
    }

    /// The peer of the highest rank.
    pub(crate) fn first(&self) -> Option<u32> {
        self.0.last().map(|&(_, index)| index)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Bytes that a packet in a queue costs beside its content: its entry, and that of a queue which
/// has just doubled.
pub(crate) const OVERHEAD: usize = 128;
/// Bytes held up to which a peer may use the last eighth of the host's, and makes no room for
/// others: the small packets of a game.
const GUARANTEED: usize = 16 * 1024;
const RANK_MAX: u32 = u32::MAX / 2;
