//! `throng report` and `throng compare`: display and comparison of saved results.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use throng_load::report::Judgement;
use throng_load::saved::{self, Saved};

use crate::output::{complain, print_result};

/// Something is worse than before: the code of a missed threshold.
const EXIT_WORSE: u8 = 99;
const EXIT_ERROR: u8 = 2;

/// Show saved results as text, JSON, Markdown, one HTML page, or a picture
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng bench channel single --out run    writes run/report.json
  throng report run -f html > run.html     one page with charts that needs nothing else
  throng report run/report.json -f md")]
pub(crate) struct ReportArgs {
    /// A report.json, or a folder that `throng bench --out` made
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Exit with 99 when a threshold was missed
    #[arg(long)]
    strict: bool,
}

/// The forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Plain text
    Text,
    /// JSON as saved
    Json,
    /// Markdown tables
    Md,
    /// One page with charts
    Html,
    /// The latency chart of the first run
    Svg,
}

/// Compare two saved results; exit 99 when something is significantly worse
#[derive(Debug, Args)]
#[command(after_help = "\
Means of what was sampled every second are compared by Welch's t test at 95%; single figures and constant samples are not judged.

Examples:
  throng bench channel single --out before
  throng bench channel single --out after
  throng compare before after")]
pub(crate) struct CompareArgs {
    /// A report.json, or a folder that `throng bench --out` made
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Report to compare with it
    #[arg(value_name = "AFTER")]
    after: PathBuf,
}

/// Runs `throng report`.
pub(crate) fn run(args: ReportArgs) -> ExitCode {
    let mut reports = Vec::new();
    for file in &args.files {
        match saved::read(file) {
            Ok(found) => reports.extend(found),
            Err(error) => return fail(&error.to_string()),
        }
    }
    let text = match args.format {
        Form::Text => saved::table(&reports),
        Form::Md => saved::markdown(&reports),
        Form::Html => saved::html(&reports),
        Form::Json => json(&reports),
        Form::Svg => match reports.first().and_then(saved::svg) {
            Some(svg) => svg,
            None => return fail("no run was sampled, so there is nothing to draw"),
        },
    };
    print_result(&text);
    match args.strict && reports.iter().any(|report| report.verdict() == Judgement::Missed) {
        true => ExitCode::from(EXIT_WORSE),
        false => ExitCode::SUCCESS,
    }
}

/// Runs `throng compare`.
pub(crate) fn compare(args: CompareArgs) -> ExitCode {
    let (before, after) = match (saved::read(&args.before), saved::read(&args.after)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => return fail(&error.to_string()),
    };
    let found = saved::compare(&before, &after);
    if found.differences.is_empty() {
        return fail("the two reports have no figures in common");
    }
    print_result(&found.text());
    if found.is_worse() { ExitCode::from(EXIT_WORSE) } else { ExitCode::SUCCESS }
}

fn json(reports: &[Saved]) -> String {
    let all: Vec<_> = reports.iter().map(Saved::json).collect();
    let text = match all.as_slice() {
        [one] => serde_json::to_string_pretty(one),
        all => serde_json::to_string_pretty(all),
    };
    text.unwrap_or_default() + "\n"
}

fn fail(error: &str) -> ExitCode {
    complain(&format!("error: {error}"));
    ExitCode::from(EXIT_ERROR)
}
