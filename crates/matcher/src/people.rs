//! Roles and the servers they live on, which only this file changes.

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::hash::BuildHasher;

use crate::info::Text;
use crate::key::{Numbers, PlayerKey, RoomKey, ServerKey, TeamKey, TicketKey};
use crate::notices::ServerNumber;
use crate::schema::v1;
use crate::slab::Slab;

/// A role that is in something.
#[derive(Clone, Debug)]
pub(crate) struct Player {
    id: Text,
    /// Place where its events go.
    server: ServerKey,
    /// Neighbours in the server's list.
    previous: Option<PlayerKey>,
    next: Option<PlayerKey>,
    team: Option<TeamKey>,
    /// The live room whose mode is exclusive.
    room: Option<RoomKey>,
    /// Every room that lists it as a member, lingering ones too; then those that keep a seat for
    /// it. One list, as each costs every player 24 bytes.
    places: SmallVec<[RoomKey; 4]>,
    /// Number of the former.
    memberships: u32,
    /// Its live tickets.
    tickets: SmallVec<[TicketKey; 2]>,
    /// No new ticket before: a match was declined.
    cooldown_until: u64,
    /// Further reasons to keep the entry.
    holds: u32,
}

/// A game server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    id: Text,
    /// Servers that were first seen later have greater ones.
    age: u64,
    first: Option<PlayerKey>,
    connected: bool,
    /// Time when its roles are given up, 0 while it is connected or was never.
    grace_until: u64,
    /// Request keys, rooms and backfills that name it.
    holds: u32,
}

impl Player {
    fn new(id: &[u8], server: ServerKey) -> Player {
        Player {
            id: Text::from_slice(id),
            server,
            previous: None,
            next: None,
            team: None,
            room: None,
            places: SmallVec::new(),
            memberships: 0,
            tickets: SmallVec::new(),
            cooldown_until: 0,
            holds: 0,
        }
    }

    fn save(&self) -> v1::Player<'_> {
        v1::Player {
            role: &self.id,
            team: self.team.map(TeamKey::index),
            room: self.room.map(RoomKey::index),
            rooms: self.rooms().iter().map(|room| room.index()).collect(),
            seats: self.seats().iter().map(|room| room.index()).collect(),
            tickets: self.tickets.iter().map(|ticket| ticket.index()).collect(),
            cooldown_until: self.cooldown_until,
        }
    }

    fn load(saved: &v1::Player<'_>, server: ServerKey) -> Player {
        Player {
            team: saved.team.map(TeamKey::new),
            room: saved.room.map(RoomKey::new),
            places: saved.rooms.iter().chain(&saved.seats).map(|room| RoomKey::new(*room)).collect(),
            memberships: saved.rooms.len() as u32,
            tickets: saved.tickets.iter().map(|ticket| TicketKey::new(*ticket)).collect(),
            cooldown_until: saved.cooldown_until,
            ..Player::new(saved.role, server)
        }
    }

    /// Its role.
    #[inline]
    pub(crate) fn id(&self) -> &Text {
        &self.id
    }

    /// Place where its events go.
    #[inline]
    pub(crate) fn server(&self) -> ServerKey {
        self.server
    }

    pub(crate) fn team(&self) -> Option<TeamKey> {
        self.team
    }

    /// The live room whose mode is exclusive.
    pub(crate) fn room(&self) -> Option<RoomKey> {
        self.room
    }

    /// Every room that lists it as a member, lingering ones too.
    pub(crate) fn rooms(&self) -> &[RoomKey] {
        &self.places[..self.memberships as usize]
    }

    /// Rooms that keep a seat for it.
    pub(crate) fn seats(&self) -> &[RoomKey] {
        &self.places[self.memberships as usize..]
    }

    /// Its live tickets.
    pub(crate) fn tickets(&self) -> &[TicketKey] {
        &self.tickets
    }

    /// No new ticket before: a match was declined.
    pub(crate) fn cooldown_until(&self) -> u64 {
        self.cooldown_until
    }

    /// Reads what a match changes, so that it is in the cache by then.
    pub(crate) fn touch(&self) -> u64 {
        self.tickets.len() as u64 ^ u64::from(self.holds) ^ self.id.len() as u64
    }
}

impl Server {
    /// Its `SrvID`.
    #[inline]
    pub(crate) fn id(&self) -> &Text {
        &self.id
    }

    /// Servers that were first seen later have greater ones.
    #[inline]
    pub(crate) fn age(&self) -> u64 {
        self.age
    }

