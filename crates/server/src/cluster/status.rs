//! State of a node for health checks and metrics.

use std::borrow::Cow;
use std::time::Duration;

use throng_admin::{Family, FamilyKind, Part, Sample, SampleValue};
use throng_cluster::{FREEZE, Stats};
use throng_stdx::Instant;

use crate::metrics::{family, gauge, labelled, plain};

/// Upper bounds of the durations, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0, 5.0, 15.0, 30.0];
/// States in the order of their numbers.
const NODE_STATES: [&str; 4] = ["up", "draining", "left", "lost"];
const WORLD_STATES: [&str; 4] = ["assigned", "serving", "closing", "closed"];

/// Durations by length.
#[derive(Clone, Debug, Default)]
pub(super) struct Durations {
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Durations {
    pub(super) fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let index = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[index] += 1;
        self.sum += duration;
    }

    fn family(&self, name: &'static str, help: &'static str) -> Family {
        let value = SampleValue::Histogram {
            bounds: Cow::Borrowed(&BOUNDS),
            counts: self.counts.to_vec(),
            sum: self.sum.as_secs_f64(),
        };
        family(name, help, FamilyKind::Histogram, vec![Sample { labels: Vec::new(), value }])
    }
}

/// State of a node. The driver writes it after every input.
#[derive(Clone, Debug, Default)]
pub(super) struct Status {
    pub(super) is_connected: bool,
    /// Time of the last change of the connection.
    pub(super) connection_since: Instant,
    pub(super) reconnects: u64,
    /// Everything was read, at this time; `None` within a gap.
    pub(super) synced_since: Option<Instant>,
    /// The latest request that the directory did not answer.
    pub(super) problem: Option<String>,
    /// Replicas that are missing, out of all.
    pub(super) replicas: (usize, usize),
    pub(super) lease_until: Option<Instant>,
    /// Begin of the present standstill, and the sum of those before.
    pub(super) frozen_since: Option<Instant>,
    pub(super) frozen: Duration,
    pub(super) is_draining: bool,
    /// The node's addresses cannot be reached by other machines.
    pub(super) unreachable: Option<String>,
    pub(super) nodes: [usize; 4],
    pub(super) worlds: [usize; 4],
    /// Open worlds of the cluster that no live node serves.
    pub(super) homeless: usize,
    /// Worlds of this node, and those of them that are served.
    pub(super) here: usize,
    pub(super) served: usize,
    pub(super) arrivals: usize,
    pub(super) stats: Stats,
    /// Times of writes to the directory.
    pub(super) writes: Durations,
    /// Times until a wanted world was served.
    pub(super) assigned: Durations,
}

impl Status {
    /// Parts of the readiness report.
    pub(super) fn health(&self, now: Instant, patience: Duration) -> Vec<Part> {
        let part = |name: &str, ok, detail: String| Part { name: format!("cluster.{name}"), ok, detail };
        let since = |at: Instant| format!("for {} s", now.since(at).as_secs());
        let bus = match self.is_connected {
            true => format!("connected {}", since(self.connection_since)),
            false => format!("not connected {}", since(self.connection_since)),
        };
        let (missing, wanted) = self.replicas;
        let mut directory = match self.synced_since {
            Some(at) => format!("read {}", since(at)),
            None => "being read".to_owned(),
        };
        if missing > 0 {
            directory.push_str(&format!("; {missing} of {wanted} replicas are missing"));
        }
        if let Some(problem) = &self.problem {
            directory.push_str(&format!("; the latest request failed: {problem}"));
        }
        let frozen_for = self.frozen_since.map(|at| now.since(at));
        let holds = frozen_for.is_none_or(|time| time <= patience) && !self.is_draining;
        let lease = match (frozen_for, self.is_draining) {
            (Some(time), _) => format!("run out {} s ago: the worlds stand still", time.as_secs()),
            (None, true) => "held; the node drains".to_owned(),
            (None, false) => "held".to_owned(),
        };
        let worlds = format!("{} here, {} of them served", self.here, self.served);
        // The loss of one NATS server interrupts the connections, or the election of its successor
        // the watches, of all nodes at once. A node that serves its worlds stays where players find
        // it.
        let serves = self.lease_until.is_some_and(|until| now < until);
        let mut parts = vec![
            part("bus", self.is_connected || serves, bus),
            part("directory", self.synced_since.is_some() || serves, directory),
            part("lease", holds, lease),
            part("worlds", true, worlds),
        ];
        parts.extend(self.unreachable.clone().map(|why| part("addresses", false, why)));
        parts
    }

