//! A lean HTTP/1.1 implementation for the cache.
//!
//! hyper reads and writes HTTP/2 here, but not this: it cannot hand a file to the kernel
//! (`sendfile`), which halves the cost of a download, and it cuts uploads into pieces as they
//! happen to arrive, while hashing and writing want large ones. All HTTP/1.1 goes through this one
//! parser, with TLS or without; framing that two parsers could read differently is refused.
//!
//! A connection has one watchdog: every wait ends when it does. A body and an answer must keep the
//! pace of every HTTP listener ([`Pace`]). An idle connection keeps a buffer of 4 KiB, and
//! about 2 KiB for the next head.

mod body;
mod head;
mod send;
mod wire;

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use hyper::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::time::Instant;

use throng_admin::{Guest, PREFACE, Pace, Pages, Rewound, Turn, Work};

use crate::answer::Problem;
use crate::listener::Listener;
use crate::memory::{FREE_BYTES, Memory, Waiters};
use crate::service::{RawRequest, Service};
use crate::watchdog::Watchdog;
use body::{Incoming, Left};
use head::Head;
pub(crate) use wire::Wire;

/// Time between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time for a request's head, from its first byte, and for the first byte of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum wait for the next bytes of a blob that is still arriving from elsewhere.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a refused client may take the refusal, and send the rest of a short body.
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
    /// Bytes that the next piece may hold.
    piece_max: usize,
    /// Memory for the next piece, while a large body comes.
    spare: BytesMut,
    watchdog: Watchdog,
    /// Without a transfer the watchdog stays as it is.
    transfer: Transfer,
    /// Bytes that were written to the stream, and those that the client had taken of them when the
    /// pace of the answer began: the socket may hold earlier answers.
    written: u64,
    taken_before: u64,
    /// Pace of the transfer since it first waited for the client: the usual one never does.
    pace: Option<Pace>,
    /// Requests that wait for memory, if the answer holds some, how much that is, and the time that
    /// its client has.
    waiters: Option<Waiters>,
    held_bytes: u64,
    turn: Option<Turn>,
    guest: Guest,
    /// While a request is worked on, and its body not waited for.
    work: Option<Work>,
}

/// Kind of the current transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transfer {
    Nothing,
    Body,
    Answer,
}

/// Reason for the end of [`serve`]. A returned stream replays the bytes that were read from it.
pub(crate) enum ConnectionEnd<S> {
    Ended,
    /// The client speaks HTTP/2.
    Http2(Rewound<S>),
    /// The next request is for one of the [`Pages`].
    Page(Rewound<S>),
}

/// Answers requests until the connection ends or another protocol takes it over.
pub(crate) async fn serve<S: Wire>(
    stream: S,
    service: &Arc<Service>,
    listener: Listener,
    pages: &OnceLock<Pages>,
    guest: Guest,
) -> ConnectionEnd<S> {
    let mut connection = Connection {
        stream,
        buf: BytesMut::new(),
        out: Vec::new(),
        left: Left::NOTHING,
        piece: BytesMut::new(),
        piece_max: FREE_BYTES,
        spare: BytesMut::new(),
        watchdog: Watchdog::new(HEAD_TIMEOUT),
        transfer: Transfer::Nothing,
        written: 0,
        taken_before: 0,
        pace: None,
        waiters: None,
        held_bytes: 0,
        turn: None,
        guest,
        work: None,
    };
    let (mut first, mut head) = (true, Head::new());
    loop {
        match connection.read_head(&mut head, first, pages).await {
            Ok(Next::Exchange) => {
                // How a connection ends is the peer's business.
                if !connection.exchange(&head, service, listener).await.unwrap_or(false) {
                    return ConnectionEnd::Ended;
                }
                head.clear();
            }
            Ok(Next::Refuse(status, why)) => {
                service.count_refusal();
                let _ = connection.refuse(Problem::new(status, why), &service.memory).await;
                return ConnectionEnd::Ended;
            }
            Ok(Next::Http2) => {
                return ConnectionEnd::Http2(Rewound::new(connection.buf.freeze(), connection.stream));
            }
            Ok(Next::Page) => {
                return ConnectionEnd::Page(Rewound::new(connection.buf.freeze(), connection.stream));
            }
            Ok(Next::End) | Err(_) => return ConnectionEnd::Ended,
        }
        first = false;
    }
}

