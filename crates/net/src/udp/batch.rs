//! The kernel's batched calls for datagrams, each behind a safe function: `recvmmsg` with coalesced
//! receiving (GRO) and `sendmmsg` with segmentation (GSO).
//!
//! Everything is allocated when a batch is made; receiving and sending allocate nothing.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams taken or given per system call. Beyond 64 the share of the call itself is below 2% of
/// a datagram's cost.
pub(super) const BATCH: usize = 64;
/// Most datagrams that one buffer given to the kernel may be cut into. The kernel's own limit was
/// 64 before 6.0.
const SEGMENTS_MAX: usize = 64;
/// Most bytes of such a buffer: what fits an IP packet, with room for its headers.
const SEGMENTED_BYTES_MAX: usize = 64_000;
/// Room for one received message when the kernel coalesces: up to an IP packet of datagrams from
/// one sender.
const COALESCED_BYTES: usize = 65_536;
/// Room for one datagram otherwise. No protocol over it sends more than 4,096 bytes.
const SINGLE_BYTES: usize = 4_352;
/// Distance between neighbouring buffers beyond their size: a power of two would put the first
/// bytes of all of them into the same few cache lines of the processor.
const STAGGER: usize = 192;

/// An address of either family, as the kernel writes it; IPv4 addresses use the front.
type Name = libc::sockaddr_in6;

/// Control data of one message, aligned as its header must be: 24 bytes for the length of segments,
/// and 32 or 40 for an own address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control([u8; CONTROL_BYTES]);

impl Control {
    pub(crate) const EMPTY: Self = Self([0; CONTROL_BYTES]);
}

const CONTROL_BYTES: usize = 96;

/// Sender, length and segments of one message.
#[derive(Clone, Copy, Default)]
struct Slot {
    from: Option<SocketAddr>,
    /// The own address that the message came to, where the socket tells it.
    local: Option<IpAddr>,
    len: usize,
    /// Length of each datagram but the last.
    segment: usize,
    truncated: bool,
}

/// Buffers for receiving, and what was received last.
pub(super) struct Receiving {
    names: Box<[Name]>,
    iovs: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    messages: Box<[libc::mmsghdr]>,
    buf: Box<[u8]>,
    stride: usize,
    room: usize,
    slots: Box<[Slot]>,
    len: usize,
}

// SAFETY: the raw pointers in `iovs` and `messages` point into this value's own boxes and are
// written anew before every use; nothing else refers to them.
unsafe impl Send for Receiving {}

impl Receiving {
    pub(super) fn new(coalesced: bool) -> Self {
        let room = if coalesced { COALESCED_BYTES } else { SINGLE_BYTES };
        let stride = room + STAGGER;
        // SAFETY: all-zero is a valid value of these plain C structs; null pointers in them mean
        // "nothing".
        let (name, iov, message) = unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        Self {
            names: vec![name; BATCH].into(),
            iovs: vec![iov; BATCH].into(),
            controls: vec![Control::EMPTY; BATCH].into(),
            messages: vec![message; BATCH].into(),
            buf: vec![0; BATCH * stride].into(),
            stride,
            room,
            slots: vec![Slot::default(); BATCH].into(),
            len: 0,
        }
    }

    /// Takes what has arrived, at most a batch of messages. Returns how many messages there were.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.len = 0;
        let base = self.buf.as_mut_ptr();
        for index in 0..BATCH {
            // SAFETY: `buf` has `BATCH * stride` bytes, so the offset is inside it.
            let start = unsafe { base.add(index * self.stride) };
            self.iovs[index] = libc::iovec { iov_base: start.cast(), iov_len: self.room };
            let header = &mut self.messages[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = mem::size_of::<Name>() as libc::socklen_t;
            header.msg_iov = &raw mut self.iovs[index];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[index]).cast();
            header.msg_controllen = mem::size_of::<Control>() as _;
        }
        // SAFETY: every header points to its own name, control data and iovec, and that to its own
        // part of `buf`; all are as long as stated and outlive the call. A null timeout means none.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for index in 0..count {
            let message = &self.messages[index];
            let len = message.msg_len as usize;
            let Told { segment, local } = told(&message.msg_hdr);
            self.slots[index] = Slot {
                from: address(&self.names[index]),
                local,
                len: len.min(self.room),
                segment: segment.unwrap_or(len),
                truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            };
        }
        self.len = count;
        Ok(count)
    }

    /// Messages of the last batch.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Message `index` of the last batch: its sender, the own address that it came to, its bytes
    /// and the length of the datagrams in them. `None` when it is longer than any datagram ought to
    /// be.
    pub(super) fn message(&self, index: usize) -> Option<(SocketAddr, Option<IpAddr>, &[u8], usize)> {
        let slot = self.slots[..self.len].get(index).filter(|slot| !slot.truncated)?;
        let start = index * self.stride;
        Some((slot.from?, slot.local, &self.buf[start..start + slot.len], slot.segment))
    }
}