    /// Metrics of the node.
    pub(super) fn families(&self, now: Instant) -> Vec<Family> {
        let stats = &self.stats;
        let count =
            |name, help, number: u64| family(name, help, FamilyKind::Counter, vec![plain(number as f64)]);
        let states = |name, help, states: [&'static str; 4], counts: [usize; 4]| {
            let rows =
                states.iter().zip(counts).map(|(state, count)| labelled("state", *state, count as f64));
            family(name, help, FamilyKind::Gauge, rows.collect())
        };
        let age = self.lease_until.map_or(0.0, |until| (now + FREEZE).since(until).as_secs_f64());
        let frozen = self.frozen + self.frozen_since.map_or(Duration::ZERO, |since| now.since(since));
        let renewals = [("applied", stats.renewals), ("refused", stats.refused), ("unknown", stats.unknown)];
        let renewals = renewals.map(|(result, number)| labelled("result", result, number as f64)).to_vec();
        vec![
            states("throng_cluster_nodes", "Nodes of the cluster, by state.", NODE_STATES, self.nodes),
            states("throng_cluster_worlds", "Worlds of the cluster, by state.", WORLD_STATES, self.worlds),
            gauge(
                "throng_cluster_worlds_without_home",
                "Open worlds of the cluster that no live node serves.",
                self.homeless as f64,
            ),
            gauge(
                "throng_cluster_replicas_missing",
                "Replicas of the directory that are not up to date.",
                self.replicas.0 as f64,
            ),
            gauge(
                "throng_cluster_lease_age_seconds",
                "Time since the latest successful renewal was sent.",
                age,
            ),
            gauge(
                "throng_cluster_frozen",
                "1 while the lease has run out and the worlds stand still.",
                f64::from(u8::from(self.frozen_since.is_some())),
            ),
            family(
                "throng_cluster_frozen_seconds",
                "Time for which the worlds stood still.",
                FamilyKind::Counter,
                vec![plain(frozen.as_secs_f64())],
            ),
            family(
                "throng_cluster_renewals",
                "Renewals that were applied, and requests to the directory that were refused or not answered.",
                FamilyKind::Counter,
                renewals,
            ),
            self.writes.family("throng_cluster_directory_write_seconds", "Time of a write to the directory."),
            count("throng_cluster_watch_gaps", "Times at which the directory was read again.", stats.gaps),
            count("throng_cluster_marks", "Nodes that this one marked as lost.", stats.marks),
            count("throng_cluster_claims", "Worlds of lost nodes that this one assigned.", stats.claims),
            self.assigned.family(
                "throng_cluster_assigned_seconds",
                "Time from the wish for a world on this node until a node serves it.",
            ),
            count("throng_cluster_deposed", "Times at which this node was marked as lost.", stats.deposed),
            count(
                "throng_cluster_conflicts",
                "Worlds that this node served when their record named another home.",
                stats.conflicts,
            ),
            count("throng_cluster_elsewhere", "Logins whose world another node serves.", stats.elsewhere),
            gauge(
                "throng_cluster_arrivals_waiting",
                "Logins that wait until the home of their world is known.",
                self.arrivals as f64,
            ),
            count("throng_cluster_no_room", "Logins and worlds for which no node had room.", stats.no_room),
            gauge(
                "throng_cluster_records_unreadable",
                "Records of the directory that this release cannot read.",
                stats.unreadable as f64,
            ),
            count("throng_cluster_bus_reconnects", "Connections to NATS.", self.reconnects),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: &Status, now: Instant) -> Vec<(String, bool)> {
        let parts = status.health(now, Duration::from_secs(30));
        parts.into_iter().filter(|part| !part.ok).map(|part| (part.name, part.ok)).collect()
    }

    #[test]
    fn a_node_is_unready_without_its_bus_and_when_it_drains_or_stands_still_for_long() {
        let at = Instant::from_millis;
        let well = Status { is_connected: true, synced_since: Some(at(1)), ..Status::default() };
        assert_eq!(ready(&well, at(9)), []);
        let without = |change: fn(&mut Status)| {
            let mut status = well.clone();
            change(&mut status);
            status
        };
        let name = |status: &Status| ready(status, at(40_000)).first().map(|(name, _)| name.clone());
        for (status, part) in [
            (without(|status| status.is_connected = false), "cluster.bus"),
            (without(|status| status.synced_since = None), "cluster.directory"),
            (without(|status| status.is_draining = true), "cluster.lease"),
            (without(|status| status.frozen_since = Some(Instant::from_millis(9_000))), "cluster.lease"),
            (without(|status| status.unreachable = Some("why".to_owned())), "cluster.addresses"),
        ] {
            assert_eq!(name(&status).as_deref(), Some(part));
        }
        let short = without(|status| status.frozen_since = Some(Instant::from_millis(20_000)));
        assert_eq!(ready(&short, at(40_000)), [], "within the patience");
    }

    #[test]
    fn durations_are_counted_by_length() {
        let mut durations = Durations::default();
        for millis in [1, 3, 3, 60_000] {
            durations.record(Duration::from_millis(millis));
        }
        assert_eq!(durations.counts, [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(durations.sum, Duration::from_millis(60_007));
    }

    #[test]
    fn a_node_that_serves_is_ready_while_the_bus_elects_a_leader() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let unready = |status: &Status, now| -> Vec<String> {
            let parts = status.health(now, Duration::from_secs(30));
            parts.into_iter().filter(|part| !part.ok).map(|part| part.name).collect()
        };
        let mut status = Status { connection_since: at(100), ..Status::default() };
        assert_eq!(unready(&status, at(100)), ["cluster.bus", "cluster.directory"], "before it begins");
        status.lease_until = Some(at(111));
        assert!(unready(&status, at(110)).is_empty(), "as long as the lease holds");
        let bus = &status.health(at(105), Duration::ZERO)[0];
        assert_eq!((bus.ok, bus.detail.as_str()), (true, "not connected for 5 s"));
        status.frozen_since = Some(at(111));
        assert_eq!(unready(&status, at(111)), ["cluster.bus", "cluster.directory"]);
        (status.is_connected, status.synced_since) = (true, Some(at(112)));
        assert!(unready(&status, at(112)).is_empty(), "frozen, and connected again");
        assert_eq!(unready(&status, at(142)), ["cluster.lease"]);
    }
}
