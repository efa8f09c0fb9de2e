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
//! match claims its players before it is placed, and settling these claims also ends their tickets elsewhere.
//!
//! *Expiry.* A claim lives for [`CLAIM_MS`], by the clock of who claims; then the request fails with `TIMEOUT`, having done
//! nothing, and everything is given back. Only the claimant ends a claim: the player's shard never takes one back by its
//! own clock, so two clocks that differ cannot make two owners. The claimant always does end it, as its own timer is a part
//! of its state, and mail is not lost: what was sent and not received when the process ended is derived again by replaying
//! the log. A grant that comes after the end is ignored, as the end is on its way to whom granted it.

mod asking;
mod home;

pub(crate) use asking::already_in;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use throng_wire::fields;
use throng_wire::matcher::Method;

use crate::id::Id;
use crate::info::{Info, RoleRef, Text, bytes, text};
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::policy::Kept;
use crate::problem::Outcome;
use crate::rating::SharedRatings;

/// How long a claim lives, by the clock of who claims.
pub(crate) const CLAIM_MS: u64 = 5_000;
/// Claims under way; beyond, requests are refused as `OVERLOADED`.
const JOBS_MAX: usize = 10_000;

/// Something that is claimed. Teams come before roles.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Key {
    Team(Id),
    Role(Text),
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
    /// The end of a claim, or of waiting for it. `server`: where the role lives, if the claimant has it now. `drops`: its
    /// tickets elsewhere are over.
    Settled {
        job: u64,
        key: Key,
        server: Option<Text>,
        drops: bool,
    },
    /// What do you have of the role?
    Probe {
        holder: Holder,
        role: Text,
    },
    Probed {
        holder: Holder,
        role: Text,
        facts: Option<Facts>,
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
        result: Result<Vec<u8>, (u16, String)>,
    },
    /// What a pool's players are rated now.
    Ratings(SharedRatings),
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
}

/// Claims that are made together.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    owner: Owner,
    keys: Vec<Key>,
    /// What those granted have brought, in the order of `keys`. The next one is asked for.
    known: Vec<Known>,
    /// What another shard did for it.
    result: Option<Result<Vec<u8>, (u16, String)>>,
    until: u64,
}

/// A key that is claimed, at its home.
#[derive(Debug, Serialize, Deserialize)]
struct Lock {
    holder: Holder,
    /// Shards that were asked and have not answered, a bit for each.
    probes: u16,
    facts: Facts,
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
    pub(crate) fn take_result(&mut self) -> Option<Result<Vec<u8>, (u16, String)>> {
        self.jobs.get_mut(&self.current?)?.result.take()
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
            Letter::Settled { job, key, server, drops } => {
                self.settled((from, job), &key, server, drops, notices);
            }
            Letter::Probe { holder, role } => {
                let facts = self.facts_of(&role);
                self.send(from, Letter::Probed { holder, role, facts });
            }
            Letter::Probed { holder, role, facts } => self.probed(from, holder, role, facts),
            Letter::Gone { role } => self.gone(from, &role),
            Letter::Moved { role, server } => self.moved(&role, &server),
            Letter::Drop { role } => self.matched_elsewhere(&role, notices),
            Letter::Rate { job, asked } => {
                let result = self.rate_for_another(&asked);
                self.send(from, Letter::Rated { job, result });
            }
            Letter::Rated { job, result } => self.rated_elsewhere(job, result, notices),
            Letter::Ratings(ratings) => self.take_ratings(ratings),
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

/// What a request claims before it is executed, in order. Nothing for a body that will be refused.
fn touched(method: u16, body: &[u8]) -> Vec<Key> {
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
        _ => Ok(Vec::new()),
    };
    let mut keys = parts.unwrap_or_default();
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
