//! Many lean ENet clients on one thread.
//!
//! A client has the least state that the protocol allows: it connects, sends one small packet per
//! interval, acknowledges, pings, sends again what is not acknowledged, and checks what comes back.
//! It shares no code with the host under test, the reading and writing of single commands aside.
//!
//! A client has a socket of its own, as a real one has (two share one when descriptors run out).
//! Where that would need more than the machine has, clients share a few sockets, told apart by the
//! ids that the protocol has for that, and their datagrams go in and out in batches.
//!
//! Everything is due at fixed times; a packet carries the time at which it was due, and its echo is
//! measured from there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use throng_enet::wire::{Body, CHANNEL_NONE, Command, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED};
use throng_net::udp::{UdpOptions, UdpPort};
use throng_stdx::Rng;

use crate::clock;
use crate::interrupt;
use crate::poll::Poller;
use crate::socket::{Stream, Taken};
use crate::stats::Times;

/// Lanes that packets rotate over.
pub(crate) const LANES: u32 = 4;
/// Every fifth packet is reliable.
const RELIABLE_EVERY: u32 = 5;
/// Interval of a client's turns, at which it sends, resends and pings.
const LOOK: Duration = Duration::from_millis(100);
/// Looks are spread over as many slots, so that a slot is a millisecond.
const SLOTS: usize = 100;
/// Clients per local address: half of the ephemeral ports of the system.
const CLIENTS_PER_ADDRESS: usize = 14_000;
/// Descriptors left for everything that is no client.
const DESCRIPTORS_KEPT: usize = 200;
/// A command that is not acknowledged is sent again after this, doubled each time. Real clients
/// wait for the round trip and four times its variance, half a second at first: a host that is late
/// is not to be drowned in repetitions.
const RESEND_NS: u64 = 1_000_000_000;
/// Without an acknowledgement for this long the server counts as gone.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Silence after which a client pings.
const PING_NS: u64 = 500_000_000;
const DATAGRAM_BYTES: usize = 4_096;
/// Clients that can share a socket: so many ids the protocol has.
const CLIENTS_PER_SOCKET: usize = PEER_ID_NONE as usize;
/// Datagrams that wait for a shared socket before they are given to the kernel.
const FLUSH_AT: usize = 64;
/// Reads from one socket, each of a datagram or a batch, before the clock is read again.
const READS_PER_STEP: usize = 4;
/// The smallest packet with the checked fields: client, number, time.
pub(crate) const PACKET_BYTES_MIN: usize = 16;

/// Which clients share a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// None, as long as there are descriptors.
    None,
    /// Thousands; the kernel takes and gives their datagrams in runs.
    Runs,
}

/// Plan of the clients.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SwarmPlan {
    pub(crate) server: SocketAddr,
    pub(crate) clients: usize,
    /// Requested number of lanes.
    pub(crate) lanes: u8,
    /// Bytes of a packet.
    pub(crate) bytes: usize,
    /// Looks between two packets of a client; 1 is 10 Hz, 0 sends nothing.
    pub(crate) every: u32,
    /// Clients that connect at the same time.
    pub(crate) batch: usize,
    /// Time a batch has.
    pub(crate) patience: Duration,
    /// Plain datagrams of the same length instead of ENet.
    pub(crate) bare: bool,
    /// Assignment of sockets to clients.
    pub(crate) sockets: Sharing,
    pub(crate) seed: u64,
}

/// Results of the clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) connected: usize,
    /// Attempts that were not granted in time.
    pub(crate) failed: usize,
    /// From the first CONNECT of a batch to its last grant.
    pub(crate) batches: Vec<Duration>,
    /// Packets sent in the window, and the number of them that were echoed.
    pub(crate) sent: u64,
    pub(crate) echoed: u64,
    /// Due time to arrival of the echo.
    pub(crate) rtt: Times,
    /// Due time to the time of sending.
    pub(crate) lateness: Times,
    /// Packets that were echoed with changes, or to another client.
    pub(crate) wrong: u64,
    /// Packets that overtook another one of their lane.
    pub(crate) overtook: u64,
    /// Clients whose server was gone.
    pub(crate) lost: usize,
    pub(crate) resent: u64,
    pub(crate) datagrams_in: u64,
    pub(crate) datagrams_out: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Connected,
    Lost,
}

