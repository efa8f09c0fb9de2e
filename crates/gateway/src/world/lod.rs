//! Network level of detail: entity channels reach a client the faster the nearer they are to its own entity.
//!
//! Nothing here walks over all pairs. Most entities are far from most clients, and far is the rate that a subscription
//! has unless it is in a band. So only two things are looked at when something moves: what lies in the tiles around it,
//! and what was in a band with it before. Tiles are as wide as the outermost band, so that is nine tiles; and a move is
//! looked at only when it adds up to half of the hysteresis.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use throng_spatial::Point;

use super::config::Lod;
use crate::ids::{ChannelId, ConnId, ConnKind, IdHasher, IdMap};
use crate::shard::Shard;

/// Where entities and clients are, and which pairs are in a band.
#[derive(Debug)]
pub(crate) struct LodIndex {
    /// Side of a tile, in world units.
    tile: f64,
    /// Entities by tile, those with a client first known as its entity included.
    tiles: HashMap<(i32, i32), BTreeSet<ChannelId>, IdHasher>,
    seen: IdMap<ChannelId, Seen>,
    /// The entity of a client.
    own: IdMap<ConnId, ChannelId>,
}

/// An entity as it was looked at last.
#[derive(Debug)]
struct Seen {
    at: Point,
    client: Option<ConnId>,
    /// Clients that are in a band with it.
    watchers: BTreeSet<ConnId>,
    /// Entities that its client is in a band with.
    watched: BTreeSet<ChannelId>,
}

impl LodIndex {
    pub(super) fn new(lod: &Lod, hasher: IdHasher) -> Self {
        let reach = lod.bands.last().map_or(0.0, |band| band.within) + lod.hysteresis;
        Self {
            tile: reach.max(f64::MIN_POSITIVE),
            tiles: HashMap::with_hasher(hasher),
            seen: IdMap::with_hasher(hasher),
            own: IdMap::with_hasher(hasher),
        }
    }

    fn tile(&self, at: Point) -> (i32, i32) {
        // `as` saturates: what is beyond the numbers shares the outermost tile.
        ((at.x / self.tile).floor() as i32, (at.z / self.tile).floor() as i32)
    }

    fn around(&self, at: Point) -> Vec<ChannelId> {
        let (x, z) = self.tile(at);
        let near = |axis: i32| axis.saturating_sub(1)..=axis.saturating_add(1);
        let tiles = near(z).flat_map(|z| near(x).map(move |x| (x, z)));
        tiles.filter_map(|tile| self.tiles.get(&tile)).flatten().copied().collect()
    }

    fn leave_tile(&mut self, id: ChannelId, at: Point) {
        let tile = self.tile(at);
        if let Some(entities) = self.tiles.get_mut(&tile) {
            entities.remove(&id);
            if entities.is_empty() {
                self.tiles.remove(&tile);
            }
        }
    }

    /// An entity is gone.
    pub(super) fn remove(&mut self, id: ChannelId) {
        let Some(seen) = self.seen.remove(&id) else { return };
        self.leave_tile(id, seen.at);
        for other in seen.watched {
            if let (Some(other), Some(client)) = (self.seen.get_mut(&other), seen.client) {
                other.watchers.remove(&client);
            }
        }
        for client in seen.watchers {
            let own = self.own.get(&client).copied();
            if let Some(viewer) = own.and_then(|own| self.seen.get_mut(&own)) {
                viewer.watched.remove(&id);
            }
        }
        if let Some(client) = seen.client.filter(|client| self.own.get(client) == Some(&id)) {
            self.own.remove(&client);
        }
    }
}

impl Lod {
    /// The band for a distance: 0 is the nearest, the number of bands is beyond all.
    fn band(&self, distance: f64, slack: f64) -> usize {
        self.bands.iter().position(|band| distance <= band.within + slack).unwrap_or(self.bands.len())
    }

    fn interval_ms(&self, band: usize) -> u32 {
        self.bands.get(band).map_or(self.beyond_interval_ms, |band| band.interval_ms)
    }

    /// The interval for a distance, given the one in force: faster at the border, slower only beyond the hysteresis.
    fn next_interval(&self, distance: f64, current_ms: u32) -> (usize, u32) {
        let (inner, outer) = (self.band(distance, 0.0), self.band(distance, self.hysteresis));
        let current = (0..=self.bands.len()).find(|&band| self.interval_ms(band) == current_ms);
        // Where there are two answers, between the border and the hysteresis behind it, the present one stays.
        let band = current.map_or(inner, |current| current.clamp(outer, inner));
        (band, self.interval_ms(band))
    }
}