    /// Returns whether it was connected at some time and was not given up since.
    pub(crate) fn had_session(&self) -> bool {
        self.connected || self.is_lost()
    }

    /// Returns whether its session was lost and its roles are not given up yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.grace_until > 0
    }

    /// Time when its roles are given up, 0 while it is connected or was never.
    pub(crate) fn grace_until(&self) -> u64 {
        self.grace_until
    }
}

/// A hash table from names to places. Its order is random and never becomes visible.
#[derive(Clone, Debug)]
struct Index<K> {
    table: HashTable<K>,
    hasher: DefaultHashBuilder,
}

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index { table: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }
}

impl<K: Copy + PartialEq> Index<K> {
    #[inline]
    fn find(&self, name: &[u8], same: impl Fn(K) -> bool) -> Option<K> {
        self.table.find(self.hasher.hash_one(name), |key| same(*key)).copied()
    }

    fn insert<'a>(&mut self, name: &[u8], key: K, name_of: impl Fn(K) -> &'a [u8]) {
        let hasher = &self.hasher;
        self.table.insert_unique(hasher.hash_one(name), key, |key| hasher.hash_one(name_of(*key)));
    }

    fn remove(&mut self, name: &[u8], key: K) {
        if let Ok(entry) = self.table.find_entry(self.hasher.hash_one(name), |found| *found == key) {
            entry.remove();
        }
    }
}

/// Roles and servers, found by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct People {
    players: Slab<PlayerKey, Player>,
    servers: Slab<ServerKey, Server>,
    /// Age of the next server.
    age: u64,
    player_index: Index<PlayerKey>,
    server_index: Index<ServerKey>,
    /// Players with tickets that have moved to another server since they were taken.
    moved: Vec<PlayerKey>,
}

impl std::ops::Index<PlayerKey> for People {
    type Output = Player;

    #[inline]
    fn index(&self, key: PlayerKey) -> &Player {
        &self.players[key]
    }
}

impl std::ops::Index<ServerKey> for People {
    type Output = Server;

    #[inline]
    fn index(&self, key: ServerKey) -> &Server {
        &self.servers[key]
    }
}

