//! The side that is claimed: players and teams that belong to this shard.

use std::collections::VecDeque;

use super::{End, Facts, Holder, Key, Known, Letter, Lock, Part};
use crate::info::Text;
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::slab::NONE;

fn bit(shard: u16) -> u16 {
    1 << shard
}

fn shards_in(bits: u16) -> impl Iterator<Item = u16> {
    (0..crate::shard::SHARDS_MAX).filter(move |shard| bits & bit(*shard) != 0)
}

impl Lock {
    fn absorb(&mut self, part: Option<Part>) {
        match part {
            Some(Part::Role(facts)) => self.facts.absorb(facts),
            Some(Part::Answer(answer)) => self.answer = Some(answer),
            None => {}
        }
    }
}

impl Matcher {
    /// A claim arrives: it is granted as soon as nobody else has the key.
    pub(super) fn claimed(&mut self, holder: Holder, key: Key) {
        if let Some(lock) = self.claims.locks.get_mut(&key) {
            self.stats.claims_waited += 1;
            lock.queue.push_back(holder);
            return;
        }
        self.lock(holder, key, VecDeque::new());
    }

    /// Gives a key to a holder, as soon as all shards that have it have said what they have.
    fn lock(&mut self, holder: Holder, key: Key, queue: VecDeque<Holder>) {
        let mut lock = Lock { holder, probes: 0, facts: Facts::default(), answer: None, queue };
        for shard in shards_in(self.shards_with(&key) & !bit(holder.0)) {
            if shard == self.shard.index {
                lock.absorb(self.part_of(&key));
            } else {
                lock.probes |= bit(shard);
                self.send(shard, Letter::Probe { holder, key: key.clone() });
            }
        }
        let waits = lock.probes != 0;
        self.claims.locks.insert(key.clone(), lock);
        if !waits {
            self.grant(&key);
        }
    }

    /// Shards that may have something of a key, a bit for each.
    fn shards_with(&self, key: &Key) -> u16 {
        match key {
            Key::Team(_) => 0,
            Key::Role(role) => self.claims.homes.get(role).map_or(0, |home| home.shards),
            Key::Room(id) => {
                let backfill = self.claims.filled.get(id);
                backfill.and_then(|backfill| self.shard.of_id(*backfill)).map_or(0, bit)
            }
            Key::Request(srv, key) => {
                let server = self.people.server(srv);
                let shard = server.and_then(|server| self.claims.used.find(server, *key));
                shard.map_or(0, |shard| bit(*shard))
            }
        }
    }

    /// What this shard has of something that another claims.
    pub(super) fn part_of(&self, key: &Key) -> Option<Part> {
        match key {
            Key::Team(_) | Key::Room(_) => None,
            Key::Role(role) => self.facts_of(role).map(Part::Role),
            Key::Request(srv, key) => {
                let answer = self.keys.find(self.people.server(srv)?, *key)?;
                Some(Part::Answer(answer.clone()))
            }
        }
    }

    fn grant(&mut self, key: &Key) {
        let Some(lock) = self.claims.locks.get_mut(key) else { return };
        let holder = lock.holder;
        let known = match key {
            Key::Role(_) => Known::Role(std::mem::take(&mut lock.facts)),
            Key::Team(id) => {
                let team = self.find_team(&id.text()).ok();
                Known::Team(team.map(|team| self.copy_team(team)))
            }
            Key::Room(id) => Known::Room(self.copy_room(*id)),
            Key::Request(..) => Known::Request(lock.answer.take()),
        };
        self.stats.claims_granted += 1;
        self.send(holder.0, Letter::Granted { job: holder.1, known });
    }

