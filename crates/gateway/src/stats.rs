//! Counters that a shard keeps about itself, as plain numbers. The server publishes them.

use std::collections::BTreeMap;

use crate::ids::ConnKind;
use crate::reason::{AcceptRefusal, CloseReason, Refusal};
use crate::settings::ChannelType;

/// Everything one shard counts. Counters only grow and start at zero; gauges say so.
#[derive(Debug, Clone)]
pub struct Stats {
    kinds: [KindStats; 2],
    closed: [[u64; CloseReason::COUNT]; 2],
    accept_refused: [u64; AcceptRefusal::COUNT],
    refused: [u64; Refusal::COUNT],
    /// Gauge: channels on this shard by type.
    pub channels: BTreeMap<ChannelType, u64>,
    /// Gauge: subscriptions in the channels of this shard.
    pub subscriptions: u64,
    /// Data updates merged into channel data.
    pub updates_merged: u64,
    /// Times a channel's fan-out ran.
    pub fan_out_ticks: u64,
    /// Encodings of full states and deltas for fan-out; with sharing far fewer than
    /// `fan_out_messages`.
    pub fan_out_encodes: u64,
    /// Fan-out messages handed to subscribers' connections.
    pub fan_out_messages: u64,
    /// Bytes of those messages before framing.
    pub fan_out_bytes: u64,
    /// Late fan-out in nanoseconds, summed: executed time minus the nominal time of its tick.
    pub fan_out_lateness_ns: u64,
    /// Latest fan-out of all, in nanoseconds.
    pub fan_out_lateness_ns_max: u64,
    /// User-space messages forwarded, counted once per recipient.
    pub forwarded: u64,
    /// State updates that a slow reader did not get, replaced by a full state later.
    pub state_dropped: u64,
    /// State updates sent in a way in which they may get lost; a full state follows.
    pub state_loose: u64,
    /// Full states sent to readers that missed updates, or may have missed some.
    pub resyncs: u64,
    /// Channels whose fan-out was made anew after a panic.
    pub channels_healed: u64,
    /// Updates folded together because a channel's backlog was over its bound.
    pub updates_folded: u64,
    /// Mail sent to other shards.
    pub mail_sent: u64,
    /// Servers that returned to their place.
    pub servers_recovered: u64,
    /// Clients that resumed their session.
    pub clients_resumed: u64,
    /// Lost connections whose time to return ran out.
    pub recoveries_expired: u64,
    /// Bans pronounced.
    pub bans: u64,
    /// Areas of interest set.
    pub interest_updates: u64,
    /// Entity channels created.
    pub entities_created: u64,
    /// Entities that changed their cell.
    pub handovers: u64,
    /// Those of them, and of entities taken over with their cell, that changed their owner.
    pub handovers_across_servers: u64,
    /// Handovers that were refused at first (no such cell yet, a locked group) and happened later.
    pub handovers_delayed: u64,
    /// The time from refusal to handover in nanoseconds, summed over `handovers_delayed`.
    pub handover_delay_ns: u64,
    /// Handover payloads encoded: at most two per pair of cells, whatever the number of
    /// subscribers.
    pub handover_encodes: u64,
    /// Subscriptions that network level of detail put into a band, by band: 0 is the nearest, the
    /// last is beyond all.
    pub lod_changes: Vec<u64>,
    /// Cells that the load balancer moved.
    pub cells_moved: u64,
    /// Entities too large for a handover message, sent through their channels instead.
    pub handovers_oversize: u64,
}

/// Counters of one kind of connection.
#[derive(Debug, Clone, Default)]
pub struct KindStats {
    /// Gauge: live connections whose bytes this shard handles.
    pub connections: u64,
    /// Connections that authenticated.
    pub authenticated: u64,
    /// Messages allowed by the state machine and handed to their channel.
    pub messages_in: u64,
    /// Messages put into output frames.
    pub messages_out: u64,
    /// Packets decoded.
    pub packets_in: u64,
    /// Packets written.
    pub packets_out: u64,
    /// Reads that ended inside a frame.
    pub packets_fragmented: u64,
    /// Bytes received, tags included.
    pub bytes_in: u64,
    /// Bytes taken by the transport, tags included.
    pub bytes_out: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            kinds: Default::default(),
            closed: [[0; CloseReason::COUNT]; 2],
            accept_refused: [0; AcceptRefusal::COUNT],
            refused: [0; Refusal::COUNT],
            channels: BTreeMap::new(),
            subscriptions: 0,
            updates_merged: 0,
            fan_out_ticks: 0,
            fan_out_encodes: 0,
            fan_out_messages: 0,
            fan_out_bytes: 0,
            fan_out_lateness_ns: 0,
            fan_out_lateness_ns_max: 0,
            forwarded: 0,
            state_dropped: 0,
            state_loose: 0,
            resyncs: 0,
            channels_healed: 0,
            updates_folded: 0,
            mail_sent: 0,
            servers_recovered: 0,
            clients_resumed: 0,
            recoveries_expired: 0,
            bans: 0,
            interest_updates: 0,
            entities_created: 0,
            handovers: 0,
            handovers_delayed: 0,
            handover_delay_ns: 0,
            handovers_across_servers: 0,
            handover_encodes: 0,
            handovers_oversize: 0,
            lod_changes: Vec::new(),
            cells_moved: 0,
        }
    }
}

