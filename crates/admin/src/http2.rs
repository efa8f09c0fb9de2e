//! HTTP/2 for listeners that strangers reach, over the `h2` crate.
//!
//! hyper reads an answer's body before the stream has room for it and owns the streams' timers, so
//! that streams without a window hold memory for ever. Here nothing of a body is read before its
//! stream has a window and its memory fits two budgets, one of the connection and one of all
//! connections. A stream without progress is reset, and a connection that sends more control frames
//! than its requests need ends with GOAWAY. Unread bytes of requests fill at most the window of
//! their connection, for most connections the protocol's default of 64 KiB.

mod meter;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, server};
use http_body::{Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout, timeout_at};

use crate::crowd::{Guest, Pace, Turn, Work};
use crate::transport::Transport;
use meter::Meter;
pub use meter::Metered;

/// Most bytes of a body that one step reads.
const PIECE_BYTES: usize = 512 << 10;
/// Bytes of answers that one connection holds.
const CONNECTION_BYTES: usize = 4 << 20;
/// Bytes of answers that all connections hold.
const ALL_BYTES: usize = 256 << 20;
/// Largest piece when all connections together are at their limit, and the bytes up to which a
/// connection then still gets one: others cannot take everything from it.
const MINIMUM_BYTES: usize = 16 << 10;
const MINIMUM_HELD: usize = 64 << 10;
/// Streams of all connections. Each takes some KiB beside its answer.
const STREAMS_MAX: usize = 16 << 10;
/// Streams that a connection has beyond that.
const MINIMUM_STREAMS: usize = 4;
/// Bodies that wait for a window or memory with their files open. Each may have a descriptor, of
/// which a process has 1,024 on many systems.
const WAITING_MAX: usize = 64;
/// Bytes of a request body that a stream and a connection may send before they are taken.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Connections at a time with such a window, once they have sent a body. Others have the 64 KiB
/// of the protocol: they send 3 MiB a second over a way of 20 ms, and much more in one building.
const WINDOWS_MAX: usize = 64;
/// Bytes of the headers of a request.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// Time for the client's preface and first settings.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without a stream after which a connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time to send a GOAWAY.
const GOODBYE: Duration = Duration::from_secs(2);

/// Unit of the budgets.
const UNIT: usize = 1 << 10;

/// Bodies that wait with their files open.
static WAITING: Semaphore = Semaphore::const_new(WAITING_MAX);

/// Large windows that connections may have.
static WINDOWS: Semaphore = Semaphore::const_new(WINDOWS_MAX);

/// Streams of all connections that have a place.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(STREAMS_MAX)));

static ALL: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(ALL_BYTES / UNIT)));

/// A body of an answer, which is read as its stream has room.
pub trait Outgoing: Send + 'static {
    /// The next bytes, at most `at_most`; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>, at_most: usize) -> Poll<Option<io::Result<Bytes>>>;

    /// Bytes that are left, if that is known.
    fn left(&self) -> Option<u64>;

    /// The stream has no room, like many others: the body closes what it can open again.
    fn pause(&mut self) {}

    /// Bytes of memory that the body holds, if another request waits for such memory. A client that
    /// takes less than [`Turn::least`] in a [`Turn`] loses it then.
    fn wanted(&self) -> Option<u64> {
        None
    }
}

/// A body from elsewhere as an [`Outgoing`] one: what the stream has no room for stays in memory.
#[derive(Debug)]
pub struct Framed<B> {
    body: B,
    rest: Bytes,
}

impl<B> Framed<B> {
    /// Sends `body`.
    pub fn new(body: B) -> Framed<B> {
        Framed { body, rest: Bytes::new() }
    }
}

impl<B> Outgoing for Framed<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn poll_piece(&mut self, context: &mut Context<'_>, at_most: usize) -> Poll<Option<io::Result<Bytes>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let count = self.rest.len().min(at_most);
        Poll::Ready(Some(Ok(self.rest.split_to(count))))
    }

    fn left(&self) -> Option<u64> {
        if self.body.is_end_stream() {
            return Some(self.rest.len() as u64);
        }
        self.body.size_hint().exact().map(|exact| exact + self.rest.len() as u64)
    }
}

