//! From the result of a search to a match: proposals, answers, and their ends.

mod service;

use smallvec::SmallVec;

use crate::id::Id;
use crate::info::Text;
use crate::people::Numbers;
use crate::schema::v1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its players are asked.
    Proposed,
    /// Its room is there and waits for a server.
    Assigning,
    /// It is a room like any other.
    Made,
}

#[derive(Clone, Debug)]
pub(crate) struct Match {
    pub(crate) id: Id,
    pub(crate) queue: u32,
    pub(crate) stage: Stage,
    /// Tickets by side, until it is made.
    pub(crate) sides: Vec<Vec<u32>>,
    pub(crate) region: Option<u16>,
    pub(crate) quality: f64,
    pub(crate) level: u8,
    pub(crate) backfill: Option<u32>,
    pub(crate) room: Option<Id>,
    pub(crate) deadline: u64,
    /// Players who said yes.
    pub(crate) accepted: Vec<u32>,
    /// Player to position, once placed.
    pub(crate) positions: Vec<(u32, u8)>,
    /// The same for backfills, as long as it is known, with those who came by one: hashes of roles,
    /// and names, as players come and go and rules change.
    pub(crate) cast: Vec<(u64, Text)>,
    /// Entries that `overlap` rules found, as fields of the ready event. By the rules it was found
    /// with: those in force then may be others.
    pub(crate) shared: Vec<u8>,
}

/// Players of some tickets.
pub(crate) type Players = SmallVec<[u32; 16]>;

/// In the order of their numbers in snapshots.
const STAGES: [Stage; 3] = [Stage::Proposed, Stage::Assigning, Stage::Made];

/// Result of placing a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Its players are to be [told](Matcher::make_ready); until when their seats are held.
    Ready(u64),
    /// It waits for a server.
    Waits,
    /// The backfill's room does not take them: the tickets search on.
    Refused,
}

impl Match {
    pub(crate) fn save(&self, numbers: &Numbers) -> v1::Match<'_> {
        let positions = self.positions.iter();
        v1::Match {
            id: self.id.into(),
            queue: self.queue,
            stage: STAGES.iter().position(|stage| *stage == self.stage).unwrap_or_default() as u8,
            sides: self.sides.clone(),
            region: self.region,
            quality: self.quality,
            level: self.level,
            backfill: self.backfill,
            room: self.room.map(Id::into),
            deadline: self.deadline,
            accepted: self.accepted.iter().filter_map(|player| numbers.player(*player)).collect(),
            positions: positions.filter_map(|(player, at)| Some((numbers.player(*player)?, *at))).collect(),
            cast: self.cast.iter().map(|(role, name)| (*role, &name[..])).collect(),
            shared: &self.shared,
        }
    }

    pub(crate) fn load(saved: &v1::Match<'_>) -> Result<Match, &'static str> {
        Ok(Match {
            id: saved.id.into(),
            queue: saved.queue,
            stage: *STAGES.get(usize::from(saved.stage)).ok_or("a match has an unknown stage")?,
            sides: saved.sides.clone(),
            region: saved.region,
            quality: saved.quality,
            level: saved.level,
            backfill: saved.backfill,
            room: saved.room.map(Id::from),
            deadline: saved.deadline,
            accepted: saved.accepted.clone(),
            positions: saved.positions.clone(),
            cast: saved.cast.iter().map(|(role, name)| (*role, Text::from_slice(name))).collect(),
            shared: saved.shared.to_vec(),
        })
    }

    fn tickets(&self) -> Vec<u32> {
        self.sides.iter().flatten().copied().collect()
    }
}
