//! Roles and the servers they live on.

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::hash::BuildHasher;

use crate::info::Text;
use crate::key::TeamKey;
use crate::notices::ServerNumber;
use crate::schema::v1;
use crate::slab::{NONE, Slab};

/// A role that is in something.
#[derive(Clone, Debug)]
pub(crate) struct Player {
    pub(crate) id: Text,
    /// Place where its events go.
    pub(crate) server: u32,
    /// Neighbours in the server's list.
    previous: u32,
    next: u32,
    pub(crate) team: Option<TeamKey>,
    /// The live room whose mode is exclusive.
    pub(crate) room: u32,
    /// Every room that lists it as a member, lingering ones too.
    pub(crate) rooms: SmallVec<[u32; 2]>,
    /// Rooms that keep a seat for it.
    pub(crate) seats: SmallVec<[u32; 1]>,
    /// Its live tickets.
    pub(crate) tickets: SmallVec<[u32; 2]>,
    /// No new ticket before: a match was declined.
    pub(crate) cooldown_until: u64,
    /// Further reasons to keep the entry.
    pub(crate) holds: u32,
}

/// A game server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) id: Text,
    /// Servers that were first seen later have greater ones.
    pub(crate) age: u64,
    first: u32,
    pub(crate) connected: bool,
    /// Time when its roles are given up, 0 while it is connected or was never.
    pub(crate) grace_until: u64,
    /// Request keys and rooms that name it.
    pub(crate) holds: u32,
}

/// Numbers in a snapshot by index.
#[derive(Debug)]
pub(crate) struct Numbers {
    players: Vec<u32>,
    servers: Vec<u32>,
}

impl Numbers {
    pub(crate) fn player(&self, index: u32) -> Option<u32> {
        self.players.get(index as usize).copied().filter(|number| *number != NONE)
    }

    pub(crate) fn server(&self, index: u32) -> Option<u32> {
        self.servers.get(index as usize).copied().filter(|number| *number != NONE)
    }
}

impl Player {
    fn save(&self) -> v1::Player<'_> {
        let place = |index: u32| (index != NONE).then_some(index);
        v1::Player {
            role: &self.id,
            team: self.team.map(TeamKey::index),
            room: place(self.room),
            rooms: self.rooms.to_vec(),
            seats: self.seats.to_vec(),
            tickets: self.tickets.to_vec(),
            cooldown_until: self.cooldown_until,
        }
    }

    fn load(saved: &v1::Player<'_>) -> Player {
        Player {
            id: Text::from_slice(saved.role),
            server: NONE,
            previous: NONE,
            next: NONE,
            team: saved.team.map(TeamKey::new),
            room: saved.room.unwrap_or(NONE),
            rooms: SmallVec::from_slice(&saved.rooms),
            seats: SmallVec::from_slice(&saved.seats),
            tickets: SmallVec::from_slice(&saved.tickets),
            cooldown_until: saved.cooldown_until,
            holds: 0,
        }
    }
}

/// A table from names to indexes whose order nobody sees.
#[derive(Clone, Debug, Default)]
struct Index {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Index {
    #[inline]
    fn find(&self, name: &[u8], same: impl Fn(u32) -> bool) -> Option<u32> {
        self.table.find(self.hasher.hash_one(name), |index| same(*index)).copied()
    }

    fn insert<'a>(&mut self, name: &[u8], index: u32, name_of: impl Fn(u32) -> &'a [u8]) {
        let hasher = &self.hasher;
        self.table.insert_unique(hasher.hash_one(name), index, |index| hasher.hash_one(name_of(*index)));
    }

    fn remove(&mut self, name: &[u8], index: u32) {
        if let Ok(entry) = self.table.find_entry(self.hasher.hash_one(name), |found| *found == index) {
            entry.remove();
        }
    }
}

/// Roles and servers, found by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct People {
    pub(crate) players: Slab<Player>,
    pub(crate) servers: Slab<Server>,
    /// Age of the next server.
    age: u64,
    player_index: Index,
    server_index: Index,
}

impl People {
    /// Servers in order of age with their players, without the answers to their requests.
    pub(crate) fn save(&self) -> (Vec<v1::Server<'_>>, Numbers) {
        let mut order: Vec<(u64, u32)> =
            self.servers.iter().map(|(index, server)| (server.age, index)).collect();
        order.sort_unstable();
        let mut numbers = Numbers {
            players: vec![NONE; self.players.next_new() as usize],
            servers: vec![NONE; self.servers.next_new() as usize],
        };
        let mut next = 0;
        let mut saved = Vec::with_capacity(order.len());
        for (number, (_, index)) in (0..).zip(order) {
            numbers.servers[index as usize] = number;
            let server = &self.servers[index];
            let mut players = Vec::new();
            for player in self.players_of(index) {
                numbers.players[player as usize] = next;
                next += 1;
                players.push(self.players[player].save());
            }
            let (connected, grace_until) = (server.connected, server.grace_until);
            saved.push(v1::Server { name: &server.id, connected, grace_until, players, answers: Vec::new() });
        }
        (saved, numbers)
    }

