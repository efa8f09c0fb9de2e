//! A relay for Godot 3's high-level multiplayer: clients connect as they would to a Godot server
//! and speak to each other, RPCs included, without any Godot on this side.
//!
//! ```console
//! $ cargo run --release -p throng-net --example godot_relay -- 0.0.0.0:7777
//! ```
//! In the game: `peer.create_client("192.0.2.1", 7777)`, as always.
#![allow(clippy::print_stdout, reason = "it is a program")]

mod relay;

use std::time::Duration;

use relay::Relay;
use throng_net::enet::{Server, ServerOptions};

/// Longest wait of a packet here; shorter is quicker, longer is cheaper.
const TICK: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).unwrap_or_else(|| "0.0.0.0:7777".to_owned());
    let mut server = Server::start(addr.parse()?, &ServerOptions::default(), Relay::config)?;
    let mut relay = Relay::default();
    println!("relaying on {}", server.addr());
    loop {
        let before = relay.len();
        while let Some((peer, event)) = server.poll_event() {
            relay.handle(&mut server, peer, event);
        }
        server.flush();
        if relay.len() != before {
            println!("{} clients", relay.len());
        }
        std::thread::sleep(TICK);
    }
}
