//! One channel for everyone: the first published scenario, and fan-out alone.

use std::time::Duration;

use super::{BenchError, CPU_PLAYERS, Context, MEASURED, MIB, P99_MAX_MS, PUBLISHED, SHARE_MIN};
use crate::engine::{EngineReport, Plan, RunError};
use crate::link::Transport;
use crate::report::{Better, Report, Row, Run};

/// The published result: one channel held 50 Hz to about so many players.
const PUBLISHED_PLAYERS: f64 = 130.0;

/// Sizes tried in turn. The reference holds 130 to 160; 600 is the floor, 1,000 the aim.
const SWEEP: &[usize] = &[CPU_PLAYERS, 160, 400, 600, 800, 1_000];

pub(super) fn single(context: &Context<'_>) -> Result<Report, BenchError> {
    let options = context.options;
    // Rows carry marks only where they are measured with the load that the marks are for.
    let mut report = context.report(true);
    let sizes = context.sizes(SWEEP, &[CPU_PLAYERS, 600], &[20]);
    let mut most: Option<EngineReport> = None;
    let mut failures = 0;
    for &players in &sizes {
        // A fresh server for each size: memory and connection ids start from nothing.
        let server = context.server()?;
        let name = format!("{players} players");
        let outcome = match context.run(&name, &context.plan(&server, players), &server) {
            Err(BenchError::Run { name, source: source @ RunError::NotReady { .. } })
                if !report.runs.is_empty() =>
            {
                report.note(format!("{name}: {source}"));
                break;
            }
            other => other?,
        };
        drop(server);
        let holds =
            outcome.delivered_share() >= SHARE_MIN && outcome.counts.state.quantile_ms(0.99) < P99_MAX_MS;
        let first = report.runs.is_empty();
        report.run(Run::new(name, &outcome));
        if first {
            judge_cpu(context, &mut report, &outcome)?;
        }
        if holds && failures == 0 {
            most = Some(outcome);
        }
        failures += u32::from(!holds);
        // One failure may be the machine's; two in a row are the end of the sweep.
        if failures >= 2 {
            break;
        }
    }
    if sizes.len() > 1 {
        let held = most.as_ref().map_or(0, |outcome| outcome.players) as f64;
        let row = Row::new("players held: 99% of fan-outs, p99 < 50 ms", "players", Better::Higher, held);
        let row = row.published(PUBLISHED_PLAYERS, PUBLISHED);
        report.row(if options.players.is_empty() { row.marks(600.0, 1_000.0) } else { row });
    }
    if let Some(most) =
        most.filter(|most| report.runs.first().is_some_and(|first| first.players < most.players))
    {
        // With many players the bytes weigh more than the calls, so this ratio says how the cost of
        // delivery grows.
        if let Some(ratio) = bare_ratio(context, &mut report, &most)? {
            let what = format!("server CPU per delivered frame at {} players, bare writer = 1", most.players);
            report.row(Row::new(what, "x", Better::Lower, ratio));
        }
    }
    if let Some(run) = report.runs.iter().rev().find(|run| run.server_resident_bytes.is_some()) {
        let bytes = run.server_resident_bytes.unwrap_or(0) as f64 / run.players.max(1) as f64 / MIB;
        let what = format!("memory per connection at {} players", run.players);
        report.row(Row::new(what, "MiB", Better::Lower, bytes).published(1.0, PUBLISHED));
    }
    Ok(report)
}

/// Runs of the server and of the bare writer that the CPU rows are the medians of, in turn: on a
/// machine that is shared with others the cost of a system call drifts by tens of per cent within
/// minutes.
const CPU_PAIRS: usize = 3;

