//! Handover: an entity changes its cell, and with it its owner and its audience. Spec §8.8;
//! weaknesses.
//!
//! The whole of it happens within the input that reported the position, on the shard of all cells
//! and entities, so there is no moment at which an entity is in two cells or in none, and a message
//! to it is forwarded either before, to the old owner, or after, to the new one. A handover either
//! happens whole or changes nothing; what was refused (no such cell yet, a locked group) is tried
//! again when that changes and with every further update.
//!
//! Per pair of source and destination cell at most two payloads are encoded, whatever the number of
//! subscribers: one with the entities' references, one with their full data.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use throng_spatial::Cell;
use throng_wire::channeldpb::{ChannelDataAccess, ChannelSubscriptionOptions, MessageType};
use throng_wire::frame::PACKET_BYTES_SEND_MAX;
use throng_wire::{varint_len, write_varint};

use super::Membership;
use crate::channel::Subscribed;
use crate::failpoint::failpoint;
use crate::ids::{ChannelId, ConnId, ConnKind};
use crate::mail::{Head, Payload};
use crate::outbox::{Entry, EntryBytes};
use crate::reason::Refusal;
use crate::shard::Shard;
use crate::switchboard::Address;

type Ids = SmallVec<[ChannelId; 8]>;
type Audience = SmallVec<[(Address, ConnKind); 16]>;

impl Shard {
    /// The data of an entity has been updated. `cause` is the connection whose doing it is.
    pub(crate) fn entity_updated(&mut self, id: ChannelId, update: &Bytes, cause: ConnId) {
        let config = Arc::clone(&self.board.config);
        let Some(world) = &mut self.world else { return };
        let Some(entity) = world.entities.get(&id) else { return };
        let is_first = entity.locator.is_none();
        if is_first {
            // The first update of a channel without data is its data.
            let Some(plan) = self.channels.get(&id).and_then(|channel| channel.data.as_ref()) else { return };
            let locator = world.locator(&config, plan.content.plan());
            if let Some(entity) = world.entities.get_mut(&id) {
                let before = entity.client;
                entity.read_data(locator, update);
                world.note_client(id, before);
            }
        }
        let Some(entity) = world.entities.get_mut(&id) else { return };
        let Some(locator) = &entity.locator else { return };
        let cell = entity.cell;
        let moved = locator.observe(&mut entity.known, update);
        if let Some(position) = moved {
            entity.position = Some(position);
        } else if !is_first && !world.waiting.contains_key(&id) && entity.cell.is_some() {
            self.weigh(cell);
            return;
        }
        self.weigh(cell);
        self.look_at(id);
        self.settle_entity(id, cause);
        if is_first {
            // Whose it is has been read as well.
            self.follow(id);
        }
    }

    /// Moves an entity to the cell in which it lies, if it is not there yet.
    pub(super) fn settle_entity(&mut self, id: ChannelId, cause: ConnId) {
        let config = Arc::clone(&self.board.config);
        let (Some(grid), Some(world)) = (&config.spatial.grid, &mut self.world) else { return };
        let Some(entity) = world.entities.get(&id) else { return };
        let Some(position) = entity.position else { return };
        let from = entity.cell;
        let Some(to) = grid.cell_at(position) else {
            // It stays where it was and is looked at again when it moves.
            world.waiting.remove(&id);
            self.board.refuse(Refusal::OutsideWorld);
            return;
        };
        if from == Some(to) {
            world.waiting.remove(&id);
            return;
        }
        match self.hand_over(id, to, cause) {
            Ok(()) => self.arrived(id),
            Err(refusal) => {
                let now = self.board.now;
                let Some(world) = &mut self.world else { return };
                world.waiting.entry(id).or_insert_with(|| {
                    self.board.refuse(refusal);
                    now
                });
            }
        }
    }

    /// An entity belongs to the cell in which it lies.
    fn arrived(&mut self, id: ChannelId) {
        if let Some(since) = self.world.as_mut().and_then(|world| world.waiting.remove(&id)) {
            self.board.stats.handovers_delayed += 1;
            self.board.stats.handover_delay_ns +=
                u64::try_from(self.board.now.since(since).as_nanos()).unwrap_or(u64::MAX);
        }
    }

