//! Details for introspection: a channel's subscribers and cohorts, a connection's subscriptions and
//! interest, the world. The values are computed on request.

use throng_spatial::GridConfig;
use throng_stdx::Instant;

use crate::channel::{Channel, Subscription};
use crate::fanout::{CohortView, FanoutPosition};
use crate::ids::{ChannelId, ConnHandle, ConnId, ConnKind};
use crate::settings::ChannelType;
use crate::shard::Shard;
use crate::view::{ClosureView, EntityView};

/// Closures that a shard remembers; the oldest makes room.
pub const CLOSURES_MAX: usize = 256;

/// One subscription at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionView {
    /// The channel.
    pub channel: ChannelId,
    /// Its type.
    pub channel_type: ChannelType,
    /// Subscribed connection.
    pub conn: ConnId,
    /// Server or client.
    pub kind: ConnKind,
    /// The subscriber owns the channel.
    pub owner: bool,
    /// The protocol's `ChannelDataAccess`: 0 none, 1 read, 2 write.
    pub access: i32,
    /// Fan-out interval in milliseconds.
    pub interval_ms: u32,
    /// Fields that it gets; empty for all.
    pub masks: Vec<String>,
    /// Its own updates do not come back to it.
    pub skip_self: bool,
    /// Where it stands: `none`, `full state due`, `in step`, `catching up`.
    pub place: &'static str,
    /// When it subscribed.
    pub since: Instant,
}

/// One channel in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelDetail {
    /// Subscriptions from the offset that was asked for.
    pub subscriptions: Vec<SubscriptionView>,
    /// All cohorts, up to the limit that was asked for.
    pub cohorts: Vec<CohortView>,
    /// Full type name and encoded form of the data, if it has any and is within the bound that was
    /// asked for.
    pub data: Option<(String, Vec<u8>)>,
}

/// A cell of the grid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellView {
    /// Its channel.
    pub channel: ChannelId,
    /// The server index whose region holds it.
    pub server: u32,
    /// The connection that owns it.
    pub owner: Option<ConnId>,
    /// Entities that belong to it.
    pub entities: usize,
    /// Subscribers of its channel.
    pub subscribers: usize,
    /// Updates that wait for fan-out.
    pub backlog: usize,
}

/// The world at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WorldDetail {
    /// The grid; without one there are only entities.
    pub grid: Option<GridConfig>,
    /// By index, row by row from the south-west. Empty without a grid.
    pub cells: Vec<CellView>,
    /// Entities with a position, by channel, up to the limit that was asked for.
    pub entities: Vec<EntityView>,
    /// Entities with a position.
    pub entity_count: usize,
    /// Rates by distance: up to so many world units, so many milliseconds. The last band is
    /// infinitely wide.
    pub bands: Vec<(f64, u32)>,
    /// Entities of a world with a grid whose data has no position that can be read, so that none of
    /// them changes its cell.
    pub placeless: usize,
    /// Types of their data, in the order in which the gateway met them.
    pub placeless_types: Vec<String>,
}

/// What one connection is interested in.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct InterestView {
    /// Cells of its latest area of interest, with their distance in cells.
    pub cells: Vec<(u32, u32)>,
    /// Its entity, if it is the client of one.
    pub entity: Option<EntityView>,
}

impl Shard {
    /// Connections of this shard that were closed lately, oldest first; at most [`CLOSURES_MAX`].
    pub fn closures(&self) -> impl Iterator<Item = &ClosureView> {
        self.closures.iter()
    }

    pub(crate) fn remember_closure(&mut self, closure: ClosureView) {
        if self.closures.len() == CLOSURES_MAX {
            self.closures.pop_front();
        }
        self.closures.push_back(closure);
    }

    /// Whether what arrives next from a connection of this shard begins a frame. `None` when it is
    /// not here.
    #[must_use]
    pub fn reads_at_border(&self, handle: ConnHandle) -> Option<bool> {
        let slot = *self.board.handles.get(&handle)?;
        Some(self.board.conns.get(slot as usize)?.reader.buffered_bytes() == 0)
    }

