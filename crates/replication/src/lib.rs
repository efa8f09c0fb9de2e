//! State replication: an authoritative server brings the replicas of its clients up to date, within a byte budget each.
//!
//! Everything that does not depend on the connection is done once a frame: values are quantised, compared and written
//! as records. A connection then selects what it may see and copies records.
//!
//! `docs/replication.md` describes the wire format.

#![forbid(unsafe_code)]

mod attach;
mod bitmap;
pub mod bits;
mod class;
mod client;
mod connection;
mod frames;
mod grid;
mod handle;
mod objects;
mod pairs;
mod priority;
mod quantise;
mod sent;
mod server;
pub mod wire;

pub use attach::{AttachError, Attachment};
pub use class::{
    Class, ClassBuilder, ClassError, ClassId, Classes, Condition, PROPERTIES_MAX, Property, Role,
};
pub use client::{Client, ClientConfig, ClientEvent, Received, Replica};
pub use grid::GridConfig;
pub use handle::Handle;
pub use priority::{CustomPrioritiser, FieldOfView, Prioritiser, Sphere, View};
pub use quantise::{Axis, Codec, Quantiser, QuantiserError, Value, ValueMismatch, WORDS_MAX};
pub use server::{
    ConnId, ConnectionStats, DestroyReason, Event, FRAME_INTERVAL, Filter, GroupKind, Lane, ObjectError,
    Packets, PrioritiserId, Server, ServerConfig, ServerStats, properties_of,
};