impl Shard {
    /// An entity has a new position, or its first one.
    pub(super) fn look_at(&mut self, id: ChannelId) {
        let config = Arc::clone(&self.board.config);
        let Some(lod) = &config.spatial.lod else { return };
        let Some(world) = &mut self.world else { return };
        let (Some(index), Some(entity)) = (&mut world.lod, world.entities.get(&id)) else { return };
        let (Some(at), client) = (entity.position, entity.client) else { return };
        let is_new = match index.seen.get_mut(&id) {
            None => {
                let seen = Seen { at, client, watchers: BTreeSet::new(), watched: BTreeSet::new() };
                index.seen.insert(id, seen);
                true
            }
            Some(seen) => {
                let moved = (at.x - seen.at.x).hypot(at.z - seen.at.z);
                let same_client = seen.client == client;
                if moved < lod.hysteresis / 2.0 && same_client {
                    return;
                }
                let before = seen.at;
                seen.at = at;
                seen.client = client;
                index.leave_tile(id, before);
                !same_client
            }
        };
        let tile = index.tile(at);
        index.tiles.entry(tile).or_default().insert(id);
        if let Some(client) = client {
            index.own.insert(client, id);
        }
        if is_new {
            self.look_at_everything(id, client);
            return;
        }
        // As something that is watched: by the clients around it and by those that were near before.
        let mut clients = index.seen[&id].watchers.clone();
        let around = index.around(at);
        clients.extend(around.iter().filter_map(|other| index.seen.get(other)?.client));
        // As the eye of its client: over what is around it and what was near before.
        let watched = client.map(|client| {
            let mut watched = index.seen[&id].watched.clone();
            watched.extend(around);
            (client, watched)
        });
        for client in clients {
            self.rate(client, id);
        }
        for (client, id) in
            watched.into_iter().flat_map(|(client, ids)| ids.into_iter().map(move |id| (client, id)))
        {
            self.rate(client, id);
        }
    }

    /// Something is seen for the first time: once, all that it has to do with.
    fn look_at_everything(&mut self, id: ChannelId, client: Option<ConnId>) {
        let subs = self.channels.get(&id).into_iter().flat_map(|channel| channel.subs.iter());
        let clients: Vec<ConnId> = subs.map(|(_, sub)| sub.address.conn).collect();
        for client in clients {
            self.rate(client, id);
        }
        let Some(client) = client else { return };
        let first = self.board.config.entity_channel_start;
        let places = self.board.places.get(&client).into_iter().flatten().copied();
        for id in places.filter(|id| id.0 >= first).collect::<Vec<_>>() {
            self.rate(client, id);
        }
    }

    /// Gives a client's subscription to an entity the rate for their distance, unless it asked for a rate itself.
    pub(crate) fn rate(&mut self, client: ConnId, id: ChannelId) {
        let config = Arc::clone(&self.board.config);
        let Some(lod) = &config.spatial.lod else { return };
        let Some(index) = self.world.as_mut().and_then(|world| world.lod.as_mut()) else { return };
        let Some(&own) = index.own.get(&client) else { return };
        let (Some(eye), Some(entity)) = (index.seen.get(&own), index.seen.get(&id)) else { return };
        let distance = (eye.at.x - entity.at.x).hypot(eye.at.z - entity.at.z);
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let key = channel.key(client).filter(|&key| {
            let sub = &channel.subs[key as usize];
            sub.kind == ConnKind::Client && !sub.rate_asked
        });
        let mut near = false;
        if let Some(key) = key {
            let current_ms = channel.subs[key as usize].options.interval_ms;
            let (band, interval_ms) = lod.next_interval(distance, current_ms);
            near = band < lod.bands.len();
            if interval_ms != current_ms {
                self.board.stats.lod_changes += 1;
                channel.set_rate(&mut self.board, key, interval_ms, None);
            }
        }
        let note = |set: &mut BTreeSet<ConnId>| if near { set.insert(client) } else { set.remove(&client) };
        if index.seen.get_mut(&id).is_some_and(|seen| note(&mut seen.watchers))
            && let Some(eye) = index.seen.get_mut(&own)
        {
            if near {
                eye.watched.insert(id);
            } else {
                eye.watched.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_have_hysteresis_on_their_outer_side() {
        let lod = Lod::published(1.0);
        let next = |distance, current| lod.next_interval(distance, current).1;
        assert_eq!([next(5.0, 20), next(10.0, 20), next(30.0, 20), next(51.0, 20)], [50, 50, 100, 1000]);
        // Outwards: the faster rate stays up to a metre beyond the border.
        assert_eq!([next(10.5, 50), next(11.5, 50), next(50.9, 100), next(51.1, 100)], [50, 100, 100, 1000]);
        // Inwards: the faster rate begins at the border.
        assert_eq!(
            [next(50.5, 1000), next(50.0, 1000), next(10.5, 100), next(9.9, 100)],
            [1000, 100, 100, 50]
        );
        // Several bands at once.
        assert_eq!([next(500.0, 50), next(1.0, 1000)], [1000, 50]);
    }
}
