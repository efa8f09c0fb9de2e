//! UDP in batches: many datagrams per system call, and several per kernel buffer where the kernel
//! can do that.
//!
//! Sending or receiving a datagram costs a system call of its own with the standard library. A
//! [`UdpPort`] takes and gives up to 64 messages per call (`recvmmsg`, `sendmmsg`); equal datagrams
//! to one address travel through the kernel as one buffer that it cuts up at the end (UDP GSO), and
//! a run of them from one sender arrives as one (GRO). What the kernel offers is found out when the
//! port is opened and while it is used: a network card that cannot segment is noticed at the first
//! failed send, whose datagrams then go out one by one.
//!
//! # Several threads on one port
//! Open the same address once per thread with [`UdpOptions::shared`] (`SO_REUSEPORT`). The kernel
//! picks the socket by a hash of both addresses and ports, so a peer always meets the same thread,
//! as long as the number of sockets stays the same: open all of them before the first peer comes,
//! as [`UdpPort::bind_all`] does, and close none while peers are there.

pub(crate) mod batch;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use batch::{Receiving, Sending};
use throng_enet::Via;

/// Options of a [`UdpPort`].
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// True if other sockets, of this user, may open the same address to share its peers.
    pub shared: bool,
    /// Bytes asked for the receive buffer. The kernel grants what its limit (`net.core.rmem_max`)
    /// allows, more to a privileged process; [`UdpPort::receive_buffer_bytes`] tells. A small
    /// datagram takes 832 bytes of it.
    pub receive_buffer_bytes: usize,
    /// Bytes asked for the send buffer.
    pub send_buffer_bytes: usize,
    /// True if the kernel may be asked to cut up and to coalesce. Off to measure what it is worth.
    pub segmentation: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        // 40,000 small datagrams: what 4,000 players send in a second.
        Self { shared: false, receive_buffer_bytes: 32 << 20, send_buffer_bytes: 8 << 20, segmentation: true }
    }
}

/// Counts of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Calls that received something.
    pub reads: u64,
    /// Datagrams received, empty ones included.
    pub datagrams_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Received messages that were dropped because no protocol sends such long datagrams.
    pub oversized: u64,
    /// Calls that sent something.
    pub writes: u64,
    /// Datagrams sent.
    pub datagrams_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Datagrams dropped because the kernel refused them (an unreachable or forbidden address).
    pub refused: u64,
    /// Times that the send buffer was full.
    pub blocked: u64,
}

impl std::ops::AddAssign for UdpStats {
    fn add_assign(&mut self, other: Self) {
        let UdpStats {
            reads,
            datagrams_in,
            bytes_in,
            oversized,
            writes,
            datagrams_out,
            bytes_out,
            refused,
            blocked,
        } = other;
        self.reads += reads;
        self.datagrams_in += datagrams_in;
        self.bytes_in += bytes_in;
        self.oversized += oversized;
        self.writes += writes;
        self.datagrams_out += datagrams_out;
        self.bytes_out += bytes_out;
        self.refused += refused;
        self.blocked += blocked;
    }
}

/// A UDP socket with buffers for batches.
///
/// ```
/// use throng_net::udp::{UdpOptions, UdpPort};
/// let mut a = UdpPort::bind("127.0.0.1:0".parse().unwrap(), &UdpOptions::default())?;
/// let mut b = UdpPort::bind("127.0.0.1:0".parse().unwrap(), &UdpOptions::default())?;
/// for word in ["one", "two", "three"] {
///     a.push(b.local_addr(), word.as_bytes());
/// }
/// a.flush()?;
/// let mut words = Vec::new();
/// while words.len() < 3 {
///     b.receive(|from, bytes| {
///         assert_eq!(from, a.local_addr());
///         words.push(String::from_utf8_lossy(bytes).into_owned());
///     })?;
/// }
/// assert_eq!(words, ["one", "two", "three"]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UdpPort {
    socket: UdpSocket,
    addr: SocketAddr,
    receiving: Receiving,
    sending: Sending,
    cuts: bool,
    coalesces: bool,
    receive_buffer_bytes: usize,
    send_buffer_bytes: usize,
    /// Own addresses that datagrams came to; [`Via`] numbers them from 1.
    locals: Vec<IpAddr>,
    stats: UdpStats,
}

