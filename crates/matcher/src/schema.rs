//! Snapshots: everything that outlives the process, in a format of its own.
//!
//! A snapshot is a line of text and the state behind it:
//!
//! ```text
//! throng-matcher-snapshot FORMAT RULES RELEASE HASH\n     then the state; HASH is its BLAKE3 hash
//! ```
//!
//! The state is a document of objects ([`v1::State`]). Counters, indexes and reference counts are
//! derived from it, so that a later release may hold the objects in another way. A new format adds
//! a module beside [`v1`], a row to [`FORMATS`], and turns the document of the format before it
//! into its own.

pub(crate) mod v1;

use std::collections::BTreeMap;
use std::str::SplitN;

use crate::config::Config;
use crate::id::{Id, Nonces};
use crate::info::Text;
use crate::key::{Numbers, PlayerKey, QueueKey, RoomKey, ServerKey, TicketKey};
use crate::keys::Keys;
use crate::matcher::{Matcher, RULES};
use crate::matches::Matches;
use crate::people::People;
use crate::policy::Hooks;
use crate::problem::ensure;
use crate::queue::Queues;
use crate::rating::Ratings;
use crate::room::{Modes, Room, Rooms};
use crate::team::Teams;
use crate::timers::{Timer, Timers};

/// First bytes of a snapshot.
const MAGIC: &[u8] = b"throng-matcher-snapshot ";
/// Longest first line.
const LINE_BYTES_MAX: usize = 200;
/// Format of new snapshots.
const FORMAT: u32 = 1;
/// First bytes of snapshots before the first release.
const UNRELEASED: &[u8] = b"throng-matcher-13\n";

/// Reads the state of one format.
type Load = fn(&[u8]) -> Result<Matcher, BadSnapshot>;

/// Formats that this release reads.
const FORMATS: &[(u32, Load)] = &[(1, load_v1)];

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the snapshot cannot be read: {0}")]
pub struct BadSnapshot(String);

impl From<&str> for BadSnapshot {
    fn from(why: &str) -> BadSnapshot {
        BadSnapshot(why.to_owned())
    }
}

/// The first line of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Format of the state.
    pub format: u32,
    /// Number of the rules by which the state came to be.
    pub rules: u32,
    /// The release that wrote it.
    pub release: String,
    /// BLAKE3 hash of the state.
    pub hash: [u8; 32],
}

impl SnapshotHead {
    /// Splits a snapshot into its first line and the state, which has the hash that the line names.
    ///
    /// # Errors
    /// [`BadSnapshot`] for anything else.
    pub fn split(snapshot: &[u8]) -> Result<(SnapshotHead, &[u8]), BadSnapshot> {
        if snapshot.starts_with(UNRELEASED) {
            return Err(BadSnapshot::from(
                "it has format 13 of a build before the first release; this release reads format 1. Move the folder \
                 away to begin with nothing",
            ));
        }
        let bad = || BadSnapshot::from("it does not begin as a snapshot does");
        let line = snapshot.strip_prefix(MAGIC).ok_or_else(bad)?;
        let end = line.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n').ok_or_else(bad)?;
        let (line, state) = (std::str::from_utf8(&line[..end]).map_err(|_| bad())?, &line[end + 1..]);
        let head = SnapshotHead::parse(line.splitn(4, ' ')).ok_or_else(bad)?;
        Ok((head, state))
    }

    fn parse(mut parts: SplitN<'_, char>) -> Option<SnapshotHead> {
        let format = parts.next()?.parse().ok()?;
        let (rules, release) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
        let mut hash = [0; 32];
        // A later format may end its line otherwise; it is refused by its number.
        if let Some(hex) = parts.next().filter(|hex| hex.len() == 64 && hex.is_ascii()) {
            for (byte, digits) in hash.iter_mut().zip(hex.as_bytes().chunks(2)) {
                *byte = crate::id::unhex(digits)? as u8;
            }
        }
        Some(SnapshotHead { format, rules, release, hash })
    }

    fn line(&self) -> String {
        let hash: String = self.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {} {} {hash}\n", self.format, self.rules, self.release)
    }
}

