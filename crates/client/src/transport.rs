//! TCP, TLS and WebSocket connections behind one interface: chunks in, frames out.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::event::CloseCode;

/// Address of a gateway.
///
/// ```
/// use throng_client::Endpoint;
///
/// let plain: Endpoint = "127.0.0.1:12108".parse()?;
/// assert_eq!(plain.to_string(), "tcp://127.0.0.1:12108");
/// let socket: Endpoint = "ws://play.example:12108/".parse()?;
/// assert!(!socket.is_encrypted());
/// # Ok::<(), throng_client::EndpointError>(())
/// ```
#[derive(Clone)]
pub struct Endpoint {
    transport: Transport,
    /// `host:port`, or the file of a Unix socket.
    address: String,
    /// Path of the WebSocket upgrade request.
    path: String,
    tls: Option<Arc<rustls::ClientConfig>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Tls,
    WebSocket,
    WebSocketTls,
    Unix,
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an endpoint; write HOST:PORT, or put tcp://, tls://, ws:// or wss:// in front of it, or unix:// in front of a file"
)]
pub struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError(text.to_owned());
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        let transport = match scheme {
            "tcp" => Transport::Tcp,
            "tls" => Transport::Tls,
            "ws" => Transport::WebSocket,
            "wss" => Transport::WebSocketTls,
            "unix" if !rest.is_empty() => {
                let (address, path) = (rest.to_owned(), String::new());
                return Ok(Endpoint { transport: Transport::Unix, address, path, tls: None });
            }
            _ => return Err(wrong()),
        };
        let (address, path) = match rest.split_once('/') {
            Some((address, path)) => (address, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Endpoint { transport, address: address.to_owned(), path, tls: None })
    }
}

impl Endpoint {
    /// A plain TCP endpoint, `host:port`.
    #[must_use]
    pub fn tcp(address: impl fmt::Display) -> Self {
        Endpoint { transport: Transport::Tcp, address: address.to_string(), path: "/".to_owned(), tls: None }
    }

    /// Sets the TLS settings that `tls://` and `wss://` require; [`tls_trusting`] creates the usual
    /// ones.
    #[must_use]
    pub fn with_tls(self, config: Arc<rustls::ClientConfig>) -> Self {
        Endpoint { tls: Some(config), ..self }
    }

    /// Endpoints of another node, those of the same transport first, with this one's settings of
    /// TLS. An encrypted connection stays so.
    pub(crate) fn siblings(&self, addresses: &[String]) -> Vec<Endpoint> {
        let parsed = addresses.iter().filter_map(|address| address.parse::<Endpoint>().ok());
        let usable = parsed.filter(|each| each.transport != Transport::Unix);
        let usable = usable.filter(|each| each.is_encrypted() || !self.is_encrypted());
        let mut found: Vec<_> = usable.map(|each| Endpoint { tls: self.tls.clone(), ..each }).collect();
        found.sort_by_key(|each| each.transport != self.transport);
        found
    }

    /// True for `tls://` and `wss://`.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        matches!(self.transport, Transport::Tls | Transport::WebSocketTls)
    }

    fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Tcp => write!(f, "tcp://{}", self.address),
            Transport::Tls => write!(f, "tls://{}", self.address),
            Transport::Unix => write!(f, "unix://{}", self.address),
            Transport::WebSocket => write!(f, "ws://{}{}", self.address, self.path),
            Transport::WebSocketTls => write!(f, "wss://{}{}", self.address, self.path),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// TLS settings that accept certificates issued by, or equal to, one of `roots`.
