//! The world: cells of a grid, entities that move over them, and interest in both. Spec §8 and §9.
//!
//! Every spatial and every entity channel lives on shard 0, so that whatever concerns several of
//! them (a handover, a change of interest, a server that takes a slot) is one function call that
//! nothing can interleave with. Connections stay where they are: reading, framing and writing
//! spread over all shards, and what the world sends to a connection goes through the one queue to
//! its shard, in order.
//!
//! | file | what |
//! |---|---|
//! | `controller` | slots of spatial servers, creation of cells, regions, queries |
//! | `listing` | which objects and entities lie in each cell |
//! | `interest` | areas of interest as differences of cell sets |
//! | `entity` | entity channels, groups, well-known entities |
//! | `handover` | an entity changes its cell, its owner, or both |
//! | `objects` | Unreal's SPAWN and DESTROY |
//! | `lod` | rates of entity channels by distance |
//! | `balance` | cells that move between servers by load |
//! | `position` | where encoded data says that an entity is |
//! | `why` | how something lies to a connection, for who asks |

mod balance;
pub(crate) mod config;
mod controller;
mod entity;
mod handover;
mod interest;
mod listing;
mod lod;
mod objects;
mod position;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use slab::Slab;
use smallvec::SmallVec;
use throng_spatial::{Cell, Interest, Point, ServerIndex};
use throng_stdx::Instant;
use throng_wire::channeldpb::ChannelSubscriptionOptions;

pub use config::{Balance, DampingStep, Lod, LodBand, PositionPath, Spatial, parse_controller};
pub(crate) use objects::is_object_message;

use crate::config::Config;
use crate::data::Plan;
use crate::findings::Findings;
use crate::ids::{ChannelId, ConnId, IdHasher, IdMap};
use crate::view::{EntityView, WorldServerView, WorldView};
use position::{Known, Locator};

/// The state of the world, on shard 0.
#[derive(Debug)]
pub(crate) struct World {
    /// By server index. Empty without a grid.
    slots: Vec<Slot>,
    /// Servers that hold a slot or held one: what they own follows the cells, unlike what a master
    /// or a client owns.
    spatial: BTreeSet<ConnId>,
    /// Servers that are former owners of some entity.
    former: BTreeSet<ConnId>,
    /// By cell. Empty without a grid.
    cells: Vec<CellState>,
    entities: IdMap<ChannelId, Entity>,
    /// The cell that lists each object without a cell of its own: those that are no entity, or one
    /// that has none yet.
    objects: IdMap<ChannelId, Cell>,
    /// The entities of a client, those that became its own first in front.
    avatars: IdMap<ConnId, SmallVec<[ChannelId; 2]>>,
    groups: Slab<BTreeSet<ChannelId>>,
    /// Entities that lie in another cell than they belong to, because a handover was refused, and
    /// since when.
    waiting: BTreeMap<ChannelId, Instant>,
    /// Entities that every client is subscribed to.
    well_known: BTreeSet<ChannelId>,
    /// Interest of connections as last asked for; what they are subscribed to may differ.
    interests: IdMap<ConnId, Interest>,
    /// Interest that was asked for lost connections, in force when they have returned.
    missed: IdMap<ConnId, Interest>,
    locators: Vec<(Arc<Plan>, Arc<Locator>)>,
    /// Types of entity data without a position that can be read, to be told of once each.
    placeless: Vec<String>,
    /// Rates by distance, where the gateway sets them.
    lod: Option<lod::LodIndex>,
    scales: balance::Scales,
}

/// The place of one spatial server.
#[derive(Debug, Default)]
struct Slot {
    /// Who took it, live or not.
    owner: Option<ConnId>,
    /// As it asked for when it took the slot.
    options: Option<ChannelSubscriptionOptions>,
}

#[derive(Debug)]
struct CellState {
    /// The server whose region holds the cell.
    server: ServerIndex,
    /// Entities that belong to the cell.
    entities: BTreeSet<ChannelId>,
    /// Objects that its data lists beside them.
    objects: BTreeSet<ChannelId>,
}

