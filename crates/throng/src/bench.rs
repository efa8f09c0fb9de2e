//! `throng bench`: the tests of the load suite by name.

use std::io::{self, IsTerminal as _, Write};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use throng_load::bare::{self, BarePlan};
use throng_load::case::Case;
use throng_load::enet::{self, ServePlan};
use throng_load::engine::Sample;
use throng_load::report::Report;
use throng_load::suites::{self, Effort, Options, Progress, TESTS, Target};
use throng_load::{Transport, chart, duration, interrupt};
use throng_server::config::nearest;

use crate::{all, balance};

/// A threshold was missed: the code that k6 made known.
const EXIT_THRESHOLD: u8 = 99;
const EXIT_ERROR: u8 = 2;
/// Port of the listener for game servers when --addr names a host only by its players' listener.
const SERVERS_PORT: u16 = 11_288;

/// Suites beside the tests of a gateway, each with flags of its own.
const SUITES: [&str; 4] = ["ddc", "enet", "matcher", "replication"];

/// Measure a gateway: published scenarios by name, beside the published figures
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct BenchArgs {
    /// `list`, `all`, or a case: suite and case name. Without it: 100 players on one channel, two
    /// lines of output
    #[arg(value_name = "SUITE CASE", num_args = 0..=2)]
    name: Vec<String>,
    /// Players (connections, channels, clients) to run with; several values make a sweep
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) players: Vec<usize>,
    /// Length of each measured window [default: 10s]
    #[arg(long, value_parser = duration::positive, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Warm-up after all players have joined [default: 3s]
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    warmup: Option<Duration>,
    /// Canonical loads, fewer sizes, shorter windows: the whole table in minutes
    #[arg(long)]
    quick: bool,
    /// Tiny loads that only show that everything works; not judged
    #[arg(hide_short_help = true, long, conflicts_with = "quick")]
    smoke: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// For `channel spatial`: crash one game server this long into the window; it returns two
    /// seconds later
    #[arg(hide_short_help = true, long, value_parser = duration::parse, value_name = "TIME", help_heading = "Load")]
    crash_server_at: Option<Duration>,
    /// For `channel entity-lod`: players request the rates of the distance bands, as the Unreal
    /// plugin does
    #[arg(hide_short_help = true, long, help_heading = "Load")]
    ask_for_rates: bool,
    /// For `channel spatial`, `entity-lod` and `entity-bytes`: bytes added to each update of a
    /// character, as much as the rest of a game's state
    #[arg(hide_short_help = true, long, default_value_t = 0, value_name = "BYTES", value_parser = padding, help_heading = "Load")]
    padding: usize,
    /// For `cluster single`: program of the build to compare with
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = "Server")]
    against: Option<PathBuf>,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write report.json, report.txt and chart.svg into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// For the hidden bare writer: connections to accept, bytes per write, writes per second
    #[arg(long, hide = true, default_value_t = 0)]
    sockets: usize,
    #[arg(long, hide = true, default_value_t = 0)]
    bytes: usize,
    #[arg(long, hide = true, default_value_t = 30.0)]
    per_second: f64,
    #[command(flatten)]
    enet: EnetArgs,
}

/// For `throng bench enet --serve`.
#[derive(Debug, Clone, Args)]
struct EnetArgs {
    /// `bench enet`: run the echo server at --addr, by default 127.0.0.1:7777, until Ctrl-C
    #[arg(hide_short_help = true, long, help_heading = "ENet echo server")]
    serve: bool,
    /// Concurrent connections
    #[arg(long, value_name = "N", default_value_t = 1 << 20, hide_short_help = true, help_heading = "ENet echo server")]
    slots: usize,
    /// Poll and answer only this many times a second, like a game with a tick [default: at once]
    #[arg(
        long,
        value_name = "HZ",
        default_value_t = 0,
        hide_default_value = true,
        hide_short_help = true,
        help_heading = "ENet echo server"
    )]
    game_hz: u32,
    /// Shortest time between two rounds of a busy thread
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "800us", hide_short_help = true, help_heading = "ENet echo server")]
    interval: Duration,
    /// Echo datagrams without any protocol
    #[arg(long, hide = true)]
    bare: bool,
    /// One datagram per buffer, as if every client had a socket of its own
    #[arg(long, hide = true)]
    no_segmentation: bool,
}

