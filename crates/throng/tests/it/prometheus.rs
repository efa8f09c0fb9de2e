//! A real Prometheus scrapes a gateway that players use: every expression of every dashboard
//! returns data.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::peers;
use crate::process::fetch;

/// Enough for a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(300);

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A child process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        if asked.is_err() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// A demo of everything that has a dashboard, and where its figures are.
fn demo(folder: &Path) -> (Process, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.current_dir(folder).args(["demo", "--spatial", "--players", "20"]).stdin(Stdio::null());
    // Levels of detail count by band, and there are none unless somebody sets them.
    command.env("THRONG_GATEWAY_SPATIAL_LOD", "1000:50");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let admin = lines.find_map(|line| {
        let (_, rest) = line.split_once("console        http://")?;
        Some(rest.split_once('/')?.0.to_owned())
    });
    // Further output must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (Process(child), admin.expect("it says where its console is"))
}

/// A game server that replicates to its players directly, and where its figures are.
fn direct(folder: &Path) -> (Process, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.current_dir(folder).args(["demo", "--direct", "--players", "20"]).stdin(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let metrics = lines.find_map(|line| {
        let (_, rest) = line.split_once("metrics        http://")?;
        Some(rest.split_once('/')?.0.to_owned())
    });
    std::thread::spawn(move || lines.for_each(drop));
    (Process(child), metrics.expect("it says where its metrics are"))
}

fn prometheus(folder: &Path, targets: [&str; 2]) -> Option<(Process, String)> {
    // The deployed file, but for who is scraped and how often.
    let deployed = read(&deploy().join("prometheus.yml"));
    let config = deployed
        .replace("throng:11280", &targets.join("\", \""))
        .replace("scrape_interval: 5s", "scrape_interval: 1s");
    assert!(targets.iter().all(|target| config.contains(target)) && config.contains(": 1s"), "{config}");
    std::fs::write(folder.join("prometheus.yml"), config).expect("a file");
    std::fs::copy(deploy().join("throng-alerts.yml"), folder.join("throng-alerts.yml")).expect("a file");
    let program = |name: &str| peers::kept(name).unwrap_or_else(|| name.into());
    let mut check = Command::new(program("promtool"));
    let Ok(checked) = check.args(["check", "config", "prometheus.yml"]).current_dir(folder).output() else {
        peers::skip("prometheus");
        return None;
    };
    let said = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&said));
    let mut child = Command::new(program("prometheus"))
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
        .arg("--web.listen-address=127.0.0.1:0")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool's companion");
    // Its log tells which port it got.
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let process = Process(child);
    let address = lines.find_map(|line| {
        let (_, rest) = line.split_once("Listening on")?.1.split_once("address=")?;
        Some(rest.split_whitespace().next()?.trim_matches('"').to_owned())
    });
    std::thread::spawn(move || lines.for_each(drop));
    Some((process, address.expect("it says where it listens")))
}

/// Title and expression of every panel, as Grafana would send it. What a panel hides while it is
/// zero is asked for as well.
fn expressions() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(deploy().join("grafana")).expect("dashboards") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let board: Value = serde_json::from_str(&read(&path)).expect("JSON");
        for panel in board["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().expect("targets") {
                let expression = target["expr"].as_str().expect("text");
                let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "15s");
                let shown = expression.strip_suffix(" > 0").unwrap_or(&expression).to_owned();
                all.push((format!("{}: {}", board["title"], panel["title"]), shown));
            }
        }
    }
    all
}

fn has_data(address: &str, expression: &str) -> Option<bool> {
    let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let answer: Value =
        serde_json::from_str(&fetch(address, &format!("/api/v1/query?query={escaped}"))?).ok()?;
    Some(answer["data"]["result"].as_array().is_some_and(|series| !series.is_empty()))
}

#[test]
fn every_panel_of_every_dashboard_shows_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_demo, admin) = demo(folder.path());
    let (_direct, replication) = direct(folder.path());
    let Some((_prometheus, address)) = prometheus(folder.path(), [&admin, &replication]) else { return };
    let mut waiting = expressions();
    assert!(waiting.len() > 70, "{} expressions: is the search broken?", waiting.len());
    let players = "sum(throng_gateway_connections{kind=\"client\"}) == 20";
    waiting.push(("the demo's players".to_owned(), players.to_owned()));
    let begun = Instant::now();
    while !waiting.is_empty() && begun.elapsed() < PATIENCE {
        waiting.retain(|(_, expression)| has_data(&address, expression) != Some(true));
        // The next scrape is as far away; what is to be measured needs the processor until then.
        std::thread::park_timeout(Duration::from_millis(500));
    }
    assert!(waiting.is_empty(), "no data for {waiting:#?}");
}
