//! Tickets: parties that wait in a queue.

use std::ops::RangeInclusive;

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::{write_bytes, write_u64};

use super::{Compiled, Facts, Key, Kind, PlayerInput, number};
use crate::id::Id;
use crate::info::{ID_BYTES_MAX, bytes, check_id, check_len, entry, text};
use crate::key::{Numbers, PartitionKey, PlayerKey, QueueKey, TicketKey};
use crate::problem::{Outcome, ensure, too_large};
use crate::schema::v1;

/// Players of one ticket.
pub(crate) const PLAYERS_MAX: usize = 64;
/// Priorities of tickets.
pub(crate) const PRIORITIES: RangeInclusive<i8> = -10..=10;
/// Attributes of one player.
const ATTRIBUTES_MAX: usize = 32;

/// State of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Searching,
    Proposed,
    Placing,
    Matched,
    Cancelled,
    TimedOut,
    Failed,
}

/// In the order of their numbers in snapshots.
const STATES: [State; 7] = [
    State::Searching,
    State::Proposed,
    State::Placing,
    State::Matched,
    State::Cancelled,
    State::TimedOut,
    State::Failed,
];

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Searching => "searching",
            State::Proposed => "proposed",
            State::Placing => "placing",
            State::Matched => "matched",
            State::Cancelled => "cancelled",
            State::TimedOut => "timed_out",
            State::Failed => "failed",
        }
    }

    pub(crate) fn is_live(self) -> bool {
        matches!(self, State::Searching | State::Proposed | State::Placing)
    }
}

/// Place where a searching ticket stands in its pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolPosition {
    pub(crate) partition: PartitionKey,
    pub(crate) key: Key,
}

/// Place where a ticket is listed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Standing {
    /// Proposed, being placed, or held back.
    #[default]
    Nowhere,
    InPool(PoolPosition),
    /// Among those that have ended: how long it stays readable, and which ended next.
    Ended {
        until: u64,
        next: Option<TicketKey>,
    },
}

/// Tickets that have ended, in order. They are chained through the tickets: a tick that matches a
/// hundred thousand moves no list of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndedTickets {
    pub(super) first: Option<TicketKey>,
    pub(super) last: Option<TicketKey>,
    pub(super) len: u32,
}

/// A party that asks for a match.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: Id,
    pub(crate) queue: QueueKey,
    pub(crate) created: u64,
    pub(crate) expires: u64,
    pub(crate) priority: i8,
    pub(crate) state: State,
    pub(crate) rev: u64,
    pub(crate) reason: Box<[u8]>,
    pub(crate) team: Box<[u8]>,
    pub(crate) players: SmallVec<[TicketPlayer; 1]>,
    pub(crate) facts: Facts,
    /// Expansion level that its waiting time has reached.
    pub(crate) level: u8,
    pub(crate) standing: Standing,
    pub(crate) matched: Option<Id>,
    pub(crate) room: Option<Id>,
    pub(crate) region: Option<u16>,
    /// Tickets ahead, as last counted.
    pub(crate) position: u64,
    /// Number of its matches that a policy refused or that got no server.
    pub(crate) refusals: u8,
}

/// A player of a ticket.
#[derive(Clone, Debug)]
pub(crate) struct TicketPlayer {
    /// While the ticket is live.
    pub(crate) player: Option<PlayerKey>,
    /// As encoded, with the server that the matcher knows.
    pub(crate) body: Box<[u8]>,
}

/// Field of a ticket's player that was lost while its match was placed.
const LOST: u32 = 7;

impl TicketPlayer {
    /// A player's request, with the server that the matcher knows.
    pub(crate) fn body(asked: &[u8], server: &[u8]) -> Box<[u8]> {
        let mut out = Vec::with_capacity(asked.len() + server.len() + 2);
        for field in fields(asked).map_while(Result::ok).filter(|field| ![2, LOST].contains(&field.number)) {
            out.extend_from_slice(field.raw);
        }
        write_bytes(&mut out, 2, server);
        out.into_boxed_slice()
    }

    /// Returns whether the player was lost while its match was placed.
    pub(crate) fn is_lost(&self) -> bool {
        fields(&self.body).map_while(Result::ok).any(|field| field.number == LOST && field.scalar != 0)
    }

    pub(super) fn lose(&mut self) {
        let mut body = std::mem::take(&mut self.body).into_vec();
        write_u64(&mut body, LOST, 1);
        self.body = body.into_boxed_slice();
    }

    /// Its role and server.
    pub(crate) fn names(&self) -> (&[u8], &[u8]) {
        let named = |number| fields(&self.body).map_while(Result::ok).find(|field| field.number == number);
        [1, 2].map(|number| named(number).map_or(&[][..], |field| field.value)).into()
    }
}

impl Ticket {
    /// Returns whether a role is in the ticket, which may have ended.
    pub(crate) fn has_role(&self, role: &[u8]) -> bool {
        self.players.iter().any(|player| player.names().0 == role)
    }

