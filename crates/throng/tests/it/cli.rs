//! The binary from outside: help, configuration commands, errors, start and stop.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A command in an empty folder, without the surroundings of whoever runs the tests.
fn throng(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("THRONG_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    throng(folder.path(), arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const FREE_PORTS: [&str; 10] = [
    "--gateway.servers.addr=127.0.0.1:0",
    "--gateway.clients.addr=127.0.0.1:0",
    "--gateway.clients.extra=enet://127.0.0.1:0",
    "--ddc.addr=127.0.0.1:0",
    "--matcher.addr=127.0.0.1:0",
    "--matcher.http_addr=127.0.0.1:0",
    "--http",
    "127.0.0.1:0",
    "--data",
    "d",
];

#[test]
fn help_fits_a_small_terminal_and_stays_as_it_is() {
    for command in [
        "",
        "up",
        "demo",
        "bench",
        "swarm",
        "replay",
        "config",
        "config check",
        "config show",
        "health",
        "doctor",
        "explain",
        "version",
        "tag",
        "top",
        "why",
        "report",
        "compare",
        "migrate",
        "ddc",
        "matcher",
        "completions",
        "man",
    ] {
        let mut arguments: Vec<&str> = command.split_whitespace().collect();
        arguments.push("-h");
        let output = run(&arguments);
        assert!(output.status.success(), "{command}");
        let help = text(&output.stdout);
        let name = if command.is_empty() { "throng".to_owned() } else { command.replace(' ', "_") };
        insta::assert_snapshot!(format!("help_{name}"), help);
        assert!(help.lines().count() <= 24, "`throng {command} -h` has {} lines", help.lines().count());
    }
    insta::assert_snapshot!("help_channeld", text(&run(&["channeld", "-help"]).stdout));
}

#[test]
fn long_help_lists_every_key_in_its_group() {
    let help = text(&run(&["up", "--help"]).stdout);
    for key in throng_server::config::KEYS.iter() {
        assert!(help.contains(&format!("--{}", key.path)), "{}", key.path);
    }
    for heading in ["Common:", "Network (players):", "Limits:", "Logging:", "Authentication:"] {
        assert!(help.contains(heading), "{heading}");
    }
}

#[test]
fn configuration_errors_show_all_places_at_once_and_exit_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = "[server]\nshrads = 2\n\n[gateway.clients]\naddr = \"0.0.0.0:12108\"\ntransport = \"tpc\"\n";
    std::fs::write(folder.path().join("throng.toml"), file).unwrap();
    for arguments in [&["config", "check"][..], &["up"], &["--server.shards", "2"], &["config", "show"]] {
        let output = throng(folder.path(), arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        insta::assert_snapshot!("config_errors", text(&output.stderr));
    }
}

#[test]
fn flag_errors_suggest_the_nearest_flag() {
    let output = run(&["up", "--gatway.dev"]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!("unknown_flag", text(&output.stderr));
    let output = run(&["channeld", "-shs", "x"]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!("unknown_channeld_flag", text(&output.stderr));
    let output = run(&["up", "--server.shards=many"]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!("bad_flag_value", text(&output.stderr));
}

#[test]
fn shown_values_carry_their_origin_and_load_again() {
    let folder = tempfile::tempdir().unwrap();
    let class = "[[gateway.classes]]\nname = \"duel\"\nlimits.channels_max = 20\n";
    std::fs::write(folder.path().join("my.toml"), format!("[server]\ndata = \"here\"\n{class}")).unwrap();
    let arguments =
        ["config", "show", "--origin", "-c", "my.toml", "--server.watchdog_ms", "700", "--gateway.dev"];
    let output = throng(folder.path(), &arguments).env("THRONG_SERVER_SHARDS", "3").output().unwrap();
    let shown = text(&output.stdout);
    for (value, origin) in [
        ("shards = 3", "environment variable THRONG_SERVER_SHARDS"),
        ("data = \"here\"", "my.toml:2:1"),
        ("watchdog_ms = 700", "flag --server.watchdog_ms"),
        ("dev = true", "flag --gateway.dev"),
        ("mailbox_bytes_max = 67108864", "default"),
        ("name = \"duel\"", "my.toml:4:1"),
        ("limits.channels_max = 20", "my.toml:5:8"),
        ("create = false", "default"),
    ] {
        let line =
            shown.lines().find(|line| line.starts_with(value)).unwrap_or_else(|| panic!("{value}: {shown}"));
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    std::fs::write(folder.path().join("again.toml"), &shown).unwrap();
    let again = throng(folder.path(), &["config", "show", "-c", "again.toml"]).output().unwrap();
    let named =
        throng(folder.path(), &["config", "show", "again.toml"]).env("THRONG_CONFIG", "else.toml").output();
    assert_eq!(text(&named.unwrap().stdout), text(&again.stdout), "a file named by position");
    let bare: String =
        shown.lines().map(|line| line.split(" #").next().unwrap().trim_end().to_owned() + "\n").collect();
    assert_eq!(text(&again.stdout), bare);
    let json = throng(folder.path(), &["config", "show", "--json", "-c", "again.toml"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text(&json.stdout)).unwrap();
    assert_eq!(json["gateway.classes"][0]["limits.channels_max"], 20, "{json}");
}

#[test]
fn default_file_and_schema_are_usable() {
    let folder = tempfile::tempdir().unwrap();
    let default = run(&["config", "default"]);
    std::fs::write(folder.path().join("throng.toml"), &default.stdout).unwrap();
    let check = throng(folder.path(), &["config", "check"]).output().unwrap();
    assert!(check.status.success(), "{}", text(&check.stderr));
    let schema: serde_json::Value = serde_json::from_slice(&run(&["config", "schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["server"]["properties"]["shards"]["maximum"], 64);
}

#[test]
fn codes_are_explained_and_the_version_is_json() {
    assert!(text(&run(&["explain", "thr-0106"]).stdout).contains("unsafe_binds"));
    assert!(text(&run(&["explain", "0106"]).stdout).contains("unsafe_binds"));
    assert_eq!(run(&["explain", "THR-9999"]).status.code(), Some(2));
    let unknown = text(&run(&["explain", "slow_raeder"]).stderr);
    assert!(unknown.contains("did you mean `slow_reader`?"), "{unknown}");
    // A number may have several entries; a blank line stands between them.
    let full = text(&run(&["explain", "1013"]).stdout);
    assert!(full.starts_with("worlds_max (1013): a connection was closed\n"), "{full}");
    assert!(full.contains("\n\nconnections_max (1013): a connection was not accepted\n"), "{full}");
    assert!(full.contains("\n\nconnections_per_address (1013): "), "{full}");
    let version: serde_json::Value = serde_json::from_slice(&run(&["version", "--json"]).stdout).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["commit"].as_str().is_some_and(|commit| !commit.is_empty()), "{version}");
    assert!(version["profile"].as_str().is_some_and(|profile| profile != "unknown"), "{version}");
    assert!(version["features"].is_array(), "{version}");
    assert!(text(&run(&["--version"]).stdout).starts_with("throng "));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["version"][..],
        &["--help"],
        &["completions", "bash"],
        &["explain"],
        &["config", "show"],
        &["bench", "list"],
        &["bench", "ddc", "--help"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = throng(folder.path(), arguments).stdout(full).output().unwrap();
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {complaint}");
        assert!(complaint.contains("cannot write the output: No space left"), "{arguments:?}: {complaint}");
        // A reader that has seen enough is no error.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = throng(folder.path(), arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{arguments:?}");
    }
}

/// A running `throng`, killed when the test ends early.
struct Process {
    child: Child,
    admin: String,
    block: String,
}

impl Process {
    fn start(folder: &Path, command: &[&str]) -> Process {
        Process::of(throng(folder, command))
    }

    fn of(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut block = String::new();
        let mut admin = String::new();
        for line in lines.by_ref() {
            let line = line.unwrap();
            if let Some((_, address)) =
                line.split_once("http://").filter(|_| line.trim_start().starts_with("admin"))
            {
                admin = address.trim().to_owned();
            }
            block.push_str(&line);
            block.push('\n');
            if line.trim_start().starts_with("stop") {
                return Process { child, admin, block };
            }
        }
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        child.wait().unwrap();
        panic!("not ready: {block}{complaint}");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn health(&self) -> Option<i32> {
        let folder = tempfile::tempdir().unwrap();
        throng(folder.path(), &["health", "--http", &self.admin]).status().unwrap().code()
    }

    /// The body of an answer of the admin listener.
    fn get(&self, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(&self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut complaint = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        (self.child.wait().unwrap().code(), complaint)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_says_where_it_listens_answers_and_stops_on_a_signal() {
    for (signal, command) in [("TERM", vec!["up"]), ("INT", vec!["--console-token"])] {
        let folder = tempfile::tempdir().unwrap();
        let invited = command.contains(&"--console-token");
        let process = Process::start(folder.path(), &[command, FREE_PORTS.to_vec()].concat());
        assert_eq!(process.block.contains("/console/#token="), invited, "{}", process.block);
        for word in [
            "game servers",
            "tcp://127.0.0.1:",
            "players",
            "enet://127.0.0.1:",
            "admin",
            "cache",
            "matcher",
            "matcher, JSON",
            "data",
            "try",
            "stop",
        ] {
            assert!(process.block.contains(word), "{}", process.block);
        }
        assert_eq!(process.health(), Some(0));
        process.signal(signal);
        let (code, log) = process.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains(&format!("SIG{signal}")), "{log}");
        assert_eq!(log.contains("http.tokens_file"), !invited, "{log}");
    }
}

#[test]
fn up_ends_by_itself_and_a_dead_process_is_not_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), &[vec!["up", "--for", "50ms"], FREE_PORTS.to_vec()].concat());
    let admin = process.admin.clone();
    assert_eq!(process.end().0, Some(0));
    assert_eq!(run(&["health", "--http", &admin]).status.code(), Some(1));
}

#[test]
fn hangup_reloads_and_says_what_waits_for_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("throng.toml");
    std::fs::write(&file, "[gateway.limits]\nban_s = 5\n").unwrap();
    let process = Process::start(folder.path(), &[vec!["up"], FREE_PORTS.to_vec()].concat());
    std::fs::write(&file, "[gateway.limits]\nban_s = 6\n[server]\nshards = 3\n").unwrap();
    process.signal("HUP");
    let mut log = String::new();
    let mut process = process;
    let mut stderr = BufReader::new(process.child.stderr.take().unwrap());
    log.push_str(&read_until(&mut stderr, "configuration reloaded"));
    process.signal("TERM");
    let code = process.child.wait().unwrap().code();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("gateway.limits.ban_s") && log.contains("server.shards"), "{log}");
}

/// Reads the log until a line contains `part`.
fn read_until(stderr: &mut impl std::io::BufRead, part: &str) -> String {
    let mut log = String::new();
    while !log.contains(part) {
        assert!(stderr.read_line(&mut log).unwrap() > 0, "the log ended: {log}");
    }
    log
}

#[test]
fn a_peer_that_never_leaves_holds_up_a_stop_for_seconds_only_and_a_second_signal_not_at_all() {
    for (signals, code) in [(1, 0), (2, 1)] {
        let folder = tempfile::tempdir().unwrap();
        // A peer that does not log in stays all the same.
        let command = ["up", "--gateway.limits.auth_timeout_ms=0", "--server.shutdown_timeout_ms=10000"];
        let mut process = Process::start(folder.path(), &[&command[..], &FREE_PORTS].concat());
        let players = process.block.lines().find(|line| line.trim_start().starts_with("players")).unwrap();
        let address = players.split("tcp://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        let stays = std::net::TcpStream::connect(address).unwrap();
        // Its shard may hear of it a moment after the kernel.
        while !process.get("/api/v1/connections").contains("\"total\":1") {}
        let mut stderr = BufReader::new(process.child.stderr.take().unwrap());
        let began = std::time::Instant::now();
        for _ in 0..signals {
            process.signal("TERM");
            read_until(&mut stderr, "\"reason\":\"SIGTERM\"");
        }
        assert_eq!(process.child.wait().unwrap().code(), Some(code), "{signals} signals");
        assert!(began.elapsed().as_secs() < 60, "{signals} signals");
        drop(stays);
    }
}

#[test]
fn a_busy_address_is_an_error_with_a_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let flag = format!("--gateway.clients.addr={}", taken.local_addr().unwrap());
    let output = run(&["up", "--only", "gateway", FREE_PORTS[0], &flag, "--http", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("gateway.clients.addr") && complaint.contains("takes a free port"),
        "{complaint}"
    );
}

#[test]
fn all_taken_addresses_are_named_in_one_run() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let also = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = |listener: &std::net::TcpListener| listener.local_addr().unwrap().to_string();
    let flags = [
        format!("--gateway.servers.addr={}", addr(&taken)),
        format!("--matcher.addr={}", addr(&also)),
        "--gateway.clients.addr=127.0.0.1:0".to_owned(),
    ];
    let mut arguments = vec!["up", "--only=gateway,matcher", "--http=127.0.0.1:0"];
    arguments.extend(flags.iter().map(String::as_str));
    let complaint = text(&run(&arguments).stderr);
    for (key, addr) in [("gateway.servers.addr", addr(&taken)), ("matcher.addr", addr(&also))] {
        assert!(complaint.contains(key) && complaint.contains(&addr), "{key}: {complaint}");
    }
}

#[test]
fn a_taken_port_of_any_service_names_its_flag() {
    let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (tcp, udp) = (stream.local_addr().unwrap(), datagrams.local_addr().unwrap());
    for (key, value, flag) in [
        ("gateway.servers.addr", tcp.to_string(), "--gateway.servers.addr 127.0.0.1:0"),
        ("gateway.clients.extra", format!("enet://{udp}"), "--gateway.clients.extra enet://127.0.0.1:0"),
        ("http.addr", tcp.to_string(), "--http.addr 127.0.0.1:0"),
        ("ddc.addr", tcp.to_string(), "--ddc.addr 127.0.0.1:0"),
        ("matcher.addr", tcp.to_string(), "--matcher.addr 127.0.0.1:0"),
        ("matcher.http_addr", tcp.to_string(), "--matcher.http_addr 127.0.0.1:0"),
    ] {
        let own = format!("--{key}");
        let others =
            FREE_PORTS.iter().take_while(|word| **word != "--http").filter(|word| !word.starts_with(&own));
        let mut arguments = vec!["up".to_owned(), format!("{own}={value}")];
        arguments.extend(others.map(|word| (*word).to_owned()));
        if key != "http.addr" {
            arguments.push("--http.addr=127.0.0.1:0".to_owned());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{key}: {complaint}");
        assert!(complaint.contains(flag), "{key}: {complaint}");
    }
}

#[test]
fn a_taken_page_of_the_game_names_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let output = run(&["tag", "--page", &taken.local_addr().unwrap().to_string()]);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("--page HOST:PORT"), "{complaint}");
}

#[test]
fn a_folder_that_cannot_hold_results_is_an_error_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("taken"), "").unwrap();
    for suite in [&["bench"][..], &["bench", "ddc"], &["bench", "matcher"], &["bench", "replication"]] {
        let output = throng(folder.path(), &[suite, &["--out", "taken"]].concat()).output().unwrap();
        let complaint = text(&output.stderr);
        assert!(!output.status.success(), "{suite:?}: {complaint}");
        assert!(output.stdout.is_empty(), "{suite:?}");
        assert!(complaint.contains("cannot write into taken (--out)"), "{suite:?}: {complaint}");
    }
}

#[test]
fn help_of_the_matcher_s_load_is_on_standard_output() {
    let output = run(&["bench", "matcher", "--help"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("--tickets"));
}

#[test]
fn a_check_says_which_configuration_it_checked() {
    assert_eq!(text(&run(&["config", "check"]).stdout), "no throng.toml here; the defaults are valid\n");
    for (file, is_missing) in [("missing.toml", true), (".", false)] {
        let complaint = text(&run(&["config", "check", "-c", file]).stderr);
        assert!(complaint.contains("THR-0101"), "{complaint}");
        assert_eq!(complaint.contains("throng config default"), is_missing, "{complaint}");
    }
}

#[test]
fn everything_starts_without_a_configuration_and_only_that_with_one() {
    let shown = |folder: &Path, arguments: &[&str]| {
        let output = throng(folder, &[&["doctor", "--json"][..], arguments].concat()).output().unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        let addresses = rows.iter().filter(|row| row["subject"] == "address");
        addresses.map(|row| row["found"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let folder = tempfile::tempdir().unwrap();
    let keys =
        ["ddc.addr", "matcher.addr", "matcher.http_addr", "gateway.clients.extra", "gateway.clients.addr"];
    let has = |found: &[String], key: &str| found.iter().any(|line| line.contains(&format!("`{key}`")));
    let everything = shown(folder.path(), &[]);
    assert!(keys.iter().all(|key| has(&everything, key)), "{everything:?}");
    let gateway = shown(folder.path(), &["--only", "gateway"]);
    assert!(has(&gateway, "gateway.clients.addr") && !has(&gateway, "ddc.addr"), "{gateway:?}");
    assert!(!has(&gateway, "gateway.clients.extra"), "{gateway:?}");
    let cache = shown(folder.path(), &["--only", "ddc"]);
    assert!(has(&cache, "ddc.addr") && !has(&cache, "gateway.clients.addr"), "{cache:?}");
    std::fs::write(folder.path().join("throng.toml"), "[server]\nshards = 1\n").unwrap();
    let configured = shown(folder.path(), &[]);
    assert!(has(&configured, "gateway.clients.addr") && !has(&configured, "ddc.addr"), "{configured:?}");
}

#[test]
fn a_cache_of_a_first_start_is_closed_to_web_pages() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), &[vec!["up"], FREE_PORTS.to_vec()].concat());
    let cache = process.block.lines().find(|line| line.trim_start().starts_with("cache")).unwrap();
    let address = cache.split("http://").nth(1).unwrap().trim().to_owned();
    for (host, status) in [("localhost", "200"), ("evil.example", "403")] {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
}

#[test]
fn a_start_that_could_not_work_is_refused() {
    let output = run(&[&["up", "--data", "/proc/nope"][..], &FREE_PORTS[..8]].concat());
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("`/proc/nope`") && complaint.contains("--server.data"), "{complaint}");
    let output = run(&[&["up", "--data", ""][..], &FREE_PORTS[..8]].concat());
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("`server.data`") && complaint.contains("allowed: path"), "{complaint}");
    for command in ["swarm", "demo", "bench"] {
        for players in ["0", "abc", "-3"] {
            let output = run(&[command, "--players", players]);
            let complaint = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{complaint}");
            assert!(complaint.contains("a whole number of at least 1"), "{command} {players}: {complaint}");
        }
    }
}

#[test]
fn a_data_folder_that_cannot_be_used_is_refused_by_every_service_in_one_form() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let used = Process::start(folder.path(), &[&["up"][..], &FREE_PORTS].concat());
    for only in ["gateway", "ddc", "matcher", "gateway,ddc,matcher"] {
        for data in ["file", "file/below", "d"] {
            // A gateway shares its folder.
            if (only, data) == ("gateway", "d") {
                continue;
            }
            let command = [&["up", "--only", only, "--for", "1ms"][..], &FREE_PORTS[..8], &["--data", data]];
            let output = throng(folder.path(), &command.concat()).output().unwrap();
            let complaint = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{only}, {data}: {complaint}");
            for part in ["error[THR-0107]: `server.data`: cannot ", &format!("`{data}"), "with --server.data"]
            {
                assert!(complaint.contains(part), "{only}, {data}: {complaint}");
            }
        }
    }
    drop(used);
}

#[test]
fn silent_sockets_on_the_matcher_leave_descriptors_for_health() {
    let folder = tempfile::tempdir().unwrap();
    let command = [&["up", "--only", "matcher"][..], &FREE_PORTS].concat();
    let program = throng(folder.path(), &command);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 128 && exec \"$0\" \"$@\""]).arg(program.get_program());
    limited.args(program.get_args()).current_dir(folder.path()).stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let process = Process::of(limited);
    let matcher = process.block.lines().find(|line| line.trim_start().starts_with("matcher ")).unwrap();
    let address = matcher.split("tcp://").nth(1).unwrap().split_whitespace().next().unwrap();
    // Shorter than the time that a connection has to say hello: what comes later proves nothing, as
    // the silent ones may be gone by then, and a slow machine tries again.
    let hello = std::time::Duration::from_secs(4);
    let began = std::time::Instant::now();
    loop {
        let opened = std::time::Instant::now();
        let silent: Vec<_> = (0..150).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let mut admin = std::net::TcpStream::connect(&process.admin).unwrap();
        write!(admin, "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        admin.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        if opened.elapsed() < hello {
            break;
        }
        assert!(began.elapsed() < 30 * hello, "health waits until silent sockets are closed");
        drop(silent);
    }
}

