//! Every metric: name, help, labels, and where its number comes from.
//!
//! `docs/reference/metrics.md` is generated from these tables; a test keeps it fresh.

use std::borrow::Cow;

use throng_gateway::{
    AcceptRefusal, ChannelType, CloseReason, ConnKind, KindStats, Refusal, Stats, WorldServerView, WorldView,
};
use throng_http::{Family, FamilyKind, Sample, SampleValue};
use throng_net::enet::HostFigures;

use crate::process::ProcessFigures;
use crate::report::{ROUND_BOUNDS, ShardReport, TICK_BOUNDS, Ticks};

/// What the metrics are made of at one moment.
pub(crate) struct Figures<'a> {
    pub(crate) reports: &'a [ShardReport],
    pub(crate) process: ProcessFigures,
    pub(crate) started_unix_s: f64,
    pub(crate) ready: bool,
    pub(crate) logins_pending: usize,
    /// Of the derived-data cache, if one runs.
    pub(crate) cache: Option<throng_cache::Figures>,
    /// Of the matcher, where one runs.
    pub(crate) matcher: Option<&'a throng_matching::Report>,
}

/// Above every bound of the round trips but the last, which has none.
const ROUND_TRIP_UNBOUNDED_S: f64 = 1e6;

const KINDS: [ConnKind; 2] = [ConnKind::Server, ConnKind::Client];

/// The sum of all shards' counters.
pub(crate) fn total(reports: &[ShardReport]) -> Stats {
    let mut total = Stats::default();
    for report in reports {
        total.add(&report.stats);
    }
    total
}

pub(crate) fn kind_name(kind: ConnKind) -> &'static str {
    match kind {
        ConnKind::Server => "server",
        ConnKind::Client => "client",
    }
}

pub(crate) fn type_name(channel_type: ChannelType) -> Cow<'static, str> {
    match channel_type.name() {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(channel_type.0.to_string()),
    }
}

/// All metrics under their own names.
pub(crate) fn families(figures: &Figures<'_>) -> Vec<Family> {
    let total = total(figures.reports);
    let mut families = gateway_families(&total);
    let world = figures.reports.iter().find_map(|report| report.world.as_ref());
    families.extend(world_families(&total, world.unwrap_or(&WorldView::default())));
    families.extend(shard_families(figures.reports));
    families.extend(enet_families(figures.reports));
    families.extend(figures.cache.iter().flat_map(cache_families));
    families.extend(figures.matcher.map(matcher_families).into_iter().flatten());
    families.extend(process_families(figures));
    families
}

/// The metrics of the reference under its names, for its dashboard.
pub(crate) fn reference_families(figures: &Figures<'_>) -> Vec<Family> {
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
        per_kind("messages_in", "Messages handed to a channel.", |kind| kind.messages_in),
        per_kind("messages_out", "Messages put into packets.", |kind| kind.messages_out),
        per_kind("packets_in", "Packets decoded.", |kind| kind.packets_in),
        per_kind("packets_out", "Packets written.", |kind| kind.packets_out),
        per_kind("packets_drop", "Always 0, as in the reference.", zero),
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
            "Always 0, as in the reference.",
            FamilyKind::BareCounter,
            vec![labelled("level", "info", 0.0)],
        ),
        gauge(
            "go_goroutines",
            "Threads of the process, where the reference has goroutines.",
            figures.process.threads as f64,
        ),
        gauge("go_memstats_alloc_bytes", "Resident memory, where the reference has its heap.", resident),
        gauge("go_memstats_heap_alloc_bytes", "Resident memory, where the reference has its heap.", resident),
        gauge("go_memstats_heap_inuse_bytes", "Resident memory, where the reference has its heap.", resident),
        gauge(
            "go_memstats_sys_bytes",
            "Virtual memory, where the reference has its heap.",
            figures.process.virtual_bytes as f64,
        ),
    ]
}

