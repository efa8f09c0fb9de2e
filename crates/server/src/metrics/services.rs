//! The services beside the gateway.

use std::borrow::Cow;

use throng_admin::{Family, FamilyKind, Sample, SampleValue};

use super::{family, gauge, labelled, plain};

/// Namespaces of the cache with samples of their own; the others are summed up.
const NAMESPACES_MAX: usize = 20;
/// Label of the others: no namespace, for a name has no spaces.
const REST: &str = "all others";

/// Sizes of the namespaces of the cache, the largest first.
pub(super) fn size_families(sizes: &[(String, throng_ddc_store::Usage)]) -> Vec<Family> {
    let by = |name, help, of: fn(&throng_ddc_store::Usage) -> u64| {
        let (large, rest) = sizes.split_at(sizes.len().min(NAMESPACES_MAX));
        let mut rows: Vec<_> =
            large.iter().map(|(name, usage)| labelled("namespace", name.clone(), of(usage) as f64)).collect();
        let sum: u64 = rest.iter().map(|(_, usage)| of(usage)).sum();
        rows.push(labelled("namespace", REST, sum as f64));
        family(name, help, FamilyKind::Gauge, rows)
    };
    vec![
        by("throng_ddc_refs", "Refs, by namespace; the smaller ones together as `all others`.", |usage| {
            usage.refs
        }),
        by("throng_ddc_blobs", "Blobs, by namespace.", |usage| usage.blobs),
        by("throng_ddc_blob_bytes", "Bytes of blobs, by namespace.", |usage| usage.blob_bytes),
    ]
}

pub(super) fn cache_families(cache: &throng_ddc_server::CacheStats) -> Vec<Family> {
    use FamilyKind::Counter;
    let latencies = throng_ddc_server::OPERATIONS.iter().zip(&cache.latencies).map(|(name, taken)| Sample {
        labels: vec![("operation", Cow::Borrowed(*name))],
        value: SampleValue::Histogram {
            bounds: Cow::Borrowed(&throng_ddc_server::LATENCY_BOUNDS_S),
            counts: taken.counts.to_vec(),
            sum: taken.sum_s,
        },
    });
    let count = |name, help, number: u64| family(name, help, Counter, vec![plain(number as f64)]);
    let lookup = |kind: &'static str, result: &'static str, number: u64| Sample {
        labels: vec![("kind", Cow::Borrowed(kind)), ("result", Cow::Borrowed(result))],
        value: SampleValue::Number(number as f64),
    };
    vec![
        count("throng_ddc_requests", "Requests to the derived-data cache.", cache.requests),
        count("throng_ddc_failures", "Requests that failed with a server error.", cache.failures),
        count("throng_ddc_malformed", "Malformed requests to the cache.", cache.malformed),
        count(
            "throng_ddc_overloaded",
            "Requests to the cache that were answered with 429: no memory was free for them, or no room in the queue of the disk.",
            cache.overloaded,
        ),
        family(
            "throng_ddc_lookups",
            "Lookups of refs and blobs.",
            Counter,
            vec![
                lookup("ref", "hit", cache.ref_hits),
                lookup("ref", "miss", cache.ref_misses),
                lookup("blob", "hit", cache.blob_hits),
                lookup("blob", "miss", cache.blob_misses),
            ],
        ),
        family(
            "throng_ddc_request_seconds",
            "Time from a request's head to the response's, by operation.",
            FamilyKind::Histogram,
            latencies.collect(),
        ),
        count("throng_ddc_in_bytes", "Bytes of received blobs.", cache.bytes_in),
        count("throng_ddc_out_bytes", "Bytes of response bodies.", cache.bytes_out),
        count(
            "throng_ddc_collections",
            "Garbage collections of expired refs and unreferenced blobs.",
            cache.collections,
        ),
        count("throng_ddc_collected_refs", "Refs removed by garbage collection.", cache.collected_refs),
        count("throng_ddc_collected_blobs", "Blobs removed by garbage collection.", cache.collected_blobs),
        count(
            "throng_ddc_collected_bytes",
            "Bytes of blobs removed by garbage collection.",
            cache.collected_bytes,
        ),
        count("throng_ddc_scrubbed_bytes", "Bytes read by scrubs.", cache.scrubbed_bytes),
        count(
            "throng_ddc_damaged",
            "Blobs found damaged or missing; lookups miss them since.",
            cache.damaged,
        ),
        count("throng_ddc_fetched_blobs", "Blobs fetched from object storage or an upstream.", cache.fetched),
        count(
            "throng_ddc_fetched_bytes",
            "Bytes of blobs fetched from object storage or an upstream.",
            cache.fetched_bytes,
        ),
        count(
            "throng_ddc_passed_on",
            "Blobs and refs of an upstream that were served without a copy, because the folder took none.",
            cache.passed,
        ),
        count(
            "throng_ddc_origin_failures",
            "Failed requests to object storage or an upstream.",
            cache.origin_failures,
        ),
        count("throng_ddc_commits", "Batches written to the log of the cache.", cache.store.commits),
        count(
            "throng_ddc_changes",
            "Changes in the batches written to the log of the cache.",
            cache.store.changes,
        ),
        count("throng_ddc_log_bytes", "Bytes appended to the log of the cache.", cache.store.log_bytes),
        count("throng_ddc_checkpoints", "Checkpoints of the index of the cache.", cache.store.checkpoints),
        count(
            "throng_ddc_write_failures",
            "Changes that could not be written to disk.",
            cache.store.failures,
        ),
        count(
            "throng_ddc_upkeep_failures",
            "Garbage collections, evictions and scrubs that failed.",
            cache.upkeep_failures,
        ),
        gauge(
            "throng_ddc_free_bytes",
            "Bytes that the disk of the cache's folder has left.",
            cache.space.free.map_or(f64::NAN, |free| free as f64),
        ),
        gauge("throng_ddc_used_bytes", "Bytes in the cache's folder.", cache.space.used as f64),
        gauge(
            "throng_ddc_full",
            "1 when the disk has too little space for uploads.",
            f64::from(u8::from(cache.space.is_full)),
        ),
        gauge(
            "throng_ddc_index_damaged",
            "1 when the index was found damaged; a restart rebuilds it.",
            f64::from(u8::from(cache.index_damaged)),
        ),
    ]
}

