//! UPDATE_SPATIAL_INTEREST: the cells that a connection is subscribed to, and their rates. Spec
//! §8.6 and §8.7.
//!
//! Only cells that differ are touched: the new area is compared with the connection's spatial
//! subscriptions, two sorted lists, and with the distances of the previous area.

use std::sync::Arc;

use prost::Message;
use smallvec::SmallVec;
use throng_spatial::{AreaQuery, BoxArea, Cell, Cone, Coverage, Interest, Point, Sphere, Spot};
use throng_wire::channeldpb::{
    ChannelSubscriptionOptions, MessageType, SpatialInfo, SpatialInterestQuery, UpdateSpatialInterestMessage,
};

use super::config::{DampingStep, Spatial};
use crate::channel::Subscribed;
use crate::ids::{ChannelId, ConnId, ConnKind};
use crate::mail::Head;
use crate::reason::Refusal;
use crate::requests::Sender;
use crate::shard::Shard;

impl Shard {
    /// UPDATE_SPATIAL_INTEREST.
    pub(crate) fn on_interest(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        let config = Arc::clone(&self.board.config);
        let grid = config.spatial.grid.as_ref().ok_or(Refusal::SpatialUnavailable)?;
        if config.channel_cell(head.channel).is_none() && head.channel != ChannelId::GLOBAL {
            return Err(Refusal::NotSpatial);
        }
        let request = UpdateSpatialInterestMessage::decode(body).map_err(|_| Refusal::BadBody)?;
        let target = ConnId(request.conn_id);
        if target != sender.conn {
            let authority = config.permissions.of(sender.kind).interest_of_others;
            if !authority.passes(self.board.global_owner == Some(sender.conn)) {
                return Err(Refusal::Permission);
            }
        }
        if !self.board.peers.contains_key(&target) && !self.is_lost(target) {
            return Err(Refusal::UnknownConnection);
        }
        let query = area(&request.query.ok_or(Refusal::BadBody)?);
        // An error leaves the interest as it is. A centre outside the world is one in the sampled
        // variant only.
        let interest = grid.interest(&query, config.spatial.coverage).map_err(|_| Refusal::InterestQuery)?;
        self.set_interest(target, interest);
        Ok(())
    }

    /// Subscribes a connection to the cells of an interest, and to no others; a lost one when it
    /// has returned.
    pub(super) fn set_interest(&mut self, target: ConnId, interest: Interest) {
        let config = Arc::clone(&self.board.config);
        let is_lost = self.is_lost(target);
        let Some(world) = &mut self.world else { return };
        if is_lost {
            world.missed.insert(target, interest);
            return;
        }
        let Some(&peer) = self.board.peers.get(&target) else { return };
        let Some(address) = self.board.address(target) else { return };
        world.missed.remove(&target);
        let before = world.interests.insert(target, interest.clone()).unwrap_or_default();
        self.board.stats.interest_updates += 1;

        let held: SmallVec<[Cell; 32]> = self.board.cells_of(target);
        let mut wanted = interest.cells().peekable();
        let mut leave: SmallVec<[Cell; 16]> = SmallVec::new();
        let mut enter: SmallVec<[(Cell, u32); 16]> = SmallVec::new();
        let mut change: SmallVec<[(Cell, u32); 16]> = SmallVec::new();
        for &cell in &held {
            while let Some((new, distance)) = wanted.next_if(|(new, _)| *new < cell) {
                enter.push((new, distance));
            }
            match wanted.next_if(|(new, _)| *new == cell) {
                None => leave.push(cell),
                Some((_, distance)) if before.distance(cell) != Some(distance) => {
                    change.push((cell, distance));
                }
                Some(_) => {}
            }
        }
        enter.extend(wanted);
        for cell in leave {
            self.leave_cell(config.cell_channel(cell), target, peer.kind);
        }
        for (cell, distance) in change.into_iter().chain(enter) {
            let id = config.cell_channel(cell);
            let Some(channel) = self.channels.get_mut(&id) else { continue };
            let step = config.spatial.damping(distance);
            if let Some(key) = channel.key(target) {
                channel.set_rate(&mut self.board, key, step.interval_ms, Some(&step.masks));
                continue;
            }
            let options = ChannelSubscriptionOptions {
                fan_out_interval_ms: Some(step.interval_ms),
                data_field_masks: step.masks.clone(),
                ..Default::default()
            };
            if channel.subscribe(&mut self.board, address, peer.kind, Some(&options)) != Subscribed::Silently
            {
                let result = channel.sub_result(target, peer.kind);
                let head = Head::new(id, MessageType::SubToChannel as u32);
                self.board.send(target, head, &result);
                if let Some(owner) = channel.owner.filter(|owner| *owner != target) {
                    self.board.send(owner, head, &result);
                }
            }
        }
    }

    /// A connection has returned: what its interest has become meanwhile.
    pub(crate) fn settle_interest(&mut self, conn: ConnId) {
        if let Some(missed) = self.world.as_mut().and_then(|world| world.missed.remove(&conn)) {
            self.set_interest(conn, missed);
        }
    }