fn gateway_families(total: &Stats) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge};
    let per_kind = |name, help, kind_of_metric, figure: fn(&KindStats) -> u64| {
        let sample = |kind| labelled("kind", kind_name(kind), figure(total.kind(kind)) as f64);
        family(name, help, kind_of_metric, KINDS.map(sample).to_vec())
    };
    let count = |name, help, number: u64| family(name, help, Counter, vec![plain(number as f64)]);
    let closed = KINDS
        .into_iter()
        .flat_map(|kind| CloseReason::ALL.iter().map(move |reason| (kind, *reason)))
        .map(|(kind, reason)| {
            let labels = vec![("kind", kind_name(kind).into()), ("reason", reason.name().into())];
            Sample { labels, value: SampleValue::Number(total.closed(kind, reason) as f64) }
        })
        .collect();
    let refused = Refusal::ALL
        .iter()
        .map(|reason| labelled("reason", reason.name(), total.refused(*reason) as f64))
        .collect();
    let not_accepted = AcceptRefusal::ALL
        .iter()
        .map(|reason| labelled("reason", reason.name(), total.accept_refused(*reason) as f64))
        .collect();
    let channels = total
        .channels
        .iter()
        .map(|(kind, count)| labelled("type", type_name(*kind), *count as f64))
        .collect();
    vec![
        per_kind("throng_gateway_connections", "Live connections.", Gauge, |kind| kind.connections),
        per_kind("throng_gateway_authenticated", "Successful logins.", Counter, |kind| kind.authenticated),
        family(
            "throng_gateway_connections_closed",
            "Connections closed, by reason; `docs/reference` explains the reasons.",
            Counter,
            closed,
        ),
        family(
            "throng_gateway_accept_refused",
            "Connections refused at once, by reason.",
            Counter,
            not_accepted,
        ),
        family(
            "throng_gateway_requests_refused",
            "Requests that changed nothing, by reason; the protocol does not tell the sender.",
            Counter,
            refused,
        ),
        per_kind("throng_gateway_messages_in", "Messages handed to a channel.", Counter, |kind| {
            kind.messages_in
        }),
        per_kind("throng_gateway_messages_out", "Messages put into output frames.", Counter, |kind| {
            kind.messages_out
        }),
        per_kind("throng_gateway_packets_in", "Packets decoded.", Counter, |kind| kind.packets_in),
        per_kind("throng_gateway_packets_out", "Packets written.", Counter, |kind| kind.packets_out),
        per_kind("throng_gateway_packets_fragmented", "Reads that ended inside a frame.", Counter, |kind| {
            kind.packets_fragmented
        }),
        per_kind("throng_gateway_in_bytes", "Bytes received, tags included.", Counter, |kind| kind.bytes_in),
        per_kind(
            "throng_gateway_out_bytes",
            "Bytes taken by the transport, tags included.",
            Counter,
            |kind| kind.bytes_out,
        ),
        family("throng_gateway_channels", "Channels, by type.", Gauge, channels),
        family(
            "throng_gateway_subscriptions",
            "Subscriptions in all channels.",
            Gauge,
            vec![plain(total.subscriptions as f64)],
        ),
        count(
            "throng_gateway_updates_merged",
            "Data updates merged into channel data.",
            total.updates_merged,
        ),
        count(
            "throng_gateway_updates_folded",
            "Updates folded together because a channel's backlog was over its bound.",
            total.updates_folded,
        ),
        count("throng_gateway_fan_out_ticks", "Times a channel's fan-out ran.", total.fan_out_ticks),
        count(
            "throng_gateway_fan_out_encodes",
            "Encodings for fan-out; sharing keeps them far below the messages.",
            total.fan_out_encodes,
        ),
        count(
            "throng_gateway_fan_out_messages",
            "Fan-out messages handed to subscribers' connections.",
            total.fan_out_messages,
        ),
        count(
            "throng_gateway_fan_out_bytes",
            "Bytes of fan-out messages before framing.",
            total.fan_out_bytes,
        ),
        family(
            "throng_gateway_fan_out_lateness_seconds",
            "Summed time by which fan-outs ran after their tick; divide by the ticks for the mean.",
            Counter,
            vec![plain(total.fan_out_lateness_ns as f64 / 1e9)],
        ),
        family(
            "throng_gateway_fan_out_lateness_max_seconds",
            "Latest fan-out since the start.",
            Gauge,
            vec![plain(total.fan_out_lateness_ns_max as f64 / 1e9)],
        ),
        count(
            "throng_gateway_forwarded",
            "User-space messages forwarded, once per recipient.",
            total.forwarded,
        ),
        count(
            "throng_gateway_state_dropped",
            "State updates that slow readers did not get, replaced by a full state later.",
            total.state_dropped,
        ),
        count(
            "throng_gateway_state_loose",
            "State updates sent unreliably; a full state makes good what got lost.",
            total.state_loose,
        ),
        count(
            "throng_gateway_resyncs",
            "Full states sent to readers that missed updates, or may have missed some.",
            total.resyncs,
        ),
        count(
            "throng_gateway_servers_recovered",
            "Game servers that returned to their place.",
            total.servers_recovered,
        ),
        count("throng_gateway_clients_resumed", "Clients that resumed their session.", total.clients_resumed),
        count(
            "throng_gateway_recoveries_expired",
            "Lost connections whose time to return ran out.",
            total.recoveries_expired,
        ),
        count("throng_gateway_bans", "Bans pronounced.", total.bans),
        count("throng_gateway_mail", "Messages between shards.", total.mail_sent),
    ]
}

