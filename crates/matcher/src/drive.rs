//! The inputs: one at a time, then its answer and notices.

use throng_wire::matcher::{Status, method};

use crate::canonical::request_key;
use crate::config::{Caller, HookPoint};
use crate::key::{PlayerKey, ServerKey};
use crate::keys::Answer;
use crate::matcher::{FORGOTTEN_PER_INPUT, Matcher};
use crate::notices::{Notices, ServerNumber};
use crate::policy::{Handled, PendingRequest, Verdict, key_is_taken};
use crate::problem::Problem;
use crate::record::Input;
use crate::timers::Timer;
use crate::turn::Turn;
use crate::wall::WallMs;

/// Timers that one input fires, however many are due. Ending a full room of four takes about 3 us,
/// so a request waits for 2 ms at most; 100,000 rooms that end together took 0.8 s when they all
/// went at once.
const TIMERS_PER_INPUT: usize = 512;
/// A timer that fires so much later than it was due was due while the matcher stood still.
const PAUSE_MS: u64 = 1_000;

impl Matcher {
    /// Executes a request and appends the body of its answer to `answer`, unless a policy is to be
    /// asked first. Before one that may change something, timers that are due fire, a bounded
    /// number of them.
    ///
    /// An earlier `now` than before counts as the latest one.
    pub fn handle(
        &mut self,
        WallMs(now): WallMs,
        caller: Caller<'_>,
        number: u16,
        body: &[u8],
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Handled {
        let Some(method) = method(number) else {
            Problem::new(Status::UnknownMethod, "no such method").write(answer);
            return Handled::Done(Status::UnknownMethod);
        };
        let (start, told) = (answer.len(), notices.bytes().len());
        let turn = &mut Turn { now: self.now.max(now), caller, answer, notices };
        if !method.mutates {
            // Reads are not in the log, so they must leave no trace: a timer that they fired would
            // fire elsewhere in a replay.
            self.clock = self.now.max(now);
            return self.execute(turn, PendingRequest::new(method, body, self.now));
        }
        self.advance(turn, now);
        let handled = self.execute(turn, PendingRequest::new(method, body, self.now));
        self.note_output(&answer[start..]);
        self.note_output(&notices.bytes()[told..]);
        handled
    }

    /// Hash of the answers and notices of all inputs since the last call; `None` if there were
    /// none. A replay of the same inputs gives the same hashes at the same places.
    pub fn take_outputs(&mut self) -> Option<u64> {
        self.outputs.as_mut()?.take()
    }

    /// Makes no hash of answers and notices from now on: a matcher without a log needs none.
    pub fn ignore_outputs(&mut self) {
        self.outputs = None;
    }

    /// Adds an answer or notices of an input to the hash.
    pub(crate) fn note_output(&mut self, bytes: &[u8]) {
        if let Some(outputs) = &mut self.outputs {
            outputs.add(bytes);
        }
    }

    /// Notes the notices of an input from a length on.
    pub(crate) fn note_notices(&mut self, notices: &Notices, told: usize) {
        let told = &notices.bytes()[told..];
        if !told.is_empty() {
            self.note_output(told);
        }
    }

    /// Gives the matcher an input of a log. The result of a request; `None` for others.
    pub fn apply(
        &mut self,
        now: WallMs,
        input: Input<'_>,
        answer: &mut Vec<u8>,
        notices: &mut Notices,
    ) -> Option<Handled> {
        match input {
            Input::Begin { .. }
            | Input::Rules { .. }
            | Input::Durable(_)
            | Input::Outputs(_)
            | Input::Configure(_) => {}
            Input::Request { srv, scope, method, body } => {
                return Some(self.handle(now, Caller { srv, scope }, method, body, answer, notices));
            }
            Input::Session { srv, up } => {
                self.handle_session(now, srv, up, notices);
            }
            Input::Timeout => self.handle_timeout(now, notices),
            Input::Recovered => self.handle_recovered(now, notices),
            Input::Verdict { id, verdict } => {
                self.handle_verdict(now, id, verdict.and_then(Verdict::parse).as_ref(), notices);
            }
        }
        None
    }

    /// Executes a request, for the first time or again after a policy's verdict.
    pub(crate) fn execute(&mut self, turn: &mut Turn<'_>, mut asked: PendingRequest<'_>) -> Handled {
        let (start, method, body) = (turn.answer.len(), asked.method, asked.body);
        let key = if method.mutates { request_key(body) } else { Ok(None) };
        let key = match key {
            Ok(key) => key,
            Err(problem) => return Handled::Done(refuse(&problem, turn.answer, start)),
        };
        let srv = turn.caller.srv.as_bytes();
        if let Some(key) = key
            && let Some(known) = self.people.server(srv).and_then(|server| self.keys.find(server, key))
        {
            if known.request != asked.identity() {
                return Handled::Done(refuse(&key_is_taken(), turn.answer, start));
            }
            turn.answer.extend_from_slice(&known.body);
            self.stats.replayed_answers += 1;
            return Handled::Done(Status::from_code(known.status).unwrap_or(Status::Internal));
        }
        if let Some(key) = key
            && let Some(joined) = self.join_waiting(turn.caller, key, &asked)
        {
            return match joined {
                Ok(number) => Handled::Waits(number),
                Err(problem) => Handled::Done(refuse(&problem, turn.answer, start)),
            };
        }
        let mut kept = self.keep_behind(turn.caller, &mut asked, turn.answer);
        let mut outcome = Ok(());
        if kept.is_none() {
            self.hooks.verdicts = std::mem::take(&mut asked.verdicts);
            outcome = self.dispatch(turn, method.number, body);
            self.propose_to_moved(turn);
            asked.verdicts = std::mem::take(&mut self.hooks.verdicts);
            kept = self.keep_stopped(turn.caller, &mut asked, turn.answer, start);
        }
        if let Some(kept) = kept {
            return kept;
        }
        let status = match outcome {
            Ok(()) => Status::Ok,
            Err(problem) => refuse(&problem, turn.answer, start),
        };
        // A transient refusal may go better next time, and one for lack of rights with others.
        let is_transient = matches!(
            status,
            Status::Overloaded
                | Status::Draining
                | Status::RateLimited
                | Status::PolicyUnavailable
                | Status::Forbidden
        );
        if let Some(key) = key.filter(|_| !is_transient) {
            let body = turn.answer[start..].to_vec();
            let kept = Answer { request: asked.identity(), status: status as u16, body };
            let (until, max) = (self.now + self.config.key_ttl_ms, self.config.keys_per_server);
            // The request itself may have made its server known, or forgotten.
            let server = self.people.server_entry(srv);
            if self.keys.keep(until, server, key, kept, max) {
                let is_there = self.people.hold_server(server, 1);
                debug_assert!(is_there, "its entry was made above");
            }
        }
        Handled::Done(status)
    }

    /// A server's session began (`up`) or was lost. Returns the server's number in [`Notices`],
    /// which stays until the server has no session and no roles; later it has another one.
    pub fn handle_session(
        &mut self,
        WallMs(now): WallMs,
        srv: &str,
        up: bool,
        notices: &mut Notices,
    ) -> ServerNumber {
        let told = notices.bytes().len();
        let mut no_answer = Vec::new();
        let turn = &mut Turn::of_matcher(now, &mut no_answer, notices);
        self.advance(turn, now);
        let index = self.people.server_entry(srv.as_bytes());
        let was_lost = self.people[index].is_lost();
        let grace_until = if up { 0 } else { self.now + self.config.presence_grace_ms };
        self.people.set_session(index, up, grace_until);
        if !up {
            self.timers.set(grace_until, Timer::Grace(index));
        } else if was_lost {
            self.propose_again(turn, index);
        }
        self.note_notices(notices, told);
        self.people.number(index)
    }

    /// Does what is due at `now`, a bounded part at a time, and a part of a queue's search: call
    /// again while [`next_timeout`](Matcher::next_timeout) is not after `now`.
    pub fn handle_timeout(&mut self, WallMs(now): WallMs, notices: &mut Notices) {
        let told = notices.bytes().len();
        let mut no_answer = Vec::new();
        let turn = &mut Turn::of_matcher(now, &mut no_answer, notices);
        self.advance(turn, now);
        self.search_slice(turn);
        self.note_notices(notices, told);
    }

    /// Time when [`handle_timeout`](Matcher::handle_timeout) has work.
    #[must_use]
    pub fn next_timeout(&self) -> Option<WallMs> {
        if self.queues.is_searching() { Some(self.now()) } else { self.timers.next().map(WallMs) }
    }

    /// After a crash, a planned stop or an import: every server that had a session has its whole
    /// grace period from now on, open proposals are off, and nothing is drained.
    pub fn handle_recovered(&mut self, WallMs(now): WallMs, notices: &mut Notices) {
        self.now = self.now.max(now);
        self.clock = self.now;
        self.draining = false;
        // Those that were lost before the end, too: while the matcher was away there was nothing to
        // come back to.
        let servers = self.people.servers();
        let had_session = servers.filter(|(_, server)| server.had_session());
        let lost: Vec<ServerKey> = had_session.map(|(index, _)| index).collect();
        for index in lost {
            let until = self.now + self.config.presence_grace_ms;
            self.people.set_session(index, false, until);
            self.timers.set(until, Timer::Grace(index));
        }
        self.forget_questions();
        let told = notices.bytes().len();
        let mut no_answer = Vec::new();
        let turn = &mut Turn::of_matcher(now, &mut no_answer, notices);
        self.reopen_proposals(turn);
        self.await_worlds();
        let now = self.now;
        self.advance(turn, now);
        self.note_notices(notices, told);
    }

    /// Moves time on and fires what is due, in order, at most [`TIMERS_PER_INPUT`]: the rest stays
    /// due.
    pub(crate) fn advance(&mut self, turn: &mut Turn<'_>, now: u64) {
        // Reads, which a replay does not see, have moved it on.
        self.clock = self.now;
        for _ in 0..TIMERS_PER_INPUT {
            let Some((at, timer)) = self.timers.pop_due(now) else { break };
            self.now = self.now.max(at);
            self.fire(turn, at, timer, now - at > PAUSE_MS);
        }
        self.now = self.now.max(now);
        self.clock = self.now;
        self.queues.forget_tickets(self.now, FORGOTTEN_PER_INPUT);
        self.forget_matches();
        for _ in 0..FORGOTTEN_PER_INPUT {
            let Some(server) = self.keys.expire(self.now) else { break };
            self.people.let_go_of_server(server);
        }
    }

    /// `is_late`: the matcher stood still when the timer was due.
    fn fire(&mut self, turn: &mut Turn<'_>, at: u64, timer: Timer, is_late: bool) {
        match timer {
            Timer::Nothing => {}
            Timer::RoomEnd(id) => self.end_room(turn, id),
            Timer::Seats(id) => self.expire_seats(turn, id),
            Timer::Grace(server) => self.give_up_server(turn, server),
            Timer::Tick(queue) => self.queues.begin_tick(queue, at),
            Timer::Proposal(id) => self.end_proposal(turn, id, is_late),
            Timer::Assign(id) => self.end_without_server(turn, id),
            Timer::Backfill(id) => self.backfill_is_due(turn, id),
            Timer::Updates(queue) => self.send_updates(turn, queue),
            Timer::Period(pool) => self.end_rating_period(&pool),
            Timer::Cooldown(player) => self.end_cooldown(player),
            Timer::Policy(id) => {
                self.settle_question(turn, id, None, "the mode's policy did not answer in time");
            }
        }
    }

    /// A lost server did not come back: its roles leave everything but matches with a world of
    /// their own, where they may be by another server. Those last until the world ends.
    fn give_up_server(&mut self, turn: &mut Turn<'_>, index: ServerKey) {
        if !self.people.begin_giving_up(index, self.now) {
            return;
        }
        let players: Vec<PlayerKey> = self.people.players_of(index).collect();
        for player in players {
            self.disconnect_player(turn, player);
        }
        self.people.let_go_of_server(index);
    }

    fn disconnect_player(&mut self, turn: &mut Turn<'_>, player: PlayerKey) {
        if !self.people.hold(player) {
            return;
        }
        self.drop_from_tickets(turn, player, "disconnected");
        if let Some(team) = self.people[player].team() {
            self.remove_from_team(turn, team, player, "disconnected");
        }
        for room in self.people[player].rooms().to_vec() {
            let is_deleting = self.rooms[room].deleting();
            if self.has_world(room) && !is_deleting {
                continue;
            }
            if !is_deleting {
                self.tell_policy(HookPoint::OnDeletingRole, room, Some(player));
            }
            self.remove_from_room(turn, room, player, "disconnected");
        }
        self.people.let_go_of(player);
    }
}

fn refuse(problem: &Problem, answer: &mut Vec<u8>, start: usize) -> Status {
    answer.truncate(start);
    problem.write(answer);
    problem.status
}
