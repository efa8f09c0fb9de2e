//! Sockets of the program's own: thin names for system calls.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr;

use libc::{sockaddr_in, socklen_t};

use crate::abi::{ENetAddress, ENetBuffer};
use crate::internals::count;

const NAME_LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;
const WAIT_SEND: u32 = 1;
const WAIT_RECEIVE: u32 = 2;
const WAIT_INTERRUPT: u32 = 4;

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_socket_create(kind: c_int) -> c_int {
    let kind = if kind == 2 { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    // SAFETY: no pointers.
    unsafe { libc::socket(libc::PF_INET, kind, 0) }
}

/// # Safety
/// `address` is null or points to an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_bind(socket: c_int, address: *const ENetAddress) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { address.as_ref() }.copied().unwrap_or_default().to_sockaddr();
    // SAFETY: the name has the stated length.
    unsafe { libc::bind(socket, (&raw const name).cast(), NAME_LEN) }
}

/// # Safety
/// `address` points to an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_get_address(socket: c_int, address: *mut ENetAddress) -> c_int {
    // SAFETY: all-zero is a valid name; its length is stated.
    unsafe {
        let (mut name, mut len): (sockaddr_in, _) = (zeroed(), NAME_LEN);
        if libc::getsockname(socket, (&raw mut name).cast(), &raw mut len) == -1 {
            return -1;
        }
        *address = ENetAddress::of_sockaddr(&name);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_socket_listen(socket: c_int, backlog: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::listen(socket, if backlog < 0 { libc::SOMAXCONN } else { backlog }) }
}

/// # Safety
/// `address` is null or points to an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_accept(socket: c_int, address: *mut ENetAddress) -> c_int {
    // SAFETY: all-zero is a valid name; its length is stated.
    unsafe {
        let (mut name, mut len): (sockaddr_in, _) = (zeroed(), NAME_LEN);
        let accepted = libc::accept(socket, (&raw mut name).cast(), &raw mut len);
        if let Some(address) = address.as_mut().filter(|_| accepted != -1) {
            *address = ENetAddress::of_sockaddr(&name);
        }
        accepted
    }
}

/// # Safety
/// `address` points to an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_connect(socket: c_int, address: *const ENetAddress) -> c_int {
    // SAFETY: the caller's promise; the name has the stated length.
    unsafe {
        let name = (*address).to_sockaddr();
        let result = libc::connect(socket, (&raw const name).cast(), NAME_LEN);
        if result == -1 && errno() == libc::EINPROGRESS { 0 } else { result }
    }
}

/// # Safety
/// `address` is null or points to an address, `buffers` to `buffer_count` buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_send(
    socket: c_int,
    address: *const ENetAddress,
    buffers: *const ENetBuffer,
    buffer_count: usize,
) -> c_int {
    // SAFETY: the caller's promise; the call reads what the header points to.
    unsafe {
        let mut name = address.as_ref().map(|address| address.to_sockaddr());
        let mut header: libc::msghdr = zeroed();
        if let Some(name) = &mut name {
            header.msg_name = ptr::from_mut(name).cast();
            header.msg_namelen = NAME_LEN;
        }
        header.msg_iov = buffers.cast_mut();
        header.msg_iovlen = buffer_count as _;
        let sent = libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL);
        if sent == -1 && errno() == libc::EWOULDBLOCK { 0 } else { count(sent) }
    }
}

/// # Safety
/// As for [`enet_socket_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_receive(
    socket: c_int,
    address: *mut ENetAddress,
    buffers: *mut ENetBuffer,
    buffer_count: usize,
) -> c_int {
    // SAFETY: the caller's promise; the call writes within what the header points to.
    unsafe {
        let (mut header, mut name): (libc::msghdr, sockaddr_in) = (zeroed(), zeroed());
        if !address.is_null() {
            header.msg_name = (&raw mut name).cast();
            header.msg_namelen = NAME_LEN;
        }
        header.msg_iov = buffers;
        header.msg_iovlen = buffer_count as _;
        let received = libc::recvmsg(socket, &raw mut header, libc::MSG_NOSIGNAL);
        if received == -1 {
            return if errno() == libc::EWOULDBLOCK { 0 } else { -1 };
        }
        if header.msg_flags & libc::MSG_TRUNC != 0 {
            return -1;
        }
        if let Some(address) = address.as_mut() {
            *address = ENetAddress::of_sockaddr(&name);
        }
        count(received)
    }
}

