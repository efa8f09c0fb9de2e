//! State replication: an authoritative server brings the replicas of its clients up to date, within a byte budget each.
//!
//! Everything that does not depend on the connection is done once a frame: values are quantised, compared and written
//! as records. A connection then selects what it may see and copies records.
//!
//! `docs/replication.md` describes the wire format.

#![forbid(unsafe_code)]

pub mod bits;
mod class;
mod handle;
mod quantise;
pub mod wire;

pub use class::{Class, ClassBuilder, ClassError, ClassId, Classes, Condition, PROPERTIES_MAX, Property, Role};
pub use handle::Handle;
pub use quantise::{Axis, Codec, Quantiser, QuantiserError, Value, ValueMismatch, WORDS_MAX};
