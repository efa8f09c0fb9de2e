//! Deterministic simulation of the gateway: production shards under a virtual clock, virtual links
//! and seeded scheduling, with checkers of the product's guarantees.
//!
//! - [`run`] plays one seed: many peers perform random operations under [faults](FaultKind); then
//!   all faults are healed, and the final state must be correct. The same seed gives the same run
//!   on every machine.
//! - [`World`] is the process and its network: shards, the mail between them, and a link to every
//!   peer.
//! - [`check`] compares the gateway's guarantees with the observations of every peer.
//!
//! # The two phases
//!
//! ```text
//! 0                          2.5 s              4.5 s             6.5 s
//! | faults, random operations | healed, returning | last words, then silence |
//! |   nothing wrong may happen ------------------------------------------->  |
//! |                           |                   everything good must happen|
//! ```
//! # Checked guarantees
//!
//! | Guarantee | Check |
//! |---|---|
//! | no update twice, lost or reordered | every item of a list is written once; a subscriber's items are a run of the channel's order, from its first full state on, without its own ones if it skips them |
//! | subscribers converge | at the end all subscribers have all items, and merging the received updates gives the channel's map; removed entries do not reappear |
//! | nothing after a confirmed unsubscribe | an update or broadcast without a subscription is an error at once |
//! | user-space messages arrive once and in order | numbered per sender; the last words must arrive |
//! | ownership is consistent | one owner per channel, GLOBAL can be claimed again, a connection id belongs to one peer |
//! | queues are bounded | the largest outbox, in bytes |
//! | a slow or hostile peer harms nobody | healthy peers never lose their connection nor get a full state twice, and get every update within their interval, a tick and the delays of the links |
//!
//! The order of a channel is defined by its *observer*, a server with a perfect link that receives
//! every update at every tick. The observer is checked against the counters of the writers.

#![forbid(unsafe_code)]

pub mod check;
mod crowd;
pub mod data;
mod fault;
mod kcp_link;
pub mod link;
pub mod population;
pub mod quality;
mod run;
mod spatial;
mod world;

pub use check::Violation;
pub use crowd::{CROWD_BALANCE, CrowdOutcome, Motion, run_crowd};
pub use fault::{Fault, FaultKind};
pub use run::{RunReport, run};
pub use spatial::{SpatialOutcome, run_mixed, run_spatial};
pub use world::{Carrier, ClosedByGateway, Conditions, Leave, Note, PeerId, UNIX_START_NS, World};
