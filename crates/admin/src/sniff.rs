//! Detection of HTTP/2 by the first bytes of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::transport::Transport;

/// First bytes of a client that speaks HTTP/2.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time for the first bytes.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(20);

/// A stream of which something was read already.
#[derive(Debug)]
pub struct Rewound<S> {
    first: Bytes,
    stream: S,
}

impl<S> Rewound<S> {
    /// `stream`, with `first` before its next bytes.
    pub fn new(first: Bytes, stream: S) -> Rewound<S> {
        Rewound { first, stream }
    }
}

/// Reads until it is known whether the client speaks HTTP/2; `None` when it says nothing in time.
pub async fn sniff<S: AsyncRead + Unpin>(mut stream: S) -> Option<(bool, Rewound<S>)> {
    let mut first = BytesMut::with_capacity(PREFACE.len());
    let read = async {
        while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
            let mut room = (&mut stream).take((PREFACE.len() - first.len()) as u64);
            if !matches!(room.read_buf(&mut first).await, Ok(1..)) {
                break;
            }
        }
    };
    timeout(FIRST_BYTES_TIMEOUT, read).await.ok()?;
    Some((first == PREFACE, Rewound::new(first.freeze(), stream)))
}

impl<S: Transport> Transport for Rewound<S> {
    fn socket(&self) -> Option<&TcpStream> {
        self.stream.socket()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buf);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