    fn is_lost(&self, conn: ConnId) -> bool {
        self.board.lost.contains_key(&conn)
    }

    /// The interest of a client follows its entity, where that is configured.
    pub(super) fn follow(&mut self, id: ChannelId) {
        let config = Arc::clone(&self.board.config);
        let radius = config.spatial.follow_radius;
        let (Some(grid), Some(world)) = (&config.spatial.grid, &self.world) else { return };
        let Some(entity) = world.entities.get(&id).filter(|_| radius > 0.0) else { return };
        let (Some(client), Some(centre)) = (entity.client, entity.position) else { return };
        // What a server controls is its own, and its interest is its border.
        let lost = self.board.lost.get(&client).copied();
        let kind = self.board.peers.get(&client).map(|peer| peer.kind).or(lost);
        if kind != Some(ConnKind::Client) {
            return;
        }
        let query = AreaQuery { sphere: Some(Sphere { centre, radius }), ..AreaQuery::default() };
        // A position that is no number has been refused before.
        if let Ok(interest) = grid.interest(&query, config.spatial.coverage) {
            self.set_interest(client, interest);
        }
    }

    /// Cells have been made, which interest that follows entities has skipped so far. Costs a look
    /// at the entities within the radius of the rectangle around those cells.
    pub(super) fn show_cells(&mut self, made: &[Cell]) {
        let config = Arc::clone(&self.board.config);
        let radius = config.spatial.follow_radius;
        let (Some(grid), Some(world)) = (&config.spatial.grid, &self.world) else { return };
        if radius <= 0.0 {
            return;
        }
        let corners = made.iter().map(|&cell| grid.bounds(cell));
        let Some((low, high)) = corners.reduce(|(low, high), (l, h)| {
            let low = Point { x: low.x.min(l.x), z: low.z.min(l.z) };
            (low, Point { x: high.x.max(h.x), z: high.z.max(h.z) })
        }) else {
            return;
        };
        let centre = Point { x: (low.x + high.x) / 2.0, z: (low.z + high.z) / 2.0 };
        let extent = Point { x: centre.x - low.x + radius, z: centre.z - low.z + radius };
        let rectangle = Some(BoxArea { centre, extent });
        // Exactly, whatever is configured: sampling misses cells.
        let around = grid.interest(&AreaQuery { rectangle, ..AreaQuery::default() }, Coverage::Exact);
        let near = around.iter().flat_map(|around| around.cells());
        let near = near.filter_map(|(cell, _)| world.cells.get(cell.0 as usize));
        let mut clients: Vec<ConnId> =
            near.flat_map(|state| &state.entities).filter_map(|id| world.entities.get(id)?.client).collect();
        clients.sort_unstable();
        clients.dedup();
        for client in clients {
            let interest = self.world.as_ref().and_then(|world| world.interests.get(&client));
            let sees = |interest: &&Interest| made.iter().any(|&cell| interest.distance(cell).is_some());
            if let Some(interest) = interest.filter(sees).cloned() {
                self.set_interest(client, interest);
            }
        }
    }

    fn leave_cell(&mut self, id: ChannelId, target: ConnId, kind: ConnKind) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        // A server's own cells are not a matter of interest: leaving one would leave it without an
        // owner.
        if channel.owner == Some(target) || !channel.unsubscribe(&mut self.board, target) {
            return;
        }
        let result = channel.unsub_result(target, kind);
        let head = Head::new(id, MessageType::UnsubFromChannel as u32);
        self.board.send(target, head, &result);
        if let Some(owner) = channel.owner {
            self.board.send(owner, head, &result);
        }
    }
}

impl Spatial {
    /// What a subscriber gets from a cell at a distance. Beyond the table the last step holds.
    pub(super) fn damping(&self, distance: u32) -> DampingStep {
        let step = self.damping.iter().rev().find(|step| step.distance <= distance);
        step.or(self.damping.first()).cloned().unwrap_or(DampingStep {
            distance: 0,
            interval_ms: 20,
            masks: Vec::new(),
        })
    }
}

fn point(info: Option<&SpatialInfo>) -> Point {
    info.map_or_else(Point::default, |info| Point { x: info.x, z: info.z })
}

fn area(query: &SpatialInterestQuery) -> AreaQuery {
    let spots = query.spots_aoi.as_ref().map(|area| {
        let distances = area.dists.iter().copied().chain(std::iter::repeat(0));
        let spot = |(at, distance)| Spot { at: point(Some(at)), distance };
        area.spots.iter().zip(distances).map(spot).collect()
    });
    AreaQuery {
        spots: spots.unwrap_or_default(),
        rectangle: query
            .box_aoi
            .as_ref()
            .map(|area| BoxArea { centre: point(area.center.as_ref()), extent: point(area.extent.as_ref()) }),
        sphere: query
            .sphere_aoi
            .as_ref()
            .map(|area| Sphere { centre: point(area.center.as_ref()), radius: area.radius }),
        cone: query.cone_aoi.as_ref().map(|area| Cone {
            centre: point(area.center.as_ref()),
            direction: point(area.direction.as_ref()),
            half_angle: area.angle,
            radius: area.radius,
        }),
    }
}