/// Which server to load, and how; common to everything that makes load.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Players' listener of a running server; without it a server is started
    #[arg(long, value_name = "HOST:PORT", help_heading = "Server")]
    pub(crate) addr: Option<String>,
    /// Game servers' listener of that server [default: port 11288 of the same host]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "HOST:PORT",
        requires = "addr",
        help_heading = "Server"
    )]
    pub(crate) servers: Option<String>,
    /// Process id of that server, if it runs on this machine: for CPU and memory
    #[arg(hide_short_help = true, long, requires = "addr", help_heading = "Server")]
    pub(crate) pid: Option<u32>,
    /// Address of its metrics page
    #[arg(
        hide_short_help = true,
        long,
        value_name = "HOST:PORT",
        requires = "addr",
        help_heading = "Server"
    )]
    pub(crate) metrics: Option<String>,
    /// Program to start as the server, to compare builds [default: this one]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "FILE",
        conflicts_with = "addr",
        help_heading = "Server"
    )]
    pub(crate) program: Option<PathBuf>,
    /// Threads of the started server
    #[arg(long, value_name = "N", conflicts_with = "addr", help_heading = "Server")]
    pub(crate) shards: Option<u16>,
    /// Additional flag for the started server; repeatable
    #[arg(
        hide_short_help = true,
        long,
        value_name = "FLAG",
        allow_hyphen_values = true,
        conflicts_with = "addr",
        help_heading = "Server"
    )]
    pub(crate) server_flag: Vec<String>,
    /// Transport of the players: tcp, ws, kcp, tls or wss
    #[arg(hide_short_help = true, long, default_value_t = Transport::Tcp, help_heading = "Load")]
    pub(crate) transport: Transport,
    /// Generator threads for players [default: one per two processors]; with `enet --serve`, server
    /// threads [default: 1]
    #[arg(
        hide_short_help = true,
        long,
        default_value_t = 0,
        hide_default_value = true,
        value_name = "N",
        value_parser = threads,
        help_heading = "Load"
    )]
    pub(crate) threads: usize,
    /// Random seed
    #[arg(hide_short_help = true, long, default_value_t = 1, help_heading = "Load")]
    pub(crate) seed: u64,
    #[command(flatten)]
    progress: ProgressArgs,
}

/// Progress of a measurement; common to all suites.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProgressArgs {
    /// No progress output, only the result
    #[arg(hide_short_help = true, long)]
    no_progress: bool,
}

impl ProgressArgs {
    /// Reports whether progress is to be shown.
    pub(crate) fn is_shown(&self) -> bool {
        !self.no_progress
    }

    /// Prints a line of progress.
    pub(crate) fn say(&self, text: &str) {
        if self.is_shown() {
            say(text);
        }
    }
}

const AFTER_HELP: &str = "\
Examples:
  throng bench                                     100 players on one channel, two lines
  throng bench channel single                      the published scenario up to 1,000 players
  throng bench channel single --players 600 --duration 30s --out runs/600
  throng bench channel spatial --players 500 --out runs/world
  throng bench gateway idle --json > idle.json
  throng bench channel single --players 100 --addr 127.0.0.1:12108 --pid $(pidof channeld)
  throng bench all --quick --out runs              every figure in ten minutes; then throng report runs -f html
  throng bench enet --quick                        the ENet host beside libenet and a bare echo
  throng bench replication                         state replication; throng bench replication --help has more
  throng bench enet --serve --addr 127.0.0.1:7777 --slots 50000

