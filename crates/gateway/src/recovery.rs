//! Lost connections and their return. Spec §4.7.
//!
//! ```text
//! lost      places are kept under the old id on every shard, the id stays taken; shard 0 starts a timer
//! returned  AUTH with the same player identifier (servers) or a resume token (clients):
//!           1. every shard renames the fresh connection to the old id
//!           2. AUTH result with the old id
//!           3. every shard gives back the places: RECOVERY_CHANNEL_DATA per channel
//!           Messages of the connection wait on a shard between 1 and 3.
//! settled   at least a second later, when every shard has done so: RECOVERY_END, then OWNER_RECOVERED where it owns
//! expired   the places are free, as if the connection had closed only now
//! ```
//!
//! Clients that resume keep their subscriptions through a short loss without the owner being told,
//! so that a game does not take the player out of the world for a network hand-over; it is told
//! when the time is up.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use smallvec::SmallVec;
use throng_stdx::TimerKey;
use throng_wire::channeldpb::auth_result_message::AuthResult;
use throng_wire::channeldpb::{
    AuthResultMessage, ChannelDataRecoveryMessage, ChannelOwnerLostMessage, ChannelOwnerRecoveredMessage,
    EndRecoveryMesssage, MessageType,
};
use throng_wire::frame::PACKET_BYTES_SEND_MAX;
use throng_wire::unrealpb::ChannelRecoveryData;

use crate::ban::Subject;
use crate::channel::{Channel, LostPlace};
use crate::connection::Renamed;
use crate::data::split;
use crate::failpoint::failpoint;
use crate::fanout::compile_mask;
use crate::ids::{ChannelId, ConnId, ConnKind, ShardIndex};
use crate::mail::{Head, Letter, MessageBatch};
use crate::registry::{Lost, PendingAuth, Settling};
use crate::settings::ChannelType;
use crate::shard::Shard;
use crate::switchboard::{Switchboard, Timer};

/// The broadcast value that owner-lost and owner-recovered messages carry: all but the owner.
pub(crate) const ALL_BUT_OWNER: u32 = crate::user_space::ALL_BUT_OWNER;
/// Objects in one recovery message: half of a packet, the other half is for data.
const OBJECTS_BYTES_MAX: usize = PACKET_BYTES_SEND_MAX / 2;
const OBJECTS_TYPE_URL: &str = "type.googleapis.com/unrealpb.ChannelRecoveryData";

/// Reports whether a connection is lost, and has not returned since its time was set to end with
/// this timer.
fn is_same_loss(lost: &BTreeMap<ConnId, Lost>, conn: ConnId, expiry: Option<TimerKey>) -> bool {
    lost.get(&conn).is_some_and(|lost| lost.expiry == expiry)
}

impl Shard {
    // ---- Loss -----------------------------------------------------------------------------------

    /// A connection is gone: every channel of this shard that has to do with it reacts. Spec §4.6.
    pub(crate) fn leave_channels(&mut self, conn: ConnId, kind: ConnKind, keep: bool) {
        let places = self.board.places.get(&conn).cloned().unwrap_or_default();
        for id in places {
            self.leave_channel(id, conn, kind, keep);
        }
    }

    fn leave_channel(&mut self, id: ChannelId, conn: ConnId, kind: ConnKind, keep: bool) {
        let board = &mut self.board;
        board.at_hand = Some(id);
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if keep && channel.lost.iter().any(|place| place.conn == conn) {
            // Lost again before it had its place back.
            return;
        }
        let subscription =
            channel.subscription(conn).map(|sub| (sub.options.clone(), sub.rate_by, sub.since));
        let was_owner = channel.owner == Some(conn);
        let was_subscribed = channel.unsubscribe(board, conn);
        if was_owner {
            channel.set_owner(board, None);
        }
        if keep {
            channel.lost.push(LostPlace { conn, kind, was_owner, subscription });
            failpoint!();
            board.add_place(conn, id);
            if was_owner && channel.settings.send_owner_lost_and_recovered {
                let head =
                    Head { broadcast: ALL_BUT_OWNER, ..Head::new(id, MessageType::ChannelOwnerLost as u32) };
                channel.broadcast(board, head, &ChannelOwnerLostMessage {}, |_| true);
            }
            if !was_owner && was_subscribed && kind == ConnKind::Server {
                channel.notify_unsub(board, conn, kind);
            }
            return;
        }
        if was_owner {
            if channel.settings.remove_after_owner_removed {
                self.remove_ownerless(id);
            }
        } else if was_subscribed {
            channel.notify_unsub(board, conn, kind);
        }
    }

