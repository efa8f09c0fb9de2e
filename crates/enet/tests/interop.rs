//! Throng and the C library ENet over loopback, in both directions and with every combination of checksum and
//! compression. The other side is `peer/peer.c`, compiled here; without the library's headers the tests say so and pass.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    reason = "a test that drives the core with a real socket and clock"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant as Clock};

use throng_enet::{Config, Delivery, Event, Host, Lane, PeerId, RangeCoder, Reason};
use throng_stdx::Instant;

const COMBINATIONS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn our_client_talks_to_their_server() {
    let Some(program) = &*PEER else { return };
    for (checksum, coder) in COMBINATIONS {
        let mut their = Peer::start(program, &["serve", "5", word(checksum), word(coder)]);
        let port = their.port();
        let mut our = Ours::new(config(checksum, coder));
        let peer = our.host.connect(our.now(), port, 255, 0xC0FFEE).expect("there is room");
        our.wait_connected(peer);
        assert_eq!(our.host.peer(peer).map(|info| info.lanes), Some(5), "the server allows five lanes");
        our.exchange(peer, coder);
        our.host.disconnect(peer, 1234);
        our.wait(|event| matches!(event, Event::Disconnected { data: 0, reason: Reason::Local, .. }));
        assert_eq!(their.lines(), ["connected 12648430 lanes 5", "disconnected 1234"]);
    }
}

#[test]
fn their_server_sends_us_away() {
    let Some(program) = &*PEER else { return };
    let mut their = Peer::start(program, &["serve", "255", "0", "0"]);
    let port = their.port();
    let mut our = Ours::new(config(false, false));
    let peer = our.host.connect(our.now(), port, 255, 1).expect("there is room");
    our.wait_connected(peer);
    our.host.send(peer, Lane(254), &b"bye"[..], Delivery::Reliable).expect("the lane exists");
    our.wait(|event| matches!(event, Event::Disconnected { data: 4321, reason: Reason::Remote, .. }));
    // They learn of the end from our acknowledgement.
    assert_eq!(their.lines(), ["connected 1 lanes 255", "disconnected 0"]);
}

#[test]
fn their_client_talks_to_our_server() {
    let Some(program) = &*PEER else { return };
    for (checksum, coder) in COMBINATIONS {
        let mut our = Ours::new(Config { lanes_max: 6, ..config(checksum, coder) });
        let port = our.address().port().to_string();
        let mut their = Peer::start(program, &["connect", &port, "8", word(checksum), word(coder)]);
        let mut peer = None;
        our.wait(|event| match event {
            Event::Connected { peer: found, data: 99 } => {
                peer = Some(*found);
                true
            }
            _ => false,
        });
        let peer = peer.expect("it has connected");
        our.echo_until_disconnected(peer, 77);
        let mut lines = their.lines();
        assert_eq!(
            (lines.remove(0), lines.pop()),
            ("connected lanes 6".into(), Some("disconnected 0".into()))
        );
        lines.sort();
        let names = [
            "fragmented",
            "megabyte",
            "promoted",
            "reliable",
            "unreliable",
            "unreliable-fragmented",
            "unsequenced",
        ];
        assert_eq!(lines, names.map(|name| format!("echo {name} intact lane right")));
        assert_eq!(our.host.stats().dropped_malformed, 0);
        our.host.check_invariants();
    }
}

#[test]
fn a_stopped_server_is_noticed() {
    let Some(program) = &*PEER else { return };
    let mut their = Peer::start(program, &["serve", "1", "0", "0"]);
    let port = their.port();
    let mut our = Ours::new(config(false, false));
    let peer = our.host.connect(our.now(), port, 1, 0).expect("there is room");
    our.wait_connected(peer);
    our.host.set_ping_interval(peer, Duration::from_millis(50));
    our.host.set_timeout(peer, 4, Duration::from_millis(300), Duration::from_secs(2));
    their.child.kill().expect("it runs");
    our.wait(|event| matches!(event, Event::Disconnected { reason: Reason::Timeout, .. }));
}

#[test]
fn a_mismatched_checksum_means_silence() {
    let Some(program) = &*PEER else { return };
    let mut their = Peer::start(program, &["serve", "1", "1", "0"]);
    let port = their.port();
    let mut our = Ours::new(config(false, false));
    our.host.connect(our.now(), port, 1, 0).expect("there is room");
    let start = Clock::now();
    while start.elapsed() < Duration::from_millis(300) {
        our.turn();
        assert_eq!(our.host.poll_event(), None);
    }
    assert_eq!(our.host.stats().datagrams_in, 0);
}

/// Our side: a host and its socket.
struct Ours {
    host: Host,
    socket: UdpSocket,
    start: Clock,
    out: Vec<u8>,
}

