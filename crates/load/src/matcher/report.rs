//! The results of the matcher's tests as a report.

use super::{PUBLISHED, TestReport, reasons};
use crate::report::{Better, Report, Row};

const SOURCE: &str = "published by the reference: its own machine and tool, 15 s a test";

/// Workers for which a rate with everything on disk is to be reached.
const SYNC_WORKERS: usize = 1_000;

/// The published tests, and the bare echo if it ran, beside the published figures and our marks.
#[must_use]
pub fn report(outcomes: &[TestReport], echo: Option<&TestReport>, durability: &str) -> Report {
    let mut report = Report::new("matcher");
    report.setting("durability", durability);
    for outcome in outcomes {
        let published = PUBLISHED.iter().find(|row| row.test == outcome.test);
        let what = format!("{}, {} workers", outcome.test, outcome.workers);
        let mut row = Row::new(what, "requests/s", Better::Higher, outcome.rps);
        if let Some(published) = published {
            row = row.published(published.rps as f64, SOURCE);
        }
        let as_published = published.is_some_and(|row| row.workers == outcome.workers);
        report.row(match marks(outcome, durability) {
            Some((floor, aim)) if as_published || durability == "sync" => row.marks(floor, aim),
            _ => row,
        });
        if outcome.test == "RoleJoinRandomRoom"
            && let Some(us) = outcome.server_cpu_us
        {
            let row = Row::new("CPU per RoleJoinRandomRoom, its events included", "us", Better::Lower, us);
            report.row(if durability == "none" { row.marks(5.0, 2.0) } else { row });
        }
        let reasons =
            if outcome.errors > 0 { format!(" ({})", reasons(&outcome.refusals)) } else { String::new() };
        let condition = format!("{}: requests that failed = 0{reasons}", outcome.test);
        let measured = if outcome.rps > 0.0 || outcome.errors > 0 { outcome.errors as f64 } else { f64::NAN };
        report.threshold(condition, measured, outcome.errors == 0);
    }
    let ping = outcomes.iter().find(|outcome| outcome.test == "Ping");
    if let (Some(echo), Some(ping)) = (echo, ping) {
        let row = Row::new("bare echo of the same frames as Ping", "requests/s", Better::Higher, echo.rps);
        report.row(row);
        let ratio = ping.rps / echo.rps.max(1.0);
        report.row(Row::new("Ping, bare echo = 1", "x", Better::Higher, ratio));
    }
    for outcome in outcomes.iter().chain(echo) {
        // Numbers and names: JSON has them all.
        let figures = serde_json::to_value(outcome).unwrap_or_default();
        let name = if echo.is_some_and(|echo| std::ptr::eq(echo, outcome)) { "echo" } else { &outcome.test };
        report.raw(name, figures);
    }
    report
}

/// Floor and aim of a test, in requests per second.
fn marks(outcome: &TestReport, durability: &str) -> Option<(f64, f64)> {
    let join_random = outcome.test == "RoleJoinRandomRoom";
    Some(match (durability, outcome.test.as_str(), outcome.requests_per_transaction) {
        ("none", "Ping" | "MyRPCTest" | "GetRoomList", _) => (250_000.0, 500_000.0),
        ("none", "RoleJoinRandomRoom", _) => (100_000.0, 250_000.0),
        ("none", _, 1) => (100_000.0, 200_000.0),
        ("none", _, _) => (80_000.0, 150_000.0),
        ("sync", _, _) if join_random && outcome.workers == SYNC_WORKERS => (30_000.0, 80_000.0),
        _ => return None,
    })
}

/// Report of the cost of queues with many tickets.
#[must_use]
pub fn tickets_report(rows: Vec<Row>, waiting: usize, durability: &str) -> Report {
    let mut report = Report::new("matcher tickets");
    report.setting("durability", durability);
    report.setting("waiting", waiting);
    rows.into_iter().for_each(|row| report.row(row));
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    fn outcome(test: &str, workers: usize, requests_per_transaction: u64, rps: f64) -> TestReport {
        TestReport {
            test: test.to_owned(),
            workers,
            transactions: 0,
            requests_per_transaction,
            seconds: 1.0,
            elapsed_s: 1.0,
            tps: rps / requests_per_transaction as f64,
            rps,
            p50_us: 1,
            p95_us: 2,
            p99_us: 3,
            max_us: 4,
            errors: 0,
            refusals: crate::matcher::Refusals::new(),
            notices: 0,
            bytes_in: 0,
            server_cpu_us: Some(1.0),
            client_cpu_us: None,
        }
    }

    #[test]
    fn rates_are_judged_with_the_workers_they_were_published_for() {
        let outcomes = [outcome("Ping", 3_000, 1, 260_000.0), outcome("CreateLeaveTeam", 64, 2, 90_000.0)];
        let echo = outcome("Ping", 3_000, 1, 520_000.0);
        let report = report(&outcomes, Some(&echo), "none");
        let verdicts: Vec<Verdict> = report.rows.iter().map(|row| row.verdict).collect();
        let unjudged = Verdict::Unjudged;
        assert_eq!(verdicts, [Verdict::Floor, unjudged, unjudged, unjudged]);
        assert_eq!(report.rows[0].ratio, Some(260_000.0 / 11_000.0));
        assert_eq!(report.rows[3].measured, 0.5);
        assert!(report.raw.contains_key("echo") && report.passed);
    }

    #[test]
    fn a_failed_request_is_a_missed_threshold() {
        let failed = TestReport { errors: 1, ..outcome("Ping", 64, 1, 1.0) };
        assert!(!report(&[failed], None, "async").passed);
    }
}
