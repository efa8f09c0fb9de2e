//! The load suite against the real server, small: every test by name, every transport, demo and
//! swarm.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn throng(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    throng(arguments).output().expect("the program starts")
}

fn stdout_of(output: &Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}{error}");
    text
}

#[test]
fn every_test_runs_small_and_passes() {
    let output = run(&["bench", "all", "--smoke", "--duration", "300ms", "--warmup", "100ms", "--json"]);
    let reports: Vec<Value> = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
    let names: Vec<&str> = reports.iter().filter_map(|report| report["test"].as_str()).collect();
    let list = stdout_of(&run(&["bench", "list"]), 0);
    // Without a NATS server those of a cluster are left out.
    let has_bus = throng_load::cluster::nats_server().is_some();
    for line in list.lines().filter(|line| has_bus || !line.starts_with("cluster ")).filter(|line| {
        !["replay", "enet", "  enet", "ddc", "matcher", "replication"]
            .iter()
            .any(|word| line.starts_with(word))
    }) {
        assert!(names.iter().any(|name| line.starts_with(name)), "`{line}` did not run");
    }
    for suite in ["enet", "ddc", "replication", "matcher"] {
        assert!(names.contains(&suite), "`{suite}` did not run");
    }
    for report in &reports {
        assert_eq!(report["schema"], "throng.bench/1");
        assert_eq!(report["canonical"], false, "a small load is not judged");
        for run in report["runs"].as_array().expect("a list") {
            assert_eq!(run["checked"], run["checked_equal"], "{run}");
            assert_eq!(run["inputs_due"], run["inputs_arrived"], "{run}");
            assert!(run["server_cores"].is_number(), "{run}");
        }
    }
    let single = &reports[0];
    let bare = single["rows"].as_array().expect("a list").iter().any(|row| {
        row["what"].as_str().is_some_and(|what| what.contains("bare writer"))
            && row["measured"].as_f64() > Some(0.0)
    });
    assert!(bare, "the physical limit belongs to the same run: {single}");
}

/// Scrub, eviction and collection end while the tests of the cache are played beside them.
#[test]
fn the_cache_is_measured_beside_its_maintenance() {
    let names = ["small_blob_uploads", "small_blob_downloads", "uecb_download"];
    let output = run(&[&["bench", "ddc", "--maintenance", "--smoke", "--json"], &names[..]].concat());
    let report: Value = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
    let row = |what: &str| {
        let row = report["rows"].as_array().expect("a list").iter().find(|row| row["what"] == what);
        row.unwrap_or_else(|| panic!("no row {what}: {report}"))["measured"].as_f64().expect("a figure")
    };
    assert!(row("scrub beside the tests") > 0.0, "{report}");
    assert!(row("refs evicted beside the tests") > 0.0, "{report}");
    assert_eq!(row("failed maintenance"), 0.0, "{report}");
    for name in names {
        assert!(row(&format!("{name} p99 with / without")) > 0.0, "{report}");
    }
}

/// As the how-to "one world over nine servers" has it: the server in the middle crashes and returns
/// two seconds later.
#[test]
fn a_crashed_server_of_the_world_gets_its_characters_back() {
    let load = ["--smoke", "--players", "60", "--duration", "10s", "--warmup", "100ms", "--json"];
    let output = run(&[&["bench", "channel", "spatial", "--crash-server-at", "500ms"], &load[..]].concat());
    let report: Value = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
    let run = &report["runs"][0];
    let had = run["world"]["orphaned"].as_u64().expect("a count");
    assert!(had > 0 && run["world"]["recovered"].as_u64() >= Some(had), "{run}");
    // Nobody was disconnected, and everybody sees the world as it is.
    assert_eq!((&run["lost"], &run["checked"]), (&Value::from(0), &run["checked_equal"]), "{run}");
    for figure in ["the crashed server had", "the crashed server got back"] {
        let row = report["rows"].as_array().expect("a list").iter().find(|row| row["what"] == figure);
        let row = row.unwrap_or_else(|| panic!("no row about {figure}: {report}"));
        assert!(row["measured"].as_f64() >= Some(had as f64), "{row}");
    }
}

/// The world's load balancer has a bench, whose figures are the same on every machine.
#[test]
fn the_balancer_takes_load_from_the_busiest_server() {
    let output = run(&["bench", "channel", "balance", "--smoke", "--json"]);
    let report: Value = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
    let row = |figure: &str| {
        let rows = report["rows"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["what"].as_str().is_some_and(|what| what.contains(figure)));
        let row = row.unwrap_or_else(|| panic!("no row about {figure}: {report}"));
        assert!(row["published"].is_null(), "nobody has published this: {row}");
        row["measured"].as_f64().expect("a figure")
    };
    for figure in ["maximum", "mean over time"] {
        let (with, without) = (row(&format!("{figure}, balanced")), row(&format!("{figure}, fixed regions")));
        assert!(with < without, "{figure}: {with} with, {without} without");
    }
}