    /// The driver's name of a connection of this shard, by the name that peers know. Costs a walk
    /// over all of them.
    #[must_use]
    pub fn handle_of(&self, id: ConnId) -> Option<ConnHandle> {
        self.board.conns.iter().find(|(_, conn)| conn.id == id).map(|(_, conn)| conn.handle)
    }

    /// Subscriptions of a connection of any shard in channels of this one, at most `max`.
    #[must_use]
    pub fn subscriptions_of(&self, conn: ConnId, max: usize) -> Vec<SubscriptionView> {
        let Some(places) = self.board.places.get(&conn) else { return Vec::new() };
        let channels = places.iter().filter_map(|id| self.channels.get(id));
        let views =
            channels.filter_map(|channel| Some(SubscriptionView::new(channel, channel.subscription(conn)?)));
        views.take(max).collect()
    }

    /// One channel of this shard. `data_bytes_max` keeps large data from being encoded for nobody's
    /// eyes.
    #[must_use]
    pub fn channel_detail(
        &self,
        id: ChannelId,
        offset: usize,
        limit: usize,
        data_bytes_max: usize,
    ) -> Option<ChannelDetail> {
        let channel = self.channels.get(&id)?;
        let subs = channel.subs.iter().skip(offset).take(limit);
        let small = channel.data.as_ref().is_some_and(|data| data.content.encoded_len() <= data_bytes_max);
        Some(ChannelDetail {
            subscriptions: subs.map(|(_, sub)| SubscriptionView::new(channel, sub)).collect(),
            cohorts: channel.fan.cohort_views().take(limit).collect(),
            data: if small { self.channel_data(id) } else { None },
        })
    }

    /// The world (shard 0), with at most `entities_max` entities. Costs a walk over all cells and
    /// entities.
    #[must_use]
    pub fn world_detail(&self, entities_max: usize) -> Option<WorldDetail> {
        let world = self.world.as_ref()?;
        let config = &self.board.config;
        let regions = self.regions_by_cell().into_iter().zip(world.cell_populations());
        let cells = regions.enumerate().map(|(index, (server, entities))| {
            let channel = config.cell_channel(throng_spatial::Cell(index as u32));
            let live = self.channels.get(&channel);
            CellView {
                channel,
                server,
                owner: live.and_then(|live| live.owner),
                entities,
                subscribers: live.map_or(0, |live| live.subs.len()),
                backlog: live.map_or(0, |live| live.fan.backlog().0),
            }
        });
        let mut entities: Vec<EntityView> = world.entity_views().collect();
        let entity_count = entities.len();
        if entities.len() > entities_max {
            entities.select_nth_unstable_by_key(entities_max, |entity| entity.channel);
            entities.truncate(entities_max);
        }
        let bands = config.spatial.lod.as_ref().map_or_else(Vec::new, |lod| {
            let bands = lod.bands.iter().map(|band| (band.within, band.interval_ms));
            bands.chain([(f64::INFINITY, lod.beyond_interval_ms)]).collect()
        });
        Some(WorldDetail {
            grid: config.spatial.grid.as_ref().map(|grid| *grid.config()),
            cells: cells.collect(),
            entities,
            entity_count,
            bands,
            placeless: world.placeless_count(),
            placeless_types: world.placeless_types(),
        })
    }

    /// What a connection is interested in (shard 0).
    #[must_use]
    pub fn interest_of(&self, conn: ConnId) -> Option<InterestView> {
        let world = self.world.as_ref()?;
        Some(InterestView { cells: world.interest_cells(conn), entity: world.avatar_view(conn) })
    }
}

impl SubscriptionView {
    pub(crate) fn new(channel: &Channel, sub: &Subscription) -> Self {
        Self {
            channel: channel.id,
            channel_type: channel.channel_type,
            conn: sub.address.conn,
            kind: sub.kind,
            owner: channel.owner == Some(sub.address.conn),
            access: sub.options.access,
            interval_ms: sub.options.interval_ms,
            masks: sub.options.masks.to_vec(),
            skip_self: sub.options.skip_self,
            place: match sub.place {
                FanoutPosition::Nowhere => "none",
                FanoutPosition::Waiting { .. } => "full state due",
                FanoutPosition::Member { .. } => "in step",
                FanoutPosition::Joiner { .. } => "catching up",
            },
            since: sub.since,
        }
    }
}
