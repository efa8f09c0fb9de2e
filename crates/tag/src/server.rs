//! The game server: requests a room from the matcher for every player, owns a channel per room,
//! subscribes its players, and runs the rules in it.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::Message as _;
use throng_client::{
    AuthOutcome, Backoff, ChannelId, ChannelType, Client, ConnId, CreateChannel, Endpoint, Event, Events,
    Kind, Matcher, MatcherConfig, MergeOptions, Notices, RequestError, Role, SessionConfig, SubscribeOptions,
    broadcast,
};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::StartError;
use crate::arena::{Arena, STEPS_PER_SECOND};
use crate::messages::{ARENA_TYPE, CAUGHT, HELLO, Hello, STEER, Steer};

/// Name of the game server and of the match mode, unless a world gives them its own; `modes.toml`
/// sets the size of a room.
pub(crate) const NAME: &str = "tag";
/// Pause before another login of a game server that has lost its world.
const PAUSE: Duration = Duration::from_millis(250);
/// Placed players who wait for this loop.
const PLACED_MAX: usize = 64;

/// Location of a game: a world, and ways to it.
pub(crate) struct GameLocation {
    pub(crate) servers: Vec<Endpoint>,
    pub(crate) matcher: Endpoint,
    pub(crate) world: Option<String>,
    pub(crate) round: Duration,
}

/// A game server with its two sessions.
pub(crate) struct Opened {
    server: GameServer,
    events: Events,
    notices: Notices,
}

impl GameLocation {
    /// Connects a game server, by the next of the nodes at each attempt, and claims GLOBAL.
    ///
    /// # Errors
    /// If gateway or matcher cannot be reached, or another game server owns GLOBAL.
    pub(crate) async fn open(&self, attempt: usize) -> Result<Opened, StartError> {
        let name = self.world.as_deref().unwrap_or(NAME);
        let config = SessionConfig { world: self.world.clone(), ..SessionConfig::server(name, "") };
        let node = self.servers[attempt % self.servers.len()].clone();
        let (client, events) = Client::connect_with(node, config, Backoff::never()).await?;
        // Under another id at each attempt, so that the seats of its former players become free.
        let id = format!("{name}-{attempt}");
        let (matcher, notices) = Matcher::connect(self.matcher.clone(), MatcherConfig::new(&*id)).await?;
        let server = GameServer::open(client, matcher, id, name.to_owned(), self.round).await?;
        Ok(Opened { server, events, notices })
    }

    /// Runs the game for ever: when its connection ends, it starts again where its world is then.
    pub(crate) async fn run(self, first: Opened) {
        let mut opened = Some(first);
        for attempt in 1.. {
            if let Some(Opened { server, events, notices }) = opened.take()
                && let Err(error) = server.run(events, notices).await
            {
                tracing::warn!(%error, "a game of tag has ended");
            }
            tokio::time::sleep(PAUSE).await;
            match self.open(attempt).await {
                Ok(again) => opened = Some(again),
                Err(error) => tracing::debug!(%error, "a game of tag cannot start again"),
            }
        }
    }
}

/// State shared by all rooms.
pub(crate) struct GameServer {
    client: Client,
    matcher: Matcher,
    /// Its id at the matcher, and its match mode.
    id: String,
    mode: String,
    rooms: BTreeMap<ChannelId, Room>,
    /// Players for whom the matcher has found a room, with its id.
    placed: mpsc::Sender<(ConnId, String)>,
    arrivals: mpsc::Receiver<(ConnId, String)>,
    round: Duration,
    /// Rooms opened so far: the seed of the next.
    opened: u64,
}

struct Room {
    /// The matcher's id of the room.
    id: String,
    arena: Arena,
    /// Players assigned to the room, in the game or not yet.
    visitors: usize,
}

impl GameServer {
    /// Claims GLOBAL, so that the gateway notifies it of every login.
    ///
    /// # Errors
    /// If the gateway refuses because another server owns GLOBAL.
    async fn open(
        client: Client,
        matcher: Matcher,
        id: String,
        mode: String,
        round: Duration,
    ) -> Result<Self, RequestError> {
        client.create_channel(CreateChannel::new(ChannelType::GLOBAL).metadata("tag")).await?;
        let (placed, arrivals) = mpsc::channel(PLACED_MAX);
        let rooms = BTreeMap::new();
        Ok(GameServer { client, matcher, id, mode, rooms, placed, arrivals, round, opened: 0 })
    }