#[test]
fn tests_of_the_load_suite_are_suggested_by_likeness() {
    for (words, near) in [
        (&["channel", "sngle"][..], "channel single"),
        (&["gateway", "idel"], "gateway idle"),
        (&["machter"], "matcher"),
        (&["enet", "lmit"], "limit"),
    ] {
        let complaint = text(&run(&[&["bench"], words].concat()).stderr);
        assert!(complaint.contains(&format!("did you mean `{near}`?")), "{words:?}: {complaint}");
    }
}

#[test]
fn help_lists_every_command_and_answers_for_each() {
    let help = text(&run(&["help"]).stdout);
    assert_eq!(help, text(&run(&["--help"]).stdout));
    let short = text(&run(&["-h"]).stdout);
    for name in ["why", "top", "migrate", "report", "compare", "tag", "man", "version", "up", "ddc"] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{name} "))),
            "{name}: {help}"
        );
        assert!(short.contains(name), "{name}: {short}");
    }
    for words in [&["up"][..], &["why"], &["config", "check"], &["channeld"], &["bench", "ddc"]] {
        let output = run(&[&["help"], words].concat());
        assert!(output.status.success() && text(&output.stdout).contains("Usage"), "{words:?}");
    }
    assert_eq!(run(&["help", "nothing"]).status.code(), Some(2));
}

