//! Messages of the game (type 100 and up): forwarded, never interpreted. Spec §6.

use prost::Message;
use throng_wire::{Forward, unrealpb};

use crate::channel::{Channel, Subscription};
use crate::ids::{ConnId, ConnKind};
use crate::mail::Head;
use crate::reason::Refusal;
use crate::settings::ChannelType;
use crate::switchboard::Switchboard;

/// Bits of the broadcast value. Spec §3.2 and §6.3.
mod bits {
    pub(super) const SINGLE_CONNECTION: u32 = 1;
    pub(super) const ALL_BUT_SENDER: u32 = 4;
    pub(super) const ALL_BUT_OWNER: u32 = 8;
    pub(super) const ALL_BUT_CLIENT: u32 = 16;
    pub(super) const ALL_BUT_SERVER: u32 = 32;
    pub(super) const ADJACENT_CHANNELS: u32 = 64;
}

/// Unreal's messages about objects, which the gateway remembers for the owner's recovery. Spec §9.2.
const SPAWN: u32 = 103;
const DESTROY: u32 = 104;
/// Objects remembered per channel; a recovery message with more could not be sent in one packet anyway.
const OBJECTS_MAX: usize = 16_384;

impl Channel {
    /// A client's message: to the owner, wrapped with the client's id. Spec §6.1.
    pub(crate) fn forward_from_client(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let Some(owner) = self.owner else {
            return self.broadcast_from_client(board, sender, head, body);
        };
        if board.peers.get(&owner).is_some_and(|peer| peer.recovering) {
            return Err(Refusal::OwnerRecovering);
        }
        if board.forward(owner, head, sender, body) {
            board.stats.forwarded += 1;
        }
        Ok(())
    }

    /// A client's broadcast in a channel without a live owner, where the channel's settings allow it.
    fn broadcast_from_client(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let value = head.broadcast & !(bits::SINGLE_CONNECTION | bits::ADJACENT_CHANNELS);
        if !self.settings.enable_client_broadcast || value == 0 {
            return Err(Refusal::NoOwner);
        }
        let mut entry = Vec::new();
        throng_wire::write_forward_entry(&mut entry, &head.pack(&[]), sender.0, body);
        self.broadcast_value(board, entry, value, sender);
        Ok(())
    }

    /// A server's message, which is wrapped already and goes where the broadcast value says. Spec §6.2 and §6.3.
    pub(crate) fn forward_from_server(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let forward = Forward::parse(body).map_err(|_| Refusal::BadBody)?;
        if board.config.unreal_objects && matches!(head.msg_type, SPAWN | DESTROY) {
            self.note_object(head.msg_type, forward.payload)?;
        }
        let to_one = match head.broadcast {
            0 => Some(self.owner.ok_or(Refusal::NoOwner)?),
            // A client of zero is the owner; that there may be none ends the reference's process.
            bits::SINGLE_CONNECTION if forward.client_conn_id == 0 => {
                Some(self.owner.ok_or(Refusal::NoOwner)?)
            }
            bits::SINGLE_CONNECTION => Some(ConnId(forward.client_conn_id)),
            2..bits::ADJACENT_CHANNELS => None,
            _ => return Err(Refusal::BroadcastValue),
        };
        match to_one {
            Some(to) => {
                if board.relay(to, head, body) {
                    board.stats.forwarded += 1;
                }
            }
            None => {
                let mut entry = Vec::new();
                throng_wire::write_entry(&mut entry, &head.pack(body));
                self.broadcast_value(board, entry, head.broadcast, sender);
            }
        }
        Ok(())
    }

    fn broadcast_value(&self, board: &mut Switchboard, entry: Vec<u8>, value: u32, sender: ConnId) {
        let owner = self.owner;
        let has = |bit: u32| value & bit != 0;
        let wanted = |sub: &Subscription| {
            let conn = sub.address.conn;
            !(has(bits::ALL_BUT_SENDER) && conn == sender
                || has(bits::ALL_BUT_OWNER) && Some(conn) == owner
                || has(bits::ALL_BUT_CLIENT) && sub.kind == ConnKind::Client
                || has(bits::ALL_BUT_SERVER) && sub.kind == ConnKind::Server)
        };
        board.stats.forwarded += self.subs.iter().filter(|(_, sub)| wanted(sub)).count() as u64;
        self.broadcast_entry(board, entry, wanted);
    }

    /// Remembers a spawned object, or forgets a destroyed one. Spec §9.2; objects with a location belong to a cell.
    fn note_object(&mut self, msg_type: u32, payload: &[u8]) -> Result<(), Refusal> {
        let keeps_objects = matches!(self.channel_type, ChannelType::GLOBAL | ChannelType::SUBWORLD);
        if msg_type == DESTROY {
            let destroy = unrealpb::DestroyObjectMessage::decode(payload).map_err(|_| Refusal::BadBody)?;
            self.objects.remove(&destroy.net_id);
            return Ok(());
        }
        let spawn = unrealpb::SpawnObjectMessage::decode(payload).map_err(|_| Refusal::BadBody)?;
        let object = spawn.obj.ok_or(Refusal::BadBody)?;
        let id = object.net_guid.filter(|id| *id != 0).ok_or(Refusal::BadBody)?;
        if keeps_objects && spawn.location.is_none() && self.objects.len() < OBJECTS_MAX {
            self.objects.insert(id, object);
        }
        Ok(())
    }
}
