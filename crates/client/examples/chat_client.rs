//! A chat room: enters it, or opens it when there is none, says one line and prints what is said until somebody says
//! "bye". The gateway needs the schema `fixtures/proto/chat.proto` and the permissions `channeld`.
//!
//!     cargo run --example chat_client -- ws://127.0.0.1:12108 alice lobby "hello"

#![allow(clippy::print_stdout, reason = "this is what the example is for")]

use std::time::Duration;

use prost::Message as _;
use throng_client::{
    ChannelId, ChannelType, Client, CreateChannel, Event, MergeOptions, SessionConfig, SubscribeOptions,
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
#[allow(dead_code, reason = "a test calls `chat` itself")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut arg = |default: &str| args.next().unwrap_or(default.into());
    chat(&arg("127.0.0.1:12108"), &arg("alice"), &arg("lobby"), &arg("hello"), |line| println!("{line}"))
        .await
}

pub(crate) async fn chat(
    address: &str,
    name: &str,
    room: &str,
    says: &str,
    mut print: impl FnMut(String),
) -> Result<(), Box<dyn std::error::Error>> {
    let config = SessionConfig { resume: true, ..SessionConfig::client(name, "") };
    let (client, mut events) = Client::connect(address.parse()?, config).await?;
    let channel = enter(&client, room).await?;
    client.update(channel, CHAT, line(name, says)).await?;
    while let Some(event) = events.next().await {
        match event {
            Event::Update { channel: from, value, .. } if from == channel => {
                for message in ChatData::decode(value)?.messages {
                    print(format!("<{}> {}", message.sender, message.content));
                    if message.content == "bye" {
                        client.close().await;
                        return Ok(());
                    }
                }
            }
            Event::Closed { reason } => print(format!("connection lost ({reason})")),
            _ => {}
        }
    }
    Ok(())
}

/// Subscribes to the room, or opens it.
async fn enter(client: &Client, room: &str) -> Result<ChannelId, Box<dyn std::error::Error>> {
    let options = SubscribeOptions {
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
        .data(CHAT, line("room", "it is open"))
        .merge(MergeOptions { list_size_limit: 100, truncate_top: true, ..MergeOptions::default() })
        .options(options);
    Ok(client.create_channel(create).await?.channel)
}

fn line(sender: &str, content: &str) -> Vec<u8> {
    let message = ChatMessage { sender: sender.to_owned(), content: content.to_owned() };
    ChatData { messages: vec![message] }.encode_to_vec()
}
