//! The clients for other languages against the real program: TypeScript's own tests, and a chat
//! room in which the samples of all languages meet. What is not installed here is left out, and the
//! test says so.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Once, mpsc};
use std::time::Duration;

use throng_client::{Client, Event, MatchmakingEvent, SessionConfig};
// Its C interface has to be built; see `c_library`.
use throng_client_ffi as _;

use crate::{peers, process, rust_sample};

use process::{Process, up};

/// Line that every client sends.
const HELLO: &[u8] = b"hello";
/// A busy machine starts Node and Godot in seconds.
const PATIENCE: Duration = Duration::from_secs(120);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Node with the packages that the tests need.
fn has_node() -> bool {
    repository().join("sdk/typescript/node_modules/typescript").exists() && has("node")
}

/// Compiles the TypeScript client, once for all tests: what one reads another must not be writing.
fn build_typescript() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let output = Command::new("npm")
            .args(["run", "build", "--silent"])
            .current_dir(repository().join("sdk/typescript"))
            .output()
            .expect("npm comes with node");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    });
}

#[test]
fn the_typescript_client_passes_its_tests() {
    if !has_node() {
        return peers::skip("Node with the packages of sdk/typescript");
    }
    build_typescript();
    let output = Command::new("node")
        .args(["--test", "--test-timeout=180000"])
        .current_dir(repository().join("sdk/typescript"))
        .env("THRONG", env!("CARGO_BIN_EXE_throng"))
        .output()
        .expect("node was found above");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// A gateway with a matcher, and a listener for each kind of client. A match begins with `players`
/// of them.
struct Gateway {
    _process: Process,
    tcp: String,
    ws: String,
    enet: String,
}

fn gateway(folder: &Path, players: usize) -> Gateway {
    let schema = repository().join("fixtures/proto/chat.proto");
    let modes = format!("[modes.party]\ncapacity = {players}\non_full = \"seal\"\n");
    std::fs::write(folder.join("modes.toml"), modes).expect("a folder for the test");
    let mut command = up(folder, "gateway,matcher", "data");
    command
        .args(["--gateway.servers.addr", "127.0.0.1:0", "--gateway.clients.addr", "127.0.0.1:0"])
        .args(["--gateway.clients.extra", "ws://127.0.0.1:0,enet://127.0.0.1:0"])
        .args(["--matcher.addr", "127.0.0.1:0", "--matcher.rules", "modes.toml"])
        .args(["--gateway.matchmaking.matcher", "own"])
        .args(["--gateway.clients.state_machine", "client_authoratative"])
        .args(["--gateway.matchmaking.data_type", "chatpb.ChatChannelData"])
        .arg("--schema")
        .arg(schema);
    let (process, said) = Process::ready(&mut command);
    let players = said.iter().find_map(|line| line.trim_start().strip_prefix("players"));
    let players = players.expect("it says where players go");
    let of = |scheme: &str| {
        let mut all = players.split_ascii_whitespace();
        let found = all.find(|address| address.starts_with(scheme));
        found.unwrap_or_else(|| panic!("no {scheme} in {players}")).to_owned()
    };
    Gateway { tcp: of("tcp://"), ws: of("ws://"), enet: of("enet://"), _process: process }
}

/// The shared library of the C interface: beside this test, where cargo puts it as a dependency of
/// it.
fn c_library() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    here.parent().expect("in a folder").to_path_buf()
}

fn build_c_sample(folder: &Path) -> PathBuf {
    let (crate_folder, library) = (repository().join("crates/client-ffi"), c_library());
    let program = folder.join("chat");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        .arg(crate_folder.join("sample/chat.c"))
        .arg("-I")
        .arg(crate_folder.join("include"))
        .arg("-L")
        .arg(&library)
        .arg("-lthrong_client_ffi")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Starts a sample and passes its lines on with its name in front.
fn start(command: &mut Command, name: &'static str, lines: &mpsc::Sender<(&'static str, String)>) -> Process {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (stdout, mut stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let lines = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = lines.send((name, line));
        }
        let mut errors = String::new();
        let _ = stderr.read_to_string(&mut errors);
        let _ = lines.send((name, format!("ended {errors}")));
    });
    Process(child)
}