#[test]
fn channeld_starts_in_an_empty_folder_with_the_reference_s_flags() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(
        folder.path(),
        &[
            "channeld",
            "-dev",
            "-sa",
            "127.0.0.1:0",
            "-ca=127.0.0.1:0",
            "-mcb=13",
            "--http.addr",
            "127.0.0.1:0",
        ],
    );
    assert_eq!(process.health(), Some(0));
    process.signal("TERM");
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn channeld_writes_a_cpu_profile_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let listen = ["-sa", "127.0.0.1:0", "-ca", "127.0.0.1:0", "--http.addr", "127.0.0.1:0"];
    let command = [&["channeld", "-dev", "-profile", "cpu", "-profilepath", "here"][..], &listen].concat();
    let process = Process::start(folder.path(), &command);
    process.signal("TERM");
    assert_eq!(process.end().0, Some(0));
    let profile = std::fs::read(folder.path().join("here/cpu.pprof")).unwrap();
    assert!(!profile.is_empty(), "even a profile without samples names its sample types");
}

#[test]
fn only_starts_services_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let command = ["up", "--only", "gateway", "--for", "10ms"];
    let process = Process::start(folder.path(), &[&command[..], &FREE_PORTS].concat());
    assert!(process.block.contains("players"), "{}", process.block);
    assert_eq!(process.end().0, Some(0));
    for (arguments, key) in
        [(&["up", "--only", "gatway"][..], "--only"), (&["up", "--server.only", "gatway"], "server.only")]
    {
        let output = run(arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(
            complaint.contains(key) && complaint.contains("gatway") && complaint.contains("gateway"),
            "{complaint}"
        );
    }
}

