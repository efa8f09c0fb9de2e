//! The data of cells: the objects and entities in each. Spec §9.2 and §9.3.
//!
//! What belongs to a cell is listed in that cell's data and in no other's, whatever peers say and
//! in whatever order. An entity is listed where it belongs. Of an object that is no entity, or one
//! that has no cell yet, the world remembers where it was listed last
//! ([`World::place_object`](super::World)); no list is ever searched.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use throng_spatial::Cell;
use throng_wire::unrealpb::SpatialChannelData;

use super::controller::CELL_DATA;
use crate::channel::Channel;
use crate::data::{Plan, Update};
use crate::findings::Findings;
use crate::ids::{ChannelId, ConnId, ConnKind};
use crate::reason::Refusal;
use crate::requests::Sender;
use crate::settings::ChannelType;
use crate::shard::Shard;

impl Shard {
    /// Lists an object or an entity in the data of a cell, with this reference from now on, and
    /// nowhere else. An entity is listed in its own cell, wherever it was said to have been
    /// spawned.
    ///
    /// Subscribers learn of it by SPAWN or by the handover; those of another cell that listed it,
    /// by a handover from there.
    pub(super) fn list(&mut self, cell: Cell, id: ChannelId, object: &[u8]) {
        let Some(world) = &mut self.world else { return };
        let own = world.cell_of(id);
        let cell = own.unwrap_or(cell);
        let before = world.place_object(id, None).filter(|before| *before != cell);
        // Subscribers learn of it by a message alone: after a panic in between they get the list.
        self.board.changing = Some(self.board.config.cell_channel(cell));
        if let Some(before) = before {
            self.as_whole(|shard| {
                shard.unlist(before, id);
                shard.tell_moved(id, object, before, cell);
            });
        }
        let Some(channel) = self.list_of(cell) else { return };
        let mut bytes = Vec::with_capacity(object.len() + 24);
        write_entry(&mut bytes, id, Some(object), false);
        let listed = channel.merge_silently(removal(id)).and_then(|()| channel.merge_silently(bytes));
        match (listed, &mut self.world) {
            (Ok(()), Some(world)) if own.is_none() => {
                world.place_object(id, Some(cell));
            }
            (Ok(()), _) => {}
            (Err(refusal), _) => self.board.refuse(refusal),
        }
    }

    /// Takes an object or an entity out of the data of a cell. Nobody is sent that.
    pub(super) fn unlist(&mut self, cell: Cell, id: ChannelId) {
        let removed = self.list_of(cell).map_or(Ok(()), |channel| channel.merge_silently(removal(id)));
        if let Err(refusal) = removed {
            self.board.refuse(refusal);
        }
    }

    /// Takes what is gone out of the data of a cell; subscribers learn of it by an update.
    pub(super) fn announce_gone(&mut self, cell: Cell, id: ChannelId) {
        let channel_id = self.board.config.cell_channel(cell);
        let Some(channel) = self.channels.get_mut(&channel_id).filter(|channel| channel.holds_entities())
        else {
            return;
        };
        let Some(plan) = channel.data.as_ref().map(|data| Arc::clone(data.content.plan())) else { return };
        let sender = channel.owner.unwrap_or(ConnId(0));
        let update = Update::check(&plan, removal(id).into()).map_err(|_| Refusal::BadData);
        if let Err(refusal) = update.and_then(|update| channel.update(&mut self.board, &plan, sender, update))
        {
            self.board.refuse(refusal);
        }
    }

    /// A peer updates the data of a cell, which engines leave to the gateway. What it adds is an
    /// object of the cell unless another cell lists it; what it removes ends, an entity's channel
    /// as well. Entries that say something of what lies elsewhere are refused, the others count.
    pub(crate) fn update_list(
        &mut self,
        sender: Sender,
        id: ChannelId,
        counts_as: ConnId,
        plan: &Arc<Plan>,
        update: Update,
    ) -> Result<(), Refusal> {
        let cell = self.board.config.channel_cell(id).ok_or(Refusal::NotSpatial)?;
        // As good as SPAWN and DESTROY.
        if sender.kind == ConnKind::Client && !self.board.config.permissions.client.send_objects {
            return Err(Refusal::Permission);
        }
        let mut said = SpatialChannelData::decode(update.bytes().clone()).map_err(|_| Refusal::BadData)?;
        let count = said.entities.len();
        let (board, Some(world)) = (&mut self.board, &self.world) else { return Err(Refusal::NotGlobal) };
        said.entities.retain(|&id, state| {
            let listed = world.listed_in(ChannelId(id));
            let fits = listed == Some(cell) || listed.is_none() && !state.removed;
            if !fits {
                board.refuse(if state.removed { Refusal::UnknownEntity } else { Refusal::EntityId });
            }
            fits
        });
        if said.entities.is_empty() {
            return Ok(());
        }
        let update = match said.entities.len() == count {
            true => update,
            false => Update::check(plan, said.encode_to_vec().into()).map_err(|_| Refusal::BadData)?,
        };
        let channel = self.channels.get_mut(&id).ok_or(Refusal::UnknownChannel)?;
        channel.update(&mut self.board, plan, counts_as, update)?;
        for (id, state) in said.entities {
            let id = ChannelId(id);
            let Some(world) = &mut self.world else { break };
            if state.removed {
                world.place(id, None);
                world.place_object(id, None);
                self.end_entity(id);
            } else if world.cell_of(id).is_none() {
                world.place_object(id, Some(cell));
            }
        }
        Ok(())
    }

