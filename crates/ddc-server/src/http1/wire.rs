//! Streams that a connection may run over.

use throng_admin::Transport;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream that a connection may run over.
pub(crate) trait Wire: Transport + Sync {
    /// The socket, if what is written to the stream is what it sends.
    fn tcp(&self) -> Option<&TcpStream>;
}

impl Wire for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Wire for TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}
