//! The metrics of channeld under its names.

use throng_admin::{Family, FamilyKind, Sample};
use throng_gateway::{CloseReason, KindStats};

use super::{KINDS, MetricSources, family, gauge, labelled, total, type_name, upper};

/// The metrics of channeld under its names, for its dashboard.
pub(crate) fn reference_families(figures: &MetricSources<'_>) -> Vec<Family> {
    let total = total(figures.reports);
    let per_kind = |name, help, figure: fn(&KindStats) -> u64| {
        let sample = |kind| labelled("connType", upper(kind), figure(total.kind(kind)) as f64);
        family(name, help, FamilyKind::BareCounter, KINDS.map(sample).to_vec())
    };
    let closed = |kind| {
        let bad = [
            CloseReason::BadMagic,
            CloseReason::ZeroSize,
            CloseReason::UnknownCompression,
            CloseReason::BadSnappy,
            CloseReason::DeclaredTooLarge,
            CloseReason::BadPacket,
            CloseReason::LegacyTooLarge,
            CloseReason::BadFrame,
        ];
        let count: u64 = bad.iter().map(|reason| total.closed(kind, *reason)).sum();
        labelled("connType", upper(kind), count as f64)
    };
    let by_type = |figure: &dyn Fn(u64) -> f64| -> Vec<Sample> {
        let samples = total.channels.iter();
        samples.map(|(kind, count)| labelled("type", type_name(*kind), figure(*count))).collect()
    };
    let latest_ms =
        figures.reports.iter().map(|report| report.rounds.latest_ns).max().unwrap_or(0) as f64 / 1e6;
    let connections = |kind| labelled("type", upper(kind), total.kind(kind).connections as f64);
    let zero = |_: &KindStats| 0;
    let resident = figures.process.resident_bytes as f64;
    vec![
        per_kind("messages_in", "Messages delivered to a channel.", |kind| kind.messages_in),
        per_kind("messages_out", "Messages written into packets.", |kind| kind.messages_out),
        per_kind("packets_in", "Packets decoded.", |kind| kind.packets_in),
        per_kind("packets_out", "Packets written.", |kind| kind.packets_out),
        per_kind("packets_drop", "Always 0, as in channeld.", zero),
        per_kind("packets_frag", "Reads that ended inside a packet.", |kind| kind.packets_fragmented),
        per_kind("packets_comb", "Packets read.", |kind| kind.packets_in),
        per_kind("bytes_in", "Bytes received, tags included.", |kind| kind.bytes_in),
        per_kind("bytes_out", "Bytes sent, tags included.", |kind| kind.bytes_out),
        family("connection_num", "Live connections.", FamilyKind::Gauge, KINDS.map(connections).to_vec()),
        family("channel_num", "Channels.", FamilyKind::Gauge, by_type(&|count| count as f64)),
        family(
            "channel_tick_duration",
            "Milliseconds of the latest round of the busiest shard; shards, not channels, have rounds.",
            FamilyKind::Gauge,
            by_type(&|_| latest_ms),
        ),
        family(
            "connection_closed",
            "Connections closed for bad frames.",
            FamilyKind::BareCounter,
            KINDS.map(closed).to_vec(),
        ),
        family(
            "logs",
            "Always 0, as in channeld.",
            FamilyKind::BareCounter,
            vec![labelled("level", "info", 0.0)],
        ),
        gauge(
            "go_goroutines",
            "Threads of the process, where channeld has goroutines.",
            figures.process.threads as f64,
        ),
        gauge("go_memstats_alloc_bytes", "Resident memory, where channeld has its heap.", resident),
        gauge("go_memstats_heap_alloc_bytes", "Resident memory, where channeld has its heap.", resident),
        gauge("go_memstats_heap_inuse_bytes", "Resident memory, where channeld has its heap.", resident),
        gauge(
            "go_memstats_sys_bytes",
            "Virtual memory, where channeld has its heap.",
            figures.process.virtual_bytes as f64,
        ),
    ]
}
