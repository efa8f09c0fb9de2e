//! The system calls that the standard library does not offer, each behind a safe function.
//!
//! `udp/batch.rs` is the only other module of the crate with `unsafe` in it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::SockAddr;

use crate::udp::batch::{Control, told, write_control};

pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
pub(crate) const WRITABLE: u32 = libc::EPOLLOUT as u32;
pub(crate) const PEER_SHUT: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const HUNG_UP: u32 = libc::EPOLLHUP as u32;
pub(crate) const FAILED: u32 = libc::EPOLLERR as u32;
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;

/// Events of one wait.
pub(crate) struct Events {
    buf: Vec<libc::epoll_event>,
    len: usize,
}

impl Events {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { buf: vec![libc::epoll_event { events: 0, u64: 0 }; capacity], len: 0 }
    }

    /// Event `index` of the last wait: its token and the conditions that hold.
    pub(crate) fn get(&self, index: usize) -> Option<(u64, u32)> {
        let event = self.buf[..self.len].get(index)?;
        Some((event.u64, event.events))
    }
}

/// An epoll instance.
pub(crate) struct Epoll {
    fd: OwnedFd,
    /// The kernel knows `epoll_pwait2` (5.11 and later), which takes nanoseconds.
    precise: AtomicBool,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed; the result is checked before it is owned.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` is a descriptor that the call above opened and that nothing else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, precise: AtomicBool::new(true) })
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: libc::c_int, fd: BorrowedFd<'_>, token: u64, interest: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token };
        // SAFETY: both descriptors are open for the length of the call (borrowed), `event` outlives
        // it.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// Waits for events, at most `timeout` (`None`: for ever). After an interruption, which a
    /// stopped process sees when it goes on, it looks once more for what has gathered.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        events.len = 0;
        let capacity = libc::c_int::try_from(events.buf.len()).unwrap_or(libc::c_int::MAX);
        let count = if self.precise.load(Ordering::Relaxed) {
            self.wait_precise(events, capacity, timeout)
        } else {
            self.wait_coarse(events, capacity, timeout)
        };
        match count {
            Ok(count) => {
                events.len = usize::try_from(count).unwrap_or(0);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.wait(events, Some(Duration::ZERO))
            }
            // Old kernels do not know the call; some sandboxes answer EPERM for calls that they do
            // not know.
            Err(error)
                if self.precise.load(Ordering::Relaxed)
                    && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) =>
            {
                self.precise.store(false, Ordering::Relaxed);
                self.wait(events, timeout)
            }
            Err(error) => Err(error),
        }
    }

    fn wait_precise(
        &self,
        events: &mut Events,
        capacity: libc::c_int,
        timeout: Option<Duration>,
    ) -> io::Result<libc::c_int> {
        let spec = timeout.map(|t| libc::timespec {
            tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(t.subsec_nanos() as i32),
        });
        let spec_ptr = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `buf` has room for `capacity` events, `spec_ptr` is null or points to `spec`,
        // both outlive the call; a null signal mask leaves the mask alone (its size is then not
        // read).
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.buf.as_mut_ptr(),
                capacity,
                spec_ptr,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        check(libc::c_int::try_from(count).unwrap_or(-1))
    }

    fn wait_coarse(
        &self,
        events: &mut Events,
        capacity: libc::c_int,
        timeout: Option<Duration>,
    ) -> io::Result<libc::c_int> {
        // Rounded up: waking before the deadline would only spin until it.
        let millis = timeout.map_or(-1, |t| {
            libc::c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: `buf` has room for `capacity` events and outlives the call.
        check(unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.buf.as_mut_ptr(), capacity, millis) })
    }
}

fn limits() -> Option<libc::rlimit> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is a valid, writable rlimit for the duration of the call.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) } == 0).then_some(limits)
}

/// Descriptors that this process may have open; 0 where the system does not tell.
#[must_use]
pub fn descriptor_limit() -> u64 {
    limits().map_or(0, |limits| limits.rlim_cur)
}

/// Raises the soft limit of open descriptors to the hard one, since every connection takes one.
/// Returns the limit.
pub fn raise_descriptor_limit() -> u64 {
    let Some(mut limits) = limits() else { return 0 };
    let before = limits.rlim_cur;
    limits.rlim_cur = limits.rlim_max;
    // SAFETY: `limits` is a valid rlimit whose soft value does not exceed the hard one.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) } == 0 {
        limits.rlim_cur
    } else {
        before
    }
}

/// Nanoseconds since the machine was started, those in which it slept included.
pub(crate) fn boot_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes to nothing else. It cannot fail for a clock
    // that exists since 2011.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Opens a non-blocking event counter.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the result is checked before it is owned.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: `fd` is a descriptor that the call above opened and that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one connection off a listener's queue, non-blocking and closed on exec from the first
/// moment. A peer on a Unix socket has no address; it counts as 127.0.0.1 with port 0.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    // SAFETY: `try_init` hands out storage of the length it states; the kernel writes at most that
    // much and reports what it wrote, and the descriptor is checked before it is owned.
    let (fd, addr) = unsafe {
        SockAddr::try_init(|storage, len| {
            let fd = check(libc::accept4(
                listener.as_raw_fd(),
                storage.cast(),
                len,
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            ))?;
            Ok(OwnedFd::from_raw_fd(fd))
        })?
    };
    let local = || addr.is_unix().then(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let peer = addr.as_socket().or_else(local);
    Ok((fd, peer.ok_or_else(|| io::Error::other("peer address is not an IP address"))?))
}

/// An anonymous file in memory.
pub(crate) fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: `name` is a C string that outlives the call; the result is checked before it is
    // owned.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: `fd` is a descriptor that the call above opened and that nothing else owns.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Sends up to `len` bytes from the start of `file` without copying them. Returns how many the
/// kernel took.
pub(crate) fn send_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let mut offset: libc::off_t = 0;
    // SAFETY: both descriptors are open for the length of the call (borrowed), `offset` outlives
    // it.
    let count = unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Descriptors are used up, for the process or for the machine.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The kernel has no memory for the operation at the moment.
pub(crate) fn is_out_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Room for one received datagram; longer ones are dropped. KCP peers send 1400 bytes at most.
pub(crate) const DATAGRAM_BYTES: usize = 2048;
/// Datagrams taken or given per system call.
pub(crate) const DATAGRAM_BATCH: usize = 32;

/// A received datagram: its sender, the own address that it came to if the socket tells it, and
/// where it lies in the buffer.
pub(crate) type Arrived = (SocketAddr, Option<IpAddr>, Range<usize>);

/// Addresses of a datagram to send: the destination, `None` for the socket's peer, and the own
/// address, `None` for the system's choice.
pub(crate) type Addresses = (Option<SocketAddr>, Option<IpAddr>);

/// Receives up to a batch of datagrams into `buf`, which needs `DATAGRAM_BATCH * DATAGRAM_BYTES`
/// bytes. Appends those that fit to `arrived`. Returns how many the kernel gave, the others
/// included.
pub(crate) fn receive_datagrams(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    arrived: &mut Vec<Arrived>,
) -> io::Result<usize> {
    assert!(buf.len() >= DATAGRAM_BATCH * DATAGRAM_BYTES, "the buffer holds a batch");
    // SAFETY: all-zero is a valid value of these plain C structs; null pointers in them mean
    // "nothing".
    let mut names: [libc::sockaddr_storage; DATAGRAM_BATCH] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut iovs: [libc::iovec; DATAGRAM_BATCH] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; DATAGRAM_BATCH] = unsafe { mem::zeroed() };
    let mut controls = [Control::EMPTY; DATAGRAM_BATCH];
    for (index, part) in buf.chunks_exact_mut(DATAGRAM_BYTES).take(DATAGRAM_BATCH).enumerate() {
        iovs[index] = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: DATAGRAM_BYTES };
        let header = &mut messages[index].msg_hdr;
        header.msg_name = (&raw mut names[index]).cast();
        header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut iovs[index];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut controls[index]).cast();
        header.msg_controllen = mem::size_of::<Control>() as _;
    }
    // SAFETY: every header points to its own name, control data and iovec, and that to its own part
    // of `buf`; all of them are as long as stated and outlive the call. A null timeout means none.
    let count = check(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            DATAGRAM_BATCH as libc::c_uint,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    })?;
    let count = usize::try_from(count).unwrap_or(0);
    for (index, (message, name)) in messages.iter().zip(&names).take(count).enumerate() {
        let len = message.msg_len as usize;
        let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        if let Some(from) = socket_addr(name)
            && !truncated
        {
            let start = index * DATAGRAM_BYTES;
            arrived.push((from, told(&message.msg_hdr).local, start..start + len));
        }
    }
    Ok(count)
}

/// Sends up to a batch of datagrams, each to and from its addresses. Returns how many the kernel
/// took.
pub(crate) fn send_datagrams(socket: BorrowedFd<'_>, datagrams: &[(Addresses, &[u8])]) -> io::Result<usize> {
    let datagrams = &datagrams[..datagrams.len().min(DATAGRAM_BATCH)];
    let names: [Option<SockAddr>; DATAGRAM_BATCH] =
        std::array::from_fn(|index| datagrams.get(index).and_then(|((to, _), _)| to.map(SockAddr::from)));
    // SAFETY: all-zero is a valid value of these plain C structs; null pointers in them mean
    // "nothing".
    let mut iovs: [libc::iovec; DATAGRAM_BATCH] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; DATAGRAM_BATCH] = unsafe { mem::zeroed() };
    let mut controls = [Control::EMPTY; DATAGRAM_BATCH];
    for (index, ((_, local), bytes)) in datagrams.iter().enumerate() {
        iovs[index] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let header = &mut messages[index].msg_hdr;
        if let Some(name) = &names[index] {
            header.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_namelen = name.len();
        }
        header.msg_iov = &raw mut iovs[index];
        header.msg_iovlen = 1;
        let len = write_control(&mut controls[index], None, *local);
        if len > 0 {
            header.msg_control = (&raw mut controls[index]).cast();
            header.msg_controllen = len as _;
        }
    }
    // SAFETY: every header points to its own name and control data (or none) and iovec, and that to
    // its own bytes; all of them are as long as stated and outlive the call, which only reads them
    // although the C types are not const.
    let count = check(unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            datagrams.len() as libc::c_uint,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The IP address in `storage`, if it holds one.
fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel wrote an IPv4 address, as the family says; the storage is larger
            // than the type and aligned for every kind of address.
            let v4 = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for IPv6.
            let v6 = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}
