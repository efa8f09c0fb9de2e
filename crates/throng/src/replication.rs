//! `throng bench replication`: the replication workloads, method by method, beside the published
//! figures.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use throng_replication_bench::case::{self, Case, CaseReport, Mode};
use throng_replication_bench::scaling;
use throng_replication_bench::socket::Sockets;
use throng_replication_bench::workload::{Chests, Group, SEED_BASE};

use throng_load::report::Report;
use throng_load::suites::Effort;

use crate::bench::{ProgressArgs, prepare, print, say, write_report};
use crate::replication_report::report;

/// Measure state replication: the published groups, by thread CPU time
#[derive(Debug, Parser)]
#[command(name = "throng bench replication", after_help = AFTER_HELP)]
struct ReplicationArgs {
    /// One group, 1 to 5
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=5), value_name = "N")]
    group: Option<u8>,
    /// One method
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// Change rate of chests, in groups 3 and 4
    #[arg(long, value_enum)]
    chests: Option<ChestsName>,
    /// Every group and method, as a table beside the published figures; the default
    #[arg(long)]
    all: bool,
    /// Packet loss in percent
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT")]
    loss: f64,
    /// Byte limit per connection and frame
    #[arg(long, value_name = "BYTES")]
    budget: Option<usize>,
    /// Send far objects less often: reference, that is 20 Hz up to 10 m, 10 Hz up to 50 m, 1 Hz
    /// beyond
    #[arg(long, value_enum, value_name = "PROFILE")]
    lod: Option<LodName>,
    /// Also send the packets over loopback UDP and report the cost
    #[arg(long)]
    udp: bool,
    /// Scaling with connections (10 to 2,000) and objects (100 to 100,000), instead of groups
    #[arg(long)]
    scaling: bool,
    /// With --scaling: write the curves to this file as SVG
    #[arg(long, value_name = "FILE", requires = "scaling")]
    plot: Option<std::path::PathBuf>,
    /// Seed of the world
    #[arg(long, default_value_t = SEED_BASE, value_name = "SEED")]
    seed_base: u64,
    /// Measured frames [default: 300]
    #[arg(long, value_name = "FRAMES")]
    frames: Option<u32>,
    /// Frames before them [default: 60]
    #[arg(long, value_name = "FRAMES")]
    warmup: Option<u32>,
    /// Few frames that only show that everything works; not judged
    #[arg(long, conflicts_with = "scaling")]
    smoke: bool,
    /// Threads of the connection stage
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = crate::bench::count)]
    threads: usize,
    /// Feed every packet to a receiver and compare all replicas; times are not meaningful then
    #[arg(long)]
    verify: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Also write report.json and report.txt into this folder, for `throng report` and `throng
    /// compare`
    #[arg(long, value_name = "DIR", conflicts_with = "scaling")]
    out: Option<std::path::PathBuf>,
    #[command(flatten)]
    progress: ProgressArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    Legacy,
    Graph,
    Shared,
    SharedDelta,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LodName {
    Reference,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ChestsName {
    Sparse,
    Full,
}

const AFTER_HELP: &str = "\
Examples:
  throng bench replication                                 every group and method
  throng bench replication --group 1 --mode shared --json  one case
  throng bench replication --group 1 --mode shared --udp   what sending costs on top
  throng bench replication --scaling --plot scaling.svg    cost by connections and by objects
  throng bench replication --group 3 --loss 5 --verify     every method's replicas, compared bit by bit

Exit code 1: a checksum is not the published one, or replicas differ.";

impl ReplicationArgs {
    fn frames(&self) -> u32 {
        self.frames.unwrap_or(if self.smoke { SMOKE_FRAMES } else { 300 })
    }

    fn warmup(&self) -> u32 {
        self.warmup.unwrap_or(if self.smoke { SMOKE_FRAMES } else { 60 })
    }
}

/// Frames of a smoke test, and those before them.
const SMOKE_FRAMES: u32 = 20;

/// Published averages of other engines' methods, in microseconds: flush of all connections, and one
/// connection.
pub(crate) const PUBLISHED: &[(u8, &str, f64, f64)] = &[
    (1, "Legacy", 58_050.0, 450.0),
    (1, "Legacy + RG", 62_700.0, 602.0),
    (1, "Iris", 8_680.0, 50.0),
    (2, "Legacy", 7_160.0, 48.3),
    (2, "Legacy + RG", 8_810.0, 64.0),
    (2, "Iris", 6_700.0, 24.4),
    (3, "Legacy + RG", 20_630.0, 179.0),
    (3, "Iris", 12_840.0, 85.9),
    (4, "Legacy + RG", 32_120.0, 288.0),
    (4, "Iris", 24_280.0, 95.1),
];

/// Parses the words after `throng bench replication` without running them.
#[cfg(test)]
pub(crate) fn check(words: &[&str]) -> Result<(), String> {
    let words = std::iter::once(&"throng bench replication").chain(words);
    match ReplicationArgs::try_parse_from(words) {
        Err(error) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Runs with the words after `bench replication`.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let name = OsString::from("throng bench replication");
    let args = match ReplicationArgs::try_parse_from(std::iter::once(&name).chain(words)) {
        Ok(args) => args,
        Err(error) => {
            crate::output::print_usage(&error);
            return ExitCode::from(error.exit_code().clamp(0, 2) as u8);
        }
    };
    match run_cases(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

type AnyError = Box<dyn std::error::Error>;

/// Every group and method, as `throng bench all` runs them.
pub(crate) fn all(effort: Effort) -> Result<Report, AnyError> {
    let words: &[&str] = match effort {
        Effort::Whole => &[],
        Effort::Quick => &["--frames", "120", "--warmup", "30"],
        Effort::Smoke => &["--smoke"],
    };
    let args = ReplicationArgs::try_parse_from([&["throng bench replication"], words].concat())?;
    let outcomes = outcomes(&args, &mut |_| Ok(()))?;
    Ok(report(&outcomes))
}

fn run_cases(args: &ReplicationArgs) -> Result<bool, AnyError> {
    if args.scaling {
        return scale(args).map(|()| true);
    }
    prepare(args.out.as_deref())?;
    let outcomes = outcomes(args, &mut print)?;
    if let Some(folder) = &args.out {
        let mut report = report(&outcomes);
        if args.smoke {
            report.unjudge();
        }
        write_report(folder, &report)?;
    }
    Ok(outcomes.iter().all(CaseReport::holds))
}

/// Runs what the flags ask for; `say` gets the lines of the table, or of JSON.
fn outcomes(
    args: &ReplicationArgs,
    say: &mut dyn FnMut(&str) -> Result<(), AnyError>,
) -> Result<Vec<CaseReport>, AnyError> {
    let groups: Vec<u8> = args.group.filter(|_| !args.all).map_or((1..=5).collect(), |group| vec![group]);
    let modes: Vec<Mode> = match args.mode.filter(|_| !args.all) {
        None => Mode::ALL.to_vec(),
        Some(ModeName::Legacy) => vec![Mode::Legacy],
        Some(ModeName::Graph) => vec![Mode::Graph],
        Some(ModeName::Shared) => vec![Mode::Shared],
        Some(ModeName::SharedDelta) => vec![Mode::SharedDelta],
    };
    let mut outcomes = Vec::new();
    for number in groups {
        let variants = match (number, args.chests) {
            (3 | 4, None) => vec![Chests::Sparse, Chests::Full],
            (_, Some(ChestsName::Full)) => vec![Chests::Full],
            _ => vec![Chests::Sparse],
        };
        for chests in variants {
            if !args.json {
                say(&heading(number, chests))?;
            }
            for mode in &modes {
                let Some(group) = Group::new(number) else { continue };
                let case = Case {
                    chests,
                    seed_base: args.seed_base,
                    frames: args.frames(),
                    warmup: args.warmup(),
                    loss: args.loss / 100.0,
                    budget: args.budget,
                    lod: args.lod.is_some(),
                    threads: args.threads,
                    verify: args.verify,
                    ..Case::new(group, *mode)
                };
                let mut sockets = args.udp.then(|| Sockets::open(group.connections)).transpose()?;
                let outcome = case::run_over(&case, sockets.as_mut());
                if let Some(error) = sockets.and_then(|mut sockets| sockets.take_failure()) {
                    return Err(error.into());
                }
                if args.json {
                    say(&format!("{}\n", serde_json::to_string(&outcome)?))?;
                } else {
                    say(&row(&outcome))?;
                }
                outcomes.push(outcome);
            }
            if !args.json {
                say(&published(number))?;
            }
        }
    }
    Ok(outcomes)
}

/// Prints the curves as tables, or as JSON, and draws them.
fn scale(args: &ReplicationArgs) -> Result<(), Box<dyn std::error::Error>> {
    let curves = scaling::curves(|what| args.progress.say(what));
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&curves)?))?;
    } else {
        for curve in &curves {
            print(&format!(
                "\n{}\n{:>12}{:>10}{:>12}{:>12}{:>14}{:>10}\n",
                curve.title, "connections", "objects", "net us", "shared us", "per conn us", "bytes"
            ))?;
            for point in &curve.points {
                print(&format!(
                    "{:>12}{:>10}{:>12.1}{:>12.1}{:>14.3}{:>10.1}\n",
                    point.connections,
                    point.objects,
                    point.net_us,
                    point.shared_us,
                    point.per_conn_us,
                    point.bytes
                ))?;
            }
        }
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, scaling::svg(&curves))?;
    }
    Ok(())
}

