//! Rooms: their life from the first member to destruction.

mod changes;
mod leaving;
mod members;

use std::collections::BTreeSet;

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::Status;

use crate::history::History;
use crate::id::Id;
use crate::info::{DataMap, Info, ROOM_DATA_FIELD, entry, text};
use crate::people::Numbers;
use crate::problem::{Outcome, Problem};
use crate::schema::v1;
use crate::sides::Sides;
use crate::slab::NONE;

#[derive(Clone, Debug)]
pub(crate) struct Room {
    pub(crate) id: Id,
    /// Age: rooms made later have greater ones.
    pub(crate) order: u64,
    pub(crate) created: u64,
    pub(crate) rev: u64,
    pub(crate) mode: u16,
    pub(crate) hidden: bool,
    pub(crate) full: bool,
    /// `full` was set from outside, so leaving does not clear it.
    pub(crate) forced_full: bool,
    pub(crate) sealed: bool,
    pub(crate) deleting: bool,
    /// Place where the mode's indexes have it.
    listed: bool,
    open_at: Option<u32>,
    open_place: u32,
    pub(crate) members: Vec<Member>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) data: DataMap,
    pub(crate) sides: Sides,
    /// Server whose role made it.
    pub(crate) creator: u32,
    /// The match that it is.
    pub(crate) matched: Option<Id>,
    pub(crate) backfill: u32,
    pub(crate) history: History,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) player: u32,
    pub(crate) info: Info,
}

/// A place kept for a role.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) player: u32,
    pub(crate) until: u64,
    /// Ticket that was matched, while it is readable.
    pub(crate) ticket: u32,
    /// `None` where only the id of the role is known: a large tick makes a hundred thousand such
    /// seats.
    pub(crate) info: Option<Box<Info>>,
}

/// A role on its way into a room.
pub(crate) struct Newcomer {
    pub(crate) player: u32,
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

    pub(crate) fn data(&self) -> Outcome<DataMap> {
        let mut data = DataMap::default();
        if self.data {
            for field in fields(self.body).map_while(Result::ok).filter(|field| field.number == 3) {
                let (key, value) = entry(&field)?;
                data.set(ROOM_DATA_FIELD, key, value.map_or(&[][..], |value| value.value))?;
            }
        }
        Ok(data)
    }
}

impl Room {
    /// Teams of the members from one on that have nobody among those before. Cost: O(members), and
    /// a look-up each.
    pub(crate) fn teams_from(&self, first: usize) -> u32 {
        let (before, after) = self.members.split_at(first);
        let teams = after.iter().map(|member| member.info.team()).filter(|team| !team.is_empty());
        let mut teams: BTreeSet<&[u8]> = teams.collect();
        if !teams.is_empty() {
            before.iter().for_each(|member| {
                teams.remove(member.info.team());
            });
        }
        teams.len() as u32
    }

    /// Returns whether a role that has left was the last of its team.
    fn has_lost_team(&self, team: &[u8]) -> bool {
        !team.is_empty() && self.members.iter().all(|member| member.info.team() != team)
    }

    pub(crate) fn free(&self, capacity: u32) -> u32 {
        capacity.saturating_sub((self.members.len() + self.seats.len()) as u32)
    }

    /// Gives a room that has no sides those of its backfill.
    pub(crate) fn begin_sides<'a>(&mut self, names: impl Iterator<Item = &'a [u8]>) {
        if self.sides.is_empty() {
            self.sides = Sides::new(names.map(|name| (name, [])), &mut Vec::new());
        }
    }

    /// Bytes of data and members, which are nearly all of its info. Cost: O(members).
    pub(crate) fn size(&self) -> usize {
        let members: usize = self.members.iter().map(|member| member.info.bytes().len()).sum();
        self.data.bytes().len() + members
    }

    pub(crate) fn has_member(&self, player: u32) -> bool {
        self.members.iter().any(|member| member.player == player)
    }
}

impl Room {
    /// `ticket` says which tickets of seats are still those of this room.
    pub(crate) fn save(&self, numbers: &Numbers, ticket: impl Fn(u32) -> Option<u32>) -> v1::Room<'_> {
        v1::Room {
            id: self.id.into(),
            number: self.order,
            created: self.created,
            rev: self.rev,
            mode: self.mode,
            hidden: self.hidden,
            full: self.full,
            forced_full: self.forced_full,
            sealed: self.sealed,
            deleting: self.deleting,
            open: self.open_at.map(|free| v1::Open { free, at: self.open_place }),
            members: self.members.iter().map(|member| member.save(numbers)).collect(),
            seats: self.seats.iter().map(|seat| seat.save(numbers, &ticket)).collect(),
            data: self.data.bytes(),
            sides: self.sides.bytes(),
            creator: numbers.server(self.creator),
            matched: self.matched.map(Id::into),
            backfill: (self.backfill != NONE).then_some(self.backfill),
            history: self.history.bytes(),
        }
    }

    pub(crate) fn load(saved: &v1::Room<'_>) -> Room {
        let member =
            |member: &v1::Member<'_>| Member { player: member.player, info: Info::load(member.info) };
        let seat = |seat: &v1::Seat<'_>| Seat {
            player: seat.player,
            until: seat.until,
            ticket: seat.ticket.unwrap_or(NONE),
            info: seat.info.map(|info| Box::new(Info::load(info))),
        };
        Room {
            id: saved.id.into(),
            order: saved.number,
            created: saved.created,
            rev: saved.rev,
            mode: saved.mode,
            hidden: saved.hidden,
            full: saved.full,
            forced_full: saved.forced_full,
            sealed: saved.sealed,
            deleting: saved.deleting,
            listed: !saved.deleting && !saved.hidden,
            open_at: saved.open.map(|open| open.free),
            open_place: saved.open.map_or(0, |open| open.at),
            members: saved.members.iter().map(member).collect(),
            seats: saved.seats.iter().map(seat).collect(),
            data: DataMap::load(saved.data),
            sides: Sides::load(saved.sides),
            creator: saved.creator.unwrap_or(NONE),
            matched: saved.matched.map(Id::from),
            backfill: saved.backfill.unwrap_or(NONE),
            history: History::load(saved.history),
        }
    }
}

impl Member {
    fn save(&self, numbers: &Numbers) -> v1::Member<'_> {
        v1::Member { player: numbers.player(self.player).unwrap_or(NONE), info: self.info.bytes() }
    }
}

impl Seat {
    fn save(&self, numbers: &Numbers, ticket: impl Fn(u32) -> Option<u32>) -> v1::Seat<'_> {
        v1::Seat {
            player: numbers.player(self.player).unwrap_or(NONE),
            until: self.until,
            ticket: ticket(self.ticket),
            info: self.info.as_deref().map(Info::bytes),
        }
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
    pub(crate) members: Vec<(u32, Info)>,
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
                .map(|(player, info)| v1::Member { player: *player, info: info.bytes() })
                .collect(),
            seats: Vec::new(),
            data: self.data.bytes(),
            sides: &self.sides,
            creator: None,
            matched: None,
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
    rules: &crate::config::ModeRules,
    members: impl Iterator<Item = &'a Info> + Clone,
    newcomers: &'a [Newcomer],
) -> Outcome {
    let all = || members.clone().chain(newcomers.iter().map(|newcomer| &newcomer.info));
    let refused =
        |key: &str| Err(Problem::new(Status::Refused, format!("`{key}` is the same as another member's")));
    for key in &rules.unique_float {
        let mut values: Vec<u64> = all().filter_map(|info| info.float(key)).map(f64::to_bits).collect();
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