/// The rows about CPU, from the run at 100 players (or else the first run) and its repetitions.
fn judge_cpu(context: &Context<'_>, report: &mut Report, outcome: &EngineReport) -> Result<(), BenchError> {
    let players = outcome.players;
    // CPU that was not spent because nothing was delivered is no achievement.
    let at_size = players == CPU_PLAYERS && outcome.delivered_share() >= SHARE_MIN;
    // The figures of the reference are of this size, and compare with no other.
    let published =
        |row: Row, figure| if players == CPU_PLAYERS { row.published(figure, MEASURED) } else { row };
    let with = |row: Row, floor: f64, aim: f64| if at_size { row.marks(floor, aim) } else { row };
    for (name, quantile, figure) in [("p50", 0.5, 28.0), ("p99", 0.99, 50.0)] {
        let what = format!("state latency {name} at {players} players");
        let row = Row::new(what, "ms", Better::Lower, outcome.counts.state.measured_ms(quantile));
        report.row(published(row, figure));
    }
    let share = outcome.delivered_share() * 100.0;
    report.threshold(
        format!("fan-outs delivered at {players} players >= 99%"),
        share,
        share >= SHARE_MIN * 100.0,
    );
    let Some(cpu) = outcome.server_cpu else {
        report.note("CPU figures need a server on this machine: give --pid".to_owned());
        return Ok(());
    };
    let per_player =
        |cpu: Duration, window: Duration| cpu.as_secs_f64() * 1e3 / window.as_secs_f64() / players as f64;
    let mut costs = vec![per_player(cpu, outcome.window)];
    let mut ratios = Vec::from_iter(bare_ratio(context, report, outcome)?);
    for pair in 2..=context.options.effort.pick(CPU_PAIRS, 1, 1) {
        let server = context.server()?;
        let name = format!("{players} players, run {pair}");
        let again = context.run(&name, &context.plan(&server, players), &server)?;
        drop(server);
        costs.extend(again.server_cpu.map(|cpu| per_player(cpu, again.window)));
        ratios.extend(bare_ratio(context, report, &again)?);
        report.run(Run::new(name, &again));
    }
    report.setting("cpu_pairs", ratios.len());
    let row = Row::new(
        format!("server CPU per second and player at {players} players"),
        "ms",
        Better::Lower,
        median(&mut costs),
    );
    report.row(with(published(row, 5.8), 0.75, 0.5));
    if !ratios.is_empty() {
        let ratio = median(&mut ratios);
        let what = format!("server CPU per delivered frame at {players} players, bare writer = 1");
        let row = Row::new(what, "x", Better::Lower, ratio);
        report.row(with(published(row, 15.5), 2.0, 1.3));
    }
    Ok(())
}

/// The middle one of `values`, of which there is at least one; with two in the middle, the higher.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the bare writer with the bytes, sockets and rate of `outcome`; returns how much more CPU
/// the server took for a delivered frame.
fn bare_ratio(
    context: &Context<'_>,
    report: &mut Report,
    outcome: &EngineReport,
) -> Result<Option<f64>, BenchError> {
    let Some(server_cpu) = outcome.server_cpu else { return Ok(None) };
    let seconds = outcome.window.as_secs_f64();
    if outcome.counts.delivered == 0 || context.options.program.as_os_str().is_empty() {
        return Ok(None);
    }
    let per_second = f64::from(crate::world::FRAMES_PER_SECOND);
    let bytes = outcome.window_bytes_in as f64 / seconds / outcome.players as f64 / per_second;
    let players = outcome.players;
    let bare = context.run_bare(players, bytes, per_second)?;
    let run = Run::new("bare writer", &bare);
    report.setting(&format!("bare_writer_{players}_bytes_per_frame"), bytes.round());
    report.setting(&format!("bare_writer_{players}_frames"), bare.counts.delivered);
    report.setting(&format!("bare_writer_{players}_bytes_per_s"), run.bytes_per_s.round());
    report.setting(&format!("bare_writer_{players}_cores"), run.server_cores.unwrap_or(0.0));
    let per_frame = |cpu: Duration, frames: u64| cpu.as_secs_f64() / frames as f64;
    let bare_cpu = bare.server_cpu.filter(|cpu| bare.counts.delivered > 0 && !cpu.is_zero());
    let bare_cost = bare_cpu.map(|cpu| per_frame(cpu, bare.counts.delivered));
    Ok(bare_cost.map(|cost| per_frame(server_cpu, outcome.counts.delivered) / cost))
}

