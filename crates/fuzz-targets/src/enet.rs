//! Targets for ENet: records, the range coder, one host that receives anything, two hosts over a
//! bad network, and the gate of sealed sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use throng_enet::secure::{ConnectToken, Entry, Gate, GateConfig, Opened, TokenClaims, TokenKey};
use throng_enet::wire::{Body, CHANNEL_NONE, Command, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED};
use throng_enet::{
    Bytes, Compressor, Config, Delivery, Event, Host, Lane, Naming, PeerId, PeerState, RangeCoder,
};
use throng_stdx::Instant;

use crate::bounded;

/// One datagram: its header and its commands.
///
/// Asserts that what was decoded encodes to the same bytes, unused flag bits aside.
pub fn enet_command(input: &[u8]) {
    bounded(COMMAND_BYTES_MAX, input.len() as u64, || decode(input));
}

/// One command at a time, encoded again.
const COMMAND_BYTES_MAX: u64 = 1 << 20;

fn decode(input: &[u8]) {
    let Some((header, header_len)) = Header::decode(input) else { return };
    let mut out = Vec::new();
    header.encode(&mut out);
    assert_eq!(out, input[..header_len]);
    let mut rest = &input[header_len..];
    while let Ok((command, len)) = Command::decode(rest) {
        out.clear();
        command.encode(&mut out);
        assert_eq!(command.encoded_len(), len);
        // Bits 4 and 5 of the first byte mean nothing.
        assert_eq!(out[0], rest[0] & !0x30);
        assert_eq!(out[1..], rest[1..len]);
        assert_eq!(Command::decode(&out), Ok((command, len)));
        rest = &rest[len..];
    }
}

/// A block for the range coder's decoder, and the same bytes for its encoder.
///
/// Asserts that nothing longer than allowed comes out and that compression is reversible.
pub fn enet_range_coder(input: &[u8]) {
    // The coder's symbols, and a block of 4,096 bytes in three forms. It counts no steps: the
    // limits are on the length of its input and output.
    bounded(256 << 10, 0, || code(input));
}

fn code(input: &[u8]) {
    let mut coder = RangeCoder::new();
    let mut out = Vec::new();
    let limit = 4_096;
    if coder.decompress(input, limit, &mut out).is_ok() {
        assert!(out.len() <= limit);
    }
    let input = &input[..input.len().min(limit)];
    let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
    if coder.compress(input, input.len(), &mut packed) {
        assert!(packed.len() <= input.len());
        let result = coder.decompress(&packed, limit, &mut unpacked);
        assert!(result.is_ok() && unpacked == input, "{result:?}");
    }
}

/// Datagrams to a host with one connection, from its peer and from strangers. The first byte
/// chooses the host's settings; then come steps: a byte of source and time, a byte of length and a
/// datagram.
///
/// Asserts that no address gets more bytes than it sent before it has proven itself, that nothing
/// holds more than its limit, that the books balance, and that time gets on. One input in four has
/// half a minute of silence at its end, after which nobody and nothing may be left.
pub fn enet_datagram(input: &[u8]) {
    bounded(DATAGRAM_BYTES_MAX, DATAGRAM_STEPS_MAX, || feed(input));
}

/// One host with 100,000 bytes for what it receives and 48 packets of 4,000 bytes to send, and the
/// test's own buffers.
const DATAGRAM_BYTES_MAX: u64 = 1 << 20;
const DATAGRAM_STEPS_MAX: u64 = 50_000;

fn feed(input: &[u8]) {
    let [choice, steps @ ..] = input else { return };
    let mut end = Lone::new(*choice);
    let mut rest = steps;
    // What more steps would reach, other inputs reach with fewer.
    let mut left = 48;
    while let [control, len, tail @ ..] = rest
        && left > 0
    {
        left -= 1;
        // The highest bit of the control byte makes the length sixteen times as long.
        let len = usize::from(*len) << (control >> 7 << 2);
        let (datagram, tail) = tail.split_at(tail.len().min(len));
        rest = tail;
        end.now += Duration::from_millis(match control >> 4 & 7 {
            0 => 0,
            7 => 6_000,
            n => 1 << (2 * (n - 1)),
        });
        end.tick();
        if control & 8 != 0 {
            end.talk(datagram);
        }
        end.receive(usize::from(control & 7) % SOURCES, datagram);
    }
    end.host.check_invariants();
    if choice & 9 == 9 {
        end.rest();
    }
}

