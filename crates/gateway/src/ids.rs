//! Identifiers, the maps keyed by them, and the rules of their allocation.
//!
//! Connection ids reach other peers, channel ids are chosen partly by peers, and both arrive as
//! plain `u32` in every message. Newtypes keep them apart; [`IdMap`] hashes them with a secret
//! multiplier so that nobody outside can aim at one bucket.

use core::fmt;
use core::hash::{BuildHasher, Hash, Hasher};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use hashbrown::{HashMap, HashSet};

/// A connection as peers name it. Zero never names one: to peers it means "not authenticated".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// A connection as the driver names it: a socket of the process, from its accept to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnHandle(pub u32);

impl ConnHandle {
    /// The name that peers know it by, until it takes over that of a lost connection.
    pub(crate) fn first_id(self) -> ConnId {
        ConnId(self.0)
    }
}

/// A channel as peers name it. Zero is [`ChannelId::GLOBAL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

impl ChannelId {
    /// The channel that exists from the start and receives everything that is not about one
    /// particular channel.
    pub const GLOBAL: Self = Self(0);

    /// The shard that owns this channel among `count` shards: shard 0 for spatial and entity
    /// channels, which begin at `spatial_start`, so that whatever concerns several of them happens
    /// in one place.
    #[must_use]
    pub fn home(self, spatial_start: u32, count: u16) -> ShardIndex {
        if self.0 >= spatial_start {
            return ShardIndex::FIRST;
        }
        ShardIndex((self.0 % u32::from(count.max(1))) as u16)
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One of the process's shards, `0..count`. Shard 0 owns GLOBAL and everything of which there is
/// only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardIndex(pub u16);

impl ShardIndex {
    /// The shard that owns GLOBAL.
    pub const FIRST: Self = Self(0);
}

/// What a connection is, decided by the listener that accepted it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnKind {
    /// A game server.
    Server,
    /// A player.
    Client,
}

impl ConnKind {
    /// Every kind, in the order of [`ConnKind::index`].
    pub const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// Position in tables with one entry per kind: server 0, client 1.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Server => 0,
            Self::Client => 1,
        }
    }

    /// The value of the protocol's `ConnectionType`.
    #[must_use]
    pub const fn wire(self) -> i32 {
        match self {
            Self::Server => 1,
            Self::Client => 2,
        }
    }

    /// Stable name for metrics and logs: `SERVER` or `CLIENT`, as the protocol spells them.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "SERVER",
            Self::Client => "CLIENT",
        }
    }
}

/// Names one question to the authentication provider. Never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthTicket(pub u64);

/// A map from an id to `V`, hashed with a secret.
pub(crate) type IdMap<K, V> = HashMap<K, V, IdHasher>;
/// A set of ids, hashed with a secret.
pub(crate) type IdSet<K> = HashSet<K, IdHasher>;

/// Multiply-and-fold over a single `u32`, with a secret multiplier and offset.
///
/// Two multiplications per lookup instead of SipHash's rounds. With both constants unknown an
/// outsider cannot choose ids that collide, and ids are all that is ever hashed with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdHasher {
    offset: u64,
    multiplier: u64,
}

impl IdHasher {
    pub(crate) fn new(secret: &Secret) -> Self {
        Self { offset: secret.derive(b"id-offset"), multiplier: secret.derive(b"id-multiplier") | 1 }
    }
}

impl BuildHasher for IdHasher {
    type Hasher = IdHash;

    fn build_hasher(&self) -> IdHash {
        IdHash { state: self.offset, multiplier: self.multiplier }
    }
}

pub(crate) struct IdHash {
    state: u64,
    multiplier: u64,
}

