//! Datagrams between a host's socket and its state machine, in batches of one system call.

use std::ffi::c_int;
use std::mem::{size_of, zeroed};

use libc::{iovec, mmsghdr, sockaddr_in};

use crate::abi::ENetAddress;

/// Datagrams per system call.
pub(crate) const BATCH: usize = 64;
/// ENet sends no longer ones.
const DATAGRAM_BYTES: usize = 4_096 + 16;

/// Buffers for receiving and for sending.
pub(crate) struct Batches {
    names: Vec<sockaddr_in>,
    iovs: Vec<iovec>,
    messages: Vec<mmsghdr>,
    inward: Vec<u8>,
    /// Datagrams to send, one after the other, and the address and end of each.
    outward: Vec<u8>,
    outgoing: Vec<(sockaddr_in, usize)>,
}

/// Result of sending a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) datagrams: u32,
    pub(crate) bytes: u32,
}

impl Batches {
    pub(crate) fn new() -> Self {
        // SAFETY: all-zero is a valid value of these plain C structs.
        let (name, iov, message) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self {
            names: vec![name; BATCH],
            iovs: vec![iov; BATCH],
            messages: vec![message; BATCH],
            inward: vec![0; BATCH * DATAGRAM_BYTES],
            outward: Vec::with_capacity(BATCH * 1_500),
            outgoing: Vec::with_capacity(BATCH),
        }
    }

    /// Receives up to a batch; the number of datagrams, or the error's number.
    pub(crate) fn receive(&mut self, socket: c_int) -> Result<usize, c_int> {
        for index in 0..BATCH {
            let start = index * DATAGRAM_BYTES;
            let part = &mut self.inward[start..start + DATAGRAM_BYTES];
            self.iovs[index] = iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        }
        self.point(BATCH);
        // SAFETY: every header points to its own name and to its own part of `inward`, as long as
        // stated.
        let count = unsafe {
            libc::recvmmsg(
                socket,
                self.messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// A datagram of the batch received last: its source, and where it is. `None` when it was too
    /// long for the buffer.
    pub(crate) fn datagram(&mut self, index: usize) -> Option<(ENetAddress, &mut [u8])> {
        let message = &self.messages[index];
        if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let start = index * DATAGRAM_BYTES;
        let from = ENetAddress::of_sockaddr(&self.names[index]);
        Some((from, &mut self.inward[start..start + message.msg_len as usize]))
    }

    /// Adds a datagram to those that [`send`](Self::send) sends; whether that is due.
    pub(crate) fn push(&mut self, to: ENetAddress, bytes: &[u8]) -> bool {
        self.outward.extend_from_slice(bytes);
        self.outgoing.push((to.to_sockaddr(), self.outward.len()));
        self.outgoing.len() == BATCH
    }

    /// Sends what was pushed. What the system refuses, or has no room for, is lost like on the way.
    pub(crate) fn send(&mut self, socket: c_int) -> Sent {
        let mut start = 0;
        for (index, &(name, end)) in self.outgoing.iter().enumerate() {
            self.names[index] = name;
            let bytes = &self.outward[start..end];
            self.iovs[index] = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            start = end;
        }
        let count = self.outgoing.len();
        self.point(count);
        let (mut next, mut sent) = (0, Sent::default());
        while next < count {
            let rest = &mut self.messages[next..count];
            // SAFETY: every header points to its own name and to bytes of `outward`, which the call
            // only reads.
            let taken = unsafe {
                libc::sendmmsg(socket, rest.as_mut_ptr(), rest.len() as libc::c_uint, libc::MSG_NOSIGNAL)
            };
            let taken = usize::try_from(taken).unwrap_or(0);
            sent.datagrams += taken as u32;
            sent.bytes += self.iovs[next..next + taken].iter().map(|iov| iov.iov_len as u32).sum::<u32>();
            // An error is about the first of those that are left.
            next += taken.max(1);
        }
        self.outgoing.clear();
        self.outward.clear();
        sent
    }

    fn point(&mut self, count: usize) {
        for index in 0..count {
            let header = &mut self.messages[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<sockaddr_in>() as libc::socklen_t;
            header.msg_iov = &raw mut self.iovs[index];
            header.msg_iovlen = 1;
            header.msg_flags = 0;
        }
    }
}
