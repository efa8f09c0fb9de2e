//! Why did this connection not get this update? Four questions, each answered from the state that
//! decides it: does the subscription let it through and when does it leave ([`Shard::reach_of`]),
//! how do the two lie to each other in the world ([`Shard::sight_of`]), and what holds it up on the
//! way out ([`Shard::queue_of`]). Nothing here is kept for the question's sake but the counts of
//! what was dropped.

use core::time::Duration;

use throng_stdx::Instant;

use crate::ids::{ChannelId, ConnId};
use crate::inspect::SubscriptionView;
use crate::settings::ChannelType;
use crate::shard::Shard;

/// A channel as one connection stands to it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reach {
    /// The channel's type.
    pub channel_type: ChannelType,
    /// It has data, so that there is something to get.
    pub has_data: bool,
    /// The connection owns it.
    pub owner: bool,
    /// The connection is lost, and its place is kept for its return.
    pub lost: bool,
    /// Where its subscription stands; `None` when it has none.
    pub delivery: Option<Delivery>,
}

/// Where a subscription stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The subscription.
    pub subscription: SubscriptionView,
    /// Who chose its interval: `default` (the channel type's settings), `subscriber`, or `distance`
    /// (the gateway).
    pub rate_by: &'static str,
    /// What it gets next is the full state.
    pub full_state: bool,
    /// Updates that it has not had and will get, merged into one message; updates that were merged
    /// before count once.
    pub pending: usize,
    /// Updates of its own since then, which do not come back to it.
    pub own: usize,
    /// When what is pending, or the full state, leaves. In the past when the shard is late.
    pub due: Option<Instant>,
    /// When an update would leave that is handled now; `None` when none would.
    pub next: Option<Instant>,
}

/// How a cell or an entity lies to a connection.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Sight {
    /// The cell that it is or belongs to.
    pub cell: Option<u32>,
    /// That cell's channel.
    pub cell_channel: Option<ChannelId>,
    /// Cells of the connection's latest area of interest.
    pub interest_cells: usize,
    /// How many cells away it is within that area; `None` when it lies outside.
    pub cells_away: Option<u32>,
    /// The entity from which the connection looks.
    pub own_entity: Option<ChannelId>,
    /// World units from there to the entity.
    pub distance: Option<f64>,
    /// Where the gateway sets rates by distance: the band, from 0, and how far it reaches; the last
    /// one reaches everywhere.
    pub band: Option<(usize, Option<f64>)>,
    /// The entity's data has no position that can be read.
    pub placeless: bool,
    /// The entity lies in another cell than it belongs to: its handover was refused and will be
    /// tried again.
    pub handover_waits: bool,
}

/// What waits for one connection on the shard of its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueView {
    /// It has authenticated.
    pub authenticated: bool,
    /// Bytes that wait to be written.
    pub queued_bytes: usize,
    /// Above this, state updates are dropped and made good by a full state.
    pub soft_bytes: usize,
    /// At or below this the full states are asked for.
    pub low_water_bytes: usize,
    /// Above this the connection is closed.
    pub hard_bytes: usize,
    /// How long the transport has taken nothing of what waits; `None` when nothing does.
    pub stalled: Option<Duration>,
    /// After so long without progress the connection is closed.
    pub stall_timeout: Duration,
    /// It misses updates of this channel.
    pub lag: Option<LagView>,
    /// Channels of which it misses updates.
    pub lagging: usize,
    /// State updates of all channels dropped since it was accepted.
    pub dropped: u64,
    /// When the latest of them was.
    pub dropped_at: Option<Instant>,
    /// Updates of this channel were sent in packets that may get lost; a full state at this time
    /// makes that good.
    pub repair_at: Option<Instant>,
}

/// Updates of one channel that a slow reader misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LagView {
    /// Since when.
    pub since: Instant,
    /// Number of them.
    pub dropped: u64,
    /// There was room again and the full state was asked for.
    pub asked: bool,
}

impl Shard {
    /// How a connection of any shard stands to a channel of this one; `None` when the channel is
    /// not here.
    #[must_use]
    pub fn reach_of(&self, now: Instant, conn: ConnId, channel: ChannelId) -> Option<Reach> {
        let channel = self.channels.get(&channel)?;
        Some(Reach {
            channel_type: channel.channel_type,
            has_data: channel.data.is_some(),
            owner: channel.owner == Some(conn),
            lost: channel.lost.iter().any(|place| place.conn == conn),
            delivery: channel.delivery(conn, now),
        })
    }

    /// What waits for a connection of this shard, and what it misses of a channel of any; `None`
    /// when it is not here.
    #[must_use]
    pub fn queue_of(&self, now: Instant, id: ConnId, channel: ChannelId) -> Option<QueueView> {
        let peer = self.board.peers.get(&id).filter(|peer| peer.shard == self.board.index)?;
        let conn = self.board.conns.get(peer.slot as usize).filter(|conn| conn.id == id)?;
        let bounds = &self.board.config.outbox;
        let lag = conn.lagging.get(&channel);
        let repair = conn.unsure.iter().find(|(_, unsure)| *unsure == channel);
        Some(QueueView {
            authenticated: conn.authenticated,
            queued_bytes: conn.outbox.queued_bytes(),
            soft_bytes: bounds.soft_bytes,
            low_water_bytes: bounds.low_water_bytes,
            hard_bytes: bounds.hard_bytes[conn.kind.index()],
            stalled: (!conn.outbox.is_empty()).then(|| now.since(conn.progressed)),
            stall_timeout: bounds.stall_timeout,
            lag: lag.map(|lag| LagView { since: lag.since, dropped: lag.dropped, asked: lag.asked }),
            lagging: conn.lagging.len(),
            dropped: conn.dropped.0,
            dropped_at: (conn.dropped.0 > 0).then_some(conn.dropped.1),
            repair_at: repair.map(|(at, _)| *at),
        })
    }
}
