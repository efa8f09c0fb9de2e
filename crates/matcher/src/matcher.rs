//! The state machine: one input at a time, then its answer and notices.

use smallvec::SmallVec;
use throng_wire::fields;
use throng_wire::matcher::{REQUEST_KEY_FIELD, Status, method, write_bytes, write_u64};

use crate::config::{Caller, Config, HookPoint, Scope};
use crate::id::{Id, Nonces};
use crate::info::{RoleRef, check_len};
use crate::key::{MatchKey, PlayerKey, RoomKey, ServerKey};
use crate::keys::{Answer, Keys};
use crate::matches::Matches;
use crate::notices::{Notices, ServerNumber};
use crate::outputs::Outputs;
use crate::people::People;
use crate::policy::{Handled, Hooks, PendingRequest, Verdict};
use crate::problem::{Outcome, Problem, forbidden, invalid};
use crate::queue::{Found, Queues, Slice};
use crate::rating::Ratings;
use crate::record::Input;
use crate::room::Rooms;
use crate::stats::{Counts, ModeCounts, Stats};
use crate::team::Teams;
use crate::timers::{Timer, Timers};
use crate::turn::Turn;

/// The matcher. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Matcher {
    pub(crate) now: u64,
    pub(crate) draining: bool,
    pub(crate) nonces: Nonces,
    pub(crate) people: People,
    pub(crate) teams: Teams,
    pub(crate) rooms: Rooms,
    pub(crate) timers: Timers,
    pub(crate) queues: Queues,
    pub(crate) matches: Matches,
    pub(crate) ratings: Ratings,
    pub(crate) keys: Keys<Answer>,
    pub(crate) hooks: Hooks,
    /// Time of the last input, reads included: what waiting times are shown by.
    pub(crate) clock: u64,
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) scratch: Scratch,
    pub(crate) outputs: Outputs,
}

/// Memory that is used again from input to input.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The event being sent, a field of an entry.
    pub(crate) event: Vec<u8>,
    /// The room as last encoded.
    pub(crate) room: Vec<u8>,
    pub(crate) candidates: Vec<RoomKey>,
    /// Matches of a tick that were found and are not made yet, with the backfills that they are
    /// for.
    pub(crate) found: Vec<Found>,
    /// Matches that were placed and are not told of yet, and until when their seats are held.
    pub(crate) ready: Vec<(MatchKey, u64)>,
    /// The part of a tick that was done last, until the driver says how long it took.
    pub(crate) slice: Option<Slice>,
}

/// Timers that one input fires, however many are due. Ending a full room of four takes about 3 us,
/// so a request waits for 2 ms at most; 100,000 rooms that end together took 0.8 s when they all
/// went at once.
const TIMERS_PER_INPUT: usize = 512;
/// Ended tickets, or matches, that one input forgets, about half a millisecond: those of one large
/// tick end together.
pub(crate) const FORGOTTEN_PER_INPUT: usize = 2_048;

/// Number of the rules by which inputs change the state. It grows with every release in which the
/// same log leads to another state, so that no log is replayed under rules that it was not written
/// under.
pub const RULES: u32 = 1;
impl Matcher {
    /// An empty matcher. `secret` makes ids unguessable; the same secret and inputs give the same
    /// state. `now` is wall time in ms since the epoch.
    #[must_use]
    pub fn new(config: Config, secret: [u8; 32], now: u64) -> Matcher {
        let mut matcher = Matcher {
            rooms: Rooms::new(&config),
            nonces: Nonces::new(secret),
            ..Matcher::blank(config, now)
        };
        matcher.put_configured_queues();
        matcher
    }

    /// A matcher without anything.
    pub(crate) fn blank(config: Config, now: u64) -> Matcher {
        Matcher {
            now,
            draining: false,
            nonces: Nonces::new([0; 32]),
            people: People::default(),
            teams: Teams::default(),
            rooms: Rooms::default(),
            timers: Timers::default(),
            queues: Queues::default(),
            matches: Matches::default(),
            ratings: Ratings::default(),
            keys: Keys::default(),
            hooks: Hooks::default(),
            clock: now,
            config,
            stats: Stats::default(),
            scratch: Scratch::default(),
            outputs: Outputs::default(),
        }
    }

    fn put_configured_queues(&mut self) {
        for rules in self.config.queues.clone() {
            // They were checked when they were read; what they end has no session to hear of it
            // yet.
            let _ = self
                .put_queue(&mut Turn::of_matcher(self.now, &mut Vec::new(), &mut Notices::default()), &rules);
        }
    }