/// What the world knows of an entity channel.
#[derive(Debug)]
pub(crate) struct Entity {
    /// Counts its handovers.
    version: u64,
    /// What `version` was when the handover to its owner began, plus one; 0 if it never changed
    /// owners.
    owned_since: u64,
    /// The cell that it belongs to.
    cell: Option<Cell>,
    locator: Option<Arc<Locator>>,
    known: Known,
    /// Where it is by its latest update.
    position: Option<Point>,
    /// Encoded reference to the object.
    object: Bytes,
    /// The client whose entity it is.
    client: Option<ConnId>,
    handover: Membership,
    lock: Option<usize>,
    /// Servers from which handovers took it, until they own it again or are given WRITE.
    former: SmallVec<[ConnId; 1]>,
}

/// An entity's handover group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Membership {
    /// It was never in one: it moves alone.
    Never,
    /// It was taken out of one: it does not move until it is in one again.
    Removed,
    /// Key of the group.
    Group(usize),
}

impl World {
    pub(crate) fn new(config: &Config, hasher: IdHasher) -> Self {
        let grid = config.spatial.grid.as_ref();
        let cell = |grid: &throng_spatial::Grid, index| CellState {
            server: grid.server_of(Cell(index)),
            entities: BTreeSet::new(),
            objects: BTreeSet::new(),
        };
        Self {
            slots: (0..grid.map_or(0, |grid| grid.server_count())).map(|_| Slot::default()).collect(),
            spatial: BTreeSet::new(),
            former: BTreeSet::new(),
            cells: grid
                .map(|grid| (0..grid.cell_count()).map(|index| cell(grid, index)).collect())
                .unwrap_or_default(),
            entities: IdMap::with_hasher(hasher),
            objects: IdMap::with_hasher(hasher),
            avatars: IdMap::with_hasher(hasher),
            groups: Slab::new(),
            waiting: BTreeMap::new(),
            well_known: BTreeSet::new(),
            interests: IdMap::with_hasher(hasher),
            missed: IdMap::with_hasher(hasher),
            locators: Vec::new(),
            placeless: Vec::new(),
            lod: config.spatial.lod.as_ref().map(|lod| lod::LodIndex::new(lod, hasher)),
            scales: balance::Scales::default(),
        }
    }

    /// A connection is gone for good.
    pub(crate) fn forget_connection(&mut self, conn: ConnId) {
        self.interests.remove(&conn);
        self.spatial.remove(&conn);
        self.missed.remove(&conn);
        if self.former.remove(&conn) {
            for entity in self.entities.values_mut() {
                entity.former.retain(|former| *former != conn);
            }
        }
        // Its id will be another's, who has no part in what it leaves behind.
        for id in self.avatars.remove(&conn).unwrap_or_default() {
            if let Some(entity) = self.entities.get_mut(&id) {
                entity.client = None;
            }
        }
        if let Some(lod) = &mut self.lod {
            lod.forget_client(conn);
        }
    }

    /// An entity may have another client than before, or be gone.
    fn note_client(&mut self, id: ChannelId, before: Option<ConnId>) {
        let client = self.entities.get(&id).and_then(|entity| entity.client);
        if client == before {
            return;
        }
        if let Some(before) = before
            && let Some(avatars) = self.avatars.get_mut(&before)
        {
            avatars.retain(|avatar| *avatar != id);
            if avatars.is_empty() {
                self.avatars.remove(&before);
            }
        }
        if let Some(client) = client {
            self.avatars.entry(client).or_default().push(id);
        }
    }

    /// The locator for a type of entity data.
    fn locator(&mut self, config: &Config, plan: &Arc<Plan>) -> Arc<Locator> {
        if let Some((_, locator)) = self.locators.iter().find(|(known, _)| Arc::ptr_eq(known, plan)) {
            return Arc::clone(locator);
        }
        let locator = Arc::new(Locator::compile(plan, &config.spatial.positions));
        if config.spatial.grid.is_some() && !locator.has_position() {
            self.placeless.push(plan.name().to_owned());
        }
        self.locators.push((Arc::clone(plan), Arc::clone(&locator)));
        locator
    }

    /// The next type of entity data to be told of because it has no position that can be read.
    pub(crate) fn take_placeless(&mut self) -> Option<String> {
        self.placeless.pop()
    }