/// Waits for what `condition` asks, and writes what has come to it.
///
/// # Safety
/// `condition` points to the conditions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_wait(socket: c_int, condition: *mut u32, timeout_ms: u32) -> c_int {
    // SAFETY: the caller's promise.
    let condition = unsafe { &mut *condition };
    let mut poll = libc::pollfd { fd: socket, events: 0, revents: 0 };
    poll.events |= if *condition & WAIT_SEND != 0 { libc::POLLOUT } else { 0 };
    poll.events |= if *condition & WAIT_RECEIVE != 0 { libc::POLLIN } else { 0 };
    // SAFETY: one descriptor, as stated.
    let result = unsafe { libc::poll(&raw mut poll, 1, c_int::try_from(timeout_ms).unwrap_or(c_int::MAX)) };
    if result < 0 {
        let is_interrupt = errno() == libc::EINTR && *condition & WAIT_INTERRUPT != 0;
        *condition = if is_interrupt { WAIT_INTERRUPT } else { *condition };
        return if is_interrupt { 0 } else { -1 };
    }
    *condition = 0;
    *condition |= if poll.revents & libc::POLLOUT != 0 { WAIT_SEND } else { 0 };
    *condition |= if poll.revents & libc::POLLIN != 0 { WAIT_RECEIVE } else { 0 };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_socket_set_option(socket: c_int, option: c_int, value: c_int) -> c_int {
    if option == 1 {
        // SAFETY: the request takes a pointer to an integer.
        return unsafe { libc::ioctl(socket, libc::FIONBIO, &raw const value) };
    }
    let time = libc::timeval { tv_sec: (value / 1000).into(), tv_usec: (value % 1000 * 1000).into() };
    let integer = ((&raw const value).cast::<c_void>(), size_of::<c_int>());
    let timeout = ((&raw const time).cast::<c_void>(), size_of::<libc::timeval>());
    let (level, name, (data, len)) = match option {
        2 => (libc::SOL_SOCKET, libc::SO_BROADCAST, integer),
        3 => (libc::SOL_SOCKET, libc::SO_RCVBUF, integer),
        4 => (libc::SOL_SOCKET, libc::SO_SNDBUF, integer),
        5 => (libc::SOL_SOCKET, libc::SO_REUSEADDR, integer),
        6 => (libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeout),
        7 => (libc::SOL_SOCKET, libc::SO_SNDTIMEO, timeout),
        9 => (libc::IPPROTO_TCP, libc::TCP_NODELAY, integer),
        _ => return -1,
    };
    // SAFETY: `data` points to a local value of `len` bytes.
    if unsafe { libc::setsockopt(socket, level, name, data, len as socklen_t) } == -1 { -1 } else { 0 }
}

/// # Safety
/// `value` points to an integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socket_get_option(socket: c_int, option: c_int, value: *mut c_int) -> c_int {
    if option != 8 {
        return -1;
    }
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: the caller's promise; the length is stated.
    let result =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_ERROR, value.cast(), &raw mut len) };
    if result == -1 { -1 } else { 0 }
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_socket_shutdown(socket: c_int, how: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(socket, how) }
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_socket_destroy(socket: c_int) {
    if socket != -1 {
        // SAFETY: the program gives the descriptor up.
        unsafe { libc::close(socket) };
    }
}

/// # Safety
/// The sets are null or point to descriptor sets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_socketset_select(
    socket_max: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    timeout_ms: u32,
) -> c_int {
    let mut time =
        libc::timeval { tv_sec: (timeout_ms / 1000).into(), tv_usec: (timeout_ms % 1000 * 1000).into() };
    // SAFETY: the caller's promise.
    unsafe { libc::select(socket_max + 1, read, write, ptr::null_mut(), &raw mut time) }
}
