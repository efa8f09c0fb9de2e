//! Cases of the gateway at rest, of forwarding, and of readers that stall.

use std::time::Duration;

use super::channel::median;
use super::{BenchError, Context, MEASURED, SHARE_MIN};
use crate::engine::Plan;
use crate::protocol::CHANNEL_TYPE_SUBWORLD;
use crate::report::{Better, Report, Row, Run};
use crate::stream::{self, StreamPlan};

pub(super) fn idle(context: &Context<'_>) -> Result<Report, BenchError> {
    let (players, canonical) = context.size(10_000, 200);
    let mut report = context.report(canonical);
    let server = context.quiet_server()?;
    let plan =
        Plan { characters: None, inputs_per_second: 0.0, subscribe: false, ..context.plan(&server, players) };
    let name = format!("{players} idle connections");
    let outcome = context.run(&name, &plan, &server)?;
    let run = Run::new(name, &outcome);
    if let Some(cores) = run.server_cores {
        let row = Row::new("server CPU", "% of a core", Better::Lower, cores * 100.0);
        report.row(row.published(40.0 * players as f64 / 1_000.0, MEASURED).marks(1.0, 0.3));
    }
    if let Some(bytes) = run.server_bytes_per_connection {
        let row = Row::new("private memory per connection", "KiB", Better::Lower, bytes / 1_024.0);
        report.row(row.published(40.0, MEASURED).marks(6.0, 3.0));
    }
    report.run(run);
    Ok(report)
}

pub(super) fn trickle(context: &Context<'_>) -> Result<Report, BenchError> {
    let (players, canonical) = context.size(10_000, 200);
    let mut report = context.report(canonical);
    let server = context.server()?;
    let plan = Plan {
        characters: None,
        inputs_per_second: 0.0,
        subscribe: false,
        notices_per_second: 2.0,
        ..context.plan(&server, players)
    };
    let name = format!("{players} connections, 2 messages a second each");
    let outcome = context.run(&name, &plan, &server)?;
    report.run(Run::new(name, &outcome));
    let share = outcome.counts.notices as f64 / outcome.owner.notices_due as f64 * 100.0;
    report.threshold("messages delivered = 100%", share, outcome.counts.notices == outcome.owner.notices_due);
    let row = Row::new("message latency p99", "ms", Better::Lower, outcome.counts.notice.measured_ms(0.99));
    report.row(row.marks(20.0, 10.0));
    Ok(report)
}

pub(super) fn channels(context: &Context<'_>) -> Result<Report, BenchError> {
    let (channels, canonical) = context.size(10_000, 200);
    let mut report = context.report(canonical);
    report.setting("channels", channels);
    let server = context.quiet_server()?;
    let plan = Plan {
        players: 0,
        characters: None,
        inputs_per_second: 0.0,
        subscribe: false,
        idle_channels: channels,
        ..context.plan(&server, 0)
    };
    let name = format!("{channels} idle channels");
    let outcome = context.run(&name, &plan, &server)?;
    let run = Run::new(name, &outcome);
    if let Some(cores) = run.server_cores {
        let row = Row::new("server CPU", "% of a core", Better::Lower, cores * 100.0);
        // The aim of nothing at all cannot be measured below the server's own housekeeping.
        report.row(row.published(16.0 * channels as f64 / 1_000.0, MEASURED).marks(0.1, 0.01));
    }
    report.run(run);
    Ok(report)
}

/// Messages per second offered in turn.
const FORWARD_RATES: &[f64] = &[300_000.0, 450_000.0, 600_000.0, 800_000.0];
/// Messages beyond capacity queue up. A rate is held if its messages do not wait longer than this.
const FORWARD_P99_MAX_MS: f64 = 250.0;
/// Packets per second and client; messages are batched as a client that sends this many would.
const FORWARD_PACKETS_PER_SECOND: f64 = 20.0;

pub(super) fn forward(context: &Context<'_>) -> Result<Report, BenchError> {
    let (clients, canonical) = context.size(1_000, 50);
    let mut report = context.report(canonical);
    report.setting("packets_per_second_and_client", FORWARD_PACKETS_PER_SECOND);
    let rates = context.options.effort.pick(FORWARD_RATES, &[300_000.0, 600_000.0], &[10_000.0]);
    let (mut best, mut failures) = (0.0f64, 0);
    for &rate in rates {
        let server = context.server()?;
        let batch = (rate / clients as f64 / FORWARD_PACKETS_PER_SECOND).round().max(1.0);
        let plan = Plan {
            characters: None,
            subscribe: false,
            inputs_per_second: FORWARD_PACKETS_PER_SECOND,
            input_batch: batch as usize,
            input_bytes: 64,
            ..context.plan(&server, clients)
        };
        let name = format!("{rate:.0}/s offered, {batch:.0} a packet");
        let outcome = context.run(&name, &plan, &server)?;
        report.run(Run::new(name, &outcome));
        let complete = outcome.owner.inputs as f64 >= outcome.counts.due as f64 * SHARE_MIN;
        if complete && outcome.owner.input.quantile_ms(0.99) <= FORWARD_P99_MAX_MS {
            best = best.max(outcome.owner.inputs as f64 / outcome.window.as_secs_f64());
        } else {
            failures += 1;
        }
        // One failure may be the machine's; two are the end.
        if failures >= 2 {
            break;
        }
    }
    let row = Row::new("64-byte messages forwarded to one owner", "messages/s", Better::Higher, best);
    report.row(row.marks(300_000.0, 600_000.0));
    Ok(report)
}

