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
use crate::json::parse_time;
use crate::key::{MatchKey, PlayerKey, QueueKey, RoomKey, TeamKey, TicketKey};
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, Problem, invalid, not_found, too_large};
use crate::queue::Assign;
use crate::room::{Mode, Room};
use crate::turn::Turn;

const ROOMS_PER_MODE_MAX: usize = 100;
/// Rooms of a mode that one call looks at; a filter that few rooms pass needs more calls, not a
/// longer one.
const SCAN_MAX: usize = 10_000;
const MODES_MAX: usize = 64;
const FILTERS_MAX: usize = 16;
/// Length of the prefix of a text by which rooms are sorted, in bytes.
const SORT_BYTES_MAX: usize = 64;
/// Two ages of 20 digits, the hexadecimal text of a value and signs between them, for each mode.
const TOKEN_BYTES_MAX: usize = (2 * 20 + 2 * SORT_BYTES_MAX + 8) * MODES_MAX;
/// Bytes of a page. The data and members of a room have 256 KiB at most, as has a rule set, and a
/// frame takes 1 MiB.
const PAGE_BYTES_MAX: usize = 768 << 10;

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
        let mut value =
            serde_json::from_slice(value).map_err(|error| invalid(format!("a filter's value: {error}")))?;
        let field = Field::parse(field)?;
        if let (Field::CreateTime, Value::String(time)) = (&field, &value) {
            let ms = parse_time(time).ok_or_else(|| {
                let what = "`CreateTime` is compared with a time like 2020-04-26T10:11:08.337Z, or with ms since the epoch";
                invalid(format!("{time:?}: {what}"))
            })?;
            value = ms.into();
        }
        Ok(Filter { field, op, value })
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

/// A request for rooms of modes.
struct RoomsRequest<'a> {
    modes: Vec<&'a [u8]>,
    filters: Vec<Filter>,
    /// Field to sort by, and whether in descending order.
    sort: Option<(Field, bool)>,
    /// Rooms of each mode.
    limit: usize,
    /// Place where each mode goes on, if anywhere.
    after: Vec<Option<PagePosition>>,
}

impl<'a> RoomsRequest<'a> {
    fn parse(body: &'a [u8]) -> Outcome<RoomsRequest<'a>> {
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
        check_len(token.as_bytes(), TOKEN_BYTES_MAX, "Token")?;
        let after = parse_token(token, modes.len())?;
        let (descending, sort) = sort.strip_prefix('-').map_or((false, sort), |field| (true, field));
        let sort = (!sort.is_empty()).then(|| Field::parse(sort)).transpose()?;
        let sort = sort.map(|field| (field, descending));
        Ok(RoomsRequest { modes, filters, sort, limit, after })
    }
}

/// Something that a server's roles are in, in the order of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listed {
    Room(RoomKey),
    Team(TeamKey),
    Ticket(TicketKey),
    Match(MatchKey),
    /// Of a mode whose rooms get worlds, or of a match that is forgotten.
    Hosted(RoomKey),
}

impl Listed {
    /// Number of its kind, and its place.
    fn place(self) -> (u32, u32) {
        match self {
            Listed::Room(key) => (0, key.index()),
            Listed::Team(key) => (1, key.index()),
            Listed::Ticket(key) => (2, key.index()),
            Listed::Match(key) => (3, key.index()),
            Listed::Hosted(key) => (4, key.index()),
        }
    }

    /// Place where a page goes on.
    fn token(self) -> String {
        let (kind, index) = self.place();
        format!("{kind}.{index}")
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
            (Some(("4", _)), Some(index)) => Ok(Listed::Hosted(RoomKey::new(index))),
            _ => Err(foreign_token()),
        }
    }
}