struct Client {
    /// Which socket, and the number by which the server addresses it there.
    socket: usize,
    local_id: u16,
    state: State,
    /// Peer number that the server expects.
    remote_id: u16,
    session: u8,
    control_number: u16,
    lanes: [LaneOut; LANES as usize],
    /// Number of the next packet.
    next: u32,
    /// Highest packet number seen on each lane, plus one.
    seen: [u32; LANES as usize],
    unacknowledged: Vec<Waiting>,
    last_ack_ns: u64,
    looks: u32,
}

#[derive(Clone, Copy, Default)]
struct LaneOut {
    reliable: u16,
    unreliable: u16,
    /// Highest reliable number received.
    received: u16,
}

/// A reliable command that was sent.
struct Waiting {
    channel: u8,
    number: u16,
    first_ns: u64,
    due_ns: u64,
    tries: u32,
    /// Nothing for a ping.
    packet: Vec<u8>,
}

/// Clients and their clock.
pub(crate) struct Swarm {
    plan: SwarmPlan,
    sockets: Sockets,
    clients: Vec<Client>,
    poller: Poller,
    /// Time of slot 0 of the first look.
    start_ns: u64,
    /// Slots done so far.
    slots_done: u64,
    /// Nothing is sent before; packets due before are not counted.
    sends_from_ns: u64,
    window: (u64, u64),
    rng: Rng,
    arrived: Arrived,
    out: Vec<u8>,
    packet: Vec<u8>,
    pub(crate) seen: Seen,
}

impl Swarm {
    /// Opens the sockets. Nothing is sent yet.
    pub(crate) fn new(plan: SwarmPlan) -> io::Result<Self> {
        let poller = Poller::new()?;
        let sockets = match plan.sockets {
            Sharing::None => Sockets::own(&plan)?,
            Sharing::Runs => Sockets::shared(&plan)?,
        };
        let count = sockets.count();
        for index in 0..count {
            poller.add(sockets.raw(index), index, true, false)?;
        }
        let clients = (0..plan.clients).map(|index| Client {
            socket: index % count,
            local_id: u16::try_from(index / count).unwrap_or(PEER_ID_NONE),
            state: if plan.bare { State::Connected } else { State::Idle },
            remote_id: PEER_ID_NONE,
            session: 0,
            control_number: 0,
            lanes: [LaneOut::default(); LANES as usize],
            next: 0,
            seen: [0; LANES as usize],
            unacknowledged: Vec::new(),
            last_ack_ns: 0,
            looks: 0,
        });
        let clients = clients.collect();
        let now = clock::now_ns();
        let connected = if plan.bare { plan.clients } else { 0 };
        Ok(Self {
            rng: Rng::new(plan.seed),
            plan,
            sockets,
            clients,
            poller,
            start_ns: now,
            slots_done: 0,
            sends_from_ns: u64::MAX,
            window: (u64::MAX, u64::MAX),
            arrived: Arrived { bytes: vec![0; DATAGRAM_BYTES], ends: Vec::new() },
            out: Vec::with_capacity(DATAGRAM_BYTES),
            packet: Vec::new(),
            seen: Seen { connected, ..Seen::default() },
        })
    }

    /// Connects all clients, batch by batch.
    pub(crate) fn connect(&mut self) -> io::Result<()> {
        let step = self.plan.batch.max(1);
        let mut first = 0;
        while first < self.clients.len() && !self.plan.bare && !interrupt::requested() {
            let end = (first + step).min(self.clients.len());
            let (before, begun) = (self.seen.connected, clock::now_ns());
            for index in first..end {
                self.begin(index, begun);
            }
            let deadline = begun + clock::nanoseconds(self.plan.patience);
            let mut last = begun;
            while self.seen.connected - before < end - first
                && clock::now_ns() < deadline
                && !interrupt::requested()
            {
                let had = self.seen.connected;
                self.step(deadline)?;
                if self.seen.connected > had {
                    last = clock::now_ns();
                }
            }
            self.seen.batches.push(Duration::from_nanos(last - begun));
            for client in &mut self.clients[first..end] {
                if client.state == State::Connecting {
                    client.state = State::Lost;
                    self.seen.failed += 1;
                }
            }
            first = end;
        }
        Ok(())
    }