/// Control data of a received message.
#[derive(Default)]
pub(crate) struct Told {
    /// The length of coalesced datagrams, if the kernel coalesced any.
    segment: Option<usize>,
    pub(crate) local: Option<IpAddr>,
}

#[allow(clippy::unnecessary_cast, reason = "the length is no usize with every C library")]
pub(crate) fn told(header: &libc::msghdr) -> Told {
    let mut told = Told::default();
    if (header.msg_controllen as usize) < mem::size_of::<libc::cmsghdr>() {
        return told;
    }
    // SAFETY: `header` was filled by the kernel and its control data is still where it points to;
    // the macros stay inside the length that the kernel left there, and the values have the types
    // of their levels.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = control.as_ref() {
            let data = libc::CMSG_DATA(control);
            match (found.cmsg_level, found.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let bytes: libc::c_int = std::ptr::read_unaligned(data.cast());
                    told.segment = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = std::ptr::read_unaligned(data.cast());
                    told.local = Some(Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info: libc::in6_pktinfo = std::ptr::read_unaligned(data.cast());
                    told.local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    told
}

/// A message to one address: `bytes` of the buffer, cut into datagrams of `segment` bytes.
#[derive(Clone, Debug)]
struct Run {
    to: SocketAddr,
    /// The own address to send from.
    local: Option<IpAddr>,
    bytes: Range<usize>,
    segment: usize,
    /// The last datagram is shorter than the others: nothing can follow it.
    complete: bool,
}

/// Datagrams to send, in order.
pub(super) struct Sending {
    names: Box<[Name]>,
    iovs: Box<[libc::iovec]>,
    controls: Box<[Control]>,
    messages: Box<[libc::mmsghdr]>,
    buf: Vec<u8>,
    runs: Vec<Run>,
    /// Runs that have left.
    sent: usize,
    datagrams: usize,
}

// SAFETY: as for `Receiving`.
unsafe impl Send for Sending {}

impl Sending {
    pub(super) fn new() -> Self {
        // SAFETY: all-zero is a valid value of these plain C structs; null pointers in them mean
        // "nothing".
        let (name, iov, message) = unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        Self {
            names: vec![name; BATCH].into(),
            iovs: vec![iov; BATCH].into(),
            controls: vec![Control::EMPTY; BATCH].into(),
            messages: vec![message; BATCH].into(),
            buf: Vec::with_capacity(BATCH * 1_500),
            runs: Vec::with_capacity(BATCH),
            sent: 0,
            datagrams: 0,
        }
    }

    /// Adds a datagram; with `segmented`, to the one before it if that goes to the same address and
    /// has the same length.
    pub(super) fn push(&mut self, to: SocketAddr, local: Option<IpAddr>, bytes: &[u8], segmented: bool) {
        let start = self.buf.len();
        self.buf.extend_from_slice(bytes);
        self.datagrams += 1;
        if segmented && let Some(last) = self.runs.last_mut() {
            let fits = bytes.len() <= last.segment
                && !bytes.is_empty()
                && last.bytes.len() + bytes.len() <= SEGMENTED_BYTES_MAX
                && last.bytes.len() < last.segment * SEGMENTS_MAX;
            if fits && !last.complete && (last.to, last.local) == (to, local) {
                last.bytes.end = self.buf.len();
                last.complete = bytes.len() < last.segment;
                return;
            }
        }
        let bytes = start..self.buf.len();
        self.runs.push(Run { to, local, segment: bytes.len(), bytes, complete: false });
    }

    /// Messages that wait.
    pub(super) fn len(&self) -> usize {
        self.runs.len() - self.sent
    }

    /// Datagrams that wait.
    pub(super) fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Gives the kernel up to a batch of messages. Returns how many messages, datagrams and bytes
    /// it took.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, is_v6: bool) -> io::Result<(usize, usize, usize)> {
        let runs = &self.runs[self.sent..];
        let offered = runs.len().min(BATCH);
        for (index, run) in runs.iter().take(offered).enumerate() {
            let bytes = &self.buf[run.bytes.clone()];
            let name_len = write_address(&mut self.names[index], run.to, is_v6);
            self.iovs[index] =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let header = &mut self.messages[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = name_len;
            header.msg_iov = &raw mut self.iovs[index];
            header.msg_iovlen = 1;
            let segment = (bytes.len() > run.segment).then_some(run.segment as u16);
            let len = write_control(&mut self.controls[index], segment, run.local);
            header.msg_control =
                if len == 0 { std::ptr::null_mut() } else { (&raw mut self.controls[index]).cast() };
            header.msg_controllen = len as _;
        }
        // SAFETY: every header points to its own name, control data (or none) and iovec, and that
        // to bytes of `buf`; all are as long as stated and outlive the call, which only reads them
        // although the C types are not const.
        let count = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                offered as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let (mut datagrams, mut bytes) = (0, 0);
        for _ in 0..count {
            let (of_run, len) = self.pass();
            datagrams += of_run;
            bytes += len;
        }
        Ok((count, datagrams, bytes))
    }

    /// Drops the first message that waits; the number of its datagrams.
    pub(super) fn skip(&mut self) -> usize {
        self.pass().0
    }

    /// Splits the first message that waits into its datagrams.
    pub(super) fn split_first(&mut self) {
        let Some(run) = self.runs.get(self.sent).cloned() else { return };
        let step = run.segment.max(1);
        let parts = run.bytes.clone().step_by(step).map(|start| {
            let bytes = start..(start + step).min(run.bytes.end);
            Run { to: run.to, local: run.local, segment: bytes.len(), bytes, complete: true }
        });
        self.runs.splice(self.sent..=self.sent, parts.collect::<Vec<_>>());
    }

    /// True if the first message that waits is more than one datagram.
    pub(super) fn first_is_segmented(&self) -> bool {
        self.runs.get(self.sent).is_some_and(|run| run.bytes.len() > run.segment)
    }

    fn pass(&mut self) -> (usize, usize) {
        let Some(run) = self.runs.get(self.sent) else { return (0, 0) };
        let datagrams = run.bytes.len().div_ceil(run.segment.max(1)).max(1);
        let bytes = run.bytes.len();
        self.datagrams -= datagrams.min(self.datagrams);
        self.sent += 1;
        if self.sent == self.runs.len() {
            self.runs.clear();
            self.buf.clear();
            (self.sent, self.datagrams) = (0, 0);
        }
        (datagrams, bytes)
    }
}

/// Writes the control data that has the kernel cut a message into segments and send it from
/// `local`; its length, 0 for neither.
pub(crate) fn write_control(control: &mut Control, segment: Option<u16>, local: Option<IpAddr>) -> usize {
    let mut len = 0;
    if let Some(bytes) = segment {
        len += write_value(&mut control.0[len..], libc::SOL_UDP, libc::UDP_SEGMENT, bytes);
    }
    match local {
        Some(IpAddr::V4(ip)) => {
            let source = libc::in_addr { s_addr: u32::from(ip).to_be() };
            let any = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: any };
            len += write_value(&mut control.0[len..], libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(IpAddr::V6(ip)) => {
            let source = libc::in6_addr { s6_addr: ip.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: 0 };
            len += write_value(&mut control.0[len..], libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        None => {}
    }
    len
}

/// Writes one value of control data to the front of `out`, which is aligned for its header; the
/// bytes that it takes.
fn write_value<T>(out: &mut [u8], level: libc::c_int, kind: libc::c_int, value: T) -> usize {
    // SAFETY: these compute with lengths only.
    let (len, space) = unsafe {
        let bytes = mem::size_of::<T>() as u32;
        (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes) as usize)
    };
    assert!(space <= out.len(), "a segment and an address fit");
    // SAFETY: `out` has room for header and value, and begins at a multiple of eight in control
    // data, as `space` is one; the value lies right behind the header, as the macros compute.
    unsafe {
        let header: *mut libc::cmsghdr = out.as_mut_ptr().cast();
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = len as _;
        std::ptr::write_unaligned(libc::CMSG_DATA(header).cast(), value);
    }
    space
}

/// The sender's address; IPv4 peers of an IPv6 socket have their IPv4 address.
fn address(name: &Name) -> Option<SocketAddr> {
    match i32::from(name.sin6_family) {
        libc::AF_INET => {
            // SAFETY: the kernel wrote an IPv4 address, as the family says; the storage is larger
            // than the type and aligned more strictly.
            let v4 = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            match ip.to_ipv4_mapped() {
                Some(v4) => Some(SocketAddr::from((v4, port))),
                None => Some(std::net::SocketAddrV6::new(ip, port, 0, name.sin6_scope_id).into()),
            }
        }
        _ => None,
    }
}

/// Writes an address as a socket of the family wants it; the length.
fn write_address(name: &mut Name, to: SocketAddr, is_v6: bool) -> libc::socklen_t {
    match to {
        SocketAddr::V4(v4) if !is_v6 => {
            // SAFETY: the storage is larger than the type and aligned more strictly; every field is
            // written.
            let out = unsafe { &mut *std::ptr::from_mut(name).cast::<libc::sockaddr_in>() };
            out.sin_family = libc::AF_INET as libc::sa_family_t;
            out.sin_port = v4.port().to_be();
            out.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            out.sin_zero = [0; 8];
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        to => {
            let (ip, scope) = match to {
                SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
            };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = to.port().to_be();
            name.sin6_addr.s6_addr = ip.octets();
            name.sin6_flowinfo = 0;
            name.sin6_scope_id = scope;
            mem::size_of::<Name>() as libc::socklen_t
        }
    }
}

/// Sets an integer option of a socket.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value is passed by pointer with its own size and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
