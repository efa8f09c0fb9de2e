//! Features beside the world's own that a mixed run combines, and the model of its rooms.
//!
//! A room is a channel outside the world, on any shard. The master owns all rooms and counts each
//! one up; clients subscribe with random options, change them, leave and return. A client's count
//! of a room never goes back, and at the end it is the room's.

use throng_gateway::{CloseReason, Lod, LodBand, OutboxBounds, ShardIndex};

use super::*;

/// Time of faults of a mixed run: long enough that one feature meets the leftovers of another.
pub(super) const FAULTS: Duration = Duration::from_secs(55);
/// Rooms at the start of a mixed run, and at most.
const ROOMS: usize = 3;
const ROOMS_MAX: usize = 6;
/// A client that reads nothing for so long has more waiting than its bounds allow.
const LONG_STALL_MS: core::ops::Range<u64> = 500..1_500;

/// Features of a run; none for a run of the world alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mix {
    /// Rates of entity channels depend on the distance.
    pub(super) lod: bool,
    /// Outboxes are small, and clients stall for long.
    pub(super) slow: bool,
    /// Clients use WebSocket and KCP as well.
    pub(super) carriers: bool,
    /// Subscriptions have options of all kinds.
    pub(super) options: bool,
    /// The output of all clients is dropped now and then as if it took too much memory.
    pub(super) shed: bool,
    /// There are rooms.
    pub(super) rooms: bool,
    /// Clients resume their sessions.
    pub(super) resume: bool,
    /// Shards panic at failpoints.
    pub(super) strikes: bool,
}

impl Mix {
    /// Several features: a run with few finds what a run with all of them hides.
    pub(super) fn draw(rng: &mut Rng) -> Mix {
        let mut has = || rng.chance(0.7);
        Mix {
            lod: has(),
            slow: has(),
            carriers: has(),
            options: has(),
            shed: has(),
            rooms: has(),
            resume: has(),
            strikes: has(),
        }
    }

    pub(super) fn configure(self, config: &mut Config) {
        if self.lod {
            let band = |within, interval_ms| LodBand { within, interval_ms };
            let bands = vec![band(SIDE / 2.0, 20), band(SIDE, 50)];
            config.spatial.lod = Some(Lod { bands, beyond_interval_ms: 200, hysteresis: 1.0 });
        }
        if self.resume {
            config.recovery.client_window = Duration::from_secs(1);
        }
        if self.slow {
            config.outbox = OutboxBounds {
                soft_bytes: 2_000,
                low_water_bytes: 500,
                hard_bytes: [4 << 20, 20_000],
                stall_timeout: Duration::from_secs(1),
                ..config.outbox.clone()
            };
        }
    }

    pub(super) fn carrier(self, rng: &mut Rng) -> Carrier {
        match rng.below(3) {
            0 if self.carriers => Carrier::Stream(Framing::WebSocket),
            1 if self.carriers => Carrier::Kcp(throng_net::kcp::Profile::GAME),
            _ => Carrier::Stream(Framing::Stream),
        }
    }

    /// Options of a client's subscription.
    pub(super) fn options(self, rng: &mut Rng) -> Option<ChannelSubscriptionOptions> {
        (self.options && rng.chance(0.7)).then(|| ChannelSubscriptionOptions {
            fan_out_interval_ms: rng.chance(0.7).then(|| rng.range(0..300) as u32),
            fan_out_delay_ms: rng.chance(0.3).then(|| rng.range(0..200) as i32),
            // Everything that the model looks at is below this field.
            data_field_masks: if rng.chance(0.3) { vec!["actorState".into()] } else { Vec::new() },
            skip_self_update_fan_out: rng.chance(0.3).then_some(true),
            ..Default::default()
        })
    }

    /// True if a client may be closed for this reason although it keeps all rules.
    pub(super) fn may_close(self, reason: CloseReason, struck: bool) -> bool {
        match reason {
            CloseReason::Internal => struck,
            CloseReason::SlowReader | CloseReason::Stalled => self.slow,
            CloseReason::OutputMemory => self.shed,
            _ => false,
        }
    }
}

