//! A lean HTTP/1.1 implementation for the cache.
//!
//! hyper reads and writes HTTP/2 here, but not this: it cannot hand a file to the kernel
//! (`sendfile`), which halves the cost of a download, and it cuts uploads into pieces as they
//! happen to arrive, while hashing and writing want large ones. All HTTP/1.1 goes through this one
//! parser, with TLS or without; framing that two parsers could read differently is refused.
//!
//! A connection has one watchdog: every wait ends when it does. An idle connection keeps a buffer
//! of 4 KiB.

mod body;
mod head;
mod send;
mod wire;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use hyper::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::answer::Problem;
use crate::serve::Listener;
use crate::service::{RawRequest, Service};
use body::{Incoming, Left};
use head::{Head, PREFACE};
pub(crate) use wire::{Rewound, Watchdog, Wire};

/// Time between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time for a request's head, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// Time in which something of an answer must be taken, and something of a body must come.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a refused client may take the refusal.
const LINGER: Duration = Duration::from_secs(2);
/// Room for a head, when a connection waits for one.
const HEAD_ROOM: usize = 4 << 10;
/// Bytes of an unread body that are skipped to keep a connection; beyond, a new connection costs
/// less.
const SKIP_BYTES_MAX: u64 = 256 << 10;

/// A connection.
pub(crate) struct Connection<S> {
    stream: S,
    /// Bytes that were received and not yet read.
    buf: BytesMut,
    /// What is to be sent next.
    out: Vec<u8>,
    /// What is to come of the current request's body.
    left: Left,
    /// A piece of a body that is being received.
    piece: BytesMut,
    /// Memory for the next piece, while a large body comes.
    spare: BytesMut,
    watchdog: Watchdog,
}

/// Answers requests until the connection ends. Gives the stream and what was read of it if the
/// client speaks HTTP/2.
pub(crate) async fn serve<S: Wire>(
    stream: S,
    service: &Arc<Service>,
    listener: Listener,
) -> Option<Rewound<S>> {
    let mut connection = Connection {
        stream,
        buf: BytesMut::new(),
        out: Vec::new(),
        left: Left::NOTHING,
        piece: BytesMut::new(),
        spare: BytesMut::new(),
        watchdog: Watchdog::new(IDLE_TIMEOUT),
    };
    let mut first = true;
    loop {
        match connection.read_head(first).await {
            Ok(Next::Head(head)) => {
                // How a connection ends is the peer's business.
                if !connection.exchange(head, service, listener).await.unwrap_or(false) {
                    return None;
                }
            }
            Ok(Next::Refuse(status, why)) => {
                service.count_refusal();
                let _ = connection.refuse(Problem::new(status, why)).await;
                return None;
            }
            Ok(Next::Http2) => return Some(Rewound::new(connection.buf.freeze(), connection.stream)),
            Ok(Next::End) | Err(_) => return None,
        }
        first = false;
    }
}

/// What comes next on a connection.
enum Next {
    Head(Head),
    /// Something that is no request.
    Refuse(StatusCode, &'static str),
    Http2,
    End,
}

impl<S: Wire> Connection<S> {
    async fn read_head(&mut self, first: bool) -> io::Result<Next> {
        self.watchdog.within(IDLE_TIMEOUT);
        let mut seen = 0;
        loop {
            if first && PREFACE.starts_with(&self.buf[..self.buf.len().min(PREFACE.len())]) {
                if self.buf.len() >= PREFACE.len() {
                    return Ok(Next::Http2);
                }
            } else if self.buf[seen..].contains(&b'\n') {
                // Only the end of a line can end a head.
                match Head::parse(&self.buf) {
                    Ok(Some((head, len))) => {
                        self.buf.advance(len);
                        return Ok(Next::Head(head));
                    }
                    Ok(None) => {}
                    Err((status, why)) => return Ok(Next::Refuse(status, why)),
                }
            }
            seen = self.buf.len();
            if seen >= head::BYTES_MAX {
                return Ok(Next::Refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long"));
            }
            match self.fill(HEAD_ROOM).await {
                Ok(0) if seen == 0 => return Ok(Next::End),
                Ok(0) => return Ok(Next::Refuse(StatusCode::BAD_REQUEST, "the head broke off")),
                Ok(_) if seen == 0 => self.watchdog.within(HEAD_TIMEOUT),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut && seen > 0 => {
                    return Ok(Next::Refuse(StatusCode::REQUEST_TIMEOUT, "the head took too long"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what has arrived, at most `room` bytes.
    async fn fill(&mut self, room: usize) -> io::Result<usize> {
        self.buf.reserve(room);
        let Connection { stream, buf, watchdog, .. } = self;
        poll_fn(|context| {
            if let Poll::Ready(read) = pin!(stream.read_buf(buf)).poll(context) {
                return Poll::Ready(read);
            }
            watchdog.poll(context)
        })
        .await
    }

    /// Answers one request. Whether the connection can take another.
    async fn exchange(&mut self, head: Head, service: &Arc<Service>, listener: Listener) -> io::Result<bool> {
        self.left = head.left;
        self.watchdog.within(STALL_TIMEOUT);
        let answer = {
            let question = RawRequest {
                method: &head.method,
                path: &head.path,
                query: &head.query,
                headers: head.headers,
                source: Box::new(Incoming(&mut *self)),
            };
            service.answer(listener, question).await
        };
        self.spare = BytesMut::new();
        let mut keep = head.keep_alive;
        // A client that waits for permission to send a body, and gets an answer instead, may send
        // it or not.
        let skip = self.left.at_most(SKIP_BYTES_MAX) && !self.left.is_awaited();
        keep &= self.left.is_done() || skip;
        self.watchdog.within(STALL_TIMEOUT);
        self.send(answer, keep, head.minor == 0).await?;
        if !keep {
            self.linger().await;
            return Ok(false);
        }
        while !self.left.is_done() {
            poll_fn(|context| self.poll_piece(context)).await?;
        }
        Ok(true)
    }

    async fn refuse(&mut self, problem: Problem) -> io::Result<()> {
        self.watchdog.within(STALL_TIMEOUT);
        self.send(problem.answer(None), false, false).await?;
        self.linger().await;
        Ok(())
    }

    /// Ends the connection so that what was sent last arrives: closing with bytes unread would
    /// destroy it.
    async fn linger(&mut self) {
        self.watchdog.within(LINGER);
        let Connection { stream, watchdog, .. } = self;
        let shutdown = poll_fn(|context| match pin!(stream.shutdown()).poll(context) {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => watchdog.poll(context),
        });
        if shutdown.await.is_err() {
            return;
        }
        loop {
            self.buf.clear();
            if !matches!(self.fill(64 << 10).await, Ok(1..)) {
                return;
            }
        }
    }
}
