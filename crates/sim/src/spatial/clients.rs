//! Model of a client: the world as its messages describe it.

use super::*;

impl Simulation {
    pub(super) fn at_client(&mut self, index: usize, message: &Received) -> Result<(), Violation> {
        if self.trace {
            let (channel, msg_type) = (message.channel, message.msg_type);
            self.log(format_args!("client {index} gets type {msg_type} of {channel:#x}"));
        }
        if self.at_room(index, message)? {
            return Ok(());
        }
        let is_entity = message.channel >= ENTITY;
        let client = &mut self.clients[index];
        let conn = client.link.conn;
        let mut wanted = Vec::new();
        let mut dropped = Vec::new();
        let mut unsure = Vec::new();
        match message.msg_type {
            1 => {
                let result: AuthResultMessage = message.decode()?;
                client.link.conn = result.conn_id;
                client.authenticated = true;
                client.token = result.resume_token;
                let avatar = client.avatar;
                for server in 1..self.servers.len() {
                    self.set_interest(server, avatar);
                }
                if result.should_recover {
                    self.outcome.resumed += 1;
                } else {
                    self.enter_rooms(index);
                }
                return Ok(());
            }
            6 => {
                let result: SubscribedToChannelResultMessage = message.decode()?;
                if result.conn_id == conn && is_entity {
                    client.subscribed.insert(message.channel);
                    // It went out of sight while the request was on its way.
                    if !client.view.contains_key(&message.channel) {
                        unsure.push(message.channel);
                    }
                } else if result.conn_id == conn && message.channel >= SPATIAL {
                    client.cells.insert(message.channel);
                }
            }
            7 => {
                let result: UnsubscribedFromChannelResultMessage = message.decode()?;
                if result.conn_id != conn {
                    return Ok(());
                }
                if is_entity {
                    client.subscribed.remove(&message.channel);
                    client.known.remove(&message.channel);
                    // It came back while the request was on its way.
                    if client.view.contains_key(&message.channel) {
                        wanted.push(message.channel);
                    }
                } else {
                    client.cells.remove(&message.channel);
                    let left = client.view.iter().filter(|(_, cell)| **cell == message.channel);
                    dropped.extend(left.map(|(id, _)| *id));
                }
            }
            4 => {
                let result: RemoveChannelMessage = message.decode()?;
                if client.cells.remove(&result.channel_id) {
                    let left = client.view.iter().filter(|(_, cell)| **cell == result.channel_id);
                    dropped.extend(left.map(|(id, _)| *id));
                }
                client.view.remove(&result.channel_id);
                client.known.remove(&result.channel_id);
                client.subscribed.remove(&result.channel_id);
                client.rooms.remove(&result.channel_id);
            }
            8 => {
                let update: ChannelDataUpdateMessage = message.decode()?;
                let data = update.data.ok_or("an update without data")?;
                if is_entity {
                    if !client.subscribed.contains(&message.channel) {
                        return Err(format!(
                            "client {index} gets {:#x} without a subscription",
                            message.channel
                        ));
                    }
                    if let Some(place) = place_of(Some(&data.value)) {
                        let known = client.known.insert(message.channel, place);
                        if known.is_some_and(|known| known.count > place.count) {
                            return Err(format!("client {index}: {:#x} goes back", message.channel));
                        }
                    }
                } else if message.channel >= SPATIAL {
                    let cell =
                        SpatialChannelData::decode(&data.value[..]).map_err(|error| error.to_string())?;
                    for (id, entity) in cell.entities {
                        if entity.removed {
                            dropped.push(id);
                        } else {
                            client.view.insert(id, message.channel);
                            wanted.push(id);
                        }
                    }
                }
            }
            12 => {
                let handover: ChannelDataHandoverMessage = message.decode()?;
                let sees = client.cells.contains(&handover.dst_channel_id);
                for (id, place) in entities_of(&handover)? {
                    if let Some(place) = place {
                        client.known.insert(id, place);
                    }
                    if sees {
                        client.view.insert(id, handover.dst_channel_id);
                        wanted.push(id);
                    } else {
                        dropped.push(id);
                    }
                }
            }
            20 => {
                let recovered: ChannelDataRecoveryMessage = message.decode()?;
                let value = recovered.channel_data.map(|data| data.value);
                if is_entity {
                    client.subscribed.insert(message.channel);
                    if let Some(place) = place_of(value.as_deref()) {
                        client.known.insert(message.channel, place);
                    }
                } else if message.channel >= SPATIAL {
                    client.cells.insert(message.channel);
                    let cell = SpatialChannelData::decode(&value.unwrap_or_default()[..]);
                    for id in cell.map_err(|error| error.to_string())?.entities.into_keys() {
                        client.view.insert(id, message.channel);
                        wanted.push(id);
                    }
                }
            }
            // Entities that went out of sight meanwhile.
            21 => dropped.extend(client.subscribed.iter().filter(|id| !client.view.contains_key(id))),
            SPAWN => {
                let forward: ServerForwardMessage = message.decode()?;
                let spawn =
                    SpawnObjectMessage::decode(&forward.payload[..]).map_err(|error| error.to_string())?;
                let id = spawn.obj.and_then(|object| object.net_guid).ok_or("a spawn of nothing")?;
                let cell = spawn.channel_id.filter(|cell| client.cells.contains(cell));
                client.view.insert(id, cell.ok_or("a spawn in a cell out of sight")?);
                wanted.push(id);
            }
            DESTROY => {
                let forward: ServerForwardMessage = message.decode()?;
                let destroy =
                    DestroyObjectMessage::decode(&forward.payload[..]).map_err(|error| error.to_string())?;
                dropped.push(destroy.net_id);
            }
            _ => {}
        }
        // A subscription that a handover made comes before the handover that says what for.
        self.clients[index].unsure.extend(unsure);
        if message.msg_type == 12 || message.msg_type == 8 {
            let client = &mut self.clients[index];
            let view = &client.view;
            dropped.extend(client.unsure.iter().filter(|id| !view.contains_key(id)));
            client.unsure.clear();
        }
        for id in dropped {
            let client = &mut self.clients[index];
            client.view.remove(&id);
            if client.subscribed.contains(&id) {
                let body = UnsubscribedFromChannelMessage { conn_id: client.link.conn };
                self.send(Who::Client(index), id, MessageType::UnsubFromChannel, &body);
            }
        }
        for id in wanted {
            if !self.clients[index].subscribed.contains(&id) {
                let sub_options = self.mix.options(&mut self.rng);
                let body = SubscribedToChannelMessage { conn_id: 0, sub_options };
                self.send(Who::Client(index), id, MessageType::SubToChannel, &body);
            }
        }
        Ok(())
    }
}

impl Client {
    pub(super) fn gone(&mut self) {
        *self = Client {
            link: Link::new(),
            authenticated: false,
            cells: BTreeSet::new(),
            view: BTreeMap::new(),
            known: BTreeMap::new(),
            subscribed: BTreeSet::new(),
            next_call: self.next_call,
            token: std::mem::take(&mut self.token),
            may_give_up: false,
            avatar: self.avatar,
            unsure: BTreeSet::new(),
            rooms: BTreeMap::new(),
        };
    }
}
