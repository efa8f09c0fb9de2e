//! Relay for Godot 3's `NetworkedMultiplayerENet`: handling of its events; crates/enet/GODOT.md has
//! the rules.

use std::collections::BTreeMap;

use throng_net::enet::{Config, Delivery, Event, Lane, Server, ServerPeer};

/// Lanes that Godot's clients ask for.
const LANES: u8 = 3;
/// The lane on which the server tells who is there; packets of clients travel on the others.
const NEWS: Lane = Lane(0);
const HAS_COME: u32 = 0;
const HAS_LEFT: u32 = 1;
/// The id of the server, and everybody's in the place of a target.
const SERVER: i32 = 1;
const EVERYBODY: i32 = 0;

/// The clients by the ids that they have chosen.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    clients: BTreeMap<i32, ServerPeer>,
}

impl Relay {
    /// Setup of a relay's hosts.
    pub(crate) fn config(seed: u128) -> Config {
        Config { lanes_max: LANES, ..Config::new(seed) }
    }

    /// Clients that are there.
    pub(crate) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Obeys one event. What is to be sent leaves with the next [`Server::flush`].
    pub(crate) fn handle(&mut self, server: &mut Server, peer: ServerPeer, event: Event) {
        match event {
            Event::Connected { data, .. } => self.welcome(server, peer, data),
            Event::Received { lane, data, delivery, .. } if lane != NEWS => {
                let Some((source, target)) = header(&data) else { return };
                // Nobody speaks for others, and nothing here answers for the server.
                if self.clients.get(&source) != Some(&peer) || target == SERVER {
                    return;
                }
                if target > 0 {
                    if let Some(&to) = self.clients.get(&target) {
                        server.send(to, lane, data, delivery);
                    }
                    return;
                }
                for (&id, &to) in &self.clients {
                    let is_meant = target == EVERYBODY || target.checked_neg() != Some(id);
                    if is_meant && id != source {
                        server.send(to, lane, data.clone(), delivery);
                    }
                }
            }
            Event::Disconnected { .. } => {
                let left = self.clients.iter().find(|&(_, &client)| client == peer).map(|(&id, _)| id);
                let Some(left) = left else { return };
                self.clients.remove(&left);
                for &other in self.clients.values() {
                    tell(server, other, HAS_LEFT, left);
                }
            }
            _ => {}
        }
    }

    /// The number in CONNECT is the client's id.
    fn welcome(&mut self, server: &mut Server, peer: ServerPeer, id: u32) {
        match i32::try_from(id) {
            Ok(id) if id > SERVER && !self.clients.contains_key(&id) => {
                for (&other, &to) in &self.clients {
                    tell(server, to, HAS_COME, id);
                    tell(server, peer, HAS_COME, other);
                }
                self.clients.insert(id, peer);
            }
            // Dropped without a word, as Godot's own server does it.
            _ => server.configure(peer, |host, peer| host.reset(peer)),
        }
    }
}

fn tell(server: &mut Server, to: ServerPeer, what: u32, whom: i32) {
    let mut message = what.to_le_bytes().to_vec();
    message.extend_from_slice(&whom.to_le_bytes());
    server.send(to, NEWS, message, Delivery::Reliable);
}

/// Source and target of a client's packet.
fn header(packet: &[u8]) -> Option<(i32, i32)> {
    let (source, rest) = packet.split_first_chunk::<4>()?;
    Some((i32::from_le_bytes(*source), i32::from_le_bytes(*rest.first_chunk::<4>()?)))
}
