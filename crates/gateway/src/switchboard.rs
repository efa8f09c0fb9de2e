//! Access to connections for all parts of a shard: the table of all live connections, the outboxes
//! of this shard's own, and the mail to other shards.

use core::mem;
use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;
use smallvec::SmallVec;
use throng_spatial::Cell;
use throng_stdx::{Instant, TimerWheel};
use throng_wire::frame::PACKET_BYTES_SEND_MAX;
use throng_wire::{
    MessagePack, entry_len_with, forward_entry_len, write_entry, write_forward_entry, write_message_entry,
};

use crate::config::Config;
use crate::connection::{Connection, Lag, Renamed};
use crate::effect::{Effect, SecurityEvent};
use crate::failpoint::failpoint;
use crate::ids::{ChannelId, ConnHandle, ConnId, ConnKind, IdHasher, IdMap, ShardIndex};
use crate::mail::{EntryBatch, Head, Letter, MessageBatch, Payload, State};
use crate::outbox::{Backlog, EntryBytes, LOOSE_BYTES_MAX, Spares};
use crate::reason::{CloseReason, Refusal};
use crate::stats::Stats;

/// A live connection as every shard knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// The id that it was accepted under, which tells it from an earlier connection of its session.
    pub(crate) accepted: ConnId,
    pub(crate) kind: ConnKind,
    /// Which shard handles its bytes.
    pub(crate) shard: ShardIndex,
    /// Where in that shard's slab; only that shard uses it.
    pub(crate) slot: u32,
    /// It has returned and RECOVERY_END has not been sent.
    pub(crate) recovering: bool,
    /// A client with as many subscriptions as it may have.
    pub(crate) full: bool,
}

/// Where to find a recipient without a look-up; kept by channels for their subscribers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) conn: ConnId,
    pub(crate) shard: ShardIndex,
    pub(crate) slot: u32,
}

/// What a timer of the shard is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Fan-out of a channel.
    Channel(ChannelId),
    /// The deadline of a connection, by the driver's name.
    Connection(ConnHandle),
    /// The recovery of a connection may end (shard 0).
    Settle(ConnId),
    /// A lost connection has not returned (shard 0).
    Expire(ConnId),
    /// A failed login of this connection is answered (shard 0).
    Answer(ConnId),
    /// The load balancer looks at the loads (shard 0).
    Balance,
}

#[derive(Debug)]
pub(crate) struct Switchboard {
    pub(crate) config: Arc<Config>,
    pub(crate) index: ShardIndex,
    pub(crate) count: u16,
    /// The time of the input being handled.
    pub(crate) now: Instant,
    pub(crate) unix_start_ns: u64,
    /// Time for which a recording was named last, in nanoseconds since 1970.
    pub(crate) recording_ns: u64,
    pub(crate) stats: Stats,
    /// The channel that the input being handled is about, as far as it is about one.
    pub(crate) at_hand: Option<ChannelId>,
    /// The channel whose subscriptions the input has changed last.
    pub(crate) changing: Option<ChannelId>,
    /// The channel that is being made, or GLOBAL while it is claimed; and the creator.
    pub(crate) creating: Option<(ChannelId, ConnId)>,
    /// The object that is being destroyed, and the channel that its DESTROY is sent to.
    pub(crate) destroying: Option<(ChannelId, ChannelId)>,
    /// Changes that count as a whole only, have begun and have not ended.
    pub(crate) halfway: u32,
    pub(crate) hasher: IdHasher,
    pub(crate) timers: TimerWheel<Timer>,
    pub(crate) global_owner: Option<ConnId>,
    /// Every live connection of the process.
    pub(crate) peers: IdMap<ConnId, Peer>,
    /// This shard's connections by the driver's name.
    pub(crate) handles: IdMap<ConnHandle, u32>,
    pub(crate) conns: Slab<Connection>,
    /// Channels of this shard in which a connection, live or lost, is subscribed or owner, in
    /// ascending order.
    pub(crate) places: IdMap<ConnId, SmallVec<[ChannelId; 4]>>,
    /// Connections of any shard that are lost and may return.
    pub(crate) lost: IdMap<ConnId, ConnKind>,
    /// Messages of connections that have returned and wait for their places on this shard. Empty
    /// nearly always.
    pub(crate) restoring: IdMap<ConnId, MessageBatch>,
    /// Letters from this shard to itself, handled after the current input.
    pub(crate) inbox: VecDeque<Letter>,
    /// Connections to close after the current input, by the driver's name.
    doomed: Vec<ConnHandle>,
    writable: VecDeque<ConnHandle>,
    effects: VecDeque<Effect>,
    /// Letters on their way, in the order in which they must be polled.
    mail: VecDeque<(ShardIndex, Letter)>,
    /// Letters polled so far: `mail[i]` has the number `polled + i`.
    polled: u64,
    /// Number of the newest letter per destination, for batching.
    newest: Vec<Option<u64>>,
    /// Recipients per shard of the delivery being prepared; empty between uses.
    recipients: Vec<Vec<ConnId>>,
    /// Buffers for outboxes that are filled next.
    pub(crate) spares: Spares,
    /// Bytes of the entries that this shard has made and that still exist.
    pub(crate) entries: EntryBytes,
    /// Output that waits for clients of this shard.
    pub(crate) backlog: Backlog,
}

