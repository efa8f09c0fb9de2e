//! The lease of an area: one process serves it, and the others wait.
//!
//! The *directory* is a set of records, each with a revision, in which every write is a
//! compare-and-set on the revision that the writer has read. [`Lease`] is a state machine over the
//! record of one area: it requests reads and writes, and decides whether this process may serve
//! now.
//!
//! # Driving it
//!
//! After each input, drain [`Lease::poll_request`] and [`Lease::poll_event`] until `None`.
//!
//! - [`Lease::handle_timeout`]: time has passed; [`Lease::next_timeout`] returns when it is next
//!   due.
//! - [`Lease::handle_read`], [`Lease::handle_write`]: the response to the request in flight. There
//!   is at most one.
//!
//! The process calls [`Lease::is_serving`] before every round of work. `now` includes suspended
//! time and never goes back.
//!
//! # Times
//!
//! They are constants, because other ratios broke guarantees in the model. A holder renews every
//! second and stops serving 11 s after it *sent* its last successful renewal. Other processes mark
//! a record as lost if it has not changed for 15 s by their own clock. An observer can see a
//! revision only after it was sent, so the holder's clock has counted at least as long and the
//! holder stops first, unless one clock runs 36% faster than the other.
#![forbid(unsafe_code)]

mod cas;
mod defect;
mod directory;
mod lease;
mod name;
mod node;
mod record;
mod times;

#[doc(hidden)]
pub use defect::Defect;
pub use lease::{Event as LeaseEvent, Lease, Request, Written};
pub use name::{Key, Name};
pub use node::{
    Action, Answer, ArrivalId, Ask, Class, EndReason, Event, Failure, Node, Outcome, Refusal, RequestId,
    Setup, Stats,
};
pub use record::{
    Address, ClusterRecord, DrainRecord, Home, Identity, NodeRecord, NodeState, RECORD_BYTES_MAX, Record,
    State, Takeover, WorldRecord, WorldState,
};
pub use times::{FREEZE, LOSS};