/// Cells, entities and what happens to them.
fn world_families(total: &Stats, world: &WorldView) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge};
    let count = |name, help, number: u64| family(name, help, Counter, vec![plain(number as f64)]);
    let by_server = |name, help, figure: fn(&WorldServerView) -> f64| {
        let sample = |(index, server)| labelled("server", Cow::Owned(index_text(index)), figure(server));
        family(name, help, Gauge, world.servers.iter().enumerate().map(sample).collect())
    };
    let bands = total.lod_changes.iter().enumerate();
    let bands = bands.map(|(band, count)| labelled("band", index_text(band), *count as f64)).collect();
    vec![
        count("throng_world_handovers", "Entities that changed their cell.", total.handovers),
        count(
            "throng_world_handovers_across_servers",
            "Entities that changed their owner, with their cell or by themselves.",
            total.handovers_across_servers,
        ),
        count(
            "throng_world_handover_encodes",
            "Handover payloads encoded: at most two per pair of cells, whatever the number of subscribers.",
            total.handover_encodes,
        ),
        count(
            "throng_world_handovers_delayed",
            "Handovers that were refused at first, for want of a cell or by a lock, and happened later.",
            total.handovers_delayed,
        ),
        family(
            "throng_world_handover_delay_seconds",
            "Summed time from refusal to handover of the delayed ones; all others happen with the update that causes \
             them.",
            Counter,
            vec![plain(total.handover_delay_ns as f64 / 1e9)],
        ),
        count(
            "throng_world_handovers_oversize",
            "Entities too large for a handover message, sent through their channels instead.",
            total.handovers_oversize,
        ),
        count("throng_world_interest_updates", "Areas of interest set.", total.interest_updates),
        count("throng_world_entities_created", "Entity channels created.", total.entities_created),
        family(
            "throng_world_lod_changes",
            "Subscriptions that network level of detail put into a band; 0 is the nearest, the last beyond all.",
            Counter,
            bands,
        ),
        count("throng_world_cells_moved", "Cells that the load balancer moved.", total.cells_moved),
        by_server("throng_world_server_live", "1 when a connected server holds the slot.", |server| {
            f64::from(u8::from(server.live))
        }),
        by_server("throng_world_cells", "Cells, by the slot that they belong to.", |server| {
            server.cells as f64
        }),
        by_server("throng_world_cell_entities", "Entities in cells, by slot.", |server| {
            server.entities as f64
        }),
        gauge(
            "throng_world_entities",
            "Entity channels, those outside of all cells included.",
            world.entities as f64,
        ),
        gauge("throng_world_cell_entities_max", "Entities in the fullest cell.", world.fullest_cell as f64),
        gauge(
            "throng_world_handovers_waiting",
            "Entities whose handover was refused and is tried again.",
            world.waiting as f64,
        ),
    ]
}