    /// Something that refused handovers may have changed.
    pub(super) fn retry_waiting(&mut self) {
        let Some(world) = &self.world else { return };
        for id in world.waiting.keys().copied().collect::<Vec<_>>() {
            self.settle_entity(id, ConnId(0));
        }
    }

    /// Hands an entity and the group that moves with it over to a cell.
    fn hand_over(&mut self, id: ChannelId, to: Cell, cause: ConnId) -> Result<(), Refusal> {
        let config = Arc::clone(&self.board.config);
        let Some(world) = &self.world else { return Ok(()) };
        if !self.channels.contains_key(&config.cell_channel(to)) {
            return Err(Refusal::UnknownCell);
        }
        let Some(entity) = world.entities.get(&id) else { return Ok(()) };
        let members: Ids = match entity.handover {
            Membership::Never => SmallVec::from_slice(&[id]),
            Membership::Removed => return Err(Refusal::NoGroup),
            Membership::Group(key) => world.groups[key].iter().copied().collect(),
        };
        if let Some(lock) = entity.lock
            && members.iter().any(|member| world.groups[lock].contains(member))
        {
            return Err(Refusal::Locked);
        }
        // Members may come from several cells: each cell's audience is told about those that leave
        // it.
        let mut sources: SmallVec<[(Option<Cell>, Ids); 2]> = SmallVec::new();
        for member in members {
            let from = world.entities.get(&member).and_then(|entity| entity.cell);
            if from == Some(to) {
                continue;
            }
            match sources.iter_mut().find(|(cell, _)| *cell == from) {
                Some((_, ids)) => ids.push(member),
                None => sources.push((from, SmallVec::from_slice(&[member]))),
            }
        }
        for (from, ids) in sources {
            self.move_entities(&ids, from, to, cause);
        }
        Ok(())
    }

    /// Moves entities from one cell to another that exists.
    fn move_entities(&mut self, ids: &[ChannelId], from: Option<Cell>, to: Cell, cause: ConnId) {
        self.as_whole(|shard| shard.move_together(ids, from, to, cause));
    }

    fn move_together(&mut self, ids: &[ChannelId], from: Option<Cell>, to: Cell, cause: ConnId) {
        let config = Arc::clone(&self.board.config);
        let target = config.cell_channel(to);
        let source = from.map(|cell| config.cell_channel(cell));
        let source_owner = source.and_then(|id| self.channels.get(&id)).and_then(|channel| channel.owner);
        let new_owner = self.channels.get(&target).and_then(|channel| channel.owner);

        // 1. Owners. Without a live one at the destination an entity keeps its own.
        let crosses = new_owner.is_some() && new_owner != source_owner;
        let mut changed: Ids = SmallVec::new();
        if let Some(new_owner) = new_owner {
            for &id in ids {
                let owner = self.channels.get(&id).and_then(|channel| channel.owner);
                let follows = |owner| self.world.as_ref().is_some_and(|world| world.spatial.contains(&owner));
                if owner != Some(new_owner) && (crosses || owner.is_none_or(follows)) {
                    self.change_owner(id, target, new_owner, source_owner);
                    changed.push(id);
                }
            }
        }
        // 2. Cells.
        for &id in ids {
            if let Some(cell) = from {
                self.unlist(cell, id);
            }
            self.arrived(id);
            let Some(world) = &mut self.world else { return };
            world.place(id, Some(to));
            let Some(entity) = world.entities.get_mut(&id) else { continue };
            entity.version += 1;
            if changed.contains(&id) {
                entity.owned_since = entity.version;
            }
            let object = entity.object.clone();
            failpoint!();
            self.list(to, id, &object);
        }
        self.board.stats.handovers += ids.len() as u64;
        self.board.stats.handovers_across_servers += changed.len() as u64;

        // 3. Audiences.
        let audience = self.audience(target);
        failpoint!();
        let stays = |conn| self.channels.get(&target).is_some_and(|channel| channel.key(conn).is_some());
        let mut leaving: Audience = match source {
            Some(source) => self.audience(source).into_iter().filter(|(to, _)| !stays(to.conn)).collect(),
            None => SmallVec::new(),
        };
        // A server that has kept an entity beyond its own cells sees neither, and moves it all the
        // same.
        for id in ids {
            let owner = self.channels.get(id).and_then(|channel| channel.owner);
            let owner =
                owner.filter(|&owner| !stays(owner) && leaving.iter().all(|(to, _)| to.conn != owner));
            leaving.extend(owner.and_then(|owner| Some((self.board.address(owner)?, ConnKind::Server))));
        }
        self.tell(ids, source.unwrap_or(target), target, cause, &leaving, &audience);
        for &id in ids {
            self.follow(id);
        }
    }