    /// A cell has got a channel, without data so far of what belongs to it: entities may have
    /// outlived the one before.
    pub(super) fn list_residents(&mut self, cell: Cell) {
        let Some(world) = &self.world else { return };
        let residents = world.cells.get(cell.0 as usize).into_iter().flat_map(|state| &state.entities);
        let residents: Vec<(ChannelId, Bytes)> =
            residents.filter_map(|id| Some((*id, world.entities.get(id)?.object.clone()))).collect();
        for (id, object) in residents {
            self.list(cell, id, &object);
        }
    }

    /// The channel of a cell is gone, and its objects with it. Entities go on, for the cell may get
    /// a channel again.
    pub(crate) fn cell_removed(&mut self, id: ChannelId) {
        let Some(cell) = self.board.config.channel_cell(id) else { return };
        let Some(world) = &mut self.world else { return };
        let Some(state) = world.cells.get_mut(cell.0 as usize) else { return };
        for id in std::mem::take(&mut state.objects) {
            world.objects.remove(&id);
        }
    }

    /// Checks that the data of every cell lists what belongs to it and nothing else. Entities that
    /// no longer fit into it are missing, and were counted.
    pub(crate) fn check_lists(&self, findings: &mut Findings) {
        let Some(world) = &self.world else { return };
        for (index, state) in world.cells.iter().enumerate() {
            let id = self.board.config.cell_channel(Cell(index as u32));
            let Some(channel) = self.channels.get(&id).filter(|channel| channel.holds_entities()) else {
                findings.expect(state.objects.is_empty(), "a cell without a list has objects");
                continue;
            };
            let mut bytes = Vec::new();
            if let Some(data) = &channel.data {
                data.content.encode(None, &mut bytes);
            }
            findings.about(Some(id));
            let Ok(listed) = SpatialChannelData::decode(&bytes[..]) else {
                findings.expect(false, "the list of a cell does not decode");
                continue;
            };
            let listed = listed.entities;
            findings.about(None);
            let listed: BTreeSet<ChannelId> = listed.into_keys().map(ChannelId).collect();
            let belongs = |id: &ChannelId| state.entities.contains(id) || state.objects.contains(id);
            findings.expect(listed.iter().all(belongs), "a cell lists what lies elsewhere");
            findings.expect(state.objects.is_subset(&listed), "a cell does not list its object");
        }
    }

    /// The channel of a cell, if its data is a list of what lies there.
    fn list_of(&mut self, cell: Cell) -> Option<&mut Channel> {
        let id = self.board.config.cell_channel(cell);
        self.channels.get_mut(&id).map(|channel| &mut **channel).filter(|channel| channel.holds_entities())
    }
}

impl super::World {
    /// Remembers the cell that lists an object without a cell of its own, `None` when none does any
    /// longer. The cell that did so far.
    pub(super) fn place_object(&mut self, id: ChannelId, cell: Option<Cell>) -> Option<Cell> {
        let before = match cell {
            Some(cell) => self.objects.insert(id, cell),
            None => self.objects.remove(&id),
        };
        if let Some(old) = before.and_then(|cell| self.cells.get_mut(cell.0 as usize)) {
            old.objects.remove(&id);
        }
        if let Some(new) = cell.and_then(|cell| self.cells.get_mut(cell.0 as usize)) {
            new.objects.insert(id);
        }
        before
    }

    /// The cell whose data lists an object or an entity.
    pub(super) fn listed_in(&self, id: ChannelId) -> Option<Cell> {
        self.cell_of(id).or_else(|| self.objects.get(&id).copied())
    }
}

impl Channel {
    /// Its data is the list of what lies in a cell.
    pub(crate) fn holds_entities(&self) -> bool {
        let name = self.data.as_ref().map(|data| data.content.plan().name());
        self.channel_type == ChannelType::SPATIAL && name == Some(CELL_DATA)
    }
}

/// An update of a cell's data that takes something out.
fn removal(id: ChannelId) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_entry(&mut bytes, id, None, true);
    bytes
}

/// Appends one entry of `SpatialChannelData.entities`.
fn write_entry(out: &mut Vec<u8>, id: ChannelId, object: Option<&[u8]>, removed: bool) {
    let mut state = Vec::with_capacity(object.map_or(2, |object| object.len() + 4));
    if let Some(object) = object {
        super::handover::write_bytes(&mut state, 1, object);
    }
    if removed {
        state.extend_from_slice(&[2 << 3, 1]);
    }
    super::handover::write_entity(out, id, &state);
}
