//! The published scenarios with a world that is spread over channels: nine servers on a grid, and
//! rates by distance.

use std::time::Duration;

use super::{BenchError, CPU_PLAYERS, Context, MEASURED, MIB, P99_MAX_MS, SHARE_MIN, Server, Swarm, Target};
use crate::child::World;
use crate::engine::RunError;
use crate::report::{Better, Report, Row, Run};
use crate::spatial::{self, Grid, Layout, WorldReport, picture};

const PUBLISHED: &str = "published by the reference, 8-core allowance";
/// Number of players of the published tick and memory figures.
const TICK_PLAYERS: usize = 130;
/// Players for which the memory mark is.
const MEMORY_PLAYERS: usize = 1_000;
/// Sizes tried in turn. The reference holds 150 and 125; 500 is the floor, 1,000 the aim.
const SPATIAL_SWEEP: &[usize] = &[CPU_PLAYERS, TICK_PLAYERS, 250, 500, 750, 1_000];
const LOD_SWEEP: &[usize] = &[CPU_PLAYERS, 125, 250, 500, 800, 1_000];
/// The p99 that the 20 Hz band keeps when it holds its rate.
const LOD_P99_MAX_MS: f64 = 60.0;
/// Writes per second of the bare writer: the fan-out grid that both scenarios run on.
const BARE_PER_SECOND: f64 = 50.0;

pub(super) fn spatial(context: &Context<'_>) -> Result<Report, BenchError> {
    let mut report = context.report(true);
    report.setting("cells", Grid::PUBLISHED.cells());
    report.setting("servers", Grid::PUBLISHED.servers());
    report.setting("cell_metres", f64::from(Grid::PUBLISHED.cell_metres));
    report.setting("interest_metres", 30.0);
    let sizes = context.sizes(SPATIAL_SWEEP, &[CPU_PLAYERS, TICK_PLAYERS, 500], &[40]);
    let mut sweep = Sweep::new(sizes.len());
    for &players in &sizes {
        let Some((name, outcome)) =
            sweep.play(context, &mut report, players, World::Grid(Grid::PUBLISHED))?
        else {
            break;
        };
        let complete = outcome.delivered_share() >= SHARE_MIN;
        let holds = complete && outcome.counts.state.quantile_ms(0.99) < P99_MAX_MS;
        let first = report.runs.is_empty();
        shards(&mut report, &outcome);
        report.run(outcome.run(name));
        if first {
            spatial_basics(&mut report, &outcome);
            judge_cpu(context, &mut report, &outcome, 7.65)?;
        }
        if players == TICK_PLAYERS {
            tick(&mut report, &outcome);
        }
        if outcome.servers.crossings > 0 {
            let ratio = outcome.servers.handovers as f64 / outcome.servers.crossings as f64;
            let what = format!("handovers per border crossed at {players} players");
            report.row(Row::new(what, "x", Better::Lower, ratio));
        }
        if context.options.crash_server_at.is_some() {
            judge_recovery(&mut report, &outcome);
        }
        if players == MEMORY_PLAYERS {
            memory(&mut report, &outcome);
        }
        if sweep.goes_on(outcome, holds) {
            continue;
        }
        break;
    }
    sweep.finish(
        context,
        &mut report,
        "99% of fan-outs, p99 < 50 ms",
        (150.0, 500.0, 1_000.0),
        sizes.len(),
    )?;
    Ok(report)
}

