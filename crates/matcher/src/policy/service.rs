//! Questions to policies, and what their verdicts change.

use throng_wire::matcher::{Status, write_bool, write_bytes, write_nested, write_u64};

use super::{
    Answered, Handled, Hooks, Kept, Pending, PendingRequest, PolicyRequest, Said, Stop, Verdict, WAITING_MAX,
    Waiter, overloaded, room_named,
};
use crate::config::{Caller, HookPoint};
use crate::id::Id;
use crate::info::DataMap;
use crate::key::{PlayerKey, RoomKey};
use crate::matcher::Matcher;
use crate::notices::Notices;
use crate::problem::{Outcome, Problem};
use crate::queue::Assign;
use crate::room::{CreateInfo, Newcomer};
use crate::timers::Timer;
use crate::turn::Turn;
use crate::wall::WallMs;

/// Questions that wait for a verdict; beyond, requests fail at once.
const PENDING_MAX: usize = 1_000;

impl Matcher {
    /// The next question to a policy. Drain after every input. What [`PolicyRequest::waits`] and
    /// has no verdict within [`Config::policy_timeout_ms`](crate::Config) fails by itself.
    pub fn poll_question(&mut self) -> Option<PolicyRequest> {
        self.hooks.questions.pop_front()
    }

    /// The next answer to a request that had to wait. Drain after every input.
    pub fn poll_answered(&mut self) -> Option<Answered> {
        self.hooks.answered.pop_front()
    }

    /// A policy has answered question `id`, or cannot (`None`). One that nobody waits for any more
    /// is ignored.
    pub fn handle_verdict(
        &mut self,
        WallMs(now): WallMs,
        id: u64,
        verdict: Option<&Verdict>,
        notices: &mut Notices,
    ) {
        let told = notices.bytes().len();
        let mut no_answer = Vec::new();
        let turn = &mut Turn::of_matcher(now, &mut no_answer, notices);
        self.advance(turn, now);
        let why = "the mode's policy failed, or its answer is no verdict; the matcher's log has the cause";
        self.settle_question(turn, id, verdict.cloned(), why);
        self.note_notices(notices, told);
    }

    /// Questions that wait for their verdict.
    #[must_use]
    pub fn open_questions(&self) -> usize {
        self.hooks.pending.len()
    }

    /// Why the request that was just dispatched cannot go on, if it cannot: it is kept then.
    pub(crate) fn keep_stopped(
        &mut self,
        caller: Caller<'_>,
        asked: &mut PendingRequest<'_>,
        answer: &mut Vec<u8>,
        start: usize,
    ) -> Option<Handled> {
        let stop = self.hooks.stop.take()?;
        answer.truncate(start);
        Some(self.keep(stop, caller, asked, answer))
    }

    /// Number of a retry of a request that waits, or its refusal; `None` if none with its key does.
    pub(crate) fn join_waiting(
        &mut self,
        caller: Caller<'_>,
        key: u128,
        asked: &PendingRequest<'_>,
    ) -> Option<Outcome<u64>> {
        if asked.number.is_some() || self.hooks.keyed.is_empty() {
            return None;
        }
        let joined = self.hooks.join((caller.srv.to_owned(), key), asked.identity())?;
        self.stats.replayed_answers += u64::from(joined.is_ok());
        Some(joined)
    }

    /// Keeps a request whose room has a question out.
    pub(crate) fn keep_behind(
        &mut self,
        caller: Caller<'_>,
        asked: &mut PendingRequest<'_>,
        answer: &mut Vec<u8>,
    ) -> Option<Handled> {
        if self.hooks.held.is_empty() || !asked.method.mutates {
            return None;
        }
        let room = room_named(asked.method, asked.body).and_then(Id::parse);
        let room = room.filter(|room| self.hooks.held.contains_key(room))?;
        Some(self.keep(Stop::Behind(room), caller, asked, answer))
    }

