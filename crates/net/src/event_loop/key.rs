//! Names of connections and listeners, as they stand in the kernel's events too.

pub(super) const WAKER_TOKEN: u64 = u64::MAX;
pub(super) const LISTENER_BIT: u64 = 1 << 63;

/// Kind in the last two bits of a key's number: a stream or TCP listener, a KCP session or port, or
/// one of ENet.
pub(super) const KIND: u32 = 3;
pub(super) const SESSION: u32 = 1;
pub(super) const ENET: u32 = 2;

/// Names a connection of one loop. Never reused, unlike its [index](ConnKey::index).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey {
    /// The place in the table of its kind, and the kind in the last two bits.
    index: u32,
    generation: u32,
}

impl ConnKey {
    /// A small number that no other open connection of the loop has: the place of the connection's
    /// state in a table.
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(super) fn stream(slot: usize, generation: u32) -> Self {
        Self { index: (slot as u32) << 2, generation }
    }

    pub(crate) fn session(slot: usize, generation: u32) -> Self {
        Self { index: (slot as u32) << 2 | SESSION, generation }
    }

    pub(crate) fn enet(slot: usize, generation: u32) -> Self {
        Self { index: (slot as u32) << 2 | ENET, generation }
    }

    pub(super) fn is_stream(self) -> bool {
        self.index & KIND == 0
    }

    pub(super) fn is_session(self) -> bool {
        self.index & KIND == SESSION
    }

    pub(super) fn is_enet(self) -> bool {
        self.index & KIND == ENET
    }

    /// Place in the table of its kind.
    pub(crate) fn slot(self) -> usize {
        (self.index >> 2) as usize
    }

    pub(crate) fn generation(self) -> u32 {
        self.generation
    }

    /// 31 bits: the top bit of a token marks listeners.
    pub(crate) fn next_generation(last: u32) -> u32 {
        (last + 1) & (u32::MAX >> 1)
    }

    pub(super) fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn from_token(token: u64) -> Self {
        Self { index: token as u32, generation: (token >> 32) as u32 }
    }
}

/// Names a listener of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerKey(u32);

impl ListenerKey {
    /// The kind in the last two bits: 0 for TCP listeners, and as for connections.
    pub(super) fn new(slot: usize, kind: u32) -> Self {
        Self((slot as u32) << 2 | kind)
    }

    pub(crate) fn enet(slot: usize) -> Self {
        Self::new(slot, ENET)
    }

    pub(super) fn is_port(self) -> bool {
        self.0 & KIND == SESSION
    }

    pub(super) fn is_enet(self) -> bool {
        self.0 & KIND == ENET
    }

    /// Place in the table of its kind.
    pub(crate) fn slot(self) -> usize {
        (self.0 >> 2) as usize
    }

    pub(super) fn from_token(token: u64) -> Self {
        Self(token as u32)
    }

    pub(super) fn token(self) -> u64 {
        LISTENER_BIT | u64::from(self.0)
    }
}
