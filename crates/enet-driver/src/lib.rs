//! ENet hosts on the sockets of any system.
//!
//! The protocol is a state machine without I/O, [`throng_enet::Host`]; a driver gives it a socket
//! and a clock. [`Driver`] is for a thread of your own, [`AsyncDriver`] for tokio:
//! ```no_run
//! use throng_enet_driver::{Config, Driver, Event};
//!
//! # fn entropy() -> u128 { 7 }
//! // 128 bits from the operating system, which strangers cannot guess.
//! let mut driver = Driver::open("0.0.0.0:7777".parse()?, Config::new(entropy()))?;
//! loop {
//!     driver.turn(None, |host| {
//!         while let Some(event) = host.poll_event() {
//!             if let Event::Received { peer, lane, data, delivery } = event {
//!                 // A peer that takes nothing runs into its limit; the packet is dropped.
//!                 let _ = host.send(peer, lane, data, delivery);
//!             }
//!         }
//!     })?;
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Systems
//! On Linux a [`Driver`] is an `Endpoint` of `throng-net`, with calls for 64 messages and paced
//! rounds. Elsewhere, and with [`Driver::open_portable`], it sends and receives through quinn-udp
//! and waits with mio. Tests run on Linux, for both; on Windows and macOS the crate is type-checked
//! and has not been run.
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
mod async_driver;
mod core;
mod portable;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use throng_enet::{
    Bytes, Config, Delivery, Event, Host, Instant, Lane, PeerId, PeerInfo, Reason, SendError,
};

#[cfg(feature = "tokio")]
pub use async_driver::AsyncDriver;
use portable::Portable;

/// Failure to open a driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket could not be opened.
    #[error("cannot open {addr}: {source}")]
    Socket {
        /// Address of the attempt.
        addr: SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// The configuration contradicts itself, or the system has no descriptors left.
    #[error("cannot make an ENet host: {0}")]
    Host(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A [`Host`] on a UDP socket, driven by the thread that calls [`turn`](Self::turn).
pub struct Driver(Inner);

enum Inner {
    #[cfg(target_os = "linux")]
    Fast(throng_net::Clock, Box<throng_net::enet::Endpoint>),
    Portable(Box<Portable>),
}

impl Driver {
    /// Opens a socket at `addr` and makes a host for it; an unspecified IPv6 address serves both
    /// families.
    ///
    /// # Errors
    /// The address is in use or not local, or the configuration contradicts itself.
    pub fn open(addr: SocketAddr, config: Config) -> Result<Self, OpenError> {
        #[cfg(target_os = "linux")]
        {
            use throng_net::enet::{Endpoint, OpenError as NetError, Pacing};
            let (clock, udp) = (throng_net::Clock::start(), throng_net::udp::UdpOptions::default());
            let endpoint = Endpoint::open(clock, addr, &udp, Pacing::default(), config);
            let endpoint = endpoint.map_err(|error| match error {
                NetError::Socket { addr, source } => OpenError::Socket { addr, source },
                error => OpenError::Host(error.into()),
            })?;
            Ok(Self(Inner::Fast(clock, Box::new(endpoint))))
        }
        #[cfg(not(target_os = "linux"))]
        Self::open_portable(addr, config)
    }

    /// As [`open`](Self::open), without what only Linux has.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_portable(addr: SocketAddr, config: Config) -> Result<Self, OpenError> {
        Ok(Self(Inner::Portable(Box::new(Portable::open(addr, config)?))))
    }

    /// One round: sends the output of calls since the last one; waits until something arrives, a
    /// timer of the host is due, `timeout` has passed or a [`Waker`] is used; receives all
    /// datagrams; calls `on_round`; sends.
    ///
    /// # Errors
    /// The socket itself failed, which a working system does not do.
    pub fn turn(&mut self, timeout: Option<Duration>, on_round: impl FnOnce(&mut Host)) -> io::Result<()> {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Inner::Fast(clock, endpoint) => {
                endpoint.turn(timeout.map(|timeout| clock.now() + timeout), on_round)
            }
            Inner::Portable(portable) => portable.turn(timeout, on_round),
        }
    }

    /// The host, to send and to look. The output leaves at the beginning of the next round.
    pub fn host(&mut self) -> &mut Host {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            Inner::Fast(_, endpoint) => endpoint.host(),
            Inner::Portable(portable) => portable.core.host(),
        }
    }

    /// Begin of the present round: the time for calls of the [`host`](Self::host).
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Inner::Fast(_, endpoint) => endpoint.now(),
            Inner::Portable(portable) => portable.core.now(),
        }
    }

    /// Address of the socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Inner::Fast(_, endpoint) => endpoint.port().local_addr(),
            Inner::Portable(portable) => portable.core.local_addr(),
        }
    }

    /// A handle that interrupts the wait of [`turn`](Self::turn) from any thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Inner::Fast(_, endpoint) => Waker(WakerInner::Fast(endpoint.waker())),
            Inner::Portable(portable) => Waker(WakerInner::Portable(portable.waker.clone())),
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Driver").field("addr", &self.local_addr()).finish_non_exhaustive()
    }
}

/// Interrupts the wait of a [`Driver`].
#[derive(Clone, Debug)]
pub struct Waker(WakerInner);

#[derive(Clone, Debug)]
enum WakerInner {
    #[cfg(target_os = "linux")]
    Fast(throng_net::Waker),
    Portable(Arc<mio::Waker>),
}

impl Waker {
    /// Ends the present or the next wait of the driver.
    pub fn wake(&self) {
        match &self.0 {
            #[cfg(target_os = "linux")]
            WakerInner::Fast(waker) => waker.wake(),
            // It fails when the driver is gone.
            WakerInner::Portable(waker) => drop(waker.wake()),
        }
    }
}
