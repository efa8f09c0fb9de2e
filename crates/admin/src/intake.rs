//! Accept loop of the process's HTTP listeners.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::crowd::{Admission, Crowd, Exempt, Guest, PROCESS};

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that wait in the kernel's queue: with the runtime's 128, a burst that meets a busy
/// process loses handshakes, which clients repeat after a second. The kernel has a limit of its own
/// (`net.core.somaxconn`, 4,096).
const BACKLOG: i32 = 4_096;
/// Pause before a listener that is full, or out of descriptors, looks again for a connection that
/// yields.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Connections that have yielded to newcomers of a listener and are not closed yet, beyond which it
/// accepts no further ones.
const CLOSING_MAX: usize = 8;
/// Descriptors that listeners for strangers leave to health, admin and files.
const DESCRIPTORS_RESERVED: u64 = 128;

/// Limits of a listener. When it is full, or the process has few descriptors left, a connection
/// that makes no progress yields to a newcomer; newcomers wait in the kernel's queue while there is
/// none.
#[derive(Clone)]
pub struct Intake {
    /// Name of the listener for the log: `the cache's`.
    pub owner: &'static str,
    /// Connections at a time. A listener for strangers has no more than the process has
    /// descriptors, less a reserve. One address holds at most a quarter of them when more than
    /// three quarters are taken.
    pub connections_max: usize,
    /// Addresses without that limit.
    pub exempt: Exempt,
    /// True if the listener leaves some descriptors to others.
    pub is_for_strangers: bool,
    /// TLS, if configured. Offers HTTP/2 if its configuration lists `h2`.
    pub tls: Option<Tls>,
}

impl fmt::Debug for Intake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// No address is exempt from the limit by address.
#[must_use]
pub fn no_exemptions() -> Exempt {
    Arc::new(|_: IpAddr| false)
}

/// The TLS side of listeners, which can be replaced while they run.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<TlsAcceptor>>);

impl Tls {
    /// Encrypts connections with `acceptor`.
    #[must_use]
    pub fn new(acceptor: TlsAcceptor) -> Self {
        Self(Arc::new(RwLock::new(acceptor)))
    }

    /// Replaces the acceptor for new connections, for example after a certificate was renewed. Open
    /// connections are not affected.
    pub fn replace(&self, acceptor: TlsAcceptor) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
    }

    fn now(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Completes when a server is to end.
pub type Shutdown<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send)>;

/// A server that runs; complete when it has ended.
pub type Serving<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// An accepted connection, after its TLS handshake.
pub enum Accepted {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Accepted {
    /// The socket, for its options.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl Intake {
    /// Passes each connection to `serve`, whose future handles it, until `shutdown` completes; then
    /// all of these futures are dropped. If accepting fails for lack of file descriptors, it is
    /// retried after a pause.
    ///
    /// `serve` reports the connection's progress to its [`Guest`].
    ///
    /// The future is boxed so that the server is compiled once in this crate, and not in every
    /// program and test that awaits it.
    pub fn run<'a, F>(
        self,
        listener: TcpListener,
        shutdown: Shutdown<'a>,
        serve: impl Fn(Accepted, Guest) -> F + Clone + Send + 'static,
    ) -> Serving<'a>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Box::pin(self.accept(listener, shutdown, serve))
    }

    async fn accept<F>(
        self,
        listener: TcpListener,
        mut shutdown: Shutdown<'_>,
        serve: impl Fn(Accepted, Guest) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        if let Err(error) = rustix::net::listen(&listener, BACKLOG) {
            tracing::warn!(%error, "{} listener keeps a short queue", self.owner);
        }
        let places = match self.is_for_strangers {
            true => self.connections_max.min(descriptors_for_strangers()),
            false => self.connections_max,
        };
        let crowd = Crowd::new(&PROCESS, places, Arc::clone(&self.exempt));
        if self.is_for_strangers {
            crowd.share();
        }
        let mut tasks = JoinSet::new();
        loop {
            // A burst would take descriptors faster than those that yield to it give theirs back.
            while crowd.closing() >= CLOSING_MAX {
                if !look_again(&crowd, &mut tasks, &mut shutdown).await {
                    return;
                }
            }
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut shutdown => return,
                Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "{} listener cannot accept", self.owner);
                    // Without a descriptor the newcomer cannot even be seen.
                    crowd.make_room();
                    if !look_again(&crowd, &mut tasks, &mut shutdown).await {
                        return;
                    }
                    continue;
                }
            };
            let guest = loop {
                match crowd.admit(from.ip(), self.is_for_strangers && is_short_of_descriptors(&stream)) {
                    Admission::Admitted(guest) => break Some(guest),
                    Admission::Refused => break None,
                    Admission::Full => {}
                }
                if !look_again(&crowd, &mut tasks, &mut shutdown).await {
                    return;
                }
            };
            let Some(guest) = guest else { continue };
            let (serve, tls) = (serve.clone(), self.tls.clone());
            tasks.spawn(async move {
                let place = guest.clone();
                let served = async move {
                    if let Some(accepted) = shake_hands(stream, tls).await {
                        serve(accepted, place).await;
                    }
                };
                tokio::select! {
                    biased;
                    () = guest.evicted() => {}
                    () = served => {}
                }
            });
        }
    }
}

