//! Format 1 of snapshots: objects as they are stored, independent of how the matcher holds them.
//!
//! The layout is postcard's encoding of [`State`], fields in the order below. It is frozen: a
//! change of this file is a new format. `docs/reference/matcher-journal.md` documents every type;
//! `tests/it/schema_page.rs` compares the two.
//!
//! References: servers, players, modes and queues by their number in the list that holds them;
//! teams, rooms, tickets, matches and backfills by their *place*, which is part of the id that
//! clients hold.

use serde::{Deserialize, Serialize};

/// The whole state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State<'a> {
    /// Time that the matcher has reached, in ms since the epoch.
    pub(crate) now: u64,
    /// True after `Drain`.
    pub(crate) draining: bool,
    /// Key under which nonces of ids are made.
    pub(crate) secret: [u8; 32],
    /// Number of nonces that were given.
    pub(crate) nonces_given: u64,
    /// Number of rooms that were made.
    pub(crate) rooms_made: u64,
    /// Rules of modes and limits as JSON, without queues.
    pub(crate) config: String,
    /// Game servers.
    #[serde(borrow)]
    pub(crate) servers: Vec<Server<'a>>,
    /// Match modes.
    pub(crate) modes: Vec<Mode<'a>>,
    /// Queues.
    pub(crate) queues: Vec<Queue<'a>>,
    /// Teams.
    pub(crate) teams: Places<Team<'a>>,
    /// Rooms.
    pub(crate) rooms: Places<Room<'a>>,
    /// Tickets, live ones and those that are still readable.
    pub(crate) tickets: Places<Ticket<'a>>,
    /// Matches: proposed, in play, or remembered for their result.
    pub(crate) matches: Places<Match<'a>>,
    /// Backfills.
    pub(crate) backfills: Places<Backfill<'a>>,
    /// Places of tickets that have ended, in the order of their ends.
    pub(crate) ended_tickets: Vec<u32>,
    /// Matches whose rooms are gone, and when they are forgotten.
    pub(crate) ended_matches: Vec<(u64, Id)>,
    /// Due times of tickets, by their places.
    pub(crate) waits: Vec<Wait>,
    /// Rating pools.
    pub(crate) rating_pools: Vec<RatingPool<'a>>,
    /// Reported results.
    pub(crate) reports: Vec<Report<'a>>,
    /// Timers in order of time.
    pub(crate) timers: Vec<Timer<'a>>,
    /// Number of timers that were set.
    pub(crate) timers_set: u64,
    /// Requests that wait for policies.
    pub(crate) policies: Policies<'a>,
}

/// Objects whose place is part of their id, in order of place, and the places between them that
/// new objects take, the last first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Places<T> {
    /// The objects.
    pub(crate) objects: Vec<T>,
    /// Free slots.
    pub(crate) free: Vec<u32>,
}

/// Id of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Id {
    /// Place; the first 8 hex digits of the id, of a ticket's id those after its time.
    pub(crate) place: u32,
    /// The last 16 hex digits, of a ticket's id the last 13.
    pub(crate) nonce: u64,
}

/// A game server, its players and the answers to its request keys. In order of being first seen.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Server<'a> {
    /// `SrvID`.
    pub(crate) name: &'a [u8],
    /// True while it has a session.
    pub(crate) connected: bool,
    /// Time when its roles are given up; 0 while it is connected or never was.
    pub(crate) grace_until: u64,
    /// Roles that live on it.
    #[serde(borrow)]
    pub(crate) players: Vec<Player<'a>>,
    /// Answers to its request keys.
    pub(crate) answers: Vec<Answer<'a>>,
}

/// A role that is in something; the last that came to its server comes first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Player<'a> {
    /// `RoleID`.
    pub(crate) role: &'a [u8],
    /// Place of its team.
    pub(crate) team: Option<u32>,
    /// Place of the live room of an exclusive mode that it is in.
    pub(crate) room: Option<u32>,
    /// Places of the rooms that list it, in order of joining.
    pub(crate) rooms: Vec<u32>,
    /// Places of the rooms that keep a seat for it.
    pub(crate) seats: Vec<u32>,
    /// Places of its live tickets.
    pub(crate) tickets: Vec<u32>,
    /// End of its last cooldown.
    pub(crate) cooldown_until: u64,
}

