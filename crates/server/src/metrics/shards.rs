//! Metrics of shards, their loops and their ENet hosts.

use std::borrow::Cow;

use throng_admin::{Family, FamilyKind, Sample, SampleValue};
use throng_net::enet::HostCounters;

use super::{ROUND_TRIP_UNBOUNDED_S, family, index_text, labelled, plain, type_name};
use crate::report::{ROUND_BOUNDS, ShardReport, TICK_BOUNDS, Ticks};

pub(super) fn shard_families(reports: &[ShardReport]) -> Vec<Family> {
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
            "Duration of one channel's fan-out: merging, encoding and queueing of due updates.",
            Histogram,
            tick_times.collect(),
        ),
        family(
            "throng_channel_tick_max_seconds",
            "Longest fan-out of one channel since the start.",
            Gauge,
            longest_ticks.collect(),
        ),
        family(
            "throng_shard_round_seconds",
            "Duration of a round, from its first event to its last write.",
            Histogram,
            rounds,
        ),
        each(
            "throng_shard_mailbox",
            "Messages from other threads in the shard's latest round.",
            Gauge,
            |report| report.mailbox.len as f64,
        ),
        each(
            "throng_shard_mailbox_bytes",
            "Bytes of messages from other threads in the shard's latest round; shared bytes count for each holder.",
            Gauge,
            |report| report.mailbox.bytes as f64,
        ),
        each(
            "throng_shard_mailbox_peak_bytes",
            "Largest mailbox of a round since the start in bytes; `server.mailbox_bytes_max` limits it.",
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
            "throng_shard_void_posts",
            "Messages from other threads for a world that had ended or restarted.",
            Counter,
            |report| report.void_posts as f64,
        ),
        each(
            "throng_shard_panics",
            "Contained panics; each closed at most the connection that caused it.",
            Counter,
            |report| report.panics as f64,
        ),
        each(
            "throng_shard_recording_parts_dropped",
            "Parts of recordings dropped because the disk was too slow; every shard reports the same number.",
            Counter,
            |report| report.recordings_dropped as f64,
        ),
        each("throng_net_accepted", "Accepted connections.", Counter, |report| {
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
            "Connections closed at once because file descriptors ran out.",
            Counter,
            |report| report.loop_stats.shed as f64,
        ),
        each(
            "throng_net_gave_way",
            "Clients without a login that were closed for newcomers because file descriptors ran short.",
            Counter,
            |report| report.loop_stats.gave_way as f64,
        ),
        each(
            "throng_net_proxy_errors",
            "Connections that come from no trusted proxy, or whose PROXY header is wrong.",
            Counter,
            |report| report.loop_stats.proxy_errors as f64,
        ),
        each(
            "throng_net_refused",
            "Connections closed at once because a listener's limit was reached.",
            Counter,
            |report| report.loop_stats.refused_by_limits as f64,
        ),
        each("throng_net_polls", "Polls for events.", Counter, |report| report.loop_stats.polls as f64),
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
pub(super) fn enet_families(reports: &[ShardReport]) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge};
    let mut hosts = HostCounters::default();
    reports.iter().for_each(|report| hosts += report.enet);
    let HostCounters { peers, half_open, held_bytes, queued_bytes, udp, enet, gate, dtls, .. } = hosts;
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
    let handshakes = [
        ("cookie", dtls.hellos),
        ("begun", dtls.begun),
        ("completed", dtls.completed),
        ("failed", dtls.failed),
        ("expired", dtls.expired),
        ("limited", dtls.limited),
        ("dropped_record", dtls.dropped),
        ("dropped_plain", dtls.dropped_plain),
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
            "ENet peers, including those that are connecting or disconnecting.",
            Gauge,
            vec![plain(peers as f64)],
        ),
        family(
            "throng_enet_half_open",
            "ENet handshakes whose address is not verified yet.",
            Gauge,
            vec![plain(half_open as f64)],
        ),
        family(
            "throng_enet_waiting_bytes",
            "Bytes of ENet packets received but not consumed, or sent but not acknowledged.",
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
        count(
            "throng_enet_made_room",
            "Times that the ENet peer with the most undeliverable data lost it, or was disconnected, for others.",
            enet.made_room,
        ),
        count(
            "throng_enet_timeouts",
            "ENet connections that ended because the peer stopped answering.",
            enet.timeouts,
        ),
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
            "Datagrams at the gate of sealed ENet: handshakes, refusals and drops.",
            Counter,
            admission.map(|(outcome, count)| labelled("outcome", outcome, count as f64)).to_vec(),
        ),
        family(
            "throng_enet_dtls",
            "DTLS of ENet clients: cookies given out, handshakes by outcome, drops.",
            Counter,
            handshakes.map(|(outcome, count)| labelled("outcome", outcome, count as f64)).to_vec(),
        ),
        family(
            "throng_enet_dtls_associations",
            "DTLS associations of ENet clients, handshakes included.",
            Gauge,
            vec![plain(dtls.associations as f64)],
        ),
        family(
            "throng_enet_resent",
            "Retransmitted reliable ENet commands: overtaken by later ones, or not acknowledged in time.",
            Counter,
            resent.map(|(cause, count)| labelled("cause", cause, count as f64)).to_vec(),
        ),
        count(
            "throng_enet_throttled_packets",
            "Unreliable ENet packets that the protocol's throttle dropped.",
            enet.throttled_packets,
        ),
        count(
            "throng_enet_send_blocked",
            "Sends blocked by a full send buffer of an ENet socket.",
            udp.blocked,
        ),
        family(
            "throng_enet_round_trip_seconds",
            "Round trips of acknowledged ENet commands.",
            FamilyKind::Histogram,
            vec![Sample { labels: Vec::new(), value: trips }],
        ),
    ]
}