    fn remove_ownerless(&mut self, id: ChannelId) {
        if id != ChannelId::GLOBAL {
            self.remove_channel(id, Head::new(ChannelId::GLOBAL, MessageType::RemoveChannel as u32));
        }
    }

    /// Shard 0: keeps the place of a lost connection for its return.
    pub(crate) fn keep_lost(&mut self, conn: ConnId, lost: Lost) {
        let recovery = self.board.config.recovery.clone();
        let now = self.board.now;
        let Some(global) = &mut self.global else { return };
        let mut evicted = None;
        if global.lost.len() >= recovery.lost_max {
            evicted = loop {
                match global.lost_clients.pop_front() {
                    Some((oldest, expiry)) if is_same_loss(&global.lost, oldest, expiry) => {
                        break Some(oldest);
                    }
                    Some(_) => {}
                    None => break Some(conn),
                }
            };
        }
        let kind = lost.kind;
        let timeout = match kind {
            ConnKind::Server => recovery.server_timeout,
            ConnKind::Client => Some(recovery.client_window),
        };
        let expiry = timeout.map(|timeout| self.board.timers.insert(now + timeout, Timer::Expire(conn)));
        match kind {
            ConnKind::Server => global.lost_servers.entry(lost.pit.clone()).or_default().push_back(conn),
            ConnKind::Client => global.lost_clients.push_back((conn, expiry)),
        }
        global.lost.insert(conn, Lost { expiry, ..lost });
        if let Some(evicted) = evicted {
            self.expire_lost(evicted);
        }
    }

    /// Shard 0: a lost connection will not return.
    pub(crate) fn expire_lost(&mut self, conn: ConnId) {
        let Some(lost) = self.take_lost(conn) else { return };
        if let Some(global) = &mut self.global {
            global.void_tokens(&lost.tokens);
        }
        self.board.stats.recoveries_expired += 1;
        self.board.post_others(|| Letter::Expired { conn, kind: lost.kind });
        self.on_expired(conn, lost.kind);
        // Every shard hears of the expiry before it can hear of a new connection under the id.
        if let Some(global) = &mut self.global {
            global.ids.release(conn);
        }
        if lost.asked_matcher {
            self.tell_matcher_of_end(conn, &lost.pit);
        }
    }

    /// Takes a lost connection out of all books.
    fn take_lost(&mut self, conn: ConnId) -> Option<Lost> {
        let global = self.global.as_mut()?;
        let lost = global.lost.remove(&conn)?;
        if let Some(key) = lost.expiry {
            self.board.timers.cancel(key);
        }
        match lost.kind {
            ConnKind::Server => {
                if let Some(queue) = global.lost_servers.get_mut(&lost.pit) {
                    queue.retain(|other| *other != conn);
                    if queue.is_empty() {
                        global.lost_servers.remove(&lost.pit);
                    }
                }
            }
            // Found by skipping; compacted when most of it is stale.
            ConnKind::Client => {
                if global.lost_clients.len() > 64 + 2 * global.lost.len() {
                    let lost = &global.lost;
                    global.lost_clients.retain(|&(other, expiry)| is_same_loss(lost, other, expiry));
                }
            }
        }
        Some(lost)
    }