/// Answer of a request with a key; the oldest first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer<'a> {
    /// Time when it is forgotten.
    pub(crate) until: u64,
    /// The idempotency key.
    pub(crate) key: u128,
    /// Number of the method.
    pub(crate) method: u16,
    /// First 16 bytes of the BLAKE3 hash of the request's body, its fields and entries in order.
    pub(crate) digest: [u8; 16],
    /// Status of the answer.
    pub(crate) status: u16,
    /// Body of the answer.
    pub(crate) body: &'a [u8],
}

/// A match mode, in order of being made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mode<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its rules as JSON, as in the configuration.
    pub(crate) rules: String,
}

/// A team.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Team<'a> {
    /// Its id.
    pub(crate) id: Id,
    /// Its password; empty without one.
    pub(crate) password: &'a [u8],
    /// Most members.
    pub(crate) max_role: u64,
    /// `Data`, as encoded fields of a `TeamInfo`.
    pub(crate) data: &'a [u8],
    /// Members, the longest-standing first.
    #[serde(borrow)]
    pub(crate) members: Vec<Member<'a>>,
    /// Player who leads it.
    pub(crate) leader: u32,
    /// Its revision.
    pub(crate) rev: u64,
    /// Wrong passwords of the last minute.
    pub(crate) wrong_tries: Vec<WrongTries<'a>>,
}

/// A player of a team or room.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Member<'a> {
    /// The player.
    pub(crate) player: u32,
    /// Encoded `RoleInfo`.
    pub(crate) info: &'a [u8],
}

/// Wrong passwords from one server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WrongTries<'a> {
    /// Server that tried.
    pub(crate) server: &'a [u8],
    /// Number of tries.
    pub(crate) count: u32,
    /// Time when they are forgotten.
    pub(crate) until: u64,
}

/// A room.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Room<'a> {
    /// Its id.
    pub(crate) id: Id,
    /// Rooms made later have greater ones.
    pub(crate) number: u64,
    /// Time when it was made.
    pub(crate) created: u64,
    /// Its revision.
    pub(crate) rev: u64,
    /// Its mode.
    pub(crate) mode: u16,
    /// `IsHidden`.
    pub(crate) hidden: bool,
    /// `IsFull`.
    pub(crate) full: bool,
    /// True if `IsFull` was set from outside.
    pub(crate) forced_full: bool,
    /// True if it never accepts anybody again.
    pub(crate) sealed: bool,
    /// `IsDeleting`.
    pub(crate) deleting: bool,
    /// Place among the rooms that random joins choose from.
    pub(crate) open: Option<Open>,
    /// Members in order of joining.
    #[serde(borrow)]
    pub(crate) members: Vec<Member<'a>>,
    /// Reserved seats.
    pub(crate) seats: Vec<Seat<'a>>,
    /// `Data`, as encoded fields of a `RoomInfo`.
    pub(crate) data: &'a [u8],
    /// `Sides`, as encoded fields of a `RoomInfo`.
    pub(crate) sides: &'a [u8],
    /// Server whose role made it.
    pub(crate) creator: Option<u32>,
    /// Match that it is.
    pub(crate) matched: Option<Id>,
    /// Server that gave its match a world; empty for none.
    pub(crate) host: &'a [u8],
    /// Place of its backfill.
    pub(crate) backfill: Option<u32>,
    /// Its last changes, as encoded fields of a `GetRoomHistoryResponse`.
    pub(crate) history: &'a [u8],
}

/// Place of a room among those that random joins choose from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Number of free seats under which it is listed.
    pub(crate) free: u32,
    /// Position there where the mode chooses by chance, else 0.
    pub(crate) at: u32,
}

/// A place in a room that is kept for a player.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Seat<'a> {
    /// The player.
    pub(crate) player: u32,
    /// Time when it expires.
    pub(crate) until: u64,
    /// Place of the ticket that was matched, while it is readable.
    pub(crate) ticket: Option<u32>,
    /// Encoded `RoleInfo`; absent where only the id is known.
    pub(crate) info: Option<&'a [u8]>,
}

