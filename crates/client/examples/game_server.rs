//! A game server: claims GLOBAL, opens a world, brings every player into it, and tells all of them
//! what each one does.
//!
//! Try it beside a gateway: `cargo run --example game_server -- 127.0.0.1:11288`

#![allow(clippy::print_stderr, reason = "this is what the example is for")]

use throng_client::{
    AuthOutcome, ChannelType, Client, CreateChannel, Event, SessionConfig, SubscribeOptions, broadcast,
};

/// User-space messages of this game.
const INPUT: u32 = 100;
const SAID: u32 = 101;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::args().nth(1).unwrap_or("127.0.0.1:11288".into()).parse()?;
    let (server, mut events) = Client::connect(endpoint, SessionConfig::server("game", "")).await?;
    // The owner of GLOBAL is told of every player that comes.
    server.create_channel(CreateChannel::new(ChannelType::GLOBAL).metadata("game")).await?;
    let world =
        server.create_channel(CreateChannel::new(ChannelType::SUBWORLD).metadata("world")).await?.channel;
    eprintln!("connection {} owns GLOBAL and world {world}", server.conn());

    while let Some(event) = events.next().await {
        match event {
            Event::PeerAuthenticated { conn, outcome: AuthOutcome::Successful, .. } => {
                eprintln!("player {conn} came");
                // Answered by an event like any other, so that many may come at once.
                server
                    .tell(move |session| {
                        session.change_subscription(world, Some(conn), &SubscribeOptions::read())
                    })
                    .await?;
            }
            Event::Message { msg_type: INPUT, client, payload, .. } => {
                let text = [format!("player {client}: ").as_bytes(), &payload].concat();
                server.forward(world, broadcast::ALL_BUT_SENDER, SAID, client, text).await?;
            }
            Event::Unsubscribed { channel, conn, .. } if channel == world => eprintln!("player {conn} left"),
            Event::Closed { reason } => eprintln!("connection lost ({reason}), trying again"),
            _ => {}
        }
    }
    Ok(())
}
