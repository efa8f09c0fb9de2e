//! The kernel's part: packets over UDP on the loopback interface, one receiving socket for each
//! connection.

use std::io;
use std::net::SocketAddr;

use throng_net::udp::{UdpOptions, UdpPort};

use crate::clock::thread_cpu_ns;

/// Datagrams after which the port sends: 64 connections of three, the batch of a system call. What
/// is sent was copied a moment before, so the kernel finds it in the processor's cache.
const FLUSH_AT: usize = 192;

/// A sending port as the ENet host uses it (batches, segmentation offload), and the ports that it
/// sends to, which take runs of datagrams in one piece (GRO), so that the kernel need not cut them
/// up on the sender's time.
pub struct Sockets {
    port: UdpPort,
    /// Sends the same once more, to measure what the system calls alone cost.
    bare: UdpPort,
    /// Alternates from frame to frame.
    is_bare_first: bool,
    receivers: Vec<UdpPort>,
    addresses: Vec<SocketAddr>,
    /// Packets of the present frame: connection and end in `bytes`.
    packets: Vec<(usize, usize)>,
    bytes: Vec<u8>,
    failure: Option<io::Error>,
}

/// Nanoseconds of CPU time of one frame's sending: everything, and the system calls alone when the
/// same datagrams are sent to the same sockets once more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) all: u64,
    pub(crate) bare: u64,
}

impl Sockets {
    /// Sockets for `connections` connections.
    ///
    /// # Errors
    /// When a socket cannot be had: too few descriptors, no loopback interface.
    pub fn open(connections: usize) -> io::Result<Self> {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let bind = || UdpPort::bind(here, &UdpOptions::default());
        let receivers = (0..connections).map(|_| bind()).collect::<io::Result<Vec<_>>>()?;
        let addresses = receivers.iter().map(UdpPort::local_addr).collect();
        Ok(Self {
            port: bind()?,
            bare: bind()?,
            is_bare_first: false,
            receivers,
            addresses,
            packets: Vec::new(),
            bytes: Vec::new(),
            failure: None,
        })
    }

    pub(crate) fn hold(&mut self, connection: usize, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.packets.push((connection, self.bytes.len()));
    }

    /// Sends the packets of a frame over both ports, and empties the receivers, which are other
    /// threads or machines in earnest.
    pub(crate) fn send(&mut self) -> Sent {
        let mut sent = Sent::default();
        // The second to send finds the packets and the receivers in the processor's caches.
        for is_bare in [self.is_bare_first, !self.is_bare_first] {
            let result = if is_bare {
                push(&mut self.bare, &self.packets, &self.bytes, &self.addresses, usize::MAX).and_then(|()| {
                    let start = thread_cpu_ns();
                    let result = flush(&mut self.bare);
                    sent.bare = thread_cpu_ns() - start;
                    result
                })
            } else {
                let start = thread_cpu_ns();
                let result = push(&mut self.port, &self.packets, &self.bytes, &self.addresses, FLUSH_AT)
                    .and_then(|()| flush(&mut self.port));
                sent.all = thread_cpu_ns() - start;
                result
            };
            self.note(result);
            self.drain();
        }
        self.is_bare_first = !self.is_bare_first;
        self.packets.clear();
        self.bytes.clear();
        sent
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failure = Some(error);
        }
    }

    fn drain(&mut self) {
        for at in 0..self.receivers.len() {
            let result = loop {
                match self.receivers[at].receive(|_, _| {}) {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            self.note(result);
        }
    }

    /// The first failure, if there was one.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }
}

/// Gives the packets to a port, which sends them whenever it holds `flush_at`.
fn push(
    port: &mut UdpPort,
    packets: &[(usize, usize)],
    bytes: &[u8],
    addresses: &[SocketAddr],
    flush_at: usize,
) -> io::Result<()> {
    let mut from = 0;
    for (connection, end) in packets {
        if port.pending() >= flush_at {
            flush(port)?;
        }
        port.push(addresses[*connection], &bytes[from..*end]);
        from = *end;
    }
    Ok(())
}

fn flush(port: &mut UdpPort) -> io::Result<()> {
    // The loopback interface delivers before it returns, so that the buffer does not stay full.
    while !port.flush()? {}
    Ok(())
}
