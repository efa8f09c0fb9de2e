//! State that exists once, on shard 0: connection and channel ids, the list of channels, bans,
//! tickets, resume tokens.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use throng_stdx::TimerKey;
use throng_wire::channeldpb::auth_result_message::AuthResult;

use crate::ban::Bans;
use crate::config::{Config, Limits};
use crate::effect::{Redacted, WorldChoice};
use crate::ids::{
    ChannelId, ChannelIds, ConnId, ConnIds, ConnKind, IdHasher, IdMap, Secret, ShardIndex, address_group,
};
use crate::mail::Head;
use crate::settings::ChannelType;

/// Bytes of a resume token, without the name of its world.
const TOKEN_BYTES: usize = 24;

/// Length of the longest name of a world.
const WORLD_NAME_BYTES_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) ids: ConnIds,
    pub(crate) channel_ids: ChannelIds,
    /// Live connections by the id that peers use.
    pub(crate) entries: IdMap<ConnId, Registered>,
    /// Connections so far.
    accepted: u64,
    /// Live client connections per address group, and of IPv6 per /48 as well.
    clients_by_address: BTreeMap<(IpAddr, u8), usize>,
    /// Live connections per shard.
    pub(crate) load: Vec<usize>,
    /// Work of this shard for the world, in connections; `None` without a world.
    pub(crate) world_weight: Option<WorldWeight>,
    /// Every channel, for LIST.
    pub(crate) directory: BTreeMap<ChannelId, Listed>,
    pub(crate) bans: Bans,
    pub(crate) tickets: BTreeMap<u64, PendingAuth>,
    pub(crate) next_ticket: u64,
    /// Lost connections that may return.
    pub(crate) lost: BTreeMap<ConnId, Lost>,
    /// Lost servers per player identifier, longest lost first.
    pub(crate) lost_servers: BTreeMap<Box<str>, VecDeque<ConnId>>,
    /// Lost clients, longest lost first, each with the timer of its loss; those that have returned
    /// since are skipped.
    pub(crate) lost_clients: VecDeque<(ConnId, Option<TimerKey>)>,
    /// Resume tokens by their first half: to whom they belong and the second half.
    pub(crate) tokens: BTreeMap<u64, (ConnId, [u8; 16])>,
    /// Resumptions that wait for the older connection to be closed, by its id.
    pub(crate) superseding: BTreeMap<ConnId, PendingAuth>,
    /// Returned connections whose recovery has not ended.
    pub(crate) settling: BTreeMap<ConnId, Settling>,
    /// Number of clients that the matcher knows, live or lost, per player identifier.
    pub(crate) matchmakers: BTreeMap<Box<str>, u32>,
    pub(crate) secret: Secret,
    pub(crate) token_counter: u64,
    /// The end of every token: the name of the world, which means the same on every node; empty for
    /// the main world.
    token_tag: Arc<str>,
}

/// A live connection.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) kind: ConnKind,
    pub(crate) addr: IpAddr,
    pub(crate) shard: ShardIndex,
    /// Number of connections before it.
    pub(crate) order: u64,
    /// The id it was accepted under, when it goes by a recovered one now; both stay taken until it
    /// is gone.
    pub(crate) accepted_as: Option<ConnId>,
    pub(crate) authenticated: bool,
    pub(crate) pit: Box<str>,
    /// It waits for a verdict.
    pub(crate) pending: bool,
    /// Its address is its own, as far as the transport can tell.
    pub(crate) proven: bool,
    /// A failed login whose answer is delayed.
    pub(crate) delayed: Option<Box<(PendingAuth, FailedLogin)>>,
    /// Channels it created that still exist.
    pub(crate) channels: usize,
    /// First halves of the resume tokens that lead to it, the newest last.
    pub(crate) tokens: SmallVec<[u64; 2]>,
    /// The matcher must hear when it is gone.
    pub(crate) asked_matcher: bool,
    /// It has come from another world.
    pub(crate) moved: bool,
    /// The world that its listener or its transport names.
    pub(crate) asked: Option<WorldChoice>,
}

#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) channel_type: ChannelType,
    pub(crate) metadata: String,
    pub(crate) creator: Option<ConnId>,
}