    /// A lost connection will not return: frees its places here.
    pub(crate) fn on_expired(&mut self, conn: ConnId, kind: ConnKind) {
        self.board.lost.remove(&conn);
        if let Some(world) = &mut self.world {
            world.forget_connection(conn);
        }
        let places = self.board.places.remove(&conn).unwrap_or_default();
        failpoint!();
        for id in places {
            let Some(channel) = self.channels.get_mut(&id) else { continue };
            let Some(at) = channel.lost.iter().position(|place| place.conn == conn) else { continue };
            // Only this place; the reference drops those of everybody who is lost.
            let place = channel.lost.remove(at);
            failpoint!();
            if place.was_owner {
                if channel.owner.is_none() && channel.settings.remove_after_owner_removed {
                    self.remove_ownerless(id);
                }
            } else if kind == ConnKind::Client && place.subscription.is_some() {
                channel.notify_unsub(&mut self.board, conn, kind);
            }
        }
    }

    // ---- Return ---------------------------------------------------------------------------------

    /// The lost server whose place a server with this identifier takes: the one that has been lost
    /// longest (A-15).
    pub(crate) fn returning_server(&self, pit: &str) -> Option<ConnId> {
        self.global.as_ref()?.lost_servers.get(pit)?.front().copied()
    }

    /// A client shows a resume token, which stands for the login token of its player. False when
    /// it is good for nothing.
    pub(crate) fn resume(&mut self, token: &[u8], pending: &PendingAuth) -> bool {
        let Some(global) = &mut self.global else { return false };
        let Some(old) = global.session_of(token, &pending.pit) else { return false };
        let pending = PendingAuth { token: Some(token.to_vec()), ..pending.clone() };
        if global.lost.contains_key(&old) {
            self.resume_as(old, &pending);
            return true;
        }
        // Requests of several shards come in any order: a client has given up the connection that
        // it opened before another one.
        let order = |conn| global.entries.get(&conn).map(|entry| entry.order);
        let waiting = global.superseding.get(&old).and_then(|waiting| order(waiting.conn));
        if order(pending.conn) < order(old).max(waiting) {
            self.board.close(pending.conn, crate::CloseReason::Superseded);
            return true;
        }
        // The network has not noticed yet that the older connection is dead: close it and take over
        // then.
        if let Some(waiting) = global.entries.get_mut(&pending.conn) {
            waiting.pending = true;
        }
        let before = global.superseding.insert(old, pending);
        for conn in [Some(old), before.map(|before| before.conn)].into_iter().flatten() {
            self.board.close(conn, crate::CloseReason::Superseded);
        }
        true
    }

