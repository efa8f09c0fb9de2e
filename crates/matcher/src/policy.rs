//! Room policies: outgoing requests and incoming verdicts.
//!
//! A request that comes to a point where its mode's policy has a say stops before it has changed
//! anything. Its question goes out, the request is kept, and when the verdict is there it is
//! executed anew from its beginning, with the verdicts that it has so far. So nothing ever has to
//! be undone: a verdict that does not come in time leaves no trace.
//!
//! While a question about a room is out, requests that would change that room wait behind it, in
//! order. All other rooms go on. A retry of a request that waits is not executed: it gets the
//! answer of that one.

mod service;
pub(crate) mod verdict;

use std::collections::{BTreeMap, VecDeque};

use throng_wire::fields;
use throng_wire::matcher::{Method, Status, Type};

use crate::canonical::{digest, request_key};
use crate::config::{Caller, HookPoint, Scope};
use crate::id::Id;
use crate::info::{bytes, text};
use crate::problem::{Outcome, Problem, invalid};
use crate::schema::v1;

pub use verdict::Verdict;

/// A request that waited longer is not executed any more.
const WAIT_MS: u64 = 3_000;
/// Requests that wait behind questions about their rooms or for the answer of the same request;
/// beyond, they are refused as `OVERLOADED`.
const WAITING_MAX: usize = 10_000;

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// It was executed, or refused.
    Done(Status),
    /// It waits for a policy; [`Matcher::poll_answered`](crate::Matcher::poll_answered) gives its
    /// answer under this number.
    Waits(u64),
}

impl Handled {
    /// Its status, unless it waits.
    #[must_use]
    pub fn status(self) -> Option<Status> {
        match self {
            Handled::Done(status) => Some(status),
            Handled::Waits(_) => None,
        }
    }
}

/// A question to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRequest {
    /// Names it in [`Matcher::handle_verdict`](crate::Matcher::handle_verdict).
    pub id: u64,
    /// Policy of the mode.
    pub policy: String,
    /// Place where in a room's life.
    pub point: HookPoint,
    /// The question as a `PolicyQuestion` of the catalogue.
    pub body: Vec<u8>,
    /// True if anything waits for the verdict; otherwise the policy is only told.
    pub waits: bool,
}

/// The answer of a request that had waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its number; see [`Handled::Waits`].
    pub request: u64,
    /// Its status.
    pub status: Status,
    /// Body of the answer.
    pub body: Vec<u8>,
}

/// A request as it goes through the matcher.
pub(crate) struct PendingRequest<'a> {
    pub(crate) method: &'static Method,
    pub(crate) body: &'a [u8],
    /// Its number, if it has waited before.
    pub(crate) number: Option<u64>,
    /// Time when it is too late.
    until: u64,
    pub(crate) verdicts: Vec<Said>,
}

impl PendingRequest<'_> {
    /// Time when it came.
    pub(crate) fn came(&self) -> u64 {
        self.until.saturating_sub(WAIT_MS)
    }

    /// Its method and body, which distinguish it from other requests with its key.
    pub(crate) fn identity(&self) -> (u16, [u8; 16]) {
        (self.method.number, digest(self.method.request, self.body))
    }
}

/// A verdict at a point; rooms that are yet to be made have no id.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    point: HookPoint,
    room: Option<Id>,
    verdict: Verdict,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) number: u64,
    pub(crate) until: u64,
    srv: String,
    scope: Scope,
    pub(crate) method: u16,
    pub(crate) body: Vec<u8>,
    verdicts: Vec<Said>,
}

impl Kept {
    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { srv: &self.srv, scope: self.scope }
    }
}

/// A request with a key that waits.
#[derive(Debug)]
struct Keyed {
    /// Its method and body.
    request: (u16, [u8; 16]),
    /// Numbers of its retries, which get its answer.
    retries: Vec<u64>,
}

#[derive(Debug)]
enum Waiter {
    Request(Kept),
    /// A match, for its server.
    Match(Id),
}

/// A question that is out.
#[derive(Debug)]
struct Pending {
    point: HookPoint,
    room: Option<Id>,
    waiter: Waiter,
}

/// Why the request under way cannot go on.
#[derive(Debug)]
enum Stop {
    /// The policy of a mode is to be asked, about a room that is there or yet to be made.
    Ask { room: Option<Id>, point: HookPoint, mode: u16, body: Vec<u8> },
    /// It waits for the end of another question about the room.
    Behind(Id),
}

