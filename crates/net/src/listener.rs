//! Listening sockets and the counts that bound their connections.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConnection;
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::{Limits, ListenerSpec, Transport, WsPolicy};
use crate::stream::Stream;
use crate::tls::TlsAcceptor;
use crate::udp::batch;
use crate::{sys, ws};

/// Bytes of a connection that the kernel takes before it has sent them. What it holds cannot be
/// merged with newer state, and its buffer grows to 4 MiB by itself: a reader of 100 kB/s would see
/// the state of 40 s ago.
const UNSENT_BYTES_MAX: libc::c_int = 256 << 10;

/// A listening TCP or Unix socket.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// File of a Unix socket.
    path: Option<PathBuf>,
    pub(crate) admission: Arc<Admission>,
    /// Shared with its connections.
    pub(crate) rules: Arc<Rules>,
    websocket: bool,
    pub(crate) proxy_protocol: bool,
    /// Descriptors from this number on are beyond the listener's share: the system gives out the
    /// lowest that is free.
    descriptors_end: u64,
    tls: Option<TlsAcceptor>,
    /// Not registered with epoll because descriptors ran out; a timer brings it back.
    pub(crate) resting: bool,
}

impl Listener {
    pub(crate) fn bind(spec: ListenerSpec) -> io::Result<(Self, SocketAddr)> {
        let socket = Socket::new(Domain::for_address(spec.addr), Type::STREAM, Some(Protocol::TCP))?;
        // A restarted server must not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        allow_both_families(&socket, spec.addr)?;
        // Set before `listen`, so that the window scale announced in the handshake fits the buffer.
        if let Some(bytes) = spec.limits.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = spec.limits.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        // Accepted sockets inherit it.
        batch::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)?;
        socket.bind(&spec.addr.into())?;
        socket.listen(i32::try_from(spec.limits.backlog).unwrap_or(i32::MAX))?;
        let socket: TcpListener = socket.into();
        let addr = socket.local_addr()?;
        let admission = Arc::new(Admission::new(&spec.limits));
        let rules = Rules::of(&spec);
        let websocket = spec.transport == Transport::WebSocket;
        let listener = Self {
            socket: socket.into(),
            path: None,
            admission,
            descriptors_end: descriptors_end(&spec.limits),
            rules,
            websocket,
            proxy_protocol: spec.proxy_protocol,
            tls: spec.tls,
            resting: false,
        };
        Ok((listener, addr))
    }

    /// Listens on a Unix socket, without layers. A file that a server left which is gone is
    /// replaced.
    pub(crate) fn bind_unix(path: &Path, limits: Limits) -> io::Result<Self> {
        let is_left_over = || {
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            UnixStream::connect(path).err().is_some_and(refused)
        };
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over() => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        socket.set_nonblocking(true)?;
        let path = Some(path.to_owned());
        let admission = Arc::new(Admission::new(&limits));
        let descriptors_end = descriptors_end(&limits);
        let rules = Arc::new(Rules { limits, ws: Arc::default(), ping_interval: None });
        Ok(Self {
            socket: socket.into(),
            path,
            admission,
            rules,
            websocket: false,
            proxy_protocol: false,
            descriptors_end,
            tls: None,
            resting: false,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Wraps an accepted socket in the listener's layers.
    pub(crate) fn stream(&self, fd: OwnedFd) -> Result<Stream, rustls::Error> {
        let tls = match &self.tls {
            Some(acceptor) => Some(ServerConnection::new(acceptor.current())?.into()),
            None => None,
        };
        let ws = self.websocket.then(|| ws::Endpoint::server(self.rules.ws.clone()));
        Ok(Stream::accepted(fd, self.proxy_protocol, tls, ws))
    }

    /// Number of the spared descriptors that are taken, a new connection's included.
    pub(crate) fn shortage(&self, fd: &OwnedFd) -> u64 {
        u64::try_from(fd.as_raw_fd()).map_or(0, |number| (number + 1).saturating_sub(self.descriptors_end))
    }

    pub(crate) fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        let (fd, peer) = sys::accept(self.socket.as_fd())?;
        Ok((fd, canonical(peer)))
    }
}

fn descriptors_end(limits: &Limits) -> u64 {
    match limits.descriptors_spared {
        0 => u64::MAX,
        spared => sys::descriptor_limit().saturating_sub(spared),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Somebody else's business if it is gone already.
            drop(std::fs::remove_file(path));
        }
    }
}

/// Settings that a connection takes from its listener.
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    ws: Arc<WsPolicy>,
    pub(crate) ping_interval: Option<Duration>,
}

impl Rules {
    /// Rules for the connections of a listener.
    pub(crate) fn of(spec: &ListenerSpec) -> Arc<Self> {
        let ping_interval = match spec.transport {
            Transport::WebSocket => spec.ws.ping_interval,
            _ => None,
        };
        Arc::new(Self { limits: spec.limits.clone(), ws: spec.ws.clone(), ping_interval })
    }

    /// Rules for an outgoing connection.
    pub(crate) fn outgoing(flush_timeout: Duration) -> Arc<Self> {
        let limits = Limits { flush_timeout, ..Limits::default() };
        Arc::new(Self { limits, ws: Arc::default(), ping_interval: None })
    }
}

/// A descriptor kept in reserve, so that connections can still be taken off the queue and closed
/// when there are no others left. Without it they would stay queued, and the listener would report
/// them in every wait.
pub(crate) struct ReservedDescriptor(Option<File>);