fn shard_families(reports: &[ShardReport]) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge, Histogram};
    let each = |name, help, kind, figure: fn(&ShardReport) -> f64| {
        let sample = |(index, report)| labelled("shard", Cow::Owned(index_text(index)), figure(report));
        family(name, help, kind, reports.iter().enumerate().map(sample).collect())
    };
    let rounds = reports
        .iter()
        .enumerate()
        .map(|(index, report)| Sample {
            labels: vec![("shard", Cow::Owned(index_text(index)))],
            value: SampleValue::Histogram {
                bounds: Cow::Borrowed(&ROUND_BOUNDS),
                counts: report.rounds.counts.to_vec(),
                sum: report.rounds.sum_ns as f64 / 1e9,
            },
        })
        .collect();
    let mut ticks = Ticks::default();
    reports.iter().for_each(|report| ticks.add(&report.ticks));
    ticks.0.sort_unstable_by_key(|(channel_type, _)| *channel_type);
    let tick_times = ticks.0.iter().map(|(channel_type, times)| Sample {
        labels: vec![("type", type_name(*channel_type))],
        value: SampleValue::Histogram {
            bounds: Cow::Borrowed(&TICK_BOUNDS),
            counts: times.counts.to_vec(),
            sum: times.sum_ns as f64 / 1e9,
        },
    });
    let longest_ticks = ticks
        .0
        .iter()
        .map(|(channel_type, times)| labelled("type", type_name(*channel_type), times.max_ns as f64 / 1e9));
    vec![
        family(
            "throng_channel_tick_seconds",
            "Time of one channel's fan-out: what was due is merged, encoded and queued for its subscribers.",
            Histogram,
            tick_times.collect(),
        ),
        family(
            "throng_channel_tick_max_seconds",
            "Longest of these since the start.",
            Gauge,
            longest_ticks.collect(),
        ),
        family(
            "throng_shard_round_seconds",
            "Time from an event to the last write of the round that it began.",
            Histogram,
            rounds,
        ),
        each(
            "throng_shard_mailbox",
            "Posts from other threads that the shard's latest round found.",
            Gauge,
            |report| report.mailbox.len as f64,
        ),
        each(
            "throng_shard_mailbox_bytes",
            "Their bytes; what several hold together counts for each.",
            Gauge,
            |report| report.mailbox.bytes as f64,
        ),
        each(
            "throng_shard_mailbox_peak_bytes",
            "Most bytes that a round found since the start; `server.mailbox_bytes_max` bounds them.",
            Gauge,
            |report| report.mailbox_peak_bytes as f64,
        ),
        each(
            "throng_shard_congestions",
            "Reads paused because another shard's mailbox was full.",
            Counter,
            |report| report.congestions as f64,
        ),
        each(
            "throng_shard_panics",
            "Panics contained; each closed at most the connection that caused it.",
            Counter,
            |report| report.panics as f64,
        ),
        each(
            "throng_shard_recording_parts_dropped",
            "Parts of recordings lost because the disk was too slow; the same figure on every shard.",
            Counter,
            |report| report.recordings_dropped as f64,
        ),
        each("throng_net_accepted", "Connections taken off listeners' queues.", Counter, |report| {
            report.loop_stats.accepted as f64
        }),
        each(
            "throng_net_handshakes_failed",
            "TLS and WebSocket handshakes that failed or took too long.",
            Counter,
            |report| report.loop_stats.handshakes_failed as f64,
        ),
        each(
            "throng_net_shed",
            "Connections closed at once because descriptors ran out.",
            Counter,
            |report| report.loop_stats.shed as f64,
        ),
        each(
            "throng_net_refused",
            "Connections closed at once because a listener's limit was reached.",
            Counter,
            |report| report.loop_stats.refused_by_limits as f64,
        ),
        each("throng_net_polls", "Waits for events.", Counter, |report| report.loop_stats.polls as f64),
        each("throng_net_reads", "Read calls.", Counter, |report| report.loop_stats.reads as f64),
        each("throng_net_writes", "Write calls.", Counter, |report| report.loop_stats.writes as f64),
        each("throng_net_in_bytes", "Bytes read from sockets.", Counter, |report| {
            report.loop_stats.bytes_in as f64
        }),
        each("throng_net_out_bytes", "Bytes written to sockets.", Counter, |report| {
            report.loop_stats.bytes_out as f64
        }),
    ]
}

