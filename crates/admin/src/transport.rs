//! Streams that a connection may run over.

use throng_platform::send_queue_bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream over a TCP socket, perhaps with TLS.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// The socket; `None` if the stream has another one below it.
    fn socket(&self) -> Option<&TcpStream>;

    /// Bytes that the peer has taken of `written`, which are all that were written to the stream.
    /// The socket holds some MiB of an answer: to a slow peer, it may take nothing new for minutes
    /// while the peer takes all the time. One system call.
    fn taken(&self, written: u64) -> u64 {
        let queued = self.socket().and_then(|socket| send_queue_bytes(socket).ok());
        written.saturating_sub(queued.unwrap_or(0))
    }
}

impl Transport for TcpStream {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Transport for TlsStream<TcpStream> {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

#[cfg(test)]
impl Transport for tokio::io::DuplexStream {
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}
