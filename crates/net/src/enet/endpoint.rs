//! One UDP port with its ENet host: batches in, batches out, paced rounds.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use throng_enet::secure::{ConnectToken, Gate, GateConfig, Identity};
use throng_enet::{Config, ConfigError, Host, PeerId};
use throng_stdx::Instant;

use super::guard::Guard;
use super::{HostCounters, entropy};
use crate::clock::Clock;
use crate::event_loop::Waker;
use crate::sys::{self, Epoll, Events};
use crate::udp::{UdpOptions, UdpPort};

/// Batches taken in per round: 256 datagrams, a millisecond or two of work. More would only delay
/// the answers; a busier endpoint goes on with the next round at once.
const BATCHES_PER_ROUND: usize = 4;
/// Datagrams collected before they are given to the kernel.
const FLUSH_AT: usize = 64;
/// Pause when the kernel's send buffer is full; at a gigabit per second it has emptied by 125 KB
/// then.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);

const SOCKET_TOKEN: u64 = 0;
const WAKER_TOKEN: u64 = 1;

/// Distance between rounds.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Shortest time between the beginnings of two rounds after one that received something. Longer
    /// makes batches larger and the processor's load smaller, and adds up to this to each round
    /// trip. The first datagram after a pause is answered at once.
    pub interval: Duration,
}

impl Pacing {
    /// 1,200 us. At 40,000 datagrams a second, 48 share a round: sleeping, waking and the calls
    /// themselves then cost less than a twentieth of the datagrams. With 800 us they cost two
    /// hundredths more; twice as long shows in the slowest answers, which take two rounds.
    pub const DEFAULT: Self = Self { interval: Duration::from_micros(1_200) };
}

impl Default for Pacing {
    fn default() -> Self {
        Self::DEFAULT
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
///
/// # Sealed
/// [`open_gate`](Self::open_gate) admits only clients with a connect token and encrypts everything;
/// [`open_entry`](Self::open_entry) is such a client. See [`secure`](super::secure) for what that
/// protects from.
pub struct Endpoint {
    port: UdpPort,
    guard: Guard,
    host: Host,
    clock: Clock,
    pacing: Pacing,
    epoll: Epoll,
    events: Events,
    waker: Waker,
    /// Beginning of the present round.
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
        Self::guarded(clock, bind(addr, udp)?, pacing, config, Guard::NONE)
    }

    /// A server's, behind a gate: who has no token gets no further, unless [`GateConfig::plain`]
    /// lets plain clients in beside those that have. The longest datagram of `config` includes the
    /// seal.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_gate(
        clock: Clock,
        addr: SocketAddr,
        udp: &UdpOptions,
        pacing: Pacing,
        config: Config,
        gate: GateConfig,
    ) -> Result<Self, OpenError> {
        let gate = Gate::new(clock.now(), gate);
        Self::guarded(clock, bind(addr, udp)?, pacing, config, Guard::of(gate))
    }

