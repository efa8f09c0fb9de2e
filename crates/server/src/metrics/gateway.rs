//! Connections, messages, channels and the world.

use std::borrow::Cow;

use throng_admin::{Family, FamilyKind, Sample, SampleValue};
use throng_gateway::{AcceptRefusal, CloseReason, KindStats, Refusal, Stats, WorldServerView, WorldView};

use super::{KINDS, family, gauge, index_text, kind_name, labelled, plain, type_name};

pub(super) fn gateway_families(total: &Stats) -> Vec<Family> {
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
            "Connections refused before login, by reason.",
            Counter,
            not_accepted,
        ),
        family(
            "throng_gateway_requests_refused",
            "Refused requests, by reason; the protocol does not notify the sender.",
            Counter,
            refused,
        ),
        per_kind("throng_gateway_messages_in", "Messages delivered to a channel.", Counter, |kind| {
            kind.messages_in
        }),
        per_kind("throng_gateway_messages_out", "Messages written into output frames.", Counter, |kind| {
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
            "Bytes written to the transport, tags included.",
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
            "Updates merged because a channel's backlog exceeded its limit.",
            total.updates_folded,
        ),
        count("throng_gateway_fan_out_ticks", "Fan-out runs of all channels.", total.fan_out_ticks),
        count(
            "throng_gateway_fan_out_encodes",
            "Encodings for fan-out; sharing keeps them far below the messages.",
            total.fan_out_encodes,
        ),
        count(
            "throng_gateway_fan_out_messages",
            "Fan-out messages queued for subscribers.",
            total.fan_out_messages,
        ),
        count(
            "throng_gateway_fan_out_bytes",
            "Bytes of fan-out messages before framing.",
            total.fan_out_bytes,
        ),
        family(
            "throng_gateway_fan_out_lateness_seconds",
            "Total delay of fan-outs after their tick; divide by the ticks for the mean.",
            Counter,
            vec![plain(total.fan_out_lateness_ns as f64 / 1e9)],
        ),
        family(
            "throng_gateway_fan_out_lateness_max_seconds",
            "Longest delay of a fan-out since the start.",
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
            "State updates dropped for slow readers and replaced by a full state later.",
            total.state_dropped,
        ),
        count(
            "throng_gateway_state_loose",
            "State updates sent unreliably; a full state replaces lost ones.",
            total.state_loose,
        ),
        count(
            "throng_gateway_channels_healed",
            "Channels whose fan-out was rebuilt after a panic; their subscribers received full states.",
            total.channels_healed,
        ),
        count(
            "throng_gateway_resyncs",
            "Full states sent to readers that missed updates or may have missed some.",
            total.resyncs,
        ),
        count(
            "throng_gateway_servers_recovered",
            "Game servers that recovered their subscriptions and ownership.",
            total.servers_recovered,
        ),
        count("throng_gateway_clients_resumed", "Clients that resumed their session.", total.clients_resumed),
        count(
            "throng_gateway_recoveries_expired",
            "Lost connections that did not return in time.",
            total.recoveries_expired,
        ),
        count("throng_gateway_bans", "Bans.", total.bans),
        count("throng_gateway_mail", "Messages between shards.", total.mail_sent),
    ]
}

/// Cells, entities and what happens to them.
pub(super) fn world_families(total: &Stats, world: &WorldView) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge};
    let count = |name, help, number: u64| family(name, help, Counter, vec![plain(number as f64)]);
    let by_server = |name, help, figure: fn(&WorldServerView) -> f64| {
        let sample = |(index, server)| labelled("server", Cow::Owned(index_text(index)), figure(server));
        family(name, help, Gauge, world.servers.iter().enumerate().map(sample).collect())
    };
    let bands = total.lod_changes.iter().enumerate();
    let bands = bands.map(|(band, count)| labelled("band", index_text(band), *count as f64)).collect();
    vec![
        count("throng_world_handovers", "Entities that changed cells.", total.handovers),
        count(
            "throng_world_handovers_across_servers",
            "Entities that changed owners, with their cell or alone.",
            total.handovers_across_servers,
        ),
        count(
            "throng_world_handover_encodes",
            "Handover payloads encoded: at most two per pair of cells, for any number of subscribers.",
            total.handover_encodes,
        ),
        count(
            "throng_world_handovers_delayed",
            "Handovers that were delayed by a missing cell or a lock.",
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
            "Entities too large for a handover message; their channels carry them instead.",
            total.handovers_oversize,
        ),
        count("throng_world_interest_updates", "Areas of interest set.", total.interest_updates),
        count("throng_world_entities_created", "Entity channels created.", total.entities_created),
        family(
            "throng_world_lod_changes",
            "Subscriptions that network level of detail moved into a distance band; 0 is the nearest band.",
            Counter,
            bands,
        ),
        count("throng_world_cells_moved", "Cells that the load balancer moved.", total.cells_moved),
        by_server("throng_world_server_live", "1 if a connected server holds the slot.", |server| {
            f64::from(u8::from(server.live))
        }),
        by_server("throng_world_cells", "Cells, by owning slot.", |server| server.cells as f64),
        by_server("throng_world_cell_entities", "Entities in cells, by slot.", |server| {
            server.entities as f64
        }),
        gauge(
            "throng_world_entities",
            "Entity channels, including those outside of all cells.",
            world.entities as f64,
        ),
        gauge(
            "throng_world_entities_without_position",
            "Entities whose data has no position that can be read, so that they never change their cell.",
            world.placeless as f64,
        ),
        gauge("throng_world_cell_entities_max", "Entities in the fullest cell.", world.fullest_cell as f64),
        gauge(
            "throng_world_handovers_waiting",
            "Entities whose handover was refused and is being retried.",
            world.waiting as f64,
        ),
    ]
}