Verdicts: passed, missed, or not judged (another load than the canonical one, or nothing was measured).
Exit codes: 0 passed or not judged, 99 missed, 2 no result.";

/// Runs the cases that the flags select.
pub(crate) fn run(args: BenchArgs) -> ExitCode {
    match run_inner(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_THRESHOLD),
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(EXIT_ERROR)
        }
    }
}

pub(crate) type AnyError = Box<dyn std::error::Error>;

fn run_inner(args: BenchArgs) -> Result<bool, AnyError> {
    let words: Vec<&str> = args.name.iter().map(String::as_str).collect();
    if words == ["bare-writer"] {
        // Ends like any program when told to: whoever started it has read its CPU clock by then.
        let plan = BarePlan { sockets: args.sockets, bytes: args.bytes, per_second: args.per_second };
        bare::serve(plan, &mut io::stdout())?;
        return Ok(true);
    }
    if args.crash_server_at.is_some() && words != ["channel", "spatial"] {
        return Err("--crash-server-at applies to `bench channel spatial` only".into());
    }
    prepare(args.out.as_deref())?;
    interrupt::catch();
    match words.as_slice() {
        ["list"] => {
            let mut text = String::new();
            for test in TESTS {
                text.push_str(&format!("{:<20}  {}\n", test.name, test.summary));
            }
            text.push_str(&format!("{:<20}  {}\n", balance::NAME, balance::SUMMARY));
            text.push_str(&format!(
                "{:<20}  {}\n",
                "enet [GROUP]", "the ENet host beside the C library; groups:"
            ));
            for (name, summary) in enet::GROUPS {
                text.push_str(&format!("{:<20}  {summary}\n", format!("  enet {name}")));
            }
            text.push_str(&format!(
                "{:<20}  {}\n",
                "ddc [TEST]",
                "the derived-data cache: the published tests; saturation beside nginx (ddc --list)"
            ));
            text.push_str(&format!(
                "{:<20}  {}\n",
                "replication", "state replication: published groups, method by method (see its --help)"
            ));
            text.push_str(&format!(
                "{:<20}  {}\n",
                "matcher", "the matcher: the published tests, rooms and teams, tickets (see its --help)"
            ));
            text.push_str(&format!(
                "{:<20}  {}\n",
                "replay CASE.json", "recorded sessions, replayed by many connections"
            ));
            print(&text)?;
            Ok(true)
        }
        ["enet"] if args.enet.serve => {
            let addr = args.server.addr.as_deref().unwrap_or("127.0.0.1:7777");
            let plan = ServePlan {
                addr: resolve(addr)?,
                slots: args.enet.slots,
                shards: u16::try_from(args.server.threads).unwrap_or(u16::MAX).max(1),
                game_hz: args.enet.game_hz,
                interval: args.enet.interval,
                segmentation: !args.enet.no_segmentation,
                bare: args.enet.bare,
            };
            enet::serve(&plan, io::stdout())?;
            Ok(true)
        }
        ["enet", ..] if args.enet.serve => {
            Err("bench enet --serve takes no group; --addr HOST:PORT names its address".into())
        }
        ["enet", ..] if args.server.addr.is_some() => {
            Err("bench enet starts its own servers: --addr is the address of bench enet --serve".into())
        }
        ["enet", groups @ ..] => {
            let known: Vec<&str> = enet::GROUPS.iter().map(|(name, _)| *name).collect();
            if let Some(wrong) = groups.iter().find(|group| !known.contains(group)) {
                let near = nearest(wrong, known.iter().copied());
                let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                let known = known.join(", ");
                return Err(format!("bench enet has no group `{wrong}`{hint}\n  groups: {known}").into());
            }
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let report = bounded(&args, || measure_enet(&args, groups))?;
            show(&args, &report)?;
            save(&args, &report, "")?;
            Ok(!report.is_missed())
        }
        ["replay", case] => {
            let mut case = Case::load(Path::new(case))?;
            if let Some(addr) = &args.server.addr {
                case.channeld_addr.clone_from(addr);
            }
            let report = bounded(&args, || Ok(case.play(args.server.seed)?))?;
            show(&args, &report)?;
            save(&args, &report, "")?;
            Ok(!report.is_missed())
        }
        ["all"] => all::run(&args),
        [] => {
            let args = BenchArgs {
                players: if args.players.is_empty() { vec![100] } else { args.players.clone() },
                ..args
            };
            let test = suites::find("channel single").ok_or("the canonical test is gone")?;
            let options = options(&args)?;
            let report = bounded(&args, || Ok(test.run(&options, &mut args.server.live())?))?;
            print(&if args.json { json(&report)? } else { two_lines(&report) })?;
            save(&args, &report, "")?;
            Ok(!report.is_missed())
        }
        words => {
            let report = bounded(&args, || measure(&words.join(" "), &args))?;
            show(&args, &report)?;
            save(&args, &report, "")?;
            Ok(!report.is_missed())
        }
    }
}

