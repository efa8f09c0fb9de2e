//! Entity channels: creation, groups, well-known entities, removal. Spec §8.8 and §8.9.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use smallvec::SmallVec;
use throng_wire::channeldpb::{
    AddEntityGroupMessage, ChannelSubscriptionOptions, CreateChannelResultMessage,
    CreateEntityChannelMessage, EntityGroupType, MessageType, RemoveEntityGroupMessage,
};
use throng_wire::unrealpb::UnrealObjectRef;

use super::{Entity, Membership};
use crate::channel::{LostPlace, Options, RateBy, Subscribed, merge_options};
use crate::ids::{ChannelId, ConnId, ConnKind};
use crate::mail::{Head, NewChannel};
use crate::reason::Refusal;
use crate::registry::Listed;
use crate::requests::{Sender, check_masks};
use crate::settings::ChannelType;
use crate::shard::Shard;

/// Entities in one group. Groups are a player's pawn, controller and the like; a handover costs per
/// member.
const GROUP_MAX: usize = 1024;
/// Delay of the first full state of well-known entities for a client that has just authenticated
/// (spec §8.9).
const WELL_KNOWN_DELAY_MS: i32 = 1000;

impl Shard {
    /// CREATE_ENTITY_CHANNEL, sent to GLOBAL or to a cell.
    pub(crate) fn on_create_entity(
        &mut self,
        sender: Sender,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let config = Arc::clone(&self.board.config);
        let home_cell = config.channel_cell(head.channel);
        if home_cell.is_none() && head.channel != ChannelId::GLOBAL {
            return Err(Refusal::NotSpatial);
        }
        let request = CreateEntityChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        if !config.permissions.of(sender.kind).create_types.contains(ChannelType::ENTITY) {
            return Err(Refusal::Permission);
        }
        let id = ChannelId(request.entity_id);
        if id.0 < config.entity_channel_start || self.channels.contains_key(&id) {
            return Err(Refusal::EntityId);
        }
        if request.metadata.len() > config.limits.metadata_bytes {
            return Err(Refusal::MetadataBytes);
        }
        check_masks(&self.board, 0, request.sub_options.as_ref())?;
        let data = self.schemas.checked_any(request.data)?;
        let Some(world) = &mut self.world else { return Err(Refusal::NotGlobal) };
        if data.as_ref().is_some_and(|(plan, bytes)| world.is_nowhere(&config, plan, bytes)) {
            return Err(Refusal::OutsideWorld);
        }
        let Some(global) = &mut self.global else { return Err(Refusal::NotGlobal) };
        if global.directory.len() >= config.limits.channels {
            return Err(Refusal::ChannelsMax);
        }
        let creator = global.entries.get_mut(&sender.conn).ok_or(Refusal::ClosingConnection)?;
        if sender.kind == ConnKind::Client && creator.channels >= config.limits.channels_per_client {
            return Err(Refusal::ChannelsPerConnection);
        }
        creator.channels += 1;
        let metadata = request.metadata.clone();
        let creator = Some(sender.conn);
        global.directory.insert(id, Listed { channel_type: ChannelType::ENTITY, metadata, creator });

        let mut entity = Entity::new();
        if let Some((plan, bytes)) = &data {
            entity.read_data(world.locator(&config, plan), bytes);
        }
        if entity.object.is_empty() {
            let object = UnrealObjectRef { net_guid: Some(id.0), ..Default::default() };
            entity.object = Bytes::from(object.encode_to_vec());
        }
        // In a cell, where its creator says; from GLOBAL, where it is, if somebody lives there.
        let placed = config.spatial.place_entities && home_cell.is_none();
        let here = entity.position.and_then(|at| config.spatial.grid.as_ref()?.cell_at(at));
        let settled = here.filter(|_| placed).and_then(|cell| {
            let owner = self.channels.get(&config.cell_channel(cell))?.owner?;
            Some((cell, owner))
        });
        let (cell, owner, channel) = match (home_cell, settled) {
            (None, Some((cell, owner))) => (Some(cell), owner, config.cell_channel(cell)),
            _ => (home_cell, sender.conn, head.channel),
        };
        let object = entity.object.clone();
        world.entities.insert(id, entity);
        world.note_client(id, None);
        world.place(id, cell);
        self.board.stats.entities_created += 1;

        let result = CreateChannelResultMessage {
            channel_type: ChannelType::ENTITY.0.cast_signed(),
            metadata: request.metadata.clone(),
            owner_conn_id: owner.0,
            channel_id: id.0,
        };
        self.board.send(owner, Head { channel, ..head }, &result);
        self.create_here(NewChannel {
            id,
            channel_type: ChannelType::ENTITY,
            metadata: request.metadata,
            owner,
            options: request.sub_options,
            data: data.map(|(plan, bytes)| (plan.name().to_owned(), bytes)),
            merge_options: request.merge_options.as_ref().map(merge_options),
            answer: None,
        });
        if let Some(cell) = cell {
            self.list(cell, id, &object);
        }
        self.look_at(id);
        self.follow(id);
        if placed && cell.is_none() {
            // Where it stands there is no cell yet, or nobody to own it.
            self.settle_entity(id, ConnId(0));
        }
        if request.is_well_known {
            if let Some(world) = &mut self.world {
                world.well_known.insert(id);
            }
            self.subscribe_everybody(id);
        }
        Ok(())
    }

