//! Listings of rooms, filtered, sorted and in pages; and the rooms, teams and tickets of a role or
//! of a server's roles.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::Value;
use throng_wire::fields;
use throng_wire::matcher::{write_bytes, write_nested};

use crate::config::Scope;
use crate::id::Id;
use crate::info::{bytes, check_id, check_len, text};
use crate::key::{MatchKey, PlayerKey, QueueKey, RoomKey, TeamKey, TicketKey};
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, invalid, not_found, too_large};
use crate::queue::Assign;
use crate::room::Room;
use crate::turn::Turn;

const ROOMS_PER_MODE_MAX: usize = 100;
/// Rooms of a mode that one call looks at; a filter that few rooms pass needs more calls, not a
/// longer one.
const SCAN_MAX: usize = 10_000;
const MODES_MAX: usize = 64;
const FILTERS_MAX: usize = 16;
/// Bytes of a page of what a server's roles are in. A room has 256 KiB at most and a frame takes 1
/// MiB.
const MINE_BYTES_MAX: usize = 768 << 10;

struct Filter {
    field: Field,
    op: Op,
    value: Value,
}

enum Field {
    Data(String),
    FreeSlots,
    Members,
    CreateTime,
}

enum Op {
    Equal,
    Differ,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Has,
}

impl Field {
    fn parse(name: &str) -> Outcome<Field> {
        Ok(match name {
            "FreeSlots" => Field::FreeSlots,
            "Members" => Field::Members,
            "CreateTime" => Field::CreateTime,
            _ => match name.strip_prefix("Data.") {
                Some(key) => Field::Data(key.to_owned()),
                None => return Err(invalid(format!("no field `{name}` to filter or sort by"))),
            },
        })
    }
}

impl Filter {
    fn parse(body: &[u8]) -> Outcome<Filter> {
        let (mut field, mut op, mut value) = ("", "", &b"null"[..]);
        for part in fields(body) {
            let part = part?;
            match part.number {
                1 => field = part.str()?,
                2 => op = part.str()?,
                3 => value = bytes(&part)?,
                _ => {}
            }
        }
        let op = match op {
            "=" => Op::Equal,
            "!=" => Op::Differ,
            "<" => Op::Less,
            "<=" => Op::LessEqual,
            ">" => Op::Greater,
            ">=" => Op::GreaterEqual,
            "has" => Op::Has,
            _ => return Err(invalid(format!("no operator `{op}`"))),
        };
        let value =
            serde_json::from_slice(value).map_err(|error| invalid(format!("a filter's value: {error}")))?;
        Ok(Filter { field: Field::parse(field)?, op, value })
    }

    fn admits(&self, found: &Value) -> bool {
        match self.op {
            Op::Equal => *found == self.value || order(found, &self.value) == Some(Ordering::Equal),
            Op::Differ => *found != self.value && order(found, &self.value) != Some(Ordering::Equal),
            Op::Less => order(found, &self.value) == Some(Ordering::Less),
            Op::LessEqual => matches!(order(found, &self.value), Some(Ordering::Less | Ordering::Equal)),
            Op::Greater => order(found, &self.value) == Some(Ordering::Greater),
            Op::GreaterEqual => {
                matches!(order(found, &self.value), Some(Ordering::Greater | Ordering::Equal))
            }
            Op::Has => match found {
                Value::Array(items) => items.contains(&self.value),
                Value::Object(members) => self.value.as_str().is_some_and(|key| members.contains_key(key)),
                Value::String(text) => self.value.as_str().is_some_and(|part| text.contains(part)),
                _ => false,
            },
        }
    }
}

/// Something that a server's roles are in, in the order of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listed {
    Room(RoomKey),
    Team(TeamKey),
    Ticket(TicketKey),
    Match(MatchKey),
}

impl Listed {
    /// Place where a page goes on.
    fn token(self) -> String {
        match self {
            Listed::Room(key) => format!("0.{}", key.index()),
            Listed::Team(key) => format!("1.{}", key.index()),
            Listed::Ticket(key) => format!("2.{}", key.index()),
            Listed::Match(key) => format!("3.{}", key.index()),
        }
    }