    /// Runs the clients for `time`. With `sends` they send; with `counts` the packets due in this
    /// time are counted.
    pub(crate) fn live(&mut self, time: Duration, sends: bool, counts: bool) -> io::Result<()> {
        let now = clock::now_ns();
        let end = now + clock::nanoseconds(time);
        self.sends_from_ns = if sends { now } else { u64::MAX };
        if counts {
            self.window = (now, end);
        }
        while clock::now_ns() < end && !interrupt::requested() {
            self.step(end)?;
        }
        Ok(())
    }

    /// One wait and what follows, at most until `until_ns`.
    fn step(&mut self, until_ns: u64) -> io::Result<()> {
        let slot_ns = clock::nanoseconds(LOOK) / SLOTS as u64;
        let mut now = clock::now_ns();
        loop {
            let due = self.start_ns + self.slots_done * slot_ns;
            // A machine that cannot keep up never catches up with its slots, and still comes to the
            // end of its time.
            if due > now || now >= until_ns || interrupt::requested() {
                break;
            }
            let slot = (self.slots_done % SLOTS as u64) as usize;
            self.slots_done += 1;
            for index in (slot..self.clients.len()).step_by(SLOTS) {
                self.look(index, due);
            }
            now = clock::now_ns();
        }
        self.sockets.flush();
        let next = (self.start_ns + self.slots_done * slot_ns).min(until_ns);
        let ready: Vec<usize> = self
            .poller
            .wait(Duration::from_nanos(next.saturating_sub(now)))?
            .map(|ready| ready.token)
            .collect();
        for socket in ready {
            self.read(socket);
        }
        self.sockets.flush();
        Ok(())
    }

    fn begin(&mut self, index: usize, now: u64) {
        let id = self.rng.next_u32().to_be_bytes();
        let client = &mut self.clients[index];
        client.state = State::Connecting;
        client.last_ack_ns = now;
        // The packet of a waiting CONNECT is its id.
        let waiting = Waiting {
            channel: CHANNEL_NONE,
            number: 1,
            first_ns: now,
            due_ns: now,
            tries: 0,
            packet: id.to_vec(),
        };
        client.control_number = 1;
        client.unacknowledged.push(waiting);
        self.resend(index, now);
    }

    /// Resends packets whose timeout has passed.
    fn resend(&mut self, index: usize, now: u64) {
        let lanes = self.plan.lanes;
        let client = &mut self.clients[index];
        if client.unacknowledged.iter().all(|waiting| waiting.due_ns > now) {
            return;
        }
        self.out.clear();
        client.header(Some(now), &mut self.out);
        let mut again = 0;
        for waiting in client.unacknowledged.iter_mut().filter(|waiting| waiting.due_ns <= now) {
            if self.out.len() + waiting.packet.len() + 60 > 1_300 {
                break;
            }
            let body = match client.state {
                State::Connecting => Body::Connect(connect(client.local_id, lanes, &waiting.packet), 0),
                _ if waiting.channel == CHANNEL_NONE => Body::Ping,
                _ => Body::SendReliable { payload: &waiting.packet },
            };
            command(waiting.channel, waiting.number, true, body).encode(&mut self.out);
            again += u64::from(waiting.tries > 0);
            waiting.due_ns = now + (RESEND_NS << waiting.tries.min(2));
            waiting.tries += 1;
        }
        self.seen.resent += again;
        self.transmit(index);
    }

    /// A client's moment: it sends, pings, resends or gives up.
    fn look(&mut self, index: usize, due: u64) {
        let now = clock::now_ns();
        if self.plan.bare {
            return self.look_bare(index, due, now);
        }
        let client = &mut self.clients[index];
        match client.state {
            State::Connected | State::Connecting => {}
            State::Idle | State::Lost => return,
        }
        client.looks = client.looks.wrapping_add(1);
        if client.unacknowledged.iter().any(|waiting| waiting.first_ns + PATIENCE_NS < now)
            && client.state == State::Connected
        {
            client.state = State::Lost;
            self.seen.lost += 1;
            return;
        }
        let sends = client.state == State::Connected
            && due >= self.sends_from_ns
            && self.plan.every > 0
            && client.looks.is_multiple_of(self.plan.every);
        if sends {
            self.send_packet(index, due, now);
        } else if client.state == State::Connected
            && client.unacknowledged.is_empty()
            && client.last_ack_ns + PING_NS < now
        {
            client.control_number = client.control_number.wrapping_add(1);
            let number = client.control_number;
            client.unacknowledged.push(Waiting {
                channel: CHANNEL_NONE,
                number,
                first_ns: now,
                due_ns: now,
                tries: 0,
                packet: Vec::new(),
            });
        }
        self.resend(index, now);
    }

