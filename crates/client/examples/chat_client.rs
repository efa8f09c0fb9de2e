//! A chat client: joins a room (or opens it) and prints what is said; lines from standard input are said.
//!
//! Try it against a gateway with the schema of `fixtures/proto/chat.proto`:
//! `cargo run --example chat_client -- ws://127.0.0.1:12108 alice lobby`

#![allow(clippy::print_stderr, reason = "this is what the example is for")]

use std::time::Duration;

use prost::Message as _;
use throng_client::{
    Access, ChannelId, ChannelType, Client, CreateChannel, Event, MergeOptions, SessionConfig,
    SubscribeOptions,
};

/// `chatpb.ChatChannelData`; games generate these from their `.proto` files.
#[derive(Clone, PartialEq, prost::Message)]
struct ChatData {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<ChatMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChatMessage {
    #[prost(string, tag = "1")]
    sender: String,
    #[prost(string, tag = "3")]
    content: String,
}

const CHAT: &str = "chatpb.ChatChannelData";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let endpoint = args.next().unwrap_or("127.0.0.1:12108".into()).parse()?;
    let name = args.next().unwrap_or("alice".into());
    let room = args.next().unwrap_or("lobby".into());

    let config = SessionConfig { resume: true, ..SessionConfig::client(&name, "") };
    let (client, mut events) = Client::connect(endpoint, config).await?;
    let channel = enter(&client, &room).await?;
    eprintln!("in room {room} (channel {channel}) as {name}; type to talk");

    let (lines, mut said) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                break;
            }
        }
    });
    loop {
        tokio::select! {
            line = said.recv() => {
                let Some(content) = line else { break };
                let message = ChatMessage { sender: name.clone(), content };
                let update = ChatData { messages: vec![message] }.encode_to_vec();
                client.update(channel, CHAT, update).await?;
            }
            event = events.next() => match event {
                Some(Event::Update { channel: from, value, .. }) if from == channel => {
                    for message in ChatData::decode(value)?.messages {
                        eprintln!("<{}> {}", message.sender, message.content);
                    }
                }
                Some(Event::Closed { reason }) => eprintln!("connection lost ({reason}), trying again"),
                Some(_) => {}
                None => break,
            },
        }
    }
    client.close().await;
    Ok(())
}

/// Subscribes to the room, or opens it when there is none.
async fn enter(client: &Client, room: &str) -> Result<ChannelId, Box<dyn std::error::Error>> {
    let options = SubscribeOptions {
        access: Some(Access::Write),
        skip_self: Some(false),
        ..SubscribeOptions::write().every(Duration::from_millis(50))
    };
    let rooms = client.list_channels(Some(ChannelType::SUBWORLD), vec![room.to_owned()]).await?;
    if let Some(found) = rooms.first() {
        client.subscribe(found.channel, options).await?;
        return Ok(found.channel);
    }
    let create = CreateChannel::new(ChannelType::SUBWORLD)
        .metadata(room)
        .data(CHAT, ChatData::default().encode_to_vec())
        .merge(MergeOptions { list_size_limit: 100, truncate_top: true, ..MergeOptions::default() })
        .options(options);
    Ok(client.create_channel(create).await?.channel)
}
