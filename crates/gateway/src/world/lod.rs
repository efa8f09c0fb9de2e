//! Network level of detail: entity channels reach a client the faster the nearer they are to its
//! own entity.
//!
//! Nothing here walks over all pairs. Two entities are *near* when their distance lies in one of
//! the bands; what is not near has the rate beyond all bands. An entity that has moved is compared
//! with what lies in the tiles around it, and only pairs whose band changes touch a channel. Tiles
//! are as wide as the outermost band, so that is nine tiles; and a move is looked at only when it
//! adds up to half of the hysteresis.
//!
//! Cost of a look: some nanoseconds per entity in nine tiles. Of a changed band: one change of
//! subscription options for each of the two clients.

use std::sync::Arc;

use hashbrown::HashMap;
use slab::Slab;
use throng_spatial::Point;

use super::config::Lod;
use crate::channel::RateBy;
use crate::ids::{ChannelId, ConnId, ConnKind, IdHasher, IdMap};
use crate::shard::Shard;

/// Where entities and clients are, and which pairs are near.
#[derive(Debug)]
pub(crate) struct LodIndex {
    /// Side of a tile, in world units.
    tile: f64,
    tiles: HashMap<(i32, i32), Vec<Spot>, IdHasher>,
    entities: Slab<Seen>,
    keys: IdMap<ChannelId, u32>,
    /// The entity of a client.
    own: IdMap<ConnId, u32>,
    /// Memory for looks; empty between them.
    around: Vec<(u32, f64)>,
}

/// An entity in its tile.
#[derive(Debug, Clone, Copy)]
struct Spot {
    key: u32,
    at: Point,
}

/// An entity as it was looked at last.
#[derive(Debug)]
struct Seen {
    id: ChannelId,
    at: Point,
    /// Its place in its tile.
    in_tile: u32,
    client: Option<ConnId>,
    /// The entities near it and the bands of their distances, by key. Whoever is near to one is so
    /// to the other.
    near: Vec<(u32, u8)>,
}

/// Two entities have come into another band of distance.
#[derive(Debug, Clone, Copy)]
struct Change {
    other: u32,
    band: u8,
}

impl LodIndex {
    pub(super) fn new(lod: &Lod, hasher: IdHasher) -> Self {
        let reach = lod.bands.last().map_or(0.0, |band| band.within) + lod.hysteresis;
        Self {
            tile: reach.max(f64::MIN_POSITIVE),
            tiles: HashMap::with_hasher(hasher),
            entities: Slab::new(),
            keys: IdMap::with_hasher(hasher),
            own: IdMap::with_hasher(hasher),
            around: Vec::new(),
        }
    }

    fn tile(&self, at: Point) -> (i32, i32) {
        // `as` saturates: what is beyond the numbers shares the outermost tile.
        ((at.x / self.tile).floor() as i32, (at.z / self.tile).floor() as i32)
    }

    fn enter_tile(&mut self, key: u32) {
        let at = self.entities[key as usize].at;
        let tile = self.tiles.entry(self.tile(at)).or_default();
        self.entities[key as usize].in_tile = tile.len() as u32;
        tile.push(Spot { key, at });
    }

    fn leave_tile(&mut self, key: u32) {
        let Seen { at, in_tile, .. } = self.entities[key as usize];
        let tile = self.tile(at);
        let Some(spots) = self.tiles.get_mut(&tile) else { return };
        spots.swap_remove(in_tile as usize);
        match spots.get(in_tile as usize) {
            Some(moved) => self.entities[moved.key as usize].in_tile = in_tile,
            None if spots.is_empty() => drop(self.tiles.remove(&tile)),
            None => {}
        }
    }

