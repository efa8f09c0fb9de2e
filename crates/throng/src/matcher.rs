//! `throng bench matcher` and `throng matcher`: the load suite of the matcher, and its journal.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Parser};
use throng_load::child::{Owned, free_address};
use throng_load::duration;
use throng_load::interrupt;
use throng_load::matcher::{self, PUBLISHED, Plan, RunError, TESTS, TestReport};
use throng_load::report::Report;
use throng_load::suites::Effort;
use throng_sim::{population, quality};

use crate::bench::{ProgressArgs, prepare, write_report};

const EXIT_FAILED: u8 = 1;
const EXIT_WRONG: u8 = 2;
/// Default port of a matcher.
const PORT: u16 = 11_290;
/// Tickets of a comparison with an offline solution, and moves of its search for each of them.
const OFFLINE_TICKETS: usize = 2_000;
const MOVES_EACH: usize = 2_000;
/// Longest time of a run; all published tests take some minutes.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
/// Time that a matcher of our own may take to start.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Measure a matcher: the 19 tests of the reference's own tool
#[derive(Debug, Parser)]
#[command(name = "throng bench matcher", bin_name = "throng bench matcher", disable_version_flag = true, after_help = EXAMPLES)]
struct BenchArgs {
    /// Closed-loop workers; with --all the published number of each test unless given
    #[arg(short = 'g', long = "goroutines", visible_alias = "workers", value_name = "N", value_parser = crate::bench::count)]
    goroutines: Option<usize>,
    /// Print the test names
    #[arg(short, long)]
    list: bool,
    /// The test
    #[arg(short, long, value_name = "NAME", default_value = "RoleJoinRandomRoom")]
    test: String,
    /// Duration [default: 15s]
    #[arg(short = 'm', long, value_name = "D")]
    time: Option<String>,
    /// Area of the matcher
    #[arg(short, long, value_name = "ID", default_value = "1")]
    area: String,
    /// Running matcher; without it one is started
    #[arg(long, value_name = "HOST[:PORT]")]
    addr: Option<String>,
    /// Access token of that matcher
    #[arg(long, value_name = "TOKEN", default_value = "")]
    token: String,
    /// Its process id, for CPU time
    #[arg(long, value_name = "PID", requires = "addr")]
    pid: Option<u32>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    conns: usize,
    /// Servers (SrvIDs) that roles are distributed over
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: usize,
    /// Warm-up before the measured window
    #[arg(long, value_name = "D", default_value = "0")]
    warmup: String,
    /// Also write the result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write report.json and report.txt into this folder, for `throng report` and `throng
    /// compare`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of lines, for the console
    #[arg(long, hide = true)]
    report: bool,
    /// Every test in name order, as a table beside the published figures
    #[arg(long)]
    all: bool,
    /// Queues with many tickets instead of the published tests: ticks, pairs, steady arrivals,
    /// memory
    #[arg(long, conflicts_with = "all")]
    tickets: bool,
    /// Waiting tickets, with --tickets
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "tickets")]
    waiting: usize,
    /// Tiny loads that only show that everything works; not judged
    #[arg(long, conflicts_with = "tickets")]
    smoke: bool,
    /// Count refused requests instead of stopping at the first
    #[arg(long)]
    keep_going: bool,
    /// Durability of the started matcher: none, async or sync
    #[arg(long, value_name = "WHEN", default_value = "none", conflicts_with = "addr")]
    durability: String,
    /// Additional flag for the started matcher; repeatable
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true, conflicts_with = "addr")]
    server_flag: Vec<String>,
    /// Run the bare echo that figures are compared with
    #[arg(long, hide = true, value_name = "ADDR")]
    echo: Option<SocketAddr>,
    #[command(flatten)]
    progress: ProgressArgs,
}

impl BenchArgs {
    fn time(&self) -> &str {
        self.time.as_deref().unwrap_or(if self.smoke { "50ms" } else { "15s" })
    }

    /// Workers of a test that has `published` of them.
    fn workers(&self, published: usize) -> usize {
        self.goroutines.unwrap_or(if self.smoke { published.min(SMOKE_WORKERS) } else { published })
    }
}

/// Workers of a smoke test at most.
const SMOKE_WORKERS: usize = 8;

const EXAMPLES: &str = "\
Examples:
  throng bench matcher -g 3000                       RoleJoinRandomRoom with the published number of workers
  throng bench matcher --all -m 5s                   every test beside the published figures
  throng bench matcher --all -m 5s --durability sync the same, answered when on disk
  throng bench matcher --tickets -m 5s               a queue of 100,000 tickets
  throng bench matcher -t Ping -g 64 --addr 127.0.0.1:11290