    /// Reads a token; the first of all where there is none.
    fn parse(token: &[u8]) -> Outcome<Listed> {
        if token.is_empty() {
            return Ok(Listed::Room(RoomKey::new(0)));
        }
        let parts = std::str::from_utf8(token).ok().and_then(|token| token.split_once('.'));
        let index = parts.and_then(|(_, index)| index.parse().ok());
        match (parts, index) {
            (Some(("0", _)), Some(index)) => Ok(Listed::Room(RoomKey::new(index))),
            (Some(("1", _)), Some(index)) => Ok(Listed::Team(TeamKey::new(index))),
            (Some(("2", _)), Some(index)) => Ok(Listed::Ticket(TicketKey::new(index))),
            (Some(("3", _)), Some(index)) => Ok(Listed::Match(MatchKey::new(index))),
            _ => Err(invalid("Token is not the Next of an earlier answer")),
        }
    }
}

impl Matcher {
    pub(crate) fn list_mine(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut srv, mut from) = (&[][..], &[][..]);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => srv = text(&field)?,
                2 => from = text(&field)?,
                _ => {}
            }
        }
        if srv.is_empty() {
            srv = turn.caller.srv.as_bytes();
        } else if srv != turn.caller.srv.as_bytes() {
            require(turn.caller, Scope::Trusted)?;
        }
        let from = Listed::parse(from)?;
        let start = turn.answer.len();
        for item in self.listed_of(srv).range(from..) {
            let before = turn.answer.len();
            match *item {
                Listed::Room(room) => {
                    write_nested(turn.answer, 1, |out| self.write_room(room, None, out));
                }
                Listed::Team(team) => write_nested(turn.answer, 2, |out| self.write_team(team, out)),
                Listed::Ticket(ticket) => {
                    write_nested(turn.answer, 3, |out| self.write_ticket(ticket, out));
                }
                Listed::Match(found) => {
                    write_nested(turn.answer, 4, |out| self.write_match(found, out));
                }
            }
            // At least one, or the next page would be the same.
            if turn.answer.len() - start > MINE_BYTES_MAX && before > start {
                turn.answer.truncate(before);
                write_bytes(turn.answer, 5, item.token().as_bytes());
                break;
            }
        }
        Ok(())
    }

    /// Rooms, teams and tickets of a server's roles, and the matches that it is to give a server
    /// to, or gave one.
    fn listed_of(&self, srv: &[u8]) -> BTreeSet<Listed> {
        let mut all = BTreeSet::new();
        for player in self.people.server(srv).into_iter().flat_map(|server| self.people.players_of(server)) {
            let entry = &self.people[player];
            all.extend(entry.rooms().iter().chain(entry.seats()).map(|room| Listed::Room(*room)));
            all.extend(entry.team().map(Listed::Team));
            all.extend(self.tickets_of(player).map(Listed::Ticket));
        }
        let allocates = |queue: QueueKey| {
            let rules = self.queues[queue].rules();
            rules.set.assign == Assign::External && rules.set.allocator.as_bytes() == srv
        };
        if !srv.is_empty() && self.queues.iter().any(|(queue, _)| allocates(queue)) {
            let is_there = |room: Id| self.rooms.find(room).is_some();
            let own = self.matches.iter().filter(|(_, found)| found.room().is_some_and(is_there));
            all.extend(own.filter(|(_, found)| allocates(found.queue())).map(|(at, _)| Listed::Match(at)));
        }
        all
    }

    /// Live tickets of a role, and matched ones whose seats wait for it.
    pub(crate) fn tickets_of(&self, player: PlayerKey) -> impl Iterator<Item = TicketKey> + '_ {
        let entry = &self.people[player];
        let matched = entry.seats().iter().filter_map(move |index| {
            let room = &self.rooms[*index];
            let seat = room.seats().iter().find(|seat| seat.player == player)?;
            // Another may have its number by now.
            let ticket = seat.ticket?;
            (self.queues.get_ticket(ticket)?.room == Some(room.id())).then_some(ticket)
        });
        entry.tickets().iter().copied().chain(matched.filter(|ticket| !entry.tickets().contains(ticket)))
    }

    /// Everything that a role is in.
    pub(crate) fn get_role(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let role = crate::team::two_texts(body)?.0;
        check_id(role, "RoleID")?;
        let player = self.people.player(role).ok_or_else(|| not_found("role is in nothing"))?;
        self.check_acts_for(turn.caller, player)?;
        let entry = &self.people[player];
        write_bytes(turn.answer, 1, role);
        write_bytes(turn.answer, 2, self.people.server_of(player));
        // One that is a member of a room has no seat there.
        for room in entry.rooms().iter().chain(entry.seats()) {
            write_nested(turn.answer, 3, |out| self.write_room(*room, None, out));
        }
        if let Some(team) = entry.team() {
            write_nested(turn.answer, 4, |out| self.write_team(team, out));
        }
        for ticket in self.tickets_of(player) {
            write_nested(turn.answer, 5, |out| self.write_ticket(ticket, out));
        }
        Ok(())
    }

    pub(crate) fn list_rooms(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut modes, mut filters) = (Vec::new(), Vec::new());
        let (mut sort, mut limit, mut token) = ("", ROOMS_PER_MODE_MAX, "");
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => modes.push(text(&field)?),
                2 => filters.push(Filter::parse(bytes(&field)?)?),
                3 => sort = field.str()?,
                4 if field.scalar > 0 => limit = (field.scalar as usize).min(ROOMS_PER_MODE_MAX),
                5 => token = field.str()?,
                _ => {}
            }
        }
        if modes.len() > MODES_MAX || filters.len() > FILTERS_MAX {
            return Err(too_large(format!("more than {MODES_MAX} modes or {FILTERS_MAX} filters")));
        }
        check_len(token.as_bytes(), 32 * MODES_MAX, "Token")?;
        let after = parse_token(token, modes.len())?;
        let (descending, sort) = sort.strip_prefix('-').map_or((false, sort), |field| (true, field));
        let sort = (!sort.is_empty()).then(|| Field::parse(sort)).transpose()?;

        let mut next = Vec::new();
        for (mode_name, from) in modes.iter().zip(&after) {
            let (Some(mode), Some(from)) = (self.rooms.modes().find(mode_name), *from) else {
                next.push(None);
                continue;
            };
            let mut looked = 0;
            let mut last = from;
            let mut found: Vec<(u64, RoomKey)> = Vec::new();
            let scan = mode.visible().range(from + 1..).take(SCAN_MAX);
            for (order, room) in scan {
                if sort.is_none() && found.len() == limit {
                    break;
                }
                looked += 1;
                last = *order;
                let admitted = filters
                    .iter()
                    .all(|filter| filter.admits(&self.field_of(&self.rooms[*room], &filter.field)));
                if admitted {
                    found.push((*order, *room));
                }
            }
            if let Some(field) = &sort {
                let key = |room: RoomKey| self.field_of(&self.rooms[room], field);
                found.sort_by(|a, b| {
                    let by = order(&key(a.1), &key(b.1)).unwrap_or(Ordering::Equal);
                    (if descending { by.reverse() } else { by }).then(a.0.cmp(&b.0))
                });
                found.truncate(limit);
            }
            let more = mode.visible().range(last + 1..).next().is_some() && looked > 0;
            next.push(more.then_some(last));
            if !found.is_empty() {
                write_nested(turn.answer, 1, |out| {
                    write_bytes(out, 1, mode_name);
                    for (_, room) in &found {
                        write_nested(out, 2, |out| self.write_room(*room, None, out));
                    }
                });
            }
        }
        if next.iter().any(Option::is_some) {
            let parts: Vec<String> =
                next.iter().map(|at| at.map_or_else(|| "-".to_owned(), |order| order.to_string())).collect();
            write_bytes(turn.answer, 2, parts.join(".").as_bytes());
        }
        Ok(())
    }

    fn field_of(&self, room: &Room, field: &Field) -> Value {
        let rules = self.rooms.mode(room.mode()).rules();
        match field {
            Field::FreeSlots => room.free(rules.capacity).into(),
            Field::Members => room.members().len().into(),
            Field::CreateTime => room.created().into(),
            Field::Data(key) if *key == rules.count_key => room.members().len().into(),
            Field::Data(key) => room
                .data()
                .get(key)
                .and_then(|value| serde_json::from_slice(value).ok())
                .unwrap_or(Value::Null),
        }
    }
}

/// Place where each mode goes on: an age, or nowhere.
fn parse_token(token: &str, modes: usize) -> Outcome<Vec<Option<u64>>> {
    if token.is_empty() {
        return Ok(vec![Some(0); modes]);
    }
    let parts: Option<Vec<Option<u64>>> =
        token
            .split('.')
            .map(|part| {
                if part == "-" { Some(None) } else { part.parse().ok().filter(|at| *at < u64::MAX).map(Some) }
            })
            .collect();
    parts.filter(|parts| parts.len() == modes).ok_or_else(|| invalid("Token is not one of this list"))
}

/// Numbers and texts have an order; nothing else has.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => None,
    }
}
