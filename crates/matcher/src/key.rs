//! Places of objects by kind.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// Place of an object of kind `T`, which no place of another kind can be taken for. Optional ones
/// are as small.
pub(crate) struct Key<T> {
    /// One more than the index.
    place: NonZeroU32,
    kind: PhantomData<fn() -> T>,
}

/// Kind of the places of teams.
pub(crate) enum TeamKind {}

/// Place of a team.
pub(crate) type TeamKey = Key<TeamKind>;

/// Kind of the places of roles.
pub(crate) enum PlayerKind {}

/// Place of a role.
pub(crate) type PlayerKey = Key<PlayerKind>;

/// Kind of the places of game servers.
pub(crate) enum ServerKind {}

/// Place of a game server.
pub(crate) type ServerKey = Key<ServerKind>;

/// Kind of the places of rooms.
pub(crate) enum RoomKind {}

/// Place of a room.
pub(crate) type RoomKey = Key<RoomKind>;

/// Kind of the places of matches.
pub(crate) enum MatchKind {}

/// Place of a match.
pub(crate) type MatchKey = Key<MatchKind>;

/// Kind of the places of queues.
pub(crate) enum QueueKind {}

/// Place of a queue.
pub(crate) type QueueKey = Key<QueueKind>;

/// Kind of the places of tickets.
pub(crate) enum TicketKind {}

/// Place of a ticket.
pub(crate) type TicketKey = Key<TicketKind>;

/// Kind of the places of backfills.
pub(crate) enum BackfillKind {}

/// Place of a backfill.
pub(crate) type BackfillKey = Key<BackfillKind>;

/// Kind of the places of the partitions of a pool.
pub(crate) enum PartitionKind {}

/// Place of a partition in its pool.
pub(crate) type PartitionKey = Key<PartitionKind>;

impl<T> Key<T> {
    /// A place behind every object's.
    pub(crate) const LAST: Key<T> = Key { place: NonZeroU32::MAX, kind: PhantomData };

    /// The place at an index of a slab.
    pub(crate) fn new(index: u32) -> Key<T> {
        Key { place: NonZeroU32::MIN.saturating_add(index), kind: PhantomData }
    }

    pub(crate) fn index(self) -> u32 {
        self.place.get() - 1
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Key<T> {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Key<T>) -> bool {
        self.place == other.place
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Key<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Key<T>) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

impl<T> std::hash::Hash for Key<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.place.hash(state);
    }
}

/// Numbers of roles and servers in a snapshot, by place.
#[derive(Debug)]
pub(crate) struct Numbers {
    players: Vec<Option<u32>>,
    servers: Vec<Option<u32>>,
}

impl Numbers {
    /// No numbers of so many places.
    pub(crate) fn new(players: u32, servers: u32) -> Numbers {
        Numbers { players: vec![None; players as usize], servers: vec![None; servers as usize] }
    }

    pub(crate) fn set_player(&mut self, key: PlayerKey, number: u32) {
        self.players[key.index() as usize] = Some(number);
    }

    pub(crate) fn set_server(&mut self, key: ServerKey, number: u32) {
        self.servers[key.index() as usize] = Some(number);
    }

    pub(crate) fn player(&self, key: PlayerKey) -> Option<u32> {
        self.players.get(key.index() as usize).copied().flatten()
    }

    pub(crate) fn server(&self, key: ServerKey) -> Option<u32> {
        self.servers.get(key.index() as usize).copied().flatten()
    }
}