impl UdpPort {
    /// Opens a socket at `addr`; port 0 lets the system choose, an unspecified IPv6 address serves
    /// both families.
    ///
    /// # Errors
    /// The address is in use or not ours, or descriptors ran out.
    pub fn bind(addr: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        crate::listener::allow_both_families(&socket, addr)?;
        if options.shared {
            socket.set_reuse_port(true)?;
        }
        let size = |bytes: usize| libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
        // Beyond the limit only with privileges; then the plain request gets as much as there is.
        let force = |option, bytes| batch::set_option(socket.as_fd(), libc::SOL_SOCKET, option, size(bytes));
        if force(libc::SO_RCVBUFFORCE, options.receive_buffer_bytes).is_err() {
            socket.set_recv_buffer_size(options.receive_buffer_bytes)?;
        }
        if force(libc::SO_SNDBUFFORCE, options.send_buffer_bytes).is_err() {
            socket.set_send_buffer_size(options.send_buffer_bytes)?;
        }
        // The kernel reports twice what it grants: half is for its own bookkeeping.
        let receive_buffer_bytes = socket.recv_buffer_size()? / 2;
        let send_buffer_bytes = socket.send_buffer_size()? / 2;
        let has = |option| batch::set_option(socket.as_fd(), libc::SOL_UDP, option, 0).is_ok();
        let cuts = options.segmentation && has(libc::UDP_SEGMENT);
        let coalesces = options.segmentation
            && batch::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        report_own_address(socket.as_fd(), addr)?;
        socket.bind(&addr.into())?;
        let socket: UdpSocket = socket.into();
        let addr = socket.local_addr()?;
        Ok(Self {
            socket,
            addr,
            receiving: Receiving::new(coalesces),
            sending: Sending::new(),
            cuts,
            coalesces,
            receive_buffer_bytes,
            send_buffer_bytes,
            locals: Vec::new(),
            stats: UdpStats::default(),
        })
    }

