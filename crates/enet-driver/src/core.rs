//! A host, its clock and its datagrams in batches; the wait is the caller's.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant as SystemInstant};

use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use throng_enet::{Config, Host, Instant, Transmit, Via};

use crate::OpenError;

/// Calls that receive in one round. More would only delay the answers.
pub(crate) const BATCHES_PER_ROUND: usize = 8;
/// Pause when the kernel's send buffer is full; at a gigabit per second it has emptied by 125 KB
/// then.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);
/// Longest message of the kernel: a run of datagrams that it has coalesced.
const MESSAGE_BYTES_MAX: usize = 65_536;
/// Bytes of a run, below what an IP packet holds.
const RUN_BYTES_MAX: usize = 60_000;
/// Maximum number of local addresses that are distinguished.
const LOCALS_MAX: usize = 64;
/// Buffers asked of the kernel: 10,000 small datagrams in, and as much out.
const BUFFER_BYTES: usize = 8 << 20;

pub(crate) struct Core {
    host: Host,
    state: UdpSocketState,
    addr: SocketAddr,
    start: SystemInstant,
    now: Instant,
    /// Own addresses that datagrams came to; [`Via`] numbers them from 1.
    locals: Vec<IpAddr>,
    messages: Vec<u8>,
    /// Datagrams of one length to one peer, which the kernel is given together.
    run: Option<Run>,
    /// Address of the datagram in `datagram`, which has left the host and fits no run.
    waiting: Option<Transmit>,
    datagram: Vec<u8>,
    is_blocked: bool,
    /// Sending has made events that the application could not see.
    is_unfinished: bool,
}

struct Run {
    transmit: Transmit,
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
}

impl Run {
    /// True if `datagram` can follow: none is longer than the first, and only the last is shorter.
    fn takes(&self, transmit: Transmit, datagram: &[u8], segments_max: usize) -> bool {
        self.transmit == transmit
            && self.count < segments_max
            && self.bytes.len() == self.count * self.segment
            && datagram.len() <= self.segment
            && self.bytes.len() + datagram.len() <= RUN_BYTES_MAX
    }
}

impl Core {
    /// Opens a socket that does not block.
    pub(crate) fn open(addr: SocketAddr, config: Config) -> Result<(Self, UdpSocket), OpenError> {
        let (socket, state, addr) = bind(addr).map_err(|source| OpenError::Socket { addr, source })?;
        let host = Host::new(Instant::ZERO, config).map_err(|error| OpenError::Host(error.into()))?;
        let core = Self {
            host,
            state,
            addr,
            start: SystemInstant::now(),
            now: Instant::ZERO,
            locals: Vec::new(),
            messages: vec![0; MESSAGE_BYTES_MAX * BATCH_SIZE],
            run: None,
            waiting: None,
            datagram: Vec::new(),
            is_blocked: false,
            is_unfinished: false,
        };
        Ok((core, socket))
    }

    pub(crate) fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Reads the clock.
    pub(crate) fn tick(&mut self) {
        self.now = Instant::from_nanos(self.start.elapsed().as_nanos() as u64);
    }