/// Writes items until a page is full, at least one; then field `next` says where the next page
/// begins.
pub(crate) fn write_page<T: Copy>(
    answer: &mut Vec<u8>,
    next: u32,
    items: impl IntoIterator<Item = T>,
    token: impl Fn(T) -> String,
    write: impl Fn(T, &mut Vec<u8>),
) {
    let start = answer.len();
    for item in items {
        let before = answer.len();
        write(item, answer);
        if answer.len() - start > PAGE_BYTES_MAX && before > start {
            answer.truncate(before);
            write_bytes(answer, next, token(item).as_bytes());
            break;
        }
    }
}

/// Number of the item that a page begins with; the first without a token.
pub(crate) fn page_start(token: &[u8]) -> Outcome<u32> {
    if token.is_empty() {
        return Ok(0);
    }
    let number = std::str::from_utf8(token).ok().and_then(|token| token.parse().ok());
    number.ok_or_else(foreign_token)
}

fn foreign_token() -> Problem {
    invalid("Token is not the Next of an earlier answer")
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
        let all = self.listed_of(srv);
        let items = all.range(from..).copied();
        write_page(turn.answer, 5, items, Listed::token, |item, out| self.write_listed(1, item, out));
        Ok(())
    }

    /// Writes something as a field of its kind, the first of which is `first`.
    fn write_listed(&self, first: u32, item: Listed, out: &mut Vec<u8>) {
        let kind = if matches!(item, Listed::Hosted(_)) { 3 } else { item.place().0 };
        write_nested(out, first + kind, |out| match item {
            Listed::Room(room) => {
                self.write_room(room, None, out);
            }
            Listed::Team(team) => self.write_team(team, out),
            Listed::Ticket(ticket) => self.write_ticket(ticket, out),
            Listed::Match(found) => self.write_match(found, out),
            Listed::Hosted(room) => self.write_hosted(room, out),
        });
    }

    /// Rooms, teams and tickets of a server's roles, and the matches that it is to give a server
    /// to, or gave one.
    fn listed_of(&self, srv: &[u8]) -> BTreeSet<Listed> {
        let mut all = BTreeSet::new();
        for player in self.people.server(srv).into_iter().flat_map(|server| self.people.players_of(server)) {
            all.extend(self.listed_of_role(player));
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
        if !srv.is_empty() && self.people.server(srv).is_some() {
            let is_listed = |room: &Room| room.matched().is_some_and(|found| self.match_of(found).is_some());
            let rooms = self.rooms.iter().filter(|(_, room)| !room.deleting() && !is_listed(room));
            let own = rooms.filter(|(at, _)| self.has_world(*at) || self.wants_world(*at));
            all.extend(
                own.filter(|(at, _)| self.allocator_of(*at).as_bytes() == srv)
                    .map(|(at, _)| Listed::Hosted(at)),
            );
        }
        all
    }

    /// Rooms, team and tickets of a role.
    fn listed_of_role(&self, player: PlayerKey) -> impl Iterator<Item = Listed> + '_ {
        let entry = &self.people[player];
        let rooms = entry.rooms().iter().chain(entry.seats()).map(|room| Listed::Room(*room));
        let tickets = self.tickets_of(player).map(Listed::Ticket);
        rooms.chain(entry.team().map(Listed::Team)).chain(tickets)
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
        let (role, from) = crate::team::two_texts(body)?;
        check_id(role, "RoleID")?;
        let from = Listed::parse(from)?;
        let player = self.people.player(role).ok_or_else(|| not_found("role is in nothing"))?;
        self.check_acts_for(turn.caller, player)?;
        write_bytes(turn.answer, 1, role);
        write_bytes(turn.answer, 2, self.people.server_of(player));
        let all: BTreeSet<Listed> = self.listed_of_role(player).collect();
        let items = all.range(from..).copied();
        write_page(turn.answer, 6, items, Listed::token, |item, out| self.write_listed(3, item, out));
        Ok(())
    }

    pub(crate) fn list_rooms(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let asked = RoomsRequest::parse(body)?;
        let start = turn.answer.len();
        let (mut next, mut is_full) = (Vec::new(), false);
        for (at, (name, from)) in asked.modes.iter().zip(&asked.after).enumerate() {
            let mode = self.rooms.modes().find(name).filter(|_| !asked.modes[..at].contains(name));
            next.push(match (mode, from) {
                (Some(mode), Some(from)) if !is_full => {
                    let wanted = self.wanted_rooms(mode, from, &asked);
                    let shown = self.write_rooms(name, &wanted.rooms, start, turn.answer);
                    is_full = shown < wanted.rooms.len();
                    match wanted.rooms.get(..shown).and_then(<[_]>::last) {
                        _ if !is_full && !wanted.is_cut => wanted.behind,
                        Some(last) if asked.sort.is_some() => {
                            Some(PagePosition { order: from.order, last: Some(last.place.clone()) })
                        }
                        Some(last) => Some(PagePosition { order: last.place.order, last: None }),
                        None => Some(from.clone()),
                    }
                }
                (Some(_), from) => from.clone(),
                (None, _) => None,
            });
        }
        if next.iter().any(Option::is_some) {
            let parts: Vec<String> = next.into_iter().map(PagePosition::write).collect();
            write_bytes(turn.answer, 2, parts.join(".").as_bytes());
        }
        Ok(())
    }

    /// Rooms of a mode that a request wants, those made after `from`, in the order of the answer.
    fn wanted_rooms(&self, mode: &Mode, from: &PagePosition, asked: &RoomsRequest<'_>) -> WantedRooms {
        let admits =
            |room: &Room| asked.filters.iter().all(|own| own.admits(&self.field_of(room, &own.field)));
        let sort = asked.sort.as_ref();
        let (mut rooms, mut last) = (Vec::new(), from.order);
        for (order, key) in mode.visible().range(from.order + 1..).take(SCAN_MAX) {
            if sort.is_none() && rooms.len() == asked.limit {
                break;
            }
            last = *order;
            let room = &self.rooms[*key];
            if admits(room) {
                let value =
                    sort.map_or(SortValue::None, |(field, _)| SortValue::of(&self.field_of(room, field)));
                rooms.push(WantedRoom { place: SortPlace { value, order: *order }, room: *key });
            }
        }
        let has_more = last > from.order && mode.visible().range(last + 1..).next().is_some();
        let behind = has_more.then_some(PagePosition { order: last, last: None });
        if let Some((_, descending)) = sort {
            if let Some(shown) = &from.last {
                rooms.retain(|wanted| wanted.place.compare(shown, *descending).is_gt());
            }
            rooms.sort_by(|a, b| a.place.compare(&b.place, *descending));
        }
        let is_cut = rooms.len() > asked.limit;
        rooms.truncate(asked.limit);
        WantedRooms { rooms, is_cut, behind }
    }

    /// Writes rooms of a mode until the page that begins at `start` is full; it has at least one.
    /// Returns how many were written.
    fn write_rooms(&self, mode: &[u8], rooms: &[WantedRoom], start: usize, answer: &mut Vec<u8>) -> usize {
        let before = answer.len();
        let mut written = 0;
        write_nested(answer, 1, |out| {
            write_bytes(out, 1, mode);
            for wanted in rooms {
                let end = out.len();
                write_nested(out, 2, |out| self.write_room(wanted.room, None, out));
                if out.len() - start > PAGE_BYTES_MAX && (written > 0 || before > start) {
                    out.truncate(end);
                    break;
                }
                written += 1;
            }
        });
        if written == 0 {
            answer.truncate(before);
        }
        written
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

/// Rooms of a mode for a page.
struct WantedRooms {
    rooms: Vec<WantedRoom>,
    /// More of the rooms that were looked at are wanted.
    is_cut: bool,
    /// Place behind the rooms that were looked at, if there are more.
    behind: Option<PagePosition>,
}

struct WantedRoom {
    place: SortPlace,
    room: RoomKey,
}

/// Value by which rooms are sorted: numbers before texts, and both before everything else.
#[derive(Clone, Debug)]
enum SortValue {
    Number(f64),
    /// The first [`SORT_BYTES_MAX`] bytes of a text, so that a token is short.
    Text(Vec<u8>),
    None,
}

/// Place of a room in a sorted answer; of two with the same value, the older room is first.
#[derive(Clone, Debug)]
struct SortPlace {
    value: SortValue,
    /// Age of the room.
    order: u64,
}

/// Place where the rooms of a mode go on.
#[derive(Clone, Default)]
struct PagePosition {
    /// Age of the last room before the rooms to look at.
    order: u64,
    /// In a sorted answer, the last of these rooms that was on an earlier page.
    last: Option<SortPlace>,
}

impl SortValue {
    fn of(value: &Value) -> SortValue {
        match value {
            Value::Number(number) => number.as_f64().map_or(SortValue::None, SortValue::Number),
            Value::String(text) => SortValue::Text(text.bytes().take(SORT_BYTES_MAX).collect()),
            _ => SortValue::None,
        }
    }

    fn compare(&self, other: &SortValue) -> Ordering {
        match (self, other) {
            (SortValue::Number(a), SortValue::Number(b)) => a.total_cmp(b),
            (SortValue::Text(a), SortValue::Text(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            SortValue::Number(_) => 0,
            SortValue::Text(_) => 1,
            SortValue::None => 2,
        }
    }

    fn write(&self) -> String {
        match self {
            SortValue::Number(number) => format!("n{:x}", number.to_bits()),
            SortValue::Text(text) => {
                text.iter().fold("t".to_owned(), |hex, byte| hex + &format!("{byte:02x}"))
            }
            SortValue::None => "-".to_owned(),
        }
    }

    fn parse(text: &str) -> Option<SortValue> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        match text.split_at_checked(1)? {
            ("-", "") => Some(SortValue::None),
            ("n", bits) => Some(SortValue::Number(f64::from_bits(hex(bits)?))),
            ("t", bytes) => {
                let byte = |pair: &[u8]| hex(std::str::from_utf8(pair).ok()?).map(|byte| byte as u8);
                bytes.as_bytes().chunks(2).map(byte).collect::<Option<_>>().map(SortValue::Text)
            }
            _ => None,
        }
    }
}

impl SortPlace {
    fn compare(&self, other: &SortPlace, descending: bool) -> Ordering {
        let by = self.value.compare(&other.value);
        (if descending { by.reverse() } else { by }).then(self.order.cmp(&other.order))
    }
}

impl PagePosition {
    fn write(at: Option<PagePosition>) -> String {
        match at {
            None => "-".to_owned(),
            Some(PagePosition { order, last: None }) => order.to_string(),
            Some(PagePosition { order, last: Some(last) }) => {
                format!("{order}+{}+{}", last.value.write(), last.order)
            }
        }
    }

    /// A part of a token: `None` if it is none, `Some(None)` where there are no more rooms.
    fn parse(part: &str) -> Option<Option<PagePosition>> {
        if part == "-" {
            return Some(None);
        }
        let mut parts = part.split('+');
        let order = parts.next()?.parse().ok().filter(|order| *order < u64::MAX)?;
        let last = match parts.next() {
            None => None,
            Some(value) => {
                Some(SortPlace { value: SortValue::parse(value)?, order: parts.next()?.parse().ok()? })
            }
        };
        parts.next().is_none().then_some(Some(PagePosition { order, last }))
    }
}

/// Place where each mode goes on, if anywhere.
fn parse_token(token: &str, modes: usize) -> Outcome<Vec<Option<PagePosition>>> {
    if token.is_empty() {
        return Ok(vec![Some(PagePosition::default()); modes]);
    }
    let parts: Option<Vec<Option<PagePosition>>> = token.split('.').map(PagePosition::parse).collect();
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
