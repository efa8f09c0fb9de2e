//! Many worlds in a process and on the nodes of a cluster.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::channel::median;
use super::{BenchError, CPU_PLAYERS, Context, SHARE_MIN, Server};
use crate::arena;
use crate::child::ServerOptions;
use crate::cluster::{self, CLASS, Cluster, ClusterOptions, GroupsPlan, Visitor};
use crate::interrupt;
use crate::probe::Probe;
use crate::report::{Better, Report, Row, Run};
use crate::stats::Times;

/// Pairs of runs, in turn: the speed of a shared machine drifts within minutes.
fn pairs(context: &Context<'_>) -> usize {
    context.options.effort.pick(5, 3, 1)
}

fn own_servers(context: &Context<'_>) -> Result<(), BenchError> {
    match context.options.target {
        Some(_) => Err(BenchError::NeedsOwnServer(context.name)),
        None => Ok(()),
    }
}

impl Context<'_> {
    /// One thread, as a world of a cluster has, unless the options say otherwise.
    fn one_shard(&self) -> ServerOptions {
        let mut options = self.server_options(self.options.transport, None);
        options.shards.get_or_insert(1);
        options
    }

    fn cluster(&self, nodes: usize, worlds: Vec<String>, class: &'static str) -> Result<Cluster, BenchError> {
        let ServerOptions { program, shards, transport, flags, .. } = self.one_shard();
        let schema = ("demo.proto", arena::SCHEMA);
        let watched = true;
        Ok(Cluster::start(&ClusterOptions {
            program,
            nodes,
            worlds,
            schema,
            transport,
            shards,
            class,
            flags,
            watched,
        })?)
    }

    fn begin(&self, what: &str) {
        self.progress.borrow_mut().begin(&format!("{}: {what}", self.name), None);
    }
}

pub(super) fn single(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let other = context.options.against.as_deref().unwrap_or(&context.options.program);
    let (players, canonical) = context.size(CPU_PLAYERS, 20);
    let mut report = context.report(canonical && context.options.against.is_some());
    report.setting("against", other.display().to_string());
    if context.options.against.is_none() {
        let note =
            "compared with itself, which shows the differences by chance; --against FILE names another build";
        report.note(note.to_owned());
    }
    let start = |program: &Path| {
        let program = program.to_owned();
        context.start(&ServerOptions { program, ..context.one_shard() })
    };
    let ratio = compare(
        context,
        &mut report,
        players,
        [("the other build", &|| start(other)), ("this build", &|| start(&context.options.program))],
    )?;
    let what = format!("server CPU per player at {players} players, the other build = 1");
    report.row(Row::new(what, "x", Better::Lower, ratio).marks(1.02, 1.0));
    Ok(report)
}

pub(super) fn local(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let (players, canonical) = context.size(CPU_PLAYERS, 20);
    let mut report = context.report(canonical);
    let ratio = compare(
        context,
        &mut report,
        players,
        [
            ("no cluster", &|| context.start(&context.one_shard())),
            ("a node", &|| Server::of_cluster(context.cluster(1, Vec::new(), "")?)),
        ],
    )?;
    let what = format!("server CPU per player of a node at {players} players, no cluster = 1");
    report.row(Row::new(what, "x", Better::Lower, ratio).marks(1.05, 1.01));
    Ok(report)
}

type Start<'a> = (&'a str, &'a dyn Fn() -> Result<Server, BenchError>);

