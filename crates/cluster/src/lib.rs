//! The lease of an area: one process serves it, and the others wait.
//!
//! The *directory* is a set of records, each with a revision, in which every write is a
//! compare-and-set on the revision that the writer has seen. [`Lease`] is a state machine over the
//! one record of an area: it says what to read and write, and whether this process may serve now.
//!
//! # Driving it
//!
//! After each input, drain [`Lease::poll_request`] and [`Lease::poll_event`] until `None`.
//!
//! - [`Lease::handle_timeout`]: time has passed; [`Lease::next_timeout`] says when there is work.
//! - [`Lease::handle_read`], [`Lease::handle_write`]: the answer to the request under way. There is
//!   one at a time.
//!
//! [`Lease::is_serving`] is asked before every round of work. `now` counts suspended time too, and
//! never goes back.
//!
//! # Times
//!
//! They are constants, as other ratios broke promises in the model: a holder renews every second
//! and stops serving 11 s after it *sent* its last successful renewal; others mark a record lost
//! that has stood unchanged for 15 s by their own clock. An observer saw the last revision after it
//! was sent, so the holder has counted for at least as long: it stops first unless one clock runs
//! 36% faster than the other.
#![forbid(unsafe_code)]

mod lease;
mod record;

pub use lease::{Event, LOSS, Lease, Request, Written};
pub use record::{Identity, Record, State, Takeover};
