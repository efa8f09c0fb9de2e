//! `throng swarm` and `throng demo`: simulated players without a verdict.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use throng_load::report::{Report, Run};
use throng_load::suites::{Swarm, Target};
use throng_load::{duration, interrupt};

use crate::bench::{Live, ServerArgs, print, say};

/// Flags of `throng swarm`.
#[derive(Debug, Args)]
#[command(after_long_help = SWARM_AFTER_HELP)]
pub(crate) struct SwarmArgs {
    /// Simulated players
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N")]
    players: usize,
    /// How long they play; until Ctrl-C when not given
    #[arg(long = "for", value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Join a world that is already being played instead of bringing a game server
    #[arg(long, requires = "addr")]
    join: bool,
    /// Channel to join
    #[arg(long, default_value_t = 0, requires = "join", value_name = "ID")]
    channel: u32,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

const SWARM_AFTER_HELP: &str = "\
Examples:
  throng swarm --players 500                          500 players on a server started for them
  throng swarm --players 200 --addr 127.0.0.1:12108   on a running server that has no game server yet
  throng swarm --join --addr 127.0.0.1:12108          into the world of `throng demo`";

/// Flags of `throng demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Simulated players
    #[arg(long, short = 'n', default_value_t = 200, value_name = "N")]
    players: usize,
    /// How long they play; until Ctrl-C when not given
    #[arg(long = "for", value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Threads of the server
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
}

/// Runs `throng swarm`.
pub(crate) fn run(args: SwarmArgs) -> ExitCode {
    let options = match args.server.options() {
        Ok(options) => options,
        Err(error) => return fail(&error.to_string()),
    };
    let join = args.join.then_some(args.channel);
    let swarm = Swarm { options, players: args.players, duration: args.duration, join };
    play(&swarm, args.json, &mut |target| say(&format!("players connect to {}", target.clients)))
}

/// Runs `throng demo`.
pub(crate) fn demo(args: DemoArgs) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return fail(&format!("cannot find this program: {error}")),
    };
    let options =
        throng_load::suites::Options { program, shards: args.shards, seed: 1, ..Default::default() };
    let swarm = Swarm { options, players: args.players, duration: args.duration, join: None };
    play(&swarm, false, &mut |target| say(&introduction(args.players, target)))
}

fn introduction(players: usize, target: &Target) -> String {
    let Target { clients, servers, metrics, .. } = target;
    let http = metrics.map(|http| http.to_string()).unwrap_or_default();
    format!(
        "Throng demo: {players} simulated players walk, turn and jump on one channel.

  players        {clients}
  game servers   {servers}   (a simulated one owns the GLOBAL channel)
  open           http://{http}/metrics
                 http://{http}/health/ready
  try            throng swarm --join --players 100 --addr {clients}
                 curl -s http://{http}/metrics | grep throng_

Ctrl-C ends it with a summary."
    )
}

fn play(swarm: &Swarm, json: bool, on_start: &mut dyn FnMut(&Target)) -> ExitCode {
    interrupt::catch();
    let mut live = Live::new();
    let result = swarm.run(on_start, &mut live);
    drop(live);
    match result {
        Ok(report) => {
            let text = if json {
                serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
            } else {
                summary(&report)
            };
            match print(&text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error.to_string()),
            }
        }
        // Leaving before everyone is in is the user's right.
        Err(_) if interrupt::requested() => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(error: &str) -> ExitCode {
    say(&format!("error: {error}"));
    ExitCode::from(2)
}

fn summary(report: &Report) -> String {
    let Some(run) = report.runs.first() else { return String::new() };
    let Run { players, window_s, state, input, .. } = run;
    let mut text = format!("{players} players for {window_s:.0} s\n");
    let mut line = |name: &str, value: String| text.push_str(&format!("  {name:<14} {value}\n"));
    if run.expected > 0 {
        line(
            "fan-outs",
            format!("{} of {} arrived ({:.2}%)", run.delivered, run.expected, run.delivered_share * 100.0),
        );
    }
    line(
        "state",
        format!(
            "p50 {:.1}  p90 {:.1}  p99 {:.1}  max {:.1} ms",
            state.p50_ms, state.p90_ms, state.p99_ms, state.max_ms
        ),
    );
    if run.inputs_arrived > 0 {
        line(
            "inputs",
            format!("{} of {} arrived, p99 {:.1} ms", run.inputs_arrived, run.inputs_due, input.p99_ms),
        );
    }
    line("received", format!("{:.1} MB/s in {:.0} frames/s", run.bytes_per_s / 1e6, run.frames_per_s));
    if let Some(cores) = run.server_cores {
        let per_player = cores * 1e3 / (*players).max(1) as f64;
        line("server CPU", format!("{cores:.2} cores, {per_player:.2} ms per second and player"));
    }
    if let Some(bytes) = run.server_resident_bytes {
        line("server memory", format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    }
    if run.lost > 0 {
        line("lost", format!("{} connections", run.lost));
    }
    for note in &report.notes {
        line("note", note.clone());
    }
    text
}
