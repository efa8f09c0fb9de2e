//! Handlers of mail from other shards.

use super::Shard;
use crate::ids::{ChannelId, ConnId};
use crate::mail::Letter;
use crate::reason::Refusal;
use crate::requests::Sender;

impl Shard {
    pub(crate) fn handle_letter(&mut self, letter: Letter) {
        match letter {
            Letter::Messages(batch) => {
                for (conn, head, body) in batch.iter() {
                    if self.board.hold_back(conn, head, body) {
                        continue;
                    }
                    match self.board.peers.get(&conn) {
                        Some(peer) => self.dispatch(Sender { conn, kind: peer.kind }, head, body),
                        None => self.board.refuse(Refusal::ClosingConnection),
                    }
                }
            }
            Letter::Append { from, batch } => {
                for (to, entry) in batch.iter() {
                    self.board.push_entry(from, to, entry);
                }
            }
            Letter::Deliver { from, payload, state, conns } => {
                self.board.deliver_mail(from, &payload, state, &conns);
            }
            Letter::Opened { conn, kind, shard, framing, addr } => {
                self.on_opened(conn, kind, shard, framing, addr);
            }
            Letter::Authenticated { conn, recoverable } => self.on_authenticated(conn, recoverable),
            Letter::Closed { conn, accepted, kind, keep, reason } => {
                self.on_closed((conn, accepted), kind, keep, reason);
            }
            Letter::GlobalOwner(owner) => self.board.global_owner = owner,
            Letter::Recovered { fresh, old, kind, shard } => {
                self.as_whole(|own| own.on_recovered(fresh, old, kind, shard));
            }
            Letter::Renamed { fresh, old, from } => self.board.note_renamed(fresh, old, from),
            Letter::Restore { conn, fresh } => self.on_restore(conn, fresh),
            Letter::Restored { conn, fresh } => self.on_restored(conn, fresh),
            Letter::Settled { conn } => self.on_settled(conn),
            Letter::Expired { conn, kind } => self.on_expired(conn, kind),
            Letter::Proven { conn } => {
                if let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn)) {
                    entry.proven = true;
                }
            }
            Letter::HasAnswer { conn } => {
                if let Some(global) = &mut self.global {
                    global.confirm_token(conn);
                }
            }
            Letter::Leave { conn, departure } => self.on_leave(conn, *departure),
            Letter::CloseConn { conn, reason, world } => self.board.close_naming(conn, reason, world),
            Letter::Resume { channel, conn } => self.on_resume(channel, conn),
            Letter::NotSubscribed { channel, conn } => self.forget_lag(channel, conn),
            Letter::CreateChannel(new) => self.create_here(*new),
            Letter::RemoveChannel { channel, sender, head } => {
                if let Err(refusal) = self.remove_requested(channel, sender, head) {
                    self.board.refuse(refusal);
                }
            }
            Letter::ChannelRemoved { channel } => self.channel_removed(channel),
            Letter::Held { conn, channel, held } => self.board.set_held(conn, channel, held),
            Letter::Full { conn, full } => {
                if let Some(peer) = self.board.peers.get_mut(&conn) {
                    peer.full = full;
                }
            }
            letter @ (Letter::SpawnInCell { .. }
            | Letter::ObjectSpawned { .. }
            | Letter::ObjectDestroyed { .. }) => {
                if let Err(refusal) = self.object_letter(letter) {
                    self.board.refuse(refusal);
                }
            }
        }
    }

    pub(crate) fn on_authenticated(&mut self, id: ConnId, recoverable: bool) {
        let Some(&peer) = self.board.peers.get(&id).filter(|peer| peer.shard == self.board.index) else {
            return;
        };
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(peer.slot as usize).filter(|conn| conn.id == id) else { return };
        conn.authenticated = true;
        conn.recoverable = recoverable;
        conn.state = board.config.state_machine(conn.kind).after_authentication(conn.state);
        // The deadline for authentication is off; what remains may be later or nothing.
        if let Some((_, key)) = conn.timer.take() {
            board.timers.cancel(key);
        }
        board.arm_connection(peer.slot);
    }

    fn on_resume(&mut self, channel: ChannelId, conn: ConnId) {
        let found = self.channels.get_mut(&channel).filter(|channel| channel.key(conn).is_some());
        match found {
            Some(channel) => channel.resync(&mut self.board, conn),
            None => {
                if let Some(peer) = self.board.peers.get(&conn) {
                    self.board.post(peer.shard, Letter::NotSubscribed { channel, conn });
                }
            }
        }
    }

    fn forget_lag(&mut self, channel: ChannelId, id: ConnId) {
        let Some(peer) = self.board.peers.get(&id) else { return };
        if let Some(conn) = self.board.conns.get_mut(peer.slot as usize).filter(|conn| conn.id == id) {
            conn.forget_lag(channel);
        }
    }
}