pub(super) fn matcher_families(report: &throng_matcher_server::Report) -> Vec<Family> {
    let counter =
        |name, help, number: u64| family(name, help, FamilyKind::Counter, vec![plain(number as f64)]);
    let by = |label: &'static str, rows: &[(&'static str, u64)]| {
        rows.iter().map(|(name, count)| labelled(label, *name, *count as f64)).collect::<Vec<_>>()
    };
    let counts = &report.counts;
    let latencies =
        report.latencies.iter().filter(|(_, taken)| taken.counts().iter().any(|count| *count > 0));
    let latencies =
        latencies.map(|(method, taken)| observations(vec![("method", Cow::Borrowed(*method))], taken));
    let flushes = report.flushes.iter().map(|taken| observations(Vec::new(), taken));
    let mut families = vec![
        family(
            "throng_matcher_requests",
            "Requests, by method.",
            FamilyKind::Counter,
            by("method", &report.requests),
        ),
        family(
            "throng_matcher_request_seconds",
            "Time from the arrival of a request's batch to its answer, by method, without waiting for the disk.",
            FamilyKind::Histogram,
            latencies.collect(),
        ),
        family(
            "throng_matcher_refusals",
            "Unsuccessful answers, by status; many of one status indicate a faulty client.",
            FamilyKind::Counter,
            by("status", &report.errors),
        ),
        gauge("throng_matcher_rooms", "Rooms, including those that are closing.", counts.rooms as f64),
        gauge("throng_matcher_teams", "Teams.", counts.teams as f64),
        gauge("throng_matcher_roles", "Roles in rooms and teams.", counts.players as f64),
        gauge("throng_matcher_servers", "Game servers with a session or roles.", counts.servers as f64),
        gauge(
            "throng_matcher_sessions",
            "Notification streams, including lost ones.",
            report.sessions as f64,
        ),
        gauge("throng_matcher_connections", "Open connections.", report.connections as f64),
        counter("throng_matcher_rooms_made", "Rooms created.", report.core.rooms_created),
        counter("throng_matcher_rooms_destroyed", "Rooms destroyed.", report.core.rooms_destroyed),
        counter("throng_matcher_roles_joined", "Roles that joined rooms.", report.core.roles_joined),
        counter(
            "throng_matcher_replayed_answers",
            "Requests answered by their idempotency key: retries without a second effect.",
            report.core.replayed_answers,
        ),
        counter(
            "throng_matcher_policy_questions",
            "Requests to room policies.",
            report.core.policy_questions,
        ),
        counter(
            "throng_matcher_policy_failures",
            "Policy requests without a decision in time; the requests behind them failed and changed nothing.",
            report.core.policy_failures,
        ),
        gauge(
            "throng_matcher_policy_open",
            "Policy requests waiting for a decision; at most 1,000.",
            report.open_questions as f64,
        ),
        counter("throng_matcher_notices", "Notification entries queued.", report.notices_queued),
        counter(
            "throng_matcher_notices_collapsed",
            "Notification entries replaced by later ones before they were sent.",
            report.notices_collapsed,
        ),
        counter(
            "throng_matcher_batches",
            "Frames with notification entries; entries per frame show the degree of batching.",
            report.batches_sent,
        ),
        family(
            "throng_matcher_batch_requests",
            "Requests per batch; a batch is written to the journal at once.",
            FamilyKind::Histogram,
            report.requests_per_batch.iter().map(|taken| observations(Vec::new(), taken)).collect(),
        ),
        family(
            "throng_matcher_batch_notices",
            "Notification entries per frame.",
            FamilyKind::Histogram,
            report.notices_per_frame.iter().map(|taken| observations(Vec::new(), taken)).collect(),
        ),
        counter(
            "throng_matcher_lagging",
            "Sessions reset because the client read too slowly; the client must fetch its rooms again.",
            report.lagging,
        ),
        gauge(
            "throng_matcher_stream_bytes",
            "Memory of notification streams: entries that wait for a reader or are kept for its resumption; at most \
             32 MiB for each.",
            report.stream_bytes as f64,
        ),
        counter("throng_matcher_journal_bytes", "Bytes written to the journal.", report.journal_bytes),
        family(
            "throng_matcher_journal_flush_seconds",
            "Duration of journal flushes; with `durability = \"sync\"` answers wait for one.",
            FamilyKind::Histogram,
            flushes.collect(),
        ),
        gauge("throng_matcher_tickets", "Live tickets of all queues.", counts.tickets as f64),
        gauge(
            "throng_matcher_matches",
            "Matches that are proposed, in play, or open for a result.",
            counts.matches as f64,
        ),
    ];
    families.extend(mode_families(&report.mode_counts));
    families.extend(queue_families(&report.queues));
    families
}

