//! The tests by name: what each runs, and which figures it is judged by.
//!
//! Without an address a test starts its own server as a child process, so one command reproduces a figure. With one it
//! measures any server that speaks the protocol. Every test has one canonical load, which the published figures and
//! marks are for; any other load is measured but not judged.

mod worlds;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::bare::BarePlan;
use crate::child::{BareWriter, DEFAULT_PORTS, OwnServer, ServerOptions, StartError, World};
use crate::engine::{self, Outcome, Plan, RunError, Sample};
use crate::link::Transport;
use crate::probe::{self, Probe};
use crate::protocol::CHANNEL_TYPE_SUBWORLD;
use crate::report::{Better, Report, Row, Run};
use crate::socket;

/// A test that can be run by name.
#[derive(Debug)]
pub struct Test {
    /// Two words: suite and test.
    pub name: &'static str,
    /// One line: what it measures.
    pub summary: &'static str,
    run: fn(&Context<'_>) -> Result<Report, BenchError>,
}

impl Test {
    /// Runs the test.
    ///
    /// # Errors
    /// When there is no figure. A bad figure is a report that has not passed.
    pub fn run(&self, options: &Options, progress: &mut dyn Progress) -> Result<Report, BenchError> {
        socket::raise_descriptor_limit();
        let context = Context { name: self.name, options, progress: std::cell::RefCell::new(progress) };
        (self.run)(&context)
    }
}

/// All tests, in the order of `throng bench all`.
pub const TESTS: &[Test] = &[
    Test {
        name: "channel single",
        summary: "players on one channel: 30 Hz inputs, 30 Hz state of everyone, 50 Hz fan-out; CPU against a bare writer",
        run: channel_single,
    },
    Test {
        name: "channel fanout-only",
        summary: "400 subscribers of 400 characters, 30 updates a second, nothing else: CPU",
        run: channel_fan_out_only,
    },
    Test {
        name: "channel spatial",
        summary: "nine game servers on a grid of 225 cells, handover, interest of 30 m around each player",
        run: worlds::spatial,
    },
    Test {
        name: "channel handover",
        summary: "one entity at a time changes cells and servers in front of 20 subscribers: time",
        run: worlds::handover,
    },
    Test {
        name: "channel entity-lod",
        summary: "everyone sees everyone on 400 m x 400 m: 20 Hz near, 10 Hz further, 1 Hz far away",
        run: worlds::entity_lod,
    },
    Test {
        name: "gateway idle",
        summary: "10,000 connections that do nothing: CPU and memory each",
        run: gateway_idle,
    },
    Test {
        name: "gateway trickle",
        summary: "10,000 connections that each get 2 messages a second: latency",
        run: gateway_trickle,
    },
    Test { name: "gateway channels", summary: "10,000 channels that do nothing: CPU", run: gateway_channels },
    Test {
        name: "gateway forward",
        summary: "64-byte messages from 1,000 clients to one game server: messages per second",
        run: gateway_forward,
    },
    Test {
        name: "gateway stalled",
        summary: "one subscriber that stops reading: latency of the others, with and without it",
        run: gateway_stalled,
    },
    Test { name: "gateway start", summary: "from the start of the process to ready", run: gateway_start },
];

/// The test of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

/// How to run a test.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The server to measure; a server of our own when not given.
    pub target: Option<Target>,
    /// Program to start servers and bare writers with.
    pub program: PathBuf,
    /// Threads of our own server.
    pub shards: Option<u16>,
    /// Further flags for our own server.
    pub server_flags: Vec<String>,
    /// Our own server listens on the default ports when they are free.
    pub default_ports: bool,
    /// Read the console token of our own server; needs one that prints it.
    pub console: bool,
    /// Numbers of players, connections or channels to try; the canonical ones when empty.
    pub players: Vec<usize>,
    /// Length of each measured window.
    pub duration: Option<Duration>,
    /// Time before it.
    pub warmup: Option<Duration>,
    /// How players connect.
    pub transport: Transport,
    /// Generator threads for players; 0 chooses.
    pub threads: usize,
    /// For `channel spatial`: one game server crashes this long into the window, and returns two seconds later.
    pub crash_server_at: Option<Duration>,
    /// For `channel entity-lod`: players ask for the rates themselves, as the Unreal plugin does, although the server
    /// could choose them.
    pub ask_for_rates: bool,
    /// Small and short, to see that everything works.
    pub quick: bool,
    /// Seed of everything random.
    pub seed: u64,
}