/// A batch letter takes further entries up to this size: large enough to make the cost per letter
/// vanish, small enough that the receiver starts early.
const BATCH_BYTES: usize = 64 << 10;

/// Receivers of one payload, sorted by shard once for many payloads. 4 bytes per member beside the
/// 24 of the member, 8 on the home of the channel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recipients {
    /// Slots of this shard.
    pub(crate) local: Box<[(u32, ConnId)]>,
    pub(crate) remote: SmallVec<[(ShardIndex, Arc<[ConnId]>); 4]>,
}

impl Switchboard {
    pub(crate) fn new(
        config: Arc<Config>,
        index: ShardIndex,
        count: u16,
        hasher: IdHasher,
        unix_start_ns: u64,
    ) -> Self {
        let shards = usize::from(count);
        let mut stats = Stats::default();
        if let Some(lod) = &config.spatial.lod {
            // Every band counts from zero, the one beyond the last distance too.
            stats.lod_change(lod.bands.len());
        }
        Self {
            config,
            index,
            count,
            now: Instant::ZERO,
            unix_start_ns,
            recording_ns: 0,
            stats,
            at_hand: None,
            changing: None,
            creating: None,
            destroying: None,
            halfway: 0,
            hasher,
            timers: TimerWheel::new(),
            global_owner: None,
            peers: IdMap::with_hasher(hasher),
            handles: IdMap::with_hasher(hasher),
            conns: Slab::new(),
            places: IdMap::with_hasher(hasher),
            lost: IdMap::with_hasher(hasher),
            restoring: IdMap::with_hasher(hasher),
            inbox: VecDeque::new(),
            doomed: Vec::new(),
            writable: VecDeque::new(),
            effects: VecDeque::new(),
            mail: VecDeque::new(),
            polled: 0,
            newest: vec![None; shards],
            recipients: vec![Vec::new(); shards],
            spares: Spares::default(),
            entries: EntryBytes::default(),
            backlog: Backlog::default(),
        }
    }

    // ---- Sending to connections -----------------------------------------------------------------

    /// Sends a message to a connection. False when there is no such connection or the message fits
    /// no packet.
    pub(crate) fn send(&mut self, to: ConnId, head: Head, body: &impl prost::Message) -> bool {
        let pack = head.pack(&[]);
        let len = entry_len_with(&pack, body.encoded_len());
        self.push(to, len, |out| write_message_entry(out, &pack, body))
    }

