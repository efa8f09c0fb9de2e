//! Unreal's SPAWN and DESTROY: forwarded like every user-space message, and acted upon. Spec §9.2.
//!
//! A channel on another shard acts on its own part; what concerns cells and entities goes to shard
//! 0 by mail.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use throng_spatial::Point;
use throng_wire::channeldpb::{MessageType, ServerForwardMessage};
use throng_wire::unrealpb::{DestroyObjectMessage, SpawnObjectMessage};
use throng_wire::{Forward, MessagePack};

use crate::data::ChannelData;
use crate::failpoint::failpoint;
use crate::ids::{ChannelId, ConnId, ShardIndex};
use crate::mail::{Head, Letter};
use crate::reason::Refusal;
use crate::requests::Sender;
use crate::settings::ChannelType;
use crate::shard::Shard;

const SPAWN: u32 = 103;
const DESTROY: u32 = 104;
/// Objects remembered per channel for the recovery of servers, so that their memory is bounded.
/// More are refused.
const OBJECTS_MAX: usize = 16_384;

/// Whether a type is one of those that the gateway acts upon where Unreal's extensions are on.
pub(crate) const fn is_object_message(msg_type: u32) -> bool {
    matches!(msg_type, SPAWN | DESTROY)
}

impl Shard {
    /// SPAWN or DESTROY from a server.
    pub(crate) fn on_object(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let forward = Forward::parse(body).map_err(|_| Refusal::BadBody)?;
        if head.msg_type == DESTROY {
            return self.on_destroy(sender, head, body, forward.payload);
        }
        let spawn = SpawnObjectMessage::decode(forward.payload).map_err(|_| Refusal::BadBody)?;
        let object = spawn.obj.clone().ok_or(Refusal::BadBody)?;
        let id = object.net_guid.filter(|id| *id != 0).map(ChannelId).ok_or(Refusal::BadBody)?;
        let encoded = Bytes::from(object.encode_to_vec());
        let config = Arc::clone(&self.board.config);
        let here = head.channel;
        let channel = self.channels.get_mut(&here).ok_or(Refusal::UnknownChannel)?;

        let (lies_in, forwarded) = match config.spatial.grid.as_ref().zip(spawn.location) {
            Some((grid, location)) => {
                let at = Point {
                    x: f64::from(location.x.unwrap_or(0.0)),
                    z: f64::from(location.y.unwrap_or(0.0)),
                };
                let cell = grid.cell_at(at).ok_or(Refusal::OutsideWorld)?;
                let target = config.cell_channel(cell);
                if spawn.channel_id.unwrap_or(here.0) == target.0 {
                    (Some(target), self.forward_from_server(here, sender.conn, head, body))
                } else {
                    // It says another channel than the one it is in: the cell's channel passes it
                    // on.
                    let payload = SpawnObjectMessage { channel_id: Some(target.0), ..spawn }.encode_to_vec();
                    let client_conn_id = forward.client_conn_id;
                    let body = ServerForwardMessage { client_conn_id, payload }.encode_to_vec();
                    let object = encoded.clone();
                    let letter =
                        Letter::SpawnInCell { sender: sender.conn, head, cell: target, id, object, body };
                    (None, self.tell_world(letter))
                }
            }
            None => {
                let keeps = matches!(channel.channel_type, ChannelType::GLOBAL | ChannelType::SUBWORLD);
                if keeps && spawn.location.is_none() {
                    if channel.objects.len() < OBJECTS_MAX || channel.objects.contains_key(&id.0) {
                        channel.objects.insert(id.0, object);
                    } else {
                        self.board.refuse(Refusal::DataTooLarge);
                    }
                }
                (Some(here), self.forward_from_server(here, sender.conn, head, body))
            }
        };
        // It is what it is, whether somebody could be told of it or not.
        self.tell_world(Letter::ObjectSpawned { id, object: encoded, lies_in })?;
        forwarded
    }

    fn on_destroy(&mut self, sender: Sender, head: Head, body: &[u8], payload: &[u8]) -> Result<(), Refusal> {
        let destroy = DestroyObjectMessage::decode(payload).map_err(|_| Refusal::BadBody)?;
        let id = ChannelId(destroy.net_id);
        let channel = self.channels.get_mut(&head.channel).ok_or(Refusal::UnknownChannel)?;
        channel.objects.remove(&id.0);
        self.board.destroying = Some((id, head.channel));
        let forwarded = self.forward_from_server(head.channel, sender.conn, head, body);
        self.tell_world(Letter::ObjectDestroyed { id, told: head.channel })?;
        self.board.destroying = None;
        forwarded
    }

    /// Ends an object of whose end a panic may have kept the world from hearing.
    pub(crate) fn finish_destruction(&mut self) {
        if let Some((id, told)) = self.board.destroying.take() {
            // The end of an object is never refused.
            let _ = self.tell_world(Letter::ObjectDestroyed { id, told });
        }
    }

    /// Has shard 0 do something, at once if this is it.
    fn tell_world(&mut self, letter: Letter) -> Result<(), Refusal> {
        if self.world.is_some() {
            return self.object_letter(letter);
        }
        self.board.post(ShardIndex::FIRST, letter);
        Ok(())
    }