///
/// # Errors
/// When a certificate cannot be read.
pub fn tls_trusting(
    roots: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<Arc<rustls::ClientConfig>, rustls::Error> {
    let mut store = rustls::RootCertStore::empty();
    for root in roots {
        store.add(root)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Failure to open a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address does not resolve, nothing listens on it, or the TLS handshake failed.
    #[error("cannot connect to {endpoint}: {source}")]
    Io {
        /// The address.
        endpoint: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The peer does not answer in time.
    #[error("cannot connect to {endpoint}: no answer within {timeout:?}")]
    Timeout {
        /// The address.
        endpoint: String,
        /// The time that passed.
        timeout: Duration,
    },
    /// The peer refused the WebSocket upgrade.
    #[error("cannot open a WebSocket at {endpoint}: {message}")]
    WebSocket {
        /// The address.
        endpoint: String,
        /// Error of the handshake.
        message: String,
    },
    /// An encrypted endpoint has no TLS settings.
    #[error("{0} is encrypted but has no TLS settings; add them with Endpoint::with_tls")]
    NoTls(String),
}

/// A connection: chunks as they arrive, frames to write. Dropping it closes the connection after
/// what was handed over is written.
pub(crate) struct Pipe {
    /// Ends when the peer closed or reading failed.
    pub(crate) incoming: mpsc::Receiver<Bytes>,
    /// Closed when writing failed. Each item is one frame.
    pub(crate) outgoing: mpsc::Sender<Vec<u8>>,
    reader: AbortHandle,
    /// Code of the peer's close frame; 0 before it.
    code: Arc<AtomicU16>,
}

impl Pipe {
    /// Close code of the peer, if it sent one.
    pub(crate) fn close_code(&self) -> Option<CloseCode> {
        let code = self.code.load(Ordering::Acquire);
        (code != 0).then_some(CloseCode(code))
    }

    /// Half-closes the connection and reads until the peer has closed it too, so that the last
    /// messages have arrived. If a connection with unread bytes is dropped instead, it is reset,
    /// and the peer loses data that it has not read.
    pub(crate) async fn finish(mut self, within: Duration) {
        let (closed, _) = mpsc::channel(1);
        self.outgoing = closed;
        let end = async { while self.incoming.recv().await.is_some() {} };
        // A peer that does not end it has had its time.
        let _ = tokio::time::timeout(within, end).await;
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Chunks and frames in flight between the tasks of one connection. Two reads of 64 KiB keep a fast
/// peer busy; more would only add delay.
const PIPE_DEPTH: usize = 2;
const READ_BYTES: usize = 64 * 1024;

pub(crate) async fn open(endpoint: &Endpoint, timeout: Duration) -> Result<Pipe, OpenError> {
    match tokio::time::timeout(timeout, open_untimed(endpoint)).await {
        Ok(result) => result,
        Err(_) => Err(OpenError::Timeout { endpoint: endpoint.to_string(), timeout }),
    }
}

async fn open_untimed(endpoint: &Endpoint) -> Result<Pipe, OpenError> {
    let io_error = |source| OpenError::Io { endpoint: endpoint.to_string(), source };
    if endpoint.transport == Transport::Unix {
        return Ok(stream_pipe(UnixStream::connect(&endpoint.address).await.map_err(io_error)?));
    }
    let tcp = TcpStream::connect(&endpoint.address).await.map_err(io_error)?;
    tcp.set_nodelay(true).map_err(io_error)?;
    match endpoint.transport {
        Transport::Tcp | Transport::Unix => Ok(stream_pipe(tcp)),
        Transport::Tls => Ok(stream_pipe(handshake(endpoint, tcp).await?)),
        Transport::WebSocket => websocket_pipe(endpoint, tcp).await,
        Transport::WebSocketTls => websocket_pipe(endpoint, handshake(endpoint, tcp).await?).await,
    }
}

async fn handshake(
    endpoint: &Endpoint,
    tcp: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, OpenError> {
    let io_error = |source| OpenError::Io { endpoint: endpoint.to_string(), source };
    let config = endpoint.tls.clone().ok_or_else(|| OpenError::NoTls(endpoint.to_string()))?;
    let name = ServerName::try_from(endpoint.host().to_owned())
        .map_err(|error| io_error(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.map_err(io_error)
}

fn stream_pipe<S>(stream: S) -> Pipe
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (chunks, incoming) = mpsc::channel(PIPE_DEPTH);
    let (outgoing, mut frames) = mpsc::channel::<Vec<u8>>(PIPE_DEPTH);
    let reader = tokio::spawn(async move {
        let mut buf = vec![0; READ_BYTES];
        while let Ok(len @ 1..) = reader.read(&mut buf).await {
            if chunks.send(Bytes::copy_from_slice(&buf[..len])).await.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(frame) = frames.recv().await {
            if writer.write_all(&frame).await.is_err() {
                return;
            }
            // TLS buffers records; flush when nothing more is at hand.
            if frames.is_empty() && writer.flush().await.is_err() {
                return;
            }
        }
        // The peer may be gone already; there is nobody left to tell.
        let _ = writer.shutdown().await;
    });
    Pipe { incoming, outgoing, reader: reader.abort_handle(), code: Arc::default() }
}

async fn websocket_pipe<S>(endpoint: &Endpoint, stream: S) -> Result<Pipe, OpenError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // The gateway sends one frame per message; anything larger is no gateway.
    let config = WebSocketConfig::default().max_message_size(Some(1 << 20)).max_frame_size(Some(1 << 20));
    let url = format!("ws://{}{}", endpoint.address, endpoint.path);
    let (socket, _response) =
        tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await.map_err(|error| {
            let message = match error {
                // A listener without WebSockets closes or resets at the first line of HTTP.
                tungstenite::Error::Protocol(ProtocolError::HandshakeIncomplete)
                | tungstenite::Error::Io(_)
                | tungstenite::Error::ConnectionClosed => {
                    format!("{error}; if the listener is one for plain TCP, write tcp://{}", endpoint.address)
                }
                error => error.to_string(),
            };
            OpenError::WebSocket { endpoint: endpoint.to_string(), message }
        })?;
    let (mut sink, mut messages) = socket.split();
    let code = Arc::new(AtomicU16::new(0));
    let said = Arc::clone(&code);
    let (chunks, incoming) = mpsc::channel(PIPE_DEPTH);
    let (outgoing, mut frames) = mpsc::channel::<Vec<u8>>(PIPE_DEPTH);
    let reader = tokio::spawn(async move {
        while let Some(Ok(message)) = messages.next().await {
            let sent = match message {
                Message::Binary(chunk) => chunks.send(chunk).await,
                Message::Close(Some(frame)) => {
                    said.store(frame.code.into(), Ordering::Release);
                    Ok(())
                }
                _ => Ok(()),
            };
            if sent.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(frame) = frames.recv().await {
            if sink.send(Message::binary(frame)).await.is_err() {
                return;
            }
        }
        // The peer may be gone already; there is nobody left to tell.
        let _ = sink.close().await;
    });
    Ok(Pipe { incoming, outgoing, reader: reader.abort_handle(), code })
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn endpoints_are_read_and_printed() {
        for (text, printed) in [
            ("localhost:1", "tcp://localhost:1"),
            ("tcp://[::1]:12108", "tcp://[::1]:12108"),
            ("tls://play.example:443", "tls://play.example:443"),
            ("ws://h:80", "ws://h:80/"),
            ("wss://h:443/gate", "wss://h:443/gate"),
            ("unix:///run/matcher.sock", "unix:///run/matcher.sock"),
        ] {
            assert_eq!(text.parse::<Endpoint>().map(|e| e.to_string()), Ok(printed.to_owned()));
        }
        for text in ["", "host", "host:", ":1", "host:99999", "kcp://h:1", "ws://", "unix://"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        assert_eq!("tls://[::1]:9".parse::<Endpoint>().map(|e| e.host().to_owned()), Ok("::1".to_owned()));
    }
}