    fn look_bare(&mut self, index: usize, due: u64, now: u64) {
        let client = &mut self.clients[index];
        client.looks = client.looks.wrapping_add(1);
        if due < self.sends_from_ns || self.plan.every == 0 || !client.looks.is_multiple_of(self.plan.every) {
            return;
        }
        payload(&mut self.packet, index, client.next, due, self.plan.bytes);
        client.next += 1;
        self.out.clear();
        // As many bytes as an ENet datagram with one packet has.
        self.out.resize(BARE_HEAD_BYTES, 0);
        self.out.extend_from_slice(&self.packet);
        self.note_sent(due, now);
        self.transmit(index);
    }

    fn send_packet(&mut self, index: usize, due: u64, now: u64) {
        let client = &mut self.clients[index];
        let (lane, is_reliable) = (client.next % LANES, client.next.is_multiple_of(RELIABLE_EVERY));
        payload(&mut self.packet, index, client.next, due, self.plan.bytes);
        client.next += 1;
        let state = &mut client.lanes[lane as usize];
        self.out.clear();
        if is_reliable {
            state.reliable = state.reliable.wrapping_add(1);
            state.unreliable = 0;
            let number = state.reliable;
            client.header(Some(now), &mut self.out);
            let body = Body::SendReliable { payload: &self.packet };
            command(lane as u8, number, true, body).encode(&mut self.out);
            client.unacknowledged.push(Waiting {
                channel: lane as u8,
                number,
                first_ns: now,
                due_ns: now + RESEND_NS,
                tries: 1,
                packet: self.packet.clone(),
            });
        } else {
            state.unreliable = state.unreliable.wrapping_add(1);
            let (number, unreliable_number) = (state.reliable, state.unreliable);
            client.header(None, &mut self.out);
            let body = Body::SendUnreliable { unreliable_number, payload: &self.packet };
            command(lane as u8, number, false, body).encode(&mut self.out);
        }
        self.note_sent(due, now);
        self.transmit(index);
    }

    fn note_sent(&mut self, due: u64, now: u64) {
        if (self.window.0..self.window.1).contains(&due) {
            self.seen.sent += 1;
            self.seen.lateness.record_between(due, now);
        }
    }

    fn transmit(&mut self, index: usize) {
        // A full buffer or a vanished server loses datagrams; what is reliable comes again.
        if self.sockets.send(self.clients[index].socket, self.plan.server, &self.out) {
            self.seen.datagrams_out += 1;
            self.seen.bytes_out += self.out.len() as u64;
        }
    }

