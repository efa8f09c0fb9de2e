//! Recovery after a panic in the middle of an input: the damaged state, and its repair.
//!
//! A channel is made whole from what stands outside of its fan-out: its subscribers, its owner and
//! its data. All subscribers are notified of their subscriptions again and get a full state then,
//! so that "exactly once" holds for each life of a channel's fan-out; former subscribers are
//! notified of the end of theirs. What lies across channels cannot be guessed: where that is
//! broken, the driver starts the world again, empty ([`Shard::restarted`]).

use std::sync::Arc;

use crate::channel::{Channel, DataState};
use crate::data::ChannelData;
use crate::findings::{Broken, Findings};
use crate::ids::{ChannelId, ConnId, ShardIndex};
use crate::mail::{Head, Letter};
use crate::outbox::Backlog;
use crate::reason::CloseReason;
use crate::shard::Shard;
use crate::switchboard::Switchboard;
use throng_wire::channeldpb::{MessageType, RemoveChannelMessage};

impl Shard {
    /// A change of several channels, and its messages: an owner that does not know what it owns is
    /// as bad as none, so a panic inside is noticed.
    pub(crate) fn as_whole<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.board.halfway += 1;
        let done = change(self);
        self.board.halfway -= 1;
        done
    }

    /// Checks what must hold between inputs, and returns what does not. Costs a walk over
    /// everything.
    #[must_use]
    pub fn check_invariants(&self) -> Vec<Broken> {
        let mut findings = Findings::default();
        for (id, channel) in &self.channels {
            findings.about(Some(*id));
            findings.expect(*id == channel.id, "a channel under another's name");
            findings.expect(self.board.home(*id) == self.board.index, "a channel lives on the wrong shard");
            channel.check_invariants(self.board.index, &mut findings);
            let has_place = |conn| self.board.places.get(&conn).is_some_and(|places| places.contains(id));
            findings.expect(
                channel.subs.iter().all(|(_, sub)| has_place(sub.address.conn)),
                "a subscription without a place",
            );
            findings.expect(channel.owner.is_none_or(has_place), "an owner without a place");
            let lost = channel.lost.iter().map(|lost| lost.conn);
            findings.expect(lost.clone().all(has_place), "a lost connection without a place");
            let is_subscribed = |conn: ConnId| channel.subscription(conn).is_some();
            findings.expect(!lost.clone().any(is_subscribed), "a lost connection that is subscribed");
            let is_live = |owner| self.board.peers.contains_key(&owner);
            findings.expect(channel.owner.is_none_or(is_live), "a channel of a connection that is gone");
        }
        findings.about(None);
        for (conn, places) in &self.board.places {
            for channel in places.iter().filter_map(|id| self.channels.get(id)) {
                findings.about(Some(channel.id));
                findings.expect(channel.involves(*conn), "a place without a subscription");
            }
        }
        findings.about(None);
        let exists = |id: &ChannelId| self.channels.contains_key(id);
        let dangling = self.board.places.values().flatten().find(|id| !exists(id));
        findings.about(dangling.copied());
        findings.expect(dangling.is_none(), "a place in a channel that is gone");
        findings.about(None);
        if let Some(world) = &self.world {
            world.check_invariants(&mut findings, |id| self.channels.contains_key(&id));
            self.check_lists(&mut findings);
        }
        // An interrupted closure leaves the connection in tables from which no later step removes
        // it.
        let is_live = |conn: ConnId| self.board.peers.contains_key(&conn);
        let mut subs = self.channels.values().flat_map(|channel| channel.subs.iter());
        let live = subs.all(|(_, sub)| is_live(sub.address.conn));
        findings.expect(live, "a subscription of a connection that is gone");
        if let Some(global) = &self.global {
            let known = global.entries.keys().all(|conn| is_live(*conn));
            findings.expect(known, "a connection that is gone is registered");
        }
        let subscriptions: usize = self.channels.values().map(|channel| channel.subs.len()).sum();
        findings
            .expect(subscriptions as u64 == self.board.stats.subscriptions, "subscriptions are miscounted");
        let counted: Backlog = self.board.conns.iter().map(|(_, conn)| conn.counted).sum();
        findings.expect(counted == self.board.backlog, "the backlog is miscounted");
        for (slot, conn) in &self.board.conns {
            let handle = self.board.handles.get(&conn.handle);
            findings.expect(handle == Some(&(slot as u32)), "a connection without its handle");
            let peer = self.board.peers.get(&conn.id);
            findings.expect(
                peer.is_some_and(|peer| peer.slot == slot as u32),
                "a connection that other shards do not know",
            );
            findings.expect(conn.doomed.is_none(), "a doomed connection outlives its input");
        }
        let is_lost = self.board.lost.keys().find(|conn| is_live(**conn));
        findings.expect(is_lost.is_none(), "a live connection counts as lost");
        for (conn, peer) in &self.board.peers {
            // Its closure was interrupted: its subscriptions stay, and updates to it go nowhere.
            let is_whole = peer.shard != self.board.index
                || self.board.conns.get(peer.slot as usize).is_some_and(|found| found.id == *conn);
            findings.expect(is_whole, "a peer of this shard without its connection");
        }
        findings.expect(self.board.inbox.is_empty(), "letters to itself are left over");
        findings.expect(self.board.halfway == 0, "a change of several channels stopped halfway");
        findings.broken
    }

    /// Makes whole what a panic has left behind, as far as that is possible; returns what is still
    /// broken then. Call it after a panic in an input, before the next one.
    ///
    /// The channel that was at hand gets a new fan-out. It is removed if its data is damaged or its
    /// creation was interrupted.
    pub fn heal(&mut self) -> Vec<Broken> {
        self.board.renew_recipients();
        let creating = self.board.creating.take();
        let half_made = creating.map(|(id, _)| id).filter(|id| *id != ChannelId::GLOBAL);
        if let Some((id, creator)) = creating {
            self.abandon_creation(id, creator);
        }
        self.finish_destruction();
        let at_hand = [self.board.at_hand.take(), self.board.changing.take(), half_made];
        let broken = self.check_invariants();
        let mut channels: Vec<ChannelId> = broken.iter().filter_map(|broken| broken.channel).collect();
        channels.extend(at_hand.into_iter().flatten());
        channels.sort_unstable();
        channels.dedup();
        // Removals count down what may not have been counted.
        self.recount();
        for id in channels {
            let Some(channel) = self.channels.get_mut(&id) else {
                self.finish_removal(id);
                continue;
            };
            self.board.stats.channels_healed += 1;
            let is_intact = channel.rebuild(&mut self.board) && half_made != Some(id);
            if !is_intact && id != ChannelId::GLOBAL {
                self.remove_channel(id, Head::new(ChannelId::GLOBAL, MessageType::RemoveChannel as u32));
            }
        }
        self.recount();
        self.settle();
        (self.board.at_hand, self.board.changing) = (None, None);
        self.check_invariants()
    }

    /// Counts subscriptions and channels again.
    fn recount(&mut self) {
        let subscriptions: usize = self.channels.values().map(|channel| channel.subs.len()).sum();
        self.board.stats.subscriptions = subscriptions as u64;
        self.board.stats.channels.values_mut().for_each(|count| *count = 0);
        for channel in self.channels.values() {
            *self.board.stats.channels.entry(channel.channel_type).or_default() += 1;
        }
    }

    /// Takes back a creation that was interrupted, whose result may have been sent. Connections
    /// that do not learn of the removal as subscribers are notified of it. No message takes back a
    /// claim of GLOBAL, so it ends with its connection.
    fn abandon_creation(&mut self, id: ChannelId, creator: ConnId) {
        if id == ChannelId::GLOBAL {
            self.board.close(creator, CloseReason::Internal);
            return;
        }
        let head = Head::new(ChannelId::GLOBAL, MessageType::RemoveChannel as u32);
        let channel = self.channels.get(&id);
        let learns = |conn: &ConnId| channel.is_some_and(|channel| channel.subscription(*conn).is_some());
        let owner = self.board.global_owner.filter(|owner| *owner != creator);
        for conn in [Some(creator), owner].into_iter().flatten().filter(|conn| !learns(conn)) {
            self.board.send(conn, head, &RemoveChannelMessage { channel_id: id.0 });
        }
    }

    /// A channel is not there, perhaps because a panic interrupted its end: nothing of it is to
    /// stay.
    fn finish_removal(&mut self, id: ChannelId) {
        let places = self.board.places.iter().filter(|(_, places)| places.contains(&id));
        let head = Head::new(ChannelId::GLOBAL, MessageType::RemoveChannel as u32);
        for conn in places.map(|(conn, _)| *conn).collect::<Vec<_>>() {
            self.board.send(conn, head, &RemoveChannelMessage { channel_id: id.0 });
            self.board.remove_place(conn, id);
            self.board.tell_held(conn, id, false);
        }
        if self.global.is_some() {
            self.channel_removed(id);
        } else {
            self.board.post(ShardIndex::FIRST, Letter::ChannelRemoved { channel: id });
        }
        if self.world.is_some() {
            self.entity_removed(id);
        }
    }

    /// An empty shard in this one's place: its configuration, and nobody and nothing else. `seed`
    /// should differ from the one that this shard was made with.
    #[must_use]
    pub fn restarted(&self, seed: u64) -> Self {
        let board = &self.board;
        let (config, schemas) = (Arc::clone(&board.config), Arc::clone(&self.schemas));
        let mut fresh = Self::new(config, schemas, board.index, board.count, seed, board.unix_start_ns);
        fresh.board.now = board.now;
        // Counters only grow.
        let channels = std::mem::take(&mut fresh.board.stats.channels);
        fresh.board.stats = board.stats.clone();
        fresh.board.stats.subscriptions = 0;
        fresh.board.stats.channels = channels;
        for kind in crate::ids::ConnKind::ALL {
            fresh.board.stats.kind_mut(kind).connections = 0;
        }
        fresh.draining = self.draining;
        fresh
    }
}

