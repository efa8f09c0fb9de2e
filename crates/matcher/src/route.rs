//! Where a request goes, and how answers of several shards become one.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};
use throng_wire::fields;
use throng_wire::matcher::{Method, REQUEST_KEY_FIELD, Reader, Status, write_bytes};

use crate::id::{ID_BYTES, unhex};
use crate::queue::QueueRules;
use crate::shard::shard_of_name;

/// The shards that a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One; claims of others are its own business.
    One(u16),
    /// All, as it asks for what several have or changes all.
    All,
}

/// The shards, of `count`, that a request concerns. The same request always goes to the same ones. What cannot be read, or
/// names nothing that there could be, goes to the first, which refuses it.
#[must_use]
pub fn route(method: u16, body: &[u8], count: u16) -> Route {
    if count == 1 {
        return Route::One(0);
    }
    let name = |name: &[u8]| Route::One(shard_of_name(name, count));
    match method {
        Method::LIST_MINE
        | Method::GET_ROLE
        | Method::LIST_ROOMS
        | Method::GET_ROOM_INFOS
        | Method::LIST_QUEUES
        | Method::GET_RATINGS
        | Method::DRAIN => Route::All,
        Method::LIST_TICKETS if part(body, 1).is_empty() => name(part(body, 2)),
        Method::START_BACKFILL => name(part(body, 2)),
        Method::LIST_TICKETS => Route::All,
        Method::CREATE_TEAM => name(part(part(body, 1), 1)),
        Method::ROLE_JOIN_RANDOM_ROOM
        | Method::ROLE_CREATE_ROOM
        | Method::TEAM_JOIN_RANDOM_ROOM
        | Method::TEAM_CREATE_ROOM => name(part(part(body, 2), 1)),
        Method::GET_ROOM_LIST | Method::CREATE_TICKET | Method::GET_QUEUE_STATS => name(part(body, 1)),
        Method::PUT_QUEUE | Method::TRY_QUEUE => match QueueRules::parse(part(body, 1)) {
            Ok(rules) => name(rules.name().as_bytes()),
            Err(_) => Route::One(0),
        },
        Method::JOIN_TEAM
        | Method::LEAVE_TEAM
        | Method::ROLE_JOIN_ROOM
        | Method::ROLE_LEAVE_ROOM
        | Method::TEAM_JOIN_ROOM => of_id(part(body, 2), count),
        Method::UPDATE_ROOM_ROLE_DATA => of_id(part(part(body, 1), 1), count),
        Method::REPORT_RESULT if part(body, 1).is_empty() => of_id(part(body, 2), count),
        _ => of_id(part(body, 1), count),
    }
}

/// The rooms and teams that a request names, and whether it may have to wait for players of other shards: what comes after
/// it about the same ones then waits for it.
#[must_use]
pub fn named(method: u16, body: &[u8]) -> (SmallVec<[&[u8]; 2]>, bool) {
    let (ids, claims): (SmallVec<[&[u8]; 2]>, bool) = match method {
        Method::JOIN_TEAM | Method::LEAVE_TEAM | Method::ROLE_JOIN_ROOM => (smallvec![part(body, 2)], true),
        Method::CHANGE_TEAM_LEADER
        | Method::SET_TEAM_DATA
        | Method::DELETE_TEAM
        | Method::TEAM_JOIN_RANDOM_ROOM
        | Method::TEAM_CREATE_ROOM
        | Method::CLAIM_SEAT => (smallvec![part(body, 1)], true),
        Method::TEAM_JOIN_ROOM => (smallvec![part(body, 1), part(body, 2)], true),
        Method::CREATE_TICKET => (smallvec![part(body, 3)], true),
        Method::START_BACKFILL => (smallvec![part(body, 1)], true),
        Method::ROLE_LEAVE_ROOM => (smallvec![part(body, 2)], false),
        Method::UPDATE_ROOM_ROLE_DATA => (smallvec![part(part(body, 1), 1)], false),
        Method::BROADCAST_TEAM
        | Method::GET_TEAM_INFO
        | Method::BROADCAST_ROOM
        | Method::SET_ROOM_DATA
        | Method::DELETE_ROOM
        | Method::GET_ROOM_INFO
        | Method::GET_ROOM_HISTORY
        | Method::SET_ROOM_FLAGS
        | Method::ASSIGN_MATCH => (smallvec![part(body, 1)], false),
        _ => (SmallVec::new(), false),
    };
    // A key is claimed too.
    let claims = claims || !part(body, REQUEST_KEY_FIELD).is_empty();
    (ids.into_iter().filter(|id| !id.is_empty()).collect(), claims)
}

/// The last value of a field that has bytes; nothing where there is none.
fn part(body: &[u8], number: u32) -> &[u8] {
    let found = fields(body).map_while(Result::ok).filter(|field| field.number == number).last();
    found.map_or(&[], |field| field.value)
}

/// Ids name their shard in their last digit.
fn of_id(id: &[u8], count: u16) -> Route {
    let shard = id.get(id.len().saturating_sub(1)..).and_then(unhex).unwrap_or(0) as u16;
    Route::One(if id.len() >= ID_BYTES && shard < count { shard } else { 0 })
}

/// Answers of all shards to one request, until they are complete.
#[derive(Debug)]
pub struct Answers {
    method: u16,
    request: Vec<u8>,
    parts: Vec<Option<(Status, Vec<u8>)>>,
}