pub(super) fn entity_lod(context: &Context<'_>) -> Result<Report, BenchError> {
    let mut report = context.report(true);
    report.setting("side_metres", 400);
    report.setting("rates_asked_for_by_players", context.asks_for_rates());
    report.setting("padding_bytes", context.options.padding_bytes);
    let sizes = context.sizes(LOD_SWEEP, &[CPU_PLAYERS, 500, MEMORY_PLAYERS], &[30]);
    let mut sweep = Sweep::new(sizes.len());
    for &players in &sizes {
        let Some((name, outcome)) = sweep.play(context, &mut report, players, World::Open)? else { break };
        let near = &outcome.bands[0];
        let holds = outcome.delivered_share() >= SHARE_MIN && near.state.p99_ms < LOD_P99_MAX_MS;
        let first = report.runs.is_empty();
        report.run(outcome.run(name));
        if first {
            for band in &outcome.bands {
                let what = format!("{} delivered at {players} players", band.name);
                let share = if band.expected > 0 { band.share * 100.0 } else { f64::NAN };
                report.row(Row::new(what, "% of the promise", Better::Higher, share));
            }
            let what = format!("p99 of the 20 Hz band at {players} players");
            report.row(Row::new(what, "ms", Better::Lower, outcome.bands[0].state.p99_ms));
            judge_cpu(context, &mut report, &outcome, 8.0)?;
        }
        if players == MEMORY_PLAYERS {
            let complete = outcome.complete.unwrap_or(Duration::MAX).min(Duration::from_secs(3_600));
            let what = "all of 1,000 players joined and receiving everyone";
            let row = Row::new(what, "s", Better::Lower, complete.as_secs_f64());
            report.row(row.marks(10.0, 3.0));
        }
        // The publication's server frame rates: 30 up to 400 players, below 20 past 600.
        let published = if players <= 400 { Some(30.0) } else { (players > 600).then_some(20.0) };
        let what = format!("server frame rate at {players} players");
        let row = Row::new(what, "Hz", Better::Higher, outcome.frames_per_s);
        report.row(match published {
            Some(rate) => row.published(rate, PUBLISHED),
            None => row,
        });
        if sweep.goes_on(outcome, holds) {
            continue;
        }
        break;
    }
    let what = "every rate at 99%, p99 of the 20 Hz band < 60 ms";
    sweep.finish(context, &mut report, what, (800.0, 500.0, 1_000.0), sizes.len())?;
    Ok(report)
}

/// Payloads of an entity, in bytes.
const ENTITY_BYTES: &[usize] = &[200, 1_000, 4_000];

pub(super) fn entity_bytes(context: &Context<'_>) -> Result<Report, BenchError> {
    let (players, canonical) = context.size(250, 20);
    let mut report = context.report(canonical);
    report.setting("side_metres", 400);
    report.setting("rates_asked_for_by_players", context.asks_for_rates());
    let sizes = match context.options.padding_bytes {
        0 => ENTITY_BYTES.to_vec(),
        bytes => vec![bytes],
    };
    for bytes in sizes {
        let server = context.server_with(Some(World::Open))?;
        let name = format!("{players} players, {bytes} bytes per entity");
        context.progress.borrow_mut().begin(&format!("{}: {name}", context.name), None);
        let plan =
            spatial::Plan { padding_bytes: bytes, ..context.world_plan(&server, players, World::Open) };
        let outcome = spatial::run(&plan, &server.probe, &mut |sample| {
            context.progress.borrow_mut().sample(sample);
        });
        let outcome = outcome.map_err(|source| BenchError::Run { name: name.clone(), source })?;
        let row = |what: &str, unit, value| Row::new(format!("{what}, {name}"), unit, Better::Lower, value);
        let near = &outcome.bands[0].state;
        let p99 = row("p99 of the 20 Hz band", "ms", near.p99_ms);
        report.row(if bytes == 1_000 { p99.marks(LOD_P99_MAX_MS, LOD_P99_MAX_MS / 2.0) } else { p99 });
        let share = outcome.delivered_share() * 100.0;
        report.threshold(format!("every rate at 99%, {name}"), share, share >= SHARE_MIN * 100.0);
        if let Some(cpu) = outcome.server_cpu {
            let cores = cpu.as_secs_f64() / outcome.window.as_secs_f64();
            report.row(row("server CPU", "cores", cores));
        }
        report.run(outcome.run(name));
    }
    Ok(report)
}

/// A small grid of which every player sees all, so every handover is sent to every player.
const HANDOVER_GRID: Grid = Grid { columns: 4, server_columns: 2, cell_metres: 10.0 };

pub(super) fn handover(context: &Context<'_>) -> Result<Report, BenchError> {
    let (players, canonical) = context.size(20, 20);
    let mut report = context.report(canonical);
    let world = World::Grid(HANDOVER_GRID);
    let server = context.server_with(Some(world))?;
    let name = format!("{players} subscribers");
    context.progress.borrow_mut().begin(&format!("{}: {name}", context.name), None);
    let plan = spatial::Plan {
        interest_metres: 4.0 * HANDOVER_GRID.cell_metres * HANDOVER_GRID.columns as f32,
        ..context.world_plan(&server, players, world)
    };
    let outcome = spatial::run(&plan, &server.probe, &mut |sample| {
        context.progress.borrow_mut().sample(sample);
    });
    let outcome = outcome.map_err(|source| BenchError::Run { name: name.clone(), source })?;
    let handover = &outcome.servers.handover;
    let row =
        |what: &str, value| Row::new(format!("handover end to end, {what}"), "ms", Better::Lower, value);
    report.row(row("median", handover.measured_ms(0.5)).marks(2.0, 1.0));
    report.row(row("p99", handover.measured_ms(0.99)));
    let (views, of) = outcome.views;
    let measured = if of > 0 { views as f64 } else { f64::NAN };
    report.threshold(format!("views equal to the world after the run: all {of}"), measured, views == of);
    report.run(outcome.run(name));
    Ok(report)
}

