//! Handshakes of strangers that have not yet proven their address.
//!
//! A CONNECT makes an entry here and nothing else: no connection, no lanes, no timers, no
//! resending. Each CONNECT is answered once and with fewer bytes than it had, and the client
//! repeats it until it is answered. The entry becomes a connection when the answer is acknowledged,
//! which takes its id, its session and its time: 30 random bits. Spec: enet A8

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::address::{Block, Key};
use crate::peer::{Names, Terms};
use crate::secret::{Keyed, Secret};

/// One handshake in progress.
#[derive(Clone, Debug)]
pub(crate) struct HalfOpen {
    pub(crate) names: Names,
    pub(crate) terms: Terms,
    /// Window announced to the client.
    pub(crate) window_announced: u32,
    /// The application's number in CONNECT.
    pub(crate) data: u32,
    created_ms: u64,
    /// Time of the last datagram that only a receiver of our answer can send.
    heard_ms: Option<u64>,
    /// Bytes received from, and sent to, the unproven address.
    pub(crate) bytes_in: usize,
    pub(crate) bytes_out: usize,
    /// The last answers: their time on the wire, and when they left.
    answers: [(u16, u64); ANSWERS],
    pub(crate) answered: u32,
    /// Tells this entry from others that had its place.
    order: u64,
    /// Neighbours in age among the entries of its address, and of its prefix.
    neighbours: [Neighbours; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    older: Option<HalfOpenIndex>,
    newer: Option<HalfOpenIndex>,
}

/// Entries of an address or a prefix.
#[derive(Clone, Copy, Debug, Default)]
struct Crowd {
    count: u32,
    oldest: Option<HalfOpenIndex>,
    newest: Option<HalfOpenIndex>,
}

impl HalfOpen {
    pub(crate) fn new(names: Names, terms: Terms, window_announced: u32, data: u32, now_ms: u64) -> Self {
        Self {
            names,
            terms,
            window_announced,
            data,
            created_ms: now_ms,
            heard_ms: None,
            bytes_in: 0,
            bytes_out: 0,
            answers: [(0, 0); ANSWERS],
            answered: 0,
            order: 0,
            neighbours: Default::default(),
        }
    }

    pub(crate) fn note_answer(&mut self, sent_time: u16, now_ms: u64, len: usize) {
        self.answers[self.answered as usize % ANSWERS] = (sent_time, now_ms);
        self.answered = self.answered.wrapping_add(1);
        self.bytes_out += len;
    }

    pub(crate) fn note_heard(&mut self, now_ms: u64, len: usize) {
        self.heard_ms = Some(now_ms);
        self.bytes_in += len;
    }

    /// True if the client is there and only its acknowledgements get lost.
    fn is_alive(&self, now_ms: u64, timeout_ms: u64) -> bool {
        self.heard_ms.is_some_and(|heard| now_ms < heard + timeout_ms) && now_ms < self.created_ms + LIFE_MS
    }

    /// Time since the answer with this time left; `None` if there was none.
    pub(crate) fn round_trip_ms(&self, now_ms: u64, sent_time: u16) -> Option<u32> {
        let known = &self.answers[..ANSWERS.min(self.answered as usize)];
        let (_, at) = known.iter().find(|(time, _)| *time == sent_time)?;
        u32::try_from(now_ms.saturating_sub(*at)).ok()
    }

    pub(crate) fn last_answer_ms(&self) -> Option<u64> {
        let last = (self.answered as usize).checked_sub(1)?;
        Some(self.answers[last % ANSWERS].1)
    }
}

/// Names an entry of [`HalfOpens`].
pub(crate) type HalfOpenIndex = u32;

/// The bounded table of handshakes in progress.
#[derive(Debug)]
pub(crate) struct HalfOpens {
    limits: Limits,
    entries: Vec<Option<HalfOpen>>,
    free: Vec<HalfOpenIndex>,
    by_remote: HashMap<Key, HalfOpenIndex, Keyed>,
    /// Entries by address and by prefix.
    crowds: HashMap<Block, Crowd, Keyed>,
    /// In order of creation; holds entries that are gone, up to a constant factor.
    oldest: VecDeque<(HalfOpenIndex, u64)>,
    created: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) total: usize,
    pub(crate) per_ip: usize,
    pub(crate) per_prefix: usize,
    pub(crate) timeout_ms: u64,
}