/// Plays the published scenario on two kinds of servers in turn. Returns the median of the CPU of
/// the second relative to the first.
fn compare(
    context: &Context<'_>,
    report: &mut Report,
    players: usize,
    kinds: [Start<'_>; 2],
) -> Result<f64, BenchError> {
    let (mut costs, mut ratios, mut complete) = ([Vec::new(), Vec::new()], Vec::new(), true);
    for pair in 1..=pairs(context) {
        for (index, (kind, start)) in kinds.iter().enumerate() {
            let server = start()?;
            let name = format!("{players} players, {kind}, run {pair}");
            let outcome = context.run(&name, &context.plan(&server, players), &server)?;
            complete &= outcome.delivered_share() >= SHARE_MIN;
            let cpu = outcome.server_cpu.unwrap_or_default().as_secs_f64();
            costs[index].push(cpu * 1e3 / outcome.window.as_secs_f64() / players as f64);
            report.run(Run::new(name, &outcome));
        }
        let last = |index: usize| costs[index].last().copied().unwrap_or(f64::NAN);
        ratios.push(last(1) / last(0));
    }
    report.threshold("fan-outs delivered in each run >= 99%", f64::from(u8::from(complete)), complete);
    for (costs, (kind, _)) in costs.iter_mut().zip(kinds) {
        let what = format!("server CPU per second and player at {players} players, {kind}");
        report.row(Row::new(what, "ms", Better::Lower, median(costs)));
    }
    Ok(median(&mut ratios))
}

/// Players of each group.
const GROUP: usize = 10;

pub(super) fn many(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let (count, canonical) = context.size(60, 4);
    let mut report = context.report(canonical);
    report.setting("groups", count);
    report.setting("players_of_each", GROUP);
    let names: Vec<String> = (0..count).map(|number| format!("w{number}")).collect();
    let kinds = [
        ("one world", Vec::new(), vec![String::new(); count]),
        ("worlds of their own", names.clone(), names),
    ];
    let (mut costs, mut ratios, mut worst) = ([Vec::new(), Vec::new()], Vec::new(), 1.0_f64);
    for pair in 1..=pairs(context) {
        for (index, (kind, open, worlds)) in kinds.iter().enumerate() {
            let options = context.server_options(context.options.transport, None);
            let server = context.start(&ServerOptions { worlds: open.clone(), ..options })?;
            let plan = context.plan(&server, count * GROUP);
            let name = format!("{count} groups of {GROUP}, {kind}, run {pair}");
            context.begin(&name);
            let plan = GroupsPlan {
                clients: server.target.clients,
                servers: server.target.servers,
                worlds: worlds.clone(),
                players: GROUP,
                warmup: plan.warmup,
                window: plan.duration.unwrap_or_default(),
                seed: plan.seed,
            };
            let played = cluster::play_groups(&plan, &server.probe)?;
            let cost = played.cpu.as_secs_f64() * 1e3 / plan.window.as_secs_f64() / (count * GROUP) as f64;
            costs[index].push(cost);
            worst = worst.min(played.delivered as f64 / played.expected as f64);
            worst = worst.min(played.arrived as f64 / played.inputs as f64);
        }
        let last = |index: usize| costs[index].last().copied().unwrap_or(f64::NAN);
        ratios.push(last(1) / last(0));
    }
    // Messages on their way at either end of a window count in one of the two figures only.
    report.threshold("updates and inputs delivered in each run >= 98%", worst * 100.0, worst >= 0.98);
    for (costs, (kind, ..)) in costs.iter_mut().zip(&kinds) {
        let what = format!("server CPU per second and player, {count} groups of {GROUP} in {kind}");
        report.row(Row::new(what, "ms", Better::Lower, median(costs)));
    }
    let what = format!("server CPU of {count} worlds of {GROUP} players, one world with as many groups = 1");
    report.row(Row::new(what, "x", Better::Lower, median(&mut ratios)).marks(1.3, 1.05));
    Ok(report)
}

/// CPU of a process during the window of this test, in per cent of a core.
fn rest(context: &Context<'_>, probes: &[Probe]) -> Vec<f64> {
    let (warmup, window) = context.options.effort.pick((3_000, 20_000), (2_000, 5_000), (0, 200));
    let window = context.options.duration.unwrap_or(Duration::from_millis(window));
    std::thread::sleep(context.options.warmup.unwrap_or(Duration::from_millis(warmup)));
    let used = || -> Vec<Duration> { probes.iter().map(|probe| probe.cpu().unwrap_or_default()).collect() };
    let (before, begun) = (used(), Instant::now());
    std::thread::sleep(window);
    let seconds = begun.elapsed().as_secs_f64();
    let share = |(after, before): (Duration, Duration)| after.saturating_sub(before).as_secs_f64() / seconds;
    used().into_iter().zip(before).map(|both| share(both) * 100.0).collect()
}

fn probe(cluster: &Cluster, node: usize) -> Result<Probe, BenchError> {
    let pid = cluster.nodes[node].pid();
    Probe::new(pid, None).map_err(|source| BenchError::Probe { pid: pid.unwrap_or(0), source })
}

pub(super) fn idle(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let mut report = context.report(true);
    let cluster = context.cluster(3, Vec::new(), "")?;
    context.begin("three nodes without players");
    let probes = (0..3).map(|node| probe(&cluster, node)).collect::<Result<Vec<_>, _>>()?;
    let used = rest(context, &probes);
    let mean = used.iter().sum::<f64>() / used.len() as f64;
    let row = Row::new("CPU of a node without players, mean of three", "% of a core", Better::Lower, mean);
    report.row(row.marks(1.0, 0.2));
    Ok(report)
}

pub(super) fn worlds(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let (count, canonical) = context.size(256, 8);
    let mut report = context.report(canonical);
    report.setting("worlds", count);
    let memory = |probe: &Probe| probe.memory().unwrap_or_default().anonymous_bytes as f64;
    let without = context.cluster(1, Vec::new(), "")?;
    let before = memory(&probe(&without, 0)?);
    drop(without);
    let names = (0..count).map(|number| format!("w{number}")).collect();
    let cluster = context.cluster(1, names, "")?;
    context.begin(&format!("{count} idle worlds"));
    let probe = probe(&cluster, 0)?;
    let used = rest(context, std::slice::from_ref(&probe));
    let row =
        Row::new(format!("CPU of a node with {count} idle worlds"), "% of a core", Better::Lower, used[0]);
    report.row(row.marks(3.0, 0.5));
    let each = (memory(&probe) - before) / count as f64 / 1_024.0;
    report.row(Row::new("private memory of an idle world", "KiB", Better::Lower, each).marks(64.0, 16.0));
    Ok(report)
}

/// Connections that open worlds at a time.
const OPENERS: usize = 32;
/// Arrivals a second while their time is measured: the floor of the rate.
const ARRIVALS_PER_SECOND: u64 = 200;
/// Longest time that a connection waits for a world.
const PATIENCE: Duration = Duration::from_secs(60);
const ON_REQUEST: &str = "create = true\nconnections_max = 8\nworlds_max = 65536\nworld_idle_s = 3600";

pub(super) fn open(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let (count, canonical) = context.size(3_000, 12);
    let mut report = context.report(canonical);
    report.setting("worlds", count);
    report.setting("connections_at_a_time", OPENERS);
    report.setting("arrivals_per_second", ARRIVALS_PER_SECOND);
    let cluster = context.cluster(3, Vec::new(), ON_REQUEST)?;
    let paced = count / 5;
    context.begin(&format!("{paced} worlds at {ARRIVALS_PER_SECOND} a second"));
    let (times, _) =
        arrive(&cluster, 0..paced.max(1), Some(Duration::from_secs(1) / ARRIVALS_PER_SECOND as u32))?;
    context.begin(&format!("{count} worlds as fast as they open"));
    let (_, took) = arrive(&cluster, paced.max(1)..paced.max(1) + count, None)?;
    let rate = count as f64 / took.as_secs_f64();
    let row =
        Row::new("worlds opened per second by arrivals on three nodes", "worlds/s", Better::Higher, rate);
    report.row(row.marks(200.0, 1_000.0));
    let what = |share: &str| {
        format!("arrival to first message at {ARRIVALS_PER_SECOND} new worlds a second, {share}")
    };
    report.row(Row::new(what("p50"), "ms", Better::Lower, times.measured_ms(0.5)));
    report.row(Row::new(what("p99"), "ms", Better::Lower, times.measured_ms(0.99)).marks(100.0, 20.0));
    Ok(report)
}

/// Connections ask for a world of their own each, in turn at each node; with `pause`, they are due
/// at times so far apart. Returns the times from due to the answer, and the whole time.
fn arrive(
    cluster: &Cluster,
    numbers: std::ops::Range<usize>,
    pause: Option<Duration>,
) -> Result<(Times, Duration), BenchError> {
    let (next, begun) = (AtomicUsize::new(numbers.start), Instant::now());
    let shared = Mutex::new((Times::default(), Vec::new(), None));
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let opener = || {
        while !interrupt::requested() && lock().2.is_none() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            let due =
                pause.map_or_else(Instant::now, |pause| begun + pause * (number - numbers.start) as u32);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let at = cluster.nodes[number % cluster.nodes.len()].clients;
            let entered = Visitor::enter(at, &format!("{CLASS}-{number}"), &format!("p{number}"), PATIENCE);
            let took = due.elapsed();
            let mut shared = lock();
            match entered {
                // It stays, and its world with it.
                Ok(visitor) => {
                    shared.0.record(took);
                    shared.1.push(visitor);
                }
                Err(error) => shared.2 = Some(error),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..OPENERS {
            scope.spawn(opener);
        }
    });
    let took = begun.elapsed();
    let (times, _, error) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok((times, took)), |error| Err(error.into()))
}

