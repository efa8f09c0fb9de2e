//! Nodes as processes of their own on a real bus: they share worlds, give them away, and never
//! serve one at the same time.
//!
//! `THRONG_CLUSTER_FAULTS=long` (`scripts/cluster-faults`) plays faults of full length and prints
//! the times without a home.
#![cfg(feature = "nats")]
#![allow(clippy::print_stdout, reason = "the times are results of a long run")]

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_client::{
    Backoff, Client, CloseReason, ConnectError, Event, Events, Matcher, MatcherConfig, MatchmakingEvent,
    MatchmakingRequest, SessionConfig,
};
use throng_wire::matcher::{Method, Writer};

use crate::bus::{Bus, bus, bus_with};
use crate::nats::signal;
use crate::process::{Process, fetch, up};

/// Far beyond what a step needs, on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(300);
/// Limits of the time without a home: after a restart with the folder, and for good.
const RESTARTED: Duration = Duration::from_secs(3);
const LOST: Duration = Duration::from_secs(20);
/// Worlds of every cluster, the default one first.
const WORLDS: [&str; 4] = ["main", "hub", "arena", "duel"];
/// Token of the admin listeners that have one.
const TOKEN: &str = "a-token-of-the-operator";
/// A request without an answer is given up after this time.
const ANSWER: Duration = Duration::from_millis(500);

/// Time during which a node served the default world to one connection: from the first answer to
/// the sending of the last request that was answered.
#[derive(Clone, Debug)]
struct Tenure {
    node: String,
    first: Instant,
    last: Instant,
}

/// Observations of players in the default world.
#[derive(Default)]
struct History(Mutex<Vec<Tenure>>);

impl History {
    /// Notes an answer to a request. `tenure` is that of the connection, if it had an answer.
    fn note(&self, node: &str, tenure: &mut Option<usize>, sent: Instant, answered: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match tenure {
            Some(index) => all[*index].last = sent,
            None => {
                *tenure = Some(all.len());
                all.push(Tenure { node: node.to_owned(), first: answered, last: sent });
            }
        }
    }

    fn all(&self) -> Vec<Tenure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time of the first answer of any node, other than `without`, after a time.
    fn served_after(&self, after: Instant, without: Option<&str>) -> Instant {
        let until = Instant::now() + PATIENCE;
        loop {
            let all = self.all();
            let later = all.iter().filter(|tenure| Some(&*tenure.node) != without && tenure.last > after);
            if let Some(at) = later.map(|tenure| tenure.first.max(after)).min() {
                return at;
            }
            assert!(Instant::now() < until, "no node serves the world: {all:?}");
            std::thread::yield_now();
        }
    }

    /// The node that serves the world now.
    fn node(&self) -> String {
        let now = Instant::now();
        self.served_after(now, None);
        let all = self.all();
        all.iter().max_by_key(|tenure| tenure.last).map(|tenure| tenure.node.clone()).expect("a tenure")
    }

    /// No two nodes served the world at the same time.
    fn check(&self) {
        let all = self.all();
        for (index, one) in all.iter().enumerate() {
            for other in all[index + 1..].iter().filter(|other| other.node != one.node) {
                assert!(
                    one.last <= other.first || other.last <= one.first,
                    "two homes: {one:?} and {other:?}"
                );
            }
        }
    }
}

/// A player at a node, who tries to be in the default world and asks for its channels all the time.
struct Player {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    fn start(node: &str, address: &str, history: &Arc<History>) -> Player {
        let stop = Arc::new(AtomicBool::new(false));
        let (node, address) = (node.to_owned(), address.to_owned());
        let (history, stopped) = (Arc::clone(history), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                while !stopped.load(Ordering::Relaxed) {
                    play(&node, &address, &history, &stopped).await;
                    tokio::task::yield_now().await;
                }
            });
        });
        Player { stop, thread: Some(thread) }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "a player failed");
    }
}

async fn play(node: &str, address: &str, history: &History, stopped: &AtomicBool) {
    let endpoint = format!("tcp://{address}").parse().expect("an address");
    // It stays at this node, and does not go to the one that is named instead.
    let config = SessionConfig { moves_max: 0, ..SessionConfig::server("s", "s") };
    let connecting = Client::connect_with(endpoint, config, Backoff::never());
    let Ok(Ok((client, mut events))) = tokio::time::timeout(4 * ANSWER, connecting).await else {
        return;
    };
    let mut tenure = None;
    while !stopped.load(Ordering::Relaxed) {
        let sent = Instant::now();
        match tokio::time::timeout(ANSWER, client.list_channels(None, Vec::new())).await {
            Ok(Ok(_)) => history.note(node, &mut tenure, sent, Instant::now()),
            // It stands still.
            Err(_) => {}
            Ok(Err(_)) => return,
        }
        while events.try_next().is_some() {}
    }
}

/// A folder with the configuration of nodes.
struct Cluster {
    folder: tempfile::TempDir,
}

struct Node {
    name: String,
    process: Process,
    servers: String,
    /// Further listeners for game servers.
    doors: Vec<String>,
    /// WebSocket listener for players.
    players: String,
    admin: String,
}

impl Cluster {
    fn new(bus: &Bus) -> Cluster {
        Cluster::at(&bus.url)
    }

    fn at(url: &str) -> Cluster {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("secret"), "5a".repeat(32)).expect("written");
        let cluster = Cluster { folder };
        for name in ["n1", "n2", "n3"] {
            cluster.configure(name, url, &format!("node = \"{name}\""));
        }
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a configuration with further lines in its section of the cluster.
    fn configure(&self, name: &str, url: &str, lines: &str) {
        let mut text = format!("[gateway]\nworlds = {:?}\n", &WORLDS[1..]);
        text.push_str("[gateway.auth]\nkind = \"none\"\n");
        text.push_str("[gateway.clients]\naddr = \"127.0.0.1:0\"\ntransport = \"ws\"\n");
        text.push_str("[gateway.servers]\naddr = \"127.0.0.1:0\"\n");
        let _ = writeln!(text, "[cluster]\nname = \"test\"\nnats_url = {url:?}\nreplicas = 1");
        let _ = writeln!(text, "secret_file = {:?}\n{lines}", self.path("secret").display().to_string());
        std::fs::write(self.path(&format!("{name}.toml")), text).expect("written");
    }