/// A queue, in order of being made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Queue<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its rule set as it was given.
    pub(crate) rules: &'a str,
    /// Rule set that the rules file had last for it.
    pub(crate) configured: Option<&'a str>,
    /// Mode of its rooms.
    pub(crate) mode: u16,
    /// Regions that tickets named, in order of appearance.
    #[serde(borrow)]
    pub(crate) regions: Vec<&'a [u8]>,
    /// Places of its backfills.
    pub(crate) backfills: Vec<u32>,
    /// Time of the next tick; 0 for none.
    pub(crate) tick_at: u64,
    /// True in the middle of a tick.
    pub(crate) searching: bool,
    /// Time of the last tick.
    pub(crate) tick_now: u64,
    /// Turns from here on belong to the next tick.
    pub(crate) turns_until: u64,
    /// Steps that unfinished searches have left in this tick.
    pub(crate) steps_left: u64,
    /// Its waiting tickets.
    pub(crate) pool: Pool<'a>,
    /// Times at which they relax or expire.
    pub(crate) due: Due,
    /// Its counters.
    pub(crate) counters: Counters,
    /// Waits that estimates are made of.
    pub(crate) estimates: Estimates,
    /// Round of updates in progress.
    pub(crate) updates: Option<Round>,
    /// True if a round is in progress or due.
    pub(crate) updates_run: bool,
}

/// Partitions of a queue's waiting tickets, and the anchors to search around.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pool<'a> {
    /// Partitions in order of being made.
    #[serde(borrow)]
    pub(crate) partitions: Vec<Partition<'a>>,
    /// Number of partitions that were made.
    pub(crate) partitions_made: u64,
    /// Anchors to try that came in order.
    pub(crate) anchors: Vec<Anchor>,
    /// Anchors to try that came later than their turn.
    pub(crate) late_anchors: Vec<Anchor>,
    /// Anchors whose search continues, by turn.
    pub(crate) unfinished: Vec<(u64, Anchor)>,
    /// Progress of unfinished searches.
    pub(crate) scans: Vec<Scan>,
    /// Next turn to be given.
    pub(crate) next_turn: u64,
}

/// Tickets that may meet, by the texts that they must share.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Partition<'a> {
    /// Its number in the queue.
    pub(crate) number: u64,
    /// The texts.
    #[serde(borrow)]
    pub(crate) key: Vec<&'a [u8]>,
    /// Tickets that came or relaxed.
    pub(crate) arrivals: u64,
}

/// A ticket or backfill in the order of fairness.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Anchor {
    /// 0 for a backfill of high priority, 1, or 2 for a backfill of low priority.
    pub(crate) class: u8,
    /// Minus the priority.
    pub(crate) rank: i8,
    /// Time when it was made.
    pub(crate) created: u64,
    /// True for a backfill.
    pub(crate) backfill: bool,
    /// Place of the ticket or backfill.
    pub(crate) place: u32,
}

/// A search that hit its limit and continues.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scan {
    /// Place of the ticket.
    pub(crate) ticket: u32,
    /// Its turn.
    pub(crate) turn: u64,
    /// Last neighbour below that was looked at: value and place.
    pub(crate) left: (u64, u32),
    /// Last neighbour above that was looked at.
    pub(crate) right: (u64, u32),
    /// Neighbours that the ticket may meet.
    pub(crate) found: Vec<(u64, u32)>,
}

/// Times at which tickets relax or expire.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Due {
    /// Places of tickets by time.
    pub(crate) all: Vec<(u64, Vec<u32>)>,
    /// About how many entries are of tickets that left.
    pub(crate) left: u64,
    /// Last time that was swept.
    pub(crate) seen: u64,
}

/// Entry of a ticket's place among the due ones of a queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wait {
    /// Place of the ticket.
    pub(crate) ticket: u32,
    /// Time of its entry.
    pub(crate) at: u64,
    /// Queue that has the entry; 4294967295 for none.
    pub(crate) queue: u32,
    /// True while a ticket in this place searches.
    pub(crate) searches: bool,
}