    /// Executes a request and appends the body of its answer to `answer`, unless a policy is to be
    /// asked first. Before one that may change something, timers that are due fire, a bounded
    /// number of them.
    ///
    /// `now` is wall time in ms; when it goes back, the matcher's own time stands still.
    pub fn handle(
        &mut self,
        now: u64,
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
        self.outputs.add(&answer[start..]);
        self.outputs.add(&notices.bytes()[told..]);
        handled
    }

    /// Hash of the answers and notices of all inputs since the last call; `None` if there were
    /// none. A replay of the same inputs gives the same hashes at the same places.
    pub fn take_outputs(&mut self) -> Option<u64> {
        self.outputs.take()
    }

    /// Notes the notices of an input from a length on.
    pub(crate) fn note_notices(&mut self, notices: &Notices, told: usize) {
        let told = &notices.bytes()[told..];
        if !told.is_empty() {
            self.outputs.add(told);
        }
    }

    /// Gives the matcher an input of a log. The result of a request; `None` for others.
    pub fn apply(
        &mut self,
        now: u64,
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
            Ok(key) => key.map(|key| (self.people.server_entry(turn.caller.srv.as_bytes()), key)),
            Err(problem) => return Handled::Done(refuse(&problem, turn.answer, start)),
        };
        if let Some((server, key)) = key
            && let Some(known) = self.keys.find(server, key)
        {
            if known.request != (method.number, digest_of(body)) {
                let problem = invalid(
                    "the idempotency key was used for another request; use a new key for each request",
                );
                self.people.release_server(server);
                return Handled::Done(refuse(&problem, turn.answer, start));
            }
            turn.answer.extend_from_slice(&known.body);
            let status = Status::from_code(known.status).unwrap_or(Status::Internal);
            self.stats.replayed_answers += 1;
            self.people.release_server(server);
            return Handled::Done(status);
        }
        let mut kept = self.keep_behind(turn.caller, &mut asked, turn.answer);
        let mut outcome = Ok(());
        if kept.is_none() {
            self.hooks.verdicts = std::mem::take(&mut asked.verdicts);
            outcome = self.dispatch(turn, method.number, body);
            asked.verdicts = std::mem::take(&mut self.hooks.verdicts);
            kept = self.keep_stopped(turn.caller, &mut asked, turn.answer, start);
        }
        if let Some(kept) = kept {
            if let Some((server, _)) = key {
                self.people.release_server(server);
            }
            return kept;
        }
        let status = match outcome {
            Ok(()) => Status::Ok,
            Err(problem) => refuse(&problem, turn.answer, start),
        };
        if let Some((server, key)) = key {
            // A transient refusal may go better next time.
            if matches!(
                status,
                Status::Overloaded | Status::Draining | Status::RateLimited | Status::PolicyUnavailable
            ) {
                self.people.release_server(server);
            } else {
                let request = (method.number, digest_of(body));
                let kept = Answer { request, status: status as u16, body: turn.answer[start..].to_vec() };
                let (until, max) = (self.now + self.config.key_ttl_ms, self.config.keys_per_server);
                if self.keys.keep(until, server, key, kept, max) {
                    let is_there = self.people.hold_server(server, 1);
                    debug_assert!(is_there, "its entry was made above");
                }
            }
        }
        Handled::Done(status)
    }

    /// A server's session began (`up`) or was lost. Returns the server's number in [`Notices`],
    /// which stays until the server has no session and no roles; later it has another one.
    pub fn handle_session(&mut self, now: u64, srv: &str, up: bool, notices: &mut Notices) -> ServerNumber {
        let told = notices.bytes().len();
        self.advance(&mut Turn::of_matcher(now, &mut Vec::new(), notices), now);
        self.note_notices(notices, told);
        let index = self.people.server_entry(srv.as_bytes());
        let grace_until = if up { 0 } else { self.now + self.config.presence_grace_ms };
        self.people.set_session(index, up, grace_until);
        if !up {
            self.timers.set(grace_until, Timer::Grace(index));
        }
        self.people.number(index)
    }

    /// Does what is due at `now`, a bounded part at a time, and a part of a queue's search: call
    /// again while [`next_timeout`](Matcher::next_timeout) is not after `now`.
    pub fn handle_timeout(&mut self, now: u64, notices: &mut Notices) {
        let told = notices.bytes().len();
        let mut no_answer = Vec::new();
        let turn = &mut Turn::of_matcher(now, &mut no_answer, notices);
        self.advance(turn, now);
        self.search_slice(turn);
        self.note_notices(notices, told);
    }

    /// Time when [`handle_timeout`](Matcher::handle_timeout) has work, in ms since the epoch.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if self.queues.is_searching() { Some(self.now) } else { self.timers.next() }
    }

    /// After a crash or a planned stop: every server that had a session has its whole grace period
    /// from now on, open proposals are off, and nothing is drained.
    pub fn handle_recovered(&mut self, now: u64, notices: &mut Notices) {
        self.now = self.now.max(now);
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
        let now = self.now;
        self.advance(turn, now);
        self.note_notices(notices, told);
    }

    /// Rules of modes and limits.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A secret for a matcher that begins after this one: unguessable, as this one's is, and
    /// another.
    #[must_use]
    pub fn next_secret(&mut self) -> [u8; 32] {
        let mut secret = [0; 32];
        for part in secret.chunks_exact_mut(8) {
            part.copy_from_slice(&self.nonces.next().to_le_bytes());
        }
        secret
    }

    /// Applies changed rules of modes. A mode that still has rooms keeps its way of selecting.
    pub fn reconfigure(&mut self, config: Config) {
        self.configure_modes(config);
        self.put_configured_queues();
    }

    /// Rules of modes as configured, but where a queue says how many play.
    pub(crate) fn configure_modes(&mut self, config: Config) {
        self.rooms.modes_mut().configure(&config);
        self.config = config;
        let rules: Vec<_> = self.queues.iter().map(|(_, queue)| queue.rules()).collect();
        for rules in rules {
            self.put_queue_mode(&rules);
        }
    }

    /// The time that the matcher has reached, in ms since the epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Counters since the start of the process.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Objects that exist.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            rooms: self.rooms.len(),
            teams: self.teams.len(),
            players: self.people.player_count(),
            servers: self.people.server_count(),
            tickets: self.queues.live(),
            ended_tickets: self.queues.ended(),
            matches: self.matches.len(),
            backfills: self.queues.backfill_count(),
        }
    }

    /// Sizes of modes: `most` of the configured ones, as a mode or a queue, and all others in one
    /// that is called [`ModeCounts::OTHERS`]. Cost: O(modes), however many rooms there are.
    #[must_use]
    pub fn mode_counts(&self, most: usize) -> Vec<ModeCounts> {
        let mut counts = Vec::new();
        let mut others = ModeCounts::new(ModeCounts::OTHERS);
        for mode in self.rooms.modes().iter() {
            let own = mode.counts();
            let is_known =
                self.config.modes.contains_key(&own.name) || self.queues.find(own.name.as_bytes()).is_some();
            if is_known && counts.len() < most {
                counts.push(own);
            } else {
                others.add(&own);
            }
        }
        counts.push(others);
        counts
    }

    /// Modes with rooms and how many those are, at most `most` of them, the fullest first. Cost:
    /// O(n log n) of all modes.
    #[must_use]
    pub fn busy_modes(&self, most: usize) -> Vec<(String, u32)> {
        self.rooms.modes().busy(most)
    }

    /// Name of a server that [`Notices`] mention.
    #[must_use]
    pub fn server_name(&self, server: ServerNumber) -> Option<&[u8]> {
        self.people.numbered(server).map(|known| known.id().as_slice())
    }

    /// Returns whether a server has a session or roles here, or has had them lately.
    #[must_use]
    pub fn has_server(&self, name: &[u8]) -> bool {
        self.people.server(name).is_some()
    }

    /// Moves time on and fires what is due, in order, at most [`TIMERS_PER_INPUT`]: the rest stays
    /// due.
    pub(crate) fn advance(&mut self, turn: &mut Turn<'_>, now: u64) {
        for _ in 0..TIMERS_PER_INPUT {
            let Some((at, timer)) = self.timers.pop_due(now) else { break };
            self.now = self.now.max(at);
            self.fire(turn, at, timer);
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

    fn fire(&mut self, turn: &mut Turn<'_>, at: u64, timer: Timer) {
        match timer {
            Timer::Nothing => {}
            Timer::RoomEnd(id) => self.end_room(turn, id),
            Timer::Seats(id) => self.expire_seats(turn, id),
            Timer::Grace(server) => self.give_up_server(turn, server),
            Timer::Tick(queue) => self.queues.begin_tick(queue, at),
            Timer::Proposal(id) => self.end_proposal(turn, id),
            Timer::Assign(id) => self.end_without_server(turn, id),
            Timer::Backfill(id) => self.backfill_is_due(turn, id),
            Timer::Updates(queue) => self.send_updates(turn, queue),
            Timer::Period(pool) => self.end_rating_period(&pool),
            Timer::Cooldown(player) => self.end_cooldown(player),
            Timer::Policy(id) => self.settle_question(turn, id, None),
        }
    }

    /// The server that a role lives on, as far as the caller may say: one that the matcher knows on
    /// another server comes to the caller's by itself only when that one is lost.
    pub(crate) fn home_of<'a>(&self, caller: Caller<'a>, role: &RoleRef<'a>) -> Outcome<&'a [u8]> {
        let own = caller.srv.as_bytes();
        if !role.srv.is_empty() && role.srv != own {
            require(caller, Scope::Trusted)?;
            return Ok(role.srv);
        }
        if caller.scope == Scope::Server {
            let known = self.people.player(role.id).map(|player| self.people.server_of(player));
            let is_lost =
                |server| self.people.server(server).is_some_and(|index| self.people[index].is_lost());
            if let Some(server) = known.filter(|server| !is_lost(server)) {
                check_acts_on(caller, server)?;
            }
        }
        Ok(own)
    }

    /// Refuses unless the caller may act for a role that the matcher knows.
    pub(crate) fn check_acts_for(&self, caller: Caller<'_>, player: PlayerKey) -> Outcome {
        check_acts_on(caller, self.people.server_of(player))
    }

    pub(crate) fn check_not_draining(&self) -> Outcome {
        if self.draining {
            return Err(Problem::new(Status::Draining, "the matcher is draining: nothing new is begun"));
        }
        Ok(())
    }

    /// A lost server did not come back: its roles leave everything.
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
            if !self.rooms[room].deleting() {
                self.tell_policy(HookPoint::OnDeletingRole, room, Some(player));
            }
            self.remove_from_room(turn, room, player, "disconnected");
        }
        self.people.let_go_of(player);
    }

    pub(crate) fn new_id(&mut self, index: u32) -> Id {
        Id { index, nonce: self.nonces.next() }
    }
}

