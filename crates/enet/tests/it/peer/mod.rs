//! Both sides of the interoperability tests: a host of ours on a socket, and another program.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "drives the core over real sockets, in real time"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant as Clock};

use throng_enet::{Config, Delivery, Event, Host, Lane, PeerId, RangeCoder, Reason};
use throng_stdx::Instant;

/// (checksum, range coder)
pub(crate) const COMBINATIONS: [(bool, bool); 4] =
    [(false, false), (true, false), (false, true), (true, true)];

/// Our side: a host and its socket.
pub(crate) struct Ours {
    pub(crate) host: Host,
    socket: UdpSocket,
    start: Clock,
    out: Vec<u8>,
}

impl Ours {
    pub(crate) fn new(config: Config) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("sockets have timeouts");
        let host = Host::new(Instant::ZERO, config).expect("a sound configuration");
        Self { host, socket, start: Clock::now(), out: Vec::new() }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("it is bound")
    }

    /// Takes what has arrived, or waits a millisecond for it, and sends what is due.
    pub(crate) fn turn(&mut self) {
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

    pub(crate) fn wait(&mut self, mut until: impl FnMut(&Event) -> bool) {
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

    pub(crate) fn wait_connected(&mut self, peer: PeerId) {
        self.wait(|event| *event == Event::Connected { peer, data: 0 });
    }

    /// Waits for somebody to connect with this number.
    pub(crate) fn wait_for_client(&mut self, number: u32) -> PeerId {
        let mut client = None;
        self.wait(|event| match event {
            Event::Connected { peer, data } if *data == number => {
                client = Some(*peer);
                true
            }
            _ => false,
        });
        client.expect("it has connected")
    }

    /// Sends every kind of packet to an echo server until each has come back.
    pub(crate) fn exchange(&mut self, peer: PeerId, coder: bool) {
        use Delivery::{Reliable, Unreliable, UnreliableFragmented, Unsequenced, UnsequencedFragmented};
        // Lane, length, how it is sent, how it comes back. The C library's coder cannot take empty
        // packets.
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
            // Unreliable packets are sent until they have come back once.
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

    pub(crate) fn echo_until_disconnected(&mut self, peer: PeerId, reason: u32) {
        let start = Clock::now();
        while start.elapsed() < PATIENCE {
            self.turn();
            while let Some(event) = self.host.poll_event() {
                match event {
                    Event::Received { peer: from, lane, data, delivery } => {
                        assert_eq!(from, peer);
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

/// A program and the words that come before its own.
pub(crate) type Program = Vec<String>;

/// Their side: the program.
pub(crate) struct Peer {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    /// Ends a program that neither speaks nor leaves; gone with this value.
    _watchdog: mpsc::Sender<()>,
}

impl Peer {
    pub(crate) fn start(program: &Program, words: &[&str]) -> Self {
        let mut child = Command::new(&program[0])
            .args(&program[1..])
            .args(words)
            // Godot writes a log into the folder that it runs in.
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was there when we looked");
        let out = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (watchdog, is_over) = mpsc::channel::<()>();
        let pid = child.id();
        std::thread::spawn(move || {
            if is_over.recv_timeout(4 * PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                signal(pid, "-KILL");
            }
        });
        Self { child, out, _watchdog: watchdog }
    }

    pub(crate) fn line(&mut self) -> String {
        self.out.next().expect("it is not at its end").expect("it prints text")
    }

    pub(crate) fn port(&mut self) -> SocketAddr {
        let line = self.line();
        let port = line.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("it prints its port");
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Lines printed since, up to its end.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        let lines = self.out.by_ref().map(|line| line.expect("it prints text")).collect();
        assert!(self.child.wait().expect("it ends").success(), "{lines:?}");
        lines
    }

    /// The same, while our host answers on: an acknowledgement that gets lost is asked for again.
    pub(crate) fn lines_beside(&mut self, our: &mut Ours) -> Vec<String> {
        while self.child.try_wait().expect("it is ours").is_none() {
            our.turn();
            while our.host.poll_event().is_some() {}
        }
        self.lines()
    }

    /// Stops the program in its tracks: its socket stays, nobody answers.
    pub(crate) fn stop(&self) {
        signal(self.child.id(), "-STOP");
    }
}

fn signal(pid: u32, signal: &str) {
    // The shell's own kill: small systems have no program of that name.
    let status = Command::new("sh").args(["-c", &format!("kill {signal} {pid}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill {signal} {pid}");
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our client and their echo server, with every setting of checksum and range coder.
pub(crate) fn our_client_talks_to_their_server(program: &Program) {
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
        assert_eq!(their.lines_beside(&mut our), ["connected 12648430 lanes 5", "disconnected 1234"]);
    }
}

/// Their client and our echo server, likewise.
pub(crate) fn their_client_talks_to_our_server(program: &Program) {
    for (checksum, coder) in COMBINATIONS {
        let mut our = Ours::new(Config { lanes_max: 6, ..config(checksum, coder) });
        let port = our.address().port().to_string();
        let mut their = Peer::start(program, &["connect", &port, "8", word(checksum), word(coder)]);
        let peer = our.wait_for_client(99);
        our.echo_until_disconnected(peer, 77);
        let mut lines = their.lines_beside(&mut our);
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

pub(crate) fn config(checksum: bool, coder: bool) -> Config {
    let mut config = Config { checksum, ..Config::new(0x1234_5678_9ABC_DEF0) };
    if coder {
        config.compressor = Some(Box::new(RangeCoder::new()));
    }
    config
}

pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8) + len) as u8).collect()
}

pub(crate) fn word(flag: bool) -> &'static str {
    if flag { "1" } else { "0" }
}

/// Long enough for a machine that does many other things meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