/// Counters of a queue since it was made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// Matches made.
    pub(crate) matches: u64,
    /// Tickets that expired.
    pub(crate) timed_out: u64,
    /// Tickets that were cancelled.
    pub(crate) cancelled: u64,
    /// Proposals that were declined.
    pub(crate) declined: u64,
    /// Tickets that could never match.
    pub(crate) failed: u64,
    /// Neighbours looked at.
    pub(crate) scans: u64,
    /// Matches by level.
    pub(crate) expansions: Vec<u64>,
    /// Matches by quality, in twentieths.
    pub(crate) qualities: Vec<u64>,
    /// Matches of the last 5 minutes, by step of 10 s.
    pub(crate) recent: Vec<(u64, u64)>,
}

/// Waits of matched tickets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Estimates {
    /// Counts by kind of ticket.
    pub(crate) kinds: Vec<(Kind, Vec<WaitCount>)>,
    /// Slot in which empty kinds were last dropped.
    pub(crate) swept: u64,
    /// Matched tickets by bucket that are not counted yet.
    pub(crate) noted: Vec<(Kind, Vec<u32>)>,
}

/// Kind of a ticket.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// Number of the region; absent in a coarser kind, as the others.
    pub(crate) region: Option<u16>,
    /// Step of the main number.
    pub(crate) skill: Option<i16>,
    /// Number of players.
    pub(crate) size: Option<u8>,
}

/// Tickets of one slot of time and one bucket of waits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WaitCount {
    /// Slot of 15 s.
    pub(crate) slot: u64,
    /// Bucket of waits.
    pub(crate) bucket: u8,
    /// Number of tickets.
    pub(crate) tickets: u32,
}

/// A round of updates to tickets in progress.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Next place to look at.
    pub(crate) next: u32,
    /// Tickets to notify, by number of their partition.
    pub(crate) left: Vec<(u64, Anchor)>,
    /// A partition, and how many of it still searched.
    pub(crate) passed: (u64, u64),
}

/// A ticket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ticket<'a> {
    /// Its id.
    pub(crate) id: Id,
    /// Its queue.
    pub(crate) queue: u32,
    /// Time when it was made.
    pub(crate) created: u64,
    /// Time when it expires.
    pub(crate) expires: u64,
    /// Its priority.
    pub(crate) priority: i8,
    /// 0 searching, 1 proposed, 2 placing, 3 matched, 4 cancelled, 5 timed out, 6 failed.
    pub(crate) state: u8,
    /// Its revision.
    pub(crate) rev: u64,
    /// Reason of its state.
    pub(crate) reason: &'a [u8],
    /// Team that it was made from.
    pub(crate) team: &'a [u8],
    /// The party.
    #[serde(borrow)]
    pub(crate) players: Vec<TicketPlayer<'a>>,
    /// Values of the party; empty once it has ended.
    pub(crate) facts: Facts<'a>,
    /// Expansion level.
    pub(crate) level: u8,
    /// Place in the pool while it searches and is not held back.
    pub(crate) waits: Option<Waiting>,
    /// Time when one that has ended is forgotten.
    pub(crate) readable_until: u64,
    /// Its match.
    pub(crate) matched: Option<Id>,
    /// Its room.
    pub(crate) room: Option<Id>,
    /// Number of its region.
    pub(crate) region: Option<u16>,
    /// Tickets ahead, as last counted.
    pub(crate) position: u64,
    /// Number of its matches that a policy refused or that got no server.
    pub(crate) refusals: u8,
}

/// A player of a ticket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TicketPlayer<'a> {
    /// The player, while the ticket is live.
    pub(crate) player: Option<u32>,
    /// Encoded `Player`.
    pub(crate) body: &'a [u8],
}

/// Place of a searching ticket in its pool.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// Number of the partition.
    pub(crate) partition: u64,
    /// The main number, as bits in the order of numbers.
    pub(crate) value: u64,
    /// True if a search around it found nothing and nothing near has changed.
    pub(crate) idle: bool,
    /// True if that search hit its limit.
    pub(crate) cut: bool,
}

