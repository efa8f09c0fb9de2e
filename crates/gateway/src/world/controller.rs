//! Slots of spatial servers, creation and take-over of their cells, regions and queries. Spec §8.1
//! to §8.5.

use std::sync::Arc;

use prost::Message;
use throng_spatial::{Cell, Point, ServerIndex};
use throng_wire::channeldpb::{
    ChannelDataAccess, ChannelOwnerRecoveredMessage, ChannelSubscriptionOptions, CreateChannelMessage,
    CreateSpatialChannelsResultMessage, MessageType, QuerySpatialChannelMessage,
    QuerySpatialChannelResultMessage, SpatialChannelsReadyMessage, SpatialInfo, SpatialRegion,
    SpatialRegionsUpdateMessage,
};
use throng_wire::frame::PACKET_BYTES_SEND_MAX;

use crate::channel::{Channel, Subscribed, merge_options};
use crate::data::{ChannelData, Update};
use crate::ids::{ChannelId, ConnId, ConnKind};
use crate::mail::Head;
use crate::reason::Refusal;
use crate::registry::Listed;
use crate::requests::{Sender, only_global};
use crate::settings::ChannelType;
use crate::shard::Shard;
use crate::switchboard::Switchboard;

/// Type of a cell's data when the channel settings name none: what handovers carry.
pub(super) const CELL_DATA: &str = "unrealpb.SpatialChannelData";
/// Half of the largest 32-bit float: how far up and down a region reaches, as the reference says
/// it.
const Y_BOUND: f64 = 1.701_411_735e38;
/// Regions in one message: 65,530 bytes hold at least this many of at most 72 bytes each.
const REGIONS_MAX: usize = 900;

impl Shard {
    /// CREATE_CHANNEL or CREATE_SPATIAL_CHANNEL with the type SPATIAL: the sender gets the next
    /// free slot.
    pub(crate) fn on_create_spatial(
        &mut self,
        sender: Sender,
        head: Head,
        request: CreateChannelMessage,
    ) -> Result<(), Refusal> {
        let config = Arc::clone(&self.board.config);
        let (Some(grid), Some(world)) = (&config.spatial.grid, &mut self.world) else {
            return Err(Refusal::SpatialUnavailable);
        };
        if sender.kind != ConnKind::Server
            || !config.permissions.of(sender.kind).create_types.contains(ChannelType::SPATIAL)
        {
            return Err(Refusal::Permission);
        }
        let data = self.schemas.checked_any(request.data)?;
        // What lies in a cell is not for all cells of a region alike to say.
        let is_list = data.as_ref().is_some_and(|(plan, _)| plan.name() == CELL_DATA);
        let board = &mut self.board;
        if is_list && data.as_ref().is_some_and(|(_, bytes)| !bytes.is_empty()) {
            board.refuse(Refusal::EntityId);
        }
        // Slots whose server is gone, for good or not, are free.
        let is_free = |owner: &Option<ConnId>| !owner.is_some_and(|owner| board.peers.contains_key(&owner));
        let free = world.slots.iter().position(|slot| is_free(&slot.owner)).ok_or(Refusal::NoSlot)?;
        let index = ServerIndex(free as u32);
        let cells: Vec<Cell> = world.cells_of(index);
        let Some(global) = &mut self.global else { return Err(Refusal::NotGlobal) };
        let missing =
            cells.iter().filter(|&&cell| !self.channels.contains_key(&config.cell_channel(cell))).count();
        if global.directory.len() + missing > config.limits.channels {
            return Err(Refusal::ChannelsMax);
        }
        let result = CreateSpatialChannelsResultMessage {
            spatial_channel_id: cells.iter().map(|&cell| config.cell_channel(cell).0).collect(),
            metadata: request.metadata,
            owner_conn_id: sender.conn.0,
        };
        let head = Head { msg_type: MessageType::CreateSpatialChannel as u32, ..head };
        if throng_wire::entry_len_with(&head.pack(&[]), result.encoded_len()) > PACKET_BYTES_SEND_MAX {
            return Err(Refusal::Oversize);
        }
        let merge_options = request.merge_options.as_ref().map(merge_options);
        world.slots[free].owner = Some(sender.conn);
        world.spatial.insert(sender.conn);
        world.slots[free].options.clone_from(&request.sub_options);

        let settings = self.settings_of(ChannelType::SPATIAL);
        let data_type = settings.data_type.as_deref().unwrap_or(CELL_DATA);
        let empty = self.schemas.plan(data_type).cloned();
        let (mut taken, mut made) = (Vec::new(), Vec::new());
        for &cell in &cells {
            let id = config.cell_channel(cell);
            let Some(global) = &mut self.global else { return Err(Refusal::NotGlobal) };
            let board = &mut self.board;
            // A channel that exists keeps its data and its subscribers: only the owner changes
            //
            let is_new = !self.channels.contains_key(&id);
            let channel = self.channels.entry(id).or_insert_with(|| {
                *board.stats.channels.entry(ChannelType::SPATIAL).or_default() += 1;
                let listed =
                    Listed { channel_type: ChannelType::SPATIAL, metadata: String::new(), creator: None };
                global.directory.insert(id, listed);
                let settings = Arc::clone(&settings);
                Box::new(Channel::new(id, ChannelType::SPATIAL, settings, board.now, board.hasher))
            });
            if is_new {
                channel.merge_options = merge_options;
                let content = match &data {
                    // A copy for each, which the check has passed.
                    Some((plan, bytes)) if !is_list => ChannelData::from_bytes(Arc::clone(plan), bytes).ok(),
                    _ => empty.as_ref().map(|plan| ChannelData::new(Arc::clone(plan))),
                };
                if let Some(content) = content {
                    channel.set_data(board, content);
                }
            }
            let was_lost = channel.owner_replaced(board, sender.conn);
            if is_new {
                made.push(cell);
            } else {
                taken.push((cell, was_lost));
            }
        }

        for &cell in &made {
            self.list_residents(cell);
        }
        if self.all_slots_taken() {
            self.announce_ready();
        }
        let board = &mut self.board;
        board.send(sender.conn, head, &result);
        if let Some(owner) = board.global_owner.filter(|owner| *owner != sender.conn) {
            board.send(owner, head.copy(), &result);
        }
        for &cell in &cells {
            self.subscribe_server(config.cell_channel(cell), sender.conn, request.sub_options.as_ref());
        }
        for part in self.regions() {
            let head = Head::new(ChannelId::GLOBAL, MessageType::SpatialRegionsUpdate as u32);
            self.board.send(sender.conn, head, &part);
        }
        for (cell, was_lost) in taken {
            self.cell_taken_over(cell, was_lost, sender.conn);
        }
        self.retry_waiting();
        self.show_cells(&made);
        debug_assert!(grid.cell_count() as usize == self.world.as_ref().map_or(0, |world| world.cells.len()));
        Ok(())
    }