    /// Sends a message on unchanged.
    pub(crate) fn relay(&mut self, to: ConnId, head: Head, body: &[u8]) -> bool {
        let pack = head.pack(body);
        self.push(to, entry_len_with(&pack, body.len()), |out| write_entry(out, &pack))
    }

    /// Sends what a client sent, wrapped as `ServerForwardMessage`.
    pub(crate) fn forward(&mut self, to: ConnId, head: Head, client: ConnId, payload: &[u8]) -> bool {
        let pack = head.pack(&[]);
        let len = forward_entry_len(&pack, client.0, payload.len());
        self.push(to, len, |out| write_forward_entry(out, &pack, client.0, payload))
    }

    #[inline]
    fn push(&mut self, to: ConnId, len: usize, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if len > PACKET_BYTES_SEND_MAX {
            self.refuse(Refusal::Oversize);
            return false;
        }
        let Some(&peer) = self.peers.get(&to) else {
            self.refuse(Refusal::UnknownConnection);
            return false;
        };
        if peer.shard == self.index {
            self.push_local(peer.slot, to, len, write);
        } else {
            self.append(peer.shard, to, write);
        }
        true
    }

    fn push_local(&mut self, slot: u32, id: ConnId, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(conn) = self.conns.get_mut(slot as usize).filter(|conn| conn.id == id) else { return };
        if conn.outbox.is_empty() {
            conn.progressed = self.now;
            self.spares.lend(&mut conn.outbox);
        }
        conn.outbox.push_inline(len, write);
        conn.count_backlog(&mut self.backlog);
        let over = conn.outbox.queued_bytes() > self.config.outbox.hard_bytes[conn.kind.index()];
        self.stats.kind_mut(conn.kind).messages_out += 1;
        Self::mark_writable(&mut self.writable, conn);
        if over {
            self.doom_slot(slot, CloseReason::SlowReader);
        }
    }

    /// An entry that came by mail for one of this shard's connections.
    pub(crate) fn push_entry(&mut self, from: ShardIndex, to: ConnId, entry: &[u8]) {
        if let Some(&peer) = self.peers.get(&to).filter(|peer| peer.shard == self.index)
            && self.conns.get(peer.slot as usize).is_some_and(|conn| conn.is_meant_by(from))
        {
            self.push_local(peer.slot, to, entry.len(), |out| out.extend_from_slice(entry));
        }
    }

    /// Gives one payload to several connections.
    pub(crate) fn deliver(
        &mut self,
        payload: &Payload,
        state: Option<State>,
        to: impl IntoIterator<Item = Address>,
    ) {
        if payload.is_empty() {
            return;
        }
        let mut lists = mem::take(&mut self.recipients);
        for address in to {
            if address.shard == self.index {
                self.deliver_local(address.slot, address.conn, payload, state);
            } else if let Some(list) = lists.get_mut(usize::from(address.shard.0)) {
                list.push(address.conn);
            }
        }
        failpoint!();
        for (shard, list) in lists.iter_mut().enumerate().filter(|(_, list)| !list.is_empty()) {
            // One allocation of the exact size; the list itself keeps its room.
            let conns = list.as_slice().into();
            list.clear();
            let (from, payload) = (self.index, payload.clone());
            self.post(ShardIndex(shard as u16), Letter::Deliver { from, payload, state, conns });
        }
        self.recipients = lists;
    }

    /// Gives one payload to the members of a cohort.
    pub(crate) fn deliver_to_all(&mut self, payload: &Payload, state: Option<State>, to: &Recipients) {
        if payload.is_empty() {
            return;
        }
        for &(slot, conn) in &to.local {
            self.deliver_local(slot, conn, payload, state);
        }
        failpoint!();
        for (shard, conns) in &to.remote {
            let (from, payload, conns) = (self.index, payload.clone(), Arc::clone(conns));
            self.post(*shard, Letter::Deliver { from, payload, state, conns });
        }
    }

