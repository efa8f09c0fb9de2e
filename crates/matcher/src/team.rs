//! The team service.

mod service;

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::Status;

use crate::id::Id;
use crate::info::{DataMap, ID_BYTES_MAX, Info, MESSAGE_BYTES_MAX, Text, bytes, check_json, check_len, text};
use crate::people::Numbers;
use crate::problem::{Outcome, Problem, forbidden};
use crate::schema::v1;
use crate::slab::NONE;

/// Wrong passwords of one server for one team before it has to wait.
const WRONG_TRIES_MAX: u32 = 10;
const WRONG_TRIES_MS: u64 = 60_000;
/// Servers whose wrong passwords are counted for one team; the one that was counted from first is
/// forgotten for a further one. Who may speak for any number of servers is held up by tokens, not
/// by this: it bounds memory and the time of a try.
const WRONG_SERVERS_MAX: usize = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct Team {
    pub(crate) id: Id,
    password: Text,
    max_role: u64,
    data: DataMap,
    /// Longest-standing first.
    pub(crate) members: SmallVec<[TeamMember; 2]>,
    pub(crate) leader: u32,
    rev: u64,
    wrong: Vec<WrongTries>,
}

#[derive(Clone, Debug)]
pub(crate) struct TeamMember {
    pub(crate) player: u32,
    pub(crate) info: Info,
}

#[derive(Clone, Debug)]
struct WrongTries {
    server: Text,
    count: u32,
    until: u64,
}

impl Team {
    pub(crate) fn save(&self, numbers: &Numbers) -> v1::Team<'_> {
        let member = |member: &'_ TeamMember| numbers.player(member.player).unwrap_or(NONE);
        v1::Team {
            id: self.id.into(),
            password: &self.password,
            max_role: self.max_role,
            data: self.data.bytes(),
            members: self
                .members
                .iter()
                .map(|own| v1::Member { player: member(own), info: own.info.bytes() })
                .collect(),
            leader: numbers.player(self.leader).unwrap_or(NONE),
            rev: self.rev,
            wrong_tries: self.wrong.iter().map(WrongTries::save).collect(),
        }
    }

    pub(crate) fn load(saved: &v1::Team<'_>) -> Team {
        let member =
            |member: &v1::Member<'_>| TeamMember { player: member.player, info: Info::load(member.info) };
        let tries = |tries: &v1::WrongTries<'_>| WrongTries {
            server: Text::from_slice(tries.server),
            count: tries.count,
            until: tries.until,
        };
        Team {
            id: saved.id.into(),
            password: Text::from_slice(saved.password),
            max_role: saved.max_role,
            data: DataMap::load(saved.data),
            members: saved.members.iter().map(member).collect(),
            leader: saved.leader,
            rev: saved.rev,
            wrong: saved.wrong_tries.iter().map(tries).collect(),
        }
    }
}

impl WrongTries {
    fn save(&self) -> v1::WrongTries<'_> {
        v1::WrongTries { server: &self.server, count: self.count, until: self.until }
    }
}

pub(crate) fn strange_to_team() -> Problem {
    forbidden("no member of the team lives on this server")
}

impl Team {
    /// Bytes of data and members, which are nearly all of its info. Cost: O(members).
    fn size(&self) -> usize {
        let members: usize = self.members.iter().map(|member| member.info.bytes().len()).sum();
        self.data.bytes().len() + members
    }

    fn check_password(&mut self, password: &[u8], server: &[u8], now: u64) -> Outcome {
        if self.password.is_empty() {
            return Ok(());
        }
        self.wrong.retain(|tries| tries.until > now);
        let tries = self.wrong.iter_mut().find(|tries| tries.server.as_slice() == server);
        if tries.as_ref().is_some_and(|tries| tries.count >= WRONG_TRIES_MAX) {
            return Err(Problem::new(Status::RateLimited, "too many wrong passwords; wait a minute"));
        }
        if same_in_constant_time(password, &self.password) {
            return Ok(());
        }
        match tries {
            Some(tries) => tries.count += 1,
            None => {
                if self.wrong.len() >= WRONG_SERVERS_MAX {
                    self.wrong.remove(0);
                }
                self.wrong.push(WrongTries {
                    server: Text::from_slice(server),
                    count: 1,
                    until: now + WRONG_TRIES_MS,
                });
            }
        }
        Err(Problem::new(Status::WrongPassword, "wrong password"))
    }
}

/// Takes as long whatever the first difference is; hides neither length.
fn same_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

/// Fields 1 and 2 of a body, as texts.
pub(crate) fn two_texts(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut first, mut second) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => first = text(&field)?,
            2 => second = text(&field)?,
            _ => {}
        }
    }
    check_len(first, ID_BYTES_MAX, "an id")?;
    Ok((first, second))
}

/// An id and the message of a broadcast.
pub(crate) fn text_and_message(body: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let (mut id, mut message) = (&[][..], &[][..]);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => id = text(&field)?,
            2 => message = bytes(&field)?,
            _ => {}
        }
    }
    check_len(message, MESSAGE_BYTES_MAX, "Msg")?;
    check_json(message)?;
    Ok((id, message))
}