    /// `throng cluster ...` with the configuration of a node.
    fn act(&self, node: &str, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.arg("cluster").args(words).arg("-c").arg(self.path(&format!("{node}.toml")));
        let done = command.output().expect("the program runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        if done.status.success() { Ok(text(done.stdout)) } else { Err(text(done.stderr)) }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = up(self.folder.path(), "gateway", name);
        command.arg("-c").arg(self.path(&format!("{name}.toml")));
        command
    }

    fn start(&self, name: &str) -> Node {
        let (process, said) = Process::ready(&mut self.command(name));
        let all = |service: &str, scheme: &str| -> Vec<String> {
            let lines = said.iter().filter_map(|line| line.trim_start().strip_prefix(service));
            let words = lines.flat_map(str::split_whitespace);
            words.filter_map(|each| each.strip_prefix(scheme)).map(str::to_owned).collect()
        };
        let (mut servers, mut admin) = (all("game servers", "tcp://"), all("admin", "http://"));
        let (doors, players) = (servers.split_off(1), all("players", "ws://").remove(0));
        let (name, servers, admin) = (name.to_owned(), servers.remove(0), admin.remove(0));
        Node { name, process, servers, doors, players, admin }
    }

    /// Starts a node that must not start. Returns what it says.
    fn refused(&self, name: &str) -> String {
        let done = self.command(name).output().expect("the program runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success(), "{said}");
        assert!(!String::from_utf8_lossy(&done.stdout).contains("is ready"), "{said}");
        said
    }

    /// Waits until every world has a home, and returns them.
    fn homes(&self) -> Vec<String> {
        self.homes_that(|_| true)
    }

    fn homes_that(&self, fits: impl Fn(&str) -> bool) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = WORLDS.map(|world| self.act("n1", &["where", world]));
            let home = |found: &Result<String, String>| {
                let text = found.as_ref().ok().filter(|text| !text.contains("lost"))?;
                let mut words = text.split_whitespace().skip(1);
                (words.next()? == "serving").then(|| words.next()).flatten().map(str::to_owned)
            };
            let homes: Option<Vec<String>> = found.iter().map(home).collect();
            if let Some(homes) = homes.filter(|homes| homes.iter().all(|home| fits(home))) {
                return homes;
            }
            assert!(Instant::now() < until, "{found:?}");
        }
    }
}

/// Enters a world at a node, and asks for its channels.
fn enter(node: &Node, config: SessionConfig) -> Result<Visitor, ConnectError> {
    enter_at(&node.servers, config)
}

fn enter_at(address: &str, config: SessionConfig) -> Result<Visitor, ConnectError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let endpoint = format!("tcp://{address}").parse().expect("an address");
    let (client, events) = runtime.block_on(async {
        let (client, events) = Client::connect_with(endpoint, config, Backoff::never()).await?;
        client.list_channels(None, Vec::new()).await.expect("it is served");
        Ok::<_, ConnectError>((client, events))
    })?;
    Ok(Visitor { _runtime: runtime, _client: client, _events: events })
}

/// A connection, which ends when this is dropped.
#[derive(Debug)]
struct Visitor {
    _runtime: tokio::runtime::Runtime,
    _client: Client,
    _events: Events,
}

/// A player who logs in over a WebSocket, and then only waits for the end.
fn log_in(node: &Node) -> TcpStream {
    log_in_with(node, &[0x0A, 1, b'p'])
}

/// The same with a body of AUTH.
fn log_in_with(node: &Node, auth: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&node.players).expect("it listens");
    write!(
        stream,
        "GET / HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        node.players
    )
    .expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        answer.push(byte[0]);
    }
    // A masked frame with AUTH.
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let message = [&[0x18, 1, 0x20, 1, 0x2A, length(auth)], auth].concat();
    let packet = [&[0x0A, length(&message)], &message[..]].concat();
    let frame = [b'C', b'H', 0, length(&packet), 0];
    stream.write_all(&[0x82, 0x80 | (length(&packet) + 5), 0, 0, 0, 0]).expect("sent");
    stream.write_all(&[&frame[..], &packet].concat()).expect("sent");
    stream
}

/// Body of AUTH of the player `p` with a login token, and a resume token, which may be empty.
fn auth(login_token: &str, resume_token: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let login = [&[0x0A, 1, b'p', 0x12, length(login_token.as_bytes())], login_token.as_bytes()].concat();
    [&login[..], &[0xA2, 6, length(resume_token)], resume_token].concat()
}

/// The opcode and the payload of the next frame of a WebSocket.
fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).expect("a frame");
    let mut length = usize::from(head[1]);
    if length == 126 {
        let mut long = [0; 2];
        stream.read_exact(&mut long).expect("its length");
        length = usize::from(u16::from_be_bytes(long));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).expect("its payload");
    (head[0] & 15, payload)
}

/// The code and the text with which a WebSocket is closed.
fn farewell(mut stream: TcpStream) -> (u16, String) {
    loop {
        let (opcode, mut payload) = frame(&mut stream);
        if opcode == 8 {
            let code = u16::from_be_bytes([payload[0], payload[1]]);
            return (code, String::from_utf8(payload.split_off(2)).expect("text"));
        }
    }
}

/// The resume token in the answer to a login.
fn resume_token(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let (opcode, payload) = frame(stream);
        assert_ne!(opcode, 8, "it is closed: {payload:?}");
        if let Some(at) = payload.windows(2).position(|tag| tag == [0xA2, 6]) {
            return payload[at + 3..][..usize::from(payload[at + 2])].to_vec();
        }
    }
}

/// The answer to a request that changes something.
fn post(node: &Node, path: &str, token: &str, body: &str) -> (String, serde_json::Value) {
    let mut stream = TcpStream::connect(&node.admin).expect("it listens");
    write!(
        stream,
        "POST {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        node.admin,
        body.len()
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    let answer = serde_json::from_str(body).expect("JSON");
    (head.split_whitespace().nth(1).expect("a status").to_owned(), answer)
}

fn world(name: &str) -> SessionConfig {
    SessionConfig {
        world: Some(name.to_owned()),
        auth_timeout: PATIENCE,
        request_timeout: PATIENCE,
        // Without an identity it cannot resume, so its place is not kept.
        ..SessionConfig::server("", "")
    }
}

#[test]
fn worlds_of_a_class_open_on_request_at_nodes_with_its_settings() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    for (node, channels) in [("n1", 100), ("n2", 200)] {
        let path = cluster.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        text.push_str("[[gateway.classes]]\nname = \"cup\"\nopen = true\ncreate = true\nworld_idle_s = 1\n");
        let _ = writeln!(text, "shards = \"all\"\nconnections_max = 8\nlimits.channels_max = {channels}");
        std::fs::write(&path, text).expect("written");
    }
    let (n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    let status = cluster.act("n1", &["status"]).expect("it answers");
    let differs = status.lines().find(|line| line.starts_with("class cup: other settings on"));
    assert!(differs.is_some_and(|line| line.contains("n1") && line.contains("n2")), "{status}");

    // Each node opens it with its own settings, and others are sent there.
    let mut visitors = Vec::new();
    for (node, other, name) in [(&n1, &n2, "cup-1"), (&n2, &n1, "cup-2")] {
        visitors.push(enter(node, world(name)).expect("it opens"));
        let found = cluster.act("n1", &["where", name]).expect("it is open");
        assert!(found.starts_with(&format!("{name} serving {}", node.name)), "{found}");
        drop(enter(other, world(name)).expect("it is found"));
        let unmoved =
            enter(other, SessionConfig { moves_max: 0, ..world(name) }).expect_err("it is elsewhere");
        assert!(unmoved.to_string().contains(&format!("tcp://{}", node.servers)), "{unmoved}");
    }
    let listed = cluster.act("n1", &["worlds", "--class", "cup"]).expect("it answers");
    assert!(listed.contains("cup-1") && !listed.contains("arena"), "{listed}");
    // Worlds of no open class, and names of no class, look the same.
    for name in ["arena", "nowhere"] {
        let refused = enter(&n1, world(name)).expect_err("it may not");
        assert!(matches!(refused, ConnectError::Closed(CloseReason::Transport)), "{name}: {refused}");
    }
    // They close when no connection is left.
    drop(visitors);
    let until = Instant::now() + PATIENCE;
    for name in ["cup-1", "cup-2"] {
        while cluster.act("n1", &["where", name]).is_ok() {
            assert!(Instant::now() < until, "{name} closes");
        }
    }
    assert_eq!(cluster.homes().len(), WORLDS.len(), "those of `gateway.worlds` stay");
}

#[test]
fn worlds_of_a_class_with_labels_open_at_nodes_that_have_them() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    for (node, labels) in [("n1", "[\"zone=eu\"]"), ("n2", "[\"zone=us\", \"disk=fast\"]")] {
        cluster.configure(node, &bus.url, &format!("node = {node:?}\nlabels = {labels}"));
        let path = cluster.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        for (class, labels) in [("cup", "[\"disk=fast\"]"), ("far", "[\"disk=fast\", \"zone=eu\"]")] {
            let _ = writeln!(text, "[[gateway.classes]]\nname = {class:?}\nopen = true\ncreate = true");
            let _ = writeln!(text, "connections_max = 8\nlabels = {labels}");
        }
        std::fs::write(&path, text).expect("written");
    }
    let (n1, _n2) = (cluster.start("n1"), cluster.start("n2"));
    let mut visitors = Vec::new();
    for number in 0..8 {
        let name = format!("cup-{number}");
        visitors.push(enter(&n1, world(&name)).expect("it opens"));
        let found = cluster.act("n1", &["where", &name]).expect("it is open");
        assert!(found.starts_with(&format!("{name} serving n2")), "{found}");
    }
    let refused = enter(&n1, world("far-1")).expect_err("no node has both labels");
    assert!(matches!(refused, ConnectError::Closed(_)), "{refused}");
}