/// Runs one case within the limit of these flags. A case whose server dies, or that is over its
/// limit, has no result.
pub(crate) fn bounded(
    args: &BenchArgs,
    case: impl FnOnce() -> Result<Report, AnyError>,
) -> Result<Report, AnyError> {
    interrupt::bounded(args.limit(), case).unwrap_or_else(|why| Err(why.into()))
}

/// The cases of a gateway, each of which has a name of two words.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TESTS.iter().map(|test| test.name).chain([balance::NAME])
}

fn unknown(name: &str) -> String {
    let known: Vec<&str> = names().collect();
    let near = nearest(name, known.iter().copied().chain(SUITES).chain(["list", "all"]));
    let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    format!("there is no case `{name}`{hint}\n  cases: {}\n  suites: {}", known.join(", "), SUITES.join(", "))
}

/// The ENet host beside the C library and a bare echo; all groups when none is named.
pub(crate) fn measure_enet(args: &BenchArgs, groups: Vec<String>) -> Result<Report, AnyError> {
    let options = enet::Options {
        program: std::env::current_exe()?,
        groups,
        clients: args.players.first().copied(),
        duration: args.duration,
        warmup: args.warmup,
        shards: args.server.shards,
        quick: args.effort() != Effort::Whole,
        smoke: args.effort() == Effort::Smoke,
        seed: args.server.seed,
    };
    let mut live = args.server.live();
    Ok(enet::run(&options, &mut |what| live.begin(what, None))?)
}

/// Runs a test of a gateway by name.
pub(crate) fn measure(name: &str, args: &BenchArgs) -> Result<Report, AnyError> {
    let mut live = args.server.live();
    Ok(if name == balance::NAME {
        balance::run(args.server.seed, args.effort(), &mut live)?
    } else {
        let test = suites::find(name).ok_or_else(|| unknown(name))?;
        test.run(&options(args)?, &mut live)?
    })
}

pub(crate) fn show(args: &BenchArgs, report: &Report) -> Result<(), AnyError> {
    if args.json {
        return print(&json(report)?);
    }
    let mut table = Vec::new();
    report.write_table(&mut table)?;
    table.push(b'\n');
    print(&String::from_utf8_lossy(&table))
}

fn options(args: &BenchArgs) -> Result<Options, AnyError> {
    Ok(Options {
        players: args.players.clone(),
        duration: args.duration,
        warmup: args.warmup,
        effort: args.effort(),
        crash_server_at: args.crash_server_at,
        ask_for_rates: args.ask_for_rates,
        padding_bytes: args.padding,
        against: args.against.clone(),
        ..args.server.options()?
    })
}

impl BenchArgs {
    /// Time limit of one case: about thirty times the longest case on two idle cores, plus its
    /// windows, of which a case has fifty at most.
    fn limit(&self) -> Duration {
        let window = self.duration.unwrap_or_default() + self.warmup.unwrap_or_default();
        let minutes = self.effort().pick(180, 60, 20);
        Duration::from_secs(60 * minutes) + window.saturating_mul(50)
    }