    /// `place` says where it waits.
    pub(crate) fn save(&self, numbers: &Numbers, place: Option<v1::Waiting>) -> v1::Ticket<'_> {
        let player = |own: &'_ TicketPlayer| own.player.and_then(|player| numbers.player(player));
        // Nothing reads the facts of one that has ended.
        let facts = if self.state.is_live() { self.facts.save() } else { Facts::save_none() };
        v1::Ticket {
            id: self.id.into(),
            queue: self.queue.index(),
            created: self.created,
            expires: self.expires,
            priority: self.priority,
            state: STATES.iter().position(|state| *state == self.state).unwrap_or_default() as u8,
            rev: self.rev,
            reason: &self.reason,
            team: &self.team,
            players: self
                .players
                .iter()
                .map(|own| v1::TicketPlayer { player: player(own), body: &own.body })
                .collect(),
            facts,
            level: self.level,
            waits: place,
            readable_until: match self.standing {
                Standing::Ended { until, .. } => until,
                _ => 0,
            },
            matched: self.matched.map(Id::into),
            room: self.room.map(Id::into),
            region: self.region,
            position: self.position,
            refusals: self.refusals,
        }
    }

    /// It stands nowhere yet, unless it has ended. A ticket that no request makes by `now` is
    /// refused.
    pub(crate) fn load(saved: &v1::Ticket<'_>, now: u64) -> Result<Ticket, &'static str> {
        let state = *STATES.get(usize::from(saved.state)).ok_or("a ticket has an unknown state")?;
        ensure(PRIORITIES.contains(&saved.priority), "the priority of a ticket")?;
        ensure(saved.created <= now && saved.created <= saved.expires, "the times of a ticket")?;
        let size = saved.players.len();
        ensure((1..=PLAYERS_MAX).contains(&size), "the players of a ticket")?;
        ensure(saved.players.iter().all(|own| parse_player(own.body).is_ok()), "a player of a ticket")?;
        let facts = (saved.facts.size as usize, saved.facts.players.len());
        ensure(!state.is_live() || facts == (size, size), "the facts of a ticket")?;
        let player = |own: &v1::TicketPlayer<'_>| TicketPlayer {
            player: own.player.map(PlayerKey::new),
            body: Box::from(own.body),
        };
        let until = saved.readable_until;
        Ok(Ticket {
            id: saved.id.into(),
            queue: QueueKey::new(saved.queue),
            created: saved.created,
            expires: saved.expires,
            priority: saved.priority,
            state,
            rev: saved.rev,
            reason: Box::from(saved.reason),
            team: Box::from(saved.team),
            players: saved.players.iter().map(player).collect(),
            facts: Facts::load(&saved.facts),
            level: saved.level,
            standing: if state.is_live() { Standing::Nowhere } else { Standing::Ended { until, next: None } },
            matched: saved.matched.map(Id::from),
            room: saved.room.map(Id::from),
            region: saved.region,
            position: saved.position,
            refusals: saved.refusals,
        })
    }

    /// Something that is known when all of it is at hand.
    pub(crate) fn touch(&self) -> u64 {
        let due = match self.standing {
            Standing::InPool(place) => place.key.0,
            Standing::Ended { until, .. } => until,
            Standing::Nowhere => 0,
        };
        let ids = self.id.nonce ^ self.matched.map_or(0, |id| id.nonce) ^ self.room.map_or(0, |id| id.nonce);
        let lists = self.players.len() ^ self.team.len() ^ self.reason.len() ^ self.facts.players.len();
        due ^ ids ^ self.created ^ self.expires ^ self.rev ^ self.position ^ lists as u64
    }

    /// Its id.
    pub(crate) fn text(&self) -> [u8; 32] {
        ticket_id(self.id, self.created)
    }

    /// Its place in the pool, while it searches.
    pub(crate) fn place(&self) -> Option<PoolPosition> {
        match self.standing {
            Standing::InPool(place) => Some(place),
            _ => None,
        }
    }

    /// Kind of the ticket for wait estimates.
    pub(crate) fn kind(&self, compiled: &Compiled) -> Kind {
        let skill = compiled.main.map(|key| self.facts.value(key));
        Kind::new(skill, self.facts.home.map(u16::from), self.facts.size)
    }
}

/// Ids of tickets begin with their time.
fn ticket_id(id: Id, created: u64) -> [u8; 32] {
    let mut text = [0; 32];
    crate::id::hex(&mut text[..11], created);
    crate::id::hex(&mut text[11..19], u64::from(id.index));
    crate::id::hex(&mut text[19..], id.nonce);
    text
}

/// Time when a ticket relaxes next, or its end.
pub(crate) fn next_due(compiled: &Compiled, ticket: &Ticket) -> u64 {
    let next = compiled.levels.get(usize::from(ticket.level) + 1);
    next.map_or(ticket.expires, |level| (ticket.created + level.after_ms).min(ticket.expires))
}

/// Players with the servers that they name.
pub(crate) fn parse_players<'a>(bodies: &[&'a [u8]]) -> Outcome<Vec<(PlayerInput<'a>, &'a [u8])>> {
    bodies.iter().map(|body| parse_player(body)).collect()
}

fn parse_player(body: &[u8]) -> Outcome<(PlayerInput<'_>, &[u8])> {
    let (mut input, mut srv) = (PlayerInput::default(), &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => input.role = text(&field)?,
            2 => srv = text(&field)?,
            3 => {
                let (key, value) = entry(&field)?;
                input.attrs.push((key, value.map_or(Ok(&[][..]), |value| bytes(&value))?));
            }
            4 => {
                let (region, value) = entry(&field)?;
                check_len(region, 64, "a region")?;
                input.pings.push((region, crate::info::number(value, "Latency")?));
            }
            5 => input.wants.push(text(&field)?),
            6 => input.avoid.push(text(&field)?),
            _ => {}
        }
    }
    check_id(input.role, "RoleID")?;
    check_len(srv, ID_BYTES_MAX, "SrvID")?;
    if input.attrs.len() > ATTRIBUTES_MAX || input.pings.len() > 64 || input.avoid.len() > 64 {
        let message =
            format!("a player has at most {ATTRIBUTES_MAX} attributes, 64 latencies and 64 to avoid");
        return Err(too_large(message));
    }
    Ok((input, srv))
}

/// Distance of a pool's neighbours, for explanations.
pub(crate) fn distance(a: Key, b: Key) -> f64 {
    (number(a.0) - number(b.0)).abs()
}