    /// An entity is gone. If its client looked from it, it looks from the first of its others that
    /// has a place here: which one.
    pub(super) fn remove(&mut self, id: ChannelId, others: &[ChannelId]) -> Option<ChannelId> {
        let key = self.keys.remove(&id)?;
        self.leave_tile(key);
        let seen = self.entities.remove(key as usize);
        for (other, _) in seen.near {
            self.set_near(other, key, None);
        }
        let client = seen.client.filter(|client| self.own.get(client) == Some(&key))?;
        self.own.remove(&client);
        let (next, key) = others.iter().find_map(|other| Some((*other, *self.keys.get(other)?)))?;
        self.own.insert(client, key);
        Some(next)
    }

    /// A client is gone, and nobody looks from its entities.
    pub(super) fn forget_client(&mut self, client: ConnId) {
        if let Some(key) = self.own.remove(&client) {
            self.entities[key as usize].client = None;
        }
    }

    /// Notes on one side that two entities are near, or are not.
    fn set_near(&mut self, key: u32, other: u32, band: Option<u8>) {
        let near = &mut self.entities[key as usize].near;
        match (near.binary_search_by_key(&other, |(other, _)| *other), band) {
            (Ok(at), Some(band)) => near[at].1 = band,
            (Ok(at), None) => drop(near.remove(at)),
            (Err(at), Some(band)) => near.insert(at, (other, band)),
            (Err(_), None) => {}
        }
    }

    /// The band of two entities.
    fn band(&self, lod: &Lod, key: u32, other: u32) -> usize {
        let near = &self.entities[key as usize].near;
        match near.binary_search_by_key(&other, |(other, _)| *other) {
            _ if key == other => 0,
            Ok(at) => usize::from(near[at].1),
            Err(_) => lod.bands.len(),
        }
    }

    /// The entity from which a client looks.
    pub(super) fn eye_of(&self, client: ConnId) -> Option<ChannelId> {
        self.own.get(&client).map(|&key| self.entities[key as usize].id)
    }

    /// The band of an entity for a client; `None` when one of them has no place here.
    pub(super) fn band_of(&self, lod: &Lod, client: ConnId, id: ChannelId) -> Option<usize> {
        Some(self.band(lod, *self.own.get(&client)?, *self.keys.get(&id)?))
    }

