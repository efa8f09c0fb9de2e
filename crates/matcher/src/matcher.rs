//! The state: its parts, what it is asked for from outside, and what all operations need.

use smallvec::SmallVec;
use throng_wire::matcher::{Status, write_bytes, write_u64};

use crate::config::{Caller, Config, Scope};
use crate::id::{Id, Nonces};
use crate::info::{RoleRef, check_len};
use crate::key::{MatchKey, PlayerKey, RoomKey, ServerKey};
use crate::keys::{Answer, Keys};
use crate::matches::Matches;
use crate::notices::{Notices, ServerNumber};
use crate::outputs::Outputs;
use crate::people::{People, Server};
use crate::policy::Hooks;
use crate::problem::{Outcome, Problem, forbidden, lives_elsewhere};
use crate::queue::{Found, Queue, Queues, Slice};
use crate::rating::Ratings;
use crate::room::Rooms;
use crate::stats::{Counts, ModeCounts, Stats};
use crate::team::Teams;
use crate::timers::Timers;
use crate::turn::Turn;
use crate::wall::WallMs;

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
    /// Hash of answers and notices; `None` if it is never asked for.
    pub(crate) outputs: Option<Outputs>,
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

/// Ended tickets, or matches, that one input forgets, about half a millisecond: those of one large
/// tick end together.
pub(crate) const FORGOTTEN_PER_INPUT: usize = 2_048;

/// Number of the rules by which inputs change the state. It grows with every release in which the
/// same log leads to another state, so that no log is replayed under rules that it was not written
/// under.
pub const RULES: u32 = 4;

impl Matcher {
    /// An empty matcher. `secret` makes ids unguessable; the same secret and inputs give the same
    /// state.
    #[must_use]
    pub fn new(config: Config, secret: [u8; 32], WallMs(now): WallMs) -> Matcher {
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
            outputs: Some(Outputs::default()),
        }
    }

    /// Puts the configured queues, but for those of which the rules file says what it said before:
    /// they may have been changed since.
    fn put_configured_queues(&mut self) {
        for rules in self.config.queues.clone() {
            if !self.queues.is_news(&rules) {
                continue;
            }
            let (mut no_answer, mut notices) = (Vec::new(), Notices::default());
            let turn = &mut Turn::of_matcher(self.now, &mut no_answer, &mut notices);
            // They were checked when they were read; what they end has no session to hear of it
            // yet.
            if let Ok(queue) = self.put_queue(turn, &rules) {
                self.queues.note_configured(queue, rules.source());
            }
        }
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

    /// Rules of modes as configured, but where a queue says how many play. A queue that is stored
    /// and has the name of a mode with a capacity is paused.
    pub(crate) fn configure_modes(&mut self, config: Config) {
        self.rooms.modes_mut().configure(&config);
        self.config = config;
        let keys: Vec<_> = self.queues.iter().map(|(key, _)| key).collect();
        for key in keys {
            let problem = self.config.check_queue_name(&self.queues[key].name).err();
            if self.queues.note_mode_of(key, problem) {
                let rules = self.queues[key].rules();
                self.put_queue_mode(&rules);
                self.schedule(key);
            }
        }
    }

    /// The time that the matcher has reached.
    #[must_use]
    pub fn now(&self) -> WallMs {
        WallMs(self.now)
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

    /// Returns whether nothing is there but what the configuration makes.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        let Counts { rooms, teams, players, tickets, matches, backfills, .. } = self.counts();
        let is_as_configured = |queue: &Queue| queue.configured() == Some(&queue.source);
        [rooms, teams, players, tickets, matches, backfills].iter().all(|count| *count == 0)
            && self.ratings.pools().next().is_none()
            && self.queues.iter().all(|(_, queue)| is_as_configured(queue))
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

    /// Servers that had a session and were not given up since, with their names.
    pub fn servers_with_sessions(&self) -> impl Iterator<Item = (ServerNumber, &[u8])> {
        let known = self.people.servers().filter(|(_, server)| server.had_session());
        known.map(|(key, server)| (self.people.number(key), server.id().as_slice()))
    }

    /// Returns whether a server has lost its session and was not given up since.
    #[must_use]
    pub fn is_away(&self, server: ServerNumber) -> bool {
        self.people.numbered(server).is_some_and(Server::is_lost)
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
    Err(lives_elsewhere())
}

/// Names of servers are bounded like other ids.
///
/// # Errors
/// `TOO_LARGE`.
pub fn check_server_name(name: &str) -> Result<(), &'static str> {
    check_len(name.as_bytes(), crate::info::ID_BYTES_MAX, "SrvID")
        .map_err(|_| "SrvID is longer than 128 bytes")
}