    /// A server has returned to its place. What changed cells while it was away, and found nobody
    /// at its destination, goes to whose cell it lies in: to this server, or from it.
    pub(crate) fn settle_owners(&mut self, conn: ConnId) {
        let Some(world) = self.world.as_ref().filter(|world| world.spatial.contains(&conn)) else { return };
        let places = self.board.places.get(&conn).into_iter().flatten();
        let owned =
            places.filter(|id| self.channels.get(*id).is_some_and(|channel| channel.owner == Some(conn)));
        let cells: BTreeSet<Cell> = owned
            .filter_map(|&id| self.board.config.channel_cell(id).or_else(|| world.cell_of(id)))
            .collect();
        for cell in cells {
            let channel = self.channels.get(&self.board.config.cell_channel(cell));
            if let Some(owner) = channel.and_then(|channel| channel.owner) {
                self.adopt_entities(cell, owner);
            }
        }
    }

    /// A server takes over the entities of a cell that it has come to own.
    pub(super) fn adopt_entities(&mut self, cell: Cell, owner: ConnId) {
        self.as_whole(|shard| shard.take_over(cell, owner));
    }

    fn take_over(&mut self, cell: Cell, owner: ConnId) {
        let id = self.board.config.cell_channel(cell);
        let Some(world) = &self.world else { return };
        let Some(state) = world.cells.get(cell.0 as usize) else { return };
        // Entities of others, a master's or a client's, are theirs wherever they stand.
        let orphans: Vec<ChannelId> = state
            .entities
            .iter()
            .copied()
            .filter(|entity| {
                let held = self.channels.get(entity).map(|channel| channel.owner);
                held.is_some_and(|held| {
                    held.is_none_or(|held| held != owner && world.spatial.contains(&held))
                })
            })
            .collect();
        if orphans.is_empty() {
            return;
        }
        for &entity in &orphans {
            let old = self.channels.get(&entity).and_then(|channel| channel.owner);
            self.change_owner(entity, id, owner, old);
            if let Some(entity) = self.world.as_mut().and_then(|world| world.entities.get_mut(&entity)) {
                entity.version += 1;
                entity.owned_since = entity.version;
            }
        }
        self.board.stats.handovers_across_servers += orphans.len() as u64;
        let audience = self.audience(id);
        failpoint!();
        // In parts, so that one message holds them.
        for part in orphans.chunks(64) {
            self.tell(part, id, id, ConnId(0), &[], &audience);
        }
    }

    /// Gives an entity another owner. Former ones, its own and that of its cell, are unsubscribed
    /// where they do not see the destination.
    fn change_owner(&mut self, id: ChannelId, target: ChannelId, new_owner: ConnId, former: Option<ConnId>) {
        let sees = |conn: ConnId| self.channels.get(&target).is_some_and(|cell| cell.key(conn).is_some());
        let old = self.channels.get(&id).and_then(|channel| channel.owner);
        let gone: SmallVec<[ConnId; 2]> = [old, former.filter(|former| Some(*former) != old)]
            .into_iter()
            .flatten()
            .filter(|&conn| conn != new_owner && !sees(conn))
            .collect();
        let Some(channel) = self.channels.get_mut(&id) else { return };
        // One that is away loses it as well.
        let lost = channel.lost.iter().filter(|place| place.was_owner).map(|place| place.conn);
        let losers: SmallVec<[ConnId; 2]> = old.into_iter().chain(lost).collect();
        if let Some(world) = &mut self.world {
            world.note_owners(id, losers, new_owner);
        }
        channel.owner_replaced(&mut self.board, new_owner);
        failpoint!();
        for conn in gone {
            if channel.unsubscribe(&mut self.board, conn) || old == Some(conn) {
                let kind = self.board.peers.get(&conn).map_or(ConnKind::Server, |peer| peer.kind);
                let result = channel.unsub_result(conn, kind);
                self.board.send(conn, Head::new(id, MessageType::UnsubFromChannel as u32), &result);
            }
        }
    }

