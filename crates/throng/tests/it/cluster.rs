//! Nodes as processes of their own on a real bus: they share worlds, give them away, and never
//! serve one at the same time.
#![cfg(feature = "nats")]
#![allow(clippy::print_stdout, reason = "the times are results of a long run")]

mod faults;
mod matches;
mod refusals;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use throng_client::{Backoff, Client, CloseReason, ConnectError, Events, SessionConfig};

use crate::bus::{Bus, bus};
use crate::nats::signal;
use crate::process::{Process, fetch, up};

/// Far beyond what a step needs, on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(300);
/// Worlds of every cluster, the default one first.
const WORLDS: [&str; 4] = ["main", "hub", "arena", "duel"];
/// Token of the admin listeners that have one.
const TOKEN: &str = "a-token-of-the-operator";

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

    /// The same with its bucket.
    fn ready(bus: &Bus) -> Cluster {
        let cluster = Cluster::new(bus);
        cluster.act("n1", &["init"]).expect("it makes the bucket");
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

    /// Changes the configuration of a node.
    fn reconfigure(&self, node: &str, change: impl FnOnce(&mut String)) {
        let path = self.path(&format!("{node}.toml"));
        let mut text = std::fs::read_to_string(&path).expect("it is there");
        change(&mut text);
        std::fs::write(&path, text).expect("written");
    }

    /// Adds sections to the configuration of a node.
    fn add(&self, node: &str, sections: &str) {
        self.reconfigure(node, |text| text.push_str(sections));
    }

    /// Has a node's admin listener ask for the operator's token.
    fn admit_operator(&self, node: &str) {
        let tokens = self.path("tokens");
        std::fs::write(&tokens, format!("{TOKEN}\n")).expect("written");
        self.add(node, &format!("[http]\ntokens_file = {:?}\n", tokens.display().to_string()));
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
    let cluster = Cluster::ready(&bus);
    for (node, channels) in [("n1", 100), ("n2", 200)] {
        cluster.add(
            node,
            &format!(
                "[[gateway.classes]]\nname = \"cup\"\nopen = true\ncreate = true\nworld_idle_s = 1\n\
                 shards = \"all\"\nconnections_max = 8\nlimits.channels_max = {channels}\n"
            ),
        );
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
    let cluster = Cluster::ready(&bus);
    for (node, labels) in [("n1", "[\"zone=eu\"]"), ("n2", "[\"zone=us\", \"disk=fast\"]")] {
        cluster.configure(node, &bus.url, &format!("node = {node:?}\nlabels = {labels}"));
        for (class, labels) in [("cup", "[\"disk=fast\"]"), ("far", "[\"disk=fast\", \"zone=eu\"]")] {
            let class = format!("[[gateway.classes]]\nname = {class:?}\nopen = true\ncreate = true");
            cluster.add(node, &format!("{class}\nconnections_max = 8\nlabels = {labels}\n"));
        }
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
    let cluster = Cluster::ready(&bus);
    for node in ["n1", "n2"] {
        cluster.reconfigure(node, |text| {
            let door = "[gateway.servers]\nextra = [\"tcp://127.0.0.1:0/hub\"]\n";
            *text = text.replace("[gateway.servers]\n", door);
            text.insert_str(0, "[gateway.limits]\nauth_timeout_ms = 4000\n");
        });
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
    let cluster = Cluster::ready(&bus);
    for node in ["n1", "n2"] {
        cluster.configure(node, &bus.url, &format!("node = {node:?}\nworlds_max = 10"));
        cluster.admit_operator(node);
        let class = "[[gateway.classes]]\nname = \"cup\"\nopen = true\ncreate = true\nworlds_max = 5\n";
        cluster.add(node, &format!("{class}connections_max = 8\n"));
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
    let cluster = Cluster::ready(&bus);
    cluster.admit_operator("n1");
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
    let cluster = Cluster::ready(&bus);
    std::fs::write(cluster.path("players"), "p secret\n").expect("written");
    for node in ["n1", "n2"] {
        let players = cluster.path("players").display().to_string();
        let kind = format!("kind = \"tokens\"\ntokens_file = {players:?}");
        cluster.reconfigure(node, |text| *text = text.replace("kind = \"none\"", &kind));
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

fn is_ready(node: &Node) -> bool {
    fetch(&node.admin, "/health/ready").is_some()
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
    let cluster = Cluster::ready(&bus);
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
