//! Checks that must hold at every step and at the end.

use super::*;

impl Simulation {
    /// The cell whose data lists each object and entity.
    fn lists(&self) -> Result<BTreeMap<u32, u32>, Violation> {
        let shard = self.world.shards().next().ok_or("no shard")?;
        let mut listed: BTreeMap<u32, u32> = BTreeMap::new();
        for cell in 0..self.grid.cell_count() {
            let Some((_, bytes)) = shard.channel_data(ChannelId(SPATIAL + cell)) else { continue };
            let data = SpatialChannelData::decode(&bytes[..]).map_err(|error| error.to_string())?;
            for id in data.entities.into_keys() {
                if let Some(other) = listed.insert(id, SPATIAL + cell) {
                    return Err(format!("{id:#x} is in {other:#x} and in {:#x}", SPATIAL + cell));
                }
            }
        }
        Ok(listed)
    }

    /// The cell of each entity, and the content of its data.
    pub(super) fn truth(&self) -> Result<Truth, Violation> {
        let shard = self.world.shards().next().ok_or("no shard")?;
        assert_eq!(shard.check_invariants(), []);
        let mut listed = self.lists()?;
        let mut truth = BTreeMap::new();
        for channel in shard.channels().filter(|channel| channel.channel_type == ChannelType::ENTITY) {
            let id = channel.id.0;
            let cell = listed.remove(&id).ok_or_else(|| format!("{id:#x} is in no cell"))?;
            if channel.cell != Some(ChannelId(cell)) {
                return Err(format!("{id:#x} is listed in {cell:#x} but belongs to {:?}", channel.cell));
            }
            let (_, bytes) = shard.channel_data(channel.id).ok_or("an entity without data")?;
            let place = place_of(Some(&bytes)).ok_or("an entity without a position")?;
            truth.insert(id, (cell, channel.owner.map(|owner| owner.0), place));
        }
        // An entity that was spawned, and whose creation was lost with its server, is an object.
        match listed.keys().find(|id| !self.spawned.contains(id)) {
            Some(id) => Err(format!("{:#x} lists {id:#x}, which does not exist", listed[id])),
            None => Ok(truth),
        }
    }

    pub(super) fn check(&mut self) -> Result<(), Violation> {
        for (id, (.., place)) in self.truth()? {
            let last = self.counts.entry(id).or_default();
            if place.count < *last {
                return Err(format!("the data of {id:#x} goes back from {last} to {}", place.count));
            }
            *last = place.count;
        }
        Ok(())
    }

    /// Everything agrees.
    pub(super) fn judge(&mut self) -> Result<(), Violation> {
        let (truth, listed) = (self.truth()?, self.lists()?);
        let shard = self.world.shards().next().ok_or("no shard")?;
        let owners: BTreeMap<u32, Option<u32>> =
            shard.channels().map(|channel| (channel.id.0, channel.owner.map(|owner| owner.0))).collect();
        for (id, (cell, owner, place)) in &truth {
            let at = self.grid.cell_at(Point { x: place.x.into(), z: place.z.into() });
            if let Some(at) = at
                && SPATIAL + at.0 != *cell
            {
                let held: Vec<_> = self
                    .servers
                    .iter()
                    .filter_map(|server| Some((&server.pit, server.link.conn, server.owned.get(id)?)))
                    .collect();
                return Err(format!(
                    "{id:#x} stands in {:#x} and belongs to {cell:#x}; owner {owner:?}, {place:?}, held by {held:?}",
                    SPATIAL + at.0
                ));
            }
            let cell_owner = owners.get(cell).copied().flatten();
            if cell_owner.is_some() && *owner != cell_owner {
                return Err(format!("{id:#x} in {cell:#x} of {cell_owner:?} is owned by {owner:?}"));
            }
            let holder = self.servers.iter().find(|server| {
                server.link.peer.is_some() && server.authenticated && server.owned.contains_key(id)
            });
            if *owner != holder.map(|server| server.link.conn) {
                let holder = holder.map(|server| &server.pit);
                return Err(format!("{id:#x} is owned by {owner:?} and held by {holder:?}"));
            }
            if let Some(own) = holder.and_then(|server| server.owned.get(id))
                && (own.x, own.z) != (place.x, place.z)
            {
                return Err(format!("the owner of {id:#x} is at {own:?}, its data at {place:?}"));
            }
        }
        for server in &self.servers {
            if let Some(id) = server.owned.keys().find(|id| !truth.contains_key(id)) {
                return Err(format!("{} holds {id:#x}, which is gone", server.pit));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            let in_sight = listed.iter().filter(|(_, cell)| client.cells.contains(cell));
            let place = |id| truth.get(id).map(|(.., place)| *place);
            let in_sight: BTreeMap<u32, (u32, Option<EntityPosition>)> =
                in_sight.map(|(id, cell)| (*id, (*cell, place(id)))).collect();
            let view: BTreeMap<u32, (u32, Option<EntityPosition>)> =
                client.view.iter().map(|(id, cell)| (*id, (*cell, client.known.get(id).copied()))).collect();
            if in_sight != view {
                let wrong = in_sight.keys().chain(view.keys()).find(|id| in_sight.get(id) != view.get(id));
                let id = wrong.copied().unwrap_or(0);
                return Err(format!(
                    "client {index} sees {id:#x} at {:x?}, it is at {:x?}; interest {:x?}, subscribed {}",
                    view.get(&id),
                    in_sight.get(&id),
                    client.cells,
                    client.subscribed.contains(&id),
                ));
            }
            self.outcome.seen += in_sight.len() as u64;
            self.outcome.objects += in_sight.values().filter(|(_, place)| place.is_none()).count() as u64;
        }
        let stats = shard.stats();
        self.outcome.handovers = stats.handovers;
        self.outcome.across_servers = stats.handovers_across_servers;
        self.outcome.cells_moved = stats.cells_moved;
        self.outcome.waited = stats.refused(throng_gateway::Refusal::Locked)
            + stats.refused(throng_gateway::Refusal::UnknownCell);
        self.outcome.entities = truth.len() as u64;
        if truth.len() as u32 >= self.next_entity - ENTITY {
            return Err("more entities than were created".into());
        }
        Ok(())
    }
}