/// Values of a party as its queue's rules saw them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts<'a> {
    /// Players.
    #[serde(borrow)]
    pub(crate) players: Vec<PlayerFacts<'a>>,
    /// True if a player avoids another one.
    pub(crate) avoids: bool,
    /// Number of players.
    pub(crate) size: u32,
    /// The party's numbers by key of the queue; NaN without one.
    pub(crate) values: Vec<f64>,
    /// Latencies by region of the queue.
    pub(crate) pings: Vec<Ping>,
    /// Region of least latency.
    pub(crate) home: Option<u8>,
}

/// Values of a player.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PlayerFacts<'a> {
    /// Values by key of the queue.
    #[serde(borrow)]
    pub(crate) attributes: Vec<Attribute<'a>>,
    /// Positions, the best first.
    pub(crate) wants: Vec<u8>,
    /// FNV-1a hash of the `RoleID`.
    pub(crate) role: u64,
    /// Hashes of roles to avoid.
    pub(crate) avoid: Vec<u64>,
}

/// A value.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Attribute<'a> {
    Absent,
    Number(f64),
    Text(&'a [u8]),
    #[serde(borrow)]
    List(Vec<&'a [u8]>),
}

/// Latencies of a party to a region, in ms.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ping {
    /// Least.
    pub(crate) best: f32,
    /// Greatest.
    pub(crate) worst: f32,
    /// Sum.
    pub(crate) sum: f32,
}

/// A match.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Match<'a> {
    /// Its id.
    pub(crate) id: Id,
    /// Its queue.
    pub(crate) queue: u32,
    /// 0 proposed, 1 waits for its server, 2 made.
    pub(crate) stage: u8,
    /// Places of tickets by side, until it is made.
    pub(crate) sides: Vec<Vec<u32>>,
    /// Number of its region.
    pub(crate) region: Option<u16>,
    /// Its quality, 0 to 1.
    pub(crate) quality: f64,
    /// Expansion level that it needed.
    pub(crate) level: u8,
    /// Place of the backfill that it fills.
    pub(crate) backfill: Option<u32>,
    /// Its room.
    pub(crate) room: Option<Id>,
    /// Time by which players or the allocator answer.
    pub(crate) deadline: u64,
    /// Players who accepted.
    pub(crate) accepted: Vec<u32>,
    /// Players and the numbers of their positions.
    pub(crate) positions: Vec<(u32, u8)>,
    /// Hashes of roles and names of their positions.
    #[serde(borrow)]
    pub(crate) cast: Vec<(u64, &'a [u8])>,
    /// Entries that `overlap` rules found, as encoded fields of the ready event.
    pub(crate) shared: &'a [u8],
    /// Hashes of the roles that a result may name; none if it was not rated.
    pub(crate) roster: Vec<u64>,
}

/// A backfill.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Backfill<'a> {
    /// Its id.
    pub(crate) id: Id,
    /// Its queue.
    pub(crate) queue: u32,
    /// Its room.
    pub(crate) room: Id,
    /// Server that asked.
    pub(crate) owner: u32,
    /// Its revision.
    pub(crate) rev: u64,
    /// Free seats by side.
    pub(crate) open: Vec<u32>,
    /// Attributes that members are taken to have.
    #[serde(borrow)]
    pub(crate) attributes: Vec<(&'a [u8], &'a [u8])>,
    /// Time when it was made.
    pub(crate) created: u64,
    /// Time when it ends without a sign of life.
    pub(crate) ack_until: u64,
    /// Values of the members by side.
    pub(crate) members: Vec<Facts<'a>>,
    /// Its main number.
    pub(crate) value: f64,
    /// Number of its region.
    pub(crate) region: Option<u16>,
    /// Class of its anchor.
    pub(crate) class: u8,
    /// Number of its partition.
    pub(crate) partition: u64,
    /// Arrivals in the partition when it last found nothing.
    pub(crate) seen: Option<u64>,
    /// Place of a match whose players are asked.
    pub(crate) pending: Option<u32>,
}