    fn read(&mut self, socket: usize) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for _ in 0..READS_PER_STEP {
            let may_have_more = self.sockets.read(socket, &mut arrived);
            let now = clock::now_ns();
            let mut start = 0;
            for &end in &arrived.ends {
                self.sort(socket, &arrived.bytes[start..end], now);
                start = end;
            }
            if !may_have_more {
                break;
            }
        }
        self.arrived = arrived;
    }

    /// Passes a datagram to its client.
    fn sort(&mut self, socket: usize, datagram: &[u8], now: u64) {
        self.seen.datagrams_in += 1;
        self.seen.bytes_in += datagram.len() as u64;
        let count = self.sockets.count();
        let id = if self.plan.bare {
            // The packet says whose it is.
            datagram
                .get(BARE_HEAD_BYTES..)
                .and_then(|packet| packet.first_chunk())
                .map_or(0, |of| u32::from_be_bytes(*of) as usize / count)
        } else {
            Header::decode(datagram).map_or(0, |(header, _)| header.peer_id.into())
        };
        let index = id * count + socket;
        if index >= self.clients.len() {
            self.seen.wrong += 1;
        } else if self.plan.bare {
            if let Some(packet) = datagram.get(BARE_HEAD_BYTES..) {
                self.check(index, None, packet, now);
            }
        } else {
            self.take(index, datagram, now);
        }
    }

    fn take(&mut self, index: usize, datagram: &[u8], now: u64) {
        let Some((header, head)) = Header::decode(datagram) else { return };
        let mut rest = &datagram[head..];
        let mut acks = std::mem::take(&mut self.out);
        acks.clear();
        while let Ok((command, len)) = Command::decode(rest) {
            rest = &rest[len..];
            self.handle(index, &command, now);
            if let (true, Some(sent_time)) = (command.acknowledge, header.sent_time) {
                if acks.is_empty() {
                    self.clients[index].header(None, &mut acks);
                }
                let body = Body::Acknowledge { number: command.number, sent_time };
                self::command(command.channel, command.number, false, body).encode(&mut acks);
            }
        }
        self.out = acks;
        if !self.out.is_empty() && self.clients[index].state == State::Connected {
            self.transmit(index);
        }
    }

    fn handle(&mut self, index: usize, command: &Command<'_>, now: u64) {
        let client = &mut self.clients[index];
        match command.body {
            Body::VerifyConnect(verify) => {
                let ours = client.unacknowledged.first().map(|waiting| waiting.packet == verify.connect_id);
                if client.state == State::Connecting && ours == Some(true) {
                    client.state = State::Connected;
                    client.remote_id = verify.peer_id;
                    client.session = verify.outgoing_session & 3;
                    client.last_ack_ns = now;
                    client.unacknowledged.clear();
                    self.seen.connected += 1;
                }
            }
            Body::Acknowledge { number, .. } => {
                client.last_ack_ns = now;
                let channel = command.channel;
                client
                    .unacknowledged
                    .retain(|waiting| (waiting.channel, waiting.number) != (channel, number));
            }
            Body::SendReliable { payload } => {
                let Some(lane) = client.lanes.get_mut(usize::from(command.channel)) else { return };
                // Sent again, because our acknowledgement was late or lost.
                let is_new = command.number.wrapping_sub(lane.received).cast_signed() > 0;
                if is_new {
                    lane.received = command.number;
                    self.check(index, Some(command.channel), payload, now);
                }
            }
            Body::SendUnreliable { payload, .. } => self.check(index, Some(command.channel), payload, now),
            Body::Disconnect { .. } if client.state == State::Connected => {
                client.state = State::Lost;
                self.seen.lost += 1;
            }
            _ => {}
        }
    }

    /// Checks an echoed packet.
    fn check(&mut self, index: usize, lane: Option<u8>, packet: &[u8], now: u64) {
        let field = |at: usize| {
            packet.get(at..at + 4).and_then(|bytes| bytes.try_into().ok().map(u32::from_be_bytes))
        };
        let (Some(of), Some(number), Some(high), Some(low)) = (field(0), field(4), field(8), field(12))
        else {
            self.seen.wrong += 1;
            return;
        };
        let due = u64::from(high) << 32 | u64::from(low);
        let filler_is_right = packet[PACKET_BYTES_MIN..].iter().all(|byte| *byte == number as u8);
        let lane_is_right = lane.is_none_or(|lane| u32::from(lane) == number % LANES);
        if of as usize != index || packet.len() != self.plan.bytes || !filler_is_right || !lane_is_right {
            self.seen.wrong += 1;
            return;
        }
        let seen = &mut self.clients[index].seen[(number % LANES) as usize];
        if number < *seen {
            self.seen.overtook += 1;
        }
        *seen = (*seen).max(number + 1);
        if (self.window.0..self.window.1).contains(&due) {
            self.seen.echoed += 1;
            self.seen.rtt.record_between(due, now);
        }
    }
}