    fn keep(
        &mut self,
        stop: Stop,
        caller: Caller<'_>,
        asked: &mut PendingRequest<'_>,
        answer: &mut Vec<u8>,
    ) -> Handled {
        if matches!(stop, Stop::Behind(_)) && self.hooks.waiting >= WAITING_MAX {
            let problem = overloaded();
            problem.write(answer);
            return Handled::Done(problem.status);
        }
        let is_new = asked.number.is_none();
        let kept = self.keep_request(caller, asked);
        let number = kept.number;
        if is_new {
            self.hooks.note_key(&kept, asked.method, Vec::new());
        }
        match stop {
            Stop::Ask { room, point, mode, body } => {
                self.ask(point, mode, body, room, Waiter::Request(kept));
            }
            Stop::Behind(room) => {
                self.hooks.held.entry(room).or_default().push_back(kept);
                self.hooks.waiting += 1;
            }
        }
        Handled::Waits(number)
    }

    /// A request in a form that can wait.
    fn keep_request(&mut self, caller: Caller<'_>, asked: &mut PendingRequest<'_>) -> Kept {
        Kept {
            number: asked.number.unwrap_or_else(|| self.hooks.number()),
            until: asked.until,
            srv: caller.srv.to_owned(),
            scope: caller.scope,
            method: asked.method.number,
            body: asked.body.to_vec(),
            verdicts: std::mem::take(&mut asked.verdicts),
        }
    }

    fn ask(&mut self, point: HookPoint, mode: u16, body: Vec<u8>, room: Option<Id>, waiter: Waiter) {
        let id = self.hooks.number();
        if let Some(room) = room {
            self.hooks.held.entry(room).or_default();
        }
        self.hooks.pending.insert(id, Pending { point, room, waiter });
        self.timers.set(self.now + self.config.policy_timeout_ms, Timer::Policy(id));
        self.send_question(id, point, mode, body, true);
    }

    fn send_question(&mut self, id: u64, point: HookPoint, mode: u16, body: Vec<u8>, waits: bool) {
        let policy = self.rooms.mode(mode).rules().policy.clone();
        self.stats.policy_questions += 1;
        self.hooks.questions.push_back(PolicyRequest { id, policy, point, body, waits });
    }

    /// A question is over: what waited for it goes on, then what waited for its room. `why` says
    /// why there is no verdict, if there is none.
    pub(crate) fn settle_question(
        &mut self,
        turn: &mut Turn<'_>,
        id: u64,
        verdict: Option<Verdict>,
        why: &'static str,
    ) {
        let Some(Pending { point, room, waiter }) = self.hooks.pending.remove(&id) else { return };
        let behind = room.and_then(|room| self.hooks.held.remove(&room)).unwrap_or_default();
        self.hooks.waiting -= behind.len();
        self.stats.policy_failures += u64::from(verdict.is_none());
        match (waiter, verdict) {
            (Waiter::Match(found), verdict) => self.policy_gave_server(turn, found, verdict),
            (Waiter::Request(mut kept), Some(verdict)) => {
                kept.verdicts.push(Said { point, room, verdict });
                self.resume(turn, kept);
            }
            (Waiter::Request(kept), None) => self.give_up(&kept, Status::PolicyUnavailable, why),
        }
        let mut behind = behind.into_iter();
        while let Some(next) = behind.next() {
            if let Some(queue) = room.and_then(|room| self.hooks.held.get_mut(&room)) {
                // A further question about the room.
                let before = queue.len();
                queue.push_back(next);
                queue.extend(behind);
                self.hooks.waiting += queue.len() - before;
                return;
            }
            self.resume(turn, next);
        }
    }