    /// Makes new lists for [`Self::deliver`]: a panic in it takes them along.
    pub(crate) fn renew_recipients(&mut self) {
        self.recipients = vec![Vec::new(); usize::from(self.count)];
    }

    /// A payload that came by mail.
    pub(crate) fn deliver_mail(
        &mut self,
        from: ShardIndex,
        payload: &Payload,
        state: Option<State>,
        conns: &[ConnId],
    ) {
        for &to in conns {
            if let Some(&peer) = self.peers.get(&to).filter(|peer| peer.shard == self.index)
                && self.conns.get(peer.slot as usize).is_some_and(|conn| conn.is_meant_by(from))
            {
                self.deliver_local(peer.slot, to, payload, state);
            }
        }
    }

    /// A shard knows the new name of a connection of this shard, perhaps before this shard does.
    pub(crate) fn note_renamed(&mut self, fresh: ConnId, old: ConnId, from: ShardIndex) {
        let is_here = |peer: &&Peer| peer.shard == self.index;
        let peer = self.peers.get(&fresh).or_else(|| self.peers.get(&old)).filter(is_here);
        let Some(slot) = peer.map(|peer| peer.slot) else { return };
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        if conn.id == fresh {
            conn.renamed.get_or_insert_with(|| Renamed::of(fresh)).by.push(from);
        } else if let Some(renamed) = conn.renamed.as_mut().filter(|renamed| renamed.fresh == fresh) {
            renamed.by.push(from);
            self.settle_renamed(slot);
        }
    }

    /// The id that a live connection was accepted under.
    pub(crate) fn accepted_as(&self, conn: ConnId) -> ConnId {
        self.peers.get(&conn).map_or(conn, |peer| peer.accepted)
    }

    /// Forgets the change of a name that all shards know.
    pub(crate) fn settle_renamed(&mut self, slot: u32) {
        // Shard 0 gives the names, and never reports one.
        let others = usize::from(self.count) - usize::from(self.index != ShardIndex::FIRST);
        if let Some(conn) = self.conns.get_mut(slot as usize)
            && conn.renamed.as_ref().is_some_and(|renamed| renamed.by.len() >= others)
        {
            conn.renamed = None;
        }
    }

    /// The whole payload or nothing: a state of many entries is of no use in part.
    #[inline]
    fn deliver_local(&mut self, slot: u32, id: ConnId, payload: &Payload, state: Option<State>) {
        let Some(conn) = self.conns.get_mut(slot as usize).filter(|conn| conn.id == id) else { return };
        let queued = conn.outbox.queued_bytes();
        if let Some(state) = state {
            let lag = if conn.lagging.is_empty() { None } else { conn.lagging.get_mut(&state.channel) };
            if queued > self.config.outbox.state_bytes_max(conn.kind, conn.is_behind) {
                // Superseded state is dropped; a full state follows when there is room.
                self.stats.state_dropped += 1;
                conn.dropped = (conn.dropped.0 + 1, self.now);
                match lag {
                    Some(lag) => {
                        lag.asked &= !state.full;
                        lag.dropped += 1;
                    }
                    None => {
                        let lag = Lag { asked: false, since: self.now, dropped: 1 };
                        conn.lagging.insert(state.channel, lag);
                    }
                }
                self.arm_connection(slot);
                return;
            }
            match lag {
                Some(_) if state.full => {
                    conn.lagging.remove(&state.channel);
                    if conn.lagging.is_empty() {
                        // Who has caught up keeps no table.
                        conn.lagging.shrink_to_fit();
                    }
                }
                Some(lag) => {
                    self.stats.state_dropped += 1;
                    conn.dropped = (conn.dropped.0 + 1, self.now);
                    lag.dropped += 1;
                    return;
                }
                None => {}
            }
            self.stats.fan_out_messages += payload.len() as u64;
            self.stats.fan_out_bytes += payload.iter().map(|entry| entry.len() as u64).sum::<u64>();
        } else if queued > self.config.outbox.hard_bytes[conn.kind.index()] {
            self.doom_slot(slot, CloseReason::SlowReader);
            return;
        }
        if conn.outbox.is_empty() {
            conn.progressed = self.now;
            self.spares.lend(&mut conn.outbox);
        }
        let mut loose = false;
        if let Some(state) = state.filter(|_| conn.outbox.is_loose()) {
            loose = !state.full && matches!(&payload[..], [entry] if entry.len() <= LOOSE_BYTES_MAX);
            conn.note_state(state, loose, self.now + self.config.outbox.repair_interval);
        }
        for entry in payload {
            conn.outbox.push_shared(entry, loose);
        }
        conn.count_backlog(&mut self.backlog);
        self.stats.kind_mut(conn.kind).messages_out += payload.len() as u64;
        Self::mark_writable(&mut self.writable, conn);
        if loose {
            self.stats.state_loose += 1;
            self.arm_connection(slot);
        }
    }