/// Connections of a kind in a world of a node; `None` if it does not serve the world.
fn inside(node: &Node, world: &str, kind: &str) -> Option<u64> {
    let list = fetch(&node.admin, "/api/v1/worlds").expect("it answers");
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let rows = list["worlds"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["name"] != "_lobby"), "{list}");
    rows.iter().find(|row| row["name"] == world)?[kind].as_u64()
}

#[test]
fn listeners_lead_to_their_world_on_every_node_and_wait_for_its_home() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    for node in ["n1", "n2"] {
        let path = cluster.path(&format!("{node}.toml"));
        let text = std::fs::read_to_string(&path).expect("it is there");
        let door = "[gateway.servers]\nextra = [\"tcp://127.0.0.1:0/hub\"]\n";
        let text = text.replace("[gateway.servers]\n", door);
        std::fs::write(&path, format!("[gateway.limits]\nauth_timeout_ms = 4000\n{text}")).expect("written");
    }
    let (n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    let homes = cluster.homes();
    let [home, other] = if homes[1] == "n1" { [&n1, &n2] } else { [&n2, &n1] };
    let plain = || SessionConfig { world: None, ..world("") };

    let visitor = enter_at(&home.doors[0], plain()).expect("it is here");
    assert_eq!(inside(home, "hub", "servers"), Some(1));
    drop(visitor);
    drop(enter_at(&other.doors[0], plain()).expect("it is sent to the listener of the other node"));
    let unmoved =
        enter_at(&other.doors[0], SessionConfig { moves_max: 0, ..plain() }).expect_err("elsewhere");
    let unmoved = unmoved.to_string();
    assert!(unmoved.contains(&home.doors[0]) && !unmoved.contains(&home.servers), "{unmoved}");
    let unmoved = enter(other, SessionConfig { moves_max: 0, ..plain() }).err().map(|why| why.to_string());
    assert!(unmoved.is_none_or(|why| !why.contains(&home.doors[0])), "they lead to another world");
    // Such a login asks for that world, or for none.
    assert!(enter_at(&home.doors[0], world("hub")).is_ok());
    assert!(enter_at(&home.doors[0], world("arena")).is_err());
    assert!(enter(home, world("hub")).is_err(), "other listeners do not lead there");

    // A home that does not accept the world within 5 s is replaced. The login waits, although
    // that is longer than the time to log in.
    let far = r#"{"epoch":1000000,"home":{"node":"n9","incarnation":1},"state":"assigned","class":"default",
        "class_hash":"h","nonce":1}"#;
    overwrite(&bus, "world.hub", far);
    let until = Instant::now() + PATIENCE;
    while inside(home, "hub", "servers").is_some() {
        assert!(Instant::now() < until, "it gives the world up");
    }
    drop(enter_at(&other.doors[0], plain()).expect("it waits for the next home"));
}