    pub(crate) fn resume(&mut self, turn: &mut Turn<'_>, kept: Kept) {
        let in_time = self.now <= kept.until;
        let method = throng_wire::matcher::method(kept.method).filter(|_| in_time);
        let Some(method) = method else {
            return self.give_up(&kept, Status::Timeout, "the deadline passed; nothing was done");
        };
        let caller = kept.caller();
        let asked = PendingRequest {
            method,
            body: &kept.body,
            number: Some(kept.number),
            until: kept.until,
            verdicts: kept.verdicts.clone(),
        };
        let mut body = Vec::new();
        let turn = &mut Turn { now: asked.came(), caller, answer: &mut body, notices: turn.notices };
        if let Handled::Done(status) = self.execute(turn, asked) {
            self.answer_late(&kept, status, &body);
        }
    }

    /// Answers a request that has waited, and its retries.
    fn answer_late(&mut self, kept: &Kept, status: Status, body: &[u8]) {
        let retries = self.hooks.forget_key(kept);
        for request in std::iter::once(kept.number).chain(retries) {
            self.note_output(body);
            self.hooks.answered.push_back(Answered { request, status, body: body.to_vec() });
        }
    }

    pub(crate) fn give_up(&mut self, kept: &Kept, status: Status, why: &'static str) {
        let mut body = Vec::new();
        Problem::new(status, why).write(&mut body);
        self.answer_late(kept, status, &body);
    }

    /// After a restart nobody waits for an answer any more, and matches are made anew.
    pub(crate) fn forget_questions(&mut self) {
        self.hooks = Hooks { last: self.hooks.last, ..Hooks::default() };
    }

    /// Verdict of the mode's policy at a point; everything is allowed where it is not asked. `Err`
    /// also when it is to be asked: the request is kept then.
    fn ask_policy(
        &mut self,
        point: HookPoint,
        mode: u16,
        room: Option<Id>,
        write: impl FnOnce(&Matcher, &mut Vec<u8>),
    ) -> Outcome<Verdict> {
        if !self.rooms.mode(mode).rules().asks(point) {
            return Ok(Verdict::default());
        }
        if let Some(verdict) = self.hooks.said(point, room) {
            if verdict.refuse && matches!(point, HookPoint::OnCreate | HookPoint::OnAddingRoles) {
                let why = if verdict.reason.is_empty() { "the policy refuses" } else { &verdict.reason };
                return Err(Problem::new(Status::Refused, why.to_owned()));
            }
            return Ok(verdict.clone().without(&self.rooms.mode(mode).rules().count_key));
        }
        if self.hooks.pending.len() >= PENDING_MAX {
            return Err(Problem::new(Status::PolicyUnavailable, "too many questions to policies are open"));
        }
        let body = self.question(point, mode, write);
        self.hooks.stop = Some(Stop::Ask { room, point, mode, body });
        Err(Problem::new(Status::PolicyUnavailable, "the policy is asked"))
    }

    fn question(&self, point: HookPoint, mode: u16, write: impl FnOnce(&Matcher, &mut Vec<u8>)) -> Vec<u8> {
        let mut body = Vec::new();
        write_bytes(&mut body, 1, point.name().as_bytes());
        write_bytes(&mut body, 2, self.rooms.mode(mode).name().as_bytes());
        write(self, &mut body);
        body
    }

    /// The first candidate that admits the newcomers. `Err` when the policy is to be asked about
    /// one, or when only rooms are left that wait for their policy.
    pub(crate) fn pick_by_policy(
        &mut self,
        found: &[RoomKey],
        newcomers: &[Newcomer],
    ) -> Outcome<Option<RoomKey>> {
        let mut waits = None;
        // One that the policy has admitted them to comes first: it was picked in an earlier pass.
        let admitted = |room: &&RoomKey| {
            let id = Some(self.rooms[**room].id());
            self.hooks.said(HookPoint::OnAddingRoles, id).is_some_and(|verdict| !verdict.refuse)
        };
        let first = found.iter().find(admitted).copied();
        let others = found.iter().copied().filter(|room| Some(*room) != first);
        for room in first.into_iter().chain(others) {
            let id = self.rooms[room].id();
            let vetoed = self.hooks.said(HookPoint::OnAddingRoles, Some(id)).is_some_and(|said| said.refuse);
            if vetoed || self.check_fits(room, newcomers).is_err() {
                continue;
            }
            if self.hooks.held.contains_key(&id) {
                waits = waits.or(Some(id));
                continue;
            }
            return Ok(Some(room));
        }
        match waits {
            Some(room) => {
                self.hooks.stop = Some(Stop::Behind(room));
                Err(Problem::new(Status::PolicyUnavailable, "the room waits for its policy"))
            }
            None => Ok(None),
        }
    }