/// A host, whom it has heard of, and how many bytes went to and fro.
struct Lone {
    now: Instant,
    host: Host,
    peer: Option<PeerId>,
    /// Bytes from and to each source. Source 0 has proven its address.
    bytes_in: [usize; SOURCES],
    bytes_out: [usize; SOURCES],
    proven: [bool; SOURCES],
    /// Inputs taken; after every few of them the books are checked.
    drains: u32,
    buf: Vec<u8>,
}

const SOURCES: usize = 5;
/// Checking all books costs as much as several datagrams, and an imbalance stays.
const DRAINS_PER_CHECK: u32 = 8;

impl Lone {
    fn new(choice: u8) -> Self {
        let now = Instant::from_millis(u64::from(choice) * 300);
        let config = Config {
            // Strangers' guesses come true here: the fuzzer is to get in.
            naming: Naming::Sequential,
            lanes_max: 8,
            packet_bytes_max: 40_000,
            peer_bytes_max: 80_000,
            host_bytes_max: 100_000,
            half_open_max: 3,
            incoming_bandwidth: if choice & 2 != 0 { 60_000 } else { 0 },
            outgoing_bandwidth: if choice & 4 != 0 { 60_000 } else { 0 },
            // Seldom: it takes most of the time of those inputs that have it.
            compressor: (choice >> 4 == 15).then(|| Box::new(RangeCoder::new()) as Box<dyn Compressor>),
            ..Config::new(7)
        };
        let host = Host::new(now, config).expect("a sound configuration");
        let (bytes_in, bytes_out, proven) = ([0; SOURCES], [0; SOURCES], [false; SOURCES]);
        let mut end = Self { now, host, peer: None, bytes_in, bytes_out, proven, drains: 0, buf: Vec::new() };
        end.connect();
        end
    }

    /// The handshake of source 0.
    fn connect(&mut self) {
        let handshake = Handshake {
            peer_id: 0,
            incoming_session: SESSION_UNUSED,
            outgoing_session: SESSION_UNUSED,
            mtu: 1392,
            window: 65_536,
            channels: 8,
            incoming_bandwidth: 0,
            outgoing_bandwidth: 0,
            throttle_interval: 5_000,
            throttle_acceleration: 2,
            throttle_deceleration: 2,
            connect_id: [1, 2, 3, 4],
        };
        self.receive(0, &single(PEER_ID_NONE, Body::Connect(handshake, 0), true));
        let body = Body::Acknowledge { number: 1, sent_time: self.now.as_millis() as u16 };
        self.receive(0, &single(0, body, false));
        assert!(self.peer.is_some(), "nobody connected");
    }

    fn receive(&mut self, source: usize, datagram: &[u8]) {
        self.bytes_in[source] += datagram.len();
        self.host.handle_datagram(self.now, address(source), datagram);
        self.drain();
    }

    fn tick(&mut self) {
        let mut rounds = 0;
        while self.host.next_timeout().is_some_and(|at| at <= self.now) {
            self.host.handle_timeout(self.now);
            self.drain();
            rounds += 1;
            assert!(rounds < 8, "a timer is due for ever");
        }
    }

    /// The application does something, too.
    fn talk(&mut self, choice: &[u8]) {
        let choice = choice.first().copied().unwrap_or(0);
        let Some(peer) = self.peer else { return };
        match choice >> 5 {
            0..3 => {
                let delivery = DELIVERIES[usize::from(choice >> 3) % DELIVERIES.len()];
                let data = vec![choice; if choice & 1 == 0 { 20 } else { 4_000 }];
                // It fails when the fuzzer has ended the connection.
                let _ = self.host.send(peer, Lane(choice & 7), data, delivery);
            }
            3 => self.host.set_bandwidth(
                self.now,
                u32::from(choice & 15) * 9_000,
                u32::from(choice & 3) * 9_000,
            ),
            4 => drop(self.host.connect(self.now, address(usize::from(choice) % SOURCES), 8, 1)),
            5 => drop(self.host.broadcast(
                Lane(choice & 7),
                &b"to all"[..],
                DELIVERIES[usize::from(choice) % 5],
            )),
            6 => self.host.disconnect_later(peer, 5),
            _ => self.host.configure_throttle(peer, Duration::from_millis(choice.into()), 1, 30),
        }
        self.drain();
    }

