//! Sources of bytes: the body of a request, and a blob that arrives from elsewhere.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use futures_util::stream::StreamExt as _;
use http_body::Body as _;
use throng_admin::Pace;
use throng_ddc_store::Incoming;
use tokio::time::Instant;

use crate::watchdog::Watchdog;

/// A transfer from elsewhere in which nothing arrives for this long has failed, as has one that
/// falls behind its [`Pace`]. Editors wait 10 s for the first byte.
const STALL: Duration = Duration::from_secs(8);
/// Failure of a body that arrived.
pub(crate) const OTHER_CONTENT: &str = "it came with other content than its name says";

/// Origin of the bytes of a body.
pub(crate) trait Source: Send + Sync {
    /// The next bytes; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>>;
    /// Number of bytes to come, if the sender said it.
    fn declared(&self) -> Option<u64>;
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
}

/// A blob on its way here, as the body of an upload.
pub(crate) struct FetchedBody {
    incoming: Mutex<Incoming>,
    watchdog: Watchdog,
    pace: Pace,
    /// Time of the last piece.
    given: Instant,
}

impl FetchedBody {
    pub(crate) fn new(incoming: Incoming) -> FetchedBody {
        let (watchdog, pace) = (Watchdog::new(STALL), Pace::begin());
        FetchedBody { incoming: Mutex::new(incoming), watchdog, pace, given: Instant::now() }
    }

    /// The time for the next bytes begins now: the last ones were of no use before.
    pub(crate) fn begin_wait(&mut self) {
        self.pace.excuse(self.given);
        self.wait();
    }

    fn wait(&mut self) {
        self.watchdog.until(self.pace.due().min(Instant::now() + STALL));
    }
}

impl fmt::Debug for FetchedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FetchedBody")
    }
}

impl Source for FetchedBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let incoming = self.incoming.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            match incoming.bytes.poll_next_unpin(context) {
                Poll::Pending => return self.watchdog.poll(context),
                Poll::Ready(Some(Ok(piece))) if piece.is_empty() => {}
                Poll::Ready(piece) => {
                    if let Some(Ok(piece)) = &piece {
                        self.pace.moved(piece.len());
                    }
                    self.given = Instant::now();
                    self.wait();
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
