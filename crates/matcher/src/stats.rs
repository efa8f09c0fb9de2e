//! Counters of the matcher; the server exports them.

/// Counts since the start of the process; never part of the state.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Rooms made.
    pub rooms_created: u64,
    /// Rooms destroyed.
    pub rooms_destroyed: u64,
    /// Roles that became members of rooms.
    pub roles_joined: u64,
    /// Requests that were answered from their key.
    pub replayed_answers: u64,
    /// Questions to policies.
    pub policy_questions: u64,
    /// Questions without a verdict in time.
    pub policy_failures: u64,
}

/// Objects that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rooms, lingering ones included.
    pub rooms: usize,
    /// Teams.
    pub teams: usize,
    /// Roles in any of them.
    pub players: usize,
    /// Servers with a session or roles.
    pub servers: usize,
    /// Live tickets.
    pub tickets: usize,
    /// Matches: proposed, in play, and those whose result can still be reported.
    pub matches: usize,
    /// Backfills.
    pub backfills: usize,
}
