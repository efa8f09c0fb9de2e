//! Notifications to game servers.

use throng_wire::matcher::write_bytes;
use throng_wire::{varint_len, write_varint};

/// Identity of a server for as long as the matcher remembers it. Numbers are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerNumber {
    pub(crate) place: u32,
    pub(crate) age: u64,
}

impl ServerNumber {
    /// Index for tables of servers. A later server may have the same one.
    #[must_use]
    pub fn place(self) -> usize {
        self.place as usize
    }
}

/// Notifications of some inputs, in order. The caller drains them after each input or batch.
#[derive(Debug, Default)]
pub struct Notices {
    bytes: Vec<u8>,
    heads: Vec<Head>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    server: ServerNumber,
    end: usize,
    collapse: u64,
}

/// One entry for one server.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a> {
    /// Its server; see [`Matcher::server_name`](crate::Matcher::server_name).
    pub server: ServerNumber,
    /// The entry as a field of a batch, tag and length included: entries one after the other are a
    /// batch.
    pub entry: &'a [u8],
    /// Not 0: a later entry for this server with the same number replaces this one while it was not
    /// sent.
    pub collapse: u64,
}

impl Notices {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Notice<'_>> {
        let mut start = 0;
        self.heads.iter().map(move |head| {
            let entry = &self.bytes[start..head.end];
            start = head.end;
            Notice { server: head.server, entry, collapse: head.collapse }
        })
    }

    /// Adds an entry of others.
    pub fn keep(&mut self, notice: Notice<'_>) {
        self.bytes.extend_from_slice(notice.entry);
        self.heads.push(Head { server: notice.server, end: self.bytes.len(), collapse: notice.collapse });
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Bytes of all entries so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets all; keeps the memory.
    pub fn clear(&mut self) {
        self.heads.clear();
        self.bytes.clear();
    }

    /// Adds an entry: `event` (an encoded field of an entry) for `roles` on `server`.
    pub(crate) fn push<'a>(
        &mut self,
        server: ServerNumber,
        roles: impl Iterator<Item = &'a [u8]> + Clone,
        event: &[u8],
        collapse: u64,
    ) {
        let ids: usize = roles.clone().map(|id| 1 + varint_len(id.len() as u64) + id.len()).sum();
        self.bytes.push(ENTRY_TAG);
        write_varint(&mut self.bytes, (ids + event.len()) as u64);
        for id in roles {
            write_bytes(&mut self.bytes, 1, id);
        }
        self.bytes.extend_from_slice(event);
        self.heads.push(Head { server, end: self.bytes.len(), collapse });
    }
}

/// Field 1 of a batch, length-delimited.
const ENTRY_TAG: u8 = 1 << 3 | 2;