#[test]
fn the_samples_of_all_languages_meet_in_a_match() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut samples: Vec<(&'static str, Command)> = vec![("c", Command::new(build_c_sample(folder.path())))];
    if has_node() {
        build_typescript();
        let mut node = Command::new("node");
        node.arg(repository().join("sdk/typescript/sample/chat.mjs"));
        samples.push(("typescript", node));
    }
    if has("godot3-server") {
        let mut godot = Command::new("godot3-server");
        godot.arg("-s").arg(repository().join("sdk/godot/chat.gd")).arg("--").current_dir(folder.path());
        samples.push(("godot", godot));
    }
    if samples.len() < 3 {
        // The others meet without it.
        peers::skip("Node with the packages of sdk/typescript, or godot3-server");
    }
    let mut names: Vec<&'static str> = samples.iter().map(|(name, _)| *name).collect();
    names.push("rust");
    // The host is one more: the match begins when all are there.
    let gateway = gateway(folder.path(), names.len() + 1);
    let (lines, heard) = mpsc::channel();
    let mut processes = Vec::new();
    for (name, mut command) in samples {
        let address = match name {
            "c" => &gateway.tcp,
            "godot" => &gateway.enet,
            _ => &gateway.ws,
        };
        command.args([address, name, "party", "hello"]);
        processes.push(start(&mut command, name, &lines));
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (address, rust_lines) = (gateway.ws.clone(), lines.clone());
    runtime.spawn(async move {
        let print = |line| drop(rust_lines.send(("rust", line)));
        let end = rust_sample::chat(&address, "rust", "party", "hello", print).await;
        assert!(end.is_ok(), "{end:?}");
    });
    runtime.block_on(async {
        let playing = tokio::time::timeout(PATIENCE, host(&gateway.ws, names.len()));
        playing.await.expect("everybody says hello");
    });
    let mut saw = Vec::new();
    wait_for(&heard, &mut saw, |saw| {
        names.iter().all(|name| {
            let heard = |line: &str| saw.contains(&(*name, line.to_owned()));
            names.iter().all(|other| heard(&format!("<{other}> hello"))) && heard("<host> bye")
        })
    });
    assert!(!saw.iter().any(|(_, line)| line.contains("lost") || line.contains("refused")), "{saw:?}");
}

/// Joins the match, waits until so many have said hello, and says bye.
async fn host(address: &str, players: usize) {
    let endpoint = address.parse().expect("an address");
    let (client, mut events) =
        Client::connect(endpoint, SessionConfig::client("host", "")).await.expect("the gateway is there");
    client.join_random_room("party").await.expect("there is a place");
    let (mut channel, mut hellos) = (None, 0);
    while channel.is_none() || hellos < players {
        match events.next().await.expect("the connection lasts") {
            Event::Matchmaking { event: MatchmakingEvent::Entered { channel: of, .. }, .. } => {
                channel = Some(of)
            }
            Event::Update { value, .. } => {
                hellos += value.windows(HELLO.len()).filter(|part| *part == HELLO).count();
            }
            _ => {}
        }
    }
    // `chatpb.ChatChannelData` with one message: its sender is field 1, its content field 3.
    let bye = *b"\x0A\x0B\x0A\x04host\x1A\x03bye";
    client
        .update(channel.expect("entered"), "chatpb.ChatChannelData", bye.to_vec())
        .await
        .expect("it is open");
    client.close().await;
    while events.next().await.is_some() {}
}

fn wait_for(
    heard: &mpsc::Receiver<(&'static str, String)>,
    saw: &mut Vec<(&'static str, String)>,
    done: impl Fn(&[(&'static str, String)]) -> bool,
) {
    while !done(saw) {
        match heard.recv_timeout(PATIENCE) {
            Ok(line) => saw.push(line),
            Err(_) => panic!("waited in vain; so far: {saw:?}"),
        }
    }
}

#[test]
fn samples_are_short() {
    for sample in [
        "crates/client/examples/chat_client.rs",
        "crates/client-ffi/sample/chat.c",
        "sdk/typescript/sample/chat.mjs",
        "sdk/godot/chat.gd",
    ] {
        let text = std::fs::read_to_string(repository().join(sample)).expect(sample);
        assert!(text.lines().count() < 100, "{sample} has {} lines", text.lines().count());
    }
}
