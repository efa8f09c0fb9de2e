//! The gateway core: connections, channels, data and fan-out as single-threaded state machines
//! without I/O.
//!
//! A process runs n [`Shard`]s. Each owns some connections (it handles their bytes) and some
//! channels (`id % n`); shards exchange [`Mail`]. Shard 0 also owns everything that exists once:
//! the GLOBAL channel, connection and channel ids, bans, authentication, the list of channels. With
//! one shard there is no mail.
//!
//! # Driving a shard
//!
//! Give one input, then poll the outputs until each returns `None`, then give the next input. `now`
//! never goes back.
//!
//! | input | output |
//! |---|---|
//! | [`Shard::accept`] (shard 0) | [`Shard::poll_mail`]: hand each to its shard; one first-in-first-out queue per shard |
//! | [`Shard::handle_bytes`], [`Shard::handle_closed`], [`Shard::handle_written`] | [`Shard::poll_effect`]: close sockets, ask the provider, append recordings |
//! | [`Shard::handle_mail`], [`Shard::handle_verdict`] | [`Shard::poll_writable`]: connections with something to write |
//! | [`Shard::handle_timeout`] when [`Shard::next_timeout`] is due | |
//!
//! Mail must be handed over in the order in which it was polled, one queue per receiving shard, so
//! that the mail of one shard to two others cannot be overtaken by the mail between those two. A
//! socket is given to its shard after the mail of the `accept` that announced it.
//!
//! Writing: [`Shard::outbox`] returns the bytes, and [`Shard::handle_written`] takes the number
//! that the transport accepted (also zero, so that a stalled peer is noticed).
//!
//! # Invariants
//!
//! - No input of a peer can make a shard panic, loop or grow without bound; a refused request is
//!   counted under one [`Refusal`], a closed connection under one [`CloseReason`].
//! - Every update of a channel's data reaches every subscriber with access exactly once and in
//!   order, or is contained in a full state that is sent instead.
//! - A peer that does not read never delays another.
//! - Idle connections and idle channels have no timer and cost nothing.

#![forbid(unsafe_code)]

mod auth;
mod ban;
mod channel;
mod config;
mod connection;
mod effect;
pub mod failpoint;
mod fanout;
mod findings;
mod fsm;
mod heal;
mod ids;
mod inspect;
mod mail;
mod matchmaking;
mod outbox;
mod permission;
mod reason;
mod record;
mod recovery;
mod registry;
mod requests;
mod settings;
mod shard;
mod stats;
mod switchboard;
mod user_space;
mod view;
mod why;
mod world;

pub mod data;

pub use config::{Abuse, AddressRange, Config, Limits, OutboxBounds, Recovery};
pub use effect::{
    Accepted, Closed, Effect, PlayerNews, Redacted, SecurityEvent, SecurityEventKind, Verdict, WorldChoice,
};
pub use fanout::CohortView;
pub use findings::Broken;
pub use fsm::{STATES_MAX, StateMachine, StateMachineError};
pub use ids::{AuthTicket, ChannelId, ConnHandle, ConnId, ConnKind, ShardIndex, address_group};
pub use inspect::{CLOSURES_MAX, CellView, ChannelDetail, InterestView, SubscriptionView, WorldDetail};
pub use mail::Mail;
pub use matchmaking::MATCHMAKING;
pub use outbox::{Backlog, Framing, Outbox, SharedFrame};
pub use permission::{Authority, KindPermissions, Permissions, TypeRule};
pub use reason::{AcceptRefusal, CloseReason, Refusal, close_code};
pub use settings::{AccessLevel, ChannelSettings, ChannelType, SettingsError, TypeSettings};
pub use shard::{Due, Moved, Shard};
pub use stats::{KindStats, Stats};
pub use view::{ChannelView, ClosureView, ConnectionView, EntityView, WorldServerView, WorldView};
pub use why::{Delivery, LagView, QueueView, Reach, Sight};
pub use world::{Balance, DampingStep, Lod, LodBand, PositionPath, Spatial, parse_controller};

/// The grid's types, as [`Spatial`] takes them.
pub use throng_spatial as spatial;