/// Pause between two attempts of a player to return.
const RETRY: Duration = Duration::from_millis(10);
const DEFAULT_WORLD: &str = "main";

pub(super) fn failover(context: &Context<'_>) -> Result<Report, BenchError> {
    own_servers(context)?;
    let mut report = context.report(true);
    let (restarts, kills) = context.options.effort.pick((20, 10), (5, 2), (1, 0));
    report.setting("kills_with_restart", restarts);
    report.setting("kills_for_good", kills);
    let mut cluster = context.cluster(3, Vec::new(), "")?;
    for (kind, rounds, restarted, marks) in [
        ("kill with restart", restarts, true, [(3.0, 1.0), (5.0, 2.0)]),
        ("kill for good", kills, false, [(17.0, 16.0), (20.0, 17.0)]),
    ] {
        let mut times = Times::default();
        for round in 1..=rounds {
            context.begin(&format!("{kind}, {round} of {rounds}"));
            times.record(lose_home(&mut cluster, restarted)?);
        }
        if rounds == 0 {
            report.note(format!("a smoke test has no {kind}: it takes 15 s"));
            continue;
        }
        for ((name, share), (floor, aim)) in [("p50", 0.5), ("p99", 0.99)].into_iter().zip(marks) {
            let what = format!("last message before to first message after, {kind}, {name}");
            let row = Row::new(what, "s", Better::Lower, times.measured_ms(share) / 1e3);
            report.row(row.marks(floor, aim));
        }
    }
    Ok(report)
}

