//! Joins a room of a mode, writes one line to the channel when the match begins, and prints the
//! lines of the others until one of them says "bye". `docs/how-to/connect-a-client.md` starts the
//! gateway.
//!
//!     cargo run --example chat_client -- ws://127.0.0.1:12108 alice party "hello"

#![allow(clippy::print_stdout, reason = "this is what the example is for")]

use std::time::Duration;

use prost::Message as _;
use throng_client::{Client, Event, MatchmakingEvent, SessionConfig, SubscribeOptions};

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
    chat(&arg("127.0.0.1:12108"), &arg("alice"), &arg("party"), &arg("hello"), |line| println!("{line}"))
        .await
}

pub(crate) async fn chat(
    address: &str,
    name: &str,
    mode: &str,
    says: &str,
    mut print: impl FnMut(String),
) -> Result<(), Box<dyn std::error::Error>> {
    let config = SessionConfig { resume: true, ..SessionConfig::client(name, "") };
    let (client, mut events) = Client::connect(address.parse()?, config).await?;
    client.join_random_room(mode).await?;
    while let Some(event) = events.next().await {
        match event {
            Event::Matchmaking { event: MatchmakingEvent::Entered { channel, .. }, .. } => {
                // The gateway has subscribed us; this asks for our own lines as well.
                let options = SubscribeOptions {
                    skip_self: Some(false),
                    ..SubscribeOptions::write().every(Duration::from_millis(50))
                };
                client.tell(move |session| session.change_subscription(channel, None, &options)).await?;
                client.update(channel, CHAT, line(name, says)).await?;
            }
            Event::Update { value, .. } => {
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

fn line(sender: &str, content: &str) -> Vec<u8> {
    let message = ChatMessage { sender: sender.to_owned(), content: content.to_owned() };
    ChatData { messages: vec![message] }.encode_to_vec()
}