/// What comes next on a connection.
enum Next {
    /// A request, whose head was read.
    Exchange,
    /// Something that is no request.
    Refuse(StatusCode, &'static str),
    Http2,
    /// A request for one of the [`Pages`], which was not taken from the buffer.
    Page,
    End,
}

impl<S: Wire> Connection<S> {
    async fn read_head(&mut self, head: &mut Head, first: bool, pages: &OnceLock<Pages>) -> io::Result<Next> {
        let is_idle = !first && self.buf.is_empty();
        self.watchdog.within(if is_idle { IDLE_TIMEOUT } else { HEAD_TIMEOUT });
        let mut seen = 0;
        // The deadline of a head that came at once is that of its request.
        let mut is_timed = !is_idle;
        loop {
            if first && PREFACE.starts_with(&self.buf[..self.buf.len().min(PREFACE.len())]) {
                if self.buf.len() >= PREFACE.len() {
                    return Ok(Next::Http2);
                }
            } else if self.buf[seen..].contains(&b'\n') {
                // Only the end of a line can end a head.
                match head.read(&self.buf) {
                    Ok(true) if pages.get().is_some() && Pages::has(&head.path) => return Ok(Next::Page),
                    Ok(true) => {
                        self.buf.advance(head.len);
                        return Ok(Next::Exchange);
                    }
                    Ok(false) => {}
                    Err((status, why)) => return Ok(Next::Refuse(status, why)),
                }
            }
            seen = self.buf.len();
            if seen > 0 && !is_timed {
                self.watchdog.within(HEAD_TIMEOUT);
                is_timed = true;
            }
            if seen >= head::BYTES_MAX {
                return Ok(Next::Refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long"));
            }
            match self.fill(HEAD_ROOM).await {
                Ok(0) if seen == 0 => return Ok(Next::End),
                Ok(0) => return Ok(Next::Refuse(StatusCode::BAD_REQUEST, "the head broke off")),
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
    async fn exchange(
        &mut self,
        head: &Head,
        service: &Arc<Service>,
        listener: Listener,
    ) -> io::Result<bool> {
        self.left = head.left;
        self.begin_transfer(Transfer::Body);
        self.work = Some(self.guest.work());
        let answer = {
            let question = RawRequest {
                method: head.method.as_str(),
                path: &head.path,
                query: &head.query,
                headers: &head.headers,
                source: Box::new(Incoming(&mut *self)),
            };
            service.answer(listener, question).await
        };
        self.work = None;
        self.drop_piece();
        if head.len > HEAD_ROOM || head.left.is_chunked() {
            // Memory for an unusual request, which the next one does not need.
            self.buf = BytesMut::from(&self.buf[..]);
        }
        let mut keep = head.keep_alive;
        // A client that waits for permission to send a body, and gets an answer instead, may send
        // it or not. After a malformed chunk the start of the next request is unknown.
        let skip = self.left.at_most(SKIP_BYTES_MAX) && !self.left.is_awaited();
        keep &= self.left.is_done() || skip;
        self.send(answer, (keep, head.minor == 0), &service.memory).await?;
        self.guest.complete();
        self.guest.rest();
        if !keep {
            self.linger().await;
            return Ok(false);
        }
        if !self.left.is_done() {
            self.transfer = Transfer::Nothing;
            self.watchdog.within(LINGER);
            while !self.left.is_done() {
                poll_fn(|context| self.poll_piece(context)).await?;
            }
        }
        Ok(true)
    }

    fn begin_transfer(&mut self, transfer: Transfer) {
        (self.transfer, self.pace) = (transfer, None);
        (self.waiters, self.held_bytes, self.turn) = (None, 0, None);
    }

    /// Counts bytes of the body that is being received.
    fn received(&mut self, bytes: usize) {
        if let Some(pace) = &mut self.pace {
            pace.moved(bytes);
            self.guest.moved(bytes);
        }
    }

    /// Counts bytes of the answer that were written.
    fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
        if self.pace.is_some() {
            self.guest.moved(bytes);
        }
    }

    /// Waits for the client, as long as the pace of the transfer allows.
    fn poll_patience<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.transfer == Transfer::Nothing {
            return self.watchdog.poll(context);
        }
        if self.pace.is_none() {
            self.pace = Some(Pace::begin());
            if self.transfer == Transfer::Answer {
                self.taken_before = self.stream.taken(self.written);
            }
        }
        loop {
            let Some(pace) = &self.pace else { return Poll::Pending };
            let mut until = pace.due();
            if self.transfer == Transfer::Answer {
                until = until.min(pace.next_look());
            }
            if self.waiters.is_some() {
                until = until.min(self.turn.get_or_insert_with(|| Turn::begin(pace.bytes())).end());
            }
            self.watchdog.until(until);
            let late = ready!(self.watchdog.poll(context));
            if self.is_over() {
                return Poll::Ready(late);
            }
        }
    }

    /// Accounts for what the client has taken of an answer by now.
    fn look(&mut self) {
        if let (Transfer::Answer, Some(pace)) = (self.transfer, &mut self.pace) {
            let taken = self.stream.taken(self.written).saturating_sub(self.taken_before);
            self.guest.moved(taken.saturating_sub(pace.bytes()) as usize);
            pace.reached(taken, Instant::now());
        }
    }

    /// Reports whether the transfer is to be given up: it is too slow, or another request waits for
    /// the memory that its answer holds.
    fn is_over(&mut self) -> bool {
        self.look();
        let (now, Some(pace)) = (Instant::now(), &self.pace) else { return false };
        if now >= pace.due() {
            return true;
        }
        let (Some(waiters), Some(turn)) = (&self.waiters, &mut self.turn) else { return false };
        now >= turn.end() && turn.renew(pace.bytes()) < Turn::least(self.held_bytes) && waiters.any()
    }

    async fn refuse(&mut self, problem: Problem, memory: &Memory) -> io::Result<()> {
        self.send(problem.answer(None), (false, false), memory).await?;
        self.linger().await;
        Ok(())
    }

    /// Ends the connection so that what was sent last arrives: closing with bytes unread would
    /// destroy it.
    async fn linger(&mut self) {
        self.transfer = Transfer::Nothing;
        self.watchdog.within(LINGER);
        let Connection { stream, watchdog, .. } = self;
        let shutdown = poll_fn(|context| match pin!(stream.shutdown()).poll(context) {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => watchdog.poll(context),
        });
        if shutdown.await.is_err() {
            return;
        }
        // Many linger at a time after a flood: none has a buffer of its own.
        self.buf = BytesMut::new();
        let Connection { stream, watchdog, .. } = self;
        poll_fn(|context| {
            let mut skipped = [MaybeUninit::uninit(); FREE_BYTES];
            loop {
                let mut skipped = ReadBuf::uninit(&mut skipped);
                match Pin::new(&mut *stream).poll_read(context, &mut skipped) {
                    Poll::Ready(Ok(())) if !skipped.filled().is_empty() => {}
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return watchdog.poll::<()>(context).map(drop),
                }
            }
        })
        .await;
    }
}