impl Answers {
    /// None yet, of `count`.
    #[must_use]
    pub fn new(method: u16, request: &[u8], count: u16) -> Answers {
        let parts = (0..count).map(|_| None).collect();
        Answers { method, request: request.to_vec(), parts }
    }

    /// Takes the answer of a shard. Gives the one answer when it was the last.
    pub fn add(&mut self, shard: u16, status: Status, body: Vec<u8>) -> Option<(Status, Vec<u8>)> {
        *self.parts.get_mut(usize::from(shard))? = Some((status, body));
        let parts: Option<Vec<&(Status, Vec<u8>)>> = self.parts.iter().map(Option::as_ref).collect();
        Some(self.join(&parts?))
    }

    fn join(&self, parts: &[&(Status, Vec<u8>)]) -> (Status, Vec<u8>) {
        let count = parts.len() as u16;
        if self.method == Method::GET_RATINGS {
            // The shard of the pool knows it best; one that only a queue names is known where that is.
            let home = usize::from(shard_of_name(part(&self.request, 1), count));
            let knows = |part: &&&(Status, Vec<u8>)| part.0 == Status::Ok;
            let found = parts.get(home).filter(knows).or_else(|| parts.iter().find(knows));
            return (*found.unwrap_or(&parts[0])).clone();
        }
        // A role may be known to some shards only.
        let is_missing =
            |part: &(Status, Vec<u8>)| self.method == Method::GET_ROLE && part.0 == Status::NotFound;
        let known: Vec<&(Status, Vec<u8>)> = parts.iter().copied().filter(|part| !is_missing(part)).collect();
        let Some(first) = known.first() else { return parts[0].clone() };
        let parts = &known;
        if let Some(refused) = parts.iter().find(|(status, _)| *status != Status::Ok) {
            return (*refused).clone();
        }
        let bodies: Vec<&[u8]> = parts.iter().map(|(_, body)| body.as_slice()).collect();
        let mut all = Vec::new();
        match self.method {
            Method::LIST_ROOMS => self.join_rooms(&bodies, &mut all),
            Method::LIST_QUEUES => sorted(&bodies, &mut all, |entry| part(entry, 1).to_vec()),
            // Tickets' ids begin with their time.
            Method::LIST_TICKETS => sorted(&bodies, &mut all, |entry| part(entry, 1).to_vec()),
            Method::GET_ROOM_INFOS => {
                let mut places: BTreeMap<&[u8], usize> = BTreeMap::new();
                for (at, field) in fields(&self.request).map_while(Result::ok).enumerate() {
                    places.entry(field.value).or_insert(at);
                }
                sorted(&bodies, &mut all, |entry| places.get(part(entry, 1)).copied());
            }
            Method::GET_ROLE => {
                let own = |number| fields(&first.1).map_while(Result::ok).filter(move |f| f.number == number);
                own(1).chain(own(2)).for_each(|field| all.extend_from_slice(field.raw));
                for number in 3..=5 {
                    for body in &bodies {
                        let entries = fields(body).map_while(Result::ok).filter(|f| f.number == number);
                        entries.for_each(|field| all.extend_from_slice(field.raw));
                    }
                }
            }
            Method::LIST_MINE => {
                for number in 1..=3 {
                    for body in &bodies {
                        let entries = fields(body).map_while(Result::ok).filter(|f| f.number == number);
                        entries.for_each(|field| all.extend_from_slice(field.raw));
                    }
                }
            }
            _ => all.extend_from_slice(bodies[0]),
        }
        (Status::Ok, all)
    }

    /// Modes in the order of the request, each from its shard, and where each goes on.
    fn join_rooms(&self, bodies: &[&[u8]], all: &mut Vec<u8>) {
        let count = bodies.len() as u16;
        let modes = fields(&self.request).map_while(Result::ok).filter(|field| field.number == 1);
        let mut next: Vec<&str> = Vec::new();
        for (at, mode) in modes.enumerate() {
            let body = bodies[usize::from(shard_of_name(mode.value, count))];
            // A mode that was asked for twice is answered twice.
            let twin = fields(&self.request).map_while(Result::ok).take(at);
            let before = twin.filter(|field| field.number == 1 && field.value == mode.value).count();
            let entries = fields(body).map_while(Result::ok).filter(|field| field.number == 1);
            let mut own = entries.filter(|field| part(field.value, 1) == mode.value);
            if let Some(entry) = own.nth(before) {
                all.extend_from_slice(entry.raw);
            }
            let token = Reader::new(body).ok().and_then(|body| body.str(2).ok()).unwrap_or_default();
            next.push(token.split('.').nth(at).unwrap_or("-"));
        }
        if next.iter().any(|part| *part != "-" && !part.is_empty()) {
            write_bytes(all, 2, next.join(".").as_bytes());
        }
    }
}

/// All entries of field 1, in an order.
fn sorted<K: Ord>(bodies: &[&[u8]], all: &mut Vec<u8>, key: impl Fn(&[u8]) -> K) {
    let entries = bodies.iter().flat_map(|body| fields(body).map_while(Result::ok));
    let mut entries: Vec<_> = entries.filter(|field| field.number == 1).collect();
    entries.sort_by_key(|field| key(field.value));
    entries.iter().for_each(|field| all.extend_from_slice(field.raw));
}