impl Hasher for IdHash {
    #[inline]
    fn write_u32(&mut self, value: u32) {
        let product = u128::from(self.state ^ u64::from(value)) * u128::from(self.multiplier);
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(4) {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u32(u32::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        // hashbrown takes its tag from the top bits and the bucket from the bottom ones; a second
        // fold feeds both.
        let product = u128::from(self.state) * u128::from(self.multiplier);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

/// The key from which everything unpredictable is derived: connection ids, resume tokens, hash
/// keys.
///
/// A pseudo-random function (SipHash-2-4) rather than the simulation generator, whose state can be
/// worked out from a few outputs; peers see connection ids and tokens.
#[derive(Clone)]
pub(crate) struct Secret {
    keys: [(u64, u64); 2],
}

impl Secret {
    pub(crate) fn new(seed: u64, material: &[u8; 32]) -> Self {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&material[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Self { keys: [(word(0) ^ seed, word(8)), (word(16), word(24) ^ seed.rotate_left(32))] }
    }

    /// A value that depends on the key and `label` alone.
    pub(crate) fn derive(&self, label: &[u8]) -> u64 {
        self.hash(0, label)
    }

    /// The `counter`th value of the stream called `label`.
    pub(crate) fn nth(&self, label: &[u8], counter: u64) -> u64 {
        let mut input = [0; 32];
        let len = label.len().min(24);
        input[..len].copy_from_slice(&label[..len]);
        input[24..].copy_from_slice(&counter.to_le_bytes());
        self.hash(0, &input) ^ self.hash(1, &input).rotate_left(17)
    }

    // The standard library calls its keyed SipHash deprecated only in favour of a type that cannot
    // be keyed.
    #[allow(deprecated)]
    fn hash(&self, which: usize, input: &[u8]) -> u64 {
        let (k0, k1) = self.keys[which];
        let mut hasher = core::hash::SipHasher::new_with_keys(k0, k1);
        input.hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Gives out connection ids. Spec §4.1, weakness A-17.
///
/// Development mode counts 1, 2, 3 and starts over when the width is used up. Otherwise ids are
/// unpredictable. Zero is never given out. A freed id rests until `quarantine_len` further ids were
/// freed, so that a peer that still holds the old meaning of an id does not meet a stranger under
/// it; when nothing else is left the resting ids are used early.
#[derive(Debug)]
pub(crate) struct ConnIds {
    max: u32,
    sequential: bool,
    next: u32,
    counter: u64,
    secret: Secret,
    /// Ids of live connections, of lost connections that may return, and of resting ones.
    taken: IdSet<ConnId>,
    resting: VecDeque<ConnId>,
    quarantine_len: usize,
}

impl ConnIds {
    pub(crate) fn new(bits: u8, sequential: bool, secret: Secret) -> Self {
        let bits = bits.clamp(1, 32);
        let max = if bits == 32 { u32::MAX } else { (1 << bits) - 1 };
        // A quarter of the space at most: with 13 bits that leaves 6,000 ids for live connections.
        let quarantine_len = ((max / 4) as usize).min(4096);
        let taken = IdSet::with_hasher(IdHasher::new(&secret));
        Self { max, sequential, next: 1, counter: 0, secret, taken, resting: VecDeque::new(), quarantine_len }
    }

    /// The next id, or `None` when every id of the width is in use.
    pub(crate) fn allocate(&mut self) -> Option<ConnId> {
        if self.taken.len() >= self.max as usize {
            let reused = self.resting.pop_front()?;
            return Some(reused);
        }
        let id = if self.sequential { self.next_in_order() } else { self.random() };
        self.taken.insert(id);
        Some(id)
    }

    /// Returns an id. Its connection is gone from every shard's table.
    pub(crate) fn release(&mut self, id: ConnId) {
        debug_assert!(self.taken.contains(&id), "released an id that was not given out");
        self.resting.push_back(id);
        while self.resting.len() > self.quarantine_len {
            if let Some(free) = self.resting.pop_front() {
                self.taken.remove(&free);
            }
        }
    }

    fn next_in_order(&mut self) -> ConnId {
        loop {
            let id = ConnId(self.next);
            self.next = if self.next == self.max { 1 } else { self.next + 1 };
            if !self.taken.contains(&id) {
                return id;
            }
        }
    }

    fn random(&mut self) -> ConnId {
        // A few tries hit a free id unless the space is nearly full; then the next free one after
        // the last try is as good, and the search is bounded by the number of ids in use.
        let mut candidate = 1;
        for _ in 0..32 {
            self.counter += 1;
            candidate = (self.secret.nth(b"conn-id", self.counter) as u32) & self.max;
            if candidate != 0 && !self.taken.contains(&ConnId(candidate)) {
                return ConnId(candidate);
            }
        }
        self.next = candidate.max(1);
        self.next_in_order()
    }
}

/// Gives out ordinary channel ids, `1..spatial_start`. Spec §5.1.
///
/// Next-fit, and the cursor does not jump back to a removed channel: peers cache ids, so a removed
/// one comes back as late as possible.
#[derive(Debug)]
pub(crate) struct ChannelIds {
    end: u32,
    next: u32,
}

impl ChannelIds {
    pub(crate) fn new(spatial_start: u32) -> Self {
        Self { end: spatial_start.max(2), next: 1 }
    }

    /// The next id for which `used` says no; `None` when all are in use.
    pub(crate) fn allocate(&mut self, used: impl Fn(ChannelId) -> bool) -> Option<ChannelId> {
        for _ in 1..self.end {
            let id = ChannelId(self.next);
            self.next = if self.next + 1 >= self.end { 1 } else { self.next + 1 };
            if !used(id) {
                return Some(id);
            }
        }
        None
    }
}

/// The part of an address that counts as "the same place" for bans and per-address limits.
///
/// An IPv4 address as it is, also when mapped into IPv6; of an IPv6 address the /64, since a single
/// customer owns one.
#[must_use]
pub fn address_group(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let mut segments = v6.segments();
            segments[4..].fill(0);
            IpAddr::V6(Ipv6Addr::from(segments))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::new(7, &[3; 32])
    }

    #[test]
    fn development_ids_count_up_and_wrap_to_free_ones() {
        let mut ids = ConnIds::new(3, true, secret());
        let given: Vec<u32> = (0..7).map(|_| ids.allocate().expect("seven ids fit").0).collect();
        assert_eq!(given, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(ids.allocate(), None);
        ids.release(ConnId(4));
        assert_eq!(ids.allocate(), Some(ConnId(4)));
    }

    // 13 bits last for ever, not for 8190 connections.
    #[test]
    fn a17_thirteen_bit_ids_outlast_their_width() {
        for sequential in [true, false] {
            let mut ids = ConnIds::new(13, sequential, secret());
            let mut live = VecDeque::new();
            for _ in 0..40_000 {
                let id = ids.allocate().expect("a few hundred live connections leave room");
                assert!(id.0 != 0 && id.0 <= 8191);
                assert!(!live.contains(&id), "{id} is in use");
                live.push_back(id);
                if live.len() > 300 {
                    ids.release(live.pop_front().expect("not empty"));
                }
            }
        }
    }

    #[test]
    fn a17_ids_outside_development_mode_are_not_predictable_from_order() {
        let mut ids = ConnIds::new(31, false, secret());
        let first: Vec<u32> = (0..100).map(|_| ids.allocate().expect("room").0).collect();
        let ascending = first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert_eq!(ascending, 0);
        let mut other = ConnIds::new(31, false, Secret::new(8, &[3; 32]));
        assert_ne!(first[0], other.allocate().expect("room").0);
    }

    #[test]
    fn a_freed_id_rests_before_it_returns() {
        let mut ids = ConnIds::new(8, true, secret());
        let first = ids.allocate().expect("room");
        ids.release(first);
        let next: Vec<_> = (0..60).map(|_| ids.allocate().expect("room")).collect();
        assert!(!next.contains(&first));
    }

    #[test]
    fn channel_ids_do_not_come_back_at_once() {
        let mut ids = ChannelIds::new(6);
        let mut used = vec![ChannelId(0)];
        for expected in 1..=4 {
            let id = ids.allocate(|id| used.contains(&id)).expect("room");
            assert_eq!(id.0, expected);
            used.push(id);
        }
        used.retain(|id| id.0 != 2);
        assert_eq!(ids.allocate(|id| used.contains(&id)), Some(ChannelId(5)));
        used.push(ChannelId(5));
        assert_eq!(ids.allocate(|id| used.contains(&id)), Some(ChannelId(2)));
        used.push(ChannelId(2));
        assert_eq!(ids.allocate(|id| used.contains(&id)), None);
    }

    #[test]
    fn addresses_group_by_host_and_by_64() {
        let group = |text: &str| address_group(text.parse().expect("an address"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
        assert_eq!(group("2001:db8:1:2::1"), group("2001:db8:1:2:ffff::9"));
        assert_ne!(group("2001:db8:1:2::1"), group("2001:db8:1:3::1"));
    }

    #[test]
    fn the_id_hash_spreads_consecutive_ids() {
        let hasher = IdHasher::new(&secret());
        let low: HashSet<u64> = (0..1024_u32).map(|id| hasher.hash_one(ConnId(id)) & 0xFFFF).collect();
        assert!(low.len() > 980, "only {} distinct buckets of 65536", low.len());
    }
}