    /// Time until there is work without a datagram; `None` for ever.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.is_unfinished {
            return Some(Duration::ZERO);
        }
        let timer = self.host.next_timeout().map(|at| at.since(self.now));
        let blocked = self.is_blocked.then_some(BLOCKED_PAUSE);
        [timeout, timer, blocked].into_iter().flatten().min()
    }

    /// Takes in a batch. Fails with `WouldBlock` when there is none.
    pub(crate) fn receive(&mut self, socket: UdpSockRef<'_>) -> io::Result<()> {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut parts = self.messages.chunks_mut(MESSAGE_BYTES_MAX);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let count = match self.state.recv(socket, &mut slices, &mut metas) {
            Ok(count) => count,
            // A report about a datagram that was sent earlier says nothing about the socket.
            Err(error) if is_report(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        for (index, meta) in metas[..count].iter().enumerate() {
            let from = SocketAddr::new(meta.addr.ip().to_canonical(), meta.addr.port());
            let local = meta.dst_ip.filter(|_| self.addr.ip().is_unspecified());
            let via = local.map_or(Via::default(), |local| number(&mut self.locals, local));
            let start = index * MESSAGE_BYTES_MAX;
            for datagram in self.messages[start..start + meta.len].chunks(meta.stride.max(1)) {
                self.host.handle_datagram_via(self.now, from, via, datagram);
            }
        }
        Ok(())
    }

    /// The rest of a round, after receiving: timers, the application, sending.
    pub(crate) fn finish<'s>(
        &mut self,
        socket: impl Fn() -> UdpSockRef<'s>,
        on_round: impl FnOnce(&mut Host),
    ) {
        if self.host.next_timeout().is_some_and(|at| at <= self.now) {
            self.host.handle_timeout(self.now);
        }
        on_round(&mut self.host);
        let left = self.host.has_events();
        self.send(socket);
        // The end of a connection can lie in the sending of its last datagram.
        self.is_unfinished = !left && self.host.has_events();
    }

    /// Sends the host's output. What a full buffer does not take waits for the next call.
    pub(crate) fn send<'s>(&mut self, socket: impl Fn() -> UdpSockRef<'s>) {
        self.is_blocked = false;
        loop {
            let next = self.waiting.take().or_else(|| self.host.poll_transmit(self.now, &mut self.datagram));
            if let (Some(transmit), Some(run)) = (next, &mut self.run)
                && run.takes(transmit, &self.datagram, self.state.max_gso_segments())
            {
                run.bytes.extend_from_slice(&self.datagram);
                run.count += 1;
                continue;
            }
            if !self.send_run(socket()) {
                (self.waiting, self.is_blocked) = (next, true);
                return;
            }
            let Some(transmit) = next else { return };
            let (bytes, segment) = (self.datagram.clone(), self.datagram.len());
            self.run = Some(Run { transmit, bytes, segment, count: 1 });
        }
    }

    /// Gives the kernel the run. False when its buffer is full. Datagrams that it refuses are
    /// dropped, as the network may do.
    fn send_run(&mut self, socket: UdpSockRef<'_>) -> bool {
        let Some(run) = &self.run else { return true };
        let at = usize::from(run.transmit.via.0).checked_sub(1);
        let src_ip = at.and_then(|at| self.locals.get(at)).copied();
        let transmit = quinn_udp::Transmit {
            destination: reachable(run.transmit.to, self.addr),
            ecn: None,
            contents: &run.bytes,
            segment_size: (run.count > 1).then_some(run.segment),
            src_ip,
        };
        let result = self.state.try_send(socket, &transmit);
        if result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return false;
        }
        self.run = None;
        true
    }
}

fn bind(addr: SocketAddr) -> io::Result<(UdpSocket, UdpSocketState, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() && addr.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // A system that grants less keeps its own sizes.
    drop(socket.set_recv_buffer_size(BUFFER_BYTES));
    drop(socket.set_send_buffer_size(BUFFER_BYTES));
    socket.bind(&addr.into())?;
    let socket: UdpSocket = socket.into();
    // Makes it non-blocking as well.
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    let addr = socket.local_addr()?;
    Ok((socket, state, addr))
}

fn is_report(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | Interrupted | NetworkUnreachable
    )
}

/// The address as a socket of this family has it.
fn reachable(to: SocketAddr, own: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(v4) if own.is_ipv6() => {
            SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
        }
        to => to,
    }
}

/// The number of an own address; 0, for the system's choice, beyond [`LOCALS_MAX`].
fn number(locals: &mut Vec<IpAddr>, local: IpAddr) -> Via {
    if let Some(at) = locals.iter().position(|known| *known == local) {
        return Via(at as u16 + 1);
    }
    if locals.len() == LOCALS_MAX {
        return Via::default();
    }
    locals.push(local);
    Via(locals.len() as u16)
}
