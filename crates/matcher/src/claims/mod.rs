//! Claims: how a command of one shard touches players and teams of others.
//!
//! A player is in at most one team, one room of an exclusive mode, and one ticket of a queue, wherever these are. So a
//! request that may put a player into something first *claims* the player at the player's shard, one after the other in
//! the order of their names, which is why two commands never wait for each other in a circle. A claim is exclusive: later
//! ones wait for it, in order. It is granted together with what other shards know of the player *then*: the player's shard
//! asks every shard that has the player, and as mail keeps its order, no change that was answered before is missed. Once
//! all are granted the request is executed from its beginning, in one step as always, by rules that look at both what this
//! shard has and what the claims brought. Then all claims are settled, and the player's shard notes who has the player now.
//! Leaving anything needs no claim.
//!
//! A team that is to move, or to change, is claimed in the same way, before the players; the claim brings a copy of it. A
//! match claims its players before it is placed, and settling these claims also ends their tickets elsewhere. Whatever
//! concerns a backfill claims its room (`filling.rs`), and a request with a key claims that first: the claim brings what
//! another shard has answered to it. What all shards together may have, each has a part of, and asks the others for more
//! (`limits.rs`).
//!
//! *Expiry.* A claim lives for [`CLAIM_MS`], by the clock of who claims; then the request fails with `TIMEOUT`, having done
//! nothing, and everything is given back. Only the claimant ends a claim: the player's shard never takes one back by its
//! own clock, so two clocks that differ cannot make two owners. The claimant always does end it, as its own timer is a part
//! of its state, and mail is not lost: what was sent and not received when the process ended is derived again by replaying
//! the log. A grant that comes after the end is ignored, as the end is on its way to whom granted it. What was asked of
//! another shard and is done there, a rating or seats, does not expire: its answer is awaited.

mod asking;
mod filling;
mod home;
mod limits;
mod ratings;

pub(crate) use asking::already_in;
pub(crate) use filling::{RoomCopy, SeatAsked};
pub(crate) use limits::Limit;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use throng_wire::fields;
use throng_wire::matcher::Method;

use crate::id::Id;
use crate::info::{Info, RoleRef, Text, bytes, text};
use crate::keys::{Answer, Keys};
use crate::matcher::{Matcher, request_key};
use crate::notices::Notices;
use crate::policy::Kept;
use crate::problem::Outcome;
use crate::rating::SharedRatings;

/// How long a claim lives, by the clock of who claims.
pub(crate) const CLAIM_MS: u64 = 5_000;
/// Claims under way; beyond, requests are refused as `OVERLOADED`.
const JOBS_MAX: usize = 10_000;

/// Something that is claimed, in the order in which one command claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Key {
    /// A server's request key.
    Request(Text, u128),
    Team(Id),
    Role(Text),
    /// A room, for what concerns its backfill only: everything else about it goes on.
    Room(Id),
}

/// What shards other than the claimant have of a role.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Whether any of them has it.
    pub(crate) is_known: bool,
    /// Where it lives.
    pub(crate) server: Text,
    pub(crate) team: Option<Id>,
    /// The live room of an exclusive mode.
    pub(crate) room: Option<Id>,
    /// Its live tickets.
    pub(crate) tickets: Vec<Text>,
    pub(crate) cooldown_until: u64,
}

impl Facts {
    fn absorb(&mut self, other: Facts) {
        if !self.is_known {
            (self.is_known, self.server) = (true, other.server);
        }
        self.team = self.team.or(other.team);
        self.room = self.room.or(other.room);
        self.tickets.extend(other.tickets);
        self.cooldown_until = self.cooldown_until.max(other.cooldown_until);
    }
}

/// A team as it is where it belongs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TeamCopy {
    pub(crate) leader: Text,
    /// Where the leader lives.
    pub(crate) server: Text,
    pub(crate) members: Vec<MemberCopy>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberCopy {
    pub(crate) role: Text,
    pub(crate) server: Text,
    pub(crate) info: Info,
}

/// What a claim brings.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Known {
    /// `None`: there is no such team.
    Team(Option<TeamCopy>),
    Role(Facts),
    /// `None`: there is no such room.
    Room(Option<RoomCopy>),
    /// What another shard has answered to a request with this key.
    Request(Option<Answer>),
}

/// What a shard has of something that another claims.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    Role(Facts),
    Answer(Answer),
}

/// Who claims: a shard, and its number for it.
type Holder = (u16, u64);