/// A server that somebody else has started.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Listener for players.
    pub clients: SocketAddr,
    /// Listener for game servers.
    pub servers: SocketAddr,
    /// Its process, when it runs on this machine and its CPU and memory are to be measured.
    pub pid: Option<u32>,
    /// Its metrics page.
    pub metrics: Option<SocketAddr>,
    /// What opens one session of its web console.
    pub console: Option<ConsoleToken>,
}

/// A one-time token of a web console: 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsoleToken([u8; 32]);

impl ConsoleToken {
    /// Reads the token out of what a server printed when it was ready.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("/console/#token=")?;
        let digits: [u8; 32] = rest.as_bytes().get(..32)?.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(Self(digits))
    }
}

impl std::fmt::Display for ConsoleToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|digit| write!(f, "{}", char::from(*digit)))
    }
}

/// Told what goes on, for a display.
pub trait Progress {
    /// A run begins. Its samples come until `window` is over; `None` when nobody knows how long it takes.
    fn begin(&mut self, what: &str, window: Option<Duration>);
    /// A sample was taken.
    fn sample(&mut self, sample: &Sample);
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _what: &str, _window: Option<Duration>) {}
    fn sample(&mut self, _sample: &Sample) {}
}

/// Why a test gave no figure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The server or the bare writer did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A run failed.
    #[error("{name}: {source}")]
    Run {
        /// Which run.
        name: String,
        /// Why.
        source: RunError,
    },
    /// The process to be measured does not exist.
    #[error("process {pid} cannot be measured: {source}")]
    Probe {
        /// Its id.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// What was asked for does not fit, or a server does not do it.
    #[error("{0}")]
    Unfit(String),
    /// The test measures something that only a server of our own has.
    #[error("`{0}` measures a server that it starts itself; leave --addr away")]
    NeedsOwnServer(&'static str),
    /// The generator has no sockets or threads.
    #[error("generator: {0}")]
    Generator(#[from] io::Error),
}

/// What a test runs in.
struct Context<'a> {
    name: &'static str,
    options: &'a Options,
    progress: std::cell::RefCell<&'a mut dyn Progress>,
}

/// The server being measured, ours or not.
struct Server {
    own: Option<OwnServer>,
    target: Target,
    probe: Probe,
}

impl Context<'_> {
    /// The report, with the settings that every test has.
    fn report(&self, canonical: bool) -> Report {
        let options = self.options;
        let mut report = Report::new(self.name);
        report.canonical = canonical && !options.quick && options.target.is_none();
        report.unjudged = options.quick;
        report.setting("transport", options.transport.to_string());
        report.setting("own_server", options.target.is_none());
        report.setting("seed", options.seed);
        if let Some(shards) = options.shards {
            report.setting("shards", shards);
        }
        if !options.server_flags.is_empty() {
            report.setting("server_flags", options.server_flags.clone());
        }
        report
    }

    fn server(&self) -> Result<Server, BenchError> {
        self.server_with(None)
    }

    fn server_with(&self, world: Option<World>) -> Result<Server, BenchError> {
        let options = self.options;
        let (own, target) = match options.target {
            Some(target) => (None, target),
            None => {
                let own = OwnServer::start(&ServerOptions {
                    program: options.program.clone(),
                    shards: options.shards,
                    transport: (options.transport != Transport::Tcp).then(|| options.transport.to_string()),
                    flags: options.server_flags.clone(),
                    default_ports: options.default_ports,
                    world,
                    lod: !options.ask_for_rates,
                })?;
                let (clients, servers) = (own.clients, own.servers);
                let console = options.console.then(|| own.console()).flatten();
                let target =
                    Target { clients, servers, pid: Some(own.pid()), metrics: Some(own.http), console };
                (Some(own), target)
            }
        };
        let probe = Probe::new(target.pid, target.metrics)
            .map_err(|source| BenchError::Probe { pid: target.pid.unwrap_or(0), source })?;
        Ok(Server { own, target, probe })
    }

    /// The published scenario with the options of this run; tests change what they need.
    fn plan(&self, server: &Server, players: usize) -> Plan {
        let options = self.options;
        let (warmup, duration) = if options.quick { (300, 1_000) } else { (3_000, 10_000) };
        let duration = options.duration.unwrap_or(Duration::from_millis(duration));
        Plan {
            transport: options.transport,
            threads: options.threads,
            warmup: options.warmup.unwrap_or(Duration::from_millis(warmup)),
            duration: Some(duration),
            sample_interval: Duration::from_secs(1).min(duration / 4),
            seed: options.seed,
            ..Plan::single(server.target.clients, server.target.servers, players)
        }
    }

    /// A server whose metrics page is not read, so that its CPU is that of the load alone.
    fn quiet_server(&self) -> Result<Server, BenchError> {
        let server = self.server()?;
        Ok(Server { probe: server.probe.without_metrics(), ..server })
    }

    fn run(&self, name: &str, plan: &Plan, server: &Server) -> Result<Outcome, BenchError> {
        self.progress.borrow_mut().begin(&format!("{}: {name}", self.name), plan.duration);
        engine::run(plan, &server.probe, &mut |sample| self.progress.borrow_mut().sample(sample))
            .map_err(|source| BenchError::Run { name: name.to_owned(), source })
    }

    /// The size to run with: as asked, small when quick, else canonical. Says whether it is the canonical one.
    fn size(&self, canonical: usize, quick: usize) -> (usize, bool) {
        match self.options.players.first() {
            Some(&players) => (players, players == canonical),
            None if self.options.quick => (quick, false),
            None => (canonical, true),
        }
    }
}