/// A body of a request. It fails when it does not keep its [`Pace`].
#[derive(Debug)]
pub struct Received {
    stream: RecvStream,
    left: Option<u64>,
    pace: Paced,
}

impl Received {
    /// Connection that it comes from.
    #[must_use]
    pub fn guest(&self) -> &Guest {
        &self.pace.guest
    }
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Received { stream, left, pace } = &mut *self;
        let Poll::Ready(data) = stream.poll_data(context) else {
            return pace.poll(context).map(|error| Some(Err(error)));
        };
        Poll::Ready(match data {
            None => None,
            Some(Err(error)) => Some(Err(io::Error::other(error))),
            Some(Ok(bytes)) => {
                // The reader takes the bytes at once; a stream that has ended needs no window.
                let _ = stream.flow_control().release_capacity(bytes.len());
                pace.moved(bytes.len());
                *left = left.map(|left| left.saturating_sub(bytes.len() as u64));
                Some(Ok(Frame::data(bytes)))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

/// The [`Pace`] of a body with its timer. While the server does not wait for the body, it works on
/// the request.
#[derive(Debug)]
struct Paced {
    pace: Pace,
    sleep: Option<Pin<Box<Sleep>>>,
    guest: Guest,
    work: Option<Work>,
}

impl Paced {
    fn begin(guest: &Guest) -> Paced {
        Paced { pace: Pace::begin(), sleep: None, guest: guest.clone(), work: Some(guest.work()) }
    }

    /// Counts bytes of the body.
    fn moved(&mut self, bytes: usize) {
        self.pace.moved(bytes);
        self.work.get_or_insert_with(|| self.guest.work());
    }

    /// Waits for the body. Completes with [`io::ErrorKind::TimedOut`] when it is too late.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        self.work = None;
        loop {
            let due = self.pace.due();
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if sleep.deadline() > due {
                sleep.as_mut().reset(due);
            }
            ready!(sleep.as_mut().poll(context));
            if Instant::now() >= due {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the body is too slow"));
            }
            sleep.as_mut().reset(due);
        }
    }
}

/// A body of a request that fails when it does not keep its [`Pace`].
#[derive(Debug)]
pub struct PacedBody<B> {
    body: B,
    pace: Paced,
}

impl<B> PacedBody<B> {
    /// A body of a request on the connection of `guest`, whose time begins now.
    pub fn new(body: B, guest: &Guest) -> PacedBody<B> {
        PacedBody { body, pace: Paced::begin(guest) }
    }
}

impl<B> http_body::Body for PacedBody<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let PacedBody { body, pace } = &mut *self;
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            return pace.poll(context).map(|error| Some(Err(error)));
        };
        if let Some(Ok(frame)) = &frame {
            pace.moved(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// State that the streams of a connection share.
struct Shared {
    guest: Guest,
    meter: Arc<Meter>,
    /// Budget of the connection.
    budget: Arc<Semaphore>,
}

/// Answers the requests of one HTTP/2 connection, at most `streams_max` at a time, until it ends.
/// Bytes that were read before are part of `stream`. Each request has the [`Guest`] among its
/// extensions. Returns how many streams there were at a time, at most.
pub async fn serve_http2<S, A, F, B>(stream: S, guest: Guest, streams_max: u32, answer: A) -> usize
where
    S: Transport,
    A: Fn(Request<Received>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Outgoing,
{
    serve_within((&PLACES, &WINDOWS), stream, guest, streams_max, answer).await
}

async fn serve_within<S, A, F, B>(
    (places, windows): (&Arc<Semaphore>, &Semaphore),
    stream: S,
    guest: Guest,
    streams_max: u32,
    answer: A,
) -> usize
where
    S: Transport,
    A: Fn(Request<Received>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Outgoing,
{
    let meter = Arc::new(Meter::default());
    let stream = Metered::counted(stream, guest.clone(), Arc::clone(&meter));
    let handshake = server::Builder::new()
        .max_concurrent_streams(streams_max)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_window_size(STREAM_WINDOW)
        .max_send_buffer_size(PIECE_BYTES)
        .handshake::<_, Bytes>(stream);
    // The peer decides how a connection ends.
    let Ok(Ok(mut connection)) = timeout(HANDSHAKE_TIMEOUT, handshake).await else { return 0 };
    let budget = Arc::new(Semaphore::new(CONNECTION_BYTES / UNIT));
    let shared = Arc::new(Shared { guest, meter: Arc::clone(&meter), budget });
    let (mut streams, mut most, mut window) = (JoinSet::new(), 0, None);
    let (mut idle, mut look) = (pin!(sleep(IDLE_TIMEOUT)), pin!(sleep(Turn::TIME)));
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(|context| match meter.is_exceeded() {
                true => Poll::Ready(None),
                false => connection.poll_accept(context).map(Some),
            }) => accepted,
            Some(_) = streams.join_next(), if !streams.is_empty() => {
                meter.set_streams(streams.len());
                if streams.is_empty() {
                    shared.guest.rest();
                }
                idle.as_mut().reset(Instant::now() + IDLE_TIMEOUT);
                continue;
            }
            () = look.as_mut(), if !streams.is_empty() => {
                meter.ask();
                look.as_mut().reset(Instant::now() + Turn::TIME);
                continue;
            }
            () = idle.as_mut(), if streams.is_empty() => {
                connection.graceful_shutdown();
                let _ = timeout(GOODBYE, poll_fn(|context| connection.poll_closed(context))).await;
                return most;
            }
        };
        match accepted {
            None => {
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                let _ = timeout(GOODBYE, poll_fn(|context| connection.poll_closed(context))).await;
                return most;
            }
            Some(Some(Ok((request, mut respond)))) => {
                let place = Arc::clone(places).try_acquire_owned().ok();
                if place.is_none() && streams.len() >= MINIMUM_STREAMS {
                    // Nothing was done: the client may try again.
                    respond.send_reset(Reason::REFUSED_STREAM);
                    continue;
                }
                if window.is_none() && !request.body().is_end_stream() {
                    window = windows.try_acquire().ok();
                    if window.is_some() {
                        connection.set_target_window_size(CONNECTION_WINDOW);
                    }
                }
                streams.spawn(exchange(request, respond, answer.clone(), Arc::clone(&shared), place));
                meter.set_streams(streams.len());
                most = most.max(streams.len());
            }
            Some(None | Some(Err(_))) => return most,
        }
    }
}

async fn exchange<A, F, B>(
    request: Request<RecvStream>,
    mut respond: server::SendResponse<Bytes>,
    answer: A,
    shared: Arc<Shared>,
    _place: Option<OwnedSemaphorePermit>,
) where
    A: Fn(Request<Received>) -> F,
    F: Future<Output = Response<B>>,
    B: Outgoing,
{
    let (mut parts, stream) = request.into_parts();
    parts.extensions.insert(shared.guest.clone());
    let declared =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let left = if stream.is_end_stream() { Some(0) } else { declared };
    let received = Received { stream, left, pace: Paced::begin(&shared.guest) };
    let is_head = parts.method == hyper::Method::HEAD;
    let response = {
        // Not part of the task, so that its memory is free once the answer is there: a stream may
        // wait for long to take it.
        let mut answered = Box::pin(answer(Request::from_parts(parts, received)));
        poll_fn(|context| {
            // Nobody waits for the answer of a stream that was reset.
            if respond.poll_reset(context).is_ready() {
                return Poll::Ready(None);
            }
            answered.as_mut().poll(context).map(Some)
        })
        .await
    };
    let Some(response) = response else { return };
    shared.guest.complete();
    // A stream that the client has reset takes nothing.
    let _ = send(&mut respond, response, is_head, &shared).await;
}

async fn send<B: Outgoing>(
    respond: &mut server::SendResponse<Bytes>,
    response: Response<B>,
    is_head: bool,
    shared: &Shared,
) -> Result<(), h2::Error> {
    let (mut parts, mut body) = response.into_parts();
    let is_bodiless = matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if let (Some(left), false, false) = (body.left(), is_bodiless, is_head) {
        parts.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(left));
    }
    parts.headers.entry(header::DATE).or_insert_with(date);
    let is_empty = is_head || is_bodiless || body.left() == Some(0);
    let mut stream = respond.send_response(Response::from_parts(parts, ()), is_empty)?;
    if is_empty {
        return Ok(());
    }
    let own = Arc::new(Semaphore::new(PIECE_BYTES / UNIT));
    let position = Arc::new(WritePosition { meter: Arc::clone(&shared.meter), end: AtomicU64::new(0) });
    let mut progress = Progress::begin(&own, &position);
    let sent = send_body(&mut stream, &mut body, shared, &own, &mut progress).await;
    let sent = match sent {
        // Pieces in h2 are not sent yet, and a client can take the window back.
        Ok(()) => {
            let all = own.acquire_many((PIECE_BYTES / UNIT) as u32);
            wait_for(all, &mut body, &mut progress).await.map(drop)
        }
        failed => failed,
    };
    if let Err(reason) = sent {
        stream.send_reset(reason);
    }
    Ok(())
}

async fn send_body<B: Outgoing>(
    stream: &mut SendStream<Bytes>,
    body: &mut B,
    shared: &Shared,
    own: &Arc<Semaphore>,
    progress: &mut Progress<'_>,
) -> Result<(), Reason> {
    loop {
        let left = body.left().map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES as u64) as usize).max(1);
        stream.reserve_capacity(left);
        let room = poll_fn(|context| poll_room(stream, context));
        let room = wait_for(room, body, progress).await??.min(left);
        let loan = wait_for(Loan::take(room, shared, own), body, progress).await?;
        let since = Instant::now();
        let piece = poll_fn(|context| body.poll_piece(context, loan.bytes.min(room))).await;
        progress.pace.excuse(since);
        progress.turn.excuse(since);
        match piece {
            None => return stream.send_data(Bytes::new(), true).map_err(|_| Reason::CANCEL),
            Some(Err(_)) => return Err(Reason::INTERNAL_ERROR),
            Some(Ok(piece)) => {
                let is_last = body.left() == Some(0);
                progress.pace.moved(piece.len());
                let position = Arc::clone(progress.position);
                let piece = Bytes::from_owner(Lent { piece, position, _loan: loan });
                stream.send_data(piece, is_last).map_err(|_| Reason::CANCEL)?;
                if is_last {
                    return Ok(());
                }
            }
        }
    }
}

/// Progress of an answer on its way out.
struct Progress<'a> {
    pace: Pace,
    turn: Turn,
    /// Room for pieces that h2 has and did not write yet.
    own: &'a Semaphore,
    position: &'a Arc<WritePosition>,
    /// Looks at what the client has taken, and what it had at the last one, when this was known
    /// last.
    looks: u64,
    taken: u64,
    /// Its share of what the client took while this answer had data in the socket.
    share: u64,
    /// The turn was extended, because acknowledgements were not checked in it.
    is_prolonged: bool,
}