    /// Opens `count` sockets at one address, for as many threads.
    ///
    /// Unless `options` ask for sharing, an address that another process has open is refused even
    /// if that process shares it: two servers on one port would split the peers.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_all(mut addr: SocketAddr, options: &UdpOptions, count: usize) -> io::Result<Vec<Self>> {
        if count > 1 && !options.shared && addr.port() != 0 {
            drop(Self::bind(addr, options)?);
        }
        let options = UdpOptions { shared: count > 1 || options.shared, ..options.clone() };
        let mut ports = Vec::with_capacity(count);
        for _ in 0..count {
            let port = Self::bind(addr, &options)?;
            addr = port.local_addr();
            ports.push(port);
        }
        Ok(ports)
    }

    /// Takes one batch of what has arrived and shows it to `on_datagram`, in order, empty datagrams
    /// included. Returns whether there may be more. Never waits.
    ///
    /// # Errors
    /// When the socket itself failed. Reports about single datagrams that were sent earlier are not
    /// errors.
    pub fn receive(&mut self, mut on_datagram: impl FnMut(SocketAddr, &[u8])) -> io::Result<bool> {
        self.receive_via(|from, _, datagram| on_datagram(from, datagram))
    }

    /// As [`receive`](Self::receive), with the own address that a datagram came to, if the socket
    /// serves all of them.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn receive_via(&mut self, on_datagram: impl FnMut(SocketAddr, Via, &[u8])) -> io::Result<bool> {
        let more = self.fetch()?;
        self.read(on_datagram);
        Ok(more)
    }

    /// First half of [`receive_via`](Self::receive_via): takes a batch, to be shown by
    /// [`read`](Self::read). Returns whether there may be more.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn fetch(&mut self) -> io::Result<bool> {
        match self.receiving.receive(self.socket.as_fd()) {
            Ok(count) => {
                self.stats.reads += 1;
                Ok(count == batch::BATCH)
            }
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Senders of the batch that was fetched, one for each message of the kernel.
    pub fn senders(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        (0..self.receiving.len()).filter_map(|index| self.receiving.message(index)).map(|(from, ..)| from)
    }

    /// Second half: shows the batch that was fetched.
    pub fn read(&mut self, mut on_datagram: impl FnMut(SocketAddr, Via, &[u8])) {
        for index in 0..self.receiving.len() {
            let Some((from, local, bytes, segment)) = self.receiving.message(index) else {
                self.stats.oversized += 1;
                continue;
            };
            let via = local.map_or(Via::default(), |local| number(&mut self.locals, local));
            self.stats.bytes_in += bytes.len() as u64;
            if bytes.is_empty() {
                self.stats.datagrams_in += 1;
                on_datagram(from, via, bytes);
                continue;
            }
            for datagram in bytes.chunks(segment.max(1)) {
                self.stats.datagrams_in += 1;
                on_datagram(from, via, datagram);
            }
        }
    }

    /// Adds a datagram to those that the next [`flush`](Self::flush) sends. Nothing is sent before,
    /// so a caller bounds what waits by flushing when [`pending`](Self::pending) has grown to what
    /// it wants to hold.
    pub fn push(&mut self, to: SocketAddr, bytes: &[u8]) {
        self.push_via(to, Via::default(), bytes);
    }

    /// As [`push`](Self::push), from an own address that [`receive_via`](Self::receive_via) named.
    /// A datagram whose address the machine no longer has is dropped and counted.
    pub fn push_via(&mut self, to: SocketAddr, via: Via, bytes: &[u8]) {
        let local = usize::from(via.0).checked_sub(1).and_then(|at| self.locals.get(at)).copied();
        self.sending.push(to, local, bytes, self.cuts);
    }

    /// Datagrams that wait for [`flush`](Self::flush).
    #[must_use]
    pub fn pending(&self) -> usize {
        self.sending.datagrams()
    }

    /// Sends what waits. False when the send buffer is full: the rest still waits then, for a later
    /// flush.
    ///
    /// A datagram that the kernel refuses is dropped and counted; the ones after it go out.
    ///
    /// # Errors
    /// When the socket itself failed.
    pub fn flush(&mut self) -> io::Result<bool> {
        let is_v6 = self.addr.is_ipv6();
        while self.sending.len() > 0 {
            match self.sending.send(self.socket.as_fd(), is_v6) {
                Ok((_, datagrams, bytes)) => {
                    self.stats.writes += 1;
                    self.stats.datagrams_out += datagrams as u64;
                    self.stats.bytes_out += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock || crate::sys::is_out_of_memory(&error) =>
                {
                    self.stats.blocked += 1;
                    return Ok(false);
                }
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Err(error),
                Err(error) if self.sending.first_is_segmented() => {
                    // EIO: the network card cannot do the checksums of what it would have to cut.
                    self.cuts &= error.raw_os_error() != Some(libc::EIO);
                    self.sending.split_first();
                }
                Err(_) => self.stats.refused += self.sending.skip() as u64,
            }
        }
        Ok(true)
    }

    /// The address that the socket got.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The descriptor, to wait for.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes of datagrams, with the kernel's overhead, that may wait in the kernel to be received.
    #[must_use]
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Bytes that may wait in the kernel to be sent.
    #[must_use]
    pub fn send_buffer_bytes(&self) -> usize {
        self.send_buffer_bytes
    }

    /// True if the kernel cuts up runs of datagrams to one address (GSO), as far as is known.
    #[must_use]
    pub fn cuts(&self) -> bool {
        self.cuts
    }

    /// True if the kernel coalesces runs of datagrams from one sender (GRO).
    #[must_use]
    pub fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Counts since the port was opened.
    #[must_use]
    pub fn stats(&self) -> &UdpStats {
        &self.stats
    }
}

impl std::fmt::Debug for UdpPort {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("UdpPort");
        out.field("addr", &self.addr).field("cuts", &self.cuts).field("coalesces", &self.coalesces);
        out.field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// The number of an own address. Beyond what a machine may have, the system chooses.
fn number(locals: &mut Vec<IpAddr>, local: IpAddr) -> Via {
    let at = locals.iter().position(|known| *known == local).unwrap_or_else(|| {
        if locals.len() < LOCALS_MAX {
            locals.push(local);
        }
        locals.len() - 1
    });
    if locals[at] == local { Via(at as u16 + 1) } else { Via::default() }
}

/// Maximum number of local addresses that are distinguished. Every datagram searches them linearly.
const LOCALS_MAX: usize = 64;

/// Nothing to receive now, or a report about a datagram sent earlier, which says nothing about the
/// socket.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | Interrupted | ConnectionRefused | HostUnreachable | NetworkUnreachable
    ) || crate::sys::is_out_of_memory(error)
}