    /// A server took over a cell that exists: its entities follow, and subscribers that were told
    /// of the loss of its owner learn that it has one again.
    fn cell_taken_over(&mut self, cell: Cell, was_lost: bool, owner: ConnId) {
        let id = self.board.config.cell_channel(cell);
        if let Some(channel) = self.channels.get(&id)
            && was_lost
            && channel.settings.send_owner_lost_and_recovered
        {
            let head = Head {
                broadcast: super::super::recovery::ALL_BUT_OWNER,
                ..Head::new(id, MessageType::ChannelOwnerRecovered as u32)
            };
            channel.broadcast(&mut self.board, head, &ChannelOwnerRecoveredMessage {}, |sub| {
                sub.address.conn != owner
            });
        }
        self.adopt_entities(cell, owner);
    }

    fn all_slots_taken(&self) -> bool {
        let live = |conn: ConnId| self.board.peers.contains_key(&conn);
        self.world.as_ref().is_some_and(|world| world.slots.iter().all(|slot| slot.owner.is_some_and(live)))
    }

    /// Every slot is taken: servers watch what lies beyond their borders, and everybody concerned
    /// is told.
    fn announce_ready(&mut self) {
        let config = Arc::clone(&self.board.config);
        let (Some(grid), Some(world)) = (&config.spatial.grid, &self.world) else { return };
        let servers: Vec<(ConnId, Option<ChannelSubscriptionOptions>)> =
            world.slots.iter().filter_map(|slot| Some((slot.owner?, slot.options.clone()))).collect();
        for (index, (conn, options)) in servers.iter().enumerate() {
            for cell in grid.border_of(ServerIndex(index as u32)) {
                self.subscribe_server(config.cell_channel(cell), *conn, options.as_ref());
            }
        }
        let server_count = servers.len() as u32;
        let head = Head::new(ChannelId::GLOBAL, MessageType::SpatialChannelsReady as u32);
        for (index, (conn, _)) in servers.iter().enumerate() {
            let message = SpatialChannelsReadyMessage { server_index: index as u32, server_count };
            self.board.send(*conn, head, &message);
        }
        if let Some(owner) = self.board.global_owner {
            // As the reference has it for everybody: the number of servers, which is no server's
            // index.
            let message = SpatialChannelsReadyMessage { server_index: server_count, server_count };
            self.board.send(owner, head, &message);
        }
    }

