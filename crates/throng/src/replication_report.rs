//! The results of `throng bench replication` as a report.

use throng_load::report::{Better, Report, Row};
use throng_replication_bench::case::CaseReport;

use crate::replication::PUBLISHED;

/// Marks of the library on the machine of the design's figures: group, chests, floor and aim of
/// `net_us`.
const MARKS: &[(u8, &str, f64, f64)] = &[
    (1, "sparse", 240.0, 60.0),
    (2, "sparse", 35.0, 15.0),
    (3, "sparse", 50.0, 23.0),
    (3, "full", 170.0, 85.0),
    (4, "sparse", 65.0, 32.0),
    (4, "full", 300.0, 155.0),
    (5, "sparse", 900.0, 250.0),
];
/// `net_us` of the legacy method on that machine: other machines are compared by it.
const LEGACY: &[(u8, &str, f64)] = &[
    (1, "sparse", 1_212.0),
    (2, "sparse", 24.5),
    (3, "sparse", 144.0),
    (3, "full", 205.0),
    (4, "sparse", 271.0),
    (4, "full", 396.0),
    (5, "sparse", 2_500.0),
];
const SOURCE: &str = "published for another engine, on another machine";

/// Report of the cases that ran, judged if the legacy method ran as well.
pub(crate) fn report(outcomes: &[CaseReport]) -> Report {
    let mut report = Report::new("replication");
    let find = |group: u8, chests: &str, mode: &str| {
        outcomes.iter().find(|it| (it.group, it.chests, it.mode) == (group, chests, mode))
    };
    for outcome in outcomes {
        let name = format!("group {}, chests {}, {}", outcome.group, outcome.chests, outcome.mode);
        let mut row =
            Row::new(format!("{name}: network time"), "us a frame", Better::Lower, outcome.net_us.mean);
        let counterpart = match outcome.mode {
            "legacy" => "Legacy",
            "graph" => "Legacy + RG",
            _ => "Iris",
        };
        let published =
            PUBLISHED.iter().find(|(group, name, ..)| (*group, *name) == (outcome.group, counterpart));
        if let Some((.., net, _)) = published {
            row = row.published(*net, SOURCE);
        }
        let legacy = find(outcome.group, outcome.chests, "legacy");
        if let (Some(legacy), "shared") = (legacy, outcome.mode) {
            row = judge(row, outcome, legacy);
        }
        report.row(row);
        let bytes = Row::new(
            format!("{name}: payload"),
            "bytes a client and frame",
            Better::Lower,
            outcome.bytes_per_client_frame,
        );
        report.row(match (outcome.group, outcome.mode) {
            (1, "shared") => bytes.marks(3_500.0, 3_360.0),
            (1, "shared-delta") => bytes.marks(2_750.0, 2_600.0),
            _ => bytes,
        });
        if let (Some(legacy), 1, "shared") = (legacy, outcome.group, outcome.mode) {
            let ratio = legacy.net_us.mean / outcome.net_us.mean.max(f64::MIN_POSITIVE);
            let row =
                Row::new(format!("{name}: legacy in the same run = 1"), "x faster", Better::Higher, ratio);
            report.row(row.marks(6.0, 15.0));
        }
        report.threshold(format!("{name}: workload and replicas as they must be"), 1.0, outcome.holds());
        let figures = serde_json::to_value(outcome).unwrap_or_default();
        report.raw(&name, figures);
    }
    report.note(
        "marks of network time are those of the design's machine, scaled by what the legacy method takes here \
         against there"
            .to_owned(),
    );
    report
}

/// Thresholds for this machine: those of the design's machine, scaled by the time of the legacy
/// method.
fn judge(row: Row, outcome: &CaseReport, legacy: &CaseReport) -> Row {
    let of = (outcome.group, outcome.chests);
    let marks = MARKS.iter().find(|(group, chests, ..)| (*group, *chests) == of);
    let there = LEGACY.iter().find(|(group, chests, _)| (*group, *chests) == of);
    match (marks, there) {
        (Some((.., floor, aim)), Some((.., there))) => {
            let scale = legacy.net_us.mean / there;
            row.marks(floor * scale, aim * scale)
        }
        _ => row,
    }
}