/// Players without a verdict, on the published grid.
pub(super) fn swarm(
    context: &Context<'_>,
    mut report: Report,
    swarm: &Swarm,
    on_start: &mut dyn FnMut(&Target),
) -> Result<Report, BenchError> {
    let world = World::Grid(Grid::PUBLISHED);
    let server = context.server_with(Some(world))?;
    on_start(&server.target);
    let plan = spatial::Plan {
        warmup: Duration::ZERO,
        duration: swarm.duration,
        sample_interval: Duration::from_secs(1),
        ..context.world_plan(&server, swarm.players, world)
    };
    let name = "players connect";
    context.progress.borrow_mut().begin(&format!("{}: {name}", context.name), None);
    let outcome = spatial::run(&plan, &server.probe, &mut |sample| {
        context.progress.borrow_mut().sample(sample);
    });
    let outcome = outcome.map_err(|source| BenchError::Run { name: name.to_owned(), source })?;
    if let Some(svg) = picture::svg(&outcome) {
        report.pictures.push(("world.svg".to_owned(), svg));
    }
    report.run(outcome.run("swarm".to_owned()));
    Ok(report)
}

/// Sizes tried one after the other, on a fresh server each.
struct Sweep {
    most: Option<WorldReport>,
    last: Option<WorldReport>,
    failures: u32,
    several: bool,
}

impl Sweep {
    fn new(sizes: usize) -> Self {
        Self { most: None, last: None, failures: 0, several: sizes > 1 }
    }

    /// One size. `None` when the players did not even get in, which ends a sweep.
    fn play(
        &mut self,
        context: &Context<'_>,
        report: &mut Report,
        players: usize,
        world: World,
    ) -> Result<Option<(String, WorldReport)>, BenchError> {
        let server = context.server_with(Some(world))?;
        let name = format!("{players} players");
        context.progress.borrow_mut().begin(&format!("{}: {name}", context.name), None);
        let plan = context.world_plan(&server, players, world);
        let result = spatial::run(&plan, &server.probe, &mut |sample| {
            context.progress.borrow_mut().sample(sample);
        });
        match result {
            Ok(outcome) => Ok(Some((name, outcome))),
            Err(source @ RunError::NotReady { .. }) if !report.runs.is_empty() => {
                report.note(format!("{name}: {source}"));
                Ok(None)
            }
            Err(source) => Err(BenchError::Run { name, source }),
        }
    }

    /// True if a larger size is worth trying. One failure may be the machine's; two in a row are
    /// the end.
    fn goes_on(&mut self, outcome: WorldReport, holds: bool) -> bool {
        self.failures = if holds { 0 } else { self.failures + 1 };
        if holds {
            self.most = Some(outcome.clone());
        }
        self.last = Some(outcome);
        self.failures < 2
    }

    /// The rows about the largest size that held, and its picture.
    fn finish(
        self,
        context: &Context<'_>,
        report: &mut Report,
        condition: &str,
        (published, floor, aim): (f64, f64, f64),
        sizes: usize,
    ) -> Result<(), BenchError> {
        if self.several {
            let held = self.most.as_ref().map_or(0, |outcome| outcome.players) as f64;
            let row = Row::new(format!("players held: {condition}"), "players", Better::Higher, held);
            let row = row.published(published, MEASURED);
            let canonical = context.options.players.is_empty() && sizes > 1;
            report.row(if canonical { row.marks(floor, aim) } else { row });
        }
        let Some(shown) = self.most.or(self.last) else { return Ok(()) };
        report.row(Row::new(
            format!("bytes per second and player at {} players", shown.players),
            "kB/s",
            Better::Lower,
            shown.per_second(shown.window_bytes_in) / shown.players.max(1) as f64 / 1e3,
        ));
        if let Some(svg) = picture::svg(&shown) {
            report.pictures.push(("world.svg".to_owned(), svg));
        }
        if self.several
            && let Some(ratio) = bare_ratio(context, report, &shown)?
        {
            let what = format!("server CPU at {} players, bare writer of the same bytes = 1", shown.players);
            report.row(Row::new(what, "x", Better::Lower, ratio));
        }
        Ok(())
    }
}