fn heading(number: u8, chests: Chests) -> String {
    let variant = match (number, chests) {
        (3 | 4, Chests::Sparse) => ", chests change sparsely",
        (3 | 4, Chests::Full) => ", chests change every frame",
        _ => "",
    };
    format!(
        "\nGroup {number}{variant}\n{:<14}{:>10}{:>10}{:>10}{:>10}{:>12}{:>12}{:>10}{:>9}\n",
        "method", "net us", "p50", "p99", "max", "per conn us", "shared us", "frame us", "bytes"
    )
}

fn row(outcome: &CaseReport) -> String {
    let net = outcome.net_us;
    let mut row = format!(
        "{:<14}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{:>12.3}{:>12.1}{:>10.1}{:>9.1}",
        outcome.mode,
        net.mean,
        net.p50,
        net.p99,
        net.max,
        outcome.per_conn_us.mean,
        outcome.shared_us.mean,
        outcome.frame_us.mean,
        outcome.bytes_per_client_frame,
    );
    if let Some(socket) = outcome.socket_us {
        row.push_str(&format!("  sending {:.1} us", socket.mean));
        if let Some(bare) = outcome.socket_bare_us {
            let ratio = socket.mean / bare.mean;
            row.push_str(&format!(" (bare sendmmsg {:.1} us, ratio {ratio:.2})", bare.mean));
        }
    }
    if outcome.checksum_matches == Some(false) {
        row.push_str("  workload differs");
    }
    if let Some(verified) = outcome.verify {
        row.push_str(&format!("  {} replicas, {} differ", verified.replicas, verified.differing));
    }
    row.push('\n');
    row
}

fn published(number: u8) -> String {
    let rows = PUBLISHED.iter().filter(|(group, ..)| *group == number);
    rows.map(|(_, name, net, conn)| {
        format!("{:<14}{net:>10.0}{:>42.1}   published, another engine and machine\n", name, conn)
    })
    .collect()
}