/// What shards tell each other.
#[derive(Debug, Serialize, Deserialize)]
enum Letter {
    /// To the home of the key.
    Claim {
        job: u64,
        key: Key,
    },
    Granted {
        job: u64,
        known: Known,
    },
    /// The end of a claim, or of waiting for it.
    Settled {
        job: u64,
        key: Key,
        end: End,
    },
    /// What do you have of it? Of a room nothing: but what was said of it before has arrived with the answer.
    Probe {
        holder: Holder,
        key: Key,
    },
    Probed {
        holder: Holder,
        key: Key,
        part: Option<Part>,
    },
    /// The sender has the role no more.
    Gone {
        role: Text,
    },
    /// The role lives elsewhere now.
    Moved {
        role: Text,
        server: Text,
    },
    /// The role was matched on another shard.
    Drop {
        role: Text,
    },
    /// A result, for the shard of its rating pool.
    Rate {
        job: u64,
        asked: RateAsked,
    },
    Rated {
        job: u64,
        result: RateResult,
    },
    /// What a pool's players are rated now.
    Ratings(SharedRatings),
    /// Answered once all that was sent before is known.
    Sync {
        share: u64,
    },
    Synced {
        share: u64,
    },
    /// To the shard of a room: it has a backfill now, whose sides are these.
    Fill {
        room: Id,
        backfill: Id,
        sides: Vec<String>,
    },
    /// It has it no more.
    Unfill {
        room: Id,
        backfill: Id,
    },
    /// To the shard of a backfill: its room accepts nobody any more.
    Closed {
        backfill: Id,
    },
    /// To the shard of a room: seats for the players of a match.
    Seat {
        job: u64,
        room: Id,
        until: u64,
        seats: Vec<SeatAsked>,
    },
    /// Whether that was done, and the room since.
    Seated {
        job: u64,
        done: bool,
        room: Option<RoomCopy>,
    },
    /// The sender may have no more of something, and needs so many.
    Borrow {
        job: u64,
        limit: Limit,
        wanted: i64,
    },
    Lent {
        job: u64,
        limit: Limit,
        amount: i64,
    },
}

/// What came of a report, or the status and the message of its refusal.
type RateResult = Result<Vec<u8>, (u16, String)>;

/// How a claim ends.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct End {
    /// Where the role lives, if the claimant has it now; of a request key anything, if the claimant keeps its answer.
    server: Option<Text>,
    /// The role's tickets elsewhere are over.
    drops: bool,
    /// Another shard that the claimant gave the role to.
    also: Option<u16>,
}

/// A result that another shard's match had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RateAsked {
    pub(crate) about: Id,
    pub(crate) pool: String,
    pub(crate) system: crate::queue::System,
    pub(crate) period_ms: u64,
    pub(crate) body: Vec<u8>,
}

/// What one shard sends to another. Mail between two shards keeps its order and is not lost.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mail(Letter);

/// Who waits for claims.
#[derive(Debug, Serialize, Deserialize)]
enum Owner {
    /// A request; `None` once everything was granted, while a policy is asked.
    Request(Option<Kept>),
    Match(Id),
    /// A match that has its room and lacks a question about its server.
    Server(Id),
}

/// Claims that are made together.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    owner: Owner,
    keys: Vec<Key>,
    /// What those granted have brought, in the order of `keys`. The next one is asked for.
    known: Vec<Known>,
    /// What another shard did for it.
    result: Option<RateResult>,
    /// Other shards that were asked for a part of a limit.
    lenders: u16,
    /// It lacks a question to a policy.
    asks: bool,
    /// Another shard does something for it, whatever happens here: it does not expire.
    acts: bool,
    until: u64,
}

/// A key that is claimed, at its home.
#[derive(Debug, Serialize, Deserialize)]
struct Lock {
    holder: Holder,
    /// Shards that were asked and have not answered, a bit for each.
    probes: u16,
    facts: Facts,
    answer: Option<Answer>,
    queue: VecDeque<Holder>,
}

/// A player, at the player's home.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Home {
    /// Shards that may have the player, a bit for each.
    shards: u16,
    server: Text,
}