impl Ours {
    fn new(config: Config) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("sockets have timeouts");
        let host = Host::new(Instant::ZERO, config).expect("a sound configuration");
        Self { host, socket, start: Clock::now(), out: Vec::new() }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("it is bound")
    }

    /// Takes what has arrived, or waits a millisecond for it, and sends what is due.
    fn turn(&mut self) {
        let mut datagram = [0; 5_000];
        for _ in 0..64 {
            let Ok((len, from)) = self.socket.recv_from(&mut datagram) else { break };
            self.host.handle_datagram(self.now(), from, &datagram[..len]);
        }
        self.host.handle_timeout(self.now());
        while let Some(transmit) = self.host.poll_transmit(self.now(), &mut self.out) {
            self.socket.send_to(&self.out, transmit.to).expect("loopback takes datagrams");
        }
    }

    fn wait(&mut self, mut until: impl FnMut(&Event) -> bool) {
        let start = Clock::now();
        while start.elapsed() < PATIENCE {
            self.turn();
            while let Some(event) = self.host.poll_event() {
                if until(&event) {
                    return;
                }
            }
        }
        panic!("nothing happened: {:?}", self.host);
    }

    fn wait_connected(&mut self, peer: PeerId) {
        self.wait(|event| *event == Event::Connected { peer, data: 0 });
    }

    /// Sends every kind of packet to an echo server until each has come back.
    fn exchange(&mut self, peer: PeerId, coder: bool) {
        use Delivery::{Reliable, Unreliable, UnreliableFragmented, Unsequenced, UnsequencedFragmented};
        // Lane, length, how it is sent, how it comes back. The C library's coder cannot take empty packets.
        let mut kinds = vec![
            (0, 23, Reliable, Reliable),
            (1, 40, Unreliable, Unreliable),
            (2, 41, Unsequenced, Unsequenced),
            (3, 10_000, Reliable, Reliable),
            (1, 10_001, UnreliableFragmented, UnreliableFragmented),
            (2, 10_002, Unreliable, Reliable),
            (4, 10_003, UnsequencedFragmented, UnreliableFragmented),
            (0, 1 << 20, Reliable, Reliable),
        ];
        if !coder {
            kinds.push((4, 0, Reliable, Reliable));
        }
        let mut missing: BTreeSet<usize> = (0..kinds.len()).collect();
        let start = Clock::now();
        let mut sent = None;
        while !missing.is_empty() {
            assert!(start.elapsed() < PATIENCE, "these did not come back: {missing:?}");
            // What may get lost is sent until it has come back once.
            let is_first = sent.is_none();
            if sent.is_none_or(|at: Clock| at.elapsed() > Duration::from_millis(200)) {
                sent = Some(Clock::now());
                for &index in &missing {
                    let (lane, len, delivery, _) = kinds[index];
                    if is_first || delivery != Reliable {
                        self.host.send(peer, Lane(lane), content(len), delivery).expect("there is room");
                    }
                }
            }
            self.turn();
            while let Some(event) = self.host.poll_event() {
                let Event::Received { lane, data, delivery, .. } = event else { panic!("{event:?}") };
                let index = kinds.iter().position(|kind| kind.1 == data.len()).expect("one of ours");
                assert_eq!((lane.0, delivery), (kinds[index].0, kinds[index].3), "{} bytes", data.len());
                assert!(data == content(data.len()), "{} bytes came back damaged", data.len());
                missing.remove(&index);
            }
        }
        self.host.check_invariants();
    }

    fn echo_until_disconnected(&mut self, peer: PeerId, reason: u32) {
        let start = Clock::now();
        while start.elapsed() < PATIENCE {
            self.turn();
            while let Some(event) = self.host.poll_event() {
                match event {
                    Event::Received { lane, data, delivery, .. } => {
                        self.host.send(peer, lane, data, delivery).expect("there is room");
                    }
                    Event::Disconnected { data, reason: Reason::Remote, .. } => {
                        assert_eq!(data, reason);
                        // The acknowledgement has left before the event.
                        return;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        panic!("nobody disconnected: {:?}", self.host);
    }
}

/// Their side: the C program.
struct Peer {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(program: &Path, words: &[&str]) -> Self {
        let mut child =
            Command::new(program).args(words).stdout(Stdio::piped()).spawn().expect("it was just built");
        let out = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, out }
    }

    fn port(&mut self) -> SocketAddr {
        let line = self.out.next().expect("it prints its port").expect("it prints text");
        let port = line.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("it prints its port");
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// What it has printed since, up to its end.
    fn lines(&mut self) -> Vec<String> {
        let lines = self.out.by_ref().map(|line| line.expect("it prints text")).collect();
        assert!(self.child.wait().expect("it ends").success(), "{lines:?}");
        lines
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(checksum: bool, coder: bool) -> Config {
    let mut config = Config { checksum, ..Config::new(0x1234_5678_9ABC_DEF0) };
    if coder {
        config.compressor = Some(Box::new(RangeCoder::new()));
    }
    config
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8) + len) as u8).collect()
}

fn word(flag: bool) -> &'static str {
    if flag { "1" } else { "0" }
}

/// Builds the C program; `None`, with a word about it, where the library is not installed.
static PEER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/peer.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("enet-peer");
    let mut probe = Command::new("cc");
    probe.args(["-E", "-include", "enet/enet.h", "-x", "c", "/dev/null", "-o", "/dev/null"]);
    let has_library = probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has_library {
        eprintln!("skipped: no C compiler or no enet/enet.h; scripts/setup installs libenet-dev");
        return None;
    }
    let built =
        Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(&source).arg("-lenet").status();
    assert!(built.is_ok_and(|status| status.success()), "peer.c does not compile");
    Some(program)
});

/// Long enough for a machine that does many other things meanwhile.
const PATIENCE: Duration = Duration::from_secs(15);