#[test]
fn progress_is_shown_unless_it_is_not_wanted() {
    for (flags, shown) in [(&[][..], true), (&["--no-progress"], false)] {
        let output = run(&[&["bench", "gateway", "start", "--smoke", "--json"], flags].concat());
        assert_eq!((output.status.code(), !output.stderr.is_empty()), (Some(0), shown), "{flags:?}");
        let ddc = ["bench", "ddc", "healthcheck_ready", "small_blob_uploads", "--smoke", "--json"];
        let output = run(&[&ddc, flags].concat());
        assert_eq!((output.status.code(), !output.stderr.is_empty()), (Some(0), shown), "{flags:?}");
        let output = run(&[&["bench", "matcher", "-t", "Ping", "-m", "50ms"], flags].concat());
        assert_eq!(stdout_of(&output, 0).contains("is running"), shown, "{flags:?}");
        let replication =
            ["bench", "replication", "--group", "1", "--mode", "shared", "--frames", "2", "--json"];
        let output = run(&[&replication, flags].concat());
        assert_eq!((output.status.code(), output.stderr.is_empty()), (Some(0), true), "{flags:?}");
    }
}

#[test]
fn players_come_by_every_transport() {
    for transport in ["ws", "kcp", "tls", "wss"] {
        let load = ["--smoke", "--players", "10", "--duration", "300ms", "--json", "--transport", transport];
        let output = run(&[&["bench", "channel", "single"], &load[..]].concat());
        let report: Value = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
        let run = &report["runs"][0];
        assert_eq!(
            (&run["checked"], &run["lost"]),
            (&run["checked_equal"], &Value::from(0)),
            "{transport}: {run}"
        );
        assert!(run["delivered"].as_u64() > Some(0), "{transport}: {run}");
    }
}