/// A rating pool.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RatingPool<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// 0 Weng-Lin, 1 Glicko-2.
    pub(crate) system: u8,
    /// Roles with their ratings and numbers of games.
    #[serde(borrow)]
    pub(crate) players: Vec<(&'a [u8], Rating, u64)>,
    /// Games of the current period: match or room, two roles, the first's score.
    pub(crate) games: Vec<(Id, &'a [u8], &'a [u8], f64)>,
    /// Length of a period, in ms.
    pub(crate) period_ms: u64,
    /// End of the current period; 0 for none.
    pub(crate) period_ends: u64,
}

/// A rating.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Rating {
    WengLin { mu: f64, sigma: f64 },
    Glicko2 { rating: f64, deviation: f64, volatility: f64 },
}

/// Result of a match or room that was reported; the oldest first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report<'a> {
    /// Match or room.
    pub(crate) about: Id,
    /// Rating pool.
    pub(crate) pool: &'a str,
    /// BLAKE3 hash of the report.
    pub(crate) digest: [u8; 32],
    /// Roles with the ratings before and after, and the number of games; 0 for one who is in an
    /// earlier report only.
    #[serde(borrow)]
    pub(crate) changes: Vec<(&'a [u8], Rating, Rating, u64)>,
    /// Answer of one that was amended; empty where the changes are the answer.
    pub(crate) answer: &'a [u8],
}

/// A timer: its time, its number in the order of being set, and its action.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Timer<'a> {
    /// Its time.
    pub(crate) at: u64,
    /// Its number.
    pub(crate) number: u64,
    /// Its action.
    #[serde(borrow)]
    pub(crate) action: Action<'a>,
}

/// Action of a timer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Action<'a> {
    Nothing,
    RoomEnd(Id),
    Seats(Id),
    Grace(u32),
    Tick(u32),
    Proposal(Id),
    Assign(Id),
    Backfill(Id),
    Updates(u32),
    Period(&'a [u8]),
    Cooldown(u32),
    Policy(u64),
}

/// Requests that wait for policies.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Policies<'a> {
    /// Last number of a question or waiting request.
    pub(crate) last: u64,
    /// Requests to policies without a verdict yet.
    #[serde(borrow)]
    pub(crate) questions: Vec<PendingRequest<'a>>,
    /// Rooms about which a question is out, and the requests behind it.
    pub(crate) held: Vec<(Id, Vec<Kept<'a>>)>,
}

/// A question that is out.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PendingRequest<'a> {
    /// Its number.
    pub(crate) number: u64,
    /// 0 OnCreate, 1 OnAddingRoles, 2 OnAddedRoles, 3 OnDeletingRole, 4 OnDestroy.
    pub(crate) point: u8,
    /// Room; absent for one that is yet to be made.
    pub(crate) room: Option<Id>,
    /// The request or match that waits for it.
    #[serde(borrow)]
    pub(crate) waiter: Waiter<'a>,
}

/// A request or match that waits for a verdict.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Waiter<'a> {
    #[serde(borrow)]
    Request(Kept<'a>),
    Match(Id),
}

/// A request that waits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept<'a> {
    /// Its number.
    pub(crate) number: u64,
    /// Time when it is too late.
    pub(crate) until: u64,
    /// Server of the caller.
    pub(crate) server: &'a str,
    /// 0 server, 1 trusted, 2 admin.
    pub(crate) scope: u8,
    /// Number of the method.
    pub(crate) method: u16,
    /// Body of the request.
    pub(crate) body: &'a [u8],
    /// Verdicts so far.
    pub(crate) verdicts: Vec<Verdict>,
    /// Numbers of its retries, which get the same answer.
    pub(crate) retries: Vec<u64>,
}

/// A verdict that a waiting request has had.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// As in `PendingRequest`.
    pub(crate) point: u8,
    /// Room; absent for one that is yet to be made.
    pub(crate) room: Option<Id>,
    /// Encoded `PolicyVerdict`.
    pub(crate) body: Vec<u8>,
}
