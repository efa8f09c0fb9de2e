//! Backfills: running matches that ask for players.

use super::{Anchor, Compiled, Facts, PlayerFacts, Pool, Queues, Seeker, Start, ordered};
use crate::id::Id;
use crate::info::Text;
use crate::key::{BackfillKey, MatchKey, Numbers, PartitionKey, QueueKey, RoomKey, ServerKey, TicketKey};
use crate::problem::ensure;
use crate::schema::v1;
use crate::slab::{NONE, Slab};

/// Attributes that its server says the members have.
pub(crate) type Attributes = Vec<(Text, Vec<u8>)>;

/// A running match that asks for players.
#[derive(Clone, Debug)]
pub(crate) struct Backfill {
    pub(crate) id: Id,
    pub(crate) queue: QueueKey,
    pub(crate) room: Id,
    /// Server that asked and hears of it.
    pub(crate) owner: ServerKey,
    pub(crate) rev: u64,
    /// Free places by side.
    pub(crate) open: Vec<u32>,
    pub(crate) attrs: Attributes,
    pub(crate) created: u64,
    /// Without a sign of life until then it ends.
    pub(crate) ack_until: u64,
    /// Members that are there already, by side.
    fixed: Vec<Facts>,
    value: f64,
    pub(crate) region: Option<u16>,
    class: u8,
    /// Place of its partition, once its room was looked at.
    pub(super) partition: Option<PartitionKey>,
    /// Arrivals in the partition when it last found nothing.
    pub(super) seen: Option<u64>,
    /// A match whose players are asked.
    pub(crate) pending: Option<MatchKey>,
}

impl Backfill {
    /// Place of its room.
    pub(crate) fn room_key(&self) -> RoomKey {
        RoomKey::new(self.room.index)
    }

    /// `partition` is the number of its partition.
    pub(crate) fn save(&self, numbers: &Numbers, partition: u64) -> v1::Backfill<'_> {
        v1::Backfill {
            id: self.id.into(),
            queue: self.queue.index(),
            room: self.room.into(),
            owner: numbers.server(self.owner).unwrap_or(NONE),
            rev: self.rev,
            open: self.open.clone(),
            attributes: self.attrs.iter().map(|(key, value)| (&key[..], &value[..])).collect(),
            created: self.created,
            ack_until: self.ack_until,
            members: self.fixed.iter().map(Facts::save).collect(),
            value: self.value,
            region: self.region,
            class: self.class,
            partition,
            seen: self.seen,
            pending: self.pending.map(MatchKey::index),
        }
    }

    pub(crate) fn load(saved: &v1::Backfill<'_>, partition: PartitionKey) -> Backfill {
        let attribute = |(key, value): &(&[u8], &[u8])| (Text::from_slice(key), value.to_vec());
        Backfill {
            id: saved.id.into(),
            queue: QueueKey::new(saved.queue),
            room: saved.room.into(),
            owner: ServerKey::new(saved.owner),
            rev: saved.rev,
            open: saved.open.clone(),
            attrs: saved.attributes.iter().map(attribute).collect(),
            created: saved.created,
            ack_until: saved.ack_until,
            fixed: saved.members.iter().map(Facts::load).collect(),
            value: saved.value,
            region: saved.region,
            class: saved.class,
            partition: Some(partition),
            seen: saved.seen,
            pending: saved.pending.map(MatchKey::new),
        }
    }

    /// A backfill that was not placed yet. `class` is its priority.
    pub(crate) fn new(
        (id, queue, room): (Id, QueueKey, Id),
        owner: ServerKey,
        (open, attrs): (Vec<u32>, Attributes),
        region: Option<u16>,
        class: u8,
        now: u64,
    ) -> Backfill {
        Backfill {
            id,
            queue,
            room,
            owner,
            rev: 1,
            open,
            attrs,
            created: now,
            ack_until: now,
            fixed: Vec::new(),
            value: 0.0,
            region,
            class,
            partition: None,
            seen: None,
            pending: None,
        }
    }

    /// Returns whether it may be given players now.
    pub(crate) fn is_free(&self) -> bool {
        self.pending.is_none() && self.open.iter().any(|open| *open > 0)
    }

    /// Its place in the order of fairness, if it should look.
    pub(crate) fn anchor(&self, index: BackfillKey, pool: &Pool) -> Option<Anchor> {
        let fresh = self.seen != Some(pool.partitions[self.partition?].arrivals);
        (self.is_free() && fresh).then_some(Anchor {
            class: self.class,
            rank: 0,
            created: self.created,
            who: Seeker::Backfill(index),
        })
    }

    /// Players who are on a side already.
    pub(crate) fn players_of(&self, side: usize) -> &[PlayerFacts] {
        self.fixed.get(side).map_or(&[], |facts| &facts.players)
    }

    pub(crate) fn start(&self, compiled: &Compiled, now: u64) -> Start<'_> {
        let level = compiled.level_at(now.saturating_sub(self.created));
        let mut hot = compiled.hot(&Facts::default(), level);
        (hot.size, hot.mask) = (0, self.region.map_or(u64::MAX, |region| 1 << region));
        Start {
            key: (ordered(self.value), TicketKey::LAST),
            hot,
            ticket: None,
            fixed: self
                .fixed
                .iter()
                .map(|facts| if facts.size == 0 { vec![] } else { vec![facts] })
                .collect(),
            open: self.open.clone(),
        }
    }
}

