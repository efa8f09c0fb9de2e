//! Sources of bytes: the body of a request, and a blob that arrives from elsewhere.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use futures_util::stream::StreamExt as _;
use http_body::Body as _;
use throng_ddc_store::Incoming;
use tokio::time::Instant;

use crate::watchdog::Watchdog;

/// A transfer from elsewhere in which nothing arrives for this long has failed. Editors wait 10 s
/// for the first byte.
const STALL: Duration = Duration::from_secs(8);
/// Failure of a body that arrived.
pub(crate) const OTHER_CONTENT: &str = "it came with other content than its name says";

/// Origin of the bytes of a body.
pub(crate) trait Source: Send + Sync {
    /// The next bytes; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>>;
    /// Number of bytes to come, if the sender said it.
    fn declared(&self) -> Option<u64>;
    /// Lets the next piece hold `bytes` of memory, of those that it [asks for](Source::asks_for).
    fn allow(&mut self, _bytes: usize) {}
    /// Memory that the next piece is to hold while it arrives.
    fn asks_for(&self) -> usize {
        0
    }
    /// Bytes of the next piece that have arrived.
    fn arrived(&self) -> usize {
        0
    }
    /// Address of a client that stands for itself alone.
    fn address(&self) -> Option<IpAddr> {
        None
    }
    /// Takes back a piece that is of no more use, so that its memory can be the next one's.
    fn recycle(&mut self, _piece: Bytes) {}
}

/// The body of a request of HTTP/2.
pub(crate) struct Streamed(pub(crate) throng_admin::Received);

impl Source for Streamed {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match ready!(Pin::new(&mut self.0).poll_frame(context)) {
                None => return Poll::Ready(Ok(None)),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data()
                        && !bytes.is_empty()
                    {
                        return Poll::Ready(Ok(Some(bytes)));
                    }
                }
            }
        }
    }

    fn declared(&self) -> Option<u64> {
        self.0.size_hint().exact()
    }

    fn address(&self) -> Option<IpAddr> {
        self.0.guest().address()
    }
}

/// The deadline of a transfer from elsewhere: `BYTES` of it may take `TIME`, which is 1 KiB/s.
///
/// The clients that wait for a blob share its transfer, so a fast beginning does not make up for a
/// slow rest, unlike in the [`Pace`](throng_admin::Pace) of an upload, which delays its own client
/// only.
struct Window {
    /// Time by which `left` bytes have to arrive.
    due: Instant,
    left: usize,
}

impl Window {
    const TIME: Duration = Duration::from_secs(30);
    const BYTES: usize = 30 << 10;

    fn begin(now: Instant) -> Window {
        Window { due: now + Window::TIME, left: Window::BYTES }
    }

    /// Counts bytes that arrived at `now`.
    fn moved(&mut self, bytes: usize, now: Instant) {
        if bytes < self.left {
            self.left -= bytes;
        } else {
            *self = Window::begin(now);
        }
    }
}

/// A blob on its way here, as the body of an upload.
pub(crate) struct FetchedBody {
    incoming: Mutex<Incoming>,
    watchdog: Watchdog,
    window: Window,
    /// Time of the last piece.
    given: Instant,
    /// The next piece was asked for.
    is_waiting: bool,
}

impl FetchedBody {
    pub(crate) fn new(incoming: Incoming) -> FetchedBody {
        let (watchdog, given) = (Watchdog::new(STALL), Instant::now());
        let window = Window::begin(given);
        FetchedBody { incoming: Mutex::new(incoming), watchdog, window, given, is_waiting: false }
    }

    /// The time for the next piece begins now. A disk or client that paused since the last one is
    /// no reason to give the source less.
    fn begin_wait(&mut self) {
        self.is_waiting = true;
        self.window.due += self.given.elapsed();
        self.watchdog.until(self.window.due.min(Instant::now() + STALL));
    }
}

impl fmt::Debug for FetchedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FetchedBody")
    }
}

impl Source for FetchedBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if !self.is_waiting {
            self.begin_wait();
        }
        let incoming = self.incoming.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            match incoming.bytes.poll_next_unpin(context) {
                Poll::Pending => return self.watchdog.poll(context),
                Poll::Ready(Some(Ok(piece))) if piece.is_empty() => {}
                Poll::Ready(piece) => {
                    (self.given, self.is_waiting) = (Instant::now(), false);
                    if let Some(Ok(piece)) = &piece {
                        self.window.moved(piece.len(), self.given);
                    }
                    return Poll::Ready(piece.transpose());
                }
            }
        }
    }

    fn declared(&self) -> Option<u64> {
        let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        (incoming.len > 0).then_some(incoming.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dripping_rest_is_given_up_30_s_after_a_fast_beginning() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut window = Window::begin(begun);
        window.moved(850_000, at(100));
        for byte in 1..=33 {
            window.moved(1, at(100 + byte * 900));
        }
        assert_eq!(window.due, at(100) + Window::TIME);
    }

    #[test]
    fn a_transfer_of_1_kib_a_second_goes_on() {
        let begun = Instant::now();
        let mut window = Window::begin(begun);
        for second in 1..=900 {
            let now = begun + Duration::from_secs(second);
            assert!(now <= window.due, "given up after {second} s");
            window.moved(1 << 10, now);
        }
    }
}