    fn drain(&mut self) {
        let mut buf = std::mem::take(&mut self.buf);
        let mut datagrams = 0;
        while let Some(transmit) = self.host.poll_transmit(self.now, &mut buf) {
            assert!(!buf.is_empty() && buf.len() <= 1_392, "{} bytes", buf.len());
            datagrams += 1;
            assert!(datagrams < 2_000, "a host never stops sending");
            if let Some(source) = (0..SOURCES).find(|&source| address(source) == transmit.to) {
                self.bytes_out[source] += buf.len();
                // CONNECT is our own wish; what an address gets that we asked for a connection is
                // our decision.
                let is_connect = buf.get(..2).is_some_and(|word| matches!(word, [0x8F | 0xCF, 0xFF]));
                self.proven[source] |= is_connect;
            }
        }
        self.buf = buf;
        self.drains += 1;
        if self.drains.is_multiple_of(DRAINS_PER_CHECK) {
            self.host.check_invariants();
        }
        assert!(self.host.held_bytes() <= 100_000 + 16_384 * (1 + SOURCES));
        assert!(self.host.half_open_count() <= 3);
        let mut events = 0;
        while let Some(event) = self.host.poll_event() {
            events += 1;
            assert!(events < 2_000, "events without end");
            if let Event::Connected { peer, .. } = event {
                self.peer.get_or_insert(peer);
                if let Some(info) = self.host.peer(peer) {
                    let source = (0..SOURCES).find(|&source| address(source) == info.address);
                    self.proven[source.expect("nobody else sends")] = true;
                }
            }
            if let Event::Received { data, .. } = &event {
                assert!(data.len() <= 40_000);
            }
        }
        for source in 0..SOURCES {
            let (out, came) = (self.bytes_out[source], self.bytes_in[source]);
            assert!(self.proven[source] || out <= came, "{out} bytes to an address that sent {came}");
        }
    }

    /// Half a minute passes: whoever does not answer is gone, and nothing is held any more.
    fn rest(&mut self) {
        for _ in 0..400 {
            let Some(next) = self.host.next_timeout() else { break };
            self.now = self.now.max(next);
            self.tick();
        }
        assert_eq!((self.host.peer_count(), self.host.half_open_count()), (0, 0), "somebody stays for ever");
        assert_eq!(self.host.held_bytes(), 0);
    }
}

/// Two hosts over a network that does what the input says; at the end it heals.
///
/// Asserts that reliable packets arrive once and in order, and all of them when the network has
/// healed or the connection has ended with an event; that others arrive at most once and do not
/// overtake within their lane, unless they may.
///
/// Short, so that it plays five times as many as [`enet_long_session`]: most of the code is within
/// reach of a few steps.
pub fn enet_session(input: &[u8]) {
    bounded(SESSION_BYTES_MAX, SESSION_STEPS_MAX, || play(input, Session::Plain, 5));
}

/// The same with more steps, for what takes several packets and losses.
pub fn enet_long_session(input: &[u8]) {
    bounded(SESSION_BYTES_MAX, SESSION_STEPS_MAX, || play(input, Session::Plain, 60));
}

/// The same between hosts that compress, which takes most of its time, and check sums.
pub fn enet_compressed_session(input: &[u8]) {
    bounded(SESSION_BYTES_MAX, SESSION_STEPS_MAX, || play(input, Session::Compressed, 60));
}

/// The same, with a network that also makes datagrams up. Asserts only what protects the hosts.
pub fn enet_hostile_session(input: &[u8]) {
    bounded(SESSION_BYTES_MAX, SESSION_STEPS_MAX, || play(input, Session::Hostile, 60));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    Plain,
    Compressed,
    Hostile,
}

/// Two hosts with at most 60 packets of 9,000 bytes, in both queues and on both wires.
const SESSION_BYTES_MAX: u64 = 6 << 20;
const SESSION_STEPS_MAX: u64 = 200_000;