/// Has the kernel report the own address that each datagram comes to, if the socket is to serve all
/// of them: a server with several addresses answers from the one that was asked.
pub(crate) fn report_own_address(socket: BorrowedFd<'_>, addr: SocketAddr) -> io::Result<()> {
    if !addr.ip().is_unspecified() {
        return Ok(());
    }
    let (level, option) = match addr {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    batch::set_option(socket, level, option, 1)
}

/// Any address and port from which `to` can be reached.
pub(crate) fn any_address(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(addr: &str, options: &UdpOptions) -> UdpPort {
        UdpPort::bind(addr.parse().unwrap(), options).unwrap()
    }

    /// Sends `datagrams` from one port to another and returns what arrives, in order.
    fn exchange(from: &mut UdpPort, to: &mut UdpPort, at: SocketAddr, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut arrived = Vec::new();
        // In parts, so that no receive buffer is too small.
        for part in datagrams.chunks(100) {
            part.iter().for_each(|datagram| from.push(at, datagram));
            assert!(from.flush().unwrap());
            // Loopback delivers before the send returns.
            while to.receive(|_, bytes| arrived.push(bytes.to_vec())).unwrap() {}
        }
        arrived
    }

    fn mixed() -> Vec<Vec<u8>> {
        // Runs of equal length, shorter ends, single ones, empty ones, and a run beyond what one
        // buffer holds.
        let lengths = [40, 40, 40, 7, 40, 100, 0, 100, 100, 0, 0, 1392, 1392, 1392, 4, 4];
        let long = std::iter::repeat_n(1200, 90);
        lengths.into_iter().chain(long).enumerate().map(|(i, len)| vec![i as u8; len]).collect()
    }

    #[test]
    fn datagrams_arrive_as_they_were_pushed_whatever_the_kernel_offers() {
        for segmentation in [true, false] {
            let options = UdpOptions { segmentation, ..UdpOptions::default() };
            let (mut a, mut b) = (port("127.0.0.1:0", &options), port("127.0.0.1:0", &options));
            let at = b.local_addr();
            assert_eq!(exchange(&mut a, &mut b, at, &mixed()), mixed(), "segmentation {segmentation}");
            assert_eq!(a.stats().datagrams_out, mixed().len() as u64);
            assert_eq!(b.stats().datagrams_in, mixed().len() as u64);
            assert_eq!(a.pending(), 0);
        }
    }

    #[test]
    fn answers_leave_from_the_address_that_was_asked() {
        for (any, asked, other) in [
            ("0.0.0.0:0", "127.0.0.2", "127.0.0.3"),
            ("[::]:0", "::1", "::1"),
            // IPv4 on a socket of IPv6.
            ("[::]:0", "127.0.0.2", "127.0.0.3"),
        ] {
            let Ok(mut server) = UdpPort::bind(any.parse().unwrap(), &UdpOptions::default()) else {
                continue; // A machine without IPv6.
            };
            let server_port = server.local_addr().port();
            let mut clients: Vec<(UdpPort, SocketAddr)> = [asked, other]
                .map(|ip| {
                    let ip: IpAddr = ip.parse().unwrap();
                    let own = SocketAddr::new(if ip.is_ipv4() { [127, 0, 0, 1].into() } else { ip }, 0);
                    (UdpPort::bind(own, &UdpOptions::default()).unwrap(), SocketAddr::new(ip, server_port))
                })
                .into();
            for (client, at) in &mut clients {
                client.push(*at, b"question");
                assert!(client.flush().unwrap());
            }
            let mut asked = Vec::new();
            while asked.len() < 2 {
                server.receive_via(|from, via, _| asked.push((from, via))).unwrap();
            }
            for &(from, via) in &asked {
                // Two of one length: also where the kernel cuts them apart.
                server.push_via(from, via, b"answer");
                server.push_via(from, via, b"answer");
            }
            assert!(server.flush().unwrap());
            for (client, at) in &mut clients {
                let mut senders = Vec::new();
                while senders.len() < 2 {
                    client.receive(|from, _| senders.push(from)).unwrap();
                }
                assert_eq!(senders, [*at; 2], "{any}");
            }
        }
    }

    #[test]
    fn an_own_address_that_vanished_drops_its_datagrams_and_no_others() {
        let mut server = port("0.0.0.0:0", &UdpOptions::default());
        let mut client = port("127.0.0.1:0", &UdpOptions::default());
        let to = client.local_addr();
        let gone = number(&mut server.locals, [192, 0, 2, 1].into());
        server.push(to, b"one");
        server.push_via(to, gone, b"two");
        server.push_via(to, gone, b"six");
        server.push(to, b"ten");
        assert!(server.flush().unwrap());
        let mut words = Vec::new();
        while words.len() < 2 {
            client.receive(|_, bytes| words.push(bytes.to_vec())).unwrap();
        }
        assert_eq!(words, [b"one", b"ten"]);
        assert_eq!((server.stats().refused, server.stats().datagrams_out), (2, 2));
    }

    #[test]
    fn a_run_arrives_at_a_receiver_that_does_not_coalesce() {
        let plain = UdpOptions { segmentation: false, ..UdpOptions::default() };
        let (mut a, mut b) = (port("127.0.0.1:0", &UdpOptions::default()), port("127.0.0.1:0", &plain));
        let at = b.local_addr();
        assert_eq!(exchange(&mut a, &mut b, at, &mixed()), mixed());
    }

    #[test]
    fn one_socket_serves_both_families_and_names_ipv4_peers_by_their_address() {
        let Ok(mut both) = UdpPort::bind("[::]:0".parse().unwrap(), &UdpOptions::default()) else {
            return; // A machine without IPv6.
        };
        let mut old = port("127.0.0.1:0", &UdpOptions::default());
        let at = SocketAddr::from(([127, 0, 0, 1], both.local_addr().port()));
        let mut senders = Vec::new();
        old.push(at, b"ping");
        old.flush().unwrap();
        both.receive(|from, _| senders.push(from)).unwrap();
        assert_eq!(senders, [old.local_addr()]);
        both.push(old.local_addr(), b"pong");
        both.flush().unwrap();
        let mut answers = Vec::new();
        old.receive(|from, bytes| answers.push((from, bytes.to_vec()))).unwrap();
        assert_eq!(answers, [(at, b"pong".to_vec())]);
    }

    #[test]
    fn a_datagram_that_cannot_be_sent_does_not_hold_up_the_next() {
        let (mut a, mut b) =
            (port("127.0.0.1:0", &UdpOptions::default()), port("127.0.0.1:0", &UdpOptions::default()));
        a.push(SocketAddr::from(([127, 0, 0, 1], 0)), b"nowhere");
        a.push(b.local_addr(), b"somewhere");
        assert!(a.flush().unwrap());
        let mut arrived = Vec::new();
        b.receive(|_, bytes| arrived.push(bytes.to_vec())).unwrap();
        assert_eq!(arrived, [b"somewhere"]);
        assert_eq!(a.stats().refused, 1);
    }

    #[test]
    fn a_sender_meets_the_same_socket_of_a_shared_port() {
        let options = UdpOptions::default();
        let ports = UdpPort::bind_all("127.0.0.1:0".parse().unwrap(), &options, 2).unwrap();
        let addr = ports[0].local_addr();
        let Ok([mut first, mut second]) = <[UdpPort; 2]>::try_from(ports) else { panic!("two") };
        let taken = UdpPort::bind_all(addr, &options, 2).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "another server's");
        let mut places = std::collections::HashMap::new();
        let senders: Vec<UdpPort> = (0..40).map(|_| port("127.0.0.1:0", &UdpOptions::default())).collect();
        for mut sender in senders {
            for _ in 0..3 {
                sender.push(first.local_addr(), b"x");
                sender.flush().unwrap();
            }
            for (place, port) in [&mut first, &mut second].into_iter().enumerate() {
                port.receive(|from, _| {
                    assert_eq!(*places.entry(from).or_insert(place), place, "{from} moved");
                })
                .unwrap();
            }
        }
        assert_eq!(places.len(), 40);
        assert!([0, 1].iter().all(|place| places.values().any(|found| found == place)), "both are used");
    }
}
