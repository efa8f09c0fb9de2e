//! The shards of worlds on a worker's thread, and the connections that each of them serves.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use throng_gateway::{CloseReason, ConnHandle, ConnKind, Moved, Shard, ShardIndex};
use throng_net::ConnKey;
use throng_stdx::Instant;

use super::standstill::Standstill;
use super::turn::{Share, Turn};
use crate::world::{HostParts, World, WorldEpoch};
use crate::worlds::Connections;

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
    /// It is the world's first shard, which knows all connections of the world.
    is_first: bool,
    pub(super) conns: HashMap<ConnHandle, Conn>,
    /// Closed by the core before their socket arrived.
    pub(super) closed_early: HashSet<ConnHandle>,
    /// Something is broken that only a restart of the world makes whole.
    pub(super) broken: bool,
    /// No timers before this, after a panic in them.
    pub(super) timers_from: Instant,
    /// Its configuration is that of a class, and stays.
    pub(super) has_class: bool,
    /// Its connections as the process counts them.
    pub(super) counted: usize,
    /// Time without connections after which it closes, and when that began.
    idle: Option<Duration>,
    deserted_from: Option<Instant>,
    /// Connections that had been sent here when it last was to close.
    pub(super) entrants_seen: u64,
    /// Its account of the present round.
    pub(super) turn: Turn,
    /// Of a world of a cluster.
    pub(super) standstill: Option<Standstill>,
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
    /// The loop knows that it has logged in.
    pub(super) admitted: bool,
    pub(super) dirty: bool,
    /// Its part in the turns of its world.
    pub(super) share: Share,
}

/// A closure to carry out.
pub(super) struct Closing {
    pub(super) peer: Peer,
    /// Taken out of the table at once: the core may give the id to someone else within the same
    /// round. `None` when the socket is still on its way here.
    pub(super) conn: Option<Conn>,
    pub(super) reason: CloseReason,
    /// World that the peer is told with the reason.
    pub(super) world: Option<Arc<str>>,
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
    fn new(parts: HostParts, now: Instant) -> Host {
        if let Some(fence) = parts.fence.as_ref().filter(|_| parts.is_first) {
            fence.set_players(0, true);
        }
        Host {
            epoch: WorldEpoch { world: parts.world, life: 0 },
            name: parts.name,
            shard: parts.shard,
            seed: parts.seed,
            workers: parts.workers,
            is_first: parts.is_first,
            conns: HashMap::new(),
            closed_early: HashSet::new(),
            broken: false,
            timers_from: Instant::ZERO,
            has_class: parts.has_class,
            counted: 0,
            idle: parts.idle,
            deserted_from: Some(now),
            entrants_seen: 0,
            turn: Turn::new(),
            standstill: parts.fence.map(|fence| Standstill::new(fence, now)),
            #[cfg(test)]
            faults: crate::faults::Armed::default(),
        }
    }

    /// Time at which its timers run next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let at = self.shard.next_timeout()?;
        let due = match &self.standstill {
            Some(standstill) => standstill.due(at)?,
            None => at,
        };
        Some(due.max(self.timers_from))
    }

    /// The world's clock.
    pub(super) fn time(&self, now: Instant) -> Instant {
        self.standstill.as_ref().map_or(now, |standstill| standstill.time(now))
    }

    /// Time at which it closes if no connection comes.
    pub(super) fn closes_at(&self) -> Option<Instant> {
        Some(self.deserted_from? + self.idle?)
    }

    /// It was to close and stays, for another idle time at least.
    pub(super) fn stay(&mut self, now: Instant) {
        self.deserted_from = Some(now);
    }

    /// Keeps the account of its connections, after an input.
    pub(super) fn count(&mut self, now: Instant, all: &Connections) {
        let live = self.shard.live_connections();
        if live != self.counted {
            all.replace(self.counted, live);
            self.counted = live;
        }
        self.count_players(live);
        if self.idle.is_some() {
            let deserted = self.shard.is_deserted();
            self.deserted_from = deserted.then(|| self.deserted_from.unwrap_or(now));
        }
    }

    /// Tells the keeper of the lease how many connections the world has.
    pub(super) fn count_players(&self, live: usize) {
        if let Some(standstill) = self.standstill.as_ref().filter(|_| self.is_first) {
            standstill.fence.set_players(live, self.shard.is_deserted());
        }
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
    /// Number of worlds with a fence.
    fences: usize,
}

impl Hosts {
    pub(super) fn new(main: HostParts, now: Instant) -> Hosts {
        let main = Some(Box::new(Host::new(main, now)));
        Hosts { slots: vec![main], places: HashMap::new(), names: HashMap::new(), fences: 0 }
    }