#[test]
fn a_match_gets_a_world_and_tickets_that_every_node_accepts() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    std::fs::write(cluster.path("tokens"), format!("{TOKEN}\n")).expect("written");
    for node in ["n1", "n2"] {
        let path = cluster.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        let tokens = cluster.path("tokens").display().to_string();
        let _ = writeln!(text, "[http]\ntokens_file = {tokens:?}");
        text.push_str("[[gateway.classes]]\nname = \"duel\"\nworld_idle_s = 1\nconnections_max = 8\n");
        std::fs::write(&path, text).expect("written");
    }
    let (n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    let open = |node: &Node, class: &str| {
        let body = format!(r#"{{"class":"{class}","room":"r1","players":["ann"],"servers":["s1","s2"]}}"#);
        post(node, "/api/v1/matches", TOKEN, &body)
    };
    let mut homes = std::collections::BTreeSet::new();
    let until = Instant::now() + PATIENCE;
    // Until both nodes have been the home of one.
    while homes.len() < 2 {
        assert!(Instant::now() < until, "{homes:?}");
        let (status, found) = open(&n1, "duel");
        assert_eq!(status, "200", "{found}");
        let name = found["World"].as_str().expect("a name");
        let address = found["Addresses"]["server"]["tcp"].as_str().expect("an address");
        let home = [&n1, &n2].into_iter().find(|node| address == format!("tcp://{}", node.servers));
        let home = home.expect("one of the nodes");
        if !homes.insert(home.name.clone()) {
            continue;
        }
        let ticket = |server: &str| found["Tickets"]["servers"][server].as_str().expect("a ticket");
        let config = |server: &str, token: &str| {
            let (pit, login_token) = (server.to_owned(), token.to_owned());
            SessionConfig { world: None, pit, login_token, ..world("") }
        };
        let visitors = [(&n1, "s1"), (&n2, "s2")]
            .map(|(node, server)| enter(node, config(server, ticket(server))).expect("the ticket admits it"));
        let place = cluster.act("n1", &["where", name]).expect("it is open");
        assert!(place.starts_with(&format!("{name} serving {}", home.name)), "{place}");
        assert!(enter(&n1, config("s2", ticket("s1"))).is_err(), "the ticket of another");
        assert!(enter(&n1, world(name)).is_err(), "without a ticket");
        drop(visitors);
        // Its record goes with it.
        while cluster.act("n1", &["where", name]).is_ok() {
            assert!(Instant::now() < until, "it closes");
        }
    }
    let (status, why) = open(&n1, "dual");
    assert!(status == "409" && why.to_string().contains("did you mean `duel`?"), "{status} {why}");
}

/// A report of the API of a node.
fn report(node: &Node, path: &str) -> serde_json::Value {
    // With a token, monitoring needs one too.
    let mut stream = TcpStream::connect(&node.admin).expect("it listens");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n", node.admin)
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn a_node_shows_its_cluster_and_says_why_it_opens_no_more_worlds() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    std::fs::write(cluster.path("tokens"), format!("{TOKEN}\n")).expect("written");
    for node in ["n1", "n2"] {
        cluster.configure(node, &bus.url, &format!("node = {node:?}\nworlds_max = 10"));
        let path = cluster.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        let tokens = cluster.path("tokens").display().to_string();
        let _ = writeln!(text, "[http]\ntokens_file = {tokens:?}");
        text.push_str("[[gateway.classes]]\nname = \"cup\"\nopen = true\ncreate = true\nworlds_max = 5\n");
        text.push_str("connections_max = 8\n");
        std::fs::write(&path, text).expect("written");
    }
    let (n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    let homes = cluster.homes();

    let until = Instant::now() + PATIENCE;
    // It hears of the other node a little later than the bus.
    let shown = loop {
        let shown = report(&n1, "/api/v1/cluster");
        let nodes = shown["nodes"].as_array().expect("a list");
        if nodes.len() == 2
            && nodes.iter().all(|node| node["state"] == "up")
            && shown["worlds"]["serving"] == 4
        {
            break shown;
        }
        assert!(Instant::now() < until, "{shown}");
    };
    assert!(shown["cluster"] == "test" && shown["node"] == "n1", "{shown}");
    let begun = shown["event"].as_u64().expect("a number");
    let hub = report(&n1, "/api/v1/cluster/worlds/hub");
    assert_eq!(hub["home"], *homes[1]);
    let home = report(&n1, &format!("/api/v1/cluster/nodes/{}", homes[1]));
    assert_eq!((&hub["addresses"], &home["worlds_max"]), (&home["addresses"], &10.into()));
    assert_eq!(report(&n2, "/api/v1/cluster/worlds?class=cup")["total"], 0);
    for (path, part) in [("worlds/nowhere", "`nowhere`"), ("nodes/n9", "`n9`"), ("events?after=x", "`after`")]
    {
        let why = report(&n1, &format!("/api/v1/cluster/{path}"))["error"].to_string();
        assert!(why.contains(part), "{path}: {why}");
    }

    // Both nodes open worlds of a class at the same time, and no more than it may have.
    let start = std::sync::Barrier::new(8);
    let visitors = std::thread::scope(|scope| {
        let players: Vec<_> = (0..8)
            .map(|number| {
                let (node, start) = (if number % 2 == 0 { &n1 } else { &n2 }, &start);
                scope.spawn(move || {
                    start.wait();
                    enter(node, world(&format!("cup-{number}")))
                })
            })
            .collect();
        players.into_iter().map(|player| player.join().expect("it ends")).collect::<Vec<_>>()
    });
    let inside = visitors.iter().filter(|visitor| visitor.is_ok()).count();
    assert_eq!(inside, 5);
    while report(&n1, "/api/v1/cluster/worlds?class=cup")["total"] != 5 {
        assert!(Instant::now() < until, "it hears of those of the other node");
    }
    let open = |name: &str, class: &str| {
        post(&n1, "/api/v1/worlds", TOKEN, &format!(r#"{{"name":"{name}","class":{class}}}"#))
    };
    let (status, why) = open("cup-9", r#""cup""#);
    assert!(status == "409" && why.to_string().contains("5 worlds of the class `cup`"), "{status} {why}");

    // 9 worlds are open, and there is room for 11 more.
    for number in 0..11 {
        let (status, opened) = open(&format!("x-{number}"), "null");
        let node = opened["node"].as_str().unwrap_or_default();
        assert!(status == "200" && ["n1", "n2"].contains(&node), "{number}: {status} {opened}");
    }
    let (status, why) = open("x-0", r#""cup""#);
    assert!(status == "409" && why.to_string().contains("is open"), "{status} {why}");
    let (status, why) = open("x-11", "null");
    let why = why.to_string();
    assert!(
        status == "503" && why.contains("`cluster.worlds_max`") && why.contains("start another node"),
        "{why}"
    );

    loop {
        let seen = report(&n1, &format!("/api/v1/cluster/events?after={begun}"));
        let events = seen["events"].as_array().expect("a list").clone();
        let served =
            |name: &str| events.iter().any(|event| event["world"] == name && event["state"] == "serving");
        if (0..11).all(|number| served(&format!("x-{number}"))) {
            assert_eq!(seen["missed"], false);
            break;
        }
        assert!(Instant::now() < until, "{seen}");
    }
    let (status, _) = post(&n1, "/api/v1/cluster/drain", TOKEN, r#"{"node":"n2"}"#);
    assert_eq!(status, "200");
    while report(&n1, "/api/v1/cluster/nodes/n2")["state"] != "draining" {
        assert!(Instant::now() < until, "it drains");
    }
    // An open is answered without waiting for a home when all nodes drain.
    assert_eq!(post(&n1, "/api/v1/cluster/drain", TOKEN, r#"{"node":"n1"}"#).0, "200");
    while report(&n1, "/api/v1/cluster/nodes/n1")["state"] != "draining" {
        assert!(Instant::now() < until, "it drains");
    }
    let (status, why) = open("x-12", "null");
    assert!(status == "503" && why.to_string().contains("undrain"), "{status} {why}");
    for node in ["n1", "n2"] {
        let body = format!(r#"{{"node":"{node}"}}"#);
        assert_eq!(post(&n1, "/api/v1/cluster/undrain", TOKEN, &body).0, "200");
    }
    assert_eq!(post(&n1, "/api/v1/cluster/drain", TOKEN, r#"{"node":"n9"}"#).0, "404");

    let close = |name: &str| post(&n1, "/api/v1/worlds/close", TOKEN, &format!(r#"{{"name":"{name}"}}"#)).0;
    assert_eq!(["x-1", "nowhere", "No name", "main"].map(close), ["200", "404", "404", "409"]);
    // Tickets are for worlds of matches.
    let sign = |world: &str| {
        let body = format!(r#"{{"world":"{world}","players":["ann"]}}"#);
        post(&n1, "/api/v1/matches", TOKEN, &body).0
    };
    assert_eq!(["nowhere", "hub", "cup-9"].map(sign), ["404", "409", "404"]);
}

#[test]
fn without_the_bus_opens_and_closes_are_refused_in_time_and_an_open_is_not_made_later() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    std::fs::write(cluster.path("tokens"), format!("{TOKEN}\n")).expect("written");
    let path = cluster.path("n1.toml");
    let mut text = std::fs::read_to_string(&path).expect("it is there");
    let tokens = cluster.path("tokens").display().to_string();
    let _ = writeln!(text, "[http]\ntokens_file = {tokens:?}");
    std::fs::write(&path, text).expect("written");
    let n1 = cluster.start("n1");
    cluster.homes();
    signal(bus.id(), "-STOP");
    let wants = [("/api/v1/worlds", "late"), ("/api/v1/worlds/close", "hub")];
    let answers = std::thread::scope(|scope| {
        let ask = |(path, name)| {
            let node = &n1;
            scope.spawn(move || post(node, path, TOKEN, &format!(r#"{{"name":"{name}"}}"#)))
        };
        wants.map(ask).map(|asked| asked.join().expect("it ends"))
    });
    signal(bus.id(), "-CONT");
    for (status, why) in &answers {
        let why = why["error"].to_string();
        assert!(status == "503" && (why.contains("NATS") || why.contains("directory")), "{status} {why}");
    }
    let until = Instant::now() + PATIENCE;
    while cluster.act("n1", &["where", "hub"]).is_ok() {
        assert!(Instant::now() < until, "the node tries again to close it");
    }
    assert!(cluster.act("n1", &["where", "late"]).is_err(), "nobody waits for it");
}

#[test]
fn a_resume_token_leads_to_the_home_of_its_world_without_another_login() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    std::fs::write(cluster.path("players"), "p secret\n").expect("written");
    for node in ["n1", "n2"] {
        let path = cluster.path(&format!("{node}.toml"));
        let text = std::fs::read_to_string(&path).expect("it is there");
        let players = cluster.path("players").display().to_string();
        let text = text.replace("kind = \"none\"", &format!("kind = \"tokens\"\ntokens_file = {players:?}"));
        std::fs::write(&path, text).expect("written");
    }
    let n1 = cluster.start("n1");
    assert_eq!(cluster.homes()[0], "n1");
    let n2 = cluster.start("n2");
    let mut player = log_in_with(&n1, &auth("secret", b""));
    let token = resume_token(&mut player);
    drop(player);
    // The token is void as a login token.
    let elsewhere = (4013, "world_elsewhere main".to_owned());
    assert_eq!(farewell(log_in_with(&n2, &auth("", &token))), elsewhere);
    let mut back = log_in_with(&n1, &auth("", &token));
    assert!(!resume_token(&mut back).is_empty(), "it is resumed");
    // One of a world that is not open is an ordinary login.
    let void = [&[9; 24][..], b"gone"].concat();
    assert_eq!(farewell(log_in_with(&n2, &auth("secret", &void))), elsewhere);
    // Nor does it contradict the world to which the client was sent.
    let asked = [&auth("secret", &void)[..], &[0xAA, 6, 4], b"main"].concat();
    let mut sent = log_in_with(&n1, &asked);
    assert!(!resume_token(&mut sent).is_empty(), "it is an ordinary login");
    // One of a world that is open does.
    let other = [&[9; 24][..], b"hub"].concat();
    let asked = [&auth("secret", &other)[..], &[0xAA, 6, 4], b"main"].concat();
    assert_eq!(farewell(log_in_with(&n1, &asked)).0, 4011);
}

#[test]
fn players_of_a_queue_go_to_the_world_of_their_match_on_any_node() {
    const QUEUE: &str = r#"{
        "name": "duel", "tick_ms": 50, "assign": "external", "allocator": "n2", "world": {"class": "duel"},
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}]
    }"#;
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let mut matcher = up(cluster.folder.path(), "matcher", "m");
    let (_matcher, said) = Process::ready(matcher.args(["--matcher.addr", "127.0.0.1:0"]));
    let line = said.iter().find(|line| line.trim_start().starts_with("matcher")).expect("its address");
    let matcher = line.split_whitespace().find_map(|word| word.strip_prefix("tcp://")).expect("an address");
    for node in ["n1", "n2"] {
        let path = cluster.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        let _ = writeln!(text, "[gateway.matchmaking]\nmatcher = {matcher:?}\nsrv = {node:?}");
        text.push_str("[[gateway.classes]]\nname = \"duel\"\nconnections_max = 8\n");
        std::fs::write(&path, text).expect("written");
    }
    // The players are at the home of the default world, and the other node opens the worlds.
    let n1 = cluster.start("n1");
    assert_eq!(cluster.homes()[0], "n1");
    let _n2 = cluster.start("n2");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let played = async {
        let endpoint = format!("tcp://{matcher}").parse().expect("an address");
        let (director, _notices) =
            Matcher::connect(endpoint, MatcherConfig::new("director")).await.expect("it listens");
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.expect("a queue");
        let log_in = async |address: &str, name: &str, token: &str| {
            let config = SessionConfig {
                auth_timeout: PATIENCE,
                request_timeout: PATIENCE,
                ..SessionConfig::client(name, token)
            };
            Client::connect(address.parse().expect("an address"), config).await.expect("it enters")
        };
        let mut players = Vec::new();
        for name in ["ann", "bob"] {
            let (client, events) = log_in(&format!("ws://{}", n1.players), name, "").await;
            // The link may still be on its way to the matcher.
            while client.join_queue("duel").await.is_err() {}
            players.push((name, client, events));
        }
        let (mut inside, mut room, mut world) = (Vec::new(), String::new(), String::new());
        for (name, client, mut events) in players {
            let (ready, found) = loop {
                if let Event::Matchmaking { event: MatchmakingEvent::Notice(notice), .. } =
                    events.next().await.expect("it is connected")
                    && let Some(found) = notice.match_world()
                {
                    break (notice, found);
                }
            };
            ready.room_id().clone_into(&mut room);
            found.name.clone_into(&mut world);
            while director.room(&room).await.expect("it is there").roles.iter().all(|role| role.id != name) {}
            client.close().await;
            inside.push(log_in(&found.address, name, &found.ticket).await);
        }
        let place = cluster.act("n1", &["where", &world]).expect("it is open");
        assert!(place.starts_with(&format!("{world} serving")), "{place}");
        // In the world of their match they reach the matcher too.
        for (client, _) in &inside {
            let ask = MatchmakingRequest::new(Method::GET_QUEUE_STATS, Writer::new().str(1, "duel"));
            client.matchmake(ask).await.expect("an answer");
        }
        assert_eq!(director.room(&room).await.expect("it is there").members, 2);
        director.delete_room(&room).await.expect("it was there");
        while cluster.act("n1", &["where", &world]).is_ok() {}
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, played).await.expect("in time") });
}

#[test]
fn the_room_of_a_match_outlives_nodes_and_names_the_home_of_its_world() {
    const QUEUE: &str = r#"{
        "name": "duel", "tick_ms": 50, "assign": "external", "allocator": "n2", "world": {"class": "duel"},
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}]
    }"#;
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let mut matcher = up(cluster.folder.path(), "matcher", "m");
    let (_matcher, said) = Process::ready(matcher.args(["--matcher.addr", "127.0.0.1:0"]));
    let line = said.iter().find(|line| line.trim_start().starts_with("matcher")).expect("its address");
    let matcher = line.split_whitespace().find_map(|word| word.strip_prefix("tcp://")).expect("an address");
    let configure = |node: &str, labels: &str| {
        cluster.configure(node, &bus.url, &format!("node = {node:?}\nlabels = {labels}"));
        let path = cluster.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        let _ = writeln!(text, "[gateway.matchmaking]\nmatcher = {matcher:?}\nsrv = {node:?}");
        text.push_str("[[gateway.classes]]\nname = \"duel\"\nlabels = [\"duels=yes\"]\n");
        std::fs::write(&path, text).expect("written");
    };
    // Players are at n1, n2 is the allocator, and n3 the only node that takes worlds of matches.
    let (takes, takes_not) = ("[\"duels=yes\"]", "[\"duels=no\"]");
    configure("n1", takes_not);
    configure("n2", takes_not);
    configure("n3", takes);
    let mut n1 = cluster.start("n1");
    assert_eq!(cluster.homes()[0], "n1");
    let (mut n2, mut n3) = (cluster.start("n2"), cluster.start("n3"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let endpoint = format!("tcp://{matcher}").parse().expect("an address");
    let config = MatcherConfig { call_timeout: PATIENCE, ..MatcherConfig::new("director") };
    let (director, _notices) = runtime.block_on(Matcher::connect(endpoint, config)).expect("it listens");
    let call = |method, body| runtime.block_on(director.call(method, body));
    call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).expect("a queue");
    let played = async {
        let mut players = Vec::new();
        for name in ["ann", "bob", "cid"] {
            let config = SessionConfig {
                auth_timeout: PATIENCE,
                request_timeout: PATIENCE,
                ..SessionConfig::client(name, "")
            };
            let endpoint = format!("ws://{}", n1.players).parse().expect("an address");
            players.push(Client::connect(endpoint, config).await.expect("it enters"));
        }
        for (client, _) in &players[..2] {
            // The link may still be on its way to the matcher.
            while client.join_queue("duel").await.is_err() {}
        }
        let mode = Writer::new().nested(2, Writer::new().str(1, "2v2"));
        let join = MatchmakingRequest::new(Method::ROLE_JOIN_RANDOM_ROOM, mode);
        players[2].0.matchmake(join).await.expect("a room");
        let room = loop {
            if let Event::Matchmaking { event: MatchmakingEvent::Notice(notice), .. } =
                players[0].1.next().await.expect("it is connected")
                && notice.match_world().is_some()
            {
                break notice.room_id().to_owned();
            }
        };
        while director.room(&room).await.expect("it is there").members < 2 {}
        (room, players)
    };
    let (room, players) = runtime
        .block_on(async { tokio::time::timeout(PATIENCE, played).await })
        .expect("the match has a world in time");
    let shown = || runtime.block_on(director.room(&room)).expect("the room is there");
    let world: String = serde_json::from_str(&shown().data["World"]).expect("its name");
    let names = |node: &Node| shown().data["connection"].contains(&node.players);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
        }
    };
    let is_home = |node: &str| {
        let place = cluster.act("n2", &["where", &world]).unwrap_or_default();
        place.starts_with(&format!("{world} serving {node}"))
    };
    assert!(is_home("n3") && names(&n3));

    // The node where the players asked stops: they keep their places in the match, and no others.
    signal(n1.process.0.id(), "-TERM");
    assert!(n1.process.0.wait().expect("it ends").success());
    drop(players);
    let cid = || call(Method::GET_ROLE, Writer::new().str(1, "cid"));
    until("the other player is gone", &|| cid().is_err());
    assert_eq!(shown().members, 2);

    // The allocator starts again, and follows the world when that moves.
    n2.process.kill();
    configure("n2", takes);
    let n2 = cluster.start("n2");
    signal(n3.process.0.id(), "-TERM");
    assert!(n3.process.0.wait().expect("it ends").success());
    until("the world moves", &|| is_home("n2"));
    until("the room names its home", &|| names(&n2));
    assert_eq!(shown().members, 2);

    // The room ends while the allocator is away, which closes the world when it is back.
    let mut n2 = n2;
    n2.process.kill();
    runtime.block_on(director.delete_room(&room)).expect("it was there");
    until("the room ends", &|| runtime.block_on(director.room(&room)).is_err());
    let _n2 = cluster.start("n2");
    until("the world closes", &|| cluster.act("n2", &["where", &world]).is_err());
}

#[test]
fn records_that_cannot_be_read_and_names_that_do_not_exist_are_named() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let n1 = cluster.start("n1");
    cluster.homes();
    for words in [["undrain", "n2"], ["drain", "n2"]] {
        let why = cluster.act("n1", &words).expect_err("it does not exist");
        assert!(why.contains("no node `n2`") && why.contains("did you mean `n1`?"), "{why}");
    }
    let why = cluster.act("n1", &["close", "main"]).expect_err("it is the default world");
    assert!(why.contains("default world"), "{why}");
    // One that is damaged, and one with an epoch that has no successor.
    let last = r#"{"epoch":18446744073709551615,"home":{"node":"n1","incarnation":1},"state":"serving",
        "class":"default","class_hash":"h","nonce":1}"#;
    overwrite(&bus, "world.duel", "{}");
    overwrite(&bus, "world.arena", last);
    for (name, part) in [("duel", "missing field"), ("arena", "limit of epochs")] {
        let why = cluster.act("n1", &["close", name]).expect_err("it cannot be read");
        let way = format!("`nats kv del throng-test-dir world.{name}`, then `throng world open {name}`");
        assert!(why.contains(&way) && why.contains(part), "{why}");
    }
    let until = Instant::now() + PATIENCE;
    while !fetch(&n1.admin, "/metrics")
        .expect("it answers")
        .contains("\nthrong_cluster_records_unreadable 2\n")
    {
        assert!(Instant::now() < until, "it counts them");
    }
    let status = cluster.act("n1", &["status"]).expect("it answers");
    assert!(status.contains("world.duel") && status.contains("world.arena"), "{status}");
    assert!(inside(&n1, "duel", "servers").is_none() && inside(&n1, "hub", "servers").is_some());
}

fn is_ready(node: &Node) -> bool {
    fetch(&node.admin, "/health/ready").is_some()
}

#[test]
fn nodes_share_worlds_and_give_them_away() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    let said = cluster.refused("n1");
    assert!(
        said.contains("there is no bucket `throng-test-dir`") && said.contains("throng cluster init"),
        "{said}"
    );
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    cluster.act("n1", &["init"]).expect("it is there");
    let checked = cluster.act("n1", &["check"]).expect("all is well");
    assert!(checked.contains("all checks passed") && checked.contains("1 of 1 replicas"), "{checked}");

    let history = Arc::new(History::default());
    let n1 = cluster.start("n1");
    let _first = Player::start("n1", &n1.servers, &history);
    assert_eq!(cluster.homes(), ["n1"; 4]);
    assert_eq!(history.node(), "n1");
    let n2 = cluster.start("n2");
    let _second = Player::start("n2", &n2.servers, &history);
    assert!(is_ready(&n1) && is_ready(&n2));

    assert_eq!(farewell(log_in(&n2)), (4013, "world_elsewhere main".to_owned()));
    let player = log_in(&n1);
    let until = Instant::now() + PATIENCE;
    while inside(&n1, "main", "clients") != Some(1) {
        assert!(Instant::now() < until, "it enters");
    }

    // The home stops and gives its worlds away, also to a node that has just come, and leaves.
    let stopped = Instant::now();
    signal(n1.process.0.id(), "-TERM");
    assert_eq!(cluster.homes_that(|home| home == "n2"), ["n2"; 4]);
    println!(
        "drained: served elsewhere after {} ms",
        (history.served_after(stopped, Some("n1")) - stopped).as_millis()
    );
    assert_eq!(farewell(player), (4014, "world_moving main".to_owned()));
    let mut n1 = n1;
    assert!(n1.process.0.wait().expect("it ends").success());
    let status = cluster.act("n2", &["status"]).expect("it answers");
    assert!(status.contains("left") && status.contains("4 serving"), "{status}");

    // The home is killed and started again in its folder.
    let mut n2 = n2;
    n2.process.kill();
    let killed = Instant::now();
    drop(_second);
    let n2 = cluster.start("n2");
    let _second = Player::start("n2", &n2.servers, &history);
    let back = history.served_after(killed, None) - killed;
    println!("killed and started again: served after {} ms", back.as_millis());

    // A second process of the name, a world that closes, another secret.
    let said = cluster.refused("n2");
    assert!(said.contains("another process") || said.contains("node's folder"), "{said}");
    assert!(cluster.act("n2", &["close", "duel"]).is_ok());
    let until = Instant::now() + PATIENCE;
    while cluster.act("n2", &["where", "duel"]).is_ok() {
        assert!(Instant::now() < until, "it closes");
    }
    assert!(cluster.act("n2", &["close", "nowhere"]).is_err());
    std::fs::write(cluster.path("secret"), "5b".repeat(32)).expect("written");
    let said = cluster.refused("n3");
    assert!(said.contains("cluster.secret_file") && said.contains("another key"), "{said}");
    history.check();
}

/// Lengths of the faults.
struct Plan {
    /// Times for which the home stands still.
    stops: &'static [u64],
    /// Times for which the bus is away.
    away: &'static [u64],
    /// Homes that are killed and stay away until their worlds are served elsewhere.
    kills: u32,
    /// Times are compared with their limits.
    is_timed: bool,
}

#[allow(clippy::disallowed_methods, reason = "settings of a test run")]
fn plan() -> Plan {
    match std::env::var("THRONG_CLUSTER_FAULTS").as_deref() {
        Ok("long") => Plan { stops: &[8, 13, 40], away: &[5, 20], kills: 3, is_timed: true },
        _ => Plan { stops: &[1], away: &[1], kills: 0, is_timed: false },
    }
}

/// Three nodes with a player at each.
struct Nodes<'a> {
    cluster: &'a Cluster,
    history: Arc<History>,
    nodes: Vec<(Node, Player)>,
}

impl Nodes<'_> {
    fn start(&mut self, name: &str) {
        let node = self.cluster.start(name);
        let player = Player::start(name, &node.servers, &self.history);
        self.nodes.push((node, player));
    }

    /// The home of the default world.
    fn home(&mut self) -> &mut Node {
        let name = self.history.node();
        let found = self.nodes.iter_mut().find(|(node, _)| node.name == name);
        &mut found.expect("one of the nodes").0
    }

    /// Kills the home. Returns its name.
    fn kill_home(&mut self) -> String {
        let home = self.home();
        home.process.kill();
        let name = home.name.clone();
        self.nodes.retain(|(node, _)| node.name != name);
        name
    }
}

fn pass(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn back(plan: &Plan, what: &str, took: Duration, limit: Duration) {
    println!("{what}: served after {} ms", took.as_millis());
    assert!(!plan.is_timed || took <= limit, "{what}: {took:?}");
}

#[test]
fn no_two_nodes_serve_a_world_while_nodes_and_the_bus_fail() {
    let Some(mut bus) = bus() else { return };
    let (cluster, plan) = (Cluster::new(&bus), plan());
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let mut nodes = Nodes { cluster: &cluster, history: Arc::default(), nodes: Vec::new() };
    for name in ["n1", "n2", "n3"] {
        nodes.start(name);
    }
    let history = Arc::clone(&nodes.history);
    history.node();

    for seconds in plan.stops {
        let (home, id) = (history.node(), nodes.home().process.0.id());
        let stopped = Instant::now();
        signal(id, "-STOP");
        if Duration::from_secs(*seconds) > LOST {
            let elsewhere = history.served_after(stopped, Some(&home)) - stopped;
            back(&plan, &format!("stopped for {seconds} s, served elsewhere"), elsewhere, LOST);
        }
        pass((stopped + Duration::from_secs(*seconds)).saturating_duration_since(Instant::now()));
        let woken = Instant::now();
        signal(id, "-CONT");
        back(
            &plan,
            &format!("stopped for {seconds} s"),
            history.served_after(woken, None) - woken,
            RESTARTED,
        );
        let now = history.node();
        assert!(*seconds > 11 || now == home, "it goes on: {home}, now {now}");
        history.check();
    }

    for seconds in plan.away {
        let home = history.node();
        bus.kill();
        pass(Duration::from_secs(*seconds));
        bus.start_again();
        let returned = Instant::now();
        back(
            &plan,
            &format!("the bus away for {seconds} s"),
            history.served_after(returned, None) - returned,
            RESTARTED,
        );
        assert_eq!(history.node(), home, "no world is restarted");
        history.check();
    }

    for _ in 0..plan.kills {
        history.node();
        let killed = Instant::now();
        let name = nodes.kill_home();
        let took = history.served_after(killed, Some(&name)) - killed;
        back(&plan, "killed for good", took, LOST);
        nodes.start(&name);
        history.check();
    }

    let homes = cluster.homes();
    println!("worlds at {}", homes.join(", "));
    drop(nodes);
    history.check();
    println!("{} tenures, none of which overlaps another's", history.all().len());
}

/// Users of a bus, each with further settings.
fn users(users: &[(String, &str)]) -> String {
    let each = |(name, more): &(String, &str)| format!("{{ user: \"{name}\", password: \"p\"\n{more} }}\n");
    format!("authorization {{ users: [\n{}] }}\n", users.iter().map(each).collect::<String>())
}

fn login(name: &str, bus: &Bus) -> String {
    format!("nats://{name}:p@{}", bus.url)
}

#[test]
fn the_printed_permissions_are_what_a_node_and_a_tool_need_and_no_more() {
    let cluster = Cluster::at("127.0.0.1:4222");
    let [n1, n2] = ["n1", "n2"]
        .map(|node| cluster.act(node, &["init", "--print-permissions"]).expect("they depend on no server"));
    // Accounts that lack one line each.
    let lines: Vec<&str> = n1.lines().map(str::trim).filter(|line| line.starts_with('"')).collect();
    let without: Vec<(String, String)> = lines
        .iter()
        .enumerate()
        .map(|(index, line)| (format!("without-{index}"), n1.replace(line, "\"throng.none\"")))
        .collect();
    let mut accounts = vec![("admin".to_owned(), ""), ("n1".to_owned(), &n1), ("n2".to_owned(), &n2)];
    accounts.extend(without.iter().map(|(name, permissions)| (name.clone(), permissions.as_str())));
    let Some(bus) = bus_with(&users(&accounts)) else { return };
    for (file, account, node) in [("admin", "admin", "n1"), ("n1", "n1", "n1"), ("n2", "n2", "n2")] {
        cluster.configure(file, &login(account, &bus), &format!("node = \"{node}\""));
    }
    let why = cluster.act("n1", &["init"]).expect_err("a node makes no buckets");
    assert!(why.contains("STREAM.CREATE") && why.contains("--print-permissions"), "{why}");
    cluster.act("admin", &["init"]).expect("it makes the bucket");

    let (mut n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    cluster.homes();
    assert!(is_ready(&n1) && is_ready(&n2));
    let checked = cluster.act("n2", &["check"]).expect("all is well");
    assert!(checked.contains("all permissions are there"), "{checked}");
    for words in [&["status"][..], &["worlds"], &["where", "hub"], &["undrain", "n1"]] {
        cluster.act("n2", words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
    }
    let left = cluster.act("n2", &["drain", "n1", "--wait"]).expect("it has no players");
    assert_eq!(left, "n1 has left\n");
    assert!(n1.process.0.wait().expect("it ends").success());
    assert_eq!(cluster.homes(), ["n2"; 4]);
    let why = cluster.act("n2", &["drain", "n2", "--wait", "100ms"]).expect_err("no other node has room");
    assert!(why.contains("n2 still has worlds") && why.contains("undrain n2"), "{why}");
    cluster.act("n2", &["undrain", "n2"]).expect("it goes on");
    cluster.act("n2", &["close", "duel"]).expect("it closes");

    // Each line is needed, and what it permits is named where it is missing.
    for ((account, _), line) in without.iter().zip(&lines) {
        cluster.configure("n3", &login(account, &bus), "node = \"n1\"");
        let why = cluster.act("n3", &["check"]).expect_err(line);
        let subject = line.trim_matches('"').trim_end_matches('>');
        assert!(why.contains(subject) && why.contains("--print-permissions"), "{line}: {why}");
    }
    let said = cluster.refused("n3");
    assert!(said.contains("_INBOX") && said.contains("--print-permissions"), "{said}");
}

/// Writes a record of the directory, over any other.
fn overwrite(bus: &Bus, key: &str, value: &str) {
    crate::bus::run(async {
        let client = async_nats::connect(&bus.url).await.expect("a bus");
        let store =
            async_nats::jetstream::new(client).get_key_value("throng-test-dir").await.expect("a bucket");
        store.put(key, value.to_owned().into()).await.expect("written");
    });
}

#[test]
fn what_a_node_cannot_run_with_is_named_before_it_is_ready() {
    let cluster = Cluster::at("127.0.0.1:1");
    let class = |lines: &str| format!("node = \"n3\"\n[[gateway.classes]]\n{lines}");
    let refused = |cluster: &Cluster, url: &str, lines: &str, parts: &[&str]| {
        cluster.configure("n3", url, lines);
        let said = cluster.refused("n3");
        assert!(parts.iter().all(|part| said.contains(part)), "{lines}: {said}");
    };
    for (lines, parts) in [
        ("node = \"N_3\"", ["cluster.node", "lower-case letters"]),
        (&class("name = \"cup\"\nlimits.channels_max = \"many\""), ["channels_max", "many"]),
        (&class("name = \"cup\"\nlimit.channels_max = 7"), ["`gateway.classes.limit`", "throng world class"]),
        (&class("name = \"default\""), ["`default`", "another name"]),
        ("node = \"n3\"", ["cannot connect to NATS", "is nats-server running there?"]),
    ] {
        refused(&cluster, "127.0.0.1:1", lines, &parts);
    }

    // An account without JetStream, and one without room.
    let accounts = "accounts { none { users [{ user: none, password: p }] }
        small { jetstream { max_file: 1M }, users [{ user: small, password: p }] } }";
    let Some(bus) = bus_with(accounts) else { return };
    refused(&cluster, &login("none", &bus), "node = \"n3\"", &["has no JetStream", "--jetstream"]);
    let why = cluster.act("n3", &["init"]).expect_err("no JetStream");
    assert!(why.contains("has no JetStream") && why.contains("--jetstream"), "{why}");
    cluster.configure("n3", &login("small", &bus), "node = \"n3\"");
    let why = cluster.act("n3", &["init"]).expect_err("no room");
    assert!(why.contains("no room") && why.contains("account's limit"), "{why}");
    drop(bus);
    let Some(bus) = bus_with("jetstream { max_file_store: 1M }") else { return };
    cluster.configure("n3", &bus.url, "node = \"n3\"");
    let why = cluster.act("n3", &["init"]).expect_err("no room");
    assert!(why.contains("no room") && why.contains("max_file_store"), "{why}");
    drop(bus);

    // A bucket of a later format, and a node on another machine.
    let Some(bus) = bus_with("") else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let far = r#"{"incarnation":1,"nonce":1,"state":"up","release":"0","folder":"f","boot":"far","worlds_max":1,
        "free_worlds":0}"#;
    overwrite(&bus, "node.far", far);
    let said = cluster.refused("n1");
    assert!(said.contains("127.0.0.1") && said.contains("`cluster.advertise`"), "{said}");
    overwrite(&bus, "cluster", r#"{"format":2,"name":"test","key_id":"k"}"#);
    let said = cluster.refused("n1");
    assert!(said.contains("format 2") && said.contains("use a release"), "{said}");
}

#[test]
fn a_process_without_a_cluster_has_no_thread_and_no_metric_of_one() {
    let threads = |process: &Process| -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0.id())).expect("it runs");
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.expect("a thread").path().join("comm")).unwrap_or_default()
        };
        tasks.map(|task| name(task).trim().to_owned()).collect()
    };
    let admin = |said: &[String]| {
        let line = said.iter().find_map(|line| line.trim_start().strip_prefix("admin")).expect("a line");
        let admin = line.split_whitespace().find_map(|each| each.strip_prefix("http://"));
        admin.expect("an address").to_owned()
    };
    let metrics = |said: &[String]| fetch(&admin(said), "/metrics").expect("it answers");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut alone = up(folder.path(), "gateway", "data");
    alone.args(["--gateway.clients.addr", "127.0.0.1:0", "--gateway.servers.addr", "127.0.0.1:0"]);
    let (process, said) = Process::ready(&mut alone);
    let found = threads(&process);
    assert!(!found.is_empty() && !found.contains(&"cluster".to_owned()), "{found:?}");
    assert!(!metrics(&said).contains("throng_cluster_"));
    let admin = admin(&said);
    assert!(fetch(&admin, "/api/v1/worlds").is_some() && fetch(&admin, "/api/v1/cluster").is_none());
    drop(process);
    // A node has both.
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let (process, said) = Process::ready(&mut cluster.command("n1"));
    assert!(threads(&process).contains(&"cluster".to_owned()));
    assert!(metrics(&said).contains("throng_cluster_lease_age_seconds"));
}

