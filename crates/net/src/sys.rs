//! The system calls that the standard library does not offer, each behind a safe function.
//!
//! This is the only module of the crate with `unsafe` in it.
#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::SockAddr;

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
        // SAFETY: both descriptors are open for the length of the call (borrowed), `event` outlives it.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// Waits for events, at most `timeout` (`None`: for ever). An interrupted wait counts as no events.
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
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            // Old kernels do not know the call; some sandboxes answer EPERM for calls that they do not know.
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
        // SAFETY: `buf` has room for `capacity` events, `spec_ptr` is null or points to `spec`, both outlive the
        // call; a null signal mask leaves the mask alone (its size is then not read).
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

/// Opens a non-blocking event counter.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the result is checked before it is owned.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: `fd` is a descriptor that the call above opened and that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one connection off a listener's queue, non-blocking and closed on exec from the first moment.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    // SAFETY: `try_init` hands out storage of the length it states; the kernel writes at most that much and
    // reports what it wrote, and the descriptor is checked before it is owned.
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
    let addr = addr.as_socket().ok_or_else(|| io::Error::other("peer address is not an IP address"))?;
    Ok((fd, addr))
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