    /// Servers and players whose indexes are their numbers in the snapshot. Nothing holds them yet.
    pub(crate) fn load(saved: &[v1::Server<'_>]) -> Result<People, &'static str> {
        let mut people = People::default();
        for server in saved {
            if people.server(server.name).is_some() {
                return Err("a server is there twice");
            }
            let index = people.server_entry(server.name);
            let entry = &mut people.servers[index];
            (entry.connected, entry.grace_until) = (server.connected, server.grace_until);
            let first = people.players.next_new();
            for player in &server.players {
                if people.player(player.role).is_some() {
                    return Err("a role is there twice");
                }
                let player = people.players.insert(Player::load(player));
                people
                    .player_index
                    .insert(&people.players[player].id, player, |index| &people.players[index].id);
            }
            // The newest first, as the list has them.
            (first..people.players.next_new()).rev().for_each(|player| people.link(player, index));
        }
        Ok(people)
    }

    #[inline]
    pub(crate) fn player(&self, id: &[u8]) -> Option<u32> {
        self.player_index.find(id, |index| self.players[index].id.as_slice() == id)
    }

    #[inline]
    pub(crate) fn server(&self, id: &[u8]) -> Option<u32> {
        self.server_index.find(id, |index| self.servers[index].id.as_slice() == id)
    }

    /// The entry of a server, made if there is none.
    pub(crate) fn server_entry(&mut self, id: &[u8]) -> u32 {
        if let Some(index) = self.server(id) {
            return index;
        }
        let (id, age) = (Text::from_slice(id), self.age);
        self.age += 1;
        let server = Server { id: id.clone(), age, first: NONE, connected: false, grace_until: 0, holds: 0 };
        let index = self.servers.insert(server);
        self.server_index.insert(&id, index, |index| &self.servers[index].id);
        index
    }

    /// The entry of a role on a server; it moves there if it was elsewhere. Call
    /// [`release`](People::release) when nothing holds it in the end.
    pub(crate) fn player_entry(&mut self, id: &[u8], server: u32) -> u32 {
        if let Some(index) = self.player(id) {
            self.move_to(index, server);
            return index;
        }
        let index = self.players.insert(Player {
            id: Text::from_slice(id),
            server: NONE,
            previous: NONE,
            next: NONE,
            team: None,
            room: NONE,
            rooms: SmallVec::new(),
            seats: SmallVec::new(),
            tickets: SmallVec::new(),
            cooldown_until: 0,
            holds: 0,
        });
        self.player_index.insert(id, index, |index| &self.players[index].id);
        self.link(index, server);
        index
    }

    /// A role lives on a server from now on.
    pub(crate) fn move_to(&mut self, player: u32, server: u32) {
        if self.players[player].server != server {
            self.unlink(player);
            self.link(player, server);
        }
    }

    /// A room keeps one seat less for a role.
    pub(crate) fn lose_seat(&mut self, player: u32, room: u32) {
        let seats = &mut self.players[player].seats;
        if let Some(at) = seats.iter().position(|other| *other == room) {
            seats.remove(at);
        }
    }

    /// Forgets a role that is in nothing.
    pub(crate) fn release(&mut self, index: u32) {
        let Some(player) = self.players.get(index) else { return };
        let is_in = player.team.is_some() || !player.rooms.is_empty() || !player.tickets.is_empty();
        if is_in || !player.seats.is_empty() || player.holds > 0 {
            return;
        }
        let server = player.server;
        self.unlink(index);
        if let Some(player) = self.players.remove(index) {
            self.player_index.remove(&player.id, index);
        }
        self.release_server(server);
    }

    /// Forgets a server that has no session and no roles.
    pub(crate) fn release_server(&mut self, index: u32) {
        let Some(server) = self.servers.get(index) else { return };
        if server.connected || server.first != NONE || server.holds > 0 || server.grace_until > 0 {
            return;
        }
        if let Some(server) = self.servers.remove(index) {
            self.server_index.remove(&server.id, index);
        }
    }

    /// Roles of a server; the newest first.
    pub(crate) fn players_of(&self, server: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.servers.get(server).map_or(NONE, |server| server.first);
        std::iter::successors((first != NONE).then_some(first), |index| {
            let next = self.players[*index].next;
            (next != NONE).then_some(next)
        })
    }

    /// The identity of the server at `place`.
    #[inline]
    pub(crate) fn number(&self, place: u32) -> ServerNumber {
        ServerNumber { place, age: self.servers[place].age }
    }

    pub(crate) fn server_of(&self, player: u32) -> &[u8] {
        &self.servers[self.players[player].server].id
    }

    fn link(&mut self, player: u32, server: u32) {
        let first = self.servers[server].first;
        if first != NONE {
            self.players[first].previous = player;
        }
        self.servers[server].first = player;
        let entry = &mut self.players[player];
        (entry.server, entry.previous, entry.next) = (server, NONE, first);
    }

    fn unlink(&mut self, player: u32) {
        let Player { server, previous, next, .. } = self.players[player];
        if previous == NONE {
            self.servers[server].first = next;
        } else {
            self.players[previous].next = next;
        }
        if next != NONE {
            self.players[next].previous = previous;
        }
    }
}