impl Matcher {
    /// Everything that outlives the process.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let state = self.save();
        let head = SnapshotHead {
            format: FORMAT,
            rules: RULES,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            hash: *blake3::hash(&state).as_bytes(),
        };
        [MAGIC, head.line().as_bytes(), &state].concat()
    }

    /// The matcher that [`snapshot`](Matcher::snapshot) saw, under the configuration that it had.
    ///
    /// # Errors
    /// [`BadSnapshot`] for anything else.
    pub fn restore(snapshot: &[u8]) -> Result<Matcher, BadSnapshot> {
        restore(FORMATS, snapshot)
    }

    /// A hash that two matchers share exactly when their states are the same.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.save()).as_bytes()
    }

    /// The state as [`FORMAT`] has it.
    ///
    /// # Panics
    /// Panics if memory cannot be allocated.
    fn save(&self) -> Vec<u8> {
        postcard::to_extend(&self.document(), Vec::new()).expect("plain data can be encoded into memory")
    }

    pub(crate) fn document(&self) -> v1::State<'_> {
        let (mut servers, numbers) = self.people.save();
        for (key, _) in self.people.servers() {
            if let Some(number) = numbers.server(key) {
                servers[number as usize].answers = self.keys.save(key);
            }
        }
        let (secret, nonces_given) = self.nonces.save();
        // Queues have their rule sets themselves. Texts, numbers and flags: nothing else is left
        // that could fail to be JSON.
        let config = Config { queues: Vec::new(), ..self.config.clone() };
        let config = serde_json::to_string(&config).unwrap_or_default();
        let (rating_pools, reports) = self.ratings.save();
        let (timers, timers_set) = self.timers.save();
        let seat_ticket = |room: &Room, ticket: TicketKey| {
            self.queues.get_ticket(ticket).is_some_and(|ticket| ticket.room == Some(room.id()))
        };
        v1::State {
            now: self.now,
            draining: self.draining,
            secret,
            nonces_given,
            rooms_made: self.rooms.made(),
            config,
            servers,
            modes: self.rooms.modes().save(),
            queues: self.queues.save(),
            teams: self.teams.save(&numbers),
            rooms: self.rooms.save(&numbers, seat_ticket),
            tickets: self.queues.save_tickets(&numbers),
            matches: self.matches.save(&numbers),
            backfills: self.queues.save_backfills(&numbers),
            ended_tickets: self.queues.save_ended(),
            ended_matches: self.matches.ended().map(|(at, id)| (at, id.into())).collect(),
            waits: self.queues.save_waits(),
            rating_pools,
            reports,
            timers: timers
                .into_iter()
                .map(|(at, number, timer)| v1::Timer { at, number, action: self.action(&numbers, at, timer) })
                .collect(),
            timers_set,
            policies: self.hooks.save(),
        }
    }

    fn action<'a>(&self, numbers: &Numbers, at: u64, timer: &'a Timer) -> v1::Action<'a> {
        match timer {
            Timer::Nothing => v1::Action::Nothing,
            Timer::RoomEnd(id) => v1::Action::RoomEnd((*id).into()),
            Timer::Seats(id) => v1::Action::Seats((*id).into()),
            // Of one that came back, or of another that had its index, nothing is left to do.
            Timer::Grace(server) => {
                let is_due = self.people.get_server(*server).is_some_and(|own| own.grace_until() == at);
                let number = numbers.server(*server).filter(|_| is_due);
                number.map_or(v1::Action::Nothing, v1::Action::Grace)
            }
            Timer::Tick(queue) => v1::Action::Tick(queue.index()),
            Timer::Proposal(id) => v1::Action::Proposal((*id).into()),
            Timer::Assign(id) => v1::Action::Assign((*id).into()),
            Timer::Backfill(id) => v1::Action::Backfill((*id).into()),
            Timer::Updates(queue) => v1::Action::Updates(queue.index()),
            Timer::Period(pool) => v1::Action::Period(pool),
            Timer::Cooldown(player) => {
                numbers.player(*player).map_or(v1::Action::Nothing, v1::Action::Cooldown)
            }
            Timer::Policy(question) => v1::Action::Policy(*question),
        }
    }

    /// The matcher of a document, with all that is derived from it.
    fn of_document(saved: &v1::State<'_>) -> Result<Matcher, &'static str> {
        let config = serde_json::from_str(&saved.config).map_err(|_| "its configuration is not in order")?;
        let mut people = People::load(&saved.servers)?;
        let mut keys = Keys::default();
        for (index, server) in (0..).zip(&saved.servers) {
            keys.load(ServerKey::new(index), &server.answers);
            let is_there = people.hold_server(ServerKey::new(index), server.answers.len() as u32);
            debug_assert!(is_there, "it was loaded above");
        }
        let ended = saved.ended_matches.iter().map(|(at, id)| (*at, (*id).into()));
        let matcher = Matcher {
            now: saved.now,
            draining: saved.draining,
            nonces: Nonces::load(saved.secret, saved.nonces_given),
            people,
            teams: Teams::load(&saved.teams).ok_or(UNPLACED)?,
            rooms: Rooms::load(&saved.rooms, Modes::load(&saved.modes)?, saved.rooms_made, UNPLACED)?,
            queues: Queues::load(saved, UNPLACED)?,
            matches: Matches::load(&saved.matches, ended, UNPLACED)?,
            ratings: Ratings::load(&saved.rating_pools, &saved.reports)?,
            timers: Timers::load(saved.timers.iter().map(timer), saved.timers_set),
            keys,
            hooks: Hooks::load(&saved.policies)?,
            ..Matcher::blank(config, saved.now)
        };
        matcher.derive(saved)
    }

    /// Derives counts and indexes.
    fn derive(mut self, saved: &v1::State<'_>) -> Result<Matcher, &'static str> {
        for creator in self.rooms.iter().filter_map(|(_, room)| room.creator()) {
            ensure(self.people.hold_server(creator, 1), "a room has no creator")?;
        }
        for (_, backfill) in self.queues.backfills() {
            ensure(self.people.hold_server(backfill.owner, 1), "a backfill has no owner")?;
        }
        for timer in &saved.timers {
            match timer.action {
                v1::Action::Cooldown(player) => {
                    let is_there = self.people.hold(PlayerKey::new(player));
                    ensure(is_there, "a player with a cooldown is missing")?;
                }
                v1::Action::Tick(queue) | v1::Action::Updates(queue) => {
                    ensure(
                        self.queues.get(QueueKey::new(queue)).is_some(),
                        "a queue with a timer is missing",
                    )?;
                }
                _ => {}
            }
        }
        self.check_invariants()?;
        Ok(self)
    }

    /// Checks that everything that refers to something is referred to by it, and every count.
    /// Cost: all of the state.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        self.check_people()?;
        self.check_rooms()?;
        self.check_queues()
    }

    fn check_people(&self) -> Result<(), &'static str> {
        let mut holds: BTreeMap<ServerKey, u32> = BTreeMap::new();
        let owners = self.queues.backfills().map(|(_, own)| own.owner);
        let creators = self.rooms.iter().filter_map(|(_, room)| room.creator());
        for server in owners.chain(creators) {
            ensure(self.people.get_server(server).is_some(), "a server is missing")?;
            *holds.entry(server).or_default() += 1;
        }
        let keys = |server| self.keys.save(server).len() as u32;
        self.people
            .check_invariants(|server| holds.get(&server).copied().unwrap_or_default() + keys(server))?;
        for (index, player) in self.people.players() {
            let has_it = |team| {
                let team = self.teams.get(team);
                team.is_some_and(|team| team.members().iter().any(|own| own.player == index))
            };
            ensure(player.team().is_none_or(has_it), "a player's team")?;
            let is_member = |room: &RoomKey| self.rooms.get(*room).is_some_and(|room| room.has_member(index));
            ensure(player.rooms().iter().all(is_member), "a player's room")?;
            let has_seat = |room: &RoomKey| self.rooms.get(*room).is_some_and(|room| room.has_seat(index));
            ensure(player.seats().iter().all(has_seat), "a player's seat")?;
            let has_ticket = |ticket: &TicketKey| {
                let own = self.queues.get_ticket(*ticket).filter(|ticket| ticket.state.is_live());
                own.is_some_and(|ticket| ticket.players.iter().any(|own| own.player == Some(index)))
            };
            ensure(player.tickets().iter().all(has_ticket), "a player's ticket")?;
        }
        self.teams.check_invariants(|player, key| {
            self.people.get_player(player).is_some_and(|player| player.team() == Some(key))
        })
    }

    fn check_rooms(&self) -> Result<(), &'static str> {
        self.rooms.check_invariants()?;
        for (index, room) in self.rooms.iter() {
            let player = |player: PlayerKey| self.people.get_player(player);
            let is_member =
                |own: PlayerKey| player(own).is_some_and(|player| player.rooms().contains(&index));
            ensure(room.members().iter().all(|own| is_member(own.player)), "a member of a room")?;
            let is_seated =
                |own: PlayerKey| player(own).is_some_and(|player| player.seats().contains(&index));
            ensure(room.seats().iter().all(|own| is_seated(own.player)), "a seat of a room")?;
            let has_it = |own| self.queues.get_backfill(own).is_some_and(|own| own.room == room.id());
            ensure(room.backfill().is_none_or(has_it), "the backfill of a room")?;
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<(), &'static str> {
        let has_ticket = |player, ticket| {
            self.people.get_player(player).is_some_and(|player| player.tickets().contains(&ticket))
        };
        let has_backfill = |room, backfill| {
            self.rooms.find(room).is_some_and(|room| self.rooms[room].backfill() == Some(backfill))
        };
        self.queues.check_invariants(has_ticket, has_backfill)?;
        self.matches.check_invariants(|found| {
            ensure(self.queues.get(found.queue()).is_some(), "the queue of a match")?;
            let is_here = |ticket: &TicketKey| {
                self.queues.get_ticket(*ticket).is_some_and(|own| own.matched == Some(found.id()))
            };
            ensure(found.sides().iter().flatten().all(is_here), "a ticket of a match")?;
            let mut tickets: Vec<TicketKey> = found.sides().iter().flatten().copied().collect();
            tickets.sort_unstable();
            ensure(tickets.windows(2).all(|pair| pair[0] != pair[1]), "a ticket twice in a match")
        })
    }
}

