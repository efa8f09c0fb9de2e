//! Memory of the output that waits for clients.

use core::iter::Sum;

/// Memory of the output that waits for the clients of a shard, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes of buffers that belong to one connection each.
    pub own_bytes: usize,
    /// Bytes that wait in entries that connections share, each counted for every connection.
    pub shared_bytes: usize,
    /// Bytes of the entries that the shard has made and that still exist, each counted once.
    /// Clients of other shards, game servers and mail hold them as well.
    pub entry_bytes: usize,
    /// Bytes of the buffers of game servers, which no bound of the clients' output counts.
    pub server_bytes: usize,
}

impl Backlog {
    /// Memory that the clients of all shards hold, if this is the sum of all shards. Entries that
    /// wait for game servers only may count, up to as many bytes as clients wait for.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.own_bytes + self.shared_bytes.min(self.entry_bytes)
    }

    /// Bytes by which this shard is weighed against others.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.own_bytes + self.shared_bytes
    }

    /// Memory of the output that the shard has allocated, for clients and game servers.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.own_bytes + self.entry_bytes + self.server_bytes
    }

    /// Replaces a part of this sum.
    pub(crate) fn replace(&mut self, old: Self, new: Self) {
        self.own_bytes = self.own_bytes - old.own_bytes + new.own_bytes;
        self.shared_bytes = self.shared_bytes - old.shared_bytes + new.shared_bytes;
        self.server_bytes = self.server_bytes - old.server_bytes + new.server_bytes;
    }
}

impl Sum for Backlog {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            own_bytes: sum.own_bytes + part.own_bytes,
            shared_bytes: sum.shared_bytes + part.shared_bytes,
            entry_bytes: sum.entry_bytes + part.entry_bytes,
            server_bytes: sum.server_bytes + part.server_bytes,
        })
    }
}