/// Claims of this shard, and of others on what belongs to it. Empty where there is one shard.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claims {
    last: u64,
    jobs: BTreeMap<u64, Job>,
    /// Jobs of requests by their numbers; one without a job any more has expired.
    by_request: BTreeMap<u64, u64>,
    by_match: BTreeMap<Id, u64>,
    locks: BTreeMap<Key, Lock>,
    homes: BTreeMap<Text, Home>,
    /// Which shard has answered a request with a key.
    used: Keys<u16>,
    /// Results that were counted and that some shards have not heard of.
    shares: BTreeMap<u64, ratings::Share>,
    /// Rooms of this shard with backfills of others.
    filled: BTreeMap<Id, Id>,
    /// Backfills that end, and why, once the seats are there that were asked for.
    ends: BTreeMap<Id, String>,
    /// By [`Limit`].
    parts: [limits::Allowance; 3],
    /// Of the request under way.
    #[serde(skip)]
    current: Option<u64>,
    /// Mail of this shard to itself.
    #[serde(skip)]
    local: VecDeque<Letter>,
    #[serde(skip)]
    out: VecDeque<(u16, Mail)>,
}

impl Claims {
    /// What another shard did for the request under way.
    pub(crate) fn take_result(&mut self) -> Option<RateResult> {
        self.jobs.get_mut(&self.current?)?.result.take()
    }

    /// What the request under way knows of something it has claimed.
    fn known_of(&self, is_it: impl Fn(&Key) -> bool) -> Option<&Known> {
        let job = self.jobs.get(&self.current?)?;
        job.known.get(job.keys.iter().position(is_it)?)
    }

    /// Whether what a job waits for was answered before.
    fn is_answered(&self, job: u64) -> bool {
        let known = self.jobs.get(&job).and_then(|job| job.known.first());
        matches!(known, Some(Known::Request(Some(_))))
    }

    /// What another shard has answered to the key of the request under way.
    pub(crate) fn answered_elsewhere(&self) -> Option<&Answer> {
        match self.known_of(|key| matches!(key, Key::Request(..)))? {
            Known::Request(answer) => answer.as_ref(),
            _ => None,
        }
    }

    /// A backfill is over, whatever it waited for.
    pub(crate) fn forget_end(&mut self, backfill: Id) {
        self.ends.remove(&backfill);
    }

    /// Forgets who answered the oldest key, if it is due; gives its server.
    pub(crate) fn expire_used(&mut self, now: u64) -> Option<u32> {
        self.used.expire(now)
    }
}

impl Matcher {
    /// Claims that this shard waits for or holds.
    #[must_use]
    pub fn open_claims(&self) -> usize {
        self.claims.jobs.len()
    }

    /// Players and teams of this shard that are claimed, by whatever shard.
    #[must_use]
    pub fn claimed_here(&self) -> usize {
        self.claims.locks.len()
    }

    /// The next mail to another shard, with its number. Drain after every input, in order.
    pub fn poll_mail(&mut self) -> Option<(u16, Mail)> {
        self.claims.out.pop_front()
    }

    /// Mail of shard `from` arrives: all of it, each once, in the order in which it was sent.
    pub fn handle_mail(&mut self, now: u64, from: u16, mail: Mail, notices: &mut Notices) {
        self.advance(now, notices);
        self.receive(from, mail.0, notices);
        self.pump(notices);
    }

    fn send(&mut self, to: u16, letter: Letter) {
        if to == self.shard.index {
            self.claims.local.push_back(letter);
        } else {
            self.stats.mail_sent += 1;
            self.claims.out.push_back((to, Mail(letter)));
        }
    }

    /// Reads this shard's mail to itself and says which players it has no more. Ends every input.
    #[inline]
    pub(crate) fn pump(&mut self, notices: &mut Notices) {
        if !self.shard.is_alone() {
            self.read_own_mail(notices);
        }
    }

    fn read_own_mail(&mut self, notices: &mut Notices) {
        loop {
            for role in std::mem::take(&mut self.people.gone) {
                // It may be back already.
                if self.people.player(&role).is_none() {
                    self.send(self.shard.of_name(&role), Letter::Gone { role });
                }
            }
            let Some(letter) = self.claims.local.pop_front() else { return };
            self.receive(self.shard.index, letter, notices);
        }
    }

