//! Every metric: name, help, labels, and the source of its value.
//!
//! `docs/reference/metrics.md` is generated from these tables; a test keeps it fresh.

mod gateway;
mod reference;
mod services;
mod shards;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gateway::{gateway_families, world_families};
pub(crate) use reference::reference_families;
use services::{cache_families, matcher_families, size_families};
use shards::{enet_families, shard_families};
use throng_admin::{Family, FamilyKind, Sample, SampleValue};
use throng_gateway::{ChannelType, ConnKind, Stats, WorldView};

use crate::process::ProcessFigures;
use crate::report::ShardReport;
use crate::world::World;
use crate::worlds::OpenWorld;

/// Sources of the metrics at one moment.
pub(crate) struct MetricSources<'a> {
    pub(crate) reports: &'a [ShardReport],
    pub(crate) process: ProcessFigures,
    pub(crate) started_unix_s: f64,
    pub(crate) ready: bool,
    pub(crate) logins_pending: usize,
    /// Of the derived-data cache, if one runs.
    pub(crate) cache: Option<throng_ddc_server::CacheStats>,
    /// Of its namespaces, the largest first.
    pub(crate) cache_sizes: Vec<(String, throng_ddc_store::Usage)>,
    /// The open worlds.
    pub(crate) worlds: Vec<OpenWorld>,
    /// Names of the classes.
    pub(crate) classes: Vec<Arc<str>>,
    /// Of the matcher, where one runs.
    pub(crate) matcher: Option<&'a throng_matcher_server::Report>,
    /// Of the node of a cluster.
    pub(crate) cluster: Vec<Family>,
}

/// Above every bound of the round trips but the last, which has none.
const ROUND_TRIP_UNBOUNDED_S: f64 = 1e6;

const KINDS: [ConnKind; 2] = [ConnKind::Server, ConnKind::Client];

