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
    /// Tickets that have ended and can still be read.
    pub ended_tickets: usize,
    /// Matches: proposed, in play, and those whose result can still be reported.
    pub matches: usize,
    /// Backfills.
    pub backfills: usize,
}

/// Sizes of a match mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeCounts {
    /// Its name.
    pub name: String,
    /// Rooms, lingering ones included.
    pub rooms: u64,
    /// Members of them.
    pub members: u64,
    /// Places that are kept for roles.
    pub seats: u64,
    /// Teams of members, once for each room.
    pub teams: u64,
}

impl ModeCounts {
    /// Stands for all modes that nobody has configured: `NvM` makes too many.
    pub const OTHERS: &str = "(others)";

    /// Nothing yet.
    #[must_use]
    pub fn new(name: &str) -> ModeCounts {
        ModeCounts { name: name.to_owned(), rooms: 0, members: 0, seats: 0, teams: 0 }
    }

    /// The sum, whatever the names.
    pub fn add(&mut self, other: &ModeCounts) {
        self.rooms += other.rooms;
        self.members += other.members;
        self.seats += other.seats;
        self.teams += other.teams;
    }
}

/// Counters of a queue since the start of the process, for an exporter.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueReport {
    /// Its name.
    pub name: String,
    /// Tickets that search.
    pub searching: u64,
    /// Backfills that ask for players.
    pub backfills: usize,
    /// Matches found; with the three below since the queue was made, restarts included.
    pub matches: u64,
    /// Matches that needed a relaxed rule.
    pub relaxed: u64,
    /// Matches by the step of the rules' expansion that they needed, the strict rules first.
    pub expansions: Vec<u64>,
    /// Tickets that waited too long.
    pub timed_out: u64,
    /// Tickets given up by their owners.
    pub cancelled: u64,
    /// Proposals that somebody declined.
    pub declined: u64,
    /// Tickets that can never match any more, by changed rules or a lost member.
    pub failed: u64,
    /// Neighbours looked at.
    pub scans: u64,
    /// Tickets whose players are asked whether they accept.
    pub proposed: u64,
    /// Tickets whose match waits for its server.
    pub placing: u64,
    /// Qualities of its matches, 0 to 1.
    pub qualities: Histogram,
    /// Waits of matched tickets, in s.
    pub waits: Histogram,
    /// Time that whole ticks took, in s, as the driver measured it.
    pub ticks: Histogram,
}

/// Observations by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

/// Waits from a tenth of a second to a quarter of an hour.
pub(crate) const WAIT_BOUNDS_S: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];
/// Qualities of matches: most are good ones.
pub(crate) const QUALITY_BOUNDS: &[f64] = &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0];
/// Ticks from 10 us to 5 s.
pub(crate) const TICK_BOUNDS_S: &[f64] =
    &[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

impl Histogram {
    /// Nothing observed yet. `bounds` are the upper bounds of the buckets, rising.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts an observation.
    pub fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// Upper bounds of the buckets, rising; the last bucket has none.
    #[must_use]
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// Observations per bucket, one more than there are bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Sum of all observations.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Quantile of the observations, interpolated within its bucket; `None` without any.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let total: u64 = self.counts.iter().sum();
        let wanted = total as f64 * part;
        let mut below = 0.0;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if below + *count as f64 >= wanted {
                let low = bucket.checked_sub(1).map_or(0.0, |under| self.bounds[under]);
                let high = self.bounds.get(bucket).copied().unwrap_or(low);
                return Some(low + (high - low) * ((wanted - below) / *count as f64).clamp(0.0, 1.0));
            }
            below += *count as f64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_within_their_buckets() {
        let mut ticks = Histogram::new(TICK_BOUNDS_S);
        assert_eq!(ticks.quantile(0.5), None);
        (0..90).for_each(|_| ticks.observe(0.0015));
        (0..10).for_each(|_| ticks.observe(7.0));
        assert_eq!(ticks.counts().iter().sum::<u64>(), 100);
        assert!((0.001..=0.002).contains(&ticks.quantile(0.5).unwrap()));
        assert_eq!(ticks.quantile(0.99), Some(5.0), "beyond the last bound there is only that");
        assert!((ticks.sum() - 70.135).abs() < 1e-9);
    }
}