    /// Compares an entity with everything around it; pairs whose band has changed.
    fn compare(&mut self, lod: &Lod, key: u32) -> Vec<Change> {
        let at = self.entities[key as usize].at;
        let reach = lod.bands.last().map_or(0.0, |band| band.within) + lod.hysteresis;
        let (x, z) = self.tile(at);
        let next_to = |axis: i32| axis.saturating_sub(1)..=axis.saturating_add(1);
        let mut around = std::mem::take(&mut self.around);
        for tile in next_to(z).flat_map(|z| next_to(x).map(move |x| (x, z))) {
            for spot in self.tiles.get(&tile).into_iter().flatten() {
                let (x, z) = (spot.at.x - at.x, spot.at.z - at.z);
                let distance = x * x + z * z;
                if distance <= reach * reach && spot.key != key {
                    around.push((spot.key, distance.sqrt()));
                }
            }
        }
        around.sort_unstable_by_key(|(key, _)| *key);

        let beyond = lod.bands.len();
        let before = std::mem::take(&mut self.entities[key as usize].near);
        let mut near = Vec::with_capacity(around.len());
        let mut changes = Vec::new();
        let mut old = before.iter().copied().peekable();
        for &(other, distance) in &around {
            while let Some((gone, _)) = old.next_if(|(gone, _)| *gone < other) {
                changes.push(Change { other: gone, band: beyond as u8 });
            }
            let current = old.next_if(|(known, _)| *known == other).map_or(beyond as u8, |(_, band)| band);
            let band = lod.next_band(distance, current.into());
            if band < beyond {
                near.push((other, band as u8));
            }
            if band != usize::from(current) {
                changes.push(Change { other, band: band as u8 });
            }
        }
        changes.extend(old.map(|(gone, _)| Change { other: gone, band: beyond as u8 }));
        self.entities[key as usize].near = near;
        for &Change { other, band } in &changes {
            self.set_near(other, key, (usize::from(band) < beyond).then_some(band));
        }
        around.clear();
        self.around = around;
        changes
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

    /// The band for a distance, given the one in force: faster at the border, slower only beyond
    /// the hysteresis.
    fn next_band(&self, distance: f64, current: usize) -> usize {
        // Where there are two answers, between the border and the hysteresis behind it, the present
        // one stays.
        current.clamp(self.band(distance, self.hysteresis), self.band(distance, 0.0))
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
        let (key, is_new) = match index.keys.get(&id) {
            None => {
                let seen = Seen { id, at, in_tile: 0, client, near: Vec::new() };
                let key = index.entities.insert(seen) as u32;
                index.keys.insert(id, key);
                (key, true)
            }
            Some(&key) => {
                let seen = &mut index.entities[key as usize];
                let moved = (at.x - seen.at.x).hypot(at.z - seen.at.z);
                let same_client = seen.client == client;
                if moved < lod.hysteresis / 2.0 && same_client {
                    return;
                }
                let former = seen.client.filter(|_| !same_client);
                if let Some(former) = former.filter(|former| index.own.get(former) == Some(&key)) {
                    index.own.remove(&former);
                }
                index.leave_tile(key);
                let seen = &mut index.entities[key as usize];
                seen.at = at;
                seen.client = client;
                (key, !same_client)
            }
        };
        index.enter_tile(key);
        // Of several entities of a client the first is its eye.
        let has_eye = client.is_some_and(|client| index.own.contains_key(&client));
        let eye_of = client.filter(|client| *index.own.entry(*client).or_insert(key) == key);
        let changes = index.compare(lod, key);
        if is_new || (eye_of.is_some() && !has_eye) {
            self.rate_everything(id, eye_of);
            return;
        }
        for Change { other, band } in changes {
            let Some(index) = self.world.as_ref().and_then(|world| world.lod.as_ref()) else { return };
            let Some(seen) = index.entities.get(other as usize) else { continue };
            let theirs = seen.client.filter(|client| index.own.get(client) == Some(&other));
            let other = seen.id;
            if let Some(client) = theirs {
                self.set_band(lod, client, id, band.into());
            }
            if let Some(client) = eye_of {
                self.set_band(lod, client, other, band.into());
            }
        }
    }

    /// Something is seen for the first time: once, all that it has to do with.
    pub(super) fn rate_everything(&mut self, id: ChannelId, client: Option<ConnId>) {
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

    /// Gives a client's subscription to an entity the rate for their distance, unless it asked for
    /// a rate itself.
    pub(crate) fn rate(&mut self, client: ConnId, id: ChannelId) {
        let config = Arc::clone(&self.board.config);
        let Some(lod) = &config.spatial.lod else { return };
        let Some(index) = self.world.as_ref().and_then(|world| world.lod.as_ref()) else { return };
        let Some(band) = index.band_of(lod, client, id) else { return };
        self.set_band(lod, client, id, band);
    }

    fn set_band(&mut self, lod: &Lod, client: ConnId, id: ChannelId, band: usize) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let Some(key) = channel.key(client) else { return };
        let sub = &channel.subs[key as usize];
        if sub.kind != ConnKind::Client || sub.rate_by == RateBy::Subscriber {
            return;
        }
        let interval_ms = lod.interval_ms(band);
        if sub.options.interval_ms != interval_ms {
            *self.board.stats.lod_change(band) += 1;
        }
        channel.set_rate(&mut self.board, key, interval_ms, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_have_hysteresis_on_their_outer_side() {
        let lod = Lod::published(1.0);
        let bands = [50, 100, 1000];
        let next = |distance, current: u32| {
            let band = bands.iter().position(|interval| *interval == current).unwrap_or(2);
            lod.interval_ms(lod.next_band(distance, band))
        };
        assert_eq!(
            [next(5.0, 1000), next(10.0, 1000), next(30.0, 1000), next(51.0, 1000)],
            [50, 50, 100, 1000]
        );
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