impl<'a> Progress<'a> {
    fn begin(own: &'a Semaphore, position: &'a Arc<WritePosition>) -> Progress<'a> {
        let (looks, taken) = position.meter.taken();
        let (pace, turn) = (Pace::begin(), Turn::begin(0));
        Progress { pace, turn, own, position, looks, taken, share: 0, is_prolonged: false }
    }

    /// Accounts for what the client has taken while the answer waits. Reports whether the answer is
    /// to be given up; `wanted` gives what it holds, if others need it.
    fn is_over(&mut self, wanted: impl FnOnce() -> Option<u64>) -> bool {
        let now = Instant::now();
        let (looks, taken) = self.position.meter.taken();
        let has_looked = looks != self.looks;
        // The connection has pieces of this answer, and of others before them. When the client has
        // taken them, it does not open the window of this stream.
        let is_in_socket = self.own.available_permits() < PIECE_BYTES / UNIT
            || self.taken < self.position.end.load(Ordering::Relaxed);
        if is_in_socket && taken > self.taken {
            // Bytes count for the rate once they are given to h2.
            self.pace.goes_on();
            self.share += (taken - self.taken) / self.position.meter.streams();
        }
        (self.looks, self.taken) = (looks, taken);
        if now >= self.pace.due() {
            return true;
        }
        if now < self.turn.end() {
            return false;
        }
        if is_in_socket && !has_looked && !self.is_prolonged {
            (self.turn, self.is_prolonged) = (Turn::begin(self.turn.moved()), true);
            return false;
        }
        self.is_prolonged = false;
        let moved = self.turn.renew(self.pace.bytes() + self.share);
        wanted().is_some_and(|held| moved < Turn::least(held))
    }
}