/// Work of the busiest shard, if there are several.
fn shards(report: &mut Report, outcome: &WorldReport) {
    let cpu: Vec<f64> = outcome.shards_cpu.iter().map(Duration::as_secs_f64).collect();
    let mean = cpu.iter().sum::<f64>() / cpu.len().max(1) as f64;
    if cpu.len() < 2 || mean == 0.0 {
        return;
    }
    let what =
        format!("CPU of the busiest of {} shards, their mean = 1, at {} players", cpu.len(), outcome.players);
    let row = Row::new(what, "x", Better::Lower, cpu.iter().copied().fold(0.0, f64::max) / mean);
    report.row(row.marks(1.25, 1.1));
    let cores = cpu.iter().map(|cpu| format!("{:.2}", cpu / outcome.window.as_secs_f64()));
    report.note(format!(
        "cores of the shards at {} players: {}",
        outcome.players,
        cores.collect::<Vec<_>>().join(", ")
    ));
}

fn spatial_basics(report: &mut Report, outcome: &WorldReport) {
    let players = outcome.players;
    let row = |what: &str, unit, value: f64| {
        Row::new(format!("{what} at {players} players"), unit, Better::Lower, value)
    };
    report.row(row("state latency p50", "ms", outcome.counts.state.measured_ms(0.5)));
    report.row(row("state latency p99", "ms", outcome.counts.state.measured_ms(0.99)));
    report.row(row(
        "handover p50, update due to new server told",
        "ms",
        outcome.servers.handover.measured_ms(0.5),
    ));
    report.row(row(
        "handover p99, update due to new server told",
        "ms",
        outcome.servers.handover.measured_ms(0.99),
    ));
    if let Some((_, after)) = outcome.server_memory {
        let resident = after.resident_bytes as f64 / MIB;
        report.row(row("resident memory", "MiB", resident).published(172.0, MEASURED));
    }
    let (views, of) = outcome.views;
    let whole = views == of;
    report.threshold(
        format!("views equal to the world after the run at {players} players: all {of}"),
        if of > 0 { views as f64 } else { f64::NAN },
        whole,
    );
    let share = outcome.delivered_share() * 100.0;
    report.threshold(
        format!("fan-outs delivered at {players} players >= 99%"),
        share,
        share >= SHARE_MIN * 100.0,
    );
    let strays = outcome.servers.stray_inputs;
    report.threshold("inputs to a server without authority = 0", strays as f64, strays == 0);
}

/// Figures that the publication gives for about 130 players.
fn tick(report: &mut Report, outcome: &WorldReport) {
    let players = outcome.players;
    if let Some((mean, longest)) = outcome.round_ms {
        report.row(Row::new(format!("mean round at {players} players"), "ms", Better::Lower, mean));
        report.row(Row::new(format!("longest round at {players} players"), "ms", Better::Lower, longest));
    } else {
        report.note("rounds and ticks need the metrics page: give --metrics".to_owned());
    }
    let largest = outcome.ticks.iter().map(|ticks| ticks.longest_ms).reduce(f64::max);
    if let Some(largest) = largest {
        let what = format!("largest tick of any channel at {players} players");
        let row = Row::new(what, "ms", Better::Lower, largest);
        report.row(row.published(0.8, PUBLISHED).marks(0.4, 0.1));
    }
    for ticks in &outcome.ticks {
        let what = format!("tick of {} channels at {players} players, p99.9", ticks.channel_type);
        report.row(Row::new(what, "ms", Better::Lower, ticks.p999_ms));
    }
    if let Some((_, after)) = outcome.server_memory {
        let what = format!("resident memory at {players} players");
        let row = Row::new(what, "MiB", Better::Lower, after.resident_bytes as f64 / MIB);
        report.row(row.published(500.0, PUBLISHED));
    }
    // One channel sends everyone everyone 30 times a second.
    let single = (players * players) as f64 * f64::from(crate::world::FRAMES_PER_SECOND);
    let ratio = outcome.per_second(outcome.counts.delivered) / single;
    let what = format!("character states sent at {players} players, one channel = 1");
    report.row(Row::new(what, "x", Better::Lower, ratio).published(0.1, PUBLISHED));
}

fn memory(report: &mut Report, outcome: &WorldReport) {
    if let Some((_, after)) = outcome.server_memory {
        let what = "resident memory at 1,000 players, 225 spatial and 1,000 entity channels";
        let row = Row::new(what, "MiB", Better::Lower, after.resident_bytes as f64 / MIB);
        report.row(row.marks(250.0, 120.0));
    }
}

