//! A report as one self-contained page: no script, no font, no network.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Saved, optional, plot, sampled, series, short};
use crate::report::Judgement;

const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#17202e;--dim:#5b6b82;--line:#dde4ee;--blue:#0284c7;--good:#15803d;--bad:#be123c}\
@media(prefers-color-scheme:dark){:root{--bg:#0b1019;--fg:#e6edf6;--dim:#8a9ab2;--line:#222d40;--blue:#4cc9f0;--good:#4ade80;--bad:#fb7185}}\
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:32px auto;padding:0 20px}\
h1{font-size:24px;margin:40px 0 4px}h2{font-size:17px;margin:28px 0 8px}h3{font-size:13px;margin:0;color:var(--dim);font-weight:550}\
p,li{color:var(--dim)}code{font-size:13px}table{border-collapse:collapse;width:100%;font-size:14px}\
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--line)}th{color:var(--dim);font-weight:550}\
.n{text-align:right;font-variant-numeric:tabular-nums}.good{color:var(--good)}.bad{color:var(--bad)}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:18px}figure{margin:0}\
svg{width:100%;height:auto}svg text{font:10.5px system-ui,sans-serif;fill:var(--dim)}\
.grid{stroke:var(--line);fill:none}.line{stroke:var(--blue);stroke-width:1.8;fill:none;stroke-linejoin:round}.bar{fill:var(--blue)}";

/// One page about all these reports.
#[must_use]
pub fn html(reports: &[Saved]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>throng bench</title><style>{STYLE}</style></head><body>\n"
    );
    if reports.len() > 1 {
        overview(&mut out, reports);
    }
    for report in reports {
        one(&mut out, report);
    }
    out.push_str("</body></html>\n");
    out
}

fn overview(out: &mut String, reports: &[Saved]) {
    let count = |verdict| reports.iter().filter(|report| report.verdict() == verdict).count();
    let _ = write!(
        out,
        "<h1>{} tests: {} passed, {} missed, {} not judged</h1><table><tr><th>Test<th>Verdict</tr>",
        reports.len(),
        count(Judgement::Passed),
        count(Judgement::Missed),
        count(Judgement::NotJudged),
    );
    for report in reports {
        let name = escape(report.test());
        let _ = write!(
            out,
            "<tr><td><a href=\"#{}\">{name}</a><td>{}</tr>",
            anchor(report),
            verdict(report.verdict())
        );
    }
    out.push_str("</table>\n");
}

fn one(out: &mut String, report: &Saved) {
    let _ = write!(
        out,
        "<h1 id=\"{}\">{} {}</h1>\n<p>{}<br>{}<br><code>{}</code></p>\n",
        anchor(report),
        escape(report.test()),
        verdict(report.verdict()),
        escape(&report.build()),
        escape(&report.machine()),
        escape(&report.command()),
    );
    if !report.list("rows").is_empty() {
        out.push_str(
            "<h2>Published against measured</h2><table><tr><th>Figure<th>Unit<th class=\"n\">Published<th class=\"n\">Floor\
             <th class=\"n\">Aim<th class=\"n\">Measured<th class=\"n\">Ratio<th>Source</tr>",
        );
        for row in report.list("rows") {
            let text = |name: &str| escape(row[name].as_str().unwrap_or_default());
            let class = match row["verdict"].as_str() {
                Some("missed") => "n bad",
                Some("aim" | "floor") => "n good",
                _ => "n",
            };
            let _ = write!(
                out,
                "<tr><td>{}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"{class}\">{}\
                 <td class=\"n\">{}<td>{}</tr>",
                text("what"),
                text("unit"),
                optional(&row["published"]),
                optional(&row["floor"]),
                optional(&row["aim"]),
                optional(&row["measured"]),
                optional(&row["ratio"]),
                text("source"),
            );
        }
        out.push_str("</table>\n");
    }
    if !report.list("thresholds").is_empty() {
        out.push_str("<h2>Thresholds</h2><table><tr><th>Condition<th class=\"n\">Measured<th>Verdict</tr>");
        for each in report.list("thresholds") {
            let condition = escape(each["condition"].as_str().unwrap_or_default());
            let holds = each["passed"] == true;
            let held = verdict(if holds { Judgement::Passed } else { Judgement::Missed });
            let measured = optional(&each["measured"]);
            let _ = write!(out, "<tr><td>{condition}<td class=\"n\">{measured}<td>{held}</tr>");
        }
        out.push_str("</table>\n");
    }
    for run in report.list("runs") {
        charts(out, run);
    }
    let settings = report.0["settings"].as_object().into_iter().flatten();
    let settings: Vec<String> = settings
        .map(|(name, value)| format!("<code>{} = {}</code>", escape(name), escape(&value.to_string())))
        .collect();
    if !settings.is_empty() {
        let _ = writeln!(out, "<h2>Settings</h2><p>{}</p>", settings.join(", "));
    }
    if !report.list("notes").is_empty() {
        out.push_str("<h2>Notes</h2><ul>");
        for note in report.list("notes").iter().filter_map(Value::as_str) {
            let _ = write!(out, "<li>{}</li>", escape(note));
        }
        out.push_str("</ul>\n");
    }
}

