//! `throng doctor`: checks of this machine for problems that would prevent a start, slow it down,
//! or leave it open to others.

use std::process::ExitCode;

use clap::ArgMatches;
use throng_server::doctor::{Finding, Severity, examine};

use crate::output::print;
use crate::up;

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let config = match up::config(matches) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let findings = examine(&config);
    print(&if matches.get_flag("json") { json(&findings) } else { text(&findings) });
    match findings.iter().any(|finding| finding.severity == Severity::Bad) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
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