    /// Asks about newcomers of a room that is there: a veto, then the changes that come with them.
    pub(crate) fn ask_to_admit(&mut self, room: RoomKey, newcomers: &[Newcomer]) -> Outcome<Verdict> {
        let (mode, id) = (self.rooms[room].mode(), self.rooms[room].id());
        if self.rooms.mode(mode).rules().policy.is_empty() {
            return Ok(Verdict::default());
        }
        self.ask_policy(HookPoint::OnAddingRoles, mode, Some(id), |matcher, out| {
            write_nested(out, 3, |out| matcher.write_room(room, None, out));
            write_roles(newcomers, out);
        })?;
        let changes = self.ask_policy(HookPoint::OnAddedRoles, mode, Some(id), |matcher, out| {
            write_nested(out, 3, |out| matcher.write_room_with(room, None, newcomers, out));
            write_roles(newcomers, out);
        })?;
        changes.set_data(&mut self.rooms[room].data().clone())?;
        Ok(changes)
    }

    /// Initial values of a new room, as its maker and the policy say.
    pub(crate) fn ask_to_create(&mut self, mode: u16, create: &CreateInfo<'_>) -> Outcome<(bool, DataMap)> {
        let mut data = create.data(self.rooms.mode(mode).rules())?;
        let mut hidden = create.hidden.unwrap_or(self.rooms.mode(mode).rules().hidden);
        let verdict = self.ask_policy(HookPoint::OnCreate, mode, None, |matcher, out| {
            write_nested(out, 3, |out| matcher.write_new_room(mode, hidden, &data, &[], out));
        })?;
        verdict.set_data(&mut data)?;
        hidden = verdict.hidden.unwrap_or(hidden);
        Ok((hidden, data))
    }

    /// The same as [`ask_to_admit`](Matcher::ask_to_admit) for the first members of a room that is
    /// to be made.
    pub(crate) fn ask_to_begin(
        &mut self,
        mode: u16,
        hidden: bool,
        data: &DataMap,
        newcomers: &[Newcomer],
    ) -> Outcome<Verdict> {
        if self.rooms.mode(mode).rules().policy.is_empty() {
            return Ok(Verdict::default());
        }
        self.ask_policy(HookPoint::OnAddingRoles, mode, None, |matcher, out| {
            write_nested(out, 3, |out| matcher.write_new_room(mode, hidden, data, &[], out));
            write_roles(newcomers, out);
        })?;
        let changes = self.ask_policy(HookPoint::OnAddedRoles, mode, None, |matcher, out| {
            write_nested(out, 3, |out| matcher.write_new_room(mode, hidden, data, newcomers, out));
            write_roles(newcomers, out);
        })?;
        changes.set_data(&mut data.clone())?;
        Ok(changes)
    }

    /// Asks before a member is taken out by a request.
    pub(crate) fn ask_to_remove(&mut self, room: RoomKey, player: PlayerKey) -> Outcome<Verdict> {
        let (mode, id) = (self.rooms[room].mode(), self.rooms[room].id());
        let changes = self.ask_policy(HookPoint::OnDeletingRole, mode, Some(id), |matcher, out| {
            matcher.write_leaving(room, player, out);
        })?;
        changes.set_data(&mut self.rooms[room].data().clone())?;
        Ok(changes)
    }

