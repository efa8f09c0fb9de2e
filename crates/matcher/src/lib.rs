//! The matcher: teams, rooms and tickets of players.
//!
//! *Teams* form before a match, *rooms* gather or hold one, *tickets* wait in *queues* until a
//! declared rule set finds a match among them, which becomes a room with reserved *seats*. All of
//! it is one state machine, [`Matcher`].
//! # Driving contract
//!
//! Every input carries the [wall time](WallMs) and may have two kinds of output: the answer of a
//! request, appended to the caller's buffer, and [`Notices`] for game servers, which the caller
//! drains after each input or batch.
//!
//! - [`Matcher::handle`]: a request. Bodies are those of [`throng_wire::matcher`].
//! - [`Matcher::handle_session`]: a server's session began or was lost.
//! - [`Matcher::handle_timeout`]: a timer is due, at the time of [`Matcher::next_timeout`].
//! - [`Matcher::handle_verdict`]: a policy answered a request of [`Matcher::poll_question`].
//!   Requests that waited for it are answered by [`Matcher::poll_answered`]. Without modes that
//!   name a policy, both return nothing.
//!
//! ```
//! use throng_matcher::{Caller, Config, Handled, Matcher, Notices, Scope, WallMs};
//! use throng_wire::matcher::{Method, Reader, Status, Writer};
//!
//! let mut matcher = Matcher::new(Config::default(), [7; 32], WallMs(1_700_000_000_000));
//! let (mut answer, mut notices) = (Vec::new(), Notices::default());
//! let body = Writer::new()
//!     .nested(1, Writer::new().str(1, "ann"))
//!     .nested(2, Writer::new().str(1, "1v1"))
//!     .into_bytes();
//! let caller = Caller { srv: "game_1_1", scope: Scope::Server };
//! let status =
//!     matcher.handle(WallMs(1_700_000_000_001), caller, Method::ROLE_JOIN_RANDOM_ROOM, &body, &mut answer, &mut notices);
//! assert_eq!(status, Handled::Done(Status::Ok));
//! let room = Reader::new(&answer)?.nested(1)?;
//! assert_eq!((room.str(3)?, room.u64(12)), ("1v1", 1));
//! assert_eq!(notices.len(), 1, "ann's server hears that she joined");
//! # Ok::<(), throng_wire::WireError>(())
//! ```
//!
//! # Determinism
//!
//! The state is a function of configuration, secret and inputs. A log of inputs replayed gives the
//! identical state ([`Matcher::digest`]), which is how the matcher recovers from a crash. Nothing
//! depends on the order of a hash table, on the process or on the machine. Deadlines are wall
//! times, so they outlive a restart.
//!
//! # Cost
//!
//! A request costs at most O(log n) of the rooms in its mode; the cost of a listing is proportional
//! to its length. Objects live in slabs and are found by the index in their id; names of roles and
//! servers are interned. Role infos and data are kept as received bytes, so that encoding a room is
//! copying. A search for matches is cut into slices of a bounded number of steps.
#![forbid(unsafe_code)]

mod backfill;
mod canonical;
mod config;
mod crc32c;
mod dispatch;
mod drive;
mod explain;
mod history;
mod id;
mod info;
pub mod json;
mod key;
mod keys;
mod listing;
mod matcher;
mod matches;
mod notices;
mod outputs;
mod people;
#[cfg(test)]
mod permuted_tests;
mod placing;
mod policy;
mod problem;
mod queue;
mod queue_service;
mod rating;
pub mod record;
mod room;
mod room_service;
mod schema;
mod seats;
mod sides;
mod slab;
mod stats;
mod team;
mod ticket;
mod ticks;
mod timers;
mod transfer;
mod trial;
mod turn;
mod updates;
mod wall;

pub use config::{Caller, Config, HookPoint, Limit, ModeRules, OnFull, Scope, Select, Snapshot};
pub use matcher::{Matcher, RULES, check_server_name};
pub use notices::{Notice, Notices, ServerNumber};
pub use policy::{Answered, Handled, PolicyRequest, Verdict};
pub use queue::ruleset::MatchWorld;
pub use queue::{QueueRules, RuleProblem};
pub use schema::{BadSnapshot, SnapshotHead};
pub use stats::{Counts, Histogram, ModeCounts, QueueReport, Stats};
pub use transfer::ImportError;
pub use trial::Trial;
pub use wall::WallMs;