/// Members of a backfill's room, as the search sees them.
pub(crate) struct BackfillFacts {
    /// By side.
    pub(crate) fixed: Vec<Facts>,
    /// The main number.
    pub(crate) value: f64,
    pub(crate) partition: Vec<Text>,
}

impl Queues {
    pub(crate) fn backfills(&self) -> impl Iterator<Item = (BackfillKey, &Backfill)> {
        self.backfills.iter()
    }

    pub(crate) fn backfill_count(&self) -> usize {
        self.backfills.len()
    }

    pub(crate) fn get_backfill(&self, key: BackfillKey) -> Option<&Backfill> {
        self.backfills.get(key)
    }

    pub(crate) fn find_backfill(&self, id: Id) -> Option<BackfillKey> {
        let key = BackfillKey::new(id.index);
        self.backfills.get(key).is_some_and(|backfill| backfill.id == id).then_some(key)
    }

    /// The place of the next backfill.
    pub(crate) fn next_backfill(&self) -> BackfillKey {
        self.backfills.next_key()
    }

    /// Keeps a backfill at [`next_backfill`](Queues::next_backfill), which its id names. The
    /// search begins when it is [placed](Queues::place_backfill).
    pub(crate) fn insert_backfill(&mut self, backfill: Backfill) -> BackfillKey {
        let queue = backfill.queue;
        let key = self.backfills.insert(backfill);
        self.list[queue].backfills.insert(key);
        key
    }

    pub(crate) fn remove_backfill(&mut self, key: BackfillKey) -> Option<Backfill> {
        let backfill = self.backfills.remove(key)?;
        let queue = &mut self.list[backfill.queue];
        queue.backfills.remove(&key);
        if let Some(partition) = backfill.partition {
            queue.pool.partitions[partition].backfills -= 1;
            queue.pool.release(partition);
        }
        Some(backfill)
    }

    /// Notes who is in a backfill's room and in which part of the pool it looks for players.
    pub(crate) fn place_backfill(&mut self, key: BackfillKey, facts: BackfillFacts) {
        let backfill = &mut self.backfills[key];
        let pool = &mut self.list[backfill.queue].pool;
        let partition = pool.partition(facts.partition);
        if backfill.partition != Some(partition) {
            pool.partitions[partition].backfills += 1;
            if let Some(old) = backfill.partition {
                pool.partitions[old].backfills -= 1;
                pool.release(old);
            }
        }
        (backfill.fixed, backfill.value, backfill.partition) = (facts.fixed, facts.value, Some(partition));
        backfill.seen = None;
    }

    /// Lets a backfill look again, whatever it has seen.
    pub(crate) fn forget_seen(&mut self, key: BackfillKey) {
        self.backfills[key].seen = None;
    }