impl HalfOpens {
    pub(crate) fn new(limits: Limits, secret: &mut Secret) -> Self {
        Self {
            limits,
            entries: Vec::new(),
            free: Vec::new(),
            by_remote: HashMap::with_hasher(secret.table_key()),
            crowds: HashMap::with_hasher(secret.table_key()),
            oldest: VecDeque::new(),
            created: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_remote.len()
    }

    pub(crate) fn get_mut(&mut self, index: HalfOpenIndex) -> Option<&mut HalfOpen> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn find(&self, address: SocketAddr, remote_id: u16) -> Option<HalfOpenIndex> {
        self.by_remote.get(&Key::new(address, remote_id)).copied()
    }

    /// Handshakes in progress from this IP address (or IPv6 /64).
    pub(crate) fn count_of_ip(&self, ip: IpAddr) -> usize {
        self.count(Block::of_ip(ip))
    }

    /// True if this address may begin another handshake, once
    /// [`pop_crowded`](Self::pop_crowded) has made room.
    pub(crate) fn admits(&self, ip: IpAddr) -> bool {
        // While space is short, those who have taken much of it get no more: a flood from a few
        // networks then fills the table and stops, instead of pushing out everybody who needs a
        // round trip.
        let is_short = self.len() >= self.limits.total / 4 * 3;
        let fair = (self.limits.total / 256).max(16);
        let per_prefix = if is_short { self.limits.per_prefix.min(fair) } else { self.limits.per_prefix };
        self.limits.total > 0
            && self.count(Block::of_ip(ip)) < self.limits.per_ip
            && self.count(Block::prefix_of_ip(ip)) < per_prefix
    }

    /// The oldest entry of this address, or else of its prefix, if they have all that they may: it
    /// makes room for another one. A flood of CONNECTs under a forged address would keep its owner
    /// out otherwise, and its neighbours; so it has to be so fast that the entries are gone within
    /// a round trip.
    pub(crate) fn pop_crowded(&mut self, ip: IpAddr) -> Option<HalfOpen> {
        let shares =
            [(Block::of_ip(ip), self.limits.per_ip), (Block::prefix_of_ip(ip), self.limits.per_prefix)];
        let full = shares.into_iter().find(|(block, max)| self.count(*block) >= *max)?;
        let oldest = self.crowds.get(&full.0)?.oldest?;
        self.remove(oldest)
    }

    /// The entry that has to go before another one can come, or that has had its time.
    pub(crate) fn pop_surplus(&mut self, now_ms: u64) -> Option<HalfOpen> {
        // Each entry at most once, as those that may stay go to the end.
        for _ in 0..self.oldest.len() {
            let &(index, order) = self.oldest.front()?;
            let Some(entry) = self.entry(index).filter(|entry| entry.order == order) else {
                self.oldest.pop_front();
                continue;
            };
            let is_late = entry.created_ms + self.limits.timeout_ms <= now_ms;
            let is_full = self.len() >= self.limits.total;
            if !is_late && !is_full {
                return None;
            }
            let is_alive = entry.is_alive(now_ms, self.limits.timeout_ms);
            self.oldest.pop_front();
            if is_alive && !is_full {
                self.oldest.push_back((index, order));
                continue;
            }
            return self.remove(index);
        }
        None
    }

    /// Time at which [`pop_surplus`](Self::pop_surplus) has something although nobody came. May be
    /// too early, never too late.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let &(index, _) = self.oldest.front()?;
        let created = self.entry(index).map_or(0, |entry| entry.created_ms);
        Some(created + self.limits.timeout_ms)
    }

    pub(crate) fn insert(&mut self, mut entry: HalfOpen) -> HalfOpenIndex {
        debug_assert!(self.len() < self.limits.total);
        self.created += 1;
        entry.order = self.created;
        let blocks = blocks_of(&entry);
        let key = Key::new(entry.names.address, entry.names.remote_id);
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(entry);
                index
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as HalfOpenIndex
            }
        };
        for (at, block) in blocks.into_iter().enumerate() {
            let crowd = self.crowds.entry(block).or_default();
            crowd.count += 1;
            let older = crowd.newest.replace(index);
            crowd.oldest.get_or_insert(index);
            self.neighbours(Some(index), at, |mine| mine.older = older);
            self.neighbours(older, at, |theirs| theirs.newer = Some(index));
        }
        self.by_remote.insert(key, index);
        self.oldest.push_back((index, self.created));
        if self.oldest.len() > 2 * self.len() + 64 {
            let entries = &self.entries;
            self.oldest.retain(|&(index, order)| {
                entries[index as usize].as_ref().is_some_and(|entry| entry.order == order)
            });
        }
        index
    }

    pub(crate) fn remove(&mut self, index: HalfOpenIndex) -> Option<HalfOpen> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        self.by_remote.remove(&Key::new(entry.names.address, entry.names.remote_id));
        for (at, block) in blocks_of(&entry).into_iter().enumerate() {
            let Neighbours { older, newer } = entry.neighbours[at];
            self.neighbours(older, at, |theirs| theirs.newer = newer);
            self.neighbours(newer, at, |theirs| theirs.older = older);
            let Some(crowd) = self.crowds.get_mut(&block) else { continue };
            crowd.count -= 1;
            if older.is_none() {
                crowd.oldest = newer;
            }
            if newer.is_none() {
                crowd.newest = older;
            }
            if crowd.count == 0 {
                self.crowds.remove(&block);
            }
        }
        if self.len() == 0 {
            // A flood is over, or a crowd is in: neither comes every day.
            self.entries = Vec::new();
            self.free = Vec::new();
            self.oldest = VecDeque::new();
        }
        Some(entry)
    }

    fn entry(&self, index: HalfOpenIndex) -> Option<&HalfOpen> {
        self.entries.get(index as usize)?.as_ref()
    }

    fn count(&self, block: Block) -> usize {
        self.crowds.get(&block).map_or(0, |crowd| crowd.count as usize)
    }

    /// Changes the neighbours of an entry, by address (0) or by prefix (1).
    fn neighbours(&mut self, of: Option<HalfOpenIndex>, at: usize, change: impl FnOnce(&mut Neighbours)) {
        if let Some(entry) = of.and_then(|index| self.get_mut(index)) {
            change(&mut entry.neighbours[at]);
        }
    }
}

fn blocks_of(entry: &HalfOpen) -> [Block; 2] {
    let ip = entry.names.address.ip();
    [Block::of_ip(ip), Block::prefix_of_ip(ip)]
}

/// Time that a responsive client may take: as long as the reference repeats its VERIFY_CONNECT.
const LIFE_MS: u64 = 31_500;
/// Answers whose times are remembered: a client that is slow to acknowledge may refer to any of
/// them.
const ANSWERS: usize = 4;