Exit codes: 0 done, 1 a request failed, 2 wrong flags.";

/// `throng bench matcher ...`.
pub(crate) fn bench(arguments: &[OsString]) -> ExitCode {
    let args = match BenchArgs::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_WRONG) } else { ExitCode::SUCCESS };
        }
    };
    match bench_inner(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Wrong(text)) => {
            let _ = writeln!(io::stderr(), "{text}");
            ExitCode::from(EXIT_WRONG)
        }
        Err(Failure::Failed(text)) => {
            let _ = writeln!(io::stderr(), "error: {text}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Failure {
    Wrong(String),
    Failed(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wrong(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::IllegalTestName(_) => Failure::Wrong(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

fn bench_inner(args: &BenchArgs) -> Result<(), Failure> {
    if let Some(addr) = args.echo {
        return Ok(matcher::serve_echo(addr, |_| ())?);
    }
    if args.list {
        let names: String = TESTS.iter().map(|name| format!("\t{name}\n")).collect();
        return print(&format!("Test names:\n{names}"));
    }
    // Before any connection is made.
    if !args.all && !TESTS.contains(&args.test.as_str()) {
        return Err(RunError::IllegalTestName(args.test.clone()).into());
    }
    prepare(args.out.as_deref()).map_err(|error| Failure::Failed(error.to_string()))?;
    interrupt::bounded(LIMIT, || measure(args)).unwrap_or_else(|why| Err(Failure::Failed(why)))
}

fn measure(args: &BenchArgs) -> Result<(), Failure> {
    let bench = Bench::start(args)?;
    let say = &mut |text: &str| if args.report { Ok(()) } else { print(text) };
    if args.tickets {
        let report = bench.tickets()?;
        say(&report_table(&report)?)?;
        let value = serde_json::json!({ "tickets": report.rows, "durability": args.durability });
        return save(args, &value, &report);
    }
    if !args.all {
        let plan = bench.plan(&args.test, args.workers(1));
        if args.progress.is_shown() {
            say(&matcher::running_line(&plan, args.time()))?;
        }
        let outcome = matcher::run(&plan)?;
        say(&outcome.lines())?;
        let outcomes = [outcome];
        return save(args, &bench.json(&outcomes, None), &bench.report(&outcomes, None));
    }
    let (outcomes, limit) = bench.published(say)?;
    say(&format!("\n{}", matcher::table(&outcomes, Some(&limit))))?;
    save(args, &bench.json(&outcomes, Some(&limit)), &bench.report(&outcomes, Some(&limit)))
}

/// Every published test beside a bare echo, as `throng bench all` runs them.
pub(crate) fn published(effort: Effort) -> Result<Report, Failure> {
    let words: &[&str] = match effort {
        Effort::Whole => &["--all", "-m", "5s"],
        Effort::Quick => &["--all", "-m", "1500ms"],
        Effort::Smoke => &["--all", "--smoke"],
    };
    let args = parse(words)?;
    let bench = Bench::start(&args)?;
    let (outcomes, limit) = bench.published(&mut |_| Ok(()))?;
    Ok(bench.report(&outcomes, Some(&limit)))
}

/// Queues with many tickets, as `throng bench all` runs them. Most of their time they wait for
/// ticks.
pub(crate) fn tickets(effort: Effort) -> Result<Report, Failure> {
    let time = if effort == Effort::Whole { "5s" } else { "2s" };
    let args = parse(&["--tickets", "-m", time])?;
    Bench::start(&args)?.tickets()
}

fn parse(words: &[&str]) -> Result<BenchArgs, Failure> {
    let words = std::iter::once(&"throng bench matcher").chain(words);
    BenchArgs::try_parse_from(words).map_err(|error| Failure::Wrong(error.to_string()))
}

/// Parses the words after `throng bench matcher` without running them.
#[cfg(test)]
pub(crate) fn check(words: &[&str]) -> Result<(), String> {
    match BenchArgs::try_parse_from(std::iter::once(&"throng bench matcher").chain(words)) {
        Err(error) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// A matcher to load, and how.
struct Bench<'a> {
    args: &'a BenchArgs,
    /// Ours, unless one was named.
    own: Option<OwnMatcher>,
    addr: SocketAddr,
    time: Duration,
    warmup: Duration,
}

impl<'a> Bench<'a> {
    fn start(args: &'a BenchArgs) -> Result<Self, Failure> {
        let wrong = |error: duration::DurationError| Failure::Wrong(error.to_string());
        let time = duration::parse(args.time()).map_err(wrong)?;
        let warmup = duration::parse(&args.warmup).map_err(wrong)?;
        let own = if args.addr.is_none() { Some(OwnMatcher::start(args)?) } else { None };
        let addr = match (&own, &args.addr) {
            (Some(own), _) => own.addr,
            (None, addr) => resolve(addr.as_deref().unwrap_or_default())?,
        };
        Ok(Self { args, own, addr, time, warmup })
    }

    fn plan(&self, test: &str, workers: usize) -> Plan {
        let args = self.args;
        Plan {
            addr: self.addr,
            test: test.to_owned(),
            workers: workers.max(1),
            time: self.time,
            warmup: self.warmup,
            area: args.area.clone(),
            conns: args.conns,
            servers: args.servers,
            keep_going: args.keep_going,
            pid: self
                .own
                .as_ref()
                .and_then(|own| own.child.as_ref())
                .map(throng_load::child::Owned::id)
                .or(args.pid),
            token: args.token.clone(),
        }
    }

    /// Every published test, then the bare echo. `say` gets the lines of the reference's tool.
    fn published(
        &self,
        say: &mut dyn FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(Vec<TestReport>, TestReport), Failure> {
        let mut outcomes = Vec::new();
        for published in PUBLISHED {
            let plan = self.plan(published.test, self.args.workers(published.workers));
            if self.args.progress.is_shown() {
                say(&matcher::running_line(&plan, self.args.time()))?;
            }
            let outcome = matcher::run(&plan)?;
            say(&outcome.lines())?;
            outcomes.push(outcome);
        }
        let echo = Echo::start()?;
        let mut limit = self.plan("Ping", self.args.workers(3_000));
        (limit.addr, limit.pid, limit.conns, limit.servers) = (echo.addr, Some(echo.child.id()), 1, 1);
        Ok((outcomes, matcher::run(&limit)?))
    }

    fn tickets(&self) -> Result<Report, Failure> {
        let rows = matcher::run_tickets(&self.plan("CreateTicket", 1), self.args.waiting)?;
        Ok(matcher::tickets_report(rows, self.args.waiting, &self.args.durability))
    }

    fn report(&self, outcomes: &[TestReport], echo: Option<&TestReport>) -> Report {
        let mut report = matcher::report(outcomes, echo, &self.args.durability);
        if self.args.smoke {
            report.unjudge();
        }
        report
    }

    fn json(&self, outcomes: &[TestReport], echo: Option<&TestReport>) -> serde_json::Value {
        serde_json::json!({ "tests": outcomes, "echo": echo, "durability": self.args.durability })
    }
}

fn report_table(report: &Report) -> Result<String, Failure> {
    let mut table = Vec::new();
    report.write_table(&mut table)?;
    Ok(String::from_utf8_lossy(&table).into_owned())
}

/// Writes what the flags ask for.
fn save(args: &BenchArgs, value: &serde_json::Value, report: &Report) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    if let Some(folder) = &args.out {
        write_report(folder, report).map_err(|error| failed(&error))?;
    }
    if args.report {
        print(&serde_json::to_string(report).map_err(|error| failed(&error))?)?;
    }
    let Some(file) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(value).map_err(|error| failed(&error))?;
    Ok(std::fs::write(file, text + "\n")?)
}

fn resolve(addr: &str) -> Result<SocketAddr, Failure> {
    let with_port = if addr.contains(':') { addr.to_owned() } else { format!("{addr}:{PORT}") };
    let found = with_port.to_socket_addrs();
    let found = found.map_err(|error| Failure::Wrong(format!("address `{addr}`: {error}")))?.next();
    found.ok_or_else(|| Failure::Wrong(format!("`{addr}` has no IP address")))
}

fn print(text: &str) -> Result<(), Failure> {
    crate::output::print_result(text);
    Ok(())
}

/// A matcher of our own, ended when dropped.
struct OwnMatcher {
    child: Option<Owned>,
    addr: SocketAddr,
    folder: PathBuf,
}

impl OwnMatcher {
    fn start(args: &BenchArgs) -> Result<OwnMatcher, Failure> {
        let addr = free_address()?;
        let folder = std::env::temp_dir().join(format!("throng-bench-matcher-{}", std::process::id()));
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["up", "--only", "matcher", "--http.addr", "", "--matcher.area", &args.area])
            .args(["--matcher.addr", &addr.to_string(), "--matcher.durability", &args.durability])
            .arg("--data")
            .arg(&folder)
            .args(&args.server_flag);
        let child = Owned::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        let mut own = OwnMatcher { child: Some(child), addr, folder };
        own.child.as_mut().map_or(Ok(()), |child| wait_for(child, addr))?;
        Ok(own)
    }
}

impl Drop for OwnMatcher {
    fn drop(&mut self) {
        self.child = None;
        // Left behind at worst: a folder of its own in the system's place for such.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The bare echo, ended when dropped.
struct Echo {
    child: Owned,
    addr: SocketAddr,
}

impl Echo {
    fn start() -> Result<Echo, Failure> {
        let addr = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "matcher", "--echo", &addr.to_string()]).stdin(Stdio::null());
        let mut child = Owned::spawn(&mut command)?;
        wait_for(&mut child, addr)?;
        Ok(Echo { child, addr })
    }
}

fn wait_for(child: &mut Owned, addr: SocketAddr) -> Result<(), Failure> {
    let began = Instant::now();
    while TcpStream::connect(addr).is_err() {
        if let Some(status) = child.try_wait()? {
            return Err(Failure::Failed(format!("the matcher ended at start: {status}")));
        }
        if began.elapsed() > START_PATIENCE {
            return Err(Failure::Failed(format!("the matcher does not listen on {addr}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.watch("the matcher under test");
    Ok(())
}

/// `throng matcher`.
pub(crate) fn command() -> clap::Command {
    clap::Command::new("matcher")
        .about("Replay, export and import the matcher's journal, simulate its matching quality")
        .subcommand_required(true)
        .subcommand(
            clap::Command::new("replay")
                .about("Replay a journal and print the hash of its state")
                .arg(
                    Arg::new("folder")
                        .value_name("DIR")
                        .help("Folder of the journal, as in throng-data/matcher; the matcher must not run")
                        .required(true),
                )
                .arg(
                    Arg::new("verify").long("verify").action(ArgAction::SetTrue).help(
                        "Compare answers, notices and states with those of the run that wrote the journal",
                    ),
                )
                .arg(
                    Arg::new("salvage")
                        .long("salvage")
                        .action(ArgAction::SetTrue)
                        .help("Skip damaged records"),
                ),
        )
        .subcommand(
            clap::Command::new("settle")
                .about("Replay a journal and leave only a snapshot, which a later release reads")
                .arg(
                    Arg::new("folder")
                        .value_name("DIR")
                        .help("Folder of the journal, as in throng-data/matcher; not while a matcher uses it")
                        .required(true),
                ),
        )
        .subcommand(
            clap::Command::new("export")
                .about("Print players, ratings, queues and rooms of a journal as JSON lines")
                .arg(
                    Arg::new("folder")
                        .value_name("DIR")
                        .help("Folder of the journal, as in throng-data/matcher; the matcher must not run")
                        .required(true),
                ),
        )
        .subcommand(
            clap::Command::new("import")
                .about("Make a journal of exported lines; checks all of them before it writes")
                .arg(
                    Arg::new("folder")
                        .value_name("DIR")
                        .help("Folder of the new journal, empty or not there yet")
                        .required(true),
                )
                .arg(
                    Arg::new("file")
                        .value_name("FILE")
                        .help("File with the lines; - reads standard input")
                        .default_value("-"),
                ),
        )
        .subcommand(
            clap::Command::new("takeover")
                .about("Give up an area's lost matcher: another one then serves with an empty state")
                .arg(Arg::new("area").value_name("AREA").help("The area, as in matcher.area").required(true))
                .arg(
                    Arg::new("nats")
                        .long("nats")
                        .value_name("URL")
                        .help("NATS servers, as in matcher.nats_url")
                        .default_value("nats://127.0.0.1:4222"),
                )
                .arg(
                    Arg::new("token_file")
                        .long("nats-token-file")
                        .value_name("FILE")
                        .help("File with the token that the NATS servers ask for"),
                ),
        )
        .subcommand(
            clap::Command::new("quality")
                .about("Simulate populations in virtual time: wait time against match quality")
                .arg(Arg::new("svg").long("svg").value_name("FILE").help("Also draw it"))
                .arg(
                    Arg::new("seconds")
                        .long("seconds")
                        .value_name("N")
                        .value_parser(clap::value_parser!(u64).range(10..=86_400))
                        .default_value("900")
                        .help("Virtual time of each population"),
                )
                .arg(
                    Arg::new("offline")
                        .long("offline")
                        .action(ArgAction::SetTrue)
                        .conflicts_with_all(["svg", "seconds"])
                        .help(
                            "Instead compare with a solution that knows the future: 2,000 tickets each of \
                             one region, three regions, scarce tanks and a night",
                        ),
                ),
        )
}

/// Runs `throng matcher ...`.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    match matches.subcommand() {
        Some(("replay", matches)) => replay(matches),
        Some(("quality", matches)) => match quality(matches) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {error}");
                ExitCode::from(EXIT_FAILED)
            }
        },
        Some(("takeover", matches)) => takeover(matches),
        Some(("settle", matches)) => settle(matches),
        Some(("export", matches)) => export(matches),
        Some(("import", matches)) => import(matches),
        _ => unreachable!("the subcommand is required and there are six"),
    }
}

/// Refuses a folder that holds no journal.
fn check_journal(folder: &str) -> Result<(), ExitCode> {
    if Path::new(folder).join("log").is_dir() {
        return Ok(());
    }
    let _ = writeln!(io::stderr(), "error: `{folder}` holds no journal (it has no folder `log`)");
    Err(ExitCode::from(EXIT_WRONG))
}

fn settle(matches: &ArgMatches) -> ExitCode {
    let folder = matches.get_one::<String>("folder").map(String::as_str).unwrap_or_default();
    if let Err(wrong) = check_journal(folder) {
        return wrong;
    }
    match throng_server::settle_matcher(Path::new(folder)) {
        Ok(records) => {
            let told = format!("{records} records replayed; the folder holds their state as a snapshot\n");
            if print(&told).is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn export(matches: &ArgMatches) -> ExitCode {
    let folder = matches.get_one::<String>("folder").map(String::as_str).unwrap_or_default();
    if let Err(wrong) = check_journal(folder) {
        return wrong;
    }
    match throng_server::export_matcher(Path::new(folder)) {
        Ok(lines) => {
            let told = String::from_utf8_lossy(&lines);
            if print(&told).is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn import(matches: &ArgMatches) -> ExitCode {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let lines = match text("file") {
        "-" => io::read_to_string(io::stdin()).map_err(|error| format!("standard input: {error}")),
        file => std::fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}")),
    };
    let folder = Path::new(text("folder"));
    match lines.and_then(|lines| throng_server::import_matcher(folder, &lines)) {
        Ok((rooms, players)) => {
            let told = format!("{rooms} rooms with {players} players\n");
            if print(&told).is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn takeover(matches: &ArgMatches) -> ExitCode {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let token = match text("token_file") {
        "" => Ok(String::new()),
        file => std::fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}")),
    };
    let given =
        token.and_then(|token| throng_server::take_over_area(text("nats"), token.trim(), text("area")));
    match given {
        Ok(holder) => {
            let told = format!(
                "{holder} is given up: the next matcher of area {} serves. If {holder} is back first, it serves with \
                 its state; any other begins with an empty one\n",
                text("area")
            );
            if print(&told).is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn quality(matches: &ArgMatches) -> io::Result<()> {
    if matches.get_flag("offline") {
        let all = quality::SETTINGS
            .map(|setting| quality::compare(&setting, OFFLINE_TICKETS, OFFLINE_TICKETS * MOVES_EACH, 1));
        return io::stdout().write_all(quality::comparison_table(&all).as_bytes());
    }
    let seconds = matches.get_one::<u64>("seconds").copied().unwrap_or_default();
    let outcomes = population::POPULATIONS.map(|population| population::play(population, seconds, 1));
    if let Some(file) = matches.get_one::<String>("svg") {
        std::fs::write(file, population::svg(&outcomes))?;
    }
    crate::output::print_result(&population::table(&outcomes));
    Ok(())
}

fn replay(matches: &ArgMatches) -> ExitCode {
    let folder = matches.get_one::<String>("folder").map(String::as_str).unwrap_or_default();
    if let Err(wrong) = check_journal(folder) {
        return wrong;
    }
    let replayed = throng_server::replay_matcher(
        Path::new(folder),
        matches.get_flag("verify"),
        matches.get_flag("salvage"),
    );
    match replayed {
        Ok(found) => {
            let rate = found.records as f64 / found.elapsed.as_secs_f64().max(1e-9);
            let text = format!(
                "{} records in {:.3} s ({rate:.0}/s), next is {}\nstate {}{}\n",
                found.records,
                found.elapsed.as_secs_f64(),
                found.sequence,
                found.digest,
                if matches.get_flag("verify") {
                    match found.compared {
                        1 => ", 1 recorded state hash matches".to_owned(),
                        count => format!(", {count} recorded state hashes match"),
                    }
                } else {
                    String::new()
                }
            );
            if print(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}