/// One series per mode that was configured, and one for all others.
fn mode_families(modes: &[throng_matcher::ModeCounts]) -> Vec<Family> {
    let by_mode = |name, help, of: fn(&throng_matcher::ModeCounts) -> u64| {
        let rows = modes.iter().map(|mode| labelled("mode", mode.name.clone(), of(mode) as f64));
        family(name, help, FamilyKind::Gauge, rows.collect())
    };
    vec![
        by_mode(
            "throng_matcher_mode_rooms",
            "Rooms, by mode; modes without configuration are counted together.",
            |mode| mode.rooms,
        ),
        by_mode("throng_matcher_mode_members", "Members of rooms, by mode.", |mode| mode.members),
        by_mode("throng_matcher_mode_teams", "Teams whose members are in rooms, by mode.", |mode| mode.teams),
        by_mode("throng_matcher_mode_seats", "Seats in rooms reserved for roles, by mode.", |mode| {
            mode.seats
        }),
    ]
}

fn observations(labels: Vec<(&'static str, Cow<'static, str>)>, taken: &throng_matcher::Histogram) -> Sample {
    let (bounds, counts, sum) = (Cow::Borrowed(taken.bounds()), taken.counts().to_vec(), taken.sum());
    Sample { labels, value: SampleValue::Histogram { bounds, counts, sum } }
}