#[test]
fn a_trial_cluster_has_a_bus_of_its_own_and_takes_further_nodes() {
    if bus().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = ["--gateway.clients.addr", "127.0.0.1:0", "--gateway.servers.addr", "127.0.0.1:0"];
    let mut command = up(folder.path(), "gateway", "data");
    let (_first, said) = Process::ready(command.args(first).arg("--cluster-dev"));
    let line = said.iter().find(|line| line.starts_with("another node")).expect("it says how to go on");
    let place = line.split_whitespace().skip_while(|word| *word != "--cluster-dev").nth(1).expect("a folder");
    let admin = |said: &[String]| -> String {
        let words = said.iter().flat_map(|line| line.split_whitespace());
        words.filter_map(|word| word.strip_prefix("http://")).next().expect("an address").to_owned()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let (_second, later) = Process::ready(command.args(["up", "--cluster-dev", place, "--node", "n2"]));
    let until = Instant::now() + PATIENCE;
    for said in [&said, &later] {
        let both = || {
            let shown = fetch(&admin(said), "/api/v1/cluster").unwrap_or_default();
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap_or_default();
            shown["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2) && shown["worlds"]["serving"] == 1
        };
        while !both() {
            assert!(Instant::now() < until, "they share the world");
        }
    }
    let nameless = Command::new(env!("CARGO_BIN_EXE_throng")).args(["up", "--cluster-dev", place]).output();
    let why = String::from_utf8_lossy(&nameless.expect("the program runs").stderr).into_owned();
    assert!(why.contains("--node NAME"), "{why}");
}

#[test]
fn a_bus_with_too_few_servers_and_a_bucket_of_others_are_refused() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    let text = std::fs::read_to_string(cluster.path("n1.toml")).expect("it is there");
    std::fs::write(cluster.path("n3.toml"), text.replace("replicas = 1", "replicas = 3")).expect("written");
    let why = cluster.act("n3", &["init"]).expect_err("one server");
    assert!(why.contains("cluster.replicas = 1"), "{why}");
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    let why = cluster.refused("n3");
    assert!(why.contains("1 replicas") && why.contains("`cluster.replicas` is 3"), "{why}");
    cluster.configure("n2", &bus.url, "node = \"n2\"\nadvertise = [\"client=tcp://0.0.0.0:12108\"]");
    let why = cluster.refused("n2");
    assert!(why.contains("`cluster.advertise`") && why.contains("HOST:PORT"), "{why}");
}
