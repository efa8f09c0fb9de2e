//! The matches, which only this file changes.

use std::collections::VecDeque;

use crate::id::Id;
use crate::info::Text;
use crate::key::{BackfillKey, MatchKey, Numbers, PlayerKey, QueueKey, TicketKey};
use crate::schema::v1;
use crate::slab::Slab;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its players are asked.
    Proposed,
    /// Its room is there and waits for a server.
    Assigning,
    /// It is a room like any other.
    Made,
}

/// In the order of their numbers in snapshots.
const STAGES: [Stage; 3] = [Stage::Proposed, Stage::Assigning, Stage::Made];

/// Every match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matches {
    list: Slab<MatchKey, Match>,
    /// Matches whose rooms are gone, in order of time: when each is forgotten.
    ended: VecDeque<(u64, Id)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Match {
    id: Id,
    queue: QueueKey,
    stage: Stage,
    /// Tickets by side, until it is made.
    sides: Vec<Vec<TicketKey>>,
    region: Option<u16>,
    quality: f64,
    level: u8,
    backfill: Option<BackfillKey>,
    room: Option<Id>,
    deadline: u64,
    /// Players who said yes.
    accepted: Vec<PlayerKey>,
    /// Player to position, once placed.
    positions: Vec<(PlayerKey, u8)>,
    /// The same for backfills, as long as it is known, with those who came by one: hashes of roles,
    /// and names, as players come and go and rules change.
    cast: Vec<(u64, Text)>,
    /// Entries that `overlap` rules found, as fields of the ready event. By the rules it was found
    /// with: those in force then may be others.
    shared: Vec<u8>,
    /// Hashes of the roles that a result may name: all that had a seat or joined. None where it is
    /// not rated.
    roster: Vec<u64>,
}

impl std::ops::Index<MatchKey> for Matches {
    type Output = Match;

    #[inline]
    fn index(&self, key: MatchKey) -> &Match {
        &self.list[key]
    }
}

impl Matches {
    pub(crate) fn load(
        saved: &v1::Places<v1::Match<'_>>,
        ended: impl Iterator<Item = (u64, Id)>,
        unplaced: &'static str,
    ) -> Result<Matches, &'static str> {
        let matches = saved.objects.iter().map(|own| Ok((own.id.place, Match::load(own)?)));
        let matches = matches.collect::<Result<Vec<_>, &'static str>>()?.into_iter();
        let list = Slab::from_places(matches, saved.free.clone()).ok_or(unplaced)?;
        Ok(Matches { list, ended: ended.collect() })
    }

    pub(crate) fn save(&self, numbers: &Numbers) -> v1::Places<v1::Match<'_>> {
        let objects = self.list.iter().map(|(_, found)| found.save(numbers)).collect();
        v1::Places { objects, free: self.list.free().to_vec() }
    }

    /// Matches whose rooms are gone, and when each is forgotten.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (u64, Id)> + '_ {
        self.ended.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (MatchKey, &Match)> {
        self.list.iter()
    }

    pub(crate) fn find(&self, id: Id) -> Option<MatchKey> {
        let is_same = self.list.get(MatchKey::new(id.index)).is_some_and(|found| found.id == id);
        is_same.then_some(MatchKey::new(id.index))
    }

    pub(crate) fn has(&self, key: MatchKey) -> bool {
        self.list.get(key).is_some()
    }

    /// The place of the next match that is proposed.
    pub(crate) fn next_key(&self) -> MatchKey {
        self.list.next_key()
    }

    /// Keeps a match at [`next_key`](Matches::next_key), which its id names.
    pub(crate) fn propose(&mut self, found: Match) {
        self.list.insert(found);
    }

    pub(crate) fn remove(&mut self, key: MatchKey) -> Option<Match> {
        self.list.remove(key)
    }

    /// A player says yes. Returns how many have.
    pub(crate) fn accept(&mut self, key: MatchKey, player: PlayerKey) -> usize {
        let found = &mut self.list[key];
        if !found.accepted.contains(&player) {
            found.accepted.push(player);
        }
        found.accepted.len()
    }

    /// Lends the tickets by side.
    pub(crate) fn take_sides(&mut self, key: MatchKey) -> Vec<Vec<TicketKey>> {
        std::mem::take(&mut self.list[key].sides)
    }

    /// Puts back what [`take_sides`](Matches::take_sides) has lent.
    pub(crate) fn put_sides(&mut self, key: MatchKey, sides: Vec<Vec<TicketKey>>) {
        self.list[key].sides = sides;
    }

    pub(crate) fn set_positions(&mut self, key: MatchKey, positions: Vec<(PlayerKey, u8)>) {
        self.list[key].positions = positions;
    }

    pub(crate) fn set_room(&mut self, key: MatchKey, room: Id) {
        self.list[key].room = Some(room);
    }

    /// The room waits for a server, until a deadline if its rules name one.
    pub(crate) fn await_server(&mut self, key: MatchKey, deadline: Option<u64>) {
        let found = &mut self.list[key];
        found.stage = Stage::Assigning;
        found.deadline = deadline.unwrap_or(found.deadline);
    }

    /// Forgets the positions of those who are not `there` any more.
    pub(crate) fn keep_cast(&mut self, key: MatchKey, there: &[u64]) {
        self.list[key].cast.retain(|(role, _)| there.contains(role));
    }

    pub(crate) fn add_cast(&mut self, key: MatchKey, cast: Vec<(u64, Text)>) {
        self.list[key].cast.extend(cast);
    }

    /// Adds roles that a result may name.
    pub(crate) fn enlist(&mut self, key: MatchKey, roles: impl Iterator<Item = u64>) {
        let roster = &mut self.list[key].roster;
        for role in roles {
            if !roster.contains(&role) {
                roster.push(role);
            }
        }
    }

    /// It is a room like any other. Returns whether it came by a backfill.
    pub(crate) fn make(&mut self, key: MatchKey) -> bool {
        let found = &mut self.list[key];
        found.stage = Stage::Made;
        (found.positions, found.accepted, found.shared) = (Vec::new(), Vec::new(), Vec::new());
        found.backfill.take().is_some()
    }

    /// Its room is gone: it is forgotten at `until`.
    pub(crate) fn end(&mut self, key: MatchKey, until: u64) {
        self.ended.push_back((until, self[key].id));
    }

    /// Forgets the first match whose time is over. Returns whether there was one.
    pub(crate) fn forget_one(&mut self, now: u64) -> bool {
        let Some((_, id)) = self.ended.front().copied().filter(|(until, _)| *until <= now) else {
            return false;
        };
        self.ended.pop_front();
        if let Some(key) = self.find(id) {
            self.remove(key);
        }
        true
    }

    /// Checks each match, and that `holds` is true of it.
    pub(crate) fn check_invariants(
        &self,
        holds: impl Fn(&Match) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        for (key, found) in self.list.iter() {
            if found.id.index != key.index() {
                return Err("the id of a match");
            }
            holds(found)?;
        }
        Ok(())
    }
}

