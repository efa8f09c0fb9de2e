//! The kernel's part: packets over UDP on the loopback interface, one receiving socket for each connection.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use throng_net::udp::{UdpOptions, UdpPort};

use crate::clock::thread_cpu_ns;

/// A sending port as the ENet host uses it (batches, segmentation offload), and the sockets that it sends to.
pub struct Sockets {
    port: UdpPort,
    receivers: Vec<(UdpSocket, SocketAddr)>,
    /// Packets of the present frame: connection and end in `bytes`.
    packets: Vec<(usize, usize)>,
    bytes: Vec<u8>,
    failure: Option<io::Error>,
}

impl Sockets {
    /// Sockets for `connections` connections.
    ///
    /// # Errors
    /// When a socket cannot be had: too few descriptors, no loopback interface.
    pub fn open(connections: usize) -> io::Result<Self> {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let port = UdpPort::bind(here, &UdpOptions::default())?;
        let receiver = |_| {
            let socket = UdpSocket::bind(here)?;
            socket.set_nonblocking(true)?;
            let addr = socket.local_addr()?;
            Ok((socket, addr))
        };
        let receivers = (0..connections).map(receiver).collect::<io::Result<_>>()?;
        Ok(Self { port, receivers, packets: Vec::new(), bytes: Vec::new(), failure: None })
    }

    pub(crate) fn hold(&mut self, connection: usize, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.packets.push((connection, self.bytes.len()));
    }

    /// Sends what a frame held, and empties the receivers; returns nanoseconds of CPU time of sending alone.
    pub(crate) fn send(&mut self) -> u64 {
        let start = thread_cpu_ns();
        let mut from = 0;
        for (connection, end) in self.packets.drain(..) {
            self.port.push(self.receivers[connection].1, &self.bytes[from..end]);
            from = end;
        }
        loop {
            match self.port.flush() {
                Ok(true) => break,
                // The loopback interface delivers before it returns, so that the buffer does not stay full.
                Ok(false) => {}
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            }
        }
        let spent = thread_cpu_ns() - start;
        self.bytes.clear();
        let mut scratch = [0; 2048];
        for (socket, _) in &self.receivers {
            while socket.recv(&mut scratch).is_ok() {}
        }
        spent
    }

    /// What went wrong, if anything did.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }
}