/// The ENet hosts under the listeners, all shards together.
fn enet_families(reports: &[ShardReport]) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge};
    let mut hosts = HostFigures::default();
    reports.iter().for_each(|report| hosts += report.enet);
    let HostFigures { peers, half_open, held_bytes, queued_bytes, udp, enet, gate, .. } = hosts;
    let both = |name, help, [inward, outward]: [u64; 2]| {
        let samples =
            [("in", inward), ("out", outward)].map(|(way, count)| labelled("direction", way, count as f64));
        family(name, help, Counter, samples.to_vec())
    };
    let count = |name, help, number: u64| family(name, help, Counter, vec![plain(number as f64)]);
    let dropped = [
        ("short", enet.dropped_short),
        ("unknown_peer", enet.dropped_unknown),
        ("compression", enet.dropped_compression),
        ("checksum", enet.dropped_checksum),
        ("malformed", enet.dropped_malformed),
        ("oversized", udp.oversized),
        ("no_room", enet.dropped_full),
        ("forged_acknowledgement", enet.dropped_acks),
    ];
    let refused = [("connect", enet.dropped_connects), ("not_completed", enet.dropped_half_open)];
    let admission = [
        ("admitted", gate.admitted),
        ("challenged", gate.challenged),
        ("bad_token", gate.refused_tokens),
        ("used_token", gate.refused_used),
        ("full", gate.refused_full),
        ("forged", gate.dropped_forged),
        ("replayed", gate.dropped_replayed),
        ("plain", gate.dropped_plain),
    ];
    let by_reason = |counts: &[(&'static str, u64)]| {
        counts.iter().map(|&(reason, count)| labelled("reason", reason, count as f64)).collect::<Vec<_>>()
    };
    let resent = [("early", enet.resent_early), ("timeout", enet.resent_commands - enet.resent_early)];
    let bounds = enet.round_trips.buckets().map(|(bound, _)| bound.as_secs_f64());
    let bounds: Vec<f64> = bounds.filter(|bound| *bound < ROUND_TRIP_UNBOUNDED_S).collect();
    let trips = SampleValue::Histogram {
        bounds: Cow::Owned(bounds),
        counts: enet.round_trips.buckets().map(|(_, count)| count).collect(),
        sum: enet.round_trips.sum().as_secs_f64(),
    };
    vec![
        family(
            "throng_enet_peers",
            "ENet peers, those that come and go included.",
            Gauge,
            vec![plain(peers as f64)],
        ),
        family(
            "throng_enet_half_open",
            "ENet handshakes whose address is not proven yet.",
            Gauge,
            vec![plain(half_open as f64)],
        ),
        family(
            "throng_enet_waiting_bytes",
            "Memory of ENet packets: received and not taken, or sent and not acknowledged.",
            Gauge,
            vec![
                labelled("direction", "in", held_bytes as f64),
                labelled("direction", "out", queued_bytes as f64),
            ],
        ),
        both("throng_enet_datagrams", "ENet datagrams.", [udp.datagrams_in, udp.datagrams_out]),
        both("throng_enet_bytes", "Bytes of ENet datagrams.", [udp.bytes_in, udp.bytes_out]),
        both(
            "throng_enet_packets",
            "ENet packets delivered and accepted.",
            [enet.packets_in, enet.packets_out],
        ),
        count("throng_enet_connects", "ENet handshakes completed.", enet.connects),
        count("throng_enet_disconnects", "ENet connections that ended, attempts included.", enet.disconnects),
        count("throng_enet_timeouts", "Of these, because the other side no longer answered.", enet.timeouts),
        family(
            "throng_enet_refused",
            "ENet handshakes refused: by a limit or bad values, or not completed in time.",
            Counter,
            by_reason(&refused),
        ),
        family(
            "throng_enet_dropped",
            "ENet datagrams, or their rest, dropped, by reason.",
            Counter,
            by_reason(&dropped),
        ),
        family(
            "throng_enet_gate",
            "What became of datagrams at the gate of sealed ENet: handshakes, and what was refused or dropped.",
            Counter,
            admission.map(|(outcome, count)| labelled("outcome", outcome, count as f64)).to_vec(),
        ),
        family(
            "throng_enet_resent",
            "Reliable ENet commands sent again: overtaken by later ones, or not acknowledged in time.",
            Counter,
            resent.map(|(cause, count)| labelled("cause", cause, count as f64)).to_vec(),
        ),
        count(
            "throng_enet_throttled_packets",
            "Unreliable ENet packets that the protocol's throttle dropped.",
            enet.throttled_packets,
        ),
        count("throng_enet_send_blocked", "Times that an ENet socket's send buffer was full.", udp.blocked),
        family(
            "throng_enet_round_trip_seconds",
            "Round trips of acknowledged ENet commands.",
            FamilyKind::Histogram,
            vec![Sample { labels: Vec::new(), value: trips }],
        ),
    ]
}