    /// Every client is subscribed to a well-known entity, those that are away when they return.
    fn subscribe_everybody(&mut self, id: ChannelId) {
        let Some(global) = &self.global else { return };
        let away = global.lost.iter().filter(|(_, lost)| lost.kind == ConnKind::Client);
        let mut away: Vec<ConnId> = away.map(|(&conn, _)| conn).collect();
        away.sort_unstable();
        let clients =
            global.entries.iter().filter(|(_, entry)| entry.kind == ConnKind::Client && entry.authenticated);
        let mut clients: Vec<ConnId> = clients.map(|(&conn, _)| conn).collect();
        clients.sort_unstable();
        for conn in clients {
            self.subscribe_client(id, conn, None);
        }
        let Some(channel) = self.channels.get_mut(&id) else { return };
        for conn in away {
            let options = Options::new(&channel.settings, None);
            let subscription = Some((options, RateBy::Default, self.board.now));
            channel.lost.push(LostPlace { conn, kind: ConnKind::Client, was_owner: false, subscription });
            self.board.add_place(conn, id);
        }
    }

    /// A client has authenticated: it gets the entities that everybody knows.
    pub(crate) fn greet_with_well_known(&mut self, conn: ConnId) {
        let Some(world) = &self.world else { return };
        let options =
            ChannelSubscriptionOptions { fan_out_delay_ms: Some(WELL_KNOWN_DELAY_MS), ..Default::default() };
        for id in world.well_known.iter().copied().collect::<Vec<_>>() {
            self.subscribe_client(id, conn, Some(&options));
        }
    }

    fn subscribe_client(
        &mut self,
        id: ChannelId,
        conn: ConnId,
        options: Option<&ChannelSubscriptionOptions>,
    ) {
        let board = &mut self.board;
        let (Some(channel), Some(address)) = (self.channels.get_mut(&id), board.address(conn)) else {
            return;
        };
        if channel.subscribe(board, address, ConnKind::Client, options) == Subscribed::New {
            let result = channel.sub_result(conn, ConnKind::Client);
            board.send(conn, Head::new(id, MessageType::SubToChannel as u32), &result);
            self.rate(conn, id);
        }
    }

    // ---- Groups ---------------------------------------------------------------------------------

