//! The metrics page: Prometheus text format 0.0.4 and OpenMetrics 1.0.
//!
//! The formats are written here because channeld's counters have no `_total` suffix, which the
//! OpenMetrics libraries enforce, and because the cores keep plain numbers that are read at scrape
//! time.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// Monotonic counter; `_total` is appended to the name.
    Counter,
    /// Monotonic counter without a suffix, for channeld's names.
    BareCounter,
    /// Value that rises and falls.
    Gauge,
    /// Observations, counted by upper bound.
    Histogram,
}

impl FamilyKind {
    /// Name of the type in the reference page.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FamilyKind::Counter | FamilyKind::BareCounter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// One metric with all its label sets.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name without `_total`.
    pub name: &'static str,
    /// Help text, one sentence.
    pub help: &'static str,
    /// Type of the family.
    pub kind: FamilyKind,
    /// Values, one sample per label set.
    pub samples: Vec<Sample>,
}

/// Value of one label set.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Label names and values, in the order of output.
    pub labels: Vec<(&'static str, Cow<'static, str>)>,
    /// Value or histogram.
    pub value: SampleValue,
}

/// A number, or the counts of a histogram.
#[derive(Clone, Debug)]
pub enum SampleValue {
    /// A counter or gauge.
    Number(f64),
    /// A histogram.
    Histogram {
        /// Upper bounds, rising, without the infinite one.
        bounds: Cow<'static, [f64]>,
        /// Observations per bucket, not cumulated; one more than `bounds`.
        counts: Vec<u64>,
        /// Sum of all observations.
        sum: f64,
    },
}

/// The two text formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus 0.0.4, which every scraper understands.
    Prometheus,
    /// OpenMetrics 1.0, when the scraper asks for it.
    OpenMetrics,
}

impl Format {
    /// Picks the format for an `Accept` header.
    #[must_use]
    pub fn for_accept(accept: Option<&str>) -> Format {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Format::OpenMetrics,
            _ => Format::Prometheus,
        }
    }

    /// The `Content-Type` of the page.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes the page. Families without samples are left out.
#[must_use]
pub fn render(families: &[Family], format: Format) -> String {
    let mut out = String::with_capacity(families.len() * 256);
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        render_family(&mut out, family, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn render_family(out: &mut String, family: &Family, format: Format) {
    let suffix = if family.kind == FamilyKind::Counter { "_total" } else { "" };
    let (head_suffix, kind) = match (format, family.kind) {
        (Format::Prometheus, kind) => (suffix, kind.name()),
        // OpenMetrics knows no counter without `_total`.
        (Format::OpenMetrics, FamilyKind::BareCounter) => ("", "unknown"),
        (Format::OpenMetrics, kind) => ("", kind.name()),
    };
    let name = family.name;
    let _ = writeln!(out, "# HELP {name}{head_suffix} {}", escape(family.help, false));
    let _ = writeln!(out, "# TYPE {name}{head_suffix} {kind}");
    for sample in &family.samples {
        match &sample.value {
            SampleValue::Number(number) => {
                let _ = write!(out, "{name}{suffix}");
                render_labels(out, &sample.labels, None);
                let _ = writeln!(out, " {}", Number(*number));
            }
            SampleValue::Histogram { bounds, counts, sum } => {
                render_histogram(out, name, &sample.labels, bounds, counts, *sum);
            }
        }
    }
}

fn render_histogram(
    out: &mut String,
    name: &str,
    labels: &[(&'static str, Cow<'static, str>)],
    bounds: &[f64],
    counts: &[u64],
    sum: f64,
) {
    debug_assert_eq!(counts.len(), bounds.len() + 1);
    let mut total = 0;
    for (index, count) in counts.iter().enumerate() {
        total += count;
        let bound = bounds.get(index).copied().unwrap_or(f64::INFINITY);
        let _ = write!(out, "{name}_bucket");
        render_labels(out, labels, Some(bound));
        let _ = writeln!(out, " {total}");
    }
    for (suffix, value) in [("_sum", Number(sum)), ("_count", Number(total as f64))] {
        let _ = write!(out, "{name}{suffix}");
        render_labels(out, labels, None);
        let _ = writeln!(out, " {value}");
    }
}

fn render_labels(out: &mut String, labels: &[(&'static str, Cow<'static, str>)], bound: Option<f64>) {
    let bound = bound.map(|bound| ("le", Cow::Owned(Number(bound).to_string())));
    let mut separator = '{';
    for (name, value) in labels.iter().chain(&bound) {
        let _ = write!(out, "{separator}{name}=\"{}\"", escape(value, true));
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
}

fn escape(text: &str, quotes: bool) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { escaped.replace('"', "\\\"") } else { escaped }
}

/// Prints a number in the notation of both formats.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            number if number == f64::INFINITY => write!(f, "+Inf"),
            number if number == f64::NEG_INFINITY => write!(f, "-Inf"),
            number if number.is_nan() => write!(f, "NaN"),
            number => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let sample = |value| Sample { labels: vec![("kind", "a\"b\\c\nd".into())], value };
        let family = |name, kind, value| Family { name, help: "Helps.", kind, samples: vec![sample(value)] };
        vec![
            family("a", FamilyKind::Counter, SampleValue::Number(1.0)),
            family("b", FamilyKind::BareCounter, SampleValue::Number(2.5)),
            family(
                "c_seconds",
                FamilyKind::Histogram,
                SampleValue::Histogram {
                    bounds: Cow::Borrowed(&[0.1, 1.0]),
                    counts: vec![1, 0, 2],
                    sum: 7.0,
                },
            ),
            Family { name: "empty", help: "Never.", kind: FamilyKind::Gauge, samples: Vec::new() },
        ]
    }

    #[test]
    fn prometheus_text() {
        let label = r#"kind="a\"b\\c\nd""#;
        let expected = format!(
            "# HELP a_total Helps.\n# TYPE a_total counter\na_total{{{label}}} 1\n\
             # HELP b Helps.\n# TYPE b counter\nb{{{label}}} 2.5\n\
             # HELP c_seconds Helps.\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{{{label},le=\"0.1\"}} 1\nc_seconds_bucket{{{label},le=\"1\"}} 1\n\
             c_seconds_bucket{{{label},le=\"+Inf\"}} 3\nc_seconds_sum{{{label}}} 7\nc_seconds_count{{{label}}} 3\n"
        );
        assert_eq!(render(&families(), Format::Prometheus), expected);
    }

    #[test]
    fn open_metrics_names_the_family_without_suffix_and_ends() {
        let text = render(&families(), Format::OpenMetrics);
        assert!(text.contains("# TYPE a counter\na_total{"), "{text}");
        assert!(text.contains("# TYPE b unknown\nb{"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn the_accept_header_picks_the_format() {
        assert_eq!(Format::for_accept(None), Format::Prometheus);
        assert_eq!(Format::for_accept(Some("text/plain")), Format::Prometheus);
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::for_accept(Some(prometheus)), Format::OpenMetrics);
    }
}