#[test]
fn doctor_names_what_would_stop_a_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let free = ["doctor", "--only", "gateway", "--gateway.servers.addr=127.0.0.1:0", "--http", "127.0.0.1:0"];
    let output = run(&[&free[..], &["--gateway.clients.addr=127.0.0.1:0"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let output = run(&[&free[..], &["--gateway.clients.addr", &addr]].concat());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().any(|line| line.starts_with("bad") && line.contains(&addr)), "{said}");
    let output = run(&[&free[..], &["--gateway.clients.addr", &addr, "--json"]].concat());
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows.as_array().unwrap().iter().any(|row| row["severity"] == "bad"), "{rows}");
}

#[test]
fn check_doctor_and_start_refuse_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    // Nonsense for every reader, and too short for a token or a secret.
    std::fs::write(folder.path().join("bad"), "nonsense\n").unwrap();
    std::fs::write(folder.path().join("bad.proto"), "message {").unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("gateway.schemas", &["--gateway.schemas=bad.proto"]),
        ("gateway.auth.tokens_file", &["--gateway.auth.kind=tokens", "--gateway.auth.tokens_file=bad"]),
        (
            "gateway.auth.jwt_keys_file",
            &[
                "--gateway.auth.kind=jwt",
                "--gateway.auth.jwt_algorithms=HS256",
                "--gateway.auth.jwt_keys_file=bad",
            ],
        ),
        (
            "gateway.clients.tls_cert",
            &[
                "--gateway.clients.tls=true",
                "--gateway.clients.tls_cert=bad",
                "--gateway.clients.tls_key=bad",
            ],
        ),
        ("gateway.clients.enet_key_file", &["--gateway.clients.enet_key_file=bad"]),
        ("http.tokens_file", &["--http.tokens_file=bad"]),
        ("ddc.tokens_file", &["--ddc.tokens_file=bad"]),
        ("ddc.tls_cert", &["--ddc.tls_cert=bad", "--ddc.tls_key=bad"]),
        ("ddc.upstream", &["--ddc.upstream.url=https://localhost", "--ddc.upstream.ca_file=bad"]),
        ("matcher.tokens_file", &["--matcher.tokens_file=bad"]),
        ("matcher.tls_cert", &["--matcher.tls_cert=bad", "--matcher.tls_key=bad"]),
    ];
    for (key, flags) in cases {
        // The flag of the admin address is one of `up` and `doctor` only.
        let ports = FREE_PORTS.iter().filter(|flag| flag.starts_with("--") && flag.contains('='));
        let ports: Vec<&str> = ports.copied().collect();
        for command in [&["config", "check"][..], &["doctor"], &["up", "--for", "1ms"]] {
            let arguments = [command, &ports, &["--http.addr=127.0.0.1:0"], flags].concat();
            let output = throng(folder.path(), &arguments).output().unwrap();
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(!output.status.success(), "{arguments:?}: {said}");
            assert!(said.contains(key) && said.contains("THR-0107"), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn shells_and_man_get_the_command_line() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = text(&run(&["completions", shell]).stdout);
        assert!(script.contains("gateway.clients.addr"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(throng(folder.path(), &["man", "pages"]).status().unwrap().success());
    for name in ["up", "why", "top", "migrate", "report", "compare", "tag", "man", "version"] {
        let page = std::fs::read_to_string(folder.path().join(format!("pages/throng-{name}.1")));
        let page = page.unwrap_or_default();
        let program = concat!("\"throng ", env!("CARGO_PKG_VERSION"), "\"");
        assert!(page.contains("SYNOPSIS") && page.contains(program), "{name}");
        assert!(!page.contains(".SH EXTRA"), "{name}");
    }
}