fn cache_families(cache: &throng_cache::Figures) -> Vec<Family> {
    use FamilyKind::Counter;
    let count = |name, help, number: u64| family(name, help, Counter, vec![plain(number as f64)]);
    let lookup = |kind: &'static str, result: &'static str, number: u64| Sample {
        labels: vec![("kind", Cow::Borrowed(kind)), ("result", Cow::Borrowed(result))],
        value: SampleValue::Number(number as f64),
    };
    vec![
        count("throng_ddc_requests", "Requests to the derived-data cache.", cache.requests),
        count("throng_ddc_failures", "Requests that failed for a reason of the cache's own.", cache.failures),
        count("throng_ddc_malformed", "What arrived at the cache and was no request.", cache.malformed),
        family(
            "throng_ddc_lookups",
            "Refs and blobs that were asked for.",
            Counter,
            vec![
                lookup("ref", "hit", cache.ref_hits),
                lookup("ref", "miss", cache.ref_misses),
                lookup("blob", "hit", cache.blob_hits),
                lookup("blob", "miss", cache.blob_misses),
            ],
        ),
        count("throng_ddc_in_bytes", "Bytes of blobs that the cache received.", cache.bytes_in),
        count("throng_ddc_out_bytes", "Bytes of bodies that the cache answered with.", cache.bytes_out),
        count("throng_ddc_collections", "Collections of what expired or is not reached.", cache.collections),
        count("throng_ddc_collected_refs", "Refs that collections removed.", cache.collected_refs),
        count("throng_ddc_collected_blobs", "Blobs that collections removed.", cache.collected_blobs),
        count(
            "throng_ddc_collected_bytes",
            "Bytes of the blobs that collections removed.",
            cache.collected_bytes,
        ),
        count("throng_ddc_scrubbed_bytes", "Bytes that scrubs read.", cache.scrubbed_bytes),
        count("throng_ddc_damaged", "Blobs found damaged or lost; they are misses since.", cache.damaged),
        count("throng_ddc_commits", "Batches written to the log of the cache.", cache.store.commits),
        count("throng_ddc_changes", "Changes in those batches.", cache.store.changes),
        count("throng_ddc_log_bytes", "Bytes appended to the log of the cache.", cache.store.log_bytes),
        count("throng_ddc_checkpoints", "Checkpoints of the index of the cache.", cache.store.checkpoints),
        count("throng_ddc_write_failures", "Changes that the disk refused.", cache.store.failures),
    ]
}

fn matcher_families(report: &throng_matching::Report) -> Vec<Family> {
    let counter =
        |name, help, number: u64| family(name, help, FamilyKind::Counter, vec![plain(number as f64)]);
    let by = |label: &'static str, rows: &[(&'static str, u64)]| {
        rows.iter().map(|(name, count)| labelled(label, *name, *count as f64)).collect::<Vec<_>>()
    };
    let counts = &report.counts;
    vec![
        family(
            "throng_matcher_requests",
            "Requests by method: what players and servers do.",
            FamilyKind::Counter,
            by("method", &report.requests),
        ),
        family(
            "throng_matcher_refusals",
            "Answers that were no success, by status; many of one kind point at a client.",
            FamilyKind::Counter,
            by("status", &report.errors),
        ),
        gauge("throng_matcher_rooms", "Rooms, those included that are about to go.", counts.rooms as f64),
        gauge("throng_matcher_teams", "Teams.", counts.teams as f64),
        gauge("throng_matcher_roles", "Roles in rooms and teams.", counts.players as f64),
        gauge("throng_matcher_servers", "Game servers with a session or roles.", counts.servers as f64),
        gauge(
            "throng_matcher_sessions",
            "Streams of notifications, lost ones included.",
            report.sessions as f64,
        ),
        gauge("throng_matcher_connections", "Open connections.", report.connections as f64),
        counter("throng_matcher_rooms_made", "Rooms made.", report.core.rooms_created),
        counter("throng_matcher_rooms_destroyed", "Rooms destroyed.", report.core.rooms_destroyed),
        counter(
            "throng_matcher_roles_joined",
            "Roles that became members of rooms.",
            report.core.roles_joined,
        ),
        counter(
            "throng_matcher_replayed_answers",
            "Requests answered from their key: retries that had no second effect.",
            report.core.replayed_answers,
        ),
        counter("throng_matcher_notices", "Entries of notifications queued.", report.notices_queued),
        counter(
            "throng_matcher_notices_collapsed",
            "Entries replaced by later ones before they were sent.",
            report.notices_collapsed,
        ),
        counter(
            "throng_matcher_batches",
            "Frames with entries; entries per frame show how much is merged.",
            report.batches_sent,
        ),
        counter(
            "throng_matcher_lagging",
            "Sessions reset because their destination read too slowly; it has to fetch its rooms again.",
            report.lagging,
        ),
        counter("throng_matcher_journal_bytes", "Bytes written to the journal.", report.journal_bytes),
    ]
}

