//! Programs that were linked with the C library, started with this one instead: each says the same
//! with both.
//!
//! What is not installed (`libenet-dev`, `python3-enet`, `godot3-server`, `cube2-server`) is left
//! out, with a line that says so.
//!
//! `redeclipse-server` takes no part. It does not start without its 860 MB of data; with stand-ins
//! for the two files that it looks for it starts, and crashes at a login on Debian's own library.
#![allow(clippy::print_stderr, reason = "a test that is left out says so")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Debian's library, and a folder in which ours has its name.
#[derive(Clone, Copy, Debug)]
enum Library {
    Debians,
    Ours,
}

const BOTH: [Library; 2] = [Library::Debians, Library::Ours];

impl Library {
    fn command(self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        match self {
            Self::Debians => command.env_remove("LD_LIBRARY_PATH"),
            Self::Ours => command.env("LD_LIBRARY_PATH", folder()),
        };
        command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir(env!("CARGO_TARGET_TMPDIR"));
        command
    }

    /// Output of the program until it ends.
    fn say(self, mut command: Command) -> String {
        let output = command.output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{self:?} {command:?}: {}\n{text}\n{errors}", output.status);
        text
    }
}

/// A program that runs until the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts a program and waits for the line that says it is there.
    fn start(mut command: Command, ready: &str) -> (Self, BufReader<std::process::ChildStdout>) {
        let mut child = command.stderr(Stdio::null()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let running = Self(child);
        let mut line = String::new();
        while !line.contains(ready) {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("text"), 0, "{command:?} ended before {ready:?}");
        }
        (running, lines)
    }
}

/// The library, as `cargo test` has built it.
fn library() -> PathBuf {
    let folder = std::env::current_exe().expect("a path").parent().expect("deps").to_owned();
    folder.join("libenet.so")
}

/// A folder in which the library has the name that programs look for.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drop-in");
    let name = folder.join("libenet.so.7");
    if !name.exists() {
        std::fs::create_dir_all(&folder).expect("the folder is ours");
        // Another test may have been faster.
        drop(std::os::unix::fs::symlink(library(), name));
    }
    folder
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/programs").join(name)
}

/// Compiles a program for the C library; `None`, with a line, without its headers.
fn compile(name: &str) -> Option<PathBuf> {
    compile_source(&program(name))
}

fn compile_source(source: &Path) -> Option<PathBuf> {
    if !Path::new("/usr/include/enet/enet.h").exists() {
        eprintln!("skipped: no libenet-dev; scripts/setup --tests installs it");
        return None;
    }
    let out = folder().join(source.file_stem().expect("a file"));
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&out)
        .arg(source)
        .arg("-lenet")
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(out)
}

fn is_there(program: &str, arguments: &[&str]) -> bool {
    let mut probe = Command::new(program);
    let result = probe.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = result.is_ok_and(|status| status.success() || status.code() == Some(255));
    if !there {
        eprintln!("skipped: no {program} {arguments:?}; scripts/setup --tests installs it");
    }
    there
}

/// A port that was free a moment ago, below those that the system gives to clients: the clients of
/// one test must not take the port of another's server.
fn port() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() * 64;
    loop {
        let port = (10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000) as u16;
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() {
            return port.to_string();
        }
    }
}

