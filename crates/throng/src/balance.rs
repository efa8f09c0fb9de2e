//! `throng bench channel balance`: load of the busiest game server of a world, with and without the
//! load balancer.
//!
//! The crowds are simulated: the production gateway core under virtual time, so the figures are the
//! same on every machine. What a cell costs a real game server is the game's affair; load here is
//! updates of entities a second.

use throng_load::report::{Better, Report, Row};
use throng_load::suites::{Effort, Progress};
use throng_sim::{CROWD_BALANCE, CrowdOutcome, Motion, run_crowd};

pub(crate) const NAME: &str = "channel balance";
pub(crate) const SUMMARY: &str =
    "crowds move over nine game servers: load of the busiest, with and without the balancer; in virtual time";

/// Plays every kind of crowd twice. A smoke test plays one.
pub(crate) fn run(seed: u64, effort: Effort, progress: &mut dyn Progress) -> Result<Report, String> {
    let mut report = Report::new(NAME);
    report.unjudged = effort == Effort::Smoke;
    report.canonical = !report.unjudged;
    report.setting("seed", seed);
    report.setting("interval_ms", CROWD_BALANCE.interval_ms);
    report.setting("ratio", CROWD_BALANCE.ratio);
    report.setting("cooldown_ms", CROWD_BALANCE.cooldown_ms);
    let motions = [
        (Motion::Stands, "stands in one region"),
        (Motion::Gathers, "gathers and goes home"),
        (Motion::Circles, "walks round the world"),
    ];
    for &(motion, what) in &motions[..if effort == Effort::Smoke { 1 } else { motions.len() }] {
        let mut play = |name: &str, balance| {
            progress.begin(&format!("{NAME}: a crowd that {what}, {name}"), None);
            run_crowd(seed, motion, balance).map_err(|violation| format!("{NAME}: {what}: {violation}"))
        };
        let fixed = play("fixed regions", None)?;
        let balanced = play("balanced", Some(CROWD_BALANCE))?;
        judge(&mut report, what, &fixed, &balanced);
    }
    Ok(report)
}

fn judge(report: &mut Report, what: &str, fixed: &CrowdOutcome, balanced: &CrowdOutcome) {
    for (figure, fixed, balanced) in
        [("maximum", fixed.highest, balanced.highest), ("mean over time", fixed.mean, balanced.mean)]
    {
        // Both are ours: nothing about this has been published.
        for (regions, value) in [("fixed regions", fixed), ("balanced", balanced)] {
            let what = format!("busiest of nine servers, {figure}, {regions}: a crowd that {what}");
            report.row(Row::new(what, "times the average", Better::Lower, value));
        }
    }
    let moved =
        Row::new(format!("cells moved: a crowd that {what}"), "cells", Better::Lower, balanced.moved as f64);
    report.row(moved);
    let lighter = balanced.mean < fixed.mean;
    let condition = format!("the busiest server has less to do on the average: a crowd that {what}");
    report.threshold(condition, balanced.mean, lighter);
    let condition = format!("cells that went back where they came from = 0: a crowd that {what}");
    report.threshold(condition, balanced.returned as f64, balanced.returned == 0);
}