    /// A client's, on its way through the gate of `server` with a token; any address and port of
    /// its own. The host may connect to `server`, and to nobody else, right away: its datagrams
    /// wait until the gate has answered.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_entry(
        clock: Clock,
        server: SocketAddr,
        udp: &UdpOptions,
        pacing: Pacing,
        config: Config,
        token: &ConnectToken,
    ) -> Result<Self, OpenError> {
        let guard = Guard::entry(clock.now(), Some(token), server, entropy()?);
        Self::guarded(clock, bind(crate::udp::any_address(server), udp)?, pacing, config, guard)
    }

    /// Makes a host for an open socket, such as one of [`UdpPort::bind_all`].
    ///
    /// # Errors
    /// The configuration is invalid, or descriptors ran out.
    pub fn over(clock: Clock, port: UdpPort, pacing: Pacing, config: Config) -> Result<Self, OpenError> {
        Self::guarded(clock, port, pacing, config, Guard::NONE)
    }

    pub(super) fn guarded(
        clock: Clock,
        port: UdpPort,
        pacing: Pacing,
        config: Config,
        guard: Guard,
    ) -> Result<Self, OpenError> {
        let host = Host::new(clock.now(), guard.fit(config))?;
        let epoll = Epoll::new()?;
        let waker = Waker::new()?;
        epoll.add(port.fd(), SOCKET_TOKEN, sys::READABLE)?;
        epoll.add(waker.fd(), WAKER_TOKEN, sys::READABLE)?;
        let now = clock.now();
        Ok(Self {
            port,
            guard,
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

    /// One round: sends what the host was told since the last one; waits until something arrives, a
    /// timer of the host or `deadline` is due, or a [`Waker`] is used; takes in what is there;
    /// gives `on_event` the events until it returns false or there are none; sends.
    ///
    /// `on_event` may use the host as it likes. What it leaves stays with the host for the next
    /// round.
    ///
    /// # Errors
    /// The socket itself failed, which a working system does not do.
    pub fn turn(&mut self, deadline: Option<Instant>, on_round: impl FnOnce(&mut Host)) -> io::Result<()> {
        self.turn_guarded(deadline, |host, _| on_round(host))
    }

    /// As [`turn`](Self::turn), with a look at who the peers are.
    pub(super) fn turn_guarded(
        &mut self,
        deadline: Option<Instant>,
        on_round: impl FnOnce(&mut Host, &Guard),
    ) -> io::Result<()> {
        // Output of what the application did between rounds.
        self.send()?;
        self.wait(deadline)?;
        self.now = self.clock.now();
        self.take_in()?;
        self.guard.handle_timeout(self.now, &mut self.host);
        if self.host.next_timeout().is_some_and(|at| at <= self.now) {
            self.host.handle_timeout(self.now);
        }
        on_round(&mut self.host, &self.guard);
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
        if !self.blocked {
            self.guard.push_own(self.now, &mut self.port);
        }
        while !self.blocked {
            let Some(transmit) = self.host.poll_transmit(self.now, &mut self.buf) else {
                self.blocked = !self.port.flush()?;
                break;
            };
            self.guard.push(&mut self.port, transmit, &self.buf);
            if self.port.pending() >= FLUSH_AT {
                self.blocked = !self.port.flush()?;
            }
        }
        Ok(())
    }

    /// The host, to send and to look. What it is told outside a round leaves at the beginning of
    /// the next one.
    pub fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    /// The socket's side of things: address, buffers, counts.
    #[must_use]
    pub fn port(&self) -> &UdpPort {
        &self.port
    }

    /// Counters of host and socket, and the memory that they hold.
    #[must_use]
    pub fn figures(&self) -> HostCounters {
        HostCounters::of(&self.host, &self.port, &self.guard)
    }

    /// Whom a peer's token names; `None` for plain clients. Known from
    /// [`Event::Connected`](super::Event::Connected) on.
    #[must_use]
    pub fn identity(&self, peer: PeerId) -> Option<Identity> {
        self.guard.identity(&self.host, peer)
    }

    /// True if the gate that this endpoint wants to enter has not let it in within ten seconds. It
    /// never says why.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.guard.is_refused(self.clock.now())
    }

    /// Interrupts the wait of [`turn`](Self::turn) from any thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Beginning of the present round.
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
        let next = [deadline, self.host.next_timeout(), self.guard.next_timeout(), blocked];
        let next = next.into_iter().flatten().min();
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
            if !self.guard.receive(self.now, &mut self.port, &mut self.host)? {
                break;
            }
            self.unfinished = batch + 1 == BATCHES_PER_ROUND;
        }
        self.busy = self.port.stats().datagrams_in != before;
        Ok(())
    }
}

fn bind(addr: SocketAddr, udp: &UdpOptions) -> Result<UdpPort, OpenError> {
    UdpPort::bind(addr, udp).map_err(|source| OpenError::Socket { addr, source })
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Endpoint")
            .field("port", &self.port)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}