    /// Tells the policy of what no request asked for and nothing can hold up: a lost member, the
    /// end of a room.
    pub(crate) fn tell_policy(&mut self, point: HookPoint, room: RoomKey, player: Option<PlayerKey>) {
        let mode = self.rooms[room].mode();
        if !self.rooms.mode(mode).rules().asks(point) {
            return;
        }
        let body = self.question(point, mode, |matcher, out| match player {
            Some(player) => matcher.write_leaving(room, player, out),
            None => {
                write_nested(out, 3, |out| matcher.write_room(room, None, out));
            }
        });
        let id = self.hooks.number();
        self.send_question(id, point, mode, body, false);
    }

    fn write_leaving(&self, room: RoomKey, player: PlayerKey, out: &mut Vec<u8>) {
        write_nested(out, 3, |out| self.write_room(room, None, out));
        if let Some(member) = self.rooms[room].members().iter().find(|member| member.player == player) {
            write_bytes(out, 4, member.info.bytes());
        }
    }

    fn write_new_room(
        &self,
        mode: u16,
        hidden: bool,
        data: &DataMap,
        newcomers: &[Newcomer],
        out: &mut Vec<u8>,
    ) {
        write_bytes(out, 3, self.rooms.mode(mode).name().as_bytes());
        for newcomer in newcomers {
            write_bytes(out, 4, newcomer.info.bytes());
        }
        write_bool(out, 5, hidden);
        write_bool(out, 6, newcomers.len() as u32 >= self.rooms.mode(mode).rules().capacity);
        out.extend_from_slice(data.bytes());
        write_u64(out, 12, newcomers.len() as u64);
    }

    /// Nobody gave a match its server in time.
    pub(crate) fn end_without_server(&mut self, turn: &mut Turn<'_>, found: Id) {
        if let Some(room) = self.rooms.find(found).filter(|room| self.wants_world(*room)) {
            return self.end_without_world(turn, room);
        }
        let asks = self.match_of(found).is_some_and(|index| {
            self.queues[self.matches[index].queue()].rules().set.assign == Assign::Policy
        });
        let reason = if asks { "policy_unavailable" } else { "no_server" };
        self.end_unassigned(turn, found, reason);
    }

    /// Asks for the server of a match whose room is there.
    pub(crate) fn ask_for_server(&mut self, found: Id, room: RoomKey) {
        if self.hooks.pending.len() >= PENDING_MAX {
            // The match ends as if the policy had not answered in time. Not at once: its tickets
            // would be matched again in the same tick, again and again for as long as the other
            // questions are open.
            self.timers.set(self.now + self.config.policy_timeout_ms, Timer::Assign(found));
            return;
        }
        let (mode, id) = (self.rooms[room].mode(), self.rooms[room].id());
        let body = self.question(HookPoint::OnCreate, mode, |matcher, out| {
            write_nested(out, 3, |out| matcher.write_room(room, None, out));
            for seat in matcher.rooms[room].seats() {
                write_bytes(out, 4, matcher.info_of_seat(seat).bytes());
            }
        });
        self.ask(HookPoint::OnCreate, mode, body, Some(id), Waiter::Match(found));
    }

    fn policy_gave_server(&mut self, turn: &mut Turn<'_>, found: Id, verdict: Option<Verdict>) {
        let Some(room) = self.room_that_waits(found) else { return };
        let mut data = self.rooms[room].data().clone();
        match verdict.map(|verdict| verdict.without(&self.rooms.rules_of(room).count_key)) {
            Some(verdict) if !verdict.refuse && verdict.set_data(&mut data).is_ok() => {
                self.give_server(turn, found, room, data);
            }
            Some(_) => self.end_unassigned(turn, found, "refused"),
            None => self.end_unassigned(turn, found, "policy_unavailable"),
        }
    }
}

fn write_roles(newcomers: &[Newcomer], out: &mut Vec<u8>) {
    for newcomer in newcomers {
        write_bytes(out, 4, newcomer.info.bytes());
    }
}