impl People {
    /// Servers in order of age with their players, without the answers to their requests.
    pub(crate) fn save(&self) -> (Vec<v1::Server<'_>>, Numbers) {
        let mut order: Vec<(u64, ServerKey)> =
            self.servers().map(|(key, server)| (server.age, key)).collect();
        order.sort_unstable();
        let mut numbers = Numbers::new(self.players.end(), self.servers.end());
        let mut next = 0;
        let mut saved = Vec::with_capacity(order.len());
        for (number, (_, key)) in (0..).zip(order) {
            numbers.set_server(key, number);
            let server = &self[key];
            let mut players = Vec::new();
            for player in self.players_of(key) {
                numbers.set_player(player, next);
                next += 1;
                players.push(self[player].save());
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
            let key = people.server_entry(server.name);
            people.set_session(key, server.connected, server.grace_until);
            let first = people.players.end();
            for player in &server.players {
                if people.player(player.role).is_some() {
                    return Err("a role is there twice");
                }
                people.insert_player(Player::load(player, key));
            }
            // The newest first, as the list has them.
            for player in (first..people.players.end()).rev() {
                people.link(PlayerKey::new(player), key);
            }
        }
        Ok(people)
    }

    #[inline]
    pub(crate) fn player(&self, id: &[u8]) -> Option<PlayerKey> {
        self.player_index.find(id, |key| self.players[key].id.as_slice() == id)
    }

    #[inline]
    pub(crate) fn server(&self, id: &[u8]) -> Option<ServerKey> {
        self.server_index.find(id, |key| self.servers[key].id.as_slice() == id)
    }

    pub(crate) fn get_player(&self, key: PlayerKey) -> Option<&Player> {
        self.players.get(key)
    }

    pub(crate) fn get_server(&self, key: ServerKey) -> Option<&Server> {
        self.servers.get(key)
    }

    /// The server that a number names, unless it is gone.
    pub(crate) fn numbered(&self, number: ServerNumber) -> Option<&Server> {
        self.servers.get(ServerKey::new(number.place)).filter(|known| known.age == number.age)
    }

    pub(crate) fn players(&self) -> impl Iterator<Item = (PlayerKey, &Player)> {
        self.players.iter()
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = (ServerKey, &Server)> {
        self.servers.iter()
    }

    pub(crate) fn player_count(&self) -> usize {
        self.players.len()
    }

    pub(crate) fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Roles of a server; the newest first.
    pub(crate) fn players_of(&self, server: ServerKey) -> impl Iterator<Item = PlayerKey> + '_ {
        let first = self.get_server(server).and_then(|server| server.first);
        std::iter::successors(first, |player| self[*player].next)
    }

    /// The identity of a server.
    #[inline]
    pub(crate) fn number(&self, server: ServerKey) -> ServerNumber {
        ServerNumber { place: server.index(), age: self[server].age }
    }

    pub(crate) fn server_of(&self, player: PlayerKey) -> &[u8] {
        &self[self[player].server].id
    }

    /// The entry of a server, made if there is none.
    pub(crate) fn server_entry(&mut self, id: &[u8]) -> ServerKey {
        if let Some(key) = self.server(id) {
            return key;
        }
        let (id, age) = (Text::from_slice(id), self.age);
        self.age += 1;
        let server = Server { id: id.clone(), age, first: None, connected: false, grace_until: 0, holds: 0 };
        let key = self.servers.insert(server);
        self.server_index.insert(&id, key, |key| &self.servers[key].id);
        key
    }

    /// The entry of a role on a server; it moves there if it was elsewhere. Call
    /// [`release`](People::release) when nothing holds it in the end.
    pub(crate) fn player_entry(&mut self, id: &[u8], server: ServerKey) -> PlayerKey {
        if let Some(key) = self.player(id) {
            self.move_to(key, server);
            return key;
        }
        let key = self.insert_player(Player::new(id, server));
        self.link(key, server);
        key
    }

    /// A player that is in no server's list yet.
    fn insert_player(&mut self, player: Player) -> PlayerKey {
        let key = self.players.insert(player);
        self.player_index.insert(&self.players[key].id, key, |key| &self.players[key].id);
        key
    }

    /// A role lives on a server from now on.
    pub(crate) fn move_to(&mut self, player: PlayerKey, server: ServerKey) {
        if self[player].server != server {
            self.unlink(player);
            self.link(player, server);
            if !self[player].tickets().is_empty() {
                self.moved.push(player);
            }
        }
    }

    /// Takes a player with tickets that has moved to another server.
    pub(crate) fn take_moved(&mut self) -> Option<PlayerKey> {
        let players = &self.players;
        std::iter::from_fn(|| self.moved.pop()).find(|player| players.get(*player).is_some())
    }

    /// A server's session began, or was lost: then its roles are given up at `grace_until`.
    pub(crate) fn set_session(&mut self, server: ServerKey, connected: bool, grace_until: u64) {
        let server = &mut self.servers[server];
        (server.connected, server.grace_until) = (connected, grace_until);
    }

    /// Ends the grace of a lost server and holds it, so that the entry outlives its last role.
    /// False if it came back, or has more time.
    pub(crate) fn begin_giving_up(&mut self, server: ServerKey, now: u64) -> bool {
        let Some(server) = self.servers.get_mut(server) else { return false };
        if server.connected || server.grace_until == 0 || server.grace_until > now {
            return false;
        }
        server.grace_until = 0;
        server.holds += 1;
        true
    }

    /// Keeps a server for `count` further reasons. False if there is no such server.
    #[must_use]
    pub(crate) fn hold_server(&mut self, server: ServerKey, count: u32) -> bool {
        let server = self.servers.get_mut(server);
        server.map(|server| server.holds += count).is_some()
    }

    /// Ends one of the reasons to keep a server.
    pub(crate) fn let_go_of_server(&mut self, server: ServerKey) {
        self.servers[server].holds -= 1;
        self.release_server(server);
    }

    /// Keeps a role for a further reason. False if there is no such role.
    #[must_use]
    pub(crate) fn hold(&mut self, player: PlayerKey) -> bool {
        self.players.get_mut(player).map(|player| player.holds += 1).is_some()
    }

    /// Ends one of the further reasons to keep a role.
    pub(crate) fn let_go_of(&mut self, player: PlayerKey) {
        self.players[player].holds -= 1;
        self.release(player);
    }

    pub(crate) fn set_team(&mut self, player: PlayerKey, team: Option<TeamKey>) {
        self.players[player].team = team;
    }

    /// A role is a member of a room; `is_only` if the room's mode is exclusive.
    pub(crate) fn enter_room(&mut self, player: PlayerKey, room: RoomKey, is_only: bool) {
        let player = &mut self.players[player];
        player.places.insert(player.memberships as usize, room);
        player.memberships += 1;
        if is_only {
            player.room = Some(room);
        }
    }

    /// A room that still lists a role keeps it from no other any more.
    pub(crate) fn free_from_room(&mut self, player: PlayerKey, room: RoomKey) {
        let player = &mut self.players[player];
        player.room = player.room.filter(|only| *only != room);
    }

    /// A role is no member of a room any more, and is forgotten if it is in nothing else.
    pub(crate) fn leave_room(&mut self, player: PlayerKey, room: RoomKey) {
        let entry = &mut self.players[player];
        while let Some(at) = entry.rooms().iter().position(|other| *other == room) {
            entry.places.remove(at);
            entry.memberships -= 1;
        }
        self.free_from_room(player, room);
        self.release(player);
    }

    /// A room keeps a seat for a role.
    pub(crate) fn take_seat(&mut self, player: PlayerKey, room: RoomKey) {
        self.players[player].places.push(room);
    }

    /// A room keeps one seat less for a role.
    pub(crate) fn lose_seat(&mut self, player: PlayerKey, room: RoomKey) {
        let player = &mut self.players[player];
        if let Some(at) = player.seats().iter().position(|other| *other == room) {
            player.places.remove(player.memberships as usize + at);
        }
    }

    pub(crate) fn add_ticket(&mut self, player: PlayerKey, ticket: TicketKey) {
        self.players[player].tickets.push(ticket);
    }

    pub(crate) fn lose_ticket(&mut self, player: PlayerKey, ticket: TicketKey) {
        self.players[player].tickets.retain(|other| *other != ticket);
    }

    /// A ticket of a role has ended; it is forgotten if it is in nothing else.
    pub(crate) fn end_ticket(&mut self, player: PlayerKey, ticket: TicketKey) {
        self.lose_ticket(player, ticket);
        self.release(player);
    }

    /// A role may make no ticket before `until`, which keeps its entry.
    pub(crate) fn cool_down(&mut self, player: PlayerKey, until: u64) {
        let player = &mut self.players[player];
        player.cooldown_until = player.cooldown_until.max(until);
        player.holds += 1;
    }

    /// Forgets a role that is in nothing.
    pub(crate) fn release(&mut self, key: PlayerKey) {
        let Some(player) = self.get_player(key) else { return };
        let is_in = player.team.is_some() || !player.places.is_empty() || !player.tickets.is_empty();
        if is_in || player.holds > 0 {
            return;
        }
        let server = player.server;
        self.unlink(key);
        if let Some(player) = self.players.remove(key) {
            self.player_index.remove(&player.id, key);
        }
        self.release_server(server);
    }

    /// Forgets a server that has no session and no roles.
    pub(crate) fn release_server(&mut self, key: ServerKey) {
        let Some(server) = self.get_server(key) else { return };
        if server.connected || server.first.is_some() || server.holds > 0 || server.grace_until > 0 {
            return;
        }
        if let Some(server) = self.servers.remove(key) {
            self.server_index.remove(&server.id, key);
        }
    }

    fn link(&mut self, player: PlayerKey, server: ServerKey) {
        let first = self.servers[server].first.replace(player);
        if let Some(first) = first {
            self.players[first].previous = Some(player);
        }
        let entry = &mut self.players[player];
        (entry.server, entry.previous, entry.next) = (server, None, first);
    }

    fn unlink(&mut self, player: PlayerKey) {
        let Player { server, previous, next, .. } = self.players[player];
        match previous {
            None => self.servers[server].first = next,
            Some(previous) => self.players[previous].next = next,
        }
        if let Some(next) = next {
            self.players[next].previous = previous;
        }
    }

    /// Checks each list and index, and that `holds` counts the reasons to keep each server.
    pub(crate) fn check_invariants(&self, holds: impl Fn(ServerKey) -> u32) -> Result<(), &'static str> {
        let mut players = 0;
        for (key, server) in self.servers() {
            let is_linked = |(at, player): (Option<PlayerKey>, PlayerKey)| {
                self[player].previous == at && self[player].server == key
            };
            let before = std::iter::once(None).chain(self.players_of(key).map(Some));
            let wrong = match () {
                () if server.holds != holds(key) => "holds of a server",
                () if self.server(&server.id) != Some(key) => "the name of a server",
                () if !before.zip(self.players_of(key)).all(is_linked) => "the roles of a server",
                () => {
                    players += self.players_of(key).count();
                    continue;
                }
            };
            return Err(wrong);
        }
        if players != self.players.len() {
            return Err("a player lives on no server");
        }
        for (key, player) in self.players() {
            if self.player(&player.id) != Some(key) {
                return Err("the name of a player");
            }
            if player.room.is_some_and(|room| !player.rooms().contains(&room)) {
                return Err("a player's only room");
            }
        }
        Ok(())
    }
}