fn process_families(figures: &Figures<'_>) -> Vec<Family> {
    let process = &figures.process;
    vec![
        gauge("throng_ready", "1 when players should be sent here.", f64::from(u8::from(figures.ready))),
        gauge("throng_auth_pending", "Logins that wait for a verdict.", figures.logins_pending as f64),
        family(
            "throng_build_info",
            "Always 1; the version is the label.",
            FamilyKind::Gauge,
            vec![labelled("version", env!("CARGO_PKG_VERSION"), 1.0)],
        ),
        family(
            "process_cpu_seconds",
            "CPU time of the process, user and system.",
            FamilyKind::Counter,
            vec![plain(process.cpu_seconds)],
        ),
        gauge("process_resident_memory_bytes", "Memory in use.", process.resident_bytes as f64),
        gauge("process_virtual_memory_bytes", "Address space in use.", process.virtual_bytes as f64),
        gauge("process_open_fds", "Open file descriptors.", process.open_fds as f64),
        gauge("process_max_fds", "Most file descriptors the process may open.", process.max_fds as f64),
        gauge("process_threads", "Threads of the process.", process.threads as f64),
        gauge("process_start_time_seconds", "Start of the process, Unix time.", figures.started_unix_s),
    ]
}

fn family(name: &'static str, help: &'static str, kind: FamilyKind, samples: Vec<Sample>) -> Family {
    Family { name, help, kind, samples }
}

fn gauge(name: &'static str, help: &'static str, number: f64) -> Family {
    family(name, help, FamilyKind::Gauge, vec![plain(number)])
}

fn plain(number: f64) -> Sample {
    Sample { labels: Vec::new(), value: SampleValue::Number(number) }
}

fn labelled(name: &'static str, value: impl Into<Cow<'static, str>>, number: f64) -> Sample {
    Sample { labels: vec![(name, value.into())], value: SampleValue::Number(number) }
}

fn upper(kind: ConnKind) -> &'static str {
    match kind {
        ConnKind::Server => "SERVER",
        ConnKind::Client => "CLIENT",
    }
}

