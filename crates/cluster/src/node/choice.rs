//! The choice of a home.

use throng_stdx::Instant;

use crate::name::Name;
use crate::node::Node;
use crate::record::{Home, NodeRecord, NodeState, WorldRecord};

/// Reason why there is no home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHome {
    /// No node knows the class.
    UnknownClass,
    /// No node that knows the class has room.
    NoRoom,
    /// No other has room than those that have let an assignment lapse, and whose records have not
    /// changed since.
    Silent,
}

impl Node {
    /// Chooses a home: of the first two by hash, among the nodes that have room, the one with less
    /// load. If no node has the world's class with the settings of `record` any more, the world
    /// gets those of its home.
    pub(super) fn choose(
        &mut self,
        world: &Name,
        record: &mut WorldRecord,
        without: Option<&Name>,
    ) -> Result<Home, NoHome> {
        self.avoided
            .retain(|name, revision| self.nodes.get(name).is_some_and(|slot| slot.revision == *revision));
        let mut hashes = self.nodes.iter().filter_map(|(name, slot)| {
            let node = slot.known.record().filter(|node| node.state == NodeState::Up)?;
            self.class_of(name, node, &record.class).filter(|_| without != Some(name))
        });
        let first = hashes.next();
        let is_kept = first.is_some_and(|first| *first == record.class_hash)
            || hashes.any(|hash| *hash == record.class_hash);
        if first.is_none() {
            return Err(NoHome::UnknownClass);
        }
        let labels = self.setup.classes.get(&record.class).map(|class| &class.labels);
        let mut best: [Option<(u64, &Name, &NodeRecord)>; 2] = [None, None];
        let mut none = NoHome::NoRoom;
        for (name, slot) in &self.nodes {
            let Some(node) = slot.known.record() else { continue };
            let hash = self.class_of(name, node, &record.class);
            let is_candidate = node.state == NodeState::Up
                && without != Some(name)
                && hash.is_some_and(|hash| !is_kept || *hash == record.class_hash)
                && labels.into_iter().flatten().all(|(label, value)| node.labels.get(label) == Some(value))
                && (*name != self.setup.node || !self.drain.is_active());
            if !is_candidate {
                continue;
            }
            // It had room, which that assignment may take.
            if self.avoided.contains_key(name) {
                none = NoHome::Silent;
                continue;
            }
            if self.room(name, node) == 0 {
                continue;
            }
            let found = (weight(world, name), name, node);
            let is_above = |other: Option<(u64, &Name, &NodeRecord)>| {
                other.is_none_or(|other| (found.0, found.1) > (other.0, other.1))
            };
            if is_above(best[0]) {
                best = [Some(found), best[0]];
            } else if is_above(best[1]) {
                best[1] = Some(found);
            }
        }
        let chosen = best.into_iter().flatten().min_by_key(|(_, name, node)| self.load_permille(name, node));
        let (_, name, node) = chosen.ok_or(none)?;
        if let Some(hash) = self.class_of(name, node, &record.class) {
            hash.clone_into(&mut record.class_hash);
        }
        Ok(Home { node: name.clone(), incarnation: node.incarnation })
    }

    /// Hash of the settings that a node has for a class.
    fn class_of<'a>(&'a self, name: &Name, node: &'a NodeRecord, class: &Name) -> Option<&'a String> {
        // Those of this node may be newer than its record.
        let node = if *name == self.setup.node { &self.setup.record } else { node };
        node.classes.get(class)
    }

    /// Number of candidates that claim this world before this node.
    pub(super) fn rank(&self, world: &Name) -> u32 {
        let own = weight(world, &self.setup.node);
        let is_before = |name: &Name, node: &NodeRecord| {
            node.is_live() && *name != self.setup.node && weight(world, name) > own
        };
        let before = self.nodes().filter(|(name, node)| is_before(name, node)).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Returns whether this node can take a world that was assigned to it.
    pub(super) fn has_room_for(&self, now: Instant, record: &WorldRecord) -> bool {
        let is_known =
            self.setup.classes.get(&record.class).is_some_and(|class| class.hash == record.class_hash);
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        is_known
            && held < self.setup.record.worlds_max
            && self.setup.record.free_worlds > 0
            && now >= self.full_until
    }

    /// The current incarnation of a node as a home.
    pub(super) fn home_of(&self, name: &Name) -> Option<Home> {
        let node = self.nodes.get(name)?.known.record()?;
        Some(Home { node: name.clone(), incarnation: node.incarnation })
    }

    /// Worlds that a node can take: by its record, and less those that have been assigned since.
    fn room(&self, name: &Name, node: &NodeRecord) -> u32 {
        node.worlds_max.saturating_sub(self.assigned(name)).min(node.free_worlds)
    }

    fn load_permille(&self, name: &Name, node: &NodeRecord) -> u32 {
        let by_worlds = u64::from(self.assigned(name)) * 1_000 / u64::from(node.worlds_max.max(1));
        u32::from(node.load_permille).max(u32::try_from(by_worlds).unwrap_or(u32::MAX))
    }

    fn assigned(&self, name: &Name) -> u32 {
        let worlds = self.by_home.get(name).map_or(0, |worlds| worlds.len());
        u32::try_from(worlds).unwrap_or(u32::MAX)
    }
}

/// Weight of a node for a world, the same in every release: FNV-1a over `world`, a zero byte and
/// `node`, stirred so that similar names differ in all bits.
pub(super) fn weight(world: &Name, node: &Name) -> u64 {
    let bytes = world.as_str().bytes().chain([0]).chain(node.as_str().bytes());
    let hash = bytes
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash ^ (hash >> 33)
}