impl Match {
    /// A match whose players are to be asked, or to be placed at once.
    pub(crate) fn new(
        id: Id,
        queue: QueueKey,
        sides: Vec<Vec<TicketKey>>,
        (level, quality, region): (u8, f64, Option<u16>),
        backfill: Option<BackfillKey>,
        deadline: u64,
        shared: Vec<u8>,
    ) -> Match {
        Match {
            id,
            queue,
            stage: Stage::Proposed,
            sides,
            region,
            quality,
            level,
            backfill,
            room: None,
            deadline,
            accepted: Vec::new(),
            positions: Vec::new(),
            cast: Vec::new(),
            shared,
            roster: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn queue(&self) -> QueueKey {
        self.queue
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Tickets by side, until it is made.
    pub(crate) fn sides(&self) -> &[Vec<TicketKey>] {
        &self.sides
    }

    pub(crate) fn region(&self) -> Option<u16> {
        self.region
    }

    pub(crate) fn quality(&self) -> f64 {
        self.quality
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn backfill(&self) -> Option<BackfillKey> {
        self.backfill
    }

    pub(crate) fn room(&self) -> Option<Id> {
        self.room
    }

    /// Time until which it waits for its players, or for a server.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Players who said yes.
    pub(crate) fn accepted(&self) -> &[PlayerKey] {
        &self.accepted
    }

    /// Player to position, once placed.
    pub(crate) fn positions(&self) -> &[(PlayerKey, u8)] {
        &self.positions
    }

    /// Positions that players were given, by the hashes of their roles.
    pub(crate) fn cast(&self) -> &[(u64, Text)] {
        &self.cast
    }

    /// Hashes of the roles that a result may name; none where it is not rated.
    pub(crate) fn roster(&self) -> &[u64] {
        &self.roster
    }

    /// Entries that `overlap` rules found, as fields of the ready event.
    pub(crate) fn shared(&self) -> &[u8] {
        &self.shared
    }

    pub(crate) fn tickets(&self) -> Vec<TicketKey> {
        self.sides.iter().flatten().copied().collect()
    }

    fn save(&self, numbers: &Numbers) -> v1::Match<'_> {
        let positions = self.positions.iter();
        v1::Match {
            id: self.id.into(),
            queue: self.queue.index(),
            stage: STAGES.iter().position(|stage| *stage == self.stage).unwrap_or_default() as u8,
            sides: self.sides.iter().map(|side| side.iter().map(|ticket| ticket.index()).collect()).collect(),
            region: self.region,
            quality: self.quality,
            level: self.level,
            backfill: self.backfill.map(BackfillKey::index),
            room: self.room.map(Id::into),
            deadline: self.deadline,
            accepted: self.accepted.iter().filter_map(|player| numbers.player(*player)).collect(),
            positions: positions.filter_map(|(player, at)| Some((numbers.player(*player)?, *at))).collect(),
            cast: self.cast.iter().map(|(role, name)| (*role, &name[..])).collect(),
            shared: &self.shared,
            roster: self.roster.clone(),
        }
    }

    fn load(saved: &v1::Match<'_>) -> Result<Match, &'static str> {
        Ok(Match {
            id: saved.id.into(),
            queue: QueueKey::new(saved.queue),
            stage: *STAGES.get(usize::from(saved.stage)).ok_or("a match has an unknown stage")?,
            sides: saved
                .sides
                .iter()
                .map(|side| side.iter().copied().map(TicketKey::new).collect())
                .collect(),
            region: saved.region,
            quality: saved.quality,
            level: saved.level,
            backfill: saved.backfill.map(BackfillKey::new),
            room: saved.room.map(Id::from),
            deadline: saved.deadline,
            accepted: saved.accepted.iter().map(|player| PlayerKey::new(*player)).collect(),
            positions: saved.positions.iter().map(|(player, at)| (PlayerKey::new(*player), *at)).collect(),
            cast: saved.cast.iter().map(|(role, name)| (*role, Text::from_slice(name))).collect(),
            shared: saved.shared.to_vec(),
            roster: saved.roster.clone(),
        })
    }
}
