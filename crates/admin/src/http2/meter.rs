//! The stream below an HTTP/2 connection: counts the frames that arrive, and the time for which
//! nothing can be written.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use crate::crowd::{Guest, Pace, Turn};
use crate::transport::Transport;

/// Bytes of the preface, which precedes the first frame.
const PREFACE_BYTES: usize = 24;
/// Payloads below this size make a DATA frame cost more than it brings. A client that sends lines
/// as they come sends such frames.
const SMALL_DATA_BYTES: usize = 256;

/// Reports from a [`Metered`] stream to the connection over it.
#[derive(Debug, Default)]
pub(super) struct Meter {
    is_exceeded: AtomicBool,
    /// The connection is to look at what the client has taken.
    is_look_due: AtomicBool,
    /// Number of these looks, and what the client had taken at the last one.
    looks: AtomicU64,
    taken: AtomicU64,
    /// Bytes that were written.
    written: AtomicU64,
    /// Streams of the connection.
    streams: AtomicU64,
}

impl Meter {
    /// Reports whether the client sent more control frames or resets than it may.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Asks for a look at what the client has taken, the next time that the connection is polled.
    pub(super) fn ask(&self) {
        self.is_look_due.store(true, Ordering::Relaxed);
    }

    /// Notes how many streams the connection has.
    pub(super) fn set_streams(&self, streams: usize) {
        self.streams.store(streams as u64, Ordering::Relaxed);
    }

    /// Streams of the connection, which share what the client takes.
    pub(super) fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed).max(1)
    }

    #[cfg(test)]
    pub(super) fn looked(&self, taken: u64) {
        self.taken.store(taken, Ordering::Relaxed);
        self.looks.fetch_add(1, Ordering::Release);
    }

    /// Bytes that were written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Number of looks at what the client has taken, one in each [`Turn`] in which there are
    /// streams, and the bytes that it had taken at the last one.
    pub(super) fn taken(&self) -> (u64, u64) {
        (self.looks.load(Ordering::Acquire), self.taken.load(Ordering::Relaxed))
    }
}

/// A number of frames that is refilled with time.
#[derive(Debug)]
struct Bucket {
    left: f64,
    burst: f64,
    per_s: f64,
    filled: Instant,
}

impl Bucket {
    fn new(burst: f64, per_s: f64, now: Instant) -> Bucket {
        Bucket { left: burst, burst, per_s, filled: now }
    }

    /// Takes one; false when there is none.
    fn take(&mut self, now: Instant) -> bool {
        if self.left < 1.0 {
            self.add(now.duration_since(self.filled).as_secs_f64() * self.per_s);
            self.filled = now;
        }
        self.left -= 1.0;
        self.left >= 0.0
    }

    fn add(&mut self, count: f64) {
        self.left = (self.left + count).min(self.burst);
    }
}

/// Budgets of the frames of one connection, and the place in its bytes.
#[derive(Debug)]
struct Frames {
    /// Bytes of the preface or of the current payload that are to come.
    skip: usize,
    head: [u8; 9],
    head_len: usize,
    /// PING, SETTINGS, PRIORITY, CONTINUATION, empty DATA and unknown frames. An editor sends a
    /// dozen of them in a session.
    control: Bucket,
    /// DATA with few bytes.
    small_data: Bucket,
    /// RST_STREAM. An editor may cancel all its requests at once.
    resets: Bucket,
    /// WINDOW_UPDATE: as many as the bytes sent need, which are two for each frame of 16 KiB at
    /// the most.
    updates: Bucket,
}

impl Frames {
    fn new(now: Instant) -> Frames {
        Frames {
            skip: PREFACE_BYTES,
            head: [0; 9],
            head_len: 0,
            control: Bucket::new(1_024.0, 50.0, now),
            small_data: Bucket::new(16_384.0, 10_000.0, now),
            resets: Bucket::new(1_024.0, 50.0, now),
            updates: Bucket::new(8_192.0, 100.0, now),
        }
    }

    /// Counts the frames that begin in `bytes`; false when there are too many.
    fn read(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let count = self.skip.min(bytes.len());
                self.skip -= count;
                bytes = &bytes[count..];
                continue;
            }
            let count = (self.head.len() - self.head_len).min(bytes.len());
            self.head[self.head_len..self.head_len + count].copy_from_slice(&bytes[..count]);
            self.head_len += count;
            bytes = &bytes[count..];
            if self.head_len == self.head.len() {
                self.head_len = 0;
                let [a, b, c, kind, flags, ..] = self.head;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                if !self.count(kind, flags, now) {
                    return false;
                }
            }
        }
        true
    }

    fn count(&mut self, kind: u8, flags: u8, now: Instant) -> bool {
        let is_flagged = flags & 1 != 0;
        match kind {
            // The last frame of a body, and frames that carry something.
            0 if is_flagged || self.skip >= SMALL_DATA_BYTES => true,
            0 if self.skip > 0 => self.small_data.take(now),
            // HEADERS begin a request, which streams and answers limit.
            1 => true,
            3 => self.resets.take(now),
            // Acknowledgements of what was sent here.
            4 | 6 if is_flagged => true,
            8 => self.updates.take(now),
            _ => self.control.take(now),
        }
    }
}