    /// A shard says what it has.
    pub(super) fn probed(&mut self, from: u16, holder: Holder, key: Key, part: Option<Part>) {
        if let (Key::Role(role), None) = (&key, &part) {
            self.gone(from, role);
        }
        // Whoever wanted to know may have given up.
        let Some(lock) = self.claims.locks.get_mut(&key).filter(|lock| lock.holder == holder) else { return };
        lock.probes &= !bit(from);
        lock.absorb(part);
        if lock.probes == 0 {
            self.grant(&key);
        }
    }

    /// The end of a claim, or of waiting for one.
    pub(super) fn settled(&mut self, holder: Holder, key: &Key, end: End, notices: &mut Notices) {
        let Some(lock) = self.claims.locks.get_mut(key) else { return };
        if lock.holder != holder {
            lock.queue.retain(|other| *other != holder);
            return;
        }
        let mut queue = std::mem::take(&mut lock.queue);
        self.claims.locks.remove(key);
        match key {
            Key::Role(role) => {
                if let Some(shard) = end.also {
                    self.claims.homes.entry(role.clone()).or_default().shards |= bit(shard);
                }
                self.note(holder.0, role, end.server, end.drops, notices);
            }
            Key::Request(srv, key) if end.server.is_some() => self.note_used(holder.0, srv, *key),
            Key::Request(..) | Key::Team(_) | Key::Room(_) => {}
        }
        if let Some(next) = queue.pop_front() {
            self.lock(next, key.clone(), queue);
        }
    }

    /// Notes which shard has answered a request with a key, for as long as that keeps the answer.
    fn note_used(&mut self, shard: u16, srv: &Text, key: u128) {
        let server = self.people.server_entry(srv);
        let until = self.now + self.config.key_ttl_ms;
        if self.claims.used.keep(until, server, key, shard, self.config.keys_per_server) {
            self.people.servers[server].holds += 1;
        }
    }

    /// Notes whether a shard has a role now, and tells the others that have it what they should know.
    fn note(&mut self, from: u16, role: &Text, server: Option<Text>, drops: bool, notices: &mut Notices) {
        let Some(server) = server else { return self.gone(from, role) };
        let home = self.claims.homes.entry(role.clone()).or_default();
        home.shards |= bit(from);
        let others = home.shards & !bit(from);
        let moves = home.server != server;
        if moves {
            home.server.clone_from(&server);
        }
        for shard in shards_in(others) {
            if shard == self.shard.index {
                if moves {
                    self.moved(role, &server);
                }
                if drops {
                    self.matched_elsewhere(role, notices);
                }
                continue;
            }
            if moves {
                self.send(shard, Letter::Moved { role: role.clone(), server: server.clone() });
            }
            if drops {
                self.send(shard, Letter::Drop { role: role.clone() });
            }
        }
    }

    /// A shard has a role no more.
    pub(super) fn gone(&mut self, from: u16, role: &Text) {
        if let Some(home) = self.claims.homes.get_mut(role) {
            home.shards &= !bit(from);
            if home.shards == 0 {
                self.claims.homes.remove(role);
            }
        }
    }

    /// A role of this shard lives on another server now.
    pub(super) fn moved(&mut self, role: &Text, server: &Text) {
        let Some(player) = self.people.player(role) else { return };
        if self.people.server_of(player) != server.as_slice() {
            let old = self.people.players[player].server;
            let entry = self.people.server_entry(server);
            self.people.player_entry(role, entry);
            self.people.release_server(old);
        }
    }

    /// What this shard has of a role.
    pub(super) fn facts_of(&self, role: &[u8]) -> Option<Facts> {
        let player = &self.people.players[self.people.player(role)?];
        let tickets = player.tickets.iter().map(|ticket| Text::from_slice(&self.ticket_text(*ticket)));
        Some(Facts {
            is_known: true,
            server: self.people.servers[player.server].id.clone(),
            team: (player.team != NONE).then(|| self.teams[player.team].id),
            room: (player.room != NONE).then(|| self.rooms[player.room].id),
            tickets: tickets.collect(),
            cooldown_until: player.cooldown_until,
        })
    }
}