/// Everything that waits for policies.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    /// The last number of a question or a kept request.
    last: u64,
    pending: BTreeMap<u64, Pending>,
    /// Rooms about which a question is out, and the requests behind it.
    held: BTreeMap<Id, VecDeque<Kept>>,
    /// Requests that wait and have a key, by server and key.
    keyed: BTreeMap<(String, u128), Keyed>,
    /// Requests in `held`, and retries.
    waiting: usize,
    questions: VecDeque<PolicyRequest>,
    answered: VecDeque<Answered>,
    /// Of the request under way.
    pub(crate) verdicts: Vec<Said>,
    stop: Option<Stop>,
}

impl Said {
    fn save(&self) -> v1::Verdict {
        v1::Verdict {
            point: number_of(self.point),
            room: self.room.map(Id::into),
            body: self.verdict.to_bytes(),
        }
    }

    fn load(saved: &v1::Verdict) -> Option<Said> {
        let (point, room) = (point_of(saved.point)?, saved.room.map(Id::from));
        Some(Said { point, room, verdict: Verdict::parse(&saved.body)? })
    }
}

/// In the order of their numbers in snapshots.
const SCOPES: [Scope; 3] = [Scope::Server, Scope::Trusted, Scope::Admin];

fn number_of(point: HookPoint) -> u8 {
    HookPoint::ALL.iter().position(|own| *own == point).unwrap_or_default() as u8
}

fn point_of(number: u8) -> Option<HookPoint> {
    HookPoint::ALL.get(usize::from(number)).copied()
}

impl Kept {
    /// Server and key, if it has one.
    fn key(&self) -> Option<(String, u128)> {
        Some((self.srv.clone(), request_key(&self.body).ok()??))
    }

    fn save(&self, retries: &[u64]) -> v1::Kept<'_> {
        v1::Kept {
            number: self.number,
            until: self.until,
            server: &self.srv,
            scope: self.scope as u8,
            method: self.method,
            body: &self.body,
            verdicts: self.verdicts.iter().map(Said::save).collect(),
            retries: retries.to_vec(),
        }
    }

    fn load(saved: &v1::Kept<'_>) -> Option<Kept> {
        Some(Kept {
            number: saved.number,
            until: saved.until,
            srv: saved.server.to_owned(),
            scope: *SCOPES.get(usize::from(saved.scope))?,
            method: saved.method,
            body: saved.body.to_vec(),
            verdicts: saved.verdicts.iter().map(Said::load).collect::<Option<_>>()?,
        })
    }
}