    fn receive(&mut self, from: u16, letter: Letter, notices: &mut Notices) {
        match letter {
            Letter::Claim { job, key } => self.claimed((from, job), key),
            Letter::Granted { job, known } => self.granted(job, known, notices),
            Letter::Settled { job, key, end } => self.settled((from, job), &key, end, notices),
            Letter::Probe { holder, key } => {
                let part = self.part_of(&key);
                self.send(from, Letter::Probed { holder, key, part });
            }
            Letter::Probed { holder, key, part } => self.probed(from, holder, key, part),
            Letter::Gone { role } => self.gone(from, &role),
            Letter::Moved { role, server } => self.moved(&role, &server),
            Letter::Drop { role } => self.matched_elsewhere(&role, notices),
            Letter::Rate { job, asked } => self.rate_and_share((from, job), &asked),
            Letter::Rated { job, result } => self.rated_elsewhere(job, result, notices),
            Letter::Ratings(ratings) => self.take_ratings(ratings),
            Letter::Sync { share } => self.send(from, Letter::Synced { share }),
            Letter::Synced { share } => self.synced(from, share),
            Letter::Fill { room, backfill, sides } => self.filled(from, room, backfill, sides),
            Letter::Unfill { room, backfill } => self.unfilled(room, backfill),
            Letter::Closed { backfill } => self.room_closed_elsewhere(backfill, notices),
            Letter::Seat { job, room, until, seats } => {
                let done = self.seat_for_another(room, until, seats);
                let room = self.copy_room(room);
                self.send(from, Letter::Seated { job, done, room });
            }
            Letter::Seated { job, done, room } => self.seated_elsewhere(from, job, done, room, notices),
            Letter::Borrow { job, limit, wanted } => {
                let amount = self.lend(limit, wanted);
                self.send(from, Letter::Lent { job, limit, amount });
            }
            Letter::Lent { job, limit, amount } => self.lent(job, limit, amount, notices),
        }
    }

    /// Tells every other shard.
    fn send_all(&mut self, letter: impl Fn() -> Letter) {
        let own = self.shard.index;
        for to in (0..self.shard.count).filter(|to| *to != own) {
            self.send(to, letter());
        }
    }

    /// Tells the other shards how a pool's players are rated.
    pub(crate) fn share_ratings(&mut self, ratings: &SharedRatings) {
        self.send_all(|| Letter::Ratings(ratings.clone()));
    }
}

/// What a request claims before it is executed, in order. No players or teams for a body that will be refused.
fn touched(method: u16, body: &[u8], srv: &str) -> Vec<Key> {
    let parts: Outcome<Vec<Key>> = match method {
        Method::ROLE_JOIN_RANDOM_ROOM
        | Method::ROLE_CREATE_ROOM
        | Method::ROLE_JOIN_ROOM
        | Method::CREATE_TEAM => role_in(body).map(|role| role.into_iter().collect()),
        Method::CLAIM_SEAT => text_in(body, 2).map(|role| vec![Key::Role(Text::from_slice(role))]),
        Method::JOIN_TEAM => {
            text_in(body, 2).and_then(|team| Ok(team_key(team).into_iter().chain(role_in(body)?).collect()))
        }
        Method::LEAVE_TEAM => text_in(body, 2).map(|team| team_key(team).into_iter().collect()),
        Method::CHANGE_TEAM_LEADER
        | Method::SET_TEAM_DATA
        | Method::DELETE_TEAM
        | Method::TEAM_JOIN_RANDOM_ROOM
        | Method::TEAM_CREATE_ROOM
        | Method::TEAM_JOIN_ROOM => text_in(body, 1).map(|team| team_key(team).into_iter().collect()),
        Method::CREATE_TICKET => ticket_keys(body),
        Method::START_BACKFILL => {
            text_in(body, 1).map(|id| Id::parse(id).map(Key::Room).into_iter().collect())
        }
        _ => Ok(Vec::new()),
    };
    let mut keys = parts.unwrap_or_default();
    // All shards drain, and again changes nothing.
    if method != Method::DRAIN
        && let Ok(Some(key)) = request_key(body)
    {
        keys.push(Key::Request(Text::from_slice(srv.as_bytes()), key));
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn team_key(id: &[u8]) -> Option<Key> {
    Id::parse(id).map(Key::Team)
}

fn text_in(body: &[u8], number: u32) -> Outcome<&[u8]> {
    let mut found = &[][..];
    for field in fields(body) {
        let field = field?;
        if field.number == number {
            found = text(&field)?;
        }
    }
    Ok(found)
}

fn role_in(body: &[u8]) -> Outcome<Option<Key>> {
    let mut role = None;
    for field in fields(body) {
        let field = field?;
        if field.number == 1 {
            role = Some(Key::Role(Text::from_slice(RoleRef::parse(bytes(&field)?)?.id)));
        }
    }
    Ok(role)
}

fn ticket_keys(body: &[u8]) -> Outcome<Vec<Key>> {
    let mut keys = Vec::new();
    for field in fields(body) {
        let field = field?;
        match field.number {
            2 => keys.push(Key::Role(Text::from_slice(text_in(bytes(&field)?, 1)?))),
            3 => keys.extend(team_key(text(&field)?)),
            _ => {}
        }
    }
    Ok(keys)
}
