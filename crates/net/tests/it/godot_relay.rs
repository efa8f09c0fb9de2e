//! Clients of Godot 3 that talk to each other through the relay example. Without `godot3-server`
//! the tests say so and pass.

use crate::{peers, relay};

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use relay::Relay;
use throng_net::enet::{Config, Event, RangeCoder, Server, ServerOptions};

/// Far beyond what any step needs; reached only when a test fails. The scripts give up before.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn remote_procedure_calls_pass_through_the_relay() {
    if !has_godot() {
        return peers::skip("godot3-server");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/godot/rpc.gd");
    let [answered, asked] = relayed(Relay::config, &script, ["answer", "ask"]);
    assert_eq!(asked, ["came", "hello everybody from me", "done"]);
    assert_eq!(answered, ["came", "hello everybody from them", "went"]);
}

#[test]
fn packets_of_every_kind_pass_through_the_relay() {
    if !has_godot() {
        return peers::skip("godot3-server");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../enet/tests/it/peer/godot.gd");
    let config = |seed| Config { compressor: Some(Box::new(RangeCoder::new())), ..Relay::config(seed) };
    let [answered, asked] = relayed(config, &script, ["wait", "call"]);
    assert!(asked.contains(&"joined client".to_owned()), "{asked:?}");
    assert_eq!(asked.iter().filter(|line| line.starts_with("echo")).count(), 9, "{asked:?}");
    assert!(answered.contains(&"left client".to_owned()), "{answered:?}");
}

/// Runs a relay for two clients, one after the other, until both have left; what each has said.
fn relayed(config: impl FnMut(u128) -> Config, script: &Path, verbs: [&str; 2]) -> [Vec<String>; 2] {
    let addr = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::start(addr, &ServerOptions::default(), config).unwrap();
    let mut relay = Relay::default();
    let port = server.addr().port().to_string();
    let started = Instant::now();
    let mut clients = Vec::new();
    let mut left = 0;
    while left < verbs.len() {
        assert!(started.elapsed() < PATIENCE, "{} are there, {left} have left", relay.len());
        if clients.len() < verbs.len() && relay.len() == clients.len() {
            clients.push(godot(script, &[verbs[clients.len()], &port, "1"]));
        }
        while let Some((peer, event)) = server.poll_event() {
            left += usize::from(matches!(event, Event::Disconnected { .. }));
            relay.handle(&mut server, peer, event);
        }
        server.flush();
        // The relay's tick.
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let mut lines = clients.into_iter().map(|mut client| {
        let mut text = String::new();
        client.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(client.0.wait().unwrap().success(), "{text}");
        // The engine says other things.
        text.lines().filter_map(|line| line.strip_prefix("- ").map(str::to_owned)).collect()
    });
    [lines.next().unwrap(), lines.next().unwrap()]
}

/// Ends with the test, however that ends.
struct Godot(Child);

impl Drop for Godot {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn godot(script: &Path, words: &[&str]) -> Godot {
    let mut command = Command::new("godot3-server");
    // It writes a log into the folder that it runs in.
    command.arg("-s").arg(script).arg("--").args(words).current_dir(env!("CARGO_TARGET_TMPDIR"));
    Godot(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

fn has_godot() -> bool {
    let mut probe = Command::new("godot3-server");
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
