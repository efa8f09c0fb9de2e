//! `throng bench all`: every suite in turn, each with a report of its own.

use throng_load::child::StartError;
use throng_load::report::Report;
use throng_load::suites::{BenchError, Effort, Progress as _};

use crate::bench::{AnyError, BenchArgs, bounded, measure, measure_enet, names, print, save, say, show};
use crate::{bench_ddc, matcher, replication};

type Suite = (&'static str, fn(&BenchArgs) -> Result<Report, AnyError>);

/// Suites after the tests of a gateway. Each starts its own server.
const SUITES: &[Suite] = &[
    ("enet", |args| measure_enet(args, Vec::new())),
    ("ddc", |args| bench_ddc::all(args.effort())),
    ("replication", |args| replication::all(args.effort())),
    ("matcher", |args| Ok(matcher::published(args.effort())?)),
    ("matcher tickets", |args| Ok(matcher::tickets(args.effort())?)),
];
/// Waits for ticks of ten seconds: too long for a smoke test.
const SLOW: &str = "matcher tickets";

/// True if the test needs a NATS server, and this machine has none.
fn is_without_bus(error: &AnyError) -> bool {
    matches!(error.downcast_ref(), Some(BenchError::Start(StartError::NoBus)))
}

/// Runs them. A test without a result does not cost the others theirs.
pub(crate) fn run(args: &BenchArgs) -> Result<bool, AnyError> {
    let (mut reports, mut failed) = (Vec::new(), Vec::new());
    let mut keep = |name: &'static str, result: Result<Report, AnyError>| -> Result<(), AnyError> {
        match result {
            Ok(mut report) => {
                if args.effort() == Effort::Smoke {
                    report.unjudge();
                }
                // With --json all tests together are one document.
                if !args.json {
                    show(args, &report)?;
                }
                let saved = save(args, &report, name);
                reports.push(report);
                if let Err(error) = saved {
                    say(&format!("error: {name}: {error}"));
                    failed.push(name);
                }
            }
            // Worth having, not needed: as everywhere else.
            Err(error) if is_without_bus(&error) => say(&format!("skipped: {name}: {error}")),
            Err(error) => {
                say(&format!("error: {name}: {error}"));
                failed.push(name);
            }
        }
        Ok(())
    };
    for name in names() {
        keep(name, bounded(args, || measure(name, args)))?;
    }
    // The other suites do not measure a gateway that somebody else has started.
    let suites = if args.server.addr.is_none() { SUITES } else { &[] };
    for (name, suite) in suites {
        if args.effort() == Effort::Smoke && *name == SLOW {
            continue;
        }
        args.server.live().begin(name, None);
        keep(name, bounded(args, || suite(args)))?;
    }
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&reports)?))?;
    }
    if !failed.is_empty() {
        return Err(format!("no result for {}", failed.join(", ")).into());
    }
    Ok(!reports.iter().any(Report::is_missed))
}
