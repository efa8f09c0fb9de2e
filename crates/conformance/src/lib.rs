//! Conversations recorded at the reference gateway, and the code that checks a gateway against
//! them.
//!
//! [`scenarios`] reads `fixtures/gateway/transcripts.json`. [`Scenario::play`] plays one on a
//! [`Stage`], that is on a gateway with connections to it, and returns what was different: order,
//! recipients, stub ids, decoded bodies. Where Throng does something else on purpose,
//! [`DEVIATIONS`] says what and why.
//!
//! There are two stages: the simulator's (`crates/sim/tests/it/conformance`) has exact time and
//! faulty links, the server's (`crates/server/tests/it/conformance`) has real sockets.

mod deviations;
mod transcript;

pub use deviations::DEVIATIONS;
pub use transcript::{Deviation, Inbox, Message, Scenario, Stage, fixture, read, scenarios};