    /// Whether entity data of this type or an update of it has a position that is no place.
    pub(crate) fn is_nowhere(&mut self, config: &Config, plan: &Arc<Plan>, bytes: &[u8]) -> bool {
        self.locator(config, plan).is_nowhere(bytes)
    }

    /// The cell that an entity belongs to.
    pub(crate) fn cell_of(&self, id: ChannelId) -> Option<Cell> {
        self.entities.get(&id)?.cell
    }

    /// The latest version, as peers count it, of which an entity's owner was not the owner yet.
    pub(crate) fn owned_since(&self, id: ChannelId) -> u64 {
        self.entities.get(&id).map_or(0, |entity| entity.owned_since)
    }

    /// An entity was taken from `old` by a handover and is `new`'s.
    fn note_owners(&mut self, id: ChannelId, old: impl IntoIterator<Item = ConnId>, new: ConnId) {
        let Some(entity) = self.entities.get_mut(&id) else { return };
        for old in old {
            if !entity.former.contains(&old) {
                entity.former.push(old);
                self.former.insert(old);
            }
        }
        entity.former.retain(|former| *former != new);
    }

    /// Whether a handover took an entity from this server, which owns it no more and was not given
    /// WRITE since.
    pub(crate) fn is_former_owner(&self, id: ChannelId, conn: ConnId) -> bool {
        self.entities.get(&id).is_some_and(|entity| entity.former.contains(&conn))
    }

    /// Another connection has given this one WRITE.
    pub(crate) fn forgive(&mut self, id: ChannelId, conn: ConnId) {
        if let Some(entity) = self.entities.get_mut(&id) {
            entity.former.retain(|former| *former != conn);
        }
    }

    /// How often an entity was handed over.
    pub(crate) fn version_of(&self, id: ChannelId) -> Option<u64> {
        self.entities.get(&id).map(|entity| entity.version)
    }