fn play(input: &[u8], session: Session, steps_max: u32) {
    let [choice, steps @ ..] = input else { return };
    let mut link = Link::new(*choice, session);
    let mut rest = steps;
    let mut count = 0_u32;
    while let [step, amount, tail @ ..] = rest {
        rest = tail;
        count += 1;
        // What more steps would reach, other inputs reach with fewer.
        if count > steps_max {
            break;
        }
        let from = usize::from(step & 1);
        let n = usize::from(*amount);
        match step >> 1 & 15 {
            0..4 => link.send(from, *amount),
            4..6 => link.pass(Duration::from_millis(n as u64)),
            6 => link.pass(Duration::from_millis(n as u64 * 40)),
            7 | 8 => link.deliver(from, n),
            9 => drop(link.wires[from].pop_front()),
            10 => link.duplicate(from),
            11 => link.wires[from].rotate_left(usize::from(!link.wires[from].is_empty())),
            12 => link.damage(from, n),
            13 => link.control(from, *amount),
            14 => {
                let (made_up, tail) = rest.split_at(rest.len().min(n));
                if session == Session::Hostile {
                    rest = tail;
                    link.wires[from].push_front(made_up.to_vec());
                    link.deliver(from, 1);
                }
            }
            _ => link.connect(),
        }
    }
    link.heal();
}

struct Link {
    now: Instant,
    hosts: [Host; 2],
    peers: [Option<PeerId>; 2],
    wires: [VecDeque<Vec<u8>>; 2],
    checksum: bool,
    is_hostile: bool,
    /// Several connections have been: numbers start again with each, and what was promised in an
    /// old one is void.
    sent: [Book; 2],
    got: [Book; 2],
    /// Connections asked for, and packets and connections together.
    attempts: u32,
    total: usize,
    flushes: u32,
}

/// Packets sent or received, per lane.
#[derive(Default)]
struct Book {
    next: BTreeMap<u8, u32>,
    reliable: BTreeMap<u8, VecDeque<u32>>,
    last: BTreeMap<u8, u32>,
    seen: BTreeSet<(u8, u32)>,
}

impl Link {
    fn new(choice: u8, session: Session) -> Self {
        let is_compressed = match session {
            Session::Plain => false,
            Session::Compressed => true,
            Session::Hostile => choice & 6 == 6,
        };
        let now = Instant::from_millis(if choice & 16 != 0 { 65_000 } else { 1_000 });
        let checksum = choice & 2 != 0 || is_compressed;
        let host = |accept: bool, seed: u128, mtu: u16| {
            let config = Config {
                accept,
                checksum,
                mtu,
                compressor: is_compressed.then(|| Box::new(RangeCoder::new()) as Box<dyn Compressor>),
                naming: if choice & 8 != 0 { Naming::Sequential } else { Naming::Random },
                packet_bytes_max: 100_000,
                peer_bytes_max: 200_000,
                incoming_bandwidth: if choice & 32 != 0 { 90_000 } else { 0 },
                ..Config::new(seed)
            };
            Host::new(now, config).expect("a sound configuration")
        };
        let mut link = Self {
            now,
            hosts: [host(false, 1, 1392), host(true, 2, if choice & 64 != 0 { 576 } else { 1392 })],
            peers: [None; 2],
            wires: Default::default(),
            checksum,
            is_hostile: session == Session::Hostile,
            sent: Default::default(),
            got: Default::default(),
            attempts: 0,
            total: 0,
            flushes: 0,
        };
        link.connect();
        if choice & 128 == 0 {
            for _ in 0..3 {
                link.deliver(0, 9);
                link.deliver(1, 9);
            }
        }
        link
    }

    /// The client connects, if it is not connected.
    fn connect(&mut self) {
        let is_alone = self.peers[0].is_none_or(|peer| self.hosts[0].peer(peer).is_none());
        if is_alone && self.hosts[0].peer_count() == 0 && self.total < 40 {
            self.total += 1;
            self.attempts += 1;
            self.peers[0] = self.hosts[0].connect(self.now, address(1), 4, self.attempts).ok();
            // What is still on its way belongs to the old connection and must not count for the new
            // one.
            (self.sent, self.got) = Default::default();
            self.peers[1] = None;
        }
        self.flush(0);
    }

