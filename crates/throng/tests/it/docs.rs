//! Types the commands of the tutorials and how-tos: in an empty folder, with `throng` installed and
//! nothing else, on a network of its own so that the usual ports are free, and against a stopwatch.
//! A page that needs a file has its text.
//!
//! - Commands of `console` blocks run one after another and have to succeed. `throng up` and its
//!   like go on in the background, until they have said that they are ready; the next of them ends
//!   the one before.
//! - `<!-- file: NAME -->` before a block makes the block that file.
//! - `<!-- not executed: WHY -->` before a block leaves it out.
#![allow(clippy::print_stderr, reason = "says what is left out, and how long pages take")]

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Every page with commands in it, and how long a new user may need for them on a machine that has
/// built everything.
const PAGES: &[(&str, Duration)] = &[
    ("tutorial/first-gateway.md", Duration::from_secs(120)),
    ("tutorial/first-game.md", Duration::from_secs(60)),
    ("tutorial/shared-ddc.md", Duration::from_secs(300)),
    ("how-to/build-cache.md", Duration::from_secs(60)),
    ("how-to/connect-a-client.md", Duration::from_secs(180)),
    ("how-to/deploy.md", Duration::from_secs(60)),
    ("how-to/gather-players-in-rooms.md", Duration::from_secs(60)),
    ("how-to/rank-players-five-against-five.md", Duration::from_secs(60)),
    ("how-to/look-inside.md", Duration::from_secs(60)),
    ("how-to/many-nodes.md", Duration::from_secs(60)),
    ("how-to/many-worlds.md", Duration::from_secs(60)),
    ("how-to/measure-and-compare.md", Duration::from_secs(120)),
    ("how-to/migrate-from-channeld.md", Duration::from_secs(300)),
    ("how-to/migrate-from-cloud-ddc.md", Duration::from_secs(300)),
    ("how-to/migrate-from-enet.md", Duration::from_secs(60)),
    ("how-to/one-world-over-nine-servers.md", Duration::from_secs(120)),
];

/// Subcommands that run until they are stopped.
const SERVERS: &[&str] = &["throng up", "throng tag", "throng channeld"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    std::fs::read_to_string(repository().join("docs").join(page))
        .unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// One thing that a page says to do.
#[derive(Debug, PartialEq)]
enum Step {
    Type(String),
    Write { file: String, content: String },
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    let mut remark = String::new();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            remark = text.to_owned();
        }
        let Some(language) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        let remark = std::mem::take(&mut remark);
        if let Some(file) = remark.strip_prefix("file: ") {
            steps.push(Step::Write { file: file.to_owned(), content: block.join("\n") + "\n" });
        } else if language == "console" && !remark.starts_with("not executed: ") {
            let whole = block.join("\n").replace("\\\n", " ");
            steps.extend(
                whole.lines().filter_map(|line| line.strip_prefix("$ ")).map(|c| Step::Type(c.to_owned())),
            );
        }
    }
    steps
}

fn is_server(line: &str) -> bool {
    let line = line.strip_prefix("target/demo/").unwrap_or(line);
    SERVERS.iter().any(|server| line.starts_with(server))
}

/// A script that does what the steps say, in a folder of its own.
fn script(steps: &[Step]) -> String {
    let mut script = "set -eu\nip link set lo up\nserver=\n\
        end() { if [ -n \"$server\" ]; then kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; fi; server=; }\n\
        trap end EXIT\n"
        .to_owned();
    for step in steps {
        match step {
            Step::Write { file, content } => {
                let _ = writeln!(
                    script,
                    "mkdir -p \"$(dirname {file})\"\ncat >{file} <<'END_OF_FILE'\n{content}END_OF_FILE"
                );
            }
            Step::Type(line) if is_server(line) => {
                let _ = writeln!(
                    script,
                    "echo '$ {quoted}'\nend\n: >ready\n{line} >ready 2>errors &\nserver=$!\n\
                     while ! grep -q '^  stop' ready && ! curl -sf http://127.0.0.1:8080/metrics >/dev/null; do\n\
                     kill -0 $server || {{ cat ready errors; exit 1; }}\nsleep 0.05\ndone",
                    quoted = line.replace('\'', "'\\''")
                );
            }
            Step::Type(line) => {
                let quoted = line.replace('\'', "'\\''");
                let _ = writeln!(script, "echo '$ {quoted}'\n{{\n{line}\n}} </dev/null");
            }
        }
    }
    script
}

/// A network without anybody else in it: all of it for the test, if the system allows that.
fn isolated() -> Option<Command> {
    for flags in [["-n"].as_slice(), &["-r", "-n"]] {
        let mut probe = Command::new("unshare");
        probe.args(flags).args(["ip", "link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null());
        if probe.status().is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command.args(flags);
            return Some(command);
        }
    }
    eprintln!("skipped: this system gives no network namespace (unshare -n)");
    None
}

/// A folder of programs with `throng` in it, as installed by the first tutorial.
fn programs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for the test");
    symlink(env!("CARGO_BIN_EXE_throng"), folder.path().join("throng")).expect("a link");
    folder
}

fn run(what: &str, steps: &[Step], limit: Duration) {
    let Some(mut shell) = isolated() else { return };
    // The stopwatch is for one user on one machine.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, programs) = (tempfile::tempdir().expect("a folder for the test"), programs());
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap_or_default());
    let started = Instant::now();
    let output = shell
        // A busy or slow machine takes longer than a user's; this only ends what hangs.
        .args(["timeout", &(10 * limit).as_secs().to_string(), "bash", "-c", &script(steps)])
        .current_dir(folder.path())
        .env("PATH", path)
        .env("HOME", folder.path())
        .output()
        .expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{text}\n{errors}", output.status);
    eprintln!("{what}: {} steps in {:.1} s", steps.len(), started.elapsed().as_secs_f64());
}

#[test]
fn pages_do_what_they_say() {
    for (page, limit) in PAGES {
        let steps = steps(&read(page));
        if !steps.is_empty() {
            run(page, &steps, *limit);
        }
    }
}

#[test]
fn a_new_user_gets_a_first_message_within_a_minute() {
    let count = "throng swarm --players 1 --for 1s --json | grep '\"delivered\": [1-9]'";
    let steps = ["throng up", count].map(|line| Step::Type(line.to_owned()));
    run("a first message", &steps, Duration::from_secs(60));
}

#[test]
fn a_new_user_meets_a_thousand_players_within_two_minutes() {
    let steps = ["throng up", "throng swarm --players 1000 --for 2s"].map(|line| Step::Type(line.to_owned()));
    run("a thousand players", &steps, Duration::from_secs(120));
}

#[test]
fn every_page_with_commands_is_in_the_table() {
    for folder in ["tutorial", "how-to"] {
        for entry in std::fs::read_dir(repository().join("docs").join(folder)).expect("a folder") {
            let name = entry.expect("readable").file_name().into_string().expect("a plain name");
            let page = format!("{folder}/{name}");
            assert!(PAGES.iter().any(|(known, _)| *known == page), "add {page} to PAGES");
        }
    }
}

#[test]
fn steps_are_read_from_pages() {
    let page = "<!-- file: a.toml -->\n```toml\nx = 1\n```\ntext\n```console\n$ one \\\n  more\noutput\n$ two\n```\n\
                <!-- not executed: takes a day -->\n```console\n$ three\n```\n";
    let typed = |line: &str| Step::Type(line.to_owned());
    let file = Step::Write { file: "a.toml".to_owned(), content: "x = 1\n".to_owned() };
    assert_eq!(steps(page), [file, typed("one    more"), typed("two")]);
}