    /// Shard 0: what messages about objects do to cells and entities.
    pub(crate) fn object_letter(&mut self, letter: Letter) -> Result<(), Refusal> {
        match letter {
            Letter::SpawnInCell { sender, head, cell, id, object, body } => {
                let index = self.board.config.channel_cell(cell).ok_or(Refusal::UnknownCell)?;
                if !self.channels.contains_key(&cell) {
                    return Err(Refusal::UnknownCell);
                }
                self.list(index, id, &object);
                failpoint!();
                self.forward_from_server(cell, sender, head, &body)
            }
            Letter::ObjectSpawned { id, object, lies_in } => {
                let lies_in = lies_in.filter(|cell| self.channels.contains_key(cell));
                if let Some(cell) = lies_in.and_then(|cell| self.board.config.channel_cell(cell)) {
                    self.list(cell, id, &object);
                }
                self.set_object(id, object);
                Ok(())
            }
            Letter::ObjectDestroyed { id, told } => {
                self.forget_in_cell(id, told);
                self.end_entity(id);
                // Of what was no entity nobody else could tell those who watch another cell than it
                // was said in.
                if let Some(cell) = self.world.as_ref().and_then(|world| world.listed_in(id)) {
                    self.announce_gone(cell, id);
                    self.world.as_mut().and_then(|world| world.place_object(id, None));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The reference to the object of an entity is another one from now on.
    fn set_object(&mut self, id: ChannelId, object: Bytes) {
        let Some(world) = &mut self.world else { return };
        let Some(entity) = world.entities.get_mut(&id) else { return };
        let before = entity.client;
        entity.set_object(object);
        world.note_client(id, before);
        let Some(entity) = world.entities.get(&id) else { return };
        let Some(data) = self.channels.get_mut(&id).and_then(|channel| channel.data.as_mut()) else { return };
        let mut bytes = Vec::new();
        data.content.encode(None, &mut bytes);
        // Updates never change the reference, so the data is made anew.
        let changed = entity.locator.as_ref().and_then(|locator| locator.with_object(&bytes, &entity.object));
        if let Some(content) =
            changed.and_then(|bytes| ChannelData::from_bytes(Arc::clone(data.content.plan()), &bytes).ok())
        {
            data.content = content;
        }
        self.look_at(id);
        self.follow(id);
    }

    /// Subscribers of the cell that lists an object or an entity have been told of its end if that
    /// was said in the cell.
    fn forget_in_cell(&mut self, id: ChannelId, told: ChannelId) {
        let cell = self.board.config.channel_cell(told);
        let listed = self.world.as_ref().and_then(|world| world.listed_in(id));
        if let Some(cell) = listed.filter(|listed| cell == Some(*listed)) {
            // In an order that can be begun again after a panic.
            self.unlist(cell, id);
            failpoint!();
            let Some(world) = &mut self.world else { return };
            world.place(id, None);
            world.place_object(id, None);
        }
    }

    /// Ends the channel of an entity, if it is one. Other channels are no objects.
    pub(super) fn end_entity(&mut self, id: ChannelId) {
        if self.channels.get(&id).is_some_and(|channel| channel.channel_type == ChannelType::ENTITY) {
            self.remove_channel(id, Head::new(ChannelId::GLOBAL, MessageType::RemoveChannel as u32));
        }
    }

    /// Forwards a server's message through a channel of this shard.
    pub(crate) fn forward_from_server(
        &mut self,
        via: ChannelId,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        if head.broadcast & crate::user_space::ADJACENT_CHANNELS != 0
            && self.board.config.channel_cell(via).is_some()
        {
            return self.broadcast_adjacent(via, sender, head, body);
        }
        let channel = self.channels.get_mut(&via).ok_or(Refusal::UnknownChannel)?;
        channel.forward_from_server(&mut self.board, sender, head, body)
    }

    /// To the subscribers of a cell and of the cells around it, each once. Spec §6.3.
    fn broadcast_adjacent(
        &mut self,
        via: ChannelId,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let forward = Forward::parse(body).map_err(|_| Refusal::BadBody)?;
        let config = Arc::clone(&self.board.config);
        let (Some(grid), Some(cell)) = (&config.spatial.grid, config.channel_cell(via)) else {
            return Err(Refusal::BroadcastValue);
        };
        let value = head.broadcast;
        let centre = (value & crate::user_space::ALL_BUT_OWNER == 0).then_some(cell);
        let excluded = ConnId(forward.client_conn_id);
        let mut to = Vec::new();
        for cell in grid.adjacent(cell).chain(centre) {
            let Some(channel) = self.channels.get(&config.cell_channel(cell)) else { continue };
            let wanted = channel.subs.iter().map(|(_, sub)| sub).filter(|sub| {
                crate::user_space::reaches(value, sub.kind, sub.address.conn == sender)
                    && sub.address.conn != excluded
            });
            to.extend(wanted.map(|sub| sub.address));
        }
        to.sort_unstable_by_key(|address| address.conn);
        to.dedup_by_key(|address| address.conn);
        let mut entry = Vec::new();
        throng_wire::write_entry(&mut entry, &MessagePack { body, ..head.pack(&[]) });
        self.board.stats.forwarded += to.len() as u64;
        let payload = crate::mail::Payload::from_buf([crate::outbox::Entry::new(entry, &self.board.entries)]);
        self.board.deliver(&payload, None, to);
        Ok(())
    }
}