/// The sum of all shards' counters.
pub(crate) fn total(reports: &[ShardReport]) -> Stats {
    let mut total = Stats::default();
    reports.iter().for_each(|report| total.add(&report.stats()));
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
pub(crate) fn families(figures: &MetricSources<'_>) -> Vec<Family> {
    let total = total(figures.reports);
    let mut families = gateway_families(&total);
    let world =
        figures.reports.iter().flat_map(|report| &report.worlds).find_map(|world| world.view.as_ref());
    families.extend(world_families(&total, world.unwrap_or(&WorldView::default())));
    families.extend(named_world_families(figures));
    families.extend(shard_families(figures.reports));
    families.extend(enet_families(figures.reports));
    families.extend(figures.cache.iter().flat_map(cache_families));
    if figures.cache.is_some() {
        families.extend(size_families(&figures.cache_sizes));
    }
    families.extend(figures.matcher.map(matcher_families).into_iter().flatten());
    families.extend(figures.cluster.iter().cloned());
    families.extend(process_families(figures));
    families
}

/// Class of worlds that have none, as a label.
const NO_CLASS: &str = "none";

/// Figures of the worlds that are there from the start, and sums over the worlds of each class, so
/// that the number of series is bounded. The gateway's own figures are of all worlds.
fn named_world_families(figures: &MetricSources<'_>) -> Vec<Family> {
    let mut by_world: HashMap<World, Stats> = HashMap::new();
    for report in figures.reports.iter().flat_map(|report| &report.worlds) {
        by_world.entry(report.world).or_default().add(&report.stats);
    }
    let mut worlds: Vec<(String, Stats)> = Vec::new();
    let mut classes: BTreeMap<String, (u64, Stats)> =
        figures.classes.iter().map(|name| (name.to_string(), Default::default())).collect();
    for open in &figures.worlds {
        let stats = by_world.remove(&open.world).unwrap_or_default();
        if open.world != World::MAIN {
            let class = open.class.as_deref().unwrap_or(NO_CLASS);
            let (count, sum) = classes.entry(class.to_owned()).or_default();
            *count += 1;
            sum.add(&stats);
        }
        if open.lasting {
            worlds.push((open.name.to_string(), stats));
        }
    }
    let mut families = Vec::new();
    for (name, of_class, help, of_class_help, figure) in [
        (
            "throng_world_servers",
            "throng_class_servers",
            "Open connections of game servers in a world that opens at the start.",
            "Open connections of game servers in the worlds of a class.",
            (|stats| stats.kind(ConnKind::Server).connections) as fn(&Stats) -> u64,
        ),
        (
            "throng_world_clients",
            "throng_class_clients",
            "Open connections of clients in a world that opens at the start.",
            "Open connections of clients in the worlds of a class.",
            |stats| stats.kind(ConnKind::Client).connections,
        ),
        (
            "throng_world_channels",
            "throng_class_channels",
            "Channels of a world that opens at the start.",
            "Channels of the worlds of a class.",
            |stats| stats.channels.values().sum(),
        ),
    ] {
        let sample = |(name, stats): &(String, Stats)| labelled("world", name.clone(), figure(stats) as f64);
        families.push(family(name, help, FamilyKind::Gauge, worlds.iter().map(sample).collect()));
        let samples =
            classes.iter().map(|(class, (_, stats))| labelled("class", class.clone(), figure(stats) as f64));
        families.push(family(of_class, of_class_help, FamilyKind::Gauge, samples.collect()));
    }
    let samples = classes.iter().map(|(class, (count, _))| labelled("class", class.clone(), *count as f64));
    let help = "Open worlds of a class, besides the default world.";
    families.push(family("throng_class_worlds", help, FamilyKind::Gauge, samples.collect()));
    families
}

fn process_families(figures: &MetricSources<'_>) -> Vec<Family> {
    let process = &figures.process;
    vec![
        gauge("throng_ready", "1 if the process accepts players.", f64::from(u8::from(figures.ready))),
        gauge(
            "throng_auth_pending",
            "Logins waiting for the result of authentication.",
            figures.logins_pending as f64,
        ),
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
        gauge("process_max_fds", "Limit of open file descriptors.", process.max_fds as f64),
        gauge("process_threads", "Threads of the process.", process.threads as f64),
        gauge("process_start_time_seconds", "Start of the process, Unix time.", figures.started_unix_s),
    ]
}

pub(crate) fn family(
    name: &'static str,
    help: &'static str,
    kind: FamilyKind,
    samples: Vec<Sample>,
) -> Family {
    Family { name, help, kind, samples }
}

pub(crate) fn gauge(name: &'static str, help: &'static str, number: f64) -> Family {
    family(name, help, FamilyKind::Gauge, vec![plain(number)])
}

pub(crate) fn plain(number: f64) -> Sample {
    Sample { labels: Vec::new(), value: SampleValue::Number(number) }
}

pub(crate) fn labelled(name: &'static str, value: impl Into<Cow<'static, str>>, number: f64) -> Sample {
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
    use crate::report::{RoundTimes, WorldReport};
    use crate::report::{TICK_BOUNDS, Ticks};
    use throng_gateway::WorldServerView;
    use throng_net::enet::HostCounters;

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
        let world = WorldReport {
            world: World::MAIN,
            stats,
            view: Some(world),
            connections: Vec::new(),
            channels: Vec::new(),
        };
        vec![ShardReport {
            worlds: vec![world],
            retired: Stats::default(),
            loop_stats: throng_net::LoopStats::default(),
            enet: HostCounters::default(),
            rounds: RoundTimes::default(),
            ticks,
            panics: 0,
            congestions: 0,
            void_posts: 0,
            mailbox: Taken::default(),
            mailbox_peak_bytes: 0,
            recordings_dropped: 0,
        }]
    }

    /// Report of a matcher about an unused queue.
    fn queues() -> Vec<throng_matcher::QueueReport> {
        let sides = r#"[{"name": "one", "min": 1, "max": 1}, {"name": "two", "min": 1, "max": 1}]"#;
        let rules = format!(r#"{{"name": "duel", "sides": {sides}}}"#);
        let rules = throng_matcher::QueueRules::parse(rules.as_bytes()).unwrap();
        let config = throng_matcher::Config { queues: vec![rules], ..throng_matcher::Config::default() };
        let mut reports =
            throng_matcher::Matcher::new(config, [7; 32], throng_matcher::WallMs(1)).queue_reports(1);
        // Two matches under the strict rules, and more steps than have series.
        reports[0].expansions = vec![2, 0, 1, 0, 0, 0, 0, 0, 0, 3, 4];
        reports
    }

    fn all() -> (Vec<Family>, Vec<Family>) {
        let reports = example();
        let mut taken = throng_matcher::Histogram::new(&[0.001]);
        taken.observe(0.0005);
        let matcher = throng_matcher_server::Report {
            requests: vec![("Ping", 1)],
            latencies: vec![("Ping", taken.clone())],
            requests_per_batch: Some(taken.clone()),
            notices_per_frame: Some(taken.clone()),
            mode_counts: vec![throng_matcher::ModeCounts {
                rooms: 3,
                ..throng_matcher::ModeCounts::new("duel")
            }],
            flushes: Some(taken),
            errors: vec![("INVALID", 1)],
            queues: queues(),
            ..throng_matcher_server::Report::default()
        };
        let figures = MetricSources {
            reports: &reports,
            process: ProcessFigures::default(),
            started_unix_s: 0.0,
            ready: true,
            logins_pending: 0,
            cache: Some(throng_ddc_server::CacheStats::default()),
            cache_sizes: vec![("game".to_owned(), throng_ddc_store::Usage::default())],
            matcher: Some(&matcher),
            worlds: vec![OpenWorld {
                name: "main".into(),
                world: World::MAIN,
                worker: 0,
                workers: [0].into(),
                class: None,
                lasting: true,
                is_match: false,
            }],
            classes: vec!["duel".into()],
            cluster: crate::cluster::families_for_reference(),
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
            "\n## Names of channeld\n\nWith `metrics.compat = \"channeld\"` (the default of `throng channeld`) the page also has channeld's\n\
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
    fn matches_are_counted_by_step_and_rooms_by_mode() {
        let (own, _) = all();
        let rows = |name: &str| {
            let family = own.iter().find(|family| family.name == name).unwrap();
            let row = |sample: &Sample| match sample.value {
                SampleValue::Number(number) => {
                    (sample.labels.last().map(|(_, label)| label.to_string()).unwrap(), number)
                }
                SampleValue::Histogram { .. } => panic!("{name} is a histogram"),
            };
            family.samples.iter().map(row).collect::<Vec<_>>()
        };
        let steps = rows("throng_matcher_queue_expansions");
        assert_eq!(steps.len(), 10);
        assert_eq!([&steps[0], &steps[2], &steps[9]].map(|(_, number)| *number), [2.0, 1.0, 7.0]);
        assert_eq!(rows("throng_matcher_mode_rooms"), [("duel".to_owned(), 3.0)]);
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