/// An AUTH request on its way to a result.
#[derive(Debug, Clone)]
pub(crate) struct PendingAuth {
    pub(crate) conn: ConnId,
    pub(crate) head: Head,
    pub(crate) pit: Box<str>,
    /// For a login in another world, as the next one.
    pub(crate) lt: Redacted,
    pub(crate) token: Option<Vec<u8>>,
    /// The peer asked for a resume token.
    pub(crate) wants_token: bool,
    /// World that its resume token names, if the token is void.
    pub(crate) void_token: Option<Box<str>>,
    /// The world that the peer asks for. Empty once that is settled.
    pub(crate) asked: Option<WorldChoice>,
}

impl PendingAuth {
    /// Returns whether it asks for the world that its void token names: an answer has led it there.
    pub(crate) fn asks_by_void_token(&self) -> bool {
        let asked = self.asked.as_ref().filter(|asked| !asked.by_listener);
        asked.is_some_and(|asked| self.void_token.as_deref() == Some(&*asked.world))
    }
}

/// Consequences of a failed login.
#[derive(Debug)]
pub(crate) struct FailedLogin {
    pub(crate) result: AuthResult,
    /// The name is locked for the address from now on.
    pub(crate) locked: bool,
    pub(crate) closes: bool,
}

#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) kind: ConnKind,
    pub(crate) pit: Box<str>,
    pub(crate) channels: usize,
    pub(crate) tokens: SmallVec<[u64; 2]>,
    pub(crate) asked_matcher: bool,
    pub(crate) expiry: Option<TimerKey>,
}

#[derive(Debug)]
pub(crate) struct Settling {
    /// The id it was accepted under.
    pub(crate) fresh: ConnId,
    /// Shards that have not restored its places yet.
    pub(crate) outstanding: u16,
    /// The shortest time has passed.
    pub(crate) rested: bool,
    pub(crate) timer: Option<TimerKey>,
}

/// Work of the first shard for the world, in connections.
#[derive(Debug, Default)]
pub(crate) struct WorldWeight {
    /// As measured.
    measured: usize,
    /// Clients whose part of the world's work is not measured yet: those of the last seconds.
    arrived: usize,
}

impl WorldWeight {
    /// Clients for which the world takes as much work as one of their connections (measured in
    /// `throng bench channel spatial --shards 4`: 800 take that of 267).
    const CLIENTS_PER_CONNECTION: usize = 3;
    /// Part of the arrived that each measurement, four a second, is believed to include.
    const MEASURED_PART: usize = 16;

    pub(crate) fn measure(&mut self, connections: usize) {
        self.measured = connections;
        self.arrived -= self.arrived.div_ceil(Self::MEASURED_PART);
    }

    fn connections(&self) -> usize {
        self.measured.max(self.arrived / Self::CLIENTS_PER_CONNECTION)
    }
}

impl Registry {
    pub(crate) fn new(config: &Config, secret: Secret, count: u16) -> Self {
        let global = Listed { channel_type: ChannelType::GLOBAL, metadata: String::new(), creator: None };
        Self {
            ids: ConnIds::new(config.conn_id_bits, config.development, secret.clone()),
            channel_ids: ChannelIds::new(config.spatial_channel_start),
            entries: IdMap::with_hasher(IdHasher::new(&secret)),
            accepted: 0,
            clients_by_address: BTreeMap::new(),
            load: vec![0; usize::from(count)],
            world_weight: config.spatial.is_world().then(WorldWeight::default),
            directory: BTreeMap::from([(ChannelId::GLOBAL, global)]),
            bans: Bans::new(&config.abuse),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            lost: BTreeMap::new(),
            lost_servers: BTreeMap::new(),
            lost_clients: VecDeque::new(),
            tokens: BTreeMap::new(),
            superseding: BTreeMap::new(),
            settling: BTreeMap::new(),
            matchmakers: BTreeMap::new(),
            secret,
            token_counter: 0,
            token_tag: Arc::clone(&config.world),
        }
    }

