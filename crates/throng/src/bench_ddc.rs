//! `throng bench ddc`: the derived-data cache under the published load.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use throng_load::ddc::{self, Options};
use throng_load::duration;
use throng_load::report::Report;
use throng_load::suites::Effort;

use crate::bench::{ProgressArgs, prepare, print, say, write_report};

/// Namespace of the published tests.
const NAMESPACE: &str = "test.benchmark";
/// Longest time of a run without its windows.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
/// Entries of a cache of 5 TB at 170 KB for each.
const ENTRIES: u64 = 30_000_000;
const QUICK_WINDOW: Duration = Duration::from_secs(2);

/// Measure a derived-data cache: the published tests, and the cost of a request at saturation
#[derive(Debug, Parser)]
#[command(name = "throng bench ddc", after_help = AFTER_HELP)]
struct Args {
    /// Tests and groups (see --list); without a name or with `all`, the thirteen tests
    #[arg(value_name = "TEST")]
    names: Vec<String>,
    /// List the tests and groups
    #[arg(long)]
    list: bool,
    /// Running server, by http or https (any certificate); without it one is started
    #[arg(long, value_name = "http://HOST:PORT", help_heading = "Server")]
    url: Option<String>,
    /// Process id of that server, if it runs on this machine: for CPU and memory
    #[arg(long, requires = "url", help_heading = "Server")]
    pid: Option<u32>,
    /// Namespace of the test data
    #[arg(long, value_name = "NAME", default_value = NAMESPACE, help_heading = "Server")]
    namespace: String,
    /// Additional header of every request, `Name: value`; repeatable
    #[arg(long, value_name = "HEADER", help_heading = "Server")]
    header: Vec<String>,
    /// Program to start as the server, to compare builds [default: this one]
    #[arg(long, value_name = "FILE", conflicts_with = "url", help_heading = "Server")]
    program: Option<PathBuf>,
    /// Durability of the started server: `sync` acknowledges an upload when it is on disk, `cache`
    /// before
    #[arg(long, value_parser = ["sync", "cache"], default_value = "sync", conflicts_with = "url", help_heading = "Server")]
    durability: String,
    /// Folder for the data of started servers; it determines which disk is measured
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    data: Option<PathBuf>,
    /// Only upload the data that the tests need
    #[arg(long, requires = "url")]
    seed: bool,
    /// Upload no data: use those of an earlier run
    #[arg(long, requires = "url", conflicts_with = "seed")]
    no_seed: bool,
    /// Length of each window [default: as published]
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Windows of two seconds: the whole table in minutes
    #[arg(long, conflicts_with = "duration")]
    quick: bool,
    /// Part of the data, one second each: only shows that everything works; not judged
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Skip nginx and s3s-fs in `saturation`
    #[arg(long)]
    no_peers: bool,
    /// Play tests (by default five with small data) at half of the rate that they reach, without
    /// and beside scrub, collection and eviction of 200,000 blobs: p99 of each, and the ratio
    #[arg(long, conflicts_with_all = ["url", "targets"])]
    maintenance: bool,
    /// Made-up entries of the folder that `start` and `memory` measure besides; 0 leaves it out
    #[arg(long, value_name = "COUNT", default_value_t = ENTRIES, conflicts_with = "url")]
    entries: u64,
    /// Write target lists for load tools (`METHOD URL`, headers, `@FILE`) into this folder instead
    /// of measuring
    #[arg(long, value_name = "DIR")]
    targets: Option<PathBuf>,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Also write report.json and report.txt into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    progress: ProgressArgs,
}

const AFTER_HELP: &str = "\
Examples:
  throng bench ddc                                      the thirteen tests, a server of its own
  throng bench ddc saturation                           rates and CPU per request, beside nginx and s3s-fs
  throng bench ddc small_blob_downloads --duration 10s
  throng bench ddc --maintenance                        p99 beside scrub, collection and eviction
  throng bench ddc --url http://ddc:8558 --namespace test.benchmark --header 'Authorization: Bearer TOKEN'
  throng bench ddc --targets targets --url http://ddc:8558

Exit codes: 0 all thresholds hold, 99 a threshold is missed, 2 no result.";

/// Parses the words after `throng bench ddc` without running them.
#[cfg(test)]
pub(crate) fn check(words: &[&str]) -> Result<(), String> {
    match Args::try_parse_from(std::iter::once(&"throng bench ddc").chain(words)) {
        Err(error) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Runs with the words after `bench ddc`.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let name = OsString::from("throng bench ddc");
    let args = match Args::try_parse_from(std::iter::once(&name).chain(words)) {
        Ok(args) => args,
        Err(error) => {
            crate::output::print_usage(&error);
            return ExitCode::from(error.exit_code().clamp(0, 2) as u8);
        }
    };
    match measure(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(99),
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// The published tests and saturation, as `throng bench all` runs them.
pub(crate) fn all(effort: Effort) -> Result<Report, Box<dyn std::error::Error>> {
    let smoke = effort == Effort::Smoke;
    let names: &[&str] = if smoke { &["all"] } else { &["all", "saturation"] };
    let options = Options {
        program: std::env::current_exe()?,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        duration: effort.pick(None, Some(QUICK_WINDOW), Some(Duration::from_millis(300))),
        smoke,
        durability: "sync".to_owned(),
        namespace: NAMESPACE.to_owned(),
        ..Options::default()
    };
    Ok(ddc::run(&options, &mut |_| ())?)
}

fn measure(args: Args) -> Result<bool, Box<dyn std::error::Error>> {
    if args.list {
        let lines = ddc::list().into_iter().map(|(name, about)| format!("{name:<22}  {about}\n"));
        print(&lines.collect::<String>())?;
        return Ok(true);
    }
    prepare(args.out.as_deref())?;
    throng_load::interrupt::catch();
    let program = match args.program {
        Some(program) => program,
        None => std::env::current_exe()?,
    };
    let options = Options {
        program,
        names: args.names,
        url: args.url,
        pid: args.pid,
        namespace: args.namespace,
        headers: args.header,
        seed_only: args.seed,
        no_seed: args.no_seed,
        duration: args.quick.then_some(QUICK_WINDOW).or(args.duration),
        smoke: args.smoke,
        durability: args.durability,
        data: args.data,
        without_peers: args.no_peers,
        maintenance: args.maintenance,
        entries: args.entries,
        targets: args.targets,
    };
    let limit = LIMIT + options.duration.unwrap_or_default().saturating_mul(50);
    let mut progress = |what: &str| args.progress.say(what);
    let report = throng_load::interrupt::bounded(limit, || ddc::run(&options, &mut progress))??;
    if args.json {
        print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else if options.targets.is_none() && !options.seed_only {
        let mut table = Vec::new();
        report.write_table(&mut table)?;
        print(&String::from_utf8_lossy(&table))?;
    }
    if let Some(folder) = &args.out {
        write_report(folder, &report)?;
    }
    Ok(!report.is_missed())
}
