//! Reports as aligned text and as Markdown.

use std::fmt::Write as _;

use super::{Saved, optional};

/// Everything that has a number, one line each.
#[must_use]
pub fn table(reports: &[Saved]) -> String {
    let mut out = String::new();
    for report in reports {
        let _ = writeln!(
            out,
            "{}   {}   ({}; {})",
            report.test(),
            report.verdict(),
            report.build(),
            report.machine()
        );
        for run in report.list("runs") {
            let name = run["name"].as_str().unwrap_or("run");
            let state = &run["state"];
            let _ = writeln!(
                out,
                "  {name}: {} players, {} s; state p50/p90/p99/max {}/{}/{}/{} ms",
                run["players"],
                optional(&run["window_s"]),
                optional(&state["p50_ms"]),
                optional(&state["p90_ms"]),
                optional(&state["p99_ms"]),
                optional(&state["max_ms"]),
            );
        }
        for row in report.list("rows") {
            let text = |name: &str| row[name].as_str().unwrap_or_default();
            let _ = writeln!(
                out,
                "  {} [{}]: published {}, measured {}, ratio {}",
                text("what"),
                text("unit"),
                optional(&row["published"]),
                optional(&row["measured"]),
                optional(&row["ratio"]),
            );
        }
        for each in report.list("thresholds") {
            let mark = if each["passed"].as_bool().unwrap_or(false) { "\u{2713}" } else { "\u{2717}" };
            let _ = writeln!(
                out,
                "  {mark} {}: {}",
                each["condition"].as_str().unwrap_or_default(),
                optional(&each["measured"])
            );
        }
        for note in report.list("notes").iter().filter_map(serde_json::Value::as_str) {
            let _ = writeln!(out, "  note: {note}");
        }
    }
    out
}

/// One table a report, for documents.
#[must_use]
pub fn markdown(reports: &[Saved]) -> String {
    let mut out = String::new();
    for report in reports {
        let _ = write!(
            out,
            "## {}\n\n{}; {}; {}; `{}`\n\n",
            cell(report.test()),
            report.verdict(),
            cell(&report.build()),
            cell(&report.machine()),
            report.command()
        );
        if !report.list("rows").is_empty() {
            out.push_str(
                "| Figure | Unit | Published | Floor | Aim | Measured | Ratio | |\n|---|---|--:|--:|--:|--:|--:|---|\n",
            );
        }
        for row in report.list("rows") {
            let text = |name: &str| cell(row[name].as_str().unwrap_or_default());
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                text("what"),
                text("unit"),
                optional(&row["published"]),
                optional(&row["floor"]),
                optional(&row["aim"]),
                optional(&row["measured"]),
                optional(&row["ratio"]),
                if text("verdict") == "unjudged" { String::new() } else { text("verdict") },
            );
        }
        if !report.list("rows").is_empty() {
            out.push('\n');
        }
        for note in report.list("notes").iter().filter_map(serde_json::Value::as_str) {
            let _ = writeln!(out, "- {note}");
        }
        out.push('\n');
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn text_and_markdown_hold_the_figures() {
        let reports = [example(10.0, 3)];
        let text = table(&reports);
        assert!(
            text.contains("p50/p90/p99/max 10.0/20.0/30.0/50.0 ms") && text.contains("\u{2713} a >= 1"),
            "{text}"
        );
        let page = markdown(&reports);
        assert!(page.contains("| latency & more | ms | 28.0 | – | – | 10.0 | 0.357 | floor |"), "{page}");
    }
}