impl Stats {
    /// Counters of a kind of connection.
    #[must_use]
    pub fn kind(&self, kind: ConnKind) -> &KindStats {
        &self.kinds[kind.index()]
    }

    /// Connections of a kind closed for a reason.
    #[must_use]
    pub fn closed(&self, kind: ConnKind, reason: CloseReason) -> u64 {
        self.closed[kind.index()][reason.index()]
    }

    /// Connections not accepted for a reason.
    #[must_use]
    pub fn accept_refused(&self, reason: AcceptRefusal) -> u64 {
        self.accept_refused[reason.index()]
    }

    /// Requests refused for a reason.
    #[must_use]
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason.index()]
    }

    /// Adds the counters of a shard that is gone. They only grow; what it had is no more.
    pub fn retire(&mut self, gone: &Self) {
        let mut gone = gone.clone();
        gone.subscriptions = 0;
        gone.channels.clear();
        gone.kinds.iter_mut().for_each(|kind| kind.connections = 0);
        self.add(&gone);
    }

    /// Adds another shard's counters, for figures about the whole process.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.connections += theirs.connections;
            mine.authenticated += theirs.authenticated;
            mine.messages_in += theirs.messages_in;
            mine.messages_out += theirs.messages_out;
            mine.packets_in += theirs.packets_in;
            mine.packets_out += theirs.packets_out;
            mine.packets_fragmented += theirs.packets_fragmented;
            mine.bytes_in += theirs.bytes_in;
            mine.bytes_out += theirs.bytes_out;
        }
        let sum = |mine: &mut [u64], theirs: &[u64]| mine.iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        for (mine, theirs) in self.closed.iter_mut().zip(&other.closed) {
            sum(mine, theirs);
        }
        sum(&mut self.accept_refused, &other.accept_refused);
        sum(&mut self.refused, &other.refused);
        for (&channel_type, count) in &other.channels {
            *self.channels.entry(channel_type).or_default() += count;
        }
        self.subscriptions += other.subscriptions;
        self.updates_merged += other.updates_merged;
        self.fan_out_ticks += other.fan_out_ticks;
        self.fan_out_encodes += other.fan_out_encodes;
        self.fan_out_messages += other.fan_out_messages;
        self.fan_out_bytes += other.fan_out_bytes;
        self.fan_out_lateness_ns += other.fan_out_lateness_ns;
        self.fan_out_lateness_ns_max = self.fan_out_lateness_ns_max.max(other.fan_out_lateness_ns_max);
        self.forwarded += other.forwarded;
        self.state_dropped += other.state_dropped;
        self.state_loose += other.state_loose;
        self.resyncs += other.resyncs;
        self.channels_healed += other.channels_healed;
        self.updates_folded += other.updates_folded;
        self.mail_sent += other.mail_sent;
        self.servers_recovered += other.servers_recovered;
        self.clients_resumed += other.clients_resumed;
        self.recoveries_expired += other.recoveries_expired;
        self.bans += other.bans;
        self.interest_updates += other.interest_updates;
        self.entities_created += other.entities_created;
        self.handovers += other.handovers;
        self.handovers_delayed += other.handovers_delayed;
        self.handover_delay_ns += other.handover_delay_ns;
        self.handovers_across_servers += other.handovers_across_servers;
        self.handover_encodes += other.handover_encodes;
        self.handovers_oversize += other.handovers_oversize;
        for (band, changes) in other.lod_changes.iter().enumerate() {
            *self.lod_change(band) += changes;
        }
        self.cells_moved += other.cells_moved;
    }

    pub(crate) fn kind_mut(&mut self, kind: ConnKind) -> &mut KindStats {
        &mut self.kinds[kind.index()]
    }

    /// Subscriptions that came into a band of network level of detail.
    pub(crate) fn lod_change(&mut self, band: usize) -> &mut u64 {
        if self.lod_changes.len() <= band {
            self.lod_changes.resize(band + 1, 0);
        }
        &mut self.lod_changes[band]
    }

    pub(crate) fn count_closed(&mut self, kind: ConnKind, reason: CloseReason) {
        self.closed[kind.index()][reason.index()] += 1;
    }

    pub(crate) fn count_accept_refused(&mut self, reason: AcceptRefusal) {
        self.accept_refused[reason.index()] += 1;
    }

    pub(crate) fn count_refused(&mut self, reason: Refusal) {
        self.refused[reason.index()] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up() {
        let (mut one, mut two) = (Stats::default(), Stats::default());
        one.kind_mut(ConnKind::Client).messages_in = 3;
        one.count_refused(Refusal::Access);
        one.channels.insert(ChannelType::GLOBAL, 1);
        two.kind_mut(ConnKind::Client).messages_in = 4;
        two.count_refused(Refusal::Access);
        two.count_closed(ConnKind::Server, CloseReason::EndOfStream);
        two.channels.insert(ChannelType::GLOBAL, 2);
        two.fan_out_lateness_ns_max = 9;
        one.add(&two);
        assert_eq!(one.kind(ConnKind::Client).messages_in, 7);
        assert_eq!(one.refused(Refusal::Access), 2);
        assert_eq!(one.closed(ConnKind::Server, CloseReason::EndOfStream), 1);
        assert_eq!(one.channels[&ChannelType::GLOBAL], 3);
        assert_eq!(one.fan_out_lateness_ns_max, 9);
    }
}