impl ReservedDescriptor {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Some(Self::open()?)))
    }

    fn open() -> io::Result<File> {
        File::open("/dev/null")
    }

    /// Takes up to `count` connections off the queue and closes them. Returns how many.
    pub(crate) fn shed(&mut self, listener: &Listener, count: usize) -> usize {
        let mut shed = 0;
        while shed < count {
            if self.0.take().is_none() {
                // Another thread got the descriptor last time; try for one again.
                self.0 = Self::open().ok();
                if self.0.take().is_none() {
                    break;
                }
            }
            let accepted = listener.accept();
            let done = accepted.is_err();
            drop(accepted);
            self.0 = Self::open().ok();
            if done {
                break;
            }
            shed += 1;
        }
        shed
    }
}

/// Counts a listener's open connections, on whichever thread they live.
#[derive(Debug)]
pub(crate) struct Admission {
    connections_max: usize,
    per_ip_max: Option<usize>,
    /// A newcomer found no place: a connection that only says goodbye is to make room.
    wanted: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    open: usize,
    per_ip: HashMap<IpAddr, usize>,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            connections_max: limits.connections_max,
            per_ip_max: limits.connections_per_ip_max,
            wanted: AtomicBool::new(false),
            counts: Mutex::default(),
        }
    }

    /// No place is left, whatever the address.
    pub(crate) fn is_full(&self) -> bool {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).open >= self.connections_max
    }

    /// Counts one more connection from `ip`, unless that would exceed a limit; `None` for that of a
    /// proxy, which stands for many.
    pub(crate) fn permit(self: &Arc<Self>, ip: Option<IpAddr>) -> Option<Permit> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.open >= self.connections_max {
            self.wanted.store(true, Ordering::Relaxed);
            return None;
        }
        self.wanted.store(false, Ordering::Relaxed);
        let ip = ip.map(origin);
        if !self.count_ip(&mut counts, ip) {
            return None;
        }
        counts.open += 1;
        Some(Permit { admission: self.clone(), ip })
    }

    fn count_ip(&self, counts: &mut Counts, ip: Option<IpAddr>) -> bool {
        let (Some(max), Some(ip)) = (self.per_ip_max, ip) else { return true };
        let from_ip = counts.per_ip.entry(ip).or_default();
        if *from_ip >= max {
            return false;
        }
        *from_ip += 1;
        true
    }

    fn uncount_ip(&self, counts: &mut Counts, ip: Option<IpAddr>) {
        if self.per_ip_max.is_some()
            && let Some(ip) = ip
            && let Some(from_ip) = counts.per_ip.get_mut(&ip)
        {
            *from_ip -= 1;
            if *from_ip == 0 {
                counts.per_ip.remove(&ip);
            }
        }
    }
}

/// The count of one open connection; dropping it takes the count back.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    ip: Option<IpAddr>,
}

impl Permit {
    /// True if a new connection of the same listener found no room.
    pub(crate) fn is_wanted(&self) -> bool {
        self.admission.wanted.swap(false, Ordering::Relaxed)
    }

    /// Counts the connection for the address that a proxy has reported. `false` if that has as many
    /// as it may.
    pub(crate) fn comes_from(&mut self, ip: IpAddr) -> bool {
        let mut counts = self.admission.counts.lock().unwrap_or_else(PoisonError::into_inner);
        self.admission.uncount_ip(&mut counts, self.ip.take());
        let counted = self.admission.count_ip(&mut counts, Some(origin(ip)));
        self.ip = counted.then(|| origin(ip));
        counted
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.admission.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.open -= 1;
        self.admission.uncount_ip(&mut counts, self.ip);
    }
}

/// Lets `[::]` serve IPv4 as well, whatever the system's default is.
pub(crate) fn allow_both_families(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    if addr.is_ipv6() && addr.ip().is_unspecified() { socket.set_only_v6(false) } else { Ok(()) }
}

/// An IPv4 peer of such a socket has an IPv6 address; bans and logs mean the IPv4 one.
pub(crate) fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// The unit that limits per address count: an IPv4 address, or an IPv6 /64, which is what one
/// customer gets.
pub(crate) fn origin(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_bounded_in_total_and_per_address_and_come_back() {
        let limits = Limits { connections_max: 3, connections_per_ip_max: Some(2), ..Limits::default() };
        let admission = Arc::new(Admission::new(&limits));
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = admission.permit(Some(a)).unwrap();
        let _second = admission.permit(Some(a)).unwrap();
        assert!(admission.permit(Some(a)).is_none(), "third of one address");
        let mut third = admission.permit(None).unwrap();
        assert!(!third.comes_from(a), "third of one address, by a proxy");
        assert!(third.comes_from(b));
        assert!(admission.permit(Some(b)).is_none(), "fourth in total");
        drop(first);
        assert!(third.comes_from(a));
        assert!(admission.permit(Some(a)).is_none(), "both places of the address are taken again");
    }

    #[test]
    fn an_ipv6_customer_counts_as_one_origin() {
        let a: IpAddr = "2001:db8:1:2::1".parse().unwrap();
        let b: IpAddr = "2001:db8:1:2:ffff::9".parse().unwrap();
        let c: IpAddr = "2001:db8:1:3::1".parse().unwrap();
        assert_eq!(origin(a), origin(b));
        assert_ne!(origin(a), origin(c));
        assert_eq!(origin("::ffff:10.0.0.1".parse().unwrap()), IpAddr::from([10, 0, 0, 1]));
    }
}