    fn send(&mut self, from: usize, amount: u8) {
        let Some(peer) = self.peers[from] else { return };
        if self.total >= 60
            || self.hosts[from].peer(peer).is_none_or(|info| info.state != PeerState::Connected)
        {
            return;
        }
        self.total += 1;
        let lane = amount & 3;
        let delivery = DELIVERIES[usize::from(amount >> 2) % DELIVERIES.len()];
        let len = match amount >> 5 {
            7 => 9_000,
            6 => 3_000,
            5 => 1_355,
            n => 11 * usize::from(n),
        };
        let book = &mut self.sent[from];
        let number = book.next.entry(lane).or_insert(0);
        *number += 1;
        let number = *number;
        let result = self.hosts[from].send(peer, Lane(lane), packet(number, delivery, len), delivery);
        assert_eq!(result, Ok(()));
        if delivery == Delivery::Reliable {
            book.reliable.entry(lane).or_default().push_back(number);
        }
        self.flush(from);
    }

    fn control(&mut self, from: usize, amount: u8) {
        let Some(peer) = self.peers[from] else { return };
        let host = &mut self.hosts[from];
        match amount % 8 {
            0 => host.disconnect(peer, 1),
            1 => host.disconnect_later(peer, 2),
            2 => host.disconnect_now(peer, 3),
            3 => host.reset(peer),
            4 => host.set_bandwidth(self.now, u32::from(amount) * 1_000, 0),
            5 => host.set_bandwidth(self.now, 0, u32::from(amount) * 1_000),
            6 => host.configure_throttle(peer, Duration::from_millis(amount.into()), amount.into(), 2),
            _ => host.set_ping_interval(peer, Duration::from_millis(amount.into())),
        }
        self.flush(from);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in 0..2 {
            self.hosts[end].handle_timeout(self.now);
            self.flush(end);
        }
    }

    fn deliver(&mut self, from: usize, count: usize) {
        let to = 1 - from;
        for _ in 0..count {
            let Some(datagram) = self.wires[from].pop_front() else { break };
            self.hosts[to].handle_datagram(self.now, address(from), &datagram);
            self.flush(to);
        }
    }

    fn duplicate(&mut self, from: usize) {
        if let (Some(first), true) = (self.wires[from].front().cloned(), self.wires[from].len() < 256) {
            self.wires[from].push_back(first);
        }
    }

    /// Flips a bit, which only a checksum makes good.
    fn damage(&mut self, from: usize, at: usize) {
        if let (Some(first), true) = (self.wires[from].front_mut(), self.checksum || self.is_hostile) {
            let at = at * 5 % (8 * first.len());
            first[at / 8] ^= 1 << (at % 8);
        }
    }

    fn flush(&mut self, end: usize) {
        let mut datagram = Vec::new();
        let mut count = 0;
        while self.hosts[end].poll_transmit(self.now, &mut datagram).is_some() {
            assert!(!datagram.is_empty() && datagram.len() <= 1_396);
            count += 1;
            assert!(count < 2_000, "a host never stops sending");
            // A queue of the network: what does not fit is lost.
            if self.wires[end].len() < 512 {
                self.wires[end].push_back(datagram.clone());
            }
        }
        self.flushes += 1;
        if self.flushes.is_multiple_of(DRAINS_PER_CHECK) {
            self.hosts[end].check_invariants();
        }
        while let Some(event) = self.hosts[end].poll_event() {
            match event {
                // A late acknowledgement may complete an attempt that the client has given up.
                Event::Connected { peer, data } if end == 1 && data == self.attempts => {
                    self.peers[1] = Some(peer);
                }
                Event::Received { peer, lane, data, delivery }
                    if !self.is_hostile && Some(peer) == self.peers[end] =>
                {
                    self.check(end, lane.0, &data, delivery);
                }
                _ => {}
            }
        }
    }

