//! Diagnosis of visibility in the world: cells, distances, bands.

use crate::ids::{ChannelId, ConnId};
use crate::shard::Shard;
use crate::why::Sight;

impl Shard {
    /// How a cell or an entity lies to a connection (shard 0); `None` for channels that have no
    /// place in a world.
    #[must_use]
    pub fn sight_of(&self, conn: ConnId, channel: ChannelId) -> Option<Sight> {
        let (world, config) = (self.world.as_ref()?, &self.board.config);
        let entity = world.entities.get(&channel);
        let own_cell = config.channel_cell(channel);
        if entity.is_none() && own_cell.is_none() {
            return None;
        }
        let cell = own_cell.or(entity.and_then(|entity| entity.cell));
        let interest = world.interests.get(&conn);
        let cells_away = interest.zip(cell).and_then(|(interest, cell)| interest.distance(cell));
        let eye = world.lod.as_ref().and_then(|index| index.eye_of(conn));
        let own = eye.or_else(|| {
            // Without rates by distance no entity has been chosen.
            world.avatars.get(&conn).and_then(|avatars| avatars.first().copied())
        });
        let place = |id: ChannelId| world.entities.get(&id).and_then(|entity| entity.position);
        let distance =
            own.and_then(place).zip(place(channel)).map(|(eye, at)| (at.x - eye.x).hypot(at.z - eye.z));
        let band = config.spatial.lod.as_ref().zip(world.lod.as_ref()).and_then(|(lod, index)| {
            let band = index.band_of(lod, conn, channel)?;
            Some((band, lod.bands.get(band).map(|band| band.within)))
        });
        Some(Sight {
            cell: cell.map(|cell| cell.0),
            cell_channel: cell.map(|cell| config.cell_channel(cell)),
            interest_cells: interest.map_or(0, |interest| interest.cells().count()),
            cells_away,
            own_entity: own,
            distance,
            band,
            placeless: entity.is_some_and(|entity| !world.cells.is_empty() && entity.is_placeless()),
            handover_waits: world.waiting.contains_key(&channel),
        })
    }
}