/// Sends the event to every server with at least one of `players`, once each, with the roles it
/// hosts.
pub(crate) fn fan_out(
    people: &People,
    players: impl Iterator<Item = PlayerKey>,
    event: &[u8],
    collapse: u64,
    notices: &mut Notices,
) {
    let named = |player: PlayerKey| {
        let player = &people[player];
        (player.server(), player.id().as_slice())
    };
    let mut all: SmallVec<[(ServerKey, &[u8]); 16]> = players.map(named).collect();
    if all.windows(2).any(|pair| pair[0].0 != pair[1].0) {
        // An order that no index decides: a restored matcher has others.
        all.sort_by_key(|(server, _)| people[*server].age());
    }
    for group in all.chunk_by(|a, b| a.0 == b.0) {
        notices.push(people.number(group[0].0), group.iter().map(|(_, id)| *id), event, collapse);
    }
}

/// The last fields of an event about a team or room: id, revision, reason.
pub(crate) fn write_about(out: &mut Vec<u8>, id: Id, rev: u64, reason: &str) {
    write_bytes(out, 20, &id.text());
    write_u64(out, 21, rev);
    if !reason.is_empty() {
        write_bytes(out, 22, reason.as_bytes());
    }
}

/// Not 0 for what may be collapsed: the same number means the same value of the same object.
pub(crate) fn collapse_key(enabled: bool, object: Id, kind: u32, key: &[u8]) -> u64 {
    if !enabled {
        return 0;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&object.nonce.to_le_bytes()).update(&kind.to_le_bytes()).update(key);
    let hash = hasher.finalize();
    hash.as_bytes()[..8].iter().fold(1, |value: u64, byte| value << 8 ^ u64::from(*byte)) | 1
}

