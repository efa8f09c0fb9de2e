//! Reference pages that are made from the code, and tables in documents that name tests.
//!
//! `THRONG_UPDATE=1 cargo test -p throng --test it reference::` rewrites the pages.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use throng_gateway::{AcceptRefusal, CloseReason, Refusal};
use throng_replication::{Classes, Server, ServerConfig};

#[test]
fn the_page_of_reasons_is_current() {
    let mut page = String::from(
        "# Reasons\n\n\
         For operators who find one of these names in a metric or a log. Peers receive at most a close code \
         (docs/transports.md), because the\nprotocol has no negative responses.\n",
    );
    let mut table = |title: &str, text: &str, rows: Vec<(&str, &str)>| {
        let _ = write!(page, "\n## {title}\n\n{text}\n\n| Name | Meaning |\n|---|---|\n");
        for (name, meaning) in rows {
            let _ = writeln!(page, "| `{name}` | {meaning} |");
        }
    };
    table(
        "Closed connections",
        "Each closure is counted under exactly one reason.",
        CloseReason::ALL.iter().map(|reason| (reason.name(), reason.describe())).collect(),
    );
    table(
        "Connections that were not accepted",
        "The decision is made before anything is read from the connection.",
        AcceptRefusal::ALL.iter().map(|reason| (reason.name(), reason.describe())).collect(),
    );
    table(
        "Refused messages",
        "A refused message changes nothing. The connection stays open unless it exceeds its limit of refusals.",
        Refusal::ALL.iter().map(|reason| (reason.name(), reason.describe())).collect(),
    );
    check_page("docs/reference/reasons.md", &page);
}

#[test]
fn the_page_of_error_codes_is_current() {
    let explain = |code: &[&str]| {
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_throng")).arg("explain").args(code).output();
        String::from_utf8(output.expect("the program runs").stdout).expect("text")
    };
    let mut page = String::from(
        "# Error codes\n\n\
         For operators who see `error[THR-...]`: the texts of `throng explain CODE` in one place.\n",
    );
    for code in
        explain(&[]).lines().filter_map(|line| line.split_once(' ')?.0.starts_with("THR-").then_some(line))
    {
        let (code, _) = code.split_once(' ').expect("a code and a title");
        let _ = write!(page, "\n## {}", explain(&[code]));
    }
    check_page("docs/reference/errors.md", &page);
}

#[test]
fn every_weakness_has_tests_and_every_named_test_exists() {
    let document = read(&root().join("docs/weaknesses.md"));
    let tests = test_names();
    let rows: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes().get(2).is_some_and(u8::is_ascii_digit))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let numbers: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    let expected: Vec<String> = (1..=27).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected, "one row per weakness, in order");

    let mut wrong = Vec::new();
    for row in rows {
        let [number, _, answer, named] = row[..] else { panic!("row {} has {} cells", row[0], row.len()) };
        let named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !answer.contains("Not yet:") {
            wrong.push(format!("weakness {number} names no test"));
        }
        let missing = named.iter().filter(|name| !tests.contains(**name));
        wrong.extend(missing.map(|name| format!("weakness {number} names `{name}`, which is no test")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_page_of_replication_metrics_is_current() {
    let server = Server::new(ServerConfig::default(), &Classes::new());
    let mut metrics = String::new();
    server.write_metrics(&mut metrics);
    let mut page = String::from(
        "# Metrics of replication\n\n\
         For game servers on `throng-replication`. `Server::write_metrics` appends these metrics, in Prometheus's text format, to a string\n\
         that the game serves. `throng demo --direct` serves them and prints the address.\n\n\
         | Name | Type | Meaning |\n|---|---|---|\n",
    );
    let mut help = "";
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("name and text").1;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("name and type");
            let _ = writeln!(page, "| `{name}` | {kind} | {help} |");
        }
    }
    check_page("docs/reference/replication-metrics.md", &page);
}

/// The figures of a kept run, in the document that explains them.
#[test]
fn the_measured_figures_are_those_of_the_kept_run() {
    const MARKS: (&str, &str) = ("<!-- measured: begin -->\n", "<!-- measured: end -->\n");
    let runs = throng_load::saved::read(&root().join("bench/runs/quick")).expect("a kept run");
    // One level below the section that they stand in.
    let tables = throng_load::saved::markdown(&runs).replace("## ", "### ");
    let path = "docs/benchmarks.md";
    let page = read(&root().join(path));
    let (before, rest) = page.split_once(MARKS.0).expect("the first mark");
    let (_, after) = rest.split_once(MARKS.1).expect("the second mark");
    check_page(path, &format!("{before}{}\n{}{}{after}", MARKS.0, tables, MARKS.1));
}

/// Compares a page with its file, or rewrites the file when `THRONG_UPDATE` is set.
fn check_page(path: &str, page: &str) {
    let file = root().join(path);
    if std::env::var_os("THRONG_UPDATE").is_some() {
        std::fs::write(&file, page).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let command = "THRONG_UPDATE=1 cargo test -p throng --test it reference::";
    assert!(read(&file) == page, "{path} is stale; run: {command}");
}

/// Names of all functions marked as tests in the workspace.
fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository is readable") {
            let path = entry.expect("a folder of the repository is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = read(&path);
                let mut is_test = false;
                for line in text.lines().map(str::trim) {
                    let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
                    if let (true, Some(name)) = (is_test, name) {
                        names.extend(name.split('(').next().map(str::to_owned));
                    }
                    let is_attribute = line.starts_with("#[") || line.starts_with("//");
                    is_test = line.starts_with("#[test]")
                        || line.starts_with("#[tokio::test")
                        || is_test && is_attribute;
                }
            }
        }
    }
    names
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