impl Channel {
    /// Makes the fan-out anew from the subscribers and the data: all get a full state. False when
    /// the data is damaged.
    fn rebuild(&mut self, board: &mut Switchboard) -> bool {
        self.reset_fan_out(board);
        let intact = match self.data.take() {
            None => true,
            Some(data) => {
                let mut bytes = Vec::new();
                data.content.encode(None, &mut bytes);
                let plan = Arc::clone(data.content.plan());
                match ChannelData::from_bytes(plan, &bytes) {
                    Ok(content) => {
                        self.data = Some(DataState { content, type_url: data.type_url });
                        true
                    }
                    Err(_) => false,
                }
            }
        };
        for (_, sub) in &self.subs {
            let result = self.sub_result(sub.address.conn, sub.kind);
            board.send(sub.address.conn, Head::new(self.id, MessageType::SubToChannel as u32), &result);
        }
        self.restart_fan_out(board);
        // Without its place it would not be given back what it had, and keep it beside what it has
        // then.
        for lost in &self.lost {
            board.add_place(lost.conn, self.id);
        }
        let held = board.places.iter().filter(|(_, places)| places.contains(&self.id));
        let stale: Vec<ConnId> = held.map(|(conn, _)| *conn).filter(|conn| !self.involves(*conn)).collect();
        for conn in stale {
            if let Some(peer) = board.peers.get(&conn) {
                let result = self.unsub_result(conn, peer.kind);
                board.send(conn, Head::new(self.id, MessageType::UnsubFromChannel as u32), &result);
            }
            board.remove_place(conn, self.id);
            board.tell_held(conn, self.id, false);
        }
        intact
    }

    /// True if a connection subscribes to the channel or owns it, now or until it returns.
    fn involves(&self, conn: ConnId) -> bool {
        self.subscription(conn).is_some()
            || self.owner == Some(conn)
            || self.lost.iter().any(|lost| lost.conn == conn)
    }
}