    /// Role id of a player at the matcher.
    fn role(&self, conn: ConnId) -> String {
        format!("{}-player-{}", self.id, conn.0)
    }

    /// Runs until the connection ends for good.
    ///
    /// # Errors
    /// If a message cannot be sent.
    async fn run(mut self, mut events: Events, mut notices: Notices) -> Result<(), RequestError> {
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
                Some((conn, room)) = self.arrivals.recv() => self.bring(conn, &room).await?,
                // The answers already say which player is in which room; notifications are read
                // only so that the session goes on.
                Some(_) = notices.next() => {}
            }
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), RequestError> {
        match event {
            Event::PeerAuthenticated { conn, outcome: AuthOutcome::Successful, recovering: false } => {
                self.place(conn);
            }
            Event::Subscribed { channel, kind: Kind::Client, .. } => {
                if let Some(room) = self.rooms.get_mut(&channel) {
                    room.visitors += 1;
                }
            }
            Event::Unsubscribed { channel, conn, kind: Kind::Client, .. } => {
                self.leave(channel, conn).await?;
            }
            Event::Message { channel, msg_type: HELLO, client, payload, .. } => {
                // Undecodable input is the player's mistake; the player is then not in the game.
                if let (Some(room), Ok(hello)) = (self.rooms.get_mut(&channel), Hello::decode(payload)) {
                    room.arena.enter(client.0, &hello.name, hello.simulated);
                }
            }
            Event::Message { channel, msg_type: STEER, client, payload, .. } => {
                if let (Some(room), Ok(wish)) = (self.rooms.get_mut(&channel), Steer::decode(payload)) {
                    room.arena.steer(client.0, (wish.x as f32 / 100.0, wish.y as f32 / 100.0));
                }
            }
            Event::Closed { reason } => {
                tracing::warn!(%reason, "the game server lost its connection to the gateway")
            }
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

    /// Requests a room with a free seat from the matcher, without blocking the game.
    fn place(&self, conn: ConnId) {
        let (matcher, placed) = (self.matcher.clone(), self.placed.clone());
        let (role, mode) = (Role::new(self.role(conn)), self.mode.clone());
        tokio::spawn(async move {
            match matcher.join_random_room(&role, &mode).await {
                // The loop ends only with the game.
                Ok(room) => drop(placed.send((conn, room.id)).await),
                Err(error) => tracing::warn!(%error, "cannot place a player in a room"),
            }
        });
    }

    /// Subscribes a player to the channel of its room, which the first player creates.
    async fn bring(&mut self, conn: ConnId, room: &str) -> Result<(), RequestError> {
        let known = self.rooms.iter().find(|(_, known)| known.id == room);
        let channel = match known {
            Some((&channel, _)) => channel,
            None => self.open_room(room).await?,
        };
        let options = SubscribeOptions::read().every(Duration::from_millis(33));
        self.client.tell(move |session| session.change_subscription(channel, Some(conn), &options)).await
    }

    /// Removes a player: its seat becomes free, and a room without players ends.
    async fn leave(&mut self, channel: ChannelId, conn: ConnId) -> Result<(), RequestError> {
        let role = self.role(conn);
        let Some(room) = self.rooms.get_mut(&channel) else { return Ok(()) };
        room.visitors = room.visitors.saturating_sub(1);
        room.arena.leave(conn.0);
        let (matcher, id, is_empty) = (self.matcher.clone(), room.id.clone(), room.visitors == 0);
        tokio::spawn(async move {
            if let Err(error) = matcher.leave_room(&role, &id).await {
                tracing::warn!(%error, "cannot remove a player who left from its room");
            }
        });
        if is_empty {
            self.rooms.remove(&channel);
            self.client.remove_channel(channel).await?;
        }
        Ok(())
    }

    async fn open_room(&mut self, id: &str) -> Result<ChannelId, RequestError> {
        self.opened += 1;
        let mut arena = Arena::new(self.round, self.opened);
        let create = CreateChannel::new(ChannelType::SUBWORLD)
            .metadata(format!("tag {}", self.opened))
            .data(ARENA_TYPE, arena.snapshot().encode_to_vec())
            .merge(MergeOptions { check_removable: true, ..MergeOptions::default() });
        let channel = self.client.create_channel(create).await?.channel;
        self.rooms.insert(channel, Room { id: id.to_owned(), arena, visitors: 0 });
        Ok(channel)
    }
}