    #[inline]
    fn mark_writable(writable: &mut VecDeque<ConnHandle>, conn: &mut Connection) {
        if !conn.writable {
            conn.writable = true;
            writable.push_back(conn.handle);
        }
    }

    /// Output is left after the transport took some.
    pub(crate) fn writable_again(&mut self, slot: u32) {
        if let Some(conn) = self.conns.get(slot as usize) {
            self.writable.push_back(conn.handle);
        }
    }

    // ---- Mail -----------------------------------------------------------------------------------

    /// Sends a letter; one to this shard is handled after the current input.
    pub(crate) fn post(&mut self, to: ShardIndex, letter: Letter) {
        if to == self.index {
            self.inbox.push_back(letter);
            return;
        }
        self.stats.mail_sent += 1;
        if let Some(newest) = self.newest.get_mut(usize::from(to.0)) {
            *newest = Some(self.polled + self.mail.len() as u64);
        }
        self.mail.push_back((to, letter));
    }

    /// Sends a letter to every other shard; to shard 0 last, so that whatever it does next comes
    /// after the letter everywhere.
    pub(crate) fn post_others(&mut self, letter: impl Fn() -> Letter) {
        for shard in (0..self.count)
            .rev()
            .map(ShardIndex)
            .filter(|shard| *shard != self.index)
            .collect::<SmallVec<[_; 8]>>()
        {
            self.post(shard, letter());
        }
    }

    /// Sends a message on to the home of its channel.
    pub(crate) fn post_message(&mut self, home: ShardIndex, sender: ConnId, head: Head, body: &[u8]) {
        if let Some(Letter::Messages(batch)) = self.newest_letter(home)
            && batch.bytes() < BATCH_BYTES
        {
            batch.push(sender, head, body);
            return;
        }
        let mut batch = MessageBatch::default();
        batch.push(sender, head, body);
        self.post(home, Letter::Messages(batch));
    }

    /// Keeps a message whose sender waits for its places on this shard. False for any other sender.
    #[inline]
    pub(crate) fn hold_back(&mut self, sender: ConnId, head: Head, body: &[u8]) -> bool {
        if self.restoring.is_empty() {
            return false;
        }
        let Some(waiting) = self.restoring.get_mut(&sender) else { return false };
        waiting.push(sender, head, body);
        true
    }

    /// The kind of a connection that has places to return to: it is lost, or waits for them.
    pub(crate) fn away(&self, conn: ConnId) -> Option<ConnKind> {
        let waits = || self.peers.get(&conn).filter(|_| self.restoring.contains_key(&conn));
        self.lost.get(&conn).copied().or_else(|| waits().map(|peer| peer.kind))
    }