    /// Whether an address has as many live clients as it may; an IPv6 /48 may have eight times as
    /// many as a /64.
    pub(crate) fn is_crowded(&self, addr: IpAddr, limits: &Limits) -> bool {
        let max = limits.client_connections_per_address;
        let exempt = addr.is_loopback() || limits.unlimited_addresses.iter().any(|net| net.contains(addr));
        let count = |group| self.clients_by_address.get(&group).copied().unwrap_or(0);
        max > 0
            && !exempt
            && groups(addr).zip([max, max.saturating_mul(8)]).any(|(group, max)| count(group) >= max)
    }

    /// The shard with the fewest connections, the world's work counted as some.
    pub(crate) fn least_loaded(&self) -> ShardIndex {
        let of_world = self.world_weight.as_ref().map_or(0, WorldWeight::connections);
        let weight = |index: usize| self.load[index] + if index == 0 { of_world } else { 0 };
        let index = (0..self.load.len()).min_by_key(|index| weight(*index)).unwrap_or(0);
        ShardIndex(index as u16)
    }

    pub(crate) fn register(&mut self, conn: ConnId, kind: ConnKind, addr: IpAddr, shard: ShardIndex) {
        self.load[usize::from(shard.0)] += 1;
        if kind == ConnKind::Client {
            for group in groups(addr) {
                *self.clients_by_address.entry(group).or_default() += 1;
            }
            if let Some(weight) = &mut self.world_weight {
                weight.arrived += 1;
            }
        }
        let entry = Registered {
            kind,
            addr,
            shard,
            order: self.accepted,
            accepted_as: None,
            authenticated: false,
            pit: Box::default(),
            pending: false,
            proven: true,
            delayed: None,
            channels: 0,
            tokens: SmallVec::new(),
            asked_matcher: false,
            moved: false,
            asked: None,
        };
        self.accepted += 1;
        self.entries.insert(conn, entry);
    }

    /// Forgets a connection that is gone; its id stays taken.
    pub(crate) fn unregister(&mut self, conn: ConnId) -> Option<Registered> {
        let entry = self.entries.remove(&conn)?;
        self.load[usize::from(entry.shard.0)] -= 1;
        if entry.kind == ConnKind::Client {
            for group in groups(entry.addr) {
                if let Some(count) = self.clients_by_address.get_mut(&group) {
                    *count -= 1;
                    if *count == 0 {
                        self.clients_by_address.remove(&group);
                    }
                }
            }
        }
        Some(entry)
    }

    /// A fresh resume token for a connection.
    pub(crate) fn issue_token(&mut self, conn: ConnId) -> Vec<u8> {
        self.token_counter += 1;
        let part = |label: &[u8]| self.secret.nth(label, self.token_counter);
        let first = part(b"resume-name");
        let mut second = [0; 16];
        second[..8].copy_from_slice(&part(b"resume-proof-low").to_le_bytes());
        second[8..].copy_from_slice(&part(b"resume-proof-high").to_le_bytes());
        self.add_token(conn, first, second);
        [&first.to_le_bytes()[..], &second, self.token_tag.as_bytes()].concat()
    }

    /// A fresh resume token for a connection that has returned with the token `shown`, which stays
    /// valid until [`Self::confirm_token`]: the answer with the fresh one may be lost.
    pub(crate) fn reissue_token(&mut self, conn: ConnId, shown: &[u8]) -> Vec<u8> {
        if let Some((first, proof)) = self.halves(shown)
            && let Ok(second) = proof.try_into()
        {
            self.add_token(conn, first, second);
        }
        self.issue_token(conn)
    }

    fn add_token(&mut self, conn: ConnId, first: u64, second: [u8; 16]) {
        let Some(entry) = self.entries.get_mut(&conn) else { return };
        entry.tokens.push(first);
        self.tokens.insert(first, (conn, second));
    }

    /// A connection has its newest token: the one that it has returned with is void.
    pub(crate) fn confirm_token(&mut self, conn: ConnId) {
        let Some(entry) = self.entries.get_mut(&conn) else { return };
        let newest = entry.tokens.pop();
        for old in std::mem::replace(&mut entry.tokens, newest.into_iter().collect()) {
            self.tokens.remove(&old);
        }
    }

    /// Voids tokens of a session.
    pub(crate) fn void_tokens(&mut self, tokens: &[u64]) {
        for token in tokens {
            self.tokens.remove(token);
        }
    }

