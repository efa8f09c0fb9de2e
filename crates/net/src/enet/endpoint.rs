use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use throng_enet::{Config, ConfigError, Host};
use throng_stdx::Instant;

use super::HostFigures;
use crate::clock::Clock;
use crate::event_loop::Waker;
use crate::sys::{self, Epoll, Events};
use crate::udp::{UdpOptions, UdpPort};

/// Batches taken in per round: 1,024 datagrams, some milliseconds of work. More would only delay the answers.
const BATCHES_PER_ROUND: usize = 16;
/// Datagrams collected before they are given to the kernel.
const FLUSH_AT: usize = 64;
/// Pause when the kernel's send buffer is full; at a gigabit per second it has emptied by 125 KB then.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);

const SOCKET_TOKEN: u64 = 0;
const WAKER_TOKEN: u64 = 1;

/// How closely rounds may follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Shortest time between the beginnings of two rounds after one that received something. Longer makes batches larger
    /// and the processor's load smaller, and adds up to this to each round trip. The first datagram after a pause is
    /// answered at once.
    pub interval: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        // At 40,000 datagrams a second, 20 share a round: the calls' own cost is then below a tenth of the datagrams'.
        Self { interval: Duration::from_micros(500) }
    }
}

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket could not be had.
    #[error("cannot open {addr}: {source}")]
    Socket {
        /// The address asked for.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system has no threads, descriptors or randomness left.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A [`Host`] on a UDP socket, driven by the thread that calls [`turn`](Self::turn).
///
/// ```no_run
/// use throng_net::Clock;
/// use throng_net::enet::{Config, Endpoint, Event, Pacing, entropy};
/// use throng_net::udp::UdpOptions;
///
/// let clock = Clock::start();
/// let addr = "0.0.0.0:7777".parse()?;
/// let mut endpoint =
///     Endpoint::open(clock, addr, &UdpOptions::default(), Pacing::default(), Config::new(entropy()?))?;
/// loop {
///     endpoint.turn(None, |host| {
///         while let Some(event) = host.poll_event() {
///             if let Event::Received { peer, lane, data, delivery } = event {
///                 // A peer that takes nothing runs into its limit.
///                 let _ = host.send(peer, lane, data, delivery);
///             }
///         }
///     })?;
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Endpoint {
    port: UdpPort,
    host: Host,
    clock: Clock,
    pacing: Pacing,
    epoll: Epoll,
    events: Events,
    waker: Waker,
    /// When the present round began.
    now: Instant,
    /// The last round received something: more may be on its way.
    busy: bool,
    /// The last round did not take everything in, or has news that the application could not see.
    unfinished: bool,
    /// The kernel's send buffer is full.
    blocked: bool,
    buf: Vec<u8>,
}

impl Endpoint {
    /// Opens a socket and makes a host for it.
    ///
    /// # Errors
    /// When the address cannot be had or the configuration contradicts itself.
    pub fn open(
        clock: Clock,
        addr: SocketAddr,
        udp: &UdpOptions,
        pacing: Pacing,
        config: Config,
    ) -> Result<Self, OpenError> {
        let port = UdpPort::bind(addr, udp).map_err(|source| OpenError::Socket { addr, source })?;
        let host = Host::new(clock.now(), config)?;
        let epoll = Epoll::new()?;
        let waker = Waker::new()?;
        epoll.add(port.fd(), SOCKET_TOKEN, sys::READABLE)?;
        epoll.add(waker.fd(), WAKER_TOKEN, sys::READABLE)?;
        let now = clock.now();
        Ok(Self {
            port,
            host,
            clock,
            pacing,
            epoll,
            events: Events::with_capacity(2),
            waker,
            now,
            busy: false,
            unfinished: false,
            blocked: false,
            buf: Vec::with_capacity(4096),
        })
    }

    /// One round: sends what the host was told since the last one; waits until something arrives, a timer of the host or `deadline` is due, or a [`Waker`] is used; takes in
    /// what is there; gives `on_event` the events until it returns false or there are none; sends.
    ///
    /// `on_event` may use the host as it likes. What it leaves stays with the host for the next round.
    ///
    /// # Errors
    /// When the socket itself failed, which a working system does not do.
    pub fn turn(&mut self, deadline: Option<Instant>, on_round: impl FnOnce(&mut Host)) -> io::Result<()> {
        // What the application has done between rounds.
        self.send()?;
        self.wait(deadline)?;
        self.now = self.clock.now();
        self.take_in()?;
        if self.host.next_timeout().is_some_and(|at| at <= self.now) {
            self.host.handle_timeout(self.now);
        }
        on_round(&mut self.host);
        let left = self.host.has_events();
        self.send()?;
        // The end of a connection can lie in the sending of its last word.
        self.unfinished |= !left && self.host.has_events();
        Ok(())
    }

    /// Sends what the host has to say, outside a round: for the last words before the end.
    ///
    /// # Errors
    /// As for [`turn`](Self::turn).
    pub fn send(&mut self) -> io::Result<()> {
        self.blocked = !self.port.flush()?;
        while !self.blocked {
            let Some(transmit) = self.host.poll_transmit(self.now, &mut self.buf) else {
                self.blocked = !self.port.flush()?;
                break;
            };
            self.port.push(transmit.to, &self.buf);
            if self.port.pending() >= FLUSH_AT {
                self.blocked = !self.port.flush()?;
            }
        }
        Ok(())
    }

    /// The host, to send and to look. What it is told outside a round leaves at the beginning of the next one.
    pub fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    /// The socket's side of things: address, buffers, counts.
    #[must_use]
    pub fn port(&self) -> &UdpPort {
        &self.port
    }

    /// What host and socket have done so far, and what they hold.
    #[must_use]
    pub fn figures(&self) -> HostFigures {
        HostFigures::of(&self.host, &self.port)
    }

    /// Interrupts the wait of [`turn`](Self::turn) from any thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// When the present round began.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if self.unfinished {
            return Ok(());
        }
        if self.busy {
            // More is on its way: sleep a little and look, without asking whether it is worth it.
            let rest = (self.now + self.pacing.interval).since(self.clock.now());
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            if self.waker.is_pending() {
                self.waker.clear();
            }
            return Ok(());
        }
        let now = self.clock.now();
        let blocked = self.blocked.then(|| now + BLOCKED_PAUSE);
        let next = [deadline, self.host.next_timeout(), blocked].into_iter().flatten().min();
        self.epoll.wait(&mut self.events, next.map(|at| at.since(now)))?;
        let mut index = 0;
        while let Some((token, _)) = self.events.get(index) {
            if token == WAKER_TOKEN {
                self.waker.clear();
            }
            index += 1;
        }
        Ok(())
    }

    fn take_in(&mut self) -> io::Result<()> {
        let before = self.port.stats().datagrams_in;
        self.unfinished = false;
        for batch in 0..BATCHES_PER_ROUND {
            let (host, now) = (&mut self.host, self.now);
            let more = self.port.receive(|from, datagram| {
                // An empty datagram is nobody's; the C library stops reading there.
                if !datagram.is_empty() {
                    host.handle_datagram(now, from, datagram);
                }
            })?;
            if !more {
                break;
            }
            self.unfinished = batch + 1 == BATCHES_PER_ROUND;
        }
        self.busy = self.port.stats().datagrams_in != before;
        Ok(())
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Endpoint")
            .field("port", &self.port)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
