//! The game server: owns a channel per room, brings every player into one, and lets the rules run in it.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;
use throng_client::{
    AuthOutcome, ChannelId, ChannelType, Client, ConnId, CreateChannel, Event, Events, Kind, MergeOptions,
    RequestError, SubscribeOptions, broadcast,
};
use tokio::time::MissedTickBehavior;

use crate::arena::{Arena, PLAYERS_MAX, STEPS_PER_SECOND};
use crate::messages::{ARENA_TYPE, CAUGHT, HELLO, Hello, STEER, Steer};

/// What all rooms together do.
pub(crate) struct GameServer {
    client: Client,
    rooms: BTreeMap<ChannelId, Room>,
    round: Duration,
}

struct Room {
    arena: Arena,
    /// Brought here, in the game or not yet.
    visitors: usize,
}

impl GameServer {
    /// Claims GLOBAL, so that every login is told to it, and opens the first room.
    ///
    /// # Errors
    /// When the gateway refuses: another server owns GLOBAL.
    pub(crate) async fn open(client: Client, round: Duration) -> Result<Self, RequestError> {
        client.create_channel(CreateChannel::new(ChannelType::GLOBAL).metadata("tag")).await?;
        let mut server = GameServer { client, rooms: BTreeMap::new(), round };
        server.open_room().await?;
        Ok(server)
    }

    /// Runs until the connection ends for good.
    ///
    /// # Errors
    /// When something cannot be sent.
    pub(crate) async fn run(mut self, mut events: Events) -> Result<(), RequestError> {
        let mut steps = tokio::time::interval(Duration::from_secs(1) / STEPS_PER_SECOND);
        // A step that comes late is not made up for: the game slows down instead of jumping.
        steps.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = steps.tick() => self.step().await?,
                event = events.next() => match event {
                    Some(event) => self.handle(event).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), RequestError> {
        match event {
            Event::PeerAuthenticated { conn, outcome: AuthOutcome::Successful, recovering: false } => {
                let channel = self.room_with_space().await?;
                let options = SubscribeOptions::read().every(Duration::from_millis(33));
                self.client
                    .tell(move |session| session.change_subscription(channel, Some(conn), &options))
                    .await?;
            }
            Event::Subscribed { channel, kind: Kind::Client, .. } => {
                if let Some(room) = self.rooms.get_mut(&channel) {
                    room.visitors += 1;
                }
            }
            Event::Unsubscribed { channel, conn, kind: Kind::Client, .. } => {
                if let Some(room) = self.rooms.get_mut(&channel) {
                    room.visitors = room.visitors.saturating_sub(1);
                    room.arena.leave(conn.0);
                }
            }
            Event::Message { channel, msg_type: HELLO, client, payload, .. } => {
                // What does not decode is a player's mistake, who is then not in the game.
                if let (Some(room), Ok(hello)) = (self.rooms.get_mut(&channel), Hello::decode(payload)) {
                    room.arena.enter(client.0, &hello.name, hello.simulated);
                }
            }
            Event::Message { channel, msg_type: STEER, client, payload, .. } => {
                if let (Some(room), Ok(wish)) = (self.rooms.get_mut(&channel), Steer::decode(payload)) {
                    room.arena.steer(client.0, (wish.x as f32 / 100.0, wish.y as f32 / 100.0));
                }
            }
            Event::Closed { reason } => tracing::warn!(%reason, "the game server lost its gateway"),
            _ => {}
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), RequestError> {
        for (&channel, room) in &mut self.rooms {
            if room.arena.is_empty() && room.visitors == 0 {
                continue;
            }
            if let Some(caught) = room.arena.step() {
                let to = broadcast::ALL_BUT_SERVER;
                self.client.forward(channel, to, CAUGHT, ConnId(0), caught.encode_to_vec()).await?;
            }
            if let Some(update) = room.arena.update() {
                self.client.update(channel, ARENA_TYPE, update.encode_to_vec()).await?;
            }
        }
        Ok(())
    }

    async fn room_with_space(&mut self) -> Result<ChannelId, RequestError> {
        let free = self.rooms.iter().find(|(_, room)| room.visitors.max(room.arena.len()) < PLAYERS_MAX);
        match free {
            Some((&channel, _)) => Ok(channel),
            None => self.open_room().await,
        }
    }

    async fn open_room(&mut self) -> Result<ChannelId, RequestError> {
        let number = self.rooms.len() as u64 + 1;
        let mut arena = Arena::new(self.round, number);
        let create = CreateChannel::new(ChannelType::SUBWORLD)
            .metadata(format!("tag {number}"))
            .data(ARENA_TYPE, arena.snapshot().encode_to_vec())
            .merge(MergeOptions { check_removable: true, ..MergeOptions::default() });
        let channel = self.client.create_channel(create).await?.channel;
        self.rooms.insert(channel, Room { arena, visitors: 0 });
        Ok(channel)
    }
}
