//! Non-blocking sockets with the two operations a lean receiver needs: read, and discard without
//! copying.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use socket2::{Domain, Protocol, Socket, Type};

/// A non-blocking stream socket.
#[derive(Debug)]
pub(crate) struct Stream(Socket);

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Empty,
    /// The peer will send no more.
    End,
}

impl Stream {
    /// Starts connecting to `to`, from the local address `from` when given.
    ///
    /// `receive_buffer` bounds the kernel's receive buffer in bytes (for receivers that are meant
    /// to stall).
    pub(crate) fn connect(
        to: SocketAddr,
        from: Option<IpAddr>,
        receive_buffer: Option<usize>,
    ) -> io::Result<Self> {
        let socket =
            Socket::new(Domain::for_address(to), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(from) = from {
            // Leaves the port to `connect`, which can then reuse one port towards several
            // destinations.
            set_bind_address_no_port(&socket)?;
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Self(socket))
    }

    /// A UDP socket that talks to `to` only.
    pub(crate) fn connect_datagram(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Self> {
        let socket =
            Socket::new(Domain::for_address(to), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        socket.connect(&to.into())?;
        Ok(Self(socket))
    }

    /// Wraps an accepted connection.
    pub(crate) fn accepted(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        Ok(Self(socket))
    }

    /// The error with which a pending connect ended, if it has.
    pub(crate) fn connect_error(&self) -> Option<io::Error> {
        self.0.take_error().unwrap_or_else(Some)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Reads into `buf`.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<Taken> {
        // SAFETY: the pointer and length describe `buf`, which stays borrowed for the call.
        let count = unsafe { libc::recv(self.raw(), buf.as_mut_ptr().cast(), buf.len(), 0) };
        taken(count)
    }

    /// Drops up to `bytes` received bytes without copying them out of the kernel.
    pub(crate) fn discard(&self, bytes: usize) -> io::Result<Taken> {
        // SAFETY: with MSG_TRUNC a TCP socket writes nothing to the buffer (tcp(7)), so a null
        // pointer is in order.
        let count = unsafe { libc::recv(self.raw(), std::ptr::null_mut(), bytes, libc::MSG_TRUNC) };
        taken(count)
    }

    /// Writes a part of `bytes`; 0 when the send buffer is full.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            other => other,
        }
    }
}

fn taken(count: isize) -> io::Result<Taken> {
    match usize::try_from(count) {
        Ok(0) => Ok(Taken::End),
        Ok(count) => Ok(Taken::Bytes(count)),
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Taken::Empty),
                _ => Err(error),
            }
        }
    }
}

fn set_bind_address_no_port(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option value is one `c_int`, as the length says.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Loopback source addresses in use, so that more than one address's worth of ports is at hand.
///
/// One source address has about 28,000 ephemeral ports towards one destination; each of these
/// serves 10,000.
const CONNECTIONS_PER_SOURCE: usize = 10_000;

/// The local address that connection number `index` should use towards `to`: one of 127.0.0.1,
/// 127.0.0.2, ... for loopback destinations, the system's choice otherwise.
pub(crate) fn source_for(to: SocketAddr, index: usize) -> Option<IpAddr> {
    match to.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            let last = 1 + (index / CONNECTIONS_PER_SOURCE) % 250;
            Some(IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, u8::try_from(last).unwrap_or(1))))
        }
        _ => None,
    }
}

/// Descriptors that a generator with a socket per client may need.
const DESCRIPTORS: u64 = 131_072;

/// Raises the limit of open descriptors as far as the system allows and returns it.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    let more = libc::rlimit { rlim_cur: DESCRIPTORS, rlim_max: DESCRIPTORS };
    // SAFETY: `more` is valid for the call, which raises the hard limit for a privileged process
    // and fails for others.
    if limit.rlim_max < DESCRIPTORS && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const more) } == 0 {
        return DESCRIPTORS;
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
    // SAFETY: `wanted` is valid for the call; asking for the hard limit is always permitted.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0 {
        wanted.rlim_cur
    } else {
        limit.rlim_cur
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn discarded_bytes_are_gone_and_the_rest_is_readable() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let client = Stream::connect(listener.local_addr().expect("bound"), None, None).expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        server.write_all(b"skip me|keep").expect("write");
        drop(server);
        let mut left = 8;
        while left > 0 {
            match client.discard(left).expect("discard") {
                Taken::Bytes(count) => left -= count,
                Taken::Empty => std::thread::yield_now(),
                Taken::End => panic!("the stream ended early"),
            }
        }
        let mut seen = Vec::new();
        let mut buf = [0; 16];
        loop {
            match client.read(&mut buf).expect("read") {
                Taken::Bytes(count) => seen.extend_from_slice(&buf[..count]),
                Taken::Empty => std::thread::yield_now(),
                Taken::End => break,
            }
        }
        assert_eq!(seen, b"keep");
    }

    #[test]
    fn sources_change_before_ports_run_out() {
        let loopback: SocketAddr = "127.0.0.1:1".parse().expect("address");
        assert_eq!(source_for(loopback, 0), Some("127.0.0.1".parse().expect("ip")));
        assert_eq!(source_for(loopback, 10_000), Some("127.0.0.2".parse().expect("ip")));
        assert_eq!(source_for("192.0.2.1:1".parse().expect("address"), 10_000), None);
    }
}
