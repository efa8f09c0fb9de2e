//! The driver for tokio.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use quinn_udp::UdpSockRef;
use throng_enet::{Config, Host, Instant};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::OpenError;
use crate::core::{BATCHES_PER_ROUND, Core};

/// A [`Host`] on a UDP socket, driven by the tokio task that awaits [`turn`](Self::turn).
///
/// ```no_run
/// use throng_enet_driver::{AsyncDriver, Config, Delivery, Lane};
///
/// # async fn serve(seed: u128, mut orders: tokio::sync::mpsc::Receiver<&'static str>) -> std::io::Result<()> {
/// let mut driver = AsyncDriver::open("0.0.0.0:7777".parse().unwrap(), Config::new(seed)).unwrap();
/// loop {
///     tokio::select! {
///         round = driver.turn(None, |host| while let Some(_event) = host.poll_event() {}) => round?,
///         // A turn that is dropped loses nothing.
///         Some(text) = orders.recv() => {
///             driver.host().broadcast(Lane(0), text.as_bytes(), Delivery::Reliable);
///         }
///     }
/// }
/// # }
/// ```
pub struct AsyncDriver {
    core: Core,
    socket: UdpSocket,
}

impl AsyncDriver {
    /// Opens a socket at `addr` and makes a host for it; an unspecified IPv6 address serves both
    /// families.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    ///
    /// # Errors
    /// The address is in use or not local, or the configuration contradicts itself.
    pub fn open(addr: SocketAddr, config: Config) -> Result<Self, OpenError> {
        let (core, socket) = Core::open(addr, config)?;
        let socket = UdpSocket::from_std(socket).map_err(|error| OpenError::Host(error.into()))?;
        Ok(Self { core, socket })
    }

    /// One round: sends the output of calls since the last one; waits until something arrives, a
    /// timer of the host is due or `timeout` has passed; receives all datagrams; calls `on_round`;
    /// sends. Dropping the future before it is ready loses nothing.
    ///
    /// # Errors
    /// The socket itself failed, which a working system does not do.
    pub async fn turn(
        &mut self,
        timeout: Option<Duration>,
        on_round: impl FnOnce(&mut Host),
    ) -> io::Result<()> {
        self.core.tick();
        let (core, socket) = (&mut self.core, &self.socket);
        core.send(|| UdpSockRef::from(socket));
        match self.core.wait(timeout) {
            None => self.socket.readable().await?,
            Some(wait) => {
                // An elapsed time is as good a reason for a round as a datagram.
                if let Ok(ready) = tokio::time::timeout(wait, self.socket.readable()).await {
                    ready?;
                }
            }
        }
        self.core.tick();
        for _ in 0..BATCHES_PER_ROUND {
            let (core, socket) = (&mut self.core, &self.socket);
            match socket.try_io(Interest::READABLE, || core.receive(UdpSockRef::from(socket))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                result => result?,
            }
        }
        let (core, socket) = (&mut self.core, &self.socket);
        core.finish(|| UdpSockRef::from(socket), on_round);
        Ok(())
    }

    /// The host, to send and to look. The output leaves at the beginning of the next round.
    pub fn host(&mut self) -> &mut Host {
        self.core.host()
    }

    /// Begin of the present round: the time for calls of the [`host`](Self::host).
    #[must_use]
    pub fn now(&self) -> Instant {
        self.core.now()
    }

    /// Address of the socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.core.local_addr()
    }
}

impl fmt::Debug for AsyncDriver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AsyncDriver").field("addr", &self.local_addr()).finish_non_exhaustive()
    }
}
