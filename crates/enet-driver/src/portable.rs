//! The driver for a thread of its own, on any system.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use quinn_udp::UdpSockRef;
use throng_enet::{Config, Host};

use crate::OpenError;
use crate::core::{BATCHES_PER_ROUND, Core};

const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);

pub(crate) struct Portable {
    pub(crate) core: Core,
    socket: UdpSocket,
    poll: Poll,
    events: Events,
    pub(crate) waker: Arc<mio::Waker>,
    /// The socket has announced datagrams, and not said yet that there are no more.
    is_readable: bool,
}

impl Portable {
    pub(crate) fn open(addr: SocketAddr, config: Config) -> Result<Self, OpenError> {
        let (core, socket) = Core::open(addr, config)?;
        Self::of(core, UdpSocket::from_std(socket)).map_err(|error| OpenError::Host(error.into()))
    }

    fn of(core: Core, mut socket: UdpSocket) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.registry().register(&mut socket, SOCKET, Interest::READABLE)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        Ok(Self { core, socket, poll, events: Events::with_capacity(2), waker, is_readable: false })
    }

    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        on_round: impl FnOnce(&mut Host),
    ) -> io::Result<()> {
        self.core.tick();
        let (core, socket) = (&mut self.core, &self.socket);
        core.send(|| UdpSockRef::from(socket));
        let wait = if self.is_readable { Some(Duration::ZERO) } else { self.core.wait(timeout) };
        match self.poll.poll(&mut self.events, wait) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => self.is_readable |= self.events.iter().any(|event| event.token() == SOCKET),
        }
        self.core.tick();
        for _ in 0..BATCHES_PER_ROUND {
            if !self.is_readable {
                break;
            }
            let (core, socket) = (&mut self.core, &self.socket);
            match socket.try_io(|| core.receive(UdpSockRef::from(socket))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_readable = false,
                result => result?,
            }
        }
        let (core, socket) = (&mut self.core, &self.socket);
        core.finish(|| UdpSockRef::from(socket), on_round);
        Ok(())
    }
}
