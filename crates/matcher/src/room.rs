//! Rooms: their life from the first member to destruction.

mod changes;
mod leaving;
mod members;
mod owner;
mod world;

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::Status;

use crate::config::ModeRules;
use crate::id::Id;
use crate::info::{DataMap, Info, ROOM_DATA_FIELD, entry, text};
use crate::key::PlayerKey;
use crate::problem::{Outcome, Problem};
use crate::schema::v1;

pub(crate) use owner::{Member, Mode, Modes, Room, Rooms, Seat};

/// A role on its way into a room.
pub(crate) struct Newcomer {
    pub(crate) player: PlayerKey,
    pub(crate) info: Info,
    /// True if the matcher knows it on another server than it comes from. It stays there until it
    /// has joined.
    pub(crate) moves: bool,
}

pub(crate) type Newcomers = SmallVec<[Newcomer; 4]>;

/// Initial values of a new room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreateInfo<'a> {
    pub(crate) mode: &'a [u8],
    pub(crate) hidden: Option<bool>,
    body: &'a [u8],
    data: bool,
}

impl<'a> CreateInfo<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Outcome<CreateInfo<'a>> {
        let mut info = CreateInfo { body, ..CreateInfo::default() };
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => info.mode = text(&field)?,
                2 => info.hidden = Some(field.scalar != 0),
                3 => info.data = true,
                _ => {}
            }
        }
        Ok(info)
    }

    /// Initial values; the count is not among them.
    pub(crate) fn data(&self, rules: &ModeRules) -> Outcome<DataMap> {
        let mut data = DataMap::default();
        if self.data {
            for field in fields(self.body).map_while(Result::ok).filter(|field| field.number == 3) {
                let (key, value) = entry(&field)?;
                rules.check_key(key)?;
                data.set(ROOM_DATA_FIELD, key, value.map_or(&[][..], |value| value.value))?;
            }
        }
        Ok(data)
    }
}

/// A room that was exported.
#[derive(Debug, Default)]
pub(crate) struct RoomBuild {
    pub(crate) created: u64,
    pub(crate) rev: u64,
    pub(crate) hidden: bool,
    pub(crate) full: bool,
    pub(crate) forced_full: bool,
    pub(crate) sealed: bool,
    pub(crate) data: DataMap,
    pub(crate) sides: Vec<u8>,
    pub(crate) host: String,
    pub(crate) members: Vec<(PlayerKey, Info)>,
}

impl RoomBuild {
    /// The room, in no index yet.
    pub(crate) fn room(self, id: Id, number: u64, mode: u16) -> Room {
        let members = self.members.iter();
        Room::load(&v1::Room {
            id: id.into(),
            number,
            created: self.created,
            rev: self.rev,
            mode,
            hidden: self.hidden,
            full: self.full,
            forced_full: self.forced_full,
            sealed: self.sealed,
            deleting: false,
            open: None,
            members: members
                .map(|(player, info)| v1::Member { player: player.index(), info: info.bytes() })
                .collect(),
            seats: Vec::new(),
            data: self.data.bytes(),
            sides: &self.sides,
            creator: None,
            matched: None,
            host: self.host.as_bytes(),
            backfill: None,
            history: &[],
        })
    }
}

/// Bytes of the infos of newcomers.
fn size_of_all(newcomers: &[Newcomer]) -> usize {
    newcomers.iter().map(|newcomer| newcomer.info.bytes().len()).sum()
}

fn check_unique<'a>(
    rules: &ModeRules,
    members: impl Iterator<Item = &'a Info> + Clone,
    newcomers: &'a [Newcomer],
) -> Outcome {
    let all = || members.clone().chain(newcomers.iter().map(|newcomer| &newcomer.info));
    for key in &rules.unique_float {
        // Adding 0 makes the two zeros one.
        let mut values: Vec<u64> =
            all().filter_map(|info| info.float(key)).map(|value| (value + 0.0).to_bits()).collect();
        values.sort_unstable();
        if values.windows(2).any(|pair| pair[0] == pair[1]) {
            return refused(key);
        }
    }
    for key in &rules.unique_string {
        let mut values: Vec<&[u8]> = all().filter_map(|info| info.string(key)).collect();
        values.sort_unstable();
        if values.windows(2).any(|pair| pair[0] == pair[1]) {
            return refused(key);
        }
    }
    Ok(())
}

/// Returns whether the member at a place may have other values, of which none may be another
/// member's or that of a role with a seat.
pub(crate) fn check_stays_unique(rules: &ModeRules, room: &Room, at: usize, next: &Info) -> Outcome {
    let (members, own) = (room.members(), &room.members()[at].info);
    let others = || {
        let others = members.iter().enumerate().filter(|(place, _)| *place != at);
        let seats = room.seats().iter().filter_map(|seat| seat.info.as_deref());
        others.map(|(_, other)| &other.info).chain(seats)
    };
    for key in &rules.unique_float {
        let value = next.float(key);
        if value.is_some() && value != own.float(key) && others().any(|other| other.float(key) == value) {
            return refused(key);
        }
    }
    for key in &rules.unique_string {
        let value = next.string(key);
        if value.is_some() && value != own.string(key) && others().any(|other| other.string(key) == value) {
            return refused(key);
        }
    }
    Ok(())
}

fn refused(key: &str) -> Outcome {
    Err(Problem::new(Status::Refused, format!("`{key}` is the same as another member's")))
}

/// A number in decimal digits.
pub(crate) fn decimal(mut value: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}
