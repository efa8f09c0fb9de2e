//! Messages of the game (type 100 and up): forwarded, never interpreted. Spec §6.

use throng_wire::Forward;

use crate::channel::{Channel, Subscription};
use crate::ids::{ConnId, ConnKind};
use crate::mail::Head;
use crate::reason::Refusal;
use crate::switchboard::Switchboard;

// Bits of the broadcast value. Spec §3.2 and §6.3.
const SINGLE_CONNECTION: u32 = 1;
const ALL_BUT_SENDER: u32 = 4;
pub(crate) const ALL_BUT_OWNER: u32 = 8;
const ALL_BUT_CLIENT: u32 = 16;
const ALL_BUT_SERVER: u32 = 32;
pub(crate) const ADJACENT_CHANNELS: u32 = 64;

/// Whether a broadcast value includes a subscriber of this kind, owners apart.
pub(crate) fn reaches(value: u32, kind: ConnKind, is_sender: bool) -> bool {
    let has = |bit: u32| value & bit != 0;
    !(has(ALL_BUT_SENDER) && is_sender
        || has(ALL_BUT_CLIENT) && kind == ConnKind::Client
        || has(ALL_BUT_SERVER) && kind == ConnKind::Server)
}

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

    /// A client's broadcast in a channel without a live owner, where the channel's settings allow
    /// it.
    fn broadcast_from_client(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let value = head.broadcast & !(SINGLE_CONNECTION | ADJACENT_CHANNELS);
        if !self.settings.enable_client_broadcast || value == 0 {
            return Err(Refusal::NoOwner);
        }
        let mut entry = Vec::new();
        throng_wire::write_forward_entry(&mut entry, &head.pack(&[]), sender.0, body);
        self.broadcast_value(board, entry, value, sender);
        Ok(())
    }

    /// A server's message, which is wrapped already and goes where the broadcast value says. Spec
    /// §6.2 and §6.3.
    pub(crate) fn forward_from_server(
        &mut self,
        board: &mut Switchboard,
        sender: ConnId,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let forward = Forward::parse(body).map_err(|_| Refusal::BadBody)?;
        let to_one = match head.broadcast {
            0 => Some(self.owner.ok_or(Refusal::NoOwner)?),
            // A client of zero is the owner; that there may be none ends the reference's process
            //
            SINGLE_CONNECTION if forward.client_conn_id == 0 => Some(self.owner.ok_or(Refusal::NoOwner)?),
            SINGLE_CONNECTION => Some(ConnId(forward.client_conn_id)),
            2..ADJACENT_CHANNELS => None,
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
        let wanted = |sub: &Subscription| {
            let conn = sub.address.conn;
            reaches(value, sub.kind, conn == sender) && !(value & ALL_BUT_OWNER != 0 && Some(conn) == owner)
        };
        board.stats.forwarded += self.subs.iter().filter(|(_, sub)| wanted(sub)).count() as u64;
        self.broadcast_entry(board, entry, wanted);
    }
}
