//! Counts in the form that Prometheus reads.

use std::fmt::Write as _;
use std::time::Duration;

use super::{ConnectionStats, Server};
use crate::class::ClassId;

/// Cost of one class, with [`ServerConfig::class_stats`](crate::ServerConfig::class_stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Objects with a changed property, summed over frames.
    pub objects_dirty: u64,
    /// Changes of each property.
    pub properties_dirty: Vec<u64>,
    /// Common records written.
    pub records: u64,
    /// Bytes of them, before they are copied to connections.
    pub record_bytes: u64,
}

/// Time spent, as the driver measured it: the library reads no clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    frames: u64,
    shared: Duration,
    connections: Duration,
}

impl ConnectionStats {
    /// Adds the counts of another connection.
    pub(super) fn add(&mut self, other: &Self) {
        self.packets_sent += other.packets_sent;
        self.bytes_sent += other.bytes_sent;
        self.packets_delivered += other.packets_delivered;
        self.packets_lost += other.packets_lost;
        self.properties_resent += other.properties_resent;
        self.words_seen += other.words_seen;
        self.objects_tested += other.objects_tested;
        self.records_copied += other.records_copied;
        self.records_hit += other.records_hit;
        self.records_built += other.records_built;
        self.creates += other.creates;
        self.destroys += other.destroys;
        self.elements_sent += other.elements_sent;
        self.parts_sent += other.parts_sent;
        self.transfers += other.transfers;
        self.oversized += other.oversized;
        self.tokens_sent += other.tokens_sent;
        self.budget_saturated_frames += other.budget_saturated_frames;
        self.starvation_frames_max = self.starvation_frames_max.max(other.starvation_frames_max);
        self.packets_stale += other.packets_stale;
        self.calls_refused += other.calls_refused;
        self.calls_dropped += other.calls_dropped;
        self.resets += other.resets;
        self.rtt = self.rtt.max(other.rtt);
    }
}

impl Server {
    /// Counts of all connections together, those that have ended included.
    #[must_use]
    pub fn total_stats(&self) -> ConnectionStats {
        let mut total = self.departed;
        self.connections.iter().flatten().for_each(|conn| total.add(&conn.stats));
        total
    }

    /// Cost of a class; `None` for an unknown class or when that is not counted.
    #[must_use]
    pub fn class_stats(&self, class: ClassId) -> Option<&ClassStats> {
        self.class_stats.get(usize::from(class.0))
    }

    /// Notes how long a frame's stages took, for the metrics.
    pub fn observe_frame(&mut self, shared: Duration, connections: Duration) {
        self.spent.frames += 1;
        self.spent.shared = self.spent.shared.saturating_add(shared);
        self.spent.connections = self.spent.connections.saturating_add(connections);
    }

    /// Appends all counts in Prometheus' text form. Costs a look at each connection; call it when
    /// someone asks.
    pub fn write_metrics(&self, out: &mut String) {
        let (stats, total) = (&self.stats, self.total_stats());
        let connections = || self.connections.iter().flatten();
        let pairs: u64 = self.shared.objects.refs.iter().map(|refs| u64::from(*refs)).sum();
        let gauges = [
            ("objects", "Objects that exist.", self.shared.objects.alive.iter().count() as u64),
            ("connections", "Connections.", connections().count() as u64),
            ("pairs_in_scope", "Pairs of connection and object in scope.", pairs),
            ("starvation_frames_max", "Most frames that a change has waited.", total.starvation_frames_max),
        ];
        let counters = [
            ("objects_dirty", "Objects with a changed property, over frames.", stats.objects_dirty),
            ("properties_dirty", "Changed properties, over frames.", stats.properties_dirty),
            ("records_shared", "Common records written.", stats.records_shared),
            ("words_seen", "Groups of 64 objects that a connection examined.", total.words_seen),
            ("objects_tested", "Distances of objects to views tested.", total.objects_tested),
            ("records_copied", "Common records copied into packets.", total.records_copied),
            ("record_hits", "Record variants found in the cache.", total.records_hit),
            ("record_misses", "Record variants built.", total.records_built),
            ("bytes_sent", "Payload bytes.", total.bytes_sent),
            ("packets_sent", "Packets.", total.packets_sent),
            ("packets_lost", "Packets that were not acknowledged.", total.packets_lost),
            ("properties_resent", "Properties that losses made pending again.", total.properties_resent),
            ("creates", "Creations written.", total.creates),
            ("destroys", "Ends of objects written.", total.destroys),
            ("elements_sent", "Operations on keyed arrays written.", total.elements_sent),
            ("parts_sent", "Parts of large creations and updates written.", total.parts_sent),
            ("transfers", "Creations and updates that arrived in parts.", total.transfers),
            ("oversized", "Attempts to send more than transfer_bytes_max.", total.oversized),
            ("tokens_sent", "Strings of tokens written.", total.tokens_sent),
            ("budget_saturated_frames", "Frames without room for everything.", total.budget_saturated_frames),
            ("calls_refused", "Unauthorised calls of clients.", total.calls_refused),
            ("calls_dropped", "Unreliable calls to clients dropped before sending.", total.calls_dropped),
            ("resets", "Whole states sent because a client asked.", total.resets),
            ("stale_mark", "Change marks of objects that do not exist.", stats.stale_marks),
            ("unmarked_changes", "Changes that verify_push found unmarked.", stats.unmarked_changes),
            ("nans", "Values that were not a number (NaN).", stats.nans),
            ("clamped_positions", "Positions outside the grid.", self.shared.grid.clamped_total),
            ("decode_errors", "Packets from clients that were refused.", stats.decode_errors),
            ("protocol_mismatches", "Classes that a peer describes differently.", stats.protocol_mismatches),
        ];
        // Writing to a string does not fail.
        for (name, help, value) in gauges {
            let _ = write!(
                out,
                "# HELP throng_repl_{name} {help}\n# TYPE throng_repl_{name} gauge\nthrong_repl_{name} {value}\n"
            );
        }
        for (name, help, value) in counters {
            let _ = write!(
                out,
                "# HELP throng_repl_{name}_total {help}\n# TYPE throng_repl_{name}_total counter\n\
                 throng_repl_{name}_total {value}\n"
            );
        }
        let name = "throng_repl_frame_seconds";
        let _ = write!(out, "# HELP {name} CPU time of frames by stage.\n# TYPE {name} summary\n");
        for (stage, time) in [("shared", self.spent.shared), ("connections", self.spent.connections)] {
            let (sum, count) = (time.as_secs_f64(), self.spent.frames);
            let _ = write!(
                out,
                "{name}_sum{{stage=\"{stage}\"}} {sum}\n{name}_count{{stage=\"{stage}\"}} {count}\n"
            );
        }
    }
}