/// One series per queue; a report has 100 of them at most.
fn queue_families(queues: &[throng_matcher::QueueReport]) -> Vec<Family> {
    use FamilyKind::{Counter, Gauge};
    let by_queue = |name, help, kind, of: fn(&throng_matcher::QueueReport) -> f64| {
        let rows = queues.iter().map(|queue| labelled("queue", queue.name.clone(), of(queue)));
        family(name, help, kind, rows.collect())
    };
    let observed = |name, help, of: fn(&throng_matcher::QueueReport) -> &throng_matcher::Histogram| {
        let rows = queues
            .iter()
            .map(|queue| observations(vec![("queue", Cow::Owned(queue.name.clone()))], of(queue)));
        family(name, help, FamilyKind::Histogram, rows.collect())
    };
    vec![
        by_queue(
            "throng_matcher_queue_tickets",
            "Tickets searching for a match, by queue.",
            Gauge,
            |queue| queue.searching as f64,
        ),
        by_queue(
            "throng_matcher_queue_proposed",
            "Tickets waiting for their players to accept a match, by queue.",
            Gauge,
            |queue| queue.proposed as f64,
        ),
        by_queue(
            "throng_matcher_queue_placing",
            "Tickets whose match waits for its server, by queue.",
            Gauge,
            |queue| queue.placing as f64,
        ),
        by_queue(
            "throng_matcher_queue_backfills",
            "Backfills searching for players, by queue.",
            Gauge,
            |queue| queue.backfills as f64,
        ),
        by_queue("throng_matcher_queue_matches", "Matches found, by queue.", Counter, |queue| {
            queue.matches as f64
        }),
        by_queue(
            "throng_matcher_queue_relaxed_matches",
            "Matches that needed a relaxed rule, by queue; if it is nearly all of them, the rules are too strict for the players.",
            Counter,
            |queue| queue.relaxed as f64,
        ),
        expansions(queues),
        by_queue("throng_matcher_queue_timed_out", "Tickets that timed out, by queue.", Counter, |queue| {
            queue.timed_out as f64
        }),
        by_queue(
            "throng_matcher_queue_cancelled",
            "Tickets cancelled by their owners, by queue.",
            Counter,
            |queue| queue.cancelled as f64,
        ),
        by_queue(
            "throng_matcher_queue_declined",
            "Proposals that a player declined, by queue.",
            Counter,
            |queue| queue.declined as f64,
        ),
        by_queue(
            "throng_matcher_queue_failed",
            "Tickets that can no longer match because of changed rules or a lost member, by queue.",
            Counter,
            |queue| queue.failed as f64,
        ),
        by_queue("throng_matcher_queue_scans", "Tickets examined by searches, by queue.", Counter, |queue| {
            queue.scans as f64
        }),
        observed(
            "throng_matcher_queue_quality",
            "Quality of matches from 0 to 1: balance of the sides, satisfied soft rules, latency.",
            |queue| &queue.qualities,
        ),
        observed("throng_matcher_queue_wait_seconds", "Wait times of matched tickets.", |queue| &queue.waits),
        observed(
            "throng_matcher_queue_tick_seconds",
            "Duration of whole ticks; requests are served between their slices.",
            |queue| &queue.ticks,
        ),
    ]
}

/// Steps of an expansion that have a series of their own; those beyond are counted with the last.
const STEPS_MAX: usize = 10;

fn expansions(queues: &[throng_matcher::QueueReport]) -> Family {
    let rows = queues.iter().flat_map(|queue| {
        let last = queue.expansions.len().min(STEPS_MAX);
        (0..last).map(move |step| {
            let end = if step + 1 == STEPS_MAX { queue.expansions.len() } else { step + 1 };
            let matches: u64 = queue.expansions[step..end].iter().sum();
            let labels =
                vec![("queue", Cow::Owned(queue.name.clone())), ("step", Cow::Owned(step.to_string()))];
            Sample { labels, value: SampleValue::Number(matches as f64) }
        })
    });
    family(
        "throng_matcher_queue_expansions",
        "Matches by the rule expansion step that they needed; 0 is the strict rules, 9 includes all later steps.",
        FamilyKind::Counter,
        rows.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twenty_largest_namespaces_have_samples_and_the_others_share_one() {
        let sizes: Vec<_> = (0..25_u64)
            .map(|n| (format!("n{n}"), throng_ddc_store::Usage { blob_bytes: 100 - n, ..Default::default() }))
            .collect();
        let families = size_families(&sizes);
        let bytes = families.last().expect("three families");
        let rows: Vec<(&str, f64)> = bytes
            .samples
            .iter()
            .map(|sample| match (&sample.labels[..], &sample.value) {
                ([("namespace", name)], SampleValue::Number(number)) => (&**name, *number),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(rows.len(), NAMESPACES_MAX + 1);
        assert_eq!((rows[0], rows[19]), (("n0", 100.0), ("n19", 81.0)));
        assert_eq!(rows[20], (REST, (76..=80).sum::<u32>().into()));
    }
}