    /// Subscribes a server to a cell; only the server is told, and only of what is new to it.
    pub(super) fn subscribe_server(
        &mut self,
        id: ChannelId,
        conn: ConnId,
        options: Option<&ChannelSubscriptionOptions>,
    ) {
        let board = &mut self.board;
        let (Some(channel), Some(address)) = (self.channels.get_mut(&id), board.address(conn)) else {
            return;
        };
        // Repeated at every READY: masks must not add up.
        let repeated = channel
            .key(conn)
            .and(options)
            .map(|options| ChannelSubscriptionOptions { data_field_masks: Vec::new(), ..options.clone() });
        let options = repeated.as_ref().or(options);
        if channel.subscribe(board, address, ConnKind::Server, options) != Subscribed::Silently {
            let result = channel.sub_result(conn, ConnKind::Server);
            board.send(conn, Head::new(id, MessageType::SubToChannel as u32), &result);
        }
    }

    /// All regions, in as many messages as fit.
    pub(super) fn regions(&self) -> Vec<SpatialRegionsUpdateMessage> {
        let config = &self.board.config;
        let (Some(grid), Some(world)) = (&config.spatial.grid, &self.world) else { return Vec::new() };
        let regions: Vec<SpatialRegion> = world
            .cells
            .iter()
            .enumerate()
            .map(|(index, state)| {
                let cell = Cell(index as u32);
                let (low, high) = grid.bounds(cell);
                let corner = |at: Point, y| SpatialInfo { x: at.x, y, z: at.z };
                SpatialRegion {
                    min: Some(corner(low, -Y_BOUND)),
                    max: Some(corner(high, Y_BOUND)),
                    channel_id: config.cell_channel(cell).0,
                    server_index: state.server.0,
                }
            })
            .collect();
        regions
            .chunks(REGIONS_MAX)
            .map(|part| SpatialRegionsUpdateMessage { regions: part.to_vec() })
            .collect()
    }

    /// QUERY_SPATIAL_CHANNEL: which cells positions lie in.
    pub(crate) fn on_query(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        only_global(head)?;
        let config = Arc::clone(&self.board.config);
        let grid = config.spatial.grid.as_ref().ok_or(Refusal::SpatialUnavailable)?;
        let request = QuerySpatialChannelMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let channel_of = |info: &SpatialInfo| {
            let cell = grid.cell_at(Point { x: info.x, z: info.z });
            cell.map_or(0, |cell| config.cell_channel(cell).0)
        };
        let channel_id = request.spatial_info.iter().map(channel_of).collect();
        self.board.send(sender.conn, head, &QuerySpatialChannelResultMessage { channel_id });
        Ok(())
    }

    /// DEBUG_GET_SPATIAL_REGIONS, in development mode.
    pub(crate) fn on_debug_regions(&mut self, sender: Sender, head: Head) -> Result<(), Refusal> {
        only_global(head)?;
        if self.board.config.spatial.grid.is_none() {
            return Err(Refusal::SpatialUnavailable);
        }
        if !self.board.config.development {
            return Err(Refusal::Permission);
        }
        for part in self.regions() {
            let head = Head { msg_type: MessageType::SpatialRegionsUpdate as u32, ..head };
            self.board.send(sender.conn, head, &part);
        }
        Ok(())
    }
}

impl super::World {
    /// The cells of a server's region, in ascending order.
    pub(super) fn cells_of(&self, index: ServerIndex) -> Vec<Cell> {
        let cells = self.cells.iter().enumerate().filter(|(_, state)| state.server == index);
        cells.map(|(cell, _)| Cell(cell as u32)).collect()
    }
}

impl Channel {
    /// A server owns the channel from now on. A lost one that owned it does not come back as the
    /// owner; whether there is one.
    pub(super) fn owner_replaced(&mut self, board: &mut Switchboard, owner: ConnId) -> bool {
        let was_lost = self.lost.iter().any(|place| place.was_owner);
        for place in &mut self.lost {
            if std::mem::take(&mut place.was_owner)
                && let Some((options, ..)) = &mut place.subscription
            {
                options.access = options.access.min(ChannelDataAccess::ReadAccess as i32);
            }
        }
        self.set_owner(board, Some(owner));
        was_lost
    }

    /// Merges a change that only the gateway makes and that nobody is sent: subscribers learn of it
    /// otherwise.
    pub(super) fn merge_silently(&mut self, bytes: Vec<u8>) -> Result<(), Refusal> {
        let Some(data) = &mut self.data else { return Ok(()) };
        let update = Update::check(data.content.plan(), bytes.into()).map_err(|_| Refusal::BadData)?;
        let merged = data.content.merge_checked(&update, self.merge_options.as_ref());
        merged.map(drop).map_err(|_| Refusal::DataTooLarge)
    }
}