/// Time for which nothing can be written.
#[derive(Debug)]
struct Stall {
    /// Goes off at the next look at what the client has taken.
    timer: Pin<Box<Sleep>>,
    begun: tokio::time::Instant,
}

/// A stream that reports its progress to its [`Guest`], and fails when its client takes nothing for
/// [`Pace::PAUSE`].
#[derive(Debug)]
pub struct Metered<S> {
    stream: S,
    guest: Guest,
    /// Of HTTP/2.
    frames: Option<(Frames, Arc<Meter>)>,
    /// True if something could not be written since the last read. Answers of HTTP/1.1 that the
    /// socket takes at once are over, and no progress of their connection.
    has_stalled: bool,
    /// While nothing can be written.
    stall: Option<Stall>,
    /// Bytes that were written.
    written: u64,
    /// Those of them that the client had taken at the last look, and the time of the last one that
    /// found more than the look before.
    taken: u64,
    took: tokio::time::Instant,
}

impl<S> Metered<S> {
    /// A stream of HTTP/1.1.
    pub fn new(stream: S, guest: Guest) -> Metered<S> {
        Metered {
            stream,
            guest,
            frames: None,
            has_stalled: false,
            stall: None,
            written: 0,
            taken: 0,
            took: tokio::time::Instant::now(),
        }
    }

    /// A stream of HTTP/2, whose frames are counted.
    pub(super) fn counted(stream: S, guest: Guest, meter: Arc<Meter>) -> Metered<S> {
        Metered {
            stream,
            guest,
            frames: Some((Frames::new(Instant::now()), meter)),
            has_stalled: false,
            stall: None,
            written: 0,
            taken: 0,
            took: tokio::time::Instant::now(),
        }
    }
}

impl<S: Transport> Metered<S> {
    /// Waits for the client to take something. Completes when it has taken nothing for too long.
    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.has_stalled = true;
        let every = if self.frames.is_some() { Turn::TIME } else { Pace::LOOK };
        let mut stall = match self.stall.take() {
            Some(stall) => stall,
            None => {
                let now = tokio::time::Instant::now();
                self.look();
                Stall { timer: Box::pin(sleep_until(now + every)), begun: now }
            }
        };
        while stall.timer.as_mut().poll(context).is_ready() {
            let now = tokio::time::Instant::now();
            self.look();
            // Looks for the streams count as well.
            if now >= stall.begun.max(self.took) + Pace::PAUSE {
                return Poll::Ready(());
            }
            stall.timer.as_mut().reset(now + every);
        }
        self.stall = Some(stall);
        Poll::Pending
    }

    /// Looks at what the client has taken.
    fn look(&mut self) {
        let all = if self.taken < self.written { self.stream.taken(self.written) } else { self.written };
        let taken = all.saturating_sub(self.taken);
        self.taken += taken;
        self.guest.moved(taken as usize);
        if taken > 0 {
            self.took = tokio::time::Instant::now();
        }
        if let Some((_, meter)) = &self.frames {
            meter.taken.store(self.taken, Ordering::Relaxed);
            meter.looks.fetch_add(1, Ordering::Release);
        }
    }

    /// Accounts for a write.
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(result) = wrote else {
            return self.poll_stall(context).map(|()| Err(io::ErrorKind::TimedOut.into()));
        };
        self.stall = None;
        if let Ok(count) = result {
            self.written += count as u64;
            if self.has_stalled || self.frames.is_some() {
                self.guest.moved(count);
            }
            if let Some((frames, meter)) = &mut self.frames {
                frames.updates.add(count as f64 / 4_096.0);
                meter.written.store(self.written, Ordering::Relaxed);
            }
        }
        Poll::Ready(result)
    }
}