pub(crate) fn require(caller: Caller<'_>, scope: Scope) -> Outcome {
    if caller.scope < scope {
        return Err(match scope {
            Scope::Admin => forbidden("this needs a token with scope admin"),
            _ => forbidden("this needs a token with scope trusted"),
        });
    }
    Ok(())
}

/// Refuses unless the caller may act for roles of a server.
pub(crate) fn check_acts_on(caller: Caller<'_>, server: &[u8]) -> Outcome {
    if caller.scope > Scope::Server || server == caller.srv.as_bytes() {
        return Ok(());
    }
    Err(forbidden("the role lives on another server"))
}

fn refuse(problem: &Problem, answer: &mut Vec<u8>, start: usize) -> Status {
    answer.truncate(start);
    problem.write(answer);
    problem.status
}

/// Tells bodies apart.
fn digest_of(body: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(body);
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// The key of a request that carries one. It stands last in what clients write, but may be
/// anywhere.
pub(crate) fn request_key(body: &[u8]) -> Outcome<Option<u128>> {
    let mut key = None;
    for field in fields(body) {
        let field = field?;
        if field.number == REQUEST_KEY_FIELD {
            let bytes: [u8; 16] =
                field.value.try_into().map_err(|_| invalid("an idempotency key has 16 bytes"))?;
            key = Some(u128::from_le_bytes(bytes));
        }
    }
    Ok(key)
}

/// Names of servers are bounded like other ids.
///
/// # Errors
/// `TOO_LARGE`.
pub fn check_server_name(name: &str) -> Result<(), &'static str> {
    check_len(name.as_bytes(), crate::info::ID_BYTES_MAX, "SrvID")
        .map_err(|_| "SrvID is longer than 128 bytes")
}
