//! Streams with timeouts.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;

/// A stream that a connection may run over.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {
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

/// A time limit that is moved with every request and looked at only when it could have passed:
/// moving it costs no more than reading the clock.
pub(crate) struct Watchdog {
    due: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Watchdog {
    pub(crate) fn new(time: Duration) -> Watchdog {
        let due = Instant::now() + time;
        Watchdog { due, sleep: Box::pin(sleep_until(due)) }
    }

    /// From now on there is this much time.
    pub(crate) fn within(&mut self, time: Duration) {
        self.due = Instant::now() + time;
        if self.due < self.sleep.deadline() {
            self.sleep.as_mut().reset(self.due);
        }
    }

    /// Ends with [`io::ErrorKind::TimedOut`].
    pub(crate) fn poll<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        loop {
            if self.sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= self.due {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.sleep.as_mut().reset(self.due);
        }
    }
}

/// A stream of which something was read already.
pub(crate) struct Rewound<S> {
    first: Bytes,
    stream: S,
}

impl<S> Rewound<S> {
    pub(super) fn new(first: Bytes, stream: S) -> Rewound<S> {
        Rewound { first, stream }
    }
}

impl<S: Wire> AsyncRead for Rewound<S> {
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

impl<S: Wire> AsyncWrite for Rewound<S> {
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