    fn check(&mut self, to: usize, lane: u8, data: &Bytes, delivery: Delivery) {
        let number = u32::from_be_bytes(data[..4].try_into().expect("every packet has a number"));
        let class = DELIVERIES[usize::from(data[4])];
        assert!(packet(number, class, data.len() - 5) == data, "the content changed");
        let (sent, got) = (&mut self.sent[1 - to], &mut self.got[to]);
        if class == Delivery::Reliable {
            let expected = sent.reliable.entry(lane).or_default().pop_front();
            assert_eq!(expected, Some(number), "not the next reliable packet of its lane");
        }
        let may_overtake = matches!(class, Delivery::Unsequenced | Delivery::UnsequencedFragmented);
        if !may_overtake && delivery != Delivery::Unsequenced {
            let last = got.last.insert(lane, number);
            assert!(last < Some(number), "{number} after {last:?}");
        }
        assert!(got.seen.insert((lane, number)), "{number} twice");
    }

    /// Everything arrives from now on.
    fn heal(&mut self) {
        let is_settled = |link: &Self| {
            (0..2).all(|end| {
                let info = link.peers[end].and_then(|peer| link.hosts[end].peer(peer));
                info.is_none_or(|info| info.queued_bytes == 0)
            })
        };
        for end in 0..2 {
            // Rounds go from one deadline to the next. With a ping every few milliseconds they
            // would end before a command is due again whose last round trips took many seconds.
            if let Some(peer) = self.peers[end] {
                self.hosts[end].set_ping_interval(peer, Duration::from_millis(500));
            }
        }
        for _ in 0..2_000 {
            while self.wires.iter().any(|wire| !wire.is_empty()) {
                self.deliver(0, usize::MAX);
                self.deliver(1, usize::MAX);
            }
            if is_settled(self) {
                break;
            }
            let due = self.hosts.iter().filter_map(Host::next_timeout).min();
            self.pass(due.map_or(Duration::ZERO, |at| at.since(self.now)).max(Duration::from_millis(1)));
        }
        let stands = |link: &Self, end: usize| {
            link.peers[end]
                .and_then(|peer| link.hosts[end].peer(peer))
                .is_some_and(|info| info.state == PeerState::Connected)
        };
        if !self.is_hostile && stands(self, 0) && stands(self, 1) {
            let left: usize =
                self.sent.iter().flat_map(|book| book.reliable.values()).map(VecDeque::len).sum();
            assert_eq!(left, 0, "reliable packets did not arrive");
        }
        for host in &self.hosts {
            host.check_invariants();
            // Of a connection that the client has forgotten the server hears nothing more; it ends
            // by its timeout.
            let connections = self.attempts as usize;
            assert!(host.held_bytes() <= 200_000 * connections && host.peer_count() <= connections);
        }
    }
}

/// Datagrams to a gate with one client inside, made up or made from what the client said. The first
/// byte chooses whether plain ENet is allowed; then come steps: a byte that says what to do, a byte
/// of length or position, and perhaps a datagram.
///
/// Asserts that nothing is opened that the client did not seal, nothing twice, that nobody else
/// gets in, and that nobody is answered with more bytes than it sent.
pub fn enet_gate(input: &[u8]) {
    bounded(GATE_BYTES_MAX, GATE_STEPS_MAX, || guard(input));
}

/// A gate with one session, and what the test keeps of its client's datagrams.
const GATE_BYTES_MAX: u64 = 4 << 20;
const GATE_STEPS_MAX: u64 = 200_000;

