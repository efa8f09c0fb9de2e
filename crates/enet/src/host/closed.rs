//! Connections that ended lately. Spec: enet A9

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use hashbrown::HashMap;

use crate::address::Key;
use crate::secret::{Keyed, Secret};
use crate::wire::{Dialect, SESSION_UNUSED};

/// Connections that ended lately: their sessions must not be used again at once, and the DISCONNECT
/// that ended them may come again. Bounded in number and time.
#[derive(Debug)]
pub(super) struct Closed {
    entries: HashMap<Key, ClosedEntry, Keyed>,
    oldest: VecDeque<(Key, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedEntry {
    pub(super) remote_id: u16,
    pub(super) connect_id: [u8; 4],
    pub(super) session_in: u8,
    pub(super) session_out: u8,
    pub(super) dialect: Dialect,
    /// Ended by a DISCONNECT that was acknowledged.
    pub(super) answers: bool,
    pub(super) until_ms: u64,
}

impl Closed {
    pub(super) fn new(secret: &mut Secret) -> Self {
        Self { entries: HashMap::with_hasher(secret.table_key()), oldest: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.oldest.len()
    }

    pub(super) fn insert(&mut self, address: SocketAddr, id: u16, entry: ClosedEntry) {
        let surplus = if self.oldest.len() >= CLOSED_MAX { self.oldest.pop_front() } else { None };
        if let Some((key, until_ms)) = surplus {
            // A later entry under the same key stays.
            if self.entries.get(&key).is_some_and(|entry| entry.until_ms == until_ms) {
                self.entries.remove(&key);
            }
        }
        let key = Key::new(address, id);
        self.entries.insert(key, entry);
        self.oldest.push_back((key, entry.until_ms));
    }

    pub(super) fn find(&self, now_ms: u64, address: SocketAddr, id: u16) -> Option<ClosedEntry> {
        self.entries
            .get(&Key::new(address, id))
            .copied()
            .filter(|entry| entry.answers && now_ms < entry.until_ms)
    }

    /// The last session ids used under this id.
    pub(super) fn sessions(&self, address: SocketAddr, id: u16) -> (u8, u8) {
        let entry = self.entries.get(&Key::new(address, id));
        entry.map_or((SESSION_UNUSED, SESSION_UNUSED), |entry| (entry.session_in, entry.session_out))
    }
}

/// The last of the usual repetitions of a DISCONNECT comes within 5 s. Spec: enet A9
pub(super) const CLOSED_MS: u64 = 10_000;
/// Connections ended lately that are remembered, about 400 KiB.
pub(super) const CLOSED_MAX: usize = 4_096;
