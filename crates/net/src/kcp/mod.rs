//! The KCP reliable protocol as a state machine without sockets or clock.

mod profile;

pub use profile::Profile;
