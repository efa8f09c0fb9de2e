//! Accept loop of the process's HTTP listeners.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause when the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Limits of a listener.
#[derive(Clone)]
pub struct Intake {
    /// Name of the listener for the log: `the cache's`.
    pub owner: &'static str,
    /// Connections at a time.
    pub connections_max: usize,
    /// Treatment of connections above the limit.
    pub beyond: Beyond,
    /// TLS, if configured. Offers HTTP/2 if its configuration lists `h2`.
    pub tls: Option<Tls>,
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

/// Treatment of a connection above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// It waits in the kernel's queue, at no cost to the process, until another one ends.
    Waits,
    /// It is closed at once.
    Closed,
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
    /// The future is boxed so that the server is compiled once in this crate, and not in every
    /// program and test that awaits it.
    pub fn run<'a, F>(
        self,
        listener: TcpListener,
        shutdown: Shutdown<'a>,
        serve: impl Fn(Accepted) -> F + Clone + Send + 'static,
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
        serve: impl Fn(Accepted) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let slots = Arc::new(Semaphore::new(self.connections_max));
        let mut tasks = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = async {
                    let slot = match self.beyond {
                        Beyond::Waits => Arc::clone(&slots).acquire_owned().await.ok(),
                        Beyond::Closed => None,
                    };
                    listener.accept().await.map(|(stream, _)| (stream, slot))
                } => accepted,
                () = &mut shutdown => return,
                Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            };
            let (stream, slot) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Others may give their descriptors back soon.
                    tracing::warn!(%error, "{} listener cannot accept", self.owner);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(slot) = slot.or_else(|| Arc::clone(&slots).try_acquire_owned().ok()) else { continue };
            let (serve, tls) = (serve.clone(), self.tls.clone());
            tasks.spawn(async move {
                if let Some(accepted) = shake_hands(stream, tls).await {
                    serve(accepted).await;
                }
                drop(slot);
            });
        }
    }
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