impl Simulation {
    pub(super) fn create_rooms(&mut self) {
        for _ in 0..if self.mix.rooms { ROOMS } else { 0 } {
            self.create_room();
        }
    }

    fn create_room(&mut self) {
        let body = CreateChannelMessage {
            channel_type: ChannelType::SUBWORLD.0 as i32,
            data: Some(any(&state(room_state(1)))),
            ..Default::default()
        };
        self.send(Who::Server(0), 0, MessageType::CreateChannel, &body);
    }

    /// A client that has just logged in enters all rooms.
    pub(super) fn enter_rooms(&mut self, index: usize) {
        for room in self.rooms.keys().copied().collect::<Vec<_>>() {
            self.enter(index, room);
        }
    }

    fn enter(&mut self, index: usize, room: u32) {
        let sub_options = self.mix.options(&mut self.rng);
        let body = SubscribedToChannelMessage { conn_id: 0, sub_options };
        self.send(Who::Client(index), room, MessageType::SubToChannel, &body);
    }

    /// Rooms count up, and clients change what they get of them.
    pub(super) fn act_in_rooms(&mut self) {
        let master = &self.servers[0];
        if !master.authenticated || master.recovering {
            return;
        }
        if self.mix.rooms && self.faults && self.rooms.len() < ROOMS_MAX && self.rng.chance(0.02) {
            self.create_room();
        }
        for room in self.rooms.keys().copied().collect::<Vec<_>>() {
            if self.rng.chance(0.5) {
                let count = self.rooms.entry(room).or_default();
                *count += 1;
                let data = Some(any(&state(room_state(*count))));
                let update = ChannelDataUpdateMessage { data, ..Default::default() };
                self.send(Who::Server(0), room, MessageType::ChannelDataUpdate, &update);
            }
            for index in 0..self.clients.len() {
                if !self.clients[index].authenticated || !self.faults || !self.rng.chance(0.05) {
                    continue;
                }
                match self.clients[index].rooms.contains_key(&room) {
                    true if self.rng.chance(0.5) => {
                        let body = UnsubscribedFromChannelMessage { conn_id: self.clients[index].link.conn };
                        self.send(Who::Client(index), room, MessageType::UnsubFromChannel, &body);
                    }
                    _ => self.enter(index, room),
                }
            }
        }
    }

    /// A message of a room at a client. True if it was one.
    pub(super) fn at_room(&mut self, index: usize, message: &Received) -> Result<bool, Violation> {
        let room = message.channel;
        if !self.rooms.contains_key(&room) {
            return Ok(false);
        }
        let client = &mut self.clients[index];
        match message.msg_type {
            6 => {
                let result: SubscribedToChannelResultMessage = message.decode()?;
                if result.conn_id == client.link.conn {
                    client.rooms.entry(room).or_default();
                }
            }
            7 => {
                let result: UnsubscribedFromChannelResultMessage = message.decode()?;
                if result.conn_id == client.link.conn {
                    client.rooms.remove(&room);
                }
            }
            20 => {
                let recovered: ChannelDataRecoveryMessage = message.decode()?;
                let place = place_of(recovered.channel_data.as_ref().map(|data| &data.value[..]));
                let count = place.ok_or("a recovered room without its count")?.count;
                client.rooms.insert(room, count);
            }
            8 => {
                let update: ChannelDataUpdateMessage = message.decode()?;
                let known = client.rooms.get_mut(&room);
                let known = known.ok_or_else(|| format!("client {index}: {room} without a subscription"))?;
                let place = place_of(update.data.as_ref().map(|data| &data.value[..]));
                let count = place.ok_or("an update of a room without its count")?.count;
                if count < *known {
                    return Err(format!("client {index}: room {room} goes back from {known} to {count}"));
                }
                *known = count;
            }
            _ => {}
        }
        Ok(true)
    }