fn index_text(index: usize) -> String {
    index.to_string()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::mailbox::Taken;
    use crate::report::RoundTimes;

    #[test]
    fn ticks_are_counted_by_type_and_add_up() {
        let mut ticks = Ticks::default();
        ticks.record(ChannelType::ENTITY, 15_000);
        ticks.record(ChannelType::ENTITY, 20_000);
        ticks.record(ChannelType::SPATIAL, 90_000_000);
        let mut sum = ticks.clone();
        sum.add(&ticks);
        let (kind, entity) = &sum.0[0];
        assert_eq!(
            (*kind, entity.counts[1], entity.sum_ns, entity.max_ns),
            (ChannelType::ENTITY, 4, 70_000, 20_000)
        );
        assert_eq!(sum.0[1].1.counts[TICK_BOUNDS.len()], 2, "beyond the last bound");
    }

    fn example() -> Vec<ShardReport> {
        let mut stats = Stats::default();
        stats.channels.insert(ChannelType::GLOBAL, 1);
        stats.lod_changes = vec![1];
        let mut ticks = Ticks::default();
        ticks.record(ChannelType::GLOBAL, 15_000);
        let mut world = WorldView::default();
        world.servers.push(WorldServerView::default());
        vec![ShardReport {
            stats,
            loop_stats: throng_net::LoopStats::default(),
            enet: HostFigures::default(),
            rounds: RoundTimes::default(),
            ticks,
            world: Some(world),
            panics: 0,
            congestions: 0,
            mailbox: Taken::default(),
            mailbox_peak_bytes: 0,
            recordings_dropped: 0,
            connections: Vec::new(),
            channels: Vec::new(),
        }]
    }

    fn all() -> (Vec<Family>, Vec<Family>) {
        let reports = example();
        let matcher = throng_matching::Report {
            requests: vec![("Ping", 1)],
            errors: vec![("INVALID", 1)],
            ..throng_matching::Report::default()
        };
        let figures = Figures {
            reports: &reports,
            process: ProcessFigures::default(),
            started_unix_s: 0.0,
            ready: true,
            logins_pending: 0,
            cache: Some(throng_cache::Figures::default()),
            matcher: Some(&matcher),
        };
        (families(&figures), reference_families(&figures))
    }

    fn markdown() -> String {
        let (own, reference) = all();
        let mut out = String::from(
            "# Metrics\n\nFor operators. `/metrics` on the admin listener (`http.addr`) serves Prometheus text, or OpenMetrics when the\n\
             scraper asks for it. Counters carry the suffix `_total` as both formats want it.\n\n\
             This page is generated from `crates/server/src/metrics.rs`; a test keeps it fresh.\n\n",
        );
        table(&mut out, &own);
        out.push_str(
            "\n## Names of the reference\n\nWith `metrics.compat = \"channeld\"` (the default of `throng channeld`) the page also has the reference's\n\
             names, so that its Grafana dashboard shows Throng unchanged. Counters have no suffix there.\n\n",
        );
        table(&mut out, &reference);
        out
    }

    fn table(out: &mut String, families: &[Family]) {
        out.push_str("| name | kind | labels | meaning |\n|---|---|---|---|\n");
        for family in families {
            let suffix = if family.kind == FamilyKind::Counter { "_total" } else { "" };
            let labels: Vec<&str> = family
                .samples
                .first()
                .map(|sample| sample.labels.iter().map(|(name, _)| *name).collect())
                .unwrap();
            let _ = writeln!(
                out,
                "| `{}{suffix}` | {} | {} | {} |",
                family.name,
                family.kind.name(),
                labels.join(", "),
                family.help
            );
        }
    }

    #[test]
    fn the_reference_page_is_fresh() {
        crate::testing::check_generated("docs/reference/metrics.md", &markdown());
    }

    #[test]
    fn names_are_unique_have_help_and_follow_the_conventions() {
        let (own, reference) = all();
        let mut names: Vec<&str> = own.iter().chain(&reference).map(|family| family.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for family in own.iter().chain(&reference) {
            assert!(family.help.ends_with('.'), "{}", family.name);
            assert!(!family.name.ends_with("_total"), "{}", family.name);
        }
        for family in &own {
            let name = family.name;
            assert!(name.starts_with("throng_") || name.starts_with("process_"), "{name}");
            assert!(!name.ends_with("_ms") && !name.ends_with("_ns"), "{name}: seconds are the unit");
        }
    }

    #[test]
    fn every_name_of_the_reference_is_there() {
        let (_, reference) = all();
        // Spec: gateway-protocol §11.2
        let expected = [
            ("messages_in", "connType"),
            ("messages_out", "connType"),
            ("packets_in", "connType"),
            ("packets_out", "connType"),
            ("packets_drop", "connType"),
            ("packets_frag", "connType"),
            ("packets_comb", "connType"),
            ("bytes_in", "connType"),
            ("bytes_out", "connType"),
            ("connection_num", "type"),
            ("channel_num", "type"),
            ("channel_tick_duration", "type"),
            ("connection_closed", "connType"),
            ("logs", "level"),
        ];
        for (name, label) in expected {
            let family =
                reference.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(family.samples[0].labels[0].0, label, "{name}");
        }
    }
}