impl<S: Transport> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some((_, meter)) = &self.frames
            && meter.is_look_due.load(Ordering::Relaxed)
        {
            meter.is_look_due.store(false, Ordering::Relaxed);
            self.look();
        }
        let Metered { stream, guest, frames, has_stalled, .. } = &mut *self;
        if frames.as_ref().is_some_and(|(_, meter)| meter.is_exceeded()) {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(context, buf))?;
        let read = &buf.filled()[before..];
        *has_stalled &= read.is_empty();
        guest.moved(read.len());
        if let Some((frames, meter)) = frames
            && !frames.read(read, Instant::now())
        {
            // The connection looks at the meter before it is polled again.
            buf.set_filled(before);
            meter.is_exceeded.store(true, Ordering::Relaxed);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Transport> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS keeps what the socket does not take.
        let flushed = Pin::new(&mut self.stream).poll_flush(context).map_ok(|()| 0);
        self.wrote(context, flushed).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use tokio::net::TcpStream;

    use super::*;
    use crate::crowd::{Admission, Crowd};
    use crate::intake::no_exemptions;

    #[tokio::test]
    async fn a_client_is_seen_to_take_what_the_socket_holds() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut client = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
        let (server, _) = listener.accept().expect("a client");
        server.set_nonblocking(true).expect("a socket");
        let crowd = Crowd::new(&Arc::default(), 1, no_exemptions());
        let Admission::Admitted(guest) = crowd.admit([192, 0, 2, 1].into(), false) else {
            panic!("there is room");
        };
        let meter = Arc::new(Meter::default());
        let stream = TcpStream::from_std(server).expect("a runtime");
        stream.writable().await.expect("a socket");
        let mut metered = Metered::counted(stream, guest, Arc::clone(&meter));
        let block = vec![0; 1 << 20];
        let mut context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Ok(_)) = Pin::new(&mut metered).poll_write(&mut context, &block) {}
        let (looks, taken) = meter.taken();
        assert!((1, 0) < (looks, taken) && taken < metered.written, "{taken} of {}", metered.written);
        // It takes nothing, then half of it: the socket may still not be writable.
        let took = metered.took;
        metered.look();
        assert_eq!((meter.taken(), metered.took), ((looks + 1, taken), took));
        std::io::Read::read_exact(&mut client, &mut vec![0; taken as usize / 2]).expect("it is there");
        meter.ask();
        // A look for the streams, at which nothing has arrived.
        let mut room = [0; 1];
        assert!(Pin::new(&mut metered).poll_read(&mut context, &mut ReadBuf::new(&mut room)).is_pending());
        assert!(meter.taken() > (looks + 2, taken) && metered.took > took);
    }

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let len = u32::try_from(payload).expect("small").to_be_bytes();
        let mut bytes = vec![len[1], len[2], len[3], kind, flags, 0, 0, 0, 0];
        bytes.resize(9 + payload, 0);
        bytes
    }

    /// Frames of one kind that a connection may send at once.
    fn burst(kind: u8, flags: u8, payload: usize) -> Option<usize> {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        assert!(frames.read(&[0; PREFACE_BYTES], now));
        let bytes = frame(kind, flags, payload);
        (0..20_000).find(|_| {
            // In pieces, as a socket may give them.
            let (first, second) = bytes.split_at(bytes.len() / 2);
            !(frames.read(first, now) && frames.read(second, now))
        })
    }

    #[test]
    fn frames_that_bring_nothing_have_a_budget() {
        for (kind, flags, payload) in
            [(6, 0, 8), (4, 0, 6), (2, 0, 5), (3, 0, 4), (0, 0, 0), (9, 0, 1), (99, 0, 0)]
        {
            assert_eq!(burst(kind, flags, payload), Some(1_024), "type {kind}");
        }
        assert_eq!(burst(8, 0, 4), Some(8_192));
        // Lines of an upload, each sent as it comes.
        assert_eq!((burst(0, 0, 1), burst(0, 0, 255)), (Some(16_384), Some(16_384)));
        for (kind, flags, payload) in [(1, 4, 20), (0, 0, 256), (0, 1, 0), (4, 1, 0), (6, 1, 8)] {
            assert_eq!(burst(kind, flags, payload), None, "type {kind}");
        }
    }

    #[test]
    fn budgets_refill_with_time_and_updates_with_bytes_sent() {
        let start = Instant::now();
        let mut frames = Frames::new(start);
        frames.skip = 0;
        let ping = frame(6, 0, 8);
        assert!((0..1_024).all(|_| frames.read(&ping, start)));
        let later = start + Duration::from_secs(2);
        assert!((0..100).all(|_| frames.read(&ping, later)));
        assert!(!frames.read(&ping, later));
        // The payload of the frame that was too many.
        frames.skip = 0;
        let update = frame(8, 0, 4);
        assert!((0..8_192).all(|_| frames.read(&update, start)));
        frames.updates.add(3.0);
        assert!((0..3).all(|_| frames.read(&update, start)));
        assert!(!frames.read(&update, start));
    }
}