#[test]
fn wrong_names_are_answered_with_the_right_ones() {
    let output = run(&["bench", "gateway", "idel"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("gateway idle") && error.contains("idel"), "{error}");
    let output = run(&["bench", "matcher", "-t", "RoleJoinRoom1"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "illegal test name: RoleJoinRoom1\n");
}

/// A demo that runs until the test ends.
struct Demo {
    child: Child,
    players: String,
    servers: String,
}

impl Demo {
    fn start() -> Self {
        let mut child =
            throng(&["demo", "--players", "5"]).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let mut after = |label: &str| {
            let line =
                lines.find(|line| line.trim_start().starts_with(label)).expect("the introduction names it");
            let value = line.trim_start().trim_start_matches(label).split_ascii_whitespace().next();
            value.expect("an address").to_owned()
        };
        let (players, servers) = (after("players  "), after("game servers"));
        // Further output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, players, servers }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        // The demo stops its server when it is asked to end, not when it is killed.
        let asked = Command::new("kill").args(["-TERM", &pid]).status();
        if asked.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

#[test]
fn a_demo_ends_by_itself_with_a_summary() {
    let text = stdout_of(&run(&["demo", "--players", "20", "--for", "500ms"]), 0);
    assert!(
        text.starts_with("20 players for") && text.contains("fan-outs") && text.contains("server CPU"),
        "{text}"
    );
}

#[test]
fn ctrl_c_on_a_terminal_ends_a_demo_in_good_order() {
    let mut command = throng(&["demo", "--players", "20"]);
    let mut child =
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    errors.find(|line| line.starts_with("Ctrl-C ends it")).expect("the introduction has an end");
    // A terminal signals the whole foreground group.
    let group = format!("-{}", child.id());
    let sent = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    errors.for_each(drop);
    let text = stdout_of(&child.wait_with_output().expect("it ends"), 0);
    assert!(text.starts_with("20 players for") && !text.contains("lost"), "{text}");
}

#[test]
fn a_swarm_joins_the_world_of_a_demo() {
    let demo = Demo::start();
    let server = ["--addr", &demo.players, "--servers", &demo.servers];
    let swarm = ["swarm", "--players", "10", "--for", "500ms", "--json"];
    // Without --join the swarm finds out by itself that the world has a game server.
    for join in [&["--join"][..], &[]] {
        let output = run(&[&swarm[..], &server[..], join].concat());
        let report: Value = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
        let run = &report["runs"][0];
        assert!(run["delivered"].as_u64() > Some(0), "{run}");
        assert_eq!(run["lost"], 0, "{run}");
        assert_eq!(run["checked"], 0, "the state of another process's game server is not known: {run}");
    }
}

#[test]
fn enet_is_measured_beside_a_bare_echo() {
    let load = ["--quick", "--players", "50", "--duration", "300ms", "--warmup", "100ms", "--json"];
    for group in ["limit", "lean", "connect", "tick", "bulk", "processes"] {
        let output = run(&[&["bench", "enet", group], &load[..]].concat());
        let report: Value = serde_json::from_str(&stdout_of(&output, 0)).expect("JSON");
        assert_eq!(
            (&report["schema"], &report["canonical"]),
            (&"throng.bench/1".into(), &false.into()),
            "{group}"
        );
        for figures in report["raw"].as_object().expect("an object").values() {
            for bad in ["failed", "lost", "wrong", "overtook"] {
                let count = figures.get(bad).and_then(Value::as_u64).unwrap_or(0);
                assert_eq!(count, 0, "{group}: {bad} in {figures}");
            }
        }
    }
}

#[test]
fn unknown_groups_of_enet_are_answered_with_the_known_ones() {
    let output = run(&["bench", "enet", "lmiit"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("limit") && error.contains("lmiit"), "{error}");
}

/// Time for what takes milliseconds on an idle machine; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until there is an answer.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// State and parent of a process that has not been waited for.
fn status_of(id: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before it may hold anything, brackets too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// A running child of `parent` with this argument.
fn child_with(parent: u32, argument: &str) -> Option<u32> {
    std::fs::read_dir("/proc").expect("a list of processes").find_map(|entry| {
        let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).ok()?;
        let is_it = status_of(id)?.1 == parent && line.split('\0').any(|word| word == argument);
        is_it.then_some(id)
    })
}

fn kill(id: u32) {
    let killed = Command::new("kill").args(["-KILL", &id.to_string()]).status().expect("kill is everywhere");
    assert!(killed.success());
}

#[test]
fn every_suite_has_a_smoke_test_that_is_not_judged() {
    for suite in [&["enet", "limit"][..], &["matcher"], &["replication", "--group", "1"]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().to_str().expect("UTF-8");
        let arguments = [&["bench"], suite, &["--smoke", "--no-progress", "--out", out]].concat();
        stdout_of(&run(&arguments), 0);
        let report = std::fs::read(folder.path().join("report.json")).expect("a report");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        assert_eq!(report["canonical"], false, "{arguments:?}");
        // Five turns of 4,000 clients would be no smoke test.
        if let Some(raw) = report["raw"].as_object().filter(|_| suite[0] == "enet") {
            assert_eq!(raw.len(), 2, "{raw:?}");
        }
    }
}

#[test]
fn an_address_that_the_enet_bench_does_not_use_is_refused() {
    for (arguments, told) in [
        (&["bench", "enet", "limit", "--smoke", "--addr", "nonsense"][..], "--serve"),
        (&["bench", "enet", "--serve", "127.0.0.1:0"], "--addr HOST:PORT"),
        (&["bench", "enet", "--serve", "--addr", "nonsense"], "expected HOST:PORT"),
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
}

/// Benches that would take an hour, and an argument of the server that each starts.
const BENCHES: [(&[&str], &str); 2] = [
    (&["bench", "channel", "single", "--players", "20", "--duration", "1h", "--no-progress"], "--config"),
    (&["bench", "enet", "limit", "--players", "40", "--duration", "1h", "--no-progress"], "--serve"),
];

#[test]
fn a_bench_ends_when_its_own_server_dies() {
    for (arguments, mark) in BENCHES {
        let mut bench =
            throng(arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        kill(eventually("its server", || child_with(bench.id(), mark)));
        let status = eventually("its end", || bench.try_wait().expect("its status"));
        let mut said = String::new();
        bench.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!(status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("error: "), "{arguments:?}: {said}");
    }
}

#[test]
fn a_bench_that_is_killed_takes_its_server_along() {
    for (arguments, mark) in BENCHES {
        let mut bench =
            throng(arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        let server = eventually("its server", || child_with(bench.id(), mark));
        bench.kill().expect("it runs");
        bench.wait().expect("it has ended");
        // The process that inherits it may not wait for it.
        eventually("the end of its server", || {
            status_of(server).is_none_or(|(state, _)| state == "Z").then_some(())
        });
    }
}
