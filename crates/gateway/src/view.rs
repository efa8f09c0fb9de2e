//! Monitoring data of connections, channels and the world, as plain values.

use std::net::IpAddr;

use throng_stdx::Instant;

use crate::channel::Channel;
use crate::connection::Connection;
use crate::ids::{ChannelId, ConnHandle, ConnId, ConnKind};
use crate::reason::CloseReason;
use crate::settings::ChannelType;

/// A connection at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionView {
    /// Id by which peers name it.
    pub id: ConnId,
    /// Handle by which the driver names it; it differs from the id after the connection took over
    /// that of a lost one.
    pub handle: ConnHandle,
    /// Server or client.
    pub kind: ConnKind,
    /// The peer's address.
    pub addr: IpAddr,
    /// State of its state machine.
    pub state: String,
    /// It has authenticated.
    pub authenticated: bool,
    /// Time at which it was accepted.
    pub accepted: Instant,
    /// Time of the latest bytes from it.
    pub received: Instant,
    /// Packets received.
    pub packets_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: usize,
    /// Channels whose updates it misses because it reads slowly.
    pub lagging: usize,
    /// Messages that its state machine refused.
    pub refusals: u32,
    /// Heap bytes of its buffers.
    pub heap_bytes: usize,
}

impl ConnectionView {
    pub(crate) fn new(conn: &Connection, state: String) -> Self {
        Self {
            id: conn.id,
            handle: conn.handle,
            kind: conn.kind,
            addr: conn.addr,
            state,
            authenticated: conn.authenticated,
            accepted: conn.accepted,
            received: conn.received,
            packets_in: conn.reader.packets(),
            bytes_in: conn.reader.bytes(),
            queued_bytes: conn.outbox.queued_bytes(),
            lagging: conn.lagging.len(),
            refusals: conn.refusals,
            heap_bytes: conn.outbox.heap_bytes() + conn.reader.buffered_bytes(),
        }
    }
}

/// A connection that was closed, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClosureView {
    /// Id by which peers named it.
    pub id: ConnId,
    /// Server or client.
    pub kind: ConnKind,
    /// The peer's address.
    pub addr: IpAddr,
    /// Reason of the closure.
    pub reason: CloseReason,
    /// Time at which it was accepted.
    pub accepted: Instant,
    /// Time of the closure.
    pub closed: Instant,
    /// It had authenticated.
    pub authenticated: bool,
    /// Packets received.
    pub packets_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes that waited to be written.
    pub queued_bytes: usize,
}

impl ClosureView {
    pub(crate) fn new(conn: &Connection, reason: CloseReason, now: Instant) -> Self {
        Self {
            id: conn.id,
            kind: conn.kind,
            addr: conn.addr,
            reason,
            accepted: conn.accepted,
            closed: now,
            authenticated: conn.authenticated,
            packets_in: conn.reader.packets(),
            bytes_in: conn.reader.bytes(),
            queued_bytes: conn.outbox.queued_bytes(),
        }
    }
}

/// A channel at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelView {
    /// Its id.
    pub id: ChannelId,
    /// Its type.
    pub channel_type: ChannelType,
    /// Text that its creator attached.
    pub metadata: String,
    /// Its live owner.
    pub owner: Option<ConnId>,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Lost connections whose place is kept.
    pub lost: usize,
    /// Full name of the data's type.
    pub data_type: Option<String>,
    /// Size of the encoded data.
    pub data_bytes: usize,
    /// Memory held by the data.
    pub data_heap_bytes: usize,
    /// Updates that some subscriber has not had, and their bytes.
    pub backlog: (usize, usize),
    /// Groups of subscribers that share fan-out.
    pub cohorts: usize,
    /// The cell that an entity belongs to.
    pub cell: Option<ChannelId>,
    /// Handovers of the entity so far.
    pub version: u64,
}

impl ChannelView {
    pub(crate) fn new(channel: &Channel) -> Self {
        let data = channel.data.as_ref().map(|data| &data.content);
        Self {
            id: channel.id,
            channel_type: channel.channel_type,
            metadata: channel.metadata.clone(),
            owner: channel.owner,
            subscriptions: channel.subs.len(),
            lost: channel.lost.len(),
            data_type: data.map(|data| data.plan().name().to_owned()),
            data_bytes: data.map_or(0, |data| data.encoded_len()),
            data_heap_bytes: data.map_or(0, |data| data.heap_bytes()),
            backlog: channel.fan.backlog(),
            cohorts: channel.fan.cohort_count(),
            cell: None,
            version: 0,
        }
    }
}

/// The world at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorldView {
    /// By slot. Empty without a grid.
    pub servers: Vec<WorldServerView>,
    /// Entities in the cell that has most.
    pub fullest_cell: usize,
    /// Entity channels, those outside of all cells included.
    pub entities: usize,
    /// Entities whose data has no position that can be read, so that none of them changes its cell.
    pub placeless: usize,
    /// Entities whose handover was refused and that wait for another try.
    pub waiting: usize,
}

/// An entity on the map.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct EntityView {
    /// Its channel.
    pub channel: ChannelId,
    /// Position: east.
    pub x: f64,
    /// Position: north.
    pub z: f64,
    /// Index of the cell that it belongs to.
    pub cell: Option<u32>,
    /// The client whose entity it is.
    pub client: Option<ConnId>,
    /// Handovers of the entity so far.
    pub version: u64,
}

/// One spatial server's slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorldServerView {
    /// A connected server holds it.
    pub live: bool,
    /// Cells of its region.
    pub cells: usize,
    /// Entities in these cells.
    pub entities: usize,
}