/// Kills the home of the default world. Returns the time from the last message before to the first
/// one after. All nodes run in the end.
fn lose_home(cluster: &mut Cluster, restarted: bool) -> Result<Duration, BenchError> {
    let home = cluster.home(DEFAULT_WORLD)?;
    let unknown = || BenchError::Unfit(format!("the default world is at `{home}`, which is no node"));
    let index = cluster.nodes.iter().position(|node| node.name == home).ok_or_else(unknown)?;
    let mut player = Visitor::enter(cluster.nodes[index].servers, "", "s", PATIENCE)?;
    player.ping()?;
    let last = Instant::now();
    cluster.nodes[index].kill();
    if restarted {
        cluster.nodes[index].spawn()?;
    }
    // The place of the restarted one is asked first, as a client that comes back would.
    let addresses: Vec<_> = (0..cluster.nodes.len())
        .map(|offset| cluster.nodes[(index + offset) % cluster.nodes.len()].servers)
        .collect();
    let took = loop {
        let returned = addresses.iter().find_map(|at| {
            let mut player = Visitor::enter(*at, "", "s", PATIENCE).ok()?;
            player.ping().ok()
        });
        if returned.is_some() || interrupt::requested() {
            break last.elapsed();
        }
        std::thread::sleep(RETRY);
    };
    if !restarted {
        cluster.nodes[index].spawn()?;
    }
    cluster.nodes[index].wait_until_ready()?;
    Ok(took)
}