fn judge_cpu(
    context: &Context<'_>,
    report: &mut Report,
    outcome: &WorldReport,
    reference_ms: f64,
) -> Result<(), BenchError> {
    let players = outcome.players;
    let Some(cpu) = outcome.server_cpu else {
        report.note("CPU figures need a server on this machine: give --pid".to_owned());
        return Ok(());
    };
    let per_player = cpu.as_secs_f64() * 1e3 / outcome.window.as_secs_f64() / players.max(1) as f64;
    let what = format!("server CPU per second and player at {players} players");
    let row = Row::new(what, "ms", Better::Lower, per_player).published(reference_ms, MEASURED);
    // CPU that was not spent because nothing was delivered is no achievement.
    let complete = players == CPU_PLAYERS && outcome.delivered_share() >= SHARE_MIN;
    report.row(if complete { row.marks(0.9, 0.5) } else { row });
    if let Some(ratio) = bare_ratio(context, report, outcome)? {
        let what = format!("server CPU at {players} players, bare writer of the same bytes = 1");
        report.row(Row::new(what, "x", Better::Lower, ratio));
    }
    Ok(())
}

fn judge_recovery(report: &mut Report, outcome: &WorldReport) {
    let servers = &outcome.servers;
    let all = servers.orphaned > 0 && servers.recovered >= servers.orphaned;
    report.threshold(
        format!("characters of the crashed server recovered: all {}", servers.orphaned),
        servers.recovered as f64,
        all,
    );
    report.threshold(
        "players lost through the crash = 0",
        outcome.counts.lost as f64,
        outcome.counts.lost == 0,
    );
    for (what, count, better) in [
        ("the crashed server had", servers.orphaned, Better::Lower),
        ("the crashed server got back", servers.recovered, Better::Higher),
    ] {
        report.row(Row::new(what, "characters", better, count as f64));
    }
    if let Some(recovery) = servers.recovery {
        report.row(Row::new(
            "return of the crashed server to the end of its recovery",
            "ms",
            Better::Lower,
            recovery.as_secs_f64() * 1e3,
        ));
    }
}

/// The physical limit for the bytes and destinations of `outcome`: how much more CPU the server
/// took than a program that does nothing but write as many bytes to as many sockets on the same
/// grid of 20 ms.
fn bare_ratio(
    context: &Context<'_>,
    report: &mut Report,
    outcome: &WorldReport,
) -> Result<Option<f64>, BenchError> {
    let Some(server_cpu) = outcome.server_cpu else { return Ok(None) };
    if context.options.program.as_os_str().is_empty() || outcome.players == 0 {
        return Ok(None);
    }
    let bytes = outcome.per_second(outcome.window_bytes_in) / outcome.players as f64 / BARE_PER_SECOND;
    let players = outcome.players;
    let bare = context.run_bare(players, bytes, BARE_PER_SECOND)?;
    let cpu = bare.server_cpu.filter(|cpu| !cpu.is_zero() && bare.window_bytes_in > 0);
    let Some(cpu) = cpu else { return Ok(None) };
    let per_byte = |cpu: Duration, bytes: u64| cpu.as_secs_f64() / bytes.max(1) as f64;
    report.setting(&format!("bare_writer_{players}_bytes_per_write"), bytes.round());
    report.setting(
        &format!("bare_writer_{players}_bytes_per_s"),
        (bare.window_bytes_in as f64 / bare.window.as_secs_f64()).round(),
    );
    report.setting(&format!("bare_writer_{players}_cores"), cpu.as_secs_f64() / bare.window.as_secs_f64());
    Ok(Some(per_byte(server_cpu, outcome.window_bytes_in) / per_byte(cpu, bare.window_bytes_in)))
}

impl Context<'_> {
    /// True if players request the rates of distance bands: a foreign server may not know them.
    fn asks_for_rates(&self) -> bool {
        self.options.target.is_some() || self.options.ask_for_rates
    }

    fn world_plan(&self, server: &Server, players: usize, world: World) -> spatial::Plan {
        let options = self.options;
        let common = self.plan(server, players);
        let of_world = match world {
            World::Grid(grid) => spatial::Plan {
                layout: Layout::Grid(grid),
                ..spatial::Plan::spatial(server.target.clients, server.target.servers, players)
            },
            World::Open => spatial::Plan::entity_lod(server.target.clients, server.target.servers, players),
        };
        spatial::Plan {
            transport: common.transport,
            trust: common.trust,
            threads: common.threads,
            warmup: common.warmup,
            duration: common.duration,
            sample_interval: common.sample_interval,
            seed: common.seed,
            ask_for_rates: self.asks_for_rates(),
            crash_at: options.crash_server_at,
            picture: true,
            padding_bytes: options.padding_bytes,
            ..of_world
        }
    }
}

impl WorldReport {
    /// The run for the record.
    fn run(&self, name: String) -> Run {
        Run::of_world(name, self)
    }
}