    fn audience(&self, id: ChannelId) -> Audience {
        let subs = self.channels.get(&id).into_iter().flat_map(|channel| channel.subs.iter());
        let mut audience: Audience = subs.map(|(_, sub)| (sub.address, sub.kind)).collect();
        audience.sort_unstable_by_key(|(address, _)| address.conn);
        audience
    }

    /// Subscribes the destination's audience to the entities and sends everybody concerned
    /// CHANNEL_DATA_HANDOVER.
    fn tell(
        &mut self,
        ids: &[ChannelId],
        source: ChannelId,
        target: ChannelId,
        cause: ConnId,
        leaving: &[(Address, ConnKind)],
        audience: &[(Address, ConnKind)],
    ) {
        let mut rated: SmallVec<[(ConnId, ChannelId); 16]> = SmallVec::new();
        let mut in_full: SmallVec<[Address; 16]> = SmallVec::new();
        let mut by_reference: SmallVec<[Address; 16]> = leaving.iter().map(|(address, _)| *address).collect();
        for &(address, kind) in audience {
            let mut needs_data = false;
            for &id in ids {
                let Some(channel) = self.channels.get_mut(&id) else { continue };
                let owns = channel.owner == Some(address.conn);
                let access =
                    if owns { ChannelDataAccess::WriteAccess } else { ChannelDataAccess::ReadAccess };
                let options = ChannelSubscriptionOptions {
                    data_access: Some(access as i32),
                    skip_self_update_fan_out: Some(true),
                    skip_first_fan_out: Some(true),
                    ..Default::default()
                };
                let board = &mut self.board;
                if channel.subscribe(board, address, kind, Some(&options)) != Subscribed::Silently {
                    needs_data = true;
                    rated.push((address.conn, id));
                    let result = channel.sub_result(address.conn, kind);
                    board.send(address.conn, Head::new(id, MessageType::SubToChannel as u32), &result);
                }
            }
            if needs_data { in_full.push(address) } else { by_reference.push(address) }
        }
        for (to, full) in [(by_reference, false), (in_full, true)] {
            if !to.is_empty() {
                let payload = self.handover_payload(ids, source, target, cause, full);
                self.board.deliver(&payload, None, to);
            }
        }
        for (client, id) in rated {
            self.rate(client, id);
        }
    }

    /// CHANNEL_DATA_HANDOVER about some entities, with or without their data; in several messages
    /// where one is too long.
    fn handover_payload(
        &mut self,
        ids: &[ChannelId],
        source: ChannelId,
        target: ChannelId,
        cause: ConnId,
        full: bool,
    ) -> Payload {
        self.board.stats.handover_encodes += 1;
        // Ids, type and the framing of three levels take less.
        let room = PACKET_BYTES_SEND_MAX - 128;
        let mut parts: SmallVec<[(Vec<u8>, Vec<u8>); 1]> = SmallVec::new();
        let (mut entities, mut versions) = (Vec::new(), Vec::new());
        let mut value = Vec::new();
        for &id in ids {
            let Some(entity) = self.world.as_ref().and_then(|world| world.entities.get(&id)) else {
                continue;
            };
            let version = entity.version + 1;
            let mut state = Vec::with_capacity(entity.object.len() + 4);
            write_bytes(&mut state, 1, &entity.object);
            let data = self.channels.get_mut(&id).and_then(|channel| channel.data.as_mut()).filter(|_| full);
            if let Some(data) = data {
                value.clear();
                data.content.settle();
                data.content.encode(None, &mut value);
                let mut any = Vec::with_capacity(value.len() + data.type_url.len() + 8);
                write_bytes(&mut any, 1, data.type_url.as_bytes());
                write_bytes(&mut any, 2, &value);
                if state.len() + any.len() + 32 <= room {
                    write_bytes(&mut state, 3, &any);
                } else {
                    // More than a packet holds: its channel sends it in parts.
                    self.board.stats.handovers_oversize += 1;
                    self.resend_in_full(id);
                }
            }
            if !entities.is_empty() && entities.len() + versions.len() + state.len() + 64 > room {
                parts.push((std::mem::take(&mut entities), std::mem::take(&mut versions)));
            }
            write_entity(&mut entities, id, &state);
            write_version(&mut versions, id, version);
        }
        parts.push((entities, versions));
        let part = |(entities, versions): &(Vec<u8>, Vec<u8>)| {
            handover_entry(&self.board.entries, source, target, cause, entities, versions)
        };
        parts.iter().map(part).collect()
    }