/// Awaits what `body` needs to go on, as long as the pace of its transfer allows. Few bodies wait
/// with their files open at a time; the others pause.
async fn wait_for<T, B: Outgoing>(
    need: impl Future<Output = T>,
    body: &mut B,
    progress: &mut Progress<'_>,
) -> Result<T, Reason> {
    let (mut need, mut place) = (pin!(need), None);
    loop {
        let until = progress.pace.due().min(progress.turn.end());
        let waited = timeout_at(
            until,
            poll_fn(|context| {
                let polled = need.as_mut().poll(context);
                if polled.is_pending() && place.is_none() {
                    place = WAITING.try_acquire().ok();
                    if place.is_none() {
                        body.pause();
                    }
                }
                polled
            }),
        );
        match waited.await {
            Ok(there) => return Ok(there),
            Err(_) if progress.is_over(|| body.wanted()) => return Err(Reason::CANCEL),
            Err(_) => {}
        }
    }
}

/// The window of a stream, once it has one.
fn poll_room(stream: &mut SendStream<Bytes>, context: &mut Context<'_>) -> Poll<Result<usize, Reason>> {
    loop {
        // `poll_capacity` reports changes only.
        let room = stream.capacity();
        if room > 0 {
            return Poll::Ready(Ok(room));
        }
        match ready!(stream.poll_capacity(context)) {
            Some(Ok(_)) => {}
            _ => return Poll::Ready(Err(Reason::CANCEL)),
        }
    }
}