/// Reason to refuse objects whose places do not fit together.
const UNPLACED: &str = "an object is missing or there twice";

fn timer(saved: &v1::Timer<'_>) -> (u64, u64, Timer) {
    let timer = match &saved.action {
        v1::Action::Nothing => Timer::Nothing,
        v1::Action::RoomEnd(id) => Timer::RoomEnd(Id::from(*id)),
        v1::Action::Seats(id) => Timer::Seats(Id::from(*id)),
        v1::Action::Grace(server) => Timer::Grace(ServerKey::new(*server)),
        v1::Action::Tick(queue) => Timer::Tick(QueueKey::new(*queue)),
        v1::Action::Proposal(id) => Timer::Proposal(Id::from(*id)),
        v1::Action::Assign(id) => Timer::Assign(Id::from(*id)),
        v1::Action::Backfill(id) => Timer::Backfill(Id::from(*id)),
        v1::Action::Updates(queue) => Timer::Updates(QueueKey::new(*queue)),
        v1::Action::Period(pool) => Timer::Period(Text::from_slice(pool)),
        v1::Action::Cooldown(player) => Timer::Cooldown(PlayerKey::new(*player)),
        v1::Action::Policy(question) => Timer::Policy(*question),
    };
    (saved.at, saved.number, timer)
}