/// Waits until a connection has ended, or a pause has passed. Reports whether the server goes on.
async fn look_again(crowd: &Crowd, tasks: &mut JoinSet<()>, shutdown: &mut Shutdown<'_>) -> bool {
    tokio::select! {
        () = crowd.left.notified() => true,
        () = tokio::time::sleep(LOOK_AGAIN) => true,
        Some(_) = tasks.join_next(), if !tasks.is_empty() => true,
        () = shutdown => false,
    }
}

/// Reports whether connections take so many descriptors that the rest belongs to others. Files and
/// sockets of other kinds count as far as the number of a new descriptor tells: the kernel gives
/// the lowest free one.
fn is_short_of_descriptors(newest: &TcpStream) -> bool {
    let newest = usize::try_from(newest.as_raw_fd()).unwrap_or(0);
    newest.max(PROCESS.open()) >= descriptors_for_strangers()
}

/// Descriptors that connections of strangers may take.
fn descriptors_for_strangers() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit - DESCRIPTORS_RESERVED.min(limit / 4)).unwrap_or(usize::MAX)
}

async fn shake_hands(stream: TcpStream, tls: Option<Tls>) -> Option<Accepted> {
    // Without it, small answers are late.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return Some(Accepted::Plain(stream)) };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.now().accept(stream)).await {
        Ok(Ok(stream)) => Some(Accepted::Tls(Box::new(stream))),
        // A stranger who does not speak TLS, or not in time.
        Ok(Err(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    /// All clients of these tests have one address, which has no limit of its own.
    fn intake(connections_max: usize) -> Intake {
        let exempt: Exempt = Arc::new(|_| true);
        Intake { owner: "the test's", connections_max, exempt, is_for_strangers: false, tls: None }
    }

    /// Connections that yield stay open until their tasks run, and none does during the first poll.
    #[test]
    fn a_burst_waits_for_the_descriptors_of_those_that_yield() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one thread");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            let addr = listener.local_addr().expect("it is bound");
            let intake = intake(10);
            let mut never = std::pin::pin!(std::future::pending());
            let mut serving = intake.run(listener, never.as_mut(), |_, _| std::future::pending::<()>());
            let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
            assert!(poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await.is_pending());
            let connect = |_| std::net::TcpStream::connect(addr).expect("room in the queue");
            let _clients: Vec<_> = (0..100).map(connect).collect();
            // The runtime sees them before it polls again.
            tokio::task::yield_now().await;
            assert!(poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await.is_pending());
            assert_eq!(tasks(), 10 + CLOSING_MAX);
        });
    }

    /// Nothing accepts after the first poll.
    #[test]
    fn a_burst_of_connections_waits_for_a_busy_process() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one thread");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            let addr = listener.local_addr().expect("it is bound");
            let intake = intake(1_000);
            let mut never = std::pin::pin!(std::future::pending());
            let mut serving = intake.run(listener, never.as_mut(), |_, _| async {});
            let polled = poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            let connect = |_| std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(10));
            let waiting: Result<Vec<_>, _> = (0..400).map(connect).collect();
            assert_eq!(waiting.expect("room in the queue").len(), 400);
        });
    }
}