fn guard(input: &[u8]) {
    let [choice, steps @ ..] = input else { return };
    let (now, unix_s) = (Instant::from_millis(5), 1_000);
    let key = TokenKey::new([3; 32]);
    let claims = TokenClaims {
        user_id: 7,
        expires_unix_s: 1_030,
        servers: vec![address(1)],
        ..TokenClaims::default()
    };
    let token = key.issue(&claims, [5; 88]).expect("one server");
    let config = GateConfig { servers: vec![address(1)], plain: choice & 1 != 0, ..GateConfig::new(key, 1) };
    let mut gate = Gate::new(now, config);
    let mut entry = Entry::new(now, &token, 2);
    let (mut out, mut scratch, mut said) = (Vec::new(), Vec::new(), Vec::new());
    while entry.poll_transmit(now, &mut out) {
        said.push(out.clone());
        if let Opened::Answer(answer) = gate.open(now, unix_s, address(0), &out, &mut scratch) {
            let answer = answer.to_vec();
            assert_eq!(entry.open(now, &answer, &mut Vec::new()), Opened::Nothing);
        }
    }
    assert_eq!(gate.stats().admitted, 1);
    // Contents that are on their way, by what they were sealed as.
    let mut sealed: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut rest = steps;
    while let [what, n, tail @ ..] = rest {
        rest = tail;
        let at = usize::from(*n);
        let from = address(usize::from(*what >> 6));
        let datagram = match what & 7 {
            0 => {
                let content = vec![*n; at % 40];
                assert!(entry.seal(&content, &mut out));
                sealed.insert(out.clone(), content);
                said.push(out.clone());
                continue;
            }
            // Again, as it was.
            1 => said[at % said.len()].clone(),
            // With a bit that is different.
            2 => {
                let mut changed = said[at % said.len()].clone();
                let bit = at * 31 % (8 * changed.len());
                changed[bit / 8] ^= 1 << (bit % 8);
                changed
            }
            // Cut off.
            3 => {
                let cut = &said[at % said.len()];
                cut[..at % cut.len()].to_vec()
            }
            4 => {
                assert!(gate.seal(address(0), b"down", &mut out));
                assert_eq!(entry.open(now, &out, &mut scratch), Opened::Enet(b"down"));
                continue;
            }
            5 => {
                let (made_up, tail) = rest.split_at(rest.len().min(at));
                rest = tail;
                let mut bytes = vec![0xFF, 0xFF, what >> 3 & 7];
                bytes.extend_from_slice(made_up);
                assert_eq!(entry.open(now, &bytes, &mut scratch), Opened::Nothing);
                bytes
            }
            _ => {
                let (made_up, tail) = rest.split_at(rest.len().min(at));
                rest = tail;
                made_up.to_vec()
            }
        };
        let is_sealed = datagram.starts_with(&[0xFF, 0xFF]) && datagram.len() > 2;
        match gate.open(now, unix_s, from, &datagram, &mut scratch) {
            Opened::Enet(content) if is_sealed => {
                assert_eq!(from, address(0), "opened for somebody else");
                assert_eq!(
                    sealed.remove(&datagram).as_deref(),
                    Some(content),
                    "never sealed, or opened twice"
                );
            }
            Opened::Enet(_) => assert!(choice & 1 != 0 && from != address(0), "plain where it may not be"),
            Opened::Answer(answer) => assert!(answer.len() <= datagram.len()),
            Opened::Nothing => {}
        }
        assert_eq!((gate.stats().admitted, gate.session_count()), (1, 1), "somebody else got in");
    }
    drop(ConnectToken::decode(steps));
}

/// A packet whose content follows from its number and class.
fn packet(number: u32, delivery: Delivery, len: usize) -> Bytes {
    let mut data = number.to_be_bytes().to_vec();
    data.push(delivery as u8);
    data.extend_from_slice(&CONTENT[number as usize..][..len]);
    data.into()
}

/// Bytes of which every part is different: the longest packet, and one more for each before it.
/// Made here, as making it for each packet would take longer than sending it.
const CONTENT: [u8; 9_100] = {
    let mut content = [0; 9_100];
    let mut at = 0;
    while at < content.len() {
        content[at] = ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8;
        at += 1;
    }
    content
};

fn single(peer_id: u16, body: Body<'_>, acknowledge: bool) -> Vec<u8> {
    let mut out = Vec::new();
    Header { peer_id, session: 0, compressed: false, sent_time: Some(0) }.encode(&mut out);
    Command { channel: CHANNEL_NONE, number: 1, acknowledge, unsequenced: false, body }.encode(&mut out);
    out
}

fn address(index: usize) -> SocketAddr {
    // The last shares its IP address with the first.
    SocketAddr::from(([10, 0, 0, (index % 4) as u8], 7_000 + index as u16))
}

const DELIVERIES: [Delivery; 5] = [
    Delivery::Reliable,
    Delivery::Unreliable,
    Delivery::UnreliableFragmented,
    Delivery::Unsequenced,
    Delivery::UnsequencedFragmented,
];
