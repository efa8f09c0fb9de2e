//! The side that is claimed: players and teams that belong to this shard.

use std::collections::VecDeque;

use super::{Facts, Holder, Key, Known, Letter, Lock};
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

    /// Gives a key to a holder, as soon as all shards that have the role have said what they have.
    fn lock(&mut self, holder: Holder, key: Key, queue: VecDeque<Holder>) {
        let mut lock = Lock { holder, probes: 0, facts: Facts::default(), queue };
        if let Key::Role(role) = &key {
            let shards = self.claims.homes.get(role).map_or(0, |home| home.shards) & !bit(holder.0);
            for shard in shards_in(shards) {
                if shard != self.shard.index {
                    lock.probes |= bit(shard);
                    self.send(shard, Letter::Probe { holder, role: role.clone() });
                } else if let Some(facts) = self.facts_of(role) {
                    lock.facts.absorb(facts);
                }
            }
        }
        let waits = lock.probes != 0;
        self.claims.locks.insert(key.clone(), lock);
        if !waits {
            self.grant(&key);
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
        };
        self.stats.claims_granted += 1;
        self.send(holder.0, Letter::Granted { job: holder.1, known });
    }

    /// A shard says what it has of a role.
    pub(super) fn probed(&mut self, from: u16, holder: Holder, role: Text, facts: Option<Facts>) {
        if facts.is_none() {
            self.gone(from, &role);
        }
        let key = Key::Role(role);
        // Whoever wanted to know may have given up.
        let Some(lock) = self.claims.locks.get_mut(&key).filter(|lock| lock.holder == holder) else { return };
        lock.probes &= !bit(from);
        if let Some(facts) = facts {
            lock.facts.absorb(facts);
        }
        if lock.probes == 0 {
            self.grant(&key);
        }
    }

    /// The end of a claim, or of waiting for one.
    pub(super) fn settled(
        &mut self,
        holder: Holder,
        key: &Key,
        server: Option<Text>,
        drops: bool,
        notices: &mut Notices,
    ) {
        let Some(lock) = self.claims.locks.get_mut(key) else { return };
        if lock.holder != holder {
            lock.queue.retain(|other| *other != holder);
            return;
        }
        let mut queue = std::mem::take(&mut lock.queue);
        self.claims.locks.remove(key);
        if let Key::Role(role) = key {
            self.note(holder.0, role, server, drops, notices);
        }
        if let Some(next) = queue.pop_front() {
            self.lock(next, key.clone(), queue);
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