    pub(super) fn mixed_faults(&mut self) {
        if !self.mixed {
            return;
        }
        // In a long run everything that crashed servers took along would be gone sooner or later.
        for index in 1..self.servers.len() {
            let server = &self.servers[index];
            if server.authenticated
                && !server.cells.is_empty()
                && server.owned.len() < 3
                && self.rng.chance(0.02)
            {
                self.populate(index);
            }
        }
        if self.mix.slow && self.rng.chance(0.03) {
            let index = self.rng.below(self.clients.len() as u64) as usize;
            if let Some(peer) = self.clients[index].link.peer {
                let until = self.world.now() + Duration::from_millis(self.rng.range(LONG_STALL_MS));
                self.world.stall(peer, false, true, until);
            }
        }
        if self.mix.strikes && self.rng.chance(0.01) {
            let (passes, choice) = (1 + self.rng.below(6) as u32, self.rng.next_u64());
            self.world.strike(passes, choice);
        }
        if self.mix.shed && self.rng.chance(0.02) {
            let shard = self.rng.below(u64::from(self.world.shard_count())) as u16;
            let excess = self.rng.range(1..20_000) as usize;
            self.world.shed_backlog(ShardIndex(shard), excess);
        }
    }

    /// Clients ask again for subscriptions to what they see: a panic may have taken a request
    /// along.
    pub(super) fn ask_again(&mut self) {
        for index in 0..if self.world.struck() > 0 { self.clients.len() } else { 0 } {
            let client = &self.clients[index];
            let unanswered = |id: &&u32| !client.subscribed.contains(id) && self.counts.contains_key(id);
            for id in client.view.keys().filter(unanswered).copied().collect::<Vec<_>>() {
                let body = SubscribedToChannelMessage { conn_id: 0, sub_options: None };
                self.send(Who::Client(index), id, MessageType::SubToChannel, &body);
            }
        }
    }

    /// The world has begun again, empty: all its peers return, and nothing of it counts.
    pub(super) fn hear_of_restart(&mut self) {
        if self.restarts == self.world.restarts() {
            return;
        }
        self.restarts = self.world.restarts();
        self.log("the world restarts");
        self.counts.clear();
        self.forget_rooms();
        for client in &mut self.clients {
            client.avatar = 0;
        }
        let servers = (0..self.servers.len()).map(Who::Server);
        for who in servers.chain((0..self.clients.len()).map(Who::Client)) {
            let Some(peer) = self.link(who).peer else { continue };
            if !self.world.is_forgotten(peer) {
                continue;
            }
            match who {
                Who::Server(index) => {
                    self.servers[index].gone();
                    self.servers[index].returns_at = Some(self.world.now());
                }
                Who::Client(index) => {
                    self.clients[index].gone();
                    self.connect(who);
                }
            }
        }
    }

    pub(super) fn forget_rooms(&mut self) {
        self.rooms.clear();
        self.clients.iter_mut().for_each(|client| client.rooms.clear());
    }

    /// The count in the data of a room.
    fn room_count(&self, room: u32) -> Option<u32> {
        let data = self.world.shards().find_map(|shard| shard.channel_data(ChannelId(room)));
        place_of(data.as_ref().map(|(_, bytes)| &bytes[..])).map(|place| place.count)
    }

    pub(super) fn judge_rooms(&mut self) -> Result<(), Violation> {
        for (room, said) in &self.rooms {
            let count = self.room_count(*room);
            // A panic can take an update along, but not a room that its owner believes in.
            if count.is_none() || (count != Some(*said) && self.world.struck() == 0) {
                return Err(format!("room {room} has {count:?}, its owner last said {said}"));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            for (room, count) in &client.rooms {
                let truth = self.room_count(*room);
                if truth != Some(*count) {
                    return Err(format!("client {index} knows {count} of room {room}, which has {truth:?}"));
                }
                self.outcome.in_rooms += 1;
            }
        }
        (self.outcome.struck, self.outcome.restarted) = (self.world.struck(), self.world.restarts());
        for shard in self.world.shards() {
            self.outcome.resyncs += shard.stats().resyncs;
            for reason in [CloseReason::SlowReader, CloseReason::Stalled, CloseReason::OutputMemory] {
                self.outcome.closed += shard.stats().closed(ConnKind::Client, reason);
            }
        }
        Ok(())
    }
}

fn room_state(count: u32) -> EntityPosition {
    EntityPosition { x: 0.0, z: 0.0, count }
}