    pub(crate) fn resume_as(&mut self, old: ConnId, pending: &PendingAuth) {
        let Some(global) = &mut self.global else { return };
        let Some(entry) = global.entries.get_mut(&pending.conn) else { return };
        entry.pending = false;
        // Kept places are bounded: what it wanted to resume may have given way already.
        let Some(pit) = global.lost.get(&old).map(|lost| lost.pit.clone()) else {
            self.log_in_after_all(pending);
            return;
        };
        // The ban may have come while the older connection was closed.
        if self.turns_away(pending.conn, &pit, &Subject::player(&pit)) {
            return;
        }
        let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&pending.conn))
        else {
            return;
        };
        entry.authenticated = true;
        entry.pit = pit;
        self.board.stats.kind_mut(ConnKind::Client).authenticated += 1;
        self.recover(pending.conn, old, pending.head, pending.token.as_deref());
    }

    /// A client cannot resume what it wanted to: its login is an ordinary one.
    pub(crate) fn log_in_after_all(&mut self, pending: &PendingAuth) {
        let Some(global) = &mut self.global else { return };
        let Some(entry) = global.entries.get_mut(&pending.conn) else { return };
        entry.pending = false;
        let login = PendingAuth { token: None, ..pending.clone() };
        if let Err(refusal) = self.log_in(login, ConnKind::Client, false) {
            self.board.refuse(refusal);
        }
    }

    /// Shard 0: the authenticated connection `fresh`, a client with this resume token or a server,
    /// takes the place of `old`.
    pub(crate) fn recover(&mut self, fresh: ConnId, old: ConnId, head: Head, token: Option<&[u8]>) {
        self.as_whole(|shard| shard.take_place(fresh, old, head, token));
    }

    fn take_place(&mut self, fresh: ConnId, old: ConnId, head: Head, token: Option<&[u8]>) {
        let Some(lost) = self.take_lost(old) else { return };
        let Some(global) = &mut self.global else { return };
        global.void_tokens(&lost.tokens);
        let Some(mut entry) = global.entries.remove(&fresh) else { return };
        failpoint!();
        let shard = entry.shard;
        entry.accepted_as = Some(fresh);
        entry.channels += lost.channels;
        entry.asked_matcher |= lost.asked_matcher;
        global.entries.insert(old, entry);
        for listed in global.directory.values_mut() {
            if listed.creator == Some(fresh) {
                listed.creator = Some(old);
            }
        }
        match lost.kind {
            ConnKind::Server => self.board.stats.servers_recovered += 1,
            ConnKind::Client => self.board.stats.clients_resumed += 1,
        }
        self.admit(fresh, true);
        self.board.post_others(|| Letter::Recovered { fresh, old, kind: lost.kind, shard });
        self.on_recovered(fresh, old, lost.kind, shard);

        let global = self.global.as_mut();
        let resume_token = global.zip(token).map(|(global, token)| global.reissue_token(old, token));
        let resume_token = resume_token.unwrap_or_default();
        let result = AuthResultMessage {
            should_recover: true,
            resume_token,
            ..self.auth_result(AuthResult::Successful, old)
        };
        self.send_auth_result(old, head, result);

        let count = self.board.count;
        let timer =
            self.board.timers.insert(self.board.now + self.board.config.recovery.settle, Timer::Settle(old));
        if let Some(global) = &mut self.global {
            global
                .settling
                .insert(old, Settling { fresh, outstanding: count, rested: false, timer: Some(timer) });
        }
        // The shard that handles its bytes got the result above before it hears this, and so does
        // every other shard before anything that it sends there.
        self.board.post(shard, Letter::Restore { conn: old, fresh });
        for other in (0..count).map(ShardIndex).filter(|other| *other != shard) {
            self.board.post(other, Letter::Restore { conn: old, fresh });
        }
    }

    /// `fresh` goes by the name of `old` from now on.
    pub(crate) fn on_recovered(&mut self, fresh: ConnId, old: ConnId, kind: ConnKind, shard: ShardIndex) {
        if let Some(before) = self.board.peers.get(&old) {
            // The news of its end is still on its way from the shard that handled its bytes.
            self.on_closed((old, before.accepted), kind, true, crate::CloseReason::EndOfStream);
        }
        self.board.lost.remove(&old);
        let Some(peer) = self.board.peers.remove(&fresh) else {
            self.board.lost.remove(&fresh);
            self.board.lost.insert(old, kind);
            // It has closed before its shard could know its new name. Said again under that name,
            // the closure frees the places once more; who has not heard of it yet hears of the
            // recovery first.
            if shard == self.board.index {
                let closed = (old, fresh);
                self.tell_closed(closed, kind, !self.draining, crate::CloseReason::EndOfStream);
            }
            return;
        };
        // Nothing that happened to the fresh id carries over.
        self.leave_channels(fresh, peer.kind, false);
        let peer = crate::switchboard::Peer { recovering: true, full: false, ..peer };
        self.board.peers.insert(old, peer);
        self.board.restoring.insert(old, MessageBatch::default());
        if peer.shard == self.board.index
            && let Some(conn) = self.board.conns.get_mut(peer.slot as usize)
        {
            conn.id = old;
            conn.has_answer = kind == ConnKind::Server;
            conn.held.clear();
            let mut renamed = conn.renamed.take().unwrap_or_else(|| Renamed::of(fresh));
            renamed.by.push(self.board.index);
            conn.renamed = Some(renamed);
            self.board.settle_renamed(peer.slot);
        } else if self.board.index != ShardIndex::FIRST {
            self.board.post(shard, Letter::Renamed { fresh, old, from: self.board.index });
        }
    }

    /// Gives a returned connection its places in the channels of this shard. Its messages, which
    /// may come first, have waited for that.
    pub(crate) fn on_restore(&mut self, conn: ConnId, fresh: ConnId) {
        let waiting = self.board.restoring.remove(&conn);
        self.as_whole(|shard| shard.restore_places(conn));
        self.board.post(ShardIndex::FIRST, Letter::Restored { conn, fresh });
        self.settle_interest(conn);
        if let Some(waiting) = waiting {
            self.handle_letter(Letter::Messages(waiting));
        }
    }

    fn restore_places(&mut self, conn: ConnId) {
        // The places of one that has closed again meanwhile stay where they are.
        let live = self.board.peers.contains_key(&conn);
        let places: SmallVec<[ChannelId; 4]> =
            self.board.places.get(&conn).filter(|_| live).cloned().unwrap_or_default();
        for id in places {
            let version =
                self.world.as_ref().and_then(|world| world.version_of(id)).map_or(0, |count| count + 1);
            let board = &mut self.board;
            let Some(channel) = self.channels.get_mut(&id) else { continue };
            let Some(at) = channel.lost.iter().position(|place| place.conn == conn) else { continue };
            let place = channel.lost.remove(at);
            let owns = place.was_owner && channel.owner.is_none();
            if owns {
                channel.set_owner(board, Some(conn));
            }
            channel.restore(board, place, version);
            // Distances have changed meanwhile.
            self.rate(conn, id);
            if owns && id == ChannelId::GLOBAL {
                self.announce_global_owner(Some(conn));
            }
        }
    }

    /// Shard 0: a shard has restored everything.
    pub(crate) fn on_restored(&mut self, conn: ConnId, fresh: ConnId) {
        let Some(settling) = self.global.as_mut().and_then(|global| global.settling.get_mut(&conn)) else {
            return;
        };
        // It may have been lost and have returned again since: that is another recovery.
        if settling.fresh != fresh {
            return;
        }
        settling.outstanding -= 1;
        if settling.outstanding == 0 && settling.rested {
            self.end_recovery(conn);
        }
    }

    /// Shard 0: the shortest time of a recovery has passed.
    pub(crate) fn on_settle_timer(&mut self, conn: ConnId) {
        let Some(settling) = self.global.as_mut().and_then(|global| global.settling.get_mut(&conn)) else {
            return;
        };
        settling.timer = None;
        settling.rested = true;
        if settling.outstanding == 0 {
            self.end_recovery(conn);
        }
    }

    fn end_recovery(&mut self, conn: ConnId) {
        if let Some(global) = &mut self.global {
            global.settling.remove(&conn);
        }
        let head = Head::new(ChannelId::GLOBAL, MessageType::RecoveryEnd as u32);
        self.board.send(conn, head, &EndRecoveryMesssage {});
        self.board.post_others(|| Letter::Settled { conn });
        self.on_settled(conn);
    }

    /// The recovery of a connection has ended: channels it owns say so. Only those (the reference
    /// says it in all).
    pub(crate) fn on_settled(&mut self, conn: ConnId) {
        if let Some(peer) = self.board.peers.get_mut(&conn) {
            peer.recovering = false;
        }
        let places = self.board.places.get(&conn).cloned().unwrap_or_default();
        for id in places {
            let Some(channel) = self.channels.get(&id) else { continue };
            if channel.owner == Some(conn) && channel.settings.send_owner_lost_and_recovered {
                let head = Head {
                    broadcast: ALL_BUT_OWNER,
                    ..Head::new(id, MessageType::ChannelOwnerRecovered as u32)
                };
                let not_owner = |sub: &crate::channel::Subscription| sub.address.conn != conn;
                channel.broadcast(&mut self.board, head, &ChannelOwnerRecoveredMessage {}, not_owner);
            }
        }
        self.settle_owners(conn);
    }
}