    /// ENTITY_GROUP_ADD, sent to an entity channel by its owner.
    pub(crate) fn on_group_add(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let id = self.owned_entity(sender, head)?;
        let request = AddEntityGroupMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let kind = EntityGroupType::try_from(request.r#type).map_err(|_| Refusal::BadBody)?;
        let Some(world) = &mut self.world else { return Err(Refusal::NotGlobal) };
        let (known, unknown): (Vec<ChannelId>, Vec<ChannelId>) = request
            .entities_to_add
            .iter()
            .map(|&id| ChannelId(id))
            .partition(|id| world.entities.contains_key(id));
        for _ in unknown {
            self.board.refuse(Refusal::UnknownEntity);
        }
        match kind {
            EntityGroupType::Handover => world.add_to_handover_group(id, &known)?,
            EntityGroupType::Lock => world.add_to_lock_group(id, &known)?,
        }
        self.retry_waiting();
        Ok(())
    }

    /// ENTITY_GROUP_REMOVE, sent to an entity channel by its owner.
    pub(crate) fn on_group_remove(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let id = self.owned_entity(sender, head)?;
        let request = RemoveEntityGroupMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let kind = EntityGroupType::try_from(request.r#type).map_err(|_| Refusal::BadBody)?;
        let Some(world) = &mut self.world else { return Err(Refusal::NotGlobal) };
        let entity = world.entities.get(&id).ok_or(Refusal::UnknownEntity)?;
        let key = match kind {
            EntityGroupType::Handover => entity.handover.key(),
            EntityGroupType::Lock => entity.lock,
        };
        let key = key.ok_or(Refusal::NoGroup)?;
        for id in request.entities_to_remove.iter().map(|&id| ChannelId(id)) {
            if !world.groups.get(key).is_some_and(|group| group.contains(&id)) {
                self.board.refuse(Refusal::UnknownEntity);
                continue;
            }
            match kind {
                EntityGroupType::Handover => {
                    world.leave_handover_group(id);
                    if let Some(entity) = world.entities.get_mut(&id) {
                        entity.handover = Membership::Removed;
                    }
                }
                EntityGroupType::Lock => world.leave_lock_group(id),
            }
        }
        if kind == EntityGroupType::Lock {
            self.retry_waiting();
        }
        Ok(())
    }

    fn owned_entity(&self, sender: Sender, head: Head) -> Result<ChannelId, Refusal> {
        let channel = self.channels.get(&head.channel).ok_or(Refusal::UnknownChannel)?;
        if channel.channel_type != ChannelType::ENTITY {
            return Err(Refusal::NotEntity);
        }
        if channel.owner == Some(sender.conn) { Ok(head.channel) } else { Err(Refusal::Access) }
    }

    // ---- Cells and removal ----------------------------------------------------------------------

    /// An entity channel is gone: so is the entity, from its cell and its groups.
    ///
    /// Subscribers of the cell learn of it by an update of the cell's data.
    pub(crate) fn entity_removed(&mut self, id: ChannelId) {
        let Some(world) = &mut self.world else { return };
        world.leave_handover_group(id);
        world.leave_lock_group(id);
        let cell = world.entities.get(&id).and_then(|entity| entity.cell);
        world.place(id, None);
        let object = world.place_object(id, None);
        let client = world.entities.remove(&id).and_then(|entity| entity.client);
        world.note_client(id, client);
        world.waiting.remove(&id);
        world.well_known.remove(&id);
        if let Some(lod) = &mut world.lod {
            let others = client.and_then(|client| world.avatars.get(&client));
            let eye = lod.remove(id, others.map_or(&[], |others| others));
            if let Some(eye) = eye {
                self.rate_everything(eye, client);
            }
        }
        if let Some(cell) = cell.or(object) {
            self.announce_gone(cell, id);
        }
    }
}

impl super::World {
    fn add_to_handover_group(&mut self, id: ChannelId, known: &[ChannelId]) -> Result<(), Refusal> {
        // What the group would hold: its members, the listed ones and those of their groups that
        // are not locked.
        let own = self.entities.get(&id).and_then(|entity| entity.handover.key());
        let mut members: BTreeSet<ChannelId> = own.map(|key| self.groups[key].clone()).unwrap_or_default();
        let mut merged = BTreeSet::from_iter(own);
        for other in known {
            let Some(entity) = self.entities.get(other) else { continue };
            if entity.lock.is_some() {
                return Err(Refusal::Locked);
            }
            if let Some(key) = entity.handover.key().filter(|key| !merged.contains(key)) {
                members.extend(&self.groups[key]);
                merged.insert(key);
            }
            members.insert(*other);
        }
        if members.len() > GROUP_MAX {
            return Err(Refusal::GroupSize);
        }
        for key in merged {
            self.groups.remove(key);
        }
        if members.is_empty() {
            return Ok(());
        }
        let key = self.groups.insert(members);
        for member in self.groups[key].iter().copied().collect::<Vec<_>>() {
            if let Some(entity) = self.entities.get_mut(&member) {
                entity.handover = Membership::Group(key);
            }
        }
        Ok(())
    }

    fn add_to_lock_group(&mut self, id: ChannelId, known: &[ChannelId]) -> Result<(), Refusal> {
        let own = self.entities.get(&id).and_then(|entity| entity.lock);
        let mut members: BTreeSet<ChannelId> = own.map(|key| self.groups[key].clone()).unwrap_or_default();
        for other in known {
            let Some(entity) = self.entities.get(other) else { continue };
            if entity.lock.is_some() {
                continue;
            }
            members.insert(*other);
            if let Some(key) = entity.handover.key() {
                let unlocked = |member: &&ChannelId| {
                    self.entities.get(*member).is_some_and(|entity| entity.lock.is_none())
                };
                members.extend(self.groups[key].iter().filter(unlocked));
            }
        }
        if members.len() > GROUP_MAX {
            return Err(Refusal::GroupSize);
        }
        if members.is_empty() {
            return Ok(());
        }
        let key = match own {
            Some(key) => {
                self.groups[key] = members;
                key
            }
            None => self.groups.insert(members),
        };
        for member in self.groups[key].iter().copied().collect::<Vec<_>>() {
            if let Some(entity) = self.entities.get_mut(&member) {
                entity.lock = Some(key);
            }
        }
        Ok(())
    }

    fn leave_handover_group(&mut self, id: ChannelId) {
        let Some(entity) = self.entities.get_mut(&id) else { return };
        if let Some(key) = entity.handover.key() {
            entity.handover = Membership::Never;
            self.drop_member(key, id);
        }
    }

    fn leave_lock_group(&mut self, id: ChannelId) {
        let Some(entity) = self.entities.get_mut(&id) else { return };
        if let Some(key) = entity.lock.take() {
            self.drop_member(key, id);
        }
    }

    fn drop_member(&mut self, key: usize, id: ChannelId) {
        let group = &mut self.groups[key];
        group.remove(&id);
        if group.is_empty() {
            self.groups.remove(key);
        }
    }
}

impl Entity {
    fn new() -> Self {
        Self {
            version: 0,
            owned_since: 0,
            cell: None,
            locator: None,
            known: super::Known::new(),
            position: None,
            object: Bytes::new(),
            client: None,
            handover: Membership::Never,
            lock: None,
            former: SmallVec::new(),
        }
    }

    /// Takes over the reference to its object, which also says whose entity it is.
    pub(super) fn set_object(&mut self, object: Bytes) {
        let decoded = UnrealObjectRef::decode(&object[..]).ok();
        let client = decoded.and_then(|object| object.owning_conn_id).filter(|id| *id != 0);
        self.client = client.map(ConnId).or(self.client);
        self.object = object;
    }

    /// Reads what complete data says of the entity.
    pub(super) fn read_data(&mut self, locator: Arc<super::Locator>, bytes: &[u8]) {
        self.known = locator.unknown();
        self.position = locator.observe(&mut self.known, bytes);
        if let Some(object) = locator.object(bytes) {
            self.set_object(Bytes::copy_from_slice(object));
        }
        self.locator = Some(locator);
    }
}