pub(super) fn fan_out_only(context: &Context<'_>) -> Result<Report, BenchError> {
    let (players, canonical) = context.size(400, 20);
    let mut report = context.report(canonical);
    let server = context.quiet_server()?;
    let plan = Plan { inputs_per_second: 0.0, ..context.plan(&server, players) };
    let name = format!("{players} subscribers x {players} characters");
    let outcome = context.run(&name, &plan, &server)?;
    report.run(Run::new(name, &outcome));
    let share = outcome.delivered_share() * 100.0;
    report.threshold("fan-outs delivered >= 99%", share, share >= SHARE_MIN * 100.0);
    if let Some(cores) = outcome.server_cores() {
        let row = Row::new("server CPU", "cores", Better::Lower, cores).published(4.74, MEASURED);
        // CPU that was not spent because nothing was delivered is no achievement.
        let complete = outcome.delivered_share() >= SHARE_MIN;
        report.row(if complete { row.marks(0.5, 0.25) } else { row });
    }
    drop(server);
    // Here the server has nothing to do but deliver, as the bare writer.
    if let Some(ratio) = bare_ratio(context, &mut report, &outcome)? {
        let what = "server CPU per delivered frame, bare writer = 1";
        report.row(Row::new(what, "x", Better::Lower, ratio));
    }
    Ok(report)
}

/// The players for which the transports are compared.
const TRANSPORT_PLAYERS: usize = 300;

/// Transports that are compared, the base first. Marks are the floor and the aim of their CPU.
const COMPARED: [(Transport, Option<(f64, f64)>); 4] = [
    (Transport::Tcp, None),
    (Transport::WebSocket, None),
    (Transport::Tls, Some((1.8, 1.5))),
    (Transport::Wss, Some((2.1, 1.7))),
];

pub(super) fn transports(context: &Context<'_>) -> Result<Report, BenchError> {
    if context.options.target.is_some() {
        return Err(BenchError::NeedsOwnServer(context.name));
    }
    let (players, canonical) = context.size(TRANSPORT_PLAYERS, 20);
    let mut report = context.report(canonical);
    report.setting("transport", "each of those compared");
    let (mut costs, mut ratios) = ([const { Vec::new() }; 4], [const { Vec::new() }; 4]);
    let mut complete = true;
    // In turn: the speed of a shared machine drifts within minutes.
    for round in 1..=context.options.effort.pick(3, 1, 1) {
        let mut base = None;
        for (index, (transport, _)) in COMPARED.into_iter().enumerate() {
            let server = context.server_on(transport, None)?;
            let plan = Plan { transport, ..context.plan(&server, players) };
            let name = format!("{players} players on {transport}, run {round}");
            let outcome = context.run(&name, &plan, &server)?;
            complete &= outcome.delivered_share() >= SHARE_MIN;
            let window = outcome.window.as_secs_f64();
            if let Some(cpu) = outcome.server_cpu {
                let cost = cpu.as_secs_f64() * 1e3 / window / players as f64;
                costs[index].push(cost);
                ratios[index].push(cost / *base.get_or_insert(cost));
            }
            report.run(Run::new(name, &outcome));
        }
    }
    report.threshold("fan-outs delivered on each transport >= 99%", f64::from(u8::from(complete)), complete);
    for (index, (transport, marks)) in COMPARED.into_iter().enumerate() {
        if costs[index].is_empty() {
            continue;
        }
        let what = format!("server CPU per second and player over {transport} at {players} players");
        report.row(Row::new(what, "ms", Better::Lower, median(&mut costs[index])));
        if transport == Transport::Tcp {
            continue;
        }
        let what = format!("server CPU per player over {transport} at {players} players, tcp = 1");
        let row = Row::new(what, "x", Better::Lower, median(&mut ratios[index]));
        // CPU that was not spent because nothing was delivered is no achievement.
        let judged = marks.filter(|_| complete && players == TRANSPORT_PLAYERS);
        report.row(judged.map_or(row.clone(), |(floor, aim)| row.marks(floor, aim)));
    }
    Ok(report)
}
