//! The services beside the gateway.

use std::borrow::Cow;

use throng_admin::{Family, FamilyKind, Sample, SampleValue};

use super::{family, gauge, labelled, plain};

pub(super) fn cache_families(cache: &throng_ddc_server::Figures) -> Vec<Family> {
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
        count("throng_ddc_fetched_blobs", "Blobs brought from object storage or an upstream.", cache.fetched),
        count("throng_ddc_fetched_bytes", "Bytes of those blobs.", cache.fetched_bytes),
        count(
            "throng_ddc_origin_failures",
            "Requests to object storage or an upstream that failed.",
            cache.origin_failures,
        ),
        count("throng_ddc_commits", "Batches written to the log of the cache.", cache.store.commits),
        count("throng_ddc_changes", "Changes in those batches.", cache.store.changes),
        count("throng_ddc_log_bytes", "Bytes appended to the log of the cache.", cache.store.log_bytes),
        count("throng_ddc_checkpoints", "Checkpoints of the index of the cache.", cache.store.checkpoints),
        count("throng_ddc_write_failures", "Changes that the disk refused.", cache.store.failures),
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
            "Requests by method: what players and servers do.",
            FamilyKind::Counter,
            by("method", &report.requests),
        ),
        family(
            "throng_matcher_request_seconds",
            "Time from the arrival of a request's batch to its answer, by method; waiting for the disk not included.",
            FamilyKind::Histogram,
            latencies.collect(),
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
        counter("throng_matcher_policy_questions", "Questions to policies.", report.core.policy_questions),
        counter(
            "throng_matcher_policy_failures",
            "Questions without a verdict in time; their requests failed and changed nothing.",
            report.core.policy_failures,
        ),
        gauge(
            "throng_matcher_policy_open",
            "Questions to policies that wait for their verdict; 1,000 at most.",
            report.open_questions as f64,
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
        family(
            "throng_matcher_batch_requests",
            "Requests that were executed as one batch, with one write to the journal.",
            FamilyKind::Histogram,
            report.requests_per_batch.iter().map(|taken| observations(Vec::new(), taken)).collect(),
        ),
        family(
            "throng_matcher_batch_notices",
            "Entries of notifications that went out in one frame: how much is merged.",
            FamilyKind::Histogram,
            report.notices_per_frame.iter().map(|taken| observations(Vec::new(), taken)).collect(),
        ),
        counter(
            "throng_matcher_lagging",
            "Sessions reset because their destination read too slowly; it has to fetch its rooms again.",
            report.lagging,
        ),
        counter("throng_matcher_journal_bytes", "Bytes written to the journal.", report.journal_bytes),
        family(
            "throng_matcher_journal_flush_seconds",
            "Time that flushes of the journal took; with `durability = \"sync\"` answers wait for one.",
            FamilyKind::Histogram,
            flushes.collect(),
        ),
        gauge("throng_matcher_tickets", "Live tickets of all queues.", counts.tickets as f64),
        gauge(
            "throng_matcher_matches",
            "Matches that are proposed, played, or whose result can still be reported.",
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
            "Rooms by mode; modes that nobody has configured are counted together.",
            |mode| mode.rooms,
        ),
        by_mode("throng_matcher_mode_members", "Members of rooms by mode.", |mode| mode.members),
        by_mode(
            "throng_matcher_mode_teams",
            "Teams whose members are in rooms, by mode; a team that is in no room is of none.",
            |mode| mode.teams,
        ),
        by_mode("throng_matcher_mode_seats", "Places in rooms that are kept for roles, by mode.", |mode| {
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
        by_queue("throng_matcher_queue_tickets", "Tickets that search, by queue.", Gauge, |queue| {
            queue.searching as f64
        }),
        by_queue(
            "throng_matcher_queue_proposed",
            "Tickets whose players are asked whether they accept, by queue.",
            Gauge,
            |queue| queue.proposed as f64,
        ),
        by_queue(
            "throng_matcher_queue_placing",
            "Tickets whose match waits for its server, by queue.",
            Gauge,
            |queue| queue.placing as f64,
        ),
        by_queue("throng_matcher_queue_backfills", "Backfills that ask for players.", Gauge, |queue| {
            queue.backfills as f64
        }),
        by_queue("throng_matcher_queue_matches", "Matches found.", Counter, |queue| queue.matches as f64),
        by_queue(
            "throng_matcher_queue_relaxed_matches",
            "Matches that needed a relaxed rule; nearly all of them: the rules are too strict for who plays.",
            Counter,
            |queue| queue.relaxed as f64,
        ),
        expansions(queues),
        by_queue("throng_matcher_queue_timed_out", "Tickets that waited too long.", Counter, |queue| {
            queue.timed_out as f64
        }),
        by_queue("throng_matcher_queue_cancelled", "Tickets given up by their owners.", Counter, |queue| {
            queue.cancelled as f64
        }),
        by_queue("throng_matcher_queue_declined", "Proposals that somebody declined.", Counter, |queue| {
            queue.declined as f64
        }),
        by_queue(
            "throng_matcher_queue_failed",
            "Tickets that can never match any more, by changed rules or a lost member.",
            Counter,
            |queue| queue.failed as f64,
        ),
        by_queue("throng_matcher_queue_scans", "Neighbours looked at by searches.", Counter, |queue| {
            queue.scans as f64
        }),
        observed(
            "throng_matcher_queue_quality",
            "Quality of matches, 0 to 1: how even the sides are, soft rules kept, latency.",
            |queue| &queue.qualities,
        ),
        observed("throng_matcher_queue_wait_seconds", "Waits of matched tickets.", |queue| &queue.waits),
        observed(
            "throng_matcher_queue_tick_seconds",
            "Time that whole ticks took; requests are served between their slices.",
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
        "Matches by the step of the rules' expansion that they needed; 0 are the strict rules, 9 also what comes after.",
        FamilyKind::Counter,
        rows.collect(),
    )
}