    /// How many entities belong to each cell.
    pub(crate) fn cell_populations(&self) -> impl Iterator<Item = usize> + '_ {
        self.cells.iter().map(|cell| cell.entities.len())
    }

    /// Entities whose position is known.
    pub(crate) fn entity_views(&self) -> impl Iterator<Item = EntityView> + '_ {
        self.entities.iter().filter_map(|(id, entity)| entity.view(*id))
    }

    /// The first entity of a client whose position is known.
    pub(crate) fn avatar_view(&self, client: ConnId) -> Option<EntityView> {
        self.avatars.get(&client)?.iter().find_map(|id| self.entities.get(id)?.view(*id))
    }

    /// Cells and distances of a connection's latest area of interest.
    pub(crate) fn interest_cells(&self, conn: ConnId) -> Vec<(u32, u32)> {
        let interest = self.interests.get(&conn);
        interest.iter().flat_map(|interest| interest.cells()).map(|(cell, far)| (cell.0, far)).collect()
    }

    /// Puts an entity into the index of a cell, out of the one it was in.
    fn place(&mut self, id: ChannelId, cell: Option<Cell>) {
        let Some(entity) = self.entities.get_mut(&id) else { return };
        if let Some(old) = entity.cell.and_then(|cell| self.cells.get_mut(cell.0 as usize)) {
            old.entities.remove(&id);
        }
        entity.cell = cell;
        if let Some(new) = cell.and_then(|cell| self.cells.get_mut(cell.0 as usize)) {
            new.entities.insert(id);
        }
    }

    /// For monitoring. Costs a walk over all cells.
    pub(crate) fn view(&self, is_live: impl Fn(ConnId) -> bool) -> WorldView {
        let mut servers: Vec<WorldServerView> = self
            .slots
            .iter()
            .map(|slot| WorldServerView { live: slot.owner.is_some_and(&is_live), cells: 0, entities: 0 })
            .collect();
        let mut fullest_cell = 0;
        for cell in &self.cells {
            fullest_cell = fullest_cell.max(cell.entities.len());
            if let Some(server) = servers.get_mut(cell.server.0 as usize) {
                server.cells += 1;
                server.entities += cell.entities.len();
            }
        }
        let (entities, waiting) = (self.entities.len(), self.waiting.len());
        WorldView { servers, fullest_cell, entities, placeless: self.placeless_count(), waiting }
    }

    /// Entities whose data has no position that can be read; 0 without a grid, which none needs
    /// one for. Costs a walk over all entities.
    pub(crate) fn placeless_count(&self) -> usize {
        if self.cells.is_empty() {
            return 0;
        }
        self.entities.values().filter(|entity| entity.is_placeless()).count()
    }

    /// Types of entity data without a position that can be read; none without a grid.
    pub(crate) fn placeless_types(&self) -> Vec<String> {
        let types = self.locators.iter().filter(|(_, locator)| !locator.has_position());
        types.map(|(plan, _)| plan.name().to_owned()).filter(|_| !self.cells.is_empty()).collect()
    }

    /// Checks what must hold between inputs.
    pub(crate) fn check_invariants(&self, findings: &mut Findings, exists: impl Fn(ChannelId) -> bool) {
        let in_group = |key: usize, id| self.groups.get(key).is_some_and(|group| group.contains(id));
        for (id, entity) in &self.entities {
            findings.expect(exists(*id), "an entity without a channel");
            if let Some(cell) = entity.cell {
                let state = self.cells.get(cell.0 as usize);
                findings
                    .expect(state.is_some_and(|it| it.entities.contains(id)), "an entity is not in its cell");
            }
            if let Some(client) = entity.client {
                let avatars = self.avatars.get(&client);
                findings
                    .expect(avatars.is_some_and(|it| it.contains(id)), "an entity is not among its client's");
            }
            let keys = [entity.lock, entity.handover.key()].into_iter().flatten();
            findings.expect(keys.into_iter().all(|key| in_group(key, id)), "a group without its member");
        }
        for (id, cell) in &self.objects {
            let state = self.cells.get(cell.0 as usize);
            findings.expect(state.is_some_and(|it| it.objects.contains(id)), "an object is not in its cell");
            findings.expect(self.cell_of(*id).is_none(), "an entity is listed twice");
        }
        for (client, avatars) in &self.avatars {
            findings.expect(!avatars.is_empty(), "a client without entities remains");
            let own = |id| self.entities.get(id).is_some_and(|entity| entity.client == Some(*client));
            findings.expect(avatars.iter().all(own), "another's entity");
        }
        for (index, cell) in self.cells.iter().enumerate() {
            let here = Some(Cell(index as u32));
            let lies_here = |id: &ChannelId| self.entities.get(id).and_then(|entity| entity.cell) == here;
            findings.expect(cell.entities.iter().all(lies_here), "a cell holds what lies elsewhere");
            let listed_here = |id: &ChannelId| self.objects.get(id) == here.as_ref();
            findings.expect(cell.objects.iter().all(listed_here), "an object is not where its cell has it");
        }
        findings.expect(self.groups.iter().all(|(_, group)| !group.is_empty()), "an empty group remains");
        let mut known = self.waiting.keys().chain(&self.well_known);
        findings.expect(
            known.all(|id| self.entities.contains_key(id)),
            "an entity that is gone waits or is well known",
        );
    }
}

impl Entity {
    /// Its data has no position that can be read: it never changes its cell.
    pub(super) fn is_placeless(&self) -> bool {
        self.locator.as_ref().is_some_and(|locator| !locator.has_position())
    }

    fn view(&self, id: ChannelId) -> Option<EntityView> {
        let at = self.position?;
        Some(EntityView {
            channel: id,
            x: at.x,
            z: at.z,
            cell: self.cell.map(|cell| cell.0),
            client: self.client,
            version: self.version,
        })
    }
}

impl Membership {
    fn key(self) -> Option<usize> {
        match self {
            Self::Group(key) => Some(key),
            Self::Never | Self::Removed => None,
        }
    }
}

impl Config {
    /// The channel of a cell.
    pub(crate) fn cell_channel(&self, cell: Cell) -> ChannelId {
        ChannelId(self.spatial_channel_start.saturating_add(cell.0))
    }

    /// The cell of a spatial channel; `None` for other channels and beyond the grid.
    fn channel_cell(&self, channel: ChannelId) -> Option<Cell> {
        let grid = self.spatial.grid.as_ref()?;
        let index = channel.0.checked_sub(self.spatial_channel_start)?;
        (index < grid.cell_count()).then_some(Cell(index))
    }
}