    /// Marks a backfill for the search of the next tick, if any ticket may fit.
    pub(crate) fn wake_backfill(&mut self, key: BackfillKey) {
        let backfill = &self.backfills[key];
        let pool = &mut self.list[backfill.queue].pool;
        if let Some(anchor) = backfill.anchor(key, pool) {
            pool.dirty.insert(anchor);
        }
    }

    /// A backfill gave a sign of life.
    pub(crate) fn keep_alive(&mut self, key: BackfillKey, now: u64) {
        let backfill = &mut self.backfills[key];
        let rules = self.list[backfill.queue].rules();
        backfill.ack_until = now + rules.set.backfill.clone().unwrap_or_default().ack_s * 1_000;
    }

    /// Sets the free places and attributes that a server says.
    pub(crate) fn update_backfill(&mut self, key: BackfillKey, open: Vec<u32>, attrs: Attributes) {
        let backfill = &mut self.backfills[key];
        (backfill.open, backfill.attrs) = (open, attrs);
        backfill.rev += 1;
    }

    /// Takes places of a backfill, by side, for players who were seated.
    pub(crate) fn fill_backfill(&mut self, key: BackfillKey, seated: impl Iterator<Item = (usize, u32)>) {
        let backfill = &mut self.backfills[key];
        for (side, players) in seated {
            backfill.open[side] = backfill.open[side].saturating_sub(players);
        }
        backfill.pending = None;
        backfill.rev += 1;
    }

    /// The room has fewer places than the backfill offers: it offers what there is.
    pub(crate) fn shrink_backfill(&mut self, key: BackfillKey, mut free: u32) {
        let Some(backfill) = self.backfills.get_mut(key) else { return };
        for open in &mut backfill.open {
            *open = (*open).min(free);
            free -= *open;
        }
        backfill.rev += 1;
    }

    /// A match that a backfill waits for, or none any more.
    pub(crate) fn set_pending(&mut self, key: BackfillKey, pending: Option<MatchKey>) {
        if let Some(backfill) = self.backfills.get_mut(key) {
            backfill.pending = pending;
        }
    }

    pub(crate) fn save_backfills(&self, numbers: &Numbers) -> v1::Places<v1::Backfill<'_>> {
        let number = |own: &Backfill| {
            let part = self.list[own.queue].pool.partitions.get(own.partition?)?;
            Some(part.number)
        };
        let save = |own| Backfill::save(own, numbers, number(own).unwrap_or_default());
        v1::Places {
            objects: self.backfills.iter().map(|(_, own)| save(own)).collect(),
            free: self.backfills.free().to_vec(),
        }
    }

    pub(super) fn load_backfills(
        &mut self,
        saved: &v1::Places<v1::Backfill<'_>>,
        unplaced: &'static str,
    ) -> Result<(), &'static str> {
        let mut backfills = Vec::new();
        for own in &saved.objects {
            let queue = self.list.get_mut(QueueKey::new(own.queue)).ok_or("a backfill has no queue")?;
            let partition = queue.pool.numbers().get(&own.partition).copied();
            let partition = partition.ok_or("a backfill has no partition")?;
            queue.pool.partitions[partition].backfills += 1;
            backfills.push((own.id.place, Backfill::load(own, partition)));
        }
        self.backfills = Slab::from_places(backfills.into_iter(), saved.free.clone()).ok_or(unplaced)?;
        Ok(())
    }

    pub(super) fn check_backfills(
        &self,
        has_backfill: impl Fn(Id, BackfillKey) -> bool,
    ) -> Result<(), &'static str> {
        for (key, backfill) in self.backfills.iter() {
            let is_named = backfill.id.index == key.index() && has_backfill(backfill.room, key);
            ensure(is_named, "a backfill")?;
            let queue = self.list.get(backfill.queue);
            ensure(queue.is_some_and(|queue| queue.backfills.contains(&key)), "the queue of a backfill")?;
        }
        let listed: usize = self.list.iter().map(|(_, queue)| queue.backfills.len()).sum();
        ensure(listed == self.backfills.len(), "the backfills of a queue")
    }
}