/// Memory of the budgets, until it is dropped.
struct Loan {
    bytes: usize,
    _own: OwnedSemaphorePermit,
    _connection: OwnedSemaphorePermit,
    _all: Option<OwnedSemaphorePermit>,
}

impl Loan {
    /// Borrows at most `bytes`, and fewer when all connections together are at their limit.
    async fn take(bytes: usize, shared: &Shared, own: &Arc<Semaphore>) -> Loan {
        let units = |bytes: usize| u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let closed = "the budgets are never closed";
        let wanted = units(bytes);
        let mut mine = Arc::clone(own).acquire_many_owned(wanted).await.expect(closed);
        let mut connection = Arc::clone(&shared.budget).acquire_many_owned(wanted).await.expect(closed);
        if let Ok(all) = Arc::clone(&ALL).try_acquire_many_owned(wanted) {
            return Loan { bytes, _own: mine, _connection: connection, _all: Some(all) };
        }
        let held = CONNECTION_BYTES - shared.budget.available_permits() * UNIT - wanted as usize * UNIT;
        if held <= MINIMUM_HELD {
            let bytes = bytes.min(MINIMUM_BYTES);
            let rest = (wanted - units(bytes)) as usize;
            drop((mine.split(rest), connection.split(rest)));
            return Loan { bytes, _own: mine, _connection: connection, _all: None };
        }
        let all = Arc::clone(&ALL).acquire_many_owned(wanted).await.expect(closed);
        Loan { bytes, _own: mine, _connection: connection, _all: Some(all) }
    }
}

/// Position of an answer in what is written to its connection.
struct WritePosition {
    meter: Arc<Meter>,
    /// End of the last piece that was written.
    end: AtomicU64,
}