    /// Extent of the run.
    pub(crate) fn effort(&self) -> Effort {
        Effort::new(self.quick, self.smoke)
    }
}

impl ServerArgs {
    /// True if the flags neither name a server nor describe one to start.
    pub(crate) fn may_find_one(&self) -> bool {
        self.addr.is_none() && self.program.is_none() && self.shards.is_none() && self.server_flag.is_empty()
    }

    /// The display that these flags ask for.
    pub(crate) fn live(&self) -> Live {
        if self.progress.is_shown() { Live::new() } else { Live::silent() }
    }

    /// Options of the load suite from these flags.
    pub(crate) fn options(&self) -> Result<Options, AnyError> {
        let target = match &self.addr {
            None => None,
            Some(addr) => {
                let clients = resolve(addr)?;
                let servers = match &self.servers {
                    Some(servers) => resolve(servers)?,
                    None => SocketAddr::new(clients.ip(), SERVERS_PORT),
                };
                let metrics = self.metrics.as_deref().map(resolve).transpose()?;
                Some(Target { clients, servers, pid: self.pid, metrics, console: None })
            }
        };
        Ok(Options {
            target,
            program: match &self.program {
                Some(program) => program.clone(),
                None => std::env::current_exe()?,
            },
            shards: self.shards,
            server_flags: self.server_flag.clone(),
            transport: self.transport,
            threads: self.threads,
            seed: self.seed,
            ..Options::default()
        })
    }
}

/// Reads a number of players or other peers.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

/// Reads a number of threads; 0 stands for the default.
fn threads(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number".to_owned())
}

/// Reads the padding of an update.
fn padding(text: &str) -> Result<usize, String> {
    let max = throng_load::spatial::PADDING_BYTES_MAX;
    let bytes = text.parse().ok().filter(|bytes| *bytes <= max);
    bytes.ok_or_else(|| format!("expected a whole number of bytes, at most {max}"))
}

fn resolve(addr: &str) -> Result<SocketAddr, AnyError> {
    if !addr.contains(':') {
        return Err(format!("address `{addr}` has no port; expected HOST:PORT").into());
    }
    let found = addr.to_socket_addrs().map_err(|error| format!("address `{addr}`: {error}"))?.next();
    found.ok_or_else(|| format!("address `{addr}` has no IP address").into())
}

fn json(report: &Report) -> Result<String, AnyError> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Creates the folder of a report and tries to write there, so that a long run does not fail at its
/// end.
pub(crate) fn prepare(folder: Option<&Path>) -> Result<(), AnyError> {
    let Some(folder) = folder else { return Ok(()) };
    let trial = folder.join(".throng-bench");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&trial, ""))
        .and_then(|()| std::fs::remove_file(&trial))
        .map_err(|error| format!("cannot write into {} (--out): {error}", folder.display()).into())
}

pub(crate) fn save(args: &BenchArgs, report: &Report, folder: &str) -> Result<(), AnyError> {
    match &args.out {
        Some(out) => write_report(&out.join(folder.replace(' ', "-")), report),
        None => Ok(()),
    }
}

/// Writes a report into a folder: for programs, for people, and as a picture where it has one.
pub(crate) fn write_report(folder: &Path, report: &Report) -> Result<(), AnyError> {
    let write = |name: &str, content: &[u8]| -> Result<(), AnyError> {
        let path: &Path = &folder.join(name);
        std::fs::write(path, content)
            .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
    };
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    write("report.json", json(report)?.as_bytes())?;
    let mut table = Vec::new();
    report.write_table(&mut table)?;
    write("report.txt", &table)?;
    if let Some(svg) = chart::svg(report) {
        write("chart.svg", svg.as_bytes())?;
    }
    for (name, svg) in &report.pictures {
        write(name, svg.as_bytes())?;
    }
    Ok(())
}

