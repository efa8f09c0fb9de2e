//! Model of a game server: its actions, and the world as its messages describe it.

use super::*;

impl Simulation {
    pub(super) fn at_server(&mut self, index: usize, message: &Received) -> Result<(), Violation> {
        if self.trace {
            let (channel, msg_type) = (message.channel, message.msg_type);
            self.log(format_args!("server {index} gets type {msg_type} of {channel:#x}"));
        }
        let conn = self.servers[index].link.conn;
        let is_entity = message.channel >= ENTITY;
        match message.msg_type {
            3 if index == 0 => {
                let result: CreateChannelResultMessage = message.decode()?;
                if result.channel_id > 0 && result.channel_id < SPATIAL {
                    self.rooms.insert(result.channel_id, 1);
                }
            }
            1 => {
                let result: AuthResultMessage = message.decode()?;
                if self.servers[index].authenticated {
                    return Ok(());
                }
                let server = &mut self.servers[index];
                server.authenticated = true;
                server.link.conn = result.conn_id;
                server.recovering = result.should_recover;
                if index == 0 {
                    let body = CreateChannelMessage {
                        channel_type: ChannelType::GLOBAL.0 as i32,
                        ..Default::default()
                    };
                    if !result.should_recover {
                        self.send(Who::Server(0), 0, MessageType::CreateChannel, &body);
                        self.forget_rooms();
                        self.create_rooms();
                    }
                } else if !result.should_recover {
                    self.ask_for_slot(index);
                }
            }
            10 => {
                let result: CreateSpatialChannelsResultMessage = message.decode()?;
                if result.owner_conn_id == conn {
                    let server = &mut self.servers[index];
                    server.cells.extend(&result.spatial_channel_id);
                    let taken = !server.had_slot && index == SERVERS + 1;
                    server.had_slot = true;
                    self.outcome.taken_over += u64::from(taken);
                }
            }
            15 => {
                let result: CreateChannelResultMessage = message.decode()?;
                let server = &mut self.servers[index];
                if result.owner_conn_id == conn
                    && let Some(place) = server.known.get(&result.channel_id).copied()
                {
                    server.owned.insert(result.channel_id, place);
                    server.versions.insert(result.channel_id, 1);
                }
            }
            6 => {
                let result: SubscribedToChannelResultMessage = message.decode()?;
                if result.conn_id == conn && is_entity {
                    let writes = result.sub_options.and_then(|options| options.data_access) == Some(2);
                    let server = &mut self.servers[index];
                    if writes {
                        // Its own from here on, to be moved when the handover says where it is.
                        let nowhere = EntityPosition { x: f32::NAN, z: 0.0, count: 0 };
                        server.owned.entry(message.channel).or_insert(nowhere);
                    } else {
                        server.owned.remove(&message.channel);
                    }
                } else if !is_entity && result.conn_id == conn && message.channel >= SPATIAL {
                    let writes = result.sub_options.and_then(|options| options.data_access) == Some(2);
                    if !writes {
                        self.servers[index].cells.remove(&message.channel);
                    }
                }
            }
            7 => {
                let result: UnsubscribedFromChannelResultMessage = message.decode()?;
                if result.conn_id == conn {
                    self.servers[index].owned.remove(&message.channel);
                    self.servers[index].known.remove(&message.channel);
                }
            }
            4 => {
                let result: RemoveChannelMessage = message.decode()?;
                self.servers[index].owned.remove(&result.channel_id);
                self.servers[index].known.remove(&result.channel_id);
                if index == 0 {
                    self.rooms.remove(&result.channel_id);
                }
            }
            8 if is_entity => {
                let update: ChannelDataUpdateMessage = message.decode()?;
                if let Some(place) = place_of(update.data.as_ref().map(|data| &data.value[..])) {
                    let server = &mut self.servers[index];
                    // Its own word counts for what it owns.
                    if server.owned.get(&message.channel).is_none_or(|own| own.count < place.count) {
                        server.known.insert(message.channel, place);
                        if let Some(own) = server.owned.get_mut(&message.channel) {
                            *own = place;
                        }
                    }
                }
            }
            12 => {
                let handover: ChannelDataHandoverMessage = message.decode()?;
                self.servers[index].versions.extend(&handover.versions);
                for (id, place) in entities_of(&handover)? {
                    let (from, to) = (handover.src_channel_id, handover.dst_channel_id);
                    self.log(format_args!(
                        "server {index} hears of {id:#x} from {from:#x} to {to:#x}: {place:?}"
                    ));
                    let server = &mut self.servers[index];
                    // Its own word counts for what it owns: a stalled server reads late what it
                    // said before.
                    if let Some(place) = place
                        && server.owned.get(&id).is_none_or(|own| own.count < place.count)
                    {
                        server.known.insert(id, place);
                        if let Some(own) = server.owned.get_mut(&id) {
                            *own = place;
                        }
                    }
                    if self.servers[index].owned.contains_key(&id) {
                        self.set_interest(index, id);
                    }
                }
            }
            20 => {
                let recovered: ChannelDataRecoveryMessage = message.decode()?;
                let server = &mut self.servers[index];
                if recovered.owner_conn_id == conn {
                    if is_entity {
                        let value = recovered.channel_data.as_ref().map(|data| &data.value[..]);
                        let place = place_of(value).ok_or("a recovered entity has no position")?;
                        server.owned.insert(message.channel, place);
                        server.known.insert(message.channel, place);
                        server.versions.insert(message.channel, recovered.version);
                    } else if message.channel >= SPATIAL {
                        server.cells.insert(message.channel);
                    } else if let Some(count) = self.rooms.get_mut(&message.channel) {
                        // Updates on their way were lost with the connection.
                        let value = recovered.channel_data.as_ref().map(|data| &data.value[..]);
                        *count = place_of(value).ok_or("a recovered room without its count")?.count;
                    }
                }
            }
            21 => {
                self.servers[index].recovering = false;
                self.outcome.recovered += 1;
                if index > 0 && self.servers[index].cells.is_empty() {
                    self.ask_for_slot(index);
                }
            }
            CALL => {
                let forward: ServerForwardMessage = message.decode()?;
                if !self.servers[index].owned.contains_key(&message.channel) {
                    return Err(format!(
                        "server {index} is called by {} about {:#x}, which it was not given",
                        forward.client_conn_id, message.channel
                    ));
                }
                self.outcome.calls += 1;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn ask_for_slot(&mut self, index: usize) {
        if !self.servers[index].spatial {
            return;
        }
        let body = CreateChannelMessage {
            channel_type: ChannelType::SPATIAL.0 as i32,
            sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
            ..Default::default()
        };
        self.send(Who::Server(index), 0, MessageType::CreateSpatialChannel, &body);
    }

    /// A few entities in the cells of a server.
    pub(super) fn populate(&mut self, index: usize) {
        let cells: Vec<u32> = self.servers[index].cells.iter().copied().collect();
        for _ in 0..3 {
            let Some(&cell) = cells.get(self.rng.below(cells.len().max(1) as u64) as usize) else { return };
            let (low, _) = self.grid.bounds(throng_gateway::spatial::Cell(cell - SPATIAL));
            let place = EntityPosition {
                x: (low.x + self.rng.f64() * SIDE * 0.99) as f32,
                z: (low.z + self.rng.f64() * SIDE * 0.99) as f32,
                count: 1,
            };
            let id = self.next_entity;
            self.next_entity += 1;
            let gait = match self.rng.below(5) {
                0 | 1 => Gait::Walk,
                2 => Gait::Border(SIDE * self.rng.range(1..u64::from(COLUMNS)) as f64),
                3 => {
                    Gait::Corner(SIDE * 2.0 * self.rng.range(1..3) as f64, SIDE * self.rng.range(1..4) as f64)
                }
                _ => Gait::Jump,
            };
            self.gaits.insert(id, gait);
            let client = self.clients.iter_mut().find(|client| client.avatar == 0);
            if let Some(client) = client {
                client.avatar = id;
            }
            let data = EntityData {
                object: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
                ..state(place)
            };
            let body = CreateEntityChannelMessage {
                entity_id: id,
                sub_options: Some(ChannelSubscriptionOptions { data_access: Some(2), ..Default::default() }),
                data: Some(any(&data)),
                ..Default::default()
            };
            self.servers[index].known.insert(id, place);
            if self.rng.chance(0.3) {
                self.spawn(index, id);
            }
            self.send(Who::Server(index), cell, MessageType::CreateEntityChannel, &body);
            self.set_interest_at(index, id, place);
        }
    }

    /// Spawns an object, new or again somewhere else, or destroys one. Ids of destroyed ones are
    /// not used again.
    fn change_objects(&mut self, index: usize) {
        let objects = &mut self.servers[index].objects;
        let at = self.rng.below(OBJECTS_MAX as u64) as usize;
        if at >= objects.len() {
            objects.push(self.next_object);
            self.next_object += 1;
        } else if self.rng.chance(0.3) {
            let id = objects.swap_remove(at);
            return self.destroy(index, id);
        }
        let id = objects[at.min(objects.len() - 1)];
        self.spawn(index, id);
    }

    /// Creates an object anywhere in the world, announced in any cell of the server.
    pub(super) fn spawn(&mut self, index: usize, id: u32) {
        let cells: Vec<u32> = self.servers[index].cells.iter().copied().collect();
        let Some(&via) = cells.get(self.rng.below(cells.len().max(1) as u64) as usize) else { return };
        let x = self.rng.f64() * SIDE * f64::from(COLUMNS) * 0.99;
        let z = self.rng.f64() * SIDE * f64::from(ROWS) * 0.99;
        let message = SpawnObjectMessage {
            obj: Some(UnrealObjectRef { net_guid: Some(id), ..Default::default() }),
            channel_id: Some(via),
            location: Some(FVector { x: Some(x as f32), y: Some(z as f32), z: Some(0.0) }),
            ..Default::default()
        };
        self.log(format_args!("server {index} spawns {id:#x} at {x}, {z}"));
        self.spawned.insert(id);
        self.broadcast(index, via, SPAWN, &message);
    }

    fn destroy(&mut self, index: usize, id: u32) {
        let cells: Vec<u32> = self.servers[index].cells.iter().copied().collect();
        let Some(&via) = cells.get(self.rng.below(cells.len().max(1) as u64) as usize) else { return };
        self.log(format_args!("server {index} destroys {id:#x}"));
        self.broadcast(index, via, DESTROY, &DestroyObjectMessage { net_id: id, reason: 0 });
    }

    /// Broadcasts to all subscribers of a channel.
    fn broadcast(&mut self, index: usize, channel: u32, msg_type: u32, message: &impl Message) {
        let forward = ServerForwardMessage { client_conn_id: 0, payload: message.encode_to_vec() };
        self.send_raw(Who::Server(index), channel, msg_type, 2, &forward.encode_to_vec());
    }

    /// Actions of the peers in a step.
    pub(super) fn act(&mut self) {
        for index in 1..self.servers.len() {
            if !self.servers[index].authenticated || self.servers[index].recovering {
                continue;
            }
            if self.servers[index].cells.is_empty() && self.rng.chance(0.1) {
                self.ask_for_slot(index);
            }
            if !self.moving {
                continue;
            }
            if self.faults && self.rng.chance(0.1) {
                self.change_objects(index);
            }
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                if self.rng.chance(0.6) {
                    self.move_entity(index, id);
                }
                if self.faults && self.rng.chance(0.01) {
                    self.group(index, id);
                }
            }
        }
        if !self.moving {
            return;
        }
        self.act_in_rooms();
        for index in 0..self.clients.len() {
            let entities: Vec<u32> = self.clients[index].view.keys().copied().collect();
            if self.clients[index].authenticated && !entities.is_empty() && self.rng.chance(0.3) {
                let id = entities[self.rng.below(entities.len() as u64) as usize];
                self.clients[index].next_call += 1;
                let call = self.clients[index].next_call;
                self.send_raw(Who::Client(index), id, CALL, 0, &call.to_le_bytes());
            }
        }
    }

    pub(super) fn move_entity(&mut self, index: usize, id: u32) {
        let Some(&place) = self.servers[index].owned.get(&id) else { return };
        let (x, z) = match self.gaits.get(&id).copied().unwrap_or(Gait::Walk) {
            Gait::Border(border) => {
                let side = if place.count.is_multiple_of(2) { -0.5 } else { 0.5 };
                (border + side, f64::from(place.z))
            }
            Gait::Corner(x, z) => {
                let quarter = f64::from(place.count % 4) * core::f64::consts::FRAC_PI_2 + 0.7;
                (x + quarter.cos(), z + quarter.sin())
            }
            Gait::Jump if self.rng.chance(0.2) => match self.rng.below(4) {
                0 => (f64::NAN, 1.0),
                1 => (-1.0, 1.0),
                2 => (1e30, f64::INFINITY),
                _ => (self.rng.f64() * SIDE * f64::from(COLUMNS), self.rng.f64() * SIDE * f64::from(ROWS)),
            },
            Gait::Walk | Gait::Jump => {
                let step = |rng: &mut Rng| (rng.f64() - 0.5) * 6.0;
                let (x, z) =
                    (f64::from(place.x) + step(&mut self.rng), f64::from(place.z) + step(&mut self.rng));
                (x.clamp(0.0, SIDE * f64::from(COLUMNS) - 0.01), z.clamp(0.0, SIDE * f64::from(ROWS) - 0.01))
            }
        };
        self.place(index, id, x as f32, z as f32);
    }

    pub(super) fn place(&mut self, index: usize, id: u32, x: f32, z: f32) {
        let Some(own) = self.servers[index].owned.get_mut(&id).filter(|own| own.count > 0) else { return };
        own.count += 1;
        let count = own.count;
        if x.is_finite() && z.is_finite() {
            (own.x, own.z) = (x, z);
        }
        let sent = EntityPosition { x, z, count };
        self.log(format_args!("server {index} puts {id:#x} at {sent:?}"));
        let version = self.servers[index].versions.get(&id).copied().unwrap_or(0);
        let data = Some(any(&state(sent)));
        let update = ChannelDataUpdateMessage { data, version, ..Default::default() };
        self.send(Who::Server(index), id, MessageType::ChannelDataUpdate, &update);
    }

    pub(super) fn group(&mut self, index: usize, id: u32) {
        let others: Vec<u32> = (0..2)
            .map(|_| ENTITY + 1 + self.rng.below(u64::from(self.next_entity - ENTITY)) as u32)
            .collect();
        let listed: Vec<u32> = [id].into_iter().chain(others).collect();
        match self.rng.below(4) {
            0 | 1 => {
                let kind =
                    if self.rng.chance(0.7) { EntityGroupType::Handover } else { EntityGroupType::Lock };
                let body = AddEntityGroupMessage { r#type: kind as i32, entities_to_add: listed };
                self.send(Who::Server(index), id, MessageType::EntityGroupAdd, &body);
            }
            2 => self.ungroup(index, id, EntityGroupType::Lock, listed),
            _ => {
                // Out of the group and into one of its own, so that it goes on moving.
                self.ungroup(index, id, EntityGroupType::Handover, vec![id]);
                let body = AddEntityGroupMessage {
                    r#type: EntityGroupType::Handover as i32,
                    entities_to_add: vec![id],
                };
                self.send(Who::Server(index), id, MessageType::EntityGroupAdd, &body);
            }
        }
    }

    pub(super) fn ungroup(
        &mut self,
        index: usize,
        id: u32,
        kind: EntityGroupType,
        entities_to_remove: Vec<u32>,
    ) {
        let body = RemoveEntityGroupMessage { r#type: kind as i32, entities_to_remove };
        self.send(Who::Server(index), id, MessageType::EntityGroupRemove, &body);
    }

    /// The interest of the client whose avatar this is follows it.
    pub(super) fn set_interest(&mut self, index: usize, id: u32) {
        let Some(&place) = self.servers[index].owned.get(&id) else { return };
        self.set_interest_at(index, id, place);
    }

    pub(super) fn set_interest_at(&mut self, index: usize, id: u32, place: EntityPosition) {
        let Some(client) = self.clients.iter().find(|client| client.avatar == id) else { return };
        let conn_id = client.link.conn;
        let Some(cell) = self.grid.cell_at(Point { x: place.x.into(), z: place.z.into() }) else { return };
        let centre = SpatialInfo { x: place.x.into(), y: 0.0, z: place.z.into() };
        let sphere = SphereAoi { center: Some(centre), radius: SIDE * 1.2 };
        let query = SpatialInterestQuery { sphere_aoi: Some(sphere), ..Default::default() };
        let body = UpdateSpatialInterestMessage { conn_id, query: Some(query) };
        self.send(Who::Server(index), SPATIAL + cell.0, MessageType::UpdateSpatialInterest, &body);
    }

    /// All entities leave their groups and keep their positions.
    pub(super) fn part(&mut self) {
        for index in 1..self.servers.len() {
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                self.ungroup(index, id, EntityGroupType::Handover, vec![id]);
            }
        }
    }

    /// Opens all locks; every entity moves alone and ends inside the world.
    pub(super) fn last_words(&mut self) {
        for index in 1..self.servers.len() {
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                self.ungroup(index, id, EntityGroupType::Lock, vec![id]);
                let body = AddEntityGroupMessage {
                    r#type: EntityGroupType::Handover as i32,
                    entities_to_add: vec![id],
                };
                self.send(Who::Server(index), id, MessageType::EntityGroupAdd, &body);
            }
        }
        for index in 1..self.servers.len() {
            for id in self.servers[index].owned.keys().copied().collect::<Vec<_>>() {
                let x = self.rng.f64() * (SIDE * f64::from(COLUMNS) - 0.1);
                let z = self.rng.f64() * (SIDE * f64::from(ROWS) - 0.1);
                self.place(index, id, x as f32, z as f32);
            }
        }
    }
}

impl Server {
    pub(super) fn gone(&mut self) {
        self.link = Link::new();
        self.authenticated = false;
        self.recovering = false;
        self.cells.clear();
        self.owned.clear();
        self.known.clear();
        self.versions.clear();
        self.had_slot = false;
        self.objects.clear();
    }
}