/// Names that an object exports.
fn exports(object: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(object).output().expect("nm runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(2))
        .filter(|name| name.starts_with("enet_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn structures_are_those_of_the_header() {
    compile("header.c");
}

#[test]
fn every_symbol_of_the_c_library_is_there() {
    let ours = exports(&library());
    assert_eq!(ours.len(), 73, "{ours:?}");
    let theirs = Path::new("/usr/lib/x86_64-linux-gnu/libenet.so.7");
    if theirs.exists() {
        assert_eq!(ours, exports(theirs));
    }
}

#[test]
fn an_internal_of_the_c_library_ends_the_process_with_its_name() {
    let Some(program) = compile("internal.c") else { return };
    let output = Library::Ours.command(program).output().expect("it starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("enet_peer_reset_queues"));
}

/// A program says the same with both. Both measure times, so that a machine that stands still for
/// a moment may change what either says: they are asked again then.
fn say_the_same(program: &Path) {
    const ATTEMPTS: u32 = 8;
    for attempt in 1..=ATTEMPTS {
        let [theirs, ours] = BOTH.map(|library| library.say(library.command(program)));
        if ours == theirs {
            return;
        }
        for (line, (theirs, ours)) in theirs.lines().zip(ours.lines()).enumerate() {
            assert!(attempt < ATTEMPTS || ours == theirs, "line {}: {ours}, not {theirs}", line + 1);
        }
    }
    panic!("one says more than the other");
}

#[test]
fn programs_find_the_behaviour_they_rely_on() {
    let Some(program) = compile("contract.c") else { return };
    say_the_same(&program);
}

#[test]
fn calls_in_every_state_say_the_same_with_both() {
    let Some(program) = compile("torture.c") else { return };
    say_the_same(&program);
}

#[test]
fn it_goes_beyond_4095_peers_and_refuses_an_unknown_checksum() {
    let Some(program) = compile("beyond.c") else { return };
    let output = Library::Ours.command(program).output().expect("it starts");
    let lines = String::from_utf8_lossy(&output.stdout);
    let expected = [
        "65535 peers: 1",
        "65536 peers: 0",
        "connected: 4200",
        "highest index: 4199",
        "own checksum: -1 -1",
        "without: 1",
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.lines().filter(|line| line.contains("checksum")).count(), 1, "one line: {errors}");
}

/// The server of `throng bench enet libenet` and its real clients, each with a socket of its own.
#[test]
fn the_benchs_server_holds_more_than_4095_real_clients() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers/libenet/peer.c");
    let Some(peer) = compile_source(&source) else { return };
    let port = port();
    let serve = |library: Library| {
        let mut command = library.command(&peer);
        command.args(["serve", "127.0.0.1", &port, "8000", "100"]).stdin(Stdio::piped());
        command
    };
    let refused = serve(Library::Debians).output().expect("it starts");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the library allows 4095"));
    let (mut server, mut counts) = Running::start(serve(Library::Ours), "listening on");

    let mut command = Library::Debians.command(&peer);
    command.args(["swarm", "127.0.0.1", &port, "4200", "100", "2000", "32", "0", "1000", "2"]);
    command.stdin(Stdio::piped());
    let (mut clients, mut results) = Running::start(command, "connected");
    let go =
        |running: &mut Running| running.0.stdin.as_mut().expect("piped").write_all(b"\n").expect("it runs");
    // Each client knows that it is connected a moment before the server does.
    let patience = Instant::now() + Duration::from_secs(120);
    loop {
        go(&mut server);
        let mut peers = String::new();
        counts.read_line(&mut peers).expect("text");
        if peers == "peers 4200\n" {
            break;
        }
        assert!(Instant::now() < patience, "{peers}");
    }

    go(&mut clients);
    let mut seen = String::new();
    results.read_to_string(&mut seen).expect("the clients end");
    for part in ["\"connected\":4200", "\"failed\":0", "\"lost\":0", "\"wrong\":0"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert!(!seen.contains("\"echoed\":0"), "{seen}");
}

#[test]
fn python_says_the_same_with_both() {
    const PYTHON: &str = "/usr/bin/python3";
    if !is_there(PYTHON, &["-c", "import enet"]) {
        return;
    }
    let mut transcripts = BTreeSet::new();
    for server in BOTH {
        for client in BOTH {
            let port = port();
            let mut command = server.command(PYTHON);
            command.arg(program("server.py")).arg(&port);
            let (_running, mut lines) = Running::start(command, "ready");
            let mut command = client.command(PYTHON);
            command.arg(program("client.py")).arg(&port);
            let mut text = client.say(command);
            lines.read_to_string(&mut text).expect("the server ends with the client");
            assert!(text.contains("back 3 50000 1") && text.contains("disconnect 7 0 True"), "{text}");
            transcripts.insert(text);
        }
    }
    assert_eq!(transcripts.len(), 1, "{transcripts:#?}");
}

#[test]
fn godot_plays_on_it_with_every_compressor() {
    if !is_there("godot3-server", &["--version"]) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../enet/tests/it/peer/godot.gd");
    let godot = |library: Library, words: &[&str]| {
        let mut command = library.command("godot3-server");
        command.arg("-s").arg(&script).arg("--").args(words);
        command
    };
    // None, range coder, zlib, zstd.
    for compression in ["0", "1", "3", "4"] {
        let transcripts = BOTH.map(|library| {
            let port = port();
            let server = godot(library, &["serve", &port, compression]);
            let (_running, mut lines) = Running::start(server, "- ready");
            let mut text = library.say(godot(library, &["connect", &port, compression]));
            lines.read_to_string(&mut text).expect("the server ends with the client");
            // In the order of delivery, which is free between channels.
            let said: BTreeSet<String> =
                text.lines().filter_map(|line| line.strip_prefix("- ")).map(str::to_owned).collect();
            assert_eq!(said.iter().filter(|line| line.starts_with("echo")).count(), 9, "{text}");
            assert!(said.contains("left client"), "{text}");
            said
        });
        assert_eq!(transcripts[0], transcripts[1], "compression {compression}");
    }
}

#[test]
fn a_sauerbraten_server_says_the_same_with_both() {
    const SERVER: &str = "/usr/lib/cube2/cube2_server";
    let Some(client) = compile("cube.c") else { return };
    if !Path::new(SERVER).exists() {
        eprintln!("skipped: no cube2-server; scripts/setup --tests installs it");
        return;
    }
    let home = folder().join("cube-home");
    std::fs::create_dir_all(&home).expect("the folder is ours");
    let transcripts = BOTH.map(|library| {
        let port = port();
        let mut command = library.command(SERVER);
        // No master server: it talks to nobody but its clients.
        command.arg(format!("-q{}", home.display())).arg("-i127.0.0.1").arg(format!("-j{port}")).arg("-m");
        command.current_dir("/usr/lib/cube2");
        let (running, _lines) = Running::start(command, "dedicated server started");
        // The clients use Debian's in both cases.
        let mut command = Library::Debians.command(&client);
        command.arg(&port);
        let text = Library::Debians.say(command);
        drop(running);
        text
    });
    assert!(
        transcripts[0].contains("3 pong") && transcripts[0].contains("info: answered 1"),
        "{transcripts:?}"
    );
    assert_eq!(transcripts[0], transcripts[1]);
}