fn two_lines(report: &Report) -> String {
    let Some(run) = report.runs.first() else { return String::new() };
    let mut text = format!(
        "{} players: {:.2}% of fan-outs, state p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms\n",
        run.players,
        run.delivered_share * 100.0,
        run.state.p50_ms,
        run.state.p99_ms,
        run.state.max_ms
    );
    let cpu: Vec<String> = report
        .rows
        .iter()
        .filter(|row| row.what.contains("CPU"))
        .map(|row| format!("{}: {:.2} {}", row.what, row.measured, row.unit))
        .collect();
    text.push_str(&cpu.join("; "));
    for note in &report.notes {
        text.push_str(&format!("\nnote: {note}"));
    }
    text + "\n"
}

/// Shows progress on standard error: a line per run and, when it is a terminal, a line that lives,
/// with a bar and the time that is left.
pub(crate) struct Live {
    terminal: bool,
    silent: bool,
    bar: ProgressBar,
    window: Option<Duration>,
}

impl Live {
    pub(crate) fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        Self { terminal, silent: false, bar: ProgressBar::hidden(), window: None }
    }

    /// One that shows nothing.
    fn silent() -> Self {
        let mut live = Self::new();
        live.silent = true;
        live
    }

    /// Ends the living line.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Live {
    fn begin(&mut self, what: &str, window: Option<Duration>) {
        self.clear();
        self.window = window;
        if self.silent {
            return;
        }
        if !self.terminal {
            return say(what);
        }
        let (length, template) = match window {
            Some(window) => (window.as_millis() as u64, "{prefix} [{bar:16}] {msg}"),
            None => (0, "{prefix} {msg}"),
        };
        // The pattern is a constant of ours; without it the bar has its usual looks.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr())
            .with_style(style.progress_chars("=> "))
            .with_prefix(what.to_owned());
        self.bar.set_message(if window.is_some() { "connecting" } else { "" });
    }

    fn sample(&mut self, sample: &Sample) {
        let at = Duration::from_secs_f64(sample.at_s.max(0.0));
        let left =
            self.window.map(|window| format!("{} s left  ", window.saturating_sub(at).as_secs_f64().ceil()));
        self.bar.set_message(left.unwrap_or_default() + &sample_line(sample));
        self.bar.set_position(at.as_millis() as u64);
    }
}

/// One sample in one line.
pub(crate) fn sample_line(sample: &Sample) -> String {
    let cores = sample.server_cores.map(|cores| format!("  server {cores:.2} cores")).unwrap_or_default();
    let memory = sample.server_resident_bytes.map(|bytes| format!(" {:.0} MiB", bytes as f64 / 1_048_576.0));
    let handovers = sample.handovers_per_s.map(|rate| format!("  {rate:.0} handovers/s")).unwrap_or_default();
    format!(
        "{:>4.0} s  {} players{cores}{}{handovers}  in {:.0} msg/s  out {:.0} msg/s {:.1} MB/s  p50 {:.1} p99 {:.1} ms  world {:.0} fps",
        sample.at_s,
        sample.connections,
        memory.unwrap_or_default(),
        sample.messages_in_per_s,
        sample.messages_out_per_s,
        sample.bytes_out_per_s / 1e6,
        sample.p50_ms,
        sample.p99_ms,
        sample.frames_per_s
    )
}

/// Writes data to standard output. A closed pipe counts as success; any other failure ends the
/// process.
pub(crate) fn print(text: &str) -> Result<(), AnyError> {
    crate::output::print_result(text);
    Ok(())
}

/// Writes a line of talk to standard error, if anyone listens.
pub(crate) fn say(text: &str) {
    say_part(&format!("{text}\n"));
}

fn say_part(text: &str) {
    // Nobody to talk to is no reason to fail.
    let _ = io::stderr().write_all(text.as_bytes());
}