/// Bytes of each message of the stream: nearly the largest frame.
const STREAM_MESSAGE_BYTES: usize = 60_000;

pub(super) fn stream(context: &Context<'_>) -> Result<Report, BenchError> {
    let (windows, ms) = context.options.effort.pick((5, 2_000), (5, 1_000), (1, 200));
    let mut report = context.report(true);
    report.setting("message_bytes", STREAM_MESSAGE_BYTES);
    let server = context.quiet_server()?;
    let name = "one game server to one client";
    context.progress.borrow_mut().begin(&format!("{}: {name}", context.name), None);
    let plan = StreamPlan {
        clients: server.target.clients,
        servers: server.target.servers,
        message_bytes: STREAM_MESSAGE_BYTES,
        windows,
        window: context.options.duration.unwrap_or(Duration::from_millis(ms)),
    };
    let before = server.probe.cpu();
    let streamed = stream::run(&plan)?;
    let mut rates: Vec<f64> = streamed.rates.iter().map(|rate| rate / 1e6).collect();
    if let Some((before, after)) = before.zip(server.probe.cpu()) {
        let per_gb = after.saturating_sub(before).as_secs_f64() / (streamed.bytes as f64 / 1e9);
        report.row(Row::new("server CPU per gigabyte", "s", Better::Lower, per_gb));
    }
    let median = median(&mut rates);
    let row = Row::new(format!("bytes from {name}, median of {windows}"), "MB/s", Better::Higher, median);
    report.row(row.marks(300.0, 400.0));
    Ok(report)
}

pub(super) fn stalled(context: &Context<'_>) -> Result<Report, BenchError> {
    let (players, canonical) = context.size(100, 20);
    let mut report = context.report(canonical);
    let mut p99 = [0.0; 2];
    let mut complete = true;
    for (stalled, p99) in p99.iter_mut().enumerate() {
        let server = context.server()?;
        let plan = Plan {
            stalled,
            players: players + stalled,
            characters: Some(players),
            channel_type: CHANNEL_TYPE_SUBWORLD,
            ..context.plan(&server, players)
        };
        let name =
            if stalled == 0 { "everyone reads".to_owned() } else { "one has stopped reading".to_owned() };
        let outcome = context.run(&name, &plan, &server)?;
        let share = outcome.delivered_share() * 100.0;
        report.threshold(
            format!("{name}: fan-outs delivered to the others >= 99%"),
            share,
            share >= SHARE_MIN * 100.0,
        );
        *p99 = outcome.counts.state.measured_ms(0.99);
        complete &= share >= SHARE_MIN * 100.0;
        report.run(Run::new(name, &outcome));
    }
    let [without, with] = p99;
    let more = (with / without - 1.0) * 100.0;
    report.row(Row::new("state latency p99 of the others, everyone reading", "ms", Better::Lower, without));
    report.row(Row::new("state latency p99 of the others, one stalled", "ms", Better::Lower, with));
    // Below a percent or two the difference of two runs is chance; that of two runs that did not
    // hold always is.
    let row = Row::new("increase through one stalled reader", "%", Better::Lower, more);
    report.row(if complete { row.marks(10.0, 2.0) } else { row });
    Ok(report)
}

pub(super) fn start(context: &Context<'_>) -> Result<Report, BenchError> {
    if context.options.target.is_some() {
        return Err(BenchError::NeedsOwnServer(context.name));
    }
    let starts = context.options.effort.pick(21, 11, 3);
    let mut report = context.report(true);
    report.setting("starts", starts);
    context.progress.borrow_mut().begin(&format!("{}: {starts} starts", context.name), None);
    let mut times = crate::stats::Times::default();
    for _ in 0..starts {
        let server = context.server()?;
        if let Some(own) = &server.own {
            times.record(own.start);
        }
    }
    let row = Row::new("start to ready, median", "ms", Better::Lower, times.measured_ms(0.5));
    report.row(row.marks(150.0, 50.0));
    report.row(Row::new("start to ready, slowest", "ms", Better::Lower, times.summary().max_ms));
    Ok(report)
}