impl Channel {
    /// Tells the owner that somebody else is no longer subscribed.
    fn notify_unsub(&self, board: &mut Switchboard, conn: ConnId, kind: ConnKind) {
        if let Some(owner) = self.owner.filter(|owner| *owner != conn) {
            let head = Head::new(self.id, MessageType::UnsubFromChannel as u32);
            board.send(owner, head, &self.unsub_result(conn, kind));
        }
    }

    /// Subscribes a returned connection as it was and sends it the channel as it is.
    fn restore(&mut self, board: &mut Switchboard, place: LostPlace, version: u64) {
        let Some((mut options, rate_by, since)) = place.subscription else { return };
        let Some(address) = board.address(place.conn) else { return };
        options.skip_first = true;
        let (wire_options, sub_options) = (options.to_wire(), options.clone());
        // Since that is how the state below and the first delta fit together.
        self.insert(board, address, place.kind, options, rate_by, since);

        let data = self
            .data
            .as_ref()
            .filter(|_| self.subscription(place.conn).is_some_and(|sub| sub.options.can_read()));
        let (type_url, plan, value) = match data {
            Some(data) => {
                let plan = data.content.plan();
                // A game server recovers the whole; what a mask hides from a client stays hidden.
                let is_masked = place.kind == ConnKind::Client;
                let mask = is_masked.then(|| compile_mask(plan, &sub_options.masks)).flatten();
                let mut value = Vec::new();
                data.content.encode(mask.as_deref(), &mut value);
                (data.type_url.to_string(), Some(Arc::clone(data.content.plan())), value)
            }
            None => (String::new(), None, Vec::new()),
        };
        let keeps_objects = board.config.unreal_objects
            && matches!(self.channel_type, ChannelType::GLOBAL | ChannelType::SUBWORLD);
        let objects = if keeps_objects { self.recovery_objects() } else { Vec::new() };
        let unix_ns = board.unix_start_ns.saturating_add(since.as_nanos());
        let message = |part: Option<Vec<u8>>, objects: Option<&Vec<u8>>| ChannelDataRecoveryMessage {
            channel_id: self.id.0,
            channel_type: self.channel_type.0.cast_signed(),
            metadata: self.metadata.clone(),
            owner_conn_id: self.owner.map_or(0, |owner| owner.0),
            sub_time: i64::try_from(unix_ns).unwrap_or(i64::MAX),
            sub_options: Some(wire_options.clone()),
            channel_data: part.map(|value| any(&type_url, value)),
            recovery_data: objects.map(|value| any(OBJECTS_TYPE_URL, value.clone())),
            version,
        };
        let head = Head::new(self.id, MessageType::RecoveryChannelData as u32);
        // What is over the size of a packet comes in several messages of this type, each complete
        // in itself (A-13); the parts of data and of objects merge to the whole.
        let mut parts = Vec::new();
        let mut is_late = false;
        // The reference tries for ever where there is no data; the peer can do without.
        if let Some(plan) = plan {
            let largest = objects.iter().max_by_key(|part| part.len());
            let rest = message(Some(Vec::new()), largest).encoded_len() + 64;
            let max = PACKET_BYTES_SEND_MAX.saturating_sub(rest).max(1024);
            // A value that fits a packet, but not beside the head, comes with the full state.
            is_late = split(&plan, &value, max, &mut parts).is_err();
        }
        for at in 0..parts.len().max(objects.len()).max(1) {
            let part = parts.get(at).map(|part| part.to_vec());
            board.send(place.conn, head, &message(part, objects.get(at)));
        }
        if is_late && let Some(key) = self.key(place.conn) {
            self.await_full_state(board, key);
            self.arm(board);
        }
    }

    /// The objects of the channel as encoded parts; an empty one if there are none.
    fn recovery_objects(&self) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        let mut part = ChannelRecoveryData::default();
        let mut bytes = 0;
        for (id, object) in &self.objects {
            // Key, tags and lengths take less than 16.
            let len = object.encoded_len() + 16;
            if bytes + len > OBJECTS_BYTES_MAX && bytes > 0 {
                parts.push(std::mem::take(&mut part).encode_to_vec());
                bytes = 0;
            }
            bytes += len;
            part.obj_refs.insert(*id, object.clone());
        }
        parts.push(part.encode_to_vec());
        parts
    }
}

fn any(type_url: &str, value: Vec<u8>) -> prost_types::Any {
    prost_types::Any { type_url: type_url.to_owned(), value }
}
