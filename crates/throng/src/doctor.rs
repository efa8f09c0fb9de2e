//! `throng doctor`: checks of this machine for problems that would prevent a start, slow it down,
//! or leave it open to others. A process that already runs at the admin address reports on the
//! entities of its world.

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::Value;
use throng_server::check_files;
use throng_server::config::{Config, Http, Problem};
use throng_server::doctor::{Finding, Severity, examine, positions_in};

use crate::admin::AdminArgs;
use crate::output::print;
use crate::up;

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let config = match up::config(matches) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let mut findings = examine(&config);
    findings.extend(files(&config));
    findings.extend(running(&config.settings.http).as_ref().and_then(positions_in));
    print(&if matches.get_flag("json") { json(&findings) } else { text(&findings) });
    match findings.iter().any(|finding| finding.severity == Severity::Bad) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Files that a start would load.
fn files(config: &Config) -> Vec<Finding> {
    let finding =
        |severity, found: String, remedy: String| Finding { subject: "files", severity, found, remedy };
    let Err(problems) = check_files(config) else {
        let found = "all that the configuration names can be used".to_owned();
        return vec![finding(Severity::Good, found, String::new())];
    };
    let bad = |problem: Problem| {
        let code = problem.kind.code();
        finding(Severity::Bad, format!("{} ({code})", problem.message), format!("`throng explain {code}`"))
    };
    problems.0.into_iter().map(bad).collect()
}

/// The world of a process that already runs at the admin address, if one does and answers.
fn running(http: &Http) -> Option<Value> {
    if http.addr.is_empty() || http.addr.ends_with(":0") {
        return None;
    }
    let token_file = (!http.tokens_file.is_empty()).then(|| http.tokens_file.as_str().into());
    AdminArgs { http: http.addr.clone(), token_file }.get("world?entities=0").ok()
}

/// The severity in JSON.
fn mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Good => "ok",
        Severity::Warning => "poor",
        Severity::Bad => "bad",
    }
}

fn text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for Finding { subject, severity, found, remedy } in findings {
        let label = if *severity == Severity::Warning { "warn" } else { mark(*severity) };
        out.push_str(&format!("{label:<5} {subject:<13} {found}\n"));
        if !remedy.is_empty() {
            out.push_str(&format!("{:<19} -> {remedy}\n", ""));
        }
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (bad, warnings) = (count(Severity::Bad), count(Severity::Warning));
    out.push_str(&format!(
        "\n{bad} bad, {warnings} {}\n",
        if warnings == 1 { "warning" } else { "warnings" }
    ));
    out
}

fn json(findings: &[Finding]) -> String {
    let rows: Vec<_> = findings
        .iter()
        .map(|finding| {
            serde_json::json!({
                "subject": finding.subject,
                "severity": mark(finding.severity),
                "found": finding.found,
                "remedy": finding.remedy,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}
