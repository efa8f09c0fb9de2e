//! Backfills: running matches that ask for players.

mod service;

use throng_wire::matcher::Status;
use throng_wire::{Field, fields};

use crate::id::Id;
use crate::info::{Text, bytes, entry, text};
use crate::key::{BackfillKey, MatchKey, PartitionKey, QueueKey, RoomKey, ServerKey, TicketKey};
use crate::people::Numbers;
use crate::problem::{Outcome, Problem, invalid, too_large};
use crate::queue::{Anchor, Compiled, Facts, PlayerFacts, Pool, REGIONS_MAX, Seeker, Start, ordered};
use crate::schema::v1;
use crate::slab::NONE;

#[derive(Clone, Debug)]
pub(crate) struct Backfill {
    pub(crate) id: Id,
    pub(crate) queue: QueueKey,
    pub(crate) room: Id,
    /// Server that asked and hears of it.
    owner: ServerKey,
    rev: u64,
    /// Free places by side.
    open: Vec<u32>,
    attrs: Vec<(Text, Vec<u8>)>,
    created: u64,
    /// Without a sign of life until then it ends.
    ack_until: u64,
    /// Members that are there already, by side.
    fixed: Vec<Facts>,
    value: f64,
    region: Option<u16>,
    class: u8,
    pub(crate) partition: PartitionKey,
    /// Arrivals in the partition when it last found nothing.
    pub(crate) seen: Option<u64>,
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
            partition,
            seen: saved.seen,
            pending: saved.pending.map(MatchKey::new),
        }
    }

    /// Server that asked and hears of it.
    pub(crate) fn owner(&self) -> ServerKey {
        self.owner
    }

    /// Returns whether it may be given players now.
    pub(crate) fn is_free(&self) -> bool {
        self.pending.is_none() && self.open.iter().any(|open| *open > 0)
    }

    /// Its place in the order of fairness, if it should look.
    pub(crate) fn anchor(&self, index: BackfillKey, pool: &Pool) -> Option<Anchor> {
        let fresh = self.seen != Some(pool.partitions[self.partition].arrivals);
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

/// Content of a request about a backfill.
#[derive(Default)]
struct BackfillRequest<'a> {
    id: &'a [u8],
    queue: &'a [u8],
    rev: u64,
    open: Vec<(&'a [u8], u64)>,
    attrs: Vec<(Text, Vec<u8>)>,
}

impl<'a> BackfillRequest<'a> {
    /// Fields 3 and 4 are the same in both requests that have them.
    fn parse(body: &'a [u8]) -> Outcome<BackfillRequest<'a>> {
        let mut asked = BackfillRequest::default();
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => asked.id = text(&field)?,
                2 => {
                    asked.rev = field.scalar;
                    asked.queue = bytes(&field).unwrap_or_default();
                }
                3 => {
                    let (side, count) = entry(&field)?;
                    asked.open.push((side, count.map_or(0, |count: Field<'_>| count.scalar)));
                }
                4 => {
                    let (key, value) = entry(&field)?;
                    let value = value.map_or(&[][..], |value| value.value);
                    asked.attrs.push((Text::from_slice(key), value.to_vec()));
                }
                _ => {}
            }
        }
        if asked.attrs.len() > 32 || asked.attrs.iter().any(|(_, value)| value.len() > 4 << 10) {
            return Err(too_large("a backfill has at most 32 attributes of 4096 bytes"));
        }
        Ok(asked)
    }

    /// Free places in the order of the queue's sides.
    fn open_of(&self, compiled: &Compiled) -> Outcome<Vec<u32>> {
        let mut open = vec![0; compiled.sides.len()];
        for (name, count) in &self.open {
            let side = compiled.sides.iter().position(|(known, _)| known.as_bytes() == *name);
            let side = side.ok_or_else(|| {
                Problem::new(Status::RuleInvalid, format!("no side `{}`", String::from_utf8_lossy(name)))
            })?;
            if *count > u64::from(compiled.sides[side].1) {
                return Err(invalid("more places are open than the side has"));
            }
            open[side] = *count as u32;
        }
        Ok(open)
    }
}

/// The number of a region in a queue, which learns it if there is room.
fn region_number(regions: &mut Vec<Text>, name: &Text) -> Option<u16> {
    let known = regions.iter().position(|known| known == name);
    let at = known.or_else(|| {
        regions.push(name.clone());
        (regions.len() <= REGIONS_MAX).then(|| regions.len() - 1)
    });
    regions.truncate(REGIONS_MAX);
    at.map(|at| at as u16)
}