    /// Tells everybody who watches a cell that an object, which it listed without being an entity,
    /// lies in another one.
    pub(super) fn tell_moved(&mut self, id: ChannelId, object: &[u8], from: Cell, to: Cell) {
        let (source, target) = (self.board.config.cell_channel(from), self.board.config.cell_channel(to));
        let audience: Vec<Address> = self.audience(source).into_iter().map(|(address, _)| address).collect();
        if audience.is_empty() {
            return;
        }
        let (mut state, mut entities) = (Vec::new(), Vec::new());
        write_bytes(&mut state, 1, object);
        write_entity(&mut entities, id, &state);
        let payload = Payload::from_buf([handover_entry(
            &self.board.entries,
            source,
            target,
            ConnId(0),
            &entities,
            &[],
        )]);
        self.board.deliver(&payload, None, audience);
    }

    /// Everybody who reads the channel gets its full state again.
    fn resend_in_full(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id) {
            let readers: Vec<ConnId> = channel.subs.iter().map(|(_, sub)| sub.address.conn).collect();
            for conn in readers {
                channel.resync(&mut self.board, conn);
            }
        }
    }
}

/// CHANNEL_DATA_HANDOVER with encoded entries of `SpatialChannelData.entities` and of its own
/// `versions`.
fn handover_entry(
    counted: &EntryBytes,
    source: ChannelId,
    target: ChannelId,
    cause: ConnId,
    entities: &[u8],
    versions: &[u8],
) -> Arc<Entry> {
    let type_url: &[u8] = b"type.googleapis.com/unrealpb.SpatialChannelData";
    let mut any = Vec::with_capacity(entities.len() + type_url.len() + 8);
    write_bytes(&mut any, 1, type_url);
    write_bytes(&mut any, 2, entities);
    let mut body = Vec::with_capacity(any.len() + versions.len() + 24);
    for (number, id) in [(1, source.0), (2, target.0), (3, cause.0)] {
        if id != 0 {
            write_varint(&mut body, number << 3);
            write_varint(&mut body, u64::from(id));
        }
    }
    write_bytes(&mut body, 4, &any);
    body.extend_from_slice(versions);
    let head = Head::new(target, MessageType::ChannelDataHandover as u32).pack(&[]);
    let mut entry = Vec::with_capacity(body.len() + 16);
    throng_wire::write_entry(&mut entry, &throng_wire::MessagePack { body: &body, ..head });
    Entry::new(entry, counted)
}

/// Appends a length-delimited field.
pub(super) fn write_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    write_varint(out, number << 3 | 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends one entry of `ChannelDataHandoverMessage.versions`.
fn write_version(out: &mut Vec<u8>, id: ChannelId, version: u64) {
    write_varint(out, 100 << 3 | 2);
    write_varint(out, (2 + varint_len(u64::from(id.0)) + varint_len(version)) as u64);
    write_varint(out, 1 << 3);
    write_varint(out, u64::from(id.0));
    write_varint(out, 2 << 3);
    write_varint(out, version);
}

/// Appends one entry of `SpatialChannelData.entities` with an encoded state.
pub(super) fn write_entity(out: &mut Vec<u8>, id: ChannelId, state: &[u8]) {
    let key = varint_len(u64::from(id.0));
    let len = 1 + key + 1 + varint_len(state.len() as u64) + state.len();
    write_varint(out, 1 << 3 | 2);
    write_varint(out, len as u64);
    write_varint(out, 1 << 3);
    write_varint(out, u64::from(id.0));
    write_bytes(out, 2, state);
}
