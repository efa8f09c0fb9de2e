//! Simulated players: ordinary connections that see the same data as human players and steer by it.

use std::time::Duration;

use prost::Message as _;
use throng_client::{Backoff, ChannelId, Client, ConnectError, Endpoint, Event, RequestError, SessionConfig};
use throng_stdx::Rng;
use tokio::time::MissedTickBehavior;

use crate::messages::{ArenaData, HELLO, Hello, STEER, Steer};
use crate::view::{merge, steer};

const NAMES: [&str; 16] = [
    "Ada",
    "Grace",
    "Alan",
    "Edsger",
    "Barbara",
    "Donald",
    "Radia",
    "Ken",
    "Margaret",
    "Dennis",
    "Katherine",
    "Linus",
    "Frances",
    "John",
    "Hedy",
    "Tim",
];

/// Decisions per second, about as many as a person makes in a chase.
const DECISIONS_PER_SECOND: u32 = 10;

/// Time in which the game server brings a player into a room. One that logged in before the game
/// server did is never noticed by it, and logs in again.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before another login.
const PAUSE: Duration = Duration::from_millis(250);

/// Plays in a world for ever. After a loss it logs in again, at the next of the nodes.
pub(crate) async fn play(nodes: Vec<Endpoint>, world: Option<String>, index: usize, seed: u64) {
    for endpoint in nodes.iter().cycle().skip(index % nodes.len()) {
        if let Err(error) = visit(endpoint.clone(), world.clone(), index, seed).await {
            tracing::debug!(%error, "a simulated player of tag cannot connect");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Plays until the connection ends.
async fn visit(
    endpoint: Endpoint,
    world: Option<String>,
    index: usize,
    seed: u64,
) -> Result<(), ConnectError> {
    let name = NAMES[index % NAMES.len()];
    let config = SessionConfig { world, ..SessionConfig::client(format!("simulated-{index}"), "") };
    let (client, mut events) = Client::connect_with(endpoint, config, Backoff::never()).await?;
    let no_room = tokio::time::sleep(ROOM_PATIENCE);
    tokio::pin!(no_room);
    let mut rng = Rng::new(seed + index as u64);
    let mut mood = rng.f64() as f32 * 6.0;
    let mut room: Option<ChannelId> = None;
    let mut data = ArenaData::default();
    let mut decisions = tokio::time::interval(Duration::from_secs(1) / DECISIONS_PER_SECOND);
    decisions.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = decisions.tick() => {
                let Some(channel) = room else { continue };
                let (x, y) = steer(&data, client.conn().0, &mut mood, &mut rng);
                let wish = Steer { x: (x * 100.0) as i32, y: (y * 100.0) as i32 };
                // While the connection is lost nobody steers.
                if let Err(RequestError::Closed) = client.send(channel, STEER, wish.encode_to_vec()).await {
                    return Ok(());
                }
            }
            () = &mut no_room, if room.is_none() => return Ok(()),
            event = events.next() => match event {
                Some(Event::Subscribed { channel, conn, .. }) if conn == client.conn() && room.is_none() => {
                    room = Some(channel);
                    let hello = Hello { name: name.to_owned(), simulated: true };
                    // As above.
                    let _ = client.send(channel, HELLO, hello.encode_to_vec()).await;
                }
                Some(Event::Update { channel, value, .. }) if Some(channel) == room => {
                    if let Ok(update) = ArenaData::decode(value) {
                        merge(&mut data, update);
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}
