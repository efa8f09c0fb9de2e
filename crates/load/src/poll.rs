//! The thinnest possible readiness loop: level-triggered epoll with a timeout in nanoseconds.
//!
//! The generator deliberately does not use the server's event loop: the generator and the measured
//! server must not share a bottleneck or a defect.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Events taken per wait. More would delay sends that fall due while a long batch is handled.
const EVENTS_PER_WAIT: usize = 256;
/// Events this close together share a wake-up. One per send or per frame would cost more than the
/// send or the frame, the sender included: waking a thread is its work. Latency counts from the
/// intended time, so it shows there.
pub(crate) const BUNDLE: Duration = Duration::from_micros(500);

/// One epoll instance.
#[derive(Debug)]
pub(crate) struct Poller {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// The latest [`Poller::gather`] found something, and not more than it could take.
    found: bool,
}

/// Readiness of a registered socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// The number given at registration.
    pub(crate) token: usize,
    /// Bytes, an end of stream or an error wait to be read.
    pub(crate) readable: bool,
    /// The send buffer has room, or the connection has been established.
    pub(crate) writable: bool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers involved; the result is checked before use.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a fresh descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_WAIT], found: false })
    }

    /// Watches `socket`; it must stay open until `remove` or be closed.
    pub(crate) fn add(&self, socket: RawFd, token: usize, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, read, write)
    }

    /// Changes the events that `socket` is watched for.
    pub(crate) fn modify(&self, socket: RawFd, token: usize, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, read, write)
    }

    /// As [`Poller::wait`], for many sockets with little for each: while there is something to
    /// read, it is picked up every [`BUNDLE`], as an interrupt-moderating network card would.
    pub(crate) fn gather(&mut self, mut timeout: Duration) -> io::Result<ReadyList<'_>> {
        if self.found {
            std::thread::sleep(timeout.min(BUNDLE));
            timeout = Duration::ZERO;
        }
        let count = self.wait(timeout)?.0.len();
        self.found = (1..EVENTS_PER_WAIT).contains(&count);
        Ok(ReadyList(self.events[..count].iter()))
    }

    /// Waits until something is ready, at most `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<ReadyList<'_>> {
        let timeout = libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: the event buffer is valid for `EVENTS_PER_WAIT` entries, the timeout for one; no
        // signal mask is given.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_PER_WAIT,
                &raw const timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
                0
            }
        };
        Ok(ReadyList(self.events[..count].iter()))
    }

    fn control(&self, op: i32, socket: RawFd, token: usize, read: bool, write: bool) -> io::Result<()> {
        let mut events = 0;
        if read {
            events |= libc::EPOLLIN | libc::EPOLLRDHUP;
        }
        if write {
            events |= libc::EPOLLOUT;
        }
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token as u64 };
        // SAFETY: `event` is valid for the call; the kernel checks both descriptors.
        if unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, socket, &raw mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// The sockets that one wait found ready.
pub(crate) struct ReadyList<'a>(std::slice::Iter<'a, libc::epoll_event>);

impl Iterator for ReadyList<'_> {
    type Item = Ready;

    fn next(&mut self) -> Option<Ready> {
        let event = *self.0.next()?;
        let broken = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
        let (events, token) = (event.events, event.u64);
        Some(Ready {
            token: usize::try_from(token).unwrap_or(usize::MAX),
            readable: events & ((libc::EPOLLIN | libc::EPOLLRDHUP).cast_unsigned() | broken) != 0,
            writable: events & (libc::EPOLLOUT.cast_unsigned() | broken) != 0,
        })
    }
}
