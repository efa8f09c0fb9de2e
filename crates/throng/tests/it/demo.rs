//! `throng demo --cluster`: players, one of them in a browser, follow their world while its nodes
//! are drained and killed.
#![cfg(feature = "nats")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use throng_client::{Backoff, Client, Event, SessionConfig};

use crate::nats::signal;
use crate::peers;
use crate::process::{Process, fetch};

/// Far beyond what a step needs, on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(300);
/// A player who logged in before the game server did is never noticed by it, and logs in again.
const ROOM: Duration = Duration::from_secs(3);
const WORLD: &str = "arena-1";
const NAME: &str = "Chromium";

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["demo", "--cluster", "3", "--players", "6"]).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

#[test]
fn a_missing_nats_server_is_an_error_with_the_way_out() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let done = demo().env("PATH", "").env("XDG_CACHE_HOME", empty.path()).output().expect("the program runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("nats-server 2.11") && said.contains("scripts/setup --tests"), "{said}");
}

/// Output of the demo up to the commands that it names.
struct Introduction(Vec<String>);

impl Introduction {
    fn line(&self, what: &str) -> &str {
        let found = self.0.iter().find_map(|line| line.trim_start().strip_prefix(what));
        found.unwrap_or_else(|| panic!("no line `{what}` in {:?}", self.0)).trim()
    }

    /// Process id of a node.
    fn pid(&self, node: &str) -> u32 {
        let id = self.line(node).split_whitespace().nth(1);
        id.and_then(|id| id.parse().ok()).expect("its process")
    }

    /// Configuration of a node.
    fn config(&self, node: &str) -> PathBuf {
        let first = self.line("homes").split(" -c ").nth(1).expect("a configuration");
        Path::new(first).with_file_name(format!("{node}.toml"))
    }
}

fn act(words: &[&str], config: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let done = command.arg("cluster").args(words).arg("-c").arg(config).output().expect("the program runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// Waits until a node other than `without` serves the world.
fn home(config: &Path, without: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = act(&["where", WORLD], config);
        let mut words = found.split_whitespace().skip(1);
        if let (Some("serving"), Some(node)) = (words.next(), words.next())
            && node != without
            && !found.contains("lost")
        {
            return node.to_owned();
        }
        assert!(Instant::now() < until, "{found}");
    }
}

/// Waits until the player in the browser is seen by another one in the same world. Each attempt
/// asks the next of the nodes.
fn sees_the_browser(gateways: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let until = Instant::now() + PATIENCE;
    for gateway in gateways.iter().cycle() {
        let endpoint = gateway.parse().expect("an address");
        let visit = async {
            let config = SessionConfig { world: Some(WORLD.to_owned()), ..SessionConfig::client("w", "") };
            let (_client, mut events) =
                Client::connect_with(endpoint, config, Backoff::never()).await.ok()?;
            while let Some(event) = events.next().await {
                if let Event::Update { value, .. } = event
                    && value.windows(NAME.len()).any(|part| part == NAME.as_bytes())
                {
                    return Some(());
                }
            }
            None
        };
        // The timer needs the runtime.
        let found = runtime.block_on(async { tokio::time::timeout(ROOM, visit).await });
        if found.is_ok_and(|found| found.is_some()) {
            return;
        }
        assert!(Instant::now() < until, "the player in the browser is not in the world");
    }
}

/// A browser, which ends with the test.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn browser(folder: &Path, url: &str) -> Option<Browser> {
    let program = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    })?;
    let mut command = Command::new(program);
    // The sandbox needs rights that containers and root do not have; the page is ours.
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
    command.arg("--disable-sync").arg(format!("--user-data-dir={}", folder.join("profile").display()));
    command.arg(url).stdout(Stdio::null()).stderr(Stdio::null());
    Some(Browser(command.spawn().expect("it starts")))
}

fn runs(pid: u32) -> bool {
    // A process that has ended may wait for its new parent to notice.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state
        .rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

#[test]
fn a_player_in_a_browser_follows_a_world_that_moves_and_returns_to_one_whose_node_was_killed() {
    if throng_load::cluster::nats_server().is_none() {
        return peers::skip("nats-server");
    }
    let mut process = Process(demo().stderr(Stdio::null()).spawn().expect("the program starts"));
    let stdout = BufReader::new(process.0.stdout.take().expect("it is piped"));
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    let mut said = Vec::new();
    for line in &mut lines {
        said.push(line);
        if said.last().is_some_and(|line| line.trim_start().starts_with("stop")) {
            break;
        }
    }
    let said = Introduction(said);
    let page = said.line("play").split_whitespace().next().expect("an address").to_owned();
    let address = page.trim_start_matches("http://").split('/').next().expect("an address");
    let config = fetch(address, "/config.json").expect("it answers");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    let gateways: Vec<String> = serde_json::from_value(config["gateways"].clone()).expect("addresses");
    assert_eq!(gateways.len(), 3);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = format!("http://{address}/?world={WORLD}&name={NAME}");
    let Some(browser) = browser(folder.path(), &url) else { return peers::skip("chromium") };
    sees_the_browser(&gateways);

    let any = said.config("n1");
    let drained = home(&any, "");
    signal(said.pid(&drained), "-TERM");
    let now = home(&any, &drained);
    sees_the_browser(&gateways);

    // A crash, and a restart in the same folder.
    signal(said.pid(&now), "-KILL");
    let mut again = Command::new(env!("CARGO_BIN_EXE_throng"));
    let (restarted, _) = Process::ready(again.arg("up").arg("-c").arg(said.config(&now)));
    sees_the_browser(&gateways);
    let mut changes = vec![format!("{drained} is left"), format!("has moved from {drained} to {now}")];
    while !changes.is_empty() {
        let line = lines.next().unwrap_or_else(|| panic!("the demo does not say: {changes:?}"));
        changes.retain(|change| !line.contains(change));
    }
    drop((restarted, browser));

    // The nodes end with the demo, however that ends.
    let rest: Vec<u32> =
        ["n1", "n2", "n3"].map(|node| said.pid(node)).into_iter().filter(|&pid| runs(pid)).collect();
    assert_eq!(rest.len(), 1, "one was drained, one killed");
    process.kill();
    let until = Instant::now() + PATIENCE;
    while rest.iter().any(|&pid| runs(pid)) {
        assert!(Instant::now() < until, "a node still runs");
        std::thread::yield_now();
    }
    std::fs::remove_dir_all(any.parent().expect("a folder")).expect("it is ours");
}
