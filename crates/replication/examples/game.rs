//! A whole small game: a server, two players who walk at once and are corrected at a wall, over a
//! link that loses a third of its packets. `cargo run --example game` plays ten seconds of it in
//! virtual time.

#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::time::Duration;

use throng_replication::{
    Axis, Call, Classes, Client, ClientConfig, ClientEvent, ConnId, DestroyReason, Event, Handle, Instant,
    Prediction, Replicate, Server, ServerConfig, View,
};

const FRAME: Duration = Duration::from_millis(33);
const SPEED: f32 = 0.2;
/// Only the server knows of the wall at x = 5.
const WALL: f32 = 5.0;

#[derive(Clone, Debug, Default, PartialEq, Replicate)]
#[replicate(cull_distance = 100.0, delta, calls(Greet, Greeted))]
struct Walker {
    #[replicate(throng_replication::Quantiser::Vec3([Axis::new(-512.0, 0.01, 17); 3]), position)]
    position: [f32; 3],
    #[replicate(max = 16)]
    name: String,
    /// Number of the last input that the server has applied.
    input: u32,
}

/// A player greets.
#[derive(Clone, Debug, Default, PartialEq, Call)]
#[call(to = server)]
struct Greet {
    #[replicate(max = 32)]
    text: String,
}

/// Everyone who sees the walker hears it.
#[derive(Clone, Debug, Default, PartialEq, Call)]
#[call(to = clients)]
struct Greeted {
    #[replicate(max = 32)]
    text: String,
}

/// The rule that both sides know.
fn walk(position: &mut [f32; 3], way: &i8) {
    position[0] += SPEED * f32::from(*way);
}

struct Player {
    id: ConnId,
    client: Client,
    own: Option<Handle<Walker>>,
    seen: Walker,
    prediction: Prediction<[f32; 3], i8>,
    heard: Vec<String>,
    corrections: u32,
}

impl Player {
    fn take_events(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                ClientEvent::Created(handle) | ClientEvent::Updated { handle, .. } => {
                    let Some(walker) = self.client.typed::<Walker>(handle) else { continue };
                    if self.client.get(handle).is_some_and(|replica| replica.is_owner()) {
                        self.own = Some(walker);
                        self.client.read(walker, &mut self.seen);
                        let state = self.seen.position;
                        let before = self.prediction.reconcile(self.seen.input, state, walk);
                        self.corrections += u32::from((before[0] - self.prediction.state()[0]).abs() > 0.01);
                    }
                }
                ClientEvent::Attachment(call) => {
                    if let Some((_, Greeted { text })) = self.client.read_call(&call) {
                        self.heard.push(text);
                    }
                }
                _ => {}
            }
        }
    }

    /// Moves at once, and sends every input that the server has not confirmed: a loss costs
    /// nothing.
    fn act(&mut self, way: i8) {
        if self.own.is_none() {
            return;
        }
        self.prediction.act(way, walk);
        let inputs = self.prediction.open();
        let bytes: Vec<u8> =
            inputs.flat_map(|(number, way)| number.to_le_bytes().into_iter().chain([*way as u8])).collect();
        if let Err(error) = self.client.send_input(&bytes) {
            println!("input dropped: {error}");
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut classes = Classes::new();
    classes.add::<Walker>()?;
    let mut server = Server::new(ServerConfig::default(), &classes);
    let mut now = Instant::ZERO;
    let mut count = 0_u32;
    // The link: every third packet is lost, more or less.
    let mut lost = || {
        count = count.wrapping_mul(0x9e37_79b1).wrapping_add(7);
        count >> 16 < 0x5000
    };
    let (mut players, mut walkers) = (Vec::new(), Vec::new());
    for name in ["Ada", "Grace"] {
        let id = server.connect().ok_or("no room")?;
        let client = Client::new(ClientConfig::default(), &classes);
        // In a handshake: the peer's description of its classes.
        server.check_protocol(id, &classes.protocol())?;
        server.set_views(id, &[View::default()]);
        let walker = Walker { name: name.into(), ..Walker::default() };
        let handle = server.create(&walker)?;
        server.set_owner(handle.untyped(), Some(id))?;
        walkers.push((handle, walker));
        let prediction = Prediction::new([0.0; 3], 60);
        let (own, seen, heard) = (None, Walker::default(), Vec::new());
        players.push(Player { id, client, own, seen, prediction, heard, corrections: 0 });
    }
    for frame in 0..300 {
        now += FRAME;
        for player in &mut players {
            player.act(if frame < 150 { 1 } else { -1 });
            if let (60, Some(own)) = (frame, player.own) {
                player.client.call(own, &Greet { text: format!("{} is here", player.seen.name) })?;
            }
            if let Some(packet) = player.client.poll_packet(now).filter(|_| !lost()) {
                server.receive(player.id, packet)?;
            }
        }
        while let Some(event) = server.poll_event() {
            match event {
                Event::Input(id, bytes) => {
                    let own =
                        walkers.iter_mut().find(|(handle, _)| server.owner(handle.untyped()) == Some(id));
                    let Some((handle, walker)) = own else { continue };
                    for [a, b, c, d, way] in bytes.as_chunks::<5>().0 {
                        let number = u32::from_le_bytes([*a, *b, *c, *d]);
                        if number > walker.input {
                            walker.input = number;
                            walk(&mut walker.position, &(*way as i8));
                            walker.position[0] = walker.position[0].min(WALL);
                        }
                    }
                    Walker::set_position(&mut server, *handle, &walker.position)?;
                    Walker::set_input(&mut server, *handle, &walker.input)?;
                }
                Event::Attachment(_, call) => {
                    if let Some((handle, Greet { text })) = server.read_call(&call) {
                        server.call_all(handle, &Greeted { text })?;
                    }
                }
                _ => {}
            }
        }
        server.tick(now, |packets| {
            let player = players.iter_mut().find(|player| player.id == packets.connection);
            let Some(player) = player else { return };
            for packet in packets.iter().filter(|_| !lost()) {
                let received = player.client.receive(packet);
                debug_assert!(received.is_ok(), "{received:?}");
            }
            player.take_events();
        });
    }
    for player in &players {
        let rtt = server.connection_stats(player.id).map_or(Duration::ZERO, |stats| stats.rtt);
        println!(
            "{}: stands at {:.2}, server says {:.2}; {} corrections, rtt {rtt:?}, heard {:?}",
            player.seen.name,
            player.prediction.state()[0],
            player.seen.position[0],
            player.corrections,
            player.heard
        );
    }
    server.destroy(walkers[0].0.untyped(), DestroyReason::Destroyed, true)?;
    Ok(())
}