impl Hooks {
    pub(crate) fn save(&self) -> v1::Policies<'_> {
        let question = |(number, pending): (&u64, &'_ Pending)| {
            (*number, number_of(pending.point), pending.room.map(Id::into))
        };
        let questions = self.pending.iter().map(|(number, pending)| {
            let (number, point, room) = question((number, pending));
            let waiter = match &pending.waiter {
                Waiter::Request(kept) => v1::Waiter::Request(self.save_kept(kept)),
                Waiter::Match(id) => v1::Waiter::Match((*id).into()),
            };
            v1::PendingRequest { number, point, room, waiter }
        });
        let held = self
            .held
            .iter()
            .map(|(room, all)| ((*room).into(), all.iter().map(|kept| self.save_kept(kept)).collect()));
        v1::Policies { last: self.last, questions: questions.collect(), held: held.collect() }
    }

    pub(crate) fn load(saved: &v1::Policies<'_>) -> Result<Hooks, &'static str> {
        let mut hooks = Hooks { last: saved.last, ..Hooks::default() };
        for saved in &saved.questions {
            let pending = hooks.load_question(saved).ok_or("a question to a policy is not in order")?;
            hooks.pending.insert(saved.number, pending);
        }
        for (room, all) in &saved.held {
            let all: Option<VecDeque<Kept>> = all.iter().map(|kept| hooks.load_kept(kept)).collect();
            let all = all.ok_or("a request that waits is not in order")?;
            hooks.waiting += all.len();
            hooks.held.insert((*room).into(), all);
        }
        Ok(hooks)
    }

    fn save_kept<'a>(&self, kept: &'a Kept) -> v1::Kept<'a> {
        let keyed = kept.key().and_then(|key| self.keyed.get(&key));
        kept.save(keyed.map_or(&[][..], |keyed| &keyed.retries[..]))
    }

    fn load_question(&mut self, saved: &v1::PendingRequest<'_>) -> Option<Pending> {
        let waiter = match &saved.waiter {
            v1::Waiter::Request(kept) => Waiter::Request(self.load_kept(kept)?),
            v1::Waiter::Match(id) => Waiter::Match((*id).into()),
        };
        Some(Pending { point: point_of(saved.point)?, room: saved.room.map(Id::from), waiter })
    }

    fn load_kept(&mut self, saved: &v1::Kept<'_>) -> Option<Kept> {
        let kept = Kept::load(saved)?;
        let method = throng_wire::matcher::method(kept.method)?;
        self.note_key(&kept, method, saved.retries.clone());
        Some(kept)
    }

    /// Notes a request that waits, if it has a key.
    fn note_key(&mut self, kept: &Kept, method: &Method, retries: Vec<u64>) {
        let Some(key) = kept.key() else { return };
        self.waiting += retries.len();
        let request = (kept.method, digest(method.request, &kept.body));
        self.keyed.insert(key, Keyed { request, retries });
    }

    /// Forgets the key of a request that has its answer. Returns its retries.
    fn forget_key(&mut self, kept: &Kept) -> Vec<u64> {
        let keyed = kept.key().and_then(|key| self.keyed.remove(&key));
        let retries = keyed.map_or_else(Vec::new, |keyed| keyed.retries);
        self.waiting -= retries.len();
        retries
    }

    /// Number of a retry of the request that waits with a key; `None` if none does.
    fn join(&mut self, key: (String, u128), request: (u16, [u8; 16])) -> Option<Outcome<u64>> {
        let known = self.keyed.get_mut(&key)?;
        if known.request != request {
            return Some(Err(key_is_taken()));
        }
        if self.waiting >= WAITING_MAX {
            return Some(Err(overloaded()));
        }
        self.waiting += 1;
        self.last += 1;
        known.retries.push(self.last);
        Some(Ok(self.last))
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Requests that wait for a verdict about a room, or behind one.
    pub(crate) fn waiting_about(&self, room: Id) -> impl Iterator<Item = &Kept> {
        let behind = self.held.get(&room);
        let asked =
            self.pending.values().filter(move |pending| behind.is_some() && pending.room == Some(room));
        let asked = asked.filter_map(|pending| match &pending.waiter {
            Waiter::Request(kept) => Some(kept),
            Waiter::Match(_) => None,
        });
        asked.chain(behind.into_iter().flatten())
    }

    fn said(&self, point: HookPoint, room: Option<Id>) -> Option<&Verdict> {
        let said = self.verdicts.iter().find(|said| said.point == point && said.room == room);
        said.map(|said| &said.verdict)
    }
}

impl<'a> PendingRequest<'a> {
    pub(crate) fn new(method: &'static Method, body: &'a [u8], now: u64) -> PendingRequest<'a> {
        PendingRequest { method, body, number: None, until: now + WAIT_MS, verdicts: Vec::new() }
    }
}

/// Refusal of another request with a key that is in use.
pub(crate) fn key_is_taken() -> Problem {
    invalid("the idempotency key was used for another request; use a new key for each request")
}

fn overloaded() -> Problem {
    Problem::new(Status::Overloaded, "too many requests wait for policies; try again")
}

/// The room that a request names, as the catalogue says where.
fn room_named<'a>(method: &Method, body: &'a [u8]) -> Option<&'a [u8]> {
    let part = |number: u32, body: &'a [u8]| {
        fields(body).map_while(Result::ok).filter(|field| field.number == number).last()
    };
    if let Some(field) = method.request.named("RoomID") {
        return text(&part(field.number, body)?).ok();
    }
    let update = method.request.named("Update")?;
    let Type::Msg(message) = update.ty else { return None };
    let within = bytes(&part(update.number, body)?).ok()?;
    text(&part(message.named("RoomID")?.number, within)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_wire::matcher::{METHODS, Writer, method_named};

    #[test]
    fn the_room_of_a_request_is_found_by_the_catalogue() {
        for (method, body) in [
            ("RoleJoinRoom", Writer::new().nested(1, Writer::new().str(1, "a")).str(2, "room")),
            ("SetRoomData", Writer::new().str(1, "room").str(2, "key")),
            ("UpdateRoomRoleData", Writer::new().nested(1, Writer::new().str(1, "room").str(2, "a"))),
        ] {
            let found = room_named(method_named(method).unwrap(), &body.into_bytes()).map(<[u8]>::to_vec);
            assert_eq!(found.as_deref(), Some(&b"room"[..]), "{method}");
        }
        assert!(METHODS.iter().all(|method| room_named(method, b"\xFF").is_none()));
    }
}