    /// The halves of a token of this world.
    fn halves<'a>(&self, token: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let token = token.strip_suffix(self.token_tag.as_bytes())?;
        let (first, proof) = token.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*first), proof))
    }

    /// Whose token this is, if that is a session of this player. The bans and locks that the login
    /// has passed are those of its name, which must be the session's.
    pub(crate) fn session_of(&self, token: &[u8], pit: &str) -> Option<ConnId> {
        let (first, proof) = self.halves(token)?;
        let (conn, expected) = self.tokens.get(&first)?;
        // All bytes are looked at whatever they are, so that time tells nothing about them.
        let same = proof.len() == expected.len()
            && proof.iter().zip(expected).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0;
        if !same {
            return None;
        }
        let conn = *conn;
        let live = self.entries.get(&conn).map(|entry| &entry.pit);
        let session_pit = live.or_else(|| self.lost.get(&conn).map(|lost| &lost.pit))?;
        (**session_pit == *pit).then_some(conn)
    }
}

/// The name of the world that a resume token carries; empty for the main world, and for bytes that
/// are no token.
pub(crate) fn world_of_token(token: &[u8]) -> &str {
    let name = token.get(TOKEN_BYTES..).filter(|name| name.len() <= WORLD_NAME_BYTES_MAX);
    name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
}

/// What limits per address count: an IPv4 address, or an IPv6 /64 and its /48.
fn groups(addr: IpAddr) -> impl Iterator<Item = (IpAddr, u8)> {
    let group = address_group(addr);
    let site = match group {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => Some((IpAddr::V6((v6.to_bits() & !(u128::MAX >> 48)).into()), 48)),
    };
    [Some((group, 64)), site].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        Registry::new(&Config::default(), Secret::new(1, &[0; 32]), 2)
    }

    #[test]
    fn tokens_work_once_and_only_whole() {
        let mut registry = registry();
        let addr = "10.0.0.1".parse().expect("an address");
        registry.register(ConnId(5), ConnKind::Client, addr, ShardIndex(0));
        registry.entries.get_mut(&ConnId(5)).expect("registered").pit = "ann".into();
        let first = registry.issue_token(ConnId(5));
        assert_eq!(first.len(), 24);
        for cut in 0..first.len() {
            assert_eq!(registry.session_of(&first[..cut], "ann"), None);
            let mut wrong = first.clone();
            wrong[cut] ^= 1;
            assert_eq!(registry.session_of(&wrong, "ann"), None);
        }
        assert_eq!(registry.session_of(&first, "bob"), None, "another's");
        assert_eq!(registry.session_of(&first, "ann"), Some(ConnId(5)));
        let resume = |registry: &mut Registry, token: &[u8]| {
            let old = std::mem::take(&mut registry.entries.get_mut(&ConnId(5)).expect("registered").tokens);
            registry.void_tokens(&old);
            registry.reissue_token(ConnId(5), token)
        };
        let second = resume(&mut registry, &first);
        assert_eq!(registry.session_of(&first, "ann"), Some(ConnId(5)), "its answer may be lost");
        let third = resume(&mut registry, &first);
        assert_eq!(registry.session_of(&second, "ann"), None, "of an answer that was lost");
        registry.confirm_token(ConnId(5));
        assert_eq!(registry.session_of(&first, "ann"), None, "its answer has arrived");
        assert_eq!(registry.session_of(&third, "ann"), Some(ConnId(5)));
        assert_eq!(registry.tokens.len(), 1);
    }

    #[test]
    fn connections_spread_over_shards_and_are_counted_by_address() {
        let mut registry = registry();
        let addr = "10.0.0.1".parse().expect("an address");
        for id in 1..=4 {
            let shard = registry.least_loaded();
            registry.register(ConnId(id), ConnKind::Client, addr, shard);
        }
        assert_eq!(registry.load, [2, 2]);
        let limits = |max| Limits { client_connections_per_address: max, ..Limits::default() };
        assert!(registry.is_crowded(addr, &limits(4)) && !registry.is_crowded(addr, &limits(5)));
        assert!(registry.unregister(ConnId(1)).is_some());
        assert!(registry.unregister(ConnId(1)).is_none());
        assert_eq!((registry.is_crowded(addr, &limits(4)), registry.least_loaded()), (false, ShardIndex(0)));
    }
}