/// Datagrams that were received together.
#[derive(Default)]
struct Arrived {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

enum Sockets {
    /// One for each client.
    Own(Vec<Stream>),
    /// A few, and which of them have something to send.
    Shared { ports: Vec<UdpPort>, waiting: Vec<usize> },
}

impl Sockets {
    fn own(plan: &SwarmPlan) -> io::Result<Self> {
        let descriptors = usize::try_from(crate::socket::raise_descriptor_limit()).unwrap_or(usize::MAX);
        let count = plan.clients.min(descriptors.saturating_sub(DESCRIPTORS_KEPT).max(1));
        let streams = (0..count).map(|index| {
            // One address does not have enough ports for everybody. Loopback has sixteen million
            // addresses.
            let host = u8::try_from(2 + index / CLIENTS_PER_ADDRESS).unwrap_or(u8::MAX);
            let from = plan.server.ip().is_loopback() && plan.server.is_ipv4();
            let from = from.then(|| IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)));
            Stream::connect_datagram(plan.server, from)
        });
        Ok(Self::Own(streams.collect::<io::Result<_>>()?))
    }

    fn shared(plan: &SwarmPlan) -> io::Result<Self> {
        let options = UdpOptions::default();
        let any = if plan.server.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        let count = plan.clients.div_ceil(CLIENTS_PER_SOCKET).max(1);
        let ports = (0..count).map(|_| UdpPort::bind(SocketAddr::new(any, 0), &options));
        Ok(Self::Shared { ports: ports.collect::<io::Result<_>>()?, waiting: Vec::new() })
    }

    fn count(&self) -> usize {
        match self {
            Self::Own(streams) => streams.len(),
            Self::Shared { ports, .. } => ports.len(),
        }
    }

    fn raw(&self, index: usize) -> RawFd {
        match self {
            Self::Own(streams) => streams[index].raw(),
            Self::Shared { ports, .. } => ports[index].fd().as_raw_fd(),
        }
    }

    /// True if the datagram is on its way, at the latest after a [`flush`](Self::flush).
    fn send(&mut self, index: usize, to: SocketAddr, datagram: &[u8]) -> bool {
        match self {
            Self::Own(streams) => streams[index].write(datagram).is_ok(),
            Self::Shared { ports, waiting } => {
                let port = &mut ports[index];
                if port.pending() == 0 {
                    waiting.push(index);
                }
                port.push(to, datagram);
                if port.pending() < FLUSH_AT {
                    return true;
                }
                waiting.retain(|other| *other != index);
                port.flush().is_ok()
            }
        }
    }

    fn flush(&mut self) {
        let Self::Shared { ports, waiting } = self else { return };
        for index in waiting.drain(..) {
            // As with a socket of one's own, what does not leave is lost.
            let _ = ports[index].flush();
        }
    }

    /// Reads one datagram or a batch. Returns true if there may be more.
    fn read(&mut self, index: usize, arrived: &mut Arrived) -> bool {
        arrived.ends.clear();
        match self {
            Self::Own(streams) => {
                if let Some(Ok(Taken::Bytes(len))) =
                    streams.get(index).map(|stream| stream.read(&mut arrived.bytes))
                {
                    arrived.ends.push(len);
                }
                !arrived.ends.is_empty()
            }
            Self::Shared { ports, .. } => {
                arrived.bytes.clear();
                let Arrived { bytes, ends } = arrived;
                let received = ports[index].receive(|_, datagram| {
                    bytes.extend_from_slice(datagram);
                    ends.push(bytes.len());
                });
                received.unwrap_or(false)
            }
        }
    }
}

impl Client {
    fn header(&self, sent_ns: Option<u64>, out: &mut Vec<u8>) {
        let sent_time = sent_ns.map(|ns| (ns / 1_000_000) as u16);
        Header { peer_id: self.remote_id, session: self.session, compressed: false, sent_time }.encode(out);
    }
}

/// Header and command of an ENet datagram with one unreliable packet.
const BARE_HEAD_BYTES: usize = 10;

/// Sender, number, due time, and filler that depends on the number.
fn payload(out: &mut Vec<u8>, index: usize, number: u32, due: u64, bytes: usize) {
    out.clear();
    out.extend_from_slice(&(index as u32).to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&due.to_be_bytes());
    out.resize(bytes.max(PACKET_BYTES_MIN), number as u8);
}

fn command(channel: u8, number: u16, acknowledge: bool, body: Body<'_>) -> Command<'_> {
    Command { channel, number, acknowledge, unsequenced: false, body }
}

fn connect(peer_id: u16, lanes: u8, id: &[u8]) -> Handshake {
    Handshake {
        peer_id,
        incoming_session: SESSION_UNUSED,
        outgoing_session: SESSION_UNUSED,
        mtu: 1392,
        window: 65_536,
        channels: u32::from(lanes),
        incoming_bandwidth: 0,
        outgoing_bandwidth: 0,
        throttle_interval: 5_000,
        // The throttle opens at once and never closes: what is missing then was lost.
        throttle_acceleration: 32,
        throttle_deceleration: 0,
        connect_id: id.try_into().unwrap_or_default(),
    }
}