/// A piece of an answer on borrowed memory: returned when h2 has written it.
struct Lent {
    piece: Bytes,
    position: Arc<WritePosition>,
    _loan: Loan,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let WritePosition { meter, end } = &*self.position;
        end.store(meter.written(), Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

thread_local! {
    /// The time as a header has it, which changes once a second.
    static DATE: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

fn date() -> HeaderValue {
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    DATE.with_borrow_mut(|made| match made {
        Some((known, date)) if *known == second => date.clone(),
        _ => {
            let date = HeaderValue::try_from(httpdate::fmt_http_date(now)).expect("a date is a header value");
            *made = Some((second, date.clone()));
            date
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::crowd::{Admission, Crowd};
    use crate::intake::no_exemptions;

    #[test]
    fn a_stream_makes_progress_while_its_data_is_in_the_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _entered = runtime.enter();
        let own = Arc::new(Semaphore::new(PIECE_BYTES / UNIT));
        let position = Arc::new(WritePosition { meter: Arc::default(), end: AtomicU64::new(1_000) });
        let mut progress = Progress::begin(&own, &position);
        position.meter.set_streams(2);
        progress.pace.moved(1 << 20);
        let mut share_after = |taken| {
            position.meter.looked(taken);
            let before = progress.pace.due();
            assert!(!progress.is_over(|| None));
            (progress.share, progress.pace.due() > before)
        };
        // Its last bytes are the thousandth; what the client takes then is of other streams.
        assert_eq!([400, 400, 900].map(&mut share_after), [(200, true), (200, false), (450, true)]);
        assert_eq!([1_100, 2_000].map(&mut share_after), [(550, true), (550, false)]);
        // A piece that h2 has comes behind what others have in the socket.
        let lent = own.try_acquire_many(1).expect("all is free");
        assert_eq!(share_after(2_100), (600, true));
        drop(lent);
        assert_eq!(share_after(3_000), (600, false));
    }

    /// An empty body.
    struct Nothing;

    impl Outgoing for Nothing {
        fn poll_piece(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Option<io::Result<Bytes>>> {
            Poll::Ready(None)
        }

        fn left(&self) -> Option<u64> {
            Some(0)
        }
    }

    /// A client of a server that answers nothing.
    async fn client(windows: usize) -> (h2::client::SendRequest<Bytes>, h2::PingPong) {
        let (client, server) = duplex(64 << 10);
        let crowd = Crowd::new(&Arc::default(), 1, no_exemptions());
        let Admission::Admitted(guest) = crowd.admit([192, 0, 2, 1].into(), false) else {
            panic!("there is room");
        };
        tokio::spawn(async move {
            let (places, windows) = (Arc::new(Semaphore::new(1)), Semaphore::new(windows));
            let answer = |request: Request<Received>| async move {
                let _untaken = request;
                std::future::pending::<Response<Nothing>>().await
            };
            serve_within((&places, &windows), server, guest, 100, answer).await;
        });
        let (sender, mut connection) = h2::client::handshake(client).await.expect("HTTP/2");
        let pings = connection.ping_pong().expect("the first caller");
        tokio::spawn(connection);
        (sender, pings)
    }

    #[tokio::test]
    async fn without_places_a_connection_has_few_streams_and_others_are_refused() {
        let (mut sender, _) = client(1).await;
        let mut ask = || {
            let request = Request::get("http://localhost/").body(()).expect("a request");
            sender.send_request(request, true).expect("a stream").0
        };
        let _waiting: Vec<_> = (0..MINIMUM_STREAMS).map(|_| ask()).collect();
        let refused = ask().await.expect_err("one too many");
        assert_eq!(refused.reason(), Some(Reason::REFUSED_STREAM));
    }

    #[tokio::test]
    async fn without_a_large_window_a_connection_sends_little_that_nobody_takes() {
        for (windows, expected) in [(0, 65_535), (1, STREAM_WINDOW as usize)] {
            let (mut sender, mut pings) = client(windows).await;
            let request = Request::post("http://localhost/").body(()).expect("a request");
            let (_answer, mut stream) = sender.send_request(request, false).expect("a stream");
            let (mut sent, mut without) = (0, 0);
            while without < 3 {
                stream.reserve_capacity(2 * CONNECTION_WINDOW as usize);
                // The answer comes behind everything that the server had sent.
                pings.ping(h2::Ping::opaque()).await.expect("an open connection");
                let room = stream.capacity();
                without = if room == 0 { without + 1 } else { 0 };
                stream.send_data(Bytes::from(vec![0; room]), false).expect("an open stream");
                sent += room;
            }
            assert_eq!(sent, expected);
        }
    }
}