    /// Adds the shard of a world that opens.
    pub(super) fn open(&mut self, parts: HostParts, now: Instant) {
        let index = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let (slot, host) = (Slot(index as u32), Host::new(parts, now));
        self.fences += usize::from(host.standstill.is_some());
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
        self.fences -= usize::from(host.standstill.is_some());
        // A world of the same name may have opened since.
        if self.names.get(&host.name) == Some(&slot) {
            self.names.remove(&host.name);
        }
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
        Some(host)
    }

    /// Several worlds share the thread.
    pub(super) fn are_several(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns whether any world here is one of a cluster.
    pub(super) fn has_fences(&self) -> bool {
        self.fences > 0
    }

    /// The place of a world that a listener leads to.
    pub(super) fn slot_of_name(&self, name: &str) -> Option<Slot> {
        #[cfg(test)]
        crate::counting::look_up();
        self.names.get(name).copied()
    }

    /// The place of a world that has a shard here.
    pub(super) fn slot_of(&self, world: World) -> Option<Slot> {
        if world == World::MAIN {
            return Some(Slot::MAIN);
        }
        #[cfg(test)]
        crate::counting::look_up();
        self.places.get(&world).copied()
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use throng_gateway::data::Schemas;
    use throng_gateway::{Config, Framing, Verdict};

    use super::*;
    use crate::config::{Class, Loader};
    use crate::counting;
    use crate::world::Judgement;
    use crate::worlds::{WorldRequest, Worlds};

    const IDLE: Duration = Duration::from_secs(7);

    fn class() -> Class {
        let text = "[[gateway.classes]]\nname = 'duel'\nopen = true\ncreate = true\nconnections_max = 2\n\
                    world_idle_s = 7\nworlds_max = 2\n";
        Loader::new().text("test", text).load().unwrap().settings.classes.remove(0)
    }

    fn main_parts(worlds: &Worlds) -> HostParts {
        let config = Arc::new(Config::default());
        let shard = Shard::new(config, Arc::new(Schemas::default()), ShardIndex::FIRST, 1, 7, 0);
        let name = worlds.main().name;
        HostParts {
            world: World::MAIN,
            name,
            shard,
            seed: 7,
            workers: Arc::from([0]),
            is_first: true,
            has_class: false,
            idle: None,
            fence: None,
        }
    }

    /// In virtual time: each opens on request, has a player, loses it, and ends.
    #[test]
    fn ten_thousand_worlds_that_end_when_idle_leave_nothing_behind() {
        let classes = vec![(class().keys, Config::default())];
        let schemas = Arc::new(Schemas::default());
        let worlds = Worlds::new("main", &Config::default(), classes, schemas, 1, 7, 0);
        let mut now = Instant::from_millis(1);
        let mut hosts = Hosts::new(main_parts(&worlds), now);
        assert!(!hosts.are_several());
        let mut held_bytes = 0;
        for round in 0..10_100_u32 {
            if round == 100 {
                // All tables have been in use.
                held_bytes = counting::held_bytes();
            }
            let name = format!("duel-{round}");
            // Addresses enough that none reaches its limit, and none is remembered for long.
            let addr = IpAddr::from(round.to_be_bytes());
            let asked = Some(WorldRequest { world: &name, addr, now });
            let judged = Judgement::from(Verdict::Success);
            let verdict = worlds.settle(World::MAIN, judged, asked, |_, parts| hosts.open(parts, now));
            assert_eq!(verdict, Verdict::Elsewhere { world: round + 1 });
            let world = World(round + 1);
            let slot = hosts.slot_of(world).unwrap();
            assert_eq!((slot, hosts.are_several()), (Slot(1), true), "places are used again");
            let host = hosts.get_mut(slot).unwrap();
            let accepted = host.shard.accept(now, ConnKind::Client, Framing::Stream, addr).unwrap();
            host.count(now, &worlds.connections);
            assert_eq!((host.closes_at(), worlds.connections.live()), (None, 1));
            now += Duration::from_secs(1);
            host.shard.handle_closed(now, accepted.conn, throng_gateway::Closed::EndOfStream);
            host.count(now, &worlds.connections);
            assert_eq!((host.closes_at(), worlds.connections.live()), (Some(now + IDLE), 0));
            now += IDLE;
            // Its first player had been sent to it, as another one might have been just now.
            assert!(!worlds.close_idle(&name, world, &mut host.entrants_seen));
            host.stay(now);
            assert_eq!(host.closes_at(), Some(now + IDLE));
            now += IDLE;
            assert!(worlds.close_idle(&name, world, &mut host.entrants_seen));
            assert!(hosts.close(slot).is_some());
        }
        assert_eq!((hosts.slots.len(), hosts.places.len(), hosts.names.len()), (1, 0, 0));
        assert_eq!((worlds.list().len(), worlds.connections.live()), (1, 0));
        assert!(worlds.remembered() < 10, "addresses: {}", worlds.remembered());
        assert!(!hosts.are_several(), "the main world pays for no turns again");
        let grown = counting::held_bytes() - held_bytes;
        assert!(grown < 10_000, "{grown} bytes: one for each world, or more");
    }
}