/// The published result: one channel held 50 Hz to about so many players.
const PUBLISHED_PLAYERS: f64 = 130.0;
const PUBLISHED: &str = "published by the reference, 8-core allowance";
const MEASURED: &str = "reference measured on 2 cores shared with the generator";
/// A run of the published scenario holds when so many fan-outs arrive ...
const SHARE_MIN: f64 = 0.99;
/// ... and the 99th percentile of their latency is below this.
const P99_MAX_MS: f64 = 50.0;
/// The players for which the CPU figures are given.
const CPU_PLAYERS: usize = 100;
/// Sizes tried in turn. The reference holds 130 to 160; 600 is the floor, 1,000 the aim.
const SWEEP: &[usize] = &[CPU_PLAYERS, 160, 400, 600, 800, 1_000];
const MIB: f64 = (1 << 20) as f64;

fn channel_single(context: &Context<'_>) -> Result<Report, BenchError> {
    let options = context.options;
    // Rows carry marks only where they are measured with the load that the marks are for.
    let mut report = context.report(true);
    let sizes: &[usize] = match (options.players.as_slice(), options.quick) {
        ([], true) => &[20],
        ([], false) => SWEEP,
        (players, _) => players,
    };
    let mut most: Option<Outcome> = None;
    let mut failures = 0;
    for &players in sizes {
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
        // With many players the bytes weigh more than the calls, so this ratio says how the cost of delivery grows.
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

/// Runs of the server and of the bare writer that the CPU rows are the medians of, in turn: on a machine that is shared
/// with others the cost of a system call drifts by tens of per cent within minutes.
const CPU_PAIRS: usize = 3;

/// The rows about CPU, from the run at 100 players (or whatever the first run was) and its repetitions.
fn judge_cpu(context: &Context<'_>, report: &mut Report, outcome: &Outcome) -> Result<(), BenchError> {
    let players = outcome.players;
    // CPU that was not spent because nothing was delivered is no achievement.
    let at_size = players == CPU_PLAYERS && outcome.delivered_share() >= SHARE_MIN;
    let with = |row: Row, floor: f64, aim: f64| if at_size { row.marks(floor, aim) } else { row };
    let p99 = outcome.counts.state.quantile_ms(0.99);
    let p50 = outcome.counts.state.quantile_ms(0.5);
    report.row(
        Row::new(format!("state latency p50 at {players} players"), "ms", Better::Lower, p50)
            .published(28.0, MEASURED),
    );
    report.row(
        Row::new(format!("state latency p99 at {players} players"), "ms", Better::Lower, p99)
            .published(50.0, MEASURED),
    );
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
    for pair in 2..=if context.options.quick { 1 } else { CPU_PAIRS } {
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
    report.row(with(row.published(5.8, MEASURED), 0.75, 0.5));
    if !ratios.is_empty() {
        let ratio = median(&mut ratios);
        let what = format!("server CPU per delivered frame at {players} players, bare writer = 1");
        let row = Row::new(what, "x", Better::Lower, ratio);
        report.row(with(row.published(15.5, MEASURED), 2.0, 1.3));
    }
    Ok(())
}

/// The middle one of `values`, of which there is at least one; with two in the middle, the higher.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the bare writer with the bytes, sockets and rate of `outcome`; returns how much more CPU the server took for a
/// delivered frame.
fn bare_ratio(
    context: &Context<'_>,
    report: &mut Report,
    outcome: &Outcome,
) -> Result<Option<f64>, BenchError> {
    let Some(server_cpu) = outcome.server_cpu else { return Ok(None) };
    let seconds = outcome.window.as_secs_f64();
    if outcome.counts.delivered == 0 || context.options.program.as_os_str().is_empty() {
        return Ok(None);
    }
    let per_second = f64::from(crate::world::FRAMES_PER_SECOND);
    let bytes = outcome.window_bytes_in as f64 / seconds / outcome.players as f64 / per_second;
    let plan = BarePlan { sockets: outcome.players, bytes: bytes.round() as usize, per_second };
    let writer = BareWriter::start(&context.options.program, plan)?;
    let probe = Probe::new(Some(writer.pid()), None)
        .map_err(|source| BenchError::Probe { pid: writer.pid(), source })?;
    let target = Target {
        clients: writer.addr,
        servers: writer.addr,
        pid: Some(writer.pid()),
        metrics: None,
        console: None,
    };
    let server = Server { own: None, target, probe };
    let plan = Plan {
        transport: Transport::Tcp,
        owner: false,
        characters: None,
        inputs_per_second: 0.0,
        subscribe: false,
        ..context.plan(&server, outcome.players)
    };
    let players = outcome.players;
    let name = format!("bare writer, {players} sockets");
    let bare = context.run(&name, &plan, &server)?;
    let run = Run::new(name, &bare);
    report.setting(&format!("bare_writer_{players}_bytes_per_frame"), bytes.round());
    report.setting(&format!("bare_writer_{players}_frames"), bare.counts.delivered);
    report.setting(&format!("bare_writer_{players}_bytes_per_s"), run.bytes_per_s.round());
    report.setting(&format!("bare_writer_{players}_cores"), run.server_cores.unwrap_or(0.0));
    let per_frame = |cpu: Duration, frames: u64| cpu.as_secs_f64() / frames as f64;
    let bare_cpu = bare.server_cpu.filter(|cpu| bare.counts.delivered > 0 && !cpu.is_zero());
    let bare_cost = bare_cpu.map(|cpu| per_frame(cpu, bare.counts.delivered));
    Ok(bare_cost.map(|cost| per_frame(server_cpu, outcome.counts.delivered) / cost))
}

fn channel_fan_out_only(context: &Context<'_>) -> Result<Report, BenchError> {
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

fn gateway_idle(context: &Context<'_>) -> Result<Report, BenchError> {
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

fn gateway_trickle(context: &Context<'_>) -> Result<Report, BenchError> {
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
    let share = outcome.counts.notices as f64 / outcome.owner.notices_due.max(1) as f64 * 100.0;
    report.threshold("messages delivered = 100%", share, outcome.counts.notices == outcome.owner.notices_due);
    let row = Row::new("message latency p99", "ms", Better::Lower, outcome.counts.notice.quantile_ms(0.99));
    report.row(row.marks(20.0, 10.0));
    Ok(report)
}

fn gateway_channels(context: &Context<'_>) -> Result<Report, BenchError> {
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
/// What is offered beyond capacity queues up. A rate is held when its messages do not wait longer than this.
const FORWARD_P99_MAX_MS: f64 = 250.0;
/// Packets per second and client; messages are batched as a client that sends this many would.
const FORWARD_PACKETS_PER_SECOND: f64 = 20.0;

fn gateway_forward(context: &Context<'_>) -> Result<Report, BenchError> {
    let (clients, canonical) = context.size(1_000, 50);
    let mut report = context.report(canonical);
    report.setting("packets_per_second_and_client", FORWARD_PACKETS_PER_SECOND);
    let rates = if context.options.quick { &[10_000.0][..] } else { FORWARD_RATES };
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

fn gateway_stalled(context: &Context<'_>) -> Result<Report, BenchError> {
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
        *p99 = outcome.counts.state.quantile_ms(0.99);
        complete &= share >= SHARE_MIN * 100.0;
        report.run(Run::new(name, &outcome));
    }
    let [without, with] = p99;
    let more = (with / without.max(f64::MIN_POSITIVE) - 1.0) * 100.0;
    report.row(Row::new("state latency p99 of the others, everyone reading", "ms", Better::Lower, without));
    report.row(Row::new("state latency p99 of the others, one stalled", "ms", Better::Lower, with));
    // Below a percent or two the difference of two runs is chance; that of two runs that did not hold always is.
    let row = Row::new("increase through one stalled reader", "%", Better::Lower, more);
    report.row(if complete { row.marks(10.0, 2.0) } else { row });
    Ok(report)
}

fn gateway_start(context: &Context<'_>) -> Result<Report, BenchError> {
    if context.options.target.is_some() {
        return Err(BenchError::NeedsOwnServer(context.name));
    }
    let starts = if context.options.quick { 3 } else { 21 };
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
    let row = Row::new("start to ready, median", "ms", Better::Lower, times.quantile_ms(0.5));
    report.row(row.marks(150.0, 50.0));
    report.row(Row::new("start to ready, slowest", "ms", Better::Lower, times.summary().max_ms));
    Ok(report)
}

/// How long a running server may take to answer the claim of GLOBAL before it counts as refused.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);

/// A server that runs on this machine with the default ports and says that it is ready, if there is one.
#[must_use]
pub fn local_server() -> Option<Target> {
    let [clients, servers, http] = DEFAULT_PORTS.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    probe::fetch(http, "/health/ready").ok()?;
    Some(Target { clients, servers, pid: None, metrics: Some(http), console: None })
}

/// Free-form players, for `throng swarm` and `throng demo`.
#[derive(Debug, Clone, Default)]
pub struct Swarm {
    /// Server, transport and the like; its sizes and times are not used.
    pub options: Options,
    /// Players.
    pub players: usize,
    /// How long they play once everyone is in; until Ctrl-C when not given.
    pub duration: Option<Duration>,
    /// Join this channel of a server whose world is already run by a game server, instead of bringing one.
    pub join: Option<u32>,
    /// Play on the published grid of nine game servers, with handover, instead of on one channel.
    pub spatial: bool,
}

impl Swarm {
    /// Runs the swarm. `on_start` hears where the server is, before the players come.
    ///
    /// # Errors
    /// When the server does not start or the players do not get in.
    pub fn run(
        &self,
        on_start: &mut dyn FnMut(&Target),
        progress: &mut dyn Progress,
    ) -> Result<Report, BenchError> {
        socket::raise_descriptor_limit();
        let context =
            Context { name: "swarm", options: &self.options, progress: std::cell::RefCell::new(progress) };
        let mut report = context.report(false);
        report.setting("players", self.players);
        if self.spatial {
            return worlds::swarm(&context, report, self, on_start);
        }
        let server = context.server()?;
        on_start(&server.target);
        let plan = Plan {
            warmup: Duration::ZERO,
            duration: self.duration,
            owner: self.join.is_none(),
            gather: false,
            join: self.join,
            sample_interval: Duration::from_secs(1),
            owner_patience: if server.own.is_some() { Duration::from_secs(20) } else { CLAIM_PATIENCE },
            ..context.plan(&server, self.players)
        };
        let name = "players come in";
        let outcome = match context.run(name, &plan, &server) {
            // The protocol has no refusals: silence is the answer to a claim of GLOBAL when it has an owner.
            Err(BenchError::Run { source: RunError::NoChannel { .. }, .. }) if server.own.is_none() => {
                report.note("GLOBAL has a game server already: the players joined its world".to_owned());
                context.run(name, &Plan { owner: false, join: Some(0), ..plan }, &server)?
            }
            other => other?,
        };
        report.run(Run::new("swarm", &outcome));
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart;
    use crate::fake::Fake;
    use serde_json::Value;

    /// Runs a test small against a fake of its own.
    fn try_out(name: &str, change: impl FnOnce(&mut Options)) -> Report {
        let fake = Fake::start(None);
        let pid = Some(std::process::id());
        let target =
            Target { clients: fake.clients, servers: fake.servers, pid, metrics: None, console: None };
        let mut options = Options {
            target: Some(target),
            quick: true,
            duration: Some(Duration::from_millis(400)),
            warmup: Some(Duration::from_millis(50)),
            ..Options::default()
        };
        change(&mut options);
        find(name).expect("a known test").run(&options, &mut Silent).expect("a report")
    }

    fn row<'a>(report: &'a Report, what: &str) -> &'a Row {
        let found = report.rows.iter().find(|row| row.what.contains(what));
        found.unwrap_or_else(|| panic!("no row `{what}` in {:?}", report.rows))
    }

    #[test]
    fn channel_single_reports_latency_cpu_and_memory() {
        let report = try_out("channel single", |_| {});
        assert!(report.passed && report.thresholds.is_empty(), "a small try is not judged");
        assert!(!report.canonical, "twenty players are no canonical load");
        assert!(row(&report, "state latency p99").measured > 0.0);
        assert!(row(&report, "CPU per second and player").measured > 0.0);
        assert!(row(&report, "memory per connection").ratio.is_some());
        assert_eq!(report.runs[0].checked, report.runs[0].checked_equal);
        assert!(check_schema(&serde_json::to_value(&report).expect("serialises")).is_empty());
        let svg = chart::svg(&report).expect("a picture");
        assert!(svg.starts_with("<svg") && svg.contains("state latency"));
    }

    #[test]
    fn channel_single_sweeps_sizes() {
        let report = try_out("channel single", |options| options.players = vec![5, 10]);
        assert_eq!(report.runs.iter().map(|run| run.players).collect::<Vec<_>>(), [5, 10]);
        assert!(
            [0.0, 5.0, 10.0].contains(&row(&report, "players held").measured),
            "a busy machine may hold none"
        );
        let svg = chart::svg(&report).expect("a picture");
        assert!(svg.contains("players"));
    }

    #[test]
    fn channel_fan_out_only_sends_no_inputs() {
        let report = try_out("channel fanout-only", |_| {});
        assert_eq!(report.runs[0].inputs_due, 0);
        assert!(report.passed && row(&report, "server CPU").measured > 0.0);
    }

    #[test]
    fn gateway_tests_run_small() {
        let idle = try_out("gateway idle", |options| options.players = vec![20]);
        assert!(row(&idle, "server CPU").measured >= 0.0 && idle.runs[0].frames_per_s < 5.0);
        let trickle = try_out("gateway trickle", |options| options.players = vec![20]);
        assert!(trickle.runs[0].notices_arrived > 0);
        assert_eq!(trickle.runs[0].notices_arrived, trickle.runs[0].notices_due);
        let channels = try_out("gateway channels", |options| options.players = vec![50]);
        assert!(row(&channels, "server CPU").measured >= 0.0);
    }

    #[test]
    fn gateway_forward_counts_what_arrives() {
        let report = try_out("gateway forward", |options| options.players = vec![10]);
        let measured = row(&report, "forwarded").measured;
        assert!(measured >= 0.0, "a busy machine may not hold the rate: {measured}");
        assert_eq!(report.runs[0].inputs_arrived, report.runs[0].inputs_due);
    }

    /// Runs a test with a world small against a fake that has cells.
    fn try_out_world(name: &str, grid: Option<crate::spatial::Grid>) -> Report {
        let fake = crate::spatial::fake::Fake::start(grid);
        try_out(name, |options| {
            options.target = Some(Target {
                clients: fake.clients,
                servers: fake.servers,
                pid: None,
                metrics: None,
                console: None,
            });
            options.duration = Some(Duration::from_millis(800));
        })
    }

    #[test]
    fn worlds_report_handovers_rates_and_a_picture() {
        let spatial = try_out_world("channel spatial", Some(crate::spatial::Grid::PUBLISHED));
        let world = spatial.runs[0].world.as_ref().expect("a world");
        assert_eq!((world.channels["SPATIAL"], world.channels["ENTITY"]), (225, 40));
        assert!(row(&spatial, "state latency p99").measured > 0.0);
        assert_eq!(spatial.runs[0].checked, spatial.runs[0].checked_equal, "{:?}", spatial.runs[0]);
        let lod = try_out_world("channel entity-lod", None);
        assert_eq!(lod.runs[0].world.as_ref().expect("a world").bands.len(), 3);
        assert!(row(&lod, "server frame rate").measured > 25.0);
        for report in [spatial, lod] {
            assert!(check_schema(&serde_json::to_value(&report).expect("serialises")).is_empty());
            assert!(report.pictures[0].1.starts_with("<svg"));
        }
    }

    #[test]
    fn gateway_start_needs_a_server_of_its_own() {
        let target = "127.0.0.1:1".parse().expect("address");
        let target =
            Some(Target { clients: target, servers: target, pid: None, metrics: None, console: None });
        let options = Options { target, ..Options::default() };
        let error = find("gateway start").expect("known").run(&options, &mut Silent).expect_err("refused");
        assert!(error.to_string().contains("--addr"));
    }

    /// What in `value` is not as the published schema says.
    fn check_schema(value: &Value) -> Vec<String> {
        let schema: Value =
            serde_json::from_str(include_str!("../../../docs/bench-report.schema.json")).expect("JSON");
        let mut wrong = Vec::new();
        check(&schema, &schema, value, "report", &mut wrong);
        wrong
    }

    /// The part of JSON Schema that ours uses.
    fn check(root: &Value, schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
        if schema["$ref"] == "#/$defs/times" {
            return check(root, &root["$defs"]["times"], value, path, wrong);
        }
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let is = |expected: &Value| expected == name || (expected == "number" && name == "integer");
        let right = match &schema["type"] {
            Value::Array(types) => types.iter().any(is),
            Value::Null => schema["enum"].as_array().is_some_and(|choices| choices.contains(value)),
            one => is(one),
        };
        if !right {
            wrong.push(format!("{path} is {value}, which {schema} does not allow"));
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.get(key).is_none() {
                wrong.push(format!("{path}.{key} is missing"));
            }
        }
        for (key, field) in value.as_object().into_iter().flatten() {
            match schema["properties"].get(key) {
                Some(schema) => check(root, schema, field, &format!("{path}.{key}"), wrong),
                None if schema["additionalProperties"] == false => {
                    wrong.push(format!("{path}.{key} is not described"))
                }
                None => {}
            }
        }
        for item in value.as_array().into_iter().flatten() {
            check(root, &schema["items"], item, &format!("{path}[]"), wrong);
        }
    }
}
