//! The shards of worlds on a worker's thread, and the connections that each of them serves.

use std::collections::HashSet;
use std::sync::Arc;

use hashbrown::HashMap;
use throng_gateway::{CloseReason, ConnHandle, ConnKind, Moved, Shard, ShardIndex};
use throng_net::ConnKey;
use throng_stdx::Instant;

use crate::world::{HostParts, World, WorldEpoch};

/// Place of a shard in [`Hosts`]. The place of a closed world is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot(u32);

impl Slot {
    /// The world that every process has is where it is found without a look-up.
    pub(super) const MAIN: Slot = Slot(0);
}

/// A connection of a world on this worker: worlds give out their handles independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) host: Slot,
    pub(super) conn: ConnHandle,
}

/// One shard of a world.
pub(super) struct Host {
    /// World, and its lives before this one.
    pub(super) epoch: WorldEpoch,
    pub(super) name: Arc<str>,
    pub(super) shard: Shard,
    seed: u64,
    pub(super) workers: Arc<[u16]>,
    pub(super) conns: HashMap<ConnHandle, Conn>,
    /// Closed by the core before their socket arrived.
    pub(super) closed_early: HashSet<ConnHandle>,
    /// Something is broken that only a restart of the world makes whole.
    pub(super) broken: bool,
    /// No timers before this, after a panic in them.
    pub(super) timers_from: Instant,
    #[cfg(test)]
    pub(super) faults: crate::faults::Armed,
}

/// A connection that a shard serves.
pub(super) struct Conn {
    pub(super) key: ConnKey,
    pub(super) kind: ConnKind,
    pub(super) bytes_out: u64,
    /// Waits for the loop to say that there is room.
    pub(super) blocked: bool,
    pub(super) dirty: bool,
}

/// A closure to carry out.
pub(super) struct Closing {
    pub(super) peer: Peer,
    /// Taken out of the table at once: the core may give the id to someone else within the same
    /// round. `None` when the socket is still on its way here.
    pub(super) conn: Option<Conn>,
    pub(super) reason: CloseReason,
    pub(super) flush: Vec<u8>,
}

/// A connection that leaves for another world.
pub(super) struct Leaving {
    pub(super) peer: Peer,
    /// `None` while its socket is still on its way here.
    pub(super) key: Option<ConnKey>,
    pub(super) moved: Moved,
}

impl Host {
    fn new(parts: HostParts) -> Host {
        Host {
            epoch: WorldEpoch { world: parts.world, life: 0 },
            name: parts.name,
            shard: parts.shard,
            seed: parts.seed,
            workers: parts.workers,
            conns: HashMap::new(),
            closed_early: HashSet::new(),
            broken: false,
            timers_from: Instant::ZERO,
            #[cfg(test)]
            faults: crate::faults::Armed::default(),
        }
    }

    /// Time at which its timers run next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.shard.next_timeout().map(|at| at.max(self.timers_from))
    }

    /// The worker that a shard of the same world is on.
    pub(super) fn worker_of(&self, shard: ShardIndex) -> u16 {
        self.workers[usize::from(shard.0)]
    }

    /// Begins another life with an empty shard.
    pub(super) fn begin(&mut self, epoch: WorldEpoch) {
        self.epoch = epoch;
        self.broken = false;
        let seed = u64::from(epoch.life).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.seed;
        self.shard = self.shard.restarted(seed);
        self.closed_early.clear();
        self.timers_from = Instant::ZERO;
    }
}

/// The shards on a worker. The main world is always there; others come and go.
pub(super) struct Hosts {
    slots: Vec<Option<Box<Host>>>,
    /// The places of all worlds but the main one, by number and by name.
    places: HashMap<World, Slot>,
    names: HashMap<Arc<str>, Slot>,
}

impl Hosts {
    pub(super) fn new(main: HostParts) -> Hosts {
        Hosts { slots: vec![Some(Box::new(Host::new(main)))], places: HashMap::new(), names: HashMap::new() }
    }

    /// Adds the shard of a world that opens.
    pub(super) fn open(&mut self, parts: HostParts) {
        let index = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let (slot, host) = (Slot(index as u32), Host::new(parts));
        self.places.insert(host.epoch.world, slot);
        self.names.insert(Arc::clone(&host.name), slot);
        self.slots[index] = Some(Box::new(host));
    }

    /// Takes out the shard of a world that is closed. The main world stays.
    pub(super) fn close(&mut self, slot: Slot) -> Option<Box<Host>> {
        if slot == Slot::MAIN {
            return None;
        }
        let host = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.places.remove(&host.epoch.world);
        // A world of the same name may have opened since.
        if self.names.get(&host.name) == Some(&slot) {
            self.names.remove(&host.name);
        }
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
        Some(host)
    }

    /// The place of a world that a listener leads to.
    pub(super) fn slot_of_name(&self, name: &str) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// The place of a world that has a shard here.
    pub(super) fn slot_of(&self, world: World) -> Option<Slot> {
        if world == World::MAIN { Some(Slot::MAIN) } else { self.places.get(&world).copied() }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Host> {
        self.slots.get(slot.0 as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Host> {
        self.slots.get_mut(slot.0 as usize)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Host)> {
        self.slots.iter().enumerate().filter_map(|(index, host)| Some((Slot(index as u32), host.as_deref()?)))
    }

    /// Places that may hold a shard.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.slots.len() as u32).map(Slot)
    }
}