    fn append(&mut self, shard: ShardIndex, to: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Letter::Append { batch, .. }) = self.newest_letter(shard)
            && batch.bytes() < BATCH_BYTES
        {
            batch.push(to, write);
            return;
        }
        let mut batch = EntryBatch::default();
        batch.push(to, write);
        self.post(shard, Letter::Append { from: self.index, batch });
    }

    /// The newest letter to a shard that is still here. Adding to it keeps the order per shard.
    fn newest_letter(&mut self, to: ShardIndex) -> Option<&mut Letter> {
        let number = (*self.newest.get(usize::from(to.0))?)?;
        let position = number.checked_sub(self.polled)?;
        self.mail.get_mut(position as usize).map(|(_, letter)| letter)
    }

    // ---- Timers, closing, effects ---------------------------------------------------------------

    /// Makes sure the connection's timer fires at its earliest deadline.
    pub(crate) fn arm_connection(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        let deadline = conn.deadline(&self.config).map(|(at, _)| at);
        let Some(at) = deadline.into_iter().chain(conn.repair_at()).min() else { return };
        match conn.timer {
            Some((armed, _)) if armed <= at => return,
            Some((_, key)) => {
                self.timers.cancel(key);
            }
            None => {}
        }
        conn.timer = Some((at, self.timers.insert(at, Timer::Connection(conn.handle))));
    }

    /// Has a connection of any shard closed.
    pub(crate) fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.close_naming(conn, reason, None);
    }

    /// The same with the name of a world, which the peer learns with the reason.
    pub(crate) fn close_naming(&mut self, conn: ConnId, reason: CloseReason, world: Option<Box<str>>) {
        let Some(&peer) = self.peers.get(&conn) else { return };
        if peer.shard == self.index {
            if let Some(local) = self.conns.get_mut(peer.slot as usize).filter(|local| local.id == conn) {
                local.farewell_world = world;
                self.doom_slot(peer.slot, reason);
            }
        } else {
            self.post(peer.shard, Letter::CloseConn { conn, reason, world });
        }
    }

    /// Marks a connection of this shard for closing after the current input; the first reason
    /// stands.
    pub(crate) fn doom_slot(&mut self, slot: u32, reason: CloseReason) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        if conn.doomed.is_none() {
            conn.doomed = Some(reason);
            self.doomed.push(conn.handle);
        }
    }

    pub(crate) fn next_doomed(&mut self) -> Option<ConnHandle> {
        self.doomed.pop()
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    pub(crate) fn security(&mut self, event: SecurityEvent) {
        self.effects.push_back(Effect::SecurityLog(event));
    }

    pub(crate) fn refuse(&mut self, reason: Refusal) {
        self.stats.count_refused(reason);
    }

    pub(crate) fn unix_now_ns(&self) -> u64 {
        self.unix_start_ns.saturating_add(self.now.as_nanos())
    }

    /// Time for the name of the next recording of this shard: no two have the same.
    pub(crate) fn next_recording_ns(&self) -> u64 {
        self.unix_now_ns().max(self.recording_ns + 1)
    }

    // ---- Places ---------------------------------------------------------------------------------

    /// Notes that a connection has to do with a channel of this shard.
    pub(crate) fn add_place(&mut self, conn: ConnId, channel: ChannelId) {
        let places = self.places.entry(conn).or_default();
        if let Err(at) = places.binary_search(&channel) {
            places.insert(at, channel);
        }
    }

    pub(crate) fn remove_place(&mut self, conn: ConnId, channel: ChannelId) {
        if let Some(places) = self.places.get_mut(&conn) {
            if let Ok(at) = places.binary_search(&channel) {
                places.remove(at);
            }
            if places.is_empty() {
                self.places.remove(&conn);
            }
        }
    }

    /// Cells in which a connection is subscribed or owner, in ascending order. Shard 0.
    pub(crate) fn cells_of<A: smallvec::Array<Item = Cell>>(&self, conn: ConnId) -> SmallVec<A> {
        let Some(places) = self.places.get(&conn) else { return SmallVec::new() };
        let (first, end) = (self.config.spatial_channel_start, self.config.entity_channel_start);
        let from = places.partition_point(|place| place.0 < first);
        places[from..].iter().take_while(|place| place.0 < end).map(|place| Cell(place.0 - first)).collect()
    }

    /// The shard that owns a channel.
    pub(crate) fn home(&self, channel: ChannelId) -> ShardIndex {
        channel.home(self.config.spatial_channel_start, self.count)
    }

    /// Tells a connection's own shard that it is, or is no longer, subscribed to a channel of this
    /// shard. Only there all its subscriptions are known, and the channels that it lags behind in.
    pub(crate) fn tell_held(&mut self, conn: ConnId, channel: ChannelId, held: bool) {
        match self.peers.get(&conn) {
            Some(peer) if peer.kind == ConnKind::Client && peer.shard == self.index => {
                self.set_held(conn, channel, held);
            }
            Some(peer) if peer.kind == ConnKind::Client => {
                self.post(peer.shard, Letter::Held { conn, channel, held });
            }
            Some(peer) if !held => self.post(peer.shard, Letter::NotSubscribed { channel, conn }),
            _ => {}
        }
    }

    /// Keeps the subscriptions of a client of this shard, and tells the others when it reaches or
    /// leaves the limit.
    pub(crate) fn set_held(&mut self, conn: ConnId, channel: ChannelId, held: bool) {
        let Some(peer) = self.peers.get_mut(&conn).filter(|peer| peer.shard == self.index) else { return };
        let Some(local) = self.conns.get_mut(peer.slot as usize).filter(|local| local.id == conn) else {
            return;
        };
        if !held {
            local.forget_lag(channel);
        }
        let place = local.held.iter().position(|other| *other == channel);
        match (held, place) {
            (true, None) => local.held.push(channel),
            (false, Some(at)) => {
                local.held.swap_remove(at);
            }
            _ => return,
        }
        let full = local.held.len() >= self.config.limits.subscriptions_per_client;
        if peer.full != full {
            peer.full = full;
            self.post_others(|| Letter::Full { conn, full });
        }
    }

    /// A client of this shard asks for a subscription. False when it would be one too many.
    pub(crate) fn reserve(&mut self, slot: u32, channel: ChannelId) -> bool {
        let Some(conn) = self.conns.get(slot as usize) else { return false };
        if conn.held.contains(&channel) {
            return true;
        }
        let (id, room) = (conn.id, conn.held.len() < self.config.limits.subscriptions_per_client);
        if room {
            self.set_held(id, channel, true);
        }
        room
    }

    pub(crate) fn address(&self, conn: ConnId) -> Option<Address> {
        self.peers.get(&conn).map(|peer| Address { conn, shard: peer.shard, slot: peer.slot })
    }

    // ---- Outputs --------------------------------------------------------------------------------

    pub(crate) fn poll_mail(&mut self) -> Option<(ShardIndex, Letter)> {
        let next = self.mail.pop_front()?;
        self.polled += 1;
        Some(next)
    }

    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(crate) fn poll_writable(&mut self) -> Option<ConnHandle> {
        while let Some(handle) = self.writable.pop_front() {
            // A connection may be closed, or drained by its driver, between becoming writable and
            // being polled.
            let slot = self.handles.get(&handle).copied();
            if slot.and_then(|slot| self.conns.get(slot as usize)).is_some_and(|conn| conn.writable) {
                return Some(handle);
            }
        }
        None
    }
}

impl Head {
    pub(crate) fn new(channel: ChannelId, msg_type: u32) -> Self {
        Self { channel, broadcast: 0, stub: 0, msg_type }
    }

    /// The same for a receiver that sent no request: without the stub.
    pub(crate) fn copy(self) -> Self {
        Self { stub: 0, ..self }
    }

    pub(crate) fn pack(self, body: &[u8]) -> MessagePack<'_> {
        MessagePack {
            channel_id: self.channel.0,
            broadcast: self.broadcast,
            stub_id: self.stub,
            msg_type: self.msg_type,
            body,
        }
    }
}