/// Latency distributions, and every sampled metric over time.
fn charts(out: &mut String, run: &Value) {
    let name = escape(run["name"].as_str().unwrap_or("run"));
    let seconds = optional(&run["window_s"]);
    let _ =
        write!(out, "<h2>{name}</h2><p>{} players, {seconds} s</p><div class=\"charts\">", run["players"]);
    for (what, title) in
        [("state", "State latency"), ("input", "Input latency"), ("notice", "Message latency")]
    {
        let times = &run[what];
        if times["count"].as_u64().unwrap_or(0) == 0 {
            continue;
        }
        let marks = [
            ("p50", "p50_ms"),
            ("p90", "p90_ms"),
            ("p99", "p99_ms"),
            ("p99.9", "p999_ms"),
            ("max", "max_ms"),
        ];
        let bars: Vec<(&str, f64)> =
            marks.iter().filter_map(|(name, key)| Some((*name, times[*key].as_f64()?))).collect();
        let _ =
            write!(out, "<figure><h3>{title}, ms, of {}</h3>{}</figure>", times["count"], plot::bars(&bars));
        let buckets = run["distributions"][what].as_array().map(Vec::as_slice).unwrap_or_default();
        let buckets: Vec<(f64, f64)> = buckets
            .iter()
            .filter_map(|bucket| Some((bucket["to_ms"].as_f64()?, bucket["count"].as_f64()?)))
            .collect();
        if buckets.len() > 1 {
            let chart = plot::histogram(&buckets, "ms");
            let _ = write!(out, "<figure><h3>{title}, distribution</h3>{chart}</figure>");
        }
    }
    for metric in sampled(run) {
        let points = series(run, &metric);
        if points.len() > 1 {
            let mean = points.iter().map(|(_, value)| value).sum::<f64>() / points.len() as f64;
            let title = escape(&metric.replace('_', " "));
            let _ = write!(
                out,
                "<figure><h3>{title}, mean {}</h3>{}</figure>",
                short(mean),
                plot::line(&points, "s")
            );
        }
    }
    out.push_str("</div>\n");
}

fn verdict(verdict: Judgement) -> String {
    let class = match verdict {
        Judgement::Passed => "good",
        Judgement::Missed => "bad",
        Judgement::NotJudged => "",
    };
    format!("<span class=\"{class}\">{verdict}</span>")
}

fn anchor(report: &Saved) -> String {
    report.test().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_runs_nothing() {
        let page = html(&[example(10.0, 10), example(11.0, 10)]);
        for part in [
            "2 tests: 2 passed, 0 missed, 0 not judged",
            "channel &lt;single&gt;",
            "latency &amp; more",
            "State latency",
            ", distribution</h3>",
            "server cores",
            "a note",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<script") && !page.contains("<single>"));
        assert_eq!(
            page.matches("http").count(),
            page.matches("http://www.w3.org/2000/svg").count(),
            "no address"
        );
    }
}
