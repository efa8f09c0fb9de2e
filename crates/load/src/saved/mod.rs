//! Saved reports: read again, shown in other forms, compared.
//!
//! A report file is what `throng bench ... --json` prints or `--out` writes: one report, or a list of them. It is read as
//! plain JSON, so that files of other versions can be shown too; only the schema's name has to fit.

mod compare;
mod html;
mod plot;
mod text;

use std::path::Path;

use serde_json::Value;

use crate::report::SCHEMA;

pub use compare::{Comparison, Difference, compare};
pub use html::html;
pub use text::{markdown, table};

/// The latency of a report's first sampled run over time, as a picture; `None` when nothing was sampled.
#[must_use]
pub fn svg(report: &Saved) -> Option<String> {
    const STYLE: &str = "<style>svg{background:#fff}text{font:10.5px sans-serif;fill:#5b6b82}.grid{stroke:#dde4ee}\
                         .line{stroke:#0284c7;stroke-width:1.8;fill:none}</style>";
    let points =
        report.list("runs").iter().map(|run| series(run, "p99_ms")).find(|points| points.len() > 1)?;
    let (head, rest) =
        plot::line(&points, "s, p99 in ms").split_once('>').map(|(a, b)| (a.to_owned(), b.to_owned()))?;
    Some(format!("{head}>{STYLE}{rest}\n"))
}

/// One report of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved(Value);

/// Why a file holds no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// It is not JSON.
    #[error("`{path}` is not JSON: {source}; `throng bench TEST --out DIR` writes report.json")]
    Json {
        /// The file.
        path: String,
        /// Place and cause.
        source: serde_json::Error,
    },
    /// It is JSON, but no report.
    #[error("`{path}` holds no report of `throng bench`: its schema is {found}, not {SCHEMA}")]
    Schema {
        /// The file.
        path: String,
        /// Content found.
        found: String,
    },
}

/// Reads every report of a file; of a folder, its `report.json` and those one level below, by name.
///
/// # Errors
/// See [`ReadError`].
pub fn read(path: &Path) -> Result<Vec<Saved>, ReadError> {
    if !path.is_dir() {
        return read_file(path);
    }
    let io = |source| ReadError::Io { path: path.display().to_string(), source };
    let mut files = vec![path.join("report.json")];
    for entry in std::fs::read_dir(path).map_err(io)? {
        files.push(entry.map_err(io)?.path().join("report.json"));
    }
    files.retain(|file| file.is_file());
    files.sort();
    if files.is_empty() {
        return Err(io(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "no report.json in it or one level below",
        )));
    }
    files.iter().map(|file| read_file(file)).collect::<Result<Vec<_>, _>>().map(|found| found.concat())
}

fn read_file(path: &Path) -> Result<Vec<Saved>, ReadError> {
    let shown = path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|source| ReadError::Io { path: shown.clone(), source })?;
    parse(&shown, &text)
}

fn parse(path: &str, text: &str) -> Result<Vec<Saved>, ReadError> {
    let value: Value =
        serde_json::from_str(text).map_err(|source| ReadError::Json { path: path.to_owned(), source })?;
    let all = match value {
        Value::Array(all) => all,
        one => vec![one],
    };
    let check = |value: Value| match value["schema"].as_str() {
        Some(SCHEMA) => Ok(Saved(value)),
        other => {
            Err(ReadError::Schema { path: path.to_owned(), found: other.unwrap_or("missing").to_owned() })
        }
    };
    all.into_iter().map(check).collect()
}

impl Saved {
    /// The test's name.
    #[must_use]
    pub fn test(&self) -> &str {
        self.0["test"].as_str().unwrap_or("unnamed")
    }

    /// True if all its conditions held.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.0["passed"].as_bool().unwrap_or(false)
    }

    /// The report as it was saved.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.0
    }

    fn list(&self, name: &str) -> &[Value] {
        self.0[name].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn machine(&self) -> String {
        let machine = &self.0["machine"];
        let text = |name: &str| machine[name].as_str().unwrap_or("unknown").to_owned();
        format!("{} x {}, kernel {}", machine["cpus"], text("model"), text("kernel"))
    }

    fn command(&self) -> String {
        let words = self.list("command").iter().filter_map(Value::as_str);
        words.map(|word| word.rsplit('/').next().unwrap_or(word)).collect::<Vec<_>>().join(" ")
    }
}

/// Names of the metrics that were sampled in a run, as they stand in the file.
fn sampled(run: &Value) -> Vec<String> {
    let samples = run["samples"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    for sample in samples {
        for (name, value) in sample.as_object().into_iter().flatten() {
            if name != "at_s" && value.is_number() && !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    names
}

/// The samples of one metric: seconds and value.
fn series(run: &Value, name: &str) -> Vec<(f64, f64)> {
    let samples = run["samples"].as_array().map(Vec::as_slice).unwrap_or_default();
    samples.iter().filter_map(|sample| Some((sample["at_s"].as_f64()?, sample[name].as_f64()?))).collect()
}

/// A number with as many digits as matter.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn optional(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".to_owned(), short)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report with one run of `seconds` samples whose latency is `p50`, alternating by 10%.
    pub(super) fn example(p50: f64, seconds: u32) -> Saved {
        let samples: Vec<Value> = (0..seconds)
            .map(|second| {
                let wobble = if second % 2 == 0 { 0.95 } else { 1.05 };
                serde_json::json!({ "at_s": f64::from(second) + 1.0, "p50_ms": p50 * wobble, "server_cores": 0.5 })
            })
            .collect();
        Saved(serde_json::json!({
            "schema": SCHEMA, "test": "channel <single>", "command": ["/usr/bin/throng", "bench"], "passed": true,
            "started_unix_s": 1, "machine": { "cpus": 2, "model": "M", "kernel": "6" }, "settings": { "seed": 1 },
            "rows": [{ "what": "latency & more", "unit": "ms", "published": 28.0, "source": "somewhere", "floor": null,
                       "aim": null, "measured": p50, "better": "lower", "ratio": p50 / 28.0, "verdict": "floor" }],
            "thresholds": [{ "condition": "a >= 1", "measured": 2.0, "passed": true }], "notes": ["a note"],
            "runs": [{ "name": "100 players", "players": 100, "window_s": 10.0, "samples": samples,
                       "distributions": { "state": [{ "to_ms": p50, "count": 5 }, { "to_ms": p50 * 5.0, "count": 4 }] },
                       "state": { "count": 9, "p50_ms": p50, "p90_ms": p50 * 2.0, "p99_ms": p50 * 3.0,
                                  "p999_ms": p50 * 4.0, "max_ms": p50 * 5.0 } }],
        }))
    }

    #[test]
    fn only_reports_are_read() {
        let one = example(1.0, 3).0.to_string();
        assert_eq!(parse("f", &one).unwrap().len(), 1);
        assert_eq!(parse("f", &format!("[{one},{one}]")).unwrap().len(), 2);
        assert!(parse("f", "{").unwrap_err().to_string().contains("`f` is not JSON"));
        assert!(parse("f", "{}").unwrap_err().to_string().contains("its schema is missing"));
        assert!(read(Path::new("/nonexistent")).unwrap_err().to_string().contains("cannot read"));
    }
}