fn restore(formats: &[(u32, Load)], snapshot: &[u8]) -> Result<Matcher, BadSnapshot> {
    let (head, state) = SnapshotHead::split(snapshot)?;
    let Some((_, load)) = formats.iter().find(|(format, _)| *format == head.format) else {
        let last = formats.last().map_or(0, |(format, _)| *format);
        let SnapshotHead { format, release, .. } = head;
        return Err(BadSnapshot(format!(
            "it has format {format} of release {release}; this release reads formats up to {last}"
        )));
    };
    if *blake3::hash(state).as_bytes() != head.hash {
        return Err(BadSnapshot::from("its state has another hash than its first line names"));
    }
    load(state)
}

fn load_v1(state: &[u8]) -> Result<Matcher, BadSnapshot> {
    let (state, rest) = postcard::take_from_bytes(state)
        .map_err(|error| BadSnapshot(format!("its state is damaged: {error}")))?;
    ensure(rest.is_empty(), "something follows its state")?;
    Ok(Matcher::of_document(&state)?)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::wall::WallMs;

    const FIXTURE: &[u8] = include_bytes!("../../../fixtures/matcher/format-1.snap");

    /// Format 2 as a later release could have it: texts that servers are shown by.
    #[derive(Serialize, Deserialize)]
    struct Next<'a> {
        shown: Vec<String>,
        #[serde(borrow)]
        old: v1::State<'a>,
    }

    impl<'a> Next<'a> {
        fn migrate(old: v1::State<'a>) -> Next<'a> {
            let shown = old.servers.iter().map(|server| String::from_utf8_lossy(server.name).into_owned());
            Next { shown: shown.collect(), old }
        }

        fn load(self) -> Result<Matcher, BadSnapshot> {
            ensure(self.shown.len() == self.old.servers.len(), "a server is shown by nothing")?;
            Ok(Matcher::of_document(&self.old)?)
        }
    }

    fn load_1_in_2(state: &[u8]) -> Result<Matcher, BadSnapshot> {
        Next::migrate(postcard::from_bytes(state).map_err(|error| BadSnapshot(error.to_string()))?).load()
    }

    fn load_2(state: &[u8]) -> Result<Matcher, BadSnapshot> {
        postcard::from_bytes::<Next<'_>>(state).map_err(|error| BadSnapshot(error.to_string()))?.load()
    }

    /// Formats that the next release reads.
    const NEXT: &[(u32, Load)] = &[(1, load_1_in_2), (2, load_2)];

    fn snapshot_of(format: u32, state: &[u8]) -> Vec<u8> {
        let hash = *blake3::hash(state).as_bytes();
        let head = SnapshotHead { format, rules: RULES, release: "0.2.0".to_owned(), hash };
        [MAGIC, head.line().as_bytes(), state].concat()
    }

    #[test]
    fn the_next_format_reads_this_one_and_refuses_the_one_after_it() {
        let (_, state) = SnapshotHead::split(FIXTURE).unwrap();
        let old = Matcher::restore(FIXTURE).unwrap();
        assert!(old.counts().tickets > 3 && old.counts().rooms > 3 && old.counts().teams > 0);
        let migrated = restore(NEXT, FIXTURE).unwrap();
        assert_eq!(migrated.digest(), old.digest());
        let next = postcard::to_extend(&Next::migrate(old.document()), Vec::new()).unwrap();
        let next = snapshot_of(2, &next);
        assert_eq!(restore(NEXT, &next).unwrap().digest(), old.digest());
        let refused = |formats, snapshot: &[u8]| restore(formats, snapshot).unwrap_err().to_string();
        let why = refused(FORMATS, &next);
        assert!(why.contains("format 2 of release 0.2.0") && why.contains("up to 1"), "{why}");
        let why = refused(NEXT, &snapshot_of(3, state));
        assert!(why.contains("format 3") && why.contains("up to 2"), "{why}");
    }

    /// The fixture is of the release that made the format. It is never written again.
    #[test]
    fn a_snapshot_of_format_1_is_read_and_written_as_it_was() {
        let (head, state) = SnapshotHead::split(FIXTURE).unwrap();
        assert_eq!(head.format, 1);
        let matcher = Matcher::restore(FIXTURE).unwrap();
        assert_eq!(matcher.digest(), head.hash);
        assert!(matcher.save() == state);
    }

    #[test]
    fn a_ticket_that_no_request_makes_is_refused() {
        let matcher = Matcher::restore(FIXTURE).unwrap();
        let with = |change: &dyn Fn(&mut v1::Ticket<'_>)| {
            let mut state = matcher.document();
            let mut tickets = state.tickets.objects.iter_mut();
            change(tickets.find(|ticket| ticket.state == 0).expect("a ticket searches"));
            Matcher::of_document(&state).map(drop)
        };
        assert_eq!(with(&|_| {}), Ok(()));
        for priority in [-10, 10] {
            assert_eq!(with(&|ticket| ticket.priority = priority), Ok(()));
        }
        for priority in [i8::MIN, -11, 11, i8::MAX] {
            assert_eq!(with(&|ticket| ticket.priority = priority), Err("the priority of a ticket"));
        }
        assert_eq!(with(&|ticket| ticket.created = matcher.now + 1), Err("the times of a ticket"));
        assert_eq!(with(&|ticket| ticket.expires = ticket.created - 1), Err("the times of a ticket"));
        assert_eq!(with(&|ticket| ticket.players.clear()), Err("the players of a ticket"));
        assert_eq!(with(&|ticket| ticket.players[0].body = b"\xff"), Err("a player of a ticket"));
        assert_eq!(with(&|ticket| ticket.facts.size += 1), Err("the facts of a ticket"));
        let unfit = Err("a ticket that its queue's rules do not fit");
        assert_eq!(with(&|ticket| ticket.level = u8::MAX), unfit);
        assert_eq!(with(&|ticket| drop(ticket.facts.players[0].attributes.pop())), unfit);
    }

    /// A changed state under its own new hash is refused or keeps every invariant.
    #[test]
    fn a_state_that_was_changed_is_refused_or_in_order() {
        let (_, state) = SnapshotHead::split(FIXTURE).unwrap();
        let (mut taken, mut refused) = (0, 0);
        for at in 0..state.len().min(20_000) {
            let mut changed = state.to_vec();
            changed[at] ^= 1 << (at % 8);
            match Matcher::restore(&snapshot_of(1, &changed)) {
                Ok(mut matcher) => {
                    let mut notices = crate::Notices::default();
                    // A state that was accepted works: ticks, ends of tickets, seats and rooms.
                    for at in [1, 1_000, 60_000].map(|ms| matcher.now.saturating_add(ms)) {
                        matcher.handle_timeout(WallMs(at), &mut notices);
                    }
                    matcher.check_invariants().unwrap_or_else(|error| panic!("byte {at}: {error}"));
                    taken += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(taken > 0 && refused > 0, "{taken} {refused}");
    }
}
